// Messages about what was done, questions before what cannot be undone, and the actions themselves.

import { change } from "./api.js";
import { button, el, shown } from "./dom.js";
import { count } from "./words.js";

const UNDO = { suspend: ["resume", "Undo: resume"], resume: ["suspend", "Undo: suspend"], cancel: ["retry", "Run again"] };
const DONE = { cancel: "told to end", suspend: "suspended", resume: "resumed", retry: "will run again", migrate: "told to move", priority: "in the new order" };
const KEPT = 4;

export function notice(text, ...more) {
  const place = document.getElementById("notices");
  const close = button("Close", () => made.remove());
  const made = el("p", {}, shown(text), " ", ...more, close);
  place.append(made);
  while (place.childElementCount > KEPT) place.firstElementChild.remove();
  return made;
}

/** Ask in a dialog; the answer is true, or the text of `input` if there is one, or null. */
function ask(question, yes, input = null) {
  const dialog = document.getElementById("question");
  return new Promise((resolve) => {
    const form = el("form", { method: "dialog" },
      el("p", { id: "asked", textContent: question }), input,
      el("p", {}, el("button", { value: "yes", textContent: yes }), " ",
        el("button", { value: "", textContent: "Leave as it is" })));
    dialog.replaceChildren(form);
    dialog.returnValue = "";
    dialog.onclose = () => resolve(dialog.returnValue === "yes" ? (input ? input.querySelector("input").value : true) : null);
    dialog.showModal();
  });
}

/** The button that takes a change back; null: there is none. */
function undoing(verb, found) {
  if (!found.ids.length) return null;
  if (verb === "priority") return button("Undo: priority as before", () => restore(found.before));
  return UNDO[verb] ? button(UNDO[verb][1], () => act(UNDO[verb][0], found.ids)) : null;
}

/** Give jobs the priorities that they had: their numbers by priority. */
async function restore(before) {
  try {
    for (const [priority, ids] of Object.entries(before)) await change("priority", ids, { priority: Number(priority) });
    notice("The priorities are as before.");
  } catch (error) {
    notice(`Not done: ${error.message}`);
  }
}

const many = (ids) => `${count(ids.length)} ${ids.length === 1 ? "job" : "jobs"}`;

/** Do something to jobs or arrays, after a question where it cannot be undone. True: it was done. */
export async function act(verb, ids) {
  const more = {};
  if (verb === "cancel") {
    const question = `Cancel ${many(ids)}? Of an array all members are meant. What runs gets SIGTERM, and SIGKILL after its grace.`;
    if (!await ask(question, "Cancel")) return false;
  } else if (verb === "migrate") {
    const field = el("label", {}, "To device or node ", el("input", { name: "to", required: true }));
    more.to = await ask(`Move ${many(ids)}: checkpoint here, restart there.`, "Move", field);
    if (!more.to) return false;
  } else if (verb === "priority") {
    const field = el("label", {}, "Priority ",
      el("input", { name: "priority", type: "number", step: 1, min: -1e6, max: 1e6, value: "0", required: true }));
    const found = await ask(`Priority of ${many(ids)}: the higher is first. A running job goes on.`, "Set", field);
    if (!found) return false;
    more.priority = Number(found);
  }
  try {
    const found = await change(verb, ids, more);
    const left = Object.entries(found.left_out);
    const why = left.length ? `; left out ${count(left.length)}: ${left[0][1]}` : "";
    const undo = undoing(verb, found);
    notice(`${many(found.ids)} ${DONE[verb]}${why}.`, undo, undo ? " " : null);
    return found.ids.length > 0;
  } catch (error) {
    notice(`Not done: ${error.message}`);
    return false;
  }
}
