//! A test of an agent without a model, with the feature `test-utils`.

use rig::message::{Message, ToolResultContent, UserContent};
use rig::prelude::*;
use rig::test_utils::{MockCompletionModel, MockTurn};
use rig::{operation::Completion, rig_tool, tool::ToolExecutionError};
use serde_json::json;

#[rig_tool(description = "Returns the time.")]
async fn clock() -> Result<String, ToolExecutionError> {
    Ok("12:00".to_owned())
}

fn agent(model: impl Into<DynModel<Completion>>) -> Agent {
    AgentBuilder::new(model).preamble("Be brief.").tool(Clock).default_max_turns(3).build()
}

#[tokio::test]
async fn question_about_the_time_uses_the_clock() {
    let script = [MockTurn::tool_call("call-1", "clock", json!({})), MockTurn::text("It is noon.")];
    let model = MockCompletionModel::from_turns(script);
    let response = agent(model.clone()).prompt("What time is it?").await.unwrap();
    assert_eq!(response.output(), "It is noon.");

    let history = &model.requests()[1].chat_history;
    assert!(matches!(&history[0], Message::System { content } if content == "Be brief."));
    let Some(Message::User { content }) = history.last() else { panic!("no result") };
    let UserContent::ToolResult(result) = &content[0] else { panic!("no result") };
    assert_eq!(result.content, [ToolResultContent::text("12:00")]);
}
