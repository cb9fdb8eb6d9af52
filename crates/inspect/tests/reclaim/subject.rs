//! Subjects of these tests: C programs, compiled once, started, controlled, and always killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use strandline_inspect::remedy::malloc_trim::{self, TrimRequest};
use strandline_inspect::remedy::{Applied, Refusal};
use strandline_process::elf::Object;
use strandline_process::map::AddressSpace;
use strandline_process::procfs::Process;

/// Maximum time to wait for a state: a guard against a hang, long enough for a slow and busy
/// machine.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until `holds`; a hang is a failure.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A thread of a subject.
pub struct NamedThread {
    /// What it does.
    pub name: String,
    pub tid: i32,
}

/// What a subject that counts has counted.
#[derive(Debug)]
pub struct Counts {
    pub counted: u64,
    pub wrong: u64,
}

/// A running subject, killed on drop.
pub struct Subject {
    pub child: Child,
    /// Addresses of malloc's locks.
    pub locks: Vec<u64>,
    pub threads: Vec<NamedThread>,
    /// The memory whose zero pages may be released.
    pub range: Option<Range<u64>>,
    /// Whether it lacks a library that it needs.
    pub is_missing: bool,
    pub output: BufReader<ChildStdout>,
}

/// The compiled subject `name`.
fn compiled(name: &str) -> PathBuf {
    static BUILT: OnceLock<Vec<(&str, PathBuf)>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/subjects");
        let directory = std::env::temp_dir().join(format!("strandline-reclaim-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        ["chaos_target", "reclaim_target", "contained", "collector_signals", "allocating_handler"]
            .map(|name| {
                let program = directory.join(name);
                let mut compiler = Command::new("cc");
                compiler.args(["-O1", "-pthread", "-o"]).arg(&program);
                compiler.arg(sources.join(format!("{name}.c"))).args(["-lm", "-ldl"]);
                assert!(compiler.status().expect("cc is installed").success(), "{name}.c compiles");
                (name, program)
            })
            .to_vec()
    });
    built.iter().find(|(built, _)| *built == name).unwrap().1.clone()
}

impl Subject {
    /// Starts a subject and waits until it prints that it is ready.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(compiled(program));
        command.args(arguments);
        Self::start_command(command)
    }

    /// Starts a subject under a seccomp filter like that of a container.
    pub fn start_contained(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(compiled("contained"));
        command.arg(compiled(program)).args(arguments);
        Self::start_command(command)
    }

    fn start_command(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (mut locks, mut threads, mut range, mut is_missing) = (Vec::new(), Vec::new(), None, false);
        loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "{command:?} ended early");
            let words: Vec<&str> = line.split_whitespace().collect();
            let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
            match words[..] {
                ["lock", address] => locks.push(hex(address)),
                ["thread", name, tid] => {
                    threads.push(NamedThread { name: name.to_owned(), tid: tid.parse().unwrap() });
                }
                ["range", start, end] => range = Some(hex(start)..hex(end)),
                ["missing"] => is_missing = true,
                ["ready"] => return Self { child, locks, threads, range, is_missing, output },
                _ => panic!("{line}"),
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn process(&self) -> Process {
        Process::open(self.pid()).unwrap()
    }

    /// Waits until thread `tid` sleeps in the kernel.
    pub fn settle(&self, tid: i32) {
        self.assert_state(tid, 'S');
    }

    /// Waits until thread `tid` is in `state` and nothing traces it; fails if it ends instead.
    pub fn assert_state(&self, tid: i32, state: char) {
        until(&format!("thread {tid} comes to be in state {state}"), || {
            let current = self.status_field(tid, "State:");
            assert!(
                !current.is_empty() && !current.starts_with(['Z', 'X']),
                "thread {tid} ended, not in state {state}"
            );
            current.starts_with(state) && self.status_field(tid, "TracerPid:") == "0"
        });
    }

    /// Whether thread `tid` sleeps, untraced and with no signal pending.
    pub fn rests(&self, tid: i32) -> bool {
        let is = |field, value: &str| self.status_field(tid, field).starts_with(value);
        is("State:", "S") && is("TracerPid:", "0") && is("SigPnd:", "0000000000000000")
    }

    /// Whether thread `tid` sleeps in futex(2), which is number 202.
    pub fn waits_for_lock(&self, tid: i32) -> bool {
        let call = std::fs::read_to_string(format!("/proc/{}/task/{tid}/syscall", self.pid()));
        call.is_ok_and(|call| call.starts_with("202 "))
    }

    /// Asks a subject that counts for its counts.
    pub fn counts(&mut self) -> Counts {
        self.child.stdin.as_mut().unwrap().write_all(b"c").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut numbers = line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
        let mut next = || numbers.next().unwrap_or_else(|| panic!("no count in {line:?}"));
        Counts { counted: next(), wrong: next() }
    }

    pub fn status_field(&self, tid: i32, field: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/task/{tid}/status", self.pid()));
        let text = text.unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("").trim().to_owned()
    }

    pub fn tids(&self) -> Vec<i32> {
        std::fs::read_dir(format!("/proc/{}/task", self.pid()))
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Waits until no thread is traced or stopped, as the kernel leaves them when a tracer dies.
    pub fn assert_untouched(&self) {
        let touched = |tid: &i32| {
            let state = self.status_field(*tid, "State:");
            state.starts_with(['t', 'T'])
                || !["", "0"].contains(&self.status_field(*tid, "TracerPid:").as_str())
        };
        until("no thread is left stopped or traced", || !self.tids().iter().any(touched));
    }

    /// Closes its standard input and returns the rest of its output and its status.
    pub fn finish(mut self) -> (String, ExitStatus) {
        drop(self.child.stdin.take());
        let mut status = None;
        until("the subject ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (rest, status.unwrap())
    }

    pub fn space(&self) -> AddressSpace {
        self.process().address_space().unwrap()
    }

    pub fn libc(&self) -> Object {
        let space = self.space();
        let libc = space
            .mappings()
            .iter()
            .find(|mapping| mapping.permissions.execute && mapping.name.contains("/libc.so"));
        Object::open(&self.process(), &space, libc.expect("a dynamic glibc")).unwrap()
    }

    /// Applies malloc_trim, in one thread if given.
    pub fn trim(&self, wait_seconds: u64, thread: Option<i32>) -> Result<Applied, Refusal> {
        let libc = self.libc();
        let space = self.space();
        let heaps = space.mappings().iter().filter(|mapping| mapping.is_private_anonymous());
        let request = TrimRequest {
            function: libc.symbol_address("malloc_trim").unwrap(),
            libc: &libc,
            code: strandline_allocators::glibc::code::ranges,
            locks: self.locks.clone(),
            heaps: heaps.map(|mapping| mapping.start..mapping.end).collect(),
            wait: Duration::from_secs(wait_seconds),
            watch: Duration::ZERO,
            thread,
        };
        malloc_trim::apply(self.pid(), &request)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // A failure does not matter, whether the subject was reaped already or not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
