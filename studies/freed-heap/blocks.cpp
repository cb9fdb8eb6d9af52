// blocks WAY BLOCK_BYTES SURVIVORS FREED: 64 MB in small blocks, all given back but the survivors, then malloc_trim(0),
// then the call of another allocator's own.
//
// SURVIVORS is `none`, `top` (the last block taken, which lies above all others where the heap grows upwards) or
// `one-in-500`. FREED is the order: `oldest-first` or `newest-first`. Marks: before, full, freed, trimmed, purged. Prints one
// JSON object, bytes: what was filled, given back by the frees, given back by malloc_trim and by the other call, kept after the former (physical:
// resident, anonymous: of that without pages of files); the number of survivors; what malloc_trim returned.
#include "strandline.h"
#include "ways.h"

static const size_t total_bytes = 64000000;

struct Arguments {
    Way way;
    size_t block_bytes;
    int survivors; // 0 none, 1 top, 500 one in 500
    bool newest_first;
};

static Arguments read_arguments(int count, char **words) {
    if (count != 5) {
        fail("usage: blocks malloc|new BLOCK_BYTES none|top|one-in-500 oldest-first|newest-first", "");
    }
    Arguments asked;
    asked.way = way_named(words[1]);
    asked.block_bytes = strtoul(words[2], nullptr, 10);
    if (asked.block_bytes == 0) {
        fail("not a number of bytes: ", words[2]);
    }
    asked.survivors = strcmp(words[3], "none") == 0         ? 0
                      : strcmp(words[3], "top") == 0        ? 1
                      : strcmp(words[3], "one-in-500") == 0 ? 500
                                                            : -1;
    asked.newest_first = strcmp(words[4], "newest-first") == 0;
    if (asked.survivors < 0 || (!asked.newest_first && strcmp(words[4], "oldest-first") != 0)) {
        fail("no such survivors, or order of freeing: ", words[3]);
    }
    return asked;
}

static bool survives(const Arguments &asked, size_t index, size_t blocks) {
    return asked.survivors == 1 ? index + 1 == blocks : asked.survivors == 500 && index % 500 == 499;
}

// One block; no std::vector here, whose own three pointers would be as large as the blocks.
static unsigned char *take_small(const Arguments &asked) {
    unsigned char *start = nullptr;
    if (asked.way == Way::new_delete) {
        start = new unsigned char[asked.block_bytes];
    } else {
        start = static_cast<unsigned char *>(malloc(asked.block_bytes));
    }
    if (start == nullptr) {
        fail("no memory", "");
    }
    memset(start, 0xA5, asked.block_bytes);
    return start;
}

/// The calls by which other allocators give back what they have free; there where one of them is preloaded.
extern "C" {
int mallctl(const char *name, void *old, size_t *old_bytes, void *value, size_t value_bytes) __attribute__((weak));
void MallocExtension_ReleaseFreeMemory(void) __attribute__((weak));
void mi_collect(bool force) __attribute__((weak));
}

/// The first call makes what mallctl needs, 36 pages of jemalloc's own.
static void prepare_own() {
    const char *version = nullptr;
    size_t bytes = sizeof version;
    if (mallctl) {
        mallctl("version", &version, &bytes, nullptr, 0);
    }
}

static void give_back_own() {
    if (mallctl) {
        mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);
    } else if (MallocExtension_ReleaseFreeMemory) {
        MallocExtension_ReleaseFreeMemory();
    } else if (mi_collect) {
        mi_collect(true);
    }
}

int main(int count, char **words) {
    Arguments asked = read_arguments(count, words);
    size_t blocks = total_bytes / asked.block_bytes;
    // The list of blocks is in a mapping of its own, touched before the first figure.
    size_t list_bytes = blocks * sizeof(unsigned char *);
    void *list = mmap(nullptr, list_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (list == MAP_FAILED) {
        fail("no memory", "");
    }
    memset(list, 0xA5, list_bytes);
    unsigned char **block = static_cast<unsigned char **>(list);
    get_ready();
    apply_mallopt();
    prepare_own();
    Memory before = memory_now();
    strandline_mark("before");
    for (size_t i = 0; i < blocks; i++) {
        block[i] = take_small(asked);
    }
    Memory full = memory_now();
    strandline_mark("full");
    size_t survivors = 0;
    for (size_t i = 0; i < blocks; i++) {
        size_t index = asked.newest_first ? blocks - 1 - i : i;
        if (survives(asked, index, blocks)) {
            survivors++;
        } else if (asked.way == Way::new_delete) {
            delete[] block[index];
        } else {
            free(block[index]);
        }
    }
    Memory freed = memory_now();
    strandline_mark("freed");
    int returned = malloc_trim(0);
    Memory trimmed = memory_now();
    strandline_mark("trimmed");
    give_back_own();
    Memory purged = memory_now();
    strandline_mark("purged");
    say("{\"filled_anonymous_bytes\":%ld,", full.anonymous_bytes - before.anonymous_bytes);
    say("\"freed_anonymous_bytes\":%ld,", full.anonymous_bytes - freed.anonymous_bytes);
    say("\"trimmed_anonymous_bytes\":%ld,", freed.anonymous_bytes - trimmed.anonymous_bytes);
    say("\"purged_anonymous_bytes\":%ld,", trimmed.anonymous_bytes - purged.anonymous_bytes);
    say("\"kept_anonymous_bytes\":%ld,", trimmed.anonymous_bytes - before.anonymous_bytes);
    say("\"filled_physical_bytes\":%ld,", full.physical_bytes - before.physical_bytes);
    say("\"freed_physical_bytes\":%ld,", full.physical_bytes - freed.physical_bytes);
    say("\"freed_virtual_bytes\":%ld,", full.virtual_bytes - freed.virtual_bytes);
    say("\"trimmed_physical_bytes\":%ld,", freed.physical_bytes - trimmed.physical_bytes);
    say("\"trimmed_virtual_bytes\":%ld,", freed.virtual_bytes - trimmed.virtual_bytes);
    say("\"kept_physical_bytes\":%ld,\"survivors\":%zu,", trimmed.physical_bytes - before.physical_bytes, survivors);
    say("\"malloc_trim_returned\":%d}\n", returned);
    say(nullptr);
    return 0;
}
