//! Reads all values in one pass: their buffers, the bodies in use, and the memory of strings.
//!
//! Several threads read arenas of heads in address order, a few at a time. They read each value's
//! body, and the last byte of the buffer of a shared string, which counts its other owners.
//! Values are only summed; buffers are claimed in the refinements.

use super::Slots;
use super::census::{self, ARENAS_PER_JOB};
use super::keys::BucketTable;
use super::objects::{BodyPlace, Head, Storage, Type, chunk_bytes};
use super::roots::{self, Buffer, MAX_BUFFER_BYTES, Mark};
use super::spaces::{BodyArena, HeadArena};
use super::sums::{RetainedBy, SurveySums, add};
use crate::batch::{Batch, PageCache};
use crate::perl::layout::{self as layout, HEAD_BYTES, Layout, flags};
use crate::work;
use std::time::Instant;
use strandline_claims::refinements::Refinements;
use strandline_process::memory::{Memory, WordPair};
use strandline_process::range::AddressRange;

/// Upper bound on the hashes with their own keys that are read.
const MAX_HASHES: usize = 256 << 10;
/// From this size on malloc may give a buffer its own mapping, whose size is in its size word.
const MAPPED_BYTES: u64 = 128 << 10;
/// Longer buffers are not read completely.
const MAX_READ_BYTES: u64 = 4608;
/// All strings are compared in a process with at most `ARENAS_COMPARED` arenas (a million and a
/// half of values), otherwise those of one job in `COMPARED_ONE_IN`: reading them all would double
/// the time that the target is stopped.
const ARENAS_COMPARED: usize = 8192;
const COMPARED_ONE_IN: usize = 8;
/// Stands for the owners of a buffer that could not be read.
const OWNERS_UNKNOWN: u64 = u64::MAX;

/// Inputs of the survey, the same for all threads.
pub struct SurveyContext<'a> {
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
    pub deadline: Instant,
    pub workers: usize,
    /// Called with the number of bytes read.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// Reads all values.
pub fn survey_values(context: &SurveyContext<'_>) -> SurveySums {
    let jobs = context.heads.len().div_ceil(ARENAS_PER_JOB);
    let (surveyors, left) =
        work::run_jobs(context.workers, jobs, context.deadline, || Surveyor::new(context), Surveyor::job);
    let mut all = SurveySums::default();
    for surveyor in surveyors {
        all.add(surveyor.survey);
    }
    all.arenas_left = (left * ARENAS_PER_JOB) as u64;
    all.finish();
    all
}

struct Surveyor<'a> {
    context: &'a SurveyContext<'a>,
    batch: Batch<'a>,
    pages: PageCache<'a>,
    survey: SurveySums,
    buffer: Vec<u8>,
    heads: Vec<Head>,
    values: Vec<Value>,
    addresses: Vec<u64>,
    pairs: Vec<Option<WordPair>>,
    last_arena: usize,
    /// Whether the strings of the current job are compared.
    compares: bool,
}

/// A value with storage besides its body.
#[derive(Clone, Copy)]
struct Value {
    head: Head,
    kind: Type,
    shape: Storage,
    mark: Option<Mark>,
    /// The two words of its body at `layout::CUR`.
    body: Option<WordPair>,
    /// For arrays and objects, the address of their storage; for shared strings, the number of
    /// other owners.
    third_word: u64,
}

impl<'a> Surveyor<'a> {
    fn new(context: &'a SurveyContext<'a>) -> Self {
        let mut survey = SurveySums::default();
        survey.used.resize(context.bodies.len(), (0, [0; 2]));
        Self {
            context,
            batch: Batch::new(context.memory),
            pages: PageCache::new(context.memory),
            survey,
            buffer: Vec::new(),
            heads: Vec::new(),
            values: Vec::new(),
            addresses: Vec::new(),
            pairs: Vec::new(),
            last_arena: 0,
            compares: true,
        }
    }

    fn job(&mut self, number: usize) {
        self.values.clear();
        let many = self.context.heads.len() > ARENAS_COMPARED;
        self.compares = !many || number.is_multiple_of(COMPARED_ONE_IN);
        let mut bytes = 0;
        for arena in self.context.heads.iter().skip(number * ARENAS_PER_JOB).take(ARENAS_PER_JOB) {
            bytes += arena.bytes();
            let mut heads = std::mem::take(&mut self.heads);
            census::heads(self.context.memory, arena, &mut self.buffer, &mut heads);
            self.collect(arena, &heads);
            self.heads = heads;
        }
        self.read_bodies();
        self.read_owners();
        self.read_texts();
        let values = std::mem::take(&mut self.values);
        for value in &values {
            match value.shape {
                Storage::String => self.string(value),
                Storage::Array => self.array(value),
                Storage::Hash => self.hash(value),
                Storage::Object => self.object(value),
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
            self.use_body(&head, kind);
            let shape = head.shape(kind);
            if kind == Type::PvGv && shape == Storage::Plain && head.u != 0 {
                self.survey.glob(&head);
            }
            if matches!(shape, Storage::Plain | Storage::Sub) {
                continue;
            }
            while marks.next_if(|mark| mark.0 < head.address).is_some() {}
            let mark = marks.next_if(|mark| mark.0 == head.address).and_then(|mark| mark.1);
            self.values.push(Value { head, kind, shape, mark, body: None, third_word: 0 });
        }
    }

    fn use_body(&mut self, head: &Head, kind: Type) {
        let Some(BodyPlace { start, bytes }) = head.body(kind, self.context.release) else { return };
        self.survey.string_bodies += u64::from(kind.can_hold_string());
        let bodies = self.context.bodies;
        let holds = |index: usize| bodies.get(index).filter(|arena| arena.has_slot_at(start, bytes));
        // Values made one after the other usually have bodies in one arena.
        let index = if holds(self.last_arena).is_some() {
            self.last_arena
        } else {
            match census::arena_before(bodies, start).filter(|&index| holds(index).is_some()) {
                Some(index) => index,
                None => {
                    self.survey.damaged += 1;
                    return;
                }
            }
        };
        self.last_arena = index;
        if let (Some(arena), Some(used)) = (bodies.get(index), self.survey.used.get_mut(index)) {
            let on_pages = arena.bytes_by_page(start - arena.address, bytes);
            used.0 += 1;
            for (sum, here) in used.1.iter_mut().zip(on_pages) {
                *sum = sum.saturating_add(u16::try_from(here).unwrap_or(u16::MAX));
            }
        }
    }

    fn read_bodies(&mut self) {
        self.addresses.clear();
        self.addresses.extend(self.values.iter().map(|value| value.head.any.wrapping_add(layout::CUR)));
        self.batch.pairs(&self.addresses, &mut self.pairs);
        for (value, pair) in self.values.iter_mut().zip(&self.pairs) {
            value.body = *pair;
        }
        const { assert!(layout::CUR == layout::ARRAY_FILL && layout::CUR == layout::HASH_KEYS) };
        const { assert!(layout::CUR == layout::OBJECT_MAXFIELD && layout::ARRAY_ALLOC == layout::OBJECT_FIELDS) };
        let storage = |value: &Value| matches!(value.shape, Storage::Array | Storage::Object);
        self.third_word(
            storage,
            |value| value.head.any.wrapping_add(layout::ARRAY_ALLOC - 8),
            |_, pair| pair.1,
        );
    }

    /// Reads a third word for the values of `which`: `place` returns the address of a pair of
    /// words, and `take` picks the word from the pair.
    fn third_word(
        &mut self,
        which: impl Fn(&Value) -> bool,
        place: impl Fn(&Value) -> u64,
        survey_values: impl Fn(&Value, WordPair) -> u64,
    ) {
        self.addresses.clear();
        self.addresses.extend(self.values.iter().filter(|value| which(value)).map(place));
        self.batch.pairs(&self.addresses, &mut self.pairs);
        for (value, pair) in self.values.iter_mut().filter(|value| which(value)).zip(&self.pairs) {
            match pair {
                Some(pair) => value.third_word = survey_values(value, *pair),
                None => value.body = None,
            }
        }
    }

    /// Reads the last bytes of shared buffers that are not read completely, which count their other
    /// owners.
    fn read_owners(&mut self) {
        let cow = self.context.release.is_cow();
        let compares = self.compares;
        let long = move |value: &Value| {
            let length = value.body.map_or(0, |body| body.1);
            let is_whole = compares && length <= MAX_READ_BYTES;
            value.shape == Storage::String && value.head.flags & cow != 0 && !is_whole
        };
        let last =
            |value: &Value| value.head.u.wrapping_add(value.body.map_or(0, |body| body.1)).wrapping_sub(1);
        let others = |value: &Value, pair: WordPair| {
            let at = last(value) % 16;
            let word = if at < 8 { pair.0 } else { pair.1 };
            (word >> (at % 8 * 8)) & 0xff
        };
        self.third_word(long, |value| last(value) & !15, others);
    }

    /// Reads short strings. The last byte of a shared buffer counts its other owners; strings in
    /// use that are not shared are compared.
    fn read_texts(&mut self) {
        if !self.compares {
            return;
        }
        let cow = self.context.release.is_cow();
        let mut places = Vec::new();
        let mut whose = Vec::new();
        for (index, value) in self.values.iter_mut().enumerate() {
            let Some((current, length)) = value.body.filter(|_| value.shape == Storage::String) else {
                continue;
            };
            let is_used =
                value.head.has_string() && !matches!(value.mark, Some(Mark::Lexical | Mark::Temporary));
            let is_cow = value.head.flags & cow != 0;
            if current >= length || length > MAX_READ_BYTES || !(is_used || is_cow) {
                continue;
            }
            if is_cow {
                // Until the byte is read.
                value.third_word = OWNERS_UNKNOWN;
            }
            places.push(AddressRange::sized(value.head.u, if is_cow { length } else { current }));
            whose.push(index);
        }
        let (values, equal) = (&mut self.values, &mut self.survey.equal);
        self.batch.bytes(&places, &mut |place, bytes| {
            let Some(value) = whose.get(place).and_then(|&index| values.get_mut(index)) else { return };
            let Some((current, _)) = value.body else { return };
            if value.head.flags & cow != 0 {
                value.third_word = bytes.last().copied().map_or(OWNERS_UNKNOWN, u64::from);
            }
            let is_used =
                value.head.has_string() && !matches!(value.mark, Some(Mark::Lexical | Mark::Temporary));
            let text = usize::try_from(current).ok().and_then(|current| bytes.get(..current));
            if let Some(text) = text.filter(|_| value.third_word == 0 && is_used) {
                equal.add(text, current);
            }
        });
    }

    fn string(&mut self, value: &Value) {
        let head = &value.head;
        let Some((current, length)) = value.body else {
            self.survey.unread += 1;
            return;
        };
        if length == 0 {
            return self.no_buffer(head, current);
        }
        if value.third_word == OWNERS_UNKNOWN {
            self.survey.unread += 1;
            return;
        }
        let hidden =
            if head.has_flags(flags::OOK) { roots::ook_offset(&mut self.pages, head.u) } else { Some(0) };
        let buffer = hidden.and_then(|hidden| {
            let (pointer, bytes) = (head.u.checked_sub(hidden)?, length.checked_add(hidden)?);
            Some(Buffer { pointer, bytes })
        });
        let Some(buffer) = buffer.filter(|buffer| current < length && buffer.bytes < MAX_BUFFER_BYTES) else {
            self.survey.damaged += 1;
            return;
        };
        let slots = self.context.slots;
        let unused = buffer.bytes - current - 1;
        if value.third_word > 0 {
            self.claim(buffer, slots.shared);
            self.survey.add_shared(value.third_word, buffer.bytes, unused);
        } else {
            if !self.own_buffer(value, buffer) {
                return;
            }
            let rounding = self.rounding(buffer);
            self.survey.add_unshared(current, buffer.bytes, unused, rounding);
            if length > MAX_READ_BYTES || !self.compares {
                self.survey.equal.skip(current);
            }
        }
        if head.has_string() {
            self.survey.add_string(head, value.kind, current, self.context.release);
            add(&mut self.survey.strings.offset, u64::from(head.has_flags(flags::OOK)));
        }
    }

    /// Claims a buffer that is not shared; false if it holds no string in use.
    fn own_buffer(&mut self, value: &Value, buffer: Buffer) -> bool {
        let (head, slots, bytes) = (&value.head, self.context.slots, buffer.bytes);
        let (slot, in_use) = match value.mark {
            Some(Mark::Lexical) => (self.survey.retain(RetainedBy::Lexical, bytes, slots.pad), false),
            Some(Mark::Temporary) => (self.survey.retain(RetainedBy::Temporary, bytes, slots.pad), false),
            // A number that keeps the buffer of its former string, or memory that C code holds: in
            // use, but no string. It stays with malloc.
            _ if !head.has_string() && head.has_value() => return false,
            // A variable's buffer, or memory that C code holds: globs decide.
            _ if !head.has_string() => {
                self.survey.add_undefined(head, buffer);
                return false;
            }
            // With ithreads constants of code are in pads. Without, code points to them directly:
            // those that the compiler computed are marked as an operator's (PADTMP, op.c, since
            // 5.20); literals cannot be distinguished from variables that a program made read-only,
            // and count as strings.
            mark if mark == Some(Mark::Constant) || head.has_flags(flags::READONLY | flags::PADTMP) => {
                add(&mut self.survey.strings.constants.buffers, 1);
                add(&mut self.survey.strings.constants.capacity_bytes, bytes);
                (slots.constant, true)
            }
            _ => (slots.string, true),
        };
        self.claim(buffer, slot);
        in_use
    }

    /// Counts a string without a buffer: a shared key, or static text.
    fn no_buffer(&mut self, head: &Head, current: u64) {
        if !head.has_string() {
            return;
        }
        let strings = &mut self.survey.strings;
        add(&mut strings.values, 1);
        strings.payload_bytes = strings.payload_bytes.saturating_add(current.min(MAX_BUFFER_BYTES));
        add(&mut strings.head_bytes, HEAD_BYTES);
        add(&mut strings.utf8, u64::from(head.has_flags(flags::UTF8)));
        add(&mut strings.cow.key_values, u64::from(head.flags & self.context.release.is_cow() != 0));
    }

    /// Bytes that malloc adds to round up: from its size word if the buffer may be a mapping of its
    /// own.
    fn rounding(&mut self, buffer: Buffer) -> u64 {
        let usual = chunk_bytes(buffer.bytes);
        let written = (buffer.bytes >= MAPPED_BYTES)
            .then(|| self.pages.word(buffer.pointer.wrapping_sub(8)))
            .flatten()
            .map(|size| size & !7)
            .filter(|&size| size >= usual && size <= usual.saturating_add(64 << 10));
        written.unwrap_or(usual) - 8 - buffer.bytes
    }

    fn array(&mut self, value: &Value) {
        let Some((fill, last)) = value.body else {
            self.survey.unread += 1;
            return;
        };
        if value.third_word == 0 {
            return;
        }
        let Some(bytes) = roots::array_bytes(value.head.u, value.third_word, last) else {
            self.survey.damaged += 1;
            return;
        };
        let elements = fill.wrapping_add(1);
        let slots = self.context.slots;
        let slot = if value.mark == Some(Mark::Lexical) {
            self.survey.retain(RetainedBy::Container, bytes, slots.pad);
            self.survey.retain(RetainedBy::Lexical, bytes, slots.pad)
        } else {
            let containers = &mut self.survey.containers;
            add(&mut containers.arrays, 1);
            add(&mut containers.array_bytes, bytes);
            add(&mut containers.array_unused_bytes, bytes.saturating_sub(elements.saturating_mul(8)));
            slots.container
        };
        self.claim(Buffer { pointer: value.third_word, bytes }, slot);
    }

    fn hash(&mut self, value: &Value) {
        let Some((keys, last)) = value.body else {
            self.survey.unread += 1;
            return;
        };
        let table = value.head.u;
        let bytes =
            last.checked_add(1).and_then(|count| count.checked_mul(8)).filter(|&bytes| bytes < 1 << 46);
        let Some(bytes) = bytes.filter(|_| keys < 1 << 43) else {
            self.survey.damaged += 1;
            return;
        };
        if table == 0 {
            return;
        }
        let release = self.context.release;
        let behind = value.head.has_flags(flags::OOK) && !release.aux_in_body();
        let bytes = bytes + if behind { release.aux_bytes() } else { 0 };
        let slots = self.context.slots;
        let slot = if value.mark == Some(Mark::Lexical) {
            self.survey.retain(RetainedBy::Container, bytes, slots.pad);
            self.survey.retain(RetainedBy::Lexical, bytes, slots.pad)
        } else {
            add(&mut self.survey.containers.hashes, 1);
            add(&mut self.survey.containers.table_bytes, bytes);
            slots.container
        };
        self.claim(Buffer { pointer: table, bytes }, slot);
        if value.head.address == self.context.strtab {
            return;
        }
        if keys > 0 && !value.head.has_flags(flags::SHARE_KEYS) {
            if self.survey.own_keys.len() < MAX_HASHES {
                add(&mut self.survey.own_entries, keys);
                self.survey.own_keys.push(BucketTable { address: table, last });
            } else {
                self.survey.others_left_out += 1;
            }
        }
    }

    fn object(&mut self, value: &Value) {
        let Some((last, _)) = value.body else {
            self.survey.unread += 1;
            return;
        };
        let bytes = last.wrapping_add(1).saturating_mul(8);
        if value.third_word != 0 && bytes > 0 && bytes < MAX_BUFFER_BYTES {
            self.claim(Buffer { pointer: value.third_word, bytes }, self.context.slots.container);
        }
    }

    fn claim(&mut self, buffer: Buffer, slot: strandline_claims::accumulator::Slot) {
        self.context.refinements.claim(buffer.pointer, buffer.bytes, slot);
    }
}
