//! The requests behind the rows of the tables: one row per option.

use omni_agent::{
    message::{Attachment, Content, History, Message},
    provider::{CacheHint, Effort, Options, OutputSchema, Request, ThinkingMode, ToolChoice},
    tool::{Schema, ToolSet, declared_tool_with_schema},
};
use serde_json::json;

/// A row of a table: its name, a request without its option, and a request with its option.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) without: Request,
    pub(crate) with: Request,
}

/// Returns all rows for a model.
pub(crate) fn rows(model: &str) -> Vec<Row> {
    let none = Options::default;
    let mut rows = Vec::new();
    let mut option = |name, options: Options| {
        let without = hello(model);
        rows.push(Row { name, with: without.clone().with_options(options), without });
    };
    option("`max_tokens: 1000`", none().with_max_tokens(1000));
    option("`temperature: 0.5`", none().with_temperature(0.5));
    option("`top_p: 0.9`", none().with_top_p(0.9));
    option("`stop_sequences: [\"END\"]`", none().with_stop_sequences(["END"]));
    option("`thinking: off`", none().with_thinking(ThinkingMode::Off));
    option("`thinking: minimal`", none().with_thinking(Effort::Minimal));
    option("`thinking: low`", none().with_thinking(Effort::Low));
    option("`thinking: medium`", none().with_thinking(Effort::Medium));
    option("`thinking: high`", none().with_thinking(Effort::High));
    option("`thinking: max`", none().with_thinking(Effort::Max));
    option("`thinking: budget 2000`", none().with_thinking(ThinkingMode::Budget(2000)));
    option("`cache: short`", none().with_cache(CacheHint::Short));
    option("`cache: long`", none().with_cache(CacheHint::Long));
    option("`output`", none().with_output(city()));
    option("`metadata: {\"user_id\": \"u1\"}`", none().with_metadata([("user_id", "u1")]));
    option("`extra: {\"seed\": 7}`", none().with_extra([("seed", 7)]));

    let with = hello(model)
        .with_tools(tools())
        .with_options(none().with_extra([("tools", json!([{"type": "web_search"}]))]));
    rows.push(Row { name: "`extra: {\"tools\": […]}`", without: hello(model).with_tools(tools()), with });

    let mut choice = |name, choice| {
        let without = hello(model).with_tools(tools());
        rows.push(Row { name, with: without.clone().with_options(none().with_tool_choice(choice)), without });
    };
    choice("`tool_choice: auto`", ToolChoice::Auto);
    choice("`tool_choice: none`", ToolChoice::None);
    choice("`tool_choice: required`", ToolChoice::Required);
    choice("`tool_choice: tool`", ToolChoice::Tool("look".to_owned()));

    let mut attached = |name, attachment: Attachment| {
        let text = Content::from("Hi");
        let mut with = Request::prompt(vec![text, Content::Attachment(attachment)]);
        with.model = model.into();
        rows.push(Row { name, without: hello(model), with });
    };
    attached("an image as data", Attachment::base64("image/png", "AQID"));
    attached("an image by URL", Attachment::url("image/png", "https://a.test/b.png"));
    attached("a PDF as data", Attachment::base64("application/pdf", "AQID").named("b.pdf"));
    attached("a PDF by URL", Attachment::url("application/pdf", "https://a.test/b.pdf"));
    attached("audio as data", Attachment::base64("audio/wav", "AQID"));
    attached("a text file as data", Attachment::from_bytes("text/plain", "Notes").named("b.txt"));
    attached("a text file by URL", Attachment::url("text/plain", "https://a.test/b.txt"));

    let greeted = [Message::assistant("Hello"), Message::user("Hi")];
    let mut with = Request::new(History::from_iter(greeted));
    with.model = model.into();
    rows.push(Row { name: "an assistant message first", without: hello(model), with });
    rows
}

fn hello(model: &str) -> Request {
    let mut request = Request::prompt("Hi");
    request.model = model.into();
    request
}

fn city() -> OutputSchema {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    OutputSchema::new("place", Schema::new(schema).unwrap())
}

fn tools() -> ToolSet {
    let schema = Schema::new(json!({"type": "object", "properties": {}})).unwrap();
    ToolSet::new().with(declared_tool_with_schema("look", "Looks.", schema)).unwrap()
}
