//! The section of a report on CPython.

use strandline_claims::facts::Runtime;
use strandline_claims::section::{Section, common, name_and_version};
use strandline_claims::units::{bytes, counted, maybe_bytes, thousands};

use super::counted::MIN_OBJECTS_NOT_SPARSE;
use super::facts::{CPython, Collector, Generation};

/// Returns the section; `None` if the details of `runtime` are not for CPython.
pub fn section(runtime: &Runtime) -> Option<Section> {
    let facts: CPython = runtime.details("cpython")?;
    let lines = [beside_arenas(&facts), free_lists(&facts), sparse_arenas(&facts)];
    let collector = facts.collectors.last().map(collector);
    Some(Section {
        title: title(runtime, &facts),
        lines: lines.into_iter().flatten().chain(collector).collect(),
        ..common(runtime)
    })
}

fn title(runtime: &Runtime, facts: &CPython) -> String {
    let name = name_and_version(runtime);
    let (used, free) = (maybe_bytes(runtime.used_bytes), maybe_bytes(runtime.free_bytes));
    match facts.arena_bytes {
        Some(arena_bytes) => {
            let arenas = runtime.own_figure("arenas_allocated_current");
            let arenas = arenas.map_or("arenas".to_owned(), |arenas| counted(arenas, "arena"));
            format!("{name}: {used} of blocks in {arenas} of {} each; {free} free", bytes(arena_bytes))
        }
        None if !facts.heaps.is_empty() => {
            format!("{name} without a global lock: {used} of blocks in mimalloc's heaps; {free} free")
        }
        None if facts.beside_arenas.is_none() => format!("{name}: the memory of its objects is not known"),
        None => format!("{name}: its objects are in malloc's blocks"),
    }
}

fn beside_arenas(facts: &CPython) -> Option<String> {
    let outside = facts.beside_arenas.as_ref()?;
    let (objects, bytes) = (thousands(outside.objects), bytes(outside.bytes));
    Some(format!("objects outside the arenas, in malloc's blocks: {objects}, {bytes}"))
}

fn free_lists(facts: &CPython) -> Option<String> {
    let (free, interned) = facts.free_lists.as_ref().zip(facts.interned.as_ref())?;
    Some(format!(
        "dead objects on free lists: {}, {}; interned strings: {}, {}",
        thousands(free.objects),
        bytes(free.bytes),
        thousands(interned.objects),
        bytes(interned.bytes)
    ))
}

fn sparse_arenas(facts: &CPython) -> Option<String> {
    let sparse = facts.sparse_arenas.as_ref().filter(|sparse| sparse.arenas > 0)?;
    let types =
        sparse.kept_by.iter().take(3).map(|entry| format!("{} {}", thousands(entry.objects), entry.name));
    let types = types.collect::<Vec<_>>().join(", ");
    Some(format!(
        "{} pinned by fewer than {MIN_OBJECTS_NOT_SPARSE} objects{}{}{types}",
        counted(sparse.arenas, "arena"),
        if sparse.arenas == 1 { "" } else { " each" },
        if types.is_empty() { "" } else { ": " },
    ))
}

/// The state of the main interpreter's collector, if it was found; otherwise of another one's.
fn collector(state: &Collector) -> String {
    let by_generation = |figure: fn(&Generation) -> String| {
        state.generations.iter().map(figure).collect::<Vec<_>>().join(", ")
    };
    let collections = by_generation(|generation| thousands(generation.collections));
    if !state.enabled {
        return format!(
            "collector off: objects in cycles stay; collections so far, by generation: {collections}"
        );
    }
    let counts = by_generation(|generation| {
        format!("{} of {}", thousands(generation.count.into()), thousands(generation.threshold.into()))
    });
    format!(
        "collector on, allocations against thresholds: {counts}; collections so far, by generation: {collections}"
    )
}
