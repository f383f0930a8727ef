//! A conversation begins in one format, continues in another, and returns to the first. These tests cover all pairs of
//! formats. They also cover a conversation that stays in one format, both at the same service and at another service.
//!
//! The servers are strict and remember their answers. If a part came from another service, a server accepts it only if
//! any client could have written its content. A server's own parts must be sent back unchanged, with signatures,
//! reasoning and opaque items in place.

use omni_agent::{
    agent::{Agent, AgentSubscription},
    message::{Content, History, ToolResult},
    provider::{Effort, Model, Options, StopReason, http::Endpoint},
};
use serde_json::json;

use crate::{
    rig::{Format, PNG, Rig, camera, question, text_arrives, weather, within_a_minute},
    script::{Answer, End},
    server::Service,
};

/// Begins a conversation with every kind of content: thinking, opaque items, parallel calls, an image, an error and an
/// interrupted answer.
pub(crate) async fn begin(agent: &Agent, events: &mut AgentSubscription, service: &mut Service, name: &str) {
    service.will(
        Answer::thinking(&format!("{name} thinks of cities."), &format!("{name}-sig-1"))
            .then_opaque(&format!("{name}-search"))
            .then_text(&format!("{name} looks."))
            // The id of the call has a form that no other format accepts.
            .then_call(&format!("{name}_call_1"), "weather", &json!({"city": "Rome"}))
            .then_call(&format!("{name}_call_2"), "camera", &json!({"city": "Rome"}))
            .then_call(&format!("{name}_call_3"), "weather", &json!({"city": "Atlantis"})),
    );
    service.will(
        Answer::thinking(&format!("{name} has seen."), &format!("{name}-sig-2"))
            .then_text(&format!("{name} saw rain.")),
    );
    agent.ask(format!("{name}: weather?")).await.unwrap();
    service.will(
        Answer::thinking(&format!("{name} ponders."), &format!("{name}-sig-3"))
            .then_text(&format!("{name} begins to"))
            .ending(End::Silent),
    );
    agent.prompt(format!("{name}: a story!")).await.unwrap();
    text_arrives(events, &format!("{name} begins to")).await;
    agent.interrupt().await.unwrap();
    service.is_left().await;
}

/// Runs a turn with a tool on the conversation so far.
pub(crate) async fn go_on(agent: &Agent, service: &Service, name: &str, n: usize) {
    service.will(
        Answer::thinking(&format!("{name} thinks {n}."), &format!("{name}-sig-on-{n}"))
            .then_text(&format!("{name} goes on {n}."))
            .then_call(&format!("{name}_on_{n}_1"), "weather", &json!({"city": "Oslo"}))
            .then_call(&format!("{name}_on_{n}_2"), "weather", &json!({"city": "Bern"})),
    );
    service.will(Answer::text(&format!("{name} is done {n}.")));
    let response = agent.ask(format!("{name}: more {n}")).await.unwrap();
    assert_eq!(response.text(), format!("{name} is done {n}."));
}

/// Ends a turn at `from` with an open tool call. The application then answers this call at `to`.
async fn hand_over(agent: &Agent, from: (&Service, &str), to: (&Service, &str), model: Model) {
    let ((service, name), (next, next_name)) = (from, to);
    service.will(
        Answer::thinking(
            &format!("{name} is at a loss for {next_name}."),
            &format!("{name}-{next_name}-sig"),
        )
        .then_call(&format!("{name}_asks_{next_name}"), "ask_user", &json!({"text": "Who?"})),
    );
    let response = agent.ask(format!("{name}: ask me for {next_name}")).await.unwrap();
    assert_eq!(response.stop_reason, StopReason::ToolUse);
    turn_to(agent, model).await;
    next.will(Answer::text(&format!("{next_name} greets Ada, asked by {name}.")));
    let answer = ToolResult::ok(&response.open_tool_uses[0], "Ada");
    agent.ask(Content::from(answer)).await.unwrap();
    assert_eq!(next.last().results.last().unwrap().text, "Ada");
}

pub(crate) async fn turn_to(agent: &Agent, model: Model) {
    agent
        .set_state(move |draft| {
            draft.config.model = model;
            Ok(())
        })
        .await
        .unwrap();
}

pub(crate) async fn history(agent: &Agent) -> History {
    agent.state().await.unwrap().history().clone()
}

/// Asserts that messages were only added to the conversation: all earlier messages are unchanged.
pub(crate) fn assert_grown(before: &History, now: &History) {
    assert!(now.len() > before.len());
    assert!(before.iter().eq(now.iter().take(before.len())));
    assert_eq!(now.check(), Ok(()));
}

/// Whether the conversation continues in a format at the same service or at another service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Same,
    Other,
}

impl At {
    /// Returns the model that continues the conversation. A signature is valid only at the service that made it. The
    /// name of the endpoint is the only difference between two services of one format.
    pub(crate) fn model(self, format: Format, service: &Service) -> Model {
        let name =
            |endpoint: Endpoint| if self == Self::Other { endpoint.with_name("other") } else { endpoint };
        format.model_with(&service.url(), name)
    }
}

async fn carry(from: Format, to: Format, at: At) {
    let mut first = Rig::new(from).await;
    let options = Options::default().with_max_retries(0).with_thinking(Effort::High);
    let builder = first.builder().options(options).system("Be brief.");
    let agent = builder.tool(weather()).tool(camera()).tool(question()).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    begin(&agent, &mut events, &mut first.service, "first").await;
    let begun = history(&agent).await;
    assert!(begun.iter().any(|message| message.content.iter().any(|it| matches!(it, Content::Thinking(_)))));

    let other = if at == At::Same { None } else { Some(Rig::new(to).await) };
    let (first, second) = (&first.service, other.as_ref().map_or(&first.service, |rig| &rig.service));
    let models = (from.model(&first.url()), at.model(to, second));
    turn_to(&agent, models.1.clone()).await;
    go_on(&agent, second, "second", 1).await;
    let gone_on = history(&agent).await;
    assert_grown(&begun, &gone_on);
    let seen = second.last();
    // The request contains the other service's texts, but not its thinking.
    for text in ["first looks.", "first saw rain.", "first begins to"] {
        assert!(seen.has_said("assistant", text), "{from:?} to {to:?}: no {text:?} in {seen:?}");
    }
    assert!(
        !seen.said.iter().any(|(_, text)| text.contains("thinks") || text.contains("ponders")),
        "{seen:?}"
    );
    assert_eq!((seen.results.len(), seen.images.len()), (5, 1));
    assert_eq!(seen.images, [PNG]);

    turn_to(&agent, models.0.clone()).await;
    go_on(&agent, first, "first", 2).await;
    assert_grown(&gone_on, &history(&agent).await);
    assert!(first.last().has_said("assistant", "second is done 1."));

    hand_over(&agent, (first, "first"), (second, "second"), models.1).await;
    hand_over(&agent, (second, "second"), (first, "first"), models.0).await;
    assert_eq!((first.refused(), second.refused()), (Vec::new(), Vec::new()));
}

macro_rules! pairs {
    ($($name:ident: $from:ident;)+) => {$(
        #[tokio::test]
        async fn $name() {
            for to in Format::ALL {
                within_a_minute(carry(Format::$from, to, At::Other)).await;
            }
            within_a_minute(carry(Format::$from, Format::$from, At::Same)).await;
        }
    )+};
}

pairs! {
    conversation_begun_on_messages_continues_in_each_format_and_returns: Messages;
    conversation_begun_on_chat_continues_in_each_format_and_returns: Chat;
    conversation_begun_on_responses_continues_in_each_format_and_returns: Responses;
    conversation_begun_on_gemini_continues_in_each_format_and_returns: Gemini;
    conversation_begun_on_ollama_continues_in_each_format_and_returns: Ollama;
}
