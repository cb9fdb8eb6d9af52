//! The setting with which mimalloc releases free memory at once, and what that would release.
//!
//! Which setting a build supports is judged by its file: options were renamed between releases, and
//! unknown names are silently ignored.

use super::layout::SLICE_BYTES;
use super::options::{self, PurgeOptions};
use super::parts::{Heap, Part, PartKind, SpanPurge};
use strandline_claims::allocator::Context;
use strandline_claims::facts::Remedy;
use strandline_claims::range::{page_of, page_up};
use strandline_claims::units::bytes;
use strandline_process::image::ElfFile;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;

/// Id of the setting.
pub const PURGE_DELAY: &str = "mimalloc_purge_delay";
/// Minimum free bytes for which it is proposed.
const MIN_BYTES: u64 = 1 << 20;
/// Bytes at the start of a freed segment of 2.0.3 to 2.1.2 that stay: its own structures, which no
/// span contains (`segment.c`, `mi_segment_info_size`; two slices in 2.0.3, later one).
const KEPT_SEGMENT_BYTES: u64 = 2 * SLICE_BYTES;

/// An option for how long free pages are kept.
struct DelayOption {
    /// Name of an option by which the file shows that it has this one (`src/options.c`, `options`,
    /// in 3.x `mi_options`).
    marker: &'static str,
    /// The setting with which free pages are not kept.
    setting: &'static str,
}

/// The option from 1.8.2 and 2.1.2 on, that of 2.0.4 to 2.1.1, and that of 2.0 to 2.0.3: the first
/// one whose marker is in the file. Older releases have no option with that effect.
const DELAYS: [DelayOption; 3] = [
    DelayOption { marker: "purge_delay", setting: "MIMALLOC_PURGE_DELAY=0" },
    DelayOption { marker: "decommit_extend_delay", setting: "MIMALLOC_DECOMMIT_DELAY=0" },
    DelayOption { marker: "segment_decommit_delay", setting: "MIMALLOC_RESET_DELAY=0" },
];

/// Returns the setting that makes mimalloc release free pages at once; `None` if this build has
/// none.
fn purge_setting(image: &ElfFile) -> Option<&'static str> {
    let has_option = |option: &&DelayOption| {
        let strings = image.strings_ending(option.marker);
        // Only names consist of such letters; the linker may merge one with the end of another.
        strings.iter().any(|string| string.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    };
    DELAYS.iter().find(has_option).map(|option| option.setting)
}

/// Returns the setting, which [`finish`] completes, with the memory that waits for the delay. A
/// free part of a mimalloc page with blocks in use never waits: no setting releases it.
pub fn purge_delay(context: &Context<'_>, heap: &Heap) -> Option<Remedy> {
    let free_bytes =
        resident_bytes(context, heap.parts.iter().filter(|part| part.is_free()).map(Part::range));
    if free_bytes < MIN_BYTES {
        return None;
    }
    let cost = "releases free pages at once: costs system calls, and page faults at reuse";
    let setting = Remedy::setting(PURGE_DELAY, "", cost);
    match options::purge_options(context, heap) {
        Some(PurgeOptions { delay_milliseconds: 0, .. }) => None,
        Some(PurgeOptions { delay_milliseconds: ..0, .. }) => {
            let reason = format!(
                "with the delay in force nothing is released: of {} in no page, what the program used before is not recorded",
                bytes(free_bytes)
            );
            Some(setting.unknown_because(&reason))
        }
        Some(PurgeOptions { is_lazy: true, .. }) => {
            let reason =
                "with MIMALLOC_PURGE_DECOMMITS=0, released pages stay resident until the kernel needs memory";
            Some(setting.unknown_because(reason))
        }
        _ => {
            let waiting_bytes =
                resident_bytes(context, heap.parts.iter().flat_map(|part| waiting(heap, part)));
            (waiting_bytes >= MIN_BYTES).then(|| setting.predicting(waiting_bytes))
        }
    }
}

/// Completes the setting with the name that this build reads; removes it if the build has none, or
/// if the program was started with it.
pub fn finish(process: &Process, image: Option<&ElfFile>, remedies: &mut Vec<Remedy>) {
    let is_purge_delay = |remedy: &Remedy| remedy.id == PURGE_DELAY;
    if !remedies.iter().any(is_purge_delay) {
        return;
    }
    let how = image.and_then(purge_setting).filter(|how| !is_set(process, how));
    match how {
        Some(how) => {
            let found = remedies.iter_mut().filter(|remedy| is_purge_delay(remedy));
            found.for_each(|remedy| how.clone_into(&mut remedy.how));
        }
        None => remedies.retain(|remedy| !is_purge_delay(remedy)),
    }
}

/// Whether the environment of the program has this setting (`options.c`, `mi_option_init`).
fn is_set(process: &Process, how: &str) -> bool {
    let name = how.trim_end_matches("=0");
    let value = process.settings().ok().and_then(|settings| settings.get(name).cloned());
    value.is_some_and(|value| {
        value.parse() == Ok(0) || ["FALSE", "NO", "OFF"].contains(&value.to_ascii_uppercase().as_str())
    })
}

/// Returns the addresses in a part that were in use and wait for the delay.
fn waiting(heap: &Heap, part: &Part) -> Vec<AddressRange> {
    let range = part.range();
    let schedule = part.release_unit.and_then(|unit| Some((unit, heap.purge_schedules.get(&unit)?)));
    match (part.kind, schedule) {
        (PartKind::PurgePending, None) => {
            // These releases cache freed segments for another delay. With this one at 0, spans are
            // released as they become free (`segment-cache.c`, `_mi_segment_cache_push`).
            let is_cached = part.release_unit.is_none()
                && matches!(heap.collect_rules.span_purge, SpanPurge::Kept | SpanPurge::WhenDue);
            let kept_bytes = if is_cached { KEPT_SEGMENT_BYTES.min(range.len()) } else { 0 };
            vec![AddressRange::new(range.start + kept_bytes, range.end)]
        }
        (PartKind::Free | PartKind::PurgePending, Some((segment, schedule))) => {
            let slices = (range.start - segment) / SLICE_BYTES..(range.end - segment) / SLICE_BYTES;
            let scheduled = slices.filter(|&slice| schedule.scheduled_slices.has(slice as usize));
            scheduled.map(|slice| AddressRange::sized(segment + slice * SLICE_BYTES, SLICE_BYTES)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the resident bytes of the whole kernel pages in these ranges that are not locked.
fn resident_bytes(context: &Context<'_>, ranges: impl Iterator<Item = AddressRange>) -> u64 {
    let whole_pages = ranges.map(|range| (page_up(range.start), page_of(range.end)));
    let unlocked = whole_pages.filter(|&(start, end)| start < end && !context.is_locked((start, end)));
    unlocked.map(|pages| context.resident_bytes(pages)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::layout::PageWords;
    use super::super::spans::{Mask, PurgeSchedule};
    use super::*;
    use crate::scan::Unreadable;
    use strandline_process::map::AddressSpace;

    const START: u64 = 0x200_0000_0000;

    /// Slices `first` to `end` behind [`START`], in the segment there if there is one.
    fn part(first: u64, end: u64, kind: PartKind, release_unit: Option<u64>) -> Part {
        let [start, end] = [first, end].map(|slice| START + slice * SLICE_BYTES);
        Part { start, end, kind, release_unit, thread: None }
    }

    /// Slices that are predicted; `None` if nothing is offered.
    fn predicted_slices(heap: &Heap) -> Option<u64> {
        let (space, _) = AddressSpace::parse(b"");
        let all_resident = |range: AddressRange| vec![range];
        let remedy = purge_delay(&Context::of_image(&Unreadable, &space, &all_resident), heap)?;
        remedy.predicted_bytes.map(|bytes| bytes / SLICE_BYTES)
    }

    #[test]
    fn only_scheduled_slices_of_a_segment_wait() {
        let page =
            PartKind::Page(PageWords { block_bytes: 5000, capacity: 200, used: 1, ..PageWords::default() });
        let parts =
            [(0, 1, PartKind::Own), (1, 65, page), (65, 100, PartKind::Free), (100, 120, PartKind::Free)];
        let parts = parts.map(|(first, end, kind)| part(first, end, kind, Some(START)));
        let mut heap = Heap { parts: parts.to_vec(), ..Heap::default() };
        let words = |words: [u64; 2]| PurgeSchedule {
            is_allowed: true,
            scheduled_slices: Mask::new(words.into_iter()),
            ..PurgeSchedule::default()
        };
        // All slices are marked, also those of pages in use, as by a damaged segment.
        heap.purge_schedules.insert(START, words([u64::MAX; 2]));
        assert_eq!(predicted_slices(&heap), Some(55));
        // Slices 65 to 99.
        heap.purge_schedules.insert(START, words([0, (1 << 36) - 2]));
        assert_eq!(predicted_slices(&heap), Some(35));
        heap.purge_schedules.insert(START, words([u64::MAX, 0]));
        assert_eq!(predicted_slices(&heap), None, "no free slice is marked");
    }

    #[test]
    fn a_cached_segment_keeps_its_structures() {
        let mut heap = Heap { parts: vec![part(0, 64, PartKind::PurgePending, None)], ..Heap::default() };
        // An arena of 3.x; a segment of 2.0.9.
        assert_eq!(predicted_slices(&heap), Some(64));
        heap.collect_rules.span_purge = SpanPurge::WhenDue;
        assert_eq!(predicted_slices(&heap), Some(62));
    }
}
