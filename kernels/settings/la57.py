"""Five levels of page tables (LA57): memory above 2^47."""

from lab import (Skipped, agrees, equal, expect, explain, explain_heap, gives_what_it_predicts, is_free, killed_at_random, read,
                 reclaim, strandline, subject)

CPU = 'max,la57=on'
MIB = 1 << 20


def prepare():
    if ' la57' not in read('/proc/cpuinfo'):
        raise Skipped('this kernel was built without five levels (CONFIG_X86_5LEVEL)')


def check_high_memory():
    one = subject('regions', 'high', 16)
    expect(one.ready['address'] >= 1 << 47, f'mapped at {one.ready["address"]:#x}')
    for snapshot in ('never', 'always'):
        document = explain(one.pid, f'--snapshot={snapshot}')
        expect(document['kernel']['anonymous_bytes'] >= 16 * MIB, f'anonymous {document["kernel"]["anonymous_bytes"]}')
        expect(sum(row['bytes'] for row in document['rows'] if row['id'] == 'anonymous') >= 16 * MIB, 'no row has it')
    agrees(document, one.pid)
    killed_at_random(['explain', one.pid], one.pid, 6, 1, 10).at_least(3, 1)
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'at {one.ready["address"]:#x}'


def check_glibc_heap():
    heap = subject('fragmented', 60000, 200, 500)
    explain_heap(heap)
    gives_what_it_predicts(heap.pid, 'malloc_trim')
    equal(heap.finish(), 0, 'its status')


def check_zero_pages():
    one = subject('zeroed_buffer', 8, 'mmap')
    done = reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk')
    expect(done['actual_bytes'] >= 8 * MIB, f'{done["actual_bytes"]} of 8 MiB')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')


def check_holders():
    one = subject('regions', 'high', 8)
    strandline('holders', '--json', one.pid).done()
    is_free(one.pid)
