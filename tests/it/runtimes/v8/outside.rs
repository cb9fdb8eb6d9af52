//! Memory outside of V8's heap that several isolates use, or that V8 maps.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::subject::number;
use crate::support::{Outcome, Result, Subject, for_any, here, nodes, strandline};

/// Upper bound of the bytes in stores that Node.js itself makes.
const OWN_BYTES: u64 = 1 << 20;

/// Starts a program of `tests/subjects/node` that collects by itself.
pub fn start(node: &str, name: &str) -> Result<Subject> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/node").join(name);
    let mut command = Command::new(node);
    // V8 discards code that was not used for some collections, and names of properties with it.
    command.args(["--expose-gc", "--no-flush-bytecode"]).arg(script);
    for name in ["NODE_OPTIONS", "LD_PRELOAD", "MALLOC_ARENA_MAX"] {
        command.env_remove(name);
    }
    let subject = Subject::start_command(command)?;
    subject.at_rest()?;
    Ok(subject)
}

fn amount(v8: &Value, name: &str) -> Result<(u64, u64)> {
    let of = |field| number(&v8["v8"][name], field).map_err(|error| format!("{name}: {error}"));
    Ok((of("count")?, of("bytes")?))
}

/// Each shared store counts once, although five isolates use some of them. WebAssembly memories,
/// also shared ones, count with their grown size.
#[test]
fn shared_and_mapped_stores_count_once() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(&node.path, "shared.js")?;
        let of = |name| number(&subject.ready, name);
        let document = strandline::explain(subject.pid())?;
        let all = document["runtimes"].as_array().ok_or("no runtimes")?;
        let v8 = all.iter().find(|runtime| runtime["name"] == "v8").ok_or("no v8")?;
        let row = |id: &str| strandline::row(&document, id);
        let (shared, mapped, plain) =
            (amount(v8, "shared_buffers")?, amount(v8, "mapped_buffers")?, amount(v8, "buffers")?);
        let rows = ["v8.buffer.shared", "v8.buffer.mapped", "v8.buffer"].map(row);
        let figures = format!(
            "Node.js {}: shared {shared:?}, mapped {mapped:?}, others {plain:?}, rows {rows:?}",
            node.major
        );
        println!("{figures}");
        let in_blocks = (24 << 20) + of("small_bytes")?;
        // Node.js itself has a shared number.
        let own = (shared.0.wrapping_sub(of("shared")?), shared.1.wrapping_sub(of("shared_bytes")?));
        let is_right = own.0 <= 2
            && own.1 <= 64
            && mapped.1 == of("mapped_bytes")?
            && mapped.0 == of("mapped")?
            && plain.1 < OWN_BYTES
            && rows[0].abs_diff(in_blocks) < 64 << 10
            && rows[1] == of("all_mapped_bytes")?
            && rows[2] < OWN_BYTES
            && of("added")? == 4000
            && strandline::row(&document, "anonymous") * 50 < number(&document["kernel"], "rss_bytes")?;
        if is_right { Ok(()) } else { Err(format!("{figures}; {}", subject.ready).into()) }
    })
}
