"""Variables of a module: a cache, a dictionary that another module names too, and functions."""
import functools
import weakref

cache = {number: bytes(1000) for number in range(20000)}
shared = {number: bytes(1000) for number in range(5000)}


class Session:
    history = [bytes(1000) for _ in range(2000)]
    living = weakref.WeakSet()

    def __init__(self, number):
        self.number = number
        self.body = bytes(8000)
        Session.living.add(self)

    def look(self):
        return cache.get(self.number)


@functools.lru_cache(maxsize=None)
def page(number):
    return bytes(4000)


def look(number):
    return cache.get(number)


callbacks = {'look': look, 'other': lambda number: shared.get(number)}
for number in range(1000):
    page(number)
