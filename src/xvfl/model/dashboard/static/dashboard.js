// Reads the server again and again, and shows the list of runs, one run, or the status of a process.

import { ago, duration, html, number, table } from "./elements.js";
import * as panels from "./panels.js";

const LIST_MS = 2500, LIVE_MS = 1500, IDLE_MS = 5000;
const KINDS = { federation: "coordinator", coordinator: "head of a coordinator", party: "party", model: "model" };
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
  return html("span", { class: `tag ${state.replaceAll(" ", "-")}` }, state);
}

function epochText(run) {
  return run.epochs ? `${number(run.epoch)} of ${number(run.epochs)}` : number(run.epoch || null);
}

function bestText(run) {
  return run.best_score === null || run.best_score === undefined ? "–" : `${number(-run.best_score)} ${run.score_name}`;
}

function partyText(run) {
  return Object.keys(run.parties).join(", ") || "–";
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
      tag(run.state), [run.method, KINDS[run.kind]].filter(Boolean).join(", ") || "–",
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
    ["step", run.step ? number(run.step) : ""],
    ["time", seconds === null || seconds === undefined ? "" : duration(seconds)],
    ["remaining", remainingText(run, seconds)],
  ];
}

/** The time that the remaining epochs take; early stopping may end the training before. */
function remainingText(run, seconds) {
  if (!run.state.startsWith("training") || !(run.epoch > 0 && run.epochs > run.epoch && seconds > 0)) return "";
  return `at most ${duration(seconds * (run.epochs - run.epoch) / run.epoch)}`;
}

function commonPanels() {
  return [panels.termsPanel(), panels.modesPanel(), panels.partiesPanel()];
}

function runView(name) {
  const head = html("dl", { class: "facts" });
  const problem = html("p", { role: "status" });
  const [terms, modes, parties] = commonPanels();
  const heads = panels.headsPanel(), own = panels.partyPanels();
  const warnings = panels.warningsPanel(), missing = panels.missingPanel();
  const evaluation = panels.evaluationPanels(name), rates = panels.ratesPanel(name), completion = panels.completionPanel(name);
  const updates = { missing: missing.update, evaluation: evaluation.update, missing_rates: rates.update, completion: completion.update };
  const loaded = {};
  setTitle(name);
  main.replaceChildren(html("p", {}, html("a", { href: "#/" }, "← All runs")), html("h1", {}, name), problem, head,
    html("div", { class: "panels" }, terms.element, modes.element, parties.element, heads.element, ...own.elements, missing.element,
      warnings.element,
      ...evaluation.elements, rates.element, completion.element));
  async function refresh() {
    const run = await fetchJson(`/api/run?name=${encodeURIComponent(name)}`);
    const party = run.kind === "party", federation = run.kind === "federation", state = party || federation;
    for (const each of [terms, modes, missing]) each.element.hidden = state;
    for (const each of evaluation.elements) each.hidden = state;
    for (const each of [rates, completion]) each.element.hidden = state || run.kind === "coordinator";
    for (const each of own.elements) each.hidden = !party;
    parties.element.hidden = party;
    heads.element.hidden = !federation;
    const rows = Object.entries(run.rows).filter(([, count]) => count).map(([part, count]) => `${number(count)} ${part}`).join(", ");
    const progress = state ? [["state", tag(run.state)]] : progressFacts(run, run.curves.seconds.at(-1));
    head.replaceChildren(...facts([...progress, ["label", run.label], ["rows", rows],
      ["started", run.started.replace("T", " ").slice(0, 19)], ["last change", run.changed ? since(run.changed) : ""]]));
    problem.textContent = run.problem;
    for (const each of [terms, modes, parties, warnings]) each.update(run);
    if (federation) heads.update(run.status.details?.heads, (number) => `#/run/${encodeURIComponent(`${name}/heads/${number}`)}`);
    if (party) own.update(run.status);
    if (state) return IDLE_MS;
    for (const [part, update] of Object.entries(updates)) {
      if (loaded[part] === run.files[part]) continue;
      update(run.files[part] ? await fetchJson(`/api/panel?name=${encodeURIComponent(name)}&panel=${part}`) : null, run.kind);
      loaded[part] = run.files[part];
    }
    return run.state === "training" ? LIVE_MS : IDLE_MS;
  }
  return { refresh };
}

function headText({ head, heads }) {
  return head ? `head ${head} of ${heads}` : heads === 0 ? "none yet" : "";
}

function partyFacts(status) {
  const training = status.encoder_progress < 1 ? html("progress", { max: 1, value: status.encoder_progress, "aria-label": "training of the encoder" }) : "";
  return [
    ["state", tag(status.state ?? "waiting")], ["connection", tag(status.connected ? "online" : "absent")],
    ["matched rows", number(status.matched_rows)],
    ["encoder", status.encoder_version && html("span", {}, `version ${status.encoder_version}, `, training,
      status.encoder_progress < 1 ? ` ${Math.round(100 * status.encoder_progress)} % trained` : "trained")],
    ["problem of the encoder", status.encoder_problem],
    ["ε of each row", status.privacy_epsilon],
    ["run", status.run], ["step", status.step === undefined ? "" : number(status.step)],
    ["rejected requests", number(status.requests_rejected)],
  ];
}

function statusView() {
  const summary = html("dl", { class: "facts" });
  const problem = html("p", { role: "status" });
  const title = html("h1", {}, "Status");
  const [terms, modes, parties] = commonPanels();
  const heads = panels.headsPanel(), own = panels.partyPanels();
  const missing = panels.missingPanel();
  const grid = html("div", { class: "panels" }, parties.element, heads.element, terms.element, modes.element, missing.element, ...own.elements);
  const after = html("p", { class: "dim" }, "Evaluation, confusion matrix and calibration: when the run has ended, open its state folder with ",
    html("code", {}, "xvfl dashboard STATE_DIR"));
  grid.hidden = after.hidden = true;
  main.replaceChildren(title, problem, summary, grid, after);
  let drawn = "";
  async function refresh() {
    const status = await fetchJson("/status");
    const { details = {}, side } = status, party = side === "party", curves = details.curves;
    const text = party ? `party ${status.name}` : "coordinator";
    grid.hidden = false;
    setTitle(text);
    title.textContent = text;
    problem.textContent = status.healthy ? "" : status.problem;
    for (const each of [terms, modes, missing]) each.element.hidden = !curves;
    parties.element.hidden = party;
    heads.element.hidden = status.heads === undefined;
    for (const each of own.elements) each.hidden = !party;
    after.hidden = !curves;
    if (party) {
      summary.replaceChildren(...facts(partyFacts(status)));
      own.update(status);
      return LIVE_MS;
    }
    const run = { ...status, ...details, best_epoch: curves?.best_epoch ?? 0 };
    const progress = curves && status.state.startsWith("training") ? progressFacts(run, status.seconds ?? curves.seconds.at(-1)).slice(1) : [];
    summary.replaceChildren(...facts([["state", tag(status.state)], ["current head", headText(status)], ...progress, ["run", status.run]]));
    parties.update({ status });
    heads.update(details.heads);
    if (curves) {
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
