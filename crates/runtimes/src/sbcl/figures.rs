//! SBCL's figures: what `generation-…`, `dynamic-usage` and `(room)` return, from the collector's
//! records.

use super::facts::{Generation, Sbcl, Space as SpaceFacts};
use super::heap::{DynamicSpace, GenerationRecord};
use super::spaces::Space;
use super::threads::Region;
use crate::sbcl::layout::{GC_PAGE_BYTES, Layout, OLDEST, PSEUDO_STATIC};
use strandline_claims::runtime::Context;

/// All figures that follow from the collector's records alone.
pub fn figures(
    context: &Context<'_>,
    heap: &DynamicSpace,
    regions: &[Region],
    spaces: &[Space],
    layout: &Layout,
) -> Sbcl {
    let mut all_spaces = vec![SpaceFacts {
        name: "dynamic".to_owned(),
        start: heap.start,
        bytes: heap.end() - heap.start,
        resident_bytes: context.resident_bytes((heap.start, heap.start + heap.size_bytes)),
    }];
    all_spaces.extend(spaces.iter().map(|space| SpaceFacts {
        name: space.kind.name().to_owned(),
        start: space.start,
        bytes: space.end - space.start,
        resident_bytes: context.resident_bytes((space.start, space.end)),
    }));
    all_spaces.sort_by_key(|space| space.start);
    Sbcl {
        dynamic_usage_bytes: heap.bytes_allocated,
        dynamic_space_bytes: heap.size_bytes,
        gc_page_bytes: GC_PAGE_BYTES,
        open_region_bytes: regions.iter().map(|region| region.allocated_end - region.start).sum(),
        bytes_consed_between_gcs: heap.consed_between_bytes,
        auto_gc_trigger_bytes: heap.auto_trigger_bytes.filter(|&bytes| bytes != 0),
        generations: generations(heap, layout),
        spaces: all_spaces,
        ..Sbcl::default()
    }
}

/// The figures of all generations.
fn generations(heap: &DynamicSpace, layout: &Layout) -> Vec<Generation> {
    let records = heap.generations.iter().enumerate();
    let mut generations: Vec<Generation> =
        records.map(|(number, record)| generation(heap, number, record, layout)).collect();
    for (generation, next) in generations.iter_mut().zip(next_collections(heap)) {
        (generation.waits_for, generation.bytes_until_collected) = (next.waits_for, next.missing_bytes);
    }
    generations
}

/// When a generation is collected next.
#[derive(Debug, PartialEq, Eq)]
struct NextCollection {
    /// What must happen before.
    waits_for: String,
    /// Bytes to be allocated before; `None` if anything else must happen, too.
    missing_bytes: Option<u64>,
}

impl NextCollection {
    fn new(waits_for: impl Into<String>, missing_bytes: Option<u64>) -> Self {
        Self { waits_for: waits_for.into(), missing_bytes }
    }
}

/// When each generation is collected next. `collect_garbage` (gencgc.c) starts with generation 0
/// and takes the next one if it promoted the one before into it, the bytes then in it are more than
/// its `gc_trigger`, and its average age is above the minimum.
fn next_collections(heap: &DynamicSpace) -> Vec<NextCollection> {
    // gencgc.c initialises it with this value.
    let oldest = heap.oldest_to_collect.unwrap_or(OLDEST as u64);
    let mut collections = Vec::with_capacity(heap.generations.len());
    // Whether the next collection promotes the previous generation.
    let mut is_promoted = false;
    for (number, record) in heap.generations.iter().enumerate() {
        let promotes = record.collections >= record.collections_before_promotion;
        if number == 0 {
            collections.push(match heap.auto_trigger_bytes {
                None => NextCollection::new("not known", None),
                Some(0) => NextCollection::new("a call of gc", None),
                Some(trigger) => {
                    let missing_bytes = trigger.saturating_sub(heap.bytes_allocated);
                    NextCollection::new(format!("{} more", mib(missing_bytes)), Some(missing_bytes))
                }
            });
            is_promoted = promotes;
            continue;
        }
        if number > OLDEST || number as u64 > oldest {
            collections.push(NextCollection::new("never", None));
            continue;
        }
        let age = record.average_age();
        let is_old = age > record.minimum_age;
        let missing_bytes = record.trigger_bytes.saturating_add(1).saturating_sub(record.bytes_allocated);
        let mut parts = Vec::new();
        if !is_promoted {
            parts.push(format!("a promotion from generation {}", number - 1));
        }
        if !is_old {
            parts.push(format!("average age {age:.2} of {:.2}", record.minimum_age));
        }
        if missing_bytes > 0 {
            parts.push(format!("{} more", mib(missing_bytes)));
        }
        let missing_bytes = (is_promoted && is_old).then_some(missing_bytes);
        is_promoted = parts.is_empty() && promotes;
        let text = if parts.is_empty() { "the next collection".to_owned() } else { parts.join("; ") };
        collections.push(NextCollection::new(text, missing_bytes));
    }
    collections
}

/// Formats bytes in MiB.
pub fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// The figures of one generation, but for its next collection.
fn generation(heap: &DynamicSpace, number: usize, record: &GenerationRecord, layout: &Layout) -> Generation {
    let mut generation = Generation {
        number: number as u64,
        is_pseudo_static: number == PSEUDO_STATIC,
        bytes_allocated_kept: record.bytes_allocated,
        collections: u64::from(record.collections),
        collections_before_promotion: u64::from(record.collections_before_promotion),
        cum_sum_bytes: record.cum_sum_bytes,
        average_age: record.average_age(),
        minimum_age: Some(record.minimum_age).filter(|age| age.is_finite()),
        trigger_bytes: record.trigger_bytes,
        bytes_consed_between_gcs: record.consed_between_bytes,
        ..Generation::default()
    };
    let pages =
        heap.pages.iter().filter(|page| usize::from(page.generation) == number && page.used_bytes > 0);
    for page in pages {
        let used_bytes = u64::from(page.used_bytes);
        generation.bytes_allocated += used_bytes;
        generation.pages += 1;
        generation.waste_bytes += GC_PAGE_BYTES - used_bytes;
        if page.is_large(layout) {
            generation.large_bytes += used_bytes;
            generation.large_pages += 1;
        }
        let content = page.content(layout);
        if content == layout.page_types.code {
            generation.code_bytes += used_bytes;
        } else if content == layout.page_types.unboxed {
            generation.unboxed_bytes += used_bytes;
        }
    }
    generation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_waits_for_all_that_its_collection_needs() {
        let mut heap = DynamicSpace {
            auto_trigger_bytes: Some(60 << 20),
            bytes_allocated: 40 << 20,
            ..DynamicSpace::default()
        };
        heap.generations[0].collections_before_promotion = 1;
        heap.generations[1] = GenerationRecord {
            bytes_allocated: 8 << 20,
            trigger_bytes: 5 << 20,
            cum_sum_bytes: 16 << 20,
            minimum_age: 0.75,
            collections_before_promotion: 1,
            ..GenerationRecord::default()
        };
        heap.generations[2] = GenerationRecord {
            trigger_bytes: (2 << 20) - 1,
            minimum_age: 0.75,
            ..GenerationRecord::default()
        };
        for (trigger_bytes, text) in [(None, "not known"), (Some(0), "a call of gc")] {
            let heap = DynamicSpace { auto_trigger_bytes: trigger_bytes, ..heap.clone() };
            assert_eq!(next_collections(&heap)[0], NextCollection::new(text, None));
        }
        let next = next_collections(&heap);
        assert_eq!(next[0], NextCollection::new("20.0 MiB more", Some(20 << 20)));
        assert_eq!(next[1], NextCollection::new("a promotion from generation 0", None));
        let all = "a promotion from generation 1; average age 0.00 of 0.75; 2.0 MiB more";
        assert_eq!(next[2], NextCollection::new(all, None));
        assert_eq!((next[6].waits_for.as_str(), next[7].waits_for.as_str()), ("never", "never"));
        heap.generations[0].collections = 1;
        assert_eq!(next_collections(&heap)[1], NextCollection::new("the next collection", Some(0)));
        heap.generations[1].trigger_bytes = (10 << 20) - 1;
        assert_eq!(next_collections(&heap)[1], NextCollection::new("2.0 MiB more", Some(2 << 20)));
    }
}
