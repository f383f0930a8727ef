//! Bounds what checking a value costs.
//!
//! `boon` follows every keyword that applies to a value by recursion, with no limit of its own. A recursive
//! schema with two alternatives that both look at the same property doubles the work at each level of the
//! value; a chain of references takes stack for each link. So the schema's references are kept as a graph: what
//! is too entangled for any value is refused when the schema is compiled, and where it depends on the value,
//! the checker's way through both is counted before it is gone.

use std::collections::HashMap;

use serde_json::Value;

/// How many pairs of a subschema and a value one check may visit.
const MAX_VISITS: usize = 200_000;

/// How many such pairs may be open at once, each in the one before.
const MAX_FRAMES: usize = 1_000;

/// How many of them fit on any thread's stack: each takes up to twenty kilobytes in a debug build.
const FEW_FRAMES: usize = 16;

/// How many subschemas may apply to one and the same value, one through the other, counted as often as they
/// apply.
const MAX_EXPANSION: usize = 1_000;

/// How long a chain of subschemas may be that apply to one and the same value.
const MAX_CHAIN: usize = 64;

/// How a subschema is applied by the one that it is written in.
pub(super) enum Edge {
    /// To the same value.
    Same,
    /// To the property of this name.
    Property(String),
    /// To properties whose names match a pattern.
    Pattern,
    /// To properties that are not named.
    OtherProperty,
    /// To the names of properties.
    Name,
    /// To the next item that none is kept for yet.
    Prefix,
    /// To the items behind those.
    OtherItem,
    /// To all items.
    Item,
    /// Not applied, only written there.
    Nowhere,
}

/// The subschemas that a subschema applies, by index.
#[derive(Default)]
struct Node {
    same: Vec<usize>,
    properties: HashMap<String, usize>,
    patterns: Vec<usize>,
    other_properties: Vec<usize>,
    names: Vec<usize>,
    prefix: Vec<usize>,
    other_items: Vec<usize>,
    items: Vec<usize>,
}

impl Node {
    fn all(&self) -> impl Iterator<Item = usize> {
        let lists = [
            &self.same,
            &self.patterns,
            &self.other_properties,
            &self.names,
            &self.prefix,
            &self.other_items,
            &self.items,
        ];
        lists.into_iter().flatten().chain(self.properties.values()).copied()
    }
}

/// The graph of a schema; the first node is the schema itself.
#[derive(Default)]
pub(super) struct CostModel {
    nodes: Vec<Node>,
    /// What all of it comes to; `None` if the schema is recursive.
    extent: Option<Extent>,
}

/// What a subschema leads to.
#[derive(Clone, Copy)]
struct Extent {
    /// How many subschemas, counted as often as they apply.
    size: usize,
    /// How many of them at most in a row.
    chain: usize,
}

/// How a check is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// On the caller's own stack.
    Shallow,
    /// On a large stack.
    Deep,
    /// Not at all.
    TooMuch,
}

impl CostModel {
    pub(super) fn add_node(&mut self) -> usize {
        self.nodes.push(Node::default());
        self.nodes.len() - 1
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn add_edge(&mut self, from: usize, edge: Edge, to: usize) {
        let node = &mut self.nodes[from];
        match edge {
            Edge::Same => node.same.push(to),
            Edge::Property(name) => {
                node.properties.insert(name, to);
            }
            Edge::Pattern => node.patterns.push(to),
            Edge::OtherProperty => node.other_properties.push(to),
            Edge::Name => node.names.push(to),
            Edge::Prefix => node.prefix.push(to),
            Edge::OtherItem => node.other_items.push(to),
            Edge::Item => node.items.push(to),
            Edge::Nowhere => {}
        }
    }

    /// Ends the building; an error if the schema is too entangled for any value.
    pub(super) fn finish(mut self) -> Result<Self, &'static str> {
        let same = self
            .extents(|node| node.same.clone())
            .ok_or("a `$ref` leads back to where it stands, without a step into the value")?;
        if same.iter().any(|extent| extent.size > MAX_EXPANSION || extent.chain > MAX_CHAIN) {
            return Err("too many subschemas apply to one and the same value");
        }
        self.extent = self.extents(|node| node.all().collect()).and_then(|extents| extents.first().copied());
        Ok(self)
    }

    /// How much each node leads to by these edges; `None` if there is a cycle.
    fn extents(&self, edges: impl Fn(&Node) -> Vec<usize>) -> Option<Vec<Extent>> {
        enum State {
            New,
            Open,
            Done(Extent),
        }
        let mut states: Vec<State> = self.nodes.iter().map(|_| State::New).collect();
        // Depth first without recursion: a node is looked at twice, before and after what it leads to.
        let mut open: Vec<usize> = (0..self.nodes.len()).collect();
        while let Some(&index) = open.last() {
            let targets = edges(&self.nodes[index]);
            match states[index] {
                State::New => {
                    states[index] = State::Open;
                    for target in targets {
                        match states[target] {
                            State::New => open.push(target),
                            State::Open => return None,
                            State::Done(_) => {}
                        }
                    }
                }
                State::Open => {
                    let mut extent = Extent { size: 1, chain: 1 };
                    for target in targets {
                        if let State::Done(inner) = states[target] {
                            extent.size = extent.size.saturating_add(inner.size);
                            extent.chain = extent.chain.max(inner.chain.saturating_add(1));
                        }
                    }
                    states[index] = State::Done(extent);
                    open.pop();
                }
                State::Done(_) => {
                    open.pop();
                }
            }
        }
        states
            .into_iter()
            .map(|state| if let State::Done(extent) = state { Some(extent) } else { None })
            .collect()
    }

    /// What checking `value`, of `values` JSON values in all, comes to.
    pub(super) fn judge(&self, value: &Value, values: usize) -> Verdict {
        if let Some(Extent { size, chain }) = self.extent
            && chain <= FEW_FRAMES
            && size.saturating_mul(values) <= MAX_VISITS
        {
            return Verdict::Shallow;
        }
        let mut walk = Walk { open: vec![(0, value, 1)], visits: 1 };
        let mut most_frames = 0;
        while let Some((index, value, frames)) = walk.open.pop() {
            if frames > MAX_FRAMES || walk.visits > MAX_VISITS {
                return Verdict::TooMuch;
            }
            most_frames = most_frames.max(frames);
            let Some(node) = self.nodes.get(index) else { continue };
            walk.push(&node.same, value, frames);
            match value {
                Value::Object(map) => {
                    for (name, value) in map {
                        walk.push(&node.patterns, value, frames);
                        walk.push(&node.names, &Value::Null, frames);
                        match node.properties.get(name) {
                            Some(&property) => walk.push(&[property], value, frames),
                            None => walk.push(&node.other_properties, value, frames),
                        }
                    }
                }
                Value::Array(items) => {
                    for (position, item) in items.iter().enumerate() {
                        walk.push(&node.items, item, frames);
                        match node.prefix.get(position) {
                            Some(&prefix) => walk.push(&[prefix], item, frames),
                            None => walk.push(&node.other_items, item, frames),
                        }
                    }
                }
                _ => {}
            }
        }
        match most_frames {
            _ if walk.visits > MAX_VISITS => Verdict::TooMuch,
            0..=FEW_FRAMES => Verdict::Shallow,
            _ => Verdict::Deep,
        }
    }
}

struct Walk<'v> {
    open: Vec<(usize, &'v Value, usize)>,
    visits: usize,
}

impl<'v> Walk<'v> {
    fn push(&mut self, nodes: &[usize], value: &'v Value, frames: usize) {
        // Counted here, so that the list of what is open stays within the limit as well.
        self.visits = self.visits.saturating_add(nodes.len());
        if self.visits <= MAX_VISITS {
            self.open.extend(nodes.iter().map(|&node| (node, value, frames + 1)));
        }
    }
}
