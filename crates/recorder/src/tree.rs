//! The processes that are followed: the first one and its descendants.
//!
//! Forks, execs and ends are heard of from the kernel's process connector where that is allowed, and looked for
//! in /proc where it is not: then children that come and go between two looks are not seen.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use strandline_process::procfs::Process;
use strandline_recording::{Run, Sample};
use strandline_sys::connector::{Connector, Event};

use super::sampler::Sampler;

/// How often /proc is searched for new children where nobody tells of them.
pub const SEARCH_EVERY: Duration = Duration::from_millis(10);
/// How long a process counts as young.
const YOUNG: Duration = Duration::from_secs(1);
/// Threads of a process that are asked for their children.
const MAX_TASKS: usize = 64;

/// How new processes are learnt of.
#[derive(Debug)]
pub enum Followed {
    /// The kernel tells.
    Connector(Connector),
    /// They are searched for; and why.
    Polling(String),
}

impl Followed {
    /// The best way there is.
    pub fn best() -> Self {
        // The connector tells everybody the ids of the first namespace, whose number never changes (Linux 3.8).
        let own = std::fs::read_link("/proc/self/ns/pid");
        if !own.is_ok_and(|own| own.as_os_str() == "pid:[4026531836]") {
            return Self::Polling("in a pid namespace the kernel does not tell of processes".to_owned());
        }
        match Connector::open() {
            Ok(connector) => Self::Connector(connector),
            Err(error) => Self::Polling(format!("the kernel's process connector cannot be used ({error})")),
        }
    }

    /// As the recording's header names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Connector(_) => "connector",
            Self::Polling(_) => "polling",
        }
    }
}

/// What an exec changes: tells programs of one process apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The executable's device and inode: its path changes when the file is replaced.
    file: (u64, u64),
    /// Where the kernel put its random bytes: there when the exec is all but done, then constant.
    random_address: u64,
}

impl Program {
    /// The program that a process runs now; `None` during an exec, and where this user may not see it, as after a change of user.
    pub fn of(process: &Process) -> Option<Self> {
        let random_address = process.start_facts()?.random_address;
        let file = std::fs::metadata(format!("/proc/{}/exe", process.pid())).ok()?;
        // Both are of one program, if no exec came between.
        let is_one = process.start_facts()?.random_address == random_address;
        is_one.then(|| Self { file: (file.dev(), file.ino()), random_address })
    }
}

/// One process that is followed.
#[derive(Debug)]
pub struct Member {
    /// Its number in the recording, once it is in it.
    pub number: Option<u32>,
    /// Its parent.
    pub parent: Option<i32>,
    /// When it was first heard of.
    pub since_us: u64,
    /// Its files, once they were opened.
    pub sampler: Option<Sampler>,
    /// Whether its command line is to be read.
    pub is_new_program: bool,
    /// The program whose command line was read.
    pub program: Option<Program>,
    /// The run under way, and those before it that were not written yet.
    pub run: Option<Run>,
    /// See `run`.
    pub runs: Vec<Run>,
    /// Whether it told a mark before, and about itself.
    pub is_teller: bool,
    /// Its last sample.
    pub last: Option<Sample>,
    /// Whether it is, or was tried to be, watched for its end.
    pub is_watched: bool,
    /// Its threads, for its watcher.
    pub threads: Arc<AtomicU64>,
    /// Its RSS at its last ledger at a peak.
    pub peak_kib: u64,
    /// Before when no regular ledger is taken.
    pub no_regular_before_us: u64,
    /// Whether a ledger of it is under way that nobody waits for.
    pub is_looked_at: bool,
    /// Whether its files have nothing to say any more.
    pub is_gone: bool,
    /// Since when.
    pub gone_us: u64,
    /// VmHWM as last sampled, once its files are closed.
    closed_kib: Option<u64>,
    /// VmHWM as its watcher read it at its end.
    pub final_kib: Option<u64>,
    /// Since when it stands in a tracer's stop.
    pub stands_since_us: Option<u64>,
}

impl Member {
    fn new(parent: Option<i32>, since_us: u64) -> Self {
        Self {
            number: None,
            parent,
            since_us,
            sampler: None,
            is_new_program: true,
            program: None,
            run: None,
            runs: Vec::new(),
            is_teller: false,
            last: None,
            is_watched: false,
            threads: Arc::new(AtomicU64::new(1)),
            peak_kib: 0,
            no_regular_before_us: 0,
            is_looked_at: false,
            is_gone: false,
            gone_us: 0,
            closed_kib: None,
            final_kib: None,
            stands_since_us: None,
        }
    }

    /// Adds a sample: to the run under way if it says the same.
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

    /// The runs that were not written yet; the one under way ends.
    pub fn take_runs(&mut self) -> Vec<Run> {
        self.runs.extend(self.run.take());
        std::mem::take(&mut self.runs)
    }

    /// Its files have nothing to say any more.
    pub fn close(&mut self, now_us: u64) {
        self.gone_us = now_us;
        self.closed_kib = self.high_water_kib();
        self.is_gone = true;
        self.sampler = None;
    }

    /// VmHWM as last sampled.
    pub fn high_water_kib(&self) -> Option<u64> {
        self.sampler.as_ref().map_or(self.closed_kib, Sampler::high_water_kib)
    }

    /// Whether it had more than one thread when it was last sampled.
    pub fn has_others(&self) -> bool {
        self.threads.load(std::sync::atomic::Ordering::Relaxed) > 1
    }

    /// RSS as last sampled, in KiB.
    pub fn rss_kib(&self) -> u64 {
        self.sampler.as_ref().map_or(0, |sampler| sampler.last().rss_kib)
    }
}

/// A process that is not followed any more.
#[derive(Debug)]
pub struct Left {
    /// Its id.
    pub pid: i32,
    /// As `wait` reports it, where it is known.
    pub wait_status: Option<i32>,
    /// What was known of it.
    pub member: Member,
}

/// The processes that are followed.
#[derive(Debug, Default)]
pub struct Tree {
    members: HashMap<i32, Member>,
    /// Their ids in the order in which they came.
    order: Vec<i32>,
    /// When old processes are next asked for their program.
    next_programs_us: u64,
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
    pub fn remove(&mut self, pid: i32, wait_status: Option<i32>) -> Option<Left> {
        let member = self.members.remove(&pid)?;
        self.order.retain(|&other| other != pid);
        Some(Left { pid, wait_status, member })
    }

    /// A process that is followed.
    pub fn get_mut(&mut self, pid: i32) -> Option<&mut Member> {
        self.members.get_mut(&pid)
    }

    /// Whether `pid` is followed.
    pub fn has(&self, pid: i32) -> bool {
        self.members.contains_key(&pid)
    }

    /// The ids of all, oldest first.
    pub fn pids(&self) -> &[i32] {
        &self.order
    }

    /// All of them.
    pub fn members(&self) -> impl Iterator<Item = (i32, &Member)> {
        self.order.iter().filter_map(|pid| Some((*pid, self.members.get(pid)?)))
    }

    /// The process of this number in the recording.
    pub fn numbered(&mut self, number: u32) -> Option<(i32, &mut Member)> {
        let found = self.members.iter_mut().find(|(_, member)| member.number == Some(number));
        found.map(|(pid, member)| (*pid, member))
    }

    /// The sum of all RSS, in KiB: what they share counts for each.
    pub fn rss_kib(&self) -> u64 {
        self.members.values().map(Member::rss_kib).sum()
    }

    /// Takes in what the kernel told since the last time; returns those that ended. False where something was
    /// missed: search then.
    pub fn hear(&mut self, connector: &Connector, now_us: u64, left: &mut Vec<Left>) -> bool {
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
                // The kernel tells of the main thread's end, whose threads may run on.
                Ok(Some(Event::Exit { pid, .. })) if self.runs_on(pid) => {}
                Ok(Some(Event::Exit { pid, wait_status })) => {
                    left.extend(self.remove(pid, Some(wait_status)));
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Whether a process whose main thread has ended has others that have not.
    fn runs_on(&self, pid: i32) -> bool {
        let has_others = self.members.get(&pid).is_some_and(Member::has_others);
        let Some(process) = Process::open(pid).ok().filter(|_| has_others) else { return false };
        let lives =
            |tid: i32| process.task_stat(tid).is_ok_and(|stat| !matches!(stat.state, Some('Z' | 'X')));
        process.tasks().unwrap_or_default().into_iter().take(MAX_TASKS).any(|tid| tid != pid && lives(tid))
    }

    /// Searches /proc for children of those that are followed.
    pub fn search(&mut self, now_us: u64) {
        let mut next = 0;
        // Children that are found are asked for theirs in the same search.
        while let Some(&pid) = self.order.get(next) {
            next += 1;
            for child in children(pid) {
                self.add(child, Some(pid), now_us);
            }
        }
    }
}

impl Tree {
    /// Finds which processes run another program than before, where the kernel does not report it: the young ones at each
    /// call, as an exec mostly follows a fork, the others once a second.
    pub fn find_new_programs(&mut self, now_us: u64) {
        let asks_all = now_us >= self.next_programs_us;
        if asks_all {
            self.next_programs_us = now_us + YOUNG.as_micros() as u64;
        }
        for (pid, member) in &mut self.members {
            let is_young = now_us.saturating_sub(member.since_us) < YOUNG.as_micros() as u64;
            if member.number.is_some() && !member.is_new_program && (asks_all || is_young) {
                let program = Process::open(*pid).ok().and_then(|process| Program::of(&process));
                member.is_new_program =
                    member.program.is_some() && program.is_some() && program != member.program;
                member.program = member.program.take().or(program);
            }
        }
    }
}

/// The children of a process, by /proc/PID/task/TID/children; none where the kernel does not have that.
fn children(pid: i32) -> Vec<i32> {
    let Ok(process) = Process::open(pid) else { return Vec::new() };
    let tasks = process.tasks().unwrap_or_default();
    let of = |tid: i32| {
        let text = process.read_file(&format!("task/{tid}/children"), 1 << 20).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>()
    };
    tasks.into_iter().take(MAX_TASKS).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_whose_file_is_removed_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sleep");
        let copied = std::process::Command::new("cp").arg("/bin/sleep").arg(&path).status().unwrap();
        assert!(copied.success());
        let mut child = std::process::Command::new(&path).arg("1000").spawn().unwrap();
        let process = Process::open(child.id() as i32).unwrap();
        // The child's exec may still be under way.
        let before = loop {
            if let Some(program) = Program::of(&process) {
                break program;
            }
        };
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Program::of(&process), Some(before));
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
        let sleep = tree.pids()[1];
        assert_eq!(tree.get_mut(sleep).unwrap().parent, Some(child.id() as i32));
        strandline_sys::signal::send(sleep, 9).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
