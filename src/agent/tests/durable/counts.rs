use super::*;

/// Returns the number of records of a run with these steps.
async fn records(steps: impl IntoIterator<Item = Step>, replay: Replay, level: Durable) -> usize {
    let calls = Calls::open();
    let life = Life::begin(acting(steps, calls.tool(replay)).1, level, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    life.idle().await;
    assert!(life.shelf.contents().turn.is_none(), "the turn has ended");
    life.shelf.records()
}

#[tokio::test(start_paused = true)]
async fn run_at_in_flight_without_tools_makes_two_records() {
    assert_eq!(records([Step::text("Hello!")], Replay::Never, Durable::InFlight).await, 2);
}

#[tokio::test(start_paused = true)]
async fn run_at_in_flight_makes_two_more_records_for_each_tool_step() {
    let end = || Step::text("Done.");
    for replay in [Replay::Never, Replay::Keyed] {
        assert_eq!(records([act(), end()], replay, Durable::InFlight).await, 4);
        assert_eq!(records([act(), act(), act(), end()], replay, Durable::InFlight).await, 8);
    }
}

#[tokio::test(start_paused = true)]
async fn run_with_quick_safe_tools_makes_two_records() {
    let steps = [act(), act(), Step::text("Done.")];
    assert_eq!(records(steps, Replay::Safe, Durable::InFlight).await, 2);
}

#[tokio::test(start_paused = true)]
async fn run_without_a_pause_makes_no_records_below_in_flight() {
    for level in [Durable::Turns, Durable::Approvals] {
        assert_eq!(records([act(), Step::text("Done.")], Replay::Never, level).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn run_at_approvals_makes_records_from_its_first_pause_on() {
    let calls = Calls::open();
    let steps = [act(), act(), Step::text("Done.")];
    let builder = acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin(builder, Durable::Approvals, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    // One record: the pause.
    assert_eq!(life.shelf.records(), 1);
    life.agent.resume("t1", crate::tool::Decision::Execute).await.unwrap();
    settle().await;
    // Three more records: the decision with the start of the tool, the result, and the next pause.
    assert_eq!(life.shelf.records(), 4);
    let waiting = life.shelf.contents().turn.unwrap().waiting;
    life.agent.resume(waiting[0].tool_use.id.clone(), crate::tool::Decision::Execute).await.unwrap();
    life.idle().await;
    // Three more records: the decision with the start of the tool, the result, and the commit.
    assert_eq!(life.shelf.records(), 7);
}

#[tokio::test(start_paused = true)]
async fn records_contain_each_message_and_result_once() {
    let calls = Calls::open();
    let (sender, receiver) = futures_channel::mpsc::channel(1024);
    let builder = acting([act(), Step::text("Done.")], calls.tool(Replay::Never)).1;
    let (agent, owner) =
        builder.records(Durable::InFlight).commit_channel(sender).start_owned().await.unwrap();
    owner.written(u64::MAX);
    agent.prompt("Hi").await.unwrap();
    answered(agent.wait_until_idle()).await.unwrap();
    drop((agent, owner));
    let deliveries: Vec<AgentCommitItem> = receiver.collect().await;
    let records: Vec<_> = deliveries.iter().filter_map(|delivery| delivery.record.as_deref()).collect();
    let shape = |record: &crate::agent::RecordToStore| {
        record.turn.as_ref().map(|turn| {
            let core: Value = serde_json::from_str(&turn.core).unwrap();
            let results = core.pointer("/stage/slots/0/result").map_or(0, |_| 1);
            (turn.keep, turn.append.len(), results)
        })
    };
    let shapes: Vec<_> = records.iter().map(|record| (record.number, shape(record))).collect();
    assert_eq!(
        shapes,
        [(1, Some((0, 1, 0))), (2, Some((1, 1, 0))), (3, Some((2, 0, 1))), (4, None)],
        "the prompt, the response, the result, and the end"
    );
}
