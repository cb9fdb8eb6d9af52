// cutoff WAY FREED_BEFORE: from which size on a freed block goes back to the system, to the byte.
//
// Each size is tried in a process of its own (this program, started again as `cutoff WAY FREED_BEFORE SIZE`): a block of
// FREED_BEFORE bytes is taken and given back first (0: none), then one of SIZE bytes is taken, filled and given back. It
// went back where at least half of it left physical memory (anonymous resident bytes, which pages of files cannot
// blur), or virtual memory, asked apart. First 29 sizes from 4 KiB to 64 MiB, two for each doubling, tell between which
// two it turns, and whether it turns once; then the interval is halved until it is one byte.
//
// Prints one JSON object: cutoff_physical_bytes and cutoff_virtual_bytes, the smallest request that goes back (null
// where none up to 64 MiB does; 4096 where all do); turns_physical, turns_virtual: how often neighbours among the 29
// differ; processes: how many were tried; mallopt_returned. `cutoff malloc 0 top` prints the state of glibc's heap that
// each of the processes begins with (top.h).
#include <errno.h>
#include <sys/wait.h>

#include "top.h"
#include "ways.h"

static const long smallest = 4096, largest = 67108864;
static const char *way_word, *before_word;
static int processes = 0;

struct Gone {
    bool physical, virtually;
};

struct Tried {
    long bytes;
    Gone gone;
};
static Tried tried[256]; // physical and virtual cut-off are often the same one: no size is tried twice

// What a tried size's process ends with: this, plus 1 where physical memory fell, plus 2 where virtual memory did. Other
// statuses are failures.
static const int answers = 64;

// A fresh process of this program, and its answer.
static Gone try_size(long bytes) {
    for (int i = 0; i < processes; i++) {
        if (tried[i].bytes == bytes) {
            return tried[i].gone;
        }
    }
    char word[32];
    snprintf(word, sizeof word, "%ld", bytes);
    pid_t child = vfork();
    if (child == 0) {
        execl("/proc/self/exe", "cutoff", way_word, before_word, word, static_cast<char *>(nullptr));
        _exit(127);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    int answer = child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) - answers : -1;
    if (answer < 0 || answer > 3) {
        fail("a process that tries a size failed at ", word);
    }
    Gone gone{(answer & 1) != 0, (answer & 2) != 0};
    tried[processes++] = Tried{bytes, gone};
    return gone;
}

static int be_tried(long before_bytes, long bytes) {
    Way way = way_named(way_word);
    get_ready();
    apply_mallopt();
    take_fence();
    if (before_bytes > 0) {
        Block first;
        take(first, way, static_cast<size_t>(before_bytes)); // not filled: what moves the threshold is its size
        give(first);
    }
    Block block;
    take(block, way, static_cast<size_t>(bytes));
    fill(block);
    Memory during = memory_now();
    give(block);
    Memory after = memory_now();
    bool physical = during.anonymous_bytes - after.anonymous_bytes >= (bytes + 1) / 2;
    bool virtually = during.virtual_bytes - after.virtual_bytes >= (bytes + 1) / 2;
    return answers + (physical ? 1 : 0) + (virtually ? 2 : 0);
}

// The turning point between the last size of the ladder that stayed and the first that went; -1 where there is none.
static long bisect(const long *ladder, const Gone *gone, int rungs, bool Gone::*which) {
    int first = 0;
    while (first < rungs && !(gone[first].*which)) {
        first++;
    }
    if (first == rungs) {
        return -1;
    }
    if (first == 0) {
        return ladder[0];
    }
    long stays = ladder[first - 1], goes = ladder[first];
    while (goes - stays > 1) {
        long middle = stays + (goes - stays) / 2;
        if (try_size(middle).*which) {
            goes = middle;
        } else {
            stays = middle;
        }
    }
    return goes;
}

static void tell(const char *name, const long *ladder, const Gone *gone, int rungs, bool Gone::*which) {
    int turns = 0;
    for (int i = 1; i < rungs; i++) {
        turns += gone[i].*which != gone[i - 1].*which;
    }
    long cutoff = bisect(ladder, gone, rungs, which);
    say("\"turns_%s\":%d,", name, turns);
    if (cutoff >= 0) {
        say("\"cutoff_%s_bytes\":%ld,", name, cutoff);
    } else {
        say("\"cutoff_%s_bytes\":null,", name);
    }
}

int main(int count, char **words) {
    if (count != 3 && count != 4) {
        fail("usage: cutoff malloc|new|vector|mmap FREED_BEFORE", "");
    }
    way_word = words[1];
    before_word = words[2];
    long before_bytes = atol(before_word);
    if (count == 4 && strcmp(words[3], "top") == 0) {
        get_ready();
        apply_mallopt();
        say("{");
        say_top(take_fence());
        say("}\n");
        say(nullptr);
        return 0;
    }
    if (count == 4) {
        return be_tried(before_bytes, atol(words[3]));
    }
    int mallopt_returned = apply_mallopt();
    long ladder[32];
    Gone gone[32];
    int rungs = 0;
    for (long doubling = smallest; doubling < largest; doubling *= 2) {
        ladder[rungs++] = doubling;
        ladder[rungs++] = doubling * 3 / 2;
    }
    ladder[rungs++] = largest;
    for (int i = 0; i < rungs; i++) {
        gone[i] = try_size(ladder[i]);
    }
    say("{");
    tell("physical", ladder, gone, rungs, &Gone::physical);
    tell("virtual", ladder, gone, rungs, &Gone::virtually);
    say("\"processes\":%d,\"mallopt_returned\":%d}\n", processes, mallopt_returned);
    say(nullptr);
    return 0;
}
