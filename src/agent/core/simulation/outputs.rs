//! Checks responses that must match an output schema. A response that does not match is requested again, within the
//! limit, and is not part of the turn.

use serde_json::json;

use super::{
    Check, ensure,
    model::{Input, Model},
    world::{OUTPUT, World},
};
use crate::{
    agent::{Response, phase::OutputRequirement},
    message::{History, Role},
    provider::{Options, OutputSchema, StopReason},
    tool::Schema,
};

/// The only text of a response that matches the schema.
pub(super) const FITS: &str = "7";

/// The default number of times that a response is requested again because it does not match the schema.
const RETRIES: u32 = 3;

/// Returns options that require the response to match `FITS`.
pub(super) fn options() -> Options {
    let schema = Schema::new(json!({ "const": 7 })).expect("it is a schema");
    Options::default().with_output(OutputSchema::new("seven", schema))
}

/// The outputs of a turn's responses.
#[derive(Default)]
pub(super) struct Outputs {
    /// Whether the current stream reported that the service enforces the schema.
    pub(super) enforced: bool,
    /// The requirements for the current request's response.
    wanted: OutputRequirement,
    /// Whether the response matches the schema, if there is a schema.
    fits: Option<bool>,
    /// The number of responses that were requested again.
    count: u32,
    /// The number of responses that did not match and that the next request contains.
    carried: usize,
}

impl World {
    /// Returns the configuration's requirements, or other requirements that `prepare_step` has set.
    pub(super) fn random_wanted(&mut self) -> OutputRequirement {
        let options = match self.rng.below(10) {
            0 => Options::default(),
            1 => OUTPUT.with(Options::clone),
            _ => self.config.settings.options.clone(),
        };
        OutputRequirement {
            retries: self.rng.pick(&[options.output_retries(), Some(0), None]),
            ..OutputRequirement::of(&options)
        }
    }
}

impl Model {
    /// Records the requirements of a prepared request.
    pub(super) fn prepared(&mut self, wanted: OutputRequirement) {
        if let Some(turn) = &mut self.turn {
            turn.outputs.wanted = wanted;
        }
    }

    /// Determines at the end of the stream whether the response must be requested again.
    pub(super) fn stream_ends(&mut self) {
        let exhausted = self.exhausted();
        let Some(turn) = &mut self.turn else { return };
        turn.outputs.fits = None;
        let uses_tools = turn.blocks.iter().any(super::blocks::Block::is_tool_use);
        // If the service paused the response, the next request continues the response, unless the limit of requests is
        // reached.
        let paused = turn.told == Some(StopReason::Pause) && !exhausted;
        if turn.outputs.wanted.output.is_none() || uses_tools || paused || turn.told.is_none() {
            return;
        }
        let texts: Vec<&str> = turn.blocks.iter().filter_map(super::blocks::Block::text).collect();
        let alone = !turn.outputs.enforced && texts.iter().any(|text| text.trim() == FITS);
        let fits = texts.concat().trim() == FITS || alone;
        turn.outputs.fits = Some(fits);
        let whole = matches!(turn.told, Some(StopReason::Stop | StopReason::ToolUse));
        let left = turn.outputs.count < turn.outputs.wanted.retries.unwrap_or(RETRIES);
        if !fits && whole && left && !exhausted {
            self.input = Input::Misfit;
        }
    }

    pub(super) fn asked_again(&mut self) -> Check {
        ensure!(self.input == Input::Misfit, "a response that matches is requested again");
        self.input = Input::Plain;
        let turn = self.turn()?;
        // The service has accepted the request, because it has answered.
        turn.refused = false;
        (turn.outputs.count, turn.outputs.carried) = (turn.outputs.count + 1, turn.outputs.carried + 1);
        Ok(())
    }

    /// Checks that a response that becomes part of the turn need not be requested again.
    pub(super) fn joins(&mut self) -> Check {
        ensure!(self.input != Input::Misfit, "a response that does not match becomes part of the turn");
        self.turn()?.outputs.carried = 0;
        Ok(())
    }

    /// Checks that the request ends with the responses that did not match, after the messages of the conversation.
    pub(super) fn carries(&self, request: &History, conversation: usize) -> Check {
        let carried = self.turn.as_ref().map_or(0, |turn| turn.outputs.carried);
        let roles = request.iter().skip(conversation).map(|message| message.role);
        let expected = [Role::Assistant, Role::User].into_iter().cycle().take(2 * carried);
        ensure!(roles.eq(expected), "the request lacks the {carried} responses that did not match");
        Ok(())
    }

    /// Checks the output of a response.
    pub(super) fn check_output(&mut self, response: &Response) -> Check {
        let fits = self.turn()?.outputs.fits;
        let told = (response.output.is_some(), response.output_error.is_some());
        ensure!(told == (fits == Some(true), fits == Some(false)), "{fits:?} is emitted as {told:?}");
        Ok(())
    }
}
