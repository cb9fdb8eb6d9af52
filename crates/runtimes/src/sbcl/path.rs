//! What keeps an object of a type alive: a short path to it from a root, like that of SBCL's
//! own `search-roots`.

use std::collections::HashMap;

use super::facts::{Path, Step};
use super::mark::{Parent, Tracer};
use super::names::Names;
use super::objects::{self, Kinds, Object};
use super::roots::RootKind;
use super::store::UnitIndex;
use super::trace::PendingTrace;
use crate::sbcl::layout::{LOWTAG_MASK, ObjectKind, PSEUDO_STATIC, is_pointer};
use strandline_process::target::budget;

/// A path: each object first reached the next one.
struct Chain<'a> {
    /// What reached the first.
    root: &'a RootKind,
    units: Vec<UnitIndex>,
}

impl PendingTrace {
    /// The path from a root to the first live object whose type is named `type_name`, preferably to
    /// an object that did not come with the core; `None` if none lives. Takes memory for another
    /// quarter of the copy, and marks all objects anew.
    ///
    /// # Errors
    /// Why there is no path although such an object may live.
    pub(super) fn path_to_root(&self, type_name: &str, kinds: &Kinds) -> Result<Option<Path>, &'static str> {
        let store = &self.copied.store;
        if store.unit_count() as u64 * 4 > budget::copy_budget_bytes(0) {
            return Err("there was too little memory to search for it");
        }
        store.clear_marks();
        let mut tracer = Tracer::new(store, kinds, self.layout, &self.heap, self.release);
        tracer.record_parents();
        let mut root_kinds: Vec<RootKind> = Vec::new();
        self.roots.visit(&mut tracer, &self.root_context(kinds), |tracer, kind| {
            tracer.enter_root(root_kinds.len());
            root_kinds.push(kind.clone());
        });
        tracer.run();
        let mut names = self.names(kinds);
        let Some(object) = self.first_marked(type_name, &mut names) else { return Ok(None) };
        let chain =
            self.chain_to(object, &tracer, &root_kinds).ok_or("no root was found that leads to it")?;
        Ok(Some(Path::new(chain.root.to_string(), chain.units.len(), |index| {
            self.step(*chain.units.get(index)?, chain.units.get(index + 1).copied(), &mut names)
        })))
    }

    /// The objects from a root to the one at `unit`, by what first reached each.
    fn chain_to<'a>(
        &self,
        unit: UnitIndex,
        tracer: &Tracer<'_>,
        root_kinds: &'a [RootKind],
    ) -> Option<Chain<'a>> {
        let mut units = vec![unit];
        loop {
            match tracer.parent(*units.last()?, root_kinds.len())? {
                Parent::Root(number) => {
                    units.reverse();
                    return Some(Chain { root: root_kinds.get(number)?, units });
                }
                // Each object is marked once, so there is no cycle, and a path has no more steps
                // than there are objects.
                Parent::Object(parent) if units.len() < self.copied.store.unit_count() => units.push(parent),
                Parent::Object(_) => return None,
            }
        }
    }

    /// The first marked object of the type, preferably an object that did not come with the core.
    fn first_marked(&self, type_name: &str, names: &mut Names<'_>) -> Option<UnitIndex> {
        let store = &self.copied.store;
        let mut is_wanted_layout: HashMap<u64, bool> = HashMap::new();
        let mut core_object = None;
        for run in &self.runs {
            let generation = self.heap.pages.get(run.page).map(|page| usize::from(page.generation));
            let is_of_core = generation == Some(PSEUDO_STATIC);
            if is_of_core && core_object.is_some() {
                continue;
            }
            let mut object = None;
            objects::walk(store, names.kinds, *run, |Object { address, header, .. }| {
                if object.is_some() {
                    return;
                }
                let is_wanted = match names.kinds.kind_of(header) {
                    Some(ObjectKind::Instance | ObjectKind::FunInstance) => {
                        *is_wanted_layout.entry(header >> 32).or_insert_with(|| {
                            names.type_name(header >> 32).is_some_and(|name| name == type_name)
                        })
                    }
                    Some(_) => names.kinds.name(header) == type_name,
                    None => false,
                };
                if is_wanted {
                    object = store.unit(address).filter(|&unit| store.is_marked(unit));
                }
            });
            match object {
                Some(_) if is_of_core => core_object = object,
                Some(_) => return object,
                None => {}
            }
        }
        core_object
    }

    /// Describes the object at `unit`, which holds the one at `next`.
    fn step(&self, unit: UnitIndex, next: Option<UnitIndex>, names: &mut Names<'_>) -> Option<Step> {
        let store = &self.copied.store;
        let address = store.address(unit);
        let header = store.word_on_page(unit, 0);
        let words = names.kinds.words(header, store.word_on_page(unit, 1)).unwrap_or(2);
        let target = next.map(|next| store.address(next));
        let mut word = None;
        store.each_word(address, 0, words, |index, value| {
            let is_link = is_pointer(value) && target == Some(value & !LOWTAG_MASK);
            if word.is_none() && is_link {
                word = Some(index);
            }
        });
        let is_instance =
            matches!(names.kinds.kind_of(header), Some(ObjectKind::Instance | ObjectKind::FunInstance));
        let name = if is_instance { names.type_name(header >> 32) } else { None };
        let generation = self.heap.page_of(address).map(|page| u64::from(page.generation));
        let type_name = name.unwrap_or_else(|| names.kinds.name(header).to_owned());
        Some(Step { type_name, address, generation, word })
    }
}
