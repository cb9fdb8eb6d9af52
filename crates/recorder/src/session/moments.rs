//! Moments at which more than a sample is taken: marks, and ledgers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use strandline_process::procfs::Process;
use strandline_recording::{Ledger, Mark, Moment, Record, Sample};

use super::super::ledgers::{LedgerResult, Request, WatchRequest};
use super::super::marks::{MAX_NAME_CHARS, Marks, ReportedMark};
use super::super::plan::{FIRST_MARKS, MarkLedgers as MarksPlan};
use super::super::tree::{Member, ProcessEvents};
use super::super::tree_pss::tree_pss_bytes;
use super::super::watchable;
use super::Session;

/// Trees with more processes get no proportional set size at marks: the program would wait too
/// long.
const MAX_TREE: usize = 64;
/// Minimum age and RSS of descendants whose end is watched for: short or small ones are not worth
/// tracing.
const MIN_WATCHED_AGE_US: u64 = 100_000;
const MIN_WATCHED_KIB: u64 = 4 << 10;
/// Maximum number of descendants whose end is watched for at one time.
const MAX_WATCHED: usize = 64;
/// A ledger at a peak requires an RSS above this part of the last one's.
const PEAK_GROWTH_TENTHS: u64 = 11;
/// After this time, check whether the process that reported a mark still waits.
const LONG_WAIT_US: u64 = 1_000;
/// An answer that is unread for this long was for a program that does not read answers.
const UNREAD_US: u64 = 20_000;
/// Maximum number of pending answers.
const MAX_PENDING_ANSWERS: usize = 4096;
/// Minimum RSS of a peak that is worth a stop.
const MIN_PEAK_KIB: u64 = 1 << 10;
/// After a ledger at a peak, no process gets another one for this many times its duration.
const PEAK_REST_FACTOR: u64 = 10;
/// After a ledger, its process gets no regular one for this many times its duration: a process that
/// is read too often makes no progress.
const REGULAR_REST_FACTOR: u64 = 4;
/// A process is large if it holds at least the tree's RSS divided by this. At most `MAX_LARGE` of
/// them get a ledger when the tree does.
const LARGE_PART: u64 = 20;
const MAX_LARGE: usize = 8;
/// Maximum number of marks that wait for their ledgers; further marks get no ledger.
const MAX_WAITING: usize = 64;
/// Maximum number of unanswered marks; further ones are dropped, so that a program that floods the
/// socket during a ledger does not fill the recorder's memory.
const MAX_UNANSWERED: usize = 1 << 16;
/// Maximum number of reads for marks at the end.
const MAX_LAST_READS: usize = 100;

/// A mark that was reported and not answered yet.
struct WaitingMark {
    /// When it was reported.
    since_us: u64,
    /// Its record; `None` if nothing is known about the process.
    mark: Option<Mark>,
}

/// State of marks and ledgers.
#[derive(Default)]
pub(super) struct Moments {
    /// Marks that were reported and not answered yet.
    waiting: Vec<WaitingMark>,
    /// Number of marks that were dropped.
    dropped_marks: u64,
    pending_answers: VecDeque<PendingAnswer>,
    /// Processes that reported marks since there were last no pending answers.
    reporters: BTreeSet<i32>,
    /// When the last answer was sent.
    answered_us: u64,
    /// Number of unfinished ledgers at marks.
    mark_ledgers: usize,
    marks_with_ledgers: u64,
    /// Number of descendants whose end is watched for.
    pub watched: usize,
    /// Time before which no ledger at a peak is taken, of any process.
    no_peak_before_us: u64,
    /// Which caveats and warnings were given, each of them once.
    has_warned_few: bool,
    has_warned_cut: bool,
    has_warned_flooded: bool,
    has_warned_failed: bool,
    /// Whether too many marks wait: none gets a ledger until all are answered.
    is_flooded: bool,
    /// How long processes were stopped, in total.
    pub stopped_us: u64,
    /// How long programs waited at marks, in total.
    pub waited_us: u64,
    /// See [`strandline_recording::Ending`].
    pub brief_processes: u64,
    /// See [`strandline_recording::Ending`].
    pub unsampled_processes: u64,
    /// High-water mark of the first process at its reported end.
    pub root_high_water_kib: Option<u64>,
    /// Whether it was found running after its reported end.
    pub is_root_unsampled: bool,
}

/// An answer that is not sent yet.
struct PendingAnswer {
    /// Since when it is awaited.
    since_us: u64,
    /// Whether its process had ended before it could be sampled.
    has_ended: bool,
}

/// What a ledger found and took.
struct LedgerCost {
    rss_kib: u64,
    took_us: u64,
}

impl Session<'_> {
    /// Handles reported marks, and answers them unless a ledger at a mark is unfinished.
    pub(super) fn take_marks(&mut self) {
        self.read_marks();
        self.answer_if_done();
    }

    /// Handles reported marks; returns whether there were any.
    fn read_marks(&mut self) -> bool {
        let reported = self.marks.as_mut().map(Marks::take).unwrap_or_default();
        let has_any = !reported.is_empty();
        for mark in reported {
            self.take_mark(mark);
        }
        has_any
    }

    /// Answers every waiting program, unless a ledger at a mark is unfinished: any waiting process
    /// may read the answer meant for another.
    pub(super) fn answer_if_done(&mut self) {
        if self.state.moments.mark_ledgers == 0 {
            self.state.moments.is_flooded = false;
            if !self.state.moments.waiting.is_empty() || !self.state.moments.pending_answers.is_empty() {
                self.read_marks();
            }
        }
        if self.state.moments.mark_ledgers == 0 {
            self.answer_marks();
        }
    }

    /// Sends a pending answer if it is time.
    pub(super) fn poll_answers(&mut self) {
        if !self.state.moments.pending_answers.is_empty() {
            self.take_marks();
        }
    }

    /// Sends the next answer once the last one was read: if there were two, one program could read
    /// both and pass its next mark before that was measured.
    fn send_next_answer(&mut self) {
        let moments = &mut self.state.moments;
        let Some(marks) = self.marks.as_mut().filter(|_| moments.mark_ledgers == 0) else { return };
        let now_us = self.clock.now_us();
        if !marks.is_answer_read() && now_us.saturating_sub(moments.answered_us) < UNREAD_US {
            return;
        }
        let Some(&PendingAnswer { since_us, has_ended }) = moments.pending_answers.front() else {
            moments.reporters.clear();
            return;
        };
        let is_fresh = now_us.saturating_sub(since_us) < LONG_WAIT_US;
        let all_known = moments.reporters.len() < MAX_PENDING_ANSWERS;
        if (has_ended || !is_fresh) && all_known && !moments.reporters.iter().any(|&pid| is_alive(pid)) {
            // No process exists any more to read the answers: the next one to report a mark would
            // read them and continue too early. While one of the processes lives, it is unknown
            // whose answers the dead ones have read.
            moments.pending_answers.clear();
            moments.reporters.clear();
            return;
        }
        moments.pending_answers.pop_front();
        marks.answer();
        moments.answered_us = now_us;
    }

    /// Returns the process that a mark is about, and whether its files are open. `reporter` is the
    /// process that sent it; 0 if unknown.
    fn process_of_mark(&mut self, reporter: i32, at_us: u64) -> (i32, bool) {
        if !self.tree.has(reporter)
            && let ProcessEvents::Connector(connector) = &self.process_events
        {
            // The process is newer than the last check. Ends are handled when that is due.
            let has_all_events = self.tree.read_events(connector, at_us, &mut self.state.departed);
            if !has_all_events {
                self.tree.search(at_us);
            }
        }
        // For a process that has ended meanwhile, the figures are its last ones: the first process
        // did not report this mark.
        let reporter = if reporter > 0 { reporter } else { self.root };
        let reports_marks = self.tree.get_mut(reporter).is_some_and(|member| member.reports_marks);
        let pid = if reports_marks { reporter } else { marked_process(reporter).unwrap_or(reporter) };
        let is_known = self.tree.has(pid);
        if !is_known {
            self.tree.add(pid, None, at_us);
        }
        let member = self.tree.get_mut(pid);
        let (is_sampled, is_numbered) =
            member.map_or((false, false), |member| (member.sampler.is_some(), member.number.is_some()));
        // A process whose files were closed has ended, and so has one whose end was reported.
        // Neither is opened again, because the new entry would never end.
        let is_open = is_sampled || !is_numbered && (is_known || is_alive(pid)) && self.open(pid);
        if let Some(member) = self.tree.get_mut(pid) {
            member.reports_marks = pid == reporter;
        }
        if !is_known && !is_open {
            // Its end will not be reported: it has already ended.
            self.tree.remove(pid, None);
        }
        (pid, is_open)
    }

    fn take_mark(&mut self, reported: ReportedMark) {
        let is_first_of_it = self.state.moments.reporters.insert(reported.pid);
        if !is_first_of_it && self.state.moments.waiting.len() >= MAX_UNANSWERED {
            self.state.moments.dropped_marks += 1;
            return;
        }
        let at_us = self.clock.now_us();
        let (pid, is_open) = self.process_of_mark(reported.pid, at_us);
        let Some((process, sample, status_bytes)) = self.sample_for_mark(pid, at_us, is_open) else {
            let text = format!(
                "process {pid} reported the mark {:?} and ended before it could be sampled",
                reported.name
            );
            self.add_caveat("mark_without_sample", format!("process {pid}"), text);
            self.state.moments.waiting.push(WaitingMark { since_us: at_us, mark: None });
            return;
        };
        if reported.is_cut && !std::mem::replace(&mut self.state.moments.has_warned_cut, true) {
            let text = format!("names of marks are cut to {MAX_NAME_CHARS} characters");
            self.add_caveat("mark_name_cut", format!("process {pid}"), text);
        }
        let pids = self.tree.pids();
        let tree_pss_bytes = (pids.len() <= MAX_TREE).then(|| tree_pss_bytes(pids)).flatten();
        let name = reported.name.clone();
        let mark = Mark {
            process,
            pid,
            at_us,
            name: reported.name,
            sample,
            status_bytes,
            tree_pss_bytes,
            waited_us: 0,
        };
        self.state.progress.marks += 1;
        self.state.moments.waiting.push(WaitingMark { since_us: at_us, mark: Some(mark) });
        if self.wants_ledger_at_mark() {
            self.state.moments.mark_ledgers += 1;
            self.request_ledger(process, pid, Moment::Mark, Some(name));
        }
    }

    /// Number and figures of a process that reported a mark. If it has ended since, which happens
    /// if another process read its answer, the figures are those of its last sample.
    fn sample_for_mark(
        &mut self,
        pid: i32,
        at_us: u64,
        is_open: bool,
    ) -> Option<(u32, Sample, BTreeMap<String, u64>)> {
        let units = self.units;
        if let Some(member) = self.tree.get_mut(pid).filter(|_| is_open)
            && let Some((sample, sizes)) =
                member.sampler.as_mut().and_then(|sampler| sampler.sample_all(units).ok())
        {
            member.add(at_us, sample);
            // A flood of marks does without sizes, which take most of the memory.
            let is_flood = self.state.moments.waiting.len() >= MAX_PENDING_ANSWERS;
            return Some((member.number?, sample, if is_flood { BTreeMap::new() } else { sizes }));
        }
        let departed = self.state.departed.iter().filter(|departed| departed.pid == pid);
        let mut members = self.tree.get(pid).into_iter().chain(departed.map(|departed| &departed.member));
        members.find_map(|member| Some((member.number?, member.last?, BTreeMap::new())))
    }

    fn wants_ledger_at_mark(&mut self) -> bool {
        let moments = &mut self.state.moments;
        moments.is_flooded |= moments.mark_ledgers >= MAX_WAITING;
        let taken = moments.marks_with_ledgers;
        if moments.is_flooded {
            self.warn_flooded();
            return false;
        }
        let wants = match self.plan.marks {
            MarksPlan::All => true,
            MarksPlan::Few => taken < FIRST_MARKS,
            MarksPlan::None => false,
        };
        if wants {
            self.state.moments.marks_with_ledgers += 1;
        } else if self.plan.marks == MarksPlan::Few
            && !std::mem::replace(&mut self.state.moments.has_warned_few, true)
        {
            let text =
                format!("only the first {FIRST_MARKS} marks have a ledger, --ledger marks takes one at each");
            self.add_caveat("few_ledgers", "marks", text);
        }
        wants
    }

    /// A program that reports marks without waiting would make the recorder remember all of them.
    fn warn_flooded(&mut self) {
        if !std::mem::replace(&mut self.state.moments.has_warned_flooded, true) {
            let text = format!(
                "marks arrived while {MAX_WAITING} others waited for their ledgers: those have no ledger"
            );
            self.add_caveat("marks_flooded", "marks", text);
        }
    }

    fn request_ledger(&mut self, process: u32, pid: i32, moment: Moment, mark: Option<String>) {
        let pids = self.tree.pids();
        let tree = if pids.len() <= MAX_TREE { pids.to_vec() } else { Vec::new() };
        self.ledgers.request(Request { process, pid, moment, mark, tree });
    }

    /// Answers every waiting program, then writes the marks.
    fn answer_marks(&mut self) {
        let waiting = std::mem::take(&mut self.state.moments.waiting);
        if waiting.is_empty() {
            return self.send_next_answer();
        }
        let now_us = self.clock.now_us();
        let room = MAX_PENDING_ANSWERS.saturating_sub(self.state.moments.pending_answers.len());
        // Marks beyond the maximum have enough pending answers before them.
        for WaitingMark { since_us, mark, .. } in waiting.iter().take(room) {
            let answer = PendingAnswer { since_us: *since_us, has_ended: mark.is_none() };
            self.state.moments.pending_answers.push_back(answer);
        }
        self.send_next_answer();
        for mut mark in waiting.into_iter().filter_map(|waiting_mark| waiting_mark.mark) {
            mark.waited_us = now_us.saturating_sub(mark.at_us);
            self.state.moments.waited_us += mark.waited_us;
            self.push(&Record::Mark(Box::new(mark)));
        }
    }

    /// Handles the last marks. No program waits any more, but all marks are kept.
    pub(super) fn take_last_marks(&mut self) {
        // A descendant that continues running may report marks forever.
        for _ in 0..MAX_LAST_READS {
            if !self.read_marks() {
                break;
            }
            self.answer_marks();
        }
        self.answer_marks();
        let dropped = self.state.moments.dropped_marks;
        if dropped > 0 {
            let text = format!("{dropped} marks were dropped: {MAX_UNANSWERED} others were unanswered");
            self.add_caveat("marks_dropped", "marks", text);
        }
    }

    /// Handles a result of the ledger threads.
    pub(super) fn take_result(&mut self, result: LedgerResult) {
        match result {
            LedgerResult::Ledger(ledger) => self.take_ledger(ledger),
            LedgerResult::Failed { request, reason, stopped_us } => {
                self.state.moments.stopped_us += stopped_us;
                let text = format!("no ledger ({}): {reason}", moment_word(request.moment));
                // Under `run`, standard error belongs to the command.
                if !self.forwards_signals
                    && !std::mem::replace(&mut self.state.moments.has_warned_failed, true)
                {
                    (self.options.warn)(&text);
                }
                if !self.has_failed_before(&request) {
                    self.add_caveat("ledger_failed", format!("process {}", request.pid), text);
                }
                self.ledger_finished(request.process, request.moment, None);
            }
            LedgerResult::ProcessEnded(request) => {
                // Ledgers at marks and ends are expected; the others are taken only as often as
                // possible.
                if matches!(request.moment, Moment::Mark | Moment::Exit) {
                    let text =
                        format!("no ledger ({}): the process ended before", moment_word(request.moment));
                    self.add_caveat("ledger_failed", format!("process {}", request.pid), text);
                }
                self.ledger_finished(request.process, request.moment, None);
            }
            LedgerResult::Final { process, sample, high_water_kib } => {
                let now_us = self.clock.now_us();
                if let Some(member) = self.numbered(process) {
                    member.add(now_us, sample);
                    member.final_kib = high_water_kib;
                }
            }
            LedgerResult::NotWatched { process, reason } => {
                let had_watch =
                    self.numbered(process).is_some_and(|member| std::mem::take(&mut member.has_watch));
                self.state.moments.watched -= usize::from(had_watch);
                self.add_caveat(
                    "not_watched",
                    format!("process number {process}"),
                    format!("no ledger at its end: {reason}"),
                );
            }
        }
    }

    /// Writes a ledger.
    fn take_ledger(&mut self, mut ledger: Box<Ledger>) {
        if ledger.moment == Moment::Exit {
            // On a busy machine its watcher may have been late.
            let since_us = self.numbered(ledger.process).and_then(|member| member.stopped_since_us);
            ledger.at_us = since_us.map_or(ledger.at_us, |since_us| since_us.min(ledger.at_us));
        }
        let cost = ledger.explain.cost;
        self.state.moments.stopped_us += (cost.stopped_seconds * 1e6) as u64;
        self.state.progress.ledgers += 1;
        let rss_kib = ledger.explain.kernel.rss_bytes / 1024;
        let cost = LedgerCost { rss_kib, took_us: (cost.wall_seconds * 1e6) as u64 };
        self.ledger_finished(ledger.process, ledger.moment, Some(cost));
        ledger.explain.target.command.truncate(64);
        self.push(&Record::Ledger(ledger));
    }

    /// The process with this number in the recording, which may have ended just now.
    fn numbered(&mut self, number: u32) -> Option<&mut Member> {
        let mut departed = self.state.departed.iter_mut().map(|departed| &mut departed.member);
        self.tree.numbered(number).or_else(|| departed.find(|member| member.number == Some(number)))
    }

    /// After a failed ledger at a peak: waits for the next peak. Returns whether one had failed
    /// before, which makes the same reason likely.
    fn has_failed_before(&mut self, request: &Request) -> bool {
        let member = self.tree.numbered(request.process).filter(|_| request.moment == Moment::Peak);
        let Some(member) = member else { return false };
        member.peak_kib = member.peak_kib.max(member.rss_kib());
        std::mem::replace(&mut member.has_failed_peak, true)
    }

    /// Updates the state after a requested ledger was taken (with its cost) or has failed.
    fn ledger_finished(&mut self, process: u32, moment: Moment, cost: Option<LedgerCost>) {
        if moment == Moment::Mark {
            self.state.moments.mark_ledgers = self.state.moments.mark_ledgers.saturating_sub(1);
        }
        let now_us = self.clock.now_us();
        let Some(member) = self.tree.numbered(process) else { return };
        if moment != Moment::Exit {
            // The process was stopped for this ledger, not at its end.
            member.stopped_since_us = None;
        }
        if matches!(moment, Moment::Peak | Moment::Every) {
            member.has_pending_ledger = false;
            if let Some(LedgerCost { rss_kib, took_us }) = cost {
                member.peak_kib = member.peak_kib.max(rss_kib);
                let after_rest = |factor: u64| now_us.saturating_add(factor.saturating_mul(took_us));
                if moment == Moment::Peak {
                    self.state.moments.no_peak_before_us = after_rest(PEAK_REST_FACTOR);
                }
                member.no_regular_before_us = after_rest(REGULAR_REST_FACTOR);
            }
        }
    }

    /// After a sample: takes a ledger if the process is at a peak, and watches for its end if that
    /// is worth it.
    pub(super) fn consider_ledgers(&mut self, pid: i32, now_us: u64) {
        let (peak, exit) = (self.plan.peak, self.plan.exit);
        if !peak && !exit {
            return;
        }
        let tree_kib = self.state.progress.peak_bytes / 1024;
        let Moments { watched, no_peak_before_us, .. } = self.state.moments;
        let is_root = pid == self.root;
        let Some(member) = self.tree.get_mut(pid) else { return };
        let (Some(process), rss_kib) = (member.number, member.rss_kib()) else { return };
        let is_old = now_us.saturating_sub(member.first_seen_us) >= MIN_WATCHED_AGE_US;
        let is_worth_a_watch = !is_root && is_old && rss_kib >= MIN_WATCHED_KIB;
        if exit && !member.is_watched && is_worth_a_watch && watched < MAX_WATCHED {
            member.is_watched = true;
            let threads = std::sync::Arc::clone(&member.threads);
            if let Some(obstacle) = watchable::obstacle(Path::new(&format!("/proc/{pid}/exe"))) {
                self.warn_not_watched(pid, obstacle);
            } else {
                member.has_watch = true;
                self.ledgers.watch(pid, WatchRequest { process, threads });
                self.state.moments.watched += 1;
            }
            return;
        }
        let has_grown = rss_kib.saturating_mul(10) > member.peak_kib.saturating_mul(PEAK_GROWTH_TENTHS);
        let is_peak = has_grown && rss_kib >= MIN_PEAK_KIB && rss_kib >= tree_kib / LARGE_PART;
        if peak && is_peak && !member.has_pending_ledger && now_us >= no_peak_before_us {
            member.has_pending_ledger = true;
            self.request_ledger(process, pid, Moment::Peak, None);
        }
    }

    /// Called when a process runs another program: stops watching it if a trace would change what
    /// the program does.
    pub(super) fn reconsider_watch(&mut self, pid: i32) {
        let is_watched = self.plan.exit && self.tree.get_mut(pid).is_some_and(|member| member.is_watched);
        if is_watched && let Some(obstacle) = watchable::obstacle(Path::new(&format!("/proc/{pid}/exe"))) {
            self.ledgers.unwatch(pid);
            let had_watch =
                self.tree.get_mut(pid).is_some_and(|member| std::mem::take(&mut member.has_watch));
            self.state.moments.watched -= usize::from(had_watch);
            self.warn_not_watched(pid, obstacle);
        }
    }

    pub(in super::super) fn warn_not_watched(&mut self, pid: i32, obstacle: &str) {
        self.add_caveat("not_watched", format!("process {pid}"), format!("no ledger at its end: {obstacle}"));
    }

    /// Takes ledgers of the large processes, at the requested interval.
    pub(super) fn take_regular_ledgers(&mut self, now_us: u64) {
        let Some(every) = self.plan.every else { return };
        let is_first = self.state.next_every_us == 0;
        self.state.next_every_us = now_us + every.as_micros() as u64;
        if !is_first {
            self.take_ledgers_of_large_processes(Moment::Every);
        }
    }

    /// Takes ledgers of the processes that hold most of the tree's memory.
    pub(super) fn take_ledgers_of_large_processes(&mut self, moment: Moment) {
        let min_kib = self.tree.rss_kib() / LARGE_PART;
        let now_us = self.clock.now_us();
        let must_rest = |member: &Member| moment == Moment::Every && now_us < member.no_regular_before_us;
        let is_due =
            |member: &Member| !member.has_pending_ledger && member.rss_kib() >= min_kib && !must_rest(member);
        let mut large: Vec<_> = self.tree.members().filter(|(_, member)| is_due(member)).collect();
        large.sort_by_key(|(_, member)| std::cmp::Reverse(member.rss_kib()));
        let numbers = large.into_iter().filter_map(|(pid, member)| Some((pid, member.number?)));
        for (pid, process) in numbers.take(MAX_LARGE).collect::<Vec<_>>() {
            if moment == Moment::Every
                && let Some(member) = self.tree.get_mut(pid)
            {
                member.has_pending_ledger = true;
            }
            self.request_ledger(process, pid, moment, None);
        }
    }

    /// Takes the first ledgers of a running process, and watches for its end.
    pub(super) fn begin_ledgers(&mut self) {
        self.sample(self.root, self.clock.now_us());
        if self.plan.exit
            && let Some(member) = self.tree.get_mut(self.root)
        {
            member.is_watched = true;
            let threads = std::sync::Arc::clone(&member.threads);
            self.ledgers.watch(self.root, WatchRequest { process: 0, threads });
        }
        if self.plan.ends {
            self.take_ledgers_of_large_processes(Moment::Start);
        }
    }
}

/// Whether a process can still wait for an answer.
fn is_alive(pid: i32) -> bool {
    Process::open(pid).and_then(|process| process.stat()).is_ok_and(|stat| stat.is_alive())
}

/// A moment in words, for messages.
fn moment_word(moment: Moment) -> &'static str {
    match moment {
        Moment::Mark => "at a mark",
        Moment::Peak => "at a peak",
        Moment::Exit => "at the end",
        Moment::Every => "at its time",
        Moment::Start => "at the recording's beginning",
        Moment::End => "at the recording's end",
    }
}

/// The process that a mark is about: the one that reported it, or its parent if it is `strandline
/// mark`. The recorder, which may be that parent, and init, which adopts, are none of the recorded
/// processes.
fn marked_process(pid: i32) -> Option<i32> {
    let process = Process::open(pid).ok()?;
    let is_strandline = process.executable().is_some_and(|path| {
        std::fs::read_link("/proc/self/exe").is_ok_and(|own_path| own_path.as_os_str() == path.as_str())
    });
    if !is_strandline {
        return Some(pid);
    }
    let own_pid = std::process::id().cast_signed();
    process.stat().ok()?.parent.filter(|&parent| parent > 1 && parent != own_pid)
}
