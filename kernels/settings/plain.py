"""As the kernel comes: every kind of subject, each verb."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from lab import (KERNELS, ORDINARY, SUBJECTS, Failed, Skipped, Subject, agrees, equal, expect, explain, explain_heap,
                 gives_what_it_predicts, is_free, other_allocators, reclaim, release, row, rows_of_snapshot, runtime, strandline,
                 subject)


def check_doctor():
    done = strandline('doctor', '--json')
    expect(done.status in (0, 1), f'status {done.status}: {done.err}')
    checks = {check['id']: check for check in done.document()['checks']}
    has_scan = release() >= (6, 7)
    for name in ('page_flags', 'ptrace', 'process_vm_readv', 'smaps_rollup', 'map_files'):
        equal(checks[name]['status'], 'ok', f'doctor: {name}')
    # It says of kernels before 6.7 that they have no PAGEMAP_SCAN.
    equal(checks['kernel']['status'] == 'ok', has_scan, 'doctor: kernel')
    equal(checks['pagemap_scan']['status'] == 'ok', has_scan, 'doctor: pagemap_scan')
    return ', '.join(f'{name}: {check["status"]}' for name, check in checks.items() if check['status'] != 'ok')


def check_demo():
    """Its own process: what is predicted is given back."""
    document = strandline('demo', '--json', '--mebibytes', '48').done().document()
    found = re.findall(r'"predicted_bytes": ?(\d+), ?"actual_bytes": ?(\d+)', json.dumps(document))
    found += [(b, a) for a, b in re.findall(r'"actual_bytes": ?(\d+), ?"predicted_bytes": ?(\d+)', json.dumps(document))]
    expect(found and all(predicted == actual for predicted, actual in found), f'predicted and actual: {found}')


def check_glibc_heap():
    """malloc's figures from outside are its own; the call gives back what was predicted."""
    heap = subject('fragmented', 60000, 200, 500)
    explain_heap(heap, '--snapshot=never')
    done = gives_what_it_predicts(heap.pid, 'malloc_trim')
    expect(done['actual_bytes'] > 8 << 20, f'only {done["actual_bytes"]} bytes of 12 MB')
    equal(heap.ask('i')['mallinfo']['uordblks'], heap.ready['mallinfo']['uordblks'], 'bytes in use afterwards')
    equal(heap.finish(), 0, 'its status')


def check_little_stack():
    """The kernel has mapped little of the main thread's stack, and extends it for a snapshot and for the call."""
    heap = subject('fragmented', 60000, 200, 500, 200000)
    stack_pointer = int(Path(f'/proc/{heap.pid}/syscall').read_text(encoding='ascii').split()[-2], 16)
    maps = Path(f'/proc/{heap.pid}/maps').read_text(encoding='ascii')
    room = stack_pointer - int(re.search(r'^([0-9a-f]+)-.*\[stack\]$', maps, re.M)[1], 16)
    expect(room < 16 << 10, f'{room} bytes are mapped below its stack pointer')
    equal(rows_of_snapshot(heap, 'glibc', 'anon')['target']['kind'], 'photograph', 'kind')
    done = gives_what_it_predicts(heap.pid, 'malloc_trim')
    expect(done['actual_bytes'] > 8 << 20, f'only {done["actual_bytes"]} bytes of 12 MB')
    equal(heap.finish(), 0, 'its status')
    return f'{room} bytes below the stack pointer'


def check_snapshot():
    """The rows of a snapshot are those of a stop."""
    heap = subject('fragmented', 60000, 200, 500)
    equal(rows_of_snapshot(heap, 'glibc', 'anon')['target']['kind'], 'photograph', 'kind')
    is_free(heap.pid)
    equal(heap.finish(), 0, 'its status')


def check_static_program():
    heap = subject('fragmented-static', 60000, 200, 500)
    explain_heap(heap)
    equal(heap.finish(), 0, 'its status')


def check_kinds_of_memory():
    """Shared memory, pages given up, files changed in memory, forked processes."""
    for name in ('shmem', 'lazyfree', 'cow_file', 'forked', 'thp'):
        one = subject(name)
        try:
            agrees(explain(one.pid), one.pid)
        except Failed as error:
            raise Failed(f'{name}: {error}') from error
        equal(one.finish(), 0, f'status of {name}')


def check_python():
    one = Subject(['/usr/bin/python3', KERNELS / 'python/oracle.py', 'mixed', 1000, 1, SUBJECTS / 'figures.so', '/tmp/figures'])
    cpython = runtime(explain(one.pid), 'cpython')
    told = Path('/tmp/figures').read_text(encoding='ascii')
    for begin, name in (('# bytes in allocated blocks', 'bytes_in_allocated_blocks'),
                        ('# bytes in available blocks', 'bytes_in_available_blocks'),
                        ('# arenas allocated current', 'arenas_allocated_current')):
        line = next(line for line in told.splitlines() if line.startswith(begin))
        equal(cpython['own'][name], int(line.rpartition('=')[2].replace(',', '')), name)
    types = {each['name']: [each['instances'], each['bytes']] for each in cpython['types']}
    for name, known in one.ready['types'].items():
        equal(types.get(name), known, f'type {name}')


def check_perl():
    one = Subject(['/usr/bin/perl', KERNELS / 'perl/hash.pl', 30000])
    document = explain(one.pid)
    equal(runtime(document, 'perl')['version'], one.ready['version'], 'version')
    expect(row(document, 'perl.') > 3 << 20, 'less than 3 MiB of Perl')
    done = reclaim(one.pid, 'malloc_trim')
    if done['outcome'] == 'done':
        equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    equal(one.finish(), 0, 'its status')


def check_sbcl():
    if not os.path.exists('/usr/bin/sbcl'):
        raise Skipped('no SBCL on the machine that made the disk')
    script = '(progn (defvar *kept* (loop repeat 20000 collect (make-array 10))) (gc :full t)' \
             ' (format t "ready~%") (finish-output) (read-line))'
    one = Subject(['/usr/bin/sbcl', '--noinform', '--non-interactive', '--no-sysinit', '--no-userinit', '--eval', script],
                  env={'SBCL_HOME': '/usr/lib/sbcl'})
    document = explain(one.pid)
    runtime(document, 'sbcl')
    expect(row(document, 'sbcl.') > 2 << 20, 'less than the 2 MiB of its arrays')


def check_other_allocators():
    """jemalloc and tcmalloc, by their own calls."""
    for library, call in other_allocators():
        one = subject('fragmented', 60000, 200, 500, env={'LD_PRELOAD': str(library)})
        agrees(explain(one.pid), one.pid)
        done = reclaim(one.pid, call)
        expect(done['outcome'] in ('done', 'nothing_to_give_back'), f'{call}: {done["outcome"]} {done.get("reason")}')
        if done['outcome'] == 'done':
            equal(done['actual_bytes'], done['predicted_bytes'], f'{call}: given back beside predicted')
        equal(one.finish(), 0, 'its status')


def check_zero_pages_directly():
    """Without swap, with the risk allowed: all of it goes back and reads as zeros."""
    one = subject('zeroed_buffer', 16, 'mmap')
    refused = strandline('reclaim', '--json', '--remedy', 'zero_pages', one.pid)
    expect(refused.status != 0 or refused.document()['outcome'] == 'refused', 'not refused without the flag')
    done = reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk')
    expect(done['actual_bytes'] >= 16 << 20, f'{done["actual_bytes"]} of 16 MiB')
    equal(one.ask('c')['wrong_bytes'], 0, 'bytes that read otherwise')
    equal(one.finish(), 0, 'its status')


def check_snapshot_beside_direct_reads():
    """Before 6.5 a device that writes to a page which was copied meanwhile writes to the copy's: refused there."""
    script = ('import os,sys; f=os.open("/root/direct",os.O_RDWR|os.O_CREAT|os.O_DIRECT); print("ready",flush=True); sys.stdin.read()')
    one = Subject(['/usr/bin/python3', '-c', script])
    run = strandline('explain', '--snapshot=always', '--json', one.pid)
    equal(run.status, 0 if release() >= (6, 5) else 3, f'status ({run.err.strip()[-200:]})')
    explain(one.pid, '--snapshot=try')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return run.err.strip()[-200:]


def check_recording():
    """run, its marks and ledgers, and report."""
    done = strandline('run', '-o', '/tmp/recording', '--ledger', 'exit', '--', SUBJECTS / 'fragmented', 20000, 200, 500,
                      data=b'')
    equal(done.status, 0, f'status of the command ({done.err[-300:]})')
    told = strandline('report', '/tmp/recording', '--format', 'json').done().document()
    expect(told['samples']['rss_bytes'], 'no samples')
    ledgers = [one for one in told['ledgers'] if one['at'] == 'exit']
    equal(len(ledgers), 1, 'ledgers at the exit')
    equal(sum(each['bytes'] for each in ledgers[0]['explain']['rows']), ledgers[0]['explain']['kernel']['rss_bytes'],
          'rows of the ledger at the exit')
    expect(told['exit']['high_water_bytes'] > 3 << 20, f'high water {told["exit"]}')


def check_recording_by_polling():
    """Without the right to the kernel's connector: children are found all the same."""
    done = strandline('run', '-o', '/tmp/polled', '--', '/bin/sh', '-c', 'sleep 0.5 & sleep 0.7; exit 3', user=ORDINARY)
    equal(done.status, 3, f'status of the command ({done.err[-300:]})')
    told = strandline('report', '/tmp/polled', '--format', 'json').done().document()
    expect(len(told['processes']) >= 3, f'{len(told["processes"])} processes of 3')
    return f'{len(told["processes"])} processes'


def check_attached_recording():
    """record, until Ctrl-C."""
    one = subject('fragmented', 20000, 200, 500)
    process = subprocess.Popen(['strandline', 'record', '-o', '/tmp/attached', str(one.pid)], stderr=subprocess.DEVNULL)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    told = strandline('report', '/tmp/attached', '--format', 'json').done().document()
    expect(max(told['samples']['rss_bytes']) > 3 << 20, 'no samples of it')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')


def check_as_an_ordinary_user():
    """Its own process: no right is needed; page frame numbers are not shown to it."""
    one = subject('fragmented', 60000, 200, 500, user=ORDINARY)
    agrees(explain(one.pid, user=ORDINARY), one.pid)
    done = reclaim(one.pid, 'malloc_trim', user=ORDINARY)
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    other = subject('fragmented', 6000, 200, 500)
    refused = strandline('explain', '--json', other.pid, user=ORDINARY)
    equal(refused.status, 3, 'status for a process of root')
    expect(str(other.pid) in refused.err, f'no process named: {refused.err}')


def check_holders():
    one = subject('fragmented', 20000, 200, 500)
    document = strandline('holders', '--json', one.pid).done().document()
    expect('unreachable' in document, 'no unreachable')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
