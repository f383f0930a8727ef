//! The promises of durable turns, checked with the ledger and the stored conversations.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use omni_agent::{
    ErrorKind,
    agent::{Agent, Durable},
    message::ToolResult,
    run::RunOutcome,
    session::Session,
    store::{ConversationId, Store, custom::Stored},
    testing::ScriptedProvider,
    tree::{Node, Tree},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{
    facts::{Fact, Facts, gives_back, has_id, leaves_unused},
    plan::{Kind, Plan, Stop},
};

/// The number of prompts by their outcome.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) committed: usize,
    pub(crate) given_back: usize,
    pub(crate) tools: usize,
    pub(crate) repeated: usize,
    pub(crate) uncertain: usize,
    pub(crate) decided: usize,
    pub(crate) abandoned: usize,
}

/// Checks everything that must hold at any time.
pub(crate) async fn check(store: &dyn Store, facts: &Facts) -> Counts {
    let mut counts = Counts::default();
    check_effects(facts, &mut counts);
    for (name, sent) in &facts.begun {
        match store.load(&ConversationId::new(name.as_str()).unwrap()).await {
            Ok(stored) => check_conversation(name, sent, &stored, facts, &mut counts),
            // The process was killed before its first prompt was stored.
            Err(error) if error.is_not_found() => {
                assert!(sent.is_disjoint(&facts.accepted), "{name} is lost");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    counts
}

/// Checks that everything has ended. No process works on the store.
pub(crate) async fn check_end(store: Arc<dyn Store>, facts: &Facts) -> Counts {
    for (name, sent) in &facts.begun {
        let id = ConversationId::new(name.as_str()).unwrap();
        let turn = store.turn(&id).await.unwrap();
        assert!(turn.is_none(), "{name}: the turn has not ended: {turn:?}");
        assert!(facts.finished.contains(name), "{name} is not finished");
        check_outcomes(&store, &id, sent.intersection(&facts.accepted), facts).await;
    }
    check(&*store, facts).await
}

/// Checks that each accepted prompt has an outcome, unless it was given back from the queue. The outcome of a prompt in
/// the tree names a node at or below the prompt.
async fn check_outcomes(
    store: &Arc<dyn Store>,
    id: &ConversationId,
    accepted: impl Iterator<Item = &String>,
    facts: &Facts,
) {
    let Stored { last_run, .. } = store.load(id).await.unwrap();
    let until = Instant::now() + Duration::from_mins(1);
    let session = loop {
        let agent = Agent::builder().model(ScriptedProvider::new([]).model());
        let builder = Session::builder(Arc::clone(store)).agent(agent).durable(Durable::InFlight);
        match builder.open(id.clone()).await {
            Ok(session) => break session,
            // The lease of a process that was killed has not expired yet.
            Err(error) if error.kind() == ErrorKind::OpenElsewhere && Instant::now() < until => {
                sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{id}: {error}"),
        }
    };
    let tree = session.tree().await.unwrap();
    for prompt in accepted {
        let mut ends = facts.ends.get(id.as_str()).into_iter().flatten().chain(&last_run);
        if ends.any(|end| leaves_unused(end, prompt)) {
            continue;
        }
        let outcome = session.outcome(prompt.as_str()).await;
        let outcome = outcome.unwrap_or_else(|error| panic!("{prompt} has no outcome: {error}"));
        let own = tree.nodes().find(|node| has_id(node.message(), prompt)).map(Node::id);
        let mut node = outcome.through.filter(|_| own.is_some());
        while node != own {
            let other = node.and_then(|node| tree.node(node));
            let other = other.unwrap_or_else(|| panic!("{prompt} has the outcome {outcome:?}"));
            node = other.parent();
        }
    }
    session.stop(Duration::from_secs(10)).await.unwrap();
}

/// Checks the effects of tools, which are lines of the ledger.
fn check_effects(facts: &Facts, counts: &mut Counts) {
    let mut calls: BTreeMap<&str, Vec<(&str, &Value)>> = BTreeMap::new();
    let mut stopped: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut decided, mut keys) = (BTreeSet::new(), BTreeMap::new());
    for line in &facts.lines {
        match &line.fact {
            Fact::Began { tool_use, kind, key, input } => {
                let calls = calls.entry(tool_use).or_default();
                calls.push((key, input));
                let is_same = match kind {
                    // A safe tool waits for no record, so its turn may begin anew with another id.
                    Kind::Safe => calls.iter().all(|call| call.1 == calls[0].1),
                    Kind::Keyed => calls.iter().all(|call| *call == calls[0]),
                    Kind::Never | Kind::Asked => calls.len() == 1,
                };
                assert!(is_same, "{kind:?} ran again for {tool_use}: {calls:?}");
                assert!(keys.insert(key, tool_use).is_none_or(|of| of == tool_use), "{key} names two calls");
                let stop = stopped.get(tool_use.split('.').next().unwrap());
                assert!(
                    stop.is_none_or(|life| *life == line.life),
                    "{tool_use} ran after its run was stopped"
                );
            }
            Fact::Stopped { prompt, .. } => {
                stopped.insert(prompt, line.life);
            }
            Fact::Decided { tool_use, .. } => {
                assert!(decided.insert(tool_use), "{tool_use} was decided twice");
            }
            _ => {}
        }
    }
    counts.tools += calls.len();
    counts.repeated += calls.values().filter(|calls| calls.len() > 1).count();
    counts.decided += decided.len();
}

pub(crate) fn check_conversation(
    name: &str,
    sent: &BTreeSet<String>,
    stored: &Stored,
    facts: &Facts,
    counts: &mut Counts,
) {
    let tree = Tree::hydrate(stored.nodes.clone(), stored.head, stored.cursors.clone()).unwrap();
    tree.history().check().unwrap_or_else(|error| panic!("{name}: {error}"));
    let turn = stored.turn.as_deref();
    if let Some(turn) = turn {
        let mut history = tree.history().clone();
        turn.pending().iter().for_each(|message| history.push(message.clone()));
        let is_lawful = history.check().is_ok() || history.check_sendable().is_ok();
        assert!(is_lawful, "{name}: {:?}", turn.pending());
    }
    let ends = || facts.ends.get(name).into_iter().flatten().chain(&stored.last_run);
    counts.abandoned += ends().filter(|end| matches!(end.outcome, RunOutcome::Abandoned)).count();
    for prompt in sent {
        let committed = stored.nodes.iter().filter(|node| has_id(node.message(), prompt)).count();
        let given_back = ends().any(|end| gives_back(end, prompt));
        let in_flight = turn.is_some_and(|turn| {
            let staged = format!("{prompt:?}");
            turn.pending().iter().any(|message| has_id(message, prompt)) || turn.record.core.contains(&staged)
        });
        let places = committed + usize::from(given_back) + usize::from(in_flight);
        assert!(
            places <= 1,
            "{prompt}: committed {committed}, given back {given_back}, in flight {in_flight}"
        );
        assert!(places == 1 || !facts.accepted.contains(prompt), "{prompt} was accepted, and is lost");
        counts.committed += committed;
        counts.given_back += usize::from(given_back);
    }
    let was_abandoned = ends().any(|end| matches!(end.outcome, RunOutcome::Abandoned));
    check_answers(&tree, was_abandoned, facts, counts);
}

/// Checks that each decision has its effect, and that each turn that nobody stopped is complete.
fn check_answers(tree: &Tree, was_abandoned: bool, facts: &Facts, counts: &mut Counts) {
    let messages = || tree.nodes().map(omni_agent::tree::Node::message);
    let results: Vec<&ToolResult> = messages().flat_map(|message| message.tool_results()).collect();
    let mut by_use = BTreeMap::new();
    for result in &results {
        let tool_use = result.tool_use_id.as_str();
        assert!(by_use.insert(tool_use, result.text()).is_none(), "{tool_use} has two results");
    }
    counts.uncertain += by_use.values().filter(|text| text.contains("not known whether")).count();
    let mut stopped = BTreeMap::new();
    for line in &facts.lines {
        match &line.fact {
            Fact::Stopped { prompt, stop } => {
                stopped.insert(prompt.as_str(), *stop);
            }
            Fact::Decided { tool_use, mark, is_rejected } => {
                let Some(text) = by_use.get(tool_use.as_str()) else { continue };
                let is_open =
                    text.contains("not known whether") || text.to_lowercase().contains("interrupted");
                let shows = mark.as_ref().map_or_else(|| text.contains(tool_use), |mark| text.contains(mark));
                assert!(shows || (is_open && !is_rejected), "{tool_use}: {:?} became {text}", line.fact);
            }
            _ => {}
        }
    }
    for plan in messages().filter_map(|message| Plan::read(&message.text())) {
        let answers = messages().filter(|message| message.text() == plan.answer()).count();
        assert!(answers <= 1, "{} was answered {answers} times", plan.prompt);
        let stop = stopped.get(plan.prompt.as_str());
        assert!(stop != Some(&Stop::Cancel), "{} was cancelled, and is committed", plan.prompt);
        let may_lack = plan.stop.is_some() || was_abandoned;
        assert!(answers == 1 || may_lack, "{} has no answer", plan.prompt);
    }
}
