"""FLOPs, bytes, communication and pipeline: step time and peak memory without hardware."""
