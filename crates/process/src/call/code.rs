//! Finds in a target's own code the few instructions that injected calls go through, and decides
//! which stopped threads can run a system call for strandline.
//!
//! Nothing is written into code: every C library and the vdso contain these instructions.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::filters::{self, RequiredCall};
use super::inject::{self, Call};
use super::stack;
use crate::c_library::CLibrary;
use crate::elf::Object;
use crate::map::{AddressSpace, Mapping};
use crate::memory::Memory;
use crate::namespaces::open_mapped_file;
use crate::procfs::Process;
use crate::target::live::ByPid;
use crate::target::quiet;
use crate::target::tracee::Tracee;

/// The instructions `syscall; ret`.
const SYSTEM_CALL: [u8; 3] = [0x0f, 0x05, 0xc3];
/// The instructions `pop %rdi; ret`.
const LOAD_RDI: [u8; 2] = [0x5f, 0xc3];
/// Upper bound of a signal frame without its extended state ([`super::frame::FRAME_BYTES`]), with
/// the red zone and alignment between it and the stack pointer.
pub const FRAME_AND_GAP_BYTES: u64 = 1024;
/// Maximum bytes of a mapping's code that are searched. Code beyond this and the next limit counts
/// as code without the instructions: then no call is made.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// Maximum bytes of all code that are searched: a target may map thousands of files.
const MAX_SEARCHED_BYTES: u64 = 1 << 30;
/// Bytes that are read and searched at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Addresses of the instructions in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSites {
    /// [`inject::TRAMPOLINE`].
    pub trampoline: u64,
    /// `syscall; ret`.
    pub system_call: u64,
    /// How a return unblocks a signal; `None` if the C library lacks it.
    pub release: Option<SignalRelease>,
}

/// An instruction sequence in the target's code.
struct Site<'a> {
    /// The mapping that contains it.
    mapping: &'a Mapping,
    /// The address of its first byte.
    address: u64,
}

/// Code that a return runs to unblock a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalRelease {
    /// `pop %rdi; ret`: loads the argument from the stack.
    pub load_rdi: u64,
    /// sigrelse(3).
    pub function: u64,
}

impl CallSites {
    /// Searches the code of files, which does not change: the C library first, the vdso last.
    /// `None` if the trampoline or the system call is missing.
    ///
    /// Reads the files where they can be opened: reading the target's mappings of them makes pages
    /// resident in it.
    pub fn find(process: &Process, space: &AddressSpace) -> Option<Self> {
        let is_code = |mapping: &&Mapping| {
            mapping.permissions.execute && (mapping.has_file() || mapping.name == "[vdso]")
        };
        let mut mappings: Vec<_> = space.mappings().iter().filter(is_code).collect();
        let is_libc = |mapping: &Mapping| CLibrary::of_file(&mapping.name).is_some();
        mappings.sort_by_key(|mapping| (!is_libc(mapping), mapping.name == "[vdso]"));
        let mut searched_bytes = 0_u64;
        mappings.retain(|mapping| {
            searched_bytes = searched_bytes.saturating_add(mapping.bytes().min(MAX_TEXT_BYTES));
            searched_bytes <= MAX_SEARCHED_BYTES
        });
        let find_in = |mapping: &Mapping, pattern: &[u8]| {
            let range = mapping.start..mapping.end;
            match open_mapped_file(process, mapping) {
                Ok(file) if mapping.has_file() => find(&MappedFile { file, mapping }, &[range], pattern),
                _ => find(&ByPid::new(process.pid()), &[range], pattern),
            }
        };
        let find_site = |pattern: &[u8]| {
            mappings.iter().find_map(|&mapping| Some(Site { mapping, address: find_in(mapping, pattern)? }))
        };
        let trampoline = find_site(&inject::TRAMPOLINE)?;
        let system_call = find_site(&SYSTEM_CALL)?;
        let find_release = || {
            // Only in the C library, which is never unmapped.
            let mapping = Some(trampoline.mapping).filter(|mapping| is_libc(mapping))?;
            let function = Object::open(process, space, mapping).ok()?.symbol_address("sigrelse")?;
            Some(SignalRelease { load_rdi: find_in(mapping, &LOAD_RDI)?, function })
        };
        Some(Self {
            trampoline: trampoline.address,
            system_call: system_call.address,
            release: find_release(),
        })
    }

    /// The call of a function, during which code of `stop_handlers` may run.
    pub fn function_call<'a>(
        self,
        function: u64,
        arguments: [u64; 3],
        stop_handlers: &'a [Range<u64>],
    ) -> Call<'a> {
        Call {
            function,
            rax: 0,
            arguments,
            sites: self,
            reserved_bytes: 0,
            stop_handlers,
            is_system_call: false,
        }
    }

    /// The call of a bare system call.
    pub fn bare_system_call(self, number: u64, arguments: [u64; 3], reserved_bytes: u64) -> Call<'static> {
        Call {
            function: self.system_call,
            rax: number,
            arguments,
            sites: self,
            reserved_bytes,
            stop_handlers: &[],
            is_system_call: true,
        }
    }

    /// Whether the instructions are still there; checked again once the target is stopped.
    pub fn is_still_present(&self, memory: &dyn Memory) -> bool {
        let is_at = |address, code: &[u8]| {
            let mut present = vec![0; code.len()];
            memory.read(address, &mut present).is_ok() && present == code
        };
        is_at(self.trampoline, &inject::TRAMPOLINE)
            && is_at(self.system_call, &SYSTEM_CALL)
            && self.release.is_none_or(|release| is_at(release.load_rdi, &LOAD_RDI))
    }
}

/// A file, addressed as it is mapped.
struct MappedFile<'a> {
    file: File,
    mapping: &'a Mapping,
}

impl Memory for MappedFile<'_> {
    fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
        let skipped_bytes = address.checked_sub(self.mapping.start);
        let file_offset = skipped_bytes.and_then(|bytes| self.mapping.offset.checked_add(bytes));
        // Nothing can be read before the mapping, nor where reading the file fails.
        file_offset.and_then(|offset| self.file.read_at(buffer, offset).ok()).unwrap_or(0)
    }
}

/// Finds the first address in `ranges` of the target with the bytes `pattern`; skips what cannot be
/// read.
pub fn find(memory: &dyn Memory, ranges: &[Range<u64>], pattern: &[u8]) -> Option<u64> {
    let mut buffer = vec![0; CHUNK_BYTES + pattern.len()];
    for range in ranges {
        let mut at = range.start;
        let end = range.end.min(range.start.saturating_add(MAX_TEXT_BYTES));
        while at < end {
            let chunk_bytes = buffer.len().min((end - at) as usize);
            let read_bytes = memory.read_some(at, &mut buffer[..chunk_bytes]);
            let position = buffer[..read_bytes].windows(pattern.len()).position(|window| window == pattern);
            if let Some(offset) = position {
                return Some(at + offset as u64);
            }
            // Chunks overlap, so that a pattern across their border is found.
            at = at.saturating_add(CHUNK_BYTES as u64);
        }
    }
    None
}

/// Whether a stopped thread can make `required_calls` through `sites`, with `stack_bytes` of stack
/// in addition to the frame that restores the thread. `false` if something about it is unknown.
///
/// A system call takes no lock of the program, so what the thread was doing does not matter; but a
/// thread in a signal handler may be on an alternate stack that is among the frames it interrupted.
pub fn can_call(
    tracee: &Tracee<'_>,
    space: &AddressSpace,
    sites: &CallSites,
    stack_bytes: u64,
    required_calls: &[RequiredCall],
) -> bool {
    let memory = ByPid::new(tracee.process.pid());
    let has_room = || {
        let stack = stack::own_stack(&memory, space, tracee.tid, &tracee.registers);
        let state_bytes = inject::extended_state_bytes(tracee.tid).ok();
        stack.zip(state_bytes).is_some_and(|(stack, state_bytes)| {
            stack::has_room(tracee, space, &stack, stack_bytes + FRAME_AND_GAP_BYTES + state_bytes)
                && !stack::may_be_in_signal_handler(&memory, space, &stack, sites.trampoline)
        })
    };
    tracee.registers.cs == quiet::CS_64_BIT
        && has_room()
        && tracee.process.task_status(tracee.tid).is_ok_and(|status| !status.has_shadow_stack())
        && !stack::is_in_rseq(&memory, tracee.tid)
        && filters::objection(tracee, required_calls).is_none()
}
