//! The inputs of the ledger.

use strandline_claims::allocator::Reading;
use strandline_claims::refinements::Refinements;
use strandline_claims::runtime;
use strandline_process::map::Mapping;
use strandline_process::pages::Residency;
use strandline_process::range::AddressRange;
use strandline_process::smaps::SmapsEntry;
use strandline_process::stacks::Stack;

use super::page_map;

/// Everything that is known when the ledger is made.
pub struct Inputs<'a> {
    /// The kernel's view of each mapping.
    pub smaps_entries: &'a [SmapsEntry],
    /// The resident pages.
    pub residency: &'a Residency,
    /// What allocators claim.
    pub allocator_readings: &'a [Reading],
    /// What language runtimes claim.
    pub runtime_readings: &'a [runtime::Reading],
    /// Finer claims on allocators' blocks.
    pub refinements: &'a Refinements,
    /// Thread stacks, in address order.
    pub stacks: &'a [Stack],
    /// The bss of programs, in address order.
    pub bss: &'a [AddressRange],
    /// All-zero resident pages of unclaimed private anonymous memory: runs, in address order.
    pub zero_runs: &'a [AddressRange],
    /// The plan of the page map, if one is wanted.
    pub page_map: Option<&'a page_map::Plan>,
    /// Whether a mapping's file pages are shared memory.
    pub is_shared_memory: &'a dyn Fn(&Mapping) -> bool,
}
