"""Curves from elsewhere beside exact ones: where they part, in standard errors that the tests compute, too."""

from __future__ import annotations

import functools
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.engine.sampling import joined, prompts_by_run
from icl_theory.engine.sgd_runs import train_runs
from icl_theory.engine.windows import SgdScatter
from icl_theory.results import plots

PROBLEM = icl.Regression(L=2.0, delta=1.0, eta=4.0, K=4, N=12, noise=0.1, above=1e-3)
BATCH, LAST = 64, 60


@pytest.fixture(scope="module")
def run() -> icl.Trajectory:
    return PROBLEM.simulate()


@pytest.fixture(scope="module")
def infinite() -> icl.Trajectory:
    """The run with infinite prompts, of which trainings that may explain a curve take a fifth of the time."""
    return PROBLEM.changed(N=math.inf).simulate()


@functools.cache
def trained(seed: int, eta: float = 4.0, factor: float = 1.0, N: int = 12) -> Any:
    """Batch losses of a trainer that draws prompts token by token, as a user's does."""
    features, law = icl.Features.simplex(4, 1.0), icl.tasks.Exchangeable(2.0)
    trainer = icl.SampledRisk(features, law, N, BATCH, seed, noise=0.1)
    scores, losses = trainer.initial, []
    for step in range(LAST):
        loss, gradient = trainer.evaluate(scores, step)
        losses.append(factor * loss)
        scores = scores - eta * gradient
    found = np.array(losses)
    found.flags.writeable = False
    return found


def noticed_rates(note: str) -> list[float]:
    """Factors of the learning rate that a note says would be noticed."""
    lower = re.findall(r"([\d.]+) % lower", note)
    higher = re.findall(r"([\d.]+) % higher", note)
    return [
        *(1.0 - float(percent) / 100.0 for percent in lower),
        *(1.0 + float(percent) / 100.0 for percent in higher),
    ]


@pytest.mark.parametrize("rule", ["gd", "ngd"])
def test_standard_errors_are_how_far_sgd_strays_from_the_exact_curve(rule: str) -> None:
    """Windows are equal in ln(t + 1); each run of SGD has one mean in a window."""
    eta = {"gd": 4.0, "ngd": 0.3}[rule]
    problem = PROBLEM.changed(rule=rule, eta=eta)
    run = problem.changed(max_steps=LAST).simulate()
    steps, losses = np.arange(0, LAST, 3), trained(1)[::3]
    found = run.compare(losses, steps, batch=BATCH, runs=5, seed=7)
    own_seed = int(np.random.SeedSequence(7).generate_state(1)[0])
    trainer = problem.sampled(BATCH, own_seed)
    scores = [trainer.initial] * 5
    along = np.empty((5, LAST))
    for step in range(LAST):
        drawn = joined(trainer.draw_runs(trainer.generator(step), 5))
        for i, prompts in enumerate(prompts_by_run(drawn, 5)):
            along[i, step], gradient = trainer.evaluate_on(scores[i], prompts)
            norm = np.linalg.norm(gradient) if rule == "ngd" else 1.0
            scores[i] = scores[i] - eta * gradient / norm
    strays = along[:, ::3]
    exact = np.array([run.at(int(step)).loss for step in steps])
    place = [int(24 * math.log(step + 1) / math.log(steps[-1] + 2)) for step in steps]
    assert len(found.checks) == len(found.windows) == len({*place})
    for group, check, window in zip(
        sorted({*place}), found.checks, found.windows, strict=True
    ):
        inside = np.array(place) == group
        assert window == (steps[inside][0], steps[inside][-1])
        assert check.population == pytest.approx(exact[inside].mean(), rel=1e-12)
        assert check.sampled == pytest.approx(losses[inside].mean(), rel=1e-12)
        away = [stray[inside].mean() - exact[inside].mean() for stray in strays]
        assert check.standard_error == pytest.approx(
            math.sqrt(np.mean(np.square(away))), rel=1e-9
        )
        assert check.z == pytest.approx(
            (check.sampled - check.population) / check.standard_error, rel=1e-9
        )
        single = math.sqrt(np.mean((strays[:, inside] - exact[inside]) ** 2))
        assert found.errors[inside] == pytest.approx(single, rel=1e-9)


def test_given_errors_are_those_of_independent_losses(run: icl.Trajectory) -> None:
    given = np.linspace(0.01, 0.02, len(run.t))
    found = run.compare(run.loss + 0.5 * given, run.t, errors=given)
    assert found.passed
    assert found.leaves is None
    assert found.remarks.startswith("stays on the exact curve")
    last = found.windows[-1]
    inside = (run.t >= last[0]) & (run.t <= last[1])
    assert inside.sum() > 1
    expected = math.sqrt(np.sum(given[inside] ** 2)) / inside.sum()
    assert found.checks[-1].standard_error == pytest.approx(expected, rel=1e-12)
    # each window of normal losses is beyond the limit once in a thousand times its
    # share
    assert math.erfc(found.checks[0].limit / math.sqrt(2)) == pytest.approx(
        1e-3 / len(found.checks), rel=1e-6
    )


@pytest.mark.parametrize("off", [-0.7, 0.7])
def test_a_comparison_says_how_far_off_it_is_to_either_side(
    infinite: icl.Trajectory, off: float
) -> None:
    run = infinite
    found = run.compare(run.loss + 0.01 * off, run.t, errors=0.01)
    assert found.passed
    assert (
        f"at most {max(abs(check.z) for check in found.checks):.1f} standard errors off"
        in found.remarks
    )
    far = run.compare(run.loss + 0.1 * off, run.t, errors=0.01)
    worst = next(check for check in far.checks if abs(check.z) > check.limit)
    assert (
        f"{abs(worst.z):.1f} standard errors {'above' if off > 0 else 'below'} it"
        in far.remarks
    )
    for (first, last), check in zip(far.windows, far.checks, strict=True):
        assert check.name == (
            f"step {first}" if first == last else f"steps {first} to {last}"
        )
        assert check.passed == (abs(check.z) <= check.limit)


def test_a_window_of_many_steps_is_thinned_out_evenly_and_keeps_its_ends(
    infinite: icl.Trajectory,
) -> None:
    steps = np.append(0, np.arange(2000, 2600))  # the last 600 are one window
    found = infinite.compare(np.linspace(1.0, 0.5, len(steps)), steps, errors=1.0)
    assert found.windows == ((0, 0), (2000, 2599))
    assert 200 < len(found.t) <= 257
    assert {*np.diff(found.t[1:]).tolist()} <= {2, 3}
    np.testing.assert_array_equal(
        found.losses, np.interp(found.t, steps, np.linspace(1.0, 0.5, len(steps)))
    )


def test_training_alike_stays_and_another_learning_rate_leaves(
    run: icl.Trajectory,
) -> None:
    assert all(
        run.compare(trained(seed), batch=BATCH, runs=8, seed=seed).passed
        for seed in (1, 2)
    )
    slow = run.compare(trained(1, eta=1.0), batch=BATCH, runs=8)
    assert slow.leaves is not None
    assert run.phases is not None
    assert 1 < slow.leaves[0] < run.phases.I[1] + 10  # where most is learnt
    assert "standard errors above it" in slow.remarks
    assert slow.remarks in slow.to_markdown()
    assert slow.remarks in slow._repr_html_()
    ax: Any = slow.plot()
    assert ax.lines[2].get_xdata()[0] == slow.leaves[0]
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), slow.population)
    plots.release(ax)


def test_the_band_of_the_picture_is_two_standard_errors_wide(
    run: icl.Trajectory,
) -> None:
    found = run.compare(run.loss, run.t, errors=0.1 * run.loss)
    ax: Any = found.plot()
    edges = np.concatenate([path.vertices for path in ax.collections[0].get_paths()])
    for t, exact in zip(found.t, found.population, strict=True):
        heights = edges[edges[:, 0] == max(t, 0.5), 1]
        assert [heights.min(), heights.max()] == pytest.approx(
            [0.8 * exact, 1.2 * exact], rel=1e-9
        )
    plots.release(ax)


@pytest.mark.parametrize("factor", [0.25, 2.0])
def test_another_learning_rate_is_a_factor_of_time(
    infinite: icl.Trajectory, factor: float
) -> None:
    """Curves by exact gradient descent with another rate, on the scores as a matrix: no time is scaled here."""
    run = infinite
    risk = icl.PopulationRisk(
        icl.Features.simplex(4, 1.0), icl.tasks.Exchangeable(2.0), noise=0.1
    )
    other = icl.descend(risk, 4.0 * factor, steps=LAST)
    steps = other.t[other.t < LAST]
    losses = np.array([other.at(int(step)).loss for step in steps])
    found = run.compare(losses, steps, errors=0.03)
    assert found.pace == pytest.approx(factor, rel=0.1)
    assert f"{found.pace:.2g} times the steps" in found.remarks
    doubled = run.compare(2.0 * losses, steps, errors=0.01)
    assert doubled.explanations[0].name == "factor and rate"
    assert doubled.explanations[0].parameters["scale"] == 0.5
    assert doubled.explanations[0].parameters["eta"] == pytest.approx(
        4.0 * factor, rel=0.1
    )
    assert run.compare(
        2.0 * losses, steps, errors=0.06, scale=0.5
    ).pace == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize(("factor", "last"), [(2, 40), (4, 60)])
def test_a_factor_is_found_from_what_the_run_has_seen(factor: int, last: int) -> None:
    """The run ends while it learns, so that a faster curve goes on to where nothing is known of the exact one."""
    short = icl.Regression(
        L=2.0, delta=1.0, eta=1.0, K=4, noise=0.1, above=1e-3, max_steps=60
    ).simulate()
    ahead = [short.at(factor * t).loss for t in range(last)]
    assert short.compare(ahead, errors=3e-4, scale=1.0).pace == pytest.approx(
        factor, rel=0.01
    )


def test_a_factor_is_not_told_from_less_than_half_of_the_windows() -> None:
    """Of a curve sixteen times as fast as the run the last windows lie beyond the end of the run."""
    problem = icl.Regression(L=2.0, delta=1.0, eta=1.0, K=4, noise=0.1, above=1e-3)
    short, long = (problem.changed(max_steps=last).simulate() for last in (60, 2000))
    ahead = [long.at(16 * t).loss for t in range(60)]
    assert short.compare(ahead, errors=3e-4, scale=1.0).pace is None
    assert long.compare(ahead, errors=3e-4, scale=1.0).pace == pytest.approx(
        16.0, rel=0.01
    )


def test_what_is_no_factor_of_time_is_not_called_one(
    run: icl.Trajectory, infinite: icl.Trajectory
) -> None:
    losses, steps = infinite.loss, infinite.t
    assert infinite.compare(losses, steps, errors=0.01).pace is None
    assert infinite.compare(1.3 * losses, steps, errors=0.01).pace is None
    short = run.compare(trained(1, N=4), batch=BATCH, runs=8)
    assert short.leaves is not None
    assert short.pace is None


def test_windows_that_scatter_too_far_about_a_factor_of_time_do_not_agree_with_it(
    infinite: icl.Trajectory,
) -> None:
    """Each is within the limit, but their mean square is not that of normal losses."""
    run = infinite
    steps = np.arange(60)
    twice = np.array([run.at(int(2 * step)).loss for step in steps])
    first = run.compare(twice, steps, errors=0.01)
    assert first.pace == pytest.approx(2.0, rel=0.02)
    for size, agrees in ((0.5, True), (2.5, False)):
        off = np.empty(len(steps))
        for sign, (a, b), check in zip(
            12 * [1.0, -1.0], first.windows, first.checks, strict=False
        ):
            off[a : b + 1] = sign * size * check.standard_error
        found = run.compare(twice + off, steps, errors=0.01)
        assert found.leaves is not None
        assert (found.pace is not None) == agrees


def test_at_another_pace_losses_scatter_as_where_the_exact_run_has_them(
    run: icl.Trajectory,
) -> None:
    """A curve at half the pace is off in those windows alone in which losses scatter more at half of the steps."""
    steps, runs = np.arange(0, 50, 2), 8
    exact = np.array([run.at(int(step) // 2).loss for step in steps])

    def found(losses: Any) -> Any:
        return run.compare(losses, steps, batch=1200, runs=runs, scale=1.0)

    plain = found(exact)
    assert plain.pace == pytest.approx(0.5, rel=1e-6)
    place = np.array([sum(step > last for _, last in plain.windows) for step in steps])
    there = np.interp(np.log1p(0.5 * steps), np.log1p(steps), plain.errors) ** 2
    more = np.array(
        [
            math.sqrt(there[place == i].mean()) / plain.errors[place == i][0]
            for i in range(place[-1] + 1)
        ]
    )
    errors = more * [check.standard_error for check in plain.checks]
    some = np.flatnonzero(more > 1.4)
    assert 0 < some.size < errors.size / 2
    allowed = 1.5 / (1.0 - 2.0 / runs)  # of the mean square of Student's z-scores
    for share, agrees in ((0.6, True), (1.6, False)):
        off = np.zeros(errors.size)
        off[some] = errors[some] * math.sqrt(share * allowed * errors.size / some.size)
        off[some[::2]] *= -1.0
        assert (found(exact + off[place]).pace is not None) == agrees


def test_a_comparison_says_which_learning_rates_it_would_notice(
    run: icl.Trajectory,
) -> None:
    """Nine in ten trainings leave that have one of the rates that are said: of 15 at least 10."""
    found = run.compare(trained(1), batch=BATCH)
    told = noticed_rates(found.note)
    assert told
    for factor in told:
        parted = 0
        for seed in range(15):
            losses = trained(seed, eta=4.0 * factor)
            means = [losses[first : last + 1].mean() for first, last in found.windows]
            z = [
                (mean - c.population) / c.standard_error
                for mean, c in zip(means, found.checks, strict=True)
            ]
            parted += max(map(abs, z)) > found.checks[0].limit
        assert parted >= 10, (factor, parted)
    assert (
        "cannot tell learning rates apart"
        in run.compare([0.9, 0.9], batch=BATCH, runs=4).note
    )


@pytest.mark.parametrize("error", [0.003, 0.01, 0.03])
def test_the_rates_that_are_said_are_the_nearest_that_would_be_noticed(
    run: icl.Trajectory, error: float
) -> None:
    """In some window such a curve is off by the limit, and by as much more as 90 % of a normal law have."""
    steps = np.arange(40)
    exact = np.array([run.at(int(t)).loss for t in steps])
    found = run.compare(exact, steps, errors=error)
    told = noticed_rates(found.note)

    def farthest(factor: float) -> float:
        beside = np.interp(np.log1p(factor * steps), np.log1p(run.t), run.loss)
        away = [
            beside[first : last + 1].mean() - exact[first : last + 1].mean()
            for first, last in found.windows
        ]
        return max(
            abs(far) / check.standard_error
            for far, check in zip(away, found.checks, strict=True)
        )

    assert [factor > 1.0 for factor in told] == [False, True]
    needed = found.checks[0].limit + 1.2816
    for factor in told:
        assert farthest(factor**1.1) > needed > farthest(factor**0.7)


def test_a_rate_that_would_be_noticed_is_told_from_that_of_the_run(
    run: icl.Trajectory,
) -> None:
    note = run.compare([run.at(t).loss for t in range(40)], errors=3e-4).note
    told = noticed_rates(note)
    assert told
    assert 1.0 not in told


def test_losses_without_the_factor_one_half_are_named_and_can_be_scaled(
    run: icl.Trajectory,
) -> None:
    twice = trained(1, factor=2.0)
    found = run.compare(twice, batch=BATCH, runs=8)
    assert found.leaves == (0, 0)
    assert "factor" in [item.name for item in found.explanations[:2]]
    assert run.compare(twice, batch=BATCH, runs=8, scale=0.5).passed
    scaled = run.compare(2 * run.loss, run.t, errors=0.1, scale=0.5)
    assert scaled.checks[0].standard_error == pytest.approx(0.05)


def test_a_curve_comes_from_a_file_or_a_function_as_well(
    run: icl.Trajectory, tmp_path: Path
) -> None:
    losses, path = trained(1), tmp_path / "curve.csv"
    numbers = run.compare(losses, batch=BATCH, runs=4)
    lines = [f"0.5,{step},{loss!r}" for step, loss in enumerate(losses.tolist())]
    path.write_text(
        "\ufeffWall time,Step,Value\n" + "\n".join(lines) + "\n\n", encoding="utf-8"
    )  # TensorBoard's
    assert run.compare(path, batch=BATCH, runs=4).checks == numbers.checks
    assert (
        run.compare(
            lambda state: losses[state.t], range(LAST), batch=BATCH, runs=4
        ).checks
        == numbers.checks
    )
    rng = np.random.default_rng(0)
    found = run.compare(lambda state: state.loss + rng.normal(0.0, 0.2, 100))
    assert found.t.tolist() == run.t.tolist()
    assert found.passed
    assert found.errors == pytest.approx(0.02, rel=0.4)
    path.write_text("step,loss,error\n0,0.9,0.01\n2,0.9,0.03\n")
    assert run.compare(path).errors.tolist() == [0.01, 0.03]
    plain = run.compare([0.9, 0.9], [0, 2], batch=BATCH, runs=4)
    assert plain.passed
    path.write_text("step,loss,error\n0,0.9,0.0001\n2,0.9,0.0001\n")
    # the file's own errors are too small for SGD, whose runs decide then
    assert not run.compare(path).passed
    assert run.compare(path, batch=BATCH, runs=4).checks == plain.checks
    path.write_text(f"step,loss,error\n0,{run.loss[0]},0.01\n2,{run.loss[2]},0.03\n")
    assert "as given" in run.compare(path, batch=BATCH).note
    assert run.compare(path, errors=0.2).errors.tolist() == [0.2, 0.2]


@pytest.mark.parametrize("step", ["step", " Steps", "t"])
@pytest.mark.parametrize("loss", ["loss", "value"])
@pytest.mark.parametrize("error", ["error", "Standard_Error", None])
def test_columns_of_a_file_have_the_usual_names(
    step: str, loss: str, error: str | None, run: icl.Trajectory, tmp_path: Path
) -> None:
    header, rows = f"other,{loss},{error},{step}", ["7,0.9,1.0,0", "8,0.8,3.0,5"]
    (tmp_path / "curve.csv").write_text("\n".join([header, *rows]))
    found = run.compare(tmp_path / "curve.csv", errors=None if error else 5.0)
    assert (found.t.tolist(), found.losses.tolist()) == ([0, 5], [0.9, 0.8])
    assert found.errors.tolist() == ([1.0, 3.0] if error else [5.0, 5.0])


WRONG: dict[str, tuple[Any, Any]] = {
    r"losses\[2\] = nan: .* step 9": ([0.9, 0.8, math.nan], [0, 5, 9]),
    r"steps\[2\] = 3\.0: must be more than 5": ([0.9, 0.8, 0.7], [0, 5, 3]),
    r"steps\[1\] = 0\.5: must be an integer": ([0.9, 0.8], [0, 0.5]),
    r"losses: 3 numbers for 2 steps": ([0.9, 0.8, 0.7], [0, 1]),
    r"losses = \[\]: must be a row of at least one number": ([], None),
    r"losses = \[0\.9\]: must be at least two losses": ([0.9], None),
    r"losses = \[\[0\.9, 0\.8\]\]: must be a row": ([[0.9, 0.8]], None),
    r"losses = None: must be numbers": (None, None),
    r"losses = \[\(0\.9\+1j\)\]: must be numbers": ([0.9 + 1j], None),
    r"steps = \[\]: must be at least one": ([0.9], []),
    r"losses = \['a'\]: must be numbers": (["a"], None),
    r"with a number as loss in row 3": ("step,loss\n0,0.9\n1,\n", None),
    r"with a number as loss in row 2": ("0,0.9\n1,x\n", None),
    r"header step,loss": ("", None),
    r"steps = \[0\]: must be left out": ("step,loss\n0,0.9\n", [0]),
}


@pytest.mark.parametrize("words", WRONG)
def test_a_curve_that_is_none_is_refused(
    words: str, run: icl.Trajectory, tmp_path: Path
) -> None:
    losses, steps = WRONG[words]
    if isinstance(losses, str):
        (tmp_path / "curve.csv").write_text(losses)
        losses = tmp_path / "curve.csv"
    with pytest.raises(ValueError, match=words) as refused:
        run.compare(losses, steps, batch=BATCH)
    assert "\n" not in str(refused.value)


def test_what_cannot_be_compared_says_why(run: icl.Trajectory) -> None:
    for settings in ({}, {"batch": 4, "errors": 0.1}):
        with pytest.raises(ValueError, match="either batch or errors"):
            run.compare([0.9, 0.8], **settings)  # type: ignore[arg-type]
    for wrong in (-1, [0.1, -0.1], [0.1, math.nan], [0.1, 0.1, 0.1]):
        with pytest.raises(ValueError, match=r"^errors"):
            run.compare([0.9, 0.8], errors=wrong)
    with pytest.raises(
        ValueError, match=r"infinite prompts cannot be sampled; give errors"
    ):
        icl.simulate(2.0, 1.0, 4.0).compare([0.95, 0.9], batch=4)
    chain = icl.FixedChain(max_steps=9).simulate()
    with pytest.raises(ValueError, match=r"fixed-chain.* can be sampled; give errors"):
        chain.compare([1.0, 0.9], batch=4)
    assert chain.compare(chain.loss, chain.t, errors=1.0).passed
    with pytest.raises(ValueError, match="on exact losses"):
        icl.descend(PROBLEM.sampled(4, 0), 1.0, steps=3).compare([0.9, 0.8], batch=4)
    with pytest.raises(
        ValueError, match=r"^batch = 0: must be an integer >= 1; give errors"
    ):
        run.compare([0.9, 0.8], batch=0)
    with pytest.raises(ValueError, match="at most 1,000,000 with batch"):
        run.compare([0.9, 0.8], [0, 10**7], batch=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [
        icl.LinearAttention(d=2, N=9),
        icl.Sphere(N=9),
        icl.SoftmaxHeads(N=9),
        icl.Recall(V=10, triggers=2, outputs=3, H=9, alpha=0.2, rule="gd", above=0.1),
        icl.TokenSelection(n=4, max_steps=20),
    ],
)
def test_every_family_with_a_sampler_has_a_band(family: icl.Family) -> None:
    run = family.simulate()
    steps = run.t[:12]
    assert run.compare(run.loss[:12], steps, batch=32, runs=4).passed
    trainer = family.sampled(32, 99)
    params, losses = trainer.initial, []
    for step in range(int(steps[-1]) + 1):
        loss, gradient = trainer.evaluate(params, step)
        losses.append(loss)
        params = params - run.eta * gradient / trainer.metric
    assert run.compare(losses, batch=32).passed


def test_a_risk_of_tokens_has_one_too() -> None:
    kinds = [icl.Kind(3, [0.5, 0.5], [[1.0], [0.0]])]
    risk = icl.TokenRisk(kinds, [1.0])
    run = icl.descend(risk, eta=1.0, steps=8)
    assert run.compare(run.loss, run.t, batch=32, runs=4).passed


def test_the_command_compares_a_saved_run_with_a_file(
    run: icl.Trajectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    run.save("run.npz")
    for name, losses in (
        ("same", trained(1)),
        ("slow", trained(1, eta=1.0)[:30]),
        ("twice", trained(1, factor=2.0)),
    ):
        lines = [f"{step},{loss!r}" for step, loss in enumerate(losses.tolist())]
        Path(f"{name}.csv").write_text("\n".join(["step,loss", *lines]))

    def said(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["compare", "run.npz", *words])
        return int(str(ended.value.code)), *capsys.readouterr()

    status, out, _ = said("same.csv", "--batch", "64", "--plot", "both.png")
    assert status == 0
    assert out.strip() == run.compare("same.csv", batch=64).to_markdown()
    assert Path("both.png").stat().st_size > 1000
    status, out, _ = said("slow.csv", "--batch", "64", "--json")
    assert status == 1
    assert json.loads(out)["leaves"] == list(
        run.compare("slow.csv", batch=64).leaves or ()
    )
    assert said("twice.csv", "--batch", "64", "--scale", "0.5")[0] == 0
    assert "either batch or errors" in said("same.csv")[2]


def test_the_page_shows_the_layer_that_made_its_curves() -> None:
    root = Path(__file__).parents[1]
    script = (root / "scripts" / "own_run.py").read_text(encoding="utf-8")
    layer = script.split("# ---- the layer: the page shows it from here\n")[1].split(
        "\n\n# ---- to here"
    )[0]
    assert layer in (root / "docs" / "guide" / "your-own-run.md").read_text(
        encoding="utf-8"
    )


def test_errors_of_a_file_that_are_none_are_named(
    run: icl.Trajectory, tmp_path: Path
) -> None:
    (tmp_path / "curve.csv").write_text("step,loss,error\n0,1.0,0.1\n5,0.5,-0.1\n")
    with pytest.raises(
        ValueError, match=r"^errors = \[0\.1, -0\.1\]: must be one number >= 0"
    ):
        run.compare(tmp_path / "curve.csv")


def masked(values: Any, beyond: int = 3) -> Any:
    """Values of which all beyond the first few are wrong and masked."""
    mask = np.arange(len(values)) > beyond
    return np.ma.array(np.where(mask, 99.0, values), mask=mask)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            lambda run: {"losses": masked(run.loss), "steps": run.t, "errors": 0.01},
            "losses = .* without a mask",
        ),
        (
            lambda run: {"losses": run.loss, "steps": masked(run.t), "errors": 0.01},
            "steps = ",
        ),
        (
            lambda run: {
                "losses": run.loss,
                "steps": run.t,
                "errors": masked(run.loss),
            },
            "errors = ",
        ),
        (
            lambda run: {"losses": lambda state: masked(np.ones(9))},
            "losses = .* without a mask, at step 0",
        ),
        (
            lambda run: {"losses": lambda state: []},
            "losses = .* without a mask, at step 0",
        ),
    ],
)
def test_what_is_masked_is_refused_and_not_judged(given: Any, words: str) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)
    with pytest.raises(ValueError, match=words):
        run.compare(**given(run))


def test_numbers_under_a_mask_that_hides_none_are_numbers() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)
    plain = run.compare(run.loss, run.t, errors=0.01)
    assert (
        run.compare(np.ma.array(run.loss), np.ma.array(run.t), errors=0.01).checks
        == plain.checks
    )


@pytest.mark.parametrize("runs", [3, 1001, 10**12])
def test_the_number_of_runs_of_sgd_has_limits(runs: int) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)
    with pytest.raises(
        ValueError, match=rf"runs = {runs}: must be an integer in \[4, 1000\]"
    ):
        run.compare(run.loss, run.t, batch=8, runs=runs)


@pytest.mark.skipif(
    os.name != "posix", reason="devices and pipes have other names there"
)
@pytest.mark.parametrize("kind", ["device", "pipe", "link to a device", "folder"])
def test_a_curve_is_read_from_a_plain_file_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    if kind == "device":
        path = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)
    with pytest.raises(ValueError, match=r"losses = .*: must be a plain CSV file"):
        run.compare(path, errors=0.01)


def test_a_curve_of_a_size_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text("step,loss\n0,1.0\n")
    os.truncate(path, 10**12)
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=20, above=1e-3)
    with pytest.raises(
        ValueError, match="a CSV file of at most 64 MB; this one has 1,000,000 MB"
    ):
        run.compare(path, errors=0.01)


def test_runs_of_sgd_on_the_whole_squared_error_are_in_its_unit() -> None:
    """The band of a run with loss="mse" is twice that of half the loss, at twice the rate."""
    half = icl.LinearAttention(
        d=2, N=5, coordinates="layer", heads=2, start=0.3, eta=0.04, max_steps=12
    )
    whole = half.changed(loss="mse", eta=0.02)
    sgd = icl.descend(half.sampled(batch=8, seed=3), 0.04, steps=12)
    one = half.simulate().compare(sgd.loss, sgd.t, batch=8, runs=4, scale=1.0)
    other = whole.simulate().compare(2.0 * sgd.loss, sgd.t, batch=8, runs=4, scale=1.0)
    for mine, theirs in zip(one.checks, other.checks, strict=True):
        assert theirs.z == pytest.approx(mine.z, rel=1e-9, abs=1e-12)


class Pairs(NamedTuple):
    """Inputs and outputs of a linear law with noise."""

    x: np.ndarray
    y: np.ndarray


class NoisyLine(icl.engine.Samplable[Pairs]):
    """Least squares in four dimensions, whose SGD ends above the exact loss."""

    initial = np.zeros(4)

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        error = params - 1.0
        return 0.5 * float(error @ error) + 0.5, error

    def draw(self, rng: np.random.Generator, size: int) -> Pairs:
        x = rng.normal(size=(size, 4))
        return Pairs(x, x.sum(axis=1) + rng.normal(size=size))

    def losses_on(self, params: Any, prompts: Pairs) -> Any:
        return 0.5 * (prompts.x @ params - prompts.y) ** 2

    def evaluate_on(self, params: Any, prompts: Pairs) -> tuple[float, Any]:
        error = prompts.x @ params - prompts.y
        return 0.5 * float(np.mean(error**2)), error @ prompts.x / len(error)


def test_sgd_that_leaves_the_exact_curve_is_compared_with_its_own_mean() -> None:
    """A run scatters about the mean of R others with the variance s² (1 + 1/R)."""
    risk = NoisyLine()
    run = icl.descend(risk, eta=0.3, steps=400)
    steps = np.arange(400)
    losses = train_runs(risk.sampled(4, 99), 1, 0.3, run.trained_by, steps)[0]
    compared = run.compare(losses, batch=4, seed=5)
    assert compared.passed
    assert "whose mean itself leaves the exact curve, by " in compared.remarks
    assert "| mean of SGD |" in compared.to_markdown()

    seed = int(np.random.SeedSequence(5).generate_state(1)[0])
    runs = train_runs(risk.sampled(4, seed), 16, 0.3, run.trained_by, steps)
    np.testing.assert_allclose(compared.reference, runs[:, compared.t].mean(axis=0))
    assert compared.reference[-50:].mean() > 1.1 * compared.population[-50:].mean()
    first, last = compared.windows[-1]
    means = runs[:, first : last + 1].mean(axis=1)
    error = means.std(ddof=1) * (17.0 / 16.0) ** 0.5
    check = compared.checks[-1]
    assert check.standard_error == pytest.approx(error)
    z = (losses[first : last + 1].mean() - means.mean()) / error
    assert check.z == pytest.approx(z)

    doubled = run.compare(2.0 * losses, batch=4, seed=5)
    assert doubled.leaves is not None
    assert doubled.explanations[0].name == "factor"


def test_runs_of_sgd_scatter_about_their_mean_as_another_run_would() -> None:
    """For three runs s² has two degrees of freedom, and another run the variance 4/3 s²."""
    losses = np.array([[1.0, 4.0], [2.0, 4.0], [6.0, 1.0]])
    scatter = SgdScatter.about_mean(losses)
    assert scatter.freedom == 2
    variance = np.mean(scatter.deviations**2, axis=0)
    np.testing.assert_allclose(variance, 4 / 3 * np.var(losses, axis=0, ddof=1))
