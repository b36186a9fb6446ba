"""The explorer in a headless browser: a page that drives itself, and writes down what it found."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from icl_theory.explorer import page
from tests.processes import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# of any browser without a screen, a network, and what a user has added to it
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)
FLAGS = (*QUIET, "--virtual-time-budget=60000")

# what goes wrong on the page: errors, refused requests, words and places that are no
# numbers
WATCH = """<script>
const trouble = [];
for (const name of ["error", "unhandledrejection", "securitypolicyviolation"]) {
  addEventListener(name, (event) => trouble.push(`${name}: ${event.message ?? event.reason ?? event.blockedURI}`));
}
for (const name of ["error", "warn"]) console[name] = (...words) => trouble.push(words.join(" "));
for (const name of ["moveTo", "lineTo", "arc", "fillRect", "fillText"]) {
  const drawn = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...given) {
    const odd = (one) => (typeof one === "number" ? !Number.isFinite(one) : /NaN|undefined|Infinity/.test(one));
    if (given.some(odd)) trouble.push(`${name} ${given}`);
    return drawn.apply(this, given);
  };
}
// frames by the clock that the browser turns forward, not by the screen
window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 16);
window.cancelAnimationFrame = clearTimeout;
const frames = () => new Promise((done) => setTimeout(done, 200));
const text = (id) => document.getElementById(id).textContent;
const change = (id, value) => {
  const field = document.getElementById(id);
  field.value = value;
  field.dispatchEvent(new Event("change"));
};
</script>"""
DRIVE = """<script>
(async () => {
  const found = {};
  try {
    await frames();
    Object.assign(found, await (async () => { %s })());
  } catch (error) {
    trouble.push(error.stack);
  }
  const said = document.body.innerText.match(/.*(?:NaN|undefined|Infinity|null).*/g) ?? [];
  const requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const report = document.createElement("pre");
  report.id = "report";
  const { clientWidth, scrollWidth } = document.documentElement, widths = [innerWidth, clientWidth, scrollWidth];
  const several = [...new Set(trouble)].slice(0, 20);
  report.textContent = JSON.stringify({ ...found, trouble: several, said, requests, widths });
  document.body.append(report);
  parent.postMessage(report.textContent, "*");
})();
</script>"""
# windows are 500 points wide at least: a page that is narrower stands in a frame, and
# hands out its report
FRAME = """<body style="margin: 0"><iframe src="%s" style="border: 0; width: %dpx; height: 844px"></iframe><script>
addEventListener("message", ({ data }) => {
  const report = document.createElement("pre");
  report.id = "report";
  report.textContent = data;
  document.body.append(report);
});
</script>"""


def installed_browser() -> str:
    """Return the program of a browser, or skip the test if none is installed."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(
            f"the page needs a browser, and none of {', '.join(NAMES)} is installed"
        )
    return program


def visit(
    folder: Path, fragment: str, script: str, width: int = 1400, *flags: str
) -> dict[str, Any]:
    """Open the page at a fragment, run a script in it, and return what the script returns.

    No trouble, no request, no bar to scroll sideways and no word that is no number is
    allowed.
    """
    made = (
        page()
        .replace("<meta charset", WATCH + "<meta charset", 1)
        .replace("</body>", DRIVE % script + "</body>")
    )
    file = folder / "explorer.html"
    file.write_text(made, encoding="utf-8")
    place = file.as_uri() + fragment
    if width < 500:
        (folder / "frame.html").write_text(
            FRAME % (html.escape(place), width), encoding="utf-8"
        )
        place = (folder / "frame.html").as_uri()
    command = [
        installed_browser(),
        *FLAGS,
        *flags,
        f"--window-size={width},900",
        f"--user-data-dir={folder / 'profile'}",
    ]
    shown = subprocess.run(
        [*command, "--dump-dom", place],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    ).stdout
    report = re.search(r'<pre id="report">(.*?)</pre>', shown, re.DOTALL)
    assert report, shown[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(report[1]))
    assert found["trouble"] == []
    assert found["said"] == []
    assert found["requests"] == []
    window, inside, needed = found["widths"]
    assert window == width
    assert needed <= inside
    return found


def shown_by_browser(folder: Path, text: str) -> str:
    """Return the document of a page after the browser has run its scripts."""
    file = folder / "shown.html"
    file.write_text(text, encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    return subprocess.run(
        [installed_browser(), *FLAGS, profile, "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    ).stdout
