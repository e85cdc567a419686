// One job: command, story, output as it comes, use over time, predictions beside outcomes.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { behindButton, button, el, facts, nodeLinks, setText, shown, shownLines, table } from "./dom.js";
import { listen, live, noteClock, now } from "./live.js";
import { act } from "./notices.js";
import { what } from "./queue.js";
import { BEGUN, ENDED, GLYPHS, clock, coreNumbers, duration, gpuMemory, local, number, percent, soonerWords } from "./words.js";

const MOST_TEXT = 64 * 1024; // characters of output that are kept
const WHILE = { cancel: (job) => !ENDED.includes(job.stage), suspend: (job) => !ENDED.includes(job.stage) && job.stage !== "suspended",
  resume: (job) => job.stage === "suspended", retry: (job) => ENDED.includes(job.stage) && job.stage !== "done", migrate: (job) => job.stage === "running",
  priority: (job) => !ENDED.includes(job.stage) };
const TEXTS = { cancel: "Cancel", suspend: "Suspend", resume: "Resume", retry: "Run again", migrate: "Move", priority: "Priority" };

export function show(place, { rest }) {
  const view = new JobView(place, Number(rest));
  return () => view.end();
}

/** A command as a shell takes it. */
function quoted(words) {
  return words.map((word) => {
    if (/^[\w@%+=:,./-]+$/.test(word)) return word;
    const plain = word.includes("'") && !/["$`\\!]/.test(word);
    return plain ? `"${word}"` : `'${word.replaceAll("'", "'\"'\"'")}'`;
  }).join(" ");
}

class JobView {
  constructor(place, id) {
    this.id = id;
    this.stream = "stdout";
    this.ended = false;
    this.title = el("h2", { textContent: `Job ${id}` });
    this.stage = el("p", { className: "stage" });
    this.bar = el("progress", { max: 1, hidden: true, aria: { label: "progress" } });
    this.words = el("span");
    this.sooner = el("ul", { hidden: true, aria: { label: "What would start it sooner, if it is submitted again so" } });
    this.actions = new Map(Object.entries(TEXTS).map(([verb, text]) => [verb, button(text, () => act(verb, [id]))]));
    this.command = el("pre", { tabIndex: 0, className: "command", role: "region", aria: { label: "command" } });
    this.about = el("div");
    this.story = el("div");
    this.text = el("pre", { className: "output", tabIndex: 0, role: "region", aria: { label: "output" } });
    this.skipped = el("p", { className: "hint" });
    this.streams = new Map(["stdout", "stderr"].map((stream) =>
      [stream, button(stream, () => this.choose(stream), { ariaPressed: String(stream === this.stream) })]));
    this.use = el("div");
    this.predictions = el("div");
    place.append(this.title, this.stage, el("p", {}, this.bar, this.words), this.sooner,
      ...behindButton("Act on this job", [el("div", { className: "actions", role: "group", aria: { label: "Actions" } }, [...this.actions.values()])]),
      el("div", { className: "beside" },
        el("div", {}, el("h3", { textContent: "Output" }), el("div", { className: "actions" }, [...this.streams.values()]), this.skipped, this.text),
        el("div", {}, el("h3", { textContent: "Command" }), this.command, el("h3", { textContent: "Facts" }), this.about)),
      el("h3", { textContent: "Use over time" }), this.use,
      el("h3", { textContent: "Story" }), this.story, el("h3", { textContent: "Predictions" }), this.predictions);
    this.silence = listen((kind, data) => {
      if (kind === "changes" && (data.jobs === null || data.jobs.includes(id))) this.load();
      if (kind === "reasons") this.tick();
    });
    this.choose("stdout");
    this.load();
    this.timer = setInterval(() => this.tick(), 1000);
    this.beats = 0;
  }

  end() {
    this.ended = true;
    this.silence();
    clearInterval(this.timer);
  }

  async load() {
    let job;
    try {
      job = await get(`/api/jobs/${this.id}`);
    } catch (error) {
      setText(this.stage, shown(error.message));
      return;
    }
    if (this.ended) return;
    if (job.array === true) {
      location.hash = `#queue?array=${this.id}`;
      return;
    }
    noteClock(job.now_s);
    if (job.reason) live.reasons.set(this.id, job.reason);
    const before = this.job?.stage;
    this.job = job;
    this.draw(job);
    if (before !== job.stage && ["failed", "killed"].includes(job.stage)) this.choose("stderr", "stdout");
    this.tick();
    this.readOutput();
    this.readSamples();
  }

  draw(job) {
    setText(this.title, `Job ${job.label}: ${shown(job.name)}`);
    document.title = `tenbin: job ${job.label}`;
    for (const [verb, one] of this.actions) one.disabled = !WHILE[verb](job);
    const usage = job.usage;
    setText(this.command, shownLines(quoted(job.command)));
    this.about.replaceChildren(facts([
      ["folder", shown(job.folder)], ["user", shown(job.user)],
      ["array", job.array === null ? null : el("a", { href: `#queue?array=${job.array}`, textContent: `member ${job.array_index} of array ${job.array}` })],
      ["cores", `${job.cores}${job.cpus.length ? ` (${coreNumbers(job.cpus)})` : ""}`],
      ["place", el("span", {}, nodeLinks(job.lane))], ["priority", job.priority || null],
      ["submitted", clock(job.submit_s)], ["started", job.start_s === null ? null : clock(job.start_s)],
      ["ended", job.end_s === null ? null : clock(job.end_s)], ["exit code", job.code],
      ["time limit", job.time_limit_s === null ? null : duration(job.time_limit_s)],
      ["expected", job.expected ? expectedWords(job.expected) : null],
      ["attempts", job.attempt || null], ["moves", job.migrations || null], ["pauses", job.preemptions || null],
      ["processor time", usage ? duration(usage.user_s + usage.system_s) : null],
      ["memory", usage?.peak_memory_mb ? `${number(usage.peak_memory_mb)} MB at most` : null],
      ["energy", usage?.energy_j != null ? `${number(usage.energy_j)} J${usage.emulated ? " (EMULATED)" : ""}` : null],
      ["GPUs now", job.gpus.map((gpu) => `${gpu.number}: ${percent(gpu.share) || "-"}, ${gpuMemory(gpu)}`).join("; ")],
      ["GPUs", usage?.peak_gpu_memory_mb != null ? gpuWords(usage, job.gpus_asked) : null],
      ["output in", shown(job.stdout)],
    ]));
    this.story.replaceChildren(table("What happened", ["time", "what", "detail"],
      job.history.map((event) => [clock(event.at_s), event.what, shown(local(event.detail))])));
    this.predictions.replaceChildren(job.predictions.length ? table("Predicted beside measured",
      ["kind", "where", "attempt", "predicted", "measured", "error"], job.predictions.map(predictionRow))
      : el("p", { textContent: "Nothing was predicted of this job." }));
  }

  tick() {
    const { job } = this;
    if (!job) {
      if (++this.beats % 5 === 0) this.load(); // the first time there was no answer
      return;
    }
    const { share, words } = what(job, now());
    setText(this.stage, `${GLYPHS[job.stage]} ${job.stage}`);
    setText(this.words, shown(words));
    this.bar.hidden = share === null;
    if (share !== null) this.bar.value = share;
    this.drawSooner(job);
    this.beats += 1;
    const anew = job.asks !== null || (job.gpus.length && BEGUN.includes(job.stage));
    if (anew && this.beats % 15 === 0) this.load(); // so that the start, or the GPUs, are asked for again
    if (!BEGUN.includes(job.stage)) return;
    this.readOutput();
    if (this.beats % 5 === 0) this.readSamples();
  }

  drawSooner(job) {
    const told = job.stage === "waiting" ? soonerWords(live.reasons.get(this.id), now()) : [];
    this.sooner.hidden = !told.length;
    if (this.sooner.childElementCount !== told.length) this.sooner.replaceChildren(...told.map(() => el("li")));
    told.forEach((words, place) => setText(this.sooner.children[place], shown(`sooner, if submitted again ${words}`)));
  }

  /** Show a stream; if nothing is written on it, the `other` one. */
  choose(stream, other = null) {
    this.stream = stream;
    this.other = other;
    for (const [name, one] of this.streams) one.ariaPressed = String(name === stream);
    this.at = null;
    this.text.textContent = "";
    this.readOutput(true);
  }

  /** Read what has been written since, and keep the end. */
  async readOutput(anew = false) {
    if (this.reading && !anew) return;
    const { stream } = this;
    this.reading = true;
    try {
      const found = await get(`/api/jobs/${this.id}/output`, { stream, start: this.at === null ? null : String(this.at) });
      if (stream !== this.stream || this.ended) return;
      const down = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 30;
      if (this.at === null || found.start !== this.at) this.text.textContent = "";
      if (found.text) {
        const kept = this.text.textContent + shownLines(found.text);
        this.text.textContent = kept.slice(-MOST_TEXT);
      }
      this.at = found.end;
      const { other } = this;
      if (other && !found.end) return void this.choose(other);
      const nothing = `Nothing on ${stream}${ENDED.includes(this.job?.stage) ? "" : " yet"}.`;
      setText(this.skipped, found.skipped ? "Only the end is shown; all of it is in the file." : this.text.textContent ? "" : nothing);
      if (down) this.text.scrollTop = this.text.scrollHeight;
    } catch (error) {
      setText(this.skipped, shown(error.message));
    } finally {
      this.reading = false;
    }
  }

  async readSamples() {
    const rows = await get(`/api/jobs/${this.id}/samples`).catch(() => []);
    if (this.ended || rows.length === this.points) return;
    this.points = rows.length;
    const open = [...this.use.querySelectorAll("details")].map((one) => one.open);
    const of = (name) => rows.map((row) => [row.at_s, row[name]]);
    const charts = [chart("Cores in use", "cores", of("cores")), chart("Memory", "MB", of("memory_mb"))];
    if (rows.some((row) => row.power_w !== null)) charts.push(chart("Power", "W", of("power_w")));
    this.use.replaceChildren(...(rows.length > 1 ? charts : [el("p", { textContent: ENDED.includes(this.job.stage) ? "No samples: it ran too short a time." : "No samples yet; they begin with the job." })]));
    this.use.querySelectorAll("details").forEach((one, place) => { one.open = open[place] ?? false; });
  }
}

function gpuWords(usage, total) {
  const used = usage.gpus_used === null ? "" : `${number(usage.gpus_used)} of ${total} worked on average, `;
  const energy = usage.gpu_energy_j == null ? "" : `, ${number(usage.gpu_energy_j)} J`;
  return `${used}${number(usage.peak_gpu_memory_mb)} MB at most${energy}${usage.gpus_emulated ? " (EMULATED)" : ""}`;
}

function expectedWords({ run_s: run, low_s: low, high_s: high, basis }) {
  const within = low === null ? "" : ` (${duration(low)} to ${duration(high)} in 8 of 10 cases)`;
  return `${duration(run)}${within}: ${shown(local(basis))}`;
}

function predictionRow(one) {
  const said = one.predicted ?? one.stated;
  const error = one.measured && said > 0 ? `${Math.round(((said - one.measured) / one.measured) * 100)} %` : "-";
  const measured = one.measured === null ? (one.void ? shown(one.void) : "not known yet") : number(one.measured);
  const where = one.detail.to ? `${one.detail.pool ?? ""} to ${one.detail.to}` : one.detail.pool ?? "";
  return [one.kind, shown(where), String(one.attempt), `${number(said)}${one.predicted === null ? " (stated by the user)" : ""}`, measured, error];
}
