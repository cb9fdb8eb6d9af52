//! Samples the control group of the recorded process, and notices when the kernel kills a process
//! of it for lack of memory.
//!
//! The charge alone is read at every instant, the count of kills every 10 ms. The rows are read
//! every 100 ms, and as soon as the charge has changed by a sixty-fourth of the limit or a process
//! was killed: only the last sample before a kill shows what the group held. Nothing is stopped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use strandline_inspect::Caveat;
use strandline_inspect::group::facts::GroupFigures;
use strandline_inspect::group::sample::{GroupSample as CountedSample, GroupSampler};
use strandline_process::group::memory::value;
use strandline_process::group::{Group, Hierarchy, View};
use strandline_process::procfs::Process;
use strandline_recording::{CaveatRecord, GroupBlock, GroupKill, GroupSample, GroupStart, Record};

use super::clock::micros;

/// Interval of samples while the charge does not change much.
const SAMPLE_EVERY_US: u64 = 100_000;
/// Interval of reading the count of kills alone.
const READ_KILLS_EVERY_US: u64 = 10_000;
/// Maximum size of a file of counters that is read at every instant: a few lines.
const MAX_COUNTERS_BYTES: usize = 512;
/// Interval of checking whether the process was moved to another group.
const CHECK_GROUP_EVERY_US: u64 = 1_000_000;
/// While the charge is stable, a sample is followed by a pause of this many times its duration,
/// which bounds the processor time of samples.
const IDLE_PAUSE_FACTOR: u64 = 100;
/// The same factor while the charge changes.
const CHANGING_PAUSE_FACTOR: u64 = 20;
/// A change of the charge by the limit divided by this calls for a sample.
const STEPS_PER_LIMIT: u64 = 64;
/// Without a limit, a change of the charge by this calls for a sample.
const UNLIMITED_STEP_BYTES: u64 = 4 << 20;
/// Maximum number of groups in a recording: a process may be moved again and again.
const MAX_GROUPS: u32 = 16;
/// The signal that the kernel kills with for lack of memory.
const SIGKILL: i32 = 9;

/// Samples the group of one process.
pub struct GroupRecorder {
    hierarchy: Hierarchy,
    view: View,
    sampler: GroupSampler,
    /// Process id of the first process, whose group is sampled.
    root: i32,
    /// `None` once the group could not be sampled any more.
    sampled: Option<SampledGroup>,
    /// Number of the next group in the recording.
    next_number: u32,
    /// When to check next whether the process was moved to another group.
    next_group_check_us: u64,
    /// Records to write, in order.
    records: Vec<Record>,
    /// What was held at the last kill.
    last_kill: Option<GroupKill>,
    /// Whether the last sample was taken.
    has_ended: bool,
}

/// The sampled group.
struct SampledGroup {
    /// The record that begins it, with its current limits.
    start: GroupStart,
    group: Group,
    /// Its file with the charge, if it can be opened.
    charge_file: Option<File>,
    /// Its file with the count of kills, if it can be opened.
    kills_file: Option<File>,
    /// When to read the count of kills next.
    next_kills_us: u64,
    /// Samples that were not written yet.
    pending_samples: Vec<GroupSample>,
    last_sample: Option<GroupSample>,
    /// Number of kills at the first sample.
    first_kills: Option<u64>,
    /// How long the last sample took.
    sample_duration_us: u64,
    /// When the last sample was taken.
    last_sample_us: u64,
}

impl SampledGroup {
    fn new(number: u32, group: Group, now_us: u64) -> Self {
        let open = |name: &str| File::open(group.file(name)).ok();
        let charge_file = open(group.version.current_file());
        let kills_file = open(group.version.kills_file());
        let start = GroupStart {
            group: number,
            at_us: now_us,
            path: group.path.clone(),
            version: group.version.number(),
            ..GroupStart::default()
        };
        Self {
            start,
            group,
            charge_file,
            kills_file,
            next_kills_us: 0,
            pending_samples: Vec::new(),
            last_sample: None,
            first_kills: None,
            sample_duration_us: 0,
            last_sample_us: 0,
        }
    }

    /// Whether a sample is due.
    fn is_due(&mut self, now_us: u64) -> bool {
        let Some(last) = &self.last_sample else { return true };
        let passed_us = now_us.saturating_sub(self.last_sample_us);
        if passed_us >= SAMPLE_EVERY_US.max(self.sample_duration_us.saturating_mul(IDLE_PAUSE_FACTOR)) {
            return true;
        }
        let limit_bytes = self.start.effective_limit_bytes;
        let step_bytes = limit_bytes.map_or(UNLIMITED_STEP_BYTES, |limit| limit / STEPS_PER_LIMIT);
        if passed_us < self.sample_duration_us.saturating_mul(CHANGING_PAUSE_FACTOR) {
            return false;
        }
        let charge_text = read_counters(self.charge_file.as_ref());
        let charge_bytes = charge_text.and_then(|text| text.trim().parse::<u64>().ok());
        if charge_bytes.is_some_and(|bytes| bytes.abs_diff(last.current_bytes) > step_bytes) {
            return true;
        }
        if now_us < self.next_kills_us {
            return false;
        }
        self.next_kills_us = now_us.saturating_add(READ_KILLS_EVERY_US);
        let kills_text = read_counters(self.kills_file.as_ref());
        has_risen(kills_text.and_then(|text| value(&text, "oom_kill")), last.oom_kills)
    }

    /// The record of the pending samples, if there are any.
    fn take_block(&mut self) -> Option<Record> {
        let samples = std::mem::take(&mut self.pending_samples);
        (!samples.is_empty())
            .then(|| Record::GroupSamples(GroupBlock::new(self.start.group, &samples).into()))
    }

    /// Adds a sample; returns the one before it if a process was killed in between.
    fn add(&mut self, sample: GroupSample) -> Option<GroupSample> {
        let previous = self.last_sample.replace(sample.clone());
        self.first_kills = self.first_kills.or(sample.oom_kills);
        let before_kill = previous.filter(|previous| has_risen(sample.oom_kills, previous.oom_kills));
        match self.pending_samples.as_mut_slice() {
            // Keeps only the first and last of equal samples.
            [.., earlier, last] if sample.has_figures_of(last) && last.has_figures_of(earlier) => {
                last.at_us = sample.at_us;
            }
            _ => self.pending_samples.push(sample),
        }
        before_kill
    }
}

impl GroupRecorder {
    /// A recorder of the group at `folder`, or else of the group of process `root`. `None` if no
    /// hierarchy counts memory, if the group cannot be opened or is not below the mounted hierarchy
    /// (another namespace), or if it is the hierarchy's root, which is the whole machine.
    pub fn new(root: i32, folder: Option<&Path>) -> Option<Self> {
        let hierarchy = Hierarchy::of_this_machine().ok()?;
        let view = View::of(&hierarchy);
        let group = match folder {
            Some(folder) => hierarchy.open(&folder.to_string_lossy()),
            None => view.group_of(&hierarchy, &Process::open(root).ok()?),
        };
        let group = group.ok().filter(|group| group.path != "/")?;
        Some(Self {
            hierarchy,
            view,
            sampler: GroupSampler::default(),
            root,
            sampled: Some(SampledGroup::new(0, group, 0)),
            next_number: 1,
            next_group_check_us: CHECK_GROUP_EVERY_US,
            records: Vec::new(),
            last_kill: None,
            has_ended: false,
        })
    }

    /// Takes a sample if one is due.
    pub fn sample_if_due(&mut self, now_us: u64) {
        if self.has_ended {
            return;
        }
        if now_us >= self.next_group_check_us {
            self.next_group_check_us = now_us.saturating_add(CHECK_GROUP_EVERY_US);
            self.follow_process(now_us);
        }
        if self.sampled.as_mut().is_some_and(|sampled| sampled.is_due(now_us)) {
            self.take_sample(now_us);
        }
    }

    /// Takes the last sample, when the process has ended by `signal` or the recording ends. Later
    /// calls do nothing.
    pub fn end(&mut self, now_us: u64, signal: Option<i32>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let last = self
            .sampled
            .as_ref()
            .and_then(|sampled| Some((sampled.last_sample.clone()?, sampled.start.clone())));
        if self.take_sample(now_us) || signal != Some(SIGKILL) {
            return;
        }
        if let Some((sample, start)) = last {
            self.last_kill = Some(group_kill(&start, &sample, now_us, None, None));
        }
    }

    /// Returns the records to write now.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.records.extend(self.sampled.as_mut().and_then(SampledGroup::take_block));
        std::mem::take(&mut self.records)
    }

    /// What the group held at the last kill.
    pub fn kill(&self) -> Option<GroupKill> {
        self.last_kill.clone()
    }

    /// Switches to the group that the process is in now.
    fn follow_process(&mut self, now_us: u64) {
        let Some(sampled) = &self.sampled else { return };
        // After its end, or where its group cannot be found, the last group is sampled.
        let group = Process::open(self.root).ok();
        let group = group.and_then(|process| self.view.group_of(&self.hierarchy, &process).ok());
        let new_group = group.filter(|group| group.path != sampled.start.path && group.path != "/");
        let Some(group) = new_group else { return };
        if self.next_number >= MAX_GROUPS {
            self.stop_sampling(
                &format!("the process was in {MAX_GROUPS} groups, and is in another one"),
                now_us,
            );
            return;
        }
        self.records = self.take_records();
        self.sampled = Some(SampledGroup::new(self.next_number, group, now_us));
        self.next_number += 1;
    }

    /// Takes a sample; false if the group cannot be sampled any more.
    fn take_sample(&mut self, now_us: u64) -> bool {
        let Some(sampled) = &mut self.sampled else { return false };
        let started_at = Instant::now();
        let result = self.sampler.take(&sampled.group);
        sampled.sample_duration_us = micros(started_at.elapsed());
        sampled.last_sample_us = now_us;
        let CountedSample { figures, rows } = match result {
            Ok(sample) => sample,
            Err(error) => {
                self.stop_sampling(&error.to_string(), now_us);
                return false;
            }
        };
        if let Some(start) = changed_start(sampled, &figures, now_us) {
            // Samples before the change belong to the limits before it.
            self.records.extend(sampled.take_block());
            self.records.push(Record::Group(Box::new(start)));
        }
        let sample = GroupSample {
            at_us: now_us,
            current_bytes: figures.current_bytes,
            working_set_bytes: figures.working_set_bytes,
            reclaimable_bytes: figures.reclaimable_bytes,
            swap_bytes: figures.swap_bytes,
            oom_kills: figures.events.oom_kill,
            rows: rows.iter().map(|row| (row.id.to_owned(), row.bytes)).collect(),
        };
        let kills = sample.oom_kills;
        if let Some(before) = sampled.add(sample) {
            let kills = kills.zip(sampled.first_kills).map(|(total, first)| total.saturating_sub(first));
            self.last_kill = Some(group_kill(&sampled.start, &before, now_us, kills, figures.peak_bytes));
        }
        true
    }

    /// Ends the samples of a group that cannot be sampled any more, and says why.
    fn stop_sampling(&mut self, why: &str, now_us: u64) {
        self.records = self.take_records();
        if let Some(sampled) = self.sampled.take() {
            let code = if sampled.last_sample.is_some() { "group_lost" } else { "group_not_sampled" };
            let text = format!("{why}; it is not sampled from here on");
            let caveat = Caveat::new(code, format!("control group {}", sampled.start.path), None, text);
            self.records.push(Record::Caveat(CaveatRecord { at_us: now_us, caveat }));
        }
    }
}

/// Whether a count is known to be above an earlier one.
fn has_risen(count: Option<u64>, earlier_count: Option<u64>) -> bool {
    count.zip(earlier_count).is_some_and(|(count, earlier)| count > earlier)
}

/// The text of an open file of counters, from its beginning.
fn read_counters(file: Option<&File>) -> Option<String> {
    let mut text = [0u8; MAX_COUNTERS_BYTES];
    let length = file?.read_at(&mut text, 0).ok()?;
    Some(String::from_utf8_lossy(text.get(..length)?).into_owned())
}

/// The record that begins a group or states its new limits; `None` if the limits are unchanged.
fn changed_start(sampled: &mut SampledGroup, figures: &GroupFigures, now_us: u64) -> Option<GroupStart> {
    let start = GroupStart {
        limit_bytes: figures.limit_bytes,
        effective_limit_bytes: figures.effective_limit_bytes,
        effective_limit_path: figures.effective_limit_path.clone(),
        unread_limit_path: figures.unread_limit_path.clone(),
        ..sampled.start.clone()
    };
    if sampled.last_sample.is_some() && start == sampled.start {
        return None;
    }
    sampled.start = GroupStart { at_us: now_us, ..start };
    Some(sampled.start.clone())
}

/// What `group` held at a kill that was noticed at `now_us`: its last sample.
fn group_kill(
    group: &GroupStart,
    sample: &GroupSample,
    now_us: u64,
    kills: Option<u64>,
    peak_bytes: Option<u64>,
) -> GroupKill {
    let age_us = now_us.saturating_sub(sample.at_us);
    let limit_bytes = group.effective_limit_bytes;
    let unused_bytes = limit_bytes.map(|limit| limit.saturating_sub(sample.current_bytes));
    GroupKill {
        group: group.group,
        path: group.path.clone(),
        kills,
        noticed_us: now_us,
        sample_us: sample.at_us,
        age_us,
        current_bytes: sample.current_bytes,
        effective_limit_bytes: limit_bytes,
        peak_bytes,
        rows: sample.rows.clone(),
        unknown: unknown_text(age_us, unused_bytes, kills),
    }
}

/// States what cannot be known about a kill that was noticed `age_us` after a sample, which had
/// `unused_bytes` left to the limit.
fn unknown_text(age_us: u64, unused_bytes: Option<u64>, kills: Option<u64>) -> String {
    let mut text = String::new();
    if kills.is_none() {
        text += "The group was removed before its count of kills was read: whether memory was the reason is not known. ";
    }
    let age_ms = age_us as f64 / 1e3;
    text += &format!(
        "No sample has what was charged in the {age_ms:.1} ms from the sample to when the kill was noticed"
    );
    if let Some(bytes) = unused_bytes {
        text += &format!(" (at most {} KiB, if this limit was met)", bytes / 1024);
    }
    text + ". The kernel counts kills, but not which limit was met, and a sample does not have which process held a row."
}

#[cfg(test)]
mod tests {
    use super::*;
    use strandline_process::group::Version;

    struct Fabricated {
        folder: tempfile::TempDir,
        recorder: GroupRecorder,
    }

    fn fabricated() -> Fabricated {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("job")).unwrap();
        let hierarchy = Hierarchy::at(Version::Two, folder.path());
        let group = hierarchy.open("/job").unwrap();
        let recorder = GroupRecorder {
            view: View::default(),
            sampler: GroupSampler::default(),
            root: i32::MAX,
            sampled: None,
            next_number: 1,
            next_group_check_us: u64::MAX,
            records: Vec::new(),
            last_kill: None,
            has_ended: false,
            hierarchy,
        };
        let mut fixture = Fabricated { folder, recorder };
        fixture.write("cgroup.procs", "");
        fixture.write("memory.max", "1048576\n");
        fixture.charge(4096, 0);
        fixture.recorder.sampled = Some(SampledGroup::new(0, group, 0));
        fixture
    }

    impl Fabricated {
        /// Samples as if the last sample had taken no time: how long it really takes depends on the
        /// machine.
        fn sample_if_due(&mut self, now_us: u64) {
            self.recorder.sampled.as_mut().unwrap().sample_duration_us = 0;
            self.recorder.sample_if_due(now_us);
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.folder.path().join("job").join(name), text).unwrap();
        }

        fn charge(&self, bytes: u64, kills: u64) {
            self.write("memory.current", &bytes.to_string());
            self.write("memory.stat", &format!("anon {bytes}\nfile 0\ninactive_file 0\n"));
            self.write("memory.events", &format!("oom {kills}\noom_kill {kills}\n"));
        }

        fn samples(&mut self) -> Vec<GroupSample> {
            let blocks = self.recorder.take_records().into_iter().filter_map(|record| match record {
                Record::GroupSamples(block) => Some(block),
                _ => None,
            });
            blocks.flat_map(|block| block.samples().collect::<Vec<_>>()).collect()
        }
    }

    #[test]
    fn a_change_calls_for_a_sample_and_equal_ones_are_joined() {
        let mut fixture = fabricated();
        fixture.sample_if_due(0);
        let begin = fixture.recorder.take_records();
        let [Record::Group(start), Record::GroupSamples(_)] = &begin[..] else { panic!("{begin:?}") };
        assert_eq!((start.path.as_str(), start.effective_limit_bytes), ("/job", Some(1 << 20)));
        // A small change waits, a large one does not.
        fixture.charge(8192, 0);
        fixture.sample_if_due(SAMPLE_EVERY_US / 2);
        assert!(fixture.samples().is_empty());
        fixture.charge(1 << 19, 0);
        fixture.sample_if_due(SAMPLE_EVERY_US / 2);
        assert_eq!(fixture.samples().first().map(|sample| sample.current_bytes), Some(1 << 19));
        for turn in 0..10 {
            fixture.sample_if_due((turn + 1) * 1_000_000);
        }
        let times: Vec<u64> = fixture.samples().iter().map(|sample| sample.at_us).collect();
        assert_eq!(times, [1_000_000, 10_000_000]);
        // A new limit is a new line.
        fixture.write("memory.max", "2097152\n");
        fixture.sample_if_due(11_000_000);
        let records = fixture.recorder.take_records();
        assert!(
            matches!(&records[0], Record::Group(start) if start.limit_bytes == Some(2 << 20)),
            "{records:?}"
        );
    }

    #[test]
    fn a_kill_is_named_with_the_sample_before_it() {
        let mut fixture = fabricated();
        fixture.charge(600_000, 2);
        fixture.recorder.sample_if_due(0);
        fixture.charge(4096, 3);
        fixture.recorder.end(7_000, Some(SIGKILL));
        let kill = fixture.recorder.kill().unwrap();
        assert_eq!((kill.kills, kill.current_bytes, kill.age_us), (Some(1), 600_000, 7_000));
        assert_eq!(kill.rows["group.anon"], 600_000);
        assert!(kill.unknown.contains("7.0 ms") && kill.unknown.contains("438 KiB"), "{}", kill.unknown);
        assert_eq!(fixture.samples().len(), 2);
        fixture.recorder.end(8_000, None);
        assert!(fixture.samples().is_empty(), "there is one end");
    }

    #[test]
    fn a_kill_calls_for_a_sample() {
        let mut fixture = fabricated();
        fixture.recorder.sample_if_due(0);
        fixture.recorder.sampled.as_mut().unwrap().sample_duration_us = 2_000;
        fixture.charge(4096, 1);
        fixture.recorder.sample_if_due(20_000);
        assert!(fixture.recorder.kill().is_none(), "there is a pause after each sample");
        fixture.recorder.sample_if_due(45_000);
        assert_eq!(fixture.recorder.kill().map(|kill| kill.age_us), Some(45_000));
    }

    #[test]
    fn a_count_of_kills_that_becomes_known_is_no_kill() {
        let mut fixture = fabricated();
        fixture.write("memory.events", "oom 0\n");
        fixture.sample_if_due(0);
        fixture.charge(4096, 3);
        fixture.sample_if_due(1_000_000);
        assert!(fixture.recorder.kill().is_none());
        fixture.charge(4096, 4);
        fixture.sample_if_due(2_000_000);
        assert_eq!(fixture.recorder.kill().and_then(|kill| kill.kills), Some(1));
    }

    #[test]
    fn a_removed_group_reports_its_unknown_figures() {
        let mut fixture = fabricated();
        fixture.recorder.sample_if_due(0);
        std::fs::remove_dir_all(fixture.folder.path().join("job")).unwrap();
        fixture.recorder.end(5_000, Some(SIGKILL));
        let kill = fixture.recorder.kill().unwrap();
        assert!(kill.kills.is_none() && kill.unknown.contains("is not known"), "{kill:?}");
        let records = fixture.recorder.take_records();
        let lost =
            |record: &Record| matches!(record, Record::Caveat(lost) if lost.caveat.code == "group_lost");
        assert!(records.iter().any(lost), "{records:?}");
    }

    #[test]
    fn without_counters_there_is_one_caveat() {
        let mut fixture = fabricated();
        std::fs::remove_file(fixture.folder.path().join("job/memory.current")).unwrap();
        fixture.recorder.sample_if_due(0);
        fixture.recorder.sample_if_due(1_000_000);
        fixture.recorder.end(2_000_000, Some(SIGKILL));
        let records = fixture.recorder.take_records();
        let [Record::Caveat(caveat)] = &records[..] else { panic!("{records:?}") };
        assert!(caveat.caveat.code == "group_not_sampled" && caveat.caveat.text.contains("subtree_control"));
        assert!(fixture.recorder.kill().is_none());
    }
}
