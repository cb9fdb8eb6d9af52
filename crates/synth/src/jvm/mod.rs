//! Fabricated Java virtual machines: HotSpot's tables about itself, a heap of any collector,
//! classes, threads with allocation buffers, metaspace, compiled code. All of it is known by
//! construction.
//!
//! Written from HotSpot's sources of JDK 11, 17 and 25 (`src/hotspot/share`), independently of the
//! reader that it tests. What the tables describe is at random offsets, everything else at the
//! offsets of the sources.

mod g1;
mod graph;
mod heap;
mod native;
mod objects;
mod shenandoah;
mod spaces;
mod tables;
mod z;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use self::heap::{COLLECTORS, Collector};
use self::tables::{Tables, WrittenTables};
use crate::{Image, PAGE, Rng, Tally, Usage, map_line, map_lines};

/// Address of the library, and of its data.
const LIBRARY: u64 = 0x7f50_0000_0000;
const DATA: u64 = LIBRARY + 0x10_0000;
const DATA_BYTES: u64 = 12 * PAGE;
/// Address of glibc's code: glibc's malloc puts JNI handles where readers search; others may not.
const LIBC: u64 = 0x7fff_0000_0000;
/// Memory from malloc.
const STRUCTURES: u64 = 0x7f40_0001_0000;
const STRUCTURES_BYTES: u64 = 24 * PAGE;
/// A thread's stack.
const STACK: u64 = 0x7f72_0000_0000;
const STACK_BYTES: u64 = 4 * PAGE;
const HEAP: u64 = 0xe000_0000;
const CLASS_SPACE: u64 = 0x8_0000_0000;
const CLASS_SPACE_BYTES: u64 = 16 * PAGE;
const METASPACE: u64 = 0x7f60_0000_0000;
const METASPACE_BYTES: u64 = 32 * PAGE;
const CODE: u64 = 0x7f70_0000_0000;
const CODE_BYTES: u64 = 16 * PAGE;
const CODE_MAP: u64 = 0x7f71_0000_0000;
/// Narrow references are addresses without these low bits.
const OOP_SHIFT: u64 = 3;

/// Usage by the names of the memory pool beans.
pub type JvmPools = BTreeMap<&'static str, Usage>;

/// Expected figures of a fabricated JVM.
#[derive(Clone, Debug, Default)]
pub struct JvmExpected {
    /// `Abstract_VM_Version::_s_vm_release`.
    pub release: &'static str,
    /// Its collector.
    pub collector: &'static str,
    /// Its pools.
    pub pools: JvmPools,
    /// Objects by class.
    pub types: BTreeMap<&'static str, Tally>,
    /// Objects by class that are reachable, or seem to be.
    pub live_types: BTreeMap<&'static str, Tally>,
    /// Number of class loaders that have loaded something.
    pub loader_count: u64,
    /// For each kind of heap part, how much of it objects use.
    pub usage_by_kind: BTreeMap<&'static str, Usage>,
    /// Committed bytes of the heap.
    pub heap_bytes: u64,
    /// For a heap in shared memory, counted for each of its mappings; used are the bytes in use on
    /// pages.
    pub shared_heap: Usage,
}

/// A fabricated JVM.
#[derive(Clone, Debug)]
pub struct JvmImage {
    /// Its memory, all of it resident.
    pub image: Image,
    /// Its /proc/PID/maps.
    pub maps: String,
    /// The file of its library, which holds the names that its tables point to.
    pub file: Vec<u8>,
    /// Distance from addresses in the file of the library to those in memory.
    pub bias: u64,
    /// Addresses of the four pointers to its tables: fields, types, constants of 32 and of 64 bits.
    pub tables: [u64; 4],
    /// The library's writable data: its first address, and the first one past its end.
    pub data: (u64, u64),
    /// Its expected figures.
    pub expected: JvmExpected,
}

/// How the header of an object encodes its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    /// A pointer of 64 bits.
    Wide,
    /// A pointer of 32 bits.
    Narrow,
    /// Some bits of the mark word.
    Compact,
}

/// The version of the JDK, which stands for those with the same layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jdk {
    V11,
    V17,
    V25,
}

struct Writer {
    image: Image,
    rng: Rng,
    tables: Tables,
    expected: JvmExpected,
    jdk: Jdk,
    collector: Collector,
    header: Header,
    /// Address for the next structure.
    next_structure: u64,
    /// Address for the next class.
    next_class_space: u64,
    has_narrow_oops: bool,
    /// Committed ranges of the heap.
    committed_ranges: Vec<Range<u64>>,
    classes: Vec<objects::Class>,
    objects: Vec<graph::Object>,
    /// Whether the objects being written are in the archive.
    is_archive: bool,
    /// The objects of class loaders.
    loaders: BTreeSet<u64>,
    /// Buffers of threads.
    buffers: Vec<native::Buffer>,
}

/// Fabricates a JVM from `seed`.
pub fn fabricate_jvm(seed: u64) -> JvmImage {
    let mut writer = new_writer(Rng::new(seed ^ 0x6a61_7661));
    writer.write_version_and_flags();
    writer.write_classes();
    writer.write_heap();
    let graph = writer.draw_references();
    writer.write_threads();
    writer.write_metaspace();
    writer.write_code();
    writer.expect_live(graph);
    let Writer { mut image, tables, mut expected, collector, committed_ranges, .. } = writer;
    let bytes = committed_ranges.iter().map(|range| range.end - range.start).sum();
    if collector == Collector::Z {
        expected.shared_heap.committed_bytes = bytes;
    } else {
        expected.heap_bytes = bytes;
    }
    let WrittenTables { file, pointers } = tables.write(&mut image);
    let maps = maps(&committed_ranges, collector);
    JvmImage { image, maps, file, bias: LIBRARY, tables: pointers, data: (DATA, DATA + DATA_BYTES), expected }
}

/// Draws the JDK, the collector and the layout of a JVM that is to be written.
fn new_writer(mut rng: Rng) -> Writer {
    let image = Image::of(&[
        (DATA, DATA_BYTES),
        (STRUCTURES, STRUCTURES_BYTES),
        (CLASS_SPACE, CLASS_SPACE_BYTES),
        (METASPACE, METASPACE_BYTES),
        (CODE, CODE_BYTES),
        (CODE_MAP, PAGE),
        (STACK, STACK_BYTES),
    ]);
    let jdk = [Jdk::V25, Jdk::V17, Jdk::V11][rng.below(3) as usize];
    let release = match jdk {
        Jdk::V25 => "25.0.3+9-LTS",
        Jdk::V17 => "17.0.15+6-Debian-1deb12u1",
        Jdk::V11 => "11.0.32.1+1-post-1-deb11u1-Debian",
    };
    let header = match rng.below(3) {
        0 => Header::Narrow,
        1 if jdk == Jdk::V25 => Header::Compact,
        1 => Header::Wide,
        _ => Header::Narrow,
    };
    let collector = COLLECTORS[rng.below(if jdk == Jdk::V11 { 4 } else { 6 }) as usize];
    // Pointers of ZGC have colours.
    let has_narrow_oops = collector != Collector::Z && rng.chance(70);
    Writer {
        has_narrow_oops,
        objects: Vec::new(),
        is_archive: false,
        tables: Tables::new(LIBRARY, DATA),
        image,
        rng,
        expected: JvmExpected { release, ..JvmExpected::default() },
        jdk,
        collector,
        header,
        next_structure: STRUCTURES + 64,
        next_class_space: CLASS_SPACE + objects::FIRST_CLASS_OFFSET,
        committed_ranges: Vec::new(),
        classes: Vec::new(),
        loaders: BTreeSet::new(),
        buffers: Vec::new(),
    }
}

/// The text of /proc/PID/maps.
fn maps(committed_ranges: &[Range<u64>], collector: Collector) -> String {
    let heap = match collector {
        Collector::Z => "rw-s 00000000 00:01 5 /memfd:java_heap (deleted)",
        _ => "rw-p 00000000 00:00 0",
    };
    let mut maps = vec![
        map_line(CLASS_SPACE, CLASS_SPACE_BYTES, "rw-p 00000000 00:00 0"),
        map_line(STRUCTURES, STRUCTURES_BYTES, "rw-p 00000000 00:00 0 [heap]"),
        map_line(LIBC, PAGE, "r-xp 00000000 08:01 9 /usr/lib/x86_64-linux-gnu/libc.so.6"),
        map_line(LIBRARY, 0x1000, "r-xp 00000000 08:01 7 /usr/lib/jvm/lib/server/libjvm.so"),
        map_line(DATA, DATA_BYTES, "rw-p 00100000 08:01 7 /usr/lib/jvm/lib/server/libjvm.so"),
        map_line(METASPACE, METASPACE_BYTES, "rw-p 00000000 00:00 0"),
        map_line(CODE, CODE_BYTES, "rwxp 00000000 00:00 0"),
        map_line(CODE_MAP, PAGE, "rw-p 00000000 00:00 0"),
        map_line(STACK, STACK_BYTES, "rw-p 00000000 00:00 0"),
    ];
    maps.extend(committed_ranges.iter().map(|range| map_line(range.start, range.end - range.start, heap)));
    maps.sort_unstable_by_key(|line| line.start);
    map_lines(&maps)
}

impl Writer {
    /// Allocates memory for a structure; returns its address.
    fn allocate_structure(&mut self, bytes: u64) -> u64 {
        let structure = self.next_structure;
        self.next_structure += (bytes + 8 * self.rng.below(6)).next_multiple_of(16);
        assert!(self.next_structure <= STRUCTURES + STRUCTURES_BYTES, "no room for structures");
        structure
    }

    /// Describes a type with its fields, each given by its name and bytes, in random order; returns
    /// the type's bytes.
    fn declare_type(&mut self, name: &'static str, fields: &[(&'static str, u64)]) -> u64 {
        let mut remaining: Vec<(&str, u64)> = fields.to_vec();
        let mut offset = 8 * self.rng.below(4);
        while !remaining.is_empty() {
            let (field, bytes) = remaining.swap_remove(self.rng.below(remaining.len() as u64) as usize);
            self.tables.declare_field(name, field, offset);
            offset += bytes.next_multiple_of(8) + 8 * self.rng.below(3);
        }
        self.tables.declare_size(name, offset);
        offset
    }

    /// Writes a structure of a type that was declared, with values of some of its fields.
    fn write_structure(&mut self, name: &'static str, fields: &[(&str, u64)]) -> u64 {
        let at = self.allocate_structure(self.tables.size_of(name));
        self.write_fields(at, name, fields);
        at
    }

    /// Writes fields of the structure of a type.
    fn write_fields(&mut self, structure: u64, name: &'static str, fields: &[(&str, u64)]) {
        for (field, word) in fields {
            self.image.put_word(structure + self.tables.offset(name, field), *word);
        }
    }

    /// Writes a static field.
    fn write_static(&mut self, name: &'static str, field: &'static str, word: u64) {
        let at = self.tables.declare_static(name, field);
        self.image.put_word(at, word);
    }

    /// Writes a flag of the command line.
    fn write_flag(&mut self, name: &'static str, value: u64) {
        let at = self.tables.declare_flag(name);
        self.image.put_word(at, value);
    }

    /// Writes the version and general flags.
    fn write_version_and_flags(&mut self) {
        let release = self.tables.add_text(self.expected.release);
        self.write_static("Abstract_VM_Version", "_s_vm_release", release);
        for flag in ["DisableAttachMechanism", "DisableExplicitGC", "ExplicitGCInvokesConcurrent"] {
            self.write_flag(flag, 0);
        }
        self.write_flag("ObjectAlignmentInBytes", 8);
        // JDK 11 has no flag for the minimum.
        let minimum = if self.jdk == Jdk::V11 { "InitialHeapSize" } else { "MinHeapSize" };
        self.write_flag(minimum, 16 * PAGE);
        self.write_flag("MaxHeapSize", 1 << 20);
        self.write_flag("MaxHeapFreeRatio", 70);
        self.write_flag("UseCompressedOops", u64::from(self.has_narrow_oops));
        let (base, shift) = if self.jdk == Jdk::V25 {
            ("_base", "_shift")
        } else {
            ("_narrow_oop._base", "_narrow_oop._shift")
        };
        let encoding = if self.jdk == Jdk::V11 { "Universe" } else { "CompressedOops" };
        self.write_static(encoding, base, 0);
        self.write_static(encoding, shift, OOP_SHIFT);
        self.write_flag("UseCompressedClassPointers", u64::from(self.header != Header::Wide));
        if self.jdk == Jdk::V25 {
            self.write_flag("UseCompactObjectHeaders", u64::from(self.header == Header::Compact));
        }
        // Fields that no reader uses.
        for (name, field) in
            [("BasicType", "_size"), ("Arguments", "_num_jvm_args"), ("vframeArray", "_frames")]
        {
            self.tables.declare_field(name, field, self.rng.below(1000));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_jvm_and_mappings_cover_it() {
        for seed in 0..20 {
            let (one, two) = (fabricate_jvm(seed), fabricate_jvm(seed));
            assert!(one.image.ranges().eq(two.image.ranges()));
            assert_eq!((&one.maps, &one.file), (&two.maps, &two.file));
            let is_mapped = |start: u64| {
                one.maps.lines().any(|line| {
                    let (from, rest) = line.split_once('-').unwrap();
                    let to = rest.split_once(' ').unwrap().0;
                    let number = |text| u64::from_str_radix(text, 16).unwrap();
                    (number(from)..number(to)).contains(&start)
                })
            };
            assert!(one.image.ranges().all(|(start, _)| is_mapped(start)), "{}", one.maps);
            assert!(one.expected.heap_bytes + one.expected.shared_heap.committed_bytes > 0);
        }
    }
}
