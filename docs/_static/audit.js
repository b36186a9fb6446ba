// Cards of the audit: show those that contain all words of the search and have what the lists ask for.
const form = document.querySelector("form.filters");
if (form) {
  const cards = [...document.querySelectorAll(".claims .claim")].map((card) => [card, card.textContent.toLowerCase()]);
  const show = () => {
    const words = form.querySelector("input").value.toLowerCase().split(/\s+/);
    const wanted = [...form.querySelectorAll("select")].filter((list) => list.value);
    let shown = 0;
    for (const [card, text] of cards) {
      const fits = words.every((word) => text.includes(word)) && wanted.every((list) => card.dataset[list.dataset.of] === list.value);
      card.hidden = !fits;
      shown += fits;
    }
    form.querySelector("output").value = `${shown} of ${cards.length} claims`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}
