//! A chat in the terminal: streaming, a tool that asks for approval, branches, and storage on request.
//!
//! ```sh
//! cargo run --example chat
//! cargo run --example chat -- --session mountains     # run it again to continue the conversation
//! cargo run --example chat -- --trace                 # shows the spans of each run
//! cargo run --example chat -- --model anthropic:claude-sonnet-5
//! cargo run --example chat -- --model local:some-model --base-url http://localhost:8000
//! cargo run --example chat --features mcp -- --mcp "npx -y @modelcontextprotocol/server-filesystem ." --mcp uvx-server
//! echo 'What can you do?' | cargo run --example chat
//! ```
//!
//! The chat itself is `omni_agent::terminal::Chat`, which needs the feature `terminal`. This example has its options: the
//! model, the store, three commands, MCP servers and a trace. `examples/first/terminal.rs` is a chat without options.
//!
//! The module `support` selects the model. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "chat/conversation.rs"]
mod conversation;
#[path = "support/support.rs"]
mod support;
#[path = "chat/tool.rs"]
mod tool;
#[path = "chat/trace.rs"]
mod trace;

use std::{error::Error, process::ExitCode};

use omni_agent::terminal::Chat;
use support::explain;
use trace::{TRACE, Trace};

const ABOUT: &str = "A chat in the terminal: streaming, a tool that asks for approval, and branches.";

#[tokio::main]
async fn main() -> ExitCode {
    match chat().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn chat() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model_with(ABOUT, conversation::FLAGS).await?;
    let trace = picked.value(&TRACE).map(|_| Trace::start());
    let words = picked.words.join(" ");
    let conversation = conversation::open(picked).await?;
    let (shelf, session) = (conversation.shelf(), conversation.session.clone());
    let mut chat = Chat::new(&session)
        .command("/fork [NUMBER]", "copies the messages up to that one into a new conversation", {
            let shelf = shelf.clone();
            move |number| shelf.clone().fork(number)
        })
        .command("/sessions", "lists the stored conversations", move |_| shelf.clone().list())
        .command("/model [NAME]", "shows or switches the model, for example to openai:gpt-5.2", {
            let session = session.clone();
            move |name| conversation::set_model(session.clone(), name)
        });
    if !words.is_empty() {
        chat = chat.first(words);
    }
    if let Some(trace) = trace.clone() {
        chat = chat.after_run(move || trace.take());
    }
    let ended = chat.run().await;
    drop(session);
    // The conversation is saved even if the chat has ended with an error.
    conversation::close(conversation).await?;
    // The session holds the span of a run until it is saved, which may be later than the event of its last turn.
    if let Some(trace) = trace {
        let rest = trace.take();
        rest.lines().for_each(conversation::show);
    }
    Ok(ended?)
}
