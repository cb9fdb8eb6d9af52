//! Sound heaps: the figures are those that they were made with.

use strandline_runtimes::sbcl::facts::{Sbcl, TypeBytes};
use strandline_synth::{SBCL_RELEASES, SBCL_TYPES, SbclExpected, SbclHeap, SbclRecipe, fabricate_sbcl};

use crate::adapter::Subject;

fn heaps(count: u64) -> impl Iterator<Item = SbclHeap> {
    let recipes =
        (0..count).flat_map(|seed| SBCL_RELEASES.map(|release| SbclRecipe::from_seed(release, seed)));
    recipes.map(|recipe| fabricate_sbcl(&recipe))
}

fn figures(heap: &SbclHeap, workers: usize) -> Sbcl {
    let reading = Subject::of(heap).read(workers).expect("no collection is under way");
    let caveats = &reading.caveats;
    let figures: Option<Sbcl> = reading.facts.details("sbcl");
    figures.unwrap_or_else(|| panic!("{:?}: not read: {caveats:?}", heap.recipe))
}

#[test]
fn generations_are_counted_to_the_byte() {
    for heap in heaps(30) {
        let (figures, expected) = (figures(&heap, 2), &heap.expected);
        assert_eq!(figures.dynamic_usage_bytes, expected.usage(), "{:?}", heap.recipe);
        for (read, truth) in figures.generations.iter().zip(&expected.generations) {
            let counts = [read.bytes_allocated, read.pages, read.large_bytes, read.large_pages];
            let true_counts = [truth.bytes, truth.pages, truth.large_bytes, truth.large_pages];
            assert_eq!(counts, true_counts, "{:?}", heap.recipe);
            assert_eq!(read.waste_bytes, truth.pages * 0x8000 - truth.bytes);
        }
    }
}

#[test]
fn reachable_objects_are_live_and_the_rest_is_dead() {
    for heap in heaps(60) {
        for workers in [1, 3] {
            let (figures, expected) = (figures(&heap, workers), &heap.expected);
            assert!(figures.traced, "{:?}", heap.recipe);
            for (read, truth) in figures.generations.iter().zip(&expected.generations) {
                let live = if read.number == 6 { truth.bytes } else { truth.live_bytes };
                let counts = (read.live_bytes, read.dead_bytes);
                assert_eq!(counts, (Some(live), Some(truth.bytes - live)), "{read:?} of {:?}", heap.recipe);
            }
            // Pages that a stack pins stay whole.
            let live: u64 = expected.generations.iter().map(|generation| generation.live_bytes).sum();
            let after = figures.usage_after_full_gc_bytes.expect("it was traced");
            assert!(
                after >= live && after <= expected.usage() + live,
                "{after} of {live} in {:?}",
                heap.recipe
            );
            assert!(heap.recipe.roots > 0 || after == live, "{after} of {live} in {:?}", heap.recipe);
        }
    }
}

fn of_type(list: &[TypeBytes], name: &str) -> (u64, u64) {
    list.iter().find(|entry| entry.type_name == name).map_or((0, 0), |entry| (entry.instances, entry.bytes))
}

#[test]
fn instances_are_listed_by_type_name() {
    for heap in heaps(30) {
        let (figures, expected): (Sbcl, &SbclExpected) = (figures(&heap, 1), &heap.expected);
        for (name, truth) in SBCL_TYPES.iter().zip(&expected.types) {
            let (live, dead) = (of_type(&figures.live_by_type, name), of_type(&figures.dead_by_type, name));
            assert_eq!(live, (truth.live_count, truth.live_bytes), "live {name} of {:?}", heap.recipe);
            assert_eq!(dead, (truth.dead_count, truth.dead_bytes), "dead {name} of {:?}", heap.recipe);
        }
    }
}

#[test]
fn a_chain_as_long_as_dynamic_space_is_followed_to_its_end() {
    for mut heap in heaps(4) {
        heap.fill_with_chain();
        // Everything is a cons that points to the next: reading must end, whatever it reports.
        drop(Subject::of(&heap).read(2));
    }
}
