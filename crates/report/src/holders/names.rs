//! Names of roots, and of types with their numbers of instances.

use strandline_inspect::holders::facts::{Holding, Root, RootKind};

use crate::text::{clean, shorten};
use crate::units::thousands;

/// Starts the name of blocks of which only the size is known.
pub const OF_SIZE: &str = "blocks of ";
/// Stands between the number and the type of blocks that refer to each other.
pub const LINKED: &str = " linked ";
/// Maximum width of a name within a sentence.
const MAX_NAME_COLUMNS: usize = 60;

/// A name as a sentence has it.
pub fn shortened(name: &str) -> String {
    shorten(name, MAX_NAME_COLUMNS)
}

/// The number of instances, their type, and whether they are linked to each other.
pub fn instances(kind: &Holding) -> String {
    let linked = match kind.instances.checked_sub(kind.chained).filter(|_| kind.chained > 0) {
        Some(1) => ", linked".to_owned(),
        Some(heads) => format!(", linked behind {}", thousands(heads)),
        None => String::new(),
    };
    format!("{} {}{linked}", thousands(kind.instances), type_name(kind))
}

/// The blocks of one type; a single one needs no number.
pub fn step_text(kind: &Holding) -> String {
    let name = type_name(kind);
    match kind.instances {
        1 => name,
        instances if kind.chained == 0 => format!("{} {name}", thousands(instances)),
        instances => format!("{}{LINKED}{name}", thousands(instances)),
    }
}

/// The name of a type, in the singular or plural of its instances. A type named `bytes` would read
/// as a size after a number.
fn type_name(kind: &Holding) -> String {
    let is_single = kind.instances == 1;
    match size_of_type(&kind.name) {
        Some(size) if is_single => format!("block of {} bytes", thousands(size)),
        None if kind.name == "bytes" => format!("bytes object{}", if is_single { "" } else { "s" }),
        _ => shown_type(&kind.name),
    }
}

/// The name of a type in a table.
pub fn shown_type(name: &str) -> String {
    size_of_type(name).map_or_else(|| clean(name), |size| format!("{OF_SIZE}{} bytes", thousands(size)))
}

/// The size of blocks of which only the size is known (`1208-byte blocks`).
pub fn size_of_type(name: &str) -> Option<u64> {
    name.strip_suffix("-byte blocks")?.parse().ok()
}

/// A short description of a root.
pub fn root_name(root: &Root) -> String {
    root_text(root.kind, &root.name, root.module.as_deref(), root.thread.as_deref())
}

/// A short description of the root with these fields of [`Root`].
pub fn root_text(kind: RootKind, name: &str, module: Option<&str>, thread: Option<&str>) -> String {
    let clean_name = clean(name);
    let thread = thread.map(clean).unwrap_or_default();
    match kind {
        RootKind::Stack if name == "stack" => format!("stack of {thread}"),
        RootKind::Stack => format!("{clean_name} on the stack of {thread}"),
        RootKind::Register => format!("registers of {thread}"),
        RootKind::Tls if !thread.is_empty() => format!("{clean_name} of {thread}"),
        RootKind::Runtime if module.is_some() => clean_name,
        RootKind::Runtime => format!("{clean_name}'s memory"),
        RootKind::Static | RootKind::Tls => match module {
            Some(module) if !name.starts_with(&format!("{module}+0x")) => {
                format!("{clean_name} in {}", clean(module))
            }
            _ => clean_name,
        },
    }
}
