// Axes and curves on a canvas. Colours come from the style sheet, so that all figures
// follow the light and the dark.
"use strict";

const { raised, short } = require("numbers");

const FONT = "12px system-ui, sans-serif";
const tickText = (value, log) => {
  if (!log) return short(value);
  const power = Math.round(Math.log10(value));
  return power >= -2 && power <= 3 ? short(value) : `10${raised(power)}`;
};

// positions of ticks, at most some of them
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

// the value at a part of a scale
const within = ({ low, high, log }, part) =>
  log ? low * (high / low) ** part : low + (high - low) * part;

// a scale within the range of numbers, from low to something above it
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

// One pair of axes. A scale is { low, high, log, label, tick }, where tick writes a
// value of its own.
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

  static part({ low, high, log }, value) {
    const part = log
      ? Math.log(value / low) / Math.log(high / low)
      : (value - low) / (high - low);
    return Number.isNaN(part) ? 0 : Math.max(-5, Math.min(6, part));
  }

  X(value) {
    return this.left + (this.right - this.left) * Axes.part(this.x, value);
  }

  Y(value) {
    return this.bottom - (this.bottom - this.top) * Axes.part(this.y, value);
  }

  // the value at a place of the canvas
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

  stroke(points) {
    this.context.beginPath();
    points.forEach(([x, y], i) =>
      i ? this.context.lineTo(x, y) : this.context.moveTo(x, y),
    );
    this.context.stroke();
  }

  // drawn inside the axes only
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

  // a dashed law, with its name beside it, above or below, at a part of the axis
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

  // a rectangle between values, as far as it is inside the axes
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

  // the values of a table as depths of a colour, the first row at the bottom; `depth`
  // is 0 or more and at most 1
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

  pen(colour, width = 1, dash = []) {
    Object.assign(this.context, {
      strokeStyle: this.colours[colour],
      lineWidth: width,
      lineJoin: "round",
    });
    this.context.setLineDash(dash);
  }

  // shade from x to x, with a word at the top where there is room
  shade(from, to, colour, word) {
    const a = Math.max(this.X(from), this.left),
      b = Math.min(this.X(to), this.right);
    this.box([from, to], [this.y.low, this.y.high], colour, 0.16);
    // the shade is faint: a line says where it begins
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

  line(points, colour, { dash = [4, 4], width = 1 }) {
    this.pen(colour, width, dash);
    this.stroke(points);
    this.context.setLineDash([]);
  }

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

  text(...words) {
    this.words.push(words);
  }

  // words on pieces of the paper's colour and above all curves, which therefore do not
  // run through them
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

// Another run behind a figure: of what is drawn on it only the unbroken curves, in
// grey.
class Ghost extends Axes {
  curve(xs, ys, colour, { dash = [] } = {}) {
    if (!dash.length) super.curve(xs, ys, "muted", { dash: [7, 5] });
  }
}
for (const name of ["shade", "box", "line", "dot", "text"])
  Ghost.prototype[name] = () => {};
Ghost.prototype.silent = true; // for what figures paint by themselves

// scales that have room for both
const both = (scales, others) =>
  scales.map((scale, i) => ({
    ...scale,
    low: Math.min(scale.low, others[i].low),
    high: Math.max(scale.high, others[i].high),
  }));

// some numbers between low and high, evenly spaced or on a logarithmic scale
const spread = (low, high, size, log = true) =>
  Array.from({ length: size }, (_, i) => within({ low, high, log }, i / (size - 1)));

module.exports = { Axes, Ghost, both, spread };
