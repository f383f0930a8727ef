//! Attachments, options and reported values.

use omni_agent::{
    message::{Attachment, Content, Text, Usage},
    provider::{CacheHint, Options, ProviderErrorKind, StopReason, UnsupportedAttachment},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{
    rig::{Cell, Format, PDF, PNG, Rig, provider_error, warned, weather},
    script::{Answer, Stop},
    server::Seen,
};

/// Sends a file, and returns the request as the service has read it. If the format does not support the file, asserts
/// that the request fails, and that a placeholder is sent if the options ask for one.
async fn attach(rig: &Rig, file: Attachment) -> Result<Seen, Cell> {
    let content = || vec![Content::from(Text::new("What is this?")), file.clone().into()];
    rig.service.will(Answer::text("A file."));
    match rig.agent().await.ask(content()).await {
        Ok(_) => Ok(rig.last()),
        failed => {
            let error = provider_error(failed);
            assert_eq!((error.kind, error.status), (ProviderErrorKind::Unsupported, None), "{error:?}");
            assert!(rig.service.seen().is_empty());
            let instead = UnsupportedAttachment::Placeholder;
            let options = Options::default().with_unsupported_attachment(instead);
            rig.agent_with(options).await.ask(content()).await.unwrap();
            let said = rig.last().said;
            assert!(said.iter().any(|(_, text)| text.contains("[attachment")), "{said:?}");
            Err(Cell::Unsupported)
        }
    }
}

pub(super) async fn image(rig: &mut Rig) -> Cell {
    match attach(rig, Attachment::base64("image/png", PNG)).await {
        Ok(seen) => assert_eq!(seen.images, [PNG]),
        Err(cell) => return cell,
    }
    Cell::Works
}

pub(super) async fn image_by_url(rig: &mut Rig) -> Cell {
    let url = "https://example.com/cat.png";
    match attach(rig, Attachment::url("image/png", url)).await {
        Ok(seen) => assert_eq!(seen.images, [url]),
        Err(cell) => return cell,
    }
    Cell::Works
}

pub(super) async fn pdf(rig: &mut Rig) -> Cell {
    match attach(rig, Attachment::base64("application/pdf", PDF).named("paper.pdf")).await {
        Ok(seen) => assert_eq!(seen.documents, [PDF]),
        Err(cell) => return cell,
    }
    Cell::Works
}

#[derive(Debug, Deserialize, JsonSchema, PartialEq)]
struct Forecast {
    city: String,
    degrees: i32,
}

pub(super) async fn output_schema(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::text(r#"{"city": "Rome", "degrees": 19}"#));
    let forecast: Forecast = rig.agent().await.ask_as("Weather in Rome?").await.unwrap();
    assert_eq!(forecast, Forecast { city: "Rome".into(), degrees: 19 });
    let schema = rig.last().schema.unwrap();
    assert_eq!(schema["required"], json!(["city", "degrees"]));
    assert_eq!(schema["properties"]["city"]["type"], "string");
    Cell::Works
}

pub(super) async fn stop_sequences(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::text("One, two, ").stopping(Stop::Sequence("three".into())));
    let agent = rig.agent_with(Options::default().with_stop_sequences(["three", "3"])).await;
    let response = agent.ask("Count!").await.unwrap();
    let names_sequence = rig.is(&[Format::Messages]);
    assert_eq!(
        response.stop_reason,
        if names_sequence { StopReason::StopSequence } else { StopReason::Stop }
    );
    if rig.last().stop.is_empty() {
        return warned(&response.warnings, "stop_sequences");
    }
    assert_eq!(rig.last().stop, ["three", "3"]);
    Cell::Works
}

pub(super) async fn limit_of_tokens(rig: &mut Rig) -> Cell {
    let agent = rig.agent_with(Options::default().with_max_tokens(100)).await;
    rig.service.will(Answer::text("Once upon a").stopping(Stop::Length));
    let response = agent.ask("A story, please.").await.unwrap();
    assert_eq!((response.text().as_str(), &response.stop_reason), ("Once upon a", &StopReason::Length));
    assert_eq!(rig.last().max_tokens, Some(100));
    rig.service.will(Answer::text("time."));
    agent.ask("Go on.").await.unwrap();
    Cell::Works
}

pub(super) async fn refusal(rig: &mut Rig) -> Cell {
    if rig.is(&[Format::Ollama]) {
        return Cell::Absent;
    }
    let agent = rig.agent().await;
    rig.service.will(Answer::text("I can't help with that.").stopping(Stop::Refusal));
    let response = agent.ask("Help me rob a bank.").await.unwrap();
    assert_eq!(response.stop_reason, StopReason::Refusal);
    assert_eq!(response.text(), "I can't help with that.");
    rig.service.will(Answer::text("Gladly."));
    agent.ask("With a cake, then?").await.unwrap();
    Cell::Works
}

pub(super) async fn usage(rig: &mut Rig) -> Cell {
    let used = Usage::default()
        .with_input(11)
        .with_cache_read(200)
        .with_cache_write(30)
        .with_output(17)
        .with_reasoning(5);
    rig.service.will(Answer::text("Yes.").using(used));
    let response = rig.agent().await.ask("Expensive?").await.unwrap();
    let reported = rig.format.wire().reported_usage(used);
    let mut usage = response.usage;
    usage.cost = None;
    assert_eq!(usage, reported);
    assert_eq!((reported.prompt(), reported.output), (used.prompt(), used.output));
    Cell::Works
}

pub(super) async fn cache_hint(rig: &mut Rig) -> Cell {
    let options = Options::default().with_max_retries(0).with_cache(CacheHint::Long);
    let agent = rig.builder().system("Be brief.").tool(weather()).options(options).start().await.unwrap();
    rig.service.will(Answer::text("Yes."));
    let response = agent.ask("Do you remember?").await.unwrap();
    if !rig.last().cached {
        return warned(&response.warnings, "cache");
    }
    rig.service.will(Answer::text("Still."));
    agent.ask("And now?").await.unwrap();
    Cell::Works
}

pub(super) async fn metadata(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::text("Yes."));
    let agent = rig.agent_with(Options::default().with_metadata([("user_id", "u-1")])).await;
    let response = agent.ask("Know me?").await.unwrap();
    match rig.last().metadata {
        Some(metadata) => assert_eq!(metadata, json!({"user_id": "u-1"})),
        None => return warned(&response.warnings, "metadata"),
    }
    Cell::Works
}
