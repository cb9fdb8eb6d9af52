//! musl's malloc (mallocng, 1.2.1 and later), read from outside, without symbols and without calling anything.
//!
//! `locate` finds its state and the groups of slots that its metadata names, `claims` says what each slot is. A block's size is
//! the one that was asked for, which stands in its header: of the heap itself so much is read.

pub mod claims;
pub mod layout;
pub mod locate;
pub mod rows;

use self::claims::Counts;
use self::locate::State;
use strandline_claims::accumulator::{Accumulator, Class, OutOfOrder};
use strandline_claims::allocator::{self, Context, Found, RangeClaim, Reading, Readings, overlapping};
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::{Allocator, Figures};
use strandline_claims::range::merge;
use strandline_claims::reader::{About, Evidence, FileName, HeapKind};
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;

/// musl's malloc, for the table of readers.
pub static ABOUT: About = About {
    name: "musl",
    title: "musl's malloc",
    evidence: Evidence {
        // The last is Debian's; glibc's own file is libc.so.6.
        files: &[
            FileName::Has("ld-musl-", ".so"),
            FileName::Has("libc.musl-", ".so"),
            FileName::Is("libc.so"),
        ],
        ..Evidence::NONE
    },
    versions: "1.2.1 to 1.2.5 (mallocng), 64 bits",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    remedies: &[],
    not_read: "the malloc of 1.1 and 1.2.0; what the loader gives away of programs' data stays on program.data",
    heap: HeapKind::Own,
    part_of: None,
};

/// Its reader.
pub struct Reader;

impl allocator::Reader for Reader {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn find(&self, _: &Process, space: &AddressSpace) -> Option<Box<dyn Found>> {
        if locate::is_possible(space) { Some(Box::new(Musl)) } else { None }
    }
}

struct Musl;

impl Found for Musl {
    fn reads_blocks(&self) -> bool {
        true
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let mut taken = context.claimed.to_vec();
        let mut readings: Vec<Reading> = Vec::new();
        for state in locate::find(context) {
            merge(&mut taken);
            let reading = read(context, &state, &taken);
            taken.extend(reading.claims.iter().map(|claim| (claim.start, claim.end)));
            readings.push(reading);
        }
        Ok((readings, Vec::new()))
    }
}

fn read(context: &Context<'_>, state: &State, taken: &[(u64, u64)]) -> Reading {
    let (claims, counts) = claims::claim(context, &state.groups, taken);
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut held: Vec<(u64, u64)> = reading.claims.iter().map(|claim| (claim.start, claim.end)).collect();
    held.extend(taken);
    merge(&mut held);
    for (start, end) in claims::areas(&state.areas) {
        if crate::scan::is_own(context, start, end) && overlapping(&held, start, end).is_empty() {
            let pages = context.pages(start, end);
            let mut accumulator = Accumulator::new(start, &pages);
            accumulator.claim_to(end, Class::Metadata);
            reading.claims.push(RangeClaim { start, end, sums: accumulator.cut().finish(&pages) });
        }
    }
    reading.allocator = facts(state, &counts);
    reading.refined = counts.matched.clone();
    reading.bytes_read = state.bytes_read + counts.bytes_read;
    say_doubts(state, &counts, &mut reading);
    reading
}

fn facts(state: &State, counts: &Counts) -> Allocator {
    let mut allocator = Allocator {
        name: "musl".to_owned(),
        found_by: format!("state of mallocng in {}", state.name),
        read: true,
        ..Allocator::default()
    };
    if !state.is_broken && state.damages == 0 && counts.damages == 0 && !counts.is_late {
        let areas = state.areas.len() as u64 * layout::PAGE_BYTES;
        allocator.live_bytes = Some(counts.live_bytes);
        allocator.live_blocks = Some(counts.live_blocks);
        allocator.cached_bytes = Some(0);
        allocator.free_bytes = Some(counts.free_bytes);
        allocator.metadata_bytes = Some(areas + counts.head_bytes);
        allocator.own = own(state, counts);
        allocator.size_classes = counts.classes.values().cloned().collect();
    }
    allocator
}

/// musl keeps no statistics; these are what its structures are called.
fn own(state: &State, counts: &Counts) -> Figures {
    let figures = [
        ("meta_areas", state.areas.len() as u64),
        ("groups", state.groups.len() as u64),
        ("mmapped_blocks", counts.mapped_blocks),
    ];
    figures.into_iter().map(|(name, figure)| (name.to_owned(), figure.into())).collect()
}

fn say_doubts(state: &State, counts: &Counts, reading: &mut Reading) {
    if counts.is_late {
        let text = "the time for which a target may be stopped was over: not all of musl's groups were read";
        reading.caveats.push(Caveat::new("musl_too_slow", state.name.clone(), None, text));
    }
    let damages = state.damages + counts.damages + u64::from(state.is_broken);
    if damages > 0 {
        reading.in_motion = true;
        let text = format!(
            "{damages} of musl's groups and slots make no sense: damaged, or caught in motion; what they hold is not known"
        );
        let place = counts.first_damage.map_or_else(|| state.name.clone(), |at| format!("{at:#x}"));
        reading.caveats.push(Caveat::new("musl_damaged", place, None, text));
    }
}
