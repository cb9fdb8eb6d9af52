"""What the benches share: running things, figures, and the file of results.

RESULTS.md holds a section a bench; a bench that is run again replaces its own.
"""
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
WORK, OUT = sys.argv[1], sys.argv[2]
STRANDLINE = os.environ["STRANDLINE"]
LOAD_BEFORE = os.getloadavg()[0]
TITLE = """# Results of `make bench`

Medians, with the lowest and the highest in brackets. Ratios and bounds are the claim; seconds depend on the
machine.
"""


def timed(command):
    """Runs `command`; returns (wall seconds, peak RSS in bytes, standard output).

    The peak is wait4's ru_maxrss, as time(1) prints it: the largest of the command and of the
    children it waited for.
    """
    with open(os.path.join(WORK, "out"), "w+") as out, open(os.path.join(WORK, "err"), "w+") as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            sys.exit(f"bench: {' '.join(command)}: status {process.returncode}: {err.read().strip()[-400:]}")
        return wall, usage.ru_maxrss * 1024, out.read()


class Started:
    """A process that prints a line when it is ready; ended at the end of a `with`."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line = self.process.stdout.readline()
        if not self.line:
            sys.exit(f"bench: {command[0]} did not start (memory?)")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, command):
        self.process.stdin.write(command)
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def looked_at(command, ways, rounds):
    """Starts `command`, and has strandline explain it in all `ways`, names with options, in turns: documents by way."""
    def explain(subject, options):
        command = [STRANDLINE, "explain", "--json", *options, str(subject.process.pid)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"bench: {' '.join(command)}: {done.stderr}")
        return json.loads(done.stdout)

    with Started(command) as subject:
        explain(subject, ways["default"])
        found = {way: [] for way in ways}
        for _ in range(rounds):
            for way, options in ways.items():
                found[way].append(explain(subject, options))
    return found


def stopped_ms(found):
    """For how long each way stopped the process."""
    return {way: [one["cost"]["stopped_seconds"] * 1e3 for one in documents] for way, documents in found.items()}


def figure(samples, unit=1.0, digits=2, suffix=""):
    """`median (low–high)` of samples divided by unit."""
    values = sorted(value / unit for value in samples)
    middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(values), values[0], values[-1]))
    return f"{middle}{suffix} ({low}–{high})"


def machine():
    def first(path, pattern):
        with open(path) as text:
            found = re.search(pattern, text.read(), re.M)
        return found.group(1) if found else "unknown"

    memory = int(first("/proc/meminfo", r"MemTotal:\s+(\d+)")) / MIB
    return [
        f"- machine: {first('/proc/cpuinfo', r'model name.*: (.*)')}, {os.cpu_count()} cpus, {memory:.1f} GiB",
        f"- kernel: {platform.release()}; C library: {' '.join(platform.libc_ver())}",
        f"- load before: {LOAD_BEFORE:.2f}",
        f"- strandline: {subprocess.run([STRANDLINE, '--version'], capture_output=True, text=True).stdout.strip()}",
        f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
    ]


def verdict(holds):
    return "holds" if holds else "**does not hold**"


def write(section, claims, lines):
    """Puts a section into OUT: claims are (text, measured, whether it holds; None for no bound), lines follow."""
    table = ["| claim | measured | |", "|---|---|---|"]
    table += [f"| {text} | {measured} | {'' if holds is None else verdict(holds)} |" for text, measured, holds in claims]
    body = "\n".join([f"## {section}", "", *machine(), "", *table, "", *lines, ""])
    print(body)
    sections = {}
    if os.path.exists(OUT):
        with open(OUT) as old:
            parts = re.split(r"^## (\S+)\n", old.read(), flags=re.M)
        sections = {name: f"## {name}\n{text.rstrip()}\n" for name, text in zip(parts[1::2], parts[2::2])}
    sections[section] = body
    with open(OUT, "w") as out:
        out.write("\n".join([TITLE, *sections.values()]))
    failed = [text for text, _, holds in claims if holds is False]
    if failed:
        # A missed number is a result, not an error of the bench.
        print(f"bench: {len(failed)} of {len(claims)} do not hold", file=sys.stderr)
