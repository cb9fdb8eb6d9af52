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

/// The bounds of what a variable retains.
struct Retained {
    name: &'static str,
    min_blocks: u64,
    min_bytes: u64,
    max_bytes: u64,
}

/// Bytes of the few objects between a variable and what it retains.
const REST_BYTES: u64 = 2 * KIB;

/// An array of objects with one property each: 32 bytes, and an element of 8. The capacity of a
/// growing array is up to half larger than its length (V8, `JSObject::NewElementsCapacity`).
const fn array(name: &'static str, count: u64) -> Retained {
    Retained {
        name,
        min_blocks: count,
        min_bytes: count * (32 + 8),
        max_bytes: count * (32 + 12) + REST_BYTES,
    }
}

/// A `Map` whose entries have `blocks` objects of `bytes` in total: the table has 28 bytes for each
/// entry, and a capacity, a power of two, of at most twice the entries (V8, `OrderedHashTable`).
const fn map(name: &'static str, count: u64, blocks: u64, bytes: u64) -> Retained {
    Retained {
        name,
        min_blocks: count * blocks,
        min_bytes: count * (bytes + 28),
        max_bytes: count * (bytes + 56) + REST_BYTES,
    }
}

/// 20 stores of 1 MiB, which malloc maps, and 2,000 of 16 KiB; V8 has two objects for each.
const BUFFERS: Retained = Retained {
    name: "buffers (node/held.mjs)",
    min_blocks: 3 * 2020,
    min_bytes: 20 * MIB + 2000 * 16 * KIB,
    max_bytes: 20 * (MIB + 4 * KIB) + 2000 * (16 * KIB + 32) + 2020 * 300,
};

const RETAINED: [Retained; 11] = [
    array("export exported (node/held.mjs)", 30_000),
    // A session of two properties, its tags, an array of two, and their elements.
    map("sessions (node/held.mjs)", 40_000, 4, 40 + 40 + 32 + 32),
    BUFFERS,
    map("Registry (node/held.mjs)", 10_000, 1, 32),
    array("keys (node/held.mjs)", 2000),
    array("closed (makeHandler, node/held.mjs)", 20_000),
    array("globalThis.registered", 15_000),
    array("many40", 8000),
    array("resolvers (node/held.mjs)", 9000),
    array("derived (node/held.mjs)", 7000),
    map("shared (node/held_module.js)", 12_000, 1, 32),
];

fn list<'a>(document: &'a Value, key: &str) -> Result<&'a [Value]> {
    Ok(document[key].as_array().ok_or_else(|| format!("no {key}"))?)
}

/// Each variable holds what it refers to, through arrays, tables, closures, static fields and the
/// stores of Buffers; a weak table holds nothing.
#[test]
fn variables_retain_the_objects_that_they_refer_to() -> Outcome {
    for_any(nodes::all(here!()), |node| {
        let subject = start(node)?;
        let document = strandline::json(&["holders", &subject.pid_text(), "--json"])?;
        let roots = list(&document, "roots")?;
        for Retained { name, min_blocks, min_bytes, max_bytes } in RETAINED {
            let named: Vec<&Value> = roots.iter().filter(|root| root["name"] == name).collect();
            let &[root] = named.as_slice() else {
                return Err(format!("{} roots are named {name}", named.len()).into());
            };
            let (blocks, bytes) = (number(root, "retained_blocks")?, number(root, "retained_bytes")?);
            let is_right = blocks >= min_blocks && (min_bytes..=max_bytes).contains(&bytes);
            if root["kind"] != "runtime" || !is_right {
                return Err(format!("{name}: {bytes} bytes in {blocks} blocks").into());
            }
        }
        // The table has room for 4,096 pairs; its values would be 3.2 MB.
        let weak = roots.iter().find(|root| root["name"] == "weak (node/held.mjs)");
        let weak = number(weak.ok_or("no weak table")?, "retained_bytes")?;
        if weak > 4096 * 16 + REST_BYTES {
            return Err(format!("the weak table holds {weak} bytes").into());
        }
        let types = list(&document, "types")?;
        let sessions = types.iter().find(|one| one["name"] == "Session").ok_or("no Session")?;
        let instances = number(sessions, "instances")?;
        // Ten arrays of 500 were dropped. A stale word may hold one of them; most must be
        // unreachable.
        if !(40_000..42_500).contains(&instances) {
            return Err(format!("{instances} sessions").into());
        }
        Ok(())
    })
}

/// Neither of two variables retains the objects that both refer to; the report shows them as
/// shared. It shows no memory of V8 as leaked.
#[test]
fn objects_of_two_variables_are_shared_and_none_is_leaked() -> Outcome {
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
