// <passage-reader>: a document's text, opened at a passage.

import { blocks } from "../model/reading.mjs";
import { deservesEnlarging, stepOf } from "../model/strip.mjs";
import { counted, passage, readOf, score, unread } from "../model/wording.mjs";
import "./evidence-strip.mjs";
import { button, keepFocus, make, tell } from "./make.mjs";

// Height of the text that stays visible above a passage.
const CONTEXT_PX = 72;

// A scroll has settled when nothing has moved for QUIET_FRAMES. It ends after MAX_FRAMES in any case.
const QUIET_FRAMES = 6;
const MAX_FRAMES = 40;

/**
 * Emits `passage` `{index, chunk}`, `close`, `neighbour` `{by}` for the document above or below, and `whole` if the
 * reader wants the rest of the document to be read by the ranker.
 */
export class PassageReader extends HTMLElement {
  #document = null;
  #range = null;
  #chunk = -1;
  #spans = [];
  #strips = [];
  #where;
  #text;
  #awaited = null;

  connectedCallback() {
    this.addEventListener("passage", (event) => {
      if (event.target === this) return;
      event.stopImmediatePropagation();
      this.#go(event.detail.chunk);
    });
    // After the user has scrolled, the page does not scroll back.
    for (const by of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      this.addEventListener(by, () => (this.#awaited = null), { passive: true });
    }
  }

  get isOpen() {
    return this.#document !== null;
  }

  /**
   * Open a document at one of its chunks. `document.text` is null until it is fetched; then `show` is called again.
   *
   * `rank` is its rank in the answer, `note` a line for the reader, empty if there is none.
   */
  show({ document, range, chunk, rank, note = "" }) {
    if (this.#document !== document) this.#open(document, range, rank, note);
    this.#at(chunk);
  }

  /** Show the open document anew when more of it is known. The passage, the focus and the text in sight stay. */
  renew({ document, range, rank, note = "" }) {
    const { start } = this.#document.chunks[this.#chunk] ?? {};
    const sight = this.#text.querySelector(".block") ? this.#inSight() : null;
    keepFocus(this, (control) => `${control.className} ${control.title}`, () => this.#open(document, range, rank, note));
    this.#at(document.chunks.findIndex((chunk) => chunk.start === start));
    if (sight) this.#scrollTo(this.#text.children[sight.block], sight.top);
  }

  close() {
    this.#document = null;
    this.hidden = true;
    this.replaceChildren();
  }

  /** Put the focus on the text. */
  focusText() {
    this.#text?.focus({ preventScroll: true });
  }

  /** Do the action of a key; returns whether it has one. */
  key(key) {
    const { length } = this.#document.chunks;
    if (key === "Escape") tell(this, "close");
    else if (key === "j" || key === "k") tell(this, "neighbour", { by: key === "j" ? 1 : -1 });
    else if (key === "n" || key === "ArrowRight") this.#go(Math.min(length - 1, this.#chunk + 1));
    else if (key === "p" || key === "ArrowLeft") this.#go(Math.max(0, this.#chunk - 1));
    else if (key === "d") this.#go(this.#document.deciding);
    else return false;
    return true;
  }

  #open(document, range, rank, note) {
    this.#document = document;
    this.#range = range;
    this.hidden = false;
    this.#where = make("p", { class: "where", "aria-live": "polite" });
    this.#text = make("div", { class: "text", tabindex: "0", role: "document", "aria-label": `Text of ${document.name}` });
    const whole_ = make("evidence-strip");
    whole_.show(document, range);
    this.#strips = [whole_];
    const enlarged = deservesEnlarging(document) ? make("evidence-strip") : null;
    if (enlarged) {
      enlarged.show(document, range, document.read);
      this.#strips.push(enlarged);
    }
    const isPartial = document.chunksRead < document.chunksInAll && (document.charactersCut === 0 || document.unfinished) && !document.pending;
    const facts = [`rank ${rank}`, `score ${score(document.score)}`, counted(document.length, "character"), document.pending ? "still reading" : "", readOf(document), document.pending ? "" : unread(document), note];
    this.replaceChildren(
      make(
        "div",
        { class: "head" },
        make(
          "div",
          { class: "title" },
          make("h2", { id: "reader-title", title: document.name }, document.name),
          button("Close", { class: "close", "aria-keyshortcuts": "Escape" }, () => tell(this, "close")),
        ),
        make("p", { class: "facts" }, facts.filter((each) => each !== "").join(" · ")),
        whole_,
        enlarged && make("p", { class: "enlarged" }, "The part that was read, enlarged"),
        enlarged,
        this.#steps(isPartial),
      ),
      this.#text,
    );
    this.#write();
  }

  #steps(isPartial) {
    const none = this.#document.chunks.length === 0;
    const step = (text, key, name) =>
      button(text, { "aria-keyshortcuts": key, disabled: none, title: `${name} (${key})` }, () => this.key(key));
    return make(
      "div",
      { class: "steps" },
      this.#where,
      step("‹ Previous", "p", "the passage before"),
      step("Deciding", "d", "the passage that decided"),
      step("Next ›", "n", "the passage after"),
      isPartial ? button("Read this document whole", { class: "whole" }, (event) => this.#askForWhole(event.currentTarget)) : null,
    );
  }

  #askForWhole(button_) {
    button_.textContent = "Reading it…";
    tell(this, "whole");
  }

  #write() {
    const { text, chunks } = this.#document;
    this.#spans = chunks.map(() => []);
    if (text === null || text === "") {
      const why = text === null ? "Fetching the text…" : "The document is empty.";
      this.#text.replaceChildren(make("p", { class: "nothing" }, why));
      return;
    }
    const shown = ({ start, end, chunks: its, read, sentence, blank }) => {
      const words = text.slice(start, end);
      if (blank) return words;
      if (its.length === 0) return read ? words : make("span", { class: "unread" }, words);
      const strongest = Math.max(...its.map((chunk) => chunks[chunk].score));
      const kind = sentence < 0 ? "" : sentence === 0 ? " picked first" : " picked";
      const span = make("span", { class: `run step-${stepOf(strongest, this.#range)}${kind}` }, words);
      for (const chunk of its) this.#spans[chunk].push(span);
      return span;
    };
    const block = ({ code, runs }) => make("div", { class: code ? "block code" : "block" }, ...runs.map(shown));
    this.#text.replaceChildren(...blocks(this.#document).map(block));
  }

  #go(chunk) {
    if (chunk < 0 || chunk >= this.#document.chunks.length) return;
    tell(this, "passage", { index: this.#document.index, chunk });
  }

  #at(chunk) {
    for (const span of this.#spans[this.#chunk] ?? []) span.classList.remove("current");
    this.#chunk = chunk;
    const spans = this.#spans[chunk] ?? [];
    for (const span of spans) {
      span.classList.add("current");
      // The height of a block that is not laid out is an estimate, and so are the positions in it.
      span.parentElement.classList.add("opened");
    }
    for (const each of this.#strips) each.select(chunk);
    const there = this.#document.chunks[chunk];
    this.#where.textContent = there ? passage(this.#document, chunk) : "no passage";
    const target = spans.find((span) => span.classList.contains("first")) ?? spans[0];
    if (target) this.#scrollTo(target);
    else this.#text.scrollTop = 0;
  }

  /** The first block of the text in sight, and its `top` below that of the text. */
  #inSight() {
    const { top } = this.#text.getBoundingClientRect();
    const blocks_ = [...this.#text.children].map((each) => each.getBoundingClientRect());
    const block = Math.max(0, blocks_.findIndex(({ bottom }) => bottom > top));
    return { block, top: blocks_[block].top - top };
  }

  /** Scroll an element to `top` below the text's own. scrollIntoView would also scroll the page. */
  #scrollTo(element, top = CONTEXT_PX) {
    const text = this.#text;
    const scroll = () => {
      const by = element.getBoundingClientRect().top - text.getBoundingClientRect().top - top;
      const before = text.scrollTop;
      text.scrollTop += by;
      return text.scrollTop !== before;
    };
    // The browser lays out nearby blocks in the frames after a scroll, which changes their estimated heights.
    let quiet = 0;
    let frames = 0;
    const settle = () => {
      if (this.#awaited !== settle) return;
      quiet = scroll() ? 0 : quiet + 1;
      frames += 1;
      if (quiet < QUIET_FRAMES && frames < MAX_FRAMES) requestAnimationFrame(settle);
    };
    this.#awaited = settle;
    settle();
  }
}

customElements.define("passage-reader", PassageReader);
