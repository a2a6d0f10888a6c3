// Small helpers: elements of HTML and SVG, and numbers as text.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((each) => each !== null && each !== undefined));
  return element;
}

/** Create an HTML element; attributes that start with "on" are event listeners. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Write a number with about four digits. */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en-US");
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toPrecision(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${at ? value.toPrecision(3) : value} ${units[at]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.9995) return `${Math.max(1, Math.round(1000 * seconds))} ms`;
  if (seconds < 90) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Write how long ago something was, in seconds. */
export function ago(seconds) {
  return seconds < 2 ? "now" : `${duration(seconds)} ago`;
}

/** Show a share from 0 to 1 as a bar with its percentage. */
export function shareBar(value, label) {
  return html("span", { class: "share" }, html("progress", { max: 1, value, "aria-label": label }), ` ${percent(value)}`);
}

/** Write how long ago a time (ISO 8601) was. */
export function timeAgo(text) {
  return text ? html("span", { title: text }, ago((Date.now() - Date.parse(text)) / 1000)) : "–";
}

/** Make a table; cells are text or elements, columns whose name starts with "#" are numbers. */
export function table(columns, rows, caption = "", style = "") {
  const names = columns.map((name) => name.replace(/^#/, ""));
  const kind = (i) => (columns[i].startsWith("#") ? "n" : false);
  return html("table", { class: style },
    caption ? html("caption", {}, caption) : null,
    html("thead", {}, html("tr", {}, ...names.map((name, i) =>
      html("th", { scope: "col", class: kind(i) }, name)))),
    html("tbody", {}, ...rows.map((cells) => html("tr", {}, ...cells.map((cell, i) =>
      html(i ? "td" : "th", { class: kind(i), scope: i ? false : "row", "data-name": names[i] },
        cell ?? "–"))))));
}
