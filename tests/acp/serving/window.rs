//! A window: a client in this process that writes and reads plain JSON. Several windows can use one manager.

use std::{collections::VecDeque, sync::Arc};

use omni_agent::{manager::Manager, serve::acp::AcpAgent};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines, duplex, split},
    process::Child,
    task::JoinHandle,
};

use super::host::served;
use crate::support::soon;

pub struct Window {
    pub input: Box<dyn AsyncWrite + Send + Unpin>,
    output: Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>>,
    /// Messages that were read while another one was expected.
    unread: VecDeque<Value>,
    last: u64,
    /// The number of chunks of the agent's text.
    pub chunks: usize,
    pub served: JoinHandle<Result<(), omni_agent::Error>>,
}

impl Window {
    /// Opens a window of a manager, and announces its capabilities.
    pub async fn open(manager: &Manager) -> Self {
        Self::of(served(manager.clone())).await
    }

    pub async fn of(agent: AcpAgent) -> Self {
        Self::named(agent, "window").await
    }

    /// Opens a window of a client with this name.
    pub async fn named(agent: AcpAgent, name: &str) -> Self {
        let mut window = Self::connected(agent, 64 * 1024);
        window.initialize(name).await;
        window
    }

    /// Opens a window of an agent that is a process. The output of the process must be a pipe.
    pub async fn of_process(mut process: Child) -> Self {
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let served = tokio::spawn(async move {
            process.wait().await.unwrap();
            Ok(())
        });
        let mut window = Self::on(input, output, served);
        window.initialize("window").await;
        window
    }

    pub async fn initialize(&mut self, name: &str) {
        let capabilities = json!({ "session": { "notices": {} } });
        let client = json!({ "name": name, "version": "1" });
        let asked = json!({ "protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": client });
        let initialized = self.request("initialize", asked).await.unwrap();
        assert_eq!(initialized["protocolVersion"], 1);
    }

    /// Connects to an agent, with a buffer of this many bytes in each direction.
    pub fn connected(agent: AcpAgent, buffer: usize) -> Self {
        let (ours, theirs) = duplex(buffer);
        let (output, input) = split(ours);
        let agent = Arc::new(agent);
        let served = tokio::spawn(async move {
            let (input, output) = split(theirs);
            agent.serve(input, output).await
        });
        Self::on(input, output, served)
    }

    fn on(
        input: impl AsyncWrite + Send + Unpin + 'static,
        output: impl AsyncRead + Send + Unpin + 'static,
        served: JoinHandle<Result<(), omni_agent::Error>>,
    ) -> Self {
        let output: Box<dyn AsyncRead + Send + Unpin> = Box::new(output);
        let output = BufReader::new(output).lines();
        Self { input: Box::new(input), output, unread: VecDeque::new(), last: 0, chunks: 0, served }
    }

    pub async fn write(&mut self, line: &str) {
        soon(self.input.write_all(format!("{line}\n").as_bytes())).await.unwrap();
    }

    pub async fn send(&mut self, message: Value) {
        self.write(&message.to_string()).await;
    }

    /// Sends a request, and returns its id.
    pub async fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let id = self.last;
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        id
    }

    async fn read(&mut self) -> Value {
        let line = soon(self.output.next_line()).await.unwrap().expect("the agent is connected");
        self.chunks += usize::from(line.contains("agent_message_chunk"));
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line}"))
    }

    /// Returns the next message that fits. Messages before it are kept for later.
    pub async fn next(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.unread.iter().position(&fits) {
            return self.unread.remove(at).unwrap();
        }
        loop {
            let message = self.read().await;
            if fits(&message) {
                return message;
            }
            self.unread.push_back(message);
        }
    }

    pub async fn answer(&mut self, id: u64) -> Result<Value, Value> {
        let mut message = self.next(|message| message["id"] == id && message.get("method").is_none()).await;
        match message.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(message["result"].take()),
        }
    }

    pub async fn request(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.ask(method, params).await;
        self.answer(id).await
    }

    /// Returns the next update of this kind.
    pub async fn update(&mut self, kind: &str) -> Value {
        let mut message = self.next(|message| message["params"]["update"]["sessionUpdate"] == kind).await;
        message["params"]["update"].take()
    }

    /// Returns the texts of all unread updates of this kind, joined, and removes these updates. Only updates that were
    /// already read from the connection count.
    pub fn texts(&mut self, kind: &str) -> String {
        let is_one = |message: &&Value| message["params"]["update"]["sessionUpdate"] == kind;
        let text =
            |message: &Value| message["params"]["update"]["content"]["text"].as_str().unwrap().to_owned();
        let texts = self.unread.iter().filter(is_one).map(text).collect();
        self.unread.retain(|message| !is_one(&message));
        texts
    }

    /// Drops the messages that were read and not used.
    pub fn forget(&mut self) {
        self.unread.clear();
    }

    pub async fn create(&mut self) -> String {
        let created = self.request("session/new", json!({ "cwd": "/work", "mcpServers": [] })).await.unwrap();
        created["sessionId"].as_str().unwrap().to_owned()
    }

    /// Sends a prompt, and returns the id of the request.
    pub async fn prompt(&mut self, session: &str, text: &str) -> u64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.ask("session/prompt", json!({ "sessionId": session, "prompt": prompt })).await
    }

    /// Sends a prompt, waits for the end of its run, and returns the agent's text.
    pub async fn say(&mut self, session: &str, text: &str) -> String {
        let id = self.prompt(session, text).await;
        let ended = self.answer(id).await.unwrap();
        assert_eq!(ended["stopReason"], "end_turn");
        self.texts("agent_message_chunk")
    }

    pub async fn cancel(&mut self, session: &str) {
        let params = json!({ "sessionId": session });
        self.send(json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params })).await;
    }

    /// Returns the next request of the agent for permission.
    pub async fn question(&mut self) -> Value {
        self.next(|message| message["method"] == "session/request_permission").await
    }

    pub async fn decide(&mut self, question: &Value, option: &str) {
        let outcome = json!({ "outcome": { "outcome": "selected", "optionId": option } });
        self.send(json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome })).await;
    }

    pub async fn withdrawal(&mut self, question: &Value) {
        let id = question["id"].clone();
        let fits =
            |message: &Value| message["method"] == "$/cancel_request" && message["params"]["requestId"] == id;
        self.next(fits).await;
    }

    /// Closes the connection, and returns the result of serving it.
    pub async fn close(self) -> Result<(), omni_agent::Error> {
        drop(self.input);
        drop(self.output);
        soon(self.served).await.unwrap()
    }
}
