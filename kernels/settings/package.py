"""What `make dist` makes: installed by dpkg, run by an ordinary user, with an older glibc and with none, removed."""
import gzip
import os
from pathlib import Path

from lab import KERNELS, ORDINARY, Skipped, agrees, command, equal, expect, explain_heap, is_free, knows_heap, subject

SHIPPED = True
FOLDER = KERNELS / 'shipped'
DPKG = Path('/var/lib/dpkg')
MANUAL = Path('/usr/share/man/man1')


def prepare():
    """dpkg's own files, which say that the C library of this disk is installed."""
    if not FOLDER.exists():
        raise Skipped('nothing was packed for this machine')
    for name in ('info', 'updates', 'triggers', 'alternatives', 'parts'):
        (DPKG / name).mkdir(parents=True, exist_ok=True)
    version = os.confstr('CS_GNU_LIBC_VERSION').split()[1]
    (DPKG / 'status').write_text(f'Package: libc6\nStatus: install ok installed\nMaintainer: nobody <root@localhost>\n'
                                 f'Architecture: amd64\nVersion: {version}\nDescription: the C library\n', encoding='ascii')
    (DPKG / 'available').write_text('', encoding='ascii')
    # The one that the other checks use would be found first.
    Path('/usr/local/bin/strandline').unlink()


def files():
    """What there is now, but for what machines write by themselves."""
    return {at for at in Path('/').glob('usr/**/*') if not at.is_dir()} | set(Path('/etc').rglob('*'))


def dpkg(*words):
    return command(['dpkg', *words]).done()


def check_installed_used_and_removed():
    """Nothing that was not there before is left; what was there is."""
    before = files()
    dpkg('--install', FOLDER / 'strandline.deb')
    added = {str(at) for at in files() - before}
    expect('/usr/bin/strandline' in added, f'no program among {sorted(added)}')
    manual = sorted(MANUAL.glob('strandline*.1.gz'))
    expect(len(manual) > 8 and all(b'.TH' in gzip.decompress(at.read_bytes()) for at in manual), f'manual pages: {manual}')
    for name in ('bash-completion/completions/strandline', 'zsh/vendor-completions/_strandline',
                 'fish/vendor_completions.d/strandline.fish', 'doc/strandline/copyright', 'doc/strandline/changelog.gz'):
        expect(f'/usr/share/{name}' in added, f'no {name}')
    about = command(['dpkg-query', '--show', '--showformat', '${Status} ${Version}', 'strandline']).done().out
    equal(about, f'install ok installed {command(["strandline", "--version"]).done().out.split()[1]}', 'what dpkg says')
    equal(dpkg('--verify', 'strandline').out, '', 'files that are not as packed')
    unit = '/usr/lib/systemd/system/strandline-export.service'
    expect(unit in added, f'no {unit}')
    expect(not [at for at in added - {unit} if not at.startswith(('/usr/bin/', '/usr/share/'))], f'elsewhere: {added}')
    heap = subject('fragmented', 60000, 200, 500, user=ORDINARY)
    explain_heap(heap, user=ORDINARY)
    done = command(['strandline', 'reclaim', '--json', '--remedy', 'malloc_trim', heap.pid], user=ORDINARY).done().document()
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    equal(heap.finish(), 0, 'its status')
    dpkg('--remove', 'strandline')
    equal(sorted(files() - before), [], 'left behind')
    equal(sorted(before - files()), [], 'taken away')


def explained_by(words):
    heap = subject('fragmented', 60000, 200, 500)
    document = command([*words, 'explain', '--json', heap.pid]).done().document()
    agrees(document, heap.pid)
    knows_heap(document, heap)
    done = command([*words, 'reclaim', '--json', '--remedy', 'malloc_trim', heap.pid]).done().document()
    equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
    is_free(heap.pid)
    equal(heap.finish(), 0, 'its status')


def root_with(binary, libraries=()):
    """A root with that program, /proc and those libraries only; what is run in it."""
    root = Path('/tmp/root')
    for name in ('proc', 'tmp', 'lib64', 'lib/x86_64-linux-gnu'):
        (root / name).mkdir(parents=True, exist_ok=True)
    if not (root / 'proc/self').exists():
        command(['mount', '-t', 'proc', 'proc', root / 'proc']).done()
    command(['cp', binary, root / 'strandline']).done()
    for library in libraries:
        to = 'lib64' if library.name.startswith('ld-linux') else 'lib/x86_64-linux-gnu'
        command(['cp', library, root / to]).done()
    return ['chroot', root, '/strandline']


def check_with_an_older_glibc():
    """With the libraries of Debian 11. The binary asks for 2.28: scripts/dist looks at its symbols."""
    words = root_with(KERNELS / 'strandline', sorted((FOLDER / 'glibc').iterdir()))
    explained_by(words)
    document = command([*words, 'demo', '--json', '--mebibytes', '48']).done().document()
    equal(document['reclaim']['actual_bytes'], document['reclaim']['predicted_bytes'], 'of the demo, whose process has that malloc')


def check_static():
    """Where there is no library to be found."""
    explained_by(root_with(FOLDER / 'strandline-static'))


def check_setcap():
    """An ordinary user whose strandline has the two capabilities, as GUIDE says: another user's process."""
    at = Path('/usr/bin/strandline-setcap')
    command(['cp', KERNELS / 'strandline', at]).done()
    at.chmod(0o755)
    try:
        done = command(['setcap', 'cap_sys_ptrace,cap_dac_read_search+ep', at])
        expect(done.status == 0, f'setcap: {done.err}')
        other = subject('fragmented', 60000, 200, 500, user=1001)
        words = ['explain', '--json', '--snapshot=never', other.pid]
        equal(command(['/kernels/strandline', *words], user=ORDINARY).status, 3, 'status without them')
        document = command([at, *words], user=ORDINARY).done().document()
        agrees(document, other.pid)
        knows_heap(document, other)
        done = command([at, 'reclaim', '--json', '--remedy', 'malloc_trim', other.pid], user=ORDINARY).done().document()
        equal(done['actual_bytes'], done['predicted_bytes'], 'given back beside predicted')
        not_lent(at)
    finally:
        at.unlink()


def not_lent(at):
    """What the user names is opened with the user's rights: nothing of a file of root's is told, and nothing put in its place."""
    command(['setcap', 'cap_sys_ptrace,cap_dac_read_search,cap_dac_override,cap_fowner+ep', at]).done()
    secret = Path('/tmp/secret')
    secret.write_text('top_secret_value = 1\n', encoding='utf-8')
    secret.chmod(0o600)
    for words in (['try', '--catalogue', secret, '--', 'true'], ['report', secret], ['run', '-o', secret, '--', 'true']):
        run = command([at, *words], user=ORDINARY)
        expect(run.status and 'Permission denied' in run.err, f'{words[0]}: status {run.status}: {run.err}')
        expect('top_secret' not in run.out + run.err, f'{words[0]} says: {run.out}{run.err}')
    equal(secret.read_text(encoding='utf-8'), 'top_secret_value = 1\n', 'the file')
    secret.unlink()
