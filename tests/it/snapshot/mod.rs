//! Address spaces and page states, stops, snapshots and rights: what reading a process shows, costs
//! and needs.

mod address_space;
mod max_stop;
mod quiet_stop;
mod rights;
mod taking;
mod transfers;
mod watchdog;
mod worlds;
