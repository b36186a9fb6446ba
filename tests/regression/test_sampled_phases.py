"""Phases of sampled runs beside exact ones, and the lemmas on a sampled run within its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.phases import (
    SampledPhases,
    _Path,
    sampled_phases,
)

SHARP = icl.simulate(2.0, 1.0, 2.0, K=5, epsilon=0.02)
SHORT = icl.simulate(2.0, 1.0, 2.0, K=5, epsilon=0.1)


def within(found: SampledPhases) -> bool:
    return all(abs(check.z) < 4.0 for check in found.checks)


@pytest.mark.slow
def test_sampled_phases_are_the_exact_ones_flat_and_sharp() -> None:
    regimes = []
    for L, eta, epsilon in ((0.2, 40.0, 1e-3), (2.0, 2.0, 5e-3)):
        found = sampled_phases(
            icl.simulate(L, 1.0, eta, K=10, epsilon=epsilon), N=100, runs=16
        )
        regimes.append(found.exact.regime)
        assert within(found)
    assert regimes == ["flat", "sharp"]


def test_the_exact_column_is_the_run_with_fractions_of_steps() -> None:
    found = sampled_phases(SHARP, N=30, runs=3, batch=64)
    values = {check.name: check.population for check in found.checks}
    phases = found.exact.phases
    assert phases is not None
    assert [int(np.ceil(x)) for x in np.cumsum([values["T_I"], values["T_II"]])] == [
        phases.I[1],
        phases.II[1],
    ]
    assert int(np.ceil(values["T_ε"])) == found.exact.steps
    assert found.exact.steps is not None
    before, after = (found.exact.at(found.exact.steps - back) for back in (1, 0))
    share = np.interp(-found.exact.epsilon, [-before.loss, -after.loss], [0.0, 1.0])
    assert values["T_ε"] == pytest.approx(before.t + share, rel=1e-9)
    own = np.diagonal(
        found.exact.risk.scores(float(found.exact.at(phases.I[1]).params))
    ).mean()  # type: ignore[union-attr]
    assert values["growth in I"] == pytest.approx(own / phases.I[1], rel=1e-12)


@pytest.mark.parametrize("place", [0.25, 1.0, 6.9, 40.5, 98.75])
def test_a_straight_line_passes_zero_where_it_does(place: float) -> None:
    path = _Path(SHARP.risk, lambda t: np.zeros(()), 100)  # type: ignore[arg-type]
    assert path.crossing(lambda t: place - t) == pytest.approx(place, rel=1e-12)
    assert path.crossing(lambda t: 3.0 * (place - t), last=True) == pytest.approx(
        place, rel=1e-12
    )


def test_a_height_that_falls_twice_has_a_first_and_a_last_passage() -> None:
    path = _Path(SHARP.risk, lambda t: np.zeros(()), 4000)  # type: ignore[arg-type]

    def height(t: int) -> float:
        return min(t + 3.0, 30.5 - t) if t < 200 else 600.25 - t

    assert path.crossing(height) == pytest.approx(30.5, rel=1e-12)
    assert path.crossing(height, last=True) == pytest.approx(600.25, rel=1e-12)
    assert (
        path.crossing(lambda t: 1.0)
        == path.crossing(lambda t: 1.0, last=True)
        == math.inf
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"coordinates": "embedding"},
        {"probs": [0.3, 0.25, 0.2, 0.15, 0.1]},
        {"noise": 0.3},
    ],
)
def test_any_problem_of_simulate_is_sampled(changes: dict[str, object]) -> None:
    run = icl.simulate(2.0, 1.0, 2.0, K=5, N=30, epsilon=0.1, **changes)  # type: ignore[arg-type]
    found = sampled_phases(run, runs=6, batch=256)
    assert found.checks[-1].name.startswith("growth")
    assert within(found)


def test_a_wrong_learning_rate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CountedRisk.evaluate

    def wrong(
        risk: CountedRisk, params: np.ndarray, step: int = 0
    ) -> tuple[float, np.ndarray]:  # type: ignore[type-arg]
        loss, gradient = right(risk, params, step)
        return loss, 1.03 * gradient

    monkeypatch.setattr(CountedRisk, "evaluate", wrong)
    assert not sampled_phases(SHARP, N=30, runs=12).passed


def test_crosscheck_shows_them() -> None:
    found = icl.crosscheck(
        SHARP, N=100, phases=4, precision=0.1, batches=8, runs=4, steps=10
    )
    assert "4 sampled runs" in found.note
    assert [check.name for check in found.checks if check.name.startswith("T_")] == [
        "T_I",
        "T_II",
        "T_III",
        "T_ε",
    ]


@pytest.mark.parametrize("changed", ["N", "batch", "phases", "seed"])
def test_each_option_of_a_crosscheck_reaches_its_phases(changed: str) -> None:
    """None is lost on the way: the rows are those of sampled runs with the same options, none of them a default."""
    given = {"N": 30, "batch": 64, "phases": 3, "seed": 3} | {
        changed: {"N": 25, "seed": 4}.get(changed, 5)
    }
    found = icl.crosscheck(
        SHORT, precision=0.1, batches=3, points=1, runs=3, steps=2, **given
    )  # type: ignore[arg-type]
    alone = sampled_phases(
        SHORT,
        N=given["N"],
        runs=given["phases"],
        batch=given["batch"],
        seed=given["seed"],
    )
    assert alone.exact.info["N"] == pytest.approx(given["N"])
    assert found.checks[-len(alone.checks) :] == alone.checks


@pytest.mark.parametrize(
    ("run", "options", "message"),
    [
        (
            icl.descend(icl.ExchangeableRisk(4, 2.0), 1.0, steps=5),
            {},
            "one of simulate",
        ),
        (SHARP, {"runs": 2}, "runs = 2"),
        (icl.simulate(2.0, 1.0, 2.0, K=5, N=30, epsilon=0.1), {"N": 40}, "N = 40"),
        (
            icl.simulate(2.0, 1.0, 2.0, K=5, epsilon=1e-9),
            {"N": 3},
            "reaches its target",
        ),
        (icl.simulate(2.0, 1.0, 1e3, K=5, epsilon=0.02), {}, "in two steps or more"),
        (
            icl.simulate(0.3, 1.0, 60.0, K=5, N=5, epsilon=0.0105),
            {"batch": 1, "runs": 3},
            "batch = 1",
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused(
    run: icl.Trajectory, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        sampled_phases(run, **options)


def test_a_risk_has_no_phases_to_check() -> None:
    with pytest.raises(ValueError, match="phases = 4"):
        icl.crosscheck(
            SHARP.risk, N=30, phases=4, precision=0.1, batches=8, runs=4, steps=10
        )  # type: ignore[arg-type]


def problem(**changes: object) -> icl.Regression:
    given: dict[str, object] = {"L": 2.0, "delta": 1.0, "eta": 1.0, "K": 4, "N": 30}
    return icl.Regression(**(given | changes))


@pytest.mark.parametrize("coordinates", ["class", "embedding", "factored"])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_sampled_run_obeys_the_lemmas_within_its_noise(
    coordinates: str, noise: float
) -> None:
    run = icl.descend(
        problem(coordinates=coordinates, noise=noise).sampled(128, 3), 1.0, steps=200
    )
    checks = {check.name: check for check in icl.check_bounds(run)}
    assert checks["Lemma 1, sampled"].holds
    assert checks["Lemma 2, sampled"].holds
    assert checks["Lemma 2, identity"].holds
    assert all(check.holds is not False for check in checks.values())


def test_a_trainer_of_other_prompts_is_noticed() -> None:
    trainer = icl.SampledRisk(
        icl.Features.simplex(4, 1.0), icl.tasks.Exchangeable(2.0), 30, 512, 0
    )
    run = icl.descend(trainer, 1.0, steps=200)
    run.risk = icl.SampledRisk(
        trainer.features, icl.tasks.Exchangeable(2.3), 30, 512, 0
    )
    from icl_theory.papers.regression.theorems.checks import (
        population_of,
        within_noise,
    )

    right = population_of(trainer)
    assert right is not None
    assert [check.holds for check in within_noise(run, right)] == [False, False]


def test_fixed_prompts_are_no_fresh_ones() -> None:
    trainer = icl.SampledRisk(
        icl.Features.simplex(4, 1.0), icl.tasks.Exchangeable(2.0), 30, 20, 0, dataset=40
    )
    checks = {
        check.name: check
        for check in icl.check_bounds(icl.descend(trainer, 1.0, steps=60))
    }
    assert checks["Lemma 1, sampled"].holds is None
    assert "fixed set" in checks["Lemma 1, sampled"].note


def test_noisy_tokens_have_no_population_to_be_held_against() -> None:
    trainer = icl.SampledRisk(
        icl.Features.simplex(4, 1.0),
        icl.tasks.RandomFourier(2.0),
        30,
        20,
        0,
        token_noise=0.1,
    )
    with pytest.raises(ValueError, match="SampledRisk"):
        icl.check_bounds(icl.descend(trainer, 0.1, steps=5))
