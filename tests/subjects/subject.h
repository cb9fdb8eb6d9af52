/* Shared by all test subjects: a random number generator, one-line JSON
 * reports, and the process's own count of its heap pages.
 *
 * After its first line a subject must not change the heap under measurement:
 * nothing here calls malloc or stdio, and every buffer is static.
 *
 * The protocol: the subject prints one line of JSON when it has reached its
 * known state, then obeys single bytes on standard input, each answered by one
 * line. 'q' and end of file end it with status 0.
 */
#ifndef SUBJECT_H
#define SUBJECT_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

/* xorshift64*: the same traffic from the same seed, everywhere. */
static UNUSED uint64_t random_next(uint64_t *state) {
  uint64_t x = *state;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  *state = x;
  return x * UINT64_C(2685821657736338717);
}

static UNUSED uint64_t random_below(uint64_t *state, uint64_t bound) {
  return (random_next(state) >> 11) % bound;
}

static UNUSED uint64_t random_seed(uint64_t seed) {
  uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + UINT64_C(0x2545f4914f6cdd1d);
  for (int i = 0; i < 8; i++) random_next(&state);
  return state ? state : 1;
}

/* --- one line of JSON at a time ------------------------------------------ */
static char line_text[8192];
static size_t line_length;

static UNUSED void line_put(const char *text) {
  size_t length = strlen(text);
  if (line_length + length >= sizeof line_text) _exit(90);
  memcpy(line_text + line_length, text, length);
  line_length += length;
}

static UNUSED void line_open(void) {
  line_length = 0;
  line_put("{");
}

static UNUSED void line_key(const char *key) {
  if (line_length && line_text[line_length - 1] != '{') line_put(", ");
  line_put("\"");
  line_put(key);
  line_put("\": ");
}

static UNUSED void line_number(const char *key, uint64_t value) {
  char digits[24];
  size_t at = sizeof digits;
  digits[--at] = 0;
  do {
    digits[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  line_key(key);
  line_put(digits + at);
}

static UNUSED void line_object(const char *key) {
  line_key(key);
  line_put("{");
}

static UNUSED void line_end_object(void) { line_put("}"); }

static UNUSED void line_print(void) {
  line_put("}\n");
  size_t done = 0;
  while (done < line_length) {
    ssize_t put = write(1, line_text + done, line_length - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) _exit(91);
    done += (size_t)put;
  }
}

static UNUSED off_t size_of(const char *path) {
  struct stat data;
  return stat(path, &data) ? 0 : data.st_size;
}

/* Waits until a file has grown `growths` times. The recorder took the samples of the second and
 * every later growth during this wait. */
static UNUSED void await_growths(const char *path, int growths) {
  for (off_t known = size_of(path); growths > 0; growths--) {
    off_t now;
    while ((now = size_of(path)) <= known) usleep(2000);
    known = now;
  }
}

/* The next command byte; 'q' at end of file. */
static UNUSED char next_command(void) {
  char byte;
  for (;;) {
    ssize_t got = read(0, &byte, 1);
    if (got == 1 && byte == '\n') continue;
    if (got == 1) return byte;
    if (got == 0) return 'q';
    if (errno != EINTR) return 'q';
  }
}

/* Obeys nothing but 'q'. */
static UNUSED void hold_until_quit(void) {
  while (next_command() != 'q') continue;
  _exit(0);
}

/* Answers each command with two counts, until 'q'. */
static UNUSED void answer_until_quit(const char *name, _Atomic uint64_t *count, _Atomic uint64_t *wrong) {
  while (next_command() != 'q') {
    line_open();
    line_number(name, atomic_load(count));
    line_number("wrong", atomic_load(wrong));
    line_print();
  }
}

/* Answers each command with two counts, and ends at 'q'. */
static UNUSED void answer_counts(const char *name, _Atomic uint64_t *count, _Atomic uint64_t *wrong) {
  answer_until_quit(name, count, wrong);
  _exit(0);
}

#ifndef __GLIBC__
/* Other C libraries have no malloc_trim: this one releases nothing. */
static UNUSED int malloc_trim(size_t keep) {
  (void)keep;
  return 0;
}
#endif

/* --- mallinfo ------------------------------------------------------------- */
struct figures {
  uint64_t arena, ordblks, smblks, hblks, hblkhd, fsmblks, uordblks, fordblks, keepcost;
};

static UNUSED void read_mallinfo(struct figures *to) {
#ifndef __GLIBC__
#define FIGURE(name) to->name = 0
#elif __GLIBC_PREREQ(2, 33)
  struct mallinfo2 from = mallinfo2();
#define FIGURE(name) to->name = from.name
#else
  /* int fields, sound while every figure stays below 2 GiB */
  struct mallinfo from = mallinfo();
#define FIGURE(name) to->name = (uint64_t)(unsigned)from.name
#endif
  FIGURE(arena);
  FIGURE(ordblks);
  FIGURE(smblks);
  FIGURE(hblks);
  FIGURE(hblkhd);
  FIGURE(fsmblks);
  FIGURE(uordblks);
  FIGURE(fordblks);
  FIGURE(keepcost);
#undef FIGURE
}

static UNUSED void line_mallinfo(const char *key, const struct figures *m) {
  line_object(key);
  line_number("arena", m->arena);
  line_number("ordblks", m->ordblks);
  line_number("smblks", m->smblks);
  line_number("hblks", m->hblks);
  line_number("hblkhd", m->hblkhd);
  line_number("fsmblks", m->fsmblks);
  line_number("uordblks", m->uordblks);
  line_number("fordblks", m->fordblks);
  line_number("keepcost", m->keepcost);
  line_end_object();
}

/* --- the process's own count of resident anonymous memory ---------------- */
static char smaps_text[1 << 16];

/* Adds up `field` ("Anonymous:", with its colon) of /proc/self/smaps over the
 * private mappings that may hold a heap: [heap], nameless ones, and ones named
 * by prctl. Uses the kernel's own count, which leaves out the shared page of
 * zeros and counts pages under migration. */
static UNUSED uint64_t smaps_sum(const char *field) {
  int file = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
  if (file < 0) _exit(92);
  uint64_t sum_kib = 0;
  size_t have = 0, field_length = strlen(field);
  int counts = 0;
  for (;;) {
    ssize_t got = read(file, smaps_text + have, sizeof smaps_text - have);
    if (got < 0) _exit(93);
    if (got == 0) break;
    have += (size_t)got;
    char *line = smaps_text, *end;
    while ((end = memchr(line, '\n', have - (size_t)(line - smaps_text)))) {
      if (!memcmp(line, field, field_length)) {
        uint64_t kib = 0;
        for (char *c = line + field_length; c < end; c++)
          if (*c >= '0' && *c <= '9') kib = kib * 10 + (uint64_t)(*c - '0');
        if (counts) sum_kib += kib;
      } else if ((*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f')) {
        /* START-END PERMS OFFSET DEVICE INODE NAME */
        char *c = line;
        int spaces = 0, private = 0, has_no_inode = 0;
        for (; c < end && spaces < 5; c++)
          if (*c == ' ') {
            spaces++;
            if (spaces == 1) private = c + 4 < end && c[4] == 'p';
            if (spaces == 4) has_no_inode = c + 2 <= end && c[1] == '0' && (c + 2 == end || c[2] == ' ');
          }
        while (c < end && *c == ' ') c++;
        counts = private && has_no_inode
                 && (c == end || (end - c >= 6 && !memcmp(c, "[heap]", 6))
                     || (end - c >= 6 && !memcmp(c, "[anon:", 6)));
      }
      line = end + 1;
    }
    have -= (size_t)(line - smaps_text);
    memmove(smaps_text, line, have);
    if (have == sizeof smaps_text) _exit(94);
  }
  close(file);
  return sum_kib * 1024;
}

/* Touches the stack and the static buffers that a report will use, so that the
 * report itself makes no page resident. */
static UNUSED __attribute__((noinline)) void warm(void) {
  volatile char room[64 * 1024];
  for (size_t i = 0; i < sizeof room; i += 512) room[i] = 1;
  for (size_t i = 0; i < sizeof line_text; i += 512) ((volatile char *)line_text)[i] = 1;
  for (size_t i = 0; i < sizeof smaps_text; i += 512) ((volatile char *)smaps_text)[i] = 1;
}

/* Calls malloc_trim(0) and prints by how much the kernel's count of anonymous memory fell. */
static UNUSED void trim_and_report(void) {
  static struct figures before, after;
  warm();
  smaps_sum("Anonymous:");
  read_mallinfo(&before);
  uint64_t anonymous_before = smaps_sum("Anonymous:");
  int result = malloc_trim(0);
  uint64_t anonymous_after = smaps_sum("Anonymous:");
  read_mallinfo(&after);
  line_open();
  line_number("given_back_bytes", anonymous_before - anonymous_after);
  line_number("anonymous_before_bytes", anonymous_before);
  line_number("anonymous_after_bytes", anonymous_after);
  line_number("result", (uint64_t)result);
  line_mallinfo("before", &before);
  line_mallinfo("after", &after);
  line_print();
}

/* 'i' prints mallinfo, 't' trims and reports, 'q' ends. */
static UNUSED void obey_heap_commands(void) {
  static struct figures now;
  for (;;) {
    switch (next_command()) {
      case 'i':
        read_mallinfo(&now);
        line_open();
        line_mallinfo("mallinfo", &now);
        line_print();
        break;
      case 't':
        trim_and_report();
        break;
      case 'q':
        _exit(0);
      default:
        break;
    }
  }
}

/* Parks the calling thread for ever. */
static UNUSED void park(void) {
  for (;;) pause();
}

/* Whether a thread of this process sleeps in a system call. */
static UNUSED int is_in_call(pid_t thread) {
  char path[64] = "/proc/self/task/", digits[12], first = 0;
  size_t at = sizeof digits;
  digits[--at] = 0;
  for (; thread; thread /= 10) digits[--at] = (char)('0' + thread % 10);
  strcat(strcat(path, digits + at), "/syscall");
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t got = read(file, &first, 1);
  close(file);
  /* The file has the call's number, "running", or -1 outside of a call. */
  return got == 1 && first >= '0' && first <= '9';
}

/* Hides a pointer from the optimiser, so that it keeps the calls of malloc, memset and free. */
static UNUSED void *opaque(void *pointer) {
  __asm__ volatile("" : "+r"(pointer) : : "memory");
  return pointer;
}

#ifndef __GLIBC__
#elif !__GLIBC_PREREQ(2, 35)
/* gcc 12's unwinder calls this function of glibc 2.35 and later, and searches the program headers
 * itself when it returns "not found". Needed only to link statically with an older glibc. */
int _dl_find_object(void *address, void *result);
__attribute__((weak)) int _dl_find_object(void *address, void *result) {
  (void)address;
  (void)result;
  return -1;
}
#endif

static UNUSED uint64_t argument(int count, char **values, int index, uint64_t otherwise) {
  return index < count ? strtoull(values[index], 0, 0) : otherwise;
}
#endif
