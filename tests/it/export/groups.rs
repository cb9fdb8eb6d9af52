//! `export`: what is charged to the control groups of processes, by the rows of `explain --cgroup`.

#![cfg(test)]

use crate::support::exporter::{Exporter, Page, Sample};
use crate::support::group_rows::{RowBytes, of, other_than_explained};
use crate::support::memory_group::{MemoryGroup, batch_bytes};
use crate::support::strandline::json;
use crate::support::{Outcome, here, skipped};

const MIB: u64 = 1 << 20;

/// Anonymous memory, and a file in shared memory that no process has open.
const PROGRAM: &str = "\
import sys
heap = bytearray(30 << 20)
with open(sys.argv[1], 'wb') as file:
    file.write(b'x' * (12 << 20))
print('ready', flush=True)
input()";

/// The value of a metric for a group, with these other labels.
fn value(page: &Page, name: &str, cgroup: &str, row: Option<&str>) -> Option<u64> {
    let is = |sample: &&Sample| {
        let label = |name: &str| sample.labels.get(name).map(String::as_str);
        sample.name == name && label("cgroup") == Some(cgroup) && label("row") == row
    };
    page.samples.iter().find(is).map(|sample| sample.value as u64)
}

/// The rows of a group on a page.
fn rows(page: &Page, cgroup: &str) -> Vec<RowBytes> {
    let is =
        |sample: &&Sample| sample.name == "strandline_cgroup_row_bytes" && sample.labels["cgroup"] == cgroup;
    let rows = page.samples.iter().filter(is);
    rows.map(|row| RowBytes { id: row.labels["row"].clone(), bytes: row.value as u64 }).collect()
}

#[test]
fn a_group_has_the_rows_of_its_ledger() -> Outcome {
    let made = MemoryGroup::new("charges").and_then(|above| Some((above.child("web")?, above)));
    let Some((group, above)) = made else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    group.limit(512 * MIB)?;
    let file = Removed(format!("/dev/shm/{}.db", above.name()));
    let subject = group.python(PROGRAM, &[&file.0])?;
    subject.at_rest()?;
    let exporter = Exporter::start(&["--no-ledgers", "--cgroup", &above.path()])?;
    let path = format!("/{}/web", above.name());
    // On a busy machine a scrape may lack the group.
    let page = exporter.page_when("the charge of the group", |page| {
        value(page, "strandline_cgroup_charge_bytes", &path, None).is_some()
    })?;
    let document = json(&["explain", "--json", "--cgroup", &group.path()])?;
    let shown = rows(&page, &path);
    let charge = value(&page, "strandline_cgroup_charge_bytes", &path, None).ok_or("no charge")?;
    assert_eq!(shown.iter().map(|row| row.bytes).sum::<u64>(), charge, "{shown:?}");
    assert!((42 * MIB..120 * MIB).contains(&charge), "{charge}");
    let other = other_than_explained(&shown, &document);
    assert!(other.is_none(), "{other:?}: {document:#}");
    assert!(of(&shown, "group.anon") >= 30 * MIB - batch_bytes(), "{shown:?}");
    assert!(of(&shown, "group.shmem") >= 12 * MIB - batch_bytes(), "{shown:?}");
    for name in ["limit_bytes", "effective_limit_bytes"] {
        let exported = value(&page, &format!("strandline_cgroup_{name}"), &path, None);
        assert_eq!(exported, document["cgroup"][name].as_u64(), "{name}");
    }
    let inactive = value(&page, "strandline_cgroup_inactive_file_bytes", &path, None).ok_or("none")?;
    let working_set = value(&page, "strandline_cgroup_working_set_bytes", &path, None);
    assert_eq!(working_set, Some(charge - inactive));
    assert_eq!(value(&page, "strandline_cgroup_oom_kills_total", &path, None), Some(0));
    // The requested group has no process itself; charges of groups below count for it too.
    let whole = value(&page, "strandline_cgroup_charge_bytes", &format!("/{}", above.name()), None);
    assert!(whole >= Some(42 * MIB), "{whole:?}");
    drop((subject, file, group));
    exporter.page_when("without the removed group", |page| {
        let name = "strandline_cgroup_charge_bytes";
        value(page, name, &path, None).is_none()
            && value(page, name, &format!("/{}", above.name()), None).is_some()
    })?;
    Ok(())
}

/// A file that is removed on drop.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn omitted_groups_are_counted() -> Outcome {
    let page = Exporter::start(&["--no-ledgers", "--cgroup", "/no/such/group"])?.page()?;
    let counted = |reason: &str| {
        let is = |sample: &&Sample| {
            sample.name == "strandline_exporter_left_out_cgroups" && sample.labels["reason"] == reason
        };
        page.samples.iter().find(is).map(|sample| sample.value)
    };
    let all = ["limit", "not_counted", "not_found", "time"].map(counted);
    assert_eq!(all, [Some(0.0), Some(0.0), Some(1.0), Some(0.0)]);
    Ok(())
}
