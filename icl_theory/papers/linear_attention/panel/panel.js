// The panel of linear attention: a matrix Γ whose modes are learnt each at its own
// rate.
"use strict";

const { spread } = require("drawing");
const { count, short } = require("numbers");
const {
  against,
  along,
  batch,
  course,
  doubt,
  headline,
  lasting,
  step,
  when,
} = require("training");
const { Law, Run, limit, product, trainer } = require("./closed");

const MODES = 12; // whose curves are drawn
const NOISE = { minimum: 0, maximum: 1e3 };
const SPECTRUM = "exponent of the spectrum, λⱼ = j⁻ᵅ";

const settings = [
  { name: "d", value: 8, low: 1, high: 200, log: true, maximum: 1000 },
  {
    name: "decay",
    value: 1,
    low: 0,
    high: 3,
    steps: 60,
    meaning: SPECTRUM,
    maximum: 10,
  },
  {
    name: "N",
    meaning: "pairs in a prompt",
    value: 20,
    low: 1,
    high: 1e4,
    log: true,
    maximum: 1e9,
  },
  { name: "noise", value: 0.5, low: 0, high: 3, steps: 60, ...NOISE },
  {
    name: "eta",
    value: 0.02,
    low: 1e-4,
    high: 1.9,
    log: true,
    minimum: 1e-30,
    maximum: 1e6,
  },
  {
    name: "start",
    symbol: "γ₀",
    meaning: "the diagonal of Γ at the start",
    value: 0.001,
    low: 1e-6,
    high: 1,
    log: true,
    minimum: 1e-12,
    maximum: 1,
  },
  {
    name: "above",
    symbol: "ε",
    meaning: "target loss above the floor",
    value: 1e-3,
    low: 1e-9,
    high: 1,
    log: true,
    minimum: 1e-9,
    maximum: 1e6,
  },
  {
    name: "test_N",
    symbol: "N′",
    meaning: "pairs in a prompt of the test",
    whole: true,
    value: 20,
    low: 1,
    high: 1e4,
    log: true,
    minimum: 1,
    maximum: 1e9,
  },
  {
    name: "test_noise",
    symbol: "σ′",
    meaning: "label noise of the test",
    value: 0.5,
    low: 0,
    high: 3,
    steps: 60,
    ...NOISE,
  },
  {
    name: "test_decay",
    symbol: "α′",
    meaning: "exponent of the spectrum of the test",
    value: 1,
    low: 0,
    high: 3,
    steps: 60,
    minimum: 0,
    maximum: 10,
  },
  batch,
  step(300),
];

const presets = [
  {
    name: "One drop",
    sentence:
      "Isotropic tokens: all directions are learnt at once. As a product vA, the same model waits, then drops.",
    values: { decay: 0, test_decay: 0, t: 100 },
  },
  {
    name: "One by one",
    sentence:
      "A steep spectrum: the directions are learnt one after the other, largest first. Most of the loss is that of the first, so that its curve bends once.",
    values: {
      decay: 2,
      test_decay: 2,
      noise: 0.1,
      test_noise: 0.1,
      above: 1e-6,
      t: 3000,
    },
  },
  {
    name: "Long prompts",
    sentence:
      "With many pairs and little noise the floor is low: Γ comes close to the inverse of Λ.",
    values: { N: 5000, test_N: 5000, noise: 0.1, test_noise: 0.1, t: 1000 },
  },
  {
    name: "Other noise",
    sentence:
      "Tested with more noise than in training: the loss turns, and stopping early would be better.",
    values: { noise: 0, test_noise: 2, t: 1000 },
  },
  {
    name: "Other spectrum",
    sentence:
      "Tested on isotropic tokens: what was learnt for one covariance fails on another, in the end worse than nothing learnt.",
    values: { test_decay: 0, t: 20000 },
  },
];

const tour = [
  {
    text: "Prompts of N pairs (x, y) of a linear regression, and a query. One layer of linear attention answers with xᵀΓh, one preconditioned step of least squares. What is learnt is the matrix Γ, and its loss is a parabola.",
    values: {},
    figure: "loss",
  },
  {
    text: "Every direction of the tokens shrinks its distance to the best Γ by its own factor in each step. Large eigenvalues come first: press Play.",
    values: { t: 0, decay: 2, test_decay: 2, above: 1e-6, noise: 0.1, test_noise: 0.1 },
    figure: "modes",
    play: true,
  },
  {
    text: "With equal eigenvalues there is one drop. Trained as a product v·A instead, from the same small start, the model rests on a plateau first: the dashed curve, along gradient flow.",
    values: { decay: 0, test_decay: 0 },
    figure: "loss",
  },
  {
    text: "What remains is the floor: no Γ is better for prompts this short and this noisy. It falls like 1/N. Drag the dot.",
    values: { N: 100, test_N: 100 },
    figure: "floor",
  },
  {
    text: "The same Γ on another law of prompts: more noise, other lengths, another spectrum. Here the test loss turns while training goes on.",
    values: { noise: 0, test_noise: 2, t: 1000 },
    figure: "loss",
  },
];

function sound(values) {
  const most = limit(values);
  if (values.eta < most) return {};
  const eta = Number((0.99 * most).toPrecision(3));
  return {
    changes: { eta },
    problem: `From η = ${short(most)} on descent diverges: η = ${short(eta)} is used.`,
  };
}

const parameters = ({ d, decay, N, noise, eta, start, above }) => ({
  d,
  decay,
  N,
  noise,
  eta,
  start,
  above,
});
const testOf = ({ d, test_decay, test_N, test_noise }) =>
  new Law({ d, decay: test_decay, N: test_N, noise: test_noise });

function compute(values) {
  const run = new Run(values),
    { decay, eta } = values,
    { end, times, states } = course(run, 100, 260),
    test = testOf(values);
  const tested = states.map((state) => {
    state.tested = test.loss(state.gamma);
    return state.tested;
  });
  const least = tested.indexOf(Math.min(...tested));
  const waits =
    decay === 0
      ? times.map((t) =>
          run.law.loss(
            run.law.best.map(() => product(values, run.law, eta * Math.floor(t))),
          ),
        )
      : null;
  const lengths = [
    ...new Set(spread(1, Math.max(1e5, 10 * values.N), 60).map(Math.round)),
  ];
  const floors = lengths.map((N) => new Law({ ...values, N }).floor);
  return { run, end, times, states, test, tested, least, waits, lengths, floors };
}

function moment({ run, test }, { t }) {
  const state = run.at(t);
  return { ...state, tested: test.loss(state.gamma) };
}

const same = (values) =>
  values.N === values.test_N &&
  values.noise === values.test_noise &&
  values.decay === values.test_decay;

function words(model, now, values) {
  const { run, tested, least, times, test } = model,
    { d, above } = values;
  const lines = [
    `The plateau takes **${count(run.plateau)}**, learning **${count(run.last - run.plateau)}** steps; η is ${short(values.eta / limit(values))} of the largest stable rate.${doubt(run)}`,
    `At step **${count(now.t)}**: loss **${short(now.loss, 4)}**, **${count(now.learnt)}** of ${count(d)} directions learnt.`,
  ];
  if (!same(values)) {
    const turns = tested[least] < tested[tested.length - 1] * (1 - 1e-6);
    lines.push(
      `On the law of the test the loss is **${short(now.tested, 4)}**, where ${short(test.floor, 4)} would be possible${turns ? `; it was least, ${short(tested[least], 4)}, at step ${count(times[least])} or so` : ""}.`,
    );
  }
  return [headline(run, above, `the floor ${short(run.law.floor)}`), ...lines];
}

const phases = ({ run }) => [
  ["plateau", 0, run.plateau, "orange"],
  ["learning", run.plateau, run.last, "blue"],
];

const loss = along({
  name: "loss",
  title: "Loss",
  caption: "and the best that any Γ can do",
  samples: "sampled prompts",
  y: ({ states, tested }, values) => ({
    low: 0,
    high:
      1.12 *
      Math.max(...states.map((state) => state.loss), ...(same(values) ? [] : tested)),
    label: "loss",
  }),
  phases,
  marks(axes, { run, times, tested, waits }, values) {
    axes.horizontal(run.law.floor, "red", { word: "floor" });
    if (!same(values))
      axes.text("test", axes.right - 6, axes.Y(tested.at(-1)) - 10, "green", "right");
    if (!waits) return;
    axes.curve(times, waits, "muted", { width: 1.6, dash: [6, 4] });
    const place = waits.findIndex((value) => value < 0.75 * waits[0]);
    if (place > 0)
      axes.text(
        "as a product vA",
        axes.X(times[place]) + 8,
        axes.Y(waits[place]) - 4,
        "muted",
      );
  },
  curves: (values) => [
    ...(same(values)
      ? []
      : [[(state) => state.tested, "green", { width: 2.2, dash: [2, 3], dot: 4 }]]),
    [(state) => state.loss, "blue"],
  ],
  describe: ({ run }, now) =>
    `${short(now.loss, 4)} at step ${now.t}; the floor is ${short(run.law.floor, 4)}, reached to ε ${when(run)}.`,
});

// modes that are drawn: some of all, evenly on a logarithmic scale
const shown = (d) =>
  d <= MODES
    ? [...Array(d).keys()]
    : [...new Set(spread(1, d, MODES).map(Math.round))].map((j) => j - 1);

const modes = along({
  name: "modes",
  title: "Directions",
  height: 290,
  wide: true,
  caption:
    "Γ over the best Γ, along each eigenvector of Λ; the largest eigenvalue is darkest.",
  y: () => ({ low: 0, high: 1.15, label: "share learnt" }),
  phases,
  marks: (axes) => axes.horizontal(0.5, "axis"),
  curves: ({ d }, { run }) =>
    shown(d).map((j, i, { length }) => [
      ({ gamma }) => gamma[j] / run.law.best[j],
      "blue",
      { width: 2, alpha: 1 - (0.35 * i) / length, dot: 3.5 },
    ]),
  describe: (model, now, { d }) =>
    `${now.learnt} of ${d} directions are learnt by half or more at step ${now.t}.`,
});

const floor = against({
  name: "floor",
  title: "Floor, against N",
  setting: "N",
  caption:
    "the loss of the best Γ by the length of prompts. Drag, or press the arrow keys, to change N.",
  scales: ({ lengths, floors }) => [
    { low: 1, high: lengths.at(-1), log: true, label: "pairs in a prompt N" },
    { low: floors.at(-1) / 2, high: floors[0] * 2, log: true, label: "floor" },
  ],
  marks: (axes, { lengths, floors }) =>
    axes.law((N) => (floors.at(-1) * lengths.at(-1)) / N, "green", "1/N", 0.8),
  curve: ({ lengths, floors }) => [lengths, floors],
  number: ({ run }) => run.law.floor,
  describe: ({ run }, now, { N }) =>
    `${short(run.law.floor, 4)} for prompts of ${N} pairs.`,
});

module.exports = {
  tab: "Linear attention",
  lead: "In-context linear regression: one layer of linear attention is one preconditioned step of least squares on the prompt. Its loss, and gradient descent on it, in closed form, direction by direction.",
  settings,
  presets,
  tour,
  compute,
  trainer,
  moment,
  words,
  parameters,
  sound,
  found: ({ run }, now) => ({
    steps: run.steps,
    error: run.error,
    t: now.t,
    loss: now.loss,
    excess: now.excess,
    floor: run.law.floor,
    learnt: now.learnt,
    phases: lasting({ plateau: [0, run.plateau], learning: [run.plateau, run.last] }),
  }),
  figures: [loss, floor, modes],
};
