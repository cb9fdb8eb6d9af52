/* The calls of a subject that makes one in each thread: `enum call` and `names` of the list CALLS(X), which is defined before
 * this is included.
 */
enum call {
#define NAME(n) call_##n,
  CALLS(NAME)
#undef NAME
  call_count
};
static const char *const names[] = {
#define NAME(n) #n,
    CALLS(NAME)
#undef NAME
};
