// The figures of the page: asks the gateway for its state every two seconds and shows it. All text is put in as text.
import { offer } from "./playground.js";
import { count, dollars, element, put, rate, seconds, share } from "./words.js";

const PERIOD = 2000;
const PATIENCE = 6000;
const $ = (id) => document.getElementById(id);

// Keeps one child for each item, in their order, so that what is there already stays, with its focus and its place. `make` gives
// the child as `node` and its parts beside it.
const children = new WeakMap();
function each(parent, items, key, make, fill) {
  const before = children.get(parent) ?? new Map();
  const now = new Map();
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const child = before.get(name) ?? make(item);
    before.delete(name);
    now.set(name, child);
    if (child.node === next) next = next.nextElementSibling;
    else parent.insertBefore(child.node, next);
    fill(child, item);
  }
  for (const child of before.values()) child.node.remove();
  children.set(parent, now);
}

// The state of an endpoint in words and in one of four kinds.

function condition(endpoint) {
  if (endpoint.state === "ready" && endpoint.breaker === "open") return ["left out", "bad"];
  if (endpoint.state === "ready" && endpoint.breaker === "half_open") return ["on trial", "warn"];
  if (endpoint.state === "ready" && endpoint.share < 1) return ["starting", "warn"];
  if (endpoint.state === "unready") return ["not ready", "bad"];
  return [endpoint.state, { ready: "good", withheld: "warn" }[endpoint.state] ?? "unknown"];
}

function chip(node, words, kind) {
  put(node, words);
  node.dataset.kind = kind;
}

const load = (name) => (endpoint) => endpoint.load?.[name];
const COLUMNS = [
  ["State", null],
  ["In flight", (e) => e.in_flight, count],
  ["Running", load("running"), count],
  ["Waiting", load("waiting"), count],
  ["KV cache", load("kv_cache_usage"), share],
  ["Hits", load("cache_hit_rate"), share],
  ["Output tok/s", load("output_tokens_per_second"), rate],
  ["Prefill tok/s", (e) => e.speed.prefill_tokens_per_second, rate],
  ["Decode tok/s", (e) => e.speed.decode_tokens_per_second, rate],
  ["$ / hour", (e) => e.dollars.per_hour, dollars],
  ["used $ / M output", (e) => e.dollars.per_million_output_tokens, dollars],
];
const MEANINGS = {
  "In flight": "requests of this gateway", Running: "in the engine, of all gateways", Waiting: "in the engine's own queue",
  "KV cache": "used share of the engine's cache", Hits: "prompt tokens that the engine had cached", "Output tok/s": "as the engine says, now",
  "Prefill tok/s": "learned by routing", "Decode tok/s": "of all its requests together, learned by routing",
  "used $ / M output": "the machine time that output took, without idle time and prompts",
};
const FIGURES = [
  ["Output", (p) => p.throughput.output, (v) => `${rate(v)} tok/s`],
  ["Prompts", (p) => p.throughput.prompt, (v) => `${rate(v)} tok/s`],
  ["First token, median", (p) => p.figures.ttft_p50_seconds, seconds],
  ["First token, 95 %", (p) => p.figures.ttft_p95_seconds, seconds],
  ["From cache", (p) => p.figures.cache_hit_rate, share],
  ["used $ / M output", (p) => p.money.per_million_output_tokens, dollars],
  ["Machines, an hour", (p) => p.money.per_hour, dollars],
  ["of it used", (p) => p.money.used_per_hour, dollars],
];

function makePool(pool) {
  const [heading, ready, what] = [element("h3"), element("span", { class: "chip" }), element("span", { class: "what" })];
  const figures = FIGURES.map(() => element("dd"));
  const list = element("dl", { class: "figures" });
  FIGURES.forEach(([title], place) => list.append(element("div", {}, element("dt", {}, title), figures[place])));
  const bar = element("i");
  list.lastElementChild.append(element("div", { class: "split", "aria-hidden": "true" }, bar));
  const head = element("tr", {}, element("th", { scope: "col" }, "Endpoint"));
  for (const [title] of COLUMNS) {
    const attributes = { ...(title === "State" && { class: "words" }), ...(MEANINGS[title] && { title: MEANINGS[title] }) };
    head.append(element("th", { scope: "col", ...attributes }, title));
  }
  const rows = element("tbody");
  const caption = element("caption", { class: "unseen" }, `Endpoints of the pool ${pool.name}`);
  const table = element("table", {}, caption, element("thead", {}, head), rows);
  const none = element("p", { class: "none" });
  const node = element("article", { class: "pool" }, element("header", {}, heading, ready, what), list, table, none);
  return { node, heading, ready, what, list, figures, bar, table, rows, none };
}

function fillPool(made, pool) {
  const all = pool.endpoints.length;
  put(made.heading, pool.name);
  put(made.what, `${pool.model} on ${pool.target}`);
  chip(made.ready, all ? `${pool.ready} of ${all} ready` : "no engine", pool.ready === all && all ? "good" : pool.ready ? "warn" : "bad");
  FIGURES.forEach(([, read, format], place) => put(made.figures[place], read(pool), format));
  const { per_hour: hour, used_per_hour: used } = pool.money;
  made.bar.style.width = hour && used !== null ? `${Math.min(100, (100 * used) / hour)}%` : "0";
  made.list.hidden = made.table.hidden = all === 0;
  made.none.hidden = all > 0;
  put(made.none, `No engine of ${pool.model} is known here. Its requests are answered 503 until one comes.`);
  each(made.rows, pool.endpoints, (e) => e.name, makeEndpoint, fillEndpoint);
}

function makeEndpoint() {
  const [name, about, state] = [element("span"), element("small"), element("span", { class: "chip" })];
  const meter = element("meter", { min: 0, max: 1, low: 0, high: 0.9, optimum: 0, "aria-hidden": "true" });
  const node = element("tr", {}, element("th", { scope: "row" }, name, about));
  const cells = COLUMNS.map(([title, read]) => {
    const value = read ? element("span") : state;
    const parts = title === "KV cache" ? [element("span", {}, meter, value)] : [value];
    node.append(element("td", { "data-label": title, ...(!read && { class: "words" }) }, ...parts));
    return value;
  });
  return { node, name, about, state, meter, cells };
}

function fillEndpoint(row, endpoint) {
  const [words, kind] = condition(endpoint);
  put(row.name, endpoint.name);
  const troubles = [endpoint.pod, kind === "good" || endpoint.reason === words ? null : endpoint.reason].filter(Boolean);
  put(row.about, troubles.join(": "));
  chip(row.state, words, kind);
  COLUMNS.forEach(([, read, format], place) => read && put(row.cells[place], read(endpoint), format));
  const usage = endpoint.load?.kv_cache_usage;
  row.meter.hidden = usage === null || usage === undefined;
  row.meter.value = usage ?? 0;
}

// Errors

const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

const ERROR_COLUMNS = ["Time", "Status", "Error", "Model", "Endpoint", "Request"];

function makeError() {
  const values = ERROR_COLUMNS.map((label) => element(label === "Request" ? "code" : "span", label === "Error" ? { class: "code" } : {}));
  const node = element("tr", {}, ...values.map((value, place) => element("td", { "data-label": ERROR_COLUMNS[place] }, value)));
  return { node, values };
}

function fillError({ node, values }, failure) {
  const what = failure.code && failure.code !== failure.outcome ? `${failure.outcome}: ${failure.code}` : failure.outcome;
  const when = clock.format(new Date(failure.at * 1000));
  const words = [when, failure.status, what, failure.model, failure.endpoint, failure.request_id];
  words.forEach((text, place) => put(values[place], text || "–"));
  node.dataset.kind = failure.status >= 400 && failure.status < 500 ? "warn" : "bad";
}

// Tenants

const TENANT_COLUMNS = [
  ["Tenant", (t) => t.name, String], ["Requests", (t) => t.requests, count], ["Prompt tokens", (t) => t.prompt_tokens, count],
  ["Output tokens", (t) => t.output_tokens, count], ["used $", (t) => t.used_dollars, dollars], ["charged $", (t) => t.charged_dollars, dollars],
];
function makeTenant() {
  const values = TENANT_COLUMNS.map(() => element("span"));
  const node = element("tr", {}, ...values.map((value, place) => element("td", { "data-label": TENANT_COLUMNS[place][0] }, value)));
  return { node, values };
}

function fillTenant({ values }, tenant) {
  TENANT_COLUMNS.forEach(([, read, words], place) => put(values[place], read(tenant), words));
}

// Charts: steps of five minutes, the newest at the right

const SPAN = 300;
function draw(chart, most, history, name, words) {
  const top = Math.max(...history.map((step) => step[name]), 0);
  const place = (step) => `${(SPAN - Math.min(step.ago_seconds, SPAN)).toFixed(1)} ${(58 - (top ? (step[name] / top) * 54 : 0)).toFixed(1)}`;
  const line = history.length > 1 ? `M${history.map(place).join("L")}` : "";
  const edge = (step) => `${(SPAN - Math.min(step.ago_seconds, SPAN)).toFixed(1)} 60`;
  if (!chart.firstElementChild) {
    for (const kind of ["area", "line"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", kind);
      chart.append(path);
    }
  }
  chart.firstElementChild.setAttribute("d", line && `${line}L${edge(history.at(-1))}L${edge(history[0])}Z`);
  chart.lastElementChild.setAttribute("d", line);
  put(most, `most ${rate(top)}`);
  chart.setAttribute("aria-label", `${words} over five minutes: now ${rate(history.at(-1)?.[name] ?? 0)}, at most ${rate(top)}`);
}

// All of it

function duration(value) {
  const minutes = Math.floor(value / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(value)} s`;
}

function show(state) {
  chip($("condition"), state.state, { ready: "good", draining: "warn" }[state.state] ?? "bad");
  put($("about"), `${state.version}, up ${duration(state.uptime_seconds)}`);
  document.title = state.state === "ready" ? "serving" : `serving: ${state.state}`;
  const { figures, money, throughput } = state;
  put($("output"), throughput.output, rate);
  put($("prompt"), throughput.prompt, rate);
  put($("throughput-source"), throughput.of_engines ? "from the engines, now" : "counted in a minute");
  put($("cached"), figures.cache_hit_rate, share);
  put($("ttft-p50"), figures.ttft_p50_seconds, seconds);
  put($("ttft-p95"), figures.ttft_p95_seconds, seconds);
  put($("dollars-output"), money.per_million_output_tokens, dollars);
  put($("dollars-prompt"), money.per_million_prompt_tokens, dollars);
  put($("dollars-cached"), money.per_million_cached_tokens, dollars);
  put($("dollars-hour"), money.per_hour, dollars);
  put($("dollars-used"), money.used_per_hour, dollars);
  put($("dollars-idle"), money.idle_per_hour, dollars);
  put($("in-flight"), state.in_flight, count);
  put($("waiting"), state.waiting, count);
  put($("requests"), state.requests_per_second, rate);
  put($("failed"), state.failed, count);
  put($("unpriced"), state.unpriced.length ? `No price is set for ${state.unpriced.join(", ")}, so that there are no dollars of it. In the gateway's settings that is targets.TARGET.dollars_per_accelerator_hour, or routing.pools.POOL.dollars_per_hour for a whole engine.` : "");
  draw($("output-chart"), $("output-most"), state.history, "output_tokens_per_second", "Output tokens per second");
  draw($("prompt-chart"), $("prompt-most"), state.history, "prompt_tokens_per_second", "Prompt tokens per second");
  each($("pool-list"), state.pools, (pool) => JSON.stringify([pool.name, pool.model, pool.target]), makePool, fillPool);
  each($("error-rows"), state.errors, (failure) => `${failure.request_id} ${failure.at.toFixed(1)}`, makeError, fillError);
  $("no-errors").hidden = state.errors.length > 0;
  $("error-box").hidden = state.errors.length === 0;
  each($("tenant-rows"), state.tenants, (tenant) => tenant.name, makeTenant, fillTenant);
  $("no-tenants").hidden = state.tenants.length > 0;
  $("tenant-box").hidden = state.tenants.length === 0;
  put($("more-tenants"), state.more_tenants ? `and ${state.more_tenants} more` : "");
  announce(state);
  offer(state.playground);
}

// What changed, said once to those who hear the page.

let told = null;
function announce(state) {
  const now = new Map([["gateway", state.state]]);
  for (const pool of state.pools) for (const endpoint of pool.endpoints) now.set(endpoint.name, condition(endpoint)[0]);
  if (told !== null) {
    const changes = [...now].filter(([name, words]) => told.get(name) !== words).map(([name, words]) => `${name}: ${words}`);
    const gone = [...told.keys()].filter((name) => !now.has(name)).map((name) => `${name}: gone`);
    if (changes.length + gone.length) $("announcement").textContent = [...changes, ...gone].slice(0, 5).join(", ");
  }
  told = now;
}

let heard = null;
async function ask() {
  let state;
  try {
    const answer = await fetch("ui/state", { signal: AbortSignal.timeout(PATIENCE), cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    state = await answer.json();
  } catch {
    lose();
    return;
  }
  heard = new Date();
  $("lost").hidden = true;
  $("live").dataset.kind = "good";
  put($("live-words"), "live");
  document.querySelector("main").classList.remove("old");
  document.querySelector("main").hidden = false;
  show(state);
}

function lose() {
  $("live").dataset.kind = "bad";
  put($("live-words"), "no answer");
  put($("lost"), heard ? `The gateway has not answered since ${clock.format(heard)}; the figures are from then.` : "The gateway does not answer. Trying again.");
  $("lost").hidden = false;
  document.querySelector("main").classList.add("old");
}

async function keepAsking() {
  for (;;) {
    if (!document.hidden) await ask().catch(reportError);
    const seen = new Promise((wake) => document.addEventListener("visibilitychange", wake, { once: true }));
    await Promise.race([new Promise((wake) => setTimeout(wake, PERIOD)), seen]);
  }
}

keepAsking();
