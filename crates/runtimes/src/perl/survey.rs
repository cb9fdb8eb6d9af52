//! Reads all values in one pass: their buffers, the bodies in use, and the memory of strings.
//!
//! Several threads read arenas of heads in address order, a few at a time. They read the body of
//! each value, and the last byte of the buffer of a shared string, which counts its other owners.
//! The survey keeps only sums over values, and claims buffers in the refinements.

mod strings;

use super::census::{self, ARENAS_PER_JOB};
use super::interpreter::Reader;
use super::keys::BucketTable;
use super::objects::{BodyPlace, Head, Storage, Type};
use super::roots::{self, Buffer, MAX_BUFFER_BYTES, Mark, MarkedHead};
use super::spaces::{BodyArena, HeadArena};
use super::sums::{RetainedBy, SurveySums, UsedBodies, add};
use crate::batch::{Batch, PageCache};
use crate::perl::layout::{self, flags};
use crate::work;
use strandline_claims::accumulator::Slot;
use strandline_process::memory::{PAIR_BYTES, WordPair};
use strandline_process::range::AddressRange;

/// Maximum number, per thread, of hashes with keys of their own that are read.
const MAX_HASHES: usize = 256 << 10;
/// Upper bound on the keys of a hash: more are damage.
const MAX_KEYS: u64 = 1 << 43;
/// Longer buffers are not read completely.
const MAX_READ_BYTES: u64 = 4608;
/// In a process with at most this many arenas of heads (about 1.4 million values) all strings are
/// compared: reading all strings of a larger one would double the time that it is stopped.
const MAX_ARENAS_COMPARED: usize = 8192;
/// In a larger process the strings of one job in this many are compared.
const COMPARED_JOB_INTERVAL: usize = 8;

/// Inputs of the survey, the same for all threads.
pub struct Survey<'a> {
    /// The reader of the interpreter.
    pub reader: &'a Reader<'a>,
    /// Arenas of heads, in address order.
    pub heads: &'a [HeadArena],
    /// Arenas of bodies, in address order.
    pub bodies: &'a [BodyArena],
    /// Marks from the pads, sorted by address.
    pub marks: &'a [u64],
    /// `PL_strtab`: a hash whose entries are not in arenas.
    pub strtab: u64,
}

/// Reads all values.
pub fn survey_values(survey: &Survey<'_>) -> SurveySums {
    let jobs = survey.heads.len().div_ceil(ARENAS_PER_JOB);
    let context = survey.reader.context;
    let surveyor = || Surveyor::new(survey);
    let (surveyors, unfinished_jobs) =
        work::run_jobs(context.workers, jobs, context.deadline, surveyor, Surveyor::survey_arenas);
    let mut sums = SurveySums::default();
    for surveyor in surveyors {
        sums.add(surveyor.sums);
    }
    sums.unread_arenas = (unfinished_jobs * ARENAS_PER_JOB) as u64;
    sums.finish();
    sums
}

/// One thread of the survey, with its sums and with buffers that are reused.
struct Surveyor<'a> {
    survey: &'a Survey<'a>,
    reader: &'a Reader<'a>,
    batch: Batch<'a>,
    pages: PageCache<'a>,
    sums: SurveySums,
    buffer: Vec<u8>,
    heads: Vec<Head>,
    values: Vec<Value>,
    addresses: Vec<u64>,
    pairs: Vec<Option<WordPair>>,
    /// The ranges of strings to read.
    texts: Vec<AddressRange>,
    /// The index in `values` of each of `texts`.
    text_values: Vec<usize>,
    /// Index of the arena of the last body.
    last_arena_index: usize,
    /// Whether the strings of the current job are compared.
    is_comparing: bool,
}

/// A value with storage outside its body.
#[derive(Clone, Copy)]
struct Value {
    head: Head,
    kind: Type,
    storage: Storage,
    mark: Option<Mark>,
    /// The two words of its body at `layout::CUR`, which mean something else for each storage;
    /// `None` if they could not be read.
    body: Option<WordPair>,
    /// Address of the storage of an array or an object; `None` for other values, or without
    /// storage.
    storage_address: Option<u64>,
    /// Number of the other owners of a string's buffer; `None` if it could not be read.
    other_owners: Option<u8>,
    /// Whether it is a string that was read and compared with others.
    is_compared: bool,
}

impl Value {
    /// The length of a string (`SvCUR`), and the bytes of its buffer behind its start (`SvLEN`);
    /// `None` for another value, or one that could not be read.
    fn string_lengths(&self) -> Option<WordPair> {
        self.body.filter(|_| self.storage == Storage::String)
    }

    /// Whether its string may still be read, because no pad marks it as out of use.
    fn has_string_in_use(&self) -> bool {
        self.head.has_string() && !matches!(self.mark, Some(Mark::Lexical | Mark::Temporary))
    }
}

impl<'a> Surveyor<'a> {
    fn new(survey: &'a Survey<'a>) -> Self {
        let reader = survey.reader;
        let mut sums = SurveySums::default();
        sums.used_bodies.resize(survey.bodies.len(), UsedBodies::default());
        Self {
            survey,
            reader,
            batch: Batch::new(reader.memory),
            pages: PageCache::new(reader.memory),
            sums,
            buffer: Vec::new(),
            heads: Vec::new(),
            values: Vec::new(),
            addresses: Vec::new(),
            pairs: Vec::new(),
            texts: Vec::new(),
            text_values: Vec::new(),
            last_arena_index: 0,
            is_comparing: true,
        }
    }

    /// Surveys the values of `ARENAS_PER_JOB` arenas.
    fn survey_arenas(&mut self, job: usize) {
        self.values.clear();
        let is_comparing_all = self.survey.heads.len() <= MAX_ARENAS_COMPARED;
        self.is_comparing = is_comparing_all || job.is_multiple_of(COMPARED_JOB_INTERVAL);
        let mut bytes = 0;
        for arena in self.survey.heads.iter().skip(job * ARENAS_PER_JOB).take(ARENAS_PER_JOB) {
            bytes += arena.bytes();
            let mut heads = std::mem::take(&mut self.heads);
            // The census counted the heads that cannot be read.
            census::read_heads(self.reader.memory, arena, &mut self.buffer, &mut heads);
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
        (self.reader.context.progress)(bytes);
    }

    /// Counts bodies in use, and collects the values whose storage is read.
    fn collect(&mut self, arena: &HeadArena, heads: &[Head]) {
        let marks = self.survey.marks;
        let from = marks.partition_point(|&mark| mark < arena.address);
        let to = marks.partition_point(|&mark| mark < arena.address + arena.bytes());
        let mut marks =
            marks.get(from..to).unwrap_or(&[]).iter().map(|&mark| MarkedHead::unpack(mark)).peekable();
        for &head in heads {
            if head.is_free() {
                continue;
            }
            let Some(kind) = head.kind(self.reader.release) else { continue };
            self.count_body(&head, kind);
            let storage = head.storage(kind);
            if kind == Type::PvGv && storage == Storage::Plain && head.u != 0 {
                self.sums.add_glob(&head);
            }
            if matches!(storage, Storage::Plain | Storage::Sub) {
                continue;
            }
            while marks.next_if(|marked| marked.address < head.address).is_some() {}
            let mark = marks.next_if(|marked| marked.address == head.address).and_then(|marked| marked.mark);
            self.values.push(Value {
                head,
                kind,
                storage,
                mark,
                body: None,
                storage_address: None,
                other_owners: Some(0),
                is_compared: false,
            });
        }
    }

    /// Counts a body in use in its arena.
    fn count_body(&mut self, head: &Head, kind: Type) {
        let Some(BodyPlace { start, bytes }) = head.body_place(kind, self.reader.release) else { return };
        self.sums.string_bodies += u64::from(kind.can_hold_string());
        let bodies = self.survey.bodies;
        let has_slot =
            |&index: &usize| bodies.get(index).is_some_and(|arena| arena.has_slot_at(start, bytes));
        // Values made one after the other usually have bodies in one arena.
        let last_index = Some(self.last_arena_index).filter(has_slot);
        let Some(index) = last_index.or_else(|| census::arena_before(bodies, start).filter(has_slot)) else {
            self.sums.damaged_values += 1;
            return;
        };
        self.last_arena_index = index;
        if let (Some(arena), Some(used)) = (bodies.get(index), self.sums.used_bodies.get_mut(index)) {
            let on_pages = arena.bytes_by_page(start - arena.address, bytes);
            used.bodies = used.bodies.saturating_add(1);
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
        const { assert!(layout::CUR == layout::OBJECT_MAXFIELD) };
        const { assert!(layout::ARRAY_ALLOC == layout::OBJECT_FIELDS) };
        self.read_pairs(
            |value| matches!(value.storage, Storage::Array | Storage::Object),
            |value| value.head.any.wrapping_add(layout::ARRAY_ALLOC - 8),
            |value, (_, address)| value.storage_address = (address != 0).then_some(address),
        );
    }

    /// Reads a pair of words at the `address` of each value that `is_selected`, and passes it to
    /// `set`. A value whose pair cannot be read loses its `body`, and counts as unread.
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
        let cow_flag = self.reader.release.cow_flag();
        let is_comparing = self.is_comparing;
        let capacity = |value: &Value| value.string_lengths().map_or(0, |(_, capacity)| capacity);
        let is_selected = move |value: &Value| {
            let is_read_completely = is_comparing && capacity(value) <= MAX_READ_BYTES;
            // Without a capacity it has no buffer: it is a shared key.
            value.head.flags & cow_flag != 0 && capacity(value) > 0 && !is_read_completely
        };
        let last_byte = |value: &Value| value.head.u.wrapping_add(capacity(value)).wrapping_sub(1);
        let set_owners = |value: &mut Value, (first, second): WordPair| {
            let offset = last_byte(value) % PAIR_BYTES as u64;
            let word = if offset < 8 { first } else { second };
            value.other_owners = Some((word >> (offset % 8 * 8)) as u8);
        };
        self.read_pairs(is_selected, |value| last_byte(value) & !(PAIR_BYTES as u64 - 1), set_owners);
    }

    /// Reads short strings: the last byte of a shared buffer counts its other owners, and strings
    /// in use that are not shared are compared.
    fn read_texts(&mut self) {
        if !self.is_comparing {
            return;
        }
        let cow_flag = self.reader.release.cow_flag();
        self.texts.clear();
        self.text_values.clear();
        for (index, value) in self.values.iter_mut().enumerate() {
            let Some((length, capacity)) = value.string_lengths() else { continue };
            let is_cow = value.head.flags & cow_flag != 0;
            let is_read = value.has_string_in_use() || is_cow;
            if length >= capacity || capacity > MAX_READ_BYTES || !is_read {
                continue;
            }
            if is_cow {
                value.other_owners = None;
            }
            self.texts.push(AddressRange::sized(value.head.u, if is_cow { capacity } else { length }));
            self.text_values.push(index);
        }
        let (values, text_values) = (&mut self.values, &self.text_values);
        let equal = &mut self.sums.equal_sample;
        self.batch.bytes(&self.texts, &mut |text_index, bytes| {
            let Some(value) = text_values.get(text_index).and_then(|&index| values.get_mut(index)) else {
                return;
            };
            let Some((length, _)) = value.string_lengths() else { return };
            if value.head.flags & cow_flag != 0 {
                value.other_owners = bytes.last().copied();
            }
            let text = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
            if let Some(text) = text.filter(|_| value.other_owners == Some(0) && value.has_string_in_use()) {
                equal.add(text, length);
                value.is_compared = true;
            }
        });
    }

    /// Counts an array, and claims its storage.
    fn count_array(&mut self, value: &Value) {
        // `AvFILLp` and `AvMAX`: indices of the last element and of the last slot, -1 without one.
        let Some((last_element, last_slot)) = value.body else {
            self.sums.unread_values += 1;
            return;
        };
        let Some(pointer) = value.storage_address else { return };
        let Some(bytes) = roots::array_bytes(value.head.u, pointer, last_slot) else {
            self.sums.damaged_values += 1;
            return;
        };
        let elements = last_element.wrapping_add(1);
        let slot = if value.mark == Some(Mark::Lexical) {
            self.retained_slot(RetainedBy::Container, bytes)
        } else {
            let containers = &mut self.sums.containers;
            add(&mut containers.arrays, 1);
            add(&mut containers.array_bytes, bytes);
            add(&mut containers.array_unused_bytes, bytes.saturating_sub(elements.saturating_mul(8)));
            self.reader.slots.container
        };
        self.claim(Buffer { pointer, bytes }, slot);
    }

    /// Counts a hash, and claims its table. Hashes with keys of their own are listed, to be read
    /// later.
    fn count_hash(&mut self, value: &Value) {
        // `xhv_keys` and `xhv_max`.
        let Some((keys, last_bucket)) = value.body else {
            self.sums.unread_values += 1;
            return;
        };
        let table = value.head.u;
        let Some(bytes) = roots::table_bytes(last_bucket).filter(|_| keys < MAX_KEYS) else {
            self.sums.damaged_values += 1;
            return;
        };
        if table == 0 {
            return;
        }
        let has_aux_behind = value.head.has_flags(flags::OOK) && !self.reader.release.has_aux_in_body();
        let bytes = bytes + if has_aux_behind { layout::AUX_BYTES } else { 0 };
        let slot = if value.mark == Some(Mark::Lexical) {
            self.retained_slot(RetainedBy::Container, bytes)
        } else {
            add(&mut self.sums.containers.hashes, 1);
            add(&mut self.sums.containers.table_bytes, bytes);
            self.reader.slots.container
        };
        self.claim(Buffer { pointer: table, bytes }, slot);
        if value.head.address == self.survey.strtab {
            return;
        }
        if keys > 0 && !value.head.has_flags(flags::SHARE_KEYS) {
            if self.sums.tables_with_own_keys.len() < MAX_HASHES {
                add(&mut self.sums.own_key_entries, keys);
                self.sums.tables_with_own_keys.push(BucketTable { address: table, last_bucket, keys });
            } else {
                self.sums.left_out_values += 1;
            }
        }
    }

    /// Claims the fields of an object.
    fn claim_fields(&mut self, value: &Value) {
        // `xobject_maxfield`: index of the last field, -1 without fields.
        let Some((last_field, _)) = value.body else {
            self.sums.unread_values += 1;
            return;
        };
        let bytes = last_field.wrapping_add(1).saturating_mul(8);
        let Some(pointer) = value.storage_address.filter(|_| bytes != 0) else { return };
        if bytes >= MAX_BUFFER_BYTES {
            self.sums.damaged_values += 1;
            return;
        }
        self.claim(Buffer { pointer, bytes }, self.reader.slots.container);
    }

    /// Counts a buffer that `keeper` retains; returns the slot for its claim.
    fn retained_slot(&mut self, keeper: RetainedBy, bytes: u64) -> Slot {
        self.sums.add_retained(keeper, bytes);
        self.reader.slots.pad_retained
    }

    fn claim(&mut self, buffer: Buffer, slot: Slot) {
        self.reader.refinements.claim(buffer.pointer, buffer.bytes, slot);
    }
}
