//! Go read from outside, compared with its own figures (`tests/subjects/go`): with every toolchain
//! found, with and without symbols, and as a position-independent program.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::support::recording::signal;
use crate::support::waiting::{state, threads, until, until_true};
use crate::support::{
    Folder, Outcome, Result, Subject, for_any, gos, here, repetitions, skipped, strandline, subject,
};

const FIGURES: [&str; 6] = ["HeapAlloc", "HeapSys", "HeapIdle", "HeapInuse", "HeapReleased", "StackInuse"];

/// Build variants of the program.
const BUILDS: [(&str, &[&str]); 3] =
    [("whole", &[]), ("stripped", &["-ldflags=-s -w"]), ("pie", &["-buildmode=pie", "-ldflags=-s -w"])];

/// Builds the subject with a toolchain unless it is up to date; one build at a time, shared by all
/// tests.
fn build((version, go): &(String, String), (name, flags): (&str, &[&str])) -> Result<String> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/go/oracle.go");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("subjects/go");
    let program = folder.join(format!("{name}-{version}"));
    let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified());
    if changed(&program).is_ok_and(|built| changed(&source).is_ok_and(|changed| built >= changed)) {
        return Ok(program.display().to_string());
    }
    std::fs::create_dir_all(&folder)?;
    // Renamed into place in one step: another run of the tests may build it too.
    let partial = folder.join(format!("{name}-{version}.{}", std::process::id()));
    let mut command = Command::new(go);
    command.arg("build").args(flags).arg("-o").arg(&partial).arg(&source);
    command
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=mod")
        .env("CGO_ENABLED", "0")
        .env_remove("GOROOT");
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    std::fs::rename(&partial, &program)?;
    Ok(program.display().to_string())
}

fn start(program: &str, arguments: [&str; 3]) -> Result<Subject> {
    let mut command = Command::new(program);
    command.args(arguments);
    for name in ["GOGC", "GOMEMLIMIT", "GODEBUG", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    Subject::start_command(command)
}

fn explain_go(subject: &Subject) -> Result<(Value, Value)> {
    let document = strandline::explain(subject.pid())?;
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let go = all.iter().find(|runtime| runtime["name"] == "go").ok_or("no go")?.clone();
    if go["read"] != true {
        return Err(format!("not read: {:?}", strandline::caveats(&document)).into());
    }
    Ok((document, go))
}

/// Explains the process until the runtime's own figures are the same before and after, as it
/// returns memory in the background. The figures found must then equal them.
fn figures_agree(subject: &mut Subject) -> Result<Value> {
    until("constant figures of the runtime", || {
        let before = subject.ask(b's')?;
        let (document, go) = explain_go(subject)?;
        if subject.ask(b's')? != before {
            return Ok(None);
        }
        let differs = |name: &&&str| go["own"][**name] != before[**name];
        let bad: Vec<_> = FIGURES.iter().filter(differs).collect();
        if bad.is_empty() && go["go"]["next_gc_bytes"] == before["NextGC"] && go["go"]["gogc_percent"] == 100
        {
            return Ok(Some(document));
        }
        Err(format!("{bad:?}: expected {before}, found {} and {}", go["own"], go["go"]).into())
    })
}

#[test]
fn figures_equal_mem_stats() -> Outcome {
    let mut cases = Vec::new();
    for go in gos::all(here!()) {
        for how in BUILDS {
            let program = build(&go, how)?;
            cases.extend((0..repetitions(1, 8)).map(|seed| (program.clone(), seed)));
        }
    }
    for_any(cases, |(program, seed)| {
        let count = (20_000 << (seed % 4)).to_string();
        let mut subject = start(program, [&count, "10", &seed.to_string()])?;
        let document = figures_agree(&mut subject)?;
        let caveats = strandline::caveats(&document);
        if !caveats.is_empty() {
            return Err(format!("caveats: {caveats:?}").into());
        }
        let rss = document["kernel"]["rss_bytes"].as_u64().ok_or("no RSS")?;
        let unattributed = strandline::row(&document, "anonymous") + strandline::row(&document, "go.unread");
        if unattributed * 50 > rss {
            Err(format!("{unattributed} of {rss} bytes are not explained").into())
        } else {
            Ok(())
        }
    })
}

/// debug.FreeOSMemory gives back the idle spans; the memory that its own collection used is idle
/// afterwards.
#[test]
fn idle_spans_are_released_as_predicted() -> Outcome {
    const WORK_BYTES: u64 = 6 << 20;
    let mut programs = Vec::new();
    for go in gos::all(here!()) {
        programs.push(build(&go, BUILDS[1])?);
    }
    for_any(programs, |program| {
        let mut subject = start(program, ["20000", "10", "1"])?;
        let pid = subject.pid();
        subject.ask(b'g')?;
        // The subject stops itself, because the runtime would at once begin to return memory in the
        // background.
        let is_stopped = |tid| state(pid, tid) == Some('T');
        until_true("the subject to stop itself", || threads(pid).into_iter().all(is_stopped))?;
        let (document, _) = explain_go(&subject)?;
        signal(pid, 18);
        let predicted = strandline::predicted(&document, "go_free_os_memory").ok_or("no remedy")?;
        let names_idle_spans = document["verdict"]["class"] == "idle_spans";
        subject.ask(b'f')?;
        let (after, _) = explain_go(&subject)?;
        // File pages change with other activity on the machine.
        let own = |document: &Value| subject::number(&document["kernel"], "anonymous_bytes");
        let actual = own(&document)?.saturating_sub(own(&after)?);
        if predicted < 20 << 20 || actual.abs_diff(predicted) > WORK_BYTES || !names_idle_spans {
            return Err(format!("predicted {predicted}, actual {actual}, {}", document["verdict"]).into());
        }
        Ok(())
    })
}

#[test]
fn limits_in_force_are_shown() -> Outcome {
    let Some(go) = gos::all(here!()).pop() else { return Ok(()) };
    let mut command = Command::new(build(&go, BUILDS[1])?);
    command.args(["1000", "10", "1"]).env("GOMEMLIMIT", "300MiB").env("GOGC", "off");
    let subject = Subject::start_command(command)?;
    let (_, go) = explain_go(&subject)?;
    assert_eq!(go["go"]["memory_limit_bytes"], 300 << 20);
    assert_eq!(go["go"]["gogc_percent"], -1);
    Ok(())
}

/// Two libraries with a Go runtime each, one of them stripped, in a Python that uses glibc's
/// malloc.
#[test]
fn several_runtimes_in_one_process_are_distinguished() -> Outcome {
    const SCRIPT: &str = "import ctypes, sys
libraries = [ctypes.CDLL(path) for path in sys.argv[1:]]
for library, blocks in zip(libraries, (20000, 10000)): library.Fill(blocks)
print('{}', flush=True)
sys.stdin.read()";
    let folder = Folder::new("go-libraries")?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/go/library.go");
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT]);
    for (name, flags) in [("one.so", &[][..]), ("two.so", &["-ldflags=-s -w"][..])] {
        let path = folder.0.join(name);
        let mut build = Command::new("go");
        build.args(["build", "-buildmode=c-shared"]).args(flags).arg("-o").arg(&path).arg(&source);
        let built = build.env("CGO_ENABLED", "1").env("GOFLAGS", "-mod=mod").env_remove("GOROOT").output();
        if !built.as_ref().is_ok_and(|output| output.status.success()) {
            skipped(here!(), "no go that builds C libraries here");
            return Ok(());
        }
        command.arg(path);
    }
    let subject = Subject::start_command(command)?;
    let document = strandline::explain(subject.pid())?;
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let figure = |runtime: &Value| runtime["own"]["HeapAlloc"].as_u64().unwrap_or(0);
    let mut held: Vec<u64> = all.iter().filter(|one| one["name"] == "go").map(figure).collect();
    held.sort_unstable();
    // Blocks of 1,024 bytes, and the pointers to them.
    let is_right = held.len() == 2
        && (10_240_000..12_000_000).contains(&held[0])
        && (20_480_000..24_000_000).contains(&held[1]);
    assert!(is_right, "{held:?}; {:?}", strandline::caveats(&document));
    assert!(all.iter().any(|one| one["name"] == "cpython" && one["read"] == true));
    let unattributed = strandline::row(&document, "anonymous");
    let rss = subject::number(&document["kernel"], "rss_bytes")?;
    assert!(unattributed * 50 < rss, "{unattributed} of {rss} bytes are not explained");
    Ok(())
}

/// A plugin contains the code of a runtime, but uses the runtime of the program.
#[test]
fn a_plugin_is_read_with_its_program() -> Outcome {
    let test = here!();
    let folder = Folder::new("go-plugin")?;
    let subjects = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/go");
    let path = |name: &str| folder.0.join(name);
    let builds = [
        (path("plugin.so"), "plugin.go", &["-buildmode=plugin", "-ldflags=-s -w"][..]),
        (path("host"), "host.go", &[]),
    ];
    for (to, source, flags) in &builds {
        let mut build = Command::new("go");
        build.arg("build").args(*flags).arg("-o").arg(to).arg(subjects.join(source));
        let built = build.env("CGO_ENABLED", "1").env("GOFLAGS", "-mod=mod").env_remove("GOROOT").output();
        if !built.as_ref().is_ok_and(|output| output.status.success()) {
            skipped(test, "no go that builds plugins here");
            return Ok(());
        }
    }
    let mut command = Command::new(&builds[1].0);
    command.arg(&builds[0].0);
    let subject = Subject::start_command(command)?;
    let document = strandline::explain(subject.pid())?;
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let held = all.iter().filter(|one| one["name"] == "go" && one["read"] == true);
    let held: Vec<u64> = held.filter_map(|one| one["own"]["HeapAlloc"].as_u64()).collect();
    // 20,000 blocks of 1,024 bytes allocated by the plugin, and the pointers to them.
    assert!(matches!(held[..], [20_480_000..24_000_000]), "{held:?}; {:?}", strandline::caveats(&document));
    assert!(strandline::caveats(&document).is_empty(), "{:?}", strandline::caveats(&document));
    Ok(())
}
