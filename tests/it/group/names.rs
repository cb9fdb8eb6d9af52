//! How a control group is named, and the errors for one that cannot be read.

#![cfg(test)]

use crate::support::memory_group::MemoryGroup;
use crate::support::strandline::{json, run};
use crate::support::{Outcome, here, skipped};

const IDLE: &str = "print('ready', flush=True); input()";

#[test]
fn containers_pods_and_units_are_found_by_their_names() -> Outcome {
    let Some(outer) = MemoryGroup::new("names") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    // Ids of this test's own: others may run beside it.
    let own = format!("{:08x}", std::process::id());
    let id = own.repeat(8);
    let uid = format!("{own}-4e5f-6071-8293-a4b5c6d7e8f9");
    let pod =
        outer.child(&format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"))).ok_or("no pod")?;
    let container = pod.child(&format!("cri-containerd-{id}.scope")).ok_or("no container")?;
    let unit = outer.child(&format!("strandline-{own}.service")).ok_or("no unit")?;
    let within = container.python(IDLE, &[])?;
    within.at_rest()?;
    let path = |arguments: &[&str]| -> crate::support::Result<String> {
        let document = json(&[&["explain", "--json"], arguments].concat())?;
        Ok(document["target"]["path"].as_str().unwrap_or_default().to_owned())
    };
    assert!(path(&["--container", &id[..12]])?.ends_with(&container.name()));
    assert!(path(&["--container", &format!("containerd://{id}")])?.ends_with(&container.name()));
    assert!(path(&["--pod", &uid])?.ends_with(&pod.name()));
    assert!(path(&["--unit", &format!("strandline-{own}")])?.ends_with(&unit.name()));
    // The ledger of each group has the processes of the groups below it.
    let document = json(&["explain", "--json", "--cgroup", &outer.path()])?;
    assert_eq!(document["target"]["processes"], 1);
    assert_eq!(document["processes"][0]["pid"], within.pid());
    let groups = document["groups"].as_array().ok_or("no groups")?;
    assert_eq!(groups.len(), 2, "{groups:?}");
    assert!(groups[0]["path"].as_str().is_some_and(|path| path.ends_with(&pod.name())));
    drop(within);
    Ok(())
}

#[test]
fn a_missing_group_is_an_error_of_one_line() -> Outcome {
    run(&["explain", "--cgroup", "/no-such-group"])?.complains(3, &["no control group /no-such-group"])?;
    run(&["explain", "--container", "web"])?.complains(3, &["hexadecimal", "docker inspect"])?;
    run(&["explain", "--container", "0000000000000000"])?.complains(3, &["docker ps"])?;
    run(&["explain", "--pod", "web"])?.complains(3, &["kubectl"])?;
    run(&["explain", "--unit", "no-such-unit"])?.complains(3, &["systemctl"])?;
    run(&["explain", "--cgroup", "/a", "--pod", "b"])?.complains(2, &["--pod"])?;
    run(&["explain", "--cgroup", "/a", "17"])?.complains(2, &["--cgroup"])?;
    run(&["explain", "--cgroup", "/a", "--tree"])?.complains(2, &["--tree"])
}

#[test]
fn the_screen_has_at_most_forty_lines_and_shows_the_limit() -> Outcome {
    let Some(group) = MemoryGroup::new("screen") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    let limit = ["memory.max", "memory.limit_in_bytes"].map(|name| group.folder.join(name));
    let limit = limit.into_iter().find(|path| path.exists()).ok_or("no limit")?;
    std::fs::write(limit, (256_u64 << 20).to_string())?;
    let subject = group.python(IDLE, &[])?;
    subject.at_rest()?;
    let shown = run(&["explain", "--cgroup", &group.path()])?;
    assert_eq!(shown.status, Some(0), "{}", shown.summary());
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert!(lines.len() <= 40 && lines.iter().all(|line| line.chars().count() <= 80), "{}", shown.stdout);
    for words in
        ["limit 256 MiB", "charged", "belongs to 1 process", "group.anon", "not stopped", "working set"]
    {
        assert!(shown.stdout.contains(words), "{words}: {}", shown.stdout);
    }
    let all = run(&["explain", "-v", "--cgroup", &group.path()])?;
    // Except the row of the kernel's batched charges, which may be 0.
    assert!(
        all.stdout.contains("group.page_tables") && all.stdout.contains(&subject.pid_text()),
        "{}",
        all.stdout
    );
    drop(subject);
    Ok(())
}
