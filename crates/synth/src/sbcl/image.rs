//! Writes a graph of objects into memory: dynamic space, the other spaces, threads, the runtime's
//! variables.

use super::graph::{Graph, Node, Shape};
use super::release::{FUNCTION, GC_PAGE_BYTES, INSTANCE, LIST, OTHER, PageKind, SINGLE_OBJECT, SbclRelease};
use super::space::Dynamic;
use super::threads::{VALUES_BYTES, WrittenThreads};
use super::{
    PSEUDO_STATIC, PageTable, SBCL_TYPES, SbclExpected, SbclHeap, SbclRecipe, SbclSymbol, SbclThread,
};
use crate::{Image, Mapping, PAGE, Rng};

/// The spaces: static, immobile (fixed-size objects, then text), and dynamic.
const STATIC_START: u64 = 0x5000_0000;
const STATIC_BYTES: u64 = PAGE;
const FIXED_START: u64 = 0x5020_0000;
const FIXED_PAGES: u64 = 2;
pub(super) const TEXT_START: u64 = 0x5220_0000;
pub(super) const DYNAMIC_START: u64 = 0x10_0000_0000;
const DYNAMIC_BYTES: u64 = 1 << 30;
/// Distance between layouts in immobile space, in words.
const LAYOUT_WORDS: u64 = 32;
/// Words of a layout without its header.
const LAYOUT_SLOTS: u64 = 20;
/// Offset of a layout's classoid.
const LAYOUT_CLASSOID: u64 = 24;
/// NIL is in static space, tagged as a list.
pub(super) const NIL: u64 = STATIC_START + 0x100 + LIST;
/// Offset of the symbols in static space, after NIL.
const STATIC_SYMBOLS_OFFSET: u64 = 0x130;
/// Bytes of a symbol.
const SYMBOL_BYTES: u64 = 48;
/// Offset of a symbol's value.
const SYMBOL_VALUE: u64 = 16;
/// Number of symbols in static space: what is before them takes the room of the others.
const STATIC_SYMBOL_COUNT: u64 = STATIC_BYTES / SYMBOL_BYTES - STATIC_SYMBOLS_OFFSET.div_ceil(SYMBOL_BYTES);
/// Any fixnum.
pub(super) const FIXNUM: u64 = 0x2a;
/// Words of a symbol without its header.
const SYMBOL_WORDS: u64 = 5;
/// Words of a classoid without its header.
const CLASSOID_WORDS: u64 = 11;
/// Bytes of a classoid.
const CLASSOID_BYTES: u64 = 8 * (CLASSOID_WORDS + 1);
/// Offset of a classoid's name.
const CLASSOID_NAME: u64 = 16;
/// `bytes_consed_between_gcs`: 5 % of dynamic space.
const BYTES_BETWEEN_COLLECTIONS: u64 = 53_687_091;
/// Where the header of an instance has its length.
const INSTANCE_LENGTH_SHIFT: u32 = 10;
/// Where the header of an instance has its layout.
const INSTANCE_LAYOUT_SHIFT: u32 = 32;
/// Where another header has its length.
const LENGTH_SHIFT: u32 = 8;

/// The tagged pointer to the layout of the type with this index; the last one is of classoids.
fn layout_pointer(type_index: usize) -> u64 {
    FIXED_START + PAGE + type_index as u64 * LAYOUT_WORDS * 8 + INSTANCE
}

/// A heap that is being written.
pub(super) struct Writer {
    pub release: SbclRelease,
    pub rng: Rng,
    dynamic: Dynamic,
    /// Tagged addresses of the nodes.
    pub references: Vec<u64>,
    /// Addresses of the words that damage may overwrite.
    pub damageable_words: Vec<u64>,
}

/// Writes the graph of `recipe`.
pub(super) fn write(recipe: &SbclRecipe, graph: Graph) -> SbclHeap {
    let release = recipe.release;
    let mut writer = Writer {
        release,
        rng: Rng::new(recipe.seed ^ 0x1a6e),
        dynamic: Dynamic::new(release, DYNAMIC_START),
        references: Vec::new(),
        damageable_words: Vec::new(),
    };
    let classoids = writer.write_classoids();
    for node in &graph.nodes {
        writer.allocate(node);
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        writer.write_object(index, node);
    }
    let expected = expected_figures(&writer, &graph, &classoids);

    let mut memory = Memory::default();
    writer.write_layouts(&mut memory, &classoids);
    let WrittenThreads { threads, static_roots } = writer.write_threads(&mut memory, recipe, &graph.roots);
    writer.write_static_space(&mut memory, &static_roots);
    let Variables { symbols, page_table } = writer.write_variables(&mut memory, &expected, &threads);
    let dynamic_end = DYNAMIC_START + writer.dynamic.memory.len() as u64;
    memory.add(DYNAMIC_START, writer.dynamic.memory, "rwxp");
    SbclHeap {
        recipe: recipe.clone(),
        image: memory.image(),
        mappings: memory.mappings(),
        symbols,
        threads,
        dynamic_range: (DYNAMIC_START, dynamic_end),
        expected,
        damageable_words: writer.damageable_words,
        page_table,
    }
}

/// A mapping with its contents.
struct MappedRange {
    start: u64,
    bytes: Vec<u8>,
    permissions: &'static str,
}

/// The mappings of the process.
#[derive(Default)]
pub(super) struct Memory(Vec<MappedRange>);

impl Memory {
    /// Adds a mapping of whole pages that begins with `bytes`.
    pub fn add(&mut self, start: u64, mut bytes: Vec<u8>, permissions: &'static str) {
        bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        self.0.push(MappedRange { start, bytes, permissions });
    }

    fn image(&self) -> Image {
        let mut image = Image::default();
        for MappedRange { start, bytes, .. } in &self.0 {
            image.map(*start, bytes.len());
            image.put(*start, bytes);
        }
        image
    }

    /// The mappings in address order.
    fn mappings(&self) -> Vec<Mapping> {
        let mapping = |MappedRange { start, bytes, permissions }: &MappedRange| {
            let end = start + bytes.len() as u64;
            Mapping { start: *start, end, permissions, name: "" }
        };
        let mut mappings: Vec<Mapping> = self.0.iter().map(mapping).collect();
        mappings.sort_by_key(|mapping| mapping.start);
        mappings
    }
}

/// Writes a little-endian word at `offset` in `bytes`.
pub(super) fn put(bytes: &mut [u8], offset: u64, word: u64) {
    let offset = offset as usize;
    bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
}

/// Classoids that name the structure types.
struct Classoids {
    /// Their tagged addresses.
    addresses: Vec<u64>,
    /// Bytes of classoids, symbols and strings.
    bytes: u64,
}

/// The runtime's variables and the page table.
struct Variables {
    symbols: Vec<SbclSymbol>,
    page_table: PageTable,
}

/// Computes the expected figures from the pages and the graph.
fn expected_figures(writer: &Writer, graph: &Graph, classoids: &Classoids) -> SbclExpected {
    let mut expected = SbclExpected::default();
    for page in writer.dynamic.pages.iter().filter(|page| page.used_bytes > 0) {
        let generation = &mut expected.generations[usize::from(page.generation)];
        generation.bytes += page.used_bytes;
        generation.pages += 1;
        if page.type_byte & SINGLE_OBJECT != 0 {
            generation.large_bytes += page.used_bytes;
            generation.large_pages += 1;
        }
    }
    expected.generations[usize::from(PSEUDO_STATIC)].live_bytes += classoids.bytes;
    for (node, &is_live) in graph.nodes.iter().zip(&graph.is_live) {
        let bytes = node.shape.bytes(writer.release);
        if is_live {
            expected.generations[usize::from(node.generation)].live_bytes += bytes;
        }
        if let Shape::Instance { type_index, .. } = node.shape {
            let instances = &mut expected.types[type_index];
            if is_live && node.generation != PSEUDO_STATIC {
                instances.live_count += 1;
                instances.live_bytes += bytes;
            } else if !is_live {
                instances.dead_count += 1;
                instances.dead_bytes += bytes;
            }
        }
    }
    expected
}

/// Draws the kind of the page that an object is on.
fn draw_page_kind(shape: Shape, rng: &mut Rng) -> PageKind {
    match shape {
        Shape::Cons => PageKind::Cons,
        Shape::Bytes(_) | Shape::Text(_) | Shape::Bignum(_) => PageKind::Unboxed,
        Shape::Code(_) => PageKind::Code,
        Shape::Vector(_) | Shape::ValueCell if rng.chance(50) => PageKind::Boxed,
        _ => PageKind::Mixed,
    }
}

impl Writer {
    /// Writes a word of dynamic space that damage may overwrite.
    fn put_damageable(&mut self, address: u64, word: u64) {
        self.dynamic.put(address, word);
        self.damageable_words.push(address);
    }

    /// Writes classoids, symbols and strings of the structures' names: pseudo-static.
    fn write_classoids(&mut self) -> Classoids {
        let tags = self.release.widetags();
        let mut classoids = Classoids { addresses: Vec::new(), bytes: 0 };
        // Classoids are themselves instances of a structure.
        for name in SBCL_TYPES.into_iter().chain(["CLASSOID"]) {
            let text_bytes = (16 + name.len() as u64 + 1).next_multiple_of(16);
            let text = self.dynamic.allocate(PSEUDO_STATIC, PageKind::Unboxed, text_bytes, 1);
            self.put_damageable(text, tags.base_string);
            self.dynamic.put(text + 8, (name.len() as u64) << 1);
            self.dynamic.put_bytes(text + 16, name.as_bytes());
            let symbol = self.dynamic.allocate(PSEUDO_STATIC, PageKind::Mixed, SYMBOL_BYTES, 1);
            self.put_damageable(symbol, tags.symbol | SYMBOL_WORDS << LENGTH_SHIFT);
            for word in 1..=SYMBOL_WORDS {
                self.dynamic.put(symbol + 8 * word, if word == 1 { FIXNUM } else { NIL });
            }
            // From 2.2 on the upper 16 bits are the number of the package: any.
            let package = if self.release == SbclRelease::V2_1_1 { 0 } else { 7 << 48 };
            self.dynamic.put(symbol + 8 * self.release.symbol_name_word(), (text + OTHER) | package);
            let classoid = self.dynamic.allocate(PSEUDO_STATIC, PageKind::Mixed, CLASSOID_BYTES, 1);
            let header = self.instance_header(SBCL_TYPES.len(), CLASSOID_WORDS);
            self.put_damageable(classoid, header);
            for word in 1..=CLASSOID_WORDS {
                self.dynamic.put(classoid + 8 * word, NIL);
            }
            self.dynamic.put(classoid + CLASSOID_NAME, symbol + OTHER);
            classoids.addresses.push(classoid + INSTANCE);
            classoids.bytes += text_bytes + SYMBOL_BYTES + CLASSOID_BYTES;
        }
        classoids
    }

    /// The header of an instance with `slots` words of the type with this index.
    fn instance_header(&self, type_index: usize, slots: u64) -> u64 {
        let length = slots << INSTANCE_LENGTH_SHIFT;
        self.release.widetags().instance | length | layout_pointer(type_index) << INSTANCE_LAYOUT_SHIFT
    }

    /// Allocates the object of a node.
    fn allocate(&mut self, node: &Node) {
        let kind = draw_page_kind(node.shape, &mut self.rng);
        let block_pages = 1 + self.rng.below(3);
        if self.rng.chance(2) {
            let pages = self.rng.below(3);
            self.dynamic.skip_pages(pages);
        }
        let bytes = node.shape.bytes(self.release);
        let object = self.dynamic.allocate(node.generation, kind, bytes, block_pages);
        let tag = match node.shape {
            Shape::Cons => LIST,
            Shape::Instance { .. } => INSTANCE,
            Shape::Closure(_) => FUNCTION,
            _ => OTHER,
        };
        self.references.push(object + tag);
    }

    /// Returns the word of a link: a reference to its target, or a word that refers to nothing.
    fn link_word(&mut self, link: Option<usize>) -> u64 {
        let tags = self.release.widetags();
        match link {
            Some(target) => self.references[target],
            // NIL, numbers, a character, a single float.
            None => self.rng.one_of(&[NIL, FIXNUM, 0, !1, 0x4_1100 | tags.character, (3 << 32) | 0x19]),
        }
    }

    /// Writes the object of a node: its header, then its links.
    fn write_object(&mut self, index: usize, node: &Node) {
        let tags = self.release.widetags();
        let object = self.references[index] & !15;
        let links: Vec<u64> = node.links.iter().map(|&link| self.link_word(link)).collect();
        let links_address = match node.shape {
            Shape::Cons => object,
            Shape::Instance { type_index, slots } => {
                let header = self.instance_header(type_index, slots);
                self.put_damageable(object, header);
                object + 8
            }
            Shape::Vector(length) => {
                self.put_damageable(object, tags.simple_vector);
                self.put_damageable(object + 8, length << 1);
                object + 16
            }
            Shape::Bytes(length) | Shape::Text(length) => {
                let is_text = matches!(node.shape, Shape::Text(_));
                self.put_damageable(object, if is_text { tags.base_string } else { tags.bytes });
                self.put_damageable(object + 8, length << 1);
                // Their bytes resemble references, but are not.
                let decoy = self.rng.one_of(&self.references);
                if length >= 8 {
                    self.dynamic.put(object + 16, decoy);
                }
                object + 16
            }
            Shape::Bignum(digits) => {
                self.put_damageable(object, tags.bignum | digits << LENGTH_SHIFT);
                let word = self.rng.word();
                self.dynamic.put(object + 8, word);
                object + 8
            }
            Shape::ValueCell => {
                self.put_damageable(object, tags.value_cell | 1 << LENGTH_SHIFT);
                object + 8
            }
            Shape::WeakPointer => {
                let words = if self.release == SbclRelease::V2_1_1 { 2 } else { 1 };
                self.put_damageable(object, tags.weak_pointer | words << LENGTH_SHIFT);
                object + 8
            }
            Shape::Closure(values) => {
                self.put_damageable(object, tags.closure | (values + 1) << LENGTH_SHIFT);
                // The raw address of the first code's function: two words into it.
                let code = self.references[0] & !15;
                self.put_damageable(object + 8, code + function_offset(1) + 16);
                object + 16
            }
            Shape::Code(constants) => self.write_code(object, constants, node.shape.bytes(self.release)),
        };
        for (word, link) in links.into_iter().enumerate() {
            self.put_damageable(links_address + 8 * word as u64, link);
        }
    }

    /// Writes code with one function; returns the address of its constants.
    fn write_code(&mut self, code: u64, constants: u64, bytes: u64) -> u64 {
        let tags = self.release.widetags();
        let function = function_offset(constants);
        self.put_damageable(code, tags.code | (bytes / 8) << 32);
        self.put_damageable(code + 8, function);
        self.put_damageable(code + 16, NIL);
        self.put_damageable(code + 24, 0);
        if constants % 2 == 1 {
            self.dynamic.put(code + 32 + 8 * constants, NIL);
        }
        self.put_damageable(code + function, tags.simple_fun | (function / 8) << LENGTH_SHIFT);
        self.dynamic.put(code + function + 8, code + function + 16);
        // The table of functions ends in the length of what follows the instructions.
        let trailer = code + bytes - 16;
        self.dynamic.put_bytes(trailer + 14, &16u16.to_le_bytes());
        self.dynamic.put_bytes(trailer + 10, &(1u16 << 5).to_le_bytes());
        code + 32
    }

    /// Writes layouts in immobile space, one for each type.
    fn write_layouts(&mut self, memory: &mut Memory, classoids: &Classoids) {
        let mut bytes = vec![0; (FIXED_PAGES * PAGE) as usize];
        for (index, classoid) in classoids.addresses.iter().enumerate() {
            let address = layout_pointer(index) - INSTANCE;
            let offset = address - FIXED_START;
            // The first layout serves as the layout of layouts.
            put(&mut bytes, offset, self.instance_header(0, LAYOUT_SLOTS));
            for word in 1..=LAYOUT_SLOTS {
                put(&mut bytes, offset + 8 * word, FIXNUM);
            }
            put(&mut bytes, offset + LAYOUT_CLASSOID, *classoid);
            self.damageable_words.extend([address, address + LAYOUT_CLASSOID]);
        }
        memory.add(FIXED_START, bytes, "rwxp");
        memory.add(TEXT_START, vec![0; PAGE as usize], "rwxp");
    }

    /// Writes NIL, and symbols whose values are roots.
    fn write_static_space(&mut self, memory: &mut Memory, roots: &[usize]) {
        let tags = self.release.widetags();
        let mut bytes = vec![0; STATIC_BYTES as usize];
        let nil = NIL - LIST - STATIC_START;
        put(&mut bytes, nil - 8, tags.symbol | SYMBOL_WORDS << LENGTH_SHIFT);
        put(&mut bytes, nil, NIL);
        put(&mut bytes, nil + 8, NIL);
        for word in 2..5 {
            put(&mut bytes, nil + 8 * word, FIXNUM);
        }
        for index in 0..STATIC_SYMBOL_COUNT {
            let symbol = STATIC_SYMBOLS_OFFSET + SYMBOL_BYTES * index;
            put(&mut bytes, symbol, tags.symbol | SYMBOL_WORDS << LENGTH_SHIFT);
            for word in 1..=SYMBOL_WORDS {
                put(&mut bytes, symbol + 8 * word, NIL);
            }
            put(&mut bytes, symbol + 8, FIXNUM);
        }
        assert!(
            roots.len() as u64 <= STATIC_SYMBOL_COUNT,
            "{} roots, but {STATIC_SYMBOL_COUNT} symbols in static space",
            roots.len()
        );
        for (index, &root) in (0..).zip(roots) {
            let value = STATIC_SYMBOLS_OFFSET + SYMBOL_BYTES * index + SYMBOL_VALUE;
            put(&mut bytes, value, self.references[root]);
            self.damageable_words.push(STATIC_START + value);
        }
        memory.add(STATIC_START, bytes, "rwxp");
    }

    /// Writes the runtime's variables and the page table.
    fn write_variables(
        &mut self,
        memory: &mut Memory,
        expected: &SbclExpected,
        threads: &[SbclThread],
    ) -> Variables {
        let mut symbols = Vec::new();
        let data = 0x5655_0000_0000 + PAGE * self.rng.below(1 << 20);
        let table_at = 0x7f10_0000_0000 + PAGE * self.rng.below(1 << 16) + 0x10;
        let table = self.dynamic.page_table_bytes();
        let entries = table.len() as u64 / 8;
        let mut bytes = vec![0; 2 * PAGE as usize];
        let mut offset = 0;
        let mut variable = |name: &'static str, value: &[u8]| {
            bytes[offset..offset + value.len()].copy_from_slice(value);
            symbols.push(SbclSymbol { name, address: data + offset as u64, bytes: value.len() as u64 });
            self.damageable_words.push(data + offset as u64);
            offset += value.len().next_multiple_of(16);
        };
        variable("generations", &generation_bytes(expected));
        variable(
            "gc_alloc_region",
            &vec![0; (8 * self.release.region_words() * self.release.static_region_count()) as usize],
        );
        let fixed_table = table_at + 8 * (DYNAMIC_BYTES / GC_PAGE_BYTES) + 0x100;
        let heap_variables = [
            ("page_table", table_at),
            ("next_free_page", entries),
            ("bytes_allocated", expected.usage()),
            ("auto_gc_trigger", expected.usage() + BYTES_BETWEEN_COLLECTIONS),
            ("all_threads", threads.first().map_or(0, |thread| thread.address)),
            ("fixedobj_pages", fixed_table),
        ];
        for (name, word) in heap_variables.into_iter().chain(space_variables(self.release)) {
            variable(name, &word.to_le_bytes());
        }
        variable("dynamic_values_bytes", &(VALUES_BYTES as u32).to_le_bytes());
        variable("gc_active_p", &[0; 4]);
        // No collection is under way.
        variable("from_space", &[0xff]);
        variable("gencgc_oldest_gen_to_gc", &[6]);
        memory.add(data, bytes, "rw-p");
        let mut pages = vec![0; 0x10];
        pages.extend(table);
        pages.resize((fixed_table - (table_at - 0x10)) as usize, 0);
        for _ in 0..FIXED_PAGES {
            pages.extend(self.release.fixedobj_entry(LAYOUT_WORDS as u8));
        }
        memory.add(table_at - 0x10, pages, "rw-p");
        Variables { symbols, page_table: PageTable { address: table_at, entries } }
    }
}

/// The variables with addresses and sizes of the spaces.
fn space_variables(release: SbclRelease) -> Vec<(&'static str, u64)> {
    let static_used_bytes = STATIC_SYMBOLS_OFFSET + SYMBOL_BYTES * STATIC_SYMBOL_COUNT;
    let (text_start, text_end) = match release {
        SbclRelease::V2_1_1 => ("VARYOBJ_SPACE_START", "varyobj_free_pointer"),
        SbclRelease::V2_2_9 => ("TEXT_SPACE_START", "text_space_highwatermark"),
    };
    vec![
        ("page_table_pages", DYNAMIC_BYTES / GC_PAGE_BYTES),
        ("DYNAMIC_SPACE_START", DYNAMIC_START),
        ("dynamic_space_size", DYNAMIC_BYTES),
        ("bytes_consed_between_gcs", BYTES_BETWEEN_COLLECTIONS),
        ("FIXEDOBJ_SPACE_START", FIXED_START),
        ("fixedobj_free_pointer", FIXED_START + FIXED_PAGES * PAGE),
        ("static_space_free_pointer", STATIC_START + static_used_bytes),
        ("STATIC_SPACE_START", STATIC_START),
        ("READ_ONLY_SPACE_START", 0),
        ("READ_ONLY_SPACE_END", 0),
        ("read_only_space_free_pointer", 0),
        (text_start, TEXT_START),
        (text_end, TEXT_START),
    ]
}

/// Offset of the function in code, which follows header, boxed size, debug information, fixups, and
/// an even number of constants.
fn function_offset(constants: u64) -> u64 {
    32 + 8 * (constants + constants % 2)
}

/// The variable `generations` (`struct generation`): bytes_allocated, gc_trigger,
/// bytes_consed_between_gcs, num_gc, number_of_gcs_before_promotion, cum_sum_bytes_allocated,
/// minimum_age_before_gc.
fn generation_bytes(expected: &SbclExpected) -> Vec<u8> {
    let mut bytes = Vec::new();
    for generation in &expected.generations {
        bytes.extend(generation.bytes.to_le_bytes());
        // gc_trigger: any.
        bytes.extend(2_000_000u64.to_le_bytes());
        bytes.extend(BYTES_BETWEEN_COLLECTIONS.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend((generation.bytes / 2).to_le_bytes());
        bytes.extend(0.75f64.to_le_bytes());
    }
    bytes
}
