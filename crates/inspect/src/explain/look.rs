//! How a process is looked at: stopped, read, let go, and looked at again where it was caught in the middle of something.
//!
//! What is read is [`super::snapshot`]'s. Called on a thread of its own, which is the tracer.

use std::time::{Duration, Instant};

use super::Options;
use super::page_tables::Before;
use super::photograph::{self, ByPhotograph};
use super::quiet;
use super::shot;
use super::snapshot::{How, LastTry, MAX_BUSY_LOOKS, Snapshot, Threads, end_of_reading, kernel_view, rollup};
use super::standing::StoppedBy;
use super::watch::Paused;
use crate::readers::Found;
use strandline_claims::caveat::Caveat;
use strandline_process::error::{Error, Result};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::Memory;
use strandline_process::photograph::NotTaken;
use strandline_process::procfs::Process;
use strandline_process::target::copy::{Copy, Rest, Room};
use strandline_process::target::hold;
use strandline_process::target::live::{Live, Opened, Traced};
use strandline_process::target::stop::{PATIENCE, Short, Stopped, Transfers};

/// A process whose threads do not all stop within this is not looked at, however short the stop may be.
const MIN_STOP: Duration = Duration::from_millis(20);
/// It is tried so often, with so long for it to run in between.
const MAX_STOPS: u32 = 10;
const BETWEEN_STOPS: Duration = Duration::from_millis(100);
/// What two threads copy of another process in a second, with some to spare.
const COPIED_BYTES_A_SECOND: f64 = 3e9;

/// From so much memory of its own on a process with a runtime is stopped longer by reading it than by a photograph.
const WORTH_ONE: u64 = 8 << 20;

/// How long a process may go on before it is looked at again.
const WHILE_BUSY: Duration = Duration::from_millis(50);
/// The longest stop after which a heap that makes no sense is looked at once more: a thread that was stopped within
/// malloc leaves its arena in motion, and a moment later it makes sense.
const MAX_BEFORE_AGAIN: Duration = Duration::from_millis(200);
/// How long the end of a runtime's collection is waited for before a stop, and how often it is asked for: a target
/// that runs loses nothing by that.
const MAX_WAITED: Duration = Duration::from_secs(2);
const BETWEEN_ASKING: Duration = Duration::from_millis(10);

/// Reads `process` with `workers` threads while it is held.
pub fn take(
    process: &Process,
    stopped_by: &StoppedBy<'_>,
    workers: usize,
    options: &Options<'_>,
) -> Result<Snapshot> {
    // Files are looked through before the stop.
    let (space, _) = AddressSpace::parse(&process.maps_text()?);
    let found = Found::find(process, &space, options.runtimes);
    take_with(process, stopped_by, (workers, options), &space, &found)
}

/// As [`take`], with the readers of `found`, where the mappings are `space`.
pub fn take_with(
    process: &Process,
    stopped_by: &StoppedBy<'_>,
    (workers, options): (usize, &Options<'_>),
    space: &AddressSpace,
    found: &Found,
) -> Result<Snapshot> {
    let status = process.status().unwrap_or_default();
    let is_some = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > 0);
    let before = Before {
        space,
        rss_bytes: status.rss_bytes.unwrap_or(0),
        has_locked: is_some(status.locked_bytes) || is_some(status.hugetlb_bytes),
    };
    let how = How { workers, options, found, before };
    let mut snapshot = match stopped_by {
        StoppedBy::Us => match quiet::read(process, &how)? {
            Some(snapshot) => snapshot,
            None => stop_and_read(process, &how)?,
        },
        StoppedBy::Ending(ending) => {
            let others = ending.other_threads;
            let known = ending.registers.iter().map(|(tid, registers)| (*tid, registers));
            let mut stopped = Threads::of(process, known, std::iter::empty(), others.saturating_add(1));
            stopped.caveats.extend(ending.caveats(process));
            let since = Instant::now();
            let (mut snapshot, threads) = kernel_view(process, stopped, &how)?;
            snapshot.until = options.max_stop.map(|most| end_of_reading(since, most));
            let file = Opened::new(process.open_file("mem")?);
            let memory = Traced::new(process.pid(), &snapshot.space, &file, snapshot.shares_memory());
            snapshot.read_all(process, threads.as_deref(), &memory, &how, LastTry(true))?;
            snapshot.rollup = snapshot.rollup.or_else(|| rollup(process));
            snapshot
        }
    };
    snapshot.caveats.extend(options.max_stop.and_then(|most| stopped_longer(&snapshot, most)));
    for (reading, &owner) in snapshot.readings.iter_mut().zip(&snapshot.owners) {
        if let Some((_, found)) = found.allocators.get(owner) {
            found.finish(process, &snapshot.space, reading);
        }
    }
    Ok(snapshot)
}

/// Says where a process was stopped for longer than asked.
fn stopped_longer(snapshot: &Snapshot, most: Duration) -> Option<Caveat> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let text = format!(
        "the process was stopped for {:.1} ms where at most {:.1} ms was asked for: stopping its threads and reading its \
         mappings and page tables cannot be cut short",
        ms(snapshot.stopped),
        ms(most)
    );
    (snapshot.stopped > most).then(|| Caveat::new("max_stop_exceeded", "--max-stop", None, text))
}

/// Stops the process and reads it; where a runtime was caught in the middle of its own collection, lets it go
/// on for a moment and looks again.
fn stop_and_read(process: &Process, how: &How<'_>) -> Result<Snapshot> {
    let mut stopped_before = Duration::ZERO;
    let memory = Live::new(process.pid());
    hold::prepare();
    let (mut ends, mut again, mut shorts) = (true, false, Vec::new());
    for left in (0..MAX_BUSY_LOOKS).rev() {
        // One that does not end (its process was stopped by others) is waited for once.
        ends = ends && wait_for_collection(&memory, how);
        // What was spent at earlier looks is spent.
        let most = how.options.max_stop.map(|most| most.saturating_sub(stopped_before));
        let way = way(process, &memory, how, most)?;
        // One that is never found out of a transfer is stopped in it at last.
        let transfers = if left > 1 { Transfers::Left } else { Transfers::Stopped };
        let stopped = Held::stop(process, (most, transfers), how, &mut stopped_before)?;
        // A look that is thrown away may have cut one short too.
        shorts.extend(stopped.stopped.cut_short().iter().map(short_transfer));
        if left > 0 && how.found.is_collecting(&memory) {
            stopped_before += stopped.resume();
            std::thread::sleep(WHILE_BUSY);
            continue;
        }
        let mut snapshot = match read_stopped(process, stopped, (way, most), how, LastTry(left == 0))? {
            Looked::Whole(snapshot) => snapshot,
            Looked::Again(stood) => {
                stopped_before += stood;
                std::thread::sleep(WHILE_BUSY);
                continue;
            }
        };
        // There has to be time for another one.
        let has_time = how.options.max_stop.is_none_or(|most| snapshot.stopped + stopped_before <= most / 2);
        let in_motion =
            !again && left > 0 && has_time && snapshot.has_damage() && snapshot.stopped < MAX_BEFORE_AGAIN;
        snapshot.stopped += stopped_before;
        if !in_motion {
            snapshot.caveats.append(&mut shorts);
            return Ok(*snapshot);
        }
        again = true;
        stopped_before = snapshot.stopped;
        std::thread::sleep(WHILE_BUSY);
    }
    Err(Error::Ended { pid: process.pid() })
}

/// A process whose threads are stopped, and a watch on it that is paused meanwhile. Dropped, the threads go first.
struct Held<'p> {
    stopped: Stopped<'p>,
    paused: Paused,
}

impl<'p> Held<'p> {
    fn stop(
        process: &'p Process,
        (most, transfers): (Option<Duration>, Transfers),
        how: &How<'_>,
        stopped_before: &mut Duration,
    ) -> Result<Self> {
        let paused = Paused::begin(how.options.watch);
        Ok(Self { stopped: stop_within(process, most, transfers, stopped_before)?, paused })
    }

    /// Lets all threads go; returns how long they were stopped.
    fn resume(self) -> Duration {
        let Self { stopped, paused } = self;
        let stood = stopped.resume();
        drop(paused);
        stood
    }
}

/// Stops all threads; where they may not take long to stop, tries again some times: one that waits for a processor does not
/// stop before it gets one. Adds how long those that did stood still.
fn stop_within<'p>(
    process: &'p Process,
    most: Option<Duration>,
    transfers: Transfers,
    stopped_before: &mut Duration,
) -> Result<Stopped<'p>> {
    let limit = most.map_or(PATIENCE, |most| most.clamp(MIN_STOP, PATIENCE));
    for _ in 1..MAX_STOPS {
        let since = Instant::now();
        match Stopped::stop_within(process, limit, transfers) {
            Err(Error::DidNotStop { .. }) if limit < PATIENCE => {
                *stopped_before += since.elapsed();
                std::thread::sleep(BETWEEN_STOPS);
            }
            other => return other,
        }
    }
    Stopped::stop_within(process, limit, transfers)
}

/// From what a process is read.
enum Way {
    /// From itself, as long as that takes; with it why there is no photograph, where one was wanted.
    Stopped(Option<String>),
    /// From a copy of its memory, with the same.
    Copied(Room, Option<String>),
    /// From a photograph.
    Photographed(photograph::Plan),
}

/// Looks from what it can be read: before it is stopped.
fn way(process: &Process, memory: &Live, how: &How<'_>, most: Option<Duration>) -> Result<Way> {
    let mut against = None;
    let wanted = match how.options.photograph {
        ByPhotograph::Never => false,
        ByPhotograph::IfShorter => how.found.is_slow() && anonymous_bytes(process) >= WORTH_ONE,
        ByPhotograph::IfPossible | ByPhotograph::Always => true,
    };
    if wanted {
        match photograph::plan(process, &process.address_space()?, most) {
            // Who holds what takes longer to find, and without a photograph half of it is not said.
            Ok(plan) if how.options.keeps_blocks => return Ok(Way::Photographed(plan.for_longest())),
            Ok(plan) => return Ok(Way::Photographed(plan)),
            Err(why) => against = refused(process, how, why)?,
        }
    }
    let wants_copy = how.found.wants_copy(memory) && has_time_for_copy(how, process);
    let room = if wants_copy { Room::of(process) } else { None };
    Ok(match room {
        Some(room) => Way::Copied(room, against),
        None => Way::Stopped(against),
    })
}

/// Why there is no photograph, where one was asked for and is not insisted on.
fn refused(process: &Process, how: &How<'_>, why: String) -> Result<Option<String>> {
    match how.options.photograph {
        ByPhotograph::Always => Err(Error::NoPhotograph { pid: process.pid(), why, stopped: Duration::ZERO }),
        ByPhotograph::IfPossible => Ok(Some(why)),
        ByPhotograph::IfShorter | ByPhotograph::Never => Ok(None),
    }
}

/// What came of one look.
enum Looked {
    Whole(Box<Snapshot>),
    /// It was in the middle of something, or a thread that was left asleep woke: after it stood for so long.
    Again(Duration),
}

/// The caveat for a thread whose transfer returned short.
fn short_transfer(short: &Short) -> Caveat {
    let text = format!(
        "its {} returned less than it was asked for when the thread was stopped, perhaps because of that: a program that does not \
         go on from there lost the rest",
        short.call
    );
    Caveat::new("short_transfer", format!("thread {}", short.tid), None, text)
}

/// What is known of the threads of a stopped process.
fn threads_of(process: &Process, stopped: &Stopped<'_>, how: &How<'_>) -> Threads {
    let known = stopped.threads().map(|thread| (thread.tid, &thread.registers));
    let mut threads = Threads::of(process, known, stopped.in_transfer().copied(), stopped.count());
    let mut add = |code: &str, tid: i32, text: &str| {
        threads.caveats.push(Caveat::new(code, format!("thread {tid}"), None, text));
    };
    for &tid in stopped.asleep() {
        add(
            "thread_asleep",
            tid,
            "an uninterruptible sleep: strandline did not read its stack and its malloc cache",
        );
    }
    // Only who follows references needs the registers.
    for thread in stopped.in_transfer().filter(|_| how.options.keeps_blocks) {
        let text =
            "it sleeps in a transfer and was not stopped: what only its registers hold counts as unreachable";
        add("registers_unread", thread.tid, text);
    }
    threads
}

/// Reads a stopped process, or what was made of it while it stood still: then it is let go first.
fn read_stopped(
    process: &Process,
    mut held: Held<'_>,
    (way, most): (Way, Option<Duration>),
    how: &How<'_>,
    last: LastTry,
) -> Result<Looked> {
    let stopped = &mut held.stopped;
    let since = stopped.since();
    let threads = threads_of(process, stopped, how);
    // Nothing is stopped, as all sleep in transfers, and so nothing can make a photograph.
    let has_none = stopped.threads().next().is_none() && stopped.asleep().is_empty();
    let (room, against) = match way {
        Way::Photographed(_) if has_none && how.options.photograph == ByPhotograph::Always => {
            return Ok(Looked::Again(held.resume()));
        }
        Way::Photographed(_) if has_none => (None, None),
        Way::Photographed(plan) => {
            let shot = shot::take(process, stopped, &plan, &how.before, how.options.watch);
            return photographed(process, (held, shot), threads, how, last);
        }
        Way::Copied(room, why) => (Some(room), why),
        Way::Stopped(why) => (None, why),
    };
    let file = Opened::new(process.open_file("mem")?);
    let (mut snapshot, threads) = match kernel_view(process, threads, how) {
        // Page tables and mappings that a thread changed meanwhile need not add up.
        Err(_) if !stopped.slept_on() => return Ok(Looked::Again(held.resume())),
        view => view?,
    };
    snapshot.until = most.map(|most| end_of_reading(since, most));
    let memory = Traced::new(process.pid(), &snapshot.space, &file, snapshot.shares_memory());
    snapshot.caveats.extend(against.map(|why| no_photograph(&why)));
    let copy = room.and_then(|room| {
        let rest = Some(Rest { ranges: constant_ranges(&snapshot), file: &file });
        Copy::take(&memory, own_runs(&snapshot), room, how.workers, rest)
    });
    let has_transfers = stopped.in_transfer().next().is_some();
    let mut read = |memory: &dyn Memory| snapshot.read_all(process, threads.as_deref(), memory, how, last);
    // A copy is read when the process runs again.
    let read_now = match &copy {
        Some(_) => Ok(false),
        None if has_transfers => quiet::watched(&memory, &|| !stopped.slept_on(), read).0,
        None => read(&memory),
    };
    let slept_on = stopped.slept_on();
    snapshot.stopped = held.resume();
    if !slept_on {
        return Ok(Looked::Again(snapshot.stopped));
    }
    let mut busy = read_now?;
    if let Some(copy) = copy {
        busy = snapshot.read_all(process, threads.as_deref(), &copy, how, last)?;
        // What is read of the copy was read of the process once.
        snapshot.bytes_read = copy.bytes();
    }
    snapshot.rollup = snapshot.rollup.or_else(|| rollup(process));
    Ok(if busy { Looked::Again(snapshot.stopped) } else { Looked::Whole(Box::new(snapshot)) })
}

/// Lets the process go, and reads the photograph that was taken of it.
fn photographed(
    process: &Process,
    (held, shot): (Held<'_>, std::result::Result<shot::Shot, NotTaken>),
    threads: Threads,
    how: &How<'_>,
    last: LastTry,
) -> Result<Looked> {
    let slept_on = held.stopped.slept_on();
    let stopped = held.resume();
    let no = |why| Error::NoPhotograph { pid: process.pid(), why, stopped };
    let shot = shot.map_err(|NotTaken { why, unused }| {
        // Ended and collected now that the process runs.
        let _paused = Paused::begin(how.options.watch);
        drop(unused);
        no(why)
    })?;
    if !slept_on {
        return Ok(Looked::Again(stopped));
    }
    let (mut snapshot, busy) = shot.read(process, threads, how, last).map_err(|error| match error {
        Error::NoPhotograph { why, .. } => no(why),
        other => other,
    })?;
    snapshot.stopped = stopped;
    Ok(if busy { Looked::Again(stopped) } else { Looked::Whole(Box::new(snapshot)) })
}

/// Says why the process was stopped for as long as reading took.
pub(super) fn no_photograph(why: &str) -> Caveat {
    Caveat::new("no_photograph", "--photograph", None, format!("it was stopped while it was read: {why}"))
}

/// The resident pages that only the process itself can change, in address order.
fn own_runs(snapshot: &Snapshot) -> impl Iterator<Item = (u64, u64)> {
    snapshot.spaces.iter().flat_map(|space| {
        let permissions = space.mapping.permissions;
        let is_data = space.mapping.has_file() && permissions.write && !permissions.shared;
        let runs = snapshot.residency.runs_in(space.mapping.start..space.mapping.end);
        runs.filter(move |run| run.anonymous || is_data).map(|run| (run.start, run.end))
    })
}

/// What stays as it is when the process runs again: its private mappings of files, and none of a device.
fn constant_ranges(snapshot: &Snapshot) -> Vec<(u64, u64)> {
    let mappings = snapshot.spaces.iter().map(|space| &space.mapping);
    let is_constant = |m: &&Mapping| {
        m.has_file() && m.permissions.read && !m.permissions.shared && !m.name.starts_with("/dev/")
    };
    mappings.filter(is_constant).map(|m| (m.start, m.end)).collect()
}

/// Lets a runtime's collection that is under way come to its end, within reason; whether it did.
fn wait_for_collection(memory: &Live, how: &How<'_>) -> bool {
    let until = Instant::now() + MAX_WAITED;
    while how.found.is_collecting(memory) {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(BETWEEN_ASKING);
    }
    true
}

/// Whether all of the process's memory can be copied in the time for which it may be stopped.
fn has_time_for_copy(how: &How<'_>, process: &Process) -> bool {
    let takes = Duration::from_secs_f64(anonymous_bytes(process) as f64 / COPIED_BYTES_A_SECOND);
    how.options.max_stop.is_none_or(|most| takes < most / 2)
}

pub(super) fn anonymous_bytes(process: &Process) -> u64 {
    process.status().ok().and_then(|status| status.anonymous_bytes).unwrap_or(0)
}
