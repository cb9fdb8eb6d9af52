//! Records a process that was started without the recorder.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use strandline_inspect::environment::Environment;
use strandline_process::error::Error;
use strandline_process::procfs::Process;
use strandline_process::target::admission;

use super::clock::Clock;
use super::ledgers::{Guard, Ledgers};
use super::session::{self, Session, SessionParameters, TakenSignals};
use super::sink::Sink;
use super::tree::{NO_LISTS, ProcessEvents, lists_children};
use super::{Options, Recorded};

/// Records process `pid` and its descendants until it ends or the recorder must stop.
///
/// # Errors
/// One line with the reason.
pub fn record(pid: i32, options: &Options<'_>) -> Result<Recorded, String> {
    admission::check_proc_mount().map_err(|error| error.to_string())?;
    let process = Process::open(pid).map_err(|error| error.to_string())?;
    match admission::check(&process) {
        // A tracer only prevents ledgers.
        Ok(_) | Err(Error::Traced { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    let root_pidfd = strandline_sys::process::open_pidfd(pid).map_err(|error| {
        format!("process {pid} cannot be waited for ({error}); Linux 5.3 or later is needed")
    })?;
    let TakenSignals { signals, .. } = session::take_over_signals()?;
    session::raise_open_files();
    let sink = Sink::create(&options.file)?;
    let environment = Environment::read();
    let clock = Clock::start();
    let ledgers = Ledgers::start(clock, &environment, options.ledger_settings, Guard::Watchdog)
        .map_err(|error| format!("no thread for ledgers: {error}"))?;
    Ledgers::prepare_to_end_watches().map_err(|error| format!("no signal for ledgers: {error}"))?;
    let mut session = Session::begin(SessionParameters {
        options,
        clock,
        sink,
        ledgers,
        marks: None,
        root: pid,
        root_pidfd,
        root_threads: Arc::new(AtomicU64::new(1)),
        is_root_watched: false,
        forwards_signals: false,
        signals,
        process_events: ProcessEvents::best_available(),
        environment,
        limits: Vec::new(),
        group: None,
        command: process.command_line().unwrap_or_default(),
    })
    .map_err(|error| format!("cannot record: {error}"))?;
    if matches!(session.process_events, ProcessEvents::Connector(_)) && !lists_children() {
        session.add_caveat(
            "polling",
            "processes",
            format!("{NO_LISTS}: those that already run are not seen"),
        );
    }
    session.tree.search_all(0);
    session.begin_ledgers();
    let stop_reason = session.run();
    Ok(session.finish(stop_reason, None, None))
}
