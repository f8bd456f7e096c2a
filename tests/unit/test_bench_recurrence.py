"""What `atento bench recurrence` says of the sizes of its networks is what they have (W20)."""

import torch

from atento.networks import build_network, parameter_count
from atento_lab.studies.recurrence import readers, translators


def test_w20_sizes_are_told_as_they_are() -> None:
    """They are of one width and not of one size: 74,240 to 272,384 parameters."""
    with torch.device("meta"):
        sizes = {name: parameter_count(build_network(config)) for name, config in readers().items()}
    told = readers.__doc__ or ""
    assert all(f"{size:,}" in told for size in sizes.values())
    assert len({config.d_model for config in readers().values()}) == 1
    for made in (readers, translators):
        assert "equal size" not in (made.__doc__ or "").replace("not equal size", "")
