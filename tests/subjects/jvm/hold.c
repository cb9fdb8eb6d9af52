/* Preloaded into a program, blocks it for ever in one of its calls, so that a test can kill it
 * there.
 *
 *   HOLD_CALL=fchown    between making a file and giving it to its owner
 *   HOLD_CALL=unlink    before removing a file .attach_pidN
 *   HOLD_FILE=PATH      the file that it makes once it blocks
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void hold(const char *call) {
  const char *at = getenv("HOLD_CALL"), *path = getenv("HOLD_FILE");
  if (!at || !path || strcmp(at, call)) return;
  int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
  for (;;) pause();
}

int fchown(int file, uid_t user, gid_t group) {
  hold("fchown");
  return (int)syscall(SYS_fchown, file, user, group);
}

int unlink(const char *path) {
  if (strstr(path, "/.attach_pid")) hold("unlink");
  return (int)syscall(SYS_unlink, path);
}
