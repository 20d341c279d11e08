// In another page's frame, this page says how high it is: it may be of no site, so that page cannot look.
if (window.parent !== window) {
  const tell = () => window.parent.postMessage({ height: document.documentElement.offsetHeight }, "*");
  new ResizeObserver(tell).observe(document.documentElement);
  window.addEventListener("message", tell);
}

// A cursor on the chart of memory: point at it, or focus it and use the arrow keys. The page says all of it without, too.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("memory-data").textContent);
  const plot = document.getElementById("memory-plot");
  const cursor = plot.querySelector(".cursor");
  const readout = document.getElementById("readout");
  const cells = document.querySelectorAll("[data-cursor]");
  const last = data.columns.length - 1;
  let place = 0;

  const gigabytes = (bytes) => {
    const size = bytes / 1e9;
    const digits = bytes === 0 || size >= 0.1 ? 2 : Math.min(9, 1 - Math.floor(Math.log10(size)));
    return `${size.toFixed(digits)} GB`;
  };
  const duration = (seconds) =>
    seconds >= 0.9995 ? `${seconds.toFixed(2)} s` : `${(seconds * 1e3).toFixed(seconds >= 0.09995 ? 0 : 1)} ms`;

  const show = (column) => {
    place = Math.max(0, Math.min(last, column));
    const [at, ...sizes] = data.columns[place];
    const total = gigabytes(sizes.reduce((sum, size) => sum + size, 0));
    const when = duration((data.end_s * place) / data.columns.length);
    for (const cell of cells) {
      const key = cell.dataset.cursor;
      cell.textContent = key === "total" ? total : key === "when" ? when : sizes[key] >= 5e6 ? gigabytes(sizes[key]) : sizes[key] ? "< 0.01 GB" : "–";
    }
    const strong = document.createElement("strong");
    strong.textContent = `${total} after ${when}`;
    readout.replaceChildren(strong, `: ${data.places[at]}`);
    cursor.style.left = `${(100 * (place + 0.5)) / data.columns.length}%`;
    cursor.hidden = false;
    plot.setAttribute("aria-valuenow", place);
    plot.setAttribute("aria-valuetext", readout.textContent);
  };

  // Tables that fit need no stop for the keyboard.
  const stops = () => {
    for (const box of document.querySelectorAll(".scroll")) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
  };
  window.addEventListener("resize", stops);
  for (const more of document.querySelectorAll("details")) more.addEventListener("toggle", stops);
  stops();

  const hint = document.createElement("span");
  hint.textContent = "Point at the chart, or focus it and use the arrow keys, to read a moment.";
  readout.replaceChildren(hint);
  readout.hidden = false;
  plot.closest("section").querySelector("table").classList.add("live");
  plot.tabIndex = 0;
  plot.setAttribute("role", "slider");
  plot.setAttribute("aria-valuemin", 0);
  plot.setAttribute("aria-valuemax", last);
  plot.setAttribute("aria-valuenow", 0);
  plot.setAttribute("aria-valuetext", hint.textContent);
  const follow = (event) => {
    const box = plot.getBoundingClientRect();
    show(Math.floor(((event.clientX - box.left) / box.width) * data.columns.length));
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 20, PageDown: -20 };
  plot.addEventListener("keydown", (event) => {
    if (event.target !== plot) return;
    const to = event.key === "Home" ? 0 : event.key === "End" ? last : place + (steps[event.key] ?? NaN);
    if (Number.isNaN(to)) return;
    event.preventDefault();
    show(cursor.hidden && event.key.startsWith("Arrow") ? place : to);
  });
})();
