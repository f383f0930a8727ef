use std::{
    borrow::Cow,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use omni_agent::{
    message::{Attachment, ToolResult, ToolUse},
    tool::{
        Extensions, Schema, Tool, ToolContext, ToolError, ToolLimits, ToolOutput, ToolSet, TypedTool,
        tool_fn, tool_fn_with_schema,
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::{Barrier, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

fn limits(timeout: Duration) -> ToolLimits {
    ToolLimits::default().with_timeout(timeout)
}

fn tools(tool: impl Tool) -> ToolSet {
    ToolSet::new().with(tool).unwrap()
}

async fn run(tools: &ToolSet, tool_use: &ToolUse) -> ToolResult {
    let result =
        tools.run(tool_use, ToolContext::detached(tool_use.id.clone()), &ToolLimits::default()).await;
    assert_eq!((&result.tool_use_id, &result.name), (&tool_use.id, &tool_use.name));
    result
}

async fn error_of(tools: &ToolSet, tool_use: &ToolUse) -> String {
    let result = run(tools, tool_use).await;
    assert!(result.is_error, "{result:?}");
    result.text()
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns a tool whose result shows that the tool was called.
fn strict() -> impl Tool {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    tool_fn_with_schema(
        "strict",
        "Wants a number.",
        Schema::new(schema).unwrap(),
        |_: Value, _: ToolContext| async { Ok("called") },
    )
}

/// A tool that calls the function and returns the function's future.
struct Raw<F>(Schema, F);

type Call<'a> = Pin<Box<dyn Future<Output = Result<ToolOutput, ToolError>> + Send + 'a>>;

fn raw<F: Fn() -> Call<'static> + Send + Sync + 'static>(make: F) -> ToolSet {
    tools(Raw(Schema::new(json!({ "type": "object" })).unwrap(), make))
}

impl<F: Fn() -> Call<'static> + Send + Sync + 'static> Tool for Raw<F> {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn description(&self) -> Cow<'_, str> {
        "Raw.".into()
    }

    fn schema(&self) -> &Schema {
        &self.0
    }

    fn call<'a, 'b>(&'a self, _: Value, _: ToolContext) -> Call<'b>
    where
        'a: 'b,
        Self: 'b,
    {
        (self.1)()
    }
}

fn raw_use() -> ToolUse {
    ToolUse::new("id", "raw", json!({}))
}

#[tokio::test]
async fn run_malformed_input_gives_the_reason_and_does_not_call() {
    let tools = tools(strict());
    let mut tool_use = ToolUse::new("id", "strict", json!({}));
    tool_use.malformed = Some(r#"{"n": 1, "#.to_owned());
    let text = error_of(&tools, &tool_use).await;
    assert!(
        text.contains("must be a JSON object: EOF while parsing") && text.contains(r#"{"n": 1"#),
        "{text}"
    );

    tool_use.malformed = Some("[1]".to_owned());
    assert!(error_of(&tools, &tool_use).await.contains("it is JSON, but not an object"));

    tool_use.malformed = Some("é".repeat(100_000));
    assert!(error_of(&tools, &tool_use).await.len() < 1_000);
}

#[tokio::test]
async fn run_input_that_is_not_an_object_is_an_error() {
    let echo = tools(tool_fn("echo", "Echo.", |input: Value, _| async { Ok(input) }));
    for input in [json!(null), json!([]), json!("{}"), json!(1)] {
        assert!(error_of(&echo, &ToolUse::new("id", "echo", input)).await.contains("must be a JSON object"));
    }
}

#[tokio::test]
async fn run_invalid_input_lists_the_problems_and_does_not_call() {
    let text = error_of(&tools(strict()), &ToolUse::new("id", "strict", json!({ "n": "x" }))).await;
    assert!(text.contains("- at /n: expected integer, got string"), "{text}");
    let text = error_of(&tools(strict()), &ToolUse::new("id", "strict", json!({}))).await;
    assert!(text.contains("missing required property \"n\""), "{text}");
    let result = run(&tools(strict()), &ToolUse::new("id", "strict", json!({ "n": 1 }))).await;
    assert_eq!((result.text().as_str(), result.is_error), ("called", false));
}

#[tokio::test]
async fn run_failed_output_is_an_error_result_with_its_blocks() {
    let image = || Attachment::base64("image/png", "iVBORw0KGgo=");
    let failing =
        tool_fn("look", "Looks.", move |_: Value, _| async move { Ok(ToolOutput::from(image()).failed()) });
    let result = run(&tools(failing), &ToolUse::new("id", "look", json!({}))).await;
    assert!(result.is_error);
    assert_eq!(result.content, [image().into()]);
}

#[tokio::test]
async fn run_unknown_name_lists_the_available_tools() {
    let text = error_of(&tools(strict()), &ToolUse::new("id", "stict", json!({}))).await;
    assert_eq!(text, "There is no tool \"stict\". The tools are: strict.");
    let text = error_of(&ToolSet::new(), &ToolUse::new("id", "a", json!({}))).await;
    assert_eq!(text, "There is no tool \"a\". No tools are available.");
}

#[tokio::test]
async fn run_unknown_name_of_any_length_among_many_tools_is_capped() {
    let many = (0..1_000).fold(ToolSet::new(), |tools, n| {
        tools.with(tool_fn(&format!("tool_{n}"), "T.", |_: Value, _| async { Ok("") })).unwrap()
    });
    let text = error_of(&many, &ToolUse::new("id", "é".repeat(100_000), json!({}))).await;
    assert!(text.len() < 8_000 && text.ends_with("tool_49 and 950 more."), "{text}");
}

#[tokio::test]
async fn run_error_is_its_text() {
    let failing =
        tools(tool_fn("f", "F.", |_: Value, _| async { Err::<&str, _>(ToolError::new("no route")) }));
    assert_eq!(error_of(&failing, &ToolUse::new("id", "f", json!({}))).await, "no route");
    let silent = tools(tool_fn("f", "F.", |_: Value, _| async { Err::<&str, _>(ToolError::new(" ")) }));
    let text = error_of(&silent, &ToolUse::new("id", "f", json!({}))).await;
    assert_eq!(text, "The tool \"f\" failed without an error message.");
}

#[tokio::test]
async fn run_panic_when_called_is_an_error_result() {
    let tools = raw(|| panic!("at the call"));
    assert!(error_of(&tools, &raw_use()).await.contains("at the call"));
}

#[tokio::test]
async fn run_panic_when_polled_is_an_error_result() {
    let first = raw(|| Box::pin(async { panic!("{} at the first poll", 1) }));
    assert!(error_of(&first, &raw_use()).await.contains("1 at the first poll"));
    let later = raw(|| {
        Box::pin(async {
            tokio::task::yield_now().await;
            panic!("later")
        })
    });
    assert!(error_of(&later, &raw_use()).await.contains("later"));
}

#[tokio::test]
async fn run_panic_with_any_payload_is_an_error_result() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload panics in its turn");
        }
    }
    let bomb = raw(|| Box::pin(async { std::panic::panic_any(Bomb) }));
    assert!(error_of(&bomb, &raw_use()).await.contains("panic without a message"));
    let long = raw(|| Box::pin(async { panic!("{}", "é".repeat(100_000)) }));
    assert!(error_of(&long, &raw_use()).await.len() < 1_000);
}

/// A future that panics when it is dropped, whether or not it has finished.
struct PanicsInDrop {
    ready: bool,
    dropped: Arc<AtomicBool>,
}

impl Future for PanicsInDrop {
    type Output = Result<ToolOutput, ToolError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if self.ready { Poll::Ready(Ok("done".into())) } else { Poll::Pending }
    }
}

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
        panic!("in drop");
    }
}

fn panics_in_drop(ready: bool) -> (ToolSet, Arc<AtomicBool>) {
    let dropped = Arc::new(AtomicBool::new(false));
    let tools = raw({
        let dropped = Arc::clone(&dropped);
        move || Box::pin(PanicsInDrop { ready, dropped: Arc::clone(&dropped) })
    });
    (tools, dropped)
}

#[tokio::test(start_paused = true)]
async fn run_panic_in_drop_is_contained_after_success_and_timeout() {
    let (tools, dropped) = panics_in_drop(true);
    assert_eq!(run(&tools, &raw_use()).await.text(), "done");
    assert!(dropped.load(Ordering::Relaxed));

    let (tools, dropped) = panics_in_drop(false);
    assert!(error_of(&tools, &raw_use()).await.contains("did not finish within 120s"));
    assert!(dropped.load(Ordering::Relaxed));
}

#[tokio::test]
async fn run_dropped_contains_a_panic_in_drop() {
    let (tools, dropped) = panics_in_drop(false);
    let tool_use = raw_use();
    let limits = ToolLimits::default();
    {
        let mut running = Box::pin(tools.run(&tool_use, ToolContext::detached("id"), &limits));
        assert!(poll_once(running.as_mut()).is_pending());
    }
    assert!(dropped.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn run_timeout_names_the_limit_and_drops_the_call() {
    let (alive, mut dropped) = mpsc::channel::<()>(1);
    let tools = raw(move || {
        let alive = alive.clone();
        Box::pin(async move {
            std::future::pending::<()>().await;
            drop(alive);
            Ok("".into())
        })
    });
    let started = tokio::time::Instant::now();
    let timeout = Duration::from_millis(1_500);
    let result = tools.run(&raw_use(), ToolContext::detached("id"), &limits(timeout)).await;
    assert_eq!(result.text(), "The tool \"raw\" did not finish within 1.5s and was stopped.");
    assert!(result.is_error);
    assert_eq!(started.elapsed(), Duration::from_millis(1_500));
    drop(tools);
    assert_eq!(dropped.recv().await, None);
}

#[tokio::test(start_paused = true)]
async fn run_timeout_is_two_minutes_unless_set() {
    let tools = raw(|| Box::pin(std::future::pending()));
    let started = tokio::time::Instant::now();
    assert!(error_of(&tools, &raw_use()).await.contains("within 120s"));
    assert_eq!(started.elapsed(), Duration::from_mins(2));
}

/// Returns a tool that reports progress after each of these numbers of seconds, and then takes `rest` seconds.
fn reporting(waits: &'static [u64], rest: u64) -> impl Tool {
    tool_fn("report", "Reports.", move |_: Value, context: ToolContext| async move {
        for wait in waits {
            tokio::time::sleep(Duration::from_secs(*wait)).await;
            context.progress(json!(wait)).await;
        }
        tokio::time::sleep(Duration::from_secs(rest)).await;
        Ok("done")
    })
}

#[tokio::test(start_paused = true)]
async fn run_idle_timeout_counts_from_the_last_progress_report() {
    let idle = Duration::from_secs(10);
    for (waits, rest, stops_after) in
        [(&[9, 9, 9][..], 9, None), (&[9, 9], 11, Some(28)), (&[], 11, Some(10)), (&[11], 0, Some(10))]
    {
        let limits = ToolLimits::default().with_idle_timeout(idle);
        let tool_use = ToolUse::new("id", "report", json!({}));
        let (start, tools) = (tokio::time::Instant::now(), tools(reporting(waits, rest)));
        let result = tools.run(&tool_use, ToolContext::detached("id"), &limits).await;
        let Some(stops_after) = stops_after else {
            assert_eq!(result.text(), "done");
            continue;
        };
        let text = r#"The tool "report" reported no progress for 10s and was stopped."#;
        assert_eq!((result.text().as_str(), result.is_error), (text, true));
        assert_eq!(start.elapsed().as_secs(), stops_after);
    }
}

#[tokio::test(start_paused = true)]
async fn run_idle_timeout_applies_beside_the_total_timeout() {
    let limits = limits(Duration::from_secs(20)).with_idle_timeout(Duration::from_secs(10));
    let tool_use = ToolUse::new("id", "report", json!({}));
    let tools = tools(reporting(&[9, 9, 9], 9));
    let result = tools.run(&tool_use, ToolContext::detached("id"), &limits).await;
    assert_eq!(result.text(), r#"The tool "report" did not finish within 20s and was stopped."#);
}

#[tokio::test(start_paused = true)]
async fn run_idle_timeout_of_the_tool_replaces_that_of_the_limits() {
    struct Typed;
    impl TypedTool for Typed {
        type Input = Value;
        fn name(&self) -> &'static str {
            "typed"
        }
        fn description(&self) -> Cow<'_, str> {
            "Typed.".into()
        }
        fn idle_timeout(&self) -> Option<Duration> {
            Some(Duration::from_secs(3))
        }
        async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
            std::future::pending().await
        }
    }
    let (three, four) = (Some(Duration::from_secs(3)), Duration::from_secs(4));
    let inner = || reporting(&[], 60).with_idle_timeout(Duration::from_secs(3));
    let wrapped: [Box<dyn Tool>; 6] = [
        Box::new(inner()),
        Box::new(Arc::new(inner())),
        Box::new(inner().with_timeout(Duration::from_mins(1))),
        Box::new(inner().needs_approval()),
        Box::new(inner().with_replay(omni_agent::tool::Replay::Safe)),
        Box::new(Typed.into_tool()),
    ];
    for tool in wrapped {
        assert_eq!(tool.idle_timeout(), three);
        for (tool, most) in [(tool, 3), (Box::new(reporting(&[], 60)), 4)] {
            let (start, name) = (tokio::time::Instant::now(), tool.name().to_owned());
            let tool_use = ToolUse::new("id", name, json!({}));
            let limits = ToolLimits::default().with_idle_timeout(four);
            let result =
                ToolSet::new().with(tool).unwrap().run(&tool_use, ToolContext::detached("id"), &limits).await;
            assert!(result.is_error, "{result:?}");
            assert_eq!(start.elapsed().as_secs(), most);
        }
    }
    assert_eq!(inner().with_timeout(four).timeout(), Some(four));
    assert_eq!(inner().timeout(), None);
    assert_eq!(reporting(&[], 60).idle_timeout(), None);
}

#[tokio::test(start_paused = true)]
async fn run_idle_timed_out_cancels_spawned_tasks() {
    let (tools, mut reports) = spawns(true);
    let limits = ToolLimits::default().with_idle_timeout(Duration::from_secs(1));
    let tool_use = ToolUse::new("id", "spawns", json!({}));
    assert!(tools.run(&tool_use, ToolContext::detached("id"), &limits).await.is_error);
    assert_eq!(reports.recv().await, Some("stopped"));
}

#[tokio::test(start_paused = true)]
async fn run_timeout_of_the_tool_replaces_that_of_the_limits() {
    let slow = |name: &str, limit| {
        let tool = tool_fn(name, "Slow.", |_: Value, _| async {
            tokio::time::sleep(Duration::from_hours(1)).await;
            Ok("done")
        });
        // A tool keeps its own time limit when it is behind a pointer.
        Box::new(Arc::new(tool.with_timeout(limit))) as Box<dyn Tool>
    };
    let tools = ToolSet::new().with(slow("patient", Duration::MAX)).unwrap();
    let tools = tools.with(slow("hasty", Duration::from_secs(1))).unwrap();
    let limits = limits(Duration::from_secs(10));
    let patient = ToolUse::new("1", "patient", json!({}));
    let hasty = ToolUse::new("2", "hasty", json!({}));
    assert!(tools.run(&hasty, ToolContext::detached("2"), &limits).await.text().contains("within 1s"));
    assert_eq!(tools.run(&patient, ToolContext::detached("1"), &limits).await.text(), "done");
}

#[tokio::test]
async fn run_timeout_that_panics_is_an_error_result() {
    struct Undecided;
    impl TypedTool for Undecided {
        type Input = Value;
        fn name(&self) -> &str {
            "raw"
        }
        fn description(&self) -> Cow<'_, str> {
            "Has no limit.".into()
        }
        fn timeout(&self) -> Option<Duration> {
            panic!("no idea")
        }
        async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
            Ok("called".into())
        }
    }
    let result = run(&tools(Undecided.into_tool()), &raw_use()).await;
    assert!(result.is_error && result.text().contains("no idea"), "{}", result.text());
}

#[tokio::test(start_paused = true)]
async fn run_extreme_timeouts_are_legal() {
    let tools = raw(|| Box::pin(async { Ok("at once".into()) }));
    for limit in [Duration::ZERO, Duration::MAX] {
        let limits = limits(limit);
        assert_eq!(tools.run(&raw_use(), ToolContext::detached("id"), &limits).await.text(), "at once");
    }
}

#[tokio::test]
async fn run_without_timeout_needs_no_timer() {
    let tools = raw(|| Box::pin(async { Ok("done".into()) }));
    let result = tokio::task::spawn_blocking(move || {
        let limits = limits(Duration::MAX);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(tools.run(&raw_use(), ToolContext::detached("id"), &limits))
    });
    assert_eq!(result.await.unwrap().text(), "done");
}

#[tokio::test]
async fn run_in_parallel_each_result_has_its_own_id() {
    let barrier = Arc::new(Barrier::new(8));
    let meet = tools(tool_fn("meet", "Waits for the others.", move |input: Value, _| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(input["n"].clone())
        }
    }));
    let uses: Vec<_> = (0..8).map(|n| ToolUse::new(format!("id-{n}"), "meet", json!({ "n": n }))).collect();
    let results = join_all(uses.iter().map(|tool_use| run(&meet, tool_use))).await;
    for (n, result) in results.iter().enumerate() {
        assert_eq!((result.tool_use_id.as_str(), result.text()), (&*format!("id-{n}"), n.to_string()));
    }
}

#[tokio::test]
async fn run_spawned_is_send_and_static() {
    let tools = tools(tool_fn("a", "A.", |_: Value, _| async { Ok("done") }));
    let task = tokio::spawn(async move { run(&tools, &ToolUse::new("id", "a", json!({}))).await });
    assert_eq!(task.await.unwrap().text(), "done");
}

#[tokio::test]
async fn run_cancelled_context_is_an_error_result_and_drops_the_call() {
    let (alive, mut dropped) = mpsc::channel::<()>(1);
    let (started, has_started) = oneshot::channel();
    let started = std::sync::Mutex::new(Some(started));
    let tools = raw(move || {
        let alive = alive.clone();
        let started = started.lock().unwrap().take();
        Box::pin(async move {
            started.unwrap().send(()).unwrap();
            std::future::pending::<()>().await;
            drop(alive);
            Ok("".into())
        })
    });
    let token = CancellationToken::new();
    let context = ToolContext::detached("id").with_cancellation(token.clone());
    let (tool_use, limits) = (raw_use(), ToolLimits::default());
    let cancel = async {
        has_started.await.unwrap();
        token.cancel();
    };
    let (result, ()) = tokio::join!(tools.run(&tool_use, context, &limits), cancel);
    assert_eq!((result.text().as_str(), result.is_error), ("The call of \"raw\" was cancelled.", true));
    drop(tools);
    assert_eq!(dropped.recv().await, None);
}

#[tokio::test]
async fn run_already_cancelled_does_nothing() {
    let tools = raw(|| Box::pin(async { panic!("polled") }));
    let token = CancellationToken::new();
    token.cancel();
    let context = ToolContext::detached("id").with_cancellation(token);
    let result = tools.run(&raw_use(), context, &ToolLimits::default()).await;
    assert!(result.text().contains("cancelled"), "{}", result.text());
}

/// Returns a tool that starts a task. This task sends a report when it is cancelled. If `wait` is set, the tool itself
/// never finishes.
fn spawns(wait: bool) -> (ToolSet, mpsc::Receiver<&'static str>) {
    let (report, reports) = mpsc::channel(1);
    let tool = tool_fn("spawns", "Spawns.", move |_: Value, context: ToolContext| {
        let report = report.clone();
        async move {
            let background = context.clone();
            tokio::spawn(async move {
                background.cancelled().await;
                report.send("stopped").await.unwrap();
            });
            if wait {
                std::future::pending::<()>().await;
            }
            assert!(!context.is_cancelled());
            Ok("done")
        }
    });
    (tools(tool), reports)
}

#[tokio::test(start_paused = true)]
async fn run_timed_out_cancels_spawned_tasks() {
    let (tools, mut reports) = spawns(true);
    assert!(error_of(&tools, &ToolUse::new("id", "spawns", json!({}))).await.contains("did not finish"));
    assert_eq!(reports.recv().await, Some("stopped"));
}

#[tokio::test]
async fn run_dropped_cancels_spawned_tasks() {
    let (tools, mut reports) = spawns(true);
    let tool_use = ToolUse::new("id", "spawns", json!({}));
    let limits = ToolLimits::default();
    {
        let mut running = Box::pin(tools.run(&tool_use, ToolContext::detached("id"), &limits));
        assert!(poll_once(running.as_mut()).is_pending());
    }
    assert_eq!(reports.recv().await, Some("stopped"));
}

#[tokio::test]
async fn run_finished_spawned_tasks_continue_until_the_context_is_cancelled() {
    let (tools, mut reports) = spawns(false);
    let token = CancellationToken::new();
    let context = ToolContext::detached("id").with_cancellation(token.clone());
    let tool_use = ToolUse::new("id", "spawns", json!({}));
    assert_eq!(tools.run(&tool_use, context, &ToolLimits::default()).await.text(), "done");
    tokio::task::yield_now().await;
    assert!(reports.try_recv().is_err());
    token.cancel();
    assert_eq!(reports.recv().await, Some("stopped"));
}

#[tokio::test]
async fn context_has_the_ids_and_extensions_of_the_call() {
    struct Tenant(u32);
    let tool = tool_fn("tell", "Tells.", |_: Value, context: ToolContext| async move {
        let tenant = context.extensions().get::<Tenant>().map(|tenant| tenant.0);
        Ok(json!([context.tool_use_id(), context.idempotency_key(), tenant]))
    });
    let tools = tools(tool);
    let tool_use = ToolUse::new("id", "tell", json!({}));
    assert_eq!(run(&tools, &tool_use).await.text(), r#"["id","id",null]"#);
    let context = ToolContext::detached("id")
        .with_idempotency_key("turn-3/id")
        .with_extensions(Extensions::default().with(Tenant(7)));
    let result = tools.run(&tool_use, context, &ToolLimits::default()).await;
    assert_eq!(result.text(), r#"["id","turn-3/id",7]"#);
}

#[tokio::test]
async fn progress_is_sent_in_order_and_waits_for_room() {
    let tool = tool_fn("work", "Works.", |_: Value, context: ToolContext| async move {
        for n in 0..5 {
            context.progress(json!(n)).await;
        }
        Ok("done")
    });
    let tools = tools(tool);
    let (progress, mut reports) = mpsc::channel(1);
    let context = ToolContext::detached("id").with_progress(progress);
    let (tool_use, limits) = (ToolUse::new("id", "work", json!({})), ToolLimits::default());
    let mut running = Box::pin(tools.run(&tool_use, context, &limits));
    assert!(poll_once(running.as_mut()).is_pending());
    let collect = async {
        let mut seen = Vec::new();
        while let Some((tool_use_id, data)) = reports.recv().await {
            assert_eq!(tool_use_id.as_str(), "id");
            seen.push(data);
        }
        seen
    };
    let (result, seen) = tokio::join!(running, collect);
    assert_eq!((result.text().as_str(), seen), ("done", (0..5).map(Value::from).collect()));
}

#[tokio::test]
async fn progress_without_a_receiver_is_ignored() {
    let tool = tool_fn("work", "Works.", |_: Value, context: ToolContext| async move {
        context.progress(json!(1)).await;
        Ok("done")
    });
    let tools = tools(tool);
    let tool_use = ToolUse::new("id", "work", json!({}));
    assert_eq!(run(&tools, &tool_use).await.text(), "done");
    let (progress, reports) = mpsc::channel(1);
    drop(reports);
    let context = ToolContext::detached("id").with_progress(progress);
    assert_eq!(tools.run(&tool_use, context, &ToolLimits::default()).await.text(), "done");
}

#[tokio::test]
async fn run_absurdly_deep_input_is_an_error_result() {
    let echo = tools(tool_fn("echo", "Echo.", |input: Value, _| async { Ok(input) }));
    let deep = (0..100_000).fold(json!({}), |inner, _| Value::Array(vec![inner]));
    let tool_use = ToolUse::new("id", "echo", Value::Object([("a".to_owned(), deep)].into_iter().collect()));
    assert!(error_of(&echo, &tool_use).await.contains("nests deeper"));
    // The value is leaked, because dropping it would need stack space for each level.
    std::mem::forget(tool_use);
}

/// A tool that panics in `has_handler`.
struct Rude(&'static str, Schema);

#[async_trait]
impl Tool for Rude {
    fn name(&self) -> &'static str {
        "rude"
    }

    fn description(&self) -> Cow<'_, str> {
        "Rude.".into()
    }

    fn schema(&self) -> &Schema {
        &self.1
    }

    fn has_handler(&self) -> bool {
        panic!("{}", self.0)
    }

    async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        Ok("".into())
    }
}

#[tokio::test]
async fn run_panic_before_the_call_is_an_error_result() {
    let rude = tools(Rude("leave me alone", Schema::new(json!({})).unwrap()));
    assert!(error_of(&rude, &ToolUse::new("id", "rude", json!({}))).await.contains("leave me alone"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("n|tags|\\PC{0,4}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only parsed into")]
struct Input {
    n: i8,
    tags: Option<Vec<char>>,
}

proptest! {
    #[test]
    fn run_any_input_gives_a_result_for_the_use(
        input in any_json(),
        malformed in prop::option::weighted(0.2, "\\PC{0,20}"),
        name in "typed|free|\\PC{0,8}",
    ) {
        let tools = ToolSet::new()
            .with(tool_fn("typed", "T.", |_: Input, _| async { Ok("") })).unwrap()
            .with(tool_fn("free", "F.", |input: Value, _| async { Ok(input) })).unwrap();
        let mut tool_use = ToolUse::new("id", name, input);
        tool_use.malformed = malformed;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let result = runtime.block_on(run(&tools, &tool_use));
        let should_run = tool_use.malformed.is_none() && tool_use.input.is_object() && tool_use.name == "free";
        prop_assert!(!should_run || !result.is_error);
        prop_assert!(!result.is_error || !result.text().is_empty());
    }
}
