"""Measures `explain` on an SBCL with a heap of a GiB: with and without the reader of runtimes, beside SBCL's own
full collection and beside the walk of a glibc heap of the same size.

Called by run.sh: sbcl.py WORK OUT. Each run is on the same process, in turns.
"""
import json
import os
import statistics
import subprocess
import sys
import time

from shared import MIB, STRANDLINE, WORK, Started, figure, timed, write

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
GIB = float(os.environ.get("BENCH_SBCL_GIB", "1"))
SBCL = os.environ.get("BENCH_SBCL", "sbcl")
HERE = os.path.dirname(os.path.abspath(__file__))
# Bytes of a message of the subject's kind `mixed`, with what comes with it, a quarter of it dead.
MESSAGE_BYTES = 304


class Heap(Started):
    """The subject: an SBCL whose dynamic space holds GIB GiB, a fifth of it dead."""

    def __init__(self):
        subject = os.path.join(os.path.dirname(HERE), "tests", "subjects", "sbcl", "subject.lisp")
        count = int(GIB * 1024 * MIB / MESSAGE_BYTES)
        command = [SBCL, "--dynamic-space-size", f"{int(GIB * 4) + 1}GB", "--script", subject, "kind=mixed",
                   f"count={count}", "census-less=1"]
        super().__init__(command)
        self.ready = json.loads(self.line)


def explain(pid, *arguments):
    wall, peak, out = timed([STRANDLINE, "explain", "--json", *arguments, str(pid)])
    document = json.loads(out)
    return wall, max(peak, document["cost"]["peak_rss_bytes"] or 0), document["cost"]["stopped_seconds"], document


def rss(pid):
    with open(f"/proc/{pid}/smaps_rollup") as text:
        return next(int(line.split()[1]) * 1024 for line in text if line.startswith("Rss:"))


def glibc_walk():
    """How long a process with as large a heap of malloc's is stopped."""
    chunks = str(int(GIB * 3000))
    command = [os.path.join(WORK, "big_heap"), str(GIB), chunks, "random", "4"]
    stopped = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as subject:
        subject.stdout.readline()
        for _ in range(ROUNDS):
            stopped.append(explain(subject.pid)[2])
        subject.kill()
    return stopped


def main():
    with_reader, without = [], []
    with Heap() as heap:
        pid = heap.process.pid
        for turn in range(ROUNDS):
            # Which goes first changes from turn to turn.
            for flag in ([], ["--no-runtimes"]) if turn % 2 == 0 else (["--no-runtimes"], []):
                (without if flag else with_reader).append(explain(pid, *flag))
        document = with_reader[-1][3]
        sbcl = next(runtime["sbcl"] for runtime in document["runtimes"] if runtime["name"] == "sbcl")
        before = rss(pid)
        started = time.perf_counter()
        after = heap.ask("g")
        collection = time.perf_counter() - started
        given_back = before - rss(pid)
        version = heap.ready["version"]
    walk = glibc_walk()
    column = lambda runs, at: [run[at] for run in runs]
    documents = column(with_reader, 3)
    # 0 where it was stopped for too long, and was let go untraced.
    trace = [next(r["sbcl"]["trace_seconds"] for r in d["runtimes"] if r["name"] == "sbcl") or 0 for d in documents]
    usage = sbcl["dynamic_usage_bytes"]
    predicted, actual = sbcl["usage_after_full_gc_bytes"] or 0, after["dynamic_usage_bytes"]
    median = statistics.median
    ratio = median(column(with_reader, 2)) / median(walk)
    objects = sum(entry["instances"] for entry in sbcl["live_by_type"] + sbcl["dead_by_type"])
    claims = [
        (f"{usage / MIB:.0f} MiB of dynamic space traced in at most 3 s", figure(trace, suffix=" s"), median(trace) <= 3),
        ("the same: explain as a whole in at most 3 s", figure(column(with_reader, 0), suffix=" s"),
         median(column(with_reader, 0)) <= 3),
        ("stopped no longer than for a glibc heap of that size", f"×{ratio:.2f}", ratio <= 1),
        ("usage after (gc :full t), predicted within 2 %", f"{100 * (predicted - actual) / actual:+.3f} %",
         abs(predicted - actual) <= 0.02 * actual),
        ("beside it: SBCL's own (gc :full t); the trace as a part of that", f"{collection:.2f} s; ×{median(trace) / collection:.2f}", None),
        ("turns in which it was traced", f"{sum(1 for seconds in trace if seconds)} of {ROUNDS}", all(trace)),
        ("RSS given back by it: predicted beside actual",
         f"{(sbcl['full_gc_gives_back_bytes'] or 0) / MIB:.1f} MiB, {given_back / MIB:.1f} MiB", None),
    ]
    lines = ["| explain | wall | stopped | peak memory |", "|---|---|---|---|"]
    for name, runs in (("with runtimes", with_reader), ("--no-runtimes", without)):
        lines.append(f"| {name} | {figure(column(runs, 0), suffix=' s')} | {figure(column(runs, 2), suffix=' s')} "
                     f"| {figure(column(runs, 1), MIB, 0, ' MiB')} |")
    lines.append(f"| a glibc heap of {GIB:g} GiB | | {figure(walk, suffix=' s')} | |")
    lines += ["", f"SBCL {version}; at least {objects:,} objects; {ROUNDS} turns. `BENCH=sbcl benches/run.sh` repeats them."]
    write("sbcl", claims, lines)


main()
