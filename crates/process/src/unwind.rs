//! Walks a stopped thread's stack with the call frame information of the mapped objects.
//!
//! It answers one question: which functions are on this stack, and is that the whole stack? It is
//! strict, because a call injected into a thread inside malloc hangs the target: a stack that
//! cannot be followed to the start of the thread counts as unknown. All 16 general registers are
//! tracked, since hand-written assembly keeps the frame in any of them.
//!
//! It must not read files (a thread is stopped meanwhile): an object that is not loaded yet ends
//! the walk with [`End::Missing`], and the caller loads it after releasing the thread.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, EvaluationResult, FrameDescriptionEntry,
    LittleEndian, Location, ParsedEhFrameHdr, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection, Value,
};

use crate::elf::{FrameSections, Object};
use crate::map::{AddressSpace, Mapping};
use crate::memory::Memory;
use crate::procfs::Process;
use crate::range::AddressRange;
use crate::stacks::ThreadFacts;
use crate::target::live::ByPid;

/// Maximum number of frames followed.
pub const MAX_FRAMES: usize = 4096;
/// Maximum number of operations of a location expression; that of a PLT has a dozen.
const MAX_OPERATIONS: u32 = 64;
/// Maximum bytes of call frame information that one walk searches (where there is no index,
/// `.eh_frame_hdr`) and executes: 4 KiB for each of [`MAX_FRAMES`], most of which need a few
/// hundred bytes. A thread may be stopped meanwhile.
const MAX_WALK_BYTES: usize = 16 << 20;
/// Maximum bytes of call frame information loaded of all objects: a target may map thousands of
/// files.
const MAX_LOADED_BYTES: usize = 512 << 20;
/// The DWARF number of RSP on x86-64.
const RSP: usize = 7;
/// The DWARF number of the return address column on x86-64.
const RETURN_ADDRESS: usize = 16;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = FrameDescriptionEntry<Slice<'a>>;

/// The registers of a frame by DWARF number (RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8…R15) and
/// the instruction pointer; `None` if unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The general registers.
    pub general: [Option<u64>; 16],
    /// The instruction pointer.
    pub instruction: u64,
}

impl Frame {
    /// The innermost frame of a stopped thread.
    pub fn of(r: &strandline_sys::ptrace::Registers) -> Self {
        let general = [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
            r.r14, r.r15,
        ];
        Self { general: general.map(Some), instruction: r.rip }
    }

    /// The innermost frame of a thread that was not stopped, from its known registers.
    pub fn of_facts(thread: &ThreadFacts) -> Option<Self> {
        let [rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip] = thread.general;
        let rsp = Some(thread.stack_pointer);
        let general = [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15];
        Some(Self { general, instruction: rip? })
    }

    /// The stack pointer of the frame.
    pub fn stack_pointer(&self) -> Option<u64> {
        self.general.get(RSP).copied().flatten()
    }
}

/// How a walk ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// At the start of the thread or of the program: the walk visited every frame.
    Start,
    /// The visitor ended the walk.
    Enough,
    /// An object is not loaded: load the one mapped at this address and walk again.
    Missing(u64),
    /// The stack cannot be followed further.
    Failed {
        /// The instruction pointer of the last frame reached.
        instruction: u64,
        /// The reason.
        reason: &'static str,
        /// Whether the code there comes from a file without unwind tables (Go, for example), or
        /// whose tables cannot be read: it can never be followed.
        has_no_unwind_tables: bool,
    },
}

/// The loaded call frame information of the objects of one process.
#[derive(Debug, Default)]
pub struct Objects {
    /// By text mapping; `None` for an object without usable information.
    loaded: HashMap<TextKey, Option<FrameSections>>,
    /// Bytes of the loaded information.
    loaded_bytes: usize,
}

/// Identifies a text mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TextKey {
    range: AddressRange,
    inode: u64,
}

impl TextKey {
    fn of(mapping: &Mapping) -> Self {
        Self { range: mapping.range(), inode: mapping.inode }
    }
}

impl Objects {
    /// Loads the object of the text mapping at `address`, if there still is one. An object that
    /// cannot be read, or exceeds the bound on all objects, counts as one without information: a
    /// walk through it fails.
    pub fn load(&mut self, process: &Process, space: &AddressSpace, address: u64) {
        let Some(mapping) = space.find(address) else { return };
        if self.loaded_bytes >= MAX_LOADED_BYTES {
            self.loaded.insert(TextKey::of(mapping), None);
            return;
        }
        let object = if mapping.has_file() {
            Object::open(process, space, mapping)
        } else {
            Object::from_memory(&ByPid::new(process.pid()), space, mapping)
        };
        let frames = object.ok().and_then(|object| object.frames());
        let loaded = frames.iter().flat_map(|frames| frames.header.iter().chain([&frames.frames]));
        let bytes: usize = loaded.map(|section| section.bytes.len()).sum();
        self.loaded_bytes = self.loaded_bytes.saturating_add(bytes);
        self.loaded.insert(TextKey::of(mapping), frames);
    }
}

/// The data sources of a walk.
pub struct Unwinder<'a> {
    /// The target's memory.
    pub memory: &'a dyn Memory,
    /// Its mappings.
    pub space: &'a AddressSpace,
    /// The loaded information of its objects.
    pub objects: &'a Objects,
}

impl Unwinder<'_> {
    /// Walks from `frame` outwards and passes each frame to `visit` until it returns `false`.
    pub fn walk(&self, mut frame: Frame, visit: &mut dyn FnMut(&Frame) -> bool) -> End {
        let mut context = UnwindContext::new();
        // The innermost instruction is about to run; in an outer frame it is the one after the
        // call, which may belong to the next function.
        let mut is_exact = true;
        let mut budget = Budget { remaining_bytes: MAX_WALK_BYTES };
        for _ in 0..MAX_FRAMES {
            if !visit(&frame) {
                return End::Enough;
            }
            match self.step(&mut context, &mut budget, &frame, is_exact) {
                Ok(Some(caller)) => {
                    frame = caller.frame;
                    is_exact = caller.is_interrupted;
                }
                Ok(None) => return End::Start,
                Err(StepError::Missing(address)) => return End::Missing(address),
                Err(StepError::Lost(reason)) => {
                    let instruction = frame.instruction;
                    let has_no_unwind_tables =
                        [NO_TABLES, NO_ENTRY].contains(&reason) && self.is_of_file(instruction);
                    return End::Failed { instruction, reason, has_no_unwind_tables };
                }
            }
        }
        End::Failed { instruction: frame.instruction, reason: "too many frames", has_no_unwind_tables: false }
    }

    /// Whether the code at `address` comes from a file; other code is compiled at run time.
    fn is_of_file(&self, address: u64) -> bool {
        self.space.find(address).is_some_and(|mapping| mapping.permissions.execute && mapping.has_file())
    }

    /// The caller of a frame; `None` at the start.
    fn step(
        &self,
        context: &mut UnwindContext<usize>,
        budget: &mut Budget,
        frame: &Frame,
        is_exact: bool,
    ) -> Result<Option<Caller>, StepError> {
        let code_address = if is_exact { frame.instruction } else { frame.instruction.wrapping_sub(1) };
        let mapping = self
            .space
            .find(code_address)
            .filter(|mapping| mapping.permissions.execute)
            .ok_or(StepError::Lost("no executable memory there"))?;
        let object =
            self.objects.loaded.get(&TextKey::of(mapping)).ok_or(StepError::Missing(mapping.start))?;
        let object = object.as_ref().ok_or(StepError::Lost(NO_TABLES))?;
        let mut section = EhFrame::new(&object.frames.bytes, LittleEndian);
        section.set_address_size(8);
        let mut bases = BaseAddresses::default().set_eh_frame(object.frames.address);
        if let Some(header) = &object.header {
            bases = bases.set_eh_frame_hdr(header.address);
        }
        let entry = budget.entry(object, &section, &bases, code_address)?;
        let row = entry
            .unwind_info_for_address(&section, &bases, context, code_address)
            .map_err(|_| StepError::Lost("bad call frame information"))?;
        let evaluator = Evaluator { memory: self.memory, section: &section, entry: &entry, frame };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                evaluator.register(*register)?.wrapping_add_signed(*offset)
            }
            CfaRule::Expression(expression) => evaluator.evaluate(expression, None)?,
        };
        let rule = row.register(Register(RETURN_ADDRESS as u16));
        if matches!(rule, Some(RegisterRule::Undefined)) {
            return Ok(None);
        }
        let instruction =
            evaluator.restore(RETURN_ADDRESS, rule, cfa)?.ok_or(StepError::Lost("no return address"))?;
        let mut general = [None; 16];
        for (number, value) in general.iter_mut().enumerate() {
            let rule = row.register(Register(number as u16));
            let is_unspecified =
                matches!(rule, None | Some(RegisterRule::Undefined | RegisterRule::SameValue));
            // The stack pointer of the outer frame is the CFA, by the ABI.
            *value = if number == RSP && is_unspecified {
                Some(cfa)
            } else {
                evaluator.restore(number, rule, cfa)?
            };
        }
        // A handler on an alternate stack may be placed among the frames that it interrupted:
        // memory below belongs to those.
        if general[RSP] <= frame.general[RSP] {
            return Err(StepError::Lost("the stack does not grow outwards"));
        }
        let frame = Frame { general, instruction };
        Ok(Some(Caller { frame, is_interrupted: entry.is_signal_trampoline() }))
    }
}

/// The caller of a frame.
struct Caller {
    frame: Frame,
    /// Whether a signal interrupted it, so that its instruction has not run yet.
    is_interrupted: bool,
}

/// Reasons for ending a walk in code without unwind tables: a whole object, or one function.
const NO_TABLES: &str = "its object has no call frame information";
const NO_ENTRY: &str = "no call frame information for it";

/// Why the caller of a frame was not found.
enum StepError {
    /// The object mapped at this address is not loaded.
    Missing(u64),
    /// The stack cannot be followed, for this reason.
    Lost(&'static str),
}

/// The budget of a walk: bytes of call frame information that it may still search and execute.
struct Budget {
    remaining_bytes: usize,
}

impl Budget {
    /// Takes `bytes` from the budget; fails if it has fewer.
    fn charge(&mut self, bytes: usize) -> Result<(), StepError> {
        let remaining = self.remaining_bytes.checked_sub(bytes);
        self.remaining_bytes = remaining.ok_or(StepError::Lost("too much call frame information"))?;
        Ok(())
    }

    /// Returns the entry of the function at `address`, whose instructions may be executed once.
    fn entry<'a>(
        &mut self,
        object: &'a FrameSections,
        section: &EhFrame<Slice<'a>>,
        bases: &BaseAddresses,
        address: u64,
    ) -> Result<Entry<'a>, StepError> {
        let parsed: Option<ParsedEhFrameHdr<Slice<'a>>> = object
            .header
            .as_ref()
            .and_then(|header| EhFrameHdr::new(&header.bytes, LittleEndian).parse(bases, 8).ok());
        let entry = match parsed.as_ref().and_then(|header| header.table()) {
            Some(index) => index.fde_for_address(section, bases, address, EhFrame::cie_from_offset),
            // Without a readable index gimli searches linearly.
            None => {
                self.charge(object.frames.bytes.len())?;
                section.fde_for_address(bases, address, EhFrame::cie_from_offset)
            }
        };
        let entry = entry.map_err(|_| StepError::Lost(NO_ENTRY))?;
        self.charge(entry.entry_len().saturating_add(entry.cie().entry_len()))?;
        Ok(entry)
    }
}

/// Evaluates the rules of one frame.
struct Evaluator<'a, 'b> {
    memory: &'b dyn Memory,
    section: &'b EhFrame<Slice<'a>>,
    entry: &'b Entry<'a>,
    frame: &'b Frame,
}

impl Evaluator<'_, '_> {
    /// The value of a register in the frame.
    fn register(&self, register: Register) -> Result<u64, StepError> {
        let value = match usize::from(register.0) {
            RETURN_ADDRESS => Some(self.frame.instruction),
            number => self.frame.general.get(number).copied().flatten(),
        };
        value.ok_or(StepError::Lost("a register of unknown value"))
    }

    /// The word at `address` of the stack.
    fn word(&self, address: u64) -> Result<u64, StepError> {
        self.memory.read_word(address).map_err(|_| StepError::Lost("its stack cannot be read"))
    }

    /// The caller's value of register `number`.
    fn restore(
        &self,
        number: usize,
        rule: Option<RegisterRule<usize>>,
        cfa: u64,
    ) -> Result<Option<u64>, StepError> {
        Ok(match rule {
            None | Some(RegisterRule::SameValue) => self.frame.general.get(number).copied().flatten(),
            Some(RegisterRule::Undefined) => None,
            Some(RegisterRule::Offset(offset)) => Some(self.word(cfa.wrapping_add_signed(offset))?),
            Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Register(other)) => Some(self.register(other)?),
            Some(RegisterRule::Expression(expression)) => {
                Some(self.word(self.evaluate(&expression, Some(cfa))?)?)
            }
            Some(RegisterRule::ValExpression(expression)) => Some(self.evaluate(&expression, Some(cfa))?),
            Some(_) => return Err(StepError::Lost("a rule of an unknown kind")),
        })
    }

    /// The address that an expression computes, with `initial` on its stack.
    fn evaluate(&self, expression: &UnwindExpression<usize>, initial: Option<u64>) -> Result<u64, StepError> {
        let malformed = |_| StepError::Lost("a bad location expression");
        let expression = expression.get(self.section).map_err(malformed)?;
        let mut evaluation = expression.evaluation(self.entry.cie().encoding());
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut result = evaluation.evaluate().map_err(malformed)?;
        for _ in 0..MAX_OPERATIONS {
            result = match result {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    let value = Value::Generic(self.register(register)?);
                    evaluation.resume_with_register(value).map_err(malformed)?
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    let value = Value::Generic(self.word(address)?);
                    evaluation.resume_with_memory(value).map_err(malformed)?
                }
                _ => return Err(StepError::Lost("a location expression of an unknown kind")),
            };
        }
        match evaluation.as_result().first().map(|piece| piece.location) {
            Some(Location::Address { address }) => Ok(address),
            _ => Err(StepError::Lost("a location expression without an address")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Section;

    #[test]
    fn call_frame_information_is_searched_and_executed_within_a_bound() {
        let section = Section { address: 0x1000, bytes: vec![0; 64] };
        let object = FrameSections { header: None, frames: section };
        let mut budget = Budget { remaining_bytes: 100 };
        let frames = EhFrame::new(&object.frames.bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(0x1000);
        let mut reasons = (0..2).map(|_| match budget.entry(&object, &frames, &bases, 0x2000) {
            Err(StepError::Lost(reason)) => reason,
            _ => "",
        });
        assert_eq!(reasons.next(), Some(NO_ENTRY));
        assert_eq!(reasons.next(), Some("too much call frame information"));
    }

    #[test]
    fn instructions_of_an_entry_are_charged() {
        // A CIE of version 1 without augmentation, and an FDE of 500 instructions.
        let mut bytes = 12_u32.to_le_bytes().to_vec();
        bytes.extend([0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0, 0, 0]);
        bytes.extend([520_u32, 20].map(u32::to_le_bytes).concat());
        bytes.extend([0x2000_u64, 0x100].map(u64::to_le_bytes).concat());
        bytes.extend([0; 500]);
        let section = Section { address: 0x1000, bytes };
        let object = FrameSections { header: None, frames: section };
        let frames = EhFrame::new(&object.frames.bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(0x1000);
        let searched_bytes = object.frames.bytes.len();
        for (remaining_bytes, is_enough) in [(searched_bytes + 532, true), (searched_bytes + 531, false)] {
            let mut budget = Budget { remaining_bytes };
            assert_eq!(budget.entry(&object, &frames, &bases, 0x2010).is_ok(), is_enough);
        }
    }
}
