// The views, chosen by the fragment of the address: #queue?text=fit, #job/7.

import { get } from "./api.js";
import { el, setText, shown } from "./dom.js";
import { connect, listen, live, noteClock } from "./live.js";
import { count, local } from "./words.js";

const VIEWS = {
  queue: ["Queue", () => import("./queue.js")],
  gantt: ["Gantt", () => import("./gantt.js")],
  nodes: ["Nodes", () => import("./nodes.js")],
  truth: ["Truth", () => import("./truth.js")],
  measured: ["Measured", () => import("./measured.js")],
  job: [null, () => import("./job.js")],
};
let leave = () => {};
let shownView = "";

/** A part of an address without its escapes; as it is if they are broken. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [name, ...rest] = path.split("/");
  return { name: VIEWS[name] ? name : "queue", rest: decoded(rest.join("/")), query: new URLSearchParams(query) };
}

async function show() {
  const { name, rest, query } = route();
  const [title, load] = VIEWS[name];
  const key = `${name}/${rest}`;
  const view = await load();
  if (route().name !== name || route().rest !== rest) return;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (key === shownView && view.changed?.(query)) return;
  leave();
  const main = document.getElementById("main");
  const first = shownView === "";
  shownView = key;
  const place = el("div", { className: `view ${name}` });
  main.replaceChildren(place);
  leave = view.show(place, { rest, query }) ?? (() => {});
  document.title = `tenbin: ${[title ?? "job", shown(rest)].filter(Boolean).join(" ")}`;
  if (!first) main.focus();
}

function state() {
  const waiting = (live.counts.waiting ?? 0) + (live.counts.held ?? 0);
  const jobs = `${count(live.counts.running ?? 0)} running, ${count(waiting)} waiting`;
  const { power, held } = live;
  const watts = power ? `, ${Math.round(power.allotted_w)} of ${Math.round(power.budget_w)} W allotted` : "";
  const trouble = live.lost || live.journal || live.trouble;
  const place = document.getElementById("state");
  place.className = trouble ? "trouble" : "";
  setText(place, trouble ? `! ${shown(trouble)}${live.lost ? "" : "; shown is what the journal has"}` : `live: ${jobs}${watts}${held ? `; ${shown(local(held))}` : ""}`);
}

async function begin() {
  document.getElementById("views").replaceChildren(
    ...Object.entries(VIEWS).filter(([, [title]]) => title)
      .map(([name, [title]]) => el("a", { href: `#${name}`, textContent: title })));
  const main = document.getElementById("main");
  try {
    const session = await get("/api/session");
    noteClock(session.now_s);
    document.querySelector("h1").title = `${session.host}: ${session.home}`;
  } catch (error) {
    main.replaceChildren(el("p", { className: "trouble", textContent: `! ${shown(error.message)}` }));
    return;
  }
  listen(state);
  connect();
  addEventListener("hashchange", show);
  await show();
}

begin();
