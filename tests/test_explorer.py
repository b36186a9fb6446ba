"""The explorer: one file that asks for nothing, driven in a browser, and what it copies run by Python."""

from __future__ import annotations

import html
import json
import math
import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import icl_theory as icl
from icl_theory import explorer, figures
from icl_theory.cli import main
from icl_theory.explorer import description, page, recorded
from icl_theory.families import Family, Number, Panel, list_families, parameter
from icl_theory.statements.audit import all_claims
from icl_theory.statements.paper import Claims, Paper
from tests.browser import shown_by_browser, visit
from tests.javascript import call

SETTINGS = {
    paper.name: paper.setting
    for claims in all_claims()[0].values()
    for paper in claims.papers
    if paper.setting is not None
}

ROOT = Path(__file__).parents[1]
FAMILIES = [
    name for name, family in list_families().items() if family.explorer is not None
]
RECORDED = [*recorded()]  # panels of runs that were computed beforehand
PANELS = [*FAMILIES, *RECORDED]
# in tests that take seconds: one panel in the quick ones, the others in the slow ones;
# one script draws all records
ONE_PANEL = [
    name if name == "regression" else pytest.param(name, marks=pytest.mark.slow)
    for name in [*FAMILIES, "max-margin-tokens"]
]
NONSENSE = [
    "#nothing",
    "#regression?L=abc&K=&eta=NaN&nothing=1",
    "#regression?K=1&t=-5&epsilon=0",
    "#regression?K=2.5&L=1e99",
    "#regression?K=2",
    "#regression?epsilon=100",
    "#regression?eta=1e9",
    "#regression?L=1e30&delta=1e30&eta=1e30",
    "#regression?L=1e-30&delta=1e-30&eta=1e-30&epsilon=1e-300&t=1e15",
    "#regression?f=x,y&K=3",
    "#regression?f=1,2,3",
    "#regression?L=1000000000&K=1000000000&epsilon=1e-300",
    "#regression?K=1e9&f=0.5,-0.5&t=1e15",
    "#regression?rule=adam&L=1e30&delta=1e30&eta=1e30",
    "#regression?rule=adam&L=1e-30&eta=1e-30&t=1e15",
    "#regression?rule=heavy-ball&L=1e30&delta=1e30&eta=1e30&K=2",
    "#regression?rule=heavy-ball&K=1e9&epsilon=1e-300&t=1e15",
    "#recall?triggers=100&V=10&alpha=1",
    "#recall?eta=1e-30&t=1e15",
    "#recall?eta=1e6&counts=1e6&above=1e-12&t=1e15",
    "#recall?above=100&alpha=0",
    "#linear-attention?eta=5",
    "#linear-attention?d=1&N=1&noise=1000&decay=10&t=1e15",
    "#linear-attention?above=1e6",
    "#linear-attention?d=1000&decay=10&eta=1e-30&start=1&test_decay=0&test_noise=0&N=1e9&test_N=1",
]


def test_the_page_is_one_file_below_700_kilobytes() -> None:
    made = page()
    assert len(made.encode()) < 700_000
    assert not re.search(
        r"https?:|@import|url\s*\(|<link|<img|<iframe|\bsrc\s*=|fetch\(|XMLHttpRequest|import\(",
        made,
    )
    assert not re.search(r"\[\[[a-z]+\]\]", made)


def test_parameters_come_from_the_family() -> None:
    told = description(list_families()["regression"])
    assert told["parameters"]["delta"]["symbol"] == "Δ"
    assert (
        told["parameters"]["K"] | {"whole": True, "minimum": 2}
        == told["parameters"]["K"]
    )


@pytest.mark.parametrize("name", list_families())
def test_limits_on_the_page_are_the_last_numbers_that_python_takes(name: str) -> None:
    """The next number, or the next integer, is refused; where the page has no limit float64 is the only one."""
    family = list_families()[name]
    for key, told in description(family)["parameters"].items():
        declared = family.parameters()[key]
        if not isinstance(declared.kind, Number):
            assert "minimum" not in told
            continue
        assert not told["whole"] or told["maximum"] <= 2**53
        for limit, side in (("minimum", -1.0), ("maximum", 1.0)):
            last = told[limit]
            declared.check(side * 1e300 if last is None else last)
            if last is not None and last != 2**53:
                with pytest.raises(ValueError, match="must be"):
                    declared.check(
                        last + side
                        if told["whole"]
                        else math.nextafter(last, side * math.inf)
                    )


@pytest.mark.parametrize(
    ("authors", "short"),
    [
        ("A. One", "One 2020"),
        ("A. One, B. C. Two", "One and Two 2020"),
        ("A. One, B. Two, C. Three", "One et al. 2020"),
    ],
)
def test_papers_are_called_by_their_authors(
    authors: str, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, text = setting = next(iter(SETTINGS.values()))
    paper = Paper("a", "A title", authors, 2020, "nowhere", (), setting=setting)
    monkeypatch.setattr(
        explorer, "all_claims", lambda: ({"a": Claims(papers=(paper,))}, [])
    )
    assert [*explorer.papers()] == [
        {"short": short, "title": "A title", "place": place, "text": text}
    ]


def contrast(colour: str, other: str, alpha: float = 1.0) -> float:
    """The contrast of WCAG 2, of a colour that covers a share alpha of the other one."""

    def luminance(alpha: float) -> float:
        linear = []
        for i in (1, 3, 5):
            over, under = int(colour[i : i + 2], 16), int(other[i : i + 2], 16)
            part = (alpha * over + (1 - alpha) * under) / 255
            dark = part <= 0.04045
            linear.append(part / 12.92 if dark else ((part + 0.055) / 1.055) ** 2.4)
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(alpha), luminance(0.0)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def themes() -> list[dict[str, str]]:
    parts = re.findall(r"--paper: .*?color-scheme", page(), re.DOTALL)
    assert len(parts) == 3
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in parts]


def test_fields_and_curves_stand_out_from_the_paper_in_both_themes() -> None:
    """The contrast that WCAG 2 asks of what is no text, 3: borders, curves, ribbons and bars."""
    for colour in themes():
        for paper in ("paper", "back"):
            assert contrast(colour["axis"], colour[paper]) >= 3
            assert (
                contrast(colour["accent"], colour[paper]) >= 3
            )  # the ring of the focus
        for drawn in ("blue", "orange", "green", "muted"):
            assert contrast(colour[drawn], colour["paper"], 0.7) >= 3
        assert contrast(colour["blue"], colour["paper"], 0.65) >= 3
    # the drawn models are no paler
    scripts = [ROOT / "icl_theory" / "explorer" / "diagram.js"]
    scripts += ROOT.glob("icl_theory/papers/*/panel/picture.js")
    for script in scripts:
        shares = re.findall(
            r"\balpha(?: =|:) ?(?:\w+ \? )?([\d.]+)", script.read_text("utf-8")
        )
        assert all(float(share) >= 0.7 for share in shares), script


def test_words_stand_out_from_the_paper_in_both_themes() -> None:
    """The contrast that WCAG 2 asks of text at level AA, 4.5, for every colour in which words are written."""
    for colour in themes():
        pairs = [
            (word, paper)
            for word in ("ink", "muted", "accent")
            for paper in ("paper", "back")
        ]
        pairs += [
            (word, "paper") for word in ("blue", "orange", "green", "red", "pink")
        ]
        for word, paper in [*pairs, ("ink", "warn"), ("on-accent", "accent")]:
            assert contrast(colour[word], colour[paper]) >= 4.5, (word, paper)


@pytest.mark.parametrize(
    ("typed", "number"),
    [
        ("1e-3", 1e-3),
        ("10^6", 1e6),
        ("1.5·10⁻⁹", 1.5e-9),
        ("10⁶", 1e6),
        ("1 000", 1000),
        ("−2", -2),
        ("x", None),
        ("", None),
        ("1e", None),
        ("1e999", None),
        ("0,5", None),
        ("1\u202f000", 1000),
        ("+3.", 3),
        (".5E-2", 0.005),
    ],
)
def test_numbers_are_read_as_people_type_them(typed: str, number: float | None) -> None:
    found = call("return require('numbers').parse(...given)", typed)
    assert (
        found is None if number is None else found == pytest.approx(number, rel=1e-15)
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.001, "0.001"),
        (12345, "12\u202f300"),
        (1e-9, "10⁻⁹"),
        (2.5e9, "2.5·10⁹"),
        (0.05, "0.05"),
        (-1, "−1"),
        (99.96, "100"),
        (999999, "10⁶"),
        (1.5e6, "1.5·10⁶"),
        (0.00099, "9.9·10⁻⁴"),
    ],
)
def test_numbers_are_written_with_three_digits(number: float, text: str) -> None:
    assert call("return require('numbers').short(...given)", number) == text


ADDRESS = """
const { complete, fromFragment } = require("settings");
const panels = Object.fromEntries(given[1].map((name) => {
  const family = require(`${name}/family`), { settings } = require(`${name}/panel`);
  return [name, { family, settings: settings.map((one) => complete(one, family.parameters)) }];
}));
return fromFragment(given[0], panels);
"""


def test_figures_of_the_gallery_open_with_their_parameters() -> None:
    linked = 0
    for name in figures.available():
        (path,) = ROOT.glob(f"icl_theory/papers/*/figures/{name}.py")
        place = runpy.run_path(str(path)).get("EXPLORER")
        if place is None:
            continue
        linked += 1
        found = call(ADDRESS, f"#{place}", PANELS)
        assert found["problems"] == []
        for key, value in figures.parameters(name).items():
            if (
                key in found["values"]
                and not isinstance(value, tuple)
                and f"{key}=" in place
            ):
                assert found["values"][key] == value, (name, key)
    assert linked >= 10


def test_addresses_in_the_documentation_open_without_a_notice() -> None:
    text = "".join(
        page.read_text(encoding="utf-8")
        for page in sorted((ROOT / "docs").glob("*.md"))
    )
    places = re.findall(r'explorer\.html(#[^"]+)"', text)
    assert len(places) >= 12
    assert [place for place in places if call(ADDRESS, place, PANELS)["problems"]] == []


def test_a_run_to_compare_with_has_the_settings_shown_but_for_those_that_are_named() -> (
    None
):
    found = call(ADDRESS, "#regression?K=50&L=5&delta=2~L=0.2", PANELS)
    assert found["problems"] == []
    assert [found["ghost"][name] for name in ("K", "L", "delta")] == [50, 0.2, 2]
    assert found["ghost"] | {"L": 5} == found["values"]


@pytest.mark.slow
def test_papers_open_at_their_settings(tmp_path: Path) -> None:
    body = """
      const opened = [];
      for (const tab of document.querySelectorAll("[role=tab]")) {
        tab.click();
        for (let i = 0; i < document.querySelectorAll("#papers button").length; i++) {
          document.querySelectorAll("#papers button")[i].click();
          await frames();
          opened.push([location.hash.replace("#", ""), text("problems")]);
        }
      }
      return { opened };
    """
    opened = visit(tmp_path, "", body)["opened"]
    assert [problem for _, problem in opened] == [""] * len(SETTINGS)
    for place, _ in SETTINGS.values():
        name, *parts = re.split("[?&~]", place)
        assert any(
            hash.startswith(f"{name}?") and all(part in hash for part in parts)
            for hash, _ in opened
        )


def test_command_writes_the_page_and_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(
        "webbrowser.open", lambda address: opened.append(address) or True
    )
    file = tmp_path / "explorer.html"
    for arguments in (["--out", str(file)], ["--out", str(file), "--no-browser"]):
        with pytest.raises(SystemExit) as stop:
            main(["explore", *arguments])
        assert stop.value.code == 0
    assert file.read_text(encoding="utf-8") == page()
    assert opened == [file.as_uri()]


def test_command_refuses_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explore", "--out", str(tmp_path / "none" / "explorer.html")])
    assert stop.value.code == 2
    assert "in a folder that exists" in capsys.readouterr().err


DRIVEN = """
  const seen = {};
  const { shell } = explorer;
  for (const slider of document.querySelectorAll("input[type=range]")) {
    for (const part of [0, 0.31, 1, 0.62]) {
      slider.value = Math.round(part * slider.max);
      slider.dispatchEvent(new Event("input"));
      await frames();
    }
  }
  for (const button of document.querySelectorAll("#presets button")) { button.click(); await frames(); }
  seen.headlines = [text("headline")];
  const there = location.hash, values = { ...shell.values };
  document.getElementById("reset").click();
  await frames();
  seen.reset = location.hash !== there;
  location.hash = there;
  await frames();
  seen.back = JSON.stringify(shell.values) === JSON.stringify(values);
  document.getElementById("start-tour").click();
  seen.stops = 0;
  for (const { title } of shell.panel.story ?? []) {
    seen.stops += 1;
    await frames();
    const current = document.querySelector("#story [aria-current]"), [back, on] = document.querySelectorAll("#story .open .row button");
    if (!current.ariaLabel.endsWith(title) || back.disabled !== (seen.stops === 1)) seen.wayBack = seen.stops;
    document.querySelector("#story .attempt button").click();  // what the scene says to try
    await frames();
    if (seen.stops === 2 && !seen.returned) {
      back.click();
      seen.returned = document.querySelector("#story [aria-current]").textContent.replace(/^1 .*/, "1 of the scenes");
      on.click();
    }
    on.click();
  }
  while (document.getElementById("tour")) {
    seen.stops += 1;
    await frames();
    const [back, on] = document.querySelectorAll("#tour button");
    if (back.disabled !== (seen.stops === 1)) seen.wayBack = seen.stops;
    if (seen.stops === 2 && !seen.returned) {  // there and back again
      back.click();
      seen.returned = document.querySelector("#tour .where").textContent;
      on.click();
    }
    on.click();
  }
  document.getElementById("theme").click();
  document.getElementById("play").click();
  await new Promise((done) => setTimeout(done, 10500));
  seen.end = [shell.values.t, shell.panel.end?.(shell.model) ?? shell.model.end];
  // the slider stands at the stop that is nearest to the value
  seen.far = shell.panel.settings.filter(({ stops }) => stops).filter((one) => {
    const between = (one.stops[3] * 7 + one.stops[4] * 3) / 10, field = document.getElementById(`set-${one.name}`);
    const slider = field.parentElement.querySelector("input[type=range]");
    const before = shell.values[one.name];
    field.value = String(between);
    field.dispatchEvent(new Event("change"));
    const off = one.stops.map((stop) => Math.abs(stop - shell.values[one.name]));
    const near = off[slider.value] === Math.min(...off);
    shell.set({ [one.name]: before });
    return !near;
  }).map(({ name }) => name);
  const tabs = [...document.querySelectorAll("[role=tab]")], here = tabs.findIndex((tab) => !tab.tabIndex);
  tabs[here].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
  seen.tab = tabs.indexOf(document.activeElement) === (here + 1) % tabs.length;
  tabs[here].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  seen.tab = seen.tab && tabs.indexOf(document.activeElement) === (here + tabs.length - 1) % tabs.length;
  for (const canvas of document.querySelectorAll("canvas.draggable")) {
    canvas.setPointerCapture = () => {};
    const { left, width, top } = canvas.getBoundingClientRect();
    const place = { clientX: left + 0.6 * width, clientY: top + 40 };
    for (const name of ["pointerdown", "pointermove", "pointerup"]) {
      canvas.dispatchEvent(new PointerEvent(name, place));
    }
    await frames();
  }
  const named = (one) =>
    one.labels?.length || one.ariaLabel || one.getAttribute("aria-labelledby") || one.textContent;
  const needy = document.querySelectorAll("input, select, canvas, button, [role]:not([role=alert], [role=status])");
  seen.labels = [...needy].filter((one) => !named(one)).map((one) => one.outerHTML);
  return seen;
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_PANEL)
def test_everything_on_the_page_can_be_used(tmp_path: Path, name: str) -> None:
    """Sliders, presets, reset, a URL and back, the tour, both themes, playing, dragging; controls have names."""
    seen = visit(tmp_path, f"#{name}", DRIVEN)
    assert seen["reset"]
    assert seen["back"]
    assert seen["stops"] >= 4
    assert "wayBack" not in seen
    assert seen["returned"].startswith("1 of")
    assert seen["end"][0] == seen["end"][1] > 0
    assert seen["far"] == []
    assert seen["tab"]
    assert seen["labels"] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400, 2560])
def test_no_tab_is_wider_than_the_window(tmp_path: Path, width: int) -> None:
    """Nor with a preset, the story or the tour open; `visit` refuses errors and requests."""
    body = """
      const wide = [];
      const look = (name) => {
        const { clientWidth, scrollWidth } = document.documentElement;
        if (scrollWidth > clientWidth) wide.push([name, clientWidth, scrollWidth]);
      };
      for (const tab of document.querySelectorAll("[role=tab]")) {
        tab.click();
        await frames();
        look(tab.id);
        document.querySelectorAll("details").forEach((one) => { one.open = true; });
        for (let i = 0; i < document.querySelectorAll("#presets button").length; i++) {
          document.querySelectorAll("#presets button")[i].click();
          await frames();
          look(`${tab.id}, preset ${i}`);
        }
        document.getElementById("start-tour").click();
        await frames();
        look(`${tab.id}, tour`);
        document.querySelectorAll("#tour button")[2]?.click();
      }
      return { wide, tabs: document.querySelectorAll("[role=tab]").length };
    """
    found = visit(tmp_path, "", body, width)
    assert found["tabs"] == len(FAMILIES) + 1
    assert found["wide"] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1400])
def test_what_moves_a_figure_is_in_sight_of_it(tmp_path: Path, width: int) -> None:
    """Sliders, the button to play and the first figure are in sight together, on a phone as on a screen."""
    body = """
      const panels = {}, within = ({ top, bottom }) => top >= -1 && bottom <= innerHeight + 1;
      for (const tab of document.querySelectorAll("[role=tab]")) {
        tab.click();
        await frames();
        const { clientWidth, scrollWidth } = document.documentElement;
        document.querySelector("canvas").scrollIntoView({ block: "center" });
        const [box, play, figure] = ["#sliders", "#play", "canvas"]
          .map((name) => document.querySelector(name).getBoundingClientRect());
        const clear = box.right <= figure.left || box.top >= figure.bottom;
        panels[tab.id] = [scrollWidth <= clientWidth, within(box), within(play), clear];
        scrollTo(0, 0);
      }
      return { panels };
    """
    found = visit(tmp_path, "", body, width)["panels"]
    assert len(found) == len(FAMILIES) + 1
    assert list(found.values()) == [[True] * 4] * (len(FAMILIES) + 1)


@pytest.mark.slow
def test_the_page_opens_playing_unless_a_moment_or_rest_is_asked_for(
    tmp_path: Path,
) -> None:
    body = """
      const seen = [];
      for (const place of ["#regression?L=3", "#regression?L=3&t=7"]) {
        location.hash = place;
        await frames();
        const then = explorer.shell.values.t;
        await new Promise((done) => setTimeout(done, 1500));
        seen.push([explorer.shell.values.t > then, text("play")]);
      }
      return { seen };
    """
    assert visit(tmp_path, "#recall?t=0", body)["seen"] == [
        [True, "Stop"],
        [False, "Play"],
    ]
    still = visit(tmp_path, "", body, 1400, "--force-prefers-reduced-motion")
    assert still["seen"] == [[False, "Play"], [False, "Play"]]


def test_a_run_stays_to_compare_others_with(tmp_path: Path) -> None:
    """Its curve is drawn, its count told; the address keeps it, and a preset or the button drops it."""
    body = """
      let dashes = [];
      const { setLineDash } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.setLineDash = function (dash) {
        dashes.push(dash.join());
        setLineDash.call(this, dash);
      };
      const button = document.getElementById("keep"), seen = [];
      const acts = [() => button.click(), () => change("set-L", "0.2"),
        () => { location.hash = "#regression?t=1"; }, () => { location.hash = kept; }, () => button.click(),
        () => document.querySelectorAll("#presets button")[2].click()];
      for (const act of acts) {
        dashes = [];
        act();
        await frames();
        seen.push([text("lines").match(/Grey dashes.*/)?.[0] ?? "", dashes.includes("7,5")]);
        if (seen.length === 2) var kept = location.hash;
      }
      return { seen, kept };
    """
    found = visit(tmp_path, "#regression?L=5&t=1", body)
    first, other, gone, back, dropped, (preset, _) = found["seen"]
    steps = icl.simulate(5.0, 1.0, 1.0, K=20, epsilon=1e-3).steps
    assert first[0].startswith("Grey dashes: Sharp")
    assert other[0].startswith("Grey dashes, L = 5: Sharp")
    assert re.sub(r"\s", "", other[0]).endswith(f"after{steps}steps.")
    assert found["kept"].endswith("~L=5")
    assert back == other
    assert gone == dropped == ["", False]
    assert [first[1], other[1]] == [True, True]
    assert preset.startswith("Grey dashes, L = 0.2: Flat")


def test_dragging_goes_to_the_place_under_the_pointer(tmp_path: Path) -> None:
    body = """
      const { shell } = explorer, seen = [];
      for (const [name, setting, value] of [["loss", "t", 1000], ["steps", "L", 3]]) {
        const { axes, canvas } = shell.cards.find(({ figure }) => figure.name === name);
        canvas.setPointerCapture = () => {};
        const { left, top } = canvas.getBoundingClientRect();
        const place = { clientX: left + axes.X(value), clientY: top + 40 };
        canvas.dispatchEvent(new PointerEvent("pointermove", place));  // not held: nothing moves
        const before = shell.values[setting];
        canvas.dispatchEvent(new PointerEvent("pointerdown", place));
        canvas.dispatchEvent(new PointerEvent("pointerup", place));
        seen.push([before, shell.values[setting]]);
        await frames();
      }
      return { seen };
    """
    (step, moved), (size, changed) = visit(tmp_path, "#regression?t=7", body)["seen"]
    assert (step, size) == (7, 2)
    assert moved == pytest.approx(1000, rel=1e-3)
    assert changed == pytest.approx(3, rel=1e-2)


TOY = """
const { half } = require("./constants");
module.exports = {
  tab: "Toy", lead: "A panel of somebody else.", presets: [], tour: [{ text: "Look." }],
  settings: [{ name: "width", value: 2, low: 1, high: 4 }],
  compute: ({ width }) => half * width,
  moment: (model) => model,
  words: (model) => [`Half is **${model}**.`],
  parameters: ({ width }) => ({ width, eta: 0.1 }),
  found: (model) => ({ model }),
  figures: [{ name: "line", title: "A line", describe: (model) => `It ends at ${model}.`,
    scales: () => [{ low: 0, high: 1, label: "x" }, { low: 0, high: 4, label: "y" }],
    still: (axes, model) => axes.curve([0, 1], [0, model], "blue") }],
};
"""


@dataclass(frozen=True, eq=False)
class Toy(Family):
    name, title = "toy", "a family of another package"

    width: float = parameter(
        2.0, kind=Number(), symbol="w", unit="inches", meaning="width of the thing"
    )

    def risk(self) -> icl.Risk:
        raise NotImplementedError


def test_a_family_of_another_package_brings_its_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "panel.js").write_text(TOY, encoding="utf-8")
    monkeypatch.setattr(
        Toy, "explorer", Panel(tmp_path, constants=lambda: {"half": 0.5})
    )
    monkeypatch.setattr(
        "icl_theory.families.registry.families_known", lambda: {"toy": Toy}
    )
    body = """
      change("set-width", "3");
      await frames();
      const label = document.querySelector("#sliders label").textContent, canvas = document.querySelector("canvas");
      return { hash: location.hash, told: [text("headline"), label, canvas.ariaLabel, text("copy-Python")] };
    """
    found = visit(tmp_path, "", body)
    headline, label, canvas, python = found["told"]
    assert found["hash"] == "#toy?width=3"
    assert headline == "Half is 1.5."
    assert label == "w width of the thing (inches)"
    assert canvas == "A line. It ends at 1.5."
    assert "from tests.test_explorer import Toy\n" in python
    assert "problem = Toy(width=3, eta=0.1)" in python


COPIED = """
  const copied = {};
  for (const place of given) {
    location.hash = place;
    await frames();
    copied[place] = [text("copy-Python"), text("copy-Command"), text("copy-JSON")];
  }
  return { copied };
"""


@pytest.mark.parametrize("name", ONE_PANEL)
def test_what_is_copied_runs_and_says_the_same(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    presets = call(
        "return require(`${given[0]}/panel`).presets.map(({ values }) => values)", name
    )
    places = [
        f"#{name}?" + "&".join(f"{key}={value}" for key, value in values.items())
        for values in presets
    ]
    found = visit(tmp_path, "", COPIED.replace("given", json.dumps(places)))
    assert len(found["copied"]) == len({*places}) >= 3
    for python, command, said in found["copied"].values():
        told = json.loads(said)
        space: dict[str, Any] = {}
        exec(python, space)
        run = space["run"]
        assert run.steps == told["found"]["steps"]
        assert run.at(told["found"]["t"]).loss == pytest.approx(
            told["found"]["loss"], rel=1e-11
        )
        if told["found"].get("phases"):
            parts = {
                name: list(part)
                for name, part in run.phases.present().items()
                if part[1] > part[0]
            }
            assert parts == told["found"]["phases"]
        assert (
            space["problem"].plain()["parameters"] | told["parameters"]
            == space["problem"].plain()["parameters"]
        )
        capsys.readouterr()
        _, *arguments = shlex.split(command)
        with pytest.raises(SystemExit) as stop:
            main([*arguments, "--json"])
        assert stop.value.code == 0
        assert json.loads(capsys.readouterr().out)["steps"] == run.steps


def test_options_of_a_copied_command_are_those_of_the_command_line() -> None:
    family = description(list_families()["induction-heads"])
    copied = call(
        "return require('settings').copies(...given)",
        family,
        {"max_steps": 7, "objective": "log"},
        {},
    )
    assert (
        copied["Command"]
        == "icl-theory induction-heads simulate --max-steps 7 --objective log"
    )
    assert 'icl.InductionHeads(max_steps=7, objective="log")' in copied["Python"]


EXTREMES = """
const { complete } = require("settings"), { Axes } = require("drawing"), { random, sampled } = require("training");
const odd = [];
const pen = new Proxy({}, {
  get: (_, name) => (...parts) => {
    if (name === "measureText") return { width: 40 };
    const wrong = (one) => typeof one === "number" ? !Number.isFinite(one) : /NaN|undefined|Infinity/.test(one);
    if (parts.some(wrong)) odd.push(`${name} ${parts}`);
  }, set: () => true,
});
for (const name of given[0]) {
  const panel = require(`${name}/panel`), family = require(`${name}/family`);
  const every = panel.settings.map((one) => complete(one, family.parameters));
  const settings = every.filter((one) => !one.text && !one.words);
  for (let draw = 0; draw < given[1]; draw++) {
    // every setting at its least, its greatest or its usual value: draw in base 3, scattered
    const values = Object.fromEntries(panel.settings.map(({ name: key, value }) => [key, value]));
    settings.forEach((one, i) => {
      const part = Math.floor((draw * 7919) / 3 ** i) % 3;
      values[one.name] = [one.minimum ?? one.low, one.maximum ?? one.high, one.value][part];
    });
    Object.assign(values, panel.sound?.(values).changes);
    try {
      const model = panel.compute(values), now = panel.moment(model, values);
      const trainer = draw % 5 === 0 ? panel.trainer : null;
      if (trainer) model.drawn = sampled(trainer(values, random(1), model), model.end);
      panel.words(model, now, values);
      for (const figure of panel.figures) {
        const axes = new Axes(pen, 500, 300, new Proxy({}, { get: () => "" }), ...figure.scales(model, values));
        if (!figure.bare) axes.frame();
        figure.still?.(axes, model, values);
        figure.moving?.(axes, model, now, values);
        axes.write();
      }
    } catch (error) {
      odd.push(`${error} at ${JSON.stringify(values)}`);
    }
  }
}
return odd.slice(0, 5);
"""


@pytest.mark.slow
def test_figures_can_be_drawn_at_the_limits_of_all_settings() -> None:
    assert call(EXTREMES, PANELS, 15) == []


READ = """
const { complete, read } = require("settings");
const panel = require("regression/panel"), family = require("regression/family");
const settings = panel.settings.map((one) => complete(one, family.parameters));
return given[0].map(([name, text]) => read(settings.find((one) => one.name === name), text));
"""


def test_whatever_is_not_used_as_it_was_typed_is_told() -> None:
    typed = [
        ("f", "1,2,3"),
        ("f", "0.1;-0.7"),
        ("f", ",".join(["0.1"] * 30)),
        ("f", "x"),
        ("K", "1"),
        ("L", "1e99"),
    ]
    for (name, text), found in zip(typed, call(READ, typed), strict=True):
        assert found["problem"].startswith(("f ", "values of f", f"{name} =")), text
    taken = [("f", "0.12345, -0.5"), ("f", "random 7"), ("K", "2"), ("L", "3")]
    for (_, text), found in zip(taken, call(READ, taken), strict=True):
        assert not found.get("problem"), text
        assert str(found["value"]).replace(" ", "") == text.replace(" ", "")


def test_a_typo_is_marked_and_changes_nothing(tmp_path: Path) -> None:
    """The field keeps what was typed, until somebody types on or anything moves."""
    body = """
      const answers = [], values = JSON.stringify(explorer.shell.values);
      for (const [name, typo] of [["L", "abc"], ["L", "1,5"], ["L", "-3"], ["K", "2.5"], ["f", "0.2 x"], ["f", "0.9"]]) {
        change(`set-${name}`, typo);
        await frames();
        const field = document.getElementById(`set-${name}`), marked = field.ariaInvalid;
        const same = JSON.stringify(explorer.shell.values) === values, notice = text("problems");
        field.dispatchEvent(new Event("input"));
        answers.push([marked, field.value === typo, same, notice, field.ariaInvalid ?? "", text("problems")]);
      }
      change("set-L", "-3");
      change("set-eta", "0.5");
      await frames();
      const field = document.getElementById("set-L");
      return { answers, after: [field.value, field.ariaInvalid, text("problems")] };
    """
    found = visit(tmp_path, "#regression?L=3&t=7", body)
    assert found["after"] == ["3", None, ""]
    for marked, kept, same, _, then, notice in found["answers"]:
        assert (marked, kept, same, then, notice) == ("true", True, True, "", "")
    notices = [notice for _, _, _, notice, _, _ in found["answers"]]
    assert notices[:4] == [
        "L = “abc” is not a number; it stays 3.",
        "L = “1,5” is not a number: decimals follow a point; it stays 3.",
        "L = −3 has to be at least 10⁻³⁰; it stays 3.",
        "K = 2.5 has to be whole; it stays 20.",
    ]
    assert notices[4].startswith("f = “0.2 x” cannot be read")
    assert "between −½ and ½" in notices[5]


@pytest.mark.slow
def test_nonsense_in_the_address_is_answered_in_words(tmp_path: Path) -> None:
    body = """
      const said = {};
      for (const place of given) {
        location.hash = place;
        await frames();
        said[place] = [text("problems"), text("headline"), Object.values(explorer.shell.values)];
      }
      return { answers: said };
    """
    answers = visit(tmp_path, "", body.replace("given", json.dumps(NONSENSE)))[
        "answers"
    ]
    problems = {place: problem for place, (problem, _, _) in answers.items()}
    assert "There is no panel “nothing”" in problems["#nothing"]
    for words in (
        "L = “abc” is not a number",
        "K = “”",
        "η = “NaN”",
        "no setting “nothing”",
    ):
        assert words in problems["#regression?L=abc&K=&eta=NaN&nothing=1"]
    assert "K = 1 has to be at least 2" in problems["#regression?K=1&t=-5&epsilon=0"]
    assert "K = 2.5 has to be whole" in problems["#regression?K=2.5&L=1e99"]
    assert "at the start" in answers["#regression?epsilon=100"][1]
    assert all(headline for _, headline, _ in answers.values())
    assert problems["#regression?K=2"] == ""
    assert "between −½ and ½" in problems["#regression?f=1,2,3"]
    assert "descent diverges" in problems["#linear-attention?eta=5"]
    assert "V = 102 is used" in problems["#recall?triggers=100&V=10&alpha=1"]


PARTS = """
const { complete, read, fromFragment } = require("settings");
const { count } = require("numbers"), { lasting } = require("training");
const K = complete({ name: "K", value: 7, low: 2, high: 30, minimum: 2, whole: true, zero: true, log: true }, {});
const free = { name: "f", value: "", symbol: "f", text: (text) => ({ value: text }) };
const panels = { a: { family: { title: "A" }, settings: [free] } };
return {
  stops: K.stops, said: ["2.5", "1", "2"].map((text) => read(K, text).problem ?? ""),
  counts: [1234, 12345].map(count), f: fromFragment("#a?f=x%3D1=2", panels).values.f,
  phases: lasting({ I: [0, 3], II: [3, 3], III: [3, 9] }),
};
"""


def test_settings_counts_and_phases_are_what_they_are_declared_to_be() -> None:
    found = call(PARTS)
    assert found["stops"] == [0, *range(2, 31)]
    assert [
        "whole" in found["said"][0],
        "at least 2" in found["said"][1],
        found["said"][2],
    ] == [True, True, ""]
    assert found["counts"] == ["1234", "12\u202f345"]
    assert found["f"] == "x=1=2"
    assert found["phases"] == {"I": [0, 3], "III": [3, 9]}


def test_a_cell_of_a_notebook_holds_the_page_at_its_settings() -> None:
    shown = explorer.embed("recall?alpha=0.2&t=30", height=400)._repr_html_()
    source = re.search(r'srcdoc="([^"]*)"', shown)
    assert source is not None
    assert html.unescape(source[1]) == page("recall?alpha=0.2&t=30")
    assert "height: 400px" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"place": 3}, "place = 3: must be a text"),
        ({"height": 20}, "height = 20: must be an integer"),
        ({"height": 1.5}, "height = 1.5: must be an integer"),
    ],
)
def test_a_cell_refuses_what_it_cannot_show(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        explorer.embed(**arguments)


@pytest.mark.slow
def test_the_page_works_inside_a_cell_of_a_notebook(tmp_path: Path) -> None:
    """It opens at its settings, moves, and goes to another address without a complaint."""
    told = """<script>
    const trouble = [];
    addEventListener("error", (event) => trouble.push(event.message));
    addEventListener("load", () => setTimeout(() => {
      const first = document.getElementById("set-alpha").value;
      document.querySelector("#papers button").click();
      document.querySelector("[data-copy=link]").click();
      setTimeout(() => parent.postMessage(JSON.stringify({ first, trouble }), "*"), 500);
    }, 500));
    </script>"""
    shown = explorer.embed("recall?alpha=0.3&t=30")._repr_html_()
    shown = shown.replace(
        html.escape("<meta charset"), html.escape(told + "<meta charset"), 1
    )
    listener = '<script>addEventListener("message", (event) => { document.title = event.data; });</script>'
    found = shown_by_browser(
        tmp_path, f"<!DOCTYPE html><title></title>{listener}{shown}"
    )
    title = re.search(r"<title>(.*?)</title>", found)
    assert title is not None
    assert json.loads(html.unescape(title[1])) == {"first": "0.3", "trouble": []}
