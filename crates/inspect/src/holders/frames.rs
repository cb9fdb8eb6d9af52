//! Assigns parts of a thread's stack to functions, by the call frame information of programs and
//! libraries.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use strandline_process::modules;
use strandline_process::procfs::Process;
use strandline_process::range::AddressRange;
use strandline_process::stacks::{Stack, ThreadFacts};
use strandline_process::unwind::{End, Frame, Objects, Unwinder};

use super::symbols;
use crate::capture::FrozenState;

/// Maximum number of frames of one thread, the innermost ones.
const MAX_FRAMES: usize = 512;
/// Maximum number of frames of all threads. What belongs to no known frame is a root of the stack
/// as a whole.
const MAX_ALL_FRAMES: usize = 1 << 16;
/// Maximum number of objects to load for one thread; each takes another walk.
const MAX_OBJECTS: usize = 256;

/// A function that was called and has not returned.
pub struct ActiveFunction {
    /// Its part of the stack.
    pub range: AddressRange,
    /// Its name, or its file and offset.
    pub function: String,
    /// The name of its program or library.
    pub module: String,
}

/// A frame: its part of the stack, and its instruction.
struct FrameRange {
    range: AddressRange,
    instruction: u64,
}

/// The frames of a thread, innermost first, without the outermost one, whose end is unknown.
struct StackWalk {
    tid: i32,
    frames: Vec<FrameRange>,
    /// Whether the walk reached the start of the thread.
    is_whole: bool,
}

/// The function that contains an instruction.
#[derive(Clone)]
struct FunctionName {
    function: String,
    module: String,
}

/// The functions on each thread's stack.
pub struct Frames(HashMap<i32, ThreadFrames>);

/// The functions on one thread's stack.
pub struct ThreadFrames {
    /// Outermost first.
    pub called: Vec<ActiveFunction>,
    /// Whether the first is the one that the thread began with: memory past it belongs to no
    /// function.
    pub is_whole: bool,
}

impl Frames {
    /// Walks all stacks, until `deadline`.
    pub fn find(process: &Process, frozen: &FrozenState, deadline: Instant) -> Self {
        let mut objects = Objects::default();
        let (mut walks, mut count): (Vec<StackWalk>, usize) = (Vec::new(), 0);
        for stack in &frozen.stacks {
            let thread = frozen.threads().iter().find(|thread| thread.tid == stack.tid);
            let Some(thread) = thread.filter(|_| count < MAX_ALL_FRAMES && Instant::now() < deadline) else {
                continue;
            };
            let stack_walk = walk(process, frozen, &mut objects, thread, stack);
            count += stack_walk.frames.len();
            walks.push(stack_walk);
        }
        let frames = walks.iter().flat_map(|walk| &walk.frames);
        let names = function_names(process, frozen, frames.map(|frame| frame.instruction));
        let called = |frame: &FrameRange| {
            let FunctionName { function, module } = names.get(&frame.instruction).cloned()?;
            Some(ActiveFunction { range: frame.range, function, module })
        };
        let thread_frames = |StackWalk { tid, frames, is_whole }| {
            (tid, ThreadFrames { called: frames.iter().rev().filter_map(called).collect(), is_whole })
        };
        Self(walks.into_iter().map(thread_frames).collect())
    }

    /// Returns the functions of a thread.
    pub fn of_thread(&self, tid: i32) -> Option<&ThreadFrames> {
        self.0.get(&tid)
    }
}

/// Walks the stack of a thread.
fn walk(
    process: &Process,
    frozen: &FrozenState,
    objects: &mut Objects,
    thread: &ThreadFacts,
    stack: &Stack,
) -> StackWalk {
    let tid = thread.tid;
    let no_frames = || StackWalk { tid, frames: Vec::new(), is_whole: false };
    let Some(first) = Frame::of_facts(thread) else { return no_frames() };
    for _ in 0..MAX_OBJECTS {
        let unwinder = Unwinder { memory: frozen.own_memory(), space: &frozen.address_space, objects };
        let mut frames: Vec<FrameRange> = Vec::new();
        let end = unwinder.walk(first, &mut |frame| {
            let start = frame.stack_pointer().filter(|start| (stack.low..stack.high).contains(start));
            let Some(start) = start else { return false };
            if let Some(inner) = frames.last_mut() {
                inner.range = AddressRange::new(inner.range.start, start);
            }
            // A return address may be in the next function, if the call is the last instruction.
            let instruction = frame.instruction.saturating_sub(u64::from(!frames.is_empty()));
            frames.push(FrameRange { range: AddressRange::new(start, start), instruction });
            frames.len() < MAX_FRAMES
        });
        if let End::Missing(address) = end {
            objects.load(process, &frozen.address_space, address);
            continue;
        }
        frames.pop();
        return StackWalk { tid, frames, is_whole: end == End::Start };
    }
    no_frames()
}

/// Returns the function that contains each instruction.
fn function_names(
    process: &Process,
    frozen: &FrozenState,
    instructions: impl Iterator<Item = u64>,
) -> HashMap<u64, FunctionName> {
    // Start address of the program or library of each mapping.
    let groups = modules::file_groups(&frozen.address_space);
    let bases: HashMap<u64, u64> = groups
        .iter()
        .filter_map(|group| Some((group, group.first()?.start)))
        .flat_map(|(group, base)| group.iter().map(move |mapping| (mapping.start, base)))
        .collect();
    let sorted: BTreeSet<u64> = instructions.collect();
    let sorted: Vec<u64> = sorted.into_iter().collect();
    let mapping_of = |instruction: &u64| frozen.address_space.find(*instruction);
    let mut names = HashMap::new();
    for instructions in sorted.chunk_by(|a, b| mapping_of(a) == mapping_of(b)) {
        let Some(mapping) = instructions.first().and_then(mapping_of) else { continue };
        let module = mapping.file_name().to_owned();
        let functions = symbols::functions(process, frozen, mapping, instructions);
        for (&instruction, function) in instructions.iter().zip(functions) {
            let base = bases.get(&mapping.start).copied().unwrap_or(mapping.start);
            let function =
                function.unwrap_or_else(|| format!("{module}+{:#x}", instruction.saturating_sub(base)));
            names.insert(instruction, FunctionName { function, module: module.clone() });
        }
    }
    names
}
