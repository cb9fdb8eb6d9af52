//! Remedies that make a JVM release memory, with predictions.
//!
//! A full collection compacts, then resizes the heap for the live objects, by a rule that depends
//! on the collector. A trace tells which objects are live. Without a trace, or if uncertain
//! references make a difference of more than a hundredth, no figure is predicted.

use super::facts::Jvm;
use super::heap::{Area, AreaKind, Heap};
use super::trace::Live;
use super::view::View;
use strandline_claims::facts::Remedy;
use strandline_claims::finding::LedgerView;
use strandline_claims::range::page_up;
use strandline_claims::runtime::Context;
use strandline_claims::units;

/// Minimum free bytes of the heap for which a setting is worthwhile.
const MIN_WORTHWHILE_BYTES: u64 = 1 << 20;

/// Returns the remedies for a JVM with this heap.
pub fn remedies(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    facts: &Jvm,
    traced: Option<&Live>,
) -> Vec<Remedy> {
    let mut remedies: Vec<Remedy> = collection(context, view, heap, facts, traced).into_iter().collect();
    remedies.extend(settings(heap, facts));
    remedies
}

/// Returns `jvm_trim`, which releases the same memory as `malloc_trim`; `None` unless the JVM
/// accepts requests and `malloc_trim` has a prediction (glibc's malloc).
pub fn trim(view: &LedgerView<'_>) -> Option<Remedy> {
    let facts: Jvm = view.runtime("jvm")?.details("jvm")?;
    let predicted_bytes = view.remedy("malloc_trim")?.predicted_bytes?;
    let remedy = Remedy::call(
        "jvm_trim",
        Some(predicted_bytes),
        view.pid,
        "the JVM itself runs malloc_trim (System.trim_native_heap, from JDK 17.0.9 and 18 on) and stops no thread",
    );
    (facts.attach == Some(true)).then_some(remedy)
}

/// Free parts of the heap that a setting releases or avoids.
#[derive(Clone, Copy)]
enum Target {
    /// Resident free parts of the heap.
    Free,
    /// Free parts that the minimum heap size keeps (`-Xms`).
    BelowMinimum,
    /// Free parts above what is in use, for collectors that release these by themselves.
    AboveUse,
}

/// A setting for the next start.
struct Setting {
    /// Collectors that it works with.
    collectors: &'static [&'static str],
    target: Target,
    /// Id of the remedy.
    id: &'static str,
    /// What to set.
    instruction: &'static str,
    /// What it costs, as a sentence.
    cost: &'static str,
}

/// All settings.
const SETTINGS: [Setting; 6] = [
    Setting {
        collectors: &["G1"],
        target: Target::Free,
        id: "jvm_g1_periodic",
        instruction: "JAVA_TOOL_OPTIONS=-XX:G1PeriodicGCInterval=30000",
        cost: "a concurrent collection every 30 s while the program is idle; it releases free regions",
    },
    Setting {
        collectors: &["Serial", "Parallel"],
        target: Target::Free,
        id: "jvm_free_ratio",
        instruction: "JAVA_TOOL_OPTIONS='-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20'",
        cost: "the heap stays closer to the live objects; the JVM collects more often",
    },
    Setting {
        collectors: &["Z"],
        target: Target::Free,
        id: "jvm_z_uncommit",
        instruction: "JAVA_TOOL_OPTIONS='-XX:ZUncommitDelay=10 -XX:ZCollectionInterval=60'",
        cost: "a collection every minute; memory that was free for 10 s is released",
    },
    Setting {
        collectors: &["Shenandoah"],
        target: Target::Free,
        id: "jvm_shenandoah_uncommit",
        instruction: "JAVA_TOOL_OPTIONS='-XX:+UnlockExperimentalVMOptions -XX:ShenandoahUncommitDelay=10000'",
        cost: "regions that were free for 10 s are released",
    },
    Setting {
        collectors: &["G1", "Serial", "Parallel", "Z", "Shenandoah"],
        target: Target::BelowMinimum,
        id: "jvm_xms",
        instruction: "a smaller -Xms (-XX:MinHeapSize): no collector releases memory below it",
        cost: "the heap grows in steps after the start",
    },
    Setting {
        collectors: &["Z", "Shenandoah"],
        target: Target::AboveUse,
        id: "jvm_soft_max",
        instruction: "-XX:SoftMaxHeapSize close to what is in use (in a running program: jcmd PID VM.set_flag SoftMaxHeapSize BYTES)",
        cost: "the JVM collects earlier, and exceeds the limit only if it must",
    },
];

/// Returns the settings whose target is large enough, most bytes first. No gain is predicted: the
/// collector's behaviour under them is not known.
fn settings(heap: &Heap, facts: &Jvm) -> Vec<Remedy> {
    let free_bytes = facts.free_resident_bytes;
    let bytes_of = |target: Target| match target {
        Target::Free => free_bytes,
        // If the minimum is not known, the setting is not proposed.
        Target::BelowMinimum => {
            let minimum_bytes = facts.min_heap_bytes.unwrap_or(0).min(heap.committed_bytes());
            minimum_bytes.saturating_sub(heap.used_bytes()).min(free_bytes)
        }
        Target::AboveUse => heap.committed_bytes().saturating_sub(heap.used_bytes()).min(free_bytes),
    };
    let applicable = SETTINGS.iter().filter(|setting| setting.collectors.contains(&heap.collector));
    let mut worthwhile: Vec<&Setting> =
        applicable.filter(|setting| bytes_of(setting.target) >= MIN_WORTHWHILE_BYTES).collect();
    worthwhile.sort_by_key(|setting| std::cmp::Reverse(bytes_of(setting.target)));
    let remedy = |setting: &Setting| {
        let bytes = units::bytes(bytes_of(setting.target));
        let cost = format!("{}; it concerns {bytes} of the heap that is free now", setting.cost);
        Remedy::setting(setting.id, setting.instruction, &cost)
    };
    worthwhile.into_iter().map(remedy).collect()
}

/// Returns `jvm_gc` (`GC.run`), as advice if the JVM accepts no requests; `None` if a collection is
/// not possible, or its effect has no rule.
fn collection(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    facts: &Jvm,
    traced: Option<&Live>,
) -> Option<Remedy> {
    let Prediction { bytes, bounds, rule } = match predict(context, view, heap, traced) {
        Ok(prediction) => prediction?,
        Err(UnreadFlag) => Prediction::UNREAD_FLAG,
    };
    let live_objects = match (facts.live_bytes, facts.uncertain_bytes()) {
        (Some(live), None) => {
            format!("{} of {} of objects are live", units::bytes(live), units::bytes(heap.used_bytes()))
        }
        (Some(live), Some(uncertain)) => format!(
            "at most {} of {} of objects are live; only words that may be references hold {} of these",
            units::bytes(live),
            units::bytes(heap.used_bytes()),
            units::bytes(uncertain)
        ),
        (None, _) => "live objects were not traced".to_owned(),
    };
    let cost = format!("a full collection, during which the program waits; {live_objects}; {rule}");
    let remedy = if facts.attach == Some(false) {
        let instruction = "call System.gc() in the program (its attach mechanism is off)";
        Remedy::advice("jvm_gc", bytes, instruction, &cost)
    } else {
        Remedy::call("jvm_gc", bytes, context.process.pid(), &cost)
    };
    let unknown_because = bytes.is_none().then(|| bounds.map_or_else(|| rule.to_owned(), Bounds::reason));
    Some(Remedy { unknown_because, ..remedy })
}

/// A prediction of what a full collection releases.
struct Prediction {
    /// Bytes; `None` if they are not known to a hundredth.
    bytes: Option<u64>,
    /// Bounds if the bytes are not known; `None` if the bounds are not known either.
    bounds: Option<Bounds>,
    /// Rule of the collector, as a clause.
    rule: &'static str,
}

impl Prediction {
    /// The prediction if a flag that decides on the collection cannot be read.
    const UNREAD_FLAG: Self = Self {
        bytes: None,
        bounds: None,
        rule: "whether a collection can be requested, and what it releases, depends on flags of the JVM that could not be read",
    };
}

/// A flag that decides on the collection cannot be read: its page is swapped out.
struct UnreadFlag;

/// Bounds of what a collection releases.
#[derive(Clone, Copy)]
struct Bounds {
    lower_bytes: u64,
    upper_bytes: u64,
    /// Whether the minimum heap size is known.
    is_minimum_known: bool,
}

impl Bounds {
    /// Returns the midpoint; `None` if the bounds are more than a hundredth apart.
    fn midpoint(self) -> Option<u64> {
        let difference = self.upper_bytes.saturating_sub(self.lower_bytes);
        (difference <= self.upper_bytes / 100).then_some(self.upper_bytes - difference / 2)
    }

    /// Returns why there is no figure.
    fn reason(self) -> String {
        let (lower, upper) = (units::bytes(self.lower_bytes), units::bytes(self.upper_bytes));
        let minimum =
            if self.is_minimum_known { "" } else { ", and on the minimum heap size, which is not known" };
        format!(
            "{lower} to {upper}: it depends on which objects the collection finds live and on how its threads share the work\
             {minimum}"
        )
    }
}

/// The minimum heap size (`-Xms`): no heap shrinks below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Minimum {
    /// Lower bound.
    least_bytes: u64,
    /// Upper bound.
    most_bytes: u64,
}

impl Minimum {
    /// Reads it. JDK 11 has no flag for it: there the initial heap size is the upper bound, and if
    /// that is unknown, too, the committed bytes, above which the minimum has no effect.
    fn read(view: &View<'_>, committed_bytes: u64) -> Self {
        match view.flag("MinHeapSize") {
            Some(bytes) => Self { least_bytes: bytes, most_bytes: bytes },
            None => {
                let most_bytes = view.flag("InitialHeapSize").unwrap_or(committed_bytes);
                Self { least_bytes: 0, most_bytes }
            }
        }
    }

    fn is_known(self) -> bool {
        self.least_bytes == self.most_bytes
    }
}

/// Predicts what a full collection releases; `None` if it is not possible, or no rule is known.
///
/// # Errors
/// A flag that decides on it cannot be read.
fn predict(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    traced: Option<&Live>,
) -> Result<Option<Prediction>, UnreadFlag> {
    // ZGC uncommits memory by itself once it was free for some minutes; Epsilon never does.
    if !matches!(heap.collector, "G1" | "Serial" | "Parallel" | "Shenandoah") {
        return Ok(None);
    }
    let is_set = |flag: &str| view.is_set(flag).ok_or(UnreadFlag);
    // Up to JDK 17 the flag also disables requests from outside.
    if view.structs.major().is_some_and(|major| major <= 17) && is_set("DisableExplicitGC")? {
        return Ok(None);
    }
    // A concurrent collection does not compact: its marking decides what is released.
    if heap.collector == "G1" && is_set("ExplicitGCInvokesConcurrent")? {
        return Ok(None);
    }
    let minimum = Minimum::read(view, heap.committed_bytes());
    let none_at_minimum = if heap.committed_bytes() <= minimum.least_bytes { Some(0) } else { None };
    let exact = |bytes, rule| Prediction { bytes, bounds: None, rule };
    let bounded = |bounds: Option<Bounds>, rule| {
        let bytes = bounds.and_then(Bounds::midpoint);
        Prediction { bytes, bounds: bounds.filter(|_| bytes.is_none()), rule }
    };
    Ok(Some(match heap.collector {
        "G1" => bounded(
            bounds(traced, minimum, |live_bytes, fill, minimum_bytes| {
                g1_released_bytes(context, view, heap, live_bytes, fill, minimum_bytes)
            }),
            "G1 retains as much free heap as MaxHeapFreeRatio allows for the live objects",
        ),
        // `ShenandoahArguments::initialize` turns it off if the initial heap size is the maximum,
        // or if the heap has too few large pages (JDK 17 to 25).
        "Shenandoah" if !is_set("ShenandoahUncommit")? => exact(
            Some(0),
            "Shenandoah releases nothing here: ShenandoahUncommit is off, as it is if the initial heap size is the maximum",
        ),
        "Shenandoah" => bounded(
            bounds(traced, minimum, |live_bytes, _, minimum_bytes| {
                let bytes_above_minimum = heap.committed_bytes().saturating_sub(minimum_bytes);
                Some(shenandoah_released_bytes(context, view, heap, live_bytes)?.min(bytes_above_minimum))
            }),
            "Shenandoah releases all of its empty regions, down to -Xms",
        ),
        "Serial" => exact(
            none_at_minimum,
            "the serial collector shrinks its heap in steps, and its current step is not known: the first requested collection \
             releases hardly anything, the fourth everything",
        ),
        // "Parallel".
        _ => exact(
            none_at_minimum,
            "the parallel collector resizes its heap by its own statistics and may let it grow: the effect is not known",
        ),
    }))
}

/// Returns bounds of what `released` computes from the live bytes of each area, how regions are
/// filled, and the minimum heap size. For the lower bound, everything that may be live is live, and
/// each thread of G1's collection leaves one region partly full. For the upper bound, only
/// certainly live objects are live, and only the last region is partly full.
fn bounds(
    traced: Option<&Live>,
    minimum: Minimum,
    released: impl Fn(&[u64], Fill, u64) -> Option<u64>,
) -> Option<Bounds> {
    let traced = traced?;
    let lower_bytes = released(&traced.area_bytes, Fill::Loose, minimum.most_bytes)?;
    let upper_bytes = released(&traced.certain.area_bytes, Fill::Tight, minimum.least_bytes)?;
    let upper_bytes = upper_bytes.max(lower_bytes);
    Some(Bounds { lower_bytes, upper_bytes, is_minimum_known: minimum.is_known() })
}

/// How a collection fills regions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// All but the last are full.
    Tight,
    /// All but one per thread are full.
    Loose,
}

/// Returns the bytes that Shenandoah releases (`ShenandoahControlThread`): a requested collection
/// uncommits all regions that it leaves empty. It moves live objects out of regions with a minimum
/// share of garbage (`ShenandoahGarbageThreshold`), and packs them. `live_bytes` are those
/// of each area.
fn shenandoah_released_bytes(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    live_bytes: &[u64],
) -> Option<u64> {
    let threshold_percent = view.flag("ShenandoahGarbageThreshold")?.min(100);
    let region_bytes = heap.region_bytes?;
    let resident = |area: &Area| context.resident_bytes(area.range());
    let (mut emptied_bytes, mut moved_bytes) = (0_u64, 0_u64);
    for (area, &live) in heap.areas.iter().zip(live_bytes) {
        let garbage_bytes = (area.top - area.start).saturating_sub(live);
        let min_garbage_bytes = (area.end - area.start) / 100 * threshold_percent;
        let is_moved = area.kind != AreaKind::Humongous && garbage_bytes >= min_garbage_bytes;
        if live == 0 || is_moved {
            emptied_bytes += resident(area);
            moved_bytes += live;
        }
    }
    Some(emptied_bytes.saturating_sub(moved_bytes.div_ceil(region_bytes).saturating_mul(region_bytes)))
}

/// Returns the bytes that G1 releases (`G1CollectedHeap::resize_heap_if_necessary`): what exceeds
/// MaxHeapFreeRatio is uncommitted, starting with the highest free regions; used memory counts in
/// whole regions. Before that, live objects were moved to the lowest regions, except large objects
/// and the archive; free regions in between stay as resident as they are. `live_bytes` are those
/// of each area, `minimum_bytes` is the minimum heap size.
fn g1_released_bytes(
    context: &Context<'_>,
    view: &View<'_>,
    heap: &Heap,
    live_bytes: &[u64],
    fill: Fill,
    minimum_bytes: u64,
) -> Option<u64> {
    let ratio = view.flag("MaxHeapFreeRatio").filter(|&ratio| ratio <= 100)?;
    let region_bytes = heap.region_bytes?;
    let usage = G1Usage::new(heap, live_bytes);
    let used_bytes = usage.whole_region_bytes(view, region_bytes, fill);
    let max_bytes = match ratio {
        100 => u64::MAX,
        ratio => u64::try_from(u128::from(used_bytes) * 100 / u128::from(100 - ratio)).unwrap_or(u64::MAX),
    };
    let committed_bytes_after =
        max_bytes.max(minimum_bytes).min(heap.committed_bytes()).checked_next_multiple_of(region_bytes)?;
    let (mut bytes_before, mut bytes_after) = (0, 0);
    // Committed bytes, without large objects and the archive, that are not yet assigned to an area,
    // and live bytes that are not yet moved to one.
    let mut unassigned_bytes = committed_bytes_after.saturating_sub(usage.fixed_bytes);
    let mut unmoved_bytes = usage.moved_bytes;
    for (area, &live) in heap.areas.iter().zip(live_bytes).filter(|(area, _)| area.kind != AreaKind::Archive)
    {
        let area_resident_bytes = context.resident_bytes(area.range());
        bytes_before += area_resident_bytes;
        if area.kind == AreaKind::Humongous && live > 0 {
            bytes_after += area_resident_bytes;
            continue;
        }
        let committed = (area.end - area.start).min(unassigned_bytes);
        let filled = committed.min(unmoved_bytes);
        bytes_after +=
            filled + context.resident_bytes((page_up(area.start + filled), area.start + committed));
        unassigned_bytes -= committed;
        unmoved_bytes -= filled;
    }
    Some(bytes_before.saturating_sub(bytes_after))
}

/// Memory in use after a full collection by G1.
struct G1Usage {
    /// Bytes of regions with large objects, and of the archive.
    fixed_bytes: u64,
    /// Live bytes of other objects.
    moved_bytes: u64,
    /// Number of regions with live objects that are moved.
    source_regions: u64,
}

impl G1Usage {
    /// Adds up the live bytes of each area.
    fn new(heap: &Heap, live_bytes: &[u64]) -> Self {
        let mut usage = Self { fixed_bytes: 0, moved_bytes: 0, source_regions: 0 };
        for (area, &live) in heap.areas.iter().zip(live_bytes) {
            match area.kind {
                AreaKind::Humongous | AreaKind::Archive if live > 0 => {
                    usage.fixed_bytes += area.end - area.start
                }
                AreaKind::Humongous | AreaKind::Archive | AreaKind::Free => {}
                _ => {
                    usage.moved_bytes += live;
                    usage.source_regions += u64::from(live > 0);
                }
            }
        }
        usage
    }

    /// Returns the bytes in use, in whole regions. Each thread of the collection can leave one
    /// region partly full, if it gets a region with something to move (`G1FullGCPrepareTask`).
    fn whole_region_bytes(&self, view: &View<'_>, region_bytes: u64, fill: Fill) -> u64 {
        let full_regions = self.moved_bytes.div_ceil(region_bytes);
        if fill == Fill::Tight {
            return self.fixed_bytes.saturating_add(full_regions.saturating_mul(region_bytes));
        }
        // If the number of threads is unknown, there may be one for each region.
        let threads = view.structs.flag("ParallelGCThreads").and_then(|at| view.half_word(at));
        let threads = threads.unwrap_or(u32::MAX);
        let regions = full_regions
            .saturating_add(u64::from(threads).saturating_sub(1))
            .min(self.source_regions.max(full_regions));
        self.fixed_bytes.saturating_add(regions.saturating_mul(region_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabricated::OwnAddresses;
    use crate::jvm::structs::VmStructs;

    #[test]
    fn an_unknown_minimum_is_between_zero_and_the_initial_size() {
        let minimum = |flags: &[(&str, u64)]| {
            let structs = VmStructs::of_flags(flags);
            Minimum::read(&View { memory: &OwnAddresses, structs: &structs }, 64 << 20)
        };
        let (initial, minimal) = (("InitialHeapSize", 16 << 20), ("MinHeapSize", 8 << 20));
        assert_eq!(minimum(&[initial, minimal]), Minimum { least_bytes: 8 << 20, most_bytes: 8 << 20 });
        assert_eq!(minimum(&[initial]), Minimum { least_bytes: 0, most_bytes: 16 << 20 });
        assert_eq!(minimum(&[]), Minimum { least_bytes: 0, most_bytes: 64 << 20 });
    }

    #[test]
    fn bounds_far_apart_have_a_reason_instead_of_a_figure() {
        let bounds =
            |is_minimum_known| Bounds { lower_bytes: 8 << 20, upper_bytes: 64 << 20, is_minimum_known };
        assert_eq!(bounds(true).midpoint(), None);
        assert!(!bounds(true).reason().contains("minimum heap size"));
        assert!(bounds(false).reason().contains("share the work, and on the minimum heap size"));
    }
}
