//! glibc's malloc, read from outside, without symbols and without calling anything.
//!
//! `locate` finds the arenas, `regions` their address ranges, `tcache` and `lists` the free chunks
//! that look in use, `walk` and `segments` go over every chunk, `mmapped` finds the large ones.

pub mod lists;
pub mod locate;
pub mod mmapped;
pub mod objects;
pub mod regions;
pub mod segments;
pub mod tcache;
pub mod walk;

use std::collections::BTreeMap;

use self::lists::{Held, Links, Lists, PageCache, Ranges};
use self::locate::{Arena, Parameters};
use self::objects::Object;
use self::regions::Owned;
use self::segments::{Job, Walked};
use super::{Context, RangeClaim, Reading, TrimPlan};
use crate::caveat::Caveat;
use crate::facts::{Allocator, ArenaKind, Mallinfo};
use crate::ledger::fold::OutOfOrder;
use crate::ledger::range::{PAGE_BYTES, RangePages};

/// Reads every glibc of the process: most have one, `dlmopen` makes more.
pub fn read(context: &Context<'_>) -> Result<Vec<Reading>, OutOfOrder> {
    let mut readings: Vec<Reading> = Vec::new();
    for object in objects::find(context) {
        if let Some(reading) = read_one(context, &object, &readings)? {
            readings.push(reading);
        }
    }
    Ok(readings)
}

fn read_one(
    context: &Context<'_>,
    object: &Object,
    before: &[Reading],
) -> Result<Option<Reading>, OutOfOrder> {
    let Some(main) = locate::main_arena(context.memory, &object.data) else { return Ok(None) };
    let is_brk = |address: u64| context.space.find(address).is_none_or(|m| m.is_private_anonymous());
    let parameters = locate::parameters(context.memory, &object.data, main.address, is_brk);
    let heap_max_bytes = match parameters.map_or(0, |p| p.hp_pagesize) {
        0 => crate::layout::glibc::HEAP_MAX_BYTES,
        huge => huge.saturating_mul(4),
    };
    let arenas = locate::arenas(context.memory, &main, heap_max_bytes);
    let mut owned = regions::of_arenas(context, &arenas, parameters.as_ref());
    let taken = |owned: &Owned| {
        before
            .iter()
            .flat_map(|r| &r.claims)
            .any(|c| c.start < owned.region.end && owned.region.start < c.end)
    };
    owned.retain(|owned| !taken(owned));

    let pages: Vec<RangePages> = owned
        .iter()
        .map(|o| {
            RangePages::new(o.region.start, o.region.end, (context.resident)(o.region.start, o.region.end))
        })
        .collect();
    let mut reading = Reading::default();
    let lists = special_chunks(context, &arenas, &owned, &pages, parameters.as_ref(), &mut reading);
    let jobs: Vec<Job<'_>> = owned
        .iter()
        .zip(pages.iter().zip(&lists))
        .map(|(owned, (pages, lists))| Job { region: &owned.region, pages, lists })
        .collect();
    let mut walked = Vec::new();
    for result in segments::walk(&jobs, context.memory, context.threads, context.progress) {
        walked.push(result?);
    }
    take_walked(&mut reading, &owned, &walked, &pages);
    find_mapped_chunks(context, &owned, &walked, parameters.as_ref(), &mut reading);
    check_sums(&arenas, &owned, &walked, &mut reading);
    reading.allocator = facts(object, &arenas, &owned, &walked, parameters.as_ref());
    reading.trim = Some(TrimPlan {
        object: object.address,
        locks: arenas.iter().map(|arena| arena.address).collect(),
        heaps: owned.iter().map(|o| (o.region.start, o.region.end)).collect(),
        predicted_bytes: walked.iter().map(trim_bytes).sum(),
    });
    Ok(Some(reading))
}

/// What `malloc_trim(0)` gives back of a range, less the pages it brings in itself.
fn trim_bytes(walked: &Walked) -> u64 {
    walked.sums.trimmable.saturating_sub(walked.counts.touched_pages * PAGE_BYTES)
}

/// Follows the thread caches and the fastbins; one [`Lists`] for each region.
fn special_chunks(
    context: &Context<'_>,
    arenas: &[Arena],
    owned: &[Owned],
    pages: &[RangePages],
    parameters: Option<&Parameters>,
    reading: &mut Reading,
) -> Vec<Lists> {
    let mut ranges = Ranges {
        parts: owned
            .iter()
            .zip(pages)
            .map(|(owned, pages)| (pages, Lists::new(owned.region.start, owned.region.end.min(pages.end()))))
            .collect(),
    };
    let large = parameters.is_some_and(|p| p.layout.large_tcache);
    let caches = tcache::find(context.memory, &ranges, context.fs_bases, large);
    let fastbins = arenas.iter().flat_map(|arena| &arena.fastbins).filter(|&&head| head != 0);
    let fastbins: Vec<_> = fastbins.map(|&head| lists::List::fastbin(head)).collect();
    let mut cache = PageCache::new(context.memory);
    let all: Vec<_> = caches.lists.iter().chain(&fastbins).copied().collect();
    let links = lists::vote(&mut cache, &ranges, &all, Links::Disguised);

    for &chunk in &caches.structures {
        ranges.insert(chunk, Held::Metadata);
    }
    let most = owned.iter().map(|o| o.region.end - o.region.start).sum::<u64>() / 32;
    let mut broken = 0u64;
    for (lists, held) in [(&caches.lists, Held::ThreadCache), (&fastbins, Held::Fastbin)] {
        for &list in lists {
            let (_, whole) = lists::follow(&mut cache, &mut ranges, list, links, held, most);
            broken += u64::from(!whole);
        }
    }
    if broken > 0 {
        let text = format!(
            "{broken} lists of free chunks are damaged or in motion; what stands behind counts as in use"
        );
        reading.caveats.push(Caveat::new("free_list_broken", "glibc", None, text));
    }
    reading.bytes_read += cache.bytes_read;
    ranges.parts.into_iter().map(|(_, lists)| lists).collect()
}

fn take_walked(reading: &mut Reading, owned: &[Owned], walked: &[Walked], pages: &[RangePages]) {
    for ((owned, walked), pages) in owned.iter().zip(walked).zip(pages) {
        let region = &owned.region;
        reading.claims.push(RangeClaim { start: region.start, end: region.end, sums: walked.sums.clone() });
        reading.zero_runs.extend(pages.zero_runs());
        reading.bytes_read += walked.bytes_read;
        if walked.counts.damages > 0 {
            let at = walked.counts.first_damage.unwrap_or(region.start);
            let text = format!(
                "{} places in the heap {:#x}-{:#x} make no sense (damaged, or caught in motion); {} bytes were skipped",
                walked.counts.damages, region.start, region.end, walked.counts.unread_bytes
            );
            reading.caveats.push(Caveat::new(
                "heap_damaged",
                format!("{at:#x}"),
                Some(walked.counts.unread_bytes),
                text,
            ));
        }
        if walked.unreadable_bytes > 0 {
            let place = format!("{:#x}-{:#x}", region.start, region.end);
            let text = "resident pages of the heap could not be read";
            reading.caveats.push(Caveat::new("heap_unreadable", place, Some(walked.unreadable_bytes), text));
        }
    }
}

/// Looks for mmapped chunks in private anonymous memory outside the arenas.
fn find_mapped_chunks(
    context: &Context<'_>,
    owned: &[Owned],
    walked: &[Walked],
    parameters: Option<&Parameters>,
    reading: &mut Reading,
) {
    let Some(parameters) = parameters else { return };
    let (met, met_bytes) = walked
        .iter()
        .fold((0, 0), |sum, w| (sum.0 + w.counts.mmapped_chunks, sum.1 + w.counts.mmapped_bytes));
    let (count, bytes) =
        (parameters.n_mmaps.saturating_sub(met), parameters.mmapped_mem.saturating_sub(met_bytes));
    if count == 0 {
        return;
    }
    let mut places: Vec<(u64, Vec<(u64, u64)>)> = Vec::new();
    for mapping in context.space.mappings() {
        if !mapping.is_private_anonymous() || !mapping.permissions.write || mapping.name.starts_with("[stack")
        {
            continue;
        }
        let mut from = mapping.start;
        for region in
            owned.iter().map(|o| &o.region).filter(|r| r.start < mapping.end && r.end > mapping.start)
        {
            if region.start > from {
                places.push((region.start, (context.resident)(from, region.start)));
            }
            from = from.max(region.end);
        }
        if from < mapping.end {
            places.push((mapping.end, (context.resident)(from.next_multiple_of(PAGE_BYTES), mapping.end)));
        }
    }
    // Small places first: a giant one (another heap) is then mostly not needed.
    places.sort_by_key(|(_, runs)| runs.iter().map(|(a, b)| b - a).sum::<u64>());
    let found = mmapped::find(context.memory, &places, count, bytes);
    reading.bytes_read += found.pages_read * 16;
    if found.chunks.len() as u64 != count || found.bytes != bytes {
        let text = format!(
            "malloc counts {count} chunks of their own mapping with {bytes} bytes, {} with {} bytes were found",
            found.chunks.len(),
            found.bytes
        );
        reading.caveats.push(Caveat::new(
            "mmapped_chunks_differ",
            "glibc",
            Some(bytes.abs_diff(found.bytes)),
            text,
        ));
    }
    reading.mapped_chunks = found.chunks;
}

/// The bytes that a region's chunks span, by its shape's own rule of what system_mem counts.
fn spanned(owned: &Owned, walked: &Walked) -> u64 {
    let bytes = owned.region.end - owned.region.start;
    match owned.region.shape {
        walk::Shape::Pieces => {
            bytes.saturating_sub(walked.counts.foreign_bytes + walked.counts.mmapped_bytes)
        }
        // malloc.c, sysmalloc: "Count foreign sbrk as system_mem"; what lies behind the last section
        // of a brk that was blocked is not the arena's.
        walk::Shape::Brk | walk::Shape::Heap => bytes,
    }
}

fn check_sums(arenas: &[Arena], owned: &[Owned], walked: &[Walked], reading: &mut Reading) {
    for (index, arena) in arenas.iter().enumerate() {
        let sum: u64 =
            owned.iter().zip(walked).filter(|(o, _)| o.arena == index).map(|(o, w)| spanned(o, w)).sum();
        if sum != arena.system_mem {
            let text = format!(
                "the arena says it took {} bytes from the kernel, {sum} were found",
                arena.system_mem
            );
            let place = format!("{:#x}", arena.address);
            reading.caveats.push(Caveat::new(
                "arena_sum_differs",
                place,
                Some(sum.abs_diff(arena.system_mem)),
                text,
            ));
        }
    }
}

fn facts(
    object: &Object,
    arenas: &[Arena],
    owned: &[Owned],
    walked: &[Walked],
    parameters: Option<&Parameters>,
) -> Allocator {
    let mut allocator = Allocator {
        name: "glibc".to_owned(),
        version: object.version.clone(),
        found_by: format!("main_arena in {}", object.name),
        read: true,
        ..Allocator::default()
    };
    let mut mallinfo = Mallinfo::default();
    for (index, arena) in arenas.iter().enumerate() {
        let parts: Vec<&Walked> =
            owned.iter().zip(walked).filter(|(o, _)| o.arena == index).map(|(_, w)| w).collect();
        let sum = |field: fn(&Walked) -> u64| parts.iter().map(|w| field(w)).sum::<u64>();
        let (fast_bytes, top_bytes) = (sum(|w| w.counts.fast_bytes), sum(|w| w.counts.top_bytes));
        let free_bytes = sum(|w| w.counts.bin_bytes) + fast_bytes + top_bytes;
        let cached_bytes = sum(|w| w.counts.cached_bytes);
        allocator.arenas.push(crate::facts::Arena {
            id: format!("{:#x}", arena.address),
            kind: if arena.main { ArenaKind::Main } else { ArenaKind::Secondary },
            mapped_bytes: arena.system_mem,
            used_bytes: arena.system_mem.saturating_sub(free_bytes + cached_bytes),
            free_bytes,
            tcache_bytes: cached_bytes,
            fastbin_bytes: fast_bytes,
            top_bytes,
            trim_bytes: sum(trim_bytes),
        });
        // malloc.c, int_mallinfo: "top always exists", also before the first allocation.
        mallinfo.ordblks += sum(|w| w.counts.bin_chunks) + 1;
        mallinfo.smblks += sum(|w| w.counts.fast_chunks);
        mallinfo.fsmblks += fast_bytes;
        mallinfo.fordblks += free_bytes;
        mallinfo.uordblks = mallinfo.uordblks.saturating_add(arena.system_mem.saturating_sub(free_bytes));
        mallinfo.arena = mallinfo.arena.saturating_add(arena.system_mem);
        if arena.main {
            mallinfo.keepcost = top_bytes;
        }
    }
    if let Some(parameters) = parameters {
        mallinfo.hblks = parameters.n_mmaps;
        mallinfo.hblkhd = parameters.mmapped_mem;
        allocator.settings = settings(parameters);
    }
    allocator.mallinfo = Some(mallinfo);
    allocator
}

fn settings(parameters: &Parameters) -> BTreeMap<String, u64> {
    [
        ("trim_threshold_bytes", parameters.trim_threshold),
        ("top_pad_bytes", parameters.top_pad),
        ("mmap_threshold_bytes", parameters.mmap_threshold),
        ("arena_max", parameters.arena_max),
        ("thp_page_bytes", parameters.thp_pagesize),
        ("huge_page_bytes", parameters.hp_pagesize),
        ("tcache_count", parameters.tcache_count),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
