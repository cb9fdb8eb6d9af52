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
/// returns the rows of the listed ones, and whether time ran out: then `page_bytes` lacks those
/// that are not listed.
pub fn list_largest(
    context: &Context<'_>,
    slots: Slots,
    pages: &mut PageCache<'_>,
    names: &mut Names<'_>,
    mut kept: Vec<Kept>,
    retained: &mut Retained,
) -> (Vec<Named>, bool) {
    kept.sort_unstable_by_key(|kept| (std::cmp::Reverse(kept.bytes), kept.head));
    let mut rows = Vec::new();
    let mut is_late = false;
    for (index, buffer) in kept.iter().enumerate() {
        // Hostile buffers may each span all of memory.
        is_late = is_late || Instant::now() >= context.deadline;
        let page_bytes = if is_late { 0 } else { whole_pages(context, pages, buffer) };
        retained.page_bytes += page_bytes;
        if is_late || index >= MAX_LISTED {
            retained.top_left_out.add(buffer.bytes);
            continue;
        }
        let of = named(names, buffer, page_bytes);
        let slot = if buffer.keeper == Keeper::Other { slots.buffer } else { slots.pad };
        let Kept { pointer, bytes, .. } = *buffer;
        rows.push(Named { pointer, bytes, slot, holder: of.holder.clone() });
        retained.top.push(of);
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

#[cfg(test)]
mod tests {
    use strandline_claims::refinements::Refinements;
    use strandline_claims::runtime::Reading;
    use strandline_process::range::AddressRange;
    use strandline_synth::Image;

    use super::*;
    use crate::fabricated;
    use crate::perl::layout::RELEASES;

    /// Lists two buffers that span much memory, in a process without any.
    fn list(context: &Context<'_>) -> (Retained, usize, bool) {
        let of = |head| Kept::undefined(head, 1 << 20, 1 << 45);
        let slots = Slots::new(&Refinements::new(Vec::<AddressRange>::new())).unwrap();
        let mut pages = PageCache::new(context.memory);
        let mut names = Names::new(PageCache::new(context.memory), RELEASES.last().unwrap(), 0);
        let mut retained = Retained::default();
        let kept = vec![of(8), of(16)];
        let (rows, is_late) = list_largest(context, slots, &mut pages, &mut names, kept, &mut retained);
        (retained, rows.len(), is_late)
    }

    #[test]
    fn buffers_are_left_out_after_the_deadline() {
        fabricated::read_image(&Image::default(), "", 0, |context, _| {
            let (retained, rows, is_late) = list(context);
            assert_eq!((retained.top.len(), retained.top_left_out.buffers, rows, is_late), (2, 0, 2, false));
            let (retained, rows, is_late) = list(&Context { deadline: Instant::now(), ..*context });
            assert_eq!((retained.top.len(), retained.top_left_out.buffers, rows, is_late), (0, 2, 0, true));
            Reading::default()
        });
    }
}
