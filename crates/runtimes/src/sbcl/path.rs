//! What keeps an object of a type alive: a short path to it from a root, like that of SBCL's own
//! `search-roots`.

use std::collections::HashMap;

use super::facts::{Path, Step};
use super::mark::Tracer;
use super::names::Names;
use super::objects::{self, Kinds, Object};
use super::roots::{self, RootKind};
use super::store::UnitIndex;
use super::trace::PendingTrace;
use crate::sbcl::layout::{LOWTAG_MASK, ObjectKind, PSEUDO_STATIC};
use strandline_process::target::budget;

impl PendingTrace {
    /// The path from a root to the first live object whose type is named `type_name`, preferably to
    /// an object that did not come with the core. Takes another quarter of the copy, and marks all
    /// objects anew.
    pub(super) fn path_to_root(&self, type_name: &str, kinds: &Kinds) -> Option<Path> {
        let store = &self.copied.store;
        if store.unit_count() as u64 * 4 > budget::copy_budget_bytes(0) {
            return None;
        }
        store.clear_marks();
        let mut tracer = Tracer::new(store, kinds, self.layout, &self.heap, self.release);
        tracer.record_parents();
        let context =
            roots::RootContext { store, kinds, heap: &self.heap, spaces: &self.spaces, runs: &self.runs };
        let mut places: Vec<RootKind> = Vec::new();
        self.roots.visit(&mut tracer, &context, |tracer, place| {
            tracer.enter_root(places.len());
            places.push(place.clone());
        });
        tracer.run();
        let mut names = Names { store, kinds, layout: self.layout, release: self.release, replaced: 0 };
        let sample = self.first_marked(type_name, &mut names)?;
        let mut units = vec![sample];
        let root = loop {
            let last = *units.last()?;
            match tracer.parent(last, places.len())? {
                Err(number) => break places.get(number)?,
                // A path has no more steps than there are objects; each is marked once, so that
                // there is no cycle.
                Ok(parent) if units.len() < store.unit_count() => units.push(parent),
                Ok(_) => return None,
            }
        };
        units.reverse();
        Some(Path::new(root.to_string(), units.len(), |index| {
            self.step(*units.get(index)?, units.get(index + 1).copied(), &mut names)
        }))
    }

    /// The first marked object of the type, preferably an object that did not come with the core.
    fn first_marked(&self, type_name: &str, names: &mut Names<'_>) -> Option<UnitIndex> {
        let store = &self.copied.store;
        let mut known: HashMap<u64, bool> = HashMap::new();
        let mut found = [None, None];
        for run in &self.runs {
            let generation = self.heap.pages.get(run.page).map(|page| usize::from(page.generation));
            let place = usize::from(generation == Some(PSEUDO_STATIC));
            objects::walk(store, names.kinds, *run, |Object { address, header, .. }| {
                if found.get(place).is_some_and(Option::is_some) {
                    return;
                }
                let is_wanted = match names.kinds.of(header) {
                    Some(ObjectKind::Instance | ObjectKind::FunInstance) => {
                        *known.entry(header >> 32).or_insert_with(|| {
                            names.type_name(header >> 32).is_some_and(|name| name == type_name)
                        })
                    }
                    Some(_) => names.kinds.name(header) == type_name,
                    None => false,
                };
                if is_wanted
                    && let Some(unit) = store.unit(address).filter(|&unit| store.is_marked(unit))
                    && let Some(found) = found.get_mut(place)
                {
                    *found = Some(unit);
                }
            });
            if let [Some(found), _] = found {
                return Some(found);
            }
        }
        found.into_iter().flatten().next()
    }

    fn step(&self, unit: UnitIndex, next: Option<UnitIndex>, names: &mut Names<'_>) -> Option<Step> {
        let store = &self.copied.store;
        let address = store.address(unit);
        let header = store.word_on_page(unit, 0);
        let words = names.kinds.words(header, store.word_on_page(unit, 1)).unwrap_or(2);
        let target = next.map(|next| store.address(next));
        let mut word = None;
        if let Some(target) = target {
            store.each_word(address, 0, words, |index, value| {
                let points = value & 3 == 3 && value & !LOWTAG_MASK == target;
                if word.is_none() && points {
                    word = Some(index);
                }
            });
        }
        let is_instance =
            matches!(names.kinds.of(header), Some(ObjectKind::Instance | ObjectKind::FunInstance));
        let name = if is_instance { names.type_name(header >> 32) } else { None };
        let page = self.heap.page_of(address).map(|(_, page)| u64::from(page.generation));
        let type_name = name.unwrap_or_else(|| names.kinds.name(header).to_owned());
        Some(Step { type_name, address, generation: page, word })
    }
}
