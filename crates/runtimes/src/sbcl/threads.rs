//! SBCL's threads: their stacks, and the regions of dynamic space that they allocate from.
//!
//! `struct thread` (objdef.lisp, `define-primitive-object (thread …)`) moves between releases, but
//! keeps one sequence of slots: alien_stack_start, binding_stack_start, control_stack_start,
//! control_stack_end, this, prev, next. `this` is the structure's own address, by which the
//! sequence is found. The binding stack's pointer is always slot 2. Thread-local storage starts at
//! the structure and is `dynamic_values_bytes` long; below the structure are the control stack, the
//! binding stack and the alien stack, all in one allocation (thread.c, alloc.c).

use super::heap::DynamicSpace;
use super::locate::Program;
use crate::sbcl::layout::{GC_PAGE_BYTES, Layout};
use strandline_process::memory::{Memory, word_at};
use strandline_process::range::AddressRange;

/// Slots among which `this` is searched.
const THIS_SLOTS: std::ops::Range<usize> = 0x10..0x30;
/// Slot of the binding stack's pointer.
const BINDING_POINTER_SLOT: usize = 2;
/// Distances from other slots to that of `this`: `alien_stack_start`, `binding_stack_start`,
/// `control_stack_start`, `control_stack_end`.
const ALIEN_START_BEFORE: usize = 4;
const BINDING_START_BEFORE: usize = 3;
const CONTROL_START_BEFORE: usize = 2;
const CONTROL_END_BEFORE: usize = 1;
/// Distance from the slot of `this` to that of `next`.
const NEXT_BEHIND: usize = 2;
/// Words read of the structure.
const STRUCT_WORDS: usize = 0x60;
/// Limit on the threads of a list.
const MAX_THREADS: usize = 65_536;
/// Limit on the bytes of thread-local storage.
const MAX_LOCAL_BYTES: u64 = 16 << 20;
/// Limit on the bytes of a stack.
const MAX_STACK_BYTES: u64 = 64 << 30;

/// A region from which one thread allocates, or all threads do. The page table does not count its
/// contents yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte: the page's used part ends here.
    pub start: u64,
    /// First byte that is not allocated.
    pub allocated_end: u64,
    /// End address (exclusive).
    pub end: u64,
}

/// A thread of SBCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Address of its structure.
    pub address: u64,
    /// Its control stack.
    pub control: AddressRange,
    /// The used part of its binding stack.
    pub bindings: AddressRange,
    /// Its slots and thread-local storage, without the leading slots that are not Lisp objects.
    pub locals: AddressRange,
}

/// Threads and open regions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Threads {
    /// The threads, in the order of SBCL's list.
    pub threads: Vec<Thread>,
    /// All open regions, by address.
    pub regions: Vec<Region>,
    /// What is inconsistent, as a clause; `None` if nothing is.
    pub inconsistency: Option<String>,
}

/// Follows the list of threads, and collects open regions.
pub fn read(memory: &dyn Memory, program: &Program, layout: &Layout, heap: &DynamicSpace) -> Threads {
    let mut list = Threads::default();
    let local_bytes = program.value(memory, "dynamic_values_bytes");
    let local_bytes = local_bytes.filter(|bytes| (1..=MAX_LOCAL_BYTES).contains(bytes));
    if local_bytes.is_none() {
        list.inconsistency = Some("the size of their thread-local storage is not known".to_owned());
    }
    let first_thread = program.value(memory, "all_threads");
    if first_thread.is_none_or(|address| address == 0) {
        let state = if first_thread.is_some() { "is empty" } else { "cannot be read" };
        list.inconsistency = Some(format!("the list of threads {state}"));
    }
    let mut at = first_thread.unwrap_or(0);
    let mut visited = std::collections::HashSet::new();
    while at != 0 {
        if !visited.insert(at) || list.threads.len() >= MAX_THREADS {
            list.inconsistency = Some(format!("the list of threads does not end at {at:#x}"));
            break;
        }
        let mut words = [0; STRUCT_WORDS * 8];
        let read_bytes = memory.read_some(at, &mut words);
        let words = words.get(..read_bytes).unwrap_or_default();
        // Without the size of local storage, the threads are read but nothing is traced.
        let Some(entry) = parse_thread(at, words, local_bytes.unwrap_or(0)) else {
            list.inconsistency = Some(format!("no thread at {at:#x}"));
            break;
        };
        add_open_regions(words, layout, heap, &mut list.regions);
        list.threads.push(entry.thread);
        at = entry.next;
    }
    if let Some(range) = program.range("gc_alloc_region") {
        let mut words = vec![0; range.len().min(STRUCT_WORDS as u64 * 8) as usize];
        // A page that was never written cannot be read, and holds no region.
        if memory.read(range.start, &mut words).is_ok() {
            add_open_regions(&words, layout, heap, &mut list.regions);
        }
    }
    list.regions.sort_by_key(|region| region.start);
    list.regions.dedup_by(|next, before| next.start < before.end);
    list
}

/// A thread in SBCL's list.
#[derive(Debug, PartialEq, Eq)]
struct ListedThread {
    thread: Thread,
    /// Address of the next one's structure; 0 after the last.
    next: u64,
}

/// The thread whose structure, of these words, is at `at`; `None` if there is no valid one.
fn parse_thread(at: u64, words: &[u8], local_bytes: u64) -> Option<ListedThread> {
    let word = |slot: usize| word_at(words, slot * 8);
    THIS_SLOTS.filter(|&slot| word(slot) == Some(at)).find_map(|this| {
        let (alien_start, binding_start) =
            (word(this - ALIEN_START_BEFORE)?, word(this - BINDING_START_BEFORE)?);
        let control = AddressRange::new(word(this - CONTROL_START_BEFORE)?, word(this - CONTROL_END_BEFORE)?);
        let binding_end = word(BINDING_POINTER_SLOT)?;
        let is_valid = !control.is_empty()
            && control.len() <= MAX_STACK_BYTES
            && binding_start <= binding_end
            && binding_end <= alien_start
            && alien_start <= at
            && at - binding_start <= MAX_STACK_BYTES;
        let next_slot = this + NEXT_BEHIND;
        let locals = AddressRange::new(at + (next_slot as u64 + 1) * 8, at.checked_add(local_bytes)?);
        let bindings = AddressRange::new(binding_start, binding_end);
        let thread = Thread { address: at, control, bindings, locals };
        is_valid.then_some(ListedThread { thread, next: word(next_slot)? })
    })
}

/// Adds the open regions among `words`: three pointers in order, on a page that is flagged as open
/// and whose used part ends where the region starts (`gc_close_region` asserts it).
fn add_open_regions(words: &[u8], layout: &Layout, heap: &DynamicSpace, regions: &mut Vec<Region>) {
    let count = words.len() / 8;
    for slot in 0..count.saturating_sub(layout.region_words - 1) {
        let word = |index: usize| word_at(words, (slot + index) * 8);
        let (Some(allocated_end), Some(end), Some(start)) = (word(0), word(1), word(layout.region_words - 1))
        else {
            break;
        };
        let region = Region { start, allocated_end, end };
        if region.start == 0 || region.start > region.allocated_end || region.allocated_end > region.end {
            continue;
        }
        let Some(page) = heap.page_of(region.start) else { continue };
        let page_start = region.start & !(GC_PAGE_BYTES - 1);
        let is_open = page.kind & layout.page_types.open_region != 0;
        let last_page = region.end.checked_sub(1).and_then(|last| heap.page_of(last));
        if is_open && last_page.is_some() && page_start + u64::from(page.used_bytes) == region.start {
            regions.push(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(list: &[u64]) -> Vec<u8> {
        list.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_thread_is_found_by_its_own_address() {
        let at = 0x7000_0040_0000;
        let mut slots = vec![0; STRUCT_WORDS];
        slots[2] = at - 0x20_0000 + 0x80;
        for (slot, word) in [at - 0x10_0000, at - 0x20_0000, at - 0x40_0000, at - 0x20_0000, at, 0, 0x1234]
            .into_iter()
            .enumerate()
        {
            slots[0x14 + slot] = word;
        }
        let ListedThread { thread, next } = parse_thread(at, &words(&slots), 4096 * 8).expect("found");
        assert_eq!(next, 0x1234);
        assert_eq!(thread.control, AddressRange::new(at - 0x40_0000, at - 0x20_0000));
        assert_eq!(thread.bindings, AddressRange::sized(at - 0x20_0000, 0x80));
        assert_eq!(thread.locals, AddressRange::new(at + 0x1b * 8, at + 4096 * 8));
        slots[0x17] = 0;
        assert_eq!(
            parse_thread(at, &words(&slots), 4096 * 8),
            None,
            "a control stack that ends before it starts"
        );
    }
}
