//! Samples the control group of the recorded process, and notices when the kernel kills a process
//! of it for lack of memory.
//!
//! The charge alone is read at every instant, the count of kills every 10 ms, and the rows every
//! 100 ms and as soon as the charge has changed by a sixty-fourth of the limit or a process was
//! killed: what a group held at a kill is known only from the last sample before. Only counters are
//! read; nothing is stopped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use strandline_inspect::Caveat;
use strandline_inspect::group::facts::GroupFigures;
use strandline_inspect::group::sample::{GroupSample as Sampled, GroupSampler};
use strandline_process::group::hierarchy::GroupError;
use strandline_process::group::{Group, Hierarchy, Version, View};
use strandline_process::procfs::Process;
use strandline_recording::{CaveatRecord, GroupBlock, GroupKill, GroupSample, GroupStart, Record};

/// Interval of samples while the charge does not change much.
const SAMPLE_EVERY_US: u64 = 100_000;
/// Interval of reading the count of kills alone.
const KILLS_EVERY_US: u64 = 10_000;
/// Maximum bytes of a file of counters.
const MAX_BYTES: usize = 512;
/// Interval of checking whether the process was moved to another group.
const SEARCH_EVERY_US: u64 = 1_000_000;
/// A sample is followed by a pause of this many times as long, so that samples take at most that
/// part of a processor: usually, and while the charge changes.
const USUAL_PAUSE: u64 = 100;
const LIVELY_PAUSE: u64 = 20;
/// A change of the charge by this part of the limit calls for a sample; without a limit, one by so
/// many bytes.
const STEPS_OF_LIMIT: u64 = 64;
const STEP_BYTES: u64 = 4 << 20;
/// Maximum number of groups in a recording, should the process be moved again and again.
const MAX_GROUPS: u32 = 16;
const SIGKILL: i32 = 9;

/// Samples the group of one process.
pub struct GroupRecorder {
    hierarchy: Hierarchy,
    view: View,
    sampler: GroupSampler,
    root: i32,
    watched: Option<Watched>,
    /// Number of the next group.
    next_number: u32,
    next_search_us: u64,
    /// What is to be written, in order.
    records: Vec<Record>,
    /// What was held at the last kill.
    kill: Option<GroupKill>,
    has_ended: bool,
}

/// The sampled group.
struct Watched {
    start: GroupStart,
    group: Group,
    /// Its file with the charge, if it can be opened.
    charge: Option<File>,
    /// Its file with the count of kills.
    kills: Option<File>,
    next_kills_us: u64,
    /// Samples that were not written yet.
    pending: Vec<GroupSample>,
    last: Option<GroupSample>,
    /// Kills that were counted before.
    first_kills: Option<u64>,
    /// Duration and end of the last look.
    took_us: u64,
    looked_us: u64,
}

impl Watched {
    fn new(number: u32, group: Group, now: u64) -> Self {
        let open = |name: &str| File::open(group.file(name)).ok();
        let charge = open(group.version.current_file());
        let kills = match group.version {
            Version::One => open("memory.oom_control"),
            Version::Two => open("memory.events"),
        };
        let start = GroupStart {
            group: number,
            at_us: now,
            path: group.path.clone(),
            version: group.version.number(),
            ..GroupStart::default()
        };
        Self {
            start,
            group,
            charge,
            kills,
            next_kills_us: 0,
            pending: Vec::new(),
            last: None,
            first_kills: None,
            took_us: 0,
            looked_us: 0,
        }
    }

    /// Whether a sample is due.
    fn is_due(&mut self, now: u64) -> bool {
        let Some(last) = &self.last else { return true };
        let passed = now.saturating_sub(self.looked_us);
        if passed >= SAMPLE_EVERY_US.max(self.took_us.saturating_mul(USUAL_PAUSE)) {
            return true;
        }
        let limit = self.start.effective_limit_bytes;
        let step = limit.map_or(STEP_BYTES, |limit| limit / STEPS_OF_LIMIT);
        if passed < self.took_us.saturating_mul(LIVELY_PAUSE) {
            return false;
        }
        let charge = read(self.charge.as_ref()).and_then(|text| text.trim().parse::<u64>().ok());
        if charge.is_some_and(|charge| charge.abs_diff(last.current_bytes) > step) {
            return true;
        }
        if now < self.next_kills_us {
            return false;
        }
        self.next_kills_us = now.saturating_add(KILLS_EVERY_US);
        let text = read(self.kills.as_ref()).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
        kills.is_some_and(|kills| last.oom_kills.is_some_and(|before| kills > before))
    }

    /// Takes a sample in; returns the one before it if a process was killed in between.
    fn add(&mut self, sample: GroupSample) -> Option<GroupSample> {
        let before = self.last.replace(sample.clone());
        self.first_kills = self.first_kills.or(sample.oom_kills);
        let has_risen = |before: &GroupSample| sample.oom_kills > before.oom_kills;
        let killed = before.filter(has_risen);
        match self.pending.as_mut_slice() {
            // Of equal samples the first and the last are kept.
            [.., earlier, last] if sample.has_figures_of(last) && last.has_figures_of(earlier) => {
                last.at_us = sample.at_us;
            }
            _ => self.pending.push(sample),
        }
        killed
    }
}

impl GroupRecorder {
    /// A recorder of the group at `folder`, or else of that of process `root`. `None` where no
    /// hierarchy counts memory, or it is in the root of it, which is the whole machine.
    pub fn new(root: i32, folder: Option<&Path>) -> Option<Self> {
        let hierarchy = Hierarchy::of_this_machine().ok()?;
        let view = View::of(&hierarchy);
        let group = match folder {
            Some(folder) => hierarchy.open(&folder.to_string_lossy()),
            None => Process::open(root)
                .map_err(|_| GroupError::NoHierarchy)
                .and_then(|process| view.group_of(&hierarchy, &process)),
        };
        let group = group.ok().filter(|group| group.path != "/")?;
        Some(Self {
            hierarchy,
            view,
            sampler: GroupSampler::default(),
            root,
            watched: Some(Watched::new(0, group, 0)),
            next_number: 1,
            next_search_us: SEARCH_EVERY_US,
            records: Vec::new(),
            kill: None,
            has_ended: false,
        })
    }

    /// Takes a sample if one is due.
    pub fn work(&mut self, now: u64) {
        if self.has_ended {
            return;
        }
        if now >= self.next_search_us {
            self.next_search_us = now.saturating_add(SEARCH_EVERY_US);
            self.follow(now);
        }
        if self.watched.as_mut().is_some_and(|watched| watched.is_due(now)) {
            self.look(now);
        }
    }

    /// The last look, when the process has ended by `signal` or the recording ends; later calls do
    /// nothing.
    pub fn end(&mut self, now: u64, signal: Option<i32>) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let last =
            self.watched.as_ref().and_then(|watched| Some((watched.last.clone()?, watched.start.clone())));
        if self.look(now) || signal != Some(SIGKILL) {
            return;
        }
        if let Some((sample, start)) = last {
            self.kill = Some(killed(&start, &sample, now, None, None));
        }
    }

    /// What is to be written now.
    pub fn take_records(&mut self) -> Vec<Record> {
        if let Some(watched) = &mut self.watched {
            let samples = std::mem::take(&mut watched.pending);
            if !samples.is_empty() {
                let block = GroupBlock::new(watched.start.group, &samples);
                self.records.push(Record::GroupSamples(Box::new(block)));
            }
        }
        std::mem::take(&mut self.records)
    }

    /// What the group held at the last kill.
    pub fn kill(&self) -> Option<GroupKill> {
        self.kill.clone()
    }

    /// Goes to the group that the process is in now.
    fn follow(&mut self, now: u64) {
        let Some(watched) = &self.watched else { return };
        let group = Process::open(self.root).ok();
        let group = group.and_then(|process| self.view.group_of(&self.hierarchy, &process).ok());
        let moved = group.filter(|group| group.path != watched.start.path && group.path != "/");
        let Some(group) = moved.filter(|_| self.next_number < MAX_GROUPS) else { return };
        self.records = self.take_records();
        self.watched = Some(Watched::new(self.next_number, group, now));
        self.next_number += 1;
    }

    /// Takes a sample; false if the group has none any more.
    fn look(&mut self, now: u64) -> bool {
        let Some(watched) = &mut self.watched else { return false };
        let began = Instant::now();
        let taken = self.sampler.take(&watched.group);
        watched.took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        watched.looked_us = now;
        let Sampled { figures, rows } = match taken {
            Ok(sampled) => sampled,
            Err(error) => {
                self.lose(&error, now);
                return false;
            }
        };
        if let Some(start) = changed_start(watched, &figures, now) {
            // Samples before the change are of the limits before it.
            let before = std::mem::take(&mut watched.pending);
            if !before.is_empty() {
                let block = GroupBlock::new(start.group, &before);
                self.records.push(Record::GroupSamples(Box::new(block)));
            }
            self.records.push(Record::Group(Box::new(start)));
        }
        let sample = GroupSample {
            at_us: now,
            current_bytes: figures.current_bytes,
            working_set_bytes: figures.working_set_bytes,
            reclaimable_bytes: figures.reclaimable_bytes,
            swap_bytes: figures.swap_bytes,
            oom_kills: figures.events.oom_kill,
            rows: rows.iter().map(|row| (row.id.to_owned(), row.bytes)).collect(),
        };
        let kills = sample.oom_kills;
        if let Some(before) = watched.add(sample) {
            let kills = kills.zip(watched.first_kills).map(|(now, first)| now.saturating_sub(first));
            self.kill = Some(killed(&watched.start, &before, now, kills, figures.peak_bytes));
        }
        true
    }

    /// Ends the samples of a group that has none any more.
    fn lose(&mut self, error: &GroupError, now: u64) {
        let records = self.take_records();
        self.records = records;
        if let Some(watched) = self.watched.take() {
            let code = if watched.last.is_some() { "group_lost" } else { "group_not_sampled" };
            let text = format!("{error}; it is not sampled from here on");
            let caveat = Caveat::new(code, format!("control group {}", watched.start.path), None, text);
            self.records.push(Record::Caveat(CaveatRecord { at_us: now, caveat }));
        }
    }
}

/// The text of an open file of counters, from its beginning.
fn read(file: Option<&File>) -> Option<String> {
    let mut text = [0u8; MAX_BYTES];
    let got = file?.read_at(&mut text, 0).ok()?;
    Some(String::from_utf8_lossy(text.get(..got)?).into_owned())
}

/// The line that begins a group, or says its new limits; `None` while they are as before.
fn changed_start(watched: &mut Watched, figures: &GroupFigures, now: u64) -> Option<GroupStart> {
    let start = GroupStart {
        limit_bytes: figures.limit_bytes,
        effective_limit_bytes: figures.effective_limit_bytes,
        effective_limit_path: figures.effective_limit_path.clone(),
        ..watched.start.clone()
    };
    if watched.last.is_some() && start == watched.start {
        return None;
    }
    watched.start = GroupStart { at_us: now, ..start };
    Some(watched.start.clone())
}

/// What `group` held at a kill that was noticed `now`: its last sample.
fn killed(
    group: &GroupStart,
    sample: &GroupSample,
    now: u64,
    kills: Option<u64>,
    peak_bytes: Option<u64>,
) -> GroupKill {
    let age_us = now.saturating_sub(sample.at_us);
    let limit = group.effective_limit_bytes;
    GroupKill {
        group: group.group,
        path: group.path.clone(),
        kills,
        noticed_us: now,
        sample_us: sample.at_us,
        age_us,
        current_bytes: sample.current_bytes,
        effective_limit_bytes: limit,
        peak_bytes,
        rows: sample.rows.clone(),
        unknown: unknown(age_us, limit.map(|limit| limit.saturating_sub(sample.current_bytes)), kills),
    }
}

/// What cannot be known of a kill.
fn unknown(age_us: u64, left_bytes: Option<u64>, kills: Option<u64>) -> String {
    let mut text = String::new();
    if kills.is_none() {
        text += "The group was removed before its count of kills was read: whether memory was the reason is not known. ";
    }
    let age = age_us as f64 / 1e3;
    text += &format!(
        "No sample has what was charged in the {age:.1} ms from the sample to when the kill was noticed"
    );
    if let Some(left) = left_bytes {
        text += &format!(" (at most {} KiB, if this limit was met)", left / 1024);
    }
    text + ". The kernel counts kills, but not which limit was met, and a sample does not have which process held a row."
}

#[cfg(test)]
mod tests {
    use super::*;

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
            watched: None,
            next_number: 1,
            next_search_us: u64::MAX,
            records: Vec::new(),
            kill: None,
            has_ended: false,
            hierarchy,
        };
        let mut made = Fabricated { folder, recorder };
        made.write("cgroup.procs", "");
        made.write("memory.max", "1048576\n");
        made.charge(4096, 0);
        made.recorder.watched = Some(Watched::new(0, group, 0));
        made
    }

    impl Fabricated {
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
        let mut made = fabricated();
        made.recorder.work(0);
        let begin = made.recorder.take_records();
        let [Record::Group(start), Record::GroupSamples(_)] = &begin[..] else { panic!("{begin:?}") };
        assert_eq!((start.path.as_str(), start.effective_limit_bytes), ("/job", Some(1 << 20)));
        // A small change waits, a large one does not.
        made.charge(8192, 0);
        made.recorder.work(SAMPLE_EVERY_US / 2);
        assert!(made.samples().is_empty());
        made.charge(1 << 19, 0);
        made.recorder.work(SAMPLE_EVERY_US / 2);
        assert_eq!(made.samples().first().map(|sample| sample.current_bytes), Some(1 << 19));
        for turn in 0..10 {
            made.recorder.work((turn + 1) * 1_000_000);
        }
        let times: Vec<u64> = made.samples().iter().map(|sample| sample.at_us).collect();
        assert_eq!(times, [1_000_000, 10_000_000]);
        // A new limit is a new line.
        made.write("memory.max", "2097152\n");
        made.recorder.work(11_000_000);
        let records = made.recorder.take_records();
        assert!(
            matches!(&records[0], Record::Group(start) if start.limit_bytes == Some(2 << 20)),
            "{records:?}"
        );
    }

    #[test]
    fn a_kill_is_named_with_the_sample_before_it() {
        let mut made = fabricated();
        made.charge(600_000, 2);
        made.recorder.work(0);
        made.charge(4096, 3);
        made.recorder.end(7_000, Some(SIGKILL));
        let kill = made.recorder.kill().unwrap();
        assert_eq!((kill.kills, kill.current_bytes, kill.age_us), (Some(1), 600_000, 7_000));
        assert_eq!(kill.rows["group.anon"], 600_000);
        assert!(kill.unknown.contains("7.0 ms") && kill.unknown.contains("438 KiB"), "{}", kill.unknown);
        assert_eq!(made.samples().len(), 2);
        made.recorder.end(8_000, None);
        assert!(made.samples().is_empty(), "there is one end");
    }

    #[test]
    fn a_kill_calls_for_a_sample() {
        let mut made = fabricated();
        made.recorder.work(0);
        made.recorder.watched.as_mut().unwrap().took_us = 2_000;
        made.charge(4096, 1);
        made.recorder.work(20_000);
        assert!(made.recorder.kill().is_none(), "there is a pause after each sample");
        made.recorder.work(45_000);
        assert_eq!(made.recorder.kill().map(|kill| kill.age_us), Some(45_000));
    }

    #[test]
    fn a_removed_group_says_what_is_not_known() {
        let mut made = fabricated();
        made.recorder.work(0);
        std::fs::remove_dir_all(made.folder.path().join("job")).unwrap();
        made.recorder.end(5_000, Some(SIGKILL));
        let kill = made.recorder.kill().unwrap();
        assert!(kill.kills.is_none() && kill.unknown.contains("is not known"), "{kill:?}");
        let records = made.recorder.take_records();
        let lost =
            |record: &Record| matches!(record, Record::Caveat(lost) if lost.caveat.code == "group_lost");
        assert!(records.iter().any(lost), "{records:?}");
    }

    #[test]
    fn without_counters_there_is_one_caveat() {
        let mut made = fabricated();
        std::fs::remove_file(made.folder.path().join("job/memory.current")).unwrap();
        made.recorder.work(0);
        made.recorder.work(1_000_000);
        made.recorder.end(2_000_000, Some(SIGKILL));
        let records = made.recorder.take_records();
        let [Record::Caveat(caveat)] = &records[..] else { panic!("{records:?}") };
        assert!(caveat.caveat.code == "group_not_sampled" && caveat.caveat.text.contains("subtree_control"));
        assert!(made.recorder.kill().is_none());
    }
}
