"""Stands for Megatron-LM's ``pretrain_gpt.py``: its own parser where it is installed; no model, no training.

As there, ``model_provider`` is called once the arguments are known; what the user puts there is read from
``pretrain_gpt_additions.py``.
"""

import importlib.util
import runpy
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace


def real_arguments() -> None:
    """Parse, complete, print and publish the arguments as ``initialize_megatron`` does."""
    import torch
    from megatron.training import arguments, global_vars

    # The parser asks for the GPU's architecture.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0)
    parsed = arguments.parse_args()
    arguments.validate_args(parsed)
    global_vars.set_args(parsed)


def arguments_of_the_stand_in() -> None:
    """The same for the settings alone, where ``megatron.training`` is not installed."""
    from autotune_policies.apply import detect_stack
    from autotune_policies.megatron_core import release_of
    from autotune_policies.megatron_lm_flags import defaults_of, flags_of, split_words

    release = release_of(detect_stack()["megatron_core"])
    flags = flags_of(release)
    fields: dict[str, object] = dict(defaults_of(release))
    known = {"--seq-length": "seq_length", "--global-batch-size": "global_batch_size"}
    for word, values in split_words(sys.argv[1:], release):
        if word in flags:
            convert = {"int": int, "float": float, "str": str}[flags[word].plain]
            found = [convert(value) for value in values]
            arity = flags[word].arity
            fields[flags[word].field] = True if arity == "switch" else found if arity == "many" else found[0]
        elif word in known:
            fields[known[word]] = int(values[0])
    printed = {flag.field: flag.printed for flag in flags.values()}
    names = {printed.get(name, name): value for name, value in fields.items()}
    names.setdefault("virtual_pipeline_model_parallel_size", None)
    title = "-" * 20
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(names.items())]
    sys.stdout.write("\n".join([f"{title} arguments {title}", *lines, f"{title} end of arguments {title}", ""]))
    sys.modules["megatron.training"] = module = ModuleType("megatron.training")
    module.get_args = lambda: Namespace(**names)


def main() -> None:
    if importlib.util.find_spec("megatron.training") is not None:
        real_arguments()
    else:
        arguments_of_the_stand_in()
    additions = Path("pretrain_gpt_additions.py")
    if additions.exists():
        runpy.run_path(str(additions))
    sys.stdout.write("training\n")


main()
