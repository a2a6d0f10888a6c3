// Charts as SVG, drawn at the width of their element and again when it changes.

import { html, number, svg } from "./elements.js";

const MARGIN = { top: 10, right: 12, bottom: 34, left: 52 };

/** Choose about `count` round numbers between two values. */
export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const result = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    result.push(Number((i * step).toPrecision(12)));
  }
  return result;
}

function extent(values) {
  const known = values.filter((each) => Number.isFinite(each));
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  return (value) => from + ((value - low) / span) * (to - from);
}

/** Lines over numbers. Arrow keys and the pointer read the values at one place. */
export class LineChart {
  constructor({ label, xLabel, yLabel, height = 260, legend = true, format = number }) {
    Object.assign(this, { label, xLabel, yLabel, height, format });
    this.hidden = new Set();
    this.at = null;
    this.data = { x: [], series: [] };
    this.plot = html("div", {
      class: "plot", tabindex: "0", role: "img", onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event), onpointerleave: () => this.read(null),
      onblur: () => this.read(null),
    });
    this.readout = html("p", { class: "readout", "aria-live": "polite" });
    this.legend = legend ? html("div", { class: "legend" }) : null;
    this.element = html("div", { class: "chart" }, this.legend, this.plot, this.readout);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** Show x and series of {name, color, dash, width, values}; `mark` is a place on the x axis. */
  update(data) {
    this.data = data;
    if (this.legend) this.updateLegend();
    this.draw();
  }

  updateLegend() {
    const names = this.data.series.map((each) => each.name).join("\n");
    if (names === this.names) return;
    this.names = names;
    this.legend.replaceChildren(...this.data.series.map((each) => {
      const line = svg("svg", { width: 26, height: 10, "aria-hidden": "true" }, svg("line", {
        x1: 1, x2: 25, y1: 5, y2: 5, class: `line ${each.color}`, "stroke-dasharray": each.dash,
        "stroke-width": each.width ?? 2,
      }));
      const button = html("button", { type: "button", "aria-pressed": "true" }, line, each.name);
      button.addEventListener("click", () => {
        if (!this.hidden.delete(each.name)) this.hidden.add(each.name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(each.name)));
        this.draw();
      });
      return button;
    }));
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const { x, mark } = this.data;
    const series = this.data.series.filter((each) => !this.hidden.has(each.name));
    const [left, right] = extent(x);
    let [low, high] = this.data.range ?? extent(series.flatMap((each) => each.values));
    if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
    else if (!this.data.range) [low, high] = [low - 0.04 * (high - low), high + 0.04 * (high - low)];
    const bottom = this.height - MARGIN.bottom;
    this.toX = scale(left, right === left ? left + 1 : right, MARGIN.left, width - MARGIN.right);
    this.toY = scale(low, high, bottom, MARGIN.top);
    const rows = ticks(low, high, this.height > 180 ? 5 : 3);
    const columns = ticks(left, right, Math.max(2, Math.floor(width / 90)))
      .filter((each) => this.data.fractions || Number.isInteger(each));
    const root = svg("svg", { width, height: this.height, "aria-hidden": "true" },
      ...rows.flatMap((each) => [
        svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.toY(each), y2: this.toY(each) }),
        svg("text", { x: MARGIN.left - 6, y: this.toY(each) + 4, "text-anchor": "end" }, this.format(each, 3)),
      ]),
      ...columns.map((each) =>
        svg("text", { x: this.toX(each), y: bottom + 16, "text-anchor": "middle" }, (this.data.xFormat ?? number)(each))),
      svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
      svg("text", { class: "title", x: (MARGIN.left + width) / 2, y: this.height - 3, "text-anchor": "middle" }, this.xLabel),
      mark >= left && mark <= right
        ? svg("line", { class: "mark", x1: this.toX(mark), x2: this.toX(mark), y1: MARGIN.top, y2: bottom }) : null,
      ...series.flatMap((each) => this.line(each)));
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    root.append(this.cursor);
    this.plot.replaceChildren(root);
    this.plot.setAttribute("aria-label", this.describe());
    this.read(this.at);
  }

  line(each) {
    const parts = [[]];
    each.values.forEach((value, i) => {
      if (Number.isFinite(value)) parts.at(-1).push([this.toX(this.data.x[i]), this.toY(value)]);
      else if (parts.at(-1).length) parts.push([]);
    });
    return parts.filter((points) => points.length).map((points) => points.length === 1
      ? svg("circle", { class: `dot ${each.color}`, cx: points[0][0], cy: points[0][1], r: 3 })
      : svg("path", {
        class: `line ${each.color}`, "stroke-dasharray": each.dash, "stroke-width": each.width ?? 2,
        "data-points": points.length,
        d: points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join(""),
      }));
  }

  describe() {
    const last = this.data.series.map((each) => `${each.name} ${this.format(each.values.at(-1))}`);
    return `${this.label}. Last values: ${last.join(", ") || "none"}`;
  }

  point(event) {
    const place = event.clientX - this.plot.getBoundingClientRect().left;
    const distances = this.data.x.map((each) => Math.abs(this.toX(each) - place));
    this.read(distances.length ? distances.indexOf(Math.min(...distances)) : null);
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !this.data.x.length) return;
    event.preventDefault();
    const last = this.data.x.length - 1;
    this.read(Math.max(0, Math.min(last, (this.at ?? last) + step)));
  }

  read(at) {
    this.at = at;
    if (!this.cursor) return;
    const shown = at !== null && at < this.data.x.length;
    this.cursor.setAttribute("visibility", shown ? "visible" : "hidden");
    if (!shown) return this.readout.replaceChildren(this.data.note ?? "");
    const x = this.data.x[at];
    this.cursor.setAttribute("x1", this.toX(x));
    this.cursor.setAttribute("x2", this.toX(x));
    const values = this.data.series.filter((each) => !this.hidden.has(each.name))
      .map((each) => `${each.name} ${this.format(each.values[at])}`);
    this.readout.replaceChildren(`${this.xLabel} ${(this.data.xFormat ?? number)(x)}: ${values.join(", ")}`);
  }
}

/** Points of two numbers, with the diagonal on which they are equal, and intervals if given. */
export function scatter({ points, xLabel, yLabel, label, size = 240, unit = false }) {
  const all = points.flatMap(([a, b]) => [a, b]);
  let [low, high] = unit ? [0, 1] : extent(all);
  if (!unit) [low, high] = [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
  const toX = scale(low, high, MARGIN.left, size - MARGIN.right);
  const toY = scale(low, high, size - MARGIN.bottom, MARGIN.top);
  const clip = (value) => Math.max(low, Math.min(high, value));
  const marks = ticks(low, high, 4);
  return svg("svg", { class: "scatter", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": label },
    ...marks.flatMap((each) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: size - MARGIN.right, y1: toY(each), y2: toY(each) }),
      svg("text", { x: MARGIN.left - 6, y: toY(each) + 4, "text-anchor": "end" }, number(each, 3)),
      svg("text", { x: toX(each), y: size - MARGIN.bottom + 15, "text-anchor": "middle" }, number(each, 3)),
    ]),
    svg("line", { class: "mark", x1: toX(low), y1: toY(low), x2: toX(high), y2: toY(high) }),
    ...points.filter((each) => Number.isFinite(each[2]) && each[2] !== null && each[3] !== null).map(([a, , from, to]) =>
      svg("line", { class: "interval", x1: toX(a), x2: toX(a), y1: toY(clip(from)), y2: toY(clip(to)) })),
    ...points.map(([a, b, , , radius]) =>
      svg("circle", { class: "dot c0", cx: toX(a), cy: toY(b), r: radius ?? 3 })),
    svg("text", { class: "title", x: (MARGIN.left + size) / 2, y: size - 3, "text-anchor": "middle" }, xLabel),
    svg("text", {
      class: "title", x: -(size - MARGIN.bottom) / 2, y: 11, transform: "rotate(-90)", "text-anchor": "middle",
    }, yLabel));
}

/** A cell whose background shows a share from 0 to 1. */
export function heatCell(share, text, title) {
  const cell = html("td", { class: "heat", title }, text);
  const level = Math.max(0, Math.min(1, share ?? 0));
  cell.style.setProperty("--share", `${Math.round(100 * level)}%`);
  if (level > 0.8) cell.classList.add("strong");
  return cell;
}
