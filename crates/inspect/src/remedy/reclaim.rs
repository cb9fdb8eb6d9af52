//! `reclaim`: predicts and applies a remedy, and reports the result.
//!
//! A refusal is a result, not an error: it contains the ledger made before it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::malloc_trim::{self, TrimRequest};
use super::notify::{self, Notified, NotifyRequest};
use super::purge;
use super::totals::CallTotals;
use super::zero_pages::{self, Released, ZeroRequest};
use super::{Applied, Refusal};
use crate::capture::{Options, Progress, SnapshotMode};
use crate::facts::{Explanation, Outcome, Reclamation, RemedyKind};
use crate::inspection::{Inspection, inspect};
use crate::readers;
use crate::verdict::remedies::ZERO_PAGES;
use strandline_claims::allocator::{CallHazard, CallPlan, CodeRanges, HazardCause};
use strandline_claims::caveat::Caveat;
use strandline_claims::reader::ReaderInfo;
use strandline_claims::remedy::{Action, Answer, Effect, Request, Spec};
use strandline_claims::units::{bytes, counted};
use strandline_process::elf::Object;
use strandline_process::error::Result;
use strandline_process::host;
use strandline_process::procfs::{self, Process};

/// How to release memory.
#[derive(Clone, Copy, Default)]
pub struct ReclaimOptions<'a> {
    /// Id of the remedy, from [`applicable`]; `None` for the allocator call that releases most.
    pub remedy: Option<&'a str>,
    /// Whether to predict only.
    pub dry_run: bool,
    /// How long to wait for a safe moment.
    pub wait: Duration,
    /// How long to count the target's minor faults afterwards.
    pub watch: Duration,
    /// Whether a method may be used that can lose a write of the target if strandline is killed.
    pub allow_lost_write_risk: bool,
    /// How long each read may stop the process; see [`Options::max_stop`].
    pub max_stop: Option<Duration>,
    /// See [`Options::quiet_for`].
    pub quiet_for: Duration,
    /// When to read a snapshot; see [`Options::snapshot`].
    pub snapshot: SnapshotMode,
    /// Called with the progress of the work.
    pub progress: Option<Progress<'a>>,
}

/// Growth right after a release is a caveat if it is above the released bytes divided by this.
const MIN_GROWTH_DIVISOR: u64 = 10;
/// Maximum number of reads of an inconsistent heap, which malloc may just be changing.
const MAX_READS: u32 = 5;
/// Pause between two of these reads.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Extra wait after the due time of a call: a free within a millisecond of it makes mimalloc wait
/// once more (mimalloc 2, segment.c, `mi_segment_schedule_purge`, `purge_extend_delay`).
const DUE_MARGIN: Duration = Duration::from_millis(10);
/// Help text of [`ZERO_PAGES`], which belongs to no reader.
const ZERO_PAGES_HELP: &str = "the kernel takes back resident pages that are all zero";

/// A remedy that [`reclaim`] applies, or refuses with advice.
#[derive(Clone, Copy, Debug)]
pub struct ApplicableRemedy {
    /// Its id.
    pub id: &'static str,
    /// What it does, in a line.
    pub help: &'static str,
    /// Whether [`reclaim`] refuses it, with advice on what to do in the program.
    pub is_advice: bool,
}

/// Returns the remedies that [`reclaim`] applies, or refuses with advice: calls into allocators,
/// zero pages, and remedies of runtimes.
pub fn applicable() -> Vec<ApplicableRemedy> {
    let specs_that = |accepts: fn(&Spec) -> bool| {
        let specs = readers::remedies().map(|(_, spec)| spec).filter(move |spec| accepts(spec));
        specs.map(|spec| ApplicableRemedy {
            id: spec.id,
            help: spec.help,
            is_advice: matches!(spec.action, Action::Advice(_)),
        })
    };
    let calls = specs_that(|spec| matches!(spec.action, Action::Call));
    let others =
        specs_that(|spec| matches!(spec.action, Action::Notify(_) | Action::Apply(_) | Action::Advice(_)));
    let zero_pages = ApplicableRemedy { id: ZERO_PAGES, help: ZERO_PAGES_HELP, is_advice: false };
    calls.chain([zero_pages]).chain(others).collect()
}

/// Applies a remedy to process `pid`, and reports its predicted and actual effect.
///
/// # Errors
/// Those of [`crate::explain::explain()`]. A remedy that cannot be applied is not an error but an
/// [`Outcome::Refused`] with its reason.
pub fn reclaim(pid: i32, options: &ReclaimOptions<'_>) -> Result<Reclamation> {
    let read_options = Options {
        progress: options.progress,
        max_stop: options.max_stop,
        quiet_for: options.quiet_for,
        snapshot: options.snapshot,
        ..Options::default()
    };
    let before = read_before(pid, options)?;
    let remedy = options.remedy.unwrap_or_else(|| best_call(&before));
    let predicted = before.explanation.remedies.iter().find(|predicted| predicted.id == remedy);
    let mut answer = Reclamation {
        remedy: remedy.to_owned(),
        dry_run: options.dry_run,
        predicted_bytes: predicted.and_then(|remedy| remedy.predicted_bytes),
        predicted_least_bytes: predicted.and_then(|remedy| remedy.predicted_least_bytes),
        predicted_pss_bytes: predicted.and_then(|remedy| remedy.predicted_pss_bytes),
        reason: predicted.and_then(|remedy| remedy.unknown_because.clone()),
        rss_before_bytes: Some(before.explanation.kernel.rss_bytes),
        ..Reclamation::default()
    };
    let was_applied = apply(pid, remedy, &before, options, &mut answer);
    if predicted.is_none() && answer.predicted_bytes.is_none() && answer.reason.is_none() {
        answer.reason = Some("not predicted: explain does not list it for this process".to_owned());
    }
    answer.before = Some(before.explanation);
    if was_applied {
        match inspect(pid, &read_options) {
            Ok(after) => {
                answer.after = Some(after.explanation);
                count_rows(&mut answer);
            }
            Err(error) => {
                let (place, text) = (format!("process {pid}"), error.to_string());
                answer.caveats.push(Caveat::new("no_second_look", place, None, text));
            }
        }
    }
    Ok(answer)
}

/// Applies the remedy, and reports its effect in `answer`; true if something was done.
fn apply(
    pid: i32,
    remedy: &str,
    before: &Inspection,
    options: &ReclaimOptions<'_>,
    answer: &mut Reclamation,
) -> bool {
    let entry = readers::remedy_and_reader(remedy);
    match entry.map(|(owner, spec)| (owner, spec, spec.action)) {
        Some((_, _, Action::Call)) => make_calls(pid, remedy, before, options, answer),
        Some((owner, _, Action::Notify(_))) => {
            notify_runtime(pid, remedy, owner.title, before, options, answer)
        }
        Some((owner, spec, Action::Apply(apply) | Action::Advice(apply))) => {
            apply_by_reader(apply, owner, spec, pid, before, options, answer)
        }
        None if remedy == ZERO_PAGES => release_zero_pages(pid, before, options, answer),
        Some((_, _, Action::NextStart)) | None => {
            let all: Vec<&str> = applicable().into_iter().map(|remedy| remedy.id).collect();
            refuse(answer, format!("reclaim has no remedy {remedy:?}; it has {}", all.join(", ")));
            false
        }
    }
}

/// Lets a reader apply a remedy; true if it did.
fn apply_by_reader(
    apply: fn(&Request<'_>) -> Answer,
    owner: &ReaderInfo,
    spec: &'static Spec,
    pid: i32,
    before: &Inspection,
    options: &ReclaimOptions<'_>,
    answer: &mut Reclamation,
) -> bool {
    let explanation = &before.explanation;
    let request = Request {
        spec,
        pid,
        runtime: explanation.runtimes.iter().find(|runtime| runtime.name == owner.name),
        remedy: explanation.remedies.iter().find(|predicted| predicted.id == spec.id),
        is_dry_run: options.dry_run,
        watch: options.watch,
    };
    match apply(&request) {
        Answer::Applied(applied) => return report_one(Ok(applied), answer),
        Answer::Possible => {}
        Answer::Nothing(reason) => set_nothing(answer, &reason),
        Answer::Refused(reason) => refuse(answer, reason),
    }
    false
}

/// Makes the calls that request the runtime `owner` to release memory; true if one was made.
fn notify_runtime(
    pid: i32,
    remedy: &str,
    owner: &str,
    before: &Inspection,
    options: &ReclaimOptions<'_>,
    answer: &mut Reclamation,
) -> bool {
    let unread = format!("no heap of {owner} was read in it (see the caveats of explain)");
    let plan = match before.notification(remedy).unwrap_or(Err(&unread)) {
        Ok(plan) => plan,
        Err(reason) => {
            refuse(answer, reason);
            return false;
        }
    };
    let plans = before.readings.iter().filter_map(|reading| reading.call.as_ref());
    let locks: Vec<u64> = plans.flat_map(|plan| plan.locks.iter().copied()).collect();
    let request = NotifyRequest { plan, locks: &locks, wait: options.wait, watch: options.watch };
    if options.dry_run {
        let refused = notify::check(pid, &request).err();
        refused.into_iter().for_each(|refusal| refuse(answer, refusal.to_string()));
        return false;
    }
    match notify::apply(pid, &request) {
        Ok(notified) => report_notified(notified, plan.calls.len(), owner, answer),
        Err(refusal) => report_one(Err(refusal.to_string()), answer),
    }
}

/// Reports in `answer` what the requests to the runtime `owner` did, which has `heap_count` heaps;
/// true, as requests were made.
fn report_notified(notified: Notified, heap_count: usize, owner: &str, answer: &mut Reclamation) -> bool {
    let Notified { applied, unfinished_heaps, refused, least_bytes, largest_drop_bytes, final_drop_bytes } =
        notified;
    if unfinished_heaps > 0 {
        let text = format!(
            "the threads of {unfinished_heaps} of {} have not run the collection within {} s (blocked, or busy in native code); \
             they run it when they can",
            counted(heap_count as u64, "heap"),
            notify::WORK_LIMIT.as_secs()
        );
        answer.caveats.push(Caveat::new("not_collected_yet", owner, None, text.as_str()));
        answer.reason = Some(text);
    }
    if refused.is_some() || unfinished_heaps > 0 {
        answer.predicted_bytes = None;
        answer.predicted_least_bytes = Some(least_bytes);
    }
    let grown = largest_drop_bytes.saturating_sub(final_drop_bytes);
    if final_drop_bytes < least_bytes || grown > largest_drop_bytes / MIN_GROWTH_DIVISOR {
        let cause = if largest_drop_bytes >= least_bytes {
            "the program has allocated again"
        } else {
            "the program allocated meanwhile, or the prediction is wrong"
        };
        let text = format!(
            "its private memory fell by {}, and by {} at the end: {cause}",
            bytes(largest_drop_bytes),
            bytes(final_drop_bytes)
        );
        answer.caveats.push(Caveat::new("grew_again", owner, Some(grown), text));
    }
    if let Some(refusal) = refused {
        let text = refusal.to_string();
        answer.caveats.push(Caveat::new("not_all_called", owner, None, text.as_str()));
        if refusal.has_begun() {
            // Not a refusal of the whole: the effect of the calls before it is reported.
            answer.reason = Some(text);
        }
    }
    report_one(Ok(applied), answer)
}

/// Sets the result of a runtime's own work to the bytes by which the rows of its reader fell.
fn count_rows(answer: &mut Reclamation) {
    let entry = readers::remedy_and_reader(&answer.remedy);
    let Some((about, Spec { action: Action::Notify(own_rows), .. })) = entry else { return };
    let is_own = |id: &str| own_rows.contains(&id);
    let bytes = |explanation: &Option<Explanation>| {
        let explanation = explanation.as_ref()?;
        let is_read = explanation.runtimes.iter().any(|runtime| runtime.name == about.name && runtime.read);
        let own = explanation.rows.iter().filter(|row| is_own(&row.id));
        is_read.then(|| own.map(|row| row.bytes).sum::<u64>())
    };
    if let Some((before, after)) = bytes(&answer.before).zip(bytes(&answer.after)) {
        answer.actual_bytes = Some(before.saturating_sub(after));
    }
}

/// Whether a remedy is a call into an allocator.
fn calls_allocator(remedy: &str) -> bool {
    readers::remedy(remedy).is_some_and(|spec| matches!(spec.action, Action::Call))
}

/// Whether a remedy is predicted from a trace of objects, which only a snapshot allows.
fn needs_trace(remedy: &str) -> bool {
    let is_applied = |spec: &Spec| matches!(spec.action, Action::Apply(_) | Action::Notify(_));
    readers::remedy(remedy).is_some_and(|spec| spec.effect == Effect::Objects && is_applied(spec))
}

/// Returns the remedy whose calls release most; among equals, the first of the table.
fn best_call(inspection: &Inspection) -> &'static str {
    let released =
        |id: &str| call_plans(inspection, id).map(|plan| plan.predicted_bytes).reduce(u64::saturating_add);
    let calls = readers::remedies().map(|(_, spec)| spec.id).filter(|id| calls_allocator(id));
    let best = calls.reduce(|best, id| if released(id) > released(best) { id } else { best });
    best.unwrap_or_default()
}

/// Reads the process before a remedy is applied.
fn read_before(pid: i32, options: &ReclaimOptions<'_>) -> Result<Inspection> {
    // A dry run makes the same checks, to find what would refuse the call.
    let is_call = options.remedy.is_none_or(calls_allocator);
    let needs_snapshot = options.remedy.is_some_and(needs_trace) && options.snapshot == SnapshotMode::Never;
    let read_options = Options {
        progress: options.progress,
        checks_for_call: is_call,
        max_stop: options.max_stop,
        quiet_for: options.quiet_for,
        snapshot: if needs_snapshot { SnapshotMode::IfPossible } else { options.snapshot },
        ..Options::default()
    };
    let mut inspection = inspect(pid, &read_options)?;
    let mut may_wait = is_call && !options.dry_run;
    for _ in 1..MAX_READS {
        let remedy = options.remedy.unwrap_or_else(|| best_call(&inspection));
        let reads_again = match call_hazard(&inspection, remedy).filter(|_| is_call) {
            // The next read would have no more time than this one.
            Some(hazard) if hazard.cause == HazardCause::TooSlow => false,
            Some(_) => {
                std::thread::sleep(RETRY_PAUSE);
                true
            }
            // While it waits, the process may free or reuse memory: the prediction is made again.
            None => std::mem::take(&mut may_wait) && wait_until_due(call_plans(&inspection, remedy)),
        };
        if !reads_again {
            break;
        }
        inspection = inspect(pid, &read_options)?;
    }
    Ok(inspection)
}

/// Returns the calls that `remedy` would make.
fn call_plans<'a>(inspection: &'a Inspection, remedy: &'a str) -> impl Iterator<Item = &'a CallPlan> {
    let plans = inspection.readings.iter().filter_map(|reading| reading.call.as_ref());
    plans.filter(move |plan| plan.spec.id == remedy)
}

/// Returns the reason against a call into a heap's allocator. Swapped-out pages are not read, so
/// structures that lead there look damaged although the program is not at fault.
fn call_hazard(inspection: &Inspection, remedy: &str) -> Option<CallHazard> {
    let mut hazard = call_plans(inspection, remedy).find_map(|plan| plan.doubt)?;
    if hazard.cause == HazardCause::Broken && inspection.explanation.kernel.swap_bytes > 0 {
        hazard.cause = HazardCause::Swapped;
    }
    Some(hazard)
}

/// Explains why a heap is not trimmed, and what to do instead.
fn hazard_text(remedy: &str, hazard: &CallHazard) -> String {
    let at = hazard.at;
    match hazard.cause {
        HazardCause::Broken => format!(
            "its heap is inconsistent at {at:#x}, in {MAX_READS} reads: {remedy} could abort it or never end. Look \
             for the overflow (valgrind, -fsanitize=address)"
        ),
        HazardCause::Swapped => {
            "parts of its heap are swapped out, so that it cannot be checked before the call".to_owned()
        }
        HazardCause::Reserved => {
            "parts of its heap are on reserved huge pages (hugetlb), which are no RSS and not read, so \
             that it cannot be checked before the call"
                .to_owned()
        }
        HazardCause::TooSlow => format!(
            "its heap was read up to {at:#x} only in the time for which a process may be stopped, so that it \
             cannot be checked before the call; try again when the machine is less busy, or with a longer --max-stop"
        ),
        HazardCause::LittleMemory => {
            "strandline has too little memory here to check its free lists before the call".to_owned()
        }
        HazardCause::Outside => format!(
            "its free chunk at {at:#x} lies in a part of the heap that was not found, so that what the call would do \
             there cannot be checked (see the caveats of explain); please report it with the output of explain --json"
        ),
    }
}

/// Marks `answer` as refused for `reason`.
fn refuse(answer: &mut Reclamation, reason: impl Into<String>) {
    answer.outcome = Outcome::Refused;
    answer.reason = Some(reason.into());
}

/// Marks `answer` as having nothing to do for `reason`.
fn set_nothing(answer: &mut Reclamation, reason: &str) {
    answer.outcome = Outcome::NothingToGiveBack;
    answer.reason = Some(reason.to_owned());
    answer.predicted_bytes = answer.predicted_bytes.or(Some(0));
    answer.actual_bytes = (!answer.dry_run).then_some(0);
}

/// Makes the calls of `remedy`, one for each allocator with memory to release; true if at least one
/// was made.
fn make_calls(
    pid: i32,
    remedy: &str,
    before: &Inspection,
    options: &ReclaimOptions<'_>,
    answer: &mut Reclamation,
) -> bool {
    let plans: Vec<_> = call_plans(before, remedy).collect();
    if plans.is_empty() && options.remedy.is_none() {
        refuse(answer, no_call(before));
        return false;
    }
    if plans.is_empty() {
        let owner = readers::frees_pages_of(remedy).map_or("such", |about| about.name);
        refuse(answer, format!("it has no {owner} heap, which {remedy} needs"));
        return false;
    }
    let hazard = call_hazard(before, remedy);
    let is_known = hazard.is_none_or(|hazard| hazard.cause != HazardCause::TooSlow);
    let plans: Vec<&CallPlan> = plans.into_iter().filter(|plan| plan.predicted_bytes > 0).collect();
    if (plans.is_empty() || answer.predicted_bytes == Some(0)) && is_known {
        set_nothing(answer, "no page of its heap is one that the call releases");
        return false;
    }
    if let Some(hazard) = hazard {
        refuse(answer, hazard_text(remedy, &hazard));
        return false;
    }
    if options.dry_run {
        let mut checks = plans.iter().map(|plan| check_call(pid, plan, before, options));
        let reason = checks.find_map(std::result::Result::err);
        reason.into_iter().for_each(|reason| refuse(answer, reason));
        return false;
    }
    wait_until_due(plans.iter().copied());
    let mut done = CallTotals::default();
    for plan in plans {
        let result = match plan.libc_code {
            Some(code) => trim(pid, plan, code, options, malloc_trim::apply),
            None => purge::apply(pid, &purge_request(plan, before, options)),
        };
        match result {
            Ok(applied) => {
                done.predicted_bytes +=
                    if plan.releases_all { applied.resident_before_bytes } else { plan.predicted_bytes };
                done.add(&applied);
            }
            Err(reason) if done.calls == 0 => {
                refuse(answer, reason);
                return false;
            }
            Err(reason) => {
                // Not a refusal of the whole, unless the process ended in this call: the effect of
                // the calls before it is reported.
                answer.reason = Some(reason);
                let was_applied = done.report(answer);
                if procfs::is_alive(pid) {
                    return was_applied;
                }
                answer.outcome = Outcome::Refused;
                return false;
            }
        }
    }
    done.set_predicted(answer);
    done.report(answer)
}

/// Explains why nothing is called if no remedy was requested and no allocator has one.
fn no_call(before: &Inspection) -> String {
    let read: BTreeSet<&str> =
        before.readings.iter().map(|reading| reading.allocator.name.as_str()).collect();
    let others = before.explanation.remedies.iter().filter(|remedy| remedy.kind != RemedyKind::Allocator);
    let others: Vec<&str> = others.map(|remedy| remedy.id.as_str()).collect();
    let reason = match read.into_iter().collect::<Vec<_>>().as_slice() {
        [] => "no allocator was found in it that has a call to release memory".to_owned(),
        [only] => format!("{only} has no call that releases memory"),
        several => format!("none of its allocators ({}) has a call that releases memory", several.join(", ")),
    };
    if others.is_empty() { reason } else { format!("{reason}; explain offers {}", others.join(", ")) }
}

/// Lets the process run until the calls release what was predicted; true if it waited. Readers
/// predict only memory that is due soon, so this ends within a second.
fn wait_until_due<'a>(plans: impl Iterator<Item = &'a CallPlan>) -> bool {
    let due = plans.filter(|plan| plan.predicted_bytes > 0).map(|plan| plan.due_milliseconds).max();
    let Some(due) = due.filter(|due| *due > 0) else { return false };
    let due = Duration::from_millis(due) + DUE_MARGIN;
    let remaining = due.saturating_sub(Duration::from_millis(host::monotonic_milliseconds()));
    std::thread::sleep(remaining);
    !remaining.is_zero()
}

/// Makes all checks that precede the call of `plan`, including the search for a safe thread.
fn check_call(
    pid: i32,
    plan: &CallPlan,
    before: &Inspection,
    options: &ReclaimOptions<'_>,
) -> std::result::Result<(), String> {
    match plan.libc_code {
        Some(code) => trim(pid, plan, code, options, malloc_trim::check),
        None => purge::check(pid, &purge_request(plan, before, options)),
    }
}

/// Makes the request to an allocator other than glibc's. If a third allocator is in the process, it
/// is unknown which of the others this one requests memory from, so `libc` is `None`.
fn purge_request<'a>(
    plan: &'a CallPlan,
    before: &'a Inspection,
    options: &ReclaimOptions<'_>,
) -> purge::PurgeRequest<'a> {
    let others: Vec<&CallPlan> = before
        .readings
        .iter()
        .filter_map(|reading| reading.call.as_ref())
        .filter(|other| other.object != plan.object)
        .collect();
    let libc = match others.as_slice() {
        [only] if only.libc_code.is_some() => Some(*only),
        _ => None,
    };
    purge::PurgeRequest { plan, libc, wait: options.wait, watch: options.watch }
}

/// Calls malloc_trim(0) once, or only checks whether it would be called, depending on `act`.
fn trim<T>(
    pid: i32,
    plan: &CallPlan,
    code: CodeRanges,
    options: &ReclaimOptions<'_>,
    act: fn(i32, &TrimRequest<'_>) -> std::result::Result<T, Refusal>,
) -> std::result::Result<T, String> {
    let libc = open_object(pid, plan.object)?;
    let request = TrimRequest {
        function: malloc_trim::find_function(&libc, plan)?,
        libc: &libc,
        code,
        locks: plan.locks.clone(),
        heaps: plan.heaps.iter().map(|&heap| heap.into()).collect(),
        wait: options.wait,
        watch: options.watch,
        thread: None,
    };
    act(pid, &request).map_err(|refusal| refusal.to_string())
}

/// Releases the all-zero pages that were found; true if it did.
fn release_zero_pages(
    pid: i32,
    before: &Inspection,
    options: &ReclaimOptions<'_>,
    answer: &mut Reclamation,
) -> bool {
    if before.zero_runs.is_empty() {
        set_nothing(answer, "no page of its private anonymous memory holds only zeros");
        return false;
    }
    let request = ZeroRequest {
        ranges: before.zero_runs.iter().map(|&range| range.into()).collect(),
        allow_risk: options.allow_lost_write_risk,
        wait: options.wait,
        watch: options.watch,
    };
    if options.dry_run {
        let refused = zero_pages::check(pid, &request).err();
        refused.into_iter().for_each(|refusal| refuse(answer, refusal.to_string()));
        return false;
    }
    let released = zero_pages::apply(pid, &request).map_err(|refusal| refusal.to_string());
    answer.reason = released.as_ref().ok().and_then(Released::remark).or(answer.reason.take());
    report_one(released.map(|released| released.applied), answer)
}

/// Reports the only call in `answer`, or why it was not made; true if it was.
fn report_one(applied: std::result::Result<Applied, String>, answer: &mut Reclamation) -> bool {
    let mut done = CallTotals::default();
    match applied {
        Ok(applied) => done.add(&applied),
        Err(reason) => refuse(answer, reason),
    }
    done.report(answer)
}

/// Opens the file of the object mapped at `address`.
fn open_object(pid: i32, address: u64) -> std::result::Result<Object, String> {
    let process = Process::open(pid).map_err(|error| error.to_string())?;
    let space = process.address_space().map_err(|error| error.to_string())?;
    let mapping = space.find(address).ok_or("its C library was unmapped meanwhile")?;
    Object::open(&process, &space, mapping).map_err(|error| error.to_string())
}
