"""A browser with real keys, and with the accessibility tree that screen readers are given.

Chromium's DevTools protocol by its pipe: messages of JSON that end with a zero byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.browser import QUIET, installed_browser
from tests.processes import PATIENCE

FLAGS = (
    *QUIET,
    "--force-prefers-reduced-motion",  # the page does not begin to play
    "--remote-debugging-pipe",
)
# name of a key: its number, and the text that it types
KEYS: dict[str, tuple[int, str]] = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "PageUp": (33, ""),
    "PageDown": (34, ""),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}
SHIFT = 8


class Browser:
    """A page in a browser that is told what to do, one command after the other."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser = to_browser
        self.messages = os.fdopen(from_browser, "rb")
        self.session: str | None = None
        self.number = 0
        self.buffer = b""

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return the result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method}
        message["params"] = params
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") != self.number:
                continue  # an event
            assert "error" not in answer, (method, answer["error"])
            result: dict[str, Any] = answer["result"]
            return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = self.messages.read1(1 << 16)
            assert part, "the browser has ended"
            self.buffer += part
        first, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def attach(self) -> None:
        """Speak with the page from now on, not with the browser."""
        targets = self.send("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]

    def open(self, address: str | None = None) -> None:
        """Go to an address, or open the page again, and wait until it is drawn."""
        if address is None:
            self.run("globalThis.isOld = true")
            self.send("Page.reload")
        else:
            self.send("Page.navigate", url=address)
        drawn = "document.readyState === 'complete' && document.querySelector('canvas')"
        deadline = time.monotonic() + PATIENCE
        while not self.run(f"return Boolean({drawn}) && !globalThis.isOld"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.settle()

    def run(self, script: str) -> Any:
        """Return what the body of an asynchronous function returns in the page."""
        answer = self.send(
            "Runtime.evaluate",
            expression=f"(async () => {{ {script} }})()",
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key and let it go."""
        code, text = KEYS[key]
        pressed: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        pressed["code"] = "Space" if key == " " else key
        pressed["modifiers"] = modifiers
        if text:
            pressed["text"] = text
        self.send("Input.dispatchKeyEvent", type="keyDown", **pressed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def type(self, text: str) -> None:
        """Type a text into the field that has the focus."""
        self.send("Input.insertText", text=text)

    def settle(self) -> None:
        """Wait until frames are drawn and sentences are spoken."""
        self.run(
            "await new Promise((done) => setTimeout(done, 250));"
            "await new Promise(requestAnimationFrame);"
        )

    def accessibility(self) -> list[dict[str, Any]]:
        """Return what a screen reader is told, in order: role, name, value, properties."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        by_id = {node["nodeId"]: node for node in nodes}
        told = []

        def walk(node: dict[str, Any], above: tuple[str, ...]) -> None:
            role = node["role"]["value"] if "role" in node else ""
            if not node["ignored"]:
                properties = {
                    one["name"]: one["value"].get("value")
                    for one in node.get("properties", [])
                }
                words = {
                    part: node.get(part, {}).get("value", "")
                    for part in ("name", "description", "value")
                }
                told.append({"role": role, "above": above, **words, **properties})
                above = (*above, role)
            for child in node.get("childIds", []):
                if child in by_id:
                    walk(by_id[child], above)

        walk(nodes[0], ())
        return told


@contextmanager
def browser(folder: Path, text: str, width: int = 1400) -> Iterator[Browser]:
    """Open a page of HTML in a browser of its own."""
    file = folder / "page.html"
    file.write_text(text, encoding="utf-8")
    read_commands, write_commands = os.pipe()
    read_answers, write_answers = os.pipe()
    command = [
        installed_browser(),
        *FLAGS,
        f"--window-size={width},900",
        f"--user-data-dir={folder / 'profile'}",
        "about:blank",
    ]
    # The browser reads commands from its file 3, and writes answers to its file 4. High
    # numbers first, so that neither is overwritten before it is copied.
    shell = f'exec 8<&{read_commands} 9>&{write_answers}; exec 3<&8 4>&9; exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", shell, "browser", *command],
        pass_fds=(read_commands, write_answers),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_commands)
    os.close(write_answers)
    driven = Browser(write_commands, read_answers)
    try:
        driven.attach()
        driven.send("Page.enable")
        driven.send("Accessibility.enable")
        # the page itself is so wide: windows are 500 points wide at least
        size = {"width": width, "height": 900}
        driven.send(
            "Emulation.setDeviceMetricsOverride",
            deviceScaleFactor=1,
            mobile=False,
            **size,
        )
        driven.open(file.as_uri())
        yield driven
    finally:
        with suppress(OSError):
            os.close(write_commands)
        driven.messages.close()
        process.terminate()
        process.wait(timeout=PATIENCE)
