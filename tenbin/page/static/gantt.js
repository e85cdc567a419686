// Past, now and planned on one axis: a canvas, and beside it a list that the keyboard reaches.

import { get } from "./api.js";
import { behindButton, button, el, nodeLink, setText, shown, table } from "./dom.js";
import { listen, noteClock, now } from "./live.js";
import { clock, count, duration } from "./words.js";

const LEFT = matchMedia("(max-width: 640px)").matches ? 76 : 130, TOP = 26, ROW = 20, GAP = 6, POWER = 90; // pixels
const AGAIN_MS = 15_000; // the server has starts asked for only while somebody asks it
const LEAST_S = 2, MOST_S = 400 * 86400;
const WORDS = {
  running: "runs", planned: "planned", several: "several jobs", done: "done", failed: "failed", killed: "killed", cancelled: "cancelled",
  suspended: "paused", checkpointed: "left with a checkpoint", lost: "attempt lost", "taken back": "taken back",
};
const MARKS = { running: "▶", planned: "…", done: "✓", failed: "✗", killed: "☠", cancelled: "⊘", suspended: "‖", checkpointed: "→", lost: "✗", "taken back": "←" };
const FIELDS = ["lane", "row", "start_s", "end_s", "how", "jobs", "job", "label", "expected_s", "region"]; // of a rectangle
const BAD = ["failed", "killed", "lost"];

export function show(place) {
  const view = new Gantt(place);
  return () => view.end();
}

class Gantt {
  constructor(place) {
    this.span = 3600;
    this.until = now() + this.span * 0.4;
    this.follow = true; // the window moves with the time
    this.top = 0;
    this.found = { lanes: [], rectangles: [], jobs: [], total: 0, left_out: 0, now_s: now() };
    this.build(place);
    this.silence = listen((kind) => { if (kind !== "state") this.ask(); });
    this.timer = setInterval(() => this.tick(), 1000);
    this.resized = new ResizeObserver(() => this.fit());
    this.resized.observe(this.canvas);
    this.colours = matchMedia("(prefers-color-scheme: dark)");
    this.recolour = () => this.draw();
    this.colours.addEventListener("change", this.recolour);
    this.fit();
    this.ask();
  }

  end() {
    this.ended = true;
    this.silence();
    clearInterval(this.timer);
    this.resized.disconnect();
    this.colours.removeEventListener("change", this.recolour);
  }

  build(place) {
    this.canvas = el("canvas", { tabIndex: 0, role: "application", aria: { label: "Gantt chart: arrow keys move, plus and minus zoom, Home shows now; the list beside it has the same jobs" } });
    this.canvas.textContent = "The list beside has the same jobs.";
    this.told = el("p", { role: "status", className: "hint" });
    this.tip = el("p", { className: "tip", textContent: "Point at a job, or choose one in the list." });
    this.power = el("div", { className: "power" });
    this.list = el("tbody");
    const spans = [["10 min", 600], ["1 h", 3600], ["6 h", 21600], ["1 day", 86400], ["7 days", 604800]];
    place.append(
      el("div", { className: "head" }, el("h2", { textContent: "Gantt" }), this.told),
      ...behindButton("Choose the time", [el("div", { className: "actions", role: "group", aria: { label: "Window" } },
        spans.map(([text, seconds]) => button(text, () => this.zoomTo(seconds))),
        button("−", () => this.zoom(2), { ariaLabel: "zoom out" }), button("+", () => this.zoom(0.5), { ariaLabel: "zoom in" }),
        button("◀", () => this.pan(-0.5), { ariaLabel: "earlier" }), button("▶", () => this.pan(0.5), { ariaLabel: "later" }),
        button("Now", () => this.home()))]),
      el("div", { className: "chartAndList" },
        el("div", { className: "drawn" }, this.canvas, this.tip, this.power),
        el("div", { className: "scroller", tabIndex: 0, role: "region", aria: { label: "Jobs of the window, scrollable" } },
          el("table", { className: "plain", aria: { label: "Jobs of the window: what runs, what is planned, what ended" } },
            el("thead", {}, el("tr", {}, ["job", "where", "from", "to", "what"].map((text) => el("th", { scope: "col", textContent: text })))),
            this.list))));
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
  }

  // -- the window --------------------------------------------------------------------------------------

  get from() {
    return this.until - this.span;
  }

  zoom(by, at = 0.5) {
    const fixed = this.from + this.span * at;
    this.span = Math.min(Math.max(this.span * by, LEAST_S), MOST_S);
    this.until = fixed + this.span * (1 - at);
    this.moved();
  }

  zoomTo(seconds) {
    this.span = seconds;
    this.home();
  }

  pan(by) {
    this.until += this.span * by;
    this.follow = false;
    this.moved();
  }

  home() {
    this.until = now() + this.span * 0.4;
    this.follow = true;
    this.moved();
  }

  scroll(by) {
    this.top = Math.min(Math.max(this.top + by, 0), Math.max(this.height + (this.found.power ? POWER : 0) - this.canvas.clientHeight + TOP, 0));
    this.moved(false);
  }

  /** Draw at once what is there, at the new place; ask for what is missing a little later. */
  moved(ask = true) {
    if (!this.frame) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }
    if (!ask) return;
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.ask(), 120);
  }

  tick() {
    if (this.follow) this.until = now() + this.span * 0.4;
    this.draw();
    if (this.follow && (this.span < 120 || Date.now() - this.asked > AGAIN_MS)) this.ask();
  }

  async ask() {
    if (this.asking) {
      this.again = true;
      return;
    }
    this.asking = true;
    this.asked = Date.now();
    const wide = this.canvas.clientWidth - LEFT;
    try {
      // The window and as much on both sides, so that panning shows something at once.
      const around = this.span / 2;
      const found = await get("/api/gantt", { from_s: String(Math.max(this.from - around, 0)), until_s: String(this.until + around), width: String(Math.max(2 * Math.round(wide), 50)) });
      noteClock(found.now_s);
      if (this.ended) return;
      found.rectangles = found.rectangles.map((one) => Object.fromEntries(FIELDS.map((name, place) => [name, one[place]])));
      this.found = found;
      this.layOut();
      this.draw();
      this.showList();
      this.showPower();
    } catch (error) {
      setText(this.told, shown(error.message));
    } finally {
      this.asking = false;
    }
    if (this.again) {
      this.again = false;
      setTimeout(() => this.ask(), 200);
    }
  }

  layOut() {
    this.tops = new Map();
    let top = TOP;
    for (const lane of this.found.lanes) {
      this.tops.set(lane.name, top);
      top += lane.rows * ROW + GAP;
    }
    this.height = top;
  }

  // -- drawing -----------------------------------------------------------------------------------------

  fit() {
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.canvas.clientWidth * ratio);
    this.canvas.height = Math.round(this.canvas.clientHeight * ratio);
    this.draw();
  }

  x(at) {
    return LEFT + ((at - this.from) / this.span) * (this.canvas.clientWidth - LEFT);
  }

  draw() {
    const paint = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1, wide = this.canvas.clientWidth, high = this.canvas.clientHeight;
    const style = getComputedStyle(this.canvas);
    this.ink = (name) => style.getPropertyValue(`--${name}`);
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    paint.fillStyle = this.ink("card");
    paint.fillRect(0, 0, wide, high);
    paint.font = '12px system-ui, "DejaVu Sans", sans-serif';
    paint.textBaseline = "middle";
    this.drawLanes(paint, wide, high);
    this.drawn = [];
    paint.save();
    paint.beginPath();
    paint.rect(LEFT, TOP, wide - LEFT, high - TOP);
    paint.clip();
    const at = now();
    for (const one of this.found.rectangles) this.drawOne(paint, one, at, wide, high);
    paint.restore();
    if (this.found.power) this.drawPower(paint, wide, high);
    this.drawAxis(paint, at, wide, high);
    const more = this.found.left_out ? `; ${count(this.found.left_out)} more lanes are not shown` : "";
    setText(this.told, `${clock(this.from)} to ${clock(this.until)}${more}`);
  }

  drawLanes(paint, wide, high) {
    for (const lane of this.found.lanes) {
      const top = this.tops.get(lane.name) - this.top, bottom = top + lane.rows * ROW;
      if (bottom < TOP || top > high) continue;
      paint.fillStyle = this.ink("back");
      paint.fillRect(LEFT, top, wide - LEFT, bottom - top);
      paint.fillStyle = this.ink(lane.trouble ? "bad" : "ink");
      paint.textAlign = "right";
      paint.fillText(shown(lane.trouble ? `! ${lane.name}` : lane.name), LEFT - 8, Math.max(top + ROW / 2, TOP + 8), LEFT - 14);
      if (lane.regions.length && lane.rows > 1) {
        paint.fillStyle = this.ink("soft");
        paint.fillText(shown(`regions ${lane.regions.join(", ")}`), LEFT - 8, Math.max(top + ROW * 1.5, TOP + 8 + ROW), LEFT - 14);
      }
    }
  }

  drawOne(paint, one, at, wide, high) {
    const top = this.tops.get(one.lane) - this.top + one.row * ROW + 1;
    if (!(top < high && top + ROW > TOP)) return;
    const end = one.end_s ?? (one.how === "running" ? Math.max(at, one.start_s) : this.until + this.span);
    const left = this.x(one.start_s), right = Math.max(this.x(end), left + 1);
    const expected = one.expected_s === null ? right : Math.max(this.x(one.expected_s), right);
    if (expected < LEFT || left > wide) return;
    const box = [Math.max(left, LEFT - 2), top, Math.min(right, wide + 2) - Math.max(left, LEFT - 2), ROW - 3];
    this.drawn.push([left, expected, top, one]);
    paint.setLineDash([]);
    if (expected > right) { // the rest of its run time, as expected
      paint.strokeStyle = this.ink("run");
      paint.setLineDash([3, 3]);
      paint.strokeRect(Math.min(right, wide), top + 0.5, Math.min(expected, wide + 2) - right, ROW - 4);
    }
    if (one.how === "planned") {
      paint.strokeStyle = this.ink("soft");
      paint.setLineDash([5, 3]);
      paint.strokeRect(box[0] + 0.5, box[1] + 0.5, Math.max(box[2] - 1, 1), box[3] - 1);
    } else {
      paint.fillStyle = this.ink(one.how === "running" ? "run" : BAD.includes(one.how) ? "lost" : one.how === "several" ? "soft" : "past");
      paint.fillRect(...box);
      if (BAD.includes(one.how)) this.hatch(paint, box);
    }
    paint.setLineDash([]);
    this.label(paint, one, box);
  }

  hatch(paint, [left, top, wide, high]) {
    if (wide < 4) return;
    paint.save();
    paint.beginPath();
    paint.rect(left, top, wide, high);
    paint.clip();
    paint.strokeStyle = this.ink("card");
    paint.beginPath();
    for (let x = left - high; x < left + wide; x += 7) {
      paint.moveTo(x, top + high);
      paint.lineTo(x + high, top);
    }
    paint.stroke();
    paint.restore();
  }

  label(paint, one, [left, top, wide, high]) {
    const text = one.jobs > 1 ? `${count(one.jobs)} jobs` : `${MARKS[one.how] ?? ""} ${one.label}`;
    if (wide < 12 || paint.measureText(text).width > wide - 6) return;
    paint.textAlign = "left";
    const size = paint.measureText(text).width + 4;
    if (BAD.includes(one.how)) { // readable on the hatching
      paint.fillStyle = this.ink("lost");
      paint.fillRect(left, top, size + 2, high);
    }
    paint.fillStyle = this.ink(one.how === "planned" ? "ink" : "on");
    paint.fillText(text, left + 3, top + high / 2 + 1);
  }

  /** Power on the axis of the time, below the lanes: drawn as an area, allotted and the budget as lines. */
  drawPower(paint, wide, high) {
    const { budget_w: budget, edges_s: edges, allotted_w: allotted, drawn_w: drawn } = this.found.power;
    const bottom = high - 4, top = high - POWER, most = Math.max(budget, ...(allotted ?? []), ...(drawn ?? []), 1) * 1.05;
    const y = (watts) => bottom - (watts / most) * (bottom - top - 14);
    paint.fillStyle = this.ink("card");
    paint.fillRect(0, top - GAP, wide, POWER + GAP);
    paint.save();
    paint.beginPath();
    paint.rect(LEFT, top, wide - LEFT, POWER);
    paint.clip();
    if (drawn) {
      paint.fillStyle = this.ink("past");
      drawn.forEach((watts, step) => paint.fillRect(this.x(edges[step]), y(watts), Math.max(this.x(edges[step + 1]) - this.x(edges[step]), 1) + 0.5, bottom - y(watts)));
    }
    const line = (colour, dash, points) => {
      paint.strokeStyle = this.ink(colour);
      paint.lineWidth = 2;
      paint.setLineDash(dash);
      paint.beginPath();
      points.forEach(([x, watts], place) => (place ? paint.lineTo(x, y(watts)) : paint.moveTo(x, y(watts))));
      paint.stroke();
      paint.lineWidth = 1;
      paint.setLineDash([]);
    };
    if (allotted) line("run", [], allotted.flatMap((watts, step) => [[this.x(edges[step]), watts], [this.x(edges[step + 1]), watts]]));
    line("bad", [6, 4], [[LEFT, budget], [wide, budget]]);
    paint.restore();
    paint.fillStyle = this.ink("ink");
    paint.textAlign = "right";
    paint.fillText("power", LEFT - 8, top + 8);
    paint.fillStyle = this.ink("bad");
    paint.fillText(`budget ${Math.round(budget)} W`, LEFT - 8, Math.max(y(budget), top + 22), LEFT - 14);
  }

  drawAxis(paint, at, wide, high) {
    paint.fillStyle = this.ink("card");
    paint.fillRect(0, 0, wide, TOP);
    const steps = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000];
    const step = steps.find((one) => (one / this.span) * (wide - LEFT) > 90) ?? 31536000;
    const shift = new Date(at * 1000).getTimezoneOffset() * 60;
    paint.textAlign = "center";
    for (let mark = Math.ceil((this.from - shift) / step) * step + shift; mark < this.until; mark += step) {
      paint.fillStyle = this.ink("line");
      paint.fillRect(this.x(mark), TOP - 5, 1, high);
      paint.fillStyle = this.ink("soft");
      const text = step >= 86400 ? clock(mark, false).slice(0, 10) : clock(mark, step < 60).slice(-8).trim();
      paint.fillText(text, Math.min(this.x(mark), wide - paint.measureText(text).width / 2 - 2), 11);
    }
    paint.fillStyle = this.ink("bad");
    if (this.x(at) >= LEFT) {
      paint.fillRect(this.x(at), TOP - 8, 2, high);
      paint.fillText("now", this.x(at), TOP - 6);
    }
  }

  // -- what points at it -------------------------------------------------------------------------------

  at(event) {
    const { offsetX: x, offsetY: y } = event;
    if (this.found.power && y > this.canvas.clientHeight - POWER - GAP) return null;
    return this.drawn?.findLast(([left, right, top]) => x >= left - 1 && x <= right + 1 && y >= top && y < top + ROW)?.[3] ?? null;
  }

  wheel(event) {
    event.preventDefault();
    if (event.shiftKey) this.scroll(event.deltaY);
    else this.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max((event.offsetX - LEFT) / (this.canvas.clientWidth - LEFT), 0), 1));
  }

  key(event) {
    const actions = {
      ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), ArrowUp: () => this.scroll(-ROW), ArrowDown: () => this.scroll(ROW),
      "+": () => this.zoom(0.8), "=": () => this.zoom(0.8), "-": () => this.zoom(1.25), Home: () => this.home(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.dragged = { x: event.clientX, y: event.clientY, until: this.until, top: this.top, far: false };
  }

  point(event) {
    if (!this.dragged) {
      const one = this.at(event), lane = this.laneAt(event);
      this.canvas.classList.toggle("pointed", Boolean(one ?? lane));
      setText(this.tip, lane ? `What is measured of ${shown(lane.name)}` : one ? this.words(one) : "Point at a job, or choose one in the list.");
      return;
    }
    const { x, y, until, top } = this.dragged;
    if (Math.abs(event.clientX - x) + Math.abs(event.clientY - y) > 4) this.dragged.far = true;
    this.until = until - ((event.clientX - x) / (this.canvas.clientWidth - LEFT)) * this.span;
    this.top = top;
    this.scroll(y - event.clientY);
    if (this.dragged.far) this.follow = false;
    this.moved();
  }

  /** The lane whose name is under the pointer. */
  laneAt(event) {
    const { offsetX: x, offsetY: y } = event;
    return x > LEFT - 8 ? undefined : this.found.lanes.find((lane) => {
      const top = this.tops.get(lane.name) - this.top;
      return y >= Math.max(top, TOP) && y < top + lane.rows * ROW;
    });
  }

  release(event) {
    const far = this.dragged?.far;
    this.dragged = null;
    const lane = far ? undefined : this.laneAt(event);
    if (lane) {
      location.hash = nodeLink(lane.name).hash;
      return;
    }
    const one = far ? null : this.at(event);
    if (one?.job) location.hash = `#job/${one.job}`;
    else if (one) { // several: look closer
      this.span = Math.max((one.end_s - one.start_s) * 2, LEAST_S);
      this.until = one.end_s + this.span / 4;
      this.follow = false;
      this.moved();
    }
  }

  words(one) {
    const length = one.end_s === null ? "" : `, ${duration(one.end_s - one.start_s)}`;
    const expected = one.expected_s === null ? "" : `, should end ${clock(one.expected_s)}`;
    const who = one.jobs > 1 ? `${count(one.jobs)} jobs` : `job ${one.label}`;
    const region = one.region ? `, region ${shown(one.region)}` : "";
    return `${who} in ${shown(one.lane)}${region}: ${WORDS[one.how] ?? one.how}, from ${clock(one.start_s)}${length}${expected}`;
  }

  /** The same as a sentence and a table, of the steps that are in the window. */
  showPower() {
    const { power } = this.found;
    this.power.hidden = !power;
    if (!power) return;
    const open = this.power.querySelector("details")?.open ?? false;
    const { budget_w: budget, edges_s: edges, allotted_w: allotted, drawn_w: drawn, emulated } = power;
    const mark = emulated ? " (EMULATED)" : "", last = edges.length - 2;
    const watts = (values, step) => (values ? `${Math.round(values[step])} W` : "-");
    const rows = edges.slice(0, -1).map((from, step) => [clock(from), watts(allotted, step), watts(drawn, step)])
      .filter((_, step) => edges[step + 1] > this.from && edges[step] < this.until);
    this.power.replaceChildren(
      el("p", { className: "hint", textContent: `Power: budget ${Math.round(budget)} W (dashed); allotted ${watts(allotted, last)} (line); drawn by jobs ${watts(drawn, last)}${mark} (area).${power.too_many ? " Too many jobs to read their meters: zoom in." : ""}` }),
      el("details", { open }, el("summary", { textContent: "Power as a table" }),
        table("Mean power of each step", ["from", "allotted", `drawn by jobs${mark}`], rows.slice(-100))));
  }

  showList() {
    const focused = document.activeElement?.closest?.("tr[data-job]")?.dataset.job;
    this.list.replaceChildren(...this.found.jobs.map((one) => el("tr", { data: { job: one.job } },
      el("th", { scope: "row" }, el("a", { href: `#job/${one.job}`, textContent: one.label }), ` ${shown(one.name)}`),
      el("td", {}, nodeLink(one.lane), one.region ? `, region ${shown(one.region)}` : ""), el("td", { textContent: clock(one.start_s) }),
      el("td", { textContent: one.end_s !== null ? clock(one.end_s) : one.expected_s ? `about ${clock(one.expected_s)}` : "-" }),
      el("td", { textContent: `${MARKS[one.how] ?? ""} ${WORDS[one.how] ?? one.how}` }))));
    if (focused) this.list.querySelector(`tr[data-job="${Number(focused)}"] a`)?.focus({ preventScroll: true });
  }
}
