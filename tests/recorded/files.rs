//! Errors that recording files cause: missing, damaged or unwritable files.

use std::fs;

use omni_agent::{
    provider::{ProviderErrorKind, Request},
    testing::{Recorded, Recording, ScriptedProvider, Step},
};

use crate::{Folder, deltas, recording, refused, replay};

#[tokio::test]
async fn file_that_does_not_exist_fails_the_request_with_advice() {
    let folder = Folder::new();
    let path = folder.file("absent.jsonl");
    let error = refused(&replay(&path).model("small"), Request::prompt("Hi")).await;
    assert_eq!(error.kind, ProviderErrorKind::InvalidRequest);
    let text = format!("the recording {} does not exist; record it with OMNI_RECORD=record", path.display());
    assert_eq!(error.message, text);
    assert_eq!(replay(&path).unused().unwrap_err().message, text);
}

#[tokio::test]
async fn damaged_line_fails_the_request_and_is_named() {
    let folder = Folder::new();
    let path = folder.file("damaged.jsonl");
    deltas(&recording([Step::text("Hi.")], &path).model("small"), Request::prompt("Hi")).await;
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"request\": 1, \"deltas\": 2}\n");
    fs::write(&path, text).unwrap();
    let error = refused(&replay(&path).model("small"), Request::prompt("Hi")).await;
    assert!(error.message.contains("line 2 of the recording"), "{error}");
    assert!(error.message.contains("invalid type: integer `2`"), "{error}");
}

#[tokio::test]
async fn file_that_cannot_be_written_fails_the_request() {
    let folder = Folder::new();
    let blocked = folder.file("blocked");
    fs::create_dir_all(blocked.join("test.jsonl")).unwrap();
    let recorded = recording([Step::text("Hi.")], &blocked.join("test.jsonl")).model("small");
    let (_, error) = deltas(&recorded, Request::prompt("Hi")).await;
    let error = error.unwrap();
    assert!(error.message.contains("test.jsonl can't be written: "), "{error}");
}

#[tokio::test]
async fn new_recording_replaces_the_file_and_leaves_no_other_file() {
    let folder = Folder::new();
    let path = folder.file("replaced.jsonl");
    for answer in ["Old.", "New."] {
        deltas(&recording([Step::text(answer)], &path).model("small"), Request::prompt(answer)).await;
    }
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("New.") && !text.contains("Old."), "{text}");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[tokio::test]
async fn wrapped_model_keeps_its_facts_and_uses_the_recording() {
    let folder = Folder::new();
    let path = folder.file("wrapped.jsonl");
    let service = ScriptedProvider::new([Step::text("Hi.")]).named("anthropic");
    let model = omni_agent::provider::Model::new(std::sync::Arc::new(service.clone()), "claude-sonnet-4-6");
    let recorded = Recorded::shared(model.provider().clone(), &path, Recording::Record);
    let wrapped = recorded.wrap(&model);
    assert_eq!((wrapped.name(), wrapped.info()), (model.name(), model.info()));
    assert!(wrapped.info().is_some());
    wrapped.generate(Request::prompt("Hi")).await.unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("claude-sonnet-4-6"));
}
