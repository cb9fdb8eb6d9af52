#!/usr/bin/env python3
"""A script whose memory stays high after it dropped its data: a subject for `strandline try`.

It reads documents of 200 to 900 KB (made up here, without any input), keeps a short summary of each, and drops
the documents batch by batch. glibc takes the first such blocks by mmap; when one is freed, its dynamic threshold
rises above their size, and all later ones come from the heap, which keeps what is freed there. Any setting of that
threshold switches the rising off; each document then costs its page faults anew.

    strandline try -- python3 examples/churn.py
    strandline try -- python3 examples/churn.py 12        # more batches
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "probes", "python"))
try:
    from strandline import mark
except ImportError:
    # A mark only says where memory is looked at; alone, the end of the process is.
    def mark(_name):
        """Does nothing."""


def resident_mib():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4096 / (1 << 20)


def documents(count, seed):
    """`count` documents of sizes that repeat in the same order at every run."""
    for number in range(count):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        size = 200_000 + seed % 700_000
        yield (b"%08d " % number) * (size // 9)


def summary(document):
    """A few hundred bytes about a document: too long for Python's own pools, so that malloc has it."""
    return document[:700] + b"%d" % len(document)


def main():
    batches = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    kept = []
    for batch in range(batches):
        held = []
        for document in documents(160, batch + 1):
            held.append(document)
            kept.append(summary(document))
        held.clear()
    # What Python frees from here on, it frees only to end.
    mark("dropped")
    print(f"{len(kept)} summaries kept, {sum(map(len, kept)) >> 10} KiB; resident {resident_mib():.0f} MiB")


if __name__ == "__main__":
    main()
