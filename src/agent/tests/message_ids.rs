//! Ids of messages: who gives them, and when they are announced. Data of the application in prompts.

use std::{collections::HashSet, sync::Arc};

use crate::{
    agent::{ErrorDecision, Event, Next, Prompt},
    message::{History, Message, MessageId},
    provider::{Options, ProviderError, ProviderErrorKind},
    run::ErrorKind,
    testing::{Gate, Step},
};
use serde_json::json;

use super::{
    hooks::{Hooks, Log, Watched, noting, reached, stopped},
    support::{names, returned, scripted},
};

/// The announced ids, with the numbers of their requests.
fn announced(events: &[Arc<Event>]) -> Vec<(u32, MessageId)> {
    let start = |event: &Arc<Event>| match &**event {
        Event::StepStart { step, message_id } => Some((*step, message_id.clone())),
        _ => None,
    };
    events.iter().filter_map(start).collect()
}

fn id(message: &Message) -> MessageId {
    message.id.clone().expect("the message has an id")
}

fn ids(history: &History) -> Vec<MessageId> {
    history.iter().map(|message| id(message)).collect()
}

fn down() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Overloaded, "down")
}

#[tokio::test(start_paused = true)]
async fn every_message_of_a_turn_has_an_id_and_answers_have_the_announced_ones() {
    let script = [Step::tool_use("a", "look", json!({})), Step::text("A cat."), Step::text("Yes.")];
    let (_, builder) = scripted(script);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    let events = agent.run("What is it?").await;
    let ids = ids(&agent.agent.state().await.unwrap().history().clone());
    assert_eq!(ids.len(), 4);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 4, "{ids:?}");
    let turn = &ids[0].to_string()[..23];
    assert!(ids.iter().all(|id| id.to_string().starts_with(turn)), "{ids:?}");
    assert_eq!(announced(&events), [(1, ids[1].clone()), (2, ids[3].clone())]);
    let next = agent.run("Really?").await;
    assert!(!id(&stopped(&next).messages[0]).to_string().starts_with(turn), "a turn has its own ids");
}

#[tokio::test(start_paused = true)]
async fn prompt_with_an_id_names_its_message_whether_it_starts_a_run_is_staged_or_joins() {
    let gate = Gate::new();
    let script = [
        Step::tool_use("a", "look", json!({})).gate(&gate),
        Step::text("One"),
        Step::text("Two"),
        Step::text("Three"),
    ];
    let (_, builder) = scripted(script);
    let hooks = Hooks::new().continuing(["Go on."]);
    let builder = builder.tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt(Prompt::new("Look!").with_id("first")).await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(Prompt::new("Then this").with_id("second")).await.unwrap();
    agent.agent.prompt(Prompt::new("And this").with_id("joins").at(Next::Step)).await.unwrap();
    agent.agent.prompt("Unnamed").await.unwrap();
    let staged = agent.agent.snapshot().await.unwrap().staged;
    let generated = staged[2].id.clone().unwrap();
    gate.open();
    agent.end().await;
    let history = agent.agent.state().await.unwrap().history().clone();
    let named = |text: &str| id(history.iter().find(|message| message.text() == text).unwrap());
    assert_eq!(named("Look!"), "first".into());
    assert_eq!(named("And this"), "joins".into());
    assert_eq!(named("Then this"), "second".into());
    assert_eq!(named("Unnamed"), generated.into());
    assert_eq!(ids(&history).iter().collect::<HashSet<_>>().len(), history.len());
}

#[tokio::test(start_paused = true)]
async fn continuation_has_its_own_id_and_not_that_of_the_prompt() {
    let (_, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let mut agent = Watched::start(builder.callbacks(Hooks::new().continuing(["Go on."]))).await;
    agent.run(Prompt::new("Hi").with_id("first")).await;
    let ids = ids(&agent.agent.state().await.unwrap().history().clone());
    assert_eq!(ids[0], "first".into());
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 4, "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn repeated_step_has_a_new_id_also_if_the_provider_repeats_it() {
    let script = [Step::new().then_text(["Half"]).fail(down()), Step::error(down()), Step::text("Whole.")];
    let (_, builder) = scripted(script);
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let builder = builder.options(Options::default().with_max_retries(1)).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Hi").await;
    let order: Vec<_> = names(&events).into_iter().filter(|name| !name.starts_with("text")).collect();
    let expected = ["step_start", "retry", "step_start", "retry", "step_start", "message(assistant)"];
    assert_eq!(order[2..8], expected);
    let announced = announced(&events);
    let steps: Vec<u32> = announced.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, [1, 2, 2], "an attempt of the provider is not a step");
    assert_eq!(announced.iter().collect::<HashSet<_>>().len(), 3);
    let response = stopped(&events);
    assert_eq!(response.step, 2);
    assert_eq!(response.message.as_ref().unwrap().id.as_ref(), Some(&announced[2].1));
}

#[tokio::test(start_paused = true)]
async fn snapshot_holds_the_answers_id_from_its_step_until_its_message() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().then_text(["Half"]).gate(&gate).stop()]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    let events = agent.until("text_delta").await;
    let answer = announced(&events)[0].1.clone();
    assert_eq!(agent.view.answer.as_ref(), Some(&answer));
    agent.check().await;
    let snapshot = agent.agent.snapshot().await.unwrap();
    let json = serde_json::to_value(&snapshot).unwrap();
    assert_eq!(json["answer"], json!(answer.to_string()));
    gate.open();
    agent.until("message(assistant)").await;
    assert_eq!(agent.view.answer, None);
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn interrupted_or_cancelled_answer_keeps_its_id() {
    for interrupts in [true, false] {
        let gate = Gate::new();
        let (_, builder) = scripted([Step::new().then_text(["Half"]).gate(&gate).stop()]);
        let mut agent = Watched::start(builder).await;
        agent.agent.prompt("Hi").await.unwrap();
        let events = agent.until("text_delta").await;
        let answer = announced(&events)[0].1.clone();
        if interrupts {
            agent.agent.interrupt().await.unwrap();
        } else {
            agent.agent.cancel().await.unwrap();
        }
        let events = agent.end().await;
        assert_eq!(agent.view.answer, None);
        let (Event::Turn { response, continues: false, .. } | Event::Cancelled { response, .. }) =
            &**events.last().unwrap()
        else {
            panic!("{events:?}")
        };
        assert_eq!(response.message.as_ref().unwrap().id, Some(answer));
    }
}

#[tokio::test(start_paused = true)]
async fn history_without_ids_stays_valid_and_unchanged() {
    let (provider, builder) = scripted([Step::text("Two")]);
    let earlier = [Message::user("Hi"), Message::assistant("One")];
    let history = History::from_iter(earlier);
    let mut agent = Watched::start(builder.history(history.clone())).await;
    agent.run("Again").await;
    let now = agent.agent.state().await.unwrap().history().clone();
    assert!(now.iter().take(2).eq(history.iter()));
    assert!(now.iter().skip(2).all(|message| message.id.is_some()));
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn prompt_with_application_data_puts_it_into_its_message_only() {
    let gate = Gate::new();
    let script = [
        Step::tool_use("a", "look", json!({})).gate(&gate),
        Step::text("One"),
        Step::text("Two"),
        Step::text("Three"),
    ];
    let (_, builder) = scripted(script);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    let prompt = |text: &str| Prompt::new(text).with_app_data(json!({ "of": text }));
    agent.agent.prompt(prompt("first")).await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(prompt("staged")).await.unwrap();
    agent.agent.prompt(prompt("joins").at(Next::Step)).await.unwrap();
    gate.open();
    agent.end().await;
    agent.run(Prompt::new("without").with_app_data(json!(null))).await;
    let history = agent.agent.state().await.unwrap().history().clone();
    for message in &history {
        let text = message.text();
        let expected = ["first", "staged", "joins"].contains(&text.as_str()).then(|| json!({ "of": text }));
        assert_eq!(message.app_data.as_deref(), expected.as_ref(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_prompt_that_is_staged_comes_back_with_its_application_data() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["never"]).stop()]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    let staged = Prompt::new("Later").with_app_data(json!([1]));
    agent.agent.prompt(staged).await.unwrap();
    agent.agent.cancel().await.unwrap();
    let events = agent.end().await;
    assert_eq!(returned(&events)[0].app_data.as_deref(), Some(&json!([1])));
}

#[tokio::test(start_paused = true)]
async fn prompt_with_application_data_beyond_a_limit_is_refused_with_the_limit() {
    let (provider, builder) = scripted([Step::text("fits")]);
    let mut agent = Watched::start(builder).await;
    let text = |size: usize| Prompt::new("Hi").with_app_data(json!("x".repeat(size - 2)));
    let error = agent.agent.prompt(text(16_385)).await.unwrap_err();
    assert!(error.to_string().starts_with("the application's data in the prompt has"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidPrompt);
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    let error = agent.agent.prompt(Prompt::new("Hi").with_app_data(nested(65))).await.unwrap_err();
    assert!(error.to_string().starts_with("the application's data in the prompt is nested"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidPrompt);
    let error = agent.agent.ask(Prompt::new("Hi").with_app_data(nested(65))).await.unwrap_err();
    assert!(error.to_string().contains("at most 64 levels"), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidPrompt);
    assert_eq!(provider.requests().len(), 0);
    agent.run(text(16_384)).await;
}
