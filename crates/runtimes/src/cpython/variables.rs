//! Variables of modules and classes, for the search for holders.
//!
//! An interpreter's state points to `sys.modules`, a dict, which is recognised by its key
//! `builtins`. Only variables with data are listed: a function or a module reaches everything in
//! its module and would retain all of it. For the same reason paths from a variable stop at an
//! object's class and at the modules of its methods (`ReferenceHints.stops`).

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::arenas::MAX_STATE_BYTES;
use super::layout::{
    DICT_KEYS, MODULE_DICT, Release, SIZE, STRING_LENGTH, TYPE, TYPE_DICT, TYPE_NAME, flags,
};
use super::names::{Names, c_string};
use super::objects;
use super::types::{Kind, Type, Types};
use crate::batch::PageCache;
use strandline_claims::runtime::{Context, ReferenceHints, Variable};
use strandline_process::memory::{Memory, words_in};
use strandline_process::pages::{PAGE_BYTES, page_of};

/// Limit on the modules of an interpreter, and on the entries of a module or class.
const MAX_ENTRIES: u64 = 1 << 16;
/// Limit on all variables, and on the classes that are not read yet.
const MAX_VARIABLES: usize = 1 << 18;
/// Entries read to distinguish `sys.modules` from another dict: `builtins` is among the first.
const CHECKED_MODULES: u64 = 16;
/// Name of a module that every interpreter has.
const BUILTINS: &str = "builtins";
/// Strings of at most this length, in characters or bytes, are not listed: each holds little.
const SHORT_LENGTH: u64 = 256;
/// Built-in types whose instances hold little data, or no data.
const TYPES_WITHOUT_DATA: [&[u8]; 21] = [
    b"function",
    b"builtin_function_or_method",
    b"method",
    b"method_descriptor",
    b"method-wrapper",
    b"wrapper_descriptor",
    b"getset_descriptor",
    b"member_descriptor",
    b"classmethod_descriptor",
    b"classmethod",
    b"staticmethod",
    b"property",
    b"code",
    b"cell",
    b"float",
    b"complex",
    b"NoneType",
    b"ellipsis",
    b"NotImplementedType",
    b"PyCapsule",
    b"_thread.lock",
];
/// Bytes of the longest of these names with its 0.
const NAME_BYTES: usize = 27;

/// Mask of addresses in [`ReferenceHints::stops`]: multiples of 16; any in an object will do.
const STOP_MASK: u64 = !15;

/// An entry of a dict.
#[derive(Clone, Copy, Debug)]
struct DictEntry {
    /// Address of the key.
    key: u64,
    /// Address of the value.
    value: u64,
}

/// The first entries of a dict.
struct DictEntries {
    entries: Vec<DictEntry>,
    /// Whether these are all: their number is within the limit, and each could be read.
    is_whole: bool,
}

/// Finds the variables of all modules of `interpreters`, and records where paths from them stop.
/// False if no interpreter's modules were found, or not all of them could be read: then no variable
/// is listed.
pub fn find(
    context: &Context<'_>,
    memory: &dyn Memory,
    release: &'static Release,
    interpreters: &[u64],
    hints: &mut ReferenceHints,
) -> bool {
    let mut finder = Finder {
        types: Types::new(PageCache::new(memory), release),
        names: Names::new(PageCache::new(memory), release, context.space),
        release,
        deadline: context.deadline,
        data_types: HashMap::new(),
        visited_dicts: HashSet::new(),
        classes: Vec::new(),
        is_whole: true,
        hints,
    };
    let is_writable = |at: u64| context.space.find(at).is_some_and(|mapping| mapping.permissions.write);
    // An interpreter that is being created or finalised has no modules.
    let mut has_modules = false;
    for &state in interpreters {
        finder.add_stop(state);
        if let Some(modules) = finder.find_modules(memory, state, is_writable) {
            has_modules = true;
            finder.add_modules(modules);
        }
    }
    finder.is_whole &= has_modules;
    // If stops are missing, a path runs on through a module, and its variable holds too much.
    let is_whole = finder.is_whole && !finder.types.is_full && Instant::now() < context.deadline;
    if !is_whole {
        hints.variables.clear();
    }
    is_whole
}

/// Searches interpreters for variables.
struct Finder<'a, 'h> {
    types: Types<'a>,
    names: Names<'a>,
    release: &'static Release,
    deadline: Instant,
    /// Whether instances are data, by number of the type.
    data_types: HashMap<u32, bool>,
    /// Dicts of modules and classes already read.
    visited_dicts: HashSet<u64>,
    /// Classes not yet read.
    classes: Vec<u64>,
    /// Whether all modules and classes were read.
    is_whole: bool,
    hints: &'h mut ReferenceHints,
}

impl Finder<'_, '_> {
    /// Makes paths from variables stop at the object at `address`.
    fn add_stop(&mut self, address: u64) {
        self.hints.stops.insert(address & STOP_MASK);
    }

    /// Finds the dict of an interpreter's modules, to which a word of its state points.
    fn find_modules(
        &mut self,
        memory: &dyn Memory,
        state: u64,
        is_writable: impl Fn(u64) -> bool,
    ) -> Option<u64> {
        let mut buffer = vec![0; PAGE_BYTES as usize];
        let (end, deadline) = (state.saturating_add(MAX_STATE_BYTES), self.deadline);
        let next_pages = (page_of(state).saturating_add(PAGE_BYTES)..end).step_by(PAGE_BYTES as usize);
        for at in std::iter::once(state).chain(next_pages).take_while(|_| Instant::now() < deadline) {
            // Each page is read by itself: one that was never written cannot be read.
            let piece_bytes = (page_of(at).saturating_add(PAGE_BYTES).min(end) - at) as usize;
            let read_bytes = memory.read_some(at, buffer.get_mut(..piece_bytes)?);
            for word in words_in(buffer.get(..read_bytes)?) {
                if word.is_multiple_of(8) && is_writable(word) && self.is_modules_dict(word) {
                    return Some(word);
                }
            }
        }
        None
    }

    fn is_modules_dict(&mut self, dict: u64) -> bool {
        let Some(first) = self.read_entries(dict, CHECKED_MODULES) else { return false };
        first.entries.into_iter().any(|DictEntry { key, value }| {
            self.kind(value) == Some(Kind::Module) && self.names.read_text(key).as_deref() == Some(BUILTINS)
        })
    }

    /// Adds the variables of all modules in the dict `modules`, and of their classes.
    fn add_modules(&mut self, modules: u64) {
        for DictEntry { key, value } in self.all_entries(modules) {
            // A program may put any object there.
            let kind = self.kind(value);
            self.is_whole &= kind.is_some() || self.names.head_word(value, TYPE).is_some();
            if kind != Some(Kind::Module) || Instant::now() >= self.deadline {
                continue;
            }
            self.add_stop(value);
            let Some(dict) = self.names.head_word(value, MODULE_DICT) else {
                self.is_whole = false;
                continue;
            };
            if let Some(name) = self.names.read_text(key).filter(|name| is_qualified_name(name)) {
                self.add_scope(dict, &name);
            }
        }
        // Classes contain classes.
        while let Some(class) = self.classes.pop().filter(|_| Instant::now() < self.deadline) {
            self.add_class(class);
        }
    }

    /// Adds the variables of a module or a class named `scope`, and makes paths stop at its dict.
    fn add_scope(&mut self, dict: u64, scope: &str) {
        if !self.visited_dicts.insert(dict) {
            return;
        }
        self.add_stop(dict);
        if let Some(keys) = self.names.head_word(dict, DICT_KEYS) {
            self.add_stop(keys);
        }
        for DictEntry { key, value } in self.all_entries(dict) {
            if Instant::now() >= self.deadline || self.hints.variables.len() >= MAX_VARIABLES {
                self.is_whole = false;
                return;
            }
            let Some(name) = self.names.read_text(key).filter(|name| is_identifier(name)) else { continue };
            if name.starts_with("__") && name.ends_with("__") {
                continue;
            }
            let Some(number) = self.type_number(value) else { continue };
            let Some(value_type) = self.types.get(number) else { continue };
            if value_type.kind == Kind::Class {
                if self.classes.len() >= MAX_VARIABLES {
                    self.is_whole = false;
                } else if self.is_whole {
                    self.classes.push(value);
                }
            } else if self.is_data(number, &value_type, value) {
                let name = format!("{scope}.{name}").into();
                self.hints.variables.push(Variable { name, value, is_own: false });
            }
        }
    }

    /// Adds the variables of a class under the module that the class names, whichever module refers
    /// to it.
    fn add_class(&mut self, class: u64) {
        let number = self.types.number_at(class);
        let class_type = number.and_then(|number| self.types.get(number));
        if let Some(class_type) = class_type.filter(|class_type| class_type.flags & flags::HEAP_TYPE != 0)
            && let Some(dict) = self.names.head_word(class, TYPE_DICT)
            && !self.visited_dicts.contains(&dict)
        {
            let name = self.names.type_name(&class_type);
            if is_qualified_name(&name) {
                self.add_scope(dict, &name);
            }
        }
    }

    /// Whether the object at `value`, whose type has this number, may hold much data: others are
    /// not listed.
    fn is_data(&mut self, number: u32, value_type: &Type, value: u64) -> bool {
        match value_type.kind {
            Kind::Module | Kind::Class | Kind::Int | Kind::Weak => return false,
            Kind::String => {
                return self.names.head_word(value, STRING_LENGTH).is_some_and(|count| count > SHORT_LENGTH);
            }
            Kind::Plain if value_type.flags & flags::BYTES != 0 => {
                return self.names.head_word(value, SIZE).is_some_and(|count| count > SHORT_LENGTH);
            }
            Kind::Plain => {}
            _ => return true,
        }
        if let Some(&is_data) = self.data_types.get(&number) {
            return is_data;
        }
        let is_built_in = value_type.flags & flags::HEAP_TYPE == 0;
        let is_data = !is_built_in || !self.has_no_data(value_type);
        self.data_types.insert(number, is_data);
        is_data
    }

    /// Whether a built-in type is one of [`TYPES_WITHOUT_DATA`].
    fn has_no_data(&mut self, built_in: &Type) -> bool {
        let name = self.names.head_word(built_in.address, TYPE_NAME);
        let name = name.and_then(|name| c_string(&mut self.names.pages, name, NAME_BYTES));
        // A longer name, or one that cannot be read, is none of these.
        name.is_some_and(|name| TYPES_WITHOUT_DATA.contains(&name.as_slice()))
    }

    /// Returns the number of an object's type.
    fn type_number(&mut self, object: u64) -> Option<u32> {
        self.types.number_at(self.names.head_word(object, TYPE)?)
    }

    fn kind(&mut self, object: u64) -> Option<Kind> {
        let number = self.type_number(object)?;
        self.types.get(number).map(|object_type| object_type.kind)
    }

    /// Returns the entries of a dict of a module or class, and notes if some are missing.
    fn all_entries(&mut self, dict: u64) -> Vec<DictEntry> {
        // A module that is being created has no dict yet.
        if dict == 0 {
            return Vec::new();
        }
        let read_entries = self.read_entries(dict, MAX_ENTRIES);
        self.is_whole &= read_entries.as_ref().is_some_and(|read_entries| read_entries.is_whole);
        read_entries.map(|read_entries| read_entries.entries).unwrap_or_default()
    }

    /// Returns the first entries of a dict whose entries contain the values, as in modules; `None`
    /// if it is not one.
    fn read_entries(&mut self, dict: u64, max_entries: u64) -> Option<DictEntries> {
        if self.kind(dict)? != Kind::Dict {
            return None;
        }
        let keys = self.names.head_word(dict, DICT_KEYS)?;
        let table = objects::read_keys(&mut self.names.pages, self.release, keys)?;
        let mut read_entries =
            DictEntries { entries: Vec::new(), is_whole: table.written_entries <= max_entries };
        for index in 0..table.written_entries.min(max_entries) {
            let Some((key, value)) = table.key_and_value(&mut self.names.pages, index) else {
                read_entries.is_whole = false;
                break;
            };
            if key != 0 && value != 0 {
                read_entries.entries.push(DictEntry { key, value });
            }
        }
        Some(read_entries)
    }
}

/// Whether a text is the name of a module or class, as far as it is output. A class created in a
/// function has `<locals>` in its name.
fn is_qualified_name(text: &str) -> bool {
    text.split('.').all(|part| is_identifier(part) || part == "<locals>")
}

/// Whether a text is the name of a variable, as far as it is output.
fn is_identifier(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(is_letter)
        && text.bytes().all(|byte| is_letter(byte) || byte.is_ascii_digit())
}
