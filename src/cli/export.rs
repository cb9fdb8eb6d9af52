//! `export`: metrics of chosen processes.

use std::sync::Arc;

use strandline_export::{LedgerOptions, Options};
use strandline_survey::Selection;

use super::arguments::Export;
use super::arguments_export::DEFAULT_LISTEN;
use super::output::print_message;
use super::{CommandResult, Failure, Result};

/// Exports metrics until a signal ends it.
pub fn run(arguments: &Export) -> Result<CommandResult> {
    let listen = match (arguments.listen, &arguments.textfile) {
        (None, None) => Some(DEFAULT_LISTEN),
        (listen, _) => listen,
    };
    let ledgers = LedgerOptions {
        stop: arguments.stop_budget,
        processor_share: arguments.cpu_budget,
        interval: arguments.ledger_interval,
        snapshot: arguments.snapshot.mode(),
        quiet_for: arguments.quiet.limit,
    };
    let options = Options {
        listen,
        textfile: arguments.textfile.clone(),
        interval: arguments.interval,
        selection: Selection::new(arguments.chosen.selection(arguments.all)).map_err(Failure)?,
        top: usize::try_from(arguments.top).unwrap_or(usize::MAX),
        row_share: arguments.row_share,
        ledgers: (!arguments.no_ledgers).then_some(ledgers),
    };
    strandline_export::run(options, Arc::new(print_message)).map_err(Failure)?;
    Ok(CommandResult::Done)
}
