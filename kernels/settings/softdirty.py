"""Soft-dirty bits, as checkpointing and incremental copies use them."""
from lab import (Skipped, agrees, equal, expect, explain, explain_heap, gives_what_it_predicts, is_free, mappings, pagemap,
                 small_pages, subject, write)

MIB = 1 << 20
SOFT_DIRTY = 1 << 55


def dirty(pid, start, length):
    return sum(1 for entry in pagemap(pid, start, start + length) if entry & SOFT_DIRTY)


def cleared():
    # A huge page is dirty as a whole.
    one = subject('regions', 'plain', 8, before=small_pages)
    at, length = one.ready['address'], one.ready['bytes']
    if not dirty(one.pid, at, length):
        raise Skipped('this kernel has no soft-dirty bits')
    write(f'/proc/{one.pid}/clear_refs', 4)
    equal(dirty(one.pid, at, length), 0, 'dirty pages after clear_refs')
    one.ask('d')
    equal(dirty(one.pid, at, length), length // 4096 // 2, 'dirty pages after writing to half of them')
    return one, at, length


def check_looking_dirties_nothing():
    """Who copies what was written since the last copy finds the same pages after a look."""
    one, at, length = cleared()
    for snapshot in ('never', 'always'):
        document = explain(one.pid, f'--snapshot={snapshot}')
        equal(dirty(one.pid, at, length), length // 4096 // 2, f'dirty pages after a look ({snapshot})')
    agrees(explain(one.pid), one.pid)
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    equal(one.finish(), 0, 'its status')
    return f'{document["kernel"]["rss_bytes"]} bytes of RSS'


def check_heap():
    """A heap whose bits are cleared, and whose pages are write-protected for it, is read and trimmed as any."""
    heap = subject('fragmented', 60000, 200, 500)
    for value in (4, 1):
        write(f'/proc/{heap.pid}/clear_refs', value)
        explain_heap(heap, '--snapshot=never')
    gives_what_it_predicts(heap.pid, 'malloc_trim')
    start, end = next((start, end) for start, end, _, name in mappings(heap.pid) if name == '[heap]')
    expect(dirty(heap.pid, start, end - start) < (end - start) // 4096 // 4, 'most of the heap is dirty after a trim')
    is_free(heap.pid)
    equal(heap.finish(), 0, 'its status')


def check_peak_taken_back():
    """clear_refs 5 takes the high-water mark back: the ledger's is the kernel's."""
    one = subject('regions', 'plain', 8)
    write(f'/proc/{one.pid}/clear_refs', 5)
    kernel = explain(one.pid)['kernel']
    expect(kernel['high_water_bytes'] >= kernel['status_rss_bytes'], f'{kernel["high_water_bytes"]} < {kernel["status_rss_bytes"]}')
