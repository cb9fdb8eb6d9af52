//! References between objects, and what is reachable: from a stack, and from objects of the archive
//! of class data.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{Class, MIRROR_BYTES, MIRROR_COUNT};
use super::{CODE, CODE_BYTES, DATA, DATA_BYTES, STACK, STACK_BYTES, STRUCTURES, STRUCTURES_BYTES, Writer};

#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Its address.
    pub at: u64,
    pub bytes: u64,
    /// Index of its class.
    pub class: usize,
    /// Number of elements of an array; number of static references of a `java.lang.Class`.
    pub length: u64,
    /// Whether it came from the archive, and so is live.
    pub is_archived: bool,
    /// Whether it has its own regions, whose addresses in tables do not keep it.
    pub is_humongous: bool,
}

/// References between objects, and the objects that are live without any.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    held: BTreeMap<u64, Vec<u64>>,
    roots: Vec<u64>,
}

impl Writer {
    /// Draws references between objects, and from the stack.
    pub fn graph(&mut self) -> Graph {
        let mut graph = Graph::default();
        let objects = self.objects.clone();
        for object in &objects {
            let (strong, others) = self.places(object);
            let holds = graph.held.entry(object.at).or_default();
            for place in &strong {
                holds.extend(self.put_reference(*place, &objects));
            }
            for place in others {
                self.put_reference(place, &objects);
            }
        }
        graph.roots = objects.iter().filter(|of| of.is_archived).map(|of| of.at).collect();
        for slot in 0..self.dice.below(20) {
            let at = STACK + STACK_BYTES - 8 * (slot + 1);
            if self.dice.chance(40) {
                continue;
            }
            // On a stack, compiled code has narrow references as well.
            graph.roots.extend(self.put_reference(at, &objects));
        }
        graph
    }

    /// Computes what is live, once the rest is written: descriptions of spaces and regions contain
    /// the addresses of the first objects in them, and a word that is an object's address keeps
    /// that object.
    pub fn live(&mut self, Graph { held, mut roots }: Graph) {
        let small = self.objects.iter().filter(|object| !object.is_humongous).map(|object| object.at);
        let small: BTreeSet<u64> = small.collect();
        for (from, bytes) in [(STRUCTURES, STRUCTURES_BYTES), (DATA, DATA_BYTES), (CODE, CODE_BYTES)] {
            let words = (from..from + bytes).step_by(8).filter_map(|at| self.image.word(at));
            roots.extend(words.filter(|word| small.contains(word)));
        }
        let mut live: BTreeSet<u64> = BTreeSet::new();
        while let Some(at) = roots.pop() {
            if live.insert(at) {
                roots.extend(held.get(&at).into_iter().flatten());
            }
        }
        for object in self.objects.iter().filter(|object| live.contains(&object.at)) {
            let of = self.expected.live.entry(self.classes[object.class].name).or_default();
            of.add(object.bytes);
        }
    }

    /// Addresses of an object's references that keep their targets, and of those that do not.
    fn places(&self, object: &Object) -> (Vec<u64>, Vec<u64>) {
        let oop = self.oop_bytes();
        let Class { references, kind, is_weak, .. } = self.classes[object.class];
        let row = |from: u64, count: u64| (0..count).map(move |index| object.at + from + index * oop);
        if let Some((elements, true)) = kind.elements() {
            return (row(self.elements(elements), object.length).collect(), Vec::new());
        }
        if kind.is_mirror() {
            return (row(MIRROR_BYTES, object.length).collect(), Vec::new());
        }
        let Some((first, count)) = references else { return (Vec::new(), Vec::new()) };
        let mut strong: Vec<u64> = row(first, count).collect();
        // The referent of a reference object is in front of the fields in its map.
        match is_weak {
            None => (strong, Vec::new()),
            Some(is_weak) => {
                let referent = object.at + first - oop;
                if !is_weak {
                    strong.push(referent);
                }
                (strong, if is_weak { vec![referent] } else { Vec::new() })
            }
        }
    }

    /// Writes a reference to one of `objects`, or none.
    fn put_reference(&mut self, place: u64, objects: &[Object]) -> Option<u64> {
        if objects.is_empty() || self.dice.chance(70) {
            return None;
        }
        let to = self.dice.one_of(objects).at;
        if self.has_narrow_oops {
            self.image.put(place, &((to >> 3) as u32).to_le_bytes());
        } else {
            self.image.put_word(place, to);
        }
        Some(to)
    }

    /// Bytes of a reference.
    pub fn oop_bytes(&self) -> u64 {
        if self.has_narrow_oops { 4 } else { 8 }
    }

    /// Writes the number of static references of a `java.lang.Class`.
    pub fn put_static_count(&mut self, at: u64, count: u64) {
        self.image.put(at + MIRROR_COUNT, &(count as u32).to_le_bytes());
    }
}
