//! Types of blocks: from words in the block or next to references to it ([`BlockTypes`]), from a
//! runtime's reader, or else from the size. A `kind` is the number of a type.

use std::collections::HashMap;

use strandline_claims::refinements::Refinements;
use strandline_holders::{DominatorTree, Refused};

use super::facts::Type;
use super::pins::Pins;
use super::runtimes::{ObjectType, RuntimeBlocks};
use super::vtables::{BlockTypes, NamedType};

/// Maximum number of types; further ones are merged.
const MAX_TYPES: usize = 1 << 15;
/// Maximum number of sizes of blocks without another type; further ones are merged.
const MAX_SIZES: usize = 1 << 14;

/// The type of each block, and the name of each type.
pub struct Types {
    /// The kind of each block, an index in `names`.
    kinds: Vec<u16>,
    names: Vec<String>,
    by_name: HashMap<String, u16>,
    /// Kinds of blocks of which only the size is known; `None` for all sizes beyond the maximum.
    by_size: HashMap<Option<u64>, u16>,
    /// Kinds of blocks on ledger rows, by id.
    rows: HashMap<&'static str, u16>,
    /// Kinds of runtimes' objects, by the address of the runtime's table and the number there.
    objects: HashMap<(usize, u16), u16>,
}

/// The kind that a vtable identifies, and the minimum size of its blocks.
#[derive(Clone, Copy)]
struct ClassKind {
    kind: u16,
    min_bytes: u64,
}

impl Types {
    /// Determines the type of each block.
    pub fn new(
        held: &DominatorTree,
        classes: &BlockTypes,
        refinements: &Refinements,
        runtime_blocks: &RuntimeBlocks<'_>,
    ) -> Result<Self, Refused> {
        let blocks = held.blocks();
        let mut types = Self {
            kinds: Vec::new(),
            names: Vec::new(),
            by_name: HashMap::new(),
            by_size: HashMap::new(),
            rows: HashMap::new(),
            objects: HashMap::new(),
        };
        let count = blocks.len() as usize;
        types.kinds.try_reserve_exact(count).map_err(|_| Refused::NoMemory(count as u64 * 2))?;
        let kind = |named: &Option<NamedType>| {
            let NamedType { name, min_bytes } = named.as_ref()?;
            Some(ClassKind { kind: types.named_kind(name.clone()), min_bytes: *min_bytes })
        };
        let class_kinds: Vec<Option<ClassKind>> = classes.types.iter().map(kind).collect();
        let palette = refinements.palette();
        let mut refinements_finder = Some(refinements.finder()).filter(|_| !refinements.is_empty());
        for (block, range) in blocks.iter(0).enumerate() {
            let (start, bytes) = (range.start, range.len());
            let class = classes.type_index(block).and_then(|class| class_kinds.get(class).copied().flatten());
            let class = class.filter(|class| class.min_bytes <= bytes).map(|class| class.kind);
            let class = runtime_blocks.object_type(start).map(|object| types.object_kind(&object)).or(class);
            let refined = refinements_finder.as_mut().and_then(|finder| finder.find(start, bytes));
            let refined = refined.filter(|_| class.is_none());
            let object = refined.as_ref().and_then(|_| runtime_blocks.claimed_object_type(start));
            let class = class.or_else(|| object.map(|object| types.object_kind(&object)));
            let entry = refined.filter(|_| class.is_none()).and_then(|refined| palette.get(refined.slot));
            let row_id = entry.map(|entry| entry.row.id);
            let row_id = row_id.or_else(|| runtime_blocks.row(start).filter(|_| class.is_none()));
            let kind = class.or_else(|| row_id.map(|id| types.row_kind(id)));
            let kind = kind.unwrap_or_else(|| types.size_kind(bytes));
            types.kinds.push(kind);
        }
        Ok(types)
    }

    /// Returns the kind of blocks on a ledger row.
    fn row_kind(&mut self, id: &'static str) -> u16 {
        if let Some(kind) = self.rows.get(id) {
            return *kind;
        }
        let kind = self.named_kind(id.to_owned());
        self.rows.insert(id, kind);
        kind
    }

    /// Returns the kind of a runtime's objects.
    fn object_kind(&mut self, object: &ObjectType<'_>) -> u16 {
        let key = (std::ptr::from_ref(object.types).addr(), object.number);
        if let Some(kind) = self.objects.get(&key) {
            return *kind;
        }
        let kind = self.named_kind(object.types.name(object.number).to_owned());
        self.objects.insert(key, kind);
        kind
    }

    /// Returns the kind with this name, which is added if missing.
    fn named_kind(&mut self, name: String) -> u16 {
        let is_full = self.names.len() >= MAX_TYPES && !self.by_name.contains_key(&name);
        let name = if is_full { "blocks of other types".to_owned() } else { name };
        let next = self.names.len() as u16;
        *self.by_name.entry(name.clone()).or_insert_with(|| {
            self.names.push(name);
            next
        })
    }

    /// Returns the kind of blocks of which only the size is known.
    fn size_kind(&mut self, bytes: u64) -> u16 {
        let is_full = self.by_size.len() >= MAX_SIZES && !self.by_size.contains_key(&Some(bytes));
        let size = Some(bytes).filter(|_| !is_full);
        if let Some(&kind) = self.by_size.get(&size) {
            return kind;
        }
        let name =
            size.map_or_else(|| "blocks of other sizes".to_owned(), |bytes| format!("{bytes}-byte blocks"));
        let kind = self.named_kind(name);
        self.by_size.insert(size, kind);
        kind
    }

    /// Returns the number of types.
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// Returns the kind of each block.
    pub fn all(&self) -> &[u16] {
        &self.kinds
    }

    /// Returns the name of a kind.
    pub fn name(&self, kind: u32) -> &str {
        self.names.get(kind as usize).map_or("", String::as_str)
    }

    /// Returns the kind of a block.
    pub fn kind(&self, block: usize) -> u32 {
        self.kinds.get(block).copied().map_or(0, u32::from)
    }

    /// Returns all types, by bytes, largest first.
    pub fn listed(
        &self,
        held: &DominatorTree,
        is_unreachable: &dyn Fn(u32) -> bool,
        pins: &Pins,
    ) -> Vec<Type> {
        let mut types: Vec<Type> =
            self.names.iter().map(|name| Type { name: name.clone(), ..Type::default() }).collect();
        for (block, range) in held.blocks().iter(0).enumerate() {
            let bytes = range.len();
            if let Some(listed) = types.get_mut(self.kind(block) as usize) {
                listed.instances += 1;
                listed.bytes += bytes;
                let unreachable_bytes = if is_unreachable(block as u32) { bytes } else { 0 };
                listed.unreachable_bytes = Some(listed.unreachable_bytes.unwrap_or(0) + unreachable_bytes);
            }
        }
        for (listed, &pins) in types.iter_mut().zip(&pins.bytes_by_type) {
            listed.pins_bytes = pins;
        }
        types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        types
    }
}
