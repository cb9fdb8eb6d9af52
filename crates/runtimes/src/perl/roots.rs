//! Reads the subs and their pads, by depth of recursion, and finds what is out of use in them.
//!
//! A sub has a list of pads, one for each depth of recursion that it ever reached, and one list of
//! names for all of them: an entry without a name is an operator's target, an entry with an empty
//! name a constant. When a sub returns, its lexicals lose their values but retain their buffers,
//! which are found here.
//!
//! **Retained by a pad** is the buffer of an entry that has no value any more (no string, number or
//! reference), and of an operator's target in a pad deeper than the sub runs (`CvDEPTH`) that
//! nothing else refers to. The storage of an array or a hash without elements counts too. A lexical
//! with a value is in use, whether its sub runs or not: `my $x if 0` keeps it from call to call. A
//! buffer with several owners (copy-on-write) is in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::facts::{BufferKind, Keeper};
use super::keys;
use super::names::PadName;
use super::objects::{Head, Storage, Type};
use crate::batch::PageCache;
use crate::perl::layout::{self as layout, Layout, flags, padname, sub};
use crate::{push_within, work};
use strandline_process::memory::{Memory, half_word_at, word_at};

/// Subs that a worker reads at a time.
const SUBS_PER_JOB: usize = 64;
/// Depths between two checks of the deadline.
const DEPTHS_PER_DEADLINE_CHECK: u64 = 4096;
/// Upper bound on the pads of a sub: more are damage.
const MAX_DEPTH: u64 = 1 << 26;
/// Upper bound on the entries of a pad: more are damage.
const MAX_ENTRIES: u64 = 1 << 20;
/// Upper bound on the names of a sub: more are damage.
const MAX_NAMES: u64 = 1 << 16;
/// Words of a pad or a list read at a time.
const WORDS_AT_ONCE: u64 = 256;
/// Maximum number of names in a thread's cached lists, which closures of one sub share: 3 MiB.
const MAX_CACHED_NAMES: usize = 128 << 10;
/// Memory that a cached list takes in addition to its names (its entry in the table), in names.
const LIST_OVERHEAD_NAMES: usize = 4;
/// Limit on the marked entries, per thread.
const MAX_MARKS: usize = 1 << 20;
/// Limit on the buffers listed by name, per thread.
const MAX_RETAINED: usize = 64 << 10;
/// Bits of a mark that state what is marked: heads are aligned to 8 bytes.
const MARK_BITS: u64 = 7;
/// Bound on the bytes of a buffer: one of this size or larger is damage.
pub const MAX_BUFFER_BYTES: u64 = 1 << 46;
/// Buffers of more than this are listed by name.
pub const LARGE_BYTES: u64 = 4096;

/// What a marked value is. A mark is a head's address with this in its lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mark {
    /// A constant of the code.
    Constant = 1,
    /// A lexical without a value.
    Lexical = 2,
    /// An operator's target out of use.
    Temporary = 3,
}

/// A head that pads mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkedHead {
    /// Its address.
    pub address: u64,
    /// What its value is; `None` if the mark's bits are none of [`Mark`].
    pub mark: Option<Mark>,
}

impl MarkedHead {
    /// Splits an entry of [`PadFindings::marks`].
    pub fn unpack(packed: u64) -> Self {
        let mut marks = [Mark::Constant, Mark::Lexical, Mark::Temporary].into_iter();
        let mark = marks.find(|&mark| mark as u64 == packed & MARK_BITS);
        Self { address: packed & !MARK_BITS, mark }
    }
}

/// Which pad of a sub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PadPlace {
    /// The sub's head.
    pub sub: u64,
    /// The depth of recursion, from 1.
    pub depth: u64,
}

/// A large buffer that a value retains without use for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedBuffer {
    /// The head of its value.
    pub head: u64,
    /// The buffer, as malloc returned it.
    pub pointer: u64,
    /// Its size.
    pub bytes: u64,
    /// What it held.
    pub kind: BufferKind,
    /// What retains it.
    pub keeper: Keeper,
    /// Whether the lexical belongs to another pad.
    pub is_captured: bool,
    /// The pad of the value; `None` if it is in none.
    pub pad: Option<PadPlace>,
    /// Address of the lexical's name, or of a global's glob; `None` if there is neither.
    pub name: Option<u64>,
    /// Whether the value has neither string, number nor reference.
    pub is_valueless: bool,
}

impl RetainedBuffer {
    /// The string buffer of a value that is in no pad and has no value.
    pub fn undefined(head: u64, pointer: u64, bytes: u64) -> Self {
        Self {
            head,
            pointer,
            bytes,
            kind: BufferKind::String,
            keeper: Keeper::Global,
            is_captured: false,
            pad: None,
            name: None,
            is_valueless: true,
        }
    }
}

/// What the pads hold.
#[derive(Clone, Debug, Default)]
pub struct PadFindings {
    /// Whether all subs were read before the deadline.
    pub is_complete: bool,
    /// Marks, sorted by address, each head once: see [`MarkedHead::unpack`].
    pub marks: Vec<u64>,
    /// Large buffers that are retained.
    pub retained_buffers: Vec<RetainedBuffer>,
    /// Globs in pads, sorted: with ithreads, all globs that compiled code refers to.
    pub globs: Vec<u64>,
    /// Figures of the subs; `names_replaced` stays 0, because names are read later.
    pub subs: super::facts::Subs,
    /// Entries beyond the bounds.
    pub left_out_entries: u64,
}

/// Inputs for reading pads.
#[derive(Clone, Copy)]
pub struct PadContext<'a> {
    /// The target's memory.
    pub memory: &'a dyn Memory,
    /// The target's layout.
    pub release: &'static Layout,
    /// `PL_main_cv`: the program's file, which always runs.
    pub main_cv: u64,
    /// When to stop.
    pub deadline: Instant,
    /// Number of threads.
    pub workers: usize,
    /// Resident bytes. They bound lists of pads and pads, which take eight bytes an entry.
    pub resident_bytes: u64,
}

/// Reads the pads of `subs`.
pub fn read_pads(context: &PadContext<'_>, subs: &[u64]) -> PadFindings {
    let jobs = subs.len().div_ceil(SUBS_PER_JOB);
    let words_left = AtomicU64::new(context.resident_bytes / 8);
    let pad_reader = || PadReader {
        words_left: &words_left,
        pages: PageCache::new(context.memory),
        context: *context,
        name_lists: HashMap::new(),
        cached_names: 0,
        is_late: false,
        findings: PadFindings::default(),
    };
    let (readers, unfinished_jobs) =
        work::run_jobs(context.workers, jobs, context.deadline, pad_reader, |reader, job| {
            for &address in subs.iter().skip(job * SUBS_PER_JOB).take(SUBS_PER_JOB) {
                if reader.read_sub(address).is_none() && !reader.is_late {
                    reader.findings.subs.damaged += 1;
                }
            }
        });
    let mut findings = PadFindings { is_complete: unfinished_jobs == 0, ..PadFindings::default() };
    for reader in readers {
        findings.is_complete &= !reader.is_late;
        findings.add(reader.findings);
    }
    findings.deduplicate();
    findings
}

impl PadFindings {
    fn add(&mut self, other: Self) {
        self.marks.extend(other.marks);
        self.retained_buffers.extend(other.retained_buffers);
        self.globs.extend(other.globs);
        self.left_out_entries += other.left_out_entries;
        let (mine, theirs) = (&mut self.subs, &other.subs);
        strandline_claims::add_fields!(mine, theirs: with_pads, closures, running, pads, damaged);
    }

    /// A value may be in several pads: the pad that owns it names it.
    fn deduplicate(&mut self) {
        self.marks.sort_unstable();
        self.marks.dedup_by_key(|mark| *mark & !MARK_BITS);
        self.retained_buffers.sort_unstable_by_key(|buffer| (buffer.head, buffer.is_captured, buffer.pad));
        self.retained_buffers.dedup_by_key(|buffer| buffer.head);
        self.globs.sort_unstable();
        self.globs.dedup();
    }
}

/// Kind of a pad entry, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryKind {
    /// An operator's target: no name.
    Temporary,
    /// A constant: an empty name.
    Constant,
    /// A lexical of this sub.
    Lexical,
    /// A `state` variable.
    State,
    /// Captured from another pad.
    Outer,
    /// Retains no buffer: `our`, subs.
    Bufferless,
}

/// An entry of the pads of a sub.
#[derive(Clone, Copy)]
struct PadEntry {
    /// Address of its name; `None` for an operator's target.
    name: Option<u64>,
    kind: EntryKind,
}

/// A worker that reads pads.
struct PadReader<'a> {
    pages: PageCache<'a>,
    context: PadContext<'a>,
    /// Depths and pad entries that may still be read, by all workers.
    words_left: &'a AtomicU64,
    /// Lists of names, by address.
    name_lists: HashMap<u64, Arc<Vec<PadEntry>>>,
    /// Number of names in `name_lists`, plus `LIST_OVERHEAD_NAMES` for each list.
    cached_names: usize,
    /// Whether the deadline passed before a sub was read.
    is_late: bool,
    findings: PadFindings,
}

/// A pad, and whether its sub runs in it.
#[derive(Clone, Copy)]
struct Pad {
    place: PadPlace,
    is_running: bool,
}

/// A head and its type.
struct TypedHead {
    head: Head,
    kind: Type,
}

impl PadReader<'_> {
    /// Reads the head at `address`; `None` also if its type is unknown.
    fn head(&mut self, address: u64) -> Option<TypedHead> {
        let head = Head::read(&mut self.pages, address)?;
        Some(TypedHead { head, kind: head.kind(self.context.release)? })
    }

    /// Takes `words` from `words_left`. `None` if too few are left: lists and pads would be larger
    /// than resident memory.
    fn take_words(&self, words: u64) -> Option<()> {
        keys::take(self.words_left, words).then_some(())
    }

    /// Notes whether the deadline has passed; `None` if it has.
    fn check_deadline(&mut self) -> Option<()> {
        self.is_late |= Instant::now() > self.context.deadline;
        (!self.is_late).then_some(())
    }

    /// Reads the pads of the sub at `address`. `None` if they are damaged or larger than resident
    /// memory, or if the deadline passed.
    fn read_sub(&mut self, address: u64) -> Option<()> {
        let TypedHead { head, kind } = self.head(address)?;
        let body: [u8; sub::BYTES] = self.pages.array(head.any)?;
        let sub_flags = half_word_at(&body, sub::FLAGS)?;
        let list = word_at(&body, sub::PADLIST)?;
        if sub_flags & sub::IS_XSUB != 0 || list == 0 || !matches!(kind, Type::PvCv | Type::PvFm) {
            return Some(());
        }
        let (last, pads) = self.pages.pair(list.checked_add(layout::PADLIST_MAX)?)?;
        let running_depth = u64::try_from(half_word_at(&body, sub::DEPTH)?.cast_signed()).ok()?;
        if last > MAX_DEPTH || running_depth > last || !pads.is_multiple_of(8) {
            return None;
        }
        let running_depth =
            if address == self.context.main_cv { running_depth.max(1) } else { running_depth };
        self.findings.subs.with_pads += 1;
        self.findings.subs.closures += u64::from(sub_flags & sub::CLONED != 0);
        self.findings.subs.running += u64::from(running_depth > 0);
        self.take_words(last)?;
        let name_list = self.pages.word(pads)?;
        let names = self.names(name_list)?;
        for depth in 1..=last {
            if depth.is_multiple_of(DEPTHS_PER_DEADLINE_CHECK) {
                self.check_deadline()?;
            }
            let pad = self.pages.word(pads.checked_add(8 * depth)?)?;
            if pad == 0 {
                continue;
            }
            self.check_deadline()?;
            self.findings.subs.pads += 1;
            let place = PadPlace { sub: address, depth };
            self.read_pad(pad, &names, Pad { place, is_running: depth <= running_depth })?;
        }
        Some(())
    }

    /// Reads the entries of the pad whose array is at `address`.
    fn read_pad(&mut self, address: u64, names: &[PadEntry], pad: Pad) -> Option<()> {
        let TypedHead { head, kind } = self.head(address)?;
        let (fill, _) = self.pages.pair(head.any.checked_add(layout::ARRAY_FILL)?)?;
        let count = fill.wrapping_add(1);
        if kind != Type::PvAv || count > MAX_ENTRIES {
            return None;
        }
        self.take_words(count)?;
        let mut words = [0u8; 8 * WORDS_AT_ONCE as usize];
        for first in (0..count).step_by(WORDS_AT_ONCE as usize) {
            self.check_deadline()?;
            let entries = (count - first).min(WORDS_AT_ONCE);
            let bytes = words.get_mut(..8 * usize::try_from(entries).ok()?)?;
            self.pages.read(head.u.checked_add(8 * first)?, bytes).ok()?;
            for index in first..first + entries {
                // The first entry is the array of arguments.
                let entry = word_at(&words, 8 * usize::try_from(index - first).ok()?)?;
                if index > 0 && entry != 0 {
                    // Entries after the last name are operators' targets, too.
                    let target = PadEntry { name: None, kind: EntryKind::Temporary };
                    let named = names.get(usize::try_from(index).ok()?).copied().unwrap_or(target);
                    self.read_entry(entry, named, pad);
                }
            }
        }
        Some(())
    }

    /// Records what the value at `address` retains. `None` if it retains nothing, is free or cannot
    /// be read: the survey counts damaged and unread values.
    fn read_entry(&mut self, address: u64, entry: PadEntry, pad: Pad) -> Option<()> {
        let TypedHead { head, kind } = self.head(address)?;
        let storage = head.storage(kind);
        let is_target = entry.kind == EntryKind::Temporary;
        // A lexical that was assigned a glob is FAKE.
        let is_glob = kind == Type::PvGv && storage == Storage::Plain && head.flags & flags::FAKE == 0;
        if is_glob && entry.kind != EntryKind::Lexical {
            self.findings.left_out_entries +=
                u64::from(!push_within(&mut self.findings.globs, MAX_MARKS, address));
        }
        let is_constant = entry.kind == EntryKind::Constant || is_target && head.flags & flags::READONLY != 0;
        if is_constant {
            if storage == Storage::String {
                self.mark(&head, Mark::Constant);
            }
            return Some(());
        }
        if entry.kind == EntryKind::Bufferless {
            return Some(());
        }
        // A lexical with a value keeps it for the next call (`my $x if 0`). A target that only its
        // pad refers to has no use while the sub is not running.
        let is_unused = !head.has_value() || is_target && !pad.is_running && head.references == 1;
        // An array or a hash without elements behaves the same with and without storage, whoever
        // refers to it.
        let (buffer, buffer_kind) = match storage {
            Storage::String if is_unused => {
                (unshared_buffer(&mut self.pages, &head, self.context.release)?, BufferKind::String)
            }
            Storage::Array if !is_target => (empty_array(&mut self.pages, &head)?, BufferKind::Array),
            Storage::Hash if !is_target => (empty_hash(&mut self.pages, &head)?, BufferKind::Hash),
            _ => return Some(()),
        };
        self.mark(&head, if is_target { Mark::Temporary } else { Mark::Lexical });
        if buffer.bytes <= LARGE_BYTES {
            return Some(());
        }
        let retained = RetainedBuffer {
            head: address,
            pointer: buffer.pointer,
            bytes: buffer.bytes,
            kind: buffer_kind,
            keeper: if is_target { Keeper::Temporary } else { Keeper::Lexical },
            is_captured: entry.kind == EntryKind::Outer,
            pad: Some(pad.place),
            name: entry.name,
            is_valueless: buffer_kind != BufferKind::String || !head.has_value(),
        };
        self.findings.left_out_entries +=
            u64::from(!push_within(&mut self.findings.retained_buffers, MAX_RETAINED, retained));
        Some(())
    }

    /// Marks a value.
    fn mark(&mut self, head: &Head, mark: Mark) {
        if self.findings.marks.len() < MAX_MARKS && head.address.is_multiple_of(8) {
            self.findings.marks.push(head.address | mark as u64);
        } else {
            self.findings.left_out_entries += 1;
        }
    }

    /// Reads a list of names, by index.
    fn names(&mut self, list: u64) -> Option<Arc<Vec<PadEntry>>> {
        if let Some(cached) = self.name_lists.get(&list) {
            return Some(Arc::clone(cached));
        }
        let (fill, array) = if self.context.release.has_padnames() {
            self.pages.pair(list.checked_add(layout::PADNAMELIST_FILL)?)?
        } else {
            let TypedHead { head, kind } = self.head(list)?;
            if kind != Type::PvAv {
                return None;
            }
            (self.pages.pair(head.any.checked_add(layout::ARRAY_FILL)?)?.0, head.u)
        };
        let count = fill.wrapping_add(1);
        if count > MAX_NAMES {
            return None;
        }
        let mut names = Vec::new();
        for index in 0..count {
            if index.is_multiple_of(WORDS_AT_ONCE) {
                self.check_deadline()?;
            }
            let address = self.pages.word(array.checked_add(8 * index)?)?;
            let name = (address != 0).then_some(address);
            let kind = name.map_or(Some(EntryKind::Temporary), |name| self.entry_kind(name))?;
            names.push(PadEntry { name, kind });
        }
        let names = Arc::new(names);
        let added_names = names.len() + LIST_OVERHEAD_NAMES;
        if self.cached_names + added_names > MAX_CACHED_NAMES {
            self.name_lists.clear();
            self.cached_names = 0;
        }
        self.cached_names += added_names;
        self.name_lists.insert(list, Arc::clone(&names));
        Some(names)
    }

    /// The kind of the entry whose name is at `address`.
    fn entry_kind(&mut self, address: u64) -> Option<EntryKind> {
        if !self.context.release.has_padnames() {
            return self.entry_kind_before_5_22(address);
        }
        let PadName { text, bytes, flags } = PadName::read(&mut self.pages, address, self.context.release)?;
        let Some(text) = text else { return Some(EntryKind::Temporary) };
        Some(match flags {
            _ if bytes == 0 => EntryKind::Constant,
            _ if flags & padname::OUR != 0 => EntryKind::Bufferless,
            _ if self.pages.array(text)? == *b"&" => EntryKind::Bufferless,
            _ if flags & (padname::OUTER | padname::FIELD) != 0 => EntryKind::Outer,
            _ if flags & padname::STATE != 0 => EntryKind::State,
            _ => EntryKind::Lexical,
        })
    }

    /// Like [`Self::entry_kind`], before 5.22, where a pad name is a value.
    fn entry_kind_before_5_22(&mut self, address: u64) -> Option<EntryKind> {
        let TypedHead { head, kind } = self.head(address)?;
        if head.flags & flags::PRIVATE_POK == 0 || !kind.can_hold_string() {
            return Some(EntryKind::Temporary);
        }
        let (length, _) = self.pages.pair(head.any.checked_add(layout::CUR)?)?;
        Some(match head.flags {
            _ if length == 0 => EntryKind::Constant,
            name_flags if name_flags & flags::PAD_OUR != 0 => EntryKind::Bufferless,
            _ if self.pages.array(head.u)? == *b"&" => EntryKind::Bufferless,
            name_flags if name_flags & flags::FAKE != 0 => EntryKind::Outer,
            name_flags if name_flags & flags::PAD_STATE != 0 => EntryKind::State,
            _ => EntryKind::Lexical,
        })
    }
}

/// A buffer in malloc's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// As malloc returned it.
    pub pointer: u64,
    /// Its capacity.
    pub bytes: u64,
}

/// The buffer of a string that is not shared; `None` if it has none or is damaged.
fn unshared_buffer(pages: &mut PageCache<'_>, head: &Head, release: &Layout) -> Option<Buffer> {
    let (length, capacity) = pages.pair(head.any.checked_add(layout::CUR)?)?;
    if capacity == 0 || length >= capacity {
        return None;
    }
    if head.flags & release.cow_flag() != 0 {
        // The last byte counts the other owners.
        let others: [u8; 1] = pages.array(head.u.checked_add(capacity - 1)?)?;
        if others != [0] {
            return None;
        }
    }
    string_buffer(pages, head, capacity)
}

/// The buffer of a string, including the part before its start that `OOK` hides; `None` if its size
/// is impossible.
pub fn string_buffer(pages: &mut PageCache<'_>, head: &Head, capacity: u64) -> Option<Buffer> {
    let hidden_bytes = if head.has_flags(flags::OOK) { ook_offset(pages, head.u)? } else { 0 };
    let bytes = capacity.checked_add(hidden_bytes).filter(|&bytes| bytes < MAX_BUFFER_BYTES)?;
    Some(Buffer { pointer: head.u.checked_sub(hidden_bytes)?, bytes })
}

/// Offset of a string from the beginning of its buffer (`SvOOK_offset`): stored in the byte before
/// the string or, if that is 0, in the word before that byte.
fn ook_offset(pages: &mut PageCache<'_>, string: u64) -> Option<u64> {
    let [short] = pages.array(string.checked_sub(1)?)?;
    if short != 0 {
        return Some(u64::from(short));
    }
    pages.word(string.checked_sub(9)?)
}

/// The storage of an array without elements.
fn empty_array(pages: &mut PageCache<'_>, head: &Head) -> Option<Buffer> {
    let (fill, last) = pages.pair(head.any.checked_add(layout::ARRAY_FILL)?)?;
    let storage = pages.word(head.any.checked_add(layout::ARRAY_ALLOC)?)?;
    if fill != u64::MAX || storage == 0 {
        return None;
    }
    Some(Buffer { pointer: storage, bytes: array_bytes(head.u, storage, last)? })
}

/// Bytes of an array's storage; the elements start behind `storage` if some were shifted off.
/// `None` if that is impossible.
pub fn array_bytes(elements: u64, storage: u64, last: u64) -> Option<u64> {
    let shifted_bytes = elements.checked_sub(storage)?;
    last.wrapping_add(1)
        .checked_mul(8)?
        .checked_add(shifted_bytes)
        .filter(|bytes| (1..MAX_BUFFER_BYTES).contains(bytes))
}

/// The table of a hash without keys.
fn empty_hash(pages: &mut PageCache<'_>, head: &Head) -> Option<Buffer> {
    let (keys, last) = pages.pair(head.any.checked_add(layout::HASH_KEYS)?)?;
    if keys != 0 || head.u == 0 {
        return None;
    }
    Some(Buffer { pointer: head.u, bytes: table_bytes(last)? })
}

/// Bytes of a hash's table, without what follows it; `None` if that is impossible.
pub fn table_bytes(last_bucket: u64) -> Option<u64> {
    last_bucket.checked_add(1)?.checked_mul(8).filter(|&bytes| bytes < MAX_BUFFER_BYTES)
}
