//! Writes a perl into memory: consecutive malloc chunks, as in a fresh heap.

use super::layout::{self, Type, body, code, flags, interpreter, padname};
use super::traps::TrapAddresses;
use super::{ExpectedPerl, KeptBuffer, PerlImage, PerlRecipe, PerlVariables};
use crate::{Image, PAGE, Rng, map_lines};

const DATA: u64 = 0x5555_5573_0000;
const TLS: u64 = 0x7f11_2233_4000;
const FS_BASE: u64 = TLS + 0x740;

/// A heap that grows.
struct Heap {
    base: u64,
    next: u64,
    bytes: Vec<u8>,
    structure: Vec<u64>,
}

impl Heap {
    /// Returns what malloc would return for `bytes`: a multiple of 16, behind a size word.
    fn alloc(&mut self, bytes: u64) -> u64 {
        let chunk = (bytes + 8).max(32).next_multiple_of(16);
        let pointer = self.base + self.next + 16;
        self.next += chunk;
        // The last 8 bytes that a chunk can hold are those before the size word of the next.
        self.bytes.resize(self.next as usize + 16, 0);
        self.put(pointer - 8, chunk | 1);
        pointer
    }

    fn put_bytes(&mut self, address: u64, bytes: &[u8]) {
        let at = (address - self.base) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put(&mut self, address: u64, word: u64) {
        self.put_bytes(address, &word.to_le_bytes());
    }

    /// Writes a word that belongs to the structure.
    fn put_structure_word(&mut self, address: u64, word: u64) {
        self.put(address, word);
        self.structure.push(address & !7);
    }

    fn link_half(&mut self, address: u64, word: u32) {
        self.put_bytes(address, &word.to_le_bytes());
        self.structure.push(address & !7);
    }
}

/// Bodies of one size, in their own arenas.
#[derive(Default)]
struct Bodies {
    /// Free bodies of the last arena.
    free: Vec<u64>,
}

struct Perl {
    heap: Heap,
    dice: Rng,
    /// Heads of the last arena that are not used yet.
    free_heads: Vec<u64>,
    arenas: Vec<u64>,
    /// Size and free bodies, by the type number of their arenas.
    bodies: std::collections::BTreeMap<u32, (u64, Bodies)>,
    body_arenas: Vec<(u64, u32)>,
    expected: ExpectedPerl,
    stash: u64,
    places: TrapAddresses,
}

/// Flags and lengths of a string in a new value.
#[derive(Clone, Copy, Default)]
struct StringSpec {
    flags: u32,
    cur: u64,
    len: u64,
}

impl Perl {
    fn head(&mut self, kind: Type, more: u32, any: u64, word: u64) -> u64 {
        let at = self.place_of_head();
        self.heap.put_structure_word(at, any);
        self.heap.link_half(at + 8, 1);
        self.heap.link_half(at + 12, kind as u32 | more);
        self.heap.put_structure_word(at + 16, word);
        *self.expected.by_type.entry(kind as u32).or_default() += 1;
        self.expected.live_heads += 1;
        at
    }

    fn place_of_head(&mut self) -> u64 {
        if self.free_heads.is_empty() {
            let arena = self.heap.alloc(layout::ARENA_BYTES);
            let before = self.arenas.last().copied().unwrap_or(0);
            self.heap.put_structure_word(arena, before);
            self.heap.link_half(arena + 8, layout::SLOTS as u32);
            self.heap.link_half(arena + 12, 0);
            self.arenas.push(arena);
            self.free_heads.extend((1..layout::SLOTS).rev().map(|slot| arena + slot * layout::HEAD_BYTES));
        }
        // Leaves some heads free, as in a used heap.
        while self.free_heads.len() > 1 && self.dice.chance(10) {
            let at = self.free_heads.pop().unwrap_or(0);
            self.free(at);
        }
        self.free_heads.pop().unwrap_or(0)
    }

    fn free(&mut self, head: u64) {
        self.heap.link_half(head + 12, flags::FREE);
        self.expected.free_heads += 1;
    }

    /// Takes a body of `bytes` from the arenas of type `whose`.
    fn body(&mut self, whose: u32, bytes: u64) -> u64 {
        if self.bodies.get(&whose).is_none_or(|(_, bodies)| bodies.free.is_empty()) {
            let arena = self.heap.alloc(layout::ARENA_BYTES);
            self.body_arenas.push((arena, whose));
            let free = (0..layout::ARENA_BYTES / bytes).rev().map(|index| arena + index * bytes).collect();
            self.bodies.insert(whose, (bytes, Bodies { free }));
        }
        self.bodies.get_mut(&whose).and_then(|(_, bodies)| bodies.free.pop()).unwrap_or(0)
    }

    /// Takes a body of the type; returns `sv_any` for it.
    fn any(&mut self, kind: Type) -> u64 {
        let (bytes, hidden) = kind.body();
        self.body(kind as u32, bytes) - hidden
    }

    /// Makes a value with a string buffer; returns its head and the buffer.
    fn string(&mut self, kind: Type, text: StringSpec, buffer: Option<u64>) -> (u64, u64) {
        let any = self.any(kind);
        let buffer = buffer.unwrap_or_else(|| self.buffer(text.len));
        self.heap.put_structure_word(any + body::CUR, text.cur);
        self.heap.put_structure_word(any + body::LEN, text.len);
        (self.head(kind, text.flags, any, buffer), buffer)
    }

    fn buffer(&mut self, len: u64) -> u64 {
        let buffer = self.heap.alloc(len);
        let letters: Vec<u8> = (0..len).map(|_| b'a' + self.dice.below(26) as u8).collect();
        self.heap.put_bytes(buffer, &letters);
        buffer
    }

    fn live_string(&mut self, most: u64) -> u64 {
        let cur = self.dice.below(most);
        let kind = self.dice.one_of(&[Type::Pv, Type::Pv, Type::Pv, Type::PvIv, Type::PvNv, Type::PvMg]);
        let len = cur + 2 + self.dice.below(14);
        self.expected.strings += 1;
        self.expected.buffers += 1;
        self.expected.payload_bytes += cur;
        self.string(kind, StringSpec { flags: flags::POK, cur, len }, None).0
    }

    /// Makes strings that share one buffer, whose last byte counts the other owners.
    fn shared_strings(&mut self, most: u64) {
        let cur = 20 + self.dice.below(most);
        let len = cur + 10;
        let owners = 2 + self.dice.below(20);
        let (_, buffer) =
            self.string(Type::Pv, StringSpec { flags: flags::POK | flags::IS_COW, cur, len }, None);
        for _ in 1..owners {
            self.string(Type::Pv, StringSpec { flags: flags::POK | flags::IS_COW, cur, len }, Some(buffer));
        }
        self.heap.put_bytes(buffer + len - 1, &[(owners - 1) as u8]);
        self.expected.strings += owners;
        self.expected.buffers += 1;
        self.expected.payload_bytes += owners * cur;
        self.expected.shared.add(len);
    }

    fn array(&mut self, elements: &[u64]) -> u64 {
        let any = self.any(Type::PvAv);
        let storage = self.heap.alloc(8 * elements.len().max(4) as u64);
        for (index, element) in elements.iter().enumerate() {
            self.heap.put_structure_word(storage + 8 * index as u64, *element);
        }
        self.heap.put_structure_word(any + body::FILL, (elements.len() as u64).wrapping_sub(1));
        self.heap.put_structure_word(any + body::MAX, elements.len().max(4) as u64 - 1);
        self.heap.put_structure_word(any + body::ALLOC, storage);
        self.head(Type::PvAv, 0, any, storage)
    }

    /// Makes a key: hash, length, bytes, final NUL, flags.
    fn key(&mut self, text: &str) -> u64 {
        let key = self.heap.alloc(text.len() as u64 + 10);
        self.heap.put(key, 0x1234_5678);
        self.heap.link_half(key + 4, text.len() as u32);
        self.heap.put_bytes(key + 8, text.as_bytes());
        self.places.keys.push(key);
        key
    }

    /// Makes the stash of `main`.
    fn stash(&mut self) -> u64 {
        let name = self.key("main");
        let any = self.body(Type::Iv as u32, layout::HASH_WITH_AUX_BYTES);
        let table = self.heap.alloc(64);
        self.heap.put_structure_word(any + body::MAX, 7);
        self.heap.put_structure_word(any + body::AUX, name);
        self.head(Type::PvHv, flags::OOK | flags::SHARE_KEYS, any, table)
    }

    fn strtab(&mut self) -> u64 {
        let any = self.any(Type::PvHv);
        let table = self.heap.alloc(8 * 16);
        self.heap.put_structure_word(any + body::KEYS, 16);
        self.heap.put_structure_word(any + body::MAX, 15);
        for slot in 0..16 {
            // struct shared_he: the entry, then its key.
            let text = format!("key{slot}");
            let entry = self.heap.alloc(layout::ENTRY_BYTES + text.len() as u64 + 10);
            self.heap.put_structure_word(entry + 8, entry + layout::ENTRY_BYTES);
            self.heap.put(entry + 16, 1);
            self.heap.put(entry + layout::ENTRY_BYTES, slot);
            self.heap.link_half(entry + layout::ENTRY_BYTES + 4, text.len() as u32);
            self.heap.put_bytes(entry + layout::ENTRY_BYTES + 8, text.as_bytes());
            self.heap.put_structure_word(table + 8 * slot, entry);
        }
        self.head(Type::PvHv, 0, any, table)
    }

    fn glob(&mut self, name: &str) -> u64 {
        let key = self.key(name);
        let any = self.any(Type::PvGv);
        self.heap.put_structure_word(any + body::GLOB_NAME, key);
        self.heap.put_structure_word(any + body::GLOB_STASH, self.stash);
        self.head(Type::PvGv, flags::GLOB, any, 0)
    }

    fn padname(&mut self, text: Option<&str>, flags: u8) -> u64 {
        let name = self.heap.alloc(layout::padname::BYTES + 32);
        if let Some(text) = text {
            let at = name + layout::padname::BYTES;
            self.heap.put_bytes(at, text.as_bytes());
            self.heap.put_structure_word(name + padname::TEXT, at);
            self.heap.put_bytes(name + padname::LENGTH, &[text.len() as u8]);
        }
        self.heap.put_bytes(name + padname::FLAGS, &[flags]);
        self.heap.structure.push(name + padname::LENGTH);
        self.places.padnames.push(name);
        name
    }

    /// Makes a sub that is not running, whose pads keep buffers.
    fn sub(&mut self, index: usize, depths: u64, most: u64, is_main: bool) -> u64 {
        let sub = format!("main::f{index}");
        let lexicals = 1 + self.dice.below(3);
        let targets = self.dice.below(3);
        let mut names = vec![0];
        for lexical in 0..lexicals {
            names.push(self.padname(Some(&format!("$s{lexical}")), 0));
        }
        names.push(self.padname(Some("$outer"), padname::OUTER));
        names.push(self.padname(Some("$state"), padname::STATE));
        let list = self.heap.alloc(40);
        let table = self.heap.alloc(8 * names.len() as u64);
        for (at, name) in names.iter().enumerate() {
            self.heap.put_structure_word(table + 8 * at as u64, *name);
        }
        self.heap.put_structure_word(list, names.len() as u64 - 1);
        self.heap.put_structure_word(list + 8, table);
        let mut pads = vec![list];
        for depth in 1..=depths {
            let mut entries = vec![self.array(&[])];
            for lexical in 0..lexicals {
                entries.push(self.kept(&sub, Some(format!("$s{lexical}")), depth, most));
            }
            // Captured and state variables are in use.
            entries.push(self.live_string(most));
            entries.push(self.live_string(most));
            entries.push(self.constant(most));
            for _ in 0..targets {
                entries.push(self.kept(&sub, None, depth, most));
            }
            pads.push(self.array(&entries));
        }
        let padlist = self.heap.alloc(24);
        let is_closure = !is_main && self.dice.chance(20);
        let table = self.heap.alloc(8 * pads.len() as u64);
        for (at, pad) in pads.iter().enumerate() {
            self.heap.put_structure_word(table + 8 * at as u64, *pad);
        }
        self.heap.put_structure_word(padlist, pads.len() as u64 - 1);
        self.heap.put_structure_word(padlist + 8, table);
        self.places.padlists.push(padlist);
        let glob = if is_main { 0 } else { self.glob(&format!("f{index}")) };
        let any = self.any(Type::PvCv);
        self.heap.put_structure_word(any + body::CODE_STASH, self.stash);
        self.heap.put_structure_word(any + body::CODE_GLOB, glob);
        self.heap.put_structure_word(any + body::CODE_PADLIST, padlist);
        self.heap.link_half(
            any + body::CODE_FLAGS,
            match (is_main, is_closure) {
                (true, _) => code::UNIQUE,
                (_, true) => code::CLONED,
                _ => 0,
            },
        );
        self.heap.link_half(any + body::CODE_DEPTH, 0);
        self.head(Type::PvCv, 0, any, 0)
    }

    /// Makes a pad entry whose buffer is out of use.
    fn kept(&mut self, sub: &str, lexical: Option<String>, depth: u64, most: u64) -> u64 {
        let len = 10 + self.dice.below(most);
        let temporary = if lexical.is_none() { flags::PADTMP } else { 0 };
        let (head, address) = self.string(Type::Pv, StringSpec { flags: temporary, cur: len / 2, len }, None);
        self.expected.kept.push(KeptBuffer { sub: sub.to_owned(), lexical, depth, address, bytes: len });
        self.places.kept.push(head);
        head
    }

    /// Makes a constant of the code.
    fn constant(&mut self, most: u64) -> u64 {
        let cur = self.dice.below(most);
        let len = cur + 2;
        self.expected.strings += 1;
        self.expected.buffers += 1;
        self.expected.payload_bytes += cur;
        self.expected.constants.add(len);
        let flags = flags::POK | flags::PADTMP | flags::READONLY;
        self.string(Type::Pv, StringSpec { flags, cur, len }, None).0
    }

    fn values(&mut self, count: usize, most: u64) {
        let mut done = 0;
        while done < count {
            done += 1;
            match self.dice.below(10) {
                0 => drop(self.head(Type::Null, 0, 0, 0)),
                1 => {
                    let at = self.head(Type::Iv, flags::IOK, 0, 7);
                    self.heap.put_structure_word(at, at + 16 - body::IV);
                }
                2 => {
                    let at = self.head(Type::Nv, flags::NOK, 0, 7);
                    self.heap.put_structure_word(at, at + 16 - body::NV);
                }
                3 => {
                    let to = self.live_string(most);
                    let at = self.head(Type::Iv, flags::ROK, 0, to);
                    self.heap.put_structure_word(at, at + 16 - body::IV);
                }
                4 if self.dice.chance(20) => self.shared_strings(most),
                5 if self.dice.chance(30) => {
                    let elements: Vec<u64> =
                        (0..self.dice.below(20)).map(|_| self.live_string(most)).collect();
                    self.array(&elements);
                }
                _ => drop(self.live_string(most)),
            }
        }
    }

    /// Writes the lists of free bodies, linked by their first words.
    fn body_roots(&mut self, base: u64) {
        for (whose, (_, bodies)) in std::mem::take(&mut self.bodies) {
            let mut next = 0;
            for at in bodies.free {
                self.heap.put_structure_word(at, next);
                next = at;
            }
            self.heap.put_structure_word(base + interpreter::BODY_ROOTS + 8 * u64::from(whose), next);
        }
    }

    fn arena_sets(&mut self, base: u64) {
        let mut next = 0;
        let arenas = std::mem::take(&mut self.body_arenas);
        for part in arenas.chunks(layout::SET_ARENAS as usize) {
            let set = self.heap.alloc(16 + 24 * layout::SET_ARENAS);
            self.heap.put_structure_word(set, next);
            self.heap.link_half(set + 8, layout::SET_ARENAS as u32);
            self.heap.link_half(set + 12, part.len() as u32);
            for (index, (arena, whose)) in part.iter().enumerate() {
                let at = set + 16 + 24 * index as u64;
                self.heap.put_structure_word(at, *arena);
                self.heap.put_structure_word(at + 8, layout::ARENA_BYTES);
                self.heap.link_half(at + 16, *whose);
            }
            next = set;
        }
        self.heap.put_structure_word(base + interpreter::BODY_ARENAS, next);
    }
}

pub fn write(recipe: &PerlRecipe) -> PerlImage {
    let mut dice = Rng::new(recipe.seed ^ 0x9e72);
    let base = 0x5555_6000_0000 + PAGE * dice.below(1 << 20);
    let mut perl = Perl {
        heap: Heap { base, next: 0, bytes: Vec::new(), structure: Vec::new() },
        dice,
        free_heads: Vec::new(),
        arenas: Vec::new(),
        bodies: std::collections::BTreeMap::new(),
        body_arenas: Vec::new(),
        expected: ExpectedPerl::default(),
        stash: 0,
        places: TrapAddresses::default(),
    };
    let own = perl.heap.alloc(interpreter::BYTES);
    perl.stash = perl.stash();
    let strtab = perl.strtab();
    let main = perl.sub(0, 1, recipe.max_string_bytes, true);
    for kept in &mut perl.expected.kept {
        kept.sub = "main (file scope)".to_owned();
    }
    for index in 1..=recipe.subs {
        let depths = 1 + perl.dice.below(recipe.depth as u64);
        perl.sub(index, depths, recipe.max_string_bytes, false);
    }
    perl.values(recipe.values, recipe.max_string_bytes);
    finish(recipe, perl, own, strtab, main)
}

fn finish(recipe: &PerlRecipe, mut perl: Perl, own: u64, strtab: u64, main: u64) -> PerlImage {
    for head in std::mem::take(&mut perl.free_heads) {
        perl.free(head);
    }
    perl.expected.arenas = perl.arenas.len() as u64;
    perl.body_roots(own);
    perl.arena_sets(own);
    let heap = &mut perl.heap;
    heap.put_structure_word(own + interpreter::STRTAB, strtab);
    heap.put_structure_word(own + interpreter::DEFSTASH, perl.stash);
    heap.put_structure_word(own + interpreter::SV_COUNT, perl.expected.live_heads);
    heap.put_structure_word(own + interpreter::SV_ROOT, 0);
    heap.put_structure_word(own + interpreter::SV_ARENAROOT, perl.arenas.last().copied().unwrap_or(0));
    heap.put_structure_word(own + interpreter::MAIN_CV, main);
    perl.expected.kept.sort();
    perl.places.arenas = perl.arenas;
    perl.places.strings.clone_from(&perl.places.kept);

    let heap_bytes = (perl.heap.bytes.len() as u64).next_multiple_of(PAGE);
    let mut image = Image::of(&[(DATA, PAGE), (perl.heap.base, heap_bytes), (TLS, 2 * PAGE)]);
    image.put(perl.heap.base, &perl.heap.bytes);
    image.put_word(DATA + 0x100, own);
    image.put(DATA + 0x108, &0_u32.to_le_bytes());
    // The thread's own interpreter: key 0, its sequence number odd.
    image.put_word(FS_BASE, FS_BASE);
    image.put_row(FS_BASE + layout::THREAD_SPECIFIC, [1, own]);
    let maps = map_lines(&[
        (DATA - 0x10_0000, 0x10_0000, "r-xp 00000000 fe:01 4711 /usr/bin/perl"),
        (DATA, PAGE, "rw-p 00100000 fe:01 4711 /usr/bin/perl"),
        (perl.heap.base, heap_bytes, "rw-p 00000000 00:00 0 [heap]"),
        (TLS, 2 * PAGE, "rw-p 00000000 00:00 0 "),
    ]);
    PerlImage {
        recipe: *recipe,
        image,
        variables: PerlVariables {
            curinterp: DATA + 0x100,
            thr_key: DATA + 0x108,
            strtab: own + interpreter::STRTAB,
            sv_count: own + interpreter::SV_COUNT,
            sv_arenaroot: own + interpreter::SV_ARENAROOT,
            main_cv: own + interpreter::MAIN_CV,
            body_roots: own + interpreter::BODY_ROOTS,
            body_arenas: own + interpreter::BODY_ARENAS,
        },
        fs_base: FS_BASE,
        expected: perl.expected,
        maps,
        structure: perl.heap.structure,
        places: perl.places,
    }
}
