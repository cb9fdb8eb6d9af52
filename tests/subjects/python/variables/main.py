"""Fills variables of modules, leaks blocks of malloc, prints the bytes of each variable, and reads a byte.

    python main.py BLOCKS

BLOCKS is the number of leaked blocks, of 5000 bytes each.
"""
import ctypes
import json
import os
import sys
import threading
import time

import app

sessions = [app.Session(number) for number in range(1500)]
callback = sessions[0].look
other = app.shared


def of_dict(one):
    return sys.getsizeof(one) + sum(sys.getsizeof(value) + 32 for value in one.values())


KEPT = 20
kept = (ctypes.c_void_p * KEPT)()


def lose(count):
    malloc = ctypes.CDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    for number in range(KEPT):
        kept[number] = malloc(ctypes.c_size_t(5000))
    malloc.restype = None
    for _ in range(count):
        malloc(ctypes.c_size_t(5000))


# A thread's arena has the blocks; it begins at a multiple of 64 MiB. A stale address whose lower
# bytes text has overwritten looks like a pointer into the arena's first 64 KiB, where the kept
# blocks are, or to any place in an arena whose addresses have 0 or a byte of text as their fourth
# byte (docs/accounting.md). Reserved address space above the arena gives it another fourth byte.
mmap = ctypes.CDLL(None).mmap
mmap.restype = ctypes.c_void_p
RESERVED, PRIVATE_ANONYMOUS = 0, 0x22


def reserve(size):
    return mmap(None, ctypes.c_size_t(size), RESERVED, PRIVATE_ANONYMOUS, -1, ctypes.c_long(0))


fourth = reserve(4096) >> 24 & 0xff
if not 0xa0 <= fourth:
    reserve(fourth + 0x20 << 24)
loser = threading.Thread(target=lose, args=[int(sys.argv[1])])
loser.start()
loser.join()
# join returns before the kernel has ended the thread, and until then its stack is a root.
while len(os.listdir('/proc/self/task')) > 1:
    time.sleep(0.001)
print(json.dumps({
    'app.cache': of_dict(app.cache),
    '__main__.sessions': len(sessions) * sys.getsizeof(sessions[0].body),
    'app.Session.history': sum(map(sys.getsizeof, app.Session.history)),
    'app.page': 1000 * sys.getsizeof(app.page(0)),
    'shared': of_dict(other),
}), flush=True)
sys.stdin.buffer.read(1)
