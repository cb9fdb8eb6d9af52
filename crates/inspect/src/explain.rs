//! Looks at one process: stops it, reads it, lets it go, and returns the ledger.
//!
//! Everything that has to be of one state is read while the process is stopped; everything else is
//! done before or after. The rows are checked against the kernel's own sum at every run.

use std::fs::File;
use std::time::{Duration, Instant};

use crate::alloc::{Context, Reading, glibc};
use crate::caveat::Caveat;
use crate::error::{Error, Result};
use crate::facts::{Allocator, Cost, Explanation, Kernel, Runtime, Target, TargetKind};
use crate::ledger::assemble::{self, Inputs, Ledger};
use crate::ledger::rows::{self, Id};
use crate::ledger::zeros;
use crate::map::AddressSpace;
use crate::pages::{self, Residency};
use crate::procfs::Process;
use crate::recognise;
use crate::smaps::{self, Counts, Smaps};
use crate::stacks::{self, Stack, ThreadFacts};
use crate::target::admission;
use crate::target::live::{Live, Opened};
use crate::target::stop::Stopped;
use crate::verdict::remedies::Means;
use crate::verdict::{self, Findings};

/// Hears of work done: what is being done, bytes done so far, bytes in all.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

/// How to look.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Whether to look for all-zero pages in memory outside malloc's heaps, which reads all of it.
    pub fold_zero_pages: bool,
    /// Threads to read with; `None` for as many as there are processors.
    pub threads: Option<usize>,
    /// Hears of work done.
    pub progress: Option<Progress<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { fold_zero_pages: true, threads: None, progress: None }
    }
}

/// How often page tables are read again where the kernel moved pages in between.
const MOST_LOOKS: usize = 5;

/// A process's ledger, and what the remedies need to be applied.
pub struct Look {
    /// What is said of it.
    pub explanation: Explanation,
    /// What the allocators' readers found.
    pub readings: Vec<Reading>,
    /// All-zero resident pages of private anonymous memory, claimed or not, in address order.
    pub zero_runs: Vec<(u64, u64)>,
}

/// Explains process `pid`.
///
/// # Errors
/// Those of [`Error`]: no such process, not allowed, traced by somebody else, ended meanwhile, or
/// rows that do not add up to the kernel's RSS.
pub fn explain(pid: i32, options: &Options<'_>) -> Result<Explanation> {
    look(pid, options).map(|look| look.explanation)
}

/// As [`explain`], with what remedies need.
pub fn look(pid: i32, options: &Options<'_>) -> Result<Look> {
    let start = Instant::now();
    let process = admission::admit(pid)?;
    let threads =
        options.threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let frozen = freeze(&process, threads, options)?;
    finish(&process, frozen, threads, options, start)
}

/// What was read while the process was stopped.
struct Frozen {
    spaces: Vec<crate::smaps::SmapsEntry>,
    residency: Residency,
    rollup: Counts,
    readings: Vec<Reading>,
    stacks: Vec<Stack>,
    threads: u64,
    memory_file: File,
    pagemap: File,
    stopped: Duration,
    caveats: Vec<Caveat>,
    bytes_read: u64,
}

fn freeze(process: &Process, threads: usize, options: &Options<'_>) -> Result<Frozen> {
    let pagemap = process.open_file("pagemap")?;
    let memory_file = process.open_file("mem")?;
    let stopped = Stopped::stop(process)?;
    let mut caveats = Vec::new();
    for tid in stopped.asleep() {
        let text =
            "the thread is in an uninterruptible sleep: its stack and its malloc cache were not looked at";
        caveats.push(Caveat::new("thread_asleep", format!("thread {tid}"), None, text));
    }
    let (smaps, residency, rollup) = page_tables(process, &pagemap)?;
    if smaps.bad_lines > 0 {
        let text = format!("{} lines of smaps were not understood", smaps.bad_lines);
        caveats.push(Caveat::new("smaps_lines", format!("/proc/{}/smaps", process.pid()), None, text));
    }
    let mut facts = Vec::new();
    let mut is_32_bit = false;
    for thread in stopped.threads() {
        let Some(registers) = &thread.registers else { continue };
        is_32_bit |= registers.cs != CS_64_BIT;
        facts.push(ThreadFacts { tid: thread.tid, stack_pointer: registers.rsp, fs_base: registers.fs_base });
    }
    let memory = Live::new(process.pid());
    let (mut readings, mut found_stacks) = (Vec::new(), Vec::new());
    if is_32_bit {
        let text = "a 32-bit program: only the kernel's rows are given, its heap and stacks are not read";
        caveats.push(Caveat::new("not_64_bit", format!("process {}", process.pid()), None, text));
    } else {
        let (space, _) = address_space(&smaps);
        found_stacks = stacks::stacks(&facts, &memory, &space);
        let start_brk = process.stat()?.start_brk;
        readings =
            read_heaps(process, &memory, &space, &smaps, &residency, &facts, start_brk, threads, options)?;
    }
    let threads = facts.len() as u64 + stopped.asleep().len() as u64;
    let stopped = stopped.resume();
    let bytes_read = readings.iter().map(|reading| reading.bytes_read).sum();
    caveats.extend(readings.iter_mut().flat_map(|reading| std::mem::take(&mut reading.caveats)));
    Ok(Frozen {
        spaces: smaps.entries,
        residency,
        rollup,
        readings,
        stacks: found_stacks,
        threads,
        memory_file,
        pagemap,
        stopped,
        caveats,
        bytes_read,
    })
}

/// The code segment of 64-bit programs.
const CS_64_BIT: u64 = 0x33;

fn address_space(smaps: &Smaps) -> (AddressSpace, usize) {
    AddressSpace::from_mappings(smaps.entries.iter().map(|entry| entry.mapping.clone()))
}

/// Reads smaps, the page tables and the kernel's sum until they agree: the kernel may drop or move
/// file pages of a stopped process in between.
fn page_tables(process: &Process, pagemap: &File) -> Result<(Smaps, Residency, Counts)> {
    let pid = process.pid();
    let io = |what: &'static str| move |source| Error::Io { pid, what: what.to_owned(), source };
    let mut detail = String::new();
    for _ in 0..MOST_LOOKS {
        let smaps = Smaps::read(process.open_file("smaps")?).map_err(io("reading smaps"))?;
        let residency = Residency::read(pagemap, &smaps.entries).map_err(io("reading pagemap"))?;
        let rollup =
            smaps::read_rollup(process.open_file("smaps_rollup")?).map_err(io("reading smaps_rollup"))?;
        if smaps.entries.is_empty() {
            return Err(Error::Ended { pid });
        }
        match pages::reconcile(&residency, &smaps.entries) {
            Ok(()) if smaps.total().rss_bytes == rollup.rss_bytes => return Ok((smaps, residency, rollup)),
            Ok(()) => {
                detail =
                    format!("smaps has {} bytes, smaps_rollup {}", smaps.total().rss_bytes, rollup.rss_bytes);
            }
            Err(differences) => {
                if let Some(first) = differences.first() {
                    detail = format!(
                        "{:#x}-{:#x} {} has {} bytes in its page tables, {} in smaps ({} mappings differ)",
                        first.start,
                        first.end,
                        first.name,
                        first.pages_bytes,
                        first.smaps_bytes,
                        differences.len()
                    );
                }
            }
        }
    }
    Err(Error::DoesNotAddUp { pid, detail })
}

#[expect(clippy::too_many_arguments, reason = "all of them are parts of the one frozen state")]
fn read_heaps(
    process: &Process,
    memory: &Live,
    space: &AddressSpace,
    smaps: &Smaps,
    residency: &Residency,
    threads: &[ThreadFacts],
    start_brk: Option<u64>,
    workers: usize,
    options: &Options<'_>,
) -> Result<Vec<Reading>> {
    let fs_bases: Vec<u64> = threads.iter().map(|thread| thread.fs_base).filter(|&base| base != 0).collect();
    let total: u64 = smaps.total().anonymous_bytes;
    let done = std::sync::atomic::AtomicU64::new(0);
    let progress = |bytes: u64| {
        let done = done.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed) + bytes;
        if let Some(progress) = options.progress {
            progress("reading the heap", done.min(total), total);
        }
    };
    let context = Context {
        memory,
        space,
        resident: &|from, to| {
            residency.runs_in(from..to).filter(|run| run.anonymous).map(|run| (run.start, run.end)).collect()
        },
        fs_bases: &fs_bases,
        start_brk,
        is_locked: &|start| {
            smaps.entries.iter().any(|entry| entry.mapping.start == start && entry.flags.is_locked())
        },
        threads: workers,
        progress: &progress,
    };
    glibc::read(&context).map_err(|error| Error::Overlap {
        address: error.at,
        first: format!("a claim that ends at {:#x}", error.expected),
        second: format!("process {}'s glibc", process.pid()),
    })
}

fn finish(
    process: &Process,
    mut frozen: Frozen,
    threads: usize,
    options: &Options<'_>,
    start: Instant,
) -> Result<Look> {
    let mut zero_runs = Vec::new();
    if options.fold_zero_pages {
        zero_runs = find_zeros(&mut frozen, threads, options)?;
    }
    let tmpfs = tmpfs_devices(process);
    let ledger = assemble::assemble(&Inputs {
        pid: process.pid(),
        spaces: &frozen.spaces,
        residency: &frozen.residency,
        readings: &frozen.readings,
        stacks: &frozen.stacks,
        zero_runs: &zero_runs,
        is_tmpfs: &|device| tmpfs.contains(&device),
    })?;
    if ledger.tally.sum() != frozen.rollup.rss_bytes {
        let detail =
            format!("the rows sum to {} bytes, RSS is {}", ledger.tally.sum(), frozen.rollup.rss_bytes);
        return Err(Error::DoesNotAddUp { pid: process.pid(), detail });
    }
    zero_runs.extend(frozen.readings.iter().flat_map(|reading| reading.zero_runs.iter().copied()));
    zero_runs.sort_unstable();
    let explanation = describe(process, &mut frozen, ledger, start);
    Ok(Look { explanation, readings: frozen.readings, zero_runs })
}

fn find_zeros(frozen: &mut Frozen, threads: usize, options: &Options<'_>) -> Result<Vec<(u64, u64)>> {
    let runs = assemble::unclaimed_runs(&frozen.spaces, &frozen.residency, &frozen.readings)?;
    let total: u64 = runs.iter().map(|run| run.1 - run.0).sum();
    let done = std::sync::atomic::AtomicU64::new(0);
    let progress = |bytes: u64| {
        let done = done.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed) + bytes;
        if let Some(progress) = options.progress {
            progress("looking for pages of zeros", done, total);
        }
    };
    let memory = Opened::new(
        frozen
            .memory_file
            .try_clone()
            .map_err(|source| Error::File { path: "/proc/PID/mem".into(), source })?,
    );
    let found = zeros::find(&memory, &runs, threads, &|| {}, &progress);
    frozen.bytes_read += found.bytes_read;
    Ok(zeros::still_resident(&frozen.pagemap, found.runs))
}

/// The device numbers of the tmpfs mounts that the process sees: their files are shared memory.
fn tmpfs_devices(process: &Process) -> Vec<(u32, u32)> {
    const MOST_BYTES: u64 = 16 << 20;
    let text = process.read_file("mountinfo", MOST_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let device = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        if !matches!(kind.split(' ').next()?, "tmpfs" | "devtmpfs") {
            return None;
        }
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    text.lines().filter_map(device).collect()
}

fn describe(process: &Process, frozen: &mut Frozen, ledger: Ledger, start: Instant) -> Explanation {
    let rows = ledger.tally.rows();
    let status = process.status().unwrap_or_default();
    let shmem_bytes = ledger.tally.of(Id::Shmem);
    let total = frozen.spaces.iter().fold(Counts::default(), |mut sum, space| {
        sum.add(&space.counts);
        sum
    });
    let kernel = Kernel {
        rss_bytes: frozen.rollup.rss_bytes,
        pss_bytes: Some(frozen.rollup.pss_bytes),
        anonymous_bytes: frozen.rollup.anonymous_bytes,
        file_bytes: frozen.rollup.rss_bytes.saturating_sub(frozen.rollup.anonymous_bytes + shmem_bytes),
        shmem_bytes,
        swap_bytes: frozen.rollup.swap_bytes,
        lazyfree_bytes: frozen.rollup.lazy_free_bytes,
        huge_bytes: total.huge_bytes(),
        hugetlb_bytes: total.hugetlb_bytes(),
        page_tables_bytes: status.page_tables_bytes,
        high_water_bytes: status.high_water_bytes,
        status_rss_bytes: status.rss_bytes,
    };
    let trims: Vec<u64> =
        frozen.readings.iter().filter_map(|r| r.trim.as_ref()).map(|trim| trim.predicted_bytes).collect();
    let arenas: Vec<_> =
        frozen.readings.iter().flat_map(|reading| reading.allocator.arenas.clone()).collect();
    let (space, _) = AddressSpace::from_mappings(frozen.spaces.iter().map(|entry| entry.mapping.clone()));
    let (mut allocators, runtimes) =
        recognise(process, &space, &mut frozen.caveats, ledger.tally.of(Id::Anonymous));
    let unread: Vec<String> = allocators.iter().filter(|a| !a.read).map(|a| a.name.clone()).collect();
    let mut all = Vec::new();
    all.extend(frozen.readings.iter().map(|reading| reading.allocator.clone()));
    all.append(&mut allocators);
    let findings = Findings {
        rows: &rows,
        rss_bytes: kernel.rss_bytes,
        trim_bytes: (!trims.is_empty()).then(|| trims.iter().sum()),
        pinning_chunks: frozen
            .readings
            .iter()
            .flat_map(|r| &r.claims)
            .map(|claim| claim.sums.pinning_chunks)
            .sum(),
        unread_allocators: &unread,
    };
    let means = Means { pid: process.pid(), zero_bytes: ledger.zero_bytes, arenas: &arenas };
    let (verdict, remedies) = (verdict::verdict(&findings), verdict::remedies::remedies(&findings, &means));
    let mut caveats = std::mem::take(&mut frozen.caveats);
    caveats.extend(ledger.caveats);
    Explanation {
        target: Target {
            kind: TargetKind::Live,
            pid: process.pid(),
            executable: process.executable(),
            command: process.command_line().unwrap_or_default(),
            threads: frozen.threads,
        },
        totals: rows::totals(&rows),
        rows,
        kernel,
        allocators: all,
        runtimes,
        remedies,
        verdict,
        caveats,
        cost: Cost {
            wall_seconds: start.elapsed().as_secs_f64(),
            stopped_seconds: frozen.stopped.as_secs_f64(),
            peak_rss_bytes: strandline_sys::host::own_peak_rss_bytes().ok(),
            bytes_read: frozen.bytes_read,
        },
        settings: process.settings().unwrap_or_default(),
    }
}

/// Names the allocators and runtimes that are mapped but have no reader yet.
fn recognise(
    process: &Process,
    space: &AddressSpace,
    caveats: &mut Vec<Caveat>,
    anonymous_bytes: u64,
) -> (Vec<Allocator>, Vec<Runtime>) {
    let found = recognise::recognise(process, space);
    for allocator in &found.allocators {
        let text = format!(
            "{} manages memory of its own, which is not read yet and stands on the row anonymous",
            allocator.name
        );
        caveats.push(Caveat::new(
            "allocator_not_read",
            allocator.found_by.clone(),
            Some(anonymous_bytes),
            text,
        ));
    }
    let allocators = found.allocators.into_iter().map(|found| Allocator {
        name: found.name,
        version: found.version,
        found_by: found.found_by,
        ..Allocator::default()
    });
    let runtimes = found.runtimes.into_iter().map(|found| Runtime {
        name: found.name,
        version: found.version,
        found_by: found.found_by,
    });
    (allocators.collect(), runtimes.collect())
}
