//! Reads the subs and their pads, by depth of recursion, and finds what is out of use in them.
//!
//! A sub has a list of pads, one for each depth of recursion that it ever reached, and one list of
//! names for all of them: an entry without a name is an operator's target, an entry with an empty
//! name a constant. When a sub returns, its lexicals lose their values but keep their buffers,
//! which are found here.
//!
//! **Kept by a pad** is the buffer of an entry that has no value any more (no string, number or
//! reference), and of an operator's target in a pad deeper than the sub runs (`CvDEPTH`) that
//! nothing else refers to. The storage of an array or a hash without elements counts too. A lexical
//! with a value is in use, whether its sub runs or not: `my $x if 0` keeps it from call to call. A
//! buffer with several owners (copy-on-write) is in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::facts::{BufferKind, Keeper};
use super::objects::{Head, Storage, Type};
use crate::batch::PageCache;
use crate::perl::layout::{self as layout, Layout, flags, padname, sub};
use crate::work;
use strandline_process::memory::{Memory, half_word_at, word_at};

const SUBS_PER_JOB: usize = 64;
/// Depths between checks of the clock.
const DEPTHS: u64 = 4096;
/// Larger depths, pads and lists of names are damage.
const MAX_DEPTH: u64 = 1 << 26;
const MAX_ENTRIES: u64 = 1 << 20;
const MAX_NAMES: u64 = 1 << 16;
/// Words read at a time.
const WORDS: u64 = 256;
/// Maximum number of names in a thread's cached lists, which closures of one sub share. 2 MiB.
const MAX_NAMES_KEPT: usize = 128 << 10;
/// Maximum numbers, per thread, of marked entries and of buffers listed by name.
const MAX_MARKS: usize = 1 << 20;
const MAX_KEPT: usize = 64 << 10;
/// Larger buffers are damage.
pub const MAX_BUFFER_BYTES: u64 = 1 << 46;
/// Buffers of more than this are listed by name.
pub const LARGE_BYTES: u64 = 4096;

/// What a marked value is. A mark is a head's address with this in its lowest bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mark {
    Constant = 1,
    /// A lexical without a value.
    Lexical = 2,
    /// An operator's target out of use.
    Temporary = 3,
}

impl Mark {
    /// Splits a mark into the head's address and what it is.
    pub fn split(mark: u64) -> (u64, Option<Self>) {
        let kind = match mark & 7 {
            1 => Some(Self::Constant),
            2 => Some(Self::Lexical),
            3 => Some(Self::Temporary),
            _ => None,
        };
        (mark & !7, kind)
    }
}

/// A large buffer that a pad keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The head of its value.
    pub head: u64,
    /// The buffer, as malloc returned it.
    pub pointer: u64,
    pub bytes: u64,
    /// What it held.
    pub kind: BufferKind,
    pub keeper: Keeper,
    /// Whether the lexical belongs to another pad.
    pub captured: bool,
    /// The sub's head; 0 if the value is in no pad.
    pub sub: u64,
    /// The depth of its pad, from 1.
    pub depth: u64,
    /// Address of the lexical's name, or of a global's glob; 0 if there is neither.
    pub name: u64,
    pub valueless: bool,
}

impl Kept {
    /// The string buffer of a value that is in no pad and has no value.
    pub fn undefined(head: u64, pointer: u64, bytes: u64) -> Self {
        Self {
            head,
            pointer,
            bytes,
            kind: BufferKind::String,
            keeper: Keeper::Other,
            captured: false,
            sub: 0,
            depth: 0,
            name: 0,
            valueless: true,
        }
    }
}

/// What the pads hold.
#[derive(Clone, Debug, Default)]
pub struct PadFindings {
    /// Marks, sorted by address, each head once.
    pub marks: Vec<u64>,
    /// Large buffers that are kept.
    pub kept: Vec<Kept>,
    /// Globs in pads, sorted: those that code was compiled to refer to (with ithreads).
    pub globs: Vec<u64>,
    /// Figures, without `names_replaced`.
    pub subs: super::facts::Subs,
    /// Entries beyond the bounds.
    pub left_out: u64,
}

/// Inputs for reading pads.
#[derive(Clone, Copy)]
pub struct PadContext<'a> {
    pub memory: &'a dyn Memory,
    /// The target's layout.
    pub release: &'static Layout,
    /// `PL_main_cv`: the program's file, which always runs.
    pub main_cv: u64,
    pub deadline: Instant,
    pub workers: usize,
    /// Resident bytes. They bound lists of pads and pads, which take eight bytes an entry.
    pub resident_bytes: u64,
}

/// Reads the pads of `subs`. Also returns whether there was time for all of them.
pub fn read_pads(place: &PadContext<'_>, subs: &[u64]) -> (PadFindings, bool) {
    let jobs = subs.len().div_ceil(SUBS_PER_JOB);
    let left = AtomicU64::new(place.resident_bytes / 8);
    let new = || PadReader {
        left: &left,
        pages: PageCache::new(place.memory),
        place: *place,
        lists: HashMap::new(),
        names_kept: 0,
        is_late: false,
        found: PadFindings::default(),
    };
    let (lookers, jobs_left) = work::run_jobs(place.workers, jobs, place.deadline, new, |reader, job| {
        for &address in subs.iter().skip(job * SUBS_PER_JOB).take(SUBS_PER_JOB) {
            if reader.sub(address).is_none() && !reader.is_late {
                reader.found.subs.damaged += 1;
            }
        }
    });
    let mut all = PadFindings::default();
    let mut is_late = jobs_left > 0;
    for reader in lookers {
        is_late |= reader.is_late;
        all.add(reader.found);
    }
    all.deduplicate();
    (all, !is_late)
}

impl PadFindings {
    fn add(&mut self, other: Self) {
        self.marks.extend(other.marks);
        self.kept.extend(other.kept);
        self.globs.extend(other.globs);
        self.left_out += other.left_out;
        let (mine, theirs) = (&mut self.subs, &other.subs);
        strandline_claims::add_fields!(mine, theirs: with_pads, closures, running, pads, damaged);
    }

    /// A value may be in several pads: the pad that owns it names it.
    fn deduplicate(&mut self) {
        self.marks.sort_unstable();
        self.marks.dedup_by_key(|mark| *mark & !7);
        self.kept.sort_unstable_by_key(|kept| (kept.head, kept.captured, kept.sub, kept.depth));
        self.kept.dedup_by_key(|kept| kept.head);
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
    Own,
    State,
    /// Captured from another pad.
    Outer,
    /// Keeps no buffer: `our`, subs.
    Other,
}

#[derive(Clone, Copy)]
struct Name {
    address: u64,
    class: EntryKind,
}

struct PadReader<'a> {
    pages: PageCache<'a>,
    place: PadContext<'a>,
    /// Depths and pad entries that may still be read, for all subs.
    left: &'a AtomicU64,
    lists: HashMap<u64, Arc<Vec<Name>>>,
    /// Names in `lists`.
    names_kept: usize,
    /// Whether the deadline passed before a sub was read.
    is_late: bool,
    found: PadFindings,
}

/// A pad, and whether its sub runs in it.
#[derive(Clone, Copy)]
struct Pad {
    sub: u64,
    depth: u64,
    running: bool,
}

impl PadReader<'_> {
    fn head(&mut self, address: u64) -> Option<(Head, Type)> {
        let bytes: [u8; 24] = self.pages.array(address)?;
        let head = Head::parse(address, &bytes)?;
        Some((head, head.kind(self.place.release)?))
    }

    /// Takes `words` from `left`; `None` if too few are left.
    fn spend(&self, words: u64) -> Option<()> {
        let less = |left: u64| left.checked_sub(words);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok().then_some(())
    }

    /// `None` if the deadline has passed.
    fn check_deadline(&mut self) -> Option<()> {
        self.is_late |= Instant::now() > self.place.deadline;
        (!self.is_late).then_some(())
    }

    /// Reads the pads of the sub at `address`; `None` if they are damaged or time is over.
    fn sub(&mut self, address: u64) -> Option<()> {
        let (head, kind) = self.head(address)?;
        let body: [u8; sub::BYTES] = self.pages.array(head.any)?;
        let of_sub = half_word_at(&body, sub::FLAGS)?;
        let list = word_at(&body, sub::PADLIST)?;
        if of_sub & sub::IS_XSUB != 0 || list == 0 || !matches!(kind, Type::PvCv | Type::PvFm) {
            return Some(());
        }
        let (last, pads) = self.pages.pair(list.checked_add(layout::PADLIST_MAX)?)?;
        let running = u64::try_from(half_word_at(&body, sub::DEPTH)?.cast_signed()).unwrap_or(0);
        if last > MAX_DEPTH || running > last || !pads.is_multiple_of(8) {
            return None;
        }
        let running = if address == self.place.main_cv { running.max(1) } else { running };
        self.found.subs.with_pads += 1;
        self.found.subs.closures += u64::from(of_sub & sub::CLONED != 0);
        self.found.subs.running += u64::from(running > 0);
        self.spend(last)?;
        let names = self.pages.word(pads)?;
        let names = self.names(names)?;
        for depth in 1..=last {
            if depth.is_multiple_of(DEPTHS) {
                self.check_deadline()?;
            }
            let pad = self.pages.word(pads.checked_add(8 * depth)?)?;
            if pad == 0 {
                continue;
            }
            self.check_deadline()?;
            self.found.subs.pads += 1;
            self.pad(pad, &names, Pad { sub: address, depth, running: depth <= running })?;
        }
        Some(())
    }

    fn pad(&mut self, address: u64, names: &[Name], pad: Pad) -> Option<()> {
        let (head, kind) = self.head(address)?;
        let (fill, _) = self.pages.pair(head.any.checked_add(layout::ARRAY_FILL)?)?;
        let count = fill.wrapping_add(1);
        if kind != Type::PvAv || count > MAX_ENTRIES {
            return None;
        }
        self.spend(count)?;
        let mut words = [0u8; 8 * WORDS as usize];
        for first in (0..count).step_by(WORDS as usize) {
            self.check_deadline()?;
            let here = (count - first).min(WORDS);
            let bytes = words.get_mut(..8 * usize::try_from(here).ok()?)?;
            self.pages.read(head.u.checked_add(8 * first)?, bytes).ok()?;
            for index in first..first + here {
                // The first entry is the array of arguments.
                let entry = word_at(&words, 8 * usize::try_from(index - first).ok()?)?;
                if index > 0 && entry != 0 {
                    let temporary = Name { address: 0, class: EntryKind::Temporary };
                    let name = names.get(usize::try_from(index).ok()?).copied().unwrap_or(temporary);
                    self.entry(entry, name, pad);
                }
            }
        }
        Some(())
    }

    /// Records what one entry keeps. Entries that are free or cannot be read keep nothing.
    fn entry(&mut self, address: u64, name: Name, pad: Pad) -> Option<()> {
        let (head, kind) = self.head(address)?;
        let storage = head.storage(kind);
        // A lexical that was assigned a glob is FAKE.
        let is_glob = kind == Type::PvGv && storage == Storage::Plain && head.flags & flags::FAKE == 0;
        if is_glob && name.class != EntryKind::Own && self.found.globs.len() < MAX_MARKS {
            self.found.globs.push(address);
        }
        let read_only = name.class == EntryKind::Temporary && head.flags & flags::READONLY != 0;
        if name.class == EntryKind::Constant || read_only {
            if storage == Storage::String {
                self.mark(&head, Mark::Constant);
            }
            return Some(());
        }
        let alone = !pad.running && head.references == 1;
        let out_of_use = match name.class {
            // A lexical that has a value while its sub is not running keeps it for the next call
            // (`my $x if 0`).
            EntryKind::Temporary => alone || !head.has_value(),
            _ => !head.has_value(),
        };
        // An array or a hash without elements is the same for all references with or without
        // storage.
        let is_lexical = name.class != EntryKind::Temporary;
        let (Buffer { pointer, bytes }, kind) = match storage {
            _ if name.class == EntryKind::Other => return Some(()),
            Storage::String if out_of_use => {
                (unshared_buffer(&mut self.pages, &head, self.place.release)?, BufferKind::String)
            }
            Storage::Array if is_lexical => (empty_array(&mut self.pages, &head)?, BufferKind::Array),
            Storage::Hash if is_lexical => (empty_hash(&mut self.pages, &head)?, BufferKind::Hash),
            _ => return Some(()),
        };
        let temporary = name.class == EntryKind::Temporary;
        self.mark(&head, if temporary { Mark::Temporary } else { Mark::Lexical });
        if bytes > LARGE_BYTES {
            if self.found.kept.len() >= MAX_KEPT {
                self.found.left_out += 1;
                return None;
            }
            self.found.kept.push(Kept {
                head: address,
                pointer,
                bytes,
                kind,
                keeper: if temporary { Keeper::Temporary } else { Keeper::Lexical },
                captured: name.class == EntryKind::Outer,
                sub: pad.sub,
                depth: pad.depth,
                name: name.address,
                valueless: kind != BufferKind::String || !head.has_value(),
            });
        }
        Some(())
    }

    fn mark(&mut self, head: &Head, mark: Mark) {
        if self.found.marks.len() < MAX_MARKS && head.address.is_multiple_of(8) {
            self.found.marks.push(head.address | mark as u64);
        } else {
            self.found.left_out += 1;
        }
    }

    /// Reads a list of names, by index.
    fn names(&mut self, list: u64) -> Option<Arc<Vec<Name>>> {
        if let Some(known) = self.lists.get(&list) {
            return Some(Arc::clone(known));
        }
        let (fill, array) = if self.place.release.has_padnames() {
            self.pages.pair(list.checked_add(layout::PADNAMELIST_FILL)?)?
        } else {
            let (head, kind) = self.head(list)?;
            (kind == Type::PvAv).then_some(())?;
            (self.pages.pair(head.any.checked_add(layout::ARRAY_FILL)?)?.0, head.u)
        };
        let count = fill.wrapping_add(1);
        if count > MAX_NAMES {
            return None;
        }
        let mut names = Vec::new();
        for index in 0..count {
            if index.is_multiple_of(WORDS) {
                self.check_deadline()?;
            }
            let address = self.pages.word(array.checked_add(8 * index)?)?;
            let class = if address == 0 { EntryKind::Temporary } else { self.class(address)? };
            names.push(Name { address, class });
        }
        let names = Arc::new(names);
        // An empty list also takes space in the table.
        let cost = names.len() + 4;
        if self.names_kept + cost > MAX_NAMES_KEPT {
            self.lists.clear();
            self.names_kept = 0;
        }
        self.names_kept += cost;
        self.lists.insert(list, Arc::clone(&names));
        Some(names)
    }

    fn class(&mut self, address: u64) -> Option<EntryKind> {
        if !self.place.release.has_padnames() {
            return self.old_class(address);
        }
        let at = usize::try_from(self.place.release.padname_flags()).ok()?;
        let bytes: [u8; padname::BYTES] = self.name_bytes(address)?;
        let (text, length, name_flags) = (word_at(&bytes, 0)?, *bytes.get(at - 1)?, *bytes.get(at)?);
        Some(match name_flags {
            _ if text == 0 => EntryKind::Temporary,
            _ if length == 0 => EntryKind::Constant,
            of_name if of_name & padname::OUR != 0 => EntryKind::Other,
            _ if self.pages.array(text)? == *b"&" => EntryKind::Other,
            of_name if of_name & (padname::OUTER | padname::FIELD) != 0 => EntryKind::Outer,
            of_name if of_name & padname::STATE != 0 => EntryKind::State,
            _ => EntryKind::Own,
        })
    }

    /// Reads a pad name up to its flags; the bytes after them may not be readable.
    fn name_bytes(&mut self, address: u64) -> Option<[u8; padname::BYTES]> {
        let mut bytes = [0; padname::BYTES];
        let shown = usize::try_from(self.place.release.padname_flags() + 1).ok()?;
        self.pages.read(address, bytes.get_mut(..shown)?).ok()?;
        Some(bytes)
    }

    /// Before 5.22 a pad name is a value.
    fn old_class(&mut self, address: u64) -> Option<EntryKind> {
        let (head, kind) = self.head(address)?;
        if head.flags & flags::PRIVATE_POK == 0 || !kind.can_hold_string() {
            return Some(EntryKind::Temporary);
        }
        let (length, _) = self.pages.pair(head.any.checked_add(layout::CUR)?)?;
        Some(match head.flags {
            _ if length == 0 => EntryKind::Constant,
            of_name if of_name & flags::PAD_OUR != 0 => EntryKind::Other,
            _ if self.pages.array(head.u)? == *b"&" => EntryKind::Other,
            of_name if of_name & flags::FAKE != 0 => EntryKind::Outer,
            of_name if of_name & flags::PAD_STATE != 0 => EntryKind::State,
            _ => EntryKind::Own,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// As malloc returned it.
    pub pointer: u64,
    /// Its capacity.
    pub bytes: u64,
}

/// The buffer of a string that is not shared; `None` if it has none or is damaged.
fn unshared_buffer(pages: &mut PageCache<'_>, head: &Head, release: &Layout) -> Option<Buffer> {
    let (current, length) = pages.pair(head.any.checked_add(layout::CUR)?)?;
    if length == 0 || current >= length {
        return None;
    }
    if head.flags & release.is_cow() != 0 {
        // The last byte counts the other owners.
        let others: [u8; 1] = pages.array(head.u.checked_add(length - 1)?)?;
        (others == [0]).then_some(())?;
    }
    let hidden = if head.has_flags(flags::OOK) { ook_offset(pages, head.u)? } else { 0 };
    let bytes = length.checked_add(hidden).filter(|&bytes| bytes < MAX_BUFFER_BYTES)?;
    Some(Buffer { pointer: head.u.checked_sub(hidden)?, bytes })
}

/// Offset of a string from the beginning of its buffer (`SvOOK_offset`): stored in the byte before
/// the string or, if that is 0, in the word before that byte.
pub fn ook_offset(pages: &mut PageCache<'_>, string: u64) -> Option<u64> {
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

/// Length of an array's storage; the elements start behind `storage` if some were shifted off.
pub fn array_bytes(elements: u64, storage: u64, last: u64) -> Option<u64> {
    let shifted = elements.checked_sub(storage)?;
    last.wrapping_add(1)
        .checked_mul(8)?
        .checked_add(shifted)
        .filter(|bytes| (1..MAX_BUFFER_BYTES).contains(bytes))
}

/// The table of a hash without keys.
fn empty_hash(pages: &mut PageCache<'_>, head: &Head) -> Option<Buffer> {
    let (keys, last) = pages.pair(head.any.checked_add(layout::HASH_KEYS)?)?;
    if keys != 0 || head.u == 0 {
        return None;
    }
    let bytes = last.checked_add(1)?.checked_mul(8).filter(|&bytes| bytes < MAX_BUFFER_BYTES)?;
    Some(Buffer { pointer: head.u, bytes })
}
