//! A flood of deltas, and a reader that keeps up with the flood.

use std::sync::Arc;

use crate::{
    agent::{Agent, Event},
    provider::{
        BlockStart, Delta, DeltaStream, Model, Part, Provider, ProviderError, Request, RequestContext,
        StopReason,
    },
    subscription::Update,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

const CHUNKS: usize = 200;
const DELTAS_IN_A_CHUNK: usize = 50;

/// A provider that answers like an endpoint whose connection runs in its own task: chunk by chunk, with many deltas per
/// chunk.
struct Chunked;

#[async_trait]
impl Provider for Chunked {
    fn name(&self) -> &'static str {
        "chunked"
    }

    async fn stream(
        &self,
        _request: Request,
        _context: RequestContext,
    ) -> Result<DeltaStream, ProviderError> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            for _ in 0..CHUNKS {
                let delta = Delta::Extend { index: 0, part: Part::Text("word ".to_owned()) };
                let _ = sender.send(vec![Ok(delta); DELTAS_IN_A_CHUNK]).await;
            }
        });
        let chunks = stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|chunk: Vec<Result<Delta, ProviderError>>| (chunk, receiver))
        });
        let start = stream::iter([Ok(Delta::Start { index: 0, block: BlockStart::Text })]);
        let stop = stream::iter([Ok(Delta::stop(StopReason::Stop))]);
        Ok(Box::pin(start.chain(chunks.map(stream::iter).flatten()).chain(stop)))
    }
}

/// The reader runs in the runtime's `block_on`. The runtime polls it less often than tasks that wake each other.
#[tokio::test]
async fn stream_in_chunks_from_another_task_does_not_overrun_a_prompt_reader() {
    let model = Model::new(Arc::new(Chunked), "any");
    let agent = Agent::builder().model(model).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Go on.").await.unwrap();
    let mut deltas = 0;
    loop {
        match events.next().await {
            Some(Update::Event(event)) => match &*event.event {
                Event::TextDelta { .. } => deltas += 1,
                Event::Turn { .. } => break,
                _ => {}
            },
            Some(Update::Resync(_)) => panic!("the reader fell behind after {deltas} deltas"),
            other => panic!("expected an event, got {other:?}"),
        }
    }
    assert_eq!(deltas, CHUNKS * DELTAS_IN_A_CHUNK);
}
