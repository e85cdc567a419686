// The nodes: what is free, which jobs are there, what was measured.

import { get } from "./api.js";
import { el, facts, nodeLink, setText, shown, table } from "./dom.js";
import { listen, live, now } from "./live.js";
import { count, duration, gpuMemory, number, percent } from "./words.js";

export function show(place) {
  const told = el("p", { role: "status", className: "hint", textContent: "Loading the nodes ..." });
  const content = el("div");
  place.append(el("h2", { textContent: "Nodes" }), told, content);
  let ended = false, loading = false, again = false;
  async function load() {
    if (loading) {
      again = true;
      return;
    }
    loading = true;
    try {
      const found = await get("/api/nodes");
      if (ended) return;
      const open = new Set([...content.querySelectorAll("details[open]")].map((one) => one.dataset.node));
      content.replaceChildren(...found.nodes.map(part));
      for (const one of content.querySelectorAll("details")) one.open = open.has(one.dataset.node);
      const more = found.left_out ? `; ${count(found.left_out)} more are not shown` : "";
      setText(told, found.known ? `${count(found.nodes.length)} ${found.nodes.length === 1 ? "node or pool" : "nodes or pools"}${more}.` : waits());
    } catch (error) {
      setText(told, shown(error.message));
    }
    loading = false;
    if (again && !ended) {
      again = false;
      load();
    }
  }
  const silence = listen(() => load());
  load();
  return () => {
    ended = true;
    silence();
  };
}

/** Say why no nodes are known: the coordinator is being asked, or does not answer. */
export const waits = () => (live.trouble ? `Not known: ${shown(live.trouble)}.` : "Loading: the coordinator is being asked ...");

function free(node) {
  if (node.units !== undefined) return `${count(node.free)} of ${count(node.units)} ${/^[a-z]+$/i.test(node.name) ? `${node.name}s` : "units"}`;
  if (!node.capacity) return null;
  return Object.entries(node.capacity).map(([name, all]) => (name === "memory_mb" ? `${number(node.free[name] / 1000)} of ${number(all / 1000)} GB memory`
    : `${node.free[name]} of ${all} ${name.replace(/^gpu/, all === 1 ? "GPU" : "GPUs")}`)).join(", ");
}

function part(node) {
  const jobs = node.jobs.flatMap((job, place) => [place ? ", " : "", el("a", { href: `#job/${job.id}`, textContent: job.label }), ` ${shown(job.name)}`]);
  const state = node.up === false ? `✗ down${node.trouble ? `: ${shown(node.trouble)}` : ""}` : "✓ in service";
  const regions = Array.isArray(node.regions) ? node.regions.map((region) => `${region.name}: ${region.used} of ${region.units}`).join(", ")
    : Object.entries(node.regions ?? {}).map(([name, units]) => `${name}: ${units}`).join(", ");
  const more = node.job_count > node.jobs.length ? ` and ${count(node.job_count - node.jobs.length)} more` : "";
  return el("section", {}, el("h3", {}, nodeLink(node.name)),
    facts([["state", state], ["free", free(node)], ["regions", shown(regions)], ["power caps", node.capped_jobs ? `${Math.round(node.caps_w)} W over ${count(node.capped_jobs)} ${node.capped_jobs === 1 ? "job" : "jobs"}` : null],
      ["last sign of life", node.sign_of_life ? `${duration(Math.max(now() - node.sign_of_life.at_s, 0))} ago, a sample of job ${node.sign_of_life.job}` : null],
      ["jobs", node.job_count ? el("span", {}, ...jobs, more) : "none"],
      ["kept besides", node.beyond ? `${Object.entries(node.beyond).map(([name, amount]) => `${amount} ${name}`).join(", ")}, by jobs that began when there was more` : null],
      ["jobs outside tenbin", node.others ? `hold ${count(node.others)} ${node.others === 1 ? "core" : "cores"}` : null]]),
    ...gpus(node), ...profile(node));
}

/** Who has each GPU, and what it does; strangers' processes in a line below. */
function gpus({ name, gpus: devices }) {
  if (!devices?.length) return [];
  const who = (gpu) => (gpu.job !== null ? el("a", { href: `#job/${gpu.job}`, textContent: `job ${gpu.job}` }) : gpu.strangers.length || gpu.failure ? "not given out" : "free");
  const idle = (gpu) => (gpu.idle_s >= 60 ? `, nothing for ${duration(gpu.idle_s)}` : "");
  return [
    table(`GPUs of ${shown(name)}: ${[...new Set(devices.map((gpu) => shown(gpu.name)))].join(", ")}`, ["GPU", "who has it", "works", "memory"],
      devices.map((gpu) => [String(gpu.number), who(gpu), `${percent(gpu.share)}${idle(gpu)}`, gpuMemory(gpu)])),
    ...devices.filter((gpu) => gpu.failure).map((gpu) => el("p", { textContent: `GPU ${gpu.number}: ${shown(gpu.failure)}` })),
    ...devices.flatMap((gpu) => gpu.strangers.map((holder) => el("p", { textContent: `GPU ${gpu.number}, outside of the queue: ${shown(holder)}` }))),
  ];
}

function profile({ name, profile: found }) {
  if (found === undefined) return [];
  if (!found) return [el("p", { className: "hint" }, "Nothing was measured of it yet. Measure it there with: ", el("code", { textContent: "tenbin profile" }))];
  const mark = (one) => (one.emulated ? " EMULATED" : "");
  return [
    table(shown(found.headline), ["figure", "value", "95 % interval", "meaning"],
      found.figures.map((one) => [`${one.name}${mark(one)}`, shown(one.value), one.interval, shown(one.meaning)])),
    ...found.unusual.map((sentence) => el("p", { textContent: `unusual: ${shown(sentence)}` })),
    ...pairs(found.pairs),
    el("details", { data: { node: name } }, el("summary", { textContent: `All coefficients of ${shown(name)}` }),
      table("Coefficients", ["probe", "quantity", "coefficient", "value", "95 % interval", "quality"],
        found.coefficients.map((one) => [one.probe, `${shown(one.quantity)}${mark(one)}`, one.name, one.value, one.interval, one.quality]))),
  ];
}

/** How many times longer a program (row) takes beside another one (column); the colour says the same again. */
function pairs(found) {
  if (!found) return [];
  const cell = (one) => (one ? el("span", { className: `heat heat-${Math.min(Math.max(Math.round((one.ratio - 1) * 10), 0), 5)}`, title: one.interval, textContent: one.ratio.toFixed(2) }) : "-");
  return [table("Run time of a program (row) beside another (column), times that alone; by their job profiles", ["program", ...found.programs.map(shown)],
    found.cells.map((row, at) => [shown(found.programs[at]), ...row.map(cell)]))];
}
