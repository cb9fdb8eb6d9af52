//! Lists retained buffers by name, with the pages that freeing them releases.

use std::time::Instant;

use super::Slots;
use super::facts::{self, Keeper, Retained};
use super::names::Names;
use super::objects::{IS_MMAPPED, SIZE_BITS, chunk_bytes};
use super::roots::Kept;
use crate::batch::PageCache;
use crate::resident::resident_bytes;
use strandline_claims::runtime::{Context, Named};
use strandline_process::pages::{PAGE_BYTES, page_of, page_up};

pub const MAX_LISTED: usize = 4096;

/// Fills in `top`, `top_left_out` and `page_bytes` of `retained` from the large buffers, and
/// returns the rows of the listed ones, and whether time ran out: then `page_bytes` lacks others.
pub fn list_largest(
    context: &Context<'_>,
    slots: Slots,
    pages: &mut PageCache<'_>,
    names: &mut Names<'_>,
    mut kept: Vec<Kept>,
    retained: &mut Retained,
) -> (Vec<Named>, bool) {
    kept.sort_unstable_by_key(|kept| (std::cmp::Reverse(kept.bytes), kept.head));
    let (listed, others) = kept.split_at(kept.len().min(MAX_LISTED));
    let mut rows = Vec::new();
    for buffer in listed {
        let page_bytes = whole_pages(context, pages, buffer);
        retained.page_bytes += page_bytes;
        let of = named(names, buffer, page_bytes);
        let slot = if buffer.keeper == Keeper::Other { slots.buffer } else { slots.pad };
        let Kept { pointer, bytes, .. } = *buffer;
        rows.push(Named { pointer, bytes, slot, holder: of.holder.clone() });
        retained.top.push(of);
    }
    let mut is_late = false;
    for buffer in others {
        retained.top_left_out.add(buffer.bytes);
        // Hostile buffers may each span all of memory.
        is_late = is_late || Instant::now() >= context.deadline;
        if !is_late {
            retained.page_bytes += whole_pages(context, pages, buffer);
        }
    }
    (rows, is_late)
}

fn named(names: &mut Names<'_>, kept: &Kept, page_bytes: u64) -> facts::Buffer {
    let sub = if kept.sub == 0 { None } else { names.sub(kept.sub) };
    let named = |names: &mut Names<'_>| match kept.keeper {
        _ if kept.name == 0 => None,
        Keeper::Other => names.global(kept.name),
        Keeper::Lexical | Keeper::Temporary => names.lexical(kept.name),
    };
    let name = named(names);
    let closure = sub.as_ref().filter(|sub| sub.is_closure).map(|_| format!("{:#x}", kept.sub));
    let sub_name = sub.map(|sub| sub.name);
    let place = match &closure {
        Some(closure) => format!("depth {}, closure at {closure}", kept.depth),
        None => format!("depth {}", kept.depth),
    };
    let shown = sub_name.as_deref().unwrap_or("an unnamed sub");
    let holder = match (kept.keeper, &name) {
        (Keeper::Other, Some(global)) => global.clone(),
        (Keeper::Other, None) => format!("a package variable, head at {:#x}", kept.head),
        (Keeper::Lexical, Some(lexical)) => format!("{shown} {lexical} ({place})"),
        (Keeper::Lexical, None) => format!("{shown} (a lexical, {place})"),
        (Keeper::Temporary, _) => format!("{shown} (a temporary, {place})"),
    };
    facts::Buffer {
        holder,
        keeper: kept.keeper,
        kind: kept.kind,
        sub: sub_name,
        lexical: name.filter(|_| kept.keeper == Keeper::Lexical),
        depth: (kept.sub != 0).then_some(kept.depth),
        closure,
        head: format!("{:#x}", kept.head),
        address: format!("{:#x}", kept.pointer),
        bytes: kept.bytes,
        valueless: kept.valueless,
        page_bytes,
    }
}

/// Resident bytes that freeing the buffer releases: the pages wholly within its chunk, as
/// malloc_trim counts them, or all of a chunk with its own mapping.
fn whole_pages(context: &Context<'_>, pages: &mut PageCache<'_>, kept: &Kept) -> u64 {
    let chunk = kept.pointer.wrapping_sub(16);
    let usual = chunk_bytes(kept.bytes);
    let word = pages.word(kept.pointer.wrapping_sub(8)).unwrap_or(0);
    let size = Some(word & !SIZE_BITS).filter(|size| (usual..=usual.saturating_add(64 << 10)).contains(size));
    let end = chunk.saturating_add(size.unwrap_or(usual));
    let is_mapped = size.is_some() && word & IS_MMAPPED != 0 && chunk.is_multiple_of(PAGE_BYTES);
    // malloc keeps a free chunk's own fields at its beginning.
    let start = if is_mapped { chunk } else { page_up(chunk.saturating_add(48)) };
    let end = page_of(end);
    if start >= end {
        return 0;
    }
    resident_bytes(context, start, end)
}
