//! Extracts the metrics of a run: its figures, the marks and ledgers of its recording, the JSON
//! line it printed, and derived metrics. None of these files is trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use strandline_inspect::facts::Explanation;
use strandline_inspect::readers::{self, ALLOCATORS, RUNTIMES};
use strandline_recording::{Column, Ledger, Mark, Moment, Reader, Record};

use super::expression::Expression;
use super::file::{Study, Subject};
use super::metric::{MarkOccurrence, Metric};
use strandline_lab::cell::{End, Outcome};
use strandline_lab::compare;

/// At most this much is read from the end of standard output: what the lab keeps of it.
const MAX_STDOUT_BYTES: u64 = 16 << 20;
/// Optional prefix of the JSON line of a subject, to distinguish it from other output.
const JSON_PREFIX: &str = "strandline-json:";
/// Maximum number of marks read from a recording; further ones are unknown.
const MAX_MARKS: usize = 100_000;
/// Maximum number of ledgers read; with more, those at exit and at the peak are unknown.
const MAX_LEDGERS: usize = 5_000;
/// Maximum number of processes noted; with more, the same ledgers are unknown.
const MAX_PROCESSES: usize = 100_000;
/// Maximum number of caveats on lost marks; with more, each mark counts as possibly lost.
const MAX_LOST_MARKS: usize = 10_000;
/// Printed texts are truncated to this.
const MAX_TEXT_BYTES: usize = 200;

/// The known metrics of one run, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunMetrics {
    pub figures: BTreeMap<String, f64>,
    pub texts: BTreeMap<String, String>,
}

/// Extracts the metrics of the runs of a subject.
pub struct Extractor<'s> {
    subject: &'s Subject,
    /// The derived metrics of the subject, each after those that it reads.
    derived: Vec<DerivedMetric>,
}

struct DerivedMetric {
    name: String,
    /// `None` if it cannot be parsed; the metric is then unknown.
    expression: Option<Expression>,
}

impl<'s> Extractor<'s> {
    pub fn new(study: &'s Study, subject: &'s Subject) -> Self {
        let parse = |text: &str| Expression::parse(text, &|_| None, &[]).ok();
        let declared = study.derived.iter().filter(|derived| subject.metrics.contains_key(&derived.name));
        let derived = declared.map(|derived| DerivedMetric {
            name: derived.name.clone(),
            expression: parse(&derived.expression.value),
        });
        Self { subject, derived: derived.collect() }
    }

    /// The known metrics of one run, without derived ones.
    pub fn metrics(&self, outcome: &Outcome) -> RunMetrics {
        let mut texts = BTreeMap::new();
        let mut figures = BTreeMap::new();
        for metric in compare::Metric::ALL {
            if let Some(value) = metric.value_in(&outcome.figures) {
                figures.insert(metric.name().to_owned(), value);
            }
        }
        if let Some(faults) = outcome.figures.major_faults {
            figures.insert("major_faults".to_owned(), faults as f64);
        }
        match outcome.end {
            End::Exited(status) => figures.insert("exit_status".to_owned(), f64::from(status)),
            End::Signalled(signal) => figures.insert("signal".to_owned(), f64::from(signal)),
            End::TimedOut | End::NotStarted(_) => None,
        };
        let contents = outcome.recording.as_deref().map(RecordingContents::read).unwrap_or_default();
        let is_printed = |metric: &Metric| matches!(metric, Metric::Json(_) | Metric::Text(_));
        let json = if self.subject.metrics.values().any(is_printed) {
            outcome.stdout.as_deref().and_then(json_line)
        } else {
            None
        };
        for (name, metric) in &self.subject.metrics {
            let value = match metric {
                Metric::Mark { mark, column } => {
                    contents.mark(mark).and_then(|mark| mark_value(mark, column))
                }
                Metric::Row { at, row } => {
                    contents.ledger(at).and_then(|ledger| ledger_value(&ledger.explain, row))
                }
                Metric::Json(keys) => json.as_ref().and_then(|json| number(json_value(json, keys)?)),
                Metric::Text(keys) => {
                    let text = json.as_ref().and_then(|json| json_value(json, keys)?.as_str());
                    texts.extend(text.map(|text| (name.clone(), shortened(text))));
                    None
                }
                Metric::Figure | Metric::End | Metric::Derived(_) => None,
            };
            if let Some(value) = value {
                figures.insert(name.clone(), value);
            }
        }
        RunMetrics { figures, texts }
    }

    /// The allocators in the ledgers of a run, in any of its processes; `None` without ledgers, or
    /// if there may be further ones.
    pub fn allocators(outcome: &Outcome) -> Option<BTreeSet<String>> {
        let contents = outcome.recording.as_deref().map(RecordingContents::read)?;
        let ledgers = contents.ledgers.iter();
        let names = ledgers.flat_map(|ledger| &ledger.explain.allocators);
        let names = names.map(|allocator| allocator.name.clone());
        (!contents.ledgers.is_empty() && !contents.has_more_ledgers).then(|| names.collect())
    }

    /// The metrics derived from `metric`, directly or indirectly.
    pub fn derived_of(&self, metric: &str) -> BTreeSet<String> {
        let mut dependent = BTreeSet::new();
        for DerivedMetric { name, expression } in &self.derived {
            let mut inputs = expression.iter().flat_map(|expression| &expression.scan.metrics);
            if inputs.any(|input| input == metric || dependent.contains(input)) {
                dependent.insert(name.clone());
            }
        }
        dependent
    }

    /// Adds the derived metrics to the other `metrics` of a run.
    pub fn derive(&self, metrics: &mut BTreeMap<String, f64>) {
        for DerivedMetric { name, expression } in &self.derived {
            if let Some(value) = expression.as_ref().and_then(|expression| expression.figure_of_run(metrics))
            {
                metrics.insert(name.clone(), value);
            }
        }
    }
}

/// The marks and ledgers of a recording.
#[derive(Default)]
struct RecordingContents {
    marks: Vec<Mark>,
    lost_marks: Vec<LostMarks>,
    ledgers: Vec<Ledger>,
    /// Whether the file may have further ledgers: the maximum was reached, or it is damaged.
    has_more_ledgers: bool,
    /// Whether a ledger was not taken, or the end of a process was not watched.
    lacks_ledgers: bool,
    /// The peak RSS of each process in KiB, if it is known.
    high_water_kib: BTreeMap<u32, Option<u64>>,
}

/// Marks that may be missing.
struct LostMarks {
    /// Time from which they may be missing.
    since_us: u64,
    /// The text that quotes the name of the only one; `None` if any may be missing.
    text: Option<String>,
}

impl LostMarks {
    /// Whether a mark of this name may be missing before `at_us`.
    fn may_precede(&self, name: &str, at_us: u64) -> bool {
        let is_named = |text: &String| text.contains(&format!("{name:?}"));
        self.since_us <= at_us && self.text.as_ref().is_none_or(is_named)
    }
}

impl RecordingContents {
    /// Reads a recording; what cannot be read of it is unknown, like what was not recorded.
    fn read(path: &Path) -> Self {
        let mut contents = Self::default();
        let Ok(mut reader) = Reader::open(path) else { return contents };
        loop {
            match reader.next_record() {
                Ok(Some(Record::Caveat(record))) => {
                    contents.note_loss(&record.caveat.code, &record.caveat.text, record.at_us);
                }
                Ok(Some(Record::Process(_))) if contents.high_water_kib.len() >= MAX_PROCESSES => {
                    contents.has_more_ledgers = true;
                }
                Ok(Some(Record::Process(start))) => {
                    contents.high_water_kib.entry(start.process).or_default();
                }
                Ok(Some(Record::ProcessEnd(end))) => {
                    if let Some(known) = contents.high_water_kib.get_mut(&end.process) {
                        *known = end.high_water_kib;
                    }
                }
                Ok(Some(Record::Mark(mark))) if contents.marks.len() < MAX_MARKS => {
                    contents.marks.push(*mark);
                }
                Ok(Some(Record::Ledger(_))) if contents.ledgers.len() >= MAX_LEDGERS => {
                    contents.has_more_ledgers = true;
                }
                Ok(Some(Record::Ledger(mut ledger))) => {
                    // The page map is by far the largest part of a ledger.
                    ledger.explain.page_map = None;
                    contents.ledgers.push(*ledger);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => {
                    contents.has_more_ledgers = true;
                    break;
                }
            }
        }
        reader.caveats().iter().for_each(|caveat| contents.note_loss(&caveat.code, &caveat.text, 0));
        contents
    }

    /// Notes what is missing according to a caveat with this `code` and `text`.
    fn note_loss(&mut self, code: &str, text: &str, at_us: u64) {
        match code {
            "mark_without_sample" => {
                self.lost_marks.push(LostMarks { since_us: at_us, text: Some(text.to_owned()) });
            }
            // What precedes the torn end is whole.
            "recording_torn" => {}
            // The caveat comes after the loss.
            _ if code == "marks_dropped" || code.starts_with("recording_") => {
                self.lost_marks.push(LostMarks { since_us: 0, text: None });
            }
            _ => {}
        }
        if self.lost_marks.len() > MAX_LOST_MARKS {
            // It stands for all of them.
            self.lost_marks = vec![LostMarks { since_us: 0, text: None }];
        }
        self.has_more_ledgers |= code.starts_with("recording_");
        self.lacks_ledgers |= matches!(code, "ledger_failed" | "not_watched");
    }

    /// The mark; `None` also if one of the same name before it may be lost.
    fn mark(&self, MarkOccurrence { name, index }: &MarkOccurrence) -> Option<&Mark> {
        let mark = self.marks.iter().filter(|mark| mark.name == *name).nth(*index)?;
        (!self.lost_marks.iter().any(|lost| lost.may_precede(name, mark.at_us))).then_some(mark)
    }

    /// The ledger at a mark, at exit or at the peak.
    fn ledger(&self, occurrence: &MarkOccurrence) -> Option<&Ledger> {
        match occurrence.name.as_str() {
            "exit" => self.largest_ledger(Moment::Exit),
            "peak" => self.largest_ledger(Moment::Peak),
            _ => self.ledger_at_mark(self.mark(occurrence)?),
        }
    }

    /// The ledger of the process with the most memory at this moment; `None` also if that of a
    /// larger process may be missing.
    fn largest_ledger(&self, moment: Moment) -> Option<&Ledger> {
        let ledgers = || self.ledgers.iter().filter(|ledger| ledger.moment == moment);
        let largest = ledgers().max_by_key(|ledger| ledger.explain.kernel.rss_bytes)?;
        let may_be_larger = |(process, kib): (&u32, &Option<u64>)| {
            !ledgers().any(|ledger| ledger.process == *process)
                && kib.is_none_or(|kib| kib.saturating_mul(1024) > largest.explain.kernel.rss_bytes)
        };
        let lacks_larger = self.lacks_ledgers && self.high_water_kib.iter().any(may_be_larger);
        (!self.has_more_ledgers && !lacks_larger).then_some(largest)
    }

    /// The ledger that was taken at `mark`. If one of a mark of its name and process is missing,
    /// the times decide: no ledger takes the place of the missing one.
    fn ledger_at_mark(&self, mark: &Mark) -> Option<&Ledger> {
        let is_alike =
            |process: u32, name: Option<&String>| (process, name) == (mark.process, Some(&mark.name));
        let marks = || self.marks.iter().filter(|other| is_alike(other.process, Some(&other.name)));
        let is_alike_ledger = |ledger: &&Ledger| {
            ledger.moment == Moment::Mark && is_alike(ledger.process, ledger.mark.as_ref())
        };
        let ledgers: Vec<&Ledger> = self.ledgers.iter().filter(is_alike_ledger).collect();
        if ledgers.len() == marks().count() {
            // Marks of several threads may all precede the first ledger.
            return ledgers.get(marks().position(|other| std::ptr::eq(other, mark))?).copied();
        }
        let later_us = marks().map(|other| other.at_us).filter(|&at_us| at_us > mark.at_us).min();
        let time_span = mark.at_us..later_us.unwrap_or(u64::MAX);
        ledgers.into_iter().find(|ledger| time_span.contains(&ledger.at_us))
    }
}

/// The value of a column of a mark, or of a line of /proc/PID/status.
fn mark_value(mark: &Mark, name: &str) -> Option<f64> {
    if let Some(column) = Column::named(name) {
        return Some(mark.sample.shown(column).number());
    }
    match name {
        "seconds" => Some(mark.at_us as f64 / 1e6),
        "tree_pss_bytes" => mark.tree_pss_bytes.map(|bytes| bytes as f64),
        line => mark.status_bytes.get(line).map(|&bytes| bytes as f64),
    }
}

/// A figure of a ledger. A row that is absent is 0 if its allocator or runtime was read, and
/// unknown otherwise. Figures of readers are unknown if one of them ran out of time.
fn ledger_value(explain: &Explanation, row: &str) -> Option<f64> {
    if is_from_readers(row) && explain.caveats.iter().any(|caveat| caveat.is_late()) {
        return None;
    }
    let totals = &explain.totals;
    let bytes = match row {
        "live" => totals.live,
        "stranded" => totals.stranded,
        "pinned" => totals.pinned,
        "evictable" => totals.evictable,
        "unattributed" => totals.unattributed,
        "rss" => explain.kernel.rss_bytes,
        "pss" => explain.kernel.pss_bytes?,
        id => match id.split_once('.') {
            Some(("runtime", path)) => return runtime_value(explain, path),
            Some(("remedy", id)) => predicted_bytes(explain, id)?,
            _ => row_bytes(explain, id)?,
        },
    };
    Some(bytes as f64)
}

/// Whether a figure of a ledger depends on what the readers of allocators and runtimes read.
fn is_from_readers(row: &str) -> bool {
    let owner = row.split('.').next().unwrap_or_default();
    matches!(owner, "live" | "stranded" | "pinned" | "remedy" | "runtime")
        || !row.ends_with(".unread") && readers::all().any(|about| about.name == owner)
}

/// The bytes that a remedy is predicted to free; `None` if it does not apply or has no prediction.
fn predicted_bytes(explain: &Explanation, id: &str) -> Option<u64> {
    explain.remedies.iter().find(|remedy| remedy.id == id)?.predicted_bytes
}

/// The bytes of a row; 0 if it is absent from a ledger whose reader could have made it.
fn row_bytes(explain: &Explanation, id: &str) -> Option<u64> {
    let mut rows = explain.rows.iter().filter(|row| row.id == id).peekable();
    if rows.peek().is_some() {
        return Some(rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes)));
    }
    let owner = id.split('.').next().unwrap_or_default();
    let are_all_read = |reads: Vec<bool>| !reads.is_empty() && !reads.contains(&false);
    let is_read = if ALLOCATORS.iter().any(|entry| entry.about.name == owner) {
        let own = explain.allocators.iter().filter(|allocator| allocator.name == owner);
        are_all_read(own.map(|allocator| allocator.read).collect())
    } else if RUNTIMES.iter().any(|entry| entry.about.name == owner) {
        let own = explain.runtimes.iter().filter(|runtime| runtime.name == owner);
        are_all_read(own.map(|runtime| runtime.read).collect())
    } else {
        // Every ledger has the rows of the kernel and of mappings.
        true
    };
    is_read.then_some(0)
}

/// A figure of a runtime's reader by name and path: `perl.retained.bytes`.
fn runtime_value(explain: &Explanation, path: &str) -> Option<f64> {
    let (name, field_path) = path.split_once('.')?;
    let runtime = explain.runtimes.iter().find(|runtime| runtime.name == name && runtime.read)?;
    let figures = serde_json::to_value(runtime).ok()?;
    let keys: Vec<String> = field_path.split('.').map(str::to_owned).collect();
    json_value(figures.get(name)?, &keys)?.as_f64()
}

/// The last line that is a JSON object; a line with the prefix takes precedence. `None` if there is
/// none, or the file cannot be read.
fn json_line(path: &Path) -> Option<serde_json::Value> {
    let mut file = std::fs::File::open(path).ok()?;
    let bytes = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(MAX_STDOUT_BYTES))).ok()?;
    let mut text = Vec::new();
    file.take(MAX_STDOUT_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let parse_object = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line.trim()).ok()?;
        value.is_object().then_some(value)
    };
    let mut lines = text.lines().rev();
    let prefixed = lines.find_map(|line| parse_object(line.trim_start().strip_prefix(JSON_PREFIX)?));
    let mut plain = text.lines().rev().filter(|line| line.trim_start().starts_with('{'));
    prefixed.or_else(|| plain.find_map(parse_object))
}

/// The value at the end of a path of keys; a key of an array is an index from 0.
fn json_value<'j>(json: &'j serde_json::Value, keys: &[String]) -> Option<&'j serde_json::Value> {
    // A key may itself contain a dot.
    if let Some(value) = json.get(keys.join(".")) {
        return Some(value);
    }
    keys.iter().try_fold(json, |value, key| match value {
        serde_json::Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    })
}

/// Truncates a text printed by a subject, and marks where; cleaning it is left to the presentation.
fn shortened(text: &str) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        return text.to_owned();
    }
    let mut end = MAX_TEXT_BYTES;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", text.get(..end).unwrap_or_default())
}

/// A number, or a boolean as 0 or 1.
fn number(value: &serde_json::Value) -> Option<f64> {
    match value {
        serde_json::Value::Bool(flag) => Some(f64::from(u8::from(*flag))),
        value => value.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_an_allocator_that_was_not_understood_is_not_known() {
        let mut explain = Explanation::default();
        assert_eq!(ledger_value(&explain, "kernel.zero"), Some(0.0));
        assert_eq!(ledger_value(&explain, "glibc.free.trim"), None);
        let glibc = strandline_inspect::facts::Allocator { name: "glibc".to_owned(), ..Default::default() };
        explain.allocators.push(strandline_inspect::facts::Allocator { read: true, ..glibc.clone() });
        assert_eq!(ledger_value(&explain, "glibc.free.trim"), Some(0.0));
        explain.allocators.push(glibc);
        assert_eq!(ledger_value(&explain, "glibc.free.trim"), None, "one of two");
    }

    #[test]
    fn figures_of_readers_are_not_known_if_one_ran_out_of_time() {
        let caveats = vec![strandline_inspect::Caveat::new("heap_too_slow", "0x1000", None, "")];
        let explain = Explanation { caveats, ..Explanation::default() };
        for row in ["stranded", "glibc.free.trim", "runtime.perl.retained.bytes", "remedy.malloc_trim"] {
            assert_eq!(ledger_value(&explain, row), None, "{row}");
        }
        assert_eq!(ledger_value(&explain, "rss"), Some(0.0));
        assert_eq!(ledger_value(&explain, "evictable"), Some(0.0));
    }

    #[test]
    fn the_largest_of_ledgers_that_were_not_all_read_is_not_known() {
        let ledger = |moment| Ledger { moment, mark: Some("begun".to_owned()), ..Ledger::default() };
        let ledgers = || Vec::from([Moment::Mark, Moment::Peak, Moment::Exit].map(ledger));
        let contents =
            || RecordingContents { marks: vec![mark(1)], ledgers: ledgers(), ..RecordingContents::default() };
        let has_ledgers = |contents: &RecordingContents| {
            ["begun", "peak", "exit"].map(|at| contents.ledger(&MarkOccurrence::parse(at)).is_some())
        };
        assert_eq!(has_ledgers(&contents()), [true, true, true]);
        assert_eq!(
            has_ledgers(&RecordingContents { has_more_ledgers: true, ..contents() }),
            [true, false, false]
        );
        for (code, expected) in [
            ("swap_not_limited", [true, true, true]),
            ("not_watched", [true, true, true]),
            ("recording_torn", [true, false, false]),
            ("recording_damaged", [false, false, false]),
        ] {
            let mut contents = contents();
            contents.note_loss(code, "", 0);
            assert_eq!(has_ledgers(&contents), expected, "{code}");
        }
        // Process 1 has no ledger.
        for (kib, expected) in [(None, false), (Some(1), false), (Some(0), true)] {
            let high_water_kib = BTreeMap::from([(0, None), (1, kib)]);
            let lacking = RecordingContents { lacks_ledgers: true, high_water_kib, ..contents() };
            assert_eq!(has_ledgers(&lacking), [true, expected, expected], "{kib:?}");
            assert_eq!(has_ledgers(&RecordingContents { lacks_ledgers: false, ..lacking }), [true; 3]);
        }
    }

    fn mark(at_us: u64) -> Mark {
        Mark { name: "begun".to_owned(), at_us, ..Mark::default() }
    }

    #[test]
    fn a_lost_mark_or_ledger_makes_no_other_one_take_its_place() {
        let ledger = |at_us| Ledger { at_us, mark: Some("begun".to_owned()), ..Ledger::default() };
        let mut contents = RecordingContents {
            marks: vec![mark(10), mark(20), mark(30)],
            // That of the first mark was not taken.
            ledgers: vec![ledger(25), ledger(32)],
            ..RecordingContents::default()
        };
        let occurrences = ["begun", "begun#2", "begun#3"].map(MarkOccurrence::parse);
        let ledgers = |contents: &RecordingContents| {
            occurrences.each_ref().map(|at| contents.ledger(at).map(|ledger| ledger.at_us))
        };
        assert_eq!(ledgers(&contents), [None, Some(25), Some(32)]);
        contents.note_loss("mark_without_sample", "the mark \"other\" and", 15);
        assert!(occurrences.iter().all(|at| contents.mark(at).is_some()));
        contents.note_loss("mark_without_sample", "the mark \"begun\" and", 15);
        assert_eq!(occurrences.each_ref().map(|at| contents.mark(at).is_some()), [true, false, false]);
        assert_eq!(ledgers(&contents), [None; 3]);
    }

    #[test]
    fn ledgers_of_simultaneous_marks_are_in_the_order_of_the_marks() {
        let ledger = |at_us| Ledger { at_us, mark: Some("begun".to_owned()), ..Ledger::default() };
        let contents = RecordingContents {
            marks: vec![mark(10), mark(11)],
            ledgers: vec![ledger(15), ledger(25)],
            ..RecordingContents::default()
        };
        let ledgers = ["begun", "begun#2"].map(|at| contents.ledger(&MarkOccurrence::parse(at)));
        assert_eq!(ledgers.map(|ledger| ledger.map(|ledger| ledger.at_us)), [Some(15), Some(25)]);
    }

    #[test]
    fn a_long_text_ends_with_a_mark() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"é".repeat(200));
        assert!(long.ends_with("é…") && long.len() <= MAX_TEXT_BYTES + "…".len(), "{long}");
    }

    #[test]
    fn a_remedy_without_a_prediction_is_not_known() {
        let mut explain = Explanation::default();
        assert_eq!(ledger_value(&explain, "pss"), None);
        explain.kernel.pss_bytes = Some(3);
        assert_eq!(ledger_value(&explain, "pss"), Some(3.0));
        assert_eq!(ledger_value(&explain, "remedy.jvm_gc"), None);
        let gc = |predicted_bytes| strandline_inspect::facts::Remedy {
            id: "jvm_gc".to_owned(),
            kind: strandline_inspect::facts::RemedyKind::Call,
            predicted_bytes,
            how: String::new(),
            cost: String::new(),
            ..strandline_inspect::facts::Remedy::default()
        };
        explain.remedies = vec![gc(None)];
        assert_eq!(ledger_value(&explain, "remedy.jvm_gc"), None);
        explain.remedies = vec![gc(Some(7))];
        assert_eq!(ledger_value(&explain, "remedy.jvm_gc"), Some(7.0));
    }

    #[test]
    fn the_last_json_line_counts_unless_a_line_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            json_line(file.path())
        };
        assert_eq!(read("hello\n{\"a\": 1}\n[2]\n{broken\n").unwrap()["a"], 1);
        assert_eq!(read("strandline-json: {\"a\": 2}\n{\"a\": 3}\n").unwrap()["a"], 2);
        assert_eq!(read("nothing\n"), None);
        let json = serde_json::json!({ "a": { "b": [1, true] }, "x.y": 3, "text": "1" });
        let keys = |path: &str| path.split('.').map(str::to_owned).collect::<Vec<_>>();
        let value = |path: &str| json_value(&json, &keys(path)).and_then(number);
        assert_eq!((value("a.b.0"), value("a.b.1"), value("x.y")), (Some(1.0), Some(1.0), Some(3.0)));
        assert_eq!((value("text"), value("a.b.9"), value("none")), (None, None, None));
    }
}
