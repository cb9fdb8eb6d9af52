//! Remedies of allocators other than glibc: makes a thread call the function by which its allocator
//! releases free pages.
//!
//! A thread that holds a lock of the allocator, or is inside one of its functions, has a frame of
//! the allocator's code on its stack: so no thread with such a frame is chosen. In a library this
//! is all code of the library. The code of an allocator that is linked into the program is
//! recognised by the names of its functions; if those are stripped, the call is refused. A thread
//! that is about to fork, or just forked, holds all the locks without being in the allocator's
//! code: so no thread in a function that forks is chosen either.
//!
//! If the calling thread never used the allocator, the call first creates the thread's data
//! (jemalloc's `tsd`). This may request memory from the C library (`__tls_get_addr` of a library
//! that was loaded later, `pthread_setspecific`) and take the lock of the dynamic linker. So a
//! thread is chosen that the allocator knows. If none is known, as for a library whose thread
//! variables the linker places, the main thread makes the call, under more conditions (see
//! `first_use_conditions`).

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use super::call::{self, CallRequest, no_trampoline};
use super::runtime_code::is_c_library;
use super::{Applied, Refusal};
use strandline_claims::allocator::{CallPlan, Function};
use strandline_process::call::code::CallSites;
use strandline_process::elf::{Object, Symbol};
use strandline_process::map::{AddressSpace, Mapping};
use strandline_process::procfs::Process;
use strandline_process::range::RangeSet;

/// Maximum distance between functions of an allocator that is linked into a program: its object
/// files are taken from one archive, one after another; but linkers put the rarely run code of the
/// whole program first.
const MAX_SPAN_BYTES: u64 = 64 << 20;
/// Margin before the first and after the last function with a name of the allocator, for static
/// functions without one.
const MARGIN_BYTES: u64 = 16 << 10;
/// Minimum number of functions with a name of the allocator: a program may export some and be
/// stripped of the others.
const MIN_FUNCTIONS: usize = 100;
/// Maximum number of symbols with the name of the function to call, and of those with the name of
/// its sibling: each may have a prefix.
const MAX_CANDIDATES: usize = 16;
/// Functions that fork, and pthread_mutex_unlock: with a tail call of it, which leaves no frame of
/// the allocator, an allocator may release its last lock after a fork.
const FORK_FUNCTIONS: [&[u8]; 6] =
    [b"fork", b"__fork", b"__libc_fork", b"_Fork", b"pthread_mutex_unlock", b"__pthread_mutex_unlock"];

/// The call, and what it needs.
pub struct PurgeRequest<'a> {
    /// The call.
    pub plan: &'a CallPlan,
    /// The call that would be made into the C library's malloc, if there is one and it is the
    /// process's only other allocator: in a thread that never used this allocator, the call
    /// requests memory from it.
    pub libc: Option<&'a CallPlan>,
    /// How long to search for a safe thread.
    pub wait: Duration,
    /// How long to count minor faults afterwards; zero to count none.
    pub watch: Duration,
}

/// Makes the call once in process `pid`.
///
/// # Errors
/// The reason why it was not made, or what went wrong in it.
pub fn apply(pid: i32, request: &PurgeRequest<'_>) -> Result<Applied, String> {
    with_call(pid, request, &|call| call::apply(pid, call))
}

/// Checks whether process `pid` could make the call now, without calling anything.
///
/// # Errors
/// The reason against it.
pub fn check(pid: i32, request: &PurgeRequest<'_>) -> Result<(), String> {
    with_call(pid, request, &|call| call::check(pid, call))
}

/// Returns why the call can never be made in `process`, whatever its threads do; `None` if it can.
pub fn permanent_objection(process: &Process, space: &AddressSpace, plan: &CallPlan) -> Option<String> {
    find_callee(process, space, plan).err()
}

/// The function to call, and the allocator's code.
struct Callee {
    function: Symbol,
    code: Vec<Range<u64>>,
}

/// Finds the function to call, and the allocator's code.
///
/// # Errors
/// The reason why the call cannot be made.
fn find_callee(process: &Process, space: &AddressSpace, plan: &CallPlan) -> Result<Callee, String> {
    let mapping = space.find(plan.object).ok_or("its allocator was unmapped meanwhile")?;
    let object = Object::open(process, space, mapping).map_err(|error| error.to_string())?;
    let is_program = process.executable().is_some_and(|program| program == mapping.name);
    let function = find_function(&object, &plan.function).ok_or_else(|| {
        format!(
            "{} has no symbol {} to call; restart it to give its memory back",
            object.name(),
            plan.function.name
        )
    })?;
    let code =
        if is_program { own_code(&object, &plan.function, function) } else { Some(object.text().to_vec()) };
    let code = code.ok_or_else(|| {
        format!(
            "strandline cannot find its allocator's functions in {} (stripped), so no thread is known to be outside of them; \
             restart it to give its memory back",
            object.name()
        )
    })?;
    Ok(Callee { function, code })
}

/// Passes the call of `request` to `act`, once its conditions are known.
fn with_call<T>(
    pid: i32,
    request: &PurgeRequest<'_>,
    act: &dyn Fn(&CallRequest<'_>) -> Result<T, Refusal>,
) -> Result<T, String> {
    let PurgeRequest { plan, wait, watch, .. } = *request;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let process = Process::open(pid).map_err(|error| text(&error))?;
    let space = process.address_space().map_err(|error| text(&error))?;
    let Callee { function, mut code } = find_callee(&process, &space, plan)?;
    code.extend(fork_functions(&process, &space).ok_or_else(|| {
        "strandline cannot find where the C library forks (it is stripped), and a thread that forks holds all of its \
         allocator's locks; restart it to release its memory"
            .to_owned()
    })?);
    let mut locks = plan.locks.clone();
    let is_first_use = plan.fs_bases.is_empty();
    if is_first_use {
        let libc = request
            .libc
            .filter(|_| plan.releases_all)
            .and_then(|libc| first_use_conditions(&process, &space, libc));
        let libc = libc.ok_or_else(|| {
            // Without `releases_all`, what goes back depends on the calling thread.
            "none of its threads is known to have used that allocator, and strandline does not know the functions and locks of \
             the C library's malloc, from which the call would request memory; call it in the program itself, or restart it"
                .to_owned()
        })?;
        code.extend(libc.code);
        locks.extend(libc.locks);
    }
    let heaps: Vec<Range<u64>> = plan.heaps.iter().map(|&heap| heap.into()).collect();
    let request = CallRequest {
        function: function.address,
        argument: plan.function.argument,
        sites: CallSites::find(&process, &space).ok_or_else(|| text(&no_trampoline(pid)))?,
        code: &code,
        locks: &locks,
        stack_bytes: plan.function.stack_bytes,
        fs_bases: &plan.fs_bases,
        heaps: &heaps,
        wait,
        watch,
        // The main thread lives as long as the process, so what the call creates for it is not
        // leaked.
        thread: is_first_use.then_some(pid),
        must_wait: is_first_use,
    };
    act(&request).map_err(|refusal| text(&refusal))
}

/// Code in which a thread must not be, and locks that it must not hold, to call an allocator for
/// the first time.
struct FirstUseConditions {
    code: Vec<Range<u64>>,
    locks: Vec<u64>,
}

/// Returns the functions and locks of the C library's malloc, and all of the dynamic linker, which
/// such a call may use. In addition the thread must be asleep in a call that waits for something
/// outside, where the C library holds no internal lock (such as the lock of thread stacks, taken
/// to start a thread if an allocator does that). `None` if one of them is not known.
fn first_use_conditions(
    process: &Process,
    space: &AddressSpace,
    libc: &CallPlan,
) -> Option<FirstUseConditions> {
    if libc.doubt.is_some() {
        return None;
    }
    let malloc = Object::open(process, space, space.find(libc.object)?).ok()?;
    let mut code = libc.libc_code?(&malloc)?;
    let is_linker = |mapping: &&Mapping| {
        let file = mapping.file_name();
        mapping.has_file()
            && mapping.permissions.execute
            && (file.starts_with("ld-linux") || file.starts_with("ld-2."))
    };
    let linker = space.mappings().iter().find(is_linker)?;
    code.extend(Object::open(process, space, linker).ok()?.text().iter().cloned());
    Some(FirstUseConditions { code, locks: libc.locks.clone() })
}

/// Returns the code of [`FORK_FUNCTIONS`]: between the calls into an allocator before and after a
/// fork (pthread_atfork) the thread holds all of the allocator's locks, without a frame of the
/// allocator on its stack. `None` if no function named fork is found.
fn fork_functions(process: &Process, space: &AddressSpace) -> Option<Vec<Range<u64>>> {
    let program = process.executable();
    let mut functions: Vec<Range<u64>> = Vec::new();
    let (mut read_files, mut has_fork) = (HashSet::new(), false);
    for mapping in space.mappings().iter().filter(|mapping| mapping.has_file() && mapping.permissions.execute)
    {
        let is_wanted = is_c_library(mapping) || program.as_ref() == Some(&mapping.name);
        if !is_wanted || !read_files.insert(mapping.file_id()) {
            continue;
        }
        // Without the C library's symbols, `has_fork` stays false.
        let Ok(object) = Object::open(process, space, mapping) else { continue };
        object.each_symbol(&mut |name, symbol| {
            has_fork |= name == b"fork";
            if FORK_FUNCTIONS.contains(&name) && symbol.bytes > 0 && object.text_contains(symbol.address) {
                functions.push(symbol.address..symbol.address.saturating_add(symbol.bytes));
            }
        });
    }
    has_fork.then_some(functions)
}

/// Whether a name is `wanted`, possibly with a prefix that builds add: `je_`, `_rjem_` (Rust), or
/// others.
fn has_name(name: &[u8], wanted: &str) -> bool {
    name.strip_suffix(wanted.as_bytes()).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with(b"_"))
}

/// A function of an object.
struct NamedSymbol {
    name: Vec<u8>,
    symbol: Symbol,
}

/// Finds the function to call in an object.
fn find_function(object: &Object, function: &Function) -> Option<Symbol> {
    let Some(sibling) = function.sibling else { return find_global(object, function.name) };
    let mut candidates: Vec<NamedSymbol> = Vec::new();
    let mut siblings: HashSet<Vec<u8>> = HashSet::new();
    object.each_symbol(&mut |name, symbol| {
        // A version script may make the allocator's functions local in a library: then a prefix
        // distinguishes them from functions of the library itself.
        let is_bare = name == function.name.as_bytes() || name == sibling.as_bytes();
        if !symbol.is_global && is_bare || !object.text_contains(symbol.address) {
            return;
        }
        if has_name(name, function.name) && candidates.len() < MAX_CANDIDATES {
            candidates.push(NamedSymbol { name: name.to_vec(), symbol });
        } else if has_name(name, sibling) && siblings.len() < MAX_CANDIDATES {
            siblings.insert(name.to_vec());
        }
    });
    // A program's own function with such a name has no sibling with the same prefix.
    let prefix = |name: &[u8], end: &str| name[..name.len() - end.len()].to_vec();
    let has_sibling = |name: &[u8]| {
        siblings.iter().any(|name_of_sibling| prefix(name_of_sibling, sibling) == prefix(name, function.name))
    };
    candidates.into_iter().find(|candidate| has_sibling(&candidate.name)).map(|candidate| candidate.symbol)
}

/// Finds a function that has no sibling: by its bare name, as any library may add a prefix.
fn find_global(object: &Object, wanted: &str) -> Option<Symbol> {
    let mut found = None;
    object.each_symbol(&mut |name, symbol| {
        let is_wanted = name == wanted.as_bytes() && symbol.is_global;
        if found.is_none() && is_wanted && object.text_contains(symbol.address) {
            found = Some(symbol);
        }
    });
    found
}

/// Returns the code of an allocator that is linked into a program: everything between its named
/// functions, with a margin on both sides for functions without a name. Linkers put its parts that
/// are run rarely, or first, together with the program's: the program's own functions are left out.
/// Global functions of an allocator have its names, and its other functions are called from those.
fn own_code(object: &Object, function: &Function, called: Symbol) -> Option<Vec<Range<u64>>> {
    let (mut own, mut foreign): (Vec<Range<u64>>, Vec<Range<u64>>) = (Vec::new(), Vec::new());
    object.each_symbol(&mut |name, symbol| {
        let is_own = function.own_prefixes.iter().any(|start| {
            let at = name.windows(start.len()).position(|part| part == start.as_bytes());
            at.is_some_and(|at| at == 0 || name[at - 1] == b'_')
        });
        if object.text_contains(symbol.address) {
            let range = symbol.address..symbol.address.saturating_add(symbol.bytes);
            if is_own {
                own.push(range);
            } else if symbol.is_global && symbol.bytes > 0 {
                foreign.push(range);
            }
        }
    });
    own.sort_unstable_by_key(|range| range.start);
    let first = own.first()?.start.saturating_sub(MARGIN_BYTES);
    let last = own.iter().map(|range| range.end).max()?.saturating_add(MARGIN_BYTES);
    let is_allocator = own.len() >= MIN_FUNCTIONS
        && last - first <= MAX_SPAN_BYTES
        && (first..last).contains(&called.address);
    if !is_allocator {
        return None;
    }
    // One function may have several names.
    foreign.retain(|other| {
        let next = own.partition_point(|range| range.start < other.start);
        let touches = |range: &Range<u64>| range.start < other.end && other.start < range.end;
        !own.get(next).is_some_and(touches)
            && !next.checked_sub(1).and_then(|before| own.get(before)).is_some_and(touches)
    });
    let foreign: RangeSet = foreign.into_iter().collect();
    Some(foreign.gaps_in(first..last).map(Into::into).collect())
}

#[cfg(test)]
mod tests {
    use strandline_claims::allocator::Argument;

    use super::*;

    #[test]
    fn a_prefix_needs_a_sibling() {
        let process = Process::open(std::process::id().cast_signed()).unwrap();
        let space = process.address_space().unwrap();
        let is_libc =
            |mapping: &&Mapping| mapping.name.ends_with("/libc.so.6") && mapping.permissions.execute;
        let libc = space.mappings().iter().find(is_libc).expect("a dynamic glibc");
        let object = Object::open(&process, &space, libc).unwrap();
        let find = |name, sibling| {
            let argument = Argument::NONE;
            let function = Function { name, sibling, argument, stack_bytes: 0, own_prefixes: &[] };
            find_function(&object, &function).map(|symbol| symbol.address)
        };
        let trim = object.symbol_address("malloc_trim");
        assert!(trim.is_some());
        assert_eq!(find("malloc_trim", None), trim);
        assert_eq!(find("malloc_trim", Some("malloc")), trim);
        assert_eq!(find("trim", Some("usable_size")), trim);
        assert_eq!(find("trim", None), None);
        assert_eq!(find("malloc_trim", Some("no_such_function")), None);
    }
}
