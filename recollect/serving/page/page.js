"use strict";
// What the page does: it asks /status for what there is, /predict for answers, /labels to append and /items to pick.
// Texts of the data are only ever set as text.

const byId = (id) => document.getElementById(id);
const made = (name, { text, ...more } = {}, ...children) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(more)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const drawn = (name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const percent = (value) => `${(100 * value).toFixed(1)}%`;
const bar = (share) => {
  const element = made("div", { class: "bar" });
  element.style.width = `${100 * share}%`;
  return element;
};

let state = null; // the last /status
let given = {}; // the row that was pasted or picked, whole: fields show what they can of it
const filled = new Map(); // and what was filled into each
let asked = null; // the row last predicted
let answer = null; // and its prediction

// The service

async function call(method, path, body) {
  const token = sessionStorage.getItem("token");
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) }).catch(() => {
    throw new Error("the service doesn't answer: see whether it is running");
  });
  const found = await response.json().catch(() => ({}));
  byId("sign-in").hidden = response.status !== 401;
  if (response.status === 401) throw new Error("the service wants a token that it knows: enter one above");
  if (response.ok) return found;
  const error = new Error(found.detail || `the service answered with status ${response.status}: its log says why`);
  error.kind = found.type;
  throw error;
}

function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text; // said again, it would be read out again
  byId(id).hidden = text === "";
}

// What went wrong stays until somebody does something else.
async function act(action) {
  say("error", "");
  try {
    await action();
  } catch (error) {
    say("error", error.message);
  }
}

async function keepUp() {
  try {
    await refresh();
    say("away", "");
  } catch (error) {
    say("away", error.message);
  }
}

// What there is

async function refresh() {
  const before = state;
  state = await call("GET", "status");
  byId("model").textContent = `model ${state.model}`;
  const shown = {
    "items in the history": state.items.toLocaleString(),
    "newest label": state.newest === null ? "none" : moment(state.newest),
    classes: state.classes.length.toLocaleString(),
    writes: { here: "by this process", elsewhere: "by another process", never: "never: read-only" }[state.writes],
  };
  byId("facts").replaceChildren(
    ...Object.entries(shown).map(([name, value]) => made("div", {}, made("dt", { text: name }), made("dd", { text: value })))
  );
  byId("classes").replaceChildren(...state.classes.map((name) => made("option", { value: name })));
  byId("teach").hidden = !state.scopes.includes("write") || state.writes !== "here";
  if (before === null || before.model !== state.model) drawFields();
  drawHours();
}

const moment = (given) => (state.plain_times ? String(Number(given.toPrecision(9))) : String(given).slice(0, 19).replace("T", " "));
const features = (...roles) => Object.keys(state.columns).filter((name) => roles.includes(state.columns[name]));

const fieldsOf = () => [...byId("fields").querySelectorAll("[data-column]")];

function drawFields() {
  const fields = features("numeric", "categorical", "text", "embedding").map((name) => {
    const role = state.columns[name];
    const more = { numeric: { inputmode: "decimal" }, text: { rows: 2 }, embedding: { placeholder: "[0.1, 0.2, …]" } }[role];
    const [id, kind] = [`field-${name}`, role === "text" ? "textarea" : "input"]; // a text may have several lines
    const field = made(kind, { id, "data-column": name, autocomplete: "off", ...more });
    return [made("label", { for: id, text: name }), field];
  });
  byId("fields").replaceChildren(...fields.flat());
  byId("json").value = "";
  filled.clear();
  fill({});
}

// Asking

function fill(row) {
  given = row;
  for (const field of fieldsOf()) {
    const value = row[field.dataset.column] ?? "";
    field.value = typeof value === "object" ? JSON.stringify(value) : value;
    filled.set(field, field.value);
  }
}

function paste() {
  const row = pasted();
  if (row === null) {
    given = {}; // fields keep what they show, as if it had been typed
    filled.clear();
  } else fill(row);
  const known = features("numeric", "categorical", "text", "embedding", "ignored");
  const strangers = Object.keys(given).filter((name) => !known.includes(name));
  say("strangers", strangers.length ? `Not features of this model, so the service refuses them: ${strangers.join(", ")}` : "");
}

function pasted() {
  const text = byId("json").value;
  if (!text.trim()) return null;
  const row = parsed(text, "what was pasted is not JSON");
  if (row !== null && typeof row === "object" && !Array.isArray(row)) return row;
  throw new Error('what was pasted is not one row: paste an object such as {"column": 1}');
}

function parsed(text, wrong) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${wrong}: ${error.message}`);
  }
}

// What was pasted or picked goes as it came, but for what was typed over it.
function read() {
  pasted(); // what can't be read must not be left out in silence
  const row = { ...given };
  for (const field of fieldsOf()) {
    if (field.value === filled.get(field)) continue;
    const name = field.dataset.column;
    if (field.value.trim() === "") delete row[name];
    else row[name] = typed(name, field.value);
  }
  return row;
}

function typed(name, text) {
  const role = state.columns[name];
  if (role === "numeric" && Number.isNaN(Number(text))) throw new Error(`${name} is not a number`);
  if (role === "embedding") return parsed(text, `${name} is not a list of numbers`);
  return role === "numeric" ? Number(text) : role === "text" ? text : text.trim();
}

async function predict(before) {
  const found = await call("POST", "predict", { inputs: [{ row: asked }], precedents: 8 });
  answer = { ...found.predictions[0], as_of: found.as_of };
  byId("label").textContent = answer.label;
  byId("when").textContent = `as of ${moment(answer.as_of)}, version ${found.version}`;
  drawProbabilities(before);
  drawPrecedents();
  for (const id of ["answer", "precedents"]) byId(id).hidden = false;
}

function drawProbabilities(before) {
  const classes = Object.entries(answer.probabilities).sort((one, other) => other[1] - one[1]).slice(0, 12);
  byId("probabilities").tBodies[0].replaceChildren(
    ...classes.map(([name, value]) => {
      const change = before ? value - (before.probabilities[name] ?? 0) : 0;
      const direction = change > 0 ? "up" : "down";
      const said = Math.abs(change) < 5e-5 ? "" : `${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`;
      return made("tr", {}, made("td", { text: name, title: name }), made("td", {}, bar(value)),
        made("td", { text: percent(value) }), made("td", { text: said, class: direction }));
    })
  );
}

function drawPrecedents() {
  const table = byId("precedents").querySelector("table");
  const columns = answer.precedents.some((each) => each.row) ? features("numeric", "categorical", "text") : [];
  const kind = (name) => (state.columns[name] === "text" ? "text" : state.columns[name] === "categorical" ? "name" : "");
  const heads = [["item", "name"], ["label", "name"], [state.plain_times ? "age" : "age in days", ""], ["weight", ""],
    ["similarity", ""], ...columns.map((name) => [name, kind(name)])];
  table.tHead.rows[0].replaceChildren(...heads.map(([text, name]) => made("th", { text, class: name, scope: "col" })));
  const cell = (name, row, differs) =>
    made("td", { text: written(row[name]), class: `${kind(name)}${differs ? " differs" : ""}` });
  const input = made("tr", { class: "input" }, made("td", { text: "the input", class: "name" }),
    made("td", { text: `${answer.label}?`, class: "name" }), made("td"), made("td"), made("td"),
    ...columns.map((name) => cell(name, asked, false)));
  const largest = Math.max(...answer.precedents.map((each) => each.weight), 1e-9);
  const rows = answer.precedents.map((each) => {
    const use = made("button", { type: "button", class: "link", text: each.id, title: `Use ${each.id} as input` });
    use.addEventListener("click", () => act(() => pick(each.id)));
    const weight = made("span", { class: "bar" }, made("span"));
    weight.firstChild.style.width = `${(100 * each.weight) / largest}%`;
    return made("tr", {}, made("td", { class: "name" }, use), made("td", { text: each.label, class: "name" }),
      made("td", { text: each.age < 10 ? each.age.toFixed(2) : Math.round(each.age).toLocaleString() }),
      made("td", {}, weight, ` ${each.weight.toFixed(3)}`), made("td", { text: each.similarity.toFixed(3) }),
      ...columns.map((name) => cell(name, each.row ?? {}, kind(name) && written((each.row ?? {})[name]) !== written(asked[name]))));
  });
  table.tBodies[0].replaceChildren(input, ...rows);
}

function written(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(5))) : String(value);
}

async function pick(id) {
  const item = await call("GET", `items/${encodeURIComponent(id)}`);
  if (item.row === null) throw new Error("the token lacks the scope payloads, so the item's row can't be seen");
  byId("pick").value = id;
  byId("json").value = "";
  say("strangers", "");
  fill(item.row);
}

async function teach() {
  const before = answer;
  const counted = await append(before.id, byId("truth").value);
  await predict(before);
  const uncounted = counted ? "" : " Its input was not kept, so the running accuracy doesn't count it.";
  byId("taught").textContent = `${before.id} is an item now; the answer above is the new one.${uncounted}`;
  await refresh();
}

// As the label of what was answered, so that it counts how good the answer was; false if that can't be.
async function append(id, label) {
  try {
    await call("POST", "labels", { labels: [{ id, label }] });
    return true;
  } catch (error) {
    if (error.kind !== "urn:recollect:no-such-input") throw error;
  }
  await call("POST", "items", { items: [{ id, row: asked, label }] });
  return false;
}

// Over time

function drawHours() {
  const hours = state.hours;
  const plot = byId("over-time").querySelector(".plot");
  const [width, height, left, bottom] = [Math.max(300, plot.clientWidth), 220, 44, 28];
  if (hours.length === 0) {
    plot.replaceChildren(made("p", { class: "soft", text: "Nothing was asked yet." }));
    return;
  }
  const times = hours.map((each) => Date.parse(each.start));
  const [first, last] = [times[0], Math.max(times.at(-1), times[0] + 3600e3)];
  const x = (time) => left + ((width - left - 12) * (time - first)) / (last - first);
  const y = (share) => 10 + (height - bottom - 10) * (1 - Math.min(1, share));
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(drawn("title", {}, "Accuracy and share of labels, hour by hour"));
  for (const share of [0, 0.5, 1]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 12, y1: y(share), y2: y(share) }),
      drawn("text", { x: left - 8, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`));
  }
  const clock = (time) => new Date(time).toISOString().slice(5, 16).replace("T", " ");
  svg.append(drawn("text", { x: left, y: height - 6 }, clock(first)),
    drawn("text", { x: width - 12, y: height - 6, "text-anchor": "end" }, clock(last)));
  let [labelled, right] = [0, 0];
  const running = hours.map((each) => {
    labelled += each.labelled;
    right += (each.accuracy ?? 0) * each.labelled;
    return labelled ? right / labelled : null;
  });
  const lines = { rate: hours.map((each) => (each.predictions ? each.labelled / each.predictions : null)), accuracy: running };
  for (const [name, values] of Object.entries(lines)) {
    const points = values.map((value, place) => [times[place], value]).filter(([, value]) => value !== null);
    svg.append(drawn("polyline", { class: name, points: points.map(([time, value]) => `${x(time)},${y(value)}`).join(" ") }));
    if (points.length < 60) {
      svg.append(...points.map(([time, value]) => drawn("circle", { class: name, cx: x(time), cy: y(value), r: 3 })));
    }
  }
  const now = running.at(-1);
  const totals = `running accuracy ${now === null ? "unknown" : percent(now)} of ${labelled.toLocaleString()} ${labelled === 1 ? "label" : "labels"}`;
  const legend = made("div", { class: "legend" },
    made("span", {}, made("i", { class: "accuracy" }), totals),
    made("span", {}, made("i", { class: "rate" }), "labels per answer"));
  plot.replaceChildren(svg, legend);
}

// Wiring

byId("input").addEventListener("submit", (event) => {
  event.preventDefault();
  act(async () => {
    asked = read();
    byId("taught").textContent = "";
    await predict(null);
    await refresh();
  });
});
byId("teach").addEventListener("submit", (event) => {
  event.preventDefault();
  act(teach);
});
byId("load").addEventListener("click", () => act(() => pick(byId("pick").value)));
byId("json").addEventListener("input", () => act(async () => paste()));
byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  act(keepUp);
});
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
keepUp();
setInterval(() => document.hidden || keepUp(), 5000);
