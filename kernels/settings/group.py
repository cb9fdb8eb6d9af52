"""The ledger of a control group of version 2: rows add up to memory.current."""
import json
import os
import subprocess
import time
from pathlib import Path

from lab import SUBJECTS, child_group, equal, expect, joins, read, strandline, subject, write

MIB = 1 << 20
PAGE = 4096


def prepare():
    write('/sys/fs/cgroup/cgroup.subtree_control', '+memory +pids')


def ledger(group, *words, status=0):
    """The ledger of a group, whose rows add up."""
    document = strandline('explain', '--json', '--cgroup', group, *words).done(status).document()
    current = document['cgroup']['current_bytes']
    equal(sum(row['bytes'] for row in document['rows']), current, 'the sum of the rows')
    equal(sum(document['totals'].values()), current, 'the sum of the states')
    equal(document['cgroup']['version'], 2, 'version')
    expect(of(document, 'group.charge_stock') <= 64 * PAGE * os.cpu_count(), 'the charge stock')
    return document


def of(document, row, **where):
    rows = (one for one in document['rows'] if one['id'] == row)
    return sum(one['bytes'] for one in rows if all(one[key] == value for key, value in where.items()))


def write_file(group, path, mebibytes, *more):
    """A process of the group writes a file and ends: it stays charged."""
    words = ['dd', 'if=/dev/zero', f'of={path}', 'bs=1M', f'count={mebibytes}', *more]
    subprocess.run(words, preexec_fn=joins(group), check=True, stderr=subprocess.DEVNULL)


def near(got, wanted, what):
    # The counters are updated in batches.
    expect(abs(got - wanted) <= wanted // 50 + 64 * PAGE * os.cpu_count(), f'{what}: {got}, not about {wanted}')


def check_rows_add_up_and_name_who_holds_them():
    group = child_group('ledger', memory_max=200 * MIB)
    one = subject('regions', 'plain', 24, before=joins(group))
    shared, log = Path('/dev/shm/ledger.db'), Path('/var/tmp/ledger.log')
    write_file(group, shared, 16)
    write_file(group, log, 32, 'conv=fsync')
    with log.open('rb'):
        document = ledger(group)
    expect(of(document, 'group.anon', pid=one.pid) >= 24 * MIB, f'anonymous memory: {document["rows"]}')
    near(of(document, 'group.shmem', file=str(shared)), 16 * MIB, 'shared memory')
    near(sum(of(document, f'group.cache.{state}') for state in ('clean', 'dirty', 'writeback')), 32 * MIB, 'page cache')
    cgroup = document['cgroup']
    equal(cgroup['working_set_bytes'], cgroup['current_bytes'] - cgroup['inactive_file_bytes'], 'working set')
    equal((cgroup['limit_bytes'], cgroup['effective_limit_path']), (200 * MIB, '/ledger'), 'limit')
    unknown = of(document, 'group.unattributed')
    shared.unlink()
    log.unlink()
    equal(one.finish(), 0, 'its status')
    return f'unattributed {unknown} of {cgroup["current_bytes"]}; {[(row["id"], row["bytes"]) for row in document["rows"]][:9]}'


def check_little_is_unattributed():
    """Kernels that sum the kernel's own memory (5.18 and later) leave nothing unattributed."""
    group = child_group('whole')
    one = subject('regions', 'plain', 48, before=joins(group))
    document = ledger(group)
    unknown, current = of(document, 'group.unattributed'), document['cgroup']['current_bytes']
    if 'kernel ' in read(group / 'memory.stat').replace('\n', ' \n'):
        expect(unknown * 100 <= current, f'unattributed {unknown} of {current}')
    equal(one.finish(), 0, 'its status')
    return f'{unknown} of {current}'


def check_killed_at_the_limit():
    """Events tell of the kill, and what is left is the file."""
    group = child_group('killed', memory_max=48 * MIB)
    shared = Path('/dev/shm/killed.db')
    write_file(group, shared, 24)
    run = subprocess.run([str(SUBJECTS / 'regions'), 'plain', '64'], preexec_fn=joins(group), check=False,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    document = ledger(group)
    equal(document['cgroup']['events']['oom_kill'], 1, f'kills (status {run.returncode})')
    near(of(document, 'group.shmem', file=str(shared)), 24 * MIB, 'shared memory')
    equal(document['verdict']['class'], 'shared_memory', 'class')
    shared.unlink()


def exported(group, folder):
    """The rows of a group on the page of an exporter."""
    words = ['strandline', 'export', '--no-ledgers', '--cgroup', str(group), '--textfile', str(folder), '--interval', '1s']
    exporter = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        page = folder / 'strandline.prom'
        while not page.exists():
            equal(exporter.poll(), None, 'the exporter ended')
            time.sleep(0.01)
        lines = page.read_text(encoding='utf-8').splitlines()
    finally:
        exporter.terminate()
        exporter.wait()
    label = f'{{cgroup="/{group.name}"'
    rows = [line.split('row="')[1] for line in lines if line.startswith(f'strandline_cgroup_row_bytes{label}')]
    charge = [line for line in lines if line.startswith(f'strandline_cgroup_charge_bytes{label}')]
    equal(len(charge), 1, 'series of the charge')
    return {row.split('"')[0]: int(row.split()[-1]) for row in rows}, int(charge[0].split()[-1])


def check_the_exporter_has_the_rows_of_the_ledger():
    group = child_group('exported', memory_max=200 * MIB)
    one = subject('regions', 'plain', 24, before=joins(group))
    shared, folder = Path('/dev/shm/exported.db'), Path('/tmp/exported')
    folder.mkdir(exist_ok=True)
    write_file(group, shared, 16)
    rows, charge = exported(group, folder)
    equal(sum(rows.values()), charge, 'the sum of the rows')
    document = ledger(group)
    parts = {'group.anon': ('group.anon', 'group.anon.lazyfree', 'group.anon.elsewhere')}
    for row, got in rows.items():
        # The kernel may drop page cache between two looks, and charges in advance.
        if not row.startswith('group.cache') and row != 'group.charge_stock':
            near(got, sum(of(document, part) for part in parts.get(row, (row,))), row)
    near(rows['group.shmem'], 16 * MIB, 'shared memory')
    shared.unlink()
    equal(one.finish(), 0, 'its status')
    return f'{sorted(rows.items(), key=lambda row: -row[1])[:9]}'


def check_the_kernel_reclaims():
    group = child_group('reclaimed')
    log = Path('/var/tmp/reclaimed.log')
    write_file(group, log, 32, 'conv=fsync')
    run = strandline('reclaim', '--json', '--remedy', 'memory_reclaim', '--cgroup', group)
    if not (group / 'memory.reclaim').exists():
        equal(run.status, 3, 'status without memory.reclaim')
        return 'no memory.reclaim'
    document = run.done().document()
    expect(document['actual_bytes'] * 10 >= document['predicted_bytes'] * 9, json.dumps(document))
    log.unlink()
    return f'{document["actual_bytes"]} of {document["predicted_bytes"]}'


def check_groups_that_do_not_count():
    group = child_group('threads')
    inner = group / 'inner'
    inner.mkdir(exist_ok=True)
    write(inner / 'cgroup.type', 'threaded')
    run = strandline('explain', '--cgroup', inner)
    equal(run.status, 3, 'status of a threaded group')
    expect('threaded' in run.err, run.err)
    run = strandline('explain', '--cgroup', '/')
    equal(run.status, 3, 'status of the root')
    expect('the root' in run.err, run.err)
    uncounted = child_group('outer') / 'uncounted'
    uncounted.mkdir(exist_ok=True)
    run = strandline('explain', '--cgroup', uncounted)
    expect('subtree_control' in run.err, run.err)
