import math

import pytest
import torch

from kernels.argmax import merged

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("largest", "tokens", "token"),
    [
        ([1.0], [5], 5),
        ([1.0, 3.0, 2.0], [5, 70, 130], 70),
        ([2.0, 2.0, 1.0], [70, 5, 0], 5),  # of equal ones the first
        ([-INF, -3.0], [0, 9], 9),  # a thread without a panel
        ([-INF, -INF], [0, 0], -1),
        ([1.0, NAN], [5, 0], -1),
        ([NAN, 1.0], [0, 70], -1),
        ([INF, 1.0], [5, 70], -1),
        ([NAN], [0], -1),
    ],
)
def test_the_largest_of_what_all_threads_found(largest: list[float], tokens: list[int], token: int) -> None:
    other = torch.zeros(len(largest))  # another row, whose first token is chosen
    found = merged(
        torch.stack([torch.tensor(largest), other], dim=1),
        torch.stack([torch.tensor(tokens), torch.arange(3, 3 + len(tokens))], dim=1),
    )
    assert found.tolist() == [token, 3]
