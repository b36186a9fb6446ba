// A figure of the page: a canvas with a description. The parts of the figure that do
// not change with the step are drawn once, on a hidden canvas. Each frame copies this
// picture, and draws the parts that move over it.
"use strict";

const { Axes, Ghost, both } = require("drawing");
const { spoken } = require("numbers");

// The names of the colours in the style sheet.
const NAMES = [
  "paper",
  "ink",
  "muted",
  "grid",
  "axis",
  "blue",
  "orange",
  "green",
  "red",
  "pink",
];

// The present colours of the style sheet, by name.
function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
  );
}

// A new element of HTML with attributes and children. An attribute that begins with
// "on" has a function that listens to this event. The value true makes an empty
// attribute, and false or null makes none.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false)
      made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

class Card {
  // `figure` is a figure as panels declare it. `page` gets new values of the settings
  // while a reader drags in the figure or presses keys.
  constructor(figure, page) {
    this.figure = figure;
    this.canvas = element("canvas", { role: "img", "aria-label": figure.title });
    this.behind = document.createElement("canvas");
    this.caption = element(
      "figcaption",
      {},
      element("h3", {}, figure.title),
      " ",
      figure.caption ?? "",
    );
    const place = element(
      "div",
      { class: "canvas", style: `height:${figure.height ?? 240}px` },
      this.canvas,
    );
    this.node = element(
      "figure",
      { id: `figure-${figure.name}`, class: figure.wide ? "wide" : "" },
      place,
      this.caption,
    );
    if (figure.drag) this.listen(page);
    if (figure.keys) this.hear(page);
  }

  // Let the pointer change settings: `figure.drag` returns their values for a place.
  listen(page) {
    const move = (event) => {
      if (!this.axes || (event.type === "pointermove" && !this.held)) return;
      const box = this.canvas.getBoundingClientRect();
      const found = this.figure.drag(
        this.axes,
        event.clientX - box.left,
        event.clientY - box.top,
        ...this.last,
      );
      if (found) page.set(found);
    };
    this.canvas.classList.add("draggable");
    this.canvas.addEventListener("pointerdown", (event) => {
      this.held = true;
      this.canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    this.canvas.addEventListener("pointermove", move);
    for (const end of ["pointerup", "pointercancel"])
      this.canvas.addEventListener(end, () => {
        this.held = false;
      });
  }

  // Let keys change settings as the pointer does. `figure.keys` is the name of a
  // setting, or a function of the key, the moment and the values that returns new
  // values.
  hear(page) {
    const { keys } = this.figure;
    this.canvas.tabIndex = 0;
    this.canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      // Use the values of the page and not those of the last frame, because two keys
      // may be pressed within a frame.
      const found =
        typeof keys === "string"
          ? page.neighbour(keys, event.key)
          : keys(event.key, page.moment, page.values);
      if (!found) return;
      event.preventDefault(); // the page would scroll
      page.set(found);
    });
  }

  // Draw the figure. With `fresh`, the hidden picture is drawn again, because more than
  // the moment has changed. `ghost` has the model and the values of a run to compare
  // with, if there is one.
  draw(model, moment, values, colours, fresh, ghost) {
    const { canvas, behind, figure } = this,
      ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas.parentElement;
    if (!width) return;
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    this.last = [model, moment, values];
    if (fresh || canvas.width !== size[0] || canvas.height !== size[1]) {
      for (const one of [canvas, behind]) [one.width, one.height] = size;
      const pen = behind.getContext("2d");
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      const own = figure.scales(model, values),
        scales = ghost ? both(own, figure.scales(ghost.model, ghost.values)) : own;
      this.axes = new Axes(pen, width, height, colours, ...scales);
      if (!figure.bare) this.axes.frame();
      if (ghost)
        figure.still?.(
          new Ghost(pen, width, height, colours, ...scales),
          ghost.model,
          ghost.values,
        );
      figure.still?.(this.axes, model, values);
      this.axes.write();
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, ...size);
    pen.drawImage(behind, 0, 0);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const axes = Object.assign(
      Object.create(Object.getPrototypeOf(this.axes)),
      this.axes,
      { context: pen, colours, words: [] },
    );
    figure.moving?.(axes, model, moment, values);
    axes.write();
  }

  // Update the description for screen readers.
  describe(model, moment, values) {
    this.canvas.setAttribute(
      "aria-label",
      spoken(`${this.figure.title}. ${this.figure.describe(model, moment, values)}`),
    );
  }
}

module.exports = { Card, element, palette };
