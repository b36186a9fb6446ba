"""Statements of the theory that runs are checked for and the audit measures, each written down once."""

from icl_theory.claims.claim import OURS, Statement, Status

LEMMA_1 = Statement(
    "Lemma 1, identity",
    "paper, Lemma 1 (exact form)",
    "½ E[aᵀC^(k)a + σ² Σ a²/n] = ½ E(Σ a_m y_m - f_k)² over prompts and functions",
    "identity",
    Status.EXACT,
)
LEMMA_2 = Statement(
    "Lemma 2, identity",
    "paper, Lemma 2 (exact form)",
    "d/dh L(S + h g/|g|) = -|g|, g the growth of Lemma 2",
    "identity",
    Status.EXACT,
)
GROWTH_SIGN = Statement("Lemma 2, sign", "paper, Lemma 2", "α_k = -∂L/∂S_kk >= 0", "lower")
ENVELOPE = Statement(
    "Lemma 1, envelope", OURS, "c_k <= 2 ℓ_k / E(1 - Attn_k)² <= max_m C^(k)_mm; attained for N = inf", "two-sided"
)
ATTENTION = Statement(
    "Prop. 1, attention", "paper, Prop. 1 (our constant)", "1 - Attn_k <= √(2 ℓ_k / c_k)", "upper"
)
PREDICTION = Statement(
    "Prop. 1, prediction",
    "paper, Prop. 1 (reconstructed)",
    "|ŷ - f(v_k)| <= L Σ_m Attn_m |v_m - v_k|, any L-Lipschitz f; attained",
    "upper",
)
STEP_COUNT = Statement(
    "step count", OURS, "flow time ± logarithms bounds the number of steps from both sides", "two-sided"
)
PHASE_ONE = Statement(
    "Phase I, explicit",
    OURS,
    "[F(1/3) - F(1/K)]/c <= T₁ <= 3K²/(2ηγ) + ln(K/3) + 2 for K >= 3 and every η; T₁ = 0 for K = 2",
    "two-sided",
)
THEOREM_2 = Statement(
    "Theorem 2, explicit", OURS, "T - T₁ <= (7/16)(K-1)/(ηε) + 1 for every K, L, η and ε", "upper"
)
THEOREM_1 = Statement(
    "Theorem 1, explicit", OURS, "T - T₁ <= (7/8)(K-1)/(ηγδ²) + 1 where ε >= γδ²/2; no logarithm", "upper"
)
FLOW = Statement("gradient flow", OURS, "c t = F(a_t) - F(1/K)", "identity", Status.EXACT)
ONE_STEP = Statement(
    "one step, any task", OURS, "1/ℓ_k grows by (1 - ηλ_k/2) 4ηp_k (K/(K-1)) Attn_k² or more", "lower"
)
TAIL_STEPS = Statement(
    "tail steps, any task", OURS, "steps from ℓ_k <= c_k/8 on <= 4 [F(1 - s) - F(1 - s₀)]/(c_k g_k) + ...", "upper"
)
SAMPLED = tuple(
    Statement(f"{lemma}, sampled", f"paper, {lemma} (exact form)", words, "identity", Status.MEASURED)
    for lemma, words in (
        ("Lemma 1", "the step's loss has the mean ½ E[aᵀC^(k)a + σ² Σ a²/n]"),
        ("Lemma 2", "the step's gradient has the mean of the lemma, along it"),
    )
)
TAIL = Statement("tail law", OURS, "η t (L(t) - L_∞) -> tail_constant", "identity", Status.MEASURED)
