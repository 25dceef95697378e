// Rankings and figures as files: TREC runs, CSV and JSON.

/** A TREC run of one query: `id Q0 document rank score tag`. White space in an id would break its line. */
export function trecRun(documents, queryId, tag) {
  const whole = (text) => text.replace(/\s+/gu, "_") || "_";
  return documents.map((each) => `${whole(queryId)} Q0 ${whole(each.id)} ${each.rank} ${each.score} ${whole(tag)}\n`).join("");
}

/** CSV by RFC 4180: fields with quotes, commas or line ends are quoted. */
export function csv(rows) {
  const field = (value) => {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => `${row.map(field).join(",")}\r\n`).join("");
}

/** The table of a ranking. */
export function rankingCsv(answer) {
  const head = ["rank", "first_stage_rank", "id", "score", "chunks_read", "chunks_in_all", "sentence_start", "sentence_end", "sentence"];
  const rows = answer.documents.map((each) => {
    const [best] = each.sentences;
    return [each.rank, each.firstRank, each.id, each.score, each.chunksRead, each.chunksInAll, best?.start, best?.end, best?.text];
  });
  return csv([head, ...rows]);
}

/** The table of judged questions: nDCG@10 of each stage. */
export function figuresCsv(questions, stages) {
  const head = ["id", "question", ...stages.map(({ stage }) => stage.name || stage.kind)];
  const rows = questions.map((question) => [
    question.id,
    question.text,
    ...stages.map(({ byQuestion }) => byQuestion.get(question.id)?.ndcg),
  ]);
  return csv([head, ...rows]);
}
