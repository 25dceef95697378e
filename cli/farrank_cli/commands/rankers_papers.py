"""`farrank rankers --papers`: the papers' models, counted at full size."""

import json

from farrank_cli.exit_codes import DONE
from farrank_cli.terminal import print_columns


def run(*, as_json: bool) -> int:
    """Build every model without weights and print what it is.

    Raises: ModuleNotFoundError if the server extra is not installed.
    """
    from farrank_rankers.papers import count_parameters, on_meta, paper_models

    models = [
        {
            "name": model.name,
            "family": model.spec.family,
            "backbone": model.spec.backbone,
            "chunking": model.spec.chunking.kind,
            "window": model.spec.chunking.window,
            "stride": model.spec.chunking.stride,
            "max_document_tokens": model.spec.chunking.max_document_tokens,
            "parameters": count_parameters(on_meta(model)),
        }
        for model in paper_models().values()
    ]
    if as_json:
        print(json.dumps({"models": models}, ensure_ascii=False))
        return DONE
    print_columns(
        ("name", "family", "backbone", "chunking", "window/stride", "parameters"),
        [
            (
                *(str(model[key]) for key in ("name", "family", "backbone", "chunking")),
                f"{model['window']}/{model['stride']}",
                f"{model['parameters']:,}",
            )
            for model in models
        ],
    )
    return DONE
