//! Recognition of real processes, and of fabricated ones where the allocator is not on the machine.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::*;

struct Subject(Child);

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command that prints `ready`, and recognises it then; `None` where it is not there.
fn recognised(command: &mut Command) -> Option<Recognised> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut subject = Subject(child);
    let mut line = String::new();
    BufReader::new(subject.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let process = Process::open(i32::try_from(subject.0.id()).unwrap()).unwrap();
    let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
    Some(recognise(&process, &space))
}

fn names(list: &[Found]) -> Vec<&str> {
    list.iter().map(|found| found.name.as_str()).collect()
}

fn scratch(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("strandline-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn compile(directory: &Path, output: &str, code: &str, arguments: &[&str]) -> std::path::PathBuf {
    let source = directory.join(format!("{output}.c"));
    std::fs::write(&source, code).unwrap();
    let output = directory.join(output);
    let status = Command::new("cc").args(arguments).arg("-o").arg(&output).arg(&source).status().unwrap();
    assert!(status.success());
    output
}

#[test]
fn a_shell_has_neither() {
    let found = recognised(Command::new("bash").args(["-c", "echo ready; read line"])).unwrap();
    assert_eq!(found, Recognised::default());
}

#[test]
fn this_program_is_not_what_it_looks_for() {
    let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
    let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
    assert_eq!(recognise(&process, &space), Recognised::default());
}

#[test]
fn runtimes_are_named_with_their_versions() {
    type Program<'a> = (&'a str, &'a [&'a str], &'a str, &'a str, &'a [&'a str]);
    let programs: [Program<'_>; 3] = [
        ("python3", &["-c", "print('ready',flush=True); input()"], "cpython", "3.", &[]),
        ("perl", &["-e", "$|=1; print \"ready\\n\"; <STDIN>"], "perl", "5.", &[]),
        ("node", &["-e", "console.log('ready'); process.stdin.resume()"], "node", "", &["v8"]),
    ];
    for (program, arguments, name, version, allocators) in programs {
        let Some(found) = recognised(Command::new(program).args(arguments)) else {
            eprintln!("skipped: {program} is not on PATH");
            continue;
        };
        let runtime = found.runtimes.iter().find(|runtime| runtime.name == name);
        let runtime = runtime.unwrap_or_else(|| panic!("{program}: {found:?}"));
        eprintln!("{program}: {found:?}");
        assert!(runtime.version.as_deref().unwrap_or("").starts_with(version), "{found:?}");
        assert_eq!(names(&found.allocators), allocators, "{found:?}");
    }
}

#[test]
fn a_go_binary_tells_its_version() {
    let directory = scratch("recognise-go");
    let source = directory.join("wait.go");
    let code = "package main\nimport (\"fmt\"; \"time\")\n\
        func main() { fmt.Println(\"ready\"); time.Sleep(time.Minute) }\n";
    std::fs::write(&source, code).unwrap();
    let binary = directory.join("wait");
    let build = Command::new("go").arg("build").arg("-o").arg(&binary).arg(&source).status();
    if build.is_ok_and(|status| status.success()) {
        let found = recognised(&mut Command::new(&binary)).unwrap();
        assert_eq!((names(&found.runtimes), names(&found.allocators)), (vec!["go"], vec!["go"]));
        assert!(found.runtimes[0].version.as_ref().unwrap().starts_with("1."), "{found:?}");
    } else {
        eprintln!("skipped: go is not on PATH or cannot build");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

const WAIT: &str = "#include <stdio.h>\n#include <unistd.h>\n\
    int main(void) { puts(\"ready\"); fflush(stdout); pause(); }\n";

#[test]
fn allocators_are_told_by_file_symbol_and_message() {
    let directory = scratch("recognise-malloc");
    let plain = compile(&directory, "plain", WAIT, &[]);
    let library = compile(&directory, "libmimalloc.so.2.0", "int nothing;\n", &["-shared", "-fPIC"]);
    let found = recognised(Command::new(&plain).env("LD_PRELOAD", &library)).unwrap();
    let expected = Found {
        name: "mimalloc".into(),
        version: Some("2.0".into()),
        found_by: "mapped file libmimalloc.so.2.0".into(),
    };
    assert_eq!(found.allocators, [expected]);

    let code = format!(
        "{WAIT}int mallctl(void) {{ return 0; }}\n\
         const char *const v = \"5.2.1-0-gea6b3e973b477b8061e0076bb257dbd7f3faa756\";\n"
    );
    let inside = compile(&directory, "inside", &code, &["-rdynamic"]);
    let found = recognised(&mut Command::new(inside)).unwrap();
    assert_eq!(found.allocators[0].found_by, "symbol mallctl of the executable");
    assert_eq!(found.allocators[0].version.as_deref(), Some("5.2.1"));

    let local = compile(&directory, "local", &format!("{WAIT}int mi_malloc(void) {{ return 0; }}\n"), &[]);
    assert_eq!(names(&recognised(&mut Command::new(local)).unwrap().allocators), ["mimalloc"]);

    // Put together here, so that this test is not taken for jemalloc itself.
    let code = format!("{WAIT}const char *const m = \"{}{}munmap(): %s\";\n", '<', "jemalloc>: Error in ");
    let stripped = compile(&directory, "stripped", &code, &["-s"]);
    assert_eq!(names(&recognised(&mut Command::new(stripped)).unwrap().allocators), ["jemalloc"]);

    // A program that would use jemalloc if it were there does not have it.
    let code = format!("{WAIT}__attribute__((weak)) int mallctl(void);\nint (*use)(void) = mallctl;\n");
    let weak = compile(&directory, "weak", &code, &["-rdynamic"]);
    assert_eq!(recognised(&mut Command::new(weak)).unwrap(), Recognised::default());
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn go_versions_are_read_with_care() {
    let mut bytes = b"\xff Go buildinf:\x08\x02".to_vec();
    bytes.resize(32, 0);
    bytes.extend_from_slice(b"\x08go1.22.3");
    assert_eq!(go_version(&bytes).as_deref(), Some("1.22.3"));
    bytes[32] = 200;
    assert_eq!(go_version(&bytes), None);
    assert_eq!(go_version(b"\xff Go buildinf:"), None);
}
