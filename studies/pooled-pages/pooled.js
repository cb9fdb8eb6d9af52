"use strict";
// Makes objects, drops all of them, and collects: what does V8 keep that holds no object?
//
//     node --expose-gc pooled.js COUNT
//
// Marks: start, full, worked (all dropped, then short-lived objects only), collected (gc()), insisted (a last-resort collection).

const { mark } = require("strandline.js");

const count = Number(process.argv[2]);
let kept = [];

function fill() {
  for (let i = 0; i < count; i++) kept.push({ id: i, tags: [i, -i] });
}

// Objects that live shortly, as in a server that goes on.
function work() {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += { id: i, tags: [i] }.tags[0];
  return sum;
}

mark("start");
fill();
mark("full");
kept = null;
const sum = work();
mark("worked");
gc();
gc();
mark("collected");
const { heapUsed, heapTotal } = process.memoryUsage();
gc({ type: "major", execution: "sync", flavor: "last-resort" });
mark("insisted");

const major = Number(process.versions.v8.split(".")[0]);
console.log(JSON.stringify({
  sum,
  v8_major: major,
  // Claims about versions with or without a pool read one of these: without the key they are not judged.
  has_pool: major >= 12 ? 1 : undefined,
  has_none: major < 12 ? 1 : undefined,
  heap_used_bytes: heapUsed,
  heap_total_bytes: heapTotal,
}));
