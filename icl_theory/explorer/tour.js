// The guided tour of a panel. A card shows one stop after the other: it sets the values
// of the page, and says what the figures then show.
"use strict";

const { element } = require("figures");

// Put a frame around the figure called `name` and scroll to it. Without a name only the
// earlier frame is removed.
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

// Open the tour and return a function that closes it. `stops` is a list of { text,
// values, figure, play }. The function `show` sets the values of a stop and plays it if
// it is to be played, and `after` is called at the end of the tour.
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
    // A button that becomes disabled loses the focus, so move it to the other one.
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
