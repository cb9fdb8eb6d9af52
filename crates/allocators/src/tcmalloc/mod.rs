//! gperftools' tcmalloc, read from outside without symbols or calls.
//!
//! `locate` finds the page map and the size classes, `spans` walks the page map, `caches` finds the
//! objects in thread and transfer caches, `claims` classifies each byte, `metadata` finds
//! tcmalloc's own structures. Free objects of a span are in a list linked through their first
//! words, so the memory of spans with free objects is read.

mod caches;
mod claims;
mod layout;
mod locate;
mod metadata;
mod rows;
mod spans;
mod summary;

use self::layout::SpanState;
use self::locate::Heap;
use self::spans::Span;
use crate::blocks::UnmatchedCaches;
use crate::parallel::Claimed;
use crate::radix::FoundHeaps;
use strandline_claims::accumulator::{Class, OutOfOrder};
use strandline_claims::allocator::{
    self, Argument, CallPlan, Context, FoundAllocator, Function, Reading, Readings, read_each,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::Remedy;
use strandline_claims::reader::{Evidence, FileName, ReaderInfo, leading_version};
use strandline_claims::remedy::Spec;
use strandline_process::image::ElfFile;
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;
use strandline_process::range::RangeSet;

/// tcmalloc's entry in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "tcmalloc",
    title: "tcmalloc",
    evidence: Evidence {
        files: &[FileName::Contains("libtcmalloc", ".so")],
        symbols: &["tc_malloc"],
        strings: &[('t', "cmalloc: large alloc ")],
        version: |clue| version(&clue.image()?),
        ..Evidence::NONE
    },
    versions: "gperftools 2.8 to 2.18, 64 bits, any of its page sizes",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    block_sizes: "tcmalloc rounds up to its size classes, large blocks to its pages",
    remedies: &[CALL, Spec::next_start("tcmalloc_decommit", "tcmalloc releases free spans at once")],
    not_read: "the debugging build; gperftools before 2.8; its small memory model",
    ..ReaderInfo::NONE
};

/// The call that `reclaim` makes.
const CALL: Spec =
    Spec::call("tcmalloc_release", "tcmalloc", "tcmalloc releases the free spans of its page heap");

/// Releases all free spans of the page heap (`ReleaseToSystem(LONG_MAX)`).
const RELEASE: Function = Function {
    name: "MallocExtension_ReleaseFreeMemory",
    sibling: Some("MallocExtension_GetNumericProperty"),
    argument: Argument::NONE,
    stack_bytes: 64 << 10,
    own_prefixes: &[
        "_ZN8tcmalloc",
        "_ZNK8tcmalloc",
        "tc_",
        "_ZN15MallocExtension",
        "MallocExtension_",
        "_ZN8SpinLock",
    ],
};

/// Minimum free bytes for which a setting for the next start is proposed.
const MIN_BYTES_FOR_SETTING: u64 = 1 << 20;

/// The reader of tcmalloc.
pub static READER: allocator::Reader = allocator::Reader::new(|_, space| {
    let is_likely =
        space.mappings().iter().any(|mapping| mapping.has_file() && mapping.name.contains("libtcmalloc"));
    if locate::is_possible(space) { Some(Box::new(Tcmalloc { is_likely })) } else { None }
});

struct Tcmalloc {
    /// Whether tcmalloc is likely: many programs have as much static data as its page map needs.
    is_likely: bool,
}

impl FoundAllocator for Tcmalloc {
    fn takes_long(&self) -> bool {
        self.is_likely
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let FoundHeaps { heaps, caveats } = locate::find(context);
        Ok((read_each(context, heaps, |heap, taken| read(context, heap, taken)), caveats))
    }

    fn finish(&self, process: &Process, _: &AddressSpace, reading: &mut Reading) {
        let Some(call) = &reading.call else { return };
        let predicted_bytes = call.predicted_bytes;
        reading.remedies.push(call.remedy(
            process.pid(),
            "one call in one thread, which holds the page heap's lock meanwhile; page faults when the heap grows again",
        ));
        if predicted_bytes >= MIN_BYTES_FOR_SETTING {
            let cost = "releases free spans at once: costs a system call each, and page faults at reuse";
            let setting = Remedy::setting("tcmalloc_decommit", "TCMALLOC_AGGRESSIVE_DECOMMIT=t", cost);
            reading.remedies.push(setting.predicting(predicted_bytes));
        }
    }
}

/// Reads one heap outside `taken` (claimed by others).
fn read(context: &Context<'_>, heap: &Heap, taken: &RangeSet) -> Reading {
    let spans = spans::walk(context, heap, taken);
    let caches = caches::find(context, heap, &spans);
    let Claimed { claims, mut counts } = claims::claim(context, &heap.classes, &spans.all, &caches);
    let structures = metadata::find(context, heap, &spans, &caches, taken);
    let mut doubts = spans.walk.doubts.clone();
    doubts.add(&counts.doubts);
    caches.first_late_address.into_iter().for_each(|at| doubts.note_timeout(at));
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let are_releasable = claims::free_spans_are_releasable(context, &spans.all);
    let is_releasable = |span: &&Span| are_releasable && span.state == SpanState::Normal;
    reading.call = Some(CallPlan {
        spec: &CALL,
        function: RELEASE,
        object: heap.object,
        // A thread that holds a lock has a tcmalloc frame on its stack.
        locks: Vec::new(),
        heaps: spans.all.iter().filter(is_releasable).map(Span::range).collect(),
        releases_all: true,
        // The call depends on nothing in its thread.
        fs_bases: context.fs_bases.to_vec(),
        predicted_bytes: reading.releasable_bytes(),
        due_milliseconds: 0,
        libc_code: None,
        doubt: doubts.call_hazard(),
    });
    reading.claims.extend(structures.iter().map(|&range| context.claim_whole(range, Class::Metadata)));
    let is_whole = doubts.is_empty() && spans.outside_pointers.first_left_out.is_none();
    reading.allocator = summary::facts(heap, &counts, &caches, &structures, is_whole);
    reading.refined = std::mem::take(&mut counts.matched);
    reading.bytes_read = spans.walk.bytes_read + counts.bytes_read + caches.bytes_read;
    doubts.add_caveats(&mut reading.caveats, &ABOUT, "spans", &heap.name);
    reading.is_inconsistent = doubts.damages > 0;
    if let Some(at) = spans.outside_pointers.first_left_out {
        let text = "static data has more pointers than strandline follows: objects in the thread caches behind them count as in use";
        reading.caveats.push(Caveat::new("tcmalloc_left_out", format!("{at:#x}"), None, text));
    }
    let unmatched_objects = (caches.blocks.len() as u64).saturating_sub(counts.matched_objects);
    let unmatched_caches = UnmatchedCaches {
        block_word: "object",
        // After the deadline not all spans were compared.
        blocks: if doubts.timed_out() { 0 } else { unmatched_objects },
        list_word: "list",
        lists: caches.broken_lists,
    };
    reading.caveats.extend(unmatched_caches.caveat(&ABOUT, &heap.name));
    reading.caveats.extend(caches.swapped.caveat(&ABOUT));
    reading
}

/// Returns the version in gperftools' own text (`gperftools 2.10`).
fn version(image: &ElfFile) -> Option<String> {
    const NEEDLE: &str = "gperftools ";
    let text = image.strings(&[NEEDLE]).pop()??;
    leading_version(text.strip_prefix(NEEDLE)?)
}
