/* Two libcs in one process: a second one in its own namespace, with its own
 * arenas on mmapped memory or further up the break. Prints both mallinfos. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "subject.h"

#if __GLIBC_PREREQ(2, 33)
typedef struct mallinfo2 (*mallinfo_call)(void);
#define MALLINFO_NAME "mallinfo2"
#else
typedef struct mallinfo (*mallinfo_call)(void);
#define MALLINFO_NAME "mallinfo"
#endif

int main(void) {
  static struct figures first, second;
  static void *theirs[4000], *ours[4000];
  void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL);
  if (!libc) return 3;
  void *(*their_malloc)(size_t) = dlsym(libc, "malloc");
  void (*their_free)(void *) = dlsym(libc, "free");
  mallinfo_call their_mallinfo = (mallinfo_call)dlsym(libc, MALLINFO_NAME);
  if (!their_malloc || !their_free || !their_mallinfo) return 3;
  for (int i = 0; i < 4000; i++) {
    theirs[i] = their_malloc(1500);
    ours[i] = malloc(900);
    if (!theirs[i] || !ours[i]) return 3;
    memset(theirs[i], 3, 1500);
    memset(ours[i], 4, 900);
  }
  for (int i = 0; i < 4000; i++)
    if (i % 40) {
      their_free(theirs[i]);
      free(ours[i]);
    }
  __auto_type from = their_mallinfo();
  second.arena = from.arena;
  second.ordblks = from.ordblks;
  second.smblks = from.smblks;
  second.hblks = from.hblks;
  second.hblkhd = from.hblkhd;
  second.fsmblks = from.fsmblks;
  second.uordblks = from.uordblks;
  second.fordblks = from.fordblks;
  second.keepcost = from.keepcost;
  read_mallinfo(&first);
  line_open();
  line_mallinfo("mallinfo", &first);
  line_mallinfo("second_mallinfo", &second);
  line_print();
  obey_heap_commands();
}
