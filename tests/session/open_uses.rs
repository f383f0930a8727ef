//! Turns that stopped because a tool has no handler, and turns that began with tool results.

use omni_agent::{
    ErrorKind, Tool,
    agent::{AgentBuilder, ToolDecision},
    message::{Content, ToolResult, ToolUse},
    provider::Request,
    run::Prompt,
    session::Session,
    testing::{ScriptedProvider, Step},
    tool::declared_tool,
};
use serde_json::json;

use crate::{
    support::{ScriptedStore, assert_agree, created, id, node, secs},
    watch::{Hooks, Watched, echo, in_time, on},
};

/// Returns a tool whose uses the application answers.
fn declared(name: &str) -> impl Tool {
    declared_tool::<serde_json::Value>(name, "The application answers.")
}

/// Returns an agent that declares `ask_user` and rejects each use of `echo`.
fn agent(provider: &ScriptedProvider) -> AgentBuilder {
    let hooks = Hooks::new().on_tool_use(|tool_use| match tool_use.name.as_str() {
        "echo" => ToolDecision::Reject("No.".into()),
        _ => ToolDecision::Execute,
    });
    AgentBuilder::default().model(provider.model()).tool(declared("ask_user")).tool(echo()).callbacks(hooks)
}

/// Returns an answer that uses these tools. Each use is given by its id and the name of the tool.
fn uses(uses: &[(&str, &str)]) -> Step {
    uses.iter().fold(Step::new(), |step, (id, name)| step.then_tool_use(id, name, json!({}))).stop()
}

fn answer(id: &str, text: &str) -> Content {
    ToolResult::ok(&ToolUse::new(id, "ask_user", json!({})), text).into()
}

/// Returns the tool results in the last message of a request.
fn results(request: &Request) -> Vec<String> {
    let last = request.history.last().unwrap();
    last.tool_results().map(|result| format!("{} {}", result.tool_use_id, result.text())).collect()
}

#[tokio::test(start_paused = true)]
async fn open_after_a_declared_tool_sends_the_results_decided_before() {
    for prompt in [vec![answer("a", "Yes.")], vec!["Never mind.".into()]] {
        let store = ScriptedStore::new([]);
        let provider =
            ScriptedProvider::new([uses(&[("a", "ask_user"), ("b", "echo")]), Step::text("Done.")]);
        let session = created(&store, "talk", agent(&provider)).await;
        session.ask("Go").await.unwrap();
        assert_agree(&session, &store).await;
        session.stop(secs(1)).await.unwrap();

        let builder = Session::builder(store.as_dyn()).agent(agent(&provider));
        let session = builder.open(id("talk")).await.unwrap();
        session.ask(prompt).await.unwrap();
        assert_eq!(results(&provider.last_request().unwrap())[1], "b No.");
        assert_agree(&session, &store).await;
    }
}

/// Returns a session in which a turn left the tool use `a` open (nodes 1 and 2). The next prompt answered this tool use
/// (nodes 3 and 4).
async fn answered_open_use(after: impl IntoIterator<Item = Step>) -> (Watched, ScriptedProvider) {
    let steps = [uses(&[("a", "ask_user")]), Step::text("Fine.")].into_iter().chain(after);
    let provider = ScriptedProvider::new(steps);
    let mut session = Watched::start(on(agent(&provider))).await;
    session.ask("Go").await;
    in_time(session.session.ask(vec![answer("a", "Yes."), "Hurry.".into()])).await.unwrap();
    session.check().await;
    (session, provider)
}

#[tokio::test(start_paused = true)]
async fn regenerate_of_a_turn_that_began_with_results_sends_them_again() {
    let (mut session, provider) = answered_open_use([Step::text("Good.")]).await;
    in_time(session.session.again(node(3)).response()).await.unwrap();
    session.check().await;
    assert_eq!(results(&provider.last_request().unwrap()), ["a Yes."]);
    assert_eq!(
        session.drawn(),
        "\
* 1 user: Go
* 2 assistant: [uses ask_user]
* 3 user: [result] Hurry.
  ├─ 4 assistant: Fine.
> └─ 5 assistant: Good."
    );
}

#[tokio::test(start_paused = true)]
async fn edit_of_a_turn_that_began_with_results_replaces_the_answers() {
    let (mut session, provider) = answered_open_use([Step::text("Good."), Step::text("Well.")]).await;
    in_time(session.session.run(answer("a", "No.")).instead_of(node(3)).response()).await.unwrap();
    assert_eq!(results(&provider.last_request().unwrap()), ["a No."]);
    session.check().await;
    assert_eq!(session.path().len(), 4);
    assert_eq!(session.view.tree.children(node(2)).unwrap().count(), 2);
    // A prompt without a tool result answers the open tool use with an error.
    in_time(session.session.run("Never mind.").instead_of(node(3)).response()).await.unwrap();
    let sent = results(&provider.last_request().unwrap());
    assert!(sent[0].starts_with("a No result"), "{sent:?}");
    session.check().await;
}

#[tokio::test(start_paused = true)]
async fn branch_below_an_answer_left_open_answers_its_uses() {
    let (mut session, provider) = answered_open_use([Step::text("Good.")]).await;
    in_time(session.session.run(answer("a", "No.")).below(Some(node(2))).response()).await.unwrap();
    assert_eq!(results(&provider.last_request().unwrap()), ["a No."]);
    session.check().await;
    let orphan = session.session.run(answer("x", "No.")).below(Some(node(2))).start().await.unwrap_err();
    assert_eq!(orphan.kind(), ErrorKind::InvalidPrompt, "{orphan:?}");
}

#[tokio::test(start_paused = true)]
async fn branch_at_results_is_refused_unless_the_turn_ended_with_them() {
    let asks = || Step::tool_use("t", "look", json!({}));
    let look = omni_agent::tool::tool_fn("look", "Looks.", |_: serde_json::Value, _| async { Ok("seen") });
    // The first turn continues after its tool results. The second turn ends with its tool results, because it reaches
    // the limit of steps.
    let provider =
        ScriptedProvider::new([asks(), Step::text("Done."), asks(), Step::text("On."), Step::text("Else.")]);
    let agent = AgentBuilder::default().model(provider.model()).tool(look);
    let mut session = Watched::start(on(agent)).await;
    session.ask("Go").await;
    in_time(session.session.ask(Prompt::new("More").with_max_steps(1))).await.unwrap();
    session.ask("On").await;
    assert_eq!(session.path().len(), 9);
    for (asking, results) in [(2, 3), (6, 7)] {
        let (asking, results) = (node(asking), node(results));
        let refused = [
            session.session.again(results).start().await.unwrap_err(),
            session.session.run("Other").instead_of(results).start().await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::NotAPrompt);
            assert!(error.to_string().starts_with(&format!("node {results} has tool results")), "{error}");
        }
        let error = session.session.run("Other").below(Some(asking)).start().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OpenToolUses);
        assert_eq!(error.member("node"), Some(&asking.get().into()));
    }
    assert_eq!(provider.requests().len(), 4);

    let error = session.session.run("Other").below(Some(node(3))).start().await.unwrap_err();
    assert_eq!((error.kind(), error.member("node")), (ErrorKind::NotAnAnswer, Some(&3.into())));
    in_time(session.session.run("Other").below(Some(node(7))).response()).await.unwrap();
    session.rest().await;
    assert_eq!(session.path()[6..], ["user: result t", "user: Other", "assistant: Else."]);
}

#[tokio::test(start_paused = true)]
async fn erase_of_one_answer_to_an_open_use_leaves_its_siblings_usable() {
    let answers = ["Good.", "Better.", "Best.", "Else."].map(Step::text);
    let (mut session, provider) = answered_open_use(answers).await;
    in_time(session.session.run(answer("a", "No.")).below(Some(node(2))).response()).await.unwrap();
    // Nodes 3 and 4 answer the open use, and so do nodes 5 and 6. Only the prompt of the first answer stays.
    in_time(session.session.erase(node(4))).await.unwrap();
    session.check().await;
    in_time(session.session.again(node(5)).response()).await.unwrap();
    assert_eq!(results(&provider.last_request().unwrap()), ["a No."]);
    in_time(session.session.run(answer("a", "Maybe.")).instead_of(node(5)).response()).await.unwrap();
    assert_eq!(results(&provider.last_request().unwrap()), ["a Maybe."]);
    in_time(session.session.run(answer("a", "Never.")).below(Some(node(2))).response()).await.unwrap();
    assert_eq!(results(&provider.last_request().unwrap()), ["a Never."]);
    session.check().await;
}

#[tokio::test(start_paused = true)]
async fn erase_of_results_within_a_turn_does_not_leave_their_uses_open() {
    let look = omni_agent::tool::tool_fn("look", "Looks.", |_: serde_json::Value, _| async { Ok("seen") });
    let provider = ScriptedProvider::new([Step::tool_use("t", "look", json!({}))]);
    let agent = AgentBuilder::default().model(provider.model()).tool(look);
    let mut session = Watched::start(on(agent)).await;
    in_time(session.session.ask(Prompt::new("Go").with_max_steps(1))).await.unwrap();
    session.check().await;
    assert_eq!(session.path().len(), 3);
    in_time(session.session.erase(node(3))).await.unwrap();
    session.check().await;
    let error = session.session.run("Other").below(Some(node(2))).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OpenToolUses);
}
