"""A 32-bit target."""

from lab import Skipped, agrees, equal, expect, explain, is_free, killed_at_random, strandline, subject


def target():
    try:
        return subject('bits32')
    except OSError as error:
        raise Skipped(f'this kernel runs no 32-bit programs: {error}') from error


def check_ledger():
    one = target()
    document = explain(one.pid)
    agrees(document, one.pid)
    expect(document['kernel']['anonymous_bytes'] >= one.ready['written_bytes'], f'{document["kernel"]["anonymous_bytes"]} anonymous')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')


def check_nothing_is_called_in_it():
    one = target()
    for words in (['reclaim', '--json', '--remedy', 'malloc_trim'], ['explain', '--json', '--snapshot=always'],
                  ['reclaim', '--json', '--remedy', 'zero_pages', '--allow-lost-write-risk']):
        run = strandline(*words, one.pid)
        expect(run.status == 3 or run.document().get('outcome') in ('refused', 'nothing_to_give_back'), f'{words}: status {run.status}')
    explain(one.pid, '--snapshot=try')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')


def check_killed():
    one = target()
    killed = killed_at_random(['explain', one.pid], one.pid, 20, 0.6, 11, stop=0.002).at_least(10, 3)
    is_free(one.pid)
    equal(one.finish(), 0, f'its status after {killed}')
    return str(killed)


def check_recording():
    run = strandline('run', '-o', '/tmp/recording', '--ledger', 'exit', '--', '/kernels/subjects/bits32', data=b'')
    equal(run.status, 0, f'status ({run.err[-200:]})')
    told = strandline('report', '/tmp/recording', '--format', 'json').done().document()
    expect(told['samples']['rss_bytes'], 'no samples')
    return [caveat['code'] for caveat in told['caveats']]
