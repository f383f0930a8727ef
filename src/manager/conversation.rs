//! Conversations that may be open or not: [`Conversation`].
//!
//! An operation takes the open session. If there is none, it asks the conversation's own opener, else the manager's
//! starter, for the options, and opens the session. A session can end between its look-up and the operation, so an
//! operation that then fails with [`ErrorKind::Ended`] is tried once more. The ended session may have accepted a prompt,
//! so the prompt has an id. A run whose end was awaited is not tried again.

use std::{future::ready, sync::Arc};

use super::{Manager, NewOrStoredConversation, OpenOptions, OpenedBy, TitleOrLabels, opening::aborted};
use crate::{
    message::Timestamp,
    panics::contained,
    run::{Accepted, Error, ErrorKind, Prompt, PromptId},
    session::{
        Mode, PromptOutcome, Session, SessionAnswer, SessionCommand, SessionSnapshot, SessionSubscription,
    },
    store::{ConversationId, Labels, TurnSummary, WriteId},
    subscription::EventId,
};

/// A function that returns the options for opening a conversation, or `None` if it is not opened here.
pub(super) type OpenerFn = dyn Fn(&Wake) -> Option<OpenOptions> + Send + Sync;

/// A conversation that is about to be opened without a caller that knows its options.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Wake {
    /// The id of the conversation.
    pub id: ConversationId,
    /// The labels of the conversation.
    pub labels: Labels,
    /// Why the conversation is opened.
    pub cause: WakeCause,
}

/// The cause of a [`Wake`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WakeCause {
    /// A recorded turn that nobody works on is to be continued.
    Turn(Box<TurnSummary>),
    /// The time of a schedule has come: [`Manager::schedule`].
    Schedule {
        /// The name of the schedule.
        name: String,
        /// The time, by the store's clock.
        due: Timestamp,
    },
    /// An operation of a [`Conversation`] needs the session.
    Command,
    /// [`Conversation::subscribe`] or [`Conversation::resume_from`] needs the session.
    Reader,
}

impl Wake {
    /// Asks the application for the options. A panic of the application is an error.
    pub(super) fn ask(&self, opener: &OpenerFn) -> Result<Option<OpenOptions>, Error> {
        contained(|| opener(self))
            .map_err(|panic| aborted(&self.id, &format!("the opener panicked: {panic}")))
    }
}

impl From<&TurnSummary> for Wake {
    fn from(turn: &TurnSummary) -> Self {
        Self {
            id: turn.id.clone(),
            labels: turn.labels.clone(),
            cause: WakeCause::Turn(Box::new(turn.clone())),
        }
    }
}

/// A conversation of a manager, whether it is open or not. An operation opens it if needed.
///
/// [`Manager::conversation`] returns it without reading the store. It stays valid while the conversation is closed,
/// opened again or deleted. A clone is cheap.
///
/// A session that an operation opens has no controller, so it ends when it has been idle for
/// [some time](super::ManagerBuilder::idle_shutdown), after its run.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let model = ScriptedProvider::new([Step::text("Paid.")]).model();
/// use omni_agent::{Agent, manager::{Manager, OpenOptions, Wake}, store::{ConversationId, MemoryStore}};
///
/// let options = move || OpenOptions::new(Agent::builder().model(model.clone()));
/// let manager = Manager::builder(MemoryStore::new()).build();
/// let id = ConversationId::new("order-7")?;
/// manager.create_with_id(&id, options()).await?;
/// manager.close(&id).await?;
///
/// let order = manager.conversation(&id).open_with(move |_: &Wake| Some(options()));
/// let outcome = order.ask("Pay the bill.").await?;
/// assert_eq!(outcome.answer.unwrap().text(), "Paid.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Operations that open the conversation also return:
///
/// - [`ErrorKind::NotOpened`] if the opener returns `None`.
/// - [`ErrorKind::Config`] if there is neither an opener nor a [starter](super::ManagerBuilder::starter).
/// - [`ErrorKind::NotFound`] if the conversation does not exist.
/// - The errors of [`Manager::open`].
///
/// # Cancel safety
///
/// If a future is dropped, its operation may still take effect, and the session may still be opened.
#[derive(Clone)]
pub struct Conversation {
    manager: Manager,
    id: ConversationId,
    opener: Option<Arc<OpenerFn>>,
}

crate::debug::impl_debug!(Conversation(self) { id: self.id, .. });

impl Manager {
    /// Returns a conversation, which may be open or not, and need not exist. This reads nothing.
    pub fn conversation(&self, id: &ConversationId) -> Conversation {
        Conversation { manager: self.clone(), id: id.clone(), opener: None }
    }
}

impl Conversation {
    /// Sets how this conversation is opened. Defaults to the [starter](super::ManagerBuilder::starter) of the manager.
    #[must_use]
    pub fn open_with(self, opener: impl Fn(&Wake) -> Option<OpenOptions> + Send + Sync + 'static) -> Self {
        Self { opener: Some(Arc::new(opener)), ..self }
    }

    /// Returns the id.
    pub fn id(&self) -> &ConversationId {
        &self.id
    }

    /// Returns the session, if the manager has it open now.
    pub fn local(&self) -> Option<Session> {
        self.manager.get(&self.id)
    }

    /// Returns the session, and opens it if needed.
    ///
    /// # Errors
    ///
    /// Returns the [errors of an opening](Self#errors).
    pub async fn open(&self) -> Result<Session, Error> {
        self.open_for(WakeCause::Command).await
    }

    async fn open_for(&self, cause: WakeCause) -> Result<Session, Error> {
        if let Some(session) = self.local() {
            return Ok(session);
        }
        let inner = &self.manager.0;
        let Some(opener) = self.opener.as_deref().or(inner.recovery.starter()) else {
            let text = format!(
                "conversation {} can't be opened, because its options are not known; set `Conversation::open_with` or \
                 `ManagerBuilder::starter`",
                self.id
            );
            return Err(Error::new(ErrorKind::Config, text));
        };
        let labels = inner.store.summary(&self.id).await?.labels;
        let Some(options) = (Wake { id: self.id.clone(), labels, cause }).ask(opener)? else {
            let text = format!("the application does not open conversation {} in this process", self.id);
            return Err(Error::new(ErrorKind::NotOpened, text).with_member("conversation", &self.id));
        };
        let starting = inner.open(self.id.clone(), options, NewOrStoredConversation::Stored, OpenedBy::User);
        Ok(starting.await?.session)
    }

    /// Performs an operation on the session. If the session ends at the same moment, opens it again, once.
    pub(super) async fn on_session<T, F: Future<Output = Result<T, Error>>>(
        &self,
        cause: WakeCause,
        operation: impl Fn(Session) -> F,
    ) -> Result<T, Error> {
        match operation(self.open_for(cause.clone()).await?).await {
            Err(error) if error.kind() == ErrorKind::Ended => operation(self.open_for(cause).await?).await,
            other => other,
        }
    }

    /// Starts a run, or stages the prompt: [`Session::prompt`]. A prompt without an id gets one.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Session::prompt`], and the [errors of an opening](Self#errors).
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, Error> {
        let mut prompt = prompt.into();
        identified(&mut prompt);
        let prompted = |session: Session| {
            let prompt = prompt.clone();
            async move { session.prompt(prompt).await }
        };
        self.on_session(WakeCause::Command, prompted).await
    }

    /// Waits for the end of the run of a prompt, and returns its outcome with its answer: [`Session::outcome`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Session::outcome`], and the [errors of an opening](Self#errors).
    pub async fn outcome(&self, prompt: impl Into<PromptId>) -> Result<PromptOutcome, Error> {
        let id = prompt.into();
        let ended = |session: Session| {
            let id = id.clone();
            async move { session.outcome(id).await }
        };
        self.on_session(WakeCause::Command, ended).await
    }

    /// Sends a prompt and waits for the end of its run. A prompt without an id gets one. If the agent is busy, the
    /// prompt is staged first.
    ///
    /// A prompt with the same id, sent again, is accepted once and has the same outcome. With
    /// [`Durable::Turns`](crate::agent::Durable::Turns), this holds until the session ends.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`prompt`](Self::prompt) and [`outcome`](Self::outcome).
    pub async fn ask(&self, prompt: impl Into<Prompt>) -> Result<PromptOutcome, Error> {
        let mut prompt = prompt.into();
        let id = identified(&mut prompt).clone();
        self.prompt(prompt).await?;
        self.outcome(id).await
    }

    /// Runs an operation that is given as data: [`Session::perform`]. Decisions, titles and labels do not open the
    /// conversation.
    ///
    /// # Errors
    ///
    /// Returns the errors of the operation, and the [errors of an opening](Self#errors).
    pub async fn perform(&self, command: SessionCommand, by: Option<&str>) -> Result<SessionAnswer, Error> {
        match command {
            SessionCommand::Decide { turn, decisions } => {
                self.manager.decide_all(&self.id, turn, decisions, by, || ready(Ok(()))).await?;
            }
            SessionCommand::Title { title } => {
                self.manager.describe(&self.id, TitleOrLabels::Title(title), || ready(Ok(()))).await?;
            }
            SessionCommand::Labels { labels } => {
                self.manager.describe(&self.id, TitleOrLabels::Labels(labels), || ready(Ok(()))).await?;
            }
            SessionCommand::Run(spec) if spec.wait => {
                return self.open().await?.perform(SessionCommand::Run(spec), by).await;
            }
            mut command => {
                if let SessionCommand::Run(spec) = &mut command
                    && !spec.prompt.content.0.is_empty()
                {
                    identified(&mut spec.prompt);
                }
                let perform = |session: Session| {
                    let command = command.clone();
                    async move { session.perform(command, by).await }
                };
                return self.on_session(WakeCause::Command, perform).await;
            }
        }
        Ok(SessionAnswer::Done)
    }

    /// Returns the state: [`Session::snapshot`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Session::snapshot`], and the [errors of an opening](Self#errors).
    pub async fn snapshot(&self) -> Result<SessionSnapshot, Error> {
        self.on_session(WakeCause::Command, |session| async move { session.snapshot().await }).await
    }

    /// Subscribes to the events: [`Session::subscribe`]. The subscription ends with the session.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Session::subscribe`], and the [errors of an opening](Self#errors).
    pub async fn subscribe(&self, mode: Mode) -> Result<SessionSubscription, Error> {
        self.on_session(WakeCause::Reader, |session| async move { session.subscribe(mode).await }).await
    }

    /// Continues a subscription after an event: [`Session::resume_from`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Session::resume_from`], and the [errors of an opening](Self#errors).
    pub async fn resume_from(&self, last: EventId, mode: Mode) -> Result<SessionSubscription, Error> {
        self.on_session(WakeCause::Reader, |session| async move { session.resume_from(last, mode).await })
            .await
    }
}

/// Gives a prompt an id if it has none, because a session that has ended may have accepted it.
fn identified(prompt: &mut Prompt) -> &PromptId {
    prompt.id.get_or_insert_with(|| PromptId::new(WriteId::generate().to_string()))
}
