// The panels of a run: each has an element and a function that shows new data.

import { LineChart, heatCell, scatter } from "./charts.js";
import { bytes, duration, html, number, percent, shareBar, table, timeAgo } from "./elements.js";

const METRICS = { auroc: "AUROC", nll: "NLL", ece: "ECE", r2: "R²", rmse: "RMSE", mae: "MAE" };
const DASHES = { local: "", assisted: "6 4", peers: "2 3" };

function panel(title, body, wide = false) {
  return html("section", { class: wide ? "panel wide" : "panel", "aria-label": title }, html("h2", {}, title), body);
}

function rename(element, title) {
  element.setAttribute("aria-label", title);
  element.querySelector("h2").textContent = title;
}

function hint(text, command) {
  return html("p", { class: "dim" }, text, command ? " " : "", command ? html("code", {}, command) : null);
}

/** Split the key of a mode, such as "local/bank". */
function modeOf(key) {
  const at = key.indexOf("/");
  return at < 0 ? [key, ""] : [key.slice(0, at), key.slice(at + 1)];
}

/** Lines of modes: one color for each party, dashed if assisted; collaborative is thick. */
function modeSeries(values) {
  const parties = [...new Set(Object.keys(values).map((key) => modeOf(key)[1]).filter(Boolean))];
  return Object.entries(values).map(([key, each]) => {
    const [mode, party] = modeOf(key);
    const color = party ? `c${parties.indexOf(party) % 8}` : "ink";
    return { name: `${mode} ${party}`.trim(), color, dash: DASHES[mode] ?? "", width: party ? 2 : 3, values: each };
  });
}

/** Small charts of every loss term, each with its own axis. */
export function termsPanel() {
  const grid = html("div", { class: "terms" });
  const charts = new Map();
  const empty = hint("The first epoch has not ended.");
  function update({ curves }) {
    const names = Object.keys(curves.terms);
    empty.hidden = names.length > 0;
    names.forEach((name, i) => {
      if (!charts.has(name)) {
        const chart = new LineChart({ label: `Loss term ${name}`, xLabel: "epoch", height: 150, legend: false });
        const last = html("span", { class: "dim" });
        grid.append(html("div", {}, html("h3", {}, name, last), chart.element));
        charts.set(name, { chart, last });
      }
      const { chart, last } = charts.get(name);
      last.textContent = number(curves.terms[name].at(-1));
      chart.update({ x: curves.epoch, mark: curves.best_epoch, series: [{ name, color: `c${i % 8}`, values: curves.terms[name] }] });
    });
  }
  return { element: panel("Training loss by term", html("div", {}, empty, grid), true), update };
}

/** Validation loss of each mode. */
export function modesPanel() {
  const chart = new LineChart({ label: "Validation loss by mode", xLabel: "epoch", height: 300 });
  const empty = hint("No epoch has been validated.");
  const title = html("p", { class: "dim" });
  function update({ curves, score_name: name }) {
    const known = Object.keys(curves.modes).length > 0;
    const modes = known ? curves.modes : { "mean of modes": curves.score.map((each) => each === null ? null : -each) };
    const scored = curves.score.some((each) => each !== null);
    empty.hidden = scored;
    chart.element.hidden = !scored;
    title.textContent = `Validation ${name ?? "loss"}, lower is better; dotted line: best epoch.`;
    chart.update({ x: curves.epoch, mark: curves.best_epoch, series: modeSeries(modes) });
  }
  return { element: panel("Validation by mode", html("div", {}, title, empty, chart.element), true), update };
}

function tag(state, kind = state) {
  return html("span", { class: `tag ${kind}` }, state);
}

function connection(status, name) {
  if (status.party_present[name]) return tag("online");
  if (status.party_stands_in?.[name]) return tag("upload stands in", "training");
  return status.waiting ? tag("waiting") : tag("absent", status.party_upload_version?.[name] ? "" : "absent");
}

/** The parties of a federation, or the tables of a run in one process. */
export function partiesPanel() {
  const body = html("div", { class: "scroll" });
  const element = panel("Parties", body, true);
  function update({ parties, status }) {
    const names = Object.keys(status?.party_present ?? status?.party_upload_version ?? parties ?? {});
    if (!names.length) return body.replaceChildren(hint("No party is known yet."));
    if (status?.party_upload_version) body.replaceChildren(uploadsTable(names, status));
    else if (status?.party_present) body.replaceChildren(connectionsTable(names, status));
    else if (names.some((name) => parties[name].version)) body.replaceChildren(versionsTable(names, parties));
    else body.replaceChildren(tablesTable(names, parties));
    body.firstChild.classList.add("cards");
  }
  return { element, update };
}

/** Interactive training, and matching: connections and traffic. */
function connectionsTable(names, status) {
  const of = (key, name) => status[key]?.[name];
  const columns = {
    "ids": [status.party_matched, (name) => of("party_matched", name) ? "matched" : "not matched"],
    "#response time": [status.party_latency_seconds, (name) => duration(of("party_latency_seconds", name))],
    "#sent": [status.party_bytes_sent, (name) => bytes(of("party_bytes_sent", name))],
    "#received": [status.party_bytes_received, (name) => bytes(of("party_bytes_received", name))],
    "#last answer took": [status.party_answer_seconds, (name) => answerTime(status, name)],
    "reason of absence": [status.party_reason, (name) => of("party_reason", name)],
  };
  const shown = Object.entries(columns).filter(([, [known]]) => known);
  return table(["party", "connection", ...shown.map(([name]) => name)],
    names.map((name) => [name, connection(status, name), ...shown.map(([, [, cell]]) => cell(name))]));
}

function answerTime(status, name) {
  return status.party_answer_seconds?.[name] ? duration(status.party_answer_seconds[name]) : "–";
}

/** What the coordinator has of each party. */
function uploadsTable(names, status) {
  const of = (key, name) => status[`party_upload_${key}`]?.[name];
  const live = Boolean(status.party_present), predicting = Boolean(status.predicting);
  const columns = ["party", ...(live ? ["connection"] : []), "upload", "#version", "#rows", "#size", "made", "usable until", "stand-in",
    ...(predicting ? ["#last answer took"] : []), "remarks"];
  return table(columns, names.map((name) => {
    const version = of("version", name), used = status.party_head_version?.[name];
    const withdrawn = of("withdrawn_rows", name);
    return [
      name, ...(live ? [connection(status, name)] : []), uploadState(status, name),
      version ? html("span", {}, number(version), used && used !== version ? small(`the head uses ${used}`) : null, part(of("part", name))) : "–",
      version ? html("span", {}, number(of("rows", name)), sent(of("part", name), of("appended", name), of("replaced", name)),
        withdrawn ? small(`${number(withdrawn)} withdrawn`) : null) : "–",
      version ? bytes(of("bytes", name)) : "–", timeAgo(of("created", name)),
      version ? of("expires", name) || "no end" : "–", version ? (of("stand_in", name) ? "allowed" : "no") : "–",
      ...(predicting ? [answerTime(status, name)] : []), remarks(status, name).join("; ") || "–",
    ];
  }));
}

/** The part of a version, and what it sent. */
function part(number_) {
  return number_ ? small(`part ${number(number_)}`) : null;
}

function sent(number_, appended, replaced) {
  return number_ ? small(`${number(appended)} new, ${number(replaced)} changed`) : null;
}

function small(text) {
  return html("small", { class: "dim" }, text);
}

function uploadState(status, name) {
  const of = (key) => status[`party_upload_${key}`]?.[name];
  const progress = status.party_encoder_progress?.[name];
  if (of("suspended")) return tag("suspended", "warn");
  if (of("version") && of("received") >= 1) return tag("stored", "finished");
  if (of("version")) return html("span", {}, tag("arriving", "waiting"), " ", shareBar(of("received"), `upload of ${name}`));
  if (of("deleted_version")) return tag("deleted", "warn");
  if (status.party_matched && !status.party_matched[name]) return tag("ids not matched", "waiting");
  if (progress > 0) return html("span", {}, tag("encoder in training", "waiting"), " ", shareBar(progress, `encoder of ${name}`));
  return tag("none yet", "waiting");
}

function remarks(status, name) {
  const of = (key) => status[`party_upload_${key}`]?.[name];
  const progress = status.party_encoder_progress?.[name];
  return [
    of("suspicious") ? `suspicious: ${of("suspicious")}` : "",
    of("suspended") ? "its certificate is revoked" : "",
    of("deleted_version") ? `version ${of("deleted_version")} was withdrawn, or its terms ended` : "",
    of("version") && of("received") >= 1 && progress > 0 && progress < 1 ? `trains another version, ${percent(progress)}` : "",
    status.party_reason?.[name] ?? "",
  ].filter(Boolean);
}

/** The uploads that a head was trained on. */
function versionsTable(names, parties) {
  return table(["party", "#version", "#rows", "#withdrawn before", "made"], names.map((name) => {
    const each = parties[name];
    return [name, number(each.version), number(each.rows), number(each.withdrawn), timeAgo(each.created)];
  }));
}

function tablesTable(names, parties) {
  return table(["party", "table", "#features", "#rows", "#shared", "#labeled", "#full"], names.map((name) => {
    const each = parties[name];
    return [name, each.table ?? "–", ...["features", "rows", "shared", "labeled", "full"].map((key) => number(each[key]))];
  }));
}

/** The heads of a coordinator; `link` is the address of one, if it has a page. */
export function headsPanel() {
  const body = html("div", { class: "scroll" });
  const kinds = { current: "finished", "in training": "training", aborted: "failed", retired: "stopped" };
  function update(heads, link = null) {
    if (!heads?.length) return body.replaceChildren(hint("No head is trained yet: the training starts when all uploads are stored."));
    body.replaceChildren(table(["head", "state", "label", "trained on", "epochs", "#best validation", "ended", "remarks"], heads.map((each) => [
      html("span", {}, link ? html("a", { href: link(each.number) }, `head ${each.number}`) : `head ${each.number}`, small(each.digest.slice(0, 8))),
      tag(each.state, kinds[each.state] ?? ""), html("span", {}, each.label, small(each.method)),
      Object.entries(each.encoders).map(([name, version]) => `${name} ${version}`).join(", ") || "–",
      each.state === "in training" ? html("span", {}, `${number(each.epoch)} of ${number(each.epochs)} `, shareBar(each.progress, `head ${each.number}`)) : number(each.epoch),
      each.best_score === null ? "–" : `${number(-each.best_score)} ${each.score_name}`, timeAgo(each.ended), headRemarks(each),
    ]), "“Trained on” names the version of each party's upload. `xvfl heads` shows the same, and changes the current head.", "cards"));
  }
  return { element: panel("Heads", body, true), update };
}

function headRemarks(head) {
  const suspicious = Object.keys(head.suspicious), left = head.left_out;
  return [...head.problems, head.ended_as, head.retired_by ? `by ${head.retired_by}` : "", suspicious.length ? `suspicious: ${suspicious.join(", ")}` : "", left.length ? `without ${left.join(", ")}` : ""]
    .filter(Boolean).join("; ") || "–";
}

/** What left a party, its withdrawals, and the use of its prediction budgets. */
export function partyPanels() {
  const left = html("div", { class: "scroll" }), withdrawn = html("div", { class: "scroll" }), budget = html("div", { class: "scroll" }), waiting = html("div", { class: "scroll" });
  const waitingPanel = panel("Waiting for your approval", waiting, true);
  const leftPanel = panel("What left this party", left, true);
  const withdrawnPanel = panel("Withdrawals", withdrawn), budgetPanel = panel("Predictions today", budget);
  function update(status) {
    const { uploads = [], receipts = [] } = status.details ?? {};
    const { approvals = [] } = status;
    waitingPanel.hidden = !approvals.length;
    waiting.replaceChildren(table(["#number", "request", "reason", "asked"], approvals.map((each) => [
      number(each.number), each.kind, each.reason, timeAgo(each.asked),
    ]), "Decide with xvfl approve CONFIG NUMBER, or NUMBER --reject.", "cards"));
    leftPanel.hidden = withdrawnPanel.hidden = status.withdrawn_rows === undefined;
    left.replaceChildren(uploads.length ? table(["version", "state", "#rows", "#size", "made", "sent", "usable until", "stand-in"], uploads.map((each) => [
      html("span", {}, `version ${each.version}`, part(each.part)), each.withdrawn ? tag("withdrawn", "warn") : Object.keys(each.left).length ? tag("uploaded", "finished") : tag("not uploaded", "waiting"),
      html("span", {}, number(each.rows), sent(each.part, each.appended, each.replaced)), bytes(each.bytes), timeAgo(each.created),
      Object.entries(each.left).map(([way, time]) => `by ${way}, ${time.replace("T", " ").slice(0, 19)}`).join("; ") || "–",
      each.expires || "no end", each.stand_in ? "allowed" : "no",
    ]), "Embeddings of the matched rows, once for each version; a part has those of new and changed rows.", "cards") : hint("Nothing yet: the encoder is not trained."));
    withdrawn.replaceChildren(html("p", {}, `${number(status.withdrawn_rows)} rows are withdrawn.`),
      receipts.length ? table(["receipt", "withdrawn", "heads that were trained on it"], receipts.map((each) => [
        each.time.replace("T", " ").slice(0, 19), each.everything ? `everything up to version ${each.version}` : each.version ? `version ${each.version}` : `${number(each.rows)} rows`,
        each.heads.join(", ") || "none",
      ]), "", "cards") : hint("No receipt of the coordinator."));
    budgetPanel.hidden = status.prediction_requests_allowed === undefined;
    if (budgetPanel.hidden) return;
    const bar = (used, allowed, name) => html("span", { class: "share" }, html("progress", { max: allowed, value: used, "aria-label": name }), ` ${number(used)} of ${number(allowed)}`);
    budget.replaceChildren(table(["budget", "used"], [
      ["rows answered", bar(status.prediction_requests_today, status.prediction_requests_allowed, "rows answered")],
      ["answers for one row, at most", bar(status.prediction_requests_of_a_row, status.prediction_requests_of_a_row_allowed, "answers for one row")],
      ...Object.entries(status.prediction_requests_by_caller).map(([caller, rows]) => [`caller ${caller}`, `${number(rows)} rows`]),
    ], `${status.prediction_day}, UTC`));
  }
  return { elements: [waitingPanel, leftPanel, withdrawnPanel, budgetPanel], update };
}

/** Warnings of the data and of the log. */
export function warningsPanel() {
  const body = html("div", { class: "scroll" });
  function update({ events }) {
    if (!events.length) return body.replaceChildren(hint("No warnings."));
    body.replaceChildren(html("ul", { class: "warnings" }, ...[...events].reverse().map((each) => {
      const { event, time, reason, ...rest } = each;
      const more = Object.entries(rest).map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`);
      return html("li", {}, html("span", { class: "tag warn" }, (event ?? "warning").replaceAll("_", " ")), " ",
        [reason, more.join(", "), time?.replace("T", " ").slice(0, 19)].filter(Boolean).join(" · "));
    })));
  }
  return { element: panel("Warnings", body), update };
}

/** Shares of observed features: rows are columns of tables, columns are groups of rows. */
export function missingPanel() {
  const body = html("div", { class: "scroll", tabindex: "0" });
  const element = panel("What is missing where", body);
  function update(data) {
    element.classList.toggle("wide", (data?.groups?.length ?? 0) > 3);
    if (!data?.groups?.length) return body.replaceChildren(hint("This run has no map of missing features; it is written by", "xvfl train"));
    const names = data.groups.map((each) => each.parties.join(" + ") || "no party");
    const head = html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "rows observed by"),
      ...data.groups.map((each, i) => html("th", { scope: "col", class: "n" }, names[i], html("br"), `${number(each.rows)} rows`))));
    const rows = [];
    for (const party of data.parties) {
      const full = (each) => each.full[party] ?? 0;
      const label = data.columns ? html("th", { scope: "row", class: "party" }, `${party}: full rows`) : html("th", { scope: "row" }, `${party}: full rows`);
      rows.push(html("tr", {}, label, ...data.groups.map((each, i) => heatCell(full(each), percent(full(each)), `${party}, ${names[i]}`))));
      if (!data.columns) {
        rows.push(html("tr", {}, html("th", { scope: "row" }, `${party}: any feature`),
          ...data.groups.map((each, i) => heatCell(each.seen[party], percent(each.seen[party]), `${party}, ${names[i]}`))));
      }
      (data.columns?.[party] ?? []).forEach((column, at) => rows.push(html("tr", {}, html("th", { scope: "row" }, column),
        ...data.groups.map((each, i) => heatCell(each.observed[party][at], percent(each.observed[party][at]), `${party}.${column}, ${names[i]}`)))));
    }
    const sampled = data.sampled < data.rows ? `, ${number(data.sampled)} of them sampled` : "";
    body.replaceChildren(html("p", { class: "dim" }, `Share of ${data.columns ? "observed cells" : "rows"} among ${number(data.rows)} rows${sampled}.`),
      html("table", { class: "heatmap" }, head, html("tbody", {}, ...rows)));
  }
  return { element, update };
}

function mainMetric(metrics, nClasses) {
  if ("r2" in metrics) return ["r2", "R²"];
  return nClasses > 2 ? ["accuracy", "accuracy"] : ["auroc", "AUROC"];
}

/** Metrics of every mode, with a choice of the line that the next two panels show. */
export function evaluationPanels(run) {
  const lines = html("div", { class: "scroll" });
  const select = html("select", { "aria-label": "mode and party" });
  const details = html("p", {}, "Details of ", select);
  const confusion = html("div", {}), calibration = html("div", {});
  const confusionPanel = panel("Confusion matrix", confusion), calibrationPanel = panel("Calibration", calibration);
  const linesPanel = panel("Evaluation of the modes", html("div", {}, lines, details), true);
  let data = null;
  select.addEventListener("change", show);

  function show() {
    const line = data.lines[select.selectedIndex];
    const where = `${line.mode} ${line.party}, ${number(line.rows)} ${data.split} rows`;
    details.hidden = calibrationPanel.hidden = data.task === "regression";
    if (data.task === "regression") {
      rename(confusionPanel, "Predictions and labels");
      confusion.replaceChildren(...pairsPlot(data));
      return;
    }
    confusion.replaceChildren(...confusionTable(line, data.classes ?? [], where));
    calibration.replaceChildren(...reliabilityPlot(line, where));
  }

  function update(value, kind) {
    data = value;
    for (const each of [linesPanel, confusionPanel, calibrationPanel]) each.hidden = kind === "party";
    details.hidden = !data?.lines;
    if (!data?.lines) {
      for (const each of [lines, confusion, calibration]) {
        each.replaceChildren(kind === "coordinator" ? hint("The coordinator evaluates when the training has ended.")
          : hint("No evaluation yet; run", `xvfl evaluate ${run}`));
      }
      return;
    }
    const names = [...new Set(data.lines.flatMap((each) => Object.keys(each.metrics)))];
    lines.replaceChildren(table(["mode", "party", "#rows", ...names.map((each) => `#${METRICS[each] ?? each.replaceAll("_", " ")}`)],
      data.lines.map((each) => [each.mode, each.party, number(each.rows),
        ...names.map((name) => each.reason ? "–" : number(each.metrics[name]))]), `${data.split} rows`));
    lines.firstChild.classList.add("cards");
    const before = select.value;
    select.replaceChildren(...data.lines.map((each) => html("option", {}, `${each.mode} ${each.party}`)));
    const collaborative = data.lines.findIndex((each) => each.mode === "collaborative");
    select.selectedIndex = Math.max(0, collaborative);
    if (before) select.value = before;
    show();
  }
  return { elements: [linesPanel, confusionPanel, calibrationPanel], update };
}

function pairsPlot(data) {
  return [hint(`Labels and collaborative predictions of ${number(data.pairs.length)} ${data.split} rows.`),
    scatter({ points: data.pairs, xLabel: "label", yLabel: "prediction", label: "Predictions against labels", size: 300 })];
}

function confusionTable(line, classes, where) {
  if (!line.confusion?.length) return [hint(line.reason || "No confusion matrix: more than 50 classes, or an evaluation of an older version.")];
  const head = html("tr", {}, html("th", { scope: "col" }, "true \\ predicted"), ...classes.map((each) => html("th", { scope: "col" }, each)));
  const rows = line.confusion.map((counts, i) => {
    const total = counts.reduce((a, b) => a + b, 0) || 1;
    return html("tr", {}, html("th", { scope: "row" }, classes[i]), ...counts.map((count, j) =>
      heatCell(count / total, number(count), `true ${classes[i]}, predicted ${classes[j]}: ${percent(count / total)}`)));
  });
  return [html("p", { class: "dim" }, `${where}; shade: share of the true class.`),
    html("div", { class: "scroll", tabindex: "0" }, html("table", { class: "confusion" }, html("thead", {}, head), html("tbody", {}, ...rows)))];
}

function reliabilityPlot(line, where) {
  if (!line.reliability?.length) return [hint(line.reason || "No bins of confidence: an evaluation of an older version; evaluate again.")];
  const most = Math.max(...line.reliability.map(([rows]) => rows));
  const points = line.reliability.map(([rows, confidence, correct]) => [confidence, correct, null, null, 3 + 7 * Math.sqrt(rows / most)]);
  return [html("p", { class: "dim" }, `${where}; expected calibration error ${number(line.metrics.ece, 3)}. Size: rows of the bin.`),
    scatter({ points, xLabel: "confidence", yLabel: "share correct", label: `Calibration of ${where}`, size: 300, unit: true })];
}

/** Modes over missing rates. */
export function ratesPanel(run) {
  const chart = new LineChart({ label: "Modes over missing rates", xLabel: "hidden share", height: 280 });
  const text = html("p", { class: "dim" });
  function update(data) {
    const known = data && Object.keys(data.metrics ?? {}).length > 0;
    chart.element.hidden = !known;
    if (!data?.rates) return text.replaceChildren("Not computed yet; run ", html("code", {}, `xvfl evaluate ${run}`));
    if (!known) return text.replaceChildren(`Only ${number(data.rows)} held-out rows are observed by every party; at least 20 are needed.`);
    const [metric, label] = mainMetric(Object.values(data.metrics)[0][0], data.n_classes);
    text.replaceChildren(`${label} on ${number(data.rows)} held-out rows that every party observes, with a share of their features hidden at random at every party.`);
    const values = Object.fromEntries(Object.entries(data.metrics).map(([key, each]) => [key, each.map((one) => one[metric])]));
    chart.update({ x: data.rates, series: modeSeries(values), fractions: true, xFormat: percent });
  }
  return { element: panel("Modes over missing rates", html("div", {}, text, chart.element), true), update };
}

/** Images original, masked and completed; tables observed against completed. */
export function completionPanel(run) {
  const body = html("div", {});
  function update(data) {
    if (!data?.tables) return body.replaceChildren(hint("Not computed yet; run", `xvfl evaluate ${run}`));
    const parts = [...Object.entries(data.images).flatMap(([party, each]) => imageRows(party, each)),
      ...Object.entries(data.tables).flatMap(([party, each]) => tableParts(party, each))];
    body.replaceChildren(...(parts.length ? parts : [hint("This method does not complete features.")]));
  }
  return { element: panel("Observed against completed", body, true), update };
}

function decode(text) {
  return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
}

function picture([channels, height, width], { pixels, observed }, label) {
  const canvas = html("canvas", { width, height, role: "img", "aria-label": label });
  const [values, seen] = [decode(pixels), decode(observed)];
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const at = (c) => values[Math.min(c, channels - 1) * width * height + i];
    image.data.set(seen[i] ? [at(0), at(1), at(2), 255] : [214, 120, 40, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function imageRows(party, { shape, examples }) {
  const grid = html("div", { class: "images" });
  grid.style.setProperty("--images", examples.length);
  for (const kind of ["original", "masked", "completed"]) {
    grid.append(html("span", {}, kind), ...examples.map((each, i) => picture(shape, each[kind], `${party}: image ${i + 1}, ${kind}`)));
  }
  return [html("h3", {}, party), grid, html("p", { class: "dim" }, "Orange pixels are missing.")];
}

function exampleCell({ state, value, truth }) {
  return html("td", { class: `cell ${state}` }, value, truth === undefined ? null : html("small", {}, `observed: ${truth}`));
}

function tableParts(party, each) {
  const head = html("tr", {}, ...each.columns.map((name) => html("th", { scope: "col" }, name)));
  const rows = each.examples.map((cells) => html("tr", {}, ...cells.map(exampleCell)));
  const more = each.more_columns ? ` ${each.more_columns} more columns are not shown.` : "";
  const columns = Object.entries(each.quality);
  const numbers = columns.filter(([, q]) => q.kind === "number");
  const categories = columns.filter(([, q]) => q.kind === "category");
  return [html("h3", {}, party),
    html("p", { class: "dim" }, html("span", { class: "key cell hidden" }, "hidden, then completed"), html("span", { class: "key cell missing" }, "missing, completed"),
      ` ${number(each.cells)} observed cells of ${number(each.rows)} held-out rows were hidden.${more}`),
    html("div", { class: "scroll", tabindex: "0" }, html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows))),
    html("div", { class: "row" }, ...numbers.map(([name, q]) => html("figure", {},
      scatter({ points: q.pairs, xLabel: `${name}, observed`, yLabel: "completed", label: `${party}.${name}: completed against observed`, size: 230 }),
      html("figcaption", {}, `${number(q.cells)} cells${q.covered === null ? "" : `; ${percent(q.covered)} in the 80 % interval`}`)))),
    categories.length ? table(["column", "#cells", "#correct", "#most frequent value"],
      categories.map(([name, q]) => [name, number(q.cells), percent(q.correct), percent(q.most_frequent)]), "", "cards") : ""];
}
