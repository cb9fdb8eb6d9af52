//! Synthetic recordings for tests of the formats. All figures are made up. Those that agree are the
//! samples of a process with its marks, and the samples of a group with its kill. Ledgers and page
//! maps are of other processes, with another RSS, and a group's charge is not its processes' sum.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use strandline_inspect::Caveat;
use strandline_inspect::environment::Environment;
use strandline_inspect::facts::{Explanation, LeftOut, MapCell, MapRow, MappedCells, PageMap, State};
use strandline_recording::{
    Ending, GroupBlock, GroupKill, GroupSample, GroupStart, Header, Heartbeat, Ledger, Limit, Mark, Moment,
    ProcessEnd, ProcessStart, Run, SCHEMA, Sample,
};

use super::{GroupTimeline, Process, Timeline};
use crate::fabricated::{java, service, shell};

const MIB_IN_KIB: u64 = 1024;
/// Time between two samples of a process.
const STEP_US: u64 = 20_000;
/// Time between two samples of a process of [`day`].
const DAY_STEP_US: u64 = 20_000_000;
/// Limit of the group of [`limited`].
const LIMIT_BYTES: u64 = 64 << 20;
const SIGKILL: i32 = 9;
/// A name that an attacker would give to a process, a mark or a file.
pub const EVIL: &str = "</script><img src=x onerror=alert(1)>\x1b[2J\u{202e}漢字\"'&\n";

fn sample(rss_kib: u64, at_us: u64) -> Sample {
    Sample {
        rss_kib,
        virtual_kib: rss_kib + 300 * MIB_IN_KIB,
        data_kib: rss_kib + 20 * MIB_IN_KIB,
        anonymous_kib: rss_kib - rss_kib / 16,
        file_kib: rss_kib / 16,
        minor_faults: at_us / 50,
        major_faults: 3,
        user_ms: at_us / 2_000,
        system_ms: at_us / 20_000,
        threads: 2,
        ..Sample::default()
    }
}

/// RSS of the worker over time: grows in steps, falls, and stays too high.
fn worker_kib(at_us: u64) -> u64 {
    let mib = match at_us {
        0..2_000_000 => 20 + at_us / 100_000,
        2_000_000..4_000_000 => 40 + (at_us - 2_000_000) * 560 / 2_000_000,
        4_000_000..5_000_000 => 600,
        5_000_000..7_000_000 => 600 + (at_us - 5_000_000) * 1000 / 2_000_000,
        7_000_000..9_000_000 => 1600,
        _ => 900,
    };
    mib * MIB_IN_KIB
}

/// A process with a sample every `step_us` of the RSS that `rss_kib` returns for an instant; it
/// ends with status 0.
fn process(
    number: u32,
    command: &[&str],
    times_us: RangeInclusive<u64>,
    step_us: u64,
    rss_kib: impl Fn(u64) -> u64,
) -> Process {
    let (from_us, to_us) = times_us.into_inner();
    let mut recorded = Process {
        start: ProcessStart {
            process: number,
            pid: 4711 + number as i32,
            parent: Some(4710 + number as i32),
            at_us: from_us,
            command: command.iter().map(|&word| word.to_owned()).collect(),
            executable: command.first().map(|path| format!("/usr/bin/{}", path.trim_start_matches("./"))),
        },
        end: Some(ProcessEnd { process: number, at_us: to_us, status: Some(0), ..ProcessEnd::default() }),
        ..Process::default()
    };
    for at_us in (from_us..=to_us).step_by(step_us as usize) {
        recorded.add(&Run { at_us, span_us: 0, count: 1, sample: sample(rss_kib(at_us), at_us) });
    }
    recorded
}

fn mark(name: &str, at_us: u64) -> Mark {
    let sample = sample(worker_kib(at_us), at_us);
    let line = |key: &str, kib: u64| (key.to_owned(), kib * 1024);
    Mark {
        process: 1,
        pid: 4712,
        at_us,
        name: name.to_owned(),
        sample,
        status_bytes: BTreeMap::from([line("VmData", sample.data_kib), line("VmRSS", sample.rss_kib)]),
        tree_pss_bytes: Some(sample.rss_kib * 1024 + 4096),
        waited_us: 85,
    }
}

/// A program, a fragmented heap, and other mappings; one cell refers to a row that does not exist.
fn page_map() -> PageMap {
    let row = |id: &str, state| MapRow { id: id.to_owned(), state };
    let cell = |index, rows: &[(u8, u64)]| MapCell { index, rows: rows.to_vec() };
    let heap = (0..900).filter(|n| n % 97 < 80).map(|n| match n % 3 {
        0 => cell(n, &[(0, 40_960), (1, 24_576)]),
        1 => cell(n, &[(1, 65_536)]),
        _ => cell(n, &[(0, 20_000), (2, 12_768)]),
    });
    let mapping = |start, name: &str, permissions: &str, cells: Vec<MapCell>| MappedCells {
        start,
        end: start + (64 << 20),
        permissions: permissions.to_owned(),
        name: name.to_owned(),
        rss_bytes: cells.iter().flat_map(|cell| &cell.rows).map(|&(_, bytes)| bytes).sum(),
        cells,
    };
    PageMap {
        cell_bytes: 65_536,
        rows: vec![
            row("glibc.live", State::Live),
            row("glibc.free.trim", State::Stranded),
            row("glibc.free.pinned", State::Pinned),
            row("program.text", State::Evictable),
            row("anonymous", State::Unattributed),
        ],
        mappings: vec![
            mapping(0x55d0_0000_0000, "/usr/bin/worker", "r-xp", vec![cell(0, &[(3, 65_536)])]),
            mapping(0x55d0_1000_1000, "[heap]", "rw-p", heap.collect()),
            mapping(0x7f00_0000_0000, "", "rw-p", (0..40).map(|n| cell(n * 25, &[(4, 4_096)])).collect()),
            mapping(0x7fff_0000_0000, "[stack]", "rw-p", vec![cell(7, &[(200, 8_192), (0, 8_192)])]),
        ],
        left_out: LeftOut { mappings: 3, rows: vec![(3, 12_288)] },
    }
}

fn ledger(moment: Moment, mark: Option<&str>, at_us: u64, mut explain: Explanation) -> Ledger {
    explain.target.pid = 4712;
    Ledger {
        process: 1,
        pid: 4712,
        at_us,
        moment,
        mark: mark.map(str::to_owned),
        tree_pss_bytes: None,
        environment: environment(),
        explain,
    }
}

fn environment() -> Environment {
    Environment {
        kernel: Some("6.18.5".to_owned()),
        machine: "x86_64".to_owned(),
        processor: Some("A processor".to_owned()),
        cpus: Some(8),
        memory_bytes: Some(16 << 30),
        page_bytes: 4096,
        thp: Some("madvise".to_owned()),
        libc: Some("GNU C Library 2.36".to_owned()),
        time_utc: "2026-01-31T12:34:56Z".to_owned(),
    }
}

/// A shell, its worker of up to 1.6 GiB with a short-lived child, five marks, four ledgers.
pub fn tree() -> Timeline {
    let shell_kib = |_| 1_800;
    let child_kib = |at_us: u64| 30_000 + at_us % 7_000;
    let marks = [("start", 40_000), ("loaded", 2_000_000), ("half", 4_980_000), ("all", 8_000_000)];
    let mut marks: Vec<Mark> = marks.into_iter().map(|(name, at_us)| mark(name, at_us)).collect();
    marks.push(mark("freed: every second item, then the index", 9_500_000));
    let caveat = Caveat::new("sampled_late", "3.2 s", None, "12 instants were missed: the machine was busy");
    let left = Explanation { page_map: Some(page_map()), ..service() };
    Timeline {
        name: "worker.strandline".to_owned(),
        header: Header {
            schema: SCHEMA.to_owned(),
            version: "0.1.0".to_owned(),
            environment: environment(),
            command: ["sh", "-c", "./worker --items 1000000"].map(str::to_owned).to_vec(),
            interval_us: 1_000,
            ledgers: "marks,peak,exit".to_owned(),
            followed_by: "connector".to_owned(),
            limits: vec![Limit { kind: "memory".to_owned(), bytes: 2 << 30, by: "cgroup v2".to_owned() }],
            ..Header::default()
        },
        processes: vec![
            process(0, &["sh", "-c", "./worker --items 1000000"], 0..=12_400_000, STEP_US, shell_kib),
            process(1, &["./worker", "--items", "1000000"], 40_000..=12_300_000, STEP_US, worker_kib),
            process(2, &["gzip", "-9"], 6_000_000..=8_400_000, STEP_US, child_kib),
        ],
        marks,
        ledgers: vec![
            ledger(Moment::Mark, Some("loaded"), 2_000_000, shell()),
            ledger(Moment::Peak, None, 7_000_000, java()),
            ledger(Moment::Mark, Some("freed: every second item, then the index"), 9_500_000, service()),
            ledger(Moment::Exit, None, 12_290_000, left),
        ],
        end: Some(Ending {
            at_us: 12_410_000,
            why: "ended".to_owned(),
            status: Some(0),
            high_water_kib: Some(1_700 * MIB_IN_KIB),
            out_of_memory_kills: Some(0),
            samples: 12_398,
            missed: 12,
            own_cpu_us: 61_000,
            own_peak_rss_kib: Some(9_000),
            stopped_us: 34_000,
            waited_us: 425,
            ..Ending::default()
        }),
        heartbeat: Heartbeat { at_us: 12_410_000, samples: 12_398, missed: 12 },
        caveats: vec![caveat],
        ..Timeline::default()
    }
}

/// What a group with a limit of [`LIMIT_BYTES`] has on its rows.
fn group_sample(at_us: u64) -> GroupSample {
    let kib = |kib: u64| kib * 1024;
    let rows = [
        ("group.anon", kib(8_000 + at_us / 250)),
        ("group.shmem", kib(4_000)),
        ("group.cache.clean", kib(if at_us < 9_000_000 { 6_000 } else { 600 })),
        ("group.slab.unreclaimable", kib(900)),
        ("group.page_tables", kib(400 + at_us / 100_000)),
        ("group.kernel_stacks", kib(64)),
        ("group.sockets", kib(12)),
        ("group.charge_stock", kib(128)),
        ("group.unattributed", 0),
    ];
    let rows: BTreeMap<String, u64> = rows.map(|(id, bytes)| (id.to_owned(), bytes)).into();
    let current_bytes = rows.values().sum();
    GroupSample { at_us, current_bytes, oom_kills: Some(0), rows, ..GroupSample::default() }
}

/// [`tree`] in a control group with a limit, at which the worker was killed. The samples of the
/// processes stay those of [`tree`], above the limit.
pub fn limited() -> Timeline {
    let mut timeline = tree();
    let mut group = GroupTimeline::default();
    let limit = Some(LIMIT_BYTES);
    let path = "/job".to_owned();
    group.begin(GroupStart {
        path: path.clone(),
        version: 2,
        limit_bytes: limit,
        effective_limit_bytes: limit,
        effective_limit_path: Some(path.clone()),
        ..GroupStart::default()
    });
    let samples: Vec<GroupSample> = (0..124).map(|n| group_sample(n * 100_000)).collect();
    group.add(&GroupBlock::new(0, &samples));
    timeline.groups = vec![group];
    for limit in &mut timeline.header.limits {
        limit.bytes = LIMIT_BYTES;
    }
    // The worker is killed, and the shell ends as it does after a killed child.
    for (number, status, signal) in [(0, Some(128 + SIGKILL), None), (1, None, Some(SIGKILL))] {
        if let Some(end) = &mut timeline.processes[number].end {
            (end.status, end.signal) = (status, signal);
        }
    }
    let sample = group_sample(12_300_000);
    if let Some(end) = &mut timeline.end {
        (end.status, end.out_of_memory_kills) = (Some(128 + SIGKILL), Some(1));
        end.group_kill = Some(GroupKill {
            path,
            kills: Some(1),
            noticed_us: 12_303_000,
            sample_us: 12_300_000,
            age_us: 3_000,
            current_bytes: sample.current_bytes,
            effective_limit_bytes: limit,
            peak_bytes: limit,
            rows: sample.rows,
            unknown: "No sample has what was charged in the 3.0 ms between the sample and the kill. The kernel counts kills, but not which limit was met."
                .to_owned(),
            ..GroupKill::default()
        });
    }
    timeline
}

/// [`limited`] with names that an attacker would choose.
pub fn hostile() -> Timeline {
    let mut timeline = limited();
    let mut evil = group_sample(12_350_000);
    evil.rows.insert(EVIL.to_owned(), 1 << 20);
    timeline.groups[0].add(&GroupBlock::new(0, &[evil.clone()]));
    let start = GroupStart { path: EVIL.repeat(20), ..timeline.groups[0].start.clone() };
    timeline.groups[0].begin(start);
    if let Some(kill) = timeline.end.as_mut().and_then(|end| end.group_kill.as_mut()) {
        (kill.path, kill.unknown, kill.rows) = (EVIL.to_owned(), EVIL.repeat(9), evil.rows);
    }
    timeline.name = EVIL.to_owned();
    timeline.header.command = vec![EVIL.repeat(40), EVIL.to_owned()];
    timeline.header.environment.processor = Some(EVIL.to_owned());
    timeline.header.ledgers = EVIL.to_owned();
    for limit in &mut timeline.header.limits {
        limit.kind = EVIL.to_owned();
        limit.by = EVIL.to_owned();
    }
    for process in &mut timeline.processes {
        process.start.command = vec![EVIL.to_owned(); 30];
        process.start.executable = Some(EVIL.repeat(9));
    }
    for mark in &mut timeline.marks {
        mark.name = EVIL.repeat(50);
        mark.status_bytes.insert(EVIL.to_owned(), 1);
    }
    for ledger in &mut timeline.ledgers {
        ledger.mark = Some(EVIL.to_owned());
        ledger.explain = crate::fabricated::hostile();
        ledger.explain.settings.insert(EVIL.to_owned(), EVIL.to_owned());
    }
    if let Some(ledger) = timeline.ledgers.last_mut() {
        let mut map = page_map();
        map.cell_bytes = 0;
        map.rows.iter_mut().for_each(|row| row.id = EVIL.to_owned());
        map.mappings.iter_mut().for_each(|mapping| mapping.name = EVIL.to_owned());
        map.mappings[0].cells[0].index = u64::MAX;
        ledger.explain.page_map = Some(map);
    }
    timeline.caveats = vec![Caveat::new(EVIL, EVIL, Some(u64::MAX), EVIL); 30];
    if let Some(end) = &mut timeline.end {
        end.why = EVIL.to_owned();
    }
    timeline
}

/// Extremely large figures, and times that make no sense.
pub fn absurd() -> Timeline {
    let mut timeline = limited();
    let rows = ["group.anon", "group.shmem", "x"].map(|id| (id.to_owned(), u64::MAX)).into();
    let largest =
        GroupSample { at_us: u64::MAX / 4, current_bytes: u64::MAX, rows, ..GroupSample::default() };
    timeline.groups[0].add(&GroupBlock::new(0, &[largest]));
    timeline.groups[0].begin(GroupStart {
        at_us: u64::MAX,
        effective_limit_bytes: Some(u64::MAX),
        ..GroupStart::default()
    });
    let largest = Sample::from_figures([u64::MAX; 12]);
    for process in &mut timeline.processes {
        process.add(&Run { at_us: u64::MAX / 2, span_us: u64::MAX, count: 3, sample: largest });
    }
    for mark in &mut timeline.marks {
        mark.at_us = u64::MAX - mark.at_us;
        mark.sample = largest;
        mark.process = u32::MAX;
    }
    for ledger in &mut timeline.ledgers {
        ledger.at_us = u64::MAX;
        ledger.process = u32::MAX;
        ledger.explain.kernel.rss_bytes = u64::MAX;
        ledger.explain.totals.live = u64::MAX;
    }
    timeline
}

/// A day with 60 processes (a sample every 20 s each), 3,000 marks and 1,000 ledgers.
pub fn day() -> Timeline {
    const DAY_US: u64 = 86_400_000_000;
    let mut timeline = tree();
    let wave = |at_us: u64| 400_000 + (at_us / 7_919) % 90_000 + (at_us / 86_400) % 300_000;
    timeline.processes =
        (0..60).map(|number| process(number, &["./worker"], 0..=DAY_US, DAY_STEP_US, wave)).collect();
    timeline.marks = (0..3_000).map(|n| mark(&format!("request {n}"), n * (DAY_US / 3_000))).collect();
    timeline.ledgers = (0..1_000)
        .map(|n| {
            let explain = Explanation { page_map: Some(page_map()), ..service() };
            ledger(Moment::Every, None, n * (DAY_US / 1_000), explain)
        })
        .collect();
    if let Some(end) = &mut timeline.end {
        end.at_us = DAY_US;
    }
    timeline
}

/// An empty recording.
pub fn empty() -> Timeline {
    Timeline::default()
}
