// steps: takes, fills and gives back blocks with malloc and free as told on standard input, and tells memory after each.
//
// One line: `+BYTES` takes a block and fills it, `-N` gives back the N-th that was taken (from 0). Prints one JSON
// object: the top chunk that the steps start from (see top.h), and `steps`: [virtual_bytes, anonymous_bytes] before the
// first and after each step.
#include "top.h"
#include "ways.h"

static const size_t most_steps = 1000;

int main() {
    static char text[65536];
    static unsigned char *block[most_steps];
    static Memory after[most_steps + 1];
    size_t length = 0;
    for (ssize_t got; (got = read(STDIN_FILENO, text + length, sizeof text - 1 - length)) > 0;) {
        length += static_cast<size_t>(got);
    }
    get_ready();
    apply_mallopt();
    memset(block, 0xFF, sizeof block); // touched before the first figure
    memset(after, 0xFF, sizeof after);
    say("{");
    say_top(take_fence());
    say(",\"steps\":[");
    size_t blocks = 0, steps = 0;
    after[0] = memory_now();
    char *at = text;
    while ((*at == '+' || *at == '-') && steps < most_steps) {
        bool takes = *at == '+';
        size_t number = strtoul(at + 1, &at, 10);
        if (takes) {
            block[blocks] = static_cast<unsigned char *>(malloc(number));
            if (block[blocks] == nullptr) {
                fail("no memory", "");
            }
            memset(block[blocks], 0xA5, number);
            blocks++;
        } else if (number < blocks) {
            free(block[number]);
        }
        after[++steps] = memory_now();
        at += *at == ' ';
    }
    for (size_t i = 0; i <= steps; i++) {
        say("%s[%ld,%ld]", i == 0 ? "" : ",", after[i].virtual_bytes, after[i].anonymous_bytes);
    }
    say("]}\n");
    say(nullptr);
    return 0;
}
