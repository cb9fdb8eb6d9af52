//! A recording as reports need it: every process's series thinned to a few thousand points, marks, ledgers,
//! how it ended. Read in one pass, in bounded memory, however long the recording is.

pub mod chart;
mod choice;
pub mod export;
pub mod html;
mod html_data;
mod series;
pub mod svg;

#[cfg(test)]
mod fabricated;

use std::collections::BTreeMap;
use std::path::Path;

use strandline_inspect::Caveat;
use strandline_recording::{
    Beat, Ending, Error, Exec, Header, Ledger, Mark, Moment, ProcessEnd, ProcessStart, Reader, Record, Run,
};

pub use series::{Point, Series};

/// Why a picture could not be drawn, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotDrawn(pub String);

impl std::fmt::Display for NotDrawn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the report cannot be drawn: {}", self.0)
    }
}

impl std::error::Error for NotDrawn {}

impl From<minijinja::Error> for NotDrawn {
    fn from(error: minijinja::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<serde_json::Error> for NotDrawn {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Processes beyond these are counted and not drawn.
const MOST_PROCESSES: usize = 20_000;
/// Of so many ledgers the page maps are kept: every second one is dropped where there are more.
const MOST_PAGE_MAPS: usize = 32;
const MOST_LEDGERS: usize = 5_000;
const MOST_MARKS: usize = 100_000;
const MOST_CAVEATS: usize = 200;

/// A recording, read.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The file's name, for titles.
    pub name: String,
    /// What was recorded, where, how.
    pub header: Header,
    /// The processes, by their numbers: the first is the command itself.
    pub processes: Vec<Process>,
    /// The marks, in order of time.
    pub marks: Vec<Mark>,
    /// The ledgers, in order of time. Of those at peaks only the last of each process is kept.
    pub ledgers: Vec<Ledger>,
    /// How it ended; `None` where the recording is cut off.
    pub end: Option<Ending>,
    /// How far it came, by its last line.
    pub beat: Beat,
    /// What is not known, or went wrong.
    pub caveats: Vec<Caveat>,
}

/// One process of the recording.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Who it is.
    pub start: ProcessStart,
    /// The programs it started in its place, in order of time.
    pub execs: Vec<Exec>,
    /// How it ended; `None` where it had not when the recording did.
    pub end: Option<ProcessEnd>,
    /// Its figures over time, thinned.
    pub series: Series,
    /// How many samples were taken of it.
    pub samples: u64,
}

impl Process {
    /// The command line of its last program.
    pub fn command(&self) -> &[String] {
        self.execs.last().map_or(&self.start.command, |exec| &exec.command)
    }

    /// The most RSS that is known of it, in KiB: sampled, or the kernel's own high-water mark.
    pub fn high_water_kib(&self) -> Option<u64> {
        let sampled = self.series.points().iter().map(|point| point.rss_high_kib).max();
        sampled.max(self.end.as_ref().and_then(|end| end.high_water_kib))
    }
}

impl Timeline {
    /// Reads the recording at `path`.
    ///
    /// # Errors
    /// Those of [`Reader`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut reader = Reader::open(path)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let mut timeline = Self { name, header: reader.header().clone(), ..Self::default() };
        let mut peaks = BTreeMap::new();
        while let Some(record) = reader.next_record()? {
            timeline.take(record, &mut peaks);
        }
        timeline.caveats.extend(reader.caveats());
        timeline.settle();
        Ok(timeline)
    }

    /// Takes one record. `peaks` says where in `ledgers` the last peak of a process stands.
    fn take(&mut self, record: Record, peaks: &mut BTreeMap<u32, usize>) {
        match record {
            Record::Header(_) => {}
            Record::Process(start) => {
                if let Some(process) = self.process(start.process) {
                    process.start = start;
                }
            }
            Record::Exec(exec) => {
                if let Some(process) = self.process(exec.process) {
                    process.execs.push(exec);
                }
            }
            Record::Samples(block) => {
                if let Some(process) = self.process(block.process) {
                    block.runs().for_each(|run| process.add(&run));
                }
            }
            Record::Mark(mark) if self.marks.len() < MOST_MARKS => self.marks.push(*mark),
            Record::Mark(_) => {}
            Record::Ledger(ledger) => self.take_ledger(*ledger, peaks),
            Record::ProcessEnd(end) => {
                if let Some(process) = self.process(end.process) {
                    process.end = Some(end);
                }
            }
            Record::Caveat(caution) if self.caveats.len() < MOST_CAVEATS => self.caveats.push(caution.caveat),
            Record::Caveat(_) => {}
            Record::Beat(beat) => self.beat = beat,
            Record::End(end) => self.end = Some(*end),
        }
    }

    fn take_ledger(&mut self, ledger: Ledger, peaks: &mut BTreeMap<u32, usize>) {
        if ledger.moment == Moment::Peak
            && let Some(&at) = peaks.get(&ledger.process)
        {
            self.ledgers[at] = ledger;
            return;
        }
        if self.ledgers.len() >= MOST_LEDGERS {
            return;
        }
        if ledger.moment == Moment::Peak {
            peaks.insert(ledger.process, self.ledgers.len());
        }
        self.ledgers.push(ledger);
        self.thin_page_maps();
    }

    /// Keeps memory bounded: of too many page maps every second one goes, the first and the last stay.
    fn thin_page_maps(&mut self) {
        let with_map = |ledger: &&mut Ledger| ledger.explain.page_map.is_some();
        let count = self.ledgers.iter_mut().filter(with_map).count();
        if count > MOST_PAGE_MAPS {
            let others = self.ledgers.iter_mut().filter(with_map).enumerate();
            for (_, ledger) in others.filter(|(index, _)| index % 2 == 1 && index + 1 < count) {
                ledger.explain.page_map = None;
            }
        }
    }

    /// The process of this number, made where it is new and the recording is sane.
    fn process(&mut self, number: u32) -> Option<&mut Process> {
        let number = usize::try_from(number).ok().filter(|&number| number < MOST_PROCESSES)?;
        if number >= self.processes.len() {
            self.processes.resize_with(number + 1, Process::default);
        }
        self.processes.get_mut(number)
    }

    fn settle(&mut self) {
        self.marks.sort_by_key(|mark| mark.at_us);
        self.ledgers.sort_by_key(|ledger| ledger.at_us);
        if self.end.is_none() {
            let place = format!("{:.3} s", self.last_us() as f64 / 1e6);
            let text = "the recording has no end: strandline was killed, or is still recording";
            self.caveats.push(Caveat::new("recording_unfinished", place, None, text));
        }
    }

    /// The last instant that anything is known of, in microseconds.
    pub fn last_us(&self) -> u64 {
        let sampled = self.processes.iter().filter_map(|process| process.series.points().last());
        let sampled = sampled.map(|point| point.at_us).max().unwrap_or(0);
        let marked = self.marks.last().map_or(0, |mark| mark.at_us);
        let ended = self.end.as_ref().map_or(0, |end| end.at_us);
        sampled.max(marked).max(ended).max(self.beat.at_us)
    }

    /// How large RSS was at this ledger beside the most that the process ever had: 1 at its true peak.
    pub fn share_of_peak(&self, ledger: &Ledger) -> Option<f64> {
        let process = self.processes.get(usize::try_from(ledger.process).ok()?)?;
        let peak = process.high_water_kib().filter(|&kib| kib > 0)?.saturating_mul(1024);
        Some(ledger.explain.kernel.rss_bytes as f64 / peak as f64)
    }

    /// Instants that were sampled, and that were missed.
    pub fn counts(&self) -> (u64, u64) {
        match &self.end {
            Some(end) => (end.samples, end.missed),
            None => (self.beat.samples, self.beat.missed),
        }
    }
}

impl Process {
    fn add(&mut self, run: &Run) {
        self.samples = self.samples.saturating_add(run.count);
        self.series.add(run);
    }
}
