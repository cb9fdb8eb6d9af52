//! A call in a stopped thread of an unprepared process, safe at every instant.
//!
//! To the kernel the call looks like a signal handler: a complete signal frame is below the
//! thread's stack, the function returns into libc's own rt_sigreturn, and the kernel restores
//! everything. If strandline dies at any point, the thread finishes the call and continues.
//!
//! While strandline lives, it observes the end (`ending.rs`) and restores the thread itself; after
//! a bare system call at the exit of that call. The thread ends in the kind of stop in which it was
//! found, with its original registers, so that the kernel restarts what it would have restarted.
//!
//! All signals except those of faults are blocked during the call, so that no handler runs within
//! it. But the sender of a signal may wait for its handler while it holds what the call waits for:
//! garbage collectors stop all threads by signals, including one in malloc. So the signals of a
//! runtime's own handlers (`handlers.rs`) stay unblocked, also if strandline dies. If a handler
//! only looks like one, its signal is delivered while the thread sleeps for a lock in the call.
//!
//! If a handler has run in the call, the thread's own system call ends as if it had run after it.
//!
//! This module does not choose the thread or the moment; its callers do.

use std::ops::Range;
use std::time::{Duration, Instant};

use strandline_sys::ptrace::{self, Event, Registers};
use strandline_sys::{memory, registers};

use super::code::CallSites;
use super::frame::{self, ExtendedState, SignalFrame};
use super::handlers::{self, StopSignals};
use super::{filters, stack};
use crate::memory::Memory;
use crate::procfs::signal_bit;
use crate::target::exit_watch::{self, AfterRelease};
use crate::target::live::ByPid;
use crate::target::tracee::{self, Tracee};

/// Stack reserved for a called function.
pub const CALL_STACK_BYTES: u64 = 16 << 10;
/// The ELF note type of the extended processor state.
const NT_X86_XSTATE: i32 = 0x202;
/// Maximum size of an extended state; those of real processors are smaller.
const MAX_XSTATE_BYTES: usize = 64 << 10;
/// `mov $15, %rax; syscall`: the return of libc from a signal handler (`__restore_rt`), by which
/// debuggers recognise a signal frame.
pub const TRAMPOLINE: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// The return from a signal frame.
pub const RT_SIGRETURN: u64 = 15;
/// Direction, trap and alignment-check flags: clear at a function entry.
const NO_ENTRY_FLAGS: u64 = 1 << 10 | 1 << 8 | 1 << 18;
/// Signals raised by a fault in the call (ILL, TRAP, BUS, FPE, SEGV, SYS) stay unblocked: for a
/// blocked one the kernel would reset the handler.
pub(super) const FAULTS: u64 =
    signal_bit(4) | signal_bit(5) | signal_bit(7) | signal_bit(8) | signal_bit(11) | signal_bit(31);
/// KILL and STOP, which the kernel leaves out of every mask.
pub(crate) const UNBLOCKABLE: u64 = signal_bit(9) | signal_bit(19);

/// A call to make.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Address of the function, or of a `syscall` instruction followed by `ret`.
    pub function: u64,
    /// RAX at its entry.
    pub rax: u64,
    /// Its first three arguments.
    pub arguments: [u64; 3],
    /// Code of the target through which the call goes.
    pub sites: CallSites,
    /// Bytes right below the red zone that the caller has written to: the frame, and that of a
    /// signal handler that runs before the call, go below them.
    pub reserved_bytes: u64,
    /// Code of runtimes' handlers that stop and restart threads: they may run in the call of a
    /// function.
    pub stop_handlers: &'a [Range<u64>],
    /// Whether `function` is a bare system call. It should not fault, and a handler would run in
    /// the process that it makes: so fault signals are blocked as well.
    pub is_system_call: bool,
}

/// Why a call was not made, or its end not observed.
#[derive(Debug)]
pub enum CallError {
    /// The call failed before anything but unused stack was changed.
    NotStarted(std::io::Error),
    /// The thread ended in the call, and most likely its process too.
    Died(Event),
    /// The call did not end in time. The thread finishes it alone once it is detached: by
    /// [`Injected::abandon`], or at the end of its tracer.
    TimedOut,
    /// The kernel refused a step midway. The thread finishes alone once its tracer ends.
    Failed(std::io::Error),
}

/// Most errors occur midway: [`CallError::Failed`].
impl From<std::io::Error> for CallError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Maximum time for a thread to stop before it is left to finish the call.
const MAX_ABANDON_TIME: Duration = Duration::from_millis(100);

/// A thread in a call: its frame is written and its registers are set.
///
/// # Errors
/// Its methods return [`CallError`], or the kernel's error, `ESRCH` if the thread has ended.
pub struct Injected<'a> {
    pub(super) tracee: Tracee<'a>,
    /// The mask at the stop, restored at the end.
    pub(super) original_mask: u64,
    /// The mask of the code of the call, outside of handlers.
    pub(super) call_mask: u64,
    /// Signals whose handlers may run in the call.
    pub(super) stop_signals: StopSignals,
    /// The extended processor state at the stop.
    state: ExtendedState,
    /// The frame that restores the thread.
    pub frame_address: u64,
    /// See [`Call::sites`].
    pub(super) sites: CallSites,
    /// The pending signal that announces the end of the call; `None` if the end is observed
    /// otherwise (`ending.rs`).
    pub(super) announcement: Option<i32>,
    /// Whether a signal of the program was delivered after the call.
    pub(super) has_delivered_signal: bool,
    /// Whether a handler ran in the call.
    pub(super) has_run_handler: bool,
    /// Whether the thread left the call without a stop and runs the program.
    pub(super) has_left: bool,
    /// Whether the thread is, or may be, under a seccomp filter.
    pub(super) may_be_filtered: bool,
    /// Whether pending signals are being delivered.
    pub(super) is_delivering: bool,
    /// Whether at the last check the thread slept with a signal pending.
    pub(super) slept_with_pending_signal: bool,
    /// Another thread that is held for the call ([`Injected::hold_other`]).
    pub(super) other_thread: Option<Tracee<'a>>,
    /// When the call began.
    pub begun_at: Instant,
}

/// Writes the frame and sets the registers; the thread stays stopped. It is released if the call
/// is not started.
pub fn begin<'a>(tracee: Tracee<'a>, call: &Call<'_>) -> Result<Injected<'a>, CallError> {
    let Prepared { mask, state, frame_address, entry } =
        prepare(&tracee, call).map_err(CallError::NotStarted)?;
    let status = tracee.process.task_status(tracee.tid).ok();
    let blocked = if call.is_system_call { u64::MAX } else { mask | !FAULTS };
    let mut injected = Injected {
        original_mask: mask,
        call_mask: blocked & !UNBLOCKABLE,
        stop_signals: StopSignals::default(),
        state,
        frame_address,
        sites: call.sites,
        announcement: None,
        has_delivered_signal: false,
        has_run_handler: false,
        has_left: false,
        may_be_filtered: status.as_ref().is_none_or(|status| status.is_under_seccomp()),
        is_delivering: false,
        slept_with_pending_signal: false,
        other_thread: None,
        begun_at: Instant::now(),
        tracee,
    };
    if call.is_system_call {
        return injected.start(&entry, injected.call_mask).map(|()| injected);
    }
    // Without a status the thread is ending: no handler needs to run in its call.
    let queried_signals = status.map_or(0, |status| handlers::signals_to_query(&status, mask));
    if queried_signals == 0 || filters::objection(&injected.tracee, &[handlers::ACTION_QUERY]).is_some() {
        injected.stop_signals.likely_signals = queried_signals;
        return injected.start(&entry, injected.call_mask).map(|()| injected);
    }
    match injected.query_handlers_and_enter(queried_signals, &entry, call.stop_handlers) {
        Ok(()) => Ok(injected),
        Err(error) => {
            if matches!(error, CallError::TimedOut) {
                injected.abandon();
            }
            Err(error)
        }
    }
}

/// Whether a stopped thread blocks signals that its program handles; true if unknown.
pub fn blocks_handled(tracee: &Tracee<'_>) -> bool {
    let caught = tracee.process.task_status(tracee.tid).ok().and_then(|status| status.caught_signals);
    let mask = ptrace::signal_mask(tracee.tid).ok();
    caught.zip(mask).is_none_or(|(caught, mask)| caught & mask != 0)
}

/// Whether the code at `address` is a C library's return from a signal handler.
pub fn is_trampoline(memory: &dyn Memory, address: u64) -> bool {
    let mut code = [0; TRAMPOLINE.len()];
    memory.read_some(address, &mut code) == code.len() && code == TRAMPOLINE
}

/// What [`begin`] needs to enter a call.
struct Prepared {
    /// The thread's signal mask.
    mask: u64,
    /// Its extended processor state.
    state: ExtendedState,
    /// Where the frame was written.
    frame_address: u64,
    /// The registers at the entry of the function.
    entry: Registers,
}

/// Reads the state to restore and writes the frame.
fn prepare(tracee: &Tracee<'_>, call: &Call<'_>) -> std::io::Result<Prepared> {
    let tid = tracee.tid;
    if !call.sites.is_still_present(&ByPid::new(tracee.process.pid())) {
        return Err(invalid_data("the code for the call is not mapped any more"));
    }
    let mask = ptrace::signal_mask(tid)?;
    let state = extended_state(tid)?;
    let frame = frame::build(&tracee.registers, mask, &state, call.sites.trampoline, call.reserved_bytes)
        .ok_or_else(|| invalid_data("no room below the stack pointer"))?;
    memory::write(tracee.process.pid(), frame.address, &frame.bytes)?;
    let original = &tracee.registers;
    let mut entry = registers::zeroed();
    (entry.cs, entry.ss, entry.ds, entry.es) = (original.cs, original.ss, original.ds, original.es);
    (entry.fs, entry.gs, entry.fs_base, entry.gs_base) =
        (original.fs, original.gs, original.fs_base, original.gs_base);
    entry.eflags = original.eflags & !NO_ENTRY_FLAGS;
    entry.rip = call.function;
    entry.rsp = frame.address;
    entry.rax = call.rax;
    [entry.rdi, entry.rsi, entry.rdx] = call.arguments;
    entry.orig_rax = u64::MAX;
    Ok(Prepared { mask, state, frame_address: frame.address, entry })
}

impl<'a> Injected<'a> {
    /// Keeps another thread, which holds no lock, stopped until the call ends or takes long.
    pub fn hold_other(&mut self, other: Tracee<'a>) {
        self.other_thread = Some(other);
    }

    /// Releases the thread of [`Injected::hold_other`].
    pub fn release_other(&mut self) {
        self.other_thread = None;
    }
}

impl Injected<'_> {
    /// Sets the first registers and the mask.
    pub(super) fn start(&mut self, entry: &Registers, mask: u64) -> Result<(), CallError> {
        let tid = self.tracee.tid;
        // From the next line on the call runs even if strandline dies; until here it does not.
        ptrace::set_registers(tid, entry).map_err(CallError::NotStarted)?;
        self.tracee.set_restore(false);
        if let Err(error) = ptrace::set_signal_mask(tid, mask) {
            // The thread is still in its first stop and has run no instruction: undo.
            ptrace::set_registers(tid, &self.tracee.registers)?;
            self.tracee.set_restore(true);
            return Err(CallError::NotStarted(error));
        }
        Ok(())
    }

    /// Makes the thread query the handlers of these signals, and puts it at the entry of the call.
    fn query_handlers_and_enter(
        &mut self,
        queried_signals: u64,
        entry: &Registers,
        stop_handlers: &[Range<u64>],
    ) -> Result<(), CallError> {
        self.stop_signals = handlers::query(self, queried_signals, entry, stop_handlers)?;
        // The mask first: from the second step on the function runs even if strandline dies.
        self.set_call_mask(self.call_mask & !self.stop_signals.known_signals)?;
        Ok(self.set_registers(entry)?)
    }

    /// Whether the stopped thread is known to have left the call and its handlers for the program:
    /// it is above the frame, on its own stack.
    pub(super) fn is_outside(&self) -> std::io::Result<bool> {
        let now = self.registers()?;
        let process = self.tracee.process;
        let is_on_own_stack = || {
            let space = process.address_space().ok();
            let memory = ByPid::new(process.pid());
            space.is_some_and(|space| stack::own_stack(&memory, &space, self.tracee.tid, &now).is_some())
        };
        Ok(now.rsp > self.frame_address + 8 && is_on_own_stack())
    }

    pub(super) fn set_call_mask(&mut self, mask: u64) -> std::io::Result<()> {
        ptrace::set_signal_mask(self.tracee.tid, mask)?;
        self.call_mask = mask;
        Ok(())
    }

    /// Whether the stopped thread runs the call itself, not a handler or the program.
    pub(super) fn is_in_call(&self) -> std::io::Result<bool> {
        Ok(self.call_mask != self.original_mask && ptrace::signal_mask(self.tracee.tid)? == self.call_mask)
    }

    /// The thread's registers in its current stop.
    pub fn registers(&self) -> std::io::Result<Registers> {
        ptrace::registers(self.tracee.tid)
    }

    /// Sets the thread's registers in its current stop.
    pub fn set_registers(&self, registers: &Registers) -> std::io::Result<()> {
        ptrace::set_registers(self.tracee.tid, registers)
    }

    /// Before the call has run: makes the thread return into `chain` instead, whose last frame must
    /// lead to [`Injected::frame_address`].
    pub fn enter_chain(&self, chain: &SignalFrame) -> std::io::Result<()> {
        memory::write(self.tracee.process.pid(), chain.address, &chain.bytes)?;
        let mut registers = self.registers()?;
        registers.rip = self.sites.trampoline;
        registers.rsp = chain.address + 8;
        self.set_registers(&registers)
    }

    /// Runs to the next entry or exit of a system call and returns the registers there.
    pub fn next_system_call(&mut self, deadline: Instant) -> Result<Registers, CallError> {
        self.run_to_event(ptrace::resume_to_syscall, Event::Syscall, deadline)?;
        Ok(self.registers()?)
    }

    /// Runs to the frame of the chain that unblocks `signal`, sent by [`Injected::send_harmless`],
    /// and blocks it again.
    pub fn run_to_frame(&mut self, signal: i32, deadline: Instant) -> Result<(), CallError> {
        self.run_to_event(ptrace::resume, Event::Signal(signal), deadline)?;
        Ok(ptrace::set_signal_mask(self.tracee.tid, self.call_mask)?)
    }

    /// Runs to `wanted_event`; all others are handled as if strandline were not there.
    fn run_to_event(
        &mut self,
        resume: fn(i32, i32) -> std::io::Result<()>,
        wanted_event: Event,
        deadline: Instant,
    ) -> Result<(), CallError> {
        let mut signal = 0;
        loop {
            resume(self.tracee.tid, signal)?;
            match self.next_event(resume, deadline)? {
                Some(event) if event == wanted_event => return Ok(()),
                Some(event @ Event::Exited { .. }) => return Err(CallError::Died(event)),
                // A fault in the call, or a delivered signal: the program's own handler or its end,
                // as without strandline.
                Some(Event::Signal(number)) => {
                    self.prepare_delivery(number)?;
                    signal = number;
                }
                // A stop of the whole process stops this thread too; the call continues and ends
                // first.
                Some(Event::Syscall | Event::Stopped | Event::GroupStop(_) | Event::Other(_)) => signal = 0,
                None => return Err(CallError::TimedOut),
            }
            if Instant::now() >= deadline {
                return Err(CallError::TimedOut);
            }
        }
    }

    /// The mask during delivery: what the thread had blocked, and the announcing signal.
    pub(super) fn delivery_mask(&self) -> u64 {
        self.original_mask | self.announcement.map_or(0, signal_bit)
    }

    /// Whether a stop with `registers` is at the entry of the rt_sigreturn that ends the call.
    pub fn is_returning(&self, registers: &Registers) -> bool {
        registers.orig_rax == RT_SIGRETURN
            && registers.rip == self.sites.trampoline.wrapping_add(TRAMPOLINE.len() as u64)
            && registers.rsp == self.frame_address.wrapping_add(8)
    }

    /// At the end of the call, or at the exit of its last wanted system call: restores everything,
    /// releases the thread, and returns how long it was held in all. If the kernel refuses a step,
    /// the thread continues by itself.
    pub fn finish(mut self, limit: Duration) -> Result<Duration, CallError> {
        let tid = self.tracee.tid;
        if self.has_left {
            return self.leave(AfterRelease::Runs);
        }
        if self.announcement.is_some() {
            return self.resume_program();
        }
        self.restore()?;
        // Everything is restored from here on. But an interrupted system call now restarts even if
        // a handler runs first, which should end it with EINTR. So the thread is brought back into
        // the kind of stop in which it was found, where its original registers have their original
        // meaning to the kernel.
        let deadline = Instant::now() + limit;
        let requested = ptrace::interrupt(tid).and_then(|()| ptrace::resume(tid, 0));
        requested?;
        match tracee::next_event(tid, deadline)? {
            Some(Event::Stopped) => self.resume_program(),
            Some(event @ Event::Exited { .. }) => Err(CallError::Died(event)),
            // A group stop, or a signal about to be delivered: everything is restored already.
            Some(event) => self.leave(AfterRelease::of(event)),
            None => Err(CallError::TimedOut),
        }
    }

    /// In the kind of stop in which the thread was found: restores its original registers, unless a
    /// handler has run since, and releases it.
    fn resume_program(mut self) -> Result<Duration, CallError> {
        let held_time = self.tracee.since.elapsed();
        if self.has_delivered_signal {
            return self.leave(AfterRelease::Runs);
        }
        ptrace::set_registers(self.tracee.tid, &self.program_registers())?;
        if self.has_run_handler {
            return self.leave(AfterRelease::Runs);
        }
        self.tracee.set_restore(true);
        self.tracee.let_go();
        Ok(held_time)
    }

    /// The registers with which the program continues.
    fn program_registers(&self) -> Registers {
        let original = self.tracee.registers;
        if self.has_run_handler { frame::interrupted(&original) } else { original }
    }

    /// Releases the thread with its present registers, and returns how long it was held in all.
    fn leave(self, after: AfterRelease) -> Result<Duration, CallError> {
        let held_time = self.tracee.since.elapsed();
        exit_watch::release(self.tracee.tid, after)?;
        Ok(held_time)
    }

    /// Restores the mask, the extended state, then all general registers in one step. An `orig_rax`
    /// of -1 cancels the system call at whose entry the thread is stopped, if it is. Until the last
    /// step the rt_sigreturn would still do all of this.
    fn restore(&mut self) -> std::io::Result<()> {
        let tid = self.tracee.tid;
        ptrace::set_signal_mask(tid, self.original_mask)?;
        ptrace::set_register_set(tid, NT_X86_XSTATE, &self.state.image)?;
        ptrace::set_registers(tid, &frame::restarting(&self.program_registers()))
    }

    /// Leaves the thread to finish the call by itself, with its own signal mask if it is in the
    /// call; its frame restores the rest.
    pub fn abandon(self) {
        let tid = self.tracee.tid;
        // Only a stopped thread can be detached. If it does not stop, the end of this tracer
        // detaches it. A thread whose stop was observed before has no new event.
        let _ = ptrace::interrupt(tid);
        let deadline = Instant::now() + MAX_ABANDON_TIME;
        let event = tracee::next_event(tid, deadline).ok().flatten();
        // If its mask is unknown, its frame restores the mask at the end of the call.
        if matches!(event, None | Some(Event::Stopped)) && self.is_in_call().unwrap_or(false) {
            let _ = ptrace::set_signal_mask(tid, self.delivery_mask());
        }
        let _ = exit_watch::release(tid, event.map_or(AfterRelease::Runs, AfterRelease::of));
    }
}

fn invalid_data(text: &'static str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, text)
}

/// Reads the extended processor state of a stopped thread.
fn extended_state(tid: i32) -> std::io::Result<ExtendedState> {
    let image = ptrace::register_set(tid, NT_X86_XSTATE, MAX_XSTATE_BYTES)?;
    ExtendedState::new(image).ok_or_else(|| invalid_data("no extended processor state"))
}

/// Size in bytes of the extended state in the signal frame of a stopped thread: without the AMX
/// tiles (8 KiB), which most threads may not use. Fails with the error of `PTRACE_GETREGSET`.
pub fn extended_state_bytes(tid: i32) -> std::io::Result<u64> {
    Ok(extended_state(tid)?.frame_bytes())
}
