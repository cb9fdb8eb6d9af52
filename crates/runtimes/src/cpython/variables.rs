//! Variables of modules and classes, for the search for holders.
//!
//! An interpreter's state points to `sys.modules`, a dict, which is recognized by its key
//! `builtins`. Only variables with data are listed: a function or a module reaches everything in
//! its module and would retain all of it. For the same reason paths from a variable stop at an
//! object's class and at the modules of its methods (`ReferenceHints.stops`).

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::arenas::{MAX_STATE_BYTES, interpreters};
use super::layout::{
    DICT_KEYS, MODULE_DICT, Release, SIZE, STRING_LENGTH, TYPE, TYPE_DICT, TYPE_NAME, flags,
};
use super::locate::Program;
use super::names::Names;
use super::objects;
use super::types::{Kind, Type, Types};
use crate::batch::PageCache;
use strandline_claims::runtime::{Context, ReferenceHints, Variable};
use strandline_process::memory::{Memory, word_at};
use strandline_process::pages::{PAGE_BYTES, page_of};

/// Limit on modules of an interpreter, and on the entries of a module or class.
const MAX_ENTRIES: u64 = 1 << 16;
/// Limit on all variables.
const MAX_VARIABLES: usize = 1 << 18;
/// Entries read to distinguish `sys.modules` from another dict: `builtins` is among the first.
const ENTRIES_CHECKED: u64 = 16;
const BUILTINS: &str = "builtins";
/// Texts up to this length are not listed: there are many, and each holds little.
const SHORT_BYTES: u64 = 256;
/// Built-in types whose instances hold no data, or little.
const NO_DATA: [&[u8]; 21] = [
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

/// An entry of a dict.
#[derive(Clone, Copy, Debug)]
struct DictEntry {
    /// Address of the key.
    key: u64,
    /// Address of the value.
    value: u64,
}

/// Finds the variables of all modules of `program`, and records where paths from them stop. False
/// if not all modules could be read: then no variable is listed.
pub fn find(
    context: &Context<'_>,
    memory: &dyn Memory,
    program: &Program,
    release: &'static Release,
    holding: &mut ReferenceHints,
) -> bool {
    let mut finder = Finder {
        types: Types::new(PageCache::new(memory), release),
        names: Names::new(PageCache::new(memory), release, context.space),
        release,
        deadline: context.deadline,
        data_types: HashMap::new(),
        seen: HashSet::new(),
        classes: Vec::new(),
        is_whole: true,
        holding,
    };
    for state in interpreters(memory, program, release) {
        finder.holding.stops.insert(state & !15);
        let is_memory = |at: u64| context.space.find(at).is_some_and(|mapping| mapping.permissions.write);
        if let Some(modules) = finder.modules(memory, state, is_memory) {
            finder.interpreter(modules);
        }
    }
    // With some stops missing, paths from variables would run on that otherwise stop.
    let is_whole = finder.is_whole && Instant::now() < context.deadline;
    if !is_whole {
        holding.variables.clear();
    }
    is_whole
}

struct Finder<'a, 'h> {
    types: Types<'a>,
    names: Names<'a>,
    release: &'static Release,
    deadline: Instant,
    /// Whether instances are data, by number of the type.
    data_types: HashMap<u32, bool>,
    /// Dicts of modules and classes already read.
    seen: HashSet<u64>,
    /// Classes not yet read.
    classes: Vec<u64>,
    /// Whether all modules and classes were read.
    is_whole: bool,
    holding: &'h mut ReferenceHints,
}

impl Finder<'_, '_> {
    /// Finds the dict of an interpreter's modules, which its state points to.
    fn modules(&mut self, memory: &dyn Memory, state: u64, is_memory: impl Fn(u64) -> bool) -> Option<u64> {
        let mut piece = vec![0; PAGE_BYTES as usize];
        let (end, deadline) = (state.saturating_add(MAX_STATE_BYTES), self.deadline);
        let begin = std::iter::once(state);
        for at in begin
            .chain((page_of(state).saturating_add(PAGE_BYTES)..end).step_by(PAGE_BYTES as usize))
            .take_while(|_| Instant::now() < deadline)
        {
            // Pages that were never written are skipped.
            let wanted = (page_of(at).saturating_add(PAGE_BYTES).min(end) - at) as usize;
            let got = memory.read_some(at, piece.get_mut(..wanted)?);
            for word in piece.get(..got)?.chunks_exact(8).filter_map(|word| word_at(word, 0)) {
                if word.is_multiple_of(8) && is_memory(word) && self.is_modules_dict(word) {
                    return Some(word);
                }
            }
        }
        None
    }

    fn is_modules_dict(&mut self, dict: u64) -> bool {
        let first = self.entries(dict, ENTRIES_CHECKED);
        first.into_iter().any(|DictEntry { key, value }| {
            self.kind(value) == Some(Kind::Module) && self.names.text(key).as_deref() == Some(BUILTINS)
        })
    }

    fn interpreter(&mut self, modules: u64) {
        for DictEntry { key, value } in self.entries(modules, MAX_ENTRIES) {
            if self.kind(value) != Some(Kind::Module) || Instant::now() >= self.deadline {
                continue;
            }
            let Some(dict) = self.names.head_word(value, MODULE_DICT) else { continue };
            self.holding.stops.insert(value);
            if let Some(name) = self.names.text(key).filter(|name| is_name(name, true)) {
                self.scope(dict, &name);
            }
        }
        // Classes contain classes.
        while let Some(class) = self.classes.pop().filter(|_| Instant::now() < self.deadline) {
            self.class(class);
        }
    }

    /// Adds the variables of a module or a class; paths between these stop at its dict.
    fn scope(&mut self, dict: u64, scope: &str) {
        if !self.seen.insert(dict) {
            return;
        }
        self.holding.stops.insert(dict & !15);
        if let Some(keys) = self.names.head_word(dict, DICT_KEYS) {
            self.holding.stops.insert(keys & !15);
        }
        for DictEntry { key, value } in self.entries(dict, MAX_ENTRIES) {
            if Instant::now() >= self.deadline || self.holding.variables.len() >= MAX_VARIABLES {
                self.is_whole = false;
                return;
            }
            let Some(name) = self.names.text(key).filter(|name| is_name(name, false)) else { continue };
            if name.starts_with("__") && name.ends_with("__") {
                continue;
            }
            let Some((number, of)) = self.type_of(value) else { continue };
            if of.kind == Kind::Class {
                self.is_whole &= self.classes.len() < MAX_VARIABLES;
                self.classes.extend(Some(value).filter(|_| self.is_whole));
            } else if self.is_data(number, &of, value) {
                let name = format!("{scope}.{name}").into();
                self.holding.variables.push(Variable { name, value, is_own: false });
            }
        }
    }

    /// Adds the variables of a class under the module that the class names, whichever module refers
    /// to it.
    fn class(&mut self, class: u64) {
        let Some(of) =
            self.types.number_at(class).and_then(|number| self.types.all.get(number as usize).copied())
        else {
            return;
        };
        if of.flags & flags::HEAP_TYPE == 0 {
            return;
        }
        let Some(dict) = self.names.head_word(class, TYPE_DICT).filter(|dict| !self.seen.contains(dict))
        else {
            return;
        };
        let name = self.names.type_name(&of);
        if is_name(&name, true) {
            self.scope(dict, &name);
        }
    }

    fn is_data(&mut self, number: u32, of: &Type, value: u64) -> bool {
        match of.kind {
            Kind::Module | Kind::Class | Kind::Int | Kind::Weak => return false,
            Kind::String => {
                return self.names.head_word(value, STRING_LENGTH).is_some_and(|length| length > SHORT_BYTES);
            }
            Kind::Plain if of.flags & flags::BYTES != 0 => {
                return self.names.head_word(value, SIZE).is_some_and(|length| length > SHORT_BYTES);
            }
            Kind::Plain => {}
            _ => return true,
        }
        if let Some(&known) = self.data_types.get(&number) {
            return known;
        }
        let is_built_in = of.flags & flags::HEAP_TYPE == 0;
        let is_data = !is_built_in || !self.has_no_data(of);
        self.data_types.insert(number, is_data);
        is_data
    }

    fn has_no_data(&mut self, of: &Type) -> bool {
        let mut text = [0; NAME_BYTES];
        let name = self.names.head_word(of.address, TYPE_NAME);
        // A partially readable name is at the end of a mapping, and matches none of these.
        if name.is_none_or(|name| self.names.pages.read(name, &mut text).is_err()) {
            return false;
        }
        let name = text.split(|&byte| byte == 0).next().unwrap_or_default();
        NO_DATA.contains(&name)
    }

    fn type_of(&mut self, object: u64) -> Option<(u32, Type)> {
        let address = self.names.head_word(object, TYPE as usize)?;
        let number = self.types.number_at(address)?;
        Some((number, *self.types.all.get(number as usize)?))
    }

    fn kind(&mut self, object: u64) -> Option<Kind> {
        self.type_of(object).map(|(_, of)| of.kind)
    }

    /// Returns the entries of a dict whose entries contain the values, as in modules.
    fn entries(&mut self, dict: u64, most: u64) -> Vec<DictEntry> {
        self.find_entries(dict, most).unwrap_or_default()
    }

    fn find_entries(&mut self, dict: u64, most: u64) -> Option<Vec<DictEntry>> {
        if self.kind(dict)? != Kind::Dict {
            return None;
        }
        let keys = self.names.head_word(dict, DICT_KEYS)?;
        let table = objects::keys(&mut self.names.pages, self.release, keys)?;
        let objects::KeyTable { entries, written, .. } = table;
        // Key and value are the last two words of an entry; keys of any type have their hash before
        // them.
        let key_at = table.entry_bytes - 16;
        let mut found = Vec::new();
        self.is_whole &= written <= most || most == ENTRIES_CHECKED;
        for index in 0..written.min(most) {
            let at = entries.checked_add(index * table.entry_bytes + key_at)?;
            let Some((key, value)) = self.names.pages.pair(at) else {
                self.is_whole &= most == ENTRIES_CHECKED;
                break;
            };
            if key != 0 && value != 0 {
                found.push(DictEntry { key, value });
            }
        }
        Some(found)
    }
}

/// Whether a text is the name of a variable, or with `has_dots` of a module or class. Other keys
/// are not output.
fn is_name(text: &str, has_dots: bool) -> bool {
    let is_identifier = |part: &str| {
        let begins = part.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        begins && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    // A class created in a function has `<locals>` in its name.
    let is_part = |part: &str| is_identifier(part) || part == "<locals>";
    if has_dots { text.split('.').all(is_part) } else { is_identifier(text) }
}
