/* `enum call` and `names` of the list CALLS(X), which a subject defines before it includes this
 * file. Each thread of the subject makes one of the calls.
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
