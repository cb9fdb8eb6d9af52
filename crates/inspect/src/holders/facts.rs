//! Holders of live blocks, as data: the shape of `holders --json`. Sizes are bytes of address
//! space.

use serde::{Deserialize, Deserializer, Serialize};
use strandline_claims::Caveat;

use super::growth::Comparison;
use super::leaked::Leaked;
use crate::facts::Cost;

/// The holders of the live blocks of a process's heaps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holders {
    /// The process.
    #[serde(default)]
    pub pid: i32,
    /// The path of its executable.
    #[serde(default)]
    pub executable: Option<String>,
    /// Its command line; empty if it is not known.
    #[serde(default)]
    pub command: Vec<String>,
    /// When it started, in clock ticks after boot: distinguishes processes with the same pid.
    #[serde(default)]
    pub start_ticks: Option<u64>,
    /// When it was inspected, in seconds since 1970; 0 for a clock before that.
    #[serde(default)]
    pub taken_unix_seconds: f64,
    /// RSS at that time.
    #[serde(default)]
    pub rss_bytes: Option<u64>,
    /// Bytes of RSS that no reader explains.
    #[serde(default)]
    pub unattributed_bytes: Option<u64>,
    /// All live blocks.
    pub live: Sum,
    /// Unreachable blocks; `None` if memory that may refer to them could not be read, or if no heap
    /// was read.
    pub unreachable: Option<Unreachable>,
    /// Blocks that several roots reach and no single root holds, by set of roots, largest first.
    #[serde(default, deserialize_with = "list_or_ignored")]
    pub shared: Vec<Shared>,
    /// All such blocks; `None` if references were not followed.
    #[serde(default)]
    pub shared_total: Option<Sum>,
    /// Such blocks of sets that are not listed.
    #[serde(default)]
    pub other_shared: Sum,
    /// Outline of all such blocks.
    #[serde(default)]
    pub shared_holds: Vec<Holding>,
    /// Roots, by retained bytes, largest first.
    pub roots: Vec<Root>,
    /// What the roots that are not listed hold.
    pub other_roots: Sum,
    /// Number of roots.
    pub root_count: u64,
    /// Types of blocks, by bytes, largest first.
    pub types: Vec<Type>,
    /// Number of types.
    pub type_count: u64,
    /// Resident bytes of unreachable blocks by row, for the ledger.
    #[serde(skip)]
    pub leaked: Vec<Leaked>,
    /// How the allocators with live blocks round sizes up: clauses.
    #[serde(skip)]
    pub block_sizes: Vec<&'static str>,
    /// The blocks that keep the most otherwise free pages, by type and root.
    #[serde(default)]
    pub keepers: Vec<Keeper>,
    /// Growth since an earlier inspection, if one is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Comparison>,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
    /// Cost of the inspection.
    pub cost: Cost,
}

impl Holders {
    /// Removes what is known about unreachable blocks, because memory that may refer to them was
    /// not read.
    pub fn remove_unreachable(&mut self) {
        self.unreachable = None;
        self.keepers.retain(|keeper| !keeper.unreachable);
        self.leaked.clear();
        self.types.iter_mut().for_each(|listed| listed.unreachable_bytes = None);
    }
}

/// Bytes and number of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl From<strandline_holders::Sum> for Sum {
    fn from(sum: strandline_holders::Sum) -> Self {
        Self { bytes: sum.bytes, blocks: u64::from(sum.blocks) }
    }
}

/// Blocks that the same roots reach, and none of these alone holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The names of the roots, in descending order of the references to the blocks from the root or
    /// from what it alone holds. Empty for the blocks of sets beyond the maximum.
    pub roots: Vec<String>,
    /// Whether further roots, whose number is unknown, reach the blocks.
    pub has_more: bool,
    /// Their bytes.
    pub retained_bytes: u64,
    /// Number of blocks.
    pub retained_blocks: u64,
    /// The first few roots, with fields of [`Root`].
    pub nearest: Vec<Nearest>,
    /// A few types of the blocks, by bytes, largest first.
    pub types: Vec<SharedType>,
}

/// One of several roots that reach the same blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nearest {
    /// As in [`Root::kind`].
    pub kind: RootKind,
    /// As in [`Root::name`].
    pub name: String,
    /// As in [`Root::module`].
    pub module: Option<String>,
    /// As in [`Root::thread`].
    pub thread: Option<String>,
}

/// Blocks of one type that the same roots reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedType {
    /// As in [`Type::name`].
    pub name: String,
    /// Number of blocks.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Accepts the object that earlier versions wrote instead of the list, and ignores it.
fn list_or_ignored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Shared>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        List(Vec<Shared>),
        Nothing(serde::de::IgnoredAny),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::List(list) => list,
        Either::Nothing(_) => Vec::new(),
    })
}

/// Unreachable blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreachable {
    /// Bytes of all of them.
    pub bytes: u64,
    /// Number of all of them.
    pub blocks: u64,
    /// Heads: blocks that no other unreachable block refers to. They were leaked; the rest is
    /// unreachable because they are.
    pub definite: Sum,
    /// Resident bytes; `None` if a runtime has its own rows for some.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
    /// Resident bytes of pages with free space and no other blocks.
    pub pins_bytes: u64,
    /// Outline of the heads and what they hold.
    #[serde(default)]
    pub holds: Vec<Holding>,
}

/// Blocks of one type and of one root that keep pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    /// Their type.
    pub name: String,
    /// The root that alone holds them, as an index in [`Holders::roots`]; `None` if they are
    /// unreachable, several roots reach them, or the root is not listed.
    pub root: Option<usize>,
    /// Whether they are unreachable.
    pub unreachable: bool,
    /// As [`Root::pins_bytes`].
    pub pins_bytes: u64,
}

/// A node of the outline: blocks of one type below a root, or below blocks of another type. The
/// largest nodes are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Their type.
    pub name: String,
    /// Number of blocks.
    pub instances: u64,
    /// Their own bytes.
    pub bytes: u64,
    /// Number of these blocks that are below another one of them, as in a list.
    pub chained: u64,
    /// Bytes of these blocks and of everything below them.
    pub retained_bytes: u64,
    /// Number of blocks that `retained_bytes` counts.
    pub retained_blocks: u64,
    /// The nodes below.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Self>,
}

/// The kind of a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootKind {
    /// Static data of a program or library, or unexplained memory.
    #[default]
    Static,
    /// A thread's stack.
    Stack,
    /// A thread's registers.
    Register,
    /// A thread's control block and thread-local storage.
    Tls,
    /// Memory of a runtime that is read.
    Runtime,
}

/// A root: something outside the heap that refers to blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// The kind.
    pub kind: RootKind,
    /// A symbol, or a library and an offset in it; a function; a runtime, or one of its variables.
    pub name: String,
    /// The program or library of the static data or function, or the runtime of the variable.
    pub module: Option<String>,
    /// The thread, if the root belongs to one.
    pub thread: Option<String>,
    /// Bytes that it alone holds: they would be unreachable without it.
    pub retained_bytes: u64,
    /// Number of blocks that it alone holds.
    pub retained_blocks: u64,
    /// Resident bytes of pages with free space and no blocks but those: the pages would be freed
    /// with the blocks.
    pub pins_bytes: u64,
    /// Outline of what it alone holds.
    #[serde(default)]
    pub holds: Vec<Holding>,
}

/// Blocks of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Type {
    /// A C++ class or Rust type, a row of a runtime, or the size of the blocks.
    pub name: String,
    /// Number of blocks.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of the unreachable blocks among them; `None` if [`Holders::unreachable`] is `None`.
    pub unreachable_bytes: Option<u64>,
    /// As [`Root::pins_bytes`].
    pub pins_bytes: u64,
}
