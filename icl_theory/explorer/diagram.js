// Parts of a drawn model. A ribbon shows the attention on a token: its width is the
// share of the attention. Ribbons are stacked without gaps at their ends.
"use strict";

// Intervals [begin, end], one after another from `from` on. Their lengths are the
// `shares` of the length `whole`.
function stacked(shares, from, whole) {
  let place = from;
  return shares.map((share) => {
    const begin = place;
    place += share * whole;
    return [begin, place];
  });
}

// Paint a band from the interval [a, b] at the place `here` to the interval [c, d] at
// the place `there`. The places are on the axis x, or on the axis y if `down` is true.
function ribbon(
  axes,
  [here, [a, b]],
  [there, [c, d]],
  colour,
  { alpha = 0.75, down = false } = {},
) {
  const pen = axes.context,
    middle = (here + there) / 2,
    at = (along, across) => (down ? [across, along] : [along, across]);
  pen.save();
  pen.globalAlpha = alpha;
  pen.fillStyle = axes.colours[colour];
  pen.beginPath();
  pen.moveTo(...at(here, a));
  pen.bezierCurveTo(...at(middle, a), ...at(middle, c), ...at(there, c));
  pen.lineTo(...at(there, d));
  pen.bezierCurveTo(...at(middle, d), ...at(middle, b), ...at(here, b));
  pen.fill();
  pen.restore();
}

// Paint a rectangle, or only its edge; its place and size are in points of the canvas.
function block(axes, [x, y, width, height], colour, { alpha = 1, edge = false } = {}) {
  const pen = axes.context;
  pen.save();
  pen.globalAlpha = alpha;
  Object.assign(pen, {
    fillStyle: axes.colours[colour],
    strokeStyle: axes.colours[colour],
    lineWidth: 1.5,
  });
  if (edge) pen.strokeRect(x, y, width, height);
  else pen.fillRect(x, y, width, height);
  pen.restore();
}

// Paint a disc with a rim of the colour of the paper.
function disc(axes, x, y, colour, size = 6) {
  const pen = axes.context;
  pen.beginPath();
  pen.arc(x, y, size, 0, 2 * Math.PI);
  Object.assign(pen, {
    fillStyle: axes.colours[colour],
    strokeStyle: axes.colours.paper,
    lineWidth: 2,
  });
  pen.fill();
  pen.stroke();
}

// Two places. If they are closer than `least`, both are moved by the same distance, so
// that they are `least` apart.
function apart(one, other, least) {
  const missing = least - Math.abs(one - other),
    sign = one <= other ? -1 : 1;
  return missing > 0
    ? [one + (sign * missing) / 2, other - (sign * missing) / 2]
    : [one, other];
}

const LOWERED = ["₀", "₁", "₂", "₃", "₄", "₅", "₆", "₇", "₈", "₉"];
// A number in subscripts.
const lowered = (number) => String(number).replace(/\d/g, (digit) => LOWERED[digit]);

// A figure without axes, which paints its whole canvas itself.
const drawing = (figure) => ({
  bare: true,
  wide: true,
  scales: () => [
    { low: 0, high: 1 },
    { low: 0, high: 1 },
  ],
  ...figure,
});

module.exports = { stacked, ribbon, block, disc, apart, lowered, drawing };
