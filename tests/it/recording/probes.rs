//! The probes of `probes/`: a small program in each language uses its probe with the real
//! interpreter or compiler, against a peer in place of strandline
//! (`tests/subjects/probes/serve.py`), with every possible fault of the socket; and under
//! `strandline run`.
//!
//! A program with marks behaves, prints and ends as without strandline, whatever happens to
//! strandline. The tests report a missing language by name and skip it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::strandline::{Run, run_command};
use crate::support::{Folder, Outcome, Result, full, here, repetitions, skipped, strandline};

/// Descriptor of the socket in the subject.
const DESCRIPTOR: &str = "7";
const STATUS: Option<i32> = Some(7);
const MARKS: [&str; 4] = ["start", "grown", "freed", "two lines "];
/// Least growth of each subject's memory, allowing for other changes by the runtime.
const GROWS_KIB: u64 = 60 * 1024;
const SHRINKS_KIB: u64 = 48 * 1024;

/// Faults of the socket, and the number of marks that still arrive. Every language runs the first
/// [`ALWAYS`].
const SCENARIOS: [(&str, u64); 11] = [
    ("absent", 0),
    ("hangup", 0),
    ("value=", 0),
    ("value=x", 0),
    ("value=0", 0),
    ("value=99999999999999999999", 0),
    ("closed", 0),
    ("file", 0),
    (DATAGRAM, 0),
    ("leaves=1", 1),
    ("leaves=2", 2),
];
const DATAGRAM: &str = "datagram";
const ALWAYS: usize = 1;
/// In `make test` the slowly starting interpreters run every fifth scenario; C, Perl and D, which
/// start fast, run all of them.
const SHARES: usize = 5;

/// A program that sends marks.
#[derive(Debug)]
struct Program {
    command: Vec<String>,
    /// Its memory grows between marks; a shell's does not.
    grows: bool,
    /// It can distinguish a stream from other sockets.
    checks_socket_kind: bool,
    /// It also sends marks through a non-blocking socket.
    waits: bool,
    /// It has the task `reuse`.
    reuses: bool,
    /// Threads (or processes) that send marks in the task `crowd`, if it has that.
    crowd: Option<u64>,
    /// Which of the [`SHARES`] it runs, if it starts slowly.
    share: Option<usize>,
    /// Ledgers to take in `make test`, if those of its runtime take long.
    ledgers: Option<&'static str>,
}

impl Program {
    fn new(command: &[&str]) -> Self {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        Self {
            command,
            grows: true,
            checks_socket_kind: true,
            waits: true,
            reuses: true,
            crowd: None,
            share: None,
            ledgers: None,
        }
    }

    fn crowd(mut self, of: u64) -> Self {
        self.crowd = Some(of);
        self
    }

    fn share(mut self, number: usize) -> Self {
        self.share = Some(number % SHARES);
        self
    }

    /// The scenarios that it runs, and the marks of each.
    fn scenarios(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_its = move |index: usize| {
            full() || index < ALWAYS || self.share.is_none_or(|share| index % SHARES == share)
        };
        let scenarios = SCENARIOS.into_iter().enumerate().filter(move |(index, _)| is_its(*index));
        scenarios
            .map(|(_, scenario)| scenario)
            .filter(move |(scenario, _)| self.checks_socket_kind || *scenario != DATAGRAM)
    }
}

/// A run against the peer.
struct Served {
    run: Run,
    report: Value,
    /// The file that the peer put at the descriptor in the scenario `file`.
    file: PathBuf,
}

impl Served {
    fn names(&self) -> Vec<&str> {
        let marks = self.report["marks"].as_array().map(Vec::as_slice).unwrap_or_default();
        marks.iter().filter_map(|mark| mark["name"].as_str()).collect()
    }

    fn number(&self, mark: usize, key: &str) -> Result<u64> {
        let value = self.report["marks"][mark][key].as_u64();
        value.ok_or_else(|| format!("no {key} in mark {mark} of {}", self.report).into())
    }

    fn count(&self) -> u64 {
        self.report["count"].as_u64().unwrap_or(u64::MAX)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn below(path: &str) -> String {
    root().join(path).display().to_string()
}

/// Whether all `tools` are installed; reports a missing one.
fn has(name: &str, tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing = tools.iter().chain(&["python3"]).find(|tool| !is_here(tool));
    if let Some(tool) = missing {
        skipped(name, &format!("no {tool} here (make deps)"));
    }
    missing.is_none()
}

/// The interpreter itself: the first `python3` in the path may be a script that selects one slowly.
fn python() -> Result<String> {
    static FOUND: OnceLock<String> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.clone());
    }
    let mut command = Command::new("python3");
    command.args(["-c", "import sys; print(sys.executable)"]);
    let run = run_command(command)?;
    Ok(FOUND.get_or_init(|| run.stdout.trim_end().to_owned()).clone())
}

/// The environment in which every language finds its probe.
fn with_probes(mut command: Command) -> Command {
    command.env("PROBES", below("probes")).env("PYTHONPATH", below("probes/python"));
    command.env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local").env("GOPROXY", "off");
    command.env_remove("STRANDLINE_MARK_FD").current_dir(root());
    command
}

fn serve(folder: &Folder, scenario: &str, program: &Program, arguments: &[&str]) -> Result<Served> {
    let report = folder.0.join(format!("{}.json", scenario.replace('=', "-")));
    let file = folder.0.join(format!("{}.json.file", scenario.replace('=', "-")));
    let mut command = Command::new(python()?);
    command
        .args(["-E", "-S"])
        .arg(below("tests/subjects/probes/serve.py"))
        .arg(&report)
        .args([scenario, DESCRIPTOR]);
    command.args(&program.command).args(arguments);
    let run = run_command(with_probes(command))?;
    let text = std::fs::read_to_string(&report).map_err(|error| format!("{error}: {}", run.summary()))?;
    Ok(Served { run, report: serde_json::from_str(&text)?, file })
}

/// Builds with a compiler, which must succeed.
fn build(program: &str, arguments: &[&str], folder: &Path) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments);
    let mut command = with_probes(command);
    command.current_dir(folder);
    let run = run_command(command)?;
    if run.status == Some(0) {
        Ok(())
    } else {
        Err(format!("{program} {arguments:?}: {}", run.summary()).into())
    }
}

/// Checks every guarantee of a probe with `program`.
fn check(name: &str, folder: &Folder, program: &Program) -> Outcome {
    let marked = serve(folder, "serve", program, &[])?;
    check_marks(name, program, &marked)?;
    for (scenario, marks) in program.scenarios() {
        let other = serve(folder, scenario, program, &[])?;
        check_same_result(name, scenario, &marked, &other)?;
        let written = std::fs::metadata(&other.file).map_or(0, |file| file.len());
        if other.count() != marks || written != 0 {
            return Err(
                format!("{name}, {scenario}: marks {}, {written} bytes in its file", other.report).into()
            );
        }
    }
    if program.waits {
        check_marks(name, program, &serve(folder, "slow", program, &[])?)?;
    }
    if program.reuses {
        check_reused_descriptor(name, folder, program, &marked)?;
    }
    check_recorded(name, folder, program, &marked)?;
    let Some(crowd) = program.crowd else { return Ok(()) };
    let served = serve(folder, "serve", program, &["crowd", "300"])?;
    // Some subjects end threads early, so that the exact number of marks is unknown.
    if served.run.status != STATUS || served.count() <= crowd * 300 {
        return Err(format!("{name}, crowd: {}, {}", served.run.summary(), served.report).into());
    }
    Ok(())
}

/// Checks that the program itself sent all five marks at the right instants, and ended with its
/// status.
fn check_marks(name: &str, program: &Program, served: &Served) -> Outcome {
    let names = served.names();
    if served.run.status != STATUS || names.len() != 5 || names[..4] != MARKS || names[4] != "n".repeat(200) {
        return Err(format!("{name}: {}, marks {names:?}", served.run.summary()).into());
    }
    if !program.grows {
        return Ok(());
    }
    let pids: Vec<_> = (0..5).map(|mark| served.number(mark, "pid")).collect::<Result<_>>()?;
    if pids.iter().any(|&pid| Some(pid) != served.report["pid"].as_u64()) {
        return Err(format!("{name}: marks of {pids:?}, the program is {}", served.report["pid"]).into());
    }
    let resident = |mark| served.number(mark, "rss_kib");
    let (start, grown, freed) = (resident(0)?, resident(1)?, resident(2)?);
    if grown < start + GROWS_KIB || freed + SHRINKS_KIB > grown {
        return Err(format!("{name}: {start} KiB, grown {grown}, freed {freed}").into());
    }
    Ok(())
}

/// Runs the program under strandline: the recording must have the marks, and the memory at each
/// mark.
fn check_recorded(name: &str, folder: &Folder, program: &Program, marked: &Served) -> Outcome {
    let file = folder.0.join("recording").display().to_string();
    let mut arguments = vec!["run", "-o", &file];
    arguments
        .extend(program.ledgers.filter(|_| !full()).into_iter().flat_map(|ledgers| ["--ledger", ledgers]));
    arguments.push("--");
    arguments.extend(program.command.iter().map(String::as_str));
    let run = run_command(with_probes(strandline::command(&arguments)))?;
    // Standard error contains strandline's own messages too.
    if (run.status, &run.stdout) != (STATUS, &marked.run.stdout) {
        return Err(format!("{name}, run: {}, stdout {:?}", run.summary(), run.stdout).into());
    }
    let report = strandline::json(&["report", &file, "--format", "json"])?;
    let marks = report["marks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names: Vec<_> = marks.iter().filter_map(|mark| mark["name"].as_str()).collect();
    if names != marked.names() || report["exit"]["status"].as_i64() != STATUS.map(i64::from) {
        return Err(format!("{name}, run: marks {names:?}, exit {}", report["exit"]).into());
    }
    let resident = |mark: usize| marks[mark]["rss_bytes"].as_u64().unwrap_or(0) / 1024;
    if program.grows && (resident(1) < resident(0) + GROWS_KIB || resident(2) + SHRINKS_KIB > resident(1)) {
        return Err(format!("{name}, run: {} KiB, {}, {}", resident(0), resident(1), resident(2)).into());
    }
    Ok(())
}

/// A probe does not write to a file that meanwhile got the descriptor's number.
fn check_reused_descriptor(name: &str, folder: &Folder, program: &Program, marked: &Served) -> Outcome {
    let path = folder.0.join("reused");
    let other = serve(folder, "serve", program, &["reuse", &path.display().to_string()])?;
    check_same_result(name, "reuse", marked, &other)?;
    let written = std::fs::metadata(&path)?.len();
    if other.count() == 1 && written == 0 {
        return Ok(());
    }
    Err(format!("{name}: {} marks, {written} bytes in a file of the program's own", other.count()).into())
}

fn check_same_result(name: &str, scenario: &str, marked: &Served, other: &Served) -> Outcome {
    let (a, b) = (&marked.run, &other.run);
    if (a.status, &a.stdout, &a.stderr) == (b.status, &b.stdout, &b.stderr) {
        return Ok(());
    }
    Err(format!("{name}, {scenario}: the probe changed the program: {a:?}, {b:?}").into())
}

const C_WARNINGS: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-O1", "-pthread"];

fn c_subject(name: &str, compiler: &str, standard: &[&str]) -> Outcome {
    if !has(name, &[compiler]) {
        return Ok(());
    }
    let folder = Folder::new(&format!("probes-{compiler}"))?;
    let (include, source) = (format!("-I{}", below("probes/c")), below("tests/subjects/probes/subject.c"));
    let mut arguments = [&C_WARNINGS[..], standard, &[&include, "-o", "subject", &source]].concat();
    build(compiler, &arguments, &folder.0)?;
    let binary = folder.0.join("subject").display().to_string();
    check(name, &folder, &Program::new(&[&binary]).crowd(9))?;
    // The header alone, with the strictest compiler options.
    std::fs::write(
        folder.0.join("strict.c"),
        "#include <strandline.h>\nvoid f(void) { strandline_mark(\"a\"); }\n",
    )?;
    let strict = if compiler == "g++" { "-std=c++11" } else { "-std=c99" };
    let language = if compiler == "g++" { "c++" } else { "c" };
    arguments =
        vec![strict, "-pedantic", "-Wshadow", "-Wconversion", "-Wall", "-Wextra", "-Werror", &include];
    arguments.extend(["-x", language, "-c", "strict.c"]);
    build(compiler, &arguments, &folder.0)
}

#[test]
fn c() -> Outcome {
    c_subject(here!(), "gcc", &["-std=gnu99"])
}

#[test]
fn cpp() -> Outcome {
    c_subject(here!(), "g++", &["-std=c++11", "-x", "c++"])
}

#[test]
fn perl() -> Outcome {
    if !has(here!(), &["perl"]) {
        return Ok(());
    }
    let include = format!("-I{}", below("probes/perl"));
    // With taint checks, the strictest treatment of data from the environment.
    let program = Program::new(&["perl", "-T", &include, &below("tests/subjects/probes/subject.pl")]);
    check(here!(), &Folder::new("probes-perl")?, &program.crowd(2))
}

/// Tens of thousands of marks leave VmData unchanged to the page: the smallest possible leak, a
/// scalar, is 24 bytes.
#[test]
fn perl_marks_do_not_grow_memory() -> Outcome {
    if !has(here!(), &["perl"]) {
        return Ok(());
    }
    let include = format!("-I{}", below("probes/perl"));
    let program = Program::new(&["perl", &include, &below("tests/subjects/probes/subject.pl")]);
    let marks = repetitions(10_000, 100_000);
    let task = ["loop", &marks.to_string()];
    let served = serve(&Folder::new("probes-perl-grow")?, "serve", &program, &task)?;
    assert_eq!((served.names(), served.count()), (vec!["before", "after"], marks + 102));
    assert_eq!(served.number(0, "data_kib")?, served.number(1, "data_kib")?);
    Ok(())
}

#[test]
fn cpython() -> Outcome {
    if !has(here!(), &[]) {
        return Ok(());
    }
    let source = below("tests/subjects/probes/subject.py");
    let program = Program::new(&[&python()?, "-X", "dev", "-W", "error", &source]).crowd(4).share(0);
    check(here!(), &Folder::new("probes-python")?, &program)
}

/// A child has no other threads: a mark in it must not wait for what another thread imports.
#[test]
fn cpython_marks_in_a_child_forked_during_the_first_mark() -> Outcome {
    if !has(here!(), &[]) {
        return Ok(());
    }
    let program = Program::new(&[&python()?, &below("tests/subjects/probes/fork_in_import.py")]);
    let served = serve(&Folder::new("probes-python-fork")?, "serve", &program, &[])?;
    assert_eq!(served.run.status, Some(7), "{}", served.run.summary());
    assert_eq!(served.names(), ["first", "child", "after"]);
    Ok(())
}

#[test]
fn lisp() -> Outcome {
    if !has(here!(), &["sbcl"]) {
        return Ok(());
    }
    let program = Program::new(&["sbcl", "--script", &below("tests/subjects/probes/subject.lisp")]);
    let program = program.crowd(5).share(2);
    check(here!(), &Folder::new("probes-lisp")?, &program)
}

fn d_subject(name: &str, compiler: &str, arguments: &[&str]) -> Outcome {
    if !has(name, &[compiler]) {
        return Ok(());
    }
    let folder = Folder::new(&format!("probes-{compiler}"))?;
    let sources = [below("probes/d/strandline.d"), below("tests/subjects/probes/subject.d")];
    build(compiler, &[arguments, &[&sources[0], &sources[1]]].concat(), &folder.0)?;
    let binary = folder.0.join("subject").display().to_string();
    check(name, &folder, &Program::new(&[&binary]).crowd(5))
}

#[test]
fn d_ldc() -> Outcome {
    d_subject(here!(), "ldc2", &["-w", "-of=subject"])
}

#[test]
fn d_gdc() -> Outcome {
    d_subject(here!(), "gdc", &["-Wall", "-Wextra", "-Werror", "-o", "subject"])
}

#[test]
fn go() -> Outcome {
    if !has(here!(), &["go"]) {
        return Ok(());
    }
    let folder = Folder::new("probes-go")?;
    std::fs::create_dir_all(folder.0.join("strandline"))?;
    std::fs::copy(below("probes/go/strandline.go"), folder.0.join("strandline/strandline.go"))?;
    std::fs::copy(below("tests/subjects/probes/subject.go"), folder.0.join("main.go"))?;
    std::fs::write(folder.0.join("go.mod"), "module subject\n\ngo 1.19\n")?;
    build("go", &["build", "-o", "program", "."], &folder.0)?;
    let binary = folder.0.join("program").display().to_string();
    check(here!(), &folder, &Program::new(&[&binary]).crowd(8).share(1))
}

#[test]
fn node() -> Outcome {
    if !has(here!(), &["node"]) {
        return Ok(());
    }
    let program = Program::new(&["node", "--expose-gc", &below("tests/subjects/probes/subject.js")]).share(0);
    check(here!(), &Folder::new("probes-node")?, &program)
}

#[test]
fn java() -> Outcome {
    if !has(here!(), &["javac", "java"]) {
        return Ok(());
    }
    let folder = Folder::new("probes-java")?;
    let sources =
        [below("probes/java/strandline/Strandline.java"), below("tests/subjects/probes/Subject.java")];
    // Without its second compiler a JVM starts sooner and behaves the same.
    let javac = ["-J-XX:TieredStopAtLevel=1", "-Xlint:all", "-d", ".", &sources[0], &sources[1]];
    build("javac", &javac, &folder.0)?;
    let classes = folder.0.display().to_string();
    // The options open the class that newer versions would warn about, and have no effect on older
    // ones.
    let program = Program::new(&[
        "java",
        "--add-opens",
        "java.base/java.io=ALL-UNNAMED",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:MaxDirectMemorySize=256m",
        "-cp",
        &classes,
        "Subject",
    ]);
    // Java cannot open a file at a chosen descriptor.
    let program = Program { reuses: false, ledgers: Some("exit"), ..program.crowd(4).share(2) };
    check(here!(), &folder, &program)
}

#[test]
fn ruby() -> Outcome {
    if !has(here!(), &["ruby"]) {
        return Ok(());
    }
    let include = format!("-I{}", below("probes/ruby"));
    let program =
        Program::new(&["ruby", "-w", &include, &below("tests/subjects/probes/subject.rb")]).crowd(4).share(1);
    check(here!(), &Folder::new("probes-ruby")?, &program)
}

/// The file of a tool, with links resolved.
fn found(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find_map(|folder| folder.join(tool).canonicalize().ok())
}

/// Each installed shell, also with a trap set by the script.
#[test]
fn shell() -> Outcome {
    let shells = [&["sh"][..], &["dash"], &["bash"], &["zsh"], &["ksh"], &["mksh"], &["busybox", "sh"]];
    let source = below("tests/subjects/probes/subject.sh");
    for (number, shell) in shells.into_iter().enumerate() {
        if !has(here!(), &shell[..1]) {
            continue;
        }
        if shell[0] == "sh" && found("sh") == found("dash") {
            // The same program under two names, with the same behaviour.
            continue;
        }
        let name = format!("{}, {}", here!(), shell[0]);
        let program = Program::new(&[shell, &[source.as_str()]].concat()).share(number);
        let program = Program { grows: false, checks_socket_kind: false, waits: false, ..program };
        let folder = Folder::new(&format!("probes-shell-{}", shell[0]))?;
        check(&name, &folder, &program)?;
        // A mark neither runs nor changes the trap, with and without a peer.
        let served =
            ["serve", "hangup", "absent"].map(|scenario| serve(&folder, scenario, &program, &["trap", ""]));
        let [served, hangup, absent] = served;
        let (served, hangup, absent) = (served?, hangup?, absent?);
        check_same_result(&name, "trap", &absent, &served)?;
        check_same_result(&name, "trap, hangup", &absent, &hangup)?;
        assert!(absent.run.stdout.contains("echo trapped"), "{:?}", absent.run);
    }
    Ok(())
}
