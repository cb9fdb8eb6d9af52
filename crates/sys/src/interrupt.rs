//! Delays the end of this process by SIGINT, SIGTERM or SIGHUP while it has something to remove
//! first. A second such signal ends it at once.

use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::spawn::die_by;

/// Signals by which a user or a supervisor ends a process.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Number of [`EndDelay`]s.
static DELAYS: AtomicUsize = AtomicUsize::new(0);
/// The signal that arrived meanwhile; 0 if none has.
static PENDING: AtomicI32 = AtomicI32::new(0);
static INSTALLED: Once = Once::new();

extern "C" fn note_signal(signal: libc::c_int) {
    if DELAYS.load(Ordering::SeqCst) == 0 || PENDING.swap(signal, Ordering::SeqCst) != 0 {
        die_by(signal);
    }
}

/// Delays the end until dropped. Signals that the program handles, ignores or blocks are left
/// alone.
#[derive(Debug)]
pub struct EndDelay(());

impl EndDelay {
    /// Begins the delay.
    pub fn begin() -> Self {
        DELAYS.fetch_add(1, Ordering::SeqCst);
        INSTALLED.call_once(|| ENDING.into_iter().for_each(install));
        Self(())
    }
}

impl Drop for EndDelay {
    fn drop(&mut self) {
        if DELAYS.fetch_sub(1, Ordering::SeqCst) == 1 {
            end_if_pending();
        }
    }
}

/// Whether such a signal has arrived.
pub fn is_pending() -> bool {
    PENDING.load(Ordering::SeqCst) != 0
}

/// Ends this process by the signal that has arrived, if any.
pub fn end_if_pending() {
    match PENDING.load(Ordering::SeqCst) {
        0 => {}
        signal => die_by(signal),
    }
}

/// Installs the handler of `signal` if its default action is set.
fn install(signal: i32) {
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action only queries; `before` is live.
    let queried = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
    if queried != 0 || before.sa_sigaction != libc::SIG_DFL {
        return;
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is live; its handler uses atomics and async-signal-safe system calls only.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}
