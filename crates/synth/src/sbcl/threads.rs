//! Writes threads: their stacks, and their `struct thread` with thread-local values.

use super::image::{DYNAMIC_START, FIXNUM, Memory, NIL, TEXT_START, Writer, put};
use super::{SbclRecipe, SbclThread};
use crate::PAGE;

/// Address of the first thread's stacks, and the distance to the next one's beyond its own bytes.
const THREADS_START: u64 = 0x7f30_0000_0000;
const BETWEEN_THREADS: u64 = 16 * PAGE;
/// `dynamic_values_bytes`: 4096 words of thread-local values.
pub(super) const VALUES_BYTES: u64 = 0x8000;
const CONTROL_BYTES: u64 = 0x20000;
const BINDING_BYTES: u64 = 0x4000;
const ALIEN_BYTES: u64 = 0x4000;
const EXTRA_BYTES: u64 = 0x2000;
/// A thread's stacks, and all of its memory: the stacks, its struct with the values, and a rest.
const STACKS_BYTES: u64 = CONTROL_BYTES + BINDING_BYTES + ALIEN_BYTES;
const THREAD_BYTES: u64 = STACKS_BYTES + VALUES_BYTES + EXTRA_BYTES;
const NO_TLS_VALUE: u64 = u64::MAX;

/// The threads, and the roots that are in static space.
pub(super) struct WrittenThreads {
    pub threads: Vec<SbclThread>,
    /// Indexes of the targets of the roots.
    pub static_roots: Vec<usize>,
}

/// The memory of a thread.
struct ThreadMemory {
    bytes: Vec<u8>,
    stack_pointer: u64,
}

/// A thread's id and addresses.
struct ThreadAddresses {
    /// Start of its memory.
    base: u64,
    /// Its struct, and those of its neighbours in the list of threads; 0 for none.
    address: u64,
    next: u64,
    previous: u64,
    tid: i32,
}

impl Writer {
    /// Writes the stacks and the struct of every thread, and divides the roots among the threads
    /// and static space.
    pub(super) fn write_threads(
        &mut self,
        memory: &mut Memory,
        recipe: &SbclRecipe,
        roots: &[usize],
    ) -> WrittenThreads {
        let count = recipe.threads.max(1);
        let mut threads = Vec::new();
        let mut static_roots = Vec::new();
        let mut thread_roots = vec![Vec::new(); count];
        for &root in roots {
            match self.rng.below(count as u64 + 1) as usize {
                thread if thread < count => thread_roots[thread].push(root),
                _ => static_roots.push(root),
            }
        }
        let base = |thread: usize| THREADS_START + thread as u64 * (THREAD_BYTES + BETWEEN_THREADS);
        for (thread, roots) in thread_roots.iter().enumerate() {
            let thread_addresses = ThreadAddresses {
                base: base(thread),
                address: base(thread) + STACKS_BYTES,
                next: if thread + 1 < count { base(thread + 1) + STACKS_BYTES } else { 0 },
                previous: if thread > 0 { base(thread - 1) + STACKS_BYTES } else { 0 },
                tid: 4000 + thread as i32,
            };
            let ThreadMemory { bytes, stack_pointer } = self.thread_memory(&thread_addresses, roots);
            memory.add(thread_addresses.base, bytes, "rw-p");
            let ThreadAddresses { tid, address, .. } = thread_addresses;
            threads.push(SbclThread { tid, stack_pointer, address });
        }
        WrittenThreads { threads, static_roots }
    }

    /// Fills the memory of a thread with its `roots`.
    fn thread_memory(&mut self, thread: &ThreadAddresses, roots: &[usize]) -> ThreadMemory {
        let mut bytes = vec![0; THREAD_BYTES as usize];
        let (control_end, binding) = (CONTROL_BYTES, CONTROL_BYTES);
        let alien = binding + BINDING_BYTES;
        let thread_struct = STACKS_BYTES;
        let words = self.release.thread_words();
        for word in words.lisp_thread + 1..VALUES_BYTES / 8 {
            put(&mut bytes, thread_struct + 8 * word, NO_TLS_VALUE);
        }
        // Half of the roots are on the stack, between other words; the others are thread-local
        // values, or saved on the binding stack.
        let used_bytes = 0x400 + 16 * roots.len() as u64;
        let stack = control_end - used_bytes;
        self.put_noise(&mut bytes, stack, used_bytes, thread.base);
        let (mut binding_count, mut local_word) = (0, words.lisp_thread + 40);
        for (number, &root) in roots.iter().enumerate() {
            let reference = self.references[root];
            match number % 4 {
                0 | 1 => put(&mut bytes, stack + 0x80 + 16 * number as u64, reference),
                2 => {
                    put(&mut bytes, thread_struct + 8 * local_word, reference);
                    local_word += 1;
                }
                _ => {
                    put(&mut bytes, binding + 16 * binding_count, reference);
                    put(&mut bytes, binding + 16 * binding_count + 8, 8 * local_word);
                    put(&mut bytes, thread_struct + 8 * local_word, NIL);
                    local_word += 1;
                    binding_count += 1;
                }
            }
        }
        let mut put_word = |word: u64, value: u64| {
            put(&mut bytes, thread_struct + 8 * word, value);
            self.damageable_words.push(thread.address + 8 * word);
        };
        put_word(0, NO_TLS_VALUE);
        put_word(words.os_thread, thread.address + VALUES_BYTES);
        put_word(words.binding_stack_pointer, thread.base + binding + 16 * binding_count);
        put_word(words.alien_stack_pointer, thread.base + alien + ALIEN_BYTES - 8);
        for region in 0..words.region_count {
            // A closed region has no start.
            let first = words.first_region + region * self.release.region_words();
            put_word(first, 0x1000);
            put_word(first + 1, 0x1000);
        }
        put_word(words.os_address, thread.base);
        put_word(words.kernel_tid, thread.tid as u64);
        put_word(words.alien_stack_start, thread.base + alien);
        put_word(words.binding_stack_start, thread.base + binding);
        put_word(words.control_stack_start, thread.base);
        put_word(words.control_stack_end, thread.base + control_end);
        put_word(words.this, thread.address);
        put_word(words.previous, thread.previous);
        put_word(words.next, thread.next);
        put_word(words.state, 1 << 16 | 1);
        put_word(words.tls_size, 8 * (local_word + 1));
        put_word(words.lisp_thread, NIL);
        ThreadMemory { bytes, stack_pointer: thread.base + stack }
    }

    /// Fills a control stack with words that are not references, though some are addresses.
    fn put_noise(&mut self, bytes: &mut [u8], stack: u64, used_bytes: u64, base: u64) {
        let words = [0, 1, FIXNUM, base + stack + 0x40, TEXT_START + 8, DYNAMIC_START - 9];
        for word in 0..used_bytes / 8 {
            put(bytes, stack + 8 * word, self.rng.one_of(&words));
        }
    }
}
