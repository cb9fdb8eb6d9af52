"""Holds zeroed buffers in a program, has strandline give their pages of zeros back, and lets the program look at them.

    reclaim.py PROGRAM WAY BUFFERS BYTES_WRITTEN

Does so with two processes at once: one that wrote nothing to its buffers (`untouched`) and one that wrote BYTES_WRITTEN
bytes to each (`touched`). Prints one line of JSON with an object for each of the two: what `strandline reclaim --remedy
zero_pages` predicted and gave back, RSS before and after (bytes), `returned_part` of the buffers, `wrong_bytes` that the
program found in all of its buffers before and after (a byte is wrong where it is neither zero nor what was written
there), and `contents_intact`; and `untouched_outcome` and `touched_outcome`: how strandline ended, with its reason.

The lost-write risk is allowed, as the program waits for its next command meanwhile and writes nothing: without swap
that is the only way.
"""

import concurrent.futures
import json
import os
import subprocess
import sys

BUFFER_BYTES = 1024 * 1024
# The one that runs the study; by hand, the one on PATH.
STRANDLINE = os.environ.get("STRANDLINE_PROGRAM") or "strandline"


def reclaim(program, way, buffers, written):
    held = subprocess.Popen(
        [program, way, "hold", buffers, written],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )

    def wrong_bytes():
        held.stdin.write("check\n")
        return int(held.stdout.readline())

    try:
        if held.stdout.readline() != "ready\n":
            raise RuntimeError("the program ended before it was ready")
        wrong_before = wrong_bytes()
        done = json.loads(subprocess.run(
            [STRANDLINE, "reclaim", "--remedy", "zero_pages", "--allow-lost-write-risk", "--json", str(held.pid)],
            stdout=subprocess.PIPE, text=True,
        ).stdout)
        wrong_after = wrong_bytes()
    finally:
        held.kill()
        held.wait()
    figures = {name: done[name] for name in ("predicted_bytes", "actual_bytes", "rss_before_bytes", "rss_after_bytes")}
    if done["actual_bytes"] is not None:
        figures["returned_part"] = done["actual_bytes"] / (int(buffers) * BUFFER_BYTES)
    figures["wrong_bytes_before"] = wrong_before
    figures["wrong_bytes_after"] = wrong_after
    figures["contents_intact"] = wrong_before == 0 and wrong_after == 0
    return figures, ": ".join(filter(None, (done["outcome"], done["reason"])))[:200]


def main():
    program, way, buffers, written = sys.argv[1:]
    with concurrent.futures.ThreadPoolExecutor() as both:
        untouched = both.submit(reclaim, program, way, buffers, "0")
        touched = both.submit(reclaim, program, way, buffers, written)
    print(json.dumps({
        "untouched": untouched.result()[0],
        "touched": touched.result()[0],
        "untouched_outcome": untouched.result()[1],
        "touched_outcome": touched.result()[1],
    }))


main()
