// What the page asks the service. A refusal is one sentence, with a code for programs.
import { refused, t } from "./i18n.js";

const KEY = "atento-key", SILENCE = 40000;  // milliseconds

export class Refusal extends Error {
  constructor(message, code, status, number) {
    super(message);
    Object.assign(this, { code, status, number });
  }
}

export function setKey(key) { sessionStorage.setItem(KEY, key); }

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(`api/${path}`, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(t("error.offline"), "offline", 0);
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  const { message = t("error.status", { status: answer.status }), code = "unknown" } = body.error ?? {};
  throw new Refusal(refused(message), code, answer.status, answer.headers.get("x-request-id"));
}

export async function about() { return (await ask("about")).json(); }

function post(name, fields, signal) {
  return ask(name, { method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" }, signal });
}

// The plain data that a function answers.
export async function call(name, fields, signal) { return (await post(name, fields, signal)).json(); }

// The bytes that a function answers, and what stands beside them.
export async function bytes(name, fields, signal) {
  const answer = await post(name, fields, signal);
  return { about: JSON.parse(answer.headers.get("x-atento-about")), data: await answer.arrayBuffer() };
}

// A matrix of values, row by row.
export async function matrix(name, fields, signal) {
  const { about: beside, data } = await bytes(name, fields, signal);
  const kinds = { u8: Uint8Array, f32: Float32Array };
  return { ...beside, values: new kinds[beside.format](data) };
}

// Takes the events of a stream until `signal` ends it. Where it breaks, or is silent for longer than its heartbeat, it is asked
// for again, with the id of the last event; `broken` is told of both.
export async function listen(path, last, { take, broken, signal }) {
  for (let pause = 500; !signal.aborted; pause = Math.min(2 * pause, 8000)) {
    const silence = new AbortController(), wait = () => setTimeout(() => silence.abort(), SILENCE);
    let timer = wait();
    try {
      const answer = await ask(path, { headers: last ? { "Last-Event-ID": last } : {}, signal: AbortSignal.any([signal, silence.signal]) });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      broken(false);
      pause = 500;
      for (let text = "", part = await reader.read(); !part.done; part = await reader.read()) {
        clearTimeout(timer);
        timer = wait();
        const events = (text + part.value).split("\n\n");
        text = events.pop();
        for (const event of events) {
          const line = (name) => event.split("\n").find((one) => one.startsWith(`${name}: `))?.slice(name.length + 2);
          last = line("id") ?? last;
          if (line("data")) take(JSON.parse(line("data")));
        }
      }
    } catch (error) {
      if (error.status >= 400 && error.status < 500) throw error;
      if (!(error instanceof Refusal || error instanceof TypeError || error.name === "AbortError")) throw error;
    } finally {
      clearTimeout(timer);
    }
    if (signal.aborted) return;
    broken(true);
    await new Promise((done) => { setTimeout(done, pause); });
  }
}

// Remembers the answers to the last `most` different questions.
export function remembering(most, answer) {
  const known = new Map();
  return (...question) => {
    const key = JSON.stringify(question);
    const found = known.get(key) ?? answer(...question);
    known.delete(key);
    known.set(key, found);
    found.catch(() => known.delete(key));  // what failed is asked again
    if (known.size > most) known.delete(known.keys().next().value);
    return found;
  };
}
