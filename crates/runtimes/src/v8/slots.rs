//! Names of the places in which objects of V8 hold others: properties, variables, elements.
//!
//! Keys of an object that is used as a table are data. So the name of a property is shown only if
//! it is one of the constants of the program's code ([`SlotName::Key`]).

use std::collections::HashSet;
use std::sync::Arc;

use super::layout::{CONTEXT_AFTER_SHARED, MAP_BIT_FIELD3, MAP_SIZE_IN_WORDS, ObjectLayout};
use super::names::{self, ScopeInfo};
use super::shapes::Shapes;

/// `properties_or_hash_` and `elements_` in a `JSObject` (`src/objects/js-objects.h`).
const PROPERTIES: u64 = 8;
const ELEMENTS: u64 = 16;
/// `inobject_properties_start_…_` in a `Map`, in words, and `instance_descriptors_`
/// (`src/objects/map.h`).
const MAP_INOBJECT_START: u64 = 9;
const MAP_DESCRIPTORS: u64 = 40;
/// Bits of `bit_field3_`: the number of descriptors; whether properties are in a dictionary.
const DESCRIPTORS_SHIFT: u32 = 10;
const DESCRIPTORS_MASK: u32 = 0x3ff;
const HAS_DICTIONARY: u32 = 1 << 21;
/// An entry of a `DescriptorArray`: key, details, value. The details, a small integer, have the
/// place of the property (`src/objects/property-details.h`): `LocationField`, and the index.
const DESCRIPTOR_BYTES: u64 = 24;
const DESCRIPTOR_DETAILS: u64 = 8;
const IS_NO_FIELD: u64 = 1 << 5;
const INDEX_SHIFT: u32 = 19;
const INDEX_MASK: u64 = 0x3ff;
/// Offset of the first element of arrays, property arrays and contexts.
const FIRST_ELEMENT: u64 = 16;
/// Slots of a context before its variables: its `ScopeInfo` and the outer context; in some an
/// extension follows (`src/objects/contexts.h`).
const CONTEXT_SLOTS: u64 = 2;
/// `name_` in a `PropertyCell` (`src/objects/property-cell.tq`).
pub const PROPERTY_CELL_NAME: u64 = 8;
/// `flags_` in a `Symbol`, 32 bits, and `description_` (`src/objects/name.h`).
const SYMBOL_FLAGS: u64 = 12;
const SYMBOL_DESCRIPTION: u64 = 16;
/// A field of one of V8's own objects.
struct NamedField {
    class: &'static str,
    offset: u64,
    /// What is shown.
    text: &'static str,
}

const fn field(class: &'static str, offset: u64, text: &'static str) -> NamedField {
    NamedField { class, offset, text }
}

/// Fields of V8's own objects (`src/objects/js-function.tq`, `js-proxy.tq`, `js-generator.tq`,
/// `js-promise.tq`, `cell.tq`, `struct.tq`).
const NAMED_FIELDS: [NamedField; 12] = [
    field("JSBoundFunction", 24, "(bound function)"),
    field("JSBoundFunction", 32, "(bound this)"),
    field("JSBoundFunction", 40, "(bound arguments)"),
    field("JSProxy", 16, "(target)"),
    field("JSProxy", 24, "(handler)"),
    field("JSGeneratorObject", 32, "(scope)"),
    field("JSGeneratorObject", 40, "(this)"),
    field("JSGeneratorObject", 72, "(variables)"),
    field("JSPromise", 24, "(reactions or result)"),
    field("Cell", 8, "(value)"),
    field("AccessorPair", 8, "(getter)"),
    field("AccessorPair", 16, "(setter)"),
];
/// `JSGeneratorObject` and the classes derived from it (`src/objects/js-generator.tq`).
pub const GENERATORS: [&str; 3] = ["JSGeneratorObject", "JSAsyncFunctionObject", "JSAsyncGeneratorObject"];
/// Maximum bytes of the name of a property or variable; a longer one is not shown.
const MAX_NAME_BYTES: usize = 60;

/// An object that holds another at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The object.
    pub holder: u64,
    /// The offset in it.
    pub offset: u64,
}

/// What is shown of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotName {
    /// This text.
    Text(String),
    /// A property, by the pointer to its key.
    Key(u64),
}

/// Returns the name of a slot; `None` if it is not known, or not shown. `holder_slot` is the slot
/// in which the holder itself is held.
pub fn name(
    shapes: &mut Shapes<'_>,
    layout: &ObjectLayout,
    slot: Slot,
    holder_slot: Option<Slot>,
) -> Option<SlotName> {
    let Slot { holder, offset } = slot;
    let number = shapes.type_at(holder)?;
    let types = shapes.types();
    let text = |text: &str| Some(SlotName::Text(text.to_owned()));
    if offset == 0 {
        return text("(hidden class)");
    }
    let class = types.name(number).unwrap_or_default();
    let field_class = if GENERATORS.contains(&class) { "JSGeneratorObject" } else { class };
    let is_field = |field: &&NamedField| field.offset == offset && field.class == field_class;
    if let Some(field) = NAMED_FIELDS.iter().find(is_field) {
        return text(field.text);
    }
    if class == "WeakCell" && offset == layout.weak_cell.holdings {
        return text("(held value)");
    }
    if types.is_object(number) {
        let is_function = types.is_function(number);
        return match offset {
            PROPERTIES | ELEMENTS => None,
            offset if is_function && offset == layout.shared => text("(code)"),
            offset if is_function && offset == layout.shared + CONTEXT_AFTER_SHARED => text("(scope)"),
            offset => property_key(shapes, layout, holder, ValuePlace::InObject(offset)).map(SlotName::Key),
        };
    }
    let index = offset.checked_sub(FIRST_ELEMENT).map(|bytes| bytes / 8);
    match class {
        "PropertyArray" => {
            let owner = holder_slot.filter(|holder_slot| holder_slot.offset == PROPERTIES)?;
            property_key(shapes, layout, owner.holder, ValuePlace::Array(index?)).map(SlotName::Key)
        }
        // The key is before the value.
        "NameDictionary" => shapes.cache.word(holder.checked_add(offset)?.checked_sub(8)?).map(SlotName::Key),
        "PropertyCell" => shapes.field(holder, PROPERTY_CELL_NAME).map(SlotName::Key),
        "Context" => variable(shapes, layout, holder, index?).map(SlotName::Text),
        "FixedArray" => text(&format!("[{}]", index?)),
        "OrderedHashMap" | "OrderedHashSet" | "EphemeronHashTable" | "NumberDictionary" => text("(an entry)"),
        "GlobalDictionary" => None,
        _ => text(&format!("+{offset}")),
    }
}

/// Returns the text of a property's name. `in_code` are the keys that the program's code has.
pub fn key_text(shapes: &mut Shapes<'_>, layout: &ObjectLayout, key: u64, in_code: &HashSet<u64>) -> String {
    let symbol = symbol(shapes, key);
    // Only code names private fields.
    if let Some(Symbol { description, flags }) = symbol
        && flags & layout.private_symbol_flags != 0
    {
        let name = names::text(shapes, description);
        let name = name.filter(|name| name.strip_prefix('#').is_some_and(is_identifier));
        return name.map_or_else(|| "(a property)".to_owned(), |name| format!(".{name}"));
    }
    let word = symbol.map_or(key, |symbol| symbol.description);
    let name = if in_code.contains(&word) { identifier(shapes, word) } else { None };
    match name {
        Some(name) if symbol.is_some() => format!("[Symbol({name})]"),
        Some(name) => format!(".{name}"),
        None => "(a property)".to_owned(),
    }
}

/// Returns the pointer to the string that names a property: its key, or a symbol's description.
pub fn text_of_key(shapes: &mut Shapes<'_>, key: u64) -> u64 {
    symbol(shapes, key).map_or(key, |symbol| symbol.description)
}

/// A key that is no string.
#[derive(Clone, Copy)]
struct Symbol {
    description: u64,
    flags: u32,
}

/// Reads a symbol; `None` if the key is a string.
fn symbol(shapes: &mut Shapes<'_>, key: u64) -> Option<Symbol> {
    let address = Shapes::object_at(key).filter(|address| shapes.is_of_class(*address, "Symbol"))?;
    let flags = shapes.cache.word32(address.checked_add(SYMBOL_FLAGS)?)?;
    let description = shapes.field(address, SYMBOL_DESCRIPTION)?;
    Some(Symbol { description, flags })
}

/// Where the value of a property is.
#[derive(Clone, Copy)]
enum ValuePlace {
    /// In the object, at an offset.
    InObject(u64),
    /// In its `PropertyArray`, at an index.
    Array(u64),
}

/// Returns the key of the property of an object whose value is at a place.
fn property_key(
    shapes: &mut Shapes<'_>,
    layout: &ObjectLayout,
    object: u64,
    place: ValuePlace,
) -> Option<u64> {
    let map = shapes.target(object, 0)?;
    let bits = shapes.cache.word32(map.checked_add(MAP_BIT_FIELD3)?)?;
    let [start] = shapes.cache.array(map.checked_add(MAP_INOBJECT_START)?)?;
    let [words] = shapes.cache.array(map.checked_add(MAP_SIZE_IN_WORDS)?)?;
    let inobject_count = u64::from(words).checked_sub(u64::from(start))?;
    let wanted = match place {
        ValuePlace::InObject(offset) => (offset / 8).checked_sub(u64::from(start))?,
        ValuePlace::Array(index) => inobject_count.checked_add(index)?,
    };
    let descriptors = shapes.target(map, MAP_DESCRIPTORS)?;
    if bits & HAS_DICTIONARY != 0 {
        return None;
    }
    let count = u64::from(bits >> DESCRIPTORS_SHIFT & DESCRIPTORS_MASK);
    let first = descriptors.checked_add(layout.descriptor_header)?;
    for number in 0..count {
        let at = first.checked_add(number * DESCRIPTOR_BYTES)?;
        let details = shapes.field(at, DESCRIPTOR_DETAILS)? >> 32;
        if details & IS_NO_FIELD == 0 && details >> INDEX_SHIFT & INDEX_MASK == wanted {
            return shapes.cache.word(at);
        }
    }
    None
}

/// Returns the name of the variable in a slot of a context.
fn variable(shapes: &mut Shapes<'_>, layout: &ObjectLayout, context: u64, slot: u64) -> Option<String> {
    let scope = shapes.target(context, FIRST_ELEMENT)?;
    if slot == 1 {
        return Some("(scope outside)".to_owned());
    }
    let scope = ScopeInfo::read(shapes, layout, scope)?;
    let first_variable = CONTEXT_SLOTS + u64::from(scope.has_extension());
    let index = usize::try_from(slot.checked_sub(first_variable)?).ok()?;
    let word = scope.variables(shapes).get(index).copied()??;
    identifier(shapes, word).map(|name| format!(".{name}"))
}

/// Returns the names of a context's slots: `sessions (lib/server.js)`, or
/// `sessions (report, lib/server.js)` for a variable of the function `report`; `None` for slots
/// without the name of a variable.
pub fn variables(shapes: &mut Shapes<'_>, scope: &ScopeInfo, file: Option<&str>) -> Vec<Option<Arc<str>>> {
    let function = scope.function(shapes).and_then(|word| identifier(shapes, word));
    let owners: Vec<&str> = function.as_deref().into_iter().chain(file).collect();
    let suffix = if owners.is_empty() { String::new() } else { format!(" ({})", owners.join(", ")) };
    let first_variable = CONTEXT_SLOTS + u64::from(scope.has_extension());
    let mut names = vec![None; first_variable as usize];
    for word in scope.variables(shapes) {
        let name = word.and_then(|word| identifier(shapes, word));
        names.push(name.map(|name| format!("{name}{suffix}").into()));
    }
    names
}

/// Returns the text of a string; `None` if it cannot be an identifier in JavaScript.
pub fn identifier(shapes: &mut Shapes<'_>, word: u64) -> Option<String> {
    names::text(shapes, word).filter(|name| is_identifier(name))
}

/// Whether a name can be an identifier in JavaScript.
fn is_identifier(name: &str) -> bool {
    let may_be_in_name = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.chars().all(may_be_in_name)
        && !name.starts_with(|first: char| first.is_numeric())
}
