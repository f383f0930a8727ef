//! Messages, blocks, ids and usage.

use std::collections::{HashMap, HashSet};

use omni_agent::message::{
    Attachment, Blocks, Content, Message, ProviderItem, Role, Text, Thinking, Timestamp, ToolResult, ToolUse,
    ToolUseId, Usage,
};
use proptest::prelude::*;
use serde_json::json;

use crate::strategies;

#[test]
fn user_from_any_supported_value_has_its_blocks() {
    let hi = [Content::from(Text::new("hi"))];
    let owned = String::from("hi");
    assert_eq!(Message::user("hi").content, hi);
    assert_eq!(Message::user(&owned).content, hi);
    assert_eq!(Message::user(owned).content, hi);
    assert_eq!(Message::user(Text::new("hi")).content, hi);
    assert_eq!(Message::user(Content::from("hi")).content, hi);
    assert_eq!(Message::user(["hi"]).content, hi);
    assert_eq!(Message::user(vec!["hi".to_owned()]).content, hi);
    assert_eq!(Message::user(Blocks::from_iter(["hi"])).content, hi);
    assert_eq!(Message::user("").content, []);
    let picture = Attachment::url("image/png", "https://example.com/x.png");
    assert_eq!(Message::user(picture.clone()).content, [Content::from(picture)]);
    let tool_use = ToolUse::new("a", "add", json!({}));
    assert_eq!(Message::assistant(tool_use.clone()).content, [Content::from(tool_use.clone())]);
    let result = ToolResult::ok(&tool_use, "1");
    assert_eq!(Message::user(result.clone()).content, [Content::from(result)]);
}

#[test]
fn text_joins_only_the_text_blocks() {
    let message = Message::assistant([
        Content::from("a"),
        Thinking::new("hidden").into(),
        ToolUse::new("1", "add", json!({})).into(),
        "b".into(),
    ]);
    assert_eq!(message.text(), "ab");
    assert_eq!(message.tool_uses().map(|tool_use| tool_use.id.as_str()).collect::<Vec<_>>(), ["1"]);
    assert_eq!(message.tool_results().count(), 0);
    let mut result = ToolResult::ok(message.tool_uses().next().unwrap(), "x");
    result.content.push(Attachment::url("image/png", "u").into());
    result.content.push("y".into());
    assert_eq!(result.text(), "xy");
}

#[test]
fn result_has_the_id_of_its_tool_use() {
    let tool_use = ToolUse::new("1", "add", json!({}));
    let ok = ToolResult::ok(&tool_use, "3");
    let error = ToolResult::error(&tool_use, "no");
    for result in [&ok, &error] {
        assert_eq!((&result.tool_use_id, result.name.as_str()), (&tool_use.id, "add"));
    }
    assert!(!ok.is_error && error.is_error);
}

#[test]
fn is_blank_considers_only_content_for_the_model() {
    assert!(Blocks::default().is_blank());
    assert!(Blocks::from(" \n\t").is_blank());
    assert!(Blocks::from(["", " "]).is_blank());
    assert!(!Blocks::from(["", "x"]).is_blank());
    assert!(!Blocks::from(Attachment::url("image/png", "u")).is_blank());
}

#[test]
fn is_native_to_is_true_for_the_format_that_produced_it() {
    let mut message = Message::assistant("hi");
    assert!(message.is_native_to("responses") && message.is_native_to("messages"));
    message.provider_data.insert("responses".into(), json!({}));
    assert!(message.is_native_to("responses") && !message.is_native_to("messages"));
}

#[test]
fn thinking_is_signed_by_signature_or_redaction() {
    assert!(!Thinking::new("hm").is_signed());
    assert!(!Thinking::default().with_signature(String::new()).is_signed());
    assert!(Thinking::default().with_signature("s").is_signed());
    assert!(Thinking::default().with_redacted("r").is_signed());
}

#[test]
fn is_image_depends_on_the_media_type() {
    assert!(Attachment::base64("image/png", "").is_image());
    assert!(Attachment::base64("IMAGE/PNG", "").is_image());
    assert!(!Attachment::base64("application/pdf", "").is_image());
    assert!(!Attachment::base64("img", "").is_image());
}

#[test]
fn weight_counts_every_string() {
    const LONG: usize = 100_000;
    let long = || "x".repeat(LONG);
    let tool_use = ToolUse::new("a", "b", json!({}));
    let mut signed_text = Text::new("");
    signed_text.signature = Some(long());
    let mut signed_use = tool_use.clone();
    signed_use.signature = Some(long());
    let mut malformed = tool_use.clone();
    malformed.malformed = Some(long());
    let mut noted = Attachment::url("image/png", "u");
    noted.metadata.insert(long(), json!(null));
    let mut signed_result = ToolResult::ok(&tool_use, "");
    signed_result.content = vec![signed_text.clone().into()];
    let blocks: Vec<Content> = vec![
        Text::new(long()).into(),
        signed_text.into(),
        Thinking::new(long()).into(),
        Thinking::default().with_signature(long()).into(),
        Thinking::default().with_redacted(long()).into(),
        Attachment::base64("image/png", long()).into(),
        Attachment::url("image/png", long()).into(),
        Attachment::url(long(), "u").into(),
        Attachment::url("image/png", "u").named(long()).into(),
        noted.into(),
        ToolUse::new(long(), "b", json!({})).into(),
        ToolUse::new("a", long(), json!({})).into(),
        ToolUse::new("a", "b", json!({ "deep": [long()] })).into(),
        signed_use.into(),
        malformed.into(),
        ToolResult::ok(&ToolUse::new(long(), "b", json!({})), "").into(),
        ToolResult::ok(&tool_use, long()).into(),
        signed_result.into(),
        ProviderItem::new(long(), json!(null)).into(),
        ProviderItem::new(String::new(), json!([{ "x": long() }])).into(),
    ];
    for block in blocks {
        let debug = format!("{block:?}").replace("xxx", "");
        let weight = Message::user(block).weight();
        assert!((LONG..LONG + 1_000).contains(&weight), "{weight} for {debug}");
    }
    let mut message = Message::user("");
    message.provider_data.insert("f".into(), json!(long()));
    assert!(message.weight() >= LONG);
}

proptest! {
    #[test]
    fn weight_is_near_the_length_of_the_json(message in strategies::message()) {
        let json = serde_json::to_string(&message).unwrap().len();
        let weight = message.weight();
        prop_assert!(weight <= json * 3 + 256, "weight {weight}, JSON {json}");
    }

    #[test]
    fn usage_sum_never_overflows(a in usage(), b in usage()) {
        let sum = a + b;
        prop_assert_eq!(sum.input, a.input.saturating_add(b.input));
        prop_assert_eq!(sum.cache_read, a.cache_read.saturating_add(b.cache_read));
        prop_assert_eq!(sum.cache_write, a.cache_write.saturating_add(b.cache_write));
        prop_assert_eq!(sum.output, a.output.saturating_add(b.output));
        prop_assert_eq!(sum.reasoning, a.reasoning.saturating_add(b.reasoning));
        prop_assert_eq!(sum, b + a);
        prop_assert_eq!([a, b].into_iter().sum::<Usage>(), sum);
        prop_assert!(sum.total() >= sum.prompt());
        let mut assigned = a;
        assigned += b;
        prop_assert_eq!(assigned, sum);
    }
}

fn usage() -> impl Strategy<Value = Usage> {
    let count = || prop_oneof![0u64..1000, Just(u64::MAX), any::<u64>()];
    let cost = proptest::option::of((0u32..1000).prop_map(f64::from));
    (count(), count(), count(), count(), count(), cost).prop_map(
        |(input, cache_read, cache_write, output, reasoning, cost)| {
            let usage =
                Usage::default().with_input(input).with_cache_read(cache_read).with_cache_write(cache_write);
            usage.with_output(output).with_reasoning(reasoning).with_cost(cost)
        },
    )
}

#[test]
fn usage_sum_has_a_cost_if_one_side_has() {
    let cost = |cost: Option<f64>| Usage::default().with_cost(cost);
    assert_eq!((cost(None) + cost(None)).cost, None);
    assert_eq!((cost(Some(1.5)) + cost(None)).cost, Some(1.5));
    assert_eq!((cost(Some(1.5)) + cost(Some(0.5))).cost, Some(2.0));
}

#[test]
fn usage_totals_do_not_count_reasoning_twice() {
    let usage = Usage::default()
        .with_input(1)
        .with_cache_read(10)
        .with_cache_write(100)
        .with_output(1000)
        .with_reasoning(900);
    assert_eq!((usage.prompt(), usage.total()), (111, 1111));
}

#[test]
fn tool_use_id_is_found_by_its_text() {
    let map = HashMap::from([(ToolUseId::new("a"), 1)]);
    assert_eq!(map.get("a"), Some(&1));
    assert!(HashSet::from([ToolUseId::from("a".to_owned())]).contains("a"));
    assert_eq!(ToolUseId::from("a").to_string(), "a");
    assert_eq!(format!("{:?}", ToolUseId::from("a")), "\"a\"");
}

#[test]
fn role_shows_as_it_is_stored() {
    assert_eq!((Role::User.to_string(), Role::Assistant.to_string()), ("user".into(), "assistant".into()));
}

#[test]
fn timestamp_is_in_milliseconds() {
    let before = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let now = u128::from(Timestamp::now().0);
    let after = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    assert!((before..=after).contains(&now));
}

fn any_cost() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![Just(None), Just(Some(f64::MAX)), prop::num::f64::ANY.prop_map(Some)]
}

proptest! {
    #[test]
    fn usage_sum_of_any_costs_is_finite_or_unknown(costs in prop::collection::vec(any_cost(), 0..8)) {
        let usage = |cost: Option<f64>| Usage::default().with_cost(cost);
        let sum: Usage = costs.iter().map(|cost| usage(*cost)).sum();
        prop_assert!(sum.cost.is_none_or(f64::is_finite), "{:?}", sum.cost);
        prop_assert_eq!(sum, sum);
        let small = costs.iter().flatten().all(|cost| cost.is_finite() && cost.abs() < 1e300);
        if small {
            prop_assert_eq!(sum.cost.is_some(), costs.iter().any(Option::is_some));
        }
    }
}

#[test]
fn attachment_from_bytes_and_from_a_file_has_base64_and_the_media_type() {
    assert_eq!(Attachment::from_bytes("image/png", b"cat"), Attachment::base64("image/png", "Y2F0"));
    let folder = std::env::temp_dir().join(format!("omni-agent-attachment-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name);
    std::fs::write(path("Cat.JPEG"), b"cat").unwrap();
    std::fs::write(path("cat.unknown"), b"cat").unwrap();
    let cat = Attachment::from_file(path("Cat.JPEG")).unwrap();
    assert_eq!(cat, Attachment::base64("image/jpeg", "Y2F0").named("Cat.JPEG"));
    let unknown = Attachment::from_file(path("cat.unknown")).unwrap_err();
    assert_eq!(unknown.kind(), std::io::ErrorKind::InvalidInput);
    assert!(unknown.to_string().contains("cat.unknown can't be attached"), "{unknown}");
    let missing = Attachment::from_file(path("dog.png")).unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
    assert!(missing.to_string().contains("dog.png can't be read"), "{missing}");
    std::fs::remove_dir_all(folder).unwrap();
}
