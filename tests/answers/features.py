"""Features: what they are made of, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import icl_theory as icl
from tests.answers import Call

Asked = Iterator[tuple[str, Call | Any]]


def features() -> Asked:
    yield "random, unequal", partial(icl.Features.random, 4, 3, 0.8, seed=3, probs=[0.4, 0.3, 0.2, 0.1])
    for K, d, gap in ((1, 3, 0.8), (4, 0, 0.8), (4, 3, 0.0), (4, 3, 1e200)):
        yield f"random {K} {d} {gap}", partial(icl.Features.random, K, d, gap, seed=3)
