"""Drives a running server with the official `openai` client and checks what it gets.

Usage: openai_client.py BASE_URL API_KEY MODEL
The server has 2 sequences and no queue, and a small random model whose end tokens have the ids 0, 1 and 2.
Prints one line for each check and `all checks passed` at the end.
"""

import sys

import openai

base_url, api_key, model = sys.argv[1:4]
client = openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=60)
endless = {"0": -100, "1": -100, "2": -100}
messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def check(name, holds):
    print(f"{'ok' if holds else 'FAILED'}: {name}")
    if not holds:
        sys.exit(1)


def fails(name, kind, call):
    try:
        call()
    except kind as error:
        check(f"{name}: {error.code}", bool(error.message) and error.code is not None)
        return error
    check(f"{name} raised nothing", False)


check("models", [m.id for m in client.models.list()] == [model])
check("one model", client.models.retrieve(model).object == "model")

chat = dict(model=model, messages=messages, max_tokens=8, temperature=1.0, seed=5, logit_bias=endless)
whole = client.chat.completions.create(**chat, user="u", store=False, metadata={"a": "b"})
check("chat", whole.object == "chat.completion" and whole.choices[0].finish_reason == "length")
check("chat usage", whole.usage.completion_tokens == 8 and whole.usage.total_tokens == whole.usage.prompt_tokens + 8)
check("fingerprint", bool(whole.system_fingerprint))
text = whole.choices[0].message.content
check("seed", client.chat.completions.create(**chat).choices[0].message.content == text)

chunks = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
check("chunk objects", all(chunk.object == "chat.completion.chunk" for chunk in chunks))
check("one id", len({chunk.id for chunk in chunks}) == 1)
check("first delta", chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == "")
check("usage chunk", chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8)
pieces = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
check("streamed text", pieces == text)

several = client.chat.completions.create(**{**chat, "n": 2, "max_tokens": None}, max_completion_tokens=3)
check("n", [c.index for c in several.choices] == [0, 1] and several.usage.completion_tokens == 6)

logprobs = client.chat.completions.create(**chat, logprobs=True, top_logprobs=3).choices[0].logprobs
check("chat logprobs", len(logprobs.content) == 8 and all(len(t.top_logprobs) == 3 for t in logprobs.content))
check("bytes", all(bytes(t.bytes).decode("utf-8", "replace") == t.token for t in logprobs.content))

plain = dict(model=model, prompt="the thing", max_tokens=8, temperature=0, logit_bias=endless)
whole = client.completions.create(**plain)
check("completion", whole.object == "text_completion" and whole.usage.completion_tokens == 8)
text = whole.choices[0].text
chunks = list(client.completions.create(**plain, stream=True))
check("streamed completion", "".join(c.choices[0].text for c in chunks) == text)
check("completion finish", chunks[-1].choices[0].finish_reason == "length")
check("echo", client.completions.create(**plain, echo=True).choices[0].text == "the thing" + text)
check("token prompt", client.completions.create(**{**plain, "prompt": [100, 101]}).usage.prompt_tokens == 2)
logprobs = client.completions.create(**plain, logprobs=2).choices[0].logprobs
check("completion logprobs", len(logprobs.tokens) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 8)
stop = text[3:5]
cut = client.completions.create(**plain, stop=[stop]).choices[0]
check("stop", cut.finish_reason == "stop" and cut.text == text[: text.index(stop)])

ask = client.chat.completions.create
error = fails("bad temperature", openai.BadRequestError, lambda: ask(**{**chat, "temperature": 3}))
check("param", error.param == "temperature")
tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
fails("tools", openai.BadRequestError, lambda: ask(**chat, tools=[tool]))
fails("structured output", openai.BadRequestError, lambda: ask(**chat, response_format={"type": "json_object"}))
fails("too long", openai.BadRequestError, lambda: ask(**{**chat, "max_tokens": 100_000}))
fails("other model", openai.NotFoundError, lambda: ask(**{**chat, "model": "other"}))
stranger = openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0)
fails("wrong key", openai.AuthenticationError, lambda: stranger.models.list())

# Both sequences are taken by streams that are not read to the end; leaving them frees the sequences again.
streams = [ask(**{**chat, "max_tokens": 8000}, stream=True) for _ in range(2)]
for stream in streams:
    next(iter(stream))
fails("full queue", openai.RateLimitError, lambda: ask(**chat))
for stream in streams:
    stream.close()
for _ in range(600):
    try:
        ask(**chat)
        break
    except openai.RateLimitError:
        pass
else:
    check("sequences are freed", False)

print("all checks passed")
