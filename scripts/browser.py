"""A headless Chromium, driven through its debugging pipe: no package is needed for that."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

FLAGS = """--headless --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --disable-dev-shm-usage --remote-debugging-pipe --window-size=1200,750""".split()


def find():
    """The program, or None."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


class Page:
    """One page of a browser of its own. Used in a `with`, both are gone at the end of it."""

    def __init__(self, program):
        with contextlib.ExitStack() as stack:
            profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            (read_there, self.out), (self.into, write_there) = os.pipe(), os.pipe()
            flags = FLAGS + ["--user-data-dir=" + profile] + (["--no-sandbox"] if os.geteuid() == 0 else [])
            # the browser reads from 3 and writes to 4
            line = f'exec "$@" 3<&{read_there} 4>&{write_there}'
            command = ["bash", "-c", line, "bash", program, *flags, "about:blank"]
            self.process = subprocess.Popen(
                command, pass_fds=(read_there, write_there), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(self._end)
            os.close(read_there)
            os.close(write_there)
            self.number, self.held, self.events, self.session = 0, b"", [], None
            targets = self.call("Target.getTargets")["targetInfos"]
            (target,) = [t["targetId"] for t in targets if t["type"] == "page"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(domain + ".enable")
            self.stack = stack.pop_all()

    def _end(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.out, self.into):
            os.close(pipe)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def call(self, method, **params):
        """The result of a command. Events that come meanwhile are kept in `events`."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.held:
                read = os.read(self.into, 1 << 16)
                if not read:
                    raise RuntimeError("the browser ended")
                self.held += read
            text, self.held = self.held.split(b"\0", 1)
            said = json.loads(text)
            if said.get("id") == self.number:
                if "error" in said:
                    raise RuntimeError(f"{method}: {said['error']}")
                return said["result"]
            self.events.append(said)

    def of(self, method):
        """The parameters of all events of a kind so far."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def js(self, code):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{code}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, code, seconds=30):
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.js(code):
            if time.monotonic() > end:
                raise AssertionError(f"waited for: {code}")
            time.sleep(0.02)

    def type(self, selector, text):
        """Puts text in place of what is in a field, as a keyboard would."""
        self.js(f"(e => {{ e.focus(); e.select(); }})(document.querySelector({json.dumps(selector)}))")
        self.call("Input.insertText", text=text)

    def key(self, name, code, text=""):
        for kind in ("keyDown", "keyUp"):
            pressed = {"text": text} if kind == "keyDown" and text else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **pressed)

    def click(self, selector):
        """A click with the mouse in the middle of an element."""
        box = self.js(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        at = dict(x=box["x"] + box["width"] / 2, y=box["y"] + box["height"] / 2, button="left", clickCount=1)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
