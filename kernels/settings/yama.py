"""Yama's ptrace_scope 1, 2 and 3, as an ordinary user, as owner, with CAP_SYS_PTRACE only."""
import json

from lab import (ORDINARY, SUBJECTS, agrees, command, equal, expect, explain, explain_heap, gives_what_it_predicts, is_free, reclaim,
                 strandline, subject, write)

SYS_PTRACE = 19
# /proc/PID/mem and pagemap are their user's: who may trace everybody may not open them yet.
DAC_READ_SEARCH = 2
BOTH = (SYS_PTRACE, DAC_READ_SEARCH)


def scope(number):
    write('/proc/sys/kernel/yama/ptrace_scope', number)


def refused(pid, *words, **how):
    run = strandline('explain', '--json', *words, pid, **how)
    equal(run.status, 3, f'status ({run.err[:200]})')
    expect(str(pid) in run.err and 'ptrace_scope' in run.err, f'the line names neither process nor setting: {run.err}')
    equal(len(run.err.strip().splitlines()), 1, 'lines of the error')
    return run.err.strip()


def doctor(status, **how):
    checks = {check['id']: check for check in strandline('doctor', '--json', **how).document()['checks']}
    equal(checks['ptrace_scope']['status'], status, f'doctor: {checks["ptrace_scope"]}')


def recorded(user, takes):
    """`run`: the command is a descendant. Whether it has a ledger at its exit, and the samples anyway."""
    run = strandline('run', '-o', '/tmp/recorded', '--ledger', 'exit', '--', SUBJECTS / 'fragmented', 6000, 200, 500, user=user, data=b'')
    equal(run.status, 0, f'status ({run.err[-200:]})')
    told = json.loads(strandline('report', '/tmp/recorded', '--format', 'json').done().out)
    command(['rm', '-f', '/tmp/recorded'])
    equal(bool(told['ledgers']), takes, f'ledgers; caveats {[caveat["code"] for caveat in told["caveats"]]}')
    expect(told['samples']['rss_bytes'], 'no samples')
    return [caveat['code'] for caveat in told['caveats']]


def check_scope_0_owner():
    scope(0)
    one = subject('fragmented', 6000, 200, 500, user=ORDINARY)
    agrees(explain(one.pid, user=ORDINARY), one.pid)
    other = strandline('explain', '--json', one.pid, user=1001)
    equal(other.status, 3, 'status for another user')
    return other.err.strip()


def check_scope_1_owner():
    """Its own process, and no descendant: refused. What it starts itself is recorded with ledgers."""
    scope(1)
    one = subject('fragmented', 6000, 200, 500, user=ORDINARY)
    line = refused(one.pid, user=ORDINARY)
    doctor('limited', user=ORDINARY)
    recorded(ORDINARY, True)
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return line


def check_scope_1_with_the_capability():
    """CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH only: explain, a snapshot and reclaim of another user's process."""
    scope(1)
    one = subject('fragmented', 60000, 200, 500, user=1001)
    how = {'user': ORDINARY, 'capabilities': BOTH}
    explain_heap(one, '--snapshot=never', **how)
    explain(one.pid, '--snapshot=try', **how)
    done = reclaim(one.pid, 'malloc_trim', **how)
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')


def check_scope_1_with_one_capability():
    """CAP_SYS_PTRACE alone: enough for the user's own processes; for another's the second one is named."""
    scope(1)
    how = {'user': ORDINARY, 'capabilities': (SYS_PTRACE,)}
    one = subject('fragmented', 6000, 200, 500, user=ORDINARY)
    agrees(explain(one.pid, **how), one.pid)
    done = reclaim(one.pid, 'malloc_trim', **how)
    equal(done['outcome'], 'done', 'outcome')
    other = subject('fragmented', 6000, 200, 500, user=1001)
    run = strandline('explain', '--json', other.pid, **how)
    equal(run.status, 3, 'status')
    expect('cap_dac_read_search' in run.err, f'says: {run.err}')
    checks = {check['id']: check for check in strandline('doctor', '--json', **how).document()['checks']}
    equal(checks['capabilities']['status'], 'limited', 'doctor: capabilities')


def check_scope_1_root():
    scope(1)
    one = subject('fragmented', 60000, 200, 500, user=ORDINARY)
    gives_what_it_predicts(one.pid, 'malloc_trim')
    doctor('ok')


def check_scope_2_owner():
    """Only who has CAP_SYS_PTRACE: `run` has samples and no ledgers, and says so."""
    scope(2)
    one = subject('fragmented', 6000, 200, 500, user=ORDINARY)
    line = refused(one.pid, user=ORDINARY)
    codes = recorded(ORDINARY, False)
    expect(codes, 'no caveat tells that there is no ledger')
    equal(one.finish(), 0, 'its status')
    return f'{line}; {codes}'


def check_scope_2_with_the_capability():
    scope(2)
    one = subject('fragmented', 60000, 200, 500, user=1001)
    how = {'user': ORDINARY, 'capabilities': BOTH}
    agrees(explain(one.pid, **how), one.pid)
    done = reclaim(one.pid, 'malloc_trim', **how)
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')


def check_scope_3_nobody():
    """Not even root, until the machine is started again; samples are taken all the same."""
    scope(3)
    one = subject('fragmented', 6000, 200, 500)
    line = refused(one.pid)
    run = strandline('reclaim', '--json', '--remedy', 'malloc_trim', one.pid)
    equal(run.status, 3, 'status of reclaim')
    doctor('missing')
    codes = recorded(None, False)
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'{line}; {codes}'
