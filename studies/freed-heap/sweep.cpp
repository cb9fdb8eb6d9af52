// sweep WAY ORDER: takes one block of each size in turn, fills it, gives it back, as the article's program does.
//
// ORDER is `given` (ascending), `published` and `published-jemalloc` (the orders that the article's figures tell, see
// `orders` in rule.py), `largest-first`, or `shuffled-SEED`; `+2GB` behind it adds a block of 2 GB. Marks: start, and
// before-SIZE, during-SIZE, after-SIZE. Prints one JSON object: for each size, in bytes, what virtual and physical memory
// were before, during and after, and what was taken, filled and given back, of anonymous memory too; the order; what
// mallopt returned.
//
// Sizes are the author's, in binary units: "2 kB" is 1,024 elements of 2 bytes.
#include "strandline.h"
#include "ways.h"

struct Size {
    const char *name;
    size_t bytes;
};

static const Size sizes[] = {
    {"2kB", 2048},         {"20kB", 20480},        {"200kB", 204800},        {"2MB", 2097152},
    {"20MB", 20971520},    {"200MB", 209715200},   {"2GB", 2147483648},
};
static const int size_count = 7;

struct Step {
    const Size *size;
    Memory before, taken, during, after;
};

// The next number of splitmix64: the same order for the same seed, whatever library is used.
static uint64_t draw(uint64_t &state) {
    state += 0x9E3779B97F4A7C15u;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Writes indices of sizes into `order`; how many.
static int ordered(const char *name, int *order) {
    const char *plus = strstr(name, "+2GB");
    size_t length = plus == nullptr ? strlen(name) : static_cast<size_t>(plus - name);
    int largest = plus == nullptr ? 5 : 6;
    int count = 0;
    if (strcmp(name, "published-jemalloc") == 0) {
        for (int index : {0, 2, 1, 3, 4, 5}) {
            order[count++] = index;
        }
        return count;
    }
    if (length == 9 && strncmp(name, "published", 9) == 0) {
        for (int index : {0, 6, 1, 3, 4, 5, 2}) {
            if (index <= largest) {
                order[count++] = index;
            }
        }
        return count;
    }
    for (int index = 0; index <= largest; index++) {
        order[count++] = index;
    }
    if (length == 13 && strncmp(name, "largest-first", 13) == 0) {
        for (int i = 0; i < count; i++) {
            order[i] = count - 1 - i;
        }
    } else if (strncmp(name, "shuffled-", 9) == 0) {
        uint64_t state = strtoull(name + 9, nullptr, 10);
        for (int i = count - 1; i > 0; i--) {
            int other = static_cast<int>(draw(state) % static_cast<uint64_t>(i + 1));
            int kept = order[i];
            order[i] = order[other];
            order[other] = kept;
        }
    } else if (length != 5 || strncmp(name, "given", 5) != 0) {
        fail("no such order: ", name);
    }
    return count;
}

static void mark(const char *when, const Size &size) {
    char name[64];
    snprintf(name, sizeof name, "%s-%s", when, size.name);
    strandline_mark(name);
}

static void one(Way way, Step &step) {
    const Size &size = *step.size;
    Block block;
    mark("before", size);
    step.before = memory_now();
    take(block, way, size.bytes);
    step.taken = memory_now();
    fill(block);
    step.during = memory_now();
    mark("during", size);
    give(block);
    step.after = memory_now();
    mark("after", size);
}

static void tell(const Step &step) {
    const Memory &before = step.before, &taken = step.taken, &during = step.during, &after = step.after;
    long gained = during.physical_bytes - before.physical_bytes;
    long lost = during.physical_bytes - after.physical_bytes;
    say("\"%s\":{\"before_virtual_bytes\":%ld,\"before_physical_bytes\":%ld,", step.size->name, before.virtual_bytes,
        before.physical_bytes);
    say("\"during_virtual_bytes\":%ld,\"during_physical_bytes\":%ld,", during.virtual_bytes, during.physical_bytes);
    say("\"after_virtual_bytes\":%ld,\"after_physical_bytes\":%ld,", after.virtual_bytes, after.physical_bytes);
    say("\"before_fill_anonymous_bytes\":%ld,", taken.anonymous_bytes - before.anonymous_bytes);
    say("\"allocated_anonymous_bytes\":%ld,", during.anonymous_bytes - before.anonymous_bytes);
    say("\"freed_anonymous_bytes\":%ld,", during.anonymous_bytes - after.anonymous_bytes);
    say("\"allocated_virtual_bytes\":%ld,\"allocated_physical_bytes\":%ld,", during.virtual_bytes - before.virtual_bytes,
        gained);
    say("\"freed_virtual_bytes\":%ld,\"freed_physical_bytes\":%ld,", during.virtual_bytes - after.virtual_bytes, lost);
    say("\"freed_share\":%.4f,", static_cast<double>(lost) / static_cast<double>(step.size->bytes));
    say("\"status_error_bytes\":%ld},", labs(during.status_rss_bytes - during.physical_bytes));
}

int main(int count, char **words) {
    if (count != 3) {
        fail("usage: sweep malloc|new|vector|mmap ORDER", "");
    }
    Way way = way_named(words[1]);
    int order[size_count];
    int steps = ordered(words[2], order);
    static Step step[size_count];
    get_ready();
    int mallopt_returned = apply_mallopt();
    strandline_mark("start");
    Memory start = memory_now();
    for (int i = 0; i < steps; i++) {
        step[i].size = &sizes[order[i]];
        one(way, step[i]);
    }
    long worst = 0;
    say("{");
    for (int i = 0; i < steps; i++) {
        tell(step[i]);
        long error = labs(step[i].during.status_rss_bytes - step[i].during.physical_bytes);
        worst = error > worst ? error : worst;
    }
    say("\"start_virtual_bytes\":%ld,\"start_physical_bytes\":%ld,", start.virtual_bytes, start.physical_bytes);
    say("\"status_error_bytes\":%ld,\"mallopt_returned\":%d,\"order\":\"", worst, mallopt_returned);
    for (int i = 0; i < steps; i++) {
        say("%s%s", i == 0 ? "" : " ", step[i].size->name);
    }
    say("\"}\n");
    say(nullptr);
    return 0;
}
