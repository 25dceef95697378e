// <judged-view>: judged questions asked to rankers: the figures of each stage, and two stages question by question.

import { figuresCsv } from "../model/export.mjs";
import { Figures, against } from "../model/judging.mjs";
import { judgedRequest } from "../model/requests.mjs";
import { counted, duration, measure, signed, whole } from "../model/wording.mjs";
import { hideProblem, showProblem } from "../problem.mjs";
import { call } from "../service.mjs";
import { button, keepFocus, make, saved, tell } from "./make.mjs";

// As many candidates as the literature reranks.
const CANDIDATES = 100;

/** Emits `question` `{question, index, k, depth, a, b}` for a question whose documents are to be shown. */
export class JudgedView extends HTMLElement {
  #set = null;
  #asked = null;
  #figures = new Figures();
  #pair = { a: "", b: "" };
  #only = "";
  #running = new AbortController();

  /**
   * Show a set of judged questions, and the rankers to choose from. `most` is the largest number of
   * candidates. The figures of a set stay until it changes.
   */
  show(set, rankers, most, asked) {
    this.hidden = false;
    if (this.#set === set && this.#asked.depth === asked.depth) return;
    this.close();
    this.hidden = false;
    this.#set = set;
    this.#asked = { ...asked, index: set.index };
    this.#figures = new Figures();
    const box = ({ name }, place) => make("label", {}, make("input", { type: "checkbox", name: "ranker", value: name, checked: place === 0 }), name);
    const form = make(
      "form",
      { class: "judged-form" },
      make("h2", {}, `${counted(set.questions.length, "judged question")} about ${set.index}`),
      make("p", { class: "note" }, "Each question is searched and reranked; its ten best documents are compared with the judgements."),
      make("fieldset", {}, make("legend", {}, "Rankers"), ...rankers.map(box)),
      make("label", {}, "Candidates", make("input", { type: "number", name: "k", min: 1, max: most, step: 1, required: true, value: asked.k ?? Math.min(most, CANDIDATES) })),
      make("button", { type: "submit", class: "primary" }, "Measure"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = new FormData(form);
      if (Number(given.get("k")) !== this.#asked.k) this.#forget();
      this.#asked.k = Number(given.get("k"));
      if (given.has("ranker")) this.#measure(given.getAll("ranker"));
    });
    this.replaceChildren(form, make("div", { class: "running" }), make("div", { class: "stages" }), make("div", { class: "against" }));
  }

  /** Figures of another number of candidates do not compare. */
  #forget() {
    this.#figures = new Figures();
    for (const part of this.querySelectorAll(".stages, .against")) part.replaceChildren();
  }

  /** Hide the view, and stop what runs. */
  close() {
    this.#running.abort();
    this.hidden = true;
  }

  async #measure(rankers) {
    this.#running.abort();
    const controller = new AbortController();
    this.#running = controller;
    hideProblem();
    const { questions } = this.#set;
    const asks = rankers.flatMap((ranker) => questions.map((question) => [ranker, question]));
    try {
      const progress = this.#progress(asks.length);
      for (const [done, [ranker, question]] of asks.entries()) {
        progress(`${ranker}: question ${(done % questions.length) + 1} of ${questions.length}`, done);
        const { answer } = await call("SearchAndRerank", judgedRequest(this.#asked, ranker, question.text), controller.signal);
        this.#figures.add(question, answer, ranker, Number(answer.timings?.totalNs ?? 0) / 1e6);
        if (done % 8 === 7) this.#showFigures();
      }
    } catch (error) {
      if (controller !== this.#running) return;
      if (error.name !== "AbortError") showProblem(error, () => this.#measure(rankers));
    } finally {
      if (controller === this.#running) this.#endProgress();
    }
  }

  /** Show that questions are asked; returns a function that tells the question and how many are done. */
  #progress(inAll) {
    const bar = make("progress", { max: inAll, value: 0, "aria-label": "Questions" });
    const said = make("span");
    const cancel = button("Cancel", {}, () => this.#running.abort());
    this.querySelector(".running").replaceChildren(bar, make("p", {}, said, " ", cancel));
    return (text, done) => {
      said.textContent = text;
      bar.value = done;
    };
  }

  #endProgress() {
    const place = this.querySelector(".running");
    // The focus must not vanish with the button.
    if (place.contains(document.activeElement)) this.querySelector("button.primary").focus();
    place.replaceChildren();
    if (this.#figures.stages.size > 0) this.#showFigures();
  }

  #showFigures() {
    const rows = this.#figures.rows();
    const keys = rows.map(({ key }) => key);
    if (!keys.includes(this.#pair.a)) this.#pair.a = keys[0];
    if (!keys.includes(this.#pair.b) || this.#pair.b === this.#pair.a) this.#pair.b = keys.at(-1);
    const best = Math.max(...rows.map(({ ndcg }) => ndcg));
    const head = ["Stage", "nDCG@10", "MRR@10", "judged", "questions", "median time"];
    const cells = (row) => [measure(row.ndcg), measure(row.rr), `${whole(100 * row.judged)}%`, whole(row.questions), row.ms === null ? "–" : duration(row.ms)];
    const line = (row) =>
      make(
        "tr",
        { class: row.ndcg === best ? "best" : null },
        make("th", { scope: "row" }, titleOf(row.stage)),
        ...cells(row).map((text) => make("td", {}, text)),
      );
    this.querySelector(".stages").replaceChildren(
      make(
        "table",
        {},
        make("caption", { class: "unseen" }, "Means over the questions"),
        make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
        make("tbody", {}, ...rows.map(line)),
      ),
      make("p", { class: "note" }, "Judged is the share of the ten best documents that have a judgement: others count as not relevant."),
      button("Save as CSV", {}, () => saved(`judged-${this.#set.index}.csv`, figuresCsv(this.#set.questions, [...this.#figures.stages.values()]), "text/csv")),
    );
    this.#showAgainst(rows);
  }

  #showAgainst(rows) {
    const { stages } = this.#figures;
    const [a, b] = [stages.get(this.#pair.a), stages.get(this.#pair.b)];
    const compared = against(a, b, this.#set.questions);
    const choice = (side, label) => {
      const select = make("select", { "aria-label": label, "data-control": side }, ...rows.map(({ key, stage }) => make("option", { value: key, selected: key === this.#pair[side] }, titleOf(stage))));
      select.addEventListener("change", () => {
        this.#pair[side] = select.value;
        this.#showAgainst(rows);
      });
      return select;
    };
    const counts = [["wins", compared.wins], ["ties", compared.ties], ["losses", compared.losses]];
    const filters = counts.map(([kind, count]) => {
      const filter = button(`${whole(count)} ${kind}`, { class: `only ${kind}`, "data-control": kind, "aria-pressed": String(this.#only === kind) }, () => {
        this.#only = this.#only === kind ? "" : kind;
        this.#showAgainst(rows);
      });
      filter.style.flexGrow = count;
      return filter;
    });
    const kept = compared.questions.filter(({ difference }) => this.#only === "" || this.#only === kindOf(difference));
    const shown = [
      make("h2", {}, choice("b", "This stage"), " against ", choice("a", "That stage")),
      make("p", {}, `nDCG@10 ${signed(compared.difference)}, p ${compared.p < 0.001 ? "< 0.001" : `= ${compared.p.toFixed(3)}`} (randomization test of ${counted(compared.questions.length, "question")}).`),
      make("div", { class: "balance", role: "group", "aria-label": "Show only questions with" }, ...filters),
      make("ol", { "aria-label": "Questions" }, ...kept.map((each) => make("li", {}, this.#questionRow(each)))),
    ];
    const place = this.querySelector(".against");
    keepFocus(place, ({ dataset }) => dataset.control, () => place.replaceChildren(...shown));
  }

  #questionRow({ question, a, b, difference }) {
    const bar = make("span", { class: `bar ${kindOf(difference)}`, "aria-hidden": "true" });
    bar.style.width = `${50 * Math.abs(difference)}%`;
    const row = button("", { class: "question", "data-control": question.id }, () => tell(this, "question", { question: question.text, ...this.#sides() }));
    row.append(
      make("span", { class: "text" }, question.text),
      make("span", { class: "track" }, bar),
      make("span", { class: "values" }, `${measure(a)} → ${measure(b)}`),
    );
    return row;
  }

  /** The rankers to compare for a question: a first stage is in every answer. */
  #sides() {
    const names = [this.#pair.a, this.#pair.b].map((key) => this.#figures.stages.get(key).stage).filter(({ kind }) => kind === "ranker");
    return { index: this.#set.index, k: this.#asked.k, depth: this.#asked.depth, a: names[0]?.name ?? "", b: names[1]?.name ?? "" };
  }
}

function kindOf(difference) {
  return difference > 1e-9 ? "wins" : difference < -1e-9 ? "losses" : "ties";
}

function titleOf({ kind, name }) {
  return kind === "ranker" ? name : kind === "member" ? `First stage: ${name}` : "First stage";
}

customElements.define("judged-view", JudgedView);
