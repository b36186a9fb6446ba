// The panel of a model whose exact runs the package has computed beforehand, for some
// values of one parameter, `varied`. The record has these runs and the words about
// them.
"use strict";

const { count, short } = require("numbers");
const { against, along, headline, step } = require("training");
const record = require("./record"),
  { parameters, title } = require("./family");

const COLOURS = ["blue", "orange", "green", "red"];
const { varied, values: stops, fixed } = record,
  { symbol, meaning } = parameters[varied];
// The value with a run that is nearest to a value of the varied parameter.
const nearest = (value) =>
  stops.reduce((one, other) =>
    Math.abs(other - value) < Math.abs(one - value) ? other : one,
  );
const run = (value) => record.runs[stops.indexOf(nearest(value))];
const most = Math.max(...record.runs.map(({ t }) => t.at(-1)));

const settings = [
  {
    name: varied,
    value: record.usual,
    stops,
    low: stops[0],
    high: stops.at(-1),
    minimum: stops[0],
    maximum: stops.at(-1),
  },
  { ...step(Math.round(most ** 0.5)), high: most, maximum: most },
];

// Values without a run are replaced by the nearest value with one, and a sentence says
// so.
function sound({ [varied]: value }) {
  const found = nearest(value);
  if (found === value) return {};
  return {
    changes: { [varied]: found },
    problem: `Runs are here for ${symbol} = ${stops.map((one) => short(one)).join(", ")}: ${short(found)} is used.`,
  };
}

// The model of the page: the recorded run for the value of the varied parameter.
function compute(values) {
  const found = run(values[varied]),
    { floor, above, steps, last, loss, t } = found;
  const states = t.map((time, i) => ({
    t: time,
    loss: loss[i],
    excess: Math.max(loss[i] - floor, 0),
    numbers: Object.fromEntries(
      Object.entries(found.numbers).map(([name, all]) => [name, all[i]]),
    ),
  }));
  const at = (time) => states[t.findLastIndex((one) => one <= time)];
  return {
    found,
    floor,
    above,
    steps,
    last,
    reached: steps !== null,
    end: t.at(-1),
    times: [0.5, ...t.slice(1)],
    states,
    at,
    excessAt: (time) => at(time).excess,
    drawn: found.sampled,
  };
}

const moment = (model, { t }) => model.at(t);

function words(model, now) {
  const shown = record.figures
    .flatMap(({ of }) => of)
    .map((name) => `${name} = **${short(now.numbers[name])}**`);
  return [
    headline(model, model.above, `the floor ${short(model.floor, 4)}`),
    `At step **${count(now.t)}**: loss **${short(now.loss, 4)}**${shown.length ? `; ${shown.join(", ")}` : ""}.`,
    `The learning rate is ${short(model.found.eta, 4)}. The package computed these exact runs beforehand, and the page shows their saved steps.`,
  ];
}

// The ends of a scale for some numbers, with a margin unless the lowest is 0.
const range = (numbers) => {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)],
    room = 0.08 * (high - low || 1);
  return { low: low - (low === 0 ? 0 : room), high: high + room };
};

const loss = along({
  name: "loss",
  title: "Loss",
  caption: `${record.runs[0].sampled ? `and, in pink, a run on batches of ${record.batch} sampled prompts` : "of the exact run"}. Drag, or press the arrow keys, to move through training.`,
  y: ({ states, drawn }) => ({
    low: 0,
    high:
      1.1 * Math.max(...states.map((state) => state.loss), ...(drawn?.losses ?? [])),
    label: "loss",
  }),
  phases: ({ steps, end }) =>
    steps === null ? [] : [["within ε", steps, end, "green"]],
  marks(axes, { floor, drawn }) {
    axes.horizontal(floor, "red", { word: "floor" });
    if (drawn) axes.curve(drawn.times, drawn.losses, "pink", { width: 1.4 });
  },
  describe: ({ floor }, now) =>
    `${short(now.loss, 4)} at step ${now.t}; the floor is ${short(floor, 4)}.`,
});

const others = record.figures.map(({ title, axis, of }, i) =>
  along({
    name: `numbers${i}`,
    title,
    caption:
      of.length > 1
        ? `${of.map((name, j) => `${name} in ${COLOURS[j]}`).join(", ")}.`
        : "along the run.",
    y: ({ states }) => ({
      ...range(states.flatMap((state) => of.map((name) => state.numbers[name]))),
      label: axis,
    }),
    curves: () =>
      of.map((name, j) => [(state) => state.numbers[name], COLOURS[j], { width: 2.2 }]),
    describe: (model, now) =>
      of.map((name) => `${name} is ${short(now.numbers[name])}`).join(", ") + ".",
  }),
);

// The result of a run that is drawn against the varied parameter: its number of steps,
// or a number at its end.
const { title: word, of, log: high } = record.against;
const result = ({ steps, loss: all, numbers }) =>
  of === "steps" ? steps : (numbers[of] ?? all).at(-1);
const floors = of === "loss" ? record.runs.map(({ floor }) => floor) : [],
  results = record.runs.map(result);
const trend = against({
  name: "against",
  title: `${word}, against ${symbol}`,
  height: 290,
  setting: varied,
  caption: `${floors.length ? "in blue, and the floors, in red. " : ""}Drag, or press the arrow keys, to change ${symbol}.`,
  scales: () => [
    {
      low: stops[0],
      high: stops.at(-1),
      log: record.log,
      label: `${symbol}, ${meaning}`,
    },
    {
      low: high ? 0.5 * Math.min(...results) : 0,
      high: (high ? 2 : 1.15) * Math.max(...results, ...floors),
      log: high,
      label: word.toLowerCase(),
    },
  ],
  marks: (axes) => {
    if (floors.length) axes.curve(stops, floors, "red", { width: 1.5, dash: [5, 4] });
  },
  curve: () => [stops, results],
  number: ({ found }) => result(found),
  read: nearest,
  describe: ({ found }) =>
    `${short(result(found), 4)} for ${symbol} = ${short(found.value)}.`,
});

module.exports = {
  tab: record.tab,
  under: record.under,
  title,
  lead: `${record.lead} The slider stops at the values whose exact runs are in the page.`,
  settings,
  sound,
  compute,
  moment,
  words,
  figures: [loss, ...others, trend],
  presets: record.presets.map(({ name, value, sentence }) => ({
    name,
    sentence,
    values: { [varied]: value, t: run(value).last },
  })),
  tour: [
    { text: record.lead, values: {}, figure: "loss" },
    {
      text: "The loss while it trains, exactly: no prompt is sampled. Press Play.",
      values: { t: 0 },
      figure: "loss",
      play: true,
    },
    ...record.figures.map(({ text }, i) => ({
      text,
      values: { t: most },
      figure: `numbers${i}`,
    })),
    {
      text: `Each value of ${symbol} has a run of its own. Drag the dot.`,
      values: {},
      figure: "against",
    },
  ],
  parameters: (values, { found }) => ({
    ...fixed,
    [varied]: nearest(values[varied]),
    eta: found.eta,
  }),
  found: ({ steps, floor }, now) => ({ steps, t: now.t, loss: now.loss, floor }),
};
