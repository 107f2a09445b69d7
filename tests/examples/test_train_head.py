"""Training end to end on a tiny random target: what it writes has the shape of the shipped head."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples import smollm2
from examples.smollm2.prompts import build_prompts
from examples.training import train_head
from examples.training.data import Sample, hot_vocabulary
from examples.training.fit import FitSettings, Trainer, learning_rate
from examples.training.head import Eagle3Head, HeadConfig
from examples.training.measure import measured, summarise
from examples.training.target import Target
from examples.training.unroll import loss_of
from examples.wheels import sha256_of

SHIPPED = Path(smollm2.__file__).parent / "eagle3-head"
SHIPPED_SHA256 = "6f8e1e36bcb795a082bda9f1f12e0ceaf5a353c9cde3740d203859c2db8de7ea"
SPECIAL = ["<unk>", "<s>", "</s>"]
CHAT_TEMPLATE = "{% for m in messages %}user: {{ m.content }}\n{% endfor %}assistant: "


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    """A random Llama over single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(SPECIAL + alphabet)}
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "target")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "target")
    return tmp_path / "target"


def test_a_trained_head_has_the_tensors_and_config_of_the_shipped_one(
    target_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"domain": "prose", "chat": True, "text": f"Tell me about {n}.", "split": split}
        for n, split in enumerate(["heldout"] * 4 + ["train"] * 12)
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--model", str(target_folder), "--prompts", str(prompts)]
    arguments += ["--out", str(tmp_path / "head"), "--samples", str(tmp_path / "samples.jsonl")]
    arguments += ["--generate-batch", "8", "--new-tokens", "24", "--train-seconds", "1"]
    arguments += ["--batch-size", "4", "--num-steps", "3", "--draft-vocab-size", "128"]
    arguments += ["--intermediate-size", "40"]
    assert train_head.main(arguments) == 0

    trained = load_file(tmp_path / "head" / "model.safetensors")
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    shipped = load_file(SHIPPED / "model.safetensors")
    shipped_config = json.loads((SHIPPED / "config.json").read_text())
    assert {name: tensor.dtype for name, tensor in trained.items()} == {
        name: tensor.dtype for name, tensor in shipped.items()
    }
    assert trained.keys() == expected_shapes(config).keys()
    assert {n: tuple(t.shape) for n, t in trained.items()} == expected_shapes(config)
    assert {n: tuple(t.shape) for n, t in shipped.items()} == expected_shapes(shipped_config)
    assert config.keys() == shipped_config.keys()
    hot = trained["d2t"] + torch.arange(128)
    assert torch.equal(trained["t2d"].nonzero().flatten(), hot)

    printed = capsys.readouterr().out
    heads, samples = [tmp_path / "head"], tmp_path / "samples.jsonl"
    (found,) = measured(target_folder, heads, samples, num_steps=3)
    (told,) = [line for line in printed.splitlines() if line.startswith("held-out prose: ")]
    printed_of, stored = json.loads(told.partition(": ")[2]), asdict(found["prose"])
    assert printed_of.pop("num_positions") == stored.pop("num_positions") == 88
    for name, value in printed_of.items():  # bfloat16 may turn a position or two of a young head
        assert value == pytest.approx(stored[name], abs=0.05)


def expected_shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    head = Eagle3Head(
        HeadConfig(**{name: config[name] for name in HeadConfig.__dataclass_fields__})
    )
    shapes: dict[str, tuple[int, ...]] = {n: tuple(p.shape) for n, p in head.named_parameters()}
    return {**shapes, "d2t": (config["draft_vocab_size"],), "t2d": (config["vocab_size"],)}


def test_the_shipped_weights_are_the_ones_the_readme_names() -> None:
    assert sha256_of(SHIPPED / "model.safetensors") == SHIPPED_SHA256
    assert SHIPPED_SHA256 in (SHIPPED.parent / "README.md").read_text()


def test_training_lowers_the_loss_of_text_that_can_be_learned(
    target_folder: Path,
) -> None:
    target = Target.load(target_folder, "cpu")
    samples = [
        Sample([*range(10, 40), *range(10, 40)], 4, "prose", split)
        for split in ["heldout", "heldout", *["train"] * 6]
    ]
    settings = FitSettings(
        train_s=100,
        batch_size=6,
        num_steps=3,
        draft_vocab_size=64,
        learning_rate=5e-3,
        warmup_steps=5,
    )
    trainer = Trainer(target, samples, settings)
    before = loss_of(trainer._unroll(trainer.train_samples, 3), trainer.vocabulary).item()
    trainer.fit(clock=itertools.count().__next__)  # a hundred steps
    after = loss_of(trainer._unroll(trainer.train_samples, 3), trainer.vocabulary).item()
    assert after < 0.8 * before


def test_training_goes_on_from_its_checkpoint_as_if_nothing_had_been(
    target_folder: Path, tmp_path: Path
) -> None:
    target = Target.load(target_folder, "cpu")
    samples = [
        Sample([*range(10, 40), *range(10 + idx, 40)], 4, "prose", "train") for idx in range(8)
    ]
    settings = FitSettings(train_s=8, batch_size=4, num_steps=2, draft_vocab_size=64)
    torch.manual_seed(3)
    whole = Trainer(target, samples, settings)
    whole.fit(clock=itertools.count().__next__)
    path = tmp_path / "training.pt"
    torch.manual_seed(3)
    ended = Trainer(target, samples, settings)

    def ends() -> Iterator[float]:
        yield from range(5)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("examples.training.fit.CHECKPOINT_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            ended.fit(clock=ends().__next__, checkpoint=path)
    again = Trainer(target, samples, settings)
    again.fit(clock=itertools.count().__next__, checkpoint=path)
    assert again._num_updates == whole._num_updates
    other_text = [Sample([*range(50, 80)], 4, "prose", "train")]
    with pytest.raises(ValueError, match="has other draft tokens than this text gives"):
        Trainer(target, other_text, settings).fit(checkpoint=path)
    for one, other in zip(whole.head.parameters(), again.head.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_output_rows_that_are_frozen_stay_the_targets(target_folder: Path) -> None:
    target = Target.load(target_folder, "cpu")
    samples = [Sample([*range(10, 40), *range(10, 40)], 4, "prose", "train")]
    settings = FitSettings(
        train_s=4, num_steps=2, draft_vocab_size=64, warmup_steps=1, trains_output=False
    )
    trainer = Trainer(target, samples, settings)
    before = trainer.head.fc.weight.clone()
    trainer.fit(clock=itertools.count().__next__)
    assert torch.equal(trainer.head.lm_head.weight, trainer.vocabulary.output_rows)
    assert not torch.equal(trainer.head.fc.weight, before)


def test_the_draft_vocabulary_is_ascending_frequent_and_holds_the_end_token() -> None:
    text = [9, 9, 9, 7, 7, 8]
    samples = [Sample([1, *text], 1, "prose", "train"), Sample([50, 60], 0, "prose", "heldout")]
    hot = hot_vocabulary(samples, size=4, vocab_size=100, eos_token_id=2)
    assert hot.tolist() == [2, 7, 8, 9]
    assert hot_vocabulary(samples, 6, 100, 2).tolist() == [0, 1, 2, 7, 8, 9]


def test_a_draft_after_a_wrong_one_is_not_accepted() -> None:
    hits = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    acceptance = summarise(hits)
    assert acceptance.num_correct_drafts == pytest.approx(4 / 3, abs=0.01)
    assert acceptance.top1 == pytest.approx(2 / 3, abs=0.001)
    assert acceptance.histogram == (0.33, 0.33, 0.0, 0.33)


def test_the_rate_warms_up_and_ends_at_a_twentieth() -> None:
    settings = FitSettings(learning_rate=1.0, warmup_steps=10)
    assert learning_rate(settings, 0, 0.0) == pytest.approx(0.1)
    assert learning_rate(settings, 9, 0.0) == pytest.approx(1.0)
    assert learning_rate(settings, 500, 1.0) == pytest.approx(0.05)


def test_prompts_repeat_with_their_seed_and_hold_out_one_in_twenty() -> None:
    titles = [f"Subject {n}" for n in range(50)]
    prompts = build_prompts(titles, per_domain=25, seed=3)
    assert prompts == build_prompts(titles, per_domain=25, seed=3)
    assert prompts != build_prompts(titles, per_domain=25, seed=4)
    assert sum(p.split == "heldout" for p in prompts) == 5
    assert {p.domain for p in prompts} == {"prose", "code", "json", "math"}
