// The page's pure modules, without a browser: run by test_model.py, or by `node --test` in this folder.

import assert from "node:assert/strict";
import { test } from "node:test";

const model = (name) => import(new URL(`../../page/farrank_page/static/model/${name}.mjs`, import.meta.url));

const { codePoints, unitsAt } = await model("offsets");
const { readAnswer } = await model("answer");
const { deservesEnlarging, ranges, stepOf, strip, STEPS } = await model("strip");
const { blocks } = await model("reading");
const { compare, compareWithFirstStage, kendallTau, moves, overlap } = await model("comparison");
const { NOTHING_ASKED, readAddress, writeAddress } = await model("address");
const { NoDocument, readDocuments, withDocuments } = await model("documents");
const { judgedRequest, requestOf, textRequest } = await model("requests");
const { answers, wantsRounds } = await model("rounds");
const { judgedShare, median, ndcg, randomizationP, reciprocalRank } = await model("measures");
const { Figures, against, ordersOf } = await model("judging");
const { csv, figuresCsv, rankingCsv, trecRun } = await model("export");
const { markedParts, oneLine } = await model("words");
const { cohere, curl, javascript, python, shortened } = await model("snippets");
const { duration, fate, inThePagesWords, isTemporary, limit, moved, passage, readInAll, readOf, score, signed, unread, whole } = await model("wording");

// Flags and families are several code points; é here is two, of one UTF-16 unit each.
const TRICKY = "a🙂b👩‍👩‍👧c e\u0301 🇨🇭 \n𝔘ni";

const chunk = (start, end, value, evidence = "EVIDENCE_CHUNK_SCORE") => ({ start, end, score: value, evidence });

function documentOf(text, chunks, others = {}) {
  const length = codePoints(text);
  return { index: 0, name: "d", text, length, read: length, charactersCut: 0, tokensCut: 0, chunks, sentences: [], scored: [], deciding: 0, ...others };
}

test("every code point has its offset in UTF-16, whichever offsets are requested", () => {
  const points = Array.from(TRICKY);
  assert.equal(codePoints(TRICKY), points.length);
  const places = Array.from({ length: points.length + 1 }, (_, place) => place);
  const unit = unitsAt(TRICKY, [...places].reverse());
  for (const place of places) assert.equal(unit(place), points.slice(0, place).join("").length);
  for (const place of places) assert.equal(unitsAt(TRICKY, [place])(place), unit(place));
});

test("an offset beyond the end is the end, and one that was not requested is an error", () => {
  assert.equal(unitsAt("abc", [7])(7), 3);
  assert.equal(unitsAt("🙂", [7])(7), 2);
  assert.throws(() => unitsAt("🙂🙂", [0])(1), RangeError);
});

test("half of a pair counts as one, as in the server's strings", () => {
  assert.equal(codePoints("a\ud800b🙂"), 4);
  assert.equal(unitsAt("a\ud800b🙂", [3, 4])(4), 5);
});

const ANSWER = {
  results: [
    {
      id: "b",
      index: 1,
      score: 2.5,
      decidingPassage: chunk(3, 8, 2.5),
      chunks: [chunk(0, 5, 1), chunk(3, 8, 2.5)],
      characters: "10",
      sentences: [{ start: 0, end: 2, score: 0.9, text: "| ab" }, { start: 5, end: 8, score: 0.5, text: "de\n  | f" }],
      tokensCut: 2,
      charactersCut: "2",
      firstStageScore: 7,
    },
    { id: "a", score: -1, decidingPassage: chunk(0, 2, -1), chunks: [chunk(0, 2, -1)], characters: "2" },
    { id: "", index: 2, score: "NaN", chunks: [] },
  ],
  usage: { tokens: "123", chunks: "3", cachedChunks: "1" },
  timings: { totalNs: "2500000", inferenceNs: "1000000" },
  ranker: { name: "maxp" },
  index: "things",
};

test("an answer is read with 64-bit numbers as strings and without zeros", () => {
  const answer = readAnswer(ANSWER);
  const [best, next, empty] = answer.documents;
  assert.deepEqual([best.rank, best.firstRank, next.index, next.firstRank], [1, 2, 0, 1]);
  assert.deepEqual([best.length, best.read, best.deciding], [10, 8, 1]);
  assert.deepEqual([empty.name, empty.deciding, empty.score, empty.chunks], ["document 3", -1, 0, []]);
  assert.deepEqual([next.firstStageScore, best.firstStageScore], [null, 7]);
  assert.deepEqual([answer.evidence, answer.tokens, answer.cachedChunks, answer.totalMs], ["chunk-score", 123, 1, 2.5]);
  assert.equal(answer.stages.find((each) => each.name === "encoding").ms, 1);
  assert.equal(answer.ranker.version, "");
  assert.ok(!answer.stages.some((each) => each.name === "choosing sentences"));
});

test("the best sentence of the chunk that decided leads", () => {
  const [best, next] = readAnswer(ANSWER).documents;
  assert.deepEqual(best.sentences.map(({ text }) => text), ["de f", "ab"]);
  assert.equal(best.leadChunk, 1);
  const elsewhere = { ...ANSWER.results[0], sentences: [{ start: 0, end: 2, text: "ab" }] };
  assert.equal(readAnswer({ results: [elsewhere] }).documents[0].leadChunk, 0);
  assert.deepEqual([next.sentences, next.leadChunk], [[], 0]);
});

test("answers of older and newer servers can still be shown", () => {
  const { documents, evidence } = readAnswer({ results: [{ id: "x", decidingPassage: chunk(0, 4, 1, "EVIDENCE_NEWER"), charactersCut: "6" }] });
  assert.deepEqual([documents[0].length, documents[0].read, documents[0].chunks.length], [10, 4, 1]);
  assert.equal(evidence, "none");
  assert.deepEqual(readAnswer({}).documents, []);
});

test("a user's own documents have names and texts, and no first stage", () => {
  const answer = readAnswer({ results: [{ id: "1", index: 1, chunks: [chunk(0, 1, 1)] }] }, { brought: [{}, { name: "Rhine", text: "🙂" }] });
  assert.deepEqual([answer.documents[0].name, answer.documents[0].length], ["Rhine", 1]);
  assert.ok(!answer.stages.some((stage) => stage.name === "first stage"));
});

test("a strip shows chunks where they are, the strongest on top, and the rest as not read", () => {
  const [document] = readAnswer(ANSWER).documents;
  const { chunks, tail } = strip(document, [1, 2.5]);
  assert.deepEqual(chunks.map(({ left, width }) => [left, Number(width.toFixed(6))]), [[0, 0.5], [0.3, 0.5]]);
  assert.deepEqual(chunks.map(({ step, over, deciding }) => [step, over, deciding]), [[0, 1, false], [STEPS - 1, 2, true]]);
  assert.equal(tail.left, 0.8);
  assert.equal(strip(document, [1, 2.5], 0, 8).tail, null);
  assert.equal(strip({ ...document, charactersCut: 0, read: 10 }, [1, 2.5]).tail, null);
});

test("parts that were scored and not read lie between the chunks that were read, up to the limit", () => {
  const chunks = [chunk(30, 34, 2), chunk(4, 10, 1), chunk(8, 12, 1), chunk(13, 16, 1)];
  const result = { id: "a", characters: "40", chunks, charactersCut: 2, chunksRead: 4, chunksScored: 9, chunksCut: 1, round: 2 };
  const answer = readAnswer({ results: [result, { ...result, chunksScored: 4 }], usage: { rounds: 2, endedEarly: true } });
  const [document, other] = answer.documents;
  assert.deepEqual(document.scored, [{ start: 0, end: 4 }, { start: 16, end: 30 }, { start: 34, end: 38 }]);
  assert.deepEqual([document.chunksOnlyScored, document.chunksInAll, document.round], [5, 10, 2]);
  assert.deepEqual([other.scored, other.chunksOnlyScored], [[], 0]);
  const { scored, tail } = strip(document, [1, 2]);
  const places = scored.map(({ left, width }) => [left, Number(width.toFixed(6))]);
  assert.deepEqual(places, [[0, 0.1], [0.4, 0.35], [0.85, 0.1]]);
  assert.equal(tail.left, 0.95);
  assert.equal(fate(document), "read 4 of 10 chunks; 5 only scored; about 0 tokens not read (5% of the text)");
  assert.equal(readInAll(answer), "8 of 15 chunks read in 2 rounds; time or a failure ended the call before its last round");
  assert.equal(readInAll({ chunksRead: 3, chunksInAll: 3, rounds: 1 }), "all 3 chunks read");
  assert.equal(readOf({ chunksRead: 1, chunksInAll: 1 }), "read 1 of 1 chunk");
});

test("an empty document has an empty strip", () => {
  assert.deepEqual(strip(documentOf("", []), [0, 0]), { chunks: [], scored: [], tail: null });
});

test("steps rise with the score, and stay within their scale", () => {
  const steps = Array.from({ length: 101 }, (_, place) => stepOf(place / 100, [0, 1]));
  assert.deepEqual([...new Set(steps)], [0, 1, 2, 3, 4, 5]);
  assert.deepEqual([stepOf(-5, [0, 1]), stepOf(5, [0, 1])], [0, STEPS - 1]);
  assert.deepEqual([stepOf(0.3, [0.3, 0.3]), stepOf(0, [0, 0])], [STEPS - 1, 0]);
});

test("scores share a range, attention has one for each document, losses begin at 0", () => {
  const documents = [{ chunks: [chunk(0, 1, 0.5), chunk(1, 2, 0.1)] }, { chunks: [chunk(0, 1, -2)] }, { chunks: [] }];
  assert.deepEqual(documents.map(ranges("chunk-score", documents)), [[-2, 0.5], [-2, 0.5], [-2, 0.5]]);
  assert.deepEqual(documents.map(ranges("attention", documents)), [[0, 0.5], [0, 0], [0, 0]]);
  assert.deepEqual(ranges("leave-one-out", documents)(documents[1]), [0, 0.5]);
});

test("a narrow part is enlarged", () => {
  assert.ok(deservesEnlarging({ charactersCut: 90, read: 10, length: 100 }));
  assert.ok(!deservesEnlarging({ charactersCut: 10, read: 90, length: 100 }));
  assert.ok(!deservesEnlarging({ charactersCut: 0, read: 100, length: 100 }));
});

test("blocks hold the whole text in order, and each run the chunks that cover it", () => {
  const points = Array.from(TRICKY);
  const chunks = [chunk(0, 4, 1), chunk(2, 9, 3), chunk(9, 12, 2)];
  const document = documentOf(TRICKY, chunks, { read: 12, charactersCut: points.length - 12 });
  for (const size of [1, 3, 5, 1000]) {
    const runs = blocks(document, size).flatMap((block) => block.runs);
    assert.equal(runs.map(({ start, end }) => TRICKY.slice(start, end)).join(""), TRICKY);
    chunks.forEach(({ start, end }, number) => {
      const covered = runs.filter((run) => run.chunks.includes(number));
      assert.equal(covered.map((run) => TRICKY.slice(run.start, run.end)).join(""), points.slice(start, end).join(""));
    });
    const unread_ = runs.filter((run) => !run.read).map((run) => TRICKY.slice(run.start, run.end));
    assert.equal(unread_.join(""), points.slice(12).join(""));
    for (const { start } of runs) assert.ok(!/^[\udc00-\udfff]/.test(TRICKY.slice(start)), "no pair is halved");
  }
});

test("blocks end behind lines or words where there are any", () => {
  const document = documentOf("one two\nthree four five six", []);
  const texts = blocks(document, 12).map(({ runs }) => document.text.slice(runs[0].start, runs.at(-1).end));
  assert.deepEqual(texts, ["one two\n", "three four ", "five six"]);
  assert.deepEqual(blocks(documentOf("", [])), []);
});

test("a document of 2 MB is cut in a moment", () => {
  const text = "🙂 the river rises in the mountains\n".repeat(60_000);
  const chunks = Array.from({ length: 400 }, (_, place) => chunk(place * 150, place * 150 + 200, place));
  const began = performance.now();
  const made = blocks(documentOf(text, chunks));
  assert.ok(performance.now() - began < 2000);
  assert.ok(made.length > 300);
});

test("code has blocks of its own, blank lines are bare, and sentences are found", () => {
  const text = "It parses.\n\n    parser = P()\n    parser.run()\n \n\nThe end.";
  const at = text.indexOf("The end.");
  const document = documentOf(text, [chunk(0, text.length, 1)], { sentences: [{ start: at, end: at + 8 }, { start: 0, end: 10 }] });
  const made = blocks(document);
  assert.deepEqual(made.map(({ code }) => code), [false, true, false]);
  const runs = made.flatMap((block) => block.runs);
  assert.deepEqual(runs.filter(({ blank }) => blank).map(({ start, end }) => text.slice(start, end)), ["\n", "\n", " \n\n"]);
  const sentences = runs.filter(({ sentence }) => sentence >= 0).map(({ start, end, sentence }) => [sentence, text.slice(start, end)]);
  assert.deepEqual(sentences, [[1, "It parses."], [0, "The end."]]);
});

test("a laid-out sentence becomes one line, and the question's words are marked in it", () => {
  assert.equal(oneLine("| Parse the\n  |  options -- \t found\n"), "Parse the options -- found");
  const marked = (sentence, question) => markedParts(sentence, question).filter((part) => part.marked).map((part) => part.text);
  assert.deepEqual(marked("The parser parses Command-line arguments, and I do it.", "how do I parse command line arguments"), ["parser", "parses", "Command", "line", "arguments"]);
  assert.deepEqual(marked("Is it on?", "is it on"), ["Is", "it", "on"]);
  // Short words may be a question's subject, and long ones may not.
  assert.deepEqual(marked("Without it, the CSV has a set in C.", "what has a csv set without the C"), ["CSV", "set", "C"]);
  assert.deepEqual(marked("file and filename", "file"), ["file"]);
  assert.deepEqual(marked("read_file(path), reads_none", "read a file"), ["read", "file", "reads"]);
  assert.deepEqual(marked("Flüsse 🙂 川は海へ", "川 flüsse"), ["Flüsse", "川"]);
  for (const sentence of ["", "a <b> 🙂", "no word of it"]) {
    assert.equal(markedParts(sentence, "parse").map(({ text }) => text).join(""), sentence);
  }
});

test("Kendall's tau-b, with and without ties", () => {
  assert.equal(kendallTau([1, 2, 3], [10, 20, 30]), 1);
  assert.equal(kendallTau([1, 2, 3], [3, 2, 1]), -1);
  // scipy.stats.kendalltau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) gives -0.4714045207910316.
  assert.ok(Math.abs(kendallTau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) + 0.4714045207910316) < 1e-12);
  assert.ok(Number.isNaN(kendallTau([1], [1])));
  assert.ok(Number.isNaN(kendallTau([1, 1], [1, 2])));
});

test("moves and overlap", () => {
  assert.deepEqual([...moves([5, 6, 7], [7, 5, 8])], [[7, 2], [5, -1], [8, null]]);
  assert.deepEqual(overlap([1, 2, 3], [3, 2, 9], 2), { shared: 1, of: 2 });
  assert.deepEqual(overlap([1], [1]), { shared: 1, of: 1 });
});

test("answers are compared over the documents that both contain", () => {
  const of = (...scores) => ({ documents: scores.map(([index, value]) => ({ index, score: value })) });
  const one = of([0, 3], [1, 2], [2, 1]);
  assert.equal(compare(one, of([2, 9], [1, 8], [0, 7])).tau, -1);
  assert.deepEqual(compare(one, of([0, 9], [4, 8], [1, 7])), { tau: 1, overlap: { shared: 2, of: 3 } });
  assert.equal(compareWithFirstStage(one).tau, 1);
  assert.equal(compareWithFirstStage(of([1, 3], [0, 2])).tau, -1);
});

test("the address contains the query and its options, and restores them", () => {
  const asked = { view: "judged", query: "a&b=<c> 🙂", source: "index", index: "docs", k: 30, a: "maxp", b: "both", scale: "raw", depth: "adaptive,chunks=2.5", document: 0, chunk: 3 };
  assert.deepEqual(readAddress(writeAddress(asked)), asked);
  assert.equal(writeAddress(NOTHING_ASKED), "");
  assert.deepEqual(readAddress(""), NOTHING_ASKED);
  assert.deepEqual(readAddress("?k=0&doc=-1&chunk=x&source=else&depth=deep&scale=sigmoid&view=else"), NOTHING_ASKED);
  assert.equal(readAddress(writeAddress({ ...asked, source: "own" })).k, null);
});

test("documents come as plain text, as JSON and as JSON lines", () => {
  assert.deepEqual(readDocuments("  one\n\nstill one\n", "p"), [{ id: "p", name: "p", text: "  one\n\nstill one" }]);
  assert.deepEqual(readDocuments("a\n---\n\nb\n --- \n", "p").map(({ id, text }) => [id, text]), [["p, 1", "a"], ["p, 2", "b"]]);
  assert.deepEqual(readDocuments('["x", {"id": 7, "title": "T", "text": "y"}]', "p"), [
    { id: "p, 1", name: "p, 1", text: "x" },
    { id: "7", name: "T", text: "y" },
  ]);
  assert.deepEqual(readDocuments('{"docid": "a", "contents": "x"}\n\n{"text": "y"}\n', "p").map(({ id }) => id), ["a", "p, 2"]);
  assert.deepEqual(readDocuments('{\n"text": "y"\n}', "p")[0].text, "y");
  assert.equal(readDocuments("[not JSON] but a text", "p")[0].text, "[not JSON] but a text");
  assert.equal(readDocuments("{so is this}", "p").length, 1);
  assert.deepEqual(readDocuments(" \n---\n ", "p"), []);
  assert.throws(() => readDocuments('[{"id": "a"}]', "p"), (error) => error instanceof NoDocument && /p: has no field/.test(error.message));
});

test("ids stay unique", () => {
  const one = { id: "a", name: "A", text: "" };
  assert.deepEqual(withDocuments([one], [one, one]).map(({ id, name }) => [id, name]), [["a", "A"], ["a (2)", "A (2)"], ["a (3)", "A (3)"]]);
});

const SENTENCES = "EVIDENCE_UNIT_SENTENCES";
const SIGMOID = "SCORE_SCALE_SIGMOID";

test("a search becomes the request of a method", () => {
  const asked = { ...NOTHING_ASKED, query: "q", k: 5, index: "docs" };
  assert.deepEqual(requestOf(asked, "maxp", [], 5), {
    method: "SearchAndRerank",
    request: { query: "q", index: "docs", k: 5, options: { ranker: "maxp", scoreScale: SIGMOID, returnChunkScores: true, evidence: SENTENCES, evidenceDocuments: 5 } },
  });
  assert.equal(requestOf({ ...asked, scale: "raw" }, "", []).request.options.scoreScale, undefined);
  const depth = (text) => requestOf({ ...asked, depth: text }, "", []).request.options.depth;
  assert.deepEqual(depth("all"), { mode: "DEPTH_MODE_ALL" });
  assert.deepEqual(depth("adaptive,chunks=4"), { mode: "DEPTH_MODE_ADAPTIVE", chunks: 4 });
  assert.equal(depth(""), undefined);
  const own = requestOf({ ...asked, source: "own" }, "", [{ id: "a", name: "A", text: "t" }]);
  assert.deepEqual([own.method, own.request.documents], ["Rerank", [{ id: "a", text: "t" }]]);
  assert.deepEqual(textRequest("q", "docs", "a", ""), { query: "q", documents: [{ id: "a", index: "docs" }], options: { maxChunks: 1, returnTexts: true } });
  assert.deepEqual(judgedRequest(asked, "maxp", "why"), { query: "why", index: "docs", k: 5, options: { ranker: "maxp", priority: "PRIORITY_BATCH" } });
});

test("documents are read in rounds if they are read whole and their encodings are not stored", () => {
  const index = { encodingsFor: ["bi", "two"] };
  const asked = { ...NOTHING_ASKED, query: "q" };
  const is = (more, ranker) => wantsRounds({ ...asked, ...more }, ranker, index, null);
  assert.ok(!is({}, { name: "bi" }));
  assert.ok(is({}, { name: "cross", depth: { mode: "DEPTH_MODE_ALL" } }));
  assert.ok(!is({}, { name: "cross", depth: { mode: "DEPTH_MODE_ADAPTIVE" } }));
  assert.ok(is({ depth: "all" }, { name: "cross", depth: { mode: "DEPTH_MODE_ADAPTIVE" } }));
  assert.ok(!is({ depth: "adaptive,chunks=2" }, { name: "cross" }));
  assert.ok(!is({}, { name: "both", options: { members: "bi, two" } }));
  assert.ok(is({}, { name: "both", options: { members: "bi, cross" } }));
  const own = (length) => wantsRounds({ ...asked, source: "own" }, { name: "cross" }, undefined, [{ text: "x".repeat(length) }]);
  assert.deepEqual([own(100), own(100_000)], [false, true]);
});

// A server whose documents have `lengths` chunks; whole documents score their length.
function serving(lengths) {
  const calls = [];
  const result = (index, id, read) => ({ index, id, score: read === 1 ? 0.1 : lengths[id], chunksRead: read, chunksCut: lengths[id] - read, firstStageScore: 9 });
  const call = (method, request) => {
    calls.push([method, (request.documents ?? []).map(({ id }) => id)]);
    const most = request.options.maxChunks ?? Infinity;
    const ids = request.documents?.map(({ id }) => id) ?? Object.keys(lengths);
    const results = ids.map((id, index) => result(index, id, Math.min(most, lengths[id])));
    if (method === "Rerank") for (const each of results) delete each.firstStageScore;
    const chunks = results.reduce((sum, each) => sum + each.chunksRead, 0);
    return { answer: { results, index: "docs", ranker: { name: "m" }, usage: { chunks: String(chunks), rounds: 1 }, timings: { totalNs: "5" } }, waitedMs: 2 };
  };
  return { calls, call };
}

test("rounds read the beginnings first, then whole documents, and lose nothing", async () => {
  const lengths = { a: 40, b: 1, c: 50, d: 30 };
  const { calls, call } = serving(lengths);
  const asked = { ...NOTHING_ASKED, query: "q", index: "docs" };
  const seen = [];
  for await (const each of answers({ asked, ranker: "m", documents: null, most: 4, inRounds: true }, call)) seen.push(each);
  assert.deepEqual(calls, [["SearchAndRerank", []], ["Rerank", ["a", "c"]], ["Rerank", ["d"]]]);
  assert.deepEqual(seen.map(({ chunksRead, chunksInAll }) => [chunksRead, chunksInAll]), [[4, 121], [92, 121], [121, 121]]);
  assert.deepEqual(seen.map(({ pending }) => [...pending]), [[0, 2, 3], [3], []]);
  assert.deepEqual(seen.map(({ next }) => next), [[0, 2], [3], []]);
  const { raw, waitedMs } = seen.at(-1);
  assert.deepEqual(raw.results.map(({ id, index, firstStageScore }) => [id, index, firstStageScore]), [["c", 2, 9], ["a", 0, 9], ["d", 3, 9], ["b", 1, 9]]);
  assert.deepEqual([raw.usage.chunks, raw.usage.rounds, raw.timings.totalNs, waitedMs], [124, 1, 15, 6]);
});

test("one call answers where rounds are of no use, and nothing found is an answer", async () => {
  const asked = { ...NOTHING_ASKED, query: "q" };
  for (const [lengths, inRounds] of [[{ a: 3 }, false], [{}, true]]) {
    const { calls, call } = serving(lengths);
    const seen = [];
    for await (const each of answers({ asked, ranker: "m", documents: null, most: 4, inRounds }, call)) seen.push(each);
    assert.deepEqual([calls.length, seen.length, seen[0].pending.size], [1, 1, 0]);
  }
});

test("rounds over the user's own documents send each one again", async () => {
  const { calls, call } = serving({ a: 5, b: 1 });
  const documents = [{ id: "a", name: "A", text: "x" }, { id: "b", name: "B", text: "y" }];
  const asked = { ...NOTHING_ASKED, query: "q", source: "own" };
  for await (const _ of answers({ asked, ranker: "m", documents, most: 2, inRounds: true }, call));
  assert.deepEqual(calls, [["Rerank", ["a", "b"]], ["Rerank", ["a"]]]);
});

test("measures of a ranking, as trec_eval has them", () => {
  const grades = { a: 2, b: 1, c: 0, d: 1 };
  // ir_measures' nDCG@10 of [c, a, x, b].
  assert.ok(Math.abs(ndcg(["c", "a", "x", "b"], grades) - 0.5405857679450102) < 1e-12);
  assert.equal(ndcg(["a", "b", "d"], grades), 1);
  assert.deepEqual([ndcg(["x"], grades), ndcg([], grades), ndcg(["a"], { a: 0 })], [0, 0, 0]);
  assert.equal(ndcg(["x", "a"], grades, 1), 0);
  assert.equal(ndcg(["constructor", "a", "b", "d"], grades), ndcg(["x", "a", "b", "d"], grades));
  assert.equal(judgedShare(["constructor", "a"], grades), 0.5);
  assert.deepEqual([reciprocalRank(["c", "a"], grades), reciprocalRank(["x"], grades)], [0.5, 0]);
  assert.equal(judgedShare(["a", "x"], grades), 0.5);
  assert.deepEqual([median([3, 1, 2]), median([4, 1]), median([])], [2, 2.5, 0]);
});

test("the significance of paired differences", () => {
  assert.equal(randomizationP([0, 0]), 1);
  // All of 10 differences have one sign: 2 of 1,024 sign patterns are as far from 0.
  assert.ok(Math.abs(randomizationP(Array(10).fill(0.5)) - 2 / 1024) < 0.002);
  assert.ok(randomizationP([0.5, -0.5, 0.1, -0.1]) > 0.9);
  assert.equal(randomizationP([0.3, -0.1, 0.2]), randomizationP([0.3, -0.1, 0.2]));
});

test("judged answers give figures of each ranker and stage, and wins and losses", () => {
  const from = (parts) => Object.entries(parts).map(([index, value]) => ({ index, score: value }));
  const answer = (order) => ({ results: order.map((id) => ({ id, index: { a: 0, b: 1, c: 2 }[id], firstStageScores: from({ bm25: { a: 1, b: 2, c: 3 }[id], ...(id === "a" ? { dense: 1 } : {}) }) })) });
  assert.deepEqual(ordersOf(answer(["c", "a", "b"]), "m").map(({ stage, ranked }) => [stage.kind, stage.name, ranked.join("")]), [["ranker", "m", "cab"], ["first", "", "abc"], ["member", "bm25", "cba"], ["member", "dense", "a"]]);
  const figures = new Figures();
  const questions = [{ id: "1", text: "one", grades: { c: 1 } }, { id: "2", text: "two", grades: { a: 1 } }];
  for (const question of questions) figures.add(question, answer(["c", "a", "b"]), "m", 7);
  const rows = figures.rows();
  assert.deepEqual(rows.map(({ key }) => key), ["first:", "member:bm25", "member:dense", "ranker:m"]);
  const [first, , , ranker] = rows;
  assert.deepEqual([first.rr, ranker.rr, ranker.ms, first.ms, ranker.questions], [2 / 3, 0.75, 7, null, 2]);
  const compared = against(figures.stages.get("first:"), figures.stages.get("ranker:m"), questions);
  assert.deepEqual([compared.wins, compared.ties, compared.losses], [1, 0, 1]);
  assert.deepEqual(compared.questions.map(({ question }) => question.id), ["1", "2"]);
  assert.ok(figuresCsv(questions, [...figures.stages.values()]).startsWith("id,question,m,first,bm25,dense\r\n1,one,1,0.5,"));
});

test("rankings become TREC runs and tables", () => {
  const { documents } = readAnswer(ANSWER);
  assert.equal(trecRun(documents.slice(0, 1), "q 1", "my run"), "q_1 Q0 b 1 2.5 my_run\n");
  assert.equal(csv([['say "hi"', "a,b", "x\ny", null, 3]]), '"say ""hi""","a,b","x\ny",,3\r\n');
  assert.equal(rankingCsv({ documents }).split("\r\n")[1], "1,2,b,2.5,0,0,5,8,de f");
});

test("snippets quote their content", () => {
  const documents = [{ id: "it's", name: "", text: 'say "hi"\\ 🙂\n"""' }];
  const asked = { ...NOTHING_ASKED, query: 'what\'s "it"?', source: "own" };
  const { method, request } = requestOf(asked, "maxp", documents);
  assert.ok(curl("http://h:1", method, request, false).includes(`what'\\''s`));
  assert.ok(curl("http://h:1", method, request, true).includes('--header "X-Api-Key: $FARRANK_API_KEY"'));
  const code = python("http://h:1", method, request, false);
  const literal = /r"""\n(.*?)\n"""/s.exec(code)[1];
  assert.deepEqual(JSON.parse(literal), request);
  assert.ok(!code.includes("os.environ") && python("h", method, request, true).includes('"X-Api-Key": os.environ["FARRANK_API_KEY"]'));
  assert.ok(javascript("http://h:1", method, request, true).includes("process.env.FARRANK_API_KEY"));
  assert.ok(cohere("http://h:1", asked, "", documents, false).includes('model="reranker",\n    query="what\'s \\"it\\"?"'));
  const deep = cohere("h", { ...asked, depth: "adaptive,milliseconds=300" }, "", documents, true);
  assert.ok(deep.includes('"depth":{"mode":"adaptive","milliseconds":300}') && deep.includes('os.environ["FARRANK_API_KEY"]'));
  assert.deepEqual(shortened([{ text: "🙂🙂🙂" }, { text: "ab" }, { id: "x" }], 2), [{ text: "🙂🙂…" }, { text: "ab" }, { id: "x" }]);
});

test("messages name the page's controls, and say when a second try may help", () => {
  assert.equal(inThePagesWords("options.ranker: no ranker 'x' here; known are: a"), "Ranker: no ranker 'x' here; known are: a");
  assert.equal(inThePagesWords("documents[3].text: has 9 bytes"), "Your documents: has 9 bytes");
  assert.equal(inThePagesWords("options.depth.mode: is 7"), "Depth: is 7");
  assert.equal(inThePagesWords("k: is 9; max_documents is 5"), "Candidates: is 9; max_documents is 5");
  assert.equal(inThePagesWords("draining: soon"), "draining: soon");
  assert.equal(inThePagesWords("an API key is required; send it as x-api-key: KEY or authorization: Bearer KEY"), "an API key is required");
  assert.deepEqual(["unavailable", "invalid_argument", "not_found", "permission_denied"].map(isTemporary), [true, false, false, false]);
});

test("numbers and passages in words", () => {
  assert.deepEqual([whole(1234567), score(-0.5), score(12.345), duration(0.42), duration(31.2), duration(1240)], ["1,234,567", "−0.500", "12.35", "0.4 ms", "31 ms", "1.24 s"]);
  assert.deepEqual([limit(1431), limit(2 ** 24)], ["1,431 tokens of a document", "whole documents"]);
  assert.deepEqual([moved(3).sign, moved(-1).text, moved(0).kind, moved(null).kind], ["▲3", "down 1 place", "same", "new"]);
  assert.deepEqual([signed(0.0581), signed(-0.2), signed(-0.0001)], ["+0.058", "−0.200", "0.000"]);
  const document = documentOf("x".repeat(2000), [chunk(0, 1500, 0.5)], { charactersCut: 500, tokensCut: 120 });
  assert.equal(passage(document, 0), "passage 1 of 1, the deciding one: evidence 0.500, characters 0 to 1,500");
  assert.equal(unread(document), "about 120 tokens not read (25% of the text)");
  assert.equal(unread({ ...document, charactersCut: 0 }), "");
});
