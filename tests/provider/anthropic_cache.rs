//! Anthropic's Messages format: cache breakpoints in the requests of an agent whose callback adds messages.

use std::sync::Arc;

use async_trait::async_trait;
use omni_agent::{
    Agent, AgentCallbacks,
    agent::State,
    message::{Content, Message, ProviderItem},
    provider::{
        CacheHint, Options, Request,
        custom::{AnthropicMessages, Dialect},
    },
    testing::{ScriptedProvider, Step},
    tool::{Tool, tool_fn},
};
use serde_json::{Map, Value, json};

type Prepare = Box<dyn FnMut(&mut Request) + Send>;

struct Preparing(Prepare);

#[async_trait]
impl AgentCallbacks for Preparing {
    async fn prepare_step(&mut self, request: &mut Request, _: &mut State) {
        (self.0)(request);
    }
}

fn echo() -> impl Tool {
    tool_fn("echo", "Echoes.", |_: Value, _| async { Ok("echo") })
}

/// Returns the texts and kinds of the blocks of `messages` that carry a cache breakpoint.
fn marked(request: &Request) -> Vec<String> {
    let body = AnthropicMessages::default().encode(request).unwrap().body;
    let messages = body["messages"].as_array().unwrap();
    let blocks = messages.iter().flat_map(|message| message["content"].as_array().unwrap());
    let marked = blocks.filter(|block| block.get("cache_control").is_some());
    marked.map(|block| block["text"].as_str().or(block["type"].as_str()).unwrap().to_owned()).collect()
}

/// Runs two steps, the first of which uses a tool. Returns the marked blocks of both requests.
async fn marks(options: Options, prepare: impl FnMut(&mut Request) + Send + 'static) -> [Vec<String>; 2] {
    requests(options, prepare).await.map(|request| marked(&request))
}

/// Runs two steps, the first of which uses a tool. Returns both requests.
async fn requests(options: Options, prepare: impl FnMut(&mut Request) + Send + 'static) -> [Request; 2] {
    let provider = ScriptedProvider::new([Step::tool_use("a", "echo", json!({})), Step::text("Done.")]);
    let agent = Agent::builder()
        .model(provider.model())
        .options(options)
        .system("Be brief.")
        .tool(echo())
        .callbacks(Preparing(Box::new(prepare)))
        .start()
        .await
        .unwrap();
    agent.ask("Hi").await.unwrap();
    provider.requests().try_into().unwrap()
}

fn cached() -> Options {
    Options::default().with_cache(CacheHint::Short)
}

#[tokio::test(start_paused = true)]
async fn encode_with_a_reminder_marks_the_end_of_the_conversation_too() {
    let remind = |request: &mut Request| request.history.push(Message::user("Remember."));
    assert_eq!(marks(cached(), remind).await, [["Hi", "Remember."], ["tool_result", "Remember."]]);
    let options = Options::default();
    assert_eq!(marks(options, remind).await, [Vec::<String>::new(), Vec::new()]);
}

#[tokio::test(start_paused = true)]
async fn encode_with_a_reminder_in_the_last_message_marks_the_end_of_the_conversation_too() {
    let extend = |request: &mut Request| {
        let mut messages: Vec<Arc<Message>> = request.history.iter().cloned().collect();
        let mut last = Message::clone(&messages.pop().unwrap());
        last.content.push("Remember.".into());
        request.history = messages.into_iter().chain([Arc::new(last)]).collect();
    };
    assert_eq!(marks(cached(), extend).await, [["Hi", "Remember."], ["tool_result", "Remember."]]);
}

#[tokio::test(start_paused = true)]
async fn encode_without_messages_of_a_callback_marks_the_last_block() {
    assert_eq!(marks(cached(), |_| {}).await, [["Hi"], ["tool_result"]]);
    // A callback that shortens or replaces the conversation adds nothing behind it.
    let newest = |request: &mut Request| {
        let newest: Vec<Arc<Message>> = request.history.iter().skip(1).cloned().collect();
        if !newest.is_empty() {
            request.history = [Arc::new(Message::user("Summary."))].into_iter().chain(newest).collect();
        }
    };
    assert_eq!(marks(cached(), newest).await, [["Hi"], ["tool_result"]]);
    let replaced =
        |request: &mut Request| request.history = [Message::user("Summary.")].into_iter().collect();
    assert_eq!(marks(cached(), replaced).await, [["Summary."], ["Summary."]]);
}

/// Returns the marked blocks of a request after a step with this number of parallel calls.
async fn marks_after(calls: usize, options: Options, prepare: Prepare) -> Vec<String> {
    let step =
        (0..calls).fold(Step::new(), |step, call| step.then_tool_use(&format!("c{call}"), "echo", json!({})));
    let provider = ScriptedProvider::new([step.stop(), Step::text("Done.")]);
    let agent = Agent::builder()
        .model(provider.model())
        .options(options)
        .system("Be brief.")
        .tool(echo())
        .callbacks(Preparing(prepare))
        .start()
        .await
        .unwrap();
    agent.ask("Hi").await.unwrap();
    marked(&provider.requests()[1])
}

#[tokio::test(start_paused = true)]
async fn encode_after_many_parallel_calls_marks_the_end_of_the_previous_request_too() {
    // The service looks back 20 blocks from a breakpoint, and a call needs two blocks.
    for (calls, expected) in
        [(9, vec!["tool_result"]), (10, vec!["Hi", "tool_result"]), (30, vec!["Hi", "tool_result"])]
    {
        assert_eq!(marks_after(calls, cached(), Box::new(|_| {})).await, expected, "{calls}");
    }
    // All four breakpoints are in use.
    let extra = Map::from_iter([("cache_control".to_owned(), json!({"type": "ephemeral"}))]);
    let options = cached().with_extra(extra);
    assert_eq!(marks_after(30, options, Box::new(|_| {})).await, ["tool_result"]);
    let remind = |request: &mut Request| request.history.push(Message::user("Remember."));
    assert_eq!(marks_after(30, cached(), Box::new(remind)).await, ["tool_result", "Remember."]);
    assert!(marks_after(30, Options::default(), Box::new(|_| {})).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn encode_with_breakpoints_of_the_user_marks_only_the_last_block() {
    // The service accepts four breakpoints. Three of them are on the tools, the system prompt and the last block.
    let extra = Map::from_iter([("cache_control".to_owned(), json!({"type": "ephemeral"}))]);
    let remind = |request: &mut Request| request.history.push(Message::user("Remember."));
    assert_eq!(marks(cached().with_extra(extra), remind).await, [["Remember."], ["Remember."]]);
}

#[tokio::test(start_paused = true)]
async fn encode_with_breakpoints_in_the_conversation_keeps_to_the_limit_of_the_service() {
    let search = |marked: bool| {
        let mut block = json!({"type": "search_result", "title": "a", "source": "b", "content": []});
        if marked {
            block["cache_control"] = json!({"type": "ephemeral"});
        }
        Message::user(Content::from(ProviderItem::new("anthropic_messages", block)))
    };
    for (own, expected) in [(true, vec!["search_result", "Remember."]), (false, vec!["Hi", "Remember."])] {
        let remind = move |request: &mut Request| {
            let before = [Arc::new(search(own))];
            let history = before.into_iter().chain(request.history.iter().cloned());
            request.history = history.chain([Arc::new(Message::user("Remember."))]).collect();
        };
        assert_eq!(marks(cached(), remind).await[0], expected);
    }
    // Options that replace the system prompt replace its breakpoint too. A schema contains no breakpoints.
    let system = json!([{"type": "text", "text": "Be brief."}]);
    let tool = json!({"name": "other", "cache_control": {"type": "ephemeral"},
        "input_schema": {"type": "object", "properties": {"cache_control": {"type": "string"}}}});
    let extra = Map::from_iter([("system".to_owned(), system), ("tools".to_owned(), json!([tool]))]);
    let remind = |request: &mut Request| request.history.push(Message::user("Remember."));
    assert_eq!(marks(cached().with_extra(extra), remind).await[0], ["Hi", "Remember."]);
}

#[cfg(feature = "http")]
#[tokio::test(start_paused = true)]
async fn encode_for_openrouter_with_a_reminder_marks_the_end_of_the_conversation_too() {
    let texts = |request: &Request| -> Vec<String> {
        let mut request = request.clone();
        request.model = "anthropic/claude-sonnet-4.5".into();
        let body = omni_agent::provider::http::Endpoint::openrouter().preview(&request).unwrap().1.body;
        let messages = body["messages"].as_array().unwrap();
        let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
        let marked = parts.filter(|part| part.get("cache_control").is_some());
        marked.map(|part| part["text"].as_str().unwrap().to_owned()).collect()
    };
    let remind = |request: &mut Request| request.history.push(Message::user("Remember."));
    let [first, second] = requests(cached(), remind).await;
    assert_eq!(texts(&first), ["Be brief.", "Hi", "Remember."]);
    assert_eq!(texts(&second), ["Be brief.", "echo", "Remember."]);
    let extend = |request: &mut Request| {
        let mut messages: Vec<Arc<Message>> = request.history.iter().cloned().collect();
        let mut last = Message::clone(&messages.pop().unwrap());
        last.content.push("Remember.".into());
        request.history = messages.into_iter().chain([Arc::new(last)]).collect();
    };
    let [_, second] = requests(cached(), extend).await;
    assert_eq!(texts(&second), ["Be brief.", "echo", "Remember."]);
    let [_, second] = requests(cached(), |_| {}).await;
    assert_eq!(texts(&second), ["Be brief.", "echo"]);
}
