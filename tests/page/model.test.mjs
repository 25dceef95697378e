// The page's pure modules, without a browser: run by test_model.py, or by `node --test` in this folder.

import assert from "node:assert/strict";
import { test } from "node:test";

const model = (name) => import(new URL(`../../page/farrank_page/static/model/${name}.mjs`, import.meta.url));

const { codePoints, unitsAt } = await model("offsets");
const { readAnswer } = await model("answer");
const { deservesEnlarging, ranges, stepOf, strip, STEPS } = await model("strip");
const { blocks, excerpt } = await model("reading");
const { compare, compareWithFirstStage, kendallTau, moves, overlap } = await model("comparison");
const { slopes } = await model("slopes");
const { NOTHING_ASKED, readAddress, writeAddress } = await model("address");
const { NoDocument, readDocuments, withDocuments } = await model("documents");
const { requestOf } = await model("requests");
const { cohere, curl, pythonClient, shortened } = await model("snippets");
const { duration, fate, limit, moved, passage, readInAll, readOf, score, unread, whole } = await model("wording");

// Flags and families are several code points; é here is two, of one UTF-16 unit each.
const TRICKY = "a🙂b👩‍👩‍👧c e\u0301 🇨🇭 \n𝔘ni";

const chunk = (start, end, value, evidence = "EVIDENCE_CHUNK_SCORE") => ({ start, end, score: value, evidence });

function documentOf(text, chunks, others = {}) {
  const length = codePoints(text);
  return { index: 0, name: "d", text, length, read: length, charactersCut: 0, tokensCut: 0, chunks, scored: [], deciding: 0, ...others };
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
      text: "🙂bcdefghij",
      tokensCut: 2,
      charactersCut: "2",
      firstStageScore: 7,
    },
    { id: "a", score: -1, decidingPassage: chunk(0, 2, -1), chunks: [chunk(0, 2, -1)], text: "ab" },
    { id: "", index: 2, score: "NaN", chunks: [], text: "" },
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
});

test("answers of older and newer servers can still be shown", () => {
  const { documents, evidence } = readAnswer({ results: [{ id: "x", decidingPassage: chunk(0, 4, 1, "EVIDENCE_NEWER"), charactersCut: "6" }] });
  assert.deepEqual([documents[0].length, documents[0].read, documents[0].chunks.length], [10, 4, 1]);
  assert.equal(evidence, "none");
  assert.deepEqual(readAnswer({}).documents, []);
});

test("a user's own documents have names and texts, and no first stage", () => {
  const answer = readAnswer({ results: [{ id: "1", index: 1, chunks: [chunk(0, 1, 1)] }] }, [{}, { name: "Rhine", text: "🙂" }]);
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
  const text = "x".repeat(40);
  const chunks = [chunk(30, 34, 2), chunk(4, 10, 1), chunk(8, 12, 1), chunk(13, 16, 1)];
  const result = { id: "a", text, chunks, charactersCut: 2, chunksRead: 4, chunksScored: 9, chunksCut: 1, round: 2 };
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
  assert.equal(readInAll(answer), "Read 8 of 15 chunks in 2 rounds. Time or a failure ended the call before its last round.");
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
    const runs = blocks(document, size).flat();
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
  const texts = blocks(document, 12).map((runs) => document.text.slice(runs[0].start, runs.at(-1).end));
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

test("an excerpt is one line, whole characters, and says when it is cut", () => {
  const document = documentOf(`x ${TRICKY}  and   so\non`, [chunk(2, 40, 1)]);
  assert.equal(excerpt(document, 0), "a🙂b👩‍👩‍👧c e\u0301 🇨🇭 𝔘ni and so on");
  assert.equal(excerpt(document, 0, 2), "a🙂 …");
  assert.deepEqual([excerpt(document, -1), excerpt({ ...document, text: null }, 0)], ["", ""]);
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

test("lines lead from a document's row to its row", () => {
  const [first, second] = slopes([4, 5, 6], [6, 4, 9], 10, 2);
  assert.deepEqual([first.index, first.from, first.to, first.move], [6, 2, 0, 2]);
  assert.equal(first.path, "M0 25C1 25 1 5 2 5");
  assert.equal(second.move, -1);
});

test("the address contains the query and its options, and restores them", () => {
  const asked = { query: "a&b=<c> 🙂", source: "index", index: "docs", k: 30, a: "maxp", b: "both", scale: "sigmoid", depth: "adaptive,chunks=2.5", document: 0, chunk: 3 };
  assert.deepEqual(readAddress(writeAddress(asked)), asked);
  assert.equal(writeAddress(NOTHING_ASKED), "");
  assert.deepEqual(readAddress(""), NOTHING_ASKED);
  assert.deepEqual(readAddress("?k=0&doc=-1&chunk=x&source=else&depth=deep"), NOTHING_ASKED);
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

test("a search becomes the request of a method", () => {
  const asked = { ...NOTHING_ASKED, query: "q", k: 5, index: "docs" };
  assert.deepEqual(requestOf(asked, "maxp", []), {
    method: "SearchAndRerank",
    request: { query: "q", index: "docs", k: 5, options: { returnChunkScores: true, ranker: "maxp", returnTexts: true } },
  });
  assert.equal(requestOf({ ...asked, scale: "sigmoid" }, "", []).request.options.scoreScale, "SCORE_SCALE_SIGMOID");
  const depth = (text) => requestOf({ ...asked, depth: text }, "", []).request.options.depth;
  assert.deepEqual(depth("all"), { mode: "DEPTH_MODE_ALL" });
  assert.deepEqual(depth("adaptive,chunks=4"), { mode: "DEPTH_MODE_ADAPTIVE", chunks: 4 });
  assert.equal(depth(""), undefined);
  const own = requestOf({ ...asked, source: "own" }, "", [{ id: "a", name: "A", text: "t" }]);
  assert.deepEqual(own, { method: "Rerank", request: { query: "q", documents: [{ id: "a", text: "t" }], options: { returnChunkScores: true } } });
});

test("snippets quote their content", () => {
  const documents = [{ id: "it's", name: "", text: 'say "hi"\\ 🙂\n' }];
  const asked = { ...NOTHING_ASKED, query: 'what\'s "it"?', source: "own" };
  const { method, request } = requestOf(asked, "maxp", documents);
  assert.ok(curl("http://h:1", method, request).includes(`what'\\''s`));
  assert.ok(pythonClient("h", asked, "maxp", documents).includes('"it\'s": "say \\"hi\\"\\\\ 🙂\\n",'));
  assert.ok(cohere("http://h:1", asked, "", documents).includes('model="reranker", query="what\'s \\"it\\"?"'));
  assert.ok(pythonClient("h", { ...asked, source: "index", index: "docs", k: 3 }, "", []).includes('index="docs", k=3, return_texts=True'));
  const scaled = pythonClient("h", { ...asked, scale: "sigmoid" }, "maxp", documents);
  assert.ok(scaled.startsWith("from farrank_client import Client, ScoreScale\n"));
  assert.ok(scaled.includes('ranker="maxp", score_scale=ScoreScale.SIGMOID, return_texts=True'));
  const deep = { ...asked, depth: "adaptive,milliseconds=300" };
  assert.ok(pythonClient("h", deep, "", documents).startsWith("from farrank_client import AdaptiveDepth, Client\n"));
  assert.ok(pythonClient("h", deep, "", documents).includes("depth=AdaptiveDepth(milliseconds=300), return_texts=True"));
  assert.ok(pythonClient("h", { ...asked, depth: "all" }, "", documents).includes('depth="all"'));
  assert.ok(cohere("h", deep, "", documents).includes('request_options={"additional_body_parameters": {"depth":{"mode":"adaptive","milliseconds":300}}})'));
  assert.ok(cohere("h", { ...asked, depth: "all" }, "", documents).includes('{"depth":"all"}'));
  assert.deepEqual(shortened([{ text: "🙂🙂🙂" }, { text: "ab" }], 2).map(({ text }) => text), ["🙂🙂…", "ab"]);
});

test("numbers and passages in words", () => {
  assert.deepEqual([whole(1234567), score(-0.5), score(12.345), duration(0.42), duration(31.2), duration(1240)], ["1,234,567", "−0.500", "12.35", "0.4 ms", "31 ms", "1.24 s"]);
  assert.deepEqual([limit(1431), limit(2 ** 24)], ["1,431 tokens of a document", "whole documents"]);
  assert.deepEqual([moved(3).sign, moved(-1).text, moved(0).kind, moved(null).kind], ["▲3", "down 1 place", "same", "new"]);
  const document = documentOf("x".repeat(2000), [chunk(0, 1500, 0.5)], { charactersCut: 500, tokensCut: 120 });
  assert.equal(passage(document, 0), "passage 1 of 1, the deciding one: evidence 0.500, characters 0 to 1,500");
  assert.equal(unread(document), "about 120 tokens not read (25% of the text)");
  assert.equal(unread({ ...document, charactersCut: 0 }), "");
});
