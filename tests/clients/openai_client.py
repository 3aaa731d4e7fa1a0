"""Uses the official `openai` package against one node of a mesh: openai_client.py BASE_URL"""

import sys

import openai

EXPECTED = "In the beginning God created the heaven and the earth."
MESSAGES = [{"role": "user", "content": "Recite Genesis 1:1."}]

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0, timeout=60)

models = [model.id for model in client.models.list()]
assert models == ["psalm"], models
assert client.models.retrieve("psalm").id == "psalm"

whole = client.chat.completions.create(model="psalm", messages=MESSAGES, temperature=0)
assert whole.choices[0].message.content == EXPECTED, whole
assert whole.choices[0].finish_reason == "stop"
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

chunks = list(
    client.chat.completions.create(
        model="psalm", messages=MESSAGES, temperature=0, stream=True, stream_options={"include_usage": True}
    )
)
text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
assert text == EXPECTED, text
assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage, chunks[-1]

completion = client.completions.create(
    model="psalm",
    prompt="<|im_start|>user\nRecite John 11:35.<|im_end|>\n<|im_start|>assistant\n",
    temperature=0,
    max_tokens=20,
)
assert completion.choices[0].text == "Jesus wept.", completion

pieces = client.completions.create(model="psalm", prompt="In the beginning", max_tokens=8, seed=7, stream=True)
assert sum(1 for piece in pieces if piece.choices[0].text) > 0

try:
    client.chat.completions.create(model="nothing", messages=MESSAGES)
    raise AssertionError("an unknown model was served")
except openai.NotFoundError as error:
    assert error.code == "model_not_found" and "psalm" in str(error), error

try:
    client.chat.completions.create(model="psalm", messages=[{"role": "user", "content": "word " * 2000}])
    raise AssertionError("a prompt that is too long was served")
except openai.BadRequestError as error:
    assert error.code == "context_length_exceeded", error

print("ok")
