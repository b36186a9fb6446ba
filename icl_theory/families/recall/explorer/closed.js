// Normalised descent on one strength λ for all triggers, λ = ηt/√|Q|, and its loss: population.py for linear attention, a
// fixed number of bigrams, and the log-odds of noise at their best. No part of the page is touched here.
"use strict";

const ROUNDING = 2 ** -50;

// ln(eᵃ + eᵇ)
function logAddExp(a, b) {
  return Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));
}

const entropy = (alpha) => (alpha > 0 ? -alpha * Math.log(alpha) - (1 - alpha) * Math.log1p(-alpha) : 0);

class Run {
  constructor({ V, triggers, alpha, eta, counts, above }, most = 1e15) {
    Object.assign(this, { V, alpha, counts, above, most });
    this.step = eta / Math.sqrt(triggers);
    this.gamma = alpha > 0 ? Math.log(alpha) - Math.log1p(-alpha) : -Infinity;
    this.others = V - (alpha > 0 ? 2 : 1); // words that are neither the output nor predicted noise
    this.floor = entropy(alpha);
    this.epsilon = this.floor + above;
    Object.assign(this, this.hitting());
    this.reached = this.steps !== null;
    this.last = this.steps ?? most;
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

  // the first step with loss ≤ target, by bisection, and how far rounding of λ and of the loss may move it
  hitting() {
    const { epsilon } = this;
    if (!(this.lossAt(this.most) <= epsilon)) return { steps: null, error: 0 };
    let low = -1, high = this.most;
    while (high - low > 1) {
      const middle = Math.max(low + Math.floor((high - low) / 2), 0);
      if (this.lossAt(middle) <= epsilon) high = middle;
      else low = middle;
    }
    if (high === 0) return { steps: 0, error: 0 };
    const before = this.lossAt(high - 1), after = this.lossAt(high), doubt = ROUNDING * epsilon;
    const error = doubt / Math.max(before - after, doubt * 2 ** -53);
    const close = Math.min(Math.abs(before - epsilon), Math.abs(after - epsilon)) <= doubt;
    return { steps: high, error: (close ? Math.ceil(error) : error) + 2 ** -51 * high };
  }

  // loss and probabilities of the output, of noise, and of all other words together, after t steps
  at(t) {
    const rest = Math.log(this.others) - this.step * t * this.counts;
    const total = logAddExp(0, this.alpha > 0 ? logAddExp(rest, this.gamma) : rest);
    return {
      t, loss: this.lossAt(t), excess: this.excessAt(t), strength: this.step * t,
      output: Math.exp(-total), noise: this.alpha > 0 ? Math.exp(this.gamma - total) : Math.exp(rest - total) / this.others,
      rest: this.alpha > 0 ? Math.exp(rest - total) : (Math.exp(rest - total) * (this.others - 1)) / this.others,
    };
  }
}

module.exports = { Run, logAddExp };
