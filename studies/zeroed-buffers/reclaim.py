"""Holds zeroed buffers in a program, has strandline give their pages of zeros back, and lets the program look at them.

    reclaim.py PROGRAM WAY BUFFERS BYTES_WRITTEN

Prints one line of JSON: what `strandline reclaim --remedy zero_pages` predicted and gave back, RSS before and after
(bytes), `wanted_bytes` of the buffers, `wrong_bytes` that the program found in all of its buffers before and after (a
byte is wrong where it is neither zero nor what was written there), and `contents_intact`.

The lost-write risk is allowed, as the program waits for its next command meanwhile and writes nothing: without swap
that is the only way.
"""

import json
import subprocess
import sys

BUFFER_BYTES = 1024 * 1024


def main():
    program, way, buffers, written = sys.argv[1:]
    held = subprocess.Popen(
        [program, way, "hold", buffers, written],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )

    def ask(command):
        held.stdin.write(command + "\n")
        return int(held.stdout.readline())

    try:
        if held.stdout.readline() != "ready\n":
            sys.exit("reclaim.py: the program ended before it was ready")
        wrong_before = ask("check")
        reclaim = subprocess.run(
            ["strandline", "reclaim", "--remedy", "zero_pages", "--allow-lost-write-risk", "--json", str(held.pid)],
            stdout=subprocess.PIPE, text=True,
        )
        if not reclaim.stdout:
            sys.exit("reclaim.py: strandline said nothing")
        done = json.loads(reclaim.stdout)
        wrong_after = ask("check")
    finally:
        held.kill()
        held.wait()
    print(json.dumps({
        "wanted_bytes": int(buffers) * BUFFER_BYTES,
        "outcome": done["outcome"],
        "reason": (done["reason"] or "")[:200],
        "predicted_bytes": done["predicted_bytes"],
        "actual_bytes": done["actual_bytes"],
        "rss_before_bytes": done["rss_before_bytes"],
        "rss_after_bytes": done["rss_after_bytes"],
        "wrong_bytes_before": wrong_before,
        "wrong_bytes_after": wrong_after,
        "contents_intact": wrong_before == 0 and wrong_after == 0,
    }))


main()
