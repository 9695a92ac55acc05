"""The HTTP server, asked by `requests` and by sockets: forms, errors, limits, slow clients, and versions that change under load."""

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import sys
import threading
import time

import numpy as np
import pytest
import requests
import serving_util
import tensorflow as tf
from test_serving_deltas import KEYS
from test_serving_deltas import Training

from tf_multitier import engine
from tf_multitier import serving
from tf_multitier.serving import rest
from tf_multitier.serving.model import Model

v1 = tf.compat.v1
WAIT = 120
IDS = [3, 99, 42]


def export(folder, tmp_path):
    """A SavedModel: serving_default (ids to tables and version), row (ids to a), text (words and weights to themselves), ..."""
    with tf.Graph().as_default(), v1.Session() as session:
        ids, outputs = serving_util.lookup_graph(tmp_path)
        words = v1.placeholder(tf.string, [None], "words")
        weights = v1.placeholder(tf.float32, [None], "weights")
        ints = v1.placeholder(tf.int32, [None], "ints")
        bytes_ = v1.placeholder(tf.uint8, [None], "bytes")
        halves = v1.placeholder(tf.bfloat16, [None], "halves")
        session.run(v1.global_variables_initializer())
        signatures = {
            "serving_default": ({"ids": ids}, outputs),
            "row": ({"ids": ids}, {"a": outputs["a"]}),
            "text": (
                {"words": words, "weights": weights},
                {"text": tf.identity(words), "raw_bytes": tf.identity(words), "twice": weights * 2},
            ),
            "complex": ({"weights": weights}, {"z": tf.cast(weights, tf.complex64)}),
            "first": ({"words": words}, {"word": words[0]}),
            "ones": ({"ints": ints}, {"ones": tf.ones(ints)}),
            "halves": ({"halves": halves}, {"halves": tf.identity(halves)}),
            "small": ({"ints": ints, "bytes": bytes_}, {"sum": ints + tf.cast(bytes_, tf.int32)}),
        }
        builder = v1.saved_model.Builder(str(folder))
        definitions = {
            name: v1.saved_model.predict_signature_def(*sides) for name, sides in signatures.items()
        }
        builder.add_meta_graph_and_variables(session, ["serve"], definitions)
        builder.save()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "click"
    export(folder / "7", folder)
    return folder


@pytest.fixture(scope="module")
def server(base):
    with serving.Server(base, port=0, max_body_bytes=1 << 20) as server:
        yield server


def url(server, rest=":predict"):
    return f"{server.address}/v1/models/click{rest}"


def ask(server, body, rest=":predict"):
    return requests.post(url(server, rest), json=body, timeout=WAIT)


def metric(server, name):
    page = requests.get(server.address + "/metrics", timeout=WAIT).text
    return float(re.search(rf"^tf_multitier_{re.escape(name)} (.*)$", page, re.MULTILINE)[1])


def until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "the condition never held"


def test_columns_and_rows_are_those_of_the_model(server, base):
    with serving.Model(base / "7") as model:
        expected = model.run({"ids": IDS})
    for body in ({"inputs": IDS}, {"inputs": {"ids": IDS}, "signature_name": ""}):
        outputs = ask(server, body, "/versions/7:predict").json()["outputs"]
        assert sorted(outputs) == ["a", "b", "version"]
        for name, value in expected.items():
            np.testing.assert_array_equal(np.array(outputs[name], np.float32), value)
    for instances in (IDS, [{"ids": key} for key in IDS]):
        found = ask(server, {"signature_name": "row", "instances": instances}).json()
        np.testing.assert_array_equal(np.float32(found["predictions"]), expected["a"])
    body = (
        b'{"signature_name": "text", "inputs": {"words": ["a", "b"], "weights": [Infinity, NaN]}}'
    )
    found = requests.post(url(server), data=body, timeout=WAIT).json()["outputs"]["twice"]
    assert found[0] == float("inf") and found[1] != found[1]
    found = ask(server, {"signature_name": "first", "inputs": ["ä", "b"]}).json()
    assert found == {"outputs": "ä"}
    raw = base64.b64encode(b"\xff").decode()
    rows = [{"words": "ä", "weights": 1}, {"words": {"b64": raw}, "weights": 0.5}]
    for words in (rows, rows[:1]):
        found = ask(server, {"signature_name": "text", "instances": words}).json()["predictions"]
        assert [row["twice"] for row in found] == [2 * row["weights"] for row in words]
        assert base64.b64decode(found[0]["raw_bytes"]["b64"]).decode() == "ä"
        # An output of bytes that are no text is all in base64.
        assert (found[0]["text"] == "ä") == (len(words) == 1)
        assert found[-1]["raw_bytes"]["b64"] == (raw if len(words) == 2 else "w6Q=")


def test_status_and_metadata(server, monkeypatch):
    def pin(*unused):
        raise AssertionError("the event loop is a user of the version")

    monkeypatch.setattr(Model, "pin", pin)
    assert metric(server, "version") == 7
    for rest_of_url in ("", "/versions/7"):
        [found] = requests.get(url(server, rest_of_url), timeout=WAIT).json()[
            "model_version_status"
        ]
        assert (found["version"], found["state"]) == ("7", "AVAILABLE")
    found = requests.get(url(server, "/metadata"), timeout=WAIT).json()
    assert found["model_spec"] == {"name": "click", "signature_name": "", "version": "7"}
    assert list(found["metadata"]["signature_def"]) == ["signature_def"]
    [shape] = found["metadata"]["signature_def"]["signature_def"]["row"]["inputs"].values()
    assert (shape["dtype"], shape["tensor_shape"]) == ("DT_INT64", {"dim": [{"size": "-1"}]})


WRONG = [
    (b"{", "body: expected JSON"),
    (b"\xff", "body: expected JSON"),
    (b"[" * 500_000, "nested too deep"),
    (b'{"inputs": ' + b"[" * 90 + b"]" * 90 + b"}", "uneven or too deep|shape"),
    (b"[]", "expected an object with either `instances` or `inputs`, found"),
    ({"inputs": 1, "instances": 1}, "found the keys"),
    (
        {"inputs": IDS, "signature_name": "rwo"},
        "expected one of .*row, serving_default, .*; found",
    ),
    ({"inputs": IDS, "signature_name": {}}, "signature_name: expected one of"),
    ({"inputs": {"id": IDS}}, "expected an object with ids; found"),
    ({"instances": 3}, "instances: expected a list, found 3"),
    ({"instances": [{"id": 3}]}, "instances\\[0\\]: expected an object with ids; found"),
    ({"instances": IDS}, "output 'version': expected 3 rows, found the shape \\[\\]"),
    (b'{"inputs": [3], "inputs": [99]}', "'inputs': expected it once, found it twice: leave one"),
    (
        b'{"inputs": {"words": ["a"], "weights": [1e400]}, "signature_name": "text"}',
        "'weights': expected numbers .*, found one that is too large, .*: write Infinity",
    ),
    ({"inputs": [1.5]}, r"'ids': expected integers \(int64\), found decimals"),
    ({"inputs": [True]}, "found booleans"),
    ({"inputs": [1, "a"]}, "found integers, strings"),
    ({"inputs": [None]}, "found null"),
    ({"inputs": [[1], [1, 2]]}, "found lists that are uneven"),
    ({"inputs": [2**63]}, "expected integers"),
    ({"inputs": [[1]]}, "shape"),
    (
        {"inputs": {"ints": [0, 2**32 + 5], "bytes": [1, 1]}, "signature_name": "small"},
        r"'ints': expected integers \(int32\) from -2147483648 to 2147483647, found 4294967301",
    ),
    (
        {"inputs": {"ints": [1], "bytes": [-1]}, "signature_name": "small"},
        r"'bytes': expected integers \(uint8\) from 0 to 255, found -1",
    ),
    (
        {"inputs": [1], "signature_name": "complex"},
        "output 'z': expected a type that JSON has, found complex64",
    ),
    (
        {"inputs": {"words": ["a"], "weights": [1, 1e39]}, "signature_name": "text"},
        r"'weights': expected numbers \(float32\) up to 3\.40.*e\+38, found 1e\+39",
    ),
    ({"inputs": [10**400], "signature_name": "halves"}, r"'halves': expected numbers \(bfloat16\)"),
    ({"inputs": {"words": [1], "weights": [1]}, "signature_name": "text"}, "'words': expected str"),
    (
        {"inputs": {"words": [{"b64": "?"}], "weights": [1]}, "signature_name": "text"},
        "base64}, found",
    ),
]


@pytest.mark.parametrize("body, message", WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_a_wrong_body_is_an_error_of_one_line(server, body, message):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = requests.post(url(server), data=data, timeout=WAIT)
    assert found.status_code == 400 and re.search(message, found.json()["error"])
    assert len(found.json()["error"]) < 1000


def test_unknown_paths_and_methods(server):
    for method, path, code in [
        ("GET", "/v1/models/clik", 404),
        ("POST", "/v1/models/click/versions/8:predict", 404),
        ("GET", "/v1/models/click/versions/8", 404),
        ("GET", "/v1/models/click:classify", 404),
        ("GET", "/", 404),
        ("GET", "/v1/models/click:predict", 405),
        ("POST", "/metrics", 405),
    ]:
        found = requests.request(method, server.address + path, data=b"{}", timeout=WAIT)
        assert (found.status_code, "expected" in found.json()["error"]) == (code, True), path


def connected(server):
    host, port = server.address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), WAIT)


def head(*lines):
    first = ("POST /v1/models/click:predict HTTP/1.1", "Host: a")
    return ("\r\n".join([*first, *lines]) + "\r\n\r\n").encode()


def test_a_body_that_is_too_large(server):
    with connected(server) as client:  # refused before it is sent
        client.sendall(head("Content-Length: 9999999999999"))
        assert b" 413 " in client.recv(100)
    with connected(server) as client:
        client.sendall(head("Transfer-Encoding: chunked"))
        for _ in range(17):
            client.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        assert b" 413 " in client.recv(100)
    found = requests.post(url(server), data=b" " * (8 << 20), timeout=WAIT)  # sent whole
    assert found.status_code == 413
    assert "at most 1048576 bytes (max_body_bytes), found 8388608" in found.json()["error"]


def test_an_answer_that_is_too_large(server):
    for rows, code in [(1 << 20, 200), ((1 << 20) + 1, 413)]:  # of one float32
        found = ask(server, {"signature_name": "ones", "inputs": [rows, 1]})
        assert found.status_code == code
    expected = "expected at most 4194304 bytes (max_answer_bytes), found 4194308"
    assert expected in found.json()["error"]
    found = ask(server, {"signature_name": "ones", "inputs": [(1 << 20) + 1, 0]})
    assert found.status_code == 413  # JSON writes a million empty rows


def test_an_answer_is_made_in_pieces(monkeypatch):
    sizes, dumps = [], json.dumps
    monkeypatch.setattr(rest, "_PIECE", 4)
    monkeypatch.setattr(json, "dumps", lambda value: sizes.append(np.size(value)) or dumps(value))
    for shape in [(), (0,), (3,), (10,), (5, 0), (10, 2), (3, 10), (2, 3, 10)]:
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        assert json.loads(rest._json_of(array)) == array.tolist()
    columns = {"a": np.arange(9), "b": np.arange(18).reshape(9, 2)}
    expected = [{"a": row, "b": [2 * row, 2 * row + 1]} for row in range(9)]
    assert json.loads(rest._json_of_rows(columns, 9)) == expected
    assert max(sizes) == 4


def test_a_body_with_two_lengths(server):
    with connected(server) as client:
        client.sendall(
            head("Content-Length: 2", "Transfer-Encoding: chunked") + b"2\r\n{}\r\n0\r\n\r\n"
        )
        answer = b"".join(iter(lambda: client.recv(1000), b""))  # to the end of the connection
        assert b" 400 " in answer and b"found both" in answer


def test_a_body_that_is_compressed(server):
    headers = {"Content-Encoding": "gzip"}
    found = requests.post(url(server), data=b"\x1f\x8b", headers=headers, timeout=WAIT)
    assert found.status_code == 415 and "found 'gzip': send the body as" in found.json()["error"]


def test_a_client_that_ends_its_side_gets_the_answer(server):
    body = b'{"inputs": [3]}'
    for request, code in [(head(f"Content-Length: {len(body)}") + body, b" 200 "), (b"GET", b"")]:
        with connected(server) as client:
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(1000), b""))
            assert code in answer and bool(answer) == bool(code)


def test_connections_above_the_limit_are_closed(base):
    with serving.Server(base, port=0, max_connections=2) as server, requests.Session() as session:
        page = lambda: session.get(server.address + "/metrics", timeout=WAIT).text
        assert "refused_connections_total 0" in page()
        with connected(server):
            assert "refused_connections_total 0" in page()
            for _ in range(3):
                with connected(server) as refused, contextlib.suppress(ConnectionResetError):
                    assert refused.recv(1) == b""
            assert "refused_connections_total 3" in page()


def test_slow_clients_are_disconnected_and_block_none(base):
    with serving.Server(base, port=0, threads=1, queue=0, timeout=2.0) as server:
        begun = head("Content-Length: 20")
        silent, heads, bodies = [], [], []
        for clients, sent in [(silent, b""), (heads, begun[:-2]), (bodies, begun + b"{")] * 20:
            clients.append(connected(server))
            clients[-1].sendall(sent)
        assert ask(server, {"inputs": IDS}).status_code == 200
        assert all(client.recv(100) == b"" for client in silent + heads)
        assert all(b" 408 " in client.recv(100) for client in bodies)
        for client in silent + heads + bodies:
            client.close()


def test_a_full_queue_refuses_and_metrics_say_so(base, monkeypatch):
    released, original = threading.Event(), rest.predict

    def blocked(*arguments):
        assert released.wait(WAIT)
        return original(*arguments)

    monkeypatch.setattr(rest, "predict", blocked)
    codes = []
    with serving.Server(base, port=0, threads=1, queue=1) as server:
        threads = [
            threading.Thread(target=lambda: codes.append(ask(server, {"inputs": IDS}).status_code))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        until(lambda: metric(server, "queue") == 1)
        found = ask(server, {"inputs": IDS})
        assert found.status_code == 503 and "at most 2 requests" in found.json()["error"]
        released.set()
        for thread in threads:
            thread.join(WAIT)
        assert codes == [200, 200]
        assert metric(server, 'requests_total{code="503"}') == 1
        assert metric(server, "predict_seconds_count") == 2
        assert metric(server, 'predict_seconds_bucket{le="+Inf"}') == 2
        assert (metric(server, "queue"), metric(server, "running")) == (0, 0)


class Asking:
    """Eight threads that ask, and check that each answer is of one version.

    Attributes:
      seen: the versions of the answers to requests that began since it was set.
    """

    def __init__(self, server, training):
        self.server, self.training = server, training
        self.seen, self.error, self.ended = set(), None, False
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(8)]

    def run(self, seed):
        random = np.random.default_rng(seed)
        try:
            with requests.Session() as session:
                while not self.ended:
                    seen = self.seen
                    ids = random.integers(0, KEYS, 20)
                    body = {"inputs": ids.tolist()}
                    found = session.post(url(self.server), json=body, timeout=WAIT)
                    assert found.status_code == 200, found.text
                    version = self.training.check(found.json()["outputs"], ids)
                    with self.changed:
                        seen.add(version)
                        self.changed.notify()
        except BaseException as error:
            with self.changed:
                self.error = error
                self.changed.notify()
            raise

    def wait(self, version):
        with self.changed:
            assert self.changed.wait_for(lambda: version in self.seen or self.error, WAIT)
        assert self.error is None

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *unused):
        self.ended = True
        for thread in self.threads:
            thread.join()


def test_versions_and_deltas_change_under_load_and_damaged_ones_are_left_out(tmp_path):
    base = tmp_path / "click"
    with tf.Graph().as_default():
        training = Training(tmp_path)
        saved = training.save()
        shutil.copytree(training.model(), base / "1")
        with (
            serving.Server(base, port=0, poll_seconds=0.01) as server,
            Asking(server, training) as asking,
        ):
            asking.wait(1)
            os.mkdir(tmp_path / "rows")
            serving.freeze(saved, tmp_path / "rows" / "model")
            os.rename(tmp_path / "rows", base / "1" / "rows")
            rows = str(base / "1" / "rows" / "model")
            for version in (2, 3):
                serving.freeze_delta(training.save(), rows)
                asking.wait(version)
            # Version 2: the graph's own variables, which are those of version 1, are never served.
            shutil.copytree(base / "1", tmp_path / "2")
            serving.freeze_delta(training.save(), tmp_path / "2" / "rows" / "model")
            asking.seen = set()
            os.rename(tmp_path / "2", base / "2")
            asking.wait(4)
            assert asking.seen <= {3, 4}
            shutil.copytree(base / "2", tmp_path / "3")
            files = [os.path.join(path, n) for path, _, ns in os.walk(tmp_path / "3") for n in ns]
            os.truncate(max(files, key=os.path.getsize), 10)
            os.rename(tmp_path / "3", base / "3")
            until(lambda: len(status(server)) == 2)
            states = status(server)
            assert states["3"][0] == "END" and states["3"][1]
            assert states["2"] == ("AVAILABLE", "")
            asking.seen = set()
            asking.wait(4)
            assert metric(server, "reload_failures_total") == 1 and metric(server, "version") == 2
            shutil.rmtree(base / "3")
            shutil.copytree(base / "2", tmp_path / "3")
            os.rename(tmp_path / "3", base / "3")
            until(lambda: metric(server, "version") == 3)
            assert list(status(server)) == ["3"]
        training.session.close()


def status(server):
    found = requests.get(url(server, ""), timeout=WAIT).json()["model_version_status"]
    return {each["version"]: (each["state"], each["status"]["error_message"]) for each in found}


def test_what_cannot_start_says_why(tmp_path, base, server, monkeypatch):
    with pytest.raises(engine.NotFoundError, match="expected folders such as 1/ .*, found none"):
        serving.Server(tmp_path, port=0)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:\d+: Address already in use"):
        serving.Server(base, port=int(server.address.rpartition(":")[2]))
    for options, message in [
        ({"threads": 0}, "threads: expected at least 1, found 0"),
        ({"timeout": float("nan")}, "timeout: expected at least"),
        ({"host": ""}, "host: expected an address, found none: 0.0.0.0 answers all"),
        ({"port": 1 << 16}, "port: expected 0 to 65535, found 65536"),
        ({"name": "a/b"}, "name: expected one without"),
    ]:
        with pytest.raises(ValueError, match=message):
            serving.Server(base, **options)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ImportError, match=r"pip install tf_multitier\[serving\]"):
        serving.Server(base, port=0)
