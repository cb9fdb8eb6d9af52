//! Delays the end of this process by SIGINT, SIGTERM or SIGHUP while it has something to remove
//! first. A later signal ends it at once, but not a repeat of the first: timeout(1) signals its
//! child and then its group, and a supervisor may signal besides a terminal.

use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::host::monotonic_time;
use crate::signal::die_by;

/// Signals by which a user or a supervisor ends a process.
const ENDING_SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// Signals within this time after the first are repeats.
const REPEAT_TIME: Duration = Duration::from_secs(1);
/// Number of [`EndDelay`]s that exist.
static DELAY_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The signal that arrived meanwhile; 0 if none has.
static PENDING_SIGNAL: AtomicI32 = AtomicI32::new(0);
/// When the first one arrived, in nanoseconds of the monotonic clock; 0 if none has.
static FIRST_TIME: AtomicU64 = AtomicU64::new(0);
/// Whether the handlers were installed.
static HANDLER_SETUP: Once = Once::new();

/// The handler of [`ENDING_SIGNALS`].
extern "C" fn note_signal(signal: libc::c_int) {
    if DELAY_COUNT.load(Ordering::SeqCst) == 0 {
        die_by(signal);
    }
    let now = (monotonic_time().as_nanos() as u64).max(1);
    match FIRST_TIME.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(_) => {
            PENDING_SIGNAL.store(signal, Ordering::SeqCst);
            // The last delay may have ended meanwhile, without seeing the signal.
            if DELAY_COUNT.load(Ordering::SeqCst) == 0 {
                die_by(signal);
            }
        }
        Err(first) if now.saturating_sub(first) < REPEAT_TIME.as_nanos() as u64 => {}
        Err(_) => die_by(signal),
    }
}

/// Delays the end until dropped. Signals that the program handles, ignores or blocks are left
/// alone.
#[derive(Debug)]
pub struct EndDelay(());

impl EndDelay {
    /// Begins the delay.
    pub fn begin() -> Self {
        DELAY_COUNT.fetch_add(1, Ordering::SeqCst);
        HANDLER_SETUP.call_once(|| ENDING_SIGNALS.into_iter().for_each(install));
        Self(())
    }
}

impl Drop for EndDelay {
    fn drop(&mut self) {
        if DELAY_COUNT.fetch_sub(1, Ordering::SeqCst) == 1 {
            end_if_pending();
        }
    }
}

/// Whether such a signal has arrived.
pub fn is_pending() -> bool {
    PENDING_SIGNAL.load(Ordering::SeqCst) != 0
}

/// Ends this process by the signal that has arrived, if any.
pub fn end_if_pending() {
    match PENDING_SIGNAL.load(Ordering::SeqCst) {
        0 => {}
        signal => die_by(signal),
    }
}

/// Installs the handler of `signal` if its default action is known to be set.
fn install(signal: i32) {
    if crate::signal::disposition(signal).ok() != Some(libc::SIG_DFL) {
        return;
    }
    // SAFETY: an all-zero sigaction is a valid value of that plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = note_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is live; its handler uses atomics and async-signal-safe system calls only.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}
