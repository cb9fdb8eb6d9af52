//! What modules and classes call by names: their variables, for who asks what each holds.
//!
//! An interpreter's state leads to `sys.modules`, a dict, which is told by what it calls `builtins`. Told are variables with data:
//! functions and modules lead to all that their module has, and would hold it all together. So do what a way from a variable comes by
//! further on, an object's class and its methods' modules: there it stops ([`Holding::stops`]).

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
use crate::batch::Pages;
use strandline_claims::runtime::{Context, Holding};
use strandline_process::memory::{Memory, word_at};
use strandline_process::pages::{PAGE_BYTES, page_of};

/// Modules of an interpreter, and entries of a module or class.
const MAX_ENTRIES: u64 = 1 << 16;
/// Variables of all.
const MAX_VARIABLES: usize = 1 << 18;
/// Entries that are looked at to tell `sys.modules` from another dict: `builtins` is among the first.
const MAX_FIRST: u64 = 16;
const BUILTINS: &str = "builtins";
/// Text that is no longer is not told of: there are many, and none holds much.
const SHORT_BYTES: u64 = 256;
/// Built-in types whose instances are no data, or are small.
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
/// The longest of them, and a 0.
const NAME_BYTES: usize = 27;

/// Finds the variables of all modules of `program`, and notes where ways from them stop. False where not all modules could
/// be gone through: then no variable is named.
pub fn find(
    context: &Context<'_>,
    memory: &dyn Memory,
    program: &Program,
    release: &'static Release,
    holding: &mut Holding,
) -> bool {
    let mut finder = Finder {
        types: Types::new(Pages::new(memory), release),
        names: Names::new(Pages::new(memory), release, context.space),
        pages: Pages::new(memory),
        release,
        deadline: context.deadline,
        are_data: HashMap::new(),
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
    // Ways from some would go on where those from others had stopped.
    let is_whole = finder.is_whole && Instant::now() < context.deadline;
    if !is_whole {
        holding.variables.clear();
    }
    is_whole
}

struct Finder<'a, 'h> {
    types: Types<'a>,
    names: Names<'a>,
    pages: Pages<'a>,
    release: &'static Release,
    deadline: Instant,
    /// By the number of a type.
    are_data: HashMap<u32, bool>,
    /// Dicts of modules and classes that were gone through.
    seen: HashSet<u64>,
    /// Classes that are not.
    classes: Vec<u64>,
    /// Whether all were come to.
    is_whole: bool,
    holding: &'h mut Holding,
}

impl Finder<'_, '_> {
    /// The dict of an interpreter's modules, to which its state leads.
    fn modules(&mut self, memory: &dyn Memory, state: u64, is_memory: impl Fn(u64) -> bool) -> Option<u64> {
        let mut piece = vec![0; PAGE_BYTES as usize];
        let (end, deadline) = (state.saturating_add(MAX_STATE_BYTES), self.deadline);
        let begin = std::iter::once(state);
        for at in begin
            .chain((page_of(state).saturating_add(PAGE_BYTES)..end).step_by(PAGE_BYTES as usize))
            .take_while(|_| Instant::now() < deadline)
        {
            // Pages that were never written to are not read.
            let wanted = (page_of(at).saturating_add(PAGE_BYTES).min(end) - at) as usize;
            let got = memory.read_some(at, piece.get_mut(..wanted)?);
            for word in piece.get(..got)?.chunks_exact(8).filter_map(|word| word_at(word, 0)) {
                if word.is_multiple_of(8) && is_memory(word) && self.are_modules(word) {
                    return Some(word);
                }
            }
        }
        None
    }

    fn are_modules(&mut self, dict: u64) -> bool {
        let first = self.entries(dict, MAX_FIRST);
        first.into_iter().any(|(key, value)| {
            self.kind(value) == Some(Kind::Module) && self.names.text(key).as_deref() == Some(BUILTINS)
        })
    }

    fn interpreter(&mut self, modules: u64) {
        for (key, value) in self.entries(modules, MAX_ENTRIES) {
            if self.kind(value) != Some(Kind::Module) || Instant::now() >= self.deadline {
                continue;
            }
            let Some(dict) = self.head_word(value, MODULE_DICT) else { continue };
            self.holding.stops.insert(value);
            if let Some(name) = self.names.text(key).filter(|name| is_name(name, true)) {
                self.scope(dict, &name);
            }
        }
        // Classes have classes.
        while let Some(class) = self.classes.pop().filter(|_| Instant::now() < self.deadline) {
            self.class(class);
        }
    }

    /// The variables of a module or a class, whose ways to each other stop there.
    fn scope(&mut self, dict: u64, scope: &str) {
        if !self.seen.insert(dict) {
            return;
        }
        self.holding.stops.insert(dict & !15);
        if let Some(keys) = self.head_word(dict, DICT_KEYS) {
            self.holding.stops.insert(keys & !15);
        }
        for (key, value) in self.entries(dict, MAX_ENTRIES) {
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
                self.holding.variables.push((format!("{scope}.{name}"), value));
            }
        }
    }

    /// A class is of the module that it says, whichever has a name for it.
    fn class(&mut self, class: u64) {
        let Some(of) = self.types.at(class).and_then(|number| self.types.all.get(number as usize).copied())
        else {
            return;
        };
        if of.flags & flags::HEAP_TYPE == 0 {
            return;
        }
        let Some(dict) = self.head_word(class, TYPE_DICT).filter(|dict| !self.seen.contains(dict)) else {
            return;
        };
        let name = self.names.of(&of);
        if is_name(&name, true) {
            self.scope(dict, &name);
        }
    }

    fn is_data(&mut self, number: u32, of: &Type, value: u64) -> bool {
        match of.kind {
            Kind::Module | Kind::Class | Kind::Int | Kind::Weak => return false,
            Kind::String => {
                return self.head_word(value, STRING_LENGTH).is_some_and(|length| length > SHORT_BYTES);
            }
            Kind::Plain if of.flags & flags::BYTES != 0 => {
                return self.head_word(value, SIZE).is_some_and(|length| length > SHORT_BYTES);
            }
            Kind::Plain => {}
            _ => return true,
        }
        if let Some(&known) = self.are_data.get(&number) {
            return known;
        }
        let is_built_in = of.flags & flags::HEAP_TYPE == 0;
        let is_data = !is_built_in || !self.has_no_data(of);
        self.are_data.insert(number, is_data);
        is_data
    }

    fn has_no_data(&mut self, of: &Type) -> bool {
        let mut text = [0; NAME_BYTES];
        let name = self.head_word(of.address, TYPE_NAME);
        // What stands at the end of a mapping is no name of these.
        if name.is_none_or(|name| self.pages.read(name, &mut text).is_err()) {
            return false;
        }
        let name = text.split(|&byte| byte == 0).next().unwrap_or_default();
        NO_DATA.contains(&name)
    }

    fn type_of(&mut self, object: u64) -> Option<(u32, Type)> {
        let address = self.head_word(object, TYPE as usize)?;
        let number = self.types.at(address)?;
        Some((number, *self.types.all.get(number as usize)?))
    }

    fn kind(&mut self, object: u64) -> Option<Kind> {
        self.type_of(object).map(|(_, of)| of.kind)
    }

    /// Keys and values of a dict that has its values beside its keys, as those of modules have.
    fn entries(&mut self, dict: u64, most: u64) -> Vec<(u64, u64)> {
        self.find_entries(dict, most).unwrap_or_default()
    }

    fn find_entries(&mut self, dict: u64, most: u64) -> Option<Vec<(u64, u64)>> {
        if self.kind(dict)? != Kind::Dict {
            return None;
        }
        let keys = self.head_word(dict, DICT_KEYS)?;
        let table = objects::keys(&mut self.pages, self.release, keys)?;
        let (entries, written) = table.entries;
        // Before a key of any kind stands its hash.
        let key_at = table.entry_bytes - 16;
        let mut pairs = Vec::new();
        self.is_whole &= written <= most || most == MAX_FIRST;
        for index in 0..written.min(most) {
            let at = entries.checked_add(index * table.entry_bytes + key_at)?;
            let Some((key, value)) = self.pages.pair(at) else { break };
            if key != 0 && value != 0 {
                pairs.push((key, value));
            }
        }
        Some(pairs)
    }

    /// A word of the object at `at`, by its offset in [`super::layout`].
    fn head_word(&mut self, at: u64, offset: usize) -> Option<u64> {
        self.pages.word(at.checked_add(self.release.ahead)?.checked_add(offset as u64)?)
    }
}

/// Whether a text is a name of a variable, or of a module or class, which have dots: what else a dict has is not told.
fn is_name(text: &str, has_dots: bool) -> bool {
    let is_identifier = |part: &str| {
        let begins = part.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        begins && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    // A class that a function made is in what it calls its locals.
    let is_part = |part: &str| is_identifier(part) || part == "<locals>";
    if has_dots { text.split('.').all(is_part) } else { is_identifier(text) }
}
