/* Benchmark E: tables from lines of text. */
#ifndef TABLE_JOB_H
#define TABLE_JOB_H

#include <stddef.h>

/* Benchmark E, of that many lines. */
void table_job(size_t lines);

#endif
