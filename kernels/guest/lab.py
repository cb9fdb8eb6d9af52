"""What checks are made of: strandline, subjects of known answer, and what the kernel itself says of them."""
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path

KERNELS = Path('/kernels')
SUBJECTS = KERNELS / 'subjects'
ORDINARY = 1000
PAGE = 4096
STATES = ('live', 'stranded', 'pinned', 'evictable', 'unattributed')
libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """What a check found wrong."""


class Skipped(Exception):
    """Why a check cannot be made here."""


def expect(holds, what):
    if not holds:
        raise Failed(what)


def equal(got, wanted, what):
    expect(got == wanted, f'{what}: {got}, not {wanted}')


def read(path):
    return Path(path).read_text(encoding='utf-8', errors='replace').strip()


def write(path, text):
    try:
        Path(path).write_text(str(text), encoding='utf-8')
    except FileNotFoundError as error:
        raise Skipped(f'this kernel has no {path}') from error


def release():
    """(major, minor) of the kernel."""
    return tuple(int(word) for word in re.findall(r'\d+', os.uname().release)[:2])


class Run:
    """A command that has ended."""

    def __init__(self, words, status, out, err):
        self.words, self.status, self.out, self.err = words, status, out, err

    def document(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise Failed(f'{" ".join(self.words)}: status {self.status}, no document; it says: {self.err[-400:]}') from None

    def done(self, status=0):
        expect(self.status == status, f'{" ".join(self.words)}: status {self.status}, not {status}: {self.err[-400:]}')
        return self


def as_user(user, capabilities=()):
    """What a child does to become an ordinary user, with some capabilities if any."""
    def become():
        if user is None:
            return
        if capabilities:
            libc.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        if capabilities:
            raise_capabilities(capabilities)
    return become


def raise_capabilities(numbers):
    """Makes them effective, inheritable and ambient, so that they outlive an exec."""
    mask = sum(1 << number for number in numbers)
    head = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(*([mask & 0xffffffff] * 3), *([mask >> 32] * 3))
    if libc.syscall(126, ctypes.byref(head), ctypes.byref(data)):
        os._exit(99)
    for number in numbers:
        if libc.prctl(47, 2, number, 0, 0):  # PR_CAP_AMBIENT_RAISE
            os._exit(98)


def command(words, user=None, capabilities=(), timeout=90, cwd='/tmp', env=None, data=None):
    done = subprocess.run([str(word) for word in words], capture_output=True, timeout=timeout, check=False, cwd=cwd,
                          preexec_fn=as_user(user, capabilities), input=data, env={**os.environ, **(env or {})})
    return Run([str(word) for word in words], done.returncode, done.stdout.decode(errors='replace'),
               done.stderr.decode(errors='replace'))


def strandline(*words, **how):
    return command(['strandline', *words], **how)


def holds(document):
    """Whether a ledger keeps what every ledger keeps."""
    rss = document['kernel']['rss_bytes']
    rows = document['rows']
    equal(sum(row['bytes'] for row in rows), rss, 'sum of the rows beside the RSS')
    expect(all(row['bytes'] >= 0 and row['state'] in STATES for row in rows), 'a row out of bounds')
    for state in STATES:
        equal(document['totals'][state], sum(row['bytes'] for row in rows if row['state'] == state), f'total of {state}')
    predicted = [remedy['predicted_bytes'] or 0 for remedy in document['remedies']]
    equal(predicted, sorted(predicted, reverse=True), 'remedies, best first')
    return document


def explain(pid, *words, **how):
    return holds(strandline('explain', '--json', *words, pid, **how).done().document())


def row(document, prefix):
    """Bytes of the rows whose ids begin so."""
    return sum(each['bytes'] for each in document['rows'] if each['id'].startswith(prefix))


def remedy(document, name):
    return next((each['predicted_bytes'] for each in document['remedies'] if each['id'] == name), None)


def caveats(document):
    return [each['code'] for each in document['caveats']]


def rollup(pid, file='smaps_rollup'):
    """What the kernel says of a process, in bytes."""
    sums = {}
    for line in read(f'/proc/{pid}/{file}').splitlines():
        found = re.match(r'(\w+):\s+(\d+) kB', line)
        if found:
            sums[found[1]] = sums.get(found[1], 0) + int(found[2]) * 1024
    return sums


def agrees(document, pid):
    """Whether the ledger has the kernel's own sums. Only of a process that stands still."""
    told = rollup(pid)
    kernel = document['kernel']
    for name, field in (('rss_bytes', 'Rss'), ('anonymous_bytes', 'Anonymous'), ('swap_bytes', 'Swap'),
                        ('lazyfree_bytes', 'LazyFree')):
        equal(kernel[name], told[field], f'kernel.{name} beside {field} of smaps_rollup')
    return told


def reader(document, name, of='allocators'):
    """What an allocator's or a runtime's reader says."""
    found = next((each for each in document[of] if each['name'] == name), None)
    expect(found is not None, f'no {name} found ({caveats(document)})')
    return found


def runtime(document, name):
    """What the reader of a runtime says that can be read."""
    found = reader(document, name, 'runtimes')
    equal(found['read'], True, f'{name} is read ({caveats(document)})')
    return found


def knows_heap(document, one):
    """Whether malloc's figures from outside are those that the subject had from within."""
    equal(reader(document, 'glibc')['mallinfo'], one.ready['mallinfo'], 'mallinfo')


def explain_heap(one, *words, **how):
    """The ledger of a subject that stands still, with the kernel's sums and malloc's own figures."""
    document = explain(one.pid, *words, **how)
    agrees(document, one.pid)
    knows_heap(document, one)
    return document


def rows_of_snapshot(one, *prefixes):
    """A snapshot's ledger, which has the rows of a stop."""
    stopped, snapshot = (explain(one.pid, f'--snapshot={when}') for when in ('never', 'always'))
    rows = [{each['id']: each['bytes'] for each in document['rows'] if each['id'].startswith(prefixes)}
            for document in (stopped, snapshot)]
    equal(rows[1], rows[0], 'rows of the snapshot beside those of the stop')
    return snapshot


def other_allocators():
    """Libraries that stand in for malloc, and the call that each is asked for."""
    known = (('libjemalloc.so.2', 'jemalloc_purge'), ('libtcmalloc_minimal.so.4', 'tcmalloc_release'))
    found = [(library, call) for name, call in known if (library := next(Path('/usr/lib').rglob(name), None))]
    if not found:
        raise Skipped('neither library on the machine that made the disk')
    return found


class Subject:
    """A process of known answer: it prints a line when it is ready, and obeys bytes on its input."""

    all = []

    def __init__(self, words, user=None, env=None, capabilities=(), cwd='/tmp', before=None, err=None):
        become = as_user(user, capabilities)

        def prepared():
            if before:
                before()
            become()
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=err, cwd=cwd, env={**os.environ, **(env or {})}, preexec_fn=prepared)
        Subject.all.append(self)
        self.text = b''
        self.pid = self.process.pid
        line = self.line()
        try:
            self.ready = json.loads(line)
        except ValueError:
            self.ready = line
        self.settled()

    def line(self, seconds=60):
        end = time.monotonic() + seconds
        while b'\n' not in self.text:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f'{self.process.args[0]} says nothing')
            got = os.read(self.process.stdout.fileno(), 65536)
            if not got:
                raise Failed(f'{" ".join(self.process.args)} ended with {self.process.wait()}')
            self.text += got
        line, self.text = self.text.split(b'\n', 1)
        return line.decode(errors='replace')

    def settled(self):
        """It may still be on its way into the call in which it waits: it stays there, asleep, without a switch."""
        last = None
        for _ in range(25):
            now = re.findall(r'^(?:State|\w*voluntary_ctxt_switches):.*$', read(f'/proc/{self.pid}/status'), re.M)
            if now == last and now[0].split()[1] == 'S':
                return
            last = now
            time.sleep(0.02)

    def lines_to(self, last):
        lines = [self.ready] if isinstance(self.ready, str) else []
        while not lines or lines[-1] != last:
            lines.append(self.line())
        return lines

    def ask(self, byte):
        self.process.stdin.write(byte.encode())
        self.process.stdin.flush()
        return json.loads(self.line())

    def finish(self, seconds=60):
        """Its status, once its input has ended."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f'{self.process.args[0]} does not end: {state(self.pid)}') from None


def end_all():
    """Ends what a check has left."""
    while Subject.all:
        subject = Subject.all.pop()
        if subject.process.poll() is None:
            subject.process.kill()
            subject.process.wait()
        for pipe in (subject.process.stdin, subject.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass


def all_are_free():
    """Whether nobody traces what a check has left running."""
    for one in Subject.all:
        if one.process.poll() is None:
            expect('TracerPid:\t0' in read(f'/proc/{one.pid}/status'), f'{one.pid} is still traced')


def subject(name, *words, **how):
    """One of tests/subjects or kernels/subjects."""
    return Subject([SUBJECTS / name, *words], **how)


def state(pid):
    """The State line of a process, and who traces it."""
    text = read(f'/proc/{pid}/status')
    return ' '.join(re.findall(r'^(?:State|TracerPid):.*$', text, re.M)).replace('\t', ' ')


def is_free(pid):
    """Whether nothing is left stopped or traced in it."""
    for task in os.listdir(f'/proc/{pid}/task'):
        try:
            text = read(f'/proc/{pid}/task/{task}/status')
        except OSError:
            continue
        expect('TracerPid:\t0' in text, f'thread {task} is still traced')
        expect(not re.search(r'^State:\s+[tT]', text, re.M), f'thread {task} is left stopped')


def reclaim(pid, name, *words, status=0, **how):
    """The document of a remedy that was applied."""
    run = strandline('reclaim', '--json', '--remedy', name, *words, pid, **how)
    return run.done(status).document()


def gives_what_it_predicts(pid, name, *words):
    done = reclaim(pid, name, *words)
    equal(done['outcome'], 'done', 'outcome')
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    for moment in ('before', 'after'):
        holds(done[moment])
    return done


def tracer(pid):
    """Who traces it; 0 where nobody does, or it has ended."""
    try:
        found = re.search(r'^TracerPid:\s+(\d+)', read(f'/proc/{pid}/status'), re.M)
    except OSError:
        return 0
    return int(found[1]) if found else 0


class Kills:
    """How many times strandline was killed before it had ended, and while its process was traced."""

    def __init__(self, before_its_end, traced):
        self.before_its_end, self.traced = before_its_end, traced

    def __add__(self, other):
        return Kills(self.before_its_end + other.before_its_end, self.traced + other.traced)

    def __str__(self):
        return f'{self.before_its_end} kills, {self.traced} of them while it was traced'

    def at_least(self, before_its_end, traced):
        expect(self.before_its_end >= before_its_end and self.traced >= traced,
               f'only {self}; at least {before_its_end} and {traced} were to be')
        return self


def killed_at_random(words, of, turns, longest, seed=1, alive=None, stop=0.03, **how):
    """Runs strandline and kills it at random instants. Each second one is aimed: it waits until the process `of` is traced,
    and then a little: a part of `stop` seconds, which is about how long it is stopped."""
    import random
    chance, killed, traced = random.Random(seed), 0, 0
    for turn in range(turns):
        process = subprocess.Popen(['strandline', *map(str, words)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, **how)
        if turn % 2:
            while process.poll() is None and not tracer(of):
                time.sleep(min(0.001, stop / 30))
            time.sleep(chance.random() * stop)
        else:
            time.sleep(chance.random() * longest)
        if process.poll() is None:
            killed += 1
            traced += tracer(of) != 0
        process.send_signal(signal.SIGKILL)
        process.wait()
        if alive:
            alive()
    return Kills(killed, traced)


def page_out(pid, ranges):
    """Has the kernel page out ranges (start, end) of a process: process_madvise(MADV_PAGEOUT)."""
    class Range(ctypes.Structure):
        _fields_ = [('base', ctypes.c_uint64), ('length', ctypes.c_uint64)]
    handle = os.pidfd_open(pid)
    try:
        for start, end in ranges:
            one = Range(start, end - start)
            if libc.syscall(440, handle, ctypes.byref(one), ctypes.c_size_t(1), 21, 0) < 0:
                raise OSError(ctypes.get_errno(), 'process_madvise')
    finally:
        os.close(handle)


def mappings(pid):
    """(start, end, permissions, name) of its mappings."""
    found = []
    for line in read(f'/proc/{pid}/maps').splitlines():
        words = line.split(None, 5)
        start, end = (int(word, 16) for word in words[0].split('-'))
        found.append((start, end, words[1], words[5] if len(words) > 5 else ''))
    return found


def pagemap(pid, start, end):
    """The page table entries of a range, as /proc/PID/pagemap has them."""
    with open(f'/proc/{pid}/pagemap', 'rb', buffering=0) as file:
        data = os.pread(file.fileno(), (end - start) // PAGE * 8, start // PAGE * 8)
    return [int.from_bytes(data[at:at + 8], 'little') for at in range(0, len(data), 8)]


def small_pages():
    """What a child does to have no huge pages. Those of zeros go back without any swap from 6.12 on, where the kernel splits them."""
    libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE


def child_group(name, **values):
    """A new control group of version 2, with the files `memory.max` and so on set."""
    root = Path('/sys/fs/cgroup')
    (root / 'cgroup.subtree_control').write_text('+memory +pids', encoding='ascii')
    group = root / name
    group.mkdir(exist_ok=True)
    for key, value in values.items():
        (group / key.replace('_', '.', 1)).write_text(str(value), encoding='ascii')
    return group


def joins(group):
    """What a child does to be in that group."""
    return lambda: (group / 'cgroup.procs').write_text('0', encoding='ascii')
