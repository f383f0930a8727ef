//! Names of tools in a conversation. A model may have called a tool that does not exist. Later requests that contain
//! this call must still be valid.

use std::{
    borrow::Cow,
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use omni_agent::{
    message::{History, Message, Timestamp, ToolResult, ToolUse},
    provider::{
        ModelInfo, Options, OutputSchema, Request, ToolChoice,
        custom::{AnthropicMessages, ChatCompletions, Dialect, Frame, GoogleGemini, OpenAiResponses},
    },
    testing::internals::Fold,
    tool::{Schema, Tool, ToolContext, ToolError, ToolOutput},
};
use serde_json::{Value, json};

use crate::anthropic::tools;

/// The formats that restrict names: the maximum length of a name, and the characters that are allowed besides letters,
/// digits, `_` and `-`.
fn formats() -> [(Box<dyn Dialect>, usize, &'static str); 4] {
    [
        (Box::new(AnthropicMessages::default()), 128, ""),
        (Box::new(ChatCompletions::openai()), 64, ""),
        (Box::new(OpenAiResponses::openai()), 64, ""),
        (Box::new(GoogleGemini::default()), 64, ".:"),
    ]
}

/// Returns a request whose history contains failed calls with these names.
fn called(names: &[&str]) -> Request {
    let uses: Vec<ToolUse> = names
        .iter()
        .enumerate()
        .map(|(at, name)| ToolUse::new(format!("call_{at}"), *name, json!({})))
        .collect();
    let results: Vec<ToolResult> =
        uses.iter().map(|tool_use| ToolResult::error(tool_use, format!("no {}", tool_use.id))).collect();
    let history = [Message::user("Go"), Message::assistant(uses), Message::user(results)];
    let mut request = Request::new(History::from_iter(history));
    request.model = "m".into();
    request
}

/// Returns the names of all calls and results in a body, in the order of the body.
fn names(body: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    match body {
        Value::Array(items) => items.iter().for_each(|item| found.extend(names(item))),
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("name", Value::String(name)) => found.push(&**name),
                    (_, value) => found.extend(names(value)),
                }
            }
        }
        _ => {}
    }
    found
}

#[test]
fn invented_name_is_sent_back_in_valid_characters_and_length() {
    let long = "x".repeat(200);
    let made_up = ["functions.read", "a b.c", "a.b c", &long, "", "ünïcödé", "7up", "-"];
    for (format, limit, also) in formats() {
        let body = Value::Object(format.encode(&called(&made_up)).unwrap().body);
        let names = names(&body);
        assert!(names.len() >= made_up.len(), "{body}");
        for name in names {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || also.contains(c);
            let all = (1..=limit).contains(&name.len()) && name.chars().all(fits);
            assert!(all, "{}: {name:?}", format.name());
        }
        // Each result must stay with its call, even if the encoded names of two calls are equal.
        for at in 0..made_up.len() {
            let (call, result) = (format!("call_{at}\""), format!("no call_{at}"));
            let text = body.to_string();
            assert!(text.matches(&call).count() >= 2 && text.matches(&result).count() == 1, "{text}");
        }
    }
}

#[test]
fn valid_name_is_sent_back_unchanged() {
    let fitting = ["look_up", "Read-File", "_x1"];
    for (format, limit, also) in formats() {
        let longest = "y".repeat(limit);
        let mut all = vec![&*longest];
        all.extend(fitting);
        if !also.is_empty() {
            all.push("default_api:fs.read");
        }
        let body = Value::Object(format.encode(&called(&all)).unwrap().body);
        let sent = names(&body);
        assert!(all.iter().all(|name| sent.contains(name)), "{}: {sent:?}", format.name());
    }
}

/// Returns the body of a request that offers these tools and forces the first tool. The history of the request contains
/// a call of each tool.
fn offered(format: &dyn Dialect, tool_names: &[&'static str]) -> Value {
    let declared: Vec<_> =
        tool_names.iter().map(|name| (*name, "Does it.", json!({"type": "object"}))).collect();
    let choice = ToolChoice::Tool(tool_names[0].to_owned());
    let options = Options::default().with_tool_choice(choice);
    let request = called(tool_names).with_tools(tools(&declared)).with_options(options);
    Value::Object(format.encode(&request).unwrap().body)
}

#[test]
fn declared_name_that_is_invalid_is_sent_as_a_valid_name() {
    let long: &'static str = "l123456789012345678901234567890123456789012345678901234567890123456789";
    for (format, limit, also) in formats() {
        let body = offered(&*format, &["fs.read", "Look-up_2", long]);
        let (dotted, cut) =
            (if also.contains('.') { "fs.read" } else { "fs_read" }, &long[..limit.min(long.len())]);
        let sent: HashSet<&str> = names(&body).into_iter().collect();
        assert_eq!(sent, HashSet::from([dotted, "Look-up_2", cut]), "{}", format.name());
        let text = body.to_string();
        assert!(
            also.contains('.') || !text.contains("fs.read"),
            "the tool choice must use the sent name: {text}"
        );
    }
}

#[test]
fn names_that_would_become_equal_stay_distinct() {
    for (format, limit, also) in formats() {
        let body = offered(&*format, &["a.b", "a_b", "a.b.", "1x", "_1x"]);
        let distinct: HashSet<&str> = names(&body).into_iter().collect();
        assert_eq!(distinct.len(), 5, "{}: {distinct:?}", format.name());
        assert!(distinct.contains("a_b") && distinct.iter().all(|name| name.len() <= limit), "{distinct:?}");
        assert!(also.is_empty() != distinct.contains("a.b"));
    }
}

/// A tool that counts how often its name is read.
struct Counted {
    schema: Schema,
    asked: Arc<AtomicUsize>,
}

#[async_trait]
impl Tool for Counted {
    fn name(&self) -> &str {
        self.asked.fetch_add(1, Ordering::Relaxed);
        "fs.read"
    }

    fn description(&self) -> Cow<'_, str> {
        "".into()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    async fn call(&self, _input: Value, _context: ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new("never run"))
    }
}

#[test]
fn encoding_does_not_search_all_tools_for_each_call() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Counted { schema: Schema::new(json!({"type": "object"})).unwrap(), asked: asked.clone() };
    let mut declared = tools(&[("fs.write", "", json!({"type": "object"}))]);
    declared.insert(Arc::new(counted)).unwrap();
    for (format, ..) in formats() {
        let [once, often] = [1, 100].map(|calls| {
            let request = called(&vec!["fs.write"; calls]).with_tools(declared.clone());
            let before = asked.load(Ordering::Relaxed);
            format.encode(&request).unwrap();
            asked.load(Ordering::Relaxed) - before
        });
        assert_eq!(once, often, "{}", format.name());
    }
}

/// Returns one answer per format. Each answer calls a tool named `NAME`.
fn answers() -> [Vec<Value>; 4] {
    let block = json!({"type": "tool_use", "id": "a", "name": "NAME", "input": {}});
    let messages = vec![
        json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m",
            "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ];
    let call = json!({"index": 0, "id": "a", "function": {"name": "NAME", "arguments": "{}"}});
    let delta = json!({"tool_calls": [call]});
    let chat = vec![json!({"choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls"}]})];
    let item =
        json!({"type": "function_call", "id": "fc", "call_id": "a", "name": "NAME", "arguments": "{}"});
    let responses = vec![
        json!({"type": "response.output_item.added", "output_index": 0, "item": item}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item]}}),
    ];
    let content = json!({"parts": [{"functionCall": {"name": "NAME", "args": {}}}], "role": "model"});
    let gemini = vec![json!({"candidates": [{"content": content, "finishReason": "STOP"}]})];
    [messages, chat, responses, gemini]
}

/// Decodes one of these answers, with `NAME` replaced by `name`. Returns the names of its tool uses, and its text.
fn used(format: &dyn Dialect, request: &Request, events: &[Value], name: &str) -> (Vec<String>, String) {
    let (mut decoder, mut deltas, mut fold) = (format.decoder(request), Vec::new(), Fold::default());
    for event in events {
        let kind = event["type"].as_str().unwrap_or_default();
        let data = event.to_string().replace("NAME", name);
        decoder.decode(Frame::new(kind, &data), &mut deltas).unwrap();
    }
    if !decoder.is_done() {
        decoder.end(&mut deltas).unwrap();
    }
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    let message = fold.finish(Timestamp(1)).unwrap().message;
    (message.tool_uses().map(|tool_use| tool_use.name.clone()).collect(), message.text())
}

fn offering(tool_names: &[&'static str]) -> Request {
    let declared: Vec<_> = tool_names.iter().map(|name| (*name, "", json!({"type": "object"}))).collect();
    let mut request = Request::prompt("Go").with_tools(tools(&declared));
    request.model = "m".into();
    request
}

#[test]
fn call_with_the_sent_name_is_returned_with_the_declared_name() {
    let declared = ["fs.read", "7up", "plain"];
    for ((format, ..), events) in formats().into_iter().zip(answers()) {
        let request = offering(&declared);
        let body = Value::Object(format.encode(&request).unwrap().body);
        let sent = names(&body);
        assert_eq!(sent.len(), 3, "{body}");
        for (sent, declared) in sent.into_iter().zip(declared) {
            assert_eq!(used(&*format, &request, &events, sent).0, [declared], "{}", format.name());
        }
        // A name that was not declared is not decoded.
        assert_eq!(used(&*format, &request, &events, "fs_write").0, ["fs_write"]);
    }
}

#[test]
fn declared_name_and_output_tool_stay_distinct() {
    for ((format, ..), events) in formats().into_iter().zip(answers()).take(3) {
        let schema = Schema::new(json!({"type": "object", "properties": {}})).unwrap();
        let output = Options::default().with_output(OutputSchema::new("fs_read", schema));
        let mut request = offering(&["fs.read"]).with_options(output);
        let mut info = ModelInfo::new("m");
        info.structured_output = Some(false);
        request.model_info = Some(info.into());
        let body = Value::Object(format.encode(&request).unwrap().body);
        let sent = names(&body);
        assert!(sent.len() == 2 && sent[0] != sent[1], "{}: {sent:?}", format.name());
        assert_eq!(used(&*format, &request, &events, sent[0]).0, ["fs.read"]);
        assert_eq!(used(&*format, &request, &events, sent[1]), (vec![], "{}".to_owned()));
    }
}
