// Prints V8's own statistics of its heaps, one line after each command: a byte on standard input.
//
//   s  only print               w  start a worker with a heap of its own
//   c  make garbage that moves  e  end the worker started first
//   d  drop the kept objects    l  the collection that empties the pool (V8 12.4 and later)
//   g  collect twice            q  end
//   t  wait for a timer, then check data that is never dropped
//   b  block this thread until someone opens the named pipe `argv[3]` for writing
//   n  wait for that in Node's event loop, within this thread's JavaScript
//   a  make Buffers, external strings and a memory of WebAssembly, outside the heap
//   x  start a worker that blocks for ever
//   u  make 20,000 Buffers of 1,000 bytes in slabs, and keep every eighth
//   i  wait for a timer of 300 ms
//   k  make known numbers of objects of classes, and of functions
//   y  make one object of each of 1,500 classes
//
// The line has `isolates` and, summed over them, the `spaces` of v8.getHeapSpaceStatistics().
// With the argument `storm` it makes garbage without end after the first line. With `load` it gives
// all threads work (garbage, timers, files, compression) and still reads commands.
'use strict';
const { MessageChannel, Worker, isMainThread, parentPort, receiveMessageOnPort, workerData } = require('worker_threads');
const { spawnSync } = require('child_process');
const fs = require('fs');
const v8 = require('v8');
const zlib = require('zlib');

class Parcel {
  constructor(i) {
    this.number = i;
    this.half = i + 0.5;
    this.name = 'x' + i;
  }
}

class Crate extends Parcel {}
class Account {}

let kept = [];

function fill(parcels) {
  for (let i = 0; i < parcels; i++) kept.push(new Parcel(i));
  for (let i = 0; i < 10; i++) kept.push(new Array(100_000).fill(i));
}

// 40 MiB in Buffers of their own, 2 MB in slabs, 12 MB of characters, 6.4 MB of WebAssembly's
// memory.
const outside = [];
function makeOutside() {
  for (let i = 0; i < 40; i++) outside.push(Buffer.alloc(1 << 20, 1));
  for (let i = 0; i < 2000; i++) outside.push(Buffer.allocUnsafe(1000).fill(2));
  const text = Buffer.alloc(4 << 20, 'x');
  outside.push(text.toString('latin1'), text.toString('latin1'), text.toString('ucs2'));
  const memory = new WebAssembly.Memory({ initial: 100, maximum: 200 });
  new Uint8Array(memory.buffer).fill(7);
  outside.push(memory, memory.buffer);
  // ArrayBuffers without a store: transferred and empty ones.
  const { port1, port2 } = new MessageChannel();
  for (let i = 0; i < 5; i++) {
    const given = new ArrayBuffer(100_000);
    port1.postMessage(given, [given]);
    outside.push(given, new ArrayBuffer(0), receiveMessageOnPort(port2).message);
  }
  port1.close();
}

const sparse = [];
function makeSparse() {
  for (let i = 0; i < 20_000; i++) {
    const buffer = Buffer.allocUnsafe(1000).fill(3);
    if (i % 8 === 0) sparse.push(buffer);
  }
}

const kinds = [];
function makeKinds() {
  // The variables of its scope come before its name.
  const [first, second] = [1, 2];
  class Shelf {
    constructor(i) { this.sum = () => first + second + i; }
  }
  const boxed = (i) => function lid() { return i; };
  for (let i = 0; i < 1234; i++) kinds.push(new Crate(i));
  for (let i = 0; i < 555; i++) kinds.push(new Shelf(i));
  for (let i = 0; i < 2000; i++) kinds.push(boxed(i));
  for (let i = 0; i < 777; i++) kinds.push(new Map([[i, `${i}`]]), new Float32Array(i), 2n ** BigInt(i));
  // An object used as a table: its keys look like names and are data.
  const table = {};
  for (let i = 0; i < 200; i++) table[['user', 'of', i].join('_')] = new Account();
  kinds.push(table);
  kinds.push(new WebAssembly.Table({ initial: 10, element: 'anyfunc' }), /a(b)/.exec('ab'));
}

const singles = [];
function makeSingles() {
  for (let i = 0; i < 1500; i++) singles.push(new (new Function(`return class Kind${i} {}`)())());
}

// Objects that survive some collections of the young generation and then die.
function churn() {
  let some = [];
  for (let i = 0; i < 600_000; i++) {
    some.push({ i, list: [i] });
    if (some.length > 150_000) some = [];
  }
}

function collect() {
  gc();
  gc();
}

// Data that lives as long as the isolate. `checks` counts how often the check found it unchanged.
const constant = Array.from({ length: 1000 }, (_, i) => ({ i, text: `parcel ${i}` }));
let checks = 0;

async function check() {
  await new Promise((done) => setTimeout(done, 1));
  const is_right = constant.every(({ i, text }, at) => i === at && text === `parcel ${at}`);
  if (!is_right) process.exit(70);
  checks += 1;
}

// Work for this thread and for the threads that read files and compress.
function load() {
  const recent = [];
  const bytes = Buffer.alloc(100_000, 'strandline');
  setInterval(() => {
    for (let i = 0; i < 4000; i++) recent.push({ i, list: [i] });
    if (recent.length > 40_000) recent.splice(0, 20_000);
    zlib.deflate(bytes, (error, packed) => zlib.inflate(packed, (_, same) => {
      if (!same.equals(bytes)) process.exit(71);
    }));
    fs.readFile(__filename, (error, text) => { if (error || text.length < 1000) process.exit(72); });
    check();
  }, 10);
}

function storm() {
  for (let i = 0; ; i++) {
    if (kept.length > 1_000_000) kept = [];
    kept.push({ i, list: [i] });
  }
}

if (!isMainThread) {
  fill(20_000);
  if (workerData === 'load') load();
  const spaces = () => parentPort.postMessage(v8.getHeapSpaceStatistics());
  parentPort.on('message', spaces);
  spaces();
  if (workerData === 'blocked') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
} else {
  const workers = [];
  const answer = (worker) => new Promise((done) => worker.once('message', done));
  const act = {
    s() {},
    a: makeOutside,
    k: makeKinds,
    u: makeSparse,
    y: makeSingles,
    c: churn,
    d() { kept = []; },
    g: collect,
    l() { gc({ type: 'major', execution: 'sync', flavor: 'last-resort' }); },
    async w() {
      const worker = new Worker(__filename, { workerData: process.argv[2] });
      workers.push(worker);
      await answer(worker);
    },
    async x() {
      const worker = new Worker(__filename, { workerData: 'blocked' });
      worker.unref();
      await answer(worker);
    },
    i: () => new Promise((done) => setTimeout(done, 300)),
    async e() { await workers.shift().terminate(); },
    t: check,
    b() { fs.closeSync(fs.openSync(process.argv[3])); },
    n() { spawnSync('cat', [process.argv[3]]); },
    q() { process.exit(0); },
  };
  const print = async () => {
    const others = [];
    for (const worker of workers) {
      const next = answer(worker);
      worker.postMessage(0);
      others.push(await next);
    }
    const spaces = v8.getHeapSpaceStatistics().map((space) => {
      const same = others.map((all) => all.find((other) => other.space_name === space.space_name));
      const sum = (field) => same.reduce((bytes, other) => bytes + other[field], space[field]);
      return { space_name: space.space_name, space_size: sum('space_size'), space_used_size: sum('space_used_size') };
    });
    const line = { version: process.versions.v8, isolates: 1 + workers.length, checks, spaces, array_buffers: process.memoryUsage().arrayBuffers };
    process.stdout.write(JSON.stringify(line) + '\n');
  };
  fill(60_000);
  if (process.argv[2] === 'load') load();
  let turn = print();
  if (process.argv[2] === 'storm') {
    turn.then(() => setImmediate(storm));
  } else {
    process.stdin.on('data', (bytes) => {
      for (const byte of bytes) turn = turn.then(() => act[String.fromCharCode(byte)]()).then(print);
    });
  }
}
