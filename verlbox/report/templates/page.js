"use strict";
// Reads values off the charts, by pointer, touch or arrow keys. Without this script the charts are still drawn.
for (const plot of document.querySelectorAll(".plot")) {
  const { first, last, curves } = JSON.parse(plot.dataset.chart);
  const area = plot.querySelector(".area");
  const output = plot.parentElement.querySelector("output");
  const steps = [...new Set(curves.flatMap((curve) => curve.steps))].sort((a, b) => a - b);
  const left = (step) => (first === last ? 50 : (100 * (step - first)) / (last - first));
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const points = curves.map((_, i) => {
    const point = Object.assign(document.createElement("i"), { className: `point c${i % 8}`, hidden: true });
    return point;
  });
  area.append(cursor, ...points);
  let at = steps.length - 1;

  const nearest = (step) => {
    let low = 0;
    let high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle; else high = middle;
    }
    return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
  };

  const show = (index) => {
    at = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[at];
    cursor.hidden = false;
    cursor.style.left = `${left(step)}%`;
    const parts = [];
    curves.forEach((curve, i) => {
      const k = curve.steps.indexOf(step);
      points[i].hidden = k < 0;
      if (k < 0) return;
      points[i].style.left = `${left(step)}%`;
      points[i].style.top = `${curve.heights[k]}%`;
      parts.push(`${curve.name} ${curve.values[k]}`);
    });
    output.textContent = `${plot.dataset.step} ${step}: ${parts.join(", ")}`;
  };

  const hide = () => {
    cursor.hidden = true;
    for (const point of points) point.hidden = true;
  };

  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    show(nearest(first + ((event.clientX - box.left) / box.width) * (last - first)));
  });
  area.addEventListener("pointerdown", (event) => {
    const box = area.getBoundingClientRect();
    show(nearest(first + ((event.clientX - box.left) / box.width) * (last - first)));
  });
  area.addEventListener("pointerleave", hide);
  plot.addEventListener("focus", () => show(at));
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: steps.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}

const theme = document.getElementById("theme");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}
if (matchMedia("(max-width: 63.99rem)").matches) document.querySelector("nav details")?.removeAttribute("open");
