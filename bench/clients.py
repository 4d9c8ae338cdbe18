"""Clients of a server, in a process of their own: each posts one text after the other, and measures its replies."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence


def translate_all(port: int, texts: Sequence[str], clients: int) -> dict[str, object]:
    """All texts, each client with one request at a time; -> the seconds in all, and the translations."""
    found, left, lock = [""] * len(texts), iter(range(len(texts))), threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        while True:
            with lock:
                index = next(left, None)
            if index is None:
                return
            found[index] = translate_one(connection, texts[index])

    start = time.perf_counter()
    together([client] * clients)
    return {"seconds": time.perf_counter() - start, "texts": found}


def translate_one(connection: http.client.HTTPConnection, text: str) -> str:
    """POST /translate until the server has room."""
    body = json.dumps({"q": text, "source": "source", "target": "target"})
    while True:
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = reply.read()
        if reply.status == 200:
            return str(json.loads(content)["translatedText"])
        if reply.status != 429:
            raise RuntimeError(f"{reply.status}: {content[:200]!r}")
        time.sleep(0.05)


def lone(port: int, texts: Sequence[str]) -> dict[str, object]:
    """One request at a time; -> the seconds of each."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", port, timeout=600), []
    for text in texts:
        start = time.perf_counter()
        translate_one(connection, text)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


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


def together(works: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, until all have ended."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    todo = {"all": translate_all, "lone": lone, "first": first_tokens}[asked.pop("do")]
    json.dump(todo(**asked), sys.stdout)
