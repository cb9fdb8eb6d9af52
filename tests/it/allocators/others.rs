//! Allocators other than glibc: live, cached and free bytes read from their structures equal the
//! program's and the allocator's own figures, and a purge releases exactly the predicted bytes.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::libraries::{google_tcmallocs, libraries, library, musls};
use crate::support::strandline::{caveats, command, explain, json, predicted, run};
use crate::support::waiting::{is_traced, until, until_free, until_true};
use crate::support::{
    Folder, Libc, Outcome, Result, Subject, for_any, for_each, here, invariants, pythons, repetitions,
    skipped, subject,
};

/// Libraries of allocators: the allocator's name, the library, and its remedy.
fn all(test: &str) -> Vec<(&'static str, PathBuf, &'static str)> {
    libraries(test).into_iter().map(|one| (one.name, one.path, one.remedy)).collect()
}

fn start(library: &PathBuf, name: &str, arguments: &[&str]) -> Result<Subject> {
    let mut command = Command::new(subject::compile(name, &Libc::system())?);
    Subject::start_command({
        command.args(arguments).env("LD_PRELOAD", library);
        command
    })
}

/// Sends a command to the subject, and returns the answer once the subject sleeps again.
fn answer_at_rest(subject: &mut Subject, command: u8) -> Result<Value> {
    let answer = subject.ask(command)?;
    subject.at_rest()?;
    Ok(answer)
}

/// The document's entry for an allocator that was read.
fn read<'a>(document: &'a Value, name: &str) -> Result<&'a Value> {
    let all = document["allocators"].as_array().ok_or("no allocators")?;
    let found = all.iter().find(|allocator| allocator["name"] == name && allocator["read"] == true);
    found.ok_or_else(|| {
        format!("{name} was not read: {} {}", document["allocators"], document["caveats"]).into()
    })
}

fn number(value: &Value, key: &str) -> Result<i64> {
    value[key].as_i64().ok_or_else(|| format!("{key}: {}", value[key]).into())
}

#[test]
fn random_programs_match_their_own_counts() -> Outcome {
    let test = here!();
    for_any(all(test), |(name, library, remedy)| {
        for seed in 1..=repetitions(6, 100) {
            let keep = format!("keep={}", 100 - seed % 4 * 30);
            // Nothing records how far mimalloc's aligned blocks are from the start of their slots,
            // and the effect of a collection depends on the thread that makes it.
            let is_mimalloc = *name == "mimalloc";
            let align = if is_mimalloc { "align=0" } else { "align=1" };
            let subject = start(library, "any_heap", &[&seed.to_string(), most(seed), &keep, align])?;
            let remedy = if is_mimalloc { None } else { Some(*remedy) };
            check_program((name, &[]), remedy, subject).map_err(|error| format!("seed {seed}: {error}"))?;
        }
        Ok(())
    })
}

/// The largest size of a program's blocks.
fn most(seed: u64) -> &'static str {
    if seed.is_multiple_of(5) { "most=50000000" } else { "most=4000000" }
}

/// With opt.hpa free memory has no extents, so the prediction excludes it. The subject has one
/// thread: with several, jemalloc 5.3.0 itself looped for ever in one of 1,488 runs without
/// strandline.
#[test]
fn a_jemalloc_with_huge_pages_matches_its_own_statistics() -> Outcome {
    let test = here!();
    let has_them = |path: &PathBuf| {
        let mut probe = Command::new("true");
        probe.env("MALLOC_CONF", "hpa:true,abort_conf:true").env("LD_PRELOAD", path);
        probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let Some(library) = library("libjemalloc.so.2").filter(has_them) else {
        skipped(test, "no libjemalloc.so.2 that has opt.hpa (5.3)");
        return Ok(());
    };
    for_each(1..=repetitions(6, 100), |seed| {
        let mut command = Command::new(subject::compile("any_heap", &Libc::system())?);
        command.args([seed.to_string().as_str(), most(*seed), "keep=40", "threads=1"]);
        command.env("LD_PRELOAD", &library).env("MALLOC_CONF", "hpa:true");
        let subject = Subject::start_command(command)?;
        check_program(("jemalloc", &["jemalloc_huge_pages"]), None, subject)
            .map_err(|error| format!("seed {seed}: {error}").into())
    })
}

/// CPython without a global lock has its own mimalloc, with a layout of no mimalloc release: live
/// blocks are not reported as free.
#[test]
fn objects_of_a_free_threaded_cpython_are_in_use() -> Outcome {
    let Some(python) = pythons::free_threaded(here!()) else {
        return Ok(());
    };
    let script = "
import sys, json
keep = [bytes(1000) for _ in range(int(sys.argv[1]))]
print(json.dumps({'bytes': sum(sys.getsizeof(one) for one in keep)}), flush=True)
sys.stdin.read()";
    let explain_python_with = |count: &str| -> Result<(i64, Value)> {
        let mut command = Command::new(&python);
        command.args(["-c", script, count]);
        let subject = Subject::start_command(command)?;
        let document = explain(subject.pid())?;
        invariants::check(&document)?;
        Ok((number(&subject.ready, "bytes")?, read(&document, "mimalloc")?.clone()))
    };
    let ((_, few), (bytes, many)) = (explain_python_with("0")?, explain_python_with("100000")?);
    let more = number(&many, "live_bytes")? - number(&few, "live_bytes")?;
    // Sizes are rounded up to one of four per doubling, and the list itself takes memory.
    if more < bytes || more > bytes + bytes / 4 {
        return Err(format!("{bytes} bytes of objects, {more} in use").into());
    }
    Ok(())
}

#[test]
fn programs_of_musl_match_their_own_counts() -> Outcome {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/any_heap.c");
    let folder = Folder::new("musl")?;
    let kinds = musls(here!())
        .into_iter()
        .flat_map(|musl| [(musl.clone(), &["-O1"][..]), (musl, &["-O1", "-static", "-s"])]);
    for_any(kinds.enumerate(), |(number, ((musl, told_by), flags))| {
        let program = folder.0.join(format!("any_heap{number}"));
        let built = Command::new(musl).args(*flags).arg("-o").arg(&program).arg(source).status()?;
        if !built.success() {
            return Err(format!("{} {flags:?}: {built}", musl.display()).into());
        }
        for seed in 1..=repetitions(6, 100) {
            let mut command = Command::new(&program);
            command.args([&seed.to_string(), most(seed)]);
            let subject = Subject::start_command(command)?;
            let found_by = read(&explain(subject.pid())?, "musl")?["found_by"].to_string();
            if !found_by.contains(told_by) {
                return Err(format!("{} {flags:?}: found by {found_by}", musl.display()).into());
            }
            check_program(("musl", &[]), None, subject).map_err(|error| format!("seed {seed}: {error}"))?;
        }
        Ok(())
    })
}

/// Without glibc's own restartable sequences tcmalloc has per-CPU caches, with them per-thread
/// caches.
const RSEQ: [&str; 2] = ["glibc.pthread.rseq=0", "glibc.pthread.rseq=1"];

#[test]
fn programs_with_google_tcmalloc_match_their_own_counts() -> Outcome {
    let test = here!();
    for_any(google_tcmallocs(test), |library| {
        for (seed, rseq) in (1..=repetitions(6, 60)).flat_map(|seed| RSEQ.map(|rseq| (seed, rseq))) {
            let keep = format!("keep={}", 100 - seed % 4 * 30);
            let mut command = Command::new(subject::compile("any_heap", &Libc::system())?);
            command.args([&seed.to_string(), most(seed), &keep]);
            command.env("LD_PRELOAD", library).env("GLIBC_TUNABLES", rseq);
            let mut subject = Subject::start_command(command)?;
            let statistics = subject.ask(b's')?;
            let has_processors = number(&statistics, "tcmalloc.per_cpu_caches_active")? == 1;
            assert_eq!(has_processors, rseq == RSEQ[0], "seed {seed}");
            check_google_tcmalloc(subject).map_err(|error| format!("seed {seed}, {rseq}: {error}"))?;
        }
        Ok(())
    })
}

/// After each of two rounds of traffic, the report equals the program's figures, and tcmalloc's
/// where available.
fn check_google_tcmalloc(mut subject: Subject) -> Outcome {
    subject.at_rest()?;
    let before = read(&explain(subject.pid())?, "google_tcmalloc")?.clone();
    for round in 0..2 {
        let own = answer_at_rest(&mut subject, b'w')?;
        let document = explain(subject.pid())?;
        invariants::check(&document)?;
        assert_eq!(caveats(&document), Vec::<String>::new(), "{}", document["caveats"]);
        let now = read(&document, "google_tcmalloc")?;
        for (key, own_key) in [("live_blocks", "blocks"), ("live_bytes", "bytes")] {
            let more = number(now, key)? - number(&before, key)?;
            assert_eq!(more, number(&own, own_key)?, "{key}, round {round}");
        }
        let unattributed = number(&document["totals"], "unattributed")?;
        assert!(unattributed < 100 << 10, "{}", document["totals"]);
        let statistics = subject.ask(b's')?;
        let figures = now["own"].as_object().ok_or("no figures of its own")?;
        assert_eq!(figures.len(), 9, "{figures:?}");
        if statistics.get("generic.heap_size").is_some() {
            for (key, figure) in figures {
                assert_eq!(Some(figure), statistics.get(key), "{key}, round {round}");
            }
        }
    }
    Ok(())
}

/// Without symbols and without a file of its name, only its contents identify tcmalloc.
#[test]
fn a_stripped_program_with_googles_tcmalloc_inside_is_read() -> Outcome {
    let test = here!();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/any_heap.c");
    let folder = Folder::new("google")?;
    let archives = google_tcmallocs(test).into_iter().map(|library| library.with_extension("a"));
    for_any(archives.filter(|archive| archive.exists()), |archive| {
        for flags in [&["-s"][..], &["-s", "-static"]] {
            let (object, program) = (folder.0.join("any_heap.o"), folder.0.join("any_heap"));
            let compiled = Command::new("cc").args(["-O1", "-c", "-o"]).arg(&object).arg(source).status()?;
            let mut linker = Command::new("g++");
            linker.args(flags).arg("-o").arg(&program).arg(&object);
            linker.arg("-Wl,--undefined=TCMallocInternalMalloc").arg(archive).arg("-lpthread");
            if !compiled.success() || !linker.stderr(Stdio::null()).status()?.success() {
                return Err(format!("{flags:?}: not linked").into());
            }
            for seed in 1..=repetitions(3, 20) {
                let mut command = Command::new(&program);
                command.args([&seed.to_string(), most(seed), "keep=40"]);
                let subject = Subject::start_command(command)?;
                check_google_tcmalloc(subject).map_err(|error| format!("seed {seed}, {flags:?}: {error}"))?;
            }
        }
        Ok(())
    })
}

/// After each of two rounds of traffic, the report equals the figures of the program and its
/// allocator, with exactly the `expected` caveats.
fn check_program((name, expected): (&str, &[&str]), remedy: Option<&str>, mut subject: Subject) -> Outcome {
    subject.at_rest()?;
    let before = explain(subject.pid())?;
    let before = read(&before, name)?.clone();
    for round in 0..2 {
        let own = answer_at_rest(&mut subject, b'w')?;
        let document = explain(subject.pid())?;
        invariants::check(&document)?;
        assert_eq!(caveats(&document), expected, "{}", document["caveats"]);
        let now = read(&document, name)?;
        // What only glibc has is unknown here, not zero.
        let arenas = now["arenas"].as_array().ok_or("no arenas")?;
        let of_glibc = ["tcache_bytes", "fastbin_bytes", "top_bytes", "trim_bytes"];
        let has_zeros = |arena: &Value| of_glibc.iter().any(|key| arena.get(key) != Some(&Value::Null));
        assert!(!arenas.iter().any(has_zeros), "{}", now["arenas"]);
        let more = |key| -> Result<i64> { Ok(number(now, key)? - number(&before, key)?) };
        assert_eq!(more("live_blocks")?, number(&own, "blocks")?, "blocks, round {round}");
        assert_eq!(more("live_bytes")?, number(&own, "bytes")?, "bytes, round {round}");
        let unattributed = number(&document["totals"], "unattributed")?;
        assert!(unattributed < 100 << 10, "{}", document["totals"]);
        // These allocators export functions that return their statistics.
        if matches!(name, "jemalloc" | "tcmalloc") {
            let statistics = subject.ask(b's')?;
            for (key, figure) in now["own"].as_object().ok_or("no figures of its own")? {
                assert_eq!(Some(figure), statistics.get(key), "{key}, round {round}");
            }
        }
        let Some(remedy) = remedy else { continue };
        let predicted = predicted(&document, remedy).ok_or("no remedy")?;
        let returned = subject::number(&subject.ask(b'p')?, "returned_bytes")?;
        assert_eq!(returned, predicted, "round {round}");
    }
    Ok(())
}

#[test]
fn a_purge_releases_the_predicted_bytes() -> Outcome {
    let test = here!();
    for_any(all(test), |(name, library, remedy)| {
        // With mimalloc, most of the predicted memory was left by a thread that ended.
        let arguments = if *name == "mimalloc" { ["1", "keep=10"] } else { ["4", "keep=40"] };
        let mut subject = start(library, "any_heap", &arguments)?;
        answer_at_rest(&mut subject, b'w')?;
        let pid = subject.pid_text();
        let dry = json(&["reclaim", "--json", "--dry-run", "--remedy", remedy, &pid])?;
        assert!(dry["predicted_bytes"].as_u64() > Some(1 << 20), "{name}: {dry}");
        // Without `--remedy`, reclaim selects the call that gives back most.
        let done = json(&["reclaim", "--json", &pid])?;
        assert_eq!(
            (&done["remedy"], &done["outcome"]),
            (&Value::from(*remedy), &"done".into()),
            "{}",
            done["reason"]
        );
        assert_eq!(done["predicted_bytes"], dry["predicted_bytes"]);
        assert_eq!(done["actual_bytes"], done["predicted_bytes"]);
        let again = json(&["reclaim", "--json", "--remedy", remedy, &pid])?;
        // With mimalloc, the next thread is taken.
        let is_more = *name == "mimalloc" && again["outcome"] == "done";
        assert!(is_more || again["outcome"] == "nothing_to_give_back", "{}", again["reason"]);
        subject.ask(b'w')?;
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// Releases of mimalloc whose collections may give back other amounts than predicted
/// (docs/accounting.md has the reasons).
const NOT_EXACT: [&str; 3] = ["1.9.2", "2.1.2", "3.0.1"];

/// Delays of `reclaim` after the program's last frees, besides none: before, at and after
/// mimalloc's purge delay of 10 to 25 ms.
const AFTER_FREES_MILLISECONDS: [u64; 4] = [5, 20, 50, 200];

/// Names of the called functions, by remedy.
const CALLED: [(&str, &str); 3] = [
    ("jemalloc_purge", "\0mallctl\0"),
    ("tcmalloc_release", "\0MallocExtension_ReleaseFreeMemory\0"),
    ("mimalloc_collect", "\0mi_collect\0"),
];

/// The build hides the function: `explain` must not predict a call that `reclaim` refuses.
#[test]
fn a_call_that_cannot_be_made_is_not_predicted() -> Outcome {
    let test = here!();
    let folder = Folder::new("hidden")?;
    let libraries = libraries(test).into_iter().filter(|library| library.is_systems);
    for_any(libraries, |library| {
        let (_, name) = CALLED.iter().find(|(remedy, _)| *remedy == library.remedy).ok_or("no function")?;
        let mut bytes = std::fs::read(&library.path)?;
        let is_name = |(_, some): &(usize, &[u8])| *some == name.as_bytes();
        let places: Vec<usize> =
            bytes.windows(name.len()).enumerate().filter(is_name).map(|found| found.0).collect();
        if places.is_empty() {
            skipped(test, &format!("{}: the name is the end of another's", library.name));
            return Ok(());
        }
        places.iter().for_each(|place| bytes[place + 1] = b'x');
        let copy = folder.0.join(format!("lib{}.so", library.name));
        std::fs::write(&copy, bytes)?;
        let arguments = if library.name == "mimalloc" { ["1", "keep=10"] } else { ["4", "keep=40"] };
        let mut subject = start(&copy, "any_heap", &arguments)?;
        answer_at_rest(&mut subject, b'w')?;
        let document = explain(subject.pid())?;
        let remedies = document["remedies"].as_array().ok_or("no remedies")?;
        let offered = remedies.iter().find(|remedy| remedy["id"] == library.remedy).ok_or("not offered")?;
        let reason = offered["unknown_because"].as_str().unwrap_or_default();
        assert!(offered["predicted_bytes"].is_null() && reason.contains("no symbol"), "{offered}");
        let done =
            run(&["reclaim", "--json", "--remedy", library.remedy, &subject.pid_text()])?.document()?;
        assert_eq!(done["outcome"], "refused", "{done}");
        Ok(())
    })
}

/// strandline calls it in the thread that releases most: its own pages, memory left by ended
/// threads, and pending purges.
#[test]
fn a_collection_of_mimalloc_releases_the_predicted_bytes() -> Outcome {
    let test = here!();
    let of_release = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        !NOT_EXACT.iter().any(|release| name.contains(release))
    };
    let libraries = all(test).into_iter().filter(|(name, path, _)| *name == "mimalloc" && of_release(path));
    for_any(libraries, |(_, library, remedy)| {
        let after = |seed: u64| AFTER_FREES_MILLISECONDS[seed as usize % AFTER_FREES_MILLISECONDS.len()];
        let given_back = [const { Cell::new(0) }; 2];
        for (seed, since_frees) in (1..=repetitions(6, 100)).flat_map(|seed| [(seed, 0), (seed, after(seed))])
        {
            let keep = format!("keep={}", 100 - seed % 4 * 30);
            let mut subject = start(library, "any_heap", &[&seed.to_string(), most(seed), &keep, "align=0"])?;
            subject.ask(b'w')?;
            std::thread::sleep(Duration::from_millis(since_frees));
            let done =
                json(&["reclaim", "--json", "--wait", "600", "--remedy", remedy, &subject.pid_text()])?;
            let is_done = ["done", "nothing_to_give_back"].iter().any(|outcome| done["outcome"] == *outcome);
            let case = format!("{} seed {seed}, {since_frees} ms after the frees", library.display());
            assert!(is_done, "{case}: {}", done["reason"]);
            assert_eq!(done["actual_bytes"], done["predicted_bytes"], "{case}");
            let kind = &given_back[usize::from(since_frees > 0)];
            kind.set(kind.get() + done["actual_bytes"].as_u64().unwrap_or(0));
        }
        assert!(
            given_back.iter().all(|bytes| bytes.get() > 0),
            "{given_back:?}: right after the frees, and later"
        );
        Ok(())
    })
}

/// mimalloc takes the data of each thread from the kernel, beside its heap.
#[test]
fn more_threads_with_mimalloc_leave_no_more_unattributed() -> Outcome {
    for_any(all(here!()).into_iter().filter(|(name, ..)| *name == "mimalloc"), |(_, library, _)| {
        let unattributed = |threads: &str| -> Result<i64> {
            let mut subject = start(library, "any_heap", &["1", "keep=100", "align=0", threads])?;
            answer_at_rest(&mut subject, b'w')?;
            let document = explain(subject.pid())?;
            read(&document, "mimalloc")?;
            number(&document["totals"], "unattributed")
        };
        let (few, many) = (unattributed("threads=1")?, unattributed("threads=8")?);
        let name = library.display();
        assert!(many < few + (7 << 12), "{name}: {few} bytes with a thread, {many} with eight");
        Ok(())
    })
}

#[test]
fn redis_after_a_load_is_explained_and_releases_the_predicted_bytes() -> Outcome {
    let test = here!();
    let has = |program| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has("redis-server") || !has("redis-benchmark") {
        skipped(test, "no redis-server (apt-get install redis)");
        return Ok(());
    }
    // A Unix socket: another process might take a port.
    let folder = Folder::new("redis")?;
    let socket = folder.0.join("s").display().to_string();
    let mut server = Command::new("redis-server");
    server.args(["--port", "0", "--unixsocket", &socket, "--save", "", "--logfile", "/dev/null"]);
    // A background thread of jemalloc would purge between prediction and call.
    server.args(["--jemalloc-bg-thread", "no"]).current_dir(&folder.0);
    server.stdin(Stdio::null()).stdout(Stdio::null());
    let server = Ended(server.stderr(Stdio::null()).spawn()?);
    with_redis(&socket, &server.0.id().to_string())
}

/// A process that is killed on drop.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // The process may already have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of a client of redis; `None` if it fails.
fn client(socket: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(arguments[0]);
    let output = command.args(["-s", socket]).args(&arguments[1..]).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until the background thread of redis has freed everything that was flushed.
fn until_freed(socket: &str) -> Outcome {
    until_true("redis to free the flushed memory", || {
        client(socket, &["redis-cli", "info", "memory"])
            .is_some_and(|text| text.lines().any(|line| line.trim_end() == "lazyfree_pending_objects:0"))
    })
}

fn with_redis(socket: &str, pid: &str) -> Outcome {
    let client = |arguments: &[&str]| client(socket, arguments).is_some();
    until_true("redis to answer", || client(&["redis-cli", "ping"]))?;
    assert!(client(&["redis-benchmark", "-q", "-n", "60000", "-r", "50000", "-d", "400", "-t", "set,lpush"]));
    // Asynchronous: after a flush in the foreground redis purges its heap itself.
    assert!(client(&["redis-cli", "flushall", "async"]));
    until_freed(socket)?;
    assert!(client(&["redis-benchmark", "-q", "-n", "10000", "-r", "5000", "-d", "100", "-t", "set"]));
    let document = json(&["explain", "--json", pid])?;
    invariants::check(&document)?;
    let (rss, unattributed) = (&document["kernel"]["rss_bytes"], &document["totals"]["unattributed"]);
    assert!(
        number(&document["totals"], "unattributed")? * 50 < rss.as_i64().unwrap_or(0),
        "{unattributed} of {rss}"
    );
    let done = json(&["reclaim", "--json", "--remedy", "jemalloc_purge", pid])?;
    assert_eq!(done["outcome"], "done", "{}", done["reason"]);
    assert!(done["predicted_bytes"].as_u64() > Some(1 << 20), "{done}");
    assert!(done["actual_bytes"].as_u64() > Some(1 << 20), "{done}");
    assert_eq!(done["actual_bytes"], done["predicted_bytes"]);
    assert!(client(&["redis-cli", "ping"]));
    Ok(())
}

/// Upper bound of the delay between the start of a run and its kill, if the kill waits for nothing:
/// covers most of a run.
const MAX_MICROSECONDS: u64 = 500_000;

/// Upper bound of the delay after the process is first seen traced: covers the call and its end.
const MAX_MICROSECONDS_INSIDE: u64 = 3000;

/// Waits until process `pid` is traced, or `run` has ended.
fn until_inside(pid: i32, run: &mut Child) -> Outcome {
    while !is_traced(pid) && run.try_wait()?.is_none() {
        std::hint::spin_loop();
    }
    Ok(())
}

#[test]
fn the_process_survives_a_purge_killed_at_any_instant() -> Outcome {
    let test = here!();
    for_any(all(test), |(_, library, remedy)| {
        let mut subject = start(library, "malloc_loop", &["4"])?;
        let (pid, text) = (subject.pid(), subject.pid_text());
        let arguments = ["reclaim", "--json", "--wait", "5", "--remedy", remedy, &text];
        let (mut seed, mut inside, mut turn) = (0x2545_f491_4f6c_dd1d_u64, 0, 0);
        // The number of kills during a purge depends on the machine: at least one must hit.
        while turn < repetitions(6, 300) || inside == 0 {
            turn += 1;
            let mut run = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let most = if turn % 2 == 0 { MAX_MICROSECONDS_INSIDE } else { MAX_MICROSECONDS };
            if turn % 2 == 0 {
                until_inside(pid, &mut run)?;
            }
            // Every second of these kills is immediate: the duration of a stop differs by machine.
            let at_once = turn % 4 == 0;
            std::thread::sleep(Duration::from_micros(if at_once { 0 } else { (seed >> 33) % most }));
            inside += u64::from(is_traced(pid));
            run.kill()?;
            run.wait()?;
            until_free(pid)?;
        }
        assert_eq!(subject.ask(b'c')?["wrong"], 0);
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// Around a fork a thread holds all of jemalloc's locks without running jemalloc's code.
#[test]
fn a_process_that_forks_without_end_is_not_hung_by_purges() -> Outcome {
    for_any(all(here!()), |(_, library, remedy)| {
        let mut subject = start(library, "fork_heap", &[])?;
        let pid = subject.pid_text();
        let (mut calls, wanted) = (0, repetitions(1, 100));
        until("calls into a process that forks", || {
            let run = run(&["reclaim", "--json", "--wait", "120", "--remedy", remedy, &pid])?;
            assert!(matches!(run.status, Some(0 | 3)), "{}", run.summary());
            calls += u64::from(run.status == Some(0) && run.document()?["outcome"] == "done");
            Ok((calls == wanted).then_some(()))
        })?;
        assert_eq!(subject.ask(b'c')?["wrong"], 0);
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// Whether a process is in `pause`.
fn is_paused(pid: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.starts_with("34 ")
}

#[test]
fn a_forked_child_has_the_same_heap() -> Outcome {
    for_any(all(here!()), |(name, library, _)| {
        let mut subject = start(library, "any_heap", &["7"])?;
        answer_at_rest(&mut subject, b'w')?;
        let parent = explain(subject.pid())?;
        let child = i32::try_from(subject::number(&answer_at_rest(&mut subject, b'f')?, "child")?)?;
        // Allocators run handlers in a new child, which then waits for signals.
        let copy = until_true("the child to sleep", || is_paused(child)).and_then(|()| explain(child));
        strandline_sys::signal::send(child, 9)?;
        let copy = copy?;
        invariants::check(&copy)?;
        // Caches of threads that do not exist in the child are still in the heap, as in use.
        let (copy, parent) = (read(&copy, name)?, read(&parent, name)?);
        for key in ["own", "free_bytes", "size_classes"] {
            let of = |allocator: &Value| match key {
                "size_classes" => allocator[key].as_array().map_or(0, Vec::len).into(),
                _ => allocator[key].clone(),
            };
            assert_eq!(of(copy), of(parent), "{key}");
        }
        Ok(())
    })
}
