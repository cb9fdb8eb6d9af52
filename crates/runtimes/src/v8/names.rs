//! Names the types of V8's objects: by the constructor that has the object's prototype, by the name
//! of a function, or by V8's own class. No other text of the target is output.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::instance_types::FIRST_NONSTRING;
use super::layout::{IS_ONE_BYTE, ObjectLayout, STRING_LENGTH, representation};
use super::shapes::{Shape, Shapes, TableEntry};

/// `constructor_or_back_pointer_` in a `Map` (`src/objects/map.h`).
const MAP_CONSTRUCTOR: u64 = 32;
/// Maximum hidden classes between one and the first of its constructor, as each transition adds a
/// property; with more, the constructor has no name.
const MAX_TRANSITIONS: usize = 2048;
/// `flags` in a `ScopeInfo` (`src/objects/scope-info.tq`).
const SCOPE_FLAGS: u64 = 8;
/// `context_local_count` in a `ScopeInfo`, its number of variables: a small integer, in the upper
/// half of its word.
const SCOPE_VARIABLE_COUNT: u64 = 28;
/// Flag of a `ScopeInfo`: it has a variable for its class.
const HAS_CLASS_VARIABLE: u64 = 1 << 10;
/// Flags of a `ScopeInfo`: where the variable with the function's name is (0 without such a
/// variable).
const FUNCTION_VARIABLE: u64 = 3 << 12;
/// Flag of a `ScopeInfo`: its contexts have a slot for variables that `eval` makes.
const HAS_EXTENSION: u64 = 1 << 26;
/// From this number of variables on, their names are in a table
/// (`kScopeInfoMaxInlinedLocalNamesSize`).
const MAX_INLINED_NAMES: u64 = 75;
/// Distance from the name in a `SharedFunctionInfo` to its `Script`
/// (`src/objects/shared-function-info.tq`).
const SCRIPT_AFTER_NAME: u64 = 16;
/// `name` in a `Script` (`src/objects/script.tq`).
const SCRIPT_NAME: u64 = 16;
/// Names of the files of Node.js's own code begin with this.
pub const OWN_FILES: &str = "node:";
/// The URL of a module's file begins with this.
const FILE_URL: &str = "file://";
/// Maximum variables that are read of a scope whose names are in a table.
const MAX_TABLE_NAMES: u64 = 1 << 14;
/// Maximum bytes of the name of a script; a longer one is not shown.
const MAX_PATH_BYTES: usize = 1024;
/// Maximum constructors kept of one prototype; [`Constructors::is_cut`] is set if an object may be
/// named after a further one.
const MAX_CONSTRUCTORS_PER_PROTOTYPE: usize = 8;
/// Longest name; longer ones are cut.
const MAX_CHARACTERS: usize = 100;
/// Offset in a string: of the first string of a `ConsString`, the actual string of a `ThinString`,
/// the characters of others.
const STRING_CONTENT: u64 = 16;
/// Maximum strings from one to the one with its characters.
const MAX_STRING_CHAIN: usize = 8;
/// Name of objects that are prototypes of other objects.
const PROTOTYPE: &str = "(prototype)";
/// Name of the global object and its proxy.
const GLOBAL: &str = "(global object)";
/// Name of a function or class that has none.
const ANONYMOUS: &str = "(anonymous)";

/// Returns the name of the type of an object with this hidden class; `shared` is the pointer to its
/// `SharedFunctionInfo` if it is a function.
pub fn type_name(
    shapes: &mut Shapes<'_>,
    layout: &ObjectLayout,
    shape: Shape,
    shared: Option<u64>,
    constructors: &mut Constructors,
) -> String {
    match shared {
        Some(shared) => function_type_name(shapes, layout, shared),
        None => object_type_name(shapes, layout, shape, constructors),
    }
}

/// Returns the name of the objects of a hidden class that are not functions.
pub fn object_type_name(
    shapes: &mut Shapes<'_>,
    layout: &ObjectLayout,
    shape: Shape,
    constructors: &mut Constructors,
) -> String {
    let types = shapes.types();
    if shape.instance_type < FIRST_NONSTRING {
        return string_name(shape.instance_type).to_owned();
    }
    let class = types.name(shape.instance_type).map(str::to_owned);
    if !types.is_object(shape.instance_type) {
        return match class {
            Some(class) if class == "HeapNumber" => "(number)".to_owned(),
            Some(class) if class == "Symbol" || class == "BigInt" => format!("({})", class.to_lowercase()),
            Some(class) => format!("system / {class}"),
            None => format!("system / type {}", shape.instance_type),
        };
    }
    if class.as_deref().is_some_and(|class| class.starts_with("JSGlobal")) {
        return GLOBAL.to_owned();
    }
    if shape.is_prototype {
        return PROTOTYPE.to_owned();
    }
    let name = constructor(shapes, layout, shape.map, constructors);
    let prototype = shapes.prototype(shape.map);
    if let Some(prototype) = prototype
        && let Some(names) = constructors.by_prototype.get(&prototype)
    {
        // `Object` and Node.js's `Buffer` share their prototypes with other constructors.
        if let Some(name) = name.filter(|name| names.contains(name)) {
            return name;
        }
        let first = names.first().cloned().unwrap_or_default();
        constructors.is_cut |= constructors.cut_prototypes.contains(&prototype);
        return first;
    }
    // `JSMap` is what JavaScript calls `Map`.
    let class = class.map(|class| class.strip_prefix("JS").map(str::to_owned).unwrap_or(class));
    name.or(class).unwrap_or_else(|| format!("object of type {}", shape.instance_type))
}

/// Names of constructors that were found.
#[derive(Clone, Default)]
pub struct Constructors {
    /// Names by the prototype that their objects have.
    by_prototype: HashMap<u64, BTreeSet<String>>,
    /// Names by the address of a hidden class of their objects; `None` if its objects have no name.
    by_hidden_class: HashMap<u64, Option<String>>,
    /// Prototypes that have more constructors than are kept.
    cut_prototypes: HashSet<u64>,
    /// Whether objects may have another name because a limit on names was reached.
    pub is_cut: bool,
}

impl Constructors {
    /// Adds functions: `prototype_or_initial_map_` of each, and the pointer to its
    /// `SharedFunctionInfo`.
    pub fn add(&mut self, shapes: &mut Shapes<'_>, layout: &ObjectLayout, functions: &HashMap<u64, u64>) {
        for (word, shared) in functions {
            let is_map = shapes.number(*word).is_some();
            let prototype = if is_map { shapes.prototype(*word) } else { Some(*word) };
            let name = prototype.and_then(|_| function_name(shapes, layout, *shared));
            let Some((prototype, name)) = prototype.zip(name) else { continue };
            let names = self.by_prototype.entry(prototype).or_default();
            if names.len() < MAX_CONSTRUCTORS_PER_PROTOTYPE {
                names.insert(name);
            } else if !names.contains(&name) {
                self.cut_prototypes.insert(prototype);
            }
        }
    }
}

/// Returns the name of strings of this type in Chrome's developer tools.
fn string_name(instance_type: u16) -> &'static str {
    match instance_type & representation::MASK {
        representation::CONS => "(concatenated string)",
        representation::EXTERNAL => "(external string)",
        representation::SLICED => "(sliced string)",
        representation::THIN => "(thin string)",
        _ => "(string)",
    }
}

/// Returns the name of the constructor of a hidden class, for a derived class that of its base
/// class; `None` if it is not found. Only the first hidden class of a chain refers to the
/// constructor; each later one refers to the one before.
fn constructor(
    shapes: &mut Shapes<'_>,
    layout: &ObjectLayout,
    map: u64,
    constructors: &mut Constructors,
) -> Option<String> {
    let mut chain = Vec::new();
    let mut word = map;
    let name = loop {
        let Some(address) = Shapes::object_at(word) else { break None };
        if let Some(name) = constructors.by_hidden_class.get(&address) {
            break name.clone();
        }
        let Some(number) = shapes.type_at(address) else { break None };
        if shapes.types().is_map(number) && chain.len() < MAX_TRANSITIONS {
            chain.push(address);
            // 0 is no pointer: the chain then ends without a name.
            word = shapes.field(address, MAP_CONSTRUCTOR).unwrap_or(0);
        } else if shapes.types().is_function(number) {
            let shared = shapes.field(address, layout.shared);
            let name = shared.map(|shared| function_name(shapes, layout, shared));
            break name.map(|name| name.unwrap_or_else(|| ANONYMOUS.to_owned()));
        } else {
            break None;
        }
    };
    // A missing name is stored too: otherwise each hidden class would walk the chain again.
    for address in chain {
        constructors.by_hidden_class.insert(address, name.clone());
    }
    name
}

/// Returns the type name of the functions with a `SharedFunctionInfo`: `function NAME`.
pub fn function_type_name(shapes: &mut Shapes<'_>, layout: &ObjectLayout, shared: u64) -> String {
    let name = function_name(shapes, layout, shared);
    format!("function {}", name.as_deref().unwrap_or(ANONYMOUS))
}

/// Returns the name in a `SharedFunctionInfo`, or in its `ScopeInfo`; `None` if neither has a name,
/// or if it cannot be read.
fn function_name(shapes: &mut Shapes<'_>, layout: &ObjectLayout, shared: u64) -> Option<String> {
    let shared =
        Shapes::object_at(shared).filter(|shared| shapes.is_of_class(*shared, "SharedFunctionInfo"))?;
    let word = shapes.field(shared, layout.name)?;
    let address = Shapes::object_at(word)?;
    if shapes.is_of_class(address, "ScopeInfo") {
        let word = ScopeInfo::read(shapes, layout, address)?.function(shapes)?;
        return text(shapes, word);
    }
    text(shapes, word)
}

/// A `ScopeInfo`: flags, the number of variables, their names, a word for each, then the class's
/// variable and the function's name, if its flag is set.
pub struct ScopeInfo {
    flags: u64,
    /// Address of the names of variables, or of the pointer to their table.
    names: u64,
    variable_count: u64,
}

impl ScopeInfo {
    /// Reads the one at an address; `None` if it cannot be read.
    pub fn read(shapes: &mut Shapes<'_>, layout: &ObjectLayout, address: u64) -> Option<Self> {
        let (flags, _) = shapes.cache.pair(address.checked_add(SCOPE_FLAGS)?)?;
        let variable_count = u64::from(shapes.cache.word32(address.checked_add(SCOPE_VARIABLE_COUNT)?)?);
        let mut names = address.checked_add(layout.scope_names)?;
        // From V8 12 on, the number of a module's variables is before the names.
        if variable_count > 0 && Shapes::object_at(shapes.cache.word(names)?).is_none() {
            names = names.checked_add(8)?;
        }
        Some(Self { flags: flags >> layout.scope_flags_shift, names, variable_count })
    }

    /// Whether it has more variables than are read.
    pub fn is_cut(&self) -> bool {
        self.variable_count > MAX_TABLE_NAMES
    }

    /// Whether its contexts have a slot for an extension.
    pub fn has_extension(&self) -> bool {
        self.flags & HAS_EXTENSION != 0
    }

    /// Returns the pointers to the names of the variables, in the order of their slots in a
    /// context; `None` for one that cannot be read.
    pub fn variables(&self, shapes: &mut Shapes<'_>) -> Vec<Option<u64>> {
        if self.variable_count < MAX_INLINED_NAMES {
            let slots = (0..self.variable_count).map(|number| self.names.checked_add(number * 8));
            return slots.map(|slot| shapes.cache.word(slot?)).collect();
        }
        let mut names = vec![None; self.variable_count.min(MAX_TABLE_NAMES) as usize];
        let table = shapes.target(self.names, 0);
        // A `NameToIndexHashTable`: the values are small integers.
        let entries = table.map_or_else(Vec::new, |table| shapes.entries_of_table(table).entries);
        for TableEntry { key, value: number } in entries {
            let is_entry = Shapes::object_at(key).is_some() && number & 0xffff_ffff == 0;
            let name = names.get_mut((number >> 32) as usize).filter(|_| is_entry);
            if let Some(name) = name {
                *name = Some(key);
            }
        }
        names
    }

    /// Returns the pointer to the name of its function; `None` if it has none, or it cannot be
    /// read.
    pub fn function(&self, shapes: &mut Shapes<'_>) -> Option<u64> {
        if self.flags & FUNCTION_VARIABLE == 0 {
            return None;
        }
        let name_words = if self.variable_count < MAX_INLINED_NAMES { self.variable_count } else { 1 };
        let class_variable = u64::from(self.flags & HAS_CLASS_VARIABLE != 0);
        shapes.cache.word(self.names.checked_add((name_words + self.variable_count + class_variable) * 8)?)
    }
}

/// Returns the file with the code of a `SharedFunctionInfo`, with one folder (`lib/server.js`), or
/// one of Node.js's own (`node:internal/timers`); `None` if its name is not a path.
pub fn source_file(shapes: &mut Shapes<'_>, layout: &ObjectLayout, shared: u64) -> Option<String> {
    let script = shapes.target(shared, layout.name + SCRIPT_AFTER_NAME)?;
    if !shapes.is_of_class(script, "Script") {
        return None;
    }
    let name = shapes.target(script, SCRIPT_NAME)?;
    let kind = shapes.type_at(name).filter(|number| *number < FIRST_NONSTRING)?;
    if kind & representation::MASK != representation::SEQUENTIAL || u32::from(kind) & IS_ONE_BYTE == 0 {
        return None;
    }
    let length = shapes.cache.word32(name.checked_add(STRING_LENGTH as u64)?)? as usize;
    let mut bytes = [0; MAX_PATH_BYTES];
    let bytes = bytes.get_mut(..length)?;
    shapes.cache.read(name.checked_add(STRING_CONTENT)?, bytes).ok()?;
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    file_name(&text)
}

/// Returns what is shown of the name of a script; `None` if it is not a path. URLs other than of
/// files (`data:`), and queries of URLs, may be contents of the program.
fn file_name(script: &str) -> Option<String> {
    let may_be_in_name = |c: char| c.is_alphanumeric() || "._-+@$~[]()% ".contains(c);
    let is_name = |name: &str| !name.is_empty() && name.chars().all(may_be_in_name);
    if let Some(own) = script.strip_prefix(OWN_FILES) {
        return own.split('/').all(is_name).then(|| script.to_owned());
    }
    let path = match script.strip_prefix(FILE_URL) {
        Some(path) => path.split(['?', '#']).next().unwrap_or(path),
        None => script,
    };
    let (folders, file) = path.strip_prefix('/')?.rsplit_once('/').unwrap_or(("", path.get(1..)?));
    let folder = folders.rsplit('/').next().filter(|folder| is_name(folder));
    is_name(file).then(|| folder.map_or_else(|| file.to_owned(), |folder| format!("{folder}/{file}")))
}

/// Returns the text of a string; `None` if it is empty, or not a name.
pub fn text(shapes: &mut Shapes<'_>, mut word: u64) -> Option<String> {
    for _ in 0..MAX_STRING_CHAIN {
        let address = Shapes::object_at(word)?;
        let number = shapes.type_at(address).filter(|number| *number < FIRST_NONSTRING)?;
        let content = address.checked_add(STRING_CONTENT)?;
        match number & representation::MASK {
            representation::SEQUENTIAL => return characters(shapes, address, content, number),
            representation::CONS | representation::THIN => word = shapes.cache.word(content)?,
            _ => return None,
        }
    }
    None
}

/// Returns the characters of a sequential string, up to [`MAX_CHARACTERS`]; `None` if they are not
/// a name.
fn characters(shapes: &mut Shapes<'_>, address: u64, content: u64, instance_type: u16) -> Option<String> {
    let length = shapes.cache.word32(address.checked_add(STRING_LENGTH as u64)?)? as usize;
    let count = length.min(MAX_CHARACTERS);
    let is_one_byte = u32::from(instance_type) & IS_ONE_BYTE != 0;
    let mut bytes = [0; 2 * MAX_CHARACTERS];
    let bytes = bytes.get_mut(..if is_one_byte { count } else { 2 * count })?;
    shapes.cache.read(content, bytes).ok()?;
    let mut name: String = if is_one_byte {
        bytes.iter().map(|byte| char::from(*byte)).collect()
    } else {
        let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
        char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    };
    // A name in code, or what V8 makes of one: `get size`, `bound report`, `#secret`, `a.b`.
    let may_be_in_name = |c: char| c.is_alphanumeric() || "_$#.<>[] ".contains(c);
    if name.is_empty() || !name.chars().all(may_be_in_name) {
        return None;
    }
    if length > MAX_CHARACTERS {
        name.push('…');
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::file_name;

    #[test]
    fn only_paths_of_files_are_shown() {
        let shown = [
            ("/srv/app/lib/server.js", Some("lib/server.js")),
            ("file:///srv/app/main.mjs?token=secret/of#a/b", Some("app/main.mjs")),
            ("node:internal/timers", Some("node:internal/timers")),
            ("/main.js", Some("main.js")),
            ("/my dir/caf\u{e9}.js", Some("my dir/caf\u{e9}.js")),
            ("data:text/javascript,const key = 1", None),
            ("https://host/a.js", None),
            ("upload-of-jane", None),
            ("/a/b?c", None),
            ("node:a?b", None),
            ("/a/", None),
            ("/", None),
            ("", None),
        ];
        for (script, expected) in shown {
            assert_eq!(file_name(script).as_deref(), expected, "{script}");
        }
    }
}
