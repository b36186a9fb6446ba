// Runs by momentum and by Adam, step by step. The loss and the gradient are those of
// the closed forms: all queries are alike, so that the K × K scores are two numbers,
// the own score d and each other score o, whose gap u = d − o decides the attention.
"use strict";

const { bisected, firstStep } = require("training");
const { Run, attention } = require("./closed");

const MOST = 1e5; // steps that a page has time for
const MOMENTUM = 0.9,
  BETA1 = 0.9,
  BETA2 = 0.999,
  STABILISER = 1e-8; // as in Python, PyTorch and Optax
const NAMES = { gd: "gradient descent", "heavy-ball": "momentum 0.9", adam: "Adam" };

// v ← β v + g, θ ← θ − η v; the gap's gradient is that of both scores
function heavyBall(K, eta, pull) {
  let velocity = 0;
  return (u) => {
    const slope = pull(u);
    velocity = MOMENTUM * velocity + slope + slope / (K - 1);
    return u + eta * velocity;
  };
}

// Adam moves each score by its own running means: the gradient of o is −1/(K − 1) of
// that of d
function adam(K, eta, pull) {
  let own = 0,
    ownSquare = 0,
    other = 0,
    otherSquare = 0;
  let unseenMean = 1,
    unseenSquare = 1; // β^t, by which running means that start at zero are too small
  const moved = (mean, square) =>
    (eta * (mean / (1 - unseenMean))) /
    (Math.sqrt(square / (1 - unseenSquare)) + STABILISER);
  return (u) => {
    const slope = pull(u),
      back = slope / (K - 1);
    unseenMean *= BETA1;
    unseenSquare *= BETA2;
    own = BETA1 * own + (1 - BETA1) * slope;
    ownSquare = BETA2 * ownSquare + (1 - BETA2) * slope * slope;
    other = BETA1 * other + (1 - BETA1) * back;
    otherSquare = BETA2 * otherSquare + (1 - BETA2) * back * back;
    return u + moved(own, ownSquare) + moved(other, otherSquare);
  };
}

const STEPS = { "heavy-ball": heavyBall, adam };

// The run of a rule with memory. Loss and regime are as for gradient descent, and the
// steps are its own.
class RuleRun extends Run {
  constructor(values) {
    super(values);
    const { K, eta, epsilon, rule } = values,
      { gamma } = this;
    this.most = MOST;
    this.path = new Float64Array(MOST + 1);
    this.taken = 0;
    // −∂loss/∂d: each of the K queries has the probability 1/K
    this.next = STEPS[rule](K, eta, (u) => {
      const w = (K - 1) * Math.exp(-u),
        a = 1 / (1 + w),
        s = w / (1 + w);
      return (gamma * a * s * s) / (K - 1);
    });
    // the loss falls at each step, as u only grows
    let last = 0;
    while (last < MOST && this.lossAt(this.gap(last)) > epsilon)
      last = Math.min(MOST, 2 * last + 1);
    const { steps, reached } = firstStep(
      (t) => this.lossAt(this.gap(t)),
      epsilon,
      last,
    );
    Object.assign(this, {
      steps: reached ? steps : Infinity,
      reached,
      last: steps ?? MOST,
      error: 0,
      sure: true,
    });
  }

  // the gap of the scores after t steps, which are taken when they are first asked for
  gap(t) {
    const { path } = this,
      end = Math.min(t, MOST);
    for (; this.taken < end; this.taken++)
      path[this.taken + 1] = this.next(path[this.taken]);
    return path[end];
  }

  at(t) {
    const u = this.gap(t),
      [a, s] = attention(this.K, u);
    return { t, loss: this.lossAt(u), attention: a, deficit: s };
  }

  // phases are defined for gradient descent alone
  get phases() {
    return [];
  }
}

// the first step at which half of the attention is on the query's own feature, which
// does not depend on ε; null if the page does not take so many steps
function halfOf(run) {
  const half = Math.log(run.K - 1);
  if (!(run instanceof RuleRun)) return run.counter.stepsTo(half).steps;
  let last = 0;
  while (last < MOST && run.gap(last) < half) last = Math.min(MOST, 2 * last + 1);
  if (run.gap(last) < half) return null;
  return last === 0 ? 0 : bisected(0, last, (t) => run.gap(t) >= half);
}

const runOf = (values) =>
  values.rule === "gd" ? new Run(values) : new RuleRun(values);

module.exports = { halfOf, runOf, NAMES, MOST, MOMENTUM };
