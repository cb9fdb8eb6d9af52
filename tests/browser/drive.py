"""Opens a report in a real browser, uses it as a person would, and compares what it shows with JSON.

    drive.py BROWSER PAGE JSON
    drive.py BROWSER PAGE

PAGE and JSON are `report --format html` and `--format json` of one recording. Without JSON the page, of whatever
recordings, is only opened, walked through and listened to.
Exit status 0 and nothing on standard output where all is well; otherwise one line a failure.
"""

import bisect
import json
import pathlib
import sys

from devtools import Browser

FAILURES = []
SIZES = [(400, 800), (1280, 800), (3840, 2160)]


def check(holds, text):
    """Records a failure unless `holds`."""
    if not holds:
        FAILURES.append(text)


def size_text(size):
    """Bytes as the reports write them: three digits, binary units."""
    if size < 0:
        return "−" + size_text(-size)
    if size < 1024:
        return f"{size} B"
    value, unit = size / 1024, 0
    units = ["KiB", "MiB", "GiB", "TiB"]
    while value >= 999.5 and unit + 1 < len(units):
        value, unit = value / 1024, unit + 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {units[unit]}"


def formats(browser):
    """The page formats sizes like the reports, also sizes exactly between two figures."""
    source = pathlib.Path(__file__).parents[2] / "crates/report/src/timeline/assets/format.js"
    sizes = [0, 1, 1023, 1024, 1_023_999, 96 << 20, 1 << 40]
    sizes += [step * 1024 for step in range(6_700, 6_900)] + [step * 512 for step in range(200, 300)]
    shown = browser.evaluate(f"(() => {{ {source.read_text()}; return {sizes}.map(formatBytes); }})()")
    for size, text in zip(sizes, shown):
        check(text == size_text(size), f"{size} is shown as {text!r}, not {size_text(size)!r}")


def window(browser):
    """The range of time that the timeline shows."""
    return browser.evaluate("[+document.getElementById('chart').dataset.from, +document.getElementById('chart').dataset.to]")


def sampled(document, process, seconds):
    """The sample of `process` that holds at an instant, by column."""
    samples = document["samples"]
    own = [i for i, number in enumerate(samples["process"]) if number == process]
    at = bisect.bisect_right([samples["seconds"][i] for i in own], seconds + 1e-9) - 1
    return None if at < 0 else {name: column[own[at]] for name, column in samples.items()}


def hover(browser, document):
    """Figures under the pointer equal those of the recording."""
    left, top, width, height = browser.middle("#chart .u-over")
    compared = 0
    for share in (0.15, 0.4, 0.65, 0.9):
        browser.mouse("mouseMoved", left + width * share, top + height * 0.5)
        browser.settle()
        seconds = browser.evaluate("+document.getElementById('at').dataset.seconds")
        rows = browser.evaluate("""[...document.querySelectorAll("#lines tbody tr")].map(row => [
            +row.dataset.process, row.dataset.column, row.querySelector(".now").dataset.exact ?? null,
            row.querySelector(".now").textContent])""")
        check(len(rows) >= 3, f"the timeline has RSS, anonymous and file, not {rows}")
        for process, column, exact, text in rows:
            sample = sampled(document, process, seconds)
            if exact is None or sample is None:
                continue
            wanted = sample[f"{column}_bytes"]
            check(int(exact) == wanted, f"{column} of {process} at {seconds}: {exact}, JSON says {wanted}")
            check(text == size_text(wanted), f"{column} of {process} at {seconds}: {text!r}")
            compared += 1
    check(compared >= 8, f"only {compared} figures could be compared")


def zoom(browser):
    """Dragging, keys and buttons zoom and pan."""
    whole = window(browser)
    left, top, width, height = browser.middle("#chart .u-over")
    y = top + height / 2
    browser.mouse("mouseMoved", left + width * 0.3, y)
    browser.mouse("mousePressed", left + width * 0.3, y, "left")
    for share in (0.4, 0.5, 0.6):
        browser.mouse("mouseMoved", left + width * share, y)
    browser.mouse("mouseReleased", left + width * 0.6, y, "left")
    browser.settle()
    dragged = window(browser)
    part = (dragged[1] - dragged[0]) / (whole[1] - whole[0])
    check(0.25 < part < 0.35, f"dragging over 30 % shows {part:.2f} of the whole")
    browser.evaluate("document.getElementById('chart').focus()")
    browser.key("+")
    closer = window(browser)
    check(closer[1] - closer[0] < (dragged[1] - dragged[0]) * 0.6, f"+ zooms in: {dragged} to {closer}")
    browser.key("ArrowRight")
    check(window(browser)[0] > closer[0], "→ pans")
    browser.key("-")
    check(window(browser)[1] - window(browser)[0] > closer[1] - closer[0], "− zooms out")
    browser.key("0")
    check(window(browser) == whole, f"0 shows all: {window(browser)}, not {whole}")
    browser.click("#zoom-in")
    check(window(browser) != whole, "the button zooms in")
    browser.click("#zoom-all")
    check(window(browser) == whole, "the button shows all")


def marks(browser, document):
    """The table has the marks of the recording, and the keys n and p move between marks."""
    rows = browser.evaluate("""[...document.querySelectorAll("table.marks tbody tr")].map(row => [
        row.querySelector("th").textContent,
        ...[0, 1, 2, 3, 4, 5, 6].map(n => +row.querySelector(`.c-${n}:not(.d)`).dataset.exact),
        row.querySelector(".c-0").textContent])""")
    wanted = [[mark["name"], mark["rss_bytes"], mark["anonymous_bytes"], mark["file_bytes"], mark["data_bytes"],
               mark["virtual_bytes"], mark["minor_faults"], mark["major_faults"], size_text(mark["rss_bytes"])]
              for mark in document["marks"]]
    check(rows == wanted, f"marks: {rows}, JSON says {wanted}")
    deltas = browser.evaluate("[...document.querySelectorAll('table.marks td.d.c-0')].map(cell => cell.dataset.exact ?? null)")
    figures = [mark["rss_bytes"] for mark in document["marks"]]
    steps = [str(b - a) for a, b in zip(figures, figures[1:])]
    check(deltas[1:] == steps, f"changes between marks: {deltas}, not {steps}")
    browser.evaluate("document.getElementById('chart').focus()")
    browser.key("n")
    first = browser.evaluate("document.querySelector('table.marks tr.chosen th')?.textContent")
    browser.key("n")
    second = browser.evaluate("document.querySelector('table.marks tr.chosen th')?.textContent")
    names = [mark["name"] for mark in document["marks"]]
    check([first, second] == names[:2], f"n goes to {first!r}, {second!r}")
    browser.key("p")
    again = browser.evaluate("document.querySelector('table.marks tr.chosen th')?.textContent")
    check(again == first, f"p goes back to {first!r}, not {again!r}")
    before = browser.evaluate("getComputedStyle(document.querySelector('table.marks td.c-4')).display")
    browser.click("#mark-columns input[value='4']")
    after = browser.evaluate("getComputedStyle(document.querySelector('table.marks td.c-4')).display")
    check((before, after) == ("none", "table-cell"), f"VmSize can be shown: {before}, {after}")
    browser.click("#mark-columns input[value='4']")


def ledgers(browser, document):
    """Each ledger, chosen by a click, has the rows of the recording."""
    count = browser.evaluate("document.querySelectorAll('.bar-option').length")
    check(count == len(document["ledgers"]), f"{count} ledgers, JSON has {len(document['ledgers'])}")
    for index, ledger in enumerate(document["ledgers"]):
        browser.click(f".bar-option:nth-child({index + 1})")
        # One row has a line for each holder of it.
        rows = browser.evaluate("""[...document.querySelectorAll("#ledger tbody tr")].map(
            row => [row.dataset.row, +row.querySelector("[data-exact]").dataset.exact])""")
        explain = ledger["explain"]
        wanted = [[row["id"], row["bytes"]] for row in explain["rows"]]
        check(sorted(rows) == sorted(wanted), f"ledger {index}: {rows}, JSON says {wanted}")
        total = browser.evaluate("+document.querySelector('#ledger tfoot [data-exact]').dataset.exact")
        check(total == explain["kernel"]["rss_bytes"] == sum(bytes for _, bytes in rows), f"ledger {index}: RSS {total}")
        lit = browser.evaluate("document.querySelector('table.marks tr.chosen th')?.textContent ?? null")
        own = ledger["at"] if ledger["moment"] == "mark" else None
        check(lit == own, f"ledger {index} lights the mark {lit!r}, not {own!r}")
        headline = browser.evaluate("document.querySelector('#ledger .headline').textContent")
        check(headline == explain["verdict"]["headline"], f"ledger {index}: {headline!r}")
        label = browser.evaluate("document.querySelector('.bar-option[aria-selected=true]').getAttribute('aria-label')")
        for state, size in explain["totals"].items():
            check(f"{state} {size_text(size)}" in label, f"ledger {index}: {state} in {label!r}")
    browser.evaluate("document.querySelector('.bar-option[aria-selected=true]').focus()")
    browser.key("ArrowLeft")
    chosen = browser.evaluate("document.getElementById('ledger').dataset.ledger")
    check(chosen == str(max(count - 2, 0)), f"← chooses the ledger before: {chosen}")
    browser.key("ArrowRight")


def page_map(browser, document):
    """The page map of the last ledger reacts to the pointer and to keys."""
    if "page_map" not in document["ledgers"][-1]["explain"]:
        check(False, "the last ledger has no page map")
        return
    browser.click(f".bar-option:nth-child({len(document['ledgers'])})")
    browser.middle("#map canvas")
    browser.evaluate("document.querySelector('.map-box').focus()")
    browser.settle()
    first = browser.evaluate("document.getElementById('map-at').textContent")
    check(" B" in first or "iB" in first, f"a cell names its bytes: {first!r}")
    address = int(first.split(" ")[0], 16)
    maps = document["ledgers"][-1]["explain"]["page_map"]["mappings"]
    cell = document["ledgers"][-1]["explain"]["page_map"]["cell_bytes"]
    inside = [m for m in maps if m["start"] - cell < address < m["end"]]
    check(len(inside) >= 1, f"{first!r} is in no mapping")
    browser.key("ArrowRight")
    second = browser.evaluate("document.getElementById('map-at').textContent")
    check(second != first, "→ goes to the next cell")
    browser.key("ArrowDown")
    check(browser.evaluate("document.getElementById('map-at').textContent") != second, "↓ goes down")
    spot = browser.evaluate("""(() => { const box = document.querySelector(".map-cursor").getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2]; })()""")
    browser.key("ArrowUp")
    browser.mouse("mouseMoved", *spot)
    browser.settle()
    hovered = browser.evaluate("document.getElementById('map-at').textContent")
    check(hovered != second and hovered, f"hovering names the cell: {hovered!r}")


def themes(browser):
    """Light and dark differ, and the page follows the system until the user selects a theme."""
    background = "getComputedStyle(document.body).backgroundColor"
    system = browser.evaluate(background)
    browser.click("#theme")
    light = browser.evaluate(background)
    browser.click("#theme")
    dark = browser.evaluate(background)
    check(system == light != dark, f"system {system}, light {light}, dark {dark}")
    browser.click("#theme")
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.settle()
    check(browser.evaluate(background) == dark, "a dark system makes a dark page")
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])


def reachable(browser):
    """The tab key reaches all controls, and the focused one is visible."""
    browser.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    seen = []
    for _ in range(60):
        browser.key("Tab")
        seen.append(browser.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
        outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if document_has_focus(browser):
            check(outline != "none", f"the focus on {seen[-1]!r} is not seen")
    for wanted in ("skip", "theme", "chart", "zoom-in", "bar-option"):
        check(wanted in seen, f"the tab key does not reach {wanted}: {seen}")


def document_has_focus(browser):
    """Whether an element of the page, not the page itself, has the focus."""
    return browser.evaluate("document.activeElement !== document.body")


def sizes(browser):
    """No element exceeds the window at any size."""
    browser.evaluate("document.activeElement.blur()")
    for width, height in SIZES:
        browser.size(width, height)
        browser.evaluate("window.scrollTo({ top: 0, behavior: 'instant' })")
        browser.mouse("mouseMoved", 2, 2)
        browser.settle()
        wide = browser.evaluate("document.documentElement.scrollWidth")
        check(wide <= width, f"at {width} columns of pixels the page is {wide} wide")


def quiet(browser, url):
    """The page has fetched nothing, logged no error, and run no foreign script."""
    for event in browser.events:
        method, parameters = event["method"], event.get("params", {})
        if method == "Network.requestWillBeSent":
            requested = parameters["request"]["url"]
            check(requested == url or requested.startswith("data:"), f"the page requested {requested}")
        elif method == "Page.javascriptDialogOpening":
            check(False, f"a name ran: {parameters.get('message')!r}")
        elif method == "Runtime.exceptionThrown":
            check(False, f"exception: {parameters['exceptionDetails']}")
        elif method == "Runtime.consoleAPICalled":
            check(False, f"console: {parameters.get('args')}")
        elif method == "Log.entryAdded":
            check(False, f"log: {parameters['entry'].get('text')} {parameters['entry'].get('url', '')}")
    check(browser.evaluate("document.images.length") == 0, "there is an image in the page")
    check(browser.evaluate("document.scripts.length") == 2, "there is a foreign script in the page")


def compare(browser, document):
    """Compares the page with the document of the same recording."""
    formats(browser)
    hover(browser, document)
    zoom(browser)
    marks(browser, document)
    ledgers(browser, document)
    page_map(browser, document)
    themes(browser)
    reachable(browser)
    sizes(browser)


def walk(browser):
    """Uses the whole page with keys and pointer; names in it must not act as markup or scripts."""
    browser.evaluate("document.getElementById('chart').focus()")
    for key in ["n"] * 8 + ["+", "ArrowLeft", "0"]:
        browser.key(key)
    left, top, width, height = browser.middle("#chart .u-over")
    for share in (0.1, 0.5, 0.9):
        browser.mouse("mouseMoved", left + width * share, top + height / 2)
    for box in ("#columns input", "#processes-choice input", "#mark-columns input"):
        for index in range(browser.evaluate(f"document.querySelectorAll({box!r}).length")):
            browser.evaluate(f"document.querySelectorAll({box!r})[{index}].click()")
    browser.evaluate("for (const bar of document.querySelectorAll('.bar-option')) bar.click()")
    browser.click("#theme")
    browser.settle()


def main():
    """Runs all checks and prints the failures."""
    executable, page = sys.argv[1:3]
    document = json.loads(pathlib.Path(sys.argv[3]).read_text()) if len(sys.argv) > 3 else None
    url = pathlib.Path(page).resolve().as_uri()
    browser = Browser(executable)
    try:
        browser.size(1280, 800)
        browser.open(url)
        timing = browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        if document:
            compare(browser, document)
        else:
            walk(browser)
        quiet(browser, url)
        print(f"loaded within {timing:.0f} ms", file=sys.stderr)
    finally:
        browser.close()
    for failure in FAILURES:
        print(failure[:600])
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
