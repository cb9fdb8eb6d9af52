//! The ledger of a control group.

mod ledger;
mod names;
