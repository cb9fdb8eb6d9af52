//! Finds Perl in mapped files, and its interpreters in memory.
//!
//! A perl with ithreads has all its variables in `struct interpreter`: `PL_curinterp` points to the
//! main one, and each thread has its own as the thread-specific value of `PL_thr_key`. A perl
//! without ithreads has globals. All of these symbols are exported for C modules, even by stripped
//! programs.

use std::os::unix::fs::FileExt;

use crate::batch::PageCache;
use crate::perl::MAX_PROGRAMS;
use crate::perl::layout::{Layout, RELEASES, THREAD_SPECIFIC, THREAD_SPECIFIC_KEYS};
use strandline_process::elf::Object;
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::memory::Memory;
use strandline_process::modules;
use strandline_process::namespaces::open_mapped_file;
use strandline_process::procfs::{Process, printable};
use strandline_process::stacks::ThreadFacts;

/// Limit on the interpreters of one program.
pub(super) const MAX_INTERPRETERS: usize = 256;
/// Limit on the length of a path in messages.
const MAX_PATH_CHARACTERS: usize = 200;
/// The variable that points to the main interpreter.
const CURRENT_INTERPRETER: &str = "PL_curinterp";
/// The variable with the key of each thread's interpreter, with ithreads.
const THREAD_KEY: &str = "PL_thr_key";
/// The parts of the version.
const VERSION_PARTS: [&str; 3] = ["PL_revision", "PL_version", "PL_subversion"];
/// The variables of a perl without `MULTIPLICITY`, as in [`Addresses`].
const GLOBAL_VARIABLES: [&str; 6] =
    ["PL_strtab", "PL_sv_count", "PL_sv_arenaroot", "PL_main_cv", "PL_body_roots", "PL_body_arenas"];

/// A mapped file that holds a Perl.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its path, as the kernel named it.
    pub path: String,
    /// Its version, if it exports one.
    pub version: Option<[u8; 3]>,
    /// Where its variables are.
    pub variables: Variables,
}

impl Program {
    /// Whether there is an interpreter: an editor that can run Perl maps the library, mostly
    /// without starting one. A page of variables that cannot be read was not written to yet.
    pub fn has_started(&self, memory: &dyn Memory) -> bool {
        match self.variables {
            Variables::Interpreters { curinterp, .. } => {
                memory.read_word(curinterp).is_ok_and(|word| word != 0)
            }
            Variables::Globals(_) => true,
        }
    }

    /// Its version as text.
    pub fn version_text(&self) -> Option<String> {
        self.version.map(|[revision, version, subversion]| format!("{revision}.{version}.{subversion}"))
    }

    /// The layout of its release; `None` if the release is unknown.
    pub fn release(&self) -> Option<&'static Layout> {
        let [5, version, _] = self.version? else { return None };
        RELEASES.iter().find(|release| release.version == version)
    }

    /// Whether threads have their own interpreters.
    pub fn has_threads(&self) -> bool {
        matches!(self.variables, Variables::Interpreters { thr_key: Some(_), .. })
    }
}

/// Where a Perl's variables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variables {
    /// In separate interpreters (`MULTIPLICITY`).
    Interpreters {
        /// Address of `PL_curinterp`.
        curinterp: u64,
        /// Address of `PL_thr_key`, with ithreads.
        thr_key: Option<u64>,
    },
    /// In exported globals.
    Globals(Addresses),
}

/// Where the variables of one interpreter are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// `PL_strtab`
    pub strtab: u64,
    /// `PL_sv_count`
    pub sv_count: u64,
    /// `PL_sv_arenaroot`
    pub sv_arenaroot: u64,
    /// `PL_main_cv`
    pub main_cv: u64,
    /// `PL_body_roots`
    pub body_roots: u64,
    /// `PL_body_arenas`
    pub body_arenas: u64,
}

/// The mapped files that hold a Perl: up to [`MAX_PROGRAMS`], and one more if there are more.
pub fn find(process: &Process, space: &AddressSpace) -> Vec<Program> {
    modules::exporting(process, space, &[CURRENT_INTERPRETER, GLOBAL_VARIABLES[0]])
        .filter_map(|module| program(process, space, module.code))
        .take(MAX_PROGRAMS + 1)
        .collect()
}

/// Returns the Perl in a mapped file; `None` if it does not export the variables of one.
fn program(process: &Process, space: &AddressSpace, mapping: &Mapping) -> Option<Program> {
    // A file that cannot be opened is recognised by its name only (`Evidence`).
    let object = Object::open(process, space, mapping).ok()?;
    let mut symbols = std::collections::HashMap::new();
    object.each_symbol(&mut |name, symbol| {
        if !name.starts_with(b"PL_") {
            return;
        }
        let variable = [CURRENT_INTERPRETER, THREAD_KEY]
            .iter()
            .chain(&VERSION_PARTS)
            .chain(&GLOBAL_VARIABLES)
            .find(|variable| variable.as_bytes() == name);
        if let Some(variable) = variable {
            symbols.entry(*variable).or_insert(symbol.address);
        }
    });
    let address_of = |name: &str| symbols.get(name).copied();
    let globals: Option<Vec<u64>> = GLOBAL_VARIABLES.into_iter().map(address_of).collect();
    let variables = match (globals.as_deref(), address_of(CURRENT_INTERPRETER)) {
        (Some(&[strtab, sv_count, sv_arenaroot, main_cv, body_roots, body_arenas]), _) => {
            Variables::Globals(Addresses { strtab, sv_count, sv_arenaroot, main_cv, body_roots, body_arenas })
        }
        (_, Some(curinterp)) => Variables::Interpreters { curinterp, thr_key: address_of(THREAD_KEY) },
        _ => return None,
    };
    let byte = |name| read_constant(process, space, address_of(name)?);
    let version = match VERSION_PARTS.map(byte) {
        [Some(revision), Some(version), Some(subversion)] => Some([revision, version, subversion]),
        _ => None,
    };
    Some(Program { path: printable(&mapping.name, MAX_PATH_CHARACTERS), version, variables })
}

/// Reads a byte of read-only data from the file, because its page need not be resident.
fn read_constant(process: &Process, space: &AddressSpace, address: u64) -> Option<u8> {
    let mapping = space.find(address)?;
    let file = open_mapped_file(process, mapping).ok()?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, mapping.offset.checked_add(address - mapping.start)?).ok()?;
    Some(byte[0])
}

/// An interpreter of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpreterLocation {
    /// Its address; `None` if its variables are globals.
    pub interpreter: Option<u64>,
    /// Whether `PL_curinterp` points to it.
    pub is_main: bool,
    /// The thread that has it as its own, if any is known.
    pub thread: Option<i32>,
    /// Where its variables are.
    pub addresses: Addresses,
}

/// Interpreters of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreters {
    /// The one of `PL_curinterp` is first; the ones of threads follow.
    pub locations: Vec<InterpreterLocation>,
    /// Whether these are all: beyond `MAX_INTERPRETERS` they are left out, and a variable that
    /// leads to one may be unreadable.
    pub is_complete: bool,
}

/// The interpreters of `program` to which its variables lead.
pub fn interpreters(
    program: &Program,
    release: &Layout,
    threads: &[ThreadFacts],
    pages: &mut PageCache<'_>,
) -> Interpreters {
    let (current, thr_key) = match program.variables {
        Variables::Globals(addresses) => {
            let only = InterpreterLocation { interpreter: None, is_main: true, thread: None, addresses };
            return Interpreters { locations: vec![only], is_complete: true };
        }
        Variables::Interpreters { curinterp, thr_key } => (pages.word(curinterp), thr_key),
    };
    let mut found = Interpreters { locations: Vec::new(), is_complete: current.is_some() };
    if let Some(current) = current.filter(|&current| current != 0) {
        found.locations.push(InterpreterLocation { is_main: true, ..location_at(current, release) });
    }
    let Some(thr_key) = thr_key else { return found };
    let Some(key) = pages.word32(thr_key) else { return Interpreters { is_complete: false, ..found } };
    for thread in threads {
        let Some(interpreter) = thread_specific(thread.fs_base, u64::from(key), pages) else {
            found.is_complete = false;
            continue;
        };
        if interpreter == 0 {
            continue;
        }
        found.is_complete &= add_interpreters(&mut found.locations, &[interpreter], release);
        let location = found.locations.iter_mut().find(|location| location.interpreter == Some(interpreter));
        if let Some(location) = location {
            location.thread = location.thread.or(Some(thread.tid));
        }
    }
    found
}

/// Adds the interpreters at `addresses` that are not in `locations` yet. False if some are left
/// out.
pub fn add_interpreters(
    locations: &mut Vec<InterpreterLocation>,
    addresses: &[u64],
    release: &Layout,
) -> bool {
    for &address in addresses {
        if locations.iter().any(|location| location.interpreter == Some(address)) {
            continue;
        }
        if locations.len() >= MAX_INTERPRETERS {
            return false;
        }
        locations.push(location_at(address, release));
    }
    true
}

/// The location of an interpreter at an address, which is not the main one and has no thread.
pub(super) fn location_at(interpreter: u64, release: &Layout) -> InterpreterLocation {
    let at = |offset: u64| interpreter.wrapping_add(offset);
    let addresses = Addresses {
        strtab: at(release.strtab),
        sv_count: at(release.sv_count),
        sv_arenaroot: at(release.sv_arenaroot),
        main_cv: at(release.main_cv),
        body_roots: at(release.body_roots),
        body_arenas: at(release.body_arenas),
    };
    InterpreterLocation { interpreter: Some(interpreter), is_main: false, thread: None, addresses }
}

/// A thread's value of a `pthread_key_t`, as `pthread_getspecific` returns it: 0 if it has none.
/// `None` if it cannot be read.
fn thread_specific(thread_pointer: u64, key: u64, pages: &mut PageCache<'_>) -> Option<u64> {
    if thread_pointer == 0 || key >= THREAD_SPECIFIC_KEYS * THREAD_SPECIFIC_KEYS {
        return Some(0);
    }
    let first = thread_pointer.checked_add(THREAD_SPECIFIC)?;
    let block = if key < THREAD_SPECIFIC_KEYS {
        first
    } else {
        // The first block is followed by pointers to all blocks.
        let block_pointers = first.checked_add(THREAD_SPECIFIC_KEYS * 16)?;
        pages.word(block_pointers.checked_add(key / THREAD_SPECIFIC_KEYS * 8)?)?
    };
    if block == 0 {
        return Some(0);
    }
    let (sequence, value) = pages.pair(block.checked_add(key % THREAD_SPECIFIC_KEYS * 16)?)?;
    // Sequence numbers of keys in use are odd.
    Some(if sequence % 2 == 1 { value } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabricated::Unreadable;

    #[test]
    fn variables_that_cannot_be_read_are_noticed() {
        let variables = Variables::Interpreters { curinterp: 0x1000, thr_key: None };
        let program = Program { path: String::new(), version: None, variables };
        let found = interpreters(&program, &RELEASES[0], &[], &mut PageCache::new(&Unreadable));
        assert_eq!(found, Interpreters { locations: Vec::new(), is_complete: false });
    }

    #[test]
    fn interpreters_beyond_the_limit_are_noticed() {
        let mut locations = Vec::new();
        let addresses: Vec<u64> = (1..=MAX_INTERPRETERS as u64 + 1).map(|number| number << 16).collect();
        assert!(add_interpreters(&mut locations, &addresses[..MAX_INTERPRETERS], &RELEASES[0]));
        assert!(add_interpreters(&mut locations, &addresses[..1], &RELEASES[0]), "it is there already");
        assert!(!add_interpreters(&mut locations, &addresses, &RELEASES[0]));
        assert_eq!(locations.len(), MAX_INTERPRETERS);
    }
}
