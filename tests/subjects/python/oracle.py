"""Makes objects, prints CPython's own figures of them, and waits.

    python oracle.py CASE COUNT SEED LIBRARY FIGURES

CASE is mixed (objects of many kinds and sizes, some freed again), sparse (arenas each kept by one
object in thousands), threads (objects of threads that have ended) or interpreters (subinterpreters).
LIBRARY is figures.c, compiled: it writes the output of sys._debugmallocstats to the file FIGURES,
prints the line with the figures of types, and reads a byte. No object is made or freed between these.
"""
import collections
import ctypes
import gc
import json
import random
import sys
import threading


class Plain:
    def __init__(self, number):
        self.number = number
        self.text = 'secret%d' % number


class Slotted:
    __slots__ = ('number', 'other')

    def __init__(self, number):
        self.number = number
        self.other = None


class Item(dict):
    pass


class Chars(str):
    pass


class Queued(bytes):
    pass


class Local(bytes):
    pass


class Outer:
    class Inner:
        pass


def mixed(count, turn):
    """Makes objects of many kinds and sizes, and frees a part of most kinds."""
    some = max(count // 50, 1)
    sizes = [0, 1, 5, 100, 450, 700, 5000, 200000]
    keep = [
        [Plain(number) for number in range(count)],
        [Slotted(number) for number in range(count)],
        [Item(number=number) for number in range(count // 4)],
        [Chars('c%d' % number) for number in range(count // 4)],
        [Outer.Inner() for number in range(count // 4)],
        [bytearray(turn.choice(sizes)) for _ in range(some)],
        ['s' * turn.choice(sizes) + str(number) for number in range(some)],
        ['\xe4\u20ac'[number % 2] * turn.choice(sizes) for number in range(some)],
        [bytes(turn.choice(sizes)) for _ in range(some)],
        [list(range(turn.randrange(400))) for _ in range(some)],
        [tuple(range(turn.randrange(200))) for _ in range(some)],
        [set(range(turn.randrange(100))) for _ in range(some)],
        [{'k%d' % key: key for key in range(turn.randrange(60))} for _ in range(some)],
        [10 ** turn.randrange(200) for _ in range(some)],
        [number / 3 for number in range(count)],
        {number: float(number) for number in range(count)},
        collections.deque(range(count)),
        collections.deque(Queued(turn.choice([1000, 100000])) for _ in range(some)),
    ]
    every = turn.choice([2, 3, 10, 100])
    for several in keep:
        if isinstance(several, list):
            del several[::every]
    return keep


def sparse(count, turn):
    """Keeps one object in 6,000; an arena has room for 6,000 or for a quarter of them."""
    keep, dropped = [], []
    for number in range(count):
        (keep if number % 6000 == 0 else dropped).append(Slotted(None))
    return [keep]


def threads(count, turn):
    """Objects of threads that have ended; without the global lock each thread had its own heaps."""
    keep = []
    seeds = [turn.random() for _ in range(5)]
    all_of_them = [threading.Thread(target=lambda seed: keep.append(mixed(count, random.Random(seed))), args=(seed,))
                   for seed in seeds]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    made = {}
    for several in (several for some in keep for several in some if type(several) is list and several):
        made.setdefault(type(several[0]), []).extend(several)
    return [several for of, several in made.items() if of in (Plain, Slotted, Item, Chars, Outer.Inner)] + [keep]


def interpreters(count, turn):
    """Two subinterpreters with objects of their own beside those of `mixed`."""
    keep = mixed(count, turn)
    source = 'keep = [[number, str(number)] for number in range(%d)]' % count
    try:
        import _interpreters as other
        keep.append([other.create('isolated') for _ in range(2)])
        for one in keep[-1]:
            other.exec(one, source)
    except ImportError:
        import _xxsubinterpreters as other
        keep.append([other.create() for _ in range(2)])
        for one in keep[-1]:
            other.run_string(one, source)
    return keep


def count_and_bytes(several):
    return [len(several), sum(sys.getsizeof(one) for one in several)]


def main():
    case, count, seed, library, figures = sys.argv[1:]
    gc.set_threshold(600 + int(seed), 9, 11)
    keep = globals()[case](int(count), random.Random(int(seed)))
    gc.collect()
    if int(seed) % 2:
        gc.disable()
    known = {}
    for several in keep:
        if type(several) is collections.deque and type(several[0]) is Queued:
            known['__main__.Queued'] = count_and_bytes(several)
        if type(several) is list and several and type(several[0]) in (Plain, Slotted, Item, Chars, Outer.Inner, bytearray):
            known['bytearray' if type(several[0]) is bytearray else '__main__.' + type(several[0]).__qualname__] = count_and_bytes(several)
    # Only this frame refers to it.
    local = Local(300000)
    known['__main__.Local'] = count_and_bytes([local])
    collector = {'enabled': gc.isenabled(), 'thresholds': gc.get_threshold(), 'collections': [one['collections'] for one in gc.get_stats()],
                 'collected': [one['collected'] for one in gc.get_stats()]}
    line = json.dumps({'version': list(sys.version_info[:3]), 'types': known, 'collector': collector}) + '\n'
    call = ctypes.PyDLL(library).figures_and_wait
    known = several = None
    call(figures.encode(), line.encode())


main()
