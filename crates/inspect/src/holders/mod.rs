//! Finds the roots that hold the live blocks of a process's heaps, the unreachable blocks, and the
//! blocks that keep otherwise free pages.
//!
//! Blocks are those that allocators' readers hold in use. Every word in a block that is an address
//! within a block is a reference, unless a runtime's reader knows better. So is every such word
//! outside of blocks (`roots`): in registers, stacks, static data, memory of runtimes, and
//! unexplained memory. If a runtime's reader supports it, objects in the runtime's own memory are
//! blocks too, and its variables are named roots (`runtimes`). `strandline-holders` computes what
//! each root reaches; `types` determines the types of blocks, `pins` the pages that they keep.

pub mod facts;
mod frames;
pub mod growth;
pub mod leaked;
mod names;
mod pins;
mod roots;
mod runtimes;
mod shared;
mod symbols;
mod tree;
mod types;
mod vtables;

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use strandline_claims::caveat::Caveat;
use strandline_claims::units::thousands;
use strandline_holders::{
    Builder, DominatorTree, ExactBlocks, KnownBlocks, Limits, NO_ROOT, Outcome, Outline, Reachability,
    References, Refused,
};
use strandline_process::memory::Memory;
use strandline_process::pages::Residency;
use strandline_process::procfs::Process;
use strandline_process::target::kernel_pointers::{self, KernelPointers};
use strandline_process::work;
use strandline_sys::own_memory;

use self::facts::{Holders, Keeper, Root, Sum, Unreachable};
use self::pins::{Pins, RootAndType};
use self::roots::AllRoots;
use self::runtimes::{RuntimeBlocks, WordCorrections};
use self::tree::Tree;
use self::types::Types;
use self::vtables::VtableCollector;
use crate::account::{Account, recognised};
use crate::capture::{FrozenState, Options};
use crate::ledger::rows;
use crate::readers;

/// Maximum number of roots, and of types, that are listed; the others are counted.
const MAX_LISTED: usize = 1000;
/// Maximum number of listed pairs of a type and a root whose blocks keep pages.
const MAX_KEEPERS: usize = 20;
/// References between blocks may take as many bytes as the live blocks have, divided by this.
const EDGES_DIVISOR: u64 = 4;
/// They may always take this many bytes.
const MIN_EDGES_BYTES: u64 = 256 << 20;
/// Code of the caveat for a runtime that has its own memory and is not read.
pub const UNREAD_RUNTIME: &str = "holders_unread_runtime";
/// Maximum time for reading references and computing holders.
const MAX_DURATION: Duration = Duration::from_secs(120);

/// Completes `holders` from the account: adds a caveat if parts of heaps were not read, gives
/// unreachable bytes their own rows there, and copies what both documents have.
pub(crate) fn complete(holders: &mut Holders, process: &Process, account: &mut Account) {
    let unread_rows = account.rows.iter().filter(|row| row.id.ends_with(".unread"));
    let unread_bytes: u64 = unread_rows.map(|row| row.bytes).sum();
    if unread_bytes > 0 {
        let text = "parts of heaps were inconsistent, or not read in time: blocks that only they reference are unknown";
        holders.caveats.push(Caveat::new("holders_incomplete", "heap", Some(unread_bytes), text));
        holders.remove_unreachable();
    }
    let unread_runtimes = recognised::unread_runtimes(&account.recognised_allocators, &account.runtimes);
    let has_unreachable = holders.unreachable.as_ref().is_some_and(|unreachable| unreachable.blocks > 0);
    for runtime in unread_runtimes.filter(|_| has_unreachable) {
        let text = "its memory is not read: blocks that it refers to in a form of its own, such as tagged numbers, count as unreachable";
        holders.caveats.push(Caveat::new(UNREAD_RUNTIME, &runtime.name, None, text));
    }
    leaked::split_rows(&mut account.rows, &holders.leaked);
    holders.executable = process.executable();
    holders.command = process.command_line().unwrap_or_default();
    holders.rss_bytes = Some(account.kernel.rss_bytes);
    holders.unattributed_bytes = Some(rows::totals(&account.rows).unattributed);
    holders.cost = account.cost();
}

/// The target's memory; missing pages and words that are not references read as zeros, and words
/// with another form of an address as the address.
struct ZeroFilled<'a> {
    memory: &'a dyn Memory,
    residency: &'a Residency,
    /// The words in runtimes' objects that are not references.
    word_corrections: WordCorrections<'a>,
}

impl Memory for ZeroFilled<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        buffer.fill(0);
        let end = address.saturating_add(buffer.len() as u64);
        for run in self.residency.runs_in(address..end) {
            let part = (run.start - address) as usize..(run.end - address) as usize;
            let read_bytes = buffer.get_mut(part).map_or(0, |part| self.memory.read_some(run.start, part));
            if (read_bytes as u64) < run.bytes() {
                let filled_bytes = (run.start - address) as usize + read_bytes;
                self.word_corrections.apply(address, buffer.get_mut(..filled_bytes).unwrap_or_default());
                return filled_bytes;
            }
        }
        self.word_corrections.apply(address, buffer);
        buffer.len()
    }
}

/// Finds the holders of the blocks in `frozen`, and removes the blocks from it.
pub(crate) fn find(process: &Process, frozen: &mut FrozenState, options: &Options<'_>) -> Holders {
    let mut builder = Builder::default();
    let mut block_sizes = Vec::new();
    for reading in &mut frozen.allocator_readings {
        if let Some(blocks) = reading.refined.blocks.take() {
            let about = readers::allocator(&reading.allocator.name).filter(|_| !blocks.is_empty());
            let clause = about.map(|about| about.block_sizes).filter(|clause| !block_sizes.contains(clause));
            block_sizes.extend(clause);
            builder.append(blocks);
        }
    }
    for hints in frozen.runtime_readings.iter_mut().filter_map(|runtime| runtime.reference_hints.as_mut()) {
        builder.append(std::mem::take(&mut hints.blocks));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut holders = Holders {
        pid: process.pid(),
        start_ticks: process.stat().ok().map(|stat| stat.start_ticks),
        taken_unix_seconds: now.map_or(0.0, |time| time.as_secs_f64()),
        block_sizes,
        ..Holders::default()
    };
    if let Err(refused) = fill(&mut holders, builder, process, frozen, options) {
        let text = format!("the holders of memory are not known: {refused}");
        let place = format!("process {}", process.pid());
        holders.caveats.push(Caveat::new("holders_refused", place, None, text));
    }
    holders
}

/// Follows references, and fills in the sums and lists that result.
fn fill(
    holders: &mut Holders,
    builder: Builder,
    process: &Process,
    frozen: &FrozenState,
    options: &Options<'_>,
) -> std::result::Result<(), Refused> {
    // Soon after the memory was captured: the process runs.
    let pointers = kernel_pointers::find(process)
        .unwrap_or_else(|_| KernelPointers { may_lack_others: true, ..KernelPointers::default() });
    let blocks = builder.finish()?;
    // What worker threads freed would otherwise stay in their arenas of malloc.
    own_memory::trim_heap();
    let word_corrections = WordCorrections::new(&frozen.runtime_readings, &blocks);
    let memory = ZeroFilled { memory: frozen.own_memory(), residency: &frozen.residency, word_corrections };
    let deadline = Instant::now() + MAX_DURATION;
    // A snapshot can be read only until it ends; a process that was stopped runs by now.
    let snapshot_ends = frozen.reading_ends.filter(|_| frozen.snapshot.is_some());
    let read_deadline = snapshot_ends.map_or(deadline, |until| until.min(deadline));
    let max_edges_bytes = (blocks.total_bytes() / EDGES_DIVISOR).max(MIN_EDGES_BYTES);
    let limits = Limits { max_edges_bytes, deadline: read_deadline, workers: options.reading_threads() };
    let progress = |reading: strandline_holders::Progress| {
        options.report("following references", reading.done_bytes, reading.total_bytes);
    };
    holders.live = Sum { bytes: blocks.total_bytes(), blocks: u64::from(blocks.len()) };
    let vtables = VtableCollector::new(&frozen.address_space, frozen.own_memory(), blocks.len())?;
    let exact = runtimes::exact_blocks(&frozen.runtime_readings, &blocks)?;
    let known = KnownBlocks { without_references: None, exact: exact.as_ref() };
    let references = References::read(&memory, &blocks, known, Some(&vtables), &limits, &progress)?;
    let inner_targets = exact.map(ExactBlocks::inner_targets);
    let AllRoots { found: found_roots, roots, unread_bytes } =
        roots::find(process, frozen, &blocks, inner_targets, &pointers, read_deadline)?;
    let mut caveats = incompleteness_caveats(&references.outcome(), unread_bytes, frozen);
    if pointers.may_lack_others {
        let text = "the pointers that the program has given to epoll or to timers could not all be read: blocks that only they \
                    reference are unknown";
        caveats.push(Caveat::new("holders_incomplete", "kernel", None, text));
    }
    let is_complete = caveats.is_empty();
    holders.caveats.extend(caveats);
    let dropped = blocks.dropped();
    if dropped.overlapping + dropped.misplaced > 0 {
        let text = "blocks that overlap others, or are outside the heap's memory, are left out";
        holders.caveats.push(Caveat::new("holders_overlap", "heap", None, text));
    }
    own_memory::trim_heap();
    let graph = Reachability::new(blocks, references, roots, deadline)?;
    let held = graph.held(deadline)?;
    let runtime_blocks = RuntimeBlocks::new(&frozen.runtime_readings);
    let block_types = vtables.finish(process, frozen);
    if block_types.is_limited {
        let text = "there are more words to check for types than strandline checks: blocks of further types are listed by size";
        holders.caveats.push(Caveat::new("holders_types_limited", "heap", None, text));
    }
    let types = Types::new(&held, &block_types, &frozen.refinements, &runtime_blocks)?;
    fill_lists(holders, &held, &found_roots, &types, &runtime_blocks, frozen)?;
    let has_heap = !frozen.allocator_readings.is_empty() || holders.live.blocks > 0;
    if !is_complete || !has_heap {
        holders.remove_unreachable();
    }
    Ok(())
}

/// Returns the reasons for which unreachable blocks are unknown.
fn incompleteness_caveats(outcome: &Outcome, unread_bytes: u64, frozen: &FrozenState) -> Vec<Caveat> {
    let mut caveats = Vec::new();
    let mut add_caveat = |code: &str, bytes: Option<u64>, text: &str| {
        caveats.push(Caveat::new(code, "heap", bytes, text));
    };
    let all_unread_bytes = outcome.unreadable_bytes + outcome.skipped_bytes + unread_bytes;
    if all_unread_bytes > 0 || outcome.hit_reference_limit || outcome.timed_out {
        let text = "not all blocks and roots could be read, or not in time: blocks that only they reference are unknown";
        // With a limit reached, how much was not followed is unknown.
        add_caveat("holders_incomplete", Some(all_unread_bytes).filter(|&bytes| bytes > 0), text);
    }
    let swap_bytes: u64 = frozen.smaps_entries.iter().map(|entry| entry.counts.swap_bytes).sum();
    if swap_bytes > 0 {
        let text = "pages that are swapped out were not read: blocks that only they reference are unknown";
        add_caveat("holders_swapped", Some(swap_bytes), text);
    }
    if frozen.snapshot.is_none() {
        let text = "no snapshot could be taken: the process was stopped while strandline read its allocators, and ran while it read \
                    references between blocks; what the process changed meanwhile is not known";
        add_caveat("holders_in_motion", None, text);
    }
    caveats
}

/// Fills in the lists of roots, types and keepers, and the sums.
fn fill_lists(
    holders: &mut Holders,
    held: &DominatorTree,
    found_roots: &[roots::FoundRoot],
    types: &Types,
    runtime_blocks: &RuntimeBlocks<'_>,
    frozen: &FrozenState,
) -> std::result::Result<(), Refused> {
    let roots_of_blocks = held.sole_roots()?;
    let outline = || held.outline(types.all());
    let (outline, pins) = work::in_parallel(outline, || {
        holders.leaked = leaked::resident(held, &roots_of_blocks, frozen);
        Pins::count(held, &roots_of_blocks, types, runtime_blocks, &frozen.residency)
    });
    let outline = outline?;
    let tree = Tree::new(&outline, types, holders.live.bytes);
    let unreachable = held.unreachable();
    let definite = Sum::from(unreachable.definite);
    holders.unreachable = Some(Unreachable {
        bytes: definite.bytes + unreachable.indirect.bytes,
        blocks: definite.blocks + u64::from(unreachable.indirect.blocks),
        definite,
        resident_bytes: frozen
            .refinements
            .is_empty()
            .then(|| holders.leaked.iter().map(|leaked| leaked.bytes).sum()),
        pins_bytes: pins.unreachable_bytes,
        holds: tree.below(Outline::UNREACHABLE),
    });
    shared::add(holders, held, found_roots, types);
    holders.shared_holds = tree.below(Outline::SEVERAL);
    holders.root_count = found_roots.len() as u64;
    let mut root_numbers: Vec<u32> =
        (0..held.root_count()).filter(|&root| held.retained_by_root(root).blocks > 0).collect();
    let name = |number: &u32| found_roots.get(*number as usize).map(|root| &root.name);
    let bytes = |number: &u32| held.retained_by_root(*number).bytes;
    root_numbers.sort_by(|a, b| bytes(b).cmp(&bytes(a)).then_with(|| name(a).cmp(&name(b))));
    holders.keepers = keepers(&pins, types, &root_numbers);
    if pins.other_pairs_bytes > 0 {
        let text = format!(
            "blocks of more than {} pairs of a root and a type keep pages: further pairs are not among those that keep the most",
            thousands(pins::MAX_PAIRS as u64)
        );
        holders.caveats.push(Caveat::new("holders_pairs", "heap", Some(pins.other_pairs_bytes), text));
    }
    list_roots(holders, held, found_roots, &pins, &tree, root_numbers);
    let is_unreachable = |block: u32| roots_of_blocks.get(block as usize) == Some(&NO_ROOT);
    holders.types = types.listed(held, &is_unreachable, &pins);
    holders.type_count = holders.types.len() as u64;
    holders.types.truncate(MAX_LISTED);
    Ok(())
}

/// Lists the first of the roots with these `numbers`, and adds up the others.
fn list_roots(
    holders: &mut Holders,
    held: &DominatorTree,
    found_roots: &[roots::FoundRoot],
    pins: &Pins,
    tree: &Tree<'_>,
    numbers: Vec<u32>,
) {
    for number in numbers {
        let (Some(root), retained) = (found_roots.get(number as usize), held.retained_by_root(number)) else {
            continue;
        };
        if holders.roots.len() >= MAX_LISTED {
            holders.other_roots.bytes += retained.bytes;
            holders.other_roots.blocks += u64::from(retained.blocks);
            continue;
        }
        holders.roots.push(Root {
            kind: root.kind,
            name: root.name.clone(),
            module: root.module.clone(),
            thread: root.thread.clone(),
            retained_bytes: retained.bytes,
            retained_blocks: u64::from(retained.blocks),
            pins_bytes: pins.bytes_by_root.get(number as usize).copied().unwrap_or(0),
            holds: tree.below(Outline::root_node(number)),
        });
    }
}

/// Returns the blocks that pin the most memory. `numbers` are the roots in the order in which they
/// are listed.
fn keepers(pins: &Pins, types: &Types, numbers: &[u32]) -> Vec<Keeper> {
    let mut pinned: Vec<_> =
        pins.bytes_by_root_and_type.iter().map(|(&pair, &bytes)| (bytes, pair)).collect();
    pinned.sort_unstable_by(|a, b| b.cmp(a));
    let listed = numbers.iter().take(MAX_LISTED).enumerate();
    let positions: HashMap<u32, usize> = listed.map(|(position, &number)| (number, position)).collect();
    let keeper = |(pins_bytes, RootAndType { root, kind })| Keeper {
        name: types.name(kind).to_owned(),
        root: positions.get(&root).copied(),
        unreachable: root == NO_ROOT,
        pins_bytes,
    };
    pinned.into_iter().take(MAX_KEEPERS).map(keeper).collect()
}

/// Returns what is counted for `key`; `None` if `max_keys` other keys are counted already.
fn counted<K: Eq + Hash, V: Default>(counts: &mut HashMap<K, V>, key: K, max_keys: usize) -> Option<&mut V> {
    if counts.len() >= max_keys && !counts.contains_key(&key) {
        return None;
    }
    Some(counts.entry(key).or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_beyond_the_maximum_are_not_counted() {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for (key, is_counted) in [("a", true), ("b", true), ("c", false), ("a", true)] {
            let count = counted(&mut counts, key, 2);
            assert_eq!(count.is_some(), is_counted, "{key}");
            if let Some(count) = count {
                *count += 1;
            }
        }
        assert_eq!(counts, HashMap::from([("a", 2), ("b", 1)]));
    }
}
