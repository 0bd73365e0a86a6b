"use strict";
// The sections of the report, top to bottom. A section whose part of the report is missing is left out.

const report = JSON.parse(document.getElementById("report").textContent);
const drawing = JSON.parse(document.getElementById("drawing").textContent);

const MEASURES = {
  accuracy: ["accuracy", "share of answers that were right; higher is better"],
  balanced_accuracy: ["balanced accuracy", "the same, every class counting alike; higher is better"],
  nll: ["log loss", "how surprised by the truth; lower is better"],
  brier: ["Brier score", "squared distance of the probabilities from the truth; lower is better"],
  ece: ["calibration error", "gap between confidence and accuracy; lower is better"],
  kappa: ["kappa", "accuracy beyond that of random answers of the same frequencies; higher is better"],
  coverage: ["coverage", "how often the truth is among the classes given 90% together; .9 is ideal"],
};
const COLUMNS = {
  nll: "log loss", ece: "calibration error", auc: "AUC", first_bin: "first period", worst_bin: "worst period",
  in_distribution: "before the cutoff",
};
const MODELS = {
  recollect: "our model: weights frozen at the cutoff, history growing with every label",
  recollect_refit: "our model, trained anew as well as time goes on",
  no_context: "our model without precedents, frozen at the cutoff",
  majority: "always the most common label of the past",
  previous_label: "always the label that became known last",
  recent_neighbours: "a vote of the nearest rows among the newest",
  finetuned: "a small network, trained further period by period",
  arf: "adaptive random forest, learning from every label",
  leveraging_bagging: "leveraging bagging, learning from every label",
  hoeffding_adaptive: "adaptive Hoeffding tree, learning from every label",
};
const FAMILIES = { logreg: "logistic regression", lightgbm: "LightGBM" };
const TIMES = {
  frozen: "fitted once, before the cutoff", refit_period: "fitted anew each period, on the last period",
  refit_year: "fitted anew each period, on the last year",
};
const CLASS_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#808080", "currentColor"];

const styleOf = (name) => drawing.models[name] || { colour: "currentColor", dash: "", ours: false };
const spoken = (name) => name.replaceAll("_", " ");
const entries = (thing) => Object.entries(thing || {}).filter(([, value]) => value !== null && value !== undefined);
const count = (value) => (isNumber(value) ? value.toLocaleString("en") : "–");

// ---- times, ages and durations ----

const isTime = (starts) => starts.some((start) => typeof start === "string");

function moment(value, time) {
  if (!time) return value === null ? NaN : Number(value);
  const zoned = /T.*(Z|[+-]\d\d:?\d\d)$/.test(value) || !String(value).includes("T");
  return Date.parse(zoned ? value : `${value}Z`);
}

const told = (value) => (typeof value === "string" ? value.replace("T", " ").replace(/ 00:00:00$/, "") : brief(value));
const timeText = (time) => (x) => told(time ? new Date(x).toISOString().slice(0, 19) : x);

// The x axis of a chart over time: where things start, and the cutoff if it can be placed there.
function timeAxis(starts) {
  const time = isTime(starts);
  const missing = report.cutoff === null || report.cutoff === undefined;
  const cutoff = missing ? NaN : moment(report.cutoff, time);
  return { xs: starts.map((start) => moment(start, time)), axis: { time, cutoff, xText: timeText(time), xLabel: "time" } };
}

function age(value, unit) {
  if (!isNumber(value)) return "–";
  if (unit !== "days") return unit ? `${brief(value)} ${unit}` : brief(value);
  const [size, word] = [[365.25, "years"], [1, "days"], [1 / 24, "h"], [1 / 1440, "min"], [0, "s"]]
    .find(([least]) => value >= least * 2 || least === 0);
  return `${brief(value / (size || 1 / 86400))} ${word}`;
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  return seconds < 120 ? `${brief(seconds)} s` : seconds < 7200 ? `${brief(seconds / 60)} min` : `${brief(seconds / 3600)} h`;
}

// ---- small parts ----

const main = element("main");
const links = element("nav", { "aria-label": "Sections" });

function section(id, title, note) {
  const found = element("section", { id, "aria-labelledby": `${id}-title` }, element("h2", { id: `${id}-title` }, title));
  if (note) found.append(element("p", { class: "soft" }, note));
  main.append(found);
  links.append(element("a", { href: `#${id}` }, title));
  return found;
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return element("dl", { class: "facts" }, known.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

function wide(label, table) {
  return element("div", { class: "wide", role: "region", "aria-label": label, tabindex: "0" }, table);
}

function textTable(label, heads, rows) {
  return wide(label, element("table", { class: "texts" },
    element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, rows.map((cells) => element("tr", {}, cells.map((cell) => element("td", {}, cell)))))));
}

// Buttons of which one is pressed.
function choice(label, options, choose) {
  const buttons = options.map(([name, value]) => element("button", {
    type: "button", "aria-pressed": "false", onclick: (event) => {
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.currentTarget));
      choose(value);
    },
  }, name));
  return element("div", { class: "controls", role: "group", "aria-label": label }, buttons);
}

const inWords = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

function fields(row) {
  return element("ul", { class: "fields" }, Object.entries(row || {}).map(([name, value]) => element("li", {}, element("span", {}, `${name} `), inWords(value))));
}

// ---- sections ----

function header() {
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const toggle = element("button", { type: "button", id: "theme", onclick: () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    toggle.textContent = dark() ? "Light page" : "Dark page";
  } }, dark() ? "Light page" : "Dark page");
  return element("header", {}, element("h1", {}, `Recollect on ${report.data || "your data"}`), toggle);
}

function verdict() {
  const rows = report.rows || {};
  if (report.verdict) {
    const { helps, headline, lines } = report.verdict;
    main.append(element("div", { class: helps ? "verdict helps" : "verdict", id: "verdict" },
      element("h2", {}, headline || ""), element("ul", {}, (lines || []).map((line) => element("li", {}, line)))));
  }
  const cutoff = report.cutoff === null || report.cutoff === undefined ? null : told(report.cutoff);
  const asked = isNumber(rows.asked) ? count(rows.asked) : null;
  main.append(facts([
    ["training ends (cutoff)", cutoff], ["rows before", isNumber(rows.past) ? count(rows.past) : null],
    ["rows asked after", asked], ["label delay", report.label_delay], ["recollect", report.recollect],
  ]), links);
}

function overTime(data) {
  const names = entries(data.models).map(([name]) => name);
  const defined = (measure) => names.some((name) => data.models[name][measure]?.mean?.some(isNumber));
  const measures = [...new Set(names.flatMap((name) => Object.keys(data.models[name])))].filter(defined);
  if (!measures.length) return;
  const part = section("over-time", "Over time", "Every period after the cutoff, one after the other. Ours are drawn thick; a band spans the lowest and the highest of several seeds.");
  const { xs, axis } = timeAxis(data.starts);
  const seriesOf = (measure) => names.map((name) => {
    const { mean = [], low = [], high = [] } = data.models[name][measure] || {};
    const points = xs.map((x, place) => ({ x, y: mean[place], low: low[place], high: high[place] }));
    return { name, ...styleOf(name), thick: styleOf(name).ours, points };
  });
  const [title, hint] = [(measure) => (MEASURES[measure] || [spoken(measure)])[0], (measure) => (MEASURES[measure] || ["", ""])[1]];
  const options = (measure) => ({ series: seriesOf(measure), yLabel: title(measure), label: `${title(measure)} over time` });
  const explained = element("span", { class: "soft small", "aria-live": "polite" }, hint(measures[0]));
  const select = element("select", { id: "measure", onchange: () => {
    chart.update(options(select.value));
    explained.textContent = hint(select.value);
  } }, measures.map((measure) => element("option", { value: measure }, title(measure))));
  const rowsAt = new Map(xs.map((x, place) => [x, data.rows?.[place]]));
  const xText = (x) => axis.xText(x) + (isNumber(rowsAt.get(x)) ? `, ${count(rowsAt.get(x))} rows` : "");
  part.append(element("div", { class: "controls" }, element("label", { for: "measure" }, "Measure"), select, explained));
  const host = element("div", { id: "over-time-chart" });
  part.append(host);
  const chart = new Chart(host, { ...axis, xText, yText: short, xLabel: "start of the period", ...options(measures[0]) });
  const ours = names.filter((name) => styleOf(name).ours);
  host.append(choice("Show models", [["All models", names], ["Ours only", ours], ["None", []]], (shown) => chart.show(shown)));
}

function results(models) {
  const names = Object.keys(models);
  const value = (name, column) => models[name]?.[column]?.mean;
  const columns = drawing.columns.filter((column) => names.some((name) => isNumber(value(name, column))));
  if (!columns.length) return;
  const part = section("results", "Results", "Means over the periods after the cutoff. Best of each column in bold; press a heading to sort.");
  const less = (column) => drawing.less_is_better.includes(column);
  const means = (column) => names.map((name) => value(name, column)).filter(isNumber);
  const best = Object.fromEntries(columns.map((column) => [column, (less(column) ? Math.min : Math.max)(...means(column))]));
  const head = element("tr"), body = element("tbody");
  let sorted = null, up = false;

  function cell(name, column) {
    const found = models[name]?.[column];
    if (!isNumber(found?.mean)) return element("td", { class: "soft" }, "–");
    const several = found.seeds?.length > 1;
    const text = short(found.mean) + (several ? ` ±${short(found.std)}` : "");
    return element("td", { title: several ? `seeds: ${found.seeds.map(short).join(", ")}` : null }, found.mean === best[column] ? element("b", {}, text) : text);
  }
  function sort(column) {
    up = sorted === column ? !up : column === "model" || less(column);
    sorted = column;
    const order = (one, other) => {
      if (column === "model") return one.localeCompare(other) * (up ? 1 : -1);
      const [first, second] = [value(one, column), value(other, column)];
      return isNumber(first) && isNumber(second) ? (first - second) * (up ? 1 : -1) : isNumber(second) - isNumber(first);
    };
    const thing = (name) => element("tr", { class: styleOf(name).ours ? "ours" : null }, element("th", { scope: "row" }, name), columns.map((each) => cell(name, each)));
    body.replaceChildren(...[...names].sort(order).map(thing));
    for (const each of head.children) {
      const mine = each.dataset.column === column;
      each.setAttribute("aria-sort", mine ? (up ? "ascending" : "descending") : "none");
      each.querySelector("span").textContent = mine ? (up ? " ↑" : " ↓") : "";
    }
  }
  head.append(...["model", ...columns].map((column) => element("th", { scope: "col", "data-column": column },
    element("button", { type: "button", onclick: () => sort(column) }, COLUMNS[column] || spoken(column), element("span", { "aria-hidden": "true" })))));
  sort(columns[0]);
  part.append(wide("Results of every model", element("table", { class: "results" }, element("thead", {}, head), body)));

  const meaning = (name) => {
    const family = Object.keys(FAMILIES).find((each) => name.startsWith(`${each}_`));
    return MODELS[name] || (family && TIMES[name.slice(family.length + 1)] && `${FAMILIES[family]}, ${TIMES[name.slice(family.length + 1)]}`);
  };
  const known = names.filter(meaning);
  if (known.length) {
    part.append(element("details", { class: "plain" }, element("summary", {}, "What these models are"),
      textTable("What the models are", ["model", "what it is"], known.map((name) => [name, meaning(name)]))));
  }
}

function calibration(models) {
  const known = entries(models).filter(([, bins]) => bins.length);
  if (!known.length) return;
  const part = section("calibration", "Calibration", "Of answers given with some confidence, how many were right? On the dotted line, confidence can be taken at its word; below it, answers are too sure. Larger dots stand for more rows.");
  const most = Math.max(...known.flatMap(([, bins]) => bins.map((bin) => bin.rows || 0)), 1);
  const series = known.map(([name, bins]) => ({ name, ...styleOf(name), thick: styleOf(name).ours, points: bins.map((bin) => ({
    x: bin.confidence, y: bin.accuracy, radius: 2 + 5 * Math.sqrt((bin.rows || 0) / most), note: `${count(bin.rows)} rows`,
  })) }));
  const ours = series.filter((each) => each.thick).map((each) => each.name);
  const hidden = series.length > 6 && ours.length ? series.map((each) => each.name).filter((name) => !ours.includes(name)) : [];
  new Chart(part, {
    label: "Accuracy by confidence", xLabel: "confidence of the answer", yLabel: "share that was right", series, ideal: true, single: true,
    xBounds: [1], yBounds: [0, 1], xText: (x) => `confidence ${percent(x)}`, yText: (y) => `${percent(y)} right`,
  }, hidden);
}

function precedents(story) {
  const ages = story.ages;
  const sum = (values) => (values || []).reduce((total, value) => total + value, 0);
  const periods = [["entropy", "How widely the attention is shared", "Entropy of the attention over the precedents of an answer, in nats: 0 when one precedent has it all. Its exponential says how many would share it evenly."],
    ["median_age", "How old precedents are", "Median age of the precedents in every period."]];
  const known = periods.filter(([name]) => story[name]?.some(isNumber));
  const counted = ages?.edges && sum(ages.shown) > 0;
  if (!counted && !known.length) return;
  const part = section("precedents", "Precedents", "What the model looked up: how old it was, and how much of it counted.");
  if (counted) {
    const first = ages.shown.findIndex((value) => value > 0);
    const edges = ages.edges.slice(first);
    const share = (values) => values.slice(first).map((value, place) => ({ x: place + 0.5, y: value / (sum(values) || 1) }));
    const series = [{ name: "precedents shown", colour: "#56B4E9", thick: true, points: share(ages.shown) }];
    if (ages.attention) series.push({ name: "attention paid", colour: "#D55E00", thick: true, points: share(ages.attention) });
    part.append(element("h3", {}, "Age of precedents"));
    const ticks = (width) => {
      const every = Math.ceil(edges.length / Math.max(2, Math.floor(width / 75)));
      return edges.map((edge, place) => ({ at: place, text: age(edge, story.unit) })).filter((_, place) => place % every === 0);
    };
    const xText = (x) => `${age(edges[x - 0.5], story.unit)} to ${age(edges[x + 0.5], story.unit)} old`;
    new Chart(part, { label: "Histogram of the age of precedents", xLabel: "age at the moment of the answer, in widening steps", yLabel: "share", bars: true,
      series, xTicks: ticks, xBounds: [0, edges.length - 1], yBounds: [0], xText, yText: percent });
  }
  for (const [name, title, note] of known) {
    const values = story[name];
    // The periods are those of the curves over time; without these they are counted.
    const starts = report.over_time?.starts?.length === values.length ? report.over_time.starts : null;
    const { xs, axis } = starts ? timeAxis(starts) : { xs: values.map((_, place) => place + 1), axis: { xText: (x) => `period ${x}`, xLabel: "period" } };
    part.append(element("h3", {}, title), element("p", { class: "soft" }, note));
    const yText = name === "entropy" ? (y) => `${short(y)}, as if ${brief(Math.exp(y))} shared evenly` : (y) => age(y, story.unit);
    const yLabel = name === "entropy" ? "entropy (nats)" : `median age${story.unit ? ` (${story.unit})` : ""}`;
    const points = xs.map((x, place) => ({ x, y: values[place] }));
    new Chart(part, { ...axis, label: title, yLabel, yBounds: [0], yText, series: [{ name: spoken(name), ...styleOf("recollect"), colour: "#D55E00", thick: true, points }] });
  }
}

function examples(found, unit) {
  if (!found?.length) return;
  const part = section("examples", "Answers and their precedents", "Some answers, right and wrong, with the precedents that counted most.");
  const list = element("div");
  const makeOne = (example) => {
    const right = example.label === example.predicted;
    const rows = (example.precedents || []).map((one) => [
      percent(one.weight), age(one.age, unit),
      element("span", { class: one.label === example.label ? "agrees" : "differs" }, `${one.label === example.label ? "✓" : "✗"} ${inWords(one.label)}`),
      inWords(one.id), fields(one.input),
    ]);
    return element("details", { class: `example ${right ? "right" : "wrong"}` },
      element("summary", {}, element("span", { class: "mark" }, right ? "✓ right" : "✗ wrong"),
        element("span", {}, `answered ${inWords(example.predicted)} (${percent(example.probability)})`), element("span", {}, `was ${inWords(example.label)}`)),
      element("div", { class: "inside" },
        element("p", { class: "soft small" }, `${inWords(example.id)}, ${told(example.time)}`), fields(example.input),
        rows.length ? textTable("Precedents", ["attention", "age", "label (✓ as the truth)", "id", "input"], rows) : element("p", {}, "No precedent was visible.")));
  };
  const show = (which) => list.replaceChildren(...found.filter((each) => which === null || (each.label === each.predicted) === which).map(makeOne));
  const wrong = found.filter((each) => each.label !== each.predicted).length;
  const buttons = choice("Which answers", [[`All (${found.length})`, null], [`Right (${found.length - wrong})`, true], [`Wrong (${wrong})`, false]], show);
  buttons.firstChild.setAttribute("aria-pressed", "true");
  part.append(buttons, list);
  show(null);
}

function labelRates(rates) {
  const classes = entries(rates.classes);
  if (!classes.length || !rates.starts?.length) return;
  const part = section("drift", "The data's own drift", "Share of every class over the whole time, before the cutoff too. Labels that keep their shares may still change their meaning.");
  const { xs, axis } = timeAxis(rates.starts);
  const series = classes.map(([name, values], place) => ({
    name, colour: CLASS_COLOURS[place % CLASS_COLOURS.length], dash: place < CLASS_COLOURS.length ? "" : "7 4",
    points: xs.map((x, at) => ({ x, y: values[at] })),
  }));
  new Chart(part, { ...axis, label: "Share of every class over time", yLabel: "share of rows", yBounds: [0], yText: percent, series });
}

function cost(found) {
  const seconds = entries(found.seconds).filter(([, value]) => isNumber(value)).sort(([, one], [, other]) => other - one);
  const single = [["training", isNumber(found.train_seconds) ? duration(found.train_seconds) : null], ["one answer", isNumber(found.answer_ms) ? `${brief(found.answer_ms)} ms` : null],
    ["peak memory", isNumber(found.peak_memory_mb) ? `${count(Math.round(found.peak_memory_mb))} MB` : null]];
  if (!seconds.length && single.every(([, value]) => value === null)) return;
  const part = section("cost", "Cost", "What it took on the machine that made this report.");
  part.append(facts(single));
  if (!seconds.length) return;
  const bar = (value) => {
    const drawn = element("span", { class: "bar" });
    drawn.style.width = `${(100 * value) / (seconds[0][1] || 1)}%`;
    return drawn;
  };
  part.append(element("h3", {}, "Time of every model, all its seeds together"), wide("Time of every model", element("table", { class: "seconds" },
    element("tbody", {}, seconds.map(([name, value]) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, duration(value)), element("td", {}, bar(value))))))));
}

function settings() {
  const flat = (thing, path) => (thing !== null && typeof thing === "object" && !Array.isArray(thing) && Object.keys(thing).length
    ? Object.entries(thing).flatMap(([name, value]) => flat(value, path ? `${path}.${name}` : name)) : [[path, inWords(thing)]]);
  const notes = report.notes || [], schema = entries(report.schema), config = entries(report.config).flatMap(([name, value]) => flat(value, name));
  if (!notes.length && !schema.length && !config.length) return;
  const part = section("settings", "Data and settings");
  if (notes.length) part.append(element("h3", {}, "What was handled"), element("ul", {}, notes.map((note) => element("li", {}, note))));
  const folded = (title, heads, rows) => rows.length && part.append(element("details", { class: "plain" }, element("summary", {}, `${title} (${rows.length})`), textTable(title, heads, rows)));
  folded("Columns", ["column", "used as"], schema.map(([name, role]) => [name, inWords(role)]));
  folded("Settings", ["setting", "value"], config);
}

document.getElementById("page").append(header(), main);
verdict();
if (report.over_time?.starts?.length) overTime(report.over_time);
if (report.models) results(report.models);
if (report.calibration) calibration(report.calibration);
if (report.precedents) precedents(report.precedents);
if (report.precedents) examples(report.precedents.examples, report.precedents.unit);
if (report.label_rates) labelRates(report.label_rates);
if (report.cost) cost(report.cost);
settings();
main.append(element("footer", {}, `Made by Recollect${report.recollect ? ` ${report.recollect}` : ""}. This page is complete in itself: it asks nothing of any network.`));
