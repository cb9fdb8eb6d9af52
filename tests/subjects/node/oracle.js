// Prints V8's own statistics of its heaps, one line after each command: a byte on standard input.
//
//   s  nothing but print        w  start a worker with a heap of its own
//   c  make garbage that moves  e  end the worker started first
//   d  drop what is kept        l  the collection that empties the pool (V8 12.4 and later)
//   g  collect twice            q  end
//
// The line has `isolates` and, summed over them, `spaces` as v8.getHeapSpaceStatistics() has them.
// `storm` as an argument makes garbage without an end instead, after the first line.
'use strict';
const { Worker, isMainThread, parentPort } = require('worker_threads');
const v8 = require('v8');

class Parcel {
  constructor(i) {
    this.number = i;
    this.half = i + 0.5;
    this.name = 'x' + i;
  }
}

let kept = [];

function fill(parcels) {
  for (let i = 0; i < parcels; i++) kept.push(new Parcel(i));
  for (let i = 0; i < 10; i++) kept.push(new Array(100_000).fill(i));
}

// Objects that survive some collections of the young generation, and then do not.
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

function storm() {
  for (let i = 0; ; i++) {
    if (kept.length > 1_000_000) kept = [];
    kept.push({ i, list: [i] });
  }
}

if (!isMainThread) {
  fill(20_000);
  const spaces = () => parentPort.postMessage(v8.getHeapSpaceStatistics());
  parentPort.on('message', spaces);
  spaces();
} else {
  const workers = [];
  const answer = (worker) => new Promise((done) => worker.once('message', done));
  const act = {
    s() {},
    c: churn,
    d() { kept = []; },
    g: collect,
    l() { gc({ type: 'major', execution: 'sync', flavor: 'last-resort' }); },
    async w() {
      const worker = new Worker(__filename);
      workers.push(worker);
      await answer(worker);
    },
    async e() { await workers.shift().terminate(); },
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
    const line = { version: process.versions.v8, isolates: 1 + workers.length, spaces };
    process.stdout.write(JSON.stringify(line) + '\n');
  };
  fill(60_000);
  let turn = print();
  if (process.argv[2] === 'storm') {
    turn.then(() => setImmediate(storm));
  } else {
    process.stdin.on('data', (bytes) => {
      for (const byte of bytes) turn = turn.then(() => act[String.fromCharCode(byte)]()).then(print);
    });
  }
}
