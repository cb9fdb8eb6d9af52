//! Walks the objects of V8's pages, one behind the other, and counts them by type, dead ones that
//! are not collected yet included.
//!
//! Pages with code, and the read-only ones, are left out. Memory that cannot be walked is counted.

use std::collections::HashMap;

use super::heap::{Buffer, Heaps, Kind, Space};
use super::instance_types::InstanceTypes;
use super::layout::{Layout, ObjectLayout, PAGE_ALIGNMENT};
use super::names::{self, Known};
use super::pages::Page;
use super::shapes::{Content, HEAD_BYTES, Shapes};
use crate::batch::PageCache;
use crate::work;
use strandline_claims::facts::TypeFacts;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::{Memory, word_at};

/// Maximum bytes of objects that are walked while the process is stopped: some 25 ms.
pub const MAX_STOPPED_BYTES: u64 = 32 << 20;
/// Bytes read of a large object: for its hidden class, its length, and the function's name.
const LARGE_HEAD_BYTES: usize = 4096;
/// Limit on types that are listed.
const MAX_TYPES: usize = 1000;
/// `prototype_or_initial_map_` in a `JSFunction`, if it is a constructor, in all versions.
const INITIAL_MAP: usize = 56;
/// Limit on functions counted by name; further ones have no name.
const MAX_FUNCTIONS: usize = 1 << 20;

/// Objects of one hidden class, or functions of one name.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    instances: u64,
    bytes: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.instances += other.instances;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// What was counted.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// Objects by type, most bytes first.
    pub types: Vec<TypeFacts>,
    /// Number of objects.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of pages that could not be walked.
    pub unread_bytes: u64,
}

/// Whether there is time to count the objects.
pub fn has_time(context: &Context<'_>, heaps: &Heaps) -> bool {
    let walked: u64 = spaces(heaps).flat_map(|space| &space.pages).map(|page| page.allocated).sum();
    !context.is_stopped || walked <= MAX_STOPPED_BYTES
}

/// The spaces whose objects are counted.
fn spaces(heaps: &Heaps) -> impl Iterator<Item = &Space> {
    heaps.spaces.iter().filter(|space| !space.name.starts_with("code_"))
}

/// Counts the objects of all heaps.
pub fn count(
    context: &Context<'_>,
    memory: &dyn Memory,
    layout: &Layout,
    types: &InstanceTypes,
    heaps: &Heaps,
) -> Census {
    let pages: Vec<(&Space, &Page)> =
        spaces(heaps).flat_map(|space| space.pages.iter().map(move |page| (space, page))).collect();
    let state = || Walk {
        context,
        memory,
        layout: &layout.objects,
        shapes: Shapes::new(types, &layout.objects, PageCache::new(memory)),
        shaped: Vec::new(),
        functions: HashMap::new(),
        constructors: HashMap::new(),
        buffer: ReadBuffer::new(PAGE_ALIGNMENT as usize),
        unread_bytes: 0,
    };
    let job = |walk: &mut Walk<'_>, index: usize| {
        if let Some((space, page)) = pages.get(index) {
            walk.page(space, page);
            (context.progress)(page.bytes());
        }
    };
    let (walks, left) = work::run_jobs(context.workers, pages.len(), context.deadline, state, job);
    let mut census = named(walks, &layout.objects);
    if left > 0 {
        let all: u64 = pages.iter().map(|(_, page)| page.allocated).sum();
        census.unread_bytes = census.unread_bytes.max(all.saturating_sub(census.bytes)).max(1);
    }
    census
}

/// A worker's walk.
struct Walk<'a> {
    context: &'a Context<'a>,
    memory: &'a dyn Memory,
    layout: &'a ObjectLayout,
    shapes: Shapes<'a>,
    /// Objects by the number of their hidden class.
    shaped: Vec<Counts>,
    /// Functions by their `SharedFunctionInfo`.
    functions: HashMap<u64, Counts>,
    /// What `prototype_or_initial_map_` is in functions, and their `SharedFunctionInfo`.
    constructors: HashMap<u64, u64>,
    buffer: ReadBuffer,
    unread_bytes: u64,
}

impl Walk<'_> {
    fn page(&mut self, space: &Space, page: &Page) {
        if space.kind == Kind::Large {
            return self.large(page);
        }
        // A page all of whose objects were moved away has pointers to where they are.
        if page.allocated == 0 && space.kind == Kind::Paged {
            return;
        }
        if page.bytes() > PAGE_ALIGNMENT {
            self.unread_bytes += page.allocated;
            return;
        }
        self.read(page);
        let is_here = |buffer: &Buffer| page.area_start <= buffer.top && buffer.limit <= page.area_end;
        let mut buffers: Vec<Buffer> =
            space.buffer.into_iter().chain(space.local_buffer).filter(is_here).collect();
        buffers.sort_unstable_by_key(|buffer| buffer.top);
        let mut at = page.area_start;
        for buffer in
            buffers.into_iter().filter(|buffer| buffer.top < buffer.limit || space.kind == Kind::Young)
        {
            self.run(page, at, buffer.top);
            at = if space.kind == Kind::Young { page.area_end } else { buffer.limit };
        }
        self.run(page, at, page.area_end);
    }

    /// Reads a page; what is not resident is zero, which is no object.
    fn read(&mut self, page: &Page) {
        self.buffer.fill(0);
        for (from, to) in (self.context.resident)(page.start, page.end) {
            let place = |at: u64| usize::try_from(at.saturating_sub(page.start)).unwrap_or(usize::MAX);
            if let Some(bytes) = self.buffer.get_mut(place(from)..place(to)) {
                self.memory.read_some(from, bytes);
            }
        }
    }

    /// Walks the objects from `start` to `end`, in the page that was read.
    fn run(&mut self, page: &Page, start: u64, end: u64) {
        let place = |at: u64| usize::try_from(at.saturating_sub(page.start)).unwrap_or(usize::MAX);
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.get(place(start)..place(end)).unwrap_or_default();
        while !rest.is_empty() {
            match self.object(rest).and_then(|bytes| rest.get(bytes..)) {
                Some(behind) => rest = behind,
                None => {
                    self.unread_bytes += rest.len() as u64;
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// Counts the object at the start of `bytes`; returns its size.
    #[inline]
    fn object(&mut self, bytes: &[u8]) -> Option<usize> {
        let number = self.shapes.number(word_at(bytes, 0)?)?;
        let shape = *self.shapes.all.get(number as usize)?;
        let size = self.shapes.bytes(shape, bytes)?;
        let within = usize::try_from(size).ok().filter(|size| (8..=bytes.len()).contains(size))?;
        self.record(number, size, shape.content, bytes);
        Some(within)
    }

    fn record(&mut self, number: u32, bytes: u64, content: Content, head: &[u8]) {
        let one = Counts { instances: 1, bytes };
        if content == Content::Free {
            return;
        }
        if content == Content::Function
            && let Some(shared) = word_at(head, self.layout.shared as usize)
            && (self.functions.len() < MAX_FUNCTIONS || self.functions.contains_key(&shared))
        {
            self.functions.entry(shared).or_default().add(one);
            let initial = word_at(head, INITIAL_MAP).filter(|_| bytes >= INITIAL_MAP as u64 + 8);
            if let Some(initial) = initial.filter(|_| self.constructors.len() < MAX_FUNCTIONS) {
                self.constructors.insert(initial, shared);
            }
            return;
        }
        let number = number as usize;
        if self.shaped.len() <= number {
            self.shaped.resize(number + 1, Counts::default());
        }
        if let Some(counts) = self.shaped.get_mut(number) {
            counts.add(one);
        }
    }

    /// Counts the only object of a page.
    fn large(&mut self, page: &Page) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let most = usize::try_from(page.area_end - page.area_start).unwrap_or(usize::MAX);
        let head = buffer.get_mut(..most.min(LARGE_HEAD_BYTES)).unwrap_or_default();
        let got = self.memory.read_some(page.area_start, head);
        let head = head.get(..got).filter(|head| head.len() >= HEAD_BYTES).unwrap_or_default();
        let shape = word_at(head, 0).and_then(|word| self.shapes.number(word));
        let found = shape.and_then(|number| Some((number, *self.shapes.all.get(number as usize)?)));
        let size = found.and_then(|(_, shape)| self.shapes.bytes(shape, head));
        match found.zip(size).filter(|(_, size)| *size <= most as u64) {
            Some(((number, shape), size)) => self.record(number, size, shape.content, head),
            None => self.unread_bytes += page.allocated,
        }
        self.buffer = buffer;
    }
}

/// Sums the counts of all workers by name.
fn named(mut walks: Vec<Walk<'_>>, layout: &ObjectLayout) -> Census {
    let mut by_name: HashMap<String, Counts> = HashMap::new();
    let mut census = Census::default();
    let mut known = Known::default();
    for walk in &mut walks {
        known.add(&mut walk.shapes, layout, &walk.constructors);
    }
    for mut walk in walks {
        census.unread_bytes += walk.unread_bytes;
        for (number, counts) in walk.shaped.iter().enumerate().filter(|(_, counts)| counts.instances > 0) {
            let Some(shape) = walk.shapes.all.get(number).copied() else { continue };
            let name = names::of_shape(&mut walk.shapes, layout, shape, &mut known);
            by_name.entry(name).or_default().add(*counts);
        }
        for (shared, counts) in &walk.functions {
            let name = names::of_functions(&mut walk.shapes, layout, *shared);
            by_name.entry(name).or_default().add(*counts);
        }
    }
    census.instances = by_name.values().map(|counts| counts.instances).sum();
    census.bytes = by_name.values().map(|counts| counts.bytes).sum();
    let types = by_name.into_iter();
    census.types = types
        .map(|(name, counts)| TypeFacts { name, instances: counts.instances, bytes: counts.bytes })
        .collect();
    census.types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    census.types.truncate(MAX_TYPES);
    census
}
