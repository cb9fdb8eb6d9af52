"""Control groups of version 2: limits, the OOM killer let loose, delegation."""
import json
import os
import signal
import subprocess
import time

from lab import (ORDINARY, SUBJECTS, agrees, as_user, child_group, equal, expect, explain, holds, is_free, joins, read, strandline,
                 subject, write)

MIB = 1 << 20


def prepare():
    # As systemd does.
    write('/sys/fs/cgroup/cgroup.subtree_control', '+memory +pids')


def check_doctor():
    checks = {check['id']: check for check in strandline('doctor', '--json').document()['checks']}
    equal(checks['memory_limit']['status'], 'ok', f'doctor: memory_limit ({checks["memory_limit"]})')
    expect('2' in json.dumps(checks['cgroup']), f'doctor: cgroup {checks["cgroup"]}')


def recorded(limit, *words, **how):
    run = strandline('run', '-o', '/tmp/limited', '--limit-memory', limit, '--ledger', 'exit', '--', *words, **how)
    told = strandline('report', '/tmp/limited', '--format', 'json')
    return run, json.loads(told.done().out)


def nothing_left():
    left = [name for name in os.listdir('/sys/fs/cgroup') if name.startswith('strandline')]
    equal(left, [], 'groups left behind')


def check_run_within_a_limit():
    run, told = recorded('64MiB', SUBJECTS / 'regions', 'plain', 24, data=b'c')
    equal(run.status, 0, f'status ({run.err[-200:]})')
    limits = [limit for limit in told['recording']['limits'] if limit['kind'] == 'memory']
    equal([(limit['bytes'], limit['by']) for limit in limits], [(64 * MIB, 'cgroup v2')], 'limits')
    expect(any(one['at'] == 'exit' for one in told['ledgers']), 'no ledger at the exit')
    nothing_left()


def check_run_killed_at_the_limit():
    """The OOM killer ends the command: the recording says so, and how much there was."""
    run, told = recorded('24MiB', SUBJECTS / 'regions', 'plain', 64, data=b'')
    equal(run.status, -signal.SIGKILL, f'how run ends ({run.err[-200:]})')
    equal(told['exit']['signal'], signal.SIGKILL, 'signal')
    equal(told['exit']['out_of_memory_kills'], 1, 'kills for want of memory')
    most = max(value for value in told['samples']['rss_bytes'] if value is not None)
    expect(8 * MIB < most <= 32 * MIB, f'most in the samples: {most}')
    codes = [caveat['code'] for caveat in told['caveats']]
    kill = told['exit']['group_kill']
    expect(kill and kill['kills'] == 1 and 'which limit was met' in kill['unknown'], f'what the group held: {kill}')
    equal(sum(row['bytes'] for row in kill['rows']), kill['current_bytes'], 'the rows before the kill')
    equal(kill['effective_limit_bytes'], 24 * MIB, 'the limit')
    nothing_left()
    # The kernel may take a victim's memory back (oom_reaper) while it is looked at, from 5.19 on two seconds later.
    ledgers = [one['explain'] for one in told['ledgers'] if one['at'] == 'exit']
    for ledger in ledgers:
        holds(ledger)
    expect(ledgers or codes, 'no ledger at the exit, and no word of it')
    return f'most sampled {most}; ledgers at the exit of {[one["kernel"]["rss_bytes"] for one in ledgers]}; caveats: {codes}; {kill["age_seconds"]} s before the kill {kill["current_bytes"]}'


def check_squeeze():
    """The smallest limit that 24 MiB and a small program need."""
    run = strandline('squeeze', '--kind', 'cgroup', '--repeat', 1, '--rounds', 0, '--resolution', '1MiB', '--format', 'json',
                     '--', SUBJECTS / 'regions', 'plain', 24, data=b'', timeout=95)
    document = run.done().document()
    smallest = document['smallest_bytes']
    expect(24 * MIB < smallest < 32 * MIB, f'smallest {smallest}')
    equal(document['failure']['signal'], signal.SIGKILL, 'how it fails')
    nothing_left()
    return f'{smallest} bytes'


def check_from_a_group_below():
    """strandline in a group with processes, which can have no groups with limits: one is made beside it."""
    folder = child_group('session')
    run = strandline_in(folder, 'run', '-o', '/tmp/limited', '--limit-memory', '64MiB', '--', SUBJECTS / 'regions', 'plain', 4)
    equal(run, 0, 'status')
    nothing_left()


def strandline_in(group, *words, user=None):
    """The status of strandline started in a group."""
    become, join = as_user(user), joins(group)

    def both():
        join()
        become()
    words = ['strandline', *map(str, words)]
    return subprocess.run(words, stdin=subprocess.DEVNULL, preexec_fn=both, check=False, cwd='/tmp', timeout=60).returncode


def check_without_delegation():
    """An ordinary user is told why not, and how else."""
    run = strandline('run', '-o', '/tmp/refused', '--limit-memory', '64MiB', '--', '/bin/true', user=ORDINARY)
    equal(run.status, 125, 'status')
    expect('cgroup v2' in run.err, f'says: {run.err}')
    return run.err.strip()[:200]


def check_delegated():
    """A group that belongs to an ordinary user, as systemd's Delegate=yes makes it."""
    top = child_group('delegated')
    write(top / 'cgroup.subtree_control', '+memory')
    inner = top / 'inner'
    inner.mkdir(exist_ok=True)
    for at in (top, top / 'cgroup.procs', top / 'cgroup.subtree_control', inner, inner / 'cgroup.procs'):
        os.chown(at, ORDINARY, ORDINARY)
    status = strandline_in(inner, 'run', '-o', '/tmp/delegated', '--limit-memory', '24MiB', '--', SUBJECTS / 'regions', 'plain', 64,
                           user=ORDINARY)
    equal(status, -signal.SIGKILL, 'how a command ends that needs more')
    equal([at.name for at in top.glob('strandline*')], [], 'groups left behind')


def check_ledger_close_to_the_limit():
    """Looking costs the target's group nothing that could end it."""
    group = child_group('close')
    one = subject('regions', 'plain', 24, before=joins(group))
    current = int(read(group / 'memory.current'))
    write(group / 'memory.max', current + 256 * 1024)
    agrees(explain(one.pid, '--snapshot=never'), one.pid)
    refused = strandline('explain', '--snapshot=always', '--json', one.pid)
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    equal('oom_kill 0' in read(group / 'memory.events'), True, 'nothing was killed')
    equal(one.finish(), 0, 'its status')
    return f'snapshot: status {refused.status}, {refused.err.strip()[:200]}'


def check_snapshot_where_memory_runs_out():
    """Another process takes what is left of the limit while snapshots are read: the process stays."""
    group = child_group('writers')
    one = subject('regions', 'write', 24, before=joins(group))
    write(group / 'memory.max', int(read(group / 'memory.current')) + 300 * MIB)
    hog = subprocess.Popen([str(SUBJECTS / 'regions'), 'plain', '400'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                           preexec_fn=joins(group))
    told = []
    while hog.poll() is None:
        told.append(strandline('explain', '--snapshot=always', '--json', one.pid).status)
    equal(hog.returncode, -signal.SIGKILL, 'how it ends that took the memory')
    is_free(one.pid)
    equal(one.process.poll(), None, 'it lives')
    equal(one.ask('c')['wrong'], 0, 'words that changed')
    equal(one.finish(), 0, 'its status')
    return f'statuses {told}, {read(group / "memory.events").replace(chr(10), ", ")}'


def check_beside_the_oom_killer():
    """Another process of the group is killed again and again while one is looked at."""
    group = child_group('hogs', memory_max=48 * MIB)
    one = subject('fragmented', 60000, 200, 500, before=joins(group))
    kills = 0
    for turn in range(4):
        hog = subprocess.Popen([str(SUBJECTS / 'regions'), 'plain', '64'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                               preexec_fn=joins(group))
        explain(one.pid, '--snapshot=' + ('try' if turn % 2 else 'never'))
        hog.wait(60)
        kills += hog.returncode == -signal.SIGKILL
    equal(kills, 4, 'kills')
    is_free(one.pid)
    equal(one.ask('i')['mallinfo'], one.ready['mallinfo'], 'mallinfo')
    equal(one.finish(), 0, 'its status')


def check_snapshot_refused_where_all_would_end():
    group = child_group('together', memory_max=64 * MIB)
    write(group / 'memory.oom.group', 1)
    one = subject('regions', 'plain', 8, before=joins(group))
    run = strandline('explain', '--snapshot=always', '--json', one.pid)
    equal(run.status, 3, 'status')
    expect('oom.group' in run.err, f'says: {run.err}')
    explain(one.pid, '--snapshot=try')
    equal(one.finish(), 0, 'its status')


def check_frozen():
    """A group that stands still is not waited for without end."""
    group = child_group('frozen')
    one = subject('regions', 'plain', 8, before=joins(group))
    write(group / 'cgroup.freeze', 1)
    time.sleep(0.2)
    run = strandline('explain', '--json', one.pid, timeout=60)
    write(group / 'cgroup.freeze', 0)
    expect(run.status in (0, 3), f'status {run.status}: {run.err}')
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'status {run.status}: {run.err.strip()[:200]}'
