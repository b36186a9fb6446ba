from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

import icl_theory as icl
from tests.recall.references import bigrams, enumerate_sentences

Counts, RecallTask = icl.recall.Counts, icl.recall.RecallTask


@st.composite
def tasks(draw: st.DrawFn) -> icl.recall.RecallTask:
    Q, outputs = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    V = Q + outputs + 1 + draw(st.integers(0, 5))
    words = draw(st.permutations(range(V)))
    law = (
        None
        if draw(st.booleans())
        else Counts.fixed(draw(st.integers(1, 3)), draw(st.integers(0, 2)))
    )
    return RecallTask(
        V,
        words[:Q],
        words[Q : Q + outputs],
        alpha=draw(st.sampled_from([0.0, 0.3, 0.9])),
        noise_word=words[-1],
        H=draw(st.integers(11, 16)),
        counts=law,
        probs=np.arange(1.0, Q + 1) / sum(range(1, Q + 1)),
    )


@given(tasks(), st.integers(0, 1000))
def test_sentences_obey_the_definition(task: icl.recall.RecallTask, seed: int) -> None:
    drawn = task.sentences(np.random.default_rng(seed), 20)
    for tokens, answer, y, trigger, c, c_tau in zip(*drawn, strict=True):
        words = tuple(tokens.tolist())
        q = task.triggers[trigger]
        assert words[-1] == q
        assert len(words) == task.H
        assert y in task.outputs
        assert bigrams(words, q, y) == c >= 1
        assert bigrams(words, q, task.noise_word) == c_tau
        assert sum(word == q for word in words[:-1]) == c + c_tau
        assert answer in (y, task.noise_word)
        assert 0 <= min(words) <= max(words) < task.V


@given(tasks(), st.integers(0, 1000))
def test_bayes_predictor_knows_the_output(
    task: icl.recall.RecallTask, seed: int
) -> None:
    drawn = task.sentences(np.random.default_rng(seed), 10)
    law = task.predict(drawn.tokens)
    rows = np.arange(10)
    np.testing.assert_allclose(law.sum(axis=1), 1.0)
    np.testing.assert_array_equal(law[rows, drawn.output], 1.0 - task.alpha)
    np.testing.assert_array_equal(law[:, task.noise_word], task.alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_sampler_draws_every_sentence_with_its_probability(alpha: float) -> None:
    task = RecallTask(4, 1, 2, alpha=alpha, H=5)
    expected = {
        (s.tokens, s.y): s.weight for s in enumerate_sentences(task, 0.25, alpha)
    }
    size = 60_000
    drawn = task.sentences(np.random.default_rng(1), size)
    seen = Counter(
        (tuple(t), int(y))
        for t, y in zip(drawn.tokens.tolist(), drawn.output, strict=True)
    )
    assert set(seen) <= set(expected)
    statistic = sum(
        (seen[key] - size * p) ** 2 / (size * p) for key, p in expected.items()
    )
    assert chi2.sf(statistic, len(expected) - 1) > 1e-3


def test_counts_have_the_law_that_was_asked_for() -> None:
    laws = [
        Counts(np.array([[0.0, 0.0], [0.5, 0.1], [0.1, 0.3]])),
        Counts.geometric(2.0, most=5),
    ]
    task = RecallTask(9, 2, 3, counts=laws, probs=[0.3, 0.7], H=13)
    drawn = task.sentences(np.random.default_rng(0), 40_000)
    for index, law in enumerate(laws):
        mine = drawn.trigger == index
        assert mine.mean() == pytest.approx(task.probs[index], abs=4 * 0.5 / 200)
        for cell in np.ndindex(law.pmf.shape):
            share = np.mean((drawn.c[mine] == cell[0]) & (drawn.c_tau[mine] == cell[1]))
            spread = math.sqrt(law.pmf[cell] * (1 - law.pmf[cell]) / mine.sum())
            assert abs(share - law.pmf[cell]) <= 4.5 * spread


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_bayes_predictor_and_risk_are_those_of_the_enumeration(alpha: float) -> None:
    task = RecallTask(5, 2, 2, alpha=alpha, probs=[0.3, 0.7], H=5)
    joint: dict[tuple[int, ...], np.ndarray] = {}
    for s in enumerate_sentences(task, 0.25, alpha):
        law = joint.setdefault(s.tokens, np.zeros(task.V))
        law[s.y] += s.weight * (1 - alpha)
        law[task.noise_word] += s.weight * alpha
    risk = 0.0
    for tokens, law in joint.items():
        posterior = law / law.sum()
        np.testing.assert_allclose(task.predict([tokens])[0], posterior, atol=1e-15)
        risk -= sum(
            p * math.log(c) for p, c in zip(law, posterior, strict=True) if p > 0
        )
    assert task.bayes_risk == pytest.approx(risk, rel=1e-12, abs=1e-15)


def test_other_outputs_change_nothing_but_the_outputs() -> None:
    task = RecallTask(12, 2, 3, alpha=0.2, H=15)
    seen, unseen = (
        task.sentences(np.random.default_rng(3), 500, words)
        for words in (task.outputs, task.unseen[:2])
    )
    np.testing.assert_array_equal(seen.c, unseen.c)
    np.testing.assert_array_equal(
        seen.answer == task.noise_word, unseen.answer == task.noise_word
    )
    assert set(unseen.output.tolist()) == set(task.unseen[:2].tolist())


def test_smallest_tasks_have_defined_answers() -> None:
    task = RecallTask(3, 1, 1, H=3)
    drawn = task.sentences(np.random.default_rng(0), 1)
    assert drawn.tokens.tolist() == [[0, 1, 0]]
    assert (task.bayes_risk, task.best_gamma, task.unseen.size) == (0.0, -math.inf, 0)
    assert task.predict(drawn.tokens).tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alpha": 1.0}, "alpha = 1.0: must be a number in [0, 1)"),
        ({"alpha": -0.1}, "alpha = -0.1"),
        ({"alpha": math.nan}, "alpha = nan"),
        (
            {"triggers": [1, 2], "outputs": [2, 3]},
            "outputs = [2, 3]: must be disjoint from the triggers",
        ),
        ({"triggers": [1, 1]}, "triggers = [1, 1]"),
        ({"triggers": 0}, "triggers = 0"),
        ({"triggers": []}, "triggers = []"),
        ({"triggers": "ab"}, "triggers = 'ab'"),
        ({"triggers": [9], "outputs": [1]}, "without the noise word 9"),
        ({"triggers": [10]}, "triggers = 10"),
        ({"noise_word": 10}, "noise_word = 10"),
        ({"H": 2}, "H = 2: must be at least 3"),
        ({"H": 6, "counts": Counts.fixed(2, 1)}, "H = 6: must be at least 7"),
        (
            {"H": 6, "counts": [Counts.fixed(1), Counts.fixed(2, 1)]},
            "H = 6: must be at least 7",
        ),
        ({"counts": [0.5, 0.5]}, "without mass at c = 0"),
        ({"counts": [Counts.fixed(1)]}, "one Counts, or 2 of them"),
        ({"V": 6}, "V = 6: must be at least"),
        ({"V": 2}, "V = 2"),
        (
            {"V": 5, "triggers": [0, 1], "outputs": [2, 3, 4], "noise_word": 4},
            "V = 5: must be at least 6",
        ),
        ({"probs": [0.5, 0.6]}, "probs"),
        ({"probs": [1.0]}, "probs"),
    ],
)
def test_wrong_input_is_named(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        RecallTask(**({"V": 10, "triggers": 2, "outputs": 4} | arguments))  # type: ignore[arg-type]
    assert words in str(error.value)


@pytest.mark.parametrize(
    "tokens",
    [
        [[0, 3, 1, 3, 2]],  # does not end with a trigger
        [[3, 2, 1, 4, 0]],  # the output never follows
        [[0, 2, 0, 3, 0]],  # two outputs
        [[0, 0, 2, 4, 0]],  # trigger after trigger
        [[0, 1, 2, 4, 0]],  # another trigger in place of the output
        [[0, 2, 4, 4, 0], [1, 0, 2, 4, 1]],  # only the first is one
        [[0, 2, 0]],  # too short
        [[0, 2, 9, 9, 0]],  # no such word
        [0, 2, 1, 1, 0],
    ],
)
def test_bayes_predictor_refuses_what_the_task_cannot_say(
    tokens: list[list[int]],
) -> None:
    with pytest.raises(ValueError, match="tokens"):
        RecallTask(6, 2, 3, H=5).predict(tokens)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_planted_bigrams_of_words_of_their_own_stand_among_words_that_may_be_outputs(
    alpha: float,
) -> None:
    triggers = [4, 1][: 1 if alpha else 2]
    task = RecallTask(
        9, triggers, [0, 5], noise_word=3, alpha=alpha, H=10, law="planted"
    )
    found = task.sentences(np.random.default_rng(0), 400)
    words = set()
    for tokens, y, trigger in zip(
        found.tokens.tolist(), found.output.tolist(), found.trigger, strict=True
    ):
        q = task.triggers[trigger]
        pairs = [(tokens[h], tokens[h + 1]) for h in range(9) if tokens[h] == q]
        assert sorted(pairs) == sorted([(q, y)] + [(q, 3)] * (alpha > 0))
        assert tokens[-1] == q
        rest = Counter(tokens[:-1])
        rest.subtract([word for pair in pairs for word in pair])
        words |= {word for word, number in rest.items() if number}
    assert words == set(range(9)) - {*triggers, 3}
    assert set(found.answer.tolist()) == {0, 5} | ({3} if alpha else set())


def test_the_sentence_that_is_refused_is_named() -> None:
    task = RecallTask(6, 2, 3, H=5)
    good, bad = [0, 2, 4, 4, 0], [1, 0, 2, 4, 1]
    task.predict([good, good])
    for tokens in ([good, bad, good], [bad, good], [good, good, bad]):
        with pytest.raises(
            ValueError,
            match=r"tokens = \[1, 0, 2, 4, 1\]: must be a sentence of the task",
        ):
            task.predict(tokens)


@pytest.mark.parametrize(
    "parts",
    [
        {"probs": [0.5, 0.25, 0.25]},
        {"probs": [0.334, 0.333, 0.333]},
        {
            "counts": [
                Counts([0.0, 0.5, 0.5]),
                Counts([0.0, 0.5, 0.5]),
                Counts([0.0, 0.501, 0.499]),
            ]
        },
        {"counts": [Counts.fixed(1), Counts.fixed(1), Counts.fixed(1, 1)]},
    ],
    ids=str,
)
def test_triggers_that_differ_a_little_have_strengths_of_their_own(
    parts: dict[str, Any],
) -> None:
    """One λ would stand for all of them otherwise, and the loss be that of other triggers."""
    task = RecallTask(10, 3, 4, H=9, **parts)
    assert not task.alike
    assert len(icl.Recall(task=task).risk().initial) == 3
    with pytest.raises(ValueError, match=r"^tied = True"):
        icl.recall.RecallRisk(task, tied=True)
    same = [Counts([0.0, 0.5, 0.5]) for _ in range(3)]
    assert RecallTask(
        10, 3, 4, probs=[1 / 3] * 3, counts=same, H=9
    ).alike  # laws that are equal are one law


def test_outputs_of_a_sample_are_checked() -> None:
    task = RecallTask(8, 2, 3, H=5)
    for words in ([0], [7], [8], []):
        with pytest.raises(ValueError, match="outputs"):
            task.sentences(np.random.default_rng(0), 3, words)


def test_planted_bigrams_are_anywhere_and_in_either_order() -> None:
    """Of (q, y) and (q, τ) all places that do not overlap are as likely, and so are all words around them."""
    task, size = RecallTask(9, 1, 3, alpha=0.3, H=8, law="planted"), 60_000
    found = task.sentences(np.random.default_rng(0), size)
    tokens = found.tokens[:, :-1]
    place = {}
    for name, word in (("y", found.output[:, None]), ("tau", np.full((size, 1), 8))):
        follows = (tokens[:, :-1] == 0) & (tokens[:, 1:] == word)
        assert (follows.sum(axis=1) == 1).all()
        place[name] = follows.argmax(axis=1)
    pairs = {(i, j) for i in range(6) for j in range(6) if abs(i - j) > 1}
    seen = Counter(zip(place["y"].tolist(), place["tau"].tolist(), strict=True))
    assert set(seen) == pairs
    assert chisquare([seen[pair] for pair in pairs]).pvalue > 1e-3
    taken = np.zeros(tokens.shape, dtype=bool)
    for start in place.values():
        taken[np.arange(size), start] = taken[np.arange(size), start + 1] = True
    words = np.bincount(tokens[~taken], minlength=9)
    assert words[[0, 8]].tolist() == [0, 0]
    assert chisquare(words[1:8]).pvalue > 1e-3
