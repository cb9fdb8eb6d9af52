"""Takes strandline's place: runs a command with a mark socket, answers its marks, and writes the marks as
JSON. The scenarios are faults of that socket.

    python3 serve.py REPORT SCENARIO DESCRIPTOR COMMAND...

SCENARIO: absent (no variable), value=TEXT (the variable has the value TEXT), closed (no such descriptor),
file (the descriptor is a file, REPORT.file), datagram (a datagram socket), hangup (the other end is closed),
leaves=N (closes the connection instead of answering mark N, counted from 1), slow (a non-blocking socket,
answers after 2 ms), serve.
Ends with the command's status. Reads /proc/PID/status and never the command's memory.
"""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time


def kib(pid, key):
    with open("/proc/%d/status" % pid) as lines:
        for line in lines:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    return None


def mark(name, pid):
    # A loop that marks 100,000 times is measured at its ends only.
    if name == "quiet":
        return None
    return {"name": name, "pid": pid, "rss_kib": kib(pid, "VmRSS"), "data_kib": kib(pid, "VmData")}


def serve(ours, scenario, marks, counted):
    kind, _, number = scenario.partition("=")
    leave = int(number) if kind == "leaves" else 0
    waiting = b""
    while True:
        data, ancillary, _, _ = ours.recvmsg(65536, socket.CMSG_SPACE(12))
        if not data:
            return
        pid = struct.unpack("3i", ancillary[0][2])[0]
        waiting += data
        while b"\n" in waiting:
            line, waiting = waiting.split(b"\n", 1)
            counted[0] += 1
            seen = mark(line.decode("utf-8", "replace"), pid)
            if seen:
                marks.append(seen)
            if counted[0] == leave:
                # Closes both directions at once, as the kernel does when the last holder is killed.
                ours.shutdown(socket.SHUT_RDWR)
                return
            if kind == "slow":
                time.sleep(0.002)
            ours.sendall(b"\n")


def answer(*arguments):
    try:
        serve(*arguments)
    except ConnectionError:
        # The command has ended with an answer unread.
        pass


def child(theirs, scenario, descriptor, report, command):
    # Python ignores these signals, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    kind, _, text = scenario.partition("=")
    value = text if kind == "value" else str(descriptor)
    os.environ["STRANDLINE_MARK_FD"] = value
    if kind == "absent":
        del os.environ["STRANDLINE_MARK_FD"]
    elif kind == "file":
        os.dup2(os.open(report + ".file", os.O_RDWR | os.O_CREAT), descriptor)
    elif kind == "closed":
        os.closerange(descriptor, descriptor + 1)
    else:
        os.dup2(theirs.fileno(), descriptor)
    os.execvp(command[0], command)


def main():
    report, scenario, descriptor, command = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
    kind = socket.SOCK_DGRAM if scenario == "datagram" else socket.SOCK_STREAM
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    if scenario == "slow":
        theirs.setblocking(False)
    pid = os.fork()
    if pid == 0:
        try:
            child(theirs, scenario, descriptor, report, command)
        except OSError as error:
            print(command[0], error, file=sys.stderr)
        os._exit(127)
    marks, counted = [], [0]
    if scenario == "hangup":
        ours.close()
        theirs.close()
    else:
        theirs.close()
        threading.Thread(target=answer, args=(ours, scenario, marks, counted), daemon=True).start()
    status = os.WEXITSTATUS(code) if os.WIFEXITED(code := os.waitpid(pid, 0)[1]) else -os.WTERMSIG(code)
    with open(report, "w") as out:
        json.dump({"pid": pid, "status": status, "count": counted[0], "marks": marks}, out)
    sys.exit(status if status >= 0 else 128 - status)


main()
