//! A chat with a session in the terminal.
//!
//! ```no_run
//! use omni_agent::{Agent, Session, store::MemoryStore, terminal, tool};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let weather = tool!("weather", "Tells the weather.", async |city: String| Ok(format!("Sun in {city}.")));
//!     let agent = Agent::builder().model("anthropic:claude-sonnet-4-6").tool(weather);
//!     Ok(terminal::chat(&Session::builder(MemoryStore::new()).agent(agent).create().await?).await?)
//! }
//! ```
//!
//! The chat streams the answers, shows tool calls, and asks for decisions on tool uses and for answers to the questions of
//! tools. The line `/help` lists the commands: other versions of an answer, branches, compaction, costs, files that the model
//! no longer gets, and more. [`Chat::command`] adds commands of the application, and has an example with forks.
//!
//! **Lines.** A line is a prompt. While the agent works, the prompt is queued for the next turn. While a tool use waits,
//! the line is the decision about it, and lines that begin with `/` are commands as always. A decision that somebody else
//! makes in the meantime withdraws the question.
//!
//! **Ctrl-C** interrupts a run and keeps the answer so far. While nothing runs, it clears the line, and a second press ends
//! the chat.
//!
//! **The end.** `/quit` ends the chat at once, and leaves a run in flight and its pauses to the session. After the end of
//! the input (Ctrl-D), the chat waits for the run in flight and rejects the tool uses that wait for a decision. If nobody
//! reads the output any more, the chat ends without an error.
//!
//! **Terminals.** If the standard input and output are a terminal, lines are edited, with a history. While an answer
//! streams, a line is typed without the editor, and appears in the middle of the answer. If somebody else starts a run or
//! decides while a line is edited, the output replaces the line on the screen, and the next key shows the line again. If
//! the input is not a terminal, a line is read when the answer to the previous one is complete. The control characters in
//! the texts of models and tools are replaced, so that these texts cannot control the terminal.

mod commands;
mod editor;
mod markdown;
mod printer;
mod question;
mod talk;

use std::{
    env,
    error::Error as StdError,
    io::{self, IsTerminal, Write},
    sync::Arc,
    time::Duration,
};

use futures_core::Stream;
use futures_util::future::BoxFuture;

use self::{editor::Entries, printer::EventPrinter, talk::ChatInProgress};
use crate::{
    run::{Error, Prompt},
    session::Session,
};

/// Runs a chat on the standard streams until the user ends it: see the [module](self) and [`Chat::run`].
///
/// # Errors
///
/// Returns the errors of [`Chat::run`].
///
/// # Cancel safety
///
/// As for [`Chat::run`].
pub async fn chat(session: &Session) -> Result<(), Error> {
    Chat::new(session).run().await
}

/// An entry of the person at the keyboard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entry {
    /// A line, without the line break.
    Line(String),
    /// A press of Ctrl-C.
    Interrupt,
}

/// How the answers look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Style {
    /// Text as it is.
    Plain,
    /// Markdown is rendered with ANSI styles, and remarks are grey.
    Ansi,
}

type Output = Result<String, Box<dyn StdError + Send + Sync>>;
type Handler = Box<dyn FnMut(String) -> BoxFuture<'static, Output> + Send>;

/// A command of the application.
struct OwnCommand {
    usage: String,
    help: String,
    run: Handler,
}

/// A chat with options.
#[must_use = "a chat does nothing until `run` is called"]
pub struct Chat {
    session: Session,
    input: Option<Entries>,
    output: Option<Box<dyn Write + Send>>,
    style: Option<Style>,
    is_piped: bool,
    user: Arc<str>,
    first: Option<Prompt>,
    commands: Vec<OwnCommand>,
    after_run: Option<Box<dyn FnMut() -> String + Send>>,
}

impl Chat {
    /// Returns a chat with a session on the standard streams.
    pub fn new(session: &Session) -> Self {
        let user = env::var("USER").or_else(|_| env::var("USERNAME")).unwrap_or_else(|_| "user".to_owned());
        Self {
            session: session.clone(),
            input: None,
            output: None,
            style: None,
            is_piped: false,
            user: user.into(),
            first: None,
            commands: Vec::new(),
            after_run: None,
        }
    }

    /// Sets the input. The standard input and the signals of the process are then not read. The entries count as those of
    /// a person, unless [`piped`](Self::piped) says otherwise.
    pub fn input(mut self, input: impl Stream<Item = Entry> + Send + 'static) -> Self {
        self.input = Some(Box::pin(input));
        self
    }

    /// Sets the output, which blocks the chat while it is written. It is plain text, unless a [`style`](Self::style) is
    /// set.
    pub fn output(mut self, output: impl Write + Send + 'static) -> Self {
        self.output = Some(Box::new(output));
        self
    }

    /// Sets the style. By default, the output is plain text, except on a terminal if the variable `NO_COLOR` is not set.
    pub fn style(mut self, style: Style) -> Self {
        self.style = Some(style);
        self
    }

    /// Treats the input as a pipe: a line is read when the answer to the previous one is complete and is shown before its
    /// answer, and the failure of the last run is the error of the chat. This is the default for a standard input that is
    /// not a terminal.
    pub fn piped(mut self) -> Self {
        self.is_piped = true;
        self
    }

    /// Sets the name of the person, under which decisions are made. The default is the name of the system's user.
    pub fn user(mut self, name: impl Into<Arc<str>>) -> Self {
        self.user = name.into();
        self
    }

    /// Sends a prompt at the beginning.
    pub fn first(mut self, prompt: impl Into<Prompt>) -> Self {
        self.first = Some(prompt.into());
        self
    }

    /// Adds a command, such as `/model [NAME]`. The first word of the `usage` is its name. It replaces a command of the
    /// chat with the same name. `/help` shows the usage and the `help`. The command gets the text after its name, and
    /// returns the text that is shown. The chat waits for it.
    ///
    /// A fork needs a manager and the labels of the new conversation, so it is a command of the application:
    ///
    /// ```
    /// use omni_agent::{Error, Manager, Session, store::Labels, terminal::Chat};
    ///
    /// async fn forked(manager: Manager, session: Session) -> Result<String, Error> {
    ///     let Some(end) = session.tree().await?.head() else { return Ok("[no messages yet]".to_owned()) };
    ///     let id = manager.fork(session.id(), end, Labels::default()).await?;
    ///     Ok(format!("[copied to the conversation {id}]"))
    /// }
    ///
    /// fn chat(manager: Manager, session: Session) -> Chat {
    ///     Chat::new(&session).command("/fork", "copies this branch into a new conversation", move |_| {
    ///         forked(manager.clone(), session.clone())
    ///     })
    /// }
    /// ```
    pub fn command<F, R, E>(mut self, usage: impl Into<String>, help: impl Into<String>, mut run: F) -> Self
    where
        F: FnMut(String) -> R + Send + 'static,
        R: Future<Output = Result<String, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let run: Handler = Box::new(move |rest| {
            let output = run(rest);
            Box::pin(async { output.await.map_err(Into::into) })
        });
        self.commands.push(OwnCommand { usage: usage.into(), help: help.into(), run });
        self
    }

    /// Shows the text that `text` returns after each run, for example its costs. An empty text is not shown.
    pub fn after_run(mut self, text: impl FnMut() -> String + Send + 'static) -> Self {
        self.after_run = Some(Box::new(text));
        self
    }

    /// Runs the chat until the user ends it, and then waits up to five seconds until the conversation is saved. The
    /// session stays open.
    ///
    /// On the standard input, Ctrl-C does not end the process from now on, not even after the chat.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session ends before the chat, and the errors of
    /// [`Session::flush`]. If the input is not a terminal, also returns [`ErrorKind::Failed`](crate::ErrorKind::Failed) if
    /// the last run has failed. All other errors are shown in the chat.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the chat. A run in flight continues. A line that is being read is lost.
    pub async fn run(mut self) -> Result<(), Error> {
        let (input, output) = (self.input.take(), self.output.take());
        let is_typed = input.is_none() && io::stdin().is_terminal();
        let is_terminal = output.is_none() && io::stdout().is_terminal();
        self.is_piped |= input.is_none() && !is_typed;
        let is_styled = is_terminal && env::var_os("NO_COLOR").is_none();
        let style = self.style.unwrap_or(if is_styled { Style::Ansi } else { Style::Plain });
        let history = commands::questions(&self.session.tree().await?);
        let edited = if is_typed && is_terminal { editor::edited(history) } else { None };
        let (edited, editor) = edited.unzip();
        let signals =
            if input.is_some() { Box::pin(futures_util::stream::pending()) } else { editor::interrupts() };
        let entries = input.or(edited).unwrap_or_else(editor::lines);
        let output = output.unwrap_or_else(|| Box::new(io::stdout()));
        let mut talk = ChatInProgress::new(self, EventPrinter::new(output, editor, style));
        let ended = talk.follow(entries, signals).await;
        let ChatInProgress { chat, failed, .. } = talk;
        let is_open = chat.session.end().is_none();
        let saved = if is_open { chat.session.flush(Duration::from_secs(5)).await } else { Ok(()) };
        ended.and(saved)?;
        failed.filter(|_| chat.is_piped).map_or(Ok(()), Err)
    }
}

crate::debug::impl_debug!(Chat(self) { session: self.session.id(), user: self.user, .. });
