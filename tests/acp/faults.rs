//! Programs that are not agents, and faulty agents. Each program causes a clear error, and nothing hangs.

use std::{os::unix::fs::PermissionsExt, path::Path, time::Duration};

use futures_util::StreamExt;
use omni_agent::provider::{
    StopReason,
    acp::AcpBackend,
    custom::{Backend, BackendError, BackendEvent, SessionOptions},
};

use crate::support::{Place, asked, read, script, soon};

async fn fails(backend: AcpBackend) -> BackendError {
    match soon(backend.start(&SessionOptions::default())).await {
        Err(error) => error,
        Ok(_) => panic!("the program started"),
    }
}

fn says(error: &BackendError, words: &str) {
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test]
async fn start_of_a_program_that_cannot_run_is_misconfigured_and_names_it() {
    let place = Place::new();
    let text = place.path().join("text");
    std::fs::write(&text, "not a program").unwrap();
    let executable = place.path().join("executable");
    std::fs::write(&executable, "\x00not a program").unwrap();
    std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755)).unwrap();
    for program in [Path::new("/no/such/agent"), place.path(), &text, &executable] {
        let error = fails(AcpBackend::new("acp", program)).await;
        assert!(matches!(error, BackendError::Misconfigured(_)), "{program:?}: {error:?}");
        says(&error, &format!("can't be started: `{}`", program.display()));
    }
    for folder in [Path::new("/no/such/folder"), &text] {
        let error = fails(AcpBackend::new("acp", "sh").with_folder(folder)).await;
        assert!(matches!(error, BackendError::Misconfigured(_)), "{folder:?}: {error:?}");
        says(&error, &format!("the folder `{}` can't be used", folder.display()));
    }
}

#[tokio::test]
async fn start_of_a_program_that_ends_reports_its_status_and_output() {
    let error = fails(script("echo 'no licence' >&2; exit 7")).await;
    assert!(matches!(error, BackendError::Misconfigured(_)));
    says(&error, "exit status: 7; its standard error ended with: no licence");
}

#[tokio::test]
async fn start_of_a_silent_program_ends_at_the_limit() {
    let limit = Duration::from_millis(100);
    let error = fails(script("exec sleep 600").with_start_limit(limit)).await;
    assert_eq!(error, BackendError::Timeout { call: "initialize", limit });
}

#[tokio::test]
async fn start_of_a_program_with_other_output_quotes_it() {
    let error = fails(script("yes 'Welcome!'")).await;
    says(&error, "its output is not the Agent Client Protocol: Welcome!");
    let error = fails(script("head -c 50000000 /dev/zero | tr '\\0' x; sleep 600")).await;
    says(&error, "longer than the limit of 33554432 bytes");
    let error = fails(script("echo '{\"jsonrpc\":\"2.0\",\"id\":'; sleep 600")).await;
    says(&error, "damaged message: {\"jsonrpc\"");
    says(&fails(script("exec >&-; sleep 600")).await, "closed its standard output");
}

/// `cat` returns each request to its sender. The client answers the returned request with an error response, and `cat`
/// returns this response too.
#[tokio::test]
async fn start_of_an_echo_is_an_error() {
    let error = fails(AcpBackend::new("acp", "cat")).await;
    assert!(matches!(error, BackendError::Unsupported(_)), "{error}");
}

/// Returns a backend whose program is a shell script. The script starts a session and then runs `body`. In the script,
/// `answer` replies to the next request with a result, and `update` sends an update.
fn agent(version: &str, body: &str) -> AcpBackend {
    agent_with(version, r#"{"sessionId":"s","_meta":{}}"#, body)
}

/// Like `agent`. The script starts the session with this answer.
fn agent_with(version: &str, session: &str, body: &str) -> AcpBackend {
    script(&format!(
        r#"
        id() {{ sed 's/.*"id":\([0-9]*\),.*/\1/'; }}
        answer() {{ read -r line; printf '{{"jsonrpc":"2.0","id":%s,%s}}\n' "$(printf %s "$line" | id)" "$1"; }}
        update() {{ printf '{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"%s","update":%s}}}}\n' "$1" "$2"; }}
        say() {{ update s "{{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{{\"type\":\"text\",\"text\":\"$1\"}}}}"; }}
        answer '"result":{{"protocolVersion":{version},"more":[1]}}'
        answer '"result":{session}'
        {body}
        "#
    ))
}

#[tokio::test]
async fn start_of_an_agent_with_another_version_names_it() {
    let error = fails(agent("99", "")).await;
    assert!(matches!(error, BackendError::Unsupported(_)));
    says(&error, "speaks version 99 of the Agent Client Protocol; only version 1 is supported");
}

#[tokio::test]
async fn start_with_a_model_selects_one_that_the_agent_offers_in_the_older_form() {
    const MODELS: &str = r#"{"sessionId":"s","models":{"currentModelId":"a","availableModels":[{"modelId":"a","name":"A"},{"modelId":"b","name":"Big"}]}}"#;
    let answers = r#"
        answer '"result":{}'
        case "$line" in *'"method":"session/set_model"'*) method=set;; *) method="$line";; esac
        case "$line" in *'"modelId":"b"'*) model=b;; *) model="$line";; esac
        read -r line; request="$line"
        say "$method $model"
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(printf %s "$request" | id)"
        sleep 600
    "#;
    for model in ["b", "Big"] {
        let backend = agent_with("1", MODELS, answers);
        let session = soon(backend.start(&SessionOptions::new(model))).await.unwrap();
        assert_eq!(asked(&*session, "Hello").await.text, "set b");
    }
    let Err(error) = soon(agent_with("1", MODELS, "").start(&SessionOptions::new("c"))).await else {
        panic!("the session started")
    };
    says(&error, "no model `c`; choose one of: a, b");
}

#[tokio::test]
async fn start_with_a_model_selects_one_of_an_option_without_a_category() {
    const MODELS: &str = r#"{"sessionId":"s","configOptions":[{"id":"model","name":"Model","type":"select","currentValue":"a","options":[{"value":"b","name":"B"}]}]}"#;
    let answers = r#"
        answer '"result":{"configOptions":[]}'
        case "$line" in *'"method":"session/set_config_option"'*) method=set;; *) method="$line";; esac
        case "$line" in *'"value":"b"'*) model=b;; *) model="$line";; esac
        read -r line; request="$line"
        say "$method $model"
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(printf %s "$request" | id)"
        sleep 600
    "#;
    let session = soon(agent_with("1", MODELS, answers).start(&SessionOptions::new("b"))).await.unwrap();
    assert_eq!(asked(&*session, "Hello").await.text, "set b");
}

#[tokio::test]
async fn turn_with_texts_of_two_messages_separates_them() {
    let texts = r#"
        text() { update s "{\"sessionUpdate\":\"agent_message_chunk\",\"messageId\":\"$1\",\"content\":{\"type\":\"text\",\"text\":\"$2\"}}"; }
        read -r line; request="$line"
        text c1 'Checking'
        text c1 ' the mapping.'
        text f1 'It is fine.'
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(printf %s "$request" | id)"
        sleep 600
    "#;
    let session = soon(agent("1", texts).start(&SessionOptions::default())).await.unwrap();
    assert_eq!(asked(&*session, "Hello").await.text, "Checking the mapping.\n\nIt is fine.");
}

#[tokio::test]
async fn turn_with_unknown_messages_continues() {
    let odd = r#"
        update s '{"sessionUpdate":"available_commands_update","availableCommands":[]}'
        read -r line; request="$line"
        echo 'debug: a line for people'
        echo '{"level":30,"msg":"a line for machines"}'
        say one
        update elsewhere '{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"not mine"}}'
        update s '{"sessionUpdate":"from_the_future","x":1}'
        update s '{"sessionUpdate":"tool_call_update","toolCallId":"never","status":"completed"}'
        update s '{"sessionUpdate":"tool_call_update","toolCallId":"never","status":"failed"}'
        update s '7'
        echo '{"jsonrpc":"2.0","method":"session/update"}'
        echo '{"jsonrpc":"2.0","method":"_vendor/news","params":{"a":1}}'
        echo '{"jsonrpc":"2.0","id":"nobody-asked","result":{}}'
        echo '{"jsonrpc":"2.0","id":1,"method":"terminal/create","params":{"sessionId":"s","command":"ls"}}'
        read -r refused
        echo '{"jsonrpc":"2.0","id":2,"method":"session/request_permission","params":{"sessionId":"elsewhere","toolCall":{"toolCallId":"t"},"options":[]}}'
        read -r refused2
        case "$refused$refused2" in *-32601*-32602*) say two;; *) say "$refused$refused2";; esac
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn","usage":{"inputTokens":3,"outputTokens":2,"totalTokens":5}}}\n' "$(printf %s "$request" | id)"
        say late
        answer '"result":{"stopReason":"out_of_luck"}'
        answer '"result":{}'
        sleep 600
    "#;
    let session = soon(agent("1", odd).start(&SessionOptions::default())).await.unwrap();
    let turn = asked(&*session, "Hello").await;
    let expected = [
        "status commands []",
        "text one",
        r#"status from_the_future {"x":1}"#,
        "use tool {}",
        r#"update """#,
        "result false ",
        "text two",
    ];
    assert_eq!(turn.events[..7], expected);
    assert!(turn.events[7].starts_with("Usage(Usage { input: 3"), "{:?}", turn.events);
    assert_eq!(turn.result.unwrap().stop_reason, StopReason::Stop);
    let other = asked(&*session, "Hello").await.result.unwrap();
    assert_eq!(other.stop_reason, StopReason::Other("out_of_luck".to_owned()));
    says(&asked(&*session, "Hello").await.result.unwrap_err(), "without a stop reason");
}

#[tokio::test]
async fn turn_of_a_program_with_invalid_output_ends_in_an_error() {
    let cases = [
        ("echo '{\"jsonrpc\":\"2.0\",\"method\":'", "damaged message"),
        ("yes rubbish", "not the Agent Client Protocol: rubbish"),
        ("tr '\\0' x < /dev/zero", "longer than the limit"),
        ("exec >&-; sleep 600", "closed its standard output"),
        ("echo broken >&2; exit 9", "exit status: 9; its standard error ended with: broken"),
    ];
    for (rubbish, words) in cases {
        let program = agent("1", &format!("read -r line; say one; {rubbish}; sleep 600"));
        let session = soon(program.start(&SessionOptions::default())).await.unwrap();
        let turn = asked(&*session, "Hello").await;
        assert_eq!(turn.text, "one", "{words}");
        let error = turn.result.unwrap_err();
        assert!(matches!(error, BackendError::Ended(_)), "{error}");
        says(&error, words);
        soon(session.terminate()).await;
    }
}

#[tokio::test]
async fn prompt_to_a_program_that_stopped_reading_is_an_error() {
    let deaf = r#"
        read -r line
        exec <&-
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(printf %s "$line" | id)"
        sleep 600
    "#;
    let session = soon(agent("1", deaf).start(&SessionOptions::default())).await.unwrap();
    asked(&*session, "Hello").await.result.unwrap();
    let error = asked(&*session, "Hello").await.result.unwrap_err();
    says(&error, "stopped reading its input");
}

/// The program sends many requests before it reads the answers.
#[tokio::test]
async fn requests_whose_answers_are_read_later_are_all_answered() {
    let late = r#"
        read -r line; request="$line"
        count=0
        while [ $count -lt 3000 ]; do
            echo '{"jsonrpc":"2.0","id":'$count',"method":"terminal/create","params":{}}'; count=$((count + 1))
        done
        head -n 3000 | grep -c -- -32601 > refused
        say "$(cat refused)"
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(printf %s "$request" | id)"
        sleep 600
    "#;
    let place = Place::new();
    let program = agent("1", late).with_folder(place.path());
    let session = soon(program.start(&SessionOptions::default())).await.unwrap();
    assert_eq!(asked(&*session, "Hello").await.text, "3000");
}

#[tokio::test]
async fn request_for_permission_that_the_agent_withdraws_is_cancelled() {
    let withdrawing = r#"
        read -r line; request="$line"
        echo '{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"t"},"options":[]}}'
        echo '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"q"}}'
        read -r answer
        case "$answer" in *'"id":"q",'*'"cancelled"'*) say withdrawn;; *) say "$answer";; esac
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"end_turn"}}\n' "$(printf %s "$request" | id)"
        sleep 600
    "#;
    let session = soon(agent("1", withdrawing).start(&SessionOptions::default())).await.unwrap();
    let mut stream = session.prompt(crate::support::prompt("Hello")).await.unwrap();
    let question = soon(stream.next()).await;
    assert!(matches!(question, Some(BackendEvent::Permission(_))), "{question:?}");
    // The question is still held, so only the agent can have ended it.
    assert_eq!(read(stream).await.text, "withdrawn");
    drop(question);
}

/// If the test does not read the turn's updates, the program blocks on writing them, but it can still end its turn.
#[tokio::test]
async fn turn_that_is_not_read_can_be_cancelled() {
    let place = Place::new();
    let flood = r#"
        read -r line; request="$line"
        long=$(head -c 100000 /dev/zero | tr '\0' x)
        count=0
        while [ $count -lt 400 ]; do say "$long"; count=$((count + 1)); done
        echo all > written
        printf '{"jsonrpc":"2.0","id":%s,"result":{"stopReason":"cancelled"}}\n' "$(printf %s "$request" | id)"
        sleep 600
    "#;
    let program = agent("1", flood).with_folder(place.path());
    let session = soon(program.start(&SessionOptions::default())).await.unwrap();
    let stream = session.prompt(crate::support::prompt("Hello")).await.unwrap();
    let written = place.path().join("written");
    drop(stream);
    soon(session.cancel()).await.unwrap();
    assert!(written.exists());
    soon(session.terminate()).await;
}

#[tokio::test]
async fn text_after_the_end_of_a_turn_is_kept_or_reported() {
    let late = r#"
        answer '"result":{"stopReason":"end_turn"}'
        say late
        answer '"result":{"stopReason":"end_turn"}'
        sleep 600
    "#;
    let session = soon(agent("1", late).start(&SessionOptions::default())).await.unwrap();
    asked(&*session, "Hello").await.result.unwrap();
    let turn = asked(&*session, "Hello").await;
    let warnings = turn.result.unwrap().warnings.join(" ");
    assert!(turn.text == "late" || warnings.ends_with("continued: late"), "{:?} {warnings}", turn.events);
}
