//! The roots: what a full collection starts from.
//!
//! As in `garbage_collect_generation` (gencgc.c): every word of each thread's control stack from
//! its stack pointer on and its registers, conservatively; the values on binding stacks and in
//! thread-local storage; handlers of signals and the few Lisp objects that the runtime's own
//! variables hold; static space; pseudo-static objects in dynamic space and in the immobile spaces.

use super::heap::DynamicSpace;
use super::locate::Program;
use super::mark::Tracer;
use super::objects::{self, Kinds, Run};
use super::spaces::{Space, SpaceKind};
use super::store::HeapCopy;
use super::threads::Threads;
use crate::sbcl::layout::PSEUDO_STATIC;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::word_at;

/// Variables of the runtime that hold Lisp objects: `lisp_sig_handlers` is an array.
const GLOBALS: [&str; 5] = [
    "lisp_sig_handlers",
    "lisp_package_vector",
    "lisp_init_function",
    "alloc_profile_data",
    "gc_object_watcher",
];
const MAX_GLOBAL_BYTES: u64 = 4096;
const BLOCK_BYTES: usize = 65_536;
/// Longer alternate stacks are not read: behind the last thread, other memory may follow in the
/// same mapping.
const MAX_SIGNAL_STACK_BYTES: u64 = 16 << 20;

/// Where a root is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// A thread's control stack.
    ControlStack(ThreadName),
    /// A thread's registers.
    Register(ThreadName),
    /// A thread's binding stack.
    BindingStack(ThreadName),
    /// A thread's thread-local storage.
    ThreadLocal(ThreadName),
    /// Memory behind a thread's thread-local storage: its alternate stack for signals.
    SignalStack(ThreadName),
    /// The registers of threads that are on no control stack.
    OtherRegisters,
    /// A variable of the runtime.
    Global(&'static str),
    /// Static space, or another that is never collected.
    Static,
    /// Objects that came with the core.
    PseudoStatic,
}

/// A thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadName {
    /// Its id in the kernel.
    Tid(i32),
    /// If that is unknown, its index in SBCL's list, from 0.
    Number(usize),
}

impl std::fmt::Display for ThreadName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tid(tid) => write!(f, "thread {tid}"),
            Self::Number(number) => write!(f, "thread number {number} of SBCL's list"),
        }
    }
}

impl std::fmt::Display for RootKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ControlStack(thread) => write!(f, "{thread}'s control stack"),
            Self::Register(thread) => write!(f, "{thread}'s registers"),
            Self::BindingStack(thread) => write!(f, "{thread}'s binding stack"),
            Self::ThreadLocal(thread) => write!(f, "{thread}'s local values"),
            Self::SignalStack(thread) => write!(f, "{thread}'s stack for signals"),
            Self::OtherRegisters => f.write_str("the registers of a thread that is on no control stack"),
            Self::Global(name) => write!(f, "the runtime's {name}"),
            Self::Static => f.write_str("static space"),
            Self::PseudoStatic => f.write_str("an object that came with the core (pseudo-static)"),
        }
    }
}

/// Root words outside of the copied objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Words that need not be pointers, by place.
    pub conservative: Vec<(RootKind, Vec<u64>)>,
    /// Words that are Lisp objects, by place.
    pub exact: Vec<(RootKind, Vec<u64>)>,
    /// Threads whose stack pointer is not known: the whole stack was read.
    pub whole_stacks: usize,
}

/// Reads the roots that are not objects.
pub fn read(context: &Context<'_>, program: &Program, threads: &Threads) -> Roots {
    let mut roots = Roots::default();
    for (number, thread) in threads.threads.iter().enumerate() {
        let (low, high) = thread.control;
        let on_it = context.threads.iter().find(|facts| (low..high).contains(&facts.stack_pointer));
        let from = on_it.map_or(low, |facts| facts.stack_pointer & !7);
        let number = on_it.map_or(ThreadName::Number(number), |facts| ThreadName::Tid(facts.tid));
        if on_it.is_none() {
            // The thread may be on its alternate stack for signals, which is in the same mapping.
            roots.whole_stacks += 1;
            let end = context.space.find(thread.address).map_or(thread.locals.1, |mapping| mapping.end);
            if thread.locals.1 < end && end - thread.locals.1 <= MAX_SIGNAL_STACK_BYTES {
                let behind = words(context, thread.locals.1, end);
                roots.conservative.push((RootKind::SignalStack(number), behind));
            }
        }
        let stack = words(context, from, high);
        // A word that points into the stack belongs to a frame or a stack object: it keeps nothing.
        let stack = stack.into_iter().filter(|word| !(low..thread.locals.1).contains(word)).collect();
        roots.conservative.push((RootKind::ControlStack(number), stack));
        if let Some(facts) = on_it {
            roots
                .conservative
                .push((RootKind::Register(number), facts.general.iter().flatten().copied().collect()));
        }
        let bindings = words(context, thread.bindings.0, thread.bindings.1);
        // Pairs of a value and a symbol's number.
        roots.exact.push((RootKind::BindingStack(number), bindings.into_iter().step_by(2).collect()));
        let locals = words(context, thread.locals.0, thread.locals.1);
        roots.exact.push((RootKind::ThreadLocal(number), locals));
    }
    let is_on =
        |pointer: u64| threads.threads.iter().any(|one| (one.control.0..one.control.1).contains(&pointer));
    if roots.whole_stacks > 0 {
        let others = context.threads.iter().filter(|facts| !is_on(facts.stack_pointer));
        let registers = others.flat_map(|facts| facts.general.into_iter().flatten()).collect();
        roots.conservative.push((RootKind::OtherRegisters, registers));
    }
    for name in GLOBALS {
        let Some(at) = program.address(name) else { continue };
        let length = usize::try_from(program.bytes(name).min(MAX_GLOBAL_BYTES)).unwrap_or(0);
        let mut bytes = vec![0; length];
        let got = context.memory.read_some(at, &mut bytes);
        let words = (0..got / 8).filter_map(|index| word_at(&bytes, index * 8)).collect();
        roots.exact.push((RootKind::Global(name), words));
    }
    roots
}

/// The resident words of `start..end`. Pairs stay pairs: only whole pages are left out, and `start`
/// is even.
fn words(context: &Context<'_>, start: u64, end: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut block = ReadBuffer::new(BLOCK_BYTES);
    for (from, to) in (context.resident)(start & !7, end) {
        let mut at = from;
        while at < to {
            let length = usize::try_from(to - at).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            let got = block.get_mut(..length).map_or(0, |bytes| context.memory.read_some(at, bytes));
            found.extend((0..got / 8).filter_map(|index| word_at(&block, index * 8)));
            at += length as u64;
        }
    }
    found
}

/// Inputs for visiting roots.
pub struct RootContext<'a> {
    /// The copy.
    pub store: &'a HeapCopy,
    /// Kinds of objects.
    pub kinds: &'a Kinds,
    /// The collector's records.
    pub heap: &'a DynamicSpace,
    /// The spaces besides dynamic space.
    pub spaces: &'a [Space],
    /// Dynamic space's runs of objects.
    pub runs: &'a [Run],
}

impl Roots {
    /// Visits all roots; calls `enter` with each place before its roots are visited.
    pub fn visit(
        &self,
        tracer: &mut Tracer<'_>,
        context: &RootContext<'_>,
        mut enter: impl FnMut(&mut Tracer<'_>, &RootKind),
    ) {
        for (place, words) in &self.conservative {
            enter(tracer, place);
            for &word in words {
                tracer.visit_ambiguous(word);
            }
        }
        for (place, words) in &self.exact {
            enter(tracer, place);
            for &word in words {
                tracer.visit(word);
            }
        }
        for space in context.spaces {
            enter(
                tracer,
                if is_whole_root(space.kind) { &RootKind::Static } else { &RootKind::PseudoStatic },
            );
            visit_space(space, tracer, context);
        }
        enter(tracer, &RootKind::PseudoStatic);
        for run in context.runs {
            let generation = context.heap.pages.get(run.page).map(|page| usize::from(page.generation));
            if generation == Some(PSEUDO_STATIC) {
                objects::walk(context.store, context.kinds, *run, |at, _, _| tracer.visit_object(at));
            }
        }
    }
}

fn is_whole_root(kind: SpaceKind) -> bool {
    matches!(kind, SpaceKind::Static | SpaceKind::Permanent)
}

/// Visits static space word by word, and the pseudo-static objects of the immobile spaces, whose
/// generation is in the header's fourth byte.
fn visit_space(space: &Space, tracer: &mut Tracer<'_>, context: &RootContext<'_>) {
    if is_whole_root(space.kind) {
        context.store.each_word(space.start, 0, (space.end - space.start) / 8, |_, word| tracer.visit(word));
    } else if space.kind != SpaceKind::ReadOnly {
        objects::walk_space(context.store, context.kinds, space, |at, _, header| {
            if (header >> 24) & 15 == PSEUDO_STATIC as u64 {
                tracer.visit_object(at);
            }
        });
    }
}
