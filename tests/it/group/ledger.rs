//! `explain --cgroup`: rows add up to the charge of the group, and name processes, mounts and
//! files.

#![cfg(test)]

use serde_json::Value;

use crate::support::memory_group::{MemoryGroup, batch_bytes};
use crate::support::strandline::{caveats, json, row, run};
use crate::support::waiting::{state, until, until_true};
use crate::support::{Folder, Outcome, Result, Subject, for_each, here, skipped};

const MIB: u64 = 1 << 20;

/// Frees most of its malloc memory, below one live block.
const HEAP: &str = "\
blocks = [bytearray(4000) for _ in range(10000)]
del blocks[:7500]
print('ready', flush=True)
input()";

/// Makes a file in shared memory that no process has open, and 200 small ones in a folder.
const TMPFS: &str = "\
import os, sys
with open(sys.argv[1], 'wb') as file:
    file.write(b'x' * (24 << 20))
os.mkdir(sys.argv[2])
for number in range(200):
    with open(f'{sys.argv[2]}/{number}', 'wb') as file:
        file.write(b'x' * (64 << 10))
print('ready', flush=True)
input()";

/// Writes a file on disk, keeps it open, and locks it in memory, since the kernel may drop unlocked
/// pages.
const CACHE: &str = "\
import ctypes, mmap, os, sys
file = open(sys.argv[1], 'w+b')
file.write(b'x' * (32 << 20))
file.flush()
os.fsync(file.fileno())
area = mmap.mmap(file.fileno(), 0)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
assert ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(32 << 20)) == 0
print('ready', flush=True)
input()";

/// A file, or a folder, that is removed on drop.
struct Removed(String);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Its processes end before the group is removed.
struct Scene {
    heap: Subject,
    _tmpfs: Subject,
    _cache: Subject,
    shared: Removed,
    small: Removed,
    file: String,
    _folder: Folder,
    group: MemoryGroup,
}

/// A group of three processes with a known use each.
fn scene(name: &str) -> Result<Option<Scene>> {
    let Some(group) = MemoryGroup::new(name) else { return Ok(None) };
    let folder = Folder::new(name)?;
    let file = folder.0.join("access.log").display().to_string();
    let shared = Removed(format!("/dev/shm/{}.db", group.name()));
    let small = Removed(format!("/dev/shm/{}.d", group.name()));
    let heap = group.python(HEAP, &[])?;
    let tmpfs = group.python(TMPFS, &[&shared.0, &small.0])?;
    let cache = group.python(CACHE, &[&file])?;
    for subject in [&heap, &tmpfs, &cache] {
        subject.at_rest()?;
    }
    Ok(Some(Scene { heap, _tmpfs: tmpfs, _cache: cache, shared, small, file, _folder: folder, group }))
}

fn sum(document: &Value, is: impl Fn(&Value) -> bool) -> u64 {
    let rows = document["rows"].as_array().into_iter().flatten();
    rows.filter(|row| is(row)).filter_map(|row| row["bytes"].as_u64()).sum()
}

#[test]
fn rows_add_up_to_the_charge_and_name_process_mount_and_file() -> Outcome {
    let Some(scene) = scene("ledger")? else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    let document = until("a read with time for all files", || {
        let document = json(&["explain", "--json", "--cgroup", &scene.group.path()])?;
        let is_whole =
            !caveats(&document).iter().any(|code| code == "files_left" || code == "residency_not_charge");
        Ok(is_whole.then_some(document))
    })?;
    assert_eq!(document["schema"], "strandline/explain-cgroup/1");
    assert_eq!(document["target"]["kind"], "cgroup");
    let current = document["cgroup"]["current_bytes"].as_u64().unwrap();
    assert_eq!(sum(&document, |_| true), current, "{document:#}");
    let totals = document["totals"].as_object().unwrap();
    assert_eq!(totals.values().filter_map(Value::as_u64).sum::<u64>(), current);
    assert_eq!(document["cost"]["stopped_seconds"], 0.0);
    // 10,000 blocks of 4,000 bytes; the freed ones are below a live one.
    let heap = sum(&document, |row| row["id"] == "group.anon" && row["pid"] == scene.heap.pid());
    assert!((38 * MIB..60 * MIB).contains(&heap), "{heap}: {document:#}");
    let of_file =
        |id: &str, path: &str| sum(&document, |row| row["id"] == id && row["file"].as_str() == Some(path));
    let lag = batch_bytes();
    let folder = format!("{}/", scene.small.0);
    let known = [
        ("group.shmem", &scene.shared.0, 24 * MIB),
        ("group.shmem", &folder, 200 * 64 * 1024),
        ("group.cache.clean", &scene.file, 32 * MIB),
    ];
    for (id, path, bytes) in known {
        let found = of_file(id, path);
        assert!((bytes - lag..=bytes).contains(&found), "{id} {found}: {document:#}");
    }
    let stock = row(&document, "group.charge_stock");
    assert!(stock <= lag, "{stock}");
    let unknown = row(&document, "group.unattributed");
    assert!(unknown * 100 <= current, "{unknown} of {current}: {document:#}");
    let inactive = document["cgroup"]["inactive_file_bytes"].as_u64().unwrap();
    assert_eq!(document["cgroup"]["working_set_bytes"], current - inactive);
    Ok(())
}

/// Allocates anonymous memory without end, after a line of input.
const HUNGRY: &str = "\
print('ready', flush=True)
input()
blocks = []
while True:
    blocks.append(bytearray(b'x' * (1 << 20)))";

#[test]
fn groups_above_name_the_processes_that_the_kernel_killed() -> Outcome {
    let Some(group) = MemoryGroup::new("killed") else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    // In version 2 a group counts memory for the groups below it only once this controller is
    // enabled.
    drop(std::fs::write(group.folder.join("cgroup.subtree_control"), "+memory"));
    let below = group.child("below").ok_or("no group below")?;
    below.limit(32 * MIB)?;
    let mut hungry = below.python(HUNGRY, &[])?;
    let pid = hungry.pid();
    hungry.send(b'\n')?;
    until_true("the kernel to kill the process", || !matches!(state(pid, pid), Some('R' | 'S' | 'D')))?;
    if std::fs::File::open("/dev/kmsg").is_err() {
        skipped(here!(), "the kernel's log cannot be read here (/dev/kmsg)");
        return Ok(());
    }
    let document = json(&["explain", "--json", "--cgroup", &group.path()])?;
    let kill = &document["kills"][0];
    assert_eq!((&kill["pid"], &kill["name"]), (&Value::from(pid), &Value::from("python3")), "{document:#}");
    assert_eq!(kill["limit_cgroup"], kill["cgroup"]);
    assert!(kill["cgroup"].as_str().is_some_and(|path| path.ends_with("/below")), "{kill}");
    let held = kill["anonymous_bytes"].as_u64().ok_or("no size")?;
    assert!((16 * MIB..=32 * MIB).contains(&held), "{kill}");
    let shown = run(&["explain", "--cgroup", &below.path()])?.stdout;
    assert!(
        shown.contains(&format!("python3 (process {pid})")) && shown.contains("; python3, killed"),
        "{shown}"
    );
    Ok(())
}

#[test]
fn conditions_apply_to_the_group_and_its_limit() -> Outcome {
    let Some(scene) = scene("conditions")? else {
        skipped(here!(), "no control group with a memory controller can be made here");
        return Ok(());
    };
    let path = scene.group.path();
    let status = |condition: &str| -> Result<Option<i32>> {
        Ok(run(&["explain", "--cgroup", &path, "--fail-if", condition])?.status)
    };
    // Without a limit a share of it is unknown, and so are the states of memory without ledgers.
    assert_eq!(status("stranded > 0")?, Some(3));
    scene.group.limit(512 * MIB)?;
    let cases = [
        ("row.group.shmem >= 20MiB", 1),
        ("current > 512MiB", 0),
        ("current > 10%", 1),
        ("working_set > 90 %", 0),
    ];
    for_each(cases, |(condition, expected)| match status(condition)? {
        Some(found) if found == *expected => Ok(()),
        found => Err(format!("{condition}: {found:?}").into()),
    })
}
