// Parts of a drawn model: ribbons of attention whose widths are the shares, stacked
// without gaps at their end.
"use strict";

// intervals of the lengths `shares` of a whole, one after another from `from` on
function stacked(shares, from, whole) {
  let place = from;
  return shares.map((share) => {
    const begin = place;
    place += share * whole;
    return [begin, place];
  });
}

// A band between an interval at one place and an interval at another, along x or, if
// `down`, along y.
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

// a rectangle in points of the canvas
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

// two places, moved apart equally where they are closer than `least`
function apart(one, other, least) {
  const missing = least - Math.abs(one - other),
    sign = one <= other ? -1 : 1;
  return missing > 0
    ? [one + (sign * missing) / 2, other - (sign * missing) / 2]
    : [one, other];
}

const LOWERED = ["₀", "₁", "₂", "₃", "₄", "₅", "₆", "₇", "₈", "₉"];
const lowered = (number) => String(number).replace(/\d/g, (digit) => LOWERED[digit]);

// a figure that paints on its canvas without axes
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
