//! Finds mallocng's state and all its groups.
//!
//! The state and each area of metadata begin with the same secret word. No other structure points
//! to memory that begins with the structure's own first word, so no symbol is needed.

use std::collections::HashSet;

use super::layout::{AREA_NEXT, CONTEXT_LAYOUTS, Group, METAS_PER_AREA, PAGE_BYTES};
use crate::scan::{DeadlineCheck, each_word, is_mapped_memory, is_resident};
use strandline_claims::allocator::Context;
use strandline_claims::doubts::ReadProblems;
use strandline_process::c_library::CLibrary;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::modules;
use strandline_process::range::AddressRange;

/// Maximum static data searched per program or library: that of musl is a few KiB, but a static
/// program's own may precede it.
const MAX_DATA_BYTES: u64 = 64 << 20;
/// Maximum areas followed, each with a hundred groups; with more, the list counts as damaged.
const MAX_AREAS: usize = 1 << 18;
/// Fewer bytes than any group has: the smallest, which `donate` makes, have 80. As no more groups
/// are kept than fit into the memory of the process, a hostile list cannot exhaust strandline's
/// memory.
const MIN_GROUP_BYTES: u64 = 64;

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

/// Returns the mappings of each module whose data may hold the state: musl's library, or a program
/// without any library.
pub fn candidates(space: &AddressSpace) -> Vec<Vec<&Mapping>> {
    let mut modules = modules::file_groups(space);
    let is_library = |mappings: &Vec<&Mapping>| mappings[0].file_name().contains(".so");
    if modules.iter().any(is_library) {
        modules.retain(|mappings| CLibrary::of_file(&mappings[0].name) == Some(CLibrary::Musl));
    }
    modules
}

/// Returns the writable mappings of a program or library, at most [`MAX_DATA_BYTES`].
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

/// The states of a process, of mallocng or of its predecessor.
pub struct FoundStates<T> {
    /// All that were found.
    pub states: Vec<T>,
    /// Name of the first file whose data was not searched completely before the deadline.
    pub first_late_file: Option<String>,
}

/// Outcome of a search in a range of static data.
pub struct SearchResult<T> {
    /// What was found; `None` if it is not in the range or the deadline passed before.
    pub hit: Option<T>,
    /// Whether the deadline passed before the end of the range.
    pub is_late: bool,
}

/// Finds all states of a process.
pub fn find(context: &Context<'_>) -> FoundStates<State> {
    let mut found_states = FoundStates { states: Vec::new(), first_late_file: None };
    for mappings in candidates(context.space) {
        for range in static_data(&mappings) {
            let name = || mappings[0].name.clone();
            let SearchResult { hit: area, is_late } = first_area(context, range);
            found_states.states.extend(area.map(|area| read_state(context, name(), &area)));
            if is_late {
                found_states.first_late_file.get_or_insert_with(name);
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

/// Searches `range` for the state; returns its first area.
fn first_area(context: &Context<'_>, range: AddressRange) -> SearchResult<FirstArea> {
    let mut result = SearchResult { hit: None, is_late: false };
    let mut deadline = DeadlineCheck::after_first_steps(context);
    each_word(context, range, &mut |at, area| {
        // Most words are not the address of a page.
        if !area.is_multiple_of(PAGE_BYTES) || !is_resident(context, area) {
            return true;
        }
        if deadline.passed() {
            result.is_late = true;
            return false;
        }
        // Most pages are not areas, whether they can be read or not.
        let secret = context.memory.read_word(area).ok().filter(|&secret| secret != 0);
        if let Some(secret) = secret.filter(|&secret| has_state(context, at, secret)) {
            result.hit = Some(FirstArea { address: area, secret });
        }
        result.hit.is_none()
    });
    result
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
        if context.deadline_passed() {
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
        let Some(next) = word_at(&bytes, AREA_NEXT) else { break };
        area = next;
    }
    // If two groups have the same start, the outer one comes first.
    state.groups.sort_unstable_by_key(|group| (group.start, std::cmp::Reverse(group.end())));
    state
}
