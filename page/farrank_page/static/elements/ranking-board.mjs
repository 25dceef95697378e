// <ranking-board>: two orders of the same documents, joined by lines.

import { moves } from "../model/comparison.mjs";
import { excerpt } from "../model/reading.mjs";
import { slopes } from "../model/slopes.mjs";
import { counted, moved, readOf, score, unread } from "../model/wording.mjs";
import "./evidence-strip.mjs";
import { button, drawn, make, tell } from "./make.mjs";

/**
 * Shows columns `{side, title, documents, rangeOf, rounds}`; `side` is `first`, `a` or `b`; a column of the first stage
 * has no evidence. Emits `passage` `{side, index, chunk}` for a chosen passage.
 */
export class RankingBoard extends HTMLElement {
  connectedCallback() {
    this.addEventListener("passage", (event) => {
      const column = event.target.closest("[data-side]");
      if (event.detail.side || !column) return;
      event.stopImmediatePropagation();
      tell(this, "passage", { ...event.detail, side: column.dataset.side });
    });
    for (const [on, is] of [["pointerover", true], ["focusin", true], ["pointerout", false], ["focusout", false]]) {
      this.addEventListener(on, (event) => this.#light(event.target.closest("[data-index]"), is));
    }
  }

  show(left, right) {
    const before = left.documents.map((document) => document.index);
    const after = right.documents.map((document) => document.index);
    const rows = Math.max(before.length, after.length);
    this.style.setProperty("--rows", rows);
    this.classList.toggle("compared", left.side !== "first");
    this.replaceChildren(
      column(left, null),
      make("div", { class: "slopes", "aria-hidden": "true" }, lines(slopes(before, after, 1, 1), rows)),
      column(right, moves(before, after)),
    );
  }

  /** Mark the open document of a side, and one of its chunks. */
  select(side, index, chunk) {
    for (const row of this.querySelectorAll("li")) {
      const isIt = row.parentElement.parentElement.dataset.side === side && row.dataset.index === String(index);
      row.classList.toggle("selected", isIt);
      row.querySelector("evidence-strip")?.select(isIt ? chunk : -1);
      if (isIt) row.querySelector(".name").setAttribute("aria-current", "true");
      else row.querySelector(".name").removeAttribute("aria-current");
    }
  }

  /** Put the focus on a document's name. */
  focusDocument(side, index) {
    this.querySelector(`[data-side="${side}"] li[data-index="${index}"] .name`)?.focus();
  }

  #light(row, is) {
    if (!row) return;
    for (const each of this.querySelectorAll(`[data-index="${row.dataset.index}"]`)) each.classList.toggle("lit", is);
  }
}

function lines(all, rows) {
  return drawn(
    "svg",
    { viewBox: `0 0 1 ${Math.max(1, rows)}`, preserveAspectRatio: "none" },
    ...all.map(({ index, move, path }) =>
      drawn("path", { d: path, "data-index": index, class: `slope ${moved(move).kind}` }),
    ),
  );
}

function column({ side, title, documents, rangeOf, rounds }, shifts) {
  const heading = make("h3", { id: `column-${side}` }, title);
  const list = make("ol", { "aria-labelledby": heading.id });
  list.append(
    ...documents.map((document, place) =>
      rangeOf ? scoredRow(document, place, rangeOf, rounds, shifts?.get(document.index)) : candidateRow(document, place),
    ),
  );
  return make("section", { class: "column", "data-side": side }, heading, list);
}

function candidateRow(document, place) {
  return make(
    "li",
    { "data-index": document.index },
    make("span", { class: "rank" }, String(place + 1)),
    button(document.name, { class: "name", title: document.name }, (event) => choose(event, document)),
    document.firstStageScore === null
      ? null
      : make("span", { class: "score", title: "the first stage’s score" }, score(document.firstStageScore)),
  );
}

function scoredRow(document, place, rangeOf, rounds, move) {
  const shown = move === undefined ? null : moved(move);
  const evidence = make("evidence-strip");
  evidence.show(document, rangeOf(document));
  const cut = unread(document);
  const round = rounds > 1 ? ` in ${counted(document.round, "round")}` : "";
  const quote = document.deciding < 0 ? "Nothing to read in this document." : excerpt(document, document.deciding);
  return make(
    "li",
    { "data-index": document.index },
    make("span", { class: "rank" }, String(place + 1)),
    button(document.name, { class: "name", title: document.name }, (event) => choose(event, document)),
    shown &&
      make(
        "span",
        { class: `move ${shown.kind}`, title: shown.text },
        make("span", { "aria-hidden": "true" }, shown.sign),
        make("span", { class: "unseen" }, shown.text),
      ),
    make("span", { class: "score", title: "the ranker’s score" }, make("b", {}, score(document.score))),
    evidence,
    make(
      "p",
      { class: "excerpt" },
      make("span", { class: "read" }, readOf(document), round),
      cut ? make("span", { class: "cut" }, cut) : null,
      quote,
    ),
  );
}

function choose(event, document) {
  tell(event.currentTarget, "passage", { index: document.index, chunk: Math.max(0, document.deciding) });
}

customElements.define("ranking-board", RankingBoard);
