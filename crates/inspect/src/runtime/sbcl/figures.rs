//! SBCL's figures: what `generation-…`, `dynamic-usage` and `(room)` say, from its books.

use super::facts::{Generation, Sbcl, Space as SpaceFacts};
use super::heap::{Heap, is_pseudo_static};
use super::spaces::Space;
use super::threads::Region;
use crate::layout::sbcl::{GC_PAGE_BYTES, Layout, OLDEST};
use crate::runtime::Context;

/// All figures that the books alone give.
pub fn figures(
    context: &Context<'_>,
    heap: &Heap,
    regions: &[Region],
    spaces: &[Space],
    layout: &Layout,
) -> Sbcl {
    let resident = |start, end| (context.resident)(start, end).iter().map(|run| run.1 - run.0).sum::<u64>();
    let mut all = vec![SpaceFacts {
        name: "dynamic".to_owned(),
        start: heap.start,
        bytes: heap.end() - heap.start,
        resident_bytes: resident(heap.start, heap.start + heap.size),
    }];
    all.extend(spaces.iter().map(|space| SpaceFacts {
        name: space.kind.name().to_owned(),
        start: space.start,
        bytes: space.end - space.start,
        resident_bytes: resident(space.start, space.end),
    }));
    all.sort_by_key(|space| space.start);
    Sbcl {
        dynamic_usage_bytes: heap.bytes_allocated,
        dynamic_space_bytes: heap.size,
        gc_page_bytes: GC_PAGE_BYTES,
        open_region_bytes: regions.iter().map(|region| region.free - region.start).sum(),
        bytes_consed_between_gcs: heap.consed_between,
        auto_gc_trigger_bytes: heap.auto_trigger,
        generations: (0..heap.generations.len()).map(|number| generation(heap, number, layout)).collect(),
        spaces: all,
        ..Sbcl::default()
    }
}

fn generation(heap: &Heap, number: usize, layout: &Layout) -> Generation {
    let books = heap.generations.get(number).copied().unwrap_or_default();
    let mut generation = Generation {
        number: number as u64,
        is_pseudo_static: is_pseudo_static(number),
        bytes_allocated_kept: books.bytes_allocated,
        collections: u64::from(books.collections),
        collections_before_promotion: u64::from(books.before_promotion),
        added_bytes: books.added,
        average_age: heap.average_age(number),
        minimum_age: if books.minimum_age.is_finite() { books.minimum_age } else { 0.0 },
        trigger_bytes: books.trigger,
        bytes_consed_between_gcs: books.consed_between,
        ..Generation::default()
    };
    let is_collected = number >= 1 && number as u64 <= heap.oldest_to_collect.unwrap_or(OLDEST as u64);
    // `collect_garbage` takes a generation when it holds more than its trigger, right after a raise into it.
    generation.bytes_until_collected =
        is_collected.then(|| books.trigger.saturating_add(1).saturating_sub(books.bytes_allocated));
    let mine = heap.pages.iter().filter(|page| usize::from(page.generation) == number && page.used > 0);
    for page in mine {
        let used = u64::from(page.used);
        generation.bytes_allocated += used;
        generation.pages += 1;
        generation.waste_bytes += GC_PAGE_BYTES - used;
        if page.is_large(layout) {
            generation.large_bytes += used;
            generation.large_pages += 1;
        }
        let content = page.content(layout);
        if content == layout.page_types.code {
            generation.code_bytes += used;
        } else if content == layout.page_types.unboxed {
            generation.unboxed_bytes += used;
        }
    }
    generation
}
