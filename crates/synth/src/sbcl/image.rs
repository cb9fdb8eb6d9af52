//! Writes a graph of objects into memory: dynamic space, the other spaces, threads, the runtime's
//! variables.

use super::graph::{Graph, Node, Shape};
use super::release::{FUNCTION, GC_PAGE_BYTES, INSTANCE, LIST, OTHER, PageKind, SINGLE_OBJECT, SbclRelease};
use super::space::Dynamic;
use super::{SBCL_TYPES, SbclExpected, SbclHeap, SbclRecipe, SbclThread};
use crate::{Image, Mapping, PAGE, Rng};

const STATIC_START: u64 = 0x5000_0000;
const STATIC_BYTES: u64 = PAGE;
const FIXED_START: u64 = 0x5020_0000;
const FIXED_PAGES: u64 = 2;
const TEXT_START: u64 = 0x5220_0000;
const DYNAMIC_START: u64 = 0x10_0000_0000;
const DYNAMIC_SIZE: u64 = 1 << 30;
/// Spacing of layouts in immobile space, in words.
const LAYOUT_WORDS: u64 = 32;
/// `dynamic_values_bytes`: 4096 words of thread-local values.
const VALUES_BYTES: u64 = 0x8000;
const CONTROL_BYTES: u64 = 0x20000;
const BINDING_BYTES: u64 = 0x4000;
const ALIEN_BYTES: u64 = 0x4000;
const EXTRA_BYTES: u64 = 0x2000;
/// NIL is in static space, tagged as a list.
const NIL: u64 = STATIC_START + 0x100 + LIST;
const NO_TLS_VALUE: u64 = u64::MAX;
const FIXNUM: u64 = 0x2a;

/// A heap that is being written.
struct Writer {
    release: SbclRelease,
    dice: Rng,
    dynamic: Dynamic,
    /// Tagged addresses of the nodes.
    references: Vec<u64>,
    structure: Vec<u64>,
}

pub(super) fn image(recipe: &SbclRecipe, graph: Graph) -> SbclHeap {
    let release = recipe.release;
    let mut writer = Writer {
        release,
        dice: Rng::new(recipe.seed ^ 0x1a6e),
        dynamic: Dynamic::new(release, DYNAMIC_START),
        references: Vec::new(),
        structure: Vec::new(),
    };
    let mut expected = SbclExpected::default();
    let names = writer.names();
    for node in &graph.nodes {
        writer.place(node);
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        writer.write(at, node);
    }
    fill_expected(&mut expected, &writer, &graph, &names);

    let mut memory = Memory::default();
    let mut symbols = Vec::new();
    writer.immobile(&mut memory, &names);
    let (threads, roots_left) = writer.threads(&mut memory, recipe, &graph.roots);
    writer.static_space(&mut memory, &roots_left);
    let table = writer.variables(&mut memory, &mut symbols, &expected, &threads);
    memory.add(DYNAMIC_START, writer.dynamic.memory.clone(), "rwxp", "");
    let behind = DYNAMIC_START + writer.dynamic.memory.len() as u64;
    let (image, mappings) = memory.finish();
    SbclHeap {
        recipe: recipe.clone(),
        image,
        mappings,
        symbols,
        threads,
        dynamic: (DYNAMIC_START, behind),
        expected,
        structure: writer.structure,
        table,
    }
}

/// Ranges of memory that are joined at the end.
#[derive(Default)]
struct Memory(Vec<(u64, Vec<u8>, &'static str, &'static str)>);

impl Memory {
    fn add(&mut self, start: u64, mut bytes: Vec<u8>, permissions: &'static str, name: &'static str) {
        bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        self.0.push((start, bytes, permissions, name));
    }

    fn finish(mut self) -> (Image, Vec<Mapping>) {
        self.0.sort_by_key(|range| range.0);
        let mut image = Image::default();
        let mut mappings = Vec::new();
        for (start, bytes, permissions, name) in self.0 {
            image.map(start, bytes.len());
            image.put(start, &bytes);
            mappings.push(Mapping { start, end: start + bytes.len() as u64, permissions, name });
        }
        (image, mappings)
    }
}

fn put(bytes: &mut [u8], at: u64, word: u64) {
    let at = at as usize;
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Names of structures: the tagged addresses of their classoids, and the bytes of classoids,
/// symbols and strings.
struct Names {
    classoids: Vec<u64>,
    bytes: u64,
}

fn fill_expected(expected: &mut SbclExpected, writer: &Writer, graph: &Graph, names: &Names) {
    for page in writer.dynamic.pages.iter().filter(|page| page.used_bytes > 0) {
        let generation = &mut expected.generations[usize::from(page.generation)];
        generation.bytes += page.used_bytes;
        generation.pages += 1;
        if page.type_byte & SINGLE_OBJECT != 0 {
            generation.large_bytes += page.used_bytes;
            generation.large_pages += 1;
        }
    }
    expected.generations[6].live_bytes += names.bytes;
    for (node, &is_live) in graph.nodes.iter().zip(&graph.is_live) {
        let bytes = node.shape.bytes(writer.release);
        if is_live {
            expected.generations[usize::from(node.generation)].live_bytes += bytes;
        }
        if let Shape::Instance(of, _) = node.shape {
            let instances = &mut expected.types[of];
            if is_live && node.generation != 6 {
                instances.live += 1;
                instances.live_bytes += bytes;
            } else if !is_live {
                instances.dead += 1;
                instances.dead_bytes += bytes;
            }
        }
    }
}

fn page_kind(shape: Shape, dice: &mut Rng) -> PageKind {
    match shape {
        Shape::Cons => PageKind::Cons,
        Shape::Bytes(_) | Shape::Text(_) | Shape::Bignum(_) => PageKind::Unboxed,
        Shape::Code(_) => PageKind::Code,
        Shape::Vector(_) | Shape::ValueCell if dice.chance(50) => PageKind::Boxed,
        _ => PageKind::Mixed,
    }
}

impl Writer {
    fn header(&mut self, address: u64, word: u64) {
        self.dynamic.put(address, word);
        self.structure.push(address);
    }

    /// Writes classoids, symbols and strings of the structures' names: pseudo-static.
    fn names(&mut self) -> Names {
        let tags = self.release.widetags();
        let mut names = Names { classoids: Vec::new(), bytes: 0 };
        // Classoids are themselves instances of a structure.
        for name in SBCL_TYPES.into_iter().chain(["CLASSOID"]) {
            let text_bytes = (16 + name.len() as u64 + 1).next_multiple_of(16);
            let text = self.dynamic.allocate(6, PageKind::Unboxed, text_bytes, 1);
            self.header(text, tags.base_string);
            self.dynamic.put(text + 8, (name.len() as u64) << 1);
            self.dynamic.put_bytes(text + 16, name.as_bytes());
            let symbol = self.dynamic.allocate(6, PageKind::Mixed, 48, 1);
            self.header(symbol, tags.symbol | 5 << 8);
            for word in 1..6 {
                self.dynamic.put(symbol + 8 * word, if word == 1 { FIXNUM } else { NIL });
            }
            let package = if self.release == SbclRelease::V2_1_1 { 0 } else { 7 << 48 };
            self.dynamic.put(symbol + 8 * self.release.symbol_name(), (text + OTHER) | package);
            let classoid = self.dynamic.allocate(6, PageKind::Mixed, 96, 1);
            let layout = FIXED_START + PAGE + SBCL_TYPES.len() as u64 * LAYOUT_WORDS * 8 + INSTANCE;
            self.header(classoid, tags.instance | 11 << 10 | layout << 32);
            for word in 1..12 {
                self.dynamic.put(classoid + 8 * word, NIL);
            }
            self.dynamic.put(classoid + 16, symbol + OTHER);
            names.classoids.push(classoid + INSTANCE);
            names.bytes += text_bytes + 48 + 96;
        }
        names
    }

    fn place(&mut self, node: &Node) {
        let kind = page_kind(node.shape, &mut self.dice);
        let block = 1 + self.dice.below(3);
        if self.dice.chance(2) {
            let pages = self.dice.below(3);
            self.dynamic.skip(pages);
        }
        let at = self.dynamic.allocate(node.generation, kind, node.shape.bytes(self.release), block);
        let tag = match node.shape {
            Shape::Cons => LIST,
            Shape::Instance(..) => INSTANCE,
            Shape::Closure(_) => FUNCTION,
            _ => OTHER,
        };
        self.references.push(at + tag);
    }

    /// The word of a link: a reference to its target, or a word that refers to nothing.
    fn link(&mut self, link: Option<usize>) -> u64 {
        let tags = self.release.widetags();
        match link {
            Some(to) => self.references[to],
            // NIL, numbers, a character, a single float.
            None => self.dice.one_of(&[NIL, FIXNUM, 0, !1, 0x4_1100 | tags.character, (3 << 32) | 0x19]),
        }
    }

    fn write(&mut self, index: usize, node: &Node) {
        let tags = self.release.widetags();
        let at = self.references[index] & !15;
        let links: Vec<u64> = node.links.iter().map(|&link| self.link(link)).collect();
        let first = match node.shape {
            Shape::Cons => at,
            Shape::Instance(of, slots) => {
                let layout = FIXED_START + PAGE + of as u64 * LAYOUT_WORDS * 8 + INSTANCE;
                self.header(at, tags.instance | slots << 10 | layout << 32);
                at + 8
            }
            Shape::Vector(length) => {
                self.header(at, tags.simple_vector);
                self.header(at + 8, length << 1);
                at + 16
            }
            Shape::Bytes(length) | Shape::Text(length) => {
                let is_text = matches!(node.shape, Shape::Text(_));
                self.header(at, if is_text { tags.base_string } else { tags.bytes });
                self.header(at + 8, length << 1);
                // Their bytes resemble references, but are not.
                let decoy = self.dice.one_of(&self.references.clone());
                if length >= 8 {
                    self.dynamic.put(at + 16, decoy);
                }
                at + 16
            }
            Shape::Bignum(digits) => {
                self.header(at, tags.bignum | digits << 8);
                let word = self.dice.word();
                self.dynamic.put(at + 8, word);
                at + 8
            }
            Shape::ValueCell => {
                self.header(at, tags.value_cell | 1 << 8);
                at + 8
            }
            Shape::WeakPointer => {
                let words = if self.release == SbclRelease::V2_1_1 { 2 } else { 1 };
                self.header(at, tags.weak_pointer | words << 8);
                at + 8
            }
            Shape::Closure(values) => {
                self.header(at, tags.closure | (values + 1) << 8);
                // The raw address of the first code's function: two words into it.
                let code = self.references[0] & !15;
                self.header(at + 8, code + function_offset(1) + 16);
                at + 16
            }
            Shape::Code(constants) => self.code(at, constants, node.shape.bytes(self.release)),
        };
        for (word, link) in links.into_iter().enumerate() {
            self.header(first + 8 * word as u64, link);
        }
    }

    /// Writes code with one function; returns the address of its constants.
    fn code(&mut self, at: u64, constants: u64, bytes: u64) -> u64 {
        let tags = self.release.widetags();
        let function = function_offset(constants);
        self.header(at, tags.code | (bytes / 8) << 32);
        self.header(at + 8, function);
        self.header(at + 16, NIL);
        self.header(at + 24, 0);
        if constants % 2 == 1 {
            self.dynamic.put(at + 32 + 8 * constants, NIL);
        }
        self.header(at + function, tags.simple_fun | (function / 8) << 8);
        self.dynamic.put(at + function + 8, at + function + 16);
        // The table of functions ends in the length of what follows the instructions.
        let trailer = at + bytes - 16;
        self.dynamic.put_bytes(trailer + 14, &16u16.to_le_bytes());
        self.dynamic.put_bytes(trailer + 10, &(1u16 << 5).to_le_bytes());
        at + 32
    }

    /// Writes layouts in immobile space, one for each type.
    fn immobile(&mut self, memory: &mut Memory, names: &Names) {
        let tags = self.release.widetags();
        let mut bytes = vec![0; (FIXED_PAGES * PAGE) as usize];
        for (of, classoid) in names.classoids.iter().enumerate() {
            let at = PAGE + of as u64 * LAYOUT_WORDS * 8;
            let own = FIXED_START + PAGE + INSTANCE;
            put(&mut bytes, at, tags.instance | 20 << 10 | own << 32);
            for word in 1..=20 {
                put(&mut bytes, at + 8 * word, FIXNUM);
            }
            put(&mut bytes, at + 24, *classoid);
            self.structure.extend([FIXED_START + at, FIXED_START + at + 24]);
        }
        memory.add(FIXED_START, bytes, "rwxp", "");
        memory.add(TEXT_START, vec![0; PAGE as usize], "rwxp", "");
    }

    /// Writes the stacks and the struct of every thread; returns the threads, and the roots that
    /// none has.
    fn threads(
        &mut self,
        memory: &mut Memory,
        recipe: &SbclRecipe,
        roots: &[usize],
    ) -> (Vec<SbclThread>, Vec<usize>) {
        let count = recipe.threads.max(1);
        let mut threads = Vec::new();
        let mut left = Vec::new();
        let mut of_thread = vec![Vec::new(); count];
        for &root in roots {
            match self.dice.below(count as u64 + 1) as usize {
                thread if thread < count => of_thread[thread].push(root),
                _ => left.push(root),
            }
        }
        let area = CONTROL_BYTES + BINDING_BYTES + ALIEN_BYTES + VALUES_BYTES + EXTRA_BYTES;
        let base = |thread: usize| 0x7f30_0000_0000 + thread as u64 * (area + 16 * PAGE);
        let structs = CONTROL_BYTES + BINDING_BYTES + ALIEN_BYTES;
        for (thread, roots) in of_thread.iter().enumerate() {
            let address = base(thread) + structs;
            let next = if thread + 1 < count { base(thread + 1) + structs } else { 0 };
            let previous = if thread > 0 { base(thread - 1) + structs } else { 0 };
            let place =
                ThreadAddresses { base: base(thread), address, next, previous, tid: 4000 + thread as i32 };
            let (bytes, stack_pointer) = self.thread(&place, roots, area);
            memory.add(place.base, bytes, "rw-p", "");
            threads.push(SbclThread { tid: place.tid, stack_pointer, address });
        }
        (threads, left)
    }

    fn thread(&mut self, place: &ThreadAddresses, roots: &[usize], area: u64) -> (Vec<u8>, u64) {
        let mut bytes = vec![0; area as usize];
        let (control_end, binding) = (CONTROL_BYTES, CONTROL_BYTES);
        let alien = binding + BINDING_BYTES;
        let at = place.address - place.base;
        let words = self.release.thread();
        for word in words.lisp_thread + 1..VALUES_BYTES / 8 {
            put(&mut bytes, at + 8 * word, NO_TLS_VALUE);
        }
        // Half of the roots are on the stack, between other words; the others are thread-local
        // values, or saved on the binding stack.
        let used = 0x400 + 16 * roots.len() as u64;
        let stack = control_end - used;
        self.noise(&mut bytes, stack, used, place.base);
        let (mut bindings, mut local) = (0, words.lisp_thread + 40);
        for (number, &root) in roots.iter().enumerate() {
            let reference = self.references[root];
            match number % 4 {
                0 | 1 => put(&mut bytes, stack + 0x80 + 16 * number as u64, reference),
                2 => {
                    put(&mut bytes, at + 8 * local, reference);
                    local += 1;
                }
                _ => {
                    put(&mut bytes, binding + 16 * bindings, reference);
                    put(&mut bytes, binding + 16 * bindings + 8, 8 * local);
                    put(&mut bytes, at + 8 * local, NIL);
                    local += 1;
                    bindings += 1;
                }
            }
        }
        let mut set = |word: u64, value: u64| {
            put(&mut bytes, at + 8 * word, value);
            self.structure.push(place.address + 8 * word);
        };
        set(0, NO_TLS_VALUE);
        set(words.os_thread, place.address + VALUES_BYTES);
        set(words.binding_stack_pointer, place.base + binding + 16 * bindings);
        set(words.alien_stack_pointer, place.base + alien + ALIEN_BYTES - 8);
        for region in 0..words.regions {
            // A closed region has no start.
            let first = words.first_region + region * self.release.region_words();
            set(first, 0x1000);
            set(first + 1, 0x1000);
        }
        set(words.os_address, place.base);
        set(words.kernel_tid, place.tid as u64);
        set(words.alien_stack_start, place.base + alien);
        set(words.binding_stack_start, place.base + binding);
        set(words.control_stack_start, place.base);
        set(words.control_stack_end, place.base + control_end);
        set(words.this, place.address);
        set(words.previous, place.previous);
        set(words.next, place.next);
        set(words.state, 1 << 16 | 1);
        set(words.tls_size, 8 * (local + 1));
        set(words.lisp_thread, NIL);
        (bytes, place.base + stack)
    }

    /// Fills a control stack with words that are not references, though some are addresses.
    fn noise(&mut self, bytes: &mut [u8], stack: u64, used: u64, base: u64) {
        let words = [0, 1, FIXNUM, base + stack + 0x40, TEXT_START + 8, DYNAMIC_START - 9];
        for word in 0..used / 8 {
            put(bytes, stack + 8 * word, self.dice.one_of(&words));
        }
    }

    /// Writes NIL, and symbols whose values are roots.
    fn static_space(&mut self, memory: &mut Memory, roots: &[usize]) {
        let tags = self.release.widetags();
        let mut bytes = vec![0; STATIC_BYTES as usize];
        let nil = NIL - LIST - STATIC_START;
        put(&mut bytes, nil - 8, tags.symbol | 5 << 8);
        put(&mut bytes, nil, NIL);
        put(&mut bytes, nil + 8, NIL);
        for word in 2..5 {
            put(&mut bytes, nil + 8 * word, FIXNUM);
        }
        for symbol in 0..STATIC_BYTES / 48 - 7 {
            let at = 0x130 + 48 * symbol;
            put(&mut bytes, at, tags.symbol | 5 << 8);
            for word in 1..6 {
                put(&mut bytes, at + 8 * word, NIL);
            }
            put(&mut bytes, at + 8, FIXNUM);
        }
        for (symbol, &root) in roots.iter().enumerate().take(60) {
            let at = 0x130 + 48 * symbol as u64 + 16;
            put(&mut bytes, at, self.references[root]);
            self.structure.push(STATIC_START + at);
        }
        memory.add(STATIC_START, bytes, "rwxp", "");
    }

    /// Writes the runtime's variables and the page table; returns the table's address and number of
    /// entries.
    fn variables(
        &mut self,
        memory: &mut Memory,
        symbols: &mut Vec<(&'static str, u64, u64)>,
        expected: &SbclExpected,
        threads: &[SbclThread],
    ) -> (u64, u64) {
        let data = 0x5655_0000_0000 + PAGE * self.dice.below(1 << 20);
        let table_at = 0x7f10_0000_0000 + PAGE * self.dice.below(1 << 16) + 0x10;
        let table = self.dynamic.table();
        let entries = table.len() as u64 / 8;
        let mut bytes = vec![0; 2 * PAGE as usize];
        let mut at = 0;
        let mut variable = |name: &'static str, value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
            symbols.push((name, data + at as u64, value.len() as u64));
            self.structure.push(data + at as u64);
            at += value.len().next_multiple_of(16);
        };
        variable("generations", &generations(expected));
        variable(
            "gc_alloc_region",
            &vec![0; (8 * self.release.region_words() * self.release.static_regions()) as usize],
        );
        let fixed_table = table_at + 8 * (DYNAMIC_SIZE / GC_PAGE_BYTES) + 0x100;
        let books = [
            ("page_table", table_at),
            ("next_free_page", entries),
            ("bytes_allocated", expected.usage()),
            ("auto_gc_trigger", expected.usage() + 53_687_091),
            ("all_threads", threads.first().map_or(0, |thread| thread.address)),
            ("fixedobj_pages", fixed_table),
        ];
        for (name, word) in books.into_iter().chain(places(self.release)) {
            variable(name, &word.to_le_bytes());
        }
        variable("dynamic_values_bytes", &(VALUES_BYTES as u32).to_le_bytes());
        variable("gc_active_p", &[0; 4]);
        variable("from_space", &[0xff]);
        variable("gencgc_oldest_gen_to_gc", &[6]);
        memory.add(data, bytes, "rw-p", "");
        let mut pages = vec![0; 0x10];
        pages.extend(table);
        pages.resize((fixed_table - (table_at - 0x10)) as usize, 0);
        for _ in 0..FIXED_PAGES {
            pages.extend(self.release.fixedobj_entry(LAYOUT_WORDS as u8));
        }
        memory.add(table_at - 0x10, pages, "rw-p", "");
        (table_at, entries)
    }
}

/// Addresses and sizes of the spaces.
fn places(release: SbclRelease) -> Vec<(&'static str, u64)> {
    let static_used = 0x130 + 48 * (STATIC_BYTES / 48 - 7);
    let (text_start, text_end) = match release {
        SbclRelease::V2_1_1 => ("VARYOBJ_SPACE_START", "varyobj_free_pointer"),
        SbclRelease::V2_2_9 => ("TEXT_SPACE_START", "text_space_highwatermark"),
    };
    vec![
        ("page_table_pages", DYNAMIC_SIZE / GC_PAGE_BYTES),
        ("DYNAMIC_SPACE_START", DYNAMIC_START),
        ("dynamic_space_size", DYNAMIC_SIZE),
        ("bytes_consed_between_gcs", 53_687_091),
        ("FIXEDOBJ_SPACE_START", FIXED_START),
        ("fixedobj_free_pointer", FIXED_START + FIXED_PAGES * PAGE),
        ("static_space_free_pointer", STATIC_START + static_used),
        ("STATIC_SPACE_START", STATIC_START),
        ("READ_ONLY_SPACE_START", 0),
        ("READ_ONLY_SPACE_END", 0),
        ("read_only_space_free_pointer", 0),
        (text_start, TEXT_START),
        (text_end, TEXT_START),
    ]
}

/// Addresses of a thread.
struct ThreadAddresses {
    base: u64,
    address: u64,
    next: u64,
    previous: u64,
    tid: i32,
}

/// Offset of the function in code, behind header, boxed size, debug information, fixups, and an
/// even number of constants.
fn function_offset(constants: u64) -> u64 {
    32 + 8 * (constants + constants % 2)
}

fn generations(expected: &SbclExpected) -> Vec<u8> {
    let mut bytes = Vec::new();
    for generation in &expected.generations {
        bytes.extend(generation.bytes.to_le_bytes());
        bytes.extend(2_000_000u64.to_le_bytes());
        bytes.extend(53_687_091u64.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend((generation.bytes / 2).to_le_bytes());
        bytes.extend(0.75f64.to_le_bytes());
    }
    bytes
}
