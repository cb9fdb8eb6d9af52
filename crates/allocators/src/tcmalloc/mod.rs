//! gperftools' tcmalloc, read from outside, without symbols and without calling anything.
//!
//! `locate` finds its page map and its size classes, `spans` goes over what is in the map, `caches` finds the objects in
//! threads' and transfer caches, `claims` says what each byte is, `metadata` finds tcmalloc's own structures. Which objects of a span
//! are free is told by a list through their first words: of spans with free ones the memory itself is read.

pub mod caches;
pub mod claims;
pub mod layout;
pub mod locate;
pub mod metadata;
pub mod rows;
pub mod spans;
mod summary;

use self::claims::Counts;
use self::layout::Location;
use self::locate::Heap;
use self::spans::Spans;
use strandline_claims::accumulator::{Accumulator, Class, OutOfOrder};
use strandline_claims::allocator::{
    self, Argument, CallPlan, Cause, Context, Doubt, Found, Function, RangeClaim, Reading, Readings,
};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Remedy, RemedyKind};
use strandline_claims::range::merge;
use strandline_claims::reader::{About, Evidence, FileName, HeapKind, leading_version};
use strandline_process::image::Image;
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;

/// tcmalloc, for the table of readers.
pub static ABOUT: About = About {
    name: "tcmalloc",
    title: "tcmalloc",
    evidence: Evidence {
        files: &[FileName::Has("libtcmalloc", ".so")],
        symbols: &["tc_malloc", "TCMallocInternalMalloc"],
        strings: &[('t', "cmalloc: large alloc ")],
        version: |clue| version(&clue.image()?),
        ..Evidence::NONE
    },
    versions: "gperftools 2.8 to 2.18, 64 bits, any of its page sizes",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    remedies: &["tcmalloc_release", "tcmalloc_decommit"],
    not_read: "Google's own (TCMalloc), which has caches by processor; the debugging build; gperftools before 2.8; its small memory model",
    heap: HeapKind::Own,
    part_of: None,
};

/// Releases all free spans of the page heap (`ReleaseToSystem(LONG_MAX)`).
const RELEASE: Function = Function {
    name: "MallocExtension_ReleaseFreeMemory",
    sibling: "MallocExtension_GetNumericProperty",
    argument: Argument::Number(0),
    stack_bytes: 64 << 10,
    own_names: &[
        "_ZN8tcmalloc",
        "_ZNK8tcmalloc",
        "tc_",
        "_ZN15MallocExtension",
        "MallocExtension_",
        "_ZN8SpinLock",
    ],
};

/// So much in free pages is worth a setting for the next start.
const WORTH_A_SETTING_BYTES: u64 = 1 << 20;

/// Its reader.
pub struct Reader;

impl allocator::Reader for Reader {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn find(&self, _: &Process, space: &AddressSpace) -> Option<Box<dyn Found>> {
        let is_library =
            space.mappings().iter().any(|mapping| mapping.has_file() && mapping.name.contains("libtcmalloc"));
        if locate::is_possible(space) { Some(Box::new(Tcmalloc { is_library })) } else { None }
    }
}

struct Tcmalloc {
    /// Whether it is likely: many programs have as much static data as its map needs.
    is_library: bool,
}

impl Found for Tcmalloc {
    fn reads_blocks(&self) -> bool {
        self.is_library
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let mut taken = context.claimed.to_vec();
        let (mut readings, mut caveats) = (Vec::new(), Vec::new());
        let (heaps, unknown) = locate::find(context);
        for name in unknown {
            let text = "tcmalloc's size classes were found, but its page map is laid out in no known way, or empty: nothing of it is read";
            caveats.push(Caveat::new("tcmalloc_unknown_layout", name, None, text));
        }
        for heap in heaps {
            merge(&mut taken);
            let reading = read(context, &heap, &taken);
            taken.extend(reading.claims.iter().map(|claim| (claim.start, claim.end)));
            readings.push(reading);
        }
        Ok((readings, caveats))
    }

    fn finish(&self, process: &Process, _: &AddressSpace, reading: &mut Reading) {
        let Some(call) = &reading.call else { return };
        reading.remedies.push(Remedy {
            id: call.remedy.to_owned(),
            kind: RemedyKind::Call,
            predicted_bytes: Some(call.predicted_bytes),
            how: format!("strandline reclaim {} --remedy tcmalloc_release", process.pid()),
            cost: "one call in one thread, which holds the page heap's lock meanwhile; later growth faults pages in again"
                .to_owned(),
        });
        if call.predicted_bytes >= WORTH_A_SETTING_BYTES {
            reading.remedies.push(Remedy {
                id: "tcmalloc_decommit".to_owned(),
                kind: RemedyKind::Setting,
                predicted_bytes: None,
                how: "TCMALLOC_AGGRESSIVE_DECOMMIT=t".to_owned(),
                cost: "free spans go back at once: a call of the kernel for each, and faults where they are wanted again"
                    .to_owned(),
            });
        }
    }
}

/// Reads one tcmalloc, beside what is `taken` by others, in address order.
fn read(context: &Context<'_>, heap: &Heap, taken: &[(u64, u64)]) -> Reading {
    let spans = spans::walk(context, heap, taken);
    let cached = caches::find(context, heap, &spans);
    let (claims, counts) = claims::claim(context, &heap.classes, &spans.all, &cached);
    let own = metadata::find(context, heap, (&spans, &cached), taken);
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let are_given = claims::are_given(context, &spans.all);
    let is_given = |span: &&spans::Span| are_given && span.location == Location::Normal;
    reading.call = Some(CallPlan {
        remedy: "tcmalloc_release",
        function: RELEASE,
        object: heap.object,
        // A thread that holds one has a frame of tcmalloc's on its stack.
        locks: Vec::new(),
        heaps: spans.all.iter().filter(is_given).map(|span| (span.start, span.end)).collect(),
        gives_all: true,
        // The call needs nothing of its thread's.
        threads: context.fs_bases.to_vec(),
        predicted_bytes: reading.claims.iter().map(|claim| claim.sums.trimmable).sum(),
        doubt: doubt(&spans, &counts),
    });
    reading.claims.extend(own.iter().map(|&range| own_claim(context, range)));
    let is_whole = !spans.walk.is_late && !counts.is_late && spans.walk.damages == 0 && counts.damages == 0;
    reading.allocator = summary::facts(heap, &counts, &cached, &own, is_whole);
    reading.refined = counts.matched.clone();
    reading.bytes_read = spans.walk.bytes_read + counts.bytes_read + cached.bytes_read;
    say_doubts(heap, (&spans, &counts, &cached), &mut reading);
    reading
}

/// What speaks against a call.
fn doubt(spans: &Spans, counts: &Counts) -> Option<Doubt> {
    let late = spans.walk.is_late.then(|| spans.all.last().map_or(0, |last| last.end));
    let late = late.map(|at| Doubt { at, cause: Cause::TooSlow });
    let damaged = spans.walk.first_damage.or(counts.first_damage);
    damaged.map(|at| Doubt { at, cause: Cause::Broken }).or(late)
}

/// tcmalloc's own structures.
fn own_claim(context: &Context<'_>, (start, end): (u64, u64)) -> RangeClaim {
    let pages = context.pages(start, end);
    let mut accumulator = Accumulator::new(start, &pages);
    accumulator.claim_to(end, Class::Metadata);
    RangeClaim { start, end, sums: accumulator.cut().finish(&pages) }
}

fn say_doubts(
    heap: &Heap,
    (spans, counts, cached): (&Spans, &Counts, &caches::Cached),
    reading: &mut Reading,
) {
    if spans.walk.is_late || counts.is_late {
        let text =
            "the time for which a target may be stopped was over: not all of tcmalloc's spans were read";
        reading.caveats.push(Caveat::new("tcmalloc_too_slow", heap.name.clone(), None, text));
    }
    let damages = spans.walk.damages + counts.damages;
    if let Some(at) = spans.walk.first_damage.or(counts.first_damage) {
        reading.in_motion = true;
        let text = format!(
            "{damages} of tcmalloc's spans make no sense: damaged, or caught in motion; what they hold is not known"
        );
        let bytes = (counts.damages > 0).then_some(counts.damaged_bytes);
        reading.caveats.push(Caveat::new("tcmalloc_damaged", format!("{at:#x}"), bytes, text));
    }
    let unmatched = summary::unmatched(cached, counts);
    if unmatched > 0 || cached.broken > 0 {
        let text = format!(
            "{unmatched} objects and {} lists of caches lead to nothing that is in use: damaged, or caught in motion; what they \
             hold counts as in use",
            cached.broken
        );
        reading.caveats.push(Caveat::new("tcmalloc_cache_broken", heap.name.clone(), None, text));
    }
}

/// The version that gperftools carries (`gperftools 2.10`).
fn version(image: &Image) -> Option<String> {
    const NEEDLE: &str = "gperftools ";
    let text = image.strings(&[NEEDLE]).pop()??;
    leading_version(text.strip_prefix(NEEDLE)?)
}
