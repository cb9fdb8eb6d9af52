//! Residency of real processes: whatever a process maps, the runs add up to smaps to the byte, with
//! both kernel interfaces.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::procfs::Process;
use crate::smaps::{Counts, Smaps, read_rollup};

/// Time limit for waiting for a state: slow and busy machines do not reach it.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A child that is killed when the test ends, also on panic.
struct Subject(Child);

impl Subject {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn process(&self) -> Process {
        Process::open(i32::try_from(self.0.id()).unwrap()).unwrap()
    }

    /// The lines it prints up to `ready`.
    fn lines(&mut self) -> Vec<String> {
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        output.lines().map(|line| line.unwrap()).take_while(|line| line != "ready").collect()
    }

    /// Stops it and waits until all its threads are stopped.
    fn stop(&self) {
        const SIGSTOP: i32 = 19;
        let process = self.process();
        strandline_sys::signal::send(process.pid(), SIGSTOP).unwrap();
        let limit = Instant::now() + MAX_WAIT;
        // A thread that ended meanwhile has no status.
        let is_stopped = |tid: &i32| process.task_status(*tid).is_ok_and(|status| status.state == Some('T'));
        while Instant::now() < limit {
            if process.tasks().unwrap().iter().all(is_stopped) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("process {} did not stop", process.pid());
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn smaps(process: &Process) -> Smaps {
    Smaps::read(process.open_file("smaps").unwrap()).unwrap()
}

/// The counts in smaps of one mapping.
#[derive(PartialEq)]
struct MappingCounts {
    start: u64,
    rss_bytes: u64,
    anonymous_bytes: u64,
}

/// The counts of each mapping.
fn mapping_counts(smaps: &Smaps) -> Vec<MappingCounts> {
    let counts = |SmapsEntry { mapping, counts, .. }: &SmapsEntry| MappingCounts {
        start: mapping.start,
        rss_bytes: counts.rss_bytes,
        anonymous_bytes: counts.anonymous_bytes,
    };
    smaps.entries.iter().map(counts).collect()
}

/// Resident anonymous bytes within `range`.
fn anonymous_bytes_in(residency: &Residency, range: Range<u64>) -> u64 {
    residency.runs_in(range).filter(|run| run.is_anonymous).map(|run| run.bytes()).sum()
}

/// Residency of a stopped process with every interface, each equal to smaps. The kernel may drop
/// file pages between the reads; then smaps differs before and after, and everything is read again.
fn read_by_all_interfaces(process: &Process) -> Vec<(Interface, Residency)> {
    let limit = Instant::now() + MAX_WAIT;
    loop {
        let before = smaps(process);
        let rollup: Counts = read_rollup(process.open_file("smaps_rollup").unwrap()).unwrap();
        let pagemap = process.open_file("pagemap").unwrap();
        let read = |interface| (interface, Residency::read_by(&pagemap, &before.entries, interface).unwrap());
        let results: Vec<(Interface, Residency)> = available_interfaces().into_iter().map(read).collect();
        if mapping_counts(&before) != mapping_counts(&smaps(process)) {
            assert!(Instant::now() < limit, "the pages of a stopped process keep changing");
            continue;
        }
        assert_eq!(before.bad_lines, 0);
        for (interface, residency) in &results {
            let differences = reconcile(residency, &before.entries);
            assert!(differences.is_ok(), "{interface:?}: {differences:?}");
            assert_eq!(residency.resident_bytes_in(0..u64::MAX), rollup.rss_bytes, "{interface:?}");
            assert_eq!(
                anonymous_bytes_in(residency, 0..u64::MAX),
                before.total().anonymous_bytes,
                "{interface:?}"
            );
        }
        return results;
    }
}

/// The available interfaces: a machine without the ioctl tests the entries only.
fn available_interfaces() -> Vec<Interface> {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let smaps = Smaps::read(File::open("/proc/self/smaps").unwrap()).unwrap();
    let is_missing =
        Residency::read_by(&pagemap, &smaps.entries, Interface::Scan).is_err_and(|e| scan::is_missing(&e));
    if is_missing { vec![Interface::Entries] } else { vec![Interface::Scan, Interface::Entries] }
}

/// The runs with adjacent ones of the same kind joined: only one interface reports migration.
fn joined_runs(residency: &Residency) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for run in residency.runs_in(0..u64::MAX) {
        match runs.last_mut() {
            Some(last) if last.end == run.start && last.is_anonymous == run.is_anonymous => {
                last.end = run.end
            }
            _ => runs.push(run),
        }
    }
    runs
}

/// Reads with all interfaces, and checks that the results are equal.
fn check_all_interfaces(process: &Process) -> Vec<(Interface, Residency)> {
    let results = read_by_all_interfaces(process);
    for pair in results.windows(2) {
        let [(first, first_residency), (second, second_residency)] = pair else { continue };
        assert_eq!(joined_runs(first_residency), joined_runs(second_residency), "{first:?} {second:?}");
    }
    results
}

fn compile(directory: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/pages.c");
    let binary = directory.join("pages");
    let status = Command::new("cc").args(["-O1", "-o"]).arg(&binary).arg(source).status().unwrap();
    assert!(status.success());
    binary
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("strandline-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

type EachRun = fn(&File, &[Range<u64>], &mut dyn FnMut(Range<u64>)) -> io::Result<()>;

fn bytes_by(each_run: EachRun, pagemap: &File, range: Range<u64>) -> io::Result<u64> {
    let mut bytes = 0;
    each_run(pagemap, &[range], &mut |run| bytes += run.end - run.start)?;
    Ok(bytes)
}

#[test]
fn complete_pages_are_sorted_and_joined() {
    let ranges = [0x5000..0x6001, 0x1800..0x2000, 0x2000..0x2001, 0x9000..0x9000];
    assert_eq!(whole_pages(&ranges), [0x1000..0x3000, 0x5000..0x7000]);
}

#[test]
fn both_interfaces_report_the_same_runs() {
    let page = PAGE_BYTES as usize;
    let mut memory = vec![0_u8; 64 * page];
    let start = memory.as_ptr() as u64;
    let whole = page_up(start)..page_of(start + memory.len() as u64);
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let runs = |each_run: EachRun| {
        let mut runs = Vec::new();
        each_run(&pagemap, std::slice::from_ref(&whole), &mut |run| runs.push(run)).unwrap();
        runs
    };
    let has_scan = available_interfaces().contains(&Interface::Scan);
    let limit = Instant::now() + MAX_WAIT;
    // The kernel may reclaim or merge pages between two reads: then all is written and read again.
    let (by_entries, by_scan) = loop {
        for index in (0..64).filter(|index| index % 3 != 2) {
            memory[index * page] = 1;
        }
        let by_entries = runs(entries::each_anonymous_run);
        let by_scan = has_scan.then(|| runs(scan::each_anonymous_run));
        if runs(entries::each_anonymous_run) == by_entries {
            break (by_entries, by_scan);
        }
        assert!(Instant::now() < limit, "the pages of this process keep changing");
    };
    assert!(by_entries.iter().map(|run| run.end - run.start).sum::<u64>() >= 40 * PAGE_BYTES);
    assert!(by_scan.is_none_or(|by_scan| by_scan == by_entries), "{by_entries:x?}");
    assert_eq!(memory[page], 1);
}

#[test]
fn every_kind_of_mapping_counts_as_smaps_counts_it() {
    let directory = scratch("pages");
    let binary = compile(&directory);
    let mut subject = Subject::start(&mut Command::new(&binary));
    let lines = subject.lines();
    if let Some(reason) = lines.iter().find(|line| line.starts_with('#')) {
        eprintln!("skipped: {reason}");
    }
    subject.stop();
    let process = subject.process();
    for (interface, residency) in check_all_interfaces(&process) {
        let mut checked_ranges = 0;
        for line in lines.iter().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            let range =
                u64::from_str_radix(words[1], 16).unwrap()..u64::from_str_radix(words[2], 16).unwrap();
            let (resident, anonymous): (i64, i64) = (words[3].parse().unwrap(), words[4].parse().unwrap());
            if let Ok(resident) = u64::try_from(resident) {
                assert_eq!(residency.resident_bytes_in(range.clone()), resident, "{interface:?} {line}");
                checked_ranges += 1;
            }
            if let Ok(anonymous) = u64::try_from(anonymous) {
                assert_eq!(anonymous_bytes_in(&residency, range.clone()), anonymous, "{interface:?} {line}");
                let pagemap = process.open_file("pagemap").unwrap();
                let read = match interface {
                    Interface::Scan => bytes_by(scan::each_anonymous_run, &pagemap, range),
                    Interface::Entries if words[0] == "reservation" => {
                        let refused = bytes_by(entries::each_anonymous_run, &pagemap, range);
                        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
                        continue;
                    }
                    Interface::Entries => bytes_by(entries::each_anonymous_run, &pagemap, range),
                };
                // A hugetlb page is anonymous in the page tables; callers pass ranges of heaps.
                assert!(words[0] == "hugetlb" || read.unwrap() == anonymous, "{interface:?} {line}");
            }
        }
        assert!(checked_ranges >= 10, "{interface:?} checked {checked_ranges} ranges of {lines:?}");
    }
    drop(subject);
    std::fs::remove_dir_all(directory).unwrap();
}

/// Runs a program from PATH and passes it a line of input; `None` if it is not installed.
fn program(name: &str, arguments: &[&str], input: &str) -> Option<Subject> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())?;
    let mut subject = Subject::start(Command::new(name).args(arguments));
    let stdin = subject.0.stdin.as_mut()?;
    stdin.write_all(input.as_bytes()).unwrap();
    stdin.flush().unwrap();
    let lines = subject.lines();
    assert!(lines.is_empty(), "{name} printed {lines:?} before `ready`");
    Some(subject)
}

#[test]
fn shells_and_runtimes_add_up_to_smaps() {
    let programs: [(&str, &[&str], &str); 4] = [
        ("bash", &[], "echo ready; read line; read line\n"),
        (
            "python3",
            &[
                "-c",
                "import json,sys; x=[str(i) for i in range(200000)]; print('ready',flush=True); sys.stdin.read()",
            ],
            "",
        ),
        (
            "perl",
            &["-e", "$|=1; my @x = map { \"x$_\" } 1..100000; undef @x; print \"ready\\n\"; sleep 600"],
            "",
        ),
        (
            "node",
            &[
                "-e",
                "const x=[]; for(let i=0;i<1e5;i++) x.push({i}); console.log('ready'); process.stdin.resume()",
            ],
            "",
        ),
    ];
    for (name, arguments, input) in programs {
        match program(name, arguments, input) {
            Some(subject) => {
                subject.stop();
                check_all_interfaces(&subject.process());
            }
            None => eprintln!("skipped: {name} is not on PATH"),
        }
    }
}

#[test]
fn a_java_process_adds_up_to_smaps() {
    let directory = scratch("java");
    let source = directory.join("Wait.java");
    std::fs::write(
        &source,
        "public class Wait { public static void main(String[] a) throws Exception {\n\
         byte[][] x = new byte[64][]; for (int i = 0; i < 64; i++) x[i] = new byte[1 << 18];\n\
         System.out.println(\"ready\"); Thread.sleep(600000); } }\n",
    )
    .unwrap();
    match program("java", &["-Xmx128m", source.to_str().unwrap()], "") {
        Some(subject) => {
            subject.stop();
            check_all_interfaces(&subject.process());
        }
        None => eprintln!("skipped: java is not on PATH"),
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_go_process_adds_up_to_smaps() {
    let directory = scratch("go");
    let source = directory.join("wait.go");
    std::fs::write(
        &source,
        "package main\nimport (\"fmt\"; \"time\")\nvar keep [][]byte\nfunc main() {\n\
         for i := 0; i < 64; i++ { keep = append(keep, make([]byte, 1<<18)) }\n\
         fmt.Println(\"ready\"); time.Sleep(10 * time.Minute) }\n",
    )
    .unwrap();
    let binary = directory.join("wait");
    let build = Command::new("go").arg("build").arg("-o").arg(&binary).arg(&source).status();
    if build.is_ok_and(|status| status.success()) {
        let mut subject = Subject::start(&mut Command::new(&binary));
        assert!(subject.lines().is_empty());
        subject.stop();
        check_all_interfaces(&subject.process());
    } else {
        eprintln!("skipped: go is not on PATH or cannot build");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

fn packed(start: u64, end: u64, flags: u64) -> PackedRun {
    PackedRun { start_and_kind: start | flags, end }
}

#[test]
fn runs_are_found_and_clipped() {
    let runs =
        vec![packed(0x1000, 0x3000, kind::ANONYMOUS), packed(0x3000, 0x4000, 0), packed(0x9000, 0xa000, 0)];
    let residency = Residency { runs };
    assert_eq!(residency.resident_bytes_in(0..u64::MAX), 0x4000);
    assert_eq!(residency.resident_bytes_in(0x2800..0x3800), 0x1000);
    assert_eq!(anonymous_bytes_in(&residency, 0x2800..0x3800), 0x800);
    assert_eq!(residency.resident_bytes_in(0x4000..0x9000), 0);
    let bytes_in = |start, end| residency.resident_bytes_in(start..end);
    assert_eq!((bytes_in(0x2800, 0x2000), bytes_in(0x2800, 0x2800)), (0, 0));
    assert!(residency.is_resident(0x9fff) && !residency.is_resident(0xa000));
    let clipped: Vec<PageRun> = residency.runs_in(0..0x1800).collect();
    assert_eq!(clipped, [PageRun { start: 0x1000, end: 0x1800, is_anonymous: true }]);
}

#[test]
fn undecided_pages_make_up_what_smaps_counts_and_no_more() {
    let file = File::open("/dev/null").unwrap();
    let mut builder = Builder::new(&file);
    let undecided = kind::ANONYMOUS | kind::UNDECIDED;
    builder.begin_mapping();
    builder.push(0x1000, 0x2000, kind::ANONYMOUS);
    builder.push(0x2000, 0x5000, undecided);
    builder.push(0x6000, 0x8000, undecided);
    builder.end_mapping(0x5000);
    let expected = [
        packed(0x1000, 0x2000, kind::ANONYMOUS),
        packed(0x2000, 0x5000, kind::ANONYMOUS),
        packed(0x6000, 0x7000, kind::ANONYMOUS),
    ];
    assert_eq!(builder.runs, expected);
    builder.begin_mapping();
    builder.push(0x9000, 0xa000, undecided);
    builder.end_mapping(0);
    builder.begin_mapping();
    builder.push(0xa000, 0xb000, undecided);
    builder.end_mapping(0x1000);
    assert_eq!(builder.runs[3..], [packed(0xa000, 0xb000, kind::ANONYMOUS)]);
}
