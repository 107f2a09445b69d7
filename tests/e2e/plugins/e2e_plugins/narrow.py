"""Catch-ups narrower than SGLang's CPU host has them, as FlashInfer's workspace may make them."""


def _narrow(width: int) -> None:
    from sglang_adaptive_spec.host.drafters import catch_up

    catch_up.catch_up_width = lambda *_: width


def to_seven() -> None:
    _narrow(7)


def to_one() -> None:
    _narrow(1)
