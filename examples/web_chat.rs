//! A chat page in the browser, over a manager with any number of conversations.
//!
//! ```sh
//! cargo run --example web_chat --features web
//! cargo run --example web_chat --features web -- --model anthropic:claude-sonnet-5 --store conversations
//! cargo run --example web_chat --features web -- --page dist  # serves a front end that you have built
//! cargo run --example web_chat --features web -- --check     # starts, answers one prompt, and stops
//! ```
//!
//! A turn survives a crash of the server: the next start continues it, and an approval can be decided then. The page
//! connects again by itself.
//!
//! The router of `omni_agent::web` offers the conversations, and `web_chat/page` is the page: plain HTML, CSS and
//! JavaScript modules without a build step. Its `client.js` can be copied into other front ends. The routes of the AI SDK
//! are at `/api` and those of AG-UI at `/ag-ui`: `examples/front_ends` has a page for each of three libraries of React.
//! The server listens on loopback only, and everybody who can reach it is the same user. A real application identifies
//! its users in `Access::principal`.
//!
//! The module `support` selects the model. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "web_chat/check.rs"]
mod check;
#[path = "web_chat/page.rs"]
mod page;
#[path = "support/support.rs"]
mod support;
#[path = "web_chat/tools.rs"]
mod tools;

use std::{
    error::Error, future::IntoFuture, path::Path, pin::pin, process::ExitCode, sync::Arc, time::Duration,
};

use axum::{Router, http::request::Parts};
use omni_agent::{
    access::{Permissions, Principal, StartRequest},
    agent::{AgentBuilder, Durable},
    manager::{Manager, OpenOptions, Shutdown},
    provider::{Model, Options},
    store::{ConversationId, FileSystemStore, Labels, MemoryStore, Store},
    web::{Access, Challenge, Web},
};
use support::{Flag, Folder, STORE, explain};
use tokio::{net::TcpListener, time::timeout};

const ABOUT: &str = "A chat page in the browser.";
const PORT: Flag = Flag { name: "--port", value: "PORT", help: "the port on loopback; 8484 by default" };
const CHECK: Flag = Flag { name: "--check", value: "", help: "answer one prompt and stop, as a test" };
const PAGE: Flag = Flag { name: "--page", value: "DIR", help: "serve the files of this folder as the page" };
const FLAGS: &[Flag] = &[PORT, STORE, PAGE, CHECK];

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The only user. Everybody who can reach the server on loopback is this user.
struct OneUser(Principal);

impl Permissions for OneUser {}

#[omni_agent::async_trait]
impl Access for OneUser {
    async fn principal(&self, _: &Parts) -> Result<Principal, Challenge> {
        Ok(self.0.clone())
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model_with(ABOUT, FLAGS).await?;
    let is_check = picked.value(&CHECK).is_some();
    let store: Arc<dyn Store> = match picked.value(&STORE) {
        Some(folder) => {
            let folder = Folder::given_or_of_the_user(Some(folder))?;
            // Only an exclusive store of files keeps turns in flight.
            Arc::new(FileSystemStore::builder(folder.path()).exclusive().open().await?)
        }
        None => Arc::new(MemoryStore::new()),
    };
    let port = match picked.value(&PORT) {
        Some(port) => port.parse()?,
        None if is_check => 0,
        None => 8484,
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(|error| {
        format!("the port {port} of this machine can't be used: {error}; choose another one with --port")
    })?;
    let address = listener.local_addr()?;

    let (model, options) = (picked.model.clone(), picked.options.clone());
    let manager = Manager::builder(store)
        .registry(support::models())
        .starter({
            let model = model.clone();
            move |_| Some(durable(tools::agent(&model)))
        })
        .build();
    let models = offered(&picked.model);
    let names: Vec<String> = models.iter().map(|model| model.name().to_owned()).collect();
    let user = std::env::var("USER").unwrap_or_else(|_| "user".to_owned());
    let access = OneUser(Principal::new(user, Labels::new([("user", "local")])?)?);
    let agents = move |_: &Principal, request: &StartRequest| {
        let agent = tools::agent(&model);
        let is_new = request.conversation.is_none();
        Ok(durable(if is_new { with_first_settings(agent, &options, request) } else { agent }))
    };
    let web = Web::builder(manager.clone(), access, agents)
        .models(names)
        // Accept only these hosts. Otherwise, another site could reach the server by a name that it has redirected to
        // loopback (DNS rebinding).
        .hosts([address.to_string(), format!("localhost:{}", address.port())])
        // The front ends of the AI SDK and of AG-UI choose the ids of their chats, and their Stop buttons only leave.
        .client_ids(|_, id| ConversationId::new(format!("chat-{id}")).ok())
        .interrupt_when_left(Duration::from_secs(5))
        .build();
    let page = match picked.value(&PAGE) {
        Some(folder) => page::built(Path::new(&folder))?,
        None => page::router(&models),
    };
    let app = Router::new()
        .nest("/agent", web.router())
        .nest("/api", web.ai_sdk())
        .nest("/ag-ui", web.ag_ui())
        .merge(page);

    // The turns that the last process has left continue without a reader.
    manager.recover().await?;

    println!("http://{address}/");
    if picked.value(&STORE).is_none() && !is_check {
        eprintln!(
            "{}",
            support::dim("[conversations are kept in memory; --store DIR keeps them in a folder]")
        );
    }
    let stop = {
        let (web, manager) = (web.clone(), manager.clone());
        async move {
            if is_check {
                check::answer_one_prompt(address).await.map_err(|error| error.to_string())?;
            } else {
                tokio::signal::ctrl_c().await.map_err(|error| error.to_string())?;
            }
            // Streams end first, because the server waits for them.
            web.drain();
            // The next process continues the turns in flight.
            let limits = Shutdown::within(Duration::from_secs(10)).with_grace(Duration::from_secs(2));
            manager.hand_over(limits).await.map_err(|error| error.to_string())
        }
    };
    let (stopped, mut outcome) = tokio::sync::oneshot::channel();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move {
        let _ = stopped.send(stop.await);
    });
    // A client that has stopped reading would keep its connection, and the server, open.
    let mut serving = pin!(serving.into_future());
    let outcome = tokio::select! {
        served = &mut serving => {
            served?;
            outcome.await
        }
        outcome = &mut outcome => {
            let _ = timeout(Duration::from_secs(5), serving).await;
            outcome
        }
    };
    outcome??;
    if is_check {
        println!("the check has succeeded");
    }
    Ok(())
}

/// Sets the parts with which a new conversation is stored. For a stored conversation, they would replace the stored
/// values.
fn with_first_settings(agent: AgentBuilder, options: &Options, request: &StartRequest) -> AgentBuilder {
    let agent = agent.options(options.clone()).system("You are a helpful assistant. Answer in Markdown.");
    match &request.model {
        Some(name) => agent.model(name.as_str()),
        None => agent,
    }
}

/// Returns the options of a conversation whose turns survive a crash.
fn durable(agent: AgentBuilder) -> OpenOptions {
    OpenOptions::new(agent).durable(Durable::InFlight)
}

/// Returns the models that the page offers: the selected model, and others whose API key is set or that need no key.
fn offered(selected: &Model) -> Vec<Model> {
    let others = ["anthropic:claude-sonnet-5", "anthropic:claude-opus-5", "openai:gpt-5.2", "demo:parrot"];
    let others = others.into_iter().filter_map(|name| support::model_named(name).ok());
    let mut models = vec![selected.clone()];
    models.extend(
        others.filter(|model| model.name() != selected.name() && support::missing_key(model).is_none()),
    );
    models
}
