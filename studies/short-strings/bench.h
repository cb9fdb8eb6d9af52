/* What bench.c and table_job.c have of each other. */
#ifndef BENCH_H
#define BENCH_H

#include "scalar.h"
#include "table.h"

/* Takes a text into the digest. */
void digest_text(const struct scalar *s);

/* Benchmark E, of that many lines. */
void table_job(size_t lines);

#endif
