//! Readers of language runtimes: finer claims than an allocator's, with names.
//!
//! What malloc calls a block in use, Perl calls a buffer that a lexical keeps; what the kernel
//! calls anonymous memory, SBCL calls generation 2. A reader reports this in one of two ways: it
//! refines blocks of allocators ([`crate::refinements`]), or it claims memory of the runtime
//! itself. Each byte still counts for one row.
//!
//! All readers have the same shape: [`Reader`] finds the runtime and its version in the mapped
//! files, before the target is stopped; [`FoundRuntime::read`] reads it while it is stopped. Work
//! that takes long, or needs the matches of allocators' readers, is left to [`Pending::finish`],
//! after the target runs again. If a version has no layout, or its structures are inconsistent, the
//! result is a caveat, and nothing is claimed. `docs/adding-a-runtime.md` describes how to write a
//! reader.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strandline_holders::Builder;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::{AddressRange, RangeSet};
use strandline_process::stacks::ThreadFacts;

use crate::allocator::RangeClaim;
use crate::caveat::Caveat;
use crate::class::{Class, Slot};
use crate::facts::{self, Remedy};
use crate::finding::{Finding, LedgerView};
use crate::palette::{BlockRows, SlotTable};
use crate::places::AddressSet;
use crate::range::RangePages;
use crate::refinements::{Matches, Refinements};
use crate::remedy::Notification;
use crate::rows::RowRef;
use crate::section::{self, Section};
use crate::words::FindPageRuns;

/// A reader of a language runtime: its functions. [`Reader::new`] has those that most readers lack.
pub struct Reader {
    /// Finds the runtime in the files mapped by a process. Reads no memory, and the process may
    /// be running: what is found is checked when it is read.
    pub find: fn(&Process, &AddressSpace) -> Option<Box<dyn FoundRuntime>>,
    /// Returns what the reader finds in a whole ledger, for the verdict.
    pub findings: fn(&LedgerView<'_>) -> Vec<Finding>,
    /// Returns how the process uses its memory, for the verdict where no finding matters; `None` if
    /// the reader has nothing to say.
    pub in_use: fn(&LedgerView<'_>) -> Option<Finding>,
    /// Returns remedies that depend on other readers' figures; the others are part of the
    /// [`Reading`].
    pub remedies: fn(&LedgerView<'_>) -> Vec<Remedy>,
    /// Returns the result for the requested path ([`FinishContext::path_to`]); `None` if the reader
    /// follows no objects.
    pub path: fn(&facts::Runtime) -> Option<PathAnswer>,
    /// Returns the part of a report that describes a runtime; `None` if this reader did not read
    /// it.
    pub section: fn(&facts::Runtime) -> Option<Section>,
}

impl Reader {
    /// A reader that only finds the runtime and reads it.
    pub const fn new(find: fn(&Process, &AddressSpace) -> Option<Box<dyn FoundRuntime>>) -> Self {
        Self {
            find,
            findings: |_| Vec::new(),
            in_use: |_| None,
            remedies: |_| Vec::new(),
            path: |_| None,
            section: |runtime| Some(section::common(runtime)),
        }
    }
}

/// Result of the search for a path to a live object of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathAnswer {
    /// From the root to the object.
    Found(String),
    /// A live object was found, but no path to it, for this reason.
    NoPath(String),
    /// No live object of the type was found.
    NoObject,
    /// Objects were not traced.
    NotTraced,
}

/// How a reader gets at the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it while the target is stopped.
    InPlace,
    /// Reads it from a copy: reading takes longer than copying all memory of the process.
    Copied,
    /// Copies what it needs itself.
    OwnCopy,
}

/// A runtime found in a process, not read yet.
pub trait FoundRuntime: Send + Sync {
    /// How the memory is to be read. Reads a few structures at most; the process may be running.
    fn access(&self, _memory: &dyn Memory) -> Access {
        Access::InPlace
    }

    /// Whether reading takes longer than taking a snapshot, which then stops the process for less
    /// time; false if all information is in a few structures.
    fn takes_long(&self) -> bool {
        true
    }

    /// Whether the runtime keeps its memory from children (MADV_DONTFORK), so that a snapshot lacks
    /// it.
    fn hides_memory_from_children(&self) -> bool {
        false
    }

    /// Whether the reader uses [`Context::free_memory`].
    fn needs_free_memory(&self) -> bool {
        false
    }

    /// Whether the reader uses the threads' pointers ([`ThreadFacts::fs_base`]).
    fn needs_thread_pointers(&self) -> bool {
        false
    }

    /// Whether the runtime's own flag marks a collection as under way. Reads what leads to the
    /// flag, such as the tables of a JVM; the process may be running.
    fn is_collecting(&self, _memory: &dyn Memory) -> bool {
        false
    }

    /// Reads the runtime and returns one reading for each instance. Claims on allocators' blocks go
    /// into `refinements`.
    ///
    /// # Errors
    /// [`Busy`] if the runtime is in the middle of a collection.
    fn read(&self, context: &Context<'_>, refinements: &Refinements) -> Result<Vec<Reading>, Busy>;
}

/// Everything a reader may read, from one frozen state.
pub struct Context<'a> {
    /// The target's memory, restricted to resident pages: reading any other page would bring it in.
    /// Unlike that of an allocator, the reader of a runtime has no way to read a swapped-out page:
    /// it adds a caveat.
    pub memory: &'a dyn Memory,
    /// The process, for its files.
    pub process: &'a Process,
    /// The target's mappings.
    pub space: &'a AddressSpace,
    /// Runs of resident anonymous pages in a range, cut to it.
    pub resident: FindPageRuns<'a>,
    /// Runs of resident file and shared memory pages in a range, cut to it.
    pub shared: FindPageRuns<'a>,
    /// The threads for which facts are known.
    pub threads: &'a [ThreadFacts],
    /// Memory of allocators outside of their blocks in use: its content is stale. Empty if not
    /// known, or if no reader needs it.
    pub free_memory: &'a RangeSet,
    /// Whether the target is stopped while it is read; readers then leave out slow work that no
    /// figure needs.
    pub is_stopped: bool,
    /// When to stop reading: the time for which the target may be stopped is over then.
    pub deadline: Instant,
    /// Number of threads for reading.
    pub workers: usize,
    /// Size of the cells of the page map; `None` if no page map is wanted.
    pub cell_bytes: Option<u64>,
    /// Whether to collect references between blocks ([`Reading::reference_hints`]).
    pub keeps_blocks: bool,
    /// Type for which the path of a live object to a root is wanted.
    pub path_to: Option<&'a str>,
    /// Called with the number of bytes of memory read.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Context<'a> {
    /// A context for tests, without threads and shared memory, and with ten minutes to read; a test
    /// sets the fields that matter to it.
    pub fn of_image(
        memory: &'a dyn Memory,
        process: &'a Process,
        space: &'a AddressSpace,
        resident: FindPageRuns<'a>,
    ) -> Self {
        static NO_RUNS: fn(AddressRange) -> Vec<AddressRange> = |_| Vec::new();
        static NO_RANGES: RangeSet = RangeSet::EMPTY;
        static NO_PROGRESS: fn(u64) = |_| ();
        Self {
            memory,
            process,
            space,
            resident,
            shared: &NO_RUNS,
            threads: &[],
            free_memory: &NO_RANGES,
            is_stopped: false,
            deadline: Instant::now() + Duration::from_secs(600),
            workers: 1,
            cell_bytes: None,
            keeps_blocks: true,
            path_to: None,
            progress: &NO_PROGRESS,
        }
    }
}

impl Context<'_> {
    /// Whether unreadable memory may be swapped out rather than unmapped; true if unknown.
    pub fn may_be_swapped(&self) -> bool {
        let swap_bytes = self.process.status().ok().and_then(|status| status.swap_bytes);
        swap_bytes.is_none_or(|bytes| bytes > 0)
    }

    /// The resident anonymous parts of a range.
    pub fn resident_runs(&self, range: impl Into<AddressRange>) -> Vec<AddressRange> {
        (self.resident)(range.into())
    }

    /// Bytes of the resident anonymous parts of a range.
    pub fn resident_bytes(&self, range: impl Into<AddressRange>) -> u64 {
        self.resident_runs(range).into_iter().map(AddressRange::len).sum()
    }

    /// The resident parts of a range of file or shared memory.
    pub fn shared_runs(&self, range: impl Into<AddressRange>) -> Vec<AddressRange> {
        (self.shared)(range.into())
    }

    /// The pages of a claimed range, to be counted by an [`crate::accumulator::Accumulator`].
    pub fn pages(&self, start: u64, end: u64) -> RangePages {
        RangePages::for_claim(AddressRange::new(start, end), self.resident, self.space, self.cell_bytes)
    }

    /// Like [`Context::pages`], for a range of shared memory.
    pub fn shared_pages(&self, start: u64, end: u64) -> RangePages {
        RangePages::for_claim(AddressRange::new(start, end), self.shared, self.space, self.cell_bytes)
    }

    /// Claims a range whose bytes all have one class, such as a structure of the runtime.
    pub fn claim_whole(&self, range: impl Into<AddressRange>, class: Class) -> RangeClaim {
        let range = range.into();
        RangeClaim::whole(&self.pages(range.start, range.end), range, class)
    }
}

/// A block with a claim of more than [`crate::refinements::LARGE_BYTES`] that gets a row with its
/// own holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBlock {
    /// The pointer that the allocator returned.
    pub pointer: u64,
    /// Claimed bytes.
    pub bytes: u64,
    /// Class of the claim.
    pub slot: Slot,
    /// Holder: `main::build_report $buf (depth 2)`.
    pub holder: String,
}

/// What a reader knows about references between blocks.
#[derive(Default)]
pub struct ReferenceHints {
    /// Blocks in use in the memory that it claims. The runtime itself is a root of all of them.
    pub blocks: Builder,
    /// Start addresses of the blocks that are objects; the others have the row of live blocks in
    /// [`Reading::rows`].
    pub objects: AddressSet,
    /// The row of objects.
    pub object_row: Option<RowRef>,
    /// Addresses of pairs of words that link an object to its neighbours in the collector's list,
    /// or are flags. Neither word is a reference; the runtime is a root of linked objects.
    pub gc_links: AddressSet,
    /// Addresses from which, up to the end of the block, there are characters or unused bytes. No
    /// word there is a reference.
    pub opaque_from: AddressSet,
    /// Addresses of single words that are not references, in order.
    pub weak_words: Vec<u64>,
    /// Words that hold addresses in a form of the runtime's own, in order.
    pub encoded_words: Vec<EncodedWord>,
    /// Set if objects refer to each other by the address plus 1: the blocks outside of the
    /// runtime's memory to which plain addresses in objects are references. Others are not, but the
    /// runtime is a root of their targets.
    pub plain_targets: Option<Vec<AddressRange>>,
    /// Objects where paths from variables stop, by an address in each: those that lead to
    /// everything (modules, classes) and those that hold nothing (freed ones on a free list). What
    /// only they hold belongs to no variable.
    pub stops: AddressSet,
    /// The variables; what those with the same name hold is added up.
    pub variables: Vec<Variable>,
    /// Memory that the runtime releases as a whole once no block in it is in use, in address order
    /// when all of the runtime is read.
    pub release_units: Vec<AddressRange>,
}

/// A word of an object that holds an address in a form of the runtime's own, such as the digits of
/// a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EncodedWord {
    /// Where the word is.
    pub at: u64,
    /// The address that it holds.
    pub target: u64,
}

/// A variable that refers to a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: Arc<str>,
    /// An address in the block.
    pub value: u64,
    /// Whether it is one of the runtime's own code: it holds only what no other variable leads to.
    pub is_own: bool,
}

/// The types of objects, by address: 8 bytes for each object.
#[derive(Clone, Debug, Default)]
pub struct ObjectTypes {
    /// Names of types, by number.
    names: Vec<String>,
    /// Numbers of types, by name.
    numbers: HashMap<String, u16>,
    /// Lists of [`typed_word`]s, each in address order once sorted.
    lists: Vec<Vec<u64>>,
}

/// Number of low bits of a word that hold the number of the type; the others hold the address.
const TYPE_BITS: u32 = 16;
/// Number of low bits of an address that are left out: objects are aligned to 8 bytes.
const ALIGNMENT_BITS: u32 = 3;
/// The number of all types beyond the maximum.
const OTHER_TYPES: u16 = u16::MAX;

/// An address with the number of a type. Of an address above 2^51, which no program has, only the
/// low bits are kept.
fn typed_word(address: u64, number: u16) -> u64 {
    address >> ALIGNMENT_BITS << TYPE_BITS | u64::from(number)
}

impl ObjectTypes {
    /// Returns the number of a type; those beyond the maximum share one.
    pub fn number(&mut self, name: &str) -> u16 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let Some(next) = u16::try_from(self.names.len()).ok().filter(|&next| next != OTHER_TYPES) else {
            return OTHER_TYPES;
        };
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), next);
        next
    }

    /// Adds an object. If memory is short, its type stays unknown.
    pub fn push(&mut self, address: u64, number: u16) {
        if self.lists.is_empty() {
            self.lists.push(Vec::new());
        }
        if let Some(list) = self.lists.last_mut()
            && list.try_reserve(1).is_ok()
        {
            list.push(typed_word(address, number));
        }
    }

    /// Gives each type the number that `renumbered` returns; without one, the types of its objects
    /// become unknown.
    pub fn renumber(&mut self, mut renumbered: impl FnMut(u16) -> Option<u16>) {
        for list in &mut self.lists {
            list.retain_mut(|object| match renumbered(*object as u16) {
                Some(number) => {
                    *object = *object >> TYPE_BITS << TYPE_BITS | u64::from(number);
                    true
                }
                None => false,
            });
        }
    }

    /// Adds the objects of `other`, whose types have the same numbers.
    pub fn append(&mut self, other: Self) {
        self.lists.extend(other.lists);
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(Vec::is_empty)
    }

    /// Sorts the objects: [`ObjectTypes::find`] needs that.
    pub fn sort(&mut self) {
        self.lists.iter_mut().for_each(|list| list.sort_unstable());
    }

    /// Returns the number of the type of the object at an address; `None` if no object is known
    /// there.
    pub fn find(&self, address: u64) -> Option<u16> {
        let lowest = typed_word(address, 0);
        self.lists.iter().find_map(|list| {
            let index = list.partition_point(|object| *object < lowest);
            let object = list.get(index).filter(|object| *object >> TYPE_BITS == lowest >> TYPE_BITS)?;
            Some(*object as u16)
        })
    }

    /// The name of a type.
    pub fn name(&self, number: u16) -> &str {
        self.names.get(usize::from(number)).map_or(facts::OTHER_TYPES, String::as_str)
    }
}

impl ReferenceHints {
    /// Adds what another worker found.
    pub fn add(&mut self, other: Self) {
        self.blocks.append(other.blocks);
        self.objects.extend(other.objects);
        self.object_row = self.object_row.or(other.object_row);
        self.gc_links.extend(other.gc_links);
        self.opaque_from.extend(other.opaque_from);
        self.weak_words.extend(other.weak_words);
        self.weak_words.sort_unstable();
        self.encoded_words.extend(other.encoded_words);
        self.encoded_words.sort_unstable();
        if let Some(theirs) = other.plain_targets {
            self.plain_targets.get_or_insert_default().extend(theirs);
        }
        self.stops.extend(other.stops);
        self.variables.extend(other.variables);
        self.release_units.extend(other.release_units);
    }
}

/// What a reader found.
#[derive(Default)]
pub struct Reading {
    /// The runtime and its own figures.
    pub facts: facts::Runtime,
    /// Rows and holders of the slots in the claims of this reading; the slots of [`Refinements`]
    /// are shared.
    pub palette: SlotTable,
    /// The rows of the other classes in those claims.
    pub rows: Option<&'static BlockRows>,
    /// Memory of the runtime itself; every byte is claimed. [`FoundRuntime::read`] must claim
    /// ranges that may be in an allocator's block: allocators' readers do not see those that
    /// [`Pending::finish`] adds.
    pub claims: Vec<RangeClaim>,
    /// Shared memory of the runtime itself, on rows of shared memory
    /// ([`crate::rows::RowKind::is_shared`]).
    pub shared_claims: Vec<RangeClaim>,
    /// All-zero resident pages of the claimed ranges, as runs.
    pub zero_runs: Vec<AddressRange>,
    /// Blocks that get their own row; those that no allocator holds in use are dropped.
    pub named_blocks: Vec<NamedBlock>,
    /// What releases memory.
    pub remedies: Vec<Remedy>,
    /// The request that makes the runtime release memory, or why it cannot be made; `None` if the
    /// runtime has no such request.
    pub notification: Option<Result<Notification, String>>,
    /// Bytes of target memory read.
    pub bytes_read: u64,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
    /// References between blocks, if requested ([`Context::keeps_blocks`]) and known.
    pub reference_hints: Option<ReferenceHints>,
    /// Types of the blocks in [`ReferenceHints::blocks`], if the reader knows them.
    pub object_types: ObjectTypes,
    /// Work left for when the target runs again and the allocators have been read.
    pub pending: Option<Box<dyn Pending>>,
}

/// Work left for when the target runs again.
pub trait Pending: Send {
    /// Does the work and adds the results to `reading`.
    fn finish(self: Box<Self>, reading: &mut Reading, context: &FinishContext<'_>);
}

/// A runtime was in the middle of a collection, in which its structures contradict each other: the
/// process has to be resumed, and the runtime read again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// The runtime, for a caveat if it stays busy.
    pub runtime: &'static str,
    /// Resident bytes that are not read.
    pub bytes: Option<u64>,
    /// Whether the runtime's own flag marks a collection as under way; otherwise its structures
    /// are inconsistent, for a moment or permanently.
    pub is_collecting: bool,
}

/// The refinements that the reader of one allocator matched.
#[derive(Clone, Debug)]
pub struct AllocatorMatches {
    /// The allocator's name.
    pub allocator: String,
    /// The matches.
    pub matches: Matches,
}

/// Input for the work left for when the target runs again.
pub struct FinishContext<'a> {
    /// Number of threads for the work.
    pub workers: usize,
    /// Type for which the path of a live object to a root is wanted.
    pub path_to: Option<&'a str>,
    /// The refinements that the allocators' readers matched.
    pub matched: &'a Matches,
    /// The same by allocator.
    pub by_allocator: &'a [AllocatorMatches],
    /// Called with the name of the work, the amount done, and the total.
    pub progress: &'a (dyn Fn(&str, u64, u64) + Sync),
}

/// The ranges that the readings claim.
pub fn claimed_ranges(readings: &[Reading]) -> RangeSet {
    readings.iter().flat_map(|reading| &reading.claims).map(RangeClaim::range).collect()
}

impl Reading {
    /// Does the work left for when the target runs again, and drops named blocks that no allocator
    /// holds in use.
    pub fn finish(&mut self, context: &FinishContext<'_>) {
        if let Some(pending) = self.pending.take() {
            pending.finish(self, context);
        }
        if !self.named_blocks.is_empty() {
            let large: HashSet<u64> =
                context.matched.large_blocks.iter().map(|block| block.pointer).collect();
            self.named_blocks.retain(|named| large.contains(&named.pointer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_found_by_address() {
        let mut types = ObjectTypes::default();
        let [map, text] = ["Map", "(string)"].map(|name| types.number(name));
        assert_eq!(types.number("Map"), map);
        types.push(0x7fff_0000_1008, text);
        types.push(0x1000, map);
        types.sort();
        assert_eq!([0x1000, 0x7fff_0000_1008].map(|address| types.find(address)), [Some(map), Some(text)]);
        assert_eq!([0xff8, 0x1008, u64::MAX].map(|address| types.find(address)), [None; 3]);
        assert_eq!(types.name(text), "(string)");
    }

    #[test]
    fn objects_of_another_list_are_renumbered() {
        let (mut all, mut other) = (ObjectTypes::default(), ObjectTypes::default());
        let [int, text] = ["int", "str"].map(|name| all.number(name));
        all.push(0x1000, int);
        other.push(0x2000, 0);
        other.push(0x7fff_ffff_fff8, 1);
        other.push(0x3000, 7);
        other.renumber(|number| [text, int].get(usize::from(number)).copied());
        all.append(other);
        all.sort();
        let found = [0x1000, 0x2000, 0x3000, 0x7fff_ffff_fff8].map(|address| all.find(address));
        assert_eq!(found, [Some(int), Some(text), None, Some(int)]);
    }

    #[test]
    fn types_beyond_the_limit_share_one() {
        let mut types = ObjectTypes::default();
        let numbers: Vec<u16> = (0..70_000).map(|number| types.number(&format!("T{number}"))).collect();
        assert_eq!(
            (numbers[0], numbers[65_534], numbers[65_535], numbers[69_999]),
            (0, 65_534, 65_535, 65_535)
        );
        assert_eq!(types.name(u16::MAX), "objects of other types");
    }
}
