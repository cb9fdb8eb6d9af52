//! The processes that are followed: the first one and its descendants.
//!
//! Forks, execs and ends come from the kernel's process connector if that is allowed. Otherwise
//! /proc is searched, and children that come and go between two searches are missed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use strandline_process::procfs::Process;
use strandline_recording::{Run, Sample};
use strandline_sys::connector::{Connector, Event};

use super::sampler::Sampler;

/// Interval of searching /proc for new children if the kernel does not report them.
pub const SEARCH_EVERY: Duration = Duration::from_millis(10);
/// How long a process counts as young.
const YOUNG: Duration = Duration::from_secs(1);
/// Maximum number of threads of a process that one look at it covers.
const MAX_TASKS: usize = 64;
/// Those among them that are the oldest; and as many others, in turn.
const PART: usize = MAX_TASKS / 2;
/// Minimum number of searches for children after the kernel has dropped events.
const MIN_SEARCHES_AFTER_LOSS: u64 = 32;
/// The same maximum: each search lists all threads.
const MAX_SEARCHES_AFTER_LOSS: u64 = 256;
/// Maximum number of attempts to list the threads of a process while they change.
const MAX_LISTS: u32 = 10;

/// How new processes are found.
#[derive(Debug)]
pub enum ProcessEvents {
    /// The kernel reports them.
    Connector(Connector),
    /// /proc is searched, and why.
    Polling(String),
}

impl ProcessEvents {
    /// The best method available.
    pub fn best() -> Self {
        // The connector reports the ids of the first namespace, whose number never changes (Linux
        // 3.8).
        let own_namespace = std::fs::read_link("/proc/self/ns/pid");
        if !own_namespace.is_ok_and(|link| link.as_os_str() == "pid:[4026531836]") {
            return Self::Polling("in a pid namespace the kernel does not report processes".to_owned());
        }
        match Connector::open() {
            Ok(connector) => Self::Connector(connector),
            Err(error) => Self::Polling(format!("the kernel's process connector cannot be used ({error})")),
        }
    }

    /// Its name in the header of the recording.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connector(_) => "connector",
            Self::Polling(_) => "polling",
        }
    }

    /// Which processes are not seen, and why; `None` if all are.
    pub fn unseen(&self) -> Option<String> {
        let Self::Polling(reason) = self else { return None };
        Some(format!(
            "{reason}: processes that live for less than {SEARCH_EVERY:?} are not seen, nor some that live longer if their parent \
             has more than {MAX_TASKS} threads"
        ))
    }
}

/// What an exec changes: distinguishes the programs that one process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The executable, whose path changes when the file is replaced.
    device: u64,
    inode: u64,
    /// Address of the random bytes that the kernel places (AT_RANDOM): set near the end of an exec,
    /// then constant.
    random_address: u64,
}

impl Program {
    /// The program that a process runs now; `None` during an exec, or if this user may not see it,
    /// as after a change of user.
    pub fn of(process: &Process) -> Option<Self> {
        let random_address = process.start_facts()?.random_address;
        let file = std::fs::metadata(format!("/proc/{}/exe", process.pid())).ok()?;
        // Both belong to the same program if no exec happened in between.
        let is_unchanged = process.start_facts()?.random_address == random_address;
        is_unchanged.then(|| Self { device: file.dev(), inode: file.ino(), random_address })
    }
}

/// A process that is followed.
#[derive(Debug)]
pub struct Member {
    /// Its number in the recording, once it has one.
    pub number: Option<u32>,
    pub parent: Option<i32>,
    /// When it was first noticed.
    pub first_seen_us: u64,
    /// Its files, once opened.
    pub sampler: Option<Sampler>,
    /// Whether its command line has to be read.
    pub is_new_program: bool,
    /// The program whose command line was read.
    pub program: Option<Program>,
    /// The current run.
    pub run: Option<Run>,
    /// Earlier runs that were not written yet.
    pub runs: Vec<Run>,
    /// Whether it has reported a mark about itself before.
    pub reports_marks: bool,
    /// Its last sample.
    pub last: Option<Sample>,
    /// Whether its end is watched for, or an attempt to watch it has failed.
    pub is_watched: bool,
    /// Whether it counts as one of the watched descendants.
    pub has_watch: bool,
    /// Number of its threads, for its watcher.
    pub threads: Arc<AtomicU64>,
    /// RSS at its last ledger at a peak.
    pub peak_kib: u64,
    /// Whether a ledger at a peak has failed.
    pub has_failed_peak: bool,
    /// Time before which no regular ledger is taken.
    pub no_regular_before_us: u64,
    /// Whether a ledger for which no program waits is unfinished.
    pub has_pending_ledger: bool,
    /// When its files were closed because they had no content any more.
    pub files_closed_us: Option<u64>,
    /// VmHWM as last sampled, once its files are closed.
    closed_kib: Option<u64>,
    /// VmHWM as its watcher read it at its end.
    pub final_kib: Option<u64>,
    /// Since when it is in a tracer's stop.
    pub stopped_since_us: Option<u64>,
}

impl Member {
    fn new(parent: Option<i32>, first_seen_us: u64) -> Self {
        Self {
            number: None,
            parent,
            first_seen_us,
            sampler: None,
            is_new_program: true,
            program: None,
            run: None,
            runs: Vec::new(),
            reports_marks: false,
            last: None,
            is_watched: false,
            has_watch: false,
            threads: Arc::new(AtomicU64::new(1)),
            peak_kib: 0,
            has_failed_peak: false,
            no_regular_before_us: 0,
            has_pending_ledger: false,
            files_closed_us: None,
            closed_kib: None,
            final_kib: None,
            stopped_since_us: None,
        }
    }

    /// Adds a sample: to the current run if it is equal.
    pub fn add(&mut self, at_us: u64, sample: Sample) {
        self.last = Some(sample);
        match &mut self.run {
            Some(run) if run.sample == sample => {
                run.count += 1;
                run.span_us = at_us.saturating_sub(run.at_us);
            }
            run => self.runs.extend(run.replace(Run { at_us, span_us: 0, count: 1, sample })),
        }
    }

    /// Ends the current run and returns all runs that were not written yet.
    pub fn take_runs(&mut self) -> Vec<Run> {
        self.runs.extend(self.run.take());
        std::mem::take(&mut self.runs)
    }

    /// Closes the files, which have no content any more.
    pub fn close(&mut self, now_us: u64) {
        self.closed_kib = self.high_water_kib();
        self.files_closed_us = Some(now_us);
        self.sampler = None;
    }

    /// VmHWM as last sampled.
    pub fn high_water_kib(&self) -> Option<u64> {
        self.sampler.as_ref().map_or(self.closed_kib, Sampler::high_water_kib)
    }

    /// RSS as last sampled, in KiB.
    pub fn rss_kib(&self) -> u64 {
        self.sampler.as_ref().map_or(0, |sampler| sampler.last().rss_kib)
    }
}

/// A process that is no longer followed.
#[derive(Debug)]
pub struct Departed {
    pub pid: i32,
    /// Wait status, if known.
    pub wait_status: Option<i32>,
    pub member: Member,
}

/// The processes that are followed.
#[derive(Debug, Default)]
pub struct Tree {
    members: HashMap<i32, Member>,
    /// Process ids in order of arrival.
    order: Vec<i32>,
    /// When old processes are next checked for a new program.
    next_programs_us: u64,
    /// Number of searches of a part of the threads.
    searches: usize,
}

impl Tree {
    /// Follows `pid` from now on.
    pub fn add(&mut self, pid: i32, parent: Option<i32>, now_us: u64) -> &mut Member {
        let order = &mut self.order;
        self.members.entry(pid).or_insert_with(|| {
            order.push(pid);
            Member::new(parent, now_us)
        })
    }

    /// Stops following `pid`.
    pub fn remove(&mut self, pid: i32, wait_status: Option<i32>) -> Option<Departed> {
        let member = self.members.remove(&pid)?;
        self.order.retain(|&other| other != pid);
        Some(Departed { pid, wait_status, member })
    }

    pub fn get(&self, pid: i32) -> Option<&Member> {
        self.members.get(&pid)
    }

    pub fn get_mut(&mut self, pid: i32) -> Option<&mut Member> {
        self.members.get_mut(&pid)
    }

    pub fn has(&self, pid: i32) -> bool {
        self.members.contains_key(&pid)
    }

    /// All process ids, oldest first.
    pub fn pids(&self) -> &[i32] {
        &self.order
    }

    pub fn members(&self) -> impl Iterator<Item = (i32, &Member)> {
        self.order.iter().filter_map(|pid| Some((*pid, self.members.get(pid)?)))
    }

    /// The process with this number in the recording.
    pub fn numbered(&mut self, number: u32) -> Option<&mut Member> {
        self.members.values_mut().find(|member| member.number == Some(number))
    }

    /// The sum of all RSS, in KiB; shared pages count for each process.
    pub fn rss_kib(&self) -> u64 {
        self.members.values().map(Member::rss_kib).sum()
    }

    /// Handles the kernel's events since the last call, and adds ended processes to `departed`.
    /// False if events were lost: a search is needed then.
    pub fn read_events(&mut self, connector: &Connector, now_us: u64, departed: &mut Vec<Departed>) -> bool {
        loop {
            match connector.next() {
                Ok(Some(Event::Fork { parent, child })) if self.has(parent) => {
                    self.add(child, Some(parent), now_us);
                }
                Ok(Some(Event::Exec { pid })) => {
                    if let Some(member) = self.get_mut(pid) {
                        member.is_new_program = true;
                    }
                }
                // The kernel reports the end of the main thread; other threads may run on.
                Ok(Some(Event::Exit { pid, .. })) if self.has(pid) && is_running(pid) => {}
                Ok(Some(Event::Exit { pid, wait_status })) => {
                    departed.extend(self.remove(pid, Some(wait_status)));
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Searches /proc for children of the processes that are followed. Of a process with more than
    /// `MAX_TASKS` threads, a search covers the oldest ones, and others in turn.
    pub fn search(&mut self, now_us: u64) {
        self.searches = self.searches.wrapping_add(1);
        let turn = self.searches;
        self.add_children(now_us, |tids| threads_of_turn(tids, turn));
    }

    /// Number of searches after the kernel has dropped events: together they cover all threads of
    /// processes with at most `PART * MAX_SEARCHES_AFTER_LOSS` of them.
    pub fn searches_after_loss(&self) -> u64 {
        let most = self.members.values().map(|member| member.threads.load(Ordering::Relaxed)).max();
        (most.unwrap_or(0) / PART as u64 + 1).clamp(MIN_SEARCHES_AFTER_LOSS, MAX_SEARCHES_AFTER_LOSS)
    }

    /// Searches for the children of all threads.
    pub fn search_all(&mut self, now_us: u64) {
        self.add_children(now_us, <[i32]>::to_vec);
    }

    /// Adds the children of those threads of each process that `choose` takes.
    fn add_children(&mut self, now_us: u64, choose: impl Fn(&[i32]) -> Vec<i32>) {
        let mut next = 0;
        // Children found here are searched as well.
        while let Some(&pid) = self.order.get(next) {
            next += 1;
            for child in children(pid, &choose) {
                self.add(child, Some(pid), now_us);
            }
        }
    }

    /// Finds processes that run a new program, if the kernel does not report it: young processes at
    /// each call, because an exec mostly follows a fork, the others once a second.
    pub fn find_new_programs(&mut self, now_us: u64) {
        let checks_all = now_us >= self.next_programs_us;
        if checks_all {
            self.next_programs_us = now_us + YOUNG.as_micros() as u64;
        }
        for (pid, member) in &mut self.members {
            let is_young = now_us.saturating_sub(member.first_seen_us) < YOUNG.as_micros() as u64;
            if member.number.is_some() && !member.is_new_program && (checks_all || is_young) {
                let program = Process::open(*pid).ok().and_then(|process| Program::of(&process));
                member.is_new_program =
                    member.program.is_some() && program.is_some() && program != member.program;
                member.program = member.program.take().or(program);
            }
        }
    }
}

/// Returns up to `MAX_TASKS` of the threads: half of them the oldest, the others in turn.
fn threads_of_turn(tids: &[i32], turn: usize) -> Vec<i32> {
    let (oldest, others) = tids.split_at(tids.len().min(PART));
    let start = turn.wrapping_mul(PART) % others.len().max(1);
    let others = others.iter().cycle().skip(start).take(others.len().min(PART));
    oldest.iter().chain(others).copied().collect()
}

/// The children of those threads of a process that `choose` takes, from
/// /proc/PID/task/TID/children; empty if the kernel lacks that file.
fn children(pid: i32, choose: &impl Fn(&[i32]) -> Vec<i32>) -> Vec<i32> {
    let Ok(process) = Process::open(pid) else { return Vec::new() };
    let tasks = process.tasks().unwrap_or_default();
    let children_of_task = |tid: i32| {
        let text = process.read_file(&format!("task/{tid}/children"), 1 << 20).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>()
    };
    choose(&tasks).into_iter().flat_map(children_of_task).collect()
}

/// Whether a process whose main thread has ended is still running: it has other live threads,
/// or one of them has replaced the program (execve) and is the main thread now.
pub fn is_running(pid: i32) -> bool {
    let Ok(process) = Process::open(pid) else { return false };
    let is_thread_running = |tid: i32| match process.task_stat(tid) {
        // Another thread may have taken the main thread's place (execve).
        Ok(stat) if tid == pid => stat.is_alive(),
        Ok(stat) => !matches!(stat.state, Some('Z' | 'X')),
        Err(_) => false,
    };
    for _ in 0..MAX_LISTS {
        let tids = process.tasks().unwrap_or_default();
        if tids.iter().take(MAX_TASKS).any(|&tid| is_thread_running(tid)) {
            return true;
        }
        // A thread that has disappeared may have taken the main thread's place.
        let is_changed = tids.iter().take(MAX_TASKS).any(|&tid| process.task_stat(tid).is_err());
        if !is_changed && process.lists_all(&tids) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_removed_file_is_recognised() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sleep");
        let copied = std::process::Command::new("cp").arg("/bin/sleep").arg(&path).status().unwrap();
        assert!(copied.success());
        let mut child = std::process::Command::new(&path).arg("1000").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        // The child's exec may still be under way; before it, the child has the program of this
        // process.
        let own = Program::of(&Process::open(std::process::id() as i32).unwrap());
        let before = loop {
            let program = Program::of(&process);
            if program.is_some() && program != own {
                break program;
            }
            std::thread::yield_now();
        };
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Program::of(&process), before);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn equal_samples_are_one_run() {
        let mut member = Member::new(None, 0);
        let sample = |rss_kib| Sample { rss_kib, ..Sample::default() };
        for (at, rss) in [(0, 4), (1000, 4), (2001, 4), (3000, 8)] {
            member.add(at, sample(rss));
        }
        let runs = member.take_runs();
        assert_eq!(runs.len(), 2);
        assert_eq!((runs[0].count, runs[0].span_us, runs[0].at_us), (3, 2001, 0));
        assert!(member.take_runs().is_empty());
    }

    #[test]
    fn searches_reach_all_threads_in_turn() {
        let tids: Vec<i32> = (0..1000).collect();
        let mut reached = std::collections::BTreeSet::new();
        for turn in usize::MAX - 3..=usize::MAX {
            assert!(threads_of_turn(&tids, turn).starts_with(&tids[..32]));
        }
        for turn in 0..31 {
            let part = threads_of_turn(&tids, turn);
            assert_eq!(part.len(), 64);
            reached.extend(part);
        }
        assert!(reached.into_iter().eq(tids));
        assert_eq!(threads_of_turn(&[7, 8], 5), [7, 8]);
    }

    #[test]
    fn searches_after_a_loss_reach_all_threads() {
        let tids: Vec<i32> = (0..5000).collect();
        let mut tree = Tree::default();
        tree.add(7, None, 0).threads.store(5000, Ordering::Relaxed);
        let turns = 0..tree.searches_after_loss() as usize;
        let reached: std::collections::BTreeSet<i32> =
            turns.flat_map(|turn| threads_of_turn(&tids, turn)).collect();
        assert!(reached.into_iter().eq(tids));
    }

    #[test]
    fn grandchildren_are_found_in_proc() {
        let mut child = std::process::Command::new("sh");
        let child = child.args(["-c", "sleep 60 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut line = [0; 1];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let mut tree = Tree::default();
        tree.add(child.id() as i32, None, 0);
        tree.search(5);
        assert_eq!(tree.pids().len(), 2);
        tree.search_all(6);
        assert_eq!(tree.pids().len(), 2);
        let sleep = tree.pids()[1];
        assert_eq!(tree.get_mut(sleep).unwrap().parent, Some(child.id() as i32));
        strandline_sys::signal::send(sleep, 9).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
