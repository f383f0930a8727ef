//! The tool `ask`: sends a prompt, and returns its answer or the questions about its tools.

use rmcp::{
    RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequests,
        InputRequiredResult, InputResponses,
    },
    service::RequestContext,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    answer::blocks,
    caller::{ASK, McpCaller, RefusalText},
    followed::{FollowedPrompt, PromptEnd, RunChange},
    running::{AskCallOutcome, AskPromptOrigin, RunningAskCall},
    tools::{AskInput, AskOutput, id, input},
};
use crate::{
    error_chain,
    message::TurnId,
    run::{Accepted, ErrorKind, Prompt, PromptId},
    session::Mode,
    store::ConversationId,
};

/// A call of `ask`.
#[derive(Clone, Copy)]
pub(super) struct AskCall<'a> {
    pub(super) caller: &'a McpCaller,
    pub(super) context: &'a RequestContext<RoleServer>,
    /// Cancelled when the client's connection has ended.
    pub(super) gone: &'a CancellationToken,
}

/// The state that a client sends back with its answers. It is checked like any other input.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskContinuationState {
    conversation: ConversationId,
    prompt: PromptId,
    turn: TurnId,
}

impl<'a> AskCall<'a> {
    /// Performs the call. `prompt` is the id of a new prompt.
    pub(super) async fn perform(
        self,
        request: CallToolRequestParams,
        prompt: PromptId,
    ) -> Result<CallToolResponse, RefusalText> {
        let CallToolRequestParams { arguments, input_responses, request_state, .. } = request;
        let input: AskInput = input(arguments.unwrap_or_default())?;
        let mut call = match request_state {
            Some(state) => match self.rejoin(&state, input_responses.unwrap_or_default()).await? {
                EarlierPromptState::Ended(conversation, end) => return result(conversation, end),
                EarlierPromptState::Runs(call) => *call,
            },
            None => self.begin(input, prompt).await?,
        };
        let outcome = call.outcome().await;
        call.withdraw_questions().await;
        let conversation = call.session.id().clone();
        match outcome {
            AskCallOutcome::Ended(end) => result(conversation, end),
            AskCallOutcome::Asks(requests) => Ok(questions(conversation, &call.followed, requests)),
            AskCallOutcome::Abandoned => {
                call.withdraw().await;
                Err("the call was cancelled".to_owned())
            }
            AskCallOutcome::Refused(why) => Err(why),
            AskCallOutcome::Draining => Err(format!(
                "the server is about to stop; later, read the conversation {conversation} for the answer"
            )),
        }
    }

    /// Opens or creates the conversation, and sends the prompt.
    async fn begin(self, input: AskInput, id_of_prompt: PromptId) -> Result<RunningAskCall<'a>, RefusalText> {
        if input.prompt.trim().is_empty() {
            return Err("the prompt is empty; write a message to the agent".to_owned());
        }
        let conversation = input.conversation.as_deref().map(id).transpose()?;
        let mut retries = 1;
        loop {
            let (session, events, labels) = match &conversation {
                Some(id) => self.caller.open(id, Mode::Controller, ASK).await?,
                None => self.caller.create().await?,
            };
            let prompt = Prompt::new(input.prompt.as_str()).with_id(id_of_prompt.clone());
            match session.prompt(prompt).await {
                Ok(accepted) => {
                    let followed = FollowedPrompt::of(id_of_prompt, &accepted);
                    return Ok(RunningAskCall::new(
                        self,
                        (session, events),
                        &labels,
                        followed,
                        AskPromptOrigin::ThisCall,
                    ));
                }
                // The session was closed after it was opened here, so open it again.
                Err(error) if error.kind() == ErrorKind::Ended && retries > 0 => retries -= 1,
                Err(error) => return Err(error_chain(&error)),
            }
        }
    }

    /// Follows a prompt that an earlier call has sent, after applying the client's answers.
    async fn rejoin(
        self,
        state: &str,
        answers: InputResponses,
    ) -> Result<EarlierPromptState<'a>, RefusalText> {
        let state: AskContinuationState = serde_json::from_str(state).map_err(|_| {
            "the request state is invalid; send it back unchanged, or call again without it".to_owned()
        })?;
        let (session, events, labels) = self.caller.open(&state.conversation, Mode::Controller, ASK).await?;
        let mut followed = FollowedPrompt::of(state.prompt, &Accepted::Started { turn: state.turn });
        let ended = events.snapshot().and_then(|snapshot| followed.snapshot(snapshot));
        if let Some(RunChange::Ended(end)) = ended {
            return Ok(EarlierPromptState::Ended(state.conversation, end));
        }
        let mut call =
            RunningAskCall::new(self, (session, events), &labels, followed, AskPromptOrigin::EarlierCall);
        if call.followed.turn() == Some(state.turn) {
            call.answered(answers).await;
        }
        Ok(EarlierPromptState::Runs(Box::new(call)))
    }
}

/// The state of a prompt that an earlier call has sent.
enum EarlierPromptState<'a> {
    Ended(ConversationId, PromptEnd),
    Runs(Box<RunningAskCall<'a>>),
}

/// Returns the result of a prompt that has ended.
fn result(conversation: ConversationId, end: PromptEnd) -> Result<CallToolResponse, RefusalText> {
    let (message, stop_reason) = match end {
        PromptEnd::Answered { message, stop_reason } => (message, stop_reason),
        PromptEnd::Unanswered(why) => {
            return Err(format!("there is no answer: {why}. The conversation is {conversation}"));
        }
    };
    let mut content = message.as_deref().map(blocks).unwrap_or_default();
    // A client may show its model only the content.
    content.push(ContentBlock::text(format!("[conversation: {conversation}]")));
    let answer = message.map(|message| message.text()).unwrap_or_default();
    let stop_reason = stop_reason.map(|reason| reason.to_string());
    let mut result = CallToolResult::success(content);
    result.structured_content = serde_json::to_value(AskOutput { conversation, answer, stop_reason }).ok();
    Ok(result.into())
}

/// Returns the questions, which end the call. The client calls again with the answers.
fn questions(
    conversation: ConversationId,
    followed: &FollowedPrompt,
    requests: InputRequests,
) -> CallToolResponse {
    let state = followed.turn().and_then(|turn| {
        let prompt = followed.id().clone();
        serde_json::to_string(&AskContinuationState { conversation, prompt, turn }).ok()
    });
    InputRequiredResult::new(Some(requests), state).into()
}
