"""Measures `explain` against gdb's gcore on one process, and on an idle shell.

Called by run.sh: explain.py WORK OUT. Both tools look at the same process in turns, so that what
else the machine does falls on both. Every table gives medians and the range they come from.
"""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from shared import MIB, OUT, STRANDLINE, WORK, Started, figure, timed, write

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
IDLE_ROUNDS = int(os.environ.get("BENCH_IDLE_ROUNDS", "30"))
SIZES = [float(gib) for gib in os.environ.get("BENCH_GIB", "1 4").split()]
CHUNKS_THOUSAND_A_GIB = 3000  # 12 million chunks in 4 GiB


def fits_on_disk(bytes_needed):
    return shutil.disk_usage(WORK).free > bytes_needed * 1.2


class BigHeap(Started):
    """The subject: GIB GiB of heap, most of it freed in random order."""

    def __init__(self, gib):
        chunks = str(int(gib * CHUNKS_THOUSAND_A_GIB))
        super().__init__([os.path.join(WORK, "big_heap"), str(gib), chunks, "random", "4"])
        self.ready = json.loads(self.line)


def gcore(pid):
    prefix = os.path.join(WORK, "core")
    wall, peak, _ = timed(["gcore", "-o", prefix, str(pid)])
    path = f"{prefix}.{pid}"
    size = os.stat(path).st_size
    os.unlink(path)
    return wall, peak, size


def big_heap(gib):
    """One heap size: explain and gcore in turns, then mallinfo and the trim against the subject's own."""
    result = {"gib": gib, "explain": [], "peak": [], "stopped": [], "gcore": [], "gcore_peak": [], "core": None}
    with BigHeap(gib) as subject:
        pid = subject.process.pid
        with_gcore = fits_on_disk(gib * 1024 * MIB)
        for turn in range(ROUNDS):
            # Which goes first changes from turn to turn.
            for which in (("explain", "gcore") if turn % 2 == 0 else ("gcore", "explain")):
                if which == "explain":
                    wall, peak, out = timed([STRANDLINE, "explain", "--json", str(pid)])
                    document = json.loads(out)
                    result["explain"].append(wall)
                    result["peak"].append(max(peak, document["cost"]["peak_rss_bytes"] or 0))
                    result["stopped"].append(document["cost"]["stopped_seconds"])
                elif with_gcore:
                    wall, peak, result["core"] = gcore(pid)
                    result["gcore"].append(wall)
                    result["gcore_peak"].append(peak)
        glibc = [a for a in document["allocators"] if a["name"] == "glibc"]
        theirs = subject.ready["mallinfo"]
        result["differs"] = [k for k, v in theirs.items() if not glibc or glibc[0]["mallinfo"].get(k) != v]
        result["rss"] = document["kernel"]["rss_bytes"]
        result["free_chunks"] = theirs["ordblks"] + theirs["smblks"]
        result["chunks"] = subject.ready["chunks"]
        result["predicted"] = next((r["predicted_bytes"] for r in document["remedies"] if r["id"] == "malloc_trim"), 0)
        result["actual"] = subject.ask("t")["given_back_bytes"]
    result["allowed_peak"] = 16 * MIB + 0.02 * result["rss"] + 8 * result["free_chunks"]
    return result


def small_blocks():
    """Half a GiB of six million small blocks, as many a MiB as an interpreter has: the walk is over chunks, not over bytes."""
    stopped = []
    subject = subprocess.Popen([os.path.join(WORK, "big_heap"), "0.5", "6000", "random", "60"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if not subject.stdout.readline():
            sys.exit("bench: big_heap of small blocks did not start (memory?)")
        for _ in range(ROUNDS + 2):
            _, _, out = timed([STRANDLINE, "explain", "--json", str(subject.pid)])
            document = json.loads(out)
            stopped.append(document["cost"]["stopped_seconds"] / (document["kernel"]["rss_bytes"] / (1 << 30)))
    finally:
        subject.kill()
        subject.wait()
    return stopped


def idle_shell():
    walls, stopped = [], []
    with subprocess.Popen(["bash", "--norc", "-c", "read -r line"], stdin=subprocess.PIPE) as shell:
        time.sleep(0.3)
        for _ in range(IDLE_ROUNDS):
            started = time.perf_counter()
            done = subprocess.run([STRANDLINE, "explain", "--json", str(shell.pid)], capture_output=True, text=True)
            walls.append(time.perf_counter() - started)
            if done.returncode != 0:
                sys.exit(f"bench: explain of an idle shell: {done.stderr.strip()}")
            stopped.append(json.loads(done.stdout)["cost"]["stopped_seconds"])
        shell.stdin.close()
    return walls, stopped


def claims(results, walls, stopped, small):
    """What is promised, what was measured, and whether it holds: rows of a table."""
    median = statistics.median
    big = results[-1]
    rows = []
    if big["gcore"]:
        ratio = median(big["explain"]) / median(big["gcore"])
        rows.append((f"{big['gib']:g} GiB: explain takes at most 1/10 of gcore", f"{ratio:.3f}", ratio <= 0.1))
    else:
        rows.append((f"{big['gib']:g} GiB: explain takes at most 1/10 of gcore", "no room on disk for the core", False))
    rows.append((f"{big['gib']:g} GiB: stopped at most 0.8 s", figure(big["stopped"], suffix=" s"), median(big["stopped"]) <= 0.8))
    rows.append((f"{big['gib']:g} GiB: peak memory at most 16 MiB + 2 % of the heap + 8 bytes a free chunk "
                 f"= {big['allowed_peak'] / MIB:.0f} MiB", figure(big["peak"], MIB, 0, " MiB"), max(big["peak"]) <= big["allowed_peak"]))
    if len(results) > 1:
        smallest = results[0]
        growth, size = median(big["explain"]) / median(smallest["explain"]), big["gib"] / smallest["gib"]
        rows.append((f"{smallest['gib']:g} → {big['gib']:g} GiB: grows no more than linearly (×{size:g})", f"×{growth:.2f}", growth <= size))
    rows.append(("idle shell: explain under 30 ms", figure(walls, 1e-3, 1, " ms"), median(walls) < 0.030))
    rows.append(("idle shell: stopped under 5 ms", figure(stopped, 1e-3, 2, " ms"), median(stopped) < 0.005))
    rows.append(("half a GiB in 6 million blocks: stopped at most 0.4 s a GiB", figure(small, suffix=" s a GiB"),
                 median(small) <= 0.4))
    for result in results:
        differing = ", ".join(result["differs"]) or "none"
        rows.append((f"{result['gib']:g} GiB: mallinfo fields that differ from mallinfo2()", differing, not result["differs"]))
        error = abs((result["predicted"] or 0) - result["actual"])
        rows.append((f"{result['gib']:g} GiB: malloc_trim predicted − actual", f"{error} of {result['actual']} bytes", error == 0))
    return rows


def main():
    walls, stopped = idle_shell()
    results = [big_heap(gib) for gib in SIZES]
    lines = ["| heap | chunks | free chunks | explain | stopped | peak memory | gcore | its peak memory | its core |",
             "|---|---|---|---|---|---|---|---|---|"]
    for r in results:
        beside = ([figure(r["gcore"], suffix=" s"), figure(r["gcore_peak"], MIB, 0, " MiB"), f"{r['core'] / MIB:.0f} MiB"]
                  if r["gcore"] else ["not run: no room on disk", "", ""])
        cells = [f"{r['rss'] / MIB:.0f} MiB", f"{r['chunks']:,}", f"{r['free_chunks']:,}", figure(r["explain"], suffix=" s"),
                 figure(r["stopped"], suffix=" s"), figure(r["peak"], MIB, 0, " MiB"), *beside]
        lines.append("| " + " | ".join(cells) + " |")
    gdb = subprocess.run(["gdb", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    lines += ["", f"{ROUNDS} turns a heap, {IDLE_ROUNDS} runs on the idle shell; gcore of {gdb}. The tools took turns on one process."]
    write("explain", claims(results, walls, stopped, small_blocks()), lines)


main()
