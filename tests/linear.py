"""Linear attention on linear regression, whose descent and flow are known in closed form."""

from __future__ import annotations

import math

import numpy as np

import icl_theory as icl


class MergedLinearAttention(icl.Risk):
    """Loss ½ tr Λ(ΓMΓᵀ - 2ΓΛ + I) of Γ, M = (1 + 1/N)Λ² + (tr Λ/N)Λ; the spectrum of Λ is given."""

    def __init__(self, spectrum: np.ndarray, N: float) -> None:
        self.spectrum = spectrum
        self.second = (1.0 + 1.0 / N) * spectrum**2 + spectrum.sum() / N * spectrum

    @property
    def initial(self) -> np.ndarray:
        return np.zeros((len(self.spectrum), len(self.spectrum)))

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        inner = params * self.second - np.diag(self.spectrum)
        loss = 0.5 * np.sum(
            self.spectrum
            * (np.sum(params * (inner - np.diag(self.spectrum)), axis=1) + 1.0)
        )
        return float(loss), self.spectrum[:, None] * inner

    def iterate(self, t: int, eta: float) -> np.ndarray:
        """Γ after t steps: Γ*_j (1 - (1 - η λ_j m_j)^t) on the diagonal."""
        mode = np.exp(t * np.log1p(-eta * self.spectrum * self.second))
        return np.diag(self.spectrum / self.second * (1.0 - mode))


class LinearAttention(icl.Risk):
    """The same loss of (v, A), Γ = vA, for Λ = I in d dimensions, from v = ‖A‖ = ``scale`` with A along I."""

    def __init__(self, d: int, N: float, scale: float) -> None:
        self.d, self.scale = d, scale
        self.merged = MergedLinearAttention(np.ones(d), N)

    @property
    def initial(self) -> np.ndarray:
        return self.scale * np.concatenate(
            [[1.0], np.eye(self.d).ravel() / math.sqrt(self.d)]
        )

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        v, A = params[0], params[1:].reshape(self.d, self.d)
        loss, G = self.merged.evaluate(v * A)
        return loss, np.concatenate([[np.sum(G * A)], v * G.ravel()])

    def flow(self, tau: np.ndarray) -> np.ndarray:
        """γ in Γ = γI along the flow: γ*/(1 + (γ*/γ₀ - 1) exp(-2√d τ))."""
        best, first = 1.0 / self.merged.second[0], self.scale**2 / math.sqrt(self.d)
        return np.asarray(
            best / (1.0 + (best / first - 1.0) * np.exp(-2.0 * math.sqrt(self.d) * tau))
        )

    def learned(self, states: np.ndarray) -> np.ndarray:
        """γ at states of a run."""
        return np.asarray(states[..., 0] * states[..., 1])
