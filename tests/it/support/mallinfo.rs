//! Shared by the tests of glibc's heap: random programs, and the comparison with `mallinfo2()`.

use serde_json::Value;

use crate::support::invariants::MALLINFO;
use crate::support::{Libc, Outcome, Result, Subject, repetitions};

/// A random program: its seed, its options, its environment, its libc.
#[derive(Debug)]
pub struct Case {
    pub libc: Libc,
    pub arguments: Vec<String>,
    pub variables: Vec<(&'static str, &'static str)>,
}

impl Case {
    pub fn new(libc: &Libc, seed: u64, options: &[&str]) -> Self {
        let mut arguments = vec![seed.to_string()];
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        Self { libc: libc.clone(), arguments, variables: Vec::new() }
    }

    pub fn set(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    pub fn start(&self) -> Result<Subject> {
        self.start_program("random_heap")
    }

    /// Starts another program with the same options, and waits until it sleeps.
    pub fn start_program(&self, name: &str) -> Result<Subject> {
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let subject = Subject::start_with(&self.libc, name, &arguments, &self.variables)?;
        subject.at_rest()?;
        Ok(subject)
    }
}

/// Seeds of one kind of program; each kind has its own.
pub fn seeds(first: u64, short: u64, long: u64) -> std::ops::Range<u64> {
    first..first + repetitions(short, long)
}

/// Settings that change the layout of the heap.
pub const SETTINGS: [(&str, &str); 8] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_TOP_PAD_", "1048576"),
    ("MALLOC_MMAP_THRESHOLD_", "16384"),
    ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0"),
    ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=60:glibc.malloc.tcache_max=700"),
    ("GLIBC_TUNABLES", "glibc.malloc.mxfast=0"),
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
];

/// Fails with each differing field.
pub fn same(ours: &Value, theirs: &Value) -> Outcome {
    let differing: Vec<String> = MALLINFO
        .iter()
        .filter(|field| ours[**field].as_u64().is_none() || ours[**field] != theirs[**field])
        .map(|field| format!("{field}: strandline {}, mallinfo2 {}", ours[*field], theirs[*field]))
        .collect();
    if differing.is_empty() { Ok(()) } else { Err(differing.join("; ").into()) }
}
