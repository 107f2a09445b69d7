"""Batch sizes that are taken together: those that pad to the same power of two.

A closed loop of 8 clients runs batches of 7 whenever one of them is about to ask again, so 7 and 8
must be in one class.
"""


def size_class(batch_size: int) -> int:
    """Returns which class a batch falls into: 0 for 1, 1 for 2, 2 for 3 to 4, 3 for 5 to 8."""
    return (batch_size - 1).bit_length()


def size_range(number: int) -> str:
    """Returns the batch sizes of a class, such as ``5-8``."""
    largest = 1 << number
    return str(largest) if largest <= 2 else f"{largest // 2 + 1}-{largest}"
