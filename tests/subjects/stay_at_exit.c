// Preloaded into a program: when that ends it says so, and stays as it is until its input ends, to be looked at.
#include <unistd.h>

__attribute__((destructor)) static void stay(void) {
    static const char ready[] = "\"ready\"\n";
    if (write(1, ready, sizeof ready - 1) < 0) return;
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
}
