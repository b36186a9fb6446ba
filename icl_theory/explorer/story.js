// The story of a panel, which stands above its figures. It consists of scenes, each
// with a sentence, values of the settings, and one change of them to try.
"use strict";

const { element } = require("figures");
const { mark } = require("tour");

class Story {
  // `box` is the element of the story. The function `begin(values, ghost, play)` sets
  // the page to values, shows the run `ghost` behind it, and plays if `play` is true.
  constructor(box, begin) {
    Object.assign(this, { box, begin, scenes: [], at: null });
    this.list = element("ol", {});
    this.text = element("p", { class: "scene", "aria-live": "polite" });
    this.attempt = element("p", { class: "attempt" });
    this.back = element(
      "button",
      { type: "button", onclick: () => this.go(this.at - 1) },
      "Back",
    );
    this.on = element(
      "button",
      { type: "button", class: "primary", onclick: () => this.next() },
      "Next",
    );
    this.parts = element(
      "div",
      { class: "open" },
      element("div", {}, this.text, this.attempt),
      element("div", { class: "row" }, this.back, this.on),
    );
    box.replaceChildren(element("h2", {}, "Story"), this.list, this.parts);
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.at !== null) this.leave();
    });
  }

  // Show the titles of a panel's scenes; none of them is open yet.
  load(scenes = []) {
    this.scenes = scenes;
    this.box.hidden = !scenes.length;
    this.chapters = scenes.map(({ title }, i) =>
      element(
        "button",
        {
          type: "button",
          onclick: () => this.go(i),
          "aria-label": `Scene ${i + 1}: ${title}`,
        },
        element("b", {}, String(i + 1)),
        element("span", {}, ` ${title}`),
      ),
    );
    this.list.replaceChildren(
      ...this.chapters.map((button) => element("li", {}, button)),
    );
    this.close();
  }

  close() {
    this.at = null;
    this.parts.hidden = true;
    this.chapters.forEach((button) => button.removeAttribute("aria-current"));
    mark(null);
  }

  next() {
    if (this.at + 1 < this.scenes.length) return this.go(this.at + 1);
    this.leave();
  }

  // Close the story, and put the focus on its first scene, where it can begin again.
  leave() {
    this.close();
    this.chapters[0].focus();
  }

  go(at) {
    const { text, values, ghost, play, figure, attempt } = this.scenes[at];
    this.begin(values, ghost, play);
    this.at = at;
    this.parts.hidden = false;
    this.text.textContent = text;
    this.attempt.replaceChildren(
      element("b", {}, "Try: "),
      `${attempt.text} `,
      element(
        "button",
        {
          type: "button",
          onclick: () => this.begin({ ...values, ...attempt.values }, ghost),
        },
        "Show me",
      ),
    );
    this.chapters.forEach((button, i) => {
      if (i === at) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    // A button that becomes disabled loses the focus, so move it to the other one.
    if (at === 0 && document.activeElement === this.back) this.on.focus();
    this.back.disabled = at === 0;
    this.on.textContent = at + 1 === this.scenes.length ? "Done" : "Next";
    mark(figure, false);
  }
}

module.exports = { Story };
