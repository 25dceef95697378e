// A document's whole length as a strip. Chunks that the ranker read are coloured by evidence, parts that adaptive depth
// only scored are a thin line, and only what lies beyond a limit is hatched.

import { strip } from "../model/strip.mjs";
import { fate, passage } from "../model/wording.mjs";
import { make, tell } from "./make.mjs";

/**
 * The parts of a strip: `{chunks, others}`, elements at their places. `to` ends the strip before the document's end.
 */
export function stripParts(document, range, to = document.length) {
  const { chunks, scored, tail } = strip(document, range, 0, to);
  const part = (kind, where) => {
    const made = make("span", { class: kind });
    made.style.left = `${100 * where.left}%`;
    made.style.width = `${100 * where.width}%`;
    return made;
  };
  const shown = chunks.map((each) => {
    const made = part(`chunk step-${each.step}${each.deciding ? " deciding" : ""}`, each);
    made.dataset.chunk = each.chunk;
    made.style.zIndex = each.deciding ? chunks.length + 1 : each.over;
    return made;
  });
  return { chunks: shown, others: [...scored.map((each) => part("scored", each)), ...(tail ? [part("tail", tail)] : [])] };
}

/** A strip to look at, or to click; beside it stands its text for screen readers. */
export function drawnStrip(document, range) {
  const { chunks, others } = stripParts(document, range);
  return make("span", { class: "strip", "aria-hidden": "true" }, ...others, ...chunks);
}

let made = 0;

/** <evidence-strip>: passages to choose from with the pointer or the arrow keys. Emits `passage` `{index, chunk}`. */
export class EvidenceStrip extends HTMLElement {
  #document;
  #active = -1;
  #options = [];

  connectedCallback() {
    this.classList.add("strip");
    this.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.#choose(this.#options.indexOf(option));
    });
    this.addEventListener("keydown", (event) => this.#key(event));
    this.addEventListener("focus", () => this.#activate(this.#active < 0 ? this.#first() : this.#active));
  }

  /** Show a document's chunks coloured by a range of evidence. */
  show(document, range, to) {
    this.#document = document;
    this.#active = -1;
    const { chunks, others } = stripParts(document, range, to);
    for (const each of others) each.setAttribute("aria-hidden", "true");
    made += 1;
    this.#options = chunks;
    chunks.forEach((option, chunk) => {
      const label = passage(document, chunk);
      option.id = `strip-${made}-${chunk}`;
      option.title = label;
      for (const [name, value] of [["role", "option"], ["aria-selected", "false"], ["aria-label", label]]) {
        option.setAttribute(name, value);
      }
    });
    this.replaceChildren(...others, ...chunks);
    if (chunks.length === 0) {
      this.removeAttribute("tabindex");
      this.setAttribute("role", "img");
    } else {
      this.setAttribute("role", "listbox");
      this.setAttribute("aria-orientation", "horizontal");
      this.tabIndex = 0;
    }
    this.setAttribute("aria-label", `Evidence along ${document.name}; ${fate(document)}`);
  }

  /** Mark a chunk as the open one; -1 for none. */
  select(chunk) {
    this.#options.forEach((option, place) => option.setAttribute("aria-selected", String(place === chunk)));
    if (chunk >= 0) this.#active = chunk;
  }

  #first() {
    return Math.max(0, this.#document.deciding);
  }

  #activate(chunk) {
    this.#options[this.#active]?.classList.remove("active");
    this.#active = chunk;
    this.#options[chunk]?.classList.add("active");
    const id = this.#options[chunk]?.id;
    if (id) this.setAttribute("aria-activedescendant", id);
  }

  #choose(chunk) {
    this.#activate(chunk);
    tell(this, "passage", { index: this.#document.index, chunk });
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.#options.length === 0) return;
    const last = this.#options.length - 1;
    const at = this.#active < 0 ? this.#first() : this.#active;
    const to = { ArrowRight: Math.min(last, at + 1), ArrowLeft: Math.max(0, at - 1), Home: 0, End: last }[event.key];
    if (to !== undefined) this.#activate(to);
    else if (event.key === "Enter" || event.key === " ") this.#choose(at);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

customElements.define("evidence-strip", EvidenceStrip);
