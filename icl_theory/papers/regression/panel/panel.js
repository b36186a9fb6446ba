// The panel of in-context regression: exchangeable tasks and long prompts, where a run
// is one number.
"use strict";

const { spread } = require("drawing");
const { count, short, percent, plural } = require("numbers");
const { against, along, batch, course, random, step, when } = require("training");
const { Run, predicted, trainer } = require("./closed");
const { figure: drawn } = require("./picture");
const { MOMENTUM, MOST: MOST_STEPS, NAMES, halfOf, runOf } = require("./rules");

const PEAK = 4 / 27; // the largest a s², at the attention a = 1/3
const MOST = 24; // features that are drawn
const RANGE = { minimum: 1e-30, maximum: 1e30 }; // within which nothing overflows

// the function's values in units of LΔ, between −½ and ½; "random 7" stands for values
// that are drawn from the seed 7
function functionValues(text, K) {
  const size = Math.min(K, MOST),
    seed = text.match(/^random (\d+)$/);
  const draw = random(seed ? Number(seed[1]) : 0);
  const given = seed ? [] : text.split(",").map(Number);
  return Array.from({ length: size }, (_, i) =>
    seed ? draw() - 0.5 : (given[i] ?? 0),
  );
}

const within = (value) => Math.max(-0.5, Math.min(0.5, value));

// the function that a text stands for, and the faults of the text; null if the text has
// no values at all
function readFunction(text) {
  const plain = text.trim().toLowerCase().replaceAll("−", "-");
  if (/^random \d{1,9}$/.test(plain)) return { value: plain };
  const given = plain
    .split(/[,;]\s*|\s+/)
    .filter(Boolean)
    .map(Number);
  if (!given.length || given.some(Number.isNaN)) return null;
  const values = given.slice(0, MOST).map(within),
    faults = [];
  if (given.length > MOST)
    faults.push(`f has ${given.length} values, of ${MOST} that are allowed`);
  if (values.some((value, i) => value !== given[i]))
    faults.push("values of f have to be between −½ and ½");
  return { value: values.join(","), fault: faults.join(", and ") };
}

const settings = [
  { name: "L", value: 2, low: 0.01, high: 1000, log: true, ...RANGE },
  { name: "delta", value: 1, low: 0.1, high: 10, log: true, ...RANGE },
  { name: "eta", value: 1, low: 1e-4, high: 1e4, log: true, ...RANGE },
  { name: "K", value: 20, low: 2, high: 1e6, log: true },
  { name: "rule", symbol: "optimiser", meaning: "", value: "gd", words: NAMES },
  {
    name: "epsilon",
    value: 1e-3,
    low: 1e-12,
    high: 1,
    log: true,
    unit: "",
    minimum: 1e-300,
    maximum: 1e30,
  },
  {
    name: "f",
    symbol: "f",
    meaning:
      "a function, in units of LΔ from −½ to ½: draw it below, or type values; those left out are 0",
    value: "random 1",
    text: readFunction,
    random: () => `random ${Math.floor(1e6 * Math.random())}`,
    moving: true,
  },
  {
    name: "query",
    symbol: "q",
    meaning: "feature that is asked for in the drawn model",
    value: 2,
    low: 1,
    high: MOST,
    whole: true,
    minimum: 1,
    maximum: MOST,
    moving: true,
  },
  batch,
  step(100),
];

const presets = [
  {
    name: "Flat",
    sentence:
      "A small L: the loss is at ε before the tail begins. Every step goes into learning where to look.",
    values: { L: 0.2, t: 300 },
  },
  {
    name: "Sharp",
    sentence:
      "A large L: attention is learnt early, and most steps go into the tail, where the loss falls like 1/t.",
    values: { L: 5, t: 1000 },
  },
  {
    name: "Flat beside sharp",
    sentence:
      "In grey dashes the run of L = 0.2: it takes longer to learn where to look, and has no tail.",
    values: { L: 5, t: 1000 },
    ghost: { L: 0.2 },
  },
  {
    name: "Far above L*",
    sentence:
      "The number of steps hardly depends on L any more: only ε, η and K count.",
    values: { K: 1000, L: 40, t: 10000 },
  },
  {
    name: "K = 10⁶",
    sentence:
      "A million features: the first phase takes K²/(ηγ) steps, γ = L²Δ²/2; all of them are counted, at no cost.",
    values: { K: 1e6, L: 20, t: 1e9 },
  },
  {
    name: "Momentum",
    sentence:
      "Momentum 0.9 learns the same as gradient descent in a tenth of the steps: a steady gradient adds up to 1/(1 − 0.9) = 10 times itself. The other optimisers are dotted.",
    values: { L: 1, rule: "heavy-ball", t: 692 },
  },
  {
    name: "Adam",
    sentence:
      "With a small learning rate, 0.01, Adam takes a fortieth of the steps of momentum, as it divides the gradient by its running size. The other optimisers are dotted.",
    values: { rule: "adam", eta: 0.01, t: 100 },
  },
  {
    name: "10¹⁴ steps",
    sentence:
      "A target that takes a hundred million million steps, counted by one formula.",
    values: { L: 2, epsilon: 5e-14, t: 1e10 },
  },
];

const story = [
  {
    title: "Looking everywhere",
    figure: "model",
    values: { t: 0 },
    text: "At step 0 the query attends to all K features alike, so that the prediction is the mean of all values, whatever the query.",
    attempt: {
      text: "ask for another feature (click its row). The prediction does not move.",
      values: { query: 5 },
    },
  },
  {
    title: "Learning to look",
    figure: "model",
    values: { t: 273 },
    text: "Phase I ends at step 273, the first at which the query gives half of its attention to its own feature. More than two thirds of the loss are gone.",
    attempt: {
      text: "double L. The gradients are four times as large, and Phase I takes a quarter of the steps.",
      values: { L: 4, t: 69 },
    },
  },
  {
    title: "Sharpening",
    figure: "attention",
    values: { t: 941 },
    text: "In Phase II, to step 941, attention on the query's own feature grows from half to nine tenths, and the loss falls to about a hundredth of what it was at the start.",
    attempt: {
      text: "ask for another feature. Now the prediction follows, and is off by less than a tenth of LΔ.",
      values: { query: 5 },
    },
  },
  {
    title: "The tail",
    figure: "loss",
    values: { t: 5000 },
    text: "In Phase III the attention that is left on other features melts slowly, and the loss falls like 1/t.",
    attempt: {
      text: "go on to step 10 000. Twice the steps halve the loss, nearly.",
      values: { t: 10000 },
    },
  },
  {
    title: "No tail",
    figure: "loss",
    values: { L: 0.2, t: 35000 },
    text: "With flat functions, L = 0.2, the loss is at ε before the tail begins: every step goes into learning where to look.",
    attempt: {
      text: "raise L to 1, above L* = 0.63. The run has a tail, and takes a fifth of the steps.",
      values: { L: 1, t: 7000 },
    },
  },
  {
    title: "Momentum",
    figure: "attention",
    values: { L: 1, rule: "heavy-ball", t: 692 },
    text: "Momentum 0.9 takes attention the same way, sooner: the loss is at ε after 692 steps, a tenth of the 7122 of gradient descent (dotted), as a steady gradient adds up to ten times itself.",
    attempt: {
      text: "make single steps large, L = 5. Momentum carries attention through the tail: 24 steps, of 5037.",
      values: { L: 5, t: 24 },
    },
  },
  {
    title: "The transition",
    figure: "steps",
    values: { K: 1000, L: 0.2, t: 1e7 },
    text: "With many features, here 1000, the number of steps falls like 1/L² for small L, and hardly depends on L for large L. The bend at L* is the phase transition.",
    attempt: {
      text: "drag the red dot to L = 40, far above L*. T is close to (K − 1)/(4ηε), whatever L is.",
      values: { L: 40, t: 100000 },
    },
  },
  {
    title: "Any function",
    figure: "function",
    values: { t: 150 },
    text: "Bars are a function that the model has never seen, dots its predictions. The band is proved: the prediction of no L-Lipschitz function can be off by more.",
    attempt: {
      text: "draw another function in the figure. The dots stay in the band.",
      values: { f: "random 2" },
    },
  },
];

function parameters({ L, delta, eta, K, epsilon, rule }) {
  const plain = { L, delta, eta, K, epsilon };
  if (rule === "gd") return plain;
  return {
    ...plain,
    rule,
    ...(rule === "adam" ? {} : { momentum: MOMENTUM }),
    max_steps: MOST_STEPS,
  };
}

// the query is one of the features that are drawn; rules with memory take every step
function sound({ K, query, rule, t }) {
  const most = Math.min(K, MOST),
    changes = {},
    problems = [];
  if (query > most) {
    changes.query = most;
    problems.push(
      `With K = ${count(K)} the query is one of ${most} features: q = ${most} is used.`,
    );
  }
  if (rule !== "gd" && t > MOST_STEPS) {
    changes.t = MOST_STEPS;
    problems.push(
      `The page takes at most ${count(MOST_STEPS)} steps of ${NAMES[rule]}: t = ${count(MOST_STEPS)} is used.`,
    );
  }
  return problems.length ? { changes, problem: problems.join(" ") } : {};
}

// the number of steps to ε against L, with its two power laws
function transition(values, run) {
  const { K, delta, eta, epsilon } = values;
  const nothing = Math.sqrt((4 * epsilon * K) / (K - 1)) / delta; // at or below it there is nothing to learn
  const low = Math.min(nothing / 2, values.L / 3),
    high = Math.max(run.boundary * 100, values.L * 10);
  const from = spread(low, high, 220).filter((L) => L > nothing);
  const at = [nothing * (1 + 1e-9), ...from]
    .map((L) => [L, new Run({ ...values, L }).steps])
    .filter(([, steps]) => steps > 0 && steps < Infinity);
  return {
    low,
    high,
    L: at.map(([L]) => L),
    steps: at.map(([, steps]) => steps),
    attending: (L) => (2 * K * K) / (eta * (L * delta) ** 2),
    tail: (K - 1) / (4 * eta * epsilon),
    leaps: Math.sqrt((2 * (K - 1) ** 2) / (PEAK * eta * K)) / delta, // beyond, a step may move the gap of scores by more than 1
  };
}

// the other optimisers with the same loss, gradient and learning rate, to draw behind
// the one that is chosen
function rivals(values, end) {
  if (values.rule === "gd") return [];
  return Object.keys(NAMES)
    .filter((rule) => rule !== values.rule)
    .map((rule) => {
      const run = runOf({ ...values, rule });
      // steps are taken one by one, and beyond a thousand times the steps of its run a
      // curve is off the axes
      const last = Math.min(end, run.most, 1000 * Math.max(1, run.last));
      const times = [0.5, ...spread(1, last, 150).map(Math.round)];
      return {
        name: NAMES[rule],
        rule,
        half: halfOf(run),
        steps: run.steps,
        reached: run.reached,
        times,
        states: times.map((t) => run.at(Math.floor(t))),
      };
    });
}

function compute(values) {
  const run = runOf(values),
    made = course(run, 1000, 500);
  return {
    run,
    half: values.rule === "gd" ? null : halfOf(run),
    ...made,
    transition: transition(values, run),
    rivals: rivals(values, made.end),
  };
}

function moment({ run }, values) {
  const state = run.at(values.t),
    size = values.L * values.delta;
  const truth = functionValues(values.f, values.K).map((value) => value * size);
  const guess = predicted(truth, values.K, state.deficit);
  return {
    ...state,
    size,
    truth,
    guess,
    band: state.deficit * size,
    ratio: (state.t * state.loss * 4 * values.eta) / (values.K - 1),
  };
}

const stepsToHalf = ({ half }) =>
  half === null
    ? `not within ${count(MOST_STEPS)} steps`
    : `after **${count(half)}** step${half === 1 ? "" : "s"}`;

// the words on a run of momentum or Adam, compared with the other optimisers
function wordsOfRule({ run, half, rivals: others }, now, { L, epsilon, rule }) {
  const long = ({ reached, steps: taken }) =>
    reached ? `**${count(taken)}**` : `more than ${count(MOST_STEPS)}`;
  const name = NAMES[rule][0].toUpperCase() + NAMES[rule].slice(1);
  const descent = others.find((other) => other.rule === "gd");
  const headline = run.reached
    ? `**${name}**: the loss is at ε = ${short(epsilon)} after **${plural(run.steps, "step")}**.`
    : `**${name}**: after ${count(run.last)} steps, all that the page takes, the loss is still ${short(run.at(run.last).loss)}, above ε = ${short(epsilon)}.`;
  return [
    headline,
    `The loss depends on the attention alone, which grows as by gradient descent, at another speed. Half of it is on the query's own feature ${stepsToHalf({ half })}, and by gradient descent ${stepsToHalf(descent)}.`,
    `With the same loss, gradient and η: ${others.map((other) => `${other.name} takes ${long(other)} steps`).join(", ")}. L is ${short(L / run.boundary)} times L* = ${short(run.boundary)}, the bend of gradient descent.`,
    `At step **${count(now.t)}**: loss **${short(now.loss, 4)}**, attention on the target **${percent(now.attention)}**, predictions off by at most ${short(now.band)}.`,
  ];
}

// what attention learns in each phase, and in how many steps
function phaseByPhase(run) {
  const parts = run.phases.map(({ name, from, to }) => {
    // a power law can be seen only over some factor of time, here 3
    const isTail = name === "III" && to > 3 * from;
    const tail = isTail ? ", the tail, where the loss falls like 1/t" : "";
    const steps = `**${count(to - from)}** step${to - from === 1 ? "" : "s"}`;
    return `to ${percent(run.at(to).attention)} in Phase ${name} (${steps}${tail})`;
  });
  return `Attention on the query's own feature grows from ${percent(run.at(0).attention)} ${parts.join(", ")}.`;
}

function words(model, now, { L, epsilon, eta, K, rule }) {
  if (model.rivals.length) return wordsOfRule(model, now, { L, epsilon, rule });
  const { run } = model;
  const place = `L is ${short(L / run.boundary)} times L* = ${short(run.boundary)}`;
  const headline =
    run.steps === 0
      ? `**Nothing to learn**: the loss is ${short(run.initial)} at the start, at or below ε = ${short(epsilon)} already: 0 steps.`
      : run.reached
        ? `**${run.regime === "sharp" ? "Sharp" : "Flat"}**: the loss is at ε = ${short(epsilon)} after **${count(run.steps)}** step${run.steps === 1 ? "" : "s"}.`
        : `**${run.regime === "sharp" ? "Sharp" : "Flat"}**: after all ${count(run.last)} steps the loss is still ${short(run.at(run.last).loss)}, above ε = ${short(epsilon)}.`;
  const beyond = `beyond the ${run.reached ? "target" : "last step"}`;
  const phase =
    now.t > run.last
      ? beyond
      : `in Phase ${run.phases.find(({ to }) => now.t <= to)?.name ?? "I"}`;
  const open = run.sure
    ? "no doubt about the count"
    : `the count open by ${plural(Math.ceil(run.error), "step")} either way`;
  const certain = run.steps > 0 && run.reached ? `; rounding leaves ${open}` : "";
  const lines = [`${place}${certain}.${run.last > 0 ? ` ${phaseByPhase(run)}` : ""}`];
  lines.push(
    `At step **${count(now.t)}**, ${phase}: loss **${short(now.loss, 4)}**, attention on the target **${percent(now.attention)}**, predictions off by at most ${short(now.band)}${now.t > 0 ? `, t·loss is ${short(now.ratio)} times its limit (K − 1)/(4η)` : ""}.`,
  );
  if (run.counter.c * PEAK > 1)
    lines.push(
      `Single steps are large here (η is ${short(eta / run.stable)} times the rate that is stable for every task): one lucky step may end the run.`,
    );
  if (K < 7 && run.steps > 0)
    lines.push(
      "With fewer than 7 features the exponent of T in L never comes to −1: there is no half-way point.",
    );
  return [headline, ...lines];
}

// dotted curves of the other optimisers, with their names in the corner that is empty
function behind(axes, { rivals: others }, number, names) {
  others.forEach(({ name, times, states }, i) => {
    const colour = ["orange", "green"][i];
    axes.curve(times, states.map(number), colour, { width: 1.7, dash: [2, 3] });
    axes.text(
      `dotted: ${name}`,
      axes.left + 8,
      names === "top" ? axes.top + 12 + 15 * i : axes.bottom - 12 - 15 * i,
      colour,
    );
  });
}

const COLOURS = { I: "orange", II: "blue", III: "green" };
const phases = ({ run }) =>
  run.phases.map(({ name, from, to }) => [name, from, to, COLOURS[name]]);

const loss = along({
  name: "loss",
  title: "Loss",
  caption:
    "with the phases of gradient descent shaded; with another optimiser, the others dotted",
  samples: "sampled functions and queries",
  y({ run, states }, { epsilon }) {
    const low = Math.max(
      1e-300,
      Math.min(epsilon, Math.max(states.at(-1).loss, epsilon * 1e-3)) / 5,
    );
    return {
      low,
      high: Math.max(run.initial, epsilon, 10 * low) * 3,
      log: true,
      label: "loss",
    };
  },
  phases,
  marks(axes, model, { K, eta, epsilon }) {
    behind(axes, model, (state) => state.loss, "bottom");
    if (!model.rivals.length)
      axes.law((t) => (K - 1) / (4 * eta * t), "muted", "(K − 1)/(4ηt)", 0.3, {
        below: true,
      });
    axes.horizontal(epsilon, "red", { word: `ε = ${short(epsilon)}` });
  },
  describe: ({ run }, now, { epsilon }) =>
    `It starts at ${short(run.initial)}, is ${short(now.loss)} at step ${now.t}, and reaches ${short(epsilon)} ${when(run)}.`,
});

const attention = along({
  name: "attention",
  title: "Attention",
  height: 280,
  caption: "on the target, and on each of the other K − 1 features.",
  y: () => ({ low: 0, high: 1.02, label: "attention" }),
  phases,
  marks(axes, model) {
    axes.horizontal(0.5, "axis");
    behind(axes, model, (state) => state.attention, "top");
  },
  curves: ({ K }) => [
    [(state) => state.attention, "blue"],
    [(state) => state.deficit / (K - 1), "red", { dot: 4 }],
  ],
  describe: (model, now, { K }) =>
    `${percent(now.attention)} on the target, ${percent(now.deficit / (K - 1))} on each other feature at step ${now.t}.`,
});

const map = {
  name: "map",
  title: "Attention map",
  height: 280,
  bare: true,
  caption:
    "Rows are queries, columns are features. A darker cell means more attention.",
  scales: () => [
    { low: 0, high: 1 },
    { low: 0, high: 1 },
  ],
  moving(axes, model, now, { K }) {
    const { width, height } = axes,
      size = Math.min(K, MOST),
      side = Math.min(width, height - 22),
      left = (width - side) / 2;
    const rows = Array.from({ length: size }, (_, row) =>
      Array.from({ length: size }, (_, column) =>
        row + column === size - 1 ? now.attention : now.deficit / (K - 1),
      ),
    );
    Object.assign(axes, { left, right: left + side, top: 0, bottom: side }).cells(
      rows,
      "blue",
      (share) => 0.05 + 0.95 * share,
    );
    const shown = size < K ? `${size} of ${count(K)} features` : `${K} features`;
    axes.text(
      `${percent(now.attention)} on the diagonal, ${shown}`,
      width / 2,
      height - 9,
      "muted",
      "center",
    );
  },
  describe: (model, now, { K }) =>
    `${Math.min(K, MOST)} by ${Math.min(K, MOST)} cells; the diagonal has ${percent(now.attention)} each.`,
};

// a function as a text, with another value at a place, in units of LΔ
function redrawn(truth, size, place, value) {
  const values = truth.map((one) => one / size);
  values[Math.max(0, Math.min(values.length - 1, place))] = within(value);
  return values.map((one) => Number(one.toFixed(3))).join(",");
}

const prediction = {
  name: "function",
  title: "A function never seen",
  height: 280,
  wide: true,
  caption:
    "Bars: its values, repeated if there are more features. Dots: the prediction of the model. The band holds for every L-Lipschitz function. Draw your own: with the pointer, or with the arrow keys, which choose a feature q and move its value.",
  scales(model, { L, delta, K }) {
    const size = L * delta;
    return [
      {
        low: -0.5,
        high: Math.min(K, MOST) - 0.5,
        label: K > MOST ? `${MOST} of ${count(K)} features` : "feature",
        tick: (value) => (Number.isInteger(value) ? String(value + 1) : ""),
      },
      { low: -0.8 * size, high: 0.8 * size, label: "label" },
    ];
  },
  moving(axes, model, { truth, guess, band }, { query }) {
    axes.text("q", axes.X(query - 1), axes.top + 9, "blue", "center");
    const size = Math.min(5, (0.3 * (axes.right - axes.left)) / truth.length + 1);
    truth.forEach((value, i) => {
      const wide = [i - 0.36, i + 0.36];
      axes.box(wide, [0, value], "muted", 0.3);
      axes.box(wide, [value - band, value + band], "green", 0.22);
      for (const end of [value - band, value + band])
        if (axes.y.low < end && end < axes.y.high)
          axes.line(
            wide.map((x) => [axes.X(x), axes.Y(end)]),
            "green",
            { dash: [], width: 1.5 },
          );
      axes.line(
        wide.map((x) => [axes.X(x), axes.Y(value)]),
        "ink",
        { dash: [], width: 2 },
      );
      axes.dot(i, guess[i], "blue", size);
    });
  },
  drag(axes, x, y, model, { truth, size }) {
    const place = Math.round(axes.xAt(x));
    return { f: redrawn(truth, size, place, axes.yAt(y) / size) };
  },
  keys(key, { truth, size }, { query }) {
    const along = { ArrowRight: 1, ArrowLeft: -1 }[key],
      up = { ArrowUp: 0.05, ArrowDown: -0.05 }[key];
    if (along) return { query: Math.max(1, Math.min(truth.length, query + along)) };
    if (!up) return null;
    return { f: redrawn(truth, size, query - 1, truth[query - 1] / size + up) };
  },
  describe(model, { truth, guess, band }) {
    const worst = Math.max(...truth.map((value, i) => Math.abs(value - guess[i])));
    return `The worst prediction is off by ${short(worst)}; no L-Lipschitz function can be missed by more than ${short(band)}.`;
  },
};

const steps = against({
  name: "steps",
  title: "Steps to ε, against L",
  setting: "L",
  caption:
    "by gradient descent, with the power laws of the flat and the sharp regime, and the crossover between them. Shaded red: steps are so large that a single one may end the run. The dot is the optimiser that is chosen. Drag, or press the arrow keys, to change L.",
  scales({ run, transition: { low, high, steps: all, tail } }) {
    const most = Math.max(10 * tail, ...all),
      bottom = Math.max(0.5, Math.min(tail / 20, Math.max(run.steps, 1) / 3));
    return [
      { low, high, log: true, label: "Lipschitz constant L" },
      {
        low: bottom,
        high: Math.max(most * 3, 100 * bottom),
        log: true,
        label: "steps T",
      },
    ];
  },
  marks(axes, { run, transition: { low, high, attending, tail, leaps } }) {
    axes.shade(low, run.boundary, "orange", "flat");
    axes.shade(
      run.boundary,
      Math.min(high, Math.max(leaps, run.boundary)),
      "green",
      "sharp",
    );
    axes.shade(Math.max(leaps, low), high, "red", "large steps");
    axes.law(attending, "orange", "2K²/(ηL²Δ²)", 0.14);
    axes.law(() => tail, "green", "(K − 1)/(4ηε)", 0.75);
    axes.vertical(run.boundary, "ink", { word: `L* = ${short(run.boundary)}`, row: 1 });
    if (run.half !== null)
      axes.vertical(run.half, "pink", { word: `half-way ${short(run.half)}`, row: 2 });
  },
  curve: ({ transition: { L, steps: all } }) => [L, all],
  number: ({ run }) => run.steps,
  read: (L) => Number(L.toPrecision(3)),
  describe: ({ run, transition: { tail } }) =>
    `L* is ${short(run.boundary)}${run.half === null ? "" : `, half-way is ${short(run.half)}`}; for large L the number of steps tends to ${short(tail)}.`,
});

module.exports = {
  tab: "Regression",
  lead: "A prompt shows features with their values under a function, and the model is asked for the value of one of them, the query. It answers with the average of the values that it attends to. Training teaches softmax attention to find the query among K features. Functions are L-Lipschitz, prompts infinite, tasks exchangeable: the whole run of gradient descent in closed form.",
  settings,
  presets,
  story,
  compute,
  moment,
  words,
  parameters,
  sound,
  trainer: (values, draw) =>
    values.K > 1000 || values.rule !== "gd" ? null : trainer(values, draw), // scores of so many features fit into memory; samples are for descent
  found: ({ run }, now) => ({
    steps: run.reached ? run.steps : null,
    error: run.error,
    regime: run.regime,
    phases: Object.fromEntries(
      run.phases.map(({ name, from, to }) => [name, [from, to]]),
    ),
    t: now.t,
    loss: now.loss,
    attention: now.attention,
  }),
  figures: [drawn, loss, steps, attention, map, prediction],
};
