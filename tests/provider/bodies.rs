//! Bodies that are not quite what was asked for, and what can be made of them.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::provider::{ErrorKind, dialect::Framing, http::Endpoint};

use crate::{
    plain::{Answer, Plain, ask, endpoint},
    server::{Reply, Server},
};

/// Events with these texts as they stand in the JSON, and the end.
fn events(texts: &[&str]) -> String {
    let events = texts.iter().map(|text| format!("data: {{\"text\":\"{text}\"}}\n\n"));
    events.chain(["data: {\"stop\":true}\n\n".to_owned()]).collect()
}

async fn answer(reply: Reply) -> Answer {
    let server = Server::start([reply]).await;
    ask(&endpoint(&server.url())).await
}

/// Services written in languages whose strings are UTF-16 cut them wherever that falls.
#[tokio::test]
async fn halves_of_a_character_in_two_events_are_one_character() {
    for (texts, whole) in [
        (&["a\\ud83d", "\\ude00b"][..], "a😀b"),
        (&["\\uD83D", "\\uDE00"], "😀"),
        (&["\\ud83d", "", "\\ude00\\ud83e", "\\udd80"], "😀🦀"),
        (&["\\ud83d\\ude00\\ud83e", "\\udd80\\ud83d\\ude00"], "😀🦀😀"),
        (&["\\\\ud83d \\ud83d", "\\ude00 \\\\ude00"], "\\ud83d 😀 \\ude00"),
    ] {
        assert_eq!(answer(Reply::sse().piece(events(texts))).await.text(), whole, "{texts:?}");
        let lines = events(texts).replace("data: ", "").replace("\n\n", "\n");
        let server = Server::start([Reply::ndjson().piece(lines)]).await;
        let endpoint = Endpoint::custom("plain", server.url(), Plain(Framing::NdJson));
        assert_eq!(ask(&endpoint).await.text(), whole, "{texts:?}");
    }
}

#[tokio::test]
async fn half_a_character_alone_is_no_reason_to_lose_the_answer() {
    for (texts, whole) in [
        // Its other half may have been cut off by a limit.
        (&["a\\ud83d", "b"][..], "a\u{FFFD}b"),
        (&["a\\ud83d"], "a\u{FFFD}"),
        (&["a\\ud83d", "XX", "\\ude00b"], "a\u{FFFD}XX\u{FFFD}b"),
        (&["\\ud83d", "\\ud83d", "\\ude00"], "\u{FFFD}😀"),
        (&["\\ude00b"], "\u{FFFD}b"),
        (&["a\\ud83db", "c\\ude00"], "a\u{FFFD}bc\u{FFFD}"),
        (&["\\ude00\\ud83d", "\\ud83d\\ude00"], "\u{FFFD}\u{FFFD}😀"),
    ] {
        assert_eq!(answer(Reply::sse().piece(events(texts))).await.text(), whole, "{texts:?}");
    }
    let whole = "{\"text\":\"a\\ud83d b\",\"stop\":true}";
    assert_eq!(answer(Reply::json(200, whole)).await.text(), "a\u{FFFD} b");
}

/// The text that came before the failure ends with what came of the character.
#[tokio::test]
async fn half_a_character_before_a_failure_is_replaced() {
    for failure in ["data: nonsense\n\n", "data: {\"error\":\"it broke \\ude00\"}\n\n", ""] {
        let begin = "data: {\"text\":\"a\\ud83d\"}\n\n";
        let answer = answer(Reply::sse().piece(begin).piece(failure)).await;
        assert_eq!(answer.text, "a\u{FFFD}", "{failure}");
        let error = answer.error();
        assert!(!error.message.contains('\u{10FFFF}'), "{error}");
        assert!(!failure.contains("broke") || error.message == "it broke \u{FFFD}", "{error}");
    }
}

#[tokio::test]
async fn half_a_character_excuses_no_other_fault() {
    for bad in ["data: {\"text\":\"\\ud83d\"\n\n", "data: {\"text\":\"\\ud83\"}\n\n", "data: \\ud83d\n\n"] {
        let error = answer(Reply::sse().piece(bad).piece(events(&["x"]))).await.error();
        assert_eq!((error.kind, error.retryable), (ErrorKind::Decoding, false), "{bad}");
    }
}

fn formats(url: &str) -> [Endpoint; 5] {
    [
        Endpoint::openai_compatible("chat", url),
        Endpoint::openai_responses_compatible("responses", url),
        Endpoint::anthropic_compatible("messages", url),
        Endpoint::google().with_base_url(url),
        Endpoint::ollama_at(url),
    ]
}

/// Gateways say so of themselves, with a status that says that all is well.
#[tokio::test]
async fn json_that_is_no_answer_is_a_decoding_error_that_shows_it() {
    let key = "sk-live-topsecret";
    for body in [
        "{\"detail\":\"You shall not pass\"}",
        "{\"detail\":\"You shall not pass sk-live-topsecret\"}",
        "{\"success\":false,\"info\":{\"why\":\"You shall not pass\"}}",
    ] {
        for at in 0..5 {
            let server = Server::start([Reply::json(200, body)]).await;
            let endpoint = formats(&server.url())[at].clone().with_key(key);
            let error = ask(&endpoint).await.error();
            assert_eq!((error.kind, error.retryable), (ErrorKind::Decoding, false), "{endpoint:?}: {error}");
            let shown = error.body.unwrap();
            assert!(shown.contains("You shall not pass") && !shown.contains(key), "{endpoint:?}: {shown}");
        }
    }
}

#[tokio::test]
async fn whole_answer_with_an_error_that_says_there_is_none_is_an_answer() {
    for none in ["null", "false", "{}", "0"] {
        let whole = format!("{{\"text\":\"all\",\"stop\":true,\"error\":{none}}}");
        assert_eq!(answer(Reply::json(200, &whole)).await.text(), "all", "{none}");
    }
}
