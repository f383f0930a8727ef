use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    budget::BudgetReport,
    provider::{PROVIDER_PANICKED, ProviderError, ProviderErrorKind},
};

/// The reason why a run failed.
#[derive(Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Failure {
    /// A request to the model service failed.
    #[error(transparent)]
    Provider {
        /// The error of the request.
        error: Box<ProviderError>,
    },
    /// The provider's code panicked.
    #[error("the provider panicked: {message}")]
    ProviderPanicked {
        /// The message of the panic.
        message: String,
    },
    /// The turn took longer than its limit.
    #[error("the turn took longer than its limit of {limit:?}")]
    TimeLimit {
        /// The limit of the turn.
        limit: Duration,
    },
    /// A budget does not allow the request, so it was not sent. If a later request of a turn is refused, the turn is
    /// kept and ends with [`StopReason::Budget`](crate::provider::StopReason::Budget), which is not a failure of the
    /// run.
    #[error("{report}")]
    Budget {
        /// The budget that refuses the request, and what was spent of it.
        report: Box<BudgetReport>,
    },
    /// The response does not match the output schema, so the model is asked for another response. This failure occurs
    /// only in [`Event::Retry`](crate::agent::Event::Retry). If no further response may be requested, the turn ends with the
    /// last response, although it does not match the schema.
    #[error("the response does not have the requested shape: {message}")]
    Output {
        /// The problem with the response.
        message: String,
    },
    /// The model has refused to answer, so a [backup model](crate::agent::AgentBuilder::backup_model) is asked. This
    /// failure occurs only in [`Event::Retry`](crate::agent::Event::Retry). Without such a model, the turn ends with
    /// [`StopReason::Refusal`](crate::provider::StopReason::Refusal).
    #[error("the model has refused to answer")]
    Refused,
    /// `handle_event` returned a prompt while the session accepts no prompts. The error event contains the prompt.
    #[error("the prompt that handle_event returned was refused: {reason}")]
    OnHold {
        /// The reason why the session accepts no prompts.
        reason: String,
    },
    /// The process ended while the response was streamed, so the request is repeated. This failure occurs only in
    /// [`Event::Retry`](crate::agent::Event::Retry).
    #[error("the process ended while the response was streamed")]
    Interrupted,
    /// The process ended during a request that must not be repeated, because it may have had effects.
    #[error(
        "the process ended during a request that must not be repeated; it is not known what the request has done"
    )]
    Uncertain,
    /// A callback panicked or returned an unusable value.
    #[error("callback {callback} failed: {message}")]
    Callback {
        /// The name of the callback.
        callback: String,
        /// The message of the panic, or the problem with the returned value.
        message: String,
    },
}

crate::error::debug_as_chain!(Failure);

impl Failure {
    /// Returns whether the service has refused the content of the request, so that it would refuse the same content
    /// again.
    pub(crate) fn is_refusal(&self) -> bool {
        let Self::Provider { error } = self else { return false };
        // With some statuses, a service reports that it does not have the model or the address. It has not read the
        // content.
        let is_misdirected = match error.status {
            Some(300..=399 | 404 | 405) => error.kind == ProviderErrorKind::InvalidRequest,
            status => matches!(status, Some(501 | 505)),
        };
        !is_misdirected
            && matches!(
                error.kind,
                ProviderErrorKind::InvalidRequest
                    | ProviderErrorKind::Unsupported
                    | ProviderErrorKind::ContextTooLong
            )
    }

    /// Returns a description without the message of an error, because the message may quote a prompt or a response.
    pub(crate) fn summary(&self) -> String {
        match self {
            Self::Provider { error } => error.kind.to_string(),
            Self::ProviderPanicked { .. } => PROVIDER_PANICKED.1.to_owned(),
            Self::TimeLimit { .. }
            | Self::Budget { .. }
            | Self::Refused
            | Self::Interrupted
            | Self::Uncertain => self.to_string(),
            Self::Output { .. } => "the response does not have the requested shape".to_owned(),
            Self::OnHold { .. } => "the prompt that handle_event returned was refused".to_owned(),
            Self::Callback { callback, .. } => format!("callback {callback} failed"),
        }
    }

    /// Replaces the texts that may quote messages, because these messages are erased.
    pub(crate) fn erase_texts(&mut self) {
        const ERASED: &str = "the text was erased";
        match self {
            Self::Provider { error } => {
                ERASED.clone_into(&mut error.message);
                error.body = None;
            }
            Self::ProviderPanicked { message }
            | Self::Output { message }
            | Self::Callback { message, .. }
            | Self::OnHold { reason: message } => ERASED.clone_into(message),
            Self::TimeLimit { .. }
            | Self::Budget { .. }
            | Self::Refused
            | Self::Interrupted
            | Self::Uncertain => {}
        }
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Provider { error } => error.message.len() + error.body.as_ref().map_or(0, String::len),
            Self::ProviderPanicked { message } | Self::Output { message } => message.len(),
            Self::Callback { callback, message } => callback.len() + message.len(),
            Self::OnHold { reason } => reason.len(),
            Self::TimeLimit { .. }
            | Self::Budget { .. }
            | Self::Refused
            | Self::Interrupted
            | Self::Uncertain => 0,
        }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Self::Provider { error: Box::new(error) }
    }
}
