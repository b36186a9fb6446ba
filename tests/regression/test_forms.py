"""Groups of features and Gaussian inputs as families, against the risks of single features and single runs."""

import json
import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.regression import GaussianRegression, GroupedRegression
from icl_theory.testing import check_family

GROUPED = [
    GroupedRegression(
        L=2.0, delta=1.0, sizes=(1, 3), shares=(0.4, 0.6), eta=4.0, above=1e-2
    ),
    GroupedRegression(
        L=1.0, delta=2.0, sizes=(2, 2), shares=(0.3, 0.7), N=12, noise=0.5, above=1e-2
    ),
]


@pytest.mark.parametrize("problem", GROUPED, ids=["N = inf", "N = 12 with noise"])
def test_groups_take_the_steps_of_single_features(problem: GroupedRegression) -> None:
    probs = np.repeat(
        np.asarray(problem.shares) / np.asarray(problem.sizes), problem.sizes
    )
    single = icl.Regression(
        L=problem.L,
        delta=problem.delta,
        eta=problem.rate(),
        K=len(probs),
        N=problem.N,
        noise=problem.noise,
        probs=probs,
        above=problem.above,
    )
    one, other = problem.simulate(), single.simulate()
    assert one.steps == other.steps
    assert one.phases == other.phases
    assert problem.measured(one)["attends_last"] == one.phases.present()["I"][1]  # type: ignore[union-attr]
    assert one.loss[0] == pytest.approx(other.loss[0], rel=1e-12)
    assert problem.stable_rate() == pytest.approx(single.stable_rate(), rel=1e-12)


@pytest.mark.parametrize("problem", GROUPED, ids=["N = inf", "N = 12 with noise"])
def test_the_stable_rate_lowers_the_loss_at_every_step(
    problem: GroupedRegression,
) -> None:
    run = icl.descend(problem.risk(), problem.stable_rate(), steps=400)
    losses = np.array([run.at(step).loss for step in range(401)])
    assert (np.diff(losses) < 0).all()


def test_gaussian_inputs_take_the_steps_of_the_scalar_recursion() -> None:
    """Descent from 0 stays at a multiple c of the identity: c moves by η times the slope of the loss over d."""
    problem = GaussianRegression(L=2.0, d=3, curved=0.4, above=1e-8)
    law, eta, d = problem.risk().law, problem.rate(), 3

    def loss(c: float) -> float:
        quartic = (
            (d * c * c) ** 2
            + 2 * d * c**4
            - 2 * (d * c) ** 2
            - 2 * d * c * c
            + d * (d + 1)
        )
        return 0.5 * law.sigma_a**2 * quartic + 0.5 * law.sigma_b**2 * d * (1 - c) ** 2

    best = min(loss(c) for c in np.linspace(0.8, 1.0, 200_001))
    c, steps = 0.0, 0
    while loss(c) - best > 1e-8:
        c -= eta / d * (loss(c + 1e-6) - loss(c - 1e-6)) / 2e-6
        steps += 1
    assert problem.simulate().steps == steps


def test_the_steps_that_are_expected_on_gaussian_inputs_are_those_of_the_end_of_a_run() -> (
    None
):
    eta = 0.01 * GaussianRegression(L=2.0, d=3).stable_rate()
    ends = [
        GaussianRegression(L=2.0, d=3, eta=eta, above=above) for above in (1e-6, 1e-10)
    ]
    (first, last), expected = (
        [end.simulate().steps for end in ends],
        [end.expected_steps() for end in ends],
    )
    assert expected[1] - expected[0] == pytest.approx(last - first, rel=0.01)


def test_both_are_sound_families() -> None:
    check_family(GroupedRegression, rows=False, L=1.0, delta=1.0, N=20, above=1e-2)
    check_family(GaussianRegression, rows=False, L=1.0, d=2)


def test_commands_sweep_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                "gaussian-regression",
                "sweep",
                "--L",
                "1,2",
                "--d",
                "3",
                "--quiet",
                "--json",
            ]
        )
    found = json.loads(capsys.readouterr().out)
    assert found["data_vars"]["steps"]["data"] == [
        GaussianRegression(L=L, d=3).simulate().steps for L in (1.0, 2.0)
    ]
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                "grouped-regression",
                "simulate",
                "--L",
                "2",
                "--delta",
                "1",
                "--sizes",
                "2,2",
                "--shares",
                "0.5,0.5",
                "--json",
            ]
        )
    assert json.loads(capsys.readouterr().out)["info"]["sizes"] == [2, 2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: GroupedRegression(L=1.0, delta=1.0, sizes=(1, 2), shares=(1.0,)),
            "shares",
        ),
        (lambda: GroupedRegression(L=1.0, delta=1.0, sizes=(), shares=()), "sizes"),
        (lambda: GroupedRegression(L=1.0, delta=1.0, sizes=(0, 2)), "sizes = 0"),
        (
            lambda: GroupedRegression(L=1.0, delta=1.0).sampled(8),
            "N = inf: must be finite",
        ),
        (
            lambda: GroupedRegression(L=1.0, delta=1.0, sizes=(1, 10**4), N=9).sampled(
                8
            ),
            "at most 1000 features",
        ),
        (lambda: GaussianRegression(L=1.0, curved=1.5), "curved = 1.5"),
        (lambda: GaussianRegression(L=math.inf), "L = inf"),
    ],
)
def test_refuses_what_contradicts_itself(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]
