"""Starts the server, asks strandline who holds what, and compares that with what the server knows.

    look.py SERVER ALLOCATOR LISTS ENTRIES PINS

ALLOCATOR is a library to preload, or `glibc`. Prints one line of JSON: for each group that the server told (`leaked`, `cache`, `pins`)
its blocks and bytes, and what `strandline holders` found; what grew between two looks; how much of RSS the small objects were said to
keep, and by how much it fell once they were freed; what valgrind's memcheck calls lost of the same program (of glibc's malloc alone);
and how long the server stood still.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The one that runs the study; by hand, the one on PATH.
STRANDLINE = os.environ.get("STRANDLINE_PROGRAM") or "strandline"


def look(pid, *arguments):
    """What `holders` says."""
    done = subprocess.run([STRANDLINE, "holders", "--json", *arguments, str(pid)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def anonymous_bytes(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return int(re.search(r"^Anonymous:\s+(\d+)", rollup.read(), re.MULTILINE).group(1)) * 1024


def held(document, name):
    """What a root or a type has, zeros where it is not told."""
    roots = [root for root in document["roots"] if root["name"] == name]
    return {key: sum(root[key] for root in roots) for key in ("retained_blocks", "retained_bytes", "pins_bytes")}


def lost_by_memcheck(program, sizes):
    """Blocks that are definitely or indirectly lost when it ends."""
    done = subprocess.run(
        ["valgrind", "--leak-check=full", "--show-leak-kinds=none", program, *sizes],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    lost = re.findall(r"(?:definitely|indirectly) lost: [\d,]+ bytes in ([\d,]+) blocks", done.stderr)
    return sum(int(blocks.replace(",", "")) for blocks in lost)


def main():
    program, allocator, *sizes = sys.argv[1:]
    environment = dict(os.environ)
    if allocator != "glibc":
        environment["LD_PRELOAD"] = allocator
    server = subprocess.Popen(
        [program, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
    )

    def ask(order):
        server.stdin.write(order + "\n")
        return json.loads(server.stdout.readline())

    with tempfile.NamedTemporaryFile("w", suffix=".json") as before:
        try:
            told = json.loads(server.stdout.readline())
            # What malloc would give back anyway is not what the small objects keep.
            ask("trim")
            first = look(server.pid)
            json.dump(first, before)
            before.flush()
            grown = ask("more")
            second = look(server.pid, "--since", before.name)
            third = look(server.pid)
            full = anonymous_bytes(server.pid)
            ask("free")
            freed = anonymous_bytes(server.pid)
        finally:
            server.kill()
            server.wait()
    unreachable, since = first["unreachable"], second["since"]
    sessions = next((of for of in first["types"] if of["name"] == "server::Session"), {"unreachable_bytes": 0})
    grew = {root["name"]: root["grew"] for root in since["roots"]}
    print(json.dumps({
        "leaked": told["leaked"],
        "unreachable": {"blocks": unreachable["blocks"], "bytes": unreachable["bytes"]},
        "heads": unreachable["definite"]["blocks"],
        "lists": int(sizes[0]),
        "sessions_unreachable_bytes": sessions["unreachable_bytes"],
        "cache": told["cache"],
        "cache_retained": held(first, "g_cache"),
        "pins": told["pins"],
        "pins_retained": held(first, "g_pins"),
        "kept_predicted_bytes": held(third, "g_pins")["pins_bytes"],
        "kept_actual_bytes": full - freed,
        "leaked_since": grown["leaked"],
        "unreachable_since": since["unreachable"],
        "kept_since": grown["kept"],
        "list_since": grew.get("g_sessions", {"blocks": 0, "bytes": 0}),
        "memcheck_lost_blocks":
            lost_by_memcheck(program, sizes) if allocator == "glibc" and shutil.which("valgrind") else None,
        "stopped_seconds": first["cost"]["stopped_seconds"],
        "found_seconds": first["cost"]["wall_seconds"],
    }))


main()
