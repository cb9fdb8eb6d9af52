//! Unusual heaps: other allocators (named, not read), 32-bit processes (kernel rows only),
//! processes whose files are not visible from here.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::libraries::libraries;
use crate::support::mallinfo::same;
use crate::support::subject::number;
use crate::support::{
    Folder, Libc, Outcome, Result, Subject, copy_program, here, skipped, strandline, subject,
};

#[test]
fn other_allocators_are_named_and_their_memory_is_unattributed() -> Outcome {
    let folder = Folder::new("named")?;
    // An allocator that is identified by the name of its library.
    let library = folder.0.join("libhoard.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/bump_malloc.c");
    let mut build = Command::new("cc");
    let status =
        build.args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-o"]).arg(&library).arg(source).status()?;
    assert!(status.success(), "{source}");
    let preload = library.to_string_lossy();
    let subject =
        Subject::start_with(&Libc::system(), "secret_heap", &[], &[("LD_PRELOAD", preload.as_ref())])?;
    let document = strandline::explain(subject.pid())?;
    let names = document["allocators"].as_array().ok_or("no allocators")?;
    assert!(names.iter().any(|found| found["name"] == "hoard"), "{names:?}");
    assert!(!strandline::caveats(&document).is_empty(), "named, not read: a caveat is required");
    // The subject holds about 7 MiB in that allocator.
    assert!(document["totals"]["unattributed"].as_u64() > Some(4 << 20), "{}", document["totals"]);
    Ok(())
}

#[test]
fn thirty_two_bits_have_kernel_rows_and_a_caveat() -> Outcome {
    let subject = match Subject::start("bits32", &[]) {
        Ok(subject) => subject,
        Err(error) => {
            let first = error.to_string().lines().next().unwrap_or_default().to_owned();
            skipped(here!(), &format!("no 32-bit compiler, or no such kernel: {first}"));
            return Ok(());
        }
    };
    let document = strandline::explain(subject.pid())?;
    assert!(document["kernel"]["anonymous_bytes"].as_u64() >= Some(subject.number("written_bytes")?));
    assert!(strandline::glibcs(&document).is_empty());
    assert!(!strandline::caveats(&document).is_empty(), "32-bit heaps are not read: a caveat is required");
    let before = strandline::run(&["reclaim", "--wait", "1", &subject.pid_text()])?;
    assert!(!before.stderr.contains("panicked"), "{}", before.summary());
    assert!(subject.finish()?.success());
    Ok(())
}

/// A program, with its libc if linked in, on a file system that only this program sees.
#[test]
fn a_program_in_another_mount_namespace_is_read() -> Outcome {
    if strandline_sys::host::effective_user() != 0 {
        skipped(here!(), "not root: cannot make one");
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("strandline-mount-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for libc in [Libc::system(), Libc::system_static()] {
        let program = subject::compile("random_heap", &libc)?;
        let outcome = in_own_mounts(&folder, &program);
        if let Err(error) = outcome {
            std::fs::remove_dir(&folder)?;
            return Err(format!("{}: {error}", libc.label()).into());
        }
    }
    std::fs::remove_dir(&folder)?;
    Ok(())
}

fn in_own_mounts(folder: &Path, program: &Path) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs none \"$0\" && cp \"$1\" \"$0/program\" && exec \"$0/program\" 77 threads=3");
    command.arg(folder).arg(program);
    let mut subject = Subject::start_command(command)?;
    subject.at_rest()?;
    assert!(!folder.join("program").exists(), "it is not to be seen from here");
    let document = strandline::explain(subject.pid())?;
    let glibcs = strandline::glibcs(&document);
    same(&glibcs.first().ok_or("no glibc found")?["mallinfo"], &subject.ready["mallinfo"])?;
    let predicted = strandline::predicted(&document, "malloc_trim").unwrap_or(0);
    assert_eq!(predicted, subject::number(&subject.ask(b't')?, "given_back_bytes")?);
    Ok(())
}

/// Free memory between live blocks is pinned; another allocator is proposed only if the program
/// would preload it.
#[test]
fn settings_that_a_program_ignores_are_not_proposed() -> Outcome {
    const HALF_FREE: [&str; 3] = ["60000", "200", "2"];
    let proposes = |subject: &Subject, id: &str| -> Result<bool> {
        let document = strandline::explain(subject.pid())?;
        let remedies = document["remedies"].as_array().ok_or("no remedies")?;
        Ok(remedies.iter().any(|remedy| remedy["id"] == id))
    };
    let dynamic = Subject::start("fragmented", &HALF_FREE)?;
    assert!(proposes(&dynamic, "jemalloc")?, "a dynamic program takes what is preloaded");
    let fixed = Subject::start_with(&Libc::system_static(), "fragmented", &HALF_FREE, &[])?;
    assert!(!proposes(&fixed, "jemalloc")?, "LD_PRELOAD does nothing in a static program");

    // A setuid program ignores settings.
    let test = here!();
    let folder = Folder::new("setuid")?;
    let program = folder.0.join("fragmented");
    copy_program(subject::compile("fragmented", &Libc::system())?, &program)?;
    const NOBODY: u32 = 65534;
    if let Err(error) = std::os::unix::fs::chown(&program, Some(NOBODY), Some(NOBODY)) {
        skipped(test, &format!("chown to another user: {error}"));
        return Ok(());
    }
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755))?;
    let mut command = Command::new(&program);
    command.args(HALF_FREE);
    let secure = Subject::start_command(command)?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", secure.pid()))?;
    if !status.lines().any(|line| line.starts_with("Uid:") && line.contains("65534")) {
        skipped(test, &format!("{} is mounted nosuid", folder.0.display()));
        return Ok(());
    }
    assert!(!proposes(&secure, "jemalloc")?, "the loader ignores LD_PRELOAD there");
    Ok(())
}

/// Thread-local storage of the program is between a thread's FS base and libc's pointer to the
/// cache: 40 KiB of it do not hide the caches.
#[test]
fn caches_behind_large_thread_local_storage_are_found() -> Outcome {
    let subject = Subject::start("large_storage", &["20"])?;
    let document = strandline::explain(subject.pid())?;
    let cached_bytes = subject.number("cached_bytes")?;
    let glibcs = strandline::glibcs(&document);
    let arenas = glibcs.iter().filter_map(|glibc| glibc["arenas"].as_array()).flatten();
    let found_bytes: u64 = arenas.filter_map(|arena| arena["tcache_bytes"].as_u64()).sum();
    assert_eq!(found_bytes, cached_bytes, "bytes in caches");
    let holders = strandline::complete(|| strandline::json(&["holders", "--json", &subject.pid_text()]))?;
    assert_eq!(number(&holders["unreachable"], "blocks")?, 0, "leaked blocks");
    Ok(())
}

/// Thread-local storage of a library that a program loads later is in a block of each thread
/// (`configure --disable-initial-exec-tls`; other builds cannot be loaded then).
#[test]
fn caches_of_a_jemalloc_that_is_loaded_later_are_found() -> Outcome {
    let test = here!();
    let mut loaded = 0;
    for library in libraries(test).into_iter().filter(|library| library.name == "jemalloc") {
        let path = library.path.display().to_string();
        let subject = Subject::start("later_loaded", &[&path, "20"])?;
        if subject.number("loaded")? == 0 {
            continue;
        }
        loaded += 1;
        let document = strandline::explain(subject.pid())?;
        assert_eq!(strandline::caveats(&document), Vec::<String>::new(), "{path}: {}", document["caveats"]);
        let mut allocators = document["allocators"].as_array().into_iter().flatten();
        let jemalloc = allocators.find(|one| one["name"] == "jemalloc").ok_or("no jemalloc")?;
        let (live_bytes, cached_bytes) = (number(jemalloc, "live_bytes")?, number(jemalloc, "cached_bytes")?);
        assert!(cached_bytes > 10 << 20 && live_bytes < 1 << 20, "{path}: {jemalloc}");
        // A build without statistics says 0.
        let own_bytes = subject.number("allocated_bytes")?;
        let same = own_bytes == 0 || jemalloc["own"]["stats.allocated"].as_u64() == Some(own_bytes);
        assert!(same, "{path}: {own_bytes}, {jemalloc}");
        let predicted = strandline::predicted(&document, "jemalloc_purge").ok_or("no prediction")?;
        let done =
            strandline::json(&["reclaim", "--json", "--remedy", "jemalloc_purge", &subject.pid_text()])?;
        assert_eq!(done["actual_bytes"].as_u64(), Some(predicted), "{path}: {done}");
    }
    if loaded == 0 {
        skipped(test, "no jemalloc that can be loaded later (--disable-initial-exec-tls)");
    }
    Ok(())
}
