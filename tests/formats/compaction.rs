//! Conversations with a compaction: what each format sends, and how the conversations continue in other formats.
//!
//! Compactions never reach a service. The strict servers accept what is sent in their place: a summary, notes, and the
//! unchanged messages that follow.

use omni_agent::{
    agent::{Agent, Compact, CompactHow, CompactionPolicy},
    message::{
        Attachment, Compaction, CompactionTrigger, Content, History, Message, Text, Thinking, ToolResult,
        ToolUse, Usage,
    },
    provider::{CacheHint, Effort, Options, Request, UnsupportedAttachment},
    tool::{Schema, Tool, ToolContext, ToolError, ToolSet, tool_fn_with_schema},
};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use serde_json::{Map, Value, json};

use crate::{
    http::Received,
    pairs::{At, assert_grown, begin, go_on, history, turn_to},
    rig::{Format, PDF, PNG, Rig, camera, weather, within_a_minute},
    script::{Answer, Fault},
    server::{Service, memory::Memory},
};

/// The beginning of the text before a summary.
const PREAMBLE: &str = "The earlier part of this conversation is replaced by the following summary.";
/// The text of a compaction without a summary.
const NO_SUMMARY: &str = "Compaction without a summary.";
/// The beginning of a note in place of removed content.
const NOTE: &str = "[Not shown: ";

const HOW: [CompactHow; 2] = [CompactHow::Summary, CompactHow::Clear];

/// The usage that the service reports for an answer.
fn used() -> Usage {
    Usage::default().with_input(2000).with_output(20)
}

fn options() -> Options {
    let options = Options::default().with_max_retries(0).with_thinking(Effort::High);
    options.with_unsupported_attachment(UnsupportedAttachment::Placeholder)
}

/// A tool with a long result, in which a secret occurs once.
fn report() -> impl Tool {
    let schema = Schema::new(json!({"type": "object"})).unwrap();
    tool_fn_with_schema("report", "Reports.", schema, async |_: Value, _: ToolContext| {
        Ok::<_, ToolError>(format!("{}the secret of the report", "A line of the report.\n".repeat(100)))
    })
}

/// Returns a policy that keeps the last turn.
fn policy() -> CompactionPolicy {
    CompactionPolicy::default().with_kept_turns(1)
}

async fn agent_of(rig: &Rig, options: Options, policy: CompactionPolicy) -> Agent {
    let builder = rig.builder().options(options).system("Be brief.");
    let builder = builder.tool(weather()).tool(camera()).tool(report());
    builder.compaction(policy).start().await.unwrap()
}

/// Runs a turn with a long result.
async fn report_of(agent: &Agent, service: &Service, n: usize) {
    let thinking = Answer::thinking(&format!("It reports {n}."), &format!("report-sig-{n}"));
    service.will(thinking.then_call(&format!("report_{n}"), "report", &json!({})).using(used()));
    service.will(Answer::text(&format!("It reports {n}, in short.")).using(used()));
    agent.ask(format!("What reports {n}?")).await.unwrap();
}

/// Requests a compaction. The service writes the summary.
async fn compact(agent: &Agent, service: &Service, how: CompactHow) {
    let mut wanted = Compact::summary();
    wanted.how = how;
    if how == CompactHow::Summary {
        service.will(Answer::text("They spoke of Rome."));
    } else {
        service.accept_notes();
    }
    agent.compact(wanted).await.unwrap();
}

/// Returns the name of the list of messages in a body.
fn list_of(format: Format) -> &'static str {
    match format {
        Format::Messages | Format::Chat | Format::Ollama => "messages",
        Format::Responses => "input",
        Format::Gemini => "contents",
    }
}

/// Returns the messages of a body, without the system prompt.
fn messages(format: Format, body: &Value) -> Vec<Value> {
    let list = body[list_of(format)].as_array().unwrap();
    let is_system = |item: &&Value| item["role"] == "system" || item["role"] == "developer";
    list.iter().filter(|item| !is_system(item)).cloned().collect()
}

/// Returns the body without the marks that state where the service caches. They move with each request, and the cached
/// text does not depend on them.
fn unmarked(mut body: Value) -> Value {
    match &mut body {
        Value::Object(members) => {
            members.shift_remove("cache_control");
            members.values_mut().for_each(|value| *value = unmarked(value.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| *value = unmarked(value.take())),
        _ => {}
    }
    body
}

/// Returns the text of a body up to the end of its newest message, and the text of the members that follow.
fn parts(format: Format, body: &Value) -> (String, String) {
    let members = body.as_object().unwrap();
    let list = members.keys().position(|key| key == list_of(format)).unwrap();
    let text = |(key, value): (&String, &Value)| format!("{key:?}:{value},");
    let mut text_until: String = members.iter().take(list).map(text).collect();
    let sent = body[list_of(format)].to_string();
    text_until.push_str(sent.strip_suffix(']').unwrap());
    (text_until, members.iter().skip(list + 1).map(text).collect())
}

/// Asserts that each body begins with the body before it, up to the newest message of that body.
fn assert_continued(format: Format, bodies: &[Value]) {
    let bodies: Vec<_> = bodies.iter().cloned().map(unmarked).collect();
    for pair in bodies.windows(2) {
        let [before, now] = pair else { unreachable!() };
        let ((before, options), (now, now_options)) = (parts(format, before), parts(format, now));
        assert!(now.starts_with(&before), "{format:?}: {before}\n\ndoes not continue in\n\n{now}");
        assert!(now.len() > before.len(), "{format:?}: nothing was added to {before}");
        assert_eq!(options, now_options, "{format:?}");
    }
}

/// Asserts that the summary stands first, in one user message, and that no compaction is sent.
fn assert_summary_first(format: Format, body: &Value, how: CompactHow, summary: &str) {
    let (text, messages) = (body.to_string(), messages(format, body));
    assert!(!text.contains(NO_SUMMARY), "{format:?}: {text}");
    let expected = usize::from(how == CompactHow::Summary);
    assert_eq!(text.matches(PREAMBLE).count(), expected, "{format:?}: {text}");
    assert_eq!(text.matches(summary).count(), expected, "{format:?}: {text}");
    let first = &messages[0];
    assert_eq!(first["role"], "user", "{format:?}: {text}");
    if how == CompactHow::Summary {
        let first = first.to_string();
        let (begin, _) = first.split_once(PREAMBLE).unwrap();
        assert!(first.contains(summary) && !begin.contains(' '), "{format:?}: {first}");
    }
}

/// The service reads its prompt cache only up to the first byte that differs from an earlier request.
async fn continues(format: Format, how: CompactHow, options: Options) {
    let rig = Rig::new(format).await;
    let agent = agent_of(&rig, options, policy()).await;
    for n in 1..=2 {
        report_of(&agent, &rig.service, n).await;
    }
    let sent = rig.service.bodies().len();
    assert_continued(format, &rig.service.bodies());
    compact(&agent, &rig.service, how).await;
    if how == CompactHow::Summary {
        // The request for the summary continues the last request, so it reads the cache too.
        assert_continued(format, &rig.service.bodies()[sent - 1..]);
    }
    let sent = rig.service.bodies().len();
    for n in 1..=3 {
        go_on(&agent, &rig.service, "after", n).await;
    }
    let bodies = &rig.service.bodies()[sent..];
    assert_eq!(bodies.len(), 6);
    assert_continued(format, bodies);
    for body in bodies {
        assert_summary_first(format, body, how, "They spoke of Rome.");
    }
    assert_eq!(rig.service.refused(), Vec::<String>::new(), "{format:?} {how:?}");
}

#[tokio::test]
async fn requests_after_a_compaction_begin_with_the_request_before_them() {
    for format in Format::ALL {
        for how in HOW {
            within_a_minute(continues(format, how, options())).await;
            within_a_minute(continues(format, how, options().with_cache(CacheHint::Short))).await;
        }
    }
}

/// The service refuses the second request of a turn. The turn continues with a summary of the turns before it.
async fn overflows(format: Format) {
    let rig = Rig::new(format).await;
    let agent = agent_of(&rig, options(), policy().without_clearing()).await;
    for n in 1..=2 {
        report_of(&agent, &rig.service, n).await;
    }
    let call = |n: usize| {
        let thinking = Answer::thinking(&format!("Step {n}."), &format!("step-sig-{n}"));
        thinking.then_call(&format!("step_{n}"), "weather", &json!({"city": "Rome"})).using(used())
    };
    // The request for the summary has to fit, so the earlier answers in it are cleared.
    rig.service.accept_notes();
    rig.service.will(call(1));
    rig.service.will(Fault::ContextTooLong);
    rig.service.will(Answer::text("They spoke of Oslo and Bern."));
    rig.service.will(call(2));
    rig.service.will(Answer::text("It rains."));
    assert_eq!(agent.ask("Rome?").await.unwrap().text(), "It rains.");
    go_on(&agent, &rig.service, "after", 1).await;

    // Four requests of two turns, the refused step, the summary, and four requests that follow it.
    let bodies = rig.service.bodies();
    assert_eq!(bodies.len(), 11);
    // What is kept anyway is omitted, and so is the thinking of earlier answers.
    let summary = bodies[6].to_string();
    assert!(!summary.contains("step_1"), "{summary}");
    if format == Format::Messages {
        assert!(!summary.contains("report-sig-2"), "{summary}");
    }
    assert_continued(format, &bodies[7..]);
    for body in &bodies[7..] {
        assert_summary_first(format, body, CompactHow::Summary, "They spoke of Oslo and Bern.");
        assert!(!body.to_string().contains("reports"), "{format:?}: {body}");
    }
    let history = history(&agent).await;
    assert_eq!(history.iter().filter(|message| message.compaction.is_some()).count(), 1);
    assert_eq!(rig.service.refused(), Vec::<String>::new(), "{format:?}");
}

#[tokio::test]
async fn overflow_within_a_turn_continues_the_turn_with_a_summary() {
    for format in Format::ALL {
        within_a_minute(overflows(format)).await;
    }
}

/// A conversation begins in one format and is compacted there. It continues in another format, gets another
/// summary there, and returns to the first format.
async fn carry(from: Format, to: Format, at: At, how: CompactHow) {
    let mut first = Rig::new(from).await;
    let agent = agent_of(&first, options(), policy()).await;
    let mut events = agent.subscribe().await.unwrap();
    begin(&agent, &mut events, &mut first.service, "first").await;
    compact(&agent, &first.service, how).await;
    let begun = history(&agent).await;
    assert_eq!(begun.compaction().map(|(index, _)| index + 1), Some(begun.len()));

    let other = if at == At::Same { None } else { Some(Rig::new(to).await) };
    let (first, second) = (&first.service, other.as_ref().map_or(&first.service, |rig| &rig.service));
    let models = (from.model(&first.url()), at.model(to, second));
    turn_to(&agent, models.1.clone()).await;
    go_on(&agent, second, "second", 1).await;
    let gone_on = history(&agent).await;
    assert_grown(&begun, &gone_on);
    let seen = second.last();
    let has = |words: &str| seen.said.iter().any(|(_, text)| text.contains(words));
    assert_eq!(has("first saw rain."), how == CompactHow::Clear, "{from:?} to {to:?}: {seen:?}");
    assert!(has("first begins to"), "the last turn is kept: {seen:?}");
    assert_eq!(seen.images, Vec::<String>::new());
    assert_summary_first(to, &second.body(), how, "They spoke of Rome.");
    // The signature of a call of Gemini's own tool stays with the call.
    let is_signed = (to, at, how) == (Format::Gemini, At::Same, CompactHow::Clear);
    assert_eq!(
        second.body().to_string().contains("first-sig-1"),
        is_signed,
        "{from:?} to {to:?} {at:?}: {seen:?}"
    );

    if how == CompactHow::Summary {
        compact(&agent, second, how).await;
        go_on(&agent, second, "second", 2).await;
        assert_summary_first(to, &second.body(), how, "They spoke of Rome.");
    }

    turn_to(&agent, models.0).await;
    go_on(&agent, first, "first", 3).await;
    assert_summary_first(from, &first.body(), how, "They spoke of Rome.");
    assert_grown(&gone_on, &history(&agent).await);
    assert_eq!((first.refused(), second.refused()), (Vec::new(), Vec::new()), "{from:?} to {to:?}, {how:?}");
}

macro_rules! pairs {
    ($($name:ident: $from:ident;)+) => {$(
        #[tokio::test]
        async fn $name() {
            for how in HOW {
                for to in Format::ALL {
                    within_a_minute(carry(Format::$from, to, At::Other, how)).await;
                }
                within_a_minute(carry(Format::$from, Format::$from, At::Same, how)).await;
            }
        }
    )+};
}

pairs! {
    conversation_compacted_on_messages_continues_in_each_format_and_returns: Messages;
    conversation_compacted_on_chat_continues_in_each_format_and_returns: Chat;
    conversation_compacted_on_responses_continues_in_each_format_and_returns: Responses;
    conversation_compacted_on_gemini_continues_in_each_format_and_returns: Gemini;
    conversation_compacted_on_ollama_continues_in_each_format_and_returns: Ollama;
}

/// A turn with an image, a PDF, thinking and long results is cleared.
async fn clears(format: Format) {
    let rig = Rig::new(format).await;
    let agent = agent_of(&rig, options(), policy()).await;
    rig.service.will(
        Answer::thinking("Gone, the first.", "gone-sig-1")
            .then_text("I look.")
            .then_call("call_1", "camera", &json!({"city": "Rome"}))
            .then_call("call_2", "report", &json!({}))
            .then_call("call_3", "weather", &json!({"city": "Atlantis"})),
    );
    rig.service.will(Answer::thinking("Gone, the second.", "gone-sig-2").then_text("A square."));
    let prompt: Vec<Content> = vec![
        "What is this?".into(),
        Attachment::base64("image/png", PNG).into(),
        Attachment::base64("application/pdf", PDF).named("plan.pdf").into(),
    ];
    agent.ask(prompt).await.unwrap();
    let before = rig.service.body().to_string();
    assert!(before.contains(PNG) && before.contains("the secret of the report"), "{format:?}: {before}");
    rig.service.will(Answer::thinking("Kept.", "kept-sig").then_text("Gladly."));
    agent.ask("Thanks.").await.unwrap();
    compact(&agent, &rig.service, CompactHow::Clear).await;
    go_on(&agent, &rig.service, "after", 1).await;

    let (seen, body) = (rig.last(), rig.service.body().to_string());
    for data in [PNG, PDF, "Gone, the", "the secret of the report"] {
        assert!(!body.contains(data), "{format:?}: {data} in {body}");
    }
    // Gemini's signature before a call is part of the call.
    let signatures = usize::from(format == Format::Gemini);
    assert_eq!(body.matches("gone-sig").count(), signatures, "{format:?}: {body}");
    assert!(!body.contains("gone-sig-2"), "{format:?}: {body}");
    assert_eq!((&seen.images, &seen.documents), (&Vec::new(), &Vec::new()), "{format:?}");

    // Notes replace the image and the PDF of the prompt, the thinking of both answers, the picture and the report.
    assert_eq!(body.matches(NOTE).count(), 6, "{format:?}: {body}");
    for note in ["image/png, 1 KB", "application/pdf, 1 KB", "16 characters", "17 characters"] {
        assert!(body.contains(&format!("{NOTE}{note} were removed to make room.]")), "{format:?}: {body}");
    }
    let results: Vec<&str> = seen.results.iter().map(|result| result.text.as_str()).collect();
    assert_eq!(results[0], format!("{NOTE}image/png, 1 KB were removed to make room.]"), "{format:?}");
    assert_eq!(results[1], format!("{NOTE}2,224 characters were removed to make room.]"), "{format:?}");
    assert!(
        seen.results[2].failed && results[2].contains("there is no such city"),
        "{format:?}: {results:?}"
    );
    // The texts stay.
    for text in ["What is this?", "I look.", "A square.", "Gladly."] {
        assert!(seen.said.iter().any(|(_, said)| said.contains(text)), "{format:?}: no {text:?} in {seen:?}");
    }
    assert_eq!(rig.service.refused(), Vec::<String>::new(), "{format:?}");
    assert_summary_first(format, &rig.service.body(), CompactHow::Clear, "They spoke of Rome.");
}

#[tokio::test]
async fn cleared_files_thinking_and_long_results_are_sent_as_notes_without_their_data() {
    for format in Format::ALL {
        within_a_minute(clears(format)).await;
    }
}

/// A turn of a random conversation, and the compaction after it.
#[derive(Clone, Debug)]
struct RandomTurn {
    has_file: bool,
    steps: u8,
    compaction: Option<(bool, u32, u32)>,
}

fn random_turn() -> impl Strategy<Value = RandomTurn> {
    let compaction = proptest::option::of((any::<bool>(), 0_u32..8, 0_u32..8));
    (any::<bool>(), 0_u8..3, compaction).prop_map(|(has_file, steps, compaction)| RandomTurn {
        has_file,
        steps,
        compaction,
    })
}

/// Returns base64 that occurs in the message at `index` only.
fn data(index: usize) -> String {
    format!("DATA{index:04}")
}

/// Returns a conversation in which each message has texts of its own. Its compactions obey the law.
fn conversation(turns: &[RandomTurn], is_native: bool) -> History {
    let mut history = History::new();
    for turn in turns {
        let index = history.len();
        let mut prompt = vec![Content::from(Text::new(format!("prompt {index}.")))];
        prompt.extend(turn.has_file.then(|| Attachment::base64("image/png", data(index)).into()));
        history.push(Message::user(prompt));
        for step in 0..=turn.steps {
            let index = history.len();
            let thinking = Thinking::new(format!("thought-{index}-")).with_signature(format!("sig-{index}-"));
            let mut answer = vec![Content::from(thinking), Text::new(format!("answer {index}.")).into()];
            let uses = ["a", "b"].map(|id| ToolUse::new(format!("{id}{index}"), "report", json!({})));
            if step < turn.steps {
                answer.extend(uses.iter().cloned().map(Content::from));
            }
            let mut answer = Message::assistant(answer);
            if !is_native {
                answer.provider_data = Map::from_iter([("another".to_owned(), json!({}))]);
            }
            history.push(answer);
            if step < turn.steps {
                let long = format!("{}{}", "long ".repeat(120), data(index + 1));
                let results = [ToolResult::ok(&uses[0], long), ToolResult::error(&uses[1], "no such report")];
                history.push(Message::user(results.map(Content::from).to_vec()));
            }
        }
        let Some((is_summary, kept, cleared)) = turn.compaction else { continue };
        let mut own = Compaction::new(CompactionTrigger::Size);
        let all = u32::try_from(history.len()).unwrap();
        (own.is_summary, own.kept) = (is_summary, kept.min(all));
        own.cleared = if is_summary { cleared.min(all - own.kept) } else { all - own.kept };
        let text = if is_summary { format!("summary-{all}-") } else { NO_SUMMARY.to_owned() };
        let mut with = history.clone();
        with.push(Message::compaction(text, own));
        if with.check().is_ok() {
            history = with;
        }
    }
    history
}

fn request(format: Format, history: &History) -> Request {
    let tools = ToolSet::new().with(report()).unwrap();
    let mut request = Request::new(history.sent()).with_system("Be brief.").with_tools(tools);
    request.options = options();
    request.model = if format == Format::Gemini { "gemini-3-pro-preview" } else { "a-model" }.into();
    request
}

/// Returns whether the strict server accepts the body.
fn read(format: Format, body: &Value) -> Result<(), String> {
    let line = match format {
        Format::Messages => "POST /v1/messages",
        Format::Chat => "POST /v1/chat/completions",
        Format::Responses => "POST /v1/responses",
        Format::Gemini => "POST /v1beta/models/gemini-3-pro-preview:streamGenerateContent?alt=sse",
        Format::Ollama => "POST /api/chat",
    };
    let headers = [
        ("authorization", "Bearer sk"),
        ("x-api-key", "sk"),
        ("x-goog-api-key", "sk"),
        ("anthropic-version", "2023-06-01"),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let (line, body) = (line.to_owned(), body.to_string().into());
    format.wire().read(&Received { line, headers, body, connection: 0 }, &Memory::default()).map(drop)
}

#[test]
fn requests_of_any_conversation_with_compactions_are_accepted_and_continue_each_other() {
    let cases = (vec(random_turn(), 1..7), any::<bool>());
    let check = |(turns, is_native): (Vec<RandomTurn>, bool)| {
        let mut history = conversation(&turns, is_native);
        let Some((index, own)) = history.compaction() else { return Ok(()) };
        let how = if own.is_summary { CompactHow::Summary } else { CompactHow::Clear };
        let kept = index - own.kept as usize;
        let summary = history.get(index).unwrap().text();
        history.push(Message::user("One more."));
        let mut continued = history.clone();
        continued.push(Message::assistant("Yes."));
        continued.push(Message::user("And more."));
        for format in Format::ALL {
            let encoded = [&history, &continued]
                .map(|history| format.dialect().encode(&request(format, history)).unwrap().body);
            let bodies = encoded.map(Value::Object);
            assert_continued(format, &bodies);
            let text = bodies[1].to_string();
            assert_summary_first(format, &bodies[1], how, &summary);
            for at in 0..history.len() {
                let (message, is_kept) = (history.get(at).unwrap(), at >= kept);
                let is_bulky =
                    |block: &Content| matches!(block, Content::Attachment(_) | Content::ToolResult(_));
                let has_data = message.content.iter().any(is_bulky);
                assert_eq!(text.contains(&data(at)), is_kept && has_data, "{format:?}: {at} in {text}");
                for private in ["sig", "thought"].map(|word| format!("{word}-{at}-")) {
                    let is_private = is_native && is_kept;
                    assert!(is_private || !text.contains(&private), "{format:?}: {private} in {text}");
                }
            }
            if !is_native {
                let refused = bodies.iter().map(|body| read(format, body)).find_map(Result::err);
                assert_eq!(refused, None, "{format:?}: {text}");
            }
        }
        Ok(())
    };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(&cases, check).unwrap();
}
