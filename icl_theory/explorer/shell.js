// The page: tabs, sliders, words, figures, copies, the URL. It knows panels only by
// what they export.
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

const SECONDS = 9; // that playing takes
// A page inside a cell of a notebook has no address that it could change or hand out.
const EMBEDDED = globalThis.location?.protocol === "about:";

function nearestStop(stops, value) {
  let nearest = stops.findIndex((stop) => stop >= value);
  if (nearest < 0) nearest = stops.length - 1;
  if (nearest > 0 && value - stops[nearest - 1] < stops[nearest] - value) nearest -= 1;
  return nearest;
}

// **bold** as elements
const marked = (text) =>
  text.split("**").map((part, i) => (i % 2 ? element("b", {}, part) : part));

class Shell {
  constructor(names, papers, place = "") {
    Object.assign(this, {
      papers,
      panels: {},
      broken: [],
      kept: {},
      ghosts: {},
      colours: palette(),
    }); // kept: values of panels not shown
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

  // the panels that share a tab with one
  together(name) {
    const first = (one) => this.panels[one].under ?? one;
    return Object.keys(this.panels).filter((other) => first(other) === first(name));
  }

  repaint(theme = this.theme, now = false) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    this.colours = palette();
    if (now) this.render(true);
    else this.redraw(true);
  }

  // what a URL asks for
  open(fragment) {
    if (fragment && fragment === this.fragment) return;
    const { name, values, ghost, problems, still } = fromFragment(
      fragment,
      this.panels,
    );
    this.show(name, values, [...this.broken, ...problems], still);
    this.keep(ghost);
  }

  complain(problems) {
    const box = document.getElementById("problems");
    box.replaceChildren(...problems.map((problem) => element("p", {}, problem)));
    box.hidden = !problems.length;
  }

  // while somebody types; a run that plays would write over it
  unmark(field) {
    this.stop();
    field.removeAttribute("aria-invalid");
    this.complain([]);
  }

  // a panel, which begins to play unless it is to be `still`
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

  // the same, away from the story
  restart(values, ghost) {
    this.story.close();
    this.begin(values, ghost);
  }

  // settings to start from, and changes of them to compare with
  begin(values, ghost) {
    this.set({ ...defaults(this.panel.settings), ...values });
    this.keep(ghost ? { ...this.values, ...ghost } : null);
  }

  // a run that stays behind the figures, to compare others with
  keep(given) {
    const values = given && { ...given, ...this.panel.sound?.(given).changes };
    this.ghosts[this.name] = values && {
      values,
      model: { ...this.panel.compute(values), drawn: null },
    }; // without samples
    this.redraw(true);
    this.soon();
  }

  build(name) {
    this.name = name;
    this.panel = this.panels[name];
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const here = tab.id === `tab-${this.panel.under ?? name}`;
      tab.setAttribute("aria-selected", here);
      tab.tabIndex = here ? 0 : -1;
      if (here)
        tab.parentElement.scrollLeft =
          tab.offsetLeft - tab.parentElement.offsetLeft - 16; // on a phone the row is cut
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

  // On a phone one setting is shown at a time, so that there is room for what it moves:
  // a row of symbols to choose it.
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
          // browsers leave a button as it is if half of it is in sight
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
    // what cannot be used is marked where it was typed, and changes nothing
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
      // the slider counts stops, which may be powers: what it says is the value
      const words = [spoken(field.value), setting.unit].filter(Boolean);
      slider.setAttribute("aria-valuetext", words.join(" "));
    };
    return { node: element("div", { class: "control" }, label, field, slider), update };
  }

  // the value of a setting at the stop beside the present one, or a tenth of its slider
  // away; null for other keys
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

  // new values of some settings, and sentences on what was asked for and cannot be;
  // panels add theirs
  set(given, problems = [], playing = false) {
    if (!playing) this.stop();
    const before =
      this.computed === this.name ? this.values : defaults(this.panel.settings);
    const { changes, problem } = this.panel.sound?.({ ...before, ...given }) ?? {};
    const values = { ...given, ...changes };
    if (!playing) this.complain(problem ? [...problems, problem] : problems);
    const still = this.panel.settings.some(
      ({ name, moving }) =>
        !moving && name in values && values[name] !== this.values?.[name],
    );
    const opened = this.computed !== this.name,
      fresh = still || opened;
    // a setting of the sampled run alone leaves the model as it is
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

  // what takes longer than a frame, once the settings rest: a sampled run beside the
  // exact one
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

  soon() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.settle(), 150);
  }

  redraw(fresh) {
    this.fresh = this.fresh || fresh;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.render(this.fresh));
  }

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

  // what is different about the run that was kept, and how it went
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

  // what can wait until nothing moves: the URL, the copies, descriptions for screen
  // readers
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

  // Say what is new since the page last spoke: of a panel that has just been opened,
  // the headline alone.
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
      const area = element("textarea", {}, source); // pages that were opened from a file may not use the clipboard
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    document.getElementById("copied").textContent =
      `Copied: ${button.textContent.trim()}.`;
  }

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
