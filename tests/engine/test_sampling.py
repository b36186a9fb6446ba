"""Trainers: prompts that are drawn, losses on prompts that are given, many runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import Samplable, Trainer, in_coordinates
from icl_theory.engine.comparison import compare
from icl_theory.engine.pullback import Pullback, core_risk, replace_core
from icl_theory.engine.sampling import (
    DrawnTrainer,
    check_prompts,
    joined,
    prompt_count,
    selected,
    trainer_of,
)
from icl_theory.papers.linear_attention import PromptLaw
from icl_theory.papers.linear_attention.layer import LayerRisk, SampledLoop, SampledRisk
from icl_theory.papers.representation.family import Representation
from icl_theory.papers.single_location.family import SingleLocation
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.testing import check_risk
from icl_theory.tokens import (
    ChainRisk,
    Chains,
    CountRisk,
    TwoLayerTransformer,
    TwoStateCounts,
)
from icl_theory.tokens.heads import GaussianHeadsRisk

FEATURES = icl.Features.simplex(4, 1.0, [0.4, 0.3, 0.2, 0.1])
LINEAR = icl.tasks.Linear(2.0)
LAW = PromptLaw([1.0, 0.5], N=6, noise=0.2).dense
CHAINS = Chains([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.6, 0.4]]], window=2)
WORDS = icl.recall.RecallTask(V=8, triggers=2, outputs=3, H=9, alpha=0.2)
PLANTED = icl.recall.RecallTask(
    V=8, triggers=1, outputs=3, H=9, alpha=0.2, law="planted"
)
TOKENS = icl.TokenRisk(
    [
        icl.Kind(
            icl.Lengths.uniform(1, 6), [0.3, 0.7], [[0.0, 1.0], [1.0, 2.0]], [0.2, 0.1]
        ),
        icl.Kind(3, [0.5, 0.5], [[1.0, 1.0], [1.0, 3.0]]),
    ],
    target=[0.5, 1.0],
    queries=[0.4, 0.6],
)
ONE_QUERY = icl.TokenRisk(
    [
        icl.Kind(40, [0.5, 0.3, 0.2], [0.0, 1.0, 2.0], [0.2, 0.1, 0.0]),
        icl.Kind(1, [1.0], [1.5]),
    ],
    target=1.0,
)
HEADS = np.array([0.5, -0.4, 0.3, -0.2])

TRAINERS: dict[str, Callable[[], Trainer[Any]]] = {
    "tokens": lambda: TOKENS.sampled(8, 1),
    "tokens, by node": lambda: TOKENS.sampled(8, 1).cheaper(),
    "tokens of one query, by node": lambda: ONE_QUERY.sampled(8, 1).cheaper(),
    "tokens, linear": lambda: trainer_of(
        in_coordinates(
            TOKENS, "linear", np.arange(8.0).reshape(4, 2, 1) / 8, start=[0.5]
        ),
        8,
        1,
    ),
    "counted tokens": lambda: CountRisk(
        TwoStateCounts(6), "log", sink=[0.5, 0.5]
    ).sampled(8, 1),
    "chain": lambda: ChainRisk(CHAINS, 9).sampled(8, 1),
    "chain, positions": lambda: ChainRisk(
        CHAINS, 9, np.zeros((3, 4, 2)), sink=[0.3, 0.7]
    ).sampled(8, 1),
    "two layers": lambda: TwoLayerTransformer(CHAINS, 9, 8, 1, [0.1, 0.2, 0.3], "all"),
    "Gaussian heads": lambda: GaussianHeadsRisk(3, 7, 0.2, HEADS).sampled(8, 1),
    "heads": lambda: icl.HeadsRisk(TOKENS, heads=3).sampled(8, 1),
    "selection": lambda: icl.TokenSelection(n=5).sampled(8, 1),
    "induction": lambda: icl.InductionHeads(T=9).sampled(8, 1),
    "location": lambda: SingleLocation(attention="softmax").sampled(8, 1),
    "location, erf": lambda: SingleLocation(attention="erf").sampled(8, 1),
    "representation": lambda: Representation().sampled(8, 1),
    "regression": lambda: icl.SampledRisk(FEATURES, LINEAR, 9, 8, 1, noise=0.3),
    "noisy tokens": lambda: icl.SampledRisk(FEATURES, LINEAR, 9, 8, 1, token_noise=0.3),
    "data set": lambda: icl.SampledRisk(FEATURES, LINEAR, 9, 8, 1, dataset=20),
    "Gaussian inputs": lambda: icl.regression.SampledGaussianRisk(
        icl.regression.QuadraticLaw.lipschitz(d=2, L=1.0), 9, 8, 1
    ),
    "block": lambda: icl.regression.BlockRisk(
        icl.SampledRisk(FEATURES, LINEAR, 9, 8, 1)
    ),
    "counts": lambda: CountedRisk(FEATURES, LINEAR, 9, 8, 1, 0.3, every_query=False),
    "counts, all queries": lambda: CountedRisk(FEATURES, LINEAR, 60, 8, 1, 0.3),
    "factored": lambda: icl.Regression(
        L=1, delta=1, eta=1, K=4, N=9, coordinates="factored"
    ).sampled(8, 1),
    "linear attention": lambda: SampledRisk(LAW, 0.3 * np.eye(2), 8, 1),
    "linear attention, h": lambda: SampledRisk(LAW, 0.3 * np.eye(2), 8, 1).cheaper(),
    "loop": lambda: SampledLoop(LAW, [0.5], 8, 1, 3),
    "layer": lambda: LayerRisk.of(LAW, np.append(0.5, np.eye(2)), 8, 1),
    "recall": lambda: icl.recall.TransformerRisk(WORDS, "softmax", batch=8, seed=1),
    "recall, softmax": lambda: icl.recall.RecallRisk(WORDS, "softmax").sampled(8, 1),
    "recall, reduced": lambda: icl.recall.reparameterised(
        icl.recall.TransformerRisk(WORDS, batch=8, seed=1)
    ),
}


def scattered(trainer: Trainer[Any], seed: int = 0) -> np.ndarray:
    """Parameters near the initial ones."""
    start = np.asarray(trainer.initial)
    return start + 0.2 * np.random.default_rng(seed).normal(size=start.shape)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_step_is_its_prompts_and_the_loss_on_them(name: str) -> None:
    trainer = TRAINERS[name]()
    params = scattered(trainer)
    assert isinstance(trainer, Trainer)
    first = trainer.prompts(2)
    second = trainer.prompts(3)
    loss, gradient = trainer.evaluate(params, 2)
    other_loss, other_gradient = trainer.evaluate(params, 3)
    assert loss != other_loss
    on_given = trainer.evaluate_on(params, first)
    assert on_given[0] == pytest.approx(loss, rel=1e-13)
    np.testing.assert_allclose(on_given[1], gradient, rtol=1e-12, atol=1e-14)
    losses = trainer.losses_on(params, first)
    assert losses.shape == (8,)
    assert losses.mean() == pytest.approx(loss, rel=1e-12)
    np.testing.assert_array_equal(trainer.losses(params, 2), losses)

    both = check_prompts(trainer, joined([first, second]))
    loss_on_both, gradient_on_both = trainer.evaluate_on(params, both)
    assert loss_on_both == pytest.approx(0.5 * (loss + other_loss), rel=1e-12)
    np.testing.assert_allclose(
        gradient_on_both, 0.5 * (gradient + other_gradient), rtol=1e-11, atol=1e-14
    )


@pytest.mark.parametrize("name", TRAINERS)
def test_gradients_on_prompts_are_slopes_of_the_losses_on_them(name: str) -> None:
    trainer = TRAINERS[name]()
    params = scattered(trainer)
    prompts = selected(trainer.prompts(4), np.array([5, 0, 3]))
    direction = np.random.default_rng(7).normal(size=params.shape)
    _, gradient = trainer.evaluate_on(params, prompts)
    h = 1e-5
    ahead = trainer.losses_on(params + h * direction, prompts).mean()
    behind = trainer.losses_on(params - h * direction, prompts).mean()
    slope = float(np.sum(gradient * direction))
    scale = float(np.sum(np.abs(gradient * direction)))
    assert (ahead - behind) / (2.0 * h) == pytest.approx(slope, abs=1e-7 * scale)


@pytest.mark.parametrize("name", TRAINERS)
def test_runs_together_are_runs_one_by_one(name: str) -> None:
    trainer = TRAINERS[name]()
    params = np.stack([scattered(trainer, seed) for seed in range(3)])
    prompts = [trainer.prompts(step) for step in (5, 6, 7)]
    losses, gradients = trainer.evaluate_runs(params, joined(prompts))
    assert gradients.shape == params.shape
    for run in range(3):
        loss, gradient = trainer.evaluate_on(params[run], prompts[run])
        assert losses[run] == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(gradients[run], gradient, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", TRAINERS)
def test_runs_have_batches_of_their_own(name: str) -> None:
    trainer = TRAINERS[name]()
    batches = trainer.draw_runs(np.random.default_rng(3), 5)
    prompts = check_prompts(trainer, joined(batches))
    assert prompt_count(prompts) == 5 * 8
    params = np.stack([scattered(trainer)] * 5)
    losses, _ = trainer.evaluate_runs(params, prompts)
    assert len(set(losses)) == 5
    again = joined(trainer.draw_runs(np.random.default_rng(3), 5))
    np.testing.assert_array_equal(trainer.evaluate_runs(params, again)[0], losses)


class BandTrainer(Trainer[Any]):
    """The batches that a trainer draws for twelve runs, as one batch of a step."""

    initial = np.zeros(1)
    batch = 12
    seed = 0

    def __init__(self, trainer: Trainer[Any]) -> None:
        self.trainer = trainer
        self.initial = trainer.initial
        self.batch = 12 * trainer.batch
        self.seed = trainer.seed

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return joined(self.trainer.draw_runs(rng, 12))

    def losses_on(self, params: Any, prompts: Any) -> Any:
        return self.trainer.losses_on(params, prompts)

    def evaluate_on(self, params: Any, prompts: Any) -> Any:
        runs = np.stack([params] * 12)
        losses, gradients = self.trainer.evaluate_runs(runs, prompts)
        return float(losses.mean()), gradients.mean(axis=0)


UNIFORM = icl.Features.simplex(5, 1.0)
BANDS: dict[str, tuple[icl.Risk, Trainer[Any]]] = {
    "tokens": (TOKENS, TOKENS.sampled(60, 2).cheaper()),
    "tokens of one query": (ONE_QUERY, ONE_QUERY.sampled(60, 2).cheaper()),
    "counts": (
        icl.PopulationRisk(FEATURES, LINEAR, N=40, noise=0.3),
        CountedRisk(FEATURES, LINEAR, 40, 60, 2, 0.3, every_query=False),
    ),
    "counts of equal features": (
        icl.PopulationRisk(UNIFORM, icl.tasks.Exchangeable(1.0), N=30),
        CountedRisk(UNIFORM, icl.tasks.Exchangeable(1.0), 30, 60, 2, every_query=False),
    ),
}


@pytest.mark.parametrize("name", BANDS)
def test_runs_have_the_exact_loss_and_gradient_on_average(name: str) -> None:
    risk, trainer = BANDS[name]
    point = 0.8 * np.random.default_rng(3).random(np.shape(risk.initial))
    checks = compare(risk, BandTrainer(trainer), {"a point": point}, 60)
    assert [check.name for check in checks if not check.passed] == []
    # These comparisons would notice an error of 5 % of the loss.
    assert checks[0].standard_error < 0.01 * checks[0].population


@pytest.mark.parametrize("name", BANDS)
def test_batches_of_runs_scatter_like_batches_drawn_by_themselves(name: str) -> None:
    """The gradients have the same standard deviation, along the exact gradient."""
    risk, trainer = BANDS[name]
    tokenwise = trainer_of(risk, trainer.batch, seed=7)
    point = 0.8 * np.random.default_rng(3).random(np.shape(risk.initial))
    direction = risk.gradient(point)
    alone = [tokenwise.evaluate(point, step)[1] for step in range(600)]
    together: list[Any] = []
    for step in range(50):
        prompts = joined(trainer.draw_runs(trainer.generator(step), 12))
        _, gradients = trainer.evaluate_runs(np.stack([point] * 12), prompts)
        together.extend(gradients)
    deviations = [
        np.std([np.sum(gradient * direction) for gradient in gradients])
        for gradients in (alone, together)
    ]
    # A standard deviation of 600 numbers has a relative error of 3 to 5 %.
    assert deviations[1] == pytest.approx(deviations[0], rel=0.2)


def test_sequences_beyond_the_memory_are_refused_with_the_bytes_they_would_take() -> (
    None
):
    """Each of 10^9 sequences has 10^6 positions, each with a number of 8 bytes."""
    message = r"^size = 1000000000: must be smaller: this takes 8e\+06 GB of memory"
    with pytest.raises(ValueError, match=message):
        CHAINS.draw(np.random.default_rng(0), 10**6, 10**9)


def test_scores_of_nodes_may_differ_by_any_number() -> None:
    """The node with the largest score is often missing in a prompt."""
    trainer = ONE_QUERY.sampled(8, 1).cheaper()
    prompts = trainer.draw(np.random.default_rng(2), 16)
    prompts.counts[::2, 2] = 0.0
    prompts.noise[::2, 2] = 0.0
    params = np.array([[0.0, 1.0, 800.0, 0.5], [0.0, 1.0, 5.0, 0.5]])
    losses, gradients = trainer.evaluate_runs(params, prompts)
    for run in range(2):
        of_run = selected(prompts, slice(8 * run, 8 * run + 8))
        expected = trainer.losses_on(params[run], of_run)
        assert losses[run] == pytest.approx(expected.mean(), rel=1e-12)
    assert np.isfinite(gradients).all()
    assert losses[0] > 1e-3


POPULATIONS: dict[str, Callable[[], icl.Risk]] = {
    "heads": lambda: icl.HeadsRisk(TOKENS, heads=3),
    "selection": lambda: icl.TokenSelection(n=5).risk(),
    "recall": lambda: icl.recall.RecallRisk(WORDS),
    "recall, relu": lambda: icl.recall.RecallRisk(WORDS, "relu", gamma=-1.0),
    "recall, softmax": lambda: icl.recall.RecallRisk(WORDS, "softmax", v=2.0),
    "recall, planted": lambda: icl.recall.RecallRisk(
        PLANTED, "softmax", weights="identity", kappa=0
    ),
    "recall, sentences": lambda: icl.recall.RecallRisk(
        WORDS, data=WORDS.sentences(np.random.default_rng(5), 50)
    ),
    "merged": lambda: icl.linear_attention.MergedRisk(LAW, 0.3 * np.eye(2)),
    "loop": lambda: icl.linear_attention.LoopedRisk(2, 6, 3, noise=0.2, start=0.5),
    "embedding": lambda: in_coordinates(
        icl.PopulationRisk(FEATURES, LINEAR, N=9, noise=0.3),
        "embedding",
        FEATURES.vectors,
    ),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_samples_have_the_exact_loss_and_gradient_on_average(name: str) -> None:
    risk = POPULATIONS[name]()
    point = np.asarray(risk.initial)
    point = point + 0.5 * np.random.default_rng(3).random(point.shape)
    batch = 25 if name == "recall, sentences" else 1000
    checks = compare(risk, trainer_of(risk, batch, seed=4), {"a point": point}, 40)
    assert [check.name for check in checks if not check.passed] == []
    # These comparisons would notice an error of 10 % of the loss.
    assert checks[0].standard_error < 0.015 * checks[0].population


class Inputs(NamedTuple):
    """Inputs of a regression."""

    x: np.ndarray


class Slope(Samplable[Inputs]):
    """A slope, trained to be 3."""

    initial = np.zeros(1)

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(params[0] - 3.0) ** 2, params - 3.0

    def draw(self, rng: np.random.Generator, size: int) -> Inputs:
        return Inputs(rng.normal(size=size))

    def losses_on(self, params: Any, prompts: Inputs) -> Any:
        return 0.5 * ((params[0] - 3.0) * prompts.x) ** 2

    def evaluate_on(self, params: Any, prompts: Inputs) -> tuple[float, Any]:
        error = params - 3.0
        square = np.mean(prompts.x**2)
        return float(0.5 * error[0] ** 2 * square), error * square


def test_a_risk_of_ones_own_is_sampled_in_other_coordinates_too() -> None:
    halved = in_coordinates(Slope(), "linear", [[0.5]])
    trainer = trainer_of(halved, 4, seed=3)
    prompts = trainer.prompts(2)
    np.testing.assert_array_equal(
        prompts.x, np.random.default_rng([3, 2]).normal(size=4)
    )
    loss, gradient = trainer.evaluate(np.array([2.0]), 2)
    square = np.mean(prompts.x**2)
    assert loss == pytest.approx(0.5 * 4.0 * square, rel=1e-14)
    assert gradient[0] == pytest.approx(-square, rel=1e-14)
    core = core_risk(trainer)
    assert (core.batch, core.seed, trainer.batch, trainer.seed) == (4, 3, 4, 3)
    exact = replace_core(trainer, Slope())
    assert isinstance(exact, Pullback)
    assert not exact.stochastic


class Halved(Slope):
    """Forgets a factor in the losses on given prompts."""

    def losses_on(self, params: Any, prompts: Inputs) -> Any:
        return 2.0 * super().losses_on(params, prompts)


class Summing(Slope):
    """Sums gradients instead of averaging them."""

    def evaluate_on(self, params: Any, prompts: Inputs) -> tuple[float, Any]:
        loss, gradient = super().evaluate_on(params, prompts)
        return loss * len(prompts.x), gradient * len(prompts.x)


class Mixed(DrawnTrainer[Inputs]):
    """Gives all runs the loss of the first one."""

    def evaluate_runs(self, params: Any, prompts: Any) -> Any:
        losses, gradients = super().evaluate_runs(params, prompts)
        return np.full_like(losses, losses[0]), gradients


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        (Halved().sampled(5), "losses_on at the initial point: .* mean loss"),
        (Summing().sampled(5), "losses_on at the initial point: .* mean loss"),
        (Mixed(Slope(), 5), "evaluate_runs, run 1: .* the loss of this run alone"),
    ],
)
def test_check_risk_finds_trainers_that_contradict_themselves(
    trainer: Trainer[Any], words: str
) -> None:
    with pytest.raises(AssertionError, match=words):
        check_risk(trainer)
    check_risk(Slope().sampled(5))


class OneMore(Slope):
    """Draws a prompt more than it is asked for."""

    def draw(self, rng: np.random.Generator, size: int) -> Inputs:
        return Inputs(rng.normal(size=size + 1))


class Summed(Slope):
    """Returns one loss for all prompts, and a gradient of another shape."""

    def losses_on(self, params: Any, prompts: Inputs) -> Any:
        return np.sum(super().losses_on(params, prompts))

    def evaluate_on(self, params: Any, prompts: Inputs) -> tuple[float, Any]:
        loss, gradient = super().evaluate_on(params, prompts)
        return loss, gradient[0]


TOKEN_TRAINER = TOKENS.sampled(4, 1)
DRAWN = TOKEN_TRAINER.prompts()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Slope().sampled(0), "batch = 0: must be an integer >= 1"),
        (lambda: Slope().sampled(4, -1), "seed = -1: must be an integer >= 0"),
        (lambda: Slope().sampled(4).prompts(-1), "step = -1"),
        (
            lambda: OneMore().sampled(4).prompts(),
            "prompts = 5: must be 4, the number that draw",
        ),
        (lambda: Summed().sampled(4).losses([1.0]), r"losses_on = \(\): .*\(4,\)"),
        (lambda: Summed().sampled(4).loss([1.0]), r"gradient of evaluate_on = \(\)"),
        (
            lambda: TOKEN_TRAINER.evaluate_runs(np.zeros((3, 4, 2)), DRAWN),
            "prompts = 4: must be 3 times as many",
        ),
        (lambda: check_prompts(TOKEN_TRAINER, 5), "prompts = 5: must be DrawnTokens"),
        (
            lambda: check_prompts(TOKEN_TRAINER, DRAWN._replace(node=DRAWN.node[:2])),
            "prompts = DrawnTokens.*first axes of one length",
        ),
        (
            lambda: check_prompts(
                TOKEN_TRAINER, DRAWN._replace(noise=DRAWN.noise[:, :5])
            ),
            "prompts = .*: must be prompts that this trainer can evaluate; losses_on raises: operands",
        ),
        (
            lambda: check_prompts(TOKEN_TRAINER, DRAWN._replace(noise=DRAWN.noise[0])),
            "first axes of one length",
        ),
        (
            lambda: check_prompts(
                TOKEN_TRAINER, DRAWN._replace(noise=DRAWN.noise[..., None])
            ),
            r"noise of the prompts = \(4, 9, 1\): must be an array with 2 axes",
        ),
        (
            lambda: check_prompts(
                TOKEN_TRAINER, DRAWN._replace(noise=np.nan * DRAWN.noise)
            ),
            "noise of the prompts = .* must be finite",
        ),
        (
            lambda: check_prompts(TOKEN_TRAINER, selected(DRAWN, slice(0))),
            "prompts = 0: must be at least one prompt",
        ),
        (
            lambda: TOKEN_TRAINER.draw(np.random.default_rng(0), 0),
            "size = 0: must be an integer >= 1",
        ),
        (
            lambda: icl.recall.RecallRisk(WORDS, "softmax-limit").sampled(4),
            "attention = 'softmax-limit': must be 'linear', 'relu' or 'softmax'",
        ),
        (lambda: icl.recall.RecallRisk(WORDS).sampled(0), "batch = 0"),
        (lambda: icl.HeadsRisk(TOKENS).sampled(0), "batch = 0"),
        (lambda: icl.TokenSelection(n=5).sampled(0), "batch = 0"),
        (
            lambda: trainer_of(icl.SymmetricRisk([2, 1], [0.3, 0.4], 2.0), 4),
            "risk = .*: must be one that can be sampled",
        ),
    ],
)
def test_wrong_prompts_and_batches_are_named(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make()
