// <code-panel>: code for the same call from other programs, and the answer as it came.

import { button, copied, keepFocus, make } from "./make.mjs";

/** Shows tabs `{name, shown, whole, note}`: `shown` is displayed, the result of `whole()` is copied. */
export class CodePanel extends HTMLElement {
  #name = "";

  show(tabs) {
    const code = make("pre", { id: "code", tabindex: "0", role: "tabpanel" });
    const note = make("p", { class: "note", role: "status" });
    const buttons = tabs.map((tab) =>
      button(tab.name, { role: "tab", "aria-selected": "false", "aria-controls": "code", tabindex: "-1" }, () => choose(tab)),
    );
    let chosen;
    const choose = (tab) => {
      chosen = tab;
      this.#name = tab.name;
      buttons.forEach((each, place) => {
        const is = tabs[place] === tab;
        each.setAttribute("aria-selected", String(is));
        each.tabIndex = is ? 0 : -1;
      });
      code.textContent = tab.shown;
      code.setAttribute("aria-label", tab.name);
      note.textContent = tab.note;
    };
    const list = make("div", { role: "tablist", "aria-label": "In which form" }, ...buttons);
    list.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const next = (tabs.indexOf(chosen) + by + tabs.length) % tabs.length;
      choose(tabs[next]);
      buttons[next].focus();
      event.preventDefault();
    });
    const copy = button("Copy", { class: "copy" }, async () => {
      note.textContent = (await copied(chosen.whole())) ? "Copied." : "This browser does not let the page copy.";
    });
    const shown = [make("div", { class: "tabs" }, list, copy), code, note];
    keepFocus(this, ({ id, textContent }) => id || textContent, () => this.replaceChildren(...shown));
    choose(tabs.find(({ name }) => name === this.#name) ?? tabs[0]);
  }
}

customElements.define("code-panel", CodePanel);
