"""Measures what the reader of Perl adds to `explain`, on a heap of 1 GiB in 5 million values, and on a hash of small arrays.

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


def looks_at(script, *arguments):
    """Looks with the reader and without, in turns, at a process that runs `script`."""
    subject = subprocess.Popen([PERL, f"-I{SUBJECTS}", os.path.join(SUBJECTS, script), *arguments],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    looks = {"with": [], "without": []}
    try:
        line = subject.stdout.readline()
        if not line:
            sys.exit(f"bench: {script} did not start (perl with its core modules? memory?)")
        version = json.loads(line)["version"]
        for turn in range(ROUNDS):
            # Which goes first changes from turn to turn.
            for which in (("with", "without") if turn % 2 == 0 else ("without", "with")):
                looks[which].append(look(subject.pid, *([] if which == "with" else ["--no-runtimes"])))
    finally:
        subject.kill()
        subject.wait()
    return looks, version


def claims(looks, seconds):
    """What is promised of one process, what was measured, and whether it holds: rows of a table."""
    def pairs(key):
        return [a[key] - b[key] for a, b in zip(looks["with"], looks["without"])]

    def ratios(key):
        return [a[key] / b[key] for a, b in zip(looks["with"], looks["without"])]

    median = statistics.median
    document = looks["with"][-1]["document"]
    runtime = next((one for one in document["runtimes"] if one["name"] == "perl"), {})
    interpreter = next(iter((runtime.get("perl") or {}).get("interpreters") or []), {})
    live, count = (interpreter.get("heads") or {}).get("live"), interpreter.get("sv_count")
    rss, own = document["kernel"]["rss_bytes"], document["kernel"]["anonymous_bytes"]
    name = f"{rss / MIB:.0f} MiB in {count:,} values" if count else f"{rss / MIB:.0f} MiB"
    return [
        (f"{name}: the process is stopped at most twice as long as without the reader",
         figure(ratios("stopped"), 1, 2, " ×"), median(ratios("stopped")) <= 2),
        (f"the reader adds at most {seconds} s", figure(pairs("wall"), suffix=" s"), median(pairs("wall")) <= seconds),
        (f"it adds at most a copy of the process's {own / MIB:.0f} MiB and 64 MiB of memory",
         figure(pairs("peak"), MIB, 0, " MiB"), max(pairs("peak")) <= own * 17 / 16 + 64 * MIB),
        ("explain with it takes, of its time without", figure(ratios("wall"), 1, 2, " ×"), None),
        ("values counted less PL_sv_count", f"{live - count}" if count else "not read", bool(count) and live == count),
    ]


def main():
    big, version = looks_at("retained.pl", "big", str(VALUES))
    small, _ = looks_at("hash.pl", "300000")
    lines = ["| explain | wall | stopped | peak memory | read |", "|---|---|---|---|---|"]
    for looks, what in ((big, "1 GiB"), (small, "a hash of small arrays")):
        for which, title in (("without", "without runtimes"), ("with", "with the reader of Perl")):
            of = {key: [one[key] for one in looks[which]] for key in ("wall", "stopped", "peak", "read")}
            lines.append(f"| {what}, {title} | {figure(of['wall'], suffix=' s')} | {figure(of['stopped'], suffix=' s')} | "
                         f"{figure(of['peak'], MIB, 0, ' MiB')} | {figure(of['read'], MIB, 0, ' MiB')} |")
    lines += ["", f"perl {version}, {ROUNDS} turns on each process; `BENCH=perl benches/run.sh` repeats them."]
    write("perl", claims(big, 1.0) + claims(small, 0.3), lines)


main()
