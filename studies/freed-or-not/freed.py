# Fills 64 MB with malloc'd blocks of a size, frees all but the last, and tells RSS before and after.
import ctypes
import json
import os
import sys

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def rss():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")


size = int(sys.argv[1])
blocks = (ctypes.c_void_p * (64_000_000 // size))()
for i in range(len(blocks)):
    blocks[i] = libc.malloc(size)
    libc.memset(blocks[i], 1, size)
full = rss()
for i in range(len(blocks) - 1):
    libc.free(blocks[i])
print(json.dumps({"full_bytes": full, "freed_bytes": rss()}))
