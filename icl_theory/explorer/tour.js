// The guided tour: a card that sets the page and says what is to be seen, one stop
// after the other.
"use strict";

const { element } = require("figures");

// frame a figure, or none, and scroll to it
function mark(name, scrolls = true) {
  document
    .querySelectorAll("figure.shown")
    .forEach((figure) => figure.classList.remove("shown"));
  const figure = name && document.getElementById(`figure-${name}`);
  if (!figure) return;
  figure.classList.add("shown");
  if (scrolls)
    figure.scrollIntoView({
      block: "center",
      behavior: matchMedia("(prefers-reduced-motion: reduce)").matches
        ? "auto"
        : "smooth",
    });
}

// `stops` is a list of { text, values, figure }; `show` sets values, `after` is told
// when it ends
function tour(stops, show, after) {
  let at = 0;
  const text = element("p", { "aria-live": "polite" });
  const where = element("span", { class: "where" });
  const back = element("button", { type: "button", onclick: () => go(at - 1) }, "Back");
  const on = element(
    "button",
    { type: "button", class: "primary", onclick: () => go(at + 1) },
    "Next",
  );
  const end = element(
    "button",
    { type: "button", onclick: () => close() },
    "End the tour",
  );
  const card = element(
    "section",
    { id: "tour", role: "dialog", "aria-label": "Guided tour" },
    text,
    element("div", { class: "row" }, back, on, where, end),
  );
  const close = () => {
    card.remove();
    document.removeEventListener("keydown", keys);
    mark(null);
    after();
  };
  const keys = (event) => {
    if (event.key === "Escape") close();
  };
  const go = (next) => {
    if (next >= stops.length) return close();
    at = Math.max(0, next);
    const stop = stops[at];
    text.textContent = stop.text;
    where.textContent = `${at + 1} of ${stops.length}`;
    // a button that is disabled loses the focus
    if (at === 0 && document.activeElement === back) on.focus({ preventScroll: true });
    back.disabled = at === 0;
    on.textContent = at + 1 === stops.length ? "Done" : "Next";
    show(stop.values ?? {}, stop.play);
    mark(stop.figure);
  };
  document.addEventListener("keydown", keys);
  document.body.append(card);
  go(0);
  on.focus({ preventScroll: true });
  return close;
}

module.exports = { mark, tour };
