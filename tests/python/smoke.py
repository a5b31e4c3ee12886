"""What applications in Python do first, with the clients that they use: openai, anthropic and ollama.

usage: smoke.py URL      of a server with the test sampler, Qwen3's template and the alias "tiny"

Prints a line for each part; an assertion that fails ends it with status 1.
"""

import asyncio
import json
import sys

import anthropic
import ollama
import openai

URL = sys.argv[1].rstrip("/")
MODEL = "tiny"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def play(text):
    """The answer that the server is to give, after a thought."""
    return {"kvasir": {"play": f"<think>\nHm.\n</think>\n\n{text}"}}


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: its name
    """
    return f"11 degrees in {city}"


def with_openai():
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0)
    assert MODEL in [m.id for m in client.models.list()]
    messages = [{"role": "user", "content": "How is it in Rome?"}]
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]

    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, extra_body=play(CALL))
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls", answer
    call = choice.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": get_weather("Rome")}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools, extra_body=play("11 degrees."))
    assert answer.choices[0].message.content == "11 degrees.", answer
    assert answer.usage.prompt_tokens_details.cached_tokens > 0, answer.usage

    text, usage = "", None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, extra_body=play("Grüße!")
    ):
        text += "".join(c.delta.content or "" for c in chunk.choices)
        usage = chunk.usage or usage
    assert text == "Grüße!" and usage.completion_tokens > 0, (text, usage)

    try:
        client.chat.completions.create(model=MODEL, messages=messages, temperature="hot")
        raise AssertionError("a wrong temperature was taken")
    except openai.BadRequestError as e:
        assert e.param == "temperature", e

    response = client.responses.create(model=MODEL, input="hi", extra_body=play("Hello."))
    assert response.output_text == "Hello.", response


def with_anthropic():
    client = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
    tools = [{"name": "get_weather", "description": "The weather of a city", "input_schema": SCHEMA}]
    messages = [{"role": "user", "content": "How is it in Rome?"}]
    common = {"model": MODEL, "max_tokens": 200, "tools": tools}

    count = client.messages.count_tokens(model=MODEL, messages=messages, tools=tools)
    assert count.input_tokens > 20, count
    answer = client.messages.create(messages=messages, extra_body=play(CALL), **common)
    assert answer.stop_reason == "tool_use", answer
    use = next(b for b in answer.content if b.type == "tool_use")
    assert use.input == {"city": "Rome"}, use
    messages += [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": get_weather("Rome")}]},
    ]
    with client.messages.stream(messages=messages, extra_body=play("11 degrees."), **common) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "11 degrees." and final.stop_reason == "end_turn", final
    assert final.usage.cache_read_input_tokens > 0, final.usage

    try:
        client.messages.create(model=MODEL, max_tokens=5, messages=[{"role": "user", "content": 5}])
        raise AssertionError("a number was taken as content")
    except anthropic.BadRequestError as e:
        assert e.body["error"]["type"] == "invalid_request_error", e.body


def with_ollama():
    client = ollama.Client(host=URL)
    options = {"num_predict": 6, "seed": 1, "temperature": 1.0}
    assert f"{MODEL}:latest" in [m.model for m in client.list().models]
    shown = client.show(MODEL)
    assert shown.modelinfo["llama.context_length"] > 0 and "tools" in shown.capabilities, shown
    assert client.ps().models[0].context_length > 0

    messages = [
        {"role": "user", "content": "How is it in Rome?"},
        ollama.Message(
            role="assistant",
            tool_calls=[
                ollama.Message.ToolCall(
                    function=ollama.Message.ToolCall.Function(name="get_weather", arguments={"city": "Rome"})
                )
            ],
        ),
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Rome")},
    ]
    answer = client.chat(MODEL, messages=messages, tools=[get_weather], think=False, options=options)
    assert answer.done and answer.done_reason in ("stop", "length") and answer.eval_count <= 6, answer
    parts = list(client.chat(MODEL, messages=messages, tools=[get_weather], think=False, options=options, stream=True))
    assert "".join(p.message.content for p in parts) == answer.message.content, parts
    assert parts[-1].done and parts[-1].prompt_eval_count == answer.prompt_eval_count, parts[-1]

    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    answer = client.chat(MODEL, messages=messages[:1], think=False, format=schema, options={"num_predict": 100})
    assert 0 <= json.loads(answer.message.content)["n"] <= 9, answer

    first = client.generate(MODEL, prompt="My name is Ada.", think=False, options=options)
    second = client.generate(MODEL, prompt="Who am I?", context=first.context, think=False, options=options)
    assert list(second.context[: len(first.context)]) == list(first.context), second
    assert client.generate(MODEL, keep_alive="5m").done_reason == "load"
    assert client.pull(MODEL).status == "success"

    async def asynchronously():
        stream = await ollama.AsyncClient(host=URL).chat(
            MODEL, messages=messages[:1], think=False, options=options, stream=True
        )
        return [part async for part in stream]

    assert asyncio.run(asynchronously())[-1].done
    try:
        client.chat(MODEL, messages=messages[:1], options={"temperature": "hot"})
        raise AssertionError("a wrong temperature was taken")
    except ollama.ResponseError as e:
        assert e.status_code == 400 and "options.temperature" in e.error, e


for part in (with_openai, with_anthropic, with_ollama):
    part()
    print("ok", part.__name__, flush=True)
