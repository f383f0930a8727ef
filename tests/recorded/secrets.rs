//! Recordings contain no secrets.

use std::{env, fs, path::Path};

use omni_agent::{
    provider::{Options, ProviderError, ProviderErrorKind, Request},
    testing::Step,
};

use crate::{Folder, deltas, lines, recording, replay};

const KEY: &str = "sk-live-0123456789abcdef";
const HEADER: &str = "tenant-secret-42424242";

#[tokio::test]
async fn key_and_headers_of_a_request_are_never_written_even_if_a_text_contains_them() {
    let folder = Folder::new();
    let path = folder.file("secrets.jsonl");
    let echo = ProviderError::new(ProviderErrorKind::Auth, format!("no such key: {KEY}")).with_body(HEADER);
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
    let script = [Step::new()
        .then_text(["Hello, alice."])
        .fail(ProviderError::new(ProviderErrorKind::Service, "alice left"))];
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

#[cfg(feature = "http")]
mod endpoint {
    use omni_agent::{
        provider::http::Endpoint,
        testing::{Recorded, Recording},
    };

    use super::*;
    use crate::{
        alone::{alone, paused, threaded},
        http::{Reply, Server},
    };

    const VARIABLE: &str = "OMNI_RECORDED_TEST_KEY";

    fn endpoint(url: &str) -> Endpoint {
        Endpoint::openai_compatible("local", url).with_key_variable(VARIABLE).with_header("X-Tenant", HEADER)
    }

    /// A prompt that contains the environment, as the output of a tool may do.
    fn request() -> Request {
        Request::prompt(format!("The environment is {VARIABLE}={KEY}, TENANT={HEADER}."))
    }

    #[test]
    fn key_of_the_environment_is_never_written_even_if_it_is_streamed_in_pieces() {
        const TEST: &str =
            "secrets::endpoint::key_of_the_environment_is_never_written_even_if_it_is_streamed_in_pieces";
        alone(TEST, &[(VARIABLE, KEY)], || {
            let folder = Folder::new();
            let (path, again) = (folder.file("environment.jsonl"), folder.file("again.jsonl"));
            threaded(async {
                let (start, end) = KEY.split_at(11);
                let pieces = ["Your key is ", start, end, ". Keep", " it."];
                let reply = pieces.iter().fold(Reply::sse(), |reply, piece| {
                    let content =
                        serde_json::json!({ "choices": [{ "index": 0, "delta": { "content": piece } }] });
                    reply.piece(format!("data: {content}\n\n"))
                });
                let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
                let reply = reply.piece(format!("data: {stop}\n\ndata: [DONE]\n\n"));
                let server = Server::start([reply]).await;
                let recorded = Recorded::new(endpoint(&server.url()), &path, Recording::Record);
                let (live, error) = deltas(&recorded.model("small"), request()).await;
                assert_eq!(error, None);
                assert!(format!("{live:?}").contains(end), "the live answer is unchanged: {live:?}");
            });
            let text = fs::read_to_string(&path).unwrap();
            let (start, end) = KEY.split_at(11);
            for secret in [KEY, start, end, HEADER] {
                assert!(!text.contains(secret), "{secret} is part of {text}");
            }
            assert!(text.contains("Your key is [secret]. Keep it."), "{text}");
            paused(async {
                // The same environment has the recorded answer, and a recording of the replay is the same file.
                let replay =
                    Recorded::new(endpoint("http://127.0.0.1:9"), &path, Recording::Replay).in_real_time();
                let recorded = Recorded::new(replay, &again, Recording::Record);
                let (_, error) = deltas(&recorded.model("small"), request()).await;
                assert_eq!(error, None);
            });
            assert_eq!(fs::read_to_string(&again).unwrap(), text);
        });
    }
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
