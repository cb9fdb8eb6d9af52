//! `reclaim --cgroup`: calls in each process, and what the kernel reclaims; predicted and actual.

#![cfg(test)]

use crate::support::memory_group::MemoryGroup;
use crate::support::strandline::{json, run};
use crate::support::{Outcome, here, skipped};

const MIB: u64 = 1 << 20;

/// Frees its malloc blocks below the last ones.
const FREED: &str = "\
blocks = [bytearray(4000) for _ in range(10000)]
del blocks[:7500]
print('ready', flush=True)
input()";

#[test]
fn calls_in_all_processes_release_what_was_predicted() -> Outcome {
    let Some(group) = MemoryGroup::new("reclaim") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    let subjects = [group.python(FREED, &[])?, group.python(FREED, &[])?];
    for subject in &subjects {
        subject.at_rest()?;
    }
    let line = ["reclaim", "--json", "--cgroup", &group.path()];
    let dry = json(&[&line[..], &["--dry-run"]].concat())?;
    assert_eq!((&dry["schema"], &dry["dry_run"]), (&"strandline/reclaim-cgroup/1".into(), &true.into()));
    let predicted = dry["predicted_bytes"].as_u64().ok_or("no prediction")?;
    assert!((54 * MIB..66 * MIB).contains(&predicted), "{dry:#}");
    assert!(dry["actual_bytes"].is_null(), "{dry:#}");
    let done = json(&line)?;
    assert_eq!(done["outcome"], "done", "{done:#}");
    let sum = |name: &str| -> Option<u64> {
        done["processes"].as_array()?.iter().map(|process| process[name].as_u64()).sum()
    };
    assert_eq!(
        (sum("predicted_bytes"), sum("actual_bytes")),
        (done["predicted_bytes"].as_u64(), done["actual_bytes"].as_u64())
    );
    let actual = done["actual_bytes"].as_u64().ok_or("no figure")?;
    assert!(actual.abs_diff(predicted) <= predicted / 20, "{actual} of {predicted}");
    let fell = |name: &str| done[name].as_u64().ok_or("no charge");
    let fell = fell("current_before_bytes")?.saturating_sub(fell("current_after_bytes")?);
    assert!(fell >= actual / 10 * 9, "{fell} of {actual}: {done:#}");
    let again = run(&["reclaim", "--cgroup", &group.path()])?;
    assert_eq!(again.status, Some(0), "{}", again.summary());
    drop(subjects);
    Ok(())
}

#[test]
fn the_kernel_reclaims_where_memory_reclaim_exists() -> Outcome {
    let Some(group) = MemoryGroup::new("kernel-reclaim") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    let line = ["reclaim", "--remedy", "memory_reclaim", "--cgroup", &group.path()];
    let answer = run(&line)?;
    if group.folder.join("memory.reclaim").exists() {
        assert_eq!(answer.status, Some(0), "{}", answer.summary());
    } else {
        answer.complains(3, &["memory.reclaim"])?;
    }
    run(&["reclaim", "--remedy", "memory_reclaim", "17"])?.complains(2, &["--cgroup"])?;
    run(&["reclaim", "--cgroup", "/no-such-group"])?.complains(3, &["no control group"])
}
