//! The bounds of each thread's stack, to distinguish pages below its stack pointer from pages in
//! use.
//!
//! The main thread's stack is the mapping that the kernel names `[stack]`. The stack of a thread
//! made by glibc is described in its `struct pthread`, to which the thread pointer (fs_base)
//! points: glibc's `nptl/descr.h` has `stackblock`, `stackblock_size`, `guardsize` and
//! `reported_guardsize` in sequence, at an offset that varies between versions and is found by
//! their invariants. Mappings alone do not suffice: from glibc 2.42 on guards are MADV_GUARD pages,
//! so the stacks of neighbouring threads share one mapping. A thread whose stack pointer is
//! elsewhere (a signal stack, a coroutine, a runtime with its own stacks) is left out: nothing is
//! claimed for it.

use crate::map::{AddressSpace, Mapping};
use crate::memory::{Memory, word_at};
use crate::pages::PAGE_BYTES;
use crate::range::AddressRange;

/// Bytes of a field of `struct pthread`.
const WORD_BYTES: usize = 8;
/// How far past fs_base the fields are searched: `struct pthread` is 0x900 bytes in 2.36.
const SEARCH_BYTES: usize = 0x900;
/// Maximum distance from fs_base to the end of the block: only `struct pthread` and the static TLS
/// are above.
const MAX_ABOVE_THREAD_POINTER: u64 = 0x4000;
/// Largest stack size that is accepted: 64 GiB.
const MAX_STACK_BYTES: u64 = 64 << 30;

/// The registers of a stopped thread that are needed to find its stack and roots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadFacts {
    /// The thread.
    pub tid: i32,
    /// Its RSP.
    pub stack_pointer: u64,
    /// Its FS base, the thread pointer; 0 if it has none.
    pub fs_base: u64,
    /// Its general registers and instruction pointer, in the order rax, rbx, rcx, rdx, rsi, rdi,
    /// rbp, r8 to r15, rip: they may hold the only pointers to an object. `None` for registers
    /// unknown because the thread was not stopped.
    pub general: [Option<u64>; 16],
}

impl ThreadFacts {
    /// Its RBP.
    pub fn frame_pointer(&self) -> Option<u64> {
        self.general[6]
    }

    /// Its RIP.
    pub fn instruction_pointer(&self) -> Option<u64> {
        self.general[15]
    }
}

/// The stack of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// The thread.
    pub tid: i32,
    /// First byte above the guard.
    pub low: u64,
    /// First byte after it. The thread's `struct pthread` and static TLS are below.
    pub high: u64,
    /// The thread's RSP, within the stack.
    pub stack_pointer: u64,
}

impl Stack {
    /// Its addresses.
    pub fn range(&self) -> AddressRange {
        AddressRange::new(self.low, self.high)
    }
}

/// The stacks of `threads`, in address order and without overlap. If two overlap (a damaged or
/// hostile `struct pthread`), the lower one is kept.
pub fn stacks(threads: &[ThreadFacts], memory: &dyn Memory, space: &AddressSpace) -> Vec<Stack> {
    let mut candidates: Vec<Stack> =
        threads.iter().filter_map(|thread| stack_of(thread, memory, space)).collect();
    candidates.sort_unstable_by_key(|stack| (stack.low, stack.high, stack.tid));
    let mut stacks: Vec<Stack> = Vec::with_capacity(candidates.len());
    for stack in candidates {
        if stacks.last().is_none_or(|last| last.high <= stack.low) {
            stacks.push(stack);
        }
    }
    stacks
}

/// The stack of one thread; `None` if its stack pointer is not on the stack it was started on.
pub fn stack_of(thread: &ThreadFacts, memory: &dyn Memory, space: &AddressSpace) -> Option<Stack> {
    let mapping = space.find(thread.stack_pointer)?;
    let (tid, stack_pointer) = (thread.tid, thread.stack_pointer);
    // Newer kernels name only that of the main thread; kernels before 4.5 also have `[stack:TID]`.
    if mapping.name == "[stack]" {
        return Some(Stack { tid, low: mapping.start, high: mapping.end, stack_pointer });
    }
    let mut words = [0; SEARCH_BYTES];
    let read_bytes = memory.read_some(thread.fs_base, &mut words).min(SEARCH_BYTES);
    let words = &words[..read_bytes];
    let bounds =
        (0..read_bytes).step_by(WORD_BYTES).find_map(|offset| bounds_at(words, offset, thread, mapping))?;
    Some(Stack { tid, low: bounds.start, high: bounds.end, stack_pointer })
}

/// The bounds of the stack, if the four fields are at `offset` of `struct pthread`.
fn bounds_at(words: &[u8], offset: usize, thread: &ThreadFacts, mapping: &Mapping) -> Option<AddressRange> {
    let block = word_at(words, offset)?;
    let block_bytes = word_at(words, offset + WORD_BYTES)?;
    let guard_bytes = word_at(words, offset + 2 * WORD_BYTES)?;
    let reported_guard_bytes = word_at(words, offset + 3 * WORD_BYTES)?;
    if block == 0 || block % PAGE_BYTES != 0 || block_bytes == 0 || block_bytes > MAX_STACK_BYTES {
        return None;
    }
    let end = block.checked_add(block_bytes)?;
    let is_around_thread = block < thread.stack_pointer
        && thread.stack_pointer < thread.fs_base
        && thread.fs_base < end
        && end - thread.fs_base < MAX_ABOVE_THREAD_POINTER;
    let has_plausible_guards =
        guard_bytes < block_bytes && guard_bytes % PAGE_BYTES == 0 && reported_guard_bytes <= block_bytes;
    if !is_around_thread || !has_plausible_guards {
        return None;
    }
    // The guard may be a separate mapping or part of this one; the stack itself is in this one.
    let low = (block + guard_bytes).max(mapping.start);
    (low <= thread.stack_pointer && end <= mapping.end).then_some(AddressRange::new(low, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Bytes {
        start: u64,
        bytes: Vec<u8>,
    }

    impl Memory for Bytes {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            let Some(skip) = address.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok())
            else {
                return 0;
            };
            let rest = self.bytes.get(skip..).unwrap_or(&[]);
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        }
    }

    const MAPS: &[u8] = b"7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n\
        7f0000001000-7f0000901000 rw-p 00000000 00:00 0 \n\
        7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0                          [stack]\n";
    const BASE: u64 = 0x7f00_0000_0000;

    /// A `struct pthread` of words that must not match, with the four fields at 0x690.
    fn pthread(block: u64, size: u64, guard: u64) -> Vec<u8> {
        let mut bytes = vec![0; 0x900];
        for (index, word) in [block, size, guard, guard].into_iter().enumerate() {
            bytes[0x690 + index * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn main_and_secondary_threads_have_bounds() {
        let (space, _) = AddressSpace::parse(MAPS);
        let fs_base = BASE + 0x80_0700;
        let memory = Bytes { start: fs_base, bytes: pthread(BASE, 0x80_1000, 0x1000) };
        let threads = [
            ThreadFacts { tid: 7, stack_pointer: 0x7ffe_0001_0000, fs_base: 0, ..ThreadFacts::default() },
            ThreadFacts { tid: 8, stack_pointer: BASE + 0x70_0000, fs_base, ..ThreadFacts::default() },
            ThreadFacts { tid: 9, stack_pointer: 0x1234, fs_base, ..ThreadFacts::default() },
        ];
        let expected = [
            Stack { tid: 8, low: BASE + 0x1000, high: BASE + 0x80_1000, stack_pointer: BASE + 0x70_0000 },
            Stack { tid: 7, low: 0x7ffe_0000_0000, high: 0x7ffe_0002_1000, stack_pointer: 0x7ffe_0001_0000 },
        ];
        assert_eq!(stacks(&threads, &memory, &space), expected);
    }

    #[test]
    fn two_threads_never_share_bytes() {
        let (space, _) = AddressSpace::parse(MAPS);
        let fs_base = BASE + 0x80_0700;
        let memory = Bytes { start: fs_base, bytes: pthread(BASE, 0x80_1000, 0x1000) };
        let thread =
            |tid, stack_pointer| ThreadFacts { tid, stack_pointer, fs_base, ..ThreadFacts::default() };
        let found = stacks(&[thread(1, BASE + 0x5000), thread(2, BASE + 0x6000)], &memory, &space);
        assert_eq!(found.iter().map(|stack| stack.tid).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_struct_that_does_not_hold_together_claims_nothing() {
        let (space, _) = AddressSpace::parse(MAPS);
        let fs_base = BASE + 0x80_0700;
        let thread =
            ThreadFacts { tid: 8, stack_pointer: BASE + 0x70_0000, fs_base, ..ThreadFacts::default() };
        for (block, size, guard) in [
            (BASE + 8, 0x80_1000, 0x1000),
            (BASE, u64::MAX, 0x1000),
            (BASE, 0x80_0000, 0x1000),
            (BASE, 0x90_0000, 0x1000),
            (BASE, 0x80_1000, 0x80_0000),
            (0, 0, 0),
        ] {
            let memory = Bytes { start: fs_base, bytes: pthread(block, size, guard) };
            assert!(stacks(&[thread], &memory, &space).is_empty(), "{block:#x} {size:#x} {guard:#x}");
        }
    }

    struct Live(i32);

    impl Memory for Live {
        fn read_some(&self, address: u64, buffer: &mut [u8]) -> usize {
            strandline_sys::memory::read(self.0, address, buffer).unwrap_or(0)
        }
    }

    /// Stops a thread and returns its facts; it continues when detached.
    fn facts(tid: i32) -> ThreadFacts {
        use strandline_sys::ptrace;

        ptrace::seize(tid, 0).unwrap();
        ptrace::interrupt(tid).unwrap();
        ptrace::wait(tid).unwrap();
        let registers = ptrace::registers(tid).unwrap();
        ptrace::detach(tid, 0).unwrap();
        ThreadFacts {
            tid,
            stack_pointer: registers.rsp,
            fs_base: registers.fs_base,
            ..ThreadFacts::default()
        }
    }

    #[test]
    fn bounds_are_those_that_the_threads_themselves_know() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};

        let binary = std::env::temp_dir().join(format!("strandline-stacks-{}", std::process::id()));
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/stacks.c");
        let built = Command::new("cc").args(["-pthread", "-o"]).arg(&binary).arg(source).status().unwrap();
        assert!(built.success());
        let mut child = Command::new(&binary).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
        let mut expected: Vec<(u64, u64)> = lines
            .take_while(|line| line != "ready")
            .map(|line| {
                let (low, high) = line.split_once(' ').unwrap();
                (u64::from_str_radix(low, 16).unwrap(), u64::from_str_radix(high, 16).unwrap())
            })
            .collect();
        let pid = i32::try_from(child.id()).unwrap();
        let process = crate::procfs::Process::open(pid).unwrap();
        let threads: Vec<ThreadFacts> = process.tasks().unwrap().into_iter().map(facts).collect();
        let (space, _) = AddressSpace::parse(&process.maps_text().unwrap());
        let found = stacks(&threads, &Live(pid), &space);
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(binary).unwrap();
        let main = found.iter().find(|stack| stack.tid == pid).unwrap();
        assert_eq!(space.find(main.low).unwrap().name, "[stack]");
        let mut others: Vec<(u64, u64)> =
            found.iter().filter(|stack| stack.tid != pid).map(|stack| (stack.low, stack.high)).collect();
        expected.sort_unstable();
        others.sort_unstable();
        assert_eq!(others, expected);
    }

    proptest! {
        #[test]
        fn random_structs_never_panic_and_stay_in_their_mapping(
            bytes in proptest::collection::vec(any::<u8>(), 0..0x900),
            stack_pointer in BASE..BASE + 0x90_1000, above in 0u64..0x10_0000,
        ) {
            let (space, _) = AddressSpace::parse(MAPS);
            let fs_base = stack_pointer + above;
            let memory = Bytes { start: fs_base, bytes };
            for stack in stacks(&[ThreadFacts { tid: 1, stack_pointer, fs_base, ..ThreadFacts::default() }], &memory, &space) {
                prop_assert!(stack.low <= stack.stack_pointer && stack.stack_pointer < stack.high);
                prop_assert!(stack.high <= BASE + 0x90_1000);
            }
        }
    }
}
