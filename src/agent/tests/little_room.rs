//! Compactions of conversations whose system prompt, tools or last results leave little room.

use serde_json::json;

use super::{
    compaction::{agent, compactions, refused},
    hooks::{Watched, sent, stopped},
};
use crate::{
    agent::{Agent, CompactionPolicy},
    message::{CompactionTrigger, Usage},
    testing::{ScriptedProvider, Step},
    tool::{Tool, ToolError, tool_fn},
};

/// Returns a service with this room that refuses longer requests, writes summaries without a limit, and uses the tool
/// `read` once in each of the first steps. It counts `times` as many tokens as are estimated.
fn working(room: u64, steps: usize, times: u64) -> ScriptedProvider {
    let mut left = steps;
    ScriptedProvider::from_fn(move |request| {
        let is_summary =
            request.history.last().is_some_and(|last| last.text().contains("replaced by a summary"));
        if is_summary {
            Step::text("S.")
        } else if request.estimated_tokens() > room {
            refused()
        } else if left == 0 {
            Step::text("A")
        } else {
            left -= 1;
            let usage = Usage::default().with_input(times * request.estimated_tokens());
            Step::new().usage(usage).then_tool_use(&format!("u{left}"), "read", json!({})).stop()
        }
    })
}

/// Returns a tool `read` whose results have this number of words.
fn reading(words: usize) -> impl Tool {
    tool_fn("read", "Reads.", move |_: std::collections::BTreeMap<String, u8>, _| async move {
        Ok::<_, ToolError>("word ".repeat(words))
    })
}

#[tokio::test(start_paused = true)]
async fn long_turn_behind_a_large_system_prompt_is_compacted() {
    for is_known in [true, false] {
        let provider = working(1_000, 12, 1);
        let policy = CompactionPolicy::default();
        let builder = if is_known {
            agent(&provider, policy)
        } else {
            Agent::builder().model(provider.model()).compaction(policy)
        };
        let builder = builder.system("rule ".repeat(640)).tool(reading(40));
        let mut agent = Watched::start(builder).await;
        for prompt in ["Q1", "Q2"] {
            let events = agent.run(prompt).await;
            assert_eq!(stopped(&events).text(), "A", "{prompt}");
            let ends = compactions(&events);
            assert!(ends.iter().all(Result::is_ok), "{ends:?}");
            assert!(prompt == "Q2" || !ends.is_empty(), "the turn does not fit without a compaction");
        }
        let expected = if is_known { CompactionTrigger::Size } else { CompactionTrigger::Overflow };
        let state = agent.agent.state().await.unwrap();
        let (_, own) = state.history().compaction().unwrap();
        assert_eq!(own.trigger, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn overflow_of_a_turn_that_is_estimated_too_small_is_compacted() {
    let provider = working(500, 12, 3);
    let policy = CompactionPolicy::default();
    let builder = Agent::builder().model(provider.model()).compaction(policy).tool(reading(60));
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Q").await;
    assert_eq!(stopped(&events).text(), "A");
    let own = compactions(&events)[0].clone().unwrap().compaction.clone().unwrap();
    assert_eq!(own.trigger, CompactionTrigger::Overflow);
}

#[tokio::test(start_paused = true)]
async fn result_that_reaches_the_threshold_alone_needs_no_summary() {
    let provider = working(1_000, 1, 1);
    let builder =
        agent(&provider, CompactionPolicy::default()).system("rule ".repeat(600)).tool(reading(290));
    let mut agent = Watched::start(builder).await;
    assert_eq!(stopped(&agent.run("Q").await).text(), "A");
    let requests = provider.requests();
    let texts = sent(&requests[1]);
    assert_eq!(texts.len(), 3, "{texts:?}");
    let size = requests[1].estimated_tokens();
    assert!((850..=1_000).contains(&size), "{size}");
}
