"""One cell: a kernel booted under a setting, and what its checks said."""
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A machine that is not done by then hangs.
LIMIT_SECONDS = 240
LAST_LINES = 12


def setting(name):
    """The setting's file, as a module: it says how the machine is to be made, and what is tried in it."""
    if str(ROOT / 'kernels/guest') not in sys.path:
        sys.path.append(str(ROOT / 'kernels/guest'))
    path = ROOT / 'kernels/settings' / f'{name}.py'
    spec = importlib.util.spec_from_file_location(f'setting_{name}', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def command(kernel, name, disk, initramfs, logs, shell, only=''):
    """qemu's. Never KVM: a guest hangs in a machine that is one itself."""
    made = setting(name)
    memory = getattr(made, 'MEMORY', ['-m', '2048'])
    words = ['console=ttyS0', 'panic=-1', 'quiet', 'loglevel=4', 'mitigations=off', 'random.trust_cpu=on',
             getattr(made, 'KERNEL', ''), f'strandline.setting={name}']
    words += ['strandline.shell=1'] if shell else []
    words += [f'strandline.only={only}'] if only else []
    return [
        'qemu-system-x86_64', '-accel', 'tcg,thread=multi', '-cpu', getattr(made, 'CPU', 'max,la57=off'), *memory,
        '-smp', '2', '-display', 'none', '-monitor', 'none', '-no-reboot', '-nic', 'none',
        '-kernel', str(kernel.image), '-initrd', str(initramfs), '-append', ' '.join(words),
        '-drive', f'file={disk},format=raw,if=virtio,snapshot=on',
        '-serial', 'mon:stdio' if shell else f'file:{logs}.console', '-serial', f'file:{logs}.results']


def run(kernel, name, disk, overlay, work, shell=False, only=''):
    """Boots it and returns what is known then, as a table."""
    logs = work / 'logs' / f'{kernel.name}.{name}'
    logs.parent.mkdir(parents=True, exist_ok=True)
    for end in ('.console', '.results'):
        Path(f'{logs}{end}').write_text('')
    initramfs = work / f'initramfs.{kernel.name}.{name}'
    initramfs.write_bytes(kernel.initramfs.read_bytes() + overlay)
    began = time.monotonic()
    words = command(kernel, name, disk, initramfs, logs, shell, only)
    try:
        ended = subprocess.run(words, stdin=None if shell else subprocess.DEVNULL, check=False,
                               stdout=None if shell else subprocess.DEVNULL, stderr=subprocess.PIPE,
                               timeout=None if shell else LIMIT_SECONDS)
        trouble = '' if ended.returncode == 0 else f'qemu: {ended.stderr.decode(errors="replace").strip()[-300:]}'
    except subprocess.TimeoutExpired:
        trouble = f'not done after {LIMIT_SECONDS} s'
    finally:
        initramfs.unlink()
    cell = {'kernel': kernel.name, 'version': kernel.version, 'setting': name,
            'date': time.strftime('%Y-%m-%d', time.gmtime()), 'seconds': round(time.monotonic() - began)}
    return {**cell, **told(logs, trouble)}


def told(logs, trouble):
    """What the second serial line said: a document a line, the last of which is the end's."""
    checks, end = [], None
    for line in Path(f'{logs}.results').read_bytes().decode(errors='replace').splitlines():
        start = line.find('@@ ')
        if start < 0:
            continue
        try:
            document = json.loads(line[start + 3:])
        except ValueError:
            continue
        if document.get('end'):
            end = document
        elif {'check', 'result'} <= document.keys():
            checks.append(document)
    if end is None:
        lines = Path(f'{logs}.console').read_bytes().decode(errors='replace').splitlines()
        last = ' | '.join(line.strip() for line in lines[-LAST_LINES:] if line.strip())
        checks.append({'check': 'machine', 'result': 'failed', 'seconds': 0,
                       'reason': f'{trouble or "it ended without an end"}; its last lines: {last}'})
    elif end['checks'] != len(checks):
        checks.append({'check': 'machine', 'result': 'failed', 'seconds': 0,
                       'reason': f'{end["checks"]} checks were made and {len(checks)} told of'})
    return {'checks': checks, 'release': (end or {}).get('release', '?')}


def count(cell, result):
    return sum(1 for check in cell['checks'] if check['result'] == result)
