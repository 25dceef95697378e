// <own-documents>: the user's own documents, pasted or dropped.

import { NoDocument, readDocuments, withDocuments } from "../model/documents.mjs";
import { codePoints } from "../model/offsets.mjs";
import { counted } from "../model/wording.mjs";
import { button, make } from "./make.mjs";

/** Holds `documents`, `{id, name, text}` each. */
export class OwnDocuments extends HTMLElement {
  #documents = [];
  #pasted = 0;
  #area;
  #list;
  #problem;

  connectedCallback() {
    this.#area = make("textarea", {
      id: "paste",
      rows: "4",
      placeholder: "Paste a document here, or several with a line of --- between them. A JSON list and JSON lines are understood, too.",
    });
    this.#list = make("ul", { "aria-label": "Your documents" });
    this.#problem = make("p", { class: "problem", role: "alert" });
    const files = make("input", { type: "file", multiple: true, class: "unseen", id: "files" });
    files.addEventListener("change", () => this.addFiles([...files.files]).then(() => (files.value = "")));
    this.replaceChildren(
      make("label", { for: "paste" }, "Your documents"),
      this.#area,
      make(
        "div",
        { class: "adding" },
        button("Add", { class: "add" }, () => this.takePasted()),
        files,
        make("label", { for: "files", class: "button" }, "Choose files…"),
        make("span", { class: "hint" }, "or drop files anywhere on this page"),
      ),
      this.#problem,
      this.#list,
    );
  }

  get documents() {
    return this.#documents;
  }

  /** Take the text in the field, if there is any; returns false if it could not be read. */
  takePasted() {
    if (this.#area.value.trim() === "") return true;
    const added = this.#add(this.#area.value, `pasted ${this.#pasted + 1}`);
    if (added) {
      this.#pasted += 1;
      this.#area.value = "";
    }
    return added;
  }

  /** Take files, each with one document or a list of them. */
  async addFiles(files) {
    for (const file of files) {
      const text = await file.text();
      this.#add(text, file.name, /\.(jsonl?|ndjson)$/i.test(file.name));
    }
  }

  #add(given, source, isJson = null) {
    this.#problem.textContent = "";
    try {
      // A plain text file is one document, even if it has lines of `---` or JSON.
      const read = isJson === false ? [{ id: source, name: source, text: given }] : readDocuments(given, source);
      this.#documents = withDocuments(this.#documents, read);
    } catch (error) {
      if (!(error instanceof NoDocument)) throw error;
      this.#problem.textContent = error.message;
      return false;
    }
    this.#changed();
    return true;
  }

  #changed() {
    this.#list.replaceChildren(
      ...this.#documents.map((document) =>
        make(
          "li",
          {},
          make("span", { class: "name", title: document.name }, document.name),
          make("small", {}, counted(codePoints(document.text), "character")),
          button("×", { "aria-label": `Remove ${document.name}` }, () => {
            this.#documents = this.#documents.filter((each) => each !== document);
            this.#changed();
          }),
        ),
      ),
    );
  }
}

customElements.define("own-documents", OwnDocuments);
