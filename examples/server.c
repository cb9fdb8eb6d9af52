/* A small TCP server whose memory stays high after its load: a subject for `strandline try` in server mode.
 *
 *   cc -O2 -pthread -o /tmp/server examples/server.c
 *   strandline try --ready port=7007 --load 'python3 examples/load.py 7007' --settle 1 -- /tmp/server 7007
 *
 * Worker threads take connections in turn. A request (one line) allocates a few megabytes in blocks of 200 to
 * 4,000 bytes, keeps a small session at the end of them, frees the rest and answers `ok`. glibc gives each thread
 * an arena of its own (up to 8 a processor): every arena keeps the memory of its thread's largest request, below
 * the session that was allocated last. */
#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKERS = 16, BLOCKS = 2600, SESSION_BYTES = 600, MAX_SESSIONS = 100000 };

static int listener;
static char *sessions[MAX_SESSIONS];
static unsigned session_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_session(char *session) {
    pthread_mutex_lock(&lock);
    if (session_count < MAX_SESSIONS)
        sessions[session_count++] = session;
    else
        free(session);
    pthread_mutex_unlock(&lock);
}

static int work(unsigned *seed) {
    char *blocks[BLOCKS];
    size_t sum = 0;
    for (int i = 0; i < BLOCKS; i++) {
        *seed = *seed * 1103515245u + 12345u;
        size_t bytes = 200 + (*seed >> 8) % 3800;
        blocks[i] = malloc(bytes);
        if (!blocks[i])
            return -1;
        memset(blocks[i], i, bytes);
        sum += (unsigned char)blocks[i][bytes / 2];
    }
    char *session = malloc(SESSION_BYTES);
    if (!session)
        return -1;
    memset(session, (int)sum, SESSION_BYTES);
    keep_session(session);
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    return 0;
}

/* One connection in turn for each worker, so that the arenas of all of them see work, whatever the scheduler does. */
static unsigned turn;
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed = PTHREAD_COND_INITIALIZER;

static int accept_in_turn(unsigned worker) {
    pthread_mutex_lock(&turn_lock);
    while (turn != worker)
        pthread_cond_wait(&turn_changed, &turn_lock);
    pthread_mutex_unlock(&turn_lock);
    int connection = accept(listener, NULL, NULL);
    pthread_mutex_lock(&turn_lock);
    turn = (turn + 1) % WORKERS;
    pthread_cond_broadcast(&turn_changed);
    pthread_mutex_unlock(&turn_lock);
    return connection;
}

static void *serve(void *argument) {
    unsigned worker = (unsigned)(size_t)argument, seed = worker + 1;
    for (;;) {
        int connection = accept_in_turn(worker);
        if (connection < 0)
            continue;
        char request;
        ssize_t got;
        while ((got = read(connection, &request, 1)) == 1) {
            if (request != '\n')
                continue;
            const char *answer = work(&seed) == 0 ? "ok\n" : "no\n";
            if (write(connection, answer, 3) != 3)
                break;
        }
        close(connection);
    }
    return NULL;
}

int main(int count, char **arguments) {
    int port = count > 1 ? atoi(arguments[1]) : 0, on = 1;
    signal(SIGPIPE, SIG_IGN);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128)) {
        perror("server");
        return 1;
    }
    socklen_t length = sizeof address;
    getsockname(listener, (struct sockaddr *)&address, &length);
    for (size_t worker = 0; worker < WORKERS; worker++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)worker))
            return 1;
    }
    printf("listening on port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    pause();
    return 0;
}
