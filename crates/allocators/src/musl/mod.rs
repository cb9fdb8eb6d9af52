//! musl's malloc, read from outside without symbols or calls: mallocng (1.2.1 and later) here, its
//! predecessor in `old`.
//!
//! `locate` finds the state and the groups of slots that its metadata describes, `claims`
//! classifies each slot. The size of a block is the requested one, from its header; of the heap
//! itself only headers are read.

pub mod claims;
pub mod counts;
pub mod forward;
pub mod layout;
pub mod locate;
pub mod old;
pub mod rows;

use self::locate::{FoundStates, State};
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
        let FoundStates { states, first_late_file } = locate::find(context);
        let text =
            "not all static data was searched for musl's malloc in the time that a target may be stopped";
        let caveats: Vec<Caveat> =
            first_late_file.map(|name| Caveat::new("musl_too_slow", name, None, text)).into_iter().collect();
        if states.is_empty() {
            let readings =
                read_each(context, old::find(context), |state, taken| old::read(context, state, taken));
            return Ok((readings, caveats));
        }
        let readings = read_each(context, states, |state, taken| read(context, state, taken));
        Ok((readings, caveats))
    }
}

fn read(context: &Context<'_>, state: &State, taken: &RangeSet) -> Reading {
    let (claims, mut counts) = claims::claim(context, &state.groups, taken);
    counts.doubts.add(&state.doubts);
    let mut reading = Reading { rows: Some(&rows::BLOCKS), claims, ..Reading::default() };
    let mut claimed = taken.clone();
    claimed.add(reading.ranges());
    let is_unclaimed =
        |area: &AddressRange| crate::scan::is_private_memory(context, *area) && !claimed.overlaps(*area);
    let areas = claims::merged_areas(&state.areas).into_iter().filter(is_unclaimed);
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
