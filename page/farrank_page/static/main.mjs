// The page: reads its address, and leads questions from the form to the search or to the judged questions.

import "./elements/judged-view.mjs";
import { make } from "./elements/make.mjs";
import "./elements/own-documents.mjs";
import { NOTHING_ASKED, readAddress, writeAddress } from "./model/address.mjs";
import { counted, limit } from "./model/wording.mjs";
import { hideProblem, showNotice, showProblem } from "./problem.mjs";
import { QuestionForm, examples } from "./question-form.mjs";
import { Search } from "./search.mjs";
import { call, judgements } from "./service.mjs";
import { startTheme } from "./theme.mjs";

const at = (id) => document.getElementById(id);
const judged = document.querySelector("judged-view");

/** What the server has; null until it has listed it. */
let catalog = null;
/** Its judged questions, a set for each index. */
let sets = [];
/** The last question, in the form of the address. */
let asked = readAddress(location.search);

const form = new QuestionForm(at("question"), ask);
const search = new Search(goTo, ask);

async function start() {
  startTheme(at("theme"));
  form.show(asked);
  listen();
  await readCatalog();
}

async function readCatalog() {
  try {
    const [listed, tests] = await Promise.all([call("ListRankers", {}), judgements()]);
    catalog = listed.answer;
    sets = tests.sets.filter(({ questions }) => questions.length > 0);
  } catch (error) {
    showProblem(error, readCatalog);
    return;
  }
  hideProblem();
  form.take(catalog);
  search.take(catalog, sets);
  showWelcome();
  route();
}

/** Show the view and the question of the address. */
function route() {
  if (catalog === null) return;
  form.show(asked);
  document.title = asked.view === "judged" ? "Judged questions – Farrank" : "Farrank";
  const missing = form.missing(asked);
  at("welcome").hidden = asked.query !== "" || asked.view !== "";
  judged.close();
  const isOwnGone = asked.source === "own" && form.documents.length === 0;
  if (missing !== null || asked.view === "judged" || asked.query === "" || isOwnGone) search.clear();
  if (missing !== null) showNotice("The address asks for something that is not here", missing);
  else if (asked.view === "judged") showJudged();
  else if (asked.query !== "" && !isOwnGone) search.ask(asked, form.documents);
  else if (asked.query !== "") {
    showNotice("Your own documents are not here", "The page does not keep them. Bring them again, and ask.");
    form.fold(false);
  }
}

/** Keep the open passage in the address. */
function goTo(document_, chunk) {
  asked = { ...asked, document: document_, chunk };
  history.replaceState(null, "", location.pathname + writeAddress(asked));
}

function showJudged() {
  const set = sets.find(({ index }) => index === asked.index) ?? sets[0];
  if (set) judged.show(set, catalog.rankers, catalog.limits.maxDocuments, asked);
  else showNotice("This server has no judged questions", "It is started with them: farrank serve --judgements INDEX=QUESTIONS,QRELS");
}

/** Go to a question that the user asks. */
function ask(question) {
  asked = question;
  history.pushState(null, "", location.pathname + writeAddress(asked));
  // The server did not list its rankers yet, or asked for a key first.
  if (catalog === null) return readCatalog();
  at("welcome").hidden = true;
  judged.close();
  form.show(asked);
  // Below the documents a phone would have no room for the answer.
  if (asked.source === "own") form.fold(true);
  search.ask(asked, form.documents);
}

function showWelcome() {
  const { rankers = [], indexes = [] } = catalog;
  const set = sets.find(({ index }) => index === indexes[0]?.name) ?? sets[0];
  at("to-judged").hidden = sets.length === 0;
  at("examples").hidden = !set;
  if (set) {
    const examplesOf = examples(set.questions, (query) => ask({ ...NOTHING_ASKED, query, index: set.index }));
    at("examples").querySelector("ul").replaceChildren(...examplesOf);
  }
  at("holds").querySelector("ul").replaceChildren(
    ...indexes.map((index) => make("li", {}, `${index.name}: ${counted(Number(index.documents), "document")}, first stage ${index.firstStage}`)),
    ...rankers.map((each) => make("li", {}, `${each.name}: ${each.family}, reads ${limit(each.maxDocumentTokens)}, ${each.runtime} ${each.precision} on ${each.device}`)),
  );
}

function listen() {
  addEventListener("popstate", () => {
    const before = asked;
    asked = readAddress(location.search);
    const place = { document: null, chunk: null };
    const isSame = writeAddress({ ...before, ...place }) === writeAddress({ ...asked, ...place });
    if (isSame && search.hasAnswer) search.showPlace(asked);
    else route();
  });
  for (const link of [at("home"), at("to-judged")]) {
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      history.pushState(null, "", link.href);
      asked = readAddress(location.search);
      route();
    });
  }
  judged.addEventListener("question", ({ detail: { question, ...sides } }) => {
    ask({ ...NOTHING_ASKED, query: question, ...sides });
  });
  at("bring").addEventListener("click", () => form.bringOwn());
  document.addEventListener("keydown", key);
  document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    form.addFiles([...event.dataTransfer.files]);
  });
}

/** Keys of a single letter act only where the focus is in the list or the reader, as WCAG 2.1.4 asks. */
function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === at("query") && event.key === "ArrowDown") search.focusFirst();
  else if (!search.key(event)) return;
  event.preventDefault();
}

start();
