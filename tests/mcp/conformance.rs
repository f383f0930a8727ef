//! The [official conformance suite](https://github.com/modelcontextprotocol/conformance) of the protocol, for the client
//! and for the server. `conformance/expected.yml` lists the expected failures with their reasons. The suite fails if
//! another scenario fails, and if one of these scenarios passes.

#![allow(clippy::print_stdout, reason = "the report of the suite is of interest by itself")]

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{Router, http::request::Parts};
use omni_agent::{
    access::{Permissions, Principal, StartRequest},
    async_trait,
    manager::{Manager, OpenOptions},
    mcp::{McpClient, McpError, McpLogin},
    serve::mcp::{ServerInfo, router},
    store::{Labels, MemoryStore},
    tool::Decision,
    web::{Access, Challenge, Web},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
    time::timeout,
};

use crate::{
    auth::{CALLBACK, Kept},
    npm::{node, packages},
    questions::answered,
    serving::host::agent,
    support::soon,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp");

/// The variable in which the suite names the scenario to the client.
const SCENARIO: &str = "MCP_CONFORMANCE_SCENARIO";

/// The time limit of the suite, which runs the scenarios of the client at the same time.
const LIMIT: Duration = Duration::from_mins(5);

/// Returns the program of Node and the suite, or `None` if they can't be installed.
async fn suite() -> Option<(PathBuf, PathBuf)> {
    let installed = tokio::task::spawn_blocking(|| Some((node()?, packages(FOLDER, "conformance")?)));
    let (node, folder) = installed.await.unwrap()?;
    Some((node, folder.join("node_modules/@modelcontextprotocol/conformance/dist/index.js")))
}

/// Runs scenarios of the suite, and prints their summary. Returns the report, or as an error if an unexpected scenario
/// fails or an expected failure does not occur. Returns `None` if the suite can't be installed.
async fn run(side: &str, arguments: &[&str]) -> Option<Result<String, String>> {
    let (node, suite) = suite().await?;
    let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{side}"));
    let mut command = Command::new(node);
    command.arg(suite).arg(side).args(arguments).arg("-o").arg(results);
    command.args(["--expected-failures", &format!("{FOLDER}/conformance/expected.yml")]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = timeout(LIMIT, output).await.expect("the suite ends within the time limit").unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{}", report.rsplit("SUMMARY ===").next().unwrap());
    let errors = String::from_utf8_lossy(&output.stderr);
    Some(if output.status.success() { Ok(report) } else { Err(format!("{report}\n{errors}")) })
}

#[tokio::test]
async fn suite_of_the_protocol_passes_on_the_client() {
    let program = env::current_exe().unwrap();
    // The suite appends the address of its server, which the test harness takes for the name of another test.
    let command = format!("{} --exact conformance::client_is_driven --nocapture", program.display());
    let run = async |what: [&str; 2]| run("client", &[&["--command", &command], &what[..]].concat()).await;
    let Some(Err(report)) = run(["--suite", "all"]).await else { return };
    // One scenario measures the delay of a request, which takes longer while all scenarios run at the same time.
    let unexpected = report.split("Unexpected failures").nth(1).unwrap_or_else(|| panic!("{report}"));
    let unexpected: Vec<_> = unexpected.lines().filter_map(|line| line.trim().strip_prefix("✗ ")).collect();
    assert_eq!(unexpected, ["sse-retry"], "{report}");
    assert!(!report.contains("Stale baseline"), "{report}");
    for _ in 0..5 {
        if let Some(Ok(_)) = run(["--scenario", "sse-retry"]).await {
            return;
        }
    }
    panic!("{report}");
}

/// The client that the suite starts, in another process of this binary.
#[tokio::test]
async fn client_is_driven() {
    let Ok(scenario) = env::var(SCENARIO) else { return };
    let url = env::args().next_back().unwrap();
    let store = Arc::<Kept>::default();
    let mut client = connected(&url, &store, &scenario).await;
    let listed = match client.tools().await {
        Err(McpError::Unauthorized { challenge, .. }) => {
            log_in(&url, &store, challenge).await;
            client = connected(&url, &store, &scenario).await;
            client.tools().await
        }
        listed => listed,
    };
    for tool in listed.unwrap().tools {
        // A person agrees to each question without filling in a form.
        answered(&client, tool.name(), json!({ "a": 5, "b": 3 }), |_| Decision::Execute).await;
    }
    soon(client.close()).await;
}

async fn connected(url: &str, store: &Arc<Kept>, scenario: &str) -> McpClient {
    for _ in 0..3 {
        let mut builder = McpClient::http(url).name("it");
        if scenario.starts_with("auth/") {
            builder = builder.tokens(Arc::clone(store));
        }
        match builder.connect().await {
            Ok(client) => return client,
            Err(McpError::Unauthorized { challenge, .. }) => log_in(url, store, challenge).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the server does not accept the tokens of three logins");
}

async fn log_in(url: &str, store: &Arc<Kept>, challenge: Option<String>) {
    let mut login = McpLogin::builder(url, CALLBACK);
    if let Some(challenge) = challenge {
        login = login.challenge(challenge);
    }
    let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    if let Some(id) = context["client_id"].as_str() {
        login = login.client_id(id);
    }
    let login = login.begin(Arc::clone(store)).await.unwrap();
    login.finish(&browsed(login.url()).await).await.unwrap();
}

/// Acts as the user's browser. Returns the address to which the authorization server sends it.
async fn browsed(url: &str) -> String {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let location = answer.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location").then(|| value.to_owned())
    });
    location.unwrap_or_else(|| panic!("no redirect: {answer}"))
}

/// Everybody is the same user.
struct Everybody;

impl Permissions for Everybody {}

#[async_trait]
impl Access for Everybody {
    async fn principal(&self, _: &Parts) -> Result<Principal, Challenge> {
        Ok(Principal::new("everybody", Labels::new([("user", "everybody")]).unwrap()).unwrap())
    }
}

#[tokio::test]
async fn suite_of_the_protocol_passes_on_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let agents = |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(agent()));
    let manager = Manager::builder(MemoryStore::new()).build();
    let web = Web::builder(manager, Everybody, agents).hosts([address.to_string()]).build();
    let app = Router::new().nest("/mcp", router(&web, ServerInfo::new("served", "1.0.0")));
    tokio::spawn(async move { axum::serve(listener, app).await });
    if let Some(Err(report)) = run("server", &["--url", &format!("http://{address}/mcp")]).await {
        panic!("{report}");
    }
}
