"""A browser, driven through the DevTools protocol over a pipe. Standard library only.

Starts a Chromium of its own with a profile of its own and ends both. Knows nothing of what is tested.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class Browser:
    """One tab. `events` has the page's console output, dialogs, requests and exceptions."""

    # Upper bound of a wait in seconds: ends a browser that hangs; a slow machine does not reach it.
    PATIENCE = 600.0

    def __init__(self, executable):
        self.profile = tempfile.mkdtemp(prefix="strandline-browser-")
        to_read, self.to = os.pipe()
        self.come, from_write = os.pipe()
        command = [
            executable, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", f"--user-data-dir={self.profile}", "--remote-debugging-pipe", "about:blank",
        ]
        # The browser reads commands from descriptor 3 and writes answers to 4.
        shell = ["sh", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "sh", *command]
        self.process = subprocess.Popen(
            shell, pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(from_write)
        self.buffer = b""
        self.number = 0
        self.events = []
        target = self.call("Target.createTarget", session=None, url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", session=None, targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        """Ends the browser and removes its profile."""
        try:
            self.call("Browser.close", session=None)
            self.process.wait(self.PATIENCE)
        except (OSError, RuntimeError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        os.close(self.come)
        # Its helper processes may still be writing.
        until = time.monotonic() + self.PATIENCE
        while os.path.exists(self.profile):
            shutil.rmtree(self.profile, ignore_errors=True)
            if time.monotonic() > until:
                raise TimeoutError(f"{self.profile} is still written to")
            time.sleep(0.02)

    def message(self, until):
        """The next message, or TimeoutError."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.come], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            got = os.read(self.come, 1 << 20)
            if not got:
                raise RuntimeError("the browser ended")
            self.buffer += got
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, session="own", **parameters):
        """Calls a method and returns its result."""
        self.number += 1
        number = self.number
        request = {"id": number, "method": method, "params": parameters}
        if session == "own":
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        until = time.monotonic() + self.PATIENCE
        while True:
            message = self.message(until)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)
                if message["method"] == "Page.javascriptDialogOpening":
                    # An open dialog would block the page and the test.
                    self.number += 1
                    close = {"id": self.number, "method": "Page.handleJavaScriptDialog",
                             "params": {"accept": True}, "sessionId": self.session}
                    os.write(self.to, json.dumps(close).encode() + b"\0")

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, url):
        """Opens a page and waits until it is laid out."""
        self.call("Page.navigate", url=url)
        until = time.monotonic() + self.PATIENCE
        while self.evaluate("document.readyState") != "complete" or self.evaluate("location.href") != url:
            if time.monotonic() > until:
                raise TimeoutError(f"{url} does not load")
            time.sleep(0.02)
        self.settle()

    def settle(self):
        """Waits for two frames, after which earlier changes are drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def size(self, width, height, scale=1):
        """Gives the page a window of this size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=scale, mobile=False)
        self.settle()
        self.settle()

    def middle(self, selector):
        """Where the middle of an element is in the window, after scrolling it into view."""
        box = self.evaluate(f"""(() => {{
            const found = document.querySelector({json.dumps(selector)});
            found.scrollIntoView({{ block: "center", inline: "nearest", behavior: "instant" }});
            const box = found.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }})()""")
        self.settle()
        return box

    def mouse(self, kind, x, y, button="none"):
        """A real mouse event: `mouseMoved`, `mousePressed`, `mouseReleased`."""
        count = 0 if kind == "mouseMoved" else 1
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=count)

    def click(self, selector):
        """Clicks the middle of an element."""
        left, top, width, height = self.middle(selector)
        x, y = left + width / 2, top + height / 2
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, "left")
        self.mouse("mouseReleased", x, y, "left")
        self.settle()

    def key(self, key):
        """Presses a key."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)
        self.settle()
