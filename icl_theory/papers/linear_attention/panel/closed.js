// Descent on the diagonal of Γ, mode by mode: law.py, risks.py and closed.py for
// diagonal moments, tasks of unit variance and merged parameters. No part of the page
// is touched here.
"use strict";

const { firstStep, normal } = require("training");

const PLATEAU = 0.9; // of the excess at the start

const sum = (values) => values.reduce((total, value) => total + value, 0);

// A law of prompts: λ_j = j^-decay, N pairs, label noise.
class Law {
  constructor({ d, decay, N, noise }) {
    this.spectrum = Array.from({ length: d }, (_, i) => (i + 1) ** -decay);
    const power = sum(this.spectrum) + noise ** 2;
    this.scatter = this.spectrum.map((value) => (value ** 2 + power * value) / N);
    this.second = this.spectrum.map((value, i) => value ** 2 + this.scatter[i]);
    this.best = this.spectrum.map((value, i) => value / this.second[i]);
    this.curvature = this.spectrum.map((value, i) => value * this.second[i]);
    this.floor = this.loss(this.best);
  }

  // of the diagonal of Γ: a sum of squares
  loss(gamma) {
    return (
      0.5 *
      sum(
        this.spectrum.map(
          (value, i) =>
            value * ((gamma[i] * value - 1) ** 2 + gamma[i] ** 2 * this.scatter[i]),
        ),
      )
    );
  }

  excess(gamma) {
    return (
      0.5 *
      sum(this.curvature.map((value, i) => value * (gamma[i] - this.best[i]) ** 2))
    );
  }
}

// (1 − x)^t
function power(x, t) {
  if (t === 0) return 1;
  const size = Math.exp(t * (x <= 0.5 ? Math.log1p(-x) : Math.log(Math.abs(1 - x))));
  return x > 1 && t % 2 === 1 ? -size : size;
}

class Run {
  constructor(values, most = 1e15) {
    const { eta, start, above } = values;
    this.law = new Law(values);
    this.shrink = this.law.curvature.map((value) => eta * value);
    this.offset = this.law.best.map((value) => start - value);
    this.initial = this.excessAt(0);
    const { floor } = this.law;
    Object.assign(
      this,
      firstStep((t) => floor + this.excessAt(t), floor + above, most),
    );
    this.plateau = Math.min(
      this.last,
      firstStep((t) => this.excessAt(t), PLATEAU * this.initial, most).last,
    );
  }

  gammaAt(t) {
    return this.law.best.map(
      (value, i) => value + this.offset[i] * power(this.shrink[i], t),
    );
  }

  excessAt(t) {
    return this.law.excess(this.gammaAt(t));
  }

  at(t) {
    const gamma = this.gammaAt(t),
      excess = this.law.excess(gamma);
    const learnt = gamma.filter((value, i) => value >= 0.5 * this.law.best[i]).length;
    return { t, gamma, excess, loss: this.law.floor + excess, learnt };
  }
}

// largest learning rate at which no mode grows
const limit = (values) => 2 / Math.max(...new Law(values).curvature);

// Γ = γ·I as a product v·A of balanced factors, isotropic tokens, along the flow: γ at
// the time τ = ηt
function product({ d, start }, law, tau) {
  const best = law.best[0];
  return (
    best /
    (1 + (best / start - 1) * Math.exp(-2 * Math.sqrt(d) * law.spectrum[0] ** 2 * tau))
  );
}

// A step of descent on the whole matrix Γ with sampled prompts, in the eigenvectors of
// Λ; it returns the mean loss before it.
function trainer({ d, N, noise, decay, eta, start, batch }, draw) {
  const gamma = Array.from({ length: d * d }, (_, k) => (k % (d + 1) ? 0 : start)),
    token = () => scales.map((scale) => scale * normal(draw));
  const scales = Array.from({ length: d }, (_, j) => (j + 1) ** (-decay / 2)),
    product = (x, y) => sum(x.map((value, j) => value * y[j]));
  const next = () => {
    const slopes = new Float64Array(d * d);
    let loss = 0;
    for (let b = 0; b < batch; b++) {
      const task = scales.map(() => normal(draw)),
        seen = scales.map(() => 0),
        query = token();
      for (let i = 0; i < N; i++) {
        const x = token(),
          y = product(task, x) + noise * normal(draw);
        x.forEach((value, j) => {
          seen[j] += (y * value) / N;
        });
      }
      const error =
        product(
          query,
          query.map((_, j) => product(gamma.slice(j * d, (j + 1) * d), seen)),
        ) - product(task, query);
      loss += (0.5 * error * error) / batch;
      for (let k = 0; k < d * d; k++)
        slopes[k] += (error * query[Math.floor(k / d)] * seen[k % d]) / batch;
    }
    slopes.forEach((slope, k) => {
      gamma[k] -= eta * slope;
    });
    return loss;
  };
  return Object.assign(next, { params: gamma, work: batch * d * (N + d) });
}

module.exports = { Law, Run, limit, trainer, product };
