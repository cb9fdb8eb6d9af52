//! The remedy `zero_pages`: releases private anonymous pages that contain only zeros. They read
//! the same afterwards, so the program does not notice.
//!
//! Nothing may write to a page between the check that it is all zero and its release. The safe
//! method leaves that to the kernel (paging out, if there is swap). The direct method stops all
//! threads and makes one call madvise; if strandline were killed in the microseconds between arming
//! that call and its end, the other threads would run on and a write could be lost. So the direct
//! method is used on request only, in small ranges, and never if something else may hold the pages
//! ([`strandline_process::target::holders`]).

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use strandline_sys::process::{self as sys, MADV_PAGEOUT};
use strandline_sys::ptrace::Registers;

use super::{Applied, Footprint, Refusal, call, choose, precheck};
use crate::ledger::zeros;
use strandline_claims::units;
use strandline_process::call::code::{CallSites, can_call};
use strandline_process::call::filters::{self, RequiredCall};
use strandline_process::call::frame::SYSCALL_BYTES;
use strandline_process::call::inject::{self, CallError, Injected};
use strandline_process::control_groups::ControlGroups;
use strandline_process::error::Error;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::pages::{self, page_of, page_up};
use strandline_process::procfs::{self, Process};
use strandline_process::range::{AddressRange, overlapping};
use strandline_process::smaps::{Smaps, SmapsEntry};
use strandline_process::target::admission;
use strandline_process::target::asleep;
use strandline_process::target::hold::on_own_thread;
use strandline_process::target::holders;
use strandline_process::target::live::MemFile;
use strandline_process::target::stop::{Stopped, Transfers};

/// Maximum bytes released in one system call.
const MAX_CALL_BYTES: u64 = 2 << 20;
/// How long all threads are stopped at a time, approximately.
const STOP_LIMIT: Duration = Duration::from_millis(50);
/// How long they run between two stops.
const RUN_TIME: Duration = Duration::from_millis(50);
/// Number of getpid on x86-64. It has no effect: the thread would run it if strandline died before
/// the arming.
const GETPID: u64 = 39;
/// Number of madvise on x86-64.
const MADVISE: u64 = 28;
/// The advice that releases pages (madvise(2)).
const MADV_DONTNEED: u64 = 4;
// Error numbers of process_madvise(2).
const EPERM: i32 = 1;
const ESRCH: i32 = 3;
/// Flags in smaps (VmFlags; fs/proc/task_mmu.c, `show_smap_vma_flags`) of mappings in which nothing
/// is released: locked, hugetlb, of a device, of plain page frames alone or mixed with pages, and
/// watched by a userfaultfd for missing pages, writes or minor faults.
const EXCLUDED_FLAGS: [&[u8; 2]; 8] = [b"lo", b"ht", b"io", b"pf", b"mm", b"um", b"uw", b"ui"];
/// The calls that the thread makes.
const INJECTED_CALLS: [RequiredCall; 3] = [
    RequiredCall::with_any_arguments("getpid", GETPID as u32),
    RequiredCall::with_any_arguments("madvise", MADVISE as u32),
    filters::SIGNAL_RETURN,
];

/// The pages to release, and the accepted risk.
#[derive(Clone, Debug)]
pub struct ZeroRequest {
    /// Ranges of private anonymous memory, whole pages, in address order. Only resident all-zero
    /// pages in them are released.
    pub ranges: Vec<Range<u64>>,
    /// Whether to accept that a write may be lost if strandline is killed in the middle of a call.
    pub allow_risk: bool,
    /// How long to try to stop all threads.
    pub wait: Duration,
    /// How long to count minor faults afterwards; zero to count none.
    pub watch: Duration,
}

/// What was done.
#[derive(Debug)]
pub struct Released {
    /// Effect and cost.
    pub applied: Applied,
    /// The refusal that ended the work after a part of it.
    pub refused: Option<Refusal>,
}

impl Released {
    /// What was not done, and why.
    pub fn remark(&self) -> Option<String> {
        let refused = self.refused.as_ref();
        refused.map(|refusal| format!("not all of its zero pages were tried: {refusal}"))
    }
}

/// Releases the all-zero pages of `request.ranges` of process `pid`.
///
/// Blocks for at most `wait` per stretch of work, and for `watch`. A refusal means that nothing was
/// changed, unless [`Refusal::has_begun`] is true: then earlier stretches may have released pages.
pub fn apply(pid: i32, request: &ZeroRequest) -> Result<Released, Refusal> {
    let process = &admission::open_target(pid)?;
    let method = choose_method(process, request)?;
    let pagemap = process.open_file("pagemap")?;
    let before = Footprint::of(process);
    let Released { applied: effect, refused } = match method {
        Method::PageOut => page_out(process, request, &pagemap)?,
        Method::Direct(code) => release_directly(process, request, code, &pagemap)?,
    };
    let mut applied = Applied { before, after: Footprint::of(process), ..effect };
    applied.watch_faults(process, request.watch);
    Ok(Released { applied, refused })
}

/// Checks whether [`apply`] would release pages now, without releasing any; the refusal is the one
/// that it would return.
pub fn check(pid: i32, request: &ZeroRequest) -> Result<(), Refusal> {
    choose_method(&admission::open_target(pid)?, request).map(drop)
}

/// How pages are released.
enum Method {
    /// By the kernel, which keeps what is written meanwhile.
    PageOut,
    /// By madvise in the process, through this code of it.
    Direct(CallSites),
}

/// Checks the process, and chooses how its pages are released.
fn choose_method(process: &Process, request: &ZeroRequest) -> Result<Method, Refusal> {
    let (pid, status) = (process.pid(), precheck::check(process)?);
    let refuse = |what: String| not_releasable(pid, what);
    let space = process.address_space()?;
    if let Some(bytes) = status.pinned_bytes.filter(|&bytes| bytes > 0) {
        return Err(refuse(format!("has {} pinned in memory (VmPin)", units::bytes(bytes))));
    }
    refuse_if_held(process, &space)?;
    if let Some(reason) = holders::reason_to_keep(process, &request.ranges)? {
        return Err(refuse(format!("has pages that must stay: {reason}")));
    }
    match page_out_obstacle(process) {
        None => return Ok(Method::PageOut),
        Some(_) if request.allow_risk => {}
        Some(obstacle) => return Err(Refusal::NeedsRisk { reason: direct_risk(obstacle) }),
    }
    // Checked again in each stop; here for a dry run, and before anything is stopped.
    refuse_if_shared(process)?;
    if status.is_under_seccomp() {
        filters::check(process, &INJECTED_CALLS).map_err(|filter| refuse(format!("runs under {filter}")))?;
    }
    let code = CallSites::find(process, &space);
    code.map(Method::Direct).ok_or_else(|| call::no_trampoline(pid))
}

/// Returns the refusal of a process in which nothing is released, because it `what` (a predicate).
fn not_releasable(pid: i32, what: String) -> Refusal {
    Refusal::Unsafe { pid, what, advice: "its zero pages cannot be released from outside" }
}

/// Refuses if another process shares the memory, or may: it runs on while this one is stopped.
fn refuse_if_shared(process: &Process) -> Result<(), Refusal> {
    match asleep::sharer(process)? {
        Some(other) => Err(not_releasable(process.pid(), format!("has {other}"))),
        None => Ok(()),
    }
}

/// Refuses if something else may hold the process's pages.
fn refuse_if_held(process: &Process, space: &AddressSpace) -> Result<(), Refusal> {
    match holders::find(process, space)? {
        Some(holder) => {
            Err(not_releasable(process.pid(), format!("has {holder}, which may write to its pages")))
        }
        None => Ok(()),
    }
}

/// Whether paging out is possible: see [`page_out_obstacle`].
pub(crate) fn can_page_out(process: &Process) -> bool {
    page_out_obstacle(process).is_none()
}

/// Returns what is missing to page out: free swap of the machine and of the control groups of
/// `process`, and the permission. Asked to page out nothing, the kernel checks only the permission:
/// CAP_SYS_NICE for any process but the caller's own (Linux 5.10 to 7.2).
fn page_out_obstacle(process: &Process) -> Option<&'static str> {
    if swap_free_bytes() == 0 || ControlGroups::of(process).swap_left_bytes() == Some(0) {
        return Some("no swap is available to it");
    }
    let result = sys::open_pidfd(process.pid()).and_then(|handle| sys::advise(&handle, &[], MADV_PAGEOUT));
    let is_refused = result.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
    is_refused.then_some("paging out from outside needs CAP_SYS_NICE")
}

/// Returns the free bytes of the machine's swap; 0 if unknown, as paging out is not safe to rely on
/// then.
fn swap_free_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines().find_map(|line| procfs::kib(line.strip_prefix("SwapFree:")?)).unwrap_or(0)
}

/// Explains the risk of the direct method, and the obstacle to paging out.
fn direct_risk(obstacle: &str) -> String {
    // Only a hint depends on it: what cannot be read counts as off.
    let is_one = |path| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1");
    let ksm_is_on = is_one("/sys/kernel/mm/ksm/run") && is_one("/sys/kernel/mm/ksm/use_zero_pages");
    let ksm_hint = if ksm_is_on {
        "; the kernel's same-page merging gives zero pages back by itself to programs that ask for it with \
         prctl(PR_SET_MEMORY_MERGE)"
    } else {
        ""
    };
    format!(
        "{obstacle}, so its zero pages would be released by madvise inside it, and a write could be lost \
         if strandline were killed during one of those calls{ksm_hint}"
    )
}

/// Opens the memory that is searched for zero pages: /proc/PID/mem leaves pages that are shared
/// with other processes unchanged.
fn memory_of(process: &Process) -> std::io::Result<MemFile> {
    process.open_file("mem").map(MemFile::new).map_err(std::io::Error::other)
}

/// Returns the runs of resident all-zero pages in `range`, whole pages, as far as they can be read.
fn zero_runs(pagemap: &File, memory: &dyn Memory, range: Range<u64>) -> std::io::Result<Vec<Range<u64>>> {
    let mut resident = Vec::new();
    pages::each_anonymous_run(pagemap, &[range], &mut |run| resident.push(run.into()))?;
    let found = zeros::find(memory, &resident, 1, &|_| {});
    Ok(found.runs.into_iter().map(Range::from).collect())
}

/// Splits `ranges` into pieces of whole pages, at most [`MAX_CALL_BYTES`] long.
fn pieces(ranges: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    ranges.iter().flat_map(|range| {
        let (start, end) = (page_up(range.start), page_of(range.end));
        (start..end)
            .step_by(MAX_CALL_BYTES as usize)
            .map(move |at| at..at.saturating_add(MAX_CALL_BYTES).min(end))
    })
}

/// Makes the kernel page out the zero pages. No write can be lost: the kernel keeps what is written
/// meanwhile.
fn page_out(process: &Process, request: &ZeroRequest, pagemap: &File) -> Result<Released, Refusal> {
    let failed = |error| Refusal::from_io(process, "paging out", error);
    let handle = sys::open_pidfd(process.pid()).map_err(failed)?;
    let memory = memory_of(process).map_err(failed)?;
    let applied = Applied { actual_bytes: Some(0), stopped_seconds: Some(0.0), ..Applied::default() };
    let mut paging_out = PagingOut { handle, memory, pagemap, applied, has_begun: false };
    let result = pieces(&request.ranges).try_for_each(|piece| paging_out.page_out_piece(piece));
    let PagingOut { applied, has_begun, .. } = paging_out;
    match result.map_err(failed) {
        // Pages that were paged out are the result.
        Err(refusal) if has_begun => Ok(Released { applied, refused: Some(refusal) }),
        other => other.map(|()| Released { applied, refused: None }),
    }
}

/// The release of pages by the kernel.
struct PagingOut<'a> {
    /// Pidfd of the process.
    handle: OwnedFd,
    memory: MemFile,
    pagemap: &'a File,
    /// `actual_bytes` is `None` once pages were paged out that could not be counted.
    applied: Applied,
    /// Whether the kernel has accepted pages.
    has_begun: bool,
}

impl PagingOut<'_> {
    /// Pages out the zero pages of `piece`, and counts them also if the kernel accepts a part only.
    fn page_out_piece(&mut self, piece: Range<u64>) -> std::io::Result<()> {
        let pagemap = self.pagemap;
        let resident = pages::anonymous_bytes_in(pagemap, std::slice::from_ref(&piece))?;
        let runs = zero_runs(pagemap, &self.memory, piece)?;
        let before = pages::anonymous_bytes_in(pagemap, &runs)?;
        self.applied.resident_before_bytes += resident;
        let began = Instant::now();
        let mut accepted_bytes = 0;
        let advised = runs.chunks(strandline_sys::memory::MAX_RANGES).try_for_each(|chunk| {
            accepted_bytes += sys::advise(&self.handle, chunk, MADV_PAGEOUT)?;
            Ok(())
        });
        self.applied.call_seconds += began.elapsed().as_secs_f64();
        let after = pages::anonymous_bytes_in(pagemap, &runs);
        let released = after.as_ref().ok().map(|after| before.saturating_sub(*after));
        self.has_begun |= has_begun(&advised, accepted_bytes, released);
        self.applied.actual_bytes =
            self.applied.actual_bytes.zip(released).map(|(sum, released)| sum + released);
        advised.and(after.map(drop))
    }
}

/// Whether the kernel may have paged out pages, of which it `accepted_bytes`; `released` bytes are
/// gone since, if they could be counted.
fn has_begun(advised: &std::io::Result<()>, accepted_bytes: u64, released: Option<u64>) -> bool {
    // Before it begins, the kernel looks up the process and checks the permission
    // (process_madvise(2)). Other failed calls may have paged out what precedes the failure.
    let is_refused = advised.as_ref().is_err_and(|error| matches!(error.raw_os_error(), Some(EPERM | ESRCH)));
    accepted_bytes > 0 || released.map_or(!is_refused, |bytes| bytes > 0)
}

/// Releases pages directly, stretch after stretch; all threads are stopped during each.
fn release_directly(
    process: &Process,
    request: &ZeroRequest,
    code: CallSites,
    pagemap: &File,
) -> Result<Released, Refusal> {
    let remaining = pieces(&request.ranges).peekable();
    let applied = Applied { actual_bytes: Some(0), stopped_seconds: Some(0.0), ..Applied::default() };
    let mut release = DirectRelease { process, code, pagemap, applied, releasable: Vec::new(), remaining };
    let mut refused = None;
    while refused.is_none() && release.remaining.peek().is_some() {
        match release.complete_stretch(request.wait) {
            Ok(()) => std::thread::sleep(RUN_TIME),
            // Pages that were released are the result.
            Err(refusal) if release.applied.stops > 0 && !refusal.has_begun() => refused = Some(refusal),
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(Released { applied: release.applied, refused })
}

/// The release of pages by calls in the process.
struct DirectRelease<'a, I: Iterator<Item = Range<u64>>> {
    process: &'a Process,
    /// Code of the process through which calls go.
    code: CallSites,
    pagemap: &'a File,
    applied: Applied,
    /// The mappings in which pages may be released in this stretch, in address order.
    releasable: Vec<AddressRange>,
    /// The pieces that are not done.
    remaining: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = Range<u64>> + Send> DirectRelease<'_, I> {
    /// Tries for `wait` to begin a stretch, and completes it.
    fn complete_stretch(&mut self, wait: Duration) -> Result<(), Refusal> {
        let (process, deadline) = (self.process, Instant::now() + wait);
        loop {
            precheck::check(process)?;
            let space = process.address_space()?;
            // A ring or a device may have been opened since the last stretch.
            refuse_if_held(process, &space)?;
            let result = on_own_thread(STOP_LIMIT + call::CALL_LIMIT, || self.try_stretch(&space));
            match result.unwrap_or_else(|| Err(choose::no_tracer(process)))? {
                None => return Ok(()),
                Some(reason) if Instant::now() >= deadline => {
                    let (seconds, detail) = (wait.as_secs_f64(), reason.into());
                    return Err(Refusal::NoSafeThread { pid: process.pid(), seconds, detail });
                }
                Some(_) => std::thread::sleep(RUN_TIME),
            }
        }
    }

    /// Stops all threads and works until the time is over or nothing is left. Returns the reason if
    /// it could not begin; then trying again may help.
    fn try_stretch(&mut self, space: &AddressSpace) -> Result<Option<&'static str>, Refusal> {
        let mut stopped = match Stopped::stop_within(self.process, STOP_LIMIT, Transfers::Stop) {
            Ok(stopped) => stopped,
            Err(Error::DidNotStop { .. }) => return Ok(Some("a thread did not stop in time")),
            Err(error) => return Err(error.into()),
        };
        if stopped.threads().any(|tracee| tracee.is_group_stopped) {
            return Err(Refusal::Stopped { pid: self.process.pid() });
        }
        // The kernel may be about to write into a page for such a thread.
        if !stopped.uninterruptible_threads().is_empty() {
            return Ok(Some("a thread is in an uninterruptible sleep"));
        }
        // Since the last stretch the program may have mapped, locked or registered something else
        // here.
        self.releasable = releasable_mappings(self.process)?;
        let code = self.code;
        let Some(runner) = stopped.take_out(|tracee| can_call(tracee, space, &code, 0, &INJECTED_CALLS))
        else {
            return Ok(Some("no thread has room for a call on its own stack"));
        };
        let (tid, since) = (runner.tid, runner.since);
        let first_call = self.code.bare_system_call(GETPID, [0; 3], 0);
        let refused = |error| call::refusal(self.process, tid, error);
        let mut injected = inject::begin(runner, &first_call).map_err(refused)?;
        if let Err(error) = self.release_pieces(&mut injected, Instant::now() + STOP_LIMIT) {
            return Err(call::leave(self.process, tid, injected, error));
        }
        self.applied.call_seconds += injected.begun_at.elapsed().as_secs_f64();
        injected.finish(call::CALL_LIMIT).map_err(refused)?;
        drop(stopped);
        let stopped_seconds = since.elapsed().as_secs_f64();
        let longest = self.applied.stopped_seconds.unwrap_or(0.0);
        self.applied.stopped_seconds = Some(longest.max(stopped_seconds));
        self.applied.stops += 1;
        Ok(None)
    }

    /// Fails unless the thread is at the entry of the injected, harmless system call.
    fn check_own_call(&self, entry: &Registers) -> Result<(), CallError> {
        if entry.orig_rax == GETPID && entry.rip == self.code.system_call + SYSCALL_BYTES {
            return Ok(());
        }
        Err(CallError::Failed(std::io::Error::other("another system call than the injected one")))
    }

    /// Releases one piece after another until `until`, and leaves the thread at the exit of the
    /// last call.
    fn release_pieces(&mut self, injected: &mut Injected<'_>, until: Instant) -> Result<(), CallError> {
        let limit = Instant::now() + call::CALL_LIMIT;
        let memory = memory_of(self.process)?;
        // At the entry of the first, harmless call.
        let entry = injected.next_system_call(limit)?;
        self.check_own_call(&entry)?;
        let mut is_at_entry = true;
        while Instant::now() < until {
            let Some(piece) = self.remaining.next() else { break };
            // Counted piece by piece: between two stretches the program may touch pages again.
            let resident = pages::anonymous_bytes_in(self.pagemap, std::slice::from_ref(&piece));
            self.applied.resident_before_bytes += resident?;
            let runs = zero_runs(self.pagemap, &memory, piece)?;
            for run in runs.iter().flat_map(|run| clipped(run, &self.releasable)) {
                if !is_at_entry {
                    // Back to the instruction, again with the harmless number.
                    let mut repeated = entry;
                    repeated.rip = self.code.system_call;
                    repeated.rax = GETPID;
                    repeated.orig_rax = u64::MAX;
                    injected.set_registers(&repeated)?;
                    self.check_own_call(&injected.next_system_call(limit)?)?;
                }
                let mut armed = entry;
                armed.orig_rax = MADVISE;
                (armed.rdi, armed.rsi, armed.rdx) = (run.start, run.end - run.start, MADV_DONTNEED);
                injected.set_registers(&armed)?;
                // Only until this returns could the death of strandline lose a write.
                let exit = injected.next_system_call(limit)?;
                is_at_entry = false;
                if exit.rax == 0 {
                    let resident = pages::anonymous_bytes_in(self.pagemap, std::slice::from_ref(&run));
                    let resident = resident?;
                    let released = (run.end - run.start).saturating_sub(resident);
                    self.applied.actual_bytes = self.applied.actual_bytes.map(|sum| sum + released);
                }
            }
        }
        if is_at_entry {
            injected.next_system_call(limit)?;
        }
        Ok(())
    }
}

/// Returns the mappings of the stopped process whose zero pages read as zeros after they were
/// released, and that nothing else may write to: private, anonymous, writable, neither locked nor
/// watched by a userfaultfd.
///
/// # Errors
/// Pages are pinned for a device, or another process shares the memory, or may.
fn releasable_mappings(process: &Process) -> Result<Vec<AddressRange>, Refusal> {
    let pid = process.pid();
    if process.status()?.pinned_bytes.is_some_and(|pinned| pinned > 0) {
        return Err(not_releasable(pid, "has pages pinned in memory (VmPin)".to_owned()));
    }
    refuse_if_shared(process)?;
    let smaps = Smaps::read(process.open_file("smaps")?);
    let smaps = smaps.map_err(|error| Refusal::from_io(process, "smaps", error))?;
    let is_releasable = |entry: &&SmapsEntry| {
        let is_excluded = EXCLUDED_FLAGS.iter().any(|flag| entry.flags.has(flag));
        entry.mapping.is_private_anonymous() && entry.mapping.permissions.write && !is_excluded
    };
    Ok(smaps.entries.iter().filter(is_releasable).map(|entry| entry.mapping.range()).collect())
}

/// Returns the parts of `run` that are in `mappings`, which are sorted.
fn clipped(run: &Range<u64>, mappings: &[AddressRange]) -> Vec<Range<u64>> {
    let run = AddressRange::from(run.clone());
    overlapping(mappings, run).iter().map(|mapping| mapping.intersection(run).into()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_process::pages::PAGE_BYTES;

    #[test]
    fn pieces_are_small_multiples_of_a_page() {
        let ranges = [0x1001..0x3fff, 0x10_0000..0x10_0000 + 5 * MAX_CALL_BYTES / 2];
        let pieces: Vec<_> = pieces(&ranges).collect();
        assert_eq!(pieces[0], 0x2000..0x3000);
        assert_eq!(pieces[1], 0x10_0000..0x10_0000 + MAX_CALL_BYTES);
        assert_eq!(pieces.len(), 4);
        assert_eq!(pieces[3].end, ranges[1].end);
    }

    #[test]
    fn zero_runs_leave_out_written_pages() {
        let page = PAGE_BYTES as usize;
        // Pages that are written and then zeroed are resident; the third contains another byte.
        let mut bytes = vec![1_u8; 9 * page];
        bytes.fill(0);
        let start = (bytes.as_ptr() as u64).next_multiple_of(page as u64);
        let third = start as usize - bytes.as_ptr() as usize + 2 * page;
        bytes[third + 17] = 1;
        let pid = std::process::id() as i32;
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let range = start..start + 8 * page as u64;
        let runs = zero_runs(&pagemap, &strandline_process::target::live::ByPid::new(pid), range).unwrap();
        let page = page as u64;
        assert_eq!(runs, [start..start + 2 * page, start + 3 * page..start + 8 * page]);
        assert_eq!(bytes[third + 17], 1);
    }

    #[test]
    fn a_refused_call_has_not_begun() {
        let failed = |error: i32| Err(std::io::Error::from_raw_os_error(error));
        assert!(!has_begun(&failed(ESRCH), 0, None));
        assert!(!has_begun(&failed(EPERM), 0, None));
        assert!(has_begun(&failed(EPERM), PAGE_BYTES, None), "in an earlier call");
        let out_of_memory = 12;
        assert!(has_begun(&failed(out_of_memory), 0, None));
        assert!(!has_begun(&failed(out_of_memory), 0, Some(0)));
        assert!(has_begun(&Ok(()), 0, None));
    }

    #[test]
    fn an_error_after_pages_were_paged_out_leaves_a_partial_effect() {
        let page = PAGE_BYTES as usize;
        // Pages that are written and then zeroed are resident.
        let mut bytes = vec![1_u8; 9 * page];
        bytes.fill(0);
        let start = (bytes.as_ptr() as u64).next_multiple_of(page as u64);
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let kernel_address = 0xffff_8000_0000_0000;
        let (own, unreadable) = (start..start + 8 * page as u64, kernel_address..kernel_address + PAGE_BYTES);
        let apply = |ranges: Vec<Range<u64>>| {
            let request =
                ZeroRequest { ranges, allow_risk: false, wait: Duration::ZERO, watch: Duration::ZERO };
            page_out(&process, &request, &pagemap)
        };
        let released = apply(vec![own, unreadable.clone()]).unwrap();
        assert_eq!(released.applied.resident_before_bytes, 8 * page as u64);
        assert!(released.applied.actual_bytes.is_some());
        assert!(released.remark().is_some_and(|text| text.contains("paging out")), "{released:?}");
        assert!(apply(vec![unreadable]).is_err(), "nothing was paged out");
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}
