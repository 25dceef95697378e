// The parts below a ranking: its link and files, what its colours mean, and the same call from code.

import { button, copied, keepFocus, make, saved } from "./elements/make.mjs";
import { rankingCsv, trecRun } from "./model/export.mjs";
import { cohere, curl, javascript, python, shortened } from "./model/snippets.mjs";
import { STEPS, ranges } from "./model/strip.mjs";
import { meaning, score } from "./model/wording.mjs";
import { hasKey } from "./service.mjs";

/** Show buttons that copy the link and save the answer. `queryId` is the question's id, if it is a judged one. */
export function tools(place, asked, { answer, raw }, queryId = "1") {
  const note = make("span", { class: "note", role: "status" });
  const name = (asked.query.match(/[\p{L}\p{N}]+/gu) ?? ["answer"]).slice(0, 6).join("-").toLowerCase();
  const copy = button("Copy link", {}, async () => {
    note.textContent = (await copied(location.href)) ? "Copied." : "This browser does not let the page copy.";
  });
  const shown = [
    ...(asked.source === "index" ? [copy] : []),
    make("span", { class: "of-tools" }, "Save as"),
    button("CSV", {}, () => saved(`${name}.csv`, rankingCsv(answer), "text/csv")),
    button("TREC run", {}, () => saved(`${name}.trec`, trecRun(answer.documents, queryId, answer.ranker.name), "text/plain")),
    button("JSON", {}, () => saved(`${name}.json`, JSON.stringify(raw, null, 2), "application/json")),
    note,
  ];
  keepFocus(place, ({ textContent }) => textContent, () => place.replaceChildren(...shown));
}

/** Show what the colours of answers mean. */
export function legend(place, answers) {
  const swatch = (kind, label) => make("li", {}, make("i", { class: kind }), label);
  const shows = (is) => answers.some(({ documents }) => documents.some(is)) || null;
  const meanings = new Set(answers.map(({ evidence }) => meaning(evidence).text));
  place.replaceChildren(
    ...answers.map((answer) => scale(answer, answers.length > 1 ? answer.ranker.name : "Evidence")),
    make(
      "ul",
      {},
      swatch("step-3", "read by the ranker"),
      swatch("deciding", "decided the score"),
      shows((each) => each.scored.length > 0) && swatch("scored", "scored by the selector, not read by the ranker"),
      shows((each) => each.charactersCut > 0) && swatch("tail", "not read"),
    ),
    ...Array.from(meanings, (text) => make("p", { class: "note" }, text)),
  );
}

function scale(answer, title) {
  const [low, high] = answer.evidence === "attention" ? [null, null] : ranges(answer.evidence, answer.documents)();
  const steps = Array.from({ length: STEPS }, (_, step) => make("i", { class: `step-${step}` }));
  return make(
    "div",
    { class: "scale" },
    make("b", {}, `${title}: ${meaning(answer.evidence).name}`),
    make("span", { class: "end" }, low === null ? "least" : score(low)),
    make("span", { class: "ramp", "aria-hidden": "true" }, ...steps),
    make("span", { class: "end" }, high === null ? "most" : score(high)),
  );
}

const SHORT = "Long texts are shortened here; Copy takes them whole.";

/** Show the call of side `a` as code. `brought` are the user's own documents, null after a search. */
export function showSnippets(panel, asked, { ranker, method, request, raw }, brought) {
  const base = new URL(".", location.href).href.replace(/\/$/, "");
  const short = brought && shortened(brought);
  const isShort = short?.some((document, place) => document.text !== brought[place].text);
  const requested = (documents) => (documents ? { ...request, documents: documents.map(({ id, text }) => ({ id, text })) } : request);
  const forms = [
    ["curl", (documents) => curl(base, method, requested(documents), hasKey())],
    ["Python", (documents) => python(base, method, requested(documents), hasKey())],
    ["JavaScript", (documents) => javascript(base, method, requested(documents), hasKey())],
    ...(brought ? [["Cohere SDK", (documents) => cohere(base, asked, ranker, documents, hasKey())]] : []),
  ];
  panel.show([
    ...forms.map(([name, write]) => ({
      name,
      shown: write(short),
      whole: () => write(brought),
      note: [isShort && SHORT, hasKey() && "Set FARRANK_API_KEY to the key."].filter(Boolean).join(" "),
    })),
    { name: "Answer", shown: JSON.stringify(raw, null, 2).slice(0, 20_000), whole: () => JSON.stringify(raw, null, 2), note: "" },
  ]);
}
