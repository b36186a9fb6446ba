"""Print how long the explorer takes to draw a frame while a slider moves.

python scripts/frames.py regression

Each slider of a panel moves 60 times, in a Chromium without a window. A script in the
page moves the sliders and measures the times.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from icl_theory.explorer import page

# The names of the browser's program; the first that is installed is used.
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--window-size=1400,1000",
    "--dump-dom",
)
# A script for the head of the page. The page asks the browser to call a function that
# draws a frame later. The script keeps this function in a queue instead.
BEFORE = """<script>
const queue = [];
window.requestAnimationFrame = (draw) => queue.push(draw);
window.cancelAnimationFrame = () => {};
</script>"""
# A script for the end of the page. For each move of a slider it times the computation
# and the drawing of the queued frame. It writes the times into the page, as JSON.
AFTER = """<script>
addEventListener("load", () => {
  const draw = () => { for (const each of queue.splice(0)) each(performance.now()); };
  draw();
  const found = {};
  for (const slider of document.querySelectorAll("input[type=range]")) {
    if (!slider.offsetParent) continue;
    const times = [];
    for (let i = 0; i < 60; i++) {
      slider.value = Math.round(+slider.max * (0.2 + 0.01 * i));
      const start = performance.now();
      slider.dispatchEvent(new Event("input"));  // which computes the model anew
      draw();
      times.push(performance.now() - start);
    }
    found[slider.getAttribute("aria-label")] = times;
  }
  const report = document.createElement("pre");
  report.id = "report";
  report.textContent = JSON.stringify(found);
  document.body.append(report);
});
</script>"""


def main() -> None:
    """Print a line for each slider of a panel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "panel",
        nargs="?",
        default="regression",
        help="panel of the explorer, regression unless given",
    )
    panel = parser.parse_args().panel
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        raise SystemExit(f"no browser: none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "explorer.html")
        timed_page = (
            page()
            .replace("<meta charset", BEFORE + "<meta charset", 1)
            .replace("</body>", AFTER + "</body>")
        )
        file.write_text(timed_page, encoding="utf-8")
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={folder}/profile",
            file.as_uri() + f"#{panel}?t=100",
        ]
        # With --dump-dom the browser prints the page after its scripts have run.
        dumped_page = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120
        ).stdout
    report = re.search(r'<pre id="report">(.*?)</pre>', dumped_page, re.DOTALL)
    if report is None:
        raise SystemExit("the page did not report")
    for name, times in json.loads(html.unescape(report[1])).items():
        # Of the 60 times, 30 are below the first number, and 57 below the second.
        ordered = sorted(times)
        print(f"{name}: median {ordered[30]:.1f} ms, 95 % {ordered[57]:.1f} ms")


if __name__ == "__main__":
    main()
