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

use serde_json::Value;

/// Rows of pages that the kernel may drop at any time: clean pages of files, and pages freed with
/// MADV_FREE.
const DROPPED: [&str; 3] = ["kernel.file", "program.text", "kernel.lazyfree"];

/// The rows of a document that stay the same between two reads of a resting process.
fn kept_rows(document: &Value) -> Vec<&Value> {
    let rows = document["rows"].as_array().into_iter().flatten();
    rows.filter(|row| row["id"].as_str().is_some_and(|id| !DROPPED.contains(&id))).collect()
}

/// The part of the RSS that a resting process keeps: anonymous and shared memory.
fn kept_bytes(document: &Value) -> Option<u64> {
    let bytes = |field: &str| document["kernel"][field].as_u64();
    (bytes("anonymous_bytes")? + bytes("shmem_bytes")?).checked_sub(bytes("lazyfree_bytes")?)
}
