"""Whatever a host sends to the calls for bundles, the board answers with an error and keeps what runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_runtime.protocol import ProtocolError
from device_runtime.server import bundle_calls
from device_runtime.server.serving import make_context
from tests.bundles import small_model, write_bundle
from toolkit.bundle import sign, verify

PARAMETERS = (
    "id", "verify", "signer", "line", "manifest", "signature", "target", "timeout_s", "expected_current",
    "reason", "inputs", "repeat", "board", "permission",
)  # fmt: skip


class Installed:
    """A device directory with one committed bundle."""

    def __init__(self, folder: Path) -> None:
        self.context = make_context(str(folder / "device"), -1)
        key = sign.open_key(folder / "signing_key")
        bundle = verify.open_bundle(write_bundle(folder, key, small_model()), [key.public])
        put = self.context.store.add
        for part in bundle.manifest.parts:
            put(bundle.read_part(part.path))
        self.manifest, self.signature = put(bundle.manifest_bytes), put(bundle.signature)
        self.id = bundle.id
        line = key.public.allowed_signers_line
        self.call("trust", signer=key.public.line, line=line)
        self.call("install", manifest=self.manifest, signature=self.signature, board="host", permission="")
        installed = bundle_calls.Slots(self.context.device_dir)
        with installed.locked():
            installed.tested(self.id, None)
        self.call("activate", id=self.id)
        self.call("commit", id=self.id)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return bundle_calls.METHODS[method].handler(self.context, params, []).result


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Signatures are checked in Python alone: ssh-keygen, which is asked after it, only ever refuses more."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", "")
        yield Installed(tmp_path_factory.mktemp("board"))


def _values(installed: Installed) -> st.SearchStrategy[Any]:
    known = (installed.id, installed.manifest, installed.signature, "", "0" * 64, "../..", "f" * 32, 0.01, 1)
    plain = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=40)
        | st.binary(max_size=40)
    )
    nested = st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=5), plain, max_size=2)
    return st.sampled_from(known) | plain | nested


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nonsense_is_refused_and_changes_nothing(installed: Installed, data: st.DataObject) -> None:
    method = data.draw(
        st.sampled_from(sorted(set(bundle_calls.METHODS) - {"self_test", "health_check", "run"}))
    )
    chosen = st.dictionaries(st.sampled_from(PARAMETERS), _values(installed), max_size=6)
    try:
        installed.call(method, **data.draw(chosen))
    except ProtocolError as error:
        assert error.text
    status = installed.call("slots", verify=installed.id)
    assert status["current"] == status["committed"] == installed.id
    assert status["whole"]


@pytest.mark.parametrize("method", sorted(bundle_calls.METHODS))
def test_missing_parameters_are_named(installed: Installed, method: str) -> None:
    with pytest.raises(ProtocolError, match="'[a-z_]+': expected .* found None"):
        installed.call(method)
