// Elements and text. Whatever users have written comes in by textContent only, and is made visible first.

/** Make an element; `properties` are set as they are, `data` and `aria` by name, children appended. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "aria") for (const [key, one] of Object.entries(value)) made.setAttribute(`aria-${key}`, one);
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "role" || name === "scope" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const HIDDEN = new RegExp(
  "[\\u0000-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]",
  "g",
);

function visible(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** Text of users on one line: control characters and marks that turn the direction are shown, not obeyed. */
export function shown(text) {
  return String(text).replace(HIDDEN, visible);
}

/** The same for several lines: line ends and tabulators stay. */
export function shownLines(text) {
  return String(text).replace(HIDDEN, (one) => (one === "\n" || one === "\t" ? one : visible(one)));
}

/** Replace the content of an element, only if its text differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function button(text, action, properties = {}) {
  const made = el("button", { type: "button", textContent: text, ...properties });
  made.addEventListener("click", action);
  return made;
}

/** The name of a node or pool, as a link to what is measured of it. */
export function nodeLink(name, properties = {}) {
  return el("a", { href: `#measured/${encodeURIComponent(name)}`, textContent: shown(name), title: `what is measured of ${shown(name)}`, ...properties });
}

/** The same for several names, with commas between; nothing known: a dash. */
export function nodeLinks(names, properties = {}) {
  if (!names.length) return ["-"];
  return names.flatMap((name, place) => (place ? [", ", nodeLink(name, properties)] : [nodeLink(name, properties)]));
}

/** Replace the content of a cell by names of nodes, only if they differ: the keyboard may be on one. */
export function setNodes(cell, names) {
  const text = names.join("\n");
  if (cell.dataset.nodes === text) return;
  cell.dataset.nodes = text;
  cell.replaceChildren(...nodeLinks(names, { tabIndex: -1 }));
}

/** Controls, which a narrow window has behind one button. */
export function behindButton(text, controls) {
  const place = el("div", { className: "controls", id: "controls" }, controls);
  const opener = button(text, () => {
    opener.setAttribute("aria-expanded", String(place.classList.toggle("open")));
  }, { className: "opener", aria: { expanded: "false", controls: "controls" } });
  return [opener, place];
}

/** A table of text for people; the first column heads each row. One that is too wide scrolls by itself. */
export function table(caption, columns, rows) {
  const head = el("tr", {}, columns.map((name) => el("th", { scope: "col", textContent: name })));
  const body = rows.map((row) =>
    el("tr", {}, row.map((cell, place) =>
      cell instanceof Node ? el("td", {}, cell)
        : el(place ? "td" : "th", { scope: place ? null : "row", textContent: cell }))));
  return el("div", { className: "wide", tabIndex: 0, role: "group", aria: { label: `${caption}, scrollable` } },
    el("table", { className: "plain" },
      el("caption", { textContent: caption }), el("thead", {}, head), el("tbody", {}, body)));
}

/** A term and what it is, for each pair that is known. */
export function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [
      el("dt", { textContent: name }),
      value instanceof Node ? el("dd", {}, value) : el("dd", { textContent: value }),
    ]));
}
