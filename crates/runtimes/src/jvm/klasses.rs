//! Classes (`Klass`): the sizes of their objects, and their names.

use std::collections::HashMap;

use strandline_claims::facts::TypeFacts;

use super::names;
use super::view::View;

/// Limit on classes kept; objects of further ones count as unread.
const MAX_CLASSES: usize = 1 << 18;
/// Limit on the bytes of all their names: [`MAX_CLASSES`] names of 128 bytes. A hostile process may
/// have longer ones.
const MAX_ALL_NAMES_BYTES: usize = 32 << 20;
/// Number of entries of the cache of classes found last (a power of two).
const RECENT_CLASSES: usize = 4096;
/// Class of the objects that free a direct buffer, and hold its address and size.
const DEALLOCATOR: &str = "java.nio.DirectByteBuffer$Deallocator";
/// Bytes read of an object for its class and length.
pub const HEAD_BYTES: usize = 24;

/// Format of object headers: fixed when the JVM starts.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Position of the class pointer in an object.
    pub klass: KlassPosition,
    /// Offset in an array of its length.
    pub length_offset: usize,
    /// How narrow class pointers are decoded; not used if they are wide.
    pub narrow: NarrowKlass,
    /// Alignment of objects and of their sizes, in bytes.
    pub alignment: u64,
    /// Offset in a `java.lang.Class` of its size in words; `None` if it cannot be read.
    pub mirror_words_offset: Option<u64>,
    /// Whether references in objects have 32 bits.
    pub has_narrow_oops: bool,
}

/// Decodes narrow class pointers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NarrowKlass {
    base: u64,
    shift: u32,
}

impl NarrowKlass {
    /// Returns the address of a class.
    fn address(self, narrow: u64) -> u64 {
        self.base.wrapping_add(narrow << self.shift)
    }
}

/// Position of the class pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlassPosition {
    /// A word of 64 bits at 8.
    Wide,
    /// A narrow pointer of 32 bits at 8.
    Narrow,
    /// In the mark word, from this bit on (`UseCompactObjectHeaders`).
    InMark(u32),
}

impl Headers {
    /// Reads the format, which depends on the command line and the machine; `None` if a part of it
    /// cannot be read, or is implausible.
    pub fn read(view: &View<'_>) -> Option<Self> {
        let is_compact = view.is_set("UseCompactObjectHeaders")?;
        let is_narrow = view.structs.flag("UseCompressedClassPointers").is_none()
            || view.is_set("UseCompressedClassPointers")?;
        let (klass, length_offset) = match (is_compact, is_narrow) {
            (true, _) => {
                (KlassPosition::InMark(u32::try_from(view.constant(&["markWord::klass_shift"])?).ok()?), 8)
            }
            (false, true) => (KlassPosition::Narrow, 12),
            (false, false) => (KlassPosition::Wide, 16),
        };
        // The newest name first.
        let bases = [
            "CompressedKlassPointers::_base",
            "CompressedKlassPointers::_narrow_klass._base",
            "Universe::_narrow_klass._base",
        ];
        let shifts = [
            "CompressedKlassPointers::_shift",
            "CompressedKlassPointers::_narrow_klass._shift",
            "Universe::_narrow_klass._shift",
        ];
        let narrow = match klass {
            KlassPosition::Wide => NarrowKlass::default(),
            _ => NarrowKlass { base: view.static_field(&bases)?, shift: view.static_half_field(&shifts)? },
        };
        // 64 bits up to JDK 22, 32 bits in later ones; at most 256.
        let alignment =
            view.structs.flag("ObjectAlignmentInBytes").and_then(|at| view.half_word(at)).map(u64::from)?;
        let is_sound = alignment.is_power_of_two() && (8..=256).contains(&alignment) && narrow.shift < 32;
        let mirror_words_offset =
            view.static_half_field(&["java_lang_Class::_oop_size_offset"]).map(u64::from);
        let has_narrow_oops = view.is_set("UseCompressedOops")?;
        is_sound.then_some(Self {
            klass,
            length_offset,
            narrow,
            alignment,
            mirror_words_offset,
            has_narrow_oops,
        })
    }

    /// Offset of the number of words of frames in a `StackChunk`
    /// (`jdk.internal.vm.StackChunk.size`, JDK 21 to 27). It is the first 32-bit field: in the gap
    /// behind the header, or else behind one 64-bit field.
    fn frame_words_offset(&self) -> u64 {
        match self.klass {
            KlassPosition::Narrow => 12,
            KlassPosition::InMark(_) => 16,
            KlassPosition::Wide => 24,
        }
    }

    /// Offset of an object's first 64-bit field; these precede the others (JDK 11 to 27).
    pub fn first_long_offset(&self) -> u64 {
        if matches!(self.klass, KlassPosition::InMark(_)) { 8 } else { 16 }
    }

    /// Returns the class pointer in the first bytes of an object.
    fn klass_of(&self, head: &[u8; HEAD_BYTES]) -> u64 {
        let word = |at: usize| half_word_in(head, at) | half_word_in(head, at + 4) << 32;
        match self.klass {
            KlassPosition::Wide => word(8),
            KlassPosition::Narrow => self.narrow.address(half_word_in(head, 8)),
            KlassPosition::InMark(shift) => self.narrow.address(word(0) >> (shift & 63)),
        }
    }

    /// Returns the length in the first bytes of an array.
    fn length_of(&self, head: &[u8; HEAD_BYTES]) -> u64 {
        half_word_in(head, self.length_offset)
    }
}

/// Returns the 32-bit word at an offset of the first bytes of an object.
fn half_word_in(head: &[u8; HEAD_BYTES], at: usize) -> u64 {
    u64::from(u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]))
}

/// How the size of a class's objects is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeRule {
    /// All objects have this number of bytes.
    Fixed(u64),
    /// Header bytes, and log2 of an element's bytes.
    Array { header_bytes: u64, element_log2: u32 },
    /// A `java.lang.Class`, which also holds the static fields of its class: the object states its
    /// size.
    Mirror,
    /// A `jdk.internal.vm.StackChunk`: this many bytes, then frames of a virtual thread, whose size
    /// the object states.
    Frames(u64),
}

/// A class with objects.
#[derive(Clone, Debug)]
struct Class {
    address: u64,
    size_rule: SizeRule,
    name: String,
    /// Whether its objects free direct buffers.
    is_deallocator: bool,
    instances: u64,
    bytes: u64,
}

/// The class found last; address 0 before the first.
#[derive(Clone, Copy, Default)]
struct RecentClass {
    address: u64,
    index: u32,
}

/// Classes found, and counts of their objects.
pub struct Classes<'a> {
    view: View<'a>,
    headers: Headers,
    /// The classes, by their number.
    classes: Vec<Class>,
    /// Numbers by address; `None` if there is no class at it.
    by_address: HashMap<u64, Option<u32>>,
    /// Bytes of all names.
    name_bytes: usize,
    /// Classes found last, by bits of their address.
    recent: Vec<RecentClass>,
}

impl<'a> Classes<'a> {
    /// Creates an empty set.
    pub fn new(view: View<'a>, headers: Headers) -> Self {
        let recent = vec![RecentClass::default(); RECENT_CLASSES];
        Self { view, headers, classes: Vec::new(), by_address: HashMap::new(), name_bytes: 0, recent }
    }

    /// Returns the format of object headers.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns the number of the class of the object that begins with `head`; `None` if it has
    /// none.
    pub fn class_of(&mut self, head: &[u8; HEAD_BYTES]) -> Option<u32> {
        let klass = self.headers.klass_of(head);
        let entry = (klass >> 3) as usize % RECENT_CLASSES;
        let recent = self.recent[entry];
        if recent.address == klass && klass != 0 {
            return Some(recent.index);
        }
        let index = self.number_of(klass)?;
        self.recent[entry] = RecentClass { address: klass, index };
        Some(index)
    }

    /// Returns the bytes of the object of a class, at `address`, that begins with `head`; `None` if
    /// its size cannot be read.
    pub fn size(&self, class: u32, address: u64, head: &[u8; HEAD_BYTES]) -> Option<u64> {
        let bytes = match self.classes.get(class as usize)?.size_rule {
            SizeRule::Fixed(bytes) => bytes,
            SizeRule::Array { header_bytes, element_log2 } => {
                header_bytes + (self.headers.length_of(head) << element_log2)
            }
            SizeRule::Mirror => {
                let at = address.checked_add(self.headers.mirror_words_offset?)?;
                u64::from(self.view.half_word(at)?) * 8
            }
            SizeRule::Frames(object_bytes) => {
                let at = address.checked_add(self.headers.frame_words_offset())?;
                let words = u64::from(self.view.half_word(at)?);
                // One bit per possible reference follows the frames.
                let bits = words << u32::from(self.headers.has_narrow_oops);
                object_bytes + (words + bits.div_ceil(64)) * 8
            }
        };
        Some(bytes.next_multiple_of(self.headers.alignment)).filter(|&bytes| bytes >= 8)
    }

    /// Counts an object of a class.
    pub fn count(&mut self, class: u32, bytes: u64) {
        if let Some(class) = self.classes.get_mut(class as usize) {
            class.instances += 1;
            class.bytes = class.bytes.saturating_add(bytes);
        }
    }

    /// Returns the address of a class.
    pub fn address_of(&self, class: u32) -> Option<u64> {
        self.classes.get(class as usize).map(|class| class.address)
    }

    /// Returns the name of a class.
    pub fn name_of(&self, class: u32) -> Option<&str> {
        self.classes.get(class as usize).map(|class| class.name.as_str())
    }

    /// Whether objects of a class free direct buffers.
    pub fn is_deallocator(&self, class: u32) -> bool {
        self.classes.get(class as usize).is_some_and(|class| class.is_deallocator)
    }

    /// Returns the number of elements of the array that begins with `head`.
    pub fn array_length(&self, head: &[u8; HEAD_BYTES]) -> u64 {
        self.headers.length_of(head)
    }

    /// Returns the number of the class at an address; reads it if it is not known yet.
    fn number_of(&mut self, klass: u64) -> Option<u32> {
        if let Some(index) = self.by_address.get(&klass) {
            return *index;
        }
        if self.by_address.len() >= MAX_CLASSES || self.name_bytes >= MAX_ALL_NAMES_BYTES {
            return None;
        }
        let class = self.read(klass);
        self.name_bytes += class.as_ref().map_or(0, |class| class.name.len());
        let index = class.is_some().then_some(self.classes.len() as u32);
        self.classes.extend(class);
        self.by_address.insert(klass, index);
        index
    }

    /// Reads a class; `None` unless both its objects' size and its name are plausible.
    fn read(&self, klass: u64) -> Option<Class> {
        if klass == 0 || !klass.is_multiple_of(8) {
            return None;
        }
        let layout_helper = self.view.half_field(klass, &["Klass::_layout_helper"])? as i32;
        let symbol = self.view.field(klass, &["Klass::_name"])?;
        let mut name = names::class_name(&self.view, symbol)?;
        if layout_helper > 0 && self.is_anonymous(klass) {
            name.push_str(&format!("/{klass:#018x}"));
        }
        let size_rule = match (layout_helper, name.as_str()) {
            (_, "java.lang.Class") => SizeRule::Mirror,
            (_, "jdk.internal.vm.StackChunk") => SizeRule::Frames(layout_helper as u64 & !7),
            // `Klass::layout_helper`. Instance: its size, with the lowest bit set if it cannot be
            // allocated on the fast path. Array: bytes of the header in the third byte, log2 of an
            // element's bytes in the lowest.
            (1.., _) => SizeRule::Fixed(layout_helper as u64 & !7),
            (..=-1, _) if name.starts_with('[') => SizeRule::Array {
                header_bytes: u64::from((layout_helper >> 16) as u8),
                element_log2: layout_helper as u32 & 63,
            },
            _ => return None,
        };
        let is_sound = match size_rule {
            SizeRule::Fixed(bytes) => bytes >= 8,
            SizeRule::Array { header_bytes, element_log2 } => {
                (8..=32).contains(&header_bytes) && element_log2 <= 3
            }
            SizeRule::Mirror => true,
            SizeRule::Frames(bytes) => (16..=256).contains(&bytes),
        };
        let is_deallocator = name == DEALLOCATOR;
        is_sound.then_some(Class { address: klass, size_rule, name, is_deallocator, instances: 0, bytes: 0 })
    }

    /// Whether a class may share its name with others, as those of `Unsafe.defineAnonymousClass` do
    /// (up to JDK 16): then its address is added to the name (`Klass::external_name`). False if its
    /// flags cannot be read: the classes then count as one.
    fn is_anonymous(&self, klass: u64) -> bool {
        let is_flag_set = || {
            let names = ["InstanceKlass::_misc_is_anonymous", "InstanceKlass::_misc_is_unsafe_anonymous"];
            let flag = u16::try_from(self.view.constant(&names)?).ok()?;
            let low = self.view.field_address(klass, &["InstanceKlass::_misc_flags"])?;
            let flags = u16::from_le_bytes([self.view.byte(low)?, self.view.byte(low.checked_add(1)?)?]);
            Some(flags & flag != 0)
        };
        is_flag_set().unwrap_or(false)
    }

    /// Returns the address of the class with this name, if one of its objects was found.
    pub fn find_name(&self, name: &str) -> Option<u64> {
        self.classes.iter().find(|class| class.name == name).map(|class| class.address)
    }
}

/// Adds up several counts by name, most bytes first.
pub fn types_by_name<'a>(counts: impl Iterator<Item = &'a Classes<'a>>) -> Vec<TypeFacts> {
    let mut types: HashMap<&str, TypeFacts> = HashMap::new();
    let with_objects = |class: &&Class| class.instances > 0;
    for class in counts.flat_map(|counts| &counts.classes).filter(with_objects) {
        let empty = || TypeFacts { name: class.name.clone(), ..TypeFacts::default() };
        let sum = types.entry(&class.name).or_insert_with(empty);
        sum.instances += class.instances;
        sum.bytes = sum.bytes.saturating_add(class.bytes);
    }
    let mut types: Vec<TypeFacts> = types.into_values().collect();
    types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    types
}
