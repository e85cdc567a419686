// What is measured of a node: the pictures of its report. Their markup is the page's own, never a user's.

import { get } from "./api.js";
import { el, nodeLink, setText, shown } from "./dom.js";
import { listen } from "./live.js";
import { waits } from "./nodes.js";

const STYLE = "/static/picture.css";

export function show(place, { rest: node }) {
  if (!document.querySelector(`link[href="${STYLE}"]`)) document.head.append(el("link", { rel: "stylesheet", href: STYLE }));
  const told = el("p", { role: "status", className: "hint", textContent: "Loading ..." });
  const content = el("div");
  place.append(el("h2", { textContent: node ? `What is measured of ${shown(node)}` : "What is measured" }), told, content);
  const leaving = new AbortController();
  let complete = false;
  const draw = async () => {
    try {
      complete = await (node ? drawNode : listNodes)(node, told, content, leaving.signal);
    } catch (error) {
      if (error.name !== "AbortError") setText(told, shown(error.message));
    }
  };
  draw();
  const silence = node ? () => {} : listen((kind) => { if (kind === "state" && !complete) draw(); });
  return () => {
    silence();
    leaving.abort();
  };
}

async function listNodes(node, told, content, signal) {
  const { nodes, known } = await get("/api/nodes", {}, signal);
  setText(told, known ? "Choose a node." : waits());
  content.replaceChildren(el("ul", {}, nodes.map((one) => el("li", {}, nodeLink(one.name), one.profile ? ` ${shown(one.profile.headline)}` : ""))));
  return known;
}

async function drawNode(node, told, content, signal) {
  setText(told, "The pictures are drawn from the samples; the first time takes some seconds.");
  const { node: name, measured } = await get(`/api/measured/${encodeURIComponent(node)}`, {}, signal);
  if (!measured) {
    setText(told, `Nothing was measured of ${shown(name)} yet. Measure it there with: tenbin profile`);
    return;
  }
  const { headline, trust, emulated, sections } = measured;
  setText(told, `${emulated ? "EMULATED. " : ""}${shown(headline)}. ${shown(trust)}`);
  const ids = sections.map((one, place) => `section-${place}`);
  content.append(
    el("nav", { className: "sections", aria: { label: "Sections" } }, sections.map((one, place) => jump(one.title, ids[place]))),
    ...sections.map((one, place) => el("section", {},
      el("h3", { id: ids[place], tabIndex: -1, textContent: `${one.title}${one.emulated ? " (EMULATED)" : ""}` }),
      el("p", { className: "hint", textContent: one.explanation }),
      el("div", { className: "pictures" }, one.figures.map(picture)))));
}

/** A button, because the fragment of the address chooses the view. */
function jump(title, id) {
  const made = el("button", { type: "button", textContent: title });
  made.addEventListener("click", () => {
    const head = document.getElementById(id);
    head.scrollIntoView();
    head.focus({ preventScroll: true });
  });
  return made;
}

function picture(markup) {
  const made = document.adoptNode(new DOMParser().parseFromString(markup, "text/html").body.firstElementChild);
  if (made.classList.contains("wide")) Object.assign(made, { tabIndex: 0 }); // it scrolls
  return made;
}
