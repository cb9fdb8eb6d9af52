"""strandline killed at random instants, of a process that notices if anything is done to it."""
import os
import random
import signal
import subprocess
import time

from lab import Failed, equal, expect, is_free, killed_at_random, subject

TURNS = 16
LONGEST = 2.5


def target():
    """Twelve threads in every kind of waiting call, each of which checks its own results."""
    return subject('chaos_target')


def watched(one, killed):
    lines = one.lines_to('ready')
    expect(len(lines) > 12, 'it did not start')
    count = killed().at_least(TURNS // 2, TURNS // 5)
    time.sleep(0.2)
    is_free(one.pid)
    status = one.finish()
    equal(status, 0, f'its status after {count}')
    return str(count)


def check_explain():
    one = target()
    return watched(one, lambda: killed_at_random(['explain', '--json', one.pid], one.pid, TURNS, LONGEST, 1))


def check_snapshot():
    one = target()
    return watched(one, lambda: killed_at_random(['explain', '--snapshot=always', one.pid], one.pid, TURNS, LONGEST, 2))


def check_reclaim():
    one = target()
    return watched(one, lambda: killed_at_random(['reclaim', '--remedy', 'malloc_trim', one.pid], one.pid, TURNS, LONGEST, 3))


def check_malloc_loops():
    """Four threads in malloc all the time: whoever is stopped may hold a lock."""
    one = subject('reclaim_target', 'loop', 4)
    one.lines_to('ready')
    killed = killed_at_random(['reclaim', '--remedy', 'malloc_trim', one.pid], one.pid, TURNS, LONGEST, 4)
    time.sleep(0.2)
    is_free(one.pid)
    one.process.send_signal(signal.SIGTERM)
    equal(one.process.wait(30), 0, f'its status after {killed}')
    return str(killed.at_least(TURNS // 2, TURNS // 5))


def check_run():
    """The command goes on by itself, and ends as it would have."""
    chance, killed = random.Random(5), 0
    for turn in range(TURNS):
        at = f'/tmp/survived.{turn}'
        words = ['strandline', 'run', '-o', f'/tmp/recording.{turn}', '--ledger', 'every=200ms,exit', '--', '/bin/sh', '-c',
                 f'echo > {at}.began; for i in 1 2 3 4 5; do sleep 0.3; done; echo right > {at}']
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Before the command has begun there is nobody to go on.
        while not os.path.exists(f'{at}.began') and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.random())
        if process.poll() is None:
            killed += 1
        process.kill()
        process.wait()
    expect(killed >= TURNS // 2, f'only {killed} kills came before the end')
    deadline = time.monotonic() + 20
    for turn in range(TURNS):
        while not os.path.exists(f'/tmp/survived.{turn}'):
            if time.monotonic() > deadline:
                raise Failed(f'the command of turn {turn} did not go on')
            time.sleep(0.1)
    return f'{killed} kills'
