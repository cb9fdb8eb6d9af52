//! Handles of the JVM and its native code: places outside the heap that hold references.

use std::collections::HashSet;
use std::time::Instant;

use strandline_claims::runtime::Context;
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_process::memory::{half_word_at, word_at};
use strandline_process::range::AddressRange;

use super::PreciseRoots;
use crate::jvm::view::View;

/// Handles per block, followed by a mask of those in use and the address of the storage
/// (`OopStorage::Block`, gc/shared/oopStorage.inline.hpp, JDK 11 to 25).
pub const HANDLES: usize = 64;
/// Limit on storages.
const MAX_STORAGES: usize = 32;
/// Bytes checked of a storage's name; the shortest is `VM Weak`.
const NAME_BYTES_CHECKED: usize = 6;
/// Bytes read of a name to find out whether the storage is weak.
const NAME_BYTES: usize = 48;
/// Limit on blocks of a storage: 64 M handles.
const MAX_BLOCKS: u64 = 1 << 20;
/// Offset of `OopStorage::_active_array`, behind `_name` (gc/shared/oopStorage.hpp, JDK 17 and 25).
const ACTIVE_ARRAY: u64 = 8;
/// Offsets in `OopStorage::ActiveArray` of the number of blocks, behind their maximum number, and
/// of the blocks (`blocks_offset`, gc/shared/oopStorage.cpp, JDK 17 and 25).
const BLOCK_COUNT: u64 = 8;
const BLOCKS: u64 = 24;
/// `ClassLoaderData::ChunkedHandleList::Chunk`: 32 references, the number in use, and the next
/// chunk (classfile/classLoaderData.hpp, JDK 9 to 25).
const CHUNK_HANDLES: usize = 32;
const CHUNK_BYTES: usize = CHUNK_HANDLES * 8 + 16;
/// Possible offsets of `ClassLoaderData::_handles` (JDK 17 and 25: the second). The right one is
/// where the chunks contain the mirror of the loader's first class.
const HANDLE_LIST_OFFSETS: [u64; 4] = [40, 48, 56, 64];
/// Limit on chunks or blocks of a list.
const MAX_LINKS: usize = 1 << 20;
/// Limit on class loaders.
const MAX_LOADERS: usize = 1 << 20;
/// Handles per `JNIHandleBlock`, and the distance from `_next` to `_pop_frame_link`, the previous
/// chain. The block contains handles, the number in use, next block, last block, and that link
/// (runtime/jniHandles.hpp, JDK 17 and 25).
const LOCAL_HANDLES: usize = 32;
const POP_FRAME_LINK_AFTER_NEXT: u64 = 16;
/// Limit on bytes of a `LockStack`: HotSpot's has eight places, but the process controls the size.
const MAX_LOCK_STACK_BYTES: u64 = 64 * 8;
/// Largest chunk of an `Arena` that is read.
const MAX_ARENA_BYTES: u64 = 16 << 20;
/// Limit on bytes of a `Thread`.
const MAX_THREAD_BYTES: u64 = 16 << 10;

/// Adds the references in strong storages; `None` if storages that every version has are missing.
pub fn of_storages(
    context: &Context<'_>,
    view: &View<'_>,
    data: AddressRange,
    known: &mut PreciseRoots,
) -> Option<()> {
    let mut names = Vec::new();
    for storage in storages(context, view, data) {
        let Some(name) = name(view, storage) else { continue };
        let is_weak = name.contains("Weak") || name.contains("weak");
        if !is_weak && of_storage(view, storage, known)? {
            names.push(name);
        }
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    (has("JNI Global") && has("VM Global")).then_some(())
}

fn name(view: &View<'_>, storage: u64) -> Option<String> {
    let mut bytes = [0; NAME_BYTES];
    let got = view.memory.read_some(view.word(storage)?, &mut bytes);
    let text = bytes.get(..got)?.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Adds the references of a storage. False if `storage` is not a storage: a word beside the
/// storages has no blocks that point back to it. `None` if a storage was not read to its end, so
/// that references are missing.
fn of_storage(view: &View<'_>, storage: u64, known: &mut PreciseRoots) -> Option<bool> {
    let Some(BlockList { first, count }) = blocks_of(view, storage) else { return Some(false) };
    for index in 0..count {
        known.in_time()?;
        let Some(bytes) = block_of(view, storage, first.checked_add(index * 8)?) else {
            return (index == 0).then_some(false);
        };
        let mask = word_at(&bytes, HANDLES * 8)?;
        let used = (0..HANDLES).filter(|index| mask >> index & 1 != 0);
        used.filter_map(|index| word_at(&bytes, index * 8)).for_each(|word| known.add(word));
    }
    Some(true)
}

/// The list of the blocks of a storage.
struct BlockList {
    /// Address of the first entry.
    first: u64,
    count: u64,
}

/// Returns the list of a storage's blocks.
fn blocks_of(view: &View<'_>, storage: u64) -> Option<BlockList> {
    let array = view.word(storage.checked_add(ACTIVE_ARRAY)?)?;
    let size = view.word(array)?;
    let count = view.word(array.checked_add(BLOCK_COUNT)?)?;
    let first = array.checked_add(BLOCKS)?;
    (count <= size && size <= MAX_BLOCKS).then_some(BlockList { first, count })
}

/// Returns the block that the entry at `at` of a list points to; `None` if it does not belong to
/// `storage`.
fn block_of(view: &View<'_>, storage: u64, at: u64) -> Option<[u8; (HANDLES + 2) * 8]> {
    let mut bytes = [0; (HANDLES + 2) * 8];
    view.memory.read(view.word(at)?, &mut bytes).ok()?;
    (word_at(&bytes, (HANDLES + 1) * 8)? == storage).then_some(bytes)
}

/// Adds the references of class loaders: mirrors of their classes, and objects that constants of
/// these refer to.
pub fn of_loaders(view: &View<'_>, known: &mut PreciseRoots) -> Option<()> {
    let (mut loaders, mut seen) = (Vec::new(), HashSet::new());
    let mut at = view.static_field(&["ClassLoaderDataGraph::_head"])?;
    while at != 0 && seen.insert(at) {
        known.in_time().filter(|()| loaders.len() < MAX_LOADERS)?;
        loaders.push(at);
        at = view.field(at, &["ClassLoaderData::_next"])?;
    }
    let mirror = |&loader: &u64| {
        let klass = view.field(loader, &["ClassLoaderData::_klasses"]).filter(|&klass| klass != 0)?;
        Some((loader, view.field(klass, &["Klass::_java_mirror"])?))
    };
    let with_class = loaders.iter().filter_map(mirror).collect::<Vec<_>>();
    let has_mirrors = |place: &&u64| {
        let mut has = with_class.iter().map(|&(loader, mirror)| {
            let chunks = chunks(view, view.word(loader.checked_add(**place)?)?, known)?;
            Some(
                chunks
                    .iter()
                    .any(|&(chunk, _)| (chunk..chunk + (CHUNK_HANDLES * 8) as u64).contains(&mirror)),
            )
        });
        !with_class.is_empty() && has.all(|has| has == Some(true))
    };
    let place = HANDLE_LIST_OFFSETS.iter().find(has_mirrors)?;
    for loader in loaders {
        for (_, words) in chunks(view, view.word(loader.checked_add(*place)?)?, known)? {
            words.into_iter().for_each(|word| known.add(word));
        }
    }
    Some(())
}

/// Returns the chunks of a list of handles, with their references.
fn chunks(view: &View<'_>, first: u64, known: &PreciseRoots) -> Option<Vec<(u64, Vec<u64>)>> {
    let (mut all, mut seen, mut at) = (Vec::new(), HashSet::new(), first);
    while at != 0 {
        known.in_time().filter(|()| all.len() < MAX_LINKS && seen.insert(at))?;
        let mut bytes = [0; CHUNK_BYTES];
        at.checked_add(CHUNK_BYTES as u64)?;
        view.memory.read(at, &mut bytes).ok()?;
        let count = half_word_at(&bytes, CHUNK_HANDLES * 8)? as usize;
        if count > CHUNK_HANDLES {
            return None;
        }
        all.push((at, (0..count).filter_map(|index| word_at(&bytes, index * 8)).collect()));
        at = word_at(&bytes, CHUNK_HANDLES * 8 + 8)?;
    }
    Some(all)
}

/// Adds a thread's references outside its frames: local handles, handles of the JVM's own code,
/// locks, pending exceptions.
pub fn of_thread(view: &View<'_>, thread: u64, known: &mut PreciseRoots) -> Option<()> {
    of_blocks(view, view.field(thread, &["JavaThread::_active_handles", "Thread::_active_handles"])?, known)?;
    of_area(view, thread, known)?;
    for field in [
        "ThreadShadow::_pending_exception",
        "JavaThread::_pending_async_exception",
        "JavaThread::_exception_oop",
        "JavaThread::_vm_result",
        "JavaThread::_vm_result_oop",
    ] {
        if let Some(word) = view.field(thread, &[field]) {
            known.add(word);
        }
    }
    of_lock_stack(view, thread, known)
}

/// Adds the locks of a thread. `LockStack::_top` is the offset of their end in the thread
/// (runtime/lockStack.hpp, JDK 21 to 25).
fn of_lock_stack(view: &View<'_>, thread: u64, known: &mut PreciseRoots) -> Option<()> {
    let Some(stack) = view.field_address(thread, &["JavaThread::_lock_stack"]) else { return Some(()) };
    let first = view.field_address(stack, &["LockStack::_base[0]"])?;
    let end = thread.checked_add(u64::from(view.half_field(stack, &["LockStack::_top"])?))?;
    let most = view.structs.size("LockStack").unwrap_or(0).min(MAX_LOCK_STACK_BYTES);
    let bytes = end.checked_sub(first).filter(|&bytes| bytes <= most)?;
    (0..bytes / 8).filter_map(|index| view.word(first + index * 8)).for_each(|word| known.add(word));
    Some(())
}

/// Adds local handles, from the first block of a chain on (`JNIHandleBlock::oops_do`). Blocks after
/// one that is not full are unused.
pub fn of_blocks(view: &View<'_>, first: u64, known: &mut PreciseRoots) -> Option<()> {
    let mut seen = HashSet::new();
    let mut chain = first;
    while chain != 0 && seen.insert(chain) {
        let (mut block, mut is_full) = (chain, true);
        while block != 0 && is_full {
            known.in_time()?;
            if seen.len() > MAX_LINKS || block != chain && !seen.insert(block) {
                return None;
            }
            let count = view.half_field(block, &["JNIHandleBlock::_top"])? as usize;
            let handles = view.field_address(block, &["JNIHandleBlock::_handles"])?;
            if count > LOCAL_HANDLES {
                return None;
            }
            let mut bytes = [0; LOCAL_HANDLES * 8];
            view.memory.read(handles, &mut bytes).ok()?;
            (0..count).filter_map(|index| word_at(&bytes, index * 8)).for_each(|word| known.add(word));
            is_full = count == LOCAL_HANDLES;
            block = view.field(block, &["JNIHandleBlock::_next"])?;
        }
        let next = view.field_address(chain, &["JNIHandleBlock::_next"])?;
        chain = view.word(next.checked_add(POP_FRAME_LINK_AFTER_NEXT)?)?;
    }
    Some(())
}

/// Adds the references in a thread's handle area, up to its mark (`HandleArea::oops_do`,
/// runtime/handles.cpp). In a `Thread` the pointer to it follows the pointer to its resource area,
/// an arena of the same shape without handles (runtime/thread.hpp, JDK 17 and 25).
fn of_area(view: &View<'_>, thread: u64, known: &mut PreciseRoots) -> Option<()> {
    let size = view.structs.size("Thread").filter(|&size| size <= MAX_THREAD_BYTES)?;
    let mut words = vec![0; usize::try_from(size).ok()?];
    view.memory.read(thread, &mut words).ok()?;
    let words: Vec<u64> = (0..words.len() / 8).filter_map(|index| word_at(&words, index * 8)).collect();
    let area =
        words.windows(2).find_map(|pair| Arena::read(view, pair[0]).and(Arena::read(view, pair[1])))?;
    let (mut chunk, mut links) = (area.first, 0);
    while chunk != 0 && links < MAX_LINKS {
        known.in_time()?;
        let length = view.word(chunk.checked_add(8)?)?.min(MAX_ARENA_BYTES);
        let from = chunk.checked_add(area.header)?;
        let to = if chunk == area.chunk { area.mark } else { from.checked_add(length)? };
        for at in (from..to).step_by(8) {
            known.add(view.word(at)?);
        }
        if chunk == area.chunk {
            return Some(());
        }
        chunk = view.word(chunk)?;
        links += 1;
    }
    None
}

/// An `Arena`: a list of chunks; the current one is in use up to a mark (memory/arena.hpp).
struct Arena {
    first: u64,
    chunk: u64,
    mark: u64,
    /// Bytes of a chunk's header.
    header: u64,
}

impl Arena {
    /// Offsets of `_first`: behind a tag (JDK 17), or behind a tag and the size (JDK 25).
    const FIRST_OFFSETS: [u64; 2] = [8, 16];

    /// Reads the arena at an address; `None` if its chunk does not end where the chunk's length
    /// puts the end.
    fn read(view: &View<'_>, at: u64) -> Option<Self> {
        if at == 0 || !at.is_multiple_of(8) {
            return None;
        }
        Self::FIRST_OFFSETS.iter().find_map(|place| {
            let mut words = [0; 32];
            view.memory.read(at.checked_add(*place)?, &mut words).ok()?;
            let word = |index: usize| word_at(&words, index * 8);
            let (first, chunk, mark, end) = (word(0)?, word(1)?, word(2)?, word(3)?);
            let bytes = end.checked_sub(chunk).filter(|&bytes| chunk != 0 && bytes <= MAX_ARENA_BYTES)?;
            let header = bytes.checked_sub(view.word(chunk.checked_add(8)?)?)?;
            let is_sound = first != 0
                && matches!(header, 16 | 24 | 32)
                && (chunk + header..=end).contains(&mark)
                && mark.is_multiple_of(8);
            is_sound.then_some(Self { first, chunk, mark, header })
        })
    }
}

/// Returns the storages of handles (`OopStorage`). The address of the global one has an entry; in
/// static data, the addresses of the others are beside it (`OopStorageSet::_storages`,
/// gc/shared/oopStorageSet.hpp).
pub fn storages(context: &Context<'_>, view: &View<'_>, data: AddressRange) -> Vec<u64> {
    let Some(entry) = view.address(&["JNIHandles::_global_handles"]) else { return Vec::new() };
    let Some(global) = view.word(entry).filter(|&global| global != 0) else { return Vec::new() };
    let mut storages = vec![global];
    each_word(view.memory, context.resident, data, READ_BYTES, &mut |at, word| {
        if word != global || at == entry {
            return true;
        }
        for step in [8, 8_u64.wrapping_neg()] {
            let beside = (1..=MAX_STORAGES as u64).map(|index| at.wrapping_add(step.wrapping_mul(index)));
            storages.extend(beside.map_while(|at| view.word(at).filter(|&word| is_storage(view, word))));
        }
        storages.len() < MAX_STORAGES && Instant::now() < context.deadline
    });
    storages.sort_unstable();
    storages.dedup();
    storages
}

/// Whether `at` is the address of a storage, which begins with a pointer to its name.
fn is_storage(view: &View<'_>, at: u64) -> bool {
    let mut name = [0; NAME_BYTES_CHECKED];
    let is_read = view.word(at).is_some_and(|text| view.memory.read(text, &mut name).is_ok());
    is_read && name.iter().all(|byte| (b' '..=b'~').contains(byte))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use strandline_process::memory::Memory;

    use super::*;
    use crate::jvm::structs::VmStructs;

    /// Memory in which all words are equal, with a count of the reads.
    struct Same(u64, AtomicU64);

    impl Memory for Same {
        fn read_some(&self, _: u64, buffer: &mut [u8]) -> usize {
            self.1.fetch_add(1, Ordering::Relaxed);
            buffer.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]));
            buffer.len()
        }
    }

    fn known() -> PreciseRoots {
        PreciseRoots::new(AddressRange::new(0, u64::MAX), Instant::now() + Duration::from_secs(600))
    }

    #[test]
    fn a_lock_stack_is_bounded() {
        let fields = [("JavaThread::_lock_stack", 8), ("LockStack::_base[0]", 8), ("LockStack::_top", 0)];
        let structs = VmStructs::of_offsets(&fields, &[("LockStack", u64::MAX)]);
        let read = |top: u64| {
            let memory = Same(top, AtomicU64::new(0));
            let mut known = known();
            of_lock_stack(&View { memory: &memory, structs: &structs }, 0x1000, &mut known)?;
            Some(known.certain.len() as u64)
        };
        assert_eq!(read(16 + MAX_LOCK_STACK_BYTES), Some(MAX_LOCK_STACK_BYTES / 8));
        assert_eq!(read(16 + MAX_LOCK_STACK_BYTES + 8), None);
    }

    #[test]
    fn a_chunk_is_read_once() {
        // The chunk has one reference, and links to itself.
        let memory = Same(1, AtomicU64::new(0));
        let structs = VmStructs::default();
        assert_eq!(chunks(&View { memory: &memory, structs: &structs }, 1, &known()), None);
        assert_eq!(memory.1.load(Ordering::Relaxed), 1);
    }
}
