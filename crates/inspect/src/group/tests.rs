use strandline_process::group::{Hierarchy, Version};

use super::facts::GroupExplanation;
use super::reclaim::reclaim_group;
use super::*;
use crate::facts::Outcome;
use crate::remedy::ReclaimOptions;

/// A group in a folder made for the test; the test itself is its process.
fn explain(version: Version, files: &[(&str, &str)]) -> Result<GroupExplanation, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("pod/web")).unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join("pod").join(name), text).unwrap();
    }
    let own = format!("{}\n", std::process::id());
    std::fs::write(folder.path().join("pod/web/cgroup.procs"), own).unwrap();
    let hierarchy = Hierarchy::at(version, folder.path());
    let group = hierarchy.open("/pod").map_err(|error| error.to_string())?;
    let explanation = explain_group(&hierarchy, &group).map_err(|error| error.to_string())?;
    let sum: u128 = explanation.rows.iter().map(|row| u128::from(row.bytes)).sum();
    assert_eq!(sum, u128::from(explanation.cgroup.current_bytes), "{explanation:?}");
    Ok(explanation)
}

fn bytes_of(explanation: &GroupExplanation, id: &str) -> u64 {
    explanation.rows.iter().filter(|row| row.id == id).map(|row| row.bytes).sum()
}

#[test]
fn version_two_has_every_kind_and_the_working_set_of_kubelet() {
    let stat = "anon 400000000\nfile 300000000\nkernel 50000000\nkernel_stack 1000000\npagetables 2000000\n\
        percpu 3000000\nsock 4000000\nvmalloc 5000000\nshmem 100000000\nzswap 6000000\nzswapped 18000000\n\
        swapcached 1000000\nfile_dirty 7000000\nfile_writeback 8000000\ninactive_file 120000000\n\
        active_file 80000000\nslab_reclaimable 9000000\nslab_unreclaimable 10000000\n";
    let explanation = explain(
        Version::Two,
        &[
            ("memory.current", "754100000\n"),
            ("memory.stat", stat),
            ("memory.max", "1000000000\n"),
            ("memory.swap.max", "0\n"),
            ("memory.events", "low 0\nhigh 0\nmax 17\noom 2\noom_kill 2\n"),
        ],
    )
    .unwrap();
    let of = |id: &str| bytes_of(&explanation, id);
    assert_eq!(of("group.anon") + of("group.anon.elsewhere") + of("group.anon.lazyfree"), 400_000_000);
    assert!(explanation.rows.iter().any(|row| row.pid == Some(std::process::id().cast_signed())));
    assert_eq!(of("group.shmem"), 100_000_000);
    assert_eq!(of("group.cache.clean"), 199_000_000 - 15_000_000);
    assert_eq!((of("group.cache.dirty"), of("group.cache.writeback")), (7_000_000, 8_000_000));
    assert_eq!(
        (of("group.zswap"), of("group.sockets"), of("group.vmalloc")),
        (6_000_000, 4_000_000, 5_000_000)
    );
    assert_eq!(of("group.kernel.other"), 14_000_000);
    assert_eq!((of("group.swap_cache"), of("group.charge_stock")), (1_000_000, 100_000));
    assert_eq!(of("group.unattributed"), 0);
    assert_eq!(explanation.cgroup.working_set_bytes, Some(634_100_000));
    assert_eq!(explanation.cgroup.reclaimable_bytes, Some(209_000_000));
    let headline = &explanation.verdict.headline;
    assert!(headline.contains("belongs to 1 process,"), "{headline}");
    assert!(headline.contains("\"active\"") && headline.contains("(55 %)"), "{headline}");
    assert!(headline.contains("no swap is allowed"), "{headline}");
}

#[test]
fn a_kernel_that_sums_less_leaves_more_unattributed() {
    let stat = "anon 1000000\nfile 0\nkernel_stack 100000\nslab 0\n";
    let explanation =
        explain(Version::Two, &[("memory.current", "900000000\n"), ("memory.stat", stat)]).unwrap();
    assert_eq!(bytes_of(&explanation, "group.kernel_stacks"), 100_000);
    let unknown = bytes_of(&explanation, "group.unattributed");
    assert!(unknown > 890_000_000, "{unknown}");
    assert_eq!(explanation.totals.unattributed, unknown);
    assert_eq!(explanation.cgroup.working_set_bytes, None, "inactive_file is not known");
}

#[test]
fn figures_that_contradict_each_other_still_add_up() {
    let huge = u64::MAX.to_string();
    let line = |name: &str| format!("{name} {huge}\n");
    let stat: String =
        ["anon", "file", "shmem", "swapcached", "kernel", "pagetables", "inactive_file", "sock"]
            .into_iter()
            .map(line)
            .collect();
    for current in ["0", "1", "4096", huge.as_str()] {
        for (version, name) in [(Version::Two, "memory.current"), (Version::One, "memory.usage_in_bytes")] {
            let explanation = explain(version, &[(name, current), ("memory.stat", &stat)]).unwrap();
            assert_eq!(explanation.cgroup.current_bytes.to_string(), current);
        }
    }
    let empty = explain(Version::Two, &[("memory.current", "5000000")]).unwrap();
    assert_eq!(empty.cgroup.working_set_bytes, None);
    let none = "anon 0\nfile 0\nkernel 0\nsock 0\n";
    let stock = explain(Version::Two, &[("memory.current", "4096"), ("memory.stat", none)]).unwrap();
    assert!(stock.verdict.headline.contains("nearly all in advance"), "{}", stock.verdict.headline);
    assert!(explain(Version::Two, &[]).unwrap_err().contains("/pod"));
}

#[test]
fn an_unreadable_limit_is_unknown() {
    let files = [("memory.current", "5000000"), ("memory.max", "\n")];
    let explanation = explain(Version::Two, &files).unwrap();
    let cgroup = &explanation.cgroup;
    assert_eq!((cgroup.limit_bytes, cgroup.effective_limit_bytes), (None, None));
    assert_eq!(cgroup.unread_limit_path.as_deref(), Some("/pod"));
    assert!(explanation.caveats.iter().any(|caveat| caveat.code == "limit_unread"));
    let none = explain(Version::Two, &[("memory.current", "5000000"), ("memory.max", "max\n")]).unwrap();
    assert_eq!(none.cgroup.unread_limit_path, None);
}

#[test]
fn a_reclaim_names_processes_that_it_does_not_see() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("pod")).unwrap();
    // The kernel lists processes of other pid namespaces as 0.
    for (name, text) in [("memory.current", "5000000\n"), ("cgroup.procs", "0\n0\n")] {
        std::fs::write(folder.path().join("pod").join(name), text).unwrap();
    }
    let hierarchy = Hierarchy::at(Version::Two, folder.path());
    let group = hierarchy.open("/pod").unwrap();
    let options = ReclaimOptions { dry_run: true, ..ReclaimOptions::default() };
    let report = reclaim_group(&hierarchy, &group, &options, &|_, _| {}).unwrap();
    assert_eq!(report.outcome, Outcome::NothingToGiveBack);
    let codes: Vec<&str> = report.caveats.iter().map(|caveat| caveat.code.as_str()).collect();
    assert_eq!(codes, ["other_pid_namespace"]);
}
