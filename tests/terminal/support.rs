//! A chat whose entries a test sends, and whose output the test reads.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use futures_util::stream;
use omni_agent::{
    Agent, Error, Model, Session,
    store::MemoryStore,
    terminal::{Chat, Entry},
    testing::{ScriptedProvider, Step},
    tool,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::timeout,
};

/// An output that tests can wait for.
struct Output(Arc<watch::Sender<String>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.send_modify(|shown| shown.push_str(text));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A chat in progress.
pub(crate) struct Talk {
    pub(crate) session: Session,
    entries: Option<mpsc::UnboundedSender<Entry>>,
    shown: watch::Receiver<String>,
    /// The length of the text that was read.
    read: usize,
    chat: JoinHandle<Result<(), Error>>,
}

/// Returns a session with the tools `weather` and `delete`, of which the second needs an approval.
pub(crate) async fn session(model: Model) -> Session {
    use omni_agent::Tool as _;
    let weather = tool!("weather", "Tells the weather.", async |city: String| Ok(format!("Sun in {city}.")));
    let delete = tool!("delete", "Deletes a file.", async |path: String| Ok(format!("{path} is gone.")));
    let agent = Agent::builder().model(model).tool(weather).tool(delete.needs_approval());
    Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap()
}

/// Returns a session whose model gives these answers.
pub(crate) async fn scripted(steps: impl IntoIterator<Item = Step>) -> Session {
    session(ScriptedProvider::new(steps).model()).await
}

impl Talk {
    /// Starts a chat in which a person types.
    pub(crate) fn start(session: &Session) -> Self {
        Self::with(session, |chat| chat)
    }

    pub(crate) fn with(session: &Session, options: impl FnOnce(Chat) -> Chat) -> Self {
        let (sender, entries) = mpsc::unbounded_channel();
        let (output, shown) = watch::channel(String::new());
        let input = stream::unfold(entries, |mut entries| async { Some((entries.recv().await?, entries)) });
        let chat = Chat::new(session).user("ann").input(input).output(Output(Arc::new(output)));
        let chat = tokio::spawn(options(chat).run());
        Self { session: session.clone(), entries: Some(sender), shown, read: 0, chat }
    }

    fn enter(&self, entry: Entry) {
        self.entries.as_ref().unwrap().send(entry).unwrap();
    }

    pub(crate) fn type_line(&self, line: &str) {
        self.enter(Entry::Line(line.to_owned()));
    }

    pub(crate) fn interrupt(&self) {
        self.enter(Entry::Interrupt);
    }

    /// Waits until the chat has shown this text after the text that was read before. Returns the text in between.
    pub(crate) async fn sees(&mut self, text: &str) -> String {
        let read = self.read;
        let found = {
            let seen = self.shown.wait_for(|shown| shown[read..].contains(text));
            timeout(Duration::from_mins(1), seen)
                .await
                .ok()
                .map(|seen| seen.unwrap()[read..].find(text).unwrap())
        };
        let shown = self.shown.borrow()[read..].to_owned();
        let found = found.unwrap_or_else(|| panic!("the chat does not show {text:?} in:\n{shown}"));
        self.read += found + text.len();
        shown[..found].to_owned()
    }

    /// Waits for the end of the chat. Returns its result and everything that it has shown.
    pub(crate) async fn ended(self) -> (Result<(), Error>, String) {
        let ended = timeout(Duration::from_mins(10), self.chat).await.expect("the chat does not end");
        (ended.unwrap(), self.shown.borrow().clone())
    }

    /// Ends the input, and waits for the end of the chat.
    pub(crate) async fn end_input(mut self) -> (Result<(), Error>, String) {
        self.entries = None;
        self.ended().await
    }
}
