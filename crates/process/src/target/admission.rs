//! Checks whether a process can be inspected, and explains refusals.

use crate::error::{Error, Result};
use crate::procfs::{Process, Status};
use crate::rights::{Confinement, Rights};

/// Opens process `pid` if it passes [`check`].
///
/// # Errors
/// Those of [`check`], [`Error::NoSuchProcess`], and [`Error::File`] if /proc cannot be used.
pub fn open_target(pid: i32) -> Result<Process> {
    check_proc_mount()?;
    let process = Process::open(pid)?;
    check(&process)?;
    Ok(process)
}

/// Opens process `pid` if it passes [`check`], or if a thread of this process traces it.
///
/// # Errors
/// As [`open_target`].
pub fn admit_watched(pid: i32) -> Result<Process> {
    check_proc_mount()?;
    let process = Process::open(pid)?;
    let status = check_kind(&process)?;
    let traced_by_other = traced(&process, &status).filter(|error| !is_traced_by_this_process(error));
    traced_by_other.map_or(Ok(process), Err)
}

/// Whether a process is traced by strandline itself.
fn is_traced_by_this_process(error: &Error) -> bool {
    matches!(error, Error::Traced { tracer, .. } if tracer.unsigned_abs() == std::process::id())
}

/// Opens process `pid` if it is stopped at its exit by a tracer in this process.
///
/// # Errors
/// As [`open_target`]; [`Error::Traced`] if another process traces it, [`Error::DidNotStop`] if it
/// is not stopped.
pub fn open_exiting(pid: i32) -> Result<Process> {
    check_proc_mount()?;
    let process = Process::open(pid)?;
    let status = check_kind(&process)?;
    match traced(&process, &status) {
        Some(error) if is_traced_by_this_process(&error) => {}
        Some(other) => return Err(other),
        None => return Err(not_at_exit(pid)),
    }
    if status.state == Some('t') { Ok(process) } else { Err(not_at_exit(pid)) }
}

/// The error for a process that is not stopped at its exit; strandline does not wait for it.
fn not_at_exit(pid: i32) -> Error {
    Error::DidNotStop { pid, seconds: 0.0, detail: "it is not held at its exit".to_owned() }
}

/// Checks that this is a process whose memory can be inspected, and returns its status.
///
/// # Errors
/// [`Error::Ended`], [`Error::Myself`], [`Error::Thread`], [`Error::KernelThread`],
/// [`Error::LeaderEnded`], [`Error::Zombie`] or [`Error::Traced`]. The kernel decides later whether
/// this user may inspect it: see [`refused`].
pub fn check(process: &Process) -> Result<Status> {
    let status = check_kind(process)?;
    traced(process, &status).map_or(Ok(status), Err)
}

/// Like [`check`], but accepts traced processes.
fn check_kind(process: &Process) -> Result<Status> {
    let pid = process.pid();
    let status = process.status()?;
    if std::process::id() == pid.unsigned_abs() {
        return Err(Error::Myself { pid });
    }
    if let Some(tgid) = status.tgid.filter(|&tgid| tgid != pid) {
        return Err(Error::Thread { tid: pid, pid: tgid });
    }
    let is_kernel_thread = match status.is_kernel_thread {
        Some(is_kernel_thread) => is_kernel_thread,
        None => process.stat()?.is_kernel_thread(),
    };
    if is_kernel_thread {
        return Err(Error::KernelThread { pid, name: status.name.unwrap_or_default() });
    }
    if status.is_zombie() {
        // A leader that called pthread_exit is a zombie too while its threads live on; the kernel
        // shows the memory that they use only under their own ids.
        let has_other_threads = status.threads.is_some_and(|threads| threads > 1);
        if has_other_threads {
            return Err(Error::LeaderEnded { pid });
        }
        // 0 is also the parent of a process whose parent is in another pid namespace.
        return Err(Error::Zombie { pid, parent: status.parent.unwrap_or(0) });
    }
    Ok(status)
}

/// The error that names the tracer of a process, or of a thread of it with this status; `None` if
/// it is not traced.
pub fn traced(process: &Process, status: &Status) -> Option<Error> {
    let tracer = status.tracer.filter(|&tracer| tracer != 0)?;
    // TracerPid is the id of the tracing thread: name its process.
    let tracer_status = Process::open(tracer).and_then(|tracer| tracer.status()).unwrap_or_default();
    let tracer_name = tracer_status.name.unwrap_or_else(|| "unknown".to_owned());
    Some(Error::Traced { pid: process.pid(), tracer: tracer_status.tgid.unwrap_or(tracer), tracer_name })
}

/// Checks that /proc shows this pid namespace: otherwise strandline would read one process and stop
/// another with the same id.
///
/// # Errors
/// [`Error::File`] if /proc is missing or belongs to another pid namespace.
pub fn check_proc_mount() -> Result<()> {
    let own_pid = std::process::id().to_string();
    let defect = match std::fs::read_link("/proc/self") {
        Ok(link) if link.as_os_str() == own_pid.as_str() => return Ok(()),
        Ok(_) => {
            "belongs to another pid namespace; mount this one's (mount -t proc proc /proc, or unshare --mount-proc)"
        }
        Err(_) => "is not mounted; mount it: mount -t proc proc /proc",
    };
    Err(Error::File { path: "/proc".into(), source: std::io::Error::other(defect) })
}

/// The error for a refusal by the kernel: the owner of the process, what the machine allows, and
/// advice.
pub fn refused(process: &Process) -> Error {
    let user = process.status().ok().and_then(|status| status.user_ids).map(|ids| ids.effective);
    // A kernel without Yama, which restricts nothing, lacks the file.
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let pid = process.pid();
    permission_error(pid, &Rights::own(), user, scope.as_deref().map_or("0", str::trim))
}

/// The error for a process of `user` under Yama's `scope`.
fn permission_error(pid: i32, rights: &Rights, user: Option<u32>, scope: &str) -> Error {
    let error = |detail, advice| Error::Permission { pid, detail, advice };
    if scope == "3" {
        return error(
            "kernel.yama.ptrace_scope is 3: no user may trace, not even root".to_owned(),
            "it cannot be lowered while the machine runs: set it lower in /etc/sysctl.d and reboot"
                .to_owned(),
        );
    }
    let own_user = rights.user;
    let other_user = user.filter(|user| *user != own_user);
    // The files of a process that is not dumpable belong to root.
    let missing = rights.missing(true);
    if other_user.is_none() && scope == "0" && own_user != 0 && !missing.is_empty() {
        let detail = "it is not dumpable, or has capabilities that you lack".to_owned();
        return error(detail, rights.advice(&missing, ""));
    }
    let missing = rights.missing(other_user.is_some());
    let lacking = if rights.is_more_than_not_root(&missing) {
        format!(", and {}", rights.describe_missing(&missing))
    } else {
        String::new()
    };
    match other_user {
        _ if missing.is_empty() => {
            let cause = Confinement::own().cause();
            let detail = format!("the kernel refuses ptrace despite CAP_SYS_PTRACE: {cause}");
            error(detail, rights.advice(&missing, ""))
        }
        Some(user) => error(
            format!("it belongs to user {user}, you are user {own_user}{lacking}"),
            rights.advice(&missing, " or as that user"),
        ),
        None if scope == "0" => error(rights.describe_missing(&missing), rights.advice(&missing, "")),
        None => {
            let lower = if rights.is_more_than_not_root(&missing) {
                ""
            } else {
                ", or `sysctl kernel.yama.ptrace_scope=0`"
            };
            let advice = rights.advice(&missing, "") + lower;
            error(format!("kernel.yama.ptrace_scope is {scope}{lacking}"), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_give_one_piece_of_advice() {
        use strandline_sys::capabilities::{DAC_OVERRIDE, DAC_READ_SEARCH, SYS_PTRACE};
        let user = |held_bits| Rights { user: 7, held_bits, bounding_bits: u64::MAX };
        let root = |held_bits, bounding_bits| Rights { user: 0, held_bits, bounding_bits };
        let no_ptrace = !SYS_PTRACE.bit();
        let line = |rights: Rights, user, scope| {
            let Error::Permission { detail, advice, .. } = permission_error(1, &rights, Some(user), scope)
            else {
                panic!("another error");
            };
            assert!(!(rights.user == 0 && advice.contains("setcap")), "{advice}");
            format!("{detail}: {advice}")
        };
        let other = line(user(0), 8, "0");
        assert!(
            other.starts_with("it belongs to user 8, you are user 7: run as root or as that user, or "),
            "{other}"
        );
        assert!(other.contains("&& setcap cap_sys_ptrace,cap_dac_read_search+ep "), "{other}");
        assert!(line(user(0), 7, "1").ends_with("every user), or `sysctl kernel.yama.ptrace_scope=0`"));
        assert!(line(user(0), 7, "0").contains("not dumpable"));
        let bare = line(root(DAC_OVERRIDE.bit(), no_ptrace), 7, "0");
        assert_eq!(
            bare,
            "it belongs to user 7, you are user 0, and this container's root lacks CAP_SYS_PTRACE: start it with \
             --cap-add SYS_PTRACE (Kubernetes: securityContext.capabilities.add)"
        );
        assert!(line(root(0, 0), 7, "0").contains("--cap-add SYS_PTRACE --cap-add DAC_READ_SEARCH"));
        assert!(line(root(0, no_ptrace), 0, "0").starts_with("this container's root lacks CAP_SYS_PTRACE: "));
        assert!(
            line(root(0, no_ptrace), 0, "1").starts_with("kernel.yama.ptrace_scope is 1, and this container")
        );
        assert!(!line(root(0, no_ptrace), 0, "1").contains("sysctl"), "it is the host's");
        let both = SYS_PTRACE.bit() | DAC_READ_SEARCH.bit();
        let despite = line(root(both, u64::MAX), 7, "2");
        assert!(despite.contains("despite CAP_SYS_PTRACE"), "{despite}");
        assert_eq!(line(user(both), 8, "2"), despite, "to root and to a user with its capabilities");
    }

    #[test]
    fn processes_without_memory_are_refused() {
        let own = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(matches!(check(&own), Err(Error::Myself { .. })));
        // Its own thread: that of another test may end meanwhile.
        let thread = strandline_sys::signal::own_thread();
        assert_ne!(thread, own.pid(), "tests run on threads of their own");
        assert!(matches!(open_target(thread), Err(Error::Thread { pid, .. }) if pid == own.pid()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(check(&process).is_ok());
        strandline_sys::ptrace::seize(process.pid(), 0).unwrap();
        assert!(matches!(check(&process), Err(Error::Traced { tracer, .. }) if tracer == own.pid()));
        child.kill().unwrap();
        while !process.status().unwrap().is_zombie() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(matches!(check(&process), Err(Error::Zombie { .. })));
        child.wait().unwrap();
    }

    #[test]
    fn visible_kernel_threads_are_reported() {
        // kthreadd; in the pid namespace of a container the id belongs to another process.
        let Ok(process) = Process::open(2) else { return };
        if process.stat().is_ok_and(|stat| stat.name == "kthreadd") {
            assert!(matches!(check(&process), Err(Error::KernelThread { .. })));
        }
    }
}
