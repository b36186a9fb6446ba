"""Every option of functions of numbers reaches their result, and takes it in the direction that it must."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import regression
from icl_theory.recall import Counts, RecallTask

WORDS = RecallTask(9, 2, 3, alpha=0.2, H=9)
NOISY = icl.linear_attention.PromptLaw(np.array([1.0, 0.5]), N=10, noise=0.5)
RUN = icl.simulate(2.0, 1.0, 4.0, K=4, N=20, above=0.01)
POINT = 0.3 * np.random.default_rng(1).normal(size=(4, 4))


def evaluated(make: Callable[..., Any], scale: float = 0.4) -> Callable[..., Any]:
    """Loss and gradient of what is made, near its start."""

    def found(**options: Any) -> Any:
        risk = make(**options)
        near = np.random.default_rng(2).normal(size=np.shape(risk.initial))
        return (
            risk.initial,
            *risk.evaluate(risk.initial + scale * near, 1),
            risk.floor(),
        )

    return found


# What is called, with which arguments, and other values of them and of its options.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "factors": (
        icl.engine.Factored.random,
        {"d": 4},
        {"d": 5, "rank": 2, "scale": 0.02, "seed": 1},
    ),
    "loop": (
        evaluated(icl.linear_attention.LoopedRisk, 0.05),
        {"d": 3, "N": 9, "depth": 2},
        {"d": 4, "N": 8, "depth": 3, "noise": 0.3, "start": 0.01},
    ),
    "GD++": (
        evaluated(icl.linear_attention.PlusPlusRisk),
        {"d": 3, "N": 9},
        {"start": [0.1, 0.2, 0.3]},
    ),
    "sentences": (
        evaluated(lambda **o: icl.recall.TransformerRisk(WORDS, **o)),
        {"batch": 8, "attention": "relu"},
        {
            "batch": 9,
            "attention": "linear",
            "seed": 1,
            "scale": 0.3,
            "kink": 0.2,
            "trained": ["attention"],
        },
    ),
    "counts in sentences": (
        lambda **o: Counts.sentence(**o).pmf,
        {"H": 9},
        {"H": 8, "density": 0.3, "noise": 0.2},
    ),
    "geometric counts": (
        lambda **o: Counts.geometric(**o).pmf,
        {"mean": 2.0},
        {"mean": 3.0, "most": 7},
    ),
    "fixed counts": (lambda **o: Counts.fixed(**o).pmf, {"c": 2}, {"c": 3, "c_tau": 1}),
    "diversity": (
        icl.linear_attention.task_diversity,
        {"problem": icl.LinearAttention(d=2), "tasks": [1, 2], "draws": 2},
        {"draws": 3, "seed": 1, "tasks": [1, 3]},
    ),
    "posterior": (
        icl.linear_attention.posterior_loss,
        {"law": NOISY, "tasks": [[1.0, 0.0], [0.5, 2.0]], "prompts": 9},
        {"prompts": 8, "seed": 1, "new": True, "tasks": [[1.0, 0.5]]},
    ),
    "ridge": (
        icl.linear_attention.ridge_loss,
        {"law": NOISY, "prompts": 9},
        {"prompts": 8, "seed": 1},
    ),
    "compare": (
        RUN.compare,
        {"losses": 1.01 * RUN.loss, "steps": RUN.t, "batch": 4, "runs": 4},
        {"batch": 8, "runs": 5, "seed": 1, "scale": 1.1},
    ),
    "concentration": (
        icl.papers.regression.concentration_probability,
        {"N": 100, "probs": 9, "imbalance": 0.1},
        {"N": 90, "probs": 8, "imbalance": 0.05},
    ),
    "imbalance": (
        icl.papers.regression.smallest_imbalance,
        {"N": 100, "probs": 9, "confidence": 0.5},
        {"N": 90, "probs": 8, "confidence": 0.4},
    ),
    "failures": (
        icl.recall.failure_probability,
        {"task": WORDS, "M": 20, "epsilon": 0.1},
        {"M": 30, "epsilon": 0.2},
    ),
    "missing": (
        icl.recall.missing_probability,
        {"task": WORDS, "M": 20, "mass": 0.0},
        {"M": 30, "mass": 0.6},
    ),
    "sharpness": (icl.engine.sharpness_along, {"run": RUN, "points": 5}, {"points": 6}),
}


def numbers(found: Any) -> Iterator[float]:
    """All numbers in a result, in order."""
    if isinstance(found, str | bytes) or callable(found):
        return
    if isinstance(found, Mapping):
        found = tuple(found.values())
    if isinstance(found, tuple | list):
        for each in found:
            yield from numbers(each)
    elif dataclasses.is_dataclass(found) and not isinstance(found, type):
        yield from numbers(
            [getattr(found, field.name) for field in dataclasses.fields(found)]
        )
    elif hasattr(found, "data_vars"):
        yield from numbers([np.asarray(found[name]) for name in found.data_vars])
    elif found is not None and np.asarray(found).dtype.kind in "fiub":
        yield from np.ravel(np.asarray(found, dtype=float)).tolist()


def assert_reached(
    call: Callable[..., Any], given: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Each change changes the result, and the same arguments give the same one again.

    A change is another value, or what else must change with it.
    """
    first = [*numbers(call(**given))]
    assert first
    np.testing.assert_array_equal([*numbers(call(**given))], first)
    for option, value in changes.items():
        needed = value if isinstance(value, dict) else {option: value}
        other = [*numbers(call(**{**given, **needed}))]
        alike = len(other) == len(first) and np.allclose(
            other, first, rtol=1e-9, atol=0.0, equal_nan=True
        )
        assert not alike, option


@pytest.mark.parametrize("name", CALLS)
def test_every_option_reaches_the_result(name: str) -> None:
    assert_reached(*CALLS[name])


# ---- counts of prompts, losses of features: the same numbers in another order, merged,
# or split


@pytest.mark.parametrize("N", [np.inf, 7])
@pytest.mark.parametrize(
    "law",
    [icl.tasks.Linear(1.3), icl.tasks.RandomCosine(1.3), icl.tasks.Quadratic(1.3)],
)
def test_features_in_another_order_have_the_same_loss_and_the_gradient_in_that_order(
    N: float, law: Any
) -> None:
    order = np.array([2, 0, 3, 1])
    vectors, probs = (
        np.random.default_rng(3).normal(size=(4, 3)),
        np.array([0.4, 0.3, 0.2, 0.1]),
    )
    one, two = (
        icl.PopulationRisk(
            icl.Features(vectors[at], probs=probs[at]), law, N=N, noise=0.3
        )
        for at in (np.arange(4), order)
    )
    loss, gradient = one.evaluate(POINT)
    again, turned = two.evaluate(POINT[np.ix_(order, order)])
    assert again == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(
        turned, gradient[np.ix_(order, order)], rtol=1e-10, atol=1e-14
    )
    assert two.floor() == pytest.approx(one.floor(), rel=1e-10)
    direction = POINT.T
    np.testing.assert_allclose(
        two.hessian_product(
            POINT[np.ix_(order, order)], direction[np.ix_(order, order)]
        ),
        one.hessian_product(POINT, direction)[np.ix_(order, order)],
        rtol=1e-9,
        atol=1e-13,
    )


@pytest.mark.parametrize("N", [np.inf, 7])
def test_equal_features_are_one_group_and_a_group_can_be_split(N: float) -> None:
    """Loss and floor of K equal features by the exchangeable risk, one group, two groups, and class scores."""
    one = icl.ExchangeableRisk(5, 1.7, N=N, noise=0.3)
    law = icl.tasks.KernelTask(1.7 * np.eye(5))  # ½ E (f_k - f_l)² = 1.7
    whole = icl.PopulationRisk(icl.Features.simplex(5, 1.0), law, N=N, noise=0.3)
    groups = [
        icl.SymmetricRisk(sizes, [0.2] * len(sizes), 1.7, N=N, noise=0.3)
        for sizes in ([5], [2, 3], [1, 2, 2])
    ]
    for u in (0.0, 0.8, 3.0, -1.0):
        assert whole.loss(one.scores(u)) == pytest.approx(one.loss(u), rel=1e-11)
    for risk in groups:
        assert risk.floor() == pytest.approx(one.floor(), rel=1e-9)
        run = icl.descend(risk, 0.7, steps=9)
        same = icl.descend(whole, 0.7, steps=9)
        np.testing.assert_allclose(run.loss, same.loss, rtol=1e-10)
        np.testing.assert_allclose(
            run.loss, icl.descend(one, 0.7, steps=9).loss, rtol=1e-10
        )


# ---- runs of other models


STRANGE: dict[str, Any] = {
    "a recall run": icl.Recall(max_steps=2).simulate(),
    "a parabola": icl.FixedChain(max_steps=2).simulate(),
    "no run": 3.0,
    "no run at all": None,
}
TAKERS: dict[str, Callable[[Any], Any]] = {
    "crosscheck": lambda x: icl.crosscheck(x, N=20, batch=4),
    "sampled_phases": lambda x: regression.sampled_phases(x, N=20),
    "query_phases": regression.query_phases,
    "check_bounds": icl.papers.regression.check_bounds,
}


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_no_run_of_regression_is_refused_in_words(
    name: str, strange: str
) -> None:
    with pytest.raises(ValueError, match=r"^(\w+ = .*: must be|the run|this run)"):
        TAKERS[name](STRANGE[strange])


def test_a_learning_rate_is_typed_as_a_word_if_and_only_if_a_word_is_accepted() -> None:
    """`eta="auto"` is part of a signature if the function takes it, and no part of it if it is refused."""
    calls: dict[Callable[..., Any], Callable[[], Any]] = {
        icl.simulate: lambda: icl.simulate(1.0, 1.0, "auto", K=3, epsilon=1e-1),
        icl.descend: lambda: icl.descend(
            icl.ExchangeableRisk(5, 2.0, 20), "auto", steps=1
        ),  # type: ignore[arg-type]
        icl.recall.simulate: lambda: icl.recall.simulate(eta="auto"),  # type: ignore[arg-type]
        icl.regression.compare_coordinates: lambda: icl.regression.compare_coordinates(
            1.0,
            1.0,
            "auto",  # type: ignore[arg-type]
            K=3,
            epsilon=1e-1,
        ),
    }
    for function, call in calls.items():
        typed = "auto" in str(inspect.signature(function).parameters["eta"].annotation)
        if typed:
            assert call().eta > 0.0
        else:
            with pytest.raises(ValueError, match="eta = 'auto'"):
                call()
