"""`atento data fetch` for real: the packages of the distribution, downloaded, unpacked, paired."""

import shutil
from pathlib import Path

import pytest

from atento.base.errors import AtentoError, DataError
from atento.config.recipe import SourceConfig
from atento.data.records.reader import SOURCE_AND_TARGET, read_records
from atento.data.records.splits import overlap
from atento_cli.corpus.fetch import CATALOGUES, fetch_catalogues, fetch_libreoffice


@pytest.mark.slow  # downloads tens of megabytes and reads thirty thousand pairs
@pytest.mark.skipif(not shutil.which("dpkg-deb") or not shutil.which("apt-get"), reason="needs apt-get and dpkg-deb")
def test_libreoffice_help_gives_tens_of_thousands_of_pairs(tmp_path: Path) -> None:
    """A data set made in a similar way elsewhere has 33,213 English-Portuguese pairs."""
    try:
        (fetched,) = fetch_libreoffice(["pt-BR"], tmp_path, held_out=500)
    except AtentoError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(str(error))
    assert 28_000 < sum(fetched.files.values()) < 42_000
    train, valid, test = (
        read_records(SourceConfig(file=f"pt-BR{ending}.tsv", source=0, target=1), SOURCE_AND_TARGET, tmp_path)
        for ending in ("", ".valid", ".test")
    )
    assert overlap(train, valid) == overlap(train, test) == overlap(valid, test) == 0
    assert 450 <= len(valid) <= 700 and 450 <= len(test) <= 700
    for text in (train["source"], train["target"]):
        assert not any("\xa0\xa0" in line or line != line.strip() or "</" in line[:2] for line in text)
    assert sum("ção" in line for line in train["target"]) > 1000 > sum("ção" in line for line in train["source"])
    lengths = [len(one) / len(other) for one, other in zip(train["source"], train["target"])]
    assert 0.7 < sorted(lengths)[len(lengths) // 2] < 1.1  # sentences answer each other: Portuguese is a little longer


def test_catalogues_of_this_machine(tmp_path: Path) -> None:
    try:
        fetched = fetch_catalogues("pt-BR", tmp_path, CATALOGUES)
    except DataError as error:
        pytest.skip(str(error))
    assert sum(fetched.files.values()) > 20
    pairs = read_records(SourceConfig(file="pt-BR.catalogues.tsv", source=0, target=1), SOURCE_AND_TARGET, tmp_path)
    assert len(set(zip(pairs["source"], pairs["target"]))) == len(pairs)
