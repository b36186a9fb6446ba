// Softmax attention of one number κ on the sphere. The formulas are those of sphere.py
// and tokens/square.py, for linear tasks. This script changes no part of the page.
"use strict";

const { Path, normal } = require("training");

// The number of nodes in the angle, and the step of the trapezoid rule in x, with
// N s = exp(x − exp(−x)). With FINE the run has 13 digits. With COARSE the curves beside
// the run are right to 10⁻⁶, and take half as long.
const FINE = { size: 100, step: 0.2 };
const COARSE = { size: 70, step: 0.24 };
const POINTS = 40; // of the interpolation between the start and the best κ

const range = (size, f) => Array.from({ length: size + 1 }, (_, i) => f(i));

// The law of the cosine c = xᵢ·x of a token, at the nodes of the trapezoid rule in x with
// c = tanh(½π sinh x), as far as there are tokens.
class Tokens {
  constructor({ d, N, L, noise }, { size, step } = FINE) {
    const reach = Math.asinh((2 / Math.PI) * (38 / (d - 1) + Math.LN2)),
      places = range(
        size,
        (i) => 0.5 * Math.PI * Math.sinh(reach * ((2 * i) / size - 1)),
      );
    const raw = places.map(
        (x) => Math.cosh(x) ** (1 - d) * Math.hypot(x, 0.5 * Math.PI),
      ),
      total = raw.reduce((x, y) => x + y);
    const below = places.map((x) => 2 / (1 + Math.exp(2 * x))); // 1 − c
    const own = below.map((gap) => L ** 2 * (gap * (2 - gap) + gap * gap) + noise ** 2);
    Object.assign(this, {
      N,
      L,
      step,
      below,
      own,
      probs: raw.map((chance) => chance / total),
    });
  }

  // loss and its derivative with respect to κ
  at(kappa) {
    const { N, L, step, below, own, probs } = this;
    const turn = below.map((gap) => (kappa < 0 ? 2 : 0) - gap);
    const weights = turn.map((gap) => Math.exp(kappa * gap));
    const count = Math.floor((8.25 + 2 * Math.abs(kappa)) / step);
    let loss = 0,
      slope = 0;
    // For x < −2.6, N s is below e⁻¹⁶, and the integrand goes like (N s)².
    for (let j = Math.floor(1.4 / step); j <= count; j++) {
      const x = step * j - 4,
        left = Math.exp(-x),
        logS = x - left - Math.log(N),
        s = Math.exp(logS);
      let near = 0,
        mean = 0,
        falls = 0,
        twice = 0,
        grows = 0,
        drawn = 0,
        shift = 0;
      for (let u = 0; u < weights.length; u++) {
        const y =
          logS < 500
            ? Math.min(weights[u] * s, 300)
            : Math.exp(Math.min(kappa * turn[u] + logS, Math.log(300)));
        // one exponential is enough: e^(−y) and its distance from 1 both keep their
        // digits
        const small = y < 1 ? Math.expm1(-y) : Math.exp(-y),
          fall = y < 1 ? small : small - 1,
          part = y < 1 ? 1 + small : small;
        const b = probs[u] * y * part,
          change = b * turn[u];
        near += probs[u] * fall;
        mean += probs[u] * part;
        falls -= change;
        drawn += L * below[u] * b;
        shift += L * below[u] * change * (1 - y);
        twice += own[u] * b * y;
        grows += own[u] * change * y * (2 - y);
      }
      const log = near > -0.5 ? Math.log1p(near) : Math.log(mean);
      if ((N - 2) * log < -60) break; // what follows is below e⁻⁶⁰ of the rest
      const weight = 0.5 * step * (1 + left) * N * Math.exp((N - 2) * log),
        whole = (N - 1) * drawn ** 2 + mean * twice;
      loss += weight * whole;
      slope +=
        weight *
        (2 * (N - 1) * drawn * shift +
          falls * twice +
          mean * grows +
          ((N - 2) / mean) * falls * whole);
    }
    return { loss, slope };
  }

  // The κ with the least loss, to a relative `tolerance`. A value below this κ is doubled
  // until the slope is positive. False position then finds the root of the slope; the
  // slope at an end that stays counts half.
  best(below = 0, tolerance = 1e-15) {
    let low = below,
      high = below ? 1.3 * below : 1 / 16,
      down = below ? this.at(below).slope : -1,
      up,
      stays = 0,
      place = high,
      change = 1;
    while ((up = this.at(high).slope) < 0) [low, high, down] = [high, 2 * high, up];
    for (let i = 0; i < 100 && change > tolerance * place; i++) {
      const next = (low * up - high * down) / (up - down),
        { slope } = this.at(next),
        side = Math.sign(slope);
      if (side < 0) [low, down, up] = [next, slope, side === stays ? up / 2 : up];
      else [high, up, down] = [next, slope, side === stays ? down / 2 : down];
      [place, change, stays] = [next, Math.abs(next - place), side];
    }
    return place;
  }
}

// The value at the next of equal steps, from up to three values at the steps before.
function extrapolated(values) {
  const [a, b, c] = values.slice(-3);
  if (values.length < 3) return values.length < 2 ? a : 2 * b - a;
  return a - 3 * b + 3 * c;
}

// The best κ near a guess, by the secant method from the guess and a value 2 % downhill
// of the guess; null if the steps do not shrink at once.
function bestNear(tokens, guess) {
  let last = guess,
    { slope: before } = tokens.at(last);
  let next = guess * (before > 0 ? 0.98 : 1.02);
  for (let i = 0; i < 8; i++) {
    const { slope } = tokens.at(next),
      step = (slope * (next - last)) / (slope - before);
    if (!(Math.abs(step) < 0.2 * next)) return null;
    [last, before, next] = [next, slope, next - step];
    // The error that is left is of the order of this step times the one before.
    if (Math.abs(step) < 1e-5 * next) return next;
  }
  return null;
}

// The best κ for each length of prompts, to a relative 10⁻⁶. On logarithmic axes the best
// κ is nearly a straight line, so that each search begins where the line through the
// results before it continues. The last results are kept while other settings move.
const kept = { key: "", found: [] };
function bestByLength(values, lengths) {
  const { d, L, noise } = values,
    key = [d, L, noise, lengths.length].join();
  if (kept.key === key) return kept.found;
  const logs = [];
  for (const N of lengths) {
    const tokens = new Tokens({ d, L, noise, N }, COARSE);
    const near = logs.length && bestNear(tokens, Math.exp(extrapolated(logs)));
    // the best κ grows with the length
    const below = logs.length ? 0.999999 * Math.exp(logs.at(-1)) : 0;
    logs.push(Math.log(near || tokens.best(below, 1e-7)));
  }
  Object.assign(kept, { key, found: logs.map(Math.exp) });
  return kept.found;
}

// Loss and slope between two values of κ, from loss and slope at some points between
// them, by default POINTS: the barycentric formula in Chebyshev points of ln(1 + κ).
function interpolated(from, to, f, points = POINTS) {
  const [low, high] = [from, to].map(Math.log1p),
    places = Float64Array.from(range(points, (i) => Math.cos((Math.PI * i) / points)));
  const found = Array.from(places, (place) =>
    f(Math.expm1(low + (0.5 + 0.5 * place) * (high - low))),
  );
  const tables = Object.fromEntries(
    ["loss", "slope"].map((name) => [
      name,
      Float64Array.from(found, (one) => one[name]),
    ]),
  );
  return (kappa, name) => {
    const x = (2 * (Math.log1p(kappa) - low)) / (high - low) - 1,
      table = tables[name];
    let over = 0,
      under = 0,
      sign = 0.5;
    for (let i = 0; i <= points; i++) {
      const distance = x - places[i];
      if (distance === 0) return table[i];
      const weight = (i < points ? sign : 0.5 * sign) / distance;
      sign = i ? -sign : -1;
      over += weight * table[i];
      under += weight;
    }
    return over / under;
  };
}

class Run extends Path {
  constructor(values) {
    const tokens = new Tokens(values),
      best = tokens.best(),
      { start, above, rate } = values;
    const near = interpolated(
        Math.min(start, best),
        Math.max(start, best) * (1 + 1e-9),
        (kappa) => tokens.at(kappa),
      ),
      floor = tokens.at(best).loss;
    const curved = range(16, (i) => start + ((best - start) * i) / 16).map(
      (kappa) => (near(kappa + 1e-4, "slope") - near(kappa - 1e-4, "slope")) / 2e-4,
    );
    const eta = Number((rate / Math.max(...curved)).toPrecision(4));
    super(
      [start],
      ([kappa]) => [kappa - eta * near(kappa, "slope")],
      ([kappa]) => near(kappa, "loss"),
      floor,
      above,
      1e5,
      true,
    );
    Object.assign(this, { tokens, best, eta });
  }
}

// Steps of descent on κ with sampled prompts, f(x) = L β·x for a normal β. A step returns
// the mean loss of its prompts before the step.
function trainer({ d, N, L, noise, start, eta, batch }, draw) {
  const params = [start],
    vector = () => Array.from({ length: d }, () => normal(draw)),
    dot = (x, y) => x.reduce((sum, value, i) => sum + value * y[i], 0);
  const point = () => {
    const x = vector(),
      size = Math.hypot(...x);
    return x.map((value) => value / size);
  };
  const next = () => {
    let loss = 0,
      slope = 0;
    for (let b = 0; b < batch; b++) {
      const beta = vector(),
        query = point(),
        most = Math.abs(params[0]);
      let total = 0,
        answer = 0,
        score = 0,
        both = 0;
      for (let i = 0; i < N; i++) {
        const x = point(),
          y = L * dot(beta, x) + noise * normal(draw),
          c = dot(x, query),
          weight = Math.exp(params[0] * c - most);
        total += weight;
        answer += weight * y;
        score += weight * c;
        both += weight * c * y;
      }
      const error = answer / total - L * dot(beta, query);
      loss += (0.5 * error * error) / batch;
      slope += (error * (both - (score * answer) / total)) / total / batch;
    }
    params[0] -= eta * slope;
    return loss;
  };
  return Object.assign(next, { params, work: 2 * batch * N * d });
}

module.exports = { COARSE, Tokens, Run, bestByLength, interpolated, trainer };
