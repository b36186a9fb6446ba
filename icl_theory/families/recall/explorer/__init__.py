"""The panel of in-context recall in the explorer."""

from __future__ import annotations

from pathlib import Path

from icl_theory.families.parameters import Panel

PANEL = Panel(Path(__file__).parent, ("closed.js", "panel.js"))
