"""User namespaces and a target as in a container: own process, mount and user namespaces, another root, no /proc."""
import os
import re
import shutil
from pathlib import Path

from lab import (ORDINARY, SUBJECTS, Skipped, Subject, agrees, caveats, command, equal, expect, explain, explain_heap,
                 gives_what_it_predicts, is_free, read, reclaim, row, strandline, subject, write)

JAIL = Path('/tmp/jail')


def prepare():
    """A root with a program, its libraries, and nothing else. The C library is the same under another name's file."""
    (JAIL / 'subjects').mkdir(parents=True)
    for name in ('fragmented', 'fragmented-static'):
        shutil.copy(SUBJECTS / name, JAIL / 'subjects' / name)
    told = Path('/lib64/ld-linux-x86-64.so.2'), *Path('/lib/x86_64-linux-gnu').glob('libc.so.6'), \
        *Path('/lib/x86_64-linux-gnu').glob('libgcc_s.so.1')
    for at in told:
        to = JAIL / str(at).lstrip('/')
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(at, to)
    JAIL.chmod(0o755)
    if Path('/proc/sys/kernel/unprivileged_userns_clone').exists():
        write('/proc/sys/kernel/unprivileged_userns_clone', 1)


class Contained(Subject):
    """A subject in namespaces of its own; `pid` is its id outside."""

    def __init__(self, name, *words, user=None, extra=()):
        flags = ['--user', '--map-root-user', '--pid', '--fork', '--kill-child', '--mount', '--ipc', '--uts', *extra]
        super().__init__(['unshare', *flags, '--root', JAIL, f'/subjects/{name}', *map(str, words)], user=user)
        children = read(f'/proc/{self.pid}/task/{self.pid}/children').split()
        self.pid = int(children[0])

    def finish(self, seconds=60):
        return super().finish(seconds)


def contained(name='fragmented', **how):
    return Contained(name, 60000, 200, 500, **how)


def looked_at(one, **how):
    return explain_heap(one, '--snapshot=never', **how)


def check_by_root():
    one = contained()
    equal(os.readlink(f'/proc/{one.pid}/root'), str(JAIL), 'its root')
    looked_at(one)
    done = gives_what_it_predicts(one.pid, 'malloc_trim')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'{done["actual_bytes"]} given back'


def check_static_by_root():
    one = contained('fragmented-static')
    looked_at(one)
    equal(one.finish(), 0, 'its status')


def check_by_its_user():
    """An ordinary user's container, from outside and without any right."""
    one = contained(user=ORDINARY)
    looked_at(one, user=ORDINARY)
    done = reclaim(one.pid, 'malloc_trim', user=ORDINARY)
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')


def check_snapshot():
    one = contained()
    stopped = looked_at(one)
    document = explain(one.pid, '--snapshot=try')
    equal(row(document, 'glibc.live'), row(stopped, 'glibc.live'), 'glibc.live of the snapshot')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'{document["target"]["kind"]}: {", ".join(caveats(document))}'


def check_root_that_is_a_mount_of_its_own():
    """Its files are on a file system that nobody outside has mounted: no path leads there but /proc/PID/root."""
    script = (f'mount -t tmpfs own /mnt && cp -a {JAIL}/. /mnt/ && exec /usr/bin/unshare --pid --fork --root /mnt '
              '/subjects/fragmented 60000 200 500')
    Path('/mnt').mkdir(exist_ok=True)
    one = Subject(['unshare', '--mount', 'sh', '-c', script])
    one.pid = int(read(f'/proc/{one.pid}/task/{one.pid}/children').split()[0])
    looked_at(one)
    gives_what_it_predicts(one.pid, 'malloc_trim')
    equal(one.finish(), 0, 'its status')


def check_deleted_program():
    """Program and libraries are replaced while it runs, as by an update."""
    folder = Path('/tmp/replaced')
    folder.mkdir()
    shutil.copy(SUBJECTS / 'fragmented', folder / 'program')
    one = Subject([folder / 'program', 60000, 200, 500])
    (folder / 'program').unlink()
    (folder / 'program').write_text('another')
    looked_at(one)
    gives_what_it_predicts(one.pid, 'malloc_trim')


def check_seccomp():
    """A filter on every thread: as containers have it, called through; one that would kill is not."""
    one = subject('reclaim_target', 'filtered')
    agrees(explain(one.pid), one.pid)
    agrees(explain(one.pid, '--snapshot=always'), one.pid)
    gives_what_it_predicts(one.pid, 'malloc_trim')
    deadly = subject('reclaim_target', 'seccomp')
    agrees(explain(deadly.pid), deadly.pid)
    run = strandline('reclaim', '--json', '--remedy', 'malloc_trim', deadly.pid)
    equal(run.status, 3, 'status')
    expect('may not let madvise through' in run.err, f'says: {run.err}')
    run = strandline('explain', '--snapshot=always', '--json', deadly.pid)
    equal(run.status, 3, 'status of a snapshot')
    is_free(deadly.pid)


def inside(*words, mount='--mount-proc', user=None):
    return command(['unshare', '--user', '--map-root-user', '--pid', '--fork', '--mount', mount, *words], user=user)


def check_inside():
    """strandline itself in a container: demo and doctor."""
    for user in (None, ORDINARY):
        inside('strandline', 'demo', '--mebibytes', '24', user=user).done()
        told = inside('strandline', 'doctor', '--json', user=user)
        expect(told.status in (0, 1), f'doctor: status {told.status}: {told.err}')
        checks = {check['id']: check['status'] for check in told.document()['checks']}
        equal(checks['ptrace'], 'ok', 'doctor: ptrace')
    return ', '.join(f'{name} {status}' for name, status in checks.items() if status != 'ok')


def check_run_inside():
    """Polled, as the connector speaks to the first namespaces only."""
    run = inside('strandline', 'run', '-o', '/tmp/inside', '--', 'sh', '-c', 'sleep 0.4 & sleep 0.6; exit 4')
    equal(run.status, 4, f'status ({run.err[-200:]})')
    told = strandline('report', '/tmp/inside', '--format', 'json').done().document()
    expect(len(told['processes']) >= 3, f'{len(told["processes"])} processes of 3')


def check_without_proc():
    """No /proc at all: one line that says so."""
    script = 'mount -t tmpfs none /proc && strandline explain --json 1; echo status $?'
    run = command(['unshare', '--mount', 'sh', '-c', script])
    expect('status 3' in run.out, f'{run.out} {run.err}')
    expect('/proc' in run.err, f'says: {run.err}')
    return run.err.strip()


def check_proc_of_another_namespace():
    """A new process namespace that still sees the old /proc: ids mean other processes there."""
    script = ('/kernels/subjects/fragmented 6000 200 500 <&3 & sleep 1.5; strandline explain --json $!; echo status $?')
    run = command(['sh', '-c', f"mkfifo /tmp/held; sleep 8 > /tmp/held & /usr/bin/unshare --pid --fork sh -c '{script}' 3</tmp/held"])
    told = re.search(r'status (\d+)', run.out)
    expect(told is not None and told[1] == '3', f'not refused: {run.out[-200:]} {run.err}')
    return run.err.strip()[:300]


SYS_PTRACE, DAC_READ_SEARCH = 19, 2
# Root whom a container keeps short: what the bounding set is without, by what is then missing for another user's process.
SHORT = {(): '', (SYS_PTRACE,): '-sys_ptrace', (DAC_READ_SEARCH,): '-dac_override,-dac_read_search',
         (SYS_PTRACE, DAC_READ_SEARCH): '-sys_ptrace,-dac_override,-dac_read_search'}
NAMES = {SYS_PTRACE: 'sys_ptrace', DAC_READ_SEARCH: 'dac_read_search'}


def look(user, missing, pid):
    words = ['strandline', 'explain', '--json', '--snapshot=never', pid]
    if user is not None:
        return command(words, user=user, capabilities=[one for one in NAMES if one not in missing])
    without = SHORT[missing]
    return command(['setpriv', f'--bounding-set={without}', f'--inh-caps={without}', *words] if without else words)


def as_it_must(user, missing, scope, one, is_own):
    """Explained, or refused in one line that names what is missing and nothing that is there."""
    run = look(user, missing, one.pid)
    # Another root's process has capabilities that a root who is kept short has not: it is as another user's.
    alike = is_own and user is not None
    lacks = [number for number in missing if number == SYS_PTRACE or not is_own]
    refused = bool(lacks) and not (alike and scope == 0)
    what = f'user {user or 0} without {[NAMES[one] for one in missing]}, scope {scope}, {"own" if is_own else "other"} process'
    equal(run.status, 3 if refused else 0, f'{what}: status ({run.err.strip()[:300]})')
    if not refused:
        agrees(run.document(), one.pid)
        return
    equal(len(run.err.strip().splitlines()), 1, f'{what}: lines')
    said = run.err.lower()
    for number, name in NAMES.items():
        # To an ordinary user one line names whatever is had already, as setcap takes away what it does not name.
        equal(name in said, number in lacks or (user is not None and number not in missing), f'{what}: {name} in {run.err}')
    equal(('--cap-add' in said, 'setcap' in said, 'run as root' in said), (user is None, user is not None, user is not None), f'{what}: {run.err}')


def check_every_right():
    """Root and an ordinary user, with and without either capability, under ptrace_scope 0 to 2: own and other processes."""
    scope_file = '/proc/sys/kernel/yama/ptrace_scope'
    before = read(scope_file) if Path(scope_file).exists() else None
    looks = 0
    try:
        for scope in (0, 1, 2) if before is not None else (0,):
            if before is not None:
                write(scope_file, scope)
            for user in (None, ORDINARY):
                own, other = (subject('fragmented', 6000, 200, 500, user=of) for of in (user, 1001))
                for missing in SHORT:
                    as_it_must(user, missing, scope, own, True)
                    as_it_must(user, missing, scope, other, False)
                    looks += 2
    finally:
        if before is not None:
            write(scope_file, before)
    return f'{looks} looks'


def check_hidden_processes():
    """hidepid=2: an ordinary user sees its own processes only, and the whole works on them."""
    one = subject('fragmented', 6000, 200, 500, user=ORDINARY)
    other = subject('fragmented', 6000, 200, 500)
    run = command(['mount', '-o', 'remount,hidepid=2', '/proc'])
    if run.status:
        raise Skipped(f'hidepid: {run.err.strip()}')
    try:
        agrees(explain(one.pid, user=ORDINARY), one.pid)
        refused = strandline('explain', '--json', other.pid, user=ORDINARY)
        equal(refused.status, 3, 'status for a hidden process')
    finally:
        command(['mount', '-o', 'remount,hidepid=0', '/proc'])
    return refused.err.strip()
