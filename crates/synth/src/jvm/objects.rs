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
/// Offset in `java.lang.Class` of the number of static references behind its own fields.
pub const MIRROR_STATIC_COUNT_OFFSET: u64 = 28;
/// Bytes of the own fields of `java.lang.Class`.
pub const MIRROR_BYTES: u64 = 48;
/// Where the first class is in class space: offset 0 encodes a null pointer.
pub const FIRST_CLASS_OFFSET: u64 = 64;
/// Unused bytes behind a class, at least.
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
    pub kind: Kind,
    /// The references in instances.
    pub references: Option<ReferenceBlock>,
    /// `None` unless it is a `java.lang.ref.Reference`.
    pub reference_kind: Option<ReferenceKind>,
}

/// References of an object, one behind the other: an `OopMapBlock`.
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
    /// It keeps its referent.
    Soft,
    /// It does not.
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
pub enum Kind {
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
        // The text is the last field, and continues behind the structure.
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
            self.image
                .put(text + self.tables.offset("Symbol", "_length"), &(symbol.len() as u16).to_le_bytes());
            self.image.put(text + body, symbol.as_bytes());
            let address = self.next_class_space;
            self.image.put_word(address + self.tables.offset("Klass", "_name"), text);
            let helper = self.layout_helper(kind);
            self.image.put(address + self.tables.offset("Klass", "_layout_helper"), &helper.to_le_bytes());
            let (end, references) = self.write_tables(address, name, kind);
            self.next_class_space = (end + CLASS_GAP_BYTES).next_multiple_of(CLASS_ALIGNMENT);
            let reference_kind = ReferenceKind::of_class(name);
            self.classes.push(Class { name, address, kind, references, reference_kind });
        }
    }

    /// Writes tables of methods with arbitrary contents, and behind them an `OopMapBlock` if
    /// instances have references; returns its end, and the references. An `ArrayKlass` gets no
    /// tables.
    fn write_tables(&mut self, klass: u64, name: &str, kind: Kind) -> (u64, Option<ReferenceBlock>) {
        if matches!(kind, Kind::Array { .. }) {
            return (klass + self.tables.size_of("Klass"), None);
        }
        let references = match name {
            "java.lang.String" => Some(ReferenceBlock { offset: 16, count: 1 }),
            "Subject$Held" => Some(ReferenceBlock { offset: 16, count: 2 }),
            // Behind the referent: the queue, and the next reference in it.
            "java.lang.ref.WeakReference" | "java.lang.ref.SoftReference" => {
                Some(ReferenceBlock { offset: 16 + self.oop_bytes(), count: 2 })
            }
            _ => None,
        };
        // `ReferenceType` (`memory/referenceType.hpp`): JDK 11 and 17 have one more before that of
        // soft ones.
        let reference_type = match ReferenceKind::of_class(name) {
            Some(ReferenceKind::Soft) => 2 - u8::from(self.jdk == Jdk::V25),
            Some(ReferenceKind::Weak) => 3 - u8::from(self.jdk == Jdk::V25),
            None => 0,
        };
        let (virtual_words, interface_words) = (self.dice.below(6), self.dice.below(4));
        let put = |writer: &mut Self, type_name, field, value: u64| {
            let address = klass + writer.tables.offset(type_name, field);
            writer.image.put(address, &(value as u32).to_le_bytes());
        };
        put(self, "Klass", "_vtable_len", virtual_words);
        put(self, "InstanceKlass", "_itable_len", interface_words);
        put(self, "InstanceKlass", "_nonstatic_oop_map_size", u64::from(references.is_some()));
        self.image.put(klass + self.tables.offset("InstanceKlass", "_reference_type"), &[reference_type]);
        let map = klass + self.tables.size_of("InstanceKlass") + 8 * (virtual_words + interface_words);
        if let Some(ReferenceBlock { offset, count }) = references {
            self.image.put_word(map, offset | count << 32);
        }
        (map + 8, references)
    }

    /// `Klass::layout_helper`.
    fn layout_helper(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Instance { bytes } => bytes as u32,
            // Allocated on the slow path.
            Kind::Mirror => MIRROR_BYTES as u32 | 1,
            Kind::Array { element_bytes, holds_references } => {
                let tag = if holds_references { 2_u32 } else { 3 } << 30;
                let offset = self.elements_offset(element_bytes) as u32;
                tag | offset << 16 | 10 << 8 | element_bytes.trailing_zeros()
            }
        }
    }

    /// Offset of the length of an array, behind the header.
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

    /// Fills part of a range with objects, and returns the first byte behind them.
    pub fn write_objects(&mut self, start: u64, end: u64) -> u64 {
        let mut next = start;
        let stop = start + (end - start) / 16 * self.dice.below(17);
        while next < stop {
            let Some(bytes) = self.write_random_object(next, end) else { break };
            next += bytes;
        }
        next
    }

    /// Writes an object of a random class and returns its bytes; `None` if it does not fit.
    fn write_random_object(&mut self, address: u64, end: u64) -> Option<u64> {
        let class = self.dice.below(self.classes.len() as u64) as usize;
        let (bytes, length) = match self.classes[class].kind {
            Kind::Instance { bytes } => (bytes, 0),
            Kind::Mirror => {
                let words = self.dice.below(10);
                (MIRROR_BYTES + 8 * words, self.dice.below(words + 1))
            }
            Kind::Array { element_bytes, .. } => {
                let max_length = if self.dice.chance(5) { 2000 } else { 40 };
                let length = self.dice.below(max_length);
                (self.elements_offset(element_bytes) + element_bytes * length, length)
            }
        };
        let bytes = bytes.next_multiple_of(8);
        if address + bytes > end {
            return None;
        }
        self.put_object(class, address, bytes, length);
        Some(bytes)
    }

    /// Writes one array that takes all of a range, and is less than eight bytes larger than it
    /// needs to be.
    pub fn write_filling_array(&mut self, start: u64, end: u64) {
        let class = self.classes.iter().position(|class| class.name == "[B").unwrap_or(0);
        let bytes = end - start;
        let length = bytes.saturating_sub(self.elements_offset(1) + self.dice.below(8));
        self.put_object(class, start, bytes, length);
        if let Some(object) = self.objects.last_mut() {
            object.is_humongous = true;
        }
    }

    /// Writes an object of the class with this index.
    fn put_object(&mut self, index: usize, address: u64, bytes: u64, length: u64) {
        let class = self.classes[index];
        let narrow = class.address - CLASS_SPACE;
        let mark = match self.header {
            Header::Compact => UNLOCKED | narrow << MARK_KLASS_SHIFT,
            _ => UNLOCKED,
        };
        self.image.put_word(address, mark);
        match self.header {
            Header::Wide => self.image.put_word(address + 8, class.address),
            Header::Narrow => self.image.put(address + 8, &(narrow as u32).to_le_bytes()),
            Header::Compact => {}
        }
        match class.kind {
            Kind::Array { .. } => {
                self.image.put(address + self.length_offset(), &(length as u32).to_le_bytes());
            }
            Kind::Mirror => {
                self.image.put(address + MIRROR_SIZE_OFFSET, &((bytes / 8) as u32).to_le_bytes());
                self.put_static_count(address, length);
            }
            Kind::Instance { .. } => {}
        }
        self.expected.types.entry(class.name).or_default().add(bytes);
        let is_archived = self.is_archive;
        self.objects.push(Object { address, bytes, class: index, length, is_archived, is_humongous: false });
    }
}
