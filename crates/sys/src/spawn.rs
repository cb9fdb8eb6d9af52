//! Starts a command as its user would start it, except for what [`Setup`] requests.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::signal;

/// Folders that glibc's `execvp` searches without PATH (confstr(3), `_CS_PATH`).
pub const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A limit of `setrlimit(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// `RLIMIT_AS`.
    AddressSpace,
    /// `RLIMIT_DATA`.
    Data,
    /// `RLIMIT_NOFILE`.
    OpenFiles,
    /// `RLIMIT_CORE`.
    Core,
}

/// The limits of a process on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// The limit in effect.
    pub soft: u64,
    /// What the process may raise it to.
    pub hard: u64,
}

impl Resource {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::Data => libc::RLIMIT_DATA,
            Self::OpenFiles => libc::RLIMIT_NOFILE,
            Self::Core => libc::RLIMIT_CORE,
        }
    }

    /// This process's limits.
    ///
    /// # Errors
    /// Returns the error of getrlimit(2).
    pub fn get(self) -> io::Result<Rlimit> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a live, writable rlimit.
        crate::check(unsafe { libc::getrlimit(self.number(), &raw mut limit) }.into())?;
        Ok(Rlimit { soft: limit.rlim_cur, hard: limit.rlim_max })
    }

    /// Sets this process's limits.
    ///
    /// # Errors
    /// Returns the error of setrlimit(2): `EPERM` for a hard limit above the present one.
    pub fn set(self, limits: Rlimit) -> io::Result<()> {
        let limit = libc::rlimit { rlim_cur: limits.soft, rlim_max: limits.hard };
        // SAFETY: `limit` is a live rlimit.
        crate::check(unsafe { libc::setrlimit(self.number(), &raw const limit) }.into()).map(drop)
    }

    /// Raises the soft limit to the hard one; returns the previous limits.
    ///
    /// # Errors
    /// Returns the error of getrlimit(2) or setrlimit(2).
    pub fn raise(self) -> io::Result<Rlimit> {
        let limits = self.get()?;
        self.set(Rlimit { soft: limits.hard, ..limits })?;
        Ok(limits)
    }
}

/// The limit on core files at the start of this process, if it has been changed.
static ORIGINAL_CORE_LIMIT: OnceLock<Rlimit> = OnceLock::new();

/// Prevents core files of this process from now on: one would hold data read from other processes,
/// and a process that this one holds would stay held until the file is written. Commands started by
/// [`spawn`] get the limit that this process was started with.
///
/// The limit is one byte, not zero: the kernel pipes a core to a program (a pattern that begins
/// with `|`) regardless of the limit, except for 1 (fs/coredump.c, do_coredump; from Linux 6.17 on
/// coredump_pipe).
///
/// # Errors
/// Those of [`Resource::get`] and [`Resource::set`].
pub fn disable_core_files() -> io::Result<()> {
    let original = Resource::Core.get()?;
    ORIGINAL_CORE_LIMIT.get_or_init(|| original);
    Resource::Core.set(Rlimit { soft: original.hard.min(1), ..original })
}

/// Limits to set on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The resource.
    pub resource: Resource,
    /// The limits.
    pub limits: Rlimit,
}

/// The environment in which a command is started.
#[derive(Debug, Default)]
pub struct Setup {
    /// Limits to set.
    pub limits: Vec<ResourceLimit>,
    /// An open `cgroup.procs` of the control group to join.
    pub group_to_join: Option<OwnedFd>,
    /// A descriptor to inherit under its present number.
    pub inherited_descriptor: Option<OwnedFd>,
    /// The command announces itself here before it starts: see [`Gate`].
    pub gate: Option<UnixStream>,
    /// The mask of blocked signals to start with, bit n-1 for signal n.
    pub signal_mask: u64,
    /// Whether it leads its own session: without a terminal, and with a process group that can
    /// be ended as a whole.
    pub starts_session: bool,
    /// Whether the kernel kills it (SIGKILL) when the thread that started it ends.
    pub dies_with_parent: bool,
    /// Whether transparent huge pages are off for it (`PR_SET_THP_DISABLE`; its children inherit
    /// that).
    pub no_huge_pages: bool,
}

/// Starts `command`. It gets the stdin, stdout, stderr, signal dispositions, process group and
/// session that this process was started with.
///
/// # Errors
/// Returns the error of `execve` (ENOENT, EACCES, ENOEXEC, …) or of a step before it.
pub fn spawn(mut command: Command, setup: Setup) -> io::Result<Child> {
    let parent = std::process::id().cast_signed();
    let core_limits = ORIGINAL_CORE_LIMIT.get().copied();
    let prepare = move || {
        setup.apply_process_attributes(parent)?;
        if let Some(limits) = core_limits {
            Resource::Core.set(limits)?;
        }
        for ResourceLimit { resource, limits } in &setup.limits {
            resource.set(*limits)?;
        }
        if let Some(group) = &setup.group_to_join {
            // SAFETY: writes one byte from a static; "0" is the writer itself (cgroups(7)).
            crate::check(unsafe { libc::write(group.as_raw_fd(), c"0".as_ptr().cast(), 1) } as libc::c_long)?;
        }
        if let Some(descriptor) = &setup.inherited_descriptor {
            // SAFETY: fcntl reads its integer arguments only.
            crate::check(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) }.into())?;
        }
        if let Some(gate) = &setup.gate {
            Gate::announce_and_wait(gate.as_raw_fd());
        }
        restore_dispositions();
        signal::set_mask(setup.signal_mask)
    };
    // SAFETY: `prepare` runs between fork and exec of a process that may have had threads: it makes
    // only async-signal-safe system calls, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

impl Setup {
    /// Runs in the new process: sets its session, its death signal and its huge-page flag.
    fn apply_process_attributes(&self, parent: i32) -> io::Result<()> {
        if self.starts_session {
            // SAFETY: setsid has no arguments.
            crate::check(unsafe { libc::setsid() }.into())?;
        }
        if self.dies_with_parent {
            // SAFETY: prctl reads its integer arguments only.
            let result =
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) };
            crate::check(result.into())?;
            // SAFETY: getppid has no arguments and cannot fail.
            if unsafe { libc::getppid() } != parent {
                // The parent ended before the prctl took effect.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if self.no_huge_pages {
            // SAFETY: prctl reads its integer arguments only.
            crate::check(unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) }.into())?;
        }
        Ok(())
    }
}

/// Makes a new process wait before it starts its program, so that another process can attach to it
/// first. Uses the two ends of a stream socket.
#[derive(Debug)]
pub struct Gate;

impl Gate {
    /// Runs in the new process: sends its id and waits. Continues also if the other end is gone.
    fn announce_and_wait(gate: i32) {
        // SAFETY: getpid has no arguments and cannot fail.
        let id = unsafe { libc::getpid() }.to_ne_bytes();
        let mut answer = [0u8; 1];
        // SAFETY: `id` and `answer` are live, of the sizes given; if a call fails, the program just
        // starts.
        unsafe {
            if libc::send(gate, id.as_ptr().cast(), id.len(), libc::MSG_NOSIGNAL) == id.len() as isize {
                libc::recv(gate, answer.as_mut_ptr().cast(), 1, 0);
            }
        }
    }

    /// Waits for the process and returns its id; `None` if it ended before.
    pub fn wait_for_child(mut gate: &UnixStream) -> Option<i32> {
        let mut id = [0; 4];
        gate.read_exact(&mut id).ok()?;
        Some(i32::from_ne_bytes(id))
    }

    /// Lets the process continue.
    pub fn release(mut gate: &UnixStream) {
        // Fails only if the process is gone.
        drop(gate.write_all(&[1]));
    }
}

/// Signals whose disposition in this process may differ from the one it was started with: Rust's
/// runtime ignores SIGPIPE before `main`, and [`set_recording_dispositions`] changes the others.
const CHANGED_SIGNALS: [i32; 3] = [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ];
/// Whether each of [`CHANGED_SIGNALS`] was ignored when this process started.
static WERE_IGNORED: [AtomicBool; CHANGED_SIGNALS.len()] =
    [const { AtomicBool::new(false) }; CHANGED_SIGNALS.len()];

/// Fills in [`WERE_IGNORED`]; a signal of unknown disposition counts as not ignored.
extern "C" fn look_up_dispositions() {
    for (signal, was_ignored) in CHANGED_SIGNALS.into_iter().zip(&WERE_IGNORED) {
        let is_ignored = signal::disposition(signal).ok() == Some(libc::SIG_IGN);
        was_ignored.store(is_ignored, Ordering::Relaxed);
    }
}

// SAFETY: functions in .init_array run once, before main, with the C library ready; this one only
// makes system calls and stores flags.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_UP_DISPOSITIONS: extern "C" fn() = look_up_dispositions;

/// Makes this process receive the exit statuses of its children (if a parent ignored SIGCHLD, the
/// kernel discards them), and get EFBIG instead of SIGXFSZ when a file may not grow (`ulimit -f`).
/// [`spawn`] gives commands the dispositions that this process was started with.
pub fn set_recording_dispositions() {
    // SAFETY: both are valid dispositions of these signals.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Runs in the new process: restores the dispositions that its parent was started with.
fn restore_dispositions() {
    for (signal, was_ignored) in CHANGED_SIGNALS.into_iter().zip(&WERE_IGNORED) {
        let was_ignored = was_ignored.load(Ordering::Relaxed);
        // SAFETY: both are valid dispositions of these signals.
        unsafe { libc::signal(signal, if was_ignored { libc::SIG_IGN } else { libc::SIG_DFL }) };
    }
}

/// Moves `descriptor` to the first free number of `numbers`, or else to a free one from 10 on:
/// shells redirect by the numbers below. It is closed on exec unless it becomes
/// [`Setup::inherited_descriptor`].
///
/// # Errors
/// Returns the error of fcntl(2): `EMFILE` if no descriptor is free.
pub fn dup_to_one_of(descriptor: OwnedFd, numbers: &[i32]) -> io::Result<OwnedFd> {
    const FIRST_UNUSUAL_NUMBER: i32 = 10;
    let duplicate_from = |number: i32| {
        // SAFETY: fcntl reads its integer arguments only.
        let result = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number) };
        let duplicate = crate::check(result.into())? as i32;
        // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
        io::Result::Ok(unsafe { OwnedFd::from_raw_fd(duplicate) })
    };
    for &number in numbers {
        let duplicate = duplicate_from(number)?;
        if duplicate.as_raw_fd() == number {
            return Ok(duplicate);
        }
    }
    duplicate_from(FIRST_UNUSUAL_NUMBER)
}

/// Sets close-on-exec for the inherited descriptor `number`.
///
/// # Errors
/// Returns the error of fcntl(2): `EBADF` if there is no such descriptor.
pub fn set_close_on_exec(number: i32) -> io::Result<()> {
    // SAFETY: fcntl reads its integer arguments only.
    crate::check(unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) }.into()).map(drop)
}

/// Returns a copy of the inherited socket under `number`, leaving the descriptor itself unchanged;
/// `None` if it is not a socket, or no descriptor is free.
pub fn inherited_socket(number: i32) -> Option<UnixStream> {
    // SAFETY: an all-zero stat is a valid value of that plain C struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is live and writable; an invalid number is an error.
    let result = unsafe { libc::fstat(number, &raw mut stat) };
    if result != 0 || stat.st_mode & libc::S_IFMT != libc::S_IFSOCK {
        return None;
    }
    // SAFETY: fcntl reads its integer arguments only.
    let copy =
        crate::check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) }.into())
            .ok()?;
    // SAFETY: the kernel just made this descriptor for us; nothing else owns it.
    Some(unsafe { UnixStream::from_raw_fd(copy as i32) })
}
