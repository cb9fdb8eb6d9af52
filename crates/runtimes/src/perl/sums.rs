//! Sums over values, as threads add them up and as the figures want them.

use super::equal::Sample;
use super::facts::{Amount, BufferKind, Containers, Keeper, Strings};
use super::objects::{Head, Type, chunk_bytes};
use super::roots::{Buffer, Kept, LARGE_BYTES};
use crate::perl::layout::{HEAD_BYTES, Release, flags};
use strandline_claims::class::Slot;

/// The most buffers of values in no pad that are listed, and the most globs, of each thread.
const MAX_OTHERS: usize = 16 << 10;
const MAX_GLOBS: usize = 128 << 10;

/// Whose what is kept is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Lexicals'.
    Lexical,
    /// Operators' targets'.
    Temporary,
    /// Other variables'.
    Other,
    /// Of lexicals', the storage of arrays and hashes: counted there too.
    Container,
}

/// What the body would hold instead of a buffer (`Short`), and the most that the buffer of such a string has: what the
/// smallest of malloc's chunks can hold.
const MAX_SHORT_BYTES: u64 = 15;
const MAX_SHORT_BUFFER_BYTES: u64 = 24;

/// Sums over values.
#[derive(Default)]
pub struct Survey {
    /// Strings in use; shared ones by `cow`.
    pub strings: Strings,
    /// Of buffers with as many owners as its place says: how many values, and the sum of their `LEN`, of what is
    /// unused and of what malloc takes.
    cow: Vec<Shared>,
    /// Arrays and hashes.
    pub containers: Containers,
    /// What is kept, by [`Whose`].
    pub retained: [Amount; 4],
    /// Values in no pad that have a buffer and no value: of variables, or memory of code in C.
    pub others: Vec<Kept>,
    /// Globs: where what is in them lies, and their heads.
    pub globs: Vec<(u64, u64)>,
    /// Those that the list has no place for.
    pub others_left_out: u64,
    /// Of each arena of bodies: bodies in use, and their bytes on each page.
    pub used: Vec<(u32, [u16; 2])>,
    /// Hashes with keys of their own: table and last place.
    pub own_keys: Vec<(u64, u64)>,
    /// Entries of those.
    pub own_entries: u64,
    /// Entries of hashes in use.
    pub entries: u64,
    /// Bodies in use that can hold a string.
    pub string_bodies: u64,
    /// Values that do not hold together.
    pub damaged: u64,
    /// Values of which something could not be read.
    pub unread: u64,
    /// Arenas not read because time was over.
    pub arenas_left: u64,
    /// Strings that nobody shares, by hash.
    pub equal: Sample,
}

#[derive(Clone, Copy, Debug, Default)]
struct Shared {
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

    /// Adds all of another.
    pub fn join(&mut self, other: Self) {
        self.buffers += other.buffers;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl Survey {
    /// Adds a buffer that is kept; hands on its slot.
    pub fn retain(&mut self, whose: Whose, bytes: u64, slot: Slot) -> Slot {
        if let Some(amount) = self.retained.get_mut(whose as usize) {
            amount.add(bytes);
        }
        slot
    }

    /// Lists the buffer of a value in no pad that has none. Small ones leave half the list to large ones.
    pub fn other(&mut self, head: &Head, buffer: Buffer) {
        let most = if buffer.bytes > LARGE_BYTES { MAX_OTHERS } else { MAX_OTHERS / 2 };
        if self.others.len() >= most {
            self.others_left_out += 1;
            return;
        }
        self.others.push(Kept {
            head: head.address,
            pointer: buffer.pointer,
            bytes: buffer.bytes,
            kind: BufferKind::String,
            keeper: Keeper::Other,
            captured: false,
            sub: 0,
            depth: 0,
            name: 0,
            valueless: true,
        });
    }

    /// Lists a glob.
    pub fn glob(&mut self, head: &Head) {
        if self.globs.len() < MAX_GLOBS {
            self.globs.push((head.u, head.address));
        } else {
            self.others_left_out += 1;
        }
    }

    /// A buffer of its own, in use.
    pub fn own(&mut self, current: u64, bytes: u64, unused: u64, rounding: u64) {
        let strings = &mut self.strings;
        add(&mut strings.buffers, 1);
        add(&mut strings.capacity_bytes, bytes);
        add(&mut strings.unused_bytes, unused);
        add(&mut strings.header_bytes, 8);
        add(&mut strings.rounding_bytes, rounding);
        // One that had been longer has a buffer that is not short: it would have that one too.
        if current <= MAX_SHORT_BYTES && bytes <= MAX_SHORT_BUFFER_BYTES {
            add(&mut strings.short.strings, 1);
            add(&mut strings.short.chunk_bytes, chunk_bytes(bytes));
        }
    }

    /// One owner of a buffer that `others` own too.
    pub fn share(&mut self, others: u64, bytes: u64, unused: u64) {
        let place = usize::try_from(others).unwrap_or(0).min(255);
        if self.cow.len() <= place {
            self.cow.resize(place + 1, Shared::default());
        }
        if let Some(shared) = self.cow.get_mut(place) {
            add(&mut shared.values, 1);
            add(&mut shared.capacity_bytes, bytes);
            add(&mut shared.unused_bytes, unused);
            add(&mut shared.rounding_bytes, chunk_bytes(bytes) - 8 - bytes);
        }
    }

    /// A value that has a string.
    pub fn value(&mut self, (head, kind): (&Head, Type), current: u64, release: &Release) {
        let strings = &mut self.strings;
        add(&mut strings.values, 1);
        add(&mut strings.payload_bytes, current);
        add(&mut strings.head_bytes, HEAD_BYTES);
        add(&mut strings.body_bytes, head.body(kind, release).map_or(0, |body| body.1));
        add(&mut strings.utf8, u64::from(head.has(flags::UTF8)));
    }

    /// Adds another thread's.
    pub fn add(&mut self, other: Self) {
        add_strings(&mut self.strings, &other.strings);
        if self.cow.len() < other.cow.len() {
            self.cow.resize(other.cow.len(), Shared::default());
        }
        for (mine, theirs) in self.cow.iter_mut().zip(other.cow) {
            add(&mut mine.values, theirs.values);
            add(&mut mine.capacity_bytes, theirs.capacity_bytes);
            add(&mut mine.unused_bytes, theirs.unused_bytes);
            add(&mut mine.rounding_bytes, theirs.rounding_bytes);
        }
        let (mine, theirs) = (&mut self.containers, &other.containers);
        add(&mut mine.arrays, theirs.arrays);
        add(&mut mine.array_bytes, theirs.array_bytes);
        add(&mut mine.array_unused_bytes, theirs.array_unused_bytes);
        add(&mut mine.hashes, theirs.hashes);
        add(&mut mine.table_bytes, theirs.table_bytes);
        for (mine, theirs) in self.retained.iter_mut().zip(other.retained) {
            mine.join(theirs);
        }
        self.others.extend(other.others);
        self.globs.extend(other.globs);
        self.others_left_out += other.others_left_out;
        if self.used.is_empty() {
            self.used = other.used;
        } else {
            for (mine, theirs) in self.used.iter_mut().zip(other.used) {
                mine.0 += theirs.0;
                mine.1 = [mine.1[0].saturating_add(theirs.1[0]), mine.1[1].saturating_add(theirs.1[1])];
            }
        }
        self.own_keys.extend(other.own_keys);
        add(&mut self.own_entries, other.own_entries);
        add(&mut self.entries, other.entries);
        self.string_bodies += other.string_bodies;
        self.damaged += other.damaged;
        self.unread += other.unread;
        self.equal.join(other.equal);
    }

    /// Counts shared buffers once, and works out what follows from sums.
    pub fn settle(&mut self) {
        let strings = &mut self.strings;
        for (others, shared) in self.cow.iter().enumerate() {
            // All its owners are values, and each has been counted.
            let owners = others as u64 + 1;
            let once = shared.capacity_bytes / owners;
            let buffers = shared.values / owners;
            add(&mut strings.cow.buffers, buffers);
            add(&mut strings.cow.owners, shared.values);
            add(&mut strings.cow.shared_bytes, once);
            add(&mut strings.cow.saved_bytes, shared.capacity_bytes - once);
            add(&mut strings.buffers, buffers);
            add(&mut strings.capacity_bytes, once);
            add(&mut strings.unused_bytes, shared.unused_bytes / owners);
            add(&mut strings.header_bytes, 8 * buffers);
            add(&mut strings.rounding_bytes, shared.rounding_bytes / owners);
        }
        strings.equal = self.equal.figures();
        strings.short.extra_word_bytes = 8 * self.string_bodies;
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        strings.short.saved_bytes =
            signed(strings.short.chunk_bytes) - signed(strings.short.extra_word_bytes);
    }
}

fn add_strings(mine: &mut Strings, theirs: &Strings) {
    let pairs = [
        (&mut mine.values, theirs.values),
        (&mut mine.buffers, theirs.buffers),
        (&mut mine.payload_bytes, theirs.payload_bytes),
        (&mut mine.capacity_bytes, theirs.capacity_bytes),
        (&mut mine.unused_bytes, theirs.unused_bytes),
        (&mut mine.header_bytes, theirs.header_bytes),
        (&mut mine.rounding_bytes, theirs.rounding_bytes),
        (&mut mine.head_bytes, theirs.head_bytes),
        (&mut mine.body_bytes, theirs.body_bytes),
        (&mut mine.utf8, theirs.utf8),
        (&mut mine.offset, theirs.offset),
        (&mut mine.constants.buffers, theirs.constants.buffers),
        (&mut mine.constants.capacity_bytes, theirs.constants.capacity_bytes),
        (&mut mine.cow.key_values, theirs.cow.key_values),
        (&mut mine.short.strings, theirs.short.strings),
        (&mut mine.short.chunk_bytes, theirs.short.chunk_bytes),
    ];
    for (mine, theirs) in pairs {
        *mine = mine.saturating_add(theirs);
    }
}

/// Adds to a sum. What values say of their lengths is not believed, but its sum may be anything.
pub fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}
