//! The roots: what a full collection starts from.
//!
//! As in `garbage_collect_generation` (gencgc.c, SBCL 2.1.0 to 2.6.6): every word of each thread's
//! control stack from its stack pointer on and its registers, conservatively; the values on binding
//! stacks and in thread-local storage; handlers of signals and the few Lisp objects that the
//! runtime's own variables hold; static space; pseudo-static objects in dynamic space and in the
//! immobile spaces.

use std::time::Instant;

use super::heap::DynamicSpace;
use super::locate::Program;
use super::mark::Tracer;
use super::objects::{self, Kinds, Run};
use super::spaces::{Space, SpaceKind};
use super::store::HeapCopy;
use super::threads::{Thread, Threads};
use crate::sbcl::layout::PSEUDO_STATIC;
use strandline_claims::runtime::Context;
use strandline_process::buffer::ReadBuffer;
use strandline_process::memory::words_in;
use strandline_process::range::{AddressRange, RangeSet};

/// Variables of the runtime that hold Lisp objects; `lisp_sig_handlers` is an array of them.
const GLOBALS: [&str; 5] = [
    "lisp_sig_handlers",
    "lisp_package_vector",
    "lisp_init_function",
    "alloc_profile_data",
    "gc_object_watcher",
];
/// Maximum bytes of a variable; a longer one is damage.
const MAX_GLOBAL_BYTES: u64 = 4096;
/// Bytes of a word, and of a Lisp object in a variable (`lispobj`).
const WORD_BYTES: u64 = 8;
/// Bytes read at once.
const BLOCK_BYTES: usize = 65_536;
/// Maximum bytes read of an alternate stack. Other memory may follow the last thread in its
/// mapping: words of that memory can only keep dead objects.
const MAX_SIGNAL_STACK_BYTES: u64 = 16 << 20;
/// Bit number of an immobile object's generation in its header (immobile-space.h).
const GENERATION_SHIFT: u32 = 24;
/// Mask of the generation, once shifted.
const GENERATION_MASK: u64 = 15;
// Why roots are not read, as a clause: without all of them, live objects would count as dead.
const NO_TIME: &str = "the time limit for the stop ended before its threads' stacks were read";
const TOO_LARGE: &str = "there was no memory for a copy of its threads' stacks";
const UNREADABLE: &str = "its threads' stacks or the runtime's variables could not be read completely";

/// Where root words are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// A thread's control stack.
    ControlStack(ThreadId),
    /// A thread's registers.
    Registers(ThreadId),
    /// A thread's binding stack.
    BindingStack(ThreadId),
    /// A thread's thread-local storage.
    ThreadLocal(ThreadId),
    /// Memory after a thread's thread-local storage: its alternate stack for signals.
    SignalStack(ThreadId),
    /// The registers of threads that are on no control stack.
    OtherRegisters,
    /// A variable of the runtime.
    Global(&'static str),
    /// Static space, or another that is never collected.
    Static,
    /// Objects that came with the core.
    PseudoStatic,
}

/// How a thread is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadId {
    /// Its id in the kernel.
    Tid(i32),
    /// Its index in SBCL's list, from 0, if its id is not known.
    ListIndex(usize),
}

impl std::fmt::Display for ThreadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tid(tid) => write!(f, "thread {tid}"),
            Self::ListIndex(index) => write!(f, "thread number {index} of SBCL's list"),
        }
    }
}

impl std::fmt::Display for RootKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ControlStack(thread) => write!(f, "{thread}'s control stack"),
            Self::Registers(thread) => write!(f, "{thread}'s registers"),
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

/// Root words of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootWords {
    /// Where they are.
    pub kind: RootKind,
    /// The words.
    pub words: Vec<u64>,
}

/// Root words outside of the copied objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roots {
    /// Words that need not be pointers.
    pub conservative_words: Vec<RootWords>,
    /// Words that are Lisp objects.
    pub exact_words: Vec<RootWords>,
    /// Number of threads whose stack pointer is not known: their whole stacks were read.
    pub whole_stack_count: usize,
}

/// Reads the root words outside of Lisp objects: stacks, registers, thread-local storage, the
/// runtime's variables.
///
/// # Errors
/// The reason, as a clause, if the words of threads take more than `max_bytes`, if the deadline
/// passed, or if some words cannot be read.
pub fn read(
    context: &Context<'_>,
    program: &Program,
    threads: &Threads,
    max_bytes: u64,
) -> Result<Roots, &'static str> {
    let block = ReadBuffer::new(BLOCK_BYTES);
    let mut reader = Reader { context, roots: Roots::default(), block, bytes_left: max_bytes };
    for (index, thread) in threads.threads.iter().enumerate() {
        reader.read_thread(index, thread)?;
    }
    if reader.roots.whole_stack_count > 0 {
        let stacks: RangeSet = threads.threads.iter().map(|thread| thread.control).collect();
        let others = context.threads.iter().filter(|facts| !stacks.contains(facts.stack_pointer));
        let registers = others.flat_map(|facts| facts.general.into_iter().flatten()).collect();
        reader.add_conservative(RootKind::OtherRegisters, registers);
    }
    reader.read_globals(program)?;
    Ok(reader.roots)
}

/// Reads root words of threads and variables.
struct Reader<'a> {
    context: &'a Context<'a>,
    roots: Roots,
    block: ReadBuffer,
    /// Bytes of threads' words that may still be copied. The threads come from the target: many may
    /// name the same large stack.
    bytes_left: u64,
}

impl Reader<'_> {
    fn add_conservative(&mut self, kind: RootKind, words: Vec<u64>) {
        self.roots.conservative_words.push(RootWords { kind, words });
    }

    fn add_exact(&mut self, kind: RootKind, words: Vec<u64>) {
        self.roots.exact_words.push(RootWords { kind, words });
    }

    /// Reads the roots of a thread with this index in SBCL's list.
    fn read_thread(&mut self, index: usize, thread: &Thread) -> Result<(), &'static str> {
        let context = self.context;
        let Thread { address, control, bindings, locals } = *thread;
        let thread_facts = context.threads.iter().find(|facts| control.contains(facts.stack_pointer));
        let id = thread_facts.map_or(ThreadId::ListIndex(index), |facts| ThreadId::Tid(facts.tid));
        if thread_facts.is_none() {
            // The thread may be on its alternate stack for signals, which is in the same mapping.
            self.roots.whole_stack_count += 1;
            let end = context.space.find(address).map_or(locals.end, |mapping| mapping.end);
            let end = end.min(locals.end.saturating_add(MAX_SIGNAL_STACK_BYTES));
            let signal_stack = AddressRange::new(locals.end, end);
            if !signal_stack.is_empty() {
                let words = self.resident_words(signal_stack)?;
                self.add_conservative(RootKind::SignalStack(id), words);
            }
        }
        let used_from = thread_facts.map_or(control.start, |facts| facts.stack_pointer & !(WORD_BYTES - 1));
        let mut stack = self.resident_words(AddressRange::new(used_from, control.end))?;
        // A word that points into the stack belongs to a frame or a stack object, not to the heap.
        let own_memory = AddressRange::new(control.start, locals.end);
        stack.retain(|word| !own_memory.contains(*word));
        self.add_conservative(RootKind::ControlStack(id), stack);
        if let Some(facts) = thread_facts {
            let registers = facts.general.iter().flatten().copied().collect();
            self.add_conservative(RootKind::Registers(id), registers);
        }
        // `struct binding`: the value, then the symbol's TLS index (objdef.lisp).
        let values = self.resident_words(bindings)?.into_iter().step_by(2).collect();
        self.add_exact(RootKind::BindingStack(id), values);
        let words = self.resident_words(locals)?;
        self.add_exact(RootKind::ThreadLocal(id), words);
        Ok(())
    }

    /// Reads the runtime's variables that hold Lisp objects.
    fn read_globals(&mut self, program: &Program) -> Result<(), &'static str> {
        for name in GLOBALS {
            // Not every release has all of these variables.
            let Some(range) = program.range(name) else { continue };
            if !(WORD_BYTES..=MAX_GLOBAL_BYTES).contains(&range.len()) {
                return Err(UNREADABLE);
            }
            let mut bytes = vec![0; range.len() as usize];
            let read_bytes = self.context.memory.read_some(range.start, &mut bytes);
            // A page that was never written is not resident, and holds no object.
            let unread = AddressRange::new(range.start.saturating_add(read_bytes as u64), range.end);
            if !unread.is_empty() && !self.context.resident_runs(unread).is_empty() {
                return Err(UNREADABLE);
            }
            let words = words_in(bytes.get(..read_bytes).unwrap_or_default()).collect();
            self.add_exact(RootKind::Global(name), words);
        }
        Ok(())
    }

    /// Returns the resident words of a range. It leaves out whole pages only, so that pairs of
    /// words stay aligned.
    fn resident_words(&mut self, range: AddressRange) -> Result<Vec<u64>, &'static str> {
        let context = self.context;
        if Instant::now() >= context.deadline {
            return Err(NO_TIME);
        }
        let runs = context.resident_runs((range.start & !(WORD_BYTES - 1), range.end));
        let bytes: u64 = runs.iter().map(|run| run.len()).sum();
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(TOO_LARGE)?;
        let mut words = Vec::with_capacity((bytes / WORD_BYTES) as usize);
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                if Instant::now() >= context.deadline {
                    return Err(NO_TIME);
                }
                let length = (run.end - at).min(BLOCK_BYTES as u64) as usize;
                let block = self.block.get_mut(..length).unwrap_or_default();
                let read_bytes = context.memory.read_some(at, block);
                words.extend(words_in(block.get(..read_bytes).unwrap_or_default()));
                at += read_bytes as u64;
                if read_bytes < length {
                    // Guard pages of a stack allow no access, and hold no values.
                    let guard = context.space.find(at).filter(|mapping| !mapping.permissions.read);
                    at = guard.ok_or(UNREADABLE)?.end;
                }
            }
        }
        Ok(words)
    }
}

/// What a visit of the roots needs besides these.
pub struct RootContext<'a> {
    /// The copied objects.
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
    /// Visits all roots; calls `enter` with each kind before the roots of that kind are visited.
    pub fn visit(
        &self,
        tracer: &mut Tracer<'_>,
        context: &RootContext<'_>,
        mut enter: impl FnMut(&mut Tracer<'_>, &RootKind),
    ) {
        for RootWords { kind, words } in &self.conservative_words {
            enter(tracer, kind);
            for &word in words {
                tracer.visit_ambiguous(word);
            }
        }
        for RootWords { kind, words } in &self.exact_words {
            enter(tracer, kind);
            for &word in words {
                tracer.visit(word);
            }
        }
        for space in context.spaces {
            let kind = if is_whole_root(space.kind) { RootKind::Static } else { RootKind::PseudoStatic };
            enter(tracer, &kind);
            visit_space(space, tracer, context);
        }
        enter(tracer, &RootKind::PseudoStatic);
        for run in context.runs {
            let generation = context.heap.pages.get(run.page).map(|page| usize::from(page.generation));
            if generation == Some(PSEUDO_STATIC) {
                objects::walk(context.store, context.kinds, *run, |object| {
                    tracer.visit_object(object.address)
                });
            }
        }
    }
}

/// Whether all objects of a space are roots.
fn is_whole_root(kind: SpaceKind) -> bool {
    matches!(kind, SpaceKind::Static | SpaceKind::Permanent)
}

/// Visits static space word by word, and the pseudo-static objects of the immobile spaces, whose
/// generation is in the header's fourth byte.
fn visit_space(space: &Space, tracer: &mut Tracer<'_>, context: &RootContext<'_>) {
    if is_whole_root(space.kind) {
        context
            .store
            .each_word(space.start, 0, (space.end - space.start) / WORD_BYTES, |_, word| tracer.visit(word));
    } else if space.kind != SpaceKind::ReadOnly {
        objects::walk_space(context.store, context.kinds, space, |object| {
            if (object.header >> GENERATION_SHIFT) & GENERATION_MASK == PSEUDO_STATIC as u64 {
                tracer.visit_object(object.address);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use strandline_process::map::AddressSpace;
    use strandline_process::memory::Memory;
    use strandline_process::procfs::Process;

    const STACK_BYTES: u64 = 1 << 20;
    const STACK: u64 = 0x7000_0000_0000;

    /// Memory that has the same byte everywhere, except for a range that cannot be read.
    struct ConstantMemory(AddressRange);

    impl Memory for ConstantMemory {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let limit = if address < self.0.end { self.0.start } else { u64::MAX };
            let count = buffer.len().min(usize::try_from(limit.saturating_sub(address)).unwrap());
            buffer[..count].fill(7);
            count
        }
    }

    /// Reads the roots of `count` threads that name the same stack.
    fn roots_of(count: usize, max_bytes: u64, deadline: Instant) -> Result<Roots, &'static str> {
        roots_in(&ConstantMemory(AddressRange::default()), "", count, max_bytes, deadline)
    }

    fn roots_in(
        memory: &dyn Memory,
        maps: &str,
        count: usize,
        max_bytes: u64,
        deadline: Instant,
    ) -> Result<Roots, &'static str> {
        let control = AddressRange::sized(STACK, STACK_BYTES);
        let empty = AddressRange::default();
        let thread = Thread { address: control.end, control, bindings: empty, locals: empty };
        let threads = Threads { threads: vec![thread; count], ..Threads::default() };
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (space, _) = AddressSpace::parse(maps.as_bytes());
        let resident = |range: AddressRange| vec![range];
        let context = Context { deadline, ..Context::of_image(memory, &process, &space, &resident) };
        read(&context, &Program::with_symbols("/usr/bin/fabricated", "2.2.9", []), &threads, max_bytes)
    }

    #[test]
    fn variables_of_impossible_sizes_are_not_read_in_part() {
        let memory = ConstantMemory(AddressRange::default());
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (space, _) = AddressSpace::parse(b"");
        let resident = |range: AddressRange| vec![range];
        let context = Context::of_image(&memory, &process, &space, &resident);
        let read_variable = |bytes| {
            let symbols = [("lisp_sig_handlers", AddressRange::sized(STACK, bytes))];
            let program = Program::with_symbols("/usr/bin/fabricated", "2.2.9", symbols);
            let roots = read(&context, &program, &Threads::default(), 0)?;
            Ok(roots.exact_words.iter().map(|root| root.words.len()).sum::<usize>())
        };
        assert_eq!(read_variable(520), Ok(65));
        for bytes in [0, 7, MAX_GLOBAL_BYTES + 8] {
            assert_eq!(read_variable(bytes), Err(UNREADABLE), "{bytes} bytes");
        }
    }

    #[test]
    fn no_more_words_are_copied_than_allowed() {
        let deadline = Instant::now() + Duration::from_secs(600);
        let roots = roots_of(2, 2 * STACK_BYTES, deadline).unwrap();
        let words: usize = roots.conservative_words.iter().map(|root| root.words.len()).sum();
        assert_eq!((words as u64 * 8, roots.whole_stack_count), (2 * STACK_BYTES, 2));
        assert_eq!(roots_of(2, 2 * STACK_BYTES - 1, deadline), Err(TOO_LARGE));
        assert_eq!(roots_of(65_536, 2 * STACK_BYTES, deadline), Err(TOO_LARGE));
        assert_eq!(roots_of(1, STACK_BYTES, Instant::now()), Err(NO_TIME), "the deadline passed");
    }

    #[test]
    fn a_stack_is_read_to_its_end_but_for_guard_pages() {
        let deadline = Instant::now() + Duration::from_secs(600);
        let memory = ConstantMemory(AddressRange::sized(STACK + 0x3000, 0x1000));
        let read = |maps: &str| roots_in(&memory, maps, 1, STACK_BYTES, deadline);
        assert_eq!(read(""), Err(UNREADABLE));
        assert_eq!(read("700000003000-700000004000 rw-p 00000000 00:00 0\n"), Err(UNREADABLE));
        let roots = read("700000003000-700000004000 ---p 00000000 00:00 0\n").unwrap();
        let words: usize = roots.conservative_words.iter().map(|root| root.words.len()).sum();
        assert_eq!(words as u64 * 8, STACK_BYTES - 0x1000);
    }
}
