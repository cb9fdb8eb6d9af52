// Draws page maps without a browser, in windows of several widths: every cell is on the picture, or the note says how many
// are not.
//
// node page_map.js ASSETS: the folder of the page's scripts.
"use strict";
const fs = require("fs");
const vm = require("vm");
const assert = require("assert");

// Any property of it is a function that returns it.
const anything = new Proxy(function () {}, { get: (_, name) => (name === Symbol.toPrimitive ? () => "" : anything), apply: () => anything });

function newElement() {
  return {
    style: {}, hidden: false, textContent: "", clientWidth: 0, width: 0, height: 0, children: {},
    append() {}, setAttribute() {}, addEventListener() {}, getContext: () => anything,
    querySelector(name) { return (this.children[name] ??= newElement()); },
  };
}

const elements = {};
const page = vm.createContext({
  document: {
    documentElement: {},
    createElement: newElement,
    getElementById: (id) => (elements[id] ??= newElement()),
  },
  getComputedStyle: () => ({ fontSize: "16px", getPropertyValue: () => "" }),
  ResizeObserver: class { observe() {} },
  window: { innerHeight: 800 },
  devicePixelRatio: 1,
});
for (const name of ["format.js", "data.js", "map.js"]) {
  vm.runInContext(fs.readFileSync(`${process.argv[2]}/${name}`, "utf8"), page, { filename: name });
}
const map = vm.runInContext("new PageMap()", page);

// Draws `count` mappings of `cells` cells, each `step` after the one before; returns what is on the picture.
function draw(width, count, cells, step) {
  const mapping = () => ({
    start: "0x0", name: "", permissions: "rw-p", rss_bytes: 4096,
    cells: Array.from({ length: cells }, (_, index) => [index * step, 0, 4096]),
  });
  map.box.clientWidth = width;
  map.show({ cell_bytes: 4096, legend: [["anonymous", "unattributed"]], mappings: Array.from({ length: count }, mapping), left_out: null });
  const bottom = Math.max(...map.cells.map((cell) => map.lines[cell.line].top + map.size));
  return { drawn: map.cells.length, isWithin: bottom <= map.canvas.height, note: elements["map-note"].textContent };
}

// The most cells that a report has, as sparse as possible: in a narrow window too.
for (const width of [320, 1100]) {
  const { drawn, isWithin, note } = draw(width, 240, 34, 13);
  assert.deepStrictEqual([drawn, isWithin, note.includes("Not drawn")], [8160, true, false], `${width}: ${note}`);
}
// More than any browser draws.
const { drawn, isWithin, note } = draw(320, 2000, 200, 1);
assert(isWithin && drawn > 0 && note.includes(`the last ${400_000 - drawn} of 400000 cells`), note);
