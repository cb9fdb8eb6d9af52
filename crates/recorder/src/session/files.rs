//! The files of followed processes in /proc: opened, opened again, and given up.

use strandline_process::procfs::Process;
use strandline_process::snapshot;
use strandline_recording::{ProcessStart, Record};

use super::Session;
use crate::member::Program;
use crate::sampler::Sampler;
use crate::tree::ProcessEvents;

impl Session<'_> {
    /// Opens the files of a process and gives it its number; false if it is gone.
    pub(super) fn open(&mut self, pid: i32) -> bool {
        let Ok(process) = Process::open(pid) else { return false };
        if snapshot::is_snapshot(&process) {
            // A snapshot, of this or another strandline, has no separate memory or history.
            self.tree.remove(pid, None);
            return false;
        }
        let Ok(sampler) = Sampler::open(&process) else { return false };
        let Some(member) = self.tree.get_mut(pid) else { return false };
        (member.sampler, member.files_closed_us) = (Some(sampler), None);
        // Read before the command line, so that an exec in between is noticed later.
        member.program = Program::of(&process);
        member.is_new_program = false;
        let number = self.state.next_number;
        member.number = Some(number);
        let start = ProcessStart {
            process: number,
            pid,
            parent: member.parent.or_else(|| process.stat().ok()?.parent),
            at_us: member.first_seen_us,
            command: process.command_line().unwrap_or_default(),
            executable: process.executable(),
        };
        self.state.next_number += 1;
        self.push(&Record::Process(start));
        true
    }

    /// Samples a process whose main thread has ended through another thread from now on; false if
    /// no thread runs any more. Threads are listed again: some may have started after the last
    /// sample.
    pub(super) fn reopen_by_thread(&mut self, pid: i32) -> bool {
        let units = self.units;
        let sampler = Process::open(pid).and_then(|process| Sampler::open_by_thread(&process, units));
        let (Ok(sampler), Some(member)) = (sampler, self.tree.get_mut(pid)) else { return false };
        (member.sampler, member.files_closed_us) = (Some(sampler), None);
        true
    }

    /// Samples a process again that seemed to have ended, but another of its threads replaced the
    /// program (execve), or still runs; false if it has ended.
    pub(super) fn reopen_if_alive(&mut self, pid: i32) -> bool {
        let is_alive = |process: &Process| process.stat().is_ok_and(|stat| stat.is_alive());
        let process = Process::open(pid).ok().filter(is_alive);
        let Some(sampler) = process.and_then(|process| Sampler::open(&process).ok()) else {
            return self.reopen_by_thread(pid);
        };
        let Some(member) = self.tree.get_mut(pid) else { return false };
        (member.sampler, member.files_closed_us, member.is_new_program) = (Some(sampler), None, true);
        true
    }

    /// Handles a process that cannot be sampled: keeps it if the kernel will report its end, or
    /// refuses to open its files. Returns whether it is still followed.
    pub(super) fn handle_unreadable(&mut self, pid: i32, now_us: u64) -> bool {
        let is_end_reported = matches!(self.process_events, ProcessEvents::Connector(_)) || pid == self.root;
        if is_end_reported || self.is_refused(pid) {
            // A snapshot was removed when it was opened.
            let Some(member) = self.tree.get_mut(pid) else { return false };
            member.close(now_us);
            return true;
        }
        self.forget(pid, now_us)
    }

    /// Whether a process that was never opened exists. Its files cannot be opened then: /proc hides
    /// it (hidepid), the recorder has no descriptor left, or it is a zombie.
    pub(super) fn is_refused(&self, pid: i32) -> bool {
        let is_unopened = self.tree.get(pid).is_some_and(|member| member.number.is_none());
        is_unopened && strandline_sys::signal::exists(pid)
    }

    /// Stops following a process whose end was not reported. Returns false: it is no longer
    /// followed.
    pub(super) fn forget(&mut self, pid: i32, now_us: u64) -> bool {
        if let Some(departed) = self.tree.remove(pid, None) {
            self.record_end(departed, now_us);
        }
        false
    }
}
