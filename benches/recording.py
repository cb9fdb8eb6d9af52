"""Measures what recording costs: the command, the machine, the file; and how fast a report of it is.

Called by run.sh: recording.py WORK OUT. A command is run alone and recorded in turns; what is compared is the
processor time that it took itself, as it prints it.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys

from shared import MIB, STRANDLINE, WORK, figure, timed, write

PAIRS = int(os.environ.get("BENCH_PAIRS", "15"))
SECONDS = os.environ.get("BENCH_SECONDS", "2")
IDLE_SECONDS = int(os.environ.get("BENCH_IDLE_SECONDS", "60"))
PROGRAM = os.path.join(WORK, "work")
FILE = os.path.join(WORK, "bench.strandline")
TRUE = shutil.which("true")


def taken(command):
    """The processor time in microseconds that the work under `command` says it took."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(command)}: status {done.returncode}: {done.stderr.strip()[-400:]}")
    lines = [line for line in done.stdout.splitlines() if line.replace(" ", "").isdigit()]
    return int(lines[0].split()[0])


def recorded(interval):
    return [STRANDLINE, "run", "-o", FILE, "--interval", interval, "--"]


def overhead(work, wrappers, pairs=PAIRS):
    """For each wrapper the ratios of the work's own time with it and without, pair by pair."""
    command = [PROGRAM, work, SECONDS] + ([TRUE] if work == "forks" else [])
    ratios = {name: [] for name in wrappers}
    taken(command)
    for turn in range(pairs):
        for name, wrapper in wrappers.items():
            # Alone first and last by turns: a drift of the machine falls on both.
            pair = [command, wrapper + command]
            first = turn % 2
            times = {first: taken(pair[first]), 1 - first: taken(pair[1 - first])}
            ratios[name].append(times[1] / times[0])
    return ratios


def others():
    found, missing = {}, []
    for name, wrapper in (("heaptrack", ["heaptrack", "-o", os.path.join(WORK, "heaptrack")]),
                          ("massif", ["valgrind", "--tool=massif", "--massif-out-file=/dev/null", "-q"])):
        if shutil.which(wrapper[0]):
            found[name] = wrapper
        else:
            missing.append(f"{name} is not measured: no {wrapper[0]} here (apt-get install {wrapper[0]})")
    return found, missing


def document():
    done = subprocess.run([STRANDLINE, "report", FILE, "--format", "json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def idle():
    """What recording an idle process takes, and what a day of it would."""
    subprocess.run(recorded("1ms") + ["sleep", str(IDLE_SECONDS)], check=True)
    cost = document()["cost"]
    share = cost["samples"] / (cost["samples"] + cost["missed"])
    bare = taken([PROGRAM, "wake", str(IDLE_SECONDS)]) / 1e6 / IDLE_SECONDS
    day = os.path.getsize(FILE) * 86400 / IDLE_SECONDS
    return share, cost["own_cpu_seconds"] / IDLE_SECONDS, bare, cost["own_peak_rss_bytes"], day


def mark_cost():
    """Microseconds a mark, as the program sees it, without ledgers."""
    script = """
import os, time
fd = int(os.environ["STRANDLINE_MARK_FD"])
times = []
for number in range(2000):
    before = time.perf_counter_ns()
    os.write(fd, b"mark\\n")
    os.read(fd, 1)
    times.append((time.perf_counter_ns() - before) / 1000)
times.sort()
print(times[len(times) // 2])
"""
    command = [STRANDLINE, "run", "-o", FILE, "--ledger", "none", "--", sys.executable, "-c", script]
    return [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)]


def hour(hours_program):
    """How long reports of an hour at 1 kHz take, in which every sample differs; and their memory."""
    path = os.path.join(WORK, "hour.strandline")
    subprocess.run([hours_program, path], check=True)
    results = {}
    for kind in ("chart", "html", "svg", "png", "csv", "json"):
        flags = [] if kind == "chart" else ["--format", kind, "-o", os.path.join(WORK, "report")]
        runs = [timed([STRANDLINE, "report", path, *flags])[:2] for _ in range(3)]
        results[kind] = ([wall for wall, _ in runs], max(peak for _, peak in runs))
    return os.path.getsize(path), results


def main():
    claims, lines = [], []
    share, cpu, bare, peak, day = idle()
    claims.append((f"idle process at 1 kHz, {IDLE_SECONDS} s: at least 99.5 % of instants sampled", f"{share * 100:.2f} %", share >= 0.995))
    claims.append(("the same: strandline's own processor time at most 3 % of a core", f"{cpu * 100:.2f} %", cpu <= 0.03))
    claims.append(("beside it: a program that only wakes up 1,000 times a second", f"{bare * 100:.2f} %", None))
    claims.append(("the same: its memory at most 20 MiB", f"{peak / MIB:.1f} MiB", peak <= 20 * MIB))
    claims.append(("the same: a day takes at most 200 MB", f"{day / 1e6:.1f} MB", day <= 200e6))
    wrappers = {"1 kHz": recorded("1ms"), "10 Hz": recorded("100ms")}
    bounds = {"1 kHz": 1.01, "10 Hz": 1.001}
    table = []
    beside, missing = others()
    for work in ("cpu", "alloc"):
        ratios = overhead(work, wrappers)
        for name, bound in bounds.items():
            median = statistics.median(ratios[name])
            claims.append((f"{work}, recorded at {name}: at most ×{bound} of its own time", "×" + figure(ratios[name], digits=4), median <= bound))
        for name, values in overhead(work, beside, 1).items():
            table.append((work, name, "×" + figure(values, digits=2)))
    ratios = overhead("forks", {"1 kHz": recorded("1ms")})["1 kHz"]
    claims.append(("1,000 fork+execs a second, recorded at 1 kHz: at most ×1.15 of their time", "×" + figure(ratios, digits=3), statistics.median(ratios) <= 1.15))
    marks = mark_cost()
    claims.append(("a mark without a ledger: under 100 µs at the median", figure(marks, digits=1, suffix=" µs"), statistics.median(marks) < 100))
    echoes = [taken([PROGRAM, "echo", "1"]) for _ in range(5)]
    claims.append(("beside it: a line and its answer between two programs", figure(echoes, digits=0, suffix=" µs"), None))
    size, reports = hour(os.environ["HOUR"])
    for kind in ("chart", "html"):
        walls, peak = reports[kind]
        claims.append((f"report of an hour at 1 kHz, {kind}: under 3 s", figure(walls, suffix=" s"), statistics.median(walls) < 3))
        claims.append((f"the same: at most 200 MB", f"{peak / 1e6:.0f} MB", peak <= 200e6))
    lines += ["| work | under | its own time |", "|---|---|---|", *(f"| {work} | {name} | {ratio} |" for work, name, ratio in table), ""]
    lines += missing
    lines += [f"An hour in which every sample differs takes {size / MIB:.0f} MiB. Other reports of it:", "",
              "| format | time | peak memory |", "|---|---|---|"]
    lines += [f"| {kind} | {figure(walls, suffix=' s')} | {peak / MIB:.0f} MiB |" for kind, (walls, peak) in reports.items()]
    lines += ["", f"{PAIRS} pairs a ratio, {SECONDS} s of work each; `BENCH=recording benches/run.sh` repeats them."]
    write("recording", claims, lines)


main()
