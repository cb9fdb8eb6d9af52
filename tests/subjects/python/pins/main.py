"""Fills arenas, keeps one object in 6,000 of one list and all objects of another, and reads a byte."""
import sys


class Slotted:
    __slots__ = ('value',)


full = [Slotted() for _ in range(100_000)]
kept = []


def fill():
    freed = []
    for number in range(400_000):
        (freed if number % 6_000 else kept).append(Slotted())


fill()
print('{}', flush=True)
sys.stdin.buffer.read(1)
