//! jemalloc, read from outside without symbols or calls.
//!
//! `locate` finds the page map, `extents` walks it, `caches` finds the regions in thread caches,
//! `claims` classifies each byte, `base` finds jemalloc's own structures, `hpa` the free parts of
//! its huge pages. The reader reads a word per page, 128 bytes per extent, the thread caches and,
//! with huge pages, jemalloc's own structures, but no allocation of the program.

mod base;
mod caches;
mod claims;
mod dynamic;
mod extents;
mod hpa;
mod layout;
mod locate;
mod rows;
mod settings;
mod sizes;
mod summary;

use self::extents::Extent;
use self::layout::{Layout, State};
use self::locate::PageMap;
use crate::blocks::UnmatchedCaches;
use crate::parallel::Claimed;
use crate::radix::FoundHeaps;
use strandline_claims::accumulator::{Class, OutOfOrder};
use strandline_claims::allocator::{
    self, Argument, CallPlan, Context, FoundAllocator, Function, Reading, Readings, read_each,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::Remedy;
use strandline_claims::reader::{Evidence, FileName, Match, ReaderInfo, leading_version};
use strandline_claims::remedy::Spec;
use strandline_process::image::{ElfFile, image_at};
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};

/// jemalloc's entry in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "jemalloc",
    title: "jemalloc",
    evidence: Evidence {
        files: &[FileName::Contains("libjemalloc", ".so")],
        symbols: &["mallctl", "je_mallctl", "je_malloc_usable_size", "_rjem_mallctl", "_rjem_malloc"],
        strings: &[('<', "jemalloc>: Error in ")],
        version: |clue: &Match<'_>| version(&clue.image()?),
        ..Evidence::NONE
    },
    versions: "5.0 to 5.3, 64 bits, pages of 4 KiB",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    block_sizes: "jemalloc rounds up to its size classes, by less than a quarter above 64 bytes",
    remedies: &[CALL, Spec::next_start("jemalloc_decay", "jemalloc releases free pages at once")],
    not_read: "other page sizes, a quantum other than 8 and 16, 4.x",
    ..ReaderInfo::NONE
};

/// The call that `reclaim` makes.
const CALL: Spec =
    Spec::call("jemalloc_purge", "jemalloc", "jemalloc releases its free pages, dirty and muzzy ones");

/// Purges all arenas: returns dirty and muzzy pages to the kernel (`arena_i_decay` with
/// `MALLCTL_ARENAS_ALL`). The stack holds an array of all arenas, up to 4,095.
const PURGE: Function = Function {
    name: "mallctl",
    sibling: Some("calloc"),
    argument: Argument::Text("arena.4096.purge"),
    stack_bytes: 64 << 10,
    own_prefixes: &["je_", "rjem_"],
};

/// Minimum free bytes for which a setting for the next start is proposed.
const MIN_BYTES_FOR_SETTING: u64 = 1 << 20;

/// The reader of jemalloc.
pub static READER: allocator::Reader =
    allocator::Reader::new(
        |_, space| {
            if locate::is_possible(space) { Some(Box::new(Jemalloc)) } else { None }
        },
    );

struct Jemalloc;

impl FoundAllocator for Jemalloc {
    /// No allocation of the program is read.
    fn takes_long(&self) -> bool {
        false
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let FoundHeaps { heaps: page_maps, caveats } = locate::find(context);
        Ok((read_each(context, page_maps, |page_map, taken| read(context, page_map, taken)), caveats))
    }

    fn finish(&self, process: &Process, space: &AddressSpace, reading: &mut Reading) {
        let Some(call) = &reading.call else { return };
        let predicted_bytes = call.predicted_bytes;
        reading.remedies.push(call.remedy(
            process.pid(),
            "one call in one thread, which holds each arena's locks in turn; page faults when the heap grows again",
        ));
        if predicted_bytes >= MIN_BYTES_FOR_SETTING {
            let setting =
                image_at(process, space, call.object).and_then(|image| settings::decay_setting(&image));
            let setting = setting.filter(|_| process.start_facts().is_none_or(|facts| !facts.is_secure));
            reading.remedies.extend(setting.map(|setting| {
                let how = process.with_setting(&setting.variable, setting.value, ',');
                Remedy::setting("jemalloc_decay", &how, setting.cost).predicting(predicted_bytes)
            }));
        }
    }
}

/// Reads one jemalloc outside `taken` (claimed by others).
fn read(context: &Context<'_>, page_map: &PageMap, taken: &RangeSet) -> Reading {
    let layout = page_map.layout;
    let mut extents = extents::walk(context, page_map, taken);
    let mut doubts = extents.walk.doubts.clone();
    let base_blocks = base::find(context, &extents.all, taken, &mut doubts);
    let huge_pages = hpa::find(context, layout, &extents.all, &base_blocks, taken);
    extents.all.extend(huge_pages.extents());
    extents.all.sort_by_key(|extent| extent.start);
    let caches = caches::find(context, layout.caches, &page_map.leaves);
    let Claimed { claims, mut counts } = claims::claim(context, layout, &extents.all, &caches);
    doubts.add(&counts.doubts);
    doubts.add(&huge_pages.doubts);
    caches.first_late_address.into_iter().for_each(|at| doubts.note_timeout(at));
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    reading.call = Some(CallPlan {
        spec: &CALL,
        function: PURGE,
        object: page_map.object,
        // A thread that holds a lock has a jemalloc frame on its stack.
        locks: Vec::new(),
        heaps: releasable_ranges(context, layout, &extents.all),
        releases_all: true,
        // In a thread without a cache the call would first create one.
        fs_bases: caches.fs_bases.clone(),
        predicted_bytes: reading.releasable_bytes(),
        due_milliseconds: 0,
        libc_code: None,
        doubt: doubts.call_hazard(),
    });
    let metadata = base_blocks.iter().map(|block| context.claim_whole(block.range, Class::Metadata));
    reading.claims.extend(metadata);
    reading.allocator = summary::facts(page_map, &counts, &base_blocks, doubts.is_empty());
    reading.refined = std::mem::take(&mut counts.matched);
    reading.key_addresses = caches.key_addresses;
    reading.bytes_read =
        extents.walk.bytes_read + counts.bytes_read + caches.bytes_read + huge_pages.bytes_read;
    reading.caveats.extend(huge_pages_caveat(page_map, huge_pages.resident_bytes));
    doubts.add_caveats(&mut reading.caveats, &ABOUT, "extents", &page_map.name);
    reading.is_inconsistent = doubts.damages > 0;
    let unmatched_regions = (caches.blocks.len() as u64).saturating_sub(counts.cached.count);
    let unmatched_caches = UnmatchedCaches {
        block_word: "region",
        // After the deadline not all extents were compared.
        blocks: if doubts.timed_out() { 0 } else { unmatched_regions },
        list_word: "bin",
        lists: caches.broken_lists,
    };
    reading.caveats.extend(unmatched_caches.caveat(&ABOUT, &page_map.name));
    let swapped_caveat = caches.swapped.caveat(&ABOUT);
    let has_threads = !context.fs_bases.is_empty() && caches.first_late_address.is_none();
    if has_threads && caches.fs_bases.is_empty() && swapped_caveat.is_none() {
        reading.caveats.push(no_caches_caveat(page_map));
    }
    reading.caveats.extend(swapped_caveat);
    reading
}

/// Returns the ranges that a purge releases: dirty and muzzy extents. The kernel keeps locked ones.
fn releasable_ranges(context: &Context<'_>, layout: &Layout, extents: &[Extent]) -> Vec<AddressRange> {
    let is_releasable = |extent: &&Extent| {
        matches!(layout.state(extent.bits), Some(State::Dirty | State::Muzzy))
            && !context.is_locked(extent.range())
    };
    extents.iter().filter(is_releasable).map(Extent::range).collect()
}

/// Returns the caveat on threads without a cache that was found.
fn no_caches_caveat(page_map: &PageMap) -> Caveat {
    let text =
        "no thread's cache was found: unless they are off (opt.tcache), their free regions count as in use";
    Caveat::new("jemalloc_cache_not_found", page_map.name.clone(), None, text)
}

/// Returns a caveat for free bytes in huge pages, which a purge does not cover.
fn huge_pages_caveat(page_map: &PageMap, bytes: u64) -> Option<Caveat> {
    let text = "these bytes are free in jemalloc's huge pages (opt.hpa), which it releases by its own rule (hpa_dirty_mult); a purge \
                may release some, which is not predicted";
    (bytes > 0).then(|| Caveat::new("jemalloc_huge_pages", page_map.name.clone(), Some(bytes), text))
}

/// Returns the version from jemalloc's version string (`JEMALLOC_VERSION`), which `configure.ac`
/// takes from `git describe --long --abbrev=40`: the tag, the number of commits since, and the
/// commit, `5.3.0-0-g54eaed1d…`. So a release has `-0-g`, and a build between releases has no
/// version here. The search finds strings by their beginning, so it tries the releases that are
/// read, and two older ones.
fn version(image: &ElfFile) -> Option<String> {
    const RELEASES: &[&str] = &[
        "5.3.1-0-g",
        "5.3.0-0-g",
        "5.2.1-0-g",
        "5.2.0-0-g",
        "5.1.0-0-g",
        "5.0.1-0-g",
        "5.0.0-0-g",
        "4.5.0-0-g",
        "3.6.0-0-g",
    ];
    leading_version(&image.strings(RELEASES).into_iter().flatten().next()?)
}
