//! The processes that are followed: the first one and its descendants.
//!
//! Forks, execs and ends come from the kernel's process connector if that is allowed. Otherwise
//! /proc is searched, and children that end or lose their parent before a search are missed.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use strandline_process::error::{Error, Result};
use strandline_process::procfs::Process;
use strandline_sys::connector::{Connector, Event};

use super::clock::micros;
use super::member::{Departed, Member, Program};

/// Interval of searching /proc for new children if the kernel does not report them.
pub const SEARCH_EVERY: Duration = Duration::from_millis(10);
/// How long a process counts as young; older ones are checked for a new program at this interval.
const YOUNG_AGE: Duration = Duration::from_secs(1);
/// Maximum number of threads of a process whose children one search reads.
const MAX_THREADS: usize = 64;
/// How many of those threads are the oldest ones, in every search.
const OLDEST_THREADS: usize = MAX_THREADS / 2;
/// How many of those threads are others: in each search the next ones.
const OTHER_THREADS: usize = MAX_THREADS - OLDEST_THREADS;
/// Minimum number of searches for children after the kernel has dropped events.
const MIN_SEARCHES_AFTER_LOSS: u64 = 32;
/// Maximum number of those searches: each one lists all threads.
const MAX_SEARCHES_AFTER_LOSS: u64 = 256;
/// Maximum number of attempts to list the threads of a process while they change.
const MAX_LISTINGS: u32 = 10;
/// Maximum size read of a thread's list of children: a hundred thousand process ids.
const MAX_CHILDREN_BYTES: u64 = 1 << 20;

/// Why /proc cannot be searched for children: see [`lists_children`].
pub const NO_LISTS: &str = "the kernel was built without lists of child processes (CONFIG_PROC_CHILDREN)";

/// Whether /proc lists the children of threads.
pub fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// How new processes are found.
#[derive(Debug)]
pub enum ProcessEvents {
    /// The kernel reports them.
    Connector(Connector),
    /// /proc is searched, and why.
    Polling(String),
}

impl ProcessEvents {
    /// The connector if it can be used, or else polling.
    pub fn best_available() -> Self {
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

    /// A sentence on the processes that are not seen from now on, and why; `None` if all are seen.
    /// `has_child_lists` is the result of [`lists_children`].
    pub fn limitation(&self, has_child_lists: bool) -> Option<String> {
        match self {
            Self::Connector(_) => None,
            Self::Polling(reason) if !has_child_lists => {
                Some(format!("{reason}, and {NO_LISTS}: no child process is seen"))
            }
            Self::Polling(reason) => Some(format!(
                "{reason}: processes that live for less than {SEARCH_EVERY:?}, or whose parent ends that soon after they start, are \
                 not seen, nor some others if their parent has more than {MAX_THREADS} threads"
            )),
        }
    }
}

/// The processes that are followed.
#[derive(Debug, Default)]
pub struct Tree {
    members: HashMap<i32, Member>,
    /// Keys of `members`, in order of arrival.
    pids: Vec<i32>,
    /// When old processes are next checked for a new program.
    next_program_check_us: u64,
    /// Number of calls of [`Tree::search`].
    search_count: usize,
    /// See [`Tree::unread`].
    unread: Option<String>,
}

impl Tree {
    /// Follows `pid` from now on.
    pub fn add(&mut self, pid: i32, parent: Option<i32>, now_us: u64) -> &mut Member {
        let pids = &mut self.pids;
        self.members.entry(pid).or_insert_with(|| {
            pids.push(pid);
            Member::new(parent, now_us)
        })
    }

    /// Stops following `pid`.
    pub fn remove(&mut self, pid: i32, wait_status: Option<i32>) -> Option<Departed> {
        let member = self.members.remove(&pid)?;
        self.pids.retain(|&followed| followed != pid);
        Some(Departed { pid, wait_status, member })
    }

    /// The process `pid`, if it is followed.
    pub fn get(&self, pid: i32) -> Option<&Member> {
        self.members.get(&pid)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, pid: i32) -> Option<&mut Member> {
        self.members.get_mut(&pid)
    }

    /// Whether `pid` is followed.
    pub fn has(&self, pid: i32) -> bool {
        self.members.contains_key(&pid)
    }

    /// All process ids, oldest first.
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// All processes with their ids, oldest first.
    pub fn members(&self) -> impl Iterator<Item = (i32, &Member)> {
        self.pids.iter().filter_map(|pid| Some((*pid, self.members.get(pid)?)))
    }

    /// The process with this number in the recording.
    pub fn member_by_number(&mut self, number: u32) -> Option<&mut Member> {
        self.members.values_mut().find(|member| member.number == Some(number))
    }

    /// Why children or threads of a process could not be read, the first time; `None` if all were.
    pub fn unread(&self) -> Option<&str> {
        self.unread.as_deref()
    }

    /// The sum of all RSS, in KiB, without processes whose files are not open; shared pages count
    /// for each process.
    pub fn rss_kib(&self) -> u64 {
        self.members.values().map(Member::rss_kib).sum()
    }

    /// Handles the kernel's events since the last call, and adds ended processes to `departed`.
    ///
    /// # Errors
    /// If events were lost (`ENOBUFS`) or cannot be read: a search is needed then.
    pub fn read_events(
        &mut self,
        connector: &Connector,
        now_us: u64,
        departed: &mut Vec<Departed>,
    ) -> io::Result<()> {
        loop {
            match connector.next()? {
                Some(Event::Fork { parent, child }) if self.has(parent) => {
                    self.add(child, Some(parent), now_us);
                }
                Some(Event::Exec { pid }) => {
                    if let Some(member) = self.get_mut(pid) {
                        member.is_new_program = true;
                    }
                }
                // The kernel reports the end of the main thread; other threads may run on.
                Some(Event::Exit { pid, wait_status }) if self.has(pid) => match is_running(pid) {
                    Ok(true) => {}
                    answer => {
                        // Where that cannot be found out, mostly the process has ended.
                        note_unread(answer.err().as_ref(), &mut self.unread);
                        departed.extend(self.remove(pid, Some(wait_status)));
                    }
                },
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    /// Searches /proc for children of the processes that are followed. Of a process with more than
    /// `MAX_THREADS` threads, a search covers the oldest ones, and others in turn.
    pub fn search(&mut self, now_us: u64) {
        self.search_count = self.search_count.wrapping_add(1);
        let turn = self.search_count;
        self.add_children(now_us, |tids| threads_of_turn(tids, turn));
    }

    /// Number of searches after the kernel has dropped events: together they cover all threads of
    /// processes with at most `OTHER_THREADS * MAX_SEARCHES_AFTER_LOSS` of them.
    pub fn searches_after_loss(&self) -> u64 {
        let thread_counts = self.members.values().map(|member| member.threads.load(Ordering::Relaxed));
        let turns = thread_counts.max().unwrap_or(0) / OTHER_THREADS as u64 + 1;
        turns.clamp(MIN_SEARCHES_AFTER_LOSS, MAX_SEARCHES_AFTER_LOSS)
    }

    /// Searches for the children of all threads.
    pub fn search_all(&mut self, now_us: u64) {
        self.add_children(now_us, <[i32]>::to_vec);
    }

    /// Adds the children of those threads of each process that `choose_threads` returns.
    fn add_children(&mut self, now_us: u64, choose_threads: impl Fn(&[i32]) -> Vec<i32>) {
        let mut index = 0;
        // Children found here are searched as well.
        while let Some(&pid) = self.pids.get(index) {
            index += 1;
            for child in children(pid, &choose_threads, &mut self.unread) {
                self.add(child, Some(pid), now_us);
            }
        }
    }

    /// Finds processes that run a new program, if the kernel does not report it: young processes at
    /// each call, because an exec mostly follows a fork, the others once a second.
    pub fn find_new_programs(&mut self, now_us: u64) {
        let checks_all = now_us >= self.next_program_check_us;
        if checks_all {
            self.next_program_check_us = now_us + micros(YOUNG_AGE);
        }
        for (pid, member) in &mut self.members {
            let is_young = now_us.saturating_sub(member.first_seen_us) < micros(YOUNG_AGE);
            if member.number.is_some() && !member.is_new_program && (checks_all || is_young) {
                let program = Process::open(*pid).ok().and_then(|process| Program::of(&process));
                member.is_new_program = member.has_other_program(program.as_ref());
            }
        }
    }
}

/// Up to `MAX_THREADS` of the threads: the oldest ones, and others in turn.
fn threads_of_turn(tids: &[i32], turn: usize) -> Vec<i32> {
    let (oldest, others) = tids.split_at(tids.len().min(OLDEST_THREADS));
    let start = turn.wrapping_mul(OTHER_THREADS) % others.len().max(1);
    let others = others.iter().cycle().skip(start).take(others.len().min(OTHER_THREADS));
    oldest.iter().chain(others).copied().collect()
}

/// Keeps the first `error` of a file of /proc in `unread`, unless a process or thread has ended.
fn note_unread(error: Option<&Error>, unread: &mut Option<String>) {
    match error {
        None | Some(Error::Ended { .. } | Error::NoSuchProcess { .. }) => {}
        // The folder of a thread that has ended; lists that the kernel lacks have their own caveat.
        Some(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        Some(error) => {
            unread.get_or_insert_with(|| error.to_string());
        }
    }
}

/// The children of those threads of a process that `choose_threads` returns, from
/// /proc/PID/task/TID/children. The first reason why a list is missing or cut is kept in `unread`:
/// a later search may find those children.
fn children(pid: i32, choose_threads: &impl Fn(&[i32]) -> Vec<i32>, unread: &mut Option<String>) -> Vec<i32> {
    let opened = Process::open(pid).and_then(|process| Ok((process.tasks()?, process)));
    note_unread(opened.as_ref().err(), unread);
    let Ok((tids, process)) = opened else { return Vec::new() };
    let mut children = Vec::new();
    for tid in choose_threads(&tids) {
        let text = process.read_text(&format!("task/{tid}/children"), MAX_CHILDREN_BYTES);
        note_unread(text.as_ref().err(), unread);
        let text = text.unwrap_or_default();
        if text.len() as u64 >= MAX_CHILDREN_BYTES {
            unread.get_or_insert_with(|| format!("thread {tid} has more children than are read"));
        }
        // Each id is followed by a space (fs/proc/array.c, children_seq_show), unless it is cut
        // off.
        let ids = text.rsplit_once(' ').map_or("", |(ids, _)| ids);
        children.extend(ids.split_ascii_whitespace().filter_map(|id| id.parse::<i32>().ok()));
    }
    children
}

/// Whether a process whose main thread has ended is still running: it has other live threads,
/// or one of them has replaced the program (execve) and is the main thread now. False if its
/// threads change all the time: mostly it has ended then.
///
/// # Errors
/// It is gone, or /proc does not show its threads (no descriptor left, hidepid).
pub fn is_running(pid: i32) -> Result<bool> {
    let process = Process::open(pid)?;
    let is_thread_running = |tid: i32| match process.task_stat(tid) {
        // Another thread may have taken the main thread's place (execve).
        Ok(stat) if tid == pid => stat.is_alive(),
        Ok(stat) => !matches!(stat.state, Some('Z' | 'X')),
        Err(_) => false,
    };
    for _ in 0..MAX_LISTINGS {
        let tids = process.tasks()?;
        if tids.iter().take(MAX_THREADS).any(|&tid| is_thread_running(tid)) {
            return Ok(true);
        }
        // A thread that has disappeared may have taken the main thread's place.
        let has_changed = tids.iter().take(MAX_THREADS).any(|&tid| process.task_stat(tid).is_err());
        if !has_changed && process.lists_all(&tids) {
            return Ok(false);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_kernel_without_lists_of_children_is_named() {
        let polling = ProcessEvents::Polling("no connector".to_owned());
        assert!(polling.limitation(true).is_some_and(|text| text.contains("live for less than 10ms")));
        assert!(polling.limitation(false).is_some_and(|text| text.ends_with("no child process is seen")));
    }

    #[test]
    fn what_cannot_be_read_is_noted_and_what_has_ended_is_not() {
        let failed = |errno: Errno| Error::Io { pid: 1, what: "opening".into(), source: errno.into() };
        let mut unread = None;
        for error in [Error::Ended { pid: 1 }, Error::NoSuchProcess { pid: 1 }, failed(Errno::ENOENT)] {
            note_unread(Some(&error), &mut unread);
        }
        assert_eq!(unread, None);
        note_unread(Some(&failed(Errno::EMFILE)), &mut unread);
        note_unread(Some(&failed(Errno::EIO)), &mut unread);
        assert_eq!(unread, Some(failed(Errno::EMFILE).to_string()), "the first");
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
