//! The rows of a control group at one moment, from the kernel's counters alone: cheap enough to be
//! read again and again. They have the ids of the ledger's rows and add up to the charge as well.
//!
//! A sample reads no process and no file. So anonymous memory is one row (`group.anon`), and where
//! the kernel does not count page tables or stacks by group (version 1), `group.kernel.other`
//! contains them.

use strandline_process::group::Group;
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::memory::{Memory, effective_limit};

use super::facts::GroupFigures;
use super::online_processors;
use super::parts::{self, Estimates, Parts};
use crate::facts::State;

/// Maximum number of rows of a sample: two kinds are parts of anonymous memory, which only the
/// processes' own figures separate.
pub const MAX_ROWS: usize = parts::ALL.len() - 2;

/// What is charged to a group at one moment.
#[derive(Clone, Debug, Default)]
pub struct GroupSample {
    /// The kernel's own figures.
    pub figures: GroupFigures,
    /// The rows that the kernel counts here, also those of 0 bytes; they add up to the charge.
    pub rows: Vec<SampleRow>,
}

/// A row of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// Name of the row: `group.anon`.
    pub id: &'static str,
    /// What can release the bytes.
    pub state: State,
    /// Number of bytes.
    pub bytes: u64,
}

/// Takes samples.
#[derive(Clone, Copy, Debug)]
pub struct GroupSampler {
    /// Number of processors, each of which charges some memory in advance.
    processors: u64,
}

impl Default for GroupSampler {
    fn default() -> Self {
        Self { processors: online_processors() }
    }
}

impl GroupSampler {
    /// Reads what is charged to `group` now.
    ///
    /// # Errors
    /// The group was removed, or its memory is not counted.
    pub fn take(self, group: &Group) -> Result<GroupSample, GroupError> {
        let memory = Memory::read(group)?;
        let parts = Parts::divide(&memory, Estimates::default(), self.processors);
        let counted = parts.all.iter().filter(|part| part.is_counted);
        let rows = counted
            .map(|part| SampleRow { id: part.kind.id, state: part.kind.state, bytes: part.bytes })
            .collect();
        Ok(GroupSample { figures: GroupFigures::new(group, &memory, effective_limit(group)), rows })
    }
}

#[cfg(test)]
mod tests {
    use strandline_process::group::{Hierarchy, Version};

    use super::*;

    fn sample(version: Version, files: &[(&str, &str)]) -> GroupSample {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("pod")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join("pod").join(name), text).unwrap();
        }
        let group = Hierarchy::at(version, folder.path()).open("/pod").unwrap();
        let sample = GroupSampler::default().take(&group).unwrap();
        assert!(sample.rows.len() <= MAX_ROWS);
        let sum: u64 = sample.rows.iter().map(|row| row.bytes).sum();
        assert_eq!(sum, sample.figures.current_bytes, "{sample:?}");
        sample
    }

    fn bytes(sample: &GroupSample, id: &str) -> Option<u64> {
        sample.rows.iter().find(|row| row.id == id).map(|row| row.bytes)
    }

    #[test]
    fn rows_of_both_versions_add_up_to_the_charge() {
        let stat = "anon 40000000\nfile 30000000\nkernel 5000000\nkernel_stack 100000\npagetables 200000\n\
            sock 0\nshmem 10000000\ninactive_file 12000000\nfile_dirty 0\nslab_reclaimable 900000\n";
        let two = sample(
            Version::Two,
            &[("memory.current", "76000000\n"), ("memory.stat", stat), ("memory.max", "100000000\n")],
        );
        let of = |id| bytes(&two, id);
        assert_eq!((of("group.anon"), of("group.shmem")), (Some(40_000_000), Some(10_000_000)));
        assert_eq!((of("group.cache.clean"), of("group.cache.dirty")), (Some(20_000_000), Some(0)));
        assert_eq!((of("group.sockets"), of("group.percpu")), (Some(0), None), "no counter is not 0");
        assert_eq!((of("group.kernel.other"), of("group.kernel_stacks")), (Some(3_800_000), Some(100_000)));
        assert_eq!(two.figures.working_set_bytes, Some(64_000_000));
        assert_eq!(two.figures.effective_limit_bytes, Some(100_000_000));
        let stat = "cache 1\ntotal_cache 3000\ntotal_rss 50000\ntotal_shmem 1000\ntotal_dirty 500\n";
        let one = sample(
            Version::One,
            &[
                ("memory.usage_in_bytes", "63000\n"),
                ("memory.stat", stat),
                ("memory.kmem.usage_in_bytes", "9000\n"),
            ],
        );
        let of = |id| bytes(&one, id);
        assert_eq!((of("group.anon"), of("group.kernel.other")), (Some(50_000), Some(9_000)));
        assert_eq!((of("group.cache.clean"), of("group.cache.dirty")), (Some(1_500), Some(500)));
        assert_eq!((of("group.page_tables"), of("group.charge_stock")), (None, Some(1_000)));
    }
}
