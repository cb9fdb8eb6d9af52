//! Frames of a Java thread, from the last one of Java code on.
//!
//! A thread that is blocked or in native code has no references in the C++ frames below its last
//! Java frame: these use handles (runtime/handles.hpp). In interpreted frames each word counts;
//! compiled frames have maps. Where C++ called Java code, the call contains the previous Java frame
//! (`JavaCallWrapper`). Layouts: frame_x86.hpp of JDK 17 and 25.

use strandline_process::stacks::ThreadFacts;

use super::blobs::Blobs;
use super::maps::{Maps, OopSlot};
use super::{PreciseRoots, RED_ZONE_BYTES, handles};
use crate::batch::PageCache;
use crate::jvm::shapes::OopFormat;
use crate::jvm::threads::Thread;
use crate::jvm::view::View;
use strandline_process::memory::word_at;
use strandline_process::range::AddressRange;

/// Indices of RBP and RIP in `ThreadFacts::general`.
const RBP: usize = 6;
const RIP: usize = 15;
/// `frame::interpreter_frame_sender_sp_offset` and `interpreter_frame_locals_offset`, negated:
/// words below the frame pointer.
const SENDER: u64 = 1;
const LOCALS: u64 = 7;
/// Maximum words of a method's locals and parameters.
const MAX_LOCALS: u64 = 1 << 16;
/// Distances from `JavaCallWrapper::_handles` and `_receiver` to `_anchor`, which follows them
/// (runtime/javaCalls.hpp).
const WRAPPER_HANDLES: u64 = 24;
const WRAPPER_RECEIVER: u64 = 8;

/// A frame: where it continues, and its registers there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    pc: u64,
    /// Stack pointer: its first byte.
    sp: u64,
    /// Stack pointer before the callee made room for its parameters.
    unextended_sp: u64,
    fp: u64,
    /// Whether the callee may not have taken over its arguments yet.
    has_arguments: bool,
}

/// Walks frames.
pub struct Frames<'a> {
    view: View<'a>,
    oops: OopFormat,
    blobs: Blobs<'a>,
    maps: Maps,
    pages: PageCache<'a>,
    interpreter: AddressRange,
    /// Return address in the stub that calls Java code from C++.
    call_return: u64,
    /// Distance from the frame pointer of that stub down to its `JavaCallWrapper`.
    wrapper: u64,
    states: States,
}

/// Values of `JavaThreadState` in which a thread may not touch the heap.
struct States {
    is_native: u32,
    is_blocked: u32,
}

impl<'a> Frames<'a> {
    /// Prepares for a JVM; `None` if it does not describe what is needed.
    pub fn new(view: &View<'a>, oops: OopFormat) -> Option<Self> {
        let queue = view.static_field(&["AbstractInterpreter::_code"])?;
        let start = view.field(queue, &["StubQueue::_stub_buffer"])?;
        let bytes = u64::from(view.half_field(queue, &["StubQueue::_buffer_limit"])?);
        // A negative number of words, 32 bits.
        let wrapper = view.structs.constant("frame::entry_frame_call_wrapper_offset")? as i32;
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
            wrapper: u64::from(wrapper.checked_neg().and_then(|words| u32::try_from(words).ok())?) * 8,
            states: States { is_native: state("_thread_in_native")?, is_blocked: state("_thread_blocked")? },
        })
    }

    /// Adds the references in a thread's frames. Frames that cannot be followed are doubtful.
    pub fn of_thread(
        &mut self,
        thread: &Thread,
        registers: Option<&ThreadFacts>,
        known: &mut PreciseRoots,
    ) -> Option<()> {
        let AddressRange { start: low, end: high } = thread.stack;
        let state = thread.state?;
        let is_safe = state == self.states.is_native || state == self.states.is_blocked;
        let anchor = self.view.field_address(thread.address, &["JavaThread::_anchor"])?;
        let last = self.anchor(anchor)?;
        let mut frame = match (is_safe, last) {
            (true, None) => return Some(()),
            (true, Some(frame)) => frame,
            (false, _) => {
                let Some(facts) = registers else {
                    known.add_range(thread.stack);
                    return Some(());
                };
                known.registers.extend(facts.general.into_iter().flatten());
                let from = facts.stack_pointer.saturating_sub(RED_ZONE_BYTES).max(low) & !7;
                let first = last.map(|frame| (frame, frame.sp)).or_else(|| self.running(facts, high));
                let to = first.map_or(high, |(_, end)| end.clamp(from, high));
                known.add_range(AddressRange::new(from, to));
                match first {
                    Some((frame, _)) => frame,
                    None => return Some(()),
                }
            }
        };
        while thread.stack.contains(frame.sp) && frame.sp.is_multiple_of(8) {
            known.in_time()?;
            match self.next(&frame, high, known) {
                Some(Some(next)) if next.sp > frame.sp => frame = next,
                Some(None) => return Some(()),
                _ => break,
            }
        }
        known.add_range(AddressRange::new(frame.sp.clamp(low, high) & !7, high));
        Some(())
    }

    /// Reads the frame of an anchor; `Some(None)` if the anchor is empty.
    fn anchor(&mut self, anchor: u64) -> Option<Option<Frame>> {
        let word = |name: &str| self.view.field(anchor, &[&format!("JavaFrameAnchor::{name}")]);
        let (sp, pc, fp) = (word("_last_Java_sp")?, word("_last_Java_pc")?, word("_last_Java_fp")?);
        if sp == 0 {
            return Some(None);
        }
        // `JavaFrameAnchor::make_walkable`: without a `pc`, the call has put the return address on
        // the stack.
        let pc = if pc == 0 { self.word(sp.checked_sub(8)?)? } else { pc };
        Some(Some(Frame { pc, sp, unextended_sp: sp, fp, has_arguments: false }))
    }

    /// Returns the caller of the frame in which a thread runs, if that frame is one of Java code
    /// and complete, and the end of the first frame's words. Each of these words may be a
    /// reference, or no longer be one.
    fn running(&mut self, facts: &ThreadFacts, high: u64) -> Option<(Frame, u64)> {
        let (pc, fp, sp) = (facts.general[RIP]?, facts.general[RBP]?, facts.stack_pointer);
        let frame = Frame { pc, sp, unextended_sp: sp, fp, has_arguments: false };
        if self.is_interpreter(pc) {
            return self.caller_of_interpreted(&frame, high);
        }
        let blob = self.blobs.at(pc).filter(|blob| blob.is_method && pc > blob.complete)?;
        let next = self.behind_compiled(&frame, blob.frame_bytes, high)?;
        // While the frame is being removed, the word read is not a return address.
        let is_code =
            self.is_interpreter(next.pc) || next.pc == self.call_return || self.blobs.at(next.pc).is_some();
        is_code.then_some((next, next.sp))
    }

    fn is_interpreter(&self, pc: u64) -> bool {
        self.interpreter.contains(pc)
    }

    fn word(&mut self, at: u64) -> Option<u64> {
        word_at(&self.pages.array::<8>(at)?, 0)
    }

    /// Adds the references in a frame and returns its caller: `Some(None)` after the first frame,
    /// `None` if it cannot be followed.
    fn next(&mut self, frame: &Frame, high: u64, known: &mut PreciseRoots) -> Option<Option<Frame>> {
        if self.is_interpreter(frame.pc) {
            let (next, end) = self.caller_of_interpreted(frame, high)?;
            self.each(frame.sp, end, &mut |word| known.add(word))?;
            return Some(Some(next));
        }
        if frame.pc == self.call_return {
            return self.behind_call(frame, known);
        }
        let blob = self.blobs.at(frame.pc).filter(|blob| blob.frame_bytes > 0)?;
        let mut next = self.behind_compiled(frame, blob.frame_bytes, high)?;
        let range = AddressRange::new(frame.unextended_sp, next.sp);
        let slots =
            if blob.is_method { self.maps.slots(&self.view, &self.blobs, &blob, frame.pc) } else { None };
        for slot in slots.iter().flatten() {
            let word = self.slot(frame, *slot, high)?;
            known.add(word);
        }
        if blob.is_method {
            self.blobs.oops(&blob, &mut |word| known.add(word))?;
        }
        if slots.is_none() || frame.has_arguments {
            known.add_range(range);
        }
        next.has_arguments = !blob.is_method;
        Some(Some(next))
    }

    /// Reads a reference in a frame. The only register that a call preserves is the frame pointer.
    fn slot(&mut self, frame: &Frame, slot: OopSlot, high: u64) -> Option<u64> {
        let word = match slot.offset {
            None => frame.fp,
            Some(offset) => {
                let at = frame.unextended_sp.checked_add(offset).filter(|&at| at < high)?;
                match slot.is_narrow {
                    true => u64::from(u32::from_le_bytes(self.pages.array::<4>(at)?)),
                    false => self.word(at)?,
                }
            }
        };
        Some(if slot.is_narrow { self.oops.wide(word as u32) } else { word })
    }

    /// Returns the caller of an interpreted frame, and the end of the frame's words, including its
    /// locals.
    fn caller_of_interpreted(&mut self, frame: &Frame, high: u64) -> Option<(Frame, u64)> {
        let fp = frame.fp;
        let sp = fp.checked_add(16).filter(|&sp| fp > frame.sp && fp.is_multiple_of(8) && sp < high)?;
        let own_sp = self.word(fp - SENDER * 8)?;
        let locals = self.word(fp.checked_sub(LOCALS * 8)?)?;
        // An address up to JDK 20; in later ones, words from the frame pointer.
        let locals = if locals <= MAX_LOCALS { fp.checked_add(locals * 8)? } else { locals };
        let end = locals
            .checked_add(8)
            .filter(|&end| end <= high && end >= fp && end - fp <= MAX_LOCALS * 8 + 16)?;
        if !(sp..=high).contains(&own_sp) || !own_sp.is_multiple_of(8) {
            return None;
        }
        let (pc, fp_before) = (self.word(fp + 8)?, self.word(fp)?);
        Some((Frame { pc, sp, unextended_sp: own_sp, fp: fp_before, has_arguments: false }, end.max(sp)))
    }

    fn behind_compiled(&mut self, frame: &Frame, bytes: u64, high: u64) -> Option<Frame> {
        let sp = frame
            .unextended_sp
            .checked_add(bytes)
            .filter(|&sp| bytes >= 16 && sp <= high && sp.is_multiple_of(8))?;
        let (pc, fp) = (self.word(sp - 8)?, self.word(sp - 16)?);
        Some(Frame { pc, sp, unextended_sp: sp, fp, has_arguments: false })
    }

    /// Returns the Java frame before the C++ frames that called Java code.
    fn behind_call(&mut self, frame: &Frame, known: &mut PreciseRoots) -> Option<Option<Frame>> {
        let wrapper = self.word(frame.fp.checked_sub(self.wrapper)?)?;
        let anchor = self.view.field_address(wrapper, &["JavaCallWrapper::_anchor"])?;
        let handles = self.view.word(anchor.checked_sub(WRAPPER_HANDLES)?)?;
        handles::of_blocks(&self.view, handles, known)?;
        known.add(self.view.word(anchor.checked_sub(WRAPPER_RECEIVER)?)?);
        self.anchor(anchor)
    }

    fn each(&mut self, from: u64, to: u64, take: &mut dyn FnMut(u64)) -> Option<()> {
        for at in (from..to).step_by(8) {
            take(self.word(at)?);
        }
        Some(())
    }
}
