//! Classes as the collector sees them: how large an object is, and what it is called.

use std::collections::HashMap;

use strandline_claims::facts::TypeFacts;

use super::names;
use super::view::View;

/// The most classes that are kept.
const MAX_CLASSES: usize = 1 << 18;
/// The most bytes of their names: the longest names would take five times as much.
const MAX_NAME_BYTES: usize = 32 << 20;
/// How many of them are found at once (a power of two).
const RECENT: usize = 4096;
/// What frees a direct buffer, and has its address and size.
const DEALLOCATOR: &str = "java.nio.DirectByteBuffer$Deallocator";
/// Words of an object that are looked at for its class and length.
pub const HEAD_BYTES: usize = 24;

/// How objects say what they are: fixed when the machine starts.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Where a class pointer stands in an object.
    pub klass: Klass,
    /// Where an array has its length.
    pub length: usize,
    /// The base and shift of narrow class pointers.
    pub narrow: (u64, u32),
    /// What the size of an object is a multiple of.
    pub alignment: u64,
    /// Where a `java.lang.Class` has its size in words.
    pub mirror_words: Option<u64>,
    /// Whether references in objects are of 32 bits.
    pub has_narrow_oops: bool,
}

/// Where a class pointer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Klass {
    /// As a word of 64 bits at 8.
    Wide,
    /// As a narrow pointer at 8.
    Narrow,
    /// In the upper bits of the mark word, from this on (`UseCompactObjectHeaders`).
    InMark(u32),
}

impl Headers {
    /// Reads what the command line and the machine decided.
    pub fn read(view: &View<'_>) -> Option<Self> {
        let is_compact = view.is_set("UseCompactObjectHeaders")?;
        let is_narrow = view.structs.flag("UseCompressedClassPointers").is_none()
            || view.is_set("UseCompressedClassPointers")?;
        let (klass, length) = match (is_compact, is_narrow) {
            (true, _) => (Klass::InMark(u32::try_from(view.constant(&["markWord::klass_shift"])?).ok()?), 8),
            (false, true) => (Klass::Narrow, 12),
            (false, false) => (Klass::Wide, 16),
        };
        let base = ["CompressedKlassPointers::_base", "CompressedKlassPointers::_narrow_klass._base"];
        let shift = ["CompressedKlassPointers::_shift", "CompressedKlassPointers::_narrow_klass._shift"];
        let old = ["Universe::_narrow_klass._base", "Universe::_narrow_klass._shift"];
        let narrow = match klass {
            Klass::Wide => (0, 0),
            _ => (view.fixed(&[base[0], base[1], old[0]])?, view.fixed_half(&[shift[0], shift[1], old[1]])?),
        };
        // Of 64 bits up to JDK 22, of 32 in later ones: at most 256.
        let alignment =
            view.structs.flag("ObjectAlignmentInBytes").and_then(|at| view.half_word(at)).map(u64::from)?;
        let is_sound = alignment.is_power_of_two() && (8..=256).contains(&alignment) && narrow.1 < 32;
        let mirror_words = view.fixed_half(&["java_lang_Class::_oop_size_offset"]).map(u64::from);
        let has_narrow_oops = view.is_set("UseCompressedOops")?;
        is_sound.then_some(Self { klass, length, narrow, alignment, mirror_words, has_narrow_oops })
    }

    /// Where a `StackChunk` has how many words its frames take (`jdk.internal.vm.StackChunk.size`, JDK 21 to 27): the first of its fields
    /// of 32 bits, which fills what the header leaves, or else stands behind one of 64.
    fn frames_words(&self) -> u64 {
        match self.klass {
            Klass::Narrow => 12,
            Klass::InMark(_) => 16,
            Klass::Wide => 24,
        }
    }

    /// Where an object has the first of its fields of 64 bits, which stand in front of the others (JDK 11 to 27).
    pub fn first_long(&self) -> u64 {
        if matches!(self.klass, Klass::InMark(_)) { 8 } else { 16 }
    }

    /// The class pointer in the first bytes of an object.
    fn klass_of(&self, head: &[u8; HEAD_BYTES]) -> u64 {
        let half =
            |at: usize| u64::from(u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
        let word = |at: usize| half(at) | half(at + 4) << 32;
        match self.klass {
            Klass::Wide => word(8),
            Klass::Narrow => self.narrow.0.wrapping_add(half(8) << self.narrow.1),
            Klass::InMark(shift) => self.narrow.0.wrapping_add((word(0) >> (shift & 63)) << self.narrow.1),
        }
    }

    fn length_of(&self, head: &[u8; HEAD_BYTES]) -> u64 {
        let at = self.length;
        u64::from(u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]))
    }
}

/// How large objects of a class are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// All of one size.
    Fixed(u64),
    /// So many bytes, and each element a power of two of them.
    Array { header: u64, log2: u32 },
    /// A `java.lang.Class`, with the static fields of what it stands for: it says itself.
    Mirror,
    /// A `jdk.internal.vm.StackChunk`, with the frames of a virtual thread: so many bytes, and what it says of frames.
    Frames(u64),
}

/// A class that was met.
#[derive(Clone, Debug)]
struct Class {
    address: u64,
    size: Size,
    name: String,
    /// Whether its objects free a direct buffer.
    is_deallocator: bool,
    instances: u64,
    bytes: u64,
}

/// The classes met, with how many objects of them.
pub struct Classes<'a> {
    view: View<'a>,
    headers: Headers,
    all: Vec<Class>,
    /// Where each is in `all`; `None` for what is no class.
    by_address: HashMap<u64, Option<u32>>,
    name_bytes: usize,
    recent: Vec<(u64, u32)>,
}

impl<'a> Classes<'a> {
    /// None yet.
    pub fn new(view: View<'a>, headers: Headers) -> Self {
        let (all, by_address, recent) = (Vec::new(), HashMap::new(), vec![(0, 0); RECENT]);
        Self { view, headers, all, by_address, name_bytes: 0, recent }
    }

    /// How objects say what they are.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Which class the object that begins with `head` is of; `None` where it is of none.
    pub fn of(&mut self, head: &[u8; HEAD_BYTES]) -> Option<u32> {
        let klass = self.headers.klass_of(head);
        let recent = (klass >> 3) as usize % RECENT;
        match self.recent[recent] {
            (of, index) if of == klass && klass != 0 => Some(index),
            _ => {
                let index = self.find(klass)?;
                self.recent[recent] = (klass, index);
                Some(index)
            }
        }
    }

    /// How large the object of a class at `address` is that begins with `head`.
    pub fn size(&self, class: u32, address: u64, head: &[u8; HEAD_BYTES]) -> Option<u64> {
        let bytes = match self.all.get(class as usize)?.size {
            Size::Fixed(bytes) => bytes,
            Size::Array { header, log2 } => header + (self.headers.length_of(head) << log2),
            Size::Mirror => {
                let at = address.checked_add(self.headers.mirror_words?)?;
                u64::from(self.view.half_word(at)?) * 8
            }
            Size::Frames(own) => {
                let at = address.checked_add(self.headers.frames_words())?;
                let words = u64::from(self.view.half_word(at)?);
                // A bit for each place of a reference behind them.
                let bits = words << u32::from(self.headers.has_narrow_oops);
                own + (words + bits.div_ceil(64)) * 8
            }
        };
        Some(bytes.next_multiple_of(self.headers.alignment)).filter(|&bytes| bytes >= 8)
    }

    /// Counts an object of a class.
    pub fn count(&mut self, class: u32, bytes: u64) {
        if let Some(class) = self.all.get_mut(class as usize) {
            class.instances += 1;
            class.bytes = class.bytes.saturating_add(bytes);
        }
    }

    /// The address of a class, and its name.
    pub fn class_at(&self, class: u32) -> Option<(u64, &str)> {
        self.all.get(class as usize).map(|class| (class.address, class.name.as_str()))
    }

    /// Whether objects of a class free a direct buffer.
    pub fn is_deallocator(&self, class: u32) -> bool {
        self.all.get(class as usize).is_some_and(|class| class.is_deallocator)
    }

    /// How many elements an array has that begins with `head`.
    pub fn length(&self, head: &[u8; HEAD_BYTES]) -> u64 {
        self.headers.length_of(head)
    }

    fn find(&mut self, klass: u64) -> Option<u32> {
        if let Some(known) = self.by_address.get(&klass) {
            return *known;
        }
        if self.by_address.len() >= MAX_CLASSES || self.name_bytes >= MAX_NAME_BYTES {
            return None;
        }
        let class = self.class(klass);
        self.name_bytes += class.as_ref().map_or(0, |class| class.name.len());
        let index = class.is_some().then_some(self.all.len() as u32);
        self.all.extend(class);
        self.by_address.insert(klass, index);
        index
    }

    /// Reads one: it counts where both how large its objects are and its name make sense.
    fn class(&self, klass: u64) -> Option<Class> {
        if klass == 0 || !klass.is_multiple_of(8) {
            return None;
        }
        let helper = self.view.half_field(klass, &["Klass::_layout_helper"])? as i32;
        let symbol = self.view.field(klass, &["Klass::_name"])?;
        let mut name = names::of_class(&self.view, symbol)?;
        if helper > 0 && self.is_anonymous(klass) {
            name.push_str(&format!("/{klass:#018x}"));
        }
        let size = match (helper, name.as_str()) {
            (_, "java.lang.Class") => Size::Mirror,
            (_, "jdk.internal.vm.StackChunk") => Size::Frames(helper as u64 & !7),
            // `Klass::layout_helper`: an instance's bytes, the lowest bit for one that is not allocated the fast way; of
            // arrays the header's bytes in the third byte, and the logarithm of an element's in the lowest.
            (1.., _) => Size::Fixed(helper as u64 & !7),
            (..=-1, _) if name.starts_with('[') => {
                Size::Array { header: u64::from((helper >> 16) as u8), log2: helper as u32 & 63 }
            }
            _ => return None,
        };
        let is_sound = match size {
            Size::Fixed(bytes) => bytes >= 8,
            Size::Array { header, log2 } => (8..=32).contains(&header) && log2 <= 3,
            Size::Mirror => true,
            Size::Frames(bytes) => (16..=256).contains(&bytes),
        };
        let is_deallocator = name == DEALLOCATOR;
        is_sound.then_some(Class { address: klass, size, name, is_deallocator, instances: 0, bytes: 0 })
    }

    /// Whether a class shares its name with others, as hidden ones do whose name has their address: up to JDK 14
    /// (`Klass::external_name`).
    fn is_anonymous(&self, klass: u64) -> bool {
        let is = || {
            let bits = ["InstanceKlass::_misc_is_anonymous", "InstanceKlass::_misc_is_unsafe_anonymous"];
            let bit = u16::try_from(self.view.constant(&bits)?).ok()?;
            let low = self.view.place(klass, &["InstanceKlass::_misc_flags"])?;
            let flags = u16::from_le_bytes([self.view.byte(low)?, self.view.byte(low.checked_add(1)?)?]);
            Some(flags & bit != 0)
        };
        is().unwrap_or(false)
    }

    /// What was counted, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let counted = self.all.iter().filter(|class| class.instances > 0);
        counted.map(|class| (class.name.as_str(), class.instances, class.bytes))
    }

    /// Where the class of a name is, if one was met.
    pub fn find_name(&self, name: &str) -> Option<u64> {
        self.all.iter().find(|class| class.name == name).map(|class| class.address)
    }
}

/// What several counted, added up by name, the one with most bytes first.
pub fn types<'a>(all: impl Iterator<Item = &'a Classes<'a>>) -> Vec<TypeFacts> {
    let mut types: HashMap<&str, TypeFacts> = HashMap::new();
    for (name, instances, bytes) in all.flat_map(Classes::counts) {
        let empty = || TypeFacts { name: name.to_owned(), ..TypeFacts::default() };
        let one = types.entry(name).or_insert_with(empty);
        one.instances += instances;
        one.bytes = one.bytes.saturating_add(bytes);
    }
    let mut types: Vec<TypeFacts> = types.into_values().collect();
    types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    types
}
