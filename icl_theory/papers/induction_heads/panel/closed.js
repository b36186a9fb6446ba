// Two layers of attention on two-state Markov chains by the counts of pairs:
// tokens/counts.py, tokens/counted.py and induction_heads.py for two lags, a sink, and
// rows of chains with one Dirichlet prior. No part of the page is touched here.
"use strict";

const { Path, firstStep } = require("training");

const ENTROPY = {
  square: (t) => t * (1 - t),
  log: (t) => -(t > 0 ? t * Math.log(t) : 0) - (t < 1 ? (1 - t) * Math.log1p(-t) : 0),
};
const EXCESS = {
  square: (o, t) => (o - t) ** 2,
  log: (o, t) =>
    (t > 0 ? t * Math.log(t / o) : 0) +
    (t < 1 ? (1 - t) * Math.log((1 - t) / (1 - o)) : 0),
};

// Rows p, truth, same, out, back, rest, first of sequences that end in q: their
// probability, that of the other symbol coming next, counts of the pairs qq, qr, rq,
// rr, and whether they begin with q. The symbols are alike, so that one q is enough.
function exactRows({ T, concentration }) {
  const rising = (a) => {
    const logs = [0];
    for (let i = 1; i <= T; i++) logs.push(logs[i - 1] + Math.log((a + i - 1) / i));
    return logs;
  };
  const one = rising(concentration),
    two = rising(2 * concentration),
    rows = [];
  for (let changes = 0; changes < T; changes++) {
    const first = changes % 2 ? 0 : 1,
      out = Math.floor(changes / 2),
      back = changes - out;
    for (let same = 0; same <= T - 1 - changes; same++) {
      const rest = T - 1 - changes - same;
      if (rest && !back) continue;
      const log =
        one[same] +
        one[out] -
        two[same + out] +
        one[back] +
        one[rest] -
        two[back + rest] +
        (back ? Math.log(back / (back + rest)) : 0);
      rows.push([
        Math.exp(log),
        (out + concentration) / (same + out + 2 * concentration),
        same,
        out,
        back,
        rest,
        first,
      ]);
    }
  }
  return Float64Array.from(rows.flat());
}

// A sequence, the symbol after it, and its counts of pairs: each symbol by what
// followed its like before, as an urn does.
function sequence({ T, concentration }, draw) {
  const counts = [
      [0, 0],
      [0, 0],
    ],
    symbols = [];
  let next = draw() < 0.5 ? 0 : 1;
  for (let i = 0; i < T; i++) {
    if (i) counts[symbols[i - 1]][next]++;
    symbols.push(next);
    const [stay, leave] = [
      counts[next][next] + concentration,
      counts[next][1 - next] + concentration,
    ];
    if (!(draw() * (stay + leave) < stay)) next = 1 - next;
  }
  return { symbols, next, counts };
}

// rows of sequences that are drawn, whose next symbol is known
function drawnRows(values, draw) {
  const rows = Array.from({ length: values.batch }, () => {
    const { symbols, next, counts } = sequence(values, draw),
      now = symbols.at(-1),
      other = 1 - now;
    return [
      1 / values.batch,
      next === now ? 0 : 1,
      counts[now][now],
      counts[now][other],
      counts[other][now],
      counts[other][other],
      symbols[0] === now ? 1 : 0,
    ];
  });
  return Float64Array.from(rows.flat());
}

// Weights of the second layer at a gap of the lag scores, a match and a sink's score:
// on tokens whose lags both show the last symbol, the token itself alone, the one
// before alone, neither, and on the sink.
function weightsOf([gap, b, c]) {
  const lag1 = 1 / (1 + Math.exp(-gap)),
    lag0 = 1 - lag1,
    top = Math.max(0, b, c);
  const [both, own, before, none, sink] = [b, lag0 * b, lag1 * b, 0, c].map((score) =>
    Math.exp(score - top),
  );
  return { lag0, lag1, both, own, before, none, half: 0.5 * sink };
}

// Derivatives of the loss by the gap, the match and the sink's score. Runs call it
// thousands of times, so that it sums only what they need.
function slopesAt(rows, objective, params) {
  const { lag0, lag1, both, own, before, none, half } = weightsOf(params),
    isLog = objective === "log";
  let atOut = 0,
    atBoth = 0,
    atBack = 0,
    atSink = 0;
  for (let i = 0; i < rows.length; i += 7) {
    const out = rows[i + 3],
      back = rows[i + 4],
      first = rows[i + 6],
      alike = rows[i + 2] + first;
    const q = alike * both + back * own + half;
    const r = out * before + (rows[i + 5] + 1 - first) * none + half;
    // The prediction of the other symbol is r over the total. Derivatives by r and by
    // −q:
    const total = q + r,
      wrong = rows[i] * (r / total - rows[i + 1]);
    const up = isLog ? wrong / r : (2 * wrong * q) / (total * total);
    const down = isLog ? wrong / q : (2 * wrong * r) / (total * total);
    atOut += up * out;
    atBoth += down * alike;
    atBack += down * back;
    atSink += up - down;
  }
  const byBefore = before * atOut,
    byOwn = own * atBack;
  return [
    params[1] * lag0 * lag1 * (byBefore + byOwn),
    lag1 * byBefore - both * atBoth - lag0 * byOwn,
    half * atSink,
  ];
}

// excess over the entropy of the truth, and the share of attention on tokens that
// follow an equal of the last symbol
function excessAt(rows, objective, params) {
  const { lag1, both, own, before, none, half } = weightsOf(params),
    excessOf = EXCESS[objective];
  let excess = 0,
    share = 0;
  for (let i = 0; i < rows.length; i += 7) {
    const p = rows[i],
      same = rows[i + 2],
      first = rows[i + 6];
    const follow = rows[i + 3] * before,
      r = follow + (rows[i + 5] + 1 - first) * none + half;
    const total = r + (same + first) * both + rows[i + 4] * own + half;
    excess += p * excessOf(r / total, rows[i + 1]);
    share += (p * (same * both + follow)) / total;
  }
  return { excess, share, lag1 };
}

const evaluate = (rows, objective, params) => ({
  ...excessAt(rows, objective, params),
  slopes: slopesAt(rows, objective, params),
});

// the lag scores are two numbers, of which one rises while the other falls
const moved = ([gap, b, c], [byGap, byMatch, bySink], { eta, ratio }) => [
  gap - 2 * eta * ratio * byGap,
  b - eta * byMatch,
  c - eta * bySink,
];
// As many steps as there is time for while a slider moves. In long sequences a head
// emerges within 140 steps.
const mostSteps = ({ T }) =>
  Math.max(200, Math.min(5000, Number((1.4e6 / (T * T)).toPrecision(1))));

class Run extends Path {
  constructor(values) {
    const { T, concentration, objective, match, sink } = values,
      rows = exactRows(values),
      mean = (f) =>
        rows.reduce(
          (sum, p, i) => (i % 7 ? sum : sum + p * f(...rows.subarray(i + 1, i + 7))),
          0,
        );
    const floor = mean(ENTROPY[objective]),
      uniform = objective === "log" ? Math.LN2 : 0.25;
    const unigram =
      floor +
      mean((truth, same, out, back, rest, first) =>
        EXCESS[objective](
          (out + rest + 1 - first + concentration) / (T + 2 * concentration),
          truth,
        ),
      );
    super(
      [0, match, sink],
      (params) => moved(params, slopesAt(rows, objective, params), values),
      (params) => floor + excessAt(rows, objective, params).excess,
      floor,
      0.5 * (unigram - floor),
      mostSteps(values),
    );
    Object.assign(this, {
      rows,
      objective,
      uniform,
      unigram,
      begun: firstStep((t) => this.at(t).loss, 0.5 * (uniform + unigram), this.most)
        .last,
    });
  }

  // a state with what both layers attend to
  seen(t) {
    const step = Math.min(t, this.states.length - 1),
      params = this.states[step];
    const { excess, share, lag1 } = excessAt(this.rows, this.objective, params);
    return {
      t,
      params,
      loss: this.floor + excess,
      excess: Math.max(excess, 0),
      share,
      lag1,
    };
  }
}

// a step on sampled sequences, which returns the mean loss before it
function trainer(values, draw) {
  const params = [0, values.match, values.sink],
    next = () => {
      const { excess, slopes } = evaluate(
        drawnRows(values, draw),
        values.objective,
        params,
      );
      moved(params, slopes, values).forEach((value, i) => {
        params[i] = value;
      });
      return excess;
    };
  return Object.assign(next, { params, work: values.batch * values.T });
}

module.exports = { Run, sequence, exactRows, evaluate, excessAt, mostSteps, trainer };
