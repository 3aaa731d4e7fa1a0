"""A subscriber in Python, as an accounting service would be: grpcio, with nothing but the node's reflection.

usage: lifecycle_client.py GRPC HTTP,HTTP,HTTP MODEL

It subscribes to the whole mesh through one node, sends 50 mixed requests to all nodes (streamed, not streamed,
cancelled at random, too long, refused), and proves that what was told is what the clients got. Prints one JSON object
with its findings.
"""

import asyncio
import json
import random
import sys
import urllib.error
import urllib.request
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

REQUESTS = 50
TERMINALS = {"finished", "aborted", "rejected"}


class Stubs:
    """Messages and methods of a service, from reflection alone."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address)
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))
        self.service = self.pool.FindServiceByName("mesh.v1.LifecycleService")

    def message(self, name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"mesh.v1.{name}"))

    def method(self, name):
        method = self.service.methods_by_name[name]
        answer = message_factory.GetMessageClass(method.output_type)
        kind = self.channel.unary_stream if name == "Subscribe" else self.channel.unary_unary
        return kind(
            f"/mesh.v1.LifecycleService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )


class Subscriber:
    """Keeps what one subscription tells, in a thread of its own."""

    def __init__(self, stubs):
        request = stubs.message("SubscribeRequest")(include_token_ids=True, include_text=True)
        request.scope = request.DESCRIPTOR.fields_by_name["scope"].enum_type.values_by_name["SCOPE_MESH"].number
        self.events = defaultdict(list)
        self.nodes = {}
        self.problems = []
        self.snapshots = set()
        self.call = stubs.method("Subscribe")(request)

    def read(self):
        try:
            for notice in self.call:
                self.see(notice)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                self.problems.append(f"the subscription ended: {error}")

    def see(self, notice):
        what = notice.WhichOneof("response")
        if what == "snapshot":
            self.nodes[notice.snapshot.position.node] = notice.snapshot.position.sequence
            self.snapshots.add(notice.snapshot.position.node)
        elif what == "event":
            event = notice.event
            expected = self.nodes[event.node] + 1
            if event.node_sequence != expected:
                self.problems.append(f"node {event.node}: {event.node_sequence} instead of {expected}")
            self.nodes[event.node] = event.node_sequence
            self.events[event.request_id].append(event)
        elif what != "heartbeat":
            self.problems.append(f"unexpected {what}: {notice}")

    def ended(self, request_id):
        events = self.events.get(request_id, [])
        return bool(events) and events[-1].WhichOneof("kind") in TERMINALS


def check(events):
    """The invariants of one request; yields what is broken."""
    total, text, kinds = 0, "", [event.WhichOneof("kind") for event in events]
    if [event.sequence for event in events] != list(range(1, len(events) + 1)):
        yield "sequences have gaps"
    if [kind in TERMINALS for kind in kinds] != [False] * (len(kinds) - 1) + [True]:
        yield f"not exactly one terminal, at the end: {kinds}"
    order = [kind for kind in kinds if kind != "committed"]
    if order not in (
        ["queued", "started", "prefilled", "finished"],
        ["queued", "started", "prefilled", "aborted"],
        ["queued", "started", "aborted"],
        ["queued", "aborted"],
        ["queued", "rejected"],
    ):
        yield f"out of order: {kinds}"
    for event in events:
        if event.WhichOneof("kind") == "committed":
            total += event.committed.count
            text += event.committed.text
            if event.committed.total != total or len(event.committed.token_ids) != event.committed.count:
                yield f"a wrong commit: {event}"
    last = events[-1]
    if kinds[-1] == "finished":
        ids = [i for event in events for i in event.committed.token_ids]
        if last.finished.completion_tokens != total or list(last.finished.receipt.token_ids) != ids:
            yield "the receipt is not what was told"


def send(url, model, index, ids):
    """One request of the mix. Gives its kind, its id, its text, and whether the answer was complete."""
    generator = random.Random(index)
    kind = ["whole", "streamed", "cancelled", "too long", "refused"][index % 5]
    request_id = str(uuid.UUID(int=generator.getrandbits(128), version=4))
    ids.append(request_id)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about verse {index}."}],
        "max_tokens": generator.randint(3, 40),
        "seed": index,
        "stream": kind in ("streamed", "cancelled"),
    }
    if kind == "too long":
        body["messages"][0]["content"] = "word " * 4000
    if kind == "refused":
        body["logit_bias"] = {"100000": 1}
    if kind == "cancelled":
        body["max_tokens"] = 400
        body["logit_bias"] = {"2": -100, "0": -100}
    headers = {"content-type": "application/json", "x-request-id": request_id}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            if response.headers["x-request-id"] != request_id:
                raise AssertionError("another x-request-id came back")
            if kind == "whole":
                return kind, request_id, json.load(response)["choices"][0]["message"]["content"], True
            return kind, request_id, *stream(response, generator.randint(1, 8) if kind == "cancelled" else None)
    except urllib.error.HTTPError as error:
        if error.code != 400 or kind not in ("too long", "refused"):
            raise AssertionError(f"{kind}: {error.code} {error.read()}") from error
        return kind, request_id, "", False


def stream(response, leave_after):
    """Text of a stream, and whether it came to its end; leaves after some chunks if told to."""
    text, chunks = "", 0
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            return text, True
        if not data.startswith("{"):
            continue
        text += json.loads(data)["choices"][0]["delta"].get("content") or ""
        chunks += 1
        if leave_after is not None and chunks > leave_after:
            break
    return text, False


async def until(condition, seconds, what):
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {seconds} s: {what()}")
        await asyncio.sleep(0.02)


async def main(grpc_address, urls, model):
    stubs = Stubs(grpc_address)
    subscriber = Subscriber(stubs)
    loop = asyncio.get_running_loop()
    reading = loop.run_in_executor(None, subscriber.read)
    await until(lambda: len(subscriber.snapshots) == len(urls), 20, lambda: f"snapshots of {subscriber.snapshots}")
    ids = []
    with ThreadPoolExecutor(8) as pool:
        sent = [loop.run_in_executor(pool, send, urls[i % len(urls)], model, i, ids) for i in range(REQUESTS)]
        answers = await asyncio.gather(*sent)
    open_ones = lambda: [i for i in ids if not subscriber.ended(i)]
    await until(lambda: not open_ones(), 20, lambda: f"terminals of {open_ones()}")
    receipt = stubs.method("GetReceipt")
    for kind, request_id, text, done in answers:
        events = subscriber.events[request_id]
        subscriber.problems += [f"{kind} {request_id}: {problem}" for problem in check(events)]
        told = "".join(event.committed.text for event in events if event.WhichOneof("kind") == "committed")
        if told != text if done else not told.startswith(text):
            subscriber.problems.append(f"{kind} {request_id}: told {told!r}, got {text!r}")
        terminal = events[-1].WhichOneof("kind")
        expected = {"too long": "rejected", "refused": "rejected", "cancelled": "aborted"}.get(kind, "finished")
        if terminal != expected:
            subscriber.problems.append(f"{kind} {request_id}: ended as {terminal}")
        if terminal == "finished":
            kept = receipt(stubs.message("GetReceiptRequest")(request_id=request_id)).receipt
            if kept.prompt_digest != events[-1].finished.receipt.prompt_digest or kept.token_ids:
                subscriber.problems.append(f"{kind} {request_id}: another receipt is kept")
    subscriber.call.cancel()
    await reading
    if len(subscriber.events) != REQUESTS:
        subscriber.problems.append(f"{len(subscriber.events)} requests were told, {REQUESTS} were sent")
    tally = defaultdict(int)
    for _, request_id, _, _ in answers:
        tally[subscriber.events[request_id][-1].WhichOneof("kind")] += 1
    print(json.dumps({"requests": len(answers), "ends": tally, "problems": subscriber.problems}))
    return 1 if subscriber.problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2].split(","), sys.argv[3])))
