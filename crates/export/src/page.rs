//! A survey and its ledgers as text. Names and labels are an interface that rules and dashboards
//! rely on (docs/metrics.md): metrics may be added, never renamed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::charges::{Charge, Charges, LeftOut};
use crate::exposition::{Exposition, Format, Kind, Value};
use crate::states::{ProcessState, ProcessStates};
use crate::summary::{LabelledBytes, Summary};
use strandline_survey::figures::Pss;
use strandline_survey::survey::{GroupSum, ProcessFigures, Sum, Survey};

/// Name of the sum of everything without its own series.
const OTHER: &str = "other";

/// Makes pages, and counts what the server does.
#[derive(Debug)]
pub struct Pages {
    /// The ledgers of processes, and what they cost.
    pub states: Arc<ProcessStates>,
    /// What is charged to control groups.
    charges: Mutex<Arc<Charges>>,
    /// When the exporter started.
    exporter_started_at: Instant,
    /// Number of scrapes that were answered.
    pub scrapes: AtomicU64,
    /// Number of clients that were dropped before they were answered.
    pub dropped: AtomicU64,
}

/// A process that has series of its own.
struct ShownProcess<'a> {
    /// What the survey has of it.
    figures: &'a ProcessFigures,
    /// Its ledger and what ledgers have cost it, if it is known already.
    entry: Option<&'a ProcessState>,
    /// Its process id, as a label.
    pid: String,
}

impl ShownProcess<'_> {
    /// The labels of all metrics of a process.
    fn labels(&self) -> [(&'static str, &str); 2] {
        [("pid", &self.pid), ("process", &self.figures.name)]
    }

    /// The labels of all metrics of a process, and another one.
    fn labels_with<'b>(&'b self, label: &'static str, value: &'b str) -> [(&'static str, &'b str); 3] {
        [("pid", &self.pid), ("process", &self.figures.name), (label, value)]
    }
}

impl Pages {
    /// Pages that show the ledgers of `states`.
    pub fn new(states: Arc<ProcessStates>, exporter_started_at: Instant) -> Self {
        let (charges, scrapes, dropped) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Self { states, charges, exporter_started_at, scrapes, dropped }
    }

    /// Sets what is charged to control groups, for all pages from now on.
    pub fn set_charges(&self, charges: Charges) {
        *self.charges.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(charges);
    }

    /// The page of `survey`, with the current ledgers.
    pub fn page(&self, survey: &Survey, format: Format) -> String {
        let now = Instant::now();
        let mut text = Exposition::new(format);
        {
            let entries = self.states.entries();
            let processes: Vec<ShownProcess<'_>> = survey
                .processes
                .iter()
                .map(|figures| ShownProcess {
                    figures,
                    entry: entries.get(&figures.key),
                    pid: figures.key.pid.to_string(),
                })
                .collect();
            kernel_figures(&mut text, &processes, survey.others.as_ref());
            ledgers(&mut text, &processes, now);
            process_errors(&mut text, &processes);
        }
        groups(&mut text, &survey.groups);
        let charges = Arc::clone(&self.charges.lock().unwrap_or_else(PoisonError::into_inner));
        group_charges(&mut text, &charges.groups, now);
        left_out(&mut text, charges.left_out);
        self.exporter_metrics(&mut text, survey, now);
        text.end()
    }

    /// The metrics of the exporter itself.
    fn exporter_metrics(&self, text: &mut Exposition, survey: &Survey, now: Instant) {
        let info_name = "strandline_exporter_info";
        text.family(info_name, Kind::Gauge, "The exporter's version; always 1.");
        text.sample(info_name, &[("version", env!("CARGO_PKG_VERSION"))], 1);
        let mut gauge = |name: &str, help: &str, value: Value| {
            text.family(name, Kind::Gauge, help);
            text.sample(name, &[], value);
        };
        let seconds = |time: Duration| Value::Real(time.as_secs_f64());
        let process_count = survey.processes.len() as u64;
        let summed_count = survey.others.map_or(0, |others| others.processes);
        let age = seconds(now.duration_since(survey.at));
        let (duration, uptime) =
            (seconds(survey.duration), seconds(now.duration_since(self.exporter_started_at)));
        gauge(
            "strandline_exporter_processes",
            "Processes that are exported individually.",
            process_count.into(),
        );
        gauge(
            "strandline_exporter_summed_processes",
            "Processes that are summed as other.",
            summed_count.into(),
        );
        gauge("strandline_exporter_figures_age_seconds", "How old the kernel's figures here are.", age);
        gauge("strandline_exporter_figures_seconds", "How long it took to read them.", duration);
        gauge(
            "strandline_exporter_unread_processes",
            "Processes whose files cannot be read: too many open files, or a /proc with hidepid=1.",
            survey.unread_processes.into(),
        );
        if let Some(resident) = own_rss_bytes() {
            gauge("strandline_exporter_resident_bytes", "RSS of the exporter.", resident.into());
        }
        gauge("strandline_exporter_uptime_seconds", "Since the exporter started.", uptime);
        let mut counter = |name: &str, help: &str, value: Value| {
            text.family(name, Kind::Counter, help);
            text.sample(name, &[], value);
        };
        let count = |counter: &AtomicU64| Value::Whole(counter.load(Ordering::Relaxed));
        let states = &self.states;
        if let Some(time) = own_processor_time() {
            counter(
                "strandline_exporter_cpu_seconds_total",
                "Processor time of the exporter.",
                seconds(time),
            );
        }
        counter("strandline_exporter_scrapes_total", "Scrapes that were answered.", count(&self.scrapes));
        let dropped = "Clients that were disconnected because they were too slow.";
        counter("strandline_exporter_dropped_clients_total", dropped, count(&self.dropped));
        counter("strandline_exporter_ledgers_total", "Ledgers that were taken.", count(&states.ledgers));
        let failed = "Ledgers that could not be taken.";
        counter("strandline_exporter_failed_ledgers_total", failed, count(&states.failures));
        let overrun = "Stops that exceeded their limit; later stops are reduced accordingly.";
        counter("strandline_exporter_overrun_stops_total", overrun, count(&states.overruns));
    }
}

/// A metric with one series for each process or group, whose value `F` reads.
struct Family<F> {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    figure: F,
}

impl<F> Family<F> {
    const fn gauge(name: &'static str, help: &'static str, figure: F) -> Self {
        Self { name, kind: Kind::Gauge, help, figure }
    }

    const fn counter(name: &'static str, help: &'static str, figure: F) -> Self {
        Self { name, kind: Kind::Counter, help, figure }
    }
}

/// Reads a figure of a process.
type ProcessFigure = fn(&ProcessFigures) -> Option<u64>;

/// The kernel's figures of single processes; the first four with their sum over the others.
fn kernel_figures(text: &mut Exposition, processes: &[ShownProcess<'_>], others: Option<&Sum>) {
    let mut write = |family: Family<ProcessFigure>, sum: Option<u64>| {
        let Family { name, kind, help, figure } = family;
        text.family(name, kind, help);
        for process in processes {
            if let Some(value) = figure(process.figures) {
                text.sample(name, &process.labels(), value);
            }
        }
        if let Some(sum) = sum {
            text.sample(name, &[("pid", ""), ("process", OTHER)], sum);
        }
    };
    let (name, help) = ("strandline_rss_bytes", "Resident memory as the kernel counts it (VmRSS).");
    write(
        Family::gauge(name, help, |process| Some(process.figures.rss_bytes)),
        others.map(|sum| sum.rss_bytes),
    );
    let name = "strandline_pss_bytes";
    let help = "Proportional set size: shared pages are divided by the number of processes that map them.";
    write(Family::gauge(name, help, |process| process.pss.bytes()), others.and_then(|sum| sum.pss_bytes));
    let (name, help) = ("strandline_anonymous_bytes", "Resident anonymous memory (RssAnon).");
    write(
        Family::gauge(name, help, |process| process.figures.anonymous_bytes),
        others.and_then(|sum| sum.anonymous_bytes),
    );
    let (name, help) = ("strandline_swap_bytes", "Anonymous memory swapped out (VmSwap).");
    write(
        Family::gauge(name, help, |process| process.figures.swap_bytes),
        others.and_then(|sum| sum.swap_bytes),
    );
    let (name, help) = ("strandline_high_water_bytes", "Peak RSS of the process (VmHWM).");
    write(Family::gauge(name, help, |process| process.figures.high_water_bytes), None);
    let (name, help) = ("strandline_minor_faults_total", "Page faults without reading from a disk.");
    write(Family::counter(name, help, |process| Some(process.figures.minor_faults)), None);
    let (name, help) = ("strandline_major_faults_total", "Page faults that read from a disk.");
    write(Family::counter(name, help, |process| Some(process.figures.major_faults)), None);
    let name = "strandline_process_info";
    text.family(name, Kind::Gauge, "The control group of a process; always 1.");
    for process in processes {
        if let Some(group) = &process.figures.group {
            text.sample(name, &process.labels_with("cgroup", group), 1);
        }
    }
}

/// The last ledger of each process.
fn ledgers(text: &mut Exposition, processes: &[ShownProcess<'_>], now: Instant) {
    let with_ledger =
        || processes.iter().filter_map(|process| Some((process, process.entry?.ledger.as_ref()?)));
    let name = "strandline_ledger_rss_bytes";
    text.family(
        name,
        Kind::Gauge,
        "Resident memory as the last ledger counts it: its states add up to this, its rows too.",
    );
    for (process, ledger) in with_ledger() {
        text.sample(name, &process.labels(), ledger.rss_bytes);
    }
    let mut write = |name, label, help, bytes_by_label: fn(&Summary) -> &[LabelledBytes]| {
        text.family(name, Kind::Gauge, help);
        for (process, ledger) in with_ledger() {
            for LabelledBytes { label: value, bytes } in bytes_by_label(ledger) {
                text.sample(name, &process.labels_with(label, value), *bytes);
            }
        }
    };
    let help = "Resident memory by state, of the last ledger.";
    write("strandline_state_bytes", "state", help, |ledger| &ledger.states);
    let help = "The ledger's larger rows; the others are summed.";
    write("strandline_row_bytes", "row", help, |ledger| &ledger.rows);
    let help = "What a remedy is predicted to release, of the last ledger.";
    write("strandline_reclaimable_bytes", "remedy", help, |ledger| &ledger.remedies);
    let name = "strandline_ledger_age_seconds";
    text.family(name, Kind::Gauge, "How old the last ledger is.");
    for (process, ledger) in with_ledger() {
        text.sample(name, &process.labels(), now.duration_since(ledger.at).as_secs_f64());
    }
    let name = "strandline_stopped_seconds_total";
    text.family(name, Kind::Counter, "How long ledgers have stopped the process.");
    for (process, entry) in processes.iter().filter_map(|process| Some((process, process.entry?))) {
        text.sample(name, &process.labels(), entry.stops.total().as_secs_f64());
    }
}

/// Why a process has no ledger, or no complete or current one.
fn process_errors(text: &mut Exposition, processes: &[ShownProcess<'_>]) {
    let name = "strandline_process_error";
    text.family(name, Kind::Gauge, "Why a process has no ledger, or no whole or new one; always 1.");
    for process in processes {
        let not_allowed = (process.figures.pss == Pss::NotAllowed).then_some("permission");
        if let Some(reason) = process.entry.and_then(|entry| entry.problem).or(not_allowed) {
            text.sample(name, &process.labels_with("reason", reason), 1);
        }
    }
}

/// Reads a figure of a sum of processes.
type SumFigure = fn(&Sum) -> Option<u64>;

/// Sums over the processes of each control group.
fn groups(text: &mut Exposition, groups: &[GroupSum]) {
    let families: [Family<SumFigure>; 4] = [
        Family::gauge("strandline_cgroup_processes", "Chosen processes in a control group.", |sum| {
            Some(sum.processes)
        }),
        Family::gauge(
            "strandline_cgroup_rss_bytes",
            "Their RSS; shared pages count for each process.",
            |sum| Some(sum.rss_bytes),
        ),
        Family::gauge("strandline_cgroup_pss_bytes", "Their PSS; shared pages count once.", |sum| {
            sum.pss_bytes
        }),
        Family::gauge("strandline_cgroup_swap_bytes", "What of them is swapped out.", |sum| sum.swap_bytes),
    ];
    for Family { name, kind, help, figure } in families {
        text.family(name, kind, help);
        for GroupSum { path, sum } in groups {
            if let Some(value) = figure(sum) {
                text.sample(name, &[("cgroup", path)], value);
            }
        }
    }
}

/// Reads a figure of what is charged to a group.
type ChargeFigure = fn(&Charge) -> Option<u64>;

/// What the kernel charges to groups. The names are those of `explain --cgroup --json`.
const CHARGE_FAMILIES: [Family<ChargeFigure>; 8] = [
    Family::gauge(
        "strandline_cgroup_charge_bytes",
        "What the kernel charges to a control group.",
        |charge| Some(charge.sample.figures.current_bytes),
    ),
    Family::gauge("strandline_cgroup_limit_bytes", "Its own limit.", |charge| {
        charge.sample.figures.limit_bytes
    }),
    Family::gauge(
        "strandline_cgroup_effective_limit_bytes",
        "The smallest limit of it and the groups above it.",
        |charge| charge.sample.figures.effective_limit_bytes,
    ),
    Family::gauge(
        "strandline_cgroup_working_set_bytes",
        "The charge without inactive file pages.",
        |charge| charge.sample.figures.working_set_bytes,
    ),
    Family::gauge(
        "strandline_cgroup_reclaimable_bytes",
        "What the kernel reclaims before it kills: file pages and reclaimable slab.",
        |charge| charge.sample.figures.reclaimable_bytes,
    ),
    Family::gauge("strandline_cgroup_active_file_bytes", "The active list of file pages.", |charge| {
        charge.sample.figures.active_file_bytes
    }),
    Family::gauge("strandline_cgroup_inactive_file_bytes", "The inactive list of file pages.", |charge| {
        charge.sample.figures.inactive_file_bytes
    }),
    Family::counter("strandline_cgroup_oom_kills_total", "Processes killed at its limit.", |charge| {
        charge.sample.figures.events.oom_kill
    }),
];

/// What the kernel charges to each control group.
fn group_charges(text: &mut Exposition, groups: &[Charge], now: Instant) {
    for Family { name, kind, help, figure } in CHARGE_FAMILIES {
        text.family(name, kind, help);
        for group in groups {
            if let Some(value) = figure(group) {
                text.sample(name, &[("cgroup", &group.path)], value);
            }
        }
    }
    let name = "strandline_cgroup_row_bytes";
    text.family(name, Kind::Gauge, "The charge by row; the rows of a group add up to it.");
    for group in groups {
        for row in &group.sample.rows {
            text.sample(name, &[("cgroup", &group.path), ("row", row.id)], row.bytes);
        }
    }
    let name = "strandline_cgroup_charge_age_seconds";
    text.family(name, Kind::Gauge, "How old these figures of a group are.");
    for group in groups {
        text.sample(name, &[("cgroup", &group.path)], now.duration_since(group.at).as_secs_f64());
    }
}

/// Numbers of control groups without figures.
fn left_out(text: &mut Exposition, left_out: LeftOut) {
    let name = "strandline_exporter_left_out_cgroups";
    text.family(name, Kind::Gauge, "Control groups without figures of their charge, and why.");
    for (reason, count) in [
        ("limit", left_out.limit),
        ("not_counted", left_out.not_counted),
        ("not_found", left_out.not_found),
        ("time", left_out.time),
    ] {
        text.sample(name, &[("reason", reason)], count);
    }
}

/// Processor time of this process and all of its threads, if known.
pub fn own_processor_time() -> Option<Duration> {
    strandline_sys::host::own_cpu_us().ok().map(Duration::from_micros)
}

/// RSS of this process, if known.
fn own_rss_bytes() -> Option<u64> {
    let process = strandline_process::procfs::Process::open(std::process::id().cast_signed()).ok()?;
    process.status().ok()?.rss_bytes
}
