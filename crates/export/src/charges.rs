//! Reads what the kernel charges to the control groups of the exported processes and to the
//! requested ones, by the rows of `explain --cgroup`. It reads counters only, and stops no process.
//!
//! It reads a limited number of groups, for a limited time at each survey, the least recently read
//! first. The others keep the figures that were read last, and their age.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use strandline_inspect::group::sample::{GroupSample, GroupSampler};
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::{Hierarchy, View};
use strandline_survey::survey::{MAX_GROUPS, OTHER_GROUPS};
use strandline_survey::{Selection, Survey};

/// Time limit for each survey. A group takes a fraction of a millisecond; a large machine may need
/// ten times as long, as it first adds up the counters of all processors.
const TIME_LIMIT: Duration = Duration::from_millis(20);

/// What is charged to a group.
#[derive(Debug, Clone)]
pub struct Charge {
    /// Path of the group.
    pub path: String,
    /// When it was read.
    pub at: Instant,
    /// Its figures and rows.
    pub sample: GroupSample,
}

/// Numbers of groups without figures, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// They exceed the maximum number of groups.
    pub limit: u64,
    /// Their memory is charged to a group above them, or may not be read.
    pub not_counted: u64,
    /// They were removed, or are not below the mounted hierarchy (another namespace).
    pub not_found: u64,
    /// There was no time to read them so far.
    pub time: u64,
}

/// What is charged to all groups.
#[derive(Debug, Default)]
pub struct Charges {
    /// Groups with figures, sorted by path.
    pub groups: Vec<Charge>,
    /// Groups without figures.
    pub left_out: LeftOut,
}

/// Why a group has no figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingReason {
    /// See [`LeftOut::not_counted`].
    NotCounted,
    /// See [`LeftOut::not_found`].
    NotFound,
}

/// The last attempt to read a group.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// Its figures, or why it has none.
    result: Result<GroupSample, MissingReason>,
}

/// The mounted hierarchy, and how this process's view of paths relates to it.
#[derive(Debug)]
struct MountedGroups {
    hierarchy: Hierarchy,
    view: View,
}

/// Reads charges, and keeps those of groups that it has no time to read again.
#[derive(Debug)]
pub struct ChargeReader {
    /// `None` if no hierarchy that counts memory is mounted.
    mounted: Option<MountedGroups>,
    sampler: GroupSampler,
    /// By path of the group.
    readings: HashMap<String, Reading>,
    /// See [`TIME_LIMIT`].
    time_limit: Duration,
}

impl Default for ChargeReader {
    fn default() -> Self {
        // Without a hierarchy, no group is found.
        let hierarchy = Hierarchy::of_this_machine().ok();
        Self::new(hierarchy.map(|hierarchy| MountedGroups { view: View::of(&hierarchy), hierarchy }))
    }
}

impl ChargeReader {
    fn new(mounted: Option<MountedGroups>) -> Self {
        Self { mounted, sampler: GroupSampler::default(), readings: HashMap::new(), time_limit: TIME_LIMIT }
    }

    /// Reads what is charged to the groups of `survey`: requested ones first, then those whose
    /// processes have the most RSS.
    pub fn read(&mut self, survey: &Survey, selection: &Selection) -> Charges {
        let mut process_groups: Vec<_> =
            survey.groups.iter().filter(|group| group.path != OTHER_GROUPS).collect();
        let requested = selection.requested_groups(process_groups.iter().map(|group| group.path.as_str()));
        process_groups.sort_by_key(|group| std::cmp::Reverse(group.sum.rss_bytes));
        let mut unique_paths = HashSet::new();
        let with_duplicates =
            requested.into_iter().chain(process_groups.into_iter().map(|group| group.path.clone()));
        let paths: Vec<String> = with_duplicates.filter(|path| unique_paths.insert(path.clone())).collect();
        let mut charges = self.read_groups(paths);
        charges.left_out.limit += survey.summed_groups;
        charges
    }

    /// Reads groups of distinct paths, the most important ones first.
    fn read_groups(&mut self, mut paths: Vec<String>) -> Charges {
        let limit = paths.len().saturating_sub(MAX_GROUPS) as u64;
        let mut left_out = LeftOut { limit, ..LeftOut::default() };
        paths.truncate(MAX_GROUPS);
        let mut old_readings = std::mem::take(&mut self.readings);
        self.readings = paths.iter().filter_map(|path| old_readings.remove_entry(path)).collect();
        self.read_oldest_first(&paths);
        let mut groups = Vec::with_capacity(paths.len());
        for path in paths {
            match self.readings.get(&path) {
                Some(Reading { at, result: Ok(sample) }) => {
                    groups.push(Charge { path, at: *at, sample: sample.clone() });
                }
                Some(Reading { result: Err(MissingReason::NotCounted), .. }) => left_out.not_counted += 1,
                Some(Reading { result: Err(MissingReason::NotFound), .. }) => left_out.not_found += 1,
                None => left_out.time += 1,
            }
        }
        groups.sort_by(|a, b| a.path.cmp(&b.path));
        Charges { groups, left_out }
    }

    /// Reads groups until the time is over: first those that were never read, then the least
    /// recently read ones.
    fn read_oldest_first(&mut self, paths: &[String]) {
        let mut oldest_first: Vec<&String> = paths.iter().collect();
        oldest_first.sort_by_key(|path| self.readings.get(*path).map(|reading| reading.at));
        let started_at = Instant::now();
        for path in oldest_first {
            let result = self.read_group(path);
            self.readings.insert(path.clone(), Reading { at: Instant::now(), result });
            if started_at.elapsed() >= self.time_limit {
                break;
            }
        }
    }

    /// Reads one group.
    fn read_group(&self, path: &str) -> Result<GroupSample, MissingReason> {
        let MountedGroups { hierarchy, view } = self.mounted.as_ref().ok_or(MissingReason::NotFound)?;
        let sample = view.open(hierarchy, path).and_then(|group| self.sampler.take(&group));
        sample.map_err(|error| match error {
            GroupError::NotCounted { .. } | GroupError::Io { .. } => MissingReason::NotCounted,
            _ => MissingReason::NotFound,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strandline_process::group::Version;

    use super::*;

    fn make_group(folder: &Path, name: &str, current: Option<&str>) {
        std::fs::create_dir(folder.join(name)).unwrap();
        std::fs::write(folder.join(name).join("cgroup.procs"), "").unwrap();
        if let Some(current) = current {
            std::fs::write(folder.join(name).join("memory.current"), current).unwrap();
            std::fs::write(folder.join(name).join("memory.stat"), "anon 1\nfile 1\n").unwrap();
        }
    }

    /// A reader with a time limit that tests do not reach.
    fn reader(folder: &Path) -> ChargeReader {
        let hierarchy = Hierarchy::at(Version::Two, folder);
        let mounted = MountedGroups { hierarchy, view: View::default() };
        ChargeReader { time_limit: Duration::from_secs(600), ..ChargeReader::new(Some(mounted)) }
    }

    #[test]
    fn groups_beyond_the_limit_and_without_figures_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        make_group(folder.path(), "a", Some("8192\n"));
        make_group(folder.path(), "threaded", None);
        let mut paths = vec!["/threaded".to_owned(), "/a".to_owned(), "/../b".to_owned()];
        paths.extend((0..MAX_GROUPS).map(|n| format!("/none{n}")));
        let charges = reader(folder.path()).read_groups(paths);
        let charge_bytes: Vec<_> =
            charges.groups.iter().map(|group| (&*group.path, group.sample.figures.current_bytes)).collect();
        assert_eq!(charge_bytes, [("/a", 8192)]);
        let not_found = MAX_GROUPS as u64 - 2;
        assert_eq!(charges.left_out, LeftOut { limit: 3, not_counted: 1, not_found, time: 0 });
    }

    #[test]
    fn without_time_one_group_has_its_turn_and_the_others_keep_their_figures() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["/a", "/b"].map(str::to_owned).to_vec();
        make_group(folder.path(), "a", Some("1"));
        make_group(folder.path(), "b", Some("1"));
        let mut reader = reader(folder.path());
        reader.time_limit = Duration::ZERO;
        assert_eq!(reader.read_groups(names.clone()).left_out.time, 1);
        let second = reader.read_groups(names.clone());
        assert_eq!((second.groups.len(), second.left_out.time), (2, 0));
        std::fs::write(folder.path().join("a/memory.current"), "2").unwrap();
        let third = reader.read_groups(names.clone());
        assert_eq!(third.groups[0].sample.figures.current_bytes, 2, "the oldest has its turn");
        assert_eq!(third.groups[1].at, second.groups[1].at);
        std::fs::remove_dir_all(folder.path().join("b")).unwrap();
        let fourth = reader.read_groups(names);
        assert_eq!((fourth.groups.len(), fourth.left_out.not_found), (1, 1), "a removed group has none");
        assert!(reader.read_groups(Vec::new()).groups.is_empty() && reader.readings.is_empty());
    }

    #[test]
    fn without_a_hierarchy_nothing_is_found() {
        let charges = ChargeReader::new(None).read_groups(vec!["/".to_owned()]);
        assert_eq!(charges.left_out, LeftOut { not_found: 1, ..LeftOut::default() });
    }
}
