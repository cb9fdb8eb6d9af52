//! What V8's live objects hold, for `holders`: each is a block, and the variables of functions and
//! modules are named roots.
//!
//! Paths from variables stop at objects that lead to nearly everything: hidden classes, contexts,
//! code, global objects. Values in a table that holds them weakly count for no variable.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::constants;
use super::layout::{CONTEXT_AFTER_SHARED, PAGE_ALIGNMENT};
use super::names::{self, Constructors, ScopeInfo};
use super::objects::{Heap, LiveObject};
use super::references::{FIRST_EPHEMERON, References};
use super::shapes::{Content, Shapes, TableEntries, TableEntry};
use super::slots;
use crate::bits::Bitmap;
use crate::push_within;
use strandline_claims::runtime::{ObjectTypes, ReferenceHints, Variable};
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::word_at;

/// Classes at which paths from variables stop, as they do at prototypes, modules, properties of
/// global objects, and contexts with variables.
const STOPS: [&str; 15] = [
    "Map",
    "NativeContext",
    "JSGlobalObject",
    "JSGlobalProxy",
    "SharedFunctionInfo",
    "ScopeInfo",
    "Script",
    "FeedbackCell",
    "FeedbackVector",
    "Code",
    "BytecodeArray",
    "DescriptorArray",
    "AllocationSite",
    "Cell",
    "JSModuleNamespace",
];
/// `value_` in a `PropertyCell` (`src/objects/property-cell.tq`).
const PROPERTY_CELL_VALUE: usize = 24;
/// First slot of a context: its `ScopeInfo` (`src/objects/contexts.h`).
const CONTEXT_SCOPE: u64 = 16;
/// Second slot of a context: the context outside of it.
const CONTEXT_OUTSIDE: u64 = 24;
/// Contexts between two checks of the deadline.
const CONTEXTS_AT_ONCE: usize = 1 << 16;
/// Maximum contexts followed outwards from a function; the variables of contexts farther out are
/// named without a file.
const MAX_CONTEXTS: usize = 100;
/// `exports_` in a `SourceTextModule` (`src/objects/module.tq`), a table of names and cells.
const MODULE_EXPORTS: usize = 8;
/// `value_` in a `Cell` (`src/objects/cell.tq`).
const CELL_VALUE: u64 = 8;
/// `function_` in a `JSGeneratorObject` (`src/objects/js-generator.tq`).
const GENERATOR_FUNCTION: u64 = 24;
/// Maximum number of variables, beyond which [`Holding::is_cut`] is set: each takes 32 bytes, and
/// an export or a property of a global object also its own name.
const MAX_VARIABLES: usize = 1 << 21;
/// Maximum bytes of all names, beyond which [`Holding::is_cut`] is set; a damaged name of a file
/// may take 2 KiB.
const MAX_NAME_BYTES: usize = 512 << 20;

/// Bytes per bit of the sets of addresses in [`ReferenceHints`].
const SET_GRANULE: u64 = 16;

/// Live objects as blocks, with their types, and variables.
pub struct Holding {
    /// The blocks, and what is known of references.
    pub hints: ReferenceHints,
    /// The types of the blocks.
    pub types: ObjectTypes,
    /// Whether there are more variables than are listed.
    pub is_cut: bool,
}

/// How paths from variables treat the objects of a class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// They hold others.
    Plain,
    /// Paths from variables stop there.
    Stop,
    /// A context: the variables of one call of a function.
    Context,
    /// A module: the variables that it exports.
    Module,
    /// A property of a global object.
    Property,
}

/// A class of objects, or one function.
#[derive(Clone, Copy)]
struct ObjectClass {
    /// The number of its type.
    number: u16,
    role: Role,
    /// Which of its words are references.
    references: References,
}

/// A property of a global object.
struct GlobalProperty {
    /// The pointer to its name.
    key: u64,
    value: u64,
}

/// A context, which has the variables of one call of a function.
struct ContextRange {
    address: u64,
    bytes: u64,
}

/// The variables of the contexts with one `ScopeInfo`.
struct Scope {
    /// Names of the slots.
    names: Vec<Option<Arc<str>>>,
    /// Whether it is a scope of Node.js's own code (`Variable::is_own`).
    is_own: bool,
}

/// Collects blocks, references and variables while objects are visited.
struct Collector<'a> {
    heap: Heap<'a>,
    constructors: &'a mut Constructors,
    holding: Holding,
    /// Classes by the pointer to the hidden class, or for functions to the `SharedFunctionInfo`.
    classes: HashMap<u64, ObjectClass>,
    /// The files of scopes, by the address of their `ScopeInfo`.
    files: HashMap<u64, Arc<str>>,
    contexts: Vec<ContextRange>,
    properties: Vec<GlobalProperty>,
    /// Bytes of the names of variables.
    name_bytes: usize,
    /// Whether the deadline passed before all modules were read.
    is_late: bool,
}

/// Whether a word is a strong reference to a heap object (`kHeapObjectTag`,
/// `include/v8-internal.h`).
fn is_heap_reference(word: u64) -> bool {
    Shapes::object_at(word).is_some()
}

/// Collects what the marked objects hold. `None` if the deadline passed, or if a large page cannot
/// be read.
pub fn holding(heap: &Heap<'_>, marks: &Bitmap, constructors: &mut Constructors) -> Option<Holding> {
    let mut shapes = heap.shapes();
    let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
    let mut collector = Collector {
        heap: *heap,
        constructors,
        holding: Holding { hints: ReferenceHints::default(), types: ObjectTypes::default(), is_cut: false },
        classes: HashMap::new(),
        files: HashMap::new(),
        contexts: Vec::new(),
        properties: Vec::new(),
        name_bytes: 0,
        is_late: false,
    };
    for indexed in &heap.index.pages {
        heap.each_live(&mut shapes, indexed, marks, &mut buffer, &mut |shapes, object| {
            collector.add(shapes, object);
            !collector.is_late
        })?;
        if collector.is_late {
            return None;
        }
    }
    collector.add_contexts(&mut shapes)?;
    collector.add_properties(&mut shapes, marks)?;
    let mut holding = collector.holding;
    holding.types.sort();
    holding.hints.weak_words.sort_unstable();
    Some(holding)
}

/// Rounds an object's address up to the granule of the sets of hints; the result is still in the
/// object.
fn address_for_set(address: u64) -> u64 {
    address.next_multiple_of(SET_GRANULE)
}

impl Collector<'_> {
    /// Adds an object as a block, and what its class says of its references.
    fn add(&mut self, shapes: &mut Shapes<'_>, object: LiveObject<'_>) {
        let LiveObject { address, shape, size, bytes } = object;
        if shape.content == Content::Free {
            return;
        }
        let class = self.class_of(shapes, object);
        self.holding.types.push(address, class.number);
        let hints = &mut self.holding.hints;
        hints.blocks.push(address, size);
        if matches!(class.role, Role::Stop | Role::Module | Role::Property) {
            hints.stops.insert(address_for_set(address));
        }
        match class.references {
            References::Except(weak) => {
                hints.weak_words.extend(weak.iter().map(|&offset| address + offset as u64));
            }
            // Rounding down may include the word before the entries, which is a number.
            References::Ephemerons => {
                hints.opaque_from.insert((address + FIRST_EPHEMERON as u64) & !(SET_GRANULE - 1));
            }
            _ => {}
        }
        match class.role {
            Role::Plain | Role::Stop => {}
            Role::Context => self.contexts.push(ContextRange { address, bytes: size }),
            // Exports that cannot be read have no names: what they hold counts for other roots.
            Role::Module => _ = self.add_exports(shapes, bytes),
            Role::Property => {
                let property = word_at(bytes, slots::PROPERTY_CELL_NAME as usize)
                    .zip(word_at(bytes, PROPERTY_CELL_VALUE));
                let property = property.filter(|(_, value)| is_heap_reference(*value));
                self.properties.extend(property.map(|(key, value)| GlobalProperty { key, value }));
            }
        }
    }

    /// Returns the class of an object. Functions with the same code are a class of their own.
    fn class_of(&mut self, shapes: &mut Shapes<'_>, object: LiveObject<'_>) -> ObjectClass {
        let (layout, shape) = (self.heap.layout, object.shape);
        let shared = object.shared_function_info(layout);
        if let Some(shared) = shared {
            // A file whose name cannot be read is not named.
            _ = self.note_files(shapes, shared, object.bytes);
        }
        let key = shared.unwrap_or(shape.map);
        if let Some(class) = self.classes.get(&key) {
            return *class;
        }
        let name = names::type_name(shapes, layout, shape, shared, self.constructors);
        let role = match shapes.types().name(shape.instance_type).unwrap_or_default() {
            _ if shape.content == Content::Function => Role::Plain,
            "Context" => Role::Context,
            "SourceTextModule" => Role::Module,
            "PropertyCell" => Role::Property,
            class if shape.is_prototype || STOPS.contains(&class) => Role::Stop,
            _ => Role::Plain,
        };
        let references = shape.references;
        let class = ObjectClass { number: self.holding.types.number(&name), role, references };
        self.classes.insert(key, class);
        class
    }

    /// Notes the file of a function for the scopes in which it was made.
    fn note_files(&mut self, shapes: &mut Shapes<'_>, shared: u64, bytes: &[u8]) -> Option<()> {
        let layout = self.heap.layout;
        let context = word_at(bytes, (layout.shared + CONTEXT_AFTER_SHARED) as usize);
        let mut context = context.and_then(Shapes::object_at)?;
        let mut file: Option<Arc<str>> = None;
        for _ in 0..MAX_CONTEXTS {
            let class = shapes.class_at(context);
            let scope = shapes.target(context, CONTEXT_SCOPE)?;
            if class != Some("Context") || self.files.contains_key(&scope) {
                break;
            }
            let name = match file.take() {
                Some(name) => name,
                None => names::source_file(shapes, layout, Shapes::object_at(shared)?)?.into(),
            };
            self.files.insert(scope, Arc::clone(&name));
            file = Some(name);
            context = shapes.target(context, CONTEXT_OUTSIDE)?;
        }
        Some(())
    }

    /// Whether the deadline has passed.
    fn is_past_deadline(&self) -> bool {
        Instant::now() >= self.heap.context.deadline
    }

    /// Reads the names of the variables of a `ScopeInfo`.
    fn read_scope(&mut self, shapes: &mut Shapes<'_>, scope: u64) -> Scope {
        let file = self.files.get(&scope).map(AsRef::as_ref);
        let is_wanted = self.name_bytes < MAX_NAME_BYTES;
        let info = ScopeInfo::read(shapes, self.heap.layout, scope);
        self.holding.is_cut |= info.as_ref().is_some_and(|info| info.is_cut() || !is_wanted);
        let info = info.filter(|_| is_wanted);
        let names = info.map_or_else(Vec::new, |info| slots::variables(shapes, &info, file));
        let is_own = file.is_some_and(|file| file.starts_with(names::OWN_FILES));
        self.name_bytes += names.len() * size_of::<Option<Arc<str>>>();
        self.name_bytes += names.iter().flatten().map(|name| name.len()).sum::<usize>();
        Scope { names, is_own }
    }

    /// Whether there is room for another variable with its own name; notes if there is not.
    fn may_add_name(&mut self) -> bool {
        let may_add = self.holding.hints.variables.len() < MAX_VARIABLES && self.name_bytes < MAX_NAME_BYTES;
        self.holding.is_cut |= !may_add;
        may_add
    }

    /// Adds the variables in the contexts. `None` at the deadline.
    fn add_contexts(&mut self, shapes: &mut Shapes<'_>) -> Option<()> {
        let mut scopes: HashMap<u64, Scope> = HashMap::new();
        for (number, context) in std::mem::take(&mut self.contexts).into_iter().enumerate() {
            if number.is_multiple_of(CONTEXTS_AT_ONCE) && self.is_past_deadline() {
                return None;
            }
            let ContextRange { address, bytes } = context;
            let Some(scope) = shapes.target(address, CONTEXT_SCOPE) else { continue };
            let scope = match scopes.entry(scope) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(_) if self.is_past_deadline() => return None,
                Entry::Vacant(entry) => entry.insert(self.read_scope(shapes, scope)),
            };
            // A context without names, as that of a suspended call, belongs to what refers to it.
            if scope.names.iter().any(Option::is_some) {
                self.holding.hints.stops.insert(address_for_set(address));
            }
            for (at, name) in (CONTEXT_SCOPE..bytes).step_by(8).zip(&scope.names) {
                let Some(name) = name.clone() else { continue };
                let value = shapes.cache.word(address + at).filter(|value| is_heap_reference(*value));
                if let Some(value) = value {
                    self.add_variable(Variable { name, value, is_own: scope.is_own });
                }
            }
        }
        Some(())
    }

    /// Adds a variable; notes if there is no room for it.
    fn add_variable(&mut self, variable: Variable) {
        let is_added = push_within(&mut self.holding.hints.variables, MAX_VARIABLES, variable);
        self.holding.is_cut |= !is_added;
    }

    /// Adds a variable with a name that no other one has.
    fn add_named(&mut self, name: String, value: u64) {
        self.name_bytes += name.len();
        self.add_variable(Variable { name: name.into(), value, is_own: false });
    }

    /// Adds the variables that a module exports: they are in no context. `None` if they cannot be
    /// read, or at the deadline.
    fn add_exports(&mut self, shapes: &mut Shapes<'_>, bytes: &[u8]) -> Option<()> {
        // Many damaged modules may have one large table.
        if self.is_past_deadline() {
            self.is_late = true;
            return None;
        }
        let table = word_at(bytes, MODULE_EXPORTS).and_then(Shapes::object_at)?;
        let file = self.file_of_module(shapes, bytes);
        let file_suffix = file.map_or_else(String::new, |file| format!(" ({file})"));
        let TableEntries { entries, is_cut } = shapes.entries_of_table(table);
        self.holding.is_cut |= is_cut;
        for TableEntry { key, value: cell } in entries {
            if !self.may_add_name() {
                break;
            }
            let cell = Shapes::object_at(cell).filter(|cell| shapes.is_of_class(*cell, "Cell"));
            let value = cell.and_then(|cell| shapes.field(cell, CELL_VALUE));
            let name = slots::identifier(shapes, key);
            if let Some((name, value)) = name.zip(value).filter(|(_, value)| is_heap_reference(*value)) {
                self.add_named(format!("export {name}{file_suffix}"), value);
            }
        }
        Some(())
    }

    /// Returns the file of a module, which is that of its code: by the state of the module, a
    /// function, a generator, or a `SharedFunctionInfo`. `None` if it is not found.
    fn file_of_module(&self, shapes: &mut Shapes<'_>, bytes: &[u8]) -> Option<String> {
        let layout = self.heap.layout;
        let words = (0..bytes.len()).step_by(8).filter_map(|at| word_at(bytes, at));
        words.filter_map(Shapes::object_at).find_map(|code| {
            let instance_type = shapes.type_at(code)?;
            let shared = match shapes.types().name(instance_type).unwrap_or_default() {
                "SharedFunctionInfo" => code,
                class if slots::GENERATORS.contains(&class) => {
                    let function = shapes.target(code, GENERATOR_FUNCTION)?;
                    shapes.target(function, layout.shared)?
                }
                _ if shapes.types().is_function(instance_type) => shapes.target(code, layout.shared)?,
                _ => return None,
            };
            names::source_file(shapes, layout, shared)
        })
    }

    /// Adds the properties of global objects whose names the program's code has. `None` at the
    /// deadline.
    fn add_properties(&mut self, shapes: &mut Shapes<'_>, marks: &Bitmap) -> Option<()> {
        let keys: HashSet<u64> = self.properties.iter().map(|property| property.key).collect();
        let in_code = constants::keys_in_code(&self.heap, marks, shapes, &keys)?;
        for property in std::mem::take(&mut self.properties) {
            if !self.may_add_name() {
                break;
            }
            let name = slots::key_text(shapes, self.heap.layout, property.key, &in_code);
            // Other keys are data.
            if let Some(name) = name.strip_prefix('.') {
                self.add_named(format!("globalThis.{name}"), property.value);
            }
        }
        Some(())
    }
}
