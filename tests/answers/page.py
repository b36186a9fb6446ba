"""The page of the explorer: its shell, cards and tour in a document that only notes what is done to it, and its text."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from icl_theory import explorer
from icl_theory.families import (
    Fraction,
    Number,
    Panel,
    Probabilities,
    Whole,
    Word,
    families_known,
    find,
)
from tests.answers import Call
from tests.answers._families import Bowl, Dish
from tests.answers._showing import installed, unversioned
from tests.javascript import call

Asked = Iterator[tuple[str, Call | Callable[[], Any]]]
DOCUMENT = r"""
const made = { ids: {}, listens: {}, frames: [], timers: [], log: [], clock: 0, all: [] };
class Classes { constructor() { this.names = new Set(); } add(name) { this.names.add(name); } remove(name) { this.names.delete(name); } }
class Node {
  constructor(tag) { Object.assign(this, { tag, attributes: {}, children: [], dataset: {}, listens: {}, classList: new Classes(), hidden: false, clientWidth: 400, clientHeight: 240, width: 0, height: 0 }); made.all.push(this); }
  set id(name) { made.ids[name] = this; this.name = name; }
  get id() { return this.name; }
  setAttribute(name, value) { this.attributes[name] = String(value); if (name === "id") this.id = value; if (name === "class") this.classList.add(value); if (name === "value" || name === "title") this[name] = value; }
  append(...parts) { for (const part of parts) { this.children.push(part); if (part instanceof Node) part.parentElement = this; } }
  replaceChildren(...parts) { this.children = []; this.append(...parts); }
  remove() { this.gone = true; }
  get textContent() { return this.children.map((one) => (one instanceof Node ? one.textContent : one)).join(""); }
  set textContent(text) { this.children = [String(text)]; }
  addEventListener(name, done) { (this.listens[name] ??= []).push(done); }
  fire(name, event = {}) { for (const done of this.listens[name] ?? []) done({ target: this, ...event }); }
  focus() { made.log.push(`focus ${this.name ?? this.textContent}`); }
  select() {}
  scrollIntoView({ behavior }) { made.log.push(`scroll to ${this.name} ${behavior}`); }
  getBoundingClientRect() { return { left: 10, top: 20 }; }
  setPointerCapture() {}
  get previousElementSibling() { return made.ids["papers-heading"]; }
  getContext() { return new Proxy({}, { get: (held, name) => held[name] ?? ((...at) => { if (name === "fillText") made.texts.push(at[0]); if (name === "drawImage") made.images += 1; return { width: 20 }; }), set: (held, name, value) => { held[name] = value; return true; } }); }
}
made.texts = []; made.images = 0;
const document = { documentElement: new Node("html"), body: new Node("body"), createElement: (tag) => new Node(tag), getElementById: (name) => made.ids[name] ?? null, listens: {},
  addEventListener: (name, done) => { (document.listens[name] ??= []).push(done); }, removeEventListener: (name, done) => { document.listens[name] = (document.listens[name] ?? []).filter((one) => one !== done); },
  querySelectorAll: (what) => (what === "[role=tab]" ? made.all.filter((one) => one.attributes.role === "tab") : made.all.filter((one) => one.tag === "figure" && one.classList.names.has("shown"))),
  execCommand: (name) => made.log.push(`command ${name}`) };
for (const name of ["tabs", "start-tour", "theme", "panel", "lead", "problems", "sliders", "starts", "keep", "reset", "presets", "papers", "copy", "copied", "copy-Python", "copy-Command", "copy-JSON", "stage", "headline", "spoken", "lines", "clock", "play", "timeline", "figures", "papers-heading"]) new Node("div").id = name;
const media = { dark: false, still: given[0].still ?? true };
Object.assign(globalThis, { document, Node, location: { hash: given[0].hash ?? "", href: "file:///page.html" }, history: { replaceState: (a, b, hash) => { location.hash = hash; } }, window: { devicePixelRatio: 2 },
  addEventListener: (name, done) => { (made.listens[name] ??= []).push(done); }, matchMedia: (what) => ({ matches: what.includes("dark") ? media.dark : media.still, addEventListener: (name, done) => { made.listens.scheme = [done]; } }),
  getComputedStyle: () => ({ getPropertyValue: (name) => ` ${name} ` }), requestAnimationFrame: (done) => { made.frames.push(done); return made.frames.length; }, cancelAnimationFrame: (number) => { if (number) made.frames[number - 1] = null; },
  setTimeout: (done, wait) => { made.timers.push([done, wait]); return made.timers.length; }, clearTimeout: (number) => { if (number) made.timers[number - 1] = null; }, navigator: { clipboard: { writeText: async (text) => { if (given[0].refused) throw new Error("no"); made.log.push(`copied ${text.slice(0, 200)}`); } } } });
const settle = () => { for (let i = 0; i < 6; i++) { const frames = made.frames.splice(0), timers = made.timers.splice(0); for (const one of frames) one?.(made.clock); for (const one of timers) one?.[0](); } };
const { Shell } = require("shell");
const $ = (name) => made.ids[name];
const shell = new Shell(given[0].names, given[0].papers ?? []);
settle();
const shown = () => {
  settle();
  const figures = shell.cards.map((card) => [card.figure.name, card.canvas.attributes["aria-label"].slice(0, 260), card.canvas.width, card.canvas.height, [...card.node.classList.names], card.axes ? [card.axes.x.low, card.axes.x.high, card.axes.y.low, card.axes.y.high] : null]);
  const controls = shell.panel.settings.map(({ name }) => { const node = $(`set-${name}`), [slider] = node.parentElement?.children.filter((one) => one.attributes?.type === "range") ?? []; return [name, String(node.value), slider ? [slider.value, slider.attributes["aria-valuetext"] ?? "", slider.attributes.max, slider.attributes["aria-label"]] : null, node.parentElement ? node.parentElement.children[0].textContent : ""]; });
  const tabs = document.querySelectorAll("[role=tab]").map((tab) => [tab.textContent, tab.attributes["aria-selected"], tab.tabIndex]);
  const words = Object.fromEntries(["lead", "headline", "spoken", "lines", "problems", "keep", "play", "copied", "copy-Python", "copy-Command", "copy-JSON"].map((name) => [name, $(name).textContent]));
  const lists = Object.fromEntries(["presets", "papers"].map((name) => [name, $(name).children.map((one) => one.textContent)]));
  const log = made.log.splice(0), texts = [...new Set(made.texts.splice(0))];
  return { name: shell.name, hash: location.hash, words, hidden: [$("problems").hidden, $("clock").hidden, $("papers-heading").hidden], lists, controls, tabs, figures, log, texts, theme: document.documentElement.dataset.theme ?? null, values: shell.values, playing: Boolean(shell.playing), drawn: shell.model.drawn ? shell.model.drawn.losses.length : null, model: $("model")?.children.map((one) => [one.attributes.value, one.attributes.selected ?? null]) ?? null, labelled: $("panel").attributes["aria-labelledby"] };
};
"""
NAMES = [
    "regression",
    "recall",
    "induction-heads",
    "max-margin-tokens",
    "task-diversity",
]
PAPERS = [
    {"short": "A 2024", "title": "On A", "place": "regression?L=5", "text": "as there"},
    {
        "short": "B 2025",
        "title": "On B",
        "place": "task-diversity?tasks=8",
        "text": "here",
    },
]
DOINGS = {
    "opened": "",
    "slid": "const slider = $('set-L').parentElement.children.find((one) => one.attributes.type === 'range'); slider.value = 120; slider.fire('input');",
    "typed": "$('set-K').value = '1'; $('set-K').fire('change');",
    "typed words": "$('set-f').value = '0.9 0.1'; $('set-f').fire('change');",
    "typed nonsense": "$('set-eta').value = 'fast'; $('set-eta').fire('change');",
    "typed again": "$('set-eta').value = 'fast'; $('set-eta').fire('change'); $('set-eta').fire('input');",
    "random": "$('set-f').parentElement.children.find((one) => one.tag === 'button').fire('click'); shell.set({ f: 'random 5' });",
    "preset": "$('presets').children[2].children[0].fire('click');",
    "kept": "shell.set({ L: 3, K: 8 }); $('keep').fire('click'); shell.set({ L: 0.5, t: 20 });",
    "dropped": "$('keep').fire('click'); shown(); $('keep').fire('click');",
    "reset": "shell.set({ L: 3 }); $('keep').fire('click'); $('reset').fire('click');",
    "theme": "$('theme').fire('click'); shown(); $('theme').fire('click'); media.dark = true; made.listens.scheme[0]();",
    "printed": "made.listens.beforeprint[0](); made.listens.afterprint[0](); made.listens.resize[0]();",
    "tab": "$('tab-recall').fire('click'); shown(); shell.set({ alpha: 0.4 }); $('tab-regression').fire('click'); shown(); $('tab-recall').fire('click');",
    "arrows": "$('tab-recall').fire('keydown', { key: 'ArrowRight' }); $('tab-regression').fire('keydown', { key: 'ArrowLeft' }); $('tab-recall').fire('keydown', { key: 'x' });",
    "other model": "location.hash = '#task-diversity?tasks=30'; made.listens.hashchange[0](); shown(); $('model').value = 'max-margin-tokens'; $('model').fire('change'); made.listens.hashchange[0]();",
    "paper": "location.hash = PAPERS; made.listens.hashchange[0]();",
    "words chosen": "location.hash = '#induction-heads'; made.listens.hashchange[0](); $('set-objective').value = 'log'; $('set-objective').fire('change');",
    "sound": "location.hash = '#recall?V=20&triggers=50'; made.listens.hashchange[0]();",
    "compared": "location.hash = '#recall?alpha=0.3~alpha=0&V=1000&triggers=2000'; made.listens.hashchange[0]();",
    "again": "shell.set({ L: 9 }); settle(); made.listens.hashchange[0]();",
    "dragged": "const card = shell.cards[0]; card.canvas.fire('pointermove', { type: 'pointermove', clientX: 300, clientY: 50 }); card.canvas.fire('pointerdown', { type: 'pointerdown', pointerId: 1, clientX: 200, clientY: 60 }); shown(); card.canvas.fire('pointermove', { type: 'pointermove', clientX: 300, clientY: 50 }); card.canvas.fire('pointerup'); card.canvas.fire('pointermove', { type: 'pointermove', clientX: 100, clientY: 50 });",
    "drawn": "const card = shell.cards.at(-1); card.canvas.fire('pointerdown', { type: 'pointerdown', pointerId: 1, clientX: 150, clientY: 40 });",
    "played": "$('play').fire('click'); const first = made.frames.splice(0); for (const one of first) one?.(1000); const at = [shell.values.t]; for (const time of [2000, 5500, 9999, 10000]) { for (const one of made.frames.splice(0)) one?.(time); at.push([shell.values.t, $('play').textContent]); } made.log.push(JSON.stringify(at));",
    "stopped": "$('play').fire('click'); for (const one of made.frames.splice(0)) one?.(1000); $('play').fire('click');",
    "toured": "$('start-tour').fire('click'); const card = document.body.children.at(-1), [back, on, where, end] = card.children[1].children, said = []; const note = () => said.push([card.children[0].textContent.slice(0, 40), where.textContent, Boolean(back.disabled), on.textContent, document.querySelectorAll('figure.shown').map((one) => one.name), shell.values.t]); note(); on.fire('click'); note(); back.fire('click'); note(); for (let i = 0; i < 6; i++) on.fire('click'); note(); made.log.push(JSON.stringify(said)); on.fire('click'); made.log.push(`gone ${card.gone}`);",
    "tour escaped": "$('start-tour').fire('click'); $('start-tour').fire('click'); for (const done of document.listens.keydown) done({ key: 'x' }); for (const done of [...document.listens.keydown]) done({ key: 'Escape' }); made.log.push(`${document.listens.keydown.length}`);",
    "copied": "for (const name of ['link', 'Python', 'Command', 'JSON']) { const button = new Node('button'); button.dataset.copy = name; button.textContent = ` As ${name} `; $('copy').fire('click', { target: button }); } $('copy').fire('click', { target: new Node('p') });",
}


def _shown(doing: str, **given: Any) -> Any:
    body = (
        DOCUMENT
        + doing.replace("PAPERS", f"{PAPERS[1]['place']!r}")
        + "; return JSON.stringify(shown());"
    )
    start = (
        {"hash": "#regression?batch=0&t=100"} if doing else {}
    )  # without a sampled run, which takes longest
    found = json.loads(call(body, {"names": NAMES, "papers": PAPERS, **start, **given}))
    if doing:  # what is as when the page opens, or follows from the rest
        for name in ("texts", "lists", "tabs", "values"):
            found.pop(name)
        for name in ("lead", "copy-JSON", "copy-Python", "spoken"):
            found["words"].pop(name)
        found["controls"] = [
            each[:2] + each[2][:1] if each[2] else each[:2]
            for each in found["controls"]
        ]
        found["figures"] = [[*each[:2], *each[5:]] for each in found["figures"]]
    return found


def shell() -> Asked:
    for name, doing in DOINGS.items():
        yield name, Call(partial(_shown, doing), rtol=1e-7)
    yield (
        "a missing panel",
        lambda: _shown("", names=["none", "recall"])["words"]["problems"],
    )
    yield (
        "opened at a moment",
        Call(partial(_shown, "", hash="#recall?t=9&alpha=0.5", still=False), rtol=1e-7),
    )
    yield (
        "opened without a moment",
        Call(
            partial(_shown, "", hash="#recall?alpha=0.5&nothing=1", still=False),
            rtol=1e-7,
        ),
    )
    yield (
        "copied without a clipboard",
        Call(partial(_shown, DOINGS["copied"], refused=True), rtol=1e-7),
    )
    modules = "const bodies = []; explorer.define('own/a', (module, require) => { bodies.push('a'); module.exports = { b: require('./b').value }; }); explorer.define('own/b', (module) => { bodies.push('b'); module.exports = { value: 3 }; }); return [explorer.require('own/a'), explorer.require('own/a') === explorer.require('own/a'), bodies];"
    yield "modules", lambda: call(modules)


@dataclass(frozen=True, eq=False)
class Shown(Bowl):
    """A bowl with a panel."""

    name = "shown"


def text() -> Asked:
    for name in families_known():
        yield (
            f"described {name}",
            partial(lambda name: explorer.description(find(name)), name),
        )
    yield "described, of another package", lambda: explorer.description(Bowl)
    kinds = {
        "number": Number(),
        "zero": Number(zero=True),
        "within": Number(minimum=0.5, maximum=2.0),
        "signed": Number(signed=True, maximum=3.0),
        "signed and free": Number(signed=True),
        "most": Number(zero=True, maximum=1e300),
        "whole": Whole(),
        "whole within": Whole(minimum=2, maximum=9),
        "infinite": Whole(infinite=True),
        "share": Fraction(),
        "word": Word(words=("a",)),
        "several": Probabilities(),
    }
    yield (
        "limits",
        lambda: {name: explorer._limits(kind) for name, kind in kinds.items()},
    )

    def page(panel: Any, *, broken: bool = False) -> Any:
        Path("panel.js").write_text(
            'module.exports = { tab: "</script>" };', encoding="utf-8"
        )
        with (
            installed(Shown, Dish),
            patch.object(Shown, "explorer", panel),
            patch.object(Dish, "explorer", Panel(Path("none")) if broken else None),
            warnings.catch_warnings(record=True) as heard,
        ):
            warnings.simplefilter("always")
            found = explorer.page()
            modules = re.findall(r'explorer\.define\("([^"]+)"', found)
            own = [
                unversioned(line)
                for line in found.splitlines()
                if "shown/" in line or "<footer>" in line or "[[" in line
            ]
            return [
                modules,
                own,
                [re.sub(r"'[^']*none", "'NONE", str(one.message)) for one in heard],
                explorer.panels()[0].get("shown"),
            ]

    yield "page", lambda: page(Panel(Path(), ("panel.js",), lambda: {"a": [1, "</b>"]}))
    yield "page with a broken panel", lambda: page(None, broken=True)
    yield "papers", lambda: [*explorer.papers()]
    yield (
        "recorded",
        lambda: {
            name: [
                len(text) > 1000,
                text.count("explorer.define"),
                re.findall(r'"(?:tab|under)": "[^"]*"', text),
            ]
            for name, text in explorer.recorded().items()
        },
    )

    def few() -> Any:
        names = ("regression", "representation", "linear-attention")
        known = {name: find(name) for name in names}
        with patch("icl_theory.families.families_known", lambda: known):
            return {
                name: re.findall(r'"(?:tab|under)": "[^"]*"', text)
                for name, text in explorer.recorded().items()
            }

    yield "recorded of few families", few
    yield (
        "JSON",
        lambda: [
            explorer._json({"a": "</script>é", "b": [1.5, None]}),
            explorer._module("a/b", "x();"),
        ],
    )
