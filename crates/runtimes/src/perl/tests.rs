//! A small perl 5.36 in fabricated memory, whole and damaged.

mod unread;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::facts::{BufferKind, Keeper};
use super::interpreter::{InterpreterReading, Reader};
use super::locate::InterpreterLocation;
use super::objects::Type;
use super::*;
use crate::perl::layout::{ENTRY_BYTES, HEAD_BYTES, Layout, flags};
use strandline_claims::class::{FreeSlots, Refinement};
use strandline_process::map::AddressSpace;
use strandline_process::pages::{PAGE_BYTES, page_of};
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;

// Where the parts of the fabricated interpreter are.
const INTERPRETER: u64 = 0x10_0000;
const HEADS: u64 = 0x11_0010;
const SETS: u64 = 0x12_0010;
const BODIES: u64 = 0x13_0010;
const HEAP: u64 = 0x20_0000;
/// Heads of an arena, the one that links arenas included (`PERL_ARENA_SIZE`).
const SLOTS: u64 = 170;

/// A fabricated interpreter, with one arena of heads and one of bodies for each type.
#[derive(Clone)]
struct Fabric {
    /// Its memory, by the address of each page.
    pages: BTreeMap<u64, Vec<u8>>,
    release: &'static Layout,
    /// Number of heads in use.
    heads: u64,
    /// By type: where the next body goes, and its size.
    bodies: BTreeMap<u64, (u64, u64)>,
    /// Where the next chunk of malloc goes.
    heap: u64,
}

impl Memory for Fabric {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let mut read_bytes = 0;
        while read_bytes < buffer.len() {
            let Some(at) = address.checked_add(read_bytes as u64) else { break };
            let Some(page) = self.pages.get(&page_of(at)) else { break };
            let rest = &page[(at % PAGE_BYTES) as usize..];
            let count = rest.len().min(buffer.len() - read_bytes);
            buffer[read_bytes..read_bytes + count].copy_from_slice(&rest[..count]);
            read_bytes += count;
        }
        read_bytes
    }
}

/// `svtype`s of 5.36.
const PV: u32 = 3;
const PVGV: u32 = 9;
const PVAV: u32 = 11;
const PVHV: u32 = 12;
const PVCV: u32 = 13;
const WITH_AUX: u32 = 1;

impl Fabric {
    fn new() -> Self {
        let release = RELEASES.iter().find(|release| release.version == 36).unwrap();
        let mut fabric =
            Self { pages: BTreeMap::new(), release, heads: 0, bodies: BTreeMap::new(), heap: HEAP };
        fabric.put(HEADS, &[0, SLOTS, 0]);
        for slot in 1..SLOTS {
            fabric.put(HEADS + slot * HEAD_BYTES, &[0, 0xff << 32, 0]);
        }
        let types = [PV, PVGV, PVAV, PVHV, PVCV, WITH_AUX, 0];
        fabric.put(SETS, &[0, 169 | (types.len() as u64) << 32]);
        for (index, code) in types.into_iter().enumerate() {
            let bytes = match code {
                0 => ENTRY_BYTES,
                WITH_AUX => 88,
                code => Type::from_code(code, release).unwrap().body_layout(release).unwrap().bytes,
            };
            let arena = BODIES + 0x1_0000 * index as u64;
            fabric.put(SETS + 16 + 24 * index as u64, &[arena, 4080 / bytes * bytes, u64::from(code)]);
            fabric.put(arena, &[0; 510]);
            fabric.bodies.insert(u64::from(code), (arena, bytes));
        }
        let strtab = fabric.hash(8, 0);
        let address = |offset: u64| INTERPRETER + offset;
        fabric.put(address(release.strtab), &[strtab]);
        fabric.put(address(release.sv_arenaroot), &[HEADS]);
        fabric.put(address(release.body_roots), &[0; 16]);
        fabric.put(address(release.body_arenas), &[SETS]);
        fabric.put(address(release.main_cv), &[0]);
        fabric
    }

    fn put(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put_bytes(address, &bytes);
    }

    fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            let page = self.pages.entry(page_of(at)).or_insert_with(|| vec![0; PAGE_BYTES as usize]);
            page[(at % PAGE_BYTES) as usize] = *byte;
        }
    }

    fn head(&mut self, any: u64, flags: u32, references: u32, u: u64) -> u64 {
        self.heads += 1;
        let address = HEADS + self.heads * HEAD_BYTES;
        self.put(address, &[any, u64::from(references) | u64::from(flags) << 32, u]);
        self.put(INTERPRETER + self.release.sv_count, &[self.heads]);
        address
    }

    /// Makes a body; returns the pointer that a head would hold.
    fn body(&mut self, code: u32, skipped: u64) -> u64 {
        let (next, bytes) = self.bodies.get_mut(&u64::from(code)).unwrap();
        let start = *next;
        *next += *bytes;
        start - skipped
    }

    /// Makes a chunk: its size word, then zeros.
    fn chunk(&mut self, bytes: u64) -> u64 {
        let size = chunk::chunk_bytes(bytes);
        let chunk = self.heap;
        self.heap += size;
        // The last word of a chunk is the first of the next.
        self.put(chunk + 8, &[size | 1]);
        self.put(chunk + 16, &vec![0; (size / 8 - 1) as usize]);
        chunk + 16
    }

    fn string(&mut self, text: &str, length: u64, flags: u32) -> u64 {
        let buffer = self.chunk(length);
        self.put_bytes(buffer, text.as_bytes());
        self.string_at(buffer, text.len() as u64, length, flags)
    }

    fn string_at(&mut self, buffer: u64, current: u64, length: u64, flags: u32) -> u64 {
        let any = self.body(PV, 16);
        self.put(any + 16, &[current, length]);
        self.head(any, PV | flags, 1, buffer)
    }

    fn array(&mut self, elements: &[u64]) -> u64 {
        let storage = self.chunk(8 * elements.len() as u64);
        self.put(storage, elements);
        let any = self.body(PVAV, 0);
        let last = (elements.len() as u64).wrapping_sub(1);
        self.put(any, &[0, 0, last, last, storage]);
        self.head(any, PVAV, 1, storage)
    }

    fn hash(&mut self, buckets: u64, keys: u64) -> u64 {
        let table = self.chunk(8 * buckets);
        let any = self.body(PVHV, 0);
        self.put(any, &[0, 0, keys, buckets - 1]);
        self.head(any, PVHV | flags::SHARE_KEYS, 1, table)
    }

    fn key(&mut self, name: &str) -> u64 {
        let key = self.chunk(10 + name.len() as u64);
        self.put(key, &[(name.len() as u64) << 32]);
        self.put_bytes(key + 8, name.as_bytes());
        key
    }

    fn glob(&mut self, package: &str, name: &str) -> u64 {
        let (package, name) = (self.key(package), self.key(name));
        let any = self.body(WITH_AUX, 0);
        self.put(any, &[0, 0, 0, 7, package]);
        let table = self.chunk(64);
        let stash = self.head(any, PVHV | flags::OOK | flags::SHARE_KEYS, 1, table);
        let any = self.body(PVGV, 0);
        self.put(any, &[stash, 0, 0, 0, name, stash]);
        let contents = self.chunk(80);
        self.head(any, PVGV | flags::GLOB, 1, contents)
    }

    fn pad_name(&mut self, name: &str, name_flags: u8) -> u64 {
        let address = self.chunk(80);
        let text = address + 50;
        self.put_bytes(text, name.as_bytes());
        self.put(address, &[text, 0, 0, 0, 1]);
        self.put_bytes(address + 40, &[name.len() as u8, name_flags]);
        address
    }

    /// Makes a sub `main::NAME` with one pad for each of `pads`, whose current depth of recursion
    /// is `depth`.
    fn sub(&mut self, name: &str, names: &[u64], pads: &[&[u64]], depth: u64) -> u64 {
        let glob = self.glob("main", name);
        let array = self.chunk(8 * names.len() as u64);
        self.put(array, names);
        let list = self.chunk(40);
        self.put(list, &[names.len() as u64 - 1, array]);
        let pad_arrays: Vec<u64> = pads.iter().map(|pad| self.array(pad)).collect();
        let pointers = self.chunk(8 + 8 * pad_arrays.len() as u64);
        self.put(pointers, &[&[list], pad_arrays.as_slice()].concat());
        let padlist = self.chunk(24);
        self.put(padlist, &[pad_arrays.len() as u64, pointers]);
        let any = self.body(PVCV, 0);
        self.put(any + 56, &[glob, 0, padlist, 0, 0, depth]);
        self.head(any, PVCV, 1, 0)
    }

    fn runs(&self) -> Vec<AddressRange> {
        self.pages.keys().map(|&page| AddressRange::sized(page, PAGE_BYTES)).collect()
    }

    fn read(&self) -> (InterpreterReading, Refinements) {
        let refinements = Refinements::new(self.runs());
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let resident = |range: AddressRange| {
            let cut = self.runs().into_iter().map(|run| run.intersection(range));
            cut.filter(|run| !run.is_empty()).collect()
        };
        let space = AddressSpace::default();
        let context = Context { workers: 2, ..Context::of_image(self, &process, &space, &resident) };
        let slots = Slots::new(&refinements).unwrap();
        let release = self.release;
        let location = InterpreterLocation { is_main: true, ..locate::location_at(INTERPRETER, release) };
        let reading = Reader::new(&context, self, release, &refinements, slots).read(&location);
        (reading, refinements)
    }
}

/// The claim on the chunk at `pointer`.
fn claimed(refinements: &Refinements, pointer: u64, usable: u64) -> Option<Refinement> {
    refinements.finder().find(pointer, usable)
}

/// The codes of the caveats.
fn codes(reading: &InterpreterReading) -> Vec<&str> {
    reading.caveats.iter().map(|caveat| caveat.code.as_str()).collect()
}

/// Heads of the entries of [`with_sub`].
struct Entries {
    /// The lexical's, by depth of recursion.
    at_depth_1: u64,
    at_depth_2: u64,
    constant: u64,
    /// A lexical with a string.
    string: u64,
    /// A lexical with a number and the buffer of a string.
    number: u64,
}

/// A sub with a lexical and a target that keep buffers, with pads for two depths of recursion and
/// `depth` as its current one. Two more lexicals have values: a string, and a number with the
/// buffer of a string.
fn with_sub(depth: u64) -> (Fabric, Entries) {
    let mut fabric = Fabric::new();
    let at_depth_1 = fabric.string("", 5000, 0);
    let at_depth_2 = fabric.string("", 9000, 0);
    let string = fabric.string("still here", 7000, flags::POK);
    let number = fabric.string("", 8000, 0x1100);
    let target = fabric.string("a target's", 600, flags::POK | flags::PADTMP);
    let constant = fabric.string("a constant", 700, flags::POK | flags::READONLY | flags::PADTMP);
    let (scalar, empty_name) = (fabric.pad_name("$buf", 0), fabric.pad_name("", 0));
    let names = [0, scalar, 0, empty_name, fabric.pad_name("$still", 0), fabric.pad_name("$count", 0)];
    let first = [0, at_depth_1, target, constant, string, number];
    fabric.sub("f", &names, &[&first, &[0, at_depth_2, 0, constant]], depth);
    (fabric, Entries { at_depth_1, at_depth_2, constant, string, number })
}

fn buffer_of(fabric: &Fabric, head: u64) -> u64 {
    fabric.read_word(head + 16).unwrap()
}

#[test]
fn what_pads_keep_is_named() {
    let (fabric, Entries { at_depth_1, at_depth_2, constant, string, number }) = with_sub(0);
    let (reading, refinements) = fabric.read();
    assert_eq!(reading.caveats, []);
    let facts = &reading.facts;
    assert!(facts.read);
    assert_eq!((facts.sv_count, facts.heads.live), (fabric.heads, fabric.heads));
    assert_eq!(facts.heads.free, SLOTS - 1 - fabric.heads);
    let top: Vec<_> =
        facts.retained.top.iter().map(|buffer| (buffer.holder.as_str(), buffer.bytes)).collect();
    assert_eq!(top, [("main::f $buf (depth 2)", 9000), ("main::f $buf (depth 1)", 5000)]);
    assert!(facts.retained.top.iter().all(|buffer| buffer.valueless));
    assert_eq!(facts.retained.top[0].head, format!("{at_depth_2:#x}"));
    assert_eq!((facts.retained.lexicals.bytes, facts.retained.temporaries.bytes), (14000, 600));
    assert_eq!((facts.strings.constants.buffers, facts.strings.constants.capacity_bytes), (1, 700));
    let slots = Slots::new(&refinements).unwrap();
    let first = claimed(&refinements, buffer_of(&fabric, at_depth_1), 5000).unwrap();
    assert_eq!((first.slot, first.bytes), (slots.pad_retained, 5000));
    assert_eq!(claimed(&refinements, buffer_of(&fabric, constant), 704).unwrap().slot, slots.constant);
    // A value is in use even if the sub does not run; a number with a string's buffer is not
    // claimed.
    assert_eq!(claimed(&refinements, buffer_of(&fabric, string), 7000).unwrap().slot, slots.string);
    assert_eq!(claimed(&refinements, buffer_of(&fabric, number), 8000), None);
    assert_eq!(reading.named_blocks.len(), 2);
    let heads = claimed(&refinements, HEADS, 4088).unwrap();
    let free_bytes = (facts.heads.free * HEAD_BYTES) as u16;
    let free = FreeSlots { class: slots.arena_free, bytes_on_pages: [free_bytes, 0] };
    assert_eq!((heads.bytes, heads.free), (4080, Some(free)));
}

#[test]
fn a_running_sub_uses_its_targets() {
    for (depth, kept) in [(0, 600), (1, 0), (2, 0)] {
        let (fabric, _) = with_sub(depth);
        let facts = fabric.read().0.facts;
        assert_eq!(facts.subs.running, u64::from(depth > 0));
        assert_eq!(facts.retained.temporaries.bytes, kept, "depth {depth}");
        assert_eq!(facts.retained.lexicals.bytes, 14000, "without a value, running or not");
    }
}

#[test]
fn captured_and_state_variables_are_in_use() {
    let mut fabric = Fabric::new();
    let [outer, state, referred, our] = [(); 4].map(|()| fabric.string("in use", 5000, flags::POK));
    fabric.put(referred + 8, &[2 | u64::from(PV | flags::POK) << 32]);
    let names = [("$outer", 1), ("$state", 2), ("$referred", 0), ("$our", 16)];
    let names = names.map(|(name, name_flags)| fabric.pad_name(name, name_flags));
    let array_name = fabric.pad_name("@list", 0);
    let array = fabric.array(&[0; 800]);
    let body = fabric.read_word(array).unwrap();
    fabric.put(body + 16, &[u64::MAX]);
    let names = [&[0], names.as_slice(), &[array_name]].concat();
    let sub = fabric.sub("f", &names, &[&[0, outer, state, referred, our, array]], 0);
    let body = fabric.read_word(sub).unwrap();
    for depth in [0, 1] {
        fabric.put(body + 96, &[depth]);
        let facts = fabric.read().0.facts;
        assert_eq!((facts.strings.buffers, facts.subs.running), (4, depth));
        let [kept] = facts.retained.top.as_slice() else { panic!("{:?}", facts.retained) };
        assert_eq!((kept.holder.as_str(), kept.kind), ("main::f @list (depth 1)", BufferKind::Array));
        assert_eq!((kept.bytes, facts.retained.containers.bytes), (6400, 6400));
    }
}

#[test]
fn short_strings_have_short_buffers() {
    let mut fabric = Fabric::new();
    fabric.string("short", 16, flags::POK);
    fabric.string("was long", 4000, flags::POK);
    fabric.string("more than fifteen", 24, flags::POK);
    fabric.string("was long", 16, flags::POK);
    let strings = fabric.read().0.facts.strings;
    assert_eq!((strings.short.strings, strings.short.chunk_bytes), (2, 64));
    assert_eq!((strings.equal.strings, strings.equal.repeated_bytes), (4, 8), "CUR, not LEN");
}

#[test]
fn strings_on_missing_pages_are_not_compared() {
    let mut fabric = Fabric::new();
    fabric.string("resident", 16, flags::POK);
    fabric.string_at(HEAP + 0x10_0000, 10, 16, flags::POK);
    let equal = fabric.read().0.facts.strings.equal;
    assert_eq!((equal.strings, equal.skipped, equal.skipped_bytes), (1, 1, 10));
}

#[test]
fn a_variable_made_read_only_is_no_constant() {
    let mut fabric = Fabric::new();
    let cow = fabric.release.cow_flag();
    fabric.string("Readonly my $x", 100, flags::POK | flags::READONLY | cow);
    fabric.string("folded", 200, flags::POK | flags::READONLY | flags::PADTMP);
    let strings = fabric.read().0.facts.strings;
    assert_eq!((strings.constants.buffers, strings.constants.capacity_bytes), (1, 200));
}

#[test]
fn shared_buffers_are_counted_once() {
    let mut fabric = Fabric::new();
    let cow = fabric.release.cow_flag();
    let buffer = fabric.chunk(2000);
    fabric.put_bytes(buffer + 1999, &[2]);
    for _ in 0..3 {
        fabric.string_at(buffer, 1000, 2000, flags::POK | cow);
    }
    fabric.string("alone", 100, flags::POK | cow);
    let shifted = fabric.chunk(64);
    fabric.put_bytes(shifted + 5, &[6]);
    fabric.string_at(shifted + 6, 10, 58, flags::POK | flags::OOK);
    let (reading, refinements) = fabric.read();
    let strings = reading.facts.strings;
    let cow = &strings.cow;
    assert_eq!((cow.buffers, cow.owners, cow.shared_bytes, cow.saved_bytes), (1, 3, 2000, 4000));
    assert_eq!((strings.values, strings.buffers, strings.capacity_bytes), (5, 3, 2000 + 100 + 64));
    assert_eq!((strings.payload_bytes, strings.offset), (3015, 1));
    let slots = Slots::new(&refinements).unwrap();
    assert_eq!(claimed(&refinements, buffer, 2008).unwrap().slot, slots.shared_string);
    assert_eq!(claimed(&refinements, shifted, 72).unwrap().bytes, 64);
}

#[test]
fn a_global_without_a_value_is_named_where_code_has_its_name() {
    let mut fabric = Fabric::new();
    let compiled = fabric.string("", 6000, 0);
    let made = fabric.string("", 5000, 0);
    let globs = ["buffer", "user_0815"].map(|name| fabric.glob("Some::Where", name));
    for (glob, scalar) in globs.into_iter().zip([compiled, made]) {
        let contents = buffer_of(&fabric, glob);
        fabric.put(contents, &[scalar]);
    }
    fabric.sub("f", &[0, 0], &[&[0, globs[0]]], 0);
    let (reading, refinements) = fabric.read();
    let retained = &reading.facts.retained;
    let top: Vec<_> = retained.top.iter().map(|buffer| (buffer.holder.as_str(), buffer.keeper)).collect();
    let unnamed = format!("a package variable, head at {made:#x}");
    assert_eq!(top, [("$Some::Where::buffer", Keeper::Global), (&unnamed, Keeper::Global)]);
    assert_eq!((retained.other.bytes, retained.total.bytes), (11000, 11000));
    let slots = Slots::new(&refinements).unwrap();
    assert_eq!(claimed(&refinements, buffer_of(&fabric, made), 5000).unwrap().slot, slots.global_retained);
}

#[test]
fn memory_of_no_variable_stays_mallocs() {
    let mut fabric = Fabric::new();
    let head = fabric.string("", 6000, 0);
    let (reading, refinements) = fabric.read();
    assert_eq!((reading.facts.retained.top.len(), reading.facts.retained.total.bytes), (0, 0));
    assert_eq!(claimed(&refinements, buffer_of(&fabric, head), 6000), None);
}

/// Asserts that nothing is claimed, and that the only caveat has this code.
fn assert_refused(fabric: &Fabric, code: &str) {
    let (reading, refinements) = fabric.read();
    assert!(!reading.facts.read && refinements.is_empty() && reading.named_blocks.is_empty());
    assert_eq!(codes(&reading), [code]);
}

#[test]
fn structures_that_disagree_claim_nothing() {
    let (intact, _) = with_sub(0);
    let mut fabric = intact.clone();
    fabric.put(INTERPRETER + fabric.release.sv_count, &[fabric.heads + 5]);
    assert_refused(&fabric, "perl_disagrees");
    let mut fabric = intact.clone();
    fabric.put(HEADS, &[HEADS]);
    assert_refused(&fabric, "perl_damaged");
    let mut fabric = intact.clone();
    fabric.put(HEADS + 8, &[3]);
    assert_refused(&fabric, "perl_damaged");
    let mut fabric = intact.clone();
    // The first head is that of a variable, whose type is checked first.
    fabric.put(HEADS + HEAD_BYTES + 8, &[1 | 0x55 << 32]);
    assert_refused(&fabric, "perl_damaged");
    let mut fabric = intact.clone();
    fabric.put(SETS, &[SETS]);
    assert_refused(&fabric, "perl_damaged");
    let mut fabric = intact.clone();
    fabric.put(SETS + 16, &[BODIES + 8]);
    assert_refused(&fabric, "perl_disagrees");
    let mut fabric = intact;
    fabric.pages.remove(&page_of(HEADS));
    assert_refused(&fabric, "perl_damaged");
}

#[test]
fn chains_of_keys_end() {
    let mut fabric = Fabric::new();
    let strtab = fabric.read_word(INTERPRETER + fabric.release.strtab).unwrap();
    let table = buffer_of(&fabric, strtab);
    let entry = fabric.chunk(44);
    fabric.put(entry, &[entry, entry + 24, 1, 4 << 32]);
    fabric.put(table + 8, &[entry]);
    let (reading, _) = fabric.read();
    assert!(reading.facts.read);
    assert_eq!(codes(&reading), ["perl_keys_damaged"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn damage_never_panics(patches in proptest::collection::vec((0usize..1 << 16, any::<u8>()), 1..40)) {
        let (mut fabric, _) = with_sub(0);
        let addresses: Vec<u64> = fabric.pages.keys().copied().collect();
        for (position, value) in patches {
            let page = addresses[position % addresses.len()];
            let at = page + (position as u64 * 37) % PAGE_BYTES;
            fabric.put_bytes(at, &[value]);
        }
        fabric.read();
    }
}
