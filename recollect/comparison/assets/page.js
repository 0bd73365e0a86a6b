"use strict";
// Draws the plots and the tables that can be played with; one whose part of the report is missing stays hidden. What is
// only read stands in the page already.

const report = JSON.parse(document.getElementById("report").textContent);
const words = JSON.parse(document.getElementById("words").textContent);

const CLASS_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#808080", "currentColor"];

const find = (selector) => document.querySelector(selector);
const isThere = (value) => value !== null && value !== undefined;
const entries = (thing) => Object.entries(thing || {}).filter(([, value]) => isThere(value));
const count = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");
const written = (value) => (typeof value === "object" && value ? JSON.stringify(value) : String(value ?? "–"));
const styleOf = (name) => words.models[name] || { colour: "currentColor", dash: "", thick: false };

// ---- times, ages and durations ----

function moment(value, time) {
  if (!isThere(value)) return NaN;
  if (!time) return Number(value);
  // Without a zone, a browser would take it for local time.
  return Date.parse(/T[^Z+-]*$/.test(value) ? `${value}Z` : value);
}

const told = (value) => (isNumber(value) ? brief(value) : written(value).replace("T", " ").replace(/ 00:00:00$/, ""));

// The x axis of a chart over time: where things start, and the cutoff.
function timeAxis(starts) {
  const time = starts.some((start) => typeof start === "string");
  const xText = (x) => told(time ? new Date(x).toISOString().slice(0, 19) : x);
  const xs = starts.map((start) => moment(start, time));
  return { xs, axis: { time, cutoff: moment(report.cutoff, time), xText, xLabel: "time" } };
}

function age(value, unit, digits = 3) {
  if (!isNumber(value)) return "–";
  if (unit !== "days") return `${brief(value, digits)} ${unit || ""}`.trim();
  const sizes = [[365.25, "years"], [1, "days"], [1 / 24, "h"], [1 / 1440, "min"], [1 / 86400, "s"]];
  const [size, word] = sizes.find(([each]) => value >= 2 * each) || sizes.at(-1);
  return `${brief(value / size, digits)} ${word}`;
}

// ---- small parts ----

function reveal(selector) {
  const found = find(selector);
  found.hidden = false;
  return found;
}

function precedentTable(rows) {
  const heads = ["attention", "age", "label (✓ is the truth)", "id", "input"];
  const head = element("tr", {}, heads.map((each) => element("th", { scope: "col" }, each)));
  const body = rows.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell))));
  const table = element("table", { class: "texts" }, element("thead", {}, head), element("tbody", {}, body));
  return element("div", { class: "wide", role: "region", "aria-label": "Precedents", tabindex: "0" }, table);
}

function fields(row) {
  const field = ([name, value]) => element("li", {}, element("span", {}, `${name} `), written(value));
  return element("ul", { class: "fields" }, Object.entries(row || {}).map(field));
}

// ---- sections ----

function showTheme() {
  const root = document.documentElement, button = find("#theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const tell = () => { button.textContent = isDark() ? "Light page" : "Dark page"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    tell();
  });
  system.addEventListener("change", tell);
  tell();
}

function showOverTime({ starts, rows, models }) {
  const names = entries(models).map(([name]) => name);
  const defined = (measure) => names.some((name) => models[name][measure]?.mean?.some(isNumber));
  const measures = [...new Set(names.flatMap((name) => Object.keys(models[name])))].filter(defined);
  if (!starts?.length || !measures.length) return;
  const section = reveal("#over-time");
  const { xs, axis } = timeAxis(starts);
  const [title, hint] = [0, 1].map((place) => (measure) => words.measures[measure]?.[place] || measure);
  const options = (measure) => ({
    label: `${title(measure)} over time`,
    yLabel: title(measure),
    series: names.map((name) => {
      const { mean = [], low = [], high = [] } = models[name][measure] || {};
      const points = xs.map((x, place) => ({ x, y: mean[place], low: low[place], high: high[place] }));
      return { name, ...styleOf(name), points };
    }),
  });
  const rowsAt = new Map(xs.map((x, place) => [x, rows?.[place]]));
  const xText = (x) => axis.xText(x) + (isNumber(rowsAt.get(x)) ? `, ${count(rowsAt.get(x))} rows` : "");
  const first = { ...axis, xText, yText: short, xLabel: "start of the period", ...options(measures[0]) };
  const chart = new Chart(section.querySelector(".plot"), first);

  const select = find("#measure");
  select.append(...measures.map((measure) => element("option", { value: measure }, title(measure))));
  const choose = () => {
    find("#measure-hint").textContent = hint(select.value);
    chart.update(options(select.value));
  };
  select.addEventListener("change", choose);
  choose();
  const kinds = { all: names, ours: names.filter((name) => styleOf(name).thick), none: [] };
  for (const button of section.querySelectorAll("[data-show]")) {
    button.addEventListener("click", () => chart.show(kinds[button.dataset.show]));
  }
}

function showResults(models) {
  const names = Object.keys(models);
  const mean = (name, column) => models[name]?.[column]?.mean;
  const columns = Object.keys(words.columns).filter((column) => names.some((name) => isNumber(mean(name, column))));
  if (!columns.length) return;
  const section = reveal("#results");
  const head = section.querySelector("thead tr"), body = section.querySelector("tbody");
  const less = (column) => words.less_is_better.includes(column);
  const bestOf = (column) => {
    const values = names.map((name) => mean(name, column)).filter(isNumber);
    return less(column) ? Math.min(...values) : Math.max(...values);
  };
  let sorted = null, up = false;

  function cell(name, column) {
    const found = models[name]?.[column];
    if (!isNumber(found?.mean)) return element("td", { class: "soft" }, "–");
    const several = found.seeds?.length > 1;
    const text = short(found.mean) + (several ? ` ±${short(found.std)}` : "");
    const title = several ? `seeds: ${found.seeds.map(short).join(", ")}` : null;
    return element("td", { title }, found.mean === bestOf(column) ? element("b", {}, text) : text);
  }
  function line(name) {
    const kind = styleOf(name).thick ? "ours" : null;
    const cells = columns.map((each) => cell(name, each));
    return element("tr", { class: kind }, element("th", { scope: "row" }, name), cells);
  }
  function sort(column) {
    up = sorted === column ? !up : column === "model" || less(column);
    sorted = column;
    const order = (one, other) => {
      if (column === "model") return one.localeCompare(other) * (up ? 1 : -1);
      const [first, second] = [mean(one, column), mean(other, column)];
      if (isNumber(first) && isNumber(second)) return (first - second) * (up ? 1 : -1);
      return isNumber(second) - isNumber(first);
    };
    body.replaceChildren(...[...names].sort(order).map(line));
    for (const each of head.children) {
      const direction = each.dataset.column !== column ? "none" : up ? "ascending" : "descending";
      each.setAttribute("aria-sort", direction);
      each.querySelector("span").textContent = { none: "", ascending: "\u00a0↑", descending: "\u00a0↓" }[direction];
    }
  }
  head.append(...["model", ...columns].map((column) => {
    const arrow = element("span", { "aria-hidden": "true" });
    const settings = { type: "button", onclick: () => sort(column) };
    const button = element("button", settings, words.columns[column] || column, arrow);
    return element("th", { scope: "col", "data-column": column }, button);
  }));
  sort(columns[0]);
}

function showCalibration(models) {
  const known = entries(models).filter(([, bins]) => bins.length);
  if (!known.length) return;
  const section = reveal("#calibration");
  const most = Math.max(1, ...known.flatMap(([, bins]) => bins.map((bin) => bin.rows || 0)));
  const pointOf = ({ confidence, accuracy, rows }) => ({
    x: confidence, y: accuracy, radius: 2 + 5 * Math.sqrt((rows || 0) / most), note: `${count(rows)} rows`,
  });
  const series = known.map(([name, bins]) => ({ name, ...styleOf(name), points: bins.map(pointOf) }));
  // Many at once would hide each other: ours first, the others at a press.
  const others = series.length > 6 && series.some((each) => each.thick) ? series.filter((each) => !each.thick) : [];
  new Chart(section.querySelector(".plot"), {
    label: "Accuracy by confidence", xLabel: "confidence of the answer", yLabel: "share that was right",
    series, ideal: true, single: true, xBounds: [1], yBounds: [0, 1],
    xText: (x) => `confidence ${percent(x)}`, yText: (y) => `${percent(y)} right`,
  }, others.map((each) => each.name));
}

function showPrecedents({ unit, ages, entropy, median_age }) {
  const plots = [
    ages?.edges && ages.shown?.some((value) => value > 0) && ["ages", ageHistogram(ages, unit)],
    median_age?.some(isNumber) && ["median_age", overPeriods("median age", median_age, {
      yLabel: unit ? `median age (${unit})` : "median age", yText: (y) => age(y, unit),
    })],
    entropy?.some(isNumber) && ["entropy", overPeriods("entropy", entropy, {
      yLabel: "entropy (nats)", yText: (y) => `${short(y)}, as if ${brief(Math.exp(y))} shared evenly`,
    })],
  ].filter(Boolean);
  if (plots.length) reveal("#precedents");
  for (const [part, options] of plots) new Chart(reveal(`[data-part=${part}]`).querySelector(".plot"), options);
}

function ageHistogram({ edges, shown, attention }, unit) {
  // Bins before the first that holds anything would be empty space.
  const from = shown.findIndex((value) => value > 0);
  const steps = edges.slice(from);
  const shares = (values) => {
    const sum = values.reduce((total, value) => total + value, 0) || 1;
    return values.slice(from).map((value, place) => ({ x: place + 0.5, y: value / sum }));
  };
  const series = [{ name: "precedents shown", colour: "#56B4E9", thick: true, points: shares(shown) }];
  if (attention) series.push({ name: "attention paid", colour: "#D55E00", thick: true, points: shares(attention) });
  const xTicks = (width) => {
    const every = Math.ceil(steps.length / Math.max(2, Math.floor(width / 85)));
    return steps.map((step, at) => ({ at, text: age(step, unit, 2) })).filter(({ at }) => at % every === 0);
  };
  return {
    label: "Age of precedents", xLabel: "age when answered (widening steps)", yLabel: "share", bars: true,
    series, xTicks, xBounds: [0, steps.length - 1], yBounds: [0], yText: percent,
    xText: (x) => `${age(steps[x - 0.5], unit)} to ${age(steps[x + 0.5], unit)}`,
  };
}

// The periods are those of the curves over time; without these they are counted.
function overPeriods(name, values, options) {
  const starts = report.over_time?.starts;
  const { xs, axis } = starts?.length === values.length ? timeAxis(starts)
    : { xs: values.map((_, place) => place + 1), axis: { xText: (x) => `period ${x}`, xLabel: "period" } };
  const series = [{ name, colour: "#D55E00", thick: true, points: xs.map((x, place) => ({ x, y: values[place] })) }];
  return { ...axis, label: `${name} of precedents over time`, yBounds: [0], series, ...options };
}

function showExamples({ unit, examples }) {
  if (!examples?.length) return;
  const section = reveal("#examples");
  const isRight = (example) => example.label === example.predicted;
  const precedent = (example) => (one) => {
    const same = one.label === example.label;
    const [kind, mark] = same ? ["agrees", "✓"] : ["differs", "✗"];
    const label = element("span", { class: kind }, `${mark} ${written(one.label)}`);
    return [percent(one.weight), age(one.age, unit), label, written(one.id), fields(one.input)];
  };
  const block = (example) => {
    const [kind, mark] = isRight(example) ? ["right", "✓ right"] : ["wrong", "✗ wrong"];
    const rows = (example.precedents || []).map(precedent(example));
    return element("details", { class: `example ${kind}` },
      element("summary", {},
        element("span", { class: "mark" }, mark),
        element("span", {}, `answered ${written(example.predicted)} (${percent(example.probability)})`),
        element("span", {}, `was ${written(example.label)}`)),
      element("p", { class: "small" }, `${written(example.id)}, ${told(example.time)}`),
      fields(example.input),
      rows.length ? precedentTable(rows) : element("p", {}, "No precedent was visible."));
  };
  const kinds = { all: examples, right: examples.filter(isRight), wrong: examples.filter((each) => !isRight(each)) };
  const list = section.querySelector(".list"), buttons = [...section.querySelectorAll("[data-which]")];
  for (const button of buttons) {
    const chosen = kinds[button.dataset.which];
    button.append(` (${chosen.length})`);
    button.addEventListener("click", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      list.replaceChildren(...chosen.map(block));
    });
  }
  list.append(...examples.map(block));
}

function showDrift({ starts, classes }) {
  if (!starts?.length || !entries(classes).length) return;
  const { xs, axis } = timeAxis(starts);
  const series = entries(classes).map(([name, values], place) => ({
    name, colour: CLASS_COLOURS[place % CLASS_COLOURS.length], dash: place < CLASS_COLOURS.length ? "" : "7 4",
    thick: true, points: xs.map((x, at) => ({ x, y: values[at] })),
  }));
  new Chart(reveal("#drift").querySelector(".plot"), {
    ...axis, label: "Share of each class over time", yLabel: "share of rows", yBounds: [0], yText: percent, series,
  });
}

showTheme();
if (report.over_time) showOverTime(report.over_time);
if (report.models) showResults(report.models);
if (report.calibration) showCalibration(report.calibration);
if (report.precedents) showPrecedents(report.precedents);
if (report.precedents) showExamples(report.precedents);
if (report.label_rates) showDrift(report.label_rates);
for (const section of document.querySelectorAll("section:not([hidden])")) {
  find("#links").append(element("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
}
