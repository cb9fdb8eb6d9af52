//! Allocators other than glibc's: what is live, cached and free by their books is what the program itself and the allocator's
//! own statistics say, and a purge gives back what was predicted, to the byte.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::libraries::{google_tcmallocs, library, musls};
use crate::support::strandline::{caveats, command, explain, json, predicted, run};
use crate::support::{
    Folder, Libc, Outcome, Result, Subject, for_any, for_each, here, invariants, pythons, repetitions,
    skipped, subject,
};

/// An allocator that is read: its name, a library of it, and the remedy that is its own.
const ALLOCATORS: [(&str, &str, &str); 3] = [
    ("jemalloc", "libjemalloc.so.2", "jemalloc_purge"),
    ("tcmalloc", "libtcmalloc_minimal.so.4", "tcmalloc_release"),
    ("mimalloc", "libmimalloc.so.2", "mimalloc_collect"),
];

/// Those whose library is here, and other releases of it that somebody built (STRANDLINE_ALLOCATORS: a folder of
/// NAME-RELEASE.so).
fn all(test: &str) -> Vec<(&'static str, PathBuf, &'static str)> {
    let mut found = Vec::new();
    for (name, file, remedy) in ALLOCATORS {
        match library(file) {
            Some(path) => found.push((name, path, remedy)),
            None => skipped(test, &format!("no {file} (apt-get install it)")),
        }
        match std::env::var_os("STRANDLINE_ALLOCATORS") {
            Some(folder) => {
                let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
                let paths = files.map(|file| file.path());
                let is_one = |path: &PathBuf| {
                    path.file_name()
                        .is_some_and(|file| file.to_string_lossy().starts_with(&format!("{name}-")))
                };
                found.extend(paths.filter(is_one).map(|path| (name, path, remedy)));
            }
            None => skipped(
                test,
                "other releases: STRANDLINE_ALLOCATORS does not name a folder of NAME-RELEASE.so",
            ),
        }
    }
    found
}

fn start(library: &PathBuf, name: &str, arguments: &[&str]) -> Result<Subject> {
    let mut command = Command::new(subject::compile(name, &Libc::system())?);
    Subject::start_command({
        command.args(arguments).env("LD_PRELOAD", library);
        command
    })
}

/// What is said of an allocator that was read.
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
fn random_programs_hold_what_is_said_of_them() -> Outcome {
    let test = here!();
    for_any(all(test), |(name, library, remedy)| {
        for seed in 1..=repetitions(6, 100) {
            let keep = format!("keep={}", 100 - seed % 4 * 30);
            // By how much mimalloc's aligned blocks begin behind their places nothing tells; and what a collection gives back
            // depends on the thread that makes it.
            let is_mimalloc = *name == "mimalloc";
            let align = if is_mimalloc { "align=0" } else { "align=1" };
            let subject = start(library, "any_heap", &[&seed.to_string(), most(seed), &keep, align])?;
            let remedy = if is_mimalloc { None } else { Some(*remedy) };
            of_one_program((name, &[]), remedy, subject).map_err(|error| format!("seed {seed}: {error}"))?;
        }
        Ok(())
    })
}

/// The largest size of a program's blocks.
fn most(seed: u64) -> &'static str {
    if seed.is_multiple_of(5) { "most=50000000" } else { "most=4000000" }
}

/// With huge pages of its own (opt.hpa) what is free has no extent; of a purge only the rest is predicted.
#[test]
fn a_jemalloc_with_huge_pages_holds_what_is_said_of_it() -> Outcome {
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
        command.args([seed.to_string().as_str(), most(*seed), "keep=40"]);
        command.env("LD_PRELOAD", &library).env("MALLOC_CONF", "hpa:true");
        let subject = Subject::start_command(command)?;
        of_one_program(("jemalloc", &["jemalloc_huge_pages"]), None, subject)
            .map_err(|error| format!("seed {seed}: {error}").into())
    })
}

/// CPython without a global lock has a mimalloc of its own, laid out as no release of mimalloc is: what is alive is not called free.
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
    let look = |count: &str| -> Result<(i64, Value)> {
        let mut command = Command::new(&python);
        command.args(["-c", script, count]);
        let subject = Subject::start_command(command)?;
        let document = explain(subject.pid())?;
        invariants::hold(&document)?;
        Ok((number(&subject.ready, "bytes")?, read(&document, "mimalloc")?.clone()))
    };
    let ((_, few), (bytes, many)) = (look("0")?, look("100000")?);
    let more = number(&many, "live_bytes")? - number(&few, "live_bytes")?;
    // Sizes are rounded up, to four in each doubling, and the list has its own.
    if more < bytes || more > bytes + bytes / 4 {
        return Err(format!("{bytes} bytes of objects, {more} in use").into());
    }
    Ok(())
}

#[test]
fn programs_of_musl_hold_what_is_said_of_them() -> Outcome {
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
            of_one_program(("musl", &[]), None, subject).map_err(|error| format!("seed {seed}: {error}"))?;
        }
        Ok(())
    })
}

/// Without glibc's own restartable sequences it has caches of processors, with them caches of threads.
const RSEQ: [&str; 2] = ["glibc.pthread.rseq=0", "glibc.pthread.rseq=1"];

#[test]
fn programs_with_googles_tcmalloc_hold_what_is_said_of_them() -> Outcome {
    let test = here!();
    for_any(google_tcmallocs(test), |library| {
        for (seed, rseq) in (1..=repetitions(6, 60)).flat_map(|seed| RSEQ.map(|rseq| (seed, rseq))) {
            let keep = format!("keep={}", 100 - seed % 4 * 30);
            let mut command = Command::new(subject::compile("any_heap", &Libc::system())?);
            command.args([&seed.to_string(), most(seed), &keep]);
            command.env("LD_PRELOAD", library).env("GLIBC_TUNABLES", rseq);
            let mut subject = Subject::start_command(command)?;
            let asked = subject.ask(b's')?;
            let has_processors = number(&asked, "tcmalloc.per_cpu_caches_active")? == 1;
            assert_eq!(has_processors, rseq == RSEQ[0], "seed {seed}");
            of_googles(subject).map_err(|error| format!("seed {seed}, {rseq}: {error}"))?;
        }
        Ok(())
    })
}

/// Twice: what is said after each round of traffic is what the program says, and what tcmalloc says where it can be asked.
fn of_googles(mut subject: Subject) -> Outcome {
    let before = read(&explain(subject.pid())?, "google_tcmalloc")?.clone();
    for round in 0..2 {
        let own = subject.ask(b'w')?;
        let document = explain(subject.pid())?;
        invariants::hold(&document)?;
        assert_eq!(caveats(&document), Vec::<String>::new(), "{}", document["caveats"]);
        let now = read(&document, "google_tcmalloc")?;
        for (key, told) in [("live_blocks", "blocks"), ("live_bytes", "bytes")] {
            let more = number(now, key)? - number(&before, key)?;
            assert_eq!(more, number(&own, told)?, "{key}, round {round}");
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

/// Nothing but what it is made of tells it: no symbols, and no file of its name.
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
                of_googles(subject).map_err(|error| format!("seed {seed}, {flags:?}: {error}"))?;
            }
        }
        Ok(())
    })
}

/// Twice: what is said after each round of traffic is what the program, and its allocator, say themselves, with these `expected`
/// caveats and no other.
fn of_one_program((name, expected): (&str, &[&str]), remedy: Option<&str>, mut subject: Subject) -> Outcome {
    let before = explain(subject.pid())?;
    let before = read(&before, name)?.clone();
    for round in 0..2 {
        let own = subject.ask(b'w')?;
        let document = explain(subject.pid())?;
        invariants::hold(&document)?;
        assert_eq!(caveats(&document), expected, "{}", document["caveats"]);
        let now = read(&document, name)?;
        let more = |key| -> Result<i64> { Ok(number(now, key)? - number(&before, key)?) };
        assert_eq!(more("live_blocks")?, number(&own, "blocks")?, "blocks, round {round}");
        assert_eq!(more("live_bytes")?, number(&own, "bytes")?, "bytes, round {round}");
        let unattributed = number(&document["totals"], "unattributed")?;
        assert!(unattributed < 100 << 10, "{}", document["totals"]);
        // These export functions that tell theirs.
        if matches!(name, "jemalloc" | "tcmalloc") {
            let statistics = subject.ask(b's')?;
            for (key, figure) in now["own"].as_object().ok_or("no figures of its own")? {
                assert_eq!(Some(figure), statistics.get(key), "{key}, round {round}");
            }
        }
        let Some(remedy) = remedy else { continue };
        let said = predicted(&document, remedy).ok_or("no remedy")?;
        let returned = subject::number(&subject.ask(b'p')?, "returned_bytes")?;
        assert_eq!(returned, said, "round {round}");
    }
    Ok(())
}

#[test]
fn a_purge_gives_back_what_was_predicted() -> Outcome {
    let test = here!();
    for_any(all(test), |(name, library, remedy)| {
        // With mimalloc a thread that ended has left most of it.
        let arguments = if *name == "mimalloc" { ["1", "keep=10"] } else { ["4", "keep=40"] };
        let mut subject = start(library, "any_heap", &arguments)?;
        subject.ask(b'w')?;
        let pid = subject.pid_text();
        let dry = json(&["reclaim", "--json", "--dry-run", "--remedy", remedy, &pid])?;
        assert!(dry["predicted_bytes"].as_u64() > Some(1 << 20), "{name}: {dry}");
        // Without being told which: it is the call that gives back most.
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
        // Of mimalloc's threads the next is taken.
        let is_more = *name == "mimalloc" && again["outcome"] == "done";
        assert!(is_more || again["outcome"] == "nothing_to_give_back", "{}", again["reason"]);
        subject.ask(b'w')?;
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// Releases of mimalloc of which a collection may give back something else than is predicted (docs/accounting.md says why).
const NOT_EXACT: [&str; 5] = ["1.9.2", "2.1.2", "3.0.1", "3.3.0", "3.3.1"];

/// When `reclaim` starts after the program's last frees: before, at and after mimalloc's purge delay of 10 to 25 ms.
const AFTER_FREES_MILLISECONDS: [u64; 5] = [0, 5, 20, 50, 200];

/// By whichever thread gives most: what a thread's own pages, what ended threads left, and what waits come to.
#[test]
fn a_collection_of_mimalloc_gives_back_what_was_predicted() -> Outcome {
    let test = here!();
    let of_release = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        !NOT_EXACT.iter().any(|release| name.contains(release))
    };
    let libraries = all(test).into_iter().filter(|(name, path, _)| *name == "mimalloc" && of_release(path));
    for_any(libraries, |(_, library, remedy)| {
        for (seed, since_frees) in
            (1..=repetitions(6, 100)).flat_map(|seed| AFTER_FREES_MILLISECONDS.map(|after| (seed, after)))
        {
            let keep = format!("keep={}", 100 - seed % 4 * 30);
            let mut subject = start(library, "any_heap", &[&seed.to_string(), most(seed), &keep, "align=0"])?;
            subject.ask(b'w')?;
            std::thread::sleep(Duration::from_millis(since_frees));
            let done = json(&["reclaim", "--json", "--remedy", remedy, &subject.pid_text()])?;
            let is_done = ["done", "nothing_to_give_back"].iter().any(|outcome| done["outcome"] == *outcome);
            let case = format!("{} seed {seed}, {since_frees} ms after the frees", library.display());
            assert!(is_done, "{case}: {}", done["reason"]);
            assert_eq!(done["actual_bytes"], done["predicted_bytes"], "{case}");
        }
        Ok(())
    })
}

#[test]
fn redis_after_a_load_is_explained_and_gives_back_what_was_predicted() -> Outcome {
    let test = here!();
    let has = |program| Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !has("redis-server") || !has("redis-benchmark") {
        skipped(test, "no redis-server (apt-get install redis)");
        return Ok(());
    }
    let port = (20_000 + std::process::id() % 20_000).to_string();
    let mut server = Command::new("redis-server");
    server
        .args(["--port", &port, "--save", "", "--logfile", "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let server = Ended(server.stderr(Stdio::null()).spawn()?);
    with_redis(&port, &server.0.id().to_string())
}

/// A process that does not outlive its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn with_redis(port: &str, pid: &str) -> Outcome {
    let client = |arguments: &[&str]| {
        let mut command = Command::new(arguments[0]);
        command.args(["-p", port]).args(&arguments[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let until = Instant::now() + Duration::from_secs(30);
    while !client(&["redis-cli", "ping"]) {
        assert!(Instant::now() < until, "redis does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(client(&["redis-benchmark", "-q", "-n", "60000", "-r", "50000", "-d", "400", "-t", "set,lpush"]));
    // Not at once: a flush in the foreground has redis purge its heap itself.
    assert!(client(&["redis-cli", "flushall", "async"]));
    assert!(client(&["redis-benchmark", "-q", "-n", "10000", "-r", "5000", "-d", "100", "-t", "set"]));
    let document = json(&["explain", "--json", pid])?;
    invariants::hold(&document)?;
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

#[test]
fn killed_at_any_instant_of_a_purge_the_process_goes_on() -> Outcome {
    let test = here!();
    for_any(all(test), |(_, library, remedy)| {
        let mut subject = start(library, "malloc_loop", &["4"])?;
        let pid = subject.pid_text();
        let arguments = ["reclaim", "--json", "--wait", "5", "--remedy", remedy, &pid];
        let took = Instant::now();
        run(&arguments)?;
        let took = took.elapsed().as_micros() as u64;
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..repetitions(20, 300) {
            let mut child = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            std::thread::sleep(Duration::from_micros((seed >> 33) % took.max(1)));
            child.kill()?;
            child.wait()?;
        }
        assert_eq!(subject.ask(b'c')?["wrong"], 0);
        assert!(subject.finish()?.success());
        Ok(())
    })
}

/// Around a fork a thread holds all of jemalloc's locks without being in its code.
#[test]
fn a_process_that_forks_without_end_is_not_hung_by_purges() -> Outcome {
    for_any(all(here!()), |(_, library, remedy)| {
        let mut subject = start(library, "forker", &[])?;
        for _ in 0..repetitions(10, 300) {
            let run = run(&["reclaim", "--json", "--wait", "1", "--remedy", remedy, &subject.pid_text()])?;
            assert!(matches!(run.status, Some(0 | 3)), "{}", run.summary());
        }
        assert_eq!(subject.ask(b'c')?["wrong"], 0);
        assert!(subject.finish()?.success());
        Ok(())
    })
}

#[test]
fn a_forked_child_has_the_same_heap() -> Outcome {
    for_any(all(here!()), |(name, library, _)| {
        let mut subject = start(library, "any_heap", &["7"])?;
        subject.ask(b'w')?;
        let parent = explain(subject.pid())?;
        let child = i32::try_from(subject::number(&subject.ask(b'f')?, "child")?)?;
        let copy = explain(child);
        strandline_sys::signal::send(child, 9)?;
        let copy = copy?;
        invariants::hold(&copy)?;
        // Caches of threads that the child has not are in the heap all the same, as in use.
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
