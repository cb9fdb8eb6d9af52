"""What is in the machines: a disk with this machine's programs and their libraries, the same for all kernels, and an
archive with strandline, its subjects and the checks, made anew for each run."""
import hashlib
import shutil
import subprocess
from pathlib import Path

from .archive import Archive
from .kernel import Failure

ROOT = Path(__file__).resolve().parents[2]
PYTHON = '/usr/bin/python3'
PROGRAMS = [PYTHON, '/usr/bin/perl', '/usr/bin/sbcl', '/usr/bin/unshare', '/usr/bin/setpriv', '/usr/bin/dpkg',
            '/usr/bin/dpkg-deb', '/usr/bin/dpkg-split', '/usr/bin/dpkg-query', '/usr/bin/tar', '/usr/bin/diff', '/sbin/ldconfig', '/sbin/setcap']
LIBRARIES = ['libm.so.6', 'libpthread.so.0', 'libdl.so.2', 'libgcc_s.so.1', 'libjemalloc.so.2', 'libtcmalloc_minimal.so.4', 'libmimalloc.so.2.0']
FOLDERS = ['/usr/lib/python3.*', '/usr/lib/x86_64-linux-gnu/perl-base', '/usr/lib/x86_64-linux-gnu/perl/5.*',
           '/usr/share/perl/5.*', '/usr/lib/sbcl']
LEFT_OUT = ('test', 'idlelib', 'lib2to3', 'ensurepip', 'tkinter', 'turtledemo', 'pydoc_data', 'unicore', 'contrib',
            'dist-packages', 'config-3*', '__pycache__', 'CORE', 'pod')
DISK_BYTES = 512 << 20
USERS = 'root:x:0:0:root:/root:/bin/sh\nordinary:x:1000:1000::/tmp:/bin/sh\nother:x:1001:1001::/tmp:/bin/sh\n'
# Of tests/subjects, and of kernels/subjects; static ones have a libc without a file.
SUBJECTS = ['fragmented', 'random_heap', 'zeroed_buffer', 'reclaim_target', 'chaos_target', 'forked', 'shmem',
            'lazyfree', 'thp', 'cow_file', 'recorded', 'malloc_loop', 'regions']
STATIC = ['fragmented']


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(paths):
    """The files that the loader maps for these programs and libraries."""
    found = set()
    for path in paths:
        told = subprocess.run(['ldd', path], check=False, capture_output=True, text=True).stdout
        for word in told.split():
            if word.startswith('/') and Path(word).is_file():
                found.add(Path(word))
    return found


class Disk:
    """The programs' disk, kept until something in it changes."""

    def __init__(self, cache):
        self.path = cache / 'root.ext4'
        self.folder = cache / 'root'
        self.stamp = cache / 'root.stamp'

    def ready(self):
        programs = [Path(at) for at in PROGRAMS + ['/bin/busybox'] if Path(at).exists()]
        missing = [at for at in PROGRAMS[:2] + ['/bin/busybox'] if not Path(at).exists()]
        if missing:
            raise Failure(f'no {", ".join(missing)} here')
        listed = ' '.join([*PROGRAMS, *LIBRARIES, *FOLDERS, *LEFT_OUT])
        told = ''.join(f'{at} {at.stat().st_size} {at.stat().st_mtime}\n' for at in programs) + listed + USERS
        if self.path.exists() and self.stamp.exists() and self.stamp.read_text() == told:
            return
        print('kernels: making the machines\' disk', flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.fill(programs)
        self.path.unlink(missing_ok=True)
        subprocess.run(['mke2fs', '-q', '-t', 'ext4', '-O', '^metadata_csum,^has_journal', '-E', 'root_owner=0:0',
                        '-d', self.folder, self.path, str(DISK_BYTES >> 10)], check=True)
        shutil.rmtree(self.folder)
        self.stamp.write_text(told)

    def copy(self, path):
        """A file to where it is here; what a link leads to as a file."""
        to = self.folder / str(path).lstrip('/')
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists():
            shutil.copy2(path, to)

    def fill(self, programs):
        # As on Debian: everything is below /usr.
        for name in ('bin', 'sbin', 'lib', 'lib64'):
            (self.folder / 'usr' / name).mkdir(parents=True, exist_ok=True)
            (self.folder / name).symlink_to(f'usr/{name}')
        for name in ('dev', 'proc', 'sys', 'run', 'tmp', 'root', 'etc', 'var/tmp', 'usr/local/bin'):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / 'etc/passwd').write_text(USERS)
        (self.folder / 'etc/group').write_text('root:x:0:\nordinary:x:1000:\nother:x:1001:\n')
        for pattern in FOLDERS:
            for at in Path('/').glob(pattern.lstrip('/')):
                to = self.folder / str(at).lstrip('/')
                if at.is_dir() and not to.exists():
                    shutil.copytree(at, to, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=False,
                                    ignore_dangling_symlinks=True)
        for program in programs:
            self.copy(program)
        known = output('/sbin/ldconfig', '-p')
        wanted = [Path(line.split(' => ')[1]) for line in known.splitlines()
                  if ' => ' in line and line.split()[0] in LIBRARIES and 'x86-64' in line]
        of_folders = [at for at in self.folder.rglob('*.so*') if at.is_file()]
        for library in libraries(programs + of_folders) | set(wanted) | libraries(wanted):
            self.copy(library)
        applets = output('/bin/busybox', '--list').split()
        for applet in applets:
            to = self.folder / 'usr/bin' / applet
            if not to.exists():
                to.symlink_to('busybox')


def compiled(folder):
    """Compiles the subjects, with the flags of tests/it."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = ['-std=gnu11', '-O1', '-Wall', '-Wextra', '-Werror', '-pthread', '-Wl,-z,now', f'-I{ROOT}/tests/subjects']

    def build(source, name, *more):
        to = folder / name
        if to.exists() and to.stat().st_mtime > source.stat().st_mtime:
            return
        subprocess.run(['cc', *flags, source, '-o', to, '-ldl', *more], check=True)

    for name in SUBJECTS:
        own = ROOT / f'kernels/subjects/{name}.c'
        source = own if own.exists() else ROOT / f'tests/subjects/{name}.c'
        build(source, name)
        if name in STATIC:
            build(source, name + '-static', '-static')
    build(ROOT / 'tests/subjects/bits32.c', 'bits32', '-m32', '-nostdlib', '-static', '-ffreestanding', '-fno-pic',
          '-no-pie')
    build(ROOT / 'tests/subjects/python/figures.c', 'figures.so', '-shared', '-fPIC')
    return folder


def stripped(binary, folder):
    """The binary without what only a debugger reads: it is copied into every machine."""
    to = folder / 'strandline'
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(['objcopy', '--strip-debug', binary, to], check=True)
    return to


# Of a glibc's own folder: what strandline is linked with.
OLD_GLIBC = ['ld-linux-x86-64.so.2', 'libc.so.6', 'libm.so.6', 'libpthread.so.0', 'libdl.so.2']


def shipped(dist, glibc):
    """An archive of the packages, the static binary, and the libraries of an older glibc to run the other with."""
    archive = Archive()
    packages = sorted(dist.glob('strandline_*_amd64.deb'))
    if len(packages) != 1:
        raise Failure(f'{len(packages)} packages in {dist}, not 1')
    archive.path('kernels/shipped/strandline.deb', packages[0])
    archive.path('kernels/shipped/strandline-static', dist / 'bin/strandline-static')
    for name in OLD_GLIBC:
        library = next((at for at in glibc.rglob(name) if at.exists()), None)
        if library is None:
            raise Failure(f'no {name} below {glibc}')
        archive.file(f'kernels/shipped/glibc/{name}', library.resolve().read_bytes(), 0o755)
    return archive.bytes()


def overlay(binary, work):
    """The archive that is put behind a kernel's modules, and the sum of the binary in it."""
    archive = Archive()
    archive.console()
    for name in ('bin', 'proc', 'sys', 'root'):
        archive.folder(name)
    archive.path('bin/busybox', Path('/bin/busybox'))
    archive.path('init', ROOT / 'kernels/guest/boot')
    strandline = stripped(binary, work)
    archive.path('kernels/strandline', strandline)
    archive.tree('kernels/subjects', compiled(work / 'subjects'))
    for name in ('guest', 'settings'):
        archive.tree(f'kernels/{name}', ROOT / 'kernels' / name)
    for name in ('perl', 'python', 'sbcl'):
        archive.tree(f'kernels/{name}', ROOT / 'tests/subjects' / name)
    return archive.bytes(), hashlib.sha256(strandline.read_bytes()).hexdigest()
