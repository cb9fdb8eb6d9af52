"use strict";
// Fills a map, deletes half of it, and makes V8 give back what it will: gc(), then a last-resort collection.
//
//     node --expose-gc half.js COUNT BYTES WHICH KIND
//
// WHICH: alternate or oldest. KIND: object (an array of numbers, in V8's heap) or buffer (a Uint8Array, whose bytes are malloc's).

const { mark } = require("strandline.js");

const [count, bytes] = process.argv.slice(2, 4).map(Number);
const [which, kind] = process.argv.slice(4);
const kept = new Map();

function value() {
  return kind === "buffer" ? new Uint8Array(bytes).fill(1) : new Array(bytes / 8 | 0).fill(1.5);
}

mark("start");
for (let i = 0; i < count; i++) kept.set(i, value());
mark("filled");
for (let i = 0; i < count; i++) {
  if (which === "alternate" ? i % 2 === 0 : i < count / 2) kept.delete(i);
}
mark("halved");
gc();
mark("remedied");
gc({ type: "major", execution: "sync", flavor: "last-resort" });
mark("insisted");

// Claims about versions with a pool read has_pool: without the key they are not judged.
const major = Number(process.versions.v8.split(".")[0]);
console.log(JSON.stringify({ left: kept.size, has_pool: major >= 12 ? 1 : undefined }));
