"""What every replay needs: a folder, packages, processes, and checks of strandline's answers against the program's own figures."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STRANDLINE = os.environ.get("STRANDLINE", os.path.join(ROOT, "target/release/strandline"))
CACHE = os.path.join(ROOT, ".cache", "replay")
HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
PATIENCE_SECONDS = 120
ROW_WITHIN = 0.02
REMEDY_WITHIN = 0.01
# Small predictions may be off by some pages.
REMEDY_SLACK_BYTES = 64 << 10


class NotHere(Exception):
    """Why something cannot be replayed on this machine."""


def size(number):
    return "null" if number is None else f"{number / MIB:.1f} MiB"


class Check:
    """One answer of strandline, and whether it holds."""

    def __init__(self, kind, text, holds, is_exact=True):
        self.kind, self.text, self.holds, self.is_exact = kind, text, holds, is_exact


class Replay:
    """A replay: its name, where the complaint is, and the function that does it."""

    def __init__(self, name, url, packages, function, blind=False):
        self.name, self.url, self.packages, self.function, self.blind = name, url, packages, function, blind


def listing():
    """A list of replays, and the decorator that adds to it."""
    replays = []

    def replay(name, url=None, packages=(), blind=False):
        def add(function):
            replays.append(Replay(name, url, list(packages), function, blind))
            return function
        return add
    return replays, replay


def run(replay, no_install):
    """Does a replay, and returns it with its checks."""
    if not no_install:
        install(replay.packages)
    it = Running(replay)
    try:
        replay.function(it)
        return it
    finally:
        it.end()


def install(packages):
    """Installs Debian's packages that are missing, without starting their services."""
    def missing():
        found = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
                               capture_output=True, text=True).stdout
        return [package for package in packages if f"{package} installed\n" not in found]

    wanted = missing() if packages else []
    if not wanted:
        return
    policy = "/usr/sbin/policy-rc.d"
    had_policy = os.path.exists(policy)
    if not had_policy:
        with open(policy, "w") as file:
            file.write("#!/bin/sh\nexit 101\n")
        os.chmod(policy, 0o755)
    try:
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], capture_output=True,
                       env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, timeout=600, check=False)
    finally:
        if not had_policy:
            os.remove(policy)
    if missing():
        raise NotHere(f"apt-get could not install {' '.join(missing())}")


def python_with(requirement):
    """A Python that has a package from PyPI, in an environment of its own."""
    folder = os.path.join(CACHE, "python-" + re.sub(r"[^A-Za-z0-9.]+", "-", requirement))
    python = os.path.join(folder, "bin", "python3")
    if not os.path.exists(os.path.join(folder, "whole")):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", *requirement.split()], capture_output=True, text=True,
                              timeout=600)
        if done.returncode:
            raise NotHere(f"pip could not install {requirement}: {done.stderr.strip().splitlines()[-1:]}")
        open(os.path.join(folder, "whole"), "w").close()
    return python


def node_with(package):
    """A folder in which node finds a package from npm."""
    folder = os.path.join(CACHE, "node-" + re.sub(r"[^A-Za-z0-9.]+", "-", package))
    if not os.path.exists(os.path.join(folder, "whole")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        done = subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", package], cwd=folder, timeout=600,
                              capture_output=True, text=True)
        if done.returncode:
            raise NotHere(f"npm could not install {package}")
        open(os.path.join(folder, "whole"), "w").close()
    return folder


def tool(name):
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not found:
        raise NotHere(f"there is no {name}")
    return found


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Running:
    """A replay in progress, in a separate folder; end() kills what it started."""

    def __init__(self, replay):
        self.name, self.url, self.is_blind = replay.name, replay.url, replay.blind
        self.folder = tempfile.mkdtemp(prefix="strandline-replay-")
        os.chmod(self.folder, 0o755)
        self.port = free_port()
        self.started, self.software, self.truths, self.checks, self.headline = [], [], [], [], ""

    def end(self):
        for process in self.started:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(["pkill", "-KILL", "-f", self.folder], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    # Starting programs.

    def start(self, *command, **environment):
        """Starts a program; its standard input is a pipe, and what it prints is in the file `said`."""
        environment = {key: str(text) for key, text in environment.items()}
        log = open(os.path.join(self.folder, "said"), "ab")
        process = subprocess.Popen([str(word) for word in command], env={**os.environ, **environment}, cwd=self.folder,
                                   stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.started.append(process)
        return process

    def python(self, requirement, script, *words, **environment):
        """Starts a script with packages from PyPI; returns the process and the figures that it prints, among them its `version`."""
        process = self.start(python_with(requirement), self.write("replay.py", script), *words, **environment)
        self.until("its figures", lambda: len(re.findall("^ready ", self.said(), re.M)) == len(self.started))
        figures = self.figures()
        self.software = [f"{requirement.split('=')[0]} {figures['version']}"]
        return process, figures

    def anonymous_bytes(self, pid):
        """The anonymous memory of a process, as the kernel counts it."""
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return next(int(line.split()[1]) << 10 for line in rollup if line.startswith("Anonymous:"))

    def until(self, what, ask, seconds=PATIENCE_SECONDS):
        """Waits until `ask` returns a true value, and returns that value."""
        end = time.monotonic() + seconds
        last = ""
        while time.monotonic() < end:
            try:
                answer = ask()
                if answer:
                    return answer
            except (OSError, ValueError, subprocess.SubprocessError) as why:
                last = f": {why}"
            if self.started and self.started[-1].poll() is not None and self.started[-1].returncode:
                break
            time.sleep(0.1)
        said = self.said().strip().splitlines()[-1:] or [""]
        raise NotHere(f"it did not come to {what}{last}; it said {said[0][:150]!r}")

    def said(self):
        with open(os.path.join(self.folder, "said"), errors="replace") as log:
            return log.read()

    def figures(self, word="ready"):
        """The JSON object after `word` in what the program printed: the program waits there."""
        def find():
            found = re.findall(rf"^{word} (\{{.*\}})$", self.said(), re.M)
            return json.loads(found[-1]) if found else None
        return self.until(word, find)

    def shell(self, *command, check=True, timeout=PATIENCE_SECONDS, **environment):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", timeout=timeout,
                              cwd=self.folder, env={**os.environ, **{key: str(text) for key, text in environment.items()}})
        if check and done.returncode:
            raise NotHere(f"{command[0]}: {(done.stderr or done.stdout).strip()[-150:]}")
        return done.stdout

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def ask(self, text, end=b"\n", port=None, until=None):
        """Sends a line to the program's port on the loopback address, and returns what it answers."""
        with socket.create_connection(("127.0.0.1", port or self.port), timeout=30) as peer:
            peer.sendall(text.encode() + end)
            answer = b""
            while not (until and until.encode() in answer):
                piece = peer.recv(1 << 16)
                if not piece:
                    break
                answer += piece
        return answer.decode(errors="replace")

    # Asking strandline.

    def strandline(self, *words, fine=(0,)):
        done = subprocess.run([STRANDLINE, *map(str, words), "--json"], capture_output=True, text=True, errors="replace",
                              timeout=PATIENCE_SECONDS)
        if done.returncode not in fine:
            raise ValueError(f"strandline {' '.join(map(str, words))}: status {done.returncode}: {done.stderr.strip()[-200:]}")
        return json.loads(done.stdout)

    def explain(self, pid):
        document = self.strandline("explain", pid)
        self.headline = document["verdict"]["headline"]
        return document

    # Checking its answers.

    def truth(self, what, number):
        self.truths.append(f"{what} {size(number)}")
        return number

    def compare(self, what, answer, truth):
        """Checks a row, or the sum of several, against the program's own figure."""
        holds = answer is not None and abs(answer - truth) <= ROW_WITHIN * max(truth, 1)
        off = "" if not truth or answer is None else f" ({(answer - truth) / truth * 100:+.2f} %)"
        self.checks.append(Check("row", f"{what}: {size(answer)}{off}", holds))

    def bounds(self, what, answer, low, high, because):
        """Checks a row against bounds, where the program counts something else than the memory that it holds: `because` says what."""
        holds = answer is not None and low <= answer <= high
        self.checks.append(Check("row", f"{what}: {size(answer)}, between {size(low)} and {size(high)} ({because})", holds, False))

    def says(self, what, holds):
        """Checks that the answer says `what`."""
        self.checks.append(Check("row", what if holds else f"does not say: {what}", bool(holds)))

    def holder(self, pid, names, least_bytes):
        """Checks that roots with one of `names` in their names hold at least `least_bytes`, alone or together with others."""
        document = self.strandline("holders", pid)
        alone = [(root["retained_bytes"], [root["name"]]) for root in document["roots"]]
        shared = [(one["retained_bytes"], one["roots"]) for one in document["shared"]]
        fit = [one for one in alone + shared if any(name in root for name in names for root in one[1])]
        held, roots = max(fit or alone + shared, default=(0, ["nothing"]))
        if fit:
            held = sum(bytes_held for bytes_held, _ in fit)
        self.checks.append(Check("holder", f"holder: {' and '.join(roots[:2])} {size(held)}", bool(fit) and held >= least_bytes))

    def remedy(self, pid, remedy):
        """Checks a remedy's prediction against what it releases."""
        document = self.strandline("reclaim", pid, "--remedy", remedy, fine=(0, 3))
        predicted, actual = document["predicted_bytes"], document["actual_bytes"]
        if document["outcome"] == "refused":
            text = f"{remedy}: refused: {document['reason']}"
            self.checks.append(Check("remedy", text, predicted is None or predicted == 0))
            return document
        if predicted is None:
            self.checks.append(Check("remedy", f"{remedy}: no prediction, {size(actual)}", bool(document.get("reason"))))
            return document
        # An actual figure that is not known confirms no prediction.
        holds = actual is not None and abs(predicted - actual) <= max(REMEDY_WITHIN * max(predicted, actual), REMEDY_SLACK_BYTES)
        self.checks.append(Check("remedy", f"{remedy}: {size(predicted)}, {size(actual)}", holds))
        return document

    def verdict(self):
        held = [check.holds for check in self.checks]
        if all(held):
            return "right" if all(check.is_exact for check in self.checks) else "near"
        return "blind" if self.is_blind else "partly" if any(held) else "wrong"

    def document(self):
        checks = [{"kind": check.kind, "text": check.text, "holds": check.holds} for check in self.checks]
        return {"name": self.name, "url": self.url, "software": self.software, "headline": self.headline, "truths": self.truths,
                "checks": checks, "verdict": self.verdict()}


def rows(document, *patterns):
    """The sum of the rows whose ids match one of the patterns, in bytes."""
    return sum(row["bytes"] for row in document["rows"] if any(re.fullmatch(pattern, row["id"]) for pattern in patterns))


def blocks_in_use(document):
    """The bytes in use of all allocators that know their blocks; runtimes' objects are not blocks."""
    known = [it for it in document["allocators"] if it.get("live_blocks") is not None]
    return sum(it.get("live_bytes") or 0 for it in known)


def allocator(document, name):
    return next((it for it in document["allocators"] if it["name"] == name), {})


def runtime(document, name):
    return next((it for it in document["runtimes"] if it["name"] == name), {})


def debian_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package], capture_output=True, text=True)
    return f"{package} {done.stdout}"
