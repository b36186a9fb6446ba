"""Skipping where modes rest beside a slow tail: implicit steps against single steps and against the tail's law."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from numpy.polynomial import polynomial

import icl_theory as icl
from icl_theory import tasks
from icl_theory.engine.blocks import Blocks
from icl_theory.engine.collocation import inverse_or_nan, radau, step_weights
from icl_theory.engine.rules import rule_of
from icl_theory.engine.skip import oscillation_free_slope
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.strides import NODES


class Resting(icl.Risk):
    """exp(-u) + ½ λ (v - ½u - bend sin u)²: v rests on a curve along which u creeps like ln t."""

    initial = np.zeros(2)

    def __init__(self, rate: float, bend: float = 0.0) -> None:
        self.rate, self.bend, self.count = rate, bend, 0

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        self.count += 1
        u, v = params.tolist()
        with np.errstate(all="ignore"):
            off, tail = v - 0.5 * u - self.bend * float(np.sin(u)), float(np.exp(-u))
        slope = self.rate * off
        return tail + 0.5 * slope * off, np.array(
            [-tail - slope * (0.5 + self.bend * float(np.cos(u))), slope]
        )


@pytest.mark.parametrize("stages", range(4, 10))
def test_nodes_and_weights_are_right_to_the_last_digit(stages: int) -> None:
    """At the nodes P_s = P_(s-1), and the weights integrate every power below s from 0 to each of them."""
    scheme = radau(stages)
    with mpmath.workdps(40):
        nodes = [
            mpmath.findroot(
                lambda x: (
                    mpmath.legendre(stages, 2 * x - 1)
                    - mpmath.legendre(stages - 1, 2 * x - 1)
                ),
                near,
            )
            for near in scheme.nodes.tolist()
        ]
        assert nodes[0] > 0
        assert (
            np.diff(nodes).min() > 0.01
        )  # all zeros that a polynomial of this degree has
        powers = mpmath.matrix([[x**k for x in nodes] for k in range(stages)])
        integrals = mpmath.matrix(
            [[x ** (k + 1) / (k + 1) for x in nodes] for k in range(stages)]
        )
        weights = (mpmath.inverse(powers) * integrals).T
        assert (
            max(
                abs(ours - x)
                for ours, x in zip(scheme.nodes.tolist(), nodes, strict=True)
            )
            <= 2.0**-53
        )
        assert (
            max(
                abs(ours - weights[place])
                for place, ours in np.ndenumerate(scheme.weights)
            )
            <= 2.0**-51
        )


def test_the_scheme_integrates_polynomials_up_to_twice_its_stages_less_two() -> None:
    scheme = radau(NODES)
    for degree in range(2 * NODES - 1):
        assert scheme.weights[-1] @ scheme.nodes**degree == pytest.approx(
            1.0 / (degree + 1), rel=1e-13
        )
    values = polynomial.polyval(np.append(0.0, scheme.nodes), np.arange(NODES + 1.0))
    at_one = (scheme.coefficients @ values).sum()
    assert at_one == pytest.approx(np.arange(NODES + 1.0).sum(), rel=1e-12)


@pytest.mark.parametrize(
    ("turned", "bend"), [(0.02, 0.1), (0.3, 0.1), (0.3, 0.0), (0.9, 0.0), (1.4, 0.0)]
)
def test_beside_a_resting_mode_no_state_is_off_by_more_than_estimated(
    turned: float, bend: float
) -> None:
    """η times the curvature of the resting mode, (1 + ½²) λ, up to oscillations that die out."""
    risk = Resting(turned / 1.25, bend)
    # Of 20,000 steps about 2,000 are taken one by one, and the others skipped.
    exact = icl.descend(risk, 1.0, steps=20_000)
    fast = icl.descend(risk, 1.0, steps=20_000, method="fast")
    assert fast.states_error is not None
    assert fast.states_error <= 1e-7
    apart = np.abs(
        exact.states[np.isin(exact.t, fast.t)] - fast.states[np.isin(fast.t, exact.t)]
    ).max()
    assert apart <= fast.states_error


def test_modes_are_those_of_the_derivative_of_a_step_in_the_metric() -> None:
    class Weighted(Resting):
        metric = np.array([0.25, 9.0])

    risk, state, h = Weighted(0.5, 0.1), np.array([1.0, 0.3]), 1e-5
    descent = UpdateMap(risk, 0.7, rule_of("gd"))
    blocks, only = Blocks(descent), np.zeros(1, dtype=int)
    modes = blocks.modes(blocks.rows(state), np.zeros(1))
    assert modes is not None
    # a row of a rule without memory holds one number for each mode
    vectors = modes.from_components(np.eye(2)[None, :, None], only)[0]
    np.testing.assert_allclose(
        modes.to_components(vectors[None], only)[0, :, 0], np.eye(2), atol=1e-12
    )
    ahead, behind = (descent.moves(state + sign * h * vectors) for sign in (1.0, -1.0))
    change = (ahead - behind) / (2.0 * h)
    np.testing.assert_allclose(
        change, -modes.rates[0][:, None] * vectors, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("turned", [0.3, 1.4])
def test_a_resting_mode_costs_nothing_per_step(turned: float) -> None:
    """The slow motion has the closed form η t exp(-u) → 1 + ½²; explicit steps gave up near t = 10⁷."""
    risk = Resting(turned / 1.25)
    run = icl.descend(risk, 1.0, steps=10**12, method="fast")
    assert run.t[-1] == 10**12
    assert risk.count < 10_000
    assert 1e12 * math.exp(-run.params[0]) == pytest.approx(1.25, rel=1e-7)
    assert run.params[1] == pytest.approx(0.5 * run.params[0], abs=1e-9)


def test_a_mode_that_the_map_does_not_contract_is_never_taken_to_rest() -> None:
    """Just below ηλ = 2 its oscillation dies too slowly to be left out, and above it grows."""
    below = icl.descend(Resting(1.99 / 1.25), 1.0, steps=10_000, method="fast")
    exact = icl.descend(Resting(1.99 / 1.25), 1.0, steps=10_000)
    shared = np.isin(exact.t, below.t)
    assert np.abs(
        exact.states[shared] - below.states[np.isin(below.t, exact.t)]
    ).max() <= (below.states_error or 1e-12)
    above = icl.descend(Resting(2.05 / 1.25, bend=0.05), 1.0, steps=3000, method="fast")
    assert above.states_error is None
    assert above.params == pytest.approx(
        icl.descend(Resting(2.05 / 1.25, bend=0.05), 1.0, steps=3000).params
    )


def test_a_mode_that_sharpens_until_it_leaves_its_rest_is_not_skipped_over() -> None:
    """Its curvature grows with u: from ηλ = 2 on it oscillates, and this holds u back."""

    class Sharpening(icl.Risk):
        initial = np.zeros(2)

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            u, v = params.tolist()
            off, rate = v - 0.5 * u, 0.96 + 0.08 * u
            with np.errstate(
                all="ignore"
            ):  # far from the valley, where steps are tried
                tail = float(np.exp(-u))
            return tail + 0.5 * rate * off**2, np.array(
                [-tail + 0.04 * off**2 - 0.5 * rate * off, rate * off]
            )

    exact, fast = (
        icl.descend(Sharpening(), 1.0, steps=8_000, method=way)
        for way in ("exact", "fast")
    )
    assert 1.25 * (0.96 + 0.08 * exact.states[:, 0].max()) == pytest.approx(
        2.0, abs=0.1
    )
    apart = np.abs(
        exact.states[np.isin(exact.t, fast.t)] - fast.states[np.isin(fast.t, exact.t)]
    ).max()
    assert fast.states_error is not None
    assert apart <= fast.states_error


def test_finite_prompts_of_unequal_tasks_reach_the_max_margin_tail() -> None:
    """Four points on a line, N = 3: η t p_k (ℓ_k - inf ℓ_k) → 59/3, 1, 1, 59/3 times (K - 1)/4K."""
    features = icl.Features(np.array([0.0, 1.0, 2.2, 3.5])[:, None], np.full(4, 0.25))
    risk = icl.PopulationRisk(features, tasks.Linear(1.0), 3)
    run = icl.descend(risk, 1.0, steps=10**11, method="fast")
    assert run.t[-1] == 10**11
    early, late = int(np.searchsorted(run.t, 10**10)), len(run.t) - 1
    fallen = risk.loss_per_query(run.states[early]) - risk.loss_per_query(
        run.states[late]
    )
    constant = 0.25 * fallen / (1.0 / run.t[early] - 1.0 / run.t[late]) / (3.0 / 16.0)
    np.testing.assert_allclose(constant, [59.0 / 3.0, 1.0, 1.0, 59.0 / 3.0], rtol=2e-4)


def test_modes_of_columns_are_those_of_the_whole_hessian() -> None:
    """The columns of class scores do not meet: a product serves one parameter of each."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 4))
    features = icl.Features.simplex(4, 1.0, rng.dirichlet(np.ones(4)))
    risk = icl.PopulationRisk(features, tasks.KernelTask(values @ values.T))
    blocks, state = Blocks(UpdateMap(risk, 2.0, rule_of("gd"))), rng.normal(size=(4, 4))
    found = blocks.modes(blocks.rows(state), np.zeros(4))
    assert found is not None
    whole = np.array(
        [np.ravel(risk.hessian_product(state, e.reshape(4, 4))) for e in np.eye(16)]
    )
    whole = whole.reshape(4, 4, 4, 4)
    for k in range(4):
        mine = found.vectors[k] * found.rates[k] @ found.vectors[k].T
        np.testing.assert_allclose(mine, 2.0 * whole[:, k, :, k], atol=1e-13)
        others = np.delete(whole[:, k], k, axis=2)
        np.testing.assert_allclose(others, 0.0, atol=1e-15)


def test_a_stride_that_is_far_shorter_than_a_step_of_the_map_has_no_weights() -> None:
    """A polynomial on it would be followed far beyond its ends; the matrix of the equations becomes singular."""
    scheme, x = radau(7), 9.0
    for stride in (1e-6, 1e-9, 1e-15):
        assert np.isnan(step_weights(scheme, x + scheme.nodes * stride, stride)).all()
    strides = np.array([1e-9, 0.1])
    both = step_weights(scheme, x + scheme.nodes * strides[:, None], strides[:, None])
    assert np.isnan(both[0]).all()
    assert np.isfinite(both[1]).all()


@pytest.mark.parametrize(
    ("rate", "fall"), [(1.9, 0.5 * (1.0 - 0.9**4) * 8.55), (0.5, 2.25)]
)
def test_the_slope_of_an_oscillation_is_half_the_fall_in_two_steps(
    rate: float, fall: float
) -> None:
    """½ λ x²: a step takes x to (1 - λ) x. Without an oscillation the slope is that along the gradient, λ² x²."""

    class Bowl(icl.Risk):
        initial = np.array([3.0])

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 0.5 * rate * float(params @ params), rate * params

    descent = UpdateMap(Bowl(), 1.0, rule_of("gd"))
    point = descent.point(np.array([3.0]), 0)
    assert oscillation_free_slope(descent, point) == pytest.approx(fall, rel=1e-12)


def test_one_singular_matrix_does_not_cost_the_inverses_of_the_others() -> None:
    regular = np.array([[2.0, 1.0], [1.0, 1.0]])
    stack = np.stack([regular, np.ones((2, 2)), np.full((2, 2), np.nan), 3.0 * regular])
    inverses = inverse_or_nan(stack)
    np.testing.assert_allclose(inverses[0] @ regular, np.eye(2), atol=1e-14)
    np.testing.assert_allclose(inverses[3], inverses[0] / 3.0, rtol=1e-14)
    assert np.isnan(inverses[1:3]).all()
