// Connects the parts of the page: a ledger that is chosen in one is chosen in all.

const data = readData();
const ledgers = new Ledgers(data, (index) => timeline.chooseLedger(index));
const timeline = new Timeline(data, (index) => ledgers.choose(index));

// At first the ledger with the most stranded memory is shown, of equal ones the last.
const STRANDED = STATES.findIndex(({ id }) => id === "stranded");
let initial = data.ledgers.length - 1;
for (const { index, totals } of data.ledgers) if (totals[STRANDED] >= data.ledgers[initial].totals[STRANDED]) initial = index;
if (initial >= 0) {
  ledgers.choose(initial);
  timeline.chooseLedger(initial);
  // The keys `n` and `p` still start at the beginning.
  timeline.stop = -1;
}

function themes() {
  const button = document.getElementById("theme");
  const order = ["system", "light", "dark"];
  let current = 0;
  const redraw = () => {
    forgetColours();
    timeline.draw();
    ledgers.redraw();
  };
  button.addEventListener("click", () => {
    current = (current + 1) % order.length;
    if (current === 0) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = order[current];
    button.textContent = `Theme: ${order[current]}`;
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

function keys() {
  const button = document.getElementById("keys-button");
  const help = document.getElementById("keys");
  button.addEventListener("click", () => {
    help.hidden = !help.hidden;
    button.setAttribute("aria-expanded", String(!help.hidden));
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest("input[type=text], select, textarea");
    if (isTyping || event.ctrlKey || event.altKey || event.metaKey) return;
    const actions = {
      "+": () => timeline.zoom(0.5),
      "=": () => timeline.zoom(0.5),
      "-": () => timeline.zoom(2),
      "0": () => timeline.showAll(),
      n: () => timeline.next(1),
      p: () => timeline.next(-1),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

// Adds switches for the columns of the tables of marks, and buttons that show a mark in the timeline.
function marks() {
  const tables = document.querySelectorAll("table.marks");
  if (tables.length === 0) return;
  const box = document.getElementById("mark-columns");
  box.hidden = false;
  const names = [...tables[0].tHead.rows[0].cells].filter((cell) => /\bc-\d/.test(cell.className) && !cell.classList.contains("d"));
  const hide = (column, hidden) => {
    for (const table of tables) table.classList.toggle(`no-${column}`, hidden);
  };
  const hasSeveralProcesses = new Set(data.marks.map((mark) => `${mark.recording}:${mark.process}`)).size > tables.length;
  const choices = [["p", "process", hasSeveralProcesses], ...names.map((cell, index) => [String(index), cell.textContent, [0, 1, 3, 5].includes(index)])];
  for (const [column, name, shown] of choices) {
    const input = element("input", { type: "checkbox", value: column });
    input.checked = shown;
    input.addEventListener("change", () => hide(column, !input.checked));
    box.append(element("label", {}, input, ` ${name}`));
    hide(column, !shown);
  }
  for (const table of tables) {
    const recording = Number(table.dataset.recording);
    [...table.tBodies[0].rows].forEach((row, index) => {
      const name = row.querySelector("th.name");
      const button = element("button", { type: "button", class: "go" }, name.textContent);
      button.addEventListener("click", () => timeline.goToMark(recording, index));
      name.replaceChildren(button);
    });
  }
}

themes();
keys();
marks();
