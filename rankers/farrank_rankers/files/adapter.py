"""LoRA adapters in peft's format: their settings, and their differences added to a base model's weights.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farrank_rankers.errors import WeightsError
from farrank_rankers.files.saved_modules import MODULES, listed_modules
from farrank_rankers.json_values import read_json, read_value
from farrank_rankers.not_served import ADAPTER, ADAPTERS, BASELESS

if TYPE_CHECKING:
    from torch import Tensor

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

# Keys of adapter_config.json that are read below, or say only how the adapter was trained. Any other key that
# is set may change the computation.
_PLAIN = frozenset(
    """
    alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules
    fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha
    lora_dropout megatron_core modules_to_save parent_library peft_type peft_version qalora_group_size r
    rank_pattern revision target_modules task_type use_rslora
    """.split()  # noqa: SIM905
)
# Initial values that leave the base as it was; the others change it, too.
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class Adapter:
    """The settings of a plain LoRA adapter.

    `alphas` are those of modules, by patterns of their names; the modules named `whole` are saved entirely.
    """

    base: str
    revision: str | None
    task: str | None
    alpha: float
    alphas: Mapping[str, float]
    transposed: bool
    by_root: bool
    whole: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Adapter":
        """Read a folder's adapter_config.json.

        Raises: SourceError naming the file and its problem, or the part that is beyond plain LoRA.
        """
        path = folder / CONFIG_FILE
        values = read_json(path)
        if values.get("peft_type") != "LORA":
            raise ADAPTER.error(f"peft_type {values.get('peft_type')}", folder)
        beyond = [key for key, value in values.items() if value and key not in _PLAIN]
        beyond += ["bias"] if values.get("bias") not in (None, "none") else []
        start = values.get("init_lora_weights")
        beyond += [] if start in _STARTS else [f"init_lora_weights {start}"]
        if beyond:
            raise ADAPTER.error(sorted(beyond)[0], folder)

        def value(key: str, hint: Any, default: Any) -> Any:
            given = values.get(key)
            return default if given is None else read_value(hint, given, f"{path}: {key}", WeightsError)

        base = value("base_model_name_or_path", str, "")
        if not base:
            raise BASELESS.error("base_model_name_or_path is absent", folder)
        return cls(
            base,
            value("revision", str, None),
            value("task_type", str, None),
            value("lora_alpha", float, 8.0),
            value("alpha_pattern", Mapping[str, float], {}),
            value("fan_in_fan_out", bool, False),
            value("use_rslora", bool, False),
            value("modules_to_save", tuple[str, ...], ()),
        )

    def scale(self, module: str, rank: int) -> float:
        """The factor of a module's difference, as peft chooses it."""
        named = (alpha for each, alpha in self.alphas.items() if re.match(rf"(.*\.)?({each})$", module))
        return next(named, self.alpha) / (rank**0.5 if self.by_root else rank)


def adapter_folder(folder: Path) -> Path | None:
    """Find the folder of a published model's adapter: its own, or its transformer's; None without one.

    Raises: SourceError if the adapters are in several subfolders, without one in the folder itself.
    """
    places = [folder]
    if (folder / MODULES).is_file():
        places.append(folder / str(listed_modules(folder)[0]["path"]))
    for place in places:
        if (place / CONFIG_FILE).is_file():
            return place
    inside = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}"))
    if inside and not (folder / "config.json").is_file() and not (folder / MODULES).is_file():
        raise ADAPTERS.error(", ".join(inside), folder)
    return None


def merged(
    base: Mapping[str, "Tensor"], given: Mapping[str, "Tensor"], adapter: Adapter, source: Path
) -> dict[str, "Tensor"]:
    """Add an adapter's differences to its base's tensors, and replace the modules that it has whole.

    Raises: WeightsError naming `source`, the tensor and its problem.
    """
    found = dict(base)
    factors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in given.items():
        place = name.removeprefix("base_model.model.")
        module, part, factor = place.partition(".lora_")
        if part and factor not in ("A.weight", "B.weight"):
            raise WeightsError(f"{source}: tensor {name} is no part of plain LoRA on a linear layer")
        if part:
            factors.setdefault(module, {})[factor[0]] = tensor
        else:
            whole = place.replace(".modules_to_save", "")
            if not set(adapter.whole) & set(whole.split(".")):
                raise WeightsError(f"{source}: tensor {name} is of no module of modules_to_save")
            found[_named(found, whole) or whole] = tensor
    for module, parts in factors.items():
        key = _named(found, f"{module}.weight")
        if key is None or parts.keys() != {"A", "B"}:
            problem = "is not in the base" if key is None else "lacks one of lora_A and lora_B"
            raise WeightsError(f"{source}: the module {module} {problem}")
        first, second, weight = parts["A"], parts["B"], found[key]
        if first.ndim != 2 or second.ndim != 2 or second.shape[1] != len(first):
            raise WeightsError(f"{source}: lora_A and lora_B of {module} are not two factors of a matrix")
        # In fp64, so that every machine gets the same version.
        change = second.double() @ first.double() * adapter.scale(module, len(first))
        change = change.T if adapter.transposed else change
        if change.shape != weight.shape:
            raise WeightsError(
                f"{source}: the difference of {module} has shape {tuple(change.shape)}; "
                f"the base's weight has {tuple(weight.shape)}"
            )
        found[key] = (weight.double() + change).float()
    return found


def _named(tensors: Mapping[str, "Tensor"], name: str) -> str | None:
    """Find a tensor of a base whose checkpoint may have another class: with a prefix more, or one less."""
    if name in tensors:
        return name
    ends = [each for each in tensors if each.endswith(f".{name}") or name.endswith(f".{each}")]
    return ends[0] if len(ends) == 1 else None
