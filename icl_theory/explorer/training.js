// The common parts of panels that show training: the first step at a target, the step
// as a setting, and figures and sentences about a run.
"use strict";

const { spread } = require("drawing");
const { count, short, plural } = require("numbers");

// A generous bound on the relative rounding error of a loss.
const ROUNDING = 2 ** -50;

// The first step from low + 1 to high at which `holds` is true. It must be true at
// high, and at all steps after the first.
function bisected(low, high, holds) {
  while (high - low > 1) {
    const middle = low + Math.floor((high - low) / 2);
    if (holds(middle)) high = middle;
    else low = middle;
  }
  return high;
}

// Find the first of at most `most` steps at which a falling loss is at its target. The
// result has `steps`, which is null if there is none, the `error` of this number
// because of the rounding of the loss, and the `last` step of the run.
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

// A run of at most `most` steps from the parameters `start`, in which `next` makes the
// next parameters. It ends early if a step does not change them. If the loss `falls` at
// every step, steps are only taken as far as they are needed, because a few are enough
// to find the first step at the target.
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

  // Take the steps up to step t that have not been taken yet.
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

  // The state at step t: its parameters, its loss, and the excess over the floor.
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

// The step as a setting, with the default `value`. It is the setting that Play moves.
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

// A function that returns random numbers in [0, 1), the same for the same seed.
function random(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// A normal random number from two uniform ones of `draw`, by Box and Muller.
const normal = (draw) =>
  Math.sqrt(-2 * Math.log(1 - draw())) * Math.cos(2 * Math.PI * draw());

// The number of prompts in a batch as a setting.
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

// The losses of a run on samples. They are means over intervals of steps, each of which
// ends at about `growth` times the step at which it begins. The function `next` takes a
// step and returns its loss; `next.work` is the work of a step. The run ends with the
// exact run, at step `end`, or after the work `most`, for which a page has time.
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
    // The run on samples may diverge although the exact run does not.
    if (!(total < 1e290)) break;
    times.push(Math.max(0.5, Math.sqrt(from * (to - 1))));
    losses.push(total / (to - from));
  }
  return { times, losses, last };
}

// About `size` steps on a logarithmic scale, and the states of a run at these steps.
// The function `at` returns a state. The last step is a power of ten, at least `least`
// and at least three times the last step of the run, or `run.most` if this is smaller.
function course(run, least, size, at = (t) => run.at(t)) {
  const long = 10 ** Math.ceil(Math.log10(Math.max(least, 3 * run.last)));
  const end = Math.min(run.most ?? 1e15, long);
  const steps = spread(1, end, size).map(Math.round);
  const times = [0.5, ...steps.filter((t, i) => t !== steps[i - 1])];
  return { end, times, states: times.map((t) => at(Math.floor(t))) };
}

// A figure of numbers against the step, in which a reader can drag through training.
// `curves` returns a list of [number, colour, look], where the function `number`
// returns the number of a state. By default there is one curve, of the loss. Each curve
// has a dot at the moment. Behind the curves are `marks`, a function that draws, and
// `phases`, a function that returns a list of [name, first step, last step, colour].
// The function `y` returns the scale of the numbers. With `samples`, words for the
// contents of a batch, the losses of the run on samples are drawn, too.
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

// The number of steps to the target, in words.
const when = ({ reached, steps }) =>
  reached ? `after ${steps} steps` : "not within 10¹⁵ steps";

// A figure of a number against a setting, which a reader can change by dragging. The
// function `curve` returns [values of the setting, numbers], and a dot is at the
// present value. The function `read` returns the value of the setting at a place of the
// pointer.
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

// A sentence that says whether and when the loss comes within ε = `above` of `best`.
function headline(run, above, best) {
  if (run.steps === 0)
    return `**Nothing to learn**: the loss is within ε = ${short(above)} of ${best} at the start: 0 steps.`;
  if (run.reached)
    return `The loss is within ε = ${short(above)} of ${best} after **${count(run.steps)}** step${run.steps === 1 ? "" : "s"}.`;
  return `After all ${count(run.last)} steps the loss is still ${short(run.excessAt(run.last))} above ${best}.`;
}

// The phases that take at least one step.
const lasting = (phases) =>
  Object.fromEntries(Object.entries(phases).filter(([, [from, to]]) => to > from));

// A sentence on the error of the number of steps, if it is a step or more.
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
