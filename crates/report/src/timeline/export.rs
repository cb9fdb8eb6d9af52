//! A recording for scripts: one JSON document, or a CSV table of samples and marks. All samples are
//! written as a stream; the document may be larger than memory.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};
use strandline_inspect::environment::Environment;
use strandline_recording::{Column, ColumnValue, Error, Ledger, Mark, Moment, Reader, Record, Sample};

use super::choice::{bytes_of, moment_kind, seconds_of};
use super::{Process, SampleCounts, Timeline, groups_json};
use crate::json::{VERSION, environment, escape, nested_document};
use crate::template::DrawError;

/// The schema of the document of one recording.
pub const SCHEMA: &str = "strandline/report/1";
/// The schema of the document of several recordings.
const SEVERAL_SCHEMA: &str = "strandline/reports/1";
/// The columns before those of the sample; `docs/schema.md` names all columns.
const LEADING_COLUMNS: [&str; 3] = ["seconds", "pid", "process"];
/// Limit on rows buffered for sorting by time between two heartbeats; intact recordings have far
/// fewer.
const MAX_ROWS: usize = 1 << 18;
/// Maximum number of process ids remembered; the others are exported as unknown.
const MAX_PIDS: usize = 1 << 20;
/// Size of the buffer of each temporary file.
const FILE_BUFFER_BYTES: usize = 64 << 10;
/// Size of the buffer for copying a temporary file.
const COPY_BUFFER_BYTES: usize = 256 << 10;

/// Why a recording could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] Error),
    /// Writing failed, possibly of a temporary file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A page or a picture cannot be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

/// A sample, or a mark with its sample.
struct Row {
    at_us: u64,
    /// The process's number in the recording.
    process: u32,
    /// Name of the mark, if it is one.
    mark: Option<String>,
    sample: Sample,
}

impl Row {
    /// Its figures, in the order of [`columns`]; `None` for an unknown one.
    fn figures(&self, pids: &Pids) -> impl Iterator<Item = Option<ColumnValue>> {
        let pid = pids.get(&self.process).map(|pid| ColumnValue::Whole(pid.unsigned_abs().into()));
        let process = ColumnValue::Whole(self.process.into());
        let leading = [Some(ColumnValue::Micros(self.at_us)), pid, Some(process)];
        leading.into_iter().chain(Column::ALL.map(|column| Some(self.sample.shown(column))))
    }
}

fn columns() -> impl Iterator<Item = &'static str> {
    LEADING_COLUMNS.into_iter().chain(Column::ALL.map(Column::name))
}

/// Process ids by process number.
type Pids = HashMap<u32, i32>;

/// Writes a figure, times in seconds; `unknown` stands for an unknown one.
fn write_figure(out: &mut impl Write, figure: Option<ColumnValue>, unknown: &str) -> io::Result<()> {
    match figure {
        None => out.write_all(unknown.as_bytes()),
        Some(ColumnValue::Whole(value)) => write!(out, "{value}"),
        Some(ColumnValue::Micros(us)) => write!(out, "{}.{:06}", us / 1_000_000, us % 1_000_000),
    }
}

/// Passes every sample, and every mark with its sample, to `write_row` in order of time.
fn for_each_row(
    path: &Path,
    write_row: &mut dyn FnMut(&Row, &Pids) -> io::Result<()>,
) -> Result<(), ExportError> {
    let mut reader = Reader::open(path)?;
    let mut pids = Pids::new();
    let mut pending: Vec<Row> = Vec::new();
    loop {
        let record = reader.next_record()?;
        let is_last = record.is_none();
        // Between two heartbeats the samples of one interval are grouped by process.
        let is_heartbeat = matches!(record, Some(Record::Heartbeat(_)));
        match record {
            Some(Record::Process(start)) if pids.len() < MAX_PIDS => {
                pids.insert(start.process, start.pid);
            }
            Some(Record::Samples(block)) => {
                for run in block.runs() {
                    let row = |at_us| Row { at_us, process: block.process, mark: None, sample: run.sample };
                    pending.extend(run.times_us().map(row));
                    // A hostile block has a million samples.
                    if pending.len() > MAX_ROWS {
                        write_pending(&mut pending, &pids, write_row)?;
                    }
                }
            }
            Some(Record::Mark(mark)) => pending.push(Row {
                at_us: mark.at_us,
                process: mark.process,
                mark: Some(mark.name),
                sample: mark.sample,
            }),
            _ => {}
        }
        if is_heartbeat || is_last || pending.len() > MAX_ROWS {
            write_pending(&mut pending, &pids, write_row)?;
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Passes the pending rows to `write_row`, in order of time.
fn write_pending(
    pending: &mut Vec<Row>,
    pids: &Pids,
    write_row: &mut dyn FnMut(&Row, &Pids) -> io::Result<()>,
) -> io::Result<()> {
    pending.sort_by_key(|row| row.at_us);
    pending.drain(..).try_for_each(|row| write_row(&row, pids))
}

/// The recordings that a table is made of. The table of several has a first column that names the
/// recording of each line.
pub(super) struct Tables<'a> {
    /// The head of that column; empty if there is one recording.
    pub head: &'static str,
    /// The path of each recording, and its cell in that column.
    pub recordings: Vec<(&'a Path, String)>,
}

impl<'a> Tables<'a> {
    pub(super) fn new(paths: &'a [PathBuf]) -> Self {
        let names_each = paths.len() > 1;
        let begin = |path: &Path| format!("{},", quoted(&path.to_string_lossy()));
        let recording =
            |path: &'a PathBuf| (path.as_path(), if names_each { begin(path) } else { String::new() });
        let head = if names_each { "recording," } else { "" };
        Self { head, recordings: paths.iter().map(recording).collect() }
    }
}

/// Writes the CSV table: samples, and marks with their names in the last column. Of several
/// recordings the first column is the path.
///
/// # Errors
/// A recording cannot be read, or the table cannot be written.
pub fn csv(paths: &[PathBuf], out: &mut dyn Write) -> Result<(), ExportError> {
    let mut out = BufWriter::new(out);
    let tables = Tables::new(paths);
    writeln!(out, "{}{},mark", tables.head, columns().collect::<Vec<_>>().join(","))?;
    for (path, begin) in tables.recordings {
        for_each_row(path, &mut |row, pids| {
            out.write_all(begin.as_bytes())?;
            for figure in row.figures(pids) {
                write_figure(&mut out, figure, "")?;
                out.write_all(b",")?;
            }
            if let Some(name) = &row.mark {
                out.write_all(quoted(name).as_bytes())?;
            }
            out.write_all(b"\n")
        })?;
    }
    Ok(out.flush()?)
}

/// A text of a target as a cell of CSV.
pub(super) fn quoted(text: &str) -> String {
    let text = crate::text::clean(text);
    // Spreadsheets take these characters for the start of a formula.
    let guard = if text.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

/// Writes the document of the recordings at `paths`, from which `timelines` were read. That of
/// several lists the document of each, and has the environment of `machine`, which writes it.
///
/// # Errors
/// As [`csv`].
pub fn json(
    paths: &[PathBuf],
    timelines: &[Timeline],
    machine: &Environment,
    out: &mut dyn Write,
) -> Result<(), ExportError> {
    let mut out = BufWriter::new(out);
    let is_several = paths.len() > 1;
    if is_several {
        write!(out, "{{\n  \"schema\": \"{SEVERAL_SCHEMA}\"")?;
        write_field(&mut out, "version", &VERSION)?;
        write_field(&mut out, "environment", machine)?;
        out.write_all(b",\n  \"recordings\": [")?;
    }
    for (index, (path, timeline)) in paths.iter().zip(timelines).enumerate() {
        out.write_all(if index == 0 { b"" } else { b"," })?;
        recording_document(path, timeline, &mut out)?;
    }
    out.write_all(if is_several { b"]\n}\n" } else { b"\n" })?;
    Ok(out.flush()?)
}

/// Writes the document of one recording.
fn recording_document(path: &Path, timeline: &Timeline, out: &mut impl Write) -> Result<(), ExportError> {
    let header = &timeline.header;
    let last_ledger = timeline.ledgers.iter().rev().find(|ledger| ledger.process == 0);
    let last_explain = last_ledger.map(|ledger| &ledger.explain);
    write!(out, "{{\n  \"schema\": \"{SCHEMA}\"")?;
    write_field(out, "version", &VERSION)?;
    write_field(out, "environment", &environment(&header.environment, last_explain))?;
    write_field(out, "file", &timeline.name)?;
    write_field(out, "recording", &recording(timeline))?;
    let marks: Vec<Value> = timeline.marks.iter().map(mark).collect();
    write_field(out, "marks", &marks)?;
    write_list(out, "processes", timeline.processes.iter().map(process))?;
    write_field(out, "groups", &groups_json::groups(timeline))?;
    write_field(out, "exit", &exit(timeline))?;
    write_field(out, "cost", &cost(timeline))?;
    write_field(out, "caveats", &timeline.caveats)?;
    write_list(out, "ledgers", timeline.ledgers.iter().map(|ledger| ledger_entry(timeline, ledger)))?;
    out.write_all(b",\n  \"samples\": ")?;
    write_samples(path, out)?;
    Ok(out.write_all(b"\n}")?)
}

/// Writes a field of the document that is not its first.
fn write_field(out: &mut impl Write, name: &str, value: &impl Serialize) -> io::Result<()> {
    write!(out, ",\n  \"{name}\": {}", escape(&serde_json::to_string(value)?))
}

/// Writes a field that is a list. Makes one value at a time: a ledger has many kilobytes.
fn write_list<T: Serialize>(
    out: &mut impl Write,
    name: &str,
    values: impl Iterator<Item = T>,
) -> io::Result<()> {
    write!(out, ",\n  \"{name}\": [")?;
    for (index, value) in values.enumerate() {
        let separator = if index == 0 { "" } else { "," };
        write!(out, "{separator}\n    {}", escape(&serde_json::to_string(&value)?))?;
    }
    out.write_all(b"]")
}

/// Writes each column to a temporary file and then concatenates them, so that nothing is kept in
/// memory.
fn write_samples(path: &Path, out: &mut impl Write) -> Result<(), ExportError> {
    let mut files = Vec::new();
    for _ in columns() {
        files.push(BufWriter::with_capacity(FILE_BUFFER_BYTES, tempfile::tempfile()?));
    }
    let mut is_first = true;
    for_each_row(path, &mut |row, pids| {
        if row.mark.is_some() {
            return Ok(());
        }
        for (figure, file) in row.figures(pids).zip(&mut files) {
            if !is_first {
                file.write_all(b",")?;
            }
            write_figure(file, figure, "null")?;
        }
        is_first = false;
        Ok(())
    })?;
    for (index, (name, file)) in columns().zip(files).enumerate() {
        write!(out, "{}\n    \"{name}\": [", if index == 0 { "{" } else { "," })?;
        let mut file: File = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        copy(&mut file, out)?;
        out.write_all(b"]")?;
    }
    Ok(out.write_all(b"}")?)
}

fn copy(from: &mut File, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            length => to.write_all(&buffer[..length])?,
        }
    }
}

fn recording(timeline: &Timeline) -> Value {
    let header = &timeline.header;
    json!({
        "schema": header.schema,
        "version": header.version,
        "command": header.command,
        "attached": header.attached,
        "ledgers": header.ledgers,
        "followed_by": header.followed_by,
        "limits": header.limits,
    })
}

fn mark(mark: &Mark) -> Value {
    let mut fields = serde_json::Map::new();
    let mut insert = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    insert("name", json!(mark.name));
    insert("seconds", json!(seconds_of(mark.at_us)));
    insert("pid", json!(mark.pid));
    insert("process", json!(mark.process));
    for column in Column::ALL {
        let figure = match mark.sample.shown(column) {
            ColumnValue::Whole(number) => json!(number),
            micros @ ColumnValue::Micros(_) => json!(micros.number()),
        };
        insert(column.name(), figure);
    }
    insert("status_bytes", json!(mark.status_bytes));
    insert("tree_pss_bytes", json!(mark.tree_pss_bytes));
    insert("waited_seconds", json!(seconds_of(mark.waited_us)));
    Value::Object(fields)
}

/// The name of a ledger's moment: that of its mark, or the kind of moment.
fn moment_name(ledger: &Ledger) -> String {
    match (ledger.moment, &ledger.mark) {
        (Moment::Mark, Some(name)) => name.clone(),
        (moment, _) => moment_kind(moment).to_owned(),
    }
}

/// A ledger in the document: when and why it was taken, and the document of `explain`.
#[derive(Serialize)]
struct LedgerEntry<E> {
    at: String,
    moment: &'static str,
    pid: i32,
    process: u32,
    seconds: f64,
    share_of_peak: Option<f64>,
    tree_pss_bytes: Option<u64>,
    explain: E,
}

fn ledger_entry<'a>(timeline: &'a Timeline, ledger: &'a Ledger) -> LedgerEntry<impl Serialize + use<'a>> {
    let explain = nested_document(
        "strandline/explain/1",
        &timeline.header.version,
        &ledger.environment,
        Some(&ledger.explain),
        &ledger.explain,
    );
    LedgerEntry {
        at: moment_name(ledger),
        moment: moment_kind(ledger.moment),
        pid: ledger.pid,
        process: ledger.process,
        seconds: seconds_of(ledger.at_us),
        share_of_peak: timeline.share_of_peak(ledger),
        tree_pss_bytes: ledger.tree_pss_bytes,
        explain,
    }
}

fn process(process: &Process) -> Value {
    let end = process.end.as_ref();
    // A process whose first record is lost has no id.
    let pid = Some(process.start.pid).filter(|&pid| pid > 0);
    let execs = process.execs.iter().map(|exec| {
        json!({ "seconds": seconds_of(exec.at_us), "command": exec.command, "executable": exec.executable })
    });
    json!({
        "process": process.start.process,
        "pid": pid,
        "parent": process.start.parent,
        "command": process.command(),
        "executable": process.executable(),
        "start_seconds": seconds_of(process.start.at_us),
        "end_seconds": end.map(|end| seconds_of(end.at_us)),
        "status": end.and_then(|end| end.status),
        "signal": end.and_then(|end| end.signal),
        "high_water_bytes": process.high_water_kib().map(bytes_of),
        "samples": process.samples,
        "execs": execs.collect::<Vec<_>>(),
    })
}

fn exit(timeline: &Timeline) -> Value {
    let end = timeline.end.as_ref();
    // Earlier versions recorded the kernel's figure, which is approximate.
    let sampled_kib = timeline.processes.first().and_then(Process::high_water_kib);
    json!({
        "why": end.map(|end| &end.why),
        "seconds": end.map(|end| seconds_of(end.at_us)),
        "status": end.and_then(|end| end.status),
        "signal": end.and_then(|end| end.signal),
        "high_water_bytes": end.and_then(|end| end.high_water_kib).max(sampled_kib).map(bytes_of),
        "out_of_memory_kills": end.and_then(|end| end.out_of_memory_kills),
        "group_kill": end.and_then(|end| end.group_kill.as_ref()).map(groups_json::kill),
    })
}

fn cost(timeline: &Timeline) -> Value {
    let end = timeline.end.as_ref();
    let SampleCounts { samples, missed } = timeline.counts();
    json!({
        "samples": samples,
        "missed": missed,
        "interval_seconds": seconds_of(timeline.header.interval_us),
        "own_cpu_seconds": end.map(|end| seconds_of(end.own_cpu_us)),
        "own_peak_rss_bytes": end.and_then(|end| end.own_peak_rss_kib).map(bytes_of),
        "stopped_seconds": end.map(|end| seconds_of(end.stopped_us)),
        "waited_seconds": end.map(|end| seconds_of(end.waited_us)),
        "paused_seconds": end.map(|end| seconds_of(end.paused_us)),
        "brief_processes": end.map(|end| end.brief_processes),
        "unsampled_processes": end.map(|end| end.unsampled_processes),
    })
}
