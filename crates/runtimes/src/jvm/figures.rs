//! The JVM's figures: those common to all runtimes, the pools of `java.lang.management`, details.

use std::collections::BTreeMap;

use super::facts::{ClassLoader, Jvm, KindFigures};
use super::heap::{self, AreaKind};
use super::view::View;
use super::{JvmState, MAX_TYPES, claims, code, names};
use strandline_claims::facts::{Runtime, sum_other_types};
use strandline_claims::runtime::Context;
use strandline_process::range::AddressRange;

/// Limit on class loaders listed.
const MAX_LOADERS: usize = 100;

/// Fills in the figures common to all runtimes, and the pools.
pub fn fill_in_facts(state: &JvmState, facts: &mut Runtime) {
    let heap = &state.heap;
    facts.used_bytes = Some(heap.used_bytes());
    facts.committed_bytes = Some(heap.committed_bytes());
    facts.free_bytes = Some(heap.committed_bytes().saturating_sub(heap.used_bytes()));
    let mut pools = heap.pools.clone();
    if let Some(metaspace) = &state.metaspace {
        let (non_class, class) = (&metaspace.non_class_space, &metaspace.class_space);
        pools.push(heap::Pool::new(
            "Metaspace",
            non_class.used_bytes.saturating_add(class.used_bytes),
            non_class.committed_bytes.saturating_add(class.committed_bytes),
        ));
        if !class.ranges.is_empty() {
            pools.push(heap::Pool::new("Compressed Class Space", class.used_bytes, class.committed_bytes));
        }
    }
    pools.extend(state.segments.as_deref().map(code::pools).unwrap_or_default());
    facts.own.insert("collector".to_owned(), heap.collector.into());
    // Names and numbers can always be converted.
    if let Ok(pools) = serde_json::to_value(&pools) {
        facts.own.insert("pools".to_owned(), pools);
    }
}

/// Returns the facts that only a JVM has.
pub fn details(context: &Context<'_>, view: &View<'_>, state: &JvmState) -> Jvm {
    let (heap, live) = (&state.heap, state.live.as_ref());
    let mut kinds: BTreeMap<AreaKind, KindFigures> = BTreeMap::new();
    for (index, area) in heap.areas.iter().enumerate() {
        let no_figures = || KindFigures { kind: area.kind.name().to_owned(), ..KindFigures::default() };
        let kind = kinds.entry(area.kind).or_insert_with(no_figures);
        kind.areas += 1;
        kind.bytes += area.end - area.start;
        kind.used_bytes += area.top - area.start;
        kind.resident_bytes += context.resident_bytes(area.range());
        kind.free_resident_bytes += claims::free_resident_bytes(context, area);
        if let Some(live) = live.and_then(|live| live.area_bytes.get(index)) {
            *kind.live_bytes.get_or_insert(0) += live;
        }
    }
    let shared_bytes =
        |&range: &AddressRange| context.shared_runs(range).into_iter().map(AddressRange::len).sum::<u64>();
    let shared_resident_bytes: u64 = heap.views.iter().map(shared_bytes).sum();
    let shared_used_bytes: u64 =
        heap.shared_used_ranges.iter().chain(&heap.shared_unread_ranges).map(shared_bytes).sum();
    let mut live_types = live.map(|live| live.types.clone()).unwrap_or_default();
    sum_other_types(&mut live_types, MAX_TYPES);
    let mut names = names::LoaderNames::new(view);
    let loaders = state.metaspace.as_ref().map(|metaspace| metaspace.loaders.as_slice());
    Jvm {
        max_heap_bytes: view.flag("MaxHeapSize"),
        min_heap_bytes: view.flag("MinHeapSize"),
        region_bytes: heap.region_bytes,
        resident_bytes: kinds.values().map(|kind| kind.resident_bytes).sum::<u64>() + shared_resident_bytes,
        free_resident_bytes: kinds.values().map(|kind| kind.free_resident_bytes).sum::<u64>()
            + shared_resident_bytes.saturating_sub(shared_used_bytes),
        heap_range: (heap.collector != "Z").then_some(heap.reserved.into()),
        views: heap.times_mapped,
        attach: view
            .is_set("DisableAttachMechanism")
            .zip(view.is_set("ReduceSignalUsage"))
            .map(|(is_off, has_no_signals)| !is_off && !has_no_signals),
        kinds: kinds.into_values().collect(),
        live_bytes: live.map(|live| live.bytes),
        live_at_least_bytes: live.map(|live| live.certain.bytes),
        live_types,
        class_loader_count: loaders.map(|loaders| loaders.len() as u64),
        class_loaders: loaders
            .unwrap_or_default()
            .iter()
            .take(MAX_LOADERS)
            .map(|share| ClassLoader { name: names.name_of(share.handle), used_bytes: share.bytes })
            .collect(),
    }
}
