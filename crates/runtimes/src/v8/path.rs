//! What keeps an object of a type alive: the shortest path to it from a global object, or if none
//! leads to it, one from a root.
//!
//! The search goes from the object to the objects that refer to it, and so on: each step visits all
//! references of the live objects. A word that only looks like a pointer may be among them. If this
//! takes too many steps, a second search begins at the global objects (`forward`).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::constants;
use super::facts::{Path, Step};
use super::forward::{self, Chain};
use super::layout::PAGE_ALIGNMENT;
use super::names::{self, Constructors};
use super::objects::Heap;
use super::references::{EPHEMERON_BYTES, FIRST_EPHEMERON, References, ephemeron_at};
use super::roots::{Root, Roots};
use super::shapes::{Content, Shape, Shapes};
use super::slots::{self, Slot, SlotName};
use super::trace::{self, Live, each_part};
use crate::bits::Bitmap;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::word_at;

/// Maximum steps of the search backwards.
const MAX_BACKWARD_STEPS: usize = 60;
/// Maximum objects that the search backwards finds before the search forwards takes over.
const MAX_BACKWARD_OBJECTS: usize = 1 << 20;
/// `extension` in a `NativeContext`: the global object (`src/objects/contexts.h`).
const CONTEXT_GLOBAL: u64 = 32;
/// Fields of a `JSGlobalObject`, the proxy among them (`src/objects/js-objects.tq`).
const GLOBAL_FIELDS: [u64; 2] = [24, 32];

/// The root of a path that begins at a global object.
const CONTEXTS: &str = "V8's contexts";

/// A search for what keeps an object alive.
pub struct Search<'a> {
    /// Where objects are.
    pub heap: Heap<'a>,
    /// What refers to objects from outside of their pages.
    pub roots: &'a Roots<'a>,
    /// What lives.
    pub live: &'a Live,
}

/// Why there is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPath {
    /// No live object of the type was found.
    NoObject,
    /// The deadline passed, or a part of the memory could not be read.
    Incomplete,
    /// Too many objects are on the way to it.
    TooFar,
    /// No root leads to it: a handle that was released meanwhile.
    NoRoot,
}

impl NoPath {
    /// Says why there is no path to an object that lives; `None` if no such object does.
    pub fn text(self) -> Option<&'static str> {
        match self {
            Self::NoObject => None,
            Self::Incomplete => {
                Some("there was no time to search for it, or a part of the memory could not be read")
            }
            Self::TooFar => Some("too many objects are on the way to it"),
            Self::NoRoot => Some("no root was found that leads to it"),
        }
    }
}

/// A root that refers to an object.
#[derive(Clone, Copy)]
struct RootReference {
    root: Root,
    /// Address of the object.
    object: u64,
}

/// The reference by which an object that was found leads to the object that is searched for.
#[derive(Clone, Copy)]
struct HeldReference {
    /// Offset of the reference; `None` for the object itself.
    offset: Option<u64>,
    /// The object that it leads to.
    target: u64,
}

/// The part of a large object that was not searched yet.
struct UnreadPart {
    /// Address of the object.
    object: u64,
    shape: Shape,
    /// Offset of the part in the object.
    offset: u64,
    /// Size of the object.
    object_bytes: u64,
}

/// An object on a path.
struct Link {
    address: u64,
    /// Offset of the reference to the next object; `None` for the last, or if it is not known.
    offset: Option<u64>,
}

impl Search<'_> {
    /// Returns a path to a live object of the type `name`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn path_to(&self, name: &str, constructors: &mut Constructors) -> Result<Path, NoPath> {
        let mut shapes = self.heap.shapes();
        let sample = self.find_sample(&mut shapes, name, constructors)?;
        let mut found_objects = HashMap::from([(sample, HeldReference { offset: None, target: sample })]);
        let mut newest_objects = vec![sample];
        let anchors = self.anchors(&mut shapes).ok_or(NoPath::Incomplete)?;
        let mut anchor = None;
        // The second half of the time is for the search from the global objects.
        let now = Instant::now();
        let half_time = now + self.heap.context.deadline.saturating_duration_since(now) / 2;
        for _ in 0..MAX_BACKWARD_STEPS {
            anchor = newest_objects.iter().copied().find(|address| anchors.contains(address));
            let is_over = newest_objects.is_empty() || found_objects.len() > MAX_BACKWARD_OBJECTS;
            if anchor.is_some() || is_over || Instant::now() >= half_time {
                break;
            }
            newest_objects =
                self.referrers(&mut shapes, &mut found_objects, &newest_objects).ok_or(NoPath::Incomplete)?;
        }
        if anchor.is_none() && !newest_objects.is_empty() {
            return self.long_path(&mut shapes, &anchors, sample, constructors);
        }
        let mut root = CONTEXTS.to_owned();
        let mut address = match anchor {
            Some(anchor) => anchor,
            None => {
                let found = self.find_root(&mut shapes, &found_objects)?;
                root = self.root_name(found.root);
                found.object
            }
        };
        let mut links = BTreeMap::new();
        while let Some(held) = found_objects.get(&address).filter(|_| links.len() < found_objects.len()) {
            links.insert(links.len(), Link { address, offset: held.offset });
            if held.offset.is_none() {
                break;
            }
            address = held.target;
        }
        let count = links.len();
        Ok(self.describe_path(&mut shapes, &links, count, root, constructors))
    }

    /// Returns where paths begin: the first context of each isolate, which is the last in the list
    /// of contexts, and its global object. The others are contexts of the module `vm`, which
    /// something holds. `None` if the deadline passed, or a page could not be read.
    fn anchors(&self, shapes: &mut Shapes<'_>) -> Option<HashSet<u64>> {
        let mut anchors = HashSet::new();
        let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
        let native_context = shapes.types().number("NativeContext");
        let link = self.heap.layout.context_link;
        for indexed in &self.heap.index.pages {
            self.heap.each_live(shapes, indexed, &self.live.marks, &mut buffer, &mut |shapes, object| {
                if native_context == Some(object.shape.instance_type) {
                    let next = link.first().and_then(|link| word_at(object.bytes, *link));
                    let next = next.and_then(Shapes::object_at).and_then(|next| shapes.type_at(next));
                    if next != native_context {
                        anchors.insert(object.address);
                    }
                }
                true
            })?;
        }
        let contexts: Vec<u64> = anchors.iter().copied().collect();
        for context in contexts {
            let field = |shapes: &mut Shapes<'_>, object: u64, offset: u64, class: &str| {
                shapes.target(object, offset).filter(|value| shapes.class_at(*value) == Some(class))
            };
            let Some(global) = field(shapes, context, CONTEXT_GLOBAL, "JSGlobalObject") else { continue };
            anchors.insert(global);
            let proxies =
                GLOBAL_FIELDS.iter().filter_map(|offset| field(shapes, global, *offset, "JSGlobalProxy"));
            anchors.extend(proxies);
        }
        Some(anchors)
    }

    /// Returns a path to `sample` that is searched from the global objects on.
    fn long_path(
        &self,
        shapes: &mut Shapes<'_>,
        anchors: &HashSet<u64>,
        sample: u64,
        constructors: &mut Constructors,
    ) -> Result<Path, NoPath> {
        let Chain { objects: chain, begins_at_anchor } = forward::chain(self, shapes, anchors, sample)?;
        let first = chain.first().copied().unwrap_or(sample);
        let mut links = BTreeMap::new();
        let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
        let is_shown = |number: usize| Path::is_shown(number, chain.len());
        for (number, &address) in chain.iter().enumerate() {
            // The name of a slot also depends on the link before it.
            if !is_shown(number) && !is_shown(number + 1) {
                continue;
            }
            let mut offset = None;
            if let Some(&next) = chain.get(number + 1) {
                let mut note = |at, target| offset = offset.or((target == next).then_some(at as u64));
                // The slot of an object that cannot be read is not shown.
                _ = forward::references(self, shapes, address, &mut buffer, &mut note);
            }
            links.insert(number, Link { address, offset });
        }
        let root = if begins_at_anchor {
            CONTEXTS.to_owned()
        } else {
            let held = HashMap::from([(first, HeldReference { offset: None, target: first })]);
            self.root_name(self.find_root(shapes, &held)?.root)
        };
        Ok(self.describe_path(shapes, &links, chain.len(), root, constructors))
    }

    /// Returns a live object of the type, if possible one that certain roots reach: only a stale
    /// word may lead to another.
    fn find_sample(
        &self,
        shapes: &mut Shapes<'_>,
        name: &str,
        constructors: &mut Constructors,
    ) -> Result<u64, NoPath> {
        let marks = [self.live.certain.as_ref(), Some(&self.live.marks)];
        for marks in marks.into_iter().flatten() {
            if let Some(sample) = self.find_marked(shapes, name, marks, constructors)? {
                return Ok(sample);
            }
        }
        Err(NoPath::NoObject)
    }

    /// Returns a marked object of the type, if there is one.
    fn find_marked(
        &self,
        shapes: &mut Shapes<'_>,
        name: &str,
        marks: &Bitmap,
        constructors: &mut Constructors,
    ) -> Result<Option<u64>, NoPath> {
        let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
        // By hidden class, or for functions by their code.
        let mut is_of_type: HashMap<u64, bool> = HashMap::new();
        let layout = self.heap.layout;
        let mut sample = None;
        for indexed in &self.heap.index.pages {
            self.heap
                .each_live(shapes, indexed, marks, &mut buffer, &mut |shapes, object| {
                    let shape = object.shape;
                    if shape.content == Content::Free {
                        return true;
                    }
                    let shared = object.shared_function_info(layout);
                    let is_wanted = *is_of_type.entry(shared.unwrap_or(shape.map)).or_insert_with(|| {
                        names::type_name(shapes, layout, shape, shared, constructors) == name
                    });
                    sample = is_wanted.then_some(object.address);
                    !is_wanted
                })
                .ok_or(NoPath::Incomplete)?;
            if sample.is_some() {
                break;
            }
        }
        Ok(sample)
    }

    /// Adds the live objects that refer to one of `targets` to `found_objects`; returns the new
    /// ones. `None` if the deadline passed, or an object could not be read.
    fn referrers(
        &self,
        shapes: &mut Shapes<'_>,
        found_objects: &mut HashMap<u64, HeldReference>,
        targets: &[u64],
    ) -> Option<Vec<u64>> {
        let mut targets = targets.to_vec();
        targets.sort_unstable();
        let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
        let mut next = Vec::new();
        for indexed in &self.heap.index.pages {
            let mut unread_part = None;
            let mut add = |found_objects: &mut HashMap<u64, HeldReference>,
                           at: u64,
                           reference: Option<HeldReference>| {
                if let Some(reference) = reference.filter(|_| !found_objects.contains_key(&at)) {
                    found_objects.insert(at, reference);
                    next.push(at);
                }
            };
            self.heap.each_live(shapes, indexed, &self.live.marks, &mut buffer, &mut |_, object| {
                let reference = self.first_reference_to(object.shape, 0, object.bytes, &targets);
                add(found_objects, object.address, reference);
                let read_bytes = object.bytes.len() as u64;
                let has_more = read_bytes < object.size && object.shape.references != References::Class;
                unread_part = has_more.then_some(UnreadPart {
                    object: object.address,
                    shape: object.shape,
                    offset: object.shape.references.start_of_unread(read_bytes),
                    object_bytes: object.size,
                });
                found_objects.len() <= MAX_BACKWARD_OBJECTS
            })?;
            let Some(UnreadPart { object, shape, offset: start, object_bytes }) = unread_part else {
                continue;
            };
            let (address, bytes) = (object + start, object_bytes - start);
            let mut reference = None;
            let (memory, deadline) = (self.heap.memory, self.heap.context.deadline);
            each_part(memory, deadline, address, bytes, &mut buffer, &mut |offset, bytes| {
                reference = reference
                    .or_else(|| self.first_reference_to(shape, start as usize + offset, bytes, &targets));
            })?;
            add(found_objects, object, reference);
        }
        Some(next)
    }

    /// Returns the first reference to one of `targets`, which are sorted, in `bytes` that begin at
    /// `offset` of an object; `None` if `bytes` refer to no target.
    fn first_reference_to(
        &self,
        shape: Shape,
        offset: usize,
        bytes: &[u8],
        targets: &[u64],
    ) -> Option<HeldReference> {
        let mut first = None;
        self.each_reference(shape, offset, bytes, &mut |offset, target| {
            if first.is_none() && targets.binary_search(&target).is_ok() {
                first = Some(HeldReference { offset: Some(offset as u64), target });
            }
        });
        first
    }

    /// Calls `visit` with the offset and the target of each reference in `bytes`, which begin at
    /// `offset` of an object; in a table of ephemerons, also with the values of live keys.
    pub fn each_reference(
        &self,
        shape: Shape,
        offset: usize,
        bytes: &[u8],
        visit: &mut dyn FnMut(usize, u64),
    ) {
        shape.references.each(offset, bytes, visit);
        if shape.references != References::Ephemerons {
            return;
        }
        // A later part of a large table does not begin with an entry.
        let first = match offset.checked_sub(FIRST_EPHEMERON) {
            Some(entry_bytes) => entry_bytes.next_multiple_of(EPHEMERON_BYTES) - entry_bytes,
            None => FIRST_EPHEMERON - offset,
        };
        for at in (first..bytes.len()).step_by(EPHEMERON_BYTES) {
            let is_live = |key: u64| {
                self.heap.index.place_at(key).is_none_or(|place| self.live.marks.has(place.number))
            };
            if let Some(entry) = ephemeron_at(bytes, at).filter(|entry| is_live(entry.key)) {
                visit(offset + at + 8, entry.value);
            }
        }
    }

    /// Returns a root that refers to an object that was found.
    fn find_root(
        &self,
        shapes: &mut Shapes<'_>,
        found_objects: &HashMap<u64, HeldReference>,
    ) -> Result<RootReference, NoPath> {
        for each in [Roots::each_certain, Roots::each_uncertain] {
            let mut found_root = None;
            each(self.roots, &mut |root, address| {
                let is_held = found_objects.contains_key(&address)
                    && !trace::is_weak(&self.heap, shapes, root, address);
                found_root = is_held.then_some(RootReference { root, object: address });
                found_root.is_none()
            })
            .ok_or(NoPath::Incomplete)?;
            if let Some(found_root) = found_root {
                return Ok(found_root);
            }
        }
        Err(NoPath::NoRoot)
    }

    /// Describes a root.
    fn root_name(&self, root: Root) -> String {
        match root {
            Root::Register(tid) => format!("a register of thread {tid}"),
            Root::Code(at) => format!("compiled code at {at:#x}"),
            Root::Native(at) => {
                let name = self.heap.context.space.find(at).map_or("", |mapping| mapping.name.as_str());
                let memory = if name.is_empty() { "anonymous memory" } else { name };
                format!("a word in {memory} at {at:#x}")
            }
        }
    }

    /// Describes a path of `count` objects. `links` has those that are shown and the ones before
    /// them, by their numbers.
    fn describe_path(
        &self,
        shapes: &mut Shapes<'_>,
        links: &BTreeMap<usize, Link>,
        count: usize,
        root: String,
        constructors: &mut Constructors,
    ) -> Path {
        let slot_at = |number: usize| {
            let link = links.get(&number)?;
            Some(Slot { holder: link.address, offset: link.offset? })
        };
        let mut names = HashMap::new();
        for &number in links.keys() {
            let holder_slot = number.checked_sub(1).and_then(slot_at);
            if let Some(slot) = slot_at(number)
                && let Some(name) = slots::name(shapes, self.heap.layout, slot, holder_slot)
            {
                names.insert(number, name);
            }
        }
        let keys = names.values().filter_map(|name| match name {
            SlotName::Key(key) => Some(slots::text_of_key(shapes, *key)),
            SlotName::Text(_) => None,
        });
        let keys = keys.collect();
        let in_code = constants::keys_in_code(&self.heap, &self.live.marks, shapes, &keys);
        Path::new(root, count, |number| {
            let address = links.get(&number)?.address;
            Some(Step {
                type_name: self.type_name(shapes, address, constructors),
                address,
                slot: names.remove(&number).map(|name| match (name, &in_code) {
                    (SlotName::Text(text), _) => text,
                    (SlotName::Key(key), Some(in_code)) => {
                        slots::key_text(shapes, self.heap.layout, key, in_code)
                    }
                    (SlotName::Key(_), None) => "(a property; there was no time to find its name)".to_owned(),
                }),
            })
        })
    }

    /// Returns the name of the type of an object.
    fn type_name(&self, shapes: &mut Shapes<'_>, address: u64, constructors: &mut Constructors) -> String {
        let layout = self.heap.layout;
        let Some(shape) = shapes.of_object(address) else { return "unknown".to_owned() };
        let shared = shapes.field(address, layout.shared).filter(|_| shape.content == Content::Function);
        names::type_name(shapes, layout, shape, shared, constructors)
    }
}
