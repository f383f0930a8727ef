//! The checks at the end of a schedule, when everything has ended.

use std::collections::{BTreeMap, BTreeSet};

use omni_agent::{
    agent::Durable,
    message::{Role, Timestamp, ToolResult},
    store::{Filter, Labels, MemoryStore, Page, Store, custom::Turns},
    tree::{Node, Tree},
};

use super::world::{Facts, TOKENS, World, prompt_of};

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
    let (mut calls, mut counted, mut refused) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    let mut rows = 0;
    let mut sum = 0;
    for own in &all {
        let call = own.labels.get("omni.call");
        let name = call.unwrap_or("root");
        if call.is_some_and(|call| !calls.insert(call.to_owned())) {
            world.breach(format!("{name} has two sub-agents"));
        }
        if call.is_some() && !own.labels.get("omni.root").is_some_and(has_root) {
            world.breach(format!("{name} is stored without its root, with the labels {:?}", own.labels));
        }
        let stored = store.load(&own.id).await.unwrap();
        let tree = Tree::hydrate(stored.nodes.clone(), stored.head, stored.cursors.clone()).unwrap();
        if let Err(error) = tree.history().check() {
            world.breach(format!("{name}: {error}"));
        }
        let texts: Vec<_> =
            stored.nodes.iter().map(|node| (node.message().role, node.message().text())).collect();
        if let Some(call) = call {
            let prompts = texts.iter().filter(|(role, text)| *role == Role::User && text == call).count();
            if prompts > 1 {
                world.breach(format!("{name} has its prompt {prompts} times"));
            }
        }
        let end = stored.last_run.as_ref().map(|end| format!("{:?}", end.outcome)).unwrap_or_default();
        if end.contains("Budget")
            && let Some(call) = call
        {
            refused.insert(prompt_of(call).to_owned());
        }
        for known in stored.last_run.iter().flat_map(|end| &end.prompts) {
            // The ids of the root's prompts are the names of the prompts.
            if call.is_none() && format!("{:?}", known.state).contains("Budget") {
                refused.insert(known.id.as_str().to_owned());
            }
        }
        let is_kept = world.shape.level == Durable::InFlight && !world.shape.has_limits();
        if let Some(call) = call
            && end.contains("Discarded")
            && is_kept
            && !world.facts().cut.contains(prompt_of(call))
        {
            world.breach(format!("the turn of {call} was discarded: {end}"));
        }
        let results = tree.nodes().map(Node::message).flat_map(|message| message.tool_results());
        for result in results {
            check_result(world, result);
        }
        for row in store.usage(&own.id, &Page::first(9_999)).await.unwrap() {
            rows += 1;
            let number = row.usage.reasoning;
            sum += number;
            if number > 0 && counted.insert(number, name.to_owned()).is_some() {
                world.breach(format!("request {number} is in two rows, the second time at {name}"));
            }
            if row.conversation.is_some() {
                world.breach(format!("{name} stores the row {row:?}"));
            }
        }
    }
    check_tenant(world, &all.iter().map(|own| own.labels.clone()).collect::<Vec<_>>());
    let facts = world.facts();
    for (number, name) in &counted {
        let request = usize::try_from(*number - 1).ok().and_then(|index| facts.requests.get(index));
        let of_agent = |path: &str| if name == "root" { !path.contains('/') } else { path == name };
        if request.is_none_or(|request| !of_agent(&request.path)) {
            let words = format!("the row of {number} is in the ledger of {name}: {request:?}");
            drop(facts);
            return world.breach(words);
        }
    }
    let mut breaches = budget_breaches(world, &facts, &counted, &refused);
    let is_erased = |call: &&String| facts.erased.contains(prompt_of(call));
    breaches.extend(calls.iter().filter(is_erased).map(|call| format!("{call} is stored, and was erased")));
    drop(facts);
    for breach in breaches {
        world.breach(breach);
    }
    let used = store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
    let used_sum: u64 = used.iter().map(|own| own.usage.reasoning).sum();
    let used_rows: u64 = used.iter().map(|own| own.requests).sum();
    let facts = world.facts();
    let is_whole = !facts.has_deleted;
    let made: u64 = (1..=facts.requests.len() as u64).sum();
    let certain =
        facts.requests.iter().zip(1..).filter(|(request, _)| !facts.crashed.contains(&request.life));
    let certain: u64 = certain.map(|(_, number)| number).sum();
    let lacks: Vec<_> =
        facts.requests.iter().zip(1..).filter(|(_, number)| !counted.contains_key(number)).collect();
    let lacks = format!("{lacks:?}");
    drop(facts);
    let requests = world.facts().requests.len() as u64;
    if used_rows > requests {
        world.breach(format!("{used_rows} rows were stored for {requests} requests"));
    }
    if used_sum > made || used_sum < certain {
        world.breach(format!("{used_sum} requests were used; the models had {made}, of which {certain} are certain; the stored rows lack {lacks}"));
    }
    if used_sum < sum || is_whole && (used_sum, used_rows) != (sum, rows) {
        world.breach(format!("{used_sum} in {used_rows} rows were used, and {sum} in {rows} are stored"));
    }
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

/// Checks that everything has the labels of the last tenant. Only lists and sums use the labels of sub-agents. A process
/// that dies when it has created a sub-agent can't compare its labels with those of the root.
fn check_tenant(world: &World, all: &[Labels]) {
    let facts = world.facts();
    let tenant = format!("t{}", facts.tenant);
    let has_died = |labels: &Labels| {
        let born = labels.get("omni.call").and_then(|call| facts.born.get(call));
        born.is_some_and(|life| facts.crashed.contains(life))
    };
    let is_other = |labels: &&Labels| labels.get("tenant") != Some(&tenant) && !has_died(labels);
    let other = all.iter().find(is_other).filter(|_| facts.new_tenant.is_none()).cloned();
    drop(facts);
    if let Some(other) = other {
        world.breach(format!("{other:?} are not the labels of {tenant}"));
    }
}

/// Returns the prompts that have made more requests than their budget allows, and the requests that are in no ledger.
fn budget_breaches(
    world: &World,
    facts: &Facts,
    counted: &BTreeMap<u64, String>,
    refused: &BTreeSet<String>,
) -> Vec<String> {
    let mut breaches = Vec::new();
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
