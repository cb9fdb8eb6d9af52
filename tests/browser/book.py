"""Opens the page of a study's report in a real browser and checks its layout.

    book.py BROWSER PAGE [FOLDER]

It asks for nothing, says nothing, every link leads somewhere, and it is no wider than its window. Screenshots, light
and dark, go to FOLDER. Exit status 0 and nothing on standard output where all is well; otherwise one line a failure.
"""

import base64
import pathlib
import sys

from devtools import Browser

FAILURES = []
# JavaScript: the links of the page, and those to anchors that do not exist.
LINKS = "[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))"
LOST = f"{LINKS}.filter(one => !one.startsWith('#') || !document.getElementById(one.slice(1)))"


def check(holds, text):
    """Records a failure unless `holds`."""
    if not holds:
        FAILURES.append(text)


def look(browser, url, folder):
    """Opens it in windows of several sizes, light and dark."""
    browser.open(url)
    check(browser.evaluate(f"{LINKS}.length") > 2, "there are hardly any links")
    check(not browser.evaluate(LOST), f"these lead nowhere: {browser.evaluate(LOST)}")
    check(browser.evaluate("document.scripts.length") == 0, "there is a script")
    ids = browser.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    check(len(ids) == len(set(ids)), "two elements have the same id")
    for width in (400, 1280, 3840):
        browser.size(width, 900)
        wide = browser.evaluate("document.documentElement.scrollWidth")
        check(wide <= width, f"at {width} columns of pixels the page is {wide} wide")
    grounds = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.size(1280, 900)
        grounds.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        if folder:
            for place in ("top", "article"):
                browser.evaluate("scrollTo(0, 0)" if place == "top" else
                                 "document.querySelector('article').scrollIntoView()")
                browser.settle()
                picture = browser.call("Page.captureScreenshot", format="png")["data"]
                (folder / f"studies-{scheme}-{place}.png").write_bytes(base64.b64decode(picture))
    check(grounds[0] != grounds[1], f"light and dark are the same: {grounds}")


def main():
    """Runs all checks and prints the failures."""
    executable, page = sys.argv[1:3]
    folder = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    url = pathlib.Path(page).resolve().as_uri()
    browser = Browser(executable)
    try:
        look(browser, url, folder)
        requested = [event["params"]["request"]["url"] for event in browser.events
                 if event["method"] == "Network.requestWillBeSent"]
        others = [one for one in requested if one.split("#")[0] != url and not one.startswith("data:")]
        check(not others, f"the page requests {others}")
        logged = [event for event in browser.events if event["method"] in
                ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]
        check(not logged, f"the page logs {logged}")
    finally:
        browser.close()
    for failure in FAILURES:
        print(failure)
    sys.exit(1 if FAILURES else 0)


main()
