// The ledgers: a stacked bar for each, and all facts of the chosen one.

const BAR_HEIGHT = 150;
const BAR_WIDTH = 44;
// Lower segments have no letter.
const MIN_LETTER_HEIGHT = 15;

class Ledgers {
  // `onChosen` is called with the index of a ledger that the user chose here.
  constructor(data, onChosen) {
    this.ledgers = data.ledgers;
    this.onChosen = onChosen;
    this.chosen = -1;
    this.box = document.getElementById("bars");
    if (!this.box) return;
    this.map = new PageMap();
    document.body.append(patterns());
    this.legend();
    this.bars();
    this.allCaveats();
  }

  legend() {
    document.getElementById("states-legend").append(...STATES.map(({ id, letter }) => {
      const swatch = svgElement("svg", { width: "18", height: "14", "aria-hidden": "true" });
      swatch.append(svgElement("rect", { width: "18", height: "14", fill: `url(#pattern-${id})` }));
      return element("span", {}, swatch, ` ${letter} ${id}`);
    }));
  }

  // Adds the bars, which form a list box: one of them is selected.
  bars() {
    const largest = Math.max(1, ...this.ledgers.map((ledger) => ledger.rss_bytes));
    this.options = this.ledgers.map((ledger) => {
      const picture = svgElement("svg", { viewBox: `0 0 ${BAR_WIDTH} ${BAR_HEIGHT}`, "aria-hidden": "true" });
      let top = BAR_HEIGHT;
      ledger.totals.forEach((bytes, index) => {
        if (bytes === 0) return;
        const height = Math.min((bytes / largest) * BAR_HEIGHT, top);
        top -= height;
        picture.append(svgElement("rect", { x: 0, y: top, width: BAR_WIDTH, height, fill: `url(#pattern-${STATES[index].id})`, class: "segment" }));
        if (height >= MIN_LETTER_HEIGHT) {
          const middle = top + height / 2;
          picture.append(
            svgElement("rect", { x: BAR_WIDTH / 2 - 7, y: middle - 7, width: 14, height: 14, rx: 2, class: "letter-box" }),
            svgElement("text", { x: BAR_WIDTH / 2, y: middle + 4, class: "letter-text" }, STATES[index].letter),
          );
        }
      });
      const states = STATES.map(({ id }, index) => `${id} ${formatBytes(ledger.totals[index])}`).join(", ");
      const name = ledgerName(ledger);
      const option = element("div", {
        role: "option",
        tabindex: "-1",
        class: "bar-option",
        "aria-selected": "false",
        "aria-label": `${name} at ${formatInstant(ledger.seconds)}, RSS ${formatBytes(ledger.rss_bytes)}: ${states}`,
        title: `${name}\n${states}`,
      },
      element("span", { class: "rss" }, formatBytes(ledger.rss_bytes)),
      picture,
      element("span", { class: "what" }, ledger.letter, ledger.letter ? " " : "", ledger.mark ?? ledger.moment),
      element("span", { class: "when" }, formatInstant(ledger.seconds)));
      option.addEventListener("click", () => this.pick(ledger.index));
      return option;
    });
    this.box.append(...this.options);
    this.box.addEventListener("keydown", (event) => {
      const target = { ArrowLeft: this.chosen - 1, ArrowUp: this.chosen - 1, ArrowRight: this.chosen + 1, ArrowDown: this.chosen + 1, Home: 0, End: this.ledgers.length - 1 }[event.key];
      if (target === undefined) return;
      event.preventDefault();
      this.pick(Math.min(Math.max(target, 0), this.ledgers.length - 1));
      this.options[this.chosen].focus();
    });
  }

  // The user chose a ledger here.
  pick(index) {
    this.choose(index);
    this.onChosen(index);
  }

  // Selects a ledger and shows its facts.
  choose(index) {
    const ledger = this.ledgers[index];
    if (!ledger) return;
    if (this.chosen >= 0) {
      this.options[this.chosen].setAttribute("aria-selected", "false");
      this.options[this.chosen].tabIndex = -1;
    }
    this.chosen = index;
    const option = this.options[index];
    option.setAttribute("aria-selected", "true");
    option.tabIndex = 0;
    const scroller = this.box.parentElement;
    if (option.offsetLeft < scroller.scrollLeft || option.offsetLeft + option.offsetWidth > scroller.scrollLeft + scroller.clientWidth) {
      scroller.scrollLeft = option.offsetLeft - scroller.clientWidth / 2;
    }
    this.show(ledger);
  }

  // Shows the facts of a ledger.
  show(ledger) {
    const article = document.getElementById("ledger");
    article.dataset.ledger = String(ledger.index);
    const name = ledgerName(ledger);
    document.getElementById("ledger-h").textContent =
      `${name[0].toUpperCase()}${name.slice(1)} · ${formatInstant(ledger.seconds)} · ${ledger.title}`;
    article.querySelector(".headline").textContent = ledger.headline;
    const share = ledger.share_of_peak === null ? "" : `; RSS at this ledger is ${(ledger.share_of_peak * 100).toFixed(1)} % of the process's peak`;
    article.querySelector(".resident").textContent = ledger.resident + share;
    const cell = (bytes) => element("td", { class: "n", "data-exact": String(bytes) }, formatBytes(bytes));
    article.querySelector("tbody").replaceChildren(...ledger.rows.map((row) => element("tr", { "data-row": row.id },
      cell(row.bytes),
      element("td", { class: "n" }, formatPercent(row.bytes, ledger.rss_bytes)),
      element("td", {}, element("span", { class: `state ${row.state}` }), ` ${row.state}`),
      element("th", { scope: "row", title: row.stratum }, row.id),
      element("td", { class: "holder" }, row.holder))));
    const foot = element("tr", {}, cell(ledger.rss_bytes), element("td", { class: "n" }, "100.0 %"), element("td", {}), element("th", { scope: "row" }, "RSS"),
      element("td", { class: "holder" }, ledger.rows_left_out ? `not shown: ${counted(ledger.rows_left_out, "smaller row")}` : "the rows add up to it"));
    article.querySelector("tfoot").replaceChildren(foot);
    article.querySelector(".remedies").replaceChildren(...this.remedies(ledger));
    article.querySelector(".more").replaceChildren(...this.more(ledger));
    this.map.show(ledger.map ?? null);
  }

  remedies(ledger) {
    if (ledger.remedies.length === 0) return [];
    const items = ledger.remedies.map(([id, effect, how, cost]) => {
      const item = element("li", {}, element("strong", {}, id), `: ${effect}`);
      if (how) item.append(element("code", { class: "how" }, how));
      if (cost) item.append(element("span", { class: "note" }, `cost: ${cost}`));
      return item;
    });
    return [element("h4", {}, "What releases memory, best first"), element("ol", {}, ...items)];
  }

  // What is below the rows and remedies: caveats, allocators, runtimes, settings, cost.
  more(ledger) {
    const parts = [];
    const list = (title, items) => {
      if (items.length) parts.push(element("h4", {}, title), element("ul", {}, ...items.map((item) => element("li", {}, item))));
    };
    list("Caveats of this ledger", ledger.caveats);
    list("Allocators", ledger.allocators);
    list("Runtimes", ledger.runtimes);
    list("Settings in force", ledger.settings.map(([name, value]) => `${name}=${value}`));
    parts.push(element("p", { class: "note" }, `Cost of this ledger: ${ledger.cost}.`));
    return parts;
  }

  // Lists the caveats of all ledgers below those of the recording, each once.
  allCaveats() {
    const ledgersByCaveat = new Map();
    for (const ledger of this.ledgers) {
      for (const caveat of ledger.caveats) {
        if (!ledgersByCaveat.has(caveat)) ledgersByCaveat.set(caveat, []);
        ledgersByCaveat.get(caveat).push(ledger);
      }
    }
    if (ledgersByCaveat.size === 0) return;
    const items = [...ledgersByCaveat].map(([caveat, ledgers]) => {
      const first = `${ledgerName(ledgers[0])}, ${formatInstant(ledgers[0].seconds)}`;
      const names = ledgers.length === 1 ? first : `${first} and ${ledgers.length - 1} more`;
      return element("li", {}, caveat, element("span", { class: "note" }, ` — ${names}`));
    });
    document.getElementById("ledger-caveats").append(element("h3", {}, "Of the ledgers"), element("ul", {}, ...items));
  }

  redraw() {
    if (this.map?.map) this.map.draw();
  }
}

// The fillings of the bars: colour and pattern, so that either is enough.
function patterns() {
  const marks = {
    live: [],
    stranded: ["M-2 2L2-2M0 8L8 0M6 10L10 6"],
    pinned: ["M-2 2L2-2M0 8L8 0M6 10L10 6", "M-2 6L2 10M0 0L8 8M6-2L10 2"],
    evictable: ["M4 3a1 1 0 1 0 .01 0z"],
    unattributed: ["M0 4H8"],
  };
  const definitions = svgElement("defs");
  for (const { id } of STATES) {
    const pattern = svgElement("pattern", { id: `pattern-${id}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" });
    pattern.append(svgElement("rect", { width: 8, height: 8, class: `fill-${id}` }));
    for (const path of marks[id]) pattern.append(svgElement("path", { d: path, class: "pattern" }));
    definitions.append(pattern);
  }
  return svgElement("svg", { width: 0, height: 0, class: "definitions", "aria-hidden": "true" }, definitions);
}
