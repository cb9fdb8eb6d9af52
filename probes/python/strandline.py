"""strandline: names an instant of a Python program for `strandline run`.

    import strandline                  # PYTHONPATH=probes/python, or copy this file
    strandline.mark("cache filled")
    strandline run -o cache.strandline -- python3 program.py

Without strandline (no STRANDLINE_MARK_FD in the environment) a mark is a call that returns at once. With
it, the module imports `_socket`, `fcntl` and `select`; a mark is a handful of system calls plus the time that
strandline takes for its sample, and what it allocates is freed when it returns. Figures: docs/probes.md.

CPython 3.6 or later, Linux, no dependencies. Threads take turns, and so do processes of one tree; the GIL
is not held while a mark waits. It works in the child of os.fork, and where an exception of a signal handler
ends it early; the mark of a handler that interrupts a mark is left out. subprocess closes descriptors in the
child: pass pass_fds=[int(os.environ["STRANDLINE_MARK_FD"])] where the child is to mark too.
"""

import _thread
import os

_socket = None
try:
    if "STRANDLINE_MARK_FD" in os.environ:
        # Not at the first mark: the child of a fork during another thread's import would wait for that thread
        # for ever (CPython's locks of modules).
        import atexit
        import fcntl
        import select
        import _socket
except ImportError:
    pass

__all__ = ["mark"]

_NAME_BYTES = 200
# str.translate and bytes.translate: control characters become spaces.
_SPACES = bytes(32 if byte < 32 or byte == 127 else byte for byte in range(256))


class _State:
    """What marks of this process share."""

    def __init__(self):
        self.looked = False
        self.on = True
        self.fd = -1
        self.file = None
        self.socket = None
        self.process = os.getpid()
        # Its owner is known: a signal handler that interrupts a mark of its thread cannot wait for it.
        self.lock = _thread.RLock()
        # Answers awaited: one that an exception (KeyboardInterrupt) left behind is read with the next.
        self.owed = 0


_state = _State()


def mark(name):
    """Names this instant; returns when strandline has taken its sample.

    Control characters of the name become spaces; it is cut to 200 bytes. Does nothing where strandline is
    not there, or is no more.
    """
    state = _state
    if not state.on:
        return
    if state.process != os.getpid():
        # A fork's child finds the lock as it was, and owes nothing.
        state.process, state.lock, state.owed = os.getpid(), _thread.RLock(), 0
    if state.lock._is_owned():
        return
    with state.lock:
        try:
            if not state.looked:
                state.on = _look(state)
                # Last: a fork may find this half done, and its child then looks anew.
                state.looked = True
            if state.on:
                state.on = _is_ours(state) and _send(state, _line(name))
        except OSError as error:
            if not _is_own(error):
                raise
            state.on = False


def _is_own(error):
    """Whether an exception was raised by the calls made here, and not by the program's signal handler, which
    may run in any of them and raise what it likes (TimeoutError is an OSError)."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_globals is globals()


def _line(name):
    if not isinstance(name, bytes):
        name = str(name).encode("utf-8", "replace")
    return name[:_NAME_BYTES].translate(_SPACES) + b"\n"


def _look(state):
    """Whether there is a strandline to talk to: the number, above the standard descriptors, of a stream
    socket of the local kind."""
    value = os.environb.get(b"STRANDLINE_MARK_FD", b"")
    if _socket is None or not value.isdigit() or len(value) > 9 or int(value) < 3:
        return False
    state.fd = int(value)
    state.file = _identity(state.fd)
    if state.file is None:
        return False
    # os.write could raise SIGPIPE. The object does not own its descriptor, and so must never be destroyed with
    # it: it is kept, and lets go at the end.
    state.socket = socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, state.fd)
    atexit.register(socket.detach)
    if _socket.getdefaulttimeout() is not None:
        # The program's default timeout is for its own sockets.
        socket.settimeout(None)
    kind = socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_TYPE)
    # SO_DOMAIN
    return kind == _socket.SOCK_STREAM and socket.getsockopt(_socket.SOL_SOCKET, 39) == _socket.AF_UNIX


def _identity(fd):
    try:
        status = os.fstat(fd)
    except OSError as error:
        if not _is_own(error):
            raise
        return None
    if status.st_mode & 0o170000 != 0o140000:
        return None
    return status.st_dev, status.st_ino


def _is_ours(state):
    # The descriptor may be another file of the program's by now.
    return _identity(state.fd) == state.file


def _send(state, line):
    """Writes the line and waits until nothing is owed; false where there is nobody at the other end."""
    # Processes of one tree share the socket: else one might read the answer that was meant for another.
    try:
        try:
            fcntl.lockf(state.fd, fcntl.LOCK_EX)
            return _exchange(state, line)
        finally:
            fcntl.lockf(state.fd, fcntl.LOCK_UN)
    except BaseException:
        # A signal handler may have raised it right before the call above.
        fcntl.lockf(state.fd, fcntl.LOCK_UN)
        raise


def _exchange(state, line):
    socket = state.socket
    while line:
        try:
            line = line[socket.send(line, _socket.MSG_NOSIGNAL):]
        except BlockingIOError:
            _wait(state.fd, 4)
    state.owed += 1
    while state.owed > 0:
        try:
            # Counted before it is taken: an exception between the two must not leave a mark that waits
            # for an answer which was read.
            if not socket.recv(1, _socket.MSG_PEEK):
                return False
            state.owed -= 1
            socket.recv(1, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            _wait(state.fd, 1)
    return True


def _wait(fd, events):
    poll = select.poll()
    poll.register(fd, events)
    poll.poll()
