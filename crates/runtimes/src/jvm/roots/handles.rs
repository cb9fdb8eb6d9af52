//! Handles of the JVM and its native code: places outside the heap that hold references.

use std::collections::HashSet;
use std::time::Instant;

use strandline_claims::runtime::Context;
use strandline_claims::words::{READ_BYTES, each_word};
use strandline_process::memory::{half_word_at, word_at, words_in};
use strandline_process::range::AddressRange;

use super::PreciseRoots;
use crate::jvm::view::View;

/// Handles in a block of a storage; a mask of those in use and the address of the storage follow
/// (`OopStorage::Block`, gc/shared/oopStorage.inline.hpp, JDK 11 to 25).
pub const BLOCK_HANDLES: usize = 64;
/// Limit on storages: HotSpot has about ten.
const MAX_STORAGES: usize = 32;
/// Bytes checked of a storage's name; the shortest is `VM Weak`.
const NAME_BYTES_CHECKED: usize = 6;
/// Bytes read of a name to find out whether the storage is weak.
const NAME_BYTES: usize = 48;
/// Limit on blocks of a storage: 2^26 handles.
const MAX_BLOCKS: u64 = 1 << 20;
/// Offset of `OopStorage::_active_array`, behind `_name` (gc/shared/oopStorage.hpp, JDK 17 and 25).
const ACTIVE_ARRAY: u64 = 8;
/// Offset in `OopStorage::ActiveArray` of the number of blocks, behind their maximum number
/// (gc/shared/oopStorage.cpp, JDK 17 and 25).
const BLOCK_COUNT: u64 = 8;
/// Offset in `OopStorage::ActiveArray` of the pointers to the blocks (`blocks_offset`).
const FIRST_BLOCK: u64 = 24;
/// References in a `ClassLoaderData::ChunkedHandleList::Chunk`; the number in use and the next
/// chunk follow (classfile/classLoaderData.hpp, JDK 9 to 25).
const CHUNK_HANDLES: usize = 32;
/// Bytes of a chunk.
const CHUNK_BYTES: usize = CHUNK_HANDLES * 8 + 16;
/// Possible offsets of `ClassLoaderData::_handles` (the second one in JDK 17 and 25). The right one
/// is where the chunks of every loader contain the mirror of its first class.
const HANDLE_LIST_OFFSETS: [u64; 4] = [40, 48, 56, 64];
/// Limit on chunks or blocks of a list.
const MAX_LINKS: usize = 1 << 20;
/// Limit on class loaders.
const MAX_LOADERS: usize = 1 << 20;
/// Handles in a `JNIHandleBlock`; the number in use, the next block, the last block and
/// `_pop_frame_link`, the previous chain, follow (runtime/jniHandles.hpp, JDK 17 and 25).
const LOCAL_BLOCK_HANDLES: usize = 32;
/// Distance from `_next` to `_pop_frame_link` in a `JNIHandleBlock`.
const POP_FRAME_LINK_AFTER_NEXT: u64 = 16;
/// Limit on bytes of a `LockStack`: HotSpot's has eight places, but the process controls the size.
const MAX_LOCK_STACK_BYTES: u64 = 64 * 8;
/// Limit on bytes of a chunk of an `Arena`.
const MAX_ARENA_BYTES: u64 = 16 << 20;
/// Limit on bytes of a `Thread`.
const MAX_THREAD_BYTES: u64 = 16 << 10;

/// Adds the references in strong storages; `None` if one was not read to its end, or if a storage
/// that every version has is missing.
pub fn add_storages(
    context: &Context<'_>,
    view: &View<'_>,
    data: AddressRange,
    roots: &mut PreciseRoots,
) -> Option<()> {
    let mut strong_names = Vec::new();
    for storage in storages(context, view, data)? {
        // A word next to the storages may be no storage; the required ones are checked below.
        let Some(name) = storage_name(view, storage) else { continue };
        let is_weak = name.contains("Weak") || name.contains("weak");
        if !is_weak && add_storage(view, storage, roots)? {
            strong_names.push(name);
        }
    }
    let is_added = |wanted: &str| strong_names.iter().any(|name| name == wanted);
    (is_added("JNI Global") && is_added("VM Global")).then_some(())
}

/// Reads the first [`NAME_BYTES`] of the name of a storage; `None` if they cannot be read.
fn storage_name(view: &View<'_>, storage: u64) -> Option<String> {
    let mut bytes = [0; NAME_BYTES];
    let read_bytes = view.memory.read_some(view.word(storage)?, &mut bytes);
    let text = bytes.get(..read_bytes)?.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Adds the references of a storage. False if `storage` is not a storage: then it has no blocks
/// that point back to it. `None` if a storage was not read to its end, so that references are
/// missing.
fn add_storage(view: &View<'_>, storage: u64, roots: &mut PreciseRoots) -> Option<bool> {
    let Some(BlockList { first, count }) = block_list(view, storage) else { return Some(false) };
    for index in 0..count {
        roots.check_limits()?;
        let Some(bytes) = read_block(view, storage, first.checked_add(index * 8)?) else {
            return (index == 0).then_some(false);
        };
        let mask = word_at(&bytes, BLOCK_HANDLES * 8)?;
        let handles = words_in(&bytes).take(BLOCK_HANDLES).enumerate();
        handles.filter(|(index, _)| mask >> index & 1 != 0).for_each(|(_, word)| roots.add(word));
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
fn block_list(view: &View<'_>, storage: u64) -> Option<BlockList> {
    let array = view.word(storage.checked_add(ACTIVE_ARRAY)?)?;
    let size = view.word(array)?;
    let count = view.word(array.checked_add(BLOCK_COUNT)?)?;
    let first = array.checked_add(FIRST_BLOCK)?;
    (count <= size && size <= MAX_BLOCKS).then_some(BlockList { first, count })
}

/// Returns the block that the entry at `at` of a list points to; `None` if it does not belong to
/// `storage`.
fn read_block(view: &View<'_>, storage: u64, at: u64) -> Option<[u8; (BLOCK_HANDLES + 2) * 8]> {
    let bytes = view.array(view.word(at)?)?;
    (word_at(&bytes, (BLOCK_HANDLES + 1) * 8)? == storage).then_some(bytes)
}

/// Adds the references of class loaders: mirrors of their classes, and objects that constants of
/// these classes refer to. `None` if not all of them can be read, or at a limit.
pub fn add_loaders(view: &View<'_>, roots: &mut PreciseRoots) -> Option<()> {
    let (mut loaders, mut visited) = (Vec::new(), HashSet::new());
    let mut at = view.static_field(&["ClassLoaderDataGraph::_head"])?;
    while at != 0 && visited.insert(at) {
        roots.check_limits().filter(|()| loaders.len() < MAX_LOADERS)?;
        loaders.push(at);
        at = view.field(at, &["ClassLoaderData::_next"])?;
    }
    let first_mirror = |&loader: &u64| {
        let klass = view.field(loader, &["ClassLoaderData::_klasses"]).filter(|&klass| klass != 0)?;
        Some(FirstMirror { loader, address: view.field(klass, &["Klass::_java_mirror"])? })
    };
    let first_mirrors: Vec<FirstMirror> = loaders.iter().filter_map(first_mirror).collect();
    let contains = |list_offset: u64, mirror: &FirstMirror| {
        let chunks = read_chunks(view, view.word(mirror.loader.checked_add(list_offset)?)?, roots)?;
        Some(chunks.iter().any(|chunk| chunk.handles_range().contains(mirror.address)))
    };
    let contains_all = |list_offset: &u64| {
        let mut mirrors = first_mirrors.iter();
        !first_mirrors.is_empty() && mirrors.all(|mirror| contains(*list_offset, mirror) == Some(true))
    };
    let list_offset = HANDLE_LIST_OFFSETS.into_iter().find(contains_all)?;
    for loader in loaders {
        for chunk in read_chunks(view, view.word(loader.checked_add(list_offset)?)?, roots)? {
            chunk.references.into_iter().for_each(|word| roots.add(word));
        }
    }
    Some(())
}

/// The mirror of the first class of a loader.
struct FirstMirror {
    /// Address of the `ClassLoaderData`.
    loader: u64,
    /// Address of the handle of the mirror.
    address: u64,
}

/// A chunk of a list of handles.
#[derive(Debug, PartialEq, Eq)]
struct Chunk {
    address: u64,
    /// The references in use.
    references: Vec<u64>,
}

impl Chunk {
    /// Returns the range of its references, used or not.
    fn handles_range(&self) -> AddressRange {
        AddressRange::sized(self.address, (CHUNK_HANDLES * 8) as u64)
    }
}

/// Reads the chunks of a list of handles; `None` if one cannot be read, or at a limit.
fn read_chunks(view: &View<'_>, first: u64, roots: &PreciseRoots) -> Option<Vec<Chunk>> {
    let (mut chunks, mut visited, mut at) = (Vec::new(), HashSet::new(), first);
    while at != 0 {
        roots.check_limits().filter(|()| chunks.len() < MAX_LINKS && visited.insert(at))?;
        // `Chunk::handles_range` relies on this not to overflow.
        at.checked_add(CHUNK_BYTES as u64)?;
        let bytes: [u8; CHUNK_BYTES] = view.array(at)?;
        let count = half_word_at(&bytes, CHUNK_HANDLES * 8)? as usize;
        if count > CHUNK_HANDLES {
            return None;
        }
        let references = words_in(&bytes).take(count).collect();
        chunks.push(Chunk { address: at, references });
        at = word_at(&bytes, CHUNK_HANDLES * 8 + 8)?;
    }
    Some(chunks)
}

/// Adds a thread's references outside its frames: local handles, handles of the JVM's own code,
/// locks, pending exceptions. `None` if not all of them can be read, or at a limit.
pub fn add_thread(view: &View<'_>, thread: u64, roots: &mut PreciseRoots) -> Option<()> {
    add_blocks(
        view,
        view.field(thread, &["JavaThread::_active_handles", "Thread::_active_handles"])?,
        roots,
    )?;
    add_handle_area(view, thread, roots)?;
    for field in [
        "ThreadShadow::_pending_exception",
        "JavaThread::_pending_async_exception",
        "JavaThread::_exception_oop",
        "JavaThread::_vm_result",
        "JavaThread::_vm_result_oop",
    ] {
        // No version has all of these fields.
        if let Some(at) = view.field_address(thread, &[field]) {
            roots.add(view.word(at)?);
        }
    }
    add_lock_stack(view, thread, roots)
}

/// Adds the locks of a thread. `LockStack::_top` is the offset of their end in the thread
/// (runtime/lockStack.hpp, JDK 21 to 25).
fn add_lock_stack(view: &View<'_>, thread: u64, roots: &mut PreciseRoots) -> Option<()> {
    let Some(stack) = view.field_address(thread, &["JavaThread::_lock_stack"]) else { return Some(()) };
    let first = view.field_address(stack, &["LockStack::_base[0]"])?;
    let end = thread.checked_add(u64::from(view.half_field(stack, &["LockStack::_top"])?))?;
    // Without the size of a `LockStack`, only an empty one is accepted.
    let max_bytes = view.structs.size("LockStack").unwrap_or(0).min(MAX_LOCK_STACK_BYTES);
    let bytes = end.checked_sub(first).filter(|&bytes| bytes <= max_bytes)?;
    roots.add_words(first, first.checked_add(bytes / 8 * 8)?, |at| view.word(at))
}

/// Adds local handles, from the first block of a chain on (`JNIHandleBlock::oops_do`). Blocks after
/// one that is not full are unused. `None` if a block is invalid, or at a limit.
pub fn add_blocks(view: &View<'_>, first: u64, roots: &mut PreciseRoots) -> Option<()> {
    let mut visited = HashSet::new();
    let mut chain = first;
    while chain != 0 && visited.insert(chain) {
        let (mut block, mut is_full) = (chain, true);
        while block != 0 && is_full {
            roots.check_limits()?;
            if visited.len() > MAX_LINKS || block != chain && !visited.insert(block) {
                return None;
            }
            let count = view.half_field(block, &["JNIHandleBlock::_top"])? as usize;
            let handles = view.field_address(block, &["JNIHandleBlock::_handles"])?;
            if count > LOCAL_BLOCK_HANDLES {
                return None;
            }
            let handles = view.words(handles, LOCAL_BLOCK_HANDLES)?;
            handles.into_iter().take(count).for_each(|word| roots.add(word));
            is_full = count == LOCAL_BLOCK_HANDLES;
            block = view.field(block, &["JNIHandleBlock::_next"])?;
        }
        let next = view.field_address(chain, &["JNIHandleBlock::_next"])?;
        chain = view.word(next.checked_add(POP_FRAME_LINK_AFTER_NEXT)?)?;
    }
    Some(())
}

/// Adds the references in a thread's handle area, up to its mark (`HandleArea::oops_do`,
/// runtime/handles.cpp). In a `Thread` the pointer to it follows the pointer to its resource area,
/// an arena of the same shape without handles (runtime/thread.hpp, JDK 17 and 25). `None` if it is
/// not found, or not read to its end.
fn add_handle_area(view: &View<'_>, thread: u64, roots: &mut PreciseRoots) -> Option<()> {
    let size = view.structs.size("Thread").filter(|&size| size <= MAX_THREAD_BYTES)?;
    let words = view.words(thread, usize::try_from(size / 8).ok()?)?;
    let area =
        words.windows(2).find_map(|pair| Arena::read(view, pair[0]).and(Arena::read(view, pair[1])))?;
    let (mut chunk, mut links) = (area.first, 0);
    while chunk != 0 && links < MAX_LINKS {
        roots.check_limits()?;
        let length = view.word(chunk.checked_add(8)?).filter(|&bytes| bytes <= MAX_ARENA_BYTES)?;
        let from = chunk.checked_add(area.header_bytes)?;
        let to = if chunk == area.current { area.mark } else { from.checked_add(length)? };
        roots.add_words(from, to, |at| view.word(at))?;
        if chunk == area.current {
            return Some(());
        }
        chunk = view.word(chunk)?;
        links += 1;
    }
    None
}

/// An `Arena`: a list of chunks; the current one is in use up to a mark (memory/arena.hpp).
struct Arena {
    /// Address of the first chunk.
    first: u64,
    /// Address of the current chunk.
    current: u64,
    /// End of the part in use of the current chunk.
    mark: u64,
    /// Bytes of a chunk's header.
    header_bytes: u64,
}

impl Arena {
    /// Offsets of `_first`: behind a tag (JDK 17), or behind a tag and the size (JDK 25). `_chunk`,
    /// `_hwm` (the mark) and `_max` (the end of the chunk) follow.
    const FIRST_OFFSETS: [u64; 2] = [8, 16];

    /// Reads the arena at an address; `None` if no arena is there: the length in the current chunk
    /// must agree with the end of the chunk that the arena states.
    fn read(view: &View<'_>, at: u64) -> Option<Self> {
        if at == 0 || !at.is_multiple_of(8) {
            return None;
        }
        Self::FIRST_OFFSETS.iter().find_map(|offset| {
            let [first, current, mark, end] = view.words(at.checked_add(*offset)?, 4)?.try_into().ok()?;
            let chunk_bytes =
                end.checked_sub(current).filter(|&bytes| current != 0 && bytes <= MAX_ARENA_BYTES)?;
            let header_bytes = chunk_bytes.checked_sub(view.word(current.checked_add(8)?)?)?;
            let is_sound = first != 0
                && matches!(header_bytes, 16 | 24 | 32)
                && (current + header_bytes..=end).contains(&mark)
                && mark.is_multiple_of(8);
            is_sound.then_some(Self { first, current, mark, header_bytes })
        })
    }
}

/// Returns the addresses of the storages of handles (`OopStorage`), and possibly of what looks like
/// one. The tables have an entry for the storage of global handles; wherever static data contains
/// its address, those of the others are next to it (`OopStorageSet::_storages`,
/// gc/shared/oopStorageSet.hpp). Empty if the version has no such entry, or no storage exists yet;
/// `None` if the entry cannot be read.
pub fn storages(context: &Context<'_>, view: &View<'_>, data: AddressRange) -> Option<Vec<u64>> {
    let Some(entry) = view.address(&["JNIHandles::_global_handles"]) else { return Some(Vec::new()) };
    let global = view.word(entry)?;
    if global == 0 {
        return Some(Vec::new());
    }
    let mut storages = vec![global];
    each_word(view.memory, context.resident, data, READ_BYTES, &mut |at, word| {
        if word != global || at == entry {
            return true;
        }
        for step in [8, 8_u64.wrapping_neg()] {
            let neighbours = (1..=MAX_STORAGES as u64).map(|index| at.wrapping_add(step.wrapping_mul(index)));
            storages.extend(neighbours.map_while(|at| view.word(at).filter(|&word| is_storage(view, word))));
        }
        storages.len() < MAX_STORAGES && Instant::now() < context.deadline
    });
    storages.sort_unstable();
    storages.dedup();
    Some(storages)
}

/// Whether there may be a storage at `at`: it begins with a pointer to its name.
fn is_storage(view: &View<'_>, at: u64) -> bool {
    let name: Option<[u8; NAME_BYTES_CHECKED]> = view.word(at).and_then(|text| view.array(text));
    name.is_some_and(|name| name.iter().all(|byte| (b' '..=b'~').contains(byte)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fabricated::EqualWords;
    use crate::jvm::structs::VmStructs;

    fn no_roots() -> PreciseRoots {
        PreciseRoots::new(AddressRange::new(0, u64::MAX), Instant::now() + Duration::from_secs(600))
    }

    #[test]
    fn a_lock_stack_is_bounded() {
        let fields = [("JavaThread::_lock_stack", 8), ("LockStack::_base[0]", 8), ("LockStack::_top", 0)];
        let structs = VmStructs::of_offsets(&fields, &[("LockStack", u64::MAX)]);
        let read = |top: u64| {
            let memory = EqualWords::new(top);
            let mut roots = no_roots();
            add_lock_stack(&View { memory: &memory, structs: &structs }, 0x1000, &mut roots)?;
            Some(roots.certain_references.len() as u64)
        };
        assert_eq!(read(16 + MAX_LOCK_STACK_BYTES), Some(MAX_LOCK_STACK_BYTES / 8));
        assert_eq!(read(16 + MAX_LOCK_STACK_BYTES + 8), None);
    }

    /// A handle area or a frame may be as large as the process wants.
    #[test]
    fn words_are_read_until_the_deadline() {
        let deadline = Instant::now() + Duration::from_millis(20);
        let mut roots = PreciseRoots::new(AddressRange::new(0, u64::MAX), deadline);
        let mut reads = 0;
        let result = roots.add_words(0x1000, 0x1000 + (1 << 20), |at| {
            reads += 1;
            while Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(at)
        });
        assert_eq!(result, None);
        assert!(reads <= 512, "{reads}");
    }

    #[test]
    fn a_chunk_is_read_once() {
        // The chunk has one reference, and links to itself.
        let memory = EqualWords::new(1);
        let structs = VmStructs::default();
        assert_eq!(read_chunks(&View { memory: &memory, structs: &structs }, 1, &no_roots()), None);
        assert_eq!(memory.read_lengths().len(), 1);
    }
}
