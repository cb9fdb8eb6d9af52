//! Which signals may run their handlers during an injected call.
//!
//! A runtime that stops its own threads sends each of them a signal and waits until its handler
//! has run. A thread that blocks the signal in a call would keep the runtime waiting, and for ever
//! if the call itself waits for a lock of a thread that has been stopped. So signals whose handlers
//! are known to be a runtime's ([`Call::stop_handlers`](super::inject::Call::stop_handlers)) stay
//! unblocked. Another handler may do what is safe only outside of the allocator, so its signal is
//! blocked. /proc does not contain a handler's address: the thread itself queries it, by
//! rt_sigaction(2), before the call.

use std::ops::Range;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::Registers;

use super::filters::RequiredCall;
use super::frame::SYSCALL_BYTES;
use super::inject::{CallError, Injected};
use crate::memory::{Memory, word_at};
use crate::procfs::{Status, signal_bit};
use crate::target::live::ByPid;

/// The system call that reads a signal's action.
pub(super) const ACTION_QUERY: RequiredCall =
    RequiredCall::with_any_arguments("rt_sigaction", RT_SIGACTION as u32);
const RT_SIGACTION: u64 = 13;
/// `struct sigaction` of the x86-64 kernel (Linux, `include/linux/signal_types.h`): handler, flags,
/// restorer and mask, 8 bytes each.
const ACTION_BYTES: usize = 32;
const OFFSET_HANDLER: usize = 0;
const OFFSET_FLAGS: usize = 8;
const OFFSET_MASK: usize = 24;
const SA_RESTART: u64 = 0x1000_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;
/// `SIG_DFL` and `SIG_IGN` are 0 and 1.
const SIG_IGN: u64 = 1;
/// Size of the kernel's `sigset_t`.
const MASK_BYTES: u64 = 8;
/// Maximum time for all queries; each takes microseconds.
const MAX_QUERY_TIME: Duration = Duration::from_secs(1);

/// Signals by which runtimes stop and restart threads: USR1 and USR2 (druntime < 2.102), XCPU and
/// PWR (libgc, Mono), and 34 to 64 (druntime, Mono).
const STOP_AND_RESTART_SIGNALS: u64 =
    signal_bit(10) | signal_bit(12) | signal_bit(24) | signal_bit(30) | !0 << 33;
/// Signals that each of these runtimes blocks in its handler: USR1, USR2, ALRM, CHLD, PROF.
const BLOCKED_BY_RUNTIMES: u64 =
    signal_bit(10) | signal_bit(12) | signal_bit(14) | signal_bit(17) | signal_bit(27);

/// Signals whose handlers may stop a thread, bit n-1 for signal n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StopSignals {
    /// Signals with a handler of a runtime: they stay unblocked in the call.
    pub known_signals: u64,
    /// Signals with a handler that restarts system calls and blocks nearly all signals, as a
    /// runtime's does: they are delivered while the call waits for a lock.
    pub likely_signals: u64,
}

/// Whether the threads of a process with this status may stop each other by signals; `true` if
/// unknown.
pub fn may_stop_threads(status: &Status) -> bool {
    signals_to_query(status, 0) != 0
}

/// The signals to query: those by which threads of the process can stop the thread with this
/// status. `mask` is the one that the thread restores after its system call, during which another
/// one may be in force (ppoll). What is unknown counts as: other threads, and all signals caught.
pub(super) fn signals_to_query(status: &Status, mask: u64) -> u64 {
    if status.threads.is_some_and(|threads| threads <= 1) {
        return 0;
    }
    let blocked = mask & status.blocked_signals.unwrap_or(mask);
    status.caught_signals.unwrap_or(!0) & !blocked & STOP_AND_RESTART_SIGNALS
}

impl StopSignals {
    /// Adds `signal`, which has this action.
    fn add(&mut self, signal: i32, action: &[u8; ACTION_BYTES], stop_handlers: &[Range<u64>]) {
        // All three words are within the array.
        let word = |offset| word_at(action, offset).unwrap_or(0);
        let (handler, flags) = (word(OFFSET_HANDLER), word(OFFSET_FLAGS));
        let blocked = word(OFFSET_MASK) | signal_bit(signal);
        let resembles_a_runtimes = handler > SIG_IGN
            && flags & (SA_RESTART | SA_NODEFER | SA_RESETHAND) == SA_RESTART
            && blocked & BLOCKED_BY_RUNTIMES == BLOCKED_BY_RUNTIMES;
        if resembles_a_runtimes {
            self.likely_signals |= signal_bit(signal);
            let is_known = stop_handlers.iter().any(|code| code.contains(&handler));
            self.known_signals |= if is_known { signal_bit(signal) } else { 0 };
        }
    }
}

/// Makes a thread at the start of a call query the actions of `signals`, with all signals blocked.
/// The thread is then at the exit of its last query. If strandline dies before that, the thread
/// returns from the query to the program.
///
/// `entry` are the registers at the start of the call.
pub(super) fn query(
    injected: &mut Injected<'_>,
    signals: u64,
    entry: &Registers,
    stop_handlers: &[Range<u64>],
) -> Result<StopSignals, CallError> {
    let memory = ByPid::new(injected.tracee.process.pid());
    let deadline = Instant::now() + MAX_QUERY_TIME;
    let site = injected.sites.system_call;
    let mut query_entry = *entry;
    query_entry.rip = site;
    query_entry.rsi = 0;
    query_entry.rdx = injected.frame_address.wrapping_sub(2 * ACTION_BYTES as u64);
    query_entry.r10 = MASK_BYTES;
    let mut stop_signals = StopSignals::default();
    let mut is_first = true;
    for signal in (1..=64).filter(|&signal| signals & signal_bit(signal) != 0) {
        (query_entry.rax, query_entry.rdi) = (RT_SIGACTION, signal as u64);
        if is_first {
            injected.start(&query_entry, u64::MAX)?;
        } else {
            injected.set_registers(&query_entry)?;
        }
        is_first = false;
        // Its entry, and its exit.
        injected.next_system_call(deadline)?;
        let exit = injected.next_system_call(deadline)?;
        let mut action = [0; ACTION_BYTES];
        let is_read = memory.read(query_entry.rdx, &mut action).is_ok();
        // A signal of unknown action stays blocked in the call.
        if exit.rip == site.wrapping_add(SYSCALL_BYTES) && exit.rax == 0 && is_read {
            stop_signals.add(signal, &action, stop_handlers);
        }
    }
    Ok(stop_signals)
}

#[cfg(test)]
mod tests {
    use super::signal_bit as bit;
    use super::*;

    fn stop_signals(signal: i32, handler: u64, flags: u64, mask: u64) -> StopSignals {
        let mut action = [0; ACTION_BYTES];
        for (at, value) in [(OFFSET_HANDLER, handler), (OFFSET_FLAGS, flags), (OFFSET_MASK, mask)] {
            action[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let mut stop_signals = StopSignals::default();
        stop_signals.add(signal, &action, std::slice::from_ref(&(0x1000..0x2000)));
        stop_signals
    }

    #[test]
    fn only_a_runtime_s_handler_stays_unblocked() {
        let known = |signal| StopSignals { known_signals: bit(signal), likely_signals: bit(signal) };
        let likely = |signal| StopSignals { known_signals: 0, likely_signals: bit(signal) };
        let none = StopSignals::default();
        // libgc 8.2.2: SA_SIGINFO, all but INT, QUIT, ABRT, TERM and the faults.
        assert_eq!(stop_signals(30, 0x1000, SA_RESTART | 4, !(bit(2) | bit(3) | bit(15))), known(30));
        assert_eq!(stop_signals(10, 0x1fff, SA_RESTART, !bit(10)), known(10), "it blocks itself");
        assert_eq!(stop_signals(10, 0x2000, SA_RESTART, !0), likely(10), "a handler of the program");
        assert_eq!(stop_signals(10, 0x1000, SA_RESTART, 0), none, "signal(3)");
        assert_eq!(stop_signals(30, 0x1000, 0, !0), none, "a call that it interrupts is to end");
        assert_eq!(stop_signals(30, 0x1000, SA_RESTART | SA_NODEFER, !0), none);
        assert_eq!(stop_signals(30, SIG_IGN, SA_RESTART, !0), none);
    }

    #[test]
    fn only_threads_of_multithreaded_processes_are_queried() {
        let status = |threads: u64, blocked_signals| Status {
            threads: Some(threads),
            caught_signals: Some(bit(14) | bit(30) | bit(34)),
            blocked_signals,
            ..Status::default()
        };
        assert_eq!(signals_to_query(&status(2, None), bit(34)), bit(30));
        assert_eq!(signals_to_query(&status(2, Some(0)), bit(34)), bit(30) | bit(34), "in ppoll");
        assert_eq!(signals_to_query(&status(1, None), 0), 0);
        assert_eq!(signals_to_query(&Status::default(), !bit(30)), bit(30), "nothing is known");
    }
}
