// Refers to objects weakly, prints a line, and ends with its input.
//
// The line is JSON: how many objects of each class live. Objects of `Dropped…` are dead, and no
// collection has run since they died.
'use strict';
class HeldValue {}
class Target {}
class DroppedTarget {}
class DroppedToken {}
class DroppedReferent {}
class MapValue {}
class DroppedValue {}
class Bound {}
class BoundArgument {}
class Private {}
class Symbolic {}
class Shielded {}
class Trap {}
class Got {}
class Local {}
class Node { constructor(next) { this.next = next; } }
class Last {}

const array = (Class, count) => Array.from({ length: count }, () => new Class());
function report() { return this; }

const held = {
  targets: array(Target, 300),
  registry: new FinalizationRegistry(() => {}),
  keys: array(Object, 200),
  map: new WeakMap(),
  bound: report.bind(array(Bound, 40)),
  boundArgument: report.bind(null, array(BoundArgument, 40)),
  shield: new Proxy(array(Shielded, 40), { traps: array(Trap, 40) }),
  getter: ((got) => ({ get size() { return got.length; } }))(array(Got, 40)),
};
// V8 keeps this function, unlike the script's own code, so that code refers to the name.
const withSymbol = (value) => ({ [Symbol('markedKey')]: value });
const symbolic = withSymbol(array(Symbolic, 40));
class Safe {
  #secret = array(Private, 40);
  size() { return this.#secret.length; }
}
const safe = new Safe();
function* steps() {
  const local = array(Local, 40);
  yield local.length;
  return local;
}
const suspended = steps();
suspended.next();
let list = new Node(new Last());
for (let i = 0; i < 100_000; i++) list = new Node(list);

gc();
gc();
held.references = Array.from({ length: 100 }, () => new WeakRef(new DroppedReferent()));
for (const target of held.targets) held.registry.register(target, { value: new HeldValue() });
for (let i = 0; i < 100; i++) held.registry.register(new DroppedTarget(), new HeldValue(), new DroppedToken());
for (const one of held.keys) held.map.set(one, new MapValue());
for (let i = 0; i < 100; i++) held.map.set({}, new DroppedValue());
globalThis.use = () => [held, symbolic, withSymbol, safe.size(), suspended, list];
// V8 keeps the target of a new WeakRef until the end of this task.
setTimeout(() => console.log(JSON.stringify({
  HeldValue: 400, Target: 300, MapValue: 200, Bound: 40, BoundArgument: 40, Private: 40, Symbolic: 40,
  Shielded: 40, Trap: 40, Got: 40, Local: 40, Last: 1, Node: 100_001 })), 20);
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
