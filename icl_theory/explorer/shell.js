// The page: its tabs, sliders, words, figures, copies and address. It knows of a panel
// only what the panel exports. `panel.compute` makes a model from the values of the
// settings, and `panel.moment` the state of the model at the step that is shown. A
// ghost is a run that stays behind the figures, to compare others with.
"use strict";

const { Card, element, palette } = require("figures");
const {
  complete,
  typed,
  written,
  defaults,
  fromFragment,
  toFragment,
  copies,
} = require("settings");
const { spoken } = require("numbers");
const { Story } = require("story");
const { tour } = require("tour");
const { random, sampled } = require("training");

// The seconds in which Play goes through a run.
const SECONDS = 9;
// A page inside a cell of a notebook has no address that it could change or hand out.
const EMBEDDED = globalThis.location?.protocol === "about:";

// The index of the value in `stops`, which increase, that is nearest to a value.
function nearestStop(stops, value) {
  let nearest = stops.findIndex((stop) => stop >= value);
  if (nearest < 0) nearest = stops.length - 1;
  if (nearest > 0 && value - stops[nearest - 1] < stops[nearest] - value) nearest -= 1;
  return nearest;
}

// A text as a list of texts and of elements for its **bold** parts.
const marked = (text) =>
  text.split("**").map((part, i) => (i % 2 ? element("b", {}, part) : part));

class Shell {
  // `names` are the panels, `papers` the entries of papers, and `place` the settings at
  // which the page opens if its address has none. `kept` has the values of panels that
  // are not shown, and `broken` a sentence on each panel that cannot be loaded.
  constructor(names, papers, place = "") {
    Object.assign(this, {
      papers,
      panels: {},
      broken: [],
      kept: {},
      ghosts: {},
      colours: palette(),
    });
    for (const name of names)
      try {
        const panel = require(`${name}/panel`),
          family = require(`${name}/family`);
        this.panels[name] = {
          ...panel,
          family,
          settings: panel.settings.map((one) => complete(one, family.parameters)),
        };
      } catch (error) {
        this.broken.push(`The panel of the family ${name} is left out: ${error}`);
      }
    this.story = new Story(document.getElementById("story"), (scene, ghost, play) => {
      this.begin(scene, ghost);
      if (play) this.play();
    });
    this.tabs();
    this.buttons();
    addEventListener("hashchange", () => this.open(location.hash));
    addEventListener("resize", () => this.redraw(true));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      this.repaint(),
    );
    addEventListener("beforeprint", () => this.repaint("light", true));
    addEventListener("afterprint", () => this.repaint());
    this.open(location.hash || place);
  }

  // Make a tab for each panel that is not under the tab of another one.
  tabs() {
    const bar = document.getElementById("tabs"),
      names = Object.keys(this.panels).filter((name) => !this.panels[name].under);
    names.forEach((name, i) =>
      bar.append(
        element(
          "button",
          {
            type: "button",
            role: "tab",
            id: `tab-${name}`,
            "aria-controls": "panel",
            onclick: () =>
              this.show(
                name,
                this.kept[name] ?? defaults(this.panels[name].settings),
                [],
                name in this.kept,
              ),
            onkeydown: (event) => {
              const last = names.length - 1;
              const to = {
                ArrowRight: i === last ? 0 : i + 1,
                ArrowLeft: i === 0 ? last : i - 1,
                Home: 0,
                End: last,
              }[event.key];
              if (to === undefined) return;
              event.preventDefault();
              document.getElementById(`tab-${names[to]}`).focus();
            },
          },
          this.panels[name].tab,
        ),
      ),
    );
  }

  // Give the buttons of the page their actions.
  buttons() {
    const on = (id, action) =>
      document.getElementById(id).addEventListener("click", action);
    on("start-tour", () => this.guide());
    on("theme", () => {
      const system = matchMedia("(prefers-color-scheme: dark)").matches
        ? "dark"
        : "light";
      this.theme = (this.theme ?? system) === "dark" ? "light" : "dark";
      this.repaint();
    });
    on("reset", () => this.restart({}));
    on("play", () => this.play());
    on("keep", () => this.keep(this.ghosts[this.name] ? null : this.values));
    on("copy", (event) => this.copy(event.target));
  }

  // The names of the panels that share a tab with a panel, itself among them.
  together(name) {
    const first = (one) => this.panels[one].under ?? one;
    return Object.keys(this.panels).filter((other) => first(other) === first(name));
  }

  // Draw everything in a theme, by default that of the reader or of the system. With
  // `now` it is drawn at once, which printing needs, and not in the next frame.
  repaint(theme = this.theme, now = false) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    this.colours = palette();
    if (now) this.render(true);
    else this.redraw(true);
  }

  // Show the panel and the settings that the part of an address after "#" names.
  open(fragment) {
    if (fragment && fragment === this.fragment) return;
    const { name, values, ghost, problems, still } = fromFragment(
      fragment,
      this.panels,
    );
    this.show(name, values, [...this.broken, ...problems], still);
    this.keep(ghost);
  }

  // Show sentences on what could not be used; without any, hide the box.
  complain(problems) {
    const box = document.getElementById("problems");
    box.replaceChildren(...problems.map((problem) => element("p", {}, problem)));
    box.hidden = !problems.length;
  }

  // Remove the mark of a wrong value while a reader types. Stop playing, because it
  // would write over the text.
  unmark(field) {
    this.stop();
    field.removeAttribute("aria-invalid");
    this.complain([]);
  }

  // Show a panel with values. It begins to play unless `still` is true.
  show(name, values, problems, still) {
    if (this.name) this.kept[this.name] = this.values;
    if (name !== this.name) this.build(name);
    this.set(values, problems);
    if (
      !still &&
      this.panel.settings.some(({ play }) => play) &&
      !matchMedia("(prefers-reduced-motion: reduce)").matches
    )
      this.play();
  }

  // Close the story, and begin with values and a ghost.
  restart(values, ghost) {
    this.story.close();
    this.begin(values, ghost);
  }

  // Set values, and the defaults of all other settings. `ghost` has the values in which
  // a run to compare with differs, if there is one.
  begin(values, ghost) {
    this.set({ ...defaults(this.panel.settings), ...values });
    this.keep(ghost ? { ...this.values, ...ghost } : null);
  }

  // Keep the run with these values as the ghost of the panel; null removes the ghost.
  keep(given) {
    const values = given && { ...given, ...this.panel.sound?.(given).changes };
    // Without losses on samples, which would hide the other curves.
    this.ghosts[this.name] = values && {
      values,
      model: { ...this.panel.compute(values), drawn: null },
    };
    this.redraw(true);
    this.soon();
  }

  // Build the page of a panel: its tab, texts, sliders, presets, papers and figures.
  build(name) {
    this.name = name;
    this.panel = this.panels[name];
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const here = tab.id === `tab-${this.panel.under ?? name}`;
      tab.setAttribute("aria-selected", here);
      tab.tabIndex = here ? 0 : -1;
      // On a phone the row of tabs is wider than the page, so scroll to the tab.
      if (here)
        tab.parentElement.scrollLeft =
          tab.offsetLeft - tab.parentElement.offsetLeft - 16;
    }
    document
      .getElementById("panel")
      .setAttribute("aria-labelledby", `tab-${this.panel.under ?? name}`);
    document.getElementById("start-tour").textContent = this.panel.story
      ? "Story"
      : "Tour";
    document.getElementById("clock").hidden = !this.panel.settings.some(
      (setting) => setting.play,
    );
    document.getElementById("lead").textContent = this.panel.lead;
    const places = {
      sliders: document.getElementById("controls"),
      timeline: document.getElementById("timeline"),
    };
    for (const place of Object.values(places)) place.replaceChildren();
    const together = this.together(name);
    if (together.length > 1) {
      const choice = element(
        "select",
        {
          id: "model",
          onchange: () => {
            location.hash = choice.value;
          },
        },
        ...together.map((other) =>
          element(
            "option",
            { value: other, selected: other === name },
            this.panels[other].title,
          ),
        ),
      );
      places.sliders.append(
        element(
          "div",
          { class: "control model" },
          element("label", { for: "model" }, element("b", {}, "Model")),
          choice,
        ),
      );
    }
    this.controls = this.panel.settings.map((setting) => {
      const control = this.control(setting);
      places[setting.play ? "timeline" : "sliders"].append(control.node);
      return control;
    });
    this.choose();
    this.story.load(this.panel.story);
    document
      .getElementById("presets")
      .replaceChildren(
        ...this.panel.presets.map(({ name: word, sentence, values, ghost }) =>
          element(
            "li",
            {},
            element(
              "button",
              { type: "button", onclick: () => this.restart(values, ghost) },
              word,
            ),
            element("span", {}, sentence),
          ),
        ),
      );
    const shown = this.papers.filter(({ place }) =>
        together.includes(place.split("?")[0]),
      ),
      list = document.getElementById("papers");
    list.previousElementSibling.hidden = !shown.length;
    list.replaceChildren(
      ...shown.map(({ short: word, title, place, text }) =>
        element(
          "li",
          {},
          element(
            "button",
            {
              type: "button",
              onclick: () => {
                location.hash = place;
              },
            },
            word,
          ),
          element("span", {}, element("cite", {}, title), `. ${text}`),
        ),
      ),
    );
    this.cards = this.panel.figures.map((figure) => new Card(figure, this));
    document
      .getElementById("figures")
      .replaceChildren(...this.cards.map((card) => card.node));
  }

  // Make a row of symbols that choose a setting. On a phone only the chosen one is
  // shown, which leaves space for the figures that it changes.
  choose() {
    const settings = this.panel.settings
      .map((setting, i) => ({ ...setting, node: this.controls[i].node }))
      .filter(({ play }) => !play);
    const buttons = settings.map(({ symbol, meaning, node }) =>
      element(
        "button",
        {
          type: "button",
          "aria-label": meaning ? `${meaning}, ${symbol}` : symbol,
          onclick: () => show(node),
          // Browsers do not scroll to a button if half of it is visible.
          onfocus: ({ target }) =>
            target.scrollIntoView({ block: "nearest", inline: "nearest" }),
        },
        symbol,
      ),
    );
    const show = (shown) =>
      settings.forEach(({ node }, i) => {
        node.classList.toggle("chosen", node === shown);
        buttons[i].setAttribute("aria-pressed", node === shown);
      });
    document.getElementById("chooser").replaceChildren(...buttons);
    show(settings[0]?.node);
  }

  // Make the control of a setting: the element `node`, and a function `update` that
  // shows a value in it.
  control(setting) {
    const id = `set-${setting.name}`,
      { name } = setting;
    const label = element(
      "label",
      { for: id },
      element("b", {}, setting.symbol),
      ` ${setting.meaning}`,
      setting.unit ? element("small", {}, ` (${setting.unit})`) : "",
    );
    // Set a value from a text. A wrong text is marked in its field, and changes
    // nothing.
    const take = (text, input) => {
      const { value, problem } = typed(setting, text, this.values[name]);
      if (!problem) return this.set({ [name]: value });
      this.stop();
      input.setAttribute("aria-invalid", "true");
      this.complain([problem]);
    };
    if (setting.words) {
      const choice = element(
        "select",
        { id, onchange: () => take(choice.value, choice) },
        ...Object.entries(setting.words).map(([value, words]) =>
          element("option", { value }, words),
        ),
      );
      return {
        node: element("div", { class: "control choice" }, label, choice),
        update: (value) => {
          choice.value = value;
        },
      };
    }
    const field = element("input", {
      id,
      type: "text",
      inputmode: setting.text ? "text" : "decimal",
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": "problems",
      oninput: () => this.unmark(field),
      onchange: () => take(field.value, field),
    });
    const write = (value) => {
      field.value = written(setting, value);
      field.removeAttribute("aria-invalid");
    };
    if (setting.text) {
      const again = element(
        "button",
        { type: "button", onclick: () => this.set({ [name]: setting.random() }) },
        "Random",
      );
      return {
        node: element("div", { class: "control text" }, label, field, again),
        update: write,
      };
    }
    const { stops } = setting;
    const slider = element("input", {
      type: "range",
      min: 0,
      max: stops.length - 1,
      step: 1,
      "aria-label": `${setting.meaning}, ${setting.symbol}`,
      oninput: () => this.set({ [name]: stops[slider.value] }),
    });
    const update = (value) => {
      write(value);
      slider.value = nearestStop(stops, value);
      // The number of the slider is that of a stop, so let screen readers say the
      // value.
      const words = [spoken(field.value), setting.unit].filter(Boolean);
      slider.setAttribute("aria-valuetext", words.join(" "));
    };
    return { node: element("div", { class: "control" }, label, field, slider), update };
  }

  // The value of a setting after a key is pressed: at the next stop of its slider for
  // an arrow, and a tenth of the slider away for Page Up or Down. It is null for other
  // keys.
  neighbour(name, key) {
    const { stops } = this.panel.settings.find((setting) => setting.name === name),
      last = stops.length - 1,
      far = Math.ceil(last / 10);
    const step = {
      ArrowRight: 1,
      ArrowUp: 1,
      ArrowLeft: -1,
      ArrowDown: -1,
      PageUp: far,
      PageDown: -far,
    }[key];
    if (!step) return null;
    const to = nearestStop(stops, this.values[name]) + step;
    return { [name]: stops[Math.max(0, Math.min(last, to))] };
  }

  // Set some settings to new values. `problems` are sentences on values that could not
  // be used, to which the panel may add one. `playing` is true if Play calls this.
  set(given, problems = [], playing = false) {
    if (!playing) this.stop();
    const before =
      this.computed === this.name ? this.values : defaults(this.panel.settings);
    const { changes, problem } = this.panel.sound?.({ ...before, ...given }) ?? {};
    const values = { ...given, ...changes };
    if (!playing) this.complain(problem ? [...problems, problem] : problems);
    // Whether a setting other than the step has changed.
    const still = this.panel.settings.some(
      ({ name, moving }) =>
        !moving && name in values && values[name] !== this.values?.[name],
    );
    const opened = this.computed !== this.name,
      fresh = still || opened;
    // Whether one of these settings changes the model, and not only the run on samples.
    const alters = this.panel.settings.some(
      ({ name, moving, sampled: alone }) =>
        !moving && !alone && name in values && values[name] !== this.values?.[name],
    );
    this.values = { ...before, ...values };
    this.computed = this.name;
    if (fresh) {
      if (alters || opened) this.model = this.panel.compute(this.values);
      else this.model.drawn = null;
      clearTimeout(this.drawing);
      this.drawing = setTimeout(() => this.finish(), 300);
    }
    this.moment = this.panel.moment(this.model, this.values);
    this.panel.settings.forEach(({ name }, i) =>
      this.controls[i].update(this.values[name]),
    );
    this.redraw(fresh);
    this.soon();
  }

  // Compute what takes longer than a frame, once the settings do not change any more:
  // a refinement of the model, if the panel has one, and the run on samples.
  finish() {
    const { refine, trainer } = this.panel;
    refine?.(this.model);
    if (trainer) {
      this.model.drawn = sampled(
        trainer(this.values, random(1), this.model),
        this.model.end,
      );
    }
    this.redraw(true);
  }

  // Call `settle` once nothing has changed for a while.
  soon() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.settle(), 150);
  }

  // Draw the page in the next frame. With `fresh`, figures are drawn anew.
  redraw(fresh) {
    this.fresh = this.fresh || fresh;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.render(this.fresh));
  }

  // Write the words and draw the figures.
  render(fresh) {
    this.frame = null;
    this.fresh = false;
    const [headline, ...lines] = this.panel.words(this.model, this.moment, this.values),
      ghost = this.ghosts[this.name];
    if (ghost) lines.push(this.compared(ghost));
    document.getElementById("keep").textContent = ghost
      ? "Drop the grey dashes"
      : "Keep to compare";
    document.getElementById("headline").replaceChildren(...marked(headline));
    document
      .getElementById("lines")
      .replaceChildren(...lines.map((line) => element("p", {}, ...marked(line))));
    for (const card of this.cards)
      card.draw(this.model, this.moment, this.values, this.colours, fresh, ghost);
  }

  // A sentence on the ghost: the settings in which it differs, and its headline.
  compared({ model, values }) {
    const other = this.panel.settings.filter(
      ({ name, moving }) => !moving && values[name] !== this.values[name],
    );
    const listed = other
      .map((setting) => `${setting.symbol} = ${written(setting, values[setting.name])}`)
      .join(", ");
    const [headline] = this.panel.words(
      model,
      this.panel.moment(model, values),
      values,
    );
    return `Grey dashes${listed ? `, ${listed}` : ""}: ${headline}`;
  }

  // Update what can wait until nothing moves: the address, the texts to copy, and the
  // descriptions for screen readers.
  settle() {
    this.fragment = toFragment(
      this.name,
      this.panel.settings,
      this.values,
      this.ghosts[this.name]?.values,
    );
    if (!EMBEDDED && this.fragment !== location.hash)
      history.replaceState(null, "", this.fragment);
    for (const card of this.cards) card.describe(this.model, this.moment, this.values);
    this.speak();
    const { family, parameters, found } = this.panel;
    const texts = copies(
      family,
      parameters(this.values, this.model),
      found(this.model, this.moment, this.values),
    );
    for (const [name, text] of Object.entries(texts))
      document.getElementById(`copy-${name}`).textContent = text;
  }

  // Let screen readers say the sentences that are new since the page last spoke. For a
  // panel that has just been opened, it is only the headline.
  speak() {
    const headline = document.getElementById("headline").textContent;
    const lines = [...document.querySelectorAll("#lines p")].map(
      (line) => line.textContent,
    );
    const heard = this.heard?.name === this.name ? this.heard.sentences : lines;
    const fresh = [headline, ...lines].filter((sentence) => !heard.includes(sentence));
    this.heard = { name: this.name, sentences: [headline, ...lines] };
    if (fresh.length)
      document.getElementById("spoken").textContent = spoken(fresh.join(" "));
  }

  // Copy the text, or the address, that a button names.
  async copy(button) {
    const target = button.dataset?.copy;
    if (!target) return;
    this.settle();
    const source =
      target === "link"
        ? EMBEDDED
          ? this.fragment
          : location.href
        : document.getElementById(`copy-${target}`).textContent;
    try {
      await navigator.clipboard.writeText(source);
    } catch {
      // A page that was opened from a file may not use the clipboard.
      const area = element("textarea", {}, source);
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    document.getElementById("copied").textContent =
      `Copied: ${button.textContent.trim()}.`;
  }

  // Move the step from 0 to the end of the run, evenly on a logarithmic scale. If it
  // moves already, stop it.
  play() {
    if (this.playing) return this.stop();
    const { name } = this.panel.settings.find((setting) => setting.play),
      end = Math.log10(1 + (this.panel.end?.(this.model) ?? this.model.end));
    let begun = null;
    document.getElementById("play").textContent = "Stop";
    const next = (now) => {
      begun ??= now;
      const part = Math.min(1, (now - begun) / (1000 * SECONDS));
      this.set({ [name]: Math.round(10 ** (part * end) - 1) }, [], true);
      if (part < 1) this.playing = requestAnimationFrame(next);
      else this.stop();
    };
    this.playing = requestAnimationFrame(next);
  }

  stop() {
    cancelAnimationFrame(this.playing);
    this.playing = null;
    document.getElementById("play").textContent = "Play";
  }

  // Begin the story of the panel, or its tour if it has no story.
  guide() {
    const button = document.getElementById("start-tour");
    if (this.panel.story) {
      this.story.go(0);
      this.story.on.focus();
      return;
    }
    this.endTour?.();
    this.endTour = tour(
      this.panel.tour,
      (values, play) => {
        this.begin(values);
        if (play) this.play();
      },
      () => {
        this.endTour = null;
        button.focus();
      },
    );
  }
}

module.exports = { Shell };
