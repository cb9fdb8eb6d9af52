//! Programs with a command that releases memory. Each command was tried with the program itself.

use strandline_claims::facts::Remedy;

/// A program, and the command that releases its memory.
struct Program {
    /// The executable's file name.
    name: &'static str,
    /// Id of the remedy.
    id: &'static str,
    /// The command, and where to give it.
    command: &'static str,
    /// What the command costs.
    cost: &'static str,
    /// Why the ledger does not contain the amount.
    unknown_because: &'static str,
}

const PROGRAMS: [Program; 1] = [
    // memcached 1.6.18, slabs.c, memory_release: a page that the slab mover has emptied is released
    // while more pages are allocated than the limit. Tried: 1,009 to 69 MiB within 30 s of the
    // three commands with a limit of 64; cache_memlimit alone changed nothing in 5 s.
    Program {
        name: "memcached",
        id: "memcached_limit",
        command: "to its port: cache_memlimit MEGABYTES, then flush_all and lru_crawler crawl all",
        cost: "empties the cache; slab pages above the lower limit go back within a minute",
        unknown_because: "it depends on the limit",
    },
];

/// Returns the remedy of the program with this executable; `None` for other programs.
pub(super) fn remedy(executable: &str) -> Option<Remedy> {
    let name = executable.rsplit('/').next()?;
    let program = PROGRAMS.iter().find(|program| program.name == name)?;
    let remedy = Remedy::advice(program.id, None, program.command, program.cost);
    Some(remedy.unknown_because(program.unknown_because))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_its_executable() {
        assert_eq!(remedy("/usr/bin/memcached").map(|remedy| remedy.id).as_deref(), Some("memcached_limit"));
        assert!(remedy("/usr/bin/memcached2").is_none() && remedy("").is_none());
    }
}
