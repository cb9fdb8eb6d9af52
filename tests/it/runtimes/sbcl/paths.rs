//! The path from a root to a live object, as SBCL's `search-roots` finds it.

use serde_json::Value;

use crate::support::sbcl::{Sbcl, figures};
use crate::support::{Outcome, Result, for_any, for_each, here, invariants, strandline};

fn path_to(pid: &str) -> Result<Value> {
    let document = strandline::json(&["explain", "--path-to", "MESSAGE", "--json", pid])?;
    invariants::check(&document)?;
    Ok(figures(&document)?["path"].clone())
}

#[test]
fn live_messages_have_a_path_and_dead_ones_have_none() -> Outcome {
    for_any(Sbcl::all(here!()), |sbcl| {
        for_each(
            [("live", true), ("bindings", true), ("stacks", true), ("promoted", false)],
            |(kind, has_path)| {
                let subject = sbcl.start(kind, &["count=20000"])?;
                let path = path_to(&subject.pid_text())?;
                eprintln!("{kind}: {path}");
                let steps = path["steps"].as_array().map_or(0, Vec::len);
                if (steps > 0) == *has_path { Ok(()) } else { Err(format!("{steps} steps: {path}").into()) }
            },
        )
    })
}
