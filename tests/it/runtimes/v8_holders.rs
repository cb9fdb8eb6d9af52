//! The variables that hold V8's objects, and memory outside of its heap through them.

use serde_json::Value;

use crate::support::nodes::{self, Node};
use crate::support::subject::number;
use crate::support::{Outcome, Result, Subject, for_any, here, strandline};

use std::path::Path;
use std::process::Command;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn start(node: &Node) -> Result<Subject> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/node/held.mjs");
    let mut command = Command::new(&node.path);
    command.arg("--expose-gc").arg(script);
    for name in ["NODE_OPTIONS", "LD_PRELOAD", "MALLOC_ARENA_MAX"] {
        command.env_remove(name);
    }
    let subject = Subject::start_command(command)?;
    subject.at_rest()?;
    Ok(subject)
}

/// What a variable holds: at least so many blocks, and bytes between these bounds.
struct Held {
    name: &'static str,
    blocks: u64,
    bytes: [u64; 2],
}

/// Sizes follow from V8's layout: an object of one property has at least 32 bytes, an entry of a
/// `Map` has 24.
const HELD: [Held; 11] = [
    Held { name: "export exported", blocks: 30_000, bytes: [30_000 * 32, 2 * MIB] },
    Held { name: "sessions (node/held.mjs)", blocks: 4 * 40_000, bytes: [40_000 * 140, 12 * MIB] },
    Held { name: "buffers (node/held.mjs)", blocks: 2020, bytes: [20 * MIB + 2000 * 16 * KIB, 53 * MIB] },
    Held { name: "Registry (node/held.mjs)", blocks: 10_000, bytes: [10_000 * 56, 2 * MIB] },
    Held { name: "keys (node/held.mjs)", blocks: 2000, bytes: [2000 * 32, 200 * KIB] },
    Held { name: "closed (makeHandler, node/held.mjs)", blocks: 20_000, bytes: [20_000 * 32, 2 * MIB] },
    Held { name: "globalThis.registered", blocks: 15_000, bytes: [15_000 * 32, 2 * MIB] },
    Held { name: "many40", blocks: 8000, bytes: [8000 * 32, MIB] },
    Held { name: "resolvers (node/held.mjs)", blocks: 9000, bytes: [9000 * 32, MIB] },
    Held { name: "derived (node/held.mjs)", blocks: 7000, bytes: [7000 * 32, MIB] },
    Held { name: "shared (node/held_module.js)", blocks: 12_000, bytes: [12_000 * 56, 2 * MIB] },
];

fn list<'a>(document: &'a Value, key: &str) -> Result<&'a [Value]> {
    Ok(document[key].as_array().ok_or_else(|| format!("no {key}"))?)
}

/// Each variable holds what it refers to, through arrays, tables, closures, static fields and the
/// stores of Buffers; a weak table holds nothing.
#[test]
fn variables_hold_what_they_refer_to() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(node)?;
        let document = strandline::json(&["holders", &subject.pid_text(), "--json"])?;
        let roots = list(&document, "roots")?;
        for Held { name, blocks, bytes: [least, most] } in HELD {
            let named: Vec<&Value> = roots.iter().filter(|root| root["name"] == name).collect();
            let &[root] = named.as_slice() else {
                return Err(format!("{} named {name}", named.len()).into());
            };
            let (has, retained) = (number(root, "retained_blocks")?, number(root, "retained_bytes")?);
            if root["kind"] != "runtime" || has < blocks || !(least..=most).contains(&retained) {
                return Err(format!("{name}: {retained} bytes in {has} blocks").into());
            }
        }
        let weak = roots.iter().find(|root| root["name"] == "weak (node/held.mjs)");
        let weak = weak.map_or(Ok(0), |root| number(root, "retained_bytes"))?;
        if weak >= 2000 * 200 * 8 {
            return Err(format!("the weak table holds {weak} bytes").into());
        }
        let types = list(&document, "types")?;
        let sessions = types.iter().find(|one| one["name"] == "Session").ok_or("no Session")?;
        let instances = number(sessions, "instances")?;
        // The dropped ones are not in use. A stale word may hold some.
        if !(40_000..=45_000).contains(&instances) {
            return Err(format!("{instances} sessions").into());
        }
        Ok(())
    })
}

/// What two variables refer to belongs to both; no memory of V8's is reported as leaked.
#[test]
fn what_two_variables_hold_is_shared_and_nothing_is_leaked() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(node)?;
        let document = strandline::json(&["holders", &subject.pid_text(), "--json"])?;
        let is_both = |shared: &&Value| {
            let roots = shared["roots"].as_array().map(Vec::as_slice).unwrap_or_default();
            roots.len() == 2
                && ["both (node/held.mjs)", "other (node/held.mjs)"]
                    .iter()
                    .all(|name| roots.contains(&Value::from(*name)))
        };
        let shared =
            list(&document, "shared")?.iter().find(is_both).ok_or("nothing shared by both and other")?;
        let blocks = number(shared, "retained_blocks")?;
        if blocks < 25_000 {
            return Err(format!("{blocks} blocks are shared").into());
        }
        let leaked = number(&document["unreachable"], "bytes")?;
        if leaked > KIB { Err(format!("{leaked} bytes leaked").into()) } else { Ok(()) }
    })
}
