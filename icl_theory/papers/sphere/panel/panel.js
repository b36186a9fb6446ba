// The panel of the sphere: softmax attention of one number, whose window narrows while
// it trains.
"use strict";

const { spread } = require("drawing");
const { count, short } = require("numbers");
const { against, along, batch, course, headline, step } = require("training");
const {
  COARSE,
  Run,
  Tokens,
  bestByLength,
  interpolated,
  trainer,
} = require("./closed");

const settings = [
  { name: "N", value: 100, low: 2, high: 1e5, log: true, minimum: 2, maximum: 1e5 },
  {
    name: "noise",
    value: 1,
    low: 0.1,
    high: 3,
    steps: 58,
    minimum: 0.05,
    maximum: 100,
  },
  { name: "L", value: 1, low: 0.1, high: 5, log: true, minimum: 0.01, maximum: 10 },
  { name: "d", value: 5, low: 3, high: 20, minimum: 3, maximum: 100 },
  { name: "start", symbol: "κ₀", value: 0, low: 0, high: 20, steps: 40, maximum: 100 },
  {
    name: "rate",
    symbol: "η",
    meaning: "learning rate over the largest that is stable up to the best κ",
    value: 0.1,
    low: 0.01,
    high: 1,
    log: true,
    minimum: 1e-3,
    maximum: 1,
  },
  {
    name: "above",
    symbol: "ε",
    meaning: "target loss above the least one",
    value: 1e-3,
    low: 1e-8,
    high: 0.1,
    log: true,
    minimum: 1e-9,
    maximum: 1e6,
  },
  batch,
  { ...step(20), high: 1e5, maximum: 1e5 },
];

const VALLEY = 30; // of the curve of the loss against κ, which is interpolated between that many exact values, to 10⁻⁶

const presets = [
  {
    name: "Longer prompts",
    sentence:
      "Ten times as many pairs leave room for a narrower window: the best κ nearly doubles.",
    values: { N: 1000, t: 300 },
    ghost: { N: 100 },
  },
  {
    name: "Steeper",
    sentence:
      "Steeper tasks want a narrower window, as nearby pairs say more and distant ones less.",
    values: { L: 3, t: 100 },
    ghost: { L: 1 },
  },
  {
    name: "More noise",
    sentence:
      "With more noise it pays to average over more pairs: the window stays wide.",
    values: { noise: 3, t: 100 },
    ghost: { noise: 1 },
  },
  {
    name: "From a narrow window",
    sentence: "A start beyond the best κ: training widens the window.",
    values: { start: 12, t: 10 },
  },
];

const tour = [
  {
    text: "Prompts show N noisy values of a linear function at points of the unit sphere. Attention averages the values, weighted by e^(κ cos θ), where θ is the angle with the query. One number κ is trained: the larger it is, the narrower the window.",
    values: {},
    figure: "window",
  },
  {
    text: "The loss while it trains, exactly: no prompt is sampled. Press Play.",
    values: { t: 0 },
    figure: "loss",
    play: true,
  },
  {
    text: "Training rolls down this curve. On the left the average includes pairs that are too far away; on the right it has too few pairs, so that their noise remains.",
    values: { t: 40 },
    figure: "valley",
  },
  {
    text: "The best κ grows with the length of prompts, for long ones like the dashed power, N^(2/(d + 3)). Drag the dot.",
    values: { N: 1e4 },
    figure: "best",
  },
];

// The settings that the page can compute in a moment. For longer prompts the window is
// too narrow.
function sound({ N, L, noise }) {
  const most = Math.max(2, Math.floor(2e5 * (noise / L) ** 2));
  return N <= most
    ? {}
    : {
        changes: { N: most },
        problem: `With L/σ = ${short(L / noise)} the page computes at most N = ${count(most)}, and uses this value.`,
      };
}

const fits = (size, N) => sound({ ...size, N }).changes === undefined;

function compute(values) {
  const run = new Run(values),
    lengths = spread(2, 1e5, 12)
      .map(Math.round)
      .filter((N) => fits(values, N));
  const kappas = spread(0, 2 * Math.max(run.best, values.start), 60, false);
  const coarse = new Tokens(values, COARSE);
  const valley = interpolated(0, kappas.at(-1), (kappa) => coarse.at(kappa), VALLEY);
  return {
    run,
    ...course(run, 100, 260),
    kappas,
    valley: kappas.map((kappa) => valley(kappa, "loss")),
    lengths,
    best: bestByLength(values, lengths),
  };
}

// The share of the attention, in long prompts, within half a degree of each angle, in
// percent. With κ = 0 it is the share of the tokens.
function shares({ d }, kappa, degrees) {
  const raw = degrees.map(
    (angle) =>
      Math.sin((angle * Math.PI) / 180) ** (d - 2) *
      Math.exp(kappa * (Math.cos((angle * Math.PI) / 180) - 1)),
  );
  const most = raw.reduce((x, y) => x + y);
  return raw.map((value) => (100 * value) / most);
}
const DEGREES = spread(0.5, 179.5, 180, false);

function moment({ run }, values) {
  const state = run.at(values.t),
    [kappa] = state.params,
    near = shares(values, kappa, DEGREES);
  let within = 0;
  const half = DEGREES.find((_, i) => (within += near[i]) >= 50);
  return { ...state, kappa, near, half };
}

function words({ run }, now, { above }) {
  return [
    headline(run, above, `the least loss ${short(run.floor, 4)}`),
    `The best κ is **${short(run.best, 4)}**; the learning rate is ${short(run.eta, 4)}.`,
    `At step **${count(now.t)}**: κ = **${short(now.kappa, 4)}**, loss **${short(now.loss, 4)}**; half of the attention is within ${short(now.half)}° of the query.`,
  ];
}

const loss = along({
  name: "loss",
  title: "Loss",
  caption: "and the least loss of any κ",
  samples: "sampled prompts",
  y: ({ states }) => ({
    low: 0,
    high: 1.1 * Math.max(...states.map((state) => state.loss)),
    label: "loss",
  }),
  phases: ({ run, end }) => [["within ε", run.steps ?? end, end, "green"]],
  marks: (axes, { run }) => axes.horizontal(run.floor, "red", { word: "least" }),
  describe: ({ run }, now) =>
    `${short(now.loss, 4)} at step ${now.t}; the least is ${short(run.floor, 4)}, at κ = ${short(run.best, 4)}.`,
});

const valley = {
  name: "valley",
  title: "Loss, against κ",
  height: 300,
  caption: "with the best κ and the present one.",
  scales: ({ kappas, valley: all }) => [
    { low: 0, high: kappas.at(-1), label: "κ" },
    { low: 0, high: 1.1 * Math.max(...all), label: "loss" },
  ],
  still(axes, { run, kappas, valley: all }) {
    axes.vertical(run.best, "red", { word: `best κ = ${short(run.best)}` });
    axes.curve(kappas, all, "blue", { width: 2.6 });
  },
  moving: (axes, model, now) => axes.dot(now.kappa, now.loss, "blue"),
  describe: ({ run }, now) =>
    `κ is ${short(now.kappa, 4)}; the best is ${short(run.best, 4)}.`,
};

const window = {
  name: "window",
  title: "Window",
  height: 290,
  caption:
    "Grey: pairs by their angle with the query. Blue: attention on them, in long prompts.",
  scales: (model, values) => [
    { low: 0, high: 180, label: "angle θ in degrees" },
    {
      low: 0,
      high:
        1.1 *
        Math.max(...shares(values, Math.max(model.run.best, values.start), DEGREES)),
      label: "% per degree",
    },
  ],
  still: (axes, model, values) =>
    axes.curve(DEGREES, shares(values, 0, DEGREES), "muted"),
  moving: (axes, model, now) => axes.curve(DEGREES, now.near, "blue", { width: 2.6 }),
  describe: (model, now) =>
    `Half of the attention is within ${short(now.half)} degrees of the query.`,
};

const best = against({
  name: "best",
  title: "Best κ, against N",
  height: 290,
  setting: "N",
  caption:
    "exact, and the power law for long prompts. Drag, or press the arrow keys, to change N.",
  scales: ({ best: all }) => [
    { low: 2, high: 1e5, log: true, label: "pairs in a prompt N" },
    {
      low: Math.min(...all) / 2,
      high: Math.max(...all) * 2,
      log: true,
      label: "best κ",
    },
  ],
  marks: (axes, { lengths, best: all }, { d }) =>
    axes.law(
      (N) => all.at(-1) * (N / lengths.at(-1)) ** (2 / (d + 3)),
      "green",
      `N^${short(2 / (d + 3))}`,
      0.2,
    ),
  curve: ({ lengths, best: all }) => [lengths, all],
  number: ({ run }) => run.best,
  describe: ({ run }, now, { N }) => `${short(run.best, 4)} for prompts of ${N} pairs.`,
});

module.exports = {
  tab: "Sphere",
  lead: "Linear tasks on the unit sphere: softmax attention of one trained number κ averages the noisy values near the query. Descent on the exact loss; the package has tasks with kinks and waves, too.",
  settings,
  presets,
  tour,
  compute,
  moment,
  words,
  sound,
  trainer: (values, draw, { run }) => trainer({ ...values, eta: run.eta }, draw),
  parameters: ({ N, noise, L, d, start, above }, { run }) => ({
    d,
    N,
    L,
    noise,
    start,
    eta: run.eta,
    above,
    max_steps: 1e5,
  }),
  found: ({ run }, now) => ({
    steps: run.steps,
    t: now.t,
    loss: now.loss,
    kappa: now.kappa,
    best: run.best,
  }),
  figures: [loss, valley, window, best],
};
