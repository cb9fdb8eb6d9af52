// The timeline: lines of memory over time, marks as labelled lines, ledgers as points to click.

// Maximum number of rows of mark labels.
const LABEL_ROWS = 3;
// A ledger is hit up to this distance from its point, a mark from its line.
const LEDGER_HIT_PIXELS = 14;
const MARK_HIT_PIXELS = 6;
// Number of colours of lines.
const LINE_COLOURS = 8;
const TIME_STEPS = [
  ...[-6, -5, -4, -3, -2, -1].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))),
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800,
];

// Ticks at multiples of a power of two, so that sizes read as round binary figures.
function byteTicks(_plot, _axis, _min, max, _step, space) {
  const maxTicks = Math.max(2, Math.min(10, space));
  let step = 1;
  while (max / step > maxTicks) step *= 2;
  const ticks = [];
  for (let tick = 0; tick <= max; tick += step) ticks.push(tick);
  return ticks;
}

class Timeline {
  // `onChosen` is called with the index of a ledger that was clicked, or reached by a key.
  constructor(data, onChosen) {
    this.data = data;
    this.onChosen = onChosen;
    this.box = document.getElementById("chart");
    this.readout = document.getElementById("at");
    this.window = [0, data.end];
    this.columns = new Set(data.hasSeveralRecordings ? ["rss"] : ["rss", "anonymous", "file"]);
    this.shown = new Set();
    const seen = new Set();
    data.lines.forEach((line, index) => {
      if (!seen.has(line.recording)) this.shown.add(index);
      seen.add(line.recording);
    });
    this.ledger = -1;
    this.mark = null;
    this.stops = this.makeStops();
    this.stop = -1;
    this.makeChoices();
    this.describe();
    this.draw();
    this.listen();
  }

  // Where the keys `n` and `p` go: marks with their ledgers, and ledgers without a mark.
  makeStops() {
    const stops = this.data.marks.map((mark) => ({ seconds: mark.seconds, mark, ledger: null }));
    for (const ledger of this.data.ledgers) {
      let nearest = null;
      if (ledger.mark !== null) {
        for (const stop of stops) {
          const fits = stop.mark && stop.mark.recording === ledger.recording
            && stop.mark.process === ledger.process && stop.mark.name === ledger.mark && !stop.ledger;
          const gap = Math.abs(stop.seconds - ledger.seconds);
          if (fits && (nearest === null || gap < Math.abs(nearest.seconds - ledger.seconds))) nearest = stop;
        }
      }
      if (nearest) nearest.ledger = ledger;
      else stops.push({ seconds: ledger.seconds, mark: null, ledger });
    }
    return stops.sort((a, b) => a.seconds - b.seconds);
  }

  // Adds switches for columns and processes, and notes on what the lines leave out.
  makeChoices() {
    const columns = document.getElementById("columns");
    for (const column of COLUMNS) {
      columns.append(this.checkbox(column.name, this.columns, column.id));
    }
    const processes = document.getElementById("processes-choice");
    processes.hidden = this.data.lines.length < 2;
    processes.open = this.data.lines.length <= 8;
    const box = processes.querySelector(".choices");
    this.data.lines.forEach((line, index) => {
      const letter = line.letter ? `${line.letter} ` : "";
      box.append(this.checkbox(`${letter}${line.name}, highest ${formatBytes(line.peakBytes)}`, this.shown, index));
    });
    const notes = [];
    const widest = Math.max(0, ...this.data.lines.map((line) => line.widthSeconds));
    if (widest > 0) {
      notes.push(`Thinned: a point stands for up to ${widest.toPrecision(2)} s; the band behind RSS spans the lowest and highest sample within it.`);
    }
    if (this.data.lines.some((line) => line.process === null)) {
      notes.push("The other processes are added up at about a thousand instants: one that ran only between two of them is not included.");
    }
    const note = document.getElementById("thinned");
    note.hidden = notes.length === 0;
    note.textContent = notes.join(" ");
  }

  // A checkbox that keeps `key` in `set` while it is checked.
  checkbox(text, set, key) {
    const input = element("input", { type: "checkbox", value: String(key) });
    input.checked = set.has(key);
    input.addEventListener("change", () => {
      if (input.checked) set.add(key);
      else set.delete(key);
      this.draw();
    });
    return element("label", {}, input, ` ${text}`);
  }

  // Describes the timeline to screen readers.
  describe() {
    const { lines, marks, ledgers, end } = this.data;
    const largest = lines.reduce((best, line) => (best && best.peakBytes >= line.peakBytes ? best : line), null);
    const peak = largest ? `; the highest RSS is ${formatBytes(largest.peakBytes)}, of ${largest.name}` : "";
    this.box.setAttribute(
      "aria-label",
      `Memory over ${formatInstant(end)}${peak}; ${counted(marks.length, "mark")}, ${counted(ledgers.length, "ledger")}`,
    );
  }

  // The curves to draw: each a line of the data, one of its columns, and its style.
  curves() {
    const curves = [];
    const isSingle = this.shown.size === 1;
    let lineNumber = 0;
    this.data.lines.forEach((line, index) => {
      if (!this.shown.has(index)) return;
      for (const column of COLUMNS) {
        if (!this.columns.has(column.id)) continue;
        curves.push({ line, column, ...this.curveStyle(line, column, isSingle, lineNumber) });
      }
      lineNumber += 1;
    });
    return curves;
  }

  // A single process has a colour for each column. Several processes have a colour each; if there are
  // more than colours, they differ in dashes.
  curveStyle(line, column, isSingle, lineNumber) {
    if (isSingle) return { colour: themed(`--column-${column.id}`), dash: column.dash };
    if (line.process === null) return { colour: themed("--quiet"), dash: column.id === "rss" ? [3, 3] : column.dash };
    const isRepeated = lineNumber >= LINE_COLOURS && column.id === "rss";
    return { colour: themed(`--line-${lineNumber % LINE_COLOURS}`), dash: isRepeated ? [12, 5] : column.dash };
  }

  draw() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    this.rem = rem;
    this.curvesNow = this.curves();
    const { tables, series, bands } = this.tables();
    const font = `${(0.8 * rem).toFixed(1)}px system-ui, sans-serif`;
    const axis = { font, stroke: themed("--quiet"), grid: { stroke: themed("--grid"), width: 1 }, ticks: { stroke: themed("--grid"), width: 1, size: 4 } };
    const end = this.data.end;
    const options = {
      ...this.size(),
      series,
      bands,
      padding: [LABEL_ROWS * 1.25 * rem + 6, 0.32 * rem * axisTime(end, 1, end).length, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, dist: 6 } },
      scales: {
        x: { time: false, range: (_plot, min, max) => (max > min ? [min, max] : [0, end]) },
        y: { range: (_plot, _min, max) => [0, max > 0 ? max * 1.04 : 1024] },
      },
      axes: [
        { ...axis, incrs: TIME_STEPS, space: 5 * rem, size: 2.2 * rem, values: (_plot, ticks, _axis, _space, step) => ticks.map((tick) => axisTime(tick, step, end)) },
        { ...axis, size: 5.2 * rem, splits: (plot, ...rest) => byteTicks(plot, rest[0], rest[1], rest[2], rest[3], plot.bbox.height / devicePixelRatio / (2.4 * rem)), values: (_plot, ticks) => ticks.map(axisBytes) },
      ],
      hooks: {
        draw: [(plot) => this.drawOver(plot)],
        setCursor: [(plot) => this.showFigures(plot)],
        setScale: [(plot, scale) => { if (scale === "x") this.setWindow(plot.scales.x); }],
      },
    };
    const [from, to] = this.window;
    const cursorLeft = this.plot ? this.plot.cursor.left : -1;
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(options, tables, this.box);
    this.plot.setScale("x", { min: from, max: to });
    this.plot.over.addEventListener("click", (event) => this.click(event));
    this.plot.over.addEventListener("dblclick", () => this.showAll());
    this.makeTable();
    if (cursorLeft >= 0) this.showFigures(this.plot);
  }

  setWindow({ min, max }) {
    if (min === null || max === null) return;
    this.window = [min, max];
    this.box.dataset.from = String(min);
    this.box.dataset.to = String(max);
  }

  size() {
    return { width: Math.max(200, this.box.clientWidth), height: Math.max(160, this.box.clientHeight) };
  }

  // The curves as uPlot wants them: one axis of time for all, a band where there is one.
  tables() {
    const series = [{}];
    const bands = [];
    const byLine = new Map();
    for (const curve of this.curvesNow) {
      if (!byLine.has(curve.line)) byLine.set(curve.line, []);
      byLine.get(curve.line).push(curve);
    }
    const tables = [];
    for (const [line, curves] of byLine) {
      const table = [line.seconds];
      for (const curve of curves) {
        if (curve.column.id === "rss" && line.high) {
          const bound = { stroke: "transparent", width: 0, points: { show: false } };
          bands.push({ series: [series.length, series.length + 1], fill: `${curve.colour}40` });
          series.push(bound, bound);
          table.push(line.high, line.low);
        }
        const hasPoints = line.seconds.length < 3;
        series.push({
          stroke: curve.colour,
          width: (curve.column.id === "rss" ? 2.2 : 1.5) * (this.rem / 16),
          dash: curve.dash,
          points: { show: hasPoints, size: 6, fill: curve.colour },
        });
        table.push(line[curve.column.id]);
      }
      tables.push(table);
    }
    if (tables.length === 0) return { tables: [[0, this.data.end], [null, null]], series: [{}, {}], bands };
    return { tables: tables.length === 1 ? tables[0] : uPlot.join(tables), series, bands };
  }

  // Fills the table of the curves, with the highest figure of each.
  makeTable() {
    const body = document.querySelector("#lines tbody");
    body.replaceChildren(...this.curvesNow.map((curve) => {
      const swatch = svgElement("svg", { width: "34", height: "10", "aria-hidden": "true" });
      swatch.append(svgElement("line", { x1: "1", x2: "33", y1: "5", y2: "5", stroke: curve.colour, "stroke-width": "2.5", "stroke-dasharray": curve.dash.join(" ") }));
      const highest = curve.column.id === "rss" ? curve.line.peakBytes : curve.line[curve.column.id].reduce((a, b) => Math.max(a, b), 0);
      curve.cell = element("td", { class: "n now" }, "–");
      const letter = curve.line.letter ? `${curve.line.letter} ` : "";
      return element("tr", { "data-column": curve.column.id, "data-process": curve.line.process },
        element("th", { scope: "row" }, letter + curve.line.name),
        element("td", { class: "swatch" }, swatch, ` ${curve.column.name}`),
        curve.cell,
        element("td", { class: "n", "data-exact": String(highest) }, formatBytes(highest)));
    }));
  }

  // Draws marks and ledgers over the lines.
  drawOver(plot) {
    const context = plot.ctx;
    context.save();
    this.drawMarks(plot, context);
    this.drawLedgers(plot, context);
    context.restore();
  }

  // Labels are in rows above the plot. A label goes to the row below all that extend over its line, so that no
  // line crosses a label; if no row is left, only the line is drawn, and the table has the name. If there are
  // more marks than distinguishable lines, those without a label are ticks: the data has priority.
  drawMarks(plot, context) {
    const ratio = devicePixelRatio;
    const { left, top, width, height } = plot.bbox;
    const row = 1.25 * this.rem * ratio;
    const [from, to] = this.window;
    const visible = this.data.marks.filter((mark) => mark.seconds >= from && mark.seconds <= to);
    const isDense = visible.length * row > width;
    const rowEnds = new Array(isDense ? 1 : LABEL_ROWS).fill(-Infinity);
    const font = (mark) => `${mark === this.mark ? "bold " : ""}${0.78 * this.rem * ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const places = visible.map((mark, index) => {
      const x = Math.round(plot.valToPos(mark.seconds, "x", true)) + 0.5;
      const next = visible[index + 1];
      context.font = font(mark);
      const nextX = next ? plot.valToPos(next.seconds, "x", true) : Infinity;
      return { mark, x, label: this.placeLabel(context, mark, x, rowEnds, left + width, nextX) };
    });
    const rows = Math.max(0, ...places.map(({ label }) => (label ? label.row + 1 : 0)));
    for (const { mark, x, label } of places) {
      const isChosen = mark === this.mark;
      const y = label ? top - (rows - label.row - 0.5) * row - 2 * ratio : top;
      context.font = font(mark);
      context.strokeStyle = themed(isChosen ? "--text" : "--mark");
      context.setLineDash(isChosen ? [] : [4 * ratio, 3 * ratio]);
      context.lineWidth = (isChosen ? 2 : 1) * ratio;
      context.beginPath();
      context.moveTo(x, y - (label ? 0.45 * row : 0));
      context.lineTo(x, isDense && !label && !isChosen ? top + 0.3 * row : top + height);
      context.stroke();
      if (!label) continue;
      context.fillStyle = themed(isChosen ? "--text" : "--quiet");
      context.fillText(label.text, label.x, y);
    }
    context.setLineDash([]);
  }

  // Places the label of a mark at `x`, left of `right`; `rowEnds` are the ends of the last labels.
  placeLabel(context, mark, x, rowEnds, right, nextX) {
    const gap = 4 * devicePixelRatio;
    let row = 0;
    for (let i = 0; i < rowEnds.length; i += 1) if (rowEnds[i] > x - gap) row = i + 1;
    if (row >= rowEnds.length) return null;
    for (const text of [`${mark.label} ${shorten(mark.name, 28)}`, mark.label]) {
      const labelWidth = context.measureText(text).width;
      // The last row's label must not extend over the next mark, or that one would have no place.
      const limit = row + 1 < rowEnds.length || rowEnds.length === 1 || text === mark.label ? right : Math.min(right, nextX);
      if (x + gap + labelWidth <= limit) {
        rowEnds[row] = x + gap + labelWidth + gap;
        return { row, text, x: x + gap };
      }
      if (x - gap - labelWidth >= rowEnds[row] && x + gap + labelWidth > right && x - gap - labelWidth > 0) {
        rowEnds[row] = x + gap;
        return { row, text, x: x - gap - labelWidth };
      }
    }
    return null;
  }

  // Draws a diamond at the RSS of each ledger.
  drawLedgers(plot, context) {
    const ratio = devicePixelRatio;
    const { left, top, width, height } = plot.bbox;
    const normalHalf = (this.data.ledgers.length > 60 ? 0.22 : 0.36) * this.rem * ratio;
    for (const ledger of this.data.ledgers) {
      const x = plot.valToPos(ledger.seconds, "x", true);
      const y = Math.min(Math.max(plot.valToPos(ledger.rss_bytes, "y", true), top), top + height);
      if (x < left - 1 || x > left + width + 1) continue;
      const isChosen = ledger.index === this.ledger;
      const half = isChosen ? 0.5 * this.rem * ratio : normalHalf;
      context.beginPath();
      context.moveTo(x, y - half);
      context.lineTo(x + half, y);
      context.lineTo(x, y + half);
      context.lineTo(x - half, y);
      context.closePath();
      context.fillStyle = themed(isChosen ? "--text" : "--surface");
      context.strokeStyle = themed("--text");
      context.lineWidth = 1.6 * ratio;
      context.fill();
      context.stroke();
    }
  }

  // Shows the figures at the cursor.
  showFigures(plot) {
    const { left } = plot.cursor;
    if (left === null || left === undefined || left < 0) {
      for (const curve of this.curvesNow) curve.cell.textContent = "–";
      this.readout.textContent = "\u00a0";
      return;
    }
    const seconds = plot.posToVal(left, "x");
    for (const curve of this.curvesNow) {
      const figure = figureAt(curve.line, curve.column.id, seconds);
      curve.cell.textContent = figure === null ? "–" : formatBytes(figure);
      if (figure === null) delete curve.cell.dataset.exact;
      else curve.cell.dataset.exact = String(figure);
    }
    this.readout.dataset.seconds = String(seconds);
    const target = this.targetAt(left, plot.cursor.top);
    let text = formatInstant(seconds);
    if (target && target.ledger) text += ` · ledger at ${ledgerName(target.ledger)}, ${formatBytes(target.ledger.rss_bytes)}: click shows it`;
    else if (target && target.mark) text += ` · mark ${target.mark.label} ${target.mark.name}`;
    this.readout.textContent = text;
    this.plot.over.style.cursor = target ? "pointer" : "crosshair";
  }

  // The ledger whose point, or else the mark whose line, is under the pointer.
  targetAt(left, top) {
    let best = null;
    let leastDistance = LEDGER_HIT_PIXELS;
    for (const ledger of this.data.ledgers) {
      const x = this.plot.valToPos(ledger.seconds, "x") - left;
      const y = this.plot.valToPos(ledger.rss_bytes, "y") - top;
      const distance = Math.hypot(x, y);
      if (distance < leastDistance) [best, leastDistance] = [{ ledger }, distance];
    }
    if (best) return best;
    leastDistance = MARK_HIT_PIXELS;
    for (const mark of this.data.marks) {
      const distance = Math.abs(this.plot.valToPos(mark.seconds, "x") - left);
      if (distance < leastDistance) [best, leastDistance] = [{ mark }, distance];
    }
    return best;
  }

  click(event) {
    const box = this.plot.over.getBoundingClientRect();
    const target = this.targetAt(event.clientX - box.left, event.clientY - box.top);
    if (!target) return;
    const index = this.stops.findIndex((stop) => (target.ledger ? stop.ledger === target.ledger : stop.mark === target.mark));
    if (index >= 0) this.goTo(index, false);
  }

  // Chooses a stop; with `movesCursor`, also moves the cursor to it.
  goTo(index, movesCursor) {
    if (index < 0 || index >= this.stops.length) return;
    this.stop = index;
    const { seconds, mark, ledger } = this.stops[index];
    this.mark = mark;
    if (ledger) this.ledger = ledger.index;
    const [from, to] = this.window;
    if (seconds < from || seconds > to) this.show(seconds - (to - from) / 2, seconds + (to - from) / 2);
    if (ledger) this.onChosen(ledger.index);
    this.highlightMark();
    this.plot.redraw(false);
    if (movesCursor) {
      const rss = mark ? mark.rss : ledger.rss_bytes;
      this.plot.setCursor({ left: this.plot.valToPos(seconds, "x"), top: this.plot.valToPos(rss, "y") });
      // Screen readers announce it after a key, but not at every move of the pointer.
      this.readout.setAttribute("aria-live", "polite");
      const name = mark ? `mark ${mark.label} ${mark.name}` : `ledger at ${ledgerName(ledger)}`;
      this.readout.textContent = `${formatInstant(seconds)} · ${name} · RSS ${formatBytes(rss)}`;
    }
  }

  // Highlights the chosen mark's row in its table.
  highlightMark() {
    for (const row of document.querySelectorAll("table.marks tr.chosen")) row.classList.remove("chosen");
    if (!this.mark) return;
    const { recording, index } = this.mark;
    const tables = [...document.querySelectorAll("table.marks")];
    const table = tables.find((candidate) => Number(candidate.dataset.recording) === recording);
    table?.tBodies[0].rows[index]?.classList.add("chosen");
  }

  // Goes to the next stop (`by` 1) or the previous one (-1).
  next(by) {
    if (this.stops.length === 0) return;
    const target = this.stop < 0 ? (by > 0 ? 0 : this.stops.length - 1) : this.stop + by;
    this.goTo(Math.min(Math.max(target, 0), this.stops.length - 1), true);
  }

  // A ledger was chosen elsewhere.
  chooseLedger(index) {
    if (this.ledger === index) return;
    this.ledger = index;
    this.stop = this.stops.findIndex((stop) => stop.ledger && stop.ledger.index === index);
    this.mark = this.stops[this.stop]?.mark ?? null;
    this.highlightMark();
    this.plot.redraw(false);
  }

  goToMark(recording, index) {
    this.goTo(this.stops.findIndex(({ mark }) => mark && mark.recording === recording && mark.index === index), true);
  }

  // Shows a window of time, moved so that it is within the recording.
  show(from, to) {
    const span = Math.min(Math.max(to - from, 1e-5), this.data.end);
    const start = Math.min(Math.max(from, 0), this.data.end - span);
    this.plot.setScale("x", { min: start, max: start + span });
  }

  showAll() {
    this.show(0, this.data.end);
  }

  // Changes the width of the window by `factor`, around the cursor if that is within.
  zoom(factor) {
    const [from, to] = this.window;
    const { left } = this.plot.cursor;
    const pointed = left >= 0 ? this.plot.posToVal(left, "x") : (from + to) / 2;
    const centre = Math.min(Math.max(pointed, from), to);
    this.show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }

  // Moves the window by a share of its width.
  pan(share) {
    const [from, to] = this.window;
    this.show(from + (to - from) * share, to + (to - from) * share);
  }

  listen() {
    new ResizeObserver(() => {
      const { width, height } = this.size();
      // Letters are as large as the style sheet says for this width.
      if (parseFloat(getComputedStyle(document.documentElement).fontSize) !== this.rem) this.draw();
      else if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
    }).observe(this.box);
    document.getElementById("zoom-in").addEventListener("click", () => this.zoom(0.5));
    document.getElementById("zoom-out").addEventListener("click", () => this.zoom(2));
    document.getElementById("zoom-all").addEventListener("click", () => this.showAll());
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.pan(-0.15);
      else if (event.key === "ArrowRight") this.pan(0.15);
      else return;
      event.preventDefault();
    });
    this.box.addEventListener("wheel", (event) => {
      // A plain wheel scrolls the page, as everywhere.
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8);
    }, { passive: false });
  }
}
