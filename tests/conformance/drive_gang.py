"""A driver of its own, to be killed: ``python drive_gang.py local|ray SPEC.json WORK_DIR``."""

import sys
from pathlib import Path

from autotune.scheduling.gang import Gang, run_gang
from autotune.scheduling.local_gang import LocalGang
from autotune_trials.spec import TrialSpec

STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in_rank.py"))]


def main() -> None:
    kind, spec_file, work_dir = sys.argv[1:]
    spec = TrialSpec.from_json(Path(spec_file).read_text())
    gang: Gang
    if kind == "ray":
        import ray
        from ray.util import placement_group

        from autotune.scheduling.ray_gang import RayGang, node_bundle

        ray.init(
            address="local", num_cpus=1, resources={"rank": 4}, include_dashboard=False, log_to_driver=False,
            object_store_memory=80 << 20, _node_ip_address="127.0.0.1",
        )  # fmt: skip
        bundles = [node_bundle(spec)] * spec.gang.num_nodes
        gang = RayGang(argv=STAND_IN, placement_group=placement_group(bundles))
    else:
        gang = LocalGang(Path(work_dir), argv=STAND_IN)
    run_gang(gang, spec)


if __name__ == "__main__":
    main()
