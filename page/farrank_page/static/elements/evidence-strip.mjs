// <evidence-strip>: a document's whole length. Chunks that the ranker read are coloured by evidence, parts that adaptive
// depth only scored are a thin line, and only what lies beyond a limit is hatched.

import { strip } from "../model/strip.mjs";
import { fate, passage, unread } from "../model/wording.mjs";
import { make, tell } from "./make.mjs";

let made = 0;

/** A list of passages to choose from with the pointer or the arrow keys. Emits `passage` `{index, chunk}`. */
export class EvidenceStrip extends HTMLElement {
  #document;
  #active = -1;
  #options = [];

  connectedCallback() {
    this.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) this.#choose(this.#options.indexOf(option));
    });
    this.addEventListener("keydown", (event) => this.#key(event));
    this.addEventListener("focus", () => this.#activate(this.#active < 0 ? this.#first() : this.#active));
  }

  /** Show a document's chunks coloured by a range of evidence; `to` ends the strip before the document's end. */
  show(document, range, to = document.length) {
    this.#document = document;
    this.#active = -1;
    const { chunks, scored, tail } = strip(document, range, 0, to);
    made += 1;
    this.#options = chunks.map((each) => {
      const option = make("span", {
        role: "option",
        id: `strip-${made}-${each.chunk}`,
        class: `chunk step-${each.step}${each.deciding ? " deciding" : ""}`,
        "aria-selected": "false",
        "aria-label": passage(document, each.chunk),
        title: passage(document, each.chunk),
      });
      place(option, each);
      option.style.zIndex = each.deciding ? chunks.length + 1 : each.over;
      return option;
    });
    const lines = scored.map((each) => {
      const line = make("span", { class: "scored", title: "scored, not read by the ranker", "aria-hidden": "true" });
      place(line, each);
      return line;
    });
    const hatch = tail && make("span", { class: "tail", title: unread(document), "aria-hidden": "true" });
    if (hatch) place(hatch, tail);
    this.replaceChildren(...lines, ...this.#options, ...(hatch ? [hatch] : []));
    if (this.#options.length === 0) {
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

function place(element, { left, width }) {
  element.style.left = `${100 * left}%`;
  element.style.width = `${100 * width}%`;
}

customElements.define("evidence-strip", EvidenceStrip);
