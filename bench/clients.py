"""Clients of a server, in a process of their own: each posts one text after the other over a connection of its own.

All are in one thread and do little, since they share the machine's cores with the server.
"""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence

_READ = 65_536  # bytes


def translate_all(port: int, texts: Sequence[str], clients: int) -> dict[str, object]:
    """All texts, each client with one request at a time; -> the seconds, those of the clients' processor, the texts."""
    requests = [_post({"q": text, "source": "source", "target": "target"}) for text in texts]
    waiting, replies = list(range(len(texts)))[::-1], [b""] * len(texts)
    selector, asked = selectors.DefaultSelector(), dict[socket.socket, int]()
    processor, start = time.process_time(), time.perf_counter()
    for _ in range(min(clients, len(texts))):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        asked[connection] = waiting.pop()
        connection.sendall(requests[asked[connection]])
    while asked:
        for key, _ in selector.select():
            connection, index = key.fileobj, asked[key.fileobj]  # type: ignore[index, assignment]
            if not (received := connection.recv(_READ)):
                raise RuntimeError(f"the server closed the connection of request {index:,}")
            replies[index] += received
            if not _complete(replies[index]):
                continue
            if replies[index].startswith(b"HTTP/1.1 429 "):
                time.sleep(0.05)
                waiting.append(index)
                replies[index] = b""
            if waiting:
                asked[connection] = waiting.pop()
                connection.sendall(requests[asked[connection]])
            else:
                selector.unregister(connection)
                connection.close()
                del asked[connection]
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return {"seconds": seconds, "processor": processor, "texts": [_translated(reply) for reply in replies]}


def _post(body: object) -> bytes:
    """POST /translate."""
    content = json.dumps(body).encode()
    fields = "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {len(content)}"
    return "\r\n".join(["POST /translate HTTP/1.1", *fields, "", ""]).encode() + content


def _complete(reply: bytes) -> bool:
    """Whether a reply has as many bytes as its head says."""
    head, end, body = reply.partition(b"\r\n\r\n")
    return bool(end) and len(body) >= int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])


def _translated(reply: bytes) -> str:
    head, _, body = reply.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"{head[:40]!r}: {body[:200]!r}")
    return str(json.loads(body)["translatedText"])


def first_tokens(port: int, texts: Sequence[str]) -> dict[str, object]:
    """Streams of greedy search, one at a time; -> the seconds until the first event and until the end of each."""
    first, whole = [], []
    for text in texts:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        asked = {"model": "served", "prompt": text, "stream": True, "temperature": 0, "beam": 1, "max_tokens": 64}
        body = json.dumps(asked)
        start = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        line = reply.readline()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {line[:200]!r}")
        first.append(time.perf_counter() - start)
        reply.read()
        whole.append(time.perf_counter() - start)
        connection.close()
    return {"first": first, "whole": whole}


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    todo: dict[str, Callable[..., dict[str, object]]] = {"all": translate_all, "first": first_tokens}
    json.dump(todo[asked.pop("do")](**asked), sys.stdout)
