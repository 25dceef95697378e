"""Writes a Lucene index with all fields that first stages rank by; run as a program, for it starts a JVM.

python fields_index.py FOLDER < DOCUMENTS    a JSON list of {id, text, expansions, impacts, vectors}
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farrank_server.java_process.jvm import child_environment

FIELD_OF_READER = "(Ljava/lang/String;Ljava/io/Reader;Lorg/apache/lucene/index/IndexableFieldType;)V"


def write_index(folder: Path, documents: Sequence[dict[str, Any]]) -> None:
    """Write the index; documents have places in their order."""
    command = [sys.executable, __file__, str(folder)]
    environment = child_environment()
    subprocess.run(command, input=json.dumps(documents), text=True, check=True, env=environment)


def main() -> None:
    from farrank_server.first_stage.lucene_fields import (
        CONTENTS,
        EXPANDED,
        ID,
        IMPACTS,
        PLACE,
        VECTOR,
        VECTORS,
        WEIGHT_MARK,
        bytes_of,
        java,
    )
    from farrank_server.java_process.jvm import start_jvm

    start_jvm(256)
    yes, no = (getattr(java("document.Field$Store"), name) for name in ("YES", "NO"))
    similarity = java("index.VectorSimilarityFunction").MAXIMUM_INNER_PRODUCT

    def writer_of(path: Path) -> Any:
        options = java("java.util.HashMap")
        mark, fields = options(), options()
        mark.put("delimiter", WEIGHT_MARK)
        weights = java("analysis.custom.CustomAnalyzer").builder().withTokenizer("whitespace", options())
        fields.put(IMPACTS, weights.addTokenFilter("delimitedTermFrequency", mark).build())
        english = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        analyzer = java("analysis.miscellaneous.PerFieldAnalyzerWrapper")(english, fields)
        settings = java("index.IndexWriterConfig")(analyzer)
        directory = java("store.FSDirectory").open(java("java.nio.file.Paths").get(str(path)))
        return java("index.IndexWriter")(directory, settings)

    def placed(doc_id: str, place: int) -> Any:
        made = java("document.Document")()
        made.add(java("document.StringField")(ID, doc_id, yes))
        made.add(java("document.BinaryDocValuesField")(ID, bytes_of(doc_id)))
        made.add(java("document.NumericDocValuesField")(PLACE, place))
        return made

    weighted = java("document.FieldType")()
    weighted.setIndexOptions(java("index.IndexOptions").DOCS_AND_FREQS)
    weighted.setOmitNorms(True)
    folder = Path(sys.argv[1])
    texts, chunks, chunk = writer_of(folder), writer_of(folder / VECTORS), 0
    for place, each in enumerate(json.load(sys.stdin)):
        made = placed(each["id"], place)
        made.add(java("document.TextField")(CONTENTS, each["text"], yes))
        if each.get("expansions"):
            made.add(java("document.TextField")(EXPANDED, "\n".join([each["text"], *each["expansions"]]), no))
        impacts = " ".join(f"{token}{WEIGHT_MARK}{weight}" for token, weight in each["impacts"].items())
        read = java("java.io.StringReader")(impacts)
        made.add(java("document.Field")(IMPACTS, read, weighted, signature=FIELD_OF_READER))
        texts.addDocument(made)
        for vector in each["vectors"]:
            made = placed(each["id"], chunk)
            made.add(java("document.KnnFloatVectorField")(VECTOR, vector, similarity))
            chunks.addDocument(made)
            chunk += 1
    for writer in (texts, chunks):
        writer.close()


if __name__ == "__main__":
    main()
