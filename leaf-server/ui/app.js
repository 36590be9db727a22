// The dashboard of a node. It gets lines of JSON from v1/live: the first has all, each further one what
// has changed. Everything that a server sends is put on the page as text, never as HTML. All addresses
// are relative, so that the page also works behind a proxy's prefix.

const $ = (id) => document.getElementById(id);
const HISTORY = 600;
const AGAIN = [1000, 2000, 5000];

/** What the server has told so far. */
let state = {};
/** The token of this session; never in an address. */
let token = sessionStorage.getItem("leaf-token") || "";
/** Since when nothing has come. */
let gone = null;
/** When the last line came. */
let heard = Date.now();
let stream = null;
let failures = 0;
const rows = new Map();
/** The rows that can be seen: of a thousand, the others are written when they come into view. */
const inView = new WeakSet();
const views = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    if (!isIntersecting) inView.delete(target);
    else {
      inView.add(target);
      const name = target.dataset.tag;
      if (rows.get(name)?.made === target && state.tags?.[name]) showRow(name);
    }
  }
}, { rootMargin: "300px" });
const history = { at: [], rate: [], store: [], clock: [] };
let before = null;

// ---- small helpers

function el(name, options = {}, ...children) {
  const { text, class: kind, data, on, ...attributes } = options;
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const [key, value] of Object.entries(data || {})) made.dataset[key] = value;
  for (const [key, value] of Object.entries(on || {})) made.addEventListener(key, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const grouped = new Intl.NumberFormat("en");
/** A number of ids, which may be above 2^53. */
const count = (text) => (text === undefined ? "–" : grouped.format(BigInt(text)));
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const time = (ms) => new Date(ms).toLocaleTimeString();

/** Seconds as people say them. */
function span(seconds) {
  if (!Number.isFinite(seconds)) return "∞";
  const sign = seconds < 0 ? "-" : "";
  const all = Math.abs(seconds);
  if (all < 1) return `${sign}${Math.round(all * 1000)} ms`;
  if (all < 120) return `${sign}${Math.round(all)} s`;
  if (all < 7200) return `${sign}${Math.round(all / 60)} min`;
  if (all < 172800) return `${sign}${Math.round(all / 3600)} h`;
  return `${sign}${grouped.format(Math.round(all / 86400))} d`;
}

/** The pairs of a description list; a value that is undefined is left out. */
function pairs(list, values) {
  const wanted = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
  const names = wanted.map(([name]) => name).join("\n");
  if (list.dataset.names !== names) {
    list.dataset.names = names;
    list.replaceChildren(...wanted.map(([name]) => el("div", {}, el("dt", { text: name }), el("dd"))));
  }
  wanted.forEach(([, value], at) => set(list.children[at].lastChild, String(value)));
}

// ---- the server

class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function ask(method, path, body, headers = {}) {
  const options = { method, headers: { Accept: "application/json", ...headers }, cache: "no-store" };
  if (token) options.headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const reply = await fetch(path, options);
  if (!reply.ok) {
    const problem = await reply.json().catch(() => ({}));
    throw new Refused(reply.status, problem.detail || `${reply.status} ${reply.statusText}`);
  }
  return reply;
}

const json = async (method, path, body, headers) => (await ask(method, path, body, headers)).json();
const tagPath = (tag) => `v1/tags/${encodeURIComponent(tag)}`;

/**
 * Puts what has changed over what is known; `null` is gone. No object here has a prototype, since a tag may
 * be called as something that others have.
 */
function merge(into, changed) {
  for (const [key, value] of Object.entries(changed)) {
    if (value === null) delete into[key];
    else if (isObject(value)) into[key] = merge(isObject(into[key]) ? into[key] : Object.create(null), value);
    else into[key] = value;
  }
  return into;
}
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

async function follow() {
  const abort = new AbortController();
  stream = abort;
  // A stream that says nothing for a while is cut, too: a line comes every second.
  let timer = setTimeout(() => abort.abort(), 5000);
  try {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const reply = await fetch("v1/live", { headers, signal: abort.signal, cache: "no-store" });
    if (reply.status === 401 || reply.status === 403) {
      const problem = await reply.json().catch(() => ({}));
      cut(problem.detail || "a token is needed");
      if (reply.status === 401) askForToken(token ? "That token is not known here, or has no role that reads." : "");
      return;
    }
    if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).detail || `${reply.status}`);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), 5000);
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const { all, state: changed } = JSON.parse(line);
        if (all) {
          // After an upgrade of the node the page is another one, too.
          if (state.status && state.status.version !== changed.status.version) location.reload();
          state = merge(Object.create(null), changed);
          before = null;
        } else merge(state, changed);
      }
      if (lines.length) {
        heard = Date.now();
        gone = null;
        note();
        show();
        failures = 0;
      }
    }
    throw new Error("the node has ended the stream");
  } catch (error) {
    if (stream !== abort) return;
    cut(abort.signal.aborted ? "nothing comes from the node" : error.message);
    stream = null;
    setTimeout(() => stream === null && !document.hidden && follow(), AGAIN[Math.min(failures++, AGAIN.length - 1)]);
  } finally {
    clearTimeout(timer);
    abort.abort();
  }
}

function pause() {
  const running = stream;
  stream = null;
  running?.abort();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) pause();
  else if (stream === null) follow();
});

/** The stream is cut: what is shown is old. */
function cut(why) {
  gone ??= heard;
  $("cut").hidden = false;
  set($("cut"), `No news since ${time(gone)}: ${why}. What is shown is of then.`);
  $("health").classList.add("gone");
  if (state.status === undefined) set($("state"), "No connection");
}

function note() {
  $("cut").hidden = true;
  $("health").classList.remove("gone");
}

// ---- what is shown

function show() {
  const { status = {}, tags = {}, stores = [] } = state;
  const all = Object.values(tags);
  document.title = `${status.state ?? "?"} · ${status.name || "Leaf"}`;
  set($("name"), status.name || "");
  set($("version"), `${status.version} · up ${span(status.running_for_s)}`);
  $("health").dataset.state = status.state;
  set($("state"), { ready: "Ready", degraded: "Degraded", "not ready": "Not ready" }[status.state] ?? "?");
  const reasons = state.reasons ?? [];
  if ($("reasons").dataset.text !== reasons.join("\n")) {
    $("reasons").dataset.text = reasons.join("\n");
    $("reasons").replaceChildren(...reasons.map((text) => el("li", { text })));
  }
  $("drain").hidden = false;
  set($("drain"), state.drained ? "Take back" : "Drain");

  const flake = status.snowflake;
  // A tag in strict order has no stock: each of its ids is the store's.
  const lasting = all.filter((tag) => tag.order !== "strict" && tag.enabled && !tag.ended).map(lasts).filter(Number.isFinite);
  const peers = flake?.peers ?? [];
  const offsets = peers.map((peer) => peer.clock_offset_ms).sort((a, b) => a - b);
  // Of two in the middle the one nearer to 0: one wrong node of three must not make the others wrong.
  const middle = offsets.slice((offsets.length - 1) >> 1, (offsets.length >> 1) + 1).sort((a, b) => Math.abs(a) - Math.abs(b))[0];
  const answered = before && stores.reduce((sum, it) => sum + it.answers, 0) - before.answers;
  const took = before && stores.reduce((sum, it) => sum + it.answered_in_s, 0) - before.took;
  const store = answered > 0 ? (took / answered) * 1000 : null;
  const seconds = before ? (state.now - before.now) / 1000 : 0;
  const issued = (status.segment?.stores ?? []).reduce((sum, it) => sum + BigInt(it.issued), 0n);
  const rate = seconds > 0 ? Number(issued - before.issued) / seconds : 0;
  const flakeRate = state.flakes && seconds > 0 ? Number(BigInt(state.flakes) - BigInt(before.flakes)) / seconds : 0;
  pairs($("figures"), {
    "Segment ids/s": status.segment ? short.format(rate) : undefined,
    "Snowflake ids/s": flake ? short.format(flakeRate) : undefined,
    "Tags in use": status.segment ? grouped.format(status.segment.stores.reduce((sum, it) => sum + it.tags, 0)) : undefined,
    "Shortest stock lasts": status.segment ? span(Math.min(...lasting, Infinity)) : undefined,
    "Worker id": flake ? flake.worker ?? "none yet" : undefined,
    "Other nodes": othersInShort(state.others ?? {}),
    "Clock off by": middle === undefined ? undefined : `${middle} ms`,
    "Ids go on without the registry for": flake ? span((Number(flake.registry_ceiling_ms) - state.now) / 1000) : undefined,
    "Refused": grouped.format(Object.values(status.refused ?? {}).flatMap(Object.values).reduce((a, b) => a + b, 0)),
    "Threads wait": `${state.delay_ms} ms`,
    "Certificate ends in": state.certificate_ends ? span(state.certificate_ends - state.now / 1000) : undefined,
  });
  before = {
    now: state.now,
    issued,
    flakes: state.flakes ?? "0",
    answers: stores.reduce((sum, it) => sum + it.answers, 0),
    took: stores.reduce((sum, it) => sum + it.answered_in_s, 0),
  };
  history.at.push(state.now / 1000);
  history.rate.push(rate + flakeRate);
  history.store.push(store);
  history.clock.push(middle ?? null);
  if (history.at.length > HISTORY) Object.values(history).forEach((values) => values.shift());
  charts.forEach((chart) => chart());
  showTags();
  showFlake(flake, peers);
  showEvents();
  details?.();
}

/** How long a tag's stock lasts at its rate, in seconds. */
function lasts(tag) {
  return tag.rate > 0 ? Number(tag.stock) / tag.rate : Infinity;
}

/** How full a slot is, between 0 and 1. */
function fill(tag, slot) {
  const range = tag.slots[slot];
  if (!range) return null;
  const [start, end] = range.map(BigInt);
  if (slot !== tag.current) return start > BigInt(tag.slots[tag.current]?.[0] ?? -1) ? 1 : 0;
  if (tag.position === undefined) return 0;
  const left = end - BigInt(tag.position);
  return Math.max(0, Math.min(1, Number(left) / Math.max(1, Number(end - start))));
}

function bar() {
  const inner = el("i");
  return el("div", { class: "bar", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "left in the slot" }, inner);
}

function setBar(made, tag, slot) {
  const part = fill(tag, slot);
  const percent = part === null ? 0 : Math.round(part * 100);
  made.classList.toggle("now", slot === tag.current);
  made.firstChild.style.width = `${percent}%`;
  made.setAttribute("aria-valuenow", percent);
  made.setAttribute("aria-valuetext", part === null ? "empty" : `${percent} % left${slot === tag.current ? ", in use" : ""}`);
}

/** What is wrong with a tag, in a word. */
function trouble(tag) {
  if (tag.advance_to) return "went back";
  if (tag.ended) return "ended";
  if (!tag.enabled) return "disabled";
  if (tag.limit === 0) return "cut";
  if (tag.error) return "no fetch";
  return tag.limit === undefined ? "" : `at most ${short.format(tag.limit)}/s`;
}

function row(name) {
  const open = el("button", { class: "link", type: "button", text: name, title: name, on: { click: () => showTag(name) } });
  const mark = el("span", { class: "mark" });
  const cells = {
    name: el("td", {}, open, mark), rate: el("td", { class: "n" }),
    slots: [bar(), bar()], lasts: el("td", { class: "n" }), position: el("td", { class: "n" }),
    step: el("td", { class: "n" }), fetch: el("td"),
  };
  const made = el("tr", {}, cells.name, cells.rate, ...cells.slots.map((it) => el("td", {}, it)), cells.lasts, cells.position, cells.step, cells.fetch);
  made.dataset.tag = name;
  return { made, cells, mark };
}

/** Writes what a tag's row shows. */
function showRow(name) {
  const tag = state.tags[name];
  const { cells, mark } = rows.get(name);
  set(mark, trouble(tag));
  set(cells.rate, short.format(tag.rate));
  cells.slots.forEach((made, slot) => setBar(made, tag, slot));
  set(cells.lasts, span(lasts(tag)));
  set(cells.position, tag.position === undefined ? "–" : tag.position);
  const fetched = tag.fetches.at(-1);
  set(cells.step, tag.order === "strict" ? "strict" : count(fetched?.[0] ?? tag.step?.toString()));
  set(cells.fetch, fetched ? `${time(fetched[1] * 1000)}, ${(fetched[2] / 1000).toFixed(1)} ms` : "–");
}

function showTags() {
  const wanted = $("find").value;
  const names = Object.keys(state.tags ?? {}).filter((name) => name.includes(wanted)).sort();
  const all = new Set(names);
  for (const [name, { made }] of rows) {
    if (!all.has(name)) {
      views.unobserve(made);
      made.remove();
      rows.delete(name);
    }
  }
  let last = null;
  for (const name of names) {
    let shown = rows.get(name);
    const isNew = !shown;
    if (isNew) {
      shown = row(name);
      rows.set(name, shown);
      views.observe(shown.made);
      if (last) last.after(shown.made);
      else $("rows").prepend(shown.made);
    }
    last = shown.made;
    if (isNew || inView.has(shown.made)) showRow(name);
  }
  const most = 1000;
  const hidden = Object.keys(state.tags ?? {}).length >= most ? `The first ${most} of those in use. ` : "";
  set($("tags-note"), state.status?.segment
    ? `${hidden}${names.length === 0 ? "No tag in use has that in its name; there may be more in the store." : ""}`
    : "Segment mode is off on this node.");
}

function showFlake(flake, peers) {
  $("snowflake").hidden = !flake;
  if (!flake) return;
  pairs($("flake"), {
    "Worker id": flake.worker ?? "none yet",
    "Registry": flake.registry,
    "Confirmed by it": flake.confirmed ? "yes" : "no",
    "Identity": flake.identity,
    "Ids stop, by the state file, in": span((Number(flake.local_ceiling_ms) - state.now) / 1000),
    "by the registry, in": span((Number(flake.registry_ceiling_ms) - state.now) / 1000),
    "Ids' clock ahead": flake.clock_ahead_ms === undefined ? "stands: the clock went back" : `${flake.clock_ahead_ms} ms`,
    "Clock set forward, back": `${flake.clock_steps_forward}, ${flake.clock_steps_back}`,
    "Leases lost": flake.leases_lost,
    "Timestamps last": `${grouped.format(flake.days_left)} d`,
  });
  showOthers(state.others, peers);
}

/** How another node is, in a word. */
function otherState(other) {
  return other.state ?? "not asked yet";
}

/** How many other nodes are how. */
function othersInShort(others) {
  const counts = {};
  for (const other of Object.values(others)) counts[otherState(other)] = (counts[otherState(other)] ?? 0) + 1;
  const all = Object.entries(counts).map(([state, count]) => `${grouped.format(count)} ${state}`);
  return all.length === 0 ? undefined : all.join(", ");
}

function showOthers(others, peers) {
  const clocks = Object.fromEntries(peers.map((peer) => [peer.address, peer]));
  const addresses = [...new Set([...Object.keys(others ?? {}), ...Object.keys(clocks)])].sort();
  $("others").hidden = addresses.length === 0;
  set($("others-note"), !others
    ? "This node asks no others: nodes share no registry, or snowflake.clock_check is off."
    : addresses.length === 0 ? "The registry lists no other node." : "How they are is asked every few seconds, their clocks are read once a minute.");
  const text = JSON.stringify([others, clocks]);
  if ($("others").dataset.text === text) return;
  $("others").dataset.text = text;
  $("others").tBodies[0].replaceChildren(...addresses.map((address) => {
    const state = otherState(others?.[address] ?? {});
    const clock = clocks[address];
    return el("tr", {},
      el("td", { text: address }),
      el("td", { class: state === "ready" || state === "not asked yet" ? "" : "bad", text: state }),
      el("td", { text: others?.[address]?.version ?? "–" }),
      el("td", { class: "n", text: clock ? `${clock.clock_offset_ms} ms (± ${clock.uncertainty_ms})` : "–" }));
  }));
}

function showEvents() {
  const events = state.events ?? [];
  const text = `${events.length} ${events.at(-1)?.at} ${events.at(-1)?.text}`;
  if ($("events").dataset.text === text) return;
  $("events").dataset.text = text;
  $("events").replaceChildren(...[...events].reverse().map(({ at, level, text }) => el("li", { class: level },
    el("time", { text: time(at), datetime: new Date(at).toISOString() }), " ", el("b", { text: level }), ` ${text}`)));
}

// ---- charts

const charts = [];

function chart(id, values) {
  const place = $(id);
  let drawn = null;
  const make = () => {
    const style = getComputedStyle(document.body);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--soft"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    drawn?.destroy();
    drawn = new uPlot({
      width: place.clientWidth, height: 150, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_, least, most) => [Math.min(0, least ?? 0), Math.max(most ?? 0, 1) * 1.05] } },
      axes: [{ ...axis, size: 28, space: 72, values: (_, ticks) => ticks.map((tick) => time(tick * 1000)) }, { ...axis, size: 48, values: (_, ticks) => ticks.map((tick) => short.format(tick)) }],
      series: [{}, { stroke: color("--full"), width: 1.5, spanGaps: true, points: { show: false } }],
    }, [history.at, values], place);
  };
  charts.push(() => (drawn ? drawn.setData([history.at, values]) : make()));
  new ResizeObserver(() => drawn && drawn.setSize({ width: place.clientWidth, height: 150 })).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn && make());
}
chart("chart-rate", history.rate);
chart("chart-store", history.store);
chart("chart-clock", history.clock);

// ---- dialogs

/** Draws what the open dialog shows of the state, each second. */
let details = null;
/** How many dialogs there were: what comes too late belongs to one that is gone. */
let opened = 0;

/**
 * Opens the dialog. `act`, if there is one, is done on its button; what it throws is shown, and the
 * dialog stays.
 */
function open(title, body, act, label, danger = false) {
  const own = ++opened;
  const isOpen = () => own === opened && $("dialog").open;
  details = null;
  set($("dialog-title"), title);
  $("dialog-body").replaceChildren(...body);
  set($("dialog-error"), "");
  const ok = $("dialog-ok");
  ok.hidden = !act;
  ok.disabled = !act;
  set(ok, label ?? "");
  ok.classList.toggle("danger", danger);
  ok.onclick = async (event) => {
    event.preventDefault();
    if (!$("dialog").querySelector("form").reportValidity()) return;
    ok.disabled = true;
    try {
      await act();
      if (isOpen()) $("dialog").close();
    } catch (error) {
      if (!isOpen()) return;
      set($("dialog-error"), explained(error));
      ok.disabled = false;
    }
  };
  if (!$("dialog").open) $("dialog").showModal();
}

$("dialog-cancel").addEventListener("click", () => $("dialog").close());
$("dialog").addEventListener("close", () => {
  // The event may come when the next dialog is open already.
  if ($("dialog").open) return;
  opened++;
  details = null;
});

function explained(error) {
  if (error instanceof Refused && (error.status === 401 || error.status === 403))
    return `${error.message}. A token with the role admin can do this: give it by the button Token.`;
  return error.message;
}

const field = (name, label, attributes = {}) => el("label", { text: `${label} ` }, el("input", { name, autocomplete: "off", spellcheck: "false", ...attributes }));
const choice = (name, label, values) => el("label", { text: `${label} ` }, el("select", { name }, ...values.map((value) => el("option", { text: value, value }))));
const given = (name) => $("dialog-body").querySelector(`[name="${name}"]`).value.trim();

function askForToken(why) {
  open("Token", [
    el("p", { text: why || "Give a token of the file of tokens: the role read shows, the role admin changes. It is kept until this tab is closed." }),
    field("token", "Token", { type: "password", autocomplete: "off" }),
  ], async () => {
    token = given("token");
    sessionStorage.setItem("leaf-token", token);
    failures = 0;
    pause();
    follow();
  }, "Use it");
}

$("token").addEventListener("click", () => askForToken(""));

$("drain").addEventListener("click", () => {
  const back = state.drained;
  open(back ? "Take this node back" : "Drain this node", [
    el("p", { text: back
      ? "It says that it is ready again, and balancers send it new requests."
      : "It says that it is not ready, so that balancers send it nothing new. It answers whoever asks still, and keeps its worker id and its tags, until it is taken back." }),
  ], () => ask(back ? "DELETE" : "POST", "v1/drain"), back ? "Take back" : "Drain", !back);
});

// ---- one tag

/** A tag in use on this node. */
const known = (name) => (state.tags && Object.hasOwn(state.tags, name) ? state.tags[name] : undefined);

async function showTag(name) {
  let record = null;
  let version = null;
  const list = el("dl");
  const slots = el("p", { class: "sample" });
  const fetched = el("p", { class: "sample" });
  const wrong = el("p", { class: "mark" });
  const acts = el("p");
  const draw = () => {
    const tag = known(name);
    set(wrong, tag?.error ?? tag?.ended ?? (tag?.advance_to ? `The record went back: it must go on from ${tag.advance_to}. Advance it.` : ""));
    pairs(list, {
      "Order": record?.order, "Ids": record?.shape, "Template": record?.text, "Reset": record?.reset, "Slice": record?.slice,
      "Enabled": record ? (record.enabled ? "yes" : "no") : undefined,
      "Step, of the record": record?.step, "Bounds of the step": record && (record.min_step || record.max_step) ? `${record.min_step ?? "–"} to ${record.max_step ?? "–"}` : undefined,
      "Most at once": record?.max_take, "Next in the store": record?.max_id, "Description": record?.description, "Store": record?.store,
      "Ids/s here": tag ? short.format(tag.rate) : undefined, "Stock here": tag ? `${count(tag.stock)}, lasts ${span(lasts(tag))}` : undefined,
      "Issued here": tag ? count(tag.issued) : undefined, "Left at all": tag?.remaining ? count(tag.remaining) : undefined,
    });
    set(slots, tag ? tag.slots.map((range, at) => `slot ${at}: ${range ? `${range[0]} to below ${range[1]}` : "empty"}${at === tag.current ? `, in use, next ${tag.position ?? "–"}` : ""}`).join("\n") : "Not in use on this node: nobody asked for it lately.");
    set(fetched, tag?.fetches.length ? tag.fetches.map(([amount, at, took]) => `${time(at * 1000)}  ${count(amount).padStart(12)} ids in ${(took / 1000).toFixed(1)} ms`).join("\n") : "none yet");
  };
  const act = (label, danger, run) => el("button", { type: "button", text: label, class: danger ? "danger" : "", on: { click: run } });
  const change = (body) => json("PATCH", tagPath(name), body, version ? { "If-Match": version } : {});
  const fill = () => acts.replaceChildren(
    act("Change the step", false, () => open(`Step of ${name}`, [
      el("p", { text: `Now ${record.step}. Servers follow with their next fetch. What is in memory stays: nothing is skipped.` }),
      field("step", "Ids in a fetch", { type: "number", min: 1, required: "", value: record.step ?? "" }),
    ], () => change({ step: Number(given("step")) }), "Change")), " ",
    act(record.enabled ? "Disable" : "Enable", record.enabled, () => open(`${record.enabled ? "Disable" : "Enable"} ${name}`, [
      el("p", { text: record.enabled ? "Nobody gets ids of it any more, on any server, within a minute. Enabling it goes on where it stopped." : "Ids are handed out again, on all servers within a minute, from where they stopped." }),
    ], () => change({ enabled: !record.enabled }), record.enabled ? "Disable" : "Enable", record.enabled)), " ",
    act("Advance", true, () => open(`Advance ${name}`, [
      el("p", { text: `The next number becomes at least this one, now ${record.max_id ?? "–"}. What is skipped is lost for ever. Meant for after a restore of the database, or a failover that went back.` }),
      field("at_least", "Next number at least", { inputmode: "numeric", pattern: "[0-9]{1,19}", required: "", value: known(name)?.advance_to ?? "" }),
      el("label", { text: "Repeat the tag's name " }, el("input", { name: "again", required: "", autocomplete: "off" })),
    ], async () => {
      if (given("again") !== name) throw new Error("that is not the tag's name");
      await json("POST", `${tagPath(name)}/advance`, { at_least: given("at_least") });
    }, "Advance", true)), " ",
    act("Cut", true, () => open(`Cut ${name}`, [
      el("p", { text: "All servers refuse ids of it within 5 s, to everybody, until the cut is taken away. A rate that `leaf limit` set for it ends." }),
    ], () => ask("PUT", `${tagPath(name)}/cut`), "Cut", true)), " ",
    act("Take the cut away", false, () => open(`Allow ${name}`, [
      el("p", { text: "All servers hand out ids of it again within 5 s. A rate that `leaf limit` set for it ends, too." }),
    ], async () => {
      const { by } = await json("DELETE", `${tagPath(name)}/cut`);
      if (by) throw new Error(`The rule of the tag is gone, and it is cut still: by that of ${by}. \`leaf allow tag '${by}'\` takes that away.`);
    }, "Allow")),
  );
  open(name, [wrong, list, el("h3", { text: "Slots" }), slots, el("h3", { text: "Fetches, the newest last" }), fetched, acts]);
  details = draw;
  draw();
  try {
    const reply = await ask("GET", tagPath(name));
    version = reply.headers.get("ETag");
    record = await reply.json();
    if (details === draw) {
      fill();
      draw();
    }
  } catch (error) {
    if (details === draw) set($("dialog-error"), `The store's record cannot be shown: ${error.message}`);
  }
}

$("find").addEventListener("input", showTags);
$("look").addEventListener("click", () => {
  const name = $("find").value.trim();
  if (name) showTag(name);
  else $("find").focus();
});

$("create").addEventListener("click", () => {
  const sample = el("p", { class: "sample", "aria-live": "polite", text: "What its ids will look like is shown here." });
  const spec = () => {
    const body = { tag: given("tag"), order: given("order"), shape: given("shape") || "plain" };
    if (body.order === "relaxed" && given("step")) body.step = Number(given("step"));
    if (given("text")) body.text = given("text");
    if (given("first")) body.first = given("first");
    if (given("description")) body.description = given("description");
    return body;
  };
  let turn = 0;
  const preview = async () => {
    const own = ++turn;
    await new Promise((done) => setTimeout(done, 250));
    try {
      if (own !== turn || !sample.isConnected || !given("tag")) return;
      const { first_ids, first_texts } = await json("POST", "v1/sample", spec());
      if (own === turn) set(sample, `first ids  ${first_ids.join("  ")}${first_texts ? `\nas texts   ${first_texts.join("  ")}` : ""}`);
    } catch (error) {
      if (own === turn) set(sample, explained(error));
    }
  };
  const form = el("div", { on: { input: preview } },
    field("tag", "Name", { required: "", maxlength: 128 }),
    field("step", "Ids in a fetch: those of about ten minutes", { type: "number", min: 1, value: 1000 }),
    choice("order", "Order: strict, where each request gets a greater id than those before it on all servers, waits for the store each time", ["relaxed", "strict"]),
    field("shape", "Shape: plain, scramble:63, scramble:53, scramble:d10, interleave:0/2", { value: "plain" }),
    field("text", "Template of its texts, like ORD-{date:%y%m%d}{n:06}{luhn}; may stay empty"),
    field("first", "First number; 1 if nothing is given", { inputmode: "numeric", pattern: "[0-9]{1,19}" }),
    field("description", "What it is for", { maxlength: 256 }));
  open("New tag", [form, sample], async () => {
    const made = await json("POST", "v1/tags", spec());
    $("find").value = "";
    showTag(made.tag);
  }, "Create");
});

// ---- worker ids

async function loadWorkers() {
  const table = $("workers");
  try {
    const { workers } = await json("GET", "v1/workers");
    table.hidden = false;
    table.tBodies[0].replaceChildren(...workers.map((worker) => el("tr", {},
      el("td", { class: "n", text: worker.worker }),
      el("td", { text: worker.state + (worker.remark ? `: ${worker.remark}` : "") }),
      el("td", { text: worker.holder ?? "–" }),
      el("td", { text: worker.ceiling_ms ? new Date(Number(worker.ceiling_ms)).toLocaleString() : "–" }),
      el("td", {}, worker.state !== "held" ? "" : el("button", { type: "button", text: "Release", on: { click: () => release(worker) } })))));
    set($("load-workers"), "Load again");
  } catch (error) {
    open("Worker ids", [el("p", { text: explained(error) })]);
  }
}

function release({ worker, holder }) {
  open(`Release worker id ${worker}`, [
    el("p", { text: `Held by ${holder ?? "?"}. Release it where that node is dead, and will not be started again on its data directory. If it still runs, it loses the id at its next report; ids that it issues until then can be issued again by the next holder.` }),
    el("label", { text: "Repeat the worker id: yes, its holder is dead " }, el("input", { name: "again", required: "", inputmode: "numeric", autocomplete: "off" })),
  ], async () => {
    if (given("again") !== String(worker)) throw new Error("that is not the worker id");
    await json("POST", `v1/workers/${worker}/release`, { holder_is_dead: true });
    await loadWorkers();
  }, "Release", true);
}

$("load-workers").addEventListener("click", loadWorkers);

// ---- taking an id apart

$("decode").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target);
  const [id, tag] = ["id", "tag"].map((name) => form.get(name).trim());
  try {
    const path = tag ? `${tagPath(tag)}/ids/${encodeURIComponent(id)}` : `v1/ids/${encodeURIComponent(id)}`;
    const told = await json("GET", path);
    pairs($("decoded"), Object.fromEntries(Object.entries(told).map(([key, value]) => [key.replaceAll("_", " "), value])));
  } catch (error) {
    pairs($("decoded"), { "not an id": error.message });
  }
});

if (!document.hidden) follow();
