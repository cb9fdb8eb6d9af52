//! The end of a recording: the last ledgers, marks and samples, and the line with the totals.

use std::time::Duration;

use strandline_process::procfs::Process;
use strandline_recording::{Ending, Moment, Record};

use super::super::Recorded;
use super::super::poller::Source;
use super::super::sampler::Sampler;
use super::super::tree::{Member, ProcessEvents};
use crate::ledgers::Ledgers;

use super::moments::RootEnd;
use super::{LAST_LEDGERS_TIMEOUT, MAX_ROUND, Session, StopReason, ending_signal, exit_status};

/// How long to wait for the kernel to report an end.
const END_EVENT_WAIT_US: u64 = 100_000;
/// If the main thread ended this much before the process, the process ran on without it.
const LEADER_ONLY_US: u64 = 100_000;
/// Interval between checks whether the watch of an ended process is over.
const WATCH_ROUND: Duration = Duration::from_millis(2);

impl Session<'_> {
    /// Writes the end and returns the result. `wait_status` is that of the first process.
    pub fn finish(
        mut self,
        stop_reason: StopReason,
        wait_status: Option<i32>,
        out_of_memory_kills: Option<u64>,
    ) -> Recorded {
        if stop_reason == StopReason::Interrupted && self.plan.ends {
            self.take_ledgers_of_large_processes(Moment::End);
        }
        self.wait_for_ledgers(stop_reason);
        self.take_last_marks();
        let end_us = self.clock.now_us();
        self.wait_for_end_report(stop_reason, wait_status.is_none());
        let wait_status = wait_status.or(self.root_status);
        self.end_group(wait_status.and_then(ending_signal));
        let high_water_kib = self.end_root(stop_reason, wait_status, end_us);
        // Processes that continue running have samples that were not written yet.
        for &pid in &self.tree.pids().to_vec() {
            if let Some(mut departed) = self.tree.remove(pid, None)
                && let Some(process) = departed.member.number
            {
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
            own_cpu_us: strandline_sys::spawn::own_cpu_us().unwrap_or(0),
            own_peak_rss_kib: strandline_sys::host::own_peak_rss_bytes().ok().map(|bytes| bytes / 1024),
            stopped_us: self.state.moments.stopped_us,
            waited_us: self.state.moments.waited_us,
            paused_us: self.state.paused_us,
            unsampled_processes: self.state.moments.unsampled_processes,
            brief_processes: self.state.moments.brief_processes,
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
        }
    }

    /// Adds a caveat if processes were not sampled.
    fn warn_unsampled(&mut self) {
        let unsampled = self.state.moments.unsampled_processes;
        if unsampled > 0 {
            let text = format!(
                "{unsampled} processes were not sampled, for too many came at once: sums over the tree are too low"
            );
            self.add_caveat("processes_unsampled", "processes", text);
        }
    }

    /// Samples a process whose main thread has ended through another thread from now on; false if
    /// no thread runs on. The last sample does not show a thread that started after it.
    pub(super) fn reopen(&mut self, pid: i32) -> bool {
        let units = self.units;
        let sampler = Process::open(pid).and_then(|process| Sampler::open_by_thread(&process, units));
        let (Ok(sampler), Some(member)) = (sampler, self.tree.get_mut(pid)) else { return false };
        (member.sampler, member.files_closed_us) = (Some(sampler), None);
        true
    }

    /// Samples a process again that seemed to have ended: another thread was replacing its program
    /// (execve), or runs on; false if it has ended.
    pub(super) fn open_again(&mut self, pid: i32) -> bool {
        let is_alive = |process: &Process| process.stat().is_ok_and(|stat| stat.is_alive());
        let process = Process::open(pid).ok().filter(is_alive);
        let Some(sampler) = process.and_then(|process| Sampler::open(&process).ok()) else {
            return self.reopen(pid);
        };
        let Some(member) = self.tree.get_mut(pid) else { return false };
        (member.sampler, member.files_closed_us, member.is_new_program) = (Some(sampler), None, true);
        true
    }

    /// Waits for unfinished ledgers, among them the one at the end of a watched process.
    fn wait_for_ledgers(&mut self, stop_reason: StopReason) {
        let until = self.clock.now_us() + LAST_LEDGERS_TIMEOUT.as_micros() as u64;
        let watched = (stop_reason == StopReason::Ended).then_some(self.root);
        let is_waiting = |ledgers: &Ledgers| {
            ledgers.under_way() > 0 || watched.is_some_and(|pid| ledgers.is_watching(pid))
        };
        while is_waiting(&self.ledgers) && self.clock.now_us() < until {
            let ready = self.poller.wait(if self.ledgers.under_way() > 0 { MAX_ROUND } else { WATCH_ROUND });
            if ready.has(Source::Signals) && self.take_signals() {
                // The user requested the stop twice.
                break;
            }
            self.take_ledgers();
        }
        self.take_ledgers();
    }

    /// Handles the last forks and ends. For a process that is not a child of the recorder, only the
    /// kernel's report shows how it ended, and it arrives a moment after the end is visible.
    fn wait_for_end_report(&mut self, stop_reason: StopReason, is_unknown: bool) {
        let until = self.clock.now_us() + END_EVENT_WAIT_US;
        loop {
            let now_us = self.clock.now_us();
            self.state.next_events_us = 0;
            self.handle_events(now_us);
            let is_report_pending =
                matches!(self.process_events, ProcessEvents::Connector(_)) && self.tree.has(self.root);
            if stop_reason != StopReason::Ended || !is_unknown || !is_report_pending || now_us >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Handles the end of the first process, if it has ended. Returns its high-water mark in KiB.
    fn end_root(&mut self, stop_reason: StopReason, wait_status: Option<i32>, now_us: u64) -> Option<u64> {
        let high_water_kib = |member: &Member| member.final_kib.or(member.high_water_kib());
        if stop_reason == StopReason::Interrupted {
            return self.tree.get_mut(self.root).and_then(|member| high_water_kib(member));
        }
        match self.tree.remove(self.root, wait_status) {
            Some(departed) => {
                let high_water_kib = high_water_kib(&departed.member);
                self.record_end(departed, now_us);
                high_water_kib
            }
            None => {
                // The kernel reported the end of its main thread before.
                let RootEnd { high_water_kib, at_us } = self.state.moments.root_end.unwrap_or_default();
                if now_us.saturating_sub(at_us) > LEADER_ONLY_US {
                    let text = "its main thread ended and others ran on: it was not sampled from then on";
                    self.add_caveat("leader_ended", format!("process {}", self.root), text);
                }
                high_water_kib
            }
        }
    }
}
