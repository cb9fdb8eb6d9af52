//! Remedies that make a JVM release memory, with predictions.
//!
//! A full collection compacts, then resizes the heap for the live objects, by a rule that depends
//! on the collector. The live objects are known from a trace. Without one, or if doubtful
//! references make a difference, nothing is predicted.

use super::facts::Jvm;
use super::heap::{Area, Heap, Kind};
use super::trace::Live;
use super::view::View;
use crate::resident::resident_bytes;
use strandline_claims::facts::Remedy;
use strandline_claims::finding::LedgerView;
use strandline_claims::range::page_up;
use strandline_claims::runtime::Context;
use strandline_claims::units;

/// Free bytes of the heap from which a setting is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 1 << 20;

/// Returns the remedies for a JVM with this heap.
pub fn remedies(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    known: &Jvm,
    traced: Option<&Live>,
) -> Vec<Remedy> {
    let mut all: Vec<Remedy> = collection(context, view, heap, known, traced).into_iter().collect();
    all.extend(settings(heap, known));
    all
}

/// Returns `jvm_trim`, if the JVM accepts requests and uses glibc's malloc. It releases the same
/// memory as `malloc_trim`.
pub fn trim(view: &LedgerView<'_>) -> Option<Remedy> {
    let known: Jvm = view.runtime("jvm")?.details("jvm")?;
    let predicted = view.remedy("malloc_trim")?.predicted_bytes?;
    let remedy = Remedy::call(
        "jvm_trim",
        Some(predicted),
        view.pid,
        "the JVM itself runs malloc_trim (System.trim_native_heap, from JDK 17.0.9 and 18 on) and stops no thread",
    );
    (known.attach == Some(true)).then_some(remedy)
}

/// Part of the heap that a setting concerns.
#[derive(Clone, Copy)]
enum Concern {
    /// Resident free parts of the heap.
    Free,
    /// Free parts that the minimum heap size keeps (`-Xms`).
    Least,
    /// Free parts above what is in use, for collectors that give these back by themselves.
    AboveUse,
}

struct Setting {
    collectors: &'static [&'static str],
    about: Concern,
    id: &'static str,
    how: &'static str,
    cost: &'static str,
}

/// Settings for the next start, by collector.
const SETTINGS: [Setting; 6] = [
    Setting {
        collectors: &["G1"],
        about: Concern::Free,
        id: "jvm_g1_periodic",
        how: "JAVA_TOOL_OPTIONS=-XX:G1PeriodicGCInterval=30000",
        cost: "a concurrent collection every 30 s while the program is idle; it releases free regions",
    },
    Setting {
        collectors: &["Serial", "Parallel"],
        about: Concern::Free,
        id: "jvm_free_ratio",
        how: "JAVA_TOOL_OPTIONS='-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20'",
        cost: "the heap stays closer to the live objects; the JVM collects more often",
    },
    Setting {
        collectors: &["Z"],
        about: Concern::Free,
        id: "jvm_z_uncommit",
        how: "JAVA_TOOL_OPTIONS='-XX:ZUncommitDelay=10 -XX:ZCollectionInterval=60'",
        cost: "a collection every minute; memory that was free for 10 s is released",
    },
    Setting {
        collectors: &["Shenandoah"],
        about: Concern::Free,
        id: "jvm_shenandoah_uncommit",
        how: "JAVA_TOOL_OPTIONS='-XX:+UnlockExperimentalVMOptions -XX:ShenandoahUncommitDelay=10000'",
        cost: "regions that were free for 10 s are released",
    },
    Setting {
        collectors: &["G1", "Serial", "Parallel", "Z", "Shenandoah"],
        about: Concern::Least,
        id: "jvm_xms",
        how: "a smaller -Xms (-XX:MinHeapSize): no collector releases memory below it",
        cost: "the heap grows in steps after the start",
    },
    Setting {
        collectors: &["Z", "Shenandoah"],
        about: Concern::AboveUse,
        id: "jvm_soft_max",
        how: "-XX:SoftMaxHeapSize close to what is in use (in a running program: jcmd PID VM.set_flag SoftMaxHeapSize BYTES)",
        cost: "the JVM collects earlier, and exceeds the limit only if it must",
    },
];

/// Returns the settings that concern something here, most bytes first. No gain is predicted: the
/// collector's behaviour under them is not known.
fn settings(heap: &Heap, known: &Jvm) -> Vec<Remedy> {
    let free = known.free_resident_bytes;
    let about = |about: Concern| match about {
        Concern::Free => free,
        Concern::Least => {
            let least = known.min_heap_bytes.unwrap_or(0).min(heap.committed());
            least.saturating_sub(heap.used()).min(free)
        }
        Concern::AboveUse => heap.committed().saturating_sub(heap.used()).min(free),
    };
    let of_this = SETTINGS.iter().filter(|setting| setting.collectors.contains(&heap.collector));
    let mut all: Vec<(u64, &Setting)> = of_this.map(|setting| (about(setting.about), setting)).collect();
    all.retain(|of| of.0 >= MIN_WORTHWHILE_BYTES);
    all.sort_by_key(|of| std::cmp::Reverse(of.0));
    let remedy = |(bytes, setting): (u64, &Setting)| {
        let cost =
            format!("{}; it concerns {} of the heap that is free now", setting.cost, units::bytes(bytes));
        Remedy::setting(setting.id, setting.how, &cost)
    };
    all.into_iter().map(remedy).collect()
}

/// Returns `GC.run`, as a request to the JVM if it accepts requests.
fn collection(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    known: &Jvm,
    traced: Option<&Live>,
) -> Option<Remedy> {
    let Prediction { bytes, between, rule } = predict(context, view, heap, traced)?;
    let lives = match (known.live_bytes, known.uncertain_bytes()) {
        (Some(live), None) => {
            format!("{} of {} of objects are live", units::bytes(live), units::bytes(heap.used()))
        }
        (Some(live), Some(doubtful)) => format!(
            "at most {} of {} of objects are live; only words that may be references hold {} of these",
            units::bytes(live),
            units::bytes(heap.used()),
            units::bytes(doubtful)
        ),
        (None, _) => "live objects were not traced".to_owned(),
    };
    let cost = format!("a full collection, during which the program waits; {lives}; {rule}");
    let remedy = if known.attach == Some(false) {
        let how = "call System.gc() in the program (its attach mechanism is off)";
        Remedy::advice("jvm_gc", bytes, how, &cost)
    } else {
        Remedy::call("jvm_gc", bytes, context.process.pid(), &cost)
    };
    let unknown_because = bytes.is_none().then(|| between.map_or_else(|| rule.to_owned(), Bounds::reason));
    Some(Remedy { unknown_because, ..remedy })
}

/// What a full collection releases.
struct Prediction {
    /// Bytes, if they are known to a hundredth.
    bytes: Option<u64>,
    /// Bounds otherwise; `None` if there are none.
    between: Option<Bounds>,
    /// Rule of the collector.
    rule: &'static str,
}

/// Bounds of what a collection releases.
#[derive(Clone, Copy)]
struct Bounds {
    least: u64,
    most: u64,
}

impl Bounds {
    /// Returns the midpoint; `None` if the bounds are more than a hundredth apart.
    fn figure(self) -> Option<u64> {
        let off = self.most.saturating_sub(self.least);
        (off <= self.most / 100).then_some(self.most - off / 2)
    }

    fn reason(self) -> String {
        let (least, most) = (units::bytes(self.least), units::bytes(self.most));
        format!(
            "{least} to {most}: it depends on which objects the collection finds live and on how its threads share the work"
        )
    }
}

/// Predicts what a full collection releases; `None` if no rule is known.
fn predict(context: &Context<'_>, view: &View<'_>, heap: &Heap, traced: Option<&Live>) -> Option<Prediction> {
    // Up to JDK 17 the flag also disables requests from outside.
    if view.has_flag("DisableExplicitGC") && view.structs.major().is_some_and(|major| major <= 17) {
        return None;
    }
    // Such a collection does not compact: its marking decides what is released.
    if heap.collector == "G1" && view.has_flag("ExplicitGCInvokesConcurrent") {
        return None;
    }
    let above = heap.committed().saturating_sub(view.flag("MinHeapSize").unwrap_or(0));
    // No heap shrinks below its minimum size.
    let unless_least = if above == 0 { Some(0) } else { None };
    let given = |bytes, rule| Some(Prediction { bytes, between: None, rule });
    let bounded = |between: Option<Bounds>, rule| {
        let bytes = between.and_then(Bounds::figure);
        Some(Prediction { bytes, between: between.filter(|_| bytes.is_none()), rule })
    };
    match heap.collector {
        "G1" => bounded(
            g1_between(context, view, heap, traced),
            "G1 retains as much free heap as MaxHeapFreeRatio allows for the live objects",
        ),
        // `ShenandoahArguments::initialize` turns it off if the initial heap size is the maximum.
        "Shenandoah" if !view.has_flag("ShenandoahUncommit") => {
            given(Some(0), "Shenandoah releases nothing here: the initial heap size is the maximum")
        }
        "Shenandoah" => bounded(
            traced.map(|traced| {
                let given = |live| shenandoah(context, view, heap, live).min(above);
                Bounds { least: given(&traced.of_areas), most: given(&traced.certain.of_areas) }
            }),
            "Shenandoah releases all of its empty regions, down to -Xms",
        ),
        "Serial" => given(
            unless_least,
            "the serial collector shrinks its heap in steps, and its current step is not known: the first requested collection \
             releases hardly anything, the fourth everything",
        ),
        "Parallel" => given(
            unless_least,
            "the parallel collector resizes its heap by its own statistics and may let it grow: the effect is not known",
        ),
        // ZGC uncommits memory by itself once it was free for some minutes; Epsilon never does.
        _ => None,
    }
}

/// Returns bounds for G1. Lower: everything that may be live is live, and each thread of the
/// collection leaves one region partly full. Upper: only certainly live objects are live, and only
/// the last region is partly full.
fn g1_between(context: &Context<'_>, view: &View<'_>, heap: &Heap, traced: Option<&Live>) -> Option<Bounds> {
    let traced = traced?;
    let least = g1(context, view, heap, &traced.of_areas, Fill::Loose)?;
    let most = g1(context, view, heap, &traced.certain.of_areas, Fill::Tight)?;
    Some(Bounds { least, most: most.max(least) })
}

/// How a collection fills regions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// All but the last are full.
    Tight,
    /// All but one per thread are full.
    Loose,
}

/// `ShenandoahControlThread`: a requested collection uncommits all regions that it leaves empty. It
/// moves live objects out of regions with a minimum share of garbage
/// (`ShenandoahGarbageThreshold`), and packs them.
fn shenandoah(context: &Context<'_>, view: &View<'_>, heap: &Heap, live: &[u64]) -> u64 {
    let threshold = view.flag("ShenandoahGarbageThreshold").unwrap_or(25).min(100);
    let resident = |area: &Area| resident_bytes(context, area.start, area.end);
    let (mut emptied, mut moved) = (0_u64, 0_u64);
    for (area, &live) in heap.areas.iter().zip(live) {
        let garbage = (area.top - area.start).saturating_sub(live);
        let is_moved = area.kind != Kind::Humongous && garbage >= (area.end - area.start) / 100 * threshold;
        if live == 0 || is_moved {
            emptied += resident(area);
            moved += live;
        }
    }
    let region = heap.region_bytes.unwrap_or(1).max(1);
    emptied.saturating_sub(moved.div_ceil(region).saturating_mul(region))
}

/// `G1CollectedHeap::resize_heap_if_necessary`: what exceeds MaxHeapFreeRatio is uncommitted,
/// starting with the highest free regions; used memory counts in whole regions. Before that, live
/// objects were moved to the lowest regions, except large objects and the archive; free regions in
/// between stay as resident as they are.
fn g1(context: &Context<'_>, view: &View<'_>, heap: &Heap, live: &[u64], fill: Fill) -> Option<u64> {
    let ratio = view.flag("MaxHeapFreeRatio").filter(|&ratio| ratio <= 100)?;
    let region = heap.region_bytes?;
    let used = G1Used::new(heap, live);
    let regions = used.regions(view, region, fill);
    let most = match ratio {
        100 => u64::MAX,
        ratio => u64::try_from(u128::from(regions) * 100 / u128::from(100 - ratio)).unwrap_or(u64::MAX),
    };
    let minimum = view.flag("MinHeapSize").unwrap_or(0);
    let keeps = most.max(minimum).min(heap.committed()).checked_next_multiple_of(region)?;
    let (mut resident, mut kept) = (0, 0);
    // Bytes kept besides large objects and the archive, and the part of these that live objects
    // were moved to.
    let (mut left, mut moved) = (keeps.saturating_sub(used.stays), used.moved);
    for (area, &live) in heap.areas.iter().zip(live).filter(|(area, _)| area.kind != Kind::Archive) {
        let of_area = resident_bytes(context, area.start, area.end);
        resident += of_area;
        if area.kind == Kind::Humongous && live > 0 {
            kept += of_area;
            continue;
        }
        let bytes = (area.end - area.start).min(left);
        let full = bytes.min(moved);
        kept += full + resident_bytes(context, page_up(area.start + full), area.start + bytes);
        left -= bytes;
        moved -= full;
    }
    Some(resident.saturating_sub(kept))
}

/// Memory in use after a full collection.
struct G1Used {
    /// Bytes of regions with large objects, and of the archive.
    stays: u64,
    /// Live bytes of other objects.
    moved: u64,
    /// Number of regions with such objects.
    sources: u64,
}

impl G1Used {
    fn new(heap: &Heap, live: &[u64]) -> Self {
        let mut used = Self { stays: 0, moved: 0, sources: 0 };
        for (area, &live) in heap.areas.iter().zip(live) {
            match area.kind {
                Kind::Humongous | Kind::Archive if live > 0 => used.stays += area.end - area.start,
                Kind::Humongous | Kind::Archive | Kind::Free => {}
                _ => {
                    used.moved += live;
                    used.sources += u64::from(live > 0);
                }
            }
        }
        used
    }

    /// Returns the total in whole regions. Each thread of the collection can leave one region
    /// partly full, if it gets a region with something to move (`G1FullGCPrepareTask`).
    fn regions(&self, view: &View<'_>, region: u64, fill: Fill) -> u64 {
        let small = self.moved.div_ceil(region);
        if fill == Fill::Tight {
            return self.stays.saturating_add(small.saturating_mul(region));
        }
        let threads = view.structs.flag("ParallelGCThreads").and_then(|at| view.half_word(at)).unwrap_or(1);
        let most = small.saturating_add(u64::from(threads).saturating_sub(1)).min(self.sources.max(small));
        self.stays.saturating_add(most.saturating_mul(region))
    }
}
