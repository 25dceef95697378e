// <ranking-list>: documents in one order, a dense row each: the sentence that decided, and the whole document's strip.

import { gradeOf } from "../model/measures.mjs";
import { counted, moved, readOf, score } from "../model/wording.mjs";
import { markedParts } from "../model/words.mjs";
import { drawnStrip } from "./evidence-strip.mjs";
import { button, drawn, keepFocus, make, tell } from "./make.mjs";

const KINDS = [
  ["up", "▲", "rose"],
  ["down", "▼", "fell"],
  ["same", "=", "stayed"],
];

/**
 * Shows one of several orders of the same documents. Emits `order` `{key}` for another order, and `passage`
 * `{index, chunk}` for a chosen document or passage.
 */
export class RankingList extends HTMLElement {
  #order = null;
  #only = "";
  #selected = -1;

  connectedCallback() {
    this.addEventListener("click", (event) => {
      const row = event.target.closest("li[data-index]");
      if (row) this.#choose(row, event.target.closest(".chunk")?.dataset.chunk);
    });
    this.addEventListener("keydown", (event) => this.#key(event));
    this.addEventListener("focusin", (event) => this.#at(event.target.closest("li[data-index]")));
    this.addEventListener("pointerover", (event) => this.#draw(event.target.closest("li[data-index]")));
    this.addEventListener("pointerleave", () => this.#draw(null));
  }

  /**
   * Show an order: `{key, orders, documents, moves, before, rangeOf, question, grades, shownRounds}`.
   *
   * `orders` are `{key, title}`; `moves` maps a document's index to how far it moved from the order named `before`;
   * `rangeOf` gives the range of evidence of a document; `grades` maps ids to judged grades, null if there are none.
   */
  show(order) {
    const counts = countsOf(order.moves);
    if (this.#order?.key !== order.key || !counts[this.#only]) this.#only = "";
    this.#order = order;
    keepFocus(this, (control) => control.dataset.control ?? control.closest("li").dataset.index, () => {
      this.replaceChildren(this.#head(counts), make("div", { class: "rows" }, this.#rows(), ladder(order.documents.length)));
    });
    this.select(this.#selected);
  }

  /** Mark the open document; -1 for none. */
  select(index) {
    this.#selected = index;
    for (const row of this.querySelectorAll("li[data-index]")) {
      const isIt = row.dataset.index === String(index);
      row.classList.toggle("selected", isIt);
      if (isIt) row.querySelector("button").setAttribute("aria-current", "true");
      else row.querySelector("button").removeAttribute("aria-current");
    }
  }

  /** Put the focus on a document's row; without an index on the first. */
  focusRow(index) {
    const row = index === undefined ? this.querySelector("li[data-index]") : this.#rowOf(index);
    row?.querySelector("button").focus();
  }

  #rowOf(index) {
    return this.querySelector(`li[data-index="${index}"]`);
  }

  #head(counts) {
    const { key, orders, before } = this.#order;
    const tabs = orders.map((each) =>
      button(each.title, { class: "order", "data-control": each.key, "aria-pressed": String(each.key === key) }, () => tell(this, "order", { key: each.key })),
    );
    const filters = KINDS.filter(() => before !== "").map(([kind, sign, verb]) => {
      const label = `${counted(counts[kind], "document")} ${verb} since ${before}`;
      const filter = button(`${sign} ${counts[kind]}`, { class: `only ${kind}`, "data-control": kind, title: label, "aria-label": label, "aria-pressed": String(this.#only === kind) }, () => {
        this.#only = this.#only === kind ? "" : kind;
        this.show(this.#order);
      });
      filter.disabled = counts[kind] === 0;
      return filter;
    });
    return make(
      "div",
      { class: "board-head" },
      make("div", { role: "group", "aria-label": "Order by" }, ...tabs),
      make("div", { role: "group", "aria-label": "Show only documents that moved", class: "filters" }, ...filters),
    );
  }

  #rows() {
    const { documents, orders, key, moves } = this.#order;
    const title = orders.find((each) => each.key === key).title;
    const kept = documents.filter(({ index }) => this.#only === "" || moved(moves.get(index) ?? null).kind === this.#only);
    const list = make("ol", { "aria-label": `Documents by ${title}` });
    list.append(...kept.map((each, place) => this.#row(each, place === 0)));
    return list;
  }

  #row(document, isFirst) {
    const { documents, moves, before, rangeOf, question, grades, shownRounds } = this.#order;
    const place = documents.indexOf(document);
    const move = moves.get(document.index) ?? null;
    const shown = before === "" ? null : moved(move);
    const grade = grades ? gradeOf(document.id, grades) : undefined;
    const isPartial = document.chunksRead < document.chunksInAll;
    const said = document.pending ? "still reading" : readOf(document);
    const round = shownRounds ? ` in ${counted(document.round, "round")}` : "";
    const row = make(
      "button",
      { type: "button", class: "row", tabindex: isFirst ? "0" : "-1" },
      make("span", { class: "rank" }, String(place + 1)),
      make("span", { class: "sentence" }, ...sentence(document, question)),
      grade === undefined ? null : make("span", { class: `grade grade-${Math.min(2, grade)}`, title: `judged with grade ${grade}` }, `judged ${grade}`),
      make("span", { class: "score", title: "the ranker’s score" }, score(document.score)),
      make(
        "span",
        { class: "source" },
        make("span", { class: "name", title: document.name }, document.name),
        shown && make("span", { class: `move ${shown.kind}`, title: `${shown.text} since ${before}` }, make("span", { "aria-hidden": "true" }, shown.sign), unseen(`${shown.text} since ${before}`)),
      ),
      drawnStrip(document, rangeOf(document)),
      isPartial ? make("span", { class: "partly", title: said }, ...(document.pending ? [said] : [`${document.chunksRead} of ${document.chunksInAll}`, unseen(` chunks read${round}`)])) : unseen(said),
    );
    return make("li", { "data-index": document.index, class: document.pending ? "pending" : null }, row);
  }

  #choose(row, chunk) {
    const index = Number(row.dataset.index);
    tell(this, "passage", { index, chunk: chunk === undefined ? null : Number(chunk) });
  }

  #key(event) {
    const row = event.target.closest("li[data-index]");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...this.querySelectorAll("li[data-index]")];
    const at = all.indexOf(row);
    const to = { ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (to < 0) tell(this, "above");
    else all[Math.min(to, all.length - 1)].querySelector("button").focus();
  }

  /** One row is in the order of the Tab key: the last one that had the focus. */
  #at(row) {
    if (!row) return;
    for (const each of this.querySelectorAll("li[data-index] > button")) each.tabIndex = each.parentElement === row ? 0 : -1;
    this.#draw(row);
  }

  /** Draw the line from a document's place in the order before to its row. */
  #draw(row) {
    const path = this.querySelector(".ladder path");
    const move = row && this.#only === "" ? this.#order.moves.get(Number(row.dataset.index)) : null;
    const to = row ? [...row.parentElement.children].indexOf(row) : 0;
    const y = (place) => place + 0.5;
    path?.setAttribute("d", move ? `M1 ${y(to + move)}C-.4 ${y(to + move)} -.4 ${y(to)} 1 ${y(to)}` : "");
    path?.setAttribute("class", move ? moved(move).kind : "");
  }
}

/** The number of documents that moved up, down, or not at all. */
function countsOf(moves) {
  const counts = { up: 0, down: 0, same: 0 };
  for (const move of moves.values()) if (move !== null) counts[moved(move).kind] += 1;
  return counts;
}

function ladder(rows) {
  const box = { class: "ladder", "aria-hidden": "true", viewBox: `0 0 1 ${Math.max(1, rows)}`, preserveAspectRatio: "none" };
  return drawn("svg", box, drawn("path", { "vector-effect": "non-scaling-stroke" }));
}

function sentence(document, question) {
  const [best] = document.sentences;
  if (!best?.text) return [document.deciding < 0 ? "Nothing to read in this document." : "Its best passage has no sentence."];
  return markedParts(best.text, question).map(({ text, marked }) => (marked ? make("mark", {}, text) : text));
}

function unseen(text) {
  return make("span", { class: "unseen" }, text);
}

customElements.define("ranking-list", RankingList);
