"""Archives of an initramfs (cpio, "newc"), written here so that no tool for it is needed."""
import stat


class Archive:
    """An archive in memory. Archives can be put one behind the other."""

    def __init__(self):
        self.parts = []
        self.folders = set()
        self.number = 0

    def _entry(self, name, mode, data=b'', device=(0, 0)):
        self.number += 1
        path = name.encode() + b'\0'
        fields = (self.number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
        head = b'070701' + b''.join(b'%08X' % field for field in fields) + path
        self.parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]

    def folder(self, name):
        """A folder, and those above it."""
        if not name or name in self.folders:
            return
        self.folder(name.rpartition('/')[0])
        self.folders.add(name)
        self._entry(name, stat.S_IFDIR | 0o755)

    def file(self, name, data, mode=0o644):
        self.folder(name.rpartition('/')[0])
        self._entry(name, stat.S_IFREG | mode, data)

    def path(self, name, path):
        """A file of this machine."""
        self.file(name, path.read_bytes(), path.stat().st_mode & 0o777)

    def tree(self, name, path):
        for each in sorted(path.rglob('*')):
            if each.is_file() and '__pycache__' not in each.parts:
                self.path(f'{name}/{each.relative_to(path)}', each)

    def console(self):
        """What the kernel opens for the first process."""
        self.folder('dev')
        self._entry('dev/console', stat.S_IFCHR | 0o600, device=(5, 1))

    def bytes(self):
        self._entry('TRAILER!!!', 0)
        data = b''.join(self.parts)
        return data + bytes(-len(data) % 512)
