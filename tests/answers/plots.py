"""Figures of runs, sweeps, curves and maps, and what helps to draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import icl_theory as icl
from icl_theory import figures
from icl_theory.results.plots import panels, runs, style, sweeps
from icl_theory.results.plots.panels import Curve, Panel
from tests.answers import Call
from tests.answers import _sweeps as swept
from tests.answers._families import Bowl
from tests.answers._showing import command, drawing, files, installed, plotted, refused
from tests.answers.results import TIGHT, _answers, _curve

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
SWEEPS, RUNS = swept.SWEEPS, swept.RUNS
FIGURES = Path(icl.__file__).parent / "papers" / "regression" / "figures"


def _axes(**given: Any) -> Any:
    from matplotlib.figure import Figure

    ax = Figure(figsize=(4, 3)).subplots()
    ax.set(**given)
    return ax


def of_runs() -> Asked:
    for name, make in RUNS.items():
        yield f"run {name}", plotted(lambda make=make: runs.plot_run(make()))
    yield "on axes", plotted(lambda: runs.plot_run(swept.noisy(), _axes(title="mine")))
    yield (
        "side by side",
        plotted(lambda: runs.compare_runs([swept.closed(), swept.noisy()])),
    )
    yield (
        "without attention",
        plotted(
            lambda: runs.compare_runs([swept.phased(), swept.closed(), swept.linear()])
        ),
    )
    yield "one", plotted(lambda: runs.compare_runs((swept.phased(),)))
    for found in _answers():
        yield (
            f"answer {found.name}",
            plotted(lambda found=found: runs.plot_answer(found)),
        )
        yield (
            f"answer {found.name} on axes",
            plotted(lambda found=found: runs.plot_answer(found, _axes())),
        )
    yield "curve", plotted(lambda: runs.plot_comparison(_curve()))
    yield "curve on axes", plotted(lambda: runs.plot_comparison(_curve(), _axes()))

    def agrees() -> Any:
        run = swept.closed()
        losses = [run.at(t).loss for t in range(0, 40, 4)]
        lines = "\n".join(
            f"{t},{loss!r},0.5" for t, loss in zip(range(0, 40, 4), losses, strict=True)
        )
        Path("agrees.csv").write_text(f"step,loss,error\n{lines}\n", encoding="utf-8")
        return run.compare("agrees.csv")

    yield "a curve that agrees", plotted(lambda: runs.plot_comparison(agrees()))
    yield (
        "parameters",
        lambda: {name: runs.parameters_of(make()) for name, make in RUNS.items()},
    )
    yield (
        "titles",
        lambda: {
            name: runs._title(make(), [swept.noisy(), make()])
            for name, make in RUNS.items()
        },
    )
    yield (
        "wrapped",
        lambda: runs._wrapped(
            [
                (f"${word}$", word)
                for word in (
                    "a = 1",
                    "a long name = 123456",
                    39 * "x",
                    "b",
                    40 * "y",
                    "c",
                    "d",
                )
            ]
        ),
    )
    yield (
        "refusals",
        lambda: [
            refused(runs.plot_run, 3),
            refused(runs.plot_run, swept.closed(), 3),
            refused(runs.compare_runs, []),
            refused(runs.compare_runs, [3]),
            refused(runs.compare_runs, swept.closed()),
            refused(runs.plot_answer, 3),
            refused(runs.plot_comparison, swept.closed()),
            refused(runs.plot_answer, _answers()[0], "axes"),
        ],
    )


def of_sweeps() -> Asked:
    for name in (
        "regression",
        "line",
        "rates",
        "diagram",
        "bowl",
        "words",
        "many",
        "pending",
        "infinite",
        "counts",
        "plain",
    ):
        for over in (
            *(None,) * (name in ("words", "counts", "rates")),
            *SWEEPS[name]().dims,
        ):
            yield (
                f"{name} over {over}",
                Call(
                    plotted(
                        lambda name=name, over=over: sweeps.plot_sweep(
                            SWEEPS[name](), over
                        )
                    ),
                    rtol=TIGHT,
                ),
            )
    yield (
        "a slice",
        plotted(lambda: sweeps.plot_sweep(swept.three().isel(tilt=1, count=0))),
    )
    yield (
        "words by words",
        plotted(lambda: sweeps.plot_sweep(swept.three().isel(eta=0, width=0))),
    )
    wide = {
        "L": np.linspace(1.0, 5.0, 9),
        "delta": 1.0,
        "eta": np.geomspace(0.1, 0.9, 8),
        "epsilon": 0.05,
    }
    yield (
        "linear and logarithmic",
        Call(
            plotted(lambda: sweeps.plot_sweep(icl.sweep(**wide, **swept.QUIET), "eta")),
            rtol=TIGHT,
        ),
    )
    counts = {
        "L": np.geomspace(0.02, 9.0, 7),
        "delta": 1.0,
        "eta": 0.1,
        "K": [3, 5, 9, 17, 33, 65],
        "epsilon": 1e-3,
    }
    yield (
        "integers as a diagram",
        Call(
            plotted(lambda: sweeps.plot_sweep(icl.sweep(**counts, **swept.QUIET))),
            rtol=TIGHT,
        ),
    )
    yield (
        "integers below",
        Call(
            plotted(lambda: sweeps.plot_sweep(icl.sweep(**counts, **swept.QUIET), "K")),
            rtol=TIGHT,
        ),
    )

    def thin() -> Any:
        found = icl.sweep(
            L=np.geomspace(0.02, 9.0, 2003),
            delta=1.0,
            eta=0.1,
            K=4,
            epsilon=1e-3,
            **swept.QUIET,
        )
        return [
            sweeps.thinned(found),
            sweeps.thinned(found, 500),
            sweeps.thinned(found, 2003),
        ]

    yield "thinned", thin
    yield (
        "drawable",
        lambda: (
            [
                [sweeps.drawable(make(), str(name)).tolist() for name in make().dims]
                for make in (swept.infinite, swept.words, swept.line)
            ]
            + [sweeps.drawable(swept.regression(), "L", 3.0)]
        ),
    )
    scales = {
        "log": ("log", [1.0, 2.0, 8.0]),
        "linear": ("linear", [1.0, 2.0, 8.0]),
        "words": ("words", [0.0, 1.0, 2.0]),
        "one log": ("log", [3.0]),
        "one linear": ("linear", [3.0]),
        "zero": ("linear", [0.0]),
        "negative": ("linear", [-4.0]),
        "two": ("log", [1.0, 10.0]),
        "two linear": ("linear", [-1.0, 2.0]),
        "uneven": ("linear", [0.0, 1.0, 5.0, 6.0, 20.0]),
    }
    yield (
        "edges",
        lambda: {
            name: sweeps.Scale("x", "X", np.array(places), kind, []).edges()
            for name, (kind, places) in scales.items()
        },
    )
    yield (
        "scales",
        lambda: [
            [sweeps._scale(make(), str(name)) for name in make().dims]
            for make in SWEEPS.values()
        ],
    )
    yield "steps", lambda: sweeps._steps(swept.bowl())
    yield (
        "refusals",
        lambda: [
            refused(sweeps.plot_sweep, swept.point()),
            refused(sweeps.plot_sweep, swept.three()),
            refused(sweeps.plot_sweep, swept.bowl(), "no"),
            refused(sweeps.plot_sweep, 3),
            refused(sweeps.plot_sweep, swept.bowl().drop_vars("steps")),
            refused(
                sweeps.plot_sweep,
                swept.line().assign_coords(L=[*np.geomspace(1, 5, 12), np.inf]),
            ),
        ],
    )


def of_curves() -> Asked:
    x = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])
    phases = icl.engine.Phases(I=(0, 8), II=(8, 9), III=None, IV=(9, 1000))
    curves = [
        Curve("one", x, [1.0, 0.5, 0.0, 0.01, 1e-3]),
        Curve(
            "two",
            x[:3],
            [2.0, 1.0, 0.9],
            [1.5, -1.0, 0.8],
            [3.0, 2.0, 1.0],
            "--",
            "#123456",
        ),
        Curve("", x, 3 + 0 * x, style="o"),
        Curve("four", x, [1.0, 0.5, 0.3, 0.02, 1.1e-3]),
    ]
    kinds = {
        "log": Panel(
            curves,
            "step",
            "loss",
            "A title",
            phases=phases,
            levels={"floor": 0.05, "far": 1e300},
            note="dashed: more",
        ),
        "linear": Panel(
            curves,
            "step",
            "loss",
            scales=("linear", "linear"),
            limits=(0.0, 2.5),
            phases=phases,
        ),
        "legend": Panel(
            curves,
            "step",
            "loss",
            legend=True,
            scales=("log", "linear"),
            limits=(-1.0, 1.0),
        ),
        "narrow": Panel(
            [Curve("near", [2.0, 3.0, 4.0], [2.0, 2.5, 3.0])],
            "K",
            "T",
            scales=("log", "log"),
        ),
        "empty": Panel([], "x", "y"),
        "late": Panel(
            [Curve("a", [1.0, 2.0], [1e-9, math.nan])], "x", "y", limits=(1e-3, 1.0)
        ),
    }
    for name, panel in kinds.items():
        yield f"panel {name}", plotted(lambda panel=panel: panels.draw_panels([panel]))
    ends = [
        Curve(f"to {end}", np.array([0.0, end]), np.array([1.0, 1.0 + end]))
        for end in (0.5, 0.7, 0.8, 0.84, 0.86, 1.0)
    ]
    yield (
        "ends before the axes do",
        plotted(
            lambda: panels.draw_panels(
                [Panel(ends, "x", "y", scales=("linear", "linear"))]
            )
        ),
    )
    yield (
        "panels in rows",
        plotted(lambda: panels.draw_panels([*kinds.values()][:5], 2, (2.5, 3.0))),
    )
    yield (
        "panels in a row",
        plotted(
            lambda: panels.draw_panels(
                (kinds["log"], kinds["log"], kinds["linear"]), columns=5
            )
        ),
    )
    yield (
        "mean",
        lambda: [
            Curve.mean(
                "m",
                [1, 2, 3, 4],
                [[1.0, 2.0, 3.0], [2.0, 4.0, 7.0, 1.0], [3.0, 0.0, 2.0]],
                "--",
                "red",
            ),
            refused(Curve.mean, "m", x, [[1.0]]),
        ],
    )
    maps = {
        "flat": [
            np.full((3, 3), 1 / 3),
            np.array([[0.5, 0.2, 0.1], [0.3, 0.5, 0.2], [0.2, 0.3, 0.7]]),
        ],
        "sharp": [np.eye(3), np.eye(3)[::-1]],
    }
    yield "maps", plotted(lambda: panels.draw_maps(maps, ["start", "end"], 1.1))
    yield (
        "one map",
        plotted(lambda: panels.draw_maps({"flat": maps["flat"][:1]}, ["start"])),
    )
    yield (
        "refusals",
        lambda: [
            refused(panels.draw_panels, []),
            refused(panels.draw_panels, [3]),
            refused(panels.draw_panels, [kinds["log"]], 0),
            *(
                refused(panels.draw_panels, [kinds["log"]], 1, size)
                for size in ((3.0,), (0.0, 1.0), (1.0, 101.0), "ab", (1.0, math.nan))
            ),
            refused(panels.draw_maps, {}, ["a"]),
            refused(panels.draw_maps, maps, ["a"]),
            refused(panels.draw_maps, [1], ["a"]),
            refused(panels.draw_maps, maps, "ab"),
            refused(panels.draw_maps, maps, ["a", "b"], 101.0),
        ],
    )
    yield (
        "drawable",
        lambda: [
            panels._drawable([0.0, -1.0, 2.0, 1e250, math.nan], *each)
            for each in (("log",), ("log", 0.5), ("linear", 0.5))
        ],
    )

    def at_ends(
        *given: tuple[float, str, str], height: float = 2.4, **more: Any
    ) -> Any:
        ax = _axes(xlim=(1, 10), ylim=(0.1, 10.0), yscale="log")
        panels.label_ends(ax, [*given], height, **more)
        return drawing(ax)["axes"][0]["words"]

    rows = [
        (1.0, "a", "#111111"),
        (1.01, "b", "#222222"),
        (0.99, "c", "#333333"),
        (50.0, "d", "#444444"),
        (0.01, "e", "#555555"),
        (9.0, "f", "#666666"),
    ]
    yield (
        "ends",
        lambda: [
            at_ends(*rows),
            at_ends(*rows, height=5.0, spacing=20.0),
            at_ends(*rows[:1]),
            at_ends(),
        ],
    )


def of_style() -> Asked:
    yield (
        "constants",
        lambda: [
            style.CYCLE,
            style.PHASE_COLOURS,
            style.LARGEST,
            style.STYLE,
            style.BLUE,
            style.ORANGE,
            style.GREEN,
            style.RED,
            style.BLACK,
        ],
    )
    yield (
        "words",
        lambda: [
            style.escape("a $b$ \\$"),
            style.mathematics(r"\eta", "η"),
            style.mathematics(r"\nothing{", "$x$"),
            style.mathematics("", "L*"),
        ],
    )
    phases = icl.engine.Phases(
        I=(0, 4),
        II=(4, 5),
        III=(5, 5),
        IV=None,
        V=(5, 900),
        VI=(900, 1000),
        VII=(1000, 1500),
        VIII=(1500, 3000),
    )

    def shaded(given: Any, last: float, **more: Any) -> Any:
        ax = _axes(xscale="log", xlim=(0.5, 3000))
        style.shade(given, last, ax, **more)
        style.level(ax, 0.3, "a level", "0.4", ":")
        style.level(ax, 1e250, "far", "red", "--")
        return drawing(ax)

    yield "shade", lambda: shaded(phases, 3000.0)
    yield "shade without names", lambda: shaded(phases, 1.0, labels=False)
    yield "no shade", lambda: shaded(None, 1.0)

    def saved() -> Any:
        figure = style.new_figure(2.0, 1.5)
        figure.subplots().plot([1, 2], [3, 4])
        for name in ("a.png", "b.pdf", "c.svg", "d.PNG"):
            style.save(figure, name)
        style.save(figure.axes[0], Path("e.png"))
        svg = Path("c.svg").read_text(encoding="utf-8")
        again = style.save(figure, "f.svg") or Path("f.svg").read_text(encoding="utf-8")
        return [sorted(files()), files(), "<dc:date>" in svg, len(again) == len(svg)]

    yield "saved", saved
    figure = partial(style.new_figure, 2.0, 1.5)
    yield (
        "refusals",
        lambda: (
            [
                refused(style.save, figure(), name)
                for name in ("a.txt", "a", "", "no/a.png")
            ]
            + [
                refused(style.save, 3, "a.png"),
                refused(style.new_figure, 0.0, 1.0),
                refused(style.new_figure, 1.0, 1e5),
                refused(style.new_figure, 1.0, 1.0, returned=1),
                refused(style.axes, "ax", 3),
                refused(style.whole_figure, "x"),
            ]
        ),
    )
    yield (
        "sizes",
        lambda: [
            style.new_figure(2.5, 1.25, returned=each).get_size_inches()
            for each in (True, False)
        ],
    )


def _recipe(
    steps: int = 3,
    rates: tuple[float, float] = (0.0, 2.0),
    many: tuple[float, ...] = (1.0, 2.0),
) -> Any:
    """Draw what there is.

    More of it.
    """
    ax = style.new_figure(2, 2).subplots()
    ax.plot(rates, many[:2], label=str(steps))
    return ax.figure


def _untitled() -> Any:
    return None


def recipes() -> Asked:
    yield "available", figures.available
    yield (
        "parameters",
        lambda: {
            name: [figures.parameters(name), figures.parameters(name, quick=True)]
            for name in figures.available()
        },
    )

    def own(*asked: Callable[[], Any], **made: Any) -> Any:
        with installed(Bowl), patch.object(Bowl, "figures", made):
            return [ask() for ask in asked]

    yield (
        "of a family",
        lambda: own(
            lambda: figures.available()["mine"],
            lambda: figures.parameters("mine"),
            lambda: drawing(
                figures.draw("mine", rates=(1, 4.0), many=[5.0, 6.0, 7.0], steps=4)
            ),
            lambda: [
                str(path)
                for path in figures.write(figures.draw("mine"), "out/er", "mine")
            ],
            files,
            mine=_recipe,
            other=_untitled,
        ),
    )
    yield (
        "taken names",
        lambda: own(
            lambda: figures.recipes()[1],
            lambda: (
                len(figures.recipes()[0])
                - len([*FIGURES.parent.parent.glob("*/figures/*.py")])
            ),
            front=_recipe,
        ),
    )
    yield (
        "titles",
        lambda: [
            figures.title(_recipe),
            figures.title(_untitled),
            figures.title(FIGURES / "maps.py"),
        ],
    )
    changes: list[Mapping[str, Any]] = [
        {"steps": 2.5},
        {"steps": -1},
        {"steps": 0},
        {"rates": 1.0},
        {"rates": (1.0,)},
        {"rates": (-1.0, 2.0)},
        {"many": ()},
        {"many": (0.0, 1.0)},
        {"no": 1},
        {"many": "ab"},
        {"rates": (math.inf, 1.0)},
    ]
    yield (
        "refusals",
        lambda: own(
            lambda: [refused(figures.draw, "mine", **change) for change in changes],
            lambda: [
                refused(figures.draw, "mines"),
                refused(figures.parameters, "maps", quick=1),
            ],
            mine=_recipe,
        ),
    )
    yield (
        "checked",
        lambda: (
            [
                refused(figures._checked, "x", *each)
                for each in (
                    (2, 3, True),
                    (0, 1, True),
                    (0, 0, True),
                    (-1, 0, True),
                    (0.0, 1.0, True),
                    ((1, 2), (0, 1), True),
                    ((0, 2), (1, 1), True),
                    ([1, 2, 3], (1, 1), False),
                    ([1.5], (1, 1), False),
                    ((0.0, 1.0), (0.5, 1.0), False),
                    ((0.0, 1.0), (0.0, 1.0), False),
                )
            ]
            + [figures._checked("x", (1, 2.0), (0.5, 1.0), True)]
        ),
    )

    def folders() -> Any:
        Path("file").write_text("x")
        return [
            refused(figures.check_folder, each)
            for each in ("a/b", "file", "file/x", "", 3)
        ] + [Path("a/b").is_dir()]

    yield "folders", folders
    yield (
        "write",
        lambda: [refused(figures.write, _recipe(), "a", name) for name in ("", 3)],
    )
    yield (
        "film",
        lambda: [refused(figures.animate, "a", frames=each) for each in (1, 2.5)],
    )

    def film() -> Any:
        with patch("matplotlib.animation.FFMpegWriter.isAvailable", lambda: False):
            return [
                [str(path) for path in figures.animate("out", quick=True, frames=3)],
                files(),
            ]

    yield "a film", film
    for name, given in {"maps": {"K": 4}, "degenerate": {}}.items():
        yield (
            f"drawn {name}",
            Call(
                plotted(
                    lambda name=name, given=given: figures.draw(
                        name, quick=True, **given
                    )
                ),
                rtol=TIGHT,
            ),
        )

    def drawn(*lines: str) -> Any:
        with (
            installed(Bowl),
            patch.object(
                Bowl,
                "figures",
                {"mine": _recipe, "broken": partial(_recipe, rates=None)},
            ),
        ):
            return command(*lines)

    yield (
        "commands",
        lambda: drawn(
            "figures --list mine maps",
            "figures mine --out there",
            "figures mine nothing",
            "figures --animate mine",
            "figures broken mine --out b",
        ),
    )

    def pressed() -> Any:
        with patch("icl_theory.figures.draw", side_effect=KeyboardInterrupt):
            return command("figures maps front --out a")

    yield "interrupted", pressed
