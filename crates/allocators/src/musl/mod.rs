//! musl's malloc, read from outside without symbols or calls: mallocng (1.2.1 and later) here, its
//! predecessor in `old`.
//!
//! `locate` finds the state and the groups of slots that its metadata describes, `claims`
//! classifies each slot. The size of a block is the requested one, from its header; of the heap
//! itself only headers are read.

mod claims;
mod counts;
mod forward;
mod layout;
mod locate;
mod old;
mod rows;

use self::locate::{FoundStates, State};
use crate::parallel::Claimed;
use crate::scan::is_private_memory;
use strandline_claims::accumulator::{Class, OutOfOrder};
use strandline_claims::allocator::{self, Context, FoundAllocator, Reading, Readings, read_each};
use strandline_claims::caveat::Caveat;
use strandline_claims::reader::{Evidence, FileName, ReaderInfo};
use strandline_process::range::{AddressRange, RangeSet};

/// Entry of musl's malloc in the table of readers.
pub static ABOUT: ReaderInfo = ReaderInfo {
    name: "musl",
    title: "musl's malloc",
    evidence: Evidence {
        // The last is Debian's name; glibc's file is libc.so.6.
        files: &[
            FileName::Contains("ld-musl-", ".so"),
            FileName::Contains("libc.musl-", ".so"),
            FileName::Exact("libc.so"),
        ],
        ..Evidence::NONE
    },
    versions: "1.1.16 to 1.2.5 (mallocng and before), 64 bits",
    rows: &rows::ROWS,
    blocks: Some(&rows::BLOCKS),
    block_sizes: "musl's older malloc rounds up by 31 bytes at most, large blocks to pages; mallocng does not",
    remedies: &[],
    not_read: "program data that the loader donates to malloc stays on program.data",
    ..ReaderInfo::NONE
};

/// The reader of musl's malloc.
pub static READER: allocator::Reader =
    allocator::Reader::new(|_, space| if locate::is_possible(space) { Some(Box::new(Musl)) } else { None });

struct Musl;

impl FoundAllocator for Musl {
    fn needs_thread_pointers(&self) -> bool {
        false
    }

    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder> {
        let FoundStates { states, mut first_late_file } = locate::find(context);
        let readings = if states.is_empty() {
            let old_states = old::find(context);
            first_late_file = first_late_file.or(old_states.first_late_file);
            read_each(context, old_states.states, |state, taken| old::read(context, state, taken))
        } else {
            read_each(context, states, |state, taken| read(context, state, taken))
        };
        let text =
            "not all static data was searched for musl's malloc in the time that a target may be stopped";
        let caveat = first_late_file.map(|name| Caveat::new("musl_too_slow", name, None, text));
        Ok((readings, caveat.into_iter().collect()))
    }
}

/// Reads one mallocng outside `taken` (claimed by others).
fn read(context: &Context<'_>, state: &State, taken: &RangeSet) -> Reading {
    let Claimed { claims, mut counts } = claims::claim(context, &state.groups, taken);
    counts.doubts.add(&state.doubts);
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut claimed = taken.clone();
    claimed.add(reading.ranges());
    let is_unclaimed = |area: &AddressRange| is_private_memory(context, *area) && !claimed.overlaps(*area);
    // Areas are mostly adjacent: they are claimed together.
    let areas: RangeSet =
        state.areas.iter().map(|&area| AddressRange::sized(area, layout::PAGE_BYTES)).collect();
    let areas = areas.into_iter().filter(is_unclaimed);
    reading.claims.extend(areas.map(|area| context.claim_whole(area, Class::Metadata)));
    let structure_counts = [
        ("meta_areas", state.areas.len() as u64),
        ("groups", state.groups.len() as u64),
        ("mmapped_blocks", counts.mapped_blocks),
    ];
    let area_bytes = state.areas.len() as u64 * layout::PAGE_BYTES;
    reading.allocator =
        counts.facts(format!("state of mallocng in {}", state.name), area_bytes, &structure_counts);
    reading.bytes_read = state.bytes_read + counts.bytes_read;
    counts.doubts.add_caveats(&mut reading.caveats, &ABOUT, "groups and slots", &state.name);
    reading.is_inconsistent = counts.doubts.damages > 0;
    reading.refined = counts.matched;
    reading
}
