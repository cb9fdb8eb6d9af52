//! `try` with subjects whose best setting is known, and with hostile commands and catalogues.

use std::process::Command;

use serde_json::Value;

use crate::support::lab::{HANG_GUARD, Lab, Port, complains};
use crate::support::recording::has;
use crate::support::subject::compile;
use crate::support::{Libc, Outcome, Result, for_each, here, skipped};

const MIB: f64 = 1048576.0;

/// Path of a file of the repository.
fn file(name: &str) -> String {
    format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The median of a figure.
fn median(of: &Value, figure: &str) -> f64 {
    of[figure]["median"].as_f64().unwrap_or(f64::NAN)
}

fn candidate<'a>(document: &'a Value, id: &str) -> &'a Value {
    let candidates = document["candidates"].as_array().map_or(&[][..], Vec::as_slice);
    candidates.iter().find(|candidate| candidate["id"] == id).unwrap_or(&Value::Null)
}

/// Builds the server of the examples in the lab's folder.
fn server(lab: &Lab) -> Result<String> {
    let path = lab.path("server");
    let built =
        Command::new("cc").args(["-O2", "-pthread", "-o", &path, &file("examples/server.c")]).status()?;
    if built.success() { Ok(path) } else { Err("examples/server.c cannot be compiled".into()) }
}

#[test]
fn a_churning_script_is_halved_and_the_printed_command_reproduces_it() -> Outcome {
    if !has(here!(), "python3") {
        return Ok(());
    }
    let lab = Lab::new()?;
    let script = file("examples/churn.py");
    // By default ten times the first run, which is too short if other work begins after it.
    let flags = ["--repeat", "3", "--timeout", "600s", "--only", "arena_max_2,trim_threshold_128k"];
    let words = [&["try"][..], &flags, &["--", "python3", &script, "3"]].concat();
    let found = lab.document(&words)?;
    assert_eq!(found["schema"], "strandline/try/1");
    assert_eq!((&found["mode"], &found["settled_at"]), (&"batch".into(), &"mark".into()), "{found}");
    assert_eq!(found["best"], "trim_threshold_128k", "{found}");
    let (before, best) =
        (median(&found["baseline"], "settled_bytes"), candidate(&found, "trim_threshold_128k"));
    assert!(median(best, "settled_bytes") * 2.0 <= before, "{found}");
    assert!(
        median(best, "minor_faults") > median(&found["baseline"], "minor_faults"),
        "its cost is shown: {best}"
    );
    assert_eq!(candidate(&found, "arena_max_2")["status"], "same", "{found}");
    let paste = found["paste"]["shell"].as_str().unwrap_or_default();
    let output = Command::new("sh").args(["-c", paste]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let resident = text.split("resident ").nth(1).and_then(|rest| rest.split(' ').next());
    let resident: f64 = resident.ok_or_else(|| format!("{paste}: {text}"))?.parse()?;
    assert!(resident * MIB * 2.0 <= before, "{paste}: {text}, before {before}");
    Ok(())
}

#[test]
fn the_arenas_of_a_server_are_found_under_load() -> Outcome {
    if !has(here!(), "python3") {
        return Ok(());
    }
    let lab = Lab::new()?;
    let (server, own) = (server(&lab)?, Port::reserve()?);
    let port = own.number.to_string();
    let (ready, load) = (format!("port={port}"), format!("python3 {} {port} 160", file("examples/load.py")));
    let flags = ["--repeat", "3", "--pairs", "0", "--settle", "0.1", "--only", "arena_max_1,top_pad_0"];
    let words = [&["try"][..], &flags, &["--ready", &ready, "--load", &load, "--", &server, &port]].concat();
    let found = lab.document(&words)?;
    assert_eq!((&found["mode"], &found["settled_at"]), (&"server".into(), &"load".into()), "{found}");
    assert_eq!(found["best"], "arena_max_1", "{found}");
    let best = candidate(&found, "arena_max_1");
    assert!(median(best, "settled_bytes") * 2.0 <= median(&found["baseline"], "settled_bytes"), "{found}");
    assert!(median(best, "wall_seconds") > 0.0 && median(best, "peak_bytes") > 0.0, "{found}");
    Ok(())
}

#[test]
fn commands_that_fail_without_settings_are_not_tried() -> Outcome {
    let lab = Lab::new()?;
    let ends = |words: &[&str], status: i32, message: &[&str]| -> Outcome {
        complains(&lab.run(&[&["try"], words].concat())?, status, message)
    };
    ends(
        &["--", "sh", "-c", "echo no luck >&2; exit 7"],
        3,
        &["sh -c ", "without any setting", "7", "no luck"],
    )?;
    ends(&["--", "/no/such/program"], 3, &["/no/such/program"])?;
    ends(&["--", "nonexist"], 3, &["nonexist: without any setting: nonexist: not found"])?;
    ends(&["--only", "magic", "--", "true"], 3, &["magic", "--list"])?;
    ends(&["--load", "true", "--", "true"], 2, &["--ready"])?;
    ends(&["--ready", "port=0", "--", "true"], 2, &["port=8080"])?;
    let sleep = format!("sleep {}", lab.token);
    let unused_port = Port::reserve()?;
    let closed = format!("port={}", unused_port.number);
    ends(
        &["--timeout", "0.3s", "--ready", &closed, "--", "sh", "-c", &sleep],
        3,
        &["did not open within 0.3 s"],
    )?;
    // The command ends within the thirty seconds, even if it must wait for a processor.
    ends(&["--ready", "seconds=30", "--", "true"], 3, &["ended before it was ready", "in the foreground"])?;
    let line = ["--timeout", "0.3s", "--ready", "line=up", "--", "sh", "-c", &sleep];
    ends(&line, 3, &["the line did not come within 0.3 s", "PYTHONUNBUFFERED=1"])?;
    ends(&["--goal", "time-bounded", "--ready", "seconds=0", "--", "true"], 2, &["--load"])?;
    let load = ["--ready", "seconds=0.1", "--load", "echo bad load >&2; false", "--", "sh", "-c", &sleep];
    ends(&load, 3, &["the load failed", "bad load"])?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let ready = format!("port={}", taken.local_addr()?.port());
    ends(&["--ready", &ready, "--", "true"], 3, &["listens at port"])?;
    assert_eq!(lab.running(), Vec::<String>::new());
    Ok(())
}

fn text_of_library(package: &str) -> String {
    format!("[library.own]\nallocator = \"x\"\nfiles = [\"x\"]\npackage = {package:?}\n")
}

#[test]
fn a_failure_only_under_a_setting_has_a_reason() -> Outcome {
    let lab = Lab::new()?;
    let library = |path: &&str| std::path::Path::new(path).exists();
    let places = ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/usr/lib/libm.so.6"];
    let no_allocator = places.iter().find(|path| library(path)).unwrap_or(&"/no/libm.so.6");
    let catalogue = lab.path("own.toml");
    let head = |id: &str| {
        format!(
            "[[candidate]]\nid = \"{id}\"\ntitle = \"t\"\nkind = \"setting\"\ncost = \"c\"\nsource = [\"s\"]\n"
        )
    };
    let text = format!(
        "[library.fake]\nallocator = \"jemalloc\"\nfiles = [{no_allocator:?}]\n{}environment = {{ FAIL = \"1\" }}\n\
         {}environment = {{ HANG = \"1\" }}\n{}library = \"fake\"\n{}environment = {{ FINE = \"1\" }}\n",
        head("fails"),
        head("hangs"),
        head("no_allocator"),
        head("fine")
    );
    std::fs::write(&catalogue, text)?;
    let script =
        format!("if [ $HANG ]; then sleep {}; fi; if [ $FAIL ]; then echo broken >&2; exit 3; fi", lab.token);
    let only = "fails,hangs,no_allocator,fine";
    // A candidate that hung is not run again: the timeout passes only once.
    let flags = ["--repeat", "2", "--timeout", HANG_GUARD, "--catalogue", &catalogue, "--only", only];
    let found = lab.document(&[&["try"][..], &flags, &["--", "sh", "-c", &script]].concat())?;
    for (id, words) in
        [("fails", "broken"), ("hangs", "timeout"), ("no_allocator", "jemalloc was not mapped")]
    {
        let candidate = candidate(&found, id);
        assert_eq!(candidate["status"], "failed", "{id}: {found}");
        assert!(
            candidate["reason"].as_str().is_some_and(|reason| reason.contains(words)),
            "{id}: {candidate}"
        );
    }
    assert_eq!(candidate(&found, "fine")["status"], "same", "{found}");
    assert_eq!((&found["best"], &found["paste"]), (&Value::Null, &Value::Null));
    assert_eq!(lab.running(), Vec::<String>::new());
    let injected = text_of_library("libx && touch /tmp/owned");
    std::fs::write(&catalogue, injected)?;
    complains(
        &lab.run(&["try", "--catalogue", &catalogue, "--", "true"])?,
        3,
        &["own.toml:1", "Debian package"],
    )?;
    std::fs::write(&catalogue, head("x") + "enviroment = { A = \"1\" }\n")?;
    complains(&lab.run(&["try", "--catalogue", &catalogue, "--", "true"])?, 3, &["own.toml:7", "enviroment"])
}

#[test]
fn options_that_would_be_changed_are_refused() -> Outcome {
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::new()?;
    let mut command = lab.command(&["try", "--", "echo"]);
    command.arg(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    complains(&crate::support::recording::finish(command, b"")?, 2, &["UTF-8"])
}

#[test]
fn a_failed_first_run_is_repeated() -> Outcome {
    let lab = Lab::new()?;
    let (folder, flag) = (lab.path("kept"), lab.path("flag"));
    let script = format!("test -e {flag}");
    let words =
        ["try", "--repeat", "1", "--only", "arena_max_1", "--dir", &folder, "--", "sh", "-c", &script];
    complains(&lab.run(&words)?, 3, &["without any setting", "exit status 1"])?;
    std::fs::write(&flag, "")?;
    let found = lab.document(&words)?;
    assert_eq!(candidate(&found, "arena_max_1")["status"], "same", "{found}");
    Ok(())
}

#[test]
fn one_failed_run_without_settings_drops_only_its_round() -> Outcome {
    let lab = Lab::new()?;
    let (catalogue, count) = (lab.path("own.toml"), lab.path("count"));
    let fine = "[[candidate]]\nid = \"fine\"\ntitle = \"t\"\nkind = \"setting\"\ncost = \"c\"\nsource = [\"s\"]\n\
                environment = { FINE = \"1\" }\n";
    std::fs::write(&catalogue, fine)?;
    // The third run without the setting fails, in round 2, after the first measurement and round 1.
    std::fs::write(&count, "0\n")?;
    let script =
        format!("[ $FINE ] && exit; read n < {count}; n=$((n+1)); echo $n > {count}; [ $n -ne 3 ] || exit 9");
    let flags = ["--repeat", "4", "--catalogue", &catalogue, "--only", "fine"];
    let found = lab.document(&[&["try"][..], &flags, &["--", "sh", "-c", &script]].concat())?;
    assert_eq!(
        (&found["runs"], &candidate(&found, "fine")["status"]),
        (&3.into(), &"same".into()),
        "{found}"
    );
    let caveats = found["caveats"].as_array().map_or(&[][..], Vec::as_slice);
    let failed = caveats.iter().find(|caveat| caveat["code"] == "baseline_failed");
    let text = failed.and_then(|caveat| caveat["text"].as_str()).unwrap_or_default();
    assert!(text.contains("1 run") && text.contains("exit status 9"), "{found}");
    Ok(())
}

/// Holds 40 MiB and ends as soon as it has a tracer.
const UNTIL_TRACED: &str = r"
import os, time
held = bytearray(40 << 20)
while 'TracerPid:\t0\n' in open('/proc/self/status').read():
    time.sleep(0.001)
os._exit(0)
";

#[test]
fn a_shells_mark_does_not_count_for_its_children() -> Outcome {
    if !has(here!(), "python3") {
        return Ok(());
    }
    let lab = Lab::new()?;
    // strandline traces a child to see its exit only from a minimum age on; this child ends once it
    // is traced.
    let ends = lab.path("ends.py");
    std::fs::write(&ends, UNTIL_TRACED)?;
    let script = format!("python3 {ends}; {} mark done", crate::support::recording::program());
    let words = ["try", "--repeat", "1", "--only", "arena_max_1", "--", "sh", "-c", &script];
    let found = lab.document(&words)?;
    assert_eq!(found["settled_at"], "exit", "{found}");
    assert!(median(&found["baseline"], "settled_bytes") > 40.0 * MIB, "{found}");
    let executable = found["baseline"]["executable"].as_str().unwrap_or_default();
    assert!(executable.contains("python"), "{found}");
    Ok(())
}

/// A server that accepts a single connection, and has a child with its own memory.
const ONE_CONNECTION: &str = "
import os, signal, socket, sys, time
held = bytearray(40 << 20)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    own = bytearray(10 << 20)
    os.write(writer, b'x')
    time.sleep(600)
os.read(reader, 1)
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
signal.signal(signal.SIGTERM, lambda *_: (os.kill(child, 9), os._exit(0)))
connection, _ = server.accept()
server.close()
connection.sendall(b'hello')
time.sleep(600)
";

#[test]
fn only_the_load_connects_and_a_tree_is_counted_once() -> Outcome {
    if !has(here!(), "python3") {
        return Ok(());
    }
    let lab = Lab::new()?;
    let (program, own) = (lab.path("one.py"), Port::reserve()?);
    let port = own.number.to_string();
    std::fs::write(&program, ONE_CONNECTION)?;
    let load = format!(
        "python3 -c 'import socket; assert socket.create_connection((\"127.0.0.1\", {port})).recv(9) == b\"hello\"'"
    );
    let ready = format!("port={port}");
    let command = ["--", "python3", &program, &port];
    let serve =
        ["try", "--repeat", "1", "--pairs", "0", "--ready", &ready, "--load", &load, "--settle", "0.1"];
    let found = lab.document(&[&serve[..], &["--only", "arena_max_1"], &command].concat())?;
    assert_eq!(candidate(&found, "arena_max_1")["reason"], Value::Null, "{found}");
    let settled = median(&found["baseline"], "settled_bytes") / MIB;
    // 40 MiB shared by both, 10 MiB private to the child, and an interpreter; counting shared pages
    // twice would add 40 MiB.
    assert!((50.0..80.0).contains(&settled), "{settled}");
    assert_eq!(found["baseline"]["peak_bytes"], Value::Null, "{found}");
    let peak = [&serve[..], &["--goal", "peak"], &command].concat();
    complains(&lab.run(&peak)?, 3, &["several processes", "--goal settled"])
}

#[test]
fn nothing_is_preloaded_into_a_static_program() -> Outcome {
    let lab = Lab::new()?;
    let (source, program) = (lab.path("static.c"), lab.path("static"));
    std::fs::write(&source, "#include <stdlib.h>\nint main(void) { free(malloc(9)); return 0; }\n")?;
    let built = Command::new("cc").args(["-static", "-o", &program, &source]).output()?;
    if !built.status.success() {
        skipped(here!(), "no static C library");
        return Ok(());
    }
    let found = lab.document(&["try", "--repeat", "1", "--only", "jemalloc,arena_max_1", "--", &program])?;
    let left_out = found["not_applicable"].as_array().map_or(&[][..], Vec::as_slice);
    let jemalloc = left_out.iter().find(|one| one["id"] == "jemalloc").unwrap_or(&Value::Null);
    assert!(jemalloc["reason"].as_str().is_some_and(|why| why.contains("statically")), "{found}");
    Ok(())
}

#[test]
fn the_catalogue_can_be_listed() -> Outcome {
    let lab = Lab::new()?;
    let found = lab.document(&["try", "--list"])?;
    let candidates = found["candidates"].as_array().map_or(0, Vec::len);
    assert!(candidates >= 40, "{found}");
    let text = lab.run(&["try", "--list", "--only", "jemalloc_decay_0"])?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("jemalloc_decay_0") && text.contains("dirty_decay_ms:0"), "{text}");
    Ok(())
}

/// Path of the recording of the current run of the lab in the folder `kept`.
fn recording_in(kept: &str) -> String {
    format!("{kept}/work-0/0/recording.strandline")
}

/// For programs that send no marks and release memory as they end, the level before that release
/// counts, and not the memory at the last instant. Unit tests of `crates/lab/src/trial/settled.rs`
/// have courses that are too fast for a busy machine.
#[test]
fn without_marks_the_level_before_the_end_counts() -> Outcome {
    let holder = compile("holder", &Libc::system())?.display().to_string();
    let lab = Lab::new()?;
    // Course, settled MiB of 96 MiB, and the source of that figure.
    let courses = [("keep", 96.0, "exit"), ("steps", 48.0, "level")];
    for_each(courses, |&(course, settled, from)| {
        let kept = lab.path(course);
        let flags = ["try", "--repeat", "1", "--pairs", "0", "--only", "arena_max_2", "--dir", &kept, "--"];
        let found = lab.document(&[&flags[..], &[&holder, course, "96", &recording_in(&kept)]].concat())?;
        let baseline = &found["baseline"];
        let mebibytes = median(baseline, "settled_bytes") / MIB;
        if found["settled_at"] != from || mebibytes < 0.95 * settled || mebibytes > 1.1 * settled + 3.0 {
            return Err(format!("{mebibytes} MiB at {}: {baseline}", found["settled_at"]).into());
        }
        let held = &baseline["settled_seconds"];
        if (from == "level") != held.is_object() {
            return Err(format!("no level is reported: {baseline}").into());
        }
        let seconds = held["to"].as_f64().unwrap_or(0.0) - held["from"].as_f64().unwrap_or(0.0);
        if from == "level" && seconds <= 0.0 {
            return Err(format!("a level without a length: {baseline}").into());
        }
        Ok(())
    })
}

#[test]
fn memory_that_another_allocator_releases_is_found_without_a_mark() -> Outcome {
    let test = here!();
    let holder = compile("holder", &Libc::system())?.display().to_string();
    let lab = Lab::new()?;
    let kept = lab.path("kept");
    let flags = ["try", "--repeat", "2", "--pairs", "0", "--only", "jemalloc_decay_0", "--dir", &kept, "--"];
    let found = lab.document(&[&flags[..], &[&holder, "hold", "96", &recording_in(&kept)]].concat())?;
    let best = candidate(&found, "jemalloc_decay_0");
    if best.is_null() {
        skipped(test, "no libjemalloc.so.2 (make deps)");
        return Ok(());
    }
    assert_eq!((&found["best"], &best["status"]), (&"jemalloc_decay_0".into(), &"better".into()), "{found}");
    assert!(median(best, "settled_bytes") * 10.0 < median(&found["baseline"], "settled_bytes"), "{found}");
    let codes: Vec<&str> =
        found["caveats"].as_array().into_iter().flatten().filter_map(|c| c["code"].as_str()).collect();
    assert!(codes.contains(&"fell_at_end"), "{codes:?}");
    Ok(())
}
