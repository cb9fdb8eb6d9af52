//! Builds the explanation from what was read.

use std::collections::BTreeMap;
use std::time::Instant;

use super::frozen::Frozen;
use crate::facts::{
    Allocator, Cost, Explanation, Kernel, PssParts, Remedy, RemedyKind, Row, Runtime, Target, TargetKind,
};
use crate::holders::{self, facts::Holders};
use crate::ledger::assemble::Ledger;
use crate::ledger::rows;
use crate::recognise;
use crate::remedy::{purge, zero_pages};
use crate::verdict::remedies::Means;
use crate::verdict::{self, Judged};
use strandline_claims::allocator::CallPlan;
use strandline_claims::caveat::Caveat;
use strandline_claims::finding::LedgerView;
use strandline_claims::rows::ANONYMOUS;
use strandline_claims::runtime;
use strandline_claims::units::bytes;
use strandline_process::procfs::{Process, Status};
use strandline_process::smaps::{Counts, SmapsEntry};

/// Leaks above RSS divided by this are mentioned in the verdict.
const MIN_LEAKED_PART: u64 = 20;

/// Adds to caveats about damaged structures that part of the process was swapped out and not read.
fn say_swapped(swap_bytes: u64, caveats: &mut [Caveat]) {
    if swap_bytes == 0 {
        return;
    }
    let more = format!(
        "; {} of the process are swapped out, which were not read and may be all that is wrong",
        bytes(swap_bytes)
    );
    let is_doubt =
        |caveat: &&mut Caveat| caveat.code.ends_with("_damaged") || caveat.code.ends_with("_differ");
    caveats.iter_mut().filter(is_doubt).for_each(|caveat| caveat.text.push_str(&more));
}

/// Removes the predictions of calls that `reclaim` would always refuse, and gives the reason.
fn refuse_calls(process: &Process, frozen: &mut Frozen) {
    for reading in &mut frozen.readings {
        let is_checked = |plan: &&CallPlan| plan.predicted_bytes > 0 && plan.libc_code.is_none();
        let Some(plan) = reading.call.as_ref().filter(is_checked) else { continue };
        let Some(remedy) = reading.remedies.iter_mut().find(|remedy| remedy.id == plan.remedy) else {
            continue;
        };
        if let Some(reason) = purge::permanent_objection(process, &frozen.address_space, plan) {
            *remedy = std::mem::take(remedy).unknown_because(&reason);
        }
    }
}

/// Describes what was found since `start`.
pub fn describe(
    process: &Process,
    frozen: &mut Frozen,
    ledger: Ledger,
    holders: Option<&mut Holders>,
    start: Instant,
) -> Explanation {
    refuse_calls(process, frozen);
    let mut rows = ledger.tally.rows(&ledger.holders);
    if let Some(holders) = holders {
        holders::split_leaked(holders, &mut rows);
    }
    let status = process.status().unwrap_or_default();
    let kernel = kernel(frozen, &status, ledger.shmem_bytes);
    let mut caveats = std::mem::take(&mut frozen.caveats);
    let (others, runtimes) = recognise(process, frozen, &mut caveats, ledger.tally.of(&ANONYMOUS));
    caveats.extend(ledger.caveats);
    say_swapped(kernel.swap_bytes, &mut caveats);
    let unread = unread(&others, &runtimes);
    let of_readers = of_readers(frozen);
    let read: Vec<Allocator> = frozen.readings.iter().map(|reading| reading.allocator.clone()).collect();
    let facts = process.start_facts();
    let reads_settings = facts.is_none_or(|facts| !facts.is_secure);
    let view = LedgerView {
        pid: process.pid(),
        rows: &rows,
        rss_bytes: kernel.rss_bytes,
        threads: frozen.threads,
        allocators: &read,
        runtimes: &runtimes,
        remedies: &of_readers,
        reads_settings,
        takes_preloads: reads_settings && facts.is_none_or(|facts| facts.has_loader),
    };
    let trimmed_zero_bytes = trimmed_zero_bytes(frozen);
    let claims = frozen.readings.iter().flat_map(|reading| &reading.claims);
    let judged = Judged {
        view,
        trimmed_zero_bytes: trimmed_zero_bytes.values().sum(),
        pinning_chunks: claims.map(|claim| claim.sums.pinning_blocks).sum(),
        unread: &unread,
    };
    let executable = process.executable();
    let means = Means {
        executable: executable.as_deref().unwrap_or_default(),
        zero_bytes: ledger.zero_bytes,
        zero_sharing: ledger.zero_sharing,
        trimmed_zero_bytes: &trimmed_zero_bytes,
        swap: zero_pages::can_page_out(process),
    };
    let remedies = verdict::remedies::remedies(&view, &means);
    let mut verdict = verdict::verdict(&judged);
    verdict.headline.push_str(&leaked(&rows, kernel.rss_bytes));
    Explanation {
        target: Target {
            kind: if frozen.spent.is_some() { TargetKind::Snapshot } else { TargetKind::Live },
            pid: process.pid(),
            executable,
            command: process.command_line().unwrap_or_default(),
            threads: frozen.threads,
        },
        totals: rows::totals(&rows),
        rows,
        kernel,
        allocators: read.into_iter().chain(others).collect(),
        runtimes,
        remedies,
        verdict,
        caveats,
        cost: Cost {
            wall_seconds: start.elapsed().as_secs_f64(),
            stopped_seconds: frozen.stopped.as_secs_f64(),
            peak_rss_bytes: strandline_sys::host::own_peak_rss_bytes().ok(),
            bytes_read: frozen.bytes_read,
            copied_pages: frozen.spent.and_then(|spent| spent.copied_pages),
        },
        page_map: ledger.page_map,
        settings: process.settings().unwrap_or_default(),
    }
}

/// Returns a clause about leaked memory; empty if it is a small part of RSS.
fn leaked(rows: &[Row], rss_bytes: u64) -> String {
    let leaked: u64 = rows.iter().filter(|row| row.id.ends_with(".leaked")).map(|row| row.bytes).sum();
    if leaked > rss_bytes / MIN_LEAKED_PART {
        format!("; nothing leads to {} of it any more", bytes(leaked))
    } else {
        String::new()
    }
}

fn kernel(frozen: &Frozen, status: &Status, shmem_bytes: u64) -> Kernel {
    let sums = &frozen.sums;
    Kernel {
        rss_bytes: sums.rss_bytes,
        pss_bytes: frozen.rollup.as_ref().map(|rollup| rollup.pss_bytes),
        pss_parts: frozen.rollup.as_ref().and_then(pss_parts),
        anonymous_bytes: sums.anonymous_bytes,
        file_bytes: sums.rss_bytes.saturating_sub(sums.anonymous_bytes.saturating_add(shmem_bytes)),
        shmem_bytes,
        swap_bytes: sums.swap_bytes,
        lazyfree_bytes: sums.lazy_free_bytes,
        huge_bytes: sums.huge_bytes(),
        hugetlb_bytes: sums.hugetlb_bytes(),
        page_tables_bytes: status.page_tables_bytes,
        high_water_bytes: status.peak_rss_bytes,
        status_rss_bytes: status.rss_bytes,
    }
}

/// The parts of the proportional set size, if the kernel reports them.
fn pss_parts(rollup: &Counts) -> Option<PssParts> {
    let parts = PssParts {
        anonymous_bytes: rollup.pss_anonymous_bytes,
        file_bytes: rollup.pss_file_bytes,
        shmem_bytes: rollup.pss_shmem_bytes,
    };
    (rollup.pss_bytes == 0 || parts != PssParts::default()).then_some(parts)
}

/// Unexplained anonymous memory gets a caveat if it is at least this and a tenth of RSS.
const WORTH_A_CAVEAT_BYTES: u64 = 1 << 20;
/// Less anonymous memory than this needs no explanation.
const WORTH_NAMING_BYTES: u64 = 256 << 10;

/// Names the allocators and runtimes that are mapped but have no reader yet.
fn recognise(
    process: &Process,
    frozen: &mut Frozen,
    caveats: &mut Vec<Caveat>,
    anonymous_bytes: u64,
) -> (Vec<Allocator>, Vec<Runtime>) {
    let found = recognise::recognise(process, &frozen.address_space);
    let runtimes = runtimes(found.runtimes, &frozen.runtimes);
    // An allocator with a reading is described there; only a version that the reader cannot
    // determine is added.
    let mut named = found.allocators;
    named.retain(|found| {
        let mut same = frozen.readings.iter_mut().map(|reading| &mut reading.allocator);
        let Some(read) = same.find(|allocator| allocator.name == found.name) else { return true };
        read.version = read.version.take().or_else(|| found.version.clone());
        false
    });
    // A runtime may manage all its memory itself: then its reader has read the allocator.
    let is_read = |name: &str| runtimes.iter().any(|runtime| runtime.read && runtime.name == name);
    // Whether a caveat mentions it already.
    let is_told = |caveats: &[Caveat], name: &str| {
        caveats.iter().any(|caveat| caveat.code == "runtime_busy" && caveat.place == name)
    };
    for allocator in named.iter().filter(|allocator| !is_read(&allocator.name)) {
        if is_told(caveats, &allocator.name) {
            continue;
        }
        let text = format!(
            "{} manages memory of its own, which is not read yet and stands on the row anonymous",
            allocator.name
        );
        caveats.push(Caveat::new(
            "allocator_not_read",
            allocator.found_by.clone(),
            Some(anonymous_bytes),
            text,
        ));
    }
    // A recognised allocator explains the heap that was not found.
    if !named.is_empty() {
        caveats.retain(|caveat| caveat.code != "heap_not_found");
    }
    // Runtimes whose heap is named among the allocators have a caveat already.
    let is_allocator = |name: &str| named.iter().any(|allocator| allocator.found_by == name);
    let own_heap = |runtime: &&Runtime| {
        !runtime.read && recognise::has_own_heap(&runtime.name) && !is_allocator(&runtime.found_by)
    };
    for runtime in runtimes.iter().filter(own_heap).filter(|_| anonymous_bytes >= WORTH_NAMING_BYTES) {
        if is_told(caveats, &runtime.name) {
            continue;
        }
        let text = format!(
            "{} keeps objects in memory of its own, which is not read and stands on the row anonymous",
            runtime.name
        );
        caveats.push(Caveat::new("runtime_not_read", runtime.found_by.clone(), Some(anonymous_bytes), text));
    }
    let is_unread = |code: &str| ["allocator_not_read", "runtime_not_read", "runtime_busy"].contains(&code);
    let is_explained = caveats.iter().any(|caveat| is_unread(&caveat.code) || caveat.code == "not_64_bit");
    if anonymous_bytes >= WORTH_A_CAVEAT_BYTES.max(frozen.sums.rss_bytes / 10) && !is_explained {
        caveats.push(unexplained(frozen, anonymous_bytes));
    }
    let allocators = named.into_iter().map(|found| Allocator {
        read: is_read(&found.name),
        name: found.name,
        version: found.version,
        found_by: found.found_by,
        ..Allocator::default()
    });
    (allocators.collect(), runtimes)
}

/// The names of allocators and runtimes that manage memory of their own and were not read.
fn unread(allocators: &[Allocator], runtimes: &[Runtime]) -> Vec<String> {
    let is_told = |runtime: &&Runtime| allocators.iter().any(|one| one.found_by == runtime.found_by);
    let of_runtimes = runtimes
        .iter()
        .filter(|runtime| !runtime.read && recognise::has_own_heap(&runtime.name))
        .filter(|runtime| !is_told(runtime))
        .map(|runtime| runtime.name.clone());
    allocators.iter().filter(|one| !one.read).map(|one| one.name.clone()).chain(of_runtimes).collect()
}

/// Bytes of zero pages that calls into allocators release too, by allocator name. They are counted
/// on the row of zero pages only.
fn trimmed_zero_bytes(frozen: &Frozen) -> BTreeMap<String, u64> {
    let mut zeros = BTreeMap::new();
    for reading in &frozen.readings {
        let bytes = reading.trimmable_bytes().saturating_sub(reading.trimmed_bytes());
        *zeros.entry(reading.allocator.name.clone()).or_default() += bytes;
    }
    zeros
}

/// The remedies of all readings. If an allocator is in the process several times, a single call
/// covers all instances, and their predictions are added up.
fn of_readers(frozen: &Frozen) -> Vec<Remedy> {
    let of_runtimes = frozen.runtimes.iter().flat_map(|reading| &reading.remedies);
    let of_allocators = frozen.readings.iter().flat_map(|reading| &reading.remedies);
    let mut all: Vec<Remedy> = Vec::new();
    for remedy in of_runtimes.chain(of_allocators) {
        let is_same = |one: &&mut Remedy| one.id == remedy.id && remedy.kind == RemedyKind::Call;
        let known = all.iter_mut().find(is_same).and_then(|one| one.predicted_bytes.as_mut());
        match known.zip(remedy.predicted_bytes) {
            Some((sum, more)) => *sum += more,
            None => all.push(remedy.clone()),
        }
    }
    all
}

/// Makes the caveat about memory that no known allocator or runtime holds, with the place of the
/// largest such mapping.
fn unexplained(frozen: &Frozen, bytes: u64) -> Caveat {
    let private = frozen.smaps_entries.iter().filter(|space| space.mapping.is_private_anonymous());
    let of_heaps = frozen.readings.iter().flat_map(|reading| {
        let claims = reading.claims.iter().map(|claim| (claim.start, claim.end));
        claims.chain(reading.mapped_blocks.iter().map(|block| (block.start, block.end)))
    });
    let of_runtimes = frozen.runtimes.iter().flat_map(|reading| &reading.claims);
    let of_runtimes = of_runtimes.map(|claim| (claim.start, claim.end));
    let of_threads = frozen.stacks.iter().map(|stack| (stack.low, stack.high));
    let mut claimed: Vec<(u64, u64)> = of_heaps.chain(of_runtimes).chain(of_threads).collect();
    claimed.sort_unstable();
    let is_claimed = |space: &SmapsEntry| {
        // The ranges do not overlap: only the last one that begins before the end of the mapping
        // can overlap it.
        let before = claimed.partition_point(|claim| claim.0 < space.mapping.end);
        let last = before.checked_sub(1).and_then(|last| claimed.get(last));
        last.is_some_and(|claim| space.mapping.start < claim.1)
    };
    let largest = private.filter(|space| !is_claimed(space)).max_by_key(|space| space.counts.rss_bytes);
    let place = largest
        .map_or_else(String::new, |space| format!("{:#x}-{:#x}", space.mapping.start, space.mapping.end));
    let text = "no allocator or runtime that strandline knows was found that would hold it: the program may have mapped \
                it itself, or carries an allocator of its own; the place is that of the largest mapping";
    Caveat::new("anonymous_unexplained", place, Some(bytes), text)
}

/// The runtimes that were recognised by their files, with what their readers found.
fn runtimes(recognised: Vec<recognise::Found>, readings: &[runtime::Reading]) -> Vec<Runtime> {
    let mut all: Vec<Runtime> = readings.iter().map(|reading| reading.facts.clone()).collect();
    all.retain(|runtime| !runtime.name.is_empty());
    for found in recognised {
        match all.iter_mut().find(|runtime| runtime.name == found.name) {
            Some(read) => read.version = read.version.take().or(found.version),
            None => all.push(Runtime {
                name: found.name,
                version: found.version,
                found_by: found.found_by,
                ..Runtime::default()
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_swapped_out_is_not_only_called_damaged() {
        let caveat = |code: &str| Caveat::new(code, "", None, "text");
        let mut caveats = [caveat("perl_damaged"), caveat("mmapped_chunks_differ"), caveat("heap_swapped")];
        say_swapped(0, &mut caveats);
        assert!(caveats.iter().all(|caveat| caveat.text == "text"));
        say_swapped(4096, &mut caveats);
        assert!(caveats[0].text.contains("KiB of the process are swapped out"), "{}", caveats[0].text);
        assert!(caveats[1].text.contains("swapped out") && caveats[2].text == "text");
    }
}
