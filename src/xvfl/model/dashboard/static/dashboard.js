// Reads the server again and again, and shows the list of runs, one run, or the status of a process.

import { ago, duration, html, number, table } from "./elements.js";
import * as panels from "./panels.js";

const LIST_MS = 2500, LIVE_MS = 1500, IDLE_MS = 5000;
const source = document.documentElement.dataset.source;
const main = document.getElementById("main");
let view = null;
let timer = 0;

async function fetchJson(path) {
  const reply = await fetch(path, { cache: "no-store" });
  if (!reply.ok) throw Object.assign(new Error(`${path}: ${reply.status}`), { status: reply.status });
  return reply.json();
}

function since(seconds) {
  return ago(Date.now() / 1000 - seconds);
}

function tag(state) {
  return html("span", { class: `tag ${state}` }, state);
}

function epochText(run) {
  return run.epochs ? `${number(run.epoch)} of ${number(run.epochs)}` : number(run.epoch);
}

function bestText(run) {
  return run.best_score === null || run.best_score === undefined ? "–" : `${number(-run.best_score)} ${run.score_name}`;
}

function partyText(run) {
  return Object.keys(run.parties).map((name) => run.absent?.[name] ? `${name} (absent)` : name).join(", ") || "–";
}

function setTitle(text) {
  document.title = text ? `${text} – xvfl dashboard` : "xvfl dashboard";
  document.getElementById("where").textContent = text;
}

// The list of runs.

function listView() {
  const body = html("div", {});
  let shown = "";
  setTitle("");
  main.replaceChildren(html("h1", {}, "Runs"), body);
  body.addEventListener("keydown", moveFocus);
  async function refresh() {
    const { folder, runs } = await fetchJson("/api/runs");
    const state = JSON.stringify([runs, Math.floor(Date.now() / 30000)]);
    if (state === shown) return LIST_MS;
    shown = state;
    const focused = document.activeElement?.dataset.run;
    if (!runs.length) {
      body.replaceChildren(html("p", {}, `No run in ${folder} yet. Start one: `, html("code", {}, "xvfl train CONFIG --out RUN")));
      return LIST_MS;
    }
    const rows = runs.map((run) => [
      html("a", { href: `#/run/${encodeURIComponent(run.name)}`, "data-run": run.name }, run.name),
      tag(run.state), `${run.method || "–"}${run.kind === "run" ? "" : ` (${run.kind})`}`,
      run.label ? `${run.label}, ${number(run.rows.labeled)} rows` : "–", epochText(run), bestText(run), partyText(run),
      run.warnings ? html("span", { class: "tag warn" }, String(run.warnings)) : "0", run.changed ? since(run.changed) : "–",
    ]);
    const list = table(["run", "state", "method", "data", "#epochs", "#best validation", "parties", "#warnings", "changed"], rows,
      "Arrow keys move among the runs, Enter opens one.");
    list.classList.add("cards", "list");
    body.replaceChildren(html("div", { class: "panel" }, list));
    if (focused) body.querySelector(`a[data-run="${CSS.escape(focused)}"]`)?.focus();
    return LIST_MS;
  }
  return { refresh };
}

function moveFocus(event) {
  const links = [...main.querySelectorAll("a[data-run]")];
  const at = links.indexOf(document.activeElement);
  const target = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (target === undefined || !links[target]) return;
  event.preventDefault();
  links[target].focus();
}

// One run, or the status of a process.

function facts(pairs) {
  return pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)));
}

function progressFacts(run, seconds) {
  const bar = run.epochs ? html("progress", { max: run.epochs, value: run.epoch, "aria-label": "epochs" }) : "";
  return [
    ["state", tag(run.state)], ["method", run.method],
    ["epochs", html("span", {}, bar, " ", epochText(run))],
    ["best validation", `${bestText(run)}${run.best_epoch > 0 ? `, epoch ${run.best_epoch}` : ""}`],
    ["time", seconds === null || seconds === undefined ? "" : duration(seconds)],
  ];
}

function commonPanels() {
  return [panels.termsPanel(), panels.modesPanel(), panels.partiesPanel()];
}

function runView(name) {
  const head = html("dl", { class: "facts" });
  const problem = html("p", { role: "status" });
  const [terms, modes, parties] = commonPanels();
  const warnings = panels.warningsPanel(), missing = panels.missingPanel();
  const evaluation = panels.evaluationPanels(name), rates = panels.ratesPanel(name), completion = panels.completionPanel(name);
  const updates = { missing: missing.update, evaluation: evaluation.update, missing_rates: rates.update, completion: completion.update };
  const loaded = {};
  const note = html("p", { class: "dim" }, "The folder of a party has no curves and no evaluation; the coordinator's has.");
  setTitle(name);
  main.replaceChildren(html("p", {}, html("a", { href: "#/" }, "← All runs")), html("h1", {}, name), problem, head, note,
    html("div", { class: "panels" }, terms.element, modes.element, parties.element, missing.element, warnings.element,
      ...evaluation.elements, rates.element, completion.element));
  async function refresh() {
    const run = await fetchJson(`/api/run?name=${encodeURIComponent(name)}`);
    const party = run.kind === "party", federated = party || run.kind === "coordinator";
    note.hidden = !party;
    for (const each of [terms, modes, parties, missing]) each.element.hidden = party;
    for (const each of [rates, completion]) each.element.hidden = federated;
    const rows = Object.entries(run.rows).filter(([, count]) => count).map(([part, count]) => `${number(count)} ${part}`).join(", ");
    const progress = party ? [["state", tag(run.state)]] : progressFacts(run, run.curves.seconds.at(-1));
    head.replaceChildren(...facts([...progress, ["label", run.label], ["rows", rows],
      ["started", run.started.replace("T", " ").slice(0, 19)], ["last change", run.changed ? since(run.changed) : ""]]));
    problem.textContent = run.problem;
    const data = { ...run, status: run.about.status };
    for (const each of [terms, modes, parties, warnings]) each.update(data);
    for (const [part, update] of Object.entries(updates)) {
      if (loaded[part] === run.files[part]) continue;
      update(run.files[part] ? await fetchJson(`/api/panel?name=${encodeURIComponent(name)}&panel=${part}`) : null, run.kind);
      loaded[part] = run.files[part];
    }
    return run.state === "training" ? LIVE_MS : IDLE_MS;
  }
  return { refresh };
}

function statusView() {
  const head = html("dl", { class: "facts" });
  const problem = html("p", { role: "status" });
  const title = html("h1", {}, "Status");
  const [terms, modes, parties] = commonPanels();
  const warnings = panels.warningsPanel(), missing = panels.missingPanel();
  const grid = html("div", { class: "panels" }, terms.element, modes.element, parties.element, missing.element, warnings.element);
  const counts = html("div", { class: "panel" });
  const after = html("p", { class: "dim" }, "Evaluation, confusion matrix and calibration: when the run has ended, open its state folder with ",
    html("code", {}, "xvfl dashboard STATE_DIR"));
  main.replaceChildren(title, problem, head, grid, counts, after);
  let drawn = "";
  async function refresh() {
    const status = await fetchJson("/status");
    const details = status.details;
    const text = status.side === "party" ? `party ${status.name}` : "coordinator";
    setTitle(text);
    title.textContent = status.run ? `${text}, run ${status.run}` : text;
    problem.textContent = status.healthy ? "" : status.problem;
    const predicting = Boolean(status.predicting);
    for (const each of [terms, modes, missing, warnings]) each.element.hidden = predicting;
    const run = {
      ...status, ...details, parties: status.party_present ?? {},
      state: predicting ? "predicting" : details?.state ?? "waiting",
      best_epoch: details?.curves.best_epoch ?? 0,
    };
    grid.hidden = !status.party_present;
    after.hidden = predicting || !status.party_present;
    counts.hidden = Boolean(status.party_present);
    if (!status.party_present) {
      counts.replaceChildren(table(["", "#value"], Object.entries(status).filter(([, value]) => typeof value !== "object")
        .map(([key, value]) => [key.replaceAll("_", " "), typeof value === "number" ? number(value) : String(value)])));
      return IDLE_MS;
    }
    head.replaceChildren(...facts(details ? progressFacts(run, status.seconds) : [["state", tag(run.state)]]));
    parties.update({ parties: run.parties, status });
    warnings.update({ events: details?.warnings ?? [] });
    if (details) {
      terms.update(run);
      modes.update(run);
      const map = JSON.stringify(details.missing);
      if (map !== drawn) missing.update(details.missing);
      drawn = map;
    }
    return LIVE_MS;
  }
  return { refresh };
}

// Views, polling and the theme.

function route() {
  const name = location.hash.match(/^#\/run\/(.+)$/)?.[1];
  view = source === "status" ? statusView() : name ? runView(decodeURIComponent(name)) : listView();
  poll();
}

async function poll() {
  clearTimeout(timer);
  const current = view;
  let wait = IDLE_MS;
  try {
    if (!document.hidden) wait = await current.refresh();
    document.getElementById("offline").hidden = true;
  } catch (error) {
    if (error.status === 404) main.replaceChildren(html("p", {}, "This run does not exist. ", html("a", { href: "#/" }, "All runs")));
    else if (error.status || error instanceof TypeError) document.getElementById("offline").hidden = false;
    else throw error;
  }
  if (current === view) timer = setTimeout(poll, wait);
}

const THEMES = ["system", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");

function applyTheme() {
  const chosen = localStorage.getItem("theme") ?? "system";
  document.documentElement.dataset.theme = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
  button.textContent = `Theme: ${chosen}`;
}

button.addEventListener("click", () => {
  const chosen = localStorage.getItem("theme") ?? "system";
  localStorage.setItem("theme", THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  applyTheme();
});
dark.addEventListener("change", applyTheme);
document.addEventListener("visibilitychange", () => document.hidden || poll());
addEventListener("hashchange", () => {
  route();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
applyTheme();
route();
