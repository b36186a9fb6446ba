"""Adam and AdamW, which scale the step of each parameter by its own gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error, below_one, number, set_fields
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.rule import Rule

# The default settings, as in PyTorch.
BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8
ADAMW_DECAY = 0.01


@dataclass(frozen=True)
class Adam(Rule):
    r"""Adam: steps scaled by running means of the gradient and of its square.

    All operations are entry by entry.

    Let g be the gradient of the loss plus the decay :math:`\lambda\theta`, with the
    parameters θ. The memory holds the running means m of g and v of :math:`g^2`,

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2,

    and step t = 0, 1, … is :math:`\Delta = -\eta\,\hat m/(\sqrt{\hat v} +
    \varepsilon)` with the learning rate η, :math:`\hat m = m/(1 - \beta_1^{t+1})` and
    :math:`\hat v = v/(1 - \beta_2^{t+1})`. This is ``torch.optim.Adam`` with the same
    default settings.

    Parameters
    ----------
    beta1, beta2 : float
        :math:`\beta_1` and :math:`\beta_2`, from 0 to below 1.
    stabiliser : float
        :math:`\varepsilon`, which PyTorch calls ``eps``.
    weight_decay : float
        The decay λ. The term λθ is added to the gradient, as in PyTorch. In `AdamW` the
        decay changes the step instead.

    References
    ----------
    D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization",
    arXiv:1412.6980, Algorithm 1. docs/theory/rules.md.

    Examples
    --------
    The first step changes each entry by η, whatever the size of the gradient:

    >>> import numpy as np, icl_theory as icl
    >>> class Bowl(icl.Risk):
    ...     initial = np.array([1.0, -300.0])
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), params
    >>> icl.descend(Bowl(), 0.25, steps=1, rule="adam").params.round(6)
    array([   0.75, -299.75])
    """

    beta1: float = BETA1
    beta2: float = BETA2
    stabiliser: float = EPSILON
    weight_decay: float = 0.0

    name = "adam"
    may_stagnate = True
    reducible = False

    def __post_init__(self) -> None:
        set_fields(self, beta1=below_one("beta1", self.beta1))
        set_fields(self, beta2=below_one("beta2", self.beta2))
        set_fields(self, stabiliser=number("stabiliser", self.stabiliser))
        set_fields(
            self, weight_decay=number("weight_decay", self.weight_decay, zero=True)
        )

    def init(self, risk: Risk, params: Array) -> Array:
        """Return the running means of the gradient and of its square, which are zero.

        The shape is (2, ...) for parameters of shape (...).
        """
        return np.zeros((2, *np.shape(params)))

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and both running means."""
        if self.weight_decay:
            gradient = gradient + self.weight_decay * params
        return self.scaled_step(risk, gradient, eta, memory, t)

    def scaled_step(
        self, risk: Risk, gradient: Array, eta: float, memory: Array, t: int
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and both running means.

        ``gradient`` already contains the decay, if there is one.
        """
        # In the formula of the class, `mean` is m and `mean_square` is v.
        last_mean, last_mean_square = memory
        mean = self.beta1 * last_mean + (1.0 - self.beta1) * gradient
        square = np.square(gradient)
        mean_square = self.beta2 * last_mean_square + (1.0 - self.beta2) * square
        # The running means start at zero, so they are too small by the factors
        # 1 - β^(t + 1), which approach 1.
        unbiased_mean = mean / (1.0 - self.beta1 ** (t + 1))
        unbiased_mean_square = mean_square / (1.0 - self.beta2 ** (t + 1))
        change = (
            -eta * unbiased_mean / (np.sqrt(unbiased_mean_square) + self.stabiliser)
        )
        # In training the metric is always 1, because `refuse_reduced` refuses all other
        # metrics. The division makes direct calls consistent with the other rules.
        return np.asarray(change / risk.metric), np.stack([mean, mean_square])


@dataclass(frozen=True)
class AdamW(Adam):
    r"""Adam with decoupled weight decay.

    The step is the step of Adam without decay, plus :math:`-\eta\lambda\theta` with the
    learning rate η and the parameters θ. This is ``torch.optim.AdamW`` with the same
    default settings.

    Parameters
    ----------
    beta1, beta2, stabiliser : float
        As in `Adam`.
    weight_decay : float
        The decay λ.

    References
    ----------
    I. Loshchilov and F. Hutter, "Decoupled weight decay regularization",
    arXiv:1711.05101, Algorithm 2. docs/theory/rules.md.
    """

    weight_decay: float = ADAMW_DECAY

    name = "adamw"

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and both running means."""
        change, memory = self.scaled_step(risk, gradient, eta, memory, t)
        return change - eta * self.weight_decay * params, memory


def refuse_reduced(risk: Risk, rule: Rule) -> None:
    """Refuse to train reduced parameters by a rule that is not `Rule.reducible`.

    Raises
    ------
    ValueError
        The rule is not reducible, and the metric of the risk is not 1. Such a metric
        shows that the parameters are a reduction of more parameters.
    """
    if rule.reducible or np.all(np.asarray(risk.metric) == 1.0):
        return
    raise argument_error(
        "rule",
        rule.name,
        f"one that commutes with reductions: {type(risk).__name__} stands for larger "
        f"parameters, whose entries {rule.name} would scale one by one",
    )


# These rules, with their default settings, have a name on the command line.
NAMED = (Adam(), AdamW())
