//! Programs whose end must not be watched for, because a trace would change what they do.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use strandline_sys::capabilities;
use strandline_sys::spawn::DEFAULT_PATH;

/// How much of a program is searched: the names are in its dynamic section or its constants.
const MAX_SEARCHED_BYTES: u64 = 64 << 20;
/// LeakSanitizer traces its own process at exit, and fails if another process does. Programs that
/// link it contain its name; others name the library.
const SANITIZERS: [&[u8]; 3] = [b"LeakSanitizer", b"libasan.so", b"liblsan.so"];

/// Why `program` must not be watched; `None` if it can be.
pub fn obstacle(program: &Path) -> Option<&'static str> {
    if !capabilities::SYS_PTRACE.is_held() && capabilities::gains_privileges(program) {
        return Some("it gains privileges when it starts (setuid), and would not under a trace by this user");
    }
    if is_sanitized(program) {
        return Some("it checks for leaks at its end (LeakSanitizer), which fails under a trace");
    }
    None
}

/// Like [`obstacle`], for a command that starts with these variables changed (`None`: removed). A
/// bare name is looked up in its PATH.
pub fn command_obstacle(command: &Path, changes: &[(String, Option<String>)]) -> Option<&'static str> {
    let variable = |name: &str| match changes.iter().rev().find(|(changed, _)| changed == name) {
        Some((_, value)) => value.as_ref().map(OsString::from),
        None => std::env::var_os(name),
    };
    let preloaded = variable("LD_PRELOAD").unwrap_or_default();
    if names_sanitizer(&preloaded.to_string_lossy()) {
        return Some(
            "LD_PRELOAD makes it check for leaks at its end (LeakSanitizer), which fails under a trace",
        );
    }
    find_program(command, variable("PATH").as_deref()).and_then(|program| obstacle(&program))
}

/// Whether a list of libraries, as LD_PRELOAD has it, has one with LeakSanitizer: `libasan.so.8`,
/// `liblsan.so.0`, `libclang_rt.asan-x86_64.so`. Their folders may have any name.
fn names_sanitizer(libraries: &str) -> bool {
    let mut names = libraries.split([':', ' ']).map(|path| path.rsplit('/').next().unwrap_or(path));
    names.any(|name| name.contains("asan") || name.contains("lsan"))
}

/// The file of a command; not a pipe, which would block the search in it.
fn find_program(command: &Path, search_path: Option<&OsStr>) -> Option<PathBuf> {
    if command.parent() != Some(Path::new("")) {
        return Some(command.to_owned()).filter(|path| path.is_file());
    }
    let search_path = search_path.unwrap_or(OsStr::new(DEFAULT_PATH));
    std::env::split_paths(search_path).map(|folder| folder.join(command)).find(|path| path.is_file())
}

/// Whether a program has LeakSanitizer. One that cannot be read counts as without.
fn is_sanitized(program: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(program).and_then(|file| file.take(MAX_SEARCHED_BYTES).read_to_end(&mut bytes));
    read.is_ok() && SANITIZERS.iter().any(|name| memchr::memmem::find(&bytes, name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitized_programs_are_known_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, b"\x7fELF...\0libasan.so.8\0libc.so.6\0").unwrap();
        assert!(obstacle(&program).is_some_and(|obstacle| obstacle.contains("LeakSanitizer")));
        std::fs::write(&program, b"\x7fELF...\0libc.so.6\0").unwrap();
        assert_eq!(obstacle(&program), None);
        assert_eq!(obstacle(&folder.path().join("missing")), None);
        assert_eq!(command_obstacle(Path::new("sh"), &[]), None);
        let preloads = [("LD_PRELOAD".to_owned(), Some("libasan.so.8".to_owned()))];
        assert!(command_obstacle(Path::new("sh"), &preloads).is_some());
        assert_eq!(find_program(Path::new("program"), Some(folder.path().as_os_str())), Some(program));
        assert!(find_program(Path::new("sh"), None).is_some(), "without PATH");
        assert!(names_sanitizer("/usr/lib/liblsan.so.0") && names_sanitizer("libasan.so.8"));
        assert!(names_sanitizer("libc.so.6 /opt/libclang_rt.asan-x86_64.so:libm.so.6"));
        assert!(!names_sanitizer("libjemalloc.so.2") && !names_sanitizer("/opt/asan/libc.so:/lsan/libm.so"));
    }
}
