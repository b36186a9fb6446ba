"""The sphere: best inverse temperatures, kernels, closed forms and samples of whole functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gamma, ive

import icl_theory as icl
from icl_theory.papers.sphere.family import kernel
from icl_theory.papers.sphere.statements import linear_attention
from icl_theory.testing import check_family
from icl_theory.tokens.sphere import sphere_tokens

BEST = {10: 2.8238, 100: 6.1507, 1000: 11.6398, 10**4: 21.3322, 10**5: 38.5562}


@pytest.mark.parametrize("N", BEST)
def test_best_inverse_temperatures(N: int) -> None:
    """Those of a minimisation of the integral with 400 nodes that was made once, by another program."""
    risk = icl.Sphere(N=N).risk()
    assert risk.best == pytest.approx(BEST[N], abs=6e-5)
    assert risk.error < 1e-12
    assert abs(risk.gradient([risk.best])[0]) < 1e-12


def drawn(task: str, L: float, x: Any, rng: np.random.Generator) -> Any:
    """Values of random functions, one a prompt, at points x, (B, N, d)."""
    beta = rng.normal(size=(len(x), 1, x.shape[2]))
    along = np.sum(beta * x, axis=2)
    if task == "linear":
        return L * along
    if task == "relu":
        return np.sqrt(2.0) * L * np.maximum(along, 0.0)
    return np.sqrt(2.0) * np.cos(L * along + rng.uniform(0.0, 2.0 * np.pi, (len(x), 1)))


@pytest.mark.parametrize("batches", [1, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("task", "d", "N", "L", "noise", "kappa"),
    [
        ("linear", 5, 10, 1.0, 1.0, 3.0),
        ("relu", 3, 12, 1.5, 0.3, 6.0),
        ("relu", 2, 30, 1.0, 0.0, 20.0),
        ("cosine", 4, 15, 2.0, 0.5, 5.0),
        ("cosine", 2, 20, 6.0, 0.1, 40.0),
        ("relu", 40, 8, 1.0, 0.2, 10.0),
    ],
)
def test_samples_of_whole_functions(
    task: str, d: int, N: int, L: float, noise: float, kappa: float, batches: int
) -> None:
    """Inputs on the sphere, functions and labels drawn as the model says, with softmax applied to them."""
    rng, found = np.random.default_rng(5), []
    for _ in range(batches):
        x = rng.normal(size=(20_000, N + 1, d))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        y = drawn(task, L, x, rng)
        scores = kappa * np.einsum("bnd,bd->bn", x[:, :-1], x[:, -1])
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        guess = np.sum(
            weight * (y[:, :-1] + noise * rng.normal(size=(len(y), N))), axis=1
        ) / weight.sum(axis=1)
        found.append(0.5 * (guess - y[:, -1]) ** 2)
    losses = np.concatenate(found)
    exact = icl.Sphere(task=task, d=d, N=N, L=L, noise=noise).risk().loss([kappa])
    assert abs(losses.mean() - exact) < 4.0 * losses.std() / np.sqrt(len(losses))


@pytest.mark.parametrize(
    ("task", "d", "N"), [("linear", 3, 7), ("relu", 4, 12), ("cosine", 3, 9)]
)
def test_linear_attention_has_the_least_loss_of_samples(
    task: str, d: int, N: int
) -> None:
    rng, L, noise = np.random.default_rng(8), 1.4, 0.6
    x = rng.normal(size=(40_000, N + 1, d))
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    y = drawn(task, L, x, rng)
    labels = y[:, :-1] + noise * rng.normal(size=(len(y), N))
    answer = np.einsum("bn,bnd,bd->b", labels, x[:, :-1], x[:, -1])
    losses = 0.5 * (answer * (answer @ y[:, -1]) / (answer @ answer) - y[:, -1]) ** 2
    exact = linear_attention(icl.Sphere(task=task, d=d, N=N, L=L, noise=noise))
    assert abs(losses.mean() - exact) < 4.0 * losses.std() / np.sqrt(len(losses))


@pytest.mark.parametrize("task", ["linear", "relu", "cosine"])
@pytest.mark.parametrize("d", [2, 5])
def test_kernels_are_those_of_the_functions(task: str, d: int) -> None:
    """Two inputs at an angle, by samples; and the slope at 1 is L²."""
    rng, L, angle = np.random.default_rng(2), 1.3, 0.7
    x = np.zeros((1, 2, d))
    x[0, 0, 0], x[0, 1, :2] = 1.0, (np.cos(angle), np.sin(angle))
    y = drawn(task, L, np.repeat(x, 50_000, axis=0), rng)
    products = y[:, 0] * y[:, 1]
    exact = kernel(task, L, np.cos([angle]))[0]
    assert abs(products.mean() - exact) < 4.0 * products.std() / np.sqrt(len(products))
    one, near = kernel(task, L, np.array([1.0, 1.0 - 1e-6]))
    assert (one - near) / 1e-6 == pytest.approx(L**2, rel=2e-3)


@pytest.mark.parametrize("d", [3, 5, 8])
def test_zonal_coefficients_of_cosine_tasks_are_bessel_functions(d: int) -> None:
    """exp(L²(c - 1)) = Σ a_l P_l with a_l = Γ(ν)(2/τ)^ν (l + ν) I_{l+ν}(τ) e^{-τ} C_l^ν(1), τ = L², ν = d/2 - 1."""
    tau, nu = 1.7, d / 2.0 - 1.0
    _, risk = sphere_tokens(lambda c: kernel("cosine", tau**0.5, c), d, 10)
    ends = np.cumprod(
        [1.0, *((2.0 * nu + n) / (n + 1.0) for n in range(9))]
    )  # C_l^ν(1)
    degree = np.arange(1.0, 10.0)
    wanted = (
        gamma(nu) * (2.0 / tau) ** nu * (degree + nu) * ive(degree + nu, tau) * ends[1:]
    )
    np.testing.assert_allclose(risk.target[:9, 0] ** 2, wanted, rtol=1e-11, atol=2e-13)


def test_zonal_coefficients_of_relu_tasks_are_integrals_of_the_kernel() -> None:
    """d = 3, where P_l are Legendre's: a_l = (2l + 1)/2 ∫ k P_l; all odd ones but the first are zero."""
    _, risk = sphere_tokens(lambda c: kernel("relu", 1.0, c), 3, 10, nodes=120)
    for at, degree in enumerate((1, 2, 4, 6)):
        legendre = np.polynomial.Legendre.basis(degree)
        whole = quad(
            lambda c: float(kernel("relu", 1.0, np.array([c]))[0] * legendre(c)),  # noqa: B023
            -1.0,
            1.0,
            epsabs=1e-12,
        )
        assert risk.target[at, 0] ** 2 == pytest.approx(
            (degree + 0.5) * whole[0], abs=1e-8
        )


@pytest.mark.parametrize("task", ["linear", "relu", "cosine"])
def test_one_token_and_the_plain_mean(task: str) -> None:
    """N = 1: the loss of a neighbour at random; κ = 0: that of the mean of N values."""
    d, L, noise = 3, 1.2, 0.4
    whole = quad(
        lambda c: float(kernel(task, L, np.array([c]))[0]) / 2.0,
        -1.0,
        1.0,
        epsabs=1e-12,
    )[0]  # E f f'
    size = float(kernel(task, L, np.ones(1))[0])
    for N in (1, 7, 10**9):
        nodes, risk = sphere_tokens(lambda c: kernel(task, L, c), d, N, noise)
        mean = 0.5 * (
            (size + noise**2) / N + (1.0 - 1.0 / N) * whole - 2.0 * whole + size
        )
        assert risk.loss(0.0 * nodes) == pytest.approx(mean, rel=1e-8)
    one = icl.Sphere(task=task, d=d, N=1, L=L, noise=noise).risk()
    assert one.loss([50.0]) == pytest.approx(
        0.5 * (2.0 * size + noise**2 - 2.0 * whole), rel=1e-8
    )
    assert one.floor() == pytest.approx(one.loss([3.0]), rel=1e-12)


@pytest.mark.parametrize(
    ("task", "share"), [("linear", 0.015), ("cosine", 0.03), ("relu", 0.2)]
)
def test_bias_and_variance_predict_the_best_inverse_temperature(
    task: str, share: float
) -> None:
    problem = icl.Sphere(task=task, d=4, N=10**6)
    assert problem.predicted() == pytest.approx(problem.risk().best, rel=share)
    assert icl.Sphere(noise=0.0, N=50).predicted() is None


@pytest.mark.parametrize("start", [0.7, 3.0])
def test_a_run_starts_where_it_is_told_to_and_its_floor_is_the_same(
    start: float,
) -> None:
    problem, plain = icl.Sphere(N=12, start=start, max_steps=2), icl.Sphere(N=12).risk()
    run = problem.simulate()
    assert problem.risk().floor() == plain.floor() == run.floor < run.loss[0]
    assert run.observed["kappa"].shape == run.t.shape
    assert (run.observed["kappa"][0], run.loss[0]) == (start, plain.loss([start]))


def test_one_token_is_its_own_average_whatever_the_temperature() -> None:
    risk = icl.Sphere(N=1).risk()
    for kappa in (0.0, 5.0):
        assert risk.loss([kappa]) == pytest.approx(risk.floor(), rel=1e-12)


@pytest.mark.parametrize("start", [0.0, 20.0])
def test_the_automatic_rate_is_one_over_the_largest_curvature_on_the_way(
    start: float,
) -> None:
    """Of the loss as a function of κ, by second differences: from below the best κ, 6.15, and from above."""
    problem = icl.Sphere(start=start)
    risk, h = problem.risk(), 1e-3
    way = np.linspace(start, risk.best, 17)
    bends = [
        (risk.loss([x + h]) - 2.0 * risk.loss([x]) + risk.loss([x - h])) / h**2
        for x in way
    ]
    assert problem.rate() == pytest.approx(1.0 / max(bends), rel=1e-3)
    assert icl.Sphere(N=1, start=start).rate() == 1.0


@pytest.mark.parametrize(
    ("task", "N"), [("relu", 10**5), ("cosine", 10), ("linear", 1)]
)
def test_the_best_is_said_with_the_error_of_its_loss(task: str, N: int) -> None:
    """The error is that of the nodes: against four times as many."""
    problem = icl.Sphere(task=task, N=N, start=0.5, max_steps=1)
    risk = problem.risk()
    nodes, tokens = sphere_tokens(
        lambda c: kernel(task, 1.0, c), 5, N, 1.0, 4 * len(risk.risk.probs)
    )
    off = abs(risk.floor() / tokens.loss(risk.best * nodes) - 1.0)
    assert risk.error == pytest.approx(off, rel=0.1, abs=1e-13)
    assert risk.error < 1e-7
    run = problem.simulate()
    assert run.notes["best"].startswith(
        f"κ = {risk.best:.6g}, within {risk.error:.0e} of the least loss"
    )
    found = problem.measure(run)
    assert (found["best"], found["kappa"], found["predicted"]) == (
        risk.best,
        run.params[0],
        problem.predicted(),
    )
    assert (found["kappa"] == 0.5) == (N == 1)


def test_a_number_that_is_zero_is_measured_and_one_that_is_not_known_is_left_out() -> (
    None
):
    problem = icl.Sphere(N=1, noise=0.0, max_steps=1)
    assert problem.measure(problem.simulate()) == {"best": 0.0, "kappa": 0.0}


def test_family() -> None:
    check_family(icl.Sphere, rows=False, N=8, task="relu", d=2, noise=0.2)


@pytest.mark.parametrize(
    "given",
    [
        {"d": 1},
        {"task": "cosine", "L": 21.0},
        {"N": 0},
        {"noise": 1e20},
        {"L": 1e16},
        {"start": -1.0},
    ],
)
def test_bad_input(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{[*given][-1]} = "):
        icl.Sphere(**given)


@pytest.mark.slow
def test_inverse_temperatures_without_bound_are_refused() -> None:
    """In three dimensions the variance without noise does not grow with κ: the nearest neighbour is best."""
    with pytest.raises(
        ValueError, match="N = 1000000: must be smaller, unless there is more"
    ):
        icl.Sphere(N=10**6, d=3, noise=0.0)
