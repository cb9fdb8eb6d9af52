//! CPython read from outside, compared with its own figures (`tests/subjects/python`): the system's
//! CPython, and all others found.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use crate::support::{Folder, Outcome, Result, Subject, for_any, here, pythons, repetitions, strandline};

static LIBRARY: LazyLock<std::result::Result<PathBuf, String>> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/python/figures.c");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-figures.so");
    let mut build = Command::new("cc");
    build.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    match build.status() {
        Ok(status) if status.success() => Ok(library),
        other => Err(format!("{build:?}: {other:?}")),
    }
});

/// A CPython with objects, and its own figures.
struct Oracle {
    subject: Subject,
    figures: HashMap<&'static str, u64>,
}

impl Oracle {
    fn start(python: &str, (case, count, seed): (&str, u64, u64), malloc: Option<&str>) -> Result<Self> {
        let folder = Folder::new(&format!("python-{case}-{count}-{seed}-{}", python.replace('/', "_")))?;
        let figures = folder.0.join("figures");
        let mut command = Command::new(python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/python/oracle.py"));
        command.args([case, &count.to_string(), &seed.to_string()]).arg(LIBRARY.clone()?).arg(&figures);
        for name in ["PYTHONMALLOC", "PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "GLIBC_TUNABLES"] {
            command.env_remove(name);
        }
        command.env("PYTHONDONTWRITEBYTECODE", "1").envs(malloc.map(|malloc| ("PYTHONMALLOC", malloc)));
        let subject = Subject::start_command(command)?;
        let text = std::fs::read_to_string(&figures)?;
        Ok(Self { subject, figures: parse(&text) })
    }

    /// Returns the ledger, which holds every invariant, and its entry for CPython.
    fn explain_cpython(&self) -> Result<(Value, Value)> {
        let document = strandline::explain(self.subject.pid())?;
        let all = document["runtimes"].as_array().ok_or("no runtimes")?;
        let runtime = all.iter().find(|runtime| runtime["name"] == "cpython").ok_or("no cpython")?.clone();
        if runtime["read"] != true {
            return Err(format!("not read: {:?}", strandline::caveats(&document)).into());
        }
        Ok((document, runtime))
    }

    /// Whether types have the instances and bytes that the subject printed.
    fn types_agree(&self, runtime: &Value) -> Outcome {
        let known = self.subject.ready["types"].as_object().ok_or("no types")?;
        for (name, expected) in known {
            let types = runtime["types"].as_array().ok_or("no types")?;
            let found = types.iter().find(|one| one["name"] == **name);
            let found = found.map(|one| (one["instances"].as_u64(), one["bytes"].as_u64()));
            if found != Some((expected[0].as_u64(), expected[1].as_u64())) {
                return Err(format!("{name}: expected {expected}, found {found:?}").into());
            }
        }
        if known.is_empty() { Err("the subject printed no types".into()) } else { Ok(()) }
    }
}

/// Parses the output of `sys._debugmallocstats`.
fn parse(text: &str) -> HashMap<&'static str, u64> {
    const NAMES: [(&str, &str); 6] = [
        ("# arenas allocated current", "arenas_allocated_current"),
        ("# bytes in allocated blocks", "bytes_in_allocated_blocks"),
        ("# bytes in available blocks", "bytes_in_available_blocks"),
        ("# bytes lost to pool headers", "bytes_lost_to_pool_headers"),
        ("# bytes lost to quantization", "bytes_lost_to_quantization"),
        ("# bytes lost to arena alignment", "bytes_lost_to_arena_alignment"),
    ];
    let number = |text: &str| text.replace(',', "").trim().parse().ok();
    let mut figures = HashMap::new();
    for line in text.lines() {
        let named = NAMES.iter().find(|(begin, _)| line.starts_with(begin));
        if let (Some((_, name)), Some(value)) = (named, line.rsplit('=').next().and_then(number)) {
            figures.insert(*name, value);
        }
        if let Some((count, _)) = line.split_once(" unused pools * ")
            && let Some(value) = number(count)
        {
            figures.insert("unused_pools", value);
        }
    }
    figures
}

/// Whether the figures equal CPython's own.
fn figures_agree(oracle: &Oracle, runtime: &Value) -> Outcome {
    if oracle.figures.len() != 7 {
        return Err(format!("the subject reports {:?}", oracle.figures).into());
    }
    for (name, expected) in &oracle.figures {
        if runtime["own"][*name].as_u64() != Some(*expected) {
            return Err(format!("{name}: expected {expected}, found {}", runtime["own"][*name]).into());
        }
    }
    Ok(())
}

/// Whether the collector's state equals what `gc` returned; only the object counts change in
/// between.
fn collector_agrees(oracle: &Oracle, runtime: &Value) -> Outcome {
    let expected = &oracle.subject.ready["collector"];
    let collectors = runtime["cpython"]["collectors"].as_array().ok_or("no collectors")?;
    let [collector] = collectors.as_slice() else { return Err(format!("{collectors:?}").into()) };
    let all = |name: &str| -> Value {
        collector["generations"].as_array().into_iter().flatten().map(|of| of[name].clone()).collect()
    };
    let pairs = [
        ("enabled", collector["enabled"].clone()),
        ("thresholds", all("threshold")),
        ("collections", all("collections")),
        ("collected", all("collected_objects")),
    ];
    for (name, found) in pairs {
        if expected[name] != found {
            return Err(format!("{name}: expected {}, found {found}", expected[name]).into());
        }
    }
    if collector["collecting"] == false { Ok(()) } else { Err("it is reported as collecting".into()) }
}

#[test]
fn figures_and_types_equal_cpythons_own() -> Outcome {
    let mut cases = Vec::new();
    for python in pythons::all(here!()) {
        for seed in 0..repetitions(2, 20) {
            cases.push((python.clone(), ("mixed", 1000 << (seed % 5), seed)));
        }
        cases.push((python, ("sparse", 200_000, 1)));
    }
    for_any(cases, |(python, case)| {
        let oracle = Oracle::start(python, *case, None)?;
        let (document, runtime) = oracle.explain_cpython()?;
        figures_agree(&oracle, &runtime)?;
        oracle.types_agree(&runtime)?;
        collector_agrees(&oracle, &runtime)?;
        let caveats = strandline::caveats(&document);
        if !caveats.is_empty() {
            return Err(format!("caveats: {caveats:?}").into());
        }
        let rss = document["kernel"]["rss_bytes"].as_u64().ok_or("no RSS")?;
        let unattributed =
            strandline::row(&document, "anonymous") + strandline::row(&document, "cpython.unread");
        if unattributed * 50 > rss {
            Err(format!("{unattributed} of {rss} bytes are not explained").into())
        } else {
            Ok(())
        }
    })
}

#[test]
fn sparse_arenas_are_listed_by_the_type_that_keeps_them() -> Outcome {
    for_any(pythons::all(here!()), |python| {
        let oracle = Oracle::start(python, ("sparse", 200_000, 1), None)?;
        let (document, runtime) = oracle.explain_cpython()?;
        let sparse = &runtime["cpython"]["sparse_arenas"];
        if sparse["arenas"].as_u64() < Some(5) || sparse["kept_by"][0]["name"] != "__main__.Slotted" {
            return Err(format!("{sparse}").into());
        }
        let headline = document["verdict"]["headline"].as_str().unwrap_or_default();
        let names_the_type = headline.contains("most of them __main__.Slotted");
        if document["verdict"]["class"] != "free_arenas" || !names_the_type {
            return Err(format!("{}", document["verdict"]).into());
        }
        Ok(())
    })
}

/// Without arenas the reader finds all objects through pointers to them, and how many bytes of
/// blocks CPython uses is not known: `sys._debugmallocstats` has no figures either. Debug hooks put
/// words around each block and must hide no object.
#[test]
fn objects_in_blocks_of_malloc_are_found() -> Outcome {
    let hooks = ["malloc", "malloc_debug", "debug"];
    let pythons = pythons::all(here!()).into_iter();
    for_any(pythons.flat_map(|python| hooks.map(|hook| (python.clone(), hook))), |(python, hook)| {
        let oracle = Oracle::start(python, ("mixed", 4000, 1), Some(hook))?;
        let (document, runtime) = oracle.explain_cpython()?;
        if oracle.figures.is_empty() != (*hook != "debug") {
            return Err(format!("the subject reports {:?}", oracle.figures).into());
        }
        for figure in ["used_bytes", "free_bytes", "committed_bytes", "own"] {
            if runtime[figure].is_null() != oracle.figures.is_empty() {
                return Err(format!("{figure}: {}", runtime[figure]).into());
            }
        }
        let text = strandline::run(&["explain", "-v", &oracle.subject.pid_text()])?.stdout;
        if text.contains("objects are in malloc's blocks") != oracle.figures.is_empty() {
            return Err(text.into());
        }
        oracle.types_agree(&runtime)?;
        // Objects point anywhere in the heap; the reader must not read a page again for each
        // object.
        let (read, rss) = (document["cost"]["bytes_read"].as_u64(), document["kernel"]["rss_bytes"].as_u64());
        if read > rss.map(|rss| rss * 4) {
            return Err(format!("{read:?} bytes read of {rss:?}").into());
        }
        let (own, others) =
            (strandline::row(&document, "cpython.object"), strandline::row(&document, "glibc.live"));
        if others * 3 > own {
            Err(format!("{own} bytes in objects, {others} in others").into())
        } else {
            Ok(())
        }
    })
}

/// The same program with PYTHONMALLOC=malloc, once trimmed, lacks most of the memory that the
/// arenas keep. The ledger offers this setting without a prediction.
#[test]
fn a_setting_for_the_next_start_is_not_predicted() -> Outcome {
    for_any(pythons::one(here!()), |python| {
        let case = ("sparse", 800_000, 1);
        // Compares two processes: which file pages are resident depends on earlier use of the
        // machine.
        let own =
            |document: &Value| document["kernel"]["anonymous_bytes"].as_i64().ok_or("no anonymous_bytes");
        let (document, _) = Oracle::start(python, case, None)?.explain_cpython()?;
        let remedies = document["remedies"].as_array().into_iter().flatten();
        let mut remedies = remedies.filter(|remedy| remedy["id"] == "cpython_malloc");
        let offered = remedies.next().ok_or("not offered")?;
        if !offered["predicted_bytes"].is_null() || !offered["unknown_because"].is_string() {
            return Err(format!("predicted: {offered}").into());
        }
        let kept = i64::try_from(strandline::row(&document, "cpython.free.kept"))?;
        let with = Oracle::start(python, case, Some("malloc"))?;
        let reclaimed = strandline::run(&["reclaim", &with.subject.pid_text()])?;
        if reclaimed.status != Some(0) {
            return Err(reclaimed.summary().into());
        }
        let (after, _) = with.explain_cpython()?;
        let actual = own(&document)? - own(&after)?;
        if kept < 10 << 20 || actual < kept / 10 * 9 {
            return Err(format!("{kept} bytes kept by arenas, {actual} released").into());
        }
        Ok(())
    })
}

#[test]
fn arenas_of_subinterpreters_are_read() -> Outcome {
    let have_own = |python: &String| pythons::minor(python).is_some_and(|minor| minor >= 12);
    let pythons = pythons::all(here!()).into_iter().filter(have_own);
    for_any(pythons, |python| {
        let oracle = Oracle::start(python, ("interpreters", 20_000, 1), None)?;
        let (document, runtime) = oracle.explain_cpython()?;
        oracle.types_agree(&runtime)?;
        // Two other interpreters with 20,000 lists each.
        let lists = runtime["types"].as_array().into_iter().flatten().find(|one| one["name"] == "list");
        let lists = lists.and_then(|one| one["instances"].as_u64());
        if lists < Some(40_000) {
            return Err(format!("{lists:?} lists").into());
        }
        let unattributed = strandline::row(&document, "anonymous");
        if unattributed > 1 << 20 {
            Err(format!("{unattributed} bytes are not explained").into())
        } else {
            Ok(())
        }
    })
}

/// A build without a global lock keeps objects in mimalloc heaps, also those of threads that ended.
#[test]
fn figures_of_a_build_without_a_global_lock_equal_its_own() -> Outcome {
    let Some(python) = pythons::free_threaded(here!()) else {
        return Ok(());
    };
    let cases = [("mixed", 4000, 1), ("sparse", 200_000, 1), ("interpreters", 5000, 2), ("threads", 3000, 3)];
    let hooks = [None, Some("debug")];
    for_any(cases.into_iter().flat_map(|case| hooks.map(|hook| (case, hook))), |(case, hook)| {
        let oracle = Oracle::start(&python, *case, *hook)?;
        let (document, runtime) = oracle.explain_cpython()?;
        oracle.types_agree(&runtime)?;
        if case.0 != "interpreters" {
            collector_agrees(&oracle, &runtime)?;
        }
        let caveats = strandline::caveats(&document);
        if !caveats.is_empty() {
            return Err(format!("caveats: {caveats:?}").into());
        }
        let [objects, others] = ["cpython.object", "mimalloc.live"].map(|id| strandline::row(&document, id));
        if objects < 1 << 20 || others > objects {
            return Err(format!("{objects} bytes in objects, {others} in others").into());
        }
        Ok(())
    })
}

/// Separately allocated blocks are reported by the type of the object that owns them.
#[test]
fn large_blocks_are_named_by_their_owner() -> Outcome {
    const SCRIPT: &str = "import array, json, sys
class Kept(list): pass
class Index(dict): pass
kept, index = Kept(range(500000)), Index((number, None) for number in range(170000))
sizes, text = array.array('d', [0.5]) * 400000, b'x' * 3000000
expected = {'table': {'__main__.Kept': sys.getsizeof(kept), '__main__.Index': sys.getsizeof(index)},
        'buffer': {'array.array': 8 * len(sizes)}, 'object': {'bytes': len(text)}}
print(json.dumps(expected), flush=True)
sys.stdin.read()";
    let mut cases: Vec<_> = pythons::all(here!()).into_iter().map(|one| (one, None)).collect();
    cases.extend(pythons::one(here!()).map(|one| (one, Some("malloc"))));
    cases.extend(pythons::free_threaded(here!()).map(|one| (one, None)));
    for_any(cases, |(python, malloc)| {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).env_remove("PYTHONMALLOC");
        command.envs(malloc.map(|malloc| ("PYTHONMALLOC", malloc)));
        let subject = Subject::start_command(command)?;
        let document = strandline::explain(subject.pid())?;
        owners_agree(&subject, document["rows"].as_array().ok_or("no rows")?)
    })
}

/// Whether rows have the owners that the subject printed, with their bytes.
fn owners_agree(subject: &Subject, rows: &[Value]) -> Outcome {
    for (row, owners) in subject.ready.as_object().ok_or("the subject reports nothing")? {
        for (owner, expected) in owners.as_object().ok_or("no owners")? {
            let is_its = |of: &&Value| of["id"] == format!("cpython.{row}") && of["holder"] == **owner;
            let found = rows.iter().find(is_its).and_then(|of| of["bytes"].as_u64()).unwrap_or(0);
            let expected = expected.as_u64().ok_or("no bytes")?;
            // The row includes the rest of the object, and spare capacity that was never written.
            if found * 10 < expected * 9 || found > expected + expected / 4 {
                return Err(format!("{row} of {owner}: expected {expected}, found {found}").into());
            }
        }
    }
    Ok(())
}

/// A block of C code does not belong to an object because a word of the object points to it: the
/// word may be a number, or stale.
#[test]
fn blocks_of_c_are_no_objects() -> Outcome {
    const SCRIPT: &str = "import array, ctypes, json, sys
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
class Slots: __slots__ = ('one', 'two')
def stale(address):
    # Words that hold the address: a pointer's value, the end of a bytes object, an array's items,
    # slots of a freed object.
    kept = [ctypes.c_void_p(address), bytes(33) + address.to_bytes(8, 'little') * 40, array.array('Q', [address] * 9)]
    ctypes.memmove(id(kept[1]) + 32, kept[1][1:], 340)
    halved = [ctypes.c_void_p(address) for _ in range(1000)]
    del halved[::2]
    return kept, halved, [Slots() for _ in range(1000)]
blocks = [c.malloc(64 << 20), c.malloc(100000)]
for block, size in zip(blocks, (64 << 20, 100000)): ctypes.memset(block, 1, size)
kept = [stale(block) for block in blocks]
own = (ctypes.c_double * 200000)(*[0.5] * 200000)
grown = bytearray(b'x' * 2000000)
numbers = set(range(0, 1000000, 10))
print(json.dumps({'buffer': {'__main__.c_double_Array_200000': 1600000}, 'table': {'bytearray': 2000000,
    'set': sys.getsizeof(numbers)}}), flush=True)
sys.stdin.read()";
    let mut cases: Vec<_> = pythons::all(here!()).into_iter().map(|one| (one, None)).collect();
    cases.extend(pythons::one(here!()).map(|one| (one, Some("malloc"))));
    for_any(cases, |(python, malloc)| {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).env_remove("PYTHONMALLOC");
        command.envs(malloc.map(|malloc| ("PYTHONMALLOC", malloc)));
        let subject = Subject::start_command(command)?;
        let document = strandline::explain(subject.pid())?;
        let rows = document["rows"].as_array().ok_or("no rows")?;
        let sum = |prefix: &str| -> u64 {
            let of = rows.iter().filter(|of| of["id"].as_str().is_some_and(|id| id.starts_with(prefix)));
            of.filter_map(|of| of["bytes"].as_u64()).sum()
        };
        if sum("cpython.") > 32 << 20 || sum("glibc.") < 64 << 20 {
            let own = rows.iter().filter(|of| of["id"].as_str().is_some_and(|id| id.starts_with("cpython.")));
            return Err(format!("an object owns malloc's 64 MiB: {:?}", own.collect::<Vec<_>>()).into());
        }
        owners_agree(&subject, rows)
    })
}

/// Of more than 1,000 types, the last entry has the objects of those that are not listed.
#[test]
fn objects_of_types_that_are_not_listed_are_counted() -> Outcome {
    const SCRIPT: &str = "import sys
kept = [type(f'Kind{number}', (), {})() for number in range(1500)]
print('{}', flush=True)
sys.stdin.read()";
    for_any(pythons::all(here!()), |python| {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).env_remove("PYTHONMALLOC");
        let subject = Subject::start_command(command)?;
        let document = strandline::explain(subject.pid())?;
        let runtimes = document["runtimes"].as_array().ok_or("no runtimes")?;
        let cpython = runtimes.iter().find(|runtime| runtime["name"] == "cpython").ok_or("no cpython")?;
        let types = cpython["types"].as_array().ok_or("no types")?;
        let is_kind = |name: &str| name.starts_with("__main__.Kind");
        let kinds = types.iter().filter(|one| one["name"].as_str().is_some_and(is_kind)).count() as u64;
        let others = types.last().filter(|one| one["name"] == "objects of other types");
        let others = others.and_then(|one| one["instances"].as_u64()).ok_or("no other types")?;
        let is_right = kinds < 1500 && kinds + others >= 1500;
        if is_right { Ok(()) } else { Err(format!("{kinds} types listed, {others} other objects").into()) }
    })
}

#[test]
fn no_runtimes_skips_cpython() -> Outcome {
    for_any(pythons::one(here!()), |python| {
        let oracle = Oracle::start(python, ("mixed", 2000, 1), None)?;
        let pid = oracle.subject.pid_text();
        let document = strandline::json(&["explain", &pid, "--json", "--no-runtimes"])?;
        assert_eq!(strandline::row(&document, "cpython.object"), 0);
        assert!(strandline::row(&document, "anonymous") > 1 << 20);
        Ok(())
    })
}

/// No type name is made from the contents of strings, and no other output contains them.
#[test]
fn contents_of_strings_are_not_shown() -> Outcome {
    for_any(pythons::one(here!()), |python| {
        let (document, _) = Oracle::start(python, ("mixed", 2000, 1), None)?.explain_cpython()?;
        assert!(!document.to_string().contains("secret"));
        Ok(())
    })
}
