// Shares memory between threads, prints a line, and ends with its input.
//
// The line is JSON: the number and bytes of shared stores, those of unshared WebAssembly memories,
// and how often the threads incremented a number.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

if (!isMainThread) {
  const { big, counter, memory, from, to } = workerData;
  new Uint8Array(big).fill(1, from, to);
  for (let i = 0; i < 1000; i++) Atomics.add(new Int32Array(counter), 0, 1);
  parentPort.on('message', () => parentPort.postMessage([big.byteLength, memory.buffer.byteLength]));
  parentPort.postMessage('done');
} else {
  const big = new SharedArrayBuffer(24 << 20);
  const counter = new SharedArrayBuffer(4096);
  const small = Array.from({ length: 30 }, () => new SharedArrayBuffer(64 << 10));
  for (const one of small) new Uint8Array(one).fill(2);
  const memory = new WebAssembly.Memory({ initial: 10, maximum: 400, shared: true });
  memory.grow(90);
  new Uint8Array(memory.buffer).fill(3);
  // Each call gives the memory a new ArrayBuffer.
  const own = new WebAssembly.Memory({ initial: 10, maximum: 400 });
  for (let i = 0; i < 9; i++) own.grow(10);
  new Uint8Array(own.buffer).fill(4);
  const unlimited = new WebAssembly.Memory({ initial: 20 });
  new Uint8Array(unlimited.buffer).fill(5);
  const part = big.byteLength / 4;
  const workers = [0, 1, 2, 3].map((n) =>
    new Worker(__filename, { workerData: { big, counter, memory, from: n * part, to: (n + 1) * part } }));
  globalThis.held = { big, counter, small, memory, own, unlimited };
  Promise.all(workers.map((worker) => new Promise((done) => worker.once('message', done)))).then(() => {
    gc();
    gc();
    const shared = [big, counter, ...small, memory.buffer];
    const bytes = (all) => all.reduce((sum, one) => sum + one.byteLength, 0);
    const mapped = [own.buffer, unlimited.buffer];
    const added = Atomics.load(new Int32Array(counter), 0);
    console.log(JSON.stringify({ shared: shared.length, shared_bytes: bytes(shared), mapped: mapped.length,
      mapped_bytes: bytes(mapped), all_mapped_bytes: bytes([...mapped, memory.buffer]),
      small_bytes: bytes(small), added }));
  });
  process.stdin.on('end', () => process.exit(0));
  process.stdin.resume();
}
