//! What V8's live objects hold, for `holders`: each is a block, and the variables of functions and
//! modules are named roots.
//!
//! Paths from variables stop at what leads to everything: hidden classes, contexts, code, global
//! objects. Values in a table that holds them weakly count for no variable.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use super::constants;
use super::layout::PAGE_ALIGNMENT;
use super::names::{self, Known, ScopeInfo};
use super::objects::{Heap, LiveObject};
use super::references::{EPHEMERONS, References};
use super::shapes::{Content, Shape, Shapes};
use super::slots;
use crate::bits::Bitmap;
use strandline_claims::runtime::{ObjectTypes, ReferenceHints, Variable};
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::word_at;

/// Classes at which paths from variables stop, beside prototypes, modules, properties of global
/// objects, and contexts with variables.
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
const CELL_VALUE: usize = 24;
/// First slots of a context: its `ScopeInfo`, and the context outside of it
/// (`src/objects/contexts.h`).
const CONTEXT_SCOPE: u64 = 16;
const CONTEXT_OUTSIDE: u64 = 24;
/// Contexts between two checks of the deadline.
const CONTEXTS_AT_ONCE: usize = 1 << 16;
/// Maximum contexts from one to the outermost.
const MAX_CONTEXTS: usize = 100;
/// `exports_` in a `SourceTextModule` (`src/objects/module.tq`), a table of names and cells, and
/// `value_` in a `Cell`.
const MODULE_EXPORTS: usize = 8;
const MODULE_CELL_VALUE: u64 = 8;
/// `function_` in a `JSGeneratorObject` (`src/objects/js-generator.tq`).
const GENERATOR_FUNCTION: u64 = 24;
/// Maximum number of variables, at 32 bytes each.
const MAX_VARIABLES: usize = 1 << 21;

/// Live objects as blocks, with their types, and variables.
pub struct Holding {
    /// The blocks, and what is known of references.
    pub hints: ReferenceHints,
    /// Their types.
    pub types: ObjectTypes,
}

/// What is done with the objects of a class.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// They hold others.
    Plain,
    /// Paths from variables stop there.
    Stop,
    /// It has the variables of one call of a function.
    Context,
    /// It has the variables that a module exports.
    Module,
    /// It is a property of a global object.
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
    /// Its value.
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
    /// Whether it is a scope of Node.js's own code.
    is_own: bool,
}

struct Collector<'a> {
    heap: Heap<'a>,
    known: &'a mut Known,
    holding: Holding,
    /// By hidden class, or for functions by their code.
    classes: HashMap<u64, ObjectClass>,
    /// The files of scopes, by the address of their `ScopeInfo`.
    files: HashMap<u64, Arc<str>>,
    contexts: Vec<ContextRange>,
    properties: Vec<GlobalProperty>,
}

/// Collects what the objects with a mark hold. `None` if the time was over.
pub fn holding(heap: &Heap<'_>, marks: &Bitmap, known: &mut Known) -> Option<Holding> {
    let mut shapes = heap.shapes();
    let mut buffer = ReadBuffer::new(PAGE_ALIGNMENT as usize);
    let mut collector = Collector {
        heap: *heap,
        known,
        holding: Holding { hints: ReferenceHints::default(), types: ObjectTypes::default() },
        classes: HashMap::new(),
        files: HashMap::new(),
        contexts: Vec::new(),
        properties: Vec::new(),
    };
    for indexed in &heap.index.pages {
        heap.each_live(&mut shapes, indexed, marks, &mut buffer, &mut |shapes, object| {
            collector.add(shapes, object);
            true
        })?;
    }
    collector.add_contexts(&mut shapes)?;
    collector.add_properties(&mut shapes, marks)?;
    let mut holding = collector.holding;
    holding.types.sort();
    holding.hints.weak_words.sort_unstable();
    Some(holding)
}

/// An address in the object at `address`: sets have multiples of 16, objects are multiples of 8.
fn inside(address: u64) -> u64 {
    address.next_multiple_of(16)
}

impl Collector<'_> {
    fn add(&mut self, shapes: &mut Shapes<'_>, object: LiveObject<'_>) {
        let LiveObject { address, shape, size, bytes } = object;
        if shape.content == Content::Free {
            return;
        }
        let class = self.class(shapes, shape, bytes);
        self.holding.types.push(address, class.number);
        let hints = &mut self.holding.hints;
        hints.blocks.push(address, size);
        if matches!(class.role, Role::Stop | Role::Module | Role::Property) {
            hints.stops.insert(inside(address));
        }
        match class.references {
            References::Except([first, second]) => {
                hints.weak_words.push(address + first as u64);
                hints.weak_words.push(address + second as u64);
            }
            // Rounded down to the word before the entries, a number.
            References::Ephemerons => _ = hints.opaque_from.insert((address + EPHEMERONS as u64) & !15),
            _ => {}
        }
        match class.role {
            Role::Plain | Role::Stop => {}
            Role::Context => self.contexts.push(ContextRange { address, bytes: size }),
            Role::Module => _ = self.add_exports(shapes, bytes),
            Role::Property => {
                let property = word_at(bytes, slots::CELL_NAME as usize).zip(word_at(bytes, CELL_VALUE));
                let property = property.filter(|(_, value)| value & 7 == 1);
                self.properties.extend(property.map(|(key, value)| GlobalProperty { key, value }));
            }
        }
    }

    /// Returns the class of an object.
    fn class(&mut self, shapes: &mut Shapes<'_>, shape: Shape, bytes: &[u8]) -> ObjectClass {
        let layout = self.heap.layout;
        let shared = word_at(bytes, layout.shared as usize).unwrap_or(0);
        let is_function = shape.content == Content::Function;
        if is_function {
            _ = self.find_files(shapes, shared, bytes);
        }
        let key = if is_function { shared } else { shape.map };
        if let Some(class) = self.classes.get(&key) {
            return *class;
        }
        let name = match is_function {
            true => names::of_functions(shapes, layout, shared),
            false => names::of_shape(shapes, layout, shape, self.known),
        };
        let role = match shapes.types().name(shape.instance_type).unwrap_or_default() {
            _ if is_function => Role::Plain,
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
    fn find_files(&mut self, shapes: &mut Shapes<'_>, shared: u64, bytes: &[u8]) -> Option<()> {
        let layout = self.heap.layout;
        let mut context = word_at(bytes, layout.shared as usize + 8).and_then(Shapes::object_at)?;
        let mut file: Option<Arc<str>> = None;
        for _ in 0..MAX_CONTEXTS {
            let number = shapes.type_at(context)?;
            let scope = shapes.cache.word(context.checked_add(CONTEXT_SCOPE)?).and_then(Shapes::object_at)?;
            let is_context = shapes.types().name(number) == Some("Context");
            if !is_context || self.files.contains_key(&scope) {
                break;
            }
            let name = match file.take() {
                Some(name) => name,
                None => names::of_file(shapes, layout, Shapes::object_at(shared)?)?.into(),
            };
            self.files.insert(scope, Arc::clone(&name));
            file = Some(name);
            context = shapes.cache.word(context.checked_add(CONTEXT_OUTSIDE)?).and_then(Shapes::object_at)?;
        }
        Some(())
    }

    /// Adds the variables in the contexts.
    fn add_contexts(&mut self, shapes: &mut Shapes<'_>) -> Option<()> {
        let layout = self.heap.layout;
        let mut scopes: HashMap<u64, Scope> = HashMap::new();
        for (number, context) in std::mem::take(&mut self.contexts).into_iter().enumerate() {
            if number.is_multiple_of(CONTEXTS_AT_ONCE) && Instant::now() >= self.heap.context.deadline {
                return None;
            }
            let ContextRange { address, bytes } = context;
            let scope = shapes.cache.word(address + CONTEXT_SCOPE).and_then(Shapes::object_at);
            let Some(scope) = scope else { continue };
            let file = self.files.get(&scope).map(AsRef::as_ref);
            let scope = scopes.entry(scope).or_insert_with(|| {
                let info = ScopeInfo::read(shapes, layout, scope);
                let names = info.map_or_else(Vec::new, |info| slots::variables(shapes, &info, file));
                Scope { names, is_own: file.is_some_and(|file| file.starts_with(names::OWN_FILES)) }
            });
            // Others, as those of suspended calls, belong to what refers to them.
            if scope.names.iter().any(Option::is_some) {
                self.holding.hints.stops.insert(inside(address));
            }
            for (at, name) in (CONTEXT_SCOPE..bytes).step_by(8).zip(&scope.names) {
                let Some(name) = name.clone() else { continue };
                if let Some(value) = shapes.cache.word(address + at).filter(|value| value & 7 == 1) {
                    self.add_variable(Variable { name, value, is_own: scope.is_own });
                }
            }
        }
        Some(())
    }

    fn add_variable(&mut self, variable: Variable) {
        let variables = &mut self.holding.hints.variables;
        if variables.len() < MAX_VARIABLES {
            variables.push(variable);
        }
    }

    /// Adds the variables that a module exports: they are in no context.
    fn add_exports(&mut self, shapes: &mut Shapes<'_>, bytes: &[u8]) -> Option<()> {
        let table = word_at(bytes, MODULE_EXPORTS).and_then(Shapes::object_at)?;
        let file = self.file_of_module(shapes, bytes);
        let place = file.map_or_else(String::new, |file| format!(" ({file})"));
        for (key, cell) in shapes.pairs_of_table(table) {
            let cell = Shapes::object_at(cell).filter(|cell| {
                let number = shapes.type_at(*cell);
                number.is_some() && number == shapes.types().number("Cell")
            });
            let value = cell.and_then(|cell| shapes.cache.word(cell.checked_add(MODULE_CELL_VALUE)?));
            let name = slots::identifier(shapes, key);
            if let Some((name, value)) = name.zip(value).filter(|(_, value)| value & 7 == 1) {
                let name = format!("export {name}{place}").into();
                self.add_variable(Variable { name, value, is_own: false });
            }
        }
        Some(())
    }

    /// Returns the file of a module: that of its code, which is a function, a generator, or what
    /// both have in common, by the state of the module.
    fn file_of_module(&self, shapes: &mut Shapes<'_>, bytes: &[u8]) -> Option<String> {
        let layout = self.heap.layout;
        let words = (0..bytes.len()).step_by(8).filter_map(|at| word_at(bytes, at));
        words.filter_map(Shapes::object_at).find_map(|code| {
            let number = shapes.type_at(code)?;
            let shared_of = |shapes: &mut Shapes<'_>, function: u64| {
                shapes.cache.word(function.checked_add(layout.shared)?).and_then(Shapes::object_at)
            };
            let shared = match shapes.types().name(number).unwrap_or_default() {
                "SharedFunctionInfo" => code,
                "JSGeneratorObject" | "JSAsyncFunctionObject" | "JSAsyncGeneratorObject" => {
                    let function = shapes.cache.word(code.checked_add(GENERATOR_FUNCTION)?)?;
                    shared_of(shapes, Shapes::object_at(function)?)?
                }
                _ if shapes.types().is_function(number) => shared_of(shapes, code)?,
                _ => return None,
            };
            names::of_file(shapes, layout, shared)
        })
    }

    /// Adds the properties of global objects whose names the program's code has.
    fn add_properties(&mut self, shapes: &mut Shapes<'_>, marks: &Bitmap) -> Option<()> {
        let keys: HashSet<u64> = self.properties.iter().map(|property| property.key).collect();
        let in_code = constants::of_code(&self.heap, marks, shapes, &keys)?;
        for property in std::mem::take(&mut self.properties) {
            let name = slots::key_text(shapes, property.key, &in_code);
            // Other keys are data.
            if let Some(name) = name.strip_prefix('.') {
                let name = format!("globalThis.{name}").into();
                self.add_variable(Variable { name, value: property.value, is_own: false });
            }
        }
        Some(())
    }
}
