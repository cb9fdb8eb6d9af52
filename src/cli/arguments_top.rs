//! The arguments of `top`, with the help that people see.

use std::time::Duration;

use clap::{Args, ValueEnum};
use strandline_top::Column;

use super::arguments_export::interval;
use super::arguments_selection::ProcessSelection;

/// Arguments of `top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  strandline top
  strandline top --name '^my-service$' --sort growth
  strandline top --unit my-service --tree
  strandline top --groups
  strandline top --once | head -20
  strandline top --once --json > top.json

Keys: Enter takes a ledger of the chosen process, r predicts what the best remedy would release; only these two stop the \
process, for a moment. / filters, t shows the tree, c control groups, Left and Right change the order, ? names all keys, q ends.

Columns:
  RSS         resident bytes; shared bytes count for each process
  PSS         RSS with shared bytes divided among their users; read gradually,
              ? if not read yet or not permitted
  GROWTH/MIN  growth of RSS in the last minute; extrapolated while less than a
              minute was measured
  STRANDED    stranded bytes of its last ledger, and the ledger's age; - if there
              is no ledger
  PINNED      pinned bytes of its last ledger")]
pub struct Top {
    /// The processes; by default all
    #[command(flatten)]
    pub chosen: ProcessSelection,
    /// Time between two updates; longer where these would take more than a fiftieth of a processor
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// Column to sort by
    #[arg(long, value_name = "COLUMN", default_value = "rss")]
    pub sort: Sort,
    /// Show the tree of parents and children
    #[arg(long, conflicts_with = "groups")]
    pub tree: bool,
    /// Show control groups
    #[arg(long)]
    pub groups: bool,
    /// Print the table once, after two seconds; --json is possible only with this
    #[arg(long)]
    pub once: bool,
}

/// By which column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Process id; of groups, number of processes
    Pid,
    /// Resident bytes
    Rss,
    /// Proportional set size
    Pss,
    /// Growth in a minute
    Growth,
    /// Stranded bytes of the last ledger
    Stranded,
    /// Pinned bytes of the last ledger
    Pinned,
    /// Name
    Name,
}

impl Sort {
    /// The corresponding column.
    pub fn column(self) -> Column {
        match self {
            Self::Pid => Column::Pid,
            Self::Rss => Column::Rss,
            Self::Pss => Column::Pss,
            Self::Growth => Column::Growth,
            Self::Stranded => Column::Stranded,
            Self::Pinned => Column::Pinned,
            Self::Name => Column::Name,
        }
    }
}
