//! Decisions on tool uses, and answers to the questions of tools.

use omni_agent::{
    Agent, Decision, Session, ToolContext,
    agent::SubAgent,
    message::Role,
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
    tool, tool_fn,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::support::{Talk, scripted};

fn delete(path: &str) -> Step {
    Step::tool_use("call-1", "delete", json!({ "path": path }))
}

async fn talk_about(path: &str) -> Talk {
    let mut talk = Talk::start(&scripted([delete(path), Step::text("Done.")]).await);
    talk.type_line("Delete it");
    talk.sees("delete {\"path\":\"a.txt\"} waits: \"needs approval\"\nyes, no [REASON], or edit PATH? ")
        .await;
    talk
}

#[tokio::test(start_paused = true)]
async fn approval_yes_runs_the_tool() {
    let mut talk = talk_about("a.txt").await;
    talk.type_line("y");
    talk.sees("[allowed by ann]\n").await;
    talk.sees("← delete: a.txt is gone.").await;
    talk.sees("Done.").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn second_approval_of_a_sub_agent_is_asked_for_like_the_first() {
    use omni_agent::Tool as _;
    let helper = SubAgent::new("helper", "Helps.", |_| {
        let delete = tool!("delete", "Deletes a file.", async |path: String| Ok(format!("{path} is gone.")));
        let steps = [("d1", "a.txt"), ("d2", "b.txt")]
            .map(|(id, path)| Step::tool_use(id, "delete", json!({ "path": path })));
        let model = ScriptedProvider::new(steps.into_iter().chain([Step::text("Both are gone.")])).model();
        Agent::builder().model(model).tool(delete.needs_approval())
    });
    let steps = [Step::tool_use("call-1", "helper", json!({ "task": "Delete both." })), Step::text("Done.")];
    let agent = Agent::builder().model(ScriptedProvider::new(steps).model()).tool(helper.in_memory());
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let mut talk = Talk::start(&session);
    talk.type_line("Delete them");
    for path in ["a.txt", "b.txt"] {
        talk.sees(&format!("helper: delete {{\"path\":\"{path}\"}} waits")).await;
        talk.sees("yes, no [REASON], or edit JSON? ").await;
        talk.type_line("y");
    }
    talk.sees("Done.").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn approval_no_tells_the_model_the_reason() {
    let mut talk = talk_about("a.txt").await;
    talk.type_line("no keep it");
    talk.sees("[rejected by ann]\n").await;
    talk.sees("← delete not run: The user said no: keep it").await;
    talk.sees("Done.").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn approval_edit_runs_the_tool_with_a_text_or_json() {
    for edit in ["e b.txt", "edit {\"path\":\"b.txt\"}"] {
        let mut talk = talk_about("a.txt").await;
        talk.type_line(edit);
        talk.sees("[allowed with another input by ann]").await;
        talk.sees("← delete: b.txt is gone.").await;
        talk.end_input().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn other_line_repeats_the_question_and_commands_work() {
    let mut talk = talk_about("a.txt").await;
    talk.type_line("perhaps");
    talk.sees("yes, no [REASON], or edit PATH? ").await;
    talk.type_line("/tools");
    talk.sees("  delete: Deletes a file.").await;
    talk.sees("yes, no [REASON], or edit PATH? ").await;
    talk.type_line("yes");
    talk.sees("Done.").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn several_approvals_in_one_step_are_asked_in_order() {
    let step = Step::new()
        .then_tool_use("call-1", "delete", json!({ "path": "a" }))
        .then_tool_use("call-2", "delete", json!({ "path": "b" }))
        .then_tool_use("call-3", "delete", json!({ "path": "c" }))
        .stop();
    let mut talk = Talk::start(&scripted([step, Step::text("Done.")]).await);
    talk.type_line("Delete them");
    talk.sees("1 of 3: delete {\"path\":\"a\"}: yes, no").await;
    talk.type_line("y");
    talk.sees("1 of 2: delete {\"path\":\"b\"}: yes, no").await;
    talk.type_line("n");
    talk.sees("yes, no [REASON], or edit PATH? ").await;
    talk.type_line("e d");
    let (ended, shown) = {
        talk.sees("Done.").await;
        talk.end_input().await
    };
    ended.unwrap();
    for line in ["← delete: a is gone.", "← delete not run: The user said no.", "← delete: d is gone."]
    {
        assert!(shown.contains(line), "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn approval_decided_elsewhere_withdraws_the_question() {
    let mut talk = talk_about("a.txt").await;
    talk.session.resume_as("call-1", Decision::Execute, "ben").await.unwrap();
    talk.sees("[allowed by ben]\n").await;
    talk.sees("Done.").await;
    talk.sees("> ").await;
    let session = talk.session.clone();
    // The line is now a prompt, not a decision.
    talk.type_line("/title y");
    talk.end_input().await.0.unwrap();
    assert_eq!(session.title().await.unwrap().as_deref(), Some("y"));
}

#[tokio::test(start_paused = true)]
async fn first_of_two_approvals_decided_elsewhere_asks_about_the_second() {
    let step = Step::new()
        .then_tool_use("call-1", "delete", json!({ "path": "a" }))
        .then_tool_use("call-2", "delete", json!({ "path": "b" }))
        .stop();
    let mut talk = Talk::start(&scripted([step, Step::text("Done.")]).await);
    talk.type_line("Delete them");
    talk.sees("1 of 2: delete {\"path\":\"a\"}: ").await;
    talk.session.resume_as("call-1", Decision::reject("No."), "ben").await.unwrap();
    talk.sees("[rejected by ben]\n").await;
    talk.type_line("y");
    talk.sees("← delete not run: No.\n← delete: b is gone.").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn approval_at_the_end_of_the_input_is_rejected() {
    let talk = talk_about("a.txt").await;
    let session = talk.session.clone();
    let (ended, shown) = talk.end_input().await;
    ended.unwrap();
    assert!(shown.contains("← delete not run: no user is present to allow it"), "{shown}");
    assert!(shown.contains("Done."), "{shown}");
    let tree = session.tree().await.unwrap();
    assert_eq!(tree.iter().filter(|node| node.message().role == Role::Assistant).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn quit_during_an_approval_leaves_it_to_the_session() {
    let talk = talk_about("a.txt").await;
    let session = talk.session.clone();
    talk.type_line("/quit");
    let mut later = Talk::start(&session);
    talk.ended().await.0.unwrap();
    later.sees("delete {\"path\":\"a.txt\"} waits").await;
    later.sees("yes, no [REASON], or edit PATH? ").await;
    later.type_line("y");
    later.sees("Done.").await;
    later.end_input().await.0.unwrap();
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Starts a chat whose tool asks this question.
async fn asked(question: serde_json::Value) -> Talk {
    let book = tool_fn("book", "Books a table.", move |_: Nothing, context: ToolContext| {
        let question = question.clone();
        async move { Ok(format!("{:?}", context.ask(question).await)) }
    });
    let model =
        ScriptedProvider::new([Step::tool_use("call-1", "book", json!({})), Step::text("Done.")]).model();
    let agent = Agent::builder().model(model).tool(book);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    let mut talk = Talk::start(&session);
    talk.type_line("Book");
    talk.sees("book asks: ").await;
    talk
}

#[tokio::test(start_paused = true)]
async fn question_is_answered_with_yes_a_value_or_a_reason() {
    for (line, shown) in [("y", "answered"), ("answer 4", "answered"), ("no not today", "declined")] {
        let mut talk = asked(json!({ "message": "Sure?" })).await;
        talk.sees("\"Sure?\"\nyes, no [REASON], or answer VALUE? ").await;
        talk.type_line("hm");
        talk.sees("yes, no [REASON], or answer VALUE? ").await;
        talk.type_line(line);
        talk.sees(&format!("[{shown} by ann]")).await;
        talk.sees("Done.").await;
        talk.end_input().await.0.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn form_is_filled_in_field_by_field() {
    let schema = json!({
        "properties": { "guests": { "type": "integer" }, "outside": { "type": "boolean", "default": false } },
        "required": ["guests"],
    });
    let mut talk = asked(json!({ "message": "Your table", "schema": schema })).await;
    talk.sees("\"guests\": integer, or /no [REASON]? ").await;
    talk.type_line("four");
    talk.sees("\"guests\": integer").await;
    talk.type_line("4");
    talk.sees("\"outside\": boolean, or nothing for false").await;
    talk.type_line("");
    talk.sees("[answered by ann]").await;
    talk.sees("\"guests\": Number(4)").await;
    talk.sees("Done.").await;
    talk.end_input().await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn form_is_declined_with_a_command() {
    let schema = json!({ "properties": { "guests": { "type": "integer" } } });
    let mut talk = asked(json!({ "message": "Your table", "schema": schema })).await;
    talk.sees("/no [REASON]? ").await;
    talk.type_line("/no never mind");
    talk.sees("[declined by ann]").await;
    talk.sees("never mind").await;
    talk.end_input().await.0.unwrap();
}
