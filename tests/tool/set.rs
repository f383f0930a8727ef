use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use omni_agent::tool::{
    Schema, Tool, ToolContext, ToolError, ToolOutput, ToolSet, ToolSetError, declared_tool_with_schema,
    tool_fn,
};
use serde_json::{Value, json};

fn tool(name: &str) -> impl Tool {
    tool_fn(name, "Does nothing.", |_: Value, _| async { Ok("") })
}

fn with_schema(schema: Value) -> impl Tool {
    declared_tool_with_schema("a", "Does nothing.", Schema::new(schema).unwrap())
}

fn names(set: &ToolSet) -> Vec<String> {
    set.iter().map(|tool| tool.name().to_owned()).collect()
}

/// A tool that counts how often its `description` is called.
struct Counting {
    schema: Schema,
    described: AtomicUsize,
}

#[async_trait]
impl Tool for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn description(&self) -> Cow<'_, str> {
        match self.described.fetch_add(1, Ordering::Relaxed) {
            13 => panic!("unlucky"),
            before => format!("Described {before} times before.").into(),
        }
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    async fn call(&self, _: Value, _: ToolContext) -> Result<ToolOutput, ToolError> {
        Ok("".into())
    }
}

#[test]
fn insert_keeps_order_and_finds_by_name() {
    let set = ToolSet::new().with(tool("b")).unwrap().with(tool("a")).unwrap();
    assert_eq!((names(&set), set.len(), set.is_empty()), (vec!["b".to_owned(), "a".to_owned()], 2, false));
    assert_eq!(set.get("a").unwrap().name(), "a");
    assert!(set.get("c").is_none());
    assert!(ToolSet::new().is_empty() && ToolSet::new().get("a").is_none());
    assert_eq!(format!("{set:?}"), r#"["b", "a"]"#);
}

#[test]
fn insert_duplicate_name_is_refused_and_changes_nothing() {
    let mut set = ToolSet::new().with(tool("a")).unwrap();
    let first = Arc::clone(set.get("a").unwrap());
    assert_eq!(set.insert(Arc::new(tool("a"))), Err(ToolSetError::Duplicate("a".to_owned())));
    assert_eq!(set.len(), 1);
    assert!(Arc::ptr_eq(&first, set.get("a").unwrap()));
}

#[test]
fn insert_name_invalid_for_services_is_refused() {
    let mut set = ToolSet::new();
    for name in ["", "a b", "a/b", "é", "a\n", &"x".repeat(129)] {
        assert_eq!(set.insert(Arc::new(tool(name))), Err(ToolSetError::BadName(name.to_owned())));
    }
    assert!(set.is_empty());
    for name in ["a", "A_b-c.9", &"x".repeat(128)] {
        set.insert(Arc::new(tool(name))).unwrap();
    }
    assert_eq!(set.len(), 3);
}

#[test]
fn insert_schema_that_is_not_an_object_is_refused() {
    let mut set = ToolSet::new();
    for schema in
        [json!({ "type": "string" }), json!({ "type": ["object", "null"] }), json!(true), json!(false)]
    {
        let error = set.insert(Arc::new(with_schema(schema.clone()))).unwrap_err();
        assert!(error.to_string().contains("input is an object"), "{schema}: {error}");
        assert!(matches!(error, ToolSetError::BadSchema { name, .. } if name == "a"));
    }
    assert!(set.is_empty());
    set.insert(Arc::new(with_schema(json!({})))).unwrap();
}

#[test]
fn insert_derived_schema_that_is_not_an_object_is_refused() {
    let text = tool_fn("text", "Takes text.", |text: String, _| async { Ok(text) });
    assert!(matches!(ToolSet::new().with(text), Err(ToolSetError::BadSchema { .. })));
}

#[test]
fn remove_removes_the_tool_with_that_name() {
    let mut set = ToolSet::new().with(tool("a")).unwrap().with(tool("b")).unwrap();
    let before = set.clone();
    assert!(set.remove("a"));
    assert!(!set.remove("a"));
    assert_eq!(names(&set), ["b"]);
    assert_eq!(names(&before), ["a", "b"]);
    assert!(!ToolSet::new().remove("a"));
}

#[test]
fn insert_into_a_clone_does_not_change_the_original() {
    let original = ToolSet::new().with(tool("a")).unwrap();
    let mut copy = original.clone();
    copy.insert(Arc::new(tool("b"))).unwrap();
    assert_eq!((original.len(), copy.len()), (1, 2));
}

#[test]
fn declarations_read_the_description_each_time() {
    let counting = Counting { schema: Schema::new(json!({})).unwrap(), described: AtomicUsize::new(0) };
    let set = ToolSet::new().with(counting).unwrap();
    for before in 0..2 {
        assert_eq!(set.declarations()[0].description, format!("Described {before} times before."));
    }
}

#[test]
fn declarations_description_that_panics_is_empty() {
    let counting = Counting { schema: Schema::new(json!({})).unwrap(), described: AtomicUsize::new(13) };
    let set = ToolSet::new().with(counting).unwrap().with(tool("other")).unwrap();
    let declarations = set.declarations();
    assert_eq!(declarations[0].description, "");
    assert_eq!(declarations[1].description, "Does nothing.");
}

#[test]
fn declarations_show_whether_a_tool_has_a_handler() {
    let schema = json!({ "type": "object", "properties": { "z": {}, "a": {} } });
    let set = ToolSet::new().with(with_schema(schema.clone())).unwrap().with(tool("run")).unwrap();
    let declarations = set.declarations();
    assert_eq!(*declarations[0].schema.as_value(), schema);
    assert_eq!(declarations.iter().map(|tool| tool.has_handler).collect::<Vec<_>>(), [false, true]);
    let json = serde_json::to_string(&declarations).unwrap();
    assert_eq!(serde_json::from_str::<Vec<omni_agent::tool::ToolDeclaration>>(&json).unwrap(), declarations);
}

#[test]
fn extended_adds_all_tools_or_reports_the_first_that_is_refused() {
    let shared = |name: &str| Arc::new(tool(name)) as Arc<dyn Tool>;
    let set = ToolSet::new().with(tool("a")).unwrap().extended([shared("b"), shared("c")]).unwrap();
    assert_eq!(names(&set), ["a", "b", "c"]);
    let refused = set.extended([shared("d"), shared("a")]).unwrap_err();
    assert_eq!(refused, ToolSetError::Duplicate("a".to_owned()));
}
