//! What one run showed: its figures, and what was really mapped in it.
//!
//! A batch run's recording and a server's ledgers come to the same [`Look`]. Where no ledger could be taken, the last
//! sample stands in, and the look says so.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use serde::{Deserialize, Serialize};
use strandline_inspect::facts::Explanation;
use strandline_recording::{Moment, Reader, Record};

use super::applies::Mapped;
use crate::lab::cell::{Figures, Outcome};

/// A program that frees what it has only to end does so within this time, in microseconds.
const LAST_MOMENTS_US: u64 = 50_000;
/// The most runs of samples of a process that are kept for its last moments.
const MOST_TAIL_RUNS: usize = 64;

/// Where a settled figure is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Instant {
    /// The ledger of the largest process as it ended.
    #[default]
    Exit,
    /// The last mark that the program told.
    Mark,
    /// The last sample, for want of a ledger.
    Sample,
    /// The ledgers of a server, after its load.
    Load,
}

/// What one run showed. `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Resident bytes that were left: of a batch run at the last mark it told, or else of its largest process as it
    /// ended; of a server after its load.
    pub settled_bytes: Option<u64>,
    /// The largest resident set of one of its processes.
    pub peak_bytes: Option<u64>,
    /// Seconds: from a batch run's start to its end, or that a server's load took.
    pub wall_seconds: Option<f64>,
    /// Page faults that needed no device.
    pub minor_faults: Option<u64>,
    /// The executable of the process that held most.
    pub executable: Option<String>,
    /// The allocators mapped in it.
    pub allocators: Vec<Mapped>,
    /// The runtimes in it, with their versions.
    pub runtimes: Vec<(String, Option<String>)>,
    /// The release of glibc, where glibc's malloc is in it.
    pub glibc: Option<String>,
    /// The bytes in transparent huge pages.
    pub huge_bytes: Option<u64>,
    /// Where `settled_bytes` is from.
    pub settled_at: Instant,
    /// The most that the largest process held in its last 50 ms, where it ended with less than four fifths of that:
    /// whether it gave the rest back, or only freed it to end, cannot be told.
    pub before_end_bytes: Option<u64>,
    /// Why it counts as failed, where its end does not say so.
    pub failure: Option<String>,
    /// What is to be known about it.
    pub notes: Vec<String>,
}

impl Look {
    /// The look at a batch run.
    pub fn of_outcome(outcome: &Outcome) -> Self {
        let Figures { wall_seconds, minor_faults, high_water_bytes, .. } = outcome.figures;
        let mut look = Self { wall_seconds, minor_faults, peak_bytes: high_water_bytes, ..Self::default() };
        let Some(recording) = &outcome.recording else { return look };
        look.take_recording(recording);
        look
    }

    /// Takes what the ledgers at the ends of its processes say.
    fn take_recording(&mut self, path: &Path) {
        let Ok(mut reader) = Reader::open(path) else { return };
        let mut tails: BTreeMap<u32, VecDeque<(u64, u64)>> = BTreeMap::new();
        let (mut largest, mut marked_kib) = (None, None);
        while let Ok(Some(record)) = reader.next_record() {
            match record {
                Record::Ledger(ledger) if ledger.moment == Moment::Exit => {
                    let rss = ledger.explain.kernel.rss_bytes;
                    if self.settled_bytes.is_none_or(|largest| rss > largest) {
                        self.settled_bytes = Some(rss);
                        largest = Some(ledger.process);
                        self.take_mapped(&ledger.explain);
                    }
                }
                Record::Mark(mark) => marked_kib = Some(mark.sample.rss_kib),
                Record::Samples(block) => {
                    let tail = tails.entry(block.process).or_default();
                    for run in block.runs().filter(|run| run.sample.rss_kib > 0) {
                        tail.push_back((run.end_us(), run.sample.rss_kib));
                        if tail.len() > MOST_TAIL_RUNS {
                            tail.pop_front();
                        }
                    }
                }
                _ => {}
            }
        }
        let bytes = |kib: u64| kib.saturating_mul(1024);
        if let Some(kib) = marked_kib {
            (self.settled_bytes, self.settled_at) = (Some(bytes(kib)), Instant::Mark);
        } else if let (Some(settled), Some(process)) = (self.settled_bytes, largest) {
            let before = tails.get(&process).and_then(most_at_end).map(bytes);
            self.before_end_bytes = before.filter(|&before| before / 5 * 4 > settled);
        } else {
            self.settled_bytes =
                tails.values().filter_map(|tail| tail.back()).map(|&(_, kib)| bytes(kib)).max();
            self.settled_at = Instant::Sample;
        }
    }

    /// Takes what is mapped in the process of `explain`.
    pub fn take_mapped(&mut self, explain: &Explanation) {
        self.executable.clone_from(&explain.target.executable);
        self.huge_bytes = Some(explain.kernel.huge_bytes);
        self.allocators = explain
            .allocators
            .iter()
            .map(|allocator| Mapped {
                name: allocator.name.clone(),
                inside_program: allocator.found_by.ends_with("the executable"),
            })
            .collect();
        self.runtimes =
            explain.runtimes.iter().map(|runtime| (runtime.name.clone(), runtime.version.clone())).collect();
        let glibc = explain.allocators.iter().find(|allocator| allocator.name == "glibc");
        self.glibc = glibc.and_then(|allocator| allocator.version.clone());
    }

    /// The look at a server, of its processes' ledgers.
    pub fn of_ledgers(ledgers: &[Explanation]) -> Self {
        let mut look = Self { settled_at: Instant::Load, ..Self::default() };
        let held = |explain: &Explanation| explain.kernel.pss_bytes.unwrap_or(explain.kernel.rss_bytes);
        let Some(largest) = ledgers.iter().max_by_key(|explain| held(explain)) else { return look };
        look.take_mapped(largest);
        look.settled_bytes = Some(ledgers.iter().map(held).fold(0, u64::saturating_add));
        look.peak_bytes = ledgers.iter().filter_map(|explain| explain.kernel.high_water_bytes).max();
        look.huge_bytes =
            Some(ledgers.iter().map(|explain| explain.kernel.huge_bytes).fold(0, u64::saturating_add));
        look
    }

    /// Whether the allocator `name` was mapped; `None` where nothing is known of what was.
    pub fn has_allocator(&self, name: &str) -> Option<bool> {
        let known = !self.allocators.is_empty() || self.executable.is_some();
        known.then(|| self.allocators.iter().any(|mapped| mapped.name == name))
    }

    /// The names of its allocators, for a person.
    pub fn allocator_names(&self) -> String {
        let names: Vec<&str> = self.allocators.iter().map(|mapped| mapped.name.as_str()).collect();
        if names.is_empty() { "none that is known".to_owned() } else { names.join(", ") }
    }
}

/// The most of the samples of the last moments.
fn most_at_end(tail: &VecDeque<(u64, u64)>) -> Option<u64> {
    let (end, _) = *tail.back()?;
    let late = tail.iter().filter(|(at, _)| at.saturating_add(LAST_MOMENTS_US) >= end);
    late.map(|&(_, kib)| kib).max()
}

#[cfg(test)]
mod tests {
    use strandline_inspect::facts::{Allocator, Kernel, Runtime, Target};

    use super::*;

    fn ledger(rss: u64, pss: Option<u64>, allocator: &str, found_by: &str) -> Explanation {
        Explanation {
            target: Target { executable: Some(format!("/bin/{rss}")), ..Target::default() },
            kernel: Kernel {
                rss_bytes: rss,
                pss_bytes: pss,
                huge_bytes: 1,
                high_water_bytes: Some(2 * rss),
                ..Kernel::default()
            },
            allocators: vec![Allocator {
                name: allocator.into(),
                version: Some("2.36".into()),
                found_by: found_by.into(),
                ..Allocator::default()
            }],
            runtimes: vec![Runtime { name: "perl".into(), ..Runtime::default() }],
            ..Explanation::default()
        }
    }

    #[test]
    fn a_tree_counts_shared_pages_once() {
        let ledgers = [
            ledger(100, Some(60), "glibc", "main_arena in libc.so.6"),
            ledger(90, Some(70), "jemalloc", "symbol mallctl of the executable"),
        ];
        let look = Look::of_ledgers(&ledgers);
        assert_eq!((look.settled_bytes, look.peak_bytes, look.huge_bytes), (Some(130), Some(200), Some(2)));
        assert_eq!(look.executable.as_deref(), Some("/bin/90"));
        assert!(look.allocators[0].inside_program);
        assert_eq!((look.has_allocator("jemalloc"), look.has_allocator("glibc")), (Some(true), Some(false)));
        assert_eq!(Look::default().has_allocator("glibc"), None);
        assert_eq!(Look::of_ledgers(&[]).settled_bytes, None);
        assert_eq!(Look::of_ledgers(&ledgers[..1]).glibc.as_deref(), Some("2.36"));
    }
}
