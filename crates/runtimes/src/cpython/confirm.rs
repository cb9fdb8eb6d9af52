//! Takes back what was counted of large objects in whose place no allocator holds a block in use: copies that a block left behind when it
//! was moved or freed look like objects, and a stale word may lead to one.

use std::collections::{HashMap, HashSet};

use super::facts::CPython;
use super::large::Slots;
use strandline_claims::runtime::{Finish, Pending, Reading};

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

/// What is left to do once the allocators were read.
pub struct Confirm {
    /// As what blocks were claimed.
    pub slots: Slots,
    /// Large objects.
    pub large: Vec<Counted>,
    /// Names of their types.
    pub names: HashMap<u64, String>,
}

impl Pending for Confirm {
    fn finish(self: Box<Self>, reading: &mut Reading, how: &Finish<'_>) {
        if how.matched.blocks([self.slots.object]) == 0 {
            // Of an allocator that is not read nothing is confirmed.
            return;
        }
        let held: HashSet<u64> = how.matched.large.iter().copied().collect();
        let mut details: Option<CPython> = reading.facts.details("cpython");
        for gone in self.large.iter().filter(|object| !held.contains(&object.start)) {
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
