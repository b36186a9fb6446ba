// The panel of induction heads: two layers of attention on two-state Markov chains, by
// counts.
"use strict";

const { spread } = require("drawing");
const { count, short, percent } = require("numbers");
const { along, batch, course, lasting, step } = require("training");
const { Run, excessAt, mostSteps, trainer } = require("./closed");
const { figure: drawn } = require("./picture");

const settings = [
  { name: "T", value: 30, low: 4, high: 100, minimum: 4, maximum: 100 },
  {
    name: "concentration",
    value: 1,
    low: 0.1,
    high: 10,
    log: true,
    minimum: 0.05,
    maximum: 100,
  },
  {
    name: "objective",
    symbol: "loss",
    meaning: "of a prediction",
    value: "square",
    words: { square: "square", log: "log" },
  },
  { name: "eta", value: 1, low: 0.01, high: 10, log: true, minimum: 1e-6, maximum: 10 },
  {
    name: "ratio",
    symbol: "ρ",
    meaning: "learning rate of the first layer over that of the second",
    value: 1,
    low: 0.01,
    high: 100,
    log: true,
    minimum: 1e-3,
    maximum: 100,
  },
  {
    name: "match",
    symbol: "b₀",
    value: 0.01,
    low: -2,
    high: 2,
    steps: 80,
    minimum: -10,
    maximum: 10,
  },
  {
    name: "sink",
    symbol: "c₀",
    value: 6,
    low: -4,
    high: 10,
    steps: 56,
    minimum: -20,
    maximum: 20,
  },
  {
    name: "sequence",
    symbol: "s",
    meaning: "number of the sequence in the drawn model",
    value: 1,
    low: 1,
    high: 100,
    whole: true,
    minimum: 1,
    maximum: 1e6,
    moving: true,
  },
  batch,
  { ...step(100), high: 5000, maximum: 5000 },
];

const presets = [
  {
    name: "Log loss",
    sentence:
      "The same in nats: from the uniform to the unigram prediction, and on to what followed the last symbol.",
    values: { objective: "log", t: 60 },
  },
  {
    name: "Slow first layer",
    sentence:
      "The match grows while both lags are seen alike, the loss rests at the unigram's, and the head emerges nine times as late.",
    values: { ratio: 0.03, t: 400 },
    ghost: { ratio: 1 },
  },
  {
    name: "Against the match",
    sentence:
      "From a negative match: it shrinks first, the loss rests at the unigram's, and the head emerges all the same.",
    values: { match: -2, sink: 0, t: 200 },
    ghost: { match: 0.01 },
  },
  {
    name: "Nearly certain",
    sentence:
      "Chains whose rows are nearly certain: what followed before says nearly all, and the head emerges sooner.",
    values: { concentration: 0.2, t: 100 },
    ghost: { concentration: 1 },
  },
];

const story = [
  {
    title: "The sink",
    figure: "model",
    values: { t: 0 },
    text: "At the start the sink takes more than nine tenths of the attention, so that every prediction is near one half.",
    attempt: {
      text: "lower the sink's score c₀ to 0. All symbols count alike, and the loss starts at that of the unigram, the share of ones.",
      values: { sink: 0 },
    },
  },
  {
    title: "The unigram",
    figure: "loss",
    values: { ratio: 0.03, t: 400 },
    text: "With a slow first layer, ρ = 0.03, the loss rests at the unigram's: the more frequent symbol is predicted.",
    attempt: {
      text: "set ρ back to 1. The head emerges nine times as early.",
      values: { ratio: 1, t: 200 },
    },
  },
  {
    title: "One symbol back",
    figure: "model",
    values: { t: 300 },
    text: "The first layer turns to the symbol before, lag 1: at step 300 it has more than 90 % of its attention there.",
    attempt: {
      text: "train the first layer at a tenth of the rate, ρ = 0.1. At the same step it has less than 70 % there.",
      values: { ratio: 0.1 },
    },
  },
  {
    title: "The head",
    figure: "model",
    values: { t: 2000 },
    text: "The second layer attends to symbols that followed a copy of the last one: an induction head. The loss is within one percent of the Bayes risk.",
    attempt: {
      text: "look at other sequences (s). Dot and bar differ by 3 points in the root mean square.",
      values: { sequence: 5 },
    },
  },
  {
    title: "A path",
    figure: "plane",
    values: { t: 1000 },
    text: "The same run as a path over the loss, which is low where it is dark. Descent goes right, to a larger match, and up, to lag 1; the larger the match, the steeper the way up.",
    attempt: {
      text: "start from a negative match, b₀ = −2, without a strong sink. The match shrinks first, and the head emerges all the same.",
      values: { match: -2, sink: 0, t: 200 },
    },
  },
  {
    title: "Easy chains",
    figure: "loss",
    values: { concentration: 0.2, t: 100 },
    text: "If the rows of the chains are nearly certain, α = 0.2, what followed before says nearly all, and the head emerges sooner.",
    attempt: {
      text: "set α to 10, for chains that are close to coin flips. A head has less than a tenth as much to gain as with α = 1.",
      values: { concentration: 10 },
    },
  },
];

// a run is as long as the page has time for
function sound({ T, t }) {
  const most = mostSteps({ T });
  return t <= most
    ? {}
    : {
        changes: { t: most },
        problem: `With T = ${count(T)} the page takes ${count(most)} steps: t = ${count(most)} is used.`,
      };
}

// The loss over the plane of gap and match, as many rows of cells as there is time for.
// The sink's score is that at the end of the run.
function planeOf(run, rows) {
  const ends = [...run.states.filter((_, i) => i % 50 === 0), run.states.at(-1)];
  const wide = 1.3 * Math.max(1, ...ends.map(([, b]) => Math.abs(b)));
  const tall = 1.3 * Math.max(2, ...ends.map(([gap]) => Math.abs(gap)));
  const gaps = spread(-tall, tall, rows - 1, false),
    matches = spread(-wide, wide, Math.round((rows * 4) / 3) - 1, false);
  const sink = run.states.at(-1)[2];
  const plane = gaps.map((gap) =>
    matches.map((b) => excessAt(run.rows, run.objective, [gap, b, sink]).excess),
  );
  return { gaps, matches, plane };
}

// While a slider moves, the plane has few cells; `refine` makes them smaller once it
// rests.
const COARSE_CELLS = 5e4;
function compute(values) {
  const run = new Run(values),
    cells = COARSE_CELLS / (run.rows.length / 7);
  const rows = Math.round(Math.min(12, Math.max(5, Math.sqrt(0.75 * cells))));
  const made = course(run, run.most, 100, (t) => run.seen(t));
  return { run, ...made, ...planeOf(run, rows) };
}

const refine = (model) => Object.assign(model, planeOf(model.run, 24));

const moment = ({ run }, { t }) => run.seen(t);
const learnt = ([gap, b]) =>
  `${b < 0 ? "anti-" : ""}${gap > 0 ? "induction" : "lag 0"}`;

function words({ run }, now) {
  const most = count(run.most),
    end = run.states.at(-1);
  return [
    run.reached
      ? `The induction head emerges at step **${count(run.steps)}**: the loss is halfway from unigram to Bayes.`
      : `After ${most} steps the loss is still not halfway from unigram to Bayes.`,
    `Losses: uniform ${short(run.uniform, 4)}, unigram ${short(run.unigram, 4)}, Bayes ${short(run.floor, 4)}. After ${most} steps the match is ${short(end[1])}: what is learnt is **${learnt(end)}**.`,
    `At step **${count(now.t)}**: loss **${short(now.loss, 4)}**; the first layer attends to lag 1 by **${percent(now.lag1)}**, the second to tokens after an equal of the last symbol by **${percent(now.share)}**.`,
  ];
}

const loss = along({
  name: "loss",
  title: "Loss",
  caption: "with the losses of known predictors",
  samples: "sampled sequences",
  y: ({ run, states }) => ({
    low: run.floor - 0.25 * (run.uniform - run.floor),
    high: Math.max(1.15 * run.uniform, ...states.map((state) => state.loss)),
    label: "loss",
  }),
  marks(axes, { run }) {
    for (const [name, colour, word] of [
      ["uniform", "muted", "uniform"],
      ["unigram", "orange", "unigram"],
      ["floor", "red", "Bayes"],
    ])
      axes.horizontal(run[name], colour, { word });
  },
  describe: ({ run }, now) =>
    `${short(now.loss, 4)} at step ${now.t}; uniform ${short(run.uniform, 4)}, unigram ${short(run.unigram, 4)}, Bayes ${short(run.floor, 4)}.`,
});

const layers = along({
  name: "layers",
  title: "Attention",
  caption:
    "Orange: attention of the first layer to lag 1. Blue: attention of the second layer to tokens that follow a copy of the last symbol.",
  y: () => ({ low: 0, high: 1.02, label: "attention" }),
  curves: () => [
    [(state) => state.lag1, "orange", { dot: 4 }],
    [(state) => state.share, "blue"],
  ],
  describe: (model, now) =>
    `First layer on lag 1: ${percent(now.lag1)}; second on tokens after an equal: ${percent(now.share)}.`,
});

const plane = {
  name: "plane",
  title: "The path over the loss",
  height: 320,
  wide: true,
  caption:
    "Dark means a low loss. Across: the match b of the second layer. Up: the score of lag 1 less the score of lag 0 in the first layer. The sink has its value at the end of the run.",
  scales: ({ gaps, matches }) => [
    { low: matches[0], high: matches.at(-1), label: "match b" },
    { low: gaps[0], high: gaps.at(-1), label: "lag 1 above lag 0" },
  ],
  still(axes, { run, plane: cells }) {
    const all = cells.flat(),
      low = Math.min(...all),
      high = Math.max(...all);
    axes.cells(
      cells,
      "green",
      (excess) => 0.05 + (0.75 * Math.log(high / excess)) / (Math.log(high / low) || 1),
    );
    const path = run.states.filter((_, i) => i < 200 || i % 20 === 0);
    axes.curve(
      path.map(([, b]) => b),
      path.map(([gap]) => gap),
      "ink",
    );
  },
  moving: (axes, model, now) => axes.dot(now.params[1], now.params[0], "red", 6),
  describe: (model, now) =>
    `The match is ${short(now.params[1])}, and lag 1 is ${short(now.params[0])} above lag 0.`,
};

module.exports = {
  tab: "Induction heads",
  lead: "Two layers of attention on two-state Markov chains: the first looks back by a lag, the second compares what it finds with the last symbol. Descent on the exact loss, a sum over counts of pairs.",
  settings,
  presets,
  story,
  compute,
  refine,
  trainer,
  moment,
  words,
  sound,
  parameters: ({ T, concentration, objective, eta, ratio, match, sink }) => ({
    T,
    concentration,
    objective,
    eta,
    ratio,
    match,
    sink,
    max_steps: mostSteps({ T }),
  }),
  found({ run }, now) {
    return {
      steps: null,
      t: now.t,
      loss: now.loss,
      lag1: now.lag1,
      share: now.share,
      phases: lasting({
        uniform: [0, run.begun],
        unigram: [run.begun, run.last],
        bigram: [run.last, run.most],
      }),
    };
  },
  figures: [drawn, loss, layers, plane],
};
