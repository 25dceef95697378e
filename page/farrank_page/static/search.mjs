// One question: calls the server round by round, and shows the answer so far, its documents and its figures.

import "./elements/call-figures.mjs";
import "./elements/code-panel.mjs";
import "./elements/passage-reader.mjs";
import "./elements/ranking-list.mjs";
import { readAnswer } from "./model/answer.mjs";
import { compare, compareWithFirstStage, moves } from "./model/comparison.mjs";
import { ndcg } from "./model/measures.mjs";
import { requestOf, sent } from "./model/requests.mjs";
import { answers, wantsRounds } from "./model/rounds.mjs";
import { ranges } from "./model/strip.mjs";
import { counted, duration, measure, readInAll, score, whole } from "./model/wording.mjs";
import { hideProblem, showProblem } from "./problem.mjs";
import { call, fetchText, heldText } from "./service.mjs";
import { legend, showSnippets, tools } from "./answer-details.mjs";

const at = (id) => document.getElementById(id);
const list = document.querySelector("ranking-list");
const reader = document.querySelector("passage-reader");

const TICK_MS = 100;
// Below this width the reader covers the page.
const COVERS = matchMedia("(max-width: 67.99rem)");

export class Search {
  #catalog = {};
  #sets = [];
  #asked;
  #brought = null;
  /** The answers: side `a`, and `b` if two rankers are compared, `{ranker, raw, waitedMs, answer, request, method}`. */
  #came = {};
  #order = "a";
  /** Whether the user chose the order of this answer: then a later round keeps it. */
  #isChosen = false;
  #running = new AbortController();
  #fetching = new AbortController();
  /** The index of the document that was opened last; null before one is. */
  #place = null;
  #isReadingWhole = false;
  #ticking = 0;

  /**
   * `onPlace(document, chunk)` is called when another passage opens, or none (null); `onAsk(asked)` when the reader wants
   * another depth.
   */
  constructor(onPlace, onAsk) {
    this.onPlace = onPlace;
    this.onAsk = onAsk;
    list.addEventListener("order", ({ detail }) => this.#chooseOrder(detail.key));
    list.addEventListener("above", () => at("query").focus());
    list.addEventListener("passage", ({ detail }) => this.#open(detail.index, detail.chunk, true));
    reader.addEventListener("passage", ({ detail }) => this.#open(detail.index, detail.chunk, false));
    reader.addEventListener("close", () => this.#close());
    reader.addEventListener("neighbour", ({ detail }) => this.#openNeighbour(detail.by));
    reader.addEventListener("whole", () => this.#readWhole());
    at("cancel").addEventListener("click", () => this.#running.abort());
    COVERS.addEventListener("change", () => this.#cover());
  }

  /** Take the server's rankers and indexes, and its judged questions. */
  take(catalog, sets) {
    this.#catalog = catalog;
    this.#sets = sets;
  }

  /** The place in the ranking that the address names, after the browser went back or forward. */
  showPlace({ document, chunk }) {
    if (document !== null && this.#shown()?.documents.some(({ index }) => index === document)) this.#open(document, chunk, false);
    else if (reader.isOpen) this.#close();
  }

  get hasAnswer() {
    return this.#came.a !== undefined;
  }

  /** Ask one ranker after the other: parallel calls would slow each other down. `documents` are the user's own. */
  async ask(asked, documents) {
    this.clear();
    const controller = new AbortController();
    this.#running = controller;
    this.#asked = asked;
    this.#brought = asked.source === "own" ? documents : null;
    document.title = `${asked.query} – Farrank`;
    const sides = asked.b === "" ? [["a", asked.a]] : [["a", asked.a], ["b", asked.b]];
    try {
      for (const [side, ranker] of sides) await this.#askOne(side, ranker, controller.signal);
      if (asked.document !== null && this.#place === null) this.showPlace(asked);
    } catch (error) {
      if (controller !== this.#running) return;
      this.#keepUnfinished();
      if (error.name !== "AbortError") showProblem(error, () => this.ask(asked, documents));
      else if (this.hasAnswer) at("status").prepend("Cancelled. ");
      else at("status").textContent = "Cancelled; the server no longer works on it.";
    } finally {
      if (controller === this.#running) {
        this.#running = new AbortController();
        this.#endProgress();
      }
    }
  }

  /** Show the answer as the last round left it: nothing reads its documents on. */
  #keepUnfinished() {
    for (const { answer } of Object.values(this.#came)) {
      for (const each of answer.documents) [each.unfinished, each.pending] = [each.pending, false];
    }
    if (this.hasAnswer) this.#show();
  }

  /** Show nothing, and stop what runs. */
  clear() {
    this.#running.abort();
    this.#fetching.abort();
    this.#running = new AbortController();
    this.#came = {};
    this.#order = "a";
    this.#isChosen = false;
    if (reader.isOpen) this.#close(false);
    this.#place = null;
    this.#endProgress();
    at("answer").hidden = true;
    at("status").textContent = "";
    hideProblem();
  }

  /** Do the action of a key in the reader or the list; returns whether it has one. */
  key(event) {
    if (!reader.isOpen || event.target.closest("input, textarea, select")) return false;
    return (event.key === "Escape" || reader.contains(event.target)) && reader.key(event.key);
  }

  focusFirst() {
    if (this.hasAnswer) list.focusRow();
  }

  async #askOne(side, name, signal) {
    const asked = this.#asked;
    const ranker = this.#catalog.rankers?.find((each) => each.name === name) ?? this.#catalog.rankers?.[0];
    const index = this.#catalog.indexes?.find((each) => each.name === asked.index) ?? this.#catalog.indexes?.[0];
    const most = this.#brought ? this.#brought.length : (asked.k ?? index?.defaultK);
    const plan = { asked, ranker: name, documents: this.#brought, most, inRounds: wantsRounds(asked, ranker, index, this.#brought) };
    const began = performance.now();
    const progress = { name: ranker?.name ?? "", began, read: 0, inAll: 0, now: [] };
    this.#showProgress(progress);
    for await (const { raw, waitedMs, pending, next, chunksRead, chunksInAll } of answers(plan, (method, request) => call(method, request, signal))) {
      const answer = readAnswer(raw, { brought: this.#brought, pending });
      const now = next.map((place) => answer.documents.find(({ index }) => index === place).name);
      Object.assign(progress, { read: chunksRead, inAll: chunksInAll, now });
      this.#came = { ...this.#came, [side]: { ranker: name, raw, waitedMs, answer, ...requestOf(asked, name, this.#brought, most) } };
      // The complete order of the first ranker stays in sight until the second one's is complete.
      if (!this.#isChosen && (side === "a" || pending.size === 0)) this.#order = side;
      this.#show();
      if (pending.size > 0) this.#showProgress(progress);
    }
  }

  /** Show that a call runs and for how long, and the share of the chunks that is read, once their number is known. */
  #showProgress(progress) {
    const bar = at("progress").querySelector("progress");
    const show = () => {
      const seconds = ((performance.now() - progress.began) / 1000).toFixed(1);
      const share = progress.inAll > 0 ? `read ${whole(progress.read)} of ${counted(progress.inAll, "chunk")}, ` : "";
      const [name, ...others] = progress.now;
      const now = name ? `, now in ${name}${others.length > 0 ? ` and ${others.length} more` : ""}` : "";
      at("elapsed").textContent = `${progress.name}: ${share}${seconds} s${now}`;
      if (progress.inAll > 0) [bar.max, bar.value] = [progress.inAll, progress.read];
      else bar.removeAttribute("value");
    };
    clearInterval(this.#ticking);
    this.#ticking = setInterval(show, TICK_MS);
    show();
    at("progress").hidden = false;
  }

  #endProgress() {
    clearInterval(this.#ticking);
    // The focus must not vanish with the button.
    if (at("progress").contains(document.activeElement)) at("query").focus();
    at("progress").hidden = true;
  }

  #shown() {
    return (this.#came[this.#order] ?? this.#came.a)?.answer;
  }

  #show() {
    const { a, b } = this.#came;
    const found = a.answer.documents.length;
    at("answer").hidden = found === 0;
    if (found === 0) {
      const where = a.answer.index || "the index";
      at("status").textContent = `Nothing in ${where} has a word of this question. Other words may find something.`;
      return;
    }
    this.#showStatus();
    this.#showOrder();
    this.#renewReader();
    const first = this.#brought ? "the order given" : "the first stage’s order";
    const alike = b
      ? { title: `${named(a)} and ${named(b)}`, ...compare(a.answer, b.answer) }
      : { title: `${named(a)} and ${first}`, ...compareWithFirstStage(a.answer) };
    document.querySelector("call-figures").show(
      [a, b].filter(Boolean).map((each) => ({ title: `Time of ${named(each)}`, ...each })),
      alike,
    );
    legend(at("legend"), [a, b].filter(Boolean).map(({ answer }) => answer));
    tools(at("tools"), this.#asked, this.#came[this.#order] ?? a, this.#judged()?.id);
    showSnippets(document.querySelector("code-panel"), this.#asked, a, this.#brought);
  }

  #showStatus() {
    const { a, b } = this.#came;
    const sides = [a, b].filter(Boolean);
    const isOver = (side) => !side.answer.documents.some(({ pending }) => pending);
    const figures = (side) => (isOver(side) ? `in ${duration(side.waitedMs)}, ${readInAll(side.answer)}` : "still reading");
    const said = sides.length > 1 ? `: ${sides.map((side) => `${named(side)} ${figures(side)}`).join("; ")}` : `${isOver(a) ? "" : ","} ${figures(a)}`;
    const cut = a.answer.queryTokensCut > 0 ? ` ${counted(a.answer.queryTokensCut, "token")} of the question were not read.` : "";
    const grades = this.#grades();
    const quality = grades ? `. nDCG@10 ${sides.map((side) => measure(ndcg(side.answer.documents.map(({ id }) => id), grades))).join(" and ")}` : "";
    const more = [];
    if (sides.some(({ answer }) => answer.documents.some((each) => each.chunksOnlyScored > 0 || each.unfinished))) {
      const all = document.createElement("button");
      all.type = "button";
      all.textContent = "Read all of them whole";
      all.addEventListener("click", () => this.onAsk({ ...this.#asked, depth: "all" }));
      more.push(" ", all);
    }
    at("status").replaceChildren(`${counted(a.answer.documents.length, "document")}${said}${quality}.${cut}`, ...more);
  }

  /** The grades of this question, if it is judged; otherwise null. */
  #grades() {
    return this.#judged()?.grades ?? null;
  }

  /** This question among the judged ones. */
  #judged() {
    const set = this.#sets.find(({ index }) => index === this.#came.a.answer.index);
    return set?.questions.find(({ text }) => text === this.#asked.query);
  }

  #chooseOrder(key) {
    this.#order = key;
    this.#isChosen = true;
    this.#showOrder();
    tools(at("tools"), this.#asked, this.#came[key] ?? this.#came.a, this.#judged()?.id);
  }

  #showOrder() {
    const { a, b } = this.#came;
    const key = this.#order;
    const [side, other] = key === "b" ? [b, a] : [a, b && key === "a" ? b : null];
    const firstTitle = this.#brought ? "As given" : "First stage";
    const orders = [
      { key: "first", title: firstTitle },
      { key: "a", title: named(a) },
      ...(b ? [{ key: "b", title: named(b) }] : []),
    ];
    const byFirst = [...a.answer.documents].sort((one, next) => one.index - next.index);
    const indexes = (documents) => documents.map(({ index }) => index);
    const documents = key === "first" ? byFirst : side.answer.documents;
    const before = key === "first" ? "" : key === "b" || (b && other) ? named(other) : this.#brought ? "the order given" : "the first stage";
    const earlier = key === "first" ? indexes(documents) : other ? indexes(other.answer.documents) : indexes(byFirst);
    const { answer } = side;
    const rangeOf = ranges(answer.evidence, answer.documents);
    const movesOf = moves(earlier, indexes(documents));
    const shownRounds = answer.rounds > 1;
    list.show({ key, orders, documents, moves: movesOf, before, rangeOf, question: this.#asked.query, grades: this.#grades(), shownRounds });
  }

  /** Show what is known by now of the open document. */
  #renewReader() {
    if (!reader.isOpen) return;
    const { documents, evidence, index } = this.#shown();
    const found = documents.find((each) => each.index === this.#place);
    found.text ??= heldText(index, found.id);
    reader.renew({ document: found, range: ranges(evidence, documents)(found), rank: found.rank, note: found.note });
  }

  /** Open a document at a chunk; without one that it has, at the chunk that leads. */
  async #open(index, chunk, takesFocus) {
    const answer = this.#shown();
    const found = answer.documents.find((each) => each.index === index);
    const at_ = found.chunks[chunk] ? chunk : Math.max(0, found.leadChunk);
    this.#place = index;
    const range = ranges(answer.evidence, answer.documents)(found);
    found.text ??= heldText(answer.index, found.id);
    document.body.classList.add("reading");
    reader.show({ document: found, range, chunk: at_, rank: found.rank, note: found.note });
    list.select(index);
    this.#cover();
    this.onPlace(index, at_);
    if (takesFocus) reader.focusText();
    // The text of another document may still be on its way.
    this.#fetching.abort();
    if (found.text !== null) return;
    const controller = new AbortController();
    this.#fetching = controller;
    try {
      await fetchText(this.#asked.query, answer.index, found.id, this.#asked.a, controller.signal);
      // A round may have brought another answer meanwhile.
      if (this.#fetching === controller) this.#renewReader();
    } catch (error) {
      if (error.name !== "AbortError") showProblem(error, () => this.#open(index, chunk, true));
    }
  }

  #openNeighbour(by) {
    const { documents } = this.#shown();
    const next = documents[documents.findIndex(({ index }) => index === this.#place) + by];
    if (next) this.#open(next.index, null, true);
  }

  /** Let the ranker read the open document whole. Its rank stays: only scores of one call compare. */
  async #readWhole() {
    if (this.#isReadingWhole) return;
    const side = this.#came[this.#order] ?? this.#came.a;
    const found = side.answer.documents.find(({ index }) => index === this.#place);
    this.#isReadingWhole = true;
    const one = sent(this.#brought?.[found.index] ?? { id: found.id, index: side.answer.index });
    const options = { ...side.request.options, depth: { mode: "DEPTH_MODE_ALL" } };
    delete options.evidenceDocuments;
    try {
      const { answer: raw } = await call("Rerank", { query: this.#asked.query, documents: [one], options }, this.#running.signal);
      const [read] = readAnswer(raw, { brought: this.#brought && [this.#brought[found.index]] }).documents;
      const { index, rank, firstRank, firstStageScore, name, text, round } = found;
      const note = `score ${score(read.score)} when read whole`;
      const merged = { ...read, index, rank, firstRank, firstStageScore, name, text, round, score: found.score, note };
      side.answer.documents.splice(side.answer.documents.indexOf(found), 1, merged);
      // The answer of another question may have taken its place.
      if (!Object.values(this.#came).includes(side)) return;
      this.#showOrder();
      if (this.#place === index && reader.isOpen) this.#open(index, null, true);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#renewReader();
      showProblem(error, () => this.#readWhole());
    } finally {
      this.#isReadingWhole = false;
    }
  }

  #close(givesFocus = true) {
    this.#fetching.abort();
    reader.close();
    document.body.classList.remove("reading");
    this.#cover();
    list.select(-1);
    this.onPlace(null, null);
    if (givesFocus && this.#place !== null) list.focusRow(this.#place);
  }

  /** While the reader covers the page, nothing below it takes the focus. */
  #cover() {
    const covers = reader.isOpen && COVERS.matches;
    for (const each of document.querySelectorAll("main, header.top, footer, a.skip")) each.inert = covers;
    reader.setAttribute("role", covers ? "dialog" : "complementary");
    if (covers) reader.setAttribute("aria-modal", "true");
    else reader.removeAttribute("aria-modal");
  }
}

const named = (side) => side.answer.ranker.name;
