"""Record the runs of models that the explorer does not compute itself.

    python scripts/recorded.py                      # all, about five minutes
    python scripts/recorded.py debiased-descent     # one paper; the other records stay

The records are in the file icl_theory/explorer/runs.json, one for each of some papers.
A record is a model at the setting of the paper, with one parameter that varies. For
each value of this parameter it has the exact run: losses and a few numbers at steps on
a logarithmic scale, the number of steps, and the losses of a run on samples.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import icl_theory
from icl_theory.families import Family, list_families
from icl_theory.papers.token_selection.family import cosine

FILE = Path(icl_theory.__file__).parent / "explorer" / "runs.json"
# A function of a problem and a state of its run, which returns the numbers that the
# explorer draws of this state, by their names.
Numbers = Callable[[Any, Any], Mapping[str, float]]


@dataclass(frozen=True)
class Record:
    """A model of a paper, the runs to record, and the words beside them.

    Attributes
    ----------
    family : str
        The family of the model.
    varied : str
        The parameter that varies.
    values : tuple of float
        The values of this parameter, one for each run.
    usual : float
        The value with which the panel opens.
    fixed : dict
        The other parameters.
    numbers : callable
        A function that returns the numbers to draw of a state.
    figures : list of dict
        For each figure its title, its axis, the names of the numbers in it (``of``),
        and a text.
    lead : str
        The text at the top of the panel.
    presets : list of tuple
        Named values of the parameter: a name, the value, and a sentence on it.
    against : tuple
        The figure over the values: its title, the number that it draws, and whether
        the number is drawn on a logarithmic scale.
    log : bool
        Whether the values are drawn on a logarithmic scale.
    end : float
        The number of steps that are shown. With 0 it is three times the steps of the
        run, rounded up to a power of ten.
    batch : int
        The number of prompts in a batch of the run on samples.
    """

    family: str
    varied: str
    values: tuple[float, ...]
    usual: float
    fixed: dict[str, Any]
    numbers: Numbers
    figures: list[dict[str, Any]]
    lead: str
    presets: list[tuple[str, float, str]]
    against: tuple[str, str, bool] = ("Loss at the end", "loss", False)
    log: bool = True
    end: float = 0.0
    batch: int = 8


def _selection(problem: Any, state: Any) -> Mapping[str, float]:
    """Return the largest attention of each input, and the cosine with the margin.

    The cosine is that of the trained vector with the hard-margin solution that
    separates the selected tokens. It is 0 if there is no such solution, or at a vector
    of 0.
    """
    numbers = {}
    for i, weights in enumerate(state.observed["weights"]):
        numbers[f"input {i + 1}"] = float(weights.max())
    margin = problem.margin(problem.selected(state.params))
    numbers["cosine"] = 0.0
    if margin is not None and state.params.any():
        numbers["cosine"] = cosine(state.params, margin)
    return numbers


def _pair(problem: Any, state: Any) -> Mapping[str, float]:
    """Return the output weight μ and the inverse temperature ω of each head."""
    numbers = {}
    for symbol, name in (("μ", "output"), ("ω", "omega")):
        for h, value in enumerate(np.atleast_1d(state.observed[name])):
            numbers[f"{symbol}, head {h + 1}"] = float(value)
    return numbers


def _chain(problem: Any, state: Any) -> Mapping[str, float]:
    """Return the embedding e and the weight w."""
    return {"e": float(state.observed["e"]), "w": float(state.observed["w"])}


def _location(problem: Any, state: Any) -> Mapping[str, float]:
    """Return the absolute overlaps |κ| and |ν| of the two trained vectors."""
    kappa, nu, *_ = np.abs(state.observed["overlaps"]).tolist()
    return {"|κ|": kappa, "|ν|": nu}


def _dictionary(problem: Any, state: Any) -> Mapping[str, float]:
    """Return the distance of the coefficients from those of ridge regression."""
    return {"distance": float(state.observed["off"])}


def _diversity(problem: Any, state: Any) -> Mapping[str, float]:
    """Return the loss on new tasks, and on those of the training."""
    all_tasks = problem.changed(tasks=None).risk()
    loss_on_all, _ = all_tasks.evaluate(state.params)
    return {"new tasks": loss_on_all, "its tasks": state.loss}


# The record of each paper, by the name of the paper.
RECORDS = {
    "max-margin-tokens": Record(
        "token-selection",
        "T",
        (2, 3, 4, 5, 6, 8, 10),
        5,
        {"n": 4, "d": 20, "seed": 1, "values": "one", "eta": 0.5, "above": 1e-6},
        _selection,
        [
            {
                "title": "Attention",
                "axis": "attention",
                "of": ["input 1", "input 2", "input 3", "input 4"],
                "text": "Each of the four inputs attends equally to its tokens at first, and to a single one in"
                " the end.",
            },
            {
                "title": "Direction",
                "axis": "cosine with the hard margin",
                "of": ["cosine"],
                "text": "The vector p turns to the hard-margin solution that separates the tokens it has selected."
                " The angle falls like one over the logarithm of the step.",
            },
        ],
        "Attention over fixed inputs with a logistic loss. What is trained is one vector p, the query of all"
        " inputs. It grows for ever, and its direction is that of a support vector machine.",
        [
            ("Two tokens", 2, "A choice between two tokens for each input."),
            ("Five tokens", 5, "The setting of the page on this paper."),
            (
                "Ten tokens",
                10,
                "The most steps of all these runs, though steps do not simply grow with the tokens.",
            ),
        ],
        log=False,
        against=("Steps", "steps", True),
        end=1e12,
    ),
    "debiased-descent": Record(
        "softmax-heads",
        "N",
        (10, 40, 160),
        40,
        {
            "heads": 2,
            "d": 5,
            "noise": 0.1,
            "eta": 0.1,
            "above": 0.05,
            "method": "exact",
            "max_steps": 120,
        },
        _pair,
        [
            {
                "title": "Output weights",
                "axis": "output weight μ",
                "of": ["μ, head 1", "μ, head 2"],
                "text": "The output weights of the two heads get opposite signs. Their sum tends to zero, the more"
                " slowly the longer prompts are.",
            },
            {
                "title": "Temperatures",
                "axis": "inverse temperature ω",
                "of": ["ω, head 1", "ω, head 2"],
                "text": "So do the sizes of their key-query matrices. What the two heads have in common cancels,"
                " and what is left is a step of descent on centred tokens.",
            },
        ],
        "Linear tasks on Gaussian inputs, and two softmax heads of two numbers each: an inverse temperature and"
        " an output weight. From this random start they become a pair.",
        [
            ("Short prompts", 10, "Ten pairs in a prompt: much of the loss remains."),
            ("The page's length", 40, "The setting of the page on this paper."),
            (
                "Long prompts",
                160,
                "Sixteen times as many pairs as in the shortest prompts: the least loss is far lower.",
            ),
        ],
        end=120,
    ),
    "attention-with-markov": Record(
        "fixed-chain",
        "q",
        (0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9),
        0.8,
        {"p": 0.5, "e": 0.5, "w": 0.1, "eta": 1.0, "above": 1e-9},
        _chain,
        [
            {
                "title": "Embedding and weight",
                "axis": "e and w",
                "of": ["e", "w"],
                "text": "The embedding e decides: where it ends at zero, the prediction no longer depends on the"
                " last symbol.",
            },
        ],
        "One layer on a fixed chain of two states, in its canonical numbers e and w. It can predict the chain"
        " exactly. With tied weights and p + q above 1 small starts end at the stationary law instead.",
        [
            (
                "Sticky",
                0.2,
                "p + q = 0.7: the run ends at the prediction of the chain.",
            ),
            (
                "Just above",
                0.6,
                "p + q = 1.1: the run is trapped, though little is lost, as symbols are nearly independent.",
            ),
            (
                "Switching",
                0.8,
                "p + q = 1.3: the run is trapped at the stationary law, far above the floor.",
            ),
        ],
        log=False,
        end=1000,
    ),
    "single-location": Record(
        "single-location",
        "d",
        (10, 100, 1e3, 1e4, 1e5, 1e6),
        1e4,
        {
            "attention": "erf",
            "N": 10,
            "snr": 200.0,
            "spread": 0.5**0.5,
            "scale": 0.1,
            "eta": 0.5,
            "seed": 1,
            "above": 0.06,
        },
        _location,
        [
            {
                "title": "Overlaps",
                "axis": "overlap with the truth",
                "of": ["|κ|", "|ν|"],
                "text": "κ is the overlap of the key vector with the direction that marks the informative token, ν"
                " that of the value vector with the one its label is read from. Both start near zero and end at 1,"
                " up to a sign.",
            },
        ],
        "The label is a function of one token among ten, which attention has to find. Two unit vectors are"
        " trained, with erf in the place of softmax.",
        [
            ("Few dimensions", 10, "A random start is not far from the truth."),
            (
                "Many",
                1e4,
                "The escape takes longer in more dimensions, about like the logarithm of d.",
            ),
            ("A million", 1e6, "A hundred times the dimensions add a few steps more."),
        ],
        against=("Steps", "steps", False),
    ),
    "contextual-generalization": Record(
        "representation",
        "heads",
        (1, 2, 3, 4, 6, 8),
        4,
        {"K": 12, "m": 8, "N": 4, "noise": 0.3, "eta": 1.0, "seed": 0, "above": 1e-6},
        _dictionary,
        [
            {
                "title": "Distance from ridge regression",
                "axis": "distance of coefficients",
                "of": ["distance"],
                "text": "What is learnt are coefficients on the labels of the prompt. With two heads or more they"
                " end as those of ridge regression over the representations; one head has weights of one sign and"
                " cannot.",
            },
        ],
        "Labels of four tokens of a dictionary of twelve, and questions on all of them. Heads of softmax"
        " attention learn to answer as ridge regression on unknown representations would.",
        [
            (
                "One head",
                1,
                "One head has weights of one sign: it stays away from ridge regression.",
            ),
            ("Two heads", 2, "Two heads have both signs, and that is enough."),
            ("As many as labels", 4, "The setting of the page on this paper."),
        ],
        log=False,
    ),
    "task-diversity": Record(
        "linear-attention",
        "tasks",
        (4, 8, 16, 32, 64, 128, 256),
        16,
        {"d": 32, "N": 128, "noise": 0.5, "eta": 0.01, "seed": 0, "above": 1e-4},
        _diversity,
        [
            {
                "title": "New tasks",
                "axis": "loss",
                "of": ["new tasks", "its tasks"],
                "text": "On the tasks that it was trained with the loss falls to the end. On new tasks it falls"
                " nearly as far only if there were many tasks; with fewer tasks than dimensions the layer learns"
                " the tasks themselves.",
            },
        ],
        "One layer of linear attention, trained on a finite number of linear tasks in 32 dimensions. With few"
        " tasks it memorises them, with many it learns in context.",
        [
            (
                "Few tasks",
                8,
                "A quarter of the dimensions: new tasks do much worse than those of training.",
            ),
            ("As many as dimensions", 32, "At the transition."),
            (
                "Many",
                256,
                "Eight times the dimensions: new tasks do as well as those of training, nearly.",
            ),
        ],
        against=("Loss on new tasks at the end", "new tasks", False),
        batch=32,
    ),
}


def recorded(name: str, size: int = 60, quick: bool = False) -> dict[str, Any]:
    """Return one record, for JSON.

    ``size`` is the number of recorded steps of each run, before equal ones are left
    out. A quick record has only the first run.
    """
    record = RECORDS[name]
    values = _values(record)[:1] if quick else _values(record)
    family: Any = list_families()[record.family]
    runs = []
    for value in values:
        problem = family(**record.fixed, **{record.varied: value})
        runs.append(_run(record, problem, size))
    keys = ("family", "varied", "usual", "fixed", "figures", "lead", "log", "batch")
    presets = [
        dict(zip(("name", "value", "sentence"), preset, strict=True))
        for preset in record.presets
    ]
    against = dict(zip(("title", "of", "log"), record.against, strict=True))
    # The order of the entries is that in the file.
    return {
        **{key: getattr(record, key) for key in keys},
        "values": values,
        "presets": presets,
        "against": against,
        "runs": runs,
    }


def _values(record: Record) -> list[float]:
    """Return the values of the varied parameter; whole ones are integers.

    A family may require integers, and 1e4 is a float.
    """
    return [int(value) if value == int(value) else value for value in record.values]


def _run(record: Record, problem: Family, size: int) -> dict[str, Any]:
    """Return the run of a problem, for JSON, at about ``size`` steps."""
    run = problem.simulate()
    last = int(run.t[-1])
    # A run of fewer than 3 steps counts as one of 3, so that some steps are shown.
    end = int(record.end or 10 ** np.ceil(np.log10(3 * max(last, 3))))
    times = np.unique(np.round(np.geomspace(1, end, size)).astype(np.int64))
    states = [run.at(int(t)) for t in (0, *times)]
    numbers = [record.numbers(problem, state) for state in states]
    return {
        "value": getattr(problem, record.varied),
        "steps": run.steps,
        "last": last,
        "floor": _short(run.floor),
        "above": _short(run.epsilon - run.floor),
        "eta": run.eta,
        "t": [0, *times.tolist()],
        # The page subtracts the floor from losses, so they need more digits.
        "loss": [_short(state.loss, 15) for state in states],
        "numbers": {
            name: [_short(of_state[name]) for of_state in numbers]
            for name in numbers[0]
        },
        # More steps on samples would take minutes.
        "sampled": _sampled(problem, run.eta, record.batch, min(end, 3000)),
    }


def _sampled(
    problem: Family, eta: float, batch: int, steps: int, growth: float = 1.1
) -> dict[str, list[float]] | None:
    """Return the losses of plain descent on samples, for JSON.

    They are means over intervals of steps, each about ``growth`` times as long as the
    one before; its time is the middle of the interval. The result is None if the
    problem cannot be sampled.
    """
    try:
        trainer = problem.sampled(batch, 0)
    except ValueError:
        return None
    params = trainer.initial
    losses = []
    for step in range(steps):
        loss, gradient = trainer.evaluate(params, step)
        losses.append(loss)
        params = params - eta * gradient
    edge_count = int(np.log(steps) / np.log(growth))
    edges = np.unique(np.ceil(np.geomspace(1, steps, edge_count)).astype(int))
    # Each interval begins at ``first`` and ends before ``end``.
    intervals = list(zip([0, *edges[:-1]], edges, strict=True))
    # The middle on a logarithmic scale is the geometric mean of the first and the last
    # step. Step 0 is drawn at 1/2.
    middles = [max(0.5, float(np.sqrt(first * (end - 1)))) for first, end in intervals]
    means = [float(np.mean(losses[first:end])) for first, end in intervals]
    return {
        "times": [_short(middle) for middle in middles],
        "losses": [_short(mean) for mean in means],
    }


def _short(value: float, digits: int = 6) -> float:
    """Return a number rounded to ``digits`` digits, which keeps the file small."""
    return float(f"{value:.{digits}g}")


def main() -> None:
    """Make the records that are named, or all, and keep the others in the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *RECORDS])
    parser.add_argument(
        "--out",
        type=Path,
        default=FILE,
        help="file of records, the explorer's unless given",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="the first run of each record: to see that it runs",
    )
    arguments = parser.parse_args()
    file = arguments.out
    names = arguments.names or list(RECORDS)
    records = {}
    if file.exists():
        records = json.loads(file.read_text(encoding="utf-8"))
    for name in names:
        records[name] = recorded(name, quick=arguments.quick)
        print(name, flush=True)
    # Records keep their order in the file, whichever were made anew.
    text = json.dumps(
        {name: records[name] for name in RECORDS if name in records},
        ensure_ascii=False,
        allow_nan=False,
    )
    file.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
