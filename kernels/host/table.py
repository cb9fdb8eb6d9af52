"""What all cells said, as a table in Markdown."""
import json

from .cell import count, setting

BEGIN, END = '<!-- kernels: begin -->', '<!-- kernels: end -->'


def stored(folder):
    """The cells that were run, each as it last was."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob('*.json'))]


def figure(cell):
    if cell is None:
        return 'not run'
    words = [f'{count(cell, "passed")} passed']
    for result in ('skipped', 'failed'):
        if count(cell, result):
            words.append(f'{count(cell, result)} {result}')
    return f'**{", ".join(words)}**' if count(cell, 'failed') else ', '.join(words)


def what(name):
    """What a setting is: the first line of its file."""
    return setting(name).__doc__.strip().splitlines()[0].rstrip('.')


def markdown(matrix, cells):
    kernels = [kernel['name'] for kernel in matrix['kernel']]
    of = {(cell['kernel'], cell['setting']): cell for cell in cells}
    dates = sorted({cell['date'] for cell in cells})
    about = '; '.join(sorted({cell['about'] for cell in cells}))
    builds = len({cell.get('binary') for cell in cells})
    if builds > 1:
        about += f'; cells of {builds} builds, as faults were mended between'
    lines = [f'Run {" to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "never"}, {about}.', '']
    lines += ['| | ' + ' | '.join(kernels) + ' |', '|---|' + '---|' * len(kernels)]
    versions = [' and '.join(sorted({cell['version'] for cell in cells if cell['kernel'] == name})) or 'not run' for name in kernels]
    lines.append("| Debian's package | " + ' | '.join(versions) + ' |')
    for name in (name for name in matrix['settings']['order'] if any(cell['setting'] == name for cell in cells)):
        lines.append(f'| `{name}`: {what(name)} | ' + ' | '.join(figure(of.get((k, name))) for k in kernels) + ' |')
    for result, head in (('failed', 'Failed'), ('skipped', 'Skipped')):
        reasons = {}
        for cell in cells:
            for check in cell['checks']:
                if check['result'] == result:
                    key = (cell['setting'], check['check'], check['reason'])
                    reasons.setdefault(key, []).append(cell['kernel'])
        if reasons:
            lines += ['', f'{head}:', '']
            lines += [f'- `{name}`, {check.replace("_", " ")} ({", ".join(on)}): {reason}'
                      for (name, check, reason), on in reasons.items()]
    return '\n'.join(lines) + '\n'


def write(path, text):
    """Puts it between the marks of that file."""
    old = path.read_text()
    head, rest = old.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    path.write_text(f'{head}{BEGIN}\n{text}{END}{tail}')
