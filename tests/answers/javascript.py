"""The scripts of the explorer: numbers, drawing, settings, training, the closed forms and the panels of the families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tests.answers import Call
from tests.javascript import call

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
LOOSE = 1e-7  # what is iterated to a tolerance, whose last digits depend on the engine


def _rows(value: Any) -> Any:
    """Return what the engine gives with its long rows of numbers as arrays."""
    if isinstance(value, dict):
        return {name: _rows(each) for name, each in value.items()}
    if isinstance(value, list):
        if len(value) > 6 and all(
            isinstance(each, int | float) and not isinstance(each, bool)
            for each in value
        ):
            return np.array(value, dtype=float)
        if len(value) > 6 and all(
            isinstance(each, list) and len(each) == len(value[0]) for each in value
        ):
            flat = [one for each in value for one in each]
            if all(
                isinstance(one, int | float) and not isinstance(one, bool)
                for one in flat
            ):
                return np.array(value, dtype=float)
        return [_rows(each) for each in value]
    return value


def _call(body: str, *given: Any) -> Callable[[], Any]:
    return lambda: _rows(call(body, *given))


def numbers() -> Asked:
    values = [
        0,
        -0.0,
        1,
        -1,
        9999,
        10000,
        12345678,
        0.001,
        0.00099951,
        0.0009994,
        999500,
        999400,
        123456.7,
        -0.012345,
        1e-9,
        -3e20,
        1.5e300,
        2.5,
        99.95,
        0.1 + 0.2,
        1e16,
        9007199254740993,
        1e21,
    ]
    yield (
        "short",
        _call(
            "const { short } = require('numbers'); return given[0].map((x) => [short(x), short(x, 1), short(x, 4), short(x, 12)]).concat([[short(Infinity), short(-Infinity)]])",
            values,
        ),
    )
    yield (
        "count",
        _call(
            "const { count, plural, percent, raised } = require('numbers'); return [given[0].map(count), [0, 1, 2, 1e5].map((n) => plural(n, 'step')), [0, 0.5, 1, 0.00123, 1 / 3].map(percent), ['-12', 0, 345, 6789].map(raised), count(Infinity)]",
            values,
        ),
    )
    texts = [
        "0.001",
        "1e-3",
        "10^-3",
        "10⁻³",
        "1.5·10^6",
        "1 000",
        "1_000",
        "−2",
        "+3.",
        ".5",
        "1,5",
        "",
        "x",
        "10⁻¹²",
        "2x10^3",
        "2×10⁴",
        "2*10^1",
        "1e400",
        "--1",
        "10^",
        "5 10^2",
        "1E5",
        "10^2.5",
        "-10^2",
        "-3·10^2",
        "1e",
        "0x10",
        "Infinity",
        "NaN",
        "\u202f12\u202f300",
    ]
    yield (
        "parse",
        _call(
            "const { parse } = require('numbers'); return given[0].map(parse).concat([parse(5), parse(null)])",
            texts,
        ),
    )


DRAW = """
const { Axes, Ghost } = require("drawing");
const noted = { words: [], rects: [], strokes: [], looks: [], arcs: [], other: [] };
const state = { globalAlpha: 1 };
let path = [];
const look = () => [state.strokeStyle, state.lineWidth, (state.dash ?? []).join(" "), state.globalAlpha].join(",");
const done = {
  fillText: (text, x, y) => noted.words.push([text, x, y, state.fillStyle, state.globalAlpha, state.textAlign, state.textBaseline]),
  fillRect: (...at) => noted.rects.push([state.fillStyle, state.globalAlpha, ...at]),
  beginPath: () => { path = []; },
  moveTo: (...at) => path.push(...at), lineTo: (...at) => path.push(...at),
  stroke: () => { if (path.length) noted.strokes.push(path); noted.looks.push(look()); path = []; },
  arc: (...at) => noted.arcs.push([state.fillStyle, ...at]),
  rect: (...at) => noted.other.push(["rect", ...at]), setLineDash: (dash) => { state.dash = dash; },
  measureText: (text) => ({ width: 6 * [...text].length }),
};
for (const name of ["save", "restore", "clip", "fill", "translate", "rotate", "setTransform", "drawImage"]) done[name] = (...at) => { if (at.length && typeof at[0] === "number") noted.other.push([name, ...at]); };
const pen = new Proxy(state, { get: (held, name) => done[name] ?? held[name] });
const colours = new Proxy({}, { get: (_, name) => name });
const made = (x, y, wide = 500, high = 300, kind = Axes) => new kind(pen, wide, high, colours, x, y);
"""
SCALES = [
    [
        {"low": 0.5, "high": 1e7, "log": True, "label": "steps"},
        {"low": 0, "high": 1.02, "label": "share"},
    ],
    [
        {"low": -0.5, "high": 7.5, "label": "n"},
        {"low": 1e-12, "high": 3, "log": True, "label": "loss"},
    ],
    [
        {"low": 0, "high": 0, "label": "no range"},
        {"low": 5, "high": 5, "log": True, "label": "nor here"},
    ],
    [
        {"low": -3e5, "high": 2e6, "label": "wide"},
        {"low": 0.00012, "high": 0.00031, "label": "narrow"},
    ],
    [
        {"low": 2, "high": 3, "log": True, "label": "within a power"},
        {"low": 0, "high": 1e301, "log": True, "label": "beyond"},
    ],
]


def drawing() -> Asked:
    for i, scales in enumerate(SCALES):
        yield (
            f"frame {i}",
            _call(
                DRAW
                + "for (const size of [[500, 300], [260, 150]]) made(...given[0], ...size).frame(); return noted",
                scales,
            ),
        )
        yield (
            f"places {i}",
            _call(
                DRAW
                + "const axes = made(...given[0]); return [axes.x, axes.y, [-1e9, 0, 0.7, 1, 2, 3, 5, 1e9].map((v) => [axes.X(v), axes.Y(v), axes.xAt(v), axes.yAt(v)]), [60, 100, 270, 479, 481, 12, 262].map((p) => [axes.xAt(p), axes.yAt(p)])]",
                scales,
            ),
        )
    marks = {
        "curve": "axes.curve([1, 10, 1e4, 1e9], [0.2, 0.9, 0.5, 2], 'blue'); axes.curve([1, 5], [0, 1], 'red', { width: 1, dash: [2, 3], alpha: 0.5 })",
        "law": "axes.law((x) => 1 / x, 'green', 'falls', 0.3); axes.law((x) => x / 1e7, 'green', 'rises', 0.9, { dash: [1] }); axes.law((x) => x / 1e7, 'red', 'below', 0.8, { below: true }); axes.law((x) => 1 / x, 'red', 'below too', 0.1, { below: true }); axes.law(() => 5, 'red', 'out', 0.5); axes.write()",
        "box": "axes.box([1, 100], [0.2, 0.4], 'blue', 0.5); axes.box([100, 1], [0, 1], 'red'); axes.box([0.001, 1e9], [-1, 2], 'green'); axes.box([10, 20], [0.9, 0.1], 'ink')",
        "cells": "axes.cells([[0, 0.25, 1], [0.5, 0.75, 0.1]], 'blue', (value) => 1 - value)",
        "shade": "axes.shade(1, 100, 'blue', 'a phase'); axes.shade(100, 120, 'red', 'too long a word'); axes.shade(0.01, 3, 'green'); axes.shade(1e6, 1e9, 'orange', 'end'); axes.write()",
        "lines": "axes.vertical(10, 'ink', { word: 'ten' }); axes.vertical(5e6, 'ink', { word: 'at the right', row: 2, dash: [] }); axes.vertical(1e9, 'red', { word: 'out' }); axes.vertical(0.5, 'blue'); axes.horizontal(0.5, 'red', { word: 'half', width: 3 }); axes.horizontal(2, 'red'); axes.horizontal(0, 'grid', { dash: [1, 2] }); axes.line([[1, 2], [3, 4]], 'green', {}); axes.write()",
        "dots": "axes.dot(10, 0.5, 'blue'); axes.dot(1e9, 5, 'red', 7); axes.dot(0.1, -1, 'green')",
        "words": "axes.text('left', 100, 50); axes.text('centre', 100, 70, 'red', 'center'); axes.text('right', 480, 90, 'blue', 'right'); axes.text('out at the left', 1, 20, 'blue', 'right'); axes.text('out at the right', 499, 30); axes.write()",
        "ghost": "const ghost = made(axes.x, axes.y, 500, 300, Ghost); ghost.curve([1, 10], [0.2, 0.4], 'blue'); ghost.curve([1, 10], [0.2, 0.4], 'blue', { dash: [1] }); ghost.box([1, 2], [0, 1], 'red'); ghost.dot(1, 1, 'red'); ghost.shade(1, 2, 'red', 'x'); ghost.text('x', 1, 2); ghost.write(); noted.silent = ghost.silent",
    }
    for name, body in marks.items():
        yield (
            name,
            _call(
                DRAW + f"const axes = made(...given[0]); {body}; return noted",
                SCALES[0],
            ),
        )
    yield (
        "spread",
        _call(
            "const { spread, both } = require('drawing'); return [spread(1, 100, 3), spread(2, 3, 5, false), spread(0.5, 8, 9), both([{ low: 1, high: 2, log: true }, { low: 0, high: 9 }], [{ low: 0.5, high: 1.5 }, { low: 1, high: 10 }])]"
        ),
    )


def settings() -> Asked:
    kinds = {
        "log": {
            "name": "a",
            "value": 2,
            "low": 0.01,
            "high": 100,
            "log": True,
            "minimum": 0.001,
            "maximum": 1e3,
        },
        "whole": {
            "name": "K",
            "value": 20,
            "low": 2,
            "high": 1e6,
            "log": True,
            "whole": True,
        },
        "zero": {
            "name": "t",
            "value": 3,
            "low": 1,
            "high": 50,
            "zero": True,
            "whole": True,
            "log": True,
            "steps": 20,
        },
        "linear": {"name": "x", "value": 1, "low": -2, "high": 2, "steps": 8},
        "words": {
            "name": "o",
            "value": "square",
            "words": {"square": "Square", "log": "Log"},
        },
        "stops": {"name": "q", "value": 2, "stops": [1, 2, 5]},
    }
    family = {
        "K": {
            "symbol": "K",
            "unit": "",
            "meaning": "of features",
            "whole": True,
            "minimum": 2,
            "maximum": 1e9,
        },
        "a": {
            "symbol": "α",
            "unit": "m",
            "meaning": "a length",
            "minimum": 0,
            "maximum": 5,
        },
    }
    for name, kind in kinds.items():
        yield (
            f"complete {name}",
            _call(
                "return require('settings').complete(given[0], given[1])", kind, family
            ),
        )
        texts = [
            "2",
            "2.6",
            "-5",
            "1e9",
            "x",
            "log",
            "square",
            "toString",
            "0",
            "1e-5",
            "10^3",
        ]
        yield (
            f"read {name}",
            _call(
                "const { complete, read, written } = require('settings'), one = complete(given[0], given[1]); return given[2].map((text) => [read(one, text), written(one, 1234.5678), written(one, 'word')])",
                kind,
                family,
                texts,
            ),
        )
    panels = """
      const { complete, fromFragment, toFragment, defaults } = require("settings"), panels = {};
      for (const name of given[0]) { const panel = require(`${name}/panel`), family = require(`${name}/family`); panels[name] = { ...panel, family, settings: panel.settings.map((one) => complete(one, family.parameters)) }; }
    """
    names = ["regression", "recall", "induction-heads", "max-margin-tokens"]
    fragments = [
        "",
        "#",
        "#recall",
        "#nothing?L=2",
        "#regression?L=3&K=2.6&t=5",
        "#regression?L=%31&f=0.5,-0.25",
        "#regression?L=%zz&M=3&K",
        "#recall?V=1e3&alpha=2~alpha=0.5&V=x",
        "#induction-heads?objective=log&T=9~",
        "#induction-heads?objective=cube",
        "#regression?f=random%207&epsilon=1e-2&t=1e16~L=1",
        "#regression?f=a,b&L=",
        "#max-margin-tokens?T=4.4&t=3",
        "recall?L=1==2&&eta=0.5",
    ]
    for fragment in fragments:
        yield (
            f"fragment {fragment}",
            _call(panels + "return fromFragment(given[1], panels)", names, fragment),
        )
    yield (
        "to fragments",
        _call(
            panels
            + "const { settings } = panels.regression, values = { ...defaults(settings), L: 3.25, f: '0.5,-0.1', t: 7 }; return [toFragment('regression', settings, values), toFragment('regression', settings, values, { ...values, L: 1, t: 9, K: 30 }), toFragment('regression', settings, values, values), toFragment('recall', panels.recall.settings, defaults(panels.recall.settings), null)]",
            names,
        ),
    )
    yield (
        "copies",
        _call(
            "const { copies } = require('settings'), family = require('regression/family'), parameters = { L: 2, max_steps: 1e5, gamma: 'best', epsilon: 1e-7, big: 1e21 }; return [copies(family, parameters, { t: 3, loss: 0.123456789012345 }), copies({ ...family, module: 'mine', class: 'Own', name: 'own' }, parameters), copies(family, {}, { steps: null, t: 0, loss: 1e-30 })]"
        ),
    )
    functions = [
        "0.5,-0.25",
        "random 7",
        "Random 12",
        "random 1234567890",
        "0.9; -0.7",
        "1 2 3",
        "",
        "a",
        "−0.3,0.1",
        ",".join(["0.1"] * 25),
        "0.5,,1",
        "1e-3",
    ]
    yield (
        "functions",
        _call(
            "const { text, random } = require('regression/panel').settings.find(({ name }) => name === 'f'); return [given[0].map((one) => text(one)), /^random \\d+$/.test(random())]",
            functions,
        ),
    )


FALLING = "const loss = (t) => 2 / (1 + t) ** given[0];"


def training() -> Asked:
    yield (
        "bisected",
        _call(
            "const { bisected } = require('training'); return [[0, 100, 37], [-1, 5, 0], [3, 4, 9], [0, 1e15, 123456789012]].map(([a, b, at]) => bisected(a, b, (t) => t >= at))"
        ),
    )
    cases = [
        [1, 0.1, 1e15],
        [1, 5, 1e15],
        [1, 2, 100],
        [1, 1e-3, 100],
        [2, 1e-20, 1e15],
        [1, 1e-15, 1e15],
        [0.5, 1e-6, 1e15],
        [1, 2e-15, 1e15],
    ]
    for power, target, most in cases:
        yield (
            f"firstStep {power} {target} {most}",
            Call(
                _call(
                    FALLING
                    + "const { firstStep } = require('training'), found = firstStep(loss, given[1], given[2]); return [found.steps === Infinity ? 'never' : found.steps, found.reached, found.last, found.error >= 1, found.error < 1e-3]",
                    power,
                    target,
                    most,
                ),
                rtol=1e-6,
            ),
        )
    yield (
        "firstStep at once",
        _call(
            "const { firstStep } = require('training'), step = (t) => (t < 7 ? 1 : 0.5); return [firstStep(step, 0.5, 20), firstStep(step, 0.5 * (1 - 2 ** -52), 20), firstStep(step, 1 - 2 ** -52, 20), firstStep(() => NaN, 1, 20), firstStep((t) => 1 - 1e-16 * t, 0.99999999999999, 200), firstStep((t) => 1 - 2e-15 * t, 1 - 1e-14, 200)]"
        ),
    )
    yield (
        "doubt",
        _call(
            "const { doubt } = require('training'); return [0, 0.5, 0.999, 1, 1.0001, 2, 12345.6].map((error) => doubt({ error }))"
        ),
    )
    yield (
        "headline",
        _call(
            "const { headline, when, lasting } = require('training'), run = { steps: 12345, reached: true, last: 12345, excessAt: (t) => 1 / t }; return [headline(run, 0.001, 'best'), headline({ ...run, steps: 1 }, 0.1, 'x'), headline({ ...run, steps: 0 }, 0.1, 'x'), headline({ ...run, steps: null, reached: false, last: 1e15 }, 0.1, 'x'), when(run), when({ reached: false, steps: null }), lasting({ a: [0, 3], b: [3, 3], c: [3, 4] })]"
        ),
    )
    yield (
        "path",
        _call(
            "const { Path } = require('training'), made = (above, most) => new Path([2, 1], ([x, y]) => [0.9 * x, 0.5 * y], ([x, y]) => 0.5 * x * x + y * y + 0.25, 0.25, above, most), shown = (path) => [path.steps, path.reached, path.last, path.error < 1e-9, path.states.length, path.most, path.at(3), path.at(1e9), path.excessAt(2)]; return [shown(made(0.01, 100)), shown(made(1e-9, 20)), shown(made(5, 20)), shown(made(0.01))]"
        ),
    )
    yield (
        "random",
        _call(
            "const { random, normal } = require('training'); return [0, 1, 7, 2 ** 32 - 1].map((seed) => { const draw = random(seed); return [...Array.from({ length: 5 }, draw), ...Array.from({ length: 5 }, () => normal(draw))]; })"
        ),
    )
    yield (
        "sampled",
        _call(
            "const { sampled } = require('training'), made = (work, growth) => { let t = 0; return Object.assign(() => 1 / ++t, { work, growth }); }; return [sampled(made(10, 1.5), 50), sampled(made(1e6, undefined), 50), sampled(null, 50), sampled(made(0, 2), 50), sampled(made(1, 3), 1e4, 200), sampled(Object.assign(() => NaN, { work: 1 }), 9), sampled(Object.assign(() => 1e290, { work: 1 }), 9)]"
        ),
    )
    yield (
        "course",
        _call(
            "const { course } = require('training'), run = (last, most) => ({ last, most, at: (t) => ({ t }) }); return [[run(40), 100, 12], [run(1e9), 100, 30], [run(400, 900), 100, 20], [run(3e14), 10, 7]].map(([one, least, size]) => { const { end, times, states } = course(one, least, size); return { end, times, states: states.map(({ t }) => t) }; })"
        ),
    )
    yield (
        "step and batch",
        _call("const { step, batch } = require('training'); return [step(7), batch]"),
    )
    model = "const model = { end: 1000, times: [0.5, 10, 100, 1000], states: [{ loss: 3, b: 1 }, { loss: 2, b: 2 }, { loss: 1, b: 3 }, { loss: 0.5, b: 4 }], drawn: { times: [1, 50], losses: [2.5, 1.2] } }, now = { t: 30, loss: 1.5, b: 2.5 };"
    yield (
        "along",
        _call(
            DRAW
            + model
            + """
      const { along } = require("training"), y = () => ({ low: 0, high: 4, label: "loss" }), shown = [];
      for (const figure of [along({ name: "a", title: "A", caption: "of it", y }), along({ name: "b", caption: "C", samples: "prompts", y, height: 9, phases: () => [["one", 0, 20, "blue"], ["two", 20, 1000, "red"]], marks: (axes) => axes.horizontal(1, "red"), curves: () => [[(s) => s.b, "green", { width: 3, dot: 2 }], [(s) => s.loss, "blue"]] })]) for (const one of [model, { ...model, even: true, drawn: null }]) {
        const scales = figure.scales(one, {}), axes = made(...scales);
        figure.still(axes, one, {});
        figure.moving(axes, one, now, {});
        figure.moving(axes, one, { ...now, t: 0 }, {});
        shown.push([figure.caption, figure.height, figure.name, scales, figure.drag(axes, 200, 3), figure.drag(axes, -5, 3)]);
      }
      return { shown, ...noted };
    """
        ),
    )
    yield (
        "against",
        _call(
            DRAW
            + """
      const { against } = require("training"), model = { n: 5 }, values = { K: 3 };
      const first = against({ name: "a", setting: "K", curve: () => [[1, 2, 9], [3, 4, 8]], number: ({ n }) => n }), second = against({ setting: "K", height: 4, curve: () => [[1, 2], [3, 4]], number: () => Infinity, read: (x, { K }) => K * Math.round(x), marks: (axes, { n }) => axes.vertical(n, "red") });
      const axes = made({ low: 1, high: 1e6, log: true, label: "K" }, { low: 0, high: 10, label: "n" });
      for (const one of [first, second]) { one.still(axes, model, values); one.moving(axes, model, {}, values); }
      return { ...noted, heights: [first.height, second.height], drags: [first, second].map((one) => [70, 300, 480].map((x) => one.drag(axes, x, 0, model, {}, values))) };
    """
        ),
    )


def closed_forms() -> Asked:
    points = [
        {"L": 2, "delta": 1.5, "eta": 0.5, "K": 7, "epsilon": 1e-3},
        {"L": 0.3, "delta": 1, "eta": 0.01, "K": 100, "epsilon": 1e-4},
        {"L": 5, "delta": 2, "eta": 40, "K": 3, "epsilon": 1e-5},
        {"L": 0.01, "delta": 1, "eta": 1, "K": 20, "epsilon": 1},
        {"L": 1, "delta": 1, "eta": 1e-12, "K": 50, "epsilon": 1e-8},
        {"L": 3, "delta": 1, "eta": 0.8, "K": 2, "epsilon": 0.01},
        {"L": 1, "delta": 1, "eta": 1, "K": 6, "epsilon": 0.41666666},
    ]
    regression = """
      const { Run } = require("regression/closed"), run = new Run(given[0], given[1]), { counter } = run;
      const far = (n) => (n === Infinity ? "never" : n), seen = (one) => [one.steps, one.earliest, one.latest].map(far);
      return { initial: run.initial, steps: far(run.steps), error: run.error >= 1 ? run.error : "less", sure: run.sure, reached: run.reached, last: run.last, attends: run.attends, tails: run.tails, tail: run.tail, boundary: run.boundary, half: run.half, regime: run.regime, stable: run.stable, phases: run.phases, c: run.c, gamma: run.gamma,
        first: counter.first, taken: counter.taken, frozen: counter.frozen, start: counter.start, path: counter.path.slice(0, 50), at: [0, 1, 5, 1000, 1e9].map((t) => run.at(t)), counts: [-1, 0, 0.5, 2, 5, 9, 30].map((u) => seen(counter.stepsTo(u))) };
    """
    for i, point in enumerate(points):
        yield f"regression {i}", Call(_call(regression, point, 1e15), rtol=LOOSE)
    yield "regression, few steps", Call(_call(regression, points[0], 100), rtol=LOOSE)
    yield (
        "tails",
        Call(
            _call(
                "const { tailStart, halfWayDeficit } = require('regression/closed'); return [2, 3, 6, 7, 20, 1e6].map((K) => [tailStart(K), halfWayDeficit(K)])"
            ),
            rtol=1e-10,
        ),
    )
    yield (
        "predicted",
        _call(
            "const { predicted } = require('regression/closed'); return [predicted([1, -2, 0.5], 3, 0.2), predicted([1, -2, 0.5], 8, 0.4), predicted([3], 1e6, 0.1), predicted([1, 2], 2, 0)]"
        ),
    )
    recall = [
        {"V": 50, "triggers": 4, "alpha": 0.2, "eta": 0.1, "counts": 1, "above": 1e-3},
        {"V": 12, "triggers": 9, "alpha": 0, "eta": 0.5, "counts": 3, "above": 1e-6},
        {"V": 5, "triggers": 1, "alpha": 0.9, "eta": 1e-9, "counts": 2, "above": 1e-2},
        {
            "V": 30,
            "triggers": 4,
            "alpha": 0.1,
            "eta": 1e-20,
            "counts": 1,
            "above": 1e-3,
        },
    ]
    for i, point in enumerate(recall):
        yield (
            f"recall {i}",
            Call(
                _call(
                    "const { Run } = require('recall/closed'), run = new Run(given[0]); return { ...run, error: run.error >= 1 ? run.error : 'less', gamma: String(run.gamma).slice(0, 9), at: [0, 1, 7, 300].map((t) => run.at(t)) }",
                    point,
                ),
                rtol=LOOSE,
            ),
        )
    linear = [
        {
            "d": 4,
            "decay": 1.5,
            "N": 7,
            "noise": 0.4,
            "eta": 0.05,
            "start": 0.01,
            "above": 1e-3,
        },
        {
            "d": 3,
            "decay": 0,
            "N": 20,
            "noise": 0,
            "eta": 0.4,
            "start": 0.2,
            "above": 1e-6,
        },
        {"d": 2, "decay": 1, "N": 1, "noise": 2, "eta": 0.3, "start": 1, "above": 10},
        {
            "d": 5,
            "decay": 2,
            "N": 9,
            "noise": 0.1,
            "eta": 1.2,
            "start": 0.001,
            "above": 1e-2,
        },
    ]
    for i, point in enumerate(linear):
        yield (
            f"linear attention {i}",
            Call(
                _call(
                    "const { Run, Law, limit, product } = require('linear-attention/closed'), run = new Run(given[0]), law = new Law(given[0]); return { ...run, error: run.error >= 1 ? run.error : 'less', at: [0, 1, 2, 31, 400].map((t) => run.at(t)), limit: limit(given[0]), product: [0, 1, 8].map((tau) => product(given[0], law, tau)), excess: law.excess(law.spectrum) }",
                    point,
                ),
                rtol=LOOSE,
            ),
        )
    sphere = [
        {"d": 5, "N": 20, "L": 1, "noise": 1, "start": 0, "above": 1e-3, "rate": 0.1},
        {
            "d": 3,
            "N": 200,
            "L": 2,
            "noise": 0.5,
            "start": 12,
            "above": 1e-2,
            "rate": 0.7,
        },
    ]
    for i, point in enumerate(sphere):
        yield (
            f"sphere {i}",
            Call(
                _call(
                    "const { Tokens, Run } = require('sphere/closed'), tokens = new Tokens(given[0]), run = new Run(given[0]), { steps, last, reached, best, eta, floor } = run; return { tokens: [tokens.below.slice(0, 9), tokens.own.slice(-9), tokens.probs.slice(40, 60)], at: [-1, 0, 0.5, 3, 20].map((kappa) => tokens.at(kappa)), steps, last, reached, best, eta, floor, states: [0, 1, 20].map((t) => run.at(t)) }",
                    point,
                ),
                rtol=1e-6,
            ),
        )
    heads = [
        {
            "T": 6,
            "concentration": 0.7,
            "objective": "log",
            "eta": 0.5,
            "ratio": 0.3,
            "match": 0.7,
            "sink": 0.5,
        },
        {
            "T": 9,
            "concentration": 2,
            "objective": "square",
            "eta": 2,
            "ratio": 2,
            "match": -1,
            "sink": 3,
        },
    ]
    for i, point in enumerate(heads):
        yield (
            f"induction heads {i}",
            Call(
                _call(
                    "const { Run, exactRows, evaluate, mostSteps } = require('induction-heads/closed'), rows = exactRows(given[0]), run = new Run(given[0]), { steps, last, reached, begun, uniform, unigram, floor, most } = run; return { rows: [...rows.slice(0, 70)], size: rows.length, found: [[0, 0, 0], [1, -2, 0.5], [-1, 2, 30]].map((params) => evaluate(rows, given[0].objective, params)), steps, last, reached, begun, uniform, unigram, floor, most, at: [0, 1, 40, 500].map((t) => run.seen(run.at(t))), steps_of: [4, 30, 60, 100, 1000].map((T) => mostSteps({ T })) }",
                    point,
                ),
                rtol=LOOSE,
            ),
        )
    trained = {
        "regression": {"K": 4, "L": 1.5, "delta": 2, "eta": 0.7, "batch": 3},
        "recall": {
            "V": 12,
            "triggers": 3,
            "alpha": 0.3,
            "eta": 0.4,
            "counts": 2,
            "above": 1e-3,
            "batch": 4,
        },
        "linear-attention": {
            "d": 3,
            "decay": 1,
            "N": 4,
            "noise": 0.5,
            "eta": 0.1,
            "start": 0.2,
            "batch": 2,
            "above": 1e-3,
        },
        "sphere": {
            "d": 3,
            "N": 5,
            "L": 1.2,
            "noise": 0.3,
            "start": 1,
            "eta": 0.6,
            "batch": 2,
        },
        "induction-heads": {
            "T": 7,
            "concentration": 0.6,
            "objective": "log",
            "eta": 0.5,
            "ratio": 0.4,
            "match": 0.5,
            "sink": 1,
            "batch": 3,
        },
    }
    for name, values in trained.items():
        for seed in (1, 9):
            yield (
                f"trainer {name} {seed}",
                Call(
                    _call(
                        "const { trainer } = require(`${given[0]}/closed`), next = trainer(given[1], require('training').random(given[2])), losses = Array.from({ length: 12 }, next); return { losses, params: [...next.params], work: next.work, growth: next.growth ?? 'usual' }",
                        name,
                        values,
                        seed,
                    ),
                    rtol=LOOSE,
                ),
            )
    yield (
        "no batch",
        _call(
            "return require('recall/closed').trainer({ ...given[0], batch: 0 }, Math.random).work",
            trained["recall"],
        ),
    )


PANEL = (
    DRAW
    + """
const panel = require(`${given[0]}/panel`), { complete, defaults } = require("settings"), family = require(`${given[0]}/family`);
const wanted = { ...defaults(panel.settings), ...given[1] }, changed = panel.sound?.(wanted) ?? {}, values = { ...wanted, ...changed.changes };
const model = panel.compute(values), now = panel.moment(model, values), figures = {};
model.drawn = panel.trainer && given[3] ? require("training").sampled(panel.trainer(values, require("training").random(3), model), Math.min(40, model.end)) : model.drawn;
for (const figure of panel.figures) {
  for (const name in noted) noted[name] = [];
  const axes = made(...figure.scales(model, values), 520, figure.height ?? 240);
  if (!figure.bare) axes.frame();
  figure.still?.(axes, model, values);
  axes.write();
  axes.words = [];
  figure.moving?.(axes, model, now, values);
  axes.write();
  const drags = figure.drag ? [[70, 20], [260, 100], [490, 200], [-10, 900]].map(([x, y]) => figure.drag(axes, x, y, model, now, values)) : [];
  const { words, rects, strokes, looks, arcs } = noted;
  figures[figure.name] = { words, rects, strokes: strokes.flat(), sizes: strokes.map((each) => each.length / 2), looks, arcs, drags, said: figure.describe(model, now, values), x: axes.x, y: axes.y };
}
const told = { sound: changed, words: panel.words(model, now, values), parameters: panel.parameters(values, model), found: { ...panel.found(model, now, values) }, end: panel.end?.(model) ?? model.end, drawn: model.drawn ?? null };
if (typeof told.found.error === "number" && told.found.error < 1) told.found.error = "less";
return given[2] === null ? told : figures[given[2]];
"""
)


def _figure(
    panel: str, changes: dict[str, Any], figure: str | None, sampled: bool
) -> Any:
    found = call(PANEL, panel, changes, figure, sampled)
    if figure is None:
        return _rows(found)
    looks = found.pop("looks")  # runs of those that are alike
    found["looks"] = [
        [look, looks[i:].index(look)]
        for i, look in enumerate(looks)
        if i == 0 or looks[i - 1] != look
    ][:60]
    rects = found.pop("rects")
    found["rects"] = [
        sorted({str(each[0]) for each in rects}),
        np.array([each[1:] for each in rects], dtype=float),
    ]
    found["words"] = [
        [str(each[0]), *each[3:], *np.round(each[1:3], 6).tolist()]
        for each in found["words"]
    ]
    found["sizes"] = np.array(found["sizes"])
    found["strokes"] = np.array(found["strokes"], dtype=float)
    return _rows(found)


PANELS: dict[str, list[dict[str, Any]]] = {
    "regression": [
        {
            "L": 0.4,
            "delta": 2,
            "eta": 0.3,
            "K": 9,
            "epsilon": 2e-3,
            "t": 40,
            "f": "0.1,-0.5,0.3,0.2,0,0.4",
        },
        {"K": 30, "L": 40, "eta": 60, "t": 3, "f": "random 12"},
        {"K": 5, "epsilon": 10, "t": 0},
        {"epsilon": 1e-14, "eta": 1e-3, "t": 1e15},
    ],
    "recall": [
        {"triggers": 9, "V": 200, "alpha": 0, "eta": 0.02, "counts": 3, "t": 90},
        {"V": 3, "alpha": 0.5, "t": 2, "triggers": 30},
        {"above": 100, "t": 0},
        {"eta": 1e-17, "alpha": 0.3, "t": 1e15},
    ],
    "linear-attention": [
        {
            "d": 20,
            "decay": 1.3,
            "N": 50,
            "noise": 0.2,
            "test_noise": 1,
            "test_N": 9,
            "t": 700,
        },
        {"decay": 0, "d": 3, "test_decay": 0, "eta": 5, "t": 0},
        {"test_decay": 2, "decay": 0, "t": 20},
        {"eta": 1e-17, "start": 0.1, "t": 1e15},
    ],
    "sphere": [
        {"N": 30, "noise": 0.5, "L": 2, "d": 4, "start": 3, "rate": 0.4, "t": 7},
        {"N": 5000, "noise": 0.1, "L": 5, "d": 3, "t": 2},
    ],
    "induction-heads": [
        {
            "T": 60,
            "objective": "log",
            "concentration": 0.5,
            "eta": 0.5,
            "ratio": 3,
            "match": 0.5,
            "sink": 2,
            "t": 90,
        },
        {"T": 60, "match": -2, "sink": -1, "t": 5000, "eta": 0.01},
    ],
    "max-margin-tokens": [{"T": 4, "t": 70}],
    "debiased-descent": [{"N": 100, "t": 3}],
    "attention-with-markov": [{"q": 0.33, "t": 40}],
    "single-location": [{"d": 5000, "t": 1e3}],
    "contextual-generalization": [{"heads": 5, "t": 12}],
    "task-diversity": [{"tasks": 90, "t": 100}],
}
FIGURES = {
    "regression": ["loss", "steps", "attention", "map", "function"],
    "recall": ["loss", "steps", "probabilities", "next"],
    "linear-attention": ["loss", "floor", "modes"],
    "sphere": ["loss", "valley", "window", "best"],
    "induction-heads": ["loss", "layers", "plane"],
}


def panels() -> Asked:
    for panel, every in PANELS.items():
        for i, changes in enumerate(every):
            yield (
                f"{panel} {i}",
                Call(
                    partial(_figure, panel, changes, None, i == 0),
                    rtol=LOOSE,
                    atol=1e-14,
                ),
            )
            for figure in (
                (FIGURES.get(panel) or ["loss", "numbers0", "against"])
                if i < 3
                else ["loss"]
            ):
                if not (panel == "debiased-descent" and figure == "numbers0"):
                    yield (
                        f"{panel} {i}, {figure}",
                        Call(
                            partial(_figure, panel, changes, figure, i == 0),
                            rtol=LOOSE,
                            atol=1e-8,
                        ),
                    )
    static = "const panel = require(`${given[0]}/panel`), { complete } = require('settings'), family = require(`${given[0]}/family`), shown = ({ stops, ...one }) => ({ ...one, stops: stops ?? [] }); return { tab: panel.tab, under: panel.under ?? null, settings: panel.settings.map((one) => shown(complete(one, family.parameters))), presets: panel.presets.map(({ name, values, ghost }) => [name, values, ghost ?? null]), tour: panel.tour.map(({ values, figure, play }) => [values, figure ?? null, play ?? false]), figures: panel.figures.map(({ name, title, height, wide, bare }) => [name, title, height ?? 0, wide ?? false, bare ?? false]) }"
    for panel in PANELS:
        yield f"{panel}, declared", _call(static, panel)
    presets = "const panel = require(`${given[0]}/panel`), { defaults } = require('settings'); return [...panel.presets.map(({ values }) => values), ...panel.tour.map(({ values }) => values)].map((one) => { const wanted = { ...defaults(panel.settings), ...one }, values = { ...wanted, ...panel.sound?.(wanted).changes }, model = panel.compute(values); return panel.words(model, panel.moment(model, values), values); })"
    for panel in (
        "regression",
        "recall",
        "linear-attention",
        "induction-heads",
        "task-diversity",
    ):
        yield f"{panel}, to start from", Call(_call(presets, panel), rtol=LOOSE)
