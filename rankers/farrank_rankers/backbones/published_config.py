"""A published config.json, converted for the installed release of transformers.

Releases from 5 write rotary positions in another form, and also read the older one. 4.57 ignores the new form
and would compute with its defaults. Keys with which a file selects code are left out for both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from farrank_rankers.errors import SourceError
from farrank_rankers.lean_transformers import transformers

# transformers accepts a hub repository as the implementation of attention, and releases before 5.3 run its
# code (CVE-2026-4372), or let the file itself declare its code trusted (CVE-2026-5241).
CHOOSES_CODE = ("attn_implementation", "experts_implementation", "auto_map", "trust_remote_code")

SINCE_5 = int(transformers.__version__.partition(".")[0]) >= 5

# The names in 5 of layers whose tokens see all others, or only near ones.
GLOBAL, LOCAL = "full_attention", "sliding_attention"

# Architectures with two kinds of layers, and the names in 4.57 of the bases of their rotary positions.
_BASES = {
    "modernbert": {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"},
    "gemma3_text": {GLOBAL: "rope_theta", LOCAL: "rope_local_base_freq"},
}


def as_installed(config: Mapping[str, Any], since_5: bool = SINCE_5) -> dict[str, Any]:
    """Convert the keys of a parsed config.json for the installed release; `since_5`: it is 5 or later.

    Raises: SourceError naming the key that this release would misread.
    """
    values = _harmless(config)
    if since_5:
        kind = values.get("position_embedding_type", "absolute")
        if kind in ("relative_key", "relative_key_query"):
            raise SourceError(
                f"config.json: position_embedding_type is {kind!r}, which transformers computes up to 4.57; "
                f"{transformers.__version__} is installed, and would treat the positions as absolute"
            )
        return values
    if isinstance(rope := values.pop("rope_parameters", None), Mapping):
        values |= _rope_of_4(str(values.get("model_type")), rope)
    layers = values.get("layer_types")
    if values.get("model_type") == "modernbert" and layers is not None:
        values["global_attn_every_n_layers"] = _every(layers)
    return values


def _harmless(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the keys of `CHOOSES_CODE`, also in the configurations of parts."""
    return {
        name: _harmless(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if not name.lstrip("_").startswith(CHOOSES_CODE)
    }


def _rope_of_4(model_type: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the `rope_parameters` of 5 to the keys of transformers 4.57."""
    bases = _BASES.get(model_type, {})
    by_kind = {kind: each for kind, each in rope.items() if isinstance(each, Mapping)}
    if by_kind.keys() - bases.keys():
        raise _needs_5(f"rope_parameters of {', '.join(sorted(by_kind))}")
    if not by_kind:
        return _base_and_scaling(rope, "rope_theta")
    found: dict[str, Any] = {}
    for kind, each in by_kind.items():
        named = _base_and_scaling(each, bases[kind])
        scaling = named.pop("rope_scaling")
        # 4.57 stretches positions only of Gemma's full layers, and none of ModernBERT's.
        if scaling is not None and bases[kind] != "rope_theta":
            raise _needs_5(f"rope_parameters: {kind} of rope_type {scaling['rope_type']!r}")
        if bases[kind] == "rope_theta":
            named["rope_scaling"] = scaling
        found |= named
    return found


def _base_and_scaling(rope: Mapping[str, Any], base: str) -> dict[str, Any]:
    """Remove the base and the rotated part; the rest describes the stretching of positions."""
    left = dict(rope)
    found = {base: left.pop("rope_theta")} if "rope_theta" in left else {}
    if "partial_rotary_factor" in left:
        found["partial_rotary_factor"] = left.pop("partial_rotary_factor")
    stretched = left.get("rope_type", "default") != "default"
    return {**found, "rope_scaling": left if stretched else None}


def _every(layers: Sequence[str]) -> int:
    """Find the interval of ModernBERT's layers with global attention, which 5 lists one by one."""
    for distance in range(1, len(layers) + 1):
        if list(layers) == [LOCAL if number % distance else GLOBAL for number in range(len(layers))]:
            return distance
    raise _needs_5(f"layer_types, which are not {GLOBAL} in the first and in every n-th layer from there on,")


def _needs_5(what: str) -> SourceError:
    return SourceError(f"config.json: {what} needs transformers 5; {transformers.__version__} is installed")
