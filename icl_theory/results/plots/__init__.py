"""The figures: runs and answers (`runs`), sweeps (`sweeps`), curves and maps (`panels`), colours (`style`)."""

from icl_theory.results.plots.panels import Curve, Panel, draw_maps, draw_panels
from icl_theory.results.plots.runs import compare_runs, plot_answer, plot_run
from icl_theory.results.plots.style import (
    BLACK,
    BLUE,
    CYCLE,
    GREEN,
    ORANGE,
    RED,
    STYLE,
    new_figure,
    release,
    save,
    whole_figure,
)
from icl_theory.results.plots.sweeps import plot_sweep

__all__ = [
    "BLACK",
    "BLUE",
    "CYCLE",
    "GREEN",
    "ORANGE",
    "RED",
    "STYLE",
    "Curve",
    "Panel",
    "compare_runs",
    "draw_maps",
    "draw_panels",
    "new_figure",
    "plot_answer",
    "plot_run",
    "plot_sweep",
    "release",
    "save",
    "whole_figure",
]
