// Settings of a panel. The panel declares them, and their symbols, units and limits are
// those of the family's parameters. Values are read from addresses and written to them.
"use strict";

const { parse, short, count } = require("numbers");

// A setting of a panel with all its fields. `parameters` has the fields of the family's
// parameters, and `stops` are the values of the setting's slider.
function complete(declared, parameters) {
  const known = parameters[declared.name] ?? {};
  const setting = {
    unit: "",
    symbol: declared.name,
    meaning: "",
    minimum: null,
    maximum: null,
    ...known,
    ...declared,
  };
  if (setting.words || setting.text || setting.stops) return setting;
  const stops = [],
    { low, high, log, whole, steps = 300 } = setting;
  if (setting.zero) stops.push(0);
  for (let i = 0; i <= steps; i++) {
    const raw = log
      ? low * (high / low) ** (i / steps)
      : low + ((high - low) * i) / steps;
    const value = whole
      ? Number(Math.round(raw).toPrecision(3))
      : Number(raw.toPrecision(3));
    if (!stops.length || value > stops[stops.length - 1]) stops.push(value);
  }
  return { ...setting, stops };
}

// A value of a setting as text for readers.
const written = (setting, value) =>
  typeof value === "string" ? value : setting.whole ? count(value) : short(value, 4);

// The value that a text has for a setting. If it is not allowed, the result has a
// sentence `fault`, and the nearest allowed value; this is null if none is near, for
// instance if the text is no number.
function checked(setting, text) {
  const name = setting.symbol;
  if (setting.words) {
    if (Object.hasOwn(setting.words, text)) return { value: text };
    return {
      value: null,
      fault: `${name} = “${text}” is none of ${Object.keys(setting.words).join(", ")}`,
    };
  }
  if (setting.text)
    return (
      setting.text(text) ?? { value: null, fault: `${name} = “${text}” cannot be read` }
    );
  const number = parse(text);
  if (number === null)
    return {
      value: null,
      fault: `${name} = “${text}” is not a number${/\d,\d/.test(text) ? ": decimals follow a point" : ""}`,
    };
  const { minimum, maximum, whole } = setting;
  const value = Math.min(
    maximum ?? Infinity,
    Math.max(minimum ?? -Infinity, whole ? Math.round(number) : number),
  );
  if (value === number) return { value };
  const allowed =
    Math.round(number) === value
      ? "whole"
      : value > number
        ? `at least ${short(minimum)}`
        : `at most ${short(maximum)}`;
  return { value, fault: `${name} = ${short(number)} has to be ${allowed}` };
}

// The value of a setting from a text in an address. If the text is not allowed, the
// nearest allowed value or the default is used, because a page that opens must show
// something, and a sentence `problem` says so.
function read(setting, text) {
  const { value, fault } = checked(setting, text);
  if (!fault) return { value };
  const used = value ?? setting.value;
  return { value: used, problem: `${fault}: ${written(setting, used)} is used.` };
}

// The value that a reader has typed, or a sentence that says why it changes nothing.
function typed(setting, text, present) {
  const { value, fault } = checked(setting, text);
  return fault
    ? { problem: `${fault}; it stays ${written(setting, present)}.` }
    : { value };
}

// The default values of settings, by name.
const defaults = (settings) =>
  Object.fromEntries(settings.map(({ name, value }) => [name, value]));

// The name and the value of a part such as "L=2" of an address. A value with a wrong
// escape, such as "%zz", is returned as it is.
function pair(text) {
  const [key, ...rest] = text.split("=");
  try {
    return [key, decodeURIComponent(rest.join("="))];
  } catch {
    return [key, rest.join("=")];
  }
}

// Read the part of an address after "#", such as "family?L=2&K=20~L=1". The result has
// the name of the panel, values of all its settings, the values `ghost` of a run to
// compare with, which stand after "~", and sentences on parts that could not be used.
// `still` is true if the address names a step. Then the page must not begin to play.
function fromFragment(fragment, panels) {
  const [shown, kept] = fragment.replace(/^#/, "").split("~"),
    [name, query = ""] = shown.split("?");
  const problems = [],
    names = Object.keys(panels);
  const chosen = names.includes(name) ? name : names[0];
  if (name && name !== chosen)
    problems.push(
      `There is no panel “${name}”: ${panels[chosen].family.title} is shown.`,
    );
  const { settings } = panels[chosen],
    still = settings.some((one) => one.play && query.includes(`${one.name}=`));
  const taken = (from, text) => {
    const values = { ...from };
    for (const [key, given] of text.split("&").filter(Boolean).map(pair)) {
      const setting = settings.find((one) => one.name === key);
      const { value, problem } = setting
        ? read(setting, given)
        : { problem: `There is no setting “${key}”.` };
      if (setting) values[key] = value;
      if (problem) problems.push(problem);
    }
    return values;
  };
  const values = taken(defaults(settings), query);
  return {
    name: chosen,
    values,
    ghost: kept === undefined ? null : taken(values, kept),
    problems,
    still,
  };
}

// Write the part of an address after "#", which `fromFragment` reads. Of the run to
// compare with, only the settings that differ are written.
function toFragment(name, settings, values, ghost) {
  const query = (chosen, from) =>
    chosen
      .map(
        (one) =>
          `${one.name}=${encodeURIComponent(from[one.name]).replaceAll("%2C", ",")}`,
      )
      .join("&");
  return (
    `#${name}?${query(settings, values)}` +
    (ghost
      ? `~${query(
          settings.filter((one) => !one.moving && ghost[one.name] !== values[one.name]),
          ghost,
        )}`
      : "")
  );
}

// The parameters of a family as code of Python, as a command and as JSON. `more` has
// results of the run; with a step t, the code prints the loss at this step.
function copies(family, parameters, more = {}) {
  const literal = (value) =>
    typeof value === "string" ? JSON.stringify(value) : String(value);
  const given = Object.entries(parameters);
  const brought =
    family.module === "icl_theory"
      ? ""
      : `from ${family.module} import ${family.class}\n`;
  const made = `${brought ? "" : "icl."}${family.class}(${given.map(([name, value]) => `${name}=${literal(value)}`).join(", ")})`;
  const options = given
    .map(([name, value]) => `--${name.replaceAll("_", "-")} ${value}`)
    .join(" ");
  const step =
    more.t === undefined
      ? ""
      : `print(run.at(${more.t}).loss)  # ${short(more.loss, 12)}\n`;
  return {
    Python: `import icl_theory as icl\n${brought}\nproblem = ${made}\nrun = problem.simulate()\nprint(run.summary())\n${step}`,
    Command: `icl-theory ${family.name} simulate ${options}`,
    JSON: JSON.stringify({ name: family.name, parameters, found: more }, null, 1),
  };
}

module.exports = {
  complete,
  read,
  typed,
  written,
  defaults,
  fromFragment,
  toFragment,
  copies,
};
