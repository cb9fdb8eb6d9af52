//! A call inside a stopped thread of an unprepared process, safe at every instant.
//!
//! The call looks to the kernel like a signal handler's: below the thread's stack lies a whole
//! signal frame, the function returns into libc's own rt_sigreturn, and the kernel puts everything
//! back. Whoever injected it may die at any point; the thread finishes the call and goes on.
//!
//! Alive, we are told of the end in one of two ways. Mostly a signal that the program ignores waits
//! for the thread, blocked as all are during the call: the rt_sigreturn unblocks it, and the kernel
//! stops the thread for us. An rt_sigreturn forgets how to go on with nanosleep, poll or a timed
//! futex, though; a thread that is in one is stopped at every system call instead, and the
//! rt_sigreturn is cancelled at its entry. A bare system call is put back at its own exit already. Each way the thread ends
//! in the very kind of stop it was found in, with its first registers, so that the kernel itself restarts what it would have.
//!
//! A cancelled system call is to a seccomp filter the call -1, which may kill. So nothing is cancelled under one, and a
//! thread that would have to be is not taken ([`ends_unnoticed`]).
//!
//! All signals but those of faults are blocked during the call, so that no handler runs in the midst of it. But whoever sent one may wait
//! for the handler and hold what the call waits for: a collector stops all threads by signals, also one that is in malloc. So a thread
//! that sleeps in the call while such a signal waits for it is given that signal.
//!
//! It decides nothing about which thread, or when: see `choose`.

use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};
use strandline_sys::{memory, registers};

use super::frame::{self, ExtendedState};
use crate::memory::Memory;
use crate::procfs::Doing;
use crate::target::tracee::{self, Tracee};

/// Stack that a called function may use.
pub const CALL_STACK_BYTES: u64 = 16 << 10;
/// `NT_X86_XSTATE`
const NT_X86_XSTATE: i32 = 0x202;
/// More than any processor's image.
const MAX_XSTATE_BYTES: usize = 64 << 10;
/// `mov $15, %rax; syscall`: libc's return from a signal handler (`__restore_rt`), by which
/// debuggers know a signal frame.
pub const TRAMPOLINE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
const RT_SIGRETURN: u64 = 15;
const FUTEX: i64 = 202;
/// Direction, trap and alignment-check flags: clear at a function's entry.
const NO_ENTRY_FLAGS: u64 = 1 << 10 | 1 << 8 | 1 << 18;
/// Signals that a fault in the call raises (ILL, TRAP, BUS, FPE, SEGV, SYS) stay unblocked: the
/// kernel would reset the handler of a blocked one.
const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;

/// A call to make.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The function's address, or that of a `syscall` instruction followed by `ret`.
    pub function: u64,
    /// RAX at its entry.
    pub rax: u64,
    /// Its first three arguments.
    pub arguments: [u64; 3],
    /// Where the bytes of [`TRAMPOLINE`] are in executable memory of the target.
    pub trampoline: u64,
    /// Bytes right below the red zone that the caller has written something to: the frame is put below them, and so is
    /// that of a signal handler that runs before the call.
    pub reserved_bytes: u64,
    /// Whether the signals of faults are blocked as well: for a bare system call, in which none is expected and a handler
    /// would run in what the call makes.
    pub blocks_faults: bool,
}

/// Why a call was not made, or not seen to its end.
#[derive(Debug)]
pub enum CallError {
    /// Before anything was touched.
    NotBegun(std::io::Error),
    /// The thread ended in the call; so did its process, most likely.
    Died(Event),
    /// Not done in time. The thread was let go and finishes alone.
    Late,
    /// The kernel refused something midway. The thread is let go and finishes alone.
    Lost(std::io::Error),
}

/// Signals that do nothing where they are not caught: URG, WINCH, CHLD.
const HARMLESS_SIGNALS: [i32; 3] = [23, 28, 17];
/// How often it is asked whether a signal waits for a thread that sleeps in the call; at the second time it is let through.
const LOOKS_FOR_SIGNALS: Duration = Duration::from_millis(20);
/// `-ERESTART_RESTARTBLOCK`: the thread's system call goes on from notes that rt_sigreturn drops.
const RESTART_BLOCK: u64 = (-516_i64) as u64;

/// A thread with a call under way: its frame is written and its registers are set.
pub struct Injected<'a> {
    tracee: Tracee<'a>,
    mask: u64,
    state: ExtendedState,
    frame_address: u64,
    trampoline: u64,
    /// The signal that waits for the thread to announce the end of the call, if that way is taken.
    announcement: Option<i32>,
    /// Whether a signal of the program's own was delivered after the call already.
    is_signalled: bool,
    /// Whether it is, or may be, under a seccomp filter.
    is_filtered: bool,
    /// Whether signals are let through just now.
    is_open: bool,
    /// Whether a signal waited for it, asleep, when that was last asked.
    was_waited_for: bool,
    /// When the call began.
    pub began: Instant,
}

/// Writes the frame and sets the registers; the thread is still stopped. Where it fails nothing was
/// touched but memory below the red zone, and the thread is let go.
pub fn begin<'a>(mut tracee: Tracee<'a>, call: &Call) -> Result<Injected<'a>, CallError> {
    let (mask, state, frame_address, entry) = prepare(&tracee, call).map_err(CallError::NotBegun)?;
    let (tid, original) = (tracee.tid, tracee.registers);
    let is_filtered = !tracee.process.task_status(tid).is_ok_and(|status| !status.is_under_seccomp());
    // From the next line on the call runs, whatever becomes of us; until here it does not.
    ptrace::set_registers(tid, &entry).map_err(CallError::NotBegun)?;
    tracee.hold(false);
    if let Err(error) =
        ptrace::set_signal_mask(tid, if call.blocks_faults { u64::MAX } else { mask | !FAULTS })
    {
        // Still in its first stop, without having run an instruction: undo.
        ptrace::set_registers(tid, &original).map_err(CallError::Lost)?;
        tracee.hold(true);
        return Err(CallError::NotBegun(error));
    }
    let trampoline = call.trampoline;
    let (announcement, is_signalled, began) = (None, false, Instant::now());
    Ok(Injected {
        tracee,
        mask,
        state,
        frame_address,
        trampoline,
        announcement,
        is_signalled,
        is_filtered,
        is_open: false,
        was_waited_for: false,
        began,
    })
}

/// Whether the end of a function's call in a stopped thread under a seccomp filter would go unnoticed by the program.
pub fn ends_unnoticed(tracee: &Tracee<'_>) -> bool {
    ptrace::signal_mask(tracee.tid).is_ok_and(|mask| announcement(tracee, mask).is_some())
}

/// Whether a stopped thread blocks signals that its program handles; true where that cannot be read.
pub fn blocks_handled(tracee: &Tracee<'_>) -> bool {
    let caught = tracee.process.task_status(tracee.tid).ok().and_then(|status| status.caught);
    let mask = ptrace::signal_mask(tracee.tid).ok();
    caught.zip(mask).is_none_or(|(caught, mask)| caught & mask != 0)
}

/// Whether the code at `address` is a C library's return from a signal handler.
pub fn is_trampoline(memory: &dyn Memory, address: u64) -> bool {
    let mut code = [0; TRAMPOLINE.len()];
    memory.read_some(address, &mut code) == code.len() && code == TRAMPOLINE
}

/// The signal that can announce the end of a call, where one is harmless here.
fn announcement(tracee: &Tracee<'_>, mask: u64) -> Option<i32> {
    let first = &tracee.registers;
    if (first.orig_rax as i64) >= 0 && first.rax == RESTART_BLOCK {
        return None;
    }
    let status = tracee.process.task_status(tracee.tid).ok()?;
    let waiting = status.pending? | status.shared_pending?;
    // Not caught, else we might die and the handler run; and let through by the first mask.
    let unfit = status.caught? | waiting | mask;
    HARMLESS_SIGNALS.into_iter().find(|signal| unfit >> (signal - 1) & 1 == 0)
}

/// Reads what is to be put back and writes the frame.
fn prepare(tracee: &Tracee<'_>, call: &Call) -> std::io::Result<(u64, ExtendedState, u64, Registers)> {
    let invalid = |what: &'static str| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
    let tid = tracee.tid;
    let mask = ptrace::signal_mask(tid)?;
    let state = extended_state(tid)?;
    let frame = frame::build(&tracee.registers, mask, &state, call.trampoline, call.reserved_bytes)
        .ok_or_else(|| invalid("no room below the stack pointer"))?;
    memory::write(tracee.process.pid(), frame.address, &frame.bytes)?;
    let old = &tracee.registers;
    let mut entry = registers::zeroed();
    (entry.cs, entry.ss, entry.ds, entry.es) = (old.cs, old.ss, old.ds, old.es);
    (entry.fs, entry.gs, entry.fs_base, entry.gs_base) = (old.fs, old.gs, old.fs_base, old.gs_base);
    entry.eflags = old.eflags & !NO_ENTRY_FLAGS;
    entry.rip = call.function;
    entry.rsp = frame.address;
    entry.rax = call.rax;
    [entry.rdi, entry.rsi, entry.rdx] = call.arguments;
    entry.orig_rax = u64::MAX;
    Ok((mask, state, frame.address, entry))
}

impl Injected<'_> {
    /// The thread's registers where it is stopped now.
    pub fn registers(&self) -> std::io::Result<Registers> {
        ptrace::registers(self.tracee.tid)
    }

    /// Sets the thread's registers where it is stopped now.
    pub fn set_registers(&self, registers: &Registers) -> std::io::Result<()> {
        ptrace::set_registers(self.tracee.tid, registers)
    }

    /// When the thread was first stopped.
    pub fn stopped_since(&self) -> Instant {
        self.tracee.since
    }

    /// Runs on to the next entry or exit of a system call and returns the registers there.
    pub fn next_system_call(&mut self, deadline: Instant) -> Result<Registers, CallError> {
        let tid = self.tracee.tid;
        let mut signal = 0;
        loop {
            ptrace::resume_to_syscall(tid, signal).map_err(CallError::Lost)?;
            match self.next_event(ptrace::resume_to_syscall, deadline).map_err(CallError::Lost)? {
                Some(Event::Syscall) => return ptrace::registers(tid).map_err(CallError::Lost),
                Some(event @ Event::Exited { .. }) => return Err(CallError::Died(event)),
                // A fault in the call, or what was let through: the program's own handler, or its end, as without us.
                Some(Event::Signal(number)) => {
                    self.close(number).map_err(CallError::Lost)?;
                    signal = number;
                }
                // A stop of the whole process reaches us too; the call goes on and ends first.
                Some(Event::Stopped | Event::GroupStop(_) | Event::Other(_)) => signal = 0,
                None => return Err(CallError::Late),
            }
            if Instant::now() >= deadline {
                return Err(CallError::Late);
            }
        }
    }

    /// Waits for the next event of the thread, which `resume` made run. Signals that wait for it while it sleeps are let through.
    fn next_event(
        &mut self,
        resume: fn(i32, i32) -> std::io::Result<()>,
        deadline: Instant,
    ) -> std::io::Result<Option<Event>> {
        let tid = self.tracee.tid;
        loop {
            let event = tracee::next_event(tid, deadline.min(Instant::now() + LOOKS_FOR_SIGNALS))?;
            if event.is_some() || Instant::now() >= deadline {
                return Ok(event);
            }
            let is_waited_for = self.is_waited_for();
            if !(std::mem::replace(&mut self.was_waited_for, is_waited_for) && is_waited_for) {
                continue;
            }
            ptrace::interrupt(tid)?;
            match tracee::next_event(tid, deadline)? {
                Some(Event::Stopped) => {
                    // The call may have returned meanwhile: then the thread has its own mask back, and the end is announced next.
                    let (now, returned) =
                        (ptrace::registers(tid)?, frame::restarting(&self.tracee.registers));
                    if (now.rip, now.rsp) != (returned.rip, returned.rsp) {
                        self.open()?;
                    }
                    resume(tid, 0)?;
                }
                other => return Ok(other),
            }
        }
    }

    /// Whether the thread waits for a lock while a signal waits for it that it would handle if it were not in the call. In a handler that
    /// was let through it waits otherwise (sigsuspend), and what that blocks stays blocked.
    fn is_waited_for(&self) -> bool {
        let (process, tid) = (self.tracee.process, self.tracee.tid);
        if !matches!(process.task_doing(tid), Some(Doing::Call(call)) if call.number == FUTEX) {
            return false;
        }
        let Ok(status) = process.task_status(tid) else { return false };
        let waiting = status.pending.unwrap_or(0) | status.shared_pending.unwrap_or(0);
        waiting & status.caught.unwrap_or(0) & !self.mask != 0
    }

    /// The signals that are blocked while they are let through: what the thread had blocked, and the one that announces the call's end.
    fn open_mask(&self) -> u64 {
        self.mask | self.announcement.map_or(0, |signal| 1 << (signal - 1))
    }

    fn open(&mut self) -> std::io::Result<()> {
        self.is_open = true;
        ptrace::set_signal_mask(self.tracee.tid, self.open_mask())
    }

    /// In the stop before a signal that was let through: its handler returns to a call in which all others are blocked again. The signal
    /// itself stays open, as the kernel would keep one that is blocked by now for later.
    fn close(&mut self, signal: i32) -> std::io::Result<()> {
        if std::mem::take(&mut self.is_open) {
            let own = 1_u64.checked_shl(signal.wrapping_sub(1) as u32).unwrap_or(0);
            ptrace::set_signal_mask(self.tracee.tid, (self.mask | !FAULTS) & !own)?;
        }
        Ok(())
    }

    /// Whether a stop with `registers` is at the entry of the rt_sigreturn that ends the call.
    pub fn is_returning(&self, registers: &Registers) -> bool {
        registers.orig_rax == RT_SIGRETURN
            && registers.rip == self.trampoline.wrapping_add(TRAMPOLINE.len() as u64)
            && registers.rsp == self.frame_address.wrapping_add(8)
    }

    /// Runs the call to its end. The thread stays stopped there.
    pub fn run(&mut self, deadline: Instant) -> Result<(), CallError> {
        self.announcement = self.announce();
        match self.announcement {
            Some(signal) => self.run_to_announcement(signal, deadline),
            None => self.run_to_return(deadline),
        }
    }

    /// Runs to the entry of the rt_sigreturn, stopping at each system call; under a filter, where it cannot be cancelled,
    /// through it.
    fn run_to_return(&mut self, deadline: Instant) -> Result<(), CallError> {
        loop {
            let registers = self.next_system_call(deadline)?;
            if self.is_returning(&registers) {
                break;
            }
        }
        if self.is_filtered {
            self.next_system_call(deadline)?;
        }
        Ok(())
    }

    /// Leaves a signal waiting that will announce the end of the call, where one is harmless here.
    fn announce(&self) -> Option<i32> {
        let signal = announcement(&self.tracee, self.mask)?;
        strandline_sys::process::signal_thread(self.tracee.process.pid(), self.tracee.tid, signal).ok()?;
        Some(signal)
    }

    /// Runs to the stop that `announcement` brings about once the rt_sigreturn has put all back.
    fn run_to_announcement(&mut self, announcement: i32, deadline: Instant) -> Result<(), CallError> {
        let tid = self.tracee.tid;
        let returned = frame::restarting(&self.tracee.registers);
        let mut signal = 0;
        loop {
            ptrace::resume(tid, signal).map_err(CallError::Lost)?;
            signal = 0;
            match self.next_event(ptrace::resume, deadline).map_err(CallError::Lost)? {
                Some(Event::Signal(number)) if number == announcement => return Ok(()),
                Some(Event::Signal(number)) => {
                    self.close(number).map_err(CallError::Lost)?;
                    signal = number;
                    let now = ptrace::registers(tid).map_err(CallError::Lost)?;
                    if (now.rip, now.rsp) == (returned.rip, returned.rsp) {
                        // It came during the call and is delivered after it: to the program's own
                        // state, so that the kernel ends or restarts its system call as ever.
                        ptrace::set_registers(tid, &self.tracee.registers).map_err(CallError::Lost)?;
                        self.is_signalled = true;
                    }
                }
                Some(event @ Event::Exited { .. }) => return Err(CallError::Died(event)),
                Some(Event::Stopped | Event::GroupStop(_) | Event::Syscall | Event::Other(_)) => {}
                None => return Err(CallError::Late),
            }
        }
    }

    /// At the end of the call, or at the exit of any system call of it that is the last one wanted: puts everything back and
    /// lets the thread go, and returns how long it was held in all. Where the kernel refuses a step the thread goes on by itself.
    pub fn finish(mut self, limit: Duration) -> Result<Duration, CallError> {
        let tid = self.tracee.tid;
        if self.announcement.is_some() {
            return self.resume_program();
        }
        self.put_back().map_err(CallError::Lost)?;
        // The thread is whole again from here on. But an interrupted system call now restarts even
        // if a handler runs first that should end it with EINTR. So it is brought back into the kind
        // of stop it was found in, where its first registers mean to the kernel what they meant.
        let deadline = Instant::now() + limit;
        let brought = ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, 0));
        brought.map_err(CallError::Lost)?;
        match tracee::next_event(tid, deadline).map_err(CallError::Lost)? {
            Some(Event::Stopped) => self.resume_program(),
            // A group stop, or a signal about to be delivered: everything is in place already.
            Some(Event::Signal(signal)) => self.leave(signal),
            Some(Event::GroupStop(_) | Event::Syscall | Event::Other(_)) => self.leave(0),
            Some(event @ Event::Exited { .. }) => Err(CallError::Died(event)),
            None => Err(CallError::Late),
        }
    }

    /// In the kind of stop the thread was found in: sets its first registers, unless a handler runs
    /// by now, and lets it go.
    fn resume_program(mut self) -> Result<Duration, CallError> {
        let held = self.tracee.since.elapsed();
        if self.is_signalled {
            return self.leave(0);
        }
        ptrace::set_registers(self.tracee.tid, &self.tracee.registers).map_err(CallError::Lost)?;
        self.tracee.hold(true);
        self.tracee.let_go();
        Ok(held)
    }

    fn leave(self, signal: i32) -> Result<Duration, CallError> {
        let held = self.tracee.since.elapsed();
        ptrace::detach(self.tracee.tid, signal).map_err(CallError::Lost)?;
        Ok(held)
    }

    /// Mask, extended state, then all general registers in one step; with `orig_rax` of -1, which
    /// cancels the system call at whose entry the thread stands, if it does. Before the last step the
    /// rt_sigreturn still does all of it.
    fn put_back(&mut self) -> std::io::Result<()> {
        let tid = self.tracee.tid;
        ptrace::set_signal_mask(tid, self.mask)?;
        ptrace::set_register_set(tid, NT_X86_XSTATE, &self.state.image)?;
        ptrace::set_registers(tid, &frame::restarting(&self.tracee.registers))
    }

    /// Leaves the thread to finish the call by itself, with its own signals let through: its frame puts everything else back.
    pub fn abandon(self) {
        let tid = self.tracee.tid;
        // Only a stopped thread can be let go. If it does not stop, the end of this tracer does it.
        let _ = ptrace::interrupt(tid);
        let deadline = Instant::now() + Duration::from_millis(100);
        match tracee::next_event(tid, deadline) {
            Ok(Some(Event::Signal(signal))) => {
                let _ = ptrace::detach(tid, signal);
            }
            Ok(Some(event)) => {
                if event == Event::Stopped {
                    let _ = ptrace::set_signal_mask(tid, self.open_mask());
                }
                let _ = ptrace::detach(tid, 0);
            }
            _ => {}
        }
    }
}

fn extended_state(tid: i32) -> std::io::Result<ExtendedState> {
    let image = ptrace::register_set(tid, NT_X86_XSTATE, MAX_XSTATE_BYTES)?;
    let invalid = || std::io::Error::new(std::io::ErrorKind::InvalidData, "no extended processor state");
    ExtendedState::new(image).ok_or_else(invalid)
}

/// The bytes of extended state in the signal frame of a stopped thread: without AMX's tiles (8 KiB), which most threads may
/// not use.
pub fn extended_state_bytes(tid: i32) -> std::io::Result<u64> {
    Ok(extended_state(tid)?.frame_bytes())
}
