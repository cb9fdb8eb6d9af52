//! Holds what was counted beside arenas against what allocators have in use.
//!
//! Copies that a block left behind when it was moved or freed look like objects, and a stale word may lead to one: large objects in
//! whose place no allocator has a block in use are taken back; large blocks that are there get rows by the type of the object whose
//! they are. And where no arena was found there may be none (PYTHONMALLOC=malloc), or they are laid out in no known way: then most
//! objects are in no allocator's block.

use std::collections::HashMap;

use super::facts::CPython;
use super::large::Slots;
use strandline_claims::caveat::Caveat;
use strandline_claims::class::Slot;
use strandline_claims::runtime::{Finish, Named, Pending, Reading};

/// A large object beside arenas, as it was counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Where its block begins.
    pub start: u64,
    /// The address of its type.
    pub of: u64,
    /// Its bytes, as they were counted.
    pub told: u64,
}

/// A block of an allocator's that was claimed.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// What the allocator returned.
    pub pointer: u64,
    /// As what it was claimed.
    pub slot: Slot,
    /// The address of the type of the object that it is of: itself, its table, or what it leads to.
    pub of: u64,
}

/// What is left to do once the allocators were read.
pub struct Confirm {
    /// As what blocks were claimed.
    pub slots: Slots,
    /// Large objects.
    pub large: Vec<Counted>,
    /// Blocks that may be large, and whose they are.
    pub held: Vec<Held>,
    /// Names of types by their addresses.
    pub names: HashMap<u64, String>,
    /// Whether there are arenas.
    pub has_arenas: bool,
    /// How many objects were counted beside them.
    pub beside: u64,
    /// Which program or library it is.
    pub place: String,
}

impl Pending for Confirm {
    fn finish(self: Box<Self>, reading: &mut Reading, how: &Finish<'_>) {
        let confirmed = how.matched.count_of([self.slots.object]);
        if !self.has_arenas && confirmed < self.beside / 2 {
            let facts = &mut reading.facts;
            (facts.used_bytes, facts.free_bytes, facts.committed_bytes) = (None, None, None);
            facts.own.clear();
            let text = "no arena was found, and most objects are in no block of an allocator that is read: its own figures are not \
                        known, and its memory stands on anonymous";
            reading.caveats.push(Caveat::new("cpython_arenas_not_found", self.place.clone(), None, text));
        }
        if confirmed == 0 {
            // Of an allocator that is not read nothing is confirmed.
            return;
        }
        let held: HashMap<u64, u64> = how.matched.large.iter().copied().collect();
        reading.named.extend(self.held.iter().filter_map(|of| {
            let (&bytes, holder) = (held.get(&of.pointer)?, self.names.get(&of.of)?.clone());
            Some(Named { pointer: of.pointer, bytes, slot: of.slot, holder })
        }));
        let mut details: Option<CPython> = reading.facts.details("cpython");
        for gone in self.large.iter().filter(|object| !held.contains_key(&object.start)) {
            let name = self.names.get(&gone.of);
            if let Some(of) = reading.facts.types.iter_mut().find(|of| Some(&of.name) == name) {
                of.instances = of.instances.saturating_sub(1);
                of.bytes = of.bytes.saturating_sub(gone.told);
            }
            if let Some(beside) = details.as_mut().and_then(|details| details.beside_arenas.as_mut()) {
                beside.objects = beside.objects.saturating_sub(1);
                beside.bytes = beside.bytes.saturating_sub(gone.told);
            }
        }
        reading.facts.types.retain(|of| of.instances > 0);
        if let Some(details) = details {
            reading.facts.set_details("cpython", &details);
        }
    }
}
