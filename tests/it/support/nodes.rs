//! The Node.js of this machine: the one in PATH, and those under STRANDLINE_NODES
//! (`VERSION/bin/node`, as `scripts/fetch-nodes` leaves them).

use std::path::PathBuf;
use std::process::Command;

/// Major versions that are read.
const READ: [u32; 5] = [18, 20, 22, 24, 26];

/// A Node.js.
#[derive(Clone, Debug)]
pub struct Node {
    pub path: String,
    /// Major version.
    pub major: u32,
}

impl Node {
    /// Whether its V8 keeps freed pages in a pool.
    pub fn has_pool(&self) -> bool {
        self.major >= 22
    }
}

/// The Node.js at `path`, if its version is read.
fn node_at(path: String) -> Option<Node> {
    let output = Command::new(&path).arg("--version").env_remove("NODE_OPTIONS").output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let major = text.trim().strip_prefix('v')?.split('.').next()?.parse().ok()?;
    READ.contains(&major).then_some(Node { path, major })
}

/// Returns one Node.js of each version that is read; reports missing ones, as skipped by `test`.
pub fn all(test: &str) -> Vec<Node> {
    let folder = std::env::var_os("STRANDLINE_NODES").map(PathBuf::from);
    let entries = folder.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let mut paths: Vec<String> =
        entries.map(|entry| entry.path().join("bin/node").display().to_string()).collect();
    paths.push("node".to_owned());
    let mut found: Vec<Node> = paths.into_iter().filter_map(node_at).collect();
    found.sort_by_key(|node| node.major);
    found.dedup_by_key(|node| node.major);
    let is_missing = |major: &&u32| !found.iter().any(|node| node.major == **major);
    let missing: Vec<String> = READ.iter().filter(is_missing).map(u32::to_string).collect();
    if !missing.is_empty() {
        let searched = folder.map_or_else(
            || "STRANDLINE_NODES names no folder of scripts/fetch-nodes".to_owned(),
            |folder| format!("not in {} (STRANDLINE_NODES)", folder.display()),
        );
        super::skipped(
            &format!("{test} with Node.js {}", missing.join(", ")),
            &format!("not the node in PATH, and {searched}"),
        );
    }
    found
}
