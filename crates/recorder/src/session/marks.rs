//! Marks: what is recorded when a program reports one, and when it is answered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use strandline_inspect::counted;
use strandline_process::procfs::{Process, is_alive};
use strandline_recording::{Mark, Moment, Record, Sample};

use super::Session;
use super::ledgers::MAX_PSS_PROCESSES;
use crate::marks::{MAX_NAME_CHARS, Marks, ReportedMark};
use crate::plan::{FIRST_MARKS, MarkLedgers};
use crate::sampler::WholeSample;
use crate::tree_pss::tree_pss_bytes;

/// After this time, check whether the process that reported a mark still waits.
const LONG_WAIT_US: u64 = 1_000;
/// An answer that is unread for this long was for a program that does not read answers.
const UNREAD_US: u64 = 20_000;
/// Maximum number of pending answers.
const MAX_PENDING_ANSWERS: usize = 4096;
/// Maximum number of marks that wait for their ledgers; further marks get no ledger.
const MAX_WAITING_FOR_LEDGERS: usize = 64;
/// Maximum number of unanswered marks; further ones are dropped, so that a program that floods the
/// socket during a ledger does not fill the recorder's memory.
const MAX_UNANSWERED: usize = 1 << 16;
/// Maximum number of reads for marks at the end.
const MAX_LAST_READS: usize = 100;

/// A mark that was reported and not answered yet.
struct WaitingMark {
    /// When it was reported.
    reported_us: u64,
    /// Its record; `None` if nothing is known about the process.
    record: Option<Mark>,
}

/// An answer that is not sent yet.
struct PendingAnswer {
    /// When its mark was reported.
    reported_us: u64,
    /// Whether its process had ended before it could be sampled.
    has_ended: bool,
}

/// The process that a mark is about.
struct MarkedProcess {
    pid: i32,
    /// Whether its files are open, so that it can be sampled.
    is_open: bool,
}

/// What is known about a process at a mark.
struct MarkFigures {
    /// The process's number in the recording.
    process: u32,
    sample: Sample,
    /// See [`Mark::status_bytes`].
    status_bytes: BTreeMap<String, u64>,
}

/// State of marks.
#[derive(Default)]
pub(super) struct MarkState {
    /// Marks that were reported and not answered yet.
    waiting: Vec<WaitingMark>,
    /// Number of marks that were dropped.
    dropped_count: u64,
    /// Answers to send, one after another.
    pending_answers: VecDeque<PendingAnswer>,
    /// Processes that reported marks since there were last no pending answers; `None` for those
    /// whose ids are unknown.
    reporters: BTreeSet<Option<i32>>,
    /// When the last answer was sent.
    answered_us: u64,
    /// Number of unfinished ledgers at marks.
    pub unfinished_ledgers: usize,
    /// Number of ledgers that were requested at marks.
    requested_ledgers: u64,
    /// Whether there is a caveat that only the first marks have ledgers.
    has_caveat_few: bool,
    /// Whether there is a caveat that names of marks were cut.
    has_caveat_cut: bool,
    /// Whether there is a caveat that too many marks waited for ledgers.
    has_caveat_flooded: bool,
    /// Whether too many marks wait: none gets a ledger until all are answered.
    is_flooded: bool,
    /// How long programs waited at marks, in total.
    pub waited_us: u64,
}

impl Session<'_> {
    /// Handles reported marks, and answers them unless a ledger at a mark is unfinished.
    pub(super) fn handle_marks(&mut self) {
        self.read_marks();
        self.answer_if_ledgers_done();
    }

    /// Handles reported marks; returns whether there were any.
    fn read_marks(&mut self) -> bool {
        let reported = self.marks.as_mut().map(Marks::read_reported).unwrap_or_default();
        let has_any = !reported.is_empty();
        for mark in reported {
            self.handle_mark(mark);
        }
        has_any
    }

    /// Answers every waiting program, unless a ledger at a mark is unfinished: any waiting process
    /// may read the answer meant for another.
    pub(super) fn answer_if_ledgers_done(&mut self) {
        if self.state.marks.unfinished_ledgers == 0 {
            self.state.marks.is_flooded = false;
            if !self.state.marks.waiting.is_empty() || !self.state.marks.pending_answers.is_empty() {
                self.read_marks();
            }
        }
        if self.state.marks.unfinished_ledgers == 0 {
            self.answer_marks();
        }
    }

    /// Sends a pending answer if it is due.
    pub(super) fn send_due_answer(&mut self) {
        if !self.state.marks.pending_answers.is_empty() {
            self.handle_marks();
        }
    }

    /// Sends the next answer once the last one was read: if there were two, one program could read
    /// both and pass its next mark before that was measured.
    fn send_next_answer(&mut self) {
        let state = &mut self.state.marks;
        let Some(marks) = self.marks.as_mut().filter(|_| state.unfinished_ledgers == 0) else { return };
        let now_us = self.clock.now_us();
        if !marks.is_answer_read() && now_us.saturating_sub(state.answered_us) < UNREAD_US {
            return;
        }
        let Some(&PendingAnswer { reported_us, has_ended }) = state.pending_answers.front() else {
            state.reporters.clear();
            return;
        };
        let may_be_dead = has_ended || now_us.saturating_sub(reported_us) >= LONG_WAIT_US;
        // A process of unknown id may still wait.
        let are_all_known = state.reporters.len() < MAX_PENDING_ANSWERS && !state.reporters.contains(&None);
        if may_be_dead && are_all_known && !state.reporters.iter().flatten().any(|&pid| is_alive(pid)) {
            // No process exists any more to read the answers: the next one to report a mark would
            // read them and continue too early. While one of the processes lives, it is unknown
            // whose answers the dead ones have read.
            state.pending_answers.clear();
            state.reporters.clear();
            return;
        }
        state.pending_answers.pop_front();
        marks.answer();
        state.answered_us = now_us;
    }

    /// Finds the process that a mark is about, and follows it. `reporter` is the process that sent
    /// the mark, if known.
    fn follow_marked_process(&mut self, reporter: Option<i32>, at_us: u64) -> MarkedProcess {
        // A process that is not followed is newer than the events read so far. Ends are handled
        // later.
        if !reporter.is_some_and(|pid| self.tree.has(pid)) && !self.read_events(at_us) {
            self.tree.search(at_us);
        }
        // For a process that has ended meanwhile, the figures are its last ones: the first process
        // did not report this mark.
        let reporter = reporter.unwrap_or(self.root);
        let reports_marks = self.tree.get_mut(reporter).is_some_and(|member| member.reports_marks);
        let pid = if reports_marks { reporter } else { marked_pid(reporter).unwrap_or(reporter) };
        let is_known = self.tree.has(pid);
        let member = self.tree.add(pid, None, at_us);
        let (is_sampled, is_numbered) = (member.sampler.is_some(), member.number.is_some());
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
        MarkedProcess { pid, is_open }
    }

    /// Samples a process at its mark, and requests a ledger if the plan has one.
    fn handle_mark(&mut self, reported: ReportedMark) {
        let is_first_of_reporter = self.state.marks.reporters.insert(reported.pid);
        if !is_first_of_reporter && self.state.marks.waiting.len() >= MAX_UNANSWERED {
            self.state.marks.dropped_count += 1;
            return;
        }
        let at_us = self.clock.now_us();
        let marked_process = self.follow_marked_process(reported.pid, at_us);
        let pid = marked_process.pid;
        let Some(figures) = self.sample_at_mark(&marked_process, at_us) else {
            let text = format!(
                "process {pid} reported the mark {:?} and ended before it could be sampled",
                reported.name
            );
            self.add_caveat("mark_without_sample", format!("process {pid}"), text);
            self.state.marks.waiting.push(WaitingMark { reported_us: at_us, record: None });
            return;
        };
        if reported.is_cut && !std::mem::replace(&mut self.state.marks.has_caveat_cut, true) {
            let text = format!("names of marks are cut to {MAX_NAME_CHARS} characters");
            self.add_caveat("mark_name_cut", format!("process {pid}"), text);
        }
        let pids = self.tree.pids();
        let has_tree_pss = pids.len() <= MAX_PSS_PROCESSES;
        let process = figures.process;
        let name = reported.name.clone();
        let record = Mark {
            process,
            pid,
            at_us,
            name: reported.name,
            sample: figures.sample,
            status_bytes: figures.status_bytes,
            tree_pss_bytes: if has_tree_pss { tree_pss_bytes(pids) } else { None },
            waited_us: 0,
        };
        self.state.progress.marks += 1;
        self.state.marks.waiting.push(WaitingMark { reported_us: at_us, record: Some(record) });
        if self.admit_ledger_at_mark() {
            self.state.marks.unfinished_ledgers += 1;
            self.request_ledger(process, pid, Moment::Mark, Some(name));
        }
    }

    /// Samples a process that reported a mark. If it has ended since, which happens if another
    /// process read its answer, the figures are those of its last sample.
    fn sample_at_mark(&mut self, marked_process: &MarkedProcess, at_us: u64) -> Option<MarkFigures> {
        let &MarkedProcess { pid, is_open } = marked_process;
        let units = self.units;
        if let Some(member) = self.tree.get_mut(pid).filter(|_| is_open)
            && let Some(WholeSample { sample, mut status_bytes }) =
                member.sampler.as_mut().and_then(|sampler| sampler.sample_all(units).ok())
        {
            member.add(at_us, sample);
            // A flood of marks does without sizes, which take most of the memory.
            if self.state.marks.waiting.len() >= MAX_PENDING_ANSWERS {
                status_bytes.clear();
            }
            return Some(MarkFigures { process: member.number?, sample, status_bytes });
        }
        let departed = self.state.departed.iter().filter(|departed| departed.pid == pid);
        let mut members = self.tree.get(pid).into_iter().chain(departed.map(|departed| &departed.member));
        members.find_map(|member| {
            let (process, sample) = (member.number?, member.last_sample?);
            Some(MarkFigures { process, sample, status_bytes: BTreeMap::new() })
        })
    }

    /// Decides whether the next mark gets a ledger, and counts it. The first mark without one adds
    /// a caveat.
    fn admit_ledger_at_mark(&mut self) -> bool {
        let state = &mut self.state.marks;
        state.is_flooded |= state.unfinished_ledgers >= MAX_WAITING_FOR_LEDGERS;
        if state.is_flooded {
            self.add_caveat_flooded();
            return false;
        }
        let is_planned = match self.plan.marks {
            MarkLedgers::All => true,
            MarkLedgers::Few => state.requested_ledgers < FIRST_MARKS,
            MarkLedgers::None => false,
        };
        if is_planned {
            state.requested_ledgers += 1;
        } else if self.plan.marks == MarkLedgers::Few && !std::mem::replace(&mut state.has_caveat_few, true) {
            let text =
                format!("only the first {FIRST_MARKS} marks have a ledger, --ledger marks takes one at each");
            self.add_caveat("few_ledgers", "marks", text);
        }
        is_planned
    }

    /// Adds the caveat that marks have no ledger because too many wait for theirs: a program that
    /// reports marks without waiting would make the recorder remember all of them.
    fn add_caveat_flooded(&mut self) {
        if !std::mem::replace(&mut self.state.marks.has_caveat_flooded, true) {
            let text = format!(
                "marks arrived while {MAX_WAITING_FOR_LEDGERS} others waited for their ledgers: those have no ledger"
            );
            self.add_caveat("marks_flooded", "marks", text);
        }
    }

    /// Answers every waiting program, then writes the marks.
    fn answer_marks(&mut self) {
        let waiting = std::mem::take(&mut self.state.marks.waiting);
        if waiting.is_empty() {
            return self.send_next_answer();
        }
        let now_us = self.clock.now_us();
        let pending_answers = &mut self.state.marks.pending_answers;
        let free_count = MAX_PENDING_ANSWERS.saturating_sub(pending_answers.len());
        // The programs of marks beyond the maximum read the answers that are pending.
        for WaitingMark { reported_us, record } in waiting.iter().take(free_count) {
            let (reported_us, has_ended) = (*reported_us, record.is_none());
            pending_answers.push_back(PendingAnswer { reported_us, has_ended });
        }
        self.send_next_answer();
        for mut record in waiting.into_iter().filter_map(|mark| mark.record) {
            record.waited_us = now_us.saturating_sub(record.at_us);
            self.state.marks.waited_us += record.waited_us;
            self.push(&Record::Mark(Box::new(record)));
        }
    }

    /// Handles the last marks. No program waits any more, but all marks are kept.
    pub(super) fn handle_last_marks(&mut self) {
        // A descendant that continues running may report marks forever.
        for _ in 0..MAX_LAST_READS {
            if !self.read_marks() {
                break;
            }
            self.answer_marks();
        }
        self.answer_marks();
        let dropped_count = self.state.marks.dropped_count;
        if dropped_count > 0 {
            let marks = counted(dropped_count, "mark");
            let text = format!("{marks} dropped, because {MAX_UNANSWERED} others were unanswered");
            self.add_caveat("marks_dropped", "marks", text);
        }
    }
}

/// The process that a mark is about: `reporter`, or its parent if `reporter` is `strandline mark`.
/// `None` if that parent is not recorded: the recorder itself, or init, which adopts orphans.
fn marked_pid(reporter: i32) -> Option<i32> {
    let process = Process::open(reporter).ok()?;
    let is_strandline = process.executable().is_some_and(|path| {
        std::fs::read_link("/proc/self/exe").is_ok_and(|own_path| own_path.as_os_str() == path.as_str())
    });
    if !is_strandline {
        return Some(reporter);
    }
    let own_pid = std::process::id().cast_signed();
    process.stat().ok()?.parent.filter(|&parent| parent > 1 && parent != own_pid)
}
