/**
 * strandline: names an instant of a D program for `strandline run`.
 *
 *     import strandline;                 // dmd, gdc or ldc2 with probes/d/strandline.d
 *     mark("cache filled");
 *     strandline run -o cache.strandline -- ./program
 *
 * Without strandline (no STRANDLINE_MARK_FD in the environment) a mark does nothing: one load and one
 * branch after the first. With it, a mark is six short system calls plus the time that strandline takes
 * for its sample; `@nogc nothrow`, no allocation, errno is kept. Figures: docs/probes.md.
 *
 * 64-bit Linux. Threads may mark at once: they take turns. So do processes of one tree. It works in the
 * child of a fork; the collector may stop a thread that waits in a mark. A signal handler may call it (its
 * mark is left out where it interrupts one).
 */
module strandline;

version (linux):

import core.atomic : atomicLoad, atomicStore, cas;
import core.stdc.errno : EAGAIN, EINTR, errno;
import core.stdc.stdlib : getenv;
import core.sys.posix.fcntl : F_SETLKW, F_UNLCK, F_WRLCK, fcntl, flock;
import core.sys.posix.poll : poll, POLLIN, POLLOUT, pollfd;
import core.sys.posix.sys.socket;
import core.sys.posix.sys.stat : fstat, stat_t;
import core.sys.posix.unistd : getpid;

private:

enum nameBytes = 200;
enum noSignal = 0x4000; // MSG_NOSIGNAL
enum soDomain = 39;

struct State
{
    int mode; // 0 not looked yet, 1 on, 2 off for ever
    int fd;
    ulong device, inode; // a descriptor that is another file by now is not ours
}

__gshared State state;
/// 0 free, else the holder's process id: a fork's child takes the lock that a thread of its parent held.
shared int lock;
/// Of this thread: a signal handler that interrupts a mark cannot wait for it; its mark is left out.
bool busy;

/// Names this instant; returns when strandline has taken its sample. Control characters of the name become
/// spaces; it is cut to 200 bytes. Does nothing where strandline is not there, or is no more.
public void mark(scope const(char)[] name) nothrow @nogc @trusted
{
    if (state.mode == 2 || busy)
        return;
    immutable kept = errno;
    char[nameBytes + 1] line = void;
    immutable bytes = name.length < nameBytes ? name.length : nameBytes;
    foreach (i, c; name[0 .. bytes])
        line[i] = c < 32 || c == 127 ? ' ' : c;
    line[bytes] = '\n';
    busy = true;
    take(getpid());
    if (state.mode == 0)
        state.mode = look() ? 1 : 2;
    if (state.mode == 1 && !(isOurs() && talk(line[0 .. bytes + 1])))
        state.mode = 2;
    atomicStore(lock, 0);
    busy = false;
    errno = kept;
}

void take(int self) nothrow @nogc
{
    for (;;)
    {
        if (cas(&lock, 0, self))
            return;
        immutable holder = atomicLoad(lock);
        if (holder != 0 && holder != self && cas(&lock, holder, self))
            return;
        // Another thread waits for its answer: that takes its time. (No futex: this is rare.)
        pollfd none;
        poll(&none, 0, 1);
    }
}

/// Processes of one tree share the socket, so they take turns: else one might read the answer that was meant
/// for another. The kernel lets go of the lock where its holder dies.
void turn(short type) nothrow @nogc
{
    flock whole;
    whole.l_type = type;
    while (fcntl(state.fd, F_SETLKW, &whole) == -1 && errno == EINTR)
    {
    }
}

/// Writes the line and waits for the answer; false where there is nobody at the other end.
bool talk(const(char)[] line) nothrow @nogc
{
    turn(F_WRLCK);
    scope (exit)
        turn(F_UNLCK);
    while (line.length > 0)
    {
        immutable sent = send(state.fd, line.ptr, line.length, noSignal);
        if (sent > 0)
            line = line[sent .. $];
        else if (sent == -1 && errno == EAGAIN)
            wait(POLLOUT);
        else if (sent == 0 || errno != EINTR)
            return false;
    }
    for (;;)
    {
        char answer;
        immutable got = recv(state.fd, &answer, 1, 0);
        if (got == -1 && errno == EAGAIN)
            wait(POLLIN);
        else if (got != -1 || errno != EINTR)
            return got == 1;
    }
}

void wait(short events) nothrow @nogc
{
    auto one = pollfd(state.fd, events, 0);
    poll(&one, 1, -1);
}

bool isSocket(ref stat_t file) nothrow @nogc
{
    return fstat(state.fd, &file) == 0 && (file.st_mode & 0xF000) == 0xC000;
}

bool isOurs() nothrow @nogc
{
    stat_t now;
    return isSocket(now) && now.st_dev == state.device && now.st_ino == state.inode;
}

/// Whether there is a strandline to talk to: the number, above the standard descriptors, of a stream socket
/// of the local kind.
bool look() nothrow @nogc
{
    auto text = getenv("STRANDLINE_MARK_FD");
    if (text is null || *text == 0)
        return false;
    int fd;
    for (; *text != 0; text++)
    {
        if (*text < '0' || *text > '9' || fd > 100_000_000)
            return false;
        fd = fd * 10 + (*text - '0');
    }
    state.fd = fd;
    stat_t first;
    if (fd < 3 || !isSocket(first) || !isOption(soDomain, AF_UNIX) || !isOption(SO_TYPE, SOCK_STREAM))
        return false;
    state.device = first.st_dev;
    state.inode = first.st_ino;
    return true;
}

bool isOption(int option, int wanted) nothrow @nogc
{
    int value;
    socklen_t bytes = value.sizeof;
    return getsockopt(state.fd, SOL_SOCKET, option, &value, &bytes) == 0 && value == wanted;
}
