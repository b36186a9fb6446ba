// What panels of training share: the first step at a target, the step as a setting,
// figures and sentences on a run.
"use strict";

const { spread } = require("drawing");
const { count, short, plural } = require("numbers");

const ROUNDING = 2 ** -50;

// the first step from low + 1 to high at which something holds that then holds for
// good, and does at high
function bisected(low, high, holds) {
  while (high - low > 1) {
    const middle = low + Math.floor((high - low) / 2);
    if (holds(middle)) high = middle;
    else low = middle;
  }
  return high;
}

// the first step at which a loss that falls is at its target, or null, its error by the
// rounding of the loss, and the last step
function firstStep(loss, target, most) {
  const found = (steps, error = 0) => ({
    steps,
    error,
    reached: steps !== null,
    last: steps ?? most,
  });
  if (!(loss(most) <= target)) return found(null);
  if (loss(0) <= target) return found(0);
  const steps = bisected(0, most, (t) => loss(t) <= target),
    before = loss(steps - 1),
    after = loss(steps),
    doubt = ROUNDING * target;
  const error = doubt / Math.max(before - after, doubt * 2 ** -53);
  const close = Math.min(Math.abs(before - target), Math.abs(after - target)) <= doubt;
  return found(steps, close ? Math.ceil(error) : error);
}

// A run step by step, from params on by `next`, up to some most; it ends early where
// params stay as they are. If its loss `falls` at every step, steps are taken when they
// are first asked for: few of them are needed to find the first at the target.
class Path {
  constructor(start, next, loss, floor, above, most = 2e4, falls = false) {
    Object.assign(this, { states: [start], next, rests: false, loss, floor, most });
    const lossAt = (t) => this.at(t).loss;
    let last = falls ? 0 : most;
    while (last < most && lossAt(last) > floor + above)
      last = Math.min(most, 2 * last + 1);
    const found = firstStep(lossAt, floor + above, last);
    Object.assign(this, found, { last: found.steps ?? most });
    this.extend(falls ? 0 : most);
  }

  extend(t) {
    const { states } = this,
      end = Math.min(t, this.most);
    while (!this.rests && states.length <= end) {
      const now = states.at(-1),
        then = this.next(now);
      if (then.every((value, i) => Math.abs(value - now[i]) <= 1e-16 * Math.abs(value)))
        this.rests = true;
      else states.push(then);
    }
  }

  at(t) {
    this.extend(t);
    const params = this.states[Math.min(t, this.states.length - 1)],
      loss = this.loss(params);
    return { t, params, loss, excess: Math.max(loss - this.floor, 0) };
  }

  excessAt(t) {
    return this.at(t).excess;
  }
}

const step = (value) => ({
  name: "t",
  symbol: "t",
  meaning: "step",
  value,
  low: 1,
  high: 1e15,
  zero: true,
  log: true,
  whole: true,
  minimum: 0,
  maximum: 1e15,
  steps: 1500,
  moving: true,
  play: true,
});

// numbers from a seed, in (0, 1)
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const normal = (draw) =>
  Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());

const batch = {
  name: "batch",
  symbol: "B",
  meaning: "prompts in a batch of the sampled run; 0: none",
  value: 8,
  low: 1,
  high: 1000,
  zero: true,
  log: true,
  whole: true,
  minimum: 0,
  maximum: 1e4,
  sampled: true,
};

// Losses of a run on samples, averaged over steps on a logarithmic scale, each `growth`
// times as far as the one before. `next` takes a step and returns a loss, for some
// `work`; the run ends with the exact one, or with all that a page has time for.
function sampled(next, end, most = 3e6) {
  const last = next?.work ? Math.min(end, Math.floor(most / next.work)) : 0,
    { growth = 1.1 } = next ?? {},
    times = [],
    losses = [];
  for (let t = 0; t < last;) {
    const from = t,
      to = Math.min(last, Math.ceil(growth * t + 0.1));
    let total = 0;
    for (; t < to; t++) total += next();
    if (!(total < 1e290)) break; // it diverges, where the exact run does not
    times.push(Math.max(0.5, Math.sqrt(from * (to - 1))));
    losses.push(total / (to - from));
  }
  return { times, losses, last };
}

// Steps on a logarithmic scale, to a power of ten well beyond the end of a run, and its
// states there, which are `at` a step.
function course(run, least, size, at = (t) => run.at(t)) {
  const long = 10 ** Math.ceil(Math.log10(Math.max(least, 3 * run.last)));
  const end = Math.min(run.most ?? 1e15, long);
  const steps = spread(1, end, size).map(Math.round);
  const times = [0.5, ...steps.filter((t, i) => t !== steps[i - 1])];
  return { end, times, states: times.map((t) => at(Math.floor(t))) };
}

// A figure along the steps, to be dragged through training: curves of numbers of a
// state, [number, colour, look], by default of its loss, each with a dot at the moment,
// over `marks` and `phases`, [name, first step, last step, colour], on the scale `y`.
// `samples` says what is in a batch of the sampled run, whose losses are drawn as well.
const along = ({
  curves = () => [[(state) => state.loss, "blue"]],
  marks,
  phases,
  y,
  samples = "",
  caption,
  ...figure
}) => ({
  height: 300,
  caption: samples
    ? `${caption}; in pink, as far as the page has time for, with batches of B ${samples}. Drag, or press the arrow keys, to move through training.`
    : caption,
  scales: (model, values) => [
    {
      ...(model.even ? { low: 0 } : { low: 0.5, log: true }),
      high: model.end,
      label: "step t",
    },
    y(model, values),
  ],
  still(axes, model, values) {
    for (const [name, from, to, colour] of phases?.(model) ?? [])
      axes.shade(Math.max(from, axes.x.low), to, colour, name);
    marks?.(axes, model, values);
    for (const [number, colour, look] of curves(values, model))
      axes.curve(model.times, model.states.map(number), colour, look);
    if (samples && model.drawn)
      axes.curve(model.drawn.times, model.drawn.losses, "pink", { width: 1.4 });
  },
  moving(axes, model, now, values) {
    axes.vertical(Math.max(axes.x.low, now.t), "axis", { dash: [] });
    for (const [number, colour, look] of curves(values, model))
      axes.dot(now.t, number(now), colour, look?.dot);
  },
  drag: (axes, x) => ({ t: Math.round(axes.xAt(x)) }),
  keys: "t",
  ...figure,
});

const when = ({ reached, steps }) =>
  reached ? `after ${steps} steps` : "not within 10¹⁵ steps";

// a figure of a number against a setting, to be dragged along it: a curve of [settings,
// numbers], and a dot at the present one
const against = ({
  setting,
  curve,
  number,
  marks,
  read = (x) => Math.round(Number(x.toPrecision(2))),
  ...figure
}) => ({
  height: 300,
  still(axes, model, values) {
    marks?.(axes, model, values);
    axes.curve(...curve(model), "blue");
  },
  moving(axes, model, now, values) {
    if (number(model) < Infinity) axes.dot(values[setting], number(model), "red", 7);
  },
  drag: (axes, x, y, model, now, values) => ({ [setting]: read(axes.xAt(x), values) }),
  keys: setting,
  ...figure,
});

// whether the loss comes within ε of what is best, and when; how far rounding leaves
// the count open
function headline(run, above, best) {
  if (run.steps === 0)
    return `**Nothing to learn**: the loss is within ε = ${short(above)} of ${best} at the start: 0 steps.`;
  if (run.reached)
    return `The loss is within ε = ${short(above)} of ${best} after **${count(run.steps)}** step${run.steps === 1 ? "" : "s"}.`;
  return `After all ${count(run.last)} steps the loss is still ${short(run.excessAt(run.last))} above ${best}.`;
}

// phases that take a step at least
const lasting = (phases) =>
  Object.fromEntries(Object.entries(phases).filter(([, [from, to]]) => to > from));

const doubt = ({ error }) =>
  error >= 1
    ? ` Rounding of the loss leaves the count open by ${plural(Math.ceil(error), "step")} either way.`
    : "";

module.exports = {
  bisected,
  random,
  normal,
  batch,
  sampled,
  Path,
  firstStep,
  step,
  course,
  along,
  when,
  against,
  lasting,
  headline,
  doubt,
};
