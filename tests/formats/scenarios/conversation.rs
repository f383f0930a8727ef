//! Text, thinking and interruptions.

use omni_agent::{
    agent::Event,
    message::Content,
    provider::{Effort, Options, StopReason},
    tool::{ToolContext, ToolError, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    rig::{Cell, Format, Rig, next, text_arrives, weather},
    script::{Answer, End},
    server::transport::{HABITS, Habit},
};

const WORDS: &str = "Grüß Gott! — 你好 🌍, \"quoted\" \\ and\nnew lines\u{2028}";

pub(super) async fn plain_text(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::text("Hello there."));
    let response = rig.agent().await.ask("Hi").await.unwrap();
    assert_eq!((response.text().as_str(), &response.stop_reason), ("Hello there.", &StopReason::Stop));
    assert!(response.warnings.is_empty(), "{:?}", response.warnings);
    assert!(!response.model.is_empty() && rig.last().has_said("user", "Hi"));
    Cell::Works
}

pub(super) async fn every_transport_habit(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    for (n, habit) in HABITS.into_iter().enumerate() {
        rig.service.use_habit(habit);
        rig.service.will(
            Answer::thinking(&format!("thought {n}"), &format!("s{n}"))
                .then_text(&format!("{WORDS}{n}"))
                .then_call(&format!("call_{n}"), "weather", &json!({"city": "Zürich"})),
        );
        rig.service.will(Answer::text(&format!("{n} {WORDS}.")));
        let response = agent.ask(format!("Say {n}")).await.unwrap();
        assert_eq!(response.text(), format!("{n} {WORDS}."));
        assert_eq!(response.messages[1].text(), format!("{WORDS}{n}"));
        assert_eq!(rig.last().results.last().unwrap().text, "rain in Zürich");
    }
    Cell::Works
}

pub(super) async fn characters_split_between_chunks(rig: &mut Rig) -> Cell {
    for chunk in 1..=5 {
        rig.service.use_habit(Habit::chunks(chunk));
        rig.service.will(Answer::text(WORDS));
        assert_eq!(rig.agent().await.ask("Greet!").await.unwrap().text(), WORDS);
    }
    Cell::Works
}

pub(super) async fn several_turns(rig: &mut Rig) -> Cell {
    let agent = rig.agent().await;
    for n in 0..4 {
        rig.service.will(Answer::text(&format!("Answer {n}")));
        agent.ask(format!("Question {n}")).await.unwrap();
    }
    let expected =
        ["Question 0", "Answer 0", "Question 1", "Answer 1", "Question 2", "Answer 2", "Question 3"];
    let last = rig.last();
    let said: Vec<&str> = last.said.iter().map(|(_, text)| &**text).collect();
    assert_eq!(said, expected);
    let roles: Vec<&str> = last.said.iter().map(|(role, _)| *role).collect();
    assert!(roles.iter().step_by(2).all(|role| *role == "user"));
    assert!(roles.iter().skip(1).step_by(2).all(|role| *role == "assistant"));
    Cell::Works
}

pub(super) async fn system_prompt(rig: &mut Rig) -> Cell {
    rig.service.will(Answer::text("Short."));
    rig.builder().system("Be brief.").start().await.unwrap().ask("Hi").await.unwrap();
    assert_eq!(rig.last().system.as_deref(), Some("Be brief."));
    Cell::Works
}

/// The server accepts its own answers only if they are unchanged, including their signatures.
pub(super) async fn thinking_comes_back_over_two_turns(rig: &mut Rig) -> Cell {
    let options = Options::default().with_max_retries(0).with_thinking(Effort::High);
    let agent = rig.builder().options(options).tool(weather()).start().await.unwrap();
    rig.service.will(Answer::thinking("Which city?", "sig-1").then_text("One moment.").then_call(
        "call_1",
        "weather",
        &json!({"city": "Rome"}),
    ));
    rig.service.will(Answer::thinking("Rain, then.", "sig-2").then_text("It rains."));
    let response = agent.ask("Weather?").await.unwrap();
    let thought = |content: &Content, text: &str| matches!(content, Content::Thinking(it) if it.text == text);
    assert!(response.messages[1].content.iter().any(|it| thought(it, "Which city?")));
    rig.service.will(Answer::thinking("Polite.", "sig-3").then_text("You are welcome."));
    agent.ask("Thanks").await.unwrap();
    rig.service.will(Answer::text("Bye."));
    agent.ask("Bye").await.unwrap();
    let last = rig.last();
    assert_eq!(last.thinks, Some(true));
    for text in ["One moment.", "It rains.", "You are welcome."] {
        assert!(last.has_said("assistant", text), "{text}: {last:?}");
    }
    assert_eq!(last.results.len(), 1);
    Cell::Works
}

pub(super) async fn opaque_items_come_back(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    rig.service.will(
        Answer::thinking("Look it up.", "sig-1").then_opaque("search-1").then_text("Found it.").then_call(
            "call_1",
            "weather",
            &json!({"city": "Rome"}),
        ),
    );
    rig.service.will(Answer::text("Done."));
    let response = agent.ask("Search!").await.unwrap();
    let items =
        response.messages[1].content.iter().filter(|it| matches!(it, Content::ProviderItem(_))).count();
    rig.service.will(Answer::text("Bye."));
    agent.ask("Thanks").await.unwrap();
    if rig.is(&[Format::Chat, Format::Ollama]) {
        return Cell::Absent;
    }
    assert!(items > 0);
    Cell::Works
}

pub(super) async fn interrupted_answer_then_more(rig: &mut Rig) -> Cell {
    let options = Options::default().with_max_retries(0).with_thinking(Effort::High);
    let agent = rig.builder().options(options).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    rig.service.will(Answer::thinking("Hm.", "sig-1").then_text("It all began when").ending(End::Silent));
    agent.prompt("Tell me a story.").await.unwrap();
    text_arrives(&mut events, "It all began when").await;
    agent.interrupt().await.unwrap();
    rig.service.is_left().await;
    rig.service.will(Answer::text("the sun rose."));
    assert_eq!(agent.ask("Go on.").await.unwrap().text(), "the sun rose.");
    rig.service.will(Answer::text("It did."));
    agent.ask("Really?").await.unwrap();
    assert!(rig.last().has_said("assistant", "It all began when"), "{:?}", rig.last());
    Cell::Works
}

pub(super) async fn interrupted_tools_then_more(rig: &mut Rig) -> Cell {
    let endless = tool_fn("endless", "Never ends.", |_: Value, _: ToolContext| async move {
        std::future::pending::<Result<String, ToolError>>().await
    });
    let agent = rig.builder().tool(endless).tool(weather()).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    rig.service.will(
        Answer::thinking("Both.", "sig-1").then_call("call_1", "endless", &json!({})).then_call(
            "call_2",
            "weather",
            &json!({"city": "Rome"}),
        ),
    );
    agent.prompt("Try both.").await.unwrap();
    while !matches!(&*next(&mut events).await, Event::Step(_)) {}
    agent.interrupt().await.unwrap();
    rig.service.will(Answer::text("Never mind."));
    agent.ask("What came of it?").await.unwrap();
    let results = rig.last().results;
    assert_eq!(results.iter().map(|it| &*it.id).collect::<Vec<_>>(), ["call_1", "call_2"]);
    assert!(results[0].failed && results[0].text.contains("Interrupted"), "{results:?}");
    Cell::Works
}
