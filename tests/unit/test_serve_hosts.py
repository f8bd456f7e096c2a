"""Who is answered: the host names in a request (DNS rebinding), and the file of API keys."""

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra serve")

from atento.base.errors import DataError
from atento_serve.http.clients import read_keys
from atento_serve.http.errors import ServiceError
from atento_serve.http.hosts import Hosts

LOCAL = ["localhost", "LOCALHOST:8000", "localhost.:80", "127.0.0.1", "127.0.0.1:8000", "127.3.2.1", "[::1]"]
LOCAL += ["[::1]:8000", ""]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "xlocalhost"]
FOREIGN += ["[::1].evil"]
ADDRESSES = ["10.0.0.7:8000", "192.168.1.2", "[2001:db8::1]:80"]


def answered(hosts: Hosts, names: list[str]) -> list[str]:
    found = []
    for name in names:
        try:
            hosts.check([(b"accept", b"*/*"), (b"host", name.encode())])
        except ServiceError as error:
            assert error.status == 421 and "--allow-host" in error.message
        else:
            found.append(name)
    return found


@pytest.mark.parametrize("bound", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_on_this_machine_alone_only_its_own_names_are_answered(bound: str) -> None:
    assert answered(Hosts(bound), [*LOCAL, *FOREIGN, *ADDRESSES]) == LOCAL
    allowed = Hosts(bound, ["atento.example", "Other.Example"])
    own = ["atento.example:443", "other.example", *LOCAL]
    assert answered(allowed, [*own, *FOREIGN]) == own
    assert answered(Hosts(bound, ["*"]), [*LOCAL, *FOREIGN, *ADDRESSES]) == [*LOCAL, *FOREIGN, *ADDRESSES]


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "192.168.1.2"])
def test_beyond_this_machine_all_names_or_those_that_are_allowed_and_the_addresses_of_probes(bound: str) -> None:
    assert answered(Hosts(bound), [*LOCAL, *FOREIGN, *ADDRESSES]) == [*LOCAL, *FOREIGN, *ADDRESSES]
    allowed = Hosts(bound, ["atento.example"])
    assert answered(allowed, ["atento.example", *LOCAL, *FOREIGN, *ADDRESSES]) == ["atento.example", *LOCAL, *ADDRESSES]


@pytest.mark.parametrize("option", ["per-minute=0", "per-minute=²", "per-minute=", "in-flight=-1", "a-day=3"])
def test_a_limit_is_a_number_above_0(tmp_path: Path, option: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"small  key-of-small  {option}\n", encoding="utf-8")
    with pytest.raises(DataError, match="keys:1: a limit must be per-minute=N or in-flight=N") as raised:
        read_keys(file)
    assert "key-of-small" not in str(raised.value)
