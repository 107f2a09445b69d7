"""On FlashInfer graphs are planned from the CPU, as tight as their round, in shared buffers."""
