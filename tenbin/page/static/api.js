// Calls to the page's own process.

export class Refused extends Error {
  constructor(code, text) {
    super(text);
    this.code = code;
  }
}

async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the page's process does not answer; start it again with: tenbin page");
  }
  let body = {};
  try {
    body = await answer.json();
  } catch {
    options.signal?.throwIfAborted();
    if (answer.ok) throw new Refused(0, "the answer of the page's process was cut off; load the page again");
  }
  if (!answer.ok) throw new Refused(answer.status, body.detail ?? `the answer is ${answer.status}`);
  return body;
}

/** Read `path`; of `query` what is empty is left out, lists are repeated. */
export function get(path, query = {}, signal = undefined) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "" || value === false) continue;
    for (const one of Array.isArray(value) ? value : [value]) words.append(name, one);
  }
  return call(words.size ? `${path}?${words}` : path, { signal });
}

/** `more`: where to (`to`), or which `priority`. */
export function change(verb, ids, more = {}) {
  return call(`/api/change/${verb}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Tenbin-Page": "1" },
    body: JSON.stringify({ ids, ...more }),
  });
}
