//! Anthropic's Messages format: answers that another model takes over, answers that a compaction interrupts, and their
//! usage.

use std::sync::{Arc, Mutex};

use omni_agent::{
    Agent, Event, Update,
    agent::Snapshot,
    message::{Content, Usage},
    provider::{
        CacheHint, ModelInfo, Price, Rates, Request, StopReason,
        custom::{AnthropicMessages, Delta, Dialect, Frame},
    },
    testing::{ScriptedProvider, Step},
    tool::tool_fn,
};
use serde_json::{Value, json};

use crate::anthropic::{answer, block, decode, delta, end, fold, start, stop};

/// Returns a response with the deltas of these events.
fn streamed(events: &[Value]) -> Step {
    decode(events).unwrap().into_iter().fold(Step::new(), Step::delta)
}

fn fallback() -> Value {
    let named = |model: &str| json!({"model": model});
    json!({"type": "fallback", "from": named("claude-fable-5"), "to": named("claude-opus-4-8")})
}

fn tool_use(index: u64, id: &str) -> [Value; 3] {
    [
        block(index, json!({"type": "tool_use", "id": id, "name": "echo", "input": {}})),
        delta(index, json!({"type": "input_json_delta", "partial_json": "{}"})),
        stop(index),
    ]
}

fn text(index: u64, text: &str) -> [Value; 3] {
    [
        block(index, json!({"type": "text", "text": ""})),
        delta(index, json!({"type": "text_delta", "text": text})),
        stop(index),
    ]
}

/// Returns an answer that one model began with a text and a tool use, and that another model took over.
fn taken_over(rest: impl IntoIterator<Item = Value>, reason: &str) -> Vec<Value> {
    let begun = text(0, "I will").into_iter().chain(tool_use(1, "declined"));
    let over = [block(2, fallback()), stop(2)];
    [start()].into_iter().chain(begun).chain(over).chain(rest).chain(end(reason)).collect()
}

#[test]
fn decode_blocks_before_a_fallback_do_not_count() {
    let folded = fold(decode(&taken_over(text(3, "No."), "end_turn")).unwrap());
    assert_eq!(folded.message.text(), "No.");
    assert_eq!(folded.message.tool_uses().count(), 0);
    assert!(matches!(&folded.message.content[0], Content::ProviderItem(item) if item.data == fallback()));
    assert_eq!((folded.message.content.len(), folded.model.as_deref()), (2, Some("claude-opus-4-8")));
    // Only the last fallback counts, and late events of the earlier blocks change nothing.
    let again = [block(3, json!({"type": "text", "text": "Hm"})), block(4, fallback())];
    let late = [delta(3, json!({"type": "text_delta", "text": "!"})), stop(3), stop(4)];
    let rest = again.into_iter().chain(late).chain(tool_use(5, "t"));
    let folded = fold(decode(&taken_over(rest, "tool_use")).unwrap());
    assert_eq!(folded.message.tool_uses().map(|tool_use| tool_use.id.as_str()).collect::<Vec<_>>(), ["t"]);
    assert_eq!(folded.message.content.len(), 2);
    // Nothing is void if the first model was declined before it wrote anything.
    let deltas = decode(&[start(), block(0, fallback()), stop(0)]).unwrap();
    assert!(!deltas.iter().any(|delta| matches!(delta, Delta::Retry { .. })));
}

#[tokio::test(start_paused = true)]
async fn answer_that_another_model_takes_over_runs_and_keeps_only_the_rest() {
    let ran = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&ran);
    let tool = tool_fn("echo", "Echoes.", move |_: Value, context| {
        noted.lock().unwrap().push(context.tool_use_id().as_str().to_owned());
        async { Ok("echo") }
    });
    let rest = text(3, "Better: ").into_iter().chain(tool_use(4, "kept"));
    let provider = ScriptedProvider::new([streamed(&taken_over(rest, "tool_use")), Step::text("Done.")]);
    let agent = Agent::builder().model(provider.model()).tool(tool).start().await.unwrap();
    let mut updates = agent.subscribe().await.unwrap();
    let mut snapshot = Snapshot::clone(updates.snapshot().unwrap());
    let response = agent.ask("Hi").await.unwrap();

    assert_eq!(*ran.lock().unwrap(), ["kept"]);
    let request = provider.last_request().unwrap();
    let body = AnthropicMessages::default().encode(&request).unwrap().body;
    let kinds = |message: &Value| -> Vec<String> {
        let blocks = message["content"].as_array().unwrap();
        blocks.iter().map(|block| block["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&body["messages"][1]), ["fallback", "text", "tool_use"]);
    assert_eq!(kinds(&body["messages"][2]), ["tool_result"]);
    // The request has one usage, although its answer began twice.
    assert_eq!((response.usage.input, response.usage.output), (10, 20));

    let (mut retries, mut partial) = (0, 0);
    while let Some(update) = updates.next().await {
        let Update::Event(event) = update else { panic!("no update is lost") };
        snapshot.apply(&event);
        match &*event.event {
            Event::Retry { failure, .. } => {
                retries += 1;
                partial = snapshot.partial.len();
                assert!(failure.to_string().contains("claude-opus-4-8"), "{failure}");
            }
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    assert_eq!((retries, partial), (1, 0));
}

#[test]
fn decode_usage_of_several_iterations_is_their_sum() {
    let iteration = |kind: &str, input: u64, output: u64| {
        json!({"type": kind, "input_tokens": input, "output_tokens": output, "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 3})
    };
    let of = |iterations: Value| {
        let usage = json!({"input_tokens": 23, "output_tokens": 10, "iterations": iterations});
        let last = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage});
        let events: Vec<Value> =
            [start()].into_iter().chain(text(0, "a")).chain([last, end("x")[1].clone()]).collect();
        fold(decode(&events).unwrap()).usage
    };
    let compacted = of(json!([iteration("compaction", 180, 35), iteration("message", 23, 10)]));
    let sum = Usage::default().with_input(203).with_output(45).with_cache_read(10).with_cache_write(6);
    assert_eq!(compacted, sum);
    // An attempt that was declined before it wrote anything is not billed.
    let declined = of(json!([iteration("message", 180, 0), iteration("fallback_message", 23, 10)]));
    assert_eq!(
        declined,
        Usage::default().with_input(23).with_output(10).with_cache_read(5).with_cache_write(3)
    );
    for nothing in [Value::Null, json!([]), json!([iteration("message", 23, 0)])] {
        assert_eq!(of(nothing.clone()), Usage::default().with_input(23).with_output(10), "{nothing}");
    }
}

#[test]
fn decode_usage_of_several_passes_gives_the_size_of_the_last_one() {
    let of = |usage: Value, blocks: Vec<Value>| {
        let mut begin = start();
        begin["message"]["usage"] =
            json!({"input_tokens": 10, "cache_read_input_tokens": 60_000, "output_tokens": 1});
        let last = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage});
        let events: Vec<Value> = [begin]
            .into_iter()
            .chain(blocks)
            .chain(text(9, "a"))
            .chain([last, end("x")[1].clone()])
            .collect();
        fold(decode(&events).unwrap()).message.context_tokens
    };
    let counts = json!({"input_tokens": 9_000, "cache_read_input_tokens": 300_000, "output_tokens": 900});
    let item = json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}});
    let searched = vec![
        json!({"type": "content_block_start", "index": 0, "content_block": item}),
        json!({"type": "content_block_stop", "index": 0}),
    ];
    assert_eq!(of(counts.clone(), searched), Some(69_900));
    assert_eq!(of(counts, Vec::new()), None);
    let compacted = json!({"input_tokens": 23_000, "output_tokens": 50, "iterations": [
        {"type": "compaction", "input_tokens": 180_000, "output_tokens": 400},
        {"type": "message", "input_tokens": 23_000, "output_tokens": 50}]});
    assert_eq!(of(compacted, Vec::new()), Some(23_050));
}

#[test]
fn decode_usage_of_several_iterations_stays_their_sum_and_each_has_its_own_rates() {
    let mut price = Price::new(1.0, 0.0).with_cache(0.1, 1.25).with_tier(200_000, Rates::new(10.0, 0.0));
    price.rates.cache_write_long = Some(2.0);
    let mut request = Request::prompt("Hi").with_model_info(ModelInfo::new("m").with_price(price));
    request.options.set_cache(Some(CacheHint::Long));
    let usage = |iterations: Value| json!({"input_tokens": 1, "output_tokens": 1, "iterations": iterations});
    let end = |usage: &Value| json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage});
    let iteration = json!({"type": "message", "input_tokens": 100_000, "cache_creation_input_tokens": 50_000, "output_tokens": 1});
    let reports = [usage(json!([iteration, iteration])), usage(Value::Null), usage(json!([]))];
    let mut decoder = AnthropicMessages::default().decoder(&request);
    let mut deltas = Vec::new();
    for event in [start()].into_iter().chain(text(0, "a")).chain(reports.iter().map(end)) {
        decoder.decode(Frame::new("", &event.to_string()), &mut deltas).unwrap();
    }
    let usage = fold(deltas).usage;
    assert_eq!((usage.input, usage.cache_write, usage.output), (200_000, 100_000, 2));
    assert_eq!(usage.cost, Some(0.4));
}

#[test]
fn decode_reported_lifetimes_of_cache_writes_decide_their_price() {
    let mut price = Price::new(1.0, 0.0).with_cache(0.1, 1.25);
    price.rates.cache_write_long = Some(2.0);
    let info = ModelInfo::new("m").with_price(price);
    let cost = |usage: &Value, hint: Option<CacheHint>| {
        let mut request = Request::prompt("Hi").with_model_info(info.clone());
        request.options.set_cache(hint);
        let mut decoder = AnthropicMessages::default().decoder(&request);
        let mut begin = start();
        begin["message"]["usage"] = usage.clone();
        let mut deltas = Vec::new();
        for event in [begin].iter().chain(&text(0, "a")).chain(&end("end_turn")) {
            decoder.decode(Frame::new("", &event.to_string()), &mut deltas).unwrap();
        }
        fold(deltas).usage.cost
    };
    let written = |lifetimes: Value| {
        json!({"input_tokens": 0, "output_tokens": 1, "cache_creation_input_tokens": 3_000_000,
            "cache_creation": lifetimes})
    };
    let mixed =
        written(json!({"ephemeral_5m_input_tokens": 1_000_000, "ephemeral_1h_input_tokens": 2_000_000}));
    for hint in [None, Some(CacheHint::Short), Some(CacheHint::Long)] {
        assert_eq!(cost(&mixed, hint), Some(1.25 + 2.0 * 2.0), "{hint:?}");
    }
    // Without a report of the lifetimes, the model computes the cost from the cache hint.
    assert_eq!(cost(&written(Value::Null), Some(CacheHint::Long)), None);
}

#[tokio::test(start_paused = true)]
async fn answer_that_ends_with_a_compaction_is_continued() {
    let compacted = [
        start(),
        block(0, json!({"type": "compaction", "content": null})),
        delta(0, json!({"type": "compaction_delta", "content": "So far: nothing."})),
        stop(0),
    ];
    let compacted: Vec<Value> = compacted.into_iter().chain(end("compaction")).collect();
    assert_eq!(answer(text(0, "a"), "compaction").stop_reason, StopReason::Pause);
    let provider = ScriptedProvider::new([streamed(&compacted), Step::text("Done.")]);
    let agent = Agent::builder().model(provider.model()).start().await.unwrap();
    let response = agent.ask("Hi").await.unwrap();
    assert_eq!(response.text(), "Done.");
    let body = AnthropicMessages::default().encode(&provider.last_request().unwrap()).unwrap().body;
    assert_eq!(
        body["messages"][1]["content"],
        json!([{"type": "compaction", "content": "So far: nothing."}])
    );
}
