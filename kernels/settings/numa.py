"""Four NUMA nodes (of qemu), and pages that move between them."""
import ctypes
import os
import threading
import time

from lab import (Skipped, agrees, equal, expect, explain, gives_what_it_predicts, is_free, killed_at_random, knows_heap, libc, reclaim,
                 subject)

NODES = 4
MEMORY = ['-m', '2048'] + [word for node in range(NODES) for word in (
    '-object', f'memory-backend-ram,id=m{node},size=512M', '-numa',
    f'node,nodeid={node},memdev=m{node}' + (f',cpus={node}' if node < 2 else ''))]


def prepare():
    nodes = len([name for name in os.listdir('/sys/devices/system/node') if name.startswith('node')])
    if nodes != NODES:
        raise Skipped(f'{nodes} nodes')


def migrate(pid, old, new):
    """Moves a process's pages from one node to another; how many could not be moved."""
    masks = [ctypes.c_ulong(1 << node) for node in (old, new)]
    moved = libc.syscall(256, pid, ctypes.c_ulong(65), ctypes.byref(masks[0]), ctypes.byref(masks[1]))
    if moved < 0:
        raise Skipped(f'migrate_pages: errno {ctypes.get_errno()}')
    return moved


class Moving:
    """Pages of a process on their way from node to node, all the time."""

    def __init__(self, pid):
        self.pid, self.turns, self.is_over = pid, 0, False
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.is_over:
            for node in range(NODES):
                try:
                    migrate(self.pid, node, (node + 1) % NODES)
                except Skipped:
                    return
            self.turns += 1
            time.sleep(0.01)

    def __enter__(self):
        migrate(self.pid, 0, 1)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()


def check_ledger_while_pages_move():
    """A page on its way has no place: it is counted all the same, and the sums hold."""
    one = subject('regions', 'plain', 24)
    with Moving(one.pid) as moving:
        for snapshot in ('never', 'try', 'never', 'try'):
            explain(one.pid, f'--snapshot={snapshot}')
    expect(moving.turns > 0, 'nothing was moved')
    agrees(explain(one.pid), one.pid)
    equal(one.ask('c')['wrong'], 0, 'bytes that changed')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status')
    return f'{moving.turns} times around'


def check_heap_while_pages_move():
    heap = subject('fragmented', 60000, 200, 500)
    with Moving(heap.pid) as moving:
        for _ in range(3):
            knows_heap(explain(heap.pid, '--snapshot=never'), heap)
        done = reclaim(heap.pid, 'malloc_trim')
    equal(done['outcome'], 'done', 'outcome')
    difference = abs(done['actual_bytes'] - done['predicted_bytes'])
    equal(difference, 0, f'bytes between predicted {done["predicted_bytes"]} and actual {done["actual_bytes"]}')
    equal(heap.ask('i')['mallinfo']['uordblks'], heap.ready['mallinfo']['uordblks'], 'bytes in use afterwards')
    equal(heap.finish(), 0, 'its status')
    return f'{moving.turns} times around'


def check_writers_while_pages_move():
    one = subject('regions', 'write', 24)
    with Moving(one.pid):
        explain(one.pid)
        killed = killed_at_random(['explain', '--snapshot=always', one.pid], one.pid, 8, 1.5, 9).at_least(4, 2)
    is_free(one.pid)
    equal(one.ask('c')['wrong'], 0, 'words that changed')
    equal(one.finish(), 0, 'its status')
    return str(killed)


def check_zero_pages_while_pages_move():
    one = subject('reclaim_target', 'zero', 16)
    one.lines_to('ready')
    with Moving(one.pid):
        reclaim(one.pid, 'zero_pages', '--allow-lost-write-risk')
    is_free(one.pid)
    equal(one.finish(), 0, 'its status: a write was lost')


def check_trim_at_rest():
    heap = subject('fragmented', 60000, 200, 500)
    gives_what_it_predicts(heap.pid, 'malloc_trim')
    equal(heap.finish(), 0, 'its status')
