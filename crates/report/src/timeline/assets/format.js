// Sizes and times as the terminal report writes them: three digits, binary units, `?` for an unknown figure.

const KIB = 1024;

// As the terminal report rounds: a figure that lies exactly between two goes to the even one. `toFixed` alone
// would always take the larger.
function fixed(value, digits) {
  const power = 10 ** digits;
  const lower = Math.floor(value * power);
  const isHalfway = value * power - lower === 0.5;
  return (isHalfway && lower % 2 === 0 ? lower / power : value).toFixed(digits);
}

function formatBytes(bytes) {
  if (bytes === null || bytes === undefined || Number.isNaN(bytes)) return "?";
  if (bytes < 0) return "−" + formatBytes(-bytes);
  if (bytes < KIB) return `${Math.round(bytes)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = bytes / KIB;
  let unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) {
    value /= KIB;
    unit += 1;
  }
  return `${fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} ${units[unit]}`;
}

// A count and what is counted: `1 mark`, `12,411 marks`.
function counted(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

// A tick of an axis of sizes, whose steps are powers of two: without zeros at the end.
function axisBytes(bytes) {
  return formatBytes(bytes).replace(/\.0+ /, " ").replace(/(\.\d*?)0+ /, "$1 ");
}

function formatPercent(part, whole) {
  if (!(whole > 0)) return "0.0 %";
  const share = (part * 100) / whole;
  return part > 0 && share < 0.05 ? "<0.1 %" : `${fixed(share, 1)} %`;
}

// An instant: exact to the millisecond, whatever the length of the recording.
function formatInstant(seconds) {
  return `${seconds.toFixed(3)} s`;
}

// A tick of the time axis whose ticks are `step` seconds apart.
function axisTime(seconds, step, end) {
  if (end < 180) {
    const digits = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step)));
    return `${seconds.toFixed(digits)} s`;
  }
  const twoDigits = (value) => String(value).padStart(2, "0");
  const whole = Math.floor(seconds + 1e-9);
  const clock = end >= 7200
    ? `${Math.floor(whole / 3600)}:${twoDigits(Math.floor(whole / 60) % 60)}:${twoDigits(whole % 60)}`
    : `${Math.floor(whole / 60)}:${twoDigits(whole % 60)}`;
  return step >= 1 ? clock : clock + (seconds - whole).toFixed(3).slice(1);
}

// Text of at most `maxLetters`, shortened in its middle.
function shorten(text, maxLetters) {
  const letters = Array.from(text);
  if (letters.length <= maxLetters) return text;
  const head = Math.ceil((maxLetters - 1) / 2);
  const tail = maxLetters - 1 - head;
  return letters.slice(0, head).join("") + "…" + letters.slice(letters.length - tail).join("");
}

// A new element. Strings become text: nothing in this page is ever parsed as markup.
function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) created.setAttribute(name, value);
  }
  created.append(...children);
  return created;
}

function svgElement(tag, attributes = {}, ...children) {
  const created = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  created.append(...children);
  return created;
}

// A colour or a size of the style sheet, in the current theme.
function themed(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
