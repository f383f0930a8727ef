//! A call of `ask` whose prompt the session has accepted.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rmcp::{
    RoleServer,
    model::{
        ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult, InputRequest, InputRequests,
        InputResponses, ProgressNotificationParam, ProtocolVersion, ServerRequest,
    },
    service::{Peer, PeerRequestOptions},
};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    ask::AskCall,
    caller::{McpCaller, RefusalText},
    followed::{FollowedPrompt, PromptEnd, RunChange},
    question::{McpClientQuestionKinds, decision, question},
};
use crate::{
    access::{
        Action,
        client::{AuthorizedClient, new_labels},
    },
    message::ToolUseId,
    run::{Error, PendingUse},
    session::{Session, SessionCommand, SessionEvent, SessionSnapshot, SessionSubscription},
    store::Labels,
    subscription::Update,
    text::start,
    tool::Decision,
};

/// The time after which a call without news reports progress, so that the client's time limit starts again.
const NEWS: Duration = Duration::from_secs(15);

/// How long to wait for a client that does not read, and for a session that is interrupted.
const SOON: Duration = Duration::from_secs(5);

/// How long to wait for the answer to a question. A client over HTTP may be gone without a sign.
pub(super) const LONGEST_QUESTION: Duration = Duration::from_hours(1);

/// The maximum length of the name of a client's program, in bytes.
const LONGEST_NAME: usize = 256;

/// How a call ends.
pub(super) enum AskCallOutcome {
    Ended(PromptEnd),
    /// The client must answer these questions.
    Asks(InputRequests),
    /// The client may no longer follow the prompt.
    Refused(RefusalText),
    /// Nobody reads the result.
    Abandoned,
    /// The server is about to stop.
    Draining,
}

/// An update of the session. `None` if the subscription has ended.
type NextSessionUpdate = Option<Update<SessionSnapshot, SessionEvent>>;

/// The progress of a call that an update shows.
enum AskCallUpdate {
    /// The client can show this text.
    Text(String),
    Over(AskCallOutcome),
}

/// The call that has sent the prompt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AskPromptOrigin {
    ThisCall,
    /// The client names the prompt. Another client may have sent it.
    EarlierCall,
}

/// What the client may do with the conversation. This may change with the conversation's labels.
#[derive(Clone, Copy)]
struct ConversationPermissions {
    decide: bool,
    stop: bool,
}

impl ConversationPermissions {
    fn of(client: &AuthorizedClient, labels: &Labels) -> Self {
        let may = |action| client.permit(&[action], labels).is_ok();
        Self { decide: may(Action::Decide), stop: may(Action::Stop) }
    }
}

pub(super) struct RunningAskCall<'a> {
    ask: AskCall<'a>,
    pub(super) session: Session,
    events: SessionSubscription,
    pub(super) followed: FollowedPrompt,
    /// The pauses about which the client was asked. Cancelling a token withdraws the question.
    asked: HashMap<ToolUseId, CancellationToken>,
    /// The questions that were sent during this call. A question that was withdrawn has no decision.
    questions: FuturesUnordered<BoxFuture<'static, (Arc<PendingUse>, Option<Decision>)>>,
    reports: u32,
    sender: AskPromptOrigin,
    may: ConversationPermissions,
}

impl<'a> RunningAskCall<'a> {
    pub(super) fn new(
        ask: AskCall<'a>,
        (session, events): (Session, SessionSubscription),
        labels: &Labels,
        followed: FollowedPrompt,
        sender: AskPromptOrigin,
    ) -> Self {
        let (asked, questions) = (HashMap::new(), FuturesUnordered::new());
        let may = ConversationPermissions::of(&ask.caller.client, labels);
        Self { ask, session, events, followed, asked, questions, reports: 0, sender, may }
    }

    /// Applies the answers to the questions of an earlier call.
    pub(super) async fn answered(&mut self, mut answers: InputResponses) {
        for pause in self.followed.pauses().to_vec() {
            let answer = answers.remove(pause.tool_use.id.as_str());
            // A question without a valid answer is asked again.
            if let Some(Ok(answer)) = answer.map(serde_json::from_value::<ElicitResult>) {
                self.decide(&pause, decision(&pause, answer)).await;
            }
        }
    }

    /// Waits until the prompt is answered, or until the client has to act.
    pub(super) async fn outcome(&mut self) -> AskCallOutcome {
        let mut news = interval_at(Instant::now() + NEWS, NEWS);
        news.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let draining = self.ask.caller.client.draining.clone();
        loop {
            if let Some(requests) = self.ask_about_pauses().await {
                return AskCallOutcome::Asks(requests);
            }
            tokio::select! {
                biased;
                () = self.ask.gone.cancelled() => return AskCallOutcome::Abandoned,
                () = draining.cancelled() => return AskCallOutcome::Draining,
                () = self.ask.context.ct.cancelled() => return AskCallOutcome::Abandoned,
                Some((pause, decision)) = self.questions.next() => {
                    if let Some(decision) = decision {
                        self.decide(&pause, decision).await;
                    }
                }
                update = self.events.next() => {
                    if let Some(outcome) = self.updates(update).await {
                        return outcome;
                    }
                }
                _ = news.tick() => self.report("The agent is working.".to_owned()).await,
            }
        }
    }

    /// Processes an update and all others that are ready. Several running tools may ask questions at the same time, so
    /// the client is then asked about all of them together.
    async fn updates(&mut self, first: NextSessionUpdate) -> Option<AskCallOutcome> {
        let mut next = Some(first);
        while let Some(update) = next {
            match self.update(update).await {
                Some(AskCallUpdate::Over(outcome)) => return Some(outcome),
                Some(AskCallUpdate::Text(text)) => self.report(text).await,
                None => {}
            }
            next = self.events.next().now_or_never();
        }
        None
    }

    /// Processes an update.
    async fn update(&mut self, update: NextSessionUpdate) -> Option<AskCallUpdate> {
        if let Some(labels) = update.as_ref().and_then(new_labels) {
            let McpCaller { client, refused, .. } = self.ask.caller;
            match client.still_permitted(self.session.id(), labels, &[Action::Watch]).await {
                Ok(labels) => self.may = ConversationPermissions::of(client, &labels),
                Err(error) => return Some(AskCallUpdate::Over(AskCallOutcome::Refused(refused(error)))),
            }
        }
        let unanswered = |why| Some(RunChange::Ended(PromptEnd::Unanswered(why)));
        let change = match update {
            Some(Update::Event(numbered)) => match &*numbered.event {
                SessionEvent::Agent(event) => self.followed.event(event),
                _ => None,
            },
            Some(Update::Resync(snapshot)) => self.followed.snapshot(&snapshot),
            Some(Update::Closed(end)) => {
                match end.snapshot.as_ref().and_then(|snapshot| self.followed.snapshot(snapshot)) {
                    Some(RunChange::Ended(end)) => Some(RunChange::Ended(end)),
                    _ => unanswered(format!("the session has ended: {}", end.reason)),
                }
            }
            None => unanswered("the session has ended".to_owned()),
        };
        match change? {
            RunChange::Ended(end) => Some(AskCallUpdate::Over(AskCallOutcome::Ended(end))),
            RunChange::Progress(text) => Some(AskCallUpdate::Text(text)),
            RunChange::Pauses => None,
        }
    }

    /// Asks the client about new pauses, and withdraws the questions that it can't answer any more. If the client can
    /// only be asked in the result of the call, returns the questions instead.
    async fn ask_about_pauses(&mut self) -> Option<InputRequests> {
        let pauses = self.followed.pauses().to_vec();
        self.asked.retain(|id, withdrawn| {
            let is_open = self.may.decide && pauses.iter().any(|pause| pause.tool_use.id == *id);
            if !is_open {
                withdrawn.cancel();
            }
            is_open
        });
        if !self.may.decide {
            return None;
        }
        let asks = McpClientQuestionKinds::of(self.ask.context);
        let ends_call = self
            .ask
            .context
            .protocol_version()
            .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
        let mut requests = InputRequests::new();
        for pause in pauses {
            if self.asked.contains_key(&pause.tool_use.id) {
                continue;
            }
            match question(&pause, asks) {
                Err(why) => {
                    let rejected = Decision::reject(format!("The user can't be asked: {why}."));
                    self.decide(&pause, rejected).await;
                }
                Ok(question) if ends_call => {
                    let request = InputRequest::Elicitation(ElicitRequest::new(question));
                    requests.insert(pause.tool_use.id.as_str().to_owned(), request);
                }
                Ok(question) => {
                    let withdrawn = self.asked.entry(pause.tool_use.id.clone()).or_default().clone();
                    let peer = self.ask.context.peer.clone();
                    self.questions.push(Box::pin(async move {
                        let decided = asked(&peer, question, &withdrawn).await.map(|answer| match answer {
                            Ok(answer) => decision(&pause, answer),
                            Err(why) => Decision::reject(format!("The user can't be asked: {why}.")),
                        });
                        (pause, decided)
                    }));
                }
            }
        }
        (!requests.is_empty()).then_some(requests)
    }

    /// Withdraws all questions, because the call is about to end.
    pub(super) async fn withdraw_questions(&mut self) {
        self.asked.values().for_each(CancellationToken::cancel);
        // If the client is gone, nobody reads the messages.
        while !self.ask.gone.is_cancelled() && self.questions.next().await.is_some() {}
    }

    /// Sends the decision about a pause to the session, if the client may decide.
    async fn decide(&mut self, pause: &PendingUse, decision: Decision) {
        // The client decides how long an answer takes, so the permission may have ended in the meantime.
        let client = &self.ask.caller.client;
        let permitted = client.permitted(self.session.id(), &[Action::Decide]).await;
        self.may.decide &= permitted.is_ok();
        if !self.may.decide {
            return;
        }
        // The pause is over only when its event arrives. Until then, the client is not asked about it again.
        self.asked.entry(pause.tool_use.id.clone()).or_default();
        let program = self.ask.context.client_info();
        let by = match &program {
            _ if !client.is_local => Some(client.principal.name()),
            program => program.as_ref().map(|program| start(&program.name, LONGEST_NAME)),
        };
        let decisions = vec![(pause.tool_use.id.clone(), decision)];
        let command = SessionCommand::Decide { turn: pause.turn, decisions };
        if let Err(error) = self.session.perform(command, by).await {
            // Somebody else has decided first, or the run has ended.
            tracing::debug!(%error, "a decision of an MCP client came too late");
        }
    }

    /// Reports progress, if the client wants reports.
    async fn report(&mut self, message: String) {
        let Some(token) = self.ask.context.meta.get_progress_token() else { return };
        self.reports += 1;
        let report = ProgressNotificationParam::new(token, self.reports.into()).with_message(message);
        // A client that does not read must not delay the call for long.
        let _ = timeout(SOON, self.ask.context.peer.notify_progress(report)).await;
    }

    /// Withdraws the prompt, because nobody waits for its answer. If its turn has begun, the run is interrupted. If
    /// another call has sent the prompt, the interruption needs the permission to stop runs.
    pub(super) async fn withdraw(mut self) {
        let withdrawn = async {
            // When the snapshot arrives, all events before it have arrived.
            self.session.snapshot().await?;
            let mut next = self.events.next().now_or_never();
            loop {
                while let Some(update) = next {
                    if let Some(AskCallUpdate::Over(_)) = self.update(update).await {
                        return Ok::<_, Error>(());
                    }
                    next = self.events.next().now_or_never();
                }
                let is_withdrawn = match self.followed.turn() {
                    Some(_) if self.sender != AskPromptOrigin::ThisCall && !self.may.stop => true,
                    // If this turn has ended in the meantime, the session may be working for another client.
                    Some(turn) => self.session.interrupt_turn(turn).await?,
                    // This fails if the prompt's turn has begun in the meantime.
                    None => self.session.unstage(self.followed.id().clone()).await.is_ok(),
                };
                if is_withdrawn {
                    return Ok(());
                }
                // The next events show how the prompt's run has continued.
                next = Some(self.events.next().await);
            }
        };
        let withdrawn = timeout(SOON, withdrawn).await;
        tracing::debug!(?withdrawn, "a call of an MCP client was abandoned");
    }
}

/// Sends a question to the client, and waits for the answer. Returns `None` if the question was withdrawn.
async fn asked(
    peer: &Peer<RoleServer>,
    question: ElicitRequestParams,
    withdrawn: &CancellationToken,
) -> Option<Result<ElicitResult, String>> {
    let request = ServerRequest::ElicitRequest(ElicitRequest::new(question));
    let sent = peer.send_cancellable_request(request, PeerRequestOptions::no_options()).await;
    let mut handle = match sent {
        Ok(handle) => handle,
        Err(error) => return Some(Err(error.to_string())),
    };
    let (why, is_late) = tokio::select! {
        biased;
        answer = &mut handle.rx => return Some(match answer {
            Ok(Ok(ClientResult::ElicitResult(answer))) => Ok(answer),
            Ok(Ok(_)) => Err("its answer is invalid".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("it is gone".to_owned()),
        }),
        () = withdrawn.cancelled() => ("the question is no longer open", false),
        () = sleep(LONGEST_QUESTION) => ("there was no answer within an hour", true),
    };
    let _ = timeout(SOON, handle.cancel(Some(why.to_owned()))).await;
    is_late.then(|| Err(why.to_owned()))
}
