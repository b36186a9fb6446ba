// The drawn model of induction heads: one sequence, attention of both layers on it, and
// the prediction of the next symbol.
"use strict";

const { block, disc, drawing, ribbon, stacked } = require("diagram");
const { short, percent } = require("numbers");
const { random } = require("training");
const { sequence } = require("./closed");

// Attention of the second layer on each token and on the sink, token by token, and the
// prediction of a 1 beside the best one.
function picture({ params: [gap, match, sink] }, values) {
  const { symbols, counts } = sequence(values, random(values.sequence)),
    { concentration } = values;
  const lag1 = 1 / (1 + Math.exp(-gap)),
    last = symbols.at(-1),
    top = Math.max(0, match, sink);
  const tokens = symbols.map((symbol, i) => {
    const before = symbols[i - 1];
    // the first token has nothing before it, and looks at itself
    const likeness =
      i === 0
        ? Number(symbol === last)
        : (1 - lag1) * Number(symbol === last) + lag1 * Number(before === last);
    return {
      symbol,
      follows: i > 0 && before === last,
      weight: Math.exp(match * likeness - top),
    };
  });
  const sinkWeight = Math.exp(sink - top),
    total = tokens.reduce((sum, { weight }) => sum + weight, sinkWeight);
  const shown = tokens.map(({ symbol, follows, weight }) => ({
      symbol,
      follows,
      share: weight / total,
    })),
    onSink = sinkWeight / total;
  const ones = shown.reduce(
      (sum, { symbol, share }) => (symbol ? sum + share : sum),
      0,
    ),
    row = counts[last];
  const best = (row[1] + concentration) / (row[0] + row[1] + 2 * concentration);
  return {
    tokens: shown,
    sink: onSink,
    lag1,
    last,
    prediction: ones + 0.5 * onSink,
    best,
  };
}

function paint(axes, shown) {
  const { tokens, sink, lag1, last, prediction, best } = shown,
    { width, height } = axes,
    wide = Math.min(width - 24, 1100),
    begin = (width - wide) / 2;
  // two widths of a cell for the sink, with a gap, and one for the symbol to come
  const cell = wide / (tokens.length + 4.5),
    side = Math.min(cell - (cell > 8 ? 2 : 0.5), 30),
    row = 70,
    bar = height - 62,
    left = (i) => begin + cell * (i + 3) + (cell - side) / 2;
  const COLOUR = ["orange", "blue"],
    pen = axes.context;
  tokens.forEach(({ symbol, follows }, i) => {
    block(axes, [left(i), row, side, 22], COLOUR[symbol], {
      alpha: follows ? 1 : 0.7,
    });
    if (follows)
      block(axes, [left(i) - 0.5, row - 0.5, side + 1, 23], "ink", { edge: true });
    if (side > 9)
      axes.text(String(symbol), left(i) + side / 2, row + 35, "ink", "center");
    if (i === 0) return;
    // the first layer: from a token to the one before, and to itself
    pen.save();
    axes.pen("ink", 3 * lag1);
    pen.beginPath();
    pen.ellipse(
      left(i) + side / 2 - cell / 2,
      row - 3,
      cell / 2,
      20,
      0,
      Math.PI,
      2 * Math.PI,
    );
    if (lag1 > 0) pen.stroke();
    axes.pen("muted", 3 * (1 - lag1));
    pen.beginPath();
    pen.ellipse(left(i) + side / 2, row - 3, side / 5, 9, 0, Math.PI, 2 * Math.PI);
    if (lag1 < 1) pen.stroke();
    pen.restore();
  });
  const place = begin + cell * 0.5,
    broad = cell * 1.6;
  block(axes, [place, row, broad, 22], "muted", { alpha: 0.75 });
  axes.text("sink", place + broad / 2, row + 35, "muted", "center");
  block(axes, [left(tokens.length) + 2, row, side, 22], "ink", { edge: true });
  if (side > 5)
    axes.text("?", left(tokens.length) + 2 + side / 2, row + 11, "ink", "center");
  // ones from the left, the sink in halves, zeros: so that the ones and half of the
  // sink end at the prediction
  const parts = [1, null, 0].flatMap((symbol) =>
    symbol === null
      ? [{ share: sink, colour: "muted", source: [place, place + broad] }]
      : tokens.flatMap((token, i) =>
          token.symbol === symbol
            ? [
                {
                  share: token.share,
                  colour: COLOUR[symbol],
                  source: [left(i), left(i) + side],
                },
              ]
            : [],
        ),
  );
  const ends = stacked(
    parts.map(({ share }) => share),
    begin,
    wide,
  );
  parts.forEach(({ colour, source }, i) => {
    ribbon(axes, [row + 46, source], [bar, ends[i]], colour, {
      down: true,
      alpha: 0.7,
    });
    block(axes, [ends[i][0], bar, ends[i][1] - ends[i][0], 14], colour);
  });
  block(axes, [begin, bar, wide, 14], "ink", { edge: true });
  const at = (probability) => begin + wide * probability;
  block(axes, [at(best) - 1.5, bar - 5, 3, 24], "ink");
  block(
    axes,
    [
      Math.min(at(best), at(prediction)),
      bar + 17,
      Math.abs(at(best) - at(prediction)),
      4,
    ],
    "red",
  );
  disc(axes, at(prediction), bar + 7, "paper", 7);
  disc(axes, at(prediction), bar + 7, "ink", 5);
  const words =
    width < 520
      ? [`1 next: says ${percent(prediction)}, best ${percent(best)}`]
      : [
          `probability of a 1: prediction ${percent(prediction)} (dot), the best ${percent(best)} (bar)`,
        ];
  axes.text(words[0], width / 2, height - 26, "ink", "center");
  axes.text(
    `off by ${short(100 * Math.abs(prediction - best))} points; the last symbol is ${last}`,
    width / 2,
    height - 9,
    "red",
    "center",
  );
  axes.text(
    `arcs, first layer: ${percent(lag1)} on the symbol before`,
    begin,
    12,
    "ink",
  );
  axes.text("ribbons: second layer", begin, 30, "muted");
}

const figure = drawing({
  name: "model",
  title: "The model",
  height: 300,
  caption:
    "One sequence; blue symbols are 1. The arcs are the first layer: the thicker, the more a token attends to the one before it. The ribbons are the second layer: on the bar each is as wide as its attention, exactly, and the ones and half of the sink add up to the predicted probability of a 1. Framed symbols followed a copy of the last one: an induction head attends to these.",
  moving: (axes, model, now, values) => paint(axes, picture(now, values)),
  describe(model, now, values) {
    const { prediction, best, lag1, tokens } = picture(now, values),
      follow = tokens.reduce(
        (sum, { follows, share }) => (follows ? sum + share : sum),
        0,
      );
    return `The first layer attends to the symbol before by ${percent(lag1)}; the second by ${percent(follow)} to symbols that followed a copy of the last one. It predicts a 1 with ${percent(prediction)}; the best prediction is ${percent(best)}.`;
  },
});

module.exports = { picture, figure };
