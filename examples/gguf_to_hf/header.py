"""What a GGUF says of itself before its tensors."""

from typing import Any

from gguf import GGUFReader

from examples.gguf_to_hf.architectures import ARCHITECTURES, Architecture

SPECIAL_IDS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


class Header:
    """Its key-value pairs."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = reader.fields
        self.architecture_name: str = self["general.architecture"]
        if self.architecture_name not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ValueError(
                f"the GGUF's architecture is {self.architecture_name}; {known} are known."
            )

    @property
    def architecture(self) -> Architecture:
        """What the model is."""
        return ARCHITECTURES[self.architecture_name]

    def __getitem__(self, key: str) -> Any:
        return self._fields[key].contents()

    def hyperparameter(self, key: str) -> Any:
        """Returns a hyperparameter of this architecture."""
        return self[f"{self.architecture_name}.{key}"]

    def special_ids(self, *names: str) -> dict[str, int]:
        """Returns those of the special tokens that the model has."""
        keys = {name: f"tokenizer.ggml.{SPECIAL_IDS[name]}_token_id" for name in names}
        return {name: self[key] for name, key in keys.items() if key in self._fields}
