//! The end of a recording: the last ledgers, marks and samples, and the line with the totals.

use std::time::Duration;

use strandline_inspect::counted;
use strandline_process::procfs::Process;
use strandline_recording::{Ending, Moment, Record};

use crate::Recorded;
use crate::ledgers::Ledgers;
use crate::poller::Source;
use crate::sampler::Sampler;
use crate::tree::{Member, ProcessEvents};

use super::{MAX_ROUND, Session, StopReason};

/// How long to wait for unfinished ledgers.
const LAST_LEDGERS_TIMEOUT_US: u64 = 60_000_000;
/// How long to wait for the kernel to report an end.
const END_EVENT_WAIT_US: u64 = 100_000;
/// Interval of checking whether that report has arrived.
const END_EVENT_CHECK_EVERY: Duration = Duration::from_millis(1);
/// Interval of checking whether the watch of an ended process is over.
const WATCH_CHECK_EVERY: Duration = Duration::from_millis(2);

impl Session<'_> {
    /// Writes the end and returns the result. `wait_status` is that of the first process.
    pub fn finish(
        mut self,
        stop_reason: StopReason,
        wait_status: Option<i32>,
        out_of_memory_kills: Option<u64>,
    ) -> Recorded {
        if stop_reason == StopReason::Interrupted && self.plan.at_ends {
            self.request_ledgers_of_large_processes(Moment::End);
        }
        self.wait_for_ledgers(stop_reason);
        self.handle_last_marks();
        let end_us = self.clock.now_us();
        self.handle_last_events(stop_reason == StopReason::Ended && wait_status.is_none());
        let wait_status = wait_status.or(self.root_status);
        self.end_group(wait_status.and_then(ending_signal));
        let high_water_kib = self.end_root(stop_reason, wait_status, end_us);
        // Processes that continue running have samples that were not written yet.
        for &pid in &self.tree.pids().to_vec() {
            let Some(mut departed) = self.tree.remove(pid, None) else { continue };
            let high_water_kib = departed.member.best_high_water_kib();
            self.state.max_high_water_kib = self.state.max_high_water_kib.max(high_water_kib);
            if let Some(process) = departed.member.number {
                self.push_runs(process, &departed.member.take_runs());
            }
        }
        self.warn_unsampled();
        let end = Ending {
            at_us: end_us,
            why: if stop_reason == StopReason::Ended { "ended" } else { "interrupted" }.to_owned(),
            status: wait_status.and_then(exit_status),
            signal: wait_status.and_then(ending_signal),
            high_water_kib,
            out_of_memory_kills,
            group_kill: self.group.as_ref().and_then(|group| group.kill()),
            samples: self.grid.taken,
            missed: self.grid.missed,
            // getrusage(2) fails only for arguments that are never passed.
            own_cpu_us: strandline_sys::host::own_cpu_us().unwrap_or(0),
            own_peak_rss_kib: strandline_sys::host::own_peak_rss_bytes().ok().map(|bytes| bytes / 1024),
            stopped_us: self.state.ledgers.stopped_us,
            waited_us: self.state.marks.waited_us,
            paused_us: self.state.paused_us,
            unsampled_processes: self.state.unsampled_processes,
            brief_processes: self.state.brief_processes,
            usage: self.root_usage,
        };
        self.write_group();
        self.push(&Record::End(Box::new(end.clone())));
        self.flush();
        let progress = self.progress();
        self.ledgers.finish();
        Recorded {
            file: self.sink.path().to_owned(),
            file_bytes: self.sink.written_bytes(),
            end,
            progress,
            processes: self.state.next_number,
            max_high_water_kib: self.state.max_high_water_kib,
        }
    }

    /// Adds a caveat if processes were not sampled.
    fn warn_unsampled(&mut self) {
        let unsampled = self.state.unsampled_processes;
        if unsampled > 0 {
            let text = format!(
                "{} not sampled, because too many came at once: sums over the tree are too low",
                counted(unsampled, "process")
            );
            self.add_caveat("processes_unsampled", "processes", text);
        }
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

    /// Waits for unfinished ledgers, among them the one at the end of a watched process.
    fn wait_for_ledgers(&mut self, stop_reason: StopReason) {
        let deadline_us = self.clock.now_us() + LAST_LEDGERS_TIMEOUT_US;
        let ended_root = (stop_reason == StopReason::Ended).then_some(self.root);
        let is_unfinished = |ledgers: &Ledgers| {
            ledgers.unfinished_count() > 0 || ended_root.is_some_and(|pid| ledgers.is_watching(pid))
        };
        while is_unfinished(&self.ledgers) && self.clock.now_us() < deadline_us {
            let timeout = if self.ledgers.unfinished_count() > 0 { MAX_ROUND } else { WATCH_CHECK_EVERY };
            if self.poller.wait(timeout).has(Source::Signals) && self.handle_signals() {
                // The user requested the stop twice.
                break;
            }
            self.handle_ledger_results();
        }
        self.handle_ledger_results();
    }

    /// Handles the last forks and ends. With `needs_root_status`, also waits for the report on the
    /// first process: if it is not a child of the recorder, only the kernel's report shows how it
    /// ended, and that arrives a moment after the end is visible.
    fn handle_last_events(&mut self, needs_root_status: bool) {
        let deadline_us = self.clock.now_us() + END_EVENT_WAIT_US;
        loop {
            let now_us = self.clock.now_us();
            self.state.next_events_us = 0;
            self.handle_events(now_us);
            let is_report_pending =
                matches!(self.process_events, ProcessEvents::Connector(_)) && self.tree.has(self.root);
            if !needs_root_status || !is_report_pending || now_us >= deadline_us {
                return;
            }
            std::thread::sleep(END_EVENT_CHECK_EVERY);
        }
    }

    /// Handles the end of the first process, if it has ended. Returns its high-water mark in KiB.
    fn end_root(&mut self, stop_reason: StopReason, wait_status: Option<i32>, now_us: u64) -> Option<u64> {
        if stop_reason == StopReason::Interrupted {
            return self.tree.get(self.root).and_then(Member::best_high_water_kib);
        }
        match self.tree.remove(self.root, wait_status) {
            Some(departed) => {
                let high_water_kib = departed.member.best_high_water_kib();
                self.record_end(departed, now_us);
                high_water_kib
            }
            None => {
                // Its end was reported before.
                if self.state.is_root_unsampled {
                    let text = "its main thread ended and others ran on: it was not sampled from then on";
                    self.add_caveat("leader_ended", format!("process {}", self.root), text);
                }
                self.state.root_high_water_kib
            }
        }
    }
}

/// The exit status in a wait status; `None` if a signal ended the process.
pub(super) fn exit_status(wait_status: i32) -> Option<i32> {
    (wait_status & 0x7f == 0).then_some(wait_status >> 8 & 0xff)
}

/// The signal in a wait status; `None` if no signal ended the process.
pub(crate) fn ending_signal(wait_status: i32) -> Option<i32> {
    Some(wait_status & 0x7f).filter(|&signal| signal != 0)
}
