//! The kinds of V8's objects: the number in a hidden class (`InstanceType`), and its name.
//!
//! V8's build numbers them (`src/objects/instance-type.h`, and Torque's classes after it), so the
//! numbers differ from version to version. Builds of Node.js, stripped ones too, export each as
//! `v8dbg_type_CLASS__NAME_TYPE` for debuggers (`tools/gen-postmortem-metadata.py`). The few
//! classes without a symbol are at a known distance from one that has a symbol, the same in V8 10.2
//! to 14.6.

use std::collections::{BTreeMap, HashMap};

use super::layout::ObjectLayout;
use strandline_process::image::ElfFile;

/// Prefix of the symbols.
const SYMBOL_PREFIX: &str = "v8dbg_type_";
/// `FIRST_NONSTRING_TYPE` in all versions: strings have the numbers below it.
pub const FIRST_NONSTRING: u16 = 128;
/// Classes derived from `FixedArray` (`src/objects/fixed-array.tq`, `hash-table.tq`,
/// `ordered-hash-table.tq`), after it.
const AFTER_FIXED_ARRAY: [&str; 8] = [
    "HashTable",
    "EphemeronHashTable",
    "GlobalDictionary",
    "NameDictionary",
    "NameToIndexHashTable",
    "NumberDictionary",
    "OrderedHashMap",
    "OrderedHashSet",
];
/// Number of classes of contexts, from `FIRST_CONTEXT_TYPE` on.
const CONTEXT_CLASSES: u16 = 10;
/// Index of `NativeContext` among the classes of contexts.
const NATIVE_CONTEXT_INDEX: u16 = 7;
/// Number of classes derived from `JSFunction`, which follow it: the constructors of classes, of
/// arrays, of promises, …
const FUNCTION_SUBCLASSES: u16 = 16;

/// The numbers of one build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceTypes {
    /// Class names by number; several numbers may have one name.
    names: HashMap<u16, String>,
    /// The first number of each class.
    numbers: BTreeMap<String, u16>,
}

/// The numbers that a file exports.
pub struct ExportedTypes {
    /// V8's classes with their numbers.
    pub classes: Vec<(String, u16)>,
    /// The number of the first class of contexts.
    pub first_context: u16,
}

/// Returns the numbers that a file exports; `None` if it does not export that of contexts.
pub fn exported(image: &ElfFile) -> Option<ExportedTypes> {
    let first_context = image.exported_values("v8dbg_FirstContextType").first()?.value;
    let classes = image.exported_values(SYMBOL_PREFIX).into_iter().filter_map(|exported| {
        let class = exported.name.split_once("__")?.0;
        let is_class = class.bytes().all(|byte| byte.is_ascii_alphanumeric());
        Some((class.to_owned(), u16::try_from(exported.value).ok()?)).filter(|_| is_class)
    });
    Some(ExportedTypes { classes: classes.collect(), first_context: u16::try_from(first_context).ok()? })
}

impl InstanceTypes {
    /// Completes `classes`, those with a symbol, with the others; `None` if one is missing by which
    /// others are found.
    pub fn new(
        classes: impl Iterator<Item = (String, u16)>,
        first_context: u16,
        layout: &ObjectLayout,
    ) -> Option<Self> {
        let mut all = Self::default();
        for (name, number) in classes {
            all.add(&name, number);
        }
        let fixed_array = all.number("FixedArray")?;
        for (name, number) in AFTER_FIXED_ARRAY.iter().zip(fixed_array.saturating_add(1)..) {
            all.add(name, number);
        }
        for number in fixed_array.saturating_add(1)..all.number("ByteArray")? {
            all.names.entry(number).or_insert_with(|| "FixedArray".to_owned());
        }
        for index in 0..CONTEXT_CLASSES {
            let name = if index == NATIVE_CONTEXT_INDEX { "NativeContext" } else { "Context" };
            all.add(name, first_context.saturating_add(index));
        }
        let vector = all.number("FeedbackVector")?;
        for (name, number) in [
            ("FeedbackMetadata", vector.saturating_sub(1)),
            ("Filler", vector.saturating_add(1)),
            ("FreeSpace", vector.saturating_add(2)),
            ("TransitionArray", all.number("WeakFixedArray")?.saturating_add(1)),
            ("BigInt", FIRST_NONSTRING + 1),
            ("LoadHandler", FIRST_NONSTRING + 9),
            ("StoreHandler", FIRST_NONSTRING + 10),
        ] {
            all.add(name, number);
        }
        if let Some(number) = all.number("JSAsyncFunctionObject") {
            all.add("JSGeneratorObject", number.saturating_sub(1));
        }
        if let Some(number) = layout.dispatch_table_after.and_then(|name| all.number(name)) {
            all.add("WasmDispatchTable", number.saturating_add(1));
        }
        if let Some(number) = all.number("WasmImportData") {
            all.add("WasmDispatchTableForImports", number.saturating_sub(1));
        }
        ["Map", "JSFunction", "JSProxy"].iter().all(|name| all.number(name).is_some()).then_some(all)
    }

    /// Names a number, unless it has a name; the first number of a class is also its number by
    /// name.
    fn add(&mut self, name: &str, number: u16) {
        self.names.entry(number).or_insert_with(|| name.to_owned());
        self.numbers.entry(name.to_owned()).or_insert(number);
    }

    /// The number of a class, the first if it has several; `None` if it is not known.
    pub fn number(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied()
    }

    /// The name of V8's class with this number; `None` if it is not known.
    pub fn name(&self, number: u16) -> Option<&str> {
        self.names.get(&number).map(String::as_str)
    }

    /// Whether it is a `FixedArray`, or a class derived from it.
    pub fn is_fixed_array(&self, number: u16) -> bool {
        let range = self.number("FixedArray").zip(self.number("ByteArray"));
        range.is_some_and(|(first, end)| (first..end).contains(&number))
    }

    /// Whether it is a hidden class (`Map`).
    pub fn is_map(&self, number: u16) -> bool {
        self.number("Map") == Some(number)
    }

    /// Whether it is a function, or the constructor of a class.
    pub fn is_function(&self, number: u16) -> bool {
        self.number("JSFunction")
            .is_some_and(|first| (first..=first.saturating_add(FUNCTION_SUBCLASSES)).contains(&number))
    }

    /// Whether it is an object of JavaScript; proxies have the lowest number of these.
    pub fn is_object(&self, number: u16) -> bool {
        self.number("JSProxy").is_some_and(|first| number >= first)
    }
}
