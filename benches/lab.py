"""Measures what the lab costs a run, and how often its comparisons are right.

Called by run.sh: lab.py WORK OUT. A thousand trivial runs are made by the lab and by a loop of the shell in turns;
comparisons are of commands whose difference is known.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys

from shared import STRANDLINE, WORK, figure, timed, write

PAIRS = int(os.environ.get("BENCH_LAB_PAIRS", "7"))
COMPARISONS = int(os.environ.get("BENCH_COMPARISONS", "100"))
CELLS = 1000
PROGRAM = os.path.join(WORK, "lab")
TRUE = shutil.which("true")
ENVIRONMENT = {**os.environ, "XDG_CACHE_HOME": os.path.join(WORK, "cache")}


def lab(*arguments):
    done = subprocess.run([STRANDLINE, "--json", *arguments], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"bench: {arguments}: status {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def cells():
    """The ratios of the lab's time for a thousand runs to a shell loop's, pair by pair; milliseconds a run of its own."""
    out, err = os.path.join(WORK, "loop.out"), os.path.join(WORK, "loop.err")
    script = f"i=0; while [ $i -lt {CELLS} ]; do {TRUE} </dev/null >{out} 2>{err}; i=$((i+1)); done"
    loop = ["sh", "-c", script]
    os.environ["XDG_CACHE_HOME"] = ENVIRONMENT["XDG_CACHE_HOME"]
    trivial = [STRANDLINE, "--json", "compare", "--warm-up", "0", "--repeat", str(CELLS // 2), TRUE, TRUE]
    ratios, own = [], []
    for turn in range(PAIRS):
        # First and last by turns: a drift of the machine falls on both.
        times = {}
        for which in ((0, 1), (1, 0))[turn % 2]:
            wall, _, text = timed((loop, trivial)[which])
            times[which] = wall
            if which == 1:
                samples = json.loads(text)["metrics"]["wall_seconds"]
                ran = sum(samples["a"]["samples"]) + sum(samples["b"]["samples"])
                own.append((wall - ran) * 1000 / CELLS)
        ratios.append(times[1] / times[0])
    return ratios, own


def right(count, flags, commands, is_right):
    """How many of `count` comparisons say what is so."""
    return sum(is_right(lab("compare", "--seed", str(seed), *flags, *commands)) for seed in range(1, count + 1))


def is_more(metric):
    def says(found):
        low = found["metrics"][metric]["ratio"]["low"]
        return low is not None and low > 1
    return says


def squeezes():
    """Runs that a search takes, and how far its answer is from what the program's own map says."""
    lines = ["| limit | searched to | runs of the search | smallest | by the program's own map |", "|---|---|---|---|---|"]
    for kind, field in (("address_space", "VmPeak"), ("data", "VmData")):
        for resolution in ("1%", "4KiB"):
            command = [PROGRAM, "need", "100", "exit"]
            known = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)[field]
            found = lab("squeeze", "--kind", kind, "--resolution", resolution, "--rounds", "0", "--", *command)
            lines.append(f"| {kind} | {resolution} | {len(found['trials'])} | {found['smallest_bytes']:,} | {known:,} |")
    return lines


def main():
    ratios, own = cells()
    claims = [
        ("1,000 trivial runs: at most ×1.3 of a shell loop's time", "×" + figure(ratios), statistics.median(ratios) <= 1.3),
        ("the lab's own time a run: at most 5 ms", figure(own, suffix=" ms"), statistics.median(own) <= 5),
    ]
    enough = COMPARISONS * 0.95
    need = [f"{PROGRAM} need {mebibytes} exit" for mebibytes in (40, 40, 41)]
    same = right(COMPARISONS, [], need[:2], lambda found: found["verdict"] == "same")
    claims.append((f"a command and itself: the same in at least 95 of 100", f"{same} of {COMPARISONS}", same >= enough))
    more = right(COMPARISONS, [], need[1:], is_more("high_water_bytes"))
    claims.append(("1 MiB more of 40 is found in at least 95 of 100", f"{more} of {COMPARISONS}", more >= enough))
    if shutil.which("valgrind"):
        work = [f"{PROGRAM} work {thousands}" for thousands in (1000, 1020)]
        more = right(COMPARISONS, ["--instructions", "--repeat", "5"], work, is_more("instructions"))
        claims.append(("2 % more instructions are found in at least 95 of 100", f"{more} of {COMPARISONS}", more >= enough))
        lines = []
    else:
        lines = ["Instructions are not measured: no valgrind here (apt-get install valgrind).", ""]
    lines += squeezes()
    lines += ["", f"{PAIRS} pairs a ratio, {COMPARISONS} comparisons; `BENCH=lab benches/run.sh` repeats them."]
    write("lab", claims, lines)


main()
