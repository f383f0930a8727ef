//! Streams of the AI SDK and of AG-UI whose server is killed. The server is a second instance of this test binary, and its
//! clients speak plain HTTP, so that they see how a body ends.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{Router, http::Method, routing::post};
use omni_agent::{
    Agent,
    access::{Principal, StartRequest},
    agent::Durable,
    manager::{Manager, OpenOptions, Titles},
    provider::Request,
    store::{ConversationId, FileSystemStore, Store, file_system::Durability},
    testing::{Gate, ScriptedProvider, Step},
    web::Web,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

use crate::{
    ports,
    support::{Users, run_input, submit},
};

/// The variable with the folder of the server.
const FOLDER: &str = "OMNI_WEB_SERVER";

/// The time limit for everything that the tests wait for.
const LIMIT: Duration = Duration::from_mins(1);

/// Serves the conversations in a folder. The first server in the folder never finishes an answer. A later one finishes
/// an answer when it is asked to.
#[tokio::test]
async fn server_runs_until_it_is_killed() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    let gate = Gate::new();
    let is_first = fs::create_dir(folder.join("begun")).is_ok();
    let model = {
        let gate = gate.clone();
        let answer = move |_: &Request| {
            if is_first {
                Step::new().then_text(["Half"]).hang()
            } else {
                Step::new().then_text(["Who"]).gate(&gate).then_text(["le."]).stop()
            }
        };
        ScriptedProvider::from_fn(answer).model()
    };
    let options = move || OpenOptions::new(Agent::builder().model(model.clone())).durable(Durable::InFlight);
    let store = FileSystemStore::builder(folder.join("conversations")).durability(Durability::Process);
    let store: Arc<dyn Store> = Arc::new(store.exclusive().open().await.unwrap());
    let starter = options.clone();
    let manager =
        Manager::builder(store).titles(Titles::Off).starter(move |_| Some(starter().subscribe(None))).build();
    let agents = move |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(options());
    let web = Web::builder(manager.clone(), Users, agents).build();
    let open = post(move || async move { gate.open() });
    let app = Router::new().nest("/agent", web.router()).nest("/api", web.ai_sdk());
    let app = app.nest("/ag-ui", web.ag_ui()).route("/open", open);
    manager.recover().await.unwrap();
    let listener = ports::listen(ports::KILLED).await;
    println!("listens at {}", listener.local_addr().unwrap().port());
    axum::serve(listener, app).await.unwrap();
}

/// A server process. It is killed when this value is dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    async fn start(folder: &Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        let test = ["--exact", "killed_server::server_runs_until_it_is_killed", "--nocapture"];
        command.args(test).env(FOLDER, folder).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = loop {
            let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap();
            let line = line.expect("the server listens");
            if let Some((_, port)) = line.split_once("listens at ") {
                break port.parse().unwrap();
            }
        };
        // The rest of the server's output is read, so that the server is never blocked on writing.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { process, port }
    }

    async fn send(&self, method: Method, path: &str, body: Option<Value>) -> Response {
        Response::to(self.port, method, path, "", body).await
    }

    async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// A response, as it arrives.
pub(crate) struct Response {
    connection: TcpStream,
    text: String,
}

impl Response {
    /// Sends a request of Ann. Each further header ends with a line break.
    pub(crate) async fn to(
        port: u16,
        method: Method,
        path: &str,
        headers: &str,
        body: Option<Value>,
    ) -> Self {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-user: ann\r\nconnection: close\r\n{headers}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all((head + &body).as_bytes()).await.unwrap();
        Self { connection, text: String::new() }
    }

    /// Reads a piece. Returns `false` at the end of the connection.
    async fn read(&mut self) -> bool {
        let mut piece = [0; 4096];
        let length = timeout(LIMIT, self.connection.read(&mut piece)).await.unwrap().unwrap_or_default();
        self.text.push_str(std::str::from_utf8(&piece[..length]).unwrap());
        length > 0
    }

    /// Reads until the text contains `part`.
    pub(crate) async fn until(&mut self, part: &str) {
        while !self.text.contains(part) {
            assert!(self.read().await, "{part:?} is not in {}", self.text);
        }
    }

    /// Reads to the end of the connection. Returns the text, and whether the body is complete.
    pub(crate) async fn end(mut self) -> (String, bool) {
        while self.read().await {}
        let is_complete = self.text.ends_with("\r\n0\r\n\r\n");
        (self.text, is_complete)
    }
}

/// How a client of a protocol starts a run and joins it again.
struct Protocol {
    name: &'static str,
    start: &'static str,
    body: Value,
    join: String,
    /// A part of the last frame of a run that has succeeded.
    finish: &'static str,
    /// Parts of frames after which a client takes the answer for complete.
    last: &'static [&'static str],
}

fn protocols(id: &str) -> [Protocol; 2] {
    [
        Protocol {
            name: "AI SDK",
            start: "/api/chat",
            body: submit(id, "u1", "Go"),
            join: format!("/api/chat/{id}/stream"),
            finish: "[DONE]",
            last: &["[DONE]", "\"finish\""],
        },
        Protocol {
            name: "AG-UI",
            start: "/ag-ui",
            body: run_input(id, "r1", "Go"),
            join: format!("/ag-ui/{id}?runId=r1&protocolVersion=1.0"),
            finish: "RUN_FINISHED",
            last: &["RUN_FINISHED", "RUN_ERROR"],
        },
    ]
}

#[tokio::test]
async fn stream_of_a_killed_server_breaks_off_and_the_next_server_continues_the_answer() {
    for number in 0..2 {
        let folder = env::temp_dir().join(format!("omni-web-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        let server = Server::start(&folder).await;
        let created = server.send(Method::POST, "/agent/conversations", Some(json!({}))).await.end().await.0;
        let (_, created) = created.split_once("\r\n\r\n").unwrap();
        let created: Value = serde_json::from_str(created).unwrap();
        let id = created["id"].as_str().unwrap();
        let [ai_sdk, ag_ui] = protocols(id);
        let protocol = if number == 0 { ai_sdk } else { ag_ui };
        let name = protocol.name;

        let mut response = server.send(Method::POST, protocol.start, Some(protocol.body)).await;
        response.until("\"Half\"").await;
        server.kill().await;
        let (text, is_complete) = response.end().await;
        assert!(!is_complete, "{name}: {text}");
        for last in protocol.last {
            assert!(!text.contains(last), "{name}: {last} in {text}");
        }

        let server = Server::start(&folder).await;
        let mut response = server.send(Method::GET, &protocol.join, None).await;
        response.until("\"Who\"").await;
        server.send(Method::POST, "/open", None).await.end().await;
        let (text, is_complete) = response.end().await;
        assert!(is_complete && text.contains("\"le.\"") && !text.contains("Half"), "{name}: {text}");
        assert!(text.contains(protocol.finish), "{name}: {text}");
        let messages =
            server.send(Method::GET, &format!("/api/chat/{id}/messages"), None).await.end().await.0;
        for part in ["\"Who\"", "\"le.\""] {
            assert!(messages.contains(part) && !messages.contains("Half"), "{name}: {messages}");
        }
        server.kill().await;
        fs::remove_dir_all(folder).unwrap();
    }
}
