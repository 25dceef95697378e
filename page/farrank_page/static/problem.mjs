// Tells what went wrong, in the page's words, and what helps.

import { button, make } from "./elements/make.mjs";
import { duration, headline, inThePagesWords, isTemporary } from "./model/wording.mjs";
import { CallError, hasKey, showKey } from "./service.mjs";

const place = document.getElementById("problem");

/** Show a failed call. `again` repeats it, where that can help. Other errors are thrown on. */
export function showProblem(error, again) {
  if (!(error instanceof CallError)) throw error;
  const wait = error.retryAfterMs === null ? null : `Ask again in ${duration(error.retryAfterMs)}.`;
  const helps = error.code === "unauthenticated" ? keyForm(again) : isTemporary(error.code) ? button("Try again", {}, again) : null;
  show(headline(error.code), inThePagesWords(error.message), wait && make("p", {}, wait), helps);
  // The key that was given is a wrong one.
  if (error.code === "unauthenticated" && hasKey()) helps.querySelector("input").focus();
}

/** Show a problem of the page's own. */
export function showNotice(title, text) {
  show(title, text);
}

export function hideProblem() {
  // The focus must not vanish with a button or a field.
  if (place.contains(document.activeElement)) document.getElementById("query").focus();
  place.hidden = true;
  place.replaceChildren();
}

function show(title, text, ...more) {
  place.replaceChildren(make("div", {}, make("h2", {}, title), make("p", { class: "said" }, text), ...more));
  place.hidden = false;
}

/** A form for the API key that the server requires. */
function keyForm(again) {
  const field = make("input", { type: "password", "aria-label": "API key", autocomplete: "off", spellcheck: "false" });
  const shown = make("form", {}, field, " ", make("button", { type: "submit" }, "Use this key"));
  shown.addEventListener("submit", (event) => {
    event.preventDefault();
    showKey(field.value.trim());
    again();
  });
  return shown;
}
