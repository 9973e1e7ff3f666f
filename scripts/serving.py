"""Starts `pi serve` for the scripts beside this file, and ends it in all cases.

PI   the program to be tested (default: target/debug/pi, built if it is not there or older than its sources)
CI   if set, a test that cannot run is a failure
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def skip(why):
    """Ends the script: loudly, and as a failure where nothing may be skipped."""
    print(f"SKIPPED: {pathlib.Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(1 if os.environ.get("CI") else 0)


def built(name, *how):
    """A program of the workspace in its debug build, as `cargo build` with `how` makes it."""
    path = TARGET / "debug" / name
    if is_old(path):
        subprocess.run(["cargo", "build", *how], cwd=ROOT, check=True)
    return path


def is_old(path):
    """Whether a program is not there, or older than something that it may be made of. (Cargo is not asked each time: for one package
    alone it chooses other features than for all of them, and builds much again.)"""
    if not path.exists():
        return True
    sources = [ROOT / "Cargo.lock", ROOT / "Cargo.toml"]
    for top in ("crates", "examples"):
        for folder, below, names in os.walk(ROOT / top):
            below[:] = [name for name in below if name not in ("tests", "target")]
            sources += [pathlib.Path(folder, name) for name in names]
    built = path.stat().st_mtime
    return any(source.stat().st_mtime > built for source in sources)


def pi():
    """The program."""
    return pathlib.Path(os.environ["PI"]) if "PI" in os.environ else built("pi", "-p", "pi-cli")


class Process:
    """A program that says on a line of its output where it listens (if `says` is a pattern for that). Used in a `with`, it is ended at the end of it."""

    def __init__(self, command, says=r"listening on (http://\S+)", until=None):
        self.lines = []
        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            self.url = self.hear(says).group(1) if says else None
            if until:
                self.hear(until)
        except BaseException:
            self.end()
            raise

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def hear(self, pattern, seconds=120):
        """Waits for a line."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            for line in list(self.lines):
                if found := re.search(pattern, line):
                    return found
            if ended:
                break
            time.sleep(0.01)
        raise RuntimeError(f"waited for {pattern!r}, heard {self.lines}")

    def ask_to_end(self):
        self.process.send_signal(signal.SIGTERM)

    def end(self, seconds=20):
        """Asks it to end, insists if it does not, and returns its exit code."""
        if self.process.poll() is None:
            self.ask_to_end()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Serving(Process):
    """`pi serve` with the demo model, unless the options say otherwise, on a free port."""

    def __init__(self, *options, port=0):
        super().__init__([pi(), "serve", "--port", port, *options], until="^ready: ")

    def get(self, path, key=None):
        """Status and body."""
        return fetch(self.url + path, headers={"Authorization": f"Bearer {key}"} if key else {})

    def post(self, path, body):
        """Status and JSON."""
        status, text = fetch(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        return status, json.loads(text)

    def metric(self, name, key=None):
        """A number of /metrics."""
        text = self.get("/metrics", key)[1]
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M).group(1))


def fetch(url, body=None, headers={}, seconds=120):
    """Status and body of a request, whatever the status."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=seconds) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(what, done, seconds=20):
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"waited for: {what}")
        time.sleep(0.02)


def installed(folder, stamp, install):
    """A folder of packages under the target folder, made again if `stamp` (which versions) changed."""
    path, note = TARGET / folder, TARGET / folder / ".installed"
    if not note.exists() or note.read_text() != stamp:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        install(path)
        note.write_text(stamp)
    return path
