"""`farrank rerank --run`: rerank a TREC run in this process, without a server."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from farrank_cli.exit_codes import DONE, REFUSED, CommandError, told_in_a_line
from farrank_cli.flags import count, document_fields, flag_group, pair
from farrank_cli.terminal import Progress, counted
from farrank_cli.terminated import sigterm_interrupts
from farrank_client import FarrankError, ScoreScale
from farrank_trec import (
    Run,
    check_queries,
    missing_documents,
    rank,
    read_qrels,
    read_queries,
    read_run,
)
from farrank_trec.errors import TrecError

if TYPE_CHECKING:
    from farrank_client.calls import RerankOptions
    from farrank_local.bulk import DocumentOf
    from farrank_local.reranker import Reranker

# The name of a ranker or an index that the flags give by their source.
_LOCAL = "local"

EPILOG = """\
examples:
  rerank the first 100 documents of each query of a run, without a server:
    farrank rerank --run bm25.trec --queries topics.tsv --collection docs.jsonl.gz --k 100 \\
      --local models/mine --out mine.trec
  the same, with texts and tokens from an index that `farrank index` wrote:
    farrank rerank --run bm25.trec --queries topics.tsv --index docs-index --local models/mine \\
      --out mine.trec
  continue after an interruption: the same command with --resume
"""


def add_bulk_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of reranking in this process."""
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    add = flag_group(parser, "in this process, without a server (needs the server extra)")
    add(
        "--local RANKER",
        "load this ranker here: a folder, a hub name, 'embedded:NAME', or a name in --config",
    )
    add("--set KEY=VALUE", "a key of the ranker's configuration, such as precision=bf16", repeated=True)
    add("--config FILE", "a server's configuration, for --local and --index by name", Path)
    add("--index INDEX", "read the documents from this index: a folder, or a name in --config")
    meaning = "Files are plain or .gz. These flags need --local."
    add = flag_group(parser, "a whole run", meaning)
    add("--run FILE", "TREC run to rerank", Path)
    add("--pool FILE", "rerank the documents that these TREC judgements name instead", Path)
    add("--queries FILE", "id<TAB>text, or .jsonl", Path)
    add("--query-field KEY", "key of the query in .jsonl, such as description", default="")
    meaning = "JSON lines with id, text and optionally title; may be repeated"
    add("--collection FILE", meaning, Path, repeated=True)
    add("--fields FIELD=KEY,…", "keys of the JSON lines if they have other names")
    add("--skip-missing", "leave out documents that are missing in the collection")
    add("--k K", "rerank the first K documents of each query (all)", count)
    add("--out RUN", "TREC run to write; it appears when it is complete", Path)
    add("--tag TAG", "tag of the run", default="farrank")
    add("--resume", "keep the queries that an interrupted command finished, and rerank the rest")


_RUN_FLAGS = ("run", "pool", "queries", "collection", "fields", "skip_missing", "k", "out", "resume")
_CALL_FLAGS = ("query", "files", "jsonl", "json", "chunks", "matches", "evidence", "context_tokens", "top_n")


def check_bulk_flags(args: argparse.Namespace) -> bool:
    """Whether a whole run is to be reranked. Raises: CommandError for flags that do not go together."""
    whole = args.run is not None or args.pool is not None
    given = [name for name in (_CALL_FLAGS if whole else _RUN_FLAGS) if getattr(args, name)]
    if given:
        named = "FILE" if given[0] == "files" else f"--{given[0].replace('_', '-')}"
        why = "is for one query: leave out --run and --pool" if whole else "needs --run, or --pool"
        raise CommandError(f"{named}: {why}")
    if args.local is None:
        flags = {"--run": whole, "--index": args.index, "--config": args.config, "--set": args.set}
        if name := next((name for name, value in flags.items() if value), None):
            also = "; `farrank loadtest accuracy` reranks runs by a server" if whole else ""
            raise CommandError(f"{name}: needs --local RANKER{also}")
    elif args.ranker is not None:
        raise CommandError("--ranker: names a ranker of a server; --local has the ranker")
    return whole


@contextmanager
def opened_here(args: argparse.Namespace) -> Iterator[Reranker]:
    """Load the ranker, and the index if there is one, into this process.

    Raises: CommandError naming the flag, or the key of the configuration, that is wrong.
    """
    from farrank_local.reranker import Reranker
    from farrank_server.config.server_config import build_config
    from farrank_settings.errors import ConfigError
    from farrank_settings.sources import Setting, from_file

    with told_in_a_line(ConfigError):
        settings = from_file(args.config) if args.config else []
        named = build_config(settings)
        ranker, index = _LOCAL, _LOCAL
        if args.config and args.local in named.rankers:
            ranker = args.local
        else:
            source = ("rankers", ranker, "source")
            settings.append(Setting(source, args.local, f"--local {args.local}"))
        if args.index in named.first_stage.indexes:
            index = args.index
        elif args.index is not None:
            path = ("first_stage", "indexes", index, "path")
            settings.append(Setting(path, args.index, f"--index {args.index}"))
        for given in args.set:
            key, value = pair("--set KEY=VALUE", given, empty=True)
            settings.append(Setting(("rankers", ranker, *key.split(".")), value, f"--set {given}"))
        config = build_config(settings)
        # Only these are loaded, whatever else the configuration has.
        indexes = {
            name: each for name, each in config.first_stage.indexes.items() if args.index and name == index
        }
        reranker = Reranker.configured(
            replace(
                config,
                rankers={ranker: config.rankers[ranker]},
                first_stage=replace(config.first_stage, indexes=indexes),
            )
        )
    with reranker:
        try:
            yield reranker
        except FarrankError as error:
            raise CommandError(f"--local {args.local}: {' '.join(error.message.split())}", REFUSED) from error


def bulk_options(args: argparse.Namespace) -> RerankOptions:
    """Collect the options of the calls."""
    scale = None if args.score_scale is None else ScoreScale[args.score_scale.upper()]
    return {
        "depth": args.depth,
        "instruction": args.instruction,
        "max_chunks": args.max_chunks,
        "score_scale": scale,
    }


def rerank_in_bulk(args: argparse.Namespace, options: RerankOptions) -> int:
    """Rerank a run, and write the new one.

    Raises: CommandError naming the file, and the line or the query, that is wrong.
    """
    # Imported here, because they need the server extra.
    from farrank_local.bulk import QueryFailed, digests, made_by, of_index, rerank_run
    from farrank_trec.unfinished_run import UnfinishedRun

    if args.queries is None or args.out is None:
        raise CommandError("--run: needs --queries and --out")
    if bool(args.collection) == (args.index is not None):
        raise CommandError("--run: give either --collection or --index, which has the texts")
    with told_in_a_line(TrecError):
        if args.out.exists():
            if not args.resume:
                raise CommandError(f"--out {args.out}: exists; name another file")
            print(f"{args.out}: is complete", file=sys.stderr)
            return DONE
        candidates = _candidates(args)
        queries = read_queries(args.queries, args.query_field)
        check_queries(candidates, queries, args.run or args.pool)
        if args.index is None:
            candidates, document_of = _documents(args, candidates)
        progress = Progress("queries reranked", len(candidates))
        with opened_here(args) as reranker:
            if args.index is not None:
                document_of = of_index(reranker.rankers().indexes[0].name)
            unfinished = UnfinishedRun(
                args.out,
                made_by(reranker, options) | {"tag": args.tag},
                resume=args.resume,
                asked=digests(candidates, queries),
            )
            with unfinished, sigterm_interrupts():
                before, began_s = set(unfinished.finished), time.monotonic()
                progress.begin("queries reranked", len(candidates), done=len(before))

                def done(count: int, steady: bool) -> None:
                    progress(count, timed=steady)

                try:
                    rerank_run(reranker, candidates, queries, document_of, unfinished, options, done)
                    run = unfinished.publish(candidates, args.tag)
                except QueryFailed as failure:
                    raise CommandError(f"{args.run or args.pool}: {failure}", REFUSED) from failure
                finally:
                    progress.end()
                    if unfinished.partial.exists() and unfinished.finished:
                        kept = f"{len(unfinished.finished):,} of {len(candidates):,} queries are kept"
                        print(f"{unfinished.partial}: {kept}; continue with --resume", file=sys.stderr)
    documents = sum(len(ranked) for query_id, ranked in run.items() if query_id not in before)
    seconds = time.monotonic() - began_s
    print(
        f"{args.out}: {counted(len(run), 'query').replace('querys', 'queries')}, "
        f"{documents / seconds:.1f} documents/s",
        file=sys.stderr,
    )
    return DONE


def _candidates(args: argparse.Namespace) -> Run:
    """Read the documents to rerank, by query."""
    if args.run is not None and args.pool is not None:
        raise CommandError("--pool: rerank either a run or a pool; leave out --run")
    if args.pool is not None:
        judged = read_qrels(args.pool)
        run = {query_id: rank(query_id, ((doc_id, 0.0) for doc_id in of)) for query_id, of in judged.items()}
    else:
        run = read_run(args.run)
    return {query_id: documents[: args.k] for query_id, documents in run.items()}


def _documents(args: argparse.Namespace, candidates: Run) -> tuple[Run, DocumentOf]:
    """Find texts in the collection: the candidates that have one, and a function that makes documents."""
    from farrank_training.text_store import TextStore

    doc_ids = {each.doc_id for ranked in candidates.values() for each in ranked}
    texts = TextStore(args.collection, doc_ids, document_fields(args.fields) if args.fields else None)
    if missing := missing_documents(texts, doc_ids):
        if not args.skip_missing:
            files = ", ".join(map(str, args.collection))
            raise CommandError(f"{files}: {missing} (--skip-missing reranks without them)")
        print(f"not reranked: {missing}", file=sys.stderr)
        found = {
            query_id: [each for each in of if each.doc_id in texts] for query_id, of in candidates.items()
        }
        candidates = {query_id: ranked for query_id, ranked in found.items() if ranked}
    return candidates, lambda doc_id: (doc_id, texts.text(doc_id))
