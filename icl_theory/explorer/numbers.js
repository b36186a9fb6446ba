// Numbers as text for readers, and numbers from what a reader types.
"use strict";

const RAISED = {
  "-": "⁻",
  0: "⁰",
  1: "¹",
  2: "²",
  3: "³",
  4: "⁴",
  5: "⁵",
  6: "⁶",
  7: "⁷",
  8: "⁸",
  9: "⁹",
};
// A narrow space, which stands between groups of three digits.
const NARROW = "\u202f";

// An integer in superscripts.
const raised = (power) => String(power).replace(/./g, (digit) => RAISED[digit]);
// The digits of an integer in groups of three, if there are more than four.
const grouped = (digits) =>
  digits.length > 4 ? digits.replace(/\B(?=(\d{3})+$)/g, NARROW) : digits;

// A count as text. Below 10¹⁶ all its digits are written.
const count = (n) => (n < 1e16 ? grouped(String(Math.round(n))) : short(n));

// A number as text with `digits` digits: 0.0123, 12 300, 1.23·10⁻⁹.
function short(x, digits = 3) {
  if (x === 0) return "0";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const [mantissa, exponent] = x.toExponential(digits - 1).split("e"),
    power = Number(exponent);
  const sign = (text) => text.replace("-", "−");
  const bare = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power >= -3 && power < 6) {
    const [whole, rest] = sign(
      bare(Number(x.toPrecision(digits)).toFixed(Math.max(0, digits - 1 - power))),
    ).split(".");
    return grouped(whole) + (rest ? `.${rest}` : "");
  }
  const leading = sign(bare(mantissa));
  return (
    (leading === "1" ? "" : leading === "−1" ? "−" : `${leading}·`) +
    `10${raised(power)}`
  );
}

// A text as a screen reader should say it. Otherwise it would read "10⁻³" as "ten
// three", and "12 300" as two numbers.
const spoken = (text) =>
  text.replaceAll(NARROW, "").replace(/(·?)10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)/g, (_, times, marks) => {
    const digits = [...marks].map((mark) =>
      Object.keys(RAISED).find((key) => RAISED[key] === mark),
    );
    const power = digits.join("").replace("-", "minus ");
    return `${times ? " times " : ""}10 to the power ${power}`;
  });

const percent = (x) => `${short(100 * x)} %`;
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

// The number that a reader types, such as 0.001, 1e-3, 10^-3, 10⁻³, 1.5·10^6 or 1 000.
// The result is null if the text is no number. A text with a comma is none, because the
// comma may stand for the decimal point or between groups of digits.
function parse(text) {
  const plain = String(text)
    .trim()
    .replace(/[\s_]/g, "")
    .replace(/−/g, "-")
    .replace(
      /[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+/g,
      (marks) =>
        `^${[...marks].map((mark) => Object.keys(RAISED).find((key) => RAISED[key] === mark)).join("")}`,
    );
  const number = "[+-]?(?:\\d+\\.?\\d*|\\.\\d+)(?:e[+-]?\\d+)?";
  const power = plain.match(
    new RegExp(`^(?:(${number})[·*x×])?10\\^([+-]?\\d+)$`, "i"),
  );
  const value = power
    ? Number(power[1] ?? "1") * Number(`1e${power[2]}`)
    : new RegExp(`^${number}$`, "i").test(plain)
      ? Number(plain)
      : NaN;
  return Number.isFinite(value) ? value : null;
}

module.exports = { count, short, spoken, percent, plural, parse, raised };
