//! Positions of references in the objects of a class.

use std::rc::Rc;

use strandline_process::memory::half_word_at;

use super::klasses::Classes;
use super::view::View;

/// Limit on runs of references in a class; beyond it, the shape of the class is unknown.
const MAX_RUNS: u32 = 4096;
/// Limit on words of the method tables of a class; beyond it, its shape is unknown.
const MAX_TABLE_WORDS: u64 = 1 << 20;
/// Limit on runs kept for all classes: each class of a hostile process has [`MAX_RUNS`].
const MAX_RUNS_KEPT: usize = 1 << 22;

/// `ReferenceType` (memory/referenceType.hpp) of a class that is not derived from
/// `java.lang.ref.Reference`.
const REF_NONE: u8 = 0;

/// Format of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OopFormat {
    /// Bytes of a reference: 4 or 8.
    pub bytes: u64,
    /// Base of narrow references.
    pub base: u64,
    /// Shift of narrow references.
    pub shift: u32,
}

impl OopFormat {
    /// Reads the format that the JVM uses; `None` if it cannot be read, or is implausible.
    pub fn read(view: &View<'_>) -> Option<Self> {
        if !view.is_set("UseCompressedOops")? {
            return Some(Self { bytes: 8, base: 0, shift: 0 });
        }
        let base = view.static_field(&[
            "CompressedOops::_base",
            "CompressedOops::_narrow_oop._base",
            "Universe::_narrow_oop._base",
        ])?;
        let shift = view.static_half_field(&[
            "CompressedOops::_shift",
            "CompressedOops::_narrow_oop._shift",
            "Universe::_narrow_oop._shift",
        ])?;
        (shift <= 8).then_some(Self { bytes: 4, base, shift })
    }

    /// Returns the address of a narrow reference; 0 for null.
    #[inline]
    pub fn wide(&self, narrow: u32) -> u64 {
        if narrow == 0 { 0 } else { self.base.wrapping_add(u64::from(narrow) << self.shift) }
    }

    /// Calls `visit` with the addresses that a word may hold: as one wide reference, and, if the
    /// JVM uses narrow references, as two narrow ones.
    pub fn each_address_in(&self, word: u64, visit: &mut dyn FnMut(u64)) {
        visit(word);
        if self.bytes == 4 {
            visit(self.wide(word as u32));
            visit(self.wide((word >> 32) as u32));
        }
    }
}

/// References that follow each other in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OopRun {
    /// Offset of the first.
    pub offset: u64,
    /// Number of references.
    pub count: u64,
}

/// Offsets in a `java.lang.Class` of static fields that are references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticFields {
    /// Offset of their number.
    pub count_at: u64,
    /// Offset of the first.
    pub first: u64,
}

/// Positions of references in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OopMap {
    /// Fields.
    pub runs: Vec<OopRun>,
    /// Array of references: offset of the elements.
    pub elements: Option<u64>,
    /// `java.lang.Class`: its static fields.
    pub statics: Option<StaticFields>,
    /// `StackChunk`: offset of the frames, in which each word may be a reference.
    pub frames: Option<u64>,
}

/// What is known of the shape of a class.
#[derive(Clone, Default)]
enum Shape {
    #[default]
    NotRead,
    /// It cannot be read, or there are too many shapes to keep it.
    Unknown,
    Known(Rc<OopMap>),
}

/// Shapes of classes.
pub struct Shapes<'a> {
    view: View<'a>,
    oops: OopFormat,
    /// Shapes by number of the class.
    shapes: Vec<Shape>,
    /// Number of runs in `shapes`.
    runs_kept: usize,
    /// `ReferenceType` of `java.lang.ref.WeakReference`; that of soft references is one less, of
    /// final ones one more. `None` if it is not known.
    weak_type: Option<u8>,
}

impl<'a> Shapes<'a> {
    /// Creates an empty set. `weak` is the class of weak references.
    pub fn new(view: View<'a>, oops: OopFormat, weak: Option<u64>) -> Self {
        let weak_type = weak.and_then(|klass| view.byte_field(klass, &["InstanceKlass::_reference_type"]));
        Self { view, oops, shapes: Vec::new(), runs_kept: 0, weak_type }
    }

    /// Returns the positions of references in the objects of a class; `None` if they are not known.
    pub fn map_of(&mut self, classes: &Classes<'_>, class: u32) -> Option<&Rc<OopMap>> {
        let index = class as usize;
        if self.shapes.len() <= index {
            self.shapes.resize(index + 1, Shape::NotRead);
        }
        if matches!(self.shapes[index], Shape::NotRead) {
            let map = self.read(classes, class);
            self.runs_kept += map.as_ref().map_or(0, |map| map.runs.len());
            let kept = map.filter(|_| self.runs_kept <= MAX_RUNS_KEPT);
            self.shapes[index] = kept.map_or(Shape::Unknown, |map| Shape::Known(Rc::new(map)));
        }
        match &self.shapes[index] {
            Shape::Known(map) => Some(map),
            Shape::NotRead | Shape::Unknown => None,
        }
    }

    /// Reads the positions of references in the objects of a class.
    fn read(&self, classes: &Classes<'_>, class: u32) -> Option<OopMap> {
        let (klass, name) = (classes.address_of(class)?, classes.name_of(class)?);
        let layout_helper = || self.view.half_field(klass, &["Klass::_layout_helper"]);
        let object_bytes = || layout_helper().map(|layout_helper| u64::from(layout_helper & !7));
        if name.starts_with("[L") || name.starts_with("[[") {
            // The third byte of an array's layout helper is the size of its header.
            let header_bytes = (layout_helper()? >> 16) as u8;
            return Some(OopMap { elements: Some(u64::from(header_bytes)), ..OopMap::default() });
        }
        if name.starts_with('[') {
            return Some(OopMap::default());
        }
        let mut map = OopMap { runs: self.runs(klass)?, ..OopMap::default() };
        if name == "java.lang.Class" {
            let count = self.view.static_half_field(&["java_lang_Class::_static_oop_field_count_offset"])?;
            map.statics = Some(StaticFields { count_at: u64::from(count), first: object_bytes()? });
        }
        if name == "jdk.internal.vm.StackChunk" {
            map.frames = Some(object_bytes()?);
        }
        self.add_referent(klass, &mut map)?;
        Some(map)
    }

    /// Reads the `OopMapBlock`s, which follow the method tables and do not overlap
    /// (`InstanceKlass::start_of_nonstatic_oop_maps`).
    fn runs(&self, klass: u64) -> Option<Vec<OopRun>> {
        let view = &self.view;
        let words = |name: &str| view.half_field(klass, &[name]).map(u64::from);
        let table_words = words("Klass::_vtable_len")?.checked_add(words("InstanceKlass::_itable_len")?)?;
        let count = u32::try_from(words("InstanceKlass::_nonstatic_oop_map_size")?).ok()?;
        if count > MAX_RUNS || table_words > MAX_TABLE_WORDS {
            return None;
        }
        let header = view.structs.size("InstanceKlass")?.next_multiple_of(8);
        let first = klass.checked_add(header)?.checked_add(table_words * 8)?;
        let mut bytes = vec![0; count as usize * 8];
        view.memory.read(first, &mut bytes).ok()?;
        let half = |bytes: &[u8], at: usize| half_word_at(bytes, at).map(u64::from);
        let run = |bytes: &[u8]| Some(OopRun { offset: half(bytes, 0)?, count: half(bytes, 4)? });
        let runs = bytes.chunks_exact(8).map(run).collect::<Option<Vec<OopRun>>>()?;
        self.are_apart(&runs).then_some(runs)
    }

    /// Whether runs do not overlap. Overlapping runs could each cover a whole object, and its bytes
    /// would be read once per run.
    fn are_apart(&self, runs: &[OopRun]) -> bool {
        let mut runs = runs.to_vec();
        runs.sort_unstable();
        runs.windows(2).all(|pair| pair[0].offset + pair[0].count * self.oops.bytes <= pair[1].offset)
    }

    /// Adds the referent of a soft or final reference, which retains it for now. HotSpot's maps
    /// leave out every referent, because a weak reference does not retain it. The referent is right
    /// before the fields in the map (`java.lang.ref.Reference`: referent, queue, next, discovered).
    /// `None` if the type of reference cannot be read: the object may retain its referent.
    fn add_referent(&self, klass: u64, map: &mut OopMap) -> Option<()> {
        let reference_type = self.view.byte_field(klass, &["InstanceKlass::_reference_type"])?;
        // Phantom references come after final ones.
        let retains = |weak: u8| reference_type != weak && reference_type != weak.saturating_add(2);
        let before_fields = map.runs.first().and_then(|run| run.offset.checked_sub(self.oops.bytes));
        let is_retained = reference_type != REF_NONE && self.weak_type.is_none_or(retains);
        if let Some(referent) = before_fields.filter(|_| is_retained) {
            map.runs.push(OopRun { offset: referent, count: 1 });
        }
        Some(())
    }
}
