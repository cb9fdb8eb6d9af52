//! References between objects, and what is reachable: from a stack, and from objects of the archive
//! of class data.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{ReferenceBlock, ReferenceKind};
use super::{
    CODE, CODE_BYTES, DATA, DATA_BYTES, OOP_SHIFT, STACK, STACK_BYTES, STRUCTURES, STRUCTURES_BYTES, Writer,
};

/// An object that was written.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Its address.
    pub address: u64,
    pub bytes: u64,
    /// Index of its class.
    pub class: usize,
    /// Its strong references except the referent of a `java.lang.ref.SoftReference`.
    pub references: ReferenceBlock,
    /// Whether it is in the archive of class data, and so live.
    pub is_archived: bool,
    /// Whether it has regions of its own, whose descriptions contain its address without keeping it
    /// alive.
    pub is_humongous: bool,
}

/// References between objects, and the objects that are live without references.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// By the address of an object, those of the objects that it keeps alive.
    references: BTreeMap<u64, Vec<u64>>,
    /// Addresses of objects in the archive, and of those that the stack refers to.
    roots: Vec<u64>,
}

/// Addresses of an object's references.
struct ReferenceAddresses {
    /// References that keep their targets alive.
    strong: Vec<u64>,
    /// The reference that does not: the referent of a `java.lang.ref.WeakReference`.
    weak: Option<u64>,
}

impl Writer {
    /// Draws references between objects, and from the stack.
    pub fn draw_references(&mut self) -> Graph {
        let mut graph = Graph::default();
        let objects = self.objects.clone();
        for object in &objects {
            let ReferenceAddresses { strong, weak } = self.reference_addresses(object);
            let targets = graph.references.entry(object.address).or_default();
            for address in strong {
                targets.extend(self.put_reference(address, &objects));
            }
            if let Some(address) = weak {
                self.put_reference(address, &objects);
            }
        }
        let archived = objects.iter().filter(|object| object.is_archived);
        graph.roots = archived.map(|object| object.address).collect();
        for slot in 0..self.rng.below(20) {
            if self.rng.chance(40) {
                continue;
            }
            // Compiled code has narrow references on the stack too.
            let address = STACK + STACK_BYTES - 8 * (slot + 1);
            graph.roots.extend(self.put_reference(address, &objects));
        }
        graph
    }

    /// Computes what is live, once the rest is written. A word outside of the heap that is an
    /// object's address keeps that object: descriptions of spaces and regions contain the addresses
    /// of the first objects in them.
    pub fn expect_live(&mut self, Graph { references, mut roots }: Graph) {
        let small_objects = self.objects.iter().filter(|object| !object.is_humongous);
        let small_addresses: BTreeSet<u64> = small_objects.map(|object| object.address).collect();
        for (start, bytes) in [(STRUCTURES, STRUCTURES_BYTES), (DATA, DATA_BYTES), (CODE, CODE_BYTES)] {
            let words = (start..start + bytes).step_by(8).filter_map(|address| self.image.word(address));
            roots.extend(words.filter(|word| small_addresses.contains(word)));
        }
        let mut live_addresses: BTreeSet<u64> = BTreeSet::new();
        while let Some(address) = roots.pop() {
            if live_addresses.insert(address) {
                roots.extend(references.get(&address).into_iter().flatten());
            }
        }
        for object in self.objects.iter().filter(|object| live_addresses.contains(&object.address)) {
            let tally = self.expected.live_types.entry(self.classes[object.class].name).or_default();
            tally.add(object.bytes);
        }
    }

    /// Returns the addresses of the references of an object.
    fn reference_addresses(&self, object: &Object) -> ReferenceAddresses {
        let oop_bytes = self.oop_bytes();
        let ReferenceBlock { offset, count } = object.references;
        let first = object.address + offset;
        let mut strong: Vec<u64> = (0..count).map(|index| first + index * oop_bytes).collect();
        // The referent of a reference object is right before the fields of its `OopMapBlock`.
        let referent = first - oop_bytes;
        let weak = match self.classes[object.class].reference_kind {
            Some(ReferenceKind::Weak) => Some(referent),
            Some(ReferenceKind::Soft) => {
                strong.push(referent);
                None
            }
            None => None,
        };
        ReferenceAddresses { strong, weak }
    }

    /// Writes a reference to one of `objects`, or none; returns its target.
    fn put_reference(&mut self, address: u64, objects: &[Object]) -> Option<u64> {
        if objects.is_empty() || self.rng.chance(70) {
            return None;
        }
        let target = self.rng.one_of(objects).address;
        if self.has_narrow_oops {
            self.image.put_half(address, target >> OOP_SHIFT);
        } else {
            self.image.put_word(address, target);
        }
        Some(target)
    }

    /// Bytes of a reference.
    pub fn oop_bytes(&self) -> u64 {
        if self.has_narrow_oops { 4 } else { 8 }
    }
}
