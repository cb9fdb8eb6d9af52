//! Subjects of these tests: C programs, compiled once, started, and always killed.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Maximum time to wait for a state: a guard against a hang, long enough for a slow and busy
/// machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// A running subject, killed on drop.
pub struct Subject {
    pub child: Child,
    /// The words it printed when it was ready, without the first.
    pub words: Vec<String>,
}

/// The compiled `ending.c`.
pub fn ending() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled("tests/subjects/ending.c"))
}

/// The compiled `layout.c`.
pub fn layout() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled("tests/subjects/layout.c"))
}

fn compiled(source: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let name = source.file_stem().unwrap().to_string_lossy();
    let program = std::env::temp_dir().join(format!("strandline-{name}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("cc is installed").success(), "{} compiles", source.display());
    program
}

impl Subject {
    /// Starts a program and waits until it prints that it is ready.
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut words = line.split_whitespace().map(str::to_owned);
        assert_eq!(words.next().as_deref(), Some("ready"), "{arguments:?}");
        Self { words: words.collect(), child }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Makes it do its task.
    pub fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the state of a process or thread in /proc; `None` if it does not exist.
pub fn state(path: &str) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{path}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Waits until `holds`; a hang is a failure.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
