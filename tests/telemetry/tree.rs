//! Spans as data, and as text for golden files.

use std::{collections::BTreeMap, fmt::Write as _};

pub type Attributes = BTreeMap<String, String>;

/// A span, independent of the system that collected it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    pub id: String,
    pub parent: Option<String>,
    pub name: String,
    pub kind: String,
    /// The description of an error.
    pub error: Option<String>,
    pub attributes: Attributes,
    pub events: Vec<(String, Attributes)>,
    /// The ids of spans to which this span has links.
    pub links: Vec<String>,
}

/// Returns the spans as text: a tree in order of their start.
pub fn render(nodes: &[Node]) -> String {
    let mut text = String::new();
    for root in nodes.iter().filter(|node| node.parent.is_none()) {
        render_node(nodes, root, 0, &mut text);
    }
    text
}

fn render_node(nodes: &[Node], node: &Node, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let error = node.error.as_ref().map_or_else(String::new, |words| format!(" ERROR: {words}"));
    writeln!(text, "{indent}{} ({}){error}", node.name, node.kind).unwrap();
    for (name, value) in &node.attributes {
        writeln!(text, "{indent}    {name} = {value}").unwrap();
    }
    for link in &node.links {
        let to = nodes.iter().find(|node| node.id == *link).map_or("unknown", |node| &node.name);
        writeln!(text, "{indent}    link to {to}").unwrap();
    }
    for (name, attributes) in &node.events {
        let shown: Vec<_> = attributes.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        writeln!(text, "{indent}    event {name} {{{}}}", shown.join(", ")).unwrap();
    }
    for child in nodes.iter().filter(|child| child.parent.as_ref() == Some(&node.id)) {
        render_node(nodes, child, depth + 1, text);
    }
}
