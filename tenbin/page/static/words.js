// Numbers and times as people read them, as tenbin.text writes them.

export function number(value) {
  if (value === null || value === undefined) return "-";
  if (value !== 0 && !(Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6)) return value.toExponential(2);
  return Math.abs(value) >= 1000 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}

/** `0.45 s`, `8.4 s`, `1:05 min`, `3:20 h`, from two days `12.5 d`; never below 0. */
export function duration(seconds) {
  const s = Math.max(seconds, 0);
  if (s < 59.95) return s < 10 ? `${number(Math.round(s * 10) / 10)} s` : `${Math.round(s)} s`;
  for (const [size, unit, end] of [[60, "min", 3600], [3600, "h", 48 * 3600]]) {
    const parts = Math.round((s * 60) / size);
    if (parts * size < 60 * end) return `${Math.floor(parts / 60)}:${String(parts % 60).padStart(2, "0")} ${unit}`;
  }
  return `${number(s / 86400)} d`;
}

const two = (value) => String(value).padStart(2, "0");

/** `12:03:10`, with the date where it is another day. */
export function clock(at, seconds = true) {
  const when = new Date(at * 1000), now = new Date();
  const time = `${two(when.getHours())}:${two(when.getMinutes())}${seconds ? `:${two(when.getSeconds())}` : ""}`;
  if (when.toDateString() === now.toDateString()) return time;
  return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} ${time}`;
}

/** A sentence of the coordinator, whose stamps (`2026-11-20T08:30:00Z`) become the viewer's time. */
export const local = (sentence) =>
  sentence.replace(/(?<![\w/.-])\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ(?![\w/.-]*[\w/])/g, (found) => {
    const at = Date.parse(found) / 1000;
    return Number.isNaN(at) ? found : clock(at);
  });

/** The cores of a job by their numbers: `number 0`, `numbers 0-3`. */
export function coreNumbers(numbers) {
  const parts = [];
  for (const core of [...numbers].sort((a, b) => a - b)) {
    const last = parts.at(-1);
    if (last && last[1] === core - 1) last[1] = core;
    else parts.push([core, core]);
  }
  const ranges = parts.map(([low, high]) => (low === high ? `${low}` : `${low}-${high}`)).join(", ");
  return `number${numbers.length > 1 ? "s" : ""} ${ranges}`;
}

export const count = (value) => value.toLocaleString("en-US");
export const percent = (value) => (value === null || value === undefined ? "" : `${Math.round(value * 100)} %`);

/** Memory of a GPU: in use now, of all. */
export const gpuMemory = (gpu) => (gpu.used_mb === null ? "" : `${number(gpu.used_mb / 1000)} of ${number(gpu.memory_mb / 1000)} GB`);

export const GLYPHS = {
  running: "▶", stopping: "▷", suspended: "‖", waiting: "…", held: "∥",
  done: "✓", failed: "✗", cancelled: "⊘", killed: "☠",
};
export const STAGES = Object.keys(GLYPHS);
export const BEGUN = ["running", "stopping", "suspended"];
export const ENDED = ["done", "failed", "cancelled", "killed"];

/** When a job should start, and within what such forecasts lay lately. */
export function startWords(reason, now) {
  if (!reason || reason.expected_start_s === null) return "";
  const at = reason.expected_start_s;
  if (reason.start_low_s === null) return `starts about ${clock(at, at - now < 600)}`;
  // Plans may all have been too late or too early, so the interval is told, and not the plan itself.
  return `starts ${clock(reason.start_low_s)} to ${clock(reason.start_high_s)} (so did 8 of 10 of the last ${reason.outcomes})`;
}

/** What would let a waiting job start sooner, a sentence each. */
export function soonerWords(reason, now) {
  return (reason?.sooner ?? []).map((one) => {
    const when = one.expected_start_s <= now + 2 ? "at once" : `at ${clock(one.expected_start_s, one.expected_start_s - now < 600)}`;
    return `with ${one.change}: ${when}${one.told_by ? ` (${one.told_by})` : ""}`;
  });
}

/** Of a running job: the share of its run time that is over (null: not known), and when it should end. */
export function progress(job, now) {
  const over = job.served_s + Math.max(now - job.since_s, 0); // this clock may be behind
  if (job.expected) {
    const end = (seconds) => job.since_s + Math.max(seconds - job.served_s, 0);
    const { run_s: run, low_s: low, high_s: high } = job.expected;
    const within = low === null ? "" : ` (${clock(end(low))} to ${clock(end(high))} in 8 of 10 cases)`;
    if (over >= run) return { share: 1, words: `runs for ${duration(over)}; ${duration(run)} were expected` };
    return { share: over / run, words: `ends about ${clock(end(run))}${within}` };
  }
  if (job.time_limit_s) {
    return { share: null, words: `runs for ${duration(over)}; at the latest until ${clock(job.since_s + job.time_limit_s - job.served_s)}, its limit` };
  }
  return { share: null, words: `runs for ${duration(over)}; nothing is known of its run time` };
}
