"""Grows by 64 MiB at a mark and gives it back at the next; status 7."""

import mmap
import os
import signal
import sys
import threading

import strandline

# Many scripts do this. A mark to a closed socket must not end them by SIGPIPE.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def loop(count):
    for _ in range(count):
        strandline.mark("quiet")


def raising(*_):
    raise TimeoutError


def interrupted():
    """A signal handler raises an exception at any point of a mark; no later mark may hang."""
    signal.signal(signal.SIGALRM, raising)
    for turn in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0003 + turn * 1e-6)
            loop(100)
        except TimeoutError:
            pass
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeoutError:
            pass


def crowd(count):
    threads = [threading.Thread(target=loop, args=(count,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if child == 0:
        loop(count)
        os._exit(3)
    for thread in threads:
        thread.join()
    ended = os.waitpid(child, 0)[1] >> 8
    interrupted()
    strandline.mark("after")
    sys.exit(7 if ended == 3 else 1)


task, argument = (sys.argv[1:3] + ["", ""])[:2]
if task == "crowd":
    crowd(int(argument))
if task == "loop":
    loop(100)
    strandline.mark("before")
    loop(int(argument))
    strandline.mark("after")
    sys.exit(7)
strandline.mark("start")
if task == "reuse":
    os.dup2(os.open(argument, os.O_RDWR | os.O_CREAT), int(os.environ["STRANDLINE_MARK_FD"]))
memory = mmap.mmap(-1, 64 << 20)
memory.write(b"\1" * (64 << 20))
strandline.mark("grown")
memory.close()
strandline.mark("freed")
strandline.mark("two\nlines\x01")
strandline.mark("n" * 300)
print("done")
sys.exit(7)
