"use strict";
/*
 * strandline: names an instant of a Node program for `strandline run`.
 *
 *     const { mark } = require("/path/to/probes/node/strandline.js"); // or import it
 *     mark("cache filled");
 *     strandline run -o cache.strandline -- node program.js
 *
 * Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is a call that returns at once. With
 * it, a mark is three synchronous system calls plus the time that strandline takes for its sample, and the
 * event loop waits for it; some short-lived objects, buffers are made once. Figures: docs/probes.md.
 *
 * Node 12 or later, Linux, no dependencies, no addon. Node ignores SIGPIPE; where a program has taken that
 * back, so is its protection. Workers, and processes of one tree, do not take turns: when two mark in the
 * same instant, the later one's sample may be taken a little after its mark. Node closes the descriptor in
 * its children: pass it on, with stdio: [0, 1, 2, ...], where a child is to mark too.
 */

const fs = require("fs");

const NAME_BYTES = 200;
const CONTROL = /[\x00-\x1f\x7f]/g;

// undefined: not looked yet; null: off for ever; else the descriptor.
let fd;
let device, inode;
let line, answer, sleeper;

/**
 * Names this instant; returns when strandline has taken its sample. Control characters of the name become
 * spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more.
 */
function mark(name) {
  if (fd === null) return;
  if (fd === undefined) fd = look();
  if (fd === null) return;
  // The descriptor may be another file of the program's by now.
  const file = socket(fd);
  if (file === null || file.dev !== device || file.ino !== inode || !talk(String(name))) fd = null;
}

/** Writes the line and waits for the answer; false where there is nobody at the other end. */
function talk(name) {
  // write() never splits a character.
  let end = line.write(name.slice(0, NAME_BYTES).replace(CONTROL, " "), 0, NAME_BYTES);
  line[end++] = 10;
  for (let at = 0; at < end; ) {
    const sent = again(() => fs.writeSync(fd, line, at, end - at, null));
    if (sent === 0) return false;
    at += sent;
  }
  return again(() => fs.readSync(fd, answer, 0, 1, null)) === 1;
}

/** Repeats what was interrupted, or would have to wait on a socket that somebody made non-blocking; 0 where
 * it failed. */
function again(call) {
  for (;;) {
    try {
      return call();
    } catch (error) {
      if (error.code === "EAGAIN") Atomics.wait(sleeper, 0, 0, 1);
      else if (error.code !== "EINTR") return 0;
    }
  }
}

function socket(number) {
  try {
    const file = fs.fstatSync(number);
    return file.isSocket() ? file : null;
  } catch (error) {
    return null;
  }
}

/** Whether the kernel's list says that the socket is of another kind than a stream. A socket that is not in
 * it may be of another network namespace. */
function isOtherKind(wanted) {
  try {
    // Num RefCount Protocol Flags Type St Inode Path
    const rows = fs.readFileSync("/proc/net/unix", "latin1").split("\n");
    const row = rows.map((text) => text.trim().split(/ +/)).find((columns) => columns[6] === wanted);
    return row !== undefined && row[4] !== "0001";
  } catch (error) {
    return false;
  }
}

/** The descriptor, where there is a strandline to talk to: the number, above the standard ones, of a stream
 * socket. */
function look() {
  const value = process.env.STRANDLINE_MARK_FD || "";
  if (!/^[0-9]{1,9}$/.test(value) || Number(value) < 3) return null;
  const file = socket(Number(value));
  if (file === null || isOtherKind(String(file.ino))) return null;
  device = file.dev;
  inode = file.ino;
  line = Buffer.alloc(NAME_BYTES + 1);
  answer = Buffer.alloc(1);
  sleeper = new Int32Array(new SharedArrayBuffer(4));
  return Number(value);
}

module.exports = { mark };
