// The playground: one prompt to one model, streamed as it comes. The key is read from its field for each request.
import { count, dollars, element, put, putBoth, rate, seconds } from "./words.js";

const $ = (id) => document.getElementById(id);
let models = [];
let listed = "";
let running = null;

// What the gateway offers, told with each of its states.

export function offer(playground) {
  models = playground.models;
  $("playground-closed").hidden = !playground.why_closed;
  put($("playground-closed"), playground.why_closed);
  for (const node of [$("ask"), $("answer"), document.querySelector(".outcome"), document.querySelector(".request")]) node.hidden = Boolean(playground.why_closed);
  $("key-field").hidden = playground.key === "none";
  $("key").required = playground.key === "wanted";
  const chosen = $("model").value;
  const names = models.map((model) => (model.is_ready ? model.name : `${model.name} (no engine ready)`));
  if (JSON.stringify(names) !== listed) {
    listed = JSON.stringify(names);
    $("model").replaceChildren(...models.map((model, place) => element("option", { value: model.name }, names[place])));
    $("model").value = models.some((model) => model.name === chosen) ? chosen : (models.find((model) => model.is_ready) ?? models[0])?.name ?? "";
  }
  $("send").disabled = running !== null || models.length === 0;
}

// Events of a stream, however its bytes are cut.

async function* events(body) {
  let text = "";
  for await (const piece of pieces(body.pipeThrough(new TextDecoderStream()))) {
    text += piece;
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

async function* pieces(stream) {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

class Refused extends Error {}

async function refusal(answer) {
  let error = {};
  try {
    error = (await answer.json()).error ?? {};
  } catch { /* not from the gateway; its status says what there is to say */ }
  return new Refused(`${answer.status}${error.code ? ` ${error.code}` : ""}: ${error.message ?? "no reason was given"}`);
}

async function send() {
  const key = $("key").value.trim();
  const body = {
    model: $("model").value,
    messages: [{ role: "user", content: $("prompt-text").value }],
    max_tokens: Number($("most").value),
    stream: true,
    stream_options: { include_usage: true },
  };
  const headers = { "content-type": "application/json" };
  if (key && !$("key-field").hidden) headers.authorization = `Bearer ${key}`;
  const run = { began: performance.now(), first: 0, last: 0, usage: null, finish: "", done: false, model: models.find((model) => model.name === body.model) };
  const answer = await fetch("ui/chat", { method: "POST", headers, body: JSON.stringify(body), signal: running.signal, credentials: "same-origin", cache: "no-store" });
  put($("asked-id"), answer.headers.get("x-request-id") ?? "–");
  if (!answer.ok) throw await refusal(answer);
  for await (const event of events(answer.body)) take(run, event);
  if (!run.done) throw new Refused("The stream ended before the answer was whole.");
  return run;
}

function take(run, event) {
  if (event === "[DONE]") { run.done = true; return; }
  const data = JSON.parse(event);
  if (data.error) throw new Refused(`${data.error.code ?? data.error.type}: ${data.error.message}`);
  run.usage = data.usage ?? run.usage;
  const choice = data.choices?.[0];
  run.finish = choice?.finish_reason ?? run.finish;
  const thought = choice?.delta?.reasoning ?? choice?.delta?.reasoning_content ?? "";
  const text = choice?.delta?.content ?? "";
  if (!thought && !text) return;
  run.last = performance.now();
  if (!run.first) {
    run.first = run.last;
    put($("asked-ttft"), (run.first - run.began) / 1000, seconds);
  }
  const box = $("answer");
  const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
  if (thought) { $("thoughts").hidden = false; $("thoughts-text").append(thought); }
  if (text) $("answer-text").append(text);
  if (follows) box.scrollTop = box.scrollHeight;
}

function conclude(run) {
  const { usage } = run;
  if (!run.first) put($("asked-ttft"), null);
  if (usage === null) {
    for (const id of ["asked-speed", "asked-tokens", "asked-price"]) put($(id), null);
    return;
  }
  const writing = (run.last - run.first) / 1000;
  put($("asked-speed"), usage.completion_tokens > 1 && writing > 0 ? (usage.completion_tokens - 1) / writing : null, (value) => `${rate(value)} tok/s`);
  const cached = usage.prompt_tokens_details?.cached_tokens;
  putBoth($("asked-tokens"), `${count(usage.prompt_tokens)} in, ${count(usage.completion_tokens)} out`, cached ? `${count(cached)} cached` : "");
  const [price, how] = priced(run.model, usage, cached ?? 0);
  if (price === null) put($("asked-price"), null);
  else putBoth($("asked-price"), dollars(price), how);
}

// What the settings charge where they do; else machine time, at what such tokens cost within the last minute.

function priced(model, usage, cached) {
  const { charged, money } = model;
  const each = charged
    ? [charged.prompt, charged.cached, charged.output]
    : [money.per_million_prompt_tokens, money.per_million_cached_tokens, money.per_million_output_tokens];
  const tokens = [usage.prompt_tokens - cached, cached, usage.completion_tokens];
  let sum = 0;
  for (const [place, amount] of tokens.entries()) {
    if (!amount) continue;
    if (each[place] === null) return [null, ""];
    sum += amount * each[place];
  }
  return [sum / 1e6, charged ? "charged" : "machine time"];
}

async function begin(event) {
  event.preventDefault();
  if (running !== null || !$("ask").reportValidity()) return;
  running = new AbortController();
  $("answer-text").replaceChildren();
  $("thoughts-text").replaceChildren();
  $("thoughts").hidden = $("refusal").hidden = true;
  for (const id of ["asked-ttft", "asked-speed", "asked-tokens", "asked-price", "asked-id"]) put($(id), "–");
  busy(true);
  put($("progress"), "answering");
  try {
    const run = await send();
    conclude(run);
    put($("progress"), run.finish === "length" ? "done, cut at its limit" : "done");
  } catch (error) {
    if (error.name === "AbortError") {
      put($("progress"), "stopped");
    } else {
      put($("refusal"), error instanceof Refused ? error.message : "The gateway cannot be reached.");
      $("refusal").hidden = false;
      put($("progress"), "failed");
    }
  } finally {
    running = null;
    busy(false);
  }
}

function busy(is) {
  $("answer").setAttribute("aria-busy", String(is));
  // Whoever is on one of the buttons goes on at the other one: a button that is switched off loses the focus.
  const at = document.activeElement;
  $("stop").disabled = !is;
  if (is && at === $("send")) $("stop").focus();
  if (!is && at === $("stop")) { $("send").disabled = false; $("send").focus(); }
  $("send").disabled = is || models.length === 0;
  $("stop").disabled = !is;
}

$("ask").addEventListener("submit", begin);
$("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && $("ask").contains(event.target)) { event.preventDefault(); $("ask").requestSubmit(); }
});
