from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiomooncake.errors import RemoteProtocolError
from aiomooncake.wire.struct_pack import TypeHeader, container_width, read_length, type_hash

from . import naive

KEYS = TypeHeader(naive.KEYS, "keys")

# (header, width), by hand. Hash of 84800c: 0x8a86e11a; the lowest bit announces a meta byte.
FORMS = {
    "1ae1868a": 1,
    "1be1868a 00": 1,
    "1be1868a 08": 2,
    "1be1868a 10": 4,
    "1be1868a 18": 8,
    "1be1868a 04 84800c00": 1,
    "1be1868a 0c 84800c00": 2,
    "1be1868a 14 84800c00": 4,
    "1be1868a 1c 84800c00": 8,
}
every_form = pytest.mark.parametrize(("form", "width"), FORMS.items())


@every_form
def test_each_form_of_a_header_tells_its_width_and_where_the_payload_starts(form: str, width: int) -> None:
    header = bytes.fromhex(form)
    for behind in (b"", b"\0", b"\x84\x80\x0c\0", bytes(range(256))):
        assert KEYS.decode(header + behind) == (width, len(header))
        assert KEYS.matches(header + behind)


@every_form
def test_a_header_that_ends_early_is_refused_at_every_length(form: str, width: int) -> None:
    header = bytes.fromhex(form)
    for length in range(len(header)):
        with pytest.raises(RemoteProtocolError, match="keys"):
            KEYS.decode(header[:length])


def test_headers_are_written_without_type_string_and_as_short_as_they_can() -> None:
    written = [KEYS.encode(width).hex(" ", -4) for width in naive.WIDTHS]
    assert written == ["1ae1868a", "1be1868a 08", "1be1868a 10", "1be1868a 18"]


@pytest.mark.parametrize(
    "type_string", [naive.KEYS, naive.KEYS_AND_TENANT, naive.RESULTS, naive.VERSION, naive.NO_VERSION, naive.TEXT]
)
@pytest.mark.parametrize("width", naive.WIDTHS)
def test_what_is_written_is_what_the_description_says_for_every_type_and_width(type_string: bytes, width: int) -> None:
    header = TypeHeader(type_string, "value")
    assert header.encode(width) == naive.header(type_string, width)
    assert header.debug_form(width) == naive.header(type_string, width, debug=True)
    assert header.decode(header.encode(width)) == (width, len(header.encode(width)))
    assert header.decode(header.debug_form(width)) == (width, len(header.debug_form(width)))


def test_another_hash_is_refused_and_named() -> None:
    for flipped in range(1, 32):
        wrong = 0x8A86E11A ^ 1 << flipped
        with pytest.raises(RemoteProtocolError, match=f"type hash {wrong:#010x} where 0x8a86e11a was expected"):
            KEYS.decode(wrong.to_bytes(4, "little") + bytes(4))
        assert not KEYS.matches(wrong.to_bytes(4, "little"))


@pytest.mark.parametrize("bit", [0x01, 0x02, 0x20, 0x40, 0x80])
def test_a_meta_bit_that_nobody_documented_is_refused_and_named(bit: int) -> None:
    for known in (0x00, 0x04, 0x1C):
        with pytest.raises(RemoteProtocolError, match=f"unknown bits in meta byte {bit | known:#04x}"):
            KEYS.decode(bytes.fromhex("1be1868a") + bytes([bit | known]) + naive.KEYS + b"\0\0\0")


@pytest.mark.parametrize("type_string", ["84800d00", "84800c01", "84800c0c", "00848000", "84870b01"])
def test_a_type_string_that_does_not_fit_the_hash_is_refused(type_string: str) -> None:
    with pytest.raises(RemoteProtocolError, match="does not fit its hash"):
        KEYS.decode(bytes.fromhex("1be1868a04" + type_string) + bytes(8))


def test_a_hash_never_has_its_lowest_bit() -> None:
    assert type_hash(naive.KEYS) == 0x8A86E11A
    assert not any(type_hash(bytes([value])) & 1 for value in range(256))


@pytest.mark.parametrize(
    ("largest", "width"),
    [(0, 1), (1, 1), (255, 1), (256, 2), (65535, 2), (65536, 4), (2**32 - 1, 4), (2**32, 8), (2**64 - 1, 8)],
)
def test_lengths_are_as_wide_as_the_largest_container_needs(largest: int, width: int) -> None:
    assert container_width(largest) == width == naive.width_for(largest)


@pytest.mark.parametrize("width", naive.WIDTHS)
def test_a_length_is_read_little_endian_from_where_it_stands(width: int) -> None:
    for length in (0, 1, 256**width - 1, 256 ** (width - 1)):
        data = b"\xff" * 3 + length.to_bytes(width, "little") + b"\xff" * 9
        assert read_length(data, 3, width) == (length, 3 + width)


@pytest.mark.parametrize("width", naive.WIDTHS)
def test_a_length_that_ends_early_is_refused(width: int) -> None:
    for have in range(width):
        for offset in (0, 5):
            with pytest.raises(RemoteProtocolError, match="ends inside a container length"):
                read_length(bytes(offset + have), offset, width)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=24), st.binary(max_size=16).map(lambda tail: bytes.fromhex("1be1868a") + tail)))
def test_any_bytes_are_one_of_the_forms_or_refused(data: bytes) -> None:
    fitting = [(width, len(form)) for text, width in FORMS.items() if data.startswith(form := bytes.fromhex(text))]
    try:
        assert KEYS.decode(data) in fitting
    except RemoteProtocolError:
        assert not fitting
