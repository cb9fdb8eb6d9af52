//! Positions of references in the objects of a class.

use std::rc::Rc;

use strandline_process::memory::half_word_at;

use super::klasses::Classes;
use super::view::View;

/// Limit on runs of references in a class.
const MAX_RUNS: u32 = 4096;
/// Limit on runs kept for all classes: each class of a hostile process has [`MAX_RUNS`].
const MAX_RUNS_KEPT: usize = 1 << 22;

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
    /// Reads the format that the JVM uses.
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

    /// Calls `take` with the addresses that a word may hold, as one wide reference and as two
    /// narrow ones.
    pub fn each_of(&self, word: u64, take: &mut dyn FnMut(u64)) {
        take(word);
        if self.bytes == 4 {
            take(self.wide(word as u32));
            take(self.wide((word >> 32) as u32));
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

/// Offsets in a `java.lang.Class` of the static fields that are references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticFields {
    /// Of their number.
    pub count_at: u64,
    /// Of the first.
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

/// Shapes by number of the class.
pub struct Shapes<'a> {
    view: View<'a>,
    oops: OopFormat,
    known: Vec<Option<Option<Rc<OopMap>>>>,
    /// Number of runs in `known`.
    runs_kept: usize,
    /// `ReferenceType` of `java.lang.ref.WeakReference`; that of soft references is one less, of
    /// final ones one more.
    weak: Option<u8>,
}

impl<'a> Shapes<'a> {
    /// No shapes yet. `weak` is the class of weak references.
    pub fn new(view: View<'a>, oops: OopFormat, weak: Option<u64>) -> Self {
        let kind = weak.and_then(|klass| view.byte_field(klass, &["InstanceKlass::_reference_type"]));
        Self { view, oops, known: Vec::new(), runs_kept: 0, weak: kind }
    }

    /// Returns the shape of a class; `None` if it is not known.
    pub fn of(&mut self, classes: &Classes<'_>, class: u32) -> Option<&Rc<OopMap>> {
        let index = class as usize;
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        if self.known.get(index)?.is_none() {
            let shape = self.read(classes, class);
            self.runs_kept += shape.as_ref().map_or(0, |shape| shape.runs.len());
            let shape = shape.filter(|_| self.runs_kept <= MAX_RUNS_KEPT).map(Rc::new);
            *self.known.get_mut(index)? = Some(shape);
        }
        self.known.get(index)?.as_ref()?.as_ref()
    }

    fn read(&self, classes: &Classes<'_>, class: u32) -> Option<OopMap> {
        let (klass, name) = classes.class_at(class)?;
        if name.starts_with("[L") || name.starts_with("[[") {
            let helper = self.view.half_field(klass, &["Klass::_layout_helper"])?;
            return Some(OopMap { elements: Some(u64::from((helper >> 16) as u8)), ..OopMap::default() });
        }
        if name.starts_with('[') {
            return Some(OopMap::default());
        }
        let mut shape = OopMap { runs: self.runs(klass)?, ..OopMap::default() };
        if name == "java.lang.Class" {
            let count = self.view.static_half_field(&["java_lang_Class::_static_oop_field_count_offset"])?;
            let own = self.view.half_field(klass, &["Klass::_layout_helper"])?;
            shape.statics = Some(StaticFields { count_at: u64::from(count), first: u64::from(own & !7) });
        }
        if name == "jdk.internal.vm.StackChunk" {
            let own = self.view.half_field(klass, &["Klass::_layout_helper"])?;
            shape.frames = Some(u64::from(own & !7));
        }
        self.add_referent(klass, &mut shape);
        Some(shape)
    }

    /// Reads the `OopMapBlock`s, which follow the method tables and do not overlap
    /// (`InstanceKlass::start_of_nonstatic_oop_maps`).
    fn runs(&self, klass: u64) -> Option<Vec<OopRun>> {
        let view = &self.view;
        let words = |name: &str| view.half_field(klass, &[name]).map(u64::from);
        let tables = words("Klass::_vtable_len")?.checked_add(words("InstanceKlass::_itable_len")?)?;
        let count = u32::try_from(words("InstanceKlass::_nonstatic_oop_map_size")?).ok()?;
        if count > MAX_RUNS || tables > 1 << 20 {
            return None;
        }
        let header = view.structs.size("InstanceKlass")?.next_multiple_of(8);
        let first = klass.checked_add(header)?.checked_add(tables * 8)?;
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

    /// Adds the referent of a soft or final reference, which retains it for now. No map contains a
    /// referent, since a weak reference does not retain it. It is right before the fields in the
    /// map (`java.lang.ref.Reference`: referent, queue, next, discovered).
    fn add_referent(&self, klass: u64, shape: &mut OopMap) {
        let kind = self.view.byte_field(klass, &["InstanceKlass::_reference_type"]).unwrap_or(0);
        let is_strong = |weak: u8| kind != 0 && kind != weak && kind != weak.saturating_add(2);
        let first = shape.runs.first().and_then(|run| run.offset.checked_sub(self.oops.bytes));
        if let Some(referent) = first.filter(|_| kind != 0 && self.weak.is_none_or(is_strong)) {
            shape.runs.push(OopRun { offset: referent, count: 1 });
        }
    }
}
