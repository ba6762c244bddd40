"""Clusters: what one node has, how nodes are joined, and what a launch on them needs."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from autotune import resources, validation
from autotune.errors import SpaceError
from autotune_policies.environment import check_variable
from autotune_policies.settings import check_value


class Cluster(validation.Validated):
    """A cluster file (``search_spaces/clusters/*.yaml``); sizes in bytes, rates in bytes/s and FLOP/s, per GPU.

    Attributes:
        name: Cluster name.
        device: ``cuda``, or ``cpu`` where a process counts as a GPU.
        accelerator: Ray's accelerator type (``ray.io/accelerator-type``); null on a CPU.
        gpus_per_node: GPUs (or ranks) one node offers.
        nvlink_domain_gpus: GPUs that reach each other over NVLink; 1 where there is none.
        gpu_memory_bytes: Usable memory; null = not limited by the file.
        sm_count: Streaming multiprocessors.
        nvlink_bytes_per_s: Per direction.
        nic_bytes_per_s: Per direction.
        nic_proxied: Whether messages that a GPU starts pass a host thread (EFA) instead of going to the NIC directly.
        peak_flops_per_s: Dense peak by precision.
        env: Variables every trial gets before its first torch import.
        launch: What only the launcher can do, e.g. ``numa_binding``.
        parameters: What may vary on this hardware beside the model's own parameters: choices by setting, the usual one
            first. A model file that has the parameter too wins.
        fixed: Settings that this hardware pins.
        note: What its measurements mean, printed with every result.
    """

    schema_: Literal["autotune.cluster/v1"] = Field(alias="schema")
    name: validation.Name
    device: Literal["cuda", "cpu"]
    accelerator: str | None = None
    gpus_per_node: int = Field(ge=1)
    nvlink_domain_gpus: int = Field(ge=1, default=1)
    gpu_memory_bytes: int | None = Field(ge=1, default=None)
    sm_count: int | None = Field(ge=1, default=None)
    nvlink_bytes_per_s: float | None = Field(gt=0, allow_inf_nan=False, default=None)
    nic_bytes_per_s: float | None = Field(gt=0, allow_inf_nan=False, default=None)
    nic_proxied: bool = False
    peak_flops_per_s: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    launch: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, list[Any]] = Field(default_factory=dict)
    fixed: dict[str, Any] = Field(default_factory=dict)
    note: str = ""

    @field_validator("env")
    @classmethod
    def _env_is_allowed(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            with validation.at(name):
                check_variable(name, value)
        return env

    @field_validator("parameters")
    @classmethod
    def _parameters_are_settings(cls, parameters: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, choices in parameters.items():
            with validation.at(name):
                values = [check_value(name, value) for value in choices]
                if not values or len({repr(value) for value in values}) != len(values):
                    raise ValueError(f"choices must be there and differ, but got {values}")
        return parameters

    @field_validator("fixed")
    @classmethod
    def _fixed_are_settings(cls, fixed: dict[str, Any]) -> dict[str, Any]:
        for name, value in fixed.items():
            with validation.at(name):
                check_value(name, value)
        return fixed

    def nodes(self, num_gpus: int) -> tuple[int, int]:
        """Nodes and ranks per node for so many GPUs.

        Raises:
            SpaceError: not a whole number of nodes.
        """
        if num_gpus <= self.gpus_per_node:
            return 1, num_gpus
        if num_gpus % self.gpus_per_node:
            raise SpaceError(
                f"gpus={num_gpus} is not a multiple of the {self.gpus_per_node} GPUs of a {self.name} node",
                hint=f"try --gpus {num_gpus // self.gpus_per_node * self.gpus_per_node}",
            )
        return num_gpus // self.gpus_per_node, self.gpus_per_node


def load_cluster(name: str) -> Cluster:
    """A shipped cluster by name, or a user's own file by path.

    Raises:
        RequestError: unknown name (closest ones in the hint) or a wrong file (with its line).
    """
    return validation.load(resources.locate("clusters", name), Cluster)
