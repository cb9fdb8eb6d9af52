//! Go read from outside, against what it knows of itself (`tests/subjects/go`): by every toolchain there is, with and without
//! symbols, and as a position-independent program.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Folder, Outcome, Result, Subject, for_each, gos, repetitions, strandline, subject};

const FIGURES: [&str; 6] = ["HeapAlloc", "HeapSys", "HeapIdle", "HeapInuse", "HeapReleased", "StackInuse"];

/// How a program is built.
const BUILDS: [(&str, &[&str]); 3] =
    [("whole", &[]), ("stripped", &["-ldflags=-s -w"]), ("pie", &["-buildmode=pie", "-ldflags=-s -w"])];

/// Builds the subject with a toolchain.
fn build(
    folder: &Folder,
    (version, go): &(String, String),
    (name, flags): (&str, &[&str]),
) -> Result<String> {
    let program = folder.0.join(format!("{name}-{version}")).display().to_string();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/go/oracle.go");
    let mut command = Command::new(go);
    command.arg("build").args(flags).args(["-o", &program]).arg(source);
    command
        .env("GOTOOLCHAIN", "local")
        .env("GOFLAGS", "-mod=mod")
        .env("CGO_ENABLED", "0")
        .env_remove("GOROOT");
    let output = command.output()?;
    if output.status.success() {
        return Ok(program);
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

fn start(program: &str, arguments: [&str; 3]) -> Result<Subject> {
    let mut command = Command::new(program);
    command.args(arguments);
    for name in ["GOGC", "GOMEMLIMIT", "GODEBUG", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    Subject::start_command(command)
}

fn look(subject: &Subject) -> Result<(Value, Value)> {
    let document = strandline::explain(subject.pid())?;
    let all = document["runtimes"].as_array().ok_or("no runtimes")?;
    let go = all.iter().find(|runtime| runtime["name"] == "go").ok_or("no go")?.clone();
    if go["read"] != true {
        return Err(format!("not read: {:?}", strandline::caveats(&document)).into());
    }
    Ok((document, go))
}

/// Looks until nothing changed meanwhile: the runtime gives memory back in the background.
fn figures_agree(subject: &mut Subject) -> Result<Value> {
    let mut wrong = String::new();
    for _ in 0..20 {
        let before = subject.ask(b's')?;
        let (document, go) = look(subject)?;
        let after = subject.ask(b's')?;
        if before != after {
            continue;
        }
        let differs = |name: &&&str| go["own"][**name] != before[**name];
        let bad: Vec<_> = FIGURES.iter().filter(differs).collect();
        if bad.is_empty() && go["go"]["next_gc_bytes"] == before["NextGC"] && go["go"]["gogc_percent"] == 100
        {
            return Ok(document);
        }
        wrong = format!("{bad:?}: {before} told, {} and {} found", go["own"], go["go"]);
    }
    Err(if wrong.is_empty() { "it was never at rest".into() } else { wrong.into() })
}

#[test]
fn figures_are_those_of_mem_stats() -> Outcome {
    let folder = Folder::new("go-figures")?;
    let mut cases = Vec::new();
    for go in gos::all("runtime_go: figures") {
        for how in BUILDS {
            cases.push((build(&folder, &go, how)?, 0));
        }
    }
    let more = repetitions(1, 8);
    let cases: Vec<_> =
        cases.into_iter().flat_map(|(program, _)| (0..more).map(move |n| (program.clone(), n))).collect();
    for_each(cases, |(program, seed)| {
        let count = (20_000 << (seed % 4)).to_string();
        let mut subject = start(program, [&count, "10", &seed.to_string()])?;
        let document = figures_agree(&mut subject)?;
        let caveats = strandline::caveats(&document);
        if !caveats.is_empty() {
            return Err(format!("caveats: {caveats:?}").into());
        }
        let rss = document["kernel"]["rss_bytes"].as_u64().ok_or("no RSS")?;
        let dark = strandline::row(&document, "anonymous") + strandline::row(&document, "go.unread");
        if dark * 50 > rss { Err(format!("{dark} of {rss} bytes are not explained").into()) } else { Ok(()) }
    })
}

/// What debug.FreeOSMemory gives back is what was idle; what its own collection worked with is idle after it.
#[test]
fn idle_spans_go_back_as_predicted() -> Outcome {
    const WORK_BYTES: u64 = 6 << 20;
    let folder = Folder::new("go-idle")?;
    let mut programs = Vec::new();
    for go in gos::all("runtime_go: idle spans") {
        programs.push(build(&folder, &go, BUILDS[1])?);
    }
    for_each(programs, |program| {
        let mut subject = start(program, ["20000", "10", "1"])?;
        // The runtime begins to give back in the background at once.
        let mut document = Value::Null;
        for _ in 0..20 {
            subject.ask(b'g')?;
            document = look(&subject)?.0;
            if strandline::predicted(&document, "go_free_os_memory").is_some_and(|bytes| bytes >= 20 << 20) {
                break;
            }
        }
        let predicted = strandline::predicted(&document, "go_free_os_memory").ok_or("no remedy")?;
        let is_said = document["verdict"]["class"] == "idle_spans";
        subject.ask(b'f')?;
        let (after, _) = look(&subject)?;
        let rss = |document: &Value| subject::number(&document["kernel"], "rss_bytes");
        let actual = rss(&document)?.saturating_sub(rss(&after)?);
        if predicted < 20 << 20 || actual.abs_diff(predicted) > WORK_BYTES || !is_said {
            return Err(format!("predicted {predicted}, actual {actual}, {}", document["verdict"]).into());
        }
        Ok(())
    })
}

#[test]
fn limits_in_force_are_told() -> Outcome {
    let folder = Folder::new("go-limits")?;
    let Some(go) = gos::all("runtime_go: limits").pop() else { return Ok(()) };
    let mut command = Command::new(build(&folder, &go, BUILDS[1])?);
    command.args(["1000", "10", "1"]).env("GOMEMLIMIT", "300MiB").env("GOGC", "off");
    let subject = Subject::start_command(command)?;
    let (_, go) = look(&subject)?;
    assert_eq!(go["go"]["memory_limit_bytes"], 300 << 20);
    assert_eq!(go["go"]["gogc_percent"], -1);
    Ok(())
}
