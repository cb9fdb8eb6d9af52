"""Holds malloc's blocks by addresses in ints, as ctypes returns them, loses the number of blocks in the argument, and
reads a byte."""
import ctypes
import json
import sys

malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
malloc.argtypes = [ctypes.c_size_t]

held = [malloc(10000) for _ in range(500)]
for _ in range(int(sys.argv[1])):
    malloc(5000)
print(json.dumps({'held': len(held)}), flush=True)
sys.stdin.buffer.read(1)
