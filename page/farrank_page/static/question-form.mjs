// The form of a question: its options are folded away, and the server's rankers and indexes fill its lists.

import { button, make } from "./elements/make.mjs";
import { NOTHING_ASKED } from "./model/address.mjs";
import { whole } from "./model/wording.mjs";

export class QuestionForm {
  #form;
  #own;
  #unfold;
  #catalog = null;

  /** `onAsk(asked)` is called with a question that the user sends. */
  constructor(form, onAsk) {
    this.#form = form;
    this.#own = form.querySelector("own-documents");
    this.#unfold = form.querySelector("#unfold");
    this.#unfold.addEventListener("click", () => this.fold(this.#unfold.ariaExpanded === "true"));
    form.addEventListener("change", (event) => event.target.name === "source" && this.#showSource());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (form.elements.source.value === "own" && !this.#own.takePasted()) return;
      onAsk(this.#read());
    });
  }

  /** The user's own documents, `{id, name, text}` each. */
  get documents() {
    return this.#own.documents;
  }

  /** Take the server's rankers, indexes and limits. */
  take(catalog) {
    this.#catalog = catalog;
    const { rankers = [], indexes = [] } = catalog;
    const { elements } = this.#form;
    const names = rankers.map(({ name }) => [name, name]);
    fill(elements.a, names);
    fill(elements.b, [["", "nothing"], ...names]);
    fill(elements.index, indexes.map((index) => [index.name, `${index.name} (${whole(index.documents)})`]));
    this.#form.querySelector("#against").hidden = rankers.length < 2;
    elements.source[0].disabled = indexes.length === 0;
    if (indexes.length === 0) this.fold(false);
  }

  /** Show a question of an address. Names that the server does not have are left out: `missing` says which. */
  show(asked) {
    const { elements } = this.#form;
    elements.query.value = asked.query;
    elements.source.value = elements.source[0].disabled ? "own" : asked.source;
    elements.scale.value = asked.scale;
    for (const name of ["index", "a", "b"]) {
      const known = [...elements[name].options].some((option) => option.value === asked[name]);
      if (known) elements[name].value = asked[name];
      else elements[name].selectedIndex = elements[name].options.length > 0 ? 0 : -1;
    }
    // The address takes any budget, also those that the list does not have.
    if (![...elements.depth.options].some((option) => option.value === asked.depth)) {
      elements.depth.append(make("option", { value: asked.depth }, asked.depth.replace(/,(\w+)=/, ", $1: ")));
    }
    elements.depth.value = asked.depth;
    const index = this.#catalog?.indexes?.find((each) => each.name === elements.index.value);
    elements.k.placeholder = index?.defaultK ?? "";
    elements.k.value = asked.k ?? "";
    elements.k.max = this.#catalog?.limits?.maxDocuments ?? "";
    this.#showSource();
  }

  /** A name in an address that the server does not have, in a sentence; null if there is none. */
  missing(asked) {
    const { rankers = [], indexes = [] } = this.#catalog;
    const listed = (list) => list.map(({ name }) => name).join(", ") || "none";
    const lacks = (name, list) => name !== "" && !list.some((each) => each.name === name);
    for (const side of [asked.a, asked.b]) {
      if (lacks(side, rankers)) return `Ranker: this server has no “${side.slice(0, 100)}”. It has: ${listed(rankers)}.`;
    }
    if (asked.source === "index" && lacks(asked.index, indexes)) {
      return `Index: this server has no “${asked.index.slice(0, 100)}”. It has: ${listed(indexes)}.`;
    }
    return null;
  }

  /** Fold the options away, or unfold them. */
  fold(isFolded) {
    this.#unfold.ariaExpanded = String(!isFolded);
    this.#form.querySelector("#options").hidden = isFolded;
    this.#showSource();
  }

  /** Choose the user's own documents as the source, and show where to bring them. */
  bringOwn() {
    this.#form.elements.source.value = "own";
    this.fold(false);
    this.#own.querySelector("textarea").focus();
  }

  /** Add dropped files to the user's own documents. */
  addFiles(files) {
    this.#form.elements.source.value = "own";
    this.fold(false);
    this.#own.addFiles(files);
  }

  #showSource() {
    const isOwn = this.#form.elements.source.value === "own";
    this.#own.hidden = !isOwn || this.#unfold.ariaExpanded === "false";
    for (const each of this.#form.querySelectorAll(".of-index")) each.hidden = isOwn;
  }

  #read() {
    const { query, source, index, k, a, b, scale, depth } = this.#form.elements;
    return {
      ...NOTHING_ASKED,
      query: query.value,
      source: source.value,
      index: index.value,
      k: k.value === "" ? null : Number(k.value),
      a: a.value,
      b: b.value === a.value ? "" : b.value,
      scale: scale.value,
      depth: depth.value,
    };
  }
}

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
}

const EXAMPLES = 6;
// Questions of one line.
const EXAMPLE_CHARACTERS = 70;

/** Buttons of judged questions, spread over their set; `onAsk(question)` is called with a question's text. */
export function examples(questions, onAsk) {
  const short = questions.filter(({ text }) => text.length <= EXAMPLE_CHARACTERS);
  const step = Math.max(1, Math.floor(short.length / EXAMPLES));
  const chosen = short.filter((_, place) => place % step === 0).slice(0, EXAMPLES);
  return chosen.map(({ text }) => make("li", {}, button(text, { class: "example" }, () => onAsk(text))));
}
