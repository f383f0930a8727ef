//! The checks at the end of a schedule, when everything has ended.

use std::collections::{BTreeMap, BTreeSet};

use omni_agent::{
    agent::Durable,
    message::{Role, Timestamp, ToolResult, UsageSum},
    store::{
        Filter, Labels, MemoryStore, Page, Store,
        custom::{Stored, Turns},
    },
    tree::{Node, Tree},
};

use super::world::{Facts, TOKENS, World, prompt_of};

/// The content of the conversations of a schedule.
#[derive(Default)]
struct Found {
    /// The tool uses that have a sub-agent.
    calls: BTreeSet<String>,
    /// The requests with a row, and the conversations of the rows.
    counted: BTreeMap<u64, String>,
    rows: u64,
    /// The prompts of which a budget has refused a request.
    refused: BTreeSet<String>,
}

pub(crate) async fn check(world: &World, store: &MemoryStore) {
    let all = store.list(&Page::first(9_999).into()).await.unwrap();
    let turns = store.turns(Turns::All, &Page::first(9).into()).await.unwrap();
    if !turns.is_empty() {
        world.breach(format!("turns are left: {turns:?}"));
    }
    if world.facts().deleted && !all.is_empty() {
        world.breach(format!("after the deletion, the store has {all:?}"));
    }
    let has_root = |root: &str| all.iter().any(|own| own.id.as_str() == root);
    let mut found = Found::default();
    for own in &all {
        let call = own.labels.get("omni.call");
        if call.is_some_and(|call| !found.calls.insert(call.to_owned())) {
            world.breach(format!("{call:?} has two sub-agents"));
        }
        if call.is_some() && !own.labels.get("omni.root").is_some_and(has_root) {
            world.breach(format!("{call:?} is stored without its root, with the labels {:?}", own.labels));
        }
        check_conversation(world, call, &store.load(&own.id).await.unwrap(), &mut found);
        let name = call.unwrap_or("root");
        for row in store.usage(&own.id, &Page::first(9_999)).await.unwrap() {
            found.rows += 1;
            let number = row.usage.reasoning;
            if number > 0 && found.counted.insert(number, name.to_owned()).is_some() {
                world.breach(format!("request {number} is in two rows, the second time at {name}"));
            }
            if row.conversation.is_some() {
                world.breach(format!("{name} stores the row {row:?}"));
            }
        }
    }
    check_tenant(world, &all.iter().map(|own| own.labels.clone()).collect::<Vec<_>>());
    let used = store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
    let breaches = {
        let facts = world.facts();
        let mut breaches = budget_breaches(world, &facts, &found);
        breaches.extend(usage_breaches(&facts, &found, &used));
        let erased = found.calls.iter().filter(|call| facts.erased.contains(prompt_of(call)));
        breaches.extend(erased.map(|call| format!("{call} is stored, and was erased")));
        breaches
    };
    for breach in breaches {
        world.breach(breach);
    }
}

/// Checks the conversation of the root, or of the sub-agent of a call.
fn check_conversation(world: &World, call: Option<&str>, stored: &Stored, found: &mut Found) {
    let tree = Tree::hydrate(stored.nodes.clone(), stored.head, stored.cursors.clone()).unwrap();
    if let Err(error) = tree.history().check() {
        world.breach(format!("{call:?}: {error}"));
    }
    for result in tree.nodes().flat_map(|node| node.message().tool_results()) {
        check_result(world, result);
    }
    let end = stored.last_run.as_ref().map(|end| format!("{:?}", end.outcome)).unwrap_or_default();
    let Some(call) = call else {
        // The ids of the root's prompts are the names of the prompts.
        let known = stored.last_run.iter().flat_map(|end| &end.prompts);
        let known = known.filter(|known| format!("{:?}", known.state).contains("Budget"));
        return found.refused.extend(known.map(|known| known.id.as_str().to_owned()));
    };
    let messages = stored.nodes.iter().map(Node::message);
    let prompts = messages.filter(|message| message.role == Role::User && message.text() == call).count();
    if prompts > 1 {
        world.breach(format!("{call} has its prompt {prompts} times"));
    }
    if end.contains("Budget") {
        found.refused.insert(prompt_of(call).to_owned());
    }
    let is_kept = world.shape.level == Durable::InFlight && !world.shape.has_limits();
    let is_cut = world.facts().cut.contains(prompt_of(call));
    if end.contains("Discarded") && is_kept && !is_cut {
        world.breach(format!("the turn of {call} was discarded: {end}"));
    }
}

/// Compares the ledgers with the requests that the models have received.
fn usage_breaches(facts: &Facts, found: &Found, used: &[UsageSum]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (number, name) in &found.counted {
        let request = usize::try_from(*number - 1).ok().and_then(|index| facts.requests.get(index));
        let is_own = |path: &str| if name == "root" { !path.contains('/') } else { path == name };
        if request.is_none_or(|request| !is_own(&request.path)) {
            breaches.push(format!("the row of {number} is in the ledger of {name}: {request:?}"));
        }
    }
    let sum: u64 = used.iter().map(|own| own.usage.reasoning).sum();
    let rows: u64 = used.iter().map(|own| own.requests).sum();
    let requests = || facts.requests.iter().zip(1..);
    let made: u64 = requests().map(|(_, number)| number).sum();
    // A process that has died may have lost the rows that it had not stored.
    let certain = requests().filter(|(request, _)| !facts.crashed.contains(&request.life));
    let certain: u64 = certain.map(|(_, number)| number).sum();
    if rows > facts.requests.len() as u64 || sum > made || sum < certain {
        let lacks: Vec<_> = requests().filter(|(_, number)| !found.counted.contains_key(number)).collect();
        breaches.push(format!(
            "the sum of {rows} requests is {sum}, that of the models is {made}, of which {certain} is certain; no \
             conversation has {lacks:?}"
        ));
    }
    // Sums of deleted conversations are kept.
    let stored = (found.counted.keys().sum(), found.rows);
    if sum < stored.0 || !facts.has_deleted && (sum, rows) != stored {
        breaches.push(format!("the sum of {rows} requests is {sum}, and the rows have {stored:?}"));
    }
    breaches
}

/// Checks that the result of a tool use is the effect of the decision about it.
fn check_result(world: &World, result: &ToolResult) {
    let (id, text) = (result.tool_use_id.as_str(), result.text());
    let facts = world.facts();
    let asked = facts.asked.get(id).cloned().unwrap_or_default();
    let marks = facts.asked.iter().filter(|(name, _)| *name != id);
    let foreign = marks.flat_map(|(_, asked)| &asked.said).find(|said| text.contains(&said.mark));
    let foreign = foreign.cloned();
    let is_called = facts.names.values().any(|name| name == id);
    drop(facts);
    if let Some(said) = foreign.filter(|_| result.name != "sub") {
        world.breach(format!("{id} has the decision {said:?} of another tool use"));
    }
    let is_cut =
        ["nterrupted", "not known", "may have had an effect"].iter().any(|words| text.contains(words));
    if let Some((said, _)) = asked.acked.filter(|_| !is_cut) {
        let shows = said.is_plain && text.starts_with(&format!("did {id}")) || text.contains(&said.mark);
        if !shows {
            world.breach(format!("{id} was decided as {said:?}, and has the result {text}"));
        }
    }
    let reasons = ["run already", "can't run here", "budget", "limit"];
    if text.contains("has failed") && !reasons.iter().any(|reason| text.contains(reason)) {
        world.breach(format!("the call {id} has the result {text}"));
    }
    if result.name == "sub" && is_called && text.contains("run already") {
        world.breach(format!("the repeated call {id} was refused: {text}"));
    }
}

/// Checks that everything has the labels of the last tenant.
fn check_tenant(world: &World, all: &[Labels]) {
    let facts = world.facts();
    let tenant = format!("t{}", facts.tenant);
    let is_other = |labels: &&Labels| labels.get("tenant") != Some(&tenant);
    let other = all.iter().find(is_other).filter(|_| facts.new_tenant.is_none()).cloned();
    drop(facts);
    if let Some(other) = other {
        world.breach(format!("{other:?} are not the labels of {tenant}"));
    }
}

/// Returns the prompts whose requests do not fit their budgets.
fn budget_breaches(world: &World, facts: &Facts, found: &Found) -> Vec<String> {
    let (mut breaches, Found { counted, refused, .. }) = (Vec::new(), found);
    let known = |index: usize| counted.contains_key(&(index as u64 + 1));
    if let Some(most) = world.shape.budget {
        for (prompt, _) in &facts.prompts {
            let own =
                facts.requests.iter().enumerate().filter(|(_, request)| prompt_of(&request.path) == prompt);
            let own = own.filter(|(index, request)| known(*index) || !facts.crashed.contains(&request.life));
            let made = own.count() as u64;
            let most = most.requests.map(u64::from).or(most.tokens.map(|tokens| tokens / TOKENS)).unwrap();
            if made > most {
                breaches.push(format!("{prompt} has made {made} requests, and its budget allows {most}"));
            }
            let all =
                facts.requests.iter().filter(|request| prompt_of(&request.path) == prompt).count() as u64;
            let is_exact = world.shape.budget.unwrap().tokens.is_none() && world.shape.shared.is_none();
            if is_exact && refused.contains(prompt) && all < most {
                breaches
                    .push(format!("{prompt} was refused after {all} requests, and its budget allows {most}"));
            }
        }
    }
    breaches
}
