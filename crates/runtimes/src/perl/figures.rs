//! Figures of Perl's arenas.

use std::collections::BTreeMap;

use super::census::Census;
use super::facts::{Bodies, Heads};
use super::objects;
use super::spaces::{self, BodyArena, ENTRIES, HeadArena};
use super::sums::SurveySums;

/// The figures of heads.
pub fn heads(arenas: &[HeadArena], census: &Census) -> Heads {
    let by_type = objects::TYPE_NAMES.iter().zip(census.by_type).filter(|(_, count)| *count > 0);
    Heads {
        arenas: arenas.len() as u64,
        arena_bytes: arenas.iter().map(HeadArena::bytes).sum(),
        live: census.live_heads,
        free: census.free_heads,
        by_type: by_type.map(|((_, name), count)| ((*name).to_owned(), count)).collect(),
    }
}

/// The figures of bodies, by type; `free_entries` are the free entries of hashes, if known. Free
/// bodies of other types are known if the survey `knows_used_bodies`, all of them.
pub fn bodies(
    arenas: &[BodyArena],
    survey: &SurveySums,
    free_entries: Option<u64>,
    knows_used_bodies: bool,
) -> Vec<Bodies> {
    let mut by_type: BTreeMap<usize, Bodies> = BTreeMap::new();
    for (index, arena) in arenas.iter().enumerate() {
        let bodies = by_type.entry(arena.body_type).or_default();
        let used = survey.used_bodies.get(index).map_or(0, |used| u64::from(used.bodies));
        spaces::body_name(arena.body_type).clone_into(&mut bodies.name);
        bodies.body_bytes = arena.body_bytes;
        bodies.arenas += 1;
        bodies.arena_bytes += arena.bytes;
        bodies.used += used;
        if knows_used_bodies || arena.body_type == ENTRIES {
            bodies.free = Some(bodies.free.unwrap_or(0) + arena.slots().saturating_sub(used));
        }
    }
    if let Some(entries) = by_type.get_mut(&ENTRIES) {
        let slots = entries.free.unwrap_or(0);
        entries.free = free_entries;
        entries.used = free_entries.map_or(survey.own_key_entries, |free| slots.saturating_sub(free));
    }
    by_type.into_values().collect()
}
