"""Measures how long `explain` stops a process, by a stop and by a snapshot, and what a loaded server notices of both.

Called by run.sh: snapshot.py WORK OUT. The two ways look at the same process in turns; the server is loaded in turns
without anything, with a stop and with a snapshot in the middle.
"""
import json
import os
import shutil
import statistics
import subprocess
import time

from shared import STRANDLINE, WORK, Started, figure, write

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SIZES = [float(gib) for gib in os.environ.get("BENCH_GIB", "1 4").split()]
SERVER_GIB = os.environ.get("BENCH_SERVER_GIB", "1")
RATE, SECONDS = 2000, 8
WAYS = {"stop": ["--snapshot=never"], "snapshot": ["--snapshot"]}


class Subject(Started):
    """A process that is looked at in both ways."""

    def explain(self, way):
        command = [STRANDLINE, "explain", "--json", *WAYS[way], str(self.process.pid)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)


def pauses(name, command, wants, lines, claims):
    """Both ways on one process, in turns."""
    with Subject(command) as subject:
        time.sleep(0.5)
        # The first call may touch a page of the stack for the first time.
        subject.explain("snapshot")
        found = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way in WAYS:
                found[way].append(subject.explain(way))
    rss = found["stop"][0]["kernel"]["rss_bytes"] / (1 << 30)
    stopped = {way: [one["cost"]["stopped_seconds"] * 1e3 for one in all_] for way, all_ in found.items()}
    wall = {way: [one["cost"]["wall_seconds"] * 1e3 for one in all_] for way, all_ in found.items()}
    rows = {way: {row["id"]: row["bytes"] for row in all_[-1]["rows"]} for way, all_ in found.items()}
    same = "the same" if rows["stop"] == rows["snapshot"] else "**others**"
    lines.append(f"| {name} | {rss:.2f} | {figure(stopped['stop'], 1, 1)} | {figure(stopped['snapshot'], 1, 1)} | "
                 f"{figure(wall['stop'], 1, 0)} | {figure(wall['snapshot'], 1, 0)} | {same} |")
    bound = wants(rss)
    middle = statistics.median(stopped["snapshot"])
    if bound is not None:
        claims.append((f"{name}: by snapshot stopped at most {bound:.0f} ms", f"{middle:.1f} ms", middle <= bound))
    claims.append((f"{name}: rows by snapshot are those of a stop", same, rows["stop"] == rows["snapshot"]))


def by_size(gib):
    return 10 + 40 * gib


def server(lines):
    """Requests and their latency, with each way in the middle."""
    with Subject([os.path.join(WORK, "server"), SERVER_GIB]) as subject:
        port = subject.line.strip()
        found = {name: [] for name in ["nothing", *WAYS]}
        copied = []
        for _ in range(max(3, ROUNDS)):
            for name in found:
                load = subprocess.Popen([os.path.join(WORK, "server"), "load", port, str(RATE), str(SECONDS)],
                                        stdout=subprocess.PIPE, text=True)
                time.sleep(SECONDS / 3)
                if name != "nothing":
                    copied.append(subject.explain(name)["cost"].get("copied_pages"))
                found[name].append(json.loads(load.communicate()[0]))
    lines += ["", f"A server with {SERVER_GIB} GiB in blocks of 1,000 bytes that overwrites four of them at random for each of "
              f"{RATE:,} requests a second, for {SECONDS} s, with one `explain` in the middle; latency from the moment a "
              "request was due:", "", "| beside it | requests/s | p50 µs | p99 µs | p99.9 ms | longest ms |", "|---|---|---|---|---|---|"]
    for name, all_ in found.items():
        of = {key: [one[key] for one in all_] for key in all_[0]}
        lines.append(f"| {name} | {figure(of['requests_a_second'], 1, 0)} | {figure(of['p50_us'], 1, 0)} | "
                     f"{figure(of['p99_us'], 1, 0)} | {figure(of['p999_us'], 1e3, 1)} | {figure(of['most_us'], 1e3, 1)} |")
    pages = [one for one in copied if one is not None]
    lines.append(f"\nPages that the server copied, or touched first, during a snapshot: {figure(pages, 1, 0)}.")


def main():
    lines = ["| process | GiB | stopped ms: stop | snapshot | in all ms: stop | snapshot | rows |",
             "|---|---|---|---|---|---|---|"]
    claims = []
    for gib in SIZES:
        heap = [os.path.join(WORK, "big_heap"), str(gib), str(int(gib * 3000)), "random", "4"]
        pauses(f"glibc, {gib:g} GiB", heap, by_size, lines, claims)
    script = "my %h; $h{$_} = [$_, $_] for 1 .. 3_000_000; $| = 1; print qq(ok\\n); <STDIN>"
    if shutil.which("perl"):
        pauses("Perl, 3 million arrays", ["perl", "-e", script], by_size, lines, claims)
    if shutil.which("sbcl"):
        script = '(progn (defvar *all* (loop for i below 8000000 collect (make-string 20))) (format t "ok~%") (finish-output) (read-line))'
        sbcl = ["sbcl", "--dynamic-space-size", "4GB", "--noinform", "--no-sysinit", "--no-userinit", "--eval", script]
        pauses("SBCL, 8 million strings", sbcl, by_size, lines, claims)
    maps = os.path.join(WORK, "many_maps")
    pauses("20,000 mappings", [maps, "20000", "0"], lambda gib: None, lines, claims)
    pauses("2,000 threads", [maps, "100", "2000"], lambda gib: by_size(gib) + 60, lines, claims)
    pauses("2,000 threads, 56,000 mappings", [maps, "56000", "2000"], lambda gib: None, lines, claims)
    server(lines)
    write("snapshot", claims, lines)


main()
