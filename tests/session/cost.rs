//! The cost of a conversation whose models have a known price.

use std::sync::Arc;

use omni_agent::{
    agent::Agent,
    message::Usage,
    provider::{ModelInfo, Price},
    session::Session,
    store::{MemoryStore, Store},
    testing::{ScriptedProvider, Step},
};

#[tokio::test(start_paused = true)]
async fn tree_sums_the_cost_of_its_turns_before_and_after_reopening() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let input = |millions: u64| Usage::default().with_input(millions * 1_000_000);
    let answer = |millions| Step::new().usage(input(millions)).then_text(["Hi"]).stop();
    let provider = ScriptedProvider::new([answer(1), answer(2), answer(4)]);
    let info = ModelInfo::new("scripted").with_price(Price::new(0.5, 1.0));
    let agent = || Agent::builder().model(provider.model().with_info(info.clone()));
    let session = Session::builder(Arc::clone(&store)).agent(agent()).create().await.unwrap();
    let id = session.id().clone();
    for cost in [0.5, 1.0] {
        assert_eq!(session.ask("Hi").await.unwrap().usage.cost, Some(cost));
    }
    let whole = input(3).with_cost(1.5);
    assert_eq!(session.snapshot().await.unwrap().tree.usage(), whole);
    session.stop(std::time::Duration::from_secs(5)).await.unwrap();
    let session = Session::builder(store).agent(agent()).open(id).await.unwrap();
    assert_eq!(session.snapshot().await.unwrap().tree.usage(), whole);
    session.ask("Hi").await.unwrap();
    let whole = input(7).with_cost(3.5);
    assert_eq!(session.snapshot().await.unwrap().tree.usage(), whole);
}

/// Providers and price lists may report any number as a cost or a price, even one that is not finite.
#[tokio::test(start_paused = true)]
async fn ask_without_a_finite_cost_reports_none_and_the_session_continues() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let reported =
        [Some(f64::NAN), Some(f64::INFINITY), Some(f64::NEG_INFINITY), None, Some(f64::MAX), Some(f64::MAX)];
    let answer = |cost| {
        let usage = Usage::default().with_input(u64::MAX).with_cost(cost);
        Step::new().usage(usage).then_text(["Hi"]).stop()
    };
    let provider = ScriptedProvider::new(reported.map(answer));
    let info = ModelInfo::new("scripted").with_price(Price::new(f64::MAX, f64::NAN));
    let agent = Agent::builder().model(provider.model().with_info(info));
    let session = Session::builder(store).agent(agent).create().await.unwrap();
    for cost in reported {
        let reported = session.ask("Hi").await.unwrap().usage.cost;
        assert_eq!(reported, cost.filter(|cost| cost.is_finite()));
        session.flush(std::time::Duration::from_secs(5)).await.unwrap();
    }
    let tree = session.tree().await.unwrap();
    assert_eq!((tree.len(), tree.usage().cost), (12, None));
}
