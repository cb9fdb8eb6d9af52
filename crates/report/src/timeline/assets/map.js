// The page map: the address space in reading order, each cell a number of bytes, coloured by their state.
//
// Mappings that fill half a line have a heading; small ones follow each other behind a gap. A cell is filled from below
// by the states in it; the rest is not resident.

// Longer stretches without a resident page, in cells, are shortened to three dots.
const MAX_EMPTY_CELLS = 12;
// Browsers do not draw much higher pictures.
const MAX_MAP_PIXELS = 12000;
// The smallest cells, in pixels, that are easily distinguished.
const MIN_CLEAR_CELL = 5;

class PageMap {
  constructor() {
    this.section = document.getElementById("map");
    this.box = this.section.querySelector(".map-box");
    this.canvas = this.section.querySelector("canvas");
    this.readout = document.getElementById("map-at");
    this.cursor = element("div", { class: "map-cursor", hidden: "" });
    this.box.append(this.cursor);
    this.map = null;
    this.current = -1;
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("focus", () => { if (this.current < 0) this.goTo(0); });
    new ResizeObserver(() => { if (this.map && this.box.clientWidth !== this.width) this.draw(); }).observe(this.box);
  }

  show(map) {
    this.map = map;
    this.current = -1;
    this.section.hidden = !map;
    this.cursor.hidden = true;
    this.readout.textContent = "\u00a0";
    if (!map) return;
    this.draw();
  }

  // Says what the map shows and what it leaves out; `cut` is the number of cells that are not drawn.
  note(cut) {
    const parts = [`One cell is ${formatBytes(this.map.cell_bytes)} of address space, filled as far as it is resident.`];
    if (this.map.left_out) parts.push(this.map.left_out);
    if (cut > 0) parts.push(`Not drawn, because the picture would be too high: the last ${cut} of ${cut + this.cells.length} cells.`);
    document.getElementById("map-note").textContent = parts.join(" ");
  }

  // Lays out the cells in lines of this many columns; sets `cells`. Returns lines of cells and of headings, top to bottom.
  layOut(columns) {
    const lines = [];
    this.cells = [];
    let line = null;
    let used = 0;
    const open = () => {
      line = { heading: null, cells: new Map(), dots: [] };
      lines.push(line);
      used = 0;
    };
    let wasSmall = false;
    for (const mapping of this.map.mappings) {
      if (mapping.cells.length === 0) continue;
      const isLarge = mapping.cells.length >= columns / 2;
      if (isLarge || !wasSmall || !line) {
        lines.push({ heading: isLarge ? this.heading(mapping) : "", cells: new Map(), dots: [] });
        open();
      } else {
        used += 1;
      }
      wasSmall = !isLarge;
      let previous = -1;
      for (const cell of mapping.cells) {
        let skip = previous < 0 ? 0 : cell[0] - previous - 1;
        previous = cell[0];
        if (skip > Math.min(columns, MAX_EMPTY_CELLS)) {
          if (used + 3 > columns) open();
          line.dots.push(used);
          used += 3;
          skip = 0;
        }
        while (skip > 0 || used >= columns) {
          if (used >= columns) open();
          if (skip > 0) [used, skip] = [used + 1, skip - 1];
        }
        line.cells.set(used, this.cells.length);
        this.cells.push({ mapping, cell, line: lines.length - 1, column: used });
        used += 1;
      }
    }
    return lines;
  }

  heading(mapping) {
    return `${mapping.name || "anonymous"}  ${mapping.permissions}  ${formatBytes(mapping.rss_bytes)} resident`;
  }

  // Chooses the size of the cells, and sets `lines`; returns their height. Cells are smaller where the picture would be
  // higher than the window, as long as they are clear, and smaller still where it could not be drawn whole.
  fit(rem) {
    const headingHeight = (text) => Math.round(rem * (text ? 1.5 : 0.45));
    const maxHeight = Math.max(420, window.innerHeight * 1.4);
    for (this.size = Math.round(rem * 0.7); ; this.size -= 1) {
      this.lines = this.layOut(Math.max(8, Math.floor((this.width - 4) / this.size)));
      let height = 0;
      for (const line of this.lines) {
        line.top = height;
        line.height = line.heading === null ? this.size : headingHeight(line.heading);
        height += line.height;
      }
      const isWhole = height <= MAX_MAP_PIXELS;
      if (this.size <= 1 || (isWhole && (height <= maxHeight || this.size <= MIN_CLEAR_CELL))) return height;
    }
  }

  // Drops the lines that cannot be drawn; returns the number of their cells.
  cut() {
    const isDrawn = (line) => line.top + line.height <= MAX_MAP_PIXELS;
    const drawn = this.cells.filter((cell) => isDrawn(this.lines[cell.line]));
    const count = this.cells.length - drawn.length;
    this.cells = drawn;
    this.lines = this.lines.filter(isDrawn);
    return count;
  }

  draw() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const ratio = Math.min(devicePixelRatio, 2);
    this.width = this.box.clientWidth;
    const height = this.fit(rem);
    this.note(this.cut());
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(Math.min(height + 2, MAX_MAP_PIXELS) * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${Math.min(height + 2, MAX_MAP_PIXELS)}px`;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, height);
    const paints = new Map(STATES.map(({ id }) => [id, statePattern(context, id)]));
    context.font = `${0.75 * rem}px system-ui, sans-serif`;
    context.textBaseline = "bottom";
    for (const line of this.lines) {
      if (line.heading !== null) {
        context.fillStyle = themed("--quiet");
        context.fillText(shorten(line.heading, Math.floor(this.width / (rem * 0.42))), 0, line.top + line.height - 2);
      }
      context.fillStyle = themed("--quiet");
      for (const column of line.dots) context.fillText("⋯", (column + 1) * this.size, line.top + line.height);
      for (const [column, index] of line.cells) this.drawCell(context, line, column, this.cells[index].cell, paints);
    }
    this.current = Math.min(this.current, this.cells.length - 1);
    if (this.current >= 0) this.goTo(this.current);
  }

  drawCell(context, line, column, cell, paints) {
    const gap = this.size > 6 ? 1 : 0;
    const side = this.size - gap;
    const x = column * this.size;
    context.fillStyle = themedEmpty();
    context.fillRect(x, line.top, side, side);
    const states = new Map();
    for (let i = 1; i + 1 < cell.length; i += 2) {
      const state = this.map.legend[cell[i]][1];
      states.set(state, (states.get(state) ?? 0) + cell[i + 1]);
    }
    let bottom = line.top + side;
    for (const { id } of STATES) {
      const bytes = states.get(id);
      if (!bytes) continue;
      // A single resident page of a large cell is still seen.
      const height = Math.min(Math.max((side * bytes) / this.map.cell_bytes, 1), bottom - line.top);
      context.fillStyle = paints.get(id);
      context.fillRect(x, bottom - height, side, height);
      bottom -= height;
    }
  }

  // Selects the cell under the pointer.
  point(event) {
    if (!this.map) return;
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const line = this.lines.find((candidate) => y >= candidate.top && y < candidate.top + candidate.height);
    const index = line?.cells.get(Math.floor((event.clientX - box.left) / this.size));
    if (index !== undefined) this.goTo(index, false);
  }

  // Moves the selection by a key.
  key(event) {
    if (!this.map || this.cells.length === 0) return;
    const last = this.cells.length - 1;
    const moves = {
      ArrowLeft: () => this.current - 1,
      ArrowRight: () => this.current + 1,
      ArrowUp: () => this.vertical(-1),
      ArrowDown: () => this.vertical(1),
      Home: () => 0,
      End: () => last,
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    this.goTo(Math.min(Math.max(move(), 0), last));
  }

  // The cell above or below that is nearest.
  vertical(step) {
    const { line, column } = this.cells[Math.max(this.current, 0)];
    for (let next = line + step; next >= 0 && next < this.lines.length; next += step) {
      let best = null;
      for (const [other, index] of this.lines[next].cells) {
        if (best === null || Math.abs(other - column) < Math.abs(best[0] - column)) best = [other, index];
      }
      if (best) return best[1];
    }
    return this.current;
  }

  // Selects a cell and shows what is in it; scrolls to it unless `scroll` is false.
  goTo(index, scroll = true) {
    const placed = this.cells[index];
    if (!placed) return;
    this.current = index;
    const { mapping, cell } = placed;
    const top = this.lines[placed.line].top;
    Object.assign(this.cursor.style, { left: `${placed.column * this.size}px`, top: `${top}px`, width: `${this.size}px`, height: `${this.size}px` });
    this.cursor.hidden = false;
    if (scroll) {
      if (top < this.box.scrollTop) this.box.scrollTop = top - 30;
      else if (top + this.size > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + 30 - this.box.clientHeight;
    }
    const parts = [];
    for (let i = 1; i + 1 < cell.length; i += 2) {
      const [id, state] = this.map.legend[cell[i]];
      parts.push(`${id} (${state}) ${formatBytes(cell[i + 1])}`);
    }
    const address = BigInt(mapping.start) + BigInt(cell[0]) * BigInt(this.map.cell_bytes);
    this.readout.textContent = `0x${address.toString(16)} · ${mapping.name || "anonymous"} ${mapping.permissions}: ${parts.join(", ")}`;
  }
}

// The colour of what is not resident, read once per theme: a picture has thousands of cells.
let emptyColour = null;

function themedEmpty() {
  emptyColour ??= themed("--empty");
  return emptyColour;
}

function forgetColours() {
  emptyColour = null;
}

// The same patterns as the stacked bars', on a canvas: distinguishable without colour.
function statePattern(context, state) {
  const side = 10;
  const tile = document.createElement("canvas");
  tile.width = side;
  tile.height = side;
  const paint = tile.getContext("2d");
  paint.fillStyle = themed(`--state-${state}`);
  paint.fillRect(0, 0, side, side);
  paint.strokeStyle = themed("--pattern");
  paint.fillStyle = themed("--pattern");
  paint.lineWidth = 1.2;
  paint.beginPath();
  for (const shift of [-side, 0, side]) {
    if (state === "stranded" || state === "pinned") {
      paint.moveTo(shift, side);
      paint.lineTo(shift + side, 0);
    }
    if (state === "pinned") {
      paint.moveTo(shift, 0);
      paint.lineTo(shift + side, side);
    }
  }
  if (state === "unattributed") {
    paint.moveTo(0, side / 2);
    paint.lineTo(side, side / 2);
  }
  paint.stroke();
  if (state === "evictable") paint.fillRect(side / 2 - 1, side / 2 - 1, 2, 2);
  return context.createPattern(tile, "repeat");
}
