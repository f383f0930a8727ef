//! Opens the conversation, and closes it. Reports messages that could not be saved.

use std::{error::Error, sync::Arc, time::Duration};

use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder},
    session::Session,
    store::{ConversationId, FileSystemStore, MemoryStore, Store},
};

use super::{tool::run_command, trace::TRACE};
use crate::support::{self, Flag, Folder, Picked, Printer, STORE, first_words, total_line};

const SESSION: Flag =
    Flag { name: "--session", value: "ID", help: "continue this stored conversation, or create it" };

#[cfg(feature = "mcp")]
const MCP: Flag =
    Flag { name: "--mcp", value: "COMMAND", help: "use the tools of this MCP server; may be repeated" };

#[cfg(feature = "mcp")]
pub const FLAGS: &[Flag] = &[SESSION, STORE, TRACE, MCP];
#[cfg(not(feature = "mcp"))]
pub const FLAGS: &[Flag] = &[SESSION, STORE, TRACE];

/// A conversation and its folder.
pub struct Conversation {
    pub session: Session,
    pub store: Arc<dyn Store>,
    /// The names of the MCP servers.
    servers: Vec<String>,
    /// The folder, unless it is temporary.
    folder: Option<Folder>,
}

impl Conversation {
    /// Returns whether the conversation has messages that will be lost because it is not stored in a folder.
    pub async fn is_lost_at_the_end(&self) -> Result<bool, omni_agent::Error> {
        Ok(self.folder.is_none() && !self.session.tree().await?.is_empty())
    }

    /// Returns the server that offers a tool, unless the tool belongs to the chat.
    fn server_of(&self, tool: &str) -> Option<&str> {
        let (server, _) = tool.split_once("__")?;
        self.servers.iter().map(String::as_str).find(|name| *name == server)
    }

    /// Shows the tools that the model can use now, by server.
    pub async fn show_tools(&self, printer: &mut Printer) -> Result<(), omni_agent::Error> {
        let state = self.session.state().await?;
        let own = std::iter::once(None);
        for server in own.chain(self.servers.iter().map(|name| Some(name.as_str()))) {
            printer.line(server.unwrap_or("this chat"));
            for tool in state.config().tools.iter().filter(|tool| self.server_of(tool.name()) == server) {
                printer.note(&format!("  {}: {}", tool.name(), first_words(&tool.description(), 80)));
            }
        }
        Ok(())
    }
}

/// Opens the conversation that the command line names. If it does not exist, creates it. Without a name, creates a new
/// conversation.
pub async fn open(picked: Picked, printer: &mut Printer) -> Result<Conversation, Box<dyn Error>> {
    #[cfg(feature = "mcp")]
    let commands: Vec<String> = picked.values(&MCP).map(str::to_owned).collect();
    let (id, place) = (picked.value(&SESSION), picked.value(&STORE));
    let folder = match (id, place) {
        (None, None) => None,
        _ => Some(Folder::given_or_of_the_user(place)?),
    };
    // Without a folder, the conversation is kept in memory. All commands still work, but nothing is stored.
    let store: Arc<dyn Store> = match &folder {
        Some(folder) => Arc::new(FileSystemStore::open(folder.path()).await?),
        None => Arc::new(MemoryStore::new()),
    };
    let builder = || Session::builder(Arc::clone(&store));
    let session = match id.map(ConversationId::new).transpose()? {
        None => builder().agent(fresh(&picked)).create().await?,
        Some(id) => match builder().agent(common(&picked)).open(id.clone()).await {
            Ok(session) => {
                greet(&session, picked, printer).await?;
                session
            }
            Err(error) if error.is_not_found() => {
                match builder().agent(fresh(&picked)).create_with_id(id.clone()).await {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        return Err(
                            format!("another chat has just begun {id}; start again to join it").into()
                        );
                    }
                    created => created?,
                }
            }
            Err(error) => return Err(error.into()),
        },
    };
    #[cfg_attr(not(feature = "mcp"), expect(unused_mut, reason = "only MCP servers have names"))]
    let mut servers = Vec::new();
    #[cfg(feature = "mcp")]
    for command in commands {
        let name = use_server(&session, &command, &servers, printer).await?;
        servers.push(name);
    }
    Ok(Conversation { session, store, servers, folder })
}

/// Starts an MCP server, and adds its tools to the session. Each use of them needs an approval. Returns the server's
/// name, which differs from the names of `others`.
#[cfg(feature = "mcp")]
async fn use_server(
    session: &Session,
    command: &str,
    others: &[String],
    printer: &mut Printer,
) -> Result<String, Box<dyn Error>> {
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("`--mcp` needs a command")?;
    let stem = std::path::Path::new(program).file_stem().unwrap_or_default().to_string_lossy();
    let stem: String =
        stem.chars().filter(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
    let mut names = std::iter::once(stem.clone()).chain((2..).map(|number| format!("{stem}{number}")));
    let name = names.find(|name| !others.contains(name)).expect("there are more names than servers");
    let client = omni_agent::mcp::McpClient::stdio(program).args(words).name(&name).approve_all();
    let client = client.connect().await?;
    let found = client.tools().await?;
    let names = found.tools.iter().map(|tool| {
        // This hint comes from the server and may be wrong, so every use needs an approval nevertheless.
        let reads = found.hints.get(tool.name()).is_some_and(|hints| hints.read_only == Some(true));
        format!("{}{}", tool.name(), if reads { " (only reads)" } else { "" })
    });
    let names: Vec<String> = names.collect();
    printer.note(&format!("[{}: {}]", client.name(), names.join(", ")));
    for tool in &found.skipped {
        printer.note(&format!("[{}: {} can't be used: {}]", client.name(), tool.name, tool.reason));
    }
    let tools = found.tools;
    session
        .configure(move |config| {
            config.tools = std::mem::take(&mut config.tools).extended(tools)?;
            Ok(())
        })
        .await?;
    client.follow(session);
    Ok(name)
}

/// Returns an agent builder with the parts of an agent that are not stored with a conversation.
fn common(picked: &Picked) -> AgentBuilder {
    Agent::builder().model(picked.model.clone()).registry(support::models()).tool(run_command()).max_steps(20)
}

/// Returns an agent builder that also has the parts that are stored. It is only for new conversations, because in a
/// stored conversation these parts would replace the stored ones.
fn fresh(picked: &Picked) -> AgentBuilder {
    common(picked)
        .options(picked.options.clone())
        .system("You are a helpful assistant in a terminal. Be brief.")
}

/// Shows the title, the model and the last messages of a stored conversation.
async fn greet(session: &Session, picked: Picked, printer: &mut Printer) -> Result<(), omni_agent::Error> {
    if picked.is_named {
        // The stored model is kept, unless the command line names another model.
        session
            .configure(move |config| {
                (config.model, config.settings.options) = (picked.model, picked.options);
                Ok(())
            })
            .await?;
    }
    let (snapshot, state) = (session.snapshot().await?, session.state().await?);
    let title = snapshot.title.as_deref().unwrap_or("untitled");
    printer.note(&format!("[{title}: {} messages, with {}]", snapshot.tree.len(), state.config().model));
    if let Some(total) = total_line(&snapshot.used) {
        printer.note(&total);
    }
    show_end(session, printer).await
}

/// Shows the last messages of the path, for example after a switch to another branch.
pub async fn show_end(session: &Session, printer: &mut Printer) -> Result<(), omni_agent::Error> {
    let tree = session.tree().await?;
    // Messages without text, such as tool results, are not shown.
    let last: Vec<_> = tree.iter().rev().filter(|node| !node.message().text().is_empty()).take(2).collect();
    for node in last.into_iter().rev() {
        let message = node.message();
        printer.note(&format!("{} {}: {}", node.id(), message.role, first_words(&message.text(), 200)));
    }
    Ok(())
}

/// Ends the session. Shows the messages that could not be saved, and how to open the conversation again.
pub async fn close(conversation: Conversation, printer: &mut Printer) -> Result<(), Box<dyn Error>> {
    let Conversation { session, folder, .. } = conversation;
    // Interrupts an active run and saves unsaved turns within this time.
    let stopped = session.stop(Duration::from_secs(5)).await;
    // The session may have ended earlier, for example because another process has taken over the conversation.
    let end = session.ended().await;
    let last = end.snapshot.ok_or(end.reason.clone())?;
    for node in last.unsaved.iter().filter_map(|id| last.tree.node(*id)) {
        printer.line(&format!("not saved: {}: {}", node.message().role, node.message().text()));
    }
    if let Some(total) = total_line(&last.used) {
        printer.note(&total);
    }
    let id = session.id();
    // A prompt that failed leaves no message, but it is stored too.
    let is_untouched = last.tree.is_empty() && last.title.is_none() && last.agent.last_run.is_none();
    match folder {
        // An untouched conversation was never stored.
        Some(_) if is_untouched => {}
        Some(folder) => {
            let folder = folder.path().display();
            printer.note(&format!("[stored in {folder}; to continue: --session {id} --store {folder}]"));
        }
        None => printer.note("[not stored; to store a conversation, name it: --session ID]"),
    }
    stopped?;
    if last.unsaved.is_empty() { Ok(()) } else { Err(end.reason.into()) }
}
