//! Advice on the memory of this process itself, to its allocator, the kernel and the processor.

use crate::host::PAGE_BYTES;

/// Gives free heap memory of this process back to the kernel; returns whether there was any. Takes
/// each arena's lock in turn, so other threads may wait.
pub fn trim_heap() -> bool {
    // SAFETY: malloc_trim takes an integer and only works on free chunks, under malloc's own locks.
    unsafe { libc::malloc_trim(0) == 1 }
}

/// Makes malloc give every large array its own mapping, which `free` returns to the kernel. Without
/// this, glibc keeps arrays of up to 32 MiB in its heap once one was freed (`mallopt(3)`,
/// M_MMAP_THRESHOLD). A hint only: if malloc refuses, arrays stay in its heap.
pub fn map_large_arrays() {
    /// glibc's initial threshold; setting it stops glibc from raising it.
    const MMAP_THRESHOLD_BYTES: libc::c_int = 128 << 10;
    // SAFETY: mallopt takes integers, and holds malloc's own lock.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) };
}

/// Prefetches the cache line of an element that is needed soon. A hint only. Inlined: a call would
/// cost what it saves.
#[inline(always)]
pub fn prefetch<T>(elements: &[T], index: usize) {
    if let Some(element) = elements.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
}

/// Asks the kernel to back `memory` with huge pages where whole ones fit in it. A hint only.
pub fn prefer_huge_pages<T>(memory: &mut [T]) {
    let start = memory.as_ptr().addr().next_multiple_of(PAGE_BYTES);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / PAGE_BYTES * PAGE_BYTES;
    if start < end {
        // SAFETY: the range is in `memory`, which belongs to this program; the advice changes no
        // byte of it.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}
