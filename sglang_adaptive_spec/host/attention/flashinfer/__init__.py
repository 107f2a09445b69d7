"""On FlashInfer the graphs of a round are planned from the CPU, in buffers that they share."""
