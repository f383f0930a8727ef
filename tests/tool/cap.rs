use omni_agent::{
    message::{Attachment, ResultBlock, Text, ToolResult, ToolUse},
    tool::{ToolContext, ToolLimits, ToolOutput, ToolSet, tool_fn},
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn run(blocks: Vec<ResultBlock>, max_output: usize) -> ToolResult {
    let tool = tool_fn("a", "A.", move |_: Value, _| {
        let output = ToolOutput::from(blocks.clone());
        async { Ok(output) }
    });
    let tools = ToolSet::new().with(tool).unwrap();
    let limits = ToolLimits::default().with_max_output(max_output);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let tool_use = ToolUse::new("id", "a", json!({}));
    runtime.block_on(tools.run(&tool_use, ToolContext::detached("id"), &limits))
}

fn bytes(result: &ToolResult) -> usize {
    result
        .content
        .iter()
        .map(|block| match block {
            ResultBlock::Text(text) => text.text.len(),
            ResultBlock::Attachment(attachment) => serde_json::to_string(&attachment.source).unwrap().len(),
            other => panic!("{other:?}"),
        })
        .sum()
}

#[test]
fn run_output_of_exactly_the_limit_is_whole() {
    let blocks = vec![ResultBlock::from("é".repeat(50)), ResultBlock::from("x".repeat(100))];
    assert_eq!(run(blocks.clone(), 200).content, blocks);
}

/// Returns the text blocks of a result.
fn texts(result: &ToolResult) -> Vec<&str> {
    let texts = result.content.iter().filter_map(|block| match block {
        ResultBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect()
}

#[test]
fn run_text_beyond_the_limit_keeps_its_beginning_and_end_around_a_notice() {
    let lines: Vec<_> = (0..1_000).map(|number| format!("{number:04}\n")).collect();
    let text = lines.concat();
    let result = run(vec![text.as_str().into()], 400);
    assert!(!result.is_error);
    let [start, notice, end] = texts(&result)[..] else { panic!("{:?}", result.content) };
    assert!(text.starts_with(start) && text.ends_with(end));
    assert!(start.len().abs_diff(end.len()) <= 1 && start.len() > 150, "{start:?} {end:?}");
    let missing = text.len() - start.len() - end.len();
    assert_eq!(notice, format!("\n[Output was cut to 400 bytes: {missing} bytes of text omitted here.]\n"));
    assert!(bytes(&result) <= 400);
}

#[test]
fn run_texts_of_several_blocks_keep_the_first_beginning_and_the_last_end() {
    let blocks = |middle: ResultBlock| {
        vec!["first ".into(), "x".repeat(300).into(), middle, "y".repeat(300).into(), " last".into()]
    };
    let result = run(blocks("middle".into()), 400);
    assert!(
        result.text().starts_with("first xxx") && result.text().ends_with("yyy last"),
        "{}",
        result.text()
    );
    assert!(!result.text().contains("middle"));
    assert_eq!(texts(&result).iter().filter(|text| text.contains("omitted here")).count(), 1);
    assert!(bytes(&result) <= 400);

    // An attachment that comes before the cut is kept.
    let image = Attachment::url("image/png", "https://example.com/a.png");
    let result =
        run(vec!["first ".into(), image.clone().into(), "x".repeat(900).into(), " last".into()], 400);
    assert_eq!(result.content[1], image.into());
    assert!(result.text().ends_with("x last"), "{}", result.text());
}

#[test]
fn run_json_beyond_the_limit_keeps_its_beginning_and_end() {
    let lines: Vec<Value> = (0..500).map(|number| json!({ "line": number })).collect();
    let output = json!({ "lines": lines, "status": "failed" });
    let result = run(vec![output.to_string().into()], 600);
    assert!(result.text().starts_with(r#"{"lines":[{"line":0}"#), "{}", result.text());
    assert!(result.text().ends_with(r#"],"status":"failed"}"#), "{}", result.text());
}

#[test]
fn run_text_is_cut_between_characters() {
    for limit in 100..120 {
        let result = run(vec!["日本語".repeat(100).into()], limit);
        let [start, _, end] = texts(&result)[..] else { panic!("{:?}", result.content) };
        let text = "日本語".repeat(100);
        assert!(!start.is_empty() && text.starts_with(start) && !end.is_empty() && text.ends_with(end));
        assert!(bytes(&result) <= limit);
    }
}

#[test]
fn run_attachment_that_does_not_fit_is_named_instead() {
    let image = Attachment::base64("image/png", "A".repeat(5_000)).named("map.png");
    let small = Attachment::url("image/png", "https://example.com/a.png");
    let result = run(vec!["before".into(), image.into(), small.clone().into(), "after".into()], 1_000);
    assert_eq!(result.content.len(), 5);
    assert_eq!(result.content[0], "before".into());
    assert_eq!(
        result.content[1],
        "[Attachment map.png (image/png, 5000 bytes) was omitted: it exceeds the limit.]".into()
    );
    assert_eq!(result.content[2], small.into());
    assert_eq!(result.content[3], "after".into());
    assert_eq!(result.content[4], "\n[Output was cut to 1000 bytes: 1 attachment omitted.]".into());
}

#[test]
fn run_signature_of_cut_text_is_dropped() {
    let text = Text::new("x".repeat(1_000)).with_signature("s");
    for block in run(vec![text.into()], 300).content {
        let ResultBlock::Text(part) = block else { panic!() };
        assert_eq!(part.signature, None);
    }
}

#[test]
fn run_error_text_is_capped_too() {
    let tool_use = ToolUse::new("id", "missing", json!({}));
    let limits = ToolLimits::default().with_max_output(20);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let result = runtime.block_on(ToolSet::new().run(&tool_use, ToolContext::detached("id"), &limits));
    assert!(result.is_error && bytes(&result) <= 20);
}

fn any_block() -> impl Strategy<Value = ResultBlock> {
    prop_oneof![
        3 => "\\PC{0,80}".prop_map(ResultBlock::from),
        1 => ("[A-Z]{0,300}", prop::option::of("\\PC{0,20}")).prop_map(|(data, name)| {
            let attachment = Attachment::base64("image/png", data);
            match name {
                Some(name) => attachment.named(name),
                None => attachment,
            }
            .into()
        }),
    ]
}

proptest! {
    #[test]
    fn run_any_output_never_exceeds_any_limit(
        blocks in prop::collection::vec(any_block(), 0..6),
        limit in 0_usize..600,
    ) {
        let result = run(blocks.clone(), limit);
        let payload: usize = result.content.iter().map(|block| match block {
            ResultBlock::Text(text) => text.text.len(),
            ResultBlock::Attachment(Attachment { source: omni_agent::message::Source::Base64 { data }, name, .. }) => {
                data.len() + name.as_ref().map_or(0, String::len)
            }
            other => panic!("{other:?}"),
        }).sum();
        prop_assert!(payload <= limit);
        if limit >= 150 && result.content != blocks {
            prop_assert!(result.text().contains("Output was cut to"), "{:?}", result.content);
        }
    }
}
