//! Tests against real SBCLs: the system's, and those that scripts/fetch-sbcls left in the folder
//! that STRANDLINE_SBCLS names. Those that are missing are skipped with a message.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::facts::Sbcl;
use super::{locate, read};
use strandline_claims::refinements::Matches;
use strandline_claims::runtime::{Busy, Context, FinishContext, Reading};
use strandline_process::map::AddressSpace;
use strandline_process::pages::Residency;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_process::resident::Resident;
use strandline_process::smaps::Smaps;
use strandline_process::stacks::ThreadFacts;
use strandline_process::target::hold::on_own_thread;
use strandline_process::target::live::ByPid;
use strandline_process::target::stop::{Stopped, Transfers};

/// A Lisp that evaluates forms, one a line, and answers each with its output and its own line.
const SERVER: &str = r#"(progn (defpackage :subject (:use :cl :sb-ext)) (in-package :subject)
 (setf *compile-print* nil)
 (loop for line = (read-line *standard-input* nil) while line
       do (eval (read-from-string line)) (format t "~&;done~%") (finish-output)))"#;

/// What each test makes: messages that are kept, and others that are dropped after they were
/// raised.
const FILL: &str = r#"(progn (defstruct message a b c) (defvar *keep* nil) (defvar *drop* nil)
 (defvar *weak* (make-hash-table :weakness :key :test 'eq))
 (dotimes (i 100000) (push (make-message :a i :b (list i) :c (make-string 3)) *drop*))
 (dotimes (i 20000) (push (make-message :a i :b (list i) :c (make-string 3)) *keep*))
 (dotimes (i 1000) (setf (gethash (list i) *weak*) (make-array 100 :initial-element i)))
 (push (make-array 1000000) *drop*) (push (make-array 2000000 :element-type '(unsigned-byte 8)) *keep*)
 (gc) (gc) (setf *drop* nil))"#;

/// A guard against a hang: how long a Lisp is busy depends on the machine.
const PATIENCE: Duration = Duration::from_secs(600);

struct Lisp {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Lisp {
    fn start(sbcl: &str) -> Option<Self> {
        let arguments =
            ["--noinform", "--no-sysinit", "--no-userinit", "--disable-debugger", "--eval", SERVER];
        let mut child = Command::new(sbcl)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        Some(Self { child, input, output })
    }

    fn eval(&mut self, form: &str) -> String {
        writeln!(self.input, "{}", form.replace('\n', " ")).unwrap();
        self.input.flush().unwrap();
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "SBCL ended: {answer}");
            if line == ";done\n" {
                return answer;
            }
            answer.push_str(&line);
        }
    }

    fn number(&mut self, form: &str) -> u64 {
        let answer = self.eval(&format!("(format t \"~d~%\" {form})"));
        answer.trim().parse().unwrap_or_else(|_| panic!("{form}: {answer}"))
    }

    fn read(&self, path_to: Option<&str>) -> Reading {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match read_process(self.child.id() as i32, path_to) {
                Ok(reading) => return reading,
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
        }
        panic!("always busy");
    }
}

impl Drop for Lisp {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the SBCL of a process as `explain` does.
fn read_process(pid: i32, path_to: Option<&str>) -> Result<Reading, Busy> {
    let path_to = path_to.map(str::to_owned);
    let read = move || {
        let process = Process::open(pid).unwrap();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        let found = locate::find(&process, &space);
        assert_eq!(found.len(), 1, "one SBCL");
        let stopped = Stopped::stop_within(&process, PATIENCE, Transfers::Stop).unwrap();
        let threads: Vec<ThreadFacts> = stopped
            .threads()
            .map(|thread| ThreadFacts {
                tid: thread.tid,
                stack_pointer: thread.registers.rsp,
                fs_base: thread.registers.fs_base,
                ..ThreadFacts::default()
            })
            .collect();
        let smaps = Smaps::read(process.open_file("smaps").unwrap()).unwrap();
        let residency = Residency::read(&process.open_file("pagemap").unwrap(), &smaps.entries).unwrap();
        let (space, _) = AddressSpace::from_mappings(smaps.entries.iter().map(|entry| entry.mapping.clone()));
        let resident = |range: AddressRange| {
            let runs = residency.runs_in(range.into()).filter(|run| run.is_anonymous);
            runs.map(|run| AddressRange::new(run.start, run.end)).collect()
        };
        let live = ByPid::new(pid);
        let memory = Resident::new(&live, &residency);
        let context = Context {
            threads: &threads,
            workers: 2,
            ..Context::of_image(&memory, &process, &space, &resident)
        };
        let mut reading = read(&context, &found[0])?;
        drop(stopped);
        reading.finish(&FinishContext {
            workers: 2,
            path_to: path_to.as_deref(),
            matched: &Matches::default(),
            by_allocator: &[],
            progress: &|_, _, _| {},
        });
        Ok(reading)
    };
    on_own_thread(PATIENCE, read).unwrap()
}

fn sbcls() -> Vec<String> {
    let mut found = vec!["sbcl".to_owned()];
    if let Some(folder) = std::env::var_os("STRANDLINE_SBCLS") {
        let suites = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        found.extend(
            suites
                .map(|suite| suite.path().join("sbcl"))
                .filter(|path| path.exists())
                .map(|path| path.to_string_lossy().into_owned()),
        );
    }
    found.retain(|sbcl| {
        let runs = Command::new(sbcl).arg("--version").output().is_ok_and(|output| output.status.success());
        if !runs {
            eprintln!("skipped: no {sbcl} here");
        }
        runs
    });
    found
}

fn figures(reading: &Reading) -> Sbcl {
    assert_eq!(reading.caveats, [], "no caveats");
    reading.facts.details("sbcl").expect("figures")
}

#[test]
fn figures_and_a_full_collection_agree_with_sbcl() {
    for sbcl in sbcls() {
        let mut lisp = Lisp::start(&sbcl).unwrap();
        lisp.eval(FILL);
        let usage = lisp.number("(sb-kernel:dynamic-usage)");
        let reading = lisp.read(None);
        let figures = figures(&reading);
        let version = reading.facts.version.clone().unwrap_or_default();
        assert_eq!(figures.dynamic_usage_bytes, usage, "{version}");
        assert_eq!(figures.dynamic_space_bytes, lisp.number("(sb-ext:dynamic-space-size)"));
        assert_eq!(figures.bytes_consed_between_gcs, Some(lisp.number("(sb-ext:bytes-consed-between-gcs)")));
        for generation in &figures.generations[..7] {
            let number = generation.number;
            let bytes = lisp.number(&format!("(sb-ext:generation-bytes-allocated {number})"));
            assert_eq!(generation.bytes_allocated, bytes, "{version}, generation {number}");
            assert_eq!(generation.bytes_allocated_kept, bytes);
            let collections = lisp.number(&format!("(sb-ext:generation-number-of-gcs {number})"));
            assert_eq!(generation.collections, collections);
            let before = format!("(sb-ext:generation-number-of-gcs-before-promotion {number})");
            assert_eq!(generation.collections_before_promotion, lisp.number(&before));
            let live_and_dead = generation.live_bytes.unwrap()
                + generation.dead_bytes.unwrap()
                + generation.filler_bytes.unwrap();
            let open = if number == 0 { figures.open_region_bytes } else { 0 };
            assert_eq!(
                live_and_dead,
                bytes + open,
                "{version}, generation {number}: every byte is live, dead or a filler"
            );
        }
        let dead = figures.dead_by_type.iter().find(|of_type| of_type.type_name == "MESSAGE").unwrap();
        assert_eq!(dead.instances, 100_000, "{version}");
        let live = figures.live_by_type.iter().find(|of_type| of_type.type_name == "MESSAGE").unwrap();
        assert_eq!(live.instances, 20_000, "{version}");
        lisp.eval("(gc :full t)");
        let actual = lisp.number("(sb-kernel:dynamic-usage)");
        let predicted = figures.usage_after_full_gc_bytes.unwrap();
        assert!(
            predicted.abs_diff(actual) * 50 < usage,
            "{version}: {predicted} predicted, {actual} after, of {usage}"
        );
        let after = lisp.read(None);
        assert!(
            !self::figures(&after).dead_by_type.iter().any(|of_type| of_type.type_name == "MESSAGE"),
            "{version}: a full collection takes all that was dead"
        );
    }
}

fn instances(list: &[super::facts::TypeBytes], name: &str) -> u64 {
    list.iter().find(|of_type| of_type.type_name == name).map_or(0, |of_type| of_type.instances)
}

/// In each table, one object of a pair is also kept elsewhere. The last list holds the numbers that
/// must stay live.
#[test]
fn weak_tables_keep_entries_by_their_weakness() {
    const FORM: &str = r#"(progn (defstruct k-k) (defstruct k-v) (defstruct v-k) (defstruct v-v)
     (defstruct b-k) (defstruct b-v) (defstruct o-k) (defstruct o-v) (defvar *keep* nil)
     (defvar *k* (make-hash-table :test 'eq :weakness :key)) (defvar *v* (make-hash-table :test 'eq :weakness :value))
     (defvar *b* (make-hash-table :test 'eq :weakness :key-and-value))
     (defvar *o* (make-hash-table :test 'eq :weakness :key-or-value))
     (dotimes (i 20000)
      (let ((k (make-k-k))) (push k *keep*) (setf (gethash k *k*) (make-k-v)))
      (setf (gethash (make-k-k) *k*) (make-k-v))
      (let ((v (make-v-v))) (push v *keep*) (setf (gethash (make-v-k) *v*) v))
      (setf (gethash (make-v-k) *v*) (make-v-v))
      (let ((k (make-b-k))) (push k *keep*) (setf (gethash k *b*) (make-b-v)))
      (let ((v (make-o-v))) (push v *keep*) (setf (gethash (make-o-k) *o*) v))
      (let ((k (make-o-k))) (push k *keep*) (setf (gethash k *o*) (make-o-v)))))"#;
    for sbcl in sbcls() {
        let mut lisp = Lisp::start(&sbcl).unwrap();
        lisp.eval(FORM);
        lisp.eval("(fill (make-array 5000) 0)");
        let reading = lisp.read(None);
        let live = &figures(&reading).live_by_type;
        let dead = &figures(&reading).dead_by_type;
        let counts = |name| (instances(live, name), instances(dead, name));
        let version = &reading.facts.version;
        for (name, kept, total) in [
            ("K-K", 20_000, 40_000),
            ("K-V", 20_000, 40_000),
            ("V-K", 20_000, 40_000),
            ("V-V", 20_000, 40_000),
            ("B-K", 20_000, 20_000),
            ("B-V", 0, 20_000),
            ("O-K", 40_000, 40_000),
            ("O-V", 40_000, 40_000),
        ] {
            // The last object made may still be in a register or on the stack.
            let (live, dead) = counts(name);
            assert!(live.abs_diff(kept) <= 2, "{version:?}: {live} live {name} of {kept}");
            assert!(live + dead == total || dead == 0, "{version:?}: {live} and {dead} {name} of {total}");
        }
    }
}

#[test]
fn fillers_beside_what_stacks_pin_are_not_dead() {
    const FORM: &str = r#"(progn (defvar *l* (loop for i below 200000 collect (list i i)))
     (defvar *ready* (sb-thread:make-semaphore))
     (dotimes (i 10) (let ((k (nthcdr (* i 9000) *l*)))
      (sb-thread:make-thread (lambda (x) (let ((v (make-array 400))) (declare (dynamic-extent v))
       (loop for j below 400 for c = x then (nthcdr 20 c) do (setf (aref v j) (car c)) (setf (cdr (aref v j)) nil))
       (sb-thread:signal-semaphore *ready*) (sleep 600) (print v))) :arguments (list k))))
     (dotimes (i 10) (sb-thread:wait-on-semaphore *ready*))
     (setf *l* nil) (gc :full t) (gc :full t))"#;
    for sbcl in sbcls() {
        let mut lisp = Lisp::start(&sbcl).unwrap();
        lisp.eval(FORM);
        let reading = lisp.read(None);
        let ours = figures(&reading);
        let version = &reading.facts.version;
        let fillers: u64 = ours.generations.iter().filter_map(|generation| generation.filler_bytes).sum();
        assert!(fillers > 500_000, "{version:?}: {fillers} bytes of fillers");
        assert_eq!(instances(&ours.dead_by_type, "filler"), 0);
        let older: u64 = ours.generations[1..].iter().filter_map(|generation| generation.dead_bytes).sum();
        assert!(older < 100_000, "{version:?}: {older} bytes dead right after a full collection");
    }
}

#[test]
fn what_a_global_function_closes_over_is_live() {
    const FORM: &str = r#"(progn (defstruct closed a)
     (dotimes (i 2000) (let ((m (make-closed :a i)))
      (setf (fdefinition (intern (format nil "FN-~d" i))) (lambda () m)))) (gc :full t))"#;
    for sbcl in sbcls() {
        let mut lisp = Lisp::start(&sbcl).unwrap();
        lisp.eval(FORM);
        let reading = lisp.read(None);
        let ours = figures(&reading);
        assert_eq!(instances(&ours.live_by_type, "CLOSED"), 2000, "{:?}", reading.facts.version);
        assert_eq!(instances(&ours.dead_by_type, "CLOSED"), 0, "{:?}", reading.facts.version);
    }
}

#[test]
fn a_live_sample_has_a_path_from_a_root() {
    for sbcl in sbcls() {
        let mut lisp = Lisp::start(&sbcl).unwrap();
        lisp.eval("(progn (defstruct kept) (defvar *vault* (list 1 (vector 2 (make-kept)))))");
        lisp.eval("(gc)");
        let reading = lisp.read(Some("KEPT"));
        let path = figures(&reading).path.clone().expect("there is a path");
        let types: Vec<&str> = path.steps.iter().map(|step| step.type_name.as_str()).collect();
        assert!(types.ends_with(&["cons", "simple-vector", "KEPT"]), "{types:?} from {}", path.root);
        assert_eq!(path.steps[types.len() - 2].word, Some(3), "the second element");
        assert_eq!(figures(&lisp.read(Some("NO-SUCH"))).path, None);
    }
}

#[test]
fn threads_that_allocate_are_read_at_any_instant() {
    for sbcl in sbcls() {
        let mut lisp = Lisp::start(&sbcl).unwrap();
        lisp.eval(
            "(progn (defvar *stop* nil) (dotimes (i 3) (sb-thread:make-thread (lambda () \
             (loop until *stop* do (make-array 100) (list 1 2 3) (make-string 50))))))",
        );
        for _ in 0..6 {
            let reading = lisp.read(None);
            let figures: Sbcl = reading.facts.details("sbcl").expect("figures");
            assert_eq!(reading.caveats, []);
            let sums: u64 = figures.generations.iter().map(|generation| generation.bytes_allocated).sum();
            assert_eq!(sums, figures.dynamic_usage_bytes);
            let fillers: u64 =
                figures.generations.iter().filter_map(|generation| generation.filler_bytes).sum();
            let sum = figures.live_bytes.unwrap() + figures.dead_bytes.unwrap() + fillers;
            assert_eq!(sum, figures.dynamic_usage_bytes + figures.open_region_bytes);
        }
        lisp.eval("(setf *stop* t)");
    }
}
