/// Grows by 64 MiB at a mark and gives it back at the next; status 7.
module subject;

import core.stdc.errno : errno;
import core.stdc.stdio : printf;
import core.stdc.stdlib : atoi, getenv;
import core.stdc.string : memset;
import core.sys.posix.fcntl : O_CREAT, O_RDWR, open;
import core.sys.posix.sys.mman;
import core.sys.posix.sys.wait : waitpid;
import core.sys.posix.unistd : _exit, dup2, fork;
import core.thread : Thread;

import strandline;

void loop(int count) nothrow @nogc
{
    foreach (_; 0 .. count)
        mark("quiet");
}

int crowd(int count)
{
    Thread[4] threads;
    foreach (ref thread; threads)
        thread = new Thread({ loop(count); }).start();
    immutable child = fork();
    if (child == 0)
    {
        loop(count);
        _exit(3);
    }
    // The collector interrupts marks: it stops threads by signals.
    foreach (_; 0 .. 100)
    {
        import core.memory : GC;

        GC.collect();
    }
    foreach (thread; threads)
        thread.join();
    int status;
    waitpid(child, &status, 0);
    mark("after");
    return status == 3 << 8 ? 7 : 1;
}

int main(string[] arguments)
{
    immutable task = arguments.length > 2 ? arguments[1] : "";
    immutable argument = (arguments.length > 2 ? arguments[2] : "") ~ '\0';
    if (task == "crowd")
        return crowd(atoi(argument.ptr));
    if (task == "loop")
    {
        mark("before");
        loop(atoi(argument.ptr));
        mark("after");
        return 7;
    }
    mark("start");
    if (task == "reuse")
        dup2(open(argument.ptr, O_RDWR | O_CREAT, 384), atoi(getenv("STRANDLINE_MARK_FD")));
    auto memory = mmap(null, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    memset(memory, 1, 64 << 20);
    errno = 77;
    mark("grown");
    immutable kept = errno;
    munmap(memory, 64 << 20);
    mark("freed");
    mark("two\nlines\x01");
    char[300] name = 'n';
    mark(name);
    printf("done %d\n", kept);
    return 7;
}
