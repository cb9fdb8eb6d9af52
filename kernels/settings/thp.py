"""THP=always, with khugepaged at its busiest."""
from pathlib import Path

from lab import (KERNELS, Subject, agrees, equal, expect, explain, explain_heap, gives_what_it_predicts, is_free, killed_at_random,
                 reclaim, rollup, rows_of_snapshot, runtime, subject, write)


KHUGEPAGED = Path('/sys/kernel/mm/transparent_hugepage/khugepaged')


def prepare():
    folder = Path('/sys/kernel/mm/transparent_hugepage')
    write(folder / 'enabled', 'always')
    write(folder / 'defrag', 'always')
    write(folder / 'khugepaged/scan_sleep_millisecs', 0)
    write(folder / 'khugepaged/alloc_sleep_millisecs', 0)
    write(folder / 'khugepaged/pages_to_scan', 65536)
    write(folder / 'khugepaged/max_ptes_none', 511)
    # From 6.8 on there are sizes between.
    for size in folder.glob('hugepages-*kB/enabled'):
        write(size, 'always')


def check_glibc_heap():
    heap = subject('fragmented', 120000, 200, 500)
    told = rollup(heap.pid)
    explain_heap(heap, '--snapshot=never')
    # khugepaged would fill what goes back at once: a page that is there of 512 is enough for it.
    write(KHUGEPAGED / 'max_ptes_none', 0)
    done = gives_what_it_predicts(heap.pid, 'malloc_trim')
    write(KHUGEPAGED / 'max_ptes_none', 511)
    equal(heap.finish(), 0, 'its status')
    return f'{told["AnonHugePages"]} bytes huge, {done["actual_bytes"]} given back'


def check_trim_beside_khugepaged():
    """What goes back may be filled again at once; what is told is what is gone then."""
    heap = subject('fragmented', 120000, 200, 500)
    done = reclaim(heap.pid, 'malloc_trim')
    expect(done['actual_bytes'] <= done['predicted_bytes'], 'more was given back than was predicted')
    equal(heap.ask('i')['mallinfo']['uordblks'], heap.ready['mallinfo']['uordblks'], 'bytes in use afterwards')
    equal(heap.finish(), 0, 'its status')
    return f'{done["predicted_bytes"]} predicted, {done["actual_bytes"]} given back'


def check_huge_pages_cut():
    one = subject('thp', 8)
    document = explain(one.pid)
    told = agrees(document, one.pid)
    equal(document['kernel']['huge_bytes'], told['AnonHugePages'], 'huge_bytes')
    expect(told['AnonHugePages'] > 0, 'nothing huge')
    equal(one.finish(), 0, 'its status')


def check_snapshot():
    heap = subject('fragmented', 120000, 200, 500)
    rows_of_snapshot(heap, 'glibc')
    is_free(heap.pid)


def check_beside_writers():
    """Pages are made huge and cut while they are looked at."""
    one = subject('regions', 'write', 24)
    for snapshot in ('never', 'always', 'never', 'always'):
        explain(one.pid, f'--snapshot={snapshot}')
    killed = killed_at_random(['explain', '--snapshot=always', one.pid], one.pid, 8, 1.5, 7).at_least(4, 2)
    is_free(one.pid)
    equal(one.ask('c')['wrong'], 0, 'words that changed')
    equal(one.finish(), 0, 'its status')
    return str(killed)


def check_malloc_loops():
    """Heaps that grow and shrink: the ledger adds up whenever it is taken."""
    one = subject('reclaim_target', 'loop', 2)
    one.lines_to('ready')
    for _ in range(5):
        explain(one.pid)
    is_free(one.pid)


def check_python():
    one = Subject(['/usr/bin/python3', KERNELS / 'python/oracle.py', 'mixed', 1000, 1, '/kernels/subjects/figures.so', '/tmp/figures'])
    types = {each['name']: [each['instances'], each['bytes']] for each in runtime(explain(one.pid), 'cpython')['types']}
    for name, known in one.ready['types'].items():
        equal(types.get(name), known, f'type {name}')


def check_zero_pages_directly():
    one = subject('zeroed_buffer', 16, 'mmap')
    before = rollup(one.pid)
    done = reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk')
    expect(done['actual_bytes'] >= 16 << 20, f'{done["actual_bytes"]} of 16 MiB, {before["AnonHugePages"]} of it huge')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    equal(one.finish(), 0, 'its status')
