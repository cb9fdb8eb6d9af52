/* Memory that has to be had. */
#ifndef CHECKED_H
#define CHECKED_H

#include <stdio.h>
#include <stdlib.h>

/* `memory`; without any the program ends with 3 and a message of `what` it was for. */
static inline void *checked(void *memory, const char *what)
{
    if (!memory) {
        fprintf(stderr, "short-strings: no memory for %s\n", what);
        exit(3);
    }
    return memory;
}

#endif
