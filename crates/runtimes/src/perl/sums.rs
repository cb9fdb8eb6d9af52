//! Sums over values, added up per thread and then for the figures.

use super::chunk::{SIZE_WORD_BYTES, chunk_bytes};
use super::equal::Sample;
use super::facts::{Amount, Containers, RetainedBuffers, Strings};
use super::keys::BucketTable;
use super::objects::{Head, Type};
use super::roots::{Buffer, LARGE_BYTES, RetainedBuffer};
use crate::perl::layout::{HEAD_BYTES, Layout, flags};
use crate::push_within;
use strandline_claims::add_fields;

/// Limit on the listed buffers of values in no pad, per thread.
const MAX_UNDEFINED: usize = 16 << 10;
/// Limit on the listed globs, per thread.
const MAX_GLOBS: usize = 128 << 10;
/// Upper bound on a string that the body could hold instead of a buffer (`ShortStrings`).
const MAX_SHORT_BYTES: u64 = 15;
/// Upper bound on the buffer of such a string: the capacity of malloc's smallest chunk.
const MAX_SHORT_BUFFER_BYTES: u64 = 24;
const WORD_BYTES: u64 = 8;

/// What retains a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetainedBy {
    /// A scalar lexical.
    Lexical,
    /// An array or a hash, which is a lexical.
    Container,
    /// An operator's target.
    Temporary,
    /// A package variable.
    Global,
}

/// A glob that has contents.
#[derive(Clone, Copy, Debug)]
pub struct Glob {
    /// Address of its contents (`struct gp`).
    pub contents: u64,
    /// Address of its head.
    pub head: u64,
}

/// Bodies in use of an arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsedBodies {
    /// Number of bodies.
    pub bodies: u32,
    /// Their bytes on the arena's first page, and behind it.
    pub bytes_on_pages: [u16; 2],
}

/// Sums over values.
#[derive(Default)]
pub struct SurveySums {
    /// Strings in use; shared buffers are in `by_other_owners` until [`Self::finish`].
    pub strings: Strings,
    /// Sums over values with shared buffers, indexed by the number of other owners.
    by_other_owners: Vec<SharedBuffers>,
    /// Arrays and hashes.
    pub containers: Containers,
    /// Retained buffers, without `page_bytes` and the list of the largest.
    pub retained: RetainedBuffers,
    /// Values in no pad that have a buffer and no value: variables, or memory of C code.
    pub undefined_values: Vec<RetainedBuffer>,
    pub globs: Vec<Glob>,
    /// Values, globs and hashes beyond the bounds.
    pub left_out_values: u64,
    /// The bodies in use of each arena of bodies.
    pub used_bodies: Vec<UsedBodies>,
    /// Tables of the hashes with their own keys.
    pub tables_with_own_keys: Vec<BucketTable>,
    /// Entries of these hashes.
    pub own_key_entries: u64,
    /// Bodies in use that can hold a string.
    pub string_bodies: u64,
    pub damaged_values: u64,
    /// Values that could not be read completely.
    pub unread_values: u64,
    /// Arenas that were not read before the deadline.
    pub unread_arenas: u64,
    /// Strings with their own buffers, by hash.
    pub equal_sample: Sample,
}

/// Sums over values with a shared buffer.
#[derive(Clone, Copy, Debug, Default)]
struct SharedBuffers {
    values: u64,
    capacity_bytes: u64,
    unused_bytes: u64,
    rounding_bytes: u64,
}

impl Amount {
    /// Adds a buffer.
    pub fn add(&mut self, bytes: u64) {
        self.buffers += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds another amount.
    pub fn join(&mut self, other: Self) {
        self.buffers += other.buffers;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl SurveySums {
    /// Counts a retained buffer.
    pub fn add_retained(&mut self, keeper: RetainedBy, bytes: u64) {
        let retained = &mut self.retained;
        retained.total.add(bytes);
        match keeper {
            RetainedBy::Lexical => retained.lexicals.add(bytes),
            RetainedBy::Container => {
                retained.lexicals.add(bytes);
                retained.containers.add(bytes);
            }
            RetainedBy::Temporary => retained.temporaries.add(bytes),
            RetainedBy::Global => retained.other.add(bytes),
        }
    }

    /// Lists the buffer of a value that is in no pad and has no value. Small buffers leave half of
    /// the list to large ones.
    pub fn add_undefined(&mut self, head: &Head, buffer: Buffer) {
        let max_listed = if buffer.bytes > LARGE_BYTES { MAX_UNDEFINED } else { MAX_UNDEFINED / 2 };
        let value = RetainedBuffer::undefined(head.address, buffer.pointer, buffer.bytes);
        self.left_out_values += u64::from(!push_within(&mut self.undefined_values, max_listed, value));
    }

    /// Lists a glob.
    pub fn add_glob(&mut self, head: &Head) {
        let glob = Glob { contents: head.u, head: head.address };
        self.left_out_values += u64::from(!push_within(&mut self.globs, MAX_GLOBS, glob));
    }

    /// Counts a buffer in use that is not shared.
    pub fn add_unshared(
        &mut self,
        length_bytes: u64,
        capacity_bytes: u64,
        unused_bytes: u64,
        rounding_bytes: u64,
    ) {
        let strings = &mut self.strings;
        add(&mut strings.buffers, 1);
        add(&mut strings.capacity_bytes, capacity_bytes);
        add(&mut strings.unused_bytes, unused_bytes);
        add(&mut strings.header_bytes, SIZE_WORD_BYTES);
        add(&mut strings.rounding_bytes, rounding_bytes);
        // A string that was longer keeps its larger buffer, and would keep it with short strings in
        // bodies, too.
        if length_bytes <= MAX_SHORT_BYTES && capacity_bytes <= MAX_SHORT_BUFFER_BYTES {
            add(&mut strings.short.strings, 1);
            add(&mut strings.short.chunk_bytes, chunk_bytes(capacity_bytes));
        }
    }

    /// Counts one of the owners of a buffer with `other_owners` more.
    pub fn add_shared(&mut self, other_owners: u8, capacity_bytes: u64, unused_bytes: u64) {
        let index = usize::from(other_owners);
        if self.by_other_owners.len() <= index {
            self.by_other_owners.resize(index + 1, SharedBuffers::default());
        }
        if let Some(shared) = self.by_other_owners.get_mut(index) {
            add(&mut shared.values, 1);
            add(&mut shared.capacity_bytes, capacity_bytes);
            add(&mut shared.unused_bytes, unused_bytes);
            add(&mut shared.rounding_bytes, chunk_bytes(capacity_bytes) - SIZE_WORD_BYTES - capacity_bytes);
        }
    }

    /// Counts a value that has a string.
    pub fn add_string(&mut self, head: &Head, kind: Type, length_bytes: u64, release: &Layout) {
        let strings = &mut self.strings;
        add(&mut strings.values, 1);
        add(&mut strings.payload_bytes, length_bytes);
        add(&mut strings.head_bytes, HEAD_BYTES);
        add(&mut strings.body_bytes, head.body_place(kind, release).map_or(0, |body| body.bytes));
        add(&mut strings.utf8, u64::from(head.has_flags(flags::UTF8)));
    }

    /// Adds the sums of another thread.
    pub fn add(&mut self, other: Self) {
        add_strings(&mut self.strings, &other.strings);
        if self.by_other_owners.len() < other.by_other_owners.len() {
            self.by_other_owners.resize(other.by_other_owners.len(), SharedBuffers::default());
        }
        for (mine, theirs) in self.by_other_owners.iter_mut().zip(other.by_other_owners) {
            add_fields!(saturating mine, theirs: values, capacity_bytes, unused_bytes, rounding_bytes);
        }
        let (mine, theirs) = (&mut self.containers, &other.containers);
        add_fields!(saturating mine, theirs: arrays, array_bytes, array_unused_bytes, hashes, table_bytes);
        let (mine, theirs) = (&mut self.retained, &other.retained);
        for (sum, amount) in [
            (&mut mine.total, theirs.total),
            (&mut mine.lexicals, theirs.lexicals),
            (&mut mine.containers, theirs.containers),
            (&mut mine.temporaries, theirs.temporaries),
            (&mut mine.other, theirs.other),
        ] {
            sum.join(amount);
        }
        self.undefined_values.extend(other.undefined_values);
        self.globs.extend(other.globs);
        if self.used_bodies.is_empty() {
            self.used_bodies = other.used_bodies;
        } else {
            for (mine, theirs) in self.used_bodies.iter_mut().zip(other.used_bodies) {
                mine.bodies = mine.bodies.saturating_add(theirs.bodies);
                for (sum, bytes) in mine.bytes_on_pages.iter_mut().zip(theirs.bytes_on_pages) {
                    *sum = sum.saturating_add(bytes);
                }
            }
        }
        self.tables_with_own_keys.extend(other.tables_with_own_keys);
        add(&mut self.own_key_entries, other.own_key_entries);
        add_fields!(self, other: left_out_values, string_bodies, damaged_values, unread_values);
        self.equal_sample.join(other.equal_sample);
    }

    /// Counts shared buffers once, and computes the derived figures.
    pub fn finish(&mut self) {
        let strings = &mut self.strings;
        for (other_owners, shared) in self.by_other_owners.iter().enumerate() {
            // All owners of a buffer are values, and each was counted.
            let owners = other_owners as u64 + 1;
            let bytes_once = shared.capacity_bytes / owners;
            let buffers = shared.values / owners;
            add(&mut strings.cow.buffers, buffers);
            add(&mut strings.cow.owners, shared.values);
            add(&mut strings.cow.shared_bytes, bytes_once);
            add(&mut strings.cow.saved_bytes, shared.capacity_bytes - bytes_once);
            add(&mut strings.buffers, buffers);
            add(&mut strings.capacity_bytes, bytes_once);
            add(&mut strings.unused_bytes, shared.unused_bytes / owners);
            add(&mut strings.header_bytes, SIZE_WORD_BYTES * buffers);
            add(&mut strings.rounding_bytes, shared.rounding_bytes / owners);
        }
        strings.equal = self.equal_sample.figures();
        strings.short.extra_word_bytes = WORD_BYTES * self.string_bodies;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        strings.short.saved_bytes =
            signed(strings.short.chunk_bytes) - signed(strings.short.extra_word_bytes);
    }
}

fn add_strings(mine: &mut Strings, theirs: &Strings) {
    add_fields!(saturating mine, theirs: values, buffers, payload_bytes, capacity_bytes, unused_bytes);
    add_fields!(saturating mine, theirs: header_bytes, rounding_bytes, head_bytes, body_bytes, utf8, offset);
    add(&mut mine.constants.buffers, theirs.constants.buffers);
    add(&mut mine.constants.capacity_bytes, theirs.constants.capacity_bytes);
    add(&mut mine.cow.key_values, theirs.cow.key_values);
    add(&mut mine.short.strings, theirs.short.strings);
    add(&mut mine.short.chunk_bytes, theirs.short.chunk_bytes);
}

/// Adds to a sum and saturates: the lengths come from the target and may be anything.
pub fn add(sum: &mut u64, addend: u64) {
    *sum = sum.saturating_add(addend);
}
