//! Questions that running tools ask.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{AgentBuilder, Event, PendingUse, Status},
    message::{ToolResult, ToolUseId},
    run::ErrorKind,
    testing::Step,
    tool::{Answer, Decision, Tool, ToolContext, ToolLimits, tool_fn},
};
use futures_util::future::{join, join_all};
use serde_json::{Value, json};

use super::{
    hooks::{Log, Watched, noting, results, stopped},
    support::{names, scripted},
};

const LIMIT: Duration = Duration::from_secs(10);

/// A tool that asks several questions at once, and returns the answers. Its input is the number of questions.
fn asking(name: &'static str) -> impl Tool {
    tool_fn(name, "Asks.", |input: Value, context: ToolContext| async move {
        let count = input["questions"].as_u64().unwrap_or(1);
        let questions = (1..=count).map(|number| context.ask(json!({ "question": number })));
        Ok(format!("{:?}", join_all(questions).await))
    })
}

async fn agent_with(tools: impl IntoIterator<Item = Box<dyn Tool>>, step: Step) -> Watched {
    let (_, builder) = scripted([step.stop(), Step::text("Done.")]);
    let builder = builder.turn_timeout(LIMIT * 2).tool_limits(ToolLimits::default().with_timeout(LIMIT));
    let agent = Watched::start(tools.into_iter().fold(builder, AgentBuilder::tool)).await;
    agent.agent.prompt("Go").await.unwrap();
    agent
}

/// An agent whose tool has asked one question.
async fn paused() -> (Watched, Arc<PendingUse>) {
    let step = Step::new().then_tool_use("c", "ask", json!({}));
    let mut agent = agent_with([Box::new(asking("ask")) as _], step).await;
    let events = agent.until("pause").await;
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { unreachable!() };
    (agent, Arc::clone(&pauses[0]))
}

#[tokio::test(start_paused = true)]
async fn question_of_a_tool_pauses_the_agent_and_gets_the_answer() {
    let cases = [
        (Decision::Execute, Answer::Accepted(None)),
        (Decision::ExecuteWith(json!({ "seat": 4 })), Answer::Accepted(Some(json!({ "seat": 4 })))),
        (Decision::reject("Not now."), Answer::Declined("Not now.".into())),
    ];
    for (decision, answer) in cases {
        let (mut agent, pause) = paused().await;
        assert_eq!(pause.tool_use.id.as_str(), "c?1");
        assert_eq!(pause.asked_by.as_ref().map(ToolUseId::as_str), Some("c"));
        assert_eq!((pause.call().as_str(), &pause.reason), ("c", &json!({ "question": 1 })));
        agent.check().await;
        agent.agent.resume_as("c?1", decision, "ann").await.unwrap();
        let events = agent.end().await;
        assert_eq!(
            names(&events)[..5],
            ["status(busy)", "decided(c?1)", "tool_end(c)", "tool_result(c)", "message(user)"]
        );
        assert_eq!(results(&events)[0].0.text(), format!("{:?}", [answer]));
        stopped(&events);
    }
}

#[tokio::test(start_paused = true)]
async fn question_of_a_tool_stops_the_clocks_of_the_call_and_of_the_turn() {
    let (mut agent, _) = paused().await;
    tokio::time::sleep(LIMIT * 10).await;
    agent.agent.resume("c?1", Decision::Execute).await.unwrap();
    let events = agent.end().await;
    assert!(!results(&events)[0].0.is_error, "{events:?}");
    stopped(&events);
}

#[tokio::test(start_paused = true)]
async fn question_of_a_tool_stops_the_clock_of_its_idle_limit() {
    for (after, is_late) in [(LIMIT.mul_f32(0.499), false), (LIMIT.mul_f32(0.501), true)] {
        let slow = tool_fn("slow", "Asks in between.", move |_: Value, context: ToolContext| async move {
            tokio::time::sleep(LIMIT * 3 / 4).await;
            context.progress(Value::Null).await;
            tokio::time::sleep(LIMIT / 2).await;
            context.ask(Value::Null).await;
            tokio::time::sleep(after).await;
            Ok("done")
        });
        let step = Step::new().then_tool_use("c", "slow", json!({}));
        let slow = slow.with_timeout(LIMIT * 10).with_idle_timeout(LIMIT);
        let mut agent = agent_with([Box::new(slow) as _], step).await;
        agent.until("pause").await;
        tokio::time::sleep(LIMIT * 30).await;
        agent.agent.resume("c?1", Decision::Execute).await.unwrap();
        let events = agent.end().await;
        assert_eq!(results(&events)[0].0.is_error, is_late, "{:?}", results(&events));
        stopped(&events);
    }
}

#[tokio::test(start_paused = true)]
async fn time_before_and_after_a_question_counts_for_the_limit_of_the_call() {
    for (after, is_late) in [(LIMIT.mul_f32(0.499), false), (LIMIT.mul_f32(0.501), true)] {
        let slow = tool_fn("slow", "Asks in between.", move |_: Value, context: ToolContext| async move {
            tokio::time::sleep(LIMIT / 2).await;
            context.ask(Value::Null).await;
            tokio::time::sleep(after).await;
            Ok("done")
        });
        let step = Step::new().then_tool_use("c", "slow", json!({}));
        let mut agent = agent_with([Box::new(slow) as _], step).await;
        agent.until("pause").await;
        tokio::time::sleep(LIMIT * 3).await;
        agent.agent.resume("c?1", Decision::Execute).await.unwrap();
        let result = results(&agent.end().await).remove(0).0;
        assert_eq!((result.is_error, result.text().contains("within 10s")), (is_late, is_late), "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn question_that_is_dropped_is_withdrawn() {
    let impatient = tool_fn("ask", "Gives up.", |_: Value, context: ToolContext| async move {
        let answer = tokio::time::timeout(LIMIT * 3, context.ask(Value::Null)).await;
        assert!(answer.is_err());
        let second = context.ask(Value::Null).await;
        Ok(format!("{second:?}"))
    });
    let step = Step::new().then_tool_use("c", "ask", json!({}));
    let mut agent = agent_with([Box::new(impatient) as _], step).await;
    agent.until("pause(c?1)").await;
    let order = names(&agent.until("pause(c?2)").await);
    assert_eq!(order, ["status(busy)", "status(paused c?2)"]);
    agent.check().await;
    let late = agent.agent.resume("c?1", Decision::Execute).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::StaleDecision, "{late:?}");
    agent.agent.resume("c?2", Decision::reject("No.")).await.unwrap();
    assert_eq!(results(&agent.end().await)[0].0.text(), r#"Declined("No.")"#);
}

#[tokio::test(start_paused = true)]
async fn several_questions_wait_at_once_and_the_agent_is_paused_until_the_last_answer() {
    let step = Step::new().then_tool_use("a", "one", json!({ "questions": 2 }));
    let step = step.then_tool_use("b", "two", json!({})).then_tool_use("n", "note", json!({}));
    let tools = [Box::new(asking("one")) as Box<dyn Tool>, Box::new(asking("two"))];
    let note = Box::new(noting("note", &Log::default())) as Box<dyn Tool>;
    let mut agent = agent_with(tools.into_iter().chain([note]), step).await;
    let order = names(&agent.until("tool_end(n)").await);
    let paused = ["status(paused a?1)", "status(paused a?1 a?2)", "status(paused a?1 a?2 b?1)"];
    assert_eq!(order[order.len() - 4..order.len() - 1], paused);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let waiting = agent.agent.snapshot().await.unwrap().pauses;
    let mut ids: Vec<_> = waiting.iter().map(|pause| pause.tool_use.id.to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["a?1", "a?2", "b?1"]);
    agent.agent.resume("b?1", Decision::Execute).await.unwrap();
    agent.agent.resume("a?2", Decision::Execute).await.unwrap();
    agent.until("decided(a?2)").await;
    assert_eq!(agent.agent.status().await.unwrap(), Status::Paused);
    agent.agent.resume("a?1", Decision::reject("No.")).await.unwrap();
    let events = agent.end().await;
    let texts: Vec<_> = results(&events).iter().map(|(result, _)| result.text()).collect();
    assert_eq!(texts[0], r#"[Declined("No."), Accepted(None)]"#);
    assert_eq!(texts[1], "[Accepted(None)]");
}

#[tokio::test(start_paused = true)]
async fn provide_ends_the_call_with_the_result_and_withdraws_its_other_questions() {
    let step = Step::new().then_tool_use("a", "one", json!({ "questions": 2 }));
    let mut agent = agent_with([Box::new(asking("one")) as _], step).await;
    agent.until("pause(a?2)").await;
    let [one, _] = &agent.agent.snapshot().await.unwrap().pauses[..] else { panic!("two questions wait") };
    let result = ToolResult::error(&one.tool_use, "Given.");
    agent.agent.resume("a?1", Decision::Provide(result)).await.unwrap();
    let events = agent.end().await;
    assert_eq!(names(&events)[..4], ["status(busy)", "decided(a?1)", "tool_end(a)", "tool_result(a)"]);
    let given = &results(&events)[0].0;
    assert_eq!((given.tool_use_id.as_str(), given.text().as_str(), given.is_error), ("a", "Given.", true));
    stopped(&events);
}

#[tokio::test(start_paused = true)]
async fn call_that_ends_withdraws_the_questions_of_its_other_tasks() {
    let log = Log::<String>::default();
    let noted = log.clone();
    let leaves = tool_fn("leaves", "Ends before the answer.", move |_: Value, context: ToolContext| {
        let (asker, noted) = (context.clone(), noted.clone());
        tokio::spawn(async move { noted.push(format!("{:?}", asker.ask(Value::Null).await)) });
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok("left")
        }
    });
    let step = Step::new().then_tool_use("c", "leaves", json!({}));
    let mut agent = agent_with([Box::new(leaves) as _], step).await;
    agent.until("pause(c?1)").await;
    let order = names(&agent.until("tool_end").await);
    assert_eq!(order, ["status(busy)", "tool_end(c)"]);
    stopped(&agent.end().await);
    assert_eq!(log.all(), [r#"Declined("the call has ended")"#]);
}

#[tokio::test(start_paused = true)]
async fn interrupt_and_cancel_end_a_question() {
    let (mut agent, _) = paused().await;
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    assert!(results(&events)[0].0.text().contains("while the tool was running"), "{events:?}");
    let (mut agent, _) = paused().await;
    agent.agent.cancel().await.unwrap();
    assert_eq!(names(&agent.end().await), ["status(idle)", "cancelled"]);
    let late = agent.agent.resume("c?1", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (late.kind(), late.member("activity")),
        (ErrorKind::NotPaused, Some(&"idle".into())),
        "{late:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn answer_for_an_earlier_question_with_the_same_id_never_applies_to_a_later_one() {
    let step = || Step::new().then_tool_use("c", "ask", json!({})).stop();
    let (_, builder) = scripted([step(), step(), Step::text("Done.")]);
    let mut agent = Watched::start(builder.tool(asking("ask"))).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(c?1)").await;
    agent.agent.cancel().await.unwrap();
    agent.end().await;
    agent.agent.prompt("Again").await.unwrap();
    agent.until("pause(c?2)").await;
    let late = agent.agent.resume("c?1", Decision::Execute).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::StaleDecision, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn questions_beyond_the_limit_are_declined() {
    let step = Step::new().then_tool_use("c", "ask", json!({ "questions": 40 }));
    let mut agent = agent_with([Box::new(asking("ask")) as _], step).await;
    agent.until("pause(c?32)").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waiting = agent.agent.snapshot().await.unwrap().pauses;
    assert_eq!(waiting.len(), 32);
    for pause in waiting {
        agent.agent.resume(pause.tool_use.id.clone(), Decision::Execute).await.unwrap();
    }
    let text = results(&agent.end().await)[0].0.text();
    assert_eq!(text.matches("Accepted(None)").count(), 32, "{text}");
    assert_eq!(text.matches("32 questions of running tools wait already").count(), 8, "{text}");
}

#[tokio::test(start_paused = true)]
async fn question_and_progress_arrive_in_order() {
    let tool = tool_fn("ask", "Reports and asks.", |_: Value, context: ToolContext| async move {
        context.progress(json!(1)).await;
        let (answer, ()) = join(context.ask(Value::Null), context.progress(json!(2))).await;
        Ok(format!("{answer:?}"))
    });
    let step = Step::new().then_tool_use("c", "ask", json!({}));
    let mut agent = agent_with([Box::new(tool) as _], step).await;
    agent.until("tool_start").await;
    let order = names(&agent.until("pause").await);
    assert_eq!(order, ["tool_progress", "status(paused c?1)"]);
    assert_eq!(names(&agent.until("tool_progress").await), ["tool_progress"]);
    agent.agent.resume("c?1", Decision::Execute).await.unwrap();
    stopped(&agent.end().await);
}

#[tokio::test(start_paused = true)]
async fn question_outside_an_agent_is_declined() {
    let answer = ToolContext::detached("c").ask(Value::Null).await;
    assert_eq!(answer, Answer::Declined("no agent is available to ask".into()));
}
