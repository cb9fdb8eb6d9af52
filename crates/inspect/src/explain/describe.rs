//! Builds the explanation from an account: remedies and a verdict.

use std::collections::BTreeMap;

use crate::account::Account;
use crate::capture::FrozenState;
use crate::facts::{Allocator, Explanation, Remedy, RemedyKind, Row, Target, TargetKind};
use crate::ledger::rows;
use crate::remedy::{malloc_trim, purge, zero_pages};
use crate::verdict::remedies::RemedyInputs;
use crate::verdict::{self, VerdictInputs};
use strandline_claims::caveat::Caveat;
use strandline_claims::finding::LedgerView;
use strandline_claims::units::bytes;
use strandline_process::procfs::Process;

/// Leaks above RSS divided by this are mentioned in the verdict.
const MIN_LEAKED_DIVISOR: u64 = 20;

/// Gives the reason in place of the command where `reclaim` would always refuse the call. The
/// program itself can still call malloc_trim, so that its prediction stays.
fn refuse_calls(process: &Process, frozen: &mut FrozenState) {
    let space = &frozen.address_space;
    for reading in &mut frozen.allocator_readings {
        let Some(plan) = reading.call.as_ref().filter(|plan| plan.predicted_bytes > 0) else { continue };
        let Some(remedy) = reading.remedies.iter_mut().find(|remedy| remedy.id == plan.spec.id) else {
            continue;
        };
        if plan.libc_code.is_some() {
            if let Some(reason) = malloc_trim::permanent_objection(process, space, plan) {
                remedy.kind = RemedyKind::Program;
                remedy.how = format!("only the program can call {}(0): {reason}", plan.function.name);
            }
        } else if let Some(reason) = purge::permanent_objection(process, space, plan) {
            *remedy = Remedy { how: reason.clone(), ..std::mem::take(remedy) }.unknown_because(&reason);
        }
    }
}

/// Describes a process. Moves most of the account into the result; readings and zero pages stay.
pub fn describe(process: &Process, account: &mut Account) -> Explanation {
    refuse_calls(process, &mut account.frozen);
    let frozen = &account.frozen;
    let readers_remedies = merged_remedies(frozen);
    let read_allocators: Vec<Allocator> =
        frozen.allocator_readings.iter().map(|reading| reading.allocator.clone()).collect();
    // A program of which nothing is known counts as an ordinary one.
    let start_facts = process.start_facts();
    let reads_settings = start_facts.is_none_or(|facts| !facts.is_secure);
    let view = LedgerView {
        pid: process.pid(),
        rows: &account.rows,
        rss_bytes: account.kernel.rss_bytes,
        threads: frozen.thread_count,
        allocators: &read_allocators,
        runtimes: &account.runtimes,
        remedies: &readers_remedies,
        reads_settings,
        takes_preloads: reads_settings && start_facts.is_none_or(|facts| facts.has_loader),
    };
    let trimmed_zero_bytes = zero_bytes_of_calls(frozen);
    let claims = frozen.allocator_readings.iter().flat_map(|reading| &reading.claims);
    let verdict_inputs = VerdictInputs {
        view,
        trimmed_zero_bytes: trimmed_zero_bytes.values().sum(),
        pinning_blocks: claims.map(|claim| claim.sums.pinning_blocks).sum(),
        unread_names: &account.unread_names,
        late_bytes: late_bytes(frozen, &account.rows, &account.caveats),
    };
    let executable = process.executable();
    let remedy_inputs = RemedyInputs {
        executable: executable.as_deref(),
        zero_bytes: account.ledger.zero_bytes,
        zero_sharing: account.ledger.zero_sharing,
        trimmed_zero_bytes: &trimmed_zero_bytes,
        can_page_out: zero_pages::can_page_out(process),
    };
    let remedies = verdict::remedies::remedies(&view, &remedy_inputs);
    let mut verdict = verdict::verdict(&verdict_inputs);
    verdict.headline.push_str(&leak_clause(&account.rows, account.kernel.rss_bytes));
    let target = Target {
        kind: if frozen.snapshot_cost.is_some() { TargetKind::Snapshot } else { TargetKind::Live },
        pid: process.pid(),
        executable,
        command: process.command_line().unwrap_or_default(),
        threads: frozen.thread_count,
    };
    let recognised_allocators = std::mem::take(&mut account.recognised_allocators);
    Explanation {
        target,
        totals: rows::totals(&account.rows),
        rows: std::mem::take(&mut account.rows),
        kernel: account.kernel.clone(),
        allocators: read_allocators.into_iter().chain(recognised_allocators).collect(),
        runtimes: std::mem::take(&mut account.runtimes),
        remedies,
        verdict,
        caveats: std::mem::take(&mut account.caveats),
        cost: account.cost(),
        page_map: account.ledger.page_map.take(),
        settings: process.settings().unwrap_or_default(),
    }
}

/// Bytes that allocators' readers did not read in the time of the stop: the rows of unread heaps,
/// and if a caveat does not say how many, all other anonymous memory.
fn late_bytes(frozen: &FrozenState, rows: &[Row], caveats: &[Caveat]) -> u64 {
    if frozen.is_quiet || frozen.snapshot_cost.is_some() {
        return 0;
    }
    let late: Vec<_> = caveats.iter().filter(|caveat| caveat.is_late()).collect();
    let is_unknown = late.iter().any(|caveat| caveat.bytes.is_none());
    let is_unread = |row: &&Row| row.id.ends_with(".unread") || is_unknown && row.id == "anonymous";
    let unread_bytes: u64 = rows.iter().filter(is_unread).map(|row| row.bytes).sum();
    if late.is_empty() { 0 } else { unread_bytes }
}

/// Returns a clause about leaked memory; empty if it is a small part of RSS. It names RSS, because
/// the clauses before it are about other parts.
fn leak_clause(rows: &[Row], rss_bytes: u64) -> String {
    let leaked_rows = rows.iter().filter(|row| row.id.ends_with(".leaked"));
    let leaked_bytes: u64 = leaked_rows.map(|row| row.bytes).sum();
    if leaked_bytes > rss_bytes / MIN_LEAKED_DIVISOR {
        format!("; {} of {} RSS is leaked: no pointer reaches it", bytes(leaked_bytes), bytes(rss_bytes))
    } else {
        String::new()
    }
}

/// Bytes of zero pages that calls into allocators release too, by allocator name. They are counted
/// on the row of zero pages only.
fn zero_bytes_of_calls(frozen: &FrozenState) -> BTreeMap<String, u64> {
    let mut zero_bytes = BTreeMap::new();
    for reading in &frozen.allocator_readings {
        let bytes = reading.releasable_bytes().saturating_sub(reading.releasable_row_bytes());
        *zero_bytes.entry(reading.allocator.name.clone()).or_default() += bytes;
    }
    zero_bytes
}

/// The remedies of all readings. If an allocator is in the process several times, one remedy calls
/// all instances, and their known predictions are added up; an unknown one is a remedy of its own.
fn merged_remedies(frozen: &FrozenState) -> Vec<Remedy> {
    let of_runtimes = frozen.runtime_readings.iter().flat_map(|reading| &reading.remedies);
    let of_allocators = frozen.allocator_readings.iter().flat_map(|reading| &reading.remedies);
    let mut all: Vec<Remedy> = Vec::new();
    for remedy in of_runtimes.chain(of_allocators) {
        let is_same = |other: &&mut Remedy| other.id == remedy.id && remedy.kind == RemedyKind::Call;
        let sum = all.iter_mut().find(is_same).and_then(|same| same.predicted_bytes.as_mut());
        match sum.zip(remedy.predicted_bytes) {
            Some((sum, predicted_bytes)) => *sum = sum.saturating_add(predicted_bytes),
            None => all.push(remedy.clone()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{HolderKind, State};

    #[test]
    fn a_leak_is_a_part_of_rss() {
        let rows = [("glibc.live", 80 << 20), ("glibc.leaked", 20 << 20), ("jemalloc.leaked", 5 << 20)];
        let rows = rows.map(|(id, bytes)| Row {
            id: id.to_owned(),
            holder: String::new(),
            bytes,
            stratum: HolderKind::Values,
            state: State::Live,
        });
        let clause = leak_clause(&rows, 200 << 20);
        assert_eq!(clause, "; 25.0 MiB of 200 MiB RSS is leaked: no pointer reaches it");
        assert_eq!(leak_clause(&rows, 600 << 20), "");
    }
}
