// A figure of the page: a canvas with a description. What moves with time is drawn over
// a picture of what does not.
"use strict";

const { Axes, Ghost, both } = require("drawing");
const { spoken } = require("numbers");

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

// the colours of the style sheet as it stands
function palette() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
  );
}

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
  // `figure` as panels declare them; `page` takes new values while somebody drags
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

  // Keys do what the pointer does: `keys` names the setting that they move, or is a
  // function of the key, the moment and the values.
  hear(page) {
    const { keys } = this.figure;
    this.canvas.tabIndex = 0;
    this.canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      // of the page, not of the last frame: two keys may come within a frame
      const found =
        typeof keys === "string"
          ? page.neighbour(keys, event.key)
          : keys(event.key, page.moment, page.values);
      if (!found) return;
      event.preventDefault(); // the page would scroll
      page.set(found);
    });
  }

  // `fresh`: the figure itself has changed, not only the moment; `ghost`: the model and
  // the values of a run to compare with
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

  describe(model, moment, values) {
    this.canvas.setAttribute(
      "aria-label",
      spoken(`${this.figure.title}. ${this.figure.describe(model, moment, values)}`),
    );
  }
}

module.exports = { Card, element, palette };
