//! Frames of a Java thread, from the newest one of Java code to the oldest.
//!
//! A thread that is blocked or in native code has no references in the C++ frames that are newer
//! than its last Java frame: these use handles (runtime/handles.hpp). Each word of an interpreted
//! frame counts; compiled frames have maps. Where C++ called Java code, a `JavaCallWrapper` leads
//! to the previous Java frame. Layouts: frame_x86.hpp of JDK 17 and 25.

use strandline_process::range::AddressRange;
use strandline_process::stacks::ThreadFacts;

use super::blobs::Blobs;
use super::maps::{Maps, OopSlot};
use super::{PreciseRoots, RED_ZONE_BYTES, handles};
use crate::batch::PageCache;
use crate::jvm::shapes::OopFormat;
use crate::jvm::threads::Thread;
use crate::jvm::view::View;

/// `frame::interpreter_frame_sender_sp_offset`, negated.
const SENDER_SP_BELOW_FP_WORDS: u64 = 1;
/// `frame::interpreter_frame_locals_offset`, negated.
const LOCALS_BELOW_FP_WORDS: u64 = 7;
/// Limit on words of a method's locals and parameters; a frame with more is not followed.
const MAX_LOCAL_WORDS: u64 = 1 << 16;
/// Bytes from `JavaCallWrapper::_handles` to `_anchor`, the field after the next two
/// (runtime/javaCalls.hpp).
const HANDLES_BEFORE_ANCHOR_BYTES: u64 = 24;
/// Bytes from `JavaCallWrapper::_receiver` to `_anchor`.
const RECEIVER_BEFORE_ANCHOR_BYTES: u64 = 8;

/// Where a walk over a thread's frames begins or goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextFrame {
    Frame(Frame),
    /// There is no older frame.
    End,
}

/// A frame whose end is known.
struct Unwound {
    /// The frame that called it.
    caller: Frame,
    /// End of its words.
    end: u64,
}

/// A frame, with the registers that it continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    /// Address of the instruction at which it continues.
    pc: u64,
    /// Stack pointer: address of the first byte of the frame.
    sp: u64,
    /// Stack pointer before the callee made room for its parameters.
    unextended_sp: u64,
    /// Frame pointer.
    fp: u64,
    /// Whether arguments for the callee may be in this frame only, because the callee is a stub.
    has_arguments: bool,
}

/// Walks the frames of threads.
pub struct Frames<'a> {
    view: View<'a>,
    oops: OopFormat,
    blobs: Blobs<'a>,
    maps: Maps,
    pages: PageCache<'a>,
    /// The interpreter's code.
    interpreter: AddressRange,
    /// Return address in the stub that calls Java code from C++.
    call_return: u64,
    /// Distance from the frame pointer of that stub down to the pointer to its `JavaCallWrapper`.
    wrapper_distance_bytes: u64,
    states: ThreadStates,
}

/// Values of `JavaThreadState` in which a thread may not touch the heap.
struct ThreadStates {
    /// `_thread_in_native`.
    native: u32,
    /// `_thread_blocked`.
    blocked: u32,
}

impl<'a> Frames<'a> {
    /// Prepares for a JVM; `None` if it does not describe what is needed.
    pub fn new(view: &View<'a>, oops: OopFormat) -> Option<Self> {
        let queue = view.static_field(&["AbstractInterpreter::_code"])?;
        let start = view.field(queue, &["StubQueue::_stub_buffer"])?;
        let bytes = u64::from(view.half_field(queue, &["StubQueue::_buffer_limit"])?);
        // A negative number of words, 32 bits.
        let wrapper_words = view.structs.constant("frame::entry_frame_call_wrapper_offset")? as i32;
        let state = |name: &str| u32::try_from(view.constant(&[name])?).ok();
        Some(Self {
            view: *view,
            oops,
            blobs: Blobs::new(view)?,
            maps: Maps::new(view)?,
            pages: PageCache::new(view.memory),
            interpreter: AddressRange::new(start, start.checked_add(bytes)?),
            call_return: view
                .static_field(&["StubRoutines::_call_stub_return_address"])
                .filter(|&at| at != 0)?,
            wrapper_distance_bytes: u64::from(
                wrapper_words.checked_neg().and_then(|words| u32::try_from(words).ok())?,
            ) * 8,
            states: ThreadStates { native: state("_thread_in_native")?, blocked: state("_thread_blocked")? },
        })
    }

    /// Adds the references in a thread's frames; `registers` are those of the kernel's thread on
    /// its stack. From a frame on that cannot be followed, each word of the stack may be a
    /// reference. `None` if the state of the thread is not known, or at a limit.
    pub fn add_thread(
        &mut self,
        thread: &Thread,
        registers: Option<&ThreadFacts>,
        roots: &mut PreciseRoots,
    ) -> Option<()> {
        let AddressRange { start: low, end: high } = thread.stack;
        let state = thread.state?;
        let is_at_safepoint = state == self.states.native || state == self.states.blocked;
        let anchor = self.view.field_address(thread.address, &["JavaThread::_anchor"])?;
        let newest_frame = self.anchored_frame(anchor)?;
        let mut frame = match (is_at_safepoint, newest_frame) {
            (true, NextFrame::End) => return Some(()),
            (true, NextFrame::Frame(frame)) => frame,
            (false, _) => {
                let Some(facts) = registers else {
                    roots.add_stack_part(thread.stack);
                    return Some(());
                };
                roots.register_words.extend(facts.general.into_iter().flatten());
                let start = facts.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(low) & !7;
                let running = match newest_frame {
                    NextFrame::Frame(frame) => Some(Unwound { caller: frame, end: frame.sp }),
                    NextFrame::End => self.unwind_running(facts, high),
                };
                let end = running.as_ref().map_or(high, |running| running.end.clamp(start, high));
                roots.add_stack_part(AddressRange::new(start, end));
                match running {
                    Some(running) => running.caller,
                    None => return Some(()),
                }
            }
        };
        while thread.stack.contains(frame.sp) && frame.sp.is_multiple_of(8) {
            roots.check_limits()?;
            match self.add_frame(&frame, high, roots) {
                Some(NextFrame::Frame(caller)) if caller.sp > frame.sp => frame = caller,
                Some(NextFrame::End) => return Some(()),
                _ => break,
            }
        }
        // At a limit, the frame was not read to its end.
        roots.check_limits()?;
        roots.add_stack_part(AddressRange::new(frame.sp.clamp(low, high) & !7, high));
        Some(())
    }

    /// Reads the frame of an anchor; `End` if the anchor is empty, `None` if it cannot be read.
    fn anchored_frame(&mut self, anchor: u64) -> Option<NextFrame> {
        let word = |name: &str| self.view.field(anchor, &[&format!("JavaFrameAnchor::{name}")]);
        let (sp, pc, fp) = (word("_last_Java_sp")?, word("_last_Java_pc")?, word("_last_Java_fp")?);
        if sp == 0 {
            return Some(NextFrame::End);
        }
        // `JavaFrameAnchor::make_walkable`: without a `pc`, the call has put the return address on
        // the stack.
        let pc = if pc == 0 { self.pages.word(sp.checked_sub(8)?)? } else { pc };
        Some(NextFrame::Frame(Frame { pc, sp, unextended_sp: sp, fp, has_arguments: false }))
    }

    /// Unwinds the frame in which a thread runs, if it is one of Java code and complete. Each word
    /// of it may be a reference, or no longer be one.
    fn unwind_running(&mut self, facts: &ThreadFacts, high: u64) -> Option<Unwound> {
        let (pc, fp, sp) = (facts.instruction_pointer()?, facts.frame_pointer()?, facts.stack_pointer);
        let frame = Frame { pc, sp, unextended_sp: sp, fp, has_arguments: false };
        if self.is_interpreter(pc) {
            return self.unwind_interpreted(&frame, high);
        }
        let blob = self.blobs.at(pc).filter(|blob| blob.is_method && pc > blob.frame_complete)?;
        let caller = self.caller_of_compiled(&frame, blob.frame_bytes, high)?;
        // While the frame is being removed, the word read is not a return address.
        let is_code = self.is_interpreter(caller.pc)
            || caller.pc == self.call_return
            || self.blobs.at(caller.pc).is_some();
        is_code.then_some(Unwound { caller, end: caller.sp })
    }

    /// Whether an instruction is the interpreter's.
    fn is_interpreter(&self, pc: u64) -> bool {
        self.interpreter.contains(pc)
    }

    /// Adds the references in a frame and returns its caller; `None` if the frame cannot be
    /// followed, or at a limit.
    fn add_frame(&mut self, frame: &Frame, high: u64, roots: &mut PreciseRoots) -> Option<NextFrame> {
        if self.is_interpreter(frame.pc) {
            let Unwound { caller, end } = self.unwind_interpreted(frame, high)?;
            roots.add_words(frame.sp, end, |at| self.pages.word(at))?;
            return Some(NextFrame::Frame(caller));
        }
        if frame.pc == self.call_return {
            return self.caller_of_call(frame, roots);
        }
        let blob = self.blobs.at(frame.pc).filter(|blob| blob.frame_bytes > 0)?;
        let mut caller = self.caller_of_compiled(frame, blob.frame_bytes, high)?;
        let range = AddressRange::new(frame.unextended_sp, caller.sp);
        let slots =
            if blob.is_method { self.maps.slots(&self.view, &self.blobs, &blob, frame.pc) } else { None };
        for slot in slots.iter().flatten() {
            let reference = self.read_slot(frame, *slot, high)?;
            roots.add(reference);
        }
        if blob.is_method {
            self.blobs.each_oop(&blob, &mut |word| roots.add(word))?;
        }
        if slots.is_none() || frame.has_arguments {
            roots.add_stack_part(range);
        }
        caller.has_arguments = !blob.is_method;
        Some(NextFrame::Frame(caller))
    }

    /// Reads a reference in a frame. The only register that a call preserves is the frame pointer.
    fn read_slot(&mut self, frame: &Frame, slot: OopSlot, high: u64) -> Option<u64> {
        let word = match slot.offset {
            None => frame.fp,
            Some(offset) => {
                let at = frame.unextended_sp.checked_add(offset).filter(|&at| at < high)?;
                match slot.is_narrow {
                    true => u64::from(self.pages.word32(at)?),
                    false => self.pages.word(at)?,
                }
            }
        };
        Some(if slot.is_narrow { self.oops.wide(word as u32) } else { word })
    }

    /// Unwinds an interpreted frame; its words include its locals.
    fn unwind_interpreted(&mut self, frame: &Frame, high: u64) -> Option<Unwound> {
        let fp = frame.fp;
        let sp = fp.checked_add(16).filter(|&sp| fp > frame.sp && fp.is_multiple_of(8) && sp < high)?;
        let unextended_sp = self.pages.word(fp - SENDER_SP_BELOW_FP_WORDS * 8)?;
        let locals = self.pages.word(fp.checked_sub(LOCALS_BELOW_FP_WORDS * 8)?)?;
        // An address up to JDK 20; in later ones, words from the frame pointer.
        let locals = if locals <= MAX_LOCAL_WORDS { fp.checked_add(locals * 8)? } else { locals };
        let end = locals
            .checked_add(8)
            .filter(|&end| end <= high && end >= fp && end - fp <= MAX_LOCAL_WORDS * 8 + 16)?;
        if !(sp..=high).contains(&unextended_sp) || !unextended_sp.is_multiple_of(8) {
            return None;
        }
        let (pc, caller_fp) = (self.pages.word(fp + 8)?, self.pages.word(fp)?);
        let caller = Frame { pc, sp, unextended_sp, fp: caller_fp, has_arguments: false };
        Some(Unwound { caller, end: end.max(sp) })
    }

    /// Returns the caller of a compiled frame of this size.
    fn caller_of_compiled(&mut self, frame: &Frame, frame_bytes: u64, high: u64) -> Option<Frame> {
        let sp = frame
            .unextended_sp
            .checked_add(frame_bytes)
            .filter(|&sp| frame_bytes >= 16 && sp <= high && sp.is_multiple_of(8))?;
        let (pc, fp) = (self.pages.word(sp - 8)?, self.pages.word(sp - 16)?);
        Some(Frame { pc, sp, unextended_sp: sp, fp, has_arguments: false })
    }

    /// Returns the Java frame before the C++ frames that called Java code.
    fn caller_of_call(&mut self, frame: &Frame, roots: &mut PreciseRoots) -> Option<NextFrame> {
        let wrapper = self.pages.word(frame.fp.checked_sub(self.wrapper_distance_bytes)?)?;
        let anchor = self.view.field_address(wrapper, &["JavaCallWrapper::_anchor"])?;
        let handles = self.view.word(anchor.checked_sub(HANDLES_BEFORE_ANCHOR_BYTES)?)?;
        handles::add_blocks(&self.view, handles, roots)?;
        roots.add(self.view.word(anchor.checked_sub(RECEIVER_BEFORE_ANCHOR_BYTES)?)?);
        self.anchored_frame(anchor)
    }
}
