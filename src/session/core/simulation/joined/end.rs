//! The promises that are checked when nothing is left to do.

use std::collections::HashSet;

use super::{Regenerated, World};
use crate::{
    actor::simulation::{Check, ensure},
    agent::Durable,
    store::Stored,
    tree::{Node, Tree},
};

impl World {
    pub(super) fn check_end(&self) -> Check {
        let common = &self.common;
        let Some(stored) = common.place.stored() else {
            let is_lost = common.outside.script.level == Durable::InFlight
                && !common.outside.oracle.acknowledged.is_empty();
            ensure!(!is_lost, "prompts were acknowledged, and nothing is stored");
            return Ok(());
        };
        ensure!(stored.turn.is_none(), "a turn stays recorded: {:?}", stored.turn);
        every_path_keeps_the_law(stored)?;
        self.nothing_acknowledged_is_lost(stored)?;
        self.keyed_calls_have_results(stored)
    }

    /// Every acknowledged prompt is used once, or was returned by the end of its run. Every returned response is stored.
    fn nothing_acknowledged_is_lost(&self, stored: &Stored) -> Check {
        let Self { common, .. } = self;
        let texts: Vec<_> = stored.nodes.iter().map(|node| node.message().text()).collect();
        for prompt in &common.outside.oracle.acknowledged {
            if prompt.starts_with("regenerate") {
                continue;
            }
            let count = texts.iter().filter(|text| *text == prompt).count();
            ensure!(count <= 1, "{prompt} was used {count} times");
            let is_kept = count == 1 || common.place.has_returned(prompt);
            let is_promised = common.outside.script.level == Durable::InFlight;
            ensure!(is_kept || !is_promised, "{prompt} was acknowledged and is lost");
        }
        self.regenerated_answers_are_stored(stored)?;
        let turns = stored.nodes.iter().filter_map(|node| node.message().id.as_ref()?.turn());
        let turns: HashSet<_> = turns.collect();
        for answered in &common.outside.oracle.answered {
            let is_promised = common.outside.script.level == Durable::InFlight;
            ensure!(!is_promised || turns.contains(answered), "an answer of {answered} is lost");
        }
        Ok(())
    }

    /// A run that was started for another response has added one, or has returned its prompt.
    fn regenerated_answers_are_stored(&self, stored: &Stored) -> Check {
        let Self { common, .. } = self;
        for Regenerated { number, user, text, before } in &common.regenerated {
            let is_acknowledged =
                common.outside.oracle.acknowledged.contains(&format!("regenerate {number}"));
            let responses = stored.nodes.iter().filter(|node| node.parent() == Some(*user)).count();
            let is_kept = responses > *before || common.place.has_returned(text);
            let is_promised = is_acknowledged && common.outside.script.level == Durable::InFlight;
            ensure!(is_kept || !is_promised, "the acknowledged request {number} is lost");
        }
        Ok(())
    }

    /// Each call with a key has one result, so a repeated call had its key.
    fn keyed_calls_have_results(&self, stored: &Stored) -> Check {
        if !self.common.outside.script.is_plain {
            return Ok(());
        }
        let results = stored.nodes.iter().flat_map(|node| node.message().tool_results());
        let ran = results.filter(|result| result.name == "put" && !result.is_error).count();
        let keyed = self.common.outside.oracle.keyed();
        ensure!(keyed == ran, "{keyed} calls have different keys, but {ran} results are kept");
        Ok(())
    }

    /// A recovered conversation of a deterministic model equals the undisturbed one.
    pub(super) fn ends_as_undisturbed(&self) -> Check {
        let mut undisturbed = Self::new(self.seed, false, None, false);
        undisturbed.play()?;
        let (own, other) = (self.contents(), undisturbed.contents());
        ensure!(own == other, "the conversation is {own:#?}, undisturbed {other:#?}");
        Ok(())
    }

    /// Returns the contents of the tree without ids and times.
    fn contents(&self) -> Vec<String> {
        let content = |node: &Node| {
            let message = node.message();
            let text = format!("{:?} {:?} {:?}", node.parent(), message.role, message.content);
            // The agent appends a number to the id of a tool use that was used before.
            text.split('_').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())).collect()
        };
        self.common.place.stored().iter().flat_map(|stored| &stored.nodes).map(content).collect()
    }
}

/// The history law holds on each path to a leaf.
fn every_path_keeps_the_law(stored: &Stored) -> Check {
    let tree = Tree::restored(stored.nodes.clone(), stored.head, stored.cursors.clone(), stored.next);
    let mut tree = tree.map_err(|error| error.to_string())?;
    let nodes: Vec<_> = tree.nodes().map(Node::id).collect();
    for node in nodes {
        if tree.children(node).is_some_and(|mut children| children.next().is_none()) {
            tree.navigate(node).map_err(|error| error.to_string())?;
            tree.history().check().map_err(|error| format!("below {node}: {error}"))?;
        }
    }
    Ok(())
}
