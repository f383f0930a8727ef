//! Agents that deviate from the protocol. Every unambiguous deviation is accepted.

use futures_util::StreamExt;
use omni_agent::provider::{
    StopReason,
    acp::AcpBackend,
    custom::{Backend, BackendError, SessionId, SessionOptions},
};

use crate::support::{asked, prompt, read, script, soon};

/// Returns a backend whose program is a shell script with the commands of `body`. In the script, `next` reads a message
/// and its id. `answer` writes its argument, in which it replaces `ID` with this id.
fn agent(body: &str) -> AcpBackend {
    script(&format!(
        r#"
        next() {{ read -r line || exit 0; id=$(printf %s "$line" | sed 's/.*"id":\([0-9]*\),.*/\1/'); }}
        answer() {{ printf '%s\n' "$1" | sed "s/ID/$id/"; }}
        update() {{ printf '{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s","update":%s}}}}\n' "$1"; }}
        chunk() {{ update "{{\"sessionUpdate\":\"$1\",\"content\":{{\"type\":\"text\",\"text\":\"$2\"}}}}"; }}
        say() {{ chunk agent_message_chunk "$1"; }}
        ended() {{ answer '{{"jsonrpc":"2.0","id":ID,"result":{{"stopReason":"end_turn"}}}}'; }}
        opened() {{
            next; answer '{{"jsonrpc":"2.0","id":ID,"result":{{"protocolVersion":1,"agentCapabilities":{{"loadSession":true}}}}}}'
        }}
        {body}
        "#
    ))
}

/// Returns a backend whose script starts the session and then runs `body`.
fn started(body: &str) -> AcpBackend {
    agent(&format!(
        r#"opened; next; answer '{{"jsonrpc":"2.0","id":ID,"result":{{"sessionId":"s"}}}}'; {body}"#
    ))
}

#[tokio::test]
async fn answers_in_every_form_are_accepted() {
    let forms = [
        r#"{"jsonrpc":"2.0","id":ID,"result":RESULT}"#,
        r#"{"jsonrpc":"2.0","id":"ID","result":RESULT}"#,
        r#"{"jsonrpc":"2.0","id":ID,"result":RESULT,"error":null}"#,
        r#"{"id":ID,"result":RESULT}"#,
        r#"[{"jsonrpc":"2.0","id":ID,"result":RESULT}]"#,
        r#"[{"jsonrpc":"2.0","method":"_x"},7,{"jsonrpc":"2.0","id":ID,"result":RESULT}]"#,
        r#"Loading... {"jsonrpc":"2.0","id":ID,"result":RESULT}"#,
    ];
    let results = [r#"{"protocolVersion":1}"#, r#"{"sessionId":"s"}"#, r#"{"stopReason":"end_turn"}"#];
    for form in forms {
        let answers = results.map(|result| format!("next; answer '{}'", form.replace("RESULT", result)));
        let body = answers.join("; ");
        let session = soon(agent(&body).start(&SessionOptions::default())).await.unwrap_or_else(|error| {
            panic!("{form}: {error}");
        });
        let turn = asked(&*session, "Hello").await;
        assert_eq!(turn.result.unwrap().stop_reason, StopReason::Stop, "{form}");
    }
}

#[tokio::test]
async fn invalid_messages_are_ignored_unless_they_are_answers() {
    let wrong = r#"
        next
        cat <<'END'
        {"jsonrpc":"2.0"}
        {"jsonrpc":"2.0","method":5}
        {"jsonrpc":"2.0","id":1.5,"method":"x"}
        {"jsonrpc":"2.0","id":{},"result":1}
        {"jsonrpc":"2.0","id":null,"result":1}
        []
        [[],{}]
        [debug] sent {"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"quoted"}}}}
        {"method":"GET","path":"/","id":"a"}
END
        printf '%s\n' '{"jsonrpc":"2.0","id":77,"method":"x","params":"odd"}'
        kept=$id; next; case "$line" in *'"id":77,'*-32601*) say one;; *) say "$line";; esac; id=$kept
        ended
        sleep 600
    "#;
    let session = soon(started(wrong).start(&SessionOptions::default())).await.unwrap();
    let turn = asked(&*session, "Hello").await;
    assert_eq!((turn.text.as_str(), turn.result.unwrap().stop_reason), ("one", StopReason::Stop));
}

#[tokio::test]
async fn answer_with_an_invalid_error_fails_only_its_turn() {
    let errors = [
        r#"{"jsonrpc":"2.0","id":ID,"error":{"code":"E_QUOTA","message":"no more"}}"#,
        r#"{"jsonrpc":"2.0","id":ID,"error":"no more"}"#,
        r#"{"jsonrpc":"2.0","id":ID}"#,
        // The agent could not parse the request, so it does not know the id.
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no more"}}"#,
    ];
    for error in errors {
        let body = format!("next; answer '{error}'; next; say on; ended; sleep 600");
        let session = soon(started(&body).start(&SessionOptions::default())).await.unwrap();
        let failed = asked(&*session, "Hello").await.result.unwrap_err();
        assert!(!matches!(failed, BackendError::Ended(_)), "{error}: {failed}");
        assert!(failed.to_string().contains("no more") || !error.contains("no more"), "{error}: {failed}");
        assert_eq!(asked(&*session, "Hello").await.text, "on", "{error}");
    }
}

/// Some agents replay the conversation even after they have answered the request to load it.
#[tokio::test]
async fn replay_after_the_session_was_loaded_is_not_part_of_the_next_turn() {
    let late = r#"
        opened
        said=$(count=0; while [ $count -lt 200 ]; do chunk agent_message_chunk 'Before.'; count=$((count + 1)); done)
        next; chunk user_message_chunk 'Before?'; answer '{"jsonrpc":"2.0","id":ID,"result":null}'
        printf '%s\n' "$said"
        next; say Now.; ended; sleep 600
    "#;
    let session = soon(agent(late).resume(&SessionId::new("s"), &SessionOptions::default())).await.unwrap();
    assert_eq!(asked(&*session, "Hello").await.text, "Now.");
}

#[tokio::test]
async fn text_that_was_cut_inside_a_character_is_repaired() {
    let cut = r#"
        next
        cat <<'END'
{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"Cut \ud83d"}}}}
{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\ude00 in \ud83d two \ud83d"}}}}
{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":" X"}}}}
{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"\ude00 \ud83d"}}}}
END
        ended; sleep 600
    "#;
    let session = soon(started(cut).start(&SessionOptions::default())).await.unwrap();
    let text = "Cut \u{1f600} in \u{fffd} two \u{fffd} X\u{fffd} \u{fffd}";
    assert_eq!(asked(&*session, "Hello").await.text, text);
}

/// Some agents ignore messages that arrive while a turn begins.
#[tokio::test]
async fn cancel_that_an_agent_misses_is_repeated() {
    let missing = r#"
        next; say begun; kept=$id; next; next
        case "$line" in *session/cancel*) id=$kept;; esac
        answer '{"jsonrpc":"2.0","id":ID,"result":{"stopReason":"cancelled"}}'; sleep 600
    "#;
    let session = soon(started(missing).start(&SessionOptions::default())).await.unwrap();
    let mut stream = soon(session.prompt(prompt("Hello"))).await.unwrap();
    soon(stream.next()).await.unwrap();
    soon(session.cancel()).await.unwrap();
    assert_eq!(read(stream).await.result.unwrap().stop_reason, StopReason::Cancelled);
}

#[tokio::test]
async fn plan_with_unknown_values_is_kept_unchanged() {
    let planned = r#"
        next
        update '{"sessionUpdate":"plan","entries":[{"content":"Look","priority":"urgent","status":"begun"}]}'
        ended; sleep 600
    "#;
    let session = soon(started(planned).start(&SessionOptions::default())).await.unwrap();
    assert_eq!(asked(&*session, "Hello").await.events, [r#"plan "Look""#]);
}
