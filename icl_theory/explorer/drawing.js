// Axes and curves on a canvas. Colours are names of the style sheet, so that figures
// change with its light and dark themes. A scale is { low, high, log, label, tick }:
// the ends of an axis, whether it is logarithmic, its label, and a function that writes
// the value at a tick. `label` and `tick` may be missing.
"use strict";

const { raised, short } = require("numbers");

const FONT = "12px system-ui, sans-serif";
// The text at a tick; far powers of ten are written as such.
const tickText = (value, log) => {
  if (!log) return short(value);
  const power = Math.round(Math.log10(value));
  return power >= -2 && power <= 3 ? short(value) : `10${raised(power)}`;
};

// The values at the ticks of a scale, about `most` of them at most. On a logarithmic
// scale they are powers of ten, and otherwise multiples of 1, 2 or 5 times a power of
// ten. Rounding errors must not lose the ticks at the ends.
function ticks({ low, high, log }, most) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9),
      last = Math.floor(Math.log10(high) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first + 1) / most));
    return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => first + i)
      .filter((power) => power % every === 0)
      .map((power) => 10 ** power);
  }
  const raw = (high - low) / most,
    unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from(
    { length: Math.floor(high / step + 1e-9) - first + 1 },
    (_, i) => (first + i) * step,
  );
}

// The value at a share `part` of the length of a scale.
const within = ({ low, high, log }, part) =>
  log ? low * (high / low) ** part : low + (high - low) * part;

// A scale whose ends are within the range of numbers, the higher above the lower one.
function sound(scale) {
  const [least, most] = scale.log ? [1e-300, 1e300] : [-1e300, 1e300],
    inside = (value) => Math.max(least, Math.min(most, value));
  const low = inside(scale.low),
    high = inside(scale.high);
  if (high > low) return { ...scale, low, high };
  return scale.log
    ? { ...scale, low: low / 10, high: low * 10 }
    : { ...scale, low: low - 1, high: low + 1 };
}

// A pair of axes with the scales x and y, on a canvas of a width and a height in
// points. Texts are kept in `words` until `write`, which draws them above all curves.
class Axes {
  constructor(context, width, height, colours, x, y) {
    Object.assign(this, {
      context,
      width,
      height,
      colours,
      x: sound(x),
      y: sound(y),
      left: 60,
      right: width - 20,
      top: 12,
      bottom: height - 38,
      words: [],
    });
  }

  // The share of the length of a scale at which a value lies. Values far outside, and
  // infinite ones, lie not too far beyond the ends: browsers draw no huge coordinates.
  static part({ low, high, log }, value) {
    const part = log
      ? Math.log(value / low) / Math.log(high / low)
      : (value - low) / (high - low);
    return Number.isNaN(part) ? 0 : Math.max(-5, Math.min(6, part));
  }

  // The place of a value on the canvas, along x or along y.
  X(value) {
    return this.left + (this.right - this.left) * Axes.part(this.x, value);
  }

  Y(value) {
    return this.bottom - (this.bottom - this.top) * Axes.part(this.y, value);
  }

  // The value at a place of the canvas, along x or along y.
  xAt(place) {
    return within(
      this.x,
      Math.max(0, Math.min(1, (place - this.left) / (this.right - this.left))),
    );
  }

  yAt(place) {
    return within(
      this.y,
      Math.max(0, Math.min(1, (this.bottom - place) / (this.bottom - this.top))),
    );
  }

  // Draw the axes with their grid, ticks and labels.
  frame() {
    const { context: pen, colours, left, right, top, bottom } = this;
    Object.assign(pen, {
      font: FONT,
      lineWidth: 1,
      strokeStyle: colours.grid,
      fillStyle: colours.muted,
      textAlign: "center",
      textBaseline: "top",
    });
    for (const value of ticks(this.x, (right - left) / 56)) {
      const place = Math.round(this.X(value)) + 0.5;
      this.stroke([
        [place, top],
        [place, bottom],
      ]);
      pen.fillText((this.x.tick ?? tickText)(value, this.x.log), place, bottom + 5);
    }
    Object.assign(pen, { textAlign: "right", textBaseline: "middle" });
    for (const value of ticks(this.y, (bottom - top) / 34)) {
      const place = Math.round(this.Y(value)) + 0.5;
      this.stroke([
        [left, place],
        [right, place],
      ]);
      pen.fillText((this.y.tick ?? tickText)(value, this.y.log), left - 7, place);
    }
    Object.assign(pen, {
      strokeStyle: colours.axis,
      textAlign: "center",
      textBaseline: "bottom",
    });
    this.stroke([
      [left + 0.5, top],
      [left + 0.5, bottom + 0.5],
      [right, bottom + 0.5],
    ]);
    pen.fillText(this.x.label, (left + right) / 2, this.height - 1);
    pen.save();
    pen.translate(11, (top + bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textBaseline = "middle";
    pen.fillText(this.y.label, 0, 0);
    pen.restore();
  }

  // Draw the line through places of the canvas.
  stroke(points) {
    this.context.beginPath();
    points.forEach(([x, y], i) =>
      i ? this.context.lineTo(x, y) : this.context.moveTo(x, y),
    );
    this.context.stroke();
  }

  // Draw a curve through values; the part outside the axes is cut off.
  curve(xs, ys, colour, { width = 2.4, dash = [], alpha = 1 } = {}) {
    const { context: pen, left, right, top, bottom } = this;
    pen.save();
    pen.globalAlpha = alpha;
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    this.pen(colour, width, dash);
    this.stroke(xs.map((x, i) => [this.X(x), this.Y(ys[i])]));
    pen.restore();
  }

  // Draw the function f as a dashed curve. Its name `word` stands above or `below` the
  // curve, at the share `part` of the x axis.
  law(f, colour, word, part, { dash = [6, 4], below = false } = {}) {
    const xs = spread(this.x.low, this.x.high, 60, Boolean(this.x.log)),
      ys = xs.map(f),
      x = within(this.x, part),
      place = this.Y(f(x));
    const [shift, align] = ys.at(-1) > ys[0] === below ? [8, "left"] : [-8, "right"];
    this.curve(xs, ys, colour, { width: 1.5, dash });
    if (place > this.top && place < this.bottom)
      this.text(word, this.X(x) + shift, place + (below ? 12 : -10), colour, align);
  }

  // Fill the rectangle from x to right and from y to top, as far as it is inside the
  // axes.
  box([x, right], [y, top], colour, alpha = 1) {
    const pen = this.context,
      [a, b] = [x, right].map((value) =>
        Math.max(this.left, Math.min(this.right, this.X(value))),
      );
    const [c, d] = [y, top].map((value) =>
      Math.max(this.top, Math.min(this.bottom, this.Y(value))),
    );
    pen.globalAlpha = alpha;
    pen.fillStyle = this.colours[colour];
    if (b > a) pen.fillRect(a, Math.min(c, d), b - a, Math.abs(c - d));
    pen.globalAlpha = 1;
  }

  // Draw a table of values as cells of a colour, with the first row at the bottom. The
  // function `depth` returns the opacity of a value's cell, from 0 to 1.
  cells(rows, colour, depth) {
    const at = ({ low, high }, i, size) => [
      low + ((high - low) * i) / size,
      low + ((high - low) * (i + 1)) / size,
    ];
    rows.forEach((row, j) =>
      row.forEach((value, i) =>
        this.box(
          at(this.x, i, row.length),
          at(this.y, j, rows.length),
          colour,
          depth(value),
        ),
      ),
    );
  }

  // Set the colour, the width and the dashes of lines.
  pen(colour, width = 1, dash = []) {
    Object.assign(this.context, {
      strokeStyle: this.colours[colour],
      lineWidth: width,
      lineJoin: "round",
    });
    this.context.setLineDash(dash);
  }

  // Shade the axes from one value of x to another. The word is written at the top if it
  // fits into the shade.
  shade(from, to, colour, word) {
    const a = Math.max(this.X(from), this.left),
      b = Math.min(this.X(to), this.right);
    this.box([from, to], [this.y.low, this.y.high], colour, 0.16);
    // The shade is faint, so a line marks its beginning.
    if (b > a && a > this.left + 1)
      this.line(
        [
          [a, this.top],
          [a, this.bottom],
        ],
        colour,
        { dash: [] },
      );
    if (word && b - a > this.context.measureText(word).width + 6)
      this.text(word, (a + b) / 2, this.top + 9, "muted", "center");
  }

  // Draw a line through places of the canvas, by default dashed.
  line(points, colour, { dash = [4, 4], width = 1 }) {
    this.pen(colour, width, dash);
    this.stroke(points);
    this.context.setLineDash([]);
  }

  // Draw a vertical line at a value of x, if it is within the axes. The word stands
  // beside it, in the line of text number `row` from the top.
  vertical(x, colour, { word = "", row = 0, ...look } = {}) {
    const place = this.X(x),
      right = place > this.right - 60;
    if (place < this.left - 1 || place > this.right + 1) return;
    this.line(
      [
        [place, this.top],
        [place, this.bottom],
      ],
      colour,
      look,
    );
    if (word)
      this.text(
        word,
        place + (right ? -5 : 5),
        this.top + 9 + 15 * row,
        colour,
        right ? "right" : "left",
      );
  }

  // Draw a horizontal line at a value of y, if it is within the axes, with a word at
  // its right end.
  horizontal(y, colour, { word = "", ...look } = {}) {
    const place = this.Y(y);
    if (place < this.top - 1 || place > this.bottom + 1) return;
    this.line(
      [
        [this.left, place],
        [this.right, place],
      ],
      colour,
      look,
    );
    if (word) this.text(word, this.right - 4, place - 8, colour, "right");
  }

  // Draw a dot at values of x and y; if it would be outside the axes, at their edge.
  dot(x, y, colour, size = 5) {
    const pen = this.context,
      top = Math.max(this.top, Math.min(this.bottom, this.Y(y)));
    pen.beginPath();
    pen.arc(
      Math.max(this.left, Math.min(this.right, this.X(x))),
      top,
      size,
      0,
      2 * Math.PI,
    );
    Object.assign(pen, {
      fillStyle: this.colours[colour],
      strokeStyle: this.colours.paper,
      lineWidth: 2,
    });
    pen.fill();
    pen.stroke();
  }

  // Keep a text for `write`: the words, the place x and y, the colour, the alignment.
  text(...words) {
    this.words.push(words);
  }

  // Draw the texts above all curves. Each is on a rectangle of the colour of the paper,
  // so that no curve runs through it.
  write() {
    const pen = this.context;
    Object.assign(pen, { font: FONT, textAlign: "left", textBaseline: "middle" });
    for (const [words, x, y, colour = "ink", align = "left"] of this.words) {
      const wide = pen.measureText(words).width,
        wanted = x - { left: 0, center: wide / 2, right: wide }[align];
      const start = Math.max(2, Math.min(this.width - wide - 2, wanted));
      pen.globalAlpha = 0.95;
      pen.fillStyle = this.colours.paper;
      pen.fillRect(start - 2, y - 8, wide + 4, 16);
      pen.globalAlpha = 1;
      pen.fillStyle = this.colours[colour];
      pen.fillText(words, start, y);
    }
  }
}

// Axes on which another run is drawn behind that of a figure. They show only its
// unbroken curves, as grey dashes, and nothing else.
class Ghost extends Axes {
  curve(xs, ys, colour, { dash = [] } = {}) {
    if (!dash.length) super.curve(xs, ys, "muted", { dash: [7, 5] });
  }
}
for (const name of ["shade", "box", "line", "dot", "text"])
  Ghost.prototype[name] = () => {};
// Figures that paint without these methods look at this flag, and then paint nothing.
Ghost.prototype.silent = true;

// Scales that cover two pairs of scales. Their other fields are those of the first
// pair.
const both = (scales, others) =>
  scales.map((scale, i) => ({
    ...scale,
    low: Math.min(scale.low, others[i].low),
    high: Math.max(scale.high, others[i].high),
  }));

// `size` numbers from low to high, evenly spaced, by default on a logarithmic scale.
const spread = (low, high, size, log = true) =>
  Array.from({ length: size }, (_, i) => within({ low, high, log }, i / (size - 1)));

module.exports = { Axes, Ghost, both, spread };
