"""Fills a dict, deletes half of it, and makes the runtime give back what it will: collects, and calls malloc_trim.

    python half.py COUNT BYTES WHICH        WHICH: alternate or oldest
"""
import ctypes
import gc
import sys

import strandline


def main():
    count, size, which = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    trim = ctypes.CDLL(None).malloc_trim
    kept = {}
    strandline.mark("start")
    for number in range(count):
        kept[number] = bytes(size)
    strandline.mark("filled")
    doomed = range(0, count, 2) if which == "alternate" else range(count // 2)
    for number in doomed:
        del kept[number]
    strandline.mark("halved")
    gc.collect()
    trim(0)
    strandline.mark("remedied")
    print('{"left": %d}' % len(kept))


main()
