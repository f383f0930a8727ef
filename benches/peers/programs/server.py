# A scripted model behind two APIs of OpenAI, Responses and Chat Completions: `python server.py 18080`.
# It calls the tools whose names are in the last message, one after the other, and then answers.
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INPUTS = {"weather": {"city": "Oslo"}, "delete_file": {"path": "notes.txt"}, "poet": {"input": "rain"}}
INPUTS |= {"send_euros": {"to": "Ann", "euros": 20}, "critic": {"input": "a poem"}}
INPUTS |= {"echo": {"message": "Hello!"}}


def reply(items, tools, is_typed):
    """Returns the name and input of a tool, or a text. The items are (role, text)."""
    question = max(i for i, (role, _) in enumerate(items) if role == "user")
    results = [text for role, text in items[question:] if role == "tool"]
    wanted = [name for name in tools if name in items[question][1]]
    if is_typed:
        return None, json.dumps({"names": ["Bergen", "Stavanger"]})
    if len(results) < len(wanted):
        name = wanted[len(results)]
        given = INPUTS.get(name, {})
        return name, {key: given.get(key, "rain") for key in tools[name].get("properties", {})}
    return None, f"Result: {results[-1]}" if results else f"Answer {len(items)}: {items[question][1]}"


def text_of(content):
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content or [])


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_chat = self.path.endswith("/chat/completions")
        events, whole = (chat if is_chat else responses)(body)
        self.send_response(200)
        if not body.get("stream"):
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(whole).encode())
            return
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in events:
            head = "" if is_chat else f"event: {event['type']}\n"
            self.wfile.write(f"{head}data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n" if is_chat else b"")

    def log_message(self, *_):
        pass


def chat(body):
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in body.get("tools", [])}
    items = [(message["role"], text_of(message.get("content"))) for message in body["messages"]]
    name, value = reply(items, tools, "response_format" in body)
    function = {"name": name, "arguments": json.dumps(value)}
    call = {"id": f"call-{len(items)}", "type": "function", "function": function}
    message = {"role": "assistant"} | ({"tool_calls": [call]} if name else {"content": value})
    finish = "tool_calls" if name else "stop"
    head = {"id": "chat-1", "created": 1, "model": body["model"]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    delta = message | ({"tool_calls": [call | {"index": 0}]} if name else {})
    chunk = head | {"object": "chat.completion.chunk"}
    events = [chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}]
    events.append(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage})
    choice = {"index": 0, "message": {"content": None} | message, "finish_reason": finish}
    return events, head | {"object": "chat.completion", "choices": [choice], "usage": usage}


def responses(body):
    tools = {tool["name"]: tool["parameters"] for tool in body.get("tools", [])}
    given = body["input"]
    given = [{"role": "user", "content": given}] if isinstance(given, str) else given
    items = []
    for item in given:
        if item.get("type") == "function_call_output":
            items.append(("tool", text_of(item["output"])))
        elif "role" in item:
            items.append((item["role"], text_of(item["content"])))
    name, value = reply(items, tools, body.get("text", {}).get("format", {}).get("type") == "json_schema")
    part = {"type": "output_text", "text": value, "annotations": []}
    if name:
        item = {"type": "function_call", "id": f"fc-{len(given)}", "call_id": f"call-{len(given)}"}
        item |= {"name": name, "arguments": json.dumps(value), "status": "completed"}
    else:
        item = {"type": "message", "id": f"msg-{len(given)}", "role": "assistant", "status": "completed"}
        item |= {"content": [part]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    whole = {"id": "resp-1", "object": "response", "created_at": 1, "model": body["model"]}
    whole |= {"status": "completed", "output": [item], "usage": usage}
    whole |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    at = {"item_id": item["id"], "output_index": 0}
    empty = item | ({"arguments": ""} if name else {"content": []}) | {"status": "in_progress"}
    events = [{"type": "response.created", "response": whole | {"status": "in_progress", "output": []}}]
    events.append({"type": "response.output_item.added", "output_index": 0, "item": empty})
    if name:
        arguments = item["arguments"]
        event = "response.function_call_arguments"
        events.append(at | {"type": f"{event}.delta", "delta": arguments})
        events.append(at | {"type": f"{event}.done", "arguments": arguments, "name": name})
    else:
        at |= {"content_index": 0}
        events.append(at | {"type": "response.content_part.added", "part": part | {"text": ""}})
        events.append(at | {"type": "response.output_text.delta", "delta": value, "logprobs": []})
        events.append(at | {"type": "response.output_text.done", "text": value, "logprobs": []})
        events.append(at | {"type": "response.content_part.done", "part": part})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    events.append({"type": "response.completed", "response": whole})
    return [event | {"sequence_number": i} for i, event in enumerate(events)], whole


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
