"""Columns of sweeps of in-context regression."""

from __future__ import annotations

from icl_theory.families.parameters import LIPSCHITZ
from icl_theory.grids.grid import Column

THEOREMS = ("Theorem 1", "Theorem 2")
HELD = "1 holds, 0 fails, -1 where its hypotheses do"

COLUMNS: tuple[Column, ...] = (
    Column(
        "regime", "U6", "", '"flat" or "sharp"; empty where it is not defined', role="word", extra=(("table", 1),),
    ),
    Column("attention", "f8", "", "target attention at the end, mean over queries"),
    Column("tail_constant", "f8", "squared label units", "limit of t (loss - floor), where it is known"),
    Column("tail_ratio", "f8", "", "t (loss - floor) at the end, over tail_constant"),
    Column(
        "predicted_steps", "f8", "steps", "leading order K²/(ηγ) + (K-1)/(4ηε), exchangeable with N = inf",
        "predicted T_ε", r"\mathrm{predicted}\ T_\varepsilon", "predicted",
    ),
    Column(
        "L_half", "f8", LIPSCHITZ, "L at which the exponents of T in L, Δ and ε are half-way between their limits,"
        " for gradient flow with K >= 7 features, exchangeable with N = inf",
        "L½", "L_{1/2}", "boundary",
        (("of", "L"), ("definition", "half-way in L"), ("half_way", ("L", "delta", "epsilon"))),
    ),
    Column(
        "L_star", "f8", LIPSCHITZ, "predicted crossover L*, exact, for the exchangeable class with N = inf", "L*",
        "L^*", "boundary", (("of", "L"), ("definition", "exact onset of the tail")),
    ),
    Column(
        "L_star_leading", "f8", LIPSCHITZ, "the same at leading order in K", "leading-order L*",
        r"\mathrm{leading\ order}\ L^*", "boundary", (("of", "L"), ("definition", "leading order in K")),
    ),
    Column("steps_low", "f8", "steps", "certified lower bound on last, exchangeable with N = inf"),
    Column("steps_high", "f8", "steps", "certified upper bound on last"),
    Column("certified", "i1", "", f"whether last lies between the two: {HELD}", role="verdict"),
    *(
        column
        for i in (1, 2)
        for column in (
            Column(f"theorem_{i}_bound", "f8", "steps", f"Theorem {i}'s bound on steps - T_I, its constant fitted"),
            Column(
                f"theorem_{i}", "i1", "", f"whether it bounds steps - T_I up to a factor 2: {HELD}",
                f"Thm {i}", role="verdict",
            ),
        )
    ),
)  # fmt: skip
