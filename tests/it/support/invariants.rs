//! Invariants of every `explain --json` document (docs/schema.md).

use serde_json::Value;

const STATES: [&str; 5] = ["live", "stranded", "pinned", "evictable", "unattributed"];
const STRATA: [&str; 6] = ["values", "runtime", "collector", "allocator", "kernel", "program"];
/// Fields of a document, and of its parts.
const TOP_FIELDS: [&str; 13] = [
    "schema",
    "version",
    "environment",
    "target",
    "kernel",
    "rows",
    "totals",
    "allocators",
    "runtimes",
    "remedies",
    "verdict",
    "caveats",
    "cost",
];
const ENVIRONMENT_FIELDS: [&str; 8] =
    ["kernel", "machine", "cpus", "memory_bytes", "page_bytes", "thp", "libc", "time_utc"];
const KERNEL_FIELDS: [&str; 11] = [
    "rss_bytes",
    "pss_bytes",
    "anonymous_bytes",
    "file_bytes",
    "shmem_bytes",
    "swap_bytes",
    "lazyfree_bytes",
    "huge_bytes",
    "page_tables_bytes",
    "high_water_bytes",
    "status_rss_bytes",
];
const COST_FIELDS: [&str; 4] = ["wall_seconds", "stopped_seconds", "peak_rss_bytes", "bytes_read"];

/// The fields of `mallinfo`, in glibc's order.
pub const MALLINFO: [&str; 9] =
    ["arena", "ordblks", "smblks", "hblks", "hblkhd", "fsmblks", "uordblks", "fordblks", "keepcost"];

/// Fails with every broken invariant of `document`, one per line.
pub fn check(document: &Value) -> super::Outcome {
    let broken = broken(document);
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
}

/// Every broken invariant of `document`.
pub fn broken(document: &Value) -> Vec<String> {
    let mut broken = missing(document, "", &TOP_FIELDS);
    if !broken.is_empty() {
        return broken;
    }
    if !document["schema"].as_str().is_some_and(|schema| schema.starts_with("strandline/explain/")) {
        broken.push(format!("schema {}", document["schema"]));
    }
    broken.extend(missing(&document["environment"], "environment.", &ENVIRONMENT_FIELDS));
    broken.extend(missing(&document["kernel"], "kernel.", &KERNEL_FIELDS));
    broken.extend(missing(&document["cost"], "cost.", &COST_FIELDS));
    broken.extend(rows(document));
    broken.extend(allocators(document));
    broken.extend(remedies(document));
    broken.extend(headline(document));
    broken
}

/// Sizes in the headline that exceed all resident memory.
fn headline(document: &Value) -> Vec<String> {
    let rss = document["kernel"]["rss_bytes"].as_f64().unwrap_or(0.0);
    let headline = document["verdict"]["headline"].as_str().unwrap_or_default();
    // Sizes are printed with three digits.
    let exceeds_rss = |size: &f64| *size > rss * 1.005;
    sizes(headline)
        .into_iter()
        .filter(exceeds_rss)
        .map(|size| format!("{size} of {rss} bytes: {headline}"))
        .collect()
}

/// The sizes in a text, in bytes: `12.4 MiB`, `512 bytes`; without values of options such as `-Xmx
/// 300 MiB`.
fn sizes(text: &str) -> Vec<f64> {
    const UNITS: [(&str, f64); 5] = [
        ("bytes", 1.0),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
    ];
    let words: Vec<&str> = text.split([' ', ';', ':', '(', ')']).filter(|word| !word.is_empty()).collect();
    let size = |triple: &[&str]| {
        let [previous, number, unit] = triple else { return None };
        let number: f64 = number.replace(',', "").parse().ok()?;
        let unit = unit.trim_end_matches([',', '.']);
        let (_, unit_bytes) = UNITS.iter().find(|(name, _)| *name == unit)?;
        (!previous.starts_with('-')).then_some(number * unit_bytes)
    };
    let words: Vec<&str> = std::iter::once("").chain(words).collect();
    words.windows(3).filter_map(size).collect()
}

fn missing(value: &Value, prefix: &str, keys: &[&str]) -> Vec<String> {
    keys.iter().filter(|key| value.get(**key).is_none()).map(|key| format!("missing {prefix}{key}")).collect()
}

fn list<'a>(document: &'a Value, key: &str) -> &'a [Value] {
    document[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn rows(document: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for row in list(document, "rows") {
        let is_one_of =
            |key: &str, names: &[&str]| row[key].as_str().is_some_and(|name| names.contains(&name));
        if !is_one_of("state", &STATES) || !is_one_of("stratum", &STRATA) || row["bytes"].as_u64().is_none() {
            broken.push(format!("row out of bounds: {row}"));
        }
        // Rows of runtimes may have the same id with several holders.
        let key = row["id"].as_str().zip(row["holder"].as_str());
        if !key.is_some_and(|key| ids.insert(key)) {
            broken.push(format!("row without id or holder, or duplicate row: {row}"));
        }
    }
    let sum = |state: Option<&str>| -> u64 {
        let rows = list(document, "rows").iter();
        rows.filter(|row| state.is_none_or(|state| row["state"] == state))
            .filter_map(|row| row["bytes"].as_u64())
            .sum()
    };
    if document["kernel"]["rss_bytes"].as_u64() != Some(sum(None)) {
        broken.push(format!("rows sum to {}, RSS is {}", sum(None), document["kernel"]["rss_bytes"]));
    }
    for state in STATES {
        if document["totals"][state].as_u64() != Some(sum(Some(state))) {
            let total = &document["totals"][state];
            broken.push(format!("totals.{state} is {total}, its rows sum to {}", sum(Some(state))));
        }
    }
    broken
}

fn allocators(document: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    for allocator in list(document, "allocators") {
        if allocator["name"] == "glibc" {
            broken.extend(missing(&allocator["mallinfo"], "mallinfo.", &MALLINFO));
        }
        // A runtime that is the allocator of its objects.
        let name = &allocator["name"];
        let same = list(document, "runtimes").iter().filter(|runtime| runtime["name"] == *name);
        let has_same = |runtime: &Value| {
            runtime["own"] == allocator["own"] && runtime["used_bytes"] == allocator["live_bytes"]
        };
        let is_missing = same.clone().count() > 0 && !same.clone().any(has_same)
            || !allocator["live_bytes"].is_null() && allocator["own"].is_null();
        if is_missing {
            broken.push(format!("{name} has no statistics of its own"));
        }
    }
    broken
}

fn remedies(document: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    for remedy in list(document, "remedies") {
        broken.extend(missing(remedy, "remedy.", &["id", "kind", "predicted_bytes", "how", "cost"]));
    }
    let predicted: Vec<u64> = list(document, "remedies")
        .iter()
        .map(|remedy| remedy["predicted_bytes"].as_u64().unwrap_or(0))
        .collect();
    if !predicted.is_sorted_by(|a, b| a >= b) {
        broken.push(format!("remedies are not ordered best first: {predicted:?}"));
    }
    broken
}

#[test]
fn broken_documents_are_rejected() {
    assert_eq!(broken(&Value::Null).len(), TOP_FIELDS.len());
    let mut document = serde_json::json!({
        "schema": "strandline/explain/1", "version": "0", "target": {}, "runtimes": [], "verdict": {}, "caveats": [],
        "environment": {}, "kernel": { "rss_bytes": 8192 }, "cost": {}, "allocators": [], "remedies": [],
        "rows": [{ "id": "a", "stratum": "kernel", "state": "live", "holder": "h", "bytes": 4096 }],
        "totals": { "live": 4096, "stranded": 0, "pinned": 0, "evictable": 0, "unattributed": 0 },
    });
    for (part, keys) in
        [("environment", &ENVIRONMENT_FIELDS[..]), ("kernel", &KERNEL_FIELDS), ("cost", &COST_FIELDS)]
    {
        for key in keys {
            if document[part].get(*key).is_none() {
                document[part][*key] = Value::Null;
            }
        }
    }
    assert_eq!(broken(&document), ["rows sum to 4096, RSS is 8192"]);
    document["kernel"]["rss_bytes"] = 4096.into();
    assert!(broken(&document).is_empty());
    document["verdict"] = serde_json::json!({ "headline": "12.0 KiB of 4.00 KiB RSS is free heap" });
    assert_eq!(broken(&document).len(), 1);
    document["verdict"] =
        serde_json::json!({ "headline": "4.00 KiB of 4.00 KiB RSS is free: 2 blocks of 1,024 bytes" });
    assert!(broken(&document).is_empty());
    document["totals"]["pinned"] = 1.into();
    document["remedies"] = serde_json::json!([
        { "id": "a", "kind": "call", "predicted_bytes": null, "how": "", "cost": "" },
        { "id": "b", "kind": "call", "predicted_bytes": 1, "how": "", "cost": "" },
    ]);
    assert_eq!(broken(&document).len(), 2);
}
