#!/usr/bin/env python3
"""The rule by which glibc's malloc gives a freed block back to the system, or keeps it, written down and tried.

    rule.py check STEPS_PROGRAM ORDERS   random orders of takes and frees, predicted and then done
    rule.py cutoff CUTOFF_PROGRAM BYTES  the cut-off after a block of so many bytes was freed: found, and predicted
    rule.py orders                       in which orders of the seven sizes the article's figures can have come about

The rule (main arena, one thread, requests of 1,100 bytes to 48 MB; names as in glibc's malloc/malloc.c):

1. A request becomes a chunk: request + 8, rounded up to 16.
2. It is looked for among free chunks (an exact fit first, else the smallest that suffices), then cut from the top.
3. If there is no room: a chunk of mmap_threshold or more gets a mapping of its own (sysmalloc_mmap); else the heap
   grows by what is missing, plus top_pad, plus 32, rounded up to pages (sysmalloc).
4. A freed chunk with its own mapping is unmapped: virtual and physical memory fall at once. If it was larger than
   mmap_threshold, and less than 32 MiB, mmap_threshold becomes its size and trim_threshold twice that (free). Its
   size is that of the mapping, in glibc 2.43 less the 16 bytes of its header (mmap_set_chunk). Nothing moves once one of the
   thresholds was set from outside (no_dyn_threshold).
5. Another freed chunk merges with its free neighbours and the top. If what came of that has 64 KiB or more
   (FASTBIN_CONSOLIDATION_THRESHOLD) and the top has trim_threshold or more, the heap is cut back so that top_pad + 33
   bytes, rounded up to pages, stay on top (systrim): virtual memory falls by that, physical memory by the pages in it
   that had been touched.

So the order decides: a block of 200 kB is unmapped when it is freed in a fresh process, and stays when one of 20 MB
was freed before. `check` predicts the exact change of virtual and of anonymous resident memory at each step. Sizes are
in bytes. Prints one JSON object.
"""

import json
import os
import random
import subprocess
import sys
from itertools import permutations

PAGE = 4096
SMALLEST_CHUNK = 32  # MINSIZE
LARGE_CHUNK = 1024  # MIN_LARGE_SIZE: from here on free chunks have two more pointers
THRESHOLD_MOST = 32 << 20  # DEFAULT_MMAP_THRESHOLD_MAX
CONSOLIDATES = 64 << 10  # FASTBIN_CONSOLIDATION_THRESHOLD


def up(number, unit):
    """`number` rounded up to a multiple of `unit`."""
    return -(-number // unit) * unit


def chunk_bytes(request):
    """The size of the chunk that a request becomes."""
    return max(SMALLEST_CHUNK, up(request + 8, 16))


class Thresholds:
    """What decides, with the values that glibc starts with and those that the environment sets."""

    TUNABLES = ("mmap_threshold", "trim_threshold", "top_pad")

    def __init__(self, environment, glibc=(2, 36)):
        self.mmap_threshold = 128 << 10
        self.trim_threshold = 128 << 10
        self.top_pad = 128 << 10
        self.moves = True
        self.header = 16 if glibc >= (2, 43) else 0
        for setting in environment.get("GLIBC_TUNABLES", "").split(":"):
            name, _, value = setting.partition("=")
            self.set(name.removeprefix("glibc.malloc."), value)
        for name in self.TUNABLES:
            self.set(name, environment.get(f"MALLOC_{name.upper()}_", ""))
        for setting in environment.get("FREED_MALLOPT", "").split(","):
            name, _, value = setting.partition("=")
            self.set(name, value)

    def set(self, name, value):
        """Sets one, which also keeps all from moving."""
        if name in self.TUNABLES and value:
            setattr(self, name, int(value))
            self.moves = False

    def mapping_freed(self, mapping):
        """A chunk with a mapping of its own was freed."""
        size = mapping - self.header
        flagged = size | 2  # compared with the flag IS_MMAPPED in it (chunksize_nomask), so just 32 MiB is too much
        if self.moves and self.mmap_threshold < flagged <= THRESHOLD_MOST:
            self.mmap_threshold = size
            self.trim_threshold = 2 * size


class Heap:
    """The main arena from the first page of its top on. Addresses are distances from that page's start."""

    def __init__(self, thresholds, state):
        self.thresholds = thresholds
        self.top = state["top_offset_bytes"]
        self.end = self.top + state["top_bytes"]
        self.resident = bytearray(int(page) for page in state["top_pages"])
        self.resident[0] = 1
        self.unsorted = []  # [address, size] of free chunks, newest first
        self.sorted = []
        self.mapped_virtual = 0
        self.mapped_physical = 0
        self.live = {}

    def virtual(self):
        """Bytes of address space, from the top's first page on and in mappings."""
        return self.end + self.mapped_virtual

    def physical(self):
        """Of these, resident bytes."""
        return sum(self.resident) * PAGE + self.mapped_physical

    def touch(self, address, size):
        """Bytes are written to."""
        first, last = address // PAGE, (address + size - 1) // PAGE
        self.resident[first : last + 1] = b"\1" * (last + 1 - first)

    def move_end(self, change):
        """brk."""
        self.end += change
        pages = self.end // PAGE
        if change > 0:
            self.resident.extend(bytes(pages - len(self.resident)))
        else:
            del self.resident[pages:]

    def take(self, name, request):
        """malloc, and every byte written to."""
        size = chunk_bytes(request)
        address = self.fit(size)
        if address is None and self.end - self.top < size + SMALLEST_CHUNK:
            if size >= self.thresholds.mmap_threshold:
                mapping = up(size + 8, PAGE)
                touched = up(request + 16, PAGE)
                self.mapped_virtual += mapping
                self.mapped_physical += touched
                self.live[name] = ("mapping", mapping, touched)
                return
            missing = size + self.thresholds.top_pad + SMALLEST_CHUNK - (self.end - self.top)
            self.move_end(up(missing, PAGE))
        if address is None:
            address = self.top
            self.top += size
            self.touch(self.top + 8, 8)
        else:
            address, size = address
        self.touch(address + 8, 8 + request)
        self.live[name] = ("chunk", address, size)

    def fit(self, size):
        """A free chunk: [address, size], cut to size. None where none suffices."""
        while self.unsorted:
            chunk = self.unsorted.pop()
            if chunk[1] == size:
                return chunk
            self.sorted.append(chunk)
        enough = [chunk for chunk in self.sorted if chunk[1] >= size]
        if not enough:
            return None
        best = min(enough, key=lambda chunk: chunk[1])
        self.sorted.remove(best)
        address, rest = best[0], best[1] - size
        if rest < SMALLEST_CHUNK:
            return best
        self.keep(address + size, rest)
        return [address, size]

    def keep(self, address, size):
        """A free chunk: two pointers in front, two more in a large one, its size behind."""
        self.unsorted.insert(0, [address, size])
        self.touch(address + 8, 40 if size >= LARGE_CHUNK else 24)
        self.touch(address + size, 8)

    def give(self, name):
        """free."""
        kind, *what = self.live.pop(name)
        if kind == "mapping":
            mapping, touched = what
            self.mapped_virtual -= mapping
            self.mapped_physical -= touched
            self.thresholds.mapping_freed(mapping)
            return
        address, size = what
        for chunks in (self.unsorted, self.sorted):
            for chunk in list(chunks):
                if chunk[0] + chunk[1] == address:
                    address, size = chunk[0], size + chunk[1]
                    chunks.remove(chunk)
                elif address + size == chunk[0]:
                    size += chunk[1]
                    chunks.remove(chunk)
        if address + size == self.top:
            self.top = address
            size = self.end - self.top
        else:
            self.keep(address, size)
        if size >= CONSOLIDATES:
            self.trim()

    def trim(self):
        """systrim."""
        top_bytes = self.end - self.top
        if top_bytes >= self.thresholds.trim_threshold:
            spare = top_bytes - SMALLEST_CHUNK - 1 - self.thresholds.top_pad
            if spare > 0:
                self.move_end(-(spare // PAGE * PAGE))


def draw_order(seed, steps=40, most_live=8):
    """A random order: ("+", request) and ("-", number of the take)."""
    drawn = random.Random(seed)
    order, live, takes = [], [], 0
    while len(order) < steps or live:
        take = len(order) < steps and (not live or (len(live) < most_live and drawn.random() < 0.5))
        if take:
            order.append(("+", int(1100 * (48_000_000 / 1100) ** drawn.random())))
            live.append(takes)
            takes += 1
        else:
            order.append(("-", live.pop(drawn.randrange(len(live)))))
    return order


def thresholds_of(state):
    """Those of the process that tells its glibc and its top."""
    return Thresholds(os.environ, tuple(int(number) for number in state["glibc"].split(".")))


def measure(program, order):
    """What the real process says of that order."""
    text = " ".join(f"{sign}{number}" for sign, number in order)
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def compare(order, measured, counts):
    """Predicts an order step by step and counts what is right. Whether it all was."""
    heap = Heap(thresholds_of(measured), measured)
    was_virtual, was_physical = heap.virtual(), heap.physical()
    all_right = True
    for index, (sign, number) in enumerate(order):
        if sign == "+":
            heap.take(sum(1 for earlier in order[:index] if earlier[0] == "+"), number)
        else:
            heap.give(number)
        (old_virtual, old_physical), (new_virtual, new_physical) = measured["steps"][index : index + 2]
        virtual, physical = heap.virtual() - was_virtual, heap.physical() - was_physical
        was_virtual, was_physical = heap.virtual(), heap.physical()
        counts["steps"] += 1
        exact = (virtual, physical) == (new_virtual - old_virtual, new_physical - old_physical)
        counts["steps_exact"] += exact
        all_right = all_right and exact
        if sign == "-":
            request = [step[1] for step in order if step[0] == "+"][number]
            falls = new_physical < old_physical
            counts["frees"] += 1
            counts["frees_that_fall"] += falls
            counts["frees_right"] += (physical < 0) == falls
            counts["size_alone_right"] += (request > 204800) == falls
    return all_right


def check(program, orders):
    """Predicts and does that many orders, the first of seed 1."""
    names = ("steps", "steps_exact", "frees", "frees_that_fall", "frees_right", "size_alone_right", "orders_exact")
    counts = dict.fromkeys(names, 0)
    first_wrong = 0
    for seed in range(1, orders + 1):
        order = draw_order(seed)
        exact = compare(order, measure(program, order), counts)
        counts["orders_exact"] += exact
        first_wrong = first_wrong or (0 if exact else seed)
    counts.update(orders=orders, first_seed=1, first_wrong_seed=first_wrong)
    counts["size_alone_share"] = counts["size_alone_right"] / counts["frees"]
    return counts


# What the article's program printed for glibc, in KiB, for each size (KiB): virtual memory before and after, physical
# memory before and after, and virtual memory given back. The physical figure before the first block is one that the
# program printed without having set it.
PUBLISHED = {
    2: (13232, 13236, None, 1476, 0),
    20: (13236, 13236, 1476, 1492, 0),
    200: (13236, 13436, 1492, 1672, 0),
    2048: (13236, 13236, 1492, 1492, 2052),
    20480: (13236, 13236, 1492, 1492, 20484),
    204800: (13236, 13236, 1492, 1492, 204804),
    2097152: (13236, 13236, 1476, 1476, 2097156),
}
# In the order in which the article shows them.
AS_SHOWN = (2, 20, 200, 2097152, 20480, 204800, 2048)
# The order of the study's runs that are called `published`.
AS_RUN = (2, 2097152, 20, 2048, 20480, 204800, 200)


def connects(order):
    """Whether in that order each block begins with the figures that the one before it ended with."""
    found = [PUBLISHED[kib] for kib in order]
    return all(
        then[0] == now[1] and then[2] in (None, now[3]) for now, then in zip(found, found[1:])
    ) and found[0][2] is None


def gives_back(order):
    """What each block gives back by the rule, in that order (KiB), one block at a time, in a process of 2013.

    Its top is 128 KiB and some: the article's block of 200 kB made the heap grow by 200 KiB."""
    heap = Heap(Thresholds({}), {"top_offset_bytes": 0, "top_bytes": 128 << 10, "top_pages": "0" * 32})
    back = {}
    for kib in order:
        heap.take(kib, kib << 10)
        during = heap.virtual()
        heap.give(kib)
        back[kib] = (during - heap.virtual()) >> 10
    return back


def orders():
    """Counts the orders of the seven sizes that the article's figures and the rule allow."""
    published = {kib: figures[4] for kib, figures in PUBLISHED.items()}
    every = list(permutations(PUBLISHED))
    by_rule = {order for order in every if gives_back(order) == published}
    by_figures = {order for order in every if connects(order)}
    return {
        "orders_tried": len(every),
        "orders_by_rule": len(by_rule),
        "orders_by_figures": len(by_figures),
        "orders_by_both": len(by_rule & by_figures),
        "ascending_by_rule": tuple(sorted(PUBLISHED)) in by_rule,
        "as_shown_by_rule": AS_SHOWN in by_rule,
        "as_run_by_both": AS_RUN in by_rule & by_figures,
    }


def cutoff(program, before):
    """What cutoff.cpp finds in the real process for blocks after one of `before` bytes, and what the rule says."""
    words = [program, "malloc", str(before)]
    found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    start = json.loads(subprocess.run([*words[:2], "0", "top"], capture_output=True, text=True, check=True).stdout)
    stays, goes = 1100, 64 << 20
    while goes - stays > 1:
        middle = (stays + goes) // 2
        if falls_by_half(start, before, middle):
            goes = middle
        else:
            stays = middle
    found["predicted_physical_bytes"] = goes
    return found


def falls_by_half(start, before, request):
    """Whether by the rule at least half of a block leaves physical memory when it is freed."""
    heap = Heap(thresholds_of(start), start)
    if before:
        heap.take("before", before)
        heap.give("before")
    heap.take("block", request)
    during = heap.physical()
    heap.give("block")
    return during - heap.physical() >= (request + 1) // 2


def main(words):
    """The command line."""
    if words[:1] == ["check"] and len(words) == 3:
        found = check(words[1], int(words[2]))
    elif words[:1] == ["cutoff"] and len(words) == 3:
        found = cutoff(words[1], int(words[2]))
    elif words == ["orders"]:
        found = orders()
    else:
        sys.exit(__doc__)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
