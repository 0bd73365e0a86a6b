"use strict";
// Charts in plain SVG. Texts are only ever set as text, so nothing in the data can become HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const short = (value) => (isNumber(value) ? value.toFixed(3).replace(/^(-?)0\./, "$1.") : "–");
const brief = (value, digits = 3) => (isNumber(value) ? String(Number(value.toPrecision(digits))) : "–");
const percent = (value) => (isNumber(value) ? `${(100 * value).toFixed(1)}%` : "–");

// ---- ticks: a list of {at, text} ----

function numberTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const digits = Math.min(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), 12);
  const found = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) {
    found.push({ at: place * step, text: (place * step).toFixed(digits).replace(/^-(0\.?0*)$/, "$1") });
  }
  return found;
}

const MINUTE = 60e3;
const DAY = 1440 * MINUTE;

function timeTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const iso = (at, from, to) => new Date(at).toISOString().slice(from, to).replace("T", " ");
  const even = [1 / 60, 1 / 4, 1, 5, 15, 30, 60, 180, 360, 720, 1440, 2880, 7 * 1440, 14 * 1440].map((m) => m * MINUTE);
  const step = even.find((each) => each >= rough);
  const found = [];
  if (step) {
    const [from, to] = step < MINUTE ? [11, 19] : step < DAY ? [5, 16] : [0, 10];
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push({ at, text: iso(at, from, to) });
    return found;
  }
  const months = [1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200].find((each) => each * 30.5 * DAY >= rough) || 6000;
  const first = new Date(low).getUTCFullYear() * 12;
  for (let month = first - (first % months); ; month += months) {
    const at = new Date(0).setUTCFullYear(Math.floor(month / 12), month % 12, 1);
    if (!(at <= high)) return found;
    if (at >= low) found.push({ at, text: iso(at, 0, months < 12 ? 7 : 4) });
  }
}

// ---- one chart: lines with bands, or bars, with a legend, and values on hover, touch and arrow keys ----
//
// label, xLabel, yLabel    what it shows, and its axes
// series                   [{name, colour, dash, thick, points: [{x, y, low, high, radius, note}]}]; undefined: y null
// time, xTicks, ideal      x counts milliseconds; ticks of one's own; draw the diagonal
// cutoff, xBounds, yBounds where the training data end; what the axes must reach
// bars                     series side by side, x from 0, one wide each
// single                   point at one point rather than at all that share its x
// xText, yText             a value in words

const MARGIN = { top: 32, right: 14, bottom: 46, left: 52 };

class Chart {
  constructor(host, options, hidden = []) {
    this.options = options;
    this.hidden = new Set(hidden);
    this.at = null;
    this.tip = element("div", { class: "tip", role: "status", hidden: "" });
    this.frame = element("div", { class: "chart" });
    this.legend = element("ul", { class: "legend", "aria-label": "Shown in the chart" });
    host.append(this.frame, this.legend);
    this.drawLegend();
    new ResizeObserver(() => this.frame.clientWidth !== this.width && this.draw()).observe(this.frame);
    this.draw();
  }

  update(options) {
    Object.assign(this.options, options);
    this.draw();
  }

  show(names) {
    this.hidden = new Set(this.options.series.map((each) => each.name).filter((name) => !names.includes(name)));
    this.drawLegend();
    this.draw();
  }

  shown() {
    return this.options.series.filter((each) => !this.hidden.has(each.name));
  }

  drawLegend() {
    const series = this.options.series;
    this.legend.hidden = series.length < 2;
    const toggle = (name, event) => {
      const pressed = this.hidden.delete(name) || !this.hidden.add(name);
      event.currentTarget.setAttribute("aria-pressed", pressed);
      this.draw();
    };
    this.legend.replaceChildren(...series.map((each) => {
      const pressed = String(!this.hidden.has(each.name));
      const settings = { type: "button", "aria-pressed": pressed, onclick: (event) => toggle(each.name, event) };
      return element("li", {}, element("button", settings, swatch(each), each.name));
    }));
  }

  draw() {
    const { options, frame } = this;
    const width = (this.width = frame.clientWidth);
    if (!width) return;
    const height = Math.round(options.ideal ? Math.min(width, 440) : Math.min(390, Math.max(280, width * 0.42)));
    const series = this.shown();
    const points = series.flatMap((each) => each.points).filter((point) => isNumber(point.x) && isNumber(point.y));
    const xs = [...points.map((point) => point.x), ...(options.xBounds || [])];
    if (isNumber(options.cutoff)) xs.push(options.cutoff);
    const ys = points.flatMap((point) => [point.y, point.low, point.high]).filter(isNumber);
    const [left, right] = spread(xs, 0);
    const [low, high] = spread([...ys, ...(options.yBounds || [])], 0.06);
    const [bottom, top] = [options.yBounds?.[0] ?? low, options.yBounds?.[1] ?? high];
    const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
    this.toX = (x) => MARGIN.left + ((x - left) / (right - left)) * inner.width;
    this.toY = (y) => MARGIN.top + (1 - (y - bottom) / (top - bottom)) * inner.height;

    const svg = shape("svg", {
      viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0",
      "aria-label": `${options.label}. Use the left and right arrow keys to read values.`,
      onpointermove: (event) => this.pointTo(event), onpointerdown: (event) => this.pointTo(event),
      onpointerleave: () => this.choose(null), onblur: () => this.choose(null), onkeydown: (event) => this.step(event),
    });
    for (const tick of numberTicks(bottom, top, inner.height / 45)) {
      const y = this.toY(tick.at);
      svg.append(
        shape("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        shape("text", { x: MARGIN.left - 7, y: y + 4, "text-anchor": "end" }, tick.text),
      );
    }
    const base = height - MARGIN.bottom;
    const makeTicks = options.time ? timeTicks : numberTicks;
    for (const tick of options.xTicks ? options.xTicks(inner.width) : makeTicks(left, right, inner.width / (options.time ? 95 : 60))) {
      const x = this.toX(tick.at);
      const anchor = x > width - 40 ? "end" : x < MARGIN.left + 8 && !options.bars ? "start" : "middle";
      svg.append(
        shape("line", { class: "axis", x1: x, x2: x, y1: base, y2: base + 5 }),
        shape("text", { x: anchor === "end" ? width - 2 : x, y: base + 19, "text-anchor": anchor }, tick.text),
      );
    }
    svg.append(
      shape("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: base, y2: base }),
      shape("text", { x: MARGIN.left + inner.width / 2, y: height - 8, "text-anchor": "middle" }, options.xLabel || ""),
      shape("text", { x: 4, y: 11 }, options.yLabel || ""),
    );
    if (options.ideal) {
      const [from, to] = [Math.max(left, bottom), Math.min(right, top)];
      const ends = { x1: this.toX(from), y1: this.toY(from), x2: this.toX(to), y2: this.toY(to) };
      svg.append(shape("line", { class: "ideal", ...ends }));
    }
    if (isNumber(options.cutoff)) {
      const x = this.toX(options.cutoff);
      const late = x > width / 2;
      svg.append(
        shape("line", { class: "cutoff", x1: x, x2: x, y1: MARGIN.top - 14, y2: base }),
        shape("text", { x: x + (late ? -5 : 5), y: MARGIN.top - 6, "text-anchor": late ? "end" : "start" }, "cutoff"),
      );
    }
    // Those that matter most are drawn last, on top.
    const ordered = [...series].sort((one, other) => Boolean(one.thick) - Boolean(other.thick));
    svg.append(...ordered.map((each) => (options.bars ? this.bars(each, series) : this.line(each))));
    if (!points.length) {
      svg.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "nothing to draw"));
    }
    this.guide = shape("line", { class: "guide", y1: MARGIN.top, y2: base, visibility: "hidden" });
    svg.append(this.guide);
    const focused = this.svg && this.svg === document.activeElement;
    this.svg = svg;
    this.stops = options.single
      ? points.sort((one, other) => one.x - other.x)
      : [...new Set(points.map((point) => point.x))].sort((one, other) => one - other).map((x) => ({ x }));
    this.choose(null);
    frame.replaceChildren(svg, this.tip);
    if (focused) svg.focus();
  }

  line(series) {
    const group = shape("g", { "data-series": series.name });
    const look = { fill: "none", stroke: series.colour, "stroke-width": series.thick ? 2.8 : 1.3 };
    const few = series.points.length < 20;
    for (const run of unbroken(series.points)) {
      const to = (x, y) => `${this.toX(x).toFixed(1)},${this.toY(y).toFixed(1)}`;
      if (run.some((point) => point.high > point.low)) {
        const above = run.map((point) => to(point.x, point.high));
        const below = run.map((point) => to(point.x, point.low)).reverse();
        const points = [...above, ...below].join(" ");
        group.append(shape("polygon", { points, fill: series.colour, "fill-opacity": 0.18 }));
      }
      const path = run.map((point) => to(point.x, point.y)).join(" ");
      group.append(shape("polyline", { points: path, ...look, "stroke-dasharray": series.dash || "none" }));
      for (const point of few || run.length === 1 ? run : []) {
        const r = point.radius || (series.thick ? 3.5 : 2);
        group.append(shape("circle", { cx: this.toX(point.x), cy: this.toY(point.y), r, fill: series.colour }));
      }
    }
    return group;
  }

  bars(series, all) {
    const slot = this.toX(1) - this.toX(0);
    const width = (slot * 0.86) / all.length;
    return shape("g", { "data-series": series.name }, series.points.map((point) => shape("rect", {
      x: this.toX(point.x) - slot * 0.43 + all.indexOf(series) * width, y: this.toY(point.y), width,
      height: Math.max(0, this.toY(0) - this.toY(point.y)), fill: series.colour,
    })));
  }

  pointTo(event) {
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const far = (stop) => Math.hypot(this.toX(stop.x) - x, this.options.single ? this.toY(stop.y) - y : 0);
    let best = null;
    this.stops.forEach((stop, place) => {
      if (best === null || far(stop) < far(this.stops[best])) best = place;
    });
    this.choose(best);
  }

  step(event) {
    const last = this.stops.length - 1;
    const [next, before] = this.at === null ? [0, last] : [this.at + 1, this.at - 1];
    const to = { ArrowRight: next, ArrowLeft: before, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.choose(Math.min(last, Math.max(0, to)));
  }

  choose(place) {
    this.at = place;
    this.tip.hidden = place === null;
    this.guide.setAttribute("visibility", place === null ? "hidden" : "visible");
    if (place === null) return;
    const { options } = this;
    const stop = this.stops[place];
    const x = this.toX(stop.x);
    this.guide.setAttribute("x1", x);
    this.guide.setAttribute("x2", x);
    const found = this.shown().flatMap((series) => series.points
      .filter((point) => (options.single ? point === stop : point.x === stop.x && isNumber(point.y)))
      .map((point) => ({ series, point })));
    if (!options.bars) found.sort((one, other) => other.point.y - one.point.y);
    const range = ({ low, high }) => (high > low ? `${options.yText(low)} to ${options.yText(high)}` : "");
    const row = ({ series, point }) => element("tr", {},
      element("td", {}, swatch(series)), element("td", {}, series.name), element("td", {}, options.yText(point.y)),
      element("td", { class: "soft" }, point.note || range(point)));
    this.tip.replaceChildren(element("strong", {}, options.xText(stop.x)), element("table", {}, found.map(row)));
    const room = this.width - this.tip.offsetWidth;
    const left = x < this.width / 2 ? x + 12 : x - 12 - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, left))}px`;
  }
}

function swatch(series) {
  const line = { x1: 0, x2: 27, y1: 6, y2: 6, stroke: series.colour, "stroke-width": series.thick ? 3.5 : 2 };
  return shape("svg", { class: "swatch", viewBox: "0 0 27 12", "aria-hidden": "true" },
    shape("line", { ...line, "stroke-dasharray": series.dash || "none" }));
}

// The least and the greatest, with a little room; something sensible where there is one value or none.
function spread(values, room) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!(low <= high)) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * 0.05, high + (Math.abs(high) || 1) * 0.05];
  return [low - (high - low) * room, high + (high - low) * room];
}

// Runs of points that are defined: a line must not bridge what is not there.
function unbroken(points) {
  const runs = [[]];
  for (const point of points) {
    if (isNumber(point.x) && isNumber(point.y)) runs.at(-1).push(point);
    else if (runs.at(-1).length) runs.push([]);
  }
  return runs.filter((run) => run.length);
}
