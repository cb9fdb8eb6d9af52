//! Whether a process can be looked at, and why not.

use crate::error::{Error, Result};
use crate::procfs::Process;

/// Opens process `pid` if it is one whose memory can be looked at: not gone, not a zombie, not a
/// kernel thread, not a mere thread, not strandline itself.
pub fn admit(pid: i32) -> Result<Process> {
    own_proc()?;
    let process = Process::open(pid)?;
    let status = process.status()?;
    if let Some(tgid) = status.tgid.filter(|&tgid| tgid != pid) {
        return Err(Error::Thread { tid: pid, pid: tgid });
    }
    if std::process::id() == pid.unsigned_abs() {
        return Err(Error::Myself { pid });
    }
    let stat = process.stat()?;
    if status.kernel_thread.unwrap_or_else(|| stat.is_kernel_thread()) {
        return Err(Error::KernelThread { pid, name: status.name.unwrap_or_default() });
    }
    if status.is_zombie() {
        // A leader that called pthread_exit is a zombie too, while its threads live on; the kernel shows
        // the memory that they use under their own ids only.
        let lives_on = status.threads.unwrap_or(1) > 1;
        let parent = status.parent.unwrap_or(0);
        return Err(if lives_on { Error::LeaderEnded { pid } } else { Error::Zombie { pid, parent } });
    }
    Ok(process)
}

/// Fails where /proc is missing, or counts processes as another pid namespace does: then one process would
/// be read and another of the same number stopped.
fn own_proc() -> Result<()> {
    let own = std::process::id().to_string();
    let kind = match std::fs::read_link("/proc/self") {
        Ok(link) if link.as_os_str() == own.as_str() => return Ok(()),
        Ok(_) => "belongs to another pid namespace; mount this one's: mount -t proc proc /proc",
        Err(_) => "is not mounted; mount it: mount -t proc proc /proc",
    };
    Err(Error::File { path: "/proc".into(), source: std::io::Error::other(kind) })
}

/// Why the kernel refuses: whose process it is, what the machine allows, what would help.
pub fn refused(process: &Process) -> Error {
    let pid = process.pid();
    let own = strandline_sys::host::effective_user();
    let user = process.status().ok().and_then(|status| status.users).map(|users| users[1]);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    let scope = scope.as_deref().map(str::trim).unwrap_or("0");
    let (detail, advice) = match user {
        Some(user) if user != own && own != 0 => (
            format!("it belongs to user {user}, you are user {own}"),
            "run as root or as that user, or `setcap cap_sys_ptrace+ep` on strandline",
        ),
        _ if scope != "0" && own != 0 => (
            format!("kernel.yama.ptrace_scope is {scope}"),
            "run as root, or `setcap cap_sys_ptrace+ep` on strandline, or `sysctl kernel.yama.ptrace_scope=0`",
        ),
        _ => (
            "the kernel refuses ptrace: it is not dumpable, or a security module or container forbids it"
                .to_owned(),
            "run as root outside the container, or give it --cap-add SYS_PTRACE",
        ),
    };
    Error::Permission { pid, detail, advice: advice.to_owned() }
}
