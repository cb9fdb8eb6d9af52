"""Measures how long `explain` stops a process with another malloc, by a stop and by default, and what memory it takes.

Called by run.sh: allocators.py WORK OUT. The same program with glibc's malloc is the ratio's other side, in turns.
"""
import os
import statistics

from shared import MIB, WORK, figure, looked_at, stopped_ms, write

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
GIB = os.environ.get("BENCH_ALLOCATORS_GIB", "4")
LIBRARIES = "/usr/lib/x86_64-linux-gnu/"
ALLOCATORS = {
    "glibc": None,
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "mimalloc": "libmimalloc.so.2",
}
WAYS = {"stop": ["--snapshot=never"], "default": []}


def one(name, freed, lines, claims):
    preload = [] if ALLOCATORS[name] is None else ["env", f"LD_PRELOAD={LIBRARIES}{ALLOCATORS[name]}"]
    found = looked_at([*preload, os.path.join(WORK, "small_blocks"), GIB, *freed], WAYS, ROUNDS)
    rss = found["stop"][0]["kernel"]["rss_bytes"]
    stopped = stopped_ms(found)
    wall = [one["cost"]["wall_seconds"] * 1e3 for one in found["default"]]
    peak = [one["cost"]["peak_rss_bytes"] / MIB for all_ in found.values() for one in all_]
    what = f"{name}, {'a third freed' if freed else 'all in use'}"
    lines.append(f"| {what} | {rss / (1 << 30):.2f} | {figure(stopped['stop'], 1, 0)} | {figure(stopped['default'], 1, 0)} | "
                 f"{figure(wall, 1, 0)} | {max(peak):.0f} |")
    if name == "glibc":
        return
    middle = statistics.median(stopped["default"])
    claims.append((f"{what}: stopped at most 0.25 s", f"{middle / 1e3:.3f} s", middle <= 250))
    bound = 16 + rss / MIB / 100
    claims.append((f"{what}: memory at most 16 MiB + 1 %, {bound:.0f} MiB", f"{max(peak):.0f} MiB", max(peak) <= bound))


def main():
    lines = ["", f"{GIB} GiB in blocks of 300 bytes; every figure of one process, looked at in both ways in turns.", "",
             "| process | GiB | stopped ms: stop | default | in all ms | peak MiB |", "|---|---|---|---|---|---|"]
    claims = []
    for freed in ([], ["free"]):
        for name, library in ALLOCATORS.items():
            if library is None or os.path.exists(LIBRARIES + library):
                one(name, freed, lines, claims)
            else:
                lines.append(f"| {name} | | not run: no {library} | | | |")
    write("allocators", claims, lines)


main()
