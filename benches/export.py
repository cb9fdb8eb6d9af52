"""Measures `export` over COUNT processes that are scraped every 15 s: its processor time, memory, the time of a scrape, series a process.

Called by run.sh: export.py WORK OUT. BENCH_PROCESSES, BENCH_MINUTES and BENCH_MEBIBYTES say otherwise than 300 of 20 MiB for 5 min.
"""
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request

from shared import STRANDLINE, write

COUNT = int(os.environ.get("BENCH_PROCESSES", "300"))
MINUTES = float(os.environ.get("BENCH_MINUTES", "5"))
MEBIBYTES = int(os.environ.get("BENCH_MEBIBYTES", "20"))
SCRAPE_SECONDS = 15
MAX_SHARE, MAX_MIB, MAX_SERIES, MAX_SCRAPE = 0.01, 40, 40, 0.15
SUBJECT = f"import time; x = [bytes(1000) for _ in range({MEBIBYTES} * 512)]; y = bytearray({MEBIBYTES << 19}); y[:] = b'x' * len(y); print(flush=True); time.sleep(1e6)"


def ticks(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(pid, name):
    return int(re.search(rf"^{name}:\s+(\d+) kB", open(f"/proc/{pid}/status").read(), re.M)[1]) / 1024


def scrape(address):
    since = time.monotonic()
    text = urllib.request.urlopen(address).read().decode()
    return time.monotonic() - since, text


def value(text, name):
    return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])


def main():
    subjects = []
    exporter = None
    try:
        for _ in range(COUNT):
            subjects.append(subprocess.Popen([sys.executable, "-c", SUBJECT], stdout=subprocess.PIPE))
        for subject in subjects:
            subject.stdout.readline()
        pids = [str(subject.pid) for subject in subjects]
        exporter = subprocess.Popen([STRANDLINE, "export", "--listen", "127.0.0.1:0", "--pid", *pids], stderr=subprocess.PIPE, text=True)
        began = time.monotonic()
        address = exporter.stderr.readline().split()[-1]
        times, text = [], ""
        while time.monotonic() - began < MINUTES * 60:
            time.sleep(SCRAPE_SECONDS - (time.monotonic() - began) % SCRAPE_SECONDS)
            took, text = scrape(address)
            times.append(took)
        wall = time.monotonic() - began
        share = ticks(exporter.pid) / wall
        resident, peak = status(exporter.pid, "VmRSS"), status(exporter.pid, "VmHWM")
        of = {}
        for pid in re.findall(r'^strandline_\w+\{pid="(\d+)"', text, re.M):
            of[pid] = of.get(pid, 0) + 1
        stopped = [float(each) for each in re.findall(r"^strandline_stopped_seconds_total\{.*\} (\S+)$", text, re.M)]
        ages = len(re.findall(r"^strandline_ledger_age_seconds\{", text, re.M))
        budget = 0.020 / 60 * wall
    finally:
        for process in subjects + [exporter]:
            if process:
                process.kill()
                process.wait()
    slowest = max(times)
    lines = ["", f"{COUNT} processes (Python) of {MEBIBYTES} MiB, a scrape each {SCRAPE_SECONDS} s for {wall:.0f} s, --stop-budget 20ms/min, --cpu-budget 1%.", "",
             "| | |", "|---|---|",
             f"| processor | {share * 100:.2f} % of one |",
             f"| memory | {resident:.1f} MiB, at most {peak:.1f} MiB |",
             f"| a scrape | {statistics.median(times) * 1e3:.0f} ms, at most {slowest * 1e3:.0f} ms; {len(text) / 1024:.0f} KiB |",
             f"| series a process | at most {max(of.values())} |",
             f"| ledgers | {value(text, 'strandline_exporter_ledgers_total'):.0f}, of {ages} processes |",
             f"| stopped | at most {max(stopped) * 1e3:.1f} ms of {budget * 1e3:.0f} ms allowed; {value(text, 'strandline_exporter_overrun_stops_total'):.0f} stops longer than asked |"]
    claims = [(f"{COUNT} processes: at most 1 % of a processor", f"{share * 100:.2f} %", share <= MAX_SHARE),
              (f"{COUNT} processes: at most {MAX_MIB} MiB", f"{peak:.1f} MiB", peak <= MAX_MIB),
              (f"at most {MAX_SERIES} series a process", str(max(of.values())), max(of.values()) <= MAX_SERIES),
              (f"{COUNT} processes: a scrape within 150 ms", f"{slowest * 1e3:.0f} ms", slowest <= MAX_SCRAPE),
              ("no process is stopped for longer than its budget", f"{max(stopped) * 1e3:.1f} ms", max(stopped) <= budget)]
    write("export", claims, lines)


main()
