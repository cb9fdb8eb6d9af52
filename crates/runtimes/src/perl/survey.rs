//! Reads all values in one pass: their buffers, the bodies in use, and the memory of strings.
//!
//! Several threads read arenas of heads in address order, a few at a time. They read the body of
//! each value, and the last byte of the buffer of a shared string, which counts its other owners.
//! The survey keeps only sums over values, and claims buffers in the refinements.

use super::Slots;
use super::census::{self, ARENAS_PER_JOB};
use super::keys::BucketTable;
use super::objects::{BodyPlace, Head, SIZE_BITS, SIZE_WORD_BYTES, Storage, Type, chunk_bytes};
use super::roots::{self, Buffer, MAX_BUFFER_BYTES, Mark};
use super::spaces::{BodyArena, HeadArena};
use super::sums::{RetainedBy, SurveySums, UsedBodies, add};
use crate::batch::{Batch, PageCache};
use crate::perl::layout::{self as layout, HEAD_BYTES, Layout, flags};
use crate::work;
use std::time::Instant;
use strandline_claims::accumulator::Slot;
use strandline_claims::refinements::Refinements;
use strandline_process::memory::{Memory, WordPair};
use strandline_process::range::AddressRange;

/// Maximum number, per thread, of hashes with keys of their own that are read.
const MAX_HASHES: usize = 256 << 10;
/// Upper bound on the table of a hash: a larger one is damaged.
const MAX_TABLE_BYTES: u64 = 1 << 46;
/// Upper bound on the keys of a hash: more are damage.
const MAX_KEYS: u64 = 1 << 43;
/// From this size on malloc may give a buffer a mapping of its own, whose size is in its size word.
const MAPPED_BYTES: u64 = 128 << 10;
/// Upper bound on the bytes that such a mapping has more than its buffer needs.
const MAX_EXCESS_BYTES: u64 = 64 << 10;
/// Longer buffers are not read completely.
const MAX_READ_BYTES: u64 = 4608;
/// In a process with at most this many arenas of heads (a million and a half of values) all strings
/// are compared: reading those of a larger one would double the time that it is stopped.
const MAX_ARENAS_COMPARED: usize = 8192;
/// In a larger process the strings of one job in this many are compared.
const COMPARED_JOB_INTERVAL: usize = 8;
/// Bytes of a pair of words.
const PAIR_BYTES: u64 = 16;

/// Inputs of the survey, the same for all threads.
pub struct SurveyContext<'a> {
    /// The target's memory.
    pub memory: &'a dyn Memory,
    /// The target's layout.
    pub release: &'static Layout,
    /// Arenas of heads, in address order.
    pub heads: &'a [HeadArena],
    /// Arenas of bodies, in address order.
    pub bodies: &'a [BodyArena],
    /// Marks from the pads, sorted by address.
    pub marks: &'a [u64],
    /// `PL_strtab`: a hash whose entries are not in arenas.
    pub strtab: u64,
    /// Where buffers are claimed.
    pub refinements: &'a Refinements,
    /// The slots that they are claimed with.
    pub slots: Slots,
    /// When to stop.
    pub deadline: Instant,
    /// Number of threads.
    pub workers: usize,
    /// Called with the number of bytes read.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// Reads all values.
pub fn survey_values(context: &SurveyContext<'_>) -> SurveySums {
    let jobs = context.heads.len().div_ceil(ARENAS_PER_JOB);
    let (surveyors, unfinished) = work::run_jobs(
        context.workers,
        jobs,
        context.deadline,
        || Surveyor::new(context),
        Surveyor::survey_arenas,
    );
    let mut sums = SurveySums::default();
    for surveyor in surveyors {
        sums.add(surveyor.sums);
    }
    sums.arenas_left = (unfinished * ARENAS_PER_JOB) as u64;
    sums.finish();
    sums
}

/// One thread of the survey, with its sums and buffers that it uses again.
struct Surveyor<'a> {
    context: &'a SurveyContext<'a>,
    batch: Batch<'a>,
    pages: PageCache<'a>,
    sums: SurveySums,
    buffer: Vec<u8>,
    heads: Vec<Head>,
    values: Vec<Value>,
    addresses: Vec<u64>,
    pairs: Vec<Option<WordPair>>,
    /// Index of the arena of the last body.
    last_arena: usize,
    /// Whether the strings of the current job are compared.
    is_comparing: bool,
}

/// A value with storage besides its body.
#[derive(Clone, Copy)]
struct Value {
    head: Head,
    kind: Type,
    storage: Storage,
    mark: Option<Mark>,
    /// The two words of its body at `layout::CUR`; `None` if they could not be read. A string's
    /// length and the capacity of its buffer (`SvCUR`, `SvLEN`); an array's last element and the
    /// last for which it has room; a hash's number of keys and its last bucket; an object's last
    /// field.
    body: Option<WordPair>,
    /// Address of the storage of an array or an object; 0 for other values.
    storage_address: u64,
    /// Number of the other owners of a string's buffer; `None` if it could not be read.
    other_owners: Option<u64>,
}

impl Value {
    /// Whether its string may still be read, because no pad marks it as out of use.
    fn has_string_in_use(&self) -> bool {
        self.head.has_string() && !matches!(self.mark, Some(Mark::Lexical | Mark::Temporary))
    }
}

impl<'a> Surveyor<'a> {
    fn new(context: &'a SurveyContext<'a>) -> Self {
        let mut sums = SurveySums::default();
        sums.used.resize(context.bodies.len(), UsedBodies::default());
        Self {
            context,
            batch: Batch::new(context.memory),
            pages: PageCache::new(context.memory),
            sums,
            buffer: Vec::new(),
            heads: Vec::new(),
            values: Vec::new(),
            addresses: Vec::new(),
            pairs: Vec::new(),
            last_arena: 0,
            is_comparing: true,
        }
    }

    /// Surveys the values of `ARENAS_PER_JOB` arenas.
    fn survey_arenas(&mut self, job: usize) {
        self.values.clear();
        let is_comparing_all = self.context.heads.len() <= MAX_ARENAS_COMPARED;
        self.is_comparing = is_comparing_all || job.is_multiple_of(COMPARED_JOB_INTERVAL);
        let mut bytes = 0;
        for arena in self.context.heads.iter().skip(job * ARENAS_PER_JOB).take(ARENAS_PER_JOB) {
            bytes += arena.bytes();
            let mut heads = std::mem::take(&mut self.heads);
            census::read_heads(self.context.memory, arena, &mut self.buffer, &mut heads);
            self.collect(arena, &heads);
            self.heads = heads;
        }
        self.read_bodies();
        self.read_owners();
        self.read_texts();
        let values = std::mem::take(&mut self.values);
        for value in &values {
            match value.storage {
                Storage::String => self.count_string(value),
                Storage::Array => self.count_array(value),
                Storage::Hash => self.count_hash(value),
                Storage::Object => self.claim_fields(value),
                Storage::Plain | Storage::Sub => {}
            }
        }
        self.values = values;
        (self.context.progress)(bytes);
    }

    /// Counts bodies in use, and collects the values whose storage is read.
    fn collect(&mut self, arena: &HeadArena, heads: &[Head]) {
        let marks = self.context.marks;
        let from = marks.partition_point(|&mark| mark < arena.address);
        let to = marks.partition_point(|&mark| mark < arena.address + arena.bytes());
        let mut marks = marks.get(from..to).unwrap_or(&[]).iter().map(|&mark| Mark::split(mark)).peekable();
        for &head in heads {
            if head.is_free() {
                continue;
            }
            let Some(kind) = head.kind(self.context.release) else { continue };
            self.count_body(&head, kind);
            let storage = head.storage(kind);
            if kind == Type::PvGv && storage == Storage::Plain && head.u != 0 {
                self.sums.add_glob(&head);
            }
            if matches!(storage, Storage::Plain | Storage::Sub) {
                continue;
            }
            while marks.next_if(|mark| mark.0 < head.address).is_some() {}
            let mark = marks.next_if(|mark| mark.0 == head.address).and_then(|mark| mark.1);
            self.values.push(Value {
                head,
                kind,
                storage,
                mark,
                body: None,
                storage_address: 0,
                other_owners: Some(0),
            });
        }
    }

    /// Counts a body in use in its arena.
    fn count_body(&mut self, head: &Head, kind: Type) {
        let Some(BodyPlace { start, bytes }) = head.body(kind, self.context.release) else { return };
        self.sums.string_bodies += u64::from(kind.can_hold_string());
        let bodies = self.context.bodies;
        let has_slot =
            |&index: &usize| bodies.get(index).is_some_and(|arena| arena.has_slot_at(start, bytes));
        // Values made one after the other usually have bodies in one arena.
        let last = Some(self.last_arena).filter(has_slot);
        let Some(index) = last.or_else(|| census::arena_before(bodies, start).filter(has_slot)) else {
            self.sums.damaged += 1;
            return;
        };
        self.last_arena = index;
        if let (Some(arena), Some(used)) = (bodies.get(index), self.sums.used.get_mut(index)) {
            let on_pages = arena.bytes_by_page(start - arena.address, bytes);
            used.bodies += 1;
            for (sum, bytes) in used.bytes_on_pages.iter_mut().zip(on_pages) {
                *sum = sum.saturating_add(u16::try_from(bytes).unwrap_or(u16::MAX));
            }
        }
    }

    /// Reads the bodies of all values, and the addresses of the storage of arrays and objects.
    fn read_bodies(&mut self) {
        self.addresses.clear();
        self.addresses.extend(self.values.iter().map(|value| value.head.any.wrapping_add(layout::CUR)));
        self.batch.pairs(&self.addresses, &mut self.pairs);
        for (value, pair) in self.values.iter_mut().zip(&self.pairs) {
            value.body = *pair;
        }
        const { assert!(layout::CUR == layout::ARRAY_FILL && layout::CUR == layout::HASH_KEYS) };
        const { assert!(layout::CUR == layout::OBJECT_MAXFIELD && layout::ARRAY_ALLOC == layout::OBJECT_FIELDS) };
        self.read_pairs(
            |value| matches!(value.storage, Storage::Array | Storage::Object),
            |value| value.head.any.wrapping_add(layout::ARRAY_ALLOC - 8),
            |value, (_, address)| value.storage_address = address,
        );
    }

    /// Reads a pair of words at the `address` of each value that `is_selected`, and passes it to
    /// `set`.
    fn read_pairs(
        &mut self,
        is_selected: impl Fn(&Value) -> bool,
        address: impl Fn(&Value) -> u64,
        set: impl Fn(&mut Value, WordPair),
    ) {
        self.addresses.clear();
        self.addresses.extend(self.values.iter().filter(|value| is_selected(value)).map(address));
        self.batch.pairs(&self.addresses, &mut self.pairs);
        for (value, pair) in self.values.iter_mut().filter(|value| is_selected(value)).zip(&self.pairs) {
            match pair {
                Some(pair) => set(value, *pair),
                None => value.body = None,
            }
        }
    }

    /// Reads the last bytes of shared buffers that are not read completely, which count their other
    /// owners.
    fn read_owners(&mut self) {
        let cow_flag = self.context.release.cow_flag();
        let is_comparing = self.is_comparing;
        let capacity = |value: &Value| value.body.map_or(0, |(_, capacity)| capacity);
        let is_selected = move |value: &Value| {
            let is_read_completely = is_comparing && capacity(value) <= MAX_READ_BYTES;
            value.storage == Storage::String && value.head.flags & cow_flag != 0 && !is_read_completely
        };
        let last_byte = |value: &Value| value.head.u.wrapping_add(capacity(value)).wrapping_sub(1);
        let set_owners = |value: &mut Value, (first, second): WordPair| {
            let offset = last_byte(value) % PAIR_BYTES;
            let word = if offset < 8 { first } else { second };
            value.other_owners = Some((word >> (offset % 8 * 8)) & 0xff);
        };
        self.read_pairs(is_selected, |value| last_byte(value) & !(PAIR_BYTES - 1), set_owners);
    }

    /// Reads short strings: the last byte of a shared buffer counts its other owners, and strings
    /// in use that are not shared are compared.
    fn read_texts(&mut self) {
        if !self.is_comparing {
            return;
        }
        let cow_flag = self.context.release.cow_flag();
        // The range of each text, and the index of its value.
        let mut texts = Vec::new();
        let mut indices = Vec::new();
        for (index, value) in self.values.iter_mut().enumerate() {
            let Some((length, capacity)) = value.body.filter(|_| value.storage == Storage::String) else {
                continue;
            };
            let is_cow = value.head.flags & cow_flag != 0;
            let is_read = value.has_string_in_use() || is_cow;
            if length >= capacity || capacity > MAX_READ_BYTES || !is_read {
                continue;
            }
            if is_cow {
                value.other_owners = None;
            }
            texts.push(AddressRange::sized(value.head.u, if is_cow { capacity } else { length }));
            indices.push(index);
        }
        let (values, equal) = (&mut self.values, &mut self.sums.equal);
        self.batch.bytes(&texts, &mut |text_index, bytes| {
            let Some(value) = indices.get(text_index).and_then(|&index| values.get_mut(index)) else {
                return;
            };
            let Some((length, _)) = value.body else { return };
            if value.head.flags & cow_flag != 0 {
                value.other_owners = bytes.last().copied().map(u64::from);
            }
            let text = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
            if let Some(text) = text.filter(|_| value.other_owners == Some(0) && value.has_string_in_use()) {
                equal.add(text, length);
            }
        });
    }

    /// Counts a string, and claims its buffer.
    fn count_string(&mut self, value: &Value) {
        let head = &value.head;
        let (Some((length, capacity)), Some(other_owners)) = (value.body, value.other_owners) else {
            self.sums.unread += 1;
            return;
        };
        if capacity == 0 {
            return self.count_bufferless_string(head, length);
        }
        let buffer = self.string_buffer(head, capacity).filter(|_| length < capacity);
        let Some(buffer) = buffer else {
            self.sums.damaged += 1;
            return;
        };
        let unused = buffer.bytes - length - 1;
        if other_owners > 0 {
            self.claim(buffer, self.context.slots.shared);
            self.sums.add_shared(other_owners, buffer.bytes, unused);
        } else {
            if !self.claim_unshared(value, buffer) {
                return;
            }
            let rounding_bytes = self.rounding_bytes(buffer);
            self.sums.add_unshared(length, buffer.bytes, unused, rounding_bytes);
            if capacity > MAX_READ_BYTES || !self.is_comparing {
                self.sums.equal.skip(length);
            }
        }
        if head.has_string() {
            self.sums.add_string(head, value.kind, length, self.context.release);
            add(&mut self.sums.strings.offset, u64::from(head.has_flags(flags::OOK)));
        }
    }

    /// The buffer of a string, including the part before its start that `OOK` hides; `None` if its
    /// size is impossible.
    fn string_buffer(&mut self, head: &Head, capacity: u64) -> Option<Buffer> {
        let hidden = if head.has_flags(flags::OOK) { roots::ook_offset(&mut self.pages, head.u)? } else { 0 };
        let buffer = Buffer { pointer: head.u.checked_sub(hidden)?, bytes: capacity.checked_add(hidden)? };
        Some(buffer).filter(|buffer| buffer.bytes < MAX_BUFFER_BYTES)
    }

    /// Claims a buffer that is not shared. Returns whether it holds a string in use.
    fn claim_unshared(&mut self, value: &Value, buffer: Buffer) -> bool {
        let (head, slots, bytes) = (&value.head, self.context.slots, buffer.bytes);
        let (slot, is_in_use) = match value.mark {
            Some(Mark::Lexical) => (self.sums.retain(RetainedBy::Lexical, bytes, slots.pad), false),
            Some(Mark::Temporary) => (self.sums.retain(RetainedBy::Temporary, bytes, slots.pad), false),
            // A number that keeps the buffer of its former string, or memory that C code holds: in
            // use, but no string. It stays with malloc.
            _ if !head.has_string() && head.has_value() => return false,
            // A variable's buffer, or memory that C code holds: distinguished later, by globs.
            _ if !head.has_string() => {
                self.sums.add_undefined(head, buffer);
                return false;
            }
            // With ithreads constants of code are in pads. Without, code points to them directly:
            // those that the compiler computed are marked as an operator's (PADTMP, op.c, since
            // 5.20); literals cannot be distinguished from variables that a program made read-only,
            // and count as strings.
            mark if mark == Some(Mark::Constant) || head.has_flags(flags::READONLY | flags::PADTMP) => {
                add(&mut self.sums.strings.constants.buffers, 1);
                add(&mut self.sums.strings.constants.capacity_bytes, bytes);
                (slots.constant, true)
            }
            _ => (slots.string, true),
        };
        self.claim(buffer, slot);
        is_in_use
    }

    /// Counts a string without a buffer: a shared key, or static text.
    fn count_bufferless_string(&mut self, head: &Head, length: u64) {
        if !head.has_string() {
            return;
        }
        let strings = &mut self.sums.strings;
        add(&mut strings.values, 1);
        strings.payload_bytes = strings.payload_bytes.saturating_add(length.min(MAX_BUFFER_BYTES));
        add(&mut strings.head_bytes, HEAD_BYTES);
        add(&mut strings.utf8, u64::from(head.has_flags(flags::UTF8)));
        add(&mut strings.cow.key_values, u64::from(head.flags & self.context.release.cow_flag() != 0));
    }

    /// Bytes that malloc adds to round up: from its size word if the buffer may be a mapping of its
    /// own.
    fn rounding_bytes(&mut self, buffer: Buffer) -> u64 {
        let usual = chunk_bytes(buffer.bytes);
        let stated = (buffer.bytes >= MAPPED_BYTES)
            .then(|| self.pages.word(buffer.pointer.wrapping_sub(SIZE_WORD_BYTES)))
            .flatten()
            .map(|size| size & !SIZE_BITS)
            .filter(|&size| size >= usual && size <= usual.saturating_add(MAX_EXCESS_BYTES));
        stated.unwrap_or(usual) - SIZE_WORD_BYTES - buffer.bytes
    }

    /// Counts an array, and claims its storage.
    fn count_array(&mut self, value: &Value) {
        let Some((fill, last)) = value.body else {
            self.sums.unread += 1;
            return;
        };
        if value.storage_address == 0 {
            return;
        }
        let Some(bytes) = roots::array_bytes(value.head.u, value.storage_address, last) else {
            self.sums.damaged += 1;
            return;
        };
        let elements = fill.wrapping_add(1);
        let slots = self.context.slots;
        let slot = if value.mark == Some(Mark::Lexical) {
            self.sums.retain(RetainedBy::Container, bytes, slots.pad)
        } else {
            let containers = &mut self.sums.containers;
            add(&mut containers.arrays, 1);
            add(&mut containers.array_bytes, bytes);
            add(&mut containers.array_unused_bytes, bytes.saturating_sub(elements.saturating_mul(8)));
            slots.container
        };
        self.claim(Buffer { pointer: value.storage_address, bytes }, slot);
    }

    /// Counts a hash, and claims its table. Hashes with keys of their own are listed, to be read
    /// later.
    fn count_hash(&mut self, value: &Value) {
        let Some((keys, last)) = value.body else {
            self.sums.unread += 1;
            return;
        };
        let table = value.head.u;
        let bytes = last
            .checked_add(1)
            .and_then(|count| count.checked_mul(8))
            .filter(|&bytes| bytes < MAX_TABLE_BYTES);
        let Some(bytes) = bytes.filter(|_| keys < MAX_KEYS) else {
            self.sums.damaged += 1;
            return;
        };
        if table == 0 {
            return;
        }
        let release = self.context.release;
        let has_aux_behind = value.head.has_flags(flags::OOK) && !release.has_aux_in_body();
        let bytes = bytes + if has_aux_behind { release.aux_bytes() } else { 0 };
        let slots = self.context.slots;
        let slot = if value.mark == Some(Mark::Lexical) {
            self.sums.retain(RetainedBy::Container, bytes, slots.pad)
        } else {
            add(&mut self.sums.containers.hashes, 1);
            add(&mut self.sums.containers.table_bytes, bytes);
            slots.container
        };
        self.claim(Buffer { pointer: table, bytes }, slot);
        if value.head.address == self.context.strtab {
            return;
        }
        if keys > 0 && !value.head.has_flags(flags::SHARE_KEYS) {
            if self.sums.own_keys.len() < MAX_HASHES {
                add(&mut self.sums.own_entries, keys);
                self.sums.own_keys.push(BucketTable { address: table, last });
            } else {
                self.sums.left_out += 1;
            }
        }
    }

    /// Claims the fields of an object.
    fn claim_fields(&mut self, value: &Value) {
        let Some((last, _)) = value.body else {
            self.sums.unread += 1;
            return;
        };
        let bytes = last.wrapping_add(1).saturating_mul(8);
        if value.storage_address != 0 && bytes > 0 && bytes < MAX_BUFFER_BYTES {
            self.claim(Buffer { pointer: value.storage_address, bytes }, self.context.slots.container);
        }
    }

    fn claim(&mut self, buffer: Buffer, slot: Slot) {
        self.context.refinements.claim(buffer.pointer, buffer.bytes, slot);
    }
}
