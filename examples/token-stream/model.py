"""A stand-in for a language model: answers the prompts in the stream `chat`, a token at a time.

It can be killed at any moment and started again. It then reads the stream, finds the answers that are not complete, and
continues each after its last token. Token n of answer 3 is request n of the producer `answer-3`, and the server stores
each request once: a token that is sent again, by this process or by the next one, is not there twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from headwater.client import Client, ProducerTuple, Report, Retry, Stream

SECONDS_PER_TOKEN = 0.08
TEXT = (
    "You asked: “{prompt}”. I am not a model, only a loop that sends these words one by one. Each word is a message in"
    " a durable stream, and it was on the disk before any tab saw it. A tab that joins late or is reloaded reads the"
    " stream from its beginning and then follows it, so it shows this text whole and once. If my process is killed in"
    " the middle of a sentence, the next one reads what is there and goes on with the next word."
)


def tokens_after(prompt: str, so_far: list[str]) -> Iterator[str]:
    """What a model would be asked for: the continuation of an answer."""
    for token in TEXT.format(prompt=prompt).split(" ")[len(so_far) :]:
        time.sleep(SECONDS_PER_TOKEN)
        yield token


def answer(chat: Stream, number: int, prompt: str, so_far: list[str]) -> None:
    print(f"answer {number} after {len(so_far)} tokens", flush=True)
    name, seq = f"answer-{number}", len(so_far)
    for token in tokens_after(prompt, so_far):
        chat.append({"answer": number, "token": token}, producer=ProducerTuple(name, 0, seq))
        seq += 1
    chat.append({"answer": number, "done": True}, producer=ProducerTuple(name, 0, seq))


def tell(report: Report) -> None:
    print(f"{report.error.title}; again in {report.delay_s:.1f} s", flush=True)


def main() -> None:
    url = os.environ.get("HEADWATER_URL", "http://127.0.0.1:4437")
    with Client(url, retry=Retry(attempts=1_000, most_s=2), on_error=tell) as client:  # the server may be away
        chat = client.stream("chat")
        chat.create()  # harmless if it is there

        # What happened before: prompts are numbered by their order in the stream.
        prompts: list[str] = []
        answers: dict[int, list[str]] = {}
        complete: set[int] = set()
        reader = chat.read()
        for event in reader:
            match event:
                case {"prompt": str(prompt)}:
                    prompts.append(prompt)
                case {"answer": int(number), "token": str(token)}:
                    answers.setdefault(number, []).append(token)
                case {"answer": int(number), "done": True}:
                    complete.add(number)
        for number, prompt in enumerate(prompts):
            if number not in complete:
                answer(chat, number, prompt, answers.get(number, []))

        # What happens from now on.
        print("ready for prompts; Ctrl-C ends it", flush=True)
        for event in chat.read(offset=reader.position, live=True):
            if isinstance(event, dict) and isinstance(event.get("prompt"), str):
                prompts.append(event["prompt"])
                answer(chat, len(prompts) - 1, event["prompt"], [])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
