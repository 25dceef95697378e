"""The built-in corpus: the reference documentation that comes with every Python interpreter.

It has a few hundred real, long documents: one for each module of the standard library (doc_id `urllib.parse`)
and one for each topic of `help()` (doc_id `topic:for`). It needs no download, raises no licence question, and
is the same in every run.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from farrank_indexes.document import CollectionError, IndexDocument

_SCRIPT = Path(__file__).with_name("pydoc_render.py")


def read_pydoc() -> Iterator[IndexDocument]:
    """Yield this interpreter's documents: the modules by name, then the topics by name.

    A separate process renders them. It inherits no environment variables, imports from neither the user's
    packages nor the current folder, and has a fixed hash seed, so that sets print in the same order.

    Raises: CollectionError if the process fails.
    """
    with subprocess.Popen(
        [sys.executable, "-S", "-s", "-P", str(_SCRIPT)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
        cwd=Path(sys.executable).anchor,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                doc_id, text = json.loads(line)
                yield IndexDocument(doc_id, text)
        finally:
            # A caller that stops early does not wait for the rest.
            process.stdout.close()
            if sys.exc_info()[0] is not None:
                process.kill()
    if process.returncode:
        raise CollectionError(f"rendering Python's documentation failed with status {process.returncode}")
