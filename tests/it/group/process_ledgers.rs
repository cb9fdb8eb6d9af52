//! `explain --cgroup --ledgers`: each process's anonymous memory is divided by the rows of its
//! ledger.

#![cfg(test)]

use serde_json::Value;

use crate::support::memory_group::MemoryGroup;
use crate::support::strandline::{json, run};
use crate::support::{Outcome, here, skipped};

const MIB: u64 = 1 << 20;

/// Frees the first three quarters of its malloc blocks, below live ones, so that only malloc_trim
/// releases their pages.
const FREED: &str = "\
blocks = [bytearray(4000) for _ in range(10000)]
del blocks[:7500]
print('ready', flush=True)
input()";

/// Blocks of malloc in use.
const USED: &str = "\
blocks = [bytearray(4000) for _ in range(5000)]
print('ready', flush=True)
input()";

fn of_process(document: &Value, pid: i32, id: &str) -> u64 {
    let rows = document["rows"].as_array().into_iter().flatten();
    let rows =
        rows.filter(|row| row["pid"] == pid && row["id"].as_str().is_some_and(|row| row.starts_with(id)));
    rows.filter_map(|row| row["bytes"].as_u64()).sum()
}

#[test]
fn processes_are_divided_by_their_own_rows_within_the_budget() -> Outcome {
    let Some(group) = MemoryGroup::new("ledgers") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    let (freed, used) = (group.python(FREED, &[])?, group.python(USED, &[])?);
    freed.at_rest()?;
    used.at_rest()?;
    let line = ["explain", "--json", "--ledgers", "--stop-budget", "900ms/min", "--cgroup", &group.path()];
    let document = json(&line)?;
    let rows = document["rows"].as_array().ok_or("no rows")?;
    let sum: u64 = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum();
    assert_eq!(Some(sum), document["cgroup"]["current_bytes"].as_u64());
    // 7,500 and 5,000 blocks of 4,000 bytes.
    let free = of_process(&document, freed.pid(), "glibc.free");
    assert!((27 * MIB..33 * MIB).contains(&free), "{free}: {document:#}");
    let live = of_process(&document, used.pid(), "glibc.live") + of_process(&document, used.pid(), "cpython");
    assert!(live >= 18 * MIB, "{live}: {document:#}");
    assert_eq!(of_process(&document, freed.pid(), "group.anon"), 0);
    assert!(document["totals"]["stranded"].as_u64() >= Some(27 * MIB), "{document:#}");
    let trim = document["remedies"].as_array().into_iter().flatten().find(|one| one["id"] == "malloc_trim");
    let trim = trim.ok_or_else(|| format!("no malloc_trim: {document:#}"))?;
    assert!(
        trim["predicted_bytes"].as_u64() >= Some(27 * MIB) && trim["processes"].as_u64() >= Some(1),
        "{trim}"
    );
    let processes = document["processes"].as_array().ok_or("no processes")?;
    for process in processes {
        let stopped = process["ledger"]["stopped_seconds"].as_f64().ok_or("no ledger")?;
        assert!(stopped < 0.9, "{process:#}");
    }
    let shown = run(&["explain", "--ledgers", "--cgroup", &group.path()])?;
    for words in ["stranded", "malloc_trim", "strandline reclaim"] {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    assert!(shown.stdout.lines().count() <= 40, "{}", shown.stdout);
    drop((freed, used));
    Ok(())
}

#[test]
fn ledgers_requires_cgroup() -> Outcome {
    run(&["explain", "--ledgers", "17"])?.complains(2, &["--ledgers", "--cgroup"])?;
    run(&["explain", "--ledgers", "--stop-budget", "x", "--cgroup", "/a"])?.complains(2, &["20ms/min"])
}
