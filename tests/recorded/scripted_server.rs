//! Recordings of an HTTP service. The files in `cassettes` were recorded from the scripted server of these tests:
//! `OMNI_RECORD=record cargo test --test recorded cassette` records them again.

use std::{fs, path::Path, sync::Arc};

use omni_agent::{
    provider::{Model, Options, Request, custom::Delta, http::Endpoint},
    testing::{Recorded, Recording},
    tool::ToolSet,
    tool_fn,
};
use serde_json::Value;

use crate::{
    Folder,
    alone::{paused, threaded},
    deltas,
    http::{Reply, Server},
};

const CHAT: [&str; 5] = [
    r#"{"id":"chatcmpl-1","model":"small-1","choices":[{"index":0,"delta":{"role":"assistant","content":"Let me "}}]}"#,
    r#"{"id":"chatcmpl-1","model":"small-1","choices":[{"index":0,"delta":{"content":"look."}}]}"#,
    r#"{"id":"chatcmpl-1","model":"small-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"look","arguments":"{\"at\":"}}]}}]}"#,
    r#"{"id":"chatcmpl-1","model":"small-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1.5}"}}]}}]}"#,
    r#"{"id":"chatcmpl-1","model":"small-1","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29}}"#,
];

const MESSAGES: [&str; 7] = [
    r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"small-1","content":[],"stop_reason":null,"usage":{"input_tokens":20,"output_tokens":1}}}"#,
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Easy."}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2lnbmVk"}}"#,
    r#"{"type":"content_block_stop","index":0}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#,
    r#"{"type":"message_stop"}"#,
];

#[derive(Clone, Copy)]
enum Format {
    Chat,
    Messages,
}

impl Format {
    const ALL: [(Self, &str); 2] = [(Self::Chat, "chat.jsonl"), (Self::Messages, "messages.jsonl")];

    fn reply(self) -> Reply {
        match self {
            Self::Chat => {
                let reply = Reply::sse();
                let reply = CHAT.iter().fold(reply, |reply, event| reply.piece(format!("data: {event}\n\n")));
                reply.piece("data: [DONE]\n\n")
            }
            Self::Messages => MESSAGES.iter().fold(Reply::sse(), |reply, event| {
                let kind: Value = serde_json::from_str(event).unwrap();
                reply.piece(format!("event: {}\ndata: {event}\n\n", kind["type"].as_str().unwrap()))
            }),
        }
    }

    fn endpoint(self, url: &str) -> Endpoint {
        match self {
            Self::Chat => Endpoint::openai_compatible("local", url),
            Self::Messages => Endpoint::anthropic_compatible("local", url),
        }
    }
}

/// Sends two requests: one is answered, and one is refused.
async fn exchange(model: &Model) -> Vec<(Vec<Delta>, Option<String>)> {
    let look = || tool_fn("look", "Looks at a place.", |_: Value, _| async { Ok("seen") });
    let options = Options::default().with_max_tokens(100).with_api_key("key-of-the-scripted-server");
    let request = |text: &str| {
        let tools = ToolSet::new().with(look()).unwrap();
        Request::prompt(text).with_system("Be brief.").with_tools(tools).with_options(options.clone())
    };
    let mut seen = Vec::new();
    for text in ["Look around.", "And again."] {
        let (deltas, error) = deltas(model, request(text)).await;
        seen.push((deltas, error.map(|error| serde_json::to_string(&error).unwrap())));
    }
    seen
}

async fn server(format: Format) -> Server {
    let refusal = r#"{"error":{"type":"invalid_request_error","message":"no more of this"}}"#;
    Server::start([format.reply(), Reply::json(400, refusal)]).await
}

#[test]
fn recording_of_the_scripted_server_replays_equal_deltas_in_equal_order() {
    let folder = Folder::new();
    for (format, name) in Format::ALL {
        let (path, again) = (folder.file(name), folder.file("again.jsonl"));
        let live = threaded(async {
            let unrecorded = server(format).await;
            let model = Model::new(Arc::new(format.endpoint(&unrecorded.url())), "small");
            let live = exchange(&model).await;
            let server = server(format).await;
            let recorded = Recorded::new(format.endpoint(&server.url()), &path, Recording::Record);
            assert_eq!(exchange(&recorded.model("small")).await, live, "recording changes nothing");
            live
        });
        assert!(live[0].0.len() > 4 && live[0].1.is_none() && live[1].1.is_some(), "{live:?}");
        paused(async {
            let replay = || Recorded::new(format.endpoint("http://127.0.0.1:9"), &path, Recording::Replay);
            assert_eq!(exchange(&replay().model("small")).await, live);
            let again = Recorded::new(replay().in_real_time(), &again, Recording::Record);
            assert_eq!(exchange(&again.model("small")).await, live);
        });
        assert_eq!(fs::read_to_string(&again).unwrap(), fs::read_to_string(&path).unwrap());
    }
}

#[test]
fn cassette_in_the_repository_replays_what_the_scripted_server_answers() {
    for (format, name) in Format::ALL {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/cassettes").join(name);
        threaded(async {
            let live = server(format).await;
            let model = Model::new(Arc::new(format.endpoint(&live.url())), "small");
            let live = exchange(&model).await;
            let server = server(format).await;
            let recording = Recording::from_env();
            let recorded = Recorded::new(format.endpoint(&server.url()), path, recording);
            assert_eq!(exchange(&recorded.model("small")).await, live);
            let requests = if recording == Recording::Record { 2 } else { 0 };
            assert_eq!(server.received().len(), requests, "the replay sends nothing");
        });
    }
}
