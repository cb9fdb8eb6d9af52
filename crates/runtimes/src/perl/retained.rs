//! Lists retained buffers by name, with the pages that freeing them releases.

use std::time::Instant;

use super::Slots;
use super::chunk::Chunk;
use super::facts::{self, Keeper, RetainedBuffers};
use super::names::Names;
use super::roots::{Buffer, RetainedBuffer};
use crate::batch::PageCache;
use strandline_claims::runtime::{Context, NamedBlock};

/// Limit on the buffers listed by name.
const MAX_LISTED: usize = 4096;

/// Retained buffers that are listed by name.
#[derive(Debug, Default)]
pub struct ListedBuffers {
    /// Their claims, each with its own holder.
    pub named_blocks: Vec<NamedBlock>,
    /// Whether all buffers were seen before the deadline: otherwise `page_bytes` lacks the others'.
    pub is_complete: bool,
}

/// Fills in `top`, `top_left_out` and `page_bytes` of `retained` from the large buffers. Returns
/// the listed ones.
pub fn list_largest(
    context: &Context<'_>,
    slots: Slots,
    pages: &mut PageCache<'_>,
    names: &mut Names<'_>,
    mut retained_buffers: Vec<RetainedBuffer>,
    retained: &mut RetainedBuffers,
) -> ListedBuffers {
    retained_buffers.sort_unstable_by_key(|buffer| (std::cmp::Reverse(buffer.bytes), buffer.head));
    let mut named_blocks = Vec::new();
    let mut is_late = false;
    for (index, buffer) in retained_buffers.iter().enumerate() {
        // Hostile buffers may each span all of memory.
        is_late = is_late || Instant::now() >= context.deadline;
        let page_bytes = if is_late { 0 } else { releasable_bytes(context, pages, buffer) };
        // Damaged buffers may overlap.
        retained.page_bytes = retained.page_bytes.saturating_add(page_bytes);
        if is_late || index >= MAX_LISTED {
            retained.top_left_out.add(buffer.bytes);
            continue;
        }
        let buffer_facts = describe(names, buffer, page_bytes);
        let slot = if buffer.keeper == Keeper::Global { slots.global_retained } else { slots.pad_retained };
        let RetainedBuffer { pointer, bytes, .. } = *buffer;
        named_blocks.push(NamedBlock { pointer, bytes, slot, holder: buffer_facts.holder.clone() });
        retained.top.push(buffer_facts);
    }
    ListedBuffers { named_blocks, is_complete: !is_late }
}

/// Describes a buffer, with the names of its sub and its variable.
fn describe(names: &mut Names<'_>, buffer: &RetainedBuffer, page_bytes: u64) -> facts::Buffer {
    let sub = buffer.pad.and_then(|pad| names.sub(pad.sub));
    let name = buffer.name.and_then(|name| match buffer.keeper {
        Keeper::Global => names.global(name),
        Keeper::Lexical | Keeper::Temporary => names.lexical(name),
    });
    let is_closure = sub.as_ref().is_some_and(|sub| sub.is_closure);
    let closure = buffer.pad.filter(|_| is_closure).map(|pad| format!("{:#x}", pad.sub));
    let sub_name = sub.map(|sub| sub.name);
    let depth = buffer.pad.map(|pad| pad.depth);
    let mut pad_text = depth.map_or_else(|| "no pad".to_owned(), |depth| format!("depth {depth}"));
    if let Some(closure) = &closure {
        pad_text += &format!(", closure at {closure}");
    }
    let sub_or_unnamed = sub_name.as_deref().unwrap_or("an unnamed sub");
    let holder = match (buffer.keeper, &name) {
        (Keeper::Global, Some(global)) => global.clone(),
        (Keeper::Global, None) => format!("a package variable, head at {:#x}", buffer.head),
        (Keeper::Lexical, Some(lexical)) => format!("{sub_or_unnamed} {lexical} ({pad_text})"),
        (Keeper::Lexical, None) => format!("{sub_or_unnamed} (a lexical, {pad_text})"),
        (Keeper::Temporary, _) => format!("{sub_or_unnamed} (a temporary, {pad_text})"),
    };
    facts::Buffer {
        holder,
        keeper: buffer.keeper,
        kind: buffer.kind,
        sub: sub_name,
        lexical: name.filter(|_| buffer.keeper == Keeper::Lexical),
        depth,
        closure,
        head: format!("{:#x}", buffer.head),
        address: format!("{:#x}", buffer.pointer),
        bytes: buffer.bytes,
        valueless: buffer.is_valueless,
        page_bytes,
    }
}

/// Resident bytes that freeing the buffer releases.
fn releasable_bytes(context: &Context<'_>, pages: &mut PageCache<'_>, buffer: &RetainedBuffer) -> u64 {
    let RetainedBuffer { pointer, bytes, .. } = *buffer;
    context.resident_bytes(Chunk::of(pages, Buffer { pointer, bytes }).releasable_pages(pointer))
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
    fn list(context: &Context<'_>) -> (RetainedBuffers, ListedBuffers) {
        let retained_buffer = |head| RetainedBuffer::undefined(head, 1 << 20, 1 << 45);
        let slots = Slots::new(&Refinements::new(Vec::<AddressRange>::new())).unwrap();
        let mut pages = PageCache::new(context.memory);
        let mut names = Names::new(PageCache::new(context.memory), RELEASES.last().unwrap(), 0);
        let mut retained = RetainedBuffers::default();
        let retained_buffers = vec![retained_buffer(8), retained_buffer(16)];
        let listed = list_largest(context, slots, &mut pages, &mut names, retained_buffers, &mut retained);
        (retained, listed)
    }

    #[test]
    fn buffers_are_left_out_after_the_deadline() {
        fabricated::read_image(&Image::default(), "", 0, |context, _| {
            let (retained, listed) = list(context);
            assert!(listed.is_complete);
            assert_eq!((retained.top.len(), listed.named_blocks.len()), (2, 2));
            assert_eq!(retained.top_left_out.buffers, 0);
            let (retained, listed) = list(&Context { deadline: Instant::now(), ..*context });
            assert!(!listed.is_complete);
            assert_eq!((retained.top.len(), listed.named_blocks.len()), (0, 0));
            assert_eq!(retained.top_left_out.buffers, 2);
            Reading::default()
        });
    }
}
