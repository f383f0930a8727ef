//! Limits the cost of checking a value.
//!
//! `boon` applies the keywords of a schema by recursion, and does not limit the recursion's depth. If a recursive
//! schema has two alternatives that both check the same property, the work doubles at each level of the value. Each
//! link of a chain of references also needs space on the stack. This module therefore represents the schema's
//! references as a graph. A schema that would be too expensive for every value is refused when it is compiled. If the
//! cost depends on the value, the visits that the checker will make are counted in advance.

use std::collections::HashMap;

use serde_json::Value;

/// The maximum number of pairs of a subschema and a value that one check may visit.
const MAX_VISITS: usize = 200_000;

/// The maximum depth of nested visits in one check.
const MAX_FRAMES: usize = 1_000;

/// The depth of nested visits for which any thread's stack is large enough. Each visit needs up to twenty kilobytes in
/// a debug build.
const FEW_FRAMES: usize = 16;

/// The maximum number of subschemas that may apply to the same value. A subschema that applies several times is counted
/// several times.
const MAX_EXPANSION: usize = 1_000;

/// The maximum length of a chain of subschemas that apply to the same value.
const MAX_CHAIN: usize = 64;

/// The part of a value to which a subschema is applied.
pub(super) enum SubschemaValuePart {
    /// The same value.
    Same,
    /// The property with this name.
    Property(String),
    /// The properties whose names match a pattern.
    Pattern,
    /// The properties that are not listed by name.
    OtherProperty,
    /// The names of the properties.
    Name,
    /// The item at the next position of the prefix, which is the list of subschemas for the first items.
    Prefix,
    /// The items after the items of the prefix.
    OtherItem,
    /// All items.
    Item,
    /// No part, because the subschema is only defined here, for example in `$defs`.
    Nowhere,
}

/// The indices of the subschemas that a subschema applies, grouped by the part of the value to which they apply.
#[derive(Default)]
struct SchemaCostNode {
    same: Vec<usize>,
    properties: HashMap<String, usize>,
    patterns: Vec<usize>,
    other_properties: Vec<usize>,
    names: Vec<usize>,
    prefix: Vec<usize>,
    other_items: Vec<usize>,
    items: Vec<usize>,
}

impl SchemaCostNode {
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

/// The graph of a schema. The first node is the schema itself.
#[derive(Default)]
pub(super) struct SchemaCostModel {
    nodes: Vec<SchemaCostNode>,
    /// The extent of the whole schema, or `None` if the schema is recursive.
    extent: Option<SubschemaCountAndDepth>,
}

/// The number of subschemas that can be reached from a subschema, and the depth of their nesting.
#[derive(Clone, Copy)]
struct SubschemaCountAndDepth {
    /// The number of reachable subschemas, including the subschema itself. A subschema that applies several times is
    /// counted several times.
    size: usize,
    /// The length of the longest chain of subschemas.
    chain: usize,
}

/// How a check has to be performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemaCheckExecution {
    /// The check fits on the caller's own stack.
    Shallow,
    /// The check needs a thread with a large stack.
    Deep,
    /// The check is too expensive and must not be performed.
    TooMuch,
}

impl SchemaCostModel {
    pub(super) fn add_node(&mut self) -> usize {
        self.nodes.push(SchemaCostNode::default());
        self.nodes.len() - 1
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn add_edge(&mut self, from: usize, edge: SubschemaValuePart, to: usize) {
        let node = &mut self.nodes[from];
        match edge {
            SubschemaValuePart::Same => node.same.push(to),
            SubschemaValuePart::Property(name) => {
                node.properties.insert(name, to);
            }
            SubschemaValuePart::Pattern => node.patterns.push(to),
            SubschemaValuePart::OtherProperty => node.other_properties.push(to),
            SubschemaValuePart::Name => node.names.push(to),
            SubschemaValuePart::Prefix => node.prefix.push(to),
            SubschemaValuePart::OtherItem => node.other_items.push(to),
            SubschemaValuePart::Item => node.items.push(to),
            SubschemaValuePart::Nowhere => {}
        }
    }

    /// Completes the graph. Fails if the schema is too expensive for every value.
    pub(super) fn finish(mut self) -> Result<Self, &'static str> {
        let same = self
            .extents(|node| node.same.clone())
            .ok_or("a `$ref` leads back to itself for the same value")?;
        if same.iter().any(|extent| extent.size > MAX_EXPANSION || extent.chain > MAX_CHAIN) {
            return Err("too many subschemas apply to the same value");
        }
        self.extent = self.extents(|node| node.all().collect()).and_then(|extents| extents.first().copied());
        Ok(self)
    }

    /// Returns the extent of each node if only these edges are followed. Returns `None` if the edges form a cycle.
    fn extents(&self, edges: impl Fn(&SchemaCostNode) -> Vec<usize>) -> Option<Vec<SubschemaCountAndDepth>> {
        enum SchemaCostState {
            New,
            Open,
            Done(SubschemaCountAndDepth),
        }
        let mut states: Vec<SchemaCostState> = self.nodes.iter().map(|_| SchemaCostState::New).collect();
        // This is a depth-first search without recursion. Each node is visited twice, once before and once after its
        // targets.
        let mut open: Vec<usize> = (0..self.nodes.len()).collect();
        while let Some(&index) = open.last() {
            let targets = edges(&self.nodes[index]);
            match states[index] {
                SchemaCostState::New => {
                    states[index] = SchemaCostState::Open;
                    for target in targets {
                        match states[target] {
                            SchemaCostState::New => open.push(target),
                            SchemaCostState::Open => return None,
                            SchemaCostState::Done(_) => {}
                        }
                    }
                }
                SchemaCostState::Open => {
                    let mut extent = SubschemaCountAndDepth { size: 1, chain: 1 };
                    for target in targets {
                        if let SchemaCostState::Done(inner) = states[target] {
                            extent.size = extent.size.saturating_add(inner.size);
                            extent.chain = extent.chain.max(inner.chain.saturating_add(1));
                        }
                    }
                    states[index] = SchemaCostState::Done(extent);
                    open.pop();
                }
                SchemaCostState::Done(_) => {
                    open.pop();
                }
            }
        }
        states
            .into_iter()
            .map(|state| if let SchemaCostState::Done(extent) = state { Some(extent) } else { None })
            .collect()
    }

    /// Decides how `value` has to be checked. `values` is the total number of JSON values in it.
    pub(super) fn judge(&self, value: &Value, values: usize) -> SchemaCheckExecution {
        if let Some(SubschemaCountAndDepth { size, chain }) = self.extent
            && chain <= FEW_FRAMES
            && size.saturating_mul(values) <= MAX_VISITS
        {
            return SchemaCheckExecution::Shallow;
        }
        let mut walk = SchemaCheckVisits { open: vec![(0, value, 1)], visits: 1 };
        let mut most_frames = 0;
        while let Some((index, value, frames)) = walk.open.pop() {
            if frames > MAX_FRAMES || walk.visits > MAX_VISITS {
                return SchemaCheckExecution::TooMuch;
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
            _ if walk.visits > MAX_VISITS => SchemaCheckExecution::TooMuch,
            0..=FEW_FRAMES => SchemaCheckExecution::Shallow,
            _ => SchemaCheckExecution::Deep,
        }
    }
}

struct SchemaCheckVisits<'v> {
    open: Vec<(usize, &'v Value, usize)>,
    visits: usize,
}

impl<'v> SchemaCheckVisits<'v> {
    fn push(&mut self, nodes: &[usize], value: &'v Value, frames: usize) {
        // A visit is counted when it is added to the list of open visits, so that the list itself also stays within the
        // limit.
        self.visits = self.visits.saturating_add(nodes.len());
        if self.visits <= MAX_VISITS {
            self.open.extend(nodes.iter().map(|&node| (node, value, frames + 1)));
        }
    }
}
