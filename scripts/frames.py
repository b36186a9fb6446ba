"""How long the explorer takes to draw a frame while a slider moves: 60 moves of each, in headless Chromium."""

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

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--window-size=1400,1000",
    "--dump-dom",
)
BEFORE = """<script>
const queue = [];
window.requestAnimationFrame = (draw) => queue.push(draw);
window.cancelAnimationFrame = () => {};
</script>"""
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
    """Print a line a slider of a panel."""
    parser = argparse.ArgumentParser(description=__doc__)
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
        made = (
            page()
            .replace("<meta charset", BEFORE + "<meta charset", 1)
            .replace("</body>", AFTER + "</body>")
        )
        file.write_text(made, encoding="utf-8")
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={folder}/profile",
            file.as_uri() + f"#{panel}?t=100",
        ]
        shown = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=120
        ).stdout
    report = re.search(r'<pre id="report">(.*?)</pre>', shown, re.DOTALL)
    if report is None:
        raise SystemExit("the page did not report")
    for name, times in json.loads(html.unescape(report[1])).items():
        ordered = sorted(times)
        print(f"{name}: median {ordered[30]:.1f} ms, 95 % {ordered[57]:.1f} ms")


if __name__ == "__main__":
    main()
