//! Ledgers: when one is requested, and what is done with its result.

use std::path::PathBuf;
use std::sync::Arc;

use strandline_recording::{Ledger, Moment, Record, cut_command};

use super::Session;
use crate::clock::micros;
use crate::ledgers::{LedgerResult, Request, WatchRequest};
use crate::member::Member;
use crate::watchable;

/// Trees with more processes get no proportional set size at marks: the program would wait too
/// long.
pub(super) const MAX_PSS_PROCESSES: usize = 64;
/// Minimum age of descendants whose end is watched for: shorter ones are not worth tracing.
const MIN_WATCHED_AGE_US: u64 = 100_000;
/// Minimum RSS of descendants whose end is watched for.
const MIN_WATCHED_KIB: u64 = 4 << 10;
/// Maximum number of descendants whose end is watched for at one time.
const MAX_WATCHED: usize = 64;
/// A ledger at a peak requires an RSS above this percentage of `MemberLedgers::peak_kib`.
const PEAK_GROWTH_PERCENT: u64 = 110;
/// Minimum RSS of a peak that is worth a stop.
const MIN_PEAK_KIB: u64 = 1 << 10;
/// After a ledger at a peak, no process gets another one for this many times its duration.
const PEAK_REST_FACTOR: u64 = 10;
/// After a ledger, its process gets no regular one for this many times its duration: a process that
/// is read too often makes no progress.
const REGULAR_REST_FACTOR: u64 = 4;
/// A process is large if it holds at least the tree's RSS divided by this.
const LARGE_SHARE_DIVISOR: u64 = 20;
/// Maximum number of large processes that get a ledger when the tree does.
const MAX_LARGE: usize = 8;

/// State of ledgers, except those at marks.
#[derive(Default)]
pub(super) struct LedgerState {
    /// Number of descendants whose end is watched for.
    pub watched_count: usize,
    /// Time before which no ledger at a peak is taken, of any process.
    no_peak_before_us: u64,
    /// Whether the user was warned that a ledger has failed.
    has_warned_failed: bool,
    /// Whether there is a caveat that not every descendant is watched.
    has_caveat_max_watched: bool,
    /// How long processes were stopped, in total.
    pub stopped_us: u64,
}

/// What a ledger found and took.
struct LedgerCost {
    rss_kib: u64,
    /// How long it took, in microseconds.
    took_us: u64,
}

impl Session<'_> {
    /// Requests a ledger of `pid`, which has the number `process` in the recording; `mark` is the
    /// name of the mark, if it is taken at one.
    pub(super) fn request_ledger(&mut self, process: u32, pid: i32, moment: Moment, mark: Option<String>) {
        let pids = self.tree.pids();
        let tree_pids = if pids.len() <= MAX_PSS_PROCESSES { pids.to_vec() } else { Vec::new() };
        self.ledgers.request(Request { process, pid, moment, mark, tree_pids });
    }

    /// Handles a result of the ledger threads.
    pub(super) fn handle_ledger_result(&mut self, result: LedgerResult) {
        match result {
            LedgerResult::Ledger(ledger) => self.write_ledger(ledger),
            LedgerResult::Failed { request, reason, stopped_us } => {
                self.state.ledgers.stopped_us += stopped_us;
                let text = format!("no ledger ({}): {reason}", moment_text(request.moment));
                // Under `run`, standard error belongs to the command.
                if !self.forwards_signals
                    && !std::mem::replace(&mut self.state.ledgers.has_warned_failed, true)
                {
                    (self.options.warn)(&text);
                }
                if !self.note_failed_peak(&request) {
                    self.add_caveat("ledger_failed", format!("process {}", request.pid), text);
                }
                self.ledger_finished(request.process, request.moment, None);
            }
            LedgerResult::ProcessEnded(request) => {
                // Ledgers at marks and ends are expected; the others are taken only as often as
                // possible.
                if matches!(request.moment, Moment::Mark | Moment::Exit) {
                    let text =
                        format!("no ledger ({}): the process ended before", moment_text(request.moment));
                    self.add_caveat("ledger_failed", format!("process {}", request.pid), text);
                }
                self.ledger_finished(request.process, request.moment, None);
            }
            LedgerResult::Final { process, sample, high_water_kib } => {
                let now_us = self.clock.now_us();
                if let Some(member) = self.member_by_number(process) {
                    member.add(now_us, sample);
                    member.final_high_water_kib = high_water_kib;
                }
            }
            LedgerResult::NotWatched { process, reason } => {
                let was_counted = self
                    .member_by_number(process)
                    .is_some_and(|member| std::mem::take(&mut member.watch.is_counted));
                self.state.ledgers.watched_count -= usize::from(was_counted);
                let text = format!("no ledger at its end: {reason}");
                self.add_caveat("not_watched", format!("process number {process}"), text);
            }
        }
    }

    /// Writes a ledger.
    fn write_ledger(&mut self, mut ledger: Box<Ledger>) {
        if ledger.moment == Moment::Exit {
            // On a busy machine its watcher may have been late.
            let stopped_us = self.member_by_number(ledger.process).and_then(|member| member.stopped_since_us);
            ledger.at_us = stopped_us.map_or(ledger.at_us, |stopped_us| stopped_us.min(ledger.at_us));
        }
        let cost = ledger.explain.cost;
        self.state.ledgers.stopped_us += (cost.stopped_seconds * 1e6) as u64;
        self.state.progress.ledgers += 1;
        let rss_kib = ledger.explain.kernel.rss_bytes / 1024;
        let cost = LedgerCost { rss_kib, took_us: (cost.wall_seconds * 1e6) as u64 };
        self.ledger_finished(ledger.process, ledger.moment, Some(cost));
        cut_command(&mut ledger.explain.target.command);
        self.push(&Record::Ledger(ledger));
    }

    /// The process with this number in the recording, which may have ended just now.
    fn member_by_number(&mut self, number: u32) -> Option<&mut Member> {
        let mut departed = self.state.departed.iter_mut().map(|departed| &mut departed.member);
        self.tree.member_by_number(number).or_else(|| departed.find(|member| member.number == Some(number)))
    }

    /// After a failed ledger at a peak: has the process wait for its next peak. Returns whether one
    /// had failed before, which makes the same reason likely.
    fn note_failed_peak(&mut self, request: &Request) -> bool {
        let member = self.tree.member_by_number(request.process).filter(|_| request.moment == Moment::Peak);
        let Some(member) = member else { return false };
        member.ledgers.peak_kib = member.ledgers.peak_kib.max(member.rss_kib());
        std::mem::replace(&mut member.ledgers.has_failed_peak, true)
    }

    /// Updates the state after a requested ledger was taken (with its cost) or has failed.
    fn ledger_finished(&mut self, process: u32, moment: Moment, cost: Option<LedgerCost>) {
        if moment == Moment::Mark {
            self.state.marks.unfinished_ledgers = self.state.marks.unfinished_ledgers.saturating_sub(1);
        }
        let now_us = self.clock.now_us();
        let Some(member) = self.tree.member_by_number(process) else { return };
        if moment != Moment::Exit {
            // The process was stopped for this ledger, not at its end.
            member.stopped_since_us = None;
        }
        if matches!(moment, Moment::Peak | Moment::Every) {
            member.ledgers.has_pending = false;
            if let Some(LedgerCost { rss_kib, took_us }) = cost {
                member.ledgers.peak_kib = member.ledgers.peak_kib.max(rss_kib);
                let after_rest = |factor: u64| now_us.saturating_add(factor.saturating_mul(took_us));
                if moment == Moment::Peak {
                    self.state.ledgers.no_peak_before_us = after_rest(PEAK_REST_FACTOR);
                }
                member.ledgers.no_regular_before_us = after_rest(REGULAR_REST_FACTOR);
            }
        }
    }

    /// After a sample: watches for the end of the process if that is worth it, or else requests a
    /// ledger if the process is at a peak.
    pub(super) fn consider_ledgers(&mut self, pid: i32, now_us: u64) {
        let begins_watch = self.plan.at_exits && self.begin_worthwhile_watch(pid, now_us);
        if self.plan.at_peaks && !begins_watch {
            self.consider_peak(pid, now_us);
        }
    }

    /// Watches for the end of a descendant that is old and large enough, unless a trace would
    /// change what it does. Returns whether it is.
    fn begin_worthwhile_watch(&mut self, pid: i32, now_us: u64) -> bool {
        if pid == self.root {
            return false;
        }
        let Some(member) = self.tree.get_mut(pid) else { return false };
        let Some(process) = member.number else { return false };
        let is_old = now_us.saturating_sub(member.first_seen_us) >= MIN_WATCHED_AGE_US;
        if member.watch.is_requested || !is_old || member.rss_kib() < MIN_WATCHED_KIB {
            return false;
        }
        if self.state.ledgers.watched_count >= MAX_WATCHED {
            if !std::mem::replace(&mut self.state.ledgers.has_caveat_max_watched, true) {
                let text = format!(
                    "the ends of {MAX_WATCHED} processes are watched for at one time: others may have no ledger at their ends"
                );
                self.add_caveat("not_watched", "processes", text);
            }
            return false;
        }
        member.watch.is_requested = true;
        if let Some(obstacle) = watchable::obstacle(&executable_path(pid)) {
            self.add_caveat_not_watched(pid, obstacle);
        } else {
            member.watch.is_counted = true;
            let threads = Arc::clone(&member.threads);
            self.ledgers.watch(pid, WatchRequest { process, threads });
            self.state.ledgers.watched_count += 1;
        }
        true
    }

    /// Requests a ledger of a process whose RSS is well above that at earlier ones, and a large
    /// part of the tree's.
    fn consider_peak(&mut self, pid: i32, now_us: u64) {
        let tree_peak_kib = self.state.progress.peak_bytes / 1024;
        let Some(member) = self.tree.get_mut(pid) else { return };
        let Some(process) = member.number else { return };
        let rss_kib = member.rss_kib();
        let is_large = rss_kib >= MIN_PEAK_KIB && rss_kib >= tree_peak_kib / LARGE_SHARE_DIVISOR;
        let has_grown =
            rss_kib.saturating_mul(100) > member.ledgers.peak_kib.saturating_mul(PEAK_GROWTH_PERCENT);
        let may_stop = !member.ledgers.has_pending && now_us >= self.state.ledgers.no_peak_before_us;
        if is_large && has_grown && may_stop {
            member.ledgers.has_pending = true;
            self.request_ledger(process, pid, Moment::Peak, None);
        }
    }

    /// Called when a process runs another program: stops watching it if a trace would change what
    /// the program does.
    pub(super) fn reconsider_watch(&mut self, pid: i32) {
        let Some(member) = self.tree.get_mut(pid).filter(|member| member.watch.is_requested) else { return };
        if self.plan.at_exits
            && let Some(obstacle) = watchable::obstacle(&executable_path(pid))
        {
            self.ledgers.unwatch(pid);
            let was_counted = std::mem::take(&mut member.watch.is_counted);
            self.state.ledgers.watched_count -= usize::from(was_counted);
            self.add_caveat_not_watched(pid, obstacle);
        }
    }

    /// Adds a caveat for a process that must not be watched.
    pub(crate) fn add_caveat_not_watched(&mut self, pid: i32, obstacle: &str) {
        self.add_caveat("not_watched", format!("process {pid}"), format!("no ledger at its end: {obstacle}"));
    }

    /// Requests ledgers of the large processes, at the interval of the plan.
    pub(super) fn request_regular_ledgers(&mut self, now_us: u64) {
        let Some(interval) = self.plan.every else { return };
        let is_first_call = self.state.next.regular_ledgers_us == 0;
        self.state.next.regular_ledgers_us = now_us + micros(interval);
        if !is_first_call {
            self.request_ledgers_of_large_processes(Moment::Every);
        }
    }

    /// Requests ledgers of the processes that hold most of the tree's memory.
    pub(super) fn request_ledgers_of_large_processes(&mut self, moment: Moment) {
        let min_kib = self.tree.rss_kib() / LARGE_SHARE_DIVISOR;
        let now_us = self.clock.now_us();
        let must_rest =
            |member: &Member| moment == Moment::Every && now_us < member.ledgers.no_regular_before_us;
        let is_due = |member: &Member| {
            !member.ledgers.has_pending && member.rss_kib() >= min_kib && !must_rest(member)
        };
        let mut large: Vec<_> = self.tree.members().filter(|(_, member)| is_due(member)).collect();
        large.sort_by_key(|(_, member)| std::cmp::Reverse(member.rss_kib()));
        let numbers = large.into_iter().filter_map(|(pid, member)| Some((pid, member.number?)));
        for (pid, process) in numbers.take(MAX_LARGE).collect::<Vec<_>>() {
            if moment == Moment::Every
                && let Some(member) = self.tree.get_mut(pid)
            {
                member.ledgers.has_pending = true;
            }
            self.request_ledger(process, pid, moment, None);
        }
    }

    /// Requests the first ledgers of a process that was attached to, and watches for its end.
    pub(crate) fn begin_ledgers(&mut self) {
        self.sample(self.root, self.clock.now_us());
        if self.plan.at_exits
            && let Some(member) = self.tree.get_mut(self.root)
        {
            member.watch.is_requested = true;
            let threads = Arc::clone(&member.threads);
            self.ledgers.watch(self.root, WatchRequest { process: 0, threads });
        }
        if self.plan.at_ends {
            self.request_ledgers_of_large_processes(Moment::Start);
        }
    }
}

/// Where the kernel shows the executable of a process.
fn executable_path(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/exe"))
}

/// A moment in words, for messages.
fn moment_text(moment: Moment) -> &'static str {
    match moment {
        Moment::Mark => "at a mark",
        Moment::Peak => "at a peak",
        Moment::Exit => "at the end",
        Moment::Every => "at its time",
        Moment::Start => "at the recording's beginning",
        Moment::End => "at the recording's end",
    }
}
