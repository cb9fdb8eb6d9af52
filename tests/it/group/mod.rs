//! The ledger of a control group.

mod ledger;
mod names;
mod process_ledgers;
mod reclaim;
