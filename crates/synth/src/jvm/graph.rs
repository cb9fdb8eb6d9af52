//! References between objects, and what is reachable: from a stack, and from objects of the archive
//! of class data.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{Class, Kind, MIRROR_BYTES, MIRROR_STATIC_COUNT_OFFSET, ReferenceBlock, ReferenceKind};
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
    /// Number of elements of an array; number of static references of a `java.lang.Class`.
    pub length: u64,
    /// Whether it came from the archive, and so is live.
    pub is_archived: bool,
    /// Whether it has its own regions: their addresses in tables are no references to it.
    pub is_humongous: bool,
}

/// References between objects, and the objects that are live without any.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// By object, the objects that it keeps alive.
    references: BTreeMap<u64, Vec<u64>>,
    roots: Vec<u64>,
}

/// Addresses of an object's references.
#[derive(Default)]
struct ReferenceAddresses {
    /// Those that keep their targets.
    strong: Vec<u64>,
    /// Those that do not.
    weak: Vec<u64>,
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
            for address in weak {
                self.put_reference(address, &objects);
            }
        }
        let archived = objects.iter().filter(|object| object.is_archived);
        graph.roots = archived.map(|object| object.address).collect();
        for slot in 0..self.dice.below(20) {
            if self.dice.chance(40) {
                continue;
            }
            // On a stack, compiled code has narrow references as well.
            let address = STACK + STACK_BYTES - 8 * (slot + 1);
            graph.roots.extend(self.put_reference(address, &objects));
        }
        graph
    }

    /// Computes what is live, once the rest is written: descriptions of spaces and regions contain
    /// the addresses of the first objects in them, and a word that is an object's address keeps
    /// that object.
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
        let Class { references, kind, reference_kind, .. } = self.classes[object.class];
        let ReferenceBlock { offset, count } = match kind {
            Kind::Array { element_bytes, holds_references: true } => {
                ReferenceBlock { offset: self.elements_offset(element_bytes), count: object.length }
            }
            Kind::Mirror => ReferenceBlock { offset: MIRROR_BYTES, count: object.length },
            _ => references.unwrap_or_default(),
        };
        let address = |index: u64| object.address + offset + index * oop_bytes;
        let strong = (0..count).map(address).collect();
        let mut addresses = ReferenceAddresses { strong, weak: Vec::new() };
        // The referent of a reference object is in front of the fields in its map.
        let list = match reference_kind {
            Some(ReferenceKind::Weak) => &mut addresses.weak,
            Some(ReferenceKind::Soft) => &mut addresses.strong,
            None => return addresses,
        };
        list.push(object.address + offset - oop_bytes);
        addresses
    }

    /// Writes a reference to one of `objects`, or none; returns its target.
    fn put_reference(&mut self, address: u64, objects: &[Object]) -> Option<u64> {
        if objects.is_empty() || self.dice.chance(70) {
            return None;
        }
        let target = self.dice.one_of(objects).address;
        if self.has_narrow_oops {
            self.image.put(address, &((target >> OOP_SHIFT) as u32).to_le_bytes());
        } else {
            self.image.put_word(address, target);
        }
        Some(target)
    }

    /// Bytes of a reference.
    pub fn oop_bytes(&self) -> u64 {
        if self.has_narrow_oops { 4 } else { 8 }
    }

    /// Writes the number of static references of a `java.lang.Class`.
    pub fn put_static_count(&mut self, mirror: u64, count: u64) {
        self.image.put(mirror + MIRROR_STATIC_COUNT_OFFSET, &(count as u32).to_le_bytes());
    }
}
