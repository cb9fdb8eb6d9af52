//! Classes, and objects of them (`oops/klass.hpp`, `oops/instanceKlass.hpp`, `oops/oop.hpp`,
//! `oops/arrayOop.hpp`).

use super::graph::Object;
use super::{CLASS_SPACE, Header, Jdk, Writer};

/// `markWord::klass_shift` (`oops/markWord.hpp`).
const MARK_KLASS_SHIFT: u64 = 42;
/// The mark of an unlocked object.
const UNLOCKED: u64 = 1;
/// Offset in `java.lang.Class` of its own size in words: an injected field.
const MIRROR_SIZE_OFFSET: u64 = 24;
/// Offset in `java.lang.Class` of the number of static references, which follow its own fields.
const MIRROR_STATIC_COUNT_OFFSET: u64 = 28;
/// Bytes of the own fields of `java.lang.Class`.
const MIRROR_BYTES: u64 = 48;
/// Where the first class is in class space: offset 0 encodes a null pointer.
pub const FIRST_CLASS_OFFSET: u64 = 64;
/// Minimum number of unused bytes after a class.
const CLASS_GAP_BYTES: u64 = 8;
/// Alignment of a class.
const CLASS_ALIGNMENT: u64 = 16;

/// A class.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// Its name in Java.
    pub name: &'static str,
    /// Address of its `Klass`.
    address: u64,
    kind: Kind,
    /// The references in each instance; none for arrays and `java.lang.Class`, whose number varies.
    references: ReferenceBlock,
    /// `None` unless it is a `java.lang.ref.Reference`.
    pub reference_kind: Option<ReferenceKind>,
}

/// Consecutive references in an object, such as those of an `OopMapBlock`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceBlock {
    /// Offset of the first one in the object.
    pub offset: u64,
    /// Their number.
    pub count: u64,
}

/// The kind of a `java.lang.ref.Reference`.
#[derive(Clone, Copy, Debug)]
pub enum ReferenceKind {
    /// It keeps its referent alive.
    Soft,
    /// It does not keep its referent alive.
    Weak,
}

impl ReferenceKind {
    fn of_class(name: &str) -> Option<Self> {
        match name {
            "java.lang.ref.SoftReference" => Some(Self::Soft),
            "java.lang.ref.WeakReference" => Some(Self::Weak),
            _ => None,
        }
    }
}

/// The kind of a class.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Instance {
        bytes: u64,
    },
    Array {
        element_bytes: u64,
        holds_references: bool,
    },
    /// `java.lang.Class`.
    Mirror,
}

/// What follows the fields that every instance of a class has.
#[derive(Clone, Copy)]
enum Tail {
    None,
    /// The elements of an array.
    Elements {
        count: u64,
    },
    /// The static references of a `java.lang.Class`.
    StaticReferences {
        count: u64,
    },
}

/// The tables of methods and references of a class.
struct ClassTables {
    /// First address past them.
    end: u64,
    references: ReferenceBlock,
}

/// A class to write.
struct ClassSpec {
    /// Its name in Java.
    name: &'static str,
    /// Its name in the symbol table.
    symbol: &'static str,
    kind: Kind,
}

const fn spec(name: &'static str, symbol: &'static str, kind: Kind) -> ClassSpec {
    ClassSpec { name, symbol, kind }
}

const fn instance(bytes: u64) -> Kind {
    Kind::Instance { bytes }
}

const fn array(element_bytes: u64, holds_references: bool) -> Kind {
    Kind::Array { element_bytes, holds_references }
}

const CLASSES: [ClassSpec; 10] = [
    spec("java.lang.Object", "java/lang/Object", instance(16)),
    spec("java.lang.String", "java/lang/String", instance(24)),
    spec("java.lang.Class", "java/lang/Class", Kind::Mirror),
    spec("Subject$Held", "Subject$Held", instance(40)),
    spec("java.lang.ref.WeakReference", "java/lang/ref/WeakReference", instance(48)),
    spec("java.lang.ref.SoftReference", "java/lang/ref/SoftReference", instance(56)),
    spec("[B", "[B", array(1, false)),
    spec("[I", "[I", array(4, false)),
    spec("[J", "[J", array(8, false)),
    spec("[Ljava.lang.Object;", "[Ljava/lang/Object;", array(4, true)),
];

impl Writer {
    /// Writes the classes: each a `Klass` in class space, and a `Symbol`.
    pub fn write_classes(&mut self) {
        let klass_bytes = self.declare_type(
            "Klass",
            &[("_layout_helper", 4), ("_name", 8), ("_class_loader_data", 8), ("_vtable_len", 4)],
        );
        // An `InstanceKlass` begins with a `Klass`.
        const FIELDS: [(&str, u64); 3] =
            [("_itable_len", 4), ("_nonstatic_oop_map_size", 4), ("_reference_type", 1)];
        let own_bytes = self.declare_type("InstanceKlass", &FIELDS);
        for (field, _) in FIELDS {
            let offset = self.tables.offset("InstanceKlass", field);
            self.tables.declare_field("InstanceKlass", field, klass_bytes + offset);
        }
        self.tables.declare_size("InstanceKlass", klass_bytes + own_bytes);
        self.declare_type("Symbol", &[("_hash_and_refcount", 4), ("_length", 2), ("_body[0]", 2)]);
        // The text is the last field, and continues past the structure.
        let body = self.tables.size_of("Symbol");
        self.tables.declare_field("Symbol", "_body[0]", body);
        let (base, shift) = if self.jdk == Jdk::V25 {
            ("_base", "_shift")
        } else {
            ("_narrow_klass._base", "_narrow_klass._shift")
        };
        let encoding = if self.jdk == Jdk::V11 { "Universe" } else { "CompressedKlassPointers" };
        self.write_static(encoding, base, CLASS_SPACE);
        self.write_static(encoding, shift, 0);
        if self.jdk == Jdk::V25 {
            self.tables.declare_long("markWord::klass_shift", MARK_KLASS_SHIFT);
        }
        self.write_static("java_lang_Class", "_oop_size_offset", MIRROR_SIZE_OFFSET);
        self.write_static("java_lang_Class", "_static_oop_field_count_offset", MIRROR_STATIC_COUNT_OFFSET);
        for ClassSpec { name, symbol, kind } in CLASSES {
            // Elements that are references have the size of references.
            let kind = match kind {
                Kind::Array { holds_references: true, .. } => array(self.oop_bytes(), true),
                kind => kind,
            };
            let text = self.allocate_structure(body + symbol.len() as u64);
            self.image.put_bits(text + self.tables.offset("Symbol", "_length"), symbol.len() as u64, 16);
            self.image.put(text + body, symbol.as_bytes());
            let address = self.next_class_space;
            self.image.put_word(address + self.tables.offset("Klass", "_name"), text);
            let helper = self.layout_helper(kind);
            self.image.put_half(address + self.tables.offset("Klass", "_layout_helper"), helper);
            let ClassTables { end, references } = self.write_tables(address, name, kind);
            self.next_class_space = (end + CLASS_GAP_BYTES).next_multiple_of(CLASS_ALIGNMENT);
            let reference_kind = ReferenceKind::of_class(name);
            self.classes.push(Class { name, address, kind, references, reference_kind });
        }
    }

    /// Writes tables of methods with arbitrary contents, then an `OopMapBlock` if instances have
    /// references. An `ArrayKlass` gets no tables.
    fn write_tables(&mut self, klass: u64, name: &str, kind: Kind) -> ClassTables {
        if matches!(kind, Kind::Array { .. }) {
            let end = klass + self.tables.size_of("Klass");
            return ClassTables { end, references: ReferenceBlock::default() };
        }
        let references = match name {
            "java.lang.String" => ReferenceBlock { offset: 16, count: 1 },
            "Subject$Held" => ReferenceBlock { offset: 16, count: 2 },
            // After the referent: the queue, and the next reference in it.
            "java.lang.ref.WeakReference" | "java.lang.ref.SoftReference" => {
                ReferenceBlock { offset: 16 + self.oop_bytes(), count: 2 }
            }
            _ => ReferenceBlock::default(),
        };
        // `ReferenceType` (`memory/referenceType.hpp`): JDK 11 and 17 have one more before that of
        // soft ones.
        let reference_type = match ReferenceKind::of_class(name) {
            Some(ReferenceKind::Soft) => 2 - u8::from(self.jdk == Jdk::V25),
            Some(ReferenceKind::Weak) => 3 - u8::from(self.jdk == Jdk::V25),
            None => 0,
        };
        let (virtual_words, interface_words) = (self.rng.below(6), self.rng.below(4));
        let put = |writer: &mut Self, type_name, field, value: u64| {
            writer.image.put_half(klass + writer.tables.offset(type_name, field), value);
        };
        put(self, "Klass", "_vtable_len", virtual_words);
        put(self, "InstanceKlass", "_itable_len", interface_words);
        put(self, "InstanceKlass", "_nonstatic_oop_map_size", u64::from(references.count > 0));
        self.image.put(klass + self.tables.offset("InstanceKlass", "_reference_type"), &[reference_type]);
        let map = klass + self.tables.size_of("InstanceKlass") + 8 * (virtual_words + interface_words);
        if references.count > 0 {
            self.image.put_word(map, references.offset | references.count << 32);
        }
        ClassTables { end: map + 8, references }
    }

    /// `Klass::layout_helper`.
    fn layout_helper(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Instance { bytes } => bytes,
            // Allocated on the slow path.
            Kind::Mirror => MIRROR_BYTES | 1,
            Kind::Array { element_bytes, holds_references } => {
                let tag = if holds_references { 2 } else { 3 } << 30;
                let offset = self.elements_offset(element_bytes);
                tag | offset << 16 | 10 << 8 | u64::from(element_bytes.trailing_zeros())
            }
        }
    }

    /// Offset of the length of an array, which follows the header.
    fn length_offset(&self) -> u64 {
        match self.header {
            Header::Compact => 8,
            Header::Narrow => 12,
            Header::Wide => 16,
        }
    }

    /// Offset of elements of `bytes` bytes (`arrayOopDesc::base_offset_in_bytes`).
    pub fn elements_offset(&self, bytes: u64) -> u64 {
        // Up to JDK 21 at a multiple of eight.
        (self.length_offset() + 4).next_multiple_of(if self.jdk == Jdk::V25 { bytes } else { 8 })
    }

    /// Fills part of a range with objects, and returns the first address past them.
    pub fn write_objects(&mut self, start: u64, end: u64) -> u64 {
        let mut next = start;
        let stop = start + (end - start) / 16 * self.rng.below(17);
        while next < stop {
            let Some(bytes) = self.write_random_object(next, end) else { break };
            next += bytes;
        }
        next
    }

    /// Writes an object of a random class and returns its bytes; `None` if it does not fit.
    fn write_random_object(&mut self, address: u64, end: u64) -> Option<u64> {
        let class = self.rng.below(self.classes.len() as u64) as usize;
        let (bytes, tail) = match self.classes[class].kind {
            Kind::Instance { bytes } => (bytes, Tail::None),
            Kind::Mirror => {
                let words = self.rng.below(10);
                let count = self.rng.below(words + 1);
                (MIRROR_BYTES + 8 * words, Tail::StaticReferences { count })
            }
            Kind::Array { element_bytes, .. } => {
                let max_count = if self.rng.chance(5) { 2000 } else { 40 };
                let count = self.rng.below(max_count);
                (self.elements_offset(element_bytes) + element_bytes * count, Tail::Elements { count })
            }
        };
        let bytes = bytes.next_multiple_of(8);
        if address + bytes > end {
            return None;
        }
        self.put_object(class, address, bytes, tail);
        Some(bytes)
    }

    /// Writes one array that takes all of a range, and is less than eight bytes larger than it
    /// needs to be.
    pub fn write_filling_array(&mut self, start: u64, end: u64) {
        let class = self.classes.iter().position(|class| class.name == "[B");
        let class = class.unwrap_or_else(|| panic!("no class of byte arrays"));
        let bytes = end - start;
        let count = bytes.saturating_sub(self.elements_offset(1) + self.rng.below(8));
        self.put_object(class, start, bytes, Tail::Elements { count });
        if let Some(object) = self.objects.last_mut() {
            object.is_humongous = true;
        }
    }

    /// Writes an object of the class with this index.
    fn put_object(&mut self, index: usize, address: u64, bytes: u64, tail: Tail) {
        let class = self.classes[index];
        let narrow = class.address - CLASS_SPACE;
        let mark = match self.header {
            Header::Compact => UNLOCKED | narrow << MARK_KLASS_SHIFT,
            _ => UNLOCKED,
        };
        self.image.put_word(address, mark);
        match self.header {
            Header::Wide => self.image.put_word(address + 8, class.address),
            Header::Narrow => self.image.put_half(address + 8, narrow),
            Header::Compact => {}
        }
        match tail {
            Tail::None => {}
            Tail::Elements { count } => self.image.put_half(address + self.length_offset(), count),
            Tail::StaticReferences { count } => {
                self.image.put_half(address + MIRROR_SIZE_OFFSET, bytes / 8);
                self.image.put_half(address + MIRROR_STATIC_COUNT_OFFSET, count);
            }
        }
        let references = match (class.kind, tail) {
            (Kind::Array { element_bytes, holds_references: true }, Tail::Elements { count }) => {
                ReferenceBlock { offset: self.elements_offset(element_bytes), count }
            }
            (_, Tail::StaticReferences { count }) => ReferenceBlock { offset: MIRROR_BYTES, count },
            _ => class.references,
        };
        self.expected.types.entry(class.name).or_default().add(bytes);
        let is_archived = self.is_archive;
        let is_humongous = false;
        self.objects.push(Object { address, bytes, class: index, references, is_archived, is_humongous });
    }
}
