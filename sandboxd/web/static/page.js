// The page of `sandboxd web`. Texts from commands are data: they become text nodes and attributes of data, never markup.
"use strict";

const $ = (id) => document.getElementById(id);
const KEY = "sandboxd-key";
const VIEWS = ["now", "questions", "blocked", "policy", "layers"];
const NARROW = { session_id: "", kind: "", text: "" };
const state = { socket: null, view: "now", rows: null, role: "watch", number: 0, waiting: new Map(), blocked: null,
  questions: null, wait: 250, open: new Set(), asked: new Set(), preview: null, explained: null, wanted: "" };

// Makes an element: attributes by name, handlers by functions, children as texts or elements.
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(key, value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== "") made.append(child);
  return made;
}

function say(text) { $("said").textContent = text; }
function status(text, away = false) { $("state").textContent = text; $("state").className = away ? "away" : ""; }

// letting in

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body), credentials: "same-origin" });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

// Takes the question that the address names, which is no secret: programs that tell of questions have that link.
function follow() {
  const found = /^#(q-[0-9a-f]{16})$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", "/");
  state.wanted = found[1];
  if ($("main").hidden) state.view = "questions"; else show("questions");
}

async function begin() {
  follow();
  const token = location.hash.slice(1);
  if (token.length > 20) {
    history.replaceState(null, "", "/");
    try {
      entered(await post("/login", { token, name: browserName() }));
    } catch (error) { say(error.message); }
  }
  if (localStorage.getItem(KEY)) connect(); else askIn("not let in yet");
}

addEventListener("hashchange", follow);
addEventListener("storage", (event) => { if (event.key === KEY && event.newValue && !$("entry").hidden) connect(); });

function entered(found) { localStorage.setItem(KEY, found.key); say(""); }

function browserName() {
  const known = /(Firefox|Edg|Chrome|Safari)\/[\d.]+/.exec(navigator.userAgent);
  return `${known ? known[1] : "browser"} on ${navigator.platform || "a device"}`.slice(0, 60);
}

function askIn(text) {
  status(text, true);
  $("main").hidden = true;
  $("entry").hidden = false;
  $("device").value ||= browserName();
}

$("pair").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const asked = await post("/pair", { name: $("device").value });
    $("code").textContent = `Code ${asked.code}: on the machine, run sandboxd web pair ${asked.code}`;
    for (let left = 60; left > 0; left--) {
      await new Promise((go) => setTimeout(go, 2000));
      const found = await post("/paired", { secret: asked.secret });
      if (found.key) { $("code").textContent = ""; entered(found); connect(); return; }
    }
    $("code").textContent = "The code is too old.";
  } catch (error) { $("code").textContent = error.message; }
});

// the channel

function connect() {
  const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/rpc`);
  state.socket = socket;
  socket.addEventListener("open", async () => {
    const known = { jsonrpc: "2.0", method: "hello", params: { key: localStorage.getItem(KEY) } };
    socket.send(JSON.stringify(known));
    try {
      state.role = (await call("hello")).role;
    } catch { return; }
    state.wait = 250;
    status(`connected, to ${state.role}`);
    $("entry").hidden = true;
    $("main").hidden = false;
    show(state.view);
  });
  socket.addEventListener("message", (event) => take(JSON.parse(event.data)));
  socket.addEventListener("close", (event) => {
    for (const { reject } of state.waiting.values()) reject(new Error("the connection was lost"));
    state.waiting.clear();
    if (event.code === 4401) { localStorage.removeItem(KEY); askIn("this browser is no longer let in"); return; }
    status("the daemon or the page is away; connecting again", true);
    setTimeout(retry, state.wait);
    state.wait = Math.min(state.wait * 2, 5000);
  });
}

// A refused handshake tells the page nothing, so it asks whether its cookie still counts.
async function retry() {
  try {
    const answer = await fetch("/rpc", { credentials: "same-origin" });
    if (answer.status === 401) { localStorage.removeItem(KEY); askIn("this browser is no longer let in"); return; }
  } catch { /* the page is away */ }
  connect();
}

function call(method, params = {}) {
  return new Promise((resolve, reject) => {
    if (state.socket.readyState !== WebSocket.OPEN) { reject(new Error("not connected")); return; }
    const id = ++state.number;
    state.waiting.set(id, { resolve, reject });
    state.socket.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
  });
}

function take(message) {
  if (message.method === "screen") { draw(message.params); return; }
  const asked = state.waiting.get(message.id);
  if (!asked) return;
  state.waiting.delete(message.id);
  if (message.error) {
    const hint = message.error.data && message.error.data.hint;
    asked.reject(Object.assign(new Error(message.error.message + (hint ? ` (${hint})` : "")), message.error.data));
  } else asked.resolve(message.result);
}

async function attempt(work) {
  try { say(""); return await work(); } catch (error) { say(error.message); return null; }
}

// views

function show(view) {
  state.view = view;
  state.rows = state.preview = null;
  for (const tab of $("tabs").children) {
    const chosen = tab.dataset.view === view;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  $("panel").setAttribute("aria-labelledby", `tab-${view}`);
  $("panel").replaceChildren(el("p", { class: "soft" }, "loading"));
  $("tools").replaceChildren(...(TOOLS[view] ? TOOLS[view]() : []));
  want();
}

function want() { attempt(() => call("screen.show", { view: state.view, ...(state.view === "blocked" ? { ...NARROW, unfolded: [...state.open].map((name) => name.split("\n")) } : {}) })); }

function draw({ view, rows, badge }) {
  count(badge);
  if (view !== state.view) return;
  state.rows = rows;
  redraw();
  if (view === "questions" && state.wanted && rows.known) goTo(rows);
}

function goTo({ outcomes }) {
  const card = $("panel").querySelector(`[data-question="${state.wanted}"]`);
  const ended = outcomes.find((one) => one.request_id === state.wanted);
  state.wanted = "";
  if (card) { card.focus(); card.scrollIntoView({ block: "nearest" }); }
  else say(ended ? `This question was answered: ${ended.outcome}` : "This question was answered or has ended.");
}

// Draws the view anew; what has the focus keeps it.
function redraw() {
  const panel = $("panel");
  const focus = panel.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const editing = document.activeElement && panel.contains(document.activeElement) && document.activeElement.matches("input, select");
  if (editing) return;
  panel.replaceChildren(...DRAW[state.view](state.rows));
  if (focus) { const again = [...panel.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focus); if (again) again.focus(); }
}

let hiding = 0;
function count(badge) {
  const more = state.blocked === null ? 0 : badge.blocked - state.blocked;
  state.blocked = badge.blocked;
  $("count-blocked").textContent = badge.blocked ? `(${badge.blocked})` : "";
  $("count-questions").textContent = badge.questions ? `(${badge.questions})` : "";
  document.title = badge.questions ? `(${badge.questions}) sandboxd` : "sandboxd";
  if (badge.questions > (state.questions || 0)) say(`${badge.questions} ${badge.questions > 1 ? "questions wait" : "question waits"}`);
  else if (badge.questions < state.questions) say("");
  state.questions = badge.questions;
  if (more > 0) {
    count.recent = (count.recent || 0) + more;
    $("badge").textContent = `⛔ ${count.recent} blocked`;
    clearTimeout(hiding);
    hiding = setTimeout(() => { $("badge").textContent = ""; count.recent = 0; }, 5000);
  }
}

function table(heads, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, place) => el("td", { "data-label": heads[place] }, cell))))));
}

function button(text, key, press, more = {}) { return el("button", { type: "button", "data-key": key, click: press, ...more }, text); }
const may = (role) => VIEWS && ["watch", "answer", "administer"].indexOf(state.role) >= ["watch", "answer", "administer"].indexOf(role);
const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

const DRAW = {
  now({ sessions, commands }) {
    const ends = (one) => may("administer") ? button("End", `end ${one.wrap_id}`, () => {
      if (confirm(`End this command?\n${one.command}`)) attempt(() => call("command.kill", { command_id: one.wrap_id }));
    }, { "aria-label": `End ${one.command}` }) : "";
    return [
      el("h2", {}, "Commands"),
      commands.length ? table(["command", "session", "age", "processor", "memory", "connections", "ports", ""], commands.map((one) =>
        [one.command, `${one.session} · ${one.project}`, one.age, one.cpu, one.memory, [one.connections, ...one.connected].join(" "), one.ports, ends(one)]))
        : el("p", { class: "soft" }, "No command runs."),
      el("h2", {}, "Sessions"),
      sessions.length ? table(["session", "project", "kind", "mode", "age", "commands", "blocked", "published"], sessions.map((one) =>
        [one.name, one.project, one.kind, one.mode, one.age, String(one.commands), String(one.blocked), one.published.join(", ")]))
        : el("p", { class: "soft" }, "No session is open."),
    ];
  },

  questions({ open, outcomes }) {
    const cards = open.map((one) => {
      const card = el("section", { class: "card", "aria-label": one.sentence, "data-question": one.request_id, "data-key": one.request_id, tabindex: -1 });
      card.append(el("h2", {}, one.sentence), facts(one.facts),
        el("p", { class: "soft" }, `no answer in ${one.left} s means no`),
        el("div", { class: "row" }, one.choices.map((choice) =>
          button(`${choice.label} [${choice.key}]`, `${one.request_id} ${choice.key}`, () => answer(one, choice),
            { class: choice.behavior === "allow" ? "yes" : "" }))));
      if (!one.choices.length) card.append(el("p", { class: "soft" }, "This session only watches."));
      return card;
    });
    return [...(cards.length ? cards : [el("p", { class: "soft" }, may("answer") ? "No question waits." : "This session only watches: it sees no questions unless another one answers.")]),
      outcomes.length ? el("h2", {}, "Answered") : null,
      outcomes.length ? table(["question", "outcome"], outcomes.map((one) => [one.sentence, one.outcome])) : null].filter(Boolean);
  },

  blocked({ groups, shown, kept, total, more_groups }) {
    const list = groups.map((group) => {
      const name = `${group.title}\n${group.place}`;
      const box = el("details", { open: state.open.has(name) || undefined, toggle: (event) => {
        if (event.target.open === state.open.has(name)) return;
        state.open[event.target.open ? "add" : "delete"](name);
        if (state.open.size > 20) state.open.delete(state.open.values().next().value);
        want();
      } }, el("summary", { "data-key": name }, `${group.title} — ${group.count} ×, last ${time(group.last)}`,
        group.place ? el("span", { class: "soft" }, ` ${group.place}`) : ""));
      if (state.open.has(name)) box.append(members(group));
      return box;
    });
    const left = more_groups ? [el("p", { class: "soft" }, `${more_groups} more rules; narrow the filter`)] : [];
    return [el("p", { class: "soft" }, `${shown} of ${kept} kept, ${total} in all`), ...preview(), ...list, ...left];
  },

  policy({ rules, switches, problems, mode, lists }) {
    const removes = (one) => one.locked ? el("span", { class: "soft" }, `locked: ${one.locked}`)
      : one.removable && may("administer") ? button("Remove", `remove ${one.key} ${one.text}`, () => propose([{ act: "remove", key: one.key, value: one.value }]),
        { "aria-label": `Remove ${one.text} from ${one.key}` }) : "";
    const sets = (one) => one.locked ? el("span", { class: "soft" }, `locked: ${one.locked}`)
      : typeof one.value === "boolean" && may("administer") ? button(one.value ? "Switch off" : "Switch on", `set ${one.key}`,
        () => propose([{ act: "set", key: one.key, value: !one.value }]), { "aria-label": `${one.key}: switch ${one.value ? "off" : "on"}` }) : "";
    state.lists = lists;
    fillLists();
    return [...preview(), el("dl", {}, mode.flatMap(([word, text]) => [el("dt", {}, word), el("dd", {}, text)])),
      ...(problems.length ? [el("h2", {}, "Problems"), table(["", "problem", "place", "hint"], problems.map((one) =>
        [el("span", { class: one.severity }, one.severity), one.text, one.place, one.hint]))] : []),
      el("h2", {}, "Rules"),
      rules.length ? table(["list", "rule", "from", ""], rules.map((one) => [one.key, one.text, one.place || one.source, removes(one)])) : el("p", { class: "soft" }, "No rules."),
      el("h2", {}, "Switches"), table(["key", "value", "from", ""], switches.map((one) => [one.key, one.text, one.place || one.source, sets(one)]))];
  },

  layers({ sentence, rows, layers }) {
    return [el("p", {}, sentence), el("p", { class: "soft" }, `in force for a command: ${layers.join(", ") || "nothing"}`),
      table(["step", "state", "detail", "remedy"], rows.map((one) => [one.name, el("span", { class: one.state }, one.state), one.detail, one.remedy]))];
  },
};

function facts(rows) { return el("dl", {}, rows.flatMap(([label, text]) => [el("dt", {}, label), el("dd", { class: label === "careful" ? "careful" : "" }, text)])); }

function members(group) {
  const rows = group.rows.map((one) => [time(one.time), `${one.count} ×`, `${one.operation} ${one.target}`, one.process, one.command,
    one.hint, may("administer") ? button("Open", `open ${one.id}`, () => suggest(one), { "aria-label": `Open ${one.target}` }) : ""]);
  const part = table(["time", "count", "target", "process", "command", "hint", ""], rows);
  return group.more ? el("div", {}, part, el("p", { class: "soft" }, `${group.more} more; narrow the filter`)) : part;
}

function answer(question, choice) {
  if (choice.wide && !confirm(`This allows a great deal.\n${choice.label}`)) return;
  attempt(async () => {
    const done = await call("screen.answer", { request_id: question.request_id, key: choice.key, confirm: choice.wide });
    if (done.warnings.length) say(done.warnings.join(" "));
  });
}

// changes of settings: first the difference, then a second press writes it

async function suggest(one) {
  const found = await attempt(() => call("violation.suggest", { violation_id: one.id }));
  if (!found) return;
  if (!found.changes.length) { say(found.why || "No rule is suggested for it."); return; }
  propose(found.changes.map(({ act, key, value }) => ({ act, key, value })));
}

async function propose(changes) {
  const found = await attempt(() => call("settings.update", { changes, preview: true }));
  if (!found) return;
  state.preview = { changes, file: found.file, difference: found.difference, warnings: found.warnings };
  redraw();
  const write = $("panel").querySelector("[data-key=write]");
  if (write) write.focus();
}

function preview() {
  const one = state.preview;
  if (!one) return [];
  const close = () => { state.preview = null; redraw(); };
  const write = () => attempt(async () => {
    const done = await call("settings.update", { changes: one.changes, confirm: one.warnings.length > 0 });
    close();
    say(done.warnings.join(" "));
  });
  return [el("section", { class: "card", "aria-label": "Change of settings" }, el("h2", {}, `This changes ${one.file}`),
    el("pre", {}, Array.isArray(one.difference) ? one.difference.join("\n") : one.difference),
    one.warnings.map((text) => el("p", { class: "careful" }, text)),
    el("div", { class: "row" }, button("Write it", "write", write, { class: "yes" }), button("Leave it", "leave", close)))];
}

function fillLists() {
  const chosen = $("list");
  if (chosen && !chosen.children.length) for (const [words, key] of Object.entries(state.lists)) chosen.append(el("option", { value: key }, words));
}

const TOOLS = {
  blocked() {
    let later = 0;
    const input = (name, label) => el("label", {}, label, el("input", { value: NARROW[name], input: (event) => {
      NARROW[name] = event.target.value;
      clearTimeout(later);
      later = setTimeout(want, 150);
    } }));
    return [el("div", { class: "row", role: "search" }, input("text", "Text"), input("kind", "Kind"), input("session_id", "Session"))];
  },
  policy() {
    const shown = el("div", { role: "status", "aria-live": "polite" });
    const explain = el("form", { class: "row", submit: (event) => {
      event.preventDefault();
      attempt(async () => {
        const found = await call("screen.explain", { text: event.target.elements.target.value });
        shown.replaceChildren(el("p", { class: found.behavior }, found.sentence), facts(found.facts));
      });
    } }, el("label", {}, "Explain a path, host or command", el("input", { name: "target", autocomplete: "off", required: true })), el("button", {}, "Explain"));
    const add = el("form", { class: "row", submit: (event) => {
      event.preventDefault();
      propose([{ act: "add", key: $("list").value, value: event.target.elements.rule.value }]);
    } }, el("label", {}, "Add a rule", el("select", { id: "list" })), el("label", {}, "Host, path or command", el("input", { name: "rule", autocomplete: "off", required: true })), el("button", {}, "Show the change"));
    return may("administer") ? [explain, shown, add] : [explain, shown];
  },
};

// keyboard: arrows between tabs, digits for views, the key of an answer where there is one question or it has the focus

$("tabs").addEventListener("click", (event) => { const tab = event.target.closest("[role=tab]"); if (tab) show(tab.dataset.view); });
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const place = (VIEWS.indexOf(state.view) + step + VIEWS.length) % VIEWS.length;
  show(VIEWS[place]);
  $(`tab-${VIEWS[place]}`).focus();
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select") || $("main").hidden) return;
  if (state.view === "questions" && state.rows) {
    const focused = document.activeElement.closest("[data-question]");
    const one = state.rows.open.find((row) => focused ? row.request_id === focused.dataset.question : state.rows.open.length === 1);
    const choice = one && one.choices.find((row) => row.key === event.key);
    if (choice) { answer(one, choice); return; }
  }
  const view = VIEWS[Number(event.key) - 1];
  if (view) { show(view); $(`tab-${view}`).focus(); }
});

begin();
