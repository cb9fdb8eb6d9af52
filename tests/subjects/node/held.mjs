// Holds known structures by variables of each kind, prints a line, and ends with its input.
//
// The first line is JSON: the numbers of objects that each variable holds.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { sizes } = require('./held_module.js');

class Session {
  constructor(i) {
    this.number = i;
    this.tags = { first: i, second: [i, i] };
  }
}

export const exported = [];
for (let i = 0; i < 30_000; i++) exported.push({ exported: i });

const sessions = new Map();
for (let i = 0; i < 40_000; i++) sessions.set(i, new Session(i));

// 20 stores of 1 MiB each, which malloc maps, and 2,000 of 16 KiB.
const buffers = [];
for (let i = 0; i < 20; i++) buffers.push(Buffer.alloc(1 << 20, 1));
for (let i = 0; i < 2000; i++) buffers.push(Buffer.alloc(16 << 10, 1));

class Registry {
  static entries = new Map();
}
for (let i = 0; i < 10_000; i++) Registry.entries.set(i, { entry: i });

// Only their keys hold the values.
const keys = [];
const weak = new WeakMap();
for (let i = 0; i < 2000; i++) {
  keys.push({ key: i });
  weak.set(keys[i], new Array(200).fill(i));
}

function makeHandler() {
  const closed = [];
  for (let i = 0; i < 20_000; i++) closed.push({ closed: i });
  return () => closed.length;
}
const handlers = [makeHandler()];

globalThis.registered = [];
for (let i = 0; i < 15_000; i++) globalThis.registered.push({ registered: i });

// Two variables hold the same objects, so that neither retains them.
const both = [];
for (let i = 0; i < 25_000; i++) both.push({ both: i });
const other = { both };

// A scope with enough variables that V8 keeps their names in a table.
const names = Array.from({ length: 100 }, (_, i) => `many${i}`);
const useMany = new Function(names.map((name) => `const ${name} = [];`).join(' ') +
  `for (let i = 0; i < 8000; i++) many40.push({ many: i }); return () => [${names.join(', ')}].length;`)();

// The promise that continues a suspended call holds it; the call holds the objects of its
// variables.
const resolvers = [];
async function wait() {
  const local = [];
  for (let i = 0; i < 9000; i++) local.push({ local: i });
  await new Promise((resolve) => resolvers.push(resolve));
  return local.length;
}
wait();

// An object of a class derived from WeakRef holds the objects of its own fields, and not its
// target.
class Weak extends WeakRef {
  extra = Array.from({ length: 7000 }, (_, i) => ({ extra: i }));
}
const derived = [new Weak(keys[0])];

// Dropped objects that no collection has freed yet.
function drop() {
  const dropped = [];
  for (let i = 0; i < 500; i++) dropped.push(new Session(i));
  return dropped.length;
}
function dropAll() {
  let count = 0;
  for (let i = 0; i < 10; i++) count += drop();
  return count;
}

export function use() {
  return [sessions.size, buffers.length, Registry.entries.size, keys.length, weak.has(keys[0]), handlers[0](),
    both.length, other.both.length, dropAll(), sizes(), useMany(), resolvers.length, derived[0].deref() === keys[0]];
}

globalThis.gc();
console.log(JSON.stringify({ sizes: use() }));
process.stdin.on('data', () => console.log(JSON.stringify({ sizes: use() })));
process.stdin.on('end', () => process.exit(0));
