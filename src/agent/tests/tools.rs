//! What an agent gives its tools (a context and extensions), and how it handles their progress reports, time limits and
//! results.

use std::time::Duration;

use crate::{
    agent::{Agent, Event, ToolDecision, WeakAgent},
    message::Attachment,
    provider::Delta,
    testing::{Gate, Step},
    tool::{Schema, Tool, ToolContext, ToolLimits, ToolOutput, tool_fn, tool_fn_with_schema},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, noting, reached, results, stopped},
    support::{names, scripted},
};

#[tokio::test(start_paused = true)]
async fn idempotency_keys_differ_between_all_calls() {
    let two =
        || Step::new().then_tool_use("a", "keep", json!({})).then_tool_use("b", "keep", json!({})).stop();
    let script = || [two(), two(), Step::text("Done"), two(), Step::text("Done")];
    let keys = Log::<(String, String)>::default();
    for _ in 0..2 {
        let (_, builder) = scripted(script());
        let noted = keys.clone();
        let keep = tool_fn("keep", "Keeps its key.", move |_: Value, context: ToolContext| {
            noted.push((context.tool_use_id().to_string(), context.idempotency_key().to_owned()));
            async move {
                let key = context.idempotency_key().to_owned();
                // During one call of a tool, the idempotency key is always the same.
                assert_eq!(key, context.clone().idempotency_key());
                Ok(key)
            }
        });
        let mut agent = Watched::start(builder.tool(keep)).await;
        agent.run("Go").await;
        let events = agent.run("Again").await;
        assert_eq!(results(&events).len(), 2);
    }
    let mut seen: Vec<_> = keys.all().into_iter().map(|(_, key)| key).collect();
    assert_eq!(seen.len(), 12);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 12, "the model repeats its ids, but the keys do not repeat");
    assert!(seen.iter().all(|key| key.len() > 16));
}

#[tokio::test(start_paused = true)]
async fn tool_context_has_the_ids_of_its_use() {
    let step = Step::new().then_tool_use("a", "id", json!({})).then_tool_use("b", "id", json!({})).stop();
    let (_, builder) = scripted([step, Step::text("Done")]);
    let id = tool_fn("id", "Tells its id.", |_: Value, context: ToolContext| async move {
        assert!(!context.is_cancelled());
        Ok(context.tool_use_id().to_string())
    });
    let mut agent = Watched::start(builder.tool(id)).await;
    let texts: Vec<_> =
        results(&agent.run("Go").await).into_iter().map(|(result, _)| result.text()).collect();
    assert_eq!(texts, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn extensions_reach_callbacks_and_tools() {
    struct Tenant(u32);
    let (_, builder) = scripted([Step::tool_use("a", "tenant", json!({})), Step::text("Done")]);
    let seen = Log::<u32>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_turn(move |_, state| {
        noted.push(state.extensions().get::<Tenant>().unwrap().0);
        crate::agent::TurnDecision::Stop
    });
    let tenant = tool_fn("tenant", "Tells the tenant.", |_: Value, context: ToolContext| async move {
        Ok(context.extensions().get::<Tenant>().unwrap().0.to_string())
    });
    let builder = builder.extension(Tenant(3)).extension(Tenant(7)).tool(tenant).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Go").await;
    assert_eq!((results(&events)[0].0.text().as_str(), seen.all()), ("7", vec![7]));
    assert_eq!(agent.agent.state().await.unwrap().extensions().get::<Tenant>().unwrap().0, 7);
}

#[tokio::test(start_paused = true)]
async fn tool_reaches_its_own_agent_weakly() {
    let (_, builder) =
        scripted([Step::tool_use("a", "steer", json!({})), Step::text("Done"), Step::text("Steered")]);
    let steer = tool_fn("steer", "Stages a prompt.", |_: Value, context: ToolContext| async move {
        let agent = context.extensions().get::<WeakAgent>().and_then(WeakAgent::upgrade).unwrap();
        agent.prompt("From the tool").await?;
        Ok("staged")
    });
    let mut agent = Watched::start(builder.tool(steer)).await;
    let events = agent.run("Go").await;
    assert_eq!(results(&events)[0].0.text(), "staged");
    assert_eq!(stopped(&events).text(), "Steered");
}

#[tokio::test(start_paused = true)]
async fn callback_reaches_its_own_agent_weakly() {
    let (_, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let handles = Log::<Agent>::default();
    let kept = handles.clone();
    let hooks = Hooks::new().on_prepare(move |_, state| kept.push(state.agent().upgrade().unwrap()));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.run("Hi").await;
    handles.all()[0].prompt("Through the callback's handle").await.unwrap();
    assert_eq!(stopped(&agent.end().await).text(), "Two");
}

#[tokio::test(start_paused = true)]
async fn input_with_json_in_a_string_is_decoded_where_the_schema_refuses_the_string() {
    let schema = json!({
        "type": "object",
        "properties": {
            "edits": { "type": "array", "items": { "type": "object" } },
            "where": { "anyOf": [{ "type": "object" }, { "type": "null" }] },
            "text": { "type": "string" },
            "either": { "type": ["string", "array"] },
        },
        "required": ["edits"],
    });
    let edits = json!([{ "a": 1 }]);
    let text = || json!({ "text": "[1, 2]" }).to_string();
    // The input that the model sends, and the one with which the tool runs.
    let cases = [
        (json!({ "edits": edits.to_string() }), Some(json!({ "edits": edits }))),
        (
            json!({ "edits": edits, "where": "{\"b\": [2]}" }),
            Some(json!({ "edits": edits, "where": { "b": [2] } })),
        ),
        (
            json!({ "edits": edits.to_string(), "text": text(), "either": "[1]" }),
            Some(json!({ "edits": edits, "text": text(), "either": "[1]" })),
        ),
        (json!({ "edits": edits, "text": text() }), Some(json!({ "edits": edits, "text": text() }))),
        (Value::from(json!({ "edits": edits }).to_string()), Some(json!({ "edits": edits }))),
        // The decoded values do not fit, repeat a key, or are encoded once more.
        (json!({ "edits": "[1]" }), None),
        (json!({ "edits": "{\"a\": 1}" }), None),
        (json!({ "edits": "[{\"a\": 1, \"a\": 2}]" }), None),
        (json!({ "edits": Value::from(edits.to_string()).to_string() }), None),
        (Value::from("{\"edits\": [], \"edits\": []}"), None),
    ];
    for ended in [false, true] {
        for (sent, runs) in &cases {
            let mut step = Step::new().then_raw_tool_use("a", "edit", &[&sent.to_string()]);
            if ended {
                step = step.delta(Delta::End { index: 0 });
            }
            let (provider, builder) = scripted([step.stop(), Step::text("Done")]);
            let (seen, ran) = (Log::<Value>::default(), Log::<Value>::default());
            let (asked, called) = (seen.clone(), ran.clone());
            let hooks = Hooks::new().on_tool_use(move |tool_use, _| {
                asked.push(tool_use.input.clone());
                ToolDecision::Execute
            });
            let input = Schema::new(schema.clone()).unwrap();
            let edit = tool_fn_with_schema("edit", "Edits.", input, move |input: Value, _| {
                called.push(input);
                async { Ok("edited") }
            });
            let mut agent = Watched::start(builder.tool(edit).callbacks(hooks)).await;
            let events = agent.run("Go").await;
            assert_eq!(ran.all(), runs.iter().cloned().collect::<Vec<_>>(), "{sent}");
            let Some(runs) = runs else {
                assert!(results(&events)[0].0.is_error, "{sent}");
                continue;
            };
            assert_eq!(seen.all(), std::slice::from_ref(runs), "{sent}");
            let (result, input) = &results(&events)[0];
            assert_eq!((result.text().as_str(), input), ("edited", &None), "{sent}");
            let shown: Vec<_> = events
                .iter()
                .filter_map(|event| match &**event {
                    Event::ToolUseEnd { content, .. } => Some(content.input.clone()),
                    Event::Message { message, .. } => Some(message.tool_uses().next()?.input.clone()),
                    _ => None,
                })
                .collect();
            assert_eq!(shown, [runs.clone(), runs.clone()], "{sent}");
            let next = provider.last_request().unwrap();
            let kept: Vec<_> = next.history.iter().flat_map(|message| message.tool_uses()).collect();
            assert_eq!(kept[0].input, *runs, "{sent}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tool_progress_is_emitted_before_the_result() {
    let step = Step::new().then_tool_use("a", "work", json!({})).then_tool_use("b", "work", json!({})).stop();
    let (_, builder) = scripted([step, Step::text("Done")]);
    let work = tool_fn("work", "Reports.", |_: Value, context: ToolContext| async move {
        for percent in [10, 50, 100] {
            context.progress(json!({ "percent": percent })).await;
        }
        Ok("worked")
    });
    let mut agent = Watched::start(builder.tool(work)).await;
    let events = agent.run("Go").await;
    let progress: Vec<_> = events
        .iter()
        .filter_map(|event| match &**event {
            Event::ToolProgress { tool_use_id, data } => {
                Some((tool_use_id.to_string(), data["percent"].as_u64().unwrap()))
            }
            _ => None,
        })
        .collect();
    let of = |id: &str| {
        progress.iter().filter(|(of, _)| of == id).map(|(_, percent)| *percent).collect::<Vec<_>>()
    };
    assert_eq!((of("a"), of("b")), (vec![10, 50, 100], vec![10, 50, 100]));
    let names = names(&events);
    let last = names.iter().rposition(|name| name == "tool_progress").unwrap();
    assert!(last < names.iter().position(|name| name == "tool_result(a)").unwrap());
}

#[tokio::test(start_paused = true)]
async fn tool_reports_progress_rapidly_no_report_is_lost() {
    let (_, builder) = scripted([Step::tool_use("a", "work", json!({})), Step::text("Done")]);
    let work = tool_fn("work", "Reports.", |_: Value, context: ToolContext| async move {
        for n in 0..1000 {
            context.progress(json!(n)).await;
        }
        Ok("worked")
    });
    let mut agent = Watched::start(builder.tool(work)).await;
    let events = agent.run("Go").await;
    assert_eq!(names(&events).iter().filter(|name| *name == "tool_progress").count(), 1000);
}

#[tokio::test(start_paused = true)]
async fn tool_timeout_becomes_an_error_result_and_does_not_affect_the_others() {
    let step = Step::new()
        .then_tool_use("a", "nap", json!({ "seconds": 3 }))
        .then_tool_use("b", "sleep", json!({ "seconds": 30 }))
        .stop();
    let (_, builder) = scripted([step, Step::text("Done")]);
    let rest = |name: &str| {
        tool_fn(name, "Rests.", |input: Value, _| async move {
            tokio::time::sleep(Duration::from_secs(input["seconds"].as_u64().unwrap())).await;
            Ok("rested")
        })
    };
    let sleep = rest("sleep").with_timeout(Duration::from_secs(10));
    let limits = ToolLimits::default().with_timeout(Duration::from_secs(5));
    let mut agent = Watched::start(builder.tool(rest("nap")).tool(sleep).tool_limits(limits)).await;
    let start = tokio::time::Instant::now();
    let events = agent.run("Go").await;
    let results = results(&events);
    assert_eq!((results[0].0.text().as_str(), results[0].0.is_error), ("rested", false));
    assert!(results[1].0.is_error && results[1].0.text().contains("10s"), "{}", results[1].0.text());
    assert_eq!((stopped(&events).text().as_str(), start.elapsed().as_secs()), ("Done", 10));
}

#[tokio::test(start_paused = true)]
async fn tool_timeout_cancels_only_its_context() {
    let step =
        Step::new().then_tool_use("a", "stall", json!({})).then_tool_use("b", "wait", json!({})).stop();
    let (_, builder) = scripted([step, Step::text("Done")]);
    let cancelled = Log::<String>::default();
    let noted = cancelled.clone();
    let stall = tool_fn("stall", "Stalls.", move |_: Value, context: ToolContext| {
        let noted = noted.clone();
        tokio::spawn(async move {
            context.cancelled().await;
            noted.push(context.tool_use_id().as_str());
        });
        async { std::future::pending::<Result<String, _>>().await }
    });
    let wait = tool_fn("wait", "Waits.", |_: Value, context: ToolContext| async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(context.is_cancelled().to_string())
    });
    let stall = stall.with_timeout(Duration::from_secs(5));
    let limits = ToolLimits::default().with_timeout(Duration::MAX);
    let mut agent = Watched::start(builder.tool(stall).tool(wait).tool_limits(limits)).await;
    let events = agent.run("Go").await;
    assert_eq!((cancelled.all(), results(&events)[1].0.text()), (vec!["a".to_owned()], "false".into()));
}

#[tokio::test(start_paused = true)]
async fn tool_output_is_capped_by_the_limit_of_the_agent() {
    let (provider, builder) = scripted([Step::tool_use("a", "long", json!({})), Step::text("Done")]);
    let long = tool_fn("long", "Long.", |_: Value, _| async move { Ok("x".repeat(100_000)) });
    let limits = ToolLimits::default().with_max_output(1000);
    let mut agent = Watched::start(builder.tool(long).tool_limits(limits)).await;
    let events = agent.run("Go").await;
    let result = &results(&events)[0].0;
    assert!(result.text().len() <= 1000 && result.text().len() > 500);
    assert_eq!(provider.requests()[1].history.last().unwrap().tool_results().next(), Some(result));
}

#[tokio::test(start_paused = true)]
async fn tool_may_answer_with_an_image() {
    let (provider, builder) = scripted([Step::tool_use("a", "photo", json!({})), Step::text("Done")]);
    let photo = tool_fn("photo", "Takes one.", |_: Value, _| async move {
        Ok(ToolOutput::from(Attachment::base64("image/png", "iVBORw0KGgo=")))
    });
    let mut agent = Watched::start(builder.tool(photo)).await;
    agent.run("Go").await;
    let closing = provider.requests()[1].history.last().unwrap().clone();
    let blocks = &closing.tool_results().next().unwrap().content;
    assert!(matches!(&blocks[..], [crate::message::ResultBlock::Attachment(image)] if image.is_image()));
}

#[tokio::test(start_paused = true)]
async fn cancel_while_tools_run_cancels_their_contexts() {
    let (_, builder) = scripted([Step::tool_use("a", "stall", json!({}))]);
    let (gate, cancelled) = (Gate::new(), Gate::new());
    let (running, cancel_seen) = (gate.clone(), cancelled.clone());
    let stall = tool_fn("stall", "Stalls.", move |_: Value, context: ToolContext| {
        let (running, cancel_seen) = (running.clone(), cancel_seen.clone());
        tokio::spawn(async move {
            context.cancelled().await;
            cancel_seen.pass().await;
        });
        async move {
            running.pass().await;
            std::future::pending::<Result<String, _>>().await
        }
    });
    let mut agent = Watched::start(builder.tool(stall)).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    gate.open();
    agent.agent.cancel().await.unwrap();
    reached(&cancelled).await;
    assert_eq!(names(&agent.end().await).last().unwrap(), "cancelled");
}

#[tokio::test(start_paused = true)]
async fn tool_added_by_a_tool_is_in_the_next_request() {
    // A tool whose description depends on its state. The description is read again for every request.
    struct Counter(std::sync::atomic::AtomicU32, crate::tool::Schema);
    #[async_trait::async_trait]
    impl crate::tool::Tool for Counter {
        fn name(&self) -> &'static str {
            "count"
        }
        fn description(&self) -> std::borrow::Cow<'_, str> {
            format!("Called {} times.", self.0.load(std::sync::atomic::Ordering::Relaxed)).into()
        }
        fn schema(&self) -> &crate::tool::Schema {
            &self.1
        }
        async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, crate::tool::ToolError> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok("counted".into())
        }
    }
    let schema = crate::tool::Schema::new(json!({ "type": "object" })).unwrap();
    let described = Log::<String>::default();
    let noted = described.clone();
    let hooks = Hooks::new()
        .on_prepare(move |request, _| noted.push(request.tools.declarations()[0].description.clone()));
    let (_, builder) = scripted([Step::tool_use("a", "count", json!({})), Step::text("Done")]);
    let mut agent = Watched::start(
        builder.tool(Counter(0.into(), schema)).tool(noting("x", &Log::default())).callbacks(hooks),
    )
    .await;
    agent.run("Go").await;
    assert_eq!(described.all(), ["Called 0 times.", "Called 1 times."]);
}
