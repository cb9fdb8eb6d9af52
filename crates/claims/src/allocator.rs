//! Readers of allocators: they classify each byte of an allocator's ranges.
//!
//! All readers have the same shape: [`Reader::find`] searches the mapped files before the target is
//! stopped; [`FoundAllocator::read`] gets a [`Context`] of one frozen state and returns a
//! [`Reading`]. A reader reads memory only through the context, claims address ranges, and adds
//! nothing up across them; the ledger does that.

use std::ops::Range;
use std::time::{Duration, Instant};

use strandline_process::elf::Object;
use strandline_process::map::AddressSpace;
use strandline_process::memory::Memory;
use strandline_process::procfs::Process;
use strandline_process::range::{self, AddressRange, RangeSet};

use crate::accumulator::{Accumulator, Class, OutOfOrder, Sums};
use crate::caveat::Caveat;
pub use crate::class::MappedBlock;
use crate::facts;
use crate::finding::{Finding, LedgerView};
use crate::palette::BlockRows;
use crate::range::RangePages;
use crate::refinements::{Matches, Refinements};
use crate::remedy::Spec;
use crate::words::FindPageRuns;

/// What the blocks of an allocator are in. Finer layers are read first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// In blocks of another allocator or in mappings, such as pools over malloc.
    Blocks,
    /// In mappings that its own structures list.
    #[default]
    Mappings,
    /// In mappings, and some are recognised by their content: read last, with what other readers
    /// have claimed ([`Context::claimed_ranges`]).
    RestOfMappings,
}

/// A reader of an allocator: its functions. [`Reader::new`] has those that most readers lack.
pub struct Reader {
    /// What its blocks are in.
    pub layer: Layer,
    /// Searches for the allocator in the files mapped by a process, which may be running. `None` if
    /// there is nothing to read.
    pub find: fn(&Process, &AddressSpace) -> Option<Box<dyn FoundAllocator>>,
    /// Returns what the reader finds in a whole ledger, for the verdict: only what the verdict on
    /// every allocator's free bytes does not say.
    pub findings: fn(&LedgerView<'_>) -> Vec<Finding>,
    /// Returns remedies that depend on the whole ledger; the others are part of the [`Reading`].
    pub remedies: fn(&LedgerView<'_>) -> Vec<facts::Remedy>,
}

impl Reader {
    /// A reader of an allocator whose own structures list its mappings.
    pub const fn new(find: fn(&Process, &AddressSpace) -> Option<Box<dyn FoundAllocator>>) -> Self {
        Self { layer: Layer::Mappings, find, findings: |_| Vec::new(), remedies: |_| Vec::new() }
    }
}

/// An allocator found in a process, not read yet.
pub trait FoundAllocator: Send + Sync {
    /// Reads the allocator.
    ///
    /// # Errors
    /// [`OutOfOrder`] if a byte would be claimed twice, which is a bug of the reader.
    fn read(&self, context: &Context<'_>) -> Result<Readings, OutOfOrder>;

    /// Whether reading takes longer than taking a snapshot, which then stops the process for less
    /// time; false if the reader does not read memory for each block, or where [`Reader::find`]
    /// does not know whether the allocator is in use.
    fn takes_long(&self) -> bool {
        true
    }

    /// Whether the reader uses the threads' pointers ([`Context::fs_bases`]): most find caches of
    /// threads by them.
    fn needs_thread_pointers(&self) -> bool {
        true
    }

    /// Adds to a reading what needs the process or its files, such as the remedies, once the target
    /// runs again.
    fn finish(&self, _process: &Process, _space: &AddressSpace, _reading: &mut Reading) {}
}

/// One reading for each instance of the allocator, and caveats that belong to no instance.
pub type Readings = (Vec<Reading>, Vec<Caveat>);

/// Everything a reader may read, from one frozen state.
pub struct Context<'a> {
    /// The target's memory, restricted to resident pages: reading any other page would bring it in.
    pub memory: &'a dyn Memory,
    /// All of the target's memory, for the few pages without which nothing can be read and which
    /// may be swapped out. Check [`Context::resident`] first.
    pub whole_memory: &'a dyn Memory,
    /// The target's mappings.
    pub space: &'a AddressSpace,
    /// Runs of resident anonymous pages in a range, cut to it.
    pub resident: FindPageRuns<'a>,
    /// FS base of each thread for which it is known.
    pub fs_bases: &'a [u64],
    /// FS base of the main thread, whose id is that of the process; `None` if that thread ended or
    /// its FS base is unknown.
    pub main_fs_base: Option<u64>,
    /// Bounds of thread stacks, in address order: the kernel may list a stack and a heap as one
    /// mapping.
    pub stacks: &'a [AddressRange],
    /// Ranges of mappings that finer readers have claimed, in no order.
    pub claimed_ranges: &'a [AddressRange],
    /// Start of the data segment that brk grows.
    pub start_brk: Option<u64>,
    /// The mappings that are locked in memory, in address order.
    pub locked_mappings: &'a [AddressRange],
    /// The mappings with swapped-out pages, in address order.
    pub swapped_mappings: &'a [AddressRange],
    /// Runs of swapped-out pages in a range, cut to it; `None` if only their mappings are known.
    pub swapped: Option<FindPageRuns<'a>>,
    /// The mappings on reserved huge pages (hugetlb), in address order: they are no RSS and are not
    /// read.
    pub reserved_mappings: &'a [AddressRange],
    /// Claims of finer readers on blocks in use.
    pub refinements: Option<&'a Refinements>,
    /// When to stop reading: the time for which the target may be stopped is over then.
    pub deadline: Instant,
    /// Whether to list all blocks in use ([`Matches::blocks`]).
    pub keeps_blocks: bool,
    /// Whether to check also the structures that only a trim call follows, because a call is
    /// planned.
    pub checks_free_lists: bool,
    /// Size of the cells of the page map; `None` if no page map is wanted.
    pub cell_bytes: Option<u64>,
    /// Number of threads for reading.
    pub workers: usize,
    /// Called with the number of bytes of address space walked.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Context<'a> {
    /// A context for tests, without threads and with nothing locked or swapped out, and with ten
    /// minutes to read; a test sets the fields that matter to it.
    pub fn of_image(
        memory: &'a dyn Memory,
        space: &'a AddressSpace,
        resident: &'a (dyn Fn(AddressRange) -> Vec<AddressRange> + Sync),
    ) -> Self {
        static NO_PROGRESS: fn(u64) = |_| ();
        Self {
            memory,
            whole_memory: memory,
            space,
            resident,
            fs_bases: &[],
            main_fs_base: None,
            stacks: &[],
            claimed_ranges: &[],
            start_brk: None,
            locked_mappings: &[],
            swapped_mappings: &[],
            swapped: None,
            reserved_mappings: &[],
            refinements: None,
            deadline: Instant::now() + Duration::from_secs(600),
            keeps_blocks: true,
            checks_free_lists: false,
            cell_bytes: None,
            workers: 1,
            progress: &NO_PROGRESS,
        }
    }
}

impl Context<'_> {
    /// Whether the time for which the target may be stopped is over.
    pub fn deadline_passed(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Runs of resident anonymous pages in a range, cut to it.
    pub fn resident_runs(&self, range: impl Into<AddressRange>) -> Vec<AddressRange> {
        (self.resident)(range.into())
    }

    /// Bytes of resident anonymous pages in a range.
    pub fn resident_bytes(&self, range: impl Into<AddressRange>) -> u64 {
        self.resident_runs(range).into_iter().map(AddressRange::len).sum()
    }

    /// The swapped-out parts of a range; without page tables, all parts that are missing from
    /// mappings with swapped-out pages.
    pub fn swapped_parts(&self, range: impl Into<AddressRange>) -> RangeSet {
        let range = range.into();
        let of_mappings = range::overlapping(self.swapped_mappings, range);
        let parts = of_mappings.iter().map(|mapping| mapping.intersection(range));
        match self.swapped {
            Some(swapped) => parts.flat_map(swapped).collect(),
            None => parts.collect::<RangeSet>().without(&self.resident_runs(range).into_iter().collect()),
        }
    }

    /// The pages of a claimed range, to be counted by an [`crate::accumulator::Accumulator`].
    pub fn pages(&self, range: impl Into<AddressRange>) -> RangePages {
        RangePages::for_claim(range.into(), self.resident, self.space, self.cell_bytes)
    }

    /// Claims a range whose bytes all have one class, such as a structure of the allocator.
    pub fn claim_whole(&self, range: impl Into<AddressRange>, class: Class) -> RangeClaim {
        let range = range.into();
        RangeClaim::whole(&self.pages(range), range, class)
    }

    /// Whether a page of the range is locked in memory: the kernel keeps locked pages whatever call
    /// is made.
    pub fn is_locked(&self, range: impl Into<AddressRange>) -> bool {
        !range::overlapping(self.locked_mappings, range).is_empty()
    }
}

/// A contiguous address range that an allocator owns, counted.
#[derive(Clone, Debug)]
pub struct RangeClaim {
    /// First byte.
    pub start: u64,
    /// First byte past the end.
    pub end: u64,
    /// Resident bytes by what they hold.
    pub sums: Sums,
}

impl RangeClaim {
    /// Claims a range whose bytes all have one class.
    pub fn whole(pages: &RangePages, range: impl Into<AddressRange>, class: Class) -> Self {
        let AddressRange { start, end } = range.into();
        let mut accumulator = Accumulator::new(start, pages);
        accumulator.claim_to(end, class);
        Self { start, end, sums: accumulator.cut().finish(pages) }
    }

    /// The range.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.start, self.end)
    }
}

/// What a reader found in one instance of an allocator.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The allocator, its arenas and its own figures.
    pub allocator: facts::Allocator,
    /// Ranges whose every byte is claimed.
    pub claims: Vec<RangeClaim>,
    /// What its blocks are in, from [`Reader::layer`].
    pub layer: Layer,
    /// Whether some structure was inconsistent as if caught while it changed: a moment later it may
    /// be consistent.
    pub is_inconsistent: bool,
    /// What releases memory, with that of the [`CallPlan`] ([`CallPlan::remedy`]).
    pub remedies: Vec<facts::Remedy>,
    /// The rows of the claims' classes.
    pub rows: Option<&'static BlockRows>,
    /// Blocks with their own mappings.
    pub mapped_blocks: Vec<MappedBlock>,
    /// By how much the payload of a block lies lower in the claimed ranges than the pointer that
    /// was returned for it: the walk of glibc counts from the start of the chunk.
    pub payload_offset_bytes: u64,
    /// Addresses of words outside the claims that only look like references: the keys by which the
    /// allocator searches, such as the start of the range that a part of its page map covers.
    pub key_addresses: Vec<u64>,
    /// Blocks of the claimed ranges that finer readers refined.
    pub refined: Matches,
    /// The call that makes the allocator release memory.
    pub call: Option<CallPlan>,
    /// All-zero resident pages of the claimed ranges, as runs.
    pub zero_runs: Vec<AddressRange>,
    /// Bytes of target memory read.
    pub bytes_read: u64,
    /// What could not be read.
    pub caveats: Vec<Caveat>,
}

impl Reading {
    /// The claimed ranges.
    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        self.claims.iter().map(RangeClaim::range)
    }

    /// Bytes that the allocator's own call releases, over all claims.
    pub fn releasable_bytes(&self) -> u64 {
        self.claims.iter().map(|claim| claim.sums.releasable_bytes).sum()
    }

    /// The part of [`Reading::releasable_bytes`] that is on the row [`BlockRows::releasable`]; the
    /// rest are pages of zeros.
    pub fn releasable_row_bytes(&self) -> u64 {
        self.claims.iter().map(|claim| claim.sums.resident.releasable).sum()
    }
}

/// Reads the instances one after another; `read` gets the ranges already claimed.
pub fn read_each<T>(
    context: &Context<'_>,
    instances: Vec<T>,
    read: impl Fn(&T, &RangeSet) -> Reading,
) -> Vec<Reading> {
    let mut taken: RangeSet = context.claimed_ranges.iter().copied().collect();
    let mut readings = Vec::new();
    for instance in &instances {
        let reading = read(instance, &taken);
        taken.add(reading.ranges());
        readings.push(reading);
    }
    readings
}

/// A call that makes an allocator release its free pages to the kernel, and how much that is
/// predicted to be. Allocators have their own words for it: trim, purge, release, collect.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// The remedy's entry in [`crate::reader::ReaderInfo::remedies`]: `malloc_trim`,
    /// `jemalloc_purge`.
    pub spec: &'static Spec,
    /// The function to call.
    pub function: Function,
    /// The object with the allocator's code: an address within one of its mappings.
    pub object: u64,
    /// The locks that the call takes, if they are words that are 0 when free.
    pub locks: Vec<u64>,
    /// The ranges the call works on.
    pub heaps: Vec<AddressRange>,
    /// FS bases of the threads that the allocator already knows: one of them must make the call.
    /// Empty for glibc, where any thread can, and where none is known.
    pub fs_bases: Vec<u64>,
    /// Whether the call releases everything that is resident in `heaps`.
    pub releases_all: bool,
    /// Bytes that the call releases.
    pub predicted_bytes: u64,
    /// When the call takes effect, in milliseconds of CLOCK_MONOTONIC
    /// ([`strandline_process::host::monotonic_milliseconds`]); 0 for any time. An earlier call does
    /// not release what the program freed last.
    pub due_milliseconds: u64,
    /// For the C library's own malloc: finds the ranges of its code in the library. `None` for
    /// others.
    pub libc_code: Option<CodeRanges>,
    /// Why a call is not safe. Complete only if [`Context::checks_free_lists`] was set.
    pub doubt: Option<CallHazard>,
}

impl CallPlan {
    /// The remedy, with this prediction, for [`Reading::remedies`]: what `strandline reclaim` does
    /// in process `pid`.
    pub fn remedy(&self, pid: i32, cost: &str) -> facts::Remedy {
        facts::Remedy::call(self.spec.id, Some(self.predicted_bytes), pid, cost)
    }
}

/// Finds the ranges of an allocator's code in an object; `None` if they are not known.
pub type CodeRanges = fn(&Object) -> Option<Vec<Range<u64>>>;

/// A function of an allocator that releases its free pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name, without a prefix that the build may add.
    pub name: &'static str,
    /// Another function in code that every build of the allocator has under the same prefix, such
    /// as its malloc: a program's own function of the same name has none, and is not called. `None`
    /// if no program names a function of its own so: then it is called by its bare name only.
    pub sibling: Option<&'static str>,
    /// The first argument of the call.
    pub argument: Argument,
    /// Bytes of stack that it may use.
    pub stack_bytes: u64,
    /// How the names of the allocator's own functions begin in a program that links it statically,
    /// after the prefix that the build may add.
    pub own_prefixes: &'static [&'static str],
}

/// The first argument of a function; all others are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A number.
    Number(u64),
    /// The address of a string.
    Text(&'static str),
}

impl Argument {
    /// For a function without one.
    pub const NONE: Self = Self::Number(0);
}

/// A place in a heap that makes calls into its allocator unsafe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHazard {
    /// The first such place.
    pub at: u64,
    /// What is wrong there.
    pub cause: HazardCause,
}

/// Why calls into an allocator are unsafe because of a place in its heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HazardCause {
    /// The allocator's chain of blocks is inconsistent: damaged, or caught while it changed.
    Broken,
    /// Parts are swapped out, and reading would bring them in.
    Swapped,
    /// Parts are on reserved huge pages (hugetlb), which are no RSS and not read.
    Reserved,
    /// The time for which a target may be stopped was over.
    TooSlow,
    /// strandline had too little memory to note all that a check needs.
    LittleMemory,
    /// The allocator points to memory outside the ranges found to be its own, and it has more than
    /// was found.
    Outside,
}
