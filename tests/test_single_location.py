"""Single-location regression: samples of whole prompts, closed forms, differences, and the posterior mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import erf

import icl_theory as icl
from icl_theory.papers.single_location import statements as papers
from icl_theory.testing import check_family, check_risk


def errors(
    problem: icl.SingleLocation, params: Any, count: int, rng: np.random.Generator
) -> Any:
    """Half squared errors on drawn prompts, and the weights of attention on the informative token."""
    N, attention, found, seen = problem.N, problem.attention, [], []
    if attention == "softmax":
        k, v, bias = (
            np.array([params[0], 0, params[1], 0]),
            np.array([0, params[2], 0, params[3]]),
            params[4],
        )
    else:
        (k, v), bias = params / np.linalg.norm(params, axis=1)[:, None], 0.0
    for _ in range(count // 50_000):
        X = rng.normal(size=(50_000, N, 4))
        first = rng.random(len(X)) < (
            1.0 / N if problem.first is None else problem.first
        )
        place = np.where(first, 0, rng.integers(1, N, len(X)))
        own = (
            problem.spread * X[np.arange(len(X)), place]
            + np.sqrt(problem.snr) * np.eye(4)[0]
        )
        X[np.arange(len(X)), place] = own
        y = own[:, 1] + problem.noise * rng.normal(size=len(X))
        s, u = X @ k, X @ v
        if attention == "softmax":
            s[:, 0] += bias
            a = np.exp(s - s.max(axis=1, keepdims=True))
            a /= a.sum(axis=1, keepdims=True)
        else:
            a = problem.scale * s if attention == "linear" else erf(problem.scale * s)
        found.append(0.5 * (np.sum(a * u, axis=1) - y) ** 2)
        seen.append(a[np.arange(len(X)), place])
    return np.concatenate(found), np.concatenate(seen)


CASES = [  # attention, N, snr, spread, scale, first
    ("erf", 2, 1.0, 1.0, 0.5, None),
    ("erf", 7, 9.0, 0.7, 1.3, None),
    ("erf", 3, 0.0, 2.0, 3.0, None),
    ("linear", 5, 4.0, 0.5, 0.7, None),
    ("softmax", 2, 1.0, 1.0, 1.0, None),
    ("softmax", 7, 9.0, 0.7, 1.0, 0.4),
    ("softmax", 4, 0.0, 2.0, 1.0, 0.05),
]


@pytest.mark.parametrize(
    "count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", CASES)
def test_samples_of_whole_prompts(case: Any, count: int) -> None:
    """Off the manifold for erf and linear; random sizes, signs and biases for softmax."""
    names = ("attention", "N", "snr", "spread", "scale", "first")
    problem, rng = (
        icl.SingleLocation(**dict(zip(names, case, strict=True)), noise=0.3),
        np.random.default_rng(1),
    )
    params = rng.normal(size=5 if case[0] == "softmax" else (2, 4))
    full = problem if case[0] == "softmax" else problem.changed(start="sphere")
    losses, seen = errors(problem, params, count, rng)
    assert abs(losses.mean() - full.risk().loss(params)) < 4.0 * losses.std() / np.sqrt(
        len(losses)
    )
    if (
        case[0] == "softmax"
    ):  # the slope in ν at v = 0 is -γ² times the attention on the informative token
        slope = problem.risk().gradient([*params[:2], 0.0, 0.0, params[4]])[2]
        assert abs(
            seen.mean() + slope / problem.spread**2
        ) < 4.0 * seen.std() / np.sqrt(len(seen))


@pytest.mark.parametrize(
    # Spread 20 takes ten times as long as spread 8.
    "spread",
    [0.3, 1.0, 8.0, pytest.param(20.0, marks=pytest.mark.slow)],
)
def test_softmax_over_two_tokens_is_one_integral(spread: float) -> None:
    """The attention on the informative token is logistic in the difference of two normal scores."""
    problem = icl.SingleLocation(N=2, snr=2.0, spread=spread, noise=0.1)
    kappa, beside, nu, rest, bias = params = np.array([0.9, 1.7, 0.6, 0.4, 0.5])
    mean, width, size = (
        kappa * 2.0**0.5,
        np.hypot(kappa, beside) * np.hypot(1.0, spread),
        nu**2 + rest**2,
    )
    z, loss = np.linspace(-12.0, 12.0, 40_001), 0.5 * (spread**2 + 0.1**2)
    weight = np.exp(-0.5 * z * z) * (z[1] - z[0]) / np.sqrt(2.0 * np.pi)
    for place in (bias, -bias):  # each place is the first one in half of the prompts
        a = 1.0 / (1.0 + np.exp(-(mean + place + width * z)))
        square = 0.5 * size * ((a * spread) ** 2 + (1.0 - a) ** 2) - nu * spread**2 * a
        loss += 0.5 * float(weight @ square)
    assert problem.risk().loss(params) == pytest.approx(loss, rel=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_sampled_prompts_have_the_loss_and_the_gradient_as_means(case: Any) -> None:
    """Within 4 standard errors over 120 batches, each of whose gradients is that of differences."""
    names = ("attention", "N", "snr", "spread", "scale", "first")
    problem = icl.SingleLocation(**dict(zip(names, case, strict=True)), noise=0.3)
    full = problem.changed(d=6)
    if case[0] != "softmax":
        full = full.changed(start="sphere")
    risk, trainer = full.unreduced(), full.set_trainer(500, seed=4)
    assert np.size(trainer.initial) == (5 if case[0] == "softmax" else 12)
    params = np.random.default_rng(3).normal(size=risk.initial.shape)
    drawn = [trainer.evaluate(params, step) for step in range(120)]
    losses, slopes = (
        np.array([loss for loss, _ in drawn]),
        np.array([slope for _, slope in drawn]),
    )
    for found, exact in ((losses, risk.loss(params)), (slopes, risk.gradient(params))):
        assert np.all(
            np.abs(found.mean(axis=0) - exact)
            < 4.0 * found.std(axis=0, ddof=1) / 120.0**0.5 + 1e-14
        )
    for at in np.ndindex(params.shape):
        move = np.zeros_like(params)
        move[at] = 1e-5
        rise = (
            trainer.evaluate(params + move, 7)[0]
            - trainer.evaluate(params - move, 7)[0]
        )
        assert slopes[7][at] == pytest.approx(
            rise / 2e-5, rel=1e-6, abs=1e-8 * np.abs(slopes[7]).max()
        )


@pytest.mark.parametrize("attention", ["softmax", "erf"])
def test_the_trainer_of_a_risk_stays_on_the_manifold(attention: str) -> None:
    risk = icl.SingleLocation(attention=attention, N=3, d=20).risk()
    trainer: Any = risk
    trainer = trainer.sampled(50, seed=1)
    assert trainer.stochastic
    np.testing.assert_array_equal(trainer.initial, risk.initial)
    check_risk(trainer)


def in_four_dimensions(params: Any) -> Any:
    """k and v, (2, d), by their products with k*, v* and two more axes, (2, 4)."""
    rest = np.linalg.qr(params[:, 2:].T)[1].T
    return np.column_stack([params[:, :2], rest])


@pytest.mark.parametrize("attention", ["erf", "linear"])
def test_the_risk_in_all_dimensions_depends_on_products_alone(attention: str) -> None:
    problem = icl.SingleLocation(attention=attention, N=4, d=30, start="sphere")
    params = np.random.default_rng(5).normal(size=(2, 30))
    whole = problem.unreduced()
    reduced = in_four_dimensions(params)
    assert whole.loss(params) == pytest.approx(problem.risk().loss(reduced), rel=1e-12)
    assert np.linalg.norm(whole.gradient(params)) == pytest.approx(
        np.linalg.norm(problem.risk().gradient(reduced)), rel=1e-9
    )


@pytest.mark.parametrize("attention", ["softmax", "erf"])
def test_the_sampler_of_a_problem_has_all_its_dimensions(attention: str) -> None:
    """On the manifold its loss is that of the run, and it leaves the manifold."""
    problem = icl.SingleLocation(attention=attention, N=3, d=12, noise=0.2)
    trainer = problem.sampled(20_000, seed=3)
    assert np.size(trainer.initial) == (25 if attention == "softmax" else 24)
    losses = trainer.losses_on(trainer.initial, trainer.prompts(0))
    exact = problem.risk().loss(problem.risk().initial)
    assert abs(losses.mean() - exact) < 4.0 * losses.std() / len(losses) ** 0.5
    after = icl.descend(problem.sampled(20, seed=3), 0.1, steps=1).params.ravel()
    assert np.count_nonzero(np.abs(after) > 1e-6) >= 24
    check_risk(problem.sampled(20, seed=3))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_differences(case: Any) -> None:
    names = ("attention", "N", "snr", "spread", "scale", "first")
    problem, rng = (
        icl.SingleLocation(**dict(zip(names, case, strict=True))),
        np.random.default_rng(2),
    )
    full = problem if case[0] == "softmax" else problem.changed(start="sphere")
    risk, h = full.risk(), 1e-5
    params = rng.normal(size=risk.initial.shape)
    found = risk.gradient(params)
    for at in np.ndindex(params.shape):
        move = np.zeros_like(params)
        move[at] = h
        slope = (risk.loss(params + move) - risk.loss(params - move)) / (2.0 * h)
        assert found[at] == pytest.approx(
            slope, rel=1e-7, abs=1e-8 * max(1.0, np.abs(found).max())
        )


def test_erf_on_the_manifold_in_closed_form() -> None:
    """200 problems: E erf is an erf, E erf² without a mean an arc sine, with one an integral by other nodes."""
    rng, (x, weight) = np.random.default_rng(0), np.polynomial.legendre.leggauss(600)
    for _ in range(200):
        ends = ((0.05, 3.0), (0.2, 2.0), (0.0, 9.0), (-1.0, 1.0), (-1.0, 1.0))
        scale, spread, snr, kappa, nu = (float(rng.uniform(*each)) for each in ends)
        problem = icl.SingleLocation(
            attention="erf", N=6, snr=snr, spread=spread, scale=scale, start="sphere"
        )
        m, wide = snr**0.5 * kappa, 2.0 * (scale * spread) ** 2
        one = erf(scale * m / np.sqrt(1.0 + wide))
        square = lambda s: 2.0 / np.pi * np.arcsin(2.0 * s * s / (1.0 + 2.0 * s * s))  # noqa: E731
        bend = (
            11.0
            * weight
            @ (erf(scale * (m + 11.0 * spread * x)) ** 2 * np.exp(-60.5 * x * x))
            / (2.0 * np.pi) ** 0.5
        )
        whole = 0.5 * (spread**2 * (bend - 2.0 * nu * one + 1.0) + 5.0 * square(scale))
        params = [
            [kappa, 0.0, (1.0 - kappa**2) ** 0.5, 0.0],
            [0.0, nu, 0.0, (1.0 - nu**2) ** 0.5],
        ]
        assert problem.risk().loss(params) == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize(
    ("scale", "spread"), [(10.0, 100.0), (10.0, 0.01), (0.01, 100.0), (2.0, 30.0)]
)
def test_erf_without_a_signal_is_an_arc_sine_at_any_width(
    scale: float, spread: float
) -> None:
    given: dict[str, Any] = {
        "attention": "erf",
        "start": "sphere",
        "N": 4,
        "snr": 0.0,
        "noise": 0.5,
    }
    problem = icl.SingleLocation(**given, spread=spread, scale=scale)
    wide, near = (
        2.0 / np.pi * np.arcsin(2.0 * s * s / (1.0 + 2.0 * s * s))
        for s in (scale * spread, scale)
    )
    whole = 0.5 * (spread**2 * (wide + 1.0) + 3.0 * near + 0.25)
    assert problem.risk().loss(np.eye(4)[[2, 3]]) == pytest.approx(whole, rel=1e-10)
    assert problem.risk().loss(np.eye(4)[[0, 1]]) == pytest.approx(whole, rel=1e-10)


def test_the_bayes_risk_is_that_of_the_posterior_mean() -> None:
    """Of posteriors computed from the densities of tokens, and it is the least of what is near."""
    problem, rng = (
        icl.SingleLocation(N=4, snr=3.0, first=0.6, noise=0.2),
        np.random.default_rng(3),
    )
    X, prior = (
        rng.normal(size=(200_000, 4, 2)),
        np.array([0.6, 0.4 / 3, 0.4 / 3, 0.4 / 3]),
    )
    place = rng.choice(4, size=len(X), p=prior)
    X[np.arange(len(X)), place, 0] += 3.0**0.5
    log = np.log(prior) + 0.5 * X[:, :, 0] ** 2 - 0.5 * (X[:, :, 0] - 3.0**0.5) ** 2
    posterior = np.exp(log) / np.exp(log).sum(axis=1, keepdims=True)
    y = X[np.arange(len(X)), place, 1] + 0.2 * rng.normal(size=len(X))
    losses = 0.5 * (np.sum(posterior * X[:, :, 1], axis=1) - y) ** 2
    floor = problem.risk().floor()
    assert abs(losses.mean() - floor) < 4.0 * losses.std() / np.sqrt(len(losses))
    assert all(
        problem.risk().loss(problem.bayes() + 0.3 * rng.normal(size=5)) > floor
        for _ in range(5)
    )
    assert icl.SingleLocation(spread=0.5, noise=0.2).risk().floor() == pytest.approx(
        0.02
    )


def test_the_best_linear_attention_is_the_least_of_a_search() -> None:
    """Over offset and slope, with the moments of a normal score written out."""
    problem = icl.SingleLocation(N=6, snr=5.0, spread=0.8, noise=0.1)
    m, g = 5.0**0.5, 0.64
    b, s = np.meshgrid(np.linspace(-0.3, 0.5, 801), np.linspace(0.0, 0.4, 801))
    loss = (
        g * ((b + s * m) ** 2 + s * s * g - 2.0 * (b + s * m) + 1.0)
        + 5.0 * (b * b + s * s)
        + 0.01
    )
    assert papers.least_linear(problem) == pytest.approx(0.5 * loss.min(), rel=1e-5)


@pytest.mark.parametrize(("snr", "spread"), [(5.0, 0.8), (0.1, 0.05)])
def test_the_best_erf_is_the_least_of_a_search(snr: float, spread: float) -> None:
    """Over the factor of the scores, for k = k* and v = v*."""
    problem = icl.SingleLocation(
        attention="erf", N=3, snr=snr, spread=spread, start="sphere"
    )
    factors = np.geomspace(2e-3, 7.0, 60)
    losses = [
        problem.changed(scale=scale).risk().loss(np.eye(2, 4)) for scale in factors
    ]
    assert papers.least_erf(problem) == pytest.approx(min(losses), rel=1e-2)
    assert papers.least_erf(problem) <= min(losses) * (1.0 + 1e-9)


def test_starts_have_the_overlaps_of_random_vectors() -> None:
    """d² times the mean fourth power of an overlap of random directions is 3, and on the manifold three are 0."""

    def overlaps(start: str, seed: int) -> Any:
        problem = icl.SingleLocation(attention="erf", d=50, seed=seed, start=start)
        risk = problem.risk()
        return risk.observe(risk.initial)["overlaps"]

    sphere, manifold = (
        np.array([overlaps(start, seed) for seed in range(300)])
        for start in ("sphere", "manifold")
    )
    assert np.allclose(50.0 * np.mean(sphere**2, axis=0), 1.0, atol=0.35)
    assert np.abs(manifold[:, 2:]).max() < 1e-15
    for seed in range(5):
        soft = icl.SingleLocation(d=5, seed=seed).risk().initial
        assert np.hypot(soft[0:4:2], soft[1:4:2]) == pytest.approx([1.0, 1.0])
    assert np.allclose(50.0 * np.mean(manifold[:, :2] ** 2, axis=0), 1.0, atol=0.35)


@pytest.mark.parametrize(
    "attention", ["erf", pytest.param("softmax", marks=pytest.mark.slow)]
)
def test_family(attention: str) -> None:
    check_risk(icl.SingleLocation(attention=attention, N=3).risk())
    # Most of the time prompts are drawn, in d dimensions.
    problem = {"attention": attention, "N": 3, "d": 10, "max_steps": 8}
    check_family(icl.SingleLocation, rows=False, **problem)


def test_columns_are_the_overlaps_with_the_planted_directions() -> None:
    """At the posterior mean v is v*, and k is √snr k*; nothing lies beside them."""
    problem = icl.SingleLocation(N=3, first=0.5, snr=4.0)
    k, beside, v, other, place = np.array([2.0, 0.3, 0.9, -0.2, 0.1])
    risk = icl.in_coordinates(
        problem.risk(),
        "linear",
        np.eye(5),
        start=np.array([k, beside, v, other, place]),
    )
    columns = problem.measure(icl.descend(risk, 1e-12, steps=1))
    assert columns["semantic"] == pytest.approx(k, abs=1e-9)
    assert columns["value"] == pytest.approx(v, abs=1e-9)
    assert problem.bayes()[[0, 2]] == pytest.approx([2.0, 1.0])


@pytest.mark.parametrize("attention", ["erf", "linear"])
def test_overlaps_are_those_of_directions_of_any_length(attention: str) -> None:
    problem = icl.SingleLocation(
        attention=attention, N=3, start="sphere", seed=2, max_steps=2, eta=0.1
    )
    at = np.random.default_rng(1).normal(size=(2, 4))
    k, v = at / np.sqrt(np.sum(at**2, axis=1, keepdims=True))
    np.testing.assert_allclose(
        problem.risk().observe(at)["overlaps"],
        [k[0], v[1], v[0], k[1], k @ v],
        rtol=1e-13,
    )
    assert problem.risk().loss(at) == pytest.approx(
        problem.risk().loss(7.0 * at), rel=1e-13
    )
    run = problem.simulate()
    found, (k, v) = (
        problem.measure(run),
        run.params / np.linalg.norm(run.params, axis=1)[:, None],
    )
    assert (found["semantic"], found["value"]) == pytest.approx((k[0], v[1]), rel=1e-12)


def test_starts_of_softmax_are_random_in_as_many_dimensions_as_are_given() -> None:
    """d times the mean square of an overlap is 1; the bias starts at 0."""
    starts = np.array(
        [icl.SingleLocation(d=20, seed=seed).risk().initial for seed in range(300)]
    )
    assert 20.0 * np.mean(starts[:, [0, 2]] ** 2, axis=0) == pytest.approx(
        [1.0, 1.0], abs=0.35
    )
    assert not starts[:, 4].any()


def test_outside_the_theorems_it_says_so() -> None:
    inside = icl.SingleLocation(attention="erf", N=2, max_steps=2)
    assert not inside.simulate().notes.keys() & {"start", "floor"}
    assert (
        inside.changed(start="sphere")
        .simulate()
        .notes["start"]
        .startswith("outside the theorems")
    )
    assert not inside.changed(spread=0.5).simulate().notes.keys() & {"start", "floor"}
    assert (
        "spread = 1"
        in icl.SingleLocation(N=2, spread=0.5, max_steps=2).simulate().notes["floor"]
    )


@pytest.mark.parametrize(
    "given",
    [
        {"start": "sphere"},
        {"attention": "erf", "first": 0.5},
        {"attention": "linear", "first": 0.5},
        {"N": 1},
        {"spread": 0.0},
        {"d": 3},
        {"snr": -1.0},
        {"scale": 0.0},
        {"first": 1.0},
        {"attention": "relu"},
    ],
)
def test_bad_input(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{[*given][-1]} = "):
        icl.SingleLocation(**given)


@pytest.mark.slow
@pytest.mark.parametrize("row", papers.CLAIMS.rows, ids=lambda row: row.__name__)
def test_rows_hold_on_their_small_grids(row: Any) -> None:
    assert row(True).verdict.startswith("holds")


def test_a_fixed_set_uses_all_dimensions() -> None:
    problem = icl.SingleLocation(
        attention="erf", N=3, d=30, dataset=40, max_steps=50, eta=0.5
    )
    run = problem.simulate()
    assert run.params.shape == (2, 30)
    assert run.loss[-1] < run.observed["population_loss"][-1]
    with pytest.raises(ValueError, match=r"scale_decay = 0\.1: must be 0"):
        problem.changed(scale_decay=0.1)


# The setting of the code beside the paper: no factor ½, d = 80.
THEIRS = icl.SingleLocation(
    attention="erf",
    snr=40.0,
    spread=0.5**0.5,
    noise=0.1,
    loss="mse",
    d=80,
    start="sphere",
    projection="spheres",
    eta=0.02,
    max_steps=25,
)


HERMITE = np.polynomial.hermite_e.hermegauss(80)


def risk_in_four_dimensions(k: Any, v: Any, scale: float, noise: float) -> float:
    """Mean squared error by quadrature over the scores, for any k and v of the length 1.

    The output is a sum over tokens, and given its score z a token's value is normal.
    """
    x, w = HERMITE
    w = w / w.sum()
    a, g, others = np.sqrt(40.0), 0.5**0.5, 9
    rho = k @ v
    # The informative token: means and second moments given z, with its label.
    f = erf(scale * (a * k[0] + g * x))
    value = a * v[0] + g * rho * x
    label = g * k[1] * x
    rest = g**2 * (1 - rho**2)
    joint = g**2 * (v[1] - rho * k[1])
    own = w @ (f**2 * (value**2 + rest) - 2 * f * (value * label + joint))
    mean_own = w @ (f * value)
    mean_label = w @ label
    h = erf(scale * x)
    mean = rho * (w @ (h * x))
    square = w @ (h**2 * (rho**2 * x**2 + 1 - rho**2))
    total = own + g**2 + noise**2 + others * square
    total += others * (others - 1) * mean**2
    return total + 2 * others * mean * (mean_own - mean_label)


@pytest.mark.parametrize("decay", [0.0, 0.02])
def test_projected_descent_is_that_of_unit_vectors(decay: float) -> None:
    """A tangential step and a division by the length, with slopes by differences."""
    problem = THEIRS.changed(scale=0.4, scale_decay=decay)
    run = problem.simulate()
    params = np.array(run.states[0])
    np.testing.assert_allclose(np.linalg.norm(params, axis=1), 1.0)
    losses = []
    for step in range(25):
        scale = 0.4 / (1.0 + decay * step)

        def loss(flat: Any, scale: float = scale) -> float:
            k, v = flat.reshape(2, 4)
            return risk_in_four_dimensions(k, v, scale, 0.1)

        losses.append(loss(params.ravel()))
        slope = np.array(
            [
                (loss(params.ravel() + unit) - loss(params.ravel() - unit)) / 2e-5
                for unit in 1e-5 * np.eye(8)
            ]
        ).reshape(2, 4)
        slope -= params * np.sum(params * slope, axis=1, keepdims=True)
        params = params - 0.02 * slope
        params /= np.linalg.norm(params, axis=1, keepdims=True)
    assert losses[-1] < losses[0]
    found = [run.at(step).loss for step in range(25)]
    np.testing.assert_allclose(found, losses, rtol=1e-7)
    np.testing.assert_allclose(run.params, params, atol=1e-7)


def test_projection_keeps_to_the_manifold_too() -> None:
    problem = THEIRS.changed(start="manifold", scale=0.4, max_steps=200)
    run = problem.simulate()
    np.testing.assert_allclose(np.linalg.norm(run.params.reshape(2, 2), axis=1), 1.0)
    assert np.abs(run.observed["overlaps"][:, 2:]).max() == 0.0
    k, v = run.params.reshape(2, 2)
    whole = problem.changed(start=[[k[0], 0, k[1], 0], [0, v[0], 0, v[1]]])
    np.testing.assert_allclose(whole.simulate().loss[0], run.loss[-1], rtol=1e-12)


def test_sampled_prompts_have_the_factor_of_their_step() -> None:
    """The mean over prompts at a late step, and a run of stochastic projected descent."""
    problem = THEIRS.changed(scale=1.0, scale_decay=0.01, start="sphere")
    trainer = problem.sampled(batch=4000, seed=4)
    start = problem.risk().initial
    for step in (0, 200):
        losses = trainer.losses_on(trainer.initial, trainer.prompts(step))
        exact = problem.risk().evaluate(start, step)[0]
        z = (losses.mean() - exact) / (losses.std() / np.sqrt(len(losses)))
        assert abs(z) < 4.0
    assert problem.risk().evaluate(start, 200)[0] != problem.risk().evaluate(start)[0]
    run = icl.descend(
        problem.sampled(batch=5, seed=1), 0.01, steps=20, rule=problem.update()
    )
    np.testing.assert_allclose(np.linalg.norm(run.params, axis=1), 1.0)


def test_a_loss_that_changes_is_followed_step_by_step_and_no_other_way() -> None:
    problem = THEIRS.changed(scale_decay=0.01, projection="none")
    assert problem.simulate().method == "exact"
    with pytest.raises(
        ValueError, match=r"method = 'fast': .*changes from step to step"
    ):
        problem.changed(method="fast").simulate()
    with pytest.raises(ValueError, match=r"risk = .*the same function at all steps"):
        icl.largest_stable_eta(problem.risk())
    run = problem.simulate()
    np.testing.assert_array_equal(
        run.at(20).params, problem.changed(max_steps=20).simulate().params
    )
    with pytest.raises(ValueError, match="of a loss that changes"):
        icl.engine.sharpness_along(run)


@pytest.mark.parametrize(
    ("name", "value"), [("projection", "spheres"), ("scale_decay", 0.1)]
)
def test_softmax_has_no_unit_vectors(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} = .* for softmax"):
        icl.SingleLocation(**{name: value})


def test_the_noise_of_batches_has_a_part_in_each_dimension() -> None:
    """All dimensions without a signal have the same variance of the gradient."""
    start = np.zeros((2, 4))
    start[:, 0] = [0.9, 0.0]
    start[0, 2] = (1.0 - 0.9**2) ** 0.5
    start[1, 1] = 1.0
    trainer = THEIRS.changed(d=12, start=start).sampled(2, seed=0)
    gradients = np.array([trainer.evaluate(trainer.initial, t)[1] for t in range(1500)])
    variance = gradients[:, :, 4:].var(axis=0)
    np.testing.assert_allclose(
        variance, np.outer(variance.mean(axis=1), np.ones(8)), rtol=0.5
    )
    assert variance.min() > 0.01 * gradients.var(axis=0).max()
