//! Programs that stop their own threads for each collection survive a strandline that is killed or
//! stopped at random instants of every verb that stops them. One thread of each collects endlessly
//! (`tests/subjects/worlds`).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::waiting::{is_traced, until, until_free, until_true};
use crate::support::{Outcome, Result, Subject, full, here, jdks, repetitions, skipped, strandline};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Arguments of the strandline run that is interrupted.
type Verb = &'static [&'static str];

const STOPPED: Verb = &["explain", "--quiet-for", "0s", "--snapshot=never"];
const COPIED: Verb = &["explain", "--quiet-for", "0s", "--snapshot=try"];
const RECLAIM: Verb = &["reclaim", "--quiet-for", "0s", "--remedy", "malloc_trim"];
const COLLECT: Verb = &["reclaim", "--quiet-for", "0s", "--remedy", "jvm_gc"];

/// Results of the interruptions by one signal.
#[derive(Debug, Default)]
struct Tally {
    sent: u64,
    /// Signals sent while strandline traced the program.
    while_held: u64,
    /// The longest time from the signal until nothing traced or stopped the program.
    longest: Duration,
}

/// A generator of delays: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        limit.mul_f64(((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

fn start(subject: &Subject, verb: Verb) -> Result<Child> {
    let mut command = strandline::command(verb);
    command.arg(subject.pid_text()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn()?)
}

/// Number of collections the program has made.
fn collections(subject: &mut Subject) -> Result<u64> {
    let counts = subject.ask(b'p')?;
    if counts["wrong"] != 0 {
        return Err(format!("wrong bytes: {counts}").into());
    }
    counts["collections"].as_u64().ok_or_else(|| format!("no counts: {counts}").into())
}

/// Whether process `pid` has a child that has not ended. A snapshot whose strandline was killed
/// stays as a zombie.
fn has_running_child(pid: i32) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stat = |path: PathBuf| std::fs::read_to_string(path.join("stat")).ok();
    processes.filter_map(|entry| stat(entry.path())).any(|stat| {
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        fields.next() != Some("Z") && fields.next().and_then(|parent| parent.parse().ok()) == Some(pid)
    })
}

/// When a signal is sent.
enum When {
    /// After this time.
    After(Duration),
    /// Once strandline traces the program, or has ended.
    Held,
}

/// Runs `verb` once, sends strandline a signal, and waits until the program continues as before.
fn interrupt(subject: &mut Subject, verb: Verb, signal: i32, when: &When, tally: &mut Tally) -> Outcome {
    let pid = subject.pid();
    let before = collections(subject)?;
    let mut child = start(subject, verb)?;
    match when {
        When::After(delay) => std::thread::sleep(*delay),
        When::Held => while !is_traced(pid) && child.try_wait()?.is_none() {},
    }
    let own = child.id().cast_signed();
    // The kernel may reuse the id of a reaped process.
    let sent = Instant::now();
    if child.try_wait()?.is_none() {
        strandline_sys::signal::send(own, signal)?;
        tally.sent += 1;
        tally.while_held += u64::from(is_traced(pid));
    }
    until_free(pid)?;
    tally.longest = tally.longest.max(sent.elapsed());
    until_true("the snapshots to end", || !has_running_child(pid))?;
    until("the program to continue", || Ok((collections(subject)? > before + 1).then_some(())))?;
    // The watchdog may have ended strandline.
    if child.try_wait()?.is_none() {
        strandline_sys::signal::send(own, SIGCONT)?;
    }
    child.wait()?;
    until_free(pid)
}

/// Interrupts each of `verbs` equally often by SIGKILL and by SIGSTOP: in one half of the turns
/// while strandline holds the program, in the other at a random instant. Afterwards the program
/// ends normally.
fn check_survives(test: &str, mut subject: Subject, verbs: &[Verb]) -> Outcome {
    let mut random = Random(42);
    let (mut killed, mut stopped) = (Tally::default(), Tally::default());
    for verb in verbs {
        let began = Instant::now();
        let status = start(&subject, verb)?.wait()?;
        // A refusal is accepted too: some collectors allow no call.
        assert!(matches!(status.code(), Some(0 | 3)), "{verb:?}: {status}");
        let duration = began.elapsed();
        for turn in 0..repetitions(1, 80) {
            for (signal, tally) in [(SIGKILL, &mut killed), (SIGSTOP, &mut stopped)] {
                let when = if turn % 2 == 0 { When::Held } else { When::After(random.below(duration)) };
                interrupt(&mut subject, verb, signal, &when, tally)?;
            }
        }
    }
    // The time for which it is held depends on the machine: at least one signal of each kind must
    // hit it.
    while killed.while_held == 0 {
        interrupt(&mut subject, verbs[0], SIGKILL, &When::Held, &mut killed)?;
    }
    while stopped.while_held == 0 {
        interrupt(&mut subject, verbs[0], SIGSTOP, &When::Held, &mut stopped)?;
    }
    let collections = collections(&mut subject)?;
    eprintln!("{test}: SIGKILL {killed:?}; SIGSTOP {stopped:?}; {collections} collections");
    let status = subject.finish()?;
    if status.success() { Ok(()) } else { Err(format!("the program ended with {status}").into()) }
}

/// Builds a program of `tests/subjects/worlds` with a compiler and its options, in which `{}`
/// is the output file; `None` without the compiler.
fn build(compiler: &[&str], source: &str, program: &str) -> Result<Option<PathBuf>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/worlds").join(source);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("subjects/worlds");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(program);
    let mut command = Command::new(compiler[0]);
    command.args(compiler[1..].iter().map(|word| word.replace("{}", &path.to_string_lossy())));
    command.arg(source).current_dir(&folder).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        output => match output? {
            output if output.status.success() => Ok(Some(path)),
            output => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
        },
    }
}

#[test]
fn a_program_with_libgc_survives() -> Outcome {
    let subject = Subject::start("collector_signals", &[])?;
    if subject.ready == "missing" {
        skipped(here!(), "no libgc.so.1 here (scripts/deps installs guile)");
        return Ok(());
    }
    check_survives(here!(), subject, &[STOPPED, COPIED, RECLAIM])
}

/// Whether the programs run whose collectors stop threads by signals as libgc's does.
fn runs_others(test: &str) -> bool {
    if !full() {
        skipped(test, "half a minute, and libgc and Go are tried (make test-full)");
    }
    full()
}

#[test]
fn a_program_in_d_survives() -> Outcome {
    if !runs_others(here!()) {
        return Ok(());
    }
    let Some(program) = build(&["ldc2", "-O", "-of={}"], "world.d", "d")? else {
        skipped(here!(), "no ldc2 here (make deps)");
        return Ok(());
    };
    check_survives(here!(), Subject::start_command(Command::new(program))?, &[STOPPED, COPIED, RECLAIM])
}

#[test]
fn a_program_on_mono_survives() -> Outcome {
    if !runs_others(here!()) {
        return Ok(());
    }
    let program = build(&["mcs", "-out:{}"], "World.cs", "World.exe")?;
    let has_mono = Command::new("mono").arg("--version").output().is_ok();
    let Some(program) = program.filter(|_| has_mono) else {
        skipped(here!(), "no mono or mcs here (make deps)");
        return Ok(());
    };
    let mut command = Command::new("mono");
    command.arg(program);
    check_survives(here!(), Subject::start_command(command)?, &[STOPPED, COPIED, RECLAIM])
}

#[test]
fn a_program_in_go_survives() -> Outcome {
    let Some(program) = build(&["go", "build", "-o", "{}"], "world.go", "go")? else {
        skipped(here!(), "no go here (apt-get install golang-go)");
        return Ok(());
    };
    let verbs: &[Verb] = if full() { &[STOPPED, COPIED, RECLAIM] } else { &[COPIED, RECLAIM] };
    check_survives(here!(), Subject::start_command(Command::new(program))?, verbs)
}

#[test]
fn a_program_in_java_survives() -> Outcome {
    if !runs_others(here!()) {
        return Ok(());
    }
    let Some(jdk) = jdks::all(here!()).into_iter().next() else { return Ok(()) };
    // javac names the file by the class.
    let Some(class) = build(&["javac", "--release", "11", "-d", "."], "World.java", "World.class")? else {
        skipped(here!(), "no javac here (make deps)");
        return Ok(());
    };
    let mut command = Command::new(jdk.java);
    command.args(["-Xmx64m", "-Xlog:disable", "-cp"]).arg(class.with_file_name("")).arg("World");
    check_survives(here!(), Subject::start_command(command)?, &[STOPPED, COPIED, RECLAIM, COLLECT])
}
