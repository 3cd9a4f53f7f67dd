from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiomooncake.errors import ConfigError
from aiomooncake.target import Address, Target, parse_target

GOOD: dict[str, tuple[list[tuple[str, int]], str]] = {
    "127.0.0.1:50051": ([("127.0.0.1", 50051)], "default"),
    "localhost:1": ([("localhost", 1)], "default"),
    "master.svc.cluster.local.:65535": ([("master.svc.cluster.local.", 65535)], "default"),
    "my_master-0:50051": ([("my_master-0", 50051)], "default"),
    "bücher.example:00080": ([("bücher.example", 80)], "default"),
    "[::1]:50051": ([("::1", 50051)], "default"),
    "[fe80::1%eth0]:50051": ([("fe80::1%eth0", 50051)], "default"),
    "mooncake://m1:50051": ([("m1", 50051)], "default"),
    "mooncake://m1:50051/": ([("m1", 50051)], "default"),
    "mooncake://m1:50051?": ([("m1", 50051)], "default"),
    "mooncake://m1:1,m2:2,m1:1": ([("m1", 1), ("m2", 2), ("m1", 1)], "default"),
    "mooncake://m1:1,[::1]:2,[::2]:3": ([("m1", 1), ("::1", 2), ("::2", 3)], "default"),
    "mooncake://[::1]:1,m2:2/?tenant=team-a": ([("::1", 1), ("m2", 2)], "team-a"),
    "mooncake://m1:1?tenant=team-a": ([("m1", 1)], "team-a"),
    "mooncake://m1:1?tenant=a%2Fb%20c+d%26": ([("m1", 1)], "a/b c d&"),
    "mooncake://m1:1?tenant=a/b?c": ([("m1", 1)], "a/b?c"),
    "mooncake://m1:1?tenant=%C3%A9": ([("m1", 1)], "é"),
    "mooncake://m1:1?tenant=é🚀": ([("m1", 1)], "é🚀"),
    "mooncake://m1:1?tenant=": ([("m1", 1)], ""),
    "mooncake://m1:1?tenant=" + "t" * 300: ([("m1", 1)], "t" * 300),
}

NO_ADDRESS = "is no host:port; give"
BAD: dict[Any, str] = {
    None: "target is None; give",
    50051: "target is 50051; give",
    b"m1:1": "target is b'm1:1'; give",
    ("m1", 1): r"target is \('m1', 1\); give",
    "": NO_ADDRESS,
    "m1": NO_ADDRESS,
    "m1:": NO_ADDRESS,
    ":50051": NO_ADDRESS,
    "[]:1": NO_ADDRESS,
    "[::1]": NO_ADDRESS,
    "[::1:1": NO_ADDRESS,
    "::1:50051": NO_ADDRESS,
    "m1:1:1": NO_ADDRESS,
    "m1:-1": NO_ADDRESS,
    "m1:+1": NO_ADDRESS,
    "m1:1_0": NO_ADDRESS,
    "m1: 1": NO_ADDRESS,
    "m1:1 ": NO_ADDRESS,
    "m1:http": NO_ADDRESS,
    "m1:٣": NO_ADDRESS,
    "m1:²": NO_ADDRESS,
    "m 1:1": NO_ADDRESS,
    "m1/x:1": NO_ADDRESS,
    "m1?tenant=a:1": NO_ADDRESS,
    "user@m1:1": NO_ADDRESS,
    "m1:1,m2:2": NO_ADDRESS,
    "m1:1?tenant=a": NO_ADDRESS,
    "m..1:1": NO_ADDRESS,
    "m" * 64 + ".example:1": NO_ADDRESS,
    "m1:0": "port 0 is not between 1 and 65535",
    "m1:65536": "port 65536 is not between 1 and 65535",
    "m1:" + "9" * 5000: "9 is not between 1 and 65535",
    "m1:1\n": "unprintable",
    "m\t1:1": "unprintable",
    "m\0:1": "unprintable",
    "\ud800:1": "unprintable",
    "mooncake://m1:\n1": "unprintable",
    "mooncake://m1:1?tenant=\ud800": "unprintable character; in a tenant write it as %XX",
    "http://m1:1": "unknown scheme 'http'",
    "MOONCAKE://m1:1": "unknown scheme 'MOONCAKE'",
    "://m1:1": "unknown scheme ''",
    "mooncake://": NO_ADDRESS,
    "mooncake://,": NO_ADDRESS,
    "mooncake://m1:1,": NO_ADDRESS,
    "mooncake://m1:1,,m2:2": NO_ADDRESS,
    "mooncake://m1:1, m2:2": NO_ADDRESS,
    "mooncake://user:password@m1:1": NO_ADDRESS,
    "mooncake://m1": NO_ADDRESS,
    "mooncake://[::1:1": NO_ADDRESS,
    "mooncake:///m1:1": "path or fragment",
    "mooncake://m1:1/cluster": "path or fragment",
    "mooncake://m1:1//": "path or fragment",
    "mooncake://m1:1#": "path or fragment",
    "mooncake://m1:1?tenant=a#b": "path or fragment",
    "mooncake://m1:1?tenant": "cannot be read",
    "mooncake://m1:1?tenant=a&": "cannot be read",
    "mooncake://m1:1?&": "cannot be read",
    "mooncake://m1:1?tenant=%ff": "cannot be read",
    "mooncake://m1:1?tenant=%ed%a0%80": "cannot be read",
    "mooncake://m1:1?tenant=a&tenant=b": "names 2 tenants",
    "mooncake://m1:1?tenant=a&tenant=a": "names 2 tenants",
    "mooncake://m1:1?timeout=1": "unknown option 'timeout'",
    "mooncake://m1:1?Tenant=a": "unknown option 'Tenant'",
    "mooncake://m1:1?=a": "unknown option ''",
}


@pytest.mark.parametrize(("text", "meant"), GOOD.items())
def test_a_target_is_read(text: str, meant: tuple[list[tuple[str, int]], str]) -> None:
    addresses, tenant = meant
    assert parse_target(text) == Target(tuple(Address(*address) for address in addresses), tenant)


@pytest.mark.parametrize(("text", "says"), BAD.items(), ids=lambda value: repr(value)[:40])
def test_a_bad_target_is_refused_with_what_was_given_and_what_is_wrong(text: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        parse_target(text)
    assert repr(text) in str(caught.value)
    str(caught.value).encode()


@pytest.mark.parametrize("address", [("127.0.0.1", 50051), ("::1", 50051), ("m1", 1), ("fe80::1%eth0", 2)])
def test_an_address_prints_as_it_can_be_given(address: tuple[str, int]) -> None:
    assert parse_target(str(Address(*address))).addresses == (address,)
    assert parse_target(f"mooncake://{Address(*address)}").addresses == (address,)


@given(st.one_of(st.text(), st.text("m1.:[]@/?#,=&% é\0"), st.text("m1.:[],?=&%").map("mooncake://".__add__)))
def test_any_text_is_a_target_or_a_config_error(text: str) -> None:
    try:
        addresses, tenant, _ = parse_target(text)
    except ConfigError:
        return
    tenant.encode()
    assert addresses
    for host, port in addresses:
        assert host
        assert 0 < port < 65536
        with suppress(socket.gaierror):  # all that a resolver may complain of is that it knows no such name
            socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)


def test_an_etcd_target_names_the_cluster_and_where_its_leader_is_known() -> None:
    assert parse_target("etcd://e1:2379,[::1]:2380/mooncake_cluster?tenant=team-a") == Target(
        (Address("e1", 2379), Address("::1", 2380)), "team-a", "mooncake_cluster"
    )


@pytest.mark.parametrize("text", ["etcd://e1:2379", "etcd://e1:2379/", "etcd://e1:2379?tenant=a"])
def test_an_etcd_target_without_a_cluster_is_refused_with_the_usual_name(text: str) -> None:
    with pytest.raises(ConfigError, match="mooncake_cluster"):
        parse_target(text)
