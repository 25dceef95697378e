// The rankings that rankers and first stages give to judged questions, and their figures.

import { judgedShare, mean, median, ndcg, randomizationP, reciprocalRank } from "./measures.mjs";

/**
 * The orders that one answer of SearchAndRerank contains: `{stage, ranked}`, ids best first.
 *
 * The first stage's order is that of the indexes; a fusion also has the orders of its members.
 */
export function ordersOf(answer, ranker) {
  const results = answer.results ?? [];
  const ids = (list) => list.map((result) => result.id);
  const orders = [{ stage: { kind: "ranker", name: ranker }, ranked: ids(results) }];
  const found = [...results].sort((one, other) => (one.index ?? 0) - (other.index ?? 0));
  orders.push({ stage: { kind: "first", name: "" }, ranked: ids(found) });
  const members = new Set(results.flatMap((result) => (result.firstStageScores ?? []).map(({ index }) => index)));
  if (members.size > 1) {
    for (const name of members) {
      const scored = found.flatMap((result) => {
        const own = (result.firstStageScores ?? []).find((each) => each.index === name);
        return own ? [{ id: result.id, score: Number(own.score) }] : [];
      });
      scored.sort((one, other) => other.score - one.score);
      orders.push({ stage: { kind: "member", name }, ranked: ids(scored) });
    }
  }
  return orders;
}

/** The figures of each stage over questions, collected answer by answer. */
export class Figures {
  /** By a stage's key: `{stage, byQuestion}`, a map from a question's id to `{ndcg, rr, judged, ms}`. */
  stages = new Map();

  add(question, answer, ranker, ms) {
    for (const { stage, ranked } of ordersOf(answer, ranker)) {
      const key = `${stage.kind}:${stage.name}`;
      if (!this.stages.has(key)) this.stages.set(key, { key, stage, byQuestion: new Map() });
      this.stages.get(key).byQuestion.set(question.id, {
        ndcg: ndcg(ranked, question.grades),
        rr: reciprocalRank(ranked, question.grades),
        judged: judgedShare(ranked, question.grades),
        ms: stage.kind === "ranker" ? ms : null,
      });
    }
  }

  /** One row a stage, first stages above: means over its questions, and the median of times. */
  rows() {
    const order = { first: 0, member: 1, ranker: 2 };
    const rows = [...this.stages.values()].map(({ key, stage, byQuestion }) => {
      const all = [...byQuestion.values()];
      const of = (name) => all.map((each) => each[name]);
      return {
        key,
        stage,
        questions: all.length,
        ndcg: mean(of("ndcg")),
        rr: mean(of("rr")),
        judged: mean(of("judged")),
        ms: stage.kind === "ranker" ? median(of("ms")) : null,
      };
    });
    return rows.sort((one, other) => order[one.stage.kind] - order[other.stage.kind]);
  }
}

/**
 * Two stages question by question: `{wins, losses, ties, difference, p, questions}`, of `b` against `a`.
 *
 * `questions` are those that both have, `{question, a, b, difference}` by nDCG@10, the largest win first.
 */
export function against(a, b, questions) {
  const compared = questions.flatMap((question) => {
    const [one, other] = [a.byQuestion.get(question.id), b.byQuestion.get(question.id)];
    return one && other ? [{ question, a: one.ndcg, b: other.ndcg, difference: other.ndcg - one.ndcg }] : [];
  });
  compared.sort((one, other) => other.difference - one.difference);
  const differences = compared.map((each) => each.difference);
  const count = (is) => differences.filter(is).length;
  // Smaller differences are those of the numbers' last digits.
  const least = 1e-9;
  return {
    wins: count((value) => value > least),
    losses: count((value) => value < -least),
    ties: count((value) => Math.abs(value) <= least),
    difference: mean(differences),
    p: randomizationP(differences),
    questions: compared,
  };
}
