//! Rows of a control group, compared between its ledger and samples of the group.

use serde_json::Value;

use super::memory_group::batch_bytes;

/// A row and its bytes.
#[derive(Clone, Debug)]
pub struct RowBytes {
    pub id: String,
    pub bytes: u64,
}

/// The bytes of a row in a ledger, merged as in a sample, which reads no processes.
pub fn explained(document: &Value, id: &str) -> u64 {
    let is_version_one = document["cgroup"]["version"] == 1;
    let is_merged_into_row = |row: &str| match row {
        "group.anon.lazyfree" | "group.anon.elsewhere" => id == "group.anon",
        "group.page_tables" | "group.kernel_stacks" if is_version_one => id == "group.kernel.other",
        _ => row == id,
    };
    let rows = document["rows"].as_array().into_iter().flatten();
    rows.filter(|row| row["id"].as_str().is_some_and(is_merged_into_row))
        .filter_map(|row| row["bytes"].as_u64())
        .sum()
}

/// The first row that differs from the ledger's by more than the kernel's counters may lag. The
/// kernel may drop page cache between two reads, and charges in advance.
pub fn other_than_explained<'a>(rows: &'a [RowBytes], document: &Value) -> Option<&'a RowBytes> {
    let is_compared = |row: &&RowBytes| !row.id.starts_with("group.cache") && row.id != "group.charge_stock";
    rows.iter()
        .filter(is_compared)
        .find(|row| row.bytes.abs_diff(explained(document, &row.id)) > batch_bytes())
}

/// The bytes on a row.
pub fn of(rows: &[RowBytes], id: &str) -> u64 {
    rows.iter().find(|row| row.id == id).map_or(0, |row| row.bytes)
}
