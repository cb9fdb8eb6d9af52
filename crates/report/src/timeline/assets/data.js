// Reads the recordings from the page: columns of differences become columns of figures.

const STATES = [
  { id: "live", letter: "L" },
  { id: "stranded", letter: "S" },
  { id: "pinned", letter: "P" },
  { id: "evictable", letter: "E" },
  { id: "unattributed", letter: "U" },
];

const COLUMNS = [
  { id: "rss", name: "RSS", dash: [] },
  { id: "anonymous", name: "anonymous", dash: [8, 3] },
  { id: "file", name: "file", dash: [2, 3] },
  { id: "data", name: "VmData", dash: [10, 3, 2, 3] },
  { id: "virtual", name: "VmSize", dash: [14, 4] },
];

// The figures of a column of differences, in another unit.
function summed(differences, factor) {
  const figures = new Float64Array(differences.length);
  let sum = 0;
  for (let i = 0; i < differences.length; i += 1) {
    sum += differences[i];
    figures[i] = sum * factor;
  }
  return figures;
}

// A process over time: `seconds` and columns in bytes.
function readLine(raw, recording, letter) {
  const line = {
    recording,
    letter,
    name: raw.name,
    process: raw.process,
    peakBytes: raw.peak_bytes,
    widthSeconds: (raw.width_us ?? 0) / 1e6,
    seconds: summed(raw.us, 1e-6),
    low: raw.low.length ? summed(raw.low, KIB) : null,
    high: raw.high.length ? summed(raw.high, KIB) : null,
  };
  for (const column of COLUMNS) line[column.id] = summed(raw[column.id], KIB);
  return line;
}

// More cells than this are not drawn, whatever a damaged recording claims.
const MAX_CELLS = 200000;

// Runs of equal cells become cells: `[index, row, bytes, row, bytes, …]`.
function readMapping(mapping) {
  const cells = [];
  for (const [first, count, ...contents] of mapping.cells) {
    for (let i = 0; i < count && cells.length < MAX_CELLS; i += 1) cells.push([first + i, ...contents]);
  }
  return { ...mapping, cells };
}

function readData() {
  const raw = JSON.parse(document.getElementById("data").textContent);
  const hasSeveralRecordings = raw.recordings.length > 1;
  const lines = [];
  const marks = [];
  raw.recordings.forEach((recording, index) => {
    const letter = hasSeveralRecordings ? String.fromCharCode(65 + index) : "";
    for (const line of recording.lines) lines.push(readLine(line, index, letter));
    recording.marks.forEach((mark, markIndex) => {
      marks.push({
        recording: index,
        label: `${letter}${markIndex + 1}`,
        index: markIndex,
        name: mark.name,
        seconds: mark.us / 1e6,
        process: mark.process,
        rss: mark.rss_bytes,
      });
    });
  });
  marks.sort((a, b) => a.seconds - b.seconds);
  const ledgers = raw.ledgers.map((ledger, index) => ({
    ...ledger,
    index,
    seconds: ledger.us / 1e6,
    letter: hasSeveralRecordings ? String.fromCharCode(65 + ledger.recording) : "",
    map: ledger.map && { ...ledger.map, mappings: ledger.map.mappings.map(readMapping) },
    rows: ledger.rows.map(([row, bytes]) => {
      const [id, stratum, state, holder] = raw.rows[row];
      return { id, stratum, state, holder, bytes };
    }),
  }));
  const end = Math.max(1e-3, ...raw.recordings.map((recording) => recording.end_us / 1e6));
  return { hasSeveralRecordings, lines, marks, ledgers, end };
}

// Index of the last entry of `sorted` that is not above `value`; -1 if all are.
function lastUpTo(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// The figure of `column` at an instant; null before the first and after the last sample of `line`.
function figureAt(line, column, seconds) {
  const index = lastUpTo(line.seconds, seconds + 1e-9);
  if (index < 0 || seconds > line.seconds[line.seconds.length - 1] + 1e-9) return null;
  return line[column][index];
}

function ledgerName(ledger) {
  const name = ledger.mark === null ? ledger.moment : `mark “${ledger.mark}”`;
  return ledger.letter ? `${ledger.letter} ${name}` : name;
}
