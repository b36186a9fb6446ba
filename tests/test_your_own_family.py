"""A package of a third party that brings a family, installed and used in fresh processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.pages import Page

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
PAGE = (GUIDE / "your-own-family.md").read_text(encoding="utf-8")
TWENTY = (GUIDE / "twenty-lines.md").read_text(encoding="utf-8")
GROUP = "icl_theory.families"
pytestmark = pytest.mark.slow
DRIVER = """
import contextlib, io, json, shlex, sys

def run(line):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(shlex.split(line))
        except SystemExit as stop:
            return [stop.code, out.getvalue(), err.getvalue()]
        except Exception as error:
            return ["crashed", out.getvalue(), repr(error)]

if __name__ == "__main__":
    from icl_theory.cli import main
    print(json.dumps([run(line) for line in json.loads(sys.argv[1])]))
"""
SWEEP = "--eta 1 --N 10,100,1000 --d 3,4,5,6 --epsilon 0.3"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Done(NamedTuple):
    """What a command left: exit status, standard output, standard error."""

    status: int | str
    out: str
    err: str


class Installed(NamedTuple):
    """A folder that packages are installed in, and one to work in."""

    path: Path
    folder: Path

    def python(self, *arguments: str) -> str:
        """Run a fresh Python, which must succeed; return what it prints."""
        known = {
            name: value for name, value in os.environ.items() if name != "PYTHONPATH"
        }
        environment = {
            **known,
            "PYTHONPATH": str(self.path),
            "COLUMNS": "80",
            "MPLBACKEND": "Agg",
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def commands(self, *lines: str) -> list[Done]:
        """Run command lines of ``icl-theory`` one after the other in one fresh process."""
        driver = self.path / "driver.py"
        driver.write_text(DRIVER, encoding="utf-8")
        return [
            Done(*each)
            for each in json.loads(self.python(str(driver), json.dumps(lines)))
        ]


def install(path: Path, name: str, code: str, points: Mapping[str, str]) -> None:
    """Put a module and what an installer writes about it into a folder."""
    (path / f"{name}.py").write_text(code, encoding="utf-8")
    about = path / f"{name}-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", encoding="utf-8"
    )
    lines = [f"[{GROUP}]", *(f"{point} = {value}" for point, value in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def installation(folder: Path) -> Installed:
    """Install the package of the page."""
    made = Installed(folder / "site", folder / "work")
    made.path.mkdir()
    made.folder.mkdir()
    project = tomllib.loads(blocks("toml")[0])["project"]
    code, row = (
        blocks("python")[0],
        next(block for block in blocks("python") if "\n@row(" in block),
    )
    install(
        made.path, project["name"], f"{code}\n\n{row}", project["entry-points"][GROUP]
    )
    return made


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installation(tmp_path_factory.mktemp("installed"))


def test_family_of_the_page_is_short() -> None:
    assert (
        len([line for line in blocks("python")[0].splitlines() if line.strip()]) <= 70
    )


def test_both_guides_have_one_model() -> None:
    method = re.compile(r"^    def risk\(self\):\n(?:        .*\n)+", re.MULTILINE)
    twenty = method.findall(TWENTY)
    assert len(twenty) == 1
    # The page also has a `risk` with a start, which wraps this one.
    assert method.findall(PAGE)[:1] == twenty


def population(kappa: float, N: int, d: int, noise: float) -> float:
    """Loss of the page's formula, by 1/Z² = ∫ t exp(-tZ) dt: one token counts twice, or two tokens once each."""
    c, p = np.polynomial.legendre.leggauss(60)
    p = p * (1.0 - c * c) ** ((d - 3) / 2)
    p /= p.sum()
    weight = np.exp(kappa * c)
    u = np.arange(-30.0, 14.0, 0.1)
    t = np.exp(u) / (N * float(p @ weight))
    damped = np.exp(-np.outer(t, weight))
    with np.errstate(divide="ignore"):  # where nothing is left
        others = np.log1p(
            np.expm1(-np.outer(t, weight)) @ p
        )  # logarithm of what another token leaves, E e^{-tw}
    one = damped @ (p * weight**2 * ((c - 1.0) ** 2 + 1.0 - c * c + noise**2))
    two = damped @ (p * weight * (c - 1.0))
    integrand = N * one * np.exp((N - 1) * others) + N * (N - 1) * two**2 * np.exp(
        (N - 2) * others
    )
    return float(0.5 * 0.1 * np.sum(t * t * integrand))


def counts(N: int, eta: float, epsilon: float, most: int = 400) -> tuple[int, int]:
    """Steps until half of the loss is gone and until the target, by descent along differences of the loss."""
    kappa, half = 0.0, -1
    first = population(0.0, N, 5, 1.0)
    for step in range(most):
        loss = population(kappa, N, 5, 1.0)
        half = step if half < 0 and loss <= first / 2.0 else half
        if loss <= epsilon:
            return half, step
        slope = (
            population(kappa + 1e-4, N, 5, 1.0) - population(kappa - 1e-4, N, 5, 1.0)
        ) / 2e-4
        kappa -= eta * slope
    return half, -1


def test_counts_of_the_page_are_those_of_descent_on_an_integral() -> None:
    half, last = counts(100, 1.0, 0.1)
    assert f"at step {last}\n" in PAGE
    assert f"phases   half 0 - {half}   rest {half} - {last}\n" in PAGE
    assert f"{{'half': (0, {half}), 'rest': ({half}, {last})}}\n" in PAGE
    rows = [
        " ".join(f"{counts(N, 1.0, epsilon)[1]:3d}" for epsilon in (0.6, 0.3, 0.1))
        for N in (100, 1000)
    ]
    assert "[[" + "]\n [".join(rows) + "]]" in PAGE
    rates = [0.25 / (1 / 25 + 2 / (5 * N)) for N in (10, 100, 1000)]
    steps = [
        counts(N, rate, 0.1)[1] for N, rate in zip((10, 100, 1000), rates, strict=True)
    ]
    assert f"{np.round(rates, 1)} {np.array(steps)}\n" in PAGE


@pytest.mark.parametrize(
    ("N", "d", "noise"),
    [
        (10, 3, 0.0),
        (10, 20, 0.0),
        (100, 5, 1.0),
        (1000, 20, 5.0),
        (10**4, 20, 10.0),
        (10**6, 20, 100.0),
    ],
)
def test_curvature_is_at_most_what_the_page_says(N: int, d: int, noise: float) -> None:
    """Second differences between the start and the least loss."""
    step = 0.25
    losses = np.array(
        [population(kappa, N, d, noise) for kappa in np.arange(-step, 14.0, step)]
    )
    best = int(np.argmin(losses))
    assert best < len(losses) - 1
    curvature = np.diff(losses[: best + 2], 2).max() / step**2
    assert curvature <= 4.4 * (1 / d**2 + (1 + noise**2) / (N * d))
    if N == 10**6:  # and nearly as much there
        assert curvature >= 3.9 * (1 / d**2 + (1 + noise**2) / (N * d))


@pytest.fixture(scope="module")
def shown(installed: Installed) -> list[tuple[str, str, Done]]:
    """Return the command lines of the page, what it says that they print, and what they do."""
    parts = re.split(
        r"^\$ icl-theory (.*)\n", blocks("console")[0], flags=re.MULTILINE
    )[1:]
    return list(
        zip(parts[0::2], parts[1::2], installed.commands(*parts[0::2]), strict=True)
    )


@pytest.mark.parametrize("number", range(5))
def test_command_of_the_page_prints_what_it_shows(
    shown: list[tuple[str, str, Done]], number: int
) -> None:
    line, wanted, done = shown[number]
    assert (done.status, done.err.count("Error")) == (0, 0), (line, done.err)
    assert [row.rstrip() for row in done.out.splitlines()][
        : len(wanted.splitlines())
    ] == wanted.splitlines()
    assert len(shown) == 5


@pytest.mark.parametrize(
    "name", ["run.npz", "run.png", "found.csv", "found.md", "found.png"]
)
def test_command_of_the_page_writes_its_file(
    installed: Installed, shown: object, name: str
) -> None:
    assert (installed.folder / name).stat().st_size > 100


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run.html", ("reached epsilon = 0.1 at step 255", "half")),
        ("found.html", ("attention on the sphere", "tokens in a prompt", "σ", "half")),
    ],
)
def test_report_says_what_the_family_declares(
    installed: Installed, shown: object, name: str, words: tuple[str, ...]
) -> None:
    page = Page((installed.folder / name).read_text(encoding="utf-8"))
    assert page.images
    for word in words:
        assert word.lower() in page.text.lower(), word


def test_table_has_the_columns_of_the_family(
    installed: Installed, shown: object
) -> None:
    rows = [
        line.split(",")
        for line in (installed.folder / "found.csv")
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    assert len(rows) == 16
    assert {"N", "noise", "T_half", "T_rest", "kappa"} <= set(rows[0])


def test_its_program_knows_the_family(installed: Installed) -> None:
    program = Path(sys.executable).with_name("icl-theory")
    code = f"import subprocess, sys; sys.exit(subprocess.call([{str(program)!r}, *sys.argv[1:]]))"
    run = json.loads(
        installed.python("-c", code, "ball", "simulate", "--eta", "1", "--json")
    )
    assert run["steps"] == 255
    assert run["phases"] == {"half": [0, 11], "rest": [11, 255]}


def test_json_toml_and_workers_give_the_same_sweep(installed: Installed) -> None:
    config = installed.folder / "sweep.toml"
    config.write_text(
        'eta = 1\nN = [10, 100, 1000]\nd = [3, 4, 5, 6]\nepsilon = 0.3\nstore = "b"\n',
        encoding="utf-8",
    )
    one, two, three, work = installed.commands(
        f"ball sweep {SWEEP} --json --quiet",
        "ball sweep --config sweep.toml --json --quiet",
        f"ball sweep {SWEEP} --json --quiet --workers 2",
        f"ball sweep {SWEEP} --dry-run",
    )
    assert (one.status, two.status, three.status) == (0, 0, 0), (
        one.err + two.err + three.err
    )
    assert (
        work.out.splitlines()[0]
        == "12 points in 2 chunks, 0 in batches and 12 one by one"
    ), work

    def strict(text: str) -> Any:
        return json.loads(
            text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON")
        )

    first = strict(one.out)
    assert first["attrs"]["family"] == "ball"
    assert first["data_vars"]["steps"]["dims"] == ["N", "d"]
    for other in (two, three):
        found = strict(other.out)
        assert found["data_vars"] == first["data_vars"]
        assert found["coords"] == first["coords"]
    assert (installed.folder / "b").is_dir()


def test_fresh_python_finds_sweeps_stores_and_loads_it(installed: Installed) -> None:
    """Interrupted after the first chunk, a stored sweep goes on in the next process and computes only the rest."""
    common = """
import numpy as np, icl_theory as icl
family = icl.list_families()["ball"]
axes = dict(eta=1.0, N=[10, 100, 1000], d=[3, 4, 5, 6], epsilon=0.3, progress=False)
simulate, calls = family.simulate, []
def counted(problem, **others):
    calls.append(problem)
    if len(calls) > MOST:
        raise KeyboardInterrupt
    return simulate(problem, **others)
family.simulate = counted
"""
    installed.python(
        "-c",
        common.replace("MOST", "9")
        + """
half = icl.sweep("ball", store="a", **axes)
assert half.attrs["interrupted"] == 1, half
assert (half.status.values.ravel() == "pending").sum() == 4, half.status.values
again = icl.load_sweep("a")
assert again.identical(half.assign_attrs(command=again.attrs["command"])), (again, half)
""",
    )
    installed.python(
        "-c",
        common.replace("MOST", "99")
        + """
whole = icl.sweep("ball", store="a", **axes)
assert len(calls) == 4, calls
free = icl.sweep(family, **axes)
assert len(calls) == 16
assert whole.identical(free.assign_attrs(command=whole.attrs["command"])), (whole, free)
assert eval(whole.attrs["command"]).equals(free)
assert icl.load_sweep("a").equals(free)
assert (free.N.attrs["symbol"], free.noise.attrs["symbol"], free.noise.attrs["tex"]) == ("N", "σ", r"\\sigma")
assert (free.T_half.attrs["role"], free.T_half.attrs["phase"]) == ("phase", "half")
point = free.sel(N=100, d=5)
run = family(eta=1.0, N=100, d=5, epsilon=0.3).simulate()
assert (point.steps, point.T_half) == (run.steps, run.phases.half[1])
assert point.kappa == run.params[0]
run.save("one.npz")
loaded = icl.load("one.npz")
assert loaded.facts() == run.facts() and loaded.labels["noise"].text == "σ"
assert loaded.phases.rest == run.phases.rest
automatic = icl.sweep("ball", eta="auto", N=[100, 1000], progress=False)
assert abs(automatic.eta_used.values * [0.044, 0.0404] - 0.25).max() < 1e-15
from icl_theory.statements.audit import rows
assert rows()[-1](True).cells()[0] == "ball: plain average" and rows()[-1](True).verdict == "holds"
""",
    )


BAD = """
from dataclasses import dataclass
import numpy as np, icl_theory as icl
from icl_theory.families import Number

class Parabola(icl.Risk):
    initial = np.array([2.0])
    def evaluate(self, params, step=0):
        return 0.5 * float(params @ params), params

@dataclass(frozen=True, eq=False)
class NoRisk(icl.Family):
    name, title = "norisk", "nothing"

@dataclass(frozen=True, eq=False)
class Undeclared(icl.Family):
    name, title = "undeclared", "nothing"
    width: float = 1.0
    def risk(self):
        return Parabola()

@dataclass(frozen=True, eq=False)
class Taken(icl.Family):
    name, title = "recall", "nothing"
    def risk(self):
        return Parabola()

class Table(Taken):
    name = "table"

class Again(Taken):
    name = "ball"

def function():
    pass
"""


def test_families_that_cannot_be_used_are_named_and_the_others_work(
    tmp_path: Path,
) -> None:
    installed = installation(tmp_path)
    points = {
        "a": "bad:NoRisk",
        "b": "bad:Undeclared",
        "c": "bad:Taken",
        "d": "bad:Table",
        "e": "bad:function",
        "f": "bad:nothing",
        "g": "missing:Family",
        "h": "leaving:Family",
        "z": "bad:Again",
    }
    reasons = {
        "a": r"ValueError: NoRisk\.risk = None: must be a method that returns the risk",
        "b": r"ValueError: Undeclared\.width = 1\.0: must be declared by icl_theory\.parameter",
        "c": r"ValueError: name = 'recall': must be another name: there is already a family",
        "d": r"ValueError: Table\.name = 'table': must be small letters, digits and dashes, and none of .* table",
        "e": r"ValueError: family = <function .*: must be a subclass of icl_theory\.Family",
        "f": r"AttributeError: module 'bad' has no attribute 'nothing'",
        "g": r"ModuleNotFoundError: No module named 'missing'",
        "h": r"SystemExit: no licence",
        "z": r"ValueError: name = 'ball': must be another name: there is already a family",
    }
    install(installed.path, "bad", BAD, points)
    (installed.path / "leaving.py").write_text(
        "import sys\nsys.exit('no licence')\n", encoding="utf-8"
    )
    code = """
import json, warnings, icl_theory as icl
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    known = list(icl.list_families())
print(json.dumps([known, [str(each.message) for each in caught]]))
"""
    known, lines = json.loads(installed.python("-c", code))
    assert known[:2] == ["regression", "recall"]
    assert known[-1] == "ball"
    assert len(lines) == len(points)
    for line, (point, reason) in zip(lines, reasons.items(), strict=True):
        assert re.match(
            rf"the family {point} \({points[point]}\) is left out: {reason}", line
        ), line
    done, recall = installed.commands(
        "ball simulate --eta 1", "recall simulate --counts 1"
    )
    assert (done.status, recall.status) == (0, 0)
    address = re.compile("0x[0-9a-f]+")
    assert address.sub("", done.err).splitlines() == [
        f"icl-theory: {address.sub('', line)}" for line in lines
    ]
    assert "at step 255" in done.out


@pytest.mark.parametrize("where", ["command", "python"])
def test_wrong_input_is_one_line_that_names_it(
    installed: Installed, where: str
) -> None:
    if where == "python":
        code = """
import json, icl_theory as icl
def said(*values, **parameters):
    try:
        icl.sweep(*values, progress=False, **parameters)
    except ValueError as error:
        return str(error)
print(json.dumps([
    said("ball", eta=0.1, nosie=[1.0, 2.0]),
    said("ball", eta=0.1, epsilon=0.1, above=0.1),
    said("blal", eta=0.1),
    said("ball"),
    said("ball", eta=0.1, N=[1.5]),
]))
"""
        found = json.loads(installed.python("-c", code))
        assert (
            "nosie: the family ball has no such parameter (did you mean noise?)"
            in found[0]
        )
        assert found[1].startswith("above = 0.1: must be left out if epsilon")
        assert "family = 'blal'" in found[2]
        assert "(did you mean ball?)" in found[2]
        assert found[3].startswith("eta = None: must be given")
        assert found[4].startswith("N = 1.5: must be an integer >= 1")
        return
    (installed.folder / "wrong.toml").write_text(
        "eta = 0.1\nnosie = 2.0\n", encoding="utf-8"
    )
    first, *others = installed.commands(
        f"ball sweep {SWEEP} --store c --quiet",
        "ball sweep --eta 0.1 --nosie 1,2",
        "ball simulate --eta 0.1 --config wrong.toml",
        "ball simulate --eta 0.1 --epsilon 0.1 --above 0.1",
        "ball sweep --eta 0.1 --N 1,2 --epsilon 0.1 --above 0.1",
        "ball simulate --noise 1",
        "ball simulate --eta 0.1 --N many",
        "ball sweep --eta 0.1 --N 1,2 --over noise",
        "recall sweep --triggers 4,16 --counts 1 --store c --quiet",
        f"ball sweep {SWEEP} --noise 2 --store c --quiet",
        f"ball sweep {SWEEP} --rule ngd --store c --quiet",
    )
    assert first.status == 0, first.err
    sentences = [
        r"No such option: --nosie.*--noise",
        r"config: there is no option 'nosie' \(did you mean noise\?\); the options are ",
        r"above = 0\.1: must be left out if epsilon = 0\.1 is given",
        r"above = .*0\.1.*: must be left out if epsilon",
        r"--eta.*: give .* as an option or in the file",
        r"N = 'many': must be an integer",
        r"over = 'noise': must be one of N",
        r"store = 'c': must be one made by the same call: .*family = 'ball' there, 'recall' here",
        r"store = 'c': must be one made by the same call: noise = 1\.0 there, 2\.0 here",
        r"store = 'c': must be one made by the same call: rule = 'gd' there, 'ngd' here",
    ]
    for sentence, done in zip(sentences, others, strict=True):
        assert done.status == 2, done
        assert len(done.err.splitlines()) == 1, done.err
        assert re.match(rf"icl-theory: {sentence}", done.err), done.err
        assert not done.out
