//! Allocators and runtimes that are mapped and have no reading, and the caveats about their memory.

use crate::capture::FrozenState;
use crate::facts::{Allocator, Runtime};
use crate::recognise;
use strandline_claims::allocator::RangeClaim;
use strandline_claims::caveat::Caveat;
use strandline_claims::runtime;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::stacks::Stack;

/// Memory on the row `anonymous` that no caveat explains gets one if it is at least
/// `MIN_UNEXPLAINED_BYTES`, and at least RSS divided by `MIN_UNEXPLAINED_DIVISOR`.
const MIN_UNEXPLAINED_BYTES: u64 = 1 << 20;
const MIN_UNEXPLAINED_DIVISOR: u64 = 10;
/// An unread runtime gets a caveat if the row `anonymous` has at least this.
const MIN_UNREAD_BYTES: u64 = 256 << 10;

/// The allocators and runtimes of a process, as the explanation has them.
pub struct Recognised {
    /// Allocators that are mapped and have no reading.
    pub allocators: Vec<Allocator>,
    /// Runtimes, read or only recognised.
    pub runtimes: Vec<Runtime>,
}

/// Recognises allocators and runtimes by what is mapped, and adds the caveats about the
/// `unclaimed_bytes`, which are on the row `anonymous`.
pub fn recognise(
    process: &Process,
    frozen: &mut FrozenState,
    caveats: &mut Vec<Caveat>,
    unclaimed_bytes: u64,
) -> Recognised {
    let recognised = recognise::recognise(process, &frozen.address_space);
    let runtimes = runtimes(recognised.runtimes, &frozen.runtime_readings);
    // An allocator with a reading is described there; only a version that the reader cannot
    // determine is added.
    let mut without_reading = recognised.allocators;
    without_reading.retain(|found| {
        let mut allocators = frozen.allocator_readings.iter_mut().map(|reading| &mut reading.allocator);
        let Some(read) = allocators.find(|allocator| allocator.name == found.name) else { return true };
        read.version = read.version.take().or_else(|| found.version.clone());
        false
    });
    // A runtime may manage all its memory itself: then its reader has read the allocator.
    let is_read = |name: &str| runtimes.iter().any(|runtime| runtime.read && runtime.name == name);
    for allocator in without_reading.iter().filter(|allocator| !is_read(&allocator.name)) {
        let text = format!(
            "strandline cannot read the memory of {} yet: it is on the row anonymous",
            allocator.name
        );
        if !has_cause(caveats, &allocator.name) {
            caveats.push(Caveat::new("allocator_not_read", &allocator.found_by, Some(unclaimed_bytes), text));
        }
    }
    // A recognised allocator explains the heap that was not found.
    if !without_reading.is_empty() {
        caveats.retain(|caveat| caveat.code != "heap_not_found");
    }
    // Runtimes whose heap is named among the allocators have a caveat already.
    let is_allocator = |name: &str| without_reading.iter().any(|allocator| allocator.found_by == name);
    let has_unread_heap = |runtime: &&Runtime| {
        !runtime.read && recognise::has_own_heap(&runtime.name) && !is_allocator(&runtime.found_by)
    };
    for runtime in runtimes.iter().filter(has_unread_heap).filter(|_| unclaimed_bytes >= MIN_UNREAD_BYTES) {
        let text =
            format!("strandline cannot read the memory of {}: it is on the row anonymous", runtime.name);
        if !has_cause(caveats, &runtime.name) {
            caveats.push(Caveat::new("runtime_not_read", &runtime.found_by, Some(unclaimed_bytes), text));
        }
    }
    let unread_allocators = without_reading.iter().map(|allocator| allocator.name.as_str());
    let unread_allocators = unread_allocators.filter(|name| !is_read(name));
    let unread_runtimes = runtimes.iter().filter(has_unread_heap).map(|runtime| runtime.name.as_str());
    let unread = unread_allocators.chain(unread_runtimes);
    let min_bytes = MIN_UNEXPLAINED_BYTES.max(frozen.sums.rss_bytes / MIN_UNEXPLAINED_DIVISOR);
    if unclaimed_bytes >= min_bytes && !is_explained(caveats, unread) {
        caveats.push(unexplained_caveat(frozen, unclaimed_bytes));
    }
    let allocators = without_reading.into_iter().flat_map(|found| allocators(found, &runtimes)).collect();
    Recognised { allocators, runtimes }
}

/// The allocator that was `found`. If it is a runtime that was read, it has the figures of that
/// runtime, whose objects are its blocks: an entry for each of several.
fn allocators(found: recognise::Component, runtimes: &[Runtime]) -> Vec<Allocator> {
    let read = runtimes.iter().filter(|runtime| runtime.read && runtime.name == found.name);
    let allocators: Vec<Allocator> = read
        .map(|runtime| Allocator {
            name: found.name.clone(),
            version: runtime.version.clone().or_else(|| found.version.clone()),
            found_by: runtime.found_by.clone(),
            read: true,
            live_bytes: runtime.used_bytes,
            free_bytes: runtime.free_bytes,
            own: runtime.own.clone(),
            ..Allocator::default()
        })
        .collect();
    if !allocators.is_empty() {
        return allocators;
    }
    let recognise::Component { name, version, found_by } = found;
    vec![Allocator { name, version, found_by, ..Allocator::default() }]
}

/// Whether a caveat says why a reader did not read the allocator or runtime `name`: it was busy, or
/// is damaged.
fn has_cause(caveats: &[Caveat], name: &str) -> bool {
    let damage_code = format!("{name}_damaged");
    let is_busy = |caveat: &Caveat| caveat.code == "runtime_busy" && caveat.place == name;
    caveats.iter().any(|caveat| is_busy(caveat) || caveat.code == damage_code)
}

/// Whether caveats explain the unclaimed memory: an allocator or a runtime was recognised and not
/// read, or one of `unread` was damaged. Damage in a heap that was read does not explain it: the
/// damaged parts are on the rows of that heap.
fn is_explained<'a>(caveats: &[Caveat], mut unread: impl Iterator<Item = &'a str>) -> bool {
    let explains =
        |code: &str| ["allocator_not_read", "runtime_not_read", "runtime_busy", "not_64_bit"].contains(&code);
    caveats.iter().any(|caveat| explains(&caveat.code)) || unread.any(|name| has_cause(caveats, name))
}

/// The names of allocators and runtimes that manage their own memory and were not read.
pub fn unread_names(allocators: &[Allocator], runtimes: &[Runtime]) -> Vec<String> {
    let is_listed =
        |runtime: &&Runtime| allocators.iter().any(|allocator| allocator.found_by == runtime.found_by);
    let of_runtimes = runtimes
        .iter()
        .filter(|runtime| !runtime.read && recognise::has_own_heap(&runtime.name))
        .filter(|runtime| !is_listed(runtime))
        .map(|runtime| runtime.name.clone());
    let of_allocators = allocators.iter().filter(|allocator| !allocator.read);
    of_allocators.map(|allocator| allocator.name.clone()).chain(of_runtimes).collect()
}

/// The runtimes that keep objects in their own memory, which was not read.
pub fn unread_runtimes<'a>(
    allocators: &'a [Allocator],
    runtimes: &'a [Runtime],
) -> impl Iterator<Item = &'a Runtime> {
    let is_read = |runtime: &&Runtime| {
        runtime.read
            || allocators.iter().any(|allocator| allocator.read && allocator.found_by == runtime.found_by)
    };
    runtimes.iter().filter(move |runtime| !is_read(runtime) && recognise::has_own_heap(&runtime.name))
}

/// Makes the caveat about memory that no known allocator or runtime holds, with the place of the
/// largest such mapping.
fn unexplained_caveat(frozen: &FrozenState, bytes: u64) -> Caveat {
    let private = frozen.smaps_entries.iter().filter(|entry| entry.mapping.is_private_anonymous());
    let of_heaps = frozen.allocator_readings.iter().flat_map(|reading| {
        let blocks = reading.mapped_blocks.iter();
        reading.ranges().chain(blocks.map(|block| AddressRange::new(block.start, block.end)))
    });
    let of_runtimes = frozen.runtime_readings.iter().flat_map(|reading| &reading.claims);
    let of_runtimes = of_runtimes.map(RangeClaim::range);
    let of_threads = frozen.stacks.iter().map(Stack::range);
    let claimed: RangeSet = of_heaps.chain(of_runtimes).chain(of_threads).collect();
    let unclaimed = private.filter(|entry| !claimed.overlaps(entry.mapping.range()));
    let largest = unclaimed.max_by_key(|entry| entry.counts.rss_bytes);
    let place = largest
        .map_or_else(String::new, |entry| format!("{:#x}-{:#x}", entry.mapping.start, entry.mapping.end));
    let text = "strandline found no allocator or runtime that holds this memory: the program may have mapped it itself, or \
                have an allocator of its own; the place is that of the largest mapping";
    Caveat::new("anonymous_unexplained", place, Some(bytes), text)
}

/// The runtimes that were recognised by their files, with what their readers found.
fn runtimes(recognised: Vec<recognise::Component>, readings: &[runtime::Reading]) -> Vec<Runtime> {
    let mut all: Vec<Runtime> = readings.iter().map(|reading| reading.facts.clone()).collect();
    all.retain(|runtime| !runtime.name.is_empty());
    for found in recognised {
        match all.iter_mut().find(|runtime| runtime.name == found.name) {
            Some(read) => read.version = read.version.take().or(found.version),
            None => all.push(Runtime {
                name: found.name,
                version: found.version,
                found_by: found.found_by,
                ..Runtime::default()
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_and_collections_are_causes_of_their_own_reader_only() {
        let caveats = [
            Caveat::new("jvm_damaged", "0x1000", None, ""),
            Caveat::new("runtime_busy", "go", None, ""),
            Caveat::new("sbcl_threads", "sbcl", None, ""),
        ];
        let has_cause = |name| has_cause(&caveats, name);
        assert_eq!((has_cause("jvm"), has_cause("go"), has_cause("sbcl")), (true, true, false));
    }

    #[test]
    fn damage_explains_memory_of_no_reader_only_if_nothing_was_read() {
        let caveats = [
            Caveat::new("heap_damaged", "0x1000", Some(4096), ""),
            Caveat::new("jvm_damaged", "0x2000", None, ""),
        ];
        let is_explained = |unread: &[&str]| is_explained(&caveats, unread.iter().copied());
        assert!(is_explained(&["jvm"]));
        assert!(!is_explained(&[]) && !is_explained(&["sbcl"]), "a damaged chunk of a heap that was read");
    }
}
