//! Concurrent runs do not mix their spans.

use futures_util::future::join_all;
use omni_agent::{
    Agent,
    provider::Model,
    testing::{ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};
use std::sync::Arc;
use tracing::Instrument;

use super::{
    alone::{alone, threaded},
    collector::Collector,
    tree::{Node, render},
};

const RUNS: usize = 100;

async fn run(number: usize) {
    let provider = ScriptedProvider::new([
        Step::tool_use(&format!("call-{number}"), &format!("tool-{number}"), json!({})),
        Step::text("Done."),
    ]);
    let tool = tool_fn(&format!("tool-{number}"), "Yields.", move |_: Value, _| async move {
        for _ in 0..number % 7 {
            tokio::task::yield_now().await;
        }
        drop(tracing::info_span!(target: "test", "in tool", number));
        Ok("done")
    });
    let model = Model::new(Arc::new(provider), format!("model-{number}"));
    let agent = Agent::builder().model(model).name(number.to_string()).tool(tool).start().await.unwrap();
    agent.ask("Go.").await.unwrap();
}

#[test]
fn hundred_runs_at_once_never_mix_their_spans() {
    const TEST: &str = "mixing::hundred_runs_at_once_never_mix_their_spans";
    alone(TEST, &[], || {
        let collector = Collector::install();
        threaded(async {
            let runs = (0..RUNS).map(|number| {
                let caller = tracing::info_span!(target: "test", "caller", number);
                tokio::spawn(run(number).instrument(caller))
            });
            for run in join_all(runs).await {
                run.unwrap();
            }
        });
        let spans = collector.spans();
        let roots: Vec<&Node> = spans.iter().filter(|span| span.parent.is_none()).collect();
        assert_eq!(roots.len(), RUNS);
        for root in roots {
            assert_one_run(&spans, root);
        }
    });
}

/// Checks that the tree below a caller's span consists of the caller's own run.
fn assert_one_run(spans: &[Node], root: &Node) {
    let number = &root.attributes["number"];
    let children = |of: &Node| -> Vec<&Node> {
        spans.iter().filter(|span| span.parent.as_ref() == Some(&of.id)).collect()
    };
    let names = |of: &Node| children(of).iter().map(|span| span.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(root), [format!("invoke_agent {number}")]);
    let run = children(root)[0];
    let (chat, tool) = (format!("chat model-{number}"), format!("execute_tool tool-{number}"));
    assert_eq!(names(run), [chat.clone(), tool, chat], "{}", render(spans));
    let below: Vec<_> = children(run).into_iter().map(names).collect();
    assert_eq!(below, [["attempt"], ["in tool"], ["attempt"]]);
    assert_eq!(children(children(run)[1])[0].attributes["number"], *number);
}
