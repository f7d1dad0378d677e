"""A real browser without a window, driven through its own protocol: nothing to install but it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS_MAX = 120.0
"""For the browser to start and for each answer: a busy machine is no fault of a page."""


class Browser:
    """One tab, and what it asked for and complained of."""

    def __init__(self, write: int, read: int) -> None:
        self.write, self.read = write, read
        self.rest = b""
        self.number = 0
        self.session: str | None = None
        self.events: list[dict] = []

    def open(self, address: str, *, scheme: str = "light") -> None:
        """Open a page and wait until it has drawn itself."""
        self.send("Emulation.setEmulatedMedia", features=[scheme_of(scheme)])
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=address)
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            if self.run("document.readyState === 'complete' && location.href !== 'about:blank'"):
                return
            time.sleep(0.05)
        raise AssertionError("the page was never complete")

    def run(self, script: str) -> object:
        """Return what an expression is in the page."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def asked_for(self) -> list[str]:
        """Return the addresses that were asked for since a page was opened."""
        return [
            one["params"]["request"]["url"]
            for one in self.events
            if one["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return what went wrong in the page: errors, warnings, dialogs."""
        bad = ("Log.entryAdded", "Runtime.exceptionThrown", "Page.javascriptDialogOpening")
        return [json.dumps(one["params"]) for one in self.events if one["method"] in bad]

    def send(self, method: str, **params: object) -> dict:
        """Say something to the browser and return its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            for answer in self._heard():
                if answer.get("id") == self.number:
                    assert "error" not in answer, answer
                    return answer["result"]
                self.events.append(answer)
        raise AssertionError(f"no answer to {method}")

    def _heard(self) -> list[dict]:
        if select.select([self.read], [], [], 1.0)[0]:
            self.rest += os.read(self.read, 1 << 20)
        *whole, self.rest = self.rest.split(b"\0")
        return [json.loads(one) for one in whole]


def scheme_of(name: str) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": name}


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, or skip the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)}; apt-get install chromium")
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    # The protocol is spoken on the descriptors 3 and 4.
    command = f'exec "$@" 3<&{their_in} 4>&{their_out}'
    folder = tempfile.mkdtemp(prefix="schedcheck-browser-")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
    process = subprocess.Popen(
        ["bash", "-c", command, "sh", found, *options, f"--user-data-dir={folder}"],
        pass_fds=(their_in, their_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        tab = Browser(our_out, our_in)
        target = tab.send("Target.createTarget", url="about:blank")["targetId"]
        answer = tab.send("Target.attachToTarget", targetId=target, flatten=True)
        tab.session = answer["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            tab.send(f"{domain}.enable")
        yield tab
    finally:
        process.terminate()
        process.wait(timeout=60)
        os.close(our_out)
        os.close(our_in)
        shutil.rmtree(folder, ignore_errors=True)
