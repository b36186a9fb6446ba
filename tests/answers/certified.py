"""What is proved of runs, by ball arithmetic; nothing is asked where python-flint is not installed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.engine import Factored, Pullback
from tests.answers import Call
from tests.answers._told import Bowl
from tests.answers.tokens import _at, _kinds

Asked = Iterator[tuple[str, Call | Any]]
INSTALLED = importlib.util.find_spec("flint") is not None
FEATURES = icl.Features.random(4, 3, 0.8, seed=3, probs=[0.4, 0.3, 0.2, 0.1])


def _regression(**changes: Any) -> icl.engine.Trajectory:
    return icl.Regression(
        **{"L": 1.3, "delta": 0.8, "eta": 1.7, "K": 5, "epsilon": 0.02} | changes
    ).simulate()


def _proved(run: Any, **options: Any) -> Any:
    found = icl.certify(run, **options)
    told = [
        [
            each.name,
            _shown(each.interval),
            each.basis,
            each.double,
            each.stated > 0,
            _shown(str(each)),
            _small(each.error),
        ]
        for each in found
    ]
    return told, [entry["name"] for entry in found.to_dict()]


def _shown(text: str) -> str:
    """Leave out the radius of balls, and digits that another version of the library may not give."""
    text = re.sub(r"(\d\.\d{12})\d*", r"\1", text)
    return re.sub(r"\+/- [0-9.e+-]+|within [0-9.e+-]+|at most [0-9.e+-]+", "...", text)


def _small(error: float | None) -> Any:
    return None if error is None else bool(error < 1e-9) if error < 0.5 else error


if INSTALLED:
    from flint import arb, ctx

    from icl_theory.certified import closed
    from icl_theory.certified.certificate import Certificate, Proved
    from icl_theory.certified.losses import balls, enclosed, product

    def runs() -> Asked:
        for name, run in {
            "closed": _regression,
            "epsilon": partial(_regression, epsilon=0.002),
            "embedding": partial(_regression, coordinates="embedding", eta=0.6),
            "two features": partial(_regression, K=2),
            "many features": partial(_regression, K=9, epsilon=1e-4),
            "exact": partial(_regression, method="exact"),
            "flow": partial(_regression, method="flow"),
            "steps alone": partial(_regression, max_steps=20),
            "normalised": partial(_regression, rule="ngd", eta=0.05),
            "finite": partial(_regression, N=7, noise=0.4, epsilon=None, above=0.02),
            "finite without noise": partial(_regression, N=4, epsilon=None, above=0.02),
            "one token": partial(_regression, N=1, noise=0.4, epsilon=None, above=0.2),
            "features": partial(
                _regression,
                K=4,
                delta=0.8,
                features=FEATURES,
                task="fourier",
                N=6,
                noise=0.2,
                epsilon=None,
                above=0.3,
            ),
            "factored": partial(
                _regression, K=3, task="cosine", coordinates="factored", max_steps=4
            ),
            "linear attention": lambda: icl.LinearAttention(
                d=3, decay=0.7, N=9, noise=0.4, start=0.05, eta=0.1, above=0.05
            ).simulate(),
            "linear attention, epsilon": lambda: icl.LinearAttention(
                d=2, N=9, noise=0.4, start=0.05, eta=0.3, epsilon=0.45
            ).simulate(),
            "linear attention, heads": lambda: icl.LinearAttention(
                d=2,
                N=9,
                noise=0.4,
                coordinates="heads",
                heads=2,
                rank=1,
                start=0.3,
                seed=5,
                eta=0.1,
                max_steps=3,
            ).simulate(),
            "sphere": lambda: icl.Sphere(
                task="relu", d=3, N=6, L=1.4, noise=0.6, start=0.7, eta=0.9, max_steps=3
            ).simulate(),
        }.items():
            yield name, lambda run=run: _proved(run(), bits=64, states=2)
        yield "one state", lambda: _proved(_regression(), bits=40, states=1)
        yield "many bits", lambda: _proved(_regression(), bits=300, states=2)

    def refusals() -> Asked:
        for name, options in {
            "few bits": {"bits": 31},
            "many bits": {"bits": 8193},
            "no states": {"states": 0},
            "half": {"bits": 64.5},
        }.items():
            yield name, lambda options=options: icl.certify(_regression(), **options)
        yield "no run", lambda: icl.certify(3)  # type: ignore[arg-type]
        yield "too few bits", lambda: icl.certify(_regression(epsilon=1e-30), bits=32)
        yield "another risk", lambda: icl.certify(icl.descend(Bowl(), 0.1, steps=3))
        yield (
            "samples",
            lambda: icl.certify(
                icl.descend(_kinds()["one kind"].sampled(3, 0), 0.1, steps=2)
            ),
        )
        yield "a file", _loaded
        yield (
            "unknown",
            lambda: icl.certify(_regression(), bits=64, states=1).named("speed"),
        )
        yield (
            "unstable",
            lambda: icl.certify(
                icl.LinearAttention(
                    d=2, N=9, start=0.05, eta=9.0, max_steps=2, epsilon=5.0
                ).simulate()
            ),
        )
        yield (
            "far apart",
            lambda: enclosed(_kinds()["one kind"], np.array([0.0, 3000.0, 1.0]), 64),
        )
        yield (
            "curved",
            lambda: enclosed(
                Pullback(_kinds()["one kind"], _Curved()), np.zeros(3), 64
            ),
        )

    class _Curved(icl.engine.Map):
        initial = np.zeros(3)

        def inward(self, params: Any) -> Any:
            return params**3

        def push(self, params: Any, direction: Any) -> Any:
            return 3.0 * params**2 * direction

        def outward(self, params: Any, gradient: Any) -> Any:
            return 3.0 * params**2 * gradient

        def stretch(self, params: Any) -> float:
            return 1.0

    def _loaded() -> Any:
        icl.descend(Bowl(), 0.1, steps=3).save("run.npz")
        return icl.certify(icl.load("run.npz"))

    def losses() -> Asked:
        """Losses and gradients, as doubles, and whether the balls are as small as is asked for."""
        for name, risk in _kinds().items():
            if name not in ("many tokens", "most tokens", "rare nodes"):
                yield name, Call(partial(_enclosed, risk, _at(risk)), 1e-10, 1e-14)
        population = icl.PopulationRisk(
            FEATURES, icl.tasks.Quadratic(1.3), N=5, noise=0.4
        )
        yield (
            "population",
            Call(partial(_enclosed, population, _at(population)), 1e-10, 1e-14),
        )
        infinite = icl.PopulationRisk(FEATURES, icl.tasks.Quadratic(1.3))
        yield (
            "infinite prompts",
            Call(partial(_enclosed, infinite, _at(infinite)), 1e-10, 1e-14),
        )
        symmetric = icl.SymmetricRisk([2, 3], [0.2, 0.2], 2.0, N=4, noise=0.3)
        yield (
            "groups",
            Call(partial(_enclosed, symmetric, _at(symmetric)), 1e-10, 1e-14),
        )
        factors = Pullback(
            icl.in_coordinates(infinite, "embedding", FEATURES.vectors),
            Factored.random(3, 2, 0.7, 1),
        )
        yield "factors", Call(partial(_enclosed, factors, _at(factors)), 1e-10, 1e-14)
        yield (
            "product",
            lambda: [
                str(each.mid())
                for each in product(
                    balls([[1, 2], [3, 4]]), balls([[0.5, 0], [1, -1]])
                ).flat
            ],
        )

    def _enclosed(risk: icl.Risk, at: Any) -> Any:
        loss, gradient = enclosed(risk, at, 60)
        entries = np.ravel(np.asarray(gradient, dtype=object))
        radii = [
            float(each.rad()) / max(abs(float(each.mid())), 1e-9)
            for each in (loss, *entries)
        ]
        return (
            float(loss.mid()),
            np.array([float(each.mid()) for each in entries]),
            max(radii) < 2.0**-20,
        )

    def closed_forms() -> Asked:
        with ctx.workprec(96):
            c = arb(0.1)
            for K in (2, 5, 9):
                yield f"deficit {K}", partial(_middle, closed.deficit, K, 0)
                yield (
                    f"phase one {K}",
                    partial(_within, closed.phase_one_lies_between, K, arb(0.01)),
                )
                for s in (0.3, 0.01):
                    yield (
                        f"steps {K} {s}",
                        lambda K=K, s=s: [*_within(closed.steps_to, K, c, arb(s))],
                    )
            yield "deficit of attention", partial(_middle, closed.deficit, 9, 2)
            for N, noise in ((1, 0.3), (4, 0.0), (6, 0.4)):
                yield (
                    f"least loss {N} {noise}",
                    partial(_middle, closed.least_loss, 5, arb(1.3), N, noise),
                )
            for form in ("a", "s"):
                yield (
                    f"abel {form}",
                    lambda form=form: _middle(lambda: closed.abel(c, form)(arb(0.7))),
                )
                yield (
                    f"in doubt {form}",
                    lambda form=form: float(_within(closed.in_doubt, form, c).rad()),
                )
            yield "flow", partial(_middle, closed.flow, arb(0.2), 5)
            yield (
                "everywhere",
                partial(
                    _within, closed.everywhere, lambda x: x * x < 5, arb(-2), arb(2)
                ),
            )
            yield (
                "nowhere",
                partial(
                    _within, closed.everywhere, lambda x: x * x < 3, arb(-2), arb(2)
                ),
            )
            yield (
                "zeros",
                lambda: [
                    float(each.mid())
                    for each in _within(
                        closed.zeros, lambda x: x * x - 2, arb(-3), arb(3)
                    )
                ],
            )
            yield (
                "no zeros",
                partial(_within, closed.zeros, lambda x: x * x + 2, arb(-3), arb(3)),
            )

    def _within(ask: Any, *given: Any) -> Any:
        with ctx.workprec(96):
            return ask(*given)

    def _middle(ask: Any, *given: Any) -> float:
        return float(_within(ask, *given).mid())

    def sentences() -> Asked:
        for name, ball, double, stated in (
            ("steps", range(7, 8), 7, 0.0),
            ("steps", range(7, 9), 7, 0.0),
            ("steps", range(1234567, 1234568), 1234568, 1.0),
            ("steps", range(7, 8), 9, 1.0),
            ("loss", arb(0.25), 0.25, 0.0),
            ("loss", arb(0.25), None, 0.0),
            ("loss", arb(0.25), 0.5, 0.0),
            ("gradient", balls([0.5, 0.25]), np.array([0.5, 0.0]), 0.0),
            ("steps", range(3, 9), None, 0.0),
        ):
            proved = Proved(name, ball, "nothing", double, stated)
            yield (
                f"{name} {ball if isinstance(ball, range) else ''} {double} {stated}",
                lambda proved=proved: [str(proved), proved.interval, proved.error],
            )
        radii = np.array([arb(0.5, 1e-3), arb(0.25, 1e-9)], dtype=object)
        for double in (None, np.array([0.5, 0.25]), np.array([0.75, 0.25])):
            wide = Proved("gradient", radii, "nothing", double)
            yield (
                f"balls of two sizes {double}",
                lambda wide=wide: [str(wide), wide.interval, wide.error],
            )
        one = Proved("loss", arb(0.5, 1e-3), "nothing", 0.5)
        yield "a wide ball", lambda: [str(one), one.interval, one.error]
        both = Certificate([Proved("one", range(1), "a"), Proved("two", arb(0.5), "b")])
        yield (
            "both",
            lambda: [str(both), repr(both), both.named("two").basis, both.to_dict()],
        )
        yield "none", lambda: both.named("three")
