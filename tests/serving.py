"""The server under load: right answers to many clients, dropped and slow clients, stopping, replaced files, a soak."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import regard
from regard.api import LoadedModel
from regard.decode.options import Options
from regard.models import zoo
from tests.small import TEXTS, save_model, small

WORDS = sorted({word for text in TEXTS for word in text.split()})
CLOSE = 1e-4  # two answers whose log-probabilities differ by less are both right
NEW_TOKENS = 24
LONG = 400  # tokens of an answer that its client does not wait for

Answer = Callable[[dict[str, Any]], str | None]
"""A reply -> what is wrong with it, or None."""


@dataclass(frozen=True)
class Question:
    """A request whose right answer is known."""

    path: str
    body: dict[str, Any]
    check: Answer
    stream: bool = False


class Server:
    """A `regard serve` process of its own."""

    def __init__(self, folders: dict[str, Path], *options: str) -> None:
        named = [f"{name}={folder}" for name, folder in folders.items()]
        command = [sys.executable, "-m", "regard", "serve", *named, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                return
        raise AssertionError("the server did not start")

    @property
    def processes(self) -> list[int]:
        """Its process, and those in which it decodes."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout
        return [self.process.pid, *map(int, found.split())]

    @property
    def memory(self) -> int:
        """Bytes in memory of all its processes: what they share is counted once, and files that are mapped as well."""
        anonymous = [_kibibytes(f"/proc/{one}/smaps_rollup", "Pss_Anon") for one in self.processes]
        return (sum(anonymous) + _kibibytes(f"/proc/{self.process.pid}/status", "RssFile")) * 1024

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def stop(self) -> int:
        """End it with SIGTERM; -> the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def _kibibytes(path: str, name: str) -> int:
    """A number of a file of /proc."""
    return int(re.findall(rf"^{name}:\s+(\d+)", Path(path).read_text(), re.MULTILINE)[0])


@contextmanager
def serving(folders: dict[str, Path], *options: str) -> Iterator[Server]:
    """A server for as long as the block lasts."""
    server = Server(folders, *options)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


def http(method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """The bytes of a request."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data


async def ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str, str]:
    """-> the status, the header lines and the body of the reply."""
    async with connected(port) as (reader, writer):
        writer.write(http(method, path, body))
        await writer.drain()
        reply = await reader.read()
    start, _, data = reply.partition(b"\r\n\r\n")
    head = start.decode()
    if "transfer-encoding: chunked" in head.lower():
        data = _unchunked(data)
    return int(head.split(" ", 2)[1]), head, data.decode()


def _unchunked(data: bytes) -> bytes:
    """The bytes that chunks hold."""
    parts, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(parts)


def joined_stream(text: str) -> dict[str, Any]:
    """The reply that the events of a stream add up to."""
    events = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    if not events or events[-1].strip() != "[DONE]":
        raise ValueError("the stream broke off")
    chunks = [json.loads(event) for event in events[:-1]]
    found = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    return {"choices": [{"text": found}]}


def make_models(folder: Path) -> dict[str, Path]:
    """One small model of each kind that the server treats differently."""
    models = {
        "translator": zoo.transformer(32, 2, 4),
        "recurrent": zoo.bahdanau(32),
        "writer": zoo.gpt2(32, 2, 4),
        "masked": zoo.bert(32, 2, 4),
    }
    return {name: save_model(folder / name, small(description)) for name, description in models.items()}


def questions(folders: dict[str, Path], chance: random.Random, each: int) -> list[Question]:
    """Requests of every kind and of different lengths, with the answers of each model alone."""
    models = {name: regard.load(folder, device="cpu") for name, folder in folders.items()}
    found: list[Question] = []
    for _ in range(each):
        text = " ".join(chance.choices(WORDS, k=chance.choice([1, 3, 8, 20, 40])))
        for name in ("translator", "recurrent"):
            found.append(_translation(name, models[name], text))
        found += [_continuation(models["writer"], text, stream, seed) for stream in (False, True) for seed in (None, 7)]
        found += [_embedding(models["masked"], text), _filled(models["masked"], text), _scored(models["writer"], text)]
    return found


def _translation(name: str, model: LoadedModel, text: str) -> Question:
    right = model.translations([text])[0][0]

    def check(reply: dict[str, Any]) -> str | None:
        given = reply["translatedText"]
        return None if given == right.text or _as_likely(model, text, given, right.text) else f"{given!r} for {text!r}"

    return Question("/translate", {"q": text, "source": "auto", "target": "target", "model": name}, check)


def _as_likely(model: LoadedModel, text: str, given: str, right: str) -> bool:
    both = model.score([text, text], [given, right])
    return abs(both[0] - both[1]) < CLOSE


def _continuation(model: LoadedModel, text: str, stream: bool, seed: int | None) -> Question:
    sampling = Options(temperature=0.0 if seed is None else 1.0, seed=seed or 0, max_tokens=NEW_TOKENS)
    prompt = model.tokenizer.decode(model.tokenizer.encode(text))
    right = model.continuations([text], sampling.with_tokens_of(model.defaults()))[0][0].text.removeprefix(prompt)
    body = {"model": "writer", "prompt": text, "max_tokens": NEW_TOKENS, "temperature": sampling.temperature}
    body |= {"stream": stream} | ({} if seed is None else {"seed": seed})

    def check(reply: dict[str, Any]) -> str | None:
        given = reply["choices"][0]["text"]
        return None if given.strip() == right.strip() else f"{given!r}, not {right!r}, for {text!r}"

    return Question("/v1/completions", body, check, stream)


def _embedding(model: LoadedModel, text: str) -> Question:
    right = model.embed([text])[0].tolist()

    def check(reply: dict[str, Any]) -> str | None:
        given = reply["data"][0]["embedding"]
        far = max(abs(a - b) for a, b in zip(given, right, strict=True))
        return None if far < CLOSE else f"off by {far}"

    return Question("/v1/embeddings", {"model": "masked", "input": text}, check)


def _filled(model: LoadedModel, text: str) -> Question:
    masked = " ".join(["[MASK]", *text.split()[1:]])
    right = model.fill(masked)

    def check(reply: dict[str, Any]) -> str | None:
        given = reply["data"][0]["masks"][0][0]["probability"]
        return None if abs(given - right.masks[0][0].probability) < CLOSE else f"{given} for {masked!r}"

    return Question("/v1/fill", {"model": "masked", "input": masked}, check)


def _scored(model: LoadedModel, text: str) -> Question:
    right = model.score([text])[0]

    def check(reply: dict[str, Any]) -> str | None:
        given = reply["data"][0]["score"]
        return None if abs(given - right) < CLOSE * (1 + abs(right)) else f"{given}, not {right}, for {text!r}"

    return Question("/v1/score", {"model": "writer", "input": text}, check)


class Tally:
    """What the clients met."""

    def __init__(self) -> None:
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.without_retry_after = 0
        self.seconds: list[float] = []

    def show_wrong(self) -> None:
        """Print the first few wrong answers."""
        for wrong in self.wrong[:5]:
            print("  wrong:", wrong)

    def percentile(self, share: float) -> float:
        """The time within which this share of the accepted requests was answered."""
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))] if self.seconds else 0.0


async def client(
    port: int, known: list[Question], until: float, tally: Tally, seed: int, *, pause: float = 0.0, idle: float = 0.0
) -> None:
    """Ask one question after another until the time is up; idle for some seconds, or for a share of each turn."""
    chance = random.Random(seed)
    while time.monotonic() < until:
        question, began = chance.choice(known), time.monotonic()
        status, head, text = await ask(port, "POST", question.path, question.body)
        tally.statuses[status] += 1
        if status == 200:
            tally.seconds.append(time.monotonic() - began)
            wrong = question.check(joined_stream(text) if question.stream else json.loads(text))
            tally.wrong += [] if wrong is None else [f"{question.path}: {wrong}"]
        elif status in (429, 503):
            retry = re.search(r"retry-after: (\d+)", head.lower())
            tally.without_retry_after += retry is None
            await asyncio.sleep(chance.uniform(0.1, 1.0))
        else:
            tally.wrong.append(f"{question.path}: status {status}: {text[:200]}")
        rest = pause + (time.monotonic() - began) * idle / (1 - idle)
        if rest:
            await asyncio.sleep(chance.uniform(0, 2 * rest))


async def many_clients(folders: dict[str, Path], clients: int, seconds: float, seed: int) -> bool:
    """Many clients at once: every answer is that of the model alone, and memory does not grow."""
    known = questions(folders, random.Random(seed), each=12)
    with serving(folders) as server:
        await asyncio.gather(*(ask(server.port, "POST", one.path, one.body) for one in known[:10]))
        tally, until = Tally(), time.monotonic() + seconds
        running = [client(server.port, known, until, tally, seed + number) for number in range(clients)]

        async def remember() -> int:
            await asyncio.sleep(min(10.0, seconds / 3))
            return server.memory

        early, *_ = await asyncio.gather(remember(), *running)
        late = server.memory
    failed = sum(count for status, count in tally.statuses.items() if status >= 500 and status != 503)
    print(f"{clients} clients, {seconds:.0f} s, seed {seed}: {dict(tally.statuses)}, {len(tally.wrong)} wrong, "
          f"{failed} failed, {tally.without_retry_after} without Retry-After; median {tally.percentile(0.5):.2f} s, "
          f"p99 {tally.percentile(0.99):.2f} s; memory {early >> 20} MiB, then {late >> 20} MiB")  # fmt: skip
    tally.show_wrong()
    return not tally.wrong and not failed and not tally.without_retry_after and late <= 1.05 * early


async def steps_run(port: int) -> float:
    """The decoding steps that all models have run so far."""
    _, _, text = await ask(port, "GET", "/metrics")
    return sum(float(value) for value in re.findall(r"^regard_steps_total\{[^}]*\} (\S+)$", text, re.MULTILINE))


async def dropped(folders: dict[str, Path], requests: int, seed: int) -> bool:
    """Requests whose clients go away: their rows leave the search, and the next answer comes at once."""
    long = {"model": "writer", "prompt": "The cat", "max_tokens": LONG, "temperature": 1.0, "logit_bias": {}}
    with serving(folders, "--max-waiting", str(requests)) as server:
        await ask(server.port, "POST", "/v1/completions", {**long, "max_tokens": 2})

        async def drop(stream: bool, number: int) -> None:
            async with connected(server.port) as (_, writer):
                writer.write(http("POST", "/v1/completions", {**long, "stream": stream, "seed": seed + number}))
                await writer.drain()
                await asyncio.sleep(0.5)

        await asyncio.gather(*(drop(bool(number % 2), number) for number in range(requests)))
        began = time.monotonic()
        before = await steps_run(server.port)
        status, _, _ = await ask(server.port, "POST", "/v1/completions", {**long, "max_tokens": 2})
        waited = time.monotonic() - began
        await asyncio.sleep(2)
        further = await steps_run(server.port) - before
    print(f"{requests} dropped requests: the next answer ({status}) after {waited:.2f} s, {further:.0f} further steps")
    return status == 200 and waited <= 2 and further <= 2 * requests


async def stopping(folders: dict[str, Path], times: int, in_flight: int) -> bool:
    """SIGTERM with requests in flight: all are answered, the exit code is 0, and no process is left."""
    good = 0
    for _ in range(times):
        with serving(folders) as server:
            body = {"model": "writer", "prompt": "The cat", "max_tokens": 100, "temperature": 0.0}
            asked = [
                asyncio.create_task(ask(server.port, "POST", "/v1/completions", body)) for _ in range(in_flight)
            ]  # fmt: skip
            await asyncio.sleep(0.3)
            processes = server.processes
            server.process.send_signal(signal.SIGTERM)
            replies = await asyncio.gather(*asked, return_exceptions=True)
            code = await asyncio.to_thread(server.process.wait, 60)
            answered = sum(not isinstance(reply, BaseException) and reply[0] == 200 for reply in replies)
            left = [one for one in processes[1:] if Path(f"/proc/{one}").exists()]
            good += code == 0 and answered == in_flight and not left
    print(f"SIGTERM with {in_flight} requests in flight: {good} of {times} answered all and ended with 0")
    return good == times


async def slow_clients(folders: dict[str, Path], each: int, seconds: float, seed: int) -> bool:
    """Clients that send or read a byte per second do not hold up the others, and are cut off."""
    known = [one for one in questions(folders, random.Random(seed), each=4) if one.path == "/translate"]
    with serving(folders) as server:
        base, loaded = Tally(), Tally()
        until = time.monotonic() + seconds
        await asyncio.gather(*(client(server.port, known, until, base, seed + n, pause=0.05) for n in range(4)))
        before, closed = server.memory, 0
        over = asyncio.Event()

        async def send_slowly(number: int) -> None:
            nonlocal closed
            data = http("POST", "/translate", {"q": "The cat", "source": "auto", "target": "target"})
            data = data if number % 2 else data[:-20]
            async with connected(server.port) as (reader, writer):
                for byte in data:
                    writer.write(bytes([byte]))
                    try:
                        await writer.drain()
                        if await asyncio.wait_for(reader.read(1), 1.0) is not None:
                            closed += 1
                            return
                    except TimeoutError:
                        continue
                    except ConnectionError:
                        closed += 1
                        return

        async def read_slowly() -> None:
            body = {"model": "writer", "prompt": "The cat", "max_tokens": LONG, "stream": True, "logprobs": 5}
            async with connected(server.port) as (reader, writer):
                writer.write(http("POST", "/v1/completions", body))
                while not over.is_set() and await reader.read(1):
                    await asyncio.sleep(1.0)

        tasks = [asyncio.create_task(send_slowly(number)) for number in range(each)]
        tasks += [asyncio.create_task(read_slowly()) for _ in range(each)]
        await asyncio.sleep(1)
        until = time.monotonic() + max(seconds, 35.0)
        await asyncio.gather(*(client(server.port, known, until, loaded, seed + n, pause=0.05) for n in range(4)))
        grown = server.memory - before
        over.set()
        await asyncio.sleep(1.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    ratio = loaded.percentile(0.99) / base.percentile(0.99)
    print(f"{each} slow senders ({closed} cut off within {max(seconds, 35.0):.0f} s), {each} slow readers: p99 of "
          f"others {base.percentile(0.99):.3f} -> {loaded.percentile(0.99):.3f} s ({ratio:.2f}), memory "
          f"+{grown >> 20} MiB, {len(base.wrong) + len(loaded.wrong)} wrong")  # fmt: skip
    return not loaded.wrong and closed == each and ratio <= 2 and grown <= each << 20


async def replaced(folders: dict[str, Path], folder: Path, seed: int) -> bool:
    """Weights copied over, cut short and deleted while serving change no answer."""
    copies = {name: Path(shutil.copytree(path, folder / f"{name}-copy")) for name, path in folders.items()}
    known = questions(folders, random.Random(seed), each=2)
    with serving(copies) as server:
        tally = Tally()
        for damage in ("copied", "cut", "deleted"):
            for path in copies.values():
                weights = path / "model.safetensors"
                if damage == "copied":
                    weights.write_bytes(bytes(weights.stat().st_size))
                elif damage == "cut":
                    os.truncate(weights, 10)
                else:
                    weights.unlink()
            until = time.monotonic() + 3
            await client(server.port, known, until, tally, seed)
        alive = server.process.poll() is None
    print(f"weights replaced while serving: {tally.statuses[200]} answers, {len(tally.wrong)} wrong, alive: {alive}")
    tally.show_wrong()
    return alive and not tally.wrong


async def gauges(port: int) -> dict[str, float]:
    """What waits, what runs, and the tasks of the event loop."""
    _, _, text = await ask(port, "GET", "/metrics")
    found = re.findall(r"^regard_(waiting|running|tasks)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE)
    return {name: sum(float(value) for one, value in found if one == name) for name, _ in found}


async def soak(folders: dict[str, Path], minutes: float, seed: int) -> bool:
    """Long load at about 80 % of what the server can do: memory, files and tasks stay as they were.

    Each client is idle for a fifth of its time, however fast the machine is at the moment.
    """
    known = questions(folders, random.Random(seed), each=12)
    with serving(folders) as server:
        warm, tally, clients = Tally(), Tally(), 4
        await asyncio.gather(*(client(server.port, known, time.monotonic() + 10, warm, n) for n in range(clients)))
        await asyncio.sleep(6)  # kept connections have ended
        files, threads, before = server.descriptors, server.threads, await gauges(server.port)
        samples, began, until = list[tuple[float, int]](), time.monotonic(), time.monotonic() + 60 * minutes

        async def watch() -> None:
            while time.monotonic() < until:
                samples.append(((time.monotonic() - began) / 60, server.memory))
                await asyncio.sleep(5)

        await asyncio.gather(
            watch(), *(client(server.port, known, until, tally, seed + n, idle=0.2) for n in range(clients))
        )
        await asyncio.sleep(6)
        left, later, after = server.descriptors, server.threads, await gauges(server.port)
    late = [(minute, memory) for minute, memory in samples if minute >= min(5.0, minutes / 2)]
    middle = sum(minute for minute, _ in late) / len(late)
    mean = sum(memory for _, memory in late) / len(late)
    slope = sum((m - middle) * (size - mean) for m, size in late) / max(1e-9, sum((m - middle) ** 2 for m, _ in late))
    print(f"soak of {minutes:g} minutes: {dict(tally.statuses)}, {warm.statuses[200] / 10:.1f} answers per second at "
          f"full load, then {tally.statuses[200] / 60 / minutes:.1f}; {len(tally.wrong)} wrong, memory "
          f"{slope / 2**20:+.2f} MiB per minute "
          f"({late[0][1] >> 20} -> {late[-1][1] >> 20} MiB), files {files} -> {left}, threads {threads} -> "
          f"{later}, {before} -> {after}")  # fmt: skip
    tally.show_wrong()
    return not tally.wrong and slope <= 2**20 and abs(left - files) <= 2 and after == before


def main() -> None:
    """Run the parts of the storm that are named, or all."""
    parts = ("clients", "dropped", "stopping", "slow", "replaced", "soak")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=parts, help=f"which: {', '.join(parts)}")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, seed {given.seed}")
    with tempfile.TemporaryDirectory() as name:
        folders = make_models(Path(name))
        runs = {
            "clients": lambda: many_clients(folders, given.clients, given.seconds, given.seed),
            "dropped": lambda: dropped(folders, given.clients, given.seed),
            "stopping": lambda: stopping(folders, times=20, in_flight=20),
            "slow": lambda: slow_clients(folders, each=given.clients // 2, seconds=given.seconds / 3, seed=given.seed),
            "replaced": lambda: replaced(folders, Path(name), given.seed),
            "soak": lambda: soak(folders, given.minutes, given.seed),
        }
        failed = [part for part in given.parts if not asyncio.run(runs[part]())]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
