use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use omni_agent::{
    message::{Attachment, ResultBlock, Text, ToolResult, ToolUse},
    tool::{
        Schema, Tool, ToolContext, ToolError, ToolLimits, ToolOutput, ToolSet, TypedTool, declared_tool,
        tool_fn, tool_fn_with_schema,
    },
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct City {
    /// Name of the city.
    city: String,
    days: Option<u8>,
}

/// A tool with state. It counts its calls.
#[derive(Default)]
struct Forecast {
    calls: AtomicU32,
}

impl TypedTool for Forecast {
    type Input = City;

    fn name(&self) -> &'static str {
        "forecast"
    }

    fn description(&self) -> Cow<'_, str> {
        format!("Called {} times.", self.calls.load(Ordering::Relaxed)).into()
    }

    async fn call(&self, input: City, _context: ToolContext) -> Result<ToolOutput, ToolError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(format!("{}: {} days (call {call})", input.city, input.days.unwrap_or(1)).into())
    }
}

async fn run(tool: impl Tool, input: Value) -> ToolResult {
    let name = tool.name().to_owned();
    let set = ToolSet::new().with(tool).unwrap();
    run_in(&set, &name, input).await
}

async fn run_in(set: &ToolSet, name: &str, input: Value) -> ToolResult {
    let tool_use = ToolUse::new("id", name, input);
    set.run(&tool_use, ToolContext::detached("id"), &ToolLimits::default()).await
}

#[tokio::test]
async fn typed_tool_derives_schema_parses_and_keeps_state() {
    let set = ToolSet::new().with(Forecast::default().into_tool()).unwrap();
    let schema = set.declarations()[0].schema.clone();
    assert_eq!(schema.as_value()["properties"]["city"]["description"], "Name of the city.");

    assert_eq!(run_in(&set, "forecast", json!({ "city": "Oslo" })).await.text(), "Oslo: 1 days (call 1)");
    let second = run_in(&set, "forecast", json!({ "city": "Rome", "days": 3 })).await;
    assert_eq!((second.text().as_str(), second.is_error), ("Rome: 3 days (call 2)", false));
    assert_eq!(set.declarations()[0].description, "Called 2 times.");

    let refused = run_in(&set, "forecast", json!({ "days": 300 })).await;
    assert!(refused.is_error && refused.text().contains("missing required property \"city\""));
    assert_eq!(set.declarations()[0].description, "Called 2 times.");
}

#[tokio::test]
async fn tool_fn_infers_input_output_and_errors() {
    let struct_in = tool_fn("a", "A.", |input: City, _| async move { Ok(input.city) });
    assert_eq!(run(struct_in, json!({ "city": "Oslo" })).await.text(), "Oslo");

    let json_out = tool_fn("b", "B.", |input: City, _| async move { Ok(json!([input.city])) });
    assert_eq!(run(json_out, json!({ "city": "Oslo" })).await.text(), r#"["Oslo"]"#);

    let with_errors = tool_fn("c", "C.", |input: City, context: ToolContext| async move {
        let number: u64 = input.city.parse()?;
        let again = std::str::from_utf8(input.city.as_bytes())?;
        if number == 0 {
            return Err(ToolError::new("not nought"));
        }
        Ok(format!("{again} for {}", context.tool_use_id()))
    });
    let set = ToolSet::new().with(with_errors).unwrap();
    assert_eq!(run_in(&set, "c", json!({ "city": "7" })).await.text(), "7 for id");
    let failed = run_in(&set, "c", json!({ "city": "x" })).await;
    assert_eq!((failed.text().as_str(), failed.is_error), ("invalid digit found in string", true));
    assert_eq!(run_in(&set, "c", json!({ "city": "0" })).await.text(), "not nought");
}

#[tokio::test]
async fn tool_macro_makes_the_input_from_the_parameters() {
    let set = ToolSet::new()
        .with(omni_agent::tool!("clock", "Returns the time.", async || Ok("12:00")))
        .unwrap()
        .with(omni_agent::tool!(
            "repeat",
            "Repeats a text.",
            async |/** The text. */
                   text: String,
                   #[serde(rename = "count")] times: Option<u8>| {
                let times = times.unwrap_or(2);
                if times == 0 {
                    return Err(ToolError::new("nothing to repeat"));
                }
                tokio::task::yield_now().await;
                Ok(text.repeat(times.into()))
            }
        ))
        .unwrap();
    let schema = set.get("repeat").unwrap().schema().as_value().clone();
    assert_eq!(schema["properties"]["text"]["description"], "The text.");
    assert_eq!((&schema["required"], schema["properties"]["count"].is_object()), (&json!(["text"]), true));
    let cases = [
        ("clock", json!({}), "12:00", false),
        ("repeat", json!({ "text": "ab" }), "abab", false),
        ("repeat", json!({ "text": "ab", "count": 3 }), "ababab", false),
        ("repeat", json!({ "text": "ab", "count": 0 }), "nothing to repeat", true),
    ];
    for (name, input, text, is_error) in cases {
        let result = run_in(&set, name, input).await;
        assert_eq!((&*result.text(), result.is_error), (text, is_error));
    }
    assert!(run_in(&set, "repeat", json!({})).await.is_error);
}

#[tokio::test]
async fn tool_fn_closure_shares_what_it_captures() {
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tool = tool_fn("log", "Logs.", {
        let log = Arc::clone(&log);
        move |input: City, _| {
            let log = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(input.city);
                Ok("done")
            }
        }
    });
    let set = ToolSet::new().with(tool).unwrap();
    run_in(&set, "log", json!({ "city": "a" })).await;
    run_in(&set, "log", json!({ "city": "b" })).await;
    assert_eq!(*log.lock().unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn tool_fn_value_accepts_any_object() {
    let tool = tool_fn("echo", "Gives back its input.", |input: Value, _| async move { Ok(input) });
    let expected = json!({ "type": "object", "properties": {}, "additionalProperties": true });
    assert_eq!(*tool.schema().as_value(), expected);
    let set = ToolSet::new().with(tool).unwrap();
    assert_eq!(run_in(&set, "echo", json!({ "z": 1, "a": [] })).await.text(), r#"{"z":1,"a":[]}"#);
    assert!(run_in(&set, "echo", json!([1])).await.is_error);
}

#[test]
fn tool_fn_schema_meets_the_demands_of_services() {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    #[derive(Deserialize, JsonSchema)]
    #[serde(tag = "op")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Tagged {
        Add { a: i32 },
        Clear,
    }

    let nothing = tool_fn("a", "A.", |_: Nothing, _| async { Ok("") });
    assert_eq!(*nothing.schema().as_value(), json!({ "type": "object", "properties": {} }));

    let tagged = tool_fn("b", "B.", |_: Tagged, _| async { Ok("") });
    assert_eq!(tagged.schema().as_value()["type"], "object");
    assert!(tagged.schema().validate(&json!({ "op": "Clear" })).is_ok());
    assert!(tagged.schema().validate(&json!({ "op": "Add" })).is_err());
}

#[tokio::test]
async fn with_schema_checks_against_the_hand_written_schema() {
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 1 } } });
    let tool = tool_fn_with_schema(
        "n",
        "N.",
        Schema::new(schema.clone()).unwrap(),
        |input: Value, _: ToolContext| async move { Ok(input["n"].clone()) },
    );
    assert_eq!(*tool.schema().as_value(), schema);
    let set = ToolSet::new().with(tool).unwrap();
    assert_eq!(run_in(&set, "n", json!({ "n": 4 })).await.text(), "4");
    assert!(run_in(&set, "n", json!({ "n": 0 })).await.text().contains("at /n: must be at least 1, got 0"));
}

#[tokio::test]
async fn run_input_valid_for_the_schema_but_not_the_type_is_an_error_result() {
    let schema = Schema::new(json!({ "type": "object" })).unwrap();
    let tool = tool_fn_with_schema("c", "C.", schema, |input: City, _: ToolContext| async { Ok(input.city) });
    let result = run(tool, json!({ "city": 5 })).await;
    assert!(result.is_error);
    assert!(result.text().contains("invalid type: integer `5`, expected a string"), "{}", result.text());
}

#[tokio::test]
async fn schema_tool_is_declared_and_never_called() {
    let tool = declared_tool::<City>("ask_user", "Asks the user.");
    assert!(!tool.has_handler());
    assert_eq!(tool.schema().as_value()["required"], json!(["city"]));
    assert!(tool.call(json!({}), ToolContext::detached("id")).await.is_err());
    let result = run(tool, json!({ "city": "Oslo" })).await;
    assert!(result.is_error && result.text().contains("only declared"), "{}", result.text());
}

#[tokio::test]
async fn pointers_to_tools_are_tools() {
    let shared: Arc<dyn Tool> = Arc::new(Forecast::default().into_tool());
    let first = ToolSet::new().with(Arc::clone(&shared)).unwrap();
    let second = ToolSet::new().with(Arc::clone(&shared)).unwrap();
    run_in(&first, "forecast", json!({ "city": "a" })).await;
    assert_eq!(run_in(&second, "forecast", json!({ "city": "b" })).await.text(), "b: 1 days (call 2)");
    assert_eq!(second.declarations()[0].description, "Called 2 times.");

    let boxed: Box<dyn Tool> = Box::new(declared_tool::<City>("ask", "Asks."));
    let set = ToolSet::new().with(boxed).unwrap();
    let declaration = &set.declarations()[0];
    assert_eq!((declaration.name.as_str(), declaration.has_handler), ("ask", false));
    assert_eq!(declaration.schema.as_value()["required"], json!(["city"]));
}

#[test]
fn output_from_each_supported_type() {
    let text = ResultBlock::from("a");
    let image = Attachment::base64("image/png", "AAAA");
    for output in ["a".into(), "a".to_owned().into(), Text::new("a").into(), ToolOutput::from(text.clone())] {
        assert_eq!(output, ToolOutput::from(vec![text.clone()]));
    }
    assert_eq!(ToolOutput::from(json!({ "z": 1, "a": 2 })).blocks, [ResultBlock::from(r#"{"z":1,"a":2}"#)]);
    assert_eq!(ToolOutput::from(image.clone()).blocks, [ResultBlock::from(image.clone())]);
    let both = vec![text.clone(), image.clone().into()];
    assert_eq!(ToolOutput::from(both.clone()).blocks, both);
    assert_eq!(ToolOutput::blocks([text.clone()]).blocks, [text]);
    assert_eq!(ToolOutput::blocks([image.clone()]).blocks, [ResultBlock::from(image)]);
}

/// An error with an optional cause. The text of the error may repeat the text of the cause.
#[derive(Debug)]
struct Layer(&'static str, Option<Box<Layer>>);

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Layer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.1.as_deref().map(|cause| cause as _)
    }
}

fn layers(texts: &[&'static str]) -> Option<Box<Layer>> {
    let (first, rest) = texts.split_first()?;
    Some(Box::new(Layer(first, layers(rest))))
}

#[test]
fn error_from_another_error_contains_each_cause_once() {
    let error = *layers(&["reading failed", "disk full", "no space"]).unwrap();
    assert_eq!(ToolError::from(error).to_string(), "reading failed: disk full: no space");
    let error = *layers(&["reading failed: disk full", "disk full", "no space"]).unwrap();
    assert_eq!(ToolError::from(error).to_string(), "reading failed: disk full: no space");
    let boxed: Box<dyn std::error::Error + Send + Sync> = layers(&["a", "b"]).unwrap();
    assert_eq!(ToolError::caused_by(&*boxed).to_string(), "a: b");
}
