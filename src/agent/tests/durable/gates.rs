use super::*;
use crate::{
    agent::{ErrorDecision, Failure, State, Status, tests::rig::unanswered, tests::support::name},
    message::{ToolResult, ToolUse},
    run::ErrorKind,
    tool::Decision,
};

#[tokio::test(start_paused = true)]
async fn prompt_replies_after_the_turn_is_stored() {
    let gate = Gate::new();
    let step = Step::new().gate(&gate).then_text(["Hello!"]).stop();
    let life = Life::begin(scripted([step]).1, Durable::InFlight, &Shelf::default()).await;
    life.cut();
    unanswered(life.agent.prompt("Hi")).await;
    // The request is sent although the prompt's record is not stored.
    answered(gate.reached()).await;
    life.owner.written(1);
    let again = life.agent.prompt(crate::agent::Prompt::new("More"));
    unanswered(again).await;
    life.owner.written(2);
    assert_eq!(answered(life.agent.status()).await.unwrap(), Status::Busy);
}

#[tokio::test(start_paused = true)]
async fn prompt_at_turns_replies_at_once() {
    let life = Life::begin(scripted([Step::text("Hello!")]).1, Durable::Turns, &Shelf::default()).await;
    life.cut();
    answered(life.agent.prompt("Hi")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tool_starts_after_its_step_is_stored_unless_it_is_safe() {
    for (replay, before) in [(Replay::Never, 0), (Replay::Keyed, 0), (Replay::Safe, 1)] {
        let calls = Calls::open();
        let builder = acting([act(), Step::text("Done.")], calls.tool(replay)).1;
        let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
        life.cut();
        let agent = life.agent.clone();
        tokio::spawn(async move { agent.prompt("Hi").await });
        settle().await;
        assert_eq!(calls.made().len(), before, "{replay:?}");
        life.owner.written(u64::MAX);
        settle().await;
        assert_eq!(calls.made().len(), 1, "{replay:?}");
    }
}

/// Starts a turn whose tool use waits for a decision. The record of the pause is made, but not stored yet.
async fn unreported(
    steps: impl IntoIterator<Item = Step>,
    adjust: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> (Life, Calls) {
    let calls = Calls::open();
    let builder = acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin(adjust(builder), Durable::Approvals, &Shelf::default()).await;
    life.cut();
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    (life, calls)
}

/// Callbacks that repeat each step that fails.
struct Repeating;

#[async_trait::async_trait]
impl AgentCallbacks for Repeating {
    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        ErrorDecision::Retry
    }
}

#[tokio::test(start_paused = true)]
async fn pause_is_reported_after_it_is_stored() {
    let (life, calls) = unreported([act(), Step::text("Done.")], |builder| builder).await;
    assert_eq!(life.agent.status().await.unwrap(), Status::Busy);
    assert!(life.agent.snapshot().await.unwrap().pauses.is_empty());
    life.owner.written(1);
    settle().await;
    assert_eq!(life.agent.status().await.unwrap(), Status::Paused);
    unanswered(life.agent.resume("t1", Decision::Execute)).await;
    assert!(calls.made().is_empty(), "the tool waits for the record of the decision");
    life.owner.written(2);
    settle().await;
    assert_eq!(calls.made().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn cancel_takes_effect_at_once_and_replies_after_its_end_is_stored() {
    let calls = Calls::new();
    let builder = acting([act(), Step::text("Done.")], calls.tool(Replay::Never)).1;
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    answered(calls.gate.reached()).await;
    life.cut();
    unanswered(life.agent.cancel()).await;
    assert_eq!(life.agent.status().await.unwrap(), Status::Idle);
    let agent = life.agent.clone();
    life.owner.written(u64::MAX);
    assert!(answered(agent.cancel()).await.is_err(), "no run is active");
}

#[tokio::test(start_paused = true)]
async fn ask_gets_its_response_after_the_turn_is_stored() {
    let life = Life::begin(scripted([Step::text("Hello!")]).1, Durable::InFlight, &Shelf::default()).await;
    life.cut();
    let agent = life.agent.clone();
    let asked = tokio::spawn(async move { agent.ask("Hi").await });
    settle().await;
    assert!(!asked.is_finished());
    life.owner.written(1);
    settle().await;
    assert!(!asked.is_finished(), "the prompt is stored, but not the response");
    life.owner.written(2);
    assert_eq!(answered(asked).await.unwrap().unwrap().text(), "Hello!");
}

#[tokio::test(start_paused = true)]
async fn stop_while_a_reply_waits_answers_with_stopped() {
    let life = Life::begin(scripted([Step::text("Hello!")]).1, Durable::InFlight, &Shelf::default()).await;
    life.cut();
    let agent = life.agent.clone();
    let sent = tokio::spawn(async move { agent.prompt("Hi").await });
    settle().await;
    answered(life.agent.stop(std::time::Duration::from_secs(1))).await.unwrap();
    let error = answered(sent).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Ended, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn retire_while_paused_and_stored_leaves_the_turn() {
    let calls = Calls::open();
    let builder = acting([act()], calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    assert!(answered(life.owner.retire(None)).await.unwrap());
    settle().await;
    let contents = life.shelf.contents();
    assert_eq!(contents.turn.unwrap().waiting.len(), 1);
    assert_eq!(contents.events.last().map(|event| name(event)).as_deref(), Some("status(paused t1)"));
}

#[tokio::test(start_paused = true)]
async fn retire_while_paused_but_not_stored_is_refused() {
    let calls = Calls::open();
    let builder = acting([act()], calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    life.cut();
    let agent = life.agent.clone();
    tokio::spawn(async move { agent.prompt("staged").await });
    settle().await;
    assert!(!answered(life.owner.retire(None)).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn result_given_for_a_running_tool_is_stored_before_the_reply() {
    for replay in [Replay::Safe, Replay::Never] {
        let asking = tool_fn("act", "Asks.", |_: Value, context: ToolContext| async move {
            Ok(format!("{:?}", context.ask(json!("Which?")).await))
        });
        let (_, builder) = acting([act(), Step::text("Done.").hang()], asking.with_replay(replay));
        let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
        life.agent.prompt("Hi").await.unwrap();
        settle().await;
        assert_eq!(life.agent.status().await.unwrap(), Status::Paused);
        let before = life.shelf.records();
        let result = ToolResult::ok(&ToolUse::new("t1", "act", json!({})), "found");
        life.agent.resume("t1?1", Decision::Provide(result)).await.unwrap();
        let contents = life.shelf.contents();
        assert_eq!(contents.records, before + 1, "{replay:?}");
        assert!(serde_json::to_string(&contents.turn).unwrap().contains("found"), "{replay:?}");
        // Nothing else is recorded later.
        tokio::time::advance(std::time::Duration::from_millis(60)).await;
        settle().await;
        assert_eq!(life.shelf.records(), before + 1, "{replay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn decision_before_its_pause_is_reported_is_applied_afterwards() {
    let (life, calls) = unreported([act(), Step::text("Done.")], |builder| builder).await;
    let agent = life.agent.clone();
    let decided = tokio::spawn(async move { agent.resume("t1", Decision::Execute).await });
    settle().await;
    assert!(!decided.is_finished() && life.agent.snapshot().await.unwrap().pauses.is_empty());
    assert!(life.agent.resume("t1", Decision::reject("No.")).await.is_err(), "it is decided");
    life.owner.written(1);
    settle().await;
    assert!(calls.made().is_empty() && !decided.is_finished(), "the decision is not stored yet");
    life.owner.written(u64::MAX);
    answered(decided).await.unwrap().unwrap();
    settle().await;
    assert_eq!(calls.made().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn decision_on_another_tool_use_before_the_report_names_those_that_wait() {
    let (life, calls) = unreported([act(), Step::text("Done.")], |builder| builder).await;
    let wrong = answered(life.agent.resume("t2", Decision::Execute)).await;
    let error = wrong.unwrap_err();
    assert_eq!((error.kind(), error.waiting()), (ErrorKind::StaleDecision, vec!["t1".into()]));
    assert!(calls.made().is_empty());
}

#[tokio::test(start_paused = true)]
async fn step_repeated_before_its_pause_is_reported_gets_another_id() {
    let limit = std::time::Duration::from_mins(1);
    let steps = [act(), act(), Step::text("Done.")];
    let repeats = |builder: AgentBuilder| builder.callbacks(Repeating).turn_timeout(limit);
    let (life, calls) = unreported(steps, repeats).await;
    let agent = life.agent.clone();
    tokio::spawn(async move { agent.resume("t1", Decision::Execute).await });
    settle().await;
    // The time limit ends the step, and the next response contains the same id again.
    tokio::time::advance(limit).await;
    settle().await;
    life.owner.written(u64::MAX);
    settle().await;
    let pauses = life.agent.snapshot().await.unwrap().pauses;
    let [pause] = &pauses[..] else { panic!("{pauses:?}") };
    assert_ne!(pause.tool_use.id.as_str(), "t1");
    let late = life.agent.resume("t1", Decision::Execute).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::StaleDecision);
    assert!(calls.made().is_empty(), "nobody has approved the new tool use");
}
