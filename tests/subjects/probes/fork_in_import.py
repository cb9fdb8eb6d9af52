"""Forks while another thread makes the first mark and, if that imports, while it imports.

Marks in the child too. Exits with 7 if the child made its mark and ended, with 1 otherwise."""
import importlib.machinery
import os
import signal
import sys
import threading


class SlowFinder:
    """Loads what a mark needs only after the fork."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in ("_socket", "fcntl", "select"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def exec_module(module):
            if threading.current_thread() is not threading.main_thread():
                importing.set()
                forked.wait()
            load(module)

        spec.loader.exec_module = exec_module
        return spec


importing, forked = threading.Event(), threading.Event()
sys.meta_path.insert(0, SlowFinder())
import strandline


def first_mark():
    strandline.mark("first")
    importing.set()


thread = threading.Thread(target=first_mark)
thread.start()
importing.wait()
child = os.fork()
if child == 0:
    # A child that waits for the thread, which it does not have, is ended.
    signal.alarm(60)
    strandline.mark("child")
    os._exit(3)
forked.set()
thread.join()
ended = os.waitpid(child, 0)[1]
strandline.mark("after")
sys.exit(7 if ended == 3 << 8 else 1)
