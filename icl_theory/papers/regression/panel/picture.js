// The drawn model of regression: the prompt's features and values, attention of the
// query on each, and the prediction.
"use strict";

const { apart, block, disc, drawing, lowered, ribbon, stacked } = require("diagram");
const { count, short, percent } = require("numbers");

const ROWS = 8; // features with a row of their own

// The features shown, the sum of all others, and the prediction as the sum of attention
// times value. The values of the function are repeated in turn over the K features.
function picture({ truth, attention, deficit }, { K, query }) {
  const target = Math.min(query, truth.length) - 1,
    onOther = deficit / (K - 1);
  const indices = Array.from({ length: Math.min(ROWS, truth.length) }, (_, i) => i);
  if (target >= ROWS) indices[ROWS - 1] = target;
  const rows = indices.map((i) => ({
    feature: i + 1,
    label: `x${lowered(i + 1)}`,
    value: truth[i],
    share: i === target ? attention : onOther,
    isTarget: i === target,
  }));
  const rest = K - rows.length;
  if (rest > 0) {
    const rounds = Math.floor(K / truth.length),
      left = K % truth.length;
    const total = truth.reduce(
      (sum, value, i) => sum + value * (rounds + (i < left ? 1 : 0)),
      0,
    );
    const mean = (total - rows.reduce((sum, { value }) => sum + value, 0)) / rest;
    rows.push({
      feature: null,
      label: `${count(rest)} more`,
      value: mean,
      share: rest * onOther,
      isTarget: false,
    });
  }
  const prediction = rows.reduce((sum, { share, value }) => sum + share * value, 0);
  return {
    rows,
    prediction,
    truth: truth[target],
    error: prediction - truth[target],
    query: target + 1,
  };
}

// places of the parts on a canvas
function places(width, height, rows) {
  const top = 30,
    tall = (height - top - 34) / rows.length,
    narrow = width < 520,
    begin = Math.max(0, (width - 1100) / 2),
    end = width - begin;
  const bar = begin + (narrow ? 54 : 84),
    wide = narrow ? 40 : 110;
  const from = bar + wide + (narrow ? 52 : 66),
    scale = end - (narrow ? 88 : 170);
  return {
    top,
    tall,
    begin,
    bar,
    wide,
    from,
    node: scale - (narrow ? 22 : 60),
    scale,
    middle: top + (tall * rows.length) / 2,
    whole: 1.7 * Math.min(tall, 28),
    center: (i) => top + tall * (i + 0.5),
  };
}

function paint(axes, { shown, size, loss }) {
  const { rows } = shown,
    { width, height } = axes,
    at = places(width, height, rows);
  axes.text("prompt", at.begin + 4, 12, "muted");
  axes.text("attention", (at.from + at.node) / 2, 12, "muted", "center");
  axes.text(`query x${lowered(shown.query)}`, at.scale, 12, "muted", "center");
  const ends = stacked(
    rows.map(({ share }) => share),
    at.middle - at.whole / 2,
    at.whole,
  );
  const half = at.wide / 2 / (0.5 * size),
    zero = at.bar + at.wide / 2;
  rows.forEach(({ label, value, share, isTarget }, i) => {
    const y = at.center(i),
      colour = isTarget ? "blue" : "orange",
      thick = (share * at.whole) / 2;
    ribbon(axes, [at.from, [y - thick, y + thick]], [at.node, ends[i]], colour);
    block(axes, [at.node, ends[i][0], 8, ends[i][1] - ends[i][0]], colour);
    if (isTarget)
      block(
        axes,
        [at.begin + 1, y - at.tall / 2 + 1, at.from - at.begin - 8, at.tall - 2],
        "blue",
        { edge: true },
      );
    axes.text(label, at.begin + 8, y, isTarget ? "blue" : "ink");
    block(
      axes,
      [
        Math.min(zero, zero + value * half),
        y - at.tall * 0.3,
        Math.abs(value) * half,
        at.tall * 0.6,
      ],
      "muted",
      { alpha: 0.75 },
    );
    axes.text(short(value, 2), at.from - 14, y, "ink", "right");
  });
  block(axes, [at.node, at.middle - at.whole / 2, 8, at.whole], "ink", { edge: true });
  const low = at.top + 8,
    long = height - 34 - low - 8,
    Y = (value) => low + long * (0.5 - value / (1.1 * size));
  const [said, real] = [shown.prediction, shown.truth].map(Y);
  axes.line(
    [
      [at.scale, low],
      [at.scale, low + long],
    ],
    "axis",
    { dash: [] },
  );
  axes.line(
    [
      [at.node + 8, at.middle],
      [at.scale, said],
    ],
    "blue",
    { dash: [3, 3], width: 1.5 },
  );
  block(axes, [at.scale - 3, Math.min(said, real), 6, Math.abs(said - real)], "red");
  axes.line(
    [
      [at.scale - 12, real],
      [at.scale + 12, real],
    ],
    "ink",
    { dash: [], width: 3 },
  );
  disc(axes, at.scale, said, "blue");
  const [saidText, realText] = apart(said, real, 30),
    word = width < 520 ? ["says", "is"] : ["prediction", "truth"];
  axes.text(
    `${word[0]} ${short(shown.prediction, 2)}`,
    at.scale + 16,
    Math.max(low, saidText),
    "blue",
  );
  axes.text(`${word[1]} ${short(shown.truth, 2)}`, at.scale + 16, realText, "ink");
  axes.text(
    `off by ${short(Math.abs(shown.error), 2)}`,
    at.scale + 16,
    (Math.max(low, saidText) + realText) / 2,
    "red",
  );
  const target = rows.find(({ isTarget }) => isTarget);
  axes.text(
    `${percent(target.share)} of the attention is on x${lowered(shown.query)}; loss ${short(loss)}`,
    width / 2,
    height - 10,
    "ink",
    "center",
  );
}

const figure = drawing({
  name: "model",
  title: "The model",
  height: 300,
  caption:
    "Each row is a feature of the prompt with its value under f. A ribbon is as wide as the query's attention on that feature, exactly, and the framed bar is all of the attention. The prediction is the average of the values with these weights; the loss is half its squared error, averaged over functions and queries. Click a row to ask for its value, or press the arrow keys.",
  moving: (axes, model, now, values) =>
    paint(axes, { shown: picture(now, values), size: now.size, loss: now.loss }),
  drag(axes, x, y, model, now, values) {
    const { rows } = picture(now, values),
      at = places(axes.width, axes.height, rows),
      row = rows[Math.floor((y - at.top) / at.tall)];
    return row?.feature ? { query: row.feature } : null;
  },
  keys(key, { truth }, { query }) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key];
    return step ? { query: Math.max(1, Math.min(truth.length, query + step)) } : null;
  },
  describe(model, now, values) {
    const shown = picture(now, values),
      target = shown.rows.find(({ isTarget }) => isTarget);
    return `Asked for feature ${shown.query}, whose value is ${short(shown.truth)}, the model attends to it by ${percent(target.share)} and predicts ${short(shown.prediction)}, off by ${short(Math.abs(shown.error))}.`;
  },
});

module.exports = { picture, figure };
