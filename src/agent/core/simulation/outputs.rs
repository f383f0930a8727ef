//! Answers under an output schema: one that does not fit is asked for again, within the limit, and joins nothing.

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

/// The one answer that fits.
pub(super) const FITS: &str = "7";

/// How often an answer is asked for again where nothing is set.
const RETRIES: u32 = 3;

/// Options that want this answer.
pub(super) fn options() -> Options {
    let schema = Schema::new(json!({ "const": 7 })).expect("it is a schema");
    Options::default().with_output(OutputSchema::new("seven", schema))
}

/// What a turn's answers come to.
#[derive(Default)]
pub(super) struct Outputs {
    /// Whether the current stream told that the service enforces the schema.
    pub(super) enforced: bool,
    /// What the current request's answer has to be like.
    wanted: OutputRequirement,
    /// Whether the answer fits, if it has to.
    fits: Option<bool>,
    /// How often an answer was asked for again.
    count: u32,
    /// How many of them the next request carries.
    carried: usize,
}

impl World {
    /// The configuration's schema, and sometimes what `prepare_step` has put into the request instead.
    pub(super) fn random_wanted(&mut self) -> OutputRequirement {
        let options = match self.rng.below(10) {
            0 => Options::default(),
            1 => OUTPUT.with(Options::clone),
            _ => self.config.options.clone(),
        };
        OutputRequirement {
            retries: self.rng.pick(&[options.output_retries, Some(0), None]),
            ..OutputRequirement::of(&options)
        }
    }
}

impl Model {
    /// A request is prepared whose answer has to be like this.
    pub(super) fn prepared(&mut self, wanted: OutputRequirement) {
        if let Some(turn) = &mut self.turn {
            turn.outputs.wanted = wanted;
        }
    }

    /// The stream has ended: does the answer have to be given again?
    pub(super) fn stream_ends(&mut self) {
        let exhausted = self.exhausted();
        let Some(turn) = &mut self.turn else { return };
        turn.outputs.fits = None;
        let uses_tools = turn.blocks.iter().any(super::blocks::Block::is_tool_use);
        // A pause with no request left is the answer's end.
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
        ensure!(self.input == Input::Misfit, "an answer is asked for again that fits");
        self.input = Input::Plain;
        let outputs = &mut self.turn()?.outputs;
        (outputs.count, outputs.carried) = (outputs.count + 1, outputs.carried + 1);
        Ok(())
    }

    /// An answer joins the turn.
    pub(super) fn joins(&mut self) -> Check {
        ensure!(self.input != Input::Misfit, "an answer that does not fit joins the turn");
        self.turn()?.outputs.carried = 0;
        Ok(())
    }

    /// The request has the answers that did not fit behind the conversation.
    pub(super) fn carries(&self, request: &History, conversation: usize) -> Check {
        let carried = self.turn.as_ref().map_or(0, |turn| turn.outputs.carried);
        let roles = request.iter().skip(conversation).map(|message| message.role);
        let expected = [Role::Assistant, Role::User].into_iter().cycle().take(2 * carried);
        ensure!(roles.eq(expected), "the request does not carry the {carried} answers that did not fit");
        Ok(())
    }

    /// A response says what the answer came to.
    pub(super) fn check_output(&mut self, response: &Response) -> Check {
        let fits = self.turn()?.outputs.fits;
        let told = (response.output.is_some(), response.output_error.is_some());
        ensure!(told == (fits == Some(true), fits == Some(false)), "{fits:?} is told as {told:?}");
        Ok(())
    }
}
