"""Measures `holders` beside `gcore` of the same process, in turns: time, memory a block, and the target's pause.

Called by run.sh: holders.py WORK OUT.
"""
import json
import os
import statistics

from shared import MIB, STRANDLINE, WORK, Started, figure, timed, write

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
BLOCKS = [int(count) for count in os.environ.get("BENCH_BLOCKS", "1000000 12000000").split()]
KINDS = os.environ.get("BENCH_KINDS", "graph list table").split()
# What is aimed at, of twelve million blocks.
MAX_SECONDS, MAX_BLOCK_BYTES, FREE_BYTES = 8, 24, 64 * MIB


def one(blocks, kind, lines, claims):
    core = os.path.join(WORK, "core")
    found, dumped, peaks = [], [], []
    with Started([os.path.join(WORK, "graph_heap"), str(blocks), kind]) as subject:
        pid = str(subject.process.pid)
        for _ in range(ROUNDS):
            _, peak, text = timed([STRANDLINE, "holders", "--json", pid])
            found.append(json.loads(text))
            peaks.append(peak)
            wall, _, _ = timed(["gcore", "-o", core, pid])
            dumped.append(wall)
            os.remove(f"{core}.{pid}")
    seconds = [one["cost"]["wall_seconds"] for one in found]
    stopped = [one["cost"]["stopped_seconds"] * 1e3 for one in found]
    bytes_a_block = max(0, max(peaks) - FREE_BYTES) / found[0]["live"]["blocks"]
    lost = found[0]["unreachable"]["blocks"]
    lines.append(f"| {kind} | {blocks} | {found[0]['live']['bytes'] / (1 << 30):.2f} | {lost} | {figure(seconds, 1, 1)} | {figure(stopped, 1, 0)} | "
                 f"{figure(dumped, 1, 1)} | {statistics.median(seconds) / statistics.median(dumped):.2f} | {bytes_a_block:.0f} |")
    if blocks >= 12000000:
        middle = statistics.median(seconds)
        claims.append((f"{kind}, {blocks} blocks: at most {MAX_SECONDS} s", f"{middle:.1f} s", middle <= MAX_SECONDS))
        claims.append((f"{kind}, {blocks} blocks: at most {MAX_BLOCK_BYTES} bytes each and 64 MiB", f"{bytes_a_block:.0f} bytes",
                       bytes_a_block <= MAX_BLOCK_BYTES))


def main():
    lines = ["", "`gcore` writes a core of the same process, which stands still meanwhile: nothing is found in it yet.", "",
             "| heap | blocks | GiB | lost | holders: s | stopped ms | gcore: s, stopped | ratio | bytes a block above 64 MiB |",
             "|---|---|---|---|---|---|---|---|---|"]
    claims = []
    for blocks in BLOCKS:
        for kind in KINDS:
            one(blocks, kind, lines, claims)
    write("holders", claims, lines)


main()
