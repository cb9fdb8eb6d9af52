"""Swap on zram, with part of the heap swapped out."""
import json
import signal
import subprocess
import time
from pathlib import Path

from lab import (KERNELS, ORDINARY, Skipped, Subject, agrees, caveats, child_group, command, equal, expect, explain,
                 gives_what_it_predicts, holds, is_free, joins, killed_at_random, mappings, other_allocators, page_out, reclaim,
                 rollup, small_pages, strandline, subject, write)

MIB = 1 << 20


def prepare():
    write('/sys/block/zram0/disksize', '256M')
    command(['mkswap', '/dev/zram0']).done()
    command(['swapon', '/dev/zram0']).done()


def half_out(pid):
    """Pages every second half MiB of its heaps out, and returns what the kernel says is swapped."""
    for start, end, permissions, name in mappings(pid):
        if permissions == 'rw-p' and name in ('', '[heap]') and end - start >= MIB:
            page_out(pid, [(at, min(at + MIB // 2, end)) for at in range(start, end, MIB)])
    swapped = rollup(pid)['Swap']
    expect(swapped > MIB, f'only {swapped} bytes were swapped out')
    return swapped


def swapped_heap():
    one = subject('fragmented', 60000, 200, 500)
    return one, half_out(one.pid)


def check_doctor():
    checks = {check['id']: check for check in strandline('doctor', '--json').document()['checks']}
    equal(checks['swap']['status'], 'ok', 'doctor: swap')


def check_ledger():
    """The sums are the kernel's, and nothing is brought in by looking."""
    one, swapped = swapped_heap()
    document = explain(one.pid, '--snapshot=never')
    agrees(document, one.pid)
    expect('heap_swapped' in caveats(document), f'no caveat heap_swapped: {caveats(document)}')
    now = rollup(one.pid)['Swap']
    expect(now >= swapped - 64 * 1024, f'{swapped - now} bytes of {swapped} were brought in by the look')
    equal(one.finish(), 0, 'its status')
    return f'{swapped} bytes swapped out, {now} after the look'


def check_snapshot():
    one, swapped = swapped_heap()
    document = explain(one.pid, '--snapshot=always')
    expect('heap_swapped' in caveats(document), f'no caveat heap_swapped: {caveats(document)}')
    now = rollup(one.pid)['Swap']
    expect(now >= swapped - 128 * 1024, f'{swapped - now} bytes of {swapped} were brought in by the look')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')


def check_all_of_it_swapped():
    """Everything private, the linker's and the libraries' data too."""
    one = subject('fragmented', 60000, 200, 500)
    page_out(one.pid, [(start, end) for start, end, permissions, _ in mappings(one.pid) if permissions.startswith('rw')])
    swapped = rollup(one.pid)['Swap']
    expect(swapped > 10 << 20, f'only {swapped} bytes are swapped out')
    document = explain(one.pid)
    equal(document['kernel']['swap_bytes'], swapped, 'kernel.swap_bytes')
    equal(one.ask('i')['mallinfo'], one.ready['mallinfo'], 'mallinfo')
    equal(one.finish(), 0, 'its status')
    return ', '.join(caveats(document))


def check_malloc_trim():
    """Of a heap that is half in swap."""
    one, _ = swapped_heap()
    run = strandline('reclaim', '--json', '--remedy', 'malloc_trim', one.pid)
    expect(run.status in (0, 3), f'status {run.status}: {run.err}')
    told = run.document() if run.out else {'outcome': run.err.strip()}
    equal(one.ask('i')['mallinfo']['uordblks'], one.ready['mallinfo']['uordblks'], 'bytes in use afterwards')
    equal(one.finish(), 0, 'its status')
    return f'{told["outcome"]}: predicted {told.get("predicted_bytes")}, actual {told.get("actual_bytes")}'


def check_other_allocators():
    """jemalloc and tcmalloc with half of their pages in swap: no call where that cannot be checked, and no alarm."""
    notes = []
    for library, call in other_allocators():
        one = subject('fragmented', 60000, 200, 500, env={'LD_PRELOAD': str(library)})
        swapped = half_out(one.pid)
        document = explain(one.pid)
        expect(rollup(one.pid)['Swap'] >= swapped - 256 * 1024, 'brought in by the look')
        for caveat in document['caveats']:
            expect(not caveat['code'].endswith('_damaged') or 'swapped out' in caveat['text'], f'false alarm: {caveat["text"]}')
        run = strandline('reclaim', '--json', '--remedy', call, one.pid)
        expect(run.status in (0, 3), f'{call}: status {run.status}: {run.err}')
        expect('heap is inconsistent' not in run.out + run.err, f'{call}: false alarm: {run.err.strip()}')
        equal(one.finish(), 0, 'its status')
        notes.append(f'{call}: status {run.status}')
    return ', '.join(notes)


def check_zero_pages_paged_out():
    """Without any flag, and nothing is stopped."""
    one = subject('zeroed_buffer', 16, 'mmap')
    done = gives_what_it_predicts(one.pid, 'zero_pages')
    expect(done['actual_bytes'] >= 16 * MIB, f'{done["actual_bytes"]} of 16 MiB')
    equal(one.ask('w').get('written'), 1, 'a byte written')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    equal(one.finish(), 0, 'its status')


def zero_writers():
    one = subject('reclaim_target', 'zero', 16)
    one.lines_to('ready')
    return one


def check_zero_pages_under_writers():
    """Four threads that write into the pages all the time, look, and write zeros again."""
    one = zero_writers()
    for _ in range(3):
        done = reclaim(one.pid, 'zero_pages')
        equal(done['outcome'], 'done', 'outcome')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status: a write was lost')


def check_zero_pages_killed():
    """strandline killed at random instants of it."""
    one = zero_writers()
    killed = killed_at_random(['reclaim', '--remedy', 'zero_pages', one.pid], one.pid, 20, 2.5, 6)
    is_free(one.pid)
    equal(one.finish(), 0, f'its status after {killed}: a write was lost')
    return str(killed)


def check_zero_pages_of_an_ordinary_user():
    """Paging another process out wants CAP_SYS_NICE: without it that is said, and the direct way is open."""
    one = subject('zeroed_buffer', 8, 'mmap', user=ORDINARY)
    run = strandline('reclaim', '--json', '--remedy', 'zero_pages', one.pid, user=ORDINARY)
    if run.status == 0:
        return 'this kernel lets it'
    expect('CAP_SYS_NICE' in run.err, f'says: {run.err}')
    done = reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk', user=ORDINARY)
    expect(done['actual_bytes'] >= 8 * MIB, f'{done["actual_bytes"]} of 8 MiB')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    equal(one.finish(), 0, 'its status')
    return run.err.strip()


def check_zero_pages_of_a_group_without_swap():
    """There is swap, and its control group may have none of it."""
    group = child_group('noswap', **{'memory_swap.max': 0})
    join = joins(group)
    one = subject('zeroed_buffer', 8, 'mmap', before=lambda: (join(), small_pages()))
    run = strandline('reclaim', '--json', '--remedy', 'zero_pages', one.pid)
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    equal(run.status, 3, 'status: as without swap')
    expect('no swap is available' in run.err, f'says: {run.err}')
    done = reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk')
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')


def check_beside_a_process_that_swaps():
    """24 MiB of writes in a group of 14 MiB: pages come and go while they are looked at, and strandline is killed."""
    group = child_group('small', memory_max=14 * MIB)
    one = subject('regions', 'write', 24, before=joins(group))
    expect(rollup(one.pid)['Swap'] > MIB, 'it does not swap')
    caveat = set()
    for snapshot in ('never', 'try', 'never', 'try'):
        document = explain(one.pid, f'--snapshot={snapshot}')
        caveat |= set(caveats(document))
    killed = killed_at_random(['explain', one.pid], one.pid, 8, 1.5, 7)
    killed += killed_at_random(['explain', '--snapshot=always', one.pid], one.pid, 8, 1.5, 8)
    killed.at_least(8, 3)
    is_free(one.pid)
    first = one.ask('c')
    equal(first['wrong'], 0, 'words that changed')
    time.sleep(1)
    expect(one.ask('c')['rounds'] > first['rounds'], 'it writes no more')
    equal(one.finish(), 0, 'its status')
    return f'{killed}; caveats: {", ".join(sorted(caveat)) or "none"}'


def check_runtimes():
    """A perl and a CPython of which half is in swap."""
    notes = []
    for words in (['/usr/bin/perl', KERNELS / 'perl/hash.pl', 20000],
                  ['/usr/bin/python3', '-c', 'k=[(i,str(i)) for i in range(60000)]; print("ready", flush=True); input()']):
        one = Subject(words)
        swapped = half_out(one.pid)
        for snapshot in ('never', 'try'):
            document = explain(one.pid, f'--snapshot={snapshot}')
            expect(caveats(document), 'no caveat')
            for caveat in document['caveats']:
                expect(not caveat['code'].endswith('_damaged') or 'swapped out' in caveat['text'], f'false alarm: {caveat["text"]}')
            expect(rollup(one.pid)['Swap'] >= swapped - 256 * 1024, 'brought in by the look')
        notes.append(', '.join(sorted(set(caveats(document)))))
        is_free(one.pid)
    return '; '.join(notes)


def check_holders():
    """Nothing is called unreachable where not all could be read."""
    one, swapped = swapped_heap()
    document = strandline('holders', '--json', one.pid).done().document()
    equal(document['unreachable'], None, 'unreachable')
    expect('holders_swapped' in caveats(document), f'caveats: {caveats(document)}')
    expect(rollup(one.pid)['Swap'] >= swapped - 128 * 1024, 'brought in by the look')


def check_recording():
    """The samples tell what was swapped out."""
    one = subject('fragmented', 60000, 200, 500)
    process = subprocess.Popen(['strandline', 'record', '-o', '/tmp/recording', str(one.pid)], stderr=subprocess.PIPE)
    time.sleep(1.5)
    swapped = half_out(one.pid)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    told = strandline('report', '/tmp/recording', '--format', 'json').done().document()
    most = max(value for value in told['samples']['swap_bytes'] if value is not None)
    expect(abs(most - swapped) <= MIB // 2, f'{most} in the samples, {swapped} in smaps_rollup')


def check_exit_ledger():
    """Of a program that ends while part of it is in swap."""
    script = ('import ctypes,mmap; m=mmap.mmap(-1,16<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS)\n'
              'for i in range(0,16<<20,4096): m[i]=1\n'
              'a=ctypes.addressof(ctypes.c_char.from_buffer(m)); ctypes.CDLL(None).madvise(ctypes.c_void_p(a),8<<20,21)\n'
              'import os; os._exit(0)')
    strandline('run', '-o', '/tmp/ended', '--ledger', 'exit', '--', '/usr/bin/python3', '-c', script).done()
    told = json.loads(strandline('report', '/tmp/ended', '--format', 'json').done().out)
    ledger = next(one['explain'] for one in told['ledgers'] if one['at'] == 'exit')
    holds(ledger)
    expect(ledger['kernel']['swap_bytes'] > 4 * MIB, f'swap_bytes {ledger["kernel"]["swap_bytes"]}')


def check_swap_that_is_full():
    """Paging out stops where there is no room: what was given back is told, and nothing is lost."""
    if not Path('/sys/block/zram0').exists():
        raise Skipped('no zram')
    command(['swapoff', '/dev/zram0']).done()
    write('/sys/block/zram0/reset', 1)
    write('/sys/block/zram0/disksize', '4M')
    command(['mkswap', '/dev/zram0']).done()
    command(['swapon', '/dev/zram0']).done()
    one = subject('zeroed_buffer', 16, 'mmap', before=small_pages)
    done = reclaim(one.pid, 'zero_pages')
    expect(done['actual_bytes'] <= 5 * MIB, f'{done["actual_bytes"]} into 4 MiB of swap')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    return f'{done["outcome"]}: predicted {done["predicted_bytes"]}, actual {done["actual_bytes"]}'
