// How good the predictions were: by kind, over time, and how often their intervals held.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { el, nodeLink, setText, shown, table } from "./dom.js";
import { listen } from "./live.js";
import { clock, count, number, percent } from "./words.js";

export function show(place) {
  const told = el("p", { role: "status", textContent: "Loading: the journal is being read ..." });
  const content = el("div");
  place.append(el("h2", { textContent: "Truth" }),
    el("p", { className: "hint", textContent: "An error is (predicted - measured) / measured: 0 is right, 1 is twice as long as it took." }), told, content);
  let ended = false, asked = 0;
  async function load() {
    if (Date.now() - asked < 5000) return;
    asked = Date.now();
    try {
      const found = await get("/api/truth");
      if (ended) return;
      const open = [...content.querySelectorAll("details")].map((one) => one.open);
      content.replaceChildren(...parts(found));
      content.querySelectorAll("details").forEach((one, at) => { one.open = open[at] ?? false; });
      setText(told, found.rows.length ? `The last ${count(found.last)} predictions at most.`
        : "Nothing was predicted yet: jobs that are moved, suspended, share a node or ran before are.");
    } catch (error) {
      setText(told, shown(error.message));
    }
  }
  const silence = listen((kind) => { if (kind === "changes") load(); });
  load();
  return () => {
    ended = true;
    silence();
  };
}

function parts({ rows, points, coverage, starts, refit }) {
  const made = [];
  if (rows.length) {
    made.push(table("Errors by kind: medians of n outcomes; 95 %: of the outcomes lie within",
      ["kind", "where", "n", "predicted", "measured", "error", "95 %", "within 100 %", "worst", "not known yet", "without outcome"], rows.map(row)));
  }
  made.push(el("h3", { textContent: "Intervals" }), el("ul", {}, el("li", { textContent: coverageWords(coverage) }), el("li", { textContent: startWords(starts) })));
  for (const [kind, errors] of Object.entries(points)) {
    made.push(chart(`Error of ${kind}`, "(predicted - measured) / measured", errors.map(([at, error]) => [at, error]), { dots: true }));
  }
  made.push(el("h3", { textContent: "Last refit" }), ...refitParts(refit));
  return made;
}

function row(one) {
  const said = one.predicted ?? one.stated, unit = one.unit === "s" ? " s" : "";
  const marks = `${one.stated !== null && one.predicted === null ? ", stated by users" : ""}${one.emulated ? " EMULATED" : ""}`;
  const value = (number_) => (number_ === null || number_ === undefined ? "-" : `${number(number_)}${unit}`);
  const where = el("span", {}, one.place.split(" -> ").flatMap((name, at) => [at ? " -> " : "", name ? nodeLink(name) : ""]), marks);
  return [one.kind, where, count(one.n), value(said), value(one.measured), percent(one.median) || "-", percent(one.p95) || "-",
    percent(one.within) || "-", one.worst_job === null ? "-" : el("a", { href: `#job/${one.worst_job}`, textContent: `${percent(one.worst)} (job ${one.worst_job})` }),
    count(one.open), count(one.void)];
}

function coverageWords({ jobs, below, inside, above, meant }) {
  if (!jobs) return "Run times: no job with a predicted interval has ended yet.";
  return `Run times: ${count(inside)} of ${count(jobs)} jobs (${percent(inside / jobs)}) lay in their interval, ${percent(meant)} should; ${count(below)} were shorter, ${count(above)} longer.`;
}

function startWords({ outcomes, needed, low, middle, high }) {
  if (outcomes < needed) return `Expected starts: ${count(outcomes)} of ${count(needed)} outcomes that an interval needs, since tenbin up.`;
  return `Expected starts: jobs waited ${number(middle)} times as long as said, ${number(low)} to ${number(high)} times in 8 of 10 cases (${count(outcomes)} outcomes since tenbin up).`;
}

function refitParts(refit) {
  if (!refit) return [el("p", { textContent: "No profile was fitted anew from jobs yet: tenbin program calibration --refit" })];
  const mark = refit.emulated ? " EMULATED" : "";
  const made = [el("p", {}, nodeLink(refit.node), `: profile ${shown(refit.profile)}, made ${clock(refit.made_s)} from ${shown(refit.origin)}${mark}.`)];
  if (!refit.changes) return [...made, el("p", { textContent: "The profile that it comes from is gone, so nothing can be set beside it." })];
  return [...made, table("Coefficients that changed, with 95 % intervals", ["quantity", "coefficient", "before", "after", "after / before", "verdict"],
    refit.changes.map((one) => [shown(one.quantity), one.coefficient, one.before, one.after, one.ratio, one.verdict]))];
}
