"""Where a record of these tests claims to come from."""

PROVENANCE = {
    "git_sha": "0" * 40,
    "code_sha256": "c0de",
    "host_version": "0.5.21",
    "torch_version": "2.11.0",
    "gpu": "NVIDIA H200, 580",
    "argv": ["matrix.py", "run"],
    "date": "2026-01-01T00:00:00+00:00",
}
