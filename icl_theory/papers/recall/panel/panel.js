// The panel of in-context recall: one strength for all triggers, where normalised
// descent is a straight line.
"use strict";

const { spread } = require("drawing");
const { count, short, percent } = require("numbers");
const { against, along, batch, doubt, headline, step, when } = require("training");
const { Run, trainer } = require("./closed");

const OUTPUTS = 8; // words that follow triggers, where there is room for them

const settings = [
  { name: "triggers", value: 4, low: 1, high: 1e4, log: true, maximum: 1e6 },
  { name: "V", value: 50, low: 3, high: 1e6, log: true },
  { name: "alpha", value: 0.2, low: 0, high: 0.95, steps: 95, maximum: 0.999999 },
  {
    name: "eta",
    value: 0.1,
    low: 1e-6,
    high: 2,
    log: true,
    minimum: 1e-30,
    maximum: 1e6,
  },
  {
    name: "counts",
    value: 1,
    low: 1,
    high: 16,
    steps: 15,
    meaning: "times that the output follows the trigger",
    symbol: "c",
    maximum: 1e6,
    minimum: 1,
  },
  {
    name: "above",
    value: 1e-3,
    low: 1e-9,
    high: 1,
    log: true,
    meaning: "target loss above the Bayes risk",
    symbol: "ε",
    minimum: 1e-12,
    maximum: 1e6,
  },
  { ...batch, meaning: "sentences in a batch of the sampled run; 0: none" },
  step(60),
];

const presets = [
  {
    name: "No noise",
    sentence:
      "Every sentence can be completed without doubt: the loss falls to nothing, in the end at a steady rate.",
    values: { alpha: 0, t: 30 },
  },
  {
    name: "Half noise",
    sentence:
      "Every other sentence ends in noise. The model says so half of the time, and is right to.",
    values: { alpha: 0.5, t: 60 },
  },
  {
    name: "1000 triggers",
    sentence:
      "The rate is η/√|Q|, not η/|Q|: 250 times as many triggers as at first make it 16 times smaller.",
    values: { triggers: 1000, V: 5000, t: 1000 },
  },
  {
    name: "Said thrice",
    sentence:
      "An output that follows its trigger three times is learnt three times as fast.",
    values: { counts: 3, t: 20 },
  },
  {
    name: "10¹² steps",
    sentence: "A tiny learning rate: a million million steps, counted in a moment.",
    values: { eta: 2e-11, t: 1e11 },
  },
];

const tour = [
  {
    text: "A sentence ends with a trigger. Earlier in it the trigger was followed by a word, and that word should come next, unless it is noise, with probability α. A transformer learns to look it up.",
    values: {},
    figure: "next",
  },
  {
    text: "All that is trained here is one strength λ, and normalised descent moves it by the same amount at every step. Once the loss above the best possible is small, it falls along a straight line on this axis.",
    values: { t: 60 },
    figure: "loss",
  },
  {
    text: "A review of the paper names three exponents: ηt/√|Q|, ηt/|Q| and ηt. In this model the exact curve falls like the first in the end. The other two are dashed.",
    values: { triggers: 16 },
    figure: "loss",
  },
  {
    text: "Press Play: the probability of the output rises to 1 − α and that of noise falls to α. All other words lose theirs.",
    values: { t: 0 },
    figure: "probabilities",
    play: true,
  },
  {
    text: "The model has never seen the output on the right. It recalls that output just as well: in this model no probability depends on which word it is.",
    values: { t: 150 },
    figure: "next",
  },
  {
    text: "The number of steps grows like √|Q|. Drag the dot to change the number of triggers.",
    values: { triggers: 100, V: 500 },
    figure: "steps",
  },
];

// A vocabulary needs the triggers, an output, and noise.
function sound({ V, triggers }) {
  if (V >= triggers + 2) return {};
  return {
    changes: { V: triggers + 2 },
    problem: `${count(triggers)} triggers, an output and noise are ${count(triggers + 2)} words: V = ${count(triggers + 2)} is used.`,
  };
}

const parameters = ({ V, triggers, alpha, eta, counts, above }) => ({
  V,
  triggers,
  outputs: Math.min(OUTPUTS, V - triggers - 1),
  ...(alpha > 0 ? { alpha, gamma: "best" } : {}),
  eta,
  counts,
  H: Math.max(33, 2 * counts + 1),
  above,
});

// The exponents of linear convergence that a public review quotes from the paper. An
// exponent is ηtc times a power of |Q|.
const EXPONENTS = [
  { words: "ηt/√|Q|", power: -0.5, colour: "green" },
  { words: "ηt/|Q|", power: -1, colour: "orange" },
  { words: "ηt", power: 0, colour: "pink" },
];

function compute(values) {
  const run = new Run(values),
    { triggers, eta, counts, above } = values;
  const end = Math.min(1e15, Math.max(10, Math.ceil(1.35 * run.last))),
    times = spread(0, end, 300, false);
  const weight = run.others * (1 - values.alpha),
    laws = EXPONENTS.map(({ words, power, colour }) => {
      const rate = eta * triggers ** power * counts;
      return {
        words,
        colour,
        rate,
        at: (t) => weight * Math.exp(-rate * t),
        steps: Math.max(0, Math.log(weight / above) / rate),
      };
    });
  const sizes = [
    ...new Set(spread(1, Math.max(1e4, 10 * triggers), 80).map(Math.round)),
  ];
  const bySize = sizes
    .map((Q) => new Run({ ...values, triggers: Q }).steps)
    .map((steps) => steps ?? Infinity);
  return {
    run,
    end,
    even: true,
    times,
    states: times.map((t) => run.at(t)),
    laws,
    sizes,
    bySize,
  };
}

const moment = ({ run }, { t }) => run.at(t);

function words({ run, laws }, now, { alpha, above }) {
  const [right, ...wrong] = laws;
  const predictions = wrong
    .map((law) => `${law.words} would say **${count(Math.ceil(law.steps))}**`)
    .join(", ");
  return [
    headline(run, above, "the Bayes risk"),
    `It falls like exp(−${short(right.rate)} t), the exponent ${right.words}${run.counts > 1 ? " times c" : ""}; ${predictions}. Bayes risk: ${short(run.floor)} nats.${doubt(run)}`,
    `At step **${count(now.t)}**: loss **${short(now.loss, 4)}**, ${short(now.excess)} above the Bayes risk; the output has probability **${percent(now.output)}**${alpha > 0 ? `, noise **${percent(now.noise)}**` : ""}, seen in training or not.`,
  ];
}

const loss = along({
  name: "loss",
  title: "Loss above the Bayes risk",
  caption:
    "exact, and the laws with the three exponents that a review of the paper names",
  samples:
    "sentences: a step is as long as ever, but serves the triggers of its batch only",
  y({ run }, { above }) {
    const first = run.excessAt(0);
    return {
      low: Math.max(1e-300, Math.min(above, first) / 30),
      high: Math.max(first, above) * 8,
      log: true,
      label: "nats",
    };
  },
  phases: ({ run, end }) => [["within ε", run.steps ?? end, end, "green"]],
  marks(axes, { laws }, { above }) {
    axes.horizontal(above, "red", { word: `ε = ${short(above)}` });
    laws.forEach(({ words: name, colour, at }, i) =>
      axes.law(
        at,
        colour,
        i ? `${name}, another exponent` : name,
        [0.3, 0.75, 0.05][i],
        { dash: i ? [5, 5] : [2, 3] },
      ),
    );
  },
  curves: () => [[(state) => state.excess, "blue"]],
  describe: ({ run }, now) =>
    `${short(now.excess)} nats at step ${now.t}; the target is reached ${when(run)}.`,
});

const KINDS = [
  ["output", "blue", "output y"],
  ["noise", "red", "noise τ"],
  ["rest", "muted", "all other words"],
];

const probabilities = along({
  name: "probabilities",
  title: "Probabilities",
  height: 290,
  caption: "of the next word; dashed is what is best.",
  y: () => ({ low: 0, high: 1.02, label: "probability" }),
  marks(axes, { states }, { alpha }) {
    axes.horizontal(1 - alpha, "blue");
    if (alpha > 0) axes.horizontal(alpha, "red");
    let place = Infinity; // words stand above the ends of their curves, the lowest first, and never on each other
    const last = states.at(-1);
    for (const [name, colour, title] of [...KINDS].sort(
      (a, b) => last[a[0]] - last[b[0]],
    )) {
      place = Math.min(axes.Y(last[name]) - 9, place - 15);
      axes.text(title, axes.right - 4, Math.max(place, axes.top + 8), colour, "right");
    }
  },
  curves: () =>
    KINDS.map(([name, colour]) => [(state) => state[name], colour, { dot: 4 }]),
  describe: (model, now) =>
    `Output ${percent(now.output)}, noise ${percent(now.noise)}, all other words ${percent(now.rest)}.`,
});

const next = {
  name: "next",
  title: "What comes next?",
  height: 290,
  caption:
    "An output of the training sentences, and one that never occurred in them. Full matrices, trained on the same sentences, know only the first.",
  scales: () => [
    { low: 0, high: 2, label: "", tick: () => "" },
    { low: 0, high: 1.02, label: "probability" },
  ],
  moving(axes, model, now, { alpha }) {
    ["… q y … q →", "… q y′ … q →"].forEach((sentence, group) => {
      axes.text(sentence, axes.X(group + 0.5), axes.bottom + 14, "muted", "center");
      KINDS.forEach(([name, colour, title], i) => {
        const left = group + 0.16 + 0.24 * i,
          wide = [left, left + 0.2],
          best = { output: 1 - alpha, noise: alpha, rest: 0 }[name];
        axes.box(wide, [0, now[name]], colour);
        axes.line(
          wide.map((x) => [axes.X(x), axes.Y(best)]),
          "ink",
          { dash: [], width: 2 },
        );
        axes.text(
          i === 0 && group ? "y′, unseen" : title.split(" ").at(i === 2 ? 1 : -1),
          axes.X(left + 0.1),
          axes.Y(Math.max(now[name], best)) - 10,
          colour,
          "center",
        );
      });
    });
  },
  describe: (model, now) =>
    `For both outputs the same: output ${percent(now.output)}, noise ${percent(now.noise)}, all other words ${percent(now.rest)}.`,
};

const steps = against({
  name: "steps",
  title: "Steps to ε, against the number of triggers",
  setting: "triggers",
  caption:
    "exact, and what the other exponents would say. Drag, or press the arrow keys, to change |Q|.",
  scales({ sizes, bySize }) {
    const finite = bySize.filter((T) => T < Infinity && T > 0),
      most = Math.max(10, ...finite),
      least = Math.min(most / 10, ...finite);
    return [
      { low: 1, high: sizes.at(-1), log: true, label: "triggers |Q|" },
      { low: Math.max(0.5, least / 5), high: most * 5, log: true, label: "steps" },
    ];
  },
  marks(axes, { run, sizes, laws }, { triggers, V }) {
    if (V < sizes.at(-1))
      axes.shade(Math.max(1, V - 2), sizes.at(-1), "red", "more than V words");
    if (!run.reached || run.steps === 0) return;
    const one = laws[0].steps / triggers ** 0.5; // at one trigger, where all start
    laws.slice(1).forEach(({ words: name, colour }, i) =>
      axes.law((Q) => one * Q ** (i ? 0 : 1), colour, name, i ? 0.72 : 0.42, {
        dash: [5, 5],
      }),
    );
  },
  curve: ({ sizes, bySize }) => [sizes, bySize],
  number: ({ run }) => run.steps ?? Infinity,
  read: (Q, { V }) => Math.min(V - 2, Math.round(Q)),
  describe: ({ run }, now, { triggers }) =>
    `${triggers} triggers take ${run.reached ? `${run.steps} steps` : "more than 10¹⁵ steps"}; the number grows like the root of theirs.`,
});

module.exports = {
  tab: "Recall",
  lead: "In-context recall: a sentence ends with a trigger, and the model says what followed it before. Linear attention, one strength for all triggers, normalised descent: a straight line in λ, and all else in closed form.",
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
    output: now.output,
    noise: now.noise,
  }),
  figures: [loss, steps, probabilities, next],
};
