// Messages of the page's process as things happen. The browser itself comes back with the id of its last message.

import { get } from "./api.js";

export const live = {
  counts: {}, reasons: new Map(), power: null, held: "", trouble: "", journal: "", lost: "", to: null, gaps: 0, behind_s: 0,
};
const listeners = new Set();

/** Call `action(kind, data)` at each message until the returned function is called. */
export function listen(action) {
  listeners.add(action);
  return () => listeners.delete(action);
}

function tell(kind, data = null) {
  for (const action of [...listeners]) action(kind, data);
}

/** Seconds since 1970 by the clock of the page's process. */
export const now = () => Date.now() / 1000 - live.behind_s;

export function noteClock(now_s) {
  live.behind_s = Date.now() / 1000 - now_s;
}

function changes(event) {
  const data = JSON.parse(event.data);
  if (live.to !== null && data.from !== live.to) {
    live.gaps += 1;
    data.jobs = null;
  }
  live.to = data.to;
  live.counts = data.counts;
  tell("changes", data);
}

function coordinator(event) {
  const data = JSON.parse(event.data);
  Object.assign(live, data);
  tell("state");
}

function reasons(event) {
  for (const [job, reason] of Object.entries(JSON.parse(event.data))) live.reasons.set(Number(job), reason);
  tell("reasons");
}

/** Begin to listen; a stream that the browser gives up is asked for again after a while. */
export function connect() {
  const source = new EventSource(live.to === null ? "/api/events" : `/api/events?after=${live.to}`);
  source.addEventListener("changes", changes);
  source.addEventListener("coordinator", coordinator);
  source.addEventListener("reasons", reasons);
  source.addEventListener("open", () => {
    live.lost = "";
    tell("state");
  });
  source.addEventListener("error", async () => {
    live.lost = "the connection is lost; trying again";
    if (source.readyState === EventSource.CLOSED) {
      try {
        await get("/api/session");
      } catch (error) {
        live.lost = error.message;
      }
      setTimeout(connect, 2000);
    }
    tell("state");
  });
}
