//! Which signals may run their handlers during an injected call.
//!
//! A runtime that stops its own threads sends each of them a signal and waits until its handler
//! has run. A thread that blocks the signal in a call would keep the runtime waiting, and for ever
//! if the call itself waits for a lock of a thread that has been stopped. Such handlers are written
//! for any instruction of the program: they restart system calls (`SA_RESTART`) and block nearly
//! every other signal. So their signals stay unblocked. /proc does not contain these properties:
//! the thread asks for them itself, by rt_sigaction(2), before the call.

use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Registers};

use super::filters::{RequiredCall, any};
use super::frame::SYSCALL_BYTES;
use super::inject::{CallError, Injected};
use crate::memory::{Memory, word_at};
use crate::procfs::Status;
use crate::target::live::ByPid;
use crate::target::tracee::Tracee;

/// The system call that reads a handler's properties.
pub(super) const QUESTION: RequiredCall = any("rt_sigaction", RT_SIGACTION as u32);
const RT_SIGACTION: u64 = 13;
/// `struct sigaction` of the x86-64 kernel (Linux, `include/linux/signal_types.h`): handler, flags,
/// restorer and mask, 8 bytes each.
const ACTION_BYTES: usize = 32;
const OFFSET_FLAGS: usize = 8;
const OFFSET_MASK: usize = 24;
const SA_RESTART: u64 = 0x1000_0000;
/// `SIG_DFL` and `SIG_IGN` are 0 and 1.
const SIG_IGN: u64 = 1;
/// Size of the kernel's `sigset_t`.
const MASK_BYTES: u64 = 8;
/// Maximum time for all questions; each takes microseconds.
const LIMIT: Duration = Duration::from_secs(1);
/// `SI_TKILL`: sent by tgkill(2), as pthread_kill does.
const SI_TKILL: i32 = -6;

/// Signals by which runtimes stop and restart threads: USR1 and USR2 (druntime < 2.102, SBCL), URG
/// (Go), XCPU and PWR (libgc, Mono), and 34 to 64 (druntime, Mono, musl's `__synccall`).
const STOPPING: u64 = bit(10) | bit(12) | bit(23) | bit(24) | bit(30) | !0 << 33;
/// What the handler of such a signal blocks at least: USR1, USR2, ALRM, CHLD, PROF.
const BLOCKED_BY_ALL: u64 = bit(10) | bit(12) | bit(14) | bit(17) | bit(27);

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// The signals to ask for, bit n-1 for signal n: those by which threads of the process can stop the
/// thread with this status and signal mask.
pub(super) fn candidates(status: &Status, mask: u64) -> u64 {
    let has_other_threads = status.threads.is_some_and(|threads| threads > 1);
    if has_other_threads { status.caught.unwrap_or(0) & !mask & STOPPING } else { 0 }
}

/// Whether the handler of `signal` with this action may run at any instruction.
fn runs_anywhere(signal: u32, action: &[u8; ACTION_BYTES]) -> bool {
    let word = |offset| word_at(action, offset).unwrap_or(0);
    let blocked = word(OFFSET_MASK) | bit(signal);
    word(0) > SIG_IGN && word(OFFSET_FLAGS) & SA_RESTART != 0 && blocked & BLOCKED_BY_ALL == BLOCKED_BY_ALL
}

/// Has a thread at the start of a call ask for the actions of the signals `candidates`, all signals
/// blocked, and returns those whose handlers may run anywhere. The thread then stands at the exit
/// of its last question. If strandline dies before, it returns from the question to the program.
///
/// `site` is the address of `syscall; ret`, `entry` the registers at the start of the call.
pub(super) fn ask(
    injected: &mut Injected<'_>,
    site: u64,
    candidates: u64,
    entry: &Registers,
) -> Result<u64, CallError> {
    let memory = ByPid::new(injected.tracee.process.pid());
    let deadline = Instant::now() + LIMIT;
    let mut question = *entry;
    question.rip = site;
    question.rsi = 0;
    question.rdx = injected.frame_address.wrapping_sub(2 * ACTION_BYTES as u64);
    question.r10 = MASK_BYTES;
    let (mut may_run, mut has_started) = (0, false);
    for signal in (1..=64_u32).filter(|&signal| candidates & bit(signal) != 0) {
        (question.rax, question.rdi) = (RT_SIGACTION, signal.into());
        if std::mem::replace(&mut has_started, true) {
            injected.set_registers(&question).map_err(CallError::Failed)?;
        } else {
            injected.start(&question, u64::MAX)?;
        }
        // Its entry, and its exit.
        injected.next_system_call(deadline)?;
        let exit = injected.next_system_call(deadline)?;
        let mut action = [0; ACTION_BYTES];
        let is_read = memory.read(question.rdx, &mut action).is_ok();
        if exit.rip == site.wrapping_add(SYSCALL_BYTES) && exit.rax == 0 && is_read {
            may_run |= if runs_anywhere(signal, &action) { bit(signal) } else { 0 };
        }
    }
    Ok(may_run)
}

/// Whether a thread of the process has sent the signal at whose delivery `tracee` is stopped.
pub(super) fn is_sent_by_own_process(tracee: &Tracee<'_>) -> std::io::Result<bool> {
    let sender = ptrace::signal_sender(tracee.tid)?;
    // The kernel stores the sender's id in the pid namespace of the receiver.
    let own = tracee.process.status().ok().and_then(|status| status.namespace_pids.last().copied());
    Ok(sender.code == SI_TKILL && sender.pid == own.unwrap_or(tracee.process.pid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(handler: u64, flags: u64, mask: u64) -> [u8; ACTION_BYTES] {
        let mut action = [0; ACTION_BYTES];
        for (at, value) in [(0, handler), (OFFSET_FLAGS, flags), (OFFSET_MASK, mask)] {
            action[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        action
    }

    #[test]
    fn a_handler_that_restarts_calls_and_blocks_nearly_all_may_run() {
        let libgc = action(0x1000, SA_RESTART | 4, !(bit(2) | bit(3) | bit(15)));
        assert!(runs_anywhere(30, &libgc));
        assert!(runs_anywhere(10, &action(0x1000, SA_RESTART, !bit(10))), "it blocks itself");
        assert!(!runs_anywhere(10, &action(0x1000, SA_RESTART, 0)), "signal(3)");
        assert!(!runs_anywhere(30, &action(0x1000, 0, !0)), "a call that it interrupts is to end");
        assert!(!runs_anywhere(30, &action(SIG_IGN, SA_RESTART, !0)));
    }

    #[test]
    fn only_threads_with_others_are_asked() {
        let status = |threads: u64| Status {
            threads: Some(threads),
            caught: Some(bit(14) | bit(30) | bit(34)),
            ..Status::default()
        };
        assert_eq!(candidates(&status(2), bit(34)), bit(30));
        assert_eq!(candidates(&status(1), 0), 0);
    }
}
