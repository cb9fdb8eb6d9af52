//! Signal frames as the kernel writes them before a handler and reads them in rt_sigreturn.
//!
//! Layout of x86-64: `struct rt_sigframe` of arch/x86/include/asm/sigframe.h (return address, then
//! `struct ucontext`, then siginfo), and the extended state of
//! arch/x86/include/uapi/asm/sigcontext.h. This layout is kernel ABI and never changes. This module
//! only makes bytes; it touches no process.

use strandline_sys::ptrace::Registers;

use super::code::CallSites;
use crate::memory::word_at;
use crate::target::quiet::MINUS_EINTR;

/// Memory below the stack pointer that leaf functions may use without adjusting it (x86-64 ABI).
pub const RED_ZONE_BYTES: u64 = 128;
/// Return address, ucontext and siginfo; a multiple of 8.
pub const FRAME_BYTES: usize = 440;
/// EFLAGS of a new thread: interrupts on, and the bit that is always set.
const PLAIN_FLAGS: u64 = 1 << 9 | 1 << 1;
/// `uc_flags`, the first field of `struct ucontext`.
const OFFSET_UC_FLAGS: usize = 8;
/// `uc_mcontext` (`struct sigcontext`), which begins with 17 registers and the flags.
const OFFSET_GENERAL: usize = 48;
/// `cs`, `gs`, `fs` and `ss` of `struct sigcontext`, of 16 bits each.
const OFFSET_SEGMENTS: usize = OFFSET_GENERAL + 18 * 8;
/// `fpstate` of `struct sigcontext`: the address of the extended state.
const OFFSET_FPSTATE: usize = OFFSET_GENERAL + 184;
/// `uc_sigmask`, behind the 256 bytes of `struct sigcontext`.
const OFFSET_MASK: usize = OFFSET_GENERAL + 256;
/// `UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`: the kernel restores the stack segment as it is.
const UC_FLAGS_WITHOUT_STATE: u64 = 6;
/// All flags: the same and `UC_FP_XSTATE`, by which the frame has an extended state.
const UC_FLAGS: u64 = UC_FLAGS_WITHOUT_STATE | 1;
/// `uc_link`, 0 in a frame that the kernel writes.
const OFFSET_UC_LINK: usize = 16;
/// Privilege level of a program's code segment, in the two low bits of `cs`.
const USER_LEVEL: u64 = 3;
/// `gs` and `fs` in the word of the segments: 0 in a frame that the kernel writes.
const GS_AND_FS: u64 = 0xffff_ffff << 16;
/// Offset in the extended state of `struct _fpx_sw_bytes`: magic number, size with the second magic
/// number, features, size without it.
const OFFSET_SOFTWARE: usize = 464;
const OFFSET_EXTENDED_SIZE: usize = OFFSET_SOFTWARE + 4;
const OFFSET_FEATURES: usize = OFFSET_SOFTWARE + 8;
const OFFSET_XSTATE_SIZE: usize = OFFSET_SOFTWARE + 16;
/// Size of `struct _fpx_sw_bytes`.
const SOFTWARE_BYTES: usize = 48;
/// Offset in the extended state of the bit set of components in use (`xfeatures`).
const OFFSET_IN_USE: usize = 512;
/// Size of the legacy area and the header, the minimum for an extended state.
const MIN_XSTATE_BYTES: usize = 576;
/// `FP_XSTATE_MAGIC1`, before the sizes.
const MAGIC_1: u32 = 0x4650_5853;
/// `FP_XSTATE_MAGIC2`, behind the extended state.
const MAGIC_2: u32 = 0x4650_5845;
const MAGIC_BYTES: usize = 4;
/// XTILE_DATA: the AMX tiles, which a thread must request before it may use them.
const TILE_DATA: u32 = 18;

/// `-ERESTARTSYS`, `-ERESTARTNOINTR`, `-ERESTARTNOHAND`: the call is restarted.
const RESTARTS: [i64; 3] = [-512, -513, RESTARTS_WITHOUT_HANDLER];
/// `-ERESTARTNOHAND`: after a handler the call ends with EINTR.
const RESTARTS_WITHOUT_HANDLER: i64 = -514;
/// `-ERESTART_RESTARTBLOCK`: the call continues through restart_syscall.
pub(super) const RESTART_BLOCK: i64 = -516;
const RESTART_SYSCALL: u64 = 219;
/// The length of the instruction `syscall`.
pub const SYSCALL_BYTES: u64 = 2;

/// The extended state of a thread, and the part of it that a signal frame may hold.
#[derive(Clone, Debug)]
pub struct ExtendedState {
    /// The whole image, as returned by PTRACE_GETREGSET and taken by PTRACE_SETREGSET.
    pub image: Vec<u8>,
    /// Bytes of the image that a signal frame holds.
    frame_bytes: usize,
    /// The components in these bytes, as bits.
    features: u64,
}

impl ExtendedState {
    /// Takes an `NT_X86_XSTATE` image. `None` if it is too short.
    ///
    /// From a frame larger than the state permitted to the thread, the kernel restores only SSE; so
    /// the image is cut before the AMX tiles unless the thread uses them.
    pub fn new(image: Vec<u8>) -> Option<Self> {
        // The kernel made the image on this processor, so its layout is this processor's.
        Self::without_unused_tiles(image, strandline_sys::xstate::component_offset(TILE_DATA))
    }

    /// Number of bytes of it that a signal frame holds.
    pub fn frame_bytes(&self) -> u64 {
        self.frame_bytes as u64
    }

    /// Cuts an image at the offset of the tiles, if they are not in use.
    fn without_unused_tiles(image: Vec<u8>, tiles_offset: Option<usize>) -> Option<Self> {
        let mut features = word_at(&image, OFFSET_SOFTWARE)?;
        let in_use = word_at(&image, OFFSET_IN_USE)?;
        let mut frame_bytes = image.len();
        if features & !in_use & (1 << TILE_DATA) != 0
            && let Some(offset) = tiles_offset
        {
            features &= !(1 << TILE_DATA);
            frame_bytes = frame_bytes.min(offset);
        }
        (frame_bytes >= MIN_XSTATE_BYTES).then_some(Self { image, frame_bytes, features })
    }
}

/// A signal frame, ready to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalFrame {
    /// Its address; also the stack pointer at the entry of the function (8 modulo 16).
    pub address: u64,
    /// Its bytes, the return address first.
    pub bytes: Vec<u8>,
}

/// Registers for resuming a stopped thread without the kernel's restart logic: an interrupted
/// system call is restarted, as the kernel does without a signal.
pub fn restarting(registers: &Registers) -> Registers {
    let mut restarted = *registers;
    if (registers.orig_rax as i64) >= 0 {
        let result = registers.rax as i64;
        if RESTARTS.contains(&result) {
            restarted.rax = registers.orig_rax;
            restarted.rip = registers.rip.wrapping_sub(SYSCALL_BYTES);
        } else if result == RESTART_BLOCK {
            restarted.rax = RESTART_SYSCALL;
            restarted.rip = registers.rip.wrapping_sub(SYSCALL_BYTES);
        }
    }
    restarted.orig_rax = u64::MAX;
    restarted
}

/// Registers with which a stopped system call ends with EINTR where the kernel would end it so
/// after a handler with `SA_RESTART`.
pub fn interrupted(registers: &Registers) -> Registers {
    let mut at_end = *registers;
    let is_in_call = (registers.orig_rax as i64) >= 0;
    if is_in_call && [RESTARTS_WITHOUT_HANDLER, RESTART_BLOCK].contains(&(registers.rax as i64)) {
        at_end.rax = MINUS_EINTR;
    }
    at_end
}

/// Makes the frame whose rt_sigreturn restores `registers`, `mask` and `state`. It is below
/// `registers.rsp`, the red zone and `reserved_bytes`; the function returns to `trampoline`. `None`
/// if the stack pointer is too near the bottom of the address space.
pub fn build(
    registers: &Registers,
    mask: u64,
    state: &ExtendedState,
    trampoline: u64,
    reserved_bytes: u64,
) -> Option<SignalFrame> {
    let state_bytes = state.frame_bytes + MAGIC_BYTES;
    let top = registers.rsp.checked_sub(RED_ZONE_BYTES)?.checked_sub(reserved_bytes)?;
    // XRSTOR needs 64-byte alignment.
    let state_address = top.checked_sub(state_bytes as u64)? & !63;
    // At a function's entry the stack pointer is 8 modulo 16.
    let address = (state_address.checked_sub(FRAME_BYTES as u64)? & !15).checked_sub(8)?;
    let state_offset = (state_address - address) as usize;
    let mut bytes = vec![0; state_offset + state_bytes];
    put(&mut bytes, 0, &trampoline.to_le_bytes());
    put(&mut bytes, OFFSET_UC_FLAGS, &UC_FLAGS.to_le_bytes());
    // uc_link and uc_stack stay zero: the kernel rejects that as an alternate stack and keeps the
    // current one.
    put_registers(&mut bytes, &restarting(registers));
    put(&mut bytes, OFFSET_FPSTATE, &state_address.to_le_bytes());
    put(&mut bytes, OFFSET_MASK, &mask.to_le_bytes());
    put_state(&mut bytes[state_offset..], state);
    Some(SignalFrame { address, bytes })
}

/// Writes the general registers `r`, the flags and the segments into a frame.
fn put_registers(frame: &mut [u8], r: &Registers) {
    let general = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
        r.rcx, r.rsp, r.rip, r.eflags,
    ];
    for (index, value) in general.iter().enumerate() {
        put(frame, OFFSET_GENERAL + index * 8, &value.to_le_bytes());
    }
    // Of the four segments the kernel reads only the first and the last.
    put(frame, OFFSET_SEGMENTS, &(r.cs as u16).to_le_bytes());
    put(frame, OFFSET_SEGMENTS + 6, &(r.ss as u16).to_le_bytes());
}

/// Writes the extended state, with the software bytes that hold its size for rt_sigreturn.
fn put_state(bytes: &mut [u8], state: &ExtendedState) {
    let size = state.frame_bytes;
    put(bytes, 0, &state.image[..size]);
    // `ExtendedState::new` refuses an image without this word.
    let in_use = word_at(&state.image, OFFSET_IN_USE).unwrap_or(0) & state.features;
    put(bytes, OFFSET_IN_USE, &in_use.to_le_bytes());
    put(bytes, OFFSET_SOFTWARE, &[0; SOFTWARE_BYTES]);
    put(bytes, OFFSET_SOFTWARE, &MAGIC_1.to_le_bytes());
    put(bytes, OFFSET_EXTENDED_SIZE, &((size + MAGIC_BYTES) as u32).to_le_bytes());
    put(bytes, OFFSET_FEATURES, &state.features.to_le_bytes());
    put(bytes, OFFSET_XSTATE_SIZE, &(size as u32).to_le_bytes());
    put(bytes, size, &MAGIC_2.to_le_bytes());
}

/// A system call made through a chain of frames.
#[derive(Clone, Copy, Debug)]
pub struct SystemCall {
    /// Its number.
    pub number: u64,
    /// Its first three arguments.
    pub arguments: [u64; 3],
    /// Signals that are not blocked when it begins.
    pub unblocked: u64,
}

/// Makes frames with which a thread makes `calls` in sequence, with signals blocked and without
/// extended state. An rt_sigreturn at the trampoline loads each frame, and its call returns into
/// the next one. The last call returns into the frame at `frame_after`; without one it must not
/// return. The frames end at `top`; the thread starts by returning with its stack pointer at the
/// frames' address.
///
/// `registers` provide the segments. `None` if there is no room below `top`.
pub fn chain(
    calls: &[SystemCall],
    code: &CallSites,
    registers: &Registers,
    top: u64,
    frame_after: Option<u64>,
) -> Option<SignalFrame> {
    let total_bytes = FRAME_BYTES * calls.len();
    let address = top.checked_sub(total_bytes as u64)? & !15;
    let mut bytes = vec![0; total_bytes];
    for (index, call) in calls.iter().enumerate() {
        let following = address + ((index + 1) * FRAME_BYTES) as u64;
        let next = frame_after.filter(|_| index + 1 == calls.len()).unwrap_or(following);
        let frame = bytes.get_mut(index * FRAME_BYTES..(index + 1) * FRAME_BYTES)?;
        put(frame, 0, &code.trampoline.to_le_bytes());
        put(frame, OFFSET_UC_FLAGS, &UC_FLAGS_WITHOUT_STATE.to_le_bytes());
        let [rdi, rsi, rdx] = call.arguments;
        let entry = Registers {
            rdi,
            rsi,
            rdx,
            rax: call.number,
            rsp: next,
            rip: code.system_call,
            eflags: PLAIN_FLAGS,
            cs: registers.cs,
            ss: registers.ss,
            ..strandline_sys::registers::zeroed()
        };
        put_registers(frame, &entry);
        put(frame, OFFSET_MASK, &(!call.unblocked).to_le_bytes());
    }
    Some(SignalFrame { address, bytes })
}

/// Copies `value` to `offset`. Every caller has made `bytes` long enough; otherwise this does
/// nothing, as a panic would leave the target stopped.
fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    if let Some(destination) = bytes.get_mut(offset..offset + value.len()) {
        destination.copy_from_slice(value);
    }
}

/// Whether `bytes`, which begin with the address of a return from a handler, go on like a signal
/// frame: flags that the kernel sets, no `uc_link`, and the code segment of a program beside empty
/// `gs` and `fs` (arch/x86/kernel/signal_64.c, x64_setup_rt_frame).
pub fn is_plausible(bytes: &[u8]) -> bool {
    word_at(bytes, OFFSET_UC_LINK) == Some(0)
        && word_at(bytes, OFFSET_UC_FLAGS).is_some_and(|flags| flags <= UC_FLAGS)
        && word_at(bytes, OFFSET_SEGMENTS)
            .is_some_and(|segments| segments & USER_LEVEL == USER_LEVEL && segments & GS_AND_FS == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(length: usize, features: u64, in_use: u64) -> Vec<u8> {
        let mut image = vec![0xee; length];
        put(&mut image, OFFSET_SOFTWARE, &features.to_le_bytes());
        put(&mut image, OFFSET_IN_USE, &in_use.to_le_bytes());
        image
    }

    #[test]
    fn a_frame_is_aligned_and_has_the_length_of_its_state() {
        let state = ExtendedState::without_unused_tiles(image(832, 7, 7), None).unwrap();
        for low in 0..64 {
            let mut registers = strandline_sys::registers::zeroed();
            registers.rsp = 0x7000_0000 + low;
            let frame = build(&registers, 0x1234, &state, 0xabcd, 256).unwrap();
            assert_eq!(frame.address % 16, 8);
            assert!(frame.address + frame.bytes.len() as u64 <= registers.rsp - RED_ZONE_BYTES - 256);
            let fpstate = word_at(&frame.bytes, OFFSET_FPSTATE).unwrap();
            assert_eq!(fpstate % 64, 0);
            let at = (fpstate - frame.address) as usize;
            assert_eq!(word_at(&frame.bytes, 0), Some(0xabcd));
            assert_eq!(word_at(&frame.bytes, OFFSET_MASK), Some(0x1234));
            assert_eq!(word_at(&frame.bytes, at + OFFSET_SOFTWARE).unwrap() as u32, MAGIC_1);
            assert_eq!(&frame.bytes[at + 832..], &MAGIC_2.to_le_bytes());
        }
    }

    #[test]
    fn a_chain_leads_from_frame_to_frame() {
        let calls = [436, 35, 231].map(|number| SystemCall {
            number,
            arguments: [number + 1, 2, 3],
            unblocked: number,
        });
        let code = CallSites { trampoline: 0xabcd, system_call: 0x1234, release: None };
        let mut registers = strandline_sys::registers::zeroed();
        (registers.cs, registers.ss) = (0x33, 0x2b);
        let frame = chain(&calls, &code, &registers, 0x7000_0008, None).unwrap();
        assert!(frame.address + frame.bytes.len() as u64 <= 0x7000_0008);
        for (index, call) in calls.iter().enumerate() {
            let at = index * FRAME_BYTES;
            let general = |index: usize| word_at(&frame.bytes, at + OFFSET_GENERAL + index * 8).unwrap();
            assert_eq!(word_at(&frame.bytes, at), Some(0xabcd));
            assert_eq!((general(13), general(8), general(16)), (call.number, call.number + 1, 0x1234));
            // The stack pointer points to the return address of the next frame.
            assert_eq!(general(15), frame.address + (at + FRAME_BYTES) as u64);
            assert_eq!(word_at(&frame.bytes, at + OFFSET_FPSTATE), Some(0));
            assert_eq!(word_at(&frame.bytes, at + OFFSET_MASK), Some(!call.number));
        }
        assert!(chain(&calls, &code, &registers, 100, None).is_none());
        let chain_before = chain(&calls, &code, &registers, 0x7000_0008, Some(0x6000)).unwrap();
        let last_stack_pointer = 2 * FRAME_BYTES + OFFSET_GENERAL + 15 * 8;
        assert_eq!(word_at(&chain_before.bytes, last_stack_pointer), Some(0x6000));
        assert_eq!(chain_before.bytes[..last_stack_pointer], frame.bytes[..last_stack_pointer]);
    }

    #[test]
    fn tiles_are_cut_off_unless_they_are_in_use() {
        let features = 7 | 1 << 17 | 1 << 18;
        let tiles = Some(2816);
        let idle = ExtendedState::without_unused_tiles(image(11008, features, 7), tiles).unwrap();
        assert_eq!((idle.frame_bytes, idle.features), (2816, 7 | 1 << 17));
        let busy = ExtendedState::without_unused_tiles(image(11008, features, 7 | 1 << 18), tiles).unwrap();
        assert_eq!((busy.frame_bytes, busy.features), (11008, features));
        assert!(ExtendedState::without_unused_tiles(vec![0; 512], None).is_none(), "no room for the header");
    }

    #[test]
    fn interrupted_calls_are_made_again_and_others_are_left() {
        let mut r = strandline_sys::registers::zeroed();
        (r.rip, r.orig_rax, r.rax) = (0x1002, 7, (-516_i64) as u64);
        let restarted = restarting(&r);
        assert_eq!((restarted.rip, restarted.rax, restarted.orig_rax), (0x1000, 219, u64::MAX));
        r.rax = (-512_i64) as u64;
        assert_eq!((restarting(&r).rip, restarting(&r).rax), (0x1000, 7));
        r.rax = 5;
        assert_eq!((restarting(&r).rip, restarting(&r).rax), (0x1002, 5));
        assert_eq!(interrupted(&r).rax, 5);
        for (result, ended) in [(-512_i64, -512_i64), (-513, -513), (-514, -4), (-516, -4), (-4, -4)] {
            r.rax = result as u64;
            assert_eq!(interrupted(&r).rax as i64, ended);
        }
        // Not in a system call: rax may hold any number.
        (r.orig_rax, r.rax) = (u64::MAX, (-512_i64) as u64);
        assert_eq!((restarting(&r).rip, restarting(&r).rax), (0x1002, (-512_i64) as u64));
    }
}
