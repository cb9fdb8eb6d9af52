"""Reserved huge pages (hugetlb): a program's own, and malloc's."""
from lab import (Skipped, agrees, caveats, equal, expect, explain, explain_heap, gives_what_it_predicts, is_free, read, reader, rollup,
                 strandline, subject, write)

MIB = 1 << 20


def prepare():
    write('/proc/sys/vm/nr_hugepages', 48)
    if int(read('/proc/sys/vm/nr_hugepages')) < 40:
        raise Skipped(f'only {read("/proc/sys/vm/nr_hugepages")} huge pages could be reserved')


def check_own_pages():
    """They are no part of RSS, and shown apart."""
    one = subject('regions', 'hugetlb', 16)
    document = explain(one.pid)
    agrees(document, one.pid)
    equal(document['kernel']['hugetlb_bytes'], 16 * MIB, 'hugetlb_bytes')
    expect(document['kernel']['rss_bytes'] < 8 * MIB, f'RSS {document["kernel"]["rss_bytes"]}')
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    equal(one.finish(), 0, 'its status')


def check_no_snapshot():
    """A copy of a private reserved page might find none: refused, and `try` stops it."""
    one = subject('regions', 'hugetlb', 16)
    run = strandline('explain', '--snapshot=always', '--json', one.pid)
    equal(run.status, 3, 'status')
    expect('huge' in run.err, f'says: {run.err}')
    document = explain(one.pid, '--snapshot=try')
    expect('no_photograph' in [caveat['code'] for caveat in document['caveats']], 'no caveat')
    is_free(one.pid)


def check_malloc_on_reserved_pages():
    """glibc.malloc.hugetlb=2: the heap itself is not in RSS."""
    one = subject('fragmented', 60000, 200, 500, env={'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=2'})
    huge = rollup(one.pid)
    held = huge.get('Private_Hugetlb', 0) + huge.get('Shared_Hugetlb', 0)
    document = explain(one.pid)
    agrees(document, one.pid)
    equal(document['kernel']['hugetlb_bytes'], held, 'hugetlb_bytes')
    if reader(document, 'glibc')['mallinfo'] != one.ready['mallinfo']:
        expect('heap_hugetlb' in caveats(document), f'mallinfo is not its own, and no caveat says so: {caveats(document)}')
    run = strandline('reclaim', '--json', '--remedy', 'malloc_trim', one.pid)
    told = run.document() if run.out else {}
    if told.get('outcome') == 'done':
        equal(told['actual_bytes'], told['predicted_bytes'], 'given back beside predicted')
    equal(one.ask('i')['mallinfo']['uordblks'], one.ready['mallinfo']['uordblks'], 'bytes in use afterwards')
    equal(one.finish(), 0, 'its status')
    return f'{held} bytes reserved; reclaim: status {run.status}, {told.get("outcome")}'


def check_malloc_on_transparent_pages():
    """glibc.malloc.hugetlb=1: madvise."""
    one = subject('fragmented', 120000, 200, 500, env={'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'})
    explain_heap(one)
    gives_what_it_predicts(one.pid, 'malloc_trim')
    equal(one.finish(), 0, 'its status')


def check_zero_pages():
    """Reserved pages of zeros are left alone."""
    one = subject('regions', 'hugetlb', 16)
    run = strandline('reclaim', '--json', '--remedy', 'zero_pages', '--allow-lost-write-risk', one.pid)
    expect(run.status in (0, 3), f'status {run.status}: {run.err}')
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    equal(one.finish(), 0, 'its status')


def check_none_left():
    """The pool is used up by another: what is looked at goes on."""
    one = subject('regions', 'hugetlb', 32)
    two = subject('regions', 'hugetlb', 32)
    for each in (one, two):
        equal(explain(each.pid)['kernel']['hugetlb_bytes'], 32 * MIB, 'hugetlb_bytes')
        equal(each.ask('c')['wrong'], 0, 'bytes that changed')
        equal(each.finish(), 0, 'its status')
