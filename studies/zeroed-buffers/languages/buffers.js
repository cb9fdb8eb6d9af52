// Takes COUNT buffers of 1 MiB: node buffers.js PROBE alloc|allocUnsafe|fill|ArrayBuffer|Uint8Array COUNT. Marks `before`
// and `taken`; prints one line of JSON: wanted_bytes, and the sum of one byte of each buffer (which keeps them in use).
"use strict";

const [probe, idiom, count] = process.argv.slice(2);
const { mark } = require(probe);

const bufferBytes = 1 << 20;
const idioms = {
  alloc: () => Buffer.alloc(bufferBytes),
  allocUnsafe: () => Buffer.allocUnsafe(bufferBytes),
  fill: () => Buffer.allocUnsafe(bufferBytes).fill(0),
  ArrayBuffer: () => new DataView(new ArrayBuffer(bufferBytes)),
  Uint8Array: () => new Uint8Array(bufferBytes),
};
const take = idioms[idiom];

const buffers = [];
mark("before");
for (let i = 0; i < Number(count); i++) buffers.push(take());
mark("taken");
let sum = 0;
for (const buffer of buffers) sum += buffer instanceof DataView ? buffer.getUint8(5000) : buffer[5000];
console.log(JSON.stringify({ wanted_bytes: Number(count) * bufferBytes, sum }));
