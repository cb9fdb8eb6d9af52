"""Same-page merging (KSM)."""
import time

from lab import Skipped, Subject, agrees, equal, expect, explain, is_free, read, reclaim, rollup, subject, write

MIB = 1 << 20
KSM = '/sys/kernel/mm/ksm/'


def prepare():
    write(KSM + 'pages_to_scan', 20000)
    write(KSM + 'sleep_millisecs', 1)
    write(KSM + 'run', 1)


def sharing():
    return int(read(KSM + 'pages_sharing'))


def merged(mib, least):
    one = subject('regions', 'merge', mib)
    deadline = time.monotonic() + 40
    while sharing() < least:
        if time.monotonic() > deadline:
            raise Skipped(f'the kernel merged {sharing()} pages of {least} in 40 s')
        time.sleep(0.2)
    # Until it is at rest.
    last = -1
    while sharing() != last:
        last = sharing()
        time.sleep(1)
    return one


def check_ledger():
    """Merged pages count in RSS as the kernel counts them, and a look parts none of them."""
    one = merged(16, 3000)
    shared = sharing()
    for snapshot in ('never', 'always'):
        document = explain(one.pid, f'--snapshot={snapshot}')
        expect(sharing() >= shared - 16, f'{shared - sharing()} pages were parted by the look ({snapshot})')
    document = explain(one.pid)
    agrees(document, one.pid)
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    equal(one.ask('d')['written'], 8 * MIB, 'bytes written')
    agrees(explain(one.pid), one.pid)
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'{shared} pages share, PSS {document["kernel"]["pss_bytes"]} of RSS {document["kernel"]["rss_bytes"]}'


def check_zero_pages_left_alone():
    """Pages of zeros of a program beside it; merged ones of another are not touched."""
    other = merged(8, 1500)
    one = subject('zeroed_buffer', 8, 'mmap')
    done = reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk')
    expect(done['actual_bytes'] >= 8 * MIB, f'{done["actual_bytes"]} of 8 MiB')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    equal(other.ask('c')['wrong'], 0, 'bytes that changed')


def check_merged_zero_pages():
    """use_zero_pages: what is merged is the kernel's page of zeros, and out of RSS."""
    write(KSM + 'run', 2)
    write(KSM + 'use_zero_pages', 1)
    write(KSM + 'run', 1)
    script = ('import ctypes,mmap,sys; m=mmap.mmap(-1,8<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n'
              'm.madvise(12)\n'
              'for i in range(0,8<<20,4096): m[i]=0\n'
              'print("ready",flush=True); sys.stdin.read(1); print(len(m)-m[:].count(0),flush=True); sys.stdin.read()')
    one = Subject(['/usr/bin/python3', '-c', script])
    deadline = time.monotonic() + 30
    while rollup(one.pid)['Anonymous'] > 8 * MIB:
        if time.monotonic() > deadline:
            raise Skipped(f'the kernel did not merge them in 30 s: {rollup(one.pid)["Anonymous"]} bytes anonymous')
        time.sleep(0.5)
    for snapshot in ('never', 'always'):
        explain(one.pid, f'--snapshot={snapshot}')
    agrees(explain(one.pid), one.pid)
    equal(one.ask('x'), 0, 'sum of the zeros')
    return f'{rollup(one.pid)["Anonymous"]} bytes are left anonymous'
