//! Recognises real processes, and fabricated ones if the allocator is not on the machine.

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

/// Starts a command that prints `ready`, and recognises it then; `None` if it is not installed.
fn recognised(command: &mut Command) -> Option<RecognisedComponents> {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut subject = Subject(child);
    let mut line = String::new();
    BufReader::new(subject.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Some(look(subject.0.id()))
}

/// Recognises a running process.
fn look(pid: u32) -> RecognisedComponents {
    let pid = i32::try_from(pid).unwrap();
    let process = Process::open(pid).unwrap();
    let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
    recognise(&process, &space)
}

fn names(list: &[Component]) -> Vec<&str> {
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
fn a_shell_has_no_allocator_and_no_runtime() {
    let found = recognised(Command::new("bash").args(["-c", "echo ready; read line"])).unwrap();
    assert_eq!(found, RecognisedComponents::default());
}

#[test]
fn this_program_does_not_match_its_own_signatures() {
    assert_eq!(look(std::process::id()), RecognisedComponents::default());
}

/// A program of a runtime, and what is recognised in it.
struct Program {
    command: &'static str,
    arguments: &'static [&'static str],
    runtime: &'static str,
    /// The beginning of the runtime's version.
    version: &'static str,
    allocators: &'static [&'static str],
}

const fn program(
    command: &'static str,
    arguments: &'static [&'static str],
    runtime: &'static str,
    version: &'static str,
    allocators: &'static [&'static str],
) -> Program {
    Program { command, arguments, runtime, version, allocators }
}

#[test]
fn runtimes_are_named_with_their_versions() {
    let programs = [
        program("python3", &["-c", "print('ready',flush=True); input()"], "cpython", "3.", &[]),
        program("perl", &["-e", "$|=1; print \"ready\\n\"; <STDIN>"], "perl", "5.", &[]),
        program("node", &["-e", "console.log('ready'); process.stdin.resume()"], "node", "", &["v8"]),
        program(
            "guile",
            &["-c", "(display \"ready\\n\") (force-output) (read-char)"],
            "guile",
            "",
            &["bdwgc"],
        ),
        program(
            "racket",
            &["-e", "(displayln \"ready\") (flush-output) (read-char)"],
            "racket",
            "",
            &["chez"],
        ),
        program("scheme", &["--script", "wait.ss"], "chez", "", &["chez"]),
        program(
            "erl",
            &["-noshell", "-eval", "io:format(\"ready~n\"),timer:sleep(infinity)."],
            "erlang",
            "",
            &["erlang"],
        ),
        program("ocaml", &["wait.ml"], "ocaml", "", &[]),
        program("luajit", &["-e", "print('ready') io.flush() io.read()"], "luajit", "", &["luajit"]),
        program("mono", &["wait.exe"], "mono", "", &["mono"]),
    ];
    let directory = scratch("recognise-runtimes");
    let write = |file: &str, code: &str| std::fs::write(directory.join(file), code).unwrap();
    write("wait.ss", "(display \"ready\") (newline) (flush-output-port) (read-char)");
    write("wait.ml", "let () = print_endline \"ready\"; ignore (input_char stdin)");
    write(
        "wait.cs",
        "class P{static void Main(){System.Console.WriteLine(\"ready\");System.Console.Read();}}",
    );
    // Without a compiler there is no wait.exe, and mono is skipped.
    let _ = Command::new("mcs").arg("wait.cs").current_dir(&directory).output();
    for Program { command: name, arguments, runtime, version, allocators } in programs {
        let has_file = |file: &&str| !file.starts_with("wait.") || directory.join(file).exists();
        let mut command = Command::new(name);
        command.args(arguments).current_dir(&directory);
        let found = arguments.iter().all(has_file).then(|| recognised(&mut command)).flatten();
        let Some(found) = found else {
            // They take hundreds of megabytes each: make does not install them.
            let advice = if ["ocaml", "racket"].contains(&name) { "apt-get install it" } else { "make deps" };
            eprintln!("skipped: runtimes_are_named_with_their_versions: {name} is not here ({advice})");
            continue;
        };
        let runtime = found.runtimes.iter().find(|found| found.name == runtime);
        let runtime = runtime.unwrap_or_else(|| panic!("{name}: {found:?}"));
        eprintln!("{name}: {found:?}");
        assert!(runtime.version.as_deref().unwrap_or("").starts_with(version), "{found:?}");
        assert_eq!(names(&found.allocators), allocators, "{found:?}");
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn the_version_of_a_go_binary_is_read() {
    let directory = scratch("recognise-go");
    let source = directory.join("wait.go");
    let code = "package main\nimport (\"fmt\"; \"time\")\n\
        func main() { fmt.Println(\"ready\"); time.Sleep(time.Hour) }\n";
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
fn allocators_are_recognised_by_file_symbol_and_message() {
    let directory = scratch("recognise-malloc");
    let plain = compile(&directory, "plain", WAIT, &[]);
    let library = compile(&directory, "libmimalloc.so.2.0", "int nothing;\n", &["-shared", "-fPIC"]);
    let found = recognised(Command::new(&plain).env("LD_PRELOAD", &library)).unwrap();
    let expected = Component {
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

    // Assembled here, so that this test is not recognised as jemalloc itself.
    let code = format!("{WAIT}const char *const m = \"{}{}munmap(): %s\";\n", '<', "jemalloc>: Error in ");
    let stripped = compile(&directory, "stripped", &code, &["-s"]);
    assert_eq!(names(&recognised(&mut Command::new(stripped)).unwrap().allocators), ["jemalloc"]);

    // A program that would use jemalloc if it were present does not contain it.
    let code = format!("{WAIT}__attribute__((weak)) int mallctl(void);\nint (*use)(void) = mallctl;\n");
    let weak = compile(&directory, "weak", &code, &["-rdynamic"]);
    assert_eq!(recognised(&mut Command::new(weak)).unwrap(), RecognisedComponents::default());
    std::fs::remove_dir_all(directory).unwrap();
}
