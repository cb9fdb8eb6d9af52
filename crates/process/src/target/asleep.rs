//! Detects, without ptrace, that no thread of a process runs: while all sleep, its memory does not change.
//!
//! `/proc/PID/task/TID/syscall` says `running` unless the kernel saw the thread off its processor (Linux lib/syscall.c,
//! task_current_syscall, by wait_task_inactive). A thread that runs after that leaves its processor before the
//! next look finds it off again, and the kernel counts that (kernel/sched/core.c, __schedule; `voluntary_ctxt_switches` and
//! `nonvoluntary_ctxt_switches` of `status`). So each look reads `syscall` first and the counters second, and a thread that is
//! off its processor at two looks with equal counters has run no instruction in between.
//!
//! Not seen by this: who writes to the memory without a thread of the process. See [`writes_unseen`].

use std::collections::BTreeMap;

use crate::error::Result;
use crate::map::AddressSpace;
use crate::memory::{Memory, word_at};
use crate::procfs::{Blocked, Doing, Process};
use crate::stacks::ThreadFacts;
use crate::target::holders;
use crate::target::live::Live;

/// The offset of `robust_head` from the thread pointer (glibc x86-64, nptl/descr.h, struct pthread; seen in 2.36). In a
/// glibc with another offset [`thread_pointer`] finds none.
const ROBUST_HEAD: u64 = 736;

/// clone, vfork and clone3.
const STARTING: [i64; 3] = [56, 58, 435];

/// A thread as one look found it: off its processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asleep {
    /// The system call that it waits in.
    pub call: Blocked,
    switches: (u64, u64),
}

impl Asleep {
    /// Looks at thread `tid`; `None` where it runs, waits for something else than a system call, has ended, or this kernel
    /// does not say.
    pub fn look(process: &Process, tid: i32) -> Option<Self> {
        let Some(Doing::Call(call)) = process.task_doing(tid) else { return None };
        // It may wait for a child on the same memory.
        if STARTING.contains(&call.number) {
            return None;
        }
        let status = process.task_status(tid).ok()?;
        Some(Self { call, switches: (status.voluntary_switches?, status.other_switches?) })
    }

    /// What is known of it; `None` where its thread pointer is not found: only glibc says where it is.
    pub fn facts(&self, process: &Process, tid: i32) -> Option<ThreadFacts> {
        Some(ThreadFacts { fs_base: thread_pointer(process, tid)?, ..self.bare(tid) })
    }

    /// The same without its thread pointer.
    fn bare(&self, tid: i32) -> ThreadFacts {
        let Blocked { arguments: [rdi, rsi, rdx, r10, r8, r9], stack_pointer, instruction, .. } = self.call;
        let mut general = [None; 16];
        // The kernel says no others.
        for (place, word) in [(3, rdx), (4, rsi), (5, rdi), (7, r8), (8, r9), (9, r10), (15, instruction)] {
            general[place] = Some(word);
        }
        ThreadFacts { tid, stack_pointer, fs_base: 0, general }
    }
}

/// The thread pointer of a thread of glibc's: what it keeps there begins with two pointers to itself (glibc,
/// sysdeps/x86_64/nptl/tls.h, tcbhead_t: `tcb` and `self`).
fn thread_pointer(process: &Process, tid: i32) -> Option<u64> {
    let at = strandline_sys::process::robust_list(tid).ok()?.checked_sub(ROBUST_HEAD)?;
    let mut head = [0; 24];
    Live::new(process.pid()).read(at, &mut head).ok()?;
    (word_at(&head, 0) == Some(at) && word_at(&head, 16) == Some(at)).then_some(at)
}

/// A process none of whose threads runs.
#[derive(Debug)]
pub struct Quiet<'a> {
    process: &'a Process,
    threads: BTreeMap<i32, Asleep>,
}

impl<'a> Quiet<'a> {
    /// Looks at all threads of `process`; `None` where one of them is not asleep.
    ///
    /// # Errors
    /// That it has ended, or may not be looked at.
    pub fn see(process: &'a Process) -> Result<Option<Self>> {
        let tids = process.tasks()?;
        let mut threads = BTreeMap::new();
        for &tid in &tids {
            let Some(asleep) = Asleep::look(process, tid) else { return Ok(None) };
            threads.insert(tid, asleep);
        }
        // One that a thread started before it was looked at is in this list, or has ended.
        Ok((!tids.is_empty() && process.tasks()? == tids).then_some(Self { process, threads }))
    }

    /// Whether no thread ran since, and none is new.
    pub fn lasted(&self) -> bool {
        let is_same =
            |(&tid, asleep): (&i32, &Asleep)| Asleep::look(self.process, tid).as_ref() == Some(asleep);
        self.threads.iter().all(is_same)
            && self.process.tasks().is_ok_and(|tids| tids.iter().eq(self.threads.keys()))
    }

    /// Whether one of some threads ran: enough to give up, not enough to go on. The cheapest look there is.
    pub fn seems_over(&self) -> bool {
        let ran = |(&tid, asleep): (&i32, &Asleep)| {
            let status = self.process.task_status(tid).unwrap_or_default();
            (status.voluntary_switches, status.other_switches)
                != (Some(asleep.switches.0), Some(asleep.switches.1))
        };
        self.threads.iter().take(MAX_GLANCED).any(ran)
    }

    /// What is known of its threads; `None` where the thread pointer of one is not found, unless they are not `needed`.
    pub fn facts(&self, needed: bool) -> Option<Vec<ThreadFacts>> {
        let facts = |(&tid, asleep): (&i32, &Asleep)| {
            asleep.facts(self.process, tid).or_else(|| (!needed).then(|| asleep.bare(tid)))
        };
        self.threads.iter().map(facts).collect()
    }
}

/// Threads that a glance looks at.
const MAX_GLANCED: usize = 64;

/// Who may write to the memory of `process` without a thread of it that runs: rings and devices, and another process that
/// runs on the same memory. `None` where nobody is known.
///
/// # Errors
/// That the process has ended, or may not be looked at.
pub fn writes_unseen(process: &Process, space: &AddressSpace) -> Result<Option<String>> {
    if let Some(holder) = holders::of_process(process, space)? {
        return Ok(Some(holder));
    }
    let pid = process.pid();
    let shares = |other: i32| strandline_sys::process::same_memory(pid, other);
    if shares(pid).is_err() {
        return Ok(Some("a kernel without kcmp, which may hide a process on the same memory".to_owned()));
    }
    let entries = std::fs::read_dir("/proc").map_err(|source| process.error("..", source))?;
    let mut pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    // One that may not be asked about is another user's, and such do not share memory.
    let other = pids.find(|&other| other != pid && shares(other).unwrap_or(false));
    Ok(other.map(|other| format!("process {other} on the same memory")))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts the pairs of threads of `wakers.c`; with it where their words are, and how many threads there are.
    fn wakers(folder: &Path, pairs: &str, nap: &str) -> (Child, u64, usize) {
        let binary = folder.join("wakers");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/wakers.c");
        let built = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&binary).arg(source).status();
        assert!(built.unwrap().success());
        let mut command = Command::new(&binary);
        let command = command.args([pairs, nap]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, threads) = line.trim().split_once(' ').unwrap();
        (child, address.parse().unwrap(), threads.parse().unwrap())
    }

    /// Reads until `wanted` reads were of a process that slept on; how many of the others would have been wrong.
    fn read_often(pairs: &str, nap: &str, wanted: usize) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, address, threads) = wakers(folder.path(), pairs, nap);
        let process = Process::open(child.id().cast_signed()).unwrap();
        let memory = Live::new(process.pid());
        let words = |at: u64| -> Vec<u64> {
            (0..threads as u64).map(|thread| memory.read_word(address + 16 * thread + at).unwrap()).collect()
        };
        let (mut good, mut wrong) = (0, 0);
        while good < wanted {
            let Some(quiet) = Quiet::see(&process).unwrap() else { continue };
            let first = words(0);
            // As reading a large heap, some take longer.
            if good % 2 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            let second = words(8);
            if quiet.lasted() {
                assert_eq!(first, second, "read {good} of a process that seemed to sleep");
                good += 1;
            } else {
                wrong += usize::from(first != second);
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        wrong
    }

    #[test]
    fn what_threads_that_slept_left_is_of_one_instant() {
        let wanted = if std::env::var_os("STRANDLINE_FULL").is_some() { 50_000 } else { 300 };
        // The check is one: what is not accepted is wrong at times.
        assert!(read_often("1", "3000", wanted) > 0);
        read_often("3", "20000", wanted / 10);
    }

    #[test]
    fn a_process_that_works_is_never_asleep() {
        let folder = tempfile::tempdir().unwrap();
        let (mut child, ..) = wakers(folder.path(), "2", "0");
        let process = Process::open(child.id().cast_signed()).unwrap();
        // Between two threads that hand on a byte both may sleep for a moment, and no longer.
        for _ in 0..200 {
            if let Some(quiet) = Quiet::see(&process).unwrap() {
                std::thread::sleep(std::time::Duration::from_millis(5));
                assert!(!quiet.lasted());
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_sleeping_thread_shows_its_thread_pointer() {
        let own = std::process::id().cast_signed();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(child.id().cast_signed()).unwrap();
        let quiet = loop {
            if let Some(quiet) = Quiet::see(&process).unwrap()
                && quiet.threads.values().all(|asleep| asleep.call.number == 230)
            {
                break quiet;
            }
        };
        let facts = quiet.facts(true).unwrap();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        assert_eq!(facts.len(), 1);
        assert_eq!(space.find(facts[0].stack_pointer).unwrap().name, "[stack]");
        assert!(space.find(facts[0].fs_base).unwrap().permissions.write);
        assert_eq!(writes_unseen(&process, &space).unwrap(), None);
        assert!(quiet.lasted() && !quiet.seems_over());
        assert!(Asleep::look(&Process::open(own).unwrap(), own).is_none_or(|asleep| asleep.call.number > 0));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
