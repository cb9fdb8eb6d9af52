#!/usr/bin/env python3
"""A load for examples/server.c: `load.py PORT [REQUESTS]` sends requests over connections of eight each.

Exits with 1, and a line that says why, where the server does not answer each of them with `ok`.
"""

import socket
import sys

REQUESTS_PER_CONNECTION = 8


def main():
    port = int(sys.argv[1])
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 320
    while requests > 0:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as server, server.makefile("rb") as answers:
            for _ in range(min(requests, REQUESTS_PER_CONNECTION)):
                server.sendall(b"work\n")
                answer = answers.readline()
                if answer != b"ok\n":
                    sys.exit(f"load: the server answered {answer!r}")
        requests -= REQUESTS_PER_CONNECTION


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"load: {error}")
