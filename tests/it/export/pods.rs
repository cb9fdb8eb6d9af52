//! `export --pods`: processes of Kubernetes pods are chosen by their control groups, also from a
//! container with a cgroup namespace, where the paths of other pods begin with `/..`.

#![cfg(test)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::exporter::Exporter;
use crate::support::{Outcome, Subject, here, skipped};

const POD: &str = "pod0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// Control groups made by a test, removed on drop.
struct Groups(PathBuf);

impl Groups {
    /// Groups for an exporter and for the container of a pod, in the hierarchy that counts memory.
    fn new() -> Option<Self> {
        let places = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let is_hierarchy = |place: &&str| Path::new(place).join("cgroup.procs").exists();
        let top = Path::new(places.into_iter().find(is_hierarchy)?)
            .join(format!("strandline-pods-{}", std::process::id()));
        let groups = Self(top);
        let made = std::fs::create_dir_all(groups.exporter()).is_ok()
            && std::fs::create_dir_all(groups.container()).is_ok();
        made.then_some(groups)
    }

    fn exporter(&self) -> PathBuf {
        self.0.join("own/exporter")
    }

    fn counts_memory(&self) -> bool {
        let files = ["memory.current", "memory.usage_in_bytes"];
        files.iter().any(|file| self.container().join(file).exists())
    }

    fn container(&self) -> PathBuf {
        self.0.join("burstable").join(POD).join("0123456789abcdef")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let (own, container) = (self.exporter(), self.container());
        let folders = own.ancestors().take(2).chain(container.ancestors().take(3)).chain([self.0.as_path()]);
        for folder in folders {
            // A killed process leaves its group some time later.
            for _ in 0..100 {
                if std::fs::remove_dir(folder).is_ok() || !folder.exists() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

#[test]
fn pods_are_found_from_another_cgroup_namespace() -> Outcome {
    let Some(groups) = Groups::new() else {
        skipped(here!(), "no control group can be made here");
        return Ok(());
    };
    let in_pod = Subject::idle()?;
    let elsewhere = Subject::idle()?;
    if std::fs::write(groups.container().join("cgroup.procs"), in_pod.pid_text()).is_err() {
        skipped(here!(), "no process can be moved to a control group here");
        return Ok(());
    }
    let start = |inside: bool| {
        let mut command = Command::new("sh");
        let enter = "echo $$ > \"$1\"/cgroup.procs && shift && exec";
        command.arg("-c").arg(format!("{enter} {} \"$@\"", if inside { "unshare --cgroup" } else { "" }));
        command.arg("sh").arg(groups.exporter()).arg(env!("CARGO_BIN_EXE_strandline"));
        command.args(["export", "--no-ledgers", "--pods", "--listen", "127.0.0.1:0"]);
        Exporter::start_command(&mut command)
    };
    for (inside, path) in [(false, format!("/burstable/{POD}/")), (true, format!("/../../burstable/{POD}/"))]
    {
        let exporter = start(inside)?;
        // The exporter reads the charges of groups within a time budget, over several pages.
        let page = exporter.page_when("the charges of all groups", |page| {
            let late =
                page.samples.iter().filter(|sample| sample.name == "strandline_exporter_left_out_cgroups");
            late.filter(|sample| sample.labels["reason"] == "time").all(|sample| sample.value == 0.0)
        })?;
        let info = page.of("strandline_process_info", in_pod.pid());
        let group = info.first().map(|sample| sample.labels["cgroup"].clone()).unwrap_or_default();
        assert!(if inside { group.starts_with(&path) } else { group.contains(&path) }, "{group}");
        assert!(page.value("strandline_rss_bytes", elsewhere.pid()).is_none());
        if !groups.counts_memory() {
            skipped(here!(), "no control group with a memory controller can be made here");
            continue;
        }
        // The container's group, and the pod's.
        let charges = page.samples.iter().filter(|s| s.name == "strandline_cgroup_charge_bytes");
        let charged: Vec<&str> = charges.map(|sample| sample.labels["cgroup"].as_str()).collect();
        let pod = group.rsplit_once('/').map(|(pod, _)| pod).unwrap_or_default();
        assert_eq!(charged, [pod, &group], "{}", page.text);
    }
    Ok(())
}
