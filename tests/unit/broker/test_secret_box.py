"""Secrets are sealed under one key, for one user, and are shown nowhere."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.broker.access.secret_box import (
    ENV_KEY,
    KEY_BYTES,
    SECRET_CHARS_MAX,
    SECRET_CHARS_MIN,
    SecretBox,
    checked_secret,
    made_secret,
    open_box,
)
from escrowmq.model.errors import EscrowError, RequestRefused, StoreCorrupt, StoreUnusable
from escrowmq.model.secret import Secret
from escrowmq.model.users import SealedSecret

KEY = bytes(range(KEY_BYTES))
OTHER_KEY = bytes(KEY_BYTES)
TEXT = "kU7-a secret text"


@pytest.fixture
def box() -> SecretBox:
    return SecretBox(KEY)


@given(st.text(max_size=300).filter(lambda text: text.isprintable()), st.text(min_size=1))
def test_a_sealed_secret_is_opened_by_its_key_for_its_user(text: str, user: str) -> None:
    box = SecretBox(KEY)
    user = user.encode("utf-8", "replace").decode()
    sealed = box.seal(Secret(text), user)
    assert SecretBox(KEY).unseal(sealed, user) == Secret(text)
    # A short text may be among random bytes by chance.
    assert len(text) < 4 or text.encode() not in sealed.ciphertext


def test_each_seal_has_its_nonce(box: SecretBox) -> None:
    sealed = [box.seal(Secret(TEXT), "shop") for _ in range(100)]
    assert len({one.nonce for one in sealed}) == 100
    assert len({one.ciphertext for one in sealed}) == 100


def test_another_key_is_told_as_such(box: SecretBox) -> None:
    sealed = box.seal(Secret(TEXT), "shop")
    other = SecretBox(OTHER_KEY)
    with pytest.raises(StoreUnusable, match=r"access\.key_file") as refused:
        other.unseal(sealed, "shop")
    assert refused.value.code == "access_key_wrong"
    assert refused.value.fields["sealed_under"] == box.key_id
    assert refused.value.fields["key_given"] == other.key_id
    # The id of a key is no part of it.
    assert box.key_id not in KEY.hex()


def test_a_secret_of_one_user_is_not_another_users(box: SecretBox) -> None:
    sealed = box.seal(Secret(TEXT), "admin")
    with pytest.raises(StoreCorrupt) as refused:
        box.unseal(sealed, "intruder")
    assert refused.value.code == "user_secret_damaged"


def test_every_changed_bit_is_noticed(box: SecretBox) -> None:
    sealed = box.seal(Secret(TEXT), "shop")
    for name in ("nonce", "ciphertext"):
        whole = getattr(sealed, name)
        for bit in range(len(whole) * 8):
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(StoreCorrupt):
                box.unseal(msgspec.structs.replace(sealed, **{name: bytes(changed)}), "shop")


def test_a_secret_is_shown_nowhere(box: SecretBox) -> None:
    secret = Secret(TEXT)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr([secret])):
        assert TEXT not in shown
    for refusing in (pickle.dumps, msgspec.json.encode, hash):
        with pytest.raises(TypeError) as refused:
            refusing(secret)
        assert TEXT not in str(refused.value)
    assert secret == Secret(TEXT)
    assert secret != Secret(TEXT.upper())
    assert secret != TEXT
    assert box.seal(secret, "shop").ciphertext.hex() not in repr(box.seal(secret, "shop"))


def test_a_key_comes_from_its_file_or_the_environment(tmp_path: Path, box: SecretBox) -> None:
    file = tmp_path / "access.key"
    file.write_text(KEY.hex() + "\n")
    file.chmod(0o600)
    environ = {ENV_KEY: OTHER_KEY.hex()}
    assert open_box(str(file), {}).key_id == box.key_id
    assert open_box(str(file), environ).key_id == box.key_id
    assert open_box("", environ).key_id == SecretBox(OTHER_KEY).key_id


def refusal(key_file: str, environ: dict[str, str]) -> EscrowError:
    with pytest.raises(RequestRefused) as refused:
        open_box(key_file, environ)
    return refused.value


def test_a_missing_key_says_how_to_make_one() -> None:
    error = refusal("", {})
    assert error.code == "access_key_missing"
    assert "openssl rand -hex 32" in str(error)
    assert ENV_KEY in str(error)


@pytest.mark.parametrize("text", ["", "ab" * 31, "ab" * 33, "zz" * 32, "ab" * 16 + " " + "ab" * 16])
def test_a_malformed_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "access.key"
    file.write_text(text)
    file.chmod(0o600)
    error = refusal(str(file), {})
    assert error.code == "access_key_malformed"
    assert not text or text not in str(error)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o777])
def test_a_key_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "access.key"
    file.write_text(KEY.hex())
    file.chmod(mode)
    error = refusal(str(file), {})
    assert error.code == "access_key_unsafe"
    assert error.fields["mode"] == f"{mode:03o}"
    assert "chmod 600" in str(error)
    assert KEY.hex() not in str(error)


def test_what_is_no_key_file_is_refused(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe, 0o600)
    large.write_bytes(bytes(2_000))
    large.chmod(0o600)
    for path in (tmp_path / "missing", tmp_path, pipe, large):
        assert refusal(str(path), {}).code == "access_key_unsafe"


def test_a_link_leads_to_the_file_that_is_checked(tmp_path: Path) -> None:
    file, link = tmp_path / "access.key", tmp_path / "link"
    file.write_text(KEY.hex())
    file.chmod(0o644)
    link.symlink_to(file)
    assert refusal(str(link), {}).code == "access_key_unsafe"
    file.chmod(0o400)
    assert open_box(str(link), {}).key_id == SecretBox(KEY).key_id


def test_made_secrets_differ_and_are_accepted_as_given_ones() -> None:
    made = {made_secret().reveal() for _ in range(100)}
    assert len(made) == 100
    for text in made:
        assert len(text) == 43
        assert checked_secret(text).reveal() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * (SECRET_CHARS_MIN - 1),
        "a" * (SECRET_CHARS_MAX + 1),
        "with a space",
        "line\nbreak",
        "schlüssel",
        "nul\x00char",
    ],
)
def test_a_given_secret_is_printable_and_neither_short_nor_long(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        checked_secret(text)
    assert refused.value.code == "secret_malformed"
    assert not text or text not in str(refused.value)


def test_a_sealed_secret_of_another_shape_is_refused() -> None:
    for key_id, nonce, ciphertext in [
        ("", bytes(12), bytes(16)),
        ("k", bytes(11), bytes(16)),
        ("k", bytes(12), bytes(15)),
        ("k", bytes(12), bytes(2_000)),
    ]:
        data = msgspec.msgpack.encode((key_id, nonce, ciphertext))
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(data, type=SealedSecret)
