"""The figures: runs and answers (`runs`), panels of curves and maps of attention (`panels`), colours (`style`)."""

from icl_theory.plotting.panels import Curve, Panel, draw_maps, draw_panels
from icl_theory.plotting.runs import compare_runs, plot_answer, plot_run
from icl_theory.plotting.style import BLACK, BLUE, CYCLE, GREEN, ORANGE, RED, STYLE, new_figure, save, whole_figure

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
    "save",
    "whole_figure",
]
