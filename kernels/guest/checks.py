"""Runs the checks of one setting inside a machine and tells of each on the second serial line.

A check is a function of the setting's file whose name begins with `check_`. It passes by returning, what it returns is
kept as a note; it is skipped by Skipped, and fails by anything else. `prepare`, if there is one, runs first.
"""
import importlib.util
import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path

import lab

CHECK_SECONDS = 100
REASON_CHARACTERS = 600


class TooLong(Exception):
    """A check that took too long."""


def too_long(_signal, _frame):
    raise TooLong(f'not done after {CHECK_SECONDS} s')


def tell(document):
    line = '@@ ' + json.dumps(document) + '\n'
    with open('/dev/ttyS1', 'w', encoding='ascii') as serial:
        serial.write(line)


def plain(text):
    return re.sub(r'\s+', ' ', str(text)).strip()[:REASON_CHARACTERS]


def one(name, check):
    began = time.monotonic()
    signal.alarm(CHECK_SECONDS)
    try:
        note = check()
        lab.all_are_free()
        result, reason = 'passed', plain(note or '')
    except lab.Skipped as error:
        result, reason = 'skipped', plain(error)
    except Exception as error:  # whatever it was, the next check is made
        where = traceback.extract_tb(error.__traceback__)
        line = next((f'{Path(at.filename).name}:{at.lineno}' for at in reversed(where) if 'settings' in at.filename), '?')
        result, reason = 'failed', plain(f'{line}: {error if isinstance(error, lab.Failed) else repr(error)}')
        traceback.print_exc()
    finally:
        signal.alarm(0)
        lab.end_all()
    seconds = round(time.monotonic() - began, 1)
    print(f'{result:8}{seconds:7} s  {name}{": " if reason else ""}{reason}', flush=True)
    tell({'check': name, 'result': result, 'reason': reason, 'seconds': seconds})


def main():
    setting, only = sys.argv[1], (sys.argv[2:] or [''])[0]
    signal.signal(signal.SIGALRM, too_long)
    spec = importlib.util.spec_from_file_location(setting, Path(__file__).parents[1] / f'settings/{setting}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checks = [(name[6:], value) for name, value in vars(module).items()
              if name.startswith('check_') and callable(value) and only in name]
    if hasattr(module, 'prepare'):
        try:
            module.prepare()
        except Exception as error:
            traceback.print_exc()
            skips = isinstance(error, lab.Skipped)
            tell({'check': 'prepare', 'result': 'skipped' if skips else 'failed', 'reason': plain(error), 'seconds': 0})
            tell({'end': True, 'checks': 1, 'release': os.uname().release})
            return
    for name, check in checks:
        one(name, check)
    tell({'end': True, 'checks': len(checks), 'release': os.uname().release})


if __name__ == '__main__':
    main()
