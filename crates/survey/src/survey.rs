//! All chosen processes at one moment: those with the most RSS one by one, the others summed; and
//! sums by control group.
//!
//! For a proportional set size the kernel walks page tables. So each survey reads these sizes of
//! the listed processes within a time limit, the oldest first, and keeps each until its next turn:
//! a minute later, or sooner if the process's memory changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use strandline_sys::spawn::Resource;

use crate::figures::{CachedFacts, Figures, Pss};
use crate::select::{FoundProcess, FoundProcesses, Key, Selection, unless_unread};

/// Default time limit for proportional set sizes in each survey: about 6 GiB of memory.
const MAX_PSS_TIME: Duration = Duration::from_millis(40);
/// Maximum number of control groups with their own sums; the others are summed.
pub const MAX_GROUPS: usize = 100;
/// Name of the sum of the others: paths start with a slash, so that no group has it.
pub const OTHER_GROUPS: &str = "other";

/// A process in a survey.
#[derive(Clone, Debug)]
pub struct ProcessFigures {
    /// Its identity.
    pub key: Key,
    /// Its parent's process id.
    pub parent: i32,
    /// Its name.
    pub name: String,
    /// Its control group, if known.
    pub group: Option<String>,
    /// The kernel's figures.
    pub figures: Figures,
    /// Its proportional set size.
    pub pss: Pss,
}

/// Sums of figures over several processes; `None` if one is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Number of processes.
    pub processes: u64,
    /// RSS; shared pages count for each.
    pub rss_bytes: u64,
    /// PSS; pages that only these processes share count once.
    pub pss_bytes: Option<u64>,
    /// Anonymous memory.
    pub anonymous_bytes: Option<u64>,
    /// Swapped-out memory.
    pub swap_bytes: Option<u64>,
}

impl Sum {
    /// The sum over no process.
    const ZERO: Self = Self {
        processes: 0,
        rss_bytes: 0,
        pss_bytes: Some(0),
        anonymous_bytes: Some(0),
        swap_bytes: Some(0),
    };

    fn add(&mut self, other: &Self) {
        let add_known = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        self.processes += other.processes;
        self.rss_bytes = self.rss_bytes.saturating_add(other.rss_bytes);
        self.pss_bytes = add_known(self.pss_bytes, other.pss_bytes);
        self.anonymous_bytes = add_known(self.anonymous_bytes, other.anonymous_bytes);
        self.swap_bytes = add_known(self.swap_bytes, other.swap_bytes);
    }

    /// The sum over one process.
    fn of_process(process: &ProcessFigures) -> Self {
        Self {
            processes: 1,
            rss_bytes: process.figures.rss_bytes,
            pss_bytes: process.pss.bytes(),
            anonymous_bytes: process.figures.anonymous_bytes,
            swap_bytes: process.figures.swap_bytes,
        }
    }
}

/// The sum over the processes of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSum {
    /// The path of the group, or [`OTHER_GROUPS`].
    pub path: String,
    /// The sum.
    pub sum: Sum,
}

/// All chosen processes at one moment.
#[derive(Debug)]
pub struct Survey {
    /// When it was taken.
    pub at: Instant,
    /// How long it took.
    pub duration: Duration,
    /// Those with the most RSS, in descending order.
    pub processes: Vec<ProcessFigures>,
    /// The sum of all others; `None` if each process is in `processes`.
    pub others: Option<Sum>,
    /// All of them by control group, sorted by path; the small groups as [`OTHER_GROUPS`].
    pub groups: Vec<GroupSum>,
    /// Number of groups in [`OTHER_GROUPS`].
    pub summed_groups: u64,
    /// Number of processes left out because their files cannot be read: /proc is mounted with
    /// hidepid=1 (2 hides them from this count too), or too many files are open (see
    /// [`raise_file_limit`]).
    pub unread_processes: u64,
}

/// A process with what is known of it.
struct KnownProcess {
    found: FoundProcess,
    facts: CachedFacts,
}

/// A survey is valid for this many times as long as it took, so that taking surveys uses at most a
/// hundredth of a processor for any number of readers; more only if one takes over 100 ms.
const VALID_TIMES: u32 = 100;
/// Minimum time for which a survey is valid.
const MIN_VALID: Duration = Duration::from_secs(1);
/// Maximum time for which a survey is valid, whatever it took.
const MAX_VALID: Duration = Duration::from_secs(10);

impl Survey {
    /// Whether it is still valid.
    pub fn is_valid(&self, now: Instant) -> bool {
        now.duration_since(self.at) <= (self.duration * VALID_TIMES).clamp(MIN_VALID, MAX_VALID)
    }
}

/// Raises this process's limit of open files as far as it may: a survey keeps the folder of each
/// process open, and the usual limit is 1,024.
pub fn raise_file_limit() {
    // Under the present limit, `Survey::unread_processes` counts what is left out.
    let _ = Resource::OpenFiles.raise();
}

/// Takes surveys, and caches what is slow to read.
#[derive(Debug)]
pub struct Surveyor {
    /// The processes of the last survey.
    cached_facts: HashMap<Key, CachedFacts>,
    /// Time limit for proportional set sizes in each survey.
    pub pss_time_limit: Duration,
}

impl Default for Surveyor {
    fn default() -> Self {
        Self { cached_facts: HashMap::new(), pss_time_limit: MAX_PSS_TIME }
    }
}

impl Surveyor {
    /// Takes a survey of the processes of `selection`, at most `max_listed` of them one by one.
    pub fn take(&mut self, selection: &Selection, max_listed: usize) -> Survey {
        let at = Instant::now();
        let mut cached = std::mem::take(&mut self.cached_facts);
        let FoundProcesses { processes: found_processes, unread: mut unread_processes } = selection.find();
        let refresh = |found: FoundProcess| {
            let facts = CachedFacts::refresh(&found, cached.remove(&found.key));
            Some(KnownProcess { facts: unless_unread(facts, &mut unread_processes)?, found })
        };
        let mut known: Vec<KnownProcess> = found_processes.into_iter().filter_map(refresh).collect();
        // Among equal sizes, the older comes first: a process with series keeps them.
        known.sort_by_key(|KnownProcess { found, facts }| {
            (Reverse(facts.figures.rss_bytes), found.key.start_ticks, found.key.pid)
        });
        let listed_count = known.len().min(max_listed);
        let (listed, unlisted) = known.split_at_mut(listed_count);
        read_pss(listed, self.pss_time_limit);
        forget_old_pss(unlisted);
        let mut processes = Vec::with_capacity(known.len());
        for KnownProcess { found, facts } in known {
            let CachedFacts { figures, pss, group, .. } = facts.clone();
            let FoundProcess { key, parent, name, .. } = found;
            processes.push(ProcessFigures { key, parent, name, group, figures, pss });
            self.cached_facts.insert(key, facts);
        }
        let mut groups = sums_by_group(&processes);
        let summed_groups = sum_small_groups(&mut groups);
        let unlisted = processes.split_off(listed_count);
        let others = (!unlisted.is_empty()).then(|| total(&unlisted));
        Survey { at, duration: at.elapsed(), processes, others, groups, summed_groups, unread_processes }
    }
}

/// Reads the proportional set sizes that may have changed, the oldest first, until `time_limit` is
/// over.
fn read_pss(processes: &mut [KnownProcess], time_limit: Duration) {
    let mut turns: Vec<_> =
        processes.iter_mut().filter_map(|process| Some((process.facts.pss_turn()?, process))).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    let started_at = Instant::now();
    for (_, KnownProcess { found, facts }) in turns {
        facts.pss = Pss::read(&found.process);
        if started_at.elapsed() >= time_limit {
            break;
        }
    }
}

/// Forgets the proportional set sizes that may have changed since they were read: the sizes of
/// processes that are no longer listed are not read again.
fn forget_old_pss(unlisted: &mut [KnownProcess]) {
    for KnownProcess { facts, .. } in unlisted.iter_mut().filter(|process| process.facts.pss_turn().is_some())
    {
        facts.pss = Pss::Unknown;
    }
}

/// The sum over `processes`.
fn total(processes: &[ProcessFigures]) -> Sum {
    let mut sum = Sum::ZERO;
    processes.iter().for_each(|process| sum.add(&Sum::of_process(process)));
    sum
}

/// Sums by control group, sorted by path. Processes of an unknown group are in none.
fn sums_by_group(processes: &[ProcessFigures]) -> Vec<GroupSum> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for process in processes {
        if let Some(group) = &process.group {
            sums.entry(group).or_insert(Sum::ZERO).add(&Sum::of_process(process));
        }
    }
    sums.into_iter().map(|(path, sum)| GroupSum { path: path.to_owned(), sum }).collect()
}

/// Sums the smallest of more than [`MAX_GROUPS`] groups as [`OTHER_GROUPS`], after the others;
/// returns the number of summed groups.
fn sum_small_groups(groups: &mut Vec<GroupSum>) -> u64 {
    groups.sort_by_key(|group| Reverse(group.sum.rss_bytes));
    let small_groups = groups.split_off(groups.len().min(MAX_GROUPS));
    groups.sort_by(|a, b| a.path.cmp(&b.path));
    if !small_groups.is_empty() {
        let mut sum = Sum::ZERO;
        small_groups.iter().for_each(|group| sum.add(&group.sum));
        groups.push(GroupSum { path: OTHER_GROUPS.to_owned(), sum });
    }
    small_groups.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, group: &str, rss_bytes: u64, pss: Pss) -> ProcessFigures {
        let figures =
            Figures { rss_bytes, anonymous_bytes: Some(1), swap_bytes: Some(0), ..Figures::default() };
        let key = Key { pid, start_ticks: 1 };
        ProcessFigures { key, parent: 1, name: "x".to_owned(), group: Some(group.to_owned()), figures, pss }
    }

    #[test]
    fn small_groups_are_summed_and_nothing_is_lost() {
        let processes: Vec<ProcessFigures> = (0..150)
            .map(|n| process(n, &format!("/{n}"), n as u64, Pss::Read { bytes: 1, at: Instant::now() }))
            .collect();
        let mut groups = sums_by_group(&processes);
        assert_eq!(sum_small_groups(&mut groups), 50);
        assert_eq!(groups.len(), MAX_GROUPS + 1);
        let GroupSum { path, sum } = groups.last().unwrap();
        assert_eq!((path.as_str(), sum.processes, sum.rss_bytes), ("other", 50, (0..50).sum()));
        assert_eq!(groups.iter().map(|group| group.sum.rss_bytes).sum::<u64>(), (0u64..150).sum::<u64>());
    }

    #[test]
    fn a_sum_with_an_unknown_is_unknown() {
        let sum = total(&[
            process(1, "/", 5, Pss::Read { bytes: 3, at: Instant::now() }),
            process(2, "/", 6, Pss::NotAllowed),
        ]);
        assert_eq!((sum.rss_bytes, sum.pss_bytes, sum.anonymous_bytes), (11, None, Some(2)));
    }

    #[test]
    fn the_old_pss_of_an_unlisted_process_is_forgotten() {
        let own_pid = std::process::id().cast_signed();
        let request = crate::select::SelectionRequest { pids: vec![own_pid], ..Default::default() };
        let (own, mut surveyor) = (Selection::new(request).unwrap(), Surveyor::default());
        surveyor.pss_time_limit = Duration::from_secs(60);
        assert!(surveyor.take(&own, 1).processes[0].pss.bytes().is_some());
        // Changes statm.
        let touched = vec![1_u8; 8 << 20];
        assert_eq!(surveyor.take(&own, 0).others.unwrap().pss_bytes, None);
        drop(std::hint::black_box(touched));
    }

    #[test]
    fn the_largest_are_shown_and_the_others_summed() {
        let all = Selection::new(crate::select::SelectionRequest { selects_all: true, ..Default::default() })
            .unwrap();
        let survey = Surveyor::default().take(&all, 1);
        assert_eq!(survey.processes.len(), 1);
        let largest_bytes = survey.processes[0].figures.rss_bytes;
        let others = survey.others;
        assert!(
            largest_bytes > 0
                && others.is_none_or(|others| others.rss_bytes <= largest_bytes * others.processes)
        );
    }
}
