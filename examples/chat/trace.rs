//! Shows the spans of each run as a tree, with durations, tokens and cost.

use std::{
    fmt::{self, Write as _},
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use omni_agent::telemetry::TARGET;
use tracing::{
    Id, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Record},
};
use tracing_subscriber::{Layer, filter::filter_fn, layer::Context, prelude::*, registry::LookupSpan};

use crate::support::Flag;

pub const TRACE: Flag = Flag { name: "--trace", value: "", help: "show the spans of each run" };

/// The trees of the runs that have ended and are not shown yet.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Vec<Span>>>);

impl Trace {
    /// Starts to collect the spans of this process.
    pub fn start() -> Self {
        let trace = Self::default();
        let ours = filter_fn(|metadata| metadata.target() == TARGET);
        tracing_subscriber::registry().with(trace.clone().with_filter(ours)).init();
        trace
    }

    /// Returns the trees of the runs that have ended since the last call.
    pub fn take(&self) -> String {
        let ended = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut text = String::new();
        for root in ended {
            root.write(&mut text, 0);
        }
        text
    }
}

/// A span that has ended or is still open, with the spans below it that have ended.
struct Span {
    name: String,
    started: Instant,
    input: i64,
    output: i64,
    cost: f64,
    error: Option<String>,
    children: Vec<Span>,
    seconds: f64,
}

impl Span {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            started: Instant::now(),
            input: 0,
            output: 0,
            cost: 0.0,
            error: None,
            children: Vec::new(),
            seconds: 0.0,
        }
    }

    fn write(mut self, text: &mut String, depth: usize) {
        let name = format!("{}{}", "  ".repeat(depth), self.name);
        let _ = write!(text, "{name:<40} {:>8.3} s", self.seconds);
        if self.input + self.output > 0 {
            let _ = write!(text, "  {} in, {} out", self.input, self.output);
        }
        if self.cost > 0.0 {
            let _ = write!(text, ", ${:.4}", self.cost);
        }
        if let Some(error) = &self.error {
            let _ = write!(text, "  ! {error}");
        }
        text.push('\n');
        self.children.sort_by_key(|child| child.started);
        for child in self.children {
            child.write(text, depth + 1);
        }
    }
}

impl Visit for Span {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "otel.name" => value.clone_into(&mut self.name),
            "error.type" => self.error = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "gen_ai.usage.input_tokens" => self.input = value,
            "gen_ai.usage.output_tokens" => self.output = value,
            "omni.attempt" => self.name = format!("attempt {value}"),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "omni.usage.cost" {
            self.cost = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Trace {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut span = Span::new(attributes.metadata().name());
        attributes.record(&mut span);
        if let Some(opened) = context.span(id) {
            opened.extensions_mut().insert(span);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(opened) = context.span(id)
            && let Some(span) = opened.extensions_mut().get_mut::<Span>()
        {
            values.record(span);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(closed) = context.span(&id) else { return };
        let Some(mut span) = closed.extensions_mut().remove::<Span>() else { return };
        span.seconds = span.started.elapsed().as_secs_f64();
        match closed.parent() {
            Some(parent) => {
                if let Some(parent) = parent.extensions_mut().get_mut::<Span>() {
                    parent.children.push(span);
                }
            }
            None => self.0.lock().unwrap_or_else(PoisonError::into_inner).push(span),
        }
    }
}
