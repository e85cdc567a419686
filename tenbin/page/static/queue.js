// The queue: the server sends the rows of the window; the rest of the list is empty height.

import { get } from "./api.js";
import { behindButton, button, el, setNodes, setText, shown } from "./dom.js";
import { listen, live, noteClock, now } from "./live.js";
import { act, notice } from "./notices.js";
import { BEGUN, ENDED, GLYPHS, STAGES, clock, count, duration, local, progress, soonerWords, startWords } from "./words.js";

const NARROW = matchMedia("(max-width: 640px)"); // there a job has three lines, as page.css has it
const rowHeight = () => (NARROW.matches ? 84 : 44); // pixels
const AROUND = 20; // rows that are loaded above and below those that are seen
const MOST = 200;
const AGAIN_MS = 15_000; // the server has starts asked for only while somebody asks it
const COLUMNS = [
  ["id", "job"], ["name", "name"], ["user", "user"], ["stage", "stage"], ["cores", "cores"],
  ["place", "place"], ["since", "since"], ["queue", "what happens"],
];
const VERBS = [["cancel", "Cancel"], ["suspend", "Suspend"], ["resume", "Resume"], ["retry", "Run again"], ["migrate", "Move"],
  ["priority", "Priority"]];

let view = null;

/** The address has changed and the view stays: take what it says. True: done. */
export function changed(query) {
  if (!view) return false;
  view.take(query);
  return true;
}

export function show(place, { query }) {
  view = new Queue(place);
  view.take(query);
  return () => {
    view.end();
    view = null;
  };
}

class Queue {
  constructor(place) {
    this.selected = new Set();
    this.rows = [];
    this.start = 0;
    this.total = 0;
    this.current = 0; // place in the list of the row that the keyboard is on
    this.elements = new Map();
    this.loading = null;
    this.again = false;
    this.build(place);
    this.silence = listen((kind) => {
      if (kind === "changes") this.load();
      else if (kind === "reasons") this.refresh();
      this.showCounts();
    });
    this.loaded = Date.now();
    this.timer = setInterval(() => {
      this.refresh();
      if (Date.now() - this.loaded > AGAIN_MS) this.load();
    }, 1000);
    this.keys = (event) => this.key(event);
    addEventListener("keydown", this.keys);
    this.resized = new ResizeObserver(() => {
      this.place();
      this.scrolled();
    });
    this.resized.observe(this.scroller);
  }

  end() {
    this.silence();
    clearInterval(this.timer);
    removeEventListener("keydown", this.keys);
    this.resized.disconnect();
    this.loading?.abort();
  }

  // -- what is there -----------------------------------------------------------------------------------

  build(place) {
    this.search = el("input", { type: "search", aria: { label: "Search in number, name, user, place" }, placeholder: "search, or fit*" });
    this.search.addEventListener("input", () => this.set({ text: this.search.value }));
    this.stages = new Map(STAGES.map((stage) => {
      const box = el("input", { type: "checkbox", value: stage });
      const number = el("span", { className: "number" });
      box.addEventListener("change", () => this.set({ stages: this.chosenStages().join(",") }));
      return [stage, { box, number, label: el("label", { className: stage }, box, ` ${GLYPHS[stage]} ${stage} `, number) }];
    }));
    this.members = el("input", { type: "checkbox" });
    this.members.addEventListener("change", () => this.set({ members: this.members.checked ? "true" : "" }));
    this.actions = new Map(VERBS.map(([verb, text]) => [verb, button(text, () => this.act(verb), { disabled: true })]));
    this.told = el("span", { role: "status" });
    this.all = button("Select all", () => this.selectAll());
    this.none = button("Select none", () => this.select([]));
    this.array = el("p", { className: "array", hidden: true });
    const controls = [
      el("form", { className: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        this.search,
        el("fieldset", {}, el("legend", { textContent: "Stages" }), [...this.stages.values()].map((one) => one.label)),
        el("label", {}, this.members, " members of arrays")),
      el("div", { className: "actions", role: "group", aria: { label: "Actions on selected jobs" } },
        [...this.actions.values()], this.all, this.none)];
    place.append(
      el("div", { className: "head" }, el("h2", { textContent: "Queue" }), this.told), this.array,
      ...behindButton("Filter, sort, act", controls), this.table(),
      el("p", { className: "hint", textContent: "Keys: / search, ↑ ↓ go through the jobs, Space selects, Enter opens, Esc selects none." }));
  }

  table() {
    this.heads = new Map();
    const heads = COLUMNS.map(([sort, text]) => {
      const head = el("th", { scope: "col", className: `c-${sort}` }, button(text, () => this.sortBy(sort)));
      this.heads.set(sort, head);
      return head;
    });
    this.above = el("td", { colSpan: COLUMNS.length + 1 });
    this.below = el("td", { colSpan: COLUMNS.length + 1 });
    this.body = el("tbody");
    this.grid = el("table", { className: "jobs", aria: { label: "Jobs" } },
      el("thead", {}, el("tr", { aria: { rowindex: 1 } }, el("th", { scope: "col", className: "c-check" }, el("span", { className: "unseen", textContent: "selected" })), heads)),
      el("tbody", { className: "space", aria: { hidden: "true" } }, el("tr", {}, this.above)),
      this.body,
      el("tbody", { className: "space", aria: { hidden: "true" } }, el("tr", {}, this.below)));
    this.scroller = el("div", { className: "scroller", tabIndex: 0, role: "region", aria: { label: "Jobs, scrollable" } }, this.grid);
    this.scroller.addEventListener("scroll", () => requestAnimationFrame(() => this.scrolled()), { passive: true });
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.empty = el("div", { className: "empty", hidden: true });
    this.scroller.append(this.empty);
    return this.scroller;
  }

  // -- what is asked for -------------------------------------------------------------------------------

  take(query) {
    this.query = query;
    if (document.activeElement !== this.search) this.search.value = query.get("text") ?? "";
    const stages = (query.get("stages") ?? "").split(",");
    for (const [stage, one] of this.stages) one.box.checked = stages.includes(stage);
    this.members.checked = query.get("members") === "true";
    const array = query.get("array");
    this.array.hidden = !array;
    this.array.replaceChildren(`Members of array ${shown(array ?? "")}. `, el("a", { href: "#queue", textContent: "All jobs" }));
    const sort = query.get("sort") ?? "queue";
    for (const [name, head] of this.heads) {
      if (name === sort) head.setAttribute("aria-sort", query.get("down") ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.scroller.scrollTop = 0;
    this.current = 0;
    this.load(true);
  }

  asked() {
    const { query } = this;
    return {
      text: query.get("text"), stages: (query.get("stages") ?? "").split(",").filter((stage) => STAGES.includes(stage)),
      members: query.get("members"), array: query.get("array"), sort: query.get("sort"), down: query.get("down"),
    };
  }

  /** Put a part of what is asked for into the address. */
  set(part) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(part)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    history.replaceState(null, "", query.size ? `#queue?${query}` : "#queue");
    this.take(query);
  }

  chosenStages() {
    return [...this.stages].filter(([, one]) => one.box.checked).map(([stage]) => stage);
  }

  sortBy(sort) {
    const same = (this.query.get("sort") ?? "queue") === sort;
    this.set({ sort: sort === "queue" ? "" : sort, down: same && !this.query.get("down") ? "true" : "" });
  }

  // -- loading and drawing -----------------------------------------------------------------------------

  seen() {
    const first = Math.floor(this.scroller.scrollTop / rowHeight());
    return [first, first + Math.ceil(this.scroller.clientHeight / rowHeight())];
  }

  scrolled() {
    const [first, last] = this.seen();
    const end = this.start + this.rows.length;
    if (first < this.start || (last > end && end < this.total)) this.load();
  }

  async load(anew = false) {
    if (this.loading && !anew) {
      this.again = true;
      return;
    }
    this.loading?.abort();
    const mine = this.loading = new AbortController();
    this.loaded = Date.now();
    const [first, last] = this.seen();
    const start = Math.max(first - AROUND, 0);
    const size = Math.min(last - start + AROUND, MOST);
    try {
      const found = await get("/api/jobs", { ...this.asked(), start, count: size }, mine.signal);
      noteClock(found.now_s);
      for (const [job, reason] of Object.entries(found.reasons)) if (reason) live.reasons.set(Number(job), reason);
      Object.assign(this, { rows: found.rows, start: found.start, total: found.total });
      this.draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      setText(this.told, shown(error.message));
    }
    if (this.loading === mine) this.loading = null;
    if (this.again) {
      this.again = false;
      this.load();
    } else this.scrolled();
  }

  draw() {
    const before = this.elements;
    this.elements = new Map();
    const made = this.rows.map((job) => {
      const row = before.get(job.id) ?? newRow(job.id);
      this.elements.set(job.id, row);
      return row;
    });
    const focused = document.activeElement?.closest?.("tr[data-job]");
    if (made.length !== this.body.childElementCount || made.some((row, place) => this.body.children[place] !== row.element)) {
      this.body.replaceChildren(...made.map((row) => row.element));
      if (focused?.isConnected) focused.querySelector("a").focus({ preventScroll: true });
    }
    this.place();
    this.grid.setAttribute("aria-rowcount", String(this.total + 1));
    this.empty.hidden = this.total > 0;
    if (!this.total) this.empty.replaceChildren(...this.nothing());
    this.refresh();
    this.showCounts();
  }

  /** Keep the place of the rows that are not loaded. */
  place() {
    this.above.style.height = `${this.start * rowHeight()}px`;
    this.below.style.height = `${Math.max(this.total - this.start - this.rows.length, 0) * rowHeight()}px`;
  }

  /** Say why the list is empty, and what to do. */
  nothing() {
    if (["text", "stages", "array"].some((name) => this.query.get(name))) {
      return [el("p", {}, "No job is like this. ", el("a", { href: "#queue", textContent: "Show all jobs" }))];
    }
    return [el("p", { textContent: "No jobs yet. The first one, typed in a shell:" }), el("pre", { textContent: "tenbin submit -- echo hello" })];
  }

  /** Write what changes with time, too. */
  refresh() {
    const at = now();
    this.rows.forEach((job, place) => {
      const row = this.elements.get(job.id);
      if (!row) return;
      const here = this.start + place;
      row.element.setAttribute("aria-rowindex", String(here + 2));
      row.link.tabIndex = here === this.current ? 0 : -1;
      row.box.checked = this.selected.has(job.id);
      row.element.classList.toggle("selected", row.box.checked);
      fill(row, job, at);
    });
    if (this.current < this.start || this.current >= this.start + this.rows.length) {
      const first = this.elements.get(this.rows[0]?.id);
      if (first) first.link.tabIndex = 0;
    }
    const some = this.selected.size;
    for (const one of this.actions.values()) one.disabled = !some;
    this.none.disabled = !some;
    setText(this.all, `Select all ${count(this.total)}`);
    setText(this.told, some ? `${count(some)} selected` : `${count(this.total)} listed`);
  }

  showCounts() {
    for (const [stage, one] of this.stages) setText(one.number, count(live.counts[stage] ?? 0));
  }

  // -- what is done ------------------------------------------------------------------------------------

  select(ids) {
    this.selected = new Set(ids);
    this.refresh();
  }

  toggle(job) {
    if (!this.selected.delete(job)) this.selected.add(job);
    this.refresh();
  }

  async selectAll() {
    try {
      this.select((await get("/api/ids", this.asked())).ids);
    } catch (error) {
      notice(error.message);
    }
  }

  async act(verb) {
    if (await act(verb, [...this.selected])) this.select([]);
    this.load();
  }

  clicked(event) {
    const row = event.target.closest("tr[data-job]");
    if (!row || event.target.closest("a")) return;
    if (event.target.matches("input")) event.stopPropagation();
    this.toggle(Number(row.dataset.job));
  }

  key(event) {
    const target = event.target;
    if (document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && !target.matches("input")) {
      event.preventDefault();
      this.search.focus();
    } else if (event.key === "Escape") {
      this.select([]);
    } else if (["ArrowDown", "ArrowUp"].includes(event.key) && target.closest(".scroller, [type=search]")) {
      event.preventDefault();
      this.move(target.closest("tr[data-job]") ? (event.key === "ArrowDown" ? 1 : -1) : 0);
    } else if (event.key === " " && target.closest("tr[data-job] a")) {
      event.preventDefault();
      this.toggle(Number(target.closest("tr[data-job]").dataset.job));
    }
  }

  /** Put the keyboard on a row near the current one; one that is not loaded yet comes first. */
  async move(by) {
    this.current = Math.min(Math.max(this.current + by, 0), this.total - 1);
    const top = this.current * rowHeight(), room = this.scroller.clientHeight - 2 * rowHeight();
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
    if (!this.rows[this.current - this.start]) await this.load(true);
    this.refresh();
    this.elements.get(this.rows[this.current - this.start]?.id)?.link.focus({ preventScroll: true });
  }
}

function newRow(id) {
  const box = el("input", { type: "checkbox", tabIndex: -1 });
  const link = el("a", { tabIndex: -1 });
  const cells = Object.fromEntries(["name", "user", "stage", "cores", "place", "since", "what"].map((name) => [name, el("td", { className: `c-${name}` })]));
  cells.bar = el("progress", { max: 1, hidden: true });
  cells.words = el("span", { className: "what" });
  cells.what.append(cells.bar, cells.words);
  const element = el("tr", { data: { job: id } }, el("td", { className: "c-check" }, box), el("th", { scope: "row" }, link),
    cells.name, cells.user, cells.stage, cells.cores, cells.place, cells.since, cells.what);
  return { element, box, link, cells };
}

function fill(row, job, at) {
  const { cells, link } = row;
  setText(link, job.label);
  link.href = job.members ? `#queue?array=${job.id}` : `#job/${job.id}`;
  row.box.setAttribute("aria-label", `select job ${job.label}`);
  write(cells.name, job.name);
  write(cells.user, job.user);
  setText(cells.stage, `${GLYPHS[job.stage]} ${job.stage}`);
  row.element.dataset.stage = job.stage;
  setText(cells.cores, job.gpus_asked ? `${job.cores} + ${job.gpus_asked} GPU` : String(job.cores));
  setNodes(cells.place, job.lane);
  const since = job.end_s ?? (BEGUN.includes(job.stage) ? job.start_s : null) ?? job.submit_s;
  setText(cells.since, duration(at - since));
  const { share, words } = what(job, at);
  cells.bar.hidden = share === null;
  if (share !== null) {
    cells.bar.value = share;
    cells.bar.setAttribute("aria-label", `progress of job ${job.label}`);
  }
  write(cells.words, words);
}

function write(cell, text) {
  const safe = shown(text);
  setText(cell, safe);
  if (cell.title !== safe) cell.title = safe;
}

/** Say in one sentence what happens to a job. */
export function what(job, at) {
  if (job.members) {
    const counts = Object.entries(job.stages).map(([stage, number]) => `${stage} ${count(number)}`).join(", ");
    const next = startWords(live.reasons.get(job.asks), at);
    return { share: null, words: next ? `${counts}; the next ${next}` : counts };
  }
  if (job.stage === "running") return progress(job, at);
  if (ENDED.includes(job.stage)) {
    const took = job.start_s === null ? "never started" : `took ${duration(job.end_s - job.start_s)}`;
    return { share: null, words: `${job.trouble ? `${local(job.trouble)}; ` : ""}${took}, ended ${clock(job.end_s)}` };
  }
  const reason = live.reasons.get(job.asks ?? job.id);
  const unknown = job.stage === "stopping" ? "writes its checkpoint, or ends" : "the coordinator is being asked why";
  const [sooner] = soonerWords(reason, at);
  const words = [startWords(reason, at), local(reason?.why || job.trouble || unknown), sooner ? `sooner ${sooner}` : ""];
  return { share: null, words: words.filter(Boolean).join("; ") };
}
