//! A subscriber that collects spans.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
};

use omni_agent::telemetry::TARGET;
use tracing::{
    Event, Id, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

use super::tree::{Attributes, Node};

/// Collects the spans of telemetry, and those with the target `test`.
#[derive(Clone, Default)]
pub struct Collector(Arc<Mutex<Collected>>);

#[derive(Default)]
struct Collected {
    spans: Vec<Node>,
    open: BTreeMap<u64, usize>,
    /// Everything that spans and events of telemetry have recorded.
    recorded: String,
    /// Everything that spans and events of other targets have recorded.
    logged: String,
}

impl Collector {
    /// Makes a collector the subscriber of this process.
    pub fn install() -> Self {
        let collector = Self::default();
        tracing_subscriber::registry().with(collector.clone()).init();
        collector
    }

    /// Returns all spans in order of their start.
    pub fn spans(&self) -> Vec<Node> {
        self.0.lock().unwrap().spans.clone()
    }

    /// Returns the names of the spans that are open.
    pub fn open(&self) -> Vec<String> {
        let collected = self.0.lock().unwrap();
        collected.open.values().map(|index| collected.spans[*index].name.clone()).collect()
    }

    /// Returns the text of all fields of the spans and events of telemetry.
    pub fn recorded(&self) -> String {
        self.0.lock().unwrap().recorded.clone()
    }

    /// Returns the text of all fields of the spans and events of other targets.
    #[cfg(feature = "http")]
    pub fn logged(&self) -> String {
        self.0.lock().unwrap().logged.clone()
    }
}

/// Returns whether spans and events of this target are collected in the tree of spans.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target() == TARGET || metadata.target() == "test"
}

#[derive(Default)]
struct Fields(Attributes);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let before = self.0.insert(field.name().to_owned(), value.to_owned());
        assert!(before.is_none(), "{field} was recorded twice");
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl Collected {
    fn keep(&mut self, metadata: &Metadata<'_>, fields: &Fields) {
        let text = if is_ours(metadata) { &mut self.recorded } else { &mut self.logged };
        for (name, value) in &fields.0 {
            writeln!(text, "{name}={value}").unwrap();
        }
    }

    fn record(&mut self, index: usize, fields: Fields) {
        let node = &mut self.spans[index];
        for (name, value) in fields.0 {
            match name.as_str() {
                "otel.name" => node.name = value,
                "otel.kind" => node.kind = value,
                "otel.status_code" => assert_eq!(value, "ERROR"),
                "otel.status_description" => node.error = Some(value),
                _ => {
                    let before = node.attributes.insert(name.clone(), value);
                    assert!(before.is_none(), "{name} was recorded twice");
                }
            }
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::DEBUG && metadata.target() != "tracing_opentelemetry"
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut collected = self.0.lock().unwrap();
        collected.keep(attributes.metadata(), &fields);
        if !is_ours(attributes.metadata()) {
            return;
        }
        let parent = context
            .span(id)
            .unwrap()
            .parent()
            .and_then(|parent| collected.open.get(&parent.id().into_u64()).copied());
        let index = collected.spans.len();
        let node = Node {
            id: index.to_string(),
            parent: parent.map(|parent| parent.to_string()),
            name: attributes.metadata().name().to_owned(),
            kind: "internal".to_owned(),
            ..Node::default()
        };
        collected.spans.push(node);
        collected.open.insert(id.into_u64(), index);
        collected.record(index, fields);
    }

    fn on_record(&self, id: &Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        let mut collected = self.0.lock().unwrap();
        collected.keep(context.metadata(id).unwrap(), &fields);
        if let Some(index) = collected.open.get(&id.into_u64()).copied() {
            collected.record(index, fields);
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, _: Context<'_, S>) {
        let mut collected = self.0.lock().unwrap();
        let index = |id: &Id| collected.open.get(&id.into_u64()).copied();
        let (index, followed) = (index(id).unwrap(), index(follows).unwrap());
        collected.spans[index].links.push(followed.to_string());
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut collected = self.0.lock().unwrap();
        collected.keep(event.metadata(), &fields);
        let span =
            context.event_span(event).and_then(|span| collected.open.get(&span.id().into_u64()).copied());
        if let (Some(index), true) = (span, is_ours(event.metadata())) {
            let name = fields.0.remove("message").unwrap_or_default();
            collected.spans[index].events.push((name, fields.0));
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.0.lock().unwrap().open.remove(&id.into_u64());
    }
}
