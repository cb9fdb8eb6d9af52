//! Counts of objects by type.

use std::collections::HashMap;

use super::facts::Amount;
use super::layout::ObjectLayout;
use super::names::{self, Constructors};
use super::shapes::{Content, Head, Shapes};
use strandline_claims::facts::{TypeFacts, sum_other_types};
use strandline_process::memory::word_at;

/// `prototype_or_initial_map_` in a `JSFunction`, if it is a constructor, in all versions.
const FUNCTION_INITIAL_MAP: usize = 56;
/// Limit on functions counted by name, and on constructors; further ones have no name, and
/// [`Constructors::is_cut`] says so.
const MAX_FUNCTIONS: usize = 1 << 19;
/// Limit on types that are listed, most bytes first; one more entry has the sum of the others.
const MAX_TYPES: usize = 1000;

/// Counts of one worker.
#[derive(Default)]
pub struct Tally {
    /// Bytes of all objects.
    pub bytes: u64,
    /// Objects by the number of their hidden class, functions excepted.
    by_shape: Vec<Amount>,
    /// Functions by their `SharedFunctionInfo`.
    functions: HashMap<u64, Amount>,
    /// The `SharedFunctionInfo` of functions by their `prototype_or_initial_map_`.
    pub constructors: HashMap<u64, u64>,
    /// Whether there were more functions or constructors than are counted.
    is_cut: bool,
}

/// The sums of all workers.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Objects by type, most bytes first, and those of types that are not listed.
    pub types: Vec<TypeFacts>,
    /// Number of objects.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Counts an object that begins with `bytes`.
    pub fn record(&mut self, layout: &ObjectLayout, head: Head, bytes: &[u8]) {
        let object = Amount { count: 1, bytes: head.size };
        if head.shape.content == Content::Free {
            return;
        }
        self.bytes = self.bytes.saturating_add(head.size);
        if head.shape.content == Content::Function
            && let Some(shared) = word_at(bytes, layout.shared as usize)
        {
            if may_insert(&self.functions, shared) {
                self.functions.entry(shared).or_default().add(object);
                self.add_constructor(head, bytes, shared);
                return;
            }
            self.is_cut = true;
        }
        let number = head.number as usize;
        if self.by_shape.len() <= number {
            self.by_shape.resize(number + 1, Amount::default());
        }
        if let Some(counts) = self.by_shape.get_mut(number) {
            counts.add(object);
        }
    }

    /// Notes the `prototype_or_initial_map_` of a function, if it is a constructor.
    fn add_constructor(&mut self, head: Head, bytes: &[u8], shared: u64) {
        let initial =
            word_at(bytes, FUNCTION_INITIAL_MAP).filter(|_| head.size >= FUNCTION_INITIAL_MAP as u64 + 8);
        let Some(initial) = initial else { return };
        if may_insert(&self.constructors, initial) {
            self.constructors.insert(initial, shared);
        } else {
            self.is_cut = true;
        }
    }
}

/// Whether a key is in a map, or may be added to it.
fn may_insert<T>(map: &HashMap<u64, T>, key: u64) -> bool {
    map.len() < MAX_FUNCTIONS || map.contains_key(&key)
}

/// Sums the counts of workers by name.
pub fn total<'a, 'm: 'a>(
    workers: impl Iterator<Item = (&'a Tally, &'a mut Shapes<'m>)>,
    layout: &ObjectLayout,
    constructors: &mut Constructors,
) -> Totals {
    let mut by_name: HashMap<String, Amount> = HashMap::new();
    for (tally, shapes) in workers {
        constructors.is_cut |= tally.is_cut;
        for (number, counts) in tally.by_shape.iter().enumerate().filter(|(_, counts)| counts.count > 0) {
            let Some(shape) = shapes.all.get(number).copied() else { continue };
            by_name
                .entry(names::object_type_name(shapes, layout, shape, constructors))
                .or_default()
                .add(*counts);
        }
        for (shared, counts) in &tally.functions {
            by_name.entry(names::function_type_name(shapes, layout, *shared)).or_default().add(*counts);
        }
    }
    let sums = by_name.values().fold(Amount::default(), |sum, counts| sum.plus(*counts));
    let mut types: Vec<TypeFacts> = by_name
        .into_iter()
        .map(|(name, counts)| TypeFacts { name, instances: counts.count, bytes: counts.bytes })
        .collect();
    types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    sum_other_types(&mut types, MAX_TYPES);
    Totals { types, instances: sums.count, bytes: sums.bytes }
}
