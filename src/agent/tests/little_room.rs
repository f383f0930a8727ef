//! Compactions of conversations whose system prompt, tools or last results leave little room.

use serde_json::json;

use super::{
    compaction::{agent, compactions, refused},
    hooks::{Watched, sent, stopped},
};
use crate::{
    agent::{Agent, Compact, CompactionPolicy},
    message::{CompactionTrigger, ToolResult, Usage},
    provider::{MessageDelta, ModelInfo},
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
    for (room, is_known) in [(500, false), (366, true)] {
        let (provider, policy) = (working(room, 12, 3), CompactionPolicy::default());
        let builder = if is_known {
            agent(&provider, policy)
        } else {
            Agent::builder().model(provider.model()).compaction(policy)
        };
        let mut agent = Watched::start(builder.tool(reading(60))).await;
        let events = agent.run("Q").await;
        assert_eq!(stopped(&events).text(), "A");
        let own = compactions(&events)[0].clone().unwrap().compaction.clone().unwrap();
        assert_eq!(own.trigger, CompactionTrigger::Overflow);
    }
}

#[tokio::test(start_paused = true)]
async fn usage_of_several_passes_is_not_the_size_of_the_conversation() {
    let provider = ScriptedProvider::from_fn(|_| {
        let usage = Usage::default().with_input(950);
        Step::new().usage(usage).data(MessageDelta::default().with_context(300_u32)).then_text(["A"]).stop()
    });
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default().with_kept_turns(1))).await;
    for prompt in ["Q1", "Q2", "Q3"] {
        assert_eq!(compactions(&agent.run(prompt).await).len(), 0);
    }
    let state = agent.agent.state().await.unwrap();
    assert_eq!(state.history().get(3).unwrap().context_tokens, Some(300));
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

/// Returns a service that refuses all requests that it counts as longer than this. It counts `times` as many tokens as are
/// estimated. Its answers have 60 words. Its summaries repeat the number that they were given.
fn strict(room: u64, times: u64) -> ScriptedProvider {
    ScriptedProvider::from_fn(move |request| {
        let size = times * request.estimated_tokens();
        if size > room {
            return refused();
        }
        let usage = Usage::default().with_input(size);
        let is_summary =
            request.history.last().is_some_and(|last| last.text().contains("replaced by a summary"));
        let knows = request.history.iter().any(|message| message.text().contains("4711"));
        let text = match is_summary {
            true if knows => "The code is 4711.".to_owned(),
            true => "Nothing is known.".to_owned(),
            false => "word ".repeat(60),
        };
        Step::new().usage(usage).then_text([text]).stop()
    })
}

/// Returns the messages of the last request for a summary.
fn summarised(provider: &ScriptedProvider) -> Vec<String> {
    let mut requests = provider.requests().into_iter().map(|request| sent(&request));
    requests.rfind(|texts| texts.last().unwrap().contains("replaced by a summary")).unwrap()
}

/// Runs this many prompts, of which the first one has a number. Each must be answered.
async fn run_all(agent: &mut Watched, prompts: usize) -> usize {
    let mut made = 0;
    for number in 0..prompts {
        let fact = if number == 0 { "The code is 4711. " } else { "" };
        let events = agent.run(format!("{fact}{}", "more ".repeat(40)).as_str()).await;
        assert!(stopped(&events).text().starts_with("word"), "prompt {number}");
        made += compactions(&events).iter().filter(|end| end.is_ok()).count();
    }
    made
}

#[tokio::test(start_paused = true)]
async fn fact_of_the_first_prompt_survives_every_summary_of_an_unknown_window() {
    for times in [1, 2, 3] {
        let provider = strict(1_000 * times, times);
        let builder = Agent::builder().model(provider.model()).compaction(CompactionPolicy::default());
        let mut agent = Watched::start(builder).await;
        let made = run_all(&mut agent, 40).await;
        assert!(made > 2, "{made} compactions");
        let state = agent.agent.state().await.unwrap();
        assert_eq!(state.history().compaction().map(|(_, own)| own.is_summary), Some(true));
        let knows = sent(&provider.last_request().unwrap()).iter().any(|text| text.contains("4711"));
        assert!(knows, "counts {times} times as many tokens");
    }
}

#[tokio::test(start_paused = true)]
async fn conversation_above_the_room_of_the_next_model_is_compacted() {
    for is_known in [true, false] {
        let (large, small) = (strict(100_000, 1), strict(1_000, 1));
        let mut agent =
            Watched::start(Agent::builder().model(large.model()).compaction(CompactionPolicy::default()))
                .await;
        assert_eq!(run_all(&mut agent, 14).await, 0);
        let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
        let next = if is_known { small.model().with_info(info) } else { small.model() };
        agent.agent.set_state(move |draft| Ok(draft.config.set_model(next)?)).await.unwrap();
        let events = agent.run("Q").await;
        assert!(stopped(&events).text().starts_with("word"));
        assert!(compactions(&events)[0].is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn long_prompt_takes_nothing_from_the_request_for_the_summary() {
    for is_known in [true, false] {
        let provider = strict(3_000, 1);
        let policy = CompactionPolicy::default();
        let info = ModelInfo::new("small").with_context_window(3_100).with_output_limit(100);
        let model = if is_known { provider.model().with_info(info) } else { provider.model() };
        let mut agent = Watched::start(Agent::builder().model(model).compaction(policy)).await;
        agent.run("Hello").await;
        run_all(&mut agent, 13).await;
        let events = agent.run("more ".repeat(1_800).as_str()).await;
        assert!(compactions(&events)[0].is_ok());
        let asked = summarised(&provider);
        assert_eq!((asked[0].as_str(), asked.len()), ("user: Hello", 29), "everything is read");
    }
}

#[tokio::test(start_paused = true)]
async fn request_for_a_summary_behind_many_tools_is_halved_without_them() {
    let (large, small) = (strict(100_000, 1), strict(2_000, 1));
    let builder = Agent::builder().model(large.model()).compaction(CompactionPolicy::default());
    let mut agent = Watched::start(builder.system("rule ".repeat(1_000))).await;
    assert_eq!(run_all(&mut agent, 14).await, 0);
    let next = small.model();
    agent.agent.set_state(move |draft| Ok(draft.config.set_model(next)?)).await.unwrap();
    assert!(compactions(&agent.run("Q").await)[0].is_ok());
    let asked = summarised(&small);
    assert!(asked.len() > 4, "{} messages", asked.len());
}

#[tokio::test(start_paused = true)]
async fn small_model_for_summaries_reads_what_the_summary_replaces() {
    let large = strict(100_000, 1);
    let writer = strict(1_000, 1).named("writer");
    let info = |room: u64| ModelInfo::new("known").with_context_window(room + 100).with_output_limit(100);
    let policy = CompactionPolicy::default().with_model(writer.model().with_info(info(1_000)));
    let builder = Agent::builder().model(large.model().with_info(info(4_000))).compaction(policy);
    let mut agent = Watched::start(builder).await;
    assert!(run_all(&mut agent, 80).await > 1);
    let asked = writer.last_request().unwrap();
    let earlier = sent(&asked);
    assert!(earlier[0].contains("Nothing is known.") || earlier[0].contains("4711"), "{}", earlier[0]);
}

#[tokio::test(start_paused = true)]
async fn compaction_after_a_clearing_keeps_what_was_cleared() {
    let long = "word ".repeat(600);
    let text = long.clone();
    let read = tool_fn("read", "Reads.", move |_: std::collections::BTreeMap<String, u8>, _| {
        let text = text.clone();
        async move { Ok::<_, ToolError>(text) }
    });
    let counted = |text: &str, context| {
        Step::new().usage(Usage::default().with_input(context)).then_text([text]).stop()
    };
    let provider = ScriptedProvider::new([
        counted("A0", 100),
        Step::tool_use("a", "read", json!({})),
        counted("A1", 900),
        counted("A2", 300),
        Step::text("S."),
        counted("A3", 300),
    ]);
    let mut agent = Watched::start(agent(&provider, CompactionPolicy::default()).tool(read)).await;
    agent.run("Q0").await;
    let made = compactions(&agent.run("Q1").await)[0].clone().unwrap();
    assert!(!made.compaction.as_ref().unwrap().is_summary);
    agent.run("Q2").await;
    let made = agent.agent.compact(Compact::summary()).await.unwrap();
    agent.end().await;
    let (before, after) = made.compaction.as_ref().unwrap().tokens.unwrap();
    assert!(after <= before, "{before} tokens became {after}");
    agent.run("Q3").await;
    let request = provider.last_request().unwrap();
    let texts = request.history.iter().flat_map(|message| message.tool_results());
    assert!(texts.map(ToolResult::text).all(|text| text != long), "the results are sent again");
}
