"""A kernel of the matrix: its packages, fetched once and checked, its image and the modules that are wanted of it."""
import hashlib
import lzma
import re
import shutil
import subprocess

from .archive import Archive

MIRROR = 'http://deb.debian.org'
KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'
# The disk, its file system, swap in memory. What a kernel has built in is no module there, and left out.
MODULES = ['virtio_pci', 'virtio_blk', 'crc32c_generic', 'crc32c-intel', 'ext4', 'lzo-rle', 'lz4', 'zram']


class Failure(Exception):
    """Why there is no such kernel, or image, or cell."""


class Kernel:
    """`entry` is its table of matrix.toml."""

    def __init__(self, entry, cache):
        self.name = entry['name']
        self.version = entry['version']
        self.entry = entry
        self.folder = cache / f'{self.name}-{self.version}'
        self.image = self.folder / 'vmlinuz'
        self.initramfs = self.folder / 'initramfs'

    def ready(self):
        """Fetches and unpacks what is not there."""
        if self.image.exists() and self.initramfs.exists():
            return
        packages = self.folder / 'packages'
        packages.mkdir(parents=True, exist_ok=True)
        root = self.folder / 'root'
        shutil.rmtree(root, ignore_errors=True)
        for package, known in self.entry['packages'].items():
            path = self.fetch(package, known, packages)
            subprocess.run(['dpkg-deb', '-x', path, root], check=True)
        image = next(root.rglob('vmlinuz*'), None)
        if image is None:
            raise Failure(f'{self.name}: no kernel in {", ".join(self.entry["packages"])}')
        self.initramfs.write_bytes(self.modules(root))
        shutil.copy(image, self.image)
        shutil.rmtree(root)

    def fetch(self, package, known, folder):
        """The package of that name and version, whose sum must be `known`."""
        found = lambda: next((at for at in folder.glob('*.deb') if at.name.startswith(package + '_')), None)
        path = found()
        if path is None:
            print(f'kernels: fetching {package} {self.version}', flush=True)
            self.download(package, folder)
            path = found()
        if path is None:
            raise Failure(
                f'{self.name}: {package} {self.version} is not to be had (log: {folder}/apt.log); where Debian has a '
                'newer one by now, put its version and sums into kernels/matrix.toml')
        told = hashlib.sha256(path.read_bytes()).hexdigest()
        if told != known:
            raise Failure(f'{self.name}: {path} has the sha256 {told}, kernels/matrix.toml says {known}')
        return path

    def download(self, package, folder):
        """By an apt of its own: what apt of this machine knows stays as it is."""
        state = folder / 'apt'
        for at in ('lists/partial', 'cache/archives/partial'):
            (state / at).mkdir(parents=True, exist_ok=True)
        source = f'deb [signed-by={KEYRING}] {MIRROR}/{self.entry["archive"]} {self.entry["suite"]} main\n'
        (state / 'sources.list').write_text(source)
        settings = [
            f'Dir::Etc::sourcelist={state}/sources.list', 'Dir::Etc::sourceparts=/dev/null',
            f'Dir::State::lists={state}/lists', f'Dir::Cache={state}/cache', 'Dir::State::status=/dev/null',
            'APT::Sandbox::User=', 'APT::Architecture=amd64', 'Acquire::Languages=none']
        apt = ['apt-get', '-q'] + [word for setting in settings for word in ('-o', setting)]
        with open(folder / 'apt.log', 'a', encoding='utf-8') as log:
            for words in (['update'], ['download', f'{package}={self.version}']):
                subprocess.run(apt + words, cwd=folder, stdout=log, stderr=log, check=False)

    def modules(self, root):
        """An archive with the wanted modules in the order in which they are loaded."""
        files = {re.sub(r'\.ko.*', '', at.name).replace('-', '_'): at for at in root.rglob('*.ko*')}
        archive, order = Archive(), []

        def add(name):
            at = files.get(name.replace('-', '_'))
            if at is None or at.name.partition('.ko')[0] + '.ko' in order:
                return
            data = at.read_bytes()
            if at.suffix == '.xz':
                data = lzma.decompress(data)
            elif at.suffix != '.ko':
                raise Failure(f'{self.name}: {at.name} is compressed in a way that is not known here')
            needs = re.search(rb'\0depends=([^\0]*)\0', data)
            for need in (needs.group(1).decode().split(',') if needs else []):
                add(need)
            order.append(at.name.partition('.ko')[0] + '.ko')
            archive.file(f'modules/{order[-1]}', data)

        for name in MODULES:
            add(name)
        archive.file('modules/order', ''.join(name + '\n' for name in order).encode())
        return archive.bytes()
