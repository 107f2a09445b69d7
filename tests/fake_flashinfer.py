"""A package of FlashInfer's shape: what the plugin touches of it, as 0.7.2 declares that."""

from pathlib import Path

from sglang_adaptive_spec.contract.versions import HostInfo

FILES = {
    "__init__.py": "",
    "_build_meta.py": '__version__ = "{version}"\n',
    "decode.py": """
class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer):
        self._int_workspace_buffer = self._pin_memory_int_workspace_buffer = None

    def plan(self, indptr, indices):
        self._cached_module = None
""",
    "prefill.py": """
class BatchPrefillWithPagedKVCacheWrapper:
    def __init__(self, float_workspace_buffer, custom_mask_buf=None, mask_indptr_buf=None):
        self._int_workspace_buffer = self._pin_memory_int_workspace_buffer = None
        self._cached_module = None
        self._paged_kv_indptr_buf = self._paged_kv_indices_buf = None
        self._custom_mask_buf = custom_mask_buf
        self._mask_indptr_buf = mask_indptr_buf

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None, causal=False,
        q_data_type="float16", non_blocking=True,
    ):
        pass

    begin_forward = plan
""",
    "quantization/__init__.py": "",
    "quantization/packbits.py": """
@functools.cache
def get_quantization_module():
    return gen_quantization_module().build_and_load()
""",
    "data/csrc/quantization.cu": """
void segment_packbits(TensorView x, TensorView input_indptr, TensorView output_indptr,
                      const std::string& bitorder, TensorView y) {
  CHECK_INPUT(x);
""",
    "data/csrc/batch_prefill.cu": """
Array<int64_t> BatchPrefillWithKVCachePlan(
    TensorView float_workspace_buffer, TensorView int_workspace_buffer,
    TensorView page_locked_int_workspace_buffer, TensorView qo_indptr, TensorView kv_indptr,
    TensorView kv_len_arr, int64_t total_num_rows, int64_t batch_size, int64_t num_qo_heads,
    int64_t num_kv_heads, int64_t page_size, bool enable_cuda_graph, int64_t head_dim_qk,
    int64_t head_dim_vo, bool causal, int64_t window_left, int64_t fixed_split_size,
    bool disable_split_kv, int64_t num_colocated_ctas = 0, int64_t uniform_q_len = 0) {
  size_t float_workspace_size_in_bytes = float_workspace_buffer.size(0);
""",
}


def fake_flashinfer(folder: Path, version: str = "0.7.2") -> HostInfo:
    """Writes the package under ``folder``."""
    for name, text in FILES.items():
        path = folder / "flashinfer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{version}", version))
    return HostInfo(version, folder)


def change(flashinfer: HostInfo, name: str, old: str, new: str) -> None:
    """Replaces a text in one of its files."""
    path = flashinfer.root / "flashinfer" / name
    text = path.read_text()
    assert text.count(old) >= 1, f"{name} has no {old}"
    path.write_text(text.replace(old, new))
