// Steps, losses and attention of the exchangeable case with N = ∞, for one point: the
// closed forms of abel.py, flow.py, runs.py and phases.py, operation by operation.
// The polynomials come from Python. No part of the page is touched here.
"use strict";

const { bisected, normal } = require("training");
const { quotients, terms, smallStep, curvature } = require("./constants");
const ROUNDING = 2 ** -52;
const PEAK = 4 / 27; // the largest a s², at a = 1/3
const NEVER = 2 ** 63; // from here on a number of steps counts as infinite

function attention(K, u) {
  const w = (K - 1) * Math.exp(-u);
  return [1 / (1 + w), w / (1 + w)];
}

function growth(K, u) {
  const [a, s] = attention(K, u);
  return a * s * s;
}

// F(a(u2)) − F(a(u1)) as a sum of exact differences
function flowDifference(u1, u2, K) {
  const [a1, s1] = attention(K, u1),
    [a2, s2] = attention(K, u2);
  const d = -a2 * s1 * Math.expm1(u1 - u2);
  return (
    d / (a1 * a2) + 3 * (u2 - u1) + ((2 + 0.5 * (1 / s1 + 1 / s2)) * (d / s1)) / s2
  );
}

// A(u2) − A(u1) without the polynomials
function leading(K, c, u1, u2) {
  const w1 = (K - 1) * Math.exp(-u1),
    w2 = (K - 1) * Math.exp(-u2);
  return (
    0.5 * (2 * (u1 - u2) - 3 * Math.log1p((w2 - w1) / (1 + w1))) +
    flowDifference(u1, u2, K) / c
  );
}

// Σ_j c^j P_j(x); x is the attention a for the head of a run (form "a"), and the deficit
// s = 1 − a for its tail (form "s")
function series(c, x, form) {
  const small = form === "a" ? c * x : c * x * x;
  let total = 0;
  for (const quotient of [...quotients[form]].reverse()) {
    total =
      (total + quotient.reduce((value, coefficient) => value * x + coefficient)) *
      small;
  }
  return total;
}

const variable = (K, u, form) => attention(K, u)[form === "s" ? 1 : 0];

function abel(K, c, u1, u2, form) {
  return (
    leading(K, c, u1, u2) +
    (series(c, variable(K, u2, form), form) - series(c, variable(K, u1, form), form))
  );
}

const slopeOf = (K, c, u) => {
  const [a, s] = attention(K, u);
  return 1 / (c * a * s * s) + 0.5 * (s - 2 * a);
};

// an upper bound, for gradient flow, on u after some steps from u1: the least of three
function flowEstimate(K, c, u1, steps) {
  const [a, s] = attention(K, u1),
    time = c * steps;
  const missed = 1 / Math.sqrt(2 * time + 1 / (s * s)),
    ratio = (time * a) / s;
  let bound = Math.log(K - 1) + Math.log1p(-missed) - Math.log(missed);
  if (ratio < 1) bound = Math.min(bound, u1 - Math.log1p(-Math.min(ratio, 1 - 1e-9)));
  if (a > 1 / 3) bound = Math.min(bound, u1 + time * a * s * s);
  return Math.max(bound, u1);
}

function nearlyInverted(K, c, u1, steps) {
  let u = flowEstimate(K, c, u1, steps),
    low = u1,
    high = u + 1;
  for (let i = 0; i < 200; i++) {
    const count = leading(K, c, u1, u),
      a = attention(K, u)[0],
      slope = slopeOf(K, c, u);
    if (count > steps) high = u;
    else low = u;
    const newton = (steps - count) / slope;
    let change = -Math.log1p(-Math.min(newton, 0.9));
    if (a > 1 / 3)
      change =
        Math.abs(newton * slope) > 0.5 * steps
          ? (count / slope) * Math.log(steps / count)
          : newton;
    const next = u + change,
      inside = next >= low && next <= high;
    u = inside ? next : 0.5 * (low + high);
    if ((inside && Math.abs(change) <= 1e-6 * u) || high - low <= ROUNDING * high)
      break;
  }
  return u;
}

// solve A(u) − A(u1) = steps by Newton's method
function invert(K, c, u1, steps, form) {
  let u = nearlyInverted(K, c, u1, steps);
  const missing = steps + series(c, variable(K, u1, form), form);
  for (let i = 0; i < 3; i++) {
    const rest = missing - series(c, variable(K, u, form), form);
    u = Math.max(u + (rest - leading(K, c, u1, u)) / slopeOf(K, c, u), u1);
  }
  return u;
}

// the u ≥ 0 at which the step c a s² first equals smallStep
function headEnd(K, c) {
  let a = smallStep / c;
  for (let i = 0; i < 60; i++) a = smallStep / (c * (1 - a) ** 2);
  return Math.max(Math.log(K - 1) + Math.log(a) - Math.log1p(-a), 0);
}

function roundedUp(count, offset) {
  const steps = Math.ceil(count);
  return steps < NEVER - offset ? offset + steps : Infinity;
}

// Iterates of u ← u + c a s² from u = 0, by number and by position.
class StepCounter {
  constructor(K, c) {
    this.K = K;
    this.c = c;
    const slowStart = c * PEAK > smallStep && K > 3 && c * growth(K, 0) <= smallStep;
    this.first = slowStart ? Math.floor(abel(K, c, 0, headEnd(K, c), "a")) : 0;
    let u = this.first > 0 ? invert(K, c, 0, this.first, "a") : 0,
      doubt = ROUNDING * u;
    this.path = [u];
    this.blur = doubt;
    while (c * PEAK > smallStep) {
      const [a, s] = attention(K, u),
        step = c * a * s * s;
      if (!(step > smallStep || a < 1 / 3)) break;
      doubt = doubt * Math.abs(1 + step * (s - 2 * a)) + ROUNDING * (u + 5 * step);
      u += step;
      this.blur = Math.max(this.blur, doubt);
      this.path.push(u);
    }
    this.start = u;
    this.taken = this.path.length - 1;
    const speed = c * growth(K, u);
    this.carried = speed > 0 ? doubt / speed : Infinity;
    this.frozen = speed * NEVER <= ROUNDING * Math.max(u, 1);
  }

  // the iterate u after n steps
  position(n) {
    const last = this.first + this.taken;
    if (n < this.first) return invert(this.K, this.c, 0, n, "a");
    if (n > last && !this.frozen)
      return invert(this.K, this.c, this.start, n - last, "s");
    return this.path[Math.min(n - this.first, this.taken)];
  }

  // the number of steps until the iterate is at or above u, its error, and the least and
  // the largest number that this error leaves possible
  stepsTo(u) {
    const { K, c, path } = this;
    if (u <= 0) return { steps: 0, error: 0, earliest: 0, latest: 0 };
    const tail = u > this.start,
      head = !tail && u <= path[0] && this.first > 0;
    if (!tail && !head) {
      const steps = this.first + path.filter((x) => x < u).length;
      const blur = this.blur + 4 * ROUNDING * (u + 1 / attention(K, u)[0]);
      const earliest = this.first + path.filter((x) => x < u - blur).length;
      const far = u + blur > this.start;
      const latest = far
        ? this.stepsTo(u + blur).latest
        : this.first + path.filter((x) => x < u + blur).length;
      return { steps, error: latest - earliest, earliest, latest };
    }
    const form = tail ? "s" : "a",
      offset = tail ? this.first + this.taken : 0,
      [a, s] = attention(K, u);
    let count = abel(K, c, tail ? this.start : 0, u, form);
    let error = ROUNDING * (count + (u + 1 / a) / (c * a * s * s)) + smallStep ** terms;
    if (tail) {
      if (this.frozen) count = Infinity;
      error += this.carried;
    }
    error = Math.min(error, 1e18);
    if (!(count < NEVER - offset))
      return { steps: Infinity, error: 0, earliest: Infinity, latest: Infinity };
    const earliest = roundedUp(Math.max(count - error, 0), offset),
      latest = roundedUp(count + error, offset);
    if (earliest < latest) error = Math.ceil(error);
    return { steps: roundedUp(count, offset), error, earliest, latest };
  }
}

// the root of a function with a sign change between low and high, to the last bit
function root(f, low, high) {
  const rising = f(low) < 0;
  for (;;) {
    const middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) return middle;
    if (f(middle) < 0 === rising) low = middle;
    else high = middle;
  }
}

const gapAt = (K, s) => Math.log(K - 1) + Math.log1p(-s) - Math.log(s);
const flowTo = (K, s) => flowDifference(0, gapAt(K, s), K);

// attention deficit at which Phase III begins
const tailStart = (K) =>
  K === 2 ? 0.5 : root((s) => 1 / s ** 2 - flowTo(K, s), 0.1 / Math.sqrt(K), 0.5);

// where the exponent of T in L is half-way: the deficit, or null for K < 7
const halfWayDeficit = (K) =>
  K < 7
    ? null
    : root((s) => ((1 - s) * s) ** 2 * flowTo(K, s) - 1, tailStart(K), 1 / 3);

// L at which the loss is epsilon at the attention deficit s
const lipschitzAt = (s, epsilon, delta, K) =>
  Math.sqrt((4 * epsilon * (K - 1)) / K) / s / delta;

class Run {
  constructor({ L, delta, eta, K, epsilon }, most = 1e15) {
    const size = L * delta;
    Object.assign(this, { K, epsilon, most });
    this.gamma = 0.5 * (size * size);
    this.c = (eta * this.gamma * K) / ((K - 1) * (K - 1));
    this.counter = new StepCounter(K, Math.max(this.c, 1e-300));
    this.initial = this.lossAt(0);
    Object.assign(this, this.hitting());
    this.reached = this.steps <= most;
    this.last = Math.min(this.steps, most);
    const stepsAt = (s) => Math.min(this.last, this.counter.stepsTo(gapAt(K, s)).steps);
    this.tail = tailStart(K);
    this.attends = stepsAt(0.5);
    this.tails = Math.max(this.attends, stepsAt(this.tail));
    this.boundary = lipschitzAt(this.tail, epsilon, delta, K);
    const half = halfWayDeficit(K);
    this.half = half === null ? null : lipschitzAt(half, epsilon, delta, K);
    this.regime =
      Math.sqrt(2 * this.gamma) > lipschitzAt(this.tail, epsilon, 1, K)
        ? "sharp"
        : "flat";
    this.stable = K / (curvature * this.gamma);
  }

  lossAt(u) {
    const s = attention(this.K, u)[1];
    return 0.5 * (this.gamma * s * (this.K / (this.K - 1))) * s;
  }

  // the first step with loss ≤ epsilon
  hitting() {
    const { K, epsilon, counter, initial } = this;
    let error = Math.abs(initial - epsilon) <= 4 * ROUNDING * initial ? 1 : 0;
    if (!(initial > epsilon)) return { steps: 0, error, sure: error === 0 };
    const close = epsilon > 0.5 * initial;
    const drop =
      0.5 *
      (close
        ? Math.log1p((epsilon - initial) / initial)
        : Math.log(epsilon) - Math.log(initial));
    const found = counter.stepsTo(Math.log1p(-(K - 1) * Math.expm1(drop)) - drop);
    let steps = found.steps;
    if (found.earliest !== found.latest && found.latest < 2 ** 53) {
      // the count is within rounding of an integer: let the loss itself decide
      steps = bisected(
        found.earliest - 1,
        found.latest,
        (t) => this.lossAt(counter.position(t)) <= epsilon,
      );
    }
    error = error || found.error;
    return { steps, error, sure: found.earliest === found.latest && error < 1 };
  }

  // loss, attention and the deficit after t steps
  at(t) {
    const u = this.counter.position(t),
      [a, s] = attention(this.K, u);
    return { t, loss: this.lossAt(u), attention: a, deficit: s };
  }

  // first and last step of each phase, without phases of length 0
  get phases() {
    const ends = [0, this.attends, this.tails, this.last];
    return ["I", "II", "III"]
      .map((name, i) => ({ name, from: ends[i], to: ends[i + 1] }))
      .filter(({ name, from, to }) => to > from || (name === "I" && this.last === 0));
  }
}

// predictions for a function whose values are repeated in turn over the K features, at
// the attention deficit s
function predicted(values, K, deficit) {
  const rounds = Math.floor(K / values.length),
    left = K % values.length;
  const sum = values.reduce(
    (total, value, i) => total + value * (rounds + (i < left ? 1 : 0)),
    0,
  );
  return values.map((value) => value + deficit * ((sum - value) / (K - 1) - value));
}

// A step of descent on all scores with sampled functions and queries, which returns the
// mean loss of the batch before it. Prompts show all features equally often; values are
// normal, as in tasks/law.py.
function trainer({ K, L, delta, eta, batch }, draw) {
  const size = (L * delta) / Math.SQRT2,
    scores = new Float64Array(K * K),
    slopes = new Float64Array(batch * K);
  const values = new Float64Array(K),
    weights = new Float64Array(K);
  const next = () => {
    let loss = 0;
    const rows = Array.from({ length: batch }, (_, b) => {
      const query = Math.floor(draw() * K),
        row = scores.subarray(query * K, (query + 1) * K),
        top = row.reduce((x, y) => Math.max(x, y));
      let total = 0,
        answer = 0;
      for (let m = 0; m < K; m++) {
        values[m] = size * normal(draw);
        weights[m] = Math.exp(row[m] - top);
        total += weights[m];
        answer += weights[m] * values[m];
      }
      answer /= total;
      const error = answer - values[query];
      loss += (0.5 * error * error) / batch;
      for (let m = 0; m < K; m++)
        slopes[b * K + m] =
          (error * weights[m] * (values[m] - answer)) / (total * batch);
      return row;
    });
    rows.forEach((row, b) =>
      row.forEach((_, m) => {
        row[m] -= eta * slopes[b * K + m];
      }),
    );
    return loss;
  };
  return Object.assign(next, { params: scores, work: batch * K });
}

module.exports = {
  StepCounter,
  Run,
  attention,
  trainer,
  tailStart,
  halfWayDeficit,
  predicted,
};
