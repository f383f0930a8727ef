//! The promises that are checked when nothing is left to do.

use std::collections::HashSet;

use super::{Regenerated, Start, World, life::Life};
use crate::{
    actor::simulation::{Check, ensure},
    agent::{
        Durable,
        process::{Condition, Oracle},
    },
    message::{Content, DecisionKind, Message, MessageId, Role, Timestamp},
    run::{Accepted, KnownPrompt, Prompt, PromptId, PromptState, RunOutcome},
    store::Stored,
    tree::{Node, NodeId, Tree},
};

impl World {
    pub(super) fn check_end(&mut self) -> Check {
        let common = &self.common;
        let Some(stored) = common.place.stored() else {
            let is_lost = common.outside.script.level == Durable::InFlight
                && !common.outside.oracle.acknowledged.is_empty();
            ensure!(!is_lost, "prompts were acknowledged, and nothing is stored");
            return Ok(());
        };
        ensure!(stored.turn.is_none(), "a turn stays recorded: {:?}", stored.turn);
        every_path_keeps_the_law(stored)?;
        decisions_are_stated(&common.outside.oracle, stored)?;
        self.nothing_acknowledged_is_lost(stored)?;
        self.keyed_calls_have_results(stored)?;
        self.every_prompt_has_an_outcome()
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

    /// The outcome of each prompt with an id is stored with the last node of its run, unless the prompt was staged and
    /// not used. A process that opens the conversation knows the outcome, and does not accept the prompt again.
    fn every_prompt_has_an_outcome(&mut self) -> Check {
        let Self { common, .. } = self;
        let Some(stored) = common.place.stored().filter(|_| common.has_ids).cloned() else { return Ok(()) };
        let tree = Tree::restored(stored.nodes, stored.head, stored.cursors, stored.next);
        let tree = tree.map_err(|error| error.to_string())?;
        let outcomes = stored.last_run.map(|end| end.prompts).unwrap_or_default();
        let mut life = Life::begin(common, Condition::Stable)?.ok_or("the conversation is not opened")?;
        for (number, start) in common.starts.iter().enumerate() {
            let text = format!("prompt {number}");
            if !matches!(start, Start::Prompt | Start::Ask) || common.place.has_returned_unused(&text) {
                continue;
            }
            let id = PromptId::new(text.as_str());
            let known = outcomes.iter().find(|known| known.id == id);
            let known = known.ok_or_else(|| format!("{text} has no stored outcome"))?;
            outcome_covers_the_prompt(&tree, known, &text)?;
            let again =
                life.process.repeat(&mut common.outside, Prompt::new("again").with_id(text.as_str()))?;
            ensure!(again == Accepted::Known { state: known.state.clone() }, "{text} again gives {again:?}");
            let opened = life.core.known_prompt(&id);
            ensure!(opened == Some(known), "the session knows {opened:?}, not {known:?}");
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
        let (own, other) = (self.contents(|_| false), undisturbed.contents(|_| false));
        ensure!(own == other, "the conversation is {own:#?}, undisturbed {other:#?}");
        Ok(())
    }

    /// Returns the contents of the tree without ids and times, and without the content of messages for which `is_hidden`
    /// returns true.
    ///
    /// Compactions are left out, because they depend on the moments at which prompts are sent and processes end.
    pub(super) fn contents(&self, is_hidden: impl Fn(&Message) -> bool) -> Vec<String> {
        let Some(stored) = self.common.place.stored() else { return Vec::new() };
        let tree = Tree::restored(stored.nodes.clone(), stored.head, [], stored.next);
        let tree = tree.expect("the stored nodes form a tree, as checked before");
        let own: Vec<&Node> = tree.nodes().filter(|node| !is_compaction(node)).collect();
        let place = |node: &Node| own.iter().position(|other| other.id() == node.id());
        let content = |node: &&Node| {
            let message = node.message();
            let parent = own_ancestor(&tree, node.parent()).and_then(place);
            let own = Some(without_times(&message.content)).filter(|_| !is_hidden(message));
            let text = format!("{parent:?} {:?} {own:?}", message.role);
            // The agent appends a number to the id of a tool use that was used before.
            text.split('_').map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit())).collect()
        };
        own.iter().map(content).collect()
    }
}

fn is_compaction(node: &Node) -> bool {
    node.message().compaction.is_some()
}

/// Returns the nearest node at or above this one that is not a compaction.
fn own_ancestor(tree: &Tree, node: Option<NodeId>) -> Option<&Node> {
    let node = tree.node(node?)?;
    if is_compaction(node) { own_ancestor(tree, node.parent()) } else { Some(node) }
}

/// Returns the content without the parts of decisions that may differ after a restart: all except their inputs. A tool
/// that must not run again may need another decision.
fn without_times(content: &[Content]) -> Vec<Content> {
    let mut content = content.to_vec();
    for block in &mut content {
        let Content::ToolResult(result) = block else { continue };
        result.decision.take_if(|own| own.input.is_none());
        if let Some(own) = &mut result.decision {
            (own.kind, own.at, own.by) = (DecisionKind::ExecuteWith, Timestamp::default(), None);
        }
    }
    content
}

/// The result of each tool use about which a decision was acknowledged states the decision and its name.
fn decisions_are_stated(oracle: &Oracle, stored: &Stored) -> Check {
    for node in &stored.nodes {
        let Some(turn) = node.message().id.as_ref().and_then(MessageId::turn) else { continue };
        for result in node.message().tool_results() {
            let is_decided = oracle.is_decided(turn, &result.tool_use_id);
            let is_stated = result.decision.as_ref().is_some_and(|own| own.by.is_some());
            ensure!(!is_decided || is_stated, "a decision was acknowledged, but the result is {result:?}");
        }
    }
    Ok(())
}

/// The history law holds on each path to a leaf.
fn every_path_keeps_the_law(stored: &Stored) -> Check {
    let tree = Tree::restored(stored.nodes.clone(), stored.head, stored.cursors.clone(), stored.next);
    let mut tree = tree.map_err(|error| error.to_string())?;
    let nodes: Vec<_> = tree.nodes().map(Node::id).collect();
    for node in nodes {
        if tree.children(node).is_some_and(|mut children| children.next().is_none()) {
            let leaf = tree.node(node).expect("it is a node of the tree");
            // No path ends at an unanswered prompt.
            match leaf.parent().filter(|_| tree.is_unanswered(leaf)) {
                None if tree.is_unanswered(leaf) => tree.clear(),
                parent => tree.navigate(parent.unwrap_or(node)).map_err(|error| error.to_string())?,
            }
            tree.history().check().map_err(|error| format!("below {node}: {error}"))?;
        }
    }
    Ok(())
}

/// A prompt with an outcome has ended. If the tree contains the prompt, the outcome names a node at or below it, and no
/// other prompt has started a turn between the two.
fn outcome_covers_the_prompt(tree: &Tree, known: &KnownPrompt, text: &str) -> Check {
    ensure!(matches!(known.state, PromptState::Ended { .. }), "{text} has the outcome {known:?}");
    let Some(prompt) = tree.nodes().find(|node| node.message().text() == text) else {
        return Ok(());
    };
    let own = prompt.id();
    let has_failed = matches!(known.state, PromptState::Ended { outcome: RunOutcome::Failed { .. } });
    if known.through.is_none() && has_failed {
        // The run has kept nothing but the prompt. Only a later run may have answered it.
        let turn = |node: &Node| node.message().id.as_ref().and_then(MessageId::turn);
        let children = tree.nodes().filter(|node| node.parent() == Some(own));
        let mut answers = children.filter(|node| node.message().role == Role::Assistant);
        let own_answer = answers.find(|answer| turn(answer).is_none() || turn(answer) == turn(prompt));
        ensure!(own_answer.is_none(), "{text} failed without a node, and has {own_answer:?}");
        return Ok(());
    }
    let is_compaction = |node: &NodeId| tree.node(*node).is_some_and(is_compaction);
    ensure!(
        !known.through.is_some_and(|node| is_compaction(&node)),
        "{text} ends at a compaction: {known:?}"
    );
    let mut node = known.through;
    while let Some(other) = node.filter(|node| *node != own).and_then(|node| tree.node(node)) {
        node = other.parent();
        let before = own_ancestor(tree, node);
        let follows_a_turn = before.is_some_and(|node| node.message().role == Role::Assistant);
        let starts_a_turn = follows_a_turn && other.message().text().starts_with("prompt ");
        ensure!(!starts_a_turn, "the outcome of {text} covers {:?}: {known:?}", other.message());
    }
    ensure!(node == Some(own), "the outcome of {text} at {own} is {known:?}");
    Ok(())
}
