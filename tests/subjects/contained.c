/* contained PROGRAM ARGUMENT...: runs the program under a seccomp filter like a container's. */
#include "subject.h"
#include "filters.h"

int main(int count, char **values) {
  if (count < 2 || put_container_filter()) return 3;
  execv(values[1], values + 1);
  return 4;
}
