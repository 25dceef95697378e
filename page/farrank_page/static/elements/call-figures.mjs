// <call-figures>: the time that a call spent in each stage, and how alike two orders are.

import { counted, duration, readOf, whole } from "../model/wording.mjs";
import { make } from "./make.mjs";

/** Shows answers `{title, answer, waitedMs}`, and `alike`: `{title, tau, overlap}`. */
export class CallFigures extends HTMLElement {
  show(calls, alike) {
    const longest = Math.max(...calls.flatMap(({ answer }) => [answer.totalMs, ...answer.stages.map((each) => each.ms)]));
    this.replaceChildren(...(alike ? [agreement(alike, calls)] : []), ...calls.map((each) => timings(each, longest)));
  }
}

function agreement({ title, tau, overlap }, calls) {
  const facts = [
    ["rank correlation (Kendall’s τ-b)", Number.isNaN(tau) ? "–" : tau.toFixed(2).replace("-", "−")],
    ["shared among the ten best", `${overlap.shared} of ${overlap.of}`],
  ];
  if (calls.length === 2) {
    const [a, b] = calls.map((each) => each.answer);
    facts.push(["time", `${duration(a.totalMs)} → ${duration(b.totalMs)}`]);
    facts.push(["chunks read", `${whole(a.chunksRead)} → ${whole(b.chunksRead)}`]);
    facts.push(["tokens encoded", `${whole(a.tokens)} → ${whole(b.tokens)}`]);
  }
  return make(
    "section",
    { class: "agreement" },
    make("h2", {}, title),
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
  );
}

function timings({ title, answer, waitedMs }, longest) {
  const rows = [["in all", answer.totalMs, "total"], ...answer.stages.map(({ name, ms }) => [name, ms, "stage"])];
  const cached = answer.cachedChunks > 0 ? `, ${whole(answer.cachedChunks)} from the cache` : "";
  return make(
    "section",
    { class: "timings" },
    make("h2", {}, title),
    make(
      "table",
      {},
      make("caption", { class: "unseen" }, "Durations of the stages, which overlap"),
      make(
        "tbody",
        {},
        ...rows.map(([name, ms, kind]) => {
          const bar = make("span", { class: `bar ${kind}` });
          bar.style.width = `${(100 * ms) / Math.max(longest, 1e-6)}%`;
          return make(
            "tr",
            {},
            make("th", { scope: "row" }, name),
            make("td", { class: "ms" }, duration(ms)),
            make("td", { class: "track", "aria-hidden": "true" }, bar),
          );
        }),
      ),
    ),
    make(
      "p",
      { class: "note" },
      `Stages overlap: bars are durations, not a sequence. A chunk also waits for the call’s own earlier chunks. `,
      `The answer arrived after ${duration(waitedMs)}. The ranker ${readOf(answer)}${cached}, and encoded ${counted(answer.tokens, "token")}. `,
      `${answer.ranker.name} ${answer.ranker.version.slice(0, 12)}, ${answer.ranker.runtime} ${answer.ranker.precision}.`,
    ),
  );
}

customElements.define("call-figures", CallFigures);
