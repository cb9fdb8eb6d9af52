//! Which object refers to which, and from where all of it is reached: a stack, and what came from the archive of class data.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{Class, MIRROR_BYTES, MIRROR_COUNT};
use super::{CODE, CODE_BYTES, DATA, DATA_BYTES, STACK, STACK_BYTES, STRUCTURES, STRUCTURES_BYTES, Writer};

/// An object that was written.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Where it is.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The class, by its number.
    pub class: usize,
    /// Of an array, how many elements it has; of a `java.lang.Class` how many static references.
    pub length: u64,
    /// Whether it came from the archive, and so lives.
    pub is_archived: bool,
    /// Whether it has regions of its own, whose addresses are in tables and hold nothing.
    pub is_humongous: bool,
}

/// Which object leads to which, and those that live whatever leads to them.
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
                holds.extend(self.refer(*place, &objects));
            }
            for place in others {
                self.refer(place, &objects);
            }
        }
        graph.roots = objects.iter().filter(|of| of.is_archived).map(|of| of.at).collect();
        for slot in 0..self.dice.below(20) {
            let at = STACK + STACK_BYTES - 8 * (slot + 1);
            if self.dice.chance(40) {
                continue;
            }
            // On a stack compiled code has narrow ones as well.
            graph.roots.extend(self.refer(at, &objects));
        }
        graph
    }

    /// Tells what lives, once the rest is written: what describes spaces and regions has the addresses of what stands first in
    /// them, and a word that is an object's address holds that object.
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
            *of = (of.0 + 1, of.1 + object.bytes);
        }
    }

    /// Where an object has references that hold what they lead to, and those that do not.
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
        // Of a reference the referent stands in front of what its map has.
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

    /// Writes a reference to any of these, or to none.
    fn refer(&mut self, place: u64, objects: &[Object]) -> Option<u64> {
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

    /// The bytes of a reference.
    pub fn oop_bytes(&self) -> u64 {
        if self.has_narrow_oops { 4 } else { 8 }
    }

    /// Where a `java.lang.Class` has how many static references it has.
    pub fn mirror(&mut self, at: u64, count: u64) {
        self.image.put(at + MIRROR_COUNT, &(count as u32).to_le_bytes());
    }
}
