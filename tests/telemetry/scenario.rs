//! The scenario that several tests play: prompts, a retry, tools, a decision and a cancel. Its texts include secrets,
//! which spans must not contain unless the application asks for their content.

use std::time::Duration;

use omni_agent::{
    Agent, Decision, Event, Options, Status, ToolError,
    message::Usage,
    provider::{Effort, ProviderError, ProviderErrorKind, RetryPolicy, custom::MessageDelta},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};
use tracing::Instrument;

/// The texts that must not appear in a span unless the application asks for content.
pub const SECRETS: &[&str] = &[
    "prompt-4f21",
    "staged-77aa",
    "system-90bc",
    "answer-1e5d",
    "input-6c30",
    "output-b844",
    "key-d2f7",
    "header-03e9",
    "refused-58af",
];

/// Plays the scenario: two prompts, of which one is staged; a retry; two tools at once, of which one waits for a
/// decision; and a cancel.
pub async fn play() {
    let gate = Gate::new();
    let busy = ProviderError::new(ProviderErrorKind::RateLimit, "refused-58af prompt-4f21")
        .with_status(429)
        .with_retry_after(Some(Duration::ZERO));
    let named = MessageDelta::default().with_model("weather-1-20260101");
    let provider = ScriptedProvider::new([
        Step::error(busy),
        Step::new()
            .data(named)
            .wait(Duration::from_millis(250))
            .then_tool_use("call-1", "weather", json!({ "city": "input-6c30" }))
            .then_tool_use("call-2", "alarm", json!({ "city": "input-6c30" }))
            .usage(
                Usage::default()
                    .with_input(90)
                    .with_cache_read(1000)
                    .with_cache_write(10)
                    .with_output(40)
                    .with_cost(0.5),
            )
            .stop(),
        Step::new()
            .then_text(["answer-1e5d"])
            .usage(Usage::default().with_input(150).with_output(7).with_reasoning(3).with_cost(0.25))
            .stop(),
        Step::new()
            .then_text(["answer-1e5d"])
            .usage(Usage::default().with_input(200).with_output(1).with_cost(0.125))
            .gate(&gate)
            .hang(),
    ])
    .named("google");
    let weather = tool_fn("weather", "Returns the weather.", |_: Value, _| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok("output-b844")
    });
    let alarm = tool_fn("alarm", "Sounds the alarm.", |_: Value, _| async {
        Err::<String, _>(ToolError::new("output-b844"))
    });
    let options = Options::default()
        .with_max_tokens(500)
        .with_temperature(0.5)
        .with_thinking(Effort::Low)
        .with_stop_sequences(["END"])
        .with_api_key("key-d2f7")
        .with_header("X-Secret", "header-03e9");
    let agent = Agent::builder()
        .model(provider.model())
        .name("forecaster")
        .system("system-90bc")
        .options(options)
        .tool(weather)
        .tool(alarm)
        .needs_approval("alarm")
        // Without a delay, because each delay has a random part.
        .retry_policy(RetryPolicy::default().with_base_delay(Duration::ZERO))
        .start()
        .await
        .unwrap();

    let mut events = agent.subscribe().await.unwrap();
    let first = tracing::info_span!(target: "test", "POST /prompts");
    agent.prompt("prompt-4f21").instrument(first).await.unwrap();
    let mut turns = 0;
    while let Some(update) = events.next().await {
        let Update::Event(event) = update else { panic!("the reader is fast enough") };
        match &*event.event {
            Event::Status { status: Status::Paused, pauses } => {
                assert_eq!(pauses[0].tool_use.id.as_str(), "call-2");
                let second = tracing::info_span!(target: "test", "POST /prompts again");
                agent.prompt("staged-77aa").instrument(second).await.unwrap();
                agent.resume("call-2", Decision::Execute).await.unwrap();
            }
            Event::Turn { .. } => {
                turns += 1;
                gate.reached().await;
                agent.cancel().await.unwrap();
            }
            Event::Cancelled { .. } => break,
            _ => {}
        }
    }
    assert_eq!(turns, 1);
    agent.wait_until_idle().await.unwrap();
}
