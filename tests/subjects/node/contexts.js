// Makes contexts with the module vm, prints a line, and ends with its input.
//
// The line is JSON: how many objects of each class live. Their sandbox objects keep four contexts,
// a function of theirs keeps four more, and four were dropped: no collection has run since.
'use strict';
const vm = require('vm');

function make(name, count) {
  const sandbox = {};
  vm.runInContext(`class ${name} { constructor(number) { this.number = number; } }
    var data = Array.from({ length: ${count} }, (_, number) => new ${name}(number));
    globalThis.handler = () => data.length;`, vm.createContext(sandbox));
  return sandbox;
}

const sandboxes = [];
const handlers = [];
gc();
gc();
for (let i = 0; i < 4; i++) {
  sandboxes.push(make('Kept', 500));
  handlers.push(make('Leaked', 500).handler);
  make('Dropped', 500);
}
globalThis.use = () => [sandboxes.length, handlers[0]()];
setTimeout(() => console.log(JSON.stringify({ Kept: 2000, Leaked: 2000 })), 20);
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
