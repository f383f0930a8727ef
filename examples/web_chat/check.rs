//! A minimal HTTP client with which `--check` tests the server. It is written by hand, because a few requests do not
//! need an HTTP library.

use std::{error::Error, net::SocketAddr, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Creates a conversation, sends a prompt, and waits for the answer on the event stream.
pub async fn answer_one_prompt(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    timeout(Duration::from_secs(50), converse(address)).await?
}

async fn converse(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let page = exchange(address, "GET", "/", None).await?;
    if !page.contains("<title>Chat</title>") {
        return Err("the page is missing".into());
    }
    let created: Value =
        serde_json::from_str(&exchange(address, "POST", "/agent/conversations", Some(json!({}))).await?)?;
    let id = created["id"].as_str().ok_or("the conversation has no id")?;
    let mut events = send(address, "GET", &format!("/agent/conversations/{id}/events"), None).await?;
    let prompt = json!({ "type": "run", "prompt": { "content": [{ "type": "text", "text": "Hello" }] } });
    exchange(address, "POST", &format!("/agent/conversations/{id}/commands"), Some(prompt)).await?;
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let length = events.read(&mut piece).await?;
        if length == 0 {
            return Err("the stream ended before the answer".into());
        }
        received.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&received);
        if text.contains(r#""type":"error""#) {
            return Err(format!("the model has failed: {text}").into());
        }
        if text.contains(r#""continues":false"#) {
            return Ok(());
        }
    }
}

/// Sends a request and returns the body of the response.
async fn exchange(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Result<String, Box<dyn Error>> {
    let mut stream = send(address, method, path, body).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("the response has no body")?;
    if !head.split(' ').nth(1).is_some_and(|status| status.starts_with('2')) {
        return Err(format!("{method} {path}: {response}").into());
    }
    Ok(body.to_owned())
}

async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<Value>,
) -> Result<TcpStream, Box<dyn Error>> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let length = body.len();
    let mut stream = TcpStream::connect(address).await?;
    // HTTP 1.0 is used, because its responses are not split into chunks.
    let head = format!(
        "{method} {path} HTTP/1.0\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).await?;
    Ok(stream)
}
