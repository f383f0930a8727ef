//! A client that verifies events and folds them into messages, as the package `@ag-ui/client` does.

use std::{collections::HashSet, sync::LazyLock};

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Value, json};

use super::super::{AgUiFrame, AgUiVersion};

/// The JSON Schema of the events of 1.0, made of the validators in `@ag-ui/core` by `tests/web/js/ag_ui/schema.mjs`.
static SCHEMA: LazyLock<(Schemas, SchemaIndex)> = LazyLock::new(|| {
    let text = include_str!("../../../../tests/web/ag_ui/events-1.0.json");
    let mut compiler = Compiler::new();
    compiler.add_resource("urn:events", serde_json::from_str(text).unwrap()).unwrap();
    let mut schemas = Schemas::new();
    let index = compiler.compile("urn:events", &mut schemas).unwrap();
    (schemas, index)
});

#[derive(Debug)]
pub(super) struct Client {
    pub(super) level: AgUiVersion,
    pub(super) messages: Vec<Value>,
    pub(super) interrupts: Vec<Value>,
    pub(super) state: Value,
    open: HashSet<(&'static str, String)>,
    started: bool,
    ended: bool,
}

impl Client {
    pub(super) fn new(level: AgUiVersion) -> Self {
        Self {
            level,
            messages: Vec::new(),
            interrupts: Vec::new(),
            state: json!({ "mine": 1 }),
            open: HashSet::new(),
            started: false,
            ended: true,
        }
    }

    /// Returns the messages that the client posts: all except activities.
    pub(super) fn posted(&self) -> Vec<Value> {
        self.messages.iter().filter(|message| message["role"] != "activity").cloned().collect()
    }

    /// Reads the events of one whole run.
    pub(super) fn read(&mut self, frames: &[AgUiFrame]) {
        self.begin();
        for frame in frames {
            self.read_one(frame);
        }
    }

    /// Prepares for the events of the next run.
    pub(super) fn begin(&mut self) {
        (self.started, self.ended) = (false, false);
    }

    pub(super) fn check_ended(&self) {
        assert!(self.ended, "no terminal event");
    }

    pub(super) fn read_one(&mut self, frame: &AgUiFrame) {
        let text = serde_json::to_string(frame).unwrap();
        assert!(text.len() < 10_000_000 && !text.contains('\n'), "{} bytes", text.len());
        let event: Value = serde_json::from_str(&text).unwrap();
        check_shape(&event, self.level);
        self.verify(&event);
        self.apply(&event);
    }

    fn verify(&mut self, event: &Value) {
        let kind = event["type"].as_str().unwrap();
        assert!(!self.ended, "{kind} after the terminal event");
        assert_eq!(!self.started, kind == "RUN_STARTED", "{kind}");
        self.started = true;
        let id = |name: &str| event[name].as_str().unwrap().to_owned();
        let (entity, name) = match kind {
            "STEP_STARTED" | "STEP_FINISHED" => ("step", "stepName"),
            "TEXT_MESSAGE_START" | "TEXT_MESSAGE_CONTENT" | "TEXT_MESSAGE_END" => ("text", "messageId"),
            "REASONING_START" | "REASONING_END" => ("span", "messageId"),
            "REASONING_MESSAGE_START" | "REASONING_MESSAGE_CONTENT" | "REASONING_MESSAGE_END" => {
                ("reasoning", "messageId")
            }
            "TOOL_CALL_START" | "TOOL_CALL_ARGS" | "TOOL_CALL_END" => ("call", "toolCallId"),
            "RUN_FINISHED" | "RUN_ERROR" => {
                assert!(self.open.is_empty(), "{kind} with {:?}", self.open);
                self.ended = true;
                return;
            }
            _ => return,
        };
        let key = (entity, id(name));
        if kind.ends_with("START") || kind.ends_with("STARTED") {
            assert!(self.open.insert(key), "{event} is open");
        } else if kind.ends_with("END") || kind.ends_with("FINISHED") {
            assert!(self.open.remove(&key), "{event} is not open");
        } else {
            assert!(self.open.contains(&key), "{event} is not open");
            assert_ne!(event["delta"], "");
        }
    }

    fn find(&mut self, id: &Value) -> Option<&mut Value> {
        self.messages.iter_mut().find(|message| message["id"] == *id)
    }

    fn call(&mut self, id: &Value) -> Option<&mut Value> {
        let calls =
            self.messages.iter_mut().filter_map(|message| message.get_mut("toolCalls")?.as_array_mut());
        calls.flatten().find(|call| call["id"] == *id)
    }

    fn apply(&mut self, event: &Value) {
        let id = &event["messageId"];
        let append = |value: &mut Value| {
            *value = format!("{}{}", value.as_str().unwrap(), event["delta"].as_str().unwrap()).into();
        };
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START" if self.find(id).is_none() => {
                self.messages.push(json!({ "id": id, "role": event["role"], "content": "" }));
            }
            "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" => {
                append(&mut self.find(id).unwrap()["content"]);
            }
            "TOOL_CALL_START" if self.call(&event["toolCallId"]).is_none() => {
                let parent = &event["parentMessageId"];
                if self.find(parent).is_none() {
                    self.messages.push(json!({ "id": parent, "role": "assistant", "toolCalls": [] }));
                }
                let call = json!({
                    "id": event["toolCallId"],
                    "type": "function",
                    "function": { "name": event["toolCallName"], "arguments": "" },
                });
                self.find(parent).unwrap()["toolCalls"].as_array_mut().unwrap().push(call);
            }
            "TOOL_CALL_ARGS" => {
                append(&mut self.call(&event["toolCallId"]).unwrap()["function"]["arguments"]);
            }
            "TOOL_CALL_RESULT" => {
                let mut message = event.clone();
                let fields = message.as_object_mut().unwrap();
                fields.remove("type");
                let id = fields.remove("messageId").unwrap();
                fields.insert("id".into(), id);
                let owner = self.messages.iter().position(|message| {
                    let calls = message["toolCalls"].as_array().map(Vec::as_slice).unwrap_or_default();
                    calls.iter().any(|call| call["id"] == event["toolCallId"])
                });
                let mut place = owner.map_or(self.messages.len(), |owner| owner + 1);
                while self.messages.get(place).is_some_and(|message| message["role"] == "tool") {
                    place += 1;
                }
                assert!(self.find(&message["id"].clone()).is_none(), "{message} twice");
                self.messages.insert(place, message);
            }
            "ACTIVITY_SNAPSHOT" => {
                let message = json!({
                    "id": id, "role": "activity", "activityType": event["activityType"], "content": event["content"],
                });
                match self.find(id) {
                    Some(old) => *old = message,
                    None => self.messages.push(message),
                }
            }
            "MESSAGES_SNAPSHOT" => self.replace(event),
            "STATE_SNAPSHOT" => self.state = event["snapshot"].clone(),
            "STATE_DELTA" => {
                for change in event["delta"].as_array().unwrap() {
                    assert_eq!(change["op"], "add");
                    let place = self.state.pointer_mut(change["path"].as_str().unwrap()).unwrap();
                    assert_ne!(*place, change["value"], "nothing has changed");
                    place.clone_from(&change["value"]);
                }
            }
            "RUN_FINISHED" => {
                self.interrupts = event["outcome"]["interrupts"].as_array().cloned().unwrap_or_default();
            }
            _ => {}
        }
    }

    fn replace(&mut self, event: &Value) {
        let new = event["messages"].as_array().unwrap();
        let ids: HashSet<_> = new.iter().map(|message| message["id"].to_string()).collect();
        assert_eq!(ids.len(), new.len(), "an id occurs twice: {event}");
        let has = |role: &str| new.iter().any(|message| message["role"] == role);
        let (reasoning, activity) = (has("reasoning"), has("activity") || self.level == AgUiVersion::V1);
        self.messages.retain(|message| {
            ids.contains(&message["id"].to_string())
                || (message["role"] == "reasoning" && !reasoning)
                || (message["role"] == "activity" && !activity)
        });
        for message in new {
            match self.find(&message["id"]) {
                Some(old) => old.clone_from(message),
                None => self.messages.push(message.clone()),
            }
        }
    }
}

/// Checks an event as the validators of this version of the protocol do.
fn check_shape(event: &Value, level: AgUiVersion) {
    let no_null = |value: &Value| !has_null(value);
    assert!(no_null(event), "{event}");
    let (schemas, index) = &*SCHEMA;
    if let Err(error) = schemas.validate(event, *index) {
        panic!("{event}: {error}");
    }
    if level == AgUiVersion::V0 {
        let is_text = |message: &Value| message["role"] != "tool" || message["content"].is_string();
        assert!(is_text(event), "{event}");
        assert!(event["messages"].as_array().is_none_or(|messages| messages.iter().all(is_text)), "{event}");
        assert!(event["outcome"].is_null() || event["outcome"]["type"] == "interrupt", "{event}");
        assert_eq!(event.get("protocolVersion"), None);
    }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}
