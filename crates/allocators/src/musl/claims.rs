//! Classifies each byte of a group: slots in use, free slots, and groups nested in slots.

use super::counts::Counts;
use super::forward::ForwardReader;
use super::layout::{
    Group, HEADER_BYTES, OFFSET_PERIOD, SlotContent, UNIT_BYTES, block_offset, has_offset,
    has_reserve_at_end, is_moved, parse_slot,
};
use crate::blocks::{Blocks, claim_range};
use crate::parallel::{Claimed, PART_BYTES, Totals};
use crate::scan::is_unclaimed;
use strandline_claims::accumulator::{Accumulator, Class};
use strandline_claims::allocator::Context;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::work::in_order;

/// Maximum number of offsets tried to find a block; enough for blocks aligned to 64 GiB.
const MAX_OFFSETS_TRIED: u64 = 1 << 16;
/// Maximum depth of nested groups; musl nests them at most four deep.
const MAX_DEPTH: u32 = 8;

/// Claims all of `groups` (in address order) outside `taken` (claimed by others).
pub fn claim(context: &Context<'_>, groups: &[Group], taken: &RangeSet) -> Claimed<Counts> {
    // Nested groups are claimed with the group that contains them.
    let mut outer_end = 0;
    let outer_groups: Vec<Group> = groups
        .iter()
        .filter(|group| {
            let is_outer = group.start >= outer_end;
            outer_end = outer_end.max(group.end());
            is_outer
        })
        .copied()
        .collect();
    let parts: Vec<&[Group]> =
        outer_groups.chunk_by(|group, next| group.start / PART_BYTES == next.start / PART_BYTES).collect();
    let results =
        in_order(parts.len(), context.workers, |part| claim_part(context, groups, parts[part], taken));
    Claimed::sum(results)
}

/// Claims the outer groups `part` and those of `groups` that are nested in them.
fn claim_part(context: &Context<'_>, groups: &[Group], part: &[Group], taken: &RangeSet) -> Claimed<Counts> {
    let mut claimer = Claimer {
        groups,
        memory: ForwardReader::new(context.memory),
        blocks: Blocks::new(context),
        counts: Counts::default(),
    };
    let mut claims = Vec::new();
    for group in part {
        if context.deadline_passed() {
            claimer.counts.doubts.note_timeout(group.start);
            break;
        }
        let range = AddressRange::new(group.start, group.end());
        let is_claimable = is_unclaimed(context, taken, range);
        // Memory that the loader donated is static data of a program. It is counted, but stays on
        // the row of that data.
        let is_donated = group.mapped_bytes.is_none()
            && context
                .space
                .find(range.start)
                .is_some_and(|mapping| mapping.has_file() && range.end <= mapping.end);
        if !is_claimable && !is_donated {
            claimer.note_damage(range.start);
            continue;
        }
        let claim = claim_range(context, range, |accumulator| claimer.claim_group(group, accumulator, 0));
        if is_claimable {
            (context.progress)(range.len());
            claims.push(claim);
        }
    }
    let counts = claimer.counts.with_matches(claimer.blocks.matched, claimer.memory.bytes_read);
    Claimed { claims, counts }
}

struct Claimer<'a> {
    groups: &'a [Group],
    memory: ForwardReader<'a>,
    blocks: Blocks<'a>,
    counts: Counts,
}

impl Claimer<'_> {
    fn note_damage(&mut self, at: u64) {
        self.counts.doubts.note_damage(at, 0);
    }

    /// Claims a group, from the cursor on; it is nested in `depth` others.
    fn claim_group(&mut self, group: &Group, accumulator: &mut Accumulator<'_>, depth: u32) {
        // The first word of a group points back to its meta.
        let meta = self.memory.read(group.start).map(u64::from_le_bytes);
        if meta != Some(group.meta) || depth > MAX_DEPTH {
            self.note_damage(group.start);
            accumulator.claim_to(group.end(), Class::Unread);
            return;
        }
        accumulator.claim_to(group.start + UNIT_BYTES, Class::Metadata);
        self.counts.head_bytes += UNIT_BYTES;
        if let Some(class) = group.class {
            let totals = self.counts.classes.entry(class).or_default();
            totals.bytes = group.stride - HEADER_BYTES;
            totals.spans += 1;
            totals.span_bytes += group.end() - group.start;
        }
        for index in 0..group.slots {
            let (start, end) = (group.slot_address(index), group.slot_address(index) + group.stride);
            if group.is_free(index) {
                self.counts.free_bytes += group.stride;
                if let Some(totals) = group.class.and_then(|class| self.counts.classes.get_mut(&class)) {
                    totals.free_blocks += 1;
                }
                accumulator.claim_to(end, Class::Free);
                continue;
            }
            match self.slot_content(start, group.stride) {
                Some(SlotContent::Group) => self.claim_nested(start, end, accumulator, depth),
                Some(SlotContent::Block { offset, bytes }) => {
                    self.claim_block(AddressRange::new(start, end), offset, bytes, group, accumulator);
                }
                None => {
                    self.note_damage(start);
                    accumulator.claim_to(end, Class::Unread);
                }
            }
        }
        accumulator.claim_to(group.end(), Class::Header);
    }

    /// Returns the content of the slot in use at `start`.
    fn slot_content(&mut self, start: u64, stride: u64) -> Option<SlotContent> {
        let mut header: [u8; 4] = self.memory.read(start - HEADER_BYTES)?;
        let mut offset = block_offset(header);
        if is_moved(header) && stride > OFFSET_PERIOD {
            // Without a far offset that fits, the header's own is checked like any other.
            offset = self.far_offset(start, offset, stride).unwrap_or(offset);
        }
        if offset > 0 {
            header = self.memory.read((start + offset).checked_sub(HEADER_BYTES)?)?;
        }
        let reserve = if has_reserve_at_end(header) {
            self.memory.read(start + stride - 2 * HEADER_BYTES)?
        } else {
            [0; 4]
        };
        parse_slot(header, offset, reserve, stride)
    }

    /// Returns the offset of the block in a slot that is longer than 16-bit offsets cover; such a
    /// slot is the only one of its group.
    fn far_offset(&mut self, start: u64, first_offset: u64, stride: u64) -> Option<u64> {
        let steps = (stride / OFFSET_PERIOD).min(MAX_OFFSETS_TRIED);
        let offsets = (0..=steps).map(|step| first_offset + step * OFFSET_PERIOD);
        offsets.take_while(|&offset| offset < stride).find(|&offset| {
            let header_at = start + offset - HEADER_BYTES;
            let before_header = self.memory.read(header_at - HEADER_BYTES);
            let header = self.memory.read(header_at);
            let (Some(before_header), Some(header)) = (before_header, header) else { return false };
            has_offset(before_header, header, offset)
        })
    }

    /// Claims the slot in `start..end`, which holds a group.
    fn claim_nested(&mut self, start: u64, end: u64, accumulator: &mut Accumulator<'_>, depth: u32) {
        let first = self.groups.partition_point(|group| group.start < start);
        let is_nested =
            |group: &&Group| group.start < end && group.end() <= end && group.mapped_bytes.is_none();
        // A group begins where a block would: at one of the offsets of the slot.
        match self.groups.get(first).filter(is_nested).copied() {
            Some(group) => {
                accumulator.claim_to(group.start, Class::Header);
                self.claim_group(&group, accumulator, depth + 1);
                accumulator.claim_to(end, Class::Header);
            }
            None => {
                self.note_damage(start);
                accumulator.claim_to(end, Class::Unread);
            }
        }
    }

    /// Claims the slot that holds a block of `bytes` at `offset`.
    fn claim_block(
        &mut self,
        slot: AddressRange,
        offset: u64,
        bytes: u64,
        group: &Group,
        accumulator: &mut Accumulator<'_>,
    ) {
        self.counts.live_blocks += 1;
        self.counts.live_bytes += bytes;
        match group.class.and_then(|class| self.counts.classes.get_mut(&class)) {
            Some(totals) => totals.live_blocks += 1,
            None => self.counts.mapped_blocks += 1,
        }
        let pointer = slot.start + offset;
        accumulator.claim_to(pointer, Class::Header);
        self.blocks.claim(pointer + bytes, accumulator);
        accumulator.claim_to(slot.end, Class::Header);
    }
}
