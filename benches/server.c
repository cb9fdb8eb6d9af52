/* A server with a heap of its own, and the client that loads it, over a socket of the machine.
 *
 *   server GIB                 listens on a free port of 127.0.0.1 and prints it; each request (8 bytes) overwrites as many
 *                              blocks of its heap as the bench's requests stand for, at random places, and is answered
 *   server load PORT RATE SECONDS   sends RATE requests a second, evenly, for SECONDS; prints a JSON line: how many were
 *                              answered, and percentiles of how long each took, from the moment at which it was due
 *
 * A request that waits because the one before it did is late from its own due moment on: nothing is left out
 * (coordinated omission).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1000, BLOCKS_A_REQUEST = 4 };

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static uint64_t random_next(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * UINT64_C(0x2545f4914f6cdd1d);
}

static int no_delay(int socket) {
  int one = 1;
  return setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int serve(double gib) {
  size_t count = (size_t)(gib * (1 << 30)) / BLOCK_BYTES;
  char **blocks = malloc(count * sizeof *blocks);
  if (!blocks) return 3;
  for (size_t i = 0; i < count; i++) {
    if (!(blocks[i] = malloc(BLOCK_BYTES - 16))) return 3;
    memset(blocks[i], (int)i | 1, BLOCK_BYTES - 16);
  }
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof at;
  if (bind(listener, (struct sockaddr *)&at, length) || listen(listener, 4) ||
      getsockname(listener, (struct sockaddr *)&at, &length))
    return 3;
  printf("%d\n", ntohs(at.sin_port));
  fflush(stdout);
  uint64_t state = 1, request;
  for (;;) {
    int peer = accept(listener, 0, 0);
    if (peer < 0 || no_delay(peer)) return 3;
    while (recv(peer, &request, sizeof request, MSG_WAITALL) == sizeof request) {
      for (int i = 0; i < BLOCKS_A_REQUEST; i++)
        memset(blocks[random_next(&state) % count], (int)request | 1, BLOCK_BYTES - 16);
      if (send(peer, &request, sizeof request, MSG_NOSIGNAL) != sizeof request) break;
    }
    close(peer);
  }
}

static int by_size(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static int load(int port, double rate, double seconds) {
  size_t count = (size_t)(rate * seconds);
  int64_t *took = malloc(count * sizeof *took), gap = (int64_t)(1e9 / rate);
  int server = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (!took || connect(server, (struct sockaddr *)&at, sizeof at) || no_delay(server)) return 3;
  int64_t begin = now_ns();
  for (size_t i = 0; i < count; i++) {
    int64_t due = begin + (int64_t)i * gap;
    struct timespec until = {due / 1000000000, due % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
    uint64_t request = i;
    if (send(server, &request, sizeof request, 0) != sizeof request ||
        recv(server, &request, sizeof request, MSG_WAITALL) != sizeof request)
      return 3;
    took[i] = now_ns() - due;
  }
  double lasted = (double)(now_ns() - begin) / 1e9;
  qsort(took, count, sizeof *took, by_size);
  printf("{\"requests_a_second\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"most_us\": %.1f}\n",
         (double)count / lasted, (double)took[count / 2] / 1e3, (double)took[count * 99 / 100] / 1e3,
         (double)took[(size_t)((double)count * 0.999)] / 1e3, (double)took[count - 1] / 1e3);
  return 0;
}

int main(int count, char **values) {
  if (count == 2) return serve(atof(values[1]));
  if (count == 5 && !strcmp(values[1], "load")) return load(atoi(values[2]), atof(values[3]), atof(values[4]));
  return 2;
}
