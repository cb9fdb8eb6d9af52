//! Which object refers to which, and from where all of it is reached: a stack, and what came from the archive of class data.

use std::collections::{BTreeMap, BTreeSet};

use super::objects::{Class, MIRROR_BYTES, MIRROR_COUNT};
use super::{STACK, STACK_BYTES, Writer};

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
}

impl Writer {
    /// Draws references, and tells what lives of it.
    pub fn graph(&mut self) {
        let mut held: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let objects = self.objects.clone();
        for object in &objects {
            let (strong, others) = self.places(object);
            let holds = held.entry(object.at).or_default();
            for place in &strong {
                if let Some(to) = self.refer(*place, &objects) {
                    holds.push(to);
                }
            }
            for place in others {
                self.refer(place, &objects);
            }
        }
        let mut roots: Vec<u64> = objects.iter().filter(|of| of.is_archived).map(|of| of.at).collect();
        for slot in 0..self.dice.below(20) {
            let at = STACK + STACK_BYTES - 8 * (slot + 1);
            if self.dice.chance(40) {
                continue;
            }
            // On a stack compiled code has narrow ones as well.
            roots.extend(self.refer(at, &objects));
        }
        let mut live: BTreeSet<u64> = BTreeSet::new();
        while let Some(at) = roots.pop() {
            if live.insert(at) {
                roots.extend(held.get(&at).into_iter().flatten());
            }
        }
        for object in objects.iter().filter(|object| live.contains(&object.at)) {
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
