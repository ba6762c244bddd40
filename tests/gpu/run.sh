#!/usr/bin/env bash
# The checks that need one NVIDIA GPU: real NVML, a native trial with NCCL, CUDA graphs. No network is needed.
#
#   tests/gpu/run.sh RESULTS [WHEELS]
#
# RESULTS  folder for the log
# WHEELS   folder of wheels that the machine lacks (megatron-core, PyYAML, pytest, nvidia-ml-py, ...); optional
#
# Under ten minutes on one H200-class GPU.
set -euo pipefail
results=$(mkdir -p "${1:?usage: tests/gpu/run.sh RESULTS [WHEELS]}" && cd "$1" && pwd)
wheels=${2:-}
[[ -z $wheels ]] || wheels=$(cd "$wheels" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ -n $wheels ]]; then
    site=$(mktemp -d)
    python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
    export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$PWD:$PWD/trials:$PWD/policies${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

{
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    python3 -m autotune_trials.probe alltoall
    python3 -m pytest tests/gpu -m gpu -rA -p no:cacheprovider
} 2>&1 | tee "$results/gpu.log"
