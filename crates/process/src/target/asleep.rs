//! Detects without ptrace that no thread of a process runs: while all threads sleep, its memory
//! does not change.
//!
//! `/proc/PID/task/TID/syscall` reads `running` unless the kernel observed the thread off its
//! processor (Linux lib/syscall.c, task_current_syscall, by wait_task_inactive). A thread that runs
//! after that must leave its processor before the next check finds it off again, and the kernel
//! counts that (kernel/sched/core.c, __schedule; `voluntary_ctxt_switches` and
//! `nonvoluntary_ctxt_switches` of `status`). So each check reads `syscall` first and the counters
//! second, and a thread that is off its processor in two checks with equal counters has executed no
//! instruction in between.
//!
//! Not detected: writes to the memory other than by the process's own threads. See
//! [`external_writer`].

use std::collections::BTreeMap;

use crate::error::Result;
use crate::map::AddressSpace;
use crate::memory::{Memory, word_at};
use crate::procfs::{self, BlockedCall, Process, ThreadActivity};
use crate::stacks::ThreadFacts;
use crate::target::holders;
use crate::target::live::ByPid;

/// Offset of `robust_head` from the thread pointer (glibc x86-64, nptl/descr.h, struct pthread;
/// found in 2.36). If a glibc has another offset, [`thread_pointer`] returns `None`.
const OFFSET_ROBUST_HEAD: u64 = 736;

/// Numbers of clone, vfork and clone3 (x86-64).
const CLONE_CALLS: [i64; 3] = [56, 58, 435];
/// Number of threads checked by [`SleepingProcess::first_threads_ran`].
const MAX_FIRST_THREADS: usize = 64;

/// A thread that a check found off its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// The system call in which it waits.
    pub call: BlockedCall,
    /// How often the thread has left its processor to wait.
    voluntary_switches: u64,
    /// How often the thread was preempted.
    involuntary_switches: u64,
}

impl Asleep {
    /// Checks thread `tid`; `None` if it runs, waits outside a system call, has ended, or the
    /// kernel does not report it.
    pub fn check(process: &Process, tid: i32) -> Option<Self> {
        let Some(ThreadActivity::InCall(call)) = process.task_activity(tid) else { return None };
        // The thread may wait for a child that runs on the same memory.
        if CLONE_CALLS.contains(&call.number) {
            return None;
        }
        let status = process.task_status(tid).ok()?;
        Some(Self {
            call,
            voluntary_switches: status.voluntary_switches?,
            involuntary_switches: status.involuntary_switches?,
        })
    }

    /// Its known registers; `None` if its thread pointer is not found, which is known only for
    /// threads of glibc.
    pub fn facts(&self, process: &Process, tid: i32) -> Option<ThreadFacts> {
        Some(ThreadFacts { fs_base: thread_pointer(process, tid)?, ..self.without_thread_pointer(tid) })
    }

    /// Its known registers without the thread pointer.
    fn without_thread_pointer(&self, tid: i32) -> ThreadFacts {
        let BlockedCall {
            arguments: [rdi, rsi, rdx, r10, r8, r9], stack_pointer, instruction_pointer, ..
        } = self.call;
        let mut general = [None; 16];
        // The kernel reports only these; numbered as in `ThreadFacts::general`.
        for (number, word) in
            [(3, rdx), (4, rsi), (5, rdi), (7, r8), (8, r9), (9, r10), (15, instruction_pointer)]
        {
            general[number] = Some(word);
        }
        ThreadFacts { tid, stack_pointer, fs_base: 0, general }
    }
}

/// The thread pointer of a glibc thread; `None` if it is not found. The structure there has two
/// pointers to itself (glibc, sysdeps/x86_64/nptl/tls.h, tcbhead_t: `tcb` at 0 and `self` at 16).
fn thread_pointer(process: &Process, tid: i32) -> Option<u64> {
    let pointer = strandline_sys::process::robust_list(tid).ok()??.checked_sub(OFFSET_ROBUST_HEAD)?;
    let mut head = [0; 24];
    ByPid::new(process.pid()).read(pointer, &mut head).ok()?;
    (word_at(&head, 0) == Some(pointer) && word_at(&head, 16) == Some(pointer)).then_some(pointer)
}

/// A process without a running thread.
#[derive(Debug)]
pub struct SleepingProcess<'a> {
    process: &'a Process,
    /// All threads, by id.
    threads: BTreeMap<i32, Asleep>,
}

impl<'a> SleepingProcess<'a> {
    /// Checks all threads of `process`; `None` if one of them is not asleep.
    ///
    /// # Errors
    /// Fails if the process has ended or may not be inspected.
    pub fn check(process: &'a Process) -> Result<Option<Self>> {
        let tids = process.tasks()?;
        let mut threads = BTreeMap::new();
        for &tid in &tids {
            let Some(asleep) = Asleep::check(process, tid) else { return Ok(None) };
            threads.insert(tid, asleep);
        }
        // If a thread started another before its own check, that one is in the second list, or has
        // ended.
        Ok((!tids.is_empty() && process.tasks()? == tids).then_some(Self { process, threads }))
    }

    /// Whether no thread has run since the check, and none is new.
    pub fn slept_throughout(&self) -> bool {
        let slept =
            |(&tid, asleep): (&i32, &Asleep)| Asleep::check(self.process, tid).as_ref() == Some(asleep);
        self.threads.iter().all(slept)
            && self.process.tasks().is_ok_and(|tids| tids.iter().eq(self.threads.keys()))
    }

    /// Whether one of the first threads has run since. The cheapest check: enough to give up, but
    /// not to rely on what was read.
    pub fn first_threads_ran(&self) -> bool {
        let has_slept = |(&tid, asleep): (&i32, &Asleep)| {
            self.process.task_status(tid).is_ok_and(|status| {
                status.voluntary_switches == Some(asleep.voluntary_switches)
                    && status.involuntary_switches == Some(asleep.involuntary_switches)
            })
        };
        !self.threads.iter().take(MAX_FIRST_THREADS).all(has_slept)
    }

    /// The known registers of its threads; `None` if a thread pointer is not found and
    /// `needs_thread_pointers`.
    pub fn facts(&self, needs_thread_pointers: bool) -> Option<Vec<ThreadFacts>> {
        let facts = |(&tid, asleep): (&i32, &Asleep)| {
            asleep
                .facts(self.process, tid)
                .or_else(|| (!needs_thread_pointers).then(|| asleep.without_thread_pointer(tid)))
        };
        self.threads.iter().map(facts).collect()
    }
}

/// What may write to the memory of `process` while none of its threads runs: rings, devices, and
/// processes on the same memory. A text for a message; `None` if no such writer is known.
///
/// # Errors
/// Fails if the process has ended or may not be inspected.
pub fn external_writer(process: &Process, space: &AddressSpace) -> Result<Option<String>> {
    // First what a refused kcmp decides: without it, the search for holders takes long.
    if let Some(sharer) = sharer(process)? {
        return Ok(Some(sharer));
    }
    holders::find(process, space)
}

/// Another process on the same memory, or the reason why that is unknown. A text for a message.
///
/// # Errors
/// Fails if /proc cannot be listed.
pub fn sharer(process: &Process) -> Result<Option<String>> {
    let pid = process.pid();
    let shares = |other: i32| strandline_sys::process::have_same_memory(pid, other);
    // Refused in many containers (EPERM), and unknown to some kernels (ENOSYS).
    if let Err(error) = shares(pid) {
        return Ok(Some(format!("perhaps another process on the same memory (kcmp: {error})")));
    }
    let mut pids = procfs::all_pids().map_err(|source| process.error("..", source))?;
    // If the comparison is refused, the process belongs to another user, and such processes do not
    // share memory.
    let sharing_pid = pids.find(|&other| other != pid && shares(other).unwrap_or(false));
    Ok(sharing_pid.map(|pid| format!("process {pid} on the same memory")))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A process that is killed when the test ends, also if it fails.
    struct Subject(Child);

    impl Subject {
        fn process(&self) -> Process {
            Process::open(self.0.id().cast_signed()).unwrap()
        }
    }

    impl Drop for Subject {
        fn drop(&mut self) {
            _ = self.0.kill();
            _ = self.0.wait();
        }
    }

    /// A program whose threads wake each other in pairs (`wakers.c`). At each turn a thread adds
    /// one to its first word, works, and adds one to its second word.
    struct Wakers {
        subject: Subject,
        /// Address of the words, 16 bytes per thread.
        address: u64,
        threads: u64,
    }

    impl Wakers {
        fn start(folder: &Path, pairs: &str, nap: &str) -> Self {
            let binary = folder.join("wakers");
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/wakers.c");
            let built = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&binary).arg(source).status();
            assert!(built.unwrap().success());
            let mut command = Command::new(&binary);
            let command = command.args([pairs, nap]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut subject = Subject(command.spawn().unwrap());
            let mut line = String::new();
            BufReader::new(subject.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
            let (address, threads) = line.trim().split_once(' ').unwrap();
            Self { subject, address: address.parse().unwrap(), threads: threads.parse().unwrap() }
        }
    }

    /// Compares two reads of the memory until the process slept throughout `wanted` times.
    fn compare_reads(pairs: &str, nap: &str, wanted: usize) {
        let folder = tempfile::tempdir().unwrap();
        let wakers = Wakers::start(folder.path(), pairs, nap);
        let process = wakers.subject.process();
        let memory = ByPid::new(process.pid());
        let words = |at: u64| -> Vec<u64> {
            let addresses = (0..wakers.threads).map(|thread| wakers.address + 16 * thread + at);
            addresses.map(|address| memory.read_word(address).unwrap()).collect()
        };
        let mut compared = 0;
        while compared < wanted {
            let Some(sleeping) = SleepingProcess::check(&process).unwrap() else { continue };
            let first = words(0);
            // Some reads take longer, like those of a large heap.
            if compared % 2 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            let second = words(8);
            if sleeping.slept_throughout() {
                assert_eq!(first, second, "read {compared}");
                compared += 1;
            }
        }
    }

    #[test]
    fn memory_of_a_sleeping_process_does_not_change() {
        let wanted = if std::env::var_os("STRANDLINE_FULL").is_some() { 50_000 } else { 300 };
        compare_reads("1", "3000", wanted);
        compare_reads("3", "20000", wanted / 10);
    }

    #[test]
    fn process_that_ran_did_not_sleep_throughout() {
        // Without naps, both threads of a pair may sleep for a moment while they hand on a byte.
        for (pairs, nap, wanted) in [("1", "3000", 50), ("2", "0", 0)] {
            let folder = tempfile::tempdir().unwrap();
            let wakers = Wakers::start(folder.path(), pairs, nap);
            let process = wakers.subject.process();
            let memory = ByPid::new(process.pid());
            let turns_of_first = || memory.read_word(wakers.address).unwrap();
            let (mut checks, mut found) = (0, 0);
            while checks < 200 || found < wanted {
                checks += 1;
                let Some(sleeping) = SleepingProcess::check(&process).unwrap() else { continue };
                found += 1;
                let before = turns_of_first();
                while turns_of_first() == before {
                    std::thread::yield_now();
                }
                assert!(!sleeping.slept_throughout(), "{nap}: the first thread has run since");
            }
        }
    }

    #[test]
    fn thread_pointer_of_a_sleeping_thread_is_read() {
        const CLOCK_NANOSLEEP: i64 = 230;
        let subject = Subject(Command::new("sleep").arg("1000").spawn().unwrap());
        let process = subject.process();
        let sleeping = loop {
            if let Some(sleeping) = SleepingProcess::check(&process).unwrap()
                && sleeping.threads.values().all(|asleep| asleep.call.number == CLOCK_NANOSLEEP)
            {
                break sleeping;
            }
        };
        let facts = sleeping.facts(true).unwrap();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        assert_eq!(facts.len(), 1);
        assert_eq!(space.find(facts[0].stack_pointer).unwrap().name, "[stack]");
        assert!(space.find(facts[0].fs_base).unwrap().permissions.write);
        assert_eq!(external_writer(&process, &space).unwrap(), None);
        assert!(sleeping.slept_throughout() && !sleeping.first_threads_ran());
        let own = std::process::id().cast_signed();
        assert!(Asleep::check(&Process::open(own).unwrap(), own).is_none_or(|asleep| asleep.call.number > 0));
    }
}
