//! The control groups of a recording for scripts: part of `report --format json`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use strandline_inspect::group::rows::legend;
use strandline_recording::GroupKill;

use super::choice::seconds_of;
use super::{GroupPoint, GroupTimeline, Timeline};
use crate::model::state_name;

/// The state of a row; `None` for one that this version does not know.
pub(super) fn state_of(row: &str) -> Option<&'static str> {
    legend().find(|(id, _)| *id == row).map(|(_, state)| state_name(state))
}

/// The field `groups` of the document.
pub(super) fn groups(timeline: &Timeline) -> Vec<Value> {
    timeline.groups.iter().map(group).collect()
}

fn group(group: &GroupTimeline) -> Value {
    let start = &group.start;
    let limits =
        group.limits.iter().map(|step| json!({ "seconds": seconds_of(step.at_us), "bytes": step.bytes }));
    let column = |figure: fn(&GroupPoint) -> Option<u64>| -> Vec<Option<u64>> {
        group.points().iter().map(figure).collect()
    };
    // A row without bytes at the end of a point is missing there.
    let row = |(index, id): (usize, &String)| {
        let bytes: Vec<u64> =
            group.points().iter().map(|point| point.rows.get(index).copied().unwrap_or(0)).collect();
        json!({ "id": id, "state": state_of(id), "bytes": bytes })
    };
    json!({
        "group": start.group,
        "path": start.path,
        "version": start.version,
        "limit_bytes": start.limit_bytes,
        "effective_limit_bytes": start.effective_limit_bytes,
        "effective_limit_path": start.effective_limit_path,
        "unread_limit_path": start.unread_limit_path,
        "limits": limits.collect::<Vec<_>>(),
        "width_seconds": seconds_of(group.width_us().unwrap_or(0)),
        "samples": {
            "seconds": group.points().iter().map(|point| seconds_of(point.at_us)).collect::<Vec<_>>(),
            "current_bytes": column(|point| Some(point.current_bytes)),
            "working_set_bytes": column(|point| point.working_set_bytes),
            "reclaimable_bytes": column(|point| point.reclaimable_bytes),
            "swap_bytes": column(|point| point.swap_bytes),
            "oom_kills": column(|point| point.oom_kills),
            "rows": group.rows.iter().enumerate().map(row).collect::<Vec<_>>(),
        },
    })
}

/// What a group held at a kill: the field `exit.group_kill`.
pub(super) fn kill(kill: &GroupKill) -> Value {
    json!({
        "group": kill.group,
        "path": kill.path,
        "kills": kill.kills,
        "noticed_seconds": seconds_of(kill.noticed_us),
        "sample_seconds": seconds_of(kill.sample_us),
        "age_seconds": seconds_of(kill.age_us),
        "current_bytes": kill.current_bytes,
        "effective_limit_bytes": kill.effective_limit_bytes,
        "peak_bytes": kill.peak_bytes,
        "rows": rows(&kill.rows),
        "unknown": kill.unknown,
    })
}

/// Rows with bytes, largest first.
fn rows(rows: &BTreeMap<String, u64>) -> Vec<Value> {
    let mut rows: Vec<(&String, u64)> = rows.iter().map(|(id, bytes)| (id, *bytes)).collect();
    rows.retain(|(_, bytes)| *bytes > 0);
    rows.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    rows.iter().map(|(id, bytes)| json!({ "id": id, "state": state_of(id), "bytes": bytes })).collect()
}
