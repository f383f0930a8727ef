//! The state in which a simulated session starts.

use std::sync::Arc;

use super::{agent::random_turn, compactions::random_compaction, vault::Vault};
use crate::{
    actor::random::Rng,
    agent::Config,
    message::History,
    provider::{self, DeltaStream, Provider, ProviderError, Request, RequestContext},
    run::Settings,
    store::{Labels, StoredState},
    tool::ToolSet,
    tree::{Node, NodeId, Tree},
};

/// A provider that is never called.
struct Nobody;

#[async_trait::async_trait]
impl Provider for Nobody {
    fn name(&self) -> &'static str {
        "nobody"
    }

    async fn stream(&self, _: Request, _: RequestContext) -> Result<DeltaStream, ProviderError> {
        unreachable!("the agent is a model")
    }
}

pub(super) fn config() -> Arc<Config> {
    Arc::new(Config {
        model: provider::Model::new(Arc::new(Nobody), "one"),
        settings: Settings::default(),
        tools: ToolSet::new(),
        registry: None,
        extras: None,
    })
}

/// Returns a randomly changed configuration. The change affects the saved part or the unsaved part. Sometimes nothing
/// changes.
pub(super) fn random_config(before: &Arc<Config>, rng: &mut Rng) -> Arc<Config> {
    let mut config = Config::clone(before);
    match rng.below(8) {
        0 => config.model = provider::Model::new(Arc::new(Nobody), rng.pick(&["one", "two"])),
        1 => config.settings.system = rng.pick(&[None, Some("brief"), Some("long")]).map(Arc::from),
        2 | 3 => config.settings.options.set_max_tokens(rng.pick(&[None, Some(1), Some(2)])),
        4 => config.settings.options = config.settings.options.with_api_key(rng.pick(&["a key", "another"])),
        5 => config.settings.max_steps = rng.pick(&[None, Some(3)]),
        6 => config.model = config.model.as_fallback_for("gone:saved"),
        _ => {}
    }
    Arc::new(config)
}

/// Returns random labels.
pub(super) fn random_labels(rng: &mut Rng) -> Labels {
    let user = rng.pick(&[None, None, Some("ann"), Some("ben")]);
    Labels::new(user.map(|user| ("user", user))).expect("the labels are valid")
}

/// Puts a random conversation into the store. Its node ids may have gaps.
pub(super) fn put_random(vault: &mut Vault, state: StoredState, rng: &mut Rng) {
    let mut tree = Tree::new();
    let compactions = rng.pick(&[0, 30]);
    for number in 0..rng.pick(&[0, 1, 2, 5, 9]) {
        let compaction = random_compaction(number, tree.history(), rng).filter(|_| rng.percent(compactions));
        let turn = random_turn(number, tree.history(), rng);
        tree.push_turn(compaction.into_iter().chain(turn), crate::message::Usage::default());
        if rng.percent(20) {
            tree.clear();
        } else if rng.percent(40) {
            let ends: Vec<NodeId> = tree
                .nodes()
                .filter(|node| node.message().tool_uses().next().is_none())
                .filter(|node| node.message().role == crate::message::Role::Assistant)
                .map(Node::id)
                .collect();
            if !ends.is_empty() {
                tree.navigate(rng.pick(&ends)).expect("the node exists");
            }
        }
    }
    let gap = rng.pick(&[1, 1, 3]);
    let id = |id: NodeId| NodeId::new(id.get() * gap).expect("the id is not 0");
    // Earlier versions did not mark the nodes that were left open.
    let marks = rng.percent(70);
    vault.put(state);
    let stored = vault.stored.as_mut().expect("the conversation was just stored");
    stored.nodes.extend(tree.nodes().map(|node| {
        let copy = Node::new(id(node.id()), node.parent().map(id), Arc::clone(node.message()));
        copy.with_left_open(marks && node.left_open())
    }));
    stored.cursors.extend(tree.cursors().map(|(node, child)| (id(node), id(child))));
    stored.head = tree.head().map(id);
}

/// Returns the stored tree, with the history of its path.
pub(super) fn read(vault: &Vault) -> Result<(Tree, History), String> {
    let stored = vault.stored.as_ref().ok_or("nothing is stored")?;
    let (tree, ..) = super::vault::content(stored)?;
    let history = tree.history().clone();
    Ok((tree, history))
}
