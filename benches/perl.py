"""Measures what the reader of Perl adds to `explain`, on a heap of 1 GiB in 5 million values.

Called by run.sh: perl.py WORK OUT. With the reader and without (--no-runtimes) take turns on one process.
"""
import json
import os
import statistics
import subprocess
import sys

from shared import MIB, OUT, STRANDLINE, WORK, figure, timed, write

ROUNDS = int(os.environ.get("BENCH_PERL_ROUNDS", "7"))
VALUES = int(os.environ.get("BENCH_PERL_VALUES", "5000000"))
PERL = os.environ.get("BENCH_PERL", "perl")
SUBJECTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "subjects", "perl")


def look(pid, *more):
    wall, peak, out = timed([STRANDLINE, "explain", "--json", *more, str(pid)])
    document = json.loads(out)
    cost = document["cost"]
    return {"wall": wall, "peak": max(peak, cost["peak_rss_bytes"] or 0), "stopped": cost["stopped_seconds"],
            "read": cost["bytes_read"], "document": document}


def main():
    subject = subprocess.Popen([PERL, f"-I{SUBJECTS}", os.path.join(SUBJECTS, "retained.pl"), "big", str(VALUES)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    looks = {"with": [], "without": []}
    try:
        line = subject.stdout.readline()
        if not line:
            sys.exit("bench: retained.pl big did not start (perl with its core modules? memory?)")
        version = json.loads(line)["version"]
        for turn in range(ROUNDS):
            # Which goes first changes from turn to turn.
            for which in (("with", "without") if turn % 2 == 0 else ("without", "with")):
                looks[which].append(look(subject.pid, *([] if which == "with" else ["--no-runtimes"])))
    finally:
        subject.kill()
        subject.wait()

    def of(which, key):
        return [one[key] for one in looks[which]]

    def pairs(key):
        return [a - b for a, b in zip(of("with", key), of("without", key))]

    def ratios(key):
        return [a / b for a, b in zip(of("with", key), of("without", key))]

    median = statistics.median
    document = looks["with"][-1]["document"]
    runtime = next((one for one in document["runtimes"] if one["name"] == "perl"), {})
    interpreter = next(iter((runtime.get("perl") or {}).get("interpreters") or []), {})
    live, count = (interpreter.get("heads") or {}).get("live"), interpreter.get("sv_count")
    rss = document["kernel"]["rss_bytes"]
    name = f"{rss / MIB:.0f} MiB in {count:,} values" if count else f"{rss / MIB:.0f} MiB"
    rows = [
        (f"{name}: the reader adds at most 1.0 s", figure(pairs("wall"), suffix=" s"), median(pairs("wall")) <= 1.0),
        ("it adds at most 64 MiB of memory", figure(pairs("peak"), MIB, 0, " MiB"), max(pairs("peak")) <= 64 * MIB),
        ("explain with it takes, of its time without", figure(ratios("wall"), 1, 2, " ×"), None),
        ("the process is stopped, of that time without", figure(ratios("stopped"), 1, 2, " ×"), None),
        ("values counted less PL_sv_count", f"{live - count}" if count else "not read", bool(count) and live == count),
    ]
    lines = ["| explain | wall | stopped | peak memory | read |", "|---|---|---|---|---|"]
    for which, title in (("without", "without runtimes"), ("with", "with the reader of Perl")):
        lines.append(f"| {title} | {figure(of(which, 'wall'), suffix=' s')} | {figure(of(which, 'stopped'), suffix=' s')} | "
                     f"{figure(of(which, 'peak'), MIB, 0, ' MiB')} | {figure(of(which, 'read'), MIB, 0, ' MiB')} |")
    lines += ["", f"perl {version}, {ROUNDS} turns on one process; `BENCH=perl benches/run.sh` repeats them."]
    write("perl", rows, lines)


main()
