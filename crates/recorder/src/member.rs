//! One process that is followed: the program that it runs, its samples that were not written yet,
//! and the state of its watch and its ledgers.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use strandline_process::procfs::Process;
use strandline_recording::{Run, Sample};

use super::sampler::Sampler;

/// What an exec changes: distinguishes the programs that one process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Device of the executable. Its path would not do: that of a removed file changes.
    device: u64,
    /// Inode of the executable.
    inode: u64,
    /// Address of the random bytes that the kernel places (AT_RANDOM; fs/binfmt_elf.c,
    /// create_elf_tables): set near the end of an exec, then constant.
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
    /// Its number in the recording, once its files were opened.
    pub number: Option<u32>,
    /// Its parent's process id, if known.
    pub parent: Option<i32>,
    /// When it was first noticed.
    pub first_seen_us: u64,
    /// Its files, while they are open.
    pub sampler: Option<Sampler>,
    /// When its files were closed because they had no content any more, or could not be opened.
    pub files_closed_us: Option<u64>,
    /// Number of its threads, shared with the thread that watches it.
    pub threads: Arc<AtomicU64>,
    /// Whether its command line has to be read.
    pub is_new_program: bool,
    /// The program whose command line was read.
    pub program: Option<Program>,
    /// Whether it has reported a mark about itself before.
    pub reports_marks: bool,
    /// When it was first sampled in the tracer's stop that it is in.
    pub stopped_since_us: Option<u64>,
    /// Its last sample, also after its files were closed.
    pub last_sample: Option<Sample>,
    /// The highest sampled RSS.
    sampled_peak_kib: Option<u64>,
    /// VmHWM as last sampled, once its files are closed.
    high_water_at_close_kib: Option<u64>,
    /// VmHWM as its watcher read it at its end.
    pub final_high_water_kib: Option<u64>,
    runs: PendingRuns,
    /// The watch for its end.
    pub watch: MemberWatch,
    /// Its ledgers at peaks and at intervals.
    pub ledgers: MemberLedgers,
}

/// The samples of a process that were not written yet.
#[derive(Debug, Default)]
struct PendingRuns {
    /// The run to which equal samples are added.
    current: Option<Run>,
    /// Earlier runs.
    finished: Vec<Run>,
}

/// The watch for the end of a process.
#[derive(Debug, Default)]
pub struct MemberWatch {
    /// Whether it was requested, also if that was refused.
    pub is_requested: bool,
    /// Whether the process counts as one of the watched descendants.
    pub is_counted: bool,
}

/// The ledgers of a process for which no program waits.
#[derive(Debug, Default)]
pub struct MemberLedgers {
    /// Highest RSS at an earlier ledger, or an attempt at one: the next peak has to exceed it.
    pub peak_kib: u64,
    /// Whether one at a peak has failed.
    pub has_failed_peak: bool,
    /// Time before which no regular one is taken.
    pub no_regular_before_us: u64,
    /// Whether one is unfinished.
    pub has_pending: bool,
}

impl Member {
    /// A process that was noticed at `first_seen_us`.
    pub fn new(parent: Option<i32>, first_seen_us: u64) -> Self {
        Self {
            number: None,
            parent,
            first_seen_us,
            sampler: None,
            files_closed_us: None,
            threads: Arc::new(AtomicU64::new(1)),
            is_new_program: true,
            program: None,
            reports_marks: false,
            stopped_since_us: None,
            last_sample: None,
            sampled_peak_kib: None,
            high_water_at_close_kib: None,
            final_high_water_kib: None,
            runs: PendingRuns::default(),
            watch: MemberWatch::default(),
            ledgers: MemberLedgers::default(),
        }
    }

    /// Whether it runs `program` now and its command line is of another one. If none was known, the
    /// command line was read during an exec, when it can be empty.
    pub fn has_other_program(&self, program: Option<&Program>) -> bool {
        program.is_some() && program != self.program.as_ref()
    }

    /// Adds a sample: to the current run if it is equal.
    pub fn add(&mut self, at_us: u64, sample: Sample) {
        self.last_sample = Some(sample);
        self.sampled_peak_kib = self.sampled_peak_kib.max(Some(sample.rss_kib));
        match &mut self.runs.current {
            Some(run) if run.sample == sample => {
                run.count += 1;
                run.span_us = at_us.saturating_sub(run.at_us);
            }
            run => self.runs.finished.extend(run.replace(Run { at_us, span_us: 0, count: 1, sample })),
        }
    }

    /// Ends the current run and returns all runs that were not written yet.
    pub fn take_runs(&mut self) -> Vec<Run> {
        self.runs.finished.extend(self.runs.current.take());
        std::mem::take(&mut self.runs.finished)
    }

    /// Closes the files, which have no content any more.
    pub fn close(&mut self, now_us: u64) {
        self.high_water_at_close_kib = self.high_water_kib();
        self.files_closed_us = Some(now_us);
        self.sampler = None;
    }

    /// VmHWM as last sampled.
    fn high_water_kib(&self) -> Option<u64> {
        self.sampler.as_ref().map_or(self.high_water_at_close_kib, Sampler::high_water_kib)
    }

    /// VmHWM at its end if that is known, or else as last sampled; at least the highest sampled
    /// RSS, because the kernel's counters are approximate, and start anew at an exec.
    pub fn best_high_water_kib(&self) -> Option<u64> {
        self.final_high_water_kib.or(self.high_water_kib()).max(self.sampled_peak_kib)
    }

    /// RSS as last sampled, in KiB; 0 while its files are not open.
    pub fn rss_kib(&self) -> u64 {
        self.sampler.as_ref().map_or(0, |sampler| sampler.last_sample().rss_kib)
    }
}

/// A process that is no longer followed.
#[derive(Debug)]
pub struct Departed {
    /// Its process id.
    pub pid: i32,
    /// Wait status, if known.
    pub wait_status: Option<i32>,
    /// What is known of it.
    pub member: Member,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

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
        let own_program = Program::of(&Process::open(std::process::id() as i32).unwrap());
        let before = loop {
            let program = Program::of(&process);
            if program.is_some() && program != own_program {
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
    fn a_command_line_read_during_an_exec_is_read_again() {
        let own = std::process::id() as i32;
        let program = Program::of(&Process::open(own).unwrap());
        assert!(program.is_some());
        let is_new = |known: Option<Program>| {
            let mut tree = Tree::default();
            let member = tree.add(own, None, 0);
            (member.number, member.program, member.is_new_program) = (Some(0), known, false);
            tree.find_new_programs(0);
            tree.get(own).unwrap().is_new_program
        };
        assert!(is_new(None), "an exec was under way");
        assert!(!is_new(program.clone()));
        assert!(is_new(program.map(|program| Program { inode: program.inode + 1, ..program })));
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
        // The kernel's figure is approximate.
        member.final_high_water_kib = Some(7);
        assert_eq!(member.best_high_water_kib(), Some(8));
        member.final_high_water_kib = Some(9);
        assert_eq!(member.best_high_water_kib(), Some(9));
    }
}
