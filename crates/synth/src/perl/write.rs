//! Writes a perl into memory: consecutive malloc chunks, as in a fresh heap.

use std::collections::BTreeMap;

use super::layout::{self, BodySpec, Type, body, code, flags, interpreter, padname};
use super::traps::TrapAddresses;
use super::{ExpectedPerl, KeptBuffer, PerlImage, PerlRecipe, PerlVariables};
use crate::{Image, PAGE, Rng, map_line, map_lines};

/// The program's data, with `PL_curinterp` and `PL_thr_key`; and the thread's block.
const DATA: u64 = 0x5555_5573_0000;
const CURINTERP: u64 = DATA + 0x100;
const THR_KEY: u64 = DATA + 0x108;
const TLS: u64 = 0x7f11_2233_4000;
const FS_BASE: u64 = TLS + 0x740;
/// Bytes of a key (`HEK`) besides its text: hash, length, final NUL, flags.
const KEY_BYTES: u64 = 10;
/// Offsets in a key.
const KEY_LENGTH: u64 = 4;
const KEY_TEXT: u64 = 8;
/// Offsets in a head: `sv_any`, reference count, flags, and the word of the type.
const HEAD_REFERENCES: u64 = 8;
const HEAD_FLAGS: u64 = 12;
const HEAD_WORD: u64 = 16;
/// Entries of the hash of shared keys.
const SHARED_KEYS: u64 = 16;

/// A heap of libc that grows.
struct Heap {
    base: u64,
    /// Bytes of the chunks so far.
    chunk_bytes: u64,
    bytes: Vec<u8>,
    /// Addresses of the words of perl's structures.
    structure: Vec<u64>,
}

impl Heap {
    /// Returns what malloc would return for `bytes`: a multiple of 16, after a size word.
    fn alloc(&mut self, bytes: u64) -> u64 {
        let chunk = (bytes + 8).max(32).next_multiple_of(16);
        let pointer = self.base + self.chunk_bytes + 16;
        self.chunk_bytes += chunk;
        // The last 8 bytes that a chunk can hold are those before the size word of the next.
        self.bytes.resize(self.chunk_bytes as usize + 16, 0);
        self.put(pointer - 8, chunk | 1);
        pointer
    }

    fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        let offset = (address - self.base) as usize;
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn put(&mut self, address: u64, word: u64) {
        self.put_bytes(address, &word.to_le_bytes());
    }

    /// Writes a word that belongs to the structure.
    fn put_structure_word(&mut self, address: u64, word: u64) {
        self.put(address, word);
        self.structure.push(address & !7);
    }

    /// Writes a half word that belongs to the structure.
    fn put_structure_half(&mut self, address: u64, word: u32) {
        self.put_bytes(address, &word.to_le_bytes());
        self.structure.push(address & !7);
    }
}

/// An arena of bodies.
struct BodyArena {
    address: u64,
    /// The number of the type whose bodies it has.
    type_number: u32,
}

/// A perl that is being written.
struct Perl {
    heap: Heap,
    rng: Rng,
    /// Heads of the last arena that are not used yet.
    free_heads: Vec<u64>,
    /// Arenas of heads.
    arenas: Vec<u64>,
    /// Free bodies of the last arena of each type number.
    free_bodies: BTreeMap<u32, Vec<u64>>,
    body_arenas: Vec<BodyArena>,
    expected: ExpectedPerl,
    /// The head of the stash of `main`.
    stash: u64,
    trap_addresses: TrapAddresses,
}

/// A string that was written.
struct WrittenString {
    head: u64,
    buffer: u64,
}

/// Which sub is written.
#[derive(Clone, Copy)]
enum SubKind {
    /// The code of the file.
    Main,
    /// The sub `f` with this number.
    Numbered(usize),
}

/// Flags and lengths of a string in a new value.
#[derive(Clone, Copy, Default)]
struct StringSpec {
    flags: u32,
    cur: u64,
    len: u64,
}

impl Perl {
    /// Writes the head of a value whose body is at `any`; returns its address.
    fn write_head(&mut self, kind: Type, flags: u32, any: u64, word: u64) -> u64 {
        let head = self.take_head();
        self.heap.put_structure_word(head, any);
        self.heap.put_structure_half(head + HEAD_REFERENCES, 1);
        self.heap.put_structure_half(head + HEAD_FLAGS, kind as u32 | flags);
        self.heap.put_structure_word(head + HEAD_WORD, word);
        *self.expected.by_type.entry(kind as u32).or_default() += 1;
        self.expected.live_heads += 1;
        head
    }

    /// Takes the address of a free head, from a new arena if there is none.
    fn take_head(&mut self) -> u64 {
        if self.free_heads.is_empty() {
            let arena = self.heap.alloc(layout::ARENA_BYTES);
            let previous = self.arenas.last().copied().unwrap_or(0);
            // The first head of an arena links it, and has the number of heads.
            self.heap.put_structure_word(arena, previous);
            self.heap.put_structure_half(arena + HEAD_REFERENCES, layout::ARENA_HEADS as u32);
            self.heap.put_structure_half(arena + HEAD_FLAGS, 0);
            self.arenas.push(arena);
            self.free_heads
                .extend((1..layout::ARENA_HEADS).rev().map(|slot| arena + slot * layout::HEAD_BYTES));
        }
        // Leaves some heads free, as in a used heap.
        while self.free_heads.len() > 1 && self.rng.chance(10) {
            if let Some(head) = self.free_heads.pop() {
                self.mark_free(head);
            }
        }
        self.free_heads.pop().unwrap_or_else(|| panic!("a new arena has free heads"))
    }

    fn mark_free(&mut self, head: u64) {
        self.heap.put_structure_half(head + HEAD_FLAGS, flags::FREE);
        self.expected.free_heads += 1;
    }

    /// Takes a body of `bytes` from the arenas of a type.
    fn take_body(&mut self, type_number: u32, bytes: u64) -> u64 {
        if self.free_bodies.get(&type_number).is_none_or(Vec::is_empty) {
            let address = self.heap.alloc(layout::ARENA_BYTES);
            self.body_arenas.push(BodyArena { address, type_number });
            let bodies = (0..layout::ARENA_BYTES / bytes).rev().map(|index| address + index * bytes);
            self.free_bodies.insert(type_number, bodies.collect());
        }
        let body = self.free_bodies.get_mut(&type_number).and_then(Vec::pop);
        body.unwrap_or_else(|| panic!("a new arena has free bodies"))
    }

    /// Takes a body of the type; returns `sv_any` for it: the address of the body, less the bytes
    /// that are left out before it.
    fn take_any(&mut self, kind: Type) -> u64 {
        let BodySpec { bytes, left_out_bytes } = kind.body();
        self.take_body(kind as u32, bytes) - left_out_bytes
    }

    /// Makes a value with a string, in `buffer` or a new one.
    fn make_string(&mut self, kind: Type, text: StringSpec, buffer: Option<u64>) -> WrittenString {
        let any = self.take_any(kind);
        let buffer = buffer.unwrap_or_else(|| self.make_buffer(text.len));
        self.heap.put_structure_word(any + body::CUR, text.cur);
        self.heap.put_structure_word(any + body::LEN, text.len);
        WrittenString { head: self.write_head(kind, text.flags, any, buffer), buffer }
    }

    /// Makes a buffer of letters.
    fn make_buffer(&mut self, len: u64) -> u64 {
        let buffer = self.heap.alloc(len);
        let letters: Vec<u8> = (0..len).map(|_| b'a' + self.rng.below(26) as u8).collect();
        self.heap.put_bytes(buffer, &letters);
        buffer
    }

    /// Makes a string in use of less than `max_bytes`.
    fn make_live_string(&mut self, max_bytes: u64) -> u64 {
        let cur = self.rng.below(max_bytes);
        let kind = self.rng.one_of(&[Type::Pv, Type::Pv, Type::Pv, Type::PvIv, Type::PvNv, Type::PvMg]);
        let len = cur + 2 + self.rng.below(14);
        self.expected.strings += 1;
        self.expected.buffers += 1;
        self.expected.payload_bytes += cur;
        self.make_string(kind, StringSpec { flags: flags::POK, cur, len }, None).head
    }

    /// Makes strings that share one buffer, whose last byte counts the other owners.
    fn make_shared_strings(&mut self, max_bytes: u64) {
        let cur = 20 + self.rng.below(max_bytes);
        let len = cur + 10;
        let owners = 2 + self.rng.below(20);
        let text = StringSpec { flags: flags::POK | flags::IS_COW, cur, len };
        let buffer = self.make_string(Type::Pv, text, None).buffer;
        for _ in 1..owners {
            self.make_string(Type::Pv, text, Some(buffer));
        }
        self.heap.put_bytes(buffer + len - 1, &[(owners - 1) as u8]);
        self.expected.strings += owners;
        self.expected.buffers += 1;
        self.expected.payload_bytes += owners * cur;
        self.expected.shared_buffers.add(len);
    }

    /// Makes an array, with room for at least four elements.
    fn make_array(&mut self, elements: &[u64]) -> u64 {
        let any = self.take_any(Type::PvAv);
        let capacity = elements.len().max(4) as u64;
        let storage = self.heap.alloc(8 * capacity);
        for (index, element) in elements.iter().enumerate() {
            self.heap.put_structure_word(storage + 8 * index as u64, *element);
        }
        self.heap.put_structure_word(any + body::FILL, (elements.len() as u64).wrapping_sub(1));
        self.heap.put_structure_word(any + body::MAX, capacity - 1);
        self.heap.put_structure_word(any + body::ALLOC, storage);
        self.write_head(Type::PvAv, 0, any, storage)
    }

    /// Makes a key.
    fn make_key(&mut self, text: &str) -> u64 {
        let key = self.heap.alloc(text.len() as u64 + KEY_BYTES);
        self.put_key(key, 0x1234_5678, text);
        self.trap_addresses.keys.push(key);
        key
    }

    fn put_key(&mut self, key: u64, hash: u64, text: &str) {
        self.heap.put(key, hash);
        self.heap.put_structure_half(key + KEY_LENGTH, text.len() as u32);
        self.heap.put_bytes(key + KEY_TEXT, text.as_bytes());
    }

    /// Makes the stash of `main`.
    fn make_stash(&mut self) -> u64 {
        let name = self.make_key("main");
        let any = self.take_body(Type::Iv as u32, layout::HASH_WITH_AUX_BYTES);
        let table = self.heap.alloc(64);
        self.heap.put_structure_word(any + body::MAX, 7);
        self.heap.put_structure_word(any + body::AUX, name);
        self.write_head(Type::PvHv, flags::OOK | flags::SHARE_KEYS, any, table)
    }

    /// Makes the hash of shared keys, one in each bucket.
    fn make_shared_keys(&mut self) -> u64 {
        let any = self.take_any(Type::PvHv);
        let table = self.heap.alloc(8 * SHARED_KEYS);
        self.heap.put_structure_word(any + body::KEYS, SHARED_KEYS);
        self.heap.put_structure_word(any + body::MAX, SHARED_KEYS - 1);
        for slot in 0..SHARED_KEYS {
            // struct shared_he: the entry (next, key, reference count), then its key.
            let text = format!("key{slot}");
            let entry = self.heap.alloc(layout::ENTRY_BYTES + text.len() as u64 + KEY_BYTES);
            let key = entry + layout::ENTRY_BYTES;
            self.heap.put_structure_word(entry + 8, key);
            self.heap.put(entry + 16, 1);
            self.put_key(key, slot, &text);
            self.heap.put_structure_word(table + 8 * slot, entry);
        }
        self.write_head(Type::PvHv, 0, any, table)
    }

    /// Makes the glob of a sub.
    fn make_glob(&mut self, name: &str) -> u64 {
        let key = self.make_key(name);
        let any = self.take_any(Type::PvGv);
        self.heap.put_structure_word(any + body::GLOB_NAME, key);
        self.heap.put_structure_word(any + body::GLOB_STASH, self.stash);
        self.write_head(Type::PvGv, flags::GLOB, any, 0)
    }

    /// Makes the name of a lexical, followed by its text.
    fn make_padname(&mut self, text: &str, flags: u8) -> u64 {
        const MAX_TEXT_BYTES: u64 = 32;
        let name = self.heap.alloc(padname::BYTES + MAX_TEXT_BYTES);
        let text_address = name + padname::BYTES;
        self.heap.put_bytes(text_address, text.as_bytes());
        self.heap.put_structure_word(name + padname::TEXT, text_address);
        self.heap.put_bytes(name + padname::LENGTH, &[text.len() as u8]);
        self.heap.put_bytes(name + padname::FLAGS, &[flags]);
        self.heap.structure.push(name + padname::LENGTH);
        self.trap_addresses.padnames.push(name);
        name
    }

    /// Makes a sub that is not running, whose pads keep buffers.
    fn make_sub(&mut self, kind: SubKind, depths: u64, max_bytes: u64) -> u64 {
        let sub = match kind {
            SubKind::Main => "main (file scope)".to_owned(),
            SubKind::Numbered(number) => format!("main::f{number}"),
        };
        let lexicals = 1 + self.rng.below(3);
        let targets = self.rng.below(3);
        let mut pads = vec![self.make_name_list(lexicals)];
        for depth in 1..=depths {
            let mut entries = vec![self.make_array(&[])];
            for lexical in 0..lexicals {
                entries.push(self.make_kept(&sub, Some(format!("$s{lexical}")), depth, max_bytes));
            }
            // Captured and state variables are in use.
            entries.push(self.make_live_string(max_bytes));
            entries.push(self.make_live_string(max_bytes));
            entries.push(self.make_constant(max_bytes));
            for _ in 0..targets {
                entries.push(self.make_kept(&sub, None, depth, max_bytes));
            }
            pads.push(self.make_array(&entries));
        }
        let padlist = self.heap.alloc(24);
        let code_flags = match kind {
            SubKind::Main => code::UNIQUE,
            SubKind::Numbered(_) if self.rng.chance(20) => code::CLONED,
            SubKind::Numbered(_) => 0,
        };
        self.put_list(padlist, &pads);
        self.trap_addresses.padlists.push(padlist);
        let glob = match kind {
            SubKind::Main => 0,
            SubKind::Numbered(number) => self.make_glob(&format!("f{number}")),
        };
        let any = self.take_any(Type::PvCv);
        self.heap.put_structure_word(any + body::CODE_STASH, self.stash);
        self.heap.put_structure_word(any + body::CODE_GLOB, glob);
        self.heap.put_structure_word(any + body::CODE_PADLIST, padlist);
        self.heap.put_structure_half(any + body::CODE_FLAGS, code_flags);
        self.heap.put_structure_half(any + body::CODE_DEPTH, 0);
        self.write_head(Type::PvCv, 0, any, 0)
    }

    /// Makes the list of the names in a sub's pads (`PADNAMELIST`): its own lexicals, a captured
    /// one and a state variable.
    fn make_name_list(&mut self, lexicals: u64) -> u64 {
        let mut names = vec![0];
        for lexical in 0..lexicals {
            names.push(self.make_padname(&format!("$s{lexical}"), 0));
        }
        names.push(self.make_padname("$outer", padname::OUTER));
        names.push(self.make_padname("$state", padname::STATE));
        let list = self.heap.alloc(40);
        self.put_list(list, &names);
        list
    }

    /// Writes a list of pads or names: the greatest index, and the table of `items`.
    fn put_list(&mut self, list: u64, items: &[u64]) {
        let table = self.heap.alloc(8 * items.len() as u64);
        for (index, item) in (0..).zip(items) {
            self.heap.put_structure_word(table + 8 * index, *item);
        }
        self.heap.put_structure_word(list, items.len() as u64 - 1);
        self.heap.put_structure_word(list + 8, table);
    }

    /// Makes a pad entry whose buffer is out of use.
    fn make_kept(&mut self, sub: &str, lexical: Option<String>, depth: u64, max_bytes: u64) -> u64 {
        let len = 10 + self.rng.below(max_bytes);
        let temporary = if lexical.is_none() { flags::PADTMP } else { 0 };
        let text = StringSpec { flags: temporary, cur: len / 2, len };
        let WrittenString { head, buffer: address } = self.make_string(Type::Pv, text, None);
        let sub = sub.to_owned();
        self.expected.kept_buffers.push(KeptBuffer { sub, lexical, depth, address, bytes: len });
        self.trap_addresses.kept_heads.push(head);
        head
    }

    /// Makes a constant of the code.
    fn make_constant(&mut self, max_bytes: u64) -> u64 {
        let cur = self.rng.below(max_bytes);
        let len = cur + 2;
        self.expected.strings += 1;
        self.expected.buffers += 1;
        self.expected.payload_bytes += cur;
        self.expected.constant_buffers.add(len);
        let flags = flags::POK | flags::PADTMP | flags::READONLY;
        self.make_string(Type::Pv, StringSpec { flags, cur, len }, None).head
    }

    /// Makes `count` values besides those of subs.
    fn make_values(&mut self, count: usize, max_bytes: u64) {
        for _ in 0..count {
            match self.rng.below(10) {
                0 => drop(self.write_head(Type::Null, 0, 0, 0)),
                1 => {
                    let head = self.write_head(Type::Iv, flags::IOK, 0, 7);
                    self.put_bodyless(head, body::IV);
                }
                2 => {
                    let head = self.write_head(Type::Nv, flags::NOK, 0, 7);
                    self.put_bodyless(head, body::NV);
                }
                3 => {
                    let target = self.make_live_string(max_bytes);
                    let head = self.write_head(Type::Iv, flags::ROK, 0, target);
                    self.put_bodyless(head, body::IV);
                }
                4 if self.rng.chance(20) => self.make_shared_strings(max_bytes),
                5 if self.rng.chance(30) => {
                    let elements: Vec<u64> =
                        (0..self.rng.below(20)).map(|_| self.make_live_string(max_bytes)).collect();
                    self.make_array(&elements);
                }
                _ => drop(self.make_live_string(max_bytes)),
            }
        }
    }

    /// Points `sv_any` of a value without a body so that its field at `offset` is the word of the
    /// head (`SET_SVANY_FOR_BODYLESS_IV`).
    fn put_bodyless(&mut self, head: u64, offset: u64) {
        self.heap.put_structure_word(head, head + HEAD_WORD - offset);
    }

    /// Writes the lists of free bodies, linked by their first words.
    fn put_body_roots(&mut self, interpreter_address: u64) {
        for (type_number, bodies) in std::mem::take(&mut self.free_bodies) {
            let mut next = 0;
            for address in bodies {
                self.heap.put_structure_word(address, next);
                next = address;
            }
            let root = interpreter_address + interpreter::BODY_ROOTS + 8 * u64::from(type_number);
            self.heap.put_structure_word(root, next);
        }
    }

    /// Writes the descriptions of the arenas of bodies, in linked sets (`struct arena_set`).
    fn put_arena_sets(&mut self, interpreter_address: u64) {
        let mut next = 0;
        let arenas = std::mem::take(&mut self.body_arenas);
        for part in arenas.chunks(layout::SET_ARENAS as usize) {
            let set = self.heap.alloc(16 + 24 * layout::SET_ARENAS);
            self.heap.put_structure_word(set, next);
            self.heap.put_structure_half(set + 8, layout::SET_ARENAS as u32);
            self.heap.put_structure_half(set + 12, part.len() as u32);
            for (index, arena) in (0..).zip(part) {
                let description = set + 16 + 24 * index;
                self.heap.put_structure_word(description, arena.address);
                self.heap.put_structure_word(description + 8, layout::ARENA_BYTES);
                self.heap.put_structure_half(description + 16, arena.type_number);
            }
            next = set;
        }
        self.heap.put_structure_word(interpreter_address + interpreter::BODY_ARENAS, next);
    }
}

/// Writes the perl of `recipe`.
pub fn write(recipe: &PerlRecipe) -> PerlImage {
    let mut rng = Rng::new(recipe.seed ^ 0x9e72);
    let base = 0x5555_6000_0000 + PAGE * rng.below(1 << 20);
    let mut perl = Perl {
        heap: Heap { base, chunk_bytes: 0, bytes: Vec::new(), structure: Vec::new() },
        rng,
        free_heads: Vec::new(),
        arenas: Vec::new(),
        free_bodies: BTreeMap::new(),
        body_arenas: Vec::new(),
        expected: ExpectedPerl::default(),
        stash: 0,
        trap_addresses: TrapAddresses::default(),
    };
    let interpreter_address = perl.heap.alloc(interpreter::BYTES);
    perl.stash = perl.make_stash();
    let strtab = perl.make_shared_keys();
    let main = perl.make_sub(SubKind::Main, 1, recipe.max_string_bytes);
    for number in 1..=recipe.subs {
        let depths = 1 + perl.rng.below(recipe.depth as u64);
        perl.make_sub(SubKind::Numbered(number), depths, recipe.max_string_bytes);
    }
    perl.make_values(recipe.values, recipe.max_string_bytes);
    finish(recipe, perl, interpreter_address, strtab, main)
}

/// Writes the interpreter, which is at `interpreter_address`, and makes an image of the perl.
fn finish(
    recipe: &PerlRecipe,
    mut perl: Perl,
    interpreter_address: u64,
    strtab: u64,
    main: u64,
) -> PerlImage {
    for head in std::mem::take(&mut perl.free_heads) {
        perl.mark_free(head);
    }
    perl.expected.arenas = perl.arenas.len() as u64;
    perl.put_body_roots(interpreter_address);
    perl.put_arena_sets(interpreter_address);
    let heap = &mut perl.heap;
    heap.put_structure_word(interpreter_address + interpreter::STRTAB, strtab);
    heap.put_structure_word(interpreter_address + interpreter::DEFSTASH, perl.stash);
    heap.put_structure_word(interpreter_address + interpreter::SV_COUNT, perl.expected.live_heads);
    heap.put_structure_word(interpreter_address + interpreter::SV_ROOT, 0);
    let last_arena = perl.arenas.last().copied().unwrap_or(0);
    heap.put_structure_word(interpreter_address + interpreter::SV_ARENAROOT, last_arena);
    heap.put_structure_word(interpreter_address + interpreter::MAIN_CV, main);
    perl.expected.kept_buffers.sort();
    perl.trap_addresses.arenas = perl.arenas;
    perl.trap_addresses.string_heads.clone_from(&perl.trap_addresses.kept_heads);

    let heap_bytes = (perl.heap.bytes.len() as u64).next_multiple_of(PAGE);
    let mut image = Image::of(&[(DATA, PAGE), (perl.heap.base, heap_bytes), (TLS, 2 * PAGE)]);
    image.put(perl.heap.base, &perl.heap.bytes);
    image.put_word(CURINTERP, interpreter_address);
    image.put(THR_KEY, &0_u32.to_le_bytes());
    // The thread's own interpreter: key 0, its sequence number odd.
    image.put_word(FS_BASE, FS_BASE);
    image.put_row(FS_BASE + layout::THREAD_SPECIFIC, [1, interpreter_address]);
    let maps = map_lines(&[
        map_line(DATA - 0x10_0000, 0x10_0000, "r-xp 00000000 fe:01 4711 /usr/bin/perl"),
        map_line(DATA, PAGE, "rw-p 00100000 fe:01 4711 /usr/bin/perl"),
        map_line(perl.heap.base, heap_bytes, "rw-p 00000000 00:00 0 [heap]"),
        map_line(TLS, 2 * PAGE, "rw-p 00000000 00:00 0 "),
    ]);
    PerlImage {
        recipe: *recipe,
        image,
        variables: PerlVariables {
            curinterp: CURINTERP,
            thr_key: THR_KEY,
            strtab: interpreter_address + interpreter::STRTAB,
            sv_count: interpreter_address + interpreter::SV_COUNT,
            sv_arenaroot: interpreter_address + interpreter::SV_ARENAROOT,
            main_cv: interpreter_address + interpreter::MAIN_CV,
            body_roots: interpreter_address + interpreter::BODY_ROOTS,
            body_arenas: interpreter_address + interpreter::BODY_ARENAS,
        },
        fs_base: FS_BASE,
        expected: perl.expected,
        maps,
        structure: perl.heap.structure,
        trap_addresses: perl.trap_addresses,
    }
}
