"""The package as a whole: what importing costs, what the README shows, what depends on what."""

from __future__ import annotations

import ast
import doctest
import importlib
import operator
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib.layout_engine import ConstrainedLayoutEngine

import icl_theory as icl
from icl_theory._extras import REQUIREMENTS, install
from icl_theory.cli import main

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "icl_theory"
DOCS = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")
)
PAGES = [
    "README.md",
    "paper/paper.md",
    *(page for page in DOCS if "/_" not in page),
]  # built pages lie in folders like docs/_build
# Pages that take several seconds, nearly all of it in one block.
LONG = (
    "docs/guide/from-a-training-script.md",
    "docs/guide/induction-heads.md",
    "docs/guide/your-own-run.md",
    "docs/guide/linear-attention.md",
    "docs/guide/methods.md",
    "docs/papers/contextual-generalization.md",
    "docs/papers/match-copy.md",
    "docs/papers/statistical-induction-heads.md",
)
# Words of a block that takes as long, on pages whose other blocks do not need it.
LONG_BLOCKS = {
    "docs/guide/your-own-risk.md": "stays on the exact curve",
    "docs/guide/your-own-family.md": "check_family(",
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MATCHES = doctest.OutputChecker().check_output


def test_import_leaves_the_heavy_libraries_alone() -> None:
    heavy = (
        "matplotlib",
        "xarray",
        "pandas",
        "typer",
        "dask",
        "distributed",
        "pyarrow",
        "scipy.integrate",
        "scipy.optimize",
        "jinja2",
        "flint",
    )
    code = f"import sys, icl_theory; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_commands_load_what_they_need() -> None:
    """Their start is two fifths imports; of ``pydantic`` typer makes converters, for options that have a value."""
    heavy = (
        "matplotlib",
        "xarray",
        "pandas",
        "pydantic",
        "scipy",
        "flint",
        "numpy.ma",
        "numpy.random",
        "rich.progress",
        "importlib.metadata",
        "icl_theory.cli.sweep",
        "icl_theory.papers.recall",
        "icl_theory.results.tables",
    )
    code = f"""
import sys
import tomllib
from icl_theory._extras import REQUIREMENTS, install
from icl_theory.cli import main
try:
    main("simulate --L 2 --delta 1 --eta 4 --epsilon 1e-9".split())
finally:
    print([m for m in {heavy!r} if m in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "1,187,646,524" in found.stdout
    assert found.stdout.splitlines()[-1] == "[]"


def test_a_closed_simulation_loads_few_modules_and_is_not_deep() -> None:
    """Few modules in a fresh process, none of which skips or sweeps.

    A reader who follows one call has to open each file that it enters, so it enters at most 20, at most 9 calls deep.
    The second call is followed: the first one also computes what all later calls share.
    """
    code = """
import sys, icl_theory as icl
deepest, stack, files = 0, [], set()
def follow(frame, event, _):
    global deepest
    if "icl_theory" in frame.f_code.co_filename and event in ("call", "return"):
        stack.append(frame) if event == "call" else stack.pop()
        deepest = max(deepest, len(stack))
        files.add(frame.f_code.co_filename)
icl.simulate(2.0, 1.0, 4.0)
loaded = [name for name in sys.modules if name.partition(".")[0] == "icl_theory"]
sys.setprofile(follow)
run = icl.simulate(2.0, 1.0, 4.0)
sys.setprofile(None)
print(run.steps, deepest, len(files), *loaded)
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    steps, deepest, files, *loaded = found.stdout.split()
    assert int(steps) == 1413
    assert int(deepest) <= 9
    assert int(files) <= 20
    assert len(loaded) <= 53
    assert not {"icl_theory.engine.skip", "icl_theory.sweeps.sweep"} & {*loaded}


def test_the_audit_of_one_row_loads_few_modules() -> None:
    """A reader who follows one row opens these files, and none of another paper or family."""
    code = """
import sys, icl_theory as icl
claim, = icl.audit(claim=1, quick=True).claims
print(claim.name)
print(*(name for name in sys.modules if name.partition(".")[0] == "icl_theory"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    name, modules = done.stdout.splitlines()
    loaded = set(modules.split())
    assert name == "Lemma 1"
    assert len(loaded) <= 60
    papers = {module for module in loaded if module.startswith("icl_theory.papers.")}
    assert all(module.split(".")[2] == "regression" for module in papers)
    assert not {"icl_theory.families.family", "icl_theory.certified"} & loaded


def test_only_the_command_line_prints() -> None:
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "cli" and path.name != "command.py":
            assert not re.search(
                r"^\s*print\(", path.read_text(encoding="utf-8"), re.MULTILINE
            ), path


def test_layers_know_only_what_they_may() -> None:
    """The contracts of pyproject.toml, by import-linter."""
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    found = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout


def test_modules_that_the_reference_names_can_be_imported() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.rst"))
    named = set(re.findall(r"py:module:: (\S+)", pages))
    assert {"icl_theory.regression", "icl_theory.tasks"} <= named
    for name in named:
        module = importlib.import_module(name)
        assert all(hasattr(module, public) for public in module.__all__)
    from icl_theory.regression import QuadraticLaw
    from icl_theory.tasks import Linear

    assert QuadraticLaw is icl.regression.QuadraticLaw
    assert Linear is icl.tasks.Linear


@pytest.mark.parametrize(
    "first", ["", "import icl_theory as icl; icl.list_families(); "]
)
def test_families_is_a_module_however_it_is_imported(first: str) -> None:
    code = (
        first
        + "import icl_theory.families as f, icl_theory as icl; print(f.Family is icl.families.Family)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True
        ).stdout
        == "True\n"
    )


def test_public_names_have_docstrings() -> None:
    for name in icl.__all__:
        assert getattr(icl, name).__doc__, name


@pytest.mark.parametrize(
    ("page", "left_out"),
    [
        *(
            pytest.param(
                page,
                None,
                marks=[pytest.mark.slow] * (page in LONG or page in LONG_BLOCKS),
                id=page,
            )
            for page in PAGES
        ),
        *(
            pytest.param(page, words, id=f"{page} without its long block")
            for page, words in LONG_BLOCKS.items()
        ),
    ],
)
def test_code_on_the_page_runs(
    page: str,
    left_out: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Blocks in their order, in one folder and one namespace; ``text`` after one is what it prints."""
    for curve in (ROOT / page).parent.glob("curves/*"):
        shutil.copy(curve, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # Laying a figure out takes longer than drawing it; tests of figures do that.
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda engine, figure: None)
    module = ModuleType("page")  # a real one, so that its classes can be pickled
    monkeypatch.setitem(sys.modules, "page", module)
    printed: str | None = None
    for language, block in blocks_of(page, left_out):
        if language == "text":
            assert printed is not None, f"nothing printed this:\n{block}"
            assert MATCHES(_trimmed(block), _trimmed(printed), doctest.ELLIPSIS), (
                f"{block}\n--- printed:\n{printed}"
            )
            printed = None
            continue
        if language == "python":
            exec(compile(block, page, "exec"), vars(module))
        elif language == "sh":
            for command in block.replace("\\\n", " ").splitlines():
                _run(command, tmp_path)
        elif language == "toml":
            (tmp_path / "sweep.toml").write_text(block, encoding="utf-8")
        printed = capsys.readouterr().out


def blocks_of(page: str, left_out: str | None) -> list[tuple[str, str]]:
    """Return languages and texts, without a block of such words and what it prints."""
    blocks = FENCED.findall((ROOT / page).read_text(encoding="utf-8"))
    if left_out is None:
        return blocks
    (place,) = (
        i
        for i, (language, block) in enumerate(blocks)
        if language == "python" and left_out in block
    )
    assert blocks[place + 1][0] == "text"
    return blocks[:place] + blocks[place + 2 :]


@pytest.mark.parametrize("page", [*LONG, *LONG_BLOCKS])
def test_names_in_the_code_of_a_long_page_exist(page: str) -> None:
    """What can be told of a block without running it: its syntax, imports and public names."""
    known = 0
    for language, block in blocks_of(page, None):
        for node in ast.walk(ast.parse(block if language == "python" else "")):
            if isinstance(node, ast.ImportFrom) and node.module != "page":
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, name.name) for name in node.names)
            elif isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                if re.fullmatch(r"icl(\.\w+)+", name):
                    operator.attrgetter(name.removeprefix("icl."))(icl)
                    known += 1
    assert known


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def _run(command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "icl-theory"
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0, command
    written = [
        folder / word
        for word in arguments
        if Path(word).suffix in (".md", ".png", ".csv", ".npz")
    ]
    assert all(path.stat().st_size > 100 for path in written), command


def test_guide_to_sweeps_has_commands() -> None:
    blocks = FENCED.findall((ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8"))
    assert (
        sum(block.count("icl-theory") for language, block in blocks if language == "sh")
        >= 8
    )


def test_readme_states_the_commands_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", readme, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_messages_name_the_libraries_that_the_extras_bring() -> None:
    """No message asks pip for `icl-theory[...]`: whoever owns that name on an index need not be this project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = project["optional-dependencies"]

    def libraries(extra: str) -> list[str]:
        own = [line for line in extras[extra] if not line.startswith(project["name"])]
        inherited = re.findall(rf"{project['name']}\[(.*?)\]", " ".join(extras[extra]))
        return own + [
            library
            for name in ",".join(inherited).split(",")
            if name
            for library in libraries(name)
        ]

    for extra, requirements in REQUIREMENTS.items():
        assert sorted(requirements) == sorted(libraries(extra)), extra
        assert install(extra) == shlex.join(["pip", "install", *requirements])
    for path in [*(ROOT / "icl_theory").rglob("*.py")]:
        asked = re.findall(
            r"pip install [^\n]*icl-theory\[", path.read_text(encoding="utf-8")
        )
        assert not asked, path


# Modules that somebody explores with Tab: those of the reference, and those that its
# pages name functions of.
EXPLORED = (
    "certified",
    "engine",
    "explorer",
    "families",
    "figures",
    "linear_attention",
    "papers",
    "recall",
)
EXPLORED += (
    "regression",
    "results.plots",
    "statements",
    "tasks",
    "testing",
    "tokens",
)


@pytest.mark.parametrize(
    "name", ["icl_theory", *(f"icl_theory.{module}" for module in EXPLORED)]
)
def test_completion_offers_only_what_is_public(name: str) -> None:
    """Neither the imports of a module, nor its helpers."""
    module = importlib.import_module(name)
    offered = {word for word in dir(module) if not word.startswith("_")}
    assert offered == {word for word in module.__all__ if not word.startswith("_")}
    for word in sorted(offered):
        value = getattr(module, word)
        origin = getattr(value, "__module__", None)
        own = (
            isinstance(value, ModuleType)
            or origin is None
            or origin.startswith(("icl_theory", "builtins"))
        )
        assert own, (word, origin)


def test_every_module_of_the_reference_is_explored() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.rst"))
    named = set(re.findall(r"py:module:: (\S+)", pages))
    assert named <= {"icl_theory", *(f"icl_theory.{module}" for module in EXPLORED)}
