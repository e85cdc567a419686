// A line over time as SVG, with the table that says the same.

import { el, table } from "./dom.js";
import { clock, number } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDE = 640, HIGH = 150, LEFT = 56, BELOW = 22, ABOVE = 8;

function svg(tag, properties, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A step of 1, 2 or 5 times a power of ten, so that about three of them make `most`. */
function stepOf(most) {
  const rough = most / 3, power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
}

/**
 * Draw points [[seconds since 1970, value or null], ...] as a line, from 0 up, and their table.
 * `zero`: a line at this value is the reference; below it are negative values.
 */
export function chart(title, unit, points, { dots = false, from = 0 } = {}) {
  const known = points.filter(([, value]) => value !== null);
  if (known.length < 2) return el("p", { textContent: `${title}: fewer than two values yet` });
  const times = known.map(([at]) => at), values = known.map(([, value]) => value);
  const first = Math.min(...times), last = Math.max(...times);
  const step = stepOf(Math.max(...values.map(Math.abs), from) || 1);
  const low = Math.min(from, Math.floor(Math.min(...values) / step) * step);
  const high = Math.max(step, Math.ceil(Math.max(...values) / step) * step);
  const x = (at) => LEFT + ((at - first) / (last - first || 1)) * (WIDE - LEFT - 8);
  const y = (value) => ABOVE + (1 - (value - low) / (high - low)) * (HIGH - BELOW - ABOVE);
  const picture = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "chart", role: "img", "aria-label": `${title}, ${unit}; the table below says the same` });
  for (let value = low; value <= high + step / 2; value += step) {
    picture.append(svg("line", { x1: LEFT, x2: WIDE - 8, y1: y(value), y2: y(value), class: Math.abs(value) < step / 1e6 ? "axis" : "grid" }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, number(Number(value.toPrecision(6)))));
  }
  picture.append(svg("text", { x: LEFT, y: HIGH - 4 }, clock(first)),
    svg("text", { x: WIDE - 8, y: HIGH - 4, "text-anchor": "end" }, clock(last)));
  if (dots) for (const [at, value] of known) picture.append(svg("circle", { cx: x(at), cy: y(value), r: 3 }));
  else picture.append(svg("path", { d: known.map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("") }));
  return el("figure", {}, el("figcaption", { textContent: `${title}, ${unit}` }), picture,
    el("details", {}, el("summary", { textContent: `${title} as a table` }),
      table(`${title} over time`, ["time", unit], known.map(([at, value]) => [clock(at), number(value)]))));
}
