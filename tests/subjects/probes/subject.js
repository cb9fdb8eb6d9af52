// Grows by 64 MiB at a mark and gives it back at the next; status 7.
"use strict";
const fs = require("fs");
const { mark } = require("../../../probes/node/strandline.js");

// Does not collect without --expose-gc.
const collect = globalThis.gc || (() => {});
const [task, argument] = process.argv.slice(2);

function loop(count) {
  for (; count > 0; count--) mark("quiet");
}

if (task === "loop") {
  loop(100);
  mark("before");
  loop(Number(argument));
  mark("after");
  process.exit(7);
}
mark("start");
if (task === "reuse") {
  const number = Number(process.env.STRANDLINE_MARK_FD);
  fs.closeSync(number);
  const opened = [];
  do opened.push(fs.openSync(argument, "a+"));
  while (opened[opened.length - 1] < number);
}
let memory = Buffer.alloc(64 << 20, 1);
mark("grown");
memory = null;
collect();
mark("freed");
mark("two\nlines\x01");
mark("n".repeat(300));
console.log("done");
process.exit(7);
