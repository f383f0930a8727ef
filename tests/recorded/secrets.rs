//! Recordings contain no secrets.

use std::{env, fs, path::Path};

use omni_agent::{
    provider::{ErrorKind, Options, ProviderError, Request},
    testing::Step,
};

use crate::{Folder, deltas, lines, recording, replay};

const KEY: &str = "sk-live-0123456789abcdef";
const HEADER: &str = "tenant-secret-42424242";

#[tokio::test]
async fn key_and_headers_of_a_request_are_never_written_even_if_a_text_contains_them() {
    let folder = Folder::new();
    let path = folder.file("secrets.jsonl");
    let echo = ProviderError::new(ErrorKind::Auth, format!("no such key: {KEY}")).with_body(HEADER);
    let script = [Step::new().then_text([format!("Your key is {KEY}.")]).stop(), Step::error(echo)];
    let recorded = recording(script, &path).model("small");
    for prompt in [format!("My key is {KEY} and my header {HEADER}."), "Hello".to_owned()] {
        let options = Options::default().with_api_key(KEY).with_header("X-Tenant", HEADER);
        deltas(&recorded, Request::prompt(prompt).with_options(options)).await;
    }
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2);
    for secret in [KEY, HEADER, "0123456789abcdef", "X-Tenant"] {
        assert!(!text.contains(secret), "{secret} is part of {text}");
    }
}

#[tokio::test]
async fn scrub_changes_every_text_before_it_is_written_and_compared() {
    let folder = Folder::new();
    let path = folder.file("scrubbed.jsonl");
    let scrub = |text: &str| text.replace("alice", "USER").replace("bob", "USER");
    let script =
        [Step::new().then_text(["Hello, alice."]).fail(ProviderError::new(ErrorKind::Service, "alice left"))];
    let recorded = recording(script, &path).scrub(scrub).model("small");
    let request = |user: &str| Request::prompt("Hi").with_system(format!("The home is /home/{user}."));
    let (streamed, _) = deltas(&recorded, request("alice")).await;
    assert!(format!("{streamed:?}").contains("alice"), "the live answer is unchanged: {streamed:?}");
    let line = lines(&path).remove(0);
    assert_eq!(line["request"]["system"], "The home is /home/USER.");
    assert!(!line.to_string().contains("alice"), "{line}");

    let (replayed, error) = deltas(&replay(&path).scrub(scrub).model("small"), request("bob")).await;
    assert!(format!("{replayed:?}").contains("Hello, USER."), "{replayed:?}");
    assert_eq!(error.unwrap().message, "USER left");
}

/// Collects the files of recordings below a folder.
fn recordings(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            recordings(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "jsonl") {
            found.push(path);
        }
    }
}

#[test]
fn no_recorded_file_contains_a_key_of_the_environment() {
    let is_secret =
        |name: &str| ["KEY", "TOKEN", "SECRET", "PASSWORD"].iter().any(|word| name.contains(word));
    let secrets: Vec<(String, String)> =
        env::vars().filter(|(name, value)| is_secret(name) && value.len() >= 8).collect();
    let mut files = Vec::new();
    for folder in ["tests/recorded/cassettes", "tests/live/cassettes"] {
        recordings(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    }
    assert!(files.len() >= 2, "{files:?}");
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for (name, value) in &secrets {
            assert!(!text.contains(value), "{} contains the value of {name}", file.display());
        }
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(
                line["request"]["options"].get("api_key").is_none()
                    && line["request"]["options"].get("headers").is_none()
            );
        }
    }
}
