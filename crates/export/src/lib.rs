//! Figures and ledgers of chosen processes as metrics: over HTTP for scrapers, or as a file for a
//! textfile collector. This crate decides which processes are read, how often and at what cost. It
//! must not read a process's memory itself, push anything anywhere, or stop a process for longer
//! than its budget.
//!
//! Data flows one way: `strandline-survey` (the processes' figures, with the small ones summed)
//! and `charges` (what the kernel charges to their control groups)
//! → `page` (as text, with the ledgers) → `server` and `textfile`. Ledgers are taken separately
//! (`ledgers`), one at a time, within a `budget` of stopped time for each process and of processor
//! time for all.
//!
//! There are three threads, so that a client or a process that hangs does not delay the others: the
//! first answers clients and never reads a process (`server`), the second takes surveys
//! (`surveys`), the third ledgers (`ledgers`).

#![forbid(unsafe_code)]

pub mod budget;
mod charges;
mod exchange;
mod exposition;
mod http;
pub mod ledgers;
mod page;
mod server;
mod states;
mod summary;
mod surveys;
mod textfile;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strandline_inspect::explain::SnapshotMode;
use strandline_process::rights::Rights;

use budget::StopBudget;
use exchange::SurveyExchange;
use ledgers::LedgerThread;
use states::ProcessStates;
use strandline_survey::Selection;
use surveys::SurveyThread;

/// What to export, where, and at what cost.
#[derive(Debug)]
pub struct Options {
    /// Address to answer scrapes on.
    pub listen: Option<SocketAddr>,
    /// A folder for a file that is written every `interval`.
    pub textfile: Option<PathBuf>,
    /// Interval of writing that file.
    pub interval: Duration,
    /// Which processes to export.
    pub selection: Selection,
    /// Number of processes that are exported individually, those with the most RSS; the others are
    /// summed.
    pub top: usize,
    /// Rows below this share of their ledger's RSS are summed.
    pub row_share: f64,
    /// How to take ledgers; `None` for no ledgers.
    pub ledgers: Option<LedgerOptions>,
}

/// How to take ledgers.
#[derive(Clone, Copy, Debug)]
pub struct LedgerOptions {
    /// How long a process may be stopped.
    pub stop: StopBudget,
    /// Share of one processor above which the exporter takes no more ledgers.
    pub processor_share: f64,
    /// Minimum time between two ledgers of a process.
    pub interval: Duration,
    /// Whether to read processes from a snapshot.
    pub snapshot: SnapshotMode,
    /// How long to try first to read a process without stopping it.
    pub quiet_for: Duration,
}

/// How long to wait at the end for the thread that takes surveys.
const SURVEY_END_TIMEOUT: Duration = Duration::from_secs(1);
/// How long to wait at the end for the thread that takes ledgers.
const LEDGER_END_TIMEOUT: Duration = Duration::from_secs(3);

/// Called with single lines, from any thread.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// Exports until a signal ends it. `log` is called with single lines: where it listens, whether
/// the selection matches nothing, and what goes wrong.
///
/// # Errors
/// One line: an address or a folder that cannot be used, or a thread that failed.
pub fn run(options: Options, log: Log) -> Result<(), String> {
    strandline_sys::own_memory::map_large_arrays();
    strandline_survey::raise_file_limit();
    // Before there is a second thread: signals go to the server's descriptor.
    let signals = server::take_over_signals()?;
    let listener = options.listen.map(listen).transpose()?;
    let started_at = Instant::now();
    let states = Arc::new(ProcessStates::default());
    let exchange = Arc::new(
        SurveyExchange::new()
            .map_err(|error| format!("the descriptor that wakes its threads cannot be made: {error}"))?,
    );
    if let Some(folder) = &options.textfile {
        textfile::prepare(folder)?;
    }
    if let Some(listener) = &listener {
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        log(&format!("listening on http://{address}/metrics"));
    }
    let rights = Rights::own();
    let missing = rights.missing(true);
    if options.ledgers.is_some() && !missing.is_empty() {
        let (lack, advice) = (rights.describe_missing(&missing), rights.advice(&missing, ""));
        log(&format!("no ledgers of other users' processes: {lack}; {advice}"));
    }
    let pages = Arc::new(page::Pages::new(Arc::clone(&states), started_at));
    let writer = |folder| textfile::Writer::new(folder, options.interval, Arc::clone(&log));
    let survey_thread = SurveyThread {
        selection: options.selection,
        top: options.top,
        writer: options.textfile.clone().map(writer),
        pages: Arc::clone(&pages),
        log,
    };
    let ledger_thread = options.ledgers.map(|ledger_options| {
        let exchange = Arc::clone(&exchange);
        let thread = LedgerThread { states, exchange, options: ledger_options, row_share: options.row_share };
        thread.start(started_at).map_err(|error| format!("no thread for ledgers: {error}"))
    });
    let ledger_thread = ledger_thread.transpose()?;
    let survey_thread = survey_thread
        .start(Arc::clone(&exchange))
        .map_err(|error| format!("no thread for surveys: {error}"))?;
    let result = server::serve(listener, &signals, &exchange, &pages);
    exchange.end();
    // A thread that hangs on a process, or an unfinished ledger, is abandoned: the kernel releases
    // what it holds when this process ends.
    exchange::join_within(survey_thread, SURVEY_END_TIMEOUT);
    if let Some(ledger_thread) = ledger_thread {
        exchange::join_within(ledger_thread, LEDGER_END_TIMEOUT);
    }
    if let Some(folder) = &options.textfile {
        textfile::remove(folder);
    }
    result
}

/// Listens on an address, without blocking.
fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    let failed = |error: std::io::Error| {
        format!("cannot listen on {address}: {error}; give another one with --listen")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}
