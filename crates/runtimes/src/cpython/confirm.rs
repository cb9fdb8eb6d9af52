//! Compares what was counted outside the arenas with the blocks that allocators have in use.
//!
//! Copies left behind when a block was moved or freed look like objects, and a stale word may point
//! to one. Large objects without a block in use at their address are subtracted; confirmed large
//! blocks get rows by the type of their object. If no arena was found, there may be none
//! (PYTHONMALLOC=malloc), or the layout of the arenas is unknown: in the latter case most objects
//! are in no allocator's block.

use std::collections::HashMap;

use super::ABOUT;
use super::counted::{ClaimedBlock, LargeObject};
use super::facts::CPython;
use super::large::Slots;
use strandline_claims::caveat::Caveat;
use strandline_claims::facts::OTHER_TYPES;
use strandline_claims::runtime::{FinishContext, NamedBlock, Pending, Reading};

/// What is compared once the allocators have been read.
pub struct PendingConfirmation {
    /// Slots of the claims on blocks.
    pub slots: Slots,
    /// Large objects outside the arenas.
    pub large_objects: Vec<LargeObject>,
    /// Blocks that may be large, with the types of their objects.
    pub claimed_blocks: Vec<ClaimedBlock>,
    /// Names of types, by address.
    pub type_names: HashMap<u64, String>,
    /// Whether there are arenas or heaps.
    pub has_arenas: bool,
    /// Number of objects counted outside the arenas.
    pub outside_object_count: u64,
    /// Path of the program or library.
    pub path: String,
}

/// Adds the caveat that arenas were not found.
pub fn note_missing_arenas(reading: &mut Reading, path: &str) {
    let text = "no arena was found, and most objects, if any were found, are in no block of a known allocator: CPython's own \
                figures are not known, and its memory counts as anonymous";
    reading.caveats.push(Caveat::new("cpython_arenas_not_found", path, None, text));
}

impl Pending for PendingConfirmation {
    fn finish(self: Box<Self>, reading: &mut Reading, context: &FinishContext<'_>) {
        let confirmed = context.matched.count_of([self.slots.object]);
        if !self.has_arenas && confirmed < self.outside_object_count / 2 {
            note_missing_arenas(reading, &self.path);
            if let Some(details) = reading.facts.details::<CPython>(ABOUT.name) {
                reading.facts.set_details(ABOUT.name, &CPython { beside_arenas: None, ..details });
            }
        }
        if confirmed == 0 {
            // The allocator is not read, so nothing is confirmed.
            return;
        }
        let confirmed_bytes: HashMap<u64, u64> =
            context.matched.large_blocks.iter().map(|large| (large.pointer, large.bytes)).collect();
        reading.named_blocks.extend(self.claimed_blocks.iter().filter_map(|block| {
            let bytes = *confirmed_bytes.get(&block.pointer)?;
            let holder = self.type_names.get(&block.type_address)?.clone();
            Some(NamedBlock { pointer: block.pointer, bytes, slot: block.slot, holder })
        }));
        let types = reading.facts.types.iter().enumerate();
        let indices: HashMap<String, usize> =
            types.map(|(index, facts)| (facts.name.clone(), index)).collect();
        let mut details: Option<CPython> = reading.facts.details(ABOUT.name);
        let is_unconfirmed = |object: &&LargeObject| !confirmed_bytes.contains_key(&object.start);
        for object in self.large_objects.iter().filter(is_unconfirmed) {
            // The types without a name are listed as one.
            let name = self.type_names.get(&object.type_address).map_or(OTHER_TYPES, String::as_str);
            let index = indices.get(name).copied();
            if let Some(facts) = index.and_then(|index| reading.facts.types.get_mut(index)) {
                facts.instances = facts.instances.saturating_sub(1);
                facts.bytes = facts.bytes.saturating_sub(object.bytes);
            }
            if let Some(outside) = details.as_mut().and_then(|details| details.beside_arenas.as_mut()) {
                outside.objects = outside.objects.saturating_sub(1);
                outside.bytes = outside.bytes.saturating_sub(object.bytes);
            }
        }
        reading.facts.types.retain(|facts| facts.instances > 0);
        if let Some(details) = details {
            reading.facts.set_details(ABOUT.name, &details);
        }
    }
}
