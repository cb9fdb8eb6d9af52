//! The end of a recording: the last ledgers, marks and samples, and the line with the totals.

use std::time::Duration;

use strandline_inspect::counted;
use strandline_recording::{Ending, Moment, Record};

use crate::Recorded;
use crate::clock::micros;
use crate::ledgers::Ledgers;
use crate::poller::Source;
use crate::tree::ProcessEvents;

use super::{BRIEF_LIFE_US, MAX_ROUND, Session, StopReason};

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
        self.write_living_processes();
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

    /// Writes the last samples of the processes that run on; counts those that were never sampled.
    fn write_living_processes(&mut self) {
        // Processes take turns; after the last instant none was due.
        let turns = self.turns() as u64;
        let max_unsampled_us = BRIEF_LIFE_US.max(micros(self.options.interval).saturating_mul(2 * turns));
        let sampled_us = self.state.sampled_us;
        for &pid in &self.tree.pids().to_vec() {
            let Some(mut departed) = self.tree.remove(pid, None) else { continue };
            let high_water_kib = departed.member.best_high_water_kib();
            self.state.max_high_water_kib = self.state.max_high_water_kib.max(high_water_kib);
            match departed.member.number {
                Some(process) => self.push_runs(process, &departed.member.take_runs()),
                // A younger one was not due yet.
                None if sampled_us.saturating_sub(departed.member.first_seen_us) > max_unsampled_us => {
                    self.state.unsampled_processes += 1;
                }
                None => {}
            }
        }
    }

    /// Adds a caveat if processes were not sampled.
    fn warn_unsampled(&mut self) {
        let unsampled = self.state.unsampled_processes;
        if unsampled > 0 {
            let text = format!(
                "{} not sampled: too many came at once, they lived between two instants, or their files in /proc cannot be \
                 opened; sums over the tree are too low",
                counted(unsampled, "process")
            );
            self.add_caveat("processes_unsampled", "processes", text);
        }
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
        if is_unfinished(&self.ledgers) {
            let text = "the recording ended before its last ledgers were finished: they are left out";
            self.add_caveat("ledger_failed", "recording", text);
        }
    }

    /// Handles the last forks and ends. With `needs_root_status`, also waits for the report on the
    /// first process: if it is not a child of the recorder, only the kernel's report shows how it
    /// ended, and that arrives a moment after the end is visible.
    fn handle_last_events(&mut self, needs_root_status: bool) {
        let deadline_us = self.clock.now_us() + END_EVENT_WAIT_US;
        loop {
            let now_us = self.clock.now_us();
            self.state.next.events_us = 0;
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
        if stop_reason == StopReason::Interrupted
            && let Some(member) = self.tree.get(self.root)
        {
            return member.best_high_water_kib();
        }
        if let Some(departed) = self.tree.remove(self.root, wait_status) {
            self.record_end(departed, now_us);
        } else if self.state.is_root_unsampled {
            // Its end was reported before.
            let text = "its main thread ended and others ran on: it was not sampled from then on";
            self.add_caveat("leader_ended", format!("process {}", self.root), text);
        }
        self.state.root_high_water_kib
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
