// Normalised descent on one strength λ for all triggers, λ = ηt/√|Q|, and its loss. The
// formulas are those of population.py, for linear attention, a fixed number of bigrams,
// and the log-odds of noise at their best. This script changes no part of the page.
"use strict";

const { firstStep } = require("training");

// ln(eᵃ + eᵇ)
const logAddExp = (a, b) => Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));

const entropy = (alpha) =>
  alpha > 0 ? -alpha * Math.log(alpha) - (1 - alpha) * Math.log1p(-alpha) : 0;

class Run {
  constructor({ V, triggers, alpha, eta, counts, above }, most = 1e15) {
    Object.assign(this, { V, alpha, counts, above });
    this.step = eta / Math.sqrt(triggers);
    this.gamma = alpha > 0 ? Math.log(alpha) - Math.log1p(-alpha) : -Infinity;
    this.others = V - (alpha > 0 ? 2 : 1); // words that are neither the output nor predicted noise
    this.floor = entropy(alpha);
    this.epsilon = this.floor + above;
    Object.assign(
      this,
      firstStep((t) => this.lossAt(t), this.epsilon, most),
    );
    this.error += 2 ** -51 * (this.steps ?? 0); // rounding of λ
  }

  lossAt(t) {
    const rest = Math.log(this.others) - this.step * t * this.counts;
    if (this.alpha === 0) return logAddExp(0, rest);
    return logAddExp(0, logAddExp(rest, this.gamma)) - this.alpha * this.gamma;
  }

  // loss minus the entropy of the noise, without cancellation
  excessAt(t) {
    const rest = Math.log(this.others) - this.step * t * this.counts;
    return logAddExp(0, this.alpha > 0 ? rest - logAddExp(0, this.gamma) : rest);
  }

  // loss and probabilities of the output, of noise, and of all other words together,
  // after t steps
  at(t) {
    const rest = Math.log(this.others) - this.step * t * this.counts;
    const total = logAddExp(0, this.alpha > 0 ? logAddExp(rest, this.gamma) : rest);
    return {
      t,
      loss: this.lossAt(t),
      excess: this.excessAt(t),
      strength: this.step * t,
      output: Math.exp(-total),
      noise:
        this.alpha > 0
          ? Math.exp(this.gamma - total)
          : Math.exp(rest - total) / this.others,
      rest:
        this.alpha > 0
          ? Math.exp(rest - total)
          : (Math.exp(rest - total) * (this.others - 1)) / this.others,
    };
  }
}

// Steps of normalised descent on a strength for each trigger, on batches of sentences
// with sampled triggers. A step returns how far the loss over all sentences was above
// the Bayes risk before the step. The derivative with respect to a strength is −c times
// the probability of wrong words, whether the next word is the output or noise.
function trainer({ batch, ...values }, draw) {
  const { triggers, eta } = values,
    run = new Run({ ...values, triggers: 1, eta: 1 });
  const strengths = new Float64Array(triggers),
    excess = strengths.map((strength) => run.excessAt(strength));
  const next = () => {
    const before = excess.reduce((x, y) => x + y) / triggers,
      slopes = new Map();
    for (let b = 0; b < batch; b++) {
      const trigger = Math.floor(draw() * triggers);
      slopes.set(trigger, (slopes.get(trigger) ?? 0) - Math.expm1(-excess[trigger]));
    }
    const size = Math.hypot(...slopes.values()) || 1;
    for (const [trigger, slope] of slopes) {
      strengths[trigger] += (eta * slope) / size;
      excess[trigger] = run.excessAt(strengths[trigger]);
    }
    return before;
  };
  return Object.assign(next, {
    params: strengths,
    work: batch ? 10 * batch + triggers / 10 : 0,
    growth: 1.01,
  });
}

module.exports = { Run, trainer };
