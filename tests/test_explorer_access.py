"""The explorer without a mouse and without eyes: real keys, and what a screen reader is told."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from icl_theory.explorer import page
from tests.devtools import SHIFT, Browser, browser
from tests.javascript import call

TABS = (
    "regression",
    "recall",
    "linear-attention",
    "sphere",
    "induction-heads",
    "max-margin-tokens",
)
PARTS = ["skip", "header", "sliders", "story", "clock", "figures", "starts", "copy"]
# what has the focus: its place among all elements, its part of the page, whether a ring
# is drawn around it, and whether anything else of the page lies over its middle
FOCUSED = """
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one), { x, y, width, height } = one.getBoundingClientRect();
  const above = document.elementFromPoint(x + width / 2, y + height / 2);
  const part = one.closest("header, #sliders, #story, #clock, #figures, #starts, #copy");
  return {
    place: [...document.querySelectorAll("*")].indexOf(one),
    part: part?.id || part?.localName || one.className,
    ring: style.outlineStyle === "solid" && parseFloat(style.outlineWidth) >= 2,
    free: one.contains(above),
    said: one.outerHTML.slice(0, 120),
  };
"""
# all that a mouse can use and that is shown: fields, buttons and links, and elements on
# which the cursor promises something; of the tabs one, as arrows lead to the others
USABLE = """
  const all = [...document.querySelectorAll("*")];
  const native = "a[href], button, input, select, summary, textarea, [tabindex='0']";
  return all
    .filter((one) => one.checkVisibility() && !one.disabled && one.tabIndex !== -1 | one.localName === "canvas")
    .filter((one) => one.matches(native) || getComputedStyle(one).cursor === "crosshair")
    .map((one) => [all.indexOf(one), one.outerHTML.slice(0, 120)]);
"""
MOUSE = {"click", "mousedown", "mousemove", "pointerdown", "pointermove", "mouseover"}


def focus(driven: Browser, selector: str) -> None:
    driven.run(f"document.querySelector({json.dumps(selector)}).focus()")


def value(driven: Browser, name: str) -> Any:
    return driven.run(f"return explorer.shell.values[{json.dumps(name)}]")


def open_tab(driven: Browser, number: int) -> None:
    """Go to a tab with keys alone, from the tab that is open."""
    focus(driven, "[role=tab][aria-selected=true]")
    driven.press("Home")
    for _ in range(number):
        driven.press("ArrowRight")
    driven.press("Enter")
    driven.settle()


def walked(driven: Browser, modifiers: int = 0) -> list[dict[str, Any]]:
    """Press Tab until the focus leaves the page."""
    stops: list[dict[str, Any]] = []
    for _ in range(150):
        driven.press("Tab", modifiers)
        stop = driven.run(FOCUSED)
        if stop is None:
            return stops
        stops.append(stop)
    raise AssertionError(f"Tab does not leave the page: {stops[-3:]}")


def listeners(driven: Browser) -> list[int]:
    """Places of the elements that listen to a mouse."""
    found = []
    count = driven.run("return document.querySelectorAll('*').length")
    for place in range(count):
        expression = f"document.querySelectorAll('*')[{place}]"
        node = driven.send("Runtime.evaluate", expression=expression)["result"]
        told = driven.send("DOMDebugger.getEventListeners", objectId=node["objectId"])
        if MOUSE & {one["type"] for one in told["listeners"]}:
            found.append(place)
    return found


@pytest.mark.parametrize("width", [1400, pytest.param(390, marks=pytest.mark.slow)])
def test_tab_reaches_all_that_a_mouse_can_use(tmp_path: Path, width: int) -> None:
    """In the order of the screen, with a ring, under nothing; and Shift+Tab leads back."""
    with browser(tmp_path, page(), width) as driven:
        for number, _ in enumerate(TABS):
            open_tab(driven, number)
            driven.open()  # anew, so that Tab begins at the top
            driven.run(
                "document.querySelectorAll('details').forEach((one) => { one.open = true; });"
            )
            stops = walked(driven)
            places = [stop["place"] for stop in stops]
            usable = driven.run(USABLE)
            missed = [said for place, said in usable if place not in places]
            assert missed == []
            assert [stop["said"] for stop in stops if not stop["ring"]] == []
            assert [stop["said"] for stop in stops if not stop["free"]] == []
            # one part of the page after the other
            parts = [part for part, _ in itertools.groupby(stops, lambda s: s["part"])]
            assert parts == [part for part in PARTS if part in parts]
            assert {"header", "sliders", "clock", "figures", "copy"} <= {*parts}
            assert places == sorted(places)
            back = [stop["place"] for stop in walked(driven, SHIFT)]
            assert back == places[::-1]
            # nothing else listens to a mouse, except around what has been reached
            for place in listeners(driven):
                inside = driven.run(
                    f"const all = [...document.querySelectorAll('*')], one = all[{place}];"
                    f"return {places}.some((other) => one.contains(all[other]))"
                    " || one.getAttribute('role') === 'tab' || !one.checkVisibility() || one.disabled"
                )
                assert inside, driven.run(
                    f"return document.querySelectorAll('*')[{place}].outerHTML"
                )


def test_sliders_and_figures_move_by_keys(tmp_path: Path) -> None:
    """On every tab; what is dragged on a figure has a slider or a field, too."""
    with browser(tmp_path, page()) as driven:
        for number, name in enumerate(TABS):
            open_tab(driven, number)
            names = driven.run(
                "return explorer.shell.panel.settings.filter((one) => one.stops).map((one) => one.name)"
            )
            for setting in names:
                driven.run(
                    f"document.getElementById('set-{setting}').parentElement"
                    ".querySelector('input[type=range]').focus()"
                )
                before = value(driven, setting)
                driven.press("ArrowRight")
                driven.press("ArrowRight")
                more = value(driven, setting)
                driven.press("ArrowLeft")
                assert more != before or value(driven, setting) != before, setting
            dragged = driven.run(
                "return explorer.shell.cards.filter(({ figure }) => figure.drag).map(({ figure }) => figure.name)"
            )
            assert dragged
            for figure in dragged:
                focus(driven, f"#figure-{figure} canvas")
                moved = set()
                for key in ("ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowUp"):
                    before = driven.run("return { ...explorer.shell.values }")
                    driven.press(key)
                    after = driven.run("return { ...explorer.shell.values }")
                    moved |= {one for one in after if after[one] != before[one]}
                assert moved, (name, figure)
                # what the pointer moves the keys move
                by_pointer = driven.run(
                    f"const card = explorer.shell.cards.find(({{ figure }}) => figure.name === '{figure}');"
                    "return Object.keys(card.figure.drag(card.axes, card.axes.width / 3, card.axes.height / 3, ...card.last))"
                )
                assert {*by_pointer} <= moved, (name, figure)
                fields = driven.run(
                    f"return {by_pointer}.every((name) => document.getElementById('set-' + name))"
                )
                assert fields


def test_arrows_draw_a_function(tmp_path: Path) -> None:
    with browser(tmp_path, page("regression?f=0.1,0.2,0.3&query=1&t=5")) as driven:
        focus(driven, "#figure-function canvas")
        for key in ("ArrowRight", "ArrowUp", "ArrowUp", "ArrowRight", "ArrowDown"):
            driven.press(key)
        assert value(driven, "f").startswith("0.1,0.3,0.25,0")
        assert value(driven, "query") == 3


def test_buttons_fields_and_choices_answer_to_keys(tmp_path: Path) -> None:
    with browser(tmp_path, page("regression?L=3&t=100")) as driven:
        focus(driven, ".skip")
        driven.press("Enter")
        assert driven.run("return document.activeElement.id") == "figures"
        focus(driven, "#set-L")
        driven.run("document.activeElement.select()")
        driven.type("10^-1")
        driven.press("Enter")
        assert value(driven, "L") == 0.1
        focus(driven, "#set-rule")
        driven.press("ArrowDown")
        assert value(driven, "rule") == "heavy-ball"
        focus(driven, "#keep")
        driven.press("Enter")
        driven.settle()
        assert driven.run("return document.activeElement.textContent").startswith(
            "Drop"
        )
        focus(driven, "#reset")
        driven.press(" ")
        assert value(driven, "L") == 2
        focus(driven, "#theme")
        driven.press(" ")
        assert driven.run("return document.documentElement.dataset.theme") == "dark"
        focus(driven, "#play")
        driven.press("Enter")
        assert driven.run("return document.activeElement.textContent") == "Stop"
        driven.press("Enter")
        assert driven.run("return document.activeElement.textContent") == "Play"
        focus(driven, "#presets button")
        driven.press(" ")
        assert value(driven, "L") == 0.2
        focus(driven, "#papers button")
        driven.press("Enter")
        driven.settle()
        assert value(driven, "K") == 50
        focus(driven, "[data-copy=Python]")
        driven.press("Enter")
        driven.settle()
        assert driven.run("return document.getElementById('copied').textContent") == (
            "Copied: As Python."
        )
        assert driven.run("return document.activeElement.dataset.copy") == "Python"
        focus(driven, "summary")
        driven.press("Enter")
        assert driven.run("return document.querySelector('details').open")


@pytest.mark.parametrize("name", ["regression", "induction-heads"])
def test_a_story_is_read_with_keys(tmp_path: Path, name: str) -> None:
    """Next by Next to its end, back again, and out by Escape; the focus is never lost."""
    active = "return document.activeElement.textContent"
    current = (
        "return document.querySelector('#story [aria-current]')?.textContent ?? ''"
    )
    with browser(tmp_path, page(f"{name}?t=1")) as driven:
        focus(driven, "#start-tour")
        driven.press("Enter")
        scenes = driven.run("return explorer.shell.panel.story.length")
        for scene in range(1, scenes + 1):
            assert driven.run(current).startswith(f"{scene} ")
            assert driven.run(active) == ("Done" if scene == scenes else "Next")
            driven.press("Tab", SHIFT)  # back, or what the scene says to try
            expected = "Show me" if scene == 1 else "Back"
            assert driven.run(active) == expected
            driven.press("Tab")
            driven.press("Enter")
        assert driven.run(current) == ""
        assert driven.run(active).startswith("1 ")
        driven.press("Tab")
        driven.press(" ")  # the second scene
        assert driven.run(current).startswith("2 ")
        focus(driven, "#story .row button")
        driven.press("Enter")
        assert driven.run(current).startswith("1 ")
        assert driven.run(active) == "Next"
        before = driven.run("return { ...explorer.shell.values }")
        focus(driven, "#story .attempt button")
        driven.press("Enter")
        assert driven.run("return { ...explorer.shell.values }") != before
        driven.press("Escape")
        assert driven.run(current) == ""
        assert driven.run(active).startswith("1 ")


def test_a_tour_is_read_with_keys(tmp_path: Path) -> None:
    with browser(tmp_path, page("recall?t=1")) as driven:
        focus(driven, "#start-tour")
        driven.press("Enter")
        driven.press("Enter")
        where = "return document.querySelector('#tour .where').textContent"
        assert driven.run(where).startswith("2 of")
        driven.press("Tab", SHIFT)
        driven.press(" ")
        assert driven.run(where).startswith("1 of")
        assert driven.run("return document.activeElement.textContent") == "Next"
        driven.press("Escape")
        assert driven.run("return document.getElementById('tour')") is None
        assert driven.run("return document.activeElement.id") == "start-tour"


def headings_in_order(levels: list[int]) -> bool:
    return levels[0] == 1 and all(
        after <= before + 1 for before, after in itertools.pairwise(levels)
    )


@pytest.mark.parametrize("number", range(len(TABS)), ids=TABS)
def test_a_screen_reader_is_told_what_everything_is(
    tmp_path: Path, number: int
) -> None:
    with browser(tmp_path, page()) as driven:
        open_tab(driven, number)
        told = driven.accessibility()
        # Not the text of the tree: Chromium 156.0.8078.108 has the number of a slider
        # there, whatever the page says.
        spoken_values = driven.run(
            "return Object.fromEntries([...document.querySelectorAll("
            "'input[type=range]')].map((one) => [one.ariaLabel, one.ariaValueText]))"
        )
        settings = driven.run("return explorer.shell.panel.settings")
        values = driven.run("return { ...explorer.shell.values }")

    def having(role: str) -> list[dict[str, Any]]:
        return [one for one in told if one["role"] == role]

    # tabs
    (panel,) = having("tabpanel")
    tabs = having("tab")
    assert [one["name"] for one in tabs if one.get("selected")] == [panel["name"]]
    assert len(tabs) == len(TABS)
    assert all("tablist" in one["above"] for one in tabs)
    # landmarks and headings
    for landmark in ("banner", "main", "contentinfo"):
        assert len(having(landmark)) == 1
    assert "main" in panel["above"]
    assert all(one["name"] for one in having("region"))
    assert headings_in_order([int(one["level"]) for one in having("heading")])
    assert all(one["name"] for one in having("heading"))
    # sliders: a name in words, and the value with its unit, not the number of a stop
    sliders = {one["name"]: one for one in having("slider")}
    moved = [one for one in settings if "stops" in one]
    assert len(sliders) == len(moved) > 0
    for setting in moved:
        name = f"{setting['meaning']}, {setting['symbol']}"
        assert re.search(r"[A-Za-z]{3}", setting["meaning"]), name
        assert name in sliders
        spoken = spoken_values[name]
        number_said, _, unit = spoken.partition(f" {setting['unit']}")
        assert unit == ""
        assert spoken.endswith(setting["unit"])
        plain = number_said.replace(" times 10 to the power ", "e")
        plain = re.sub(r"^10 to the power ", "1e", plain)
        plain = plain.replace("minus ", "-").replace("−", "-")
        assert float(plain) == pytest.approx(values[setting["name"]], rel=1e-3)
    # everything that can be used has a name
    for role in ("button", "textbox", "combobox", "link", "DisclosureTriangle"):
        assert all(one["name"] for one in having(role)), role
    # figures say what they show now
    images = having("image")
    assert len(images) == len(having("figure")) >= 3
    for image in images:
        assert re.match(r"[^.]{4,}\. .*\d", image["name"]), image["name"]
        assert "figure" in image["above"]
    assert [one["live"] for one in having("status")] == ["polite"]


def test_descriptions_of_figures_follow_the_moment(tmp_path: Path) -> None:
    with browser(tmp_path, page()) as driven:
        for number, name in enumerate(TABS):
            open_tab(driven, number)
            labels = "return [...document.querySelectorAll('canvas')].map((one) => one.ariaLabel)"
            before = driven.run(labels)
            focus(driven, "#timeline input[type=range]")
            for _ in range(3):
                driven.press("PageDown")
            driven.press("PageDown")
            driven.settle()
            after = driven.run(labels)
            changed = sum(
                one != other for one, other in zip(before, after, strict=True)
            )
            assert changed >= 2, name


# The contrast of the words on a canvas with what has been drawn below them: the least
# but for a twentieth of the points.
UNDER = """<script>
globalThis.under = [];
const bright = (parts) => {
  const [r, g, b] = parts.map((part) =>
    part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const read = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const { fillText } = CanvasRenderingContext2D.prototype;
CanvasRenderingContext2D.prototype.fillText = function (words, x, y) {
  const turned = this.getTransform().b !== 0, box = this.measureText(words);
  const wide = Math.ceil(box.actualBoundingBoxLeft + box.actualBoundingBoxRight);
  const tall = Math.ceil(box.actualBoundingBoxAscent + box.actualBoundingBoxDescent);
  if (!turned && wide && tall) {
    const left = Math.floor(x - box.actualBoundingBoxLeft), top = Math.floor(y - box.actualBoundingBoxAscent);
    const { data } = this.getImageData(left, top, wide, tall);
    const paper = bright(read(getComputedStyle(document.documentElement).getPropertyValue("--paper").trim()));
    const word = bright(read(this.fillStyle)), contrasts = [];
    for (let i = 0; i < data.length; i += 4) {
      const below = data[i + 3] ? bright([...data.slice(i, i + 3)]) : paper;
      contrasts.push((Math.max(word, below) + 0.05) / (Math.min(word, below) + 0.05));
    }
    contrasts.sort((a, b) => a - b);
    under.push([words, contrasts[Math.floor(contrasts.length / 20)]]);
  }
  return fillText.call(this, words, x, y);
};
</script>"""


@pytest.mark.parametrize("presets", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_words_on_figures_stand_out_from_what_is_drawn_below_them(
    tmp_path: Path, presets: bool
) -> None:
    """At least 4.5, level AA of WCAG 2, in both themes; as pixels are, not as colours are declared."""
    watched = page().replace("<meta charset", UNDER + "<meta charset", 1)
    with browser(tmp_path, watched) as driven:
        for theme, number in itertools.product(("light", "dark"), range(len(TABS))):
            open_tab(driven, number)
            driven.run(f"explorer.shell.theme = '{theme}'; explorer.shell.repaint();")
            driven.settle()
            driven.run("under.length = 0; explorer.shell.redraw(true);")
            driven.settle()
            clicks = driven.run("return explorer.shell.panel.presets.length")
            # every second preset in light colours, and the others in dark ones
            first = ("light", "dark").index(theme)
            for click in range(first, clicks if presets else 0, 2):
                driven.run(
                    f"document.querySelectorAll('#presets button')[{click}].click()"
                )
                driven.settle()
                driven.settle()
            words = driven.run("return under")
            assert len(words) > 20
            assert [one for one in words if one[1] < 4.5] == [], (theme, TABS[number])


HEARD = """
  globalThis.heard = [];
  const watch = (one) => new MutationObserver(() => heard.push(one.textContent))
    .observe(one, { childList: true, characterData: true, subtree: true });
  document.querySelectorAll("[aria-live], [role=status], [role=alert]").forEach(watch);
"""


def test_results_are_announced_once_the_slider_rests(tmp_path: Path) -> None:
    """A drag of forty moves is one announcement, of what is new; a run that plays, one at its end."""
    with browser(tmp_path, page("regression?t=100&L=2")) as driven:
        driven.settle()
        driven.run(HEARD)
        box = driven.run(
            "const { x, y, width, height } = document.querySelector('#timeline input[type=range]')"
            ".getBoundingClientRect(); return [x, y + height / 2, width]"
        )
        for i in range(40):
            place = {"x": box[0] + box[2] * (0.1 + 0.005 * i), "y": box[1]}
            kind = "mouseMoved" if i else "mousePressed"
            driven.send(
                "Input.dispatchMouseEvent",
                type=kind,
                button="left",
                buttons=1,
                clickCount=1,
                **place,
            )
        said_while_moving = driven.run("return heard.length")
        driven.send(
            "Input.dispatchMouseEvent",
            type="mouseReleased",
            button="left",
            clickCount=1,
            **place,
        )
        driven.settle()
        heard = driven.run("return heard")
        assert said_while_moving <= 1
        assert 1 <= len(heard) <= 2
        step = value(driven, "t")
        assert re.sub(r"\D", "", heard[-1].partition(",")[0]) == str(step)
        assert heard[-1].startswith("At step")  # the headline has been heard already
        # the count of steps is new when L changes
        focus(driven, "#set-L")
        driven.run("document.activeElement.select()")
        driven.type("3")
        driven.press("Enter")
        driven.settle()
        assert driven.run("return heard.at(-1)").startswith("Sharp: the loss is at")
        before = driven.run("return heard.length")
        focus(driven, "#play")
        driven.press("Enter")
        driven.run("await new Promise((done) => setTimeout(done, 1000))")
        assert driven.run("return heard.length") == before
        driven.press("Enter")
        driven.settle()
        assert driven.run("return heard.length") == before + 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10⁻³", "10 to the power minus 3"),
        ("2.5·10⁻⁹", "2.5 times 10 to the power minus 9"),
        ("12\u202f300 steps", "12300 steps"),
        ("ε = 10⁶; 10 steps", "ε = 10 to the power 6; 10 steps"),
    ],
)
def test_powers_are_spoken_in_words(text: str, words: str) -> None:
    assert call("return require('numbers').spoken(...given)", text) == words
