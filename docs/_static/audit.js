// Cards of the audit: show those that contain all words of the search and have what the lists ask for,
// the first 24 of them until more are asked for.
const form = document.querySelector("form.filters");
if (form) {
  const cards = [...document.querySelectorAll(".claims .claim")].map((card) => [card, card.textContent.toLowerCase()]);
  const more = document.querySelector(".more");
  let most = 24;
  const show = () => {
    const words = form.querySelector("input").value.toLowerCase().split(/\s+/);
    const wanted = [...form.querySelectorAll("select")].filter((list) => list.value);
    let found = 0;
    for (const [card, text] of cards) {
      const fits = words.every((word) => text.includes(word)) && wanted.every((list) => card.dataset[list.dataset.of] === list.value);
      found += fits;
      card.hidden = !fits || found > most;
    }
    more.hidden = found <= most;
    const shown = Math.min(found, most);
    const all = found === cards.length ? "claims" : `claims that fit, of ${cards.length}`;
    form.querySelector("output").value = `${shown} of ${found} ${all}`;
  };
  const reveal = (count) => {
    most += count;
    show();
  };
  for (const button of more.querySelectorAll("button")) {
    button.addEventListener("click", () => reveal(Number(button.dataset.more)));
  }
  addEventListener("beforeprint", () => reveal(cards.length));
  form.addEventListener("input", () => {
    most = 24;
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}
