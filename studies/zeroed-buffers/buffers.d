/**
 * Takes buffers of 1 MiB in one of five ways, as Marco Leise's benchmark of 2012 did, or in a sixth, and tells what that
 * cost.
 *
 *     buffers WAY kept|dropped BUFFERS
 *     buffers WAY hold BUFFERS BYTES_WRITTEN
 *
 * WAY: new, gc_calloc, malloc, malloc_zero, calloc; gc_calloc_no_scan is gc_calloc of memory that holds no pointers.
 * `kept` stores each buffer where other code can see it, so that no compiler may leave it out; `dropped` does not.
 * Huge pages are refused, so that all is counted in pages of 4096 bytes whatever the machine's setting.
 *
 * `kept` and `dropped`, at marks `before`, `taken`, then (kept) `read` after one byte of every page was read and
 * `written` after one byte of every page was set, print one line of JSON:
 *     wanted_bytes              BUFFERS MiB
 *     taking_user_seconds, taking_system_seconds, taking_faults, taking_peak_bytes
 *                               growth of getrusage's figures over the taking (peak: of ru_maxrss)
 *     collections, collecting_seconds
 *                               of the garbage collector by the mark `taken`: how many, and how long they took
 *     taken_mapped_pages, read_mapped_pages, written_mapped_pages
 *                               pages of the buffers (each with the page that its end lies on) that the page table
 *                               maps to something, the shared page of zeros or a page of their own
 *     collection_seconds        the shortest of three more collections in the end (by the clock: others may interrupt one)
 *     reading_faults, writing_faults
 *     wrong_bytes               of those read that were not zero (-1 with malloc alone, which promises nothing)
 *     malloc_calls, calloc_calls, memset_calls
 *                               calls for a whole buffer while it was taken, where interpose.c is preloaded, else -1
 *
 * `hold` sets BYTES_WRITTEN bytes of each buffer, prints `ready`, and then answers lines on standard input: `check` with
 * the number of bytes of all buffers that are not what was written, `quit` by ending.
 *
 * Ends with 2 where the arguments are wrong, with 3 where the page table cannot be read.
 */
module buffers;

import core.memory : GC;
import core.stdc.stdio;
import core.stdc.stdlib : atoi, calloc, exit, malloc;
import core.stdc.string : strcmp, strcpy;
import core.sys.linux.dlfcn : RTLD_DEFAULT;
import core.sys.posix.dlfcn : dlsym;
import core.sys.posix.fcntl : O_RDONLY, open;
import core.sys.posix.unistd : close, pread;
import core.sys.linux.sys.mman;
import core.sys.posix.sys.resource;
import core.volatile : volatileLoad, volatileStore;

import strandline;

extern (C) int prctl(int option, ...);
enum PR_SET_THP_DISABLE = 41;

enum bytes = 1024 * 1024;
enum pageBytes = 4096;

/// The buffers that are kept. A global of another language's linkage: who optimises must think that others read it.
extern (C) __gshared void*[] buffers;

// Each way is a function of its own with a plain name, so that objdump can find it, and none is inlined.
extern (C)
{
    pragma(inline, false) void kept_new(size_t i)
    {
        auto buffer = new ubyte[bytes];
        buffers[i] = buffer.ptr;
    }

    pragma(inline, false) void kept_gc_calloc(size_t i)
    {
        buffers[i] = GC.calloc(bytes);
    }

    pragma(inline, false) void kept_gc_calloc_no_scan(size_t i)
    {
        buffers[i] = GC.calloc(bytes, GC.BlkAttr.NO_SCAN);
    }

    pragma(inline, false) void kept_malloc(size_t i)
    {
        buffers[i] = malloc(bytes);
    }

    pragma(inline, false) void kept_malloc_zero(size_t i)
    {
        auto buffer = cast(ubyte*) malloc(bytes);
        buffer[0 .. bytes] = 0;
        buffers[i] = buffer;
    }

    pragma(inline, false) void kept_calloc(size_t i)
    {
        buffers[i] = calloc(1, bytes);
    }

    pragma(inline, false) void dropped_new(size_t)
    {
        auto buffer = new ubyte[bytes];
    }

    pragma(inline, false) void dropped_gc_calloc(size_t)
    {
        auto buffer = GC.calloc(bytes);
    }

    pragma(inline, false) void dropped_gc_calloc_no_scan(size_t)
    {
        auto buffer = GC.calloc(bytes, GC.BlkAttr.NO_SCAN);
    }

    pragma(inline, false) void dropped_malloc(size_t)
    {
        auto buffer = malloc(bytes);
    }

    pragma(inline, false) void dropped_malloc_zero(size_t)
    {
        auto buffer = cast(ubyte*) malloc(bytes);
        buffer[0 .. bytes] = 0;
    }

    pragma(inline, false) void dropped_calloc(size_t)
    {
        auto buffer = calloc(1, bytes);
    }
}

alias Take = extern (C) void function(size_t);

struct Way
{
    const(char)* name;
    Take kept, dropped;
}

immutable Way[] ways = [
    {"new", &kept_new, &dropped_new},
    {"gc_calloc", &kept_gc_calloc, &dropped_gc_calloc},
    {"gc_calloc_no_scan", &kept_gc_calloc_no_scan, &dropped_gc_calloc_no_scan},
    {"malloc", &kept_malloc, &dropped_malloc},
    {"malloc_zero", &kept_malloc_zero, &dropped_malloc_zero},
    {"calloc", &kept_calloc, &dropped_calloc},
];

rusage usage()
{
    rusage now;
    getrusage(RUSAGE_SELF, &now);
    return now;
}

double seconds(timeval from, timeval to)
{
    return (to.tv_sec - from.tv_sec) + (to.tv_usec - from.tv_usec) / 1e6;
}

/// The byte of each page of a buffer that is read and written: not at a page's start, where malloc's words are.
enum spot = 100;

/// Reads one byte of every page, and counts those that are not zero.
long read()
{
    long wrong;
    foreach (buffer; buffers)
        for (size_t at = spot; at < bytes; at += pageBytes)
            wrong += volatileLoad(cast(ubyte*) buffer + at) != 0;
    return wrong;
}

/// Sets one byte of every page.
void write()
{
    foreach (buffer; buffers)
        for (size_t at = spot; at < bytes; at += pageBytes)
            volatileStore(cast(ubyte*) buffer + at, 1);
}

/// How many pages that the buffers lie on are mapped, by bit 63 of /proc/self/pagemap's words, which is for all to see.
long mappedPages()
{
    immutable map = open("/proc/self/pagemap", O_RDONLY);
    if (map < 0)
        unreadable();
    scope (exit)
        close(map);
    ulong[bytes / pageBytes + 1] words;
    long mapped;
    foreach (buffer; buffers)
    {
        immutable first = cast(size_t) buffer / pageBytes;
        immutable pages = (cast(size_t) buffer + bytes - 1) / pageBytes - first + 1;
        if (pread(map, words.ptr, pages * ulong.sizeof, first * ulong.sizeof) != pages * ulong.sizeof)
            unreadable();
        foreach (word; words[0 .. pages])
            mapped += word >> 63;
    }
    return mapped;
}

/// Ends the program: a figure that was not measured must not look like one.
void unreadable()
{
    perror("buffers: /proc/self/pagemap");
    exit(3);
}

/// What interpose.c counted; null where it is not preloaded.
long* counts(const(char)* name)
{
    return cast(long*) dlsym(RTLD_DEFAULT, name);
}

/// How many times something has been counted so far.
long count(const(char)* name)
{
    auto counted = counts(name);
    return counted is null ? -1 : *counted;
}

int measure(ref immutable Way way, bool kept, size_t wanted)
{
    auto take = kept ? way.kept : way.dropped;
    mark("before");
    immutable start = usage();
    foreach (i; 0 .. wanted)
        take(i);
    immutable taken = usage();
    mark("taken");
    immutable collector = GC.profileStats();
    immutable mallocs = count("interposed_malloc_calls");
    immutable callocs = count("interposed_calloc_calls");
    immutable memsets = count("interposed_memset_calls");
    printf(`{"wanted_bytes": %zu, "taking_user_seconds": %.6f, "taking_system_seconds": %.6f, `,
            wanted * bytes, seconds(start.ru_utime, taken.ru_utime), seconds(start.ru_stime, taken.ru_stime));
    printf(`"taking_faults": %ld, "taking_peak_bytes": %ld, `, taken.ru_minflt - start.ru_minflt,
            (taken.ru_maxrss - start.ru_maxrss) * 1024);
    printf(`"collections": %zu, "collecting_seconds": %.7f, `, cast(size_t) collector.numCollections,
            collector.totalCollectionTime.total!"hnsecs" / 1e7);
    if (kept)
        look(way.name);
    printf(`"collection_seconds": %.7f, `, collectionSeconds());
    printf(`"malloc_calls": %ld, "calloc_calls": %ld, "memset_calls": %ld}` ~ "\n", mallocs, callocs, memsets);
    return 0;
}

/// The shortest of three collections, with all buffers that are kept.
double collectionSeconds()
{
    double shortest = double.infinity;
    foreach (_; 0 .. 3)
    {
        immutable before = GC.profileStats().totalCollectionTime;
        GC.collect();
        immutable seconds = (GC.profileStats().totalCollectionTime - before).total!"hnsecs" / 1e7;
        if (seconds < shortest)
            shortest = seconds;
    }
    return shortest;
}

/// What is mapped after the taking, after reading and after writing, and what it costs to read and to write.
void look(const(char)* way)
{
    immutable takenPages = mappedPages();
    immutable start = usage();
    immutable wrong = read();
    immutable wasRead = usage();
    mark("read");
    immutable readPages = mappedPages();
    immutable again = usage();
    write();
    immutable written = usage();
    mark("written");
    printf(`"taken_mapped_pages": %ld, "read_mapped_pages": %ld, "written_mapped_pages": %ld, `,
            takenPages, readPages, mappedPages());
    printf(`"reading_faults": %ld, "writing_faults": %ld, "wrong_bytes": %ld, `, wasRead.ru_minflt - start.ru_minflt,
            written.ru_minflt - again.ru_minflt, strcmp(way, "malloc") == 0 ? -1 : wrong);
}

/// Where byte `k` of `many` that are written lies: the first, the last, and evenly in between.
size_t place(size_t k, size_t many)
{
    return many == 1 ? bytes / 2 : k * (bytes - 1) / (many - 1);
}

/// The byte that is written at the place `k`.
ubyte letter(size_t k)
{
    return cast(ubyte)(k % 255 + 1);
}

/// The bytes that are not what they were left as: letters at their places, zero elsewhere.
long wrongBytes(size_t many)
{
    long wrong;
    foreach (buffer; buffers)
    {
        // Those that are not zero, less those that shall not be, more those that are another or none.
        foreach (i, word; (cast(ulong*) buffer)[0 .. bytes / ulong.sizeof])
            if (word != 0)
                foreach (found; (cast(ubyte*) buffer)[i * ulong.sizeof .. (i + 1) * ulong.sizeof])
                    wrong += found != 0;
        foreach (k; 0 .. many)
        {
            immutable found = (cast(ubyte*) buffer)[place(k, many)];
            wrong += (found != letter(k)) - (found != 0);
        }
    }
    return wrong;
}

int hold(ref immutable Way way, size_t wanted, size_t many)
{
    foreach (i; 0 .. wanted)
        way.kept(i);
    foreach (buffer; buffers)
        foreach (k; 0 .. many)
            volatileStore(cast(ubyte*) buffer + place(k, many), letter(k));
    printf("ready\n");
    fflush(stdout);
    char[16] line;
    while (fgets(line.ptr, line.length, stdin) !is null && line[0] == 'c')
    {
        printf("%ld\n", wrongBytes(many));
        fflush(stdout);
    }
    return 0;
}

int main(string[] arguments)
{
    if (arguments.length < 4)
    {
        fprintf(stderr, "buffers WAY kept|dropped BUFFERS, or buffers WAY hold BUFFERS BYTES_WRITTEN\n");
        return 2;
    }
    prctl(PR_SET_THP_DISABLE, 1UL, 0UL, 0UL, 0UL);
    immutable wanted = cast(size_t) atoi((arguments[3] ~ '\0').ptr);
    buffers = new void*[wanted];
    foreach (ref way; ways)
        if (strcmp(way.name, (arguments[1] ~ '\0').ptr) == 0)
        {
            if (arguments[2] == "hold")
                return hold(way, wanted, arguments.length > 4 ? atoi((arguments[4] ~ '\0').ptr) : 0);
            return measure(way, arguments[2] == "kept", wanted);
        }
    fprintf(stderr, "buffers: no such way: %.*s\n", cast(int) arguments[1].length, arguments[1].ptr);
    return 2;
}
