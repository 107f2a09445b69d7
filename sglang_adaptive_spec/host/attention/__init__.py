"""What the plugin does on an attention backend; startup/build_hooks.py has the hooks, by backend.

FlashInfer: ``flashinfer/`` plans graphs from the CPU, and attends to whole windows where a round is
packed; ``lengths.py`` starts drafts before lengths are known. FA3: ``fa3.py`` captures
draft-extends, on any GPU at their own width, and looks up fewer pages. Triton: ``lengths.py`` looks
up fewer slots. All three: ``kv_index.py`` lets the graphs of all tiers share what finds KV slots,
and ``kv_index_size.py`` says how much memory that takes.
"""
