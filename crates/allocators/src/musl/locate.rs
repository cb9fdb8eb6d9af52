//! Finds mallocng's state and all its groups.
//!
//! The state and each area of metadata begin with the same secret word. No other structure points
//! to memory that begins with the structure's own first word, so no symbol is needed.

use std::collections::HashSet;
use std::time::Instant;

use super::layout::{AREA_NEXT, CONTEXT_LAYOUTS, Group, METAS_PER_AREA, PAGE_BYTES};
use crate::scan::{each_word, is_mapped_memory};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_process::c_library::CLibrary;
use strandline_process::map::{AddressSpace, DELETED_SUFFIX, Mapping};
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::modules;
use strandline_process::range::AddressRange;

/// Maximum static data searched per program or library.
const MAX_DATA_BYTES: u64 = 64 << 20;
/// Maximum areas followed; each has a hundred groups.
const MAX_AREAS: usize = 1 << 18;
/// No group has fewer bytes (`donate` makes the smallest): so the list of groups takes no more of
/// our memory than the process maps.
const MIN_GROUP_BYTES: u64 = 64;
/// Candidates for the state between two checks of the deadline.
const CANDIDATES_PER_DEADLINE_CHECK: u64 = 256;

/// The state of one mallocng, with all its groups.
pub struct State {
    /// Name of the file that contains it.
    pub name: String,
    /// Its areas of metadata, in the order of their list.
    pub areas: Vec<u64>,
    /// Its groups, in address order; nested ones follow the group that contains them.
    pub groups: Vec<Group>,
    /// Invalid metas, the area at which the list ended early, and where the deadline passed.
    pub doubts: ReadProblems,
    /// Bytes read from the target.
    pub bytes_read: u64,
}

/// Returns the name of a mapping's file without its folder.
fn file_name(mapping: &Mapping) -> &str {
    let path = mapping.name.strip_suffix(DELETED_SUFFIX).unwrap_or(&mapping.name);
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the modules whose data may hold the state: musl's library, or a program without any
/// library.
pub fn candidates(space: &AddressSpace) -> Vec<Vec<&Mapping>> {
    let mut groups = modules::file_groups(space);
    let is_library = |group: &Vec<&Mapping>| file_name(group[0]).contains(".so");
    if groups.iter().any(is_library) {
        groups.retain(|group| CLibrary::of_file(&group[0].name) == Some(CLibrary::Musl));
    }
    groups
}

/// Returns the writable mappings of a program or library, at most `MAX_DATA_BYTES`.
pub fn static_data(mappings: &[&Mapping]) -> Vec<AddressRange> {
    let mut remaining_bytes = MAX_DATA_BYTES;
    let writable = mappings.iter().filter(|mapping| mapping.permissions.write);
    let range_of = |mapping: &&Mapping| {
        let range = AddressRange::sized(mapping.start, mapping.bytes().min(remaining_bytes));
        remaining_bytes -= range.len();
        range
    };
    writable.map(range_of).collect()
}

/// Whether a process may have a mallocng.
pub fn is_possible(space: &AddressSpace) -> bool {
    !candidates(space).is_empty()
}

/// The states of a process.
pub struct FoundStates {
    /// All that were found.
    pub states: Vec<State>,
    /// Name of the first file whose data was not searched completely before the deadline.
    pub first_late_file: Option<String>,
}

/// Finds all states of a process.
pub fn find(context: &Context<'_>) -> FoundStates {
    let mut found_states = FoundStates { states: Vec::new(), first_late_file: None };
    for group in candidates(context.space) {
        for range in static_data(&group) {
            let (area, is_late) = first_area(context, range);
            if let Some(area) = area {
                found_states.states.push(read_state(context, group[0].name.clone(), &area));
            }
            if is_late {
                found_states.first_late_file.get_or_insert_with(|| group[0].name.clone());
            }
        }
    }
    found_states
}

/// The first area of metadata.
struct FirstArea {
    address: u64,
    /// The word that each area begins with.
    secret: u64,
}

/// Returns the first area if the state is in `range`, and whether the deadline passed before that
/// was known.
fn first_area(context: &Context<'_>, range: AddressRange) -> (Option<FirstArea>, bool) {
    let (mut first_area, mut checked_words, mut is_late) = (None, 0_u64, false);
    each_word(context, range, &mut |at, area| {
        // Most words are not the address of a page.
        if !area.is_multiple_of(PAGE_BYTES) || !is_resident(context, area) {
            return true;
        }
        checked_words += 1;
        if checked_words.is_multiple_of(CANDIDATES_PER_DEADLINE_CHECK) && Instant::now() >= context.deadline {
            is_late = true;
            return false;
        }
        let Some(secret) = context.memory.read_word(area).ok().filter(|&secret| secret != 0) else {
            return true;
        };
        if has_state(context, at, secret) {
            first_area = Some(FirstArea { address: area, secret });
        }
        first_area.is_none()
    });
    (first_area, is_late)
}

/// Whether the pointer to the first area at `pointer` is that of a state with this secret, in
/// either layout.
fn has_state(context: &Context<'_>, pointer: u64, secret: u64) -> bool {
    CONTEXT_LAYOUTS.iter().any(|layout| {
        let Some(state) = pointer.checked_sub(layout.area_head as u64) else { return false };
        let mut bytes = [0; 24];
        context.memory.read(state, &mut bytes).is_ok()
            && word_at(&bytes, 0) == Some(secret)
            && half_word_at(&bytes, layout.init_done) == Some(1)
    })
}

fn is_resident(context: &Context<'_>, page: u64) -> bool {
    !context.resident_runs((page, page.saturating_add(8))).is_empty()
}

/// Returns the number of groups that fit into the process's memory.
fn max_groups(space: &AddressSpace) -> usize {
    let is_usable = |mapping: &&Mapping| mapping.permissions.write && is_mapped_memory(mapping);
    let bytes: u64 = space.mappings().iter().filter(is_usable).map(Mapping::bytes).sum();
    (bytes / MIN_GROUP_BYTES) as usize
}

/// Follows the list of areas and reads their groups.
fn read_state(context: &Context<'_>, name: String, first: &FirstArea) -> State {
    let mut state =
        State { name, areas: Vec::new(), groups: Vec::new(), doubts: ReadProblems::default(), bytes_read: 0 };
    let (mut seen_areas, max_groups) = (HashSet::new(), max_groups(context.space));
    let (mut area, mut bytes) = (first.address, vec![0; PAGE_BYTES as usize]);
    while area != 0 {
        if Instant::now() >= context.deadline {
            state.doubts.note_timeout(area);
            break;
        }
        let is_area = area.is_multiple_of(PAGE_BYTES)
            && seen_areas.insert(area)
            && seen_areas.len() <= MAX_AREAS
            && state.groups.len() <= max_groups
            && is_resident(context, area)
            && context.memory.read(area, &mut bytes).is_ok()
            && word_at(&bytes, 0) == Some(first.secret);
        if !is_area {
            state.doubts.note_damage(area, 0);
            break;
        }
        state.bytes_read += PAGE_BYTES;
        state.areas.push(area);
        for index in 0..METAS_PER_AREA {
            match Group::in_area(&bytes, area, index) {
                Some(group) => state.groups.push(group),
                None if Group::is_present(&bytes, index) => state.doubts.note_damage(area, 0),
                None => {}
            }
        }
        area = word_at(&bytes, AREA_NEXT).unwrap_or(0);
    }
    // If two groups have the same start, the outer one comes first.
    state.groups.sort_unstable_by_key(|group| (group.start, std::cmp::Reverse(group.end())));
    state
}
