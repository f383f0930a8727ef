//! Anthropic's Messages format: the messages and content blocks of a request.

use omni_agent::{
    message::{
        Attachment, Content, History, Message, ProviderItem, ResultBlock, Text, Thinking, ToolResult, ToolUse,
    },
    provider::{
        Options, ProviderErrorKind, Request, ThinkingMode, UnsupportedAttachment,
        custom::{AnthropicMessages, Dialect},
    },
};
use serde_json::{Map, Value, json};

use crate::anthropic::{encode, messages, tools};

fn thinking(text: &str, signature: Option<&str>, redacted: Option<&str>) -> Content {
    let mut thinking = Thinking::new(text);
    (thinking.signature, thinking.redacted) = (signature.map(str::to_owned), redacted.map(str::to_owned));
    thinking.into()
}

fn written_by(format: &str, mut message: Message) -> Message {
    message.provider_data = Map::from_iter([(format.to_owned(), json!({}))]);
    message
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Returns the content that is sent for a user message with this attachment.
fn attached(attachment: Attachment) -> Value {
    messages([Message::user(vec![Content::from(attachment)])])[0]["content"].clone()
}

fn tool_use(id: &str) -> ToolUse {
    ToolUse::new(id, "look", json!({"x": 1}))
}

#[test]
fn encode_adjacent_messages_of_one_role_are_merged() {
    let encoded = messages([
        Message::user("a"),
        Message::user("b"),
        Message::assistant("c"),
        Message::assistant("d"),
        Message::user("e"),
    ]);
    assert_eq!(
        encoded,
        json!([
            {"role": "user", "content": [text("a"), text("b")]},
            {"role": "assistant", "content": [text("c"), text("d")]},
            {"role": "user", "content": [text("e")]},
        ])
    );
}

#[test]
fn encode_blank_text_and_empty_messages_are_dropped() {
    let encoded = messages([
        Message::user("a"),
        Message::assistant(vec![Text::new(""), Text::new(" \n")]),
        Message::assistant(Vec::<Content>::new()),
        Message::user(vec![Text::new(""), Text::new("b")]),
    ]);
    assert_eq!(encoded, json!([{"role": "user", "content": [text("a"), text("b")]}]));
}

#[test]
fn encode_final_assistant_text_loses_trailing_white_space() {
    let encoded = messages([Message::user("a \n"), Message::assistant("b \n"), Message::user("c \n")]);
    assert_eq!(encoded[1]["content"], json!([text("b \n")]));
    assert_eq!(encoded[2]["content"], json!([text("c \n")]));
    let encoded = messages([Message::user("a \n"), Message::assistant(" b \n")]);
    assert_eq!(encoded[0]["content"], json!([text("a \n")]));
    assert_eq!(encoded[1]["content"], json!([text(" b")]));
}

#[test]
fn encode_unsigned_thinking_is_sent_back_to_models_other_than_claude() {
    let history = || {
        let content: Vec<Content> = vec![thinking("unsigned", None, None), tool_use("a").into()];
        let result = Message::user(vec![ToolResult::ok(&tool_use("a"), "seen")]);
        [Message::user("a"), written_by("anthropic_messages", Message::assistant(content)), result]
    };
    let sent = |model: &str| {
        let request = Request::new(history().into_iter().collect::<History>());
        encode(request, model).body["messages"][1]["content"].as_array().unwrap().clone()
    };
    let unsigned = json!({"type": "thinking", "thinking": "unsigned", "signature": ""});
    for model in ["glm-5", "kimi-for-coding", "mimo-v2.5-pro", "MiniMax-M3", "deepseek-v4-pro"] {
        let content = sent(model);
        assert_eq!((content.len(), &content[0]), (2, &unsigned), "{model}");
    }
    for model in ["claude-sonnet-4-5", "my/claude", "best/auto"] {
        assert_eq!(sent(model).len(), 1, "{model}");
    }
}

#[test]
fn encode_answers_without_thinking_get_a_blank_one_for_models_that_need_it() {
    let blank = json!({"type": "thinking", "thinking": " ", "signature": ""});
    let thinks = |model: &str, options: Options| {
        let answers = [Message::user("a"), Message::assistant("b"), Message::user("c")];
        let foreign: Vec<Content> = vec![thinking("foreign", Some("sig"), None), tool_use("a").into()];
        let results = [
            written_by("openai_responses", Message::assistant(foreign)),
            Message::user(vec![ToolResult::ok(&tool_use("a"), "seen")]),
        ];
        let request = Request::new(answers.into_iter().chain(results).collect::<History>());
        let body = encode(request.with_options(options), model).body;
        [1, 3].map(|number| body["messages"][number]["content"][0] == blank)
    };
    let off = || Options::default().with_thinking(ThinkingMode::Off);
    let on = || Options::default().with_thinking(ThinkingMode::Budget(2000));
    for model in ["deepseek-v4-pro", "deepseek/deepseek-flash", "mimo-v2.5", "kimi-k2.6"] {
        assert_eq!(thinks(model, Options::default()), [true; 2], "{model}");
        assert_eq!(thinks(model, on()), [true; 2], "{model}");
        assert_eq!(thinks(model, off()), [false; 2], "{model}");
    }
    for model in ["glm-5", "claude-haiku-4-5"] {
        assert_eq!(thinks(model, on()), [false; 2], "{model}");
    }
}

#[test]
fn encode_turn_that_began_without_thinking_gets_no_budget() {
    let body = |model: &str, began: Message, next: &[Message]| {
        let history =
            [Message::user("a"), began, Message::user(vec![ToolResult::ok(&tool_use("a"), "seen")])];
        let request = Request::new(history.into_iter().chain(next.iter().cloned()).collect::<History>());
        let encoded =
            encode(request.with_options(Options::default().with_thinking(ThinkingMode::Budget(2000))), model);
        (encoded.body.get("thinking").map(|thinking| thinking["type"].clone()), encoded.warnings.len())
    };
    let asked = |thinking: Option<Content>| {
        let content = thinking.into_iter().chain([Content::from(tool_use("a"))]);
        written_by("anthropic_messages", Message::assistant(content.collect::<Vec<_>>()))
    };
    let enabled = |kind: &str| Some(json!(kind));
    let signed = || thinking("hm", Some("sig"), None);
    for model in ["claude-sonnet-4-5", "claude-3-7-sonnet-latest", "claude-opus-4-6"] {
        assert_eq!(body(model, asked(None), &[]), (None, 1), "{model}");
        assert_eq!(body(model, asked(Some(thinking("unsigned", None, None))), &[]), (None, 1), "{model}");
        assert_eq!(body(model, asked(Some(signed())), &[]), (enabled("enabled"), 0), "{model}");
        assert_eq!(body(model, asked(Some(thinking("", None, Some("data")))), &[]), (enabled("enabled"), 0));
        // The next turn begins with thinking.
        let next = [Message::assistant("b"), Message::user("c")];
        assert_eq!(body(model, asked(None), &next), (enabled("enabled"), 0), "{model}");
    }
    let foreign = written_by("openai_responses", asked(Some(signed())));
    assert_eq!(body("claude-sonnet-4-5", foreign, &[]), (None, 1));
    // Models that think adaptively, and models of others, don't require it.
    assert_eq!(body("claude-opus-4-8", asked(None), &[]), (enabled("adaptive"), 1));
    assert_eq!(body("glm-5", asked(None), &[]), (enabled("enabled"), 0));
}

#[test]
fn encode_thinking_is_sent_back_signed_and_only_to_its_own_format() {
    let content = || {
        vec![
            thinking("signed", Some("sig"), None),
            thinking("", Some("only-sig"), None),
            thinking("", None, Some("hidden")),
            thinking("unsigned", None, None),
            thinking("empty", Some(""), None),
            Content::from("so"),
        ]
    };
    let native = json!([
        {"type": "thinking", "thinking": "signed", "signature": "sig"},
        {"type": "thinking", "thinking": "", "signature": "only-sig"},
        {"type": "redacted_thinking", "data": "hidden"},
        text("so"),
    ]);
    for message in
        [written_by("anthropic_messages", Message::assistant(content())), Message::assistant(content())]
    {
        assert_eq!(messages([Message::user("a"), message])[1]["content"], native);
    }
    let foreign = written_by("openai_responses", Message::assistant(content()));
    assert_eq!(messages([Message::user("a"), foreign])[1]["content"], json!([text("so")]));
}

#[test]
fn encode_bound_thinking_is_omitted_without_a_binding_that_allows_dropping_it() {
    let answer = |content: Content| {
        let content = vec![thinking("Hm.", Some("sig"), None), content];
        written_by("anthropic_messages", Message::assistant(content))
    };
    let call = |id: &str| answer(Content::from(tool_use(id)));
    let result = |id: &str| Message::user(vec![ToolResult::ok(&tool_use(id), "ok")]);
    let history = [
        Message::user("a"),
        answer(Content::from("b")),
        Message::user("c"),
        call("t1"),
        result("t1"),
        call("t2"),
        result("t2"),
    ];
    let disabled = json!({"type": "disabled"});
    let (off, none) = (Some(ThinkingMode::Off), None);
    for (model, mode, extra, expected) in [
        // With this setting, the model still thinks between tool calls. The service requires that the thinking of the
        // open turn is sent back.
        ("claude-sonnet-5-5", off, None, [false, true, true]),
        ("claude-haiku-5-5", Some(ThinkingMode::Budget(0)), None, [false; 3]),
        ("claude-haiku-5-5", none, Some(disabled), [false; 3]),
        ("claude-sonnet-5-5", none, Some(json!({"type": "between_tools"})), [false, true, true]),
        ("claude-sonnet-5-5", none, None, [true; 3]),
        ("claude-opus-5-5", off, None, [true; 3]),
        ("claude-sonnet-5", off, None, [true; 3]),
    ] {
        let mut request = Request::new(History::from_iter(history.clone()));
        request.options.set_thinking(mode);
        request
            .options
            .set_extra(extra.map(|thinking| [("thinking".to_owned(), thinking)].into_iter().collect()));
        let body = encode(request, model).body;
        let sent = [1, 3, 5].map(|at| {
            let content = body["messages"][at]["content"].as_array().unwrap();
            assert!(content.len() <= 2);
            content[0]["type"] == "thinking"
        });
        assert_eq!(sent, expected, "{model} {mode:?}");
    }
}

#[test]
fn encode_server_tool_use_without_a_result_is_omitted() {
    let item = |data: &Value| Content::from(ProviderItem::new("anthropic_messages", data.clone()));
    let used = |kind: &str, id: &str| json!({"type": kind, "id": id, "name": "web_search", "input": {}});
    let result = |kind: &str, id: &str| json!({"type": kind, "tool_use_id": id, "content": []});
    let (search, mcp) = (used("server_tool_use", "srvtoolu_1"), used("mcp_tool_use", "mcptoolu_1"));
    let found = result("web_search_tool_result", "srvtoolu_1");
    let answered = result("mcp_tool_result", "mcptoolu_1");

    // An interrupted answer: the conversation continued without the result of the tool.
    let broken = Message::assistant(vec![Content::from("Let me look."), item(&search), item(&mcp)]);
    let encoded = messages([Message::user("a"), broken.clone(), Message::user("b")]);
    assert_eq!(
        encoded,
        json!([
            {"role": "user", "content": [text("a")]},
            {"role": "assistant", "content": [text("Let me look.")]},
            {"role": "user", "content": [text("b")]},
        ])
    );
    // An interrupted answer that contains only the tool use.
    let alone = Message::assistant(vec![item(&search)]);
    let encoded = messages([Message::user("a"), alone.clone(), Message::user("b")]);
    assert_eq!(encoded, json!([{"role": "user", "content": [text("a"), text("b")]}]));
    // A paused answer, which the service will continue.
    assert_eq!(messages([Message::user("a"), alone.clone()])[1]["content"], json!([search]));
    // A paused answer that was continued in a separate message.
    let rest = Message::assistant(vec![item(&found), "Found.".into()]);
    let encoded = messages([Message::user("a"), alone, rest, Message::user("b")]);
    assert_eq!(encoded[1]["content"], json!([search, found, text("Found.")]));
    // Only the tool use without a result is omitted.
    let half = Message::assistant(vec![item(&search), item(&found), item(&mcp), "So.".into()]);
    let encoded = messages([Message::user("a"), half, Message::user("b")]);
    assert_eq!(encoded[1]["content"], json!([search, found, text("So.")]));
    let both = Message::assistant(vec![item(&mcp), item(&answered), "So.".into()]);
    let encoded = messages([Message::user("a"), both, Message::user("b")]);
    assert_eq!(encoded[1]["content"], json!([mcp, answered, text("So.")]));
}

#[test]
fn encode_server_tool_that_waits_for_a_tool_of_the_application_is_kept() {
    let code = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}});
    let caller = json!({"type": "code_execution_20250825", "tool_id": "srvtoolu_1"});
    let call = tool_use("toolu_1").with_signature(caller.to_string());
    let item = ProviderItem::new("anthropic_messages", code.clone());
    let answer =
        written_by("anthropic_messages", Message::assistant(vec![Content::from(item), call.clone().into()]));
    let result = Message::user(Content::from(ToolResult::ok(&call, "rain")));
    let encoded = messages([Message::user("a"), answer, result]);
    assert_eq!(encoded[1]["content"][0], code);
    assert_eq!(encoded[1]["content"][1]["caller"], caller);
}

#[test]
fn encode_server_tool_use_beside_a_tool_of_the_application_waits_for_its_result() {
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}});
    let item = || Content::from(ProviderItem::new("anthropic_messages", search.clone()));
    let call = tool_use("toolu_1");
    let result = || Content::from(ToolResult::ok(&call, "rain"));
    let asked = || Message::assistant(vec![item(), call.clone().into()]);
    let kinds = |history: Vec<Message>| -> Vec<String> {
        let encoded = messages(history);
        let blocks = encoded[1]["content"].as_array().unwrap().clone();
        blocks.iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    let resumed = || vec![Message::user("a"), asked(), Message::user(result())];
    assert_eq!(kinds(resumed()), ["server_tool_use", "tool_use"]);
    // The service resumes only if the message has nothing but results.
    let joined = Message::user(vec![result(), "Quick!".into()]);
    assert_eq!(kinds(vec![Message::user("a"), asked(), joined]), ["tool_use"]);
    assert_eq!(kinds([resumed(), vec![Message::user("Quick!")]].concat()), ["tool_use"]);
    // The service answered without the result of its tool.
    let later = [resumed(), vec![Message::assistant("Rain."), Message::user("b")]].concat();
    assert_eq!(kinds(later), ["tool_use"]);
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let found = Content::from(ProviderItem::new("anthropic_messages", found));
    let rest = Message::assistant(vec![found, "Rain.".into()]);
    assert_eq!(kinds([resumed(), vec![rest, Message::user("b")]].concat()), ["server_tool_use", "tool_use"]);
}

#[test]
fn encode_stored_blocks_before_a_fallback_are_omitted_with_their_results() {
    let fallback = json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}});
    let item = || Content::from(ProviderItem::new("anthropic_messages", fallback.clone()));
    let (declined, kept) = (tool_use("declined"), tool_use("kept"));
    let result = |call| Content::from(ToolResult::ok(call, "rain"));
    let void = || vec![Content::from("I will"), declined.clone().into(), item(), "Hm".into(), item()];
    let rest = vec![Content::from("Better: "), kept.clone().into()];
    let answer = written_by("anthropic_messages", Message::assistant([void(), rest].concat()));
    let results = Message::user(vec![result(&declined), result(&kept)]);
    let encoded = messages([Message::user("a"), answer, results]);
    let kinds = |message: &Value| -> Vec<String> {
        let blocks = message["content"].as_array().unwrap();
        blocks.iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&encoded[1]), ["fallback", "text", "tool_use"]);
    assert_eq!(kinds(&encoded[2]), ["tool_result"]);
    assert_eq!(encoded[2]["content"][0]["tool_use_id"], "kept");
    // A message that had only results of void uses is omitted, and a later use may have the same id.
    let again = Message::assistant(Content::from(declined.clone()));
    let history = [Message::user("a"), Message::assistant(void()), Message::user(result(&declined)), again];
    let encoded = messages(history.into_iter().chain([Message::user(result(&declined))]));
    assert_eq!(
        (kinds(&encoded[1]), kinds(&encoded[2])),
        (vec!["fallback".into(), "tool_use".into()], vec!["tool_result".into()])
    );
}

#[test]
fn encode_answer_that_ends_in_thinking_omits_that_thinking() {
    let cut = Message::assistant(vec![Content::from("so"), thinking("then", Some("sig"), None)]);
    let only = Message::assistant(vec![thinking("then", Some("sig"), None)]);
    let encoded = messages([Message::user("a"), cut, Message::user("b"), only, Message::user("c")]);
    assert_eq!(
        encoded,
        json!([
            {"role": "user", "content": [text("a")]},
            {"role": "assistant", "content": [text("so")]},
            {"role": "user", "content": [text("b"), text("c")]},
        ])
    );
}

#[test]
fn encode_provider_items_are_sent_back_unchanged_and_only_to_their_own_format() {
    let data = json!({"type": "mcp_tool_use", "id": "m.1", "b": null, "a": [1.5, {"z": ""}]});
    let own = ProviderItem::new("anthropic_messages", data.clone());
    let foreign = ProviderItem::new("openai_responses", json!({"type": "reasoning"}));
    let message = Message::assistant(vec![Content::from(own), foreign.into(), "ok".into()]);
    let encoded = messages([Message::user("a"), message]);
    assert_eq!(encoded[1]["content"], json!([data, text("ok")]));
    assert!(encoded.to_string().contains(&data.to_string()), "the order of members is kept");
}

#[test]
fn encode_compaction_without_content_is_omitted() {
    let sent = |compaction: Value| {
        let item = ProviderItem::new("anthropic_messages", compaction);
        messages([Message::user("a"), Message::assistant(vec![Content::from(item), "ok".into()])])[1]["content"].clone()
    };
    for empty in [
        json!({"type": "compaction", "content": null}),
        json!({"type": "compaction", "content": ""}),
        json!({"type": "compaction", "content": null, "encrypted_content": null}),
        json!({"type": "compaction"}),
    ] {
        assert_eq!(sent(empty.clone()), json!([text("ok")]), "{empty}");
    }
    for kept in [
        json!({"type": "compaction", "content": "Summary."}),
        json!({"type": "compaction", "content": null, "encrypted_content": "Eq"}),
    ] {
        assert_eq!(sent(kept.clone()), json!([kept, text("ok")]));
    }
}

#[test]
fn encode_signatures_of_other_formats_are_not_sent_as_citations() {
    let signed = Text::new("t").with_signature("b64sig==");
    let caller = tool_use("1").with_signature("{\"type\":\"x\"}");
    let message = written_by("google_gemini", Message::assistant(vec![Content::from(signed.clone())]));
    assert_eq!(messages([message])[0]["content"], json!([text("t")]));
    assert_eq!(messages([Message::assistant(vec![signed])])[0]["content"], json!([text("t")]));
    let message = written_by("google_gemini", Message::assistant(vec![Content::from(caller)]));
    assert_eq!(messages([message])[0]["content"][0].get("caller"), None);
}

#[test]
fn encode_tool_use_ids_are_rewritten_alike_in_use_and_result_without_collisions() {
    let ids = ["call.1", "call:1", "call_1", "", "ü", "toolu_Ok-1"];
    let uses: Vec<ToolUse> = ids.iter().map(|id| tool_use(id)).collect();
    let results: Vec<ToolResult> =
        uses.iter().rev().map(|one| ToolResult::ok(one, one.id.as_str())).collect();
    let encoded = messages([Message::user("a"), Message::assistant(uses), Message::user(results)]);
    let sent: Vec<&str> =
        encoded[1]["content"].as_array().unwrap().iter().map(|block| block["id"].as_str().unwrap()).collect();
    assert_eq!(sent, ["call_1", "call_1_2", "call_1_3", "tool_use", "_", "toolu_Ok-1"]);
    let answered: Vec<&str> = encoded[2]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["tool_use_id"].as_str().unwrap())
        .collect();
    assert_eq!(answered, sent.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn encode_tool_use_ids_repeated_in_later_messages_become_distinct() {
    let turn = |_| {
        let used = tool_use("call_0");
        let result = ToolResult::ok(&used, "r");
        [Message::assistant(vec![used]), Message::user(vec![result])]
    };
    let history: Vec<Message> = [Message::user("a")].into_iter().chain((0..3).flat_map(turn)).collect();
    let encoded = messages(history.clone());
    for (index, id) in [(1, "call_0"), (3, "call_0_2"), (5, "call_0_3")] {
        assert_eq!(encoded[index]["content"][0]["id"], id);
        assert_eq!(encoded[index + 1]["content"][0]["tool_use_id"], id);
    }
    let shorter = messages(history[..5].iter().cloned());
    assert_eq!(shorter.as_array().unwrap()[..], encoded.as_array().unwrap()[..5]);
}

#[test]
fn encode_invalid_tool_use_names_and_inputs_are_made_valid() {
    let odd = ToolUse::new("1", "fs.read file", json!([1]));
    let null = ToolUse::new("2", "", Value::Null);
    let encoded = messages([Message::assistant(vec![odd, null])]);
    assert_eq!(
        encoded[0]["content"],
        json!([
            {"type": "tool_use", "id": "1", "name": "fs_read_file", "input": {"value": [1]}},
            {"type": "tool_use", "id": "2", "name": "tool", "input": {}},
        ])
    );
    let declared = ToolUse::new("1", "fs.read", json!({}));
    let request = Request::new([Message::assistant(vec![declared])].into_iter().collect())
        .with_tools(tools(&[("fs.read", "", json!({"type": "object"}))]));
    assert_eq!(encode(request, "m").body["messages"][0]["content"][0]["name"], "fs_read");
}

#[test]
fn encode_tool_results_contain_blocks_errors_and_images() {
    let looked = tool_use("1");
    let image = Attachment::base64("image/png", "aW1n");
    let results = vec![
        ToolResult::ok(&looked, "").with_content(vec![ResultBlock::from("seen"), image.into(), "".into()]),
        ToolResult::error(&tool_use("2"), "broken"),
        ToolResult::error(&tool_use("3"), "").with_content(vec![]),
        ToolResult::ok(&tool_use("4"), " "),
    ];
    let uses: Vec<ToolUse> = ["1", "2", "3", "4"].map(tool_use).into();
    let encoded = messages([Message::assistant(uses), Message::user(results)]);
    assert_eq!(
        encoded[1]["content"],
        json!([
            {"type": "tool_result", "tool_use_id": "1", "content": [
                text("seen"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aW1n"}},
            ]},
            {"type": "tool_result", "tool_use_id": "2", "content": [text("broken")], "is_error": true},
            {"type": "tool_result", "tool_use_id": "3", "content": [text("The tool failed without a message.")],
                "is_error": true},
            {"type": "tool_result", "tool_use_id": "4"},
        ])
    );
}

#[test]
fn encode_tool_results_come_first_in_their_message() {
    let used = tool_use("1");
    let answer = Message::user(vec![Content::from("and now?"), ToolResult::ok(&used, "r").into()]);
    let encoded = messages([Message::assistant(vec![used]), answer, Message::user("go")]);
    let kinds: Vec<&Value> =
        encoded[1]["content"].as_array().unwrap().iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["tool_result", "text", "text"]);
}

#[test]
fn encode_images_and_pdfs_are_sent_as_base64_or_url() {
    let base64 = |media_type: &str| json!({"type": "base64", "media_type": media_type, "data": "AA=="});
    assert_eq!(
        attached(Attachment::base64("image/jpg", "AA==")),
        json!([{"type": "image", "source": base64("image/jpeg")}])
    );
    assert_eq!(
        attached(Attachment::url("image/webp", "https://example.org/i")),
        json!([{"type": "image", "source": {"type": "url", "url": "https://example.org/i"}}])
    );
    let mut pdf = Attachment::base64("application/pdf", "AA==").named("report.pdf");
    pdf.metadata.insert("secret".into(), "note".into());
    assert_eq!(
        attached(pdf),
        json!([{"type": "document", "source": base64("application/pdf"), "title": "report.pdf"}])
    );
    assert_eq!(
        attached(Attachment::url("application/pdf", "https://example.org/p")),
        json!([{"type": "document", "source": {"type": "url", "url": "https://example.org/p"}}])
    );
}

#[test]
fn encode_text_files_are_sent_as_text_documents() {
    for (media_type, data, text) in [
        ("text/plain; charset=utf-8", "aGVsbG8sIHfDtnJsZA==", "hello, wörld"),
        ("text/markdown", "IyBh", "# a"),
        ("application/json", "e30", "{}"),
    ] {
        let source = json!({"type": "text", "media_type": "text/plain", "data": text});
        assert_eq!(
            attached(Attachment::base64(media_type, data)),
            json!([{"type": "document", "source": source}])
        );
    }
}

#[test]
fn encode_unsupported_attachment_is_an_error_or_a_placeholder() {
    for attachment in [
        Attachment::base64("audio/mpeg", "AA=="),
        Attachment::base64("image/svg+xml", "AA=="),
        Attachment::url("text/plain", "https://example.org/t"),
        Attachment::base64("text/plain", "%%%"),
        Attachment::base64("text/plain", "A"),
        Attachment::base64("text/plain", "//8="),
        Attachment::base64("text/plain", ""),
    ] {
        let request = Request::prompt(Content::from(attachment.named("it")));
        let error = AnthropicMessages::default().encode(&request).unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Unsupported);

        let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
        let encoded = encode(request.with_options(options), "m");
        let block = &encoded.body["messages"][0]["content"][0];
        assert_eq!(block["type"], "text");
        assert!(block["text"].as_str().unwrap().contains("it ("), "{block}");
    }
}
