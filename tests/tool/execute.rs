//! Execution of a single tool: its output, and whether the input or the tool caused an error.

use std::{collections::HashMap, sync::Arc};

use omni_agent::tool::{
    Extensions, Schema, Tool, ToolContext, ToolError, ToolOutput, declared_tool_with_schema, execute,
    tool_fn, tool_fn_with_schema,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct Order {
    pieces: u8,
}

#[derive(Serialize)]
struct Receipt<'a> {
    pieces: u8,
    note: Option<&'a str>,
}

fn detached() -> ToolContext {
    ToolContext::detached("call")
}

fn order() -> impl Tool {
    tool_fn("order", "Orders.", |order: Order, context: ToolContext| async move {
        match order.pieces {
            0 => Err(ToolError::new("sold out")),
            9.. => Err(ToolError::invalid_input("at most 8 pieces")),
            pieces => {
                let note = context.extensions().get::<String>().cloned();
                ToolOutput::json(&Receipt { pieces, note: note.as_deref() })
            }
        }
    })
}

#[tokio::test]
async fn execute_valid_input_returns_the_output() {
    let output = execute(&order(), json!({ "pieces": 2 }), detached()).await.unwrap();
    assert_eq!(output, ToolOutput::from(r#"{"pieces":2,"note":null}"#));
    let context = detached().with_extensions(Extensions::default().with("hi".to_owned()));
    let output = execute(&order(), json!({ "pieces": 2 }), context).await.unwrap();
    assert_eq!(output, ToolOutput::from(r#"{"pieces":2,"note":"hi"}"#));
}

#[tokio::test]
async fn execute_on_a_shared_tool_of_any_type_works() {
    let tool: Arc<dyn Tool> = Arc::new(order());
    assert!(execute(&tool, json!({ "pieces": 1 }), detached()).await.is_ok());
    assert!(execute(&*tool, json!({ "pieces": 1 }), detached()).await.is_ok());
}

#[tokio::test]
async fn execute_tool_fails_is_not_invalid_input() {
    let failed = execute(&order(), json!({ "pieces": 0 }), detached()).await.unwrap_err();
    assert_eq!((failed.text(), failed.is_invalid_input()), ("sold out", false));
    let declared =
        declared_tool_with_schema("ask", "Asks.", Schema::new(json!({ "type": "object" })).unwrap());
    let failed = execute(&declared, json!({}), detached()).await.unwrap_err();
    assert!(!failed.is_invalid_input());
    assert!(failed.text().contains("only declared"), "{failed}");
}

#[tokio::test]
async fn execute_invalid_input_is_reported_as_such_and_the_tool_is_not_run() {
    for input in [json!({}), json!({ "pieces": "two" }), json!(["pieces"]), Value::Null] {
        let invalid = execute(&order(), input.clone(), detached()).await.unwrap_err();
        assert!(invalid.is_invalid_input(), "{input}: {invalid}");
        assert!(invalid.text().contains("\"order\""), "{invalid}");
    }
    let rejected = execute(&order(), json!({ "pieces": 9 }), detached()).await.unwrap_err();
    assert_eq!((rejected.text(), rejected.is_invalid_input()), ("at most 8 pieces", true));

    // The schema allows the input, but the input does not fit the Rust type.
    let schema = Schema::new(json!({ "type": "object" })).unwrap();
    let call = |_: Order, _| async move { Ok("run") };
    let unread = tool_fn_with_schema("order", "Orders.", schema, call);
    let unread = execute(&unread, json!({}), detached()).await.unwrap_err();
    assert!(unread.is_invalid_input(), "{unread}");
}

#[test]
fn json_of_a_value_without_a_json_form_is_an_error() {
    assert_eq!(ToolOutput::json(&[1, 2]).unwrap(), ToolOutput::from("[1,2]"));
    assert_eq!(ToolOutput::json("text").unwrap(), ToolOutput::from(json!("text")));
    let error = ToolOutput::json(&HashMap::from([((1, 2), 3)])).unwrap_err();
    assert!(error.text().contains("key must be a string"), "{error}");
}
