//! The output tool. Formats without output schemas offer the model a tool with the schema, and read the answer from the
//! call of this tool.

use omni_agent::{
    message::{History, Message, Timestamp, ToolUse},
    provider::{
        Completion, Effort, ModelInfo, Options, OutputSchema, Request, StopReason, ToolChoice,
        custom::{
            AnthropicMessages, ChatCompletions, Dialect, Frame, GoogleGemini, OllamaChat, OpenAiResponses,
            OutputSupport, ToolChoices,
        },
    },
    testing::internals::Fold,
    tool::{Schema, ToolSet, declared_tool_with_schema},
};
use serde_json::{Value, json};

const ANSWER: &str = r#"{"name": "Zürich", "people": 447000}"#;

fn city() -> Value {
    let properties = json!({"name": {"type": "string"}, "people": {"type": "integer"}});
    json!({"type": "object", "properties": properties, "required": ["name"]})
}

fn asking(model: &str, schema: Value, options: Options) -> Request {
    let output = OutputSchema::new("city", Schema::new(schema).unwrap());
    let mut request = Request::prompt("A city?").with_options(options.with_output(output));
    request.model = model.into();
    request
}

fn look() -> ToolSet {
    let schema = Schema::new(json!({"type": "object"})).unwrap();
    ToolSet::new().with(declared_tool_with_schema("look", "Looks.", schema)).unwrap()
}

fn encode(dialect: &dyn Dialect, request: &Request) -> Value {
    let encoded = dialect.encode(request).unwrap();
    assert_eq!(encoded.warnings, Vec::<String>::new());
    Value::Object(encoded.body)
}

fn answer(dialect: &dyn Dialect, request: &Request, events: &[Value]) -> Completion {
    let (mut decoder, mut deltas, mut fold) = (dialect.decoder(request), Vec::new(), Fold::default());
    for data in events {
        let event = data["type"].as_str().unwrap_or_default();
        decoder.decode(Frame::new(event, &data.to_string()), &mut deltas).unwrap();
    }
    if !decoder.is_done() {
        decoder.end(&mut deltas).unwrap();
    }
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    fold.finish(Timestamp(1)).unwrap()
}

const DESCRIPTION: &str = "Gives the final answer. Call it once, when everything else is done.";
const SYSTEM: &str = "Give your final answer by calling the tool `city`, and in no other way.";

fn by_tool() -> ChatCompletions {
    ChatCompletions::default().with_output(OutputSupport::Tool)
}

#[test]
fn encode_messages_for_a_model_without_structured_outputs_forces_the_tool() {
    let request = asking("claude-3-5-haiku-latest", city(), Options::default());
    let tool = json!({"name": "city", "description": DESCRIPTION, "input_schema": city()});
    assert_eq!(
        encode(&AnthropicMessages::default(), &request),
        json!({
            "model": "claude-3-5-haiku-latest", "max_tokens": 4096, "stream": true, "tools": [tool],
            "tool_choice": {"type": "tool", "name": "city"},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "A city?"}]}],
        })
    );
    for model in ["claude-opus-4-1", "claude-sonnet-4-5", "claude-haiku-4-5", "claude-opus-4-6"] {
        let body = encode(&AnthropicMessages::default(), &asking(model, city(), Options::default()));
        assert!(body["output_config"]["format"].is_object() && body.get("tools").is_none(), "{model}");
    }
    for model in ["claude-opus-4-0", "claude-sonnet-4-20250514", "glm-4.6"] {
        let body = encode(&AnthropicMessages::default(), &asking(model, city(), Options::default()));
        assert!(body.get("output_config").is_none() && body["tools"].is_array(), "{model}");
    }
}

#[test]
fn encode_messages_for_a_model_that_thinks_asks_in_the_system_prompt() {
    let options = Options::default().with_thinking(Effort::Low);
    let body = encode(&AnthropicMessages::default(), &asking("claude-3-7-sonnet-latest", city(), options));
    assert_eq!((body.get("tool_choice"), &body["system"]), (None, &json!(SYSTEM)));
    assert_eq!(body["tools"][0]["name"], "city");
}

#[test]
fn encode_with_other_tools_forces_any_tool() {
    let options = Options::default();
    let request = asking("claude-3-5-haiku-latest", city(), options).with_tools(look()).with_system("Hi.");
    let body = encode(&AnthropicMessages::default(), &request);
    assert_eq!(body["tool_choice"], json!({"type": "any"}));
    assert_eq!(body["system"], format!("Hi.\n\n{SYSTEM}"));
    assert_eq!((&body["tools"][0]["name"], &body["tools"][1]["name"]), (&json!("look"), &json!("city")));

    let choices = [
        (ToolChoice::Auto, json!("required")),
        (ToolChoice::Required, json!("required")),
        (ToolChoice::None, json!({"type": "function", "function": {"name": "city"}})),
        (ToolChoice::Tool("look".into()), json!({"type": "function", "function": {"name": "look"}})),
    ];
    for (choice, said) in choices {
        let request = asking("m", city(), Options::default().with_tool_choice(choice)).with_tools(look());
        assert_eq!(encode(&by_tool(), &request)["tool_choice"], said);
    }
}

#[test]
fn encode_offers_only_the_output_tool_if_none_can_be_forced_and_others_are_forbidden() {
    let options = || Options::default().with_thinking(Effort::Low).with_tool_choice(ToolChoice::None);
    let request = asking("claude-3-7-sonnet-latest", city(), options()).with_tools(look());
    let chat = by_tool().with_tool_choices(ToolChoices::Unforced);
    let bodies = [
        (encode(&AnthropicMessages::default(), &request), "/tools/0/name"),
        (encode(&chat, &request), "/tools/0/function/name"),
    ];
    for (body, name) in bodies {
        assert_eq!((body["tools"].as_array().unwrap().len(), body.get("tool_choice")), (1, None), "{body}");
        assert_eq!(body.pointer(name), Some(&json!("city")));
        assert!(body.to_string().contains(SYSTEM));
    }
}

#[test]
fn encode_tool_name_avoids_declared_names() {
    let taken = declared_tool_with_schema("city", "Theirs.", Schema::new(json!({"type": "object"})).unwrap());
    let request = asking("m", city(), Options::default()).with_tools(ToolSet::new().with(taken).unwrap());
    let body = encode(&by_tool(), &request);
    assert_eq!(body["tools"][1]["function"]["name"], "city_2");
    let folded = answer(&by_tool(), &request, &chat_answer("city", &["{}"]));
    assert_eq!(folded.message.tool_uses().count(), 1, "a use of the application's tool is not the output");
}

#[test]
fn encode_schema_of_a_value_that_is_not_an_object_is_wrapped_in_one() {
    let schema = json!({"type": "array", "items": {"$ref": "#/$defs/city"}, "$defs": {"city": city()}});
    let request = asking("m", schema, Options::default());
    let wrapped = json!({
        "type": "object", "properties": {"value": {"type": "array", "items": {"$ref": "#/$defs/city"}}},
        "required": ["value"], "additionalProperties": false, "$defs": {"city": city()},
    });
    assert_eq!(encode(&by_tool(), &request)["tools"][0]["function"]["parameters"], wrapped);
    let said = encode(&ChatCompletions::default().with_output(OutputSupport::Object), &request);
    assert!(said["messages"][0]["content"].as_str().unwrap().ends_with(&wrapped.to_string()));
    let strict = encode(&ChatCompletions::default(), &request);
    assert_eq!(strict["response_format"]["json_schema"]["strict"], true);
    let responses = OpenAiResponses::default().with_output(OutputSupport::Tool);
    assert_eq!(encode(&responses, &request)["tool_choice"], json!({"type": "function", "name": "city"}));
}

/// Returns all ways to cut the text into two pieces.
fn splits(text: &str) -> impl Iterator<Item = [&str; 2]> {
    text.char_indices().map(|(at, _)| text.split_at(at).into())
}

fn chat_answer(tool: &str, pieces: &[&str]) -> Vec<Value> {
    let chunk = |delta: Value| json!({"id": "c", "choices": [{"index": 0, "delta": delta}]});
    let first = json!({"index": 0, "id": "a", "function": {"name": tool, "arguments": ""}});
    let mut events = vec![chunk(json!({"tool_calls": [first]}))];
    let more = |piece: &&str| chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}));
    events.extend(pieces.iter().map(more));
    events.push(json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}));
    events
}

fn messages_block(index: u64, tool: &str, pieces: &[&str]) -> Vec<Value> {
    let start = json!({"type": "tool_use", "id": format!("t{index}"), "name": tool, "input": {}});
    let mut events = vec![json!({"type": "content_block_start", "index": index, "content_block": start})];
    events.extend(pieces.iter().map(|piece| {
        let delta = json!({"type": "input_json_delta", "partial_json": piece});
        json!({"type": "content_block_delta", "index": index, "delta": delta})
    }));
    events.push(json!({"type": "content_block_stop", "index": index}));
    events
}

fn messages_answer(blocks: Vec<Vec<Value>>, reason: &str) -> Vec<Value> {
    let message = json!({"id": "m", "type": "message", "role": "assistant", "model": "claude", "content": [],
        "usage": {"input_tokens": 1, "output_tokens": 1}});
    let mut events = vec![json!({"type": "message_start", "message": message})];
    events.extend(blocks.into_iter().flatten());
    let delta = json!({"stop_reason": reason, "stop_sequence": null});
    events.push(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn responses_answer(pieces: &[&str]) -> Vec<Value> {
    let item = |arguments: &str| json!({"type": "function_call", "id": "fc", "call_id": "a", "name": "city", "arguments": arguments});
    let whole = pieces.concat();
    let mut events = vec![json!({"type": "response.output_item.added", "output_index": 0, "item": item("")})];
    events.extend(pieces.iter().map(|piece| {
        json!({"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc", "delta": piece})
    }));
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item(&whole)}));
    let response = json!({"id": "r", "status": "completed", "output": [item(&whole)]});
    events.push(json!({"type": "response.completed", "response": response}));
    events
}

#[track_caller]
fn assert_plain(folded: &Completion, text: &str) {
    assert_eq!(folded.message.text(), text);
    assert_eq!((folded.message.tool_uses().count(), &folded.stop_reason), (0, &StopReason::Stop));
    assert!(!folded.output_enforced);
}

#[test]
fn decode_use_of_the_tool_cut_anywhere_becomes_text() {
    let haiku = asking("claude-3-haiku", city(), Options::default());
    let request = asking("m", city(), Options::default());
    let responses = OpenAiResponses::default().with_output(OutputSupport::Tool);
    for pieces in splits(ANSWER) {
        assert_plain(&answer(&by_tool(), &request, &chat_answer("city", &pieces)), ANSWER);
        let events = messages_answer(vec![messages_block(0, "city", &pieces)], "tool_use");
        assert_plain(&answer(&AnthropicMessages::default(), &haiku, &events), ANSWER);
        assert_plain(&answer(&responses, &request, &responses_answer(&pieces)), ANSWER);
    }
}

#[test]
fn decode_for_a_model_without_structured_output_in_the_catalogue_reads_the_tool() {
    let mut request = asking("m", city(), Options::default());
    let mut info = ModelInfo::new("m");
    info.structured_output = Some(false);
    request.model_info = Some(info.into());
    let formats: [(&dyn Dialect, Vec<Value>); 2] = [
        (&ChatCompletions::openai(), chat_answer("city", &[ANSWER])),
        (&OpenAiResponses::openai(), responses_answer(&[ANSWER])),
    ];
    for (format, events) in formats {
        assert_eq!(encode(format, &request)["tools"].as_array().map(Vec::len), Some(1), "{}", format.name());
        assert_plain(&answer(format, &request, &events), ANSWER);
    }
}

#[test]
fn decode_whole_call_of_the_tool_becomes_text() {
    let args: Value = serde_json::from_str(ANSWER).unwrap();
    let request = asking("gemini-2.5-flash", city(), Options::default()).with_tools(look());
    let part = json!({"functionCall": {"name": "city", "args": args}, "thoughtSignature": "c2ln"});
    let content = json!({"parts": [part], "role": "model"});
    let events = [json!({"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]})];
    let folded = answer(&GoogleGemini::default(), &request, &events);
    assert_plain(&folded, &args.to_string());
    assert_eq!(
        folded.message.content,
        Message::assistant(args.to_string()).content,
        "the text has no signature"
    );

    let request = asking("m", city(), Options::default()).with_tools(look());
    let message = json!({"role": "assistant", "content": "",
        "tool_calls": [{"function": {"name": "city", "arguments": args}}]});
    let line = json!({"model": "m", "message": message, "done": true, "done_reason": "stop"});
    assert_plain(&answer(&OllamaChat::default(), &request, &[line]), &args.to_string());
}

#[test]
fn decode_wrapped_value_cut_anywhere_is_unwrapped() {
    let schema = json!({"type": ["array", "string"], "items": {"type": "integer"}});
    let request = asking("m", schema, Options::default());
    for (text, value) in [
        (r#"{"value": [1, {"a": "}"}] }"#, r#"[1, {"a": "}"}]"#),
        ("{ \"value\" :\n\"{} }\"}\n", "\"{} }\""),
        (r#"{"values": [1]}"#, r#"{"values": [1]}"#),
        ("Well, {\"value\": 1}", "Well, {\"value\": 1}"),
        ("{\"va", "{\"va"),
    ] {
        for pieces in splits(text) {
            assert_plain(&answer(&by_tool(), &request, &chat_answer("city", &pieces)), value);
            let chunks = pieces.map(|piece| json!({"choices": [{"index": 0, "delta": {"content": piece}}]}));
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
            let [first, second] = chunks;
            let folded = answer(&ChatCompletions::default(), &request, &[first, second, end]);
            assert_eq!(folded.message.text(), value);
            assert!(!folded.output_enforced, "a compatible service may ignore the schema");
            let chunk =
                json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]});
            let folded = answer(&ChatCompletions::openai(), &request, &[chunk]);
            assert_eq!((folded.message.text().as_str(), folded.output_enforced), (value, true));
        }
    }
}

#[test]
fn decode_with_a_use_of_another_tool_keeps_that_use() {
    let request = asking("claude-3-haiku", city(), Options::default()).with_tools(look());
    let (output, other) = (messages_block(0, "city", &[ANSWER]), messages_block(1, "look", &["{}"]));
    let folded =
        answer(&AnthropicMessages::default(), &request, &messages_answer(vec![output, other], "tool_use"));
    assert_eq!(folded.stop_reason, StopReason::ToolUse);
    assert_eq!(folded.message.text(), ANSWER);
    let uses: Vec<&ToolUse> = folded.message.tool_uses().collect();
    assert_eq!((uses.len(), uses[0].name.as_str()), (1, "look"));
    let history: History = [Message::user("A city?"), folded.message].into_iter().collect();
    assert_eq!(history.check(), Ok(()), "the tool use may be answered by the next prompt");
}

#[test]
fn decode_missing_input_is_an_empty_object_unless_it_was_cut() {
    let request = asking("claude-3-haiku", city(), Options::default());
    let events = |reason| messages_answer(vec![messages_block(0, "city", &[])], reason);
    assert_plain(&answer(&AnthropicMessages::default(), &request, &events("tool_use")), "{}");
    let cut = answer(&AnthropicMessages::default(), &request, &events("max_tokens"));
    assert_eq!((cut.message.text().as_str(), cut.stop_reason), ("", StopReason::Length));
}

#[test]
fn answer_by_tool_is_sent_back_as_plain_text_in_every_format() {
    let request = asking("claude-3-haiku", city(), Options::default());
    let events = messages_answer(vec![messages_block(0, "city", &[ANSWER])], "tool_use");
    let answered = answer(&AnthropicMessages::default(), &request, &events).message;
    let stored: Message = serde_json::from_str(&serde_json::to_string(&answered).unwrap()).unwrap();
    let history: History =
        [Message::user("A city?"), stored, Message::user("Another?")].into_iter().collect();
    let formats: [&dyn Dialect; 5] = [
        &AnthropicMessages::default(),
        &ChatCompletions::default(),
        &OpenAiResponses::default(),
        &GoogleGemini::default(),
        &OllamaChat::default(),
    ];
    for format in formats {
        let mut request = Request::new(history.clone());
        request.model = "m".into();
        let body = encode(format, &request).to_string();
        assert!(body.contains("Zürich") && !body.contains("tool") && !body.contains("function"), "{body}");
    }
}
