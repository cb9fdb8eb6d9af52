//! Figures of Perl's arenas.

use std::collections::BTreeMap;

use super::census::Census;
use super::facts::{Bodies, Heads};
use super::objects;
use super::spaces::{BodyArena, BodyType, HeadArena};
use super::sums::SurveySums;

/// The figures of heads.
pub fn heads(arenas: &[HeadArena], census: &Census) -> Heads {
    let by_type = objects::TYPE_NAMES.iter().zip(census.by_type).filter(|(_, count)| *count > 0);
    Heads {
        arenas: arenas.len() as u64,
        arena_bytes: arenas.iter().map(HeadArena::bytes).sum(),
        live: census.live_heads,
        free: census.free_heads,
        by_type: by_type.map(|(name, count)| ((*name).to_owned(), count)).collect(),
    }
}

/// The figures of bodies, by type. Free entries of hashes are known if `free_entries` is, other
/// free bodies if the survey `knows_used_bodies`, all of them.
pub fn bodies(
    arenas: &[BodyArena],
    survey: &SurveySums,
    free_entries: Option<u64>,
    knows_used_bodies: bool,
) -> Vec<Bodies> {
    let mut by_type: BTreeMap<BodyType, Bodies> = BTreeMap::new();
    let mut entry_slots = 0;
    for (index, arena) in arenas.iter().enumerate() {
        let bodies = by_type.entry(arena.body_type).or_default();
        arena.body_type.name().clone_into(&mut bodies.name);
        bodies.body_bytes = arena.body_bytes;
        bodies.arenas += 1;
        bodies.arena_bytes += arena.bytes;
        if arena.body_type == BodyType::Entry {
            entry_slots += arena.slots();
            continue;
        }
        let used = survey.used_bodies.get(index).map_or(0, |used| u64::from(used.bodies));
        bodies.used += used;
        if knows_used_bodies {
            bodies.free = Some(bodies.free.unwrap_or(0) + arena.slots().saturating_sub(used));
        }
    }
    if let Some(entries) = by_type.get_mut(&BodyType::Entry) {
        entries.free = free_entries;
        entries.used = free_entries.map_or(survey.own_key_entries, |free| entry_slots.saturating_sub(free));
    }
    by_type.into_values().collect()
}
