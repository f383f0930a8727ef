//! A model service on a local socket. It runs in a separate process, so that only the client's work is measured.
//!
//! The server parses only the necessary parts of a request, and answers with bytes that were prepared in advance.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};

use crate::formats::{Format, brings_result};

/// The environment variable that is set in the process of the server.
const ROLE: &str = "OMNI_AGENT_BENCH_SERVER";

/// A function that gets the head and the body of a request, and returns the bytes of the answer.
pub(crate) type Answer = dyn Fn(&str, &[u8]) -> Arc<[u8]> + Send + Sync;

/// How answers are sent. By default, each answer is sent as a whole.
#[derive(Clone, Default)]
pub(crate) struct Pace {
    /// If this is set, answers are sent in pieces of this many bytes. A piece may be cut at any byte, and this pause
    /// follows each piece.
    pub(crate) pieces: Option<(usize, Duration)>,
    /// After its first piece, each answer waits until this many answers have sent their first piece.
    pub(crate) together: usize,
}

/// The process of the server. It is killed when this value is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the server in another process. In that process, this function serves requests and never returns.
pub(crate) fn start(answer: impl FnOnce() -> Box<Answer>) -> Server {
    start_at(&Pace::default(), answer)
}

/// Like [`start`], but sends the answers at this pace.
pub(crate) fn start_at(pace: &Pace, answer: impl FnOnce() -> Box<Answer>) -> Server {
    if std::env::var_os(ROLE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("the runtime starts").block_on(serve(answer().into(), pace));
        std::process::exit(0);
    }
    let program = std::env::current_exe().expect("the benchmark has a path");
    let mut process = Command::new(program)
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the benchmark can start itself");
    let mut line = String::new();
    let out = process.stdout.take().expect("its output is piped");
    BufReader::new(out).read_line(&mut line).expect("the server prints its address");
    Server { process, address: line.trim().parse().expect("the server prints its address") }
}

async fn serve(answer: Arc<Answer>, pace: &Pace) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    println!("{}", listener.local_addr().expect("it is bound"));
    std::io::stdout().flush().expect("the parent reads the output");
    // When the process that started the server ends, the server's standard input is closed, and the server ends too.
    tokio::task::spawn_blocking(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    let all = Arc::new(Barrier::new(pace.together.max(1)));
    loop {
        let (connection, _) = listener.accept().await.expect("connections can be taken");
        let (answer, pace, all) = (Arc::clone(&answer), pace.clone(), Arc::clone(&all));
        tokio::spawn(async move {
            let _ = converse(connection, &*answer, &pace, &all).await;
        });
    }
}

/// Answers the requests of one connection.
async fn converse(
    mut connection: TcpStream,
    answer: &Answer,
    pace: &Pace,
    all: &Barrier,
) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut read: Vec<u8> = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if connection.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        while read.len() < head + length {
            if connection.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let bytes = answer(&text, &read[head..head + length]);
        match pace.pieces {
            None => connection.write_all(&bytes).await?,
            Some((size, pause)) => {
                for (index, piece) in bytes.chunks(size).enumerate() {
                    connection.write_all(piece).await?;
                    if index == 0 {
                        all.wait().await;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
        read.drain(..head + length);
    }
}

/// Returns a whole answer: the head, and the events. The events are in chunks of `size` bytes, or in one chunk per
/// event.
pub(crate) fn streamed(format: Format, events: &[String], size: Option<usize>) -> Arc<[u8]> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        format.content_type()
    );
    let mut bytes = head.into_bytes();
    let mut add = |chunk: &[u8]| {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    };
    match size {
        Some(size) => events.concat().as_bytes().chunks(size).for_each(&mut add),
        None => events.iter().for_each(|event| add(event.as_bytes())),
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes.into()
}

/// The final text of the answers of [`runs`].
pub(crate) const ANSWER: &str = "It is 18 degrees in Paris.";

/// Returns a function that answers requests in the format that the request's path names. It answers a question with a
/// call of the tool `weather`, and the result of this call with a text.
pub(crate) fn runs() -> Box<Answer> {
    let pieces: Vec<&str> = ANSWER.split_inclusive(' ').collect();
    let input = [r#"{"ci"#, r#"ty": "#, r#""Paris"}"#];
    let answers = Format::ALL.map(|format| {
        let path = format!("/{}/", format.slug());
        let call = streamed(format, &format.tool_use("weather", &input), None);
        (path, [call, streamed(format, &format.text(&pieces), None)])
    });
    Box::new(move |head, body| {
        let found = answers.iter().find(|(path, _)| head.contains(path));
        let (_, answers) = found.expect("the path names a known format");
        Arc::clone(&answers[usize::from(brings_result(body))])
    })
}
