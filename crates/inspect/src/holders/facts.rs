//! Who holds what is live, as data: the shape of `holders --json`. Sizes are bytes of address space.

use serde::{Deserialize, Deserializer, Serialize};
use strandline_claims::Caveat;

use super::growth::Growth;
use super::leaked::Leaked;
use crate::facts::Cost;

/// Who holds the live blocks of a process's heaps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holders {
    /// The process.
    #[serde(default)]
    pub pid: i32,
    /// The path of its executable.
    #[serde(default)]
    pub executable: Option<String>,
    /// When it started, in clock ticks after the machine did: tells processes of one number apart.
    #[serde(default)]
    pub start_ticks: Option<u64>,
    /// When it was looked at, in seconds since 1970.
    #[serde(default)]
    pub taken_unix_seconds: f64,
    /// RSS at that look.
    #[serde(default)]
    pub rss_bytes: Option<u64>,
    /// What of that no reader explains.
    #[serde(default)]
    pub unattributed_bytes: Option<u64>,
    /// All live blocks.
    pub live: Sum,
    /// Those that nothing leads to; unknown where not all could be read that may lead to them.
    pub unreachable: Option<Unreachable>,
    /// Those that several roots lead to, each by a way of its own, by the set of these roots, largest first.
    #[serde(default, deserialize_with = "list_or_nothing")]
    pub shared: Vec<Shared>,
    /// All of them; unknown where nothing was followed.
    #[serde(default)]
    pub shared_total: Option<Sum>,
    /// Those of sets that are not told.
    #[serde(default)]
    pub other_shared: Sum,
    /// What all of them are.
    #[serde(default)]
    pub shared_holds: Vec<Holding>,
    /// What holds blocks from outside, the one that retains most first.
    pub roots: Vec<Root>,
    /// What those hold that are not told.
    pub other_roots: Sum,
    /// How many roots there are.
    pub root_count: u64,
    /// What the blocks are, the one with most bytes first.
    pub types: Vec<Type>,
    /// How many there are.
    pub type_count: u64,
    /// Resident bytes of lost blocks by row, for the ledger.
    #[serde(skip)]
    pub leaked: Vec<Leaked>,
    /// Who keeps most pages that are free but for them, by type and root.
    #[serde(default)]
    pub keepers: Vec<Keeper>,
    /// What grew since an earlier look, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Growth>,
    /// What was not read, and why.
    pub caveats: Vec<Caveat>,
    /// What the look cost.
    pub cost: Cost,
}

impl Holders {
    /// Says no more what nothing leads to: something may that was not read.
    pub fn withhold(&mut self) {
        self.unreachable = None;
        self.keepers.retain(|keeper| !keeper.unreachable);
        self.leaked.clear();
        self.types.iter_mut().for_each(|of| of.unreachable_bytes = None);
    }
}

/// Blocks, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Their bytes.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
}

/// Blocks that the same roots lead to, and none of these alone holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shared {
    /// The names of the roots, the nearest first: those from which, or from what they alone hold, most references lead there. Empty
    /// where the blocks are of many sets that are not told apart.
    pub roots: Vec<String>,
    /// Whether further roots lead there, whose number is not known.
    pub has_more: bool,
    /// Their bytes.
    pub retained_bytes: u64,
    /// How many.
    pub retained_blocks: u64,
    /// The first few of the roots, as [`Root`] tells them.
    pub nearest: Vec<Nearest>,
    /// What the blocks are, the type with most bytes first, a few of them.
    pub types: Vec<SharedType>,
}

/// A root that holds something together with others.
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

/// Blocks of one type that the same roots lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedType {
    /// As in [`Type::name`].
    pub name: String,
    /// How many.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Documents of before had an object in place of the list: its sums are not compared.
fn list_or_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Shared>, D::Error> {
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

/// Blocks that nothing leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreachable {
    /// Bytes of all.
    pub bytes: u64,
    /// All.
    pub blocks: u64,
    /// Those that no other one of them leads to: what was lost, rather than what went with it.
    pub definite: Sum,
    /// Resident bytes of them; unknown where a runtime has its own rows for some.
    #[serde(default)]
    pub resident_bytes: Option<u64>,
    /// Resident bytes of pages with free places and no other blocks.
    pub pins_bytes: u64,
    /// What they are: those that were lost, and what hangs from these.
    #[serde(default)]
    pub holds: Vec<Holding>,
}

/// Blocks of one type and of one root that keep pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    /// Their type.
    pub name: String,
    /// The root that alone holds them, by its place in [`Holders::roots`]; nothing where they are lost, or it is not told there.
    pub root: Option<usize>,
    /// Whether nothing leads to them.
    pub unreachable: bool,
    /// As [`Root::pins_bytes`].
    pub pins_bytes: u64,
}

/// Blocks of one kind that hang from the same: from a root, or from blocks of another kind. Told are the largest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Their type.
    pub name: String,
    /// How many.
    pub instances: u64,
    /// Their own bytes.
    pub bytes: u64,
    /// How many of them hang from another one of them, as in a list.
    pub chained: u64,
    /// Their bytes and those of all that hangs from them.
    pub retained_bytes: u64,
    /// How many blocks these are.
    pub retained_blocks: u64,
    /// What hangs from them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Self>,
}

/// What a root is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RootKind {
    /// Static data of a program or library, or memory that nobody explains.
    #[default]
    Static,
    /// A thread's stack.
    Stack,
    /// A thread's registers.
    Register,
    /// What a thread has for itself.
    Tls,
    /// Memory of a runtime that is read.
    Runtime,
}

/// Something from outside of the heap that leads to blocks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// What it is.
    pub kind: RootKind,
    /// A symbol, or a library and how far into it; a runtime, or a variable of it.
    pub name: String,
    /// The program or library that it is static data of, or a function of; the runtime that it is a variable of.
    pub module: Option<String>,
    /// The thread, where it is one's.
    pub thread: Option<String>,
    /// Bytes that it alone holds: they would be lost without it.
    pub retained_bytes: u64,
    /// The blocks that have them.
    pub retained_blocks: u64,
    /// Resident bytes of pages with free places and no blocks but those: they would go back with these.
    pub pins_bytes: u64,
    /// What it holds alone: the way to it, kind by kind.
    #[serde(default)]
    pub holds: Vec<Holding>,
}

/// Blocks of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Type {
    /// A C++ class, or how large they are.
    pub name: String,
    /// How many.
    pub instances: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that nothing leads to; unknown where all that is ([`Holders::unreachable`]).
    pub unreachable_bytes: Option<u64>,
    /// As [`Root::pins_bytes`].
    pub pins_bytes: u64,
}
