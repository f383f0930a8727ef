//! Tools.

use omni_agent::{
    message::{Content, History, Message, ToolResult, ToolUse},
    provider::{Options, ProviderErrorKind, Request, StopReason, ToolChoice},
};
use serde_json::json;

use crate::{
    rig::{Cell, Format, PNG, Rig, camera, provider_error, question, warned, weather},
    script::{Answer, Block, Stop},
};

pub(super) async fn one_tool(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    rig.service.will(Answer::call("call_1", "weather", &json!({"city": "Rome"})));
    rig.service.will(Answer::text("It rains."));
    let response = agent.ask("Weather in Rome?").await.unwrap();
    assert_eq!((response.text().as_str(), response.step), ("It rains.", 2));
    let call = response.messages[1].tool_uses().next().unwrap();
    assert_eq!((call.name.as_str(), &call.input), ("weather", &json!({"city": "Rome"})));
    let last = rig.last();
    assert_eq!(last.tools, ["weather"]);
    let [result] = &last.results[..] else { panic!("{last:?}") };
    assert_eq!((&*result.id, &*result.text, result.failed), ("call_1", "rain in Rome", false));
    Cell::Works
}

pub(super) async fn parallel_tools(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).tool(camera()).start().await.unwrap();
    rig.service.will(
        Answer::thinking("Three of them.", "sig-1")
            .then_text("Let me see.")
            .then_call("call_a", "weather", &json!({"city": "Oslo"}))
            .then_call("call_b", "camera", &json!({"city": "Oslo"}))
            .then_call("call_c", "weather", &json!({"city": "Rome"})),
    );
    rig.service.will(Answer::text("Rain everywhere."));
    agent.ask("Weather?").await.unwrap();
    let last = rig.last();
    let ids: Vec<&str> = last.results.iter().map(|result| &*result.id).collect();
    assert_eq!(ids, ["call_a", "call_b", "call_c"]);
    assert_eq!((&*last.results[0].text, &*last.results[2].text), ("rain in Oslo", "rain in Rome"));
    Cell::Works
}

pub(super) async fn tool_error(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    rig.service.will(Answer::call("call_1", "weather", &json!({"city": "Atlantis"})));
    rig.service.will(Answer::text("No such city."));
    agent.ask("Weather in Atlantis?").await.unwrap();
    let result = rig.last().results.remove(0);
    assert!(result.failed && result.text.contains("there is no such city"), "{result:?}");
    Cell::Works
}

pub(super) async fn tool_result_with_image(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(camera()).start().await.unwrap();
    rig.service.will(Answer::call("call_1", "camera", &json!({"city": "Rome"})));
    rig.service.will(Answer::text("A square."));
    agent.ask("Show me Rome").await.unwrap();
    rig.service.will(Answer::text("Bye."));
    agent.ask("Thanks").await.unwrap();
    let last = rig.last();
    assert_eq!((last.images, last.results.len()), (vec![PNG.to_owned()], 1));
    Cell::Works
}

pub(super) async fn unknown_tool(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    rig.service.will(Answer::call("call_1", "wether", &json!({"city": "Rome"})));
    rig.service.will(Answer::text("Sorry."));
    assert_eq!(agent.ask("Weather?").await.unwrap().text(), "Sorry.");
    let result = rig.last().results.remove(0);
    assert!(result.failed && result.text.contains("wether"), "{result:?}");
    Cell::Works
}

/// No service accepts these names. The calls are part of an answer from another service.
pub(super) async fn made_up_names(rig: &mut Rig) -> Cell {
    let long = "x".repeat(200);
    let uses = ["functions.read", "a b.c", &long, ""];
    let uses: Vec<ToolUse> =
        uses.iter().zip(0..).map(|(name, at)| ToolUse::new(format!("call_{at}"), *name, json!({}))).collect();
    let results: Vec<ToolResult> =
        uses.iter().map(|tool_use| ToolResult::error(tool_use, tool_use.id.as_str())).collect();
    let history =
        History::from_iter([Message::user("Read it."), Message::assistant(uses), Message::user(results)]);
    rig.service.will(Answer::text("I can't."));
    let model = rig.format.model(&rig.service.url());
    let answer = model.generate(Request::new(history)).await.unwrap();
    assert_eq!(answer.message.text(), "I can't.");
    let last = rig.last();
    assert_eq!(last.results.len(), 4);
    assert!(last.results.iter().all(|result| result.text.ends_with(&result.id)), "{last:?}");
    Cell::Works
}

pub(super) async fn malformed_tool_input(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    let input = "{\"city\": \"Ro";
    rig.service.will(Answer::default().then(Block::Call {
        id: "call_1".into(),
        name: "weather".into(),
        input: input.into(),
    }));
    if rig.is(&[Format::Gemini, Format::Ollama]) {
        let error = provider_error(agent.ask("Weather?").await);
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{error:?}");
        return Cell::Unsupported;
    }
    rig.service.will(Answer::text("Sorry."));
    let response = agent.ask("Weather?").await.unwrap();
    let call = response.messages[1].tool_uses().next().unwrap();
    assert_eq!((call.malformed.as_deref(), &call.input), (Some(input), &json!({})));
    assert!(rig.last().results.remove(0).failed);
    Cell::Works
}

/// The output limit cuts an answer after a whole call. In Gemini and Ollama, calls are sent only as a whole.
pub(super) async fn tool_uses_of_a_cut_answer(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(weather()).start().await.unwrap();
    let cut = |number: u32| {
        let whole = Answer::call(&format!("call_{number}a"), "weather", &json!({"city": "Rome"}));
        let half = Block::Call {
            id: format!("call_{number}b"),
            name: "weather".into(),
            input: "{\"city\": \"Os".into(),
        };
        let parsed = rig.is(&[Format::Gemini, Format::Ollama]);
        if parsed { whole } else { whole.then(half) }.stopping(Stop::Length)
    };
    rig.service.will(cut(1));
    rig.service.will(cut(2));
    let response = agent.ask("Weather?").await.unwrap();
    assert_eq!((&response.stop_reason, response.step), (&StopReason::Length, 2));
    rig.service.will(Answer::text("Sunny."));
    assert_eq!(agent.ask("And now?").await.unwrap().text(), "Sunny.");
    let results = rig.last().results;
    let each = if rig.is(&[Format::Gemini, Format::Ollama]) { 1 } else { 2 };
    assert_eq!(results.len(), 2 * each);
    assert!(
        results.iter().all(|result| result.failed && result.text.contains("output limit")),
        "{results:?}"
    );
    Cell::Works
}

pub(super) async fn open_tool_answered_by_the_application(rig: &mut Rig) -> Cell {
    let agent = rig.builder().tool(question()).start().await.unwrap();
    rig.service.will(Answer::thinking("Ask.", "sig-1").then_call(
        "call_1",
        "ask_user",
        &json!({"text": "Who?"}),
    ));
    let response = agent.ask("Ask me.").await.unwrap();
    assert_eq!(response.stop_reason, StopReason::ToolUse);
    let answer = ToolResult::ok(&response.open_tool_uses[0], "Ada");
    rig.service.will(Answer::text("Hello Ada."));
    assert_eq!(agent.ask(Content::from(answer)).await.unwrap().text(), "Hello Ada.");
    assert_eq!(rig.last().results[0].text, "Ada");
    Cell::Works
}

async fn choose(rig: &Rig, choice: &ToolChoice) -> Cell {
    let options = Options::default().with_max_retries(0).with_tool_choice(choice.clone());
    let agent = rig.builder().tool(weather()).tool(camera()).options(options).start().await.unwrap();
    rig.service.will(Answer::text("Well."));
    let response = agent.ask("Weather?").await.unwrap();
    let last = rig.last();
    if last.choice.as_ref() == Some(choice) {
        assert!(response.warnings.is_empty() && last.tools == ["weather", "camera"]);
        return Cell::Works;
    }
    if *choice == ToolChoice::None && last.tools.is_empty() {
        // Without tools in the request, no tool can be used, so no warning is needed.
        assert!(response.warnings.is_empty());
        return Cell::Works;
    }
    warned(&response.warnings, "tool_choice")
}

pub(super) async fn tool_choice_none(rig: &mut Rig) -> Cell {
    choose(rig, &ToolChoice::None).await
}

pub(super) async fn tool_choice_required(rig: &mut Rig) -> Cell {
    choose(rig, &ToolChoice::Required).await
}

pub(super) async fn tool_choice_of_one(rig: &mut Rig) -> Cell {
    choose(rig, &ToolChoice::Tool("camera".into())).await
}
