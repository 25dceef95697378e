// The page: holds the question, the answers and the open passage, and passes each change to its elements.

import "./elements/call-figures.mjs";
import "./elements/code-panel.mjs";
import { button, make } from "./elements/make.mjs";
import "./elements/own-documents.mjs";
import "./elements/passage-reader.mjs";
import "./elements/ranking-board.mjs";
import { NOTHING_ASKED, readAddress, writeAddress } from "./model/address.mjs";
import { readAnswer } from "./model/answer.mjs";
import { compare, compareWithFirstStage } from "./model/comparison.mjs";
import { requestOf } from "./model/requests.mjs";
import { cohere, curl, pythonClient, shortened } from "./model/snippets.mjs";
import { STEPS, ranges } from "./model/strip.mjs";
import { counted, duration, headline, limit, meaning, readInAll, score, whole } from "./model/wording.mjs";
import { CallError, call, showKey } from "./service.mjs";
import { startTheme } from "./theme.mjs";

const at = (id) => document.getElementById(id);
const only = (selector) => document.querySelector(selector);

const form = at("question");
const own = only("own-documents");
const board = only("ranking-board");
const reader = only("passage-reader");

// After this time the page explains why a call takes long: documents may have to be encoded first.
const PATIENCE_MS = 1500;
const TICK_MS = 100;

/** The server's rankers and indexes; null until it has listed them. */
let catalog = null;
/** The last question, in the form of the address. */
let asked = { ...NOTHING_ASKED };
/** The answers: side `a`, and `b` if two rankers are compared, `{ranker, request, method, answer, raw, waitedMs}`. */
let came = {};
/** The documents of the last call; the user's own may have changed since. */
let brought = null;
let running = new AbortController();

async function start() {
  startTheme(at("theme"));
  asked = readAddress(location.search);
  fillForm();
  listen();
  await readCatalog();
  if (asked.query !== "" && asked.source === "index" && catalog) await ask({ keepPlace: true });
}

async function readCatalog() {
  try {
    catalog = (await call("ListRankers", {})).answer;
  } catch (error) {
    showProblem(error, readCatalog);
    return;
  }
  hideProblem();
  const { rankers = [], indexes = [] } = catalog;
  const names = rankers.map(({ name }) => [name, name]);
  fill(form.elements.a, names);
  fill(form.elements.b, [["", "nothing"], ...names]);
  fill(form.elements.index, indexes.map((index) => [index.name, `${index.name} (${whole(index.documents)})`]));
  if (indexes.length === 0) {
    asked.source = "own";
    form.elements.source[0].disabled = true;
  }
  fillForm();
  at("holds").textContent = [
    ...indexes.map((index) => `${index.name}: ${counted(Number(index.documents), "document")}, found by ${index.firstStage}.`),
    ...rankers.map((ranker) => `${ranker.name}: ${ranker.family} over ${ranker.backbone}, reads ${limit(ranker.maxDocumentTokens)}, ${ranker.runtime} on ${ranker.device}.`),
  ].join("\n");
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
}

function fillForm() {
  const { elements } = form;
  elements.query.value = asked.query;
  elements.source.value = asked.source;
  elements.scale.value = asked.scale;
  for (const name of ["index", "a", "b", "depth"]) choose(elements[name], asked[name]);
  const index = catalog?.indexes?.find((each) => each.name === elements.index.value);
  elements.k.placeholder = index?.defaultK ?? "";
  elements.k.value = asked.k ?? "";
  elements.k.max = catalog?.limits?.maxDocuments ?? "";
  showSource();
}

/** Choose the address's value even if the server lists no such thing: the call's error then lists the known ones. */
function choose(select, value) {
  if (value !== "" && ![...select.options].some((option) => option.value === value)) {
    select.append(make("option", { value }, value));
  }
  if (value !== "" || ["b", "depth"].includes(select.name)) select.value = value;
}

function showSource() {
  const isOwn = form.elements.source.value === "own";
  own.hidden = !isOwn;
  for (const each of form.querySelectorAll(".of-index")) each.hidden = isOwn;
}

function listen() {
  form.addEventListener("change", (event) => event.target.name === "source" && showSource());
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (form.elements.source.value === "own" && !own.takePasted()) return;
    const { query, source, index, k, a, b, scale, depth } = form.elements;
    asked = {
      ...NOTHING_ASKED,
      query: query.value,
      source: source.value,
      index: index.value,
      k: k.value === "" ? null : Number(k.value),
      a: a.value,
      b: b.value,
      scale: scale.value,
      depth: depth.value,
    };
    history.pushState(null, "", location.pathname + writeAddress(asked));
    ask();
  });
  addEventListener("popstate", () => {
    const before = asked;
    asked = readAddress(location.search);
    const isSame = writeAddress({ ...before, document: null }) === writeAddress({ ...asked, document: null });
    if (isSame && came.a) return showPlace();
    fillForm();
    return asked.query !== "" && asked.source === "index" ? ask({ keepPlace: true }) : clear();
  });
  at("cancel").addEventListener("click", () => running.abort());
  for (const element of [board, reader]) element.addEventListener("passage", (event) => goTo(event.detail, element === board));
  reader.addEventListener("close", closeReader);
  reader.addEventListener("neighbour", (event) => goToNeighbour(event.detail.by));
  document.addEventListener("keydown", key);
  document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    form.elements.source.value = "own";
    showSource();
    own.addFiles([...event.dataTransfer.files]);
  });
}

function key(event) {
  const isTyped = event.target.closest("input, textarea, select");
  if (event.ctrlKey || event.metaKey || event.altKey || (isTyped && event.key !== "Escape")) return;
  if (event.key === "/") form.elements.query.focus();
  else if (event.target.closest("[role=tablist]") || !reader.isOpen || !reader.key(event.key)) return;
  event.preventDefault();
}

/** Call the server with one ranker after the other: parallel calls would slow each other down. */
async function ask({ keepPlace = false } = {}) {
  running.abort();
  const controller = new AbortController();
  running = controller;
  if (!keepPlace) asked = { ...asked, document: null, chunk: null };
  const documents = asked.source === "own" ? own.documents : null;
  const sides = asked.b !== "" ? { a: asked.a, b: asked.b } : { a: asked.a };
  const coming = {};
  reader.close();
  hideProblem();
  at("welcome").hidden = true;
  at("status").textContent = "";
  const finish = showProgress(Object.values(sides));
  try {
    for (const [side, ranker] of Object.entries(sides)) {
      const { method, request } = requestOf(asked, ranker, documents);
      const { answer: raw, waitedMs } = await call(method, request, controller.signal);
      coming[side] = { ranker, method, request, raw, waitedMs, answer: readAnswer(raw, documents) };
      came = { ...coming };
      brought = documents;
      showAnswer();
    }
    showPlace();
  } catch (error) {
    if (controller === running || error.name !== "AbortError") fail(error, controller);
  } finally {
    if (controller === running) finish();
  }
}

function fail(error, controller) {
  if (controller !== running) return;
  clear();
  if (error.name === "AbortError") at("status").textContent = "Cancelled; the server no longer works on it.";
  else showProblem(error, () => ask());
}

function clear() {
  came = {};
  reader.close();
  document.body.classList.remove("reading");
  at("answer").hidden = true;
  at("status").textContent = "";
  hideProblem();
}

let ticking = 0;

/** Show that a call runs and for how long; returns a function that ends the display. */
function showProgress(rankers) {
  const began = performance.now();
  const show = () => {
    const ms = performance.now() - began;
    const names = rankers.filter((name) => name !== "").join(", then ");
    at("elapsed").textContent = `${names ? `${names}: ` : ""}reading and scoring, ${(ms / 1000).toFixed(1)} s`;
    at("patience").hidden = ms < PATIENCE_MS;
  };
  clearInterval(ticking);
  show();
  ticking = setInterval(show, TICK_MS);
  at("progress").hidden = false;
  document.body.classList.add("busy");
  return () => {
    clearInterval(ticking);
    at("progress").hidden = true;
    document.body.classList.remove("busy");
  };
}

function showProblem(error, again) {
  if (!(error instanceof CallError)) throw error;
  const wait = error.retryAfterMs === null ? null : `Ask again in ${duration(error.retryAfterMs)}, it says.`;
  const shown = make(
    "div",
    {},
    make("h2", {}, headline(error.code)),
    make("p", { class: "said" }, error.message),
    wait && make("p", {}, wait),
    error.code === "unauthenticated" ? keyForm(again) : button("Try again", {}, again),
  );
  at("problem").replaceChildren(shown);
  at("problem").hidden = false;
}

/** A form for the API key that the server requires. */
function keyForm(again) {
  const field = make("input", { type: "password", "aria-label": "API key", autocomplete: "off", spellcheck: "false" });
  const shown = make("form", {}, field, " ", make("button", { type: "submit" }, "Show this key"));
  shown.addEventListener("submit", (event) => {
    event.preventDefault();
    showKey(field.value.trim());
    again();
  });
  return shown;
}

function hideProblem() {
  at("problem").hidden = true;
  at("problem").replaceChildren();
}

function showAnswer() {
  const { a, b } = came;
  const first = a.answer;
  const found = first.documents.length;
  at("answer").hidden = found === 0;
  document.title = `${asked.query} – Farrank`;
  if (found === 0) {
    at("status").textContent = `The first stage found nothing in ${first.index || "the index"} for this question. Other words may find something: it looks for those that stand there.`;
    return;
  }
  at("status").textContent = `${counted(found, "document")} reranked in ${duration(first.totalMs)}${b ? ` and ${duration(b.answer.totalMs)}` : ""}. ${readInAll(first)}${b ? ` ${named(b)}: ${readInAll(b.answer)}` : ""}${cutOfQuery(first)}`;
  const right = scored(b ? "b" : "a");
  board.show(b ? scored("a") : candidates(first), right);
  const alike = b
    ? { title: `${named(a)} and ${named(b)}`, ...compare(a.answer, b.answer) }
    : { title: `${found > 1 ? "The first stage’s order and the ranker’s" : "One document"}`, ...compareWithFirstStage(first) };
  only("call-figures").show(
    [a, b].filter(Boolean).map((each) => ({ title: `Time of ${named(each)}`, ...each })),
    alike,
  );
  showLegend(b ? [a, b] : [a]);
  showCode();
}

const named = (side) => side.answer.ranker.name;

function cutOfQuery(answer) {
  return answer.queryTokensCut > 0 ? ` ${counted(answer.queryTokensCut, "token")} of the question were not read.` : "";
}

function candidates(answer) {
  const documents = [...answer.documents].sort((one, other) => one.index - other.index);
  const title = asked.source === "own" ? "As you gave them" : "First stage";
  return { side: "first", title, documents, rangeOf: null };
}

function scored(side) {
  const { answer } = came[side];
  return { side, title: named(came[side]), documents: answer.documents, rangeOf: rangesOf(side), rounds: answer.rounds };
}

function rangesOf(side) {
  return ranges(came[side].answer.evidence, came[side].answer.documents);
}

function showLegend(sides) {
  const swatch = (kind, label) => make("li", {}, make("i", { class: kind }), label);
  const shows = (is) => sides.some(({ answer }) => answer.documents.some(is)) || null;
  const meanings = new Set(sides.map(({ answer }) => meaning(answer.evidence).text));
  at("legend").replaceChildren(
    ...sides.map(({ answer }) => scale(answer, sides.length > 1 ? answer.ranker.name : "Evidence")),
    make(
      "ul",
      {},
      swatch("chunk step-3", "read by the ranker"),
      swatch("deciding", "decided the score"),
      shows((each) => each.scored.length > 0) && swatch("scored", "scored by the selector, not read by the ranker"),
      shows((each) => each.charactersCut > 0) && swatch("tail", "beyond a limit, not read"),
    ),
    ...Array.from(meanings, (text) => make("p", { class: "note" }, text)),
  );
}

function scale(answer, title) {
  const [low, high] = answer.evidence === "attention" ? [null, null] : ranges(answer.evidence, answer.documents)();
  const steps = Array.from({ length: STEPS }, (_, step) => make("i", { class: `step-${step}` }));
  return make(
    "div",
    { class: "scale" },
    make("span", { class: "what" }, `${title}: ${meaning(answer.evidence).name}`),
    make("span", { class: "end" }, low === null ? "least" : score(low)),
    make("span", { class: "ramp", "aria-hidden": "true" }, ...steps),
    make("span", { class: "end" }, high === null ? "most" : score(high)),
  );
}

function showCode() {
  const { a } = came;
  const base = new URL(".", location.href).href.replace(/\/$/, "");
  const documents = brought ?? candidates(a.answer).documents.map(({ id, text }) => ({ id, text: text ?? "" }));
  const short = shortened(documents);
  const requested = (of) => (brought ? requestOf(asked, a.ranker, of).request : a.request);
  const forms = [
    ["curl", (of) => curl(base, a.method, requested(of)), ""],
    ["Python client", (of) => pythonClient(location.hostname, asked, a.ranker, of), ""],
    ["Cohere SDK", (of) => cohere(base, asked, a.ranker, of), brought ? "" : "Cohere’s API searches no index: these are the candidates of this search, brought. "],
  ];
  const isShort = short.some((document, place) => document.text !== documents[place].text);
  only("code-panel").show([
    ...forms.map(([name, write, note]) => ({
      name,
      shown: write(short),
      whole: () => write(documents),
      note: `${note}${isShort && (brought || name === "Cohere SDK") ? "Long texts are shortened here; Copy takes them whole." : ""}`,
    })),
    {
      name: "Answer",
      shown: JSON.stringify(a.raw, (field, value) => (field === "text" ? shortened([{ text: value }])[0].text : value), 2),
      whole: () => JSON.stringify(a.raw, null, 2),
      note: "Long texts are shortened here; Copy takes them whole.",
    },
  ]);
}

/** Show the passage that the address names, or close what is open. */
function showPlace() {
  const side = came.b ? "b" : "a";
  const found = came[side]?.answer.documents.find((document) => document.index === asked.document);
  if (found) goTo({ side, index: found.index, chunk: asked.chunk ?? Math.max(0, found.deciding) }, false);
  else if (reader.isOpen) closeReader();
}

let place = null;

function goTo({ side, index, chunk }, takesFocus) {
  const from = side === "first" ? "a" : side;
  const document_ = came[from].answer.documents.find((each) => each.index === index);
  place = { side: from, index };
  document.body.classList.add("reading");
  reader.show({ side: from, document: document_, range: rangesOf(from)(document_), chunk, rank: document_.rank });
  board.select(from, index, chunk);
  asked = { ...asked, document: index, chunk };
  history.replaceState(null, "", location.pathname + writeAddress(asked));
  if (takesFocus) reader.focusText();
}

function goToNeighbour(by) {
  const { documents } = came[place.side].answer;
  const next = documents[documents.findIndex((each) => each.index === place.index) + by];
  if (next) goTo({ side: place.side, index: next.index, chunk: Math.max(0, next.deciding) }, true);
}

function closeReader() {
  reader.close();
  document.body.classList.remove("reading");
  board.select("", -1, -1);
  asked = { ...asked, document: null, chunk: null };
  history.replaceState(null, "", location.pathname + writeAddress(asked));
  if (place) board.focusDocument(place.side, place.index);
}

start();
