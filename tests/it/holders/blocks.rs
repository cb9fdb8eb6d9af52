//! `holders`: blocks that valgrind calls lost are unreachable, each root retains the blocks that
//! the program stored there, and the report names the roots that pin free pages.

#![cfg(test)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::libraries::{google_tcmallocs, musls};
use crate::support::subject::compile;
use crate::support::{
    Folder, Libc, Outcome, Result, Subject, for_each, here, repetitions, skipped, strandline,
};

/// Number of blocks in a leaked list: a word that a call left on the stack may still point to one.
const LIST_BLOCKS: u64 = 10;

/// Returns the subject, compiled once; `None`, reported for `test`, without a compiler.
fn program(test: &str, is_stripped: bool) -> Result<Option<PathBuf>> {
    static BUILT: OnceLock<std::result::Result<[PathBuf; 2], String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| error.to_string()));
    match built {
        Ok(programs) => Ok(Some(programs[usize::from(is_stripped)].clone())),
        Err(error) if error == NO_COMPILER => {
            skipped(test, NO_COMPILER);
            Ok(None)
        }
        Err(error) => Err(error.clone().into()),
    }
}

const NO_COMPILER: &str = "no g++ here (apt-get install g++)";

fn build() -> Result<[PathBuf; 2]> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("subjects");
    std::fs::create_dir_all(&folder)?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/holders.cpp");
    let built = [&["-g"], &["-s"]].map(|options: &[&str; 1]| {
        let program = folder.join(format!("holders{}", options[0]));
        // Another run of the tests may use the program.
        let fresh = folder.join(format!("holders{}-{}", options[0], std::process::id()));
        let mut compiler = Command::new("g++");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(options);
        let output = compiler.arg(&source).arg("-o").arg(&fresh).output();
        match output {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(NO_COMPILER.into()),
            Err(error) => Err(error.into()),
            Ok(output) if output.status.success() => {
                std::fs::rename(fresh, &program)?;
                Ok(program)
            }
            Ok(output) => Err(format!("{compiler:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    });
    let [whole, stripped] = built;
    whole.and_then(|whole| Ok([whole, stripped?]))
}

/// Blocks and bytes that the subject printed for a group.
fn printed(subject: &Subject, group: &str) -> Result<[u64; 2]> {
    let of =
        |index: usize| subject.ready[group][index].as_u64().ok_or(format!("the subject printed no {group}"));
    Ok([of(0)?, of(1)?])
}

fn figure(of: &Value, key: &str) -> Result<u64> {
    of[key].as_u64().ok_or_else(|| format!("no {key} in {of}").into())
}

fn find<'a>(document: &'a Value, list: &str, key: &str, name: &str) -> Result<&'a Value> {
    let all = document[list].as_array().ok_or("no list")?;
    let found = all.iter().find(|one| one[key].as_str() == Some(name));
    found.ok_or_else(|| format!("no {name} among {}", document[list]).into())
}

/// Whether the report agrees with the figures that the subject printed.
fn check_report(subject: &Subject, document: &Value) -> Outcome {
    let [lost, lost_bytes] = printed(subject, "lost")?;
    let [heads, _] = printed(subject, "heads")?;
    let found = &document["unreachable"];
    let (blocks, bytes) = (figure(found, "blocks")?, figure(found, "bytes")?);
    let definite = figure(&found["definite"], "blocks")?;
    // Libraries leak one or two blocks themselves.
    let is_right = (lost - LIST_BLOCKS..=lost + 2).contains(&blocks)
        && bytes.abs_diff(lost_bytes) <= lost_bytes / lost * LIST_BLOCKS
        && definite.abs_diff(heads) <= 2;
    if !is_right {
        return Err(format!("{found}, not {lost} in {lost_bytes} B, of {heads} lists").into());
    }
    let session = find(document, "types", "name", "server::Session")?;
    let leaked = figure(session, "unreachable_bytes")?;
    if figure(session, "instances")? != lost || leaked.abs_diff(lost_bytes) > lost_bytes / lost * LIST_BLOCKS
    {
        return Err(format!("{session}").into());
    }
    Ok(())
}

/// Whether a root retains exactly a group.
fn check_retained(subject: &Subject, root: &Value, group: &str) -> Outcome {
    let found = [figure(root, "retained_blocks")?, figure(root, "retained_bytes")?];
    let wanted = printed(subject, group)?;
    if found == wanted { Ok(()) } else { Err(format!("{group}: expected {wanted:?}, found {root}").into()) }
}

/// Checks that the environment lists the mapped allocators and the settings, and the runtimes.
fn check_environment(environment: &Value, library: Option<&Path>) -> Outcome {
    let has_setting = environment["settings"]["LD_PRELOAD"].as_str() == library.and_then(Path::to_str);
    let names = environment["allocators"].as_array().ok_or("no allocators")?;
    let has_glibc = library.is_some() || names.iter().any(|entry| entry["name"] == "glibc");
    let is_whole = has_setting && has_glibc && !names.is_empty() && environment["runtimes"].is_array();
    if is_whole { Ok(()) } else { Err(format!("the environment lacks the process: {environment}").into()) }
}

#[test]
fn a_leak_a_cache_and_pinning_blocks_are_distinguished() -> Outcome {
    let test = here!();
    let Some(program) = program(test, false)? else { return Ok(()) };
    let of_system = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2.0"];
    let of_system = of_system.map(|library| Path::new("/usr/lib/x86_64-linux-gnu").join(library));
    let libraries = google_tcmallocs(test).into_iter().chain(of_system).map(Some);
    for_each(std::iter::once(None).chain(libraries), |library| {
        let mut command = Command::new(&program);
        if let Some(path) = &library {
            if !path.exists() {
                skipped(&format!("{test} with {}", path.display()), "it is not installed (make deps)");
                return Ok(());
            }
            command.env("LD_PRELOAD", path);
        }
        let subject = Subject::start_command(command)?;
        let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
        check_report(&subject, &document)?;
        check_environment(&document["environment"], library.as_deref())?;
        check_retained(&subject, find(&document, "roots", "name", "g_cache")?, "cache")?;
        let pins = find(&document, "roots", "name", "g_pins")?;
        check_retained(&subject, pins, "pins")?;
        // Only stacks hold these objects: main's holds 32, the thread's 64.
        for (function, thread, wanted) in [("worker(void*)", "worker (", 64), ("main", "holders-g (", 32)] {
            let root = find(&document, "roots", "name", function)?;
            let is_of_thread = root["thread"].as_str().is_some_and(|name| name.starts_with(thread));
            let is_right = root["kind"] == "stack" && is_of_thread;
            if !is_right || figure(root, "retained_blocks")?.abs_diff(wanted) > 2 {
                return Err(format!("the stack holds {wanted} objects: {root}").into());
            }
        }
        check_paths(&document)?;
        // glibc keeps the memory between small objects; the others use separate pages for each
        // size.
        let kept = figure(pins, "pins_bytes")?;
        let is_kept = kept > 15 << 20;
        if is_kept != library.is_none() {
            return Err(format!("{library:?}: the small objects pin {kept} B").into());
        }
        Ok(())
    })
}

/// Whether the report has the paths from roots to the objects that they hold, type by type.
fn check_paths(document: &Value) -> Outcome {
    let cache = find(document, "roots", "name", "g_cache")?;
    let entries = &cache["holds"][0]["holds"][0];
    let bodies = &entries["holds"][0];
    let counts = [figure(&cache["holds"][0], "instances")?, figure(entries, "instances")?];
    if counts != [1, 5000] || entries["name"] != "server::Entry" || figure(bodies, "instances")? != 5000 {
        return Err(format!("{}", cache["holds"]).into());
    }
    let lost = &document["unreachable"]["holds"][0];
    let [instances, chained] = [figure(lost, "instances")?, figure(lost, "chained")?];
    let is_right = lost["name"] == "server::Session" && instances.abs_diff(chained + 300) <= 2;
    if is_right { Ok(()) } else { Err(format!("{}", document["unreachable"]).into()) }
}

#[test]
fn growth_since_an_earlier_result_is_shown() -> Outcome {
    let test = here!();
    let Some(program) = program(test, false)? else { return Ok(()) };
    let mut subject = Subject::start_command(Command::new(&program))?;
    let folder = Folder::new("since")?;
    let before = folder.0.join("before.json").display().to_string();
    std::fs::write(&before, strandline::run(&["holders", "--json", &subject.pid_text()])?.stdout)?;
    let grown = subject.ask(b'm')?;
    let wanted = |group: &str| {
        Ok::<_, Box<dyn std::error::Error>>([
            grown[group][0].as_i64().ok_or("no blocks")?,
            grown[group][1].as_i64().ok_or("no bytes")?,
        ])
    };
    let document = strandline::json(&["holders", "--json", "--since", &before, &subject.pid_text()])?;
    let since = &document["since"];
    let grew = |of: &Value| [of["blocks"].as_i64().unwrap_or(0), of["bytes"].as_i64().unwrap_or(0)];
    let [more, lost] = [wanted("more")?, wanted("lost")?];
    let root = &since["roots"][0];
    if root["name"] != "g_sessions" || grew(&root["grew"]) != more || more[0] != 500 {
        return Err(format!("{more:?}: {root}").into());
    }
    let found = grew(&since["unreachable"]);
    // A word that a call left on the stack may hold a list.
    if (lost[0] - found[0]).abs() > LIST_BLOCKS as i64 || lost[0] != 200 {
        return Err(format!("{lost:?}, not {found:?}").into());
    }
    if since["types"][0]["name"] != "server::Session" {
        return Err(since["types"].to_string().into());
    }
    let shown = strandline::run(&["holders", "--since", &before, &subject.pid_text()])?;
    if !shown.stdout.contains("g_sessions in holders-g") || !shown.stdout.contains("/h") {
        return Err(shown.stdout.into());
    }
    let other = Subject::start_command(Command::new(&program))?;
    strandline::run(&["holders", "--since", &before, &other.pid_text()])?
        .complains(3, &["not of this process"])?;
    strandline::run(&["holders", "--since", "/etc/passwd", &other.pid_text()])?.complains(3, &["/etc/passwd"])
}

#[test]
fn variables_of_a_stripped_program_are_named_by_address() -> Outcome {
    let test = here!();
    let Some(program) = program(test, true)? else { return Ok(()) };
    let subject = Subject::start_command(Command::new(&program))?;
    let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
    check_report(&subject, &document)?;
    let roots = document["roots"].as_array().ok_or("no roots")?;
    for group in ["cache", "pins"] {
        let [blocks, bytes] = printed(&subject, group)?;
        let found = roots.iter().find(|root| {
            root["retained_blocks"].as_u64() == Some(blocks) && root["retained_bytes"].as_u64() == Some(bytes)
        });
        let name = found
            .and_then(|root| root["name"].as_str())
            .ok_or_else(|| format!("no root has {group}: {roots:?}"))?;
        if !name.starts_with("holders-s+0x") {
            return Err(format!("{group} is held by {name}").into());
        }
    }
    Ok(())
}

#[test]
fn a_ledger_has_a_row_of_leaked_blocks() -> Outcome {
    let test = here!();
    let Some(program) = program(test, false)? else { return Ok(()) };
    let subject = Subject::start_command(Command::new(&program))?;
    let document = strandline::json(&["explain", "--holders", "--json", &subject.pid_text()])?;
    let leaked = strandline::row(&document, "glibc.leaked");
    let bytes = figure(&document["holders"]["unreachable"], "bytes")?;
    let rows = document["rows"].as_array().ok_or("no rows")?;
    let sum: u64 = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum();
    // All leaked bytes are resident: each was written to.
    if leaked != bytes || bytes == 0 || sum != figure(&document["kernel"], "rss_bytes")? {
        return Err(format!("{leaked} B on its row, {bytes} B leaked; rows sum to {sum}").into());
    }
    if document["holders"]["cost"]["wall_seconds"].as_f64().is_none_or(|seconds| seconds <= 0.0) {
        return Err(format!("{}", document["holders"]["cost"]).into());
    }
    for (condition, holds) in [("row.glibc.leaked > 300KiB", 1), ("row.glibc.live < 10MiB", 0)] {
        let arguments = ["explain", "--holders", "--fail-if", condition, &subject.pid_text()];
        let run = strandline::run(&arguments)?;
        if run.status != Some(holds) {
            return Err(format!("{condition}: {:?} {}", run.status, run.stderr).into());
        }
    }
    let shown = strandline::run(&["explain", "--holders", &subject.pid_text()])?;
    let words = ["glibc.leaked", "g_cache in holders-g", "what it is"];
    match words.iter().find(|word| !shown.stdout.contains(**word)) {
        None => Ok(()),
        Some(missing) => Err(format!("no {missing}: {}", shown.stdout).into()),
    }
}

#[test]
fn report_shows_a_written_document_and_makes_a_page_of_it() -> Outcome {
    let test = here!();
    let Some(program) = program(test, false)? else { return Ok(()) };
    let subject = Subject::start_command(Command::new(&program))?;
    let folder = Folder::new("page")?;
    let place = |name: &str| folder.0.join(name).display().to_string();
    let (document, page, other) = (place("look.json"), place("look.html"), place("other.json"));
    std::fs::write(&document, strandline::run(&["holders", "--json", &subject.pid_text()])?.stdout)?;
    std::fs::write(&other, r#"{"schema": "strandline/holders/1", "pid": 1, "live": {"bytes": -1}}"#)?;
    let shown = strandline::run(&["report", &document])?;
    if shown.status != Some(0) || !shown.stdout.contains("g_cache in holders-g") {
        return Err(shown.summary().into());
    }
    let made = strandline::run(&["report", "--format", "html", "-o", &page, &document])?;
    let text = std::fs::read_to_string(&page)?;
    if made.status != Some(0) || !text.contains("5,000 server::Entry") || text.contains("<script") {
        return Err(format!("{} {text}", made.summary()).into());
    }
    strandline::run(&["report", "--format", "html", "-o", &document, &document])?
        .complains(3, &["not overwritten"])?;
    strandline::run(&["report", "--format", "svg", &document])?.complains(3, &["--format html"])?;
    strandline::run(&["report", &document, &document])?.complains(2, &["reported alone"])?;
    strandline::run(&["report", "--type", "x", &document])?.complains(2, &["--type"])?;
    strandline::run(&["report", &other])?.complains(3, &["other.json"])
}

#[test]
fn the_terminal_shows_leaks_and_the_roots_of_the_rest() -> Outcome {
    let test = here!();
    let Some(program) = program(test, false)? else { return Ok(()) };
    let subject = Subject::start_command(Command::new(&program))?;
    let run = strandline::run(&["holders", &subject.pid_text()])?;
    if run.status != Some(0) || !run.stderr.is_empty() {
        return Err(run.summary().into());
    }
    let wide = run.stdout.lines().find(|line| line.chars().count() > 80);
    let words = [
        "nothing: leaked",
        "g_cache in holders-g",
        "g_pins in holders-g",
        "server::Session",
        "5,000 server::Entry",
        "retained by g_pins",
    ];
    let details = strandline::run(&["holders", "-v", &subject.pid_text()])?;
    let has_details = details.stdout.contains("worker(void*) on the stack of worker");
    let unwrapped = run.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.iter().find(|word| !unwrapped.contains(**word)) {
        None if wide.is_none() && has_details => Ok(()),
        missing => Err(format!("{missing:?}, {wide:?}: {}", run.stdout).into()),
    }
}

/// Number of blocks that valgrind's memcheck calls definitely and indirectly lost when the program
/// ends.
fn lost_by_memcheck(program: &Path, arguments: &[&str]) -> Result<[u64; 2]> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--leak-check=full", "--show-leak-kinds=none"])
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null());
    let output = valgrind.output()?;
    let text = String::from_utf8_lossy(&output.stderr).replace(',', "");
    // Some programs request summaries themselves: memcheck prints the last one at exit. It is one
    // line if no block is lost.
    let text = text.rsplit("HEAP SUMMARY").next().unwrap_or_default();
    if text.contains("no leaks are possible") {
        return Ok([0; 2]);
    }
    let blocks = |kind: &str| {
        let rest = text.split(&format!("{kind} lost: ")).nth(1)?;
        rest.split_whitespace().nth(3)?.parse::<u64>().ok()
    };
    let both = blocks("definitely").zip(blocks("indirectly"));
    both.map(|(definite, indirect)| [definite, indirect]).ok_or_else(|| format!("no summary: {text}").into())
}

/// memcheck's own tests, except those that need memcheck's client requests (memory pools).
const OF_MEMCHECK: [&str; 6] =
    ["leak-0", "leak-cases", "leak-cycle", "leak-delta", "leak-segv-jmp", "leak-tree"];

#[test]
fn blocks_leaked_by_memchecks_own_tests_are_unreachable() -> Outcome {
    let test = here!();
    let Some(folder) = std::env::var_os("STRANDLINE_VALGRIND_TESTS") else {
        skipped(test, "STRANDLINE_VALGRIND_TESTS names no source of valgrind (make test-full)");
        return Ok(());
    };
    let (source, built) = (Path::new(&folder), Folder::new("memcheck")?);
    let stay = built.0.join("stay.so");
    let stay_source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/stay_at_exit.c");
    let is_built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&stay).arg(stay_source).status()?;
    if !is_built.success() {
        return Err("cc cannot compile stay_at_exit.c".into());
    }
    for_each(OF_MEMCHECK, |name| {
        let program = built.0.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-g", "-O0", "-w", "-I"]).arg(source.join("include")).arg("-I").arg(source.join("memcheck"));
        cc.arg("-o").arg(&program).arg(source.join(format!("memcheck/tests/{name}.c")));
        if !cc.status()?.success() {
            return Err(format!("{cc:?}").into());
        }
        let lost = lost_by_memcheck(&program, &[])?;
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", &stay).stderr(Stdio::null());
        let subject = Subject::start_command(command)?;
        let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
        let found = &document["unreachable"];
        let definite = figure(&found["definite"], "blocks")?;
        let found = [definite, figure(found, "blocks")? - definite];
        if found == lost { Ok(()) } else { Err(format!("{found:?} lost, memcheck has {lost:?}").into()) }
    })
}

#[test]
fn unreachable_blocks_equal_memchecks_lost_blocks() -> Outcome {
    let test = here!();
    if Command::new("valgrind").arg("--version").output().is_err() {
        skipped(test, "no valgrind here (make deps)");
        return Ok(());
    }
    let program = compile("lost_random", &Libc::system())?;
    let seeds: Vec<String> = (1..=repetitions(4, 50)).map(|seed| seed.to_string()).collect();
    // The pointers between blocks are the same with every C library; memcheck intercepts only
    // glibc's malloc.
    let folder = Folder::new("lost")?;
    let mut programs = vec![program.clone()];
    for (number, (musl, _)) in musls(test).into_iter().enumerate() {
        let program_of_musl = folder.0.join(format!("lost_random{number}"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/lost_random.c");
        let built = Command::new(&musl).args(["-O1", "-o"]).arg(&program_of_musl).arg(source).status()?;
        if !built.success() {
            return Err(format!("{}: {built}", musl.display()).into());
        }
        programs.push(program_of_musl);
    }
    for_each(seeds, |seed| {
        let lost: u64 = lost_by_memcheck(&program, &[seed])?.iter().sum();
        for program in &programs {
            let mut command = Command::new(program);
            command.arg(seed);
            let subject = Subject::start_command(command)?;
            let document = strandline::json(&["holders", "--json", &subject.pid_text()])?;
            let found = figure(&document["unreachable"], "blocks")?;
            // A word that a call left on the stack may hold blocks, also for memcheck, and differs
            // between runs.
            if found.abs_diff(lost) > lost / 100 + 1 {
                return Err(format!("{}: {found} blocks unreachable, {lost} lost", program.display()).into());
            }
        }
        Ok(())
    })
}

/// Without a snapshot the process may move pointers while it is read, so that a live block can seem
/// unreachable.
#[test]
fn without_a_snapshot_no_leak_is_reported() -> Outcome {
    let test = here!();
    let Some(program) = program(test, false)? else { return Ok(()) };
    let subject = Subject::start_command(Command::new(&program))?;
    let arguments = ["holders", "--json", "--snapshot=never", &subject.pid_text()];
    let document = strandline::json(&arguments)?;
    let has_caveat = strandline::caveats(&document).iter().any(|caveat| caveat.contains("holders_in_motion"));
    if !document["unreachable"].is_null() || !has_caveat {
        return Err(format!("{} {}", document["unreachable"], document["caveats"]).into());
    }
    check_retained(&subject, find(&document, "roots", "name", "g_cache")?, "cache")?;
    let run = strandline::run(&["holders", "--snapshot=never", &subject.pid_text()])?;
    let is_unknown = run.stdout.contains("not known") && !run.stdout.contains("nothing");
    if is_unknown { Ok(()) } else { Err(run.stdout.into()) }
}

#[test]
fn a_missing_process_is_an_error() -> Outcome {
    strandline::run(&["holders", "2147483646"])?.complains(3, &["2147483646"])
}
