//! The cost of an answer.

use futures_util::TryStreamExt;
use omni_agent::{
    message::Usage,
    provider::{
        CacheHint, Catalogue, ModelInfo, Options, Price, Rates, Registry, Request,
        custom::{Delta, MessageDelta},
    },
    testing::{ScriptedProvider, Step},
};

const MILLION: u64 = 1_000_000;

fn usage(input: u64, output: u64) -> Usage {
    Usage::default().with_input(input).with_output(output)
}

fn priced(price: Price) -> ModelInfo {
    ModelInfo::new("scripted").with_price(price)
}

#[test]
fn cost_counts_each_kind_of_token_at_its_rate() {
    let mut price = Price::new(1.0, 10.0).with_cache(0.1, 2.0);
    let used = Usage::default()
        .with_input(3 * MILLION)
        .with_cache_read(5 * MILLION)
        .with_cache_write(7 * MILLION)
        .with_output(2 * MILLION)
        .with_reasoning(MILLION);
    assert!((price.cost(&used, None).unwrap() - (3.0 + 0.5 + 14.0 + 20.0)).abs() < 1e-9);
    assert!((price.cost(&used, Some(CacheHint::Long)).unwrap() - 37.5).abs() < 1e-9);
    price.rates.cache_write_long = Some(4.0);
    price.rates.reasoning = Some(100.0);
    assert!(
        (price.cost(&used, Some(CacheHint::Short)).unwrap() - (3.0 + 0.5 + 14.0 + 10.0 + 100.0)).abs() < 1e-9
    );
    assert!(
        (price.cost(&used, Some(CacheHint::Long)).unwrap() - (3.0 + 0.5 + 28.0 + 10.0 + 100.0)).abs() < 1e-9
    );
}

#[test]
fn cost_without_cache_rates_counts_cached_tokens_as_input() {
    let used = Usage::default().with_cache_read(MILLION).with_cache_write(MILLION);
    assert!((Price::new(3.0, 9.0).cost(&used, None).unwrap() - 6.0).abs() < 1e-9);
}

#[test]
fn cost_with_more_reasoning_than_output_counts_the_output_as_reasoning() {
    let mut price = Price::new(0.0, 1.0);
    price.rates.reasoning = Some(2.0);
    let used = Usage::default().with_output(MILLION).with_reasoning(5 * MILLION);
    assert!((price.cost(&used, None).unwrap() - 2.0).abs() < 1e-9);
}

#[test]
fn cost_of_a_long_prompt_uses_its_tier() {
    let price =
        Price::new(1.0, 1.0).with_tier(2_000, Rates::new(4.0, 4.0)).with_tier(1_000, Rates::new(2.0, 2.0));
    for (prompt, rate) in [(0, 1.0), (1_000, 1.0), (1_001, 2.0), (2_000, 2.0), (2_001, 4.0), (u64::MAX, 4.0)]
    {
        assert_eq!(price.rates_for(prompt), &Rates::new(rate, rate), "{prompt}");
    }
    // The cached tokens count towards the length of the prompt, so this prompt has more than 1,000 tokens.
    let used = Usage::default().with_input(1).with_cache_read(1_000).with_output(999);
    assert!((price.cost(&used, None).unwrap() - 0.004).abs() < 1e-12);
}

#[tokio::test]
async fn generate_with_a_known_price_returns_the_cost_of_the_last_usage() {
    let provider = ScriptedProvider::new([Step::new()
        .usage(usage(MILLION, 0))
        .then_text(["Hi"])
        .usage(usage(MILLION, MILLION))
        .stop()]);
    let model = provider.model().with_info(priced(Price::new(1.0, 2.0)));
    let answer = model.generate(Request::prompt("Hi")).await.unwrap();
    assert_eq!(answer.usage, usage(MILLION, MILLION).with_cost(3.0));
}

#[tokio::test]
async fn generate_uses_the_price_for_the_cache_hint() {
    let written = Usage::default().with_cache_write(MILLION);
    let mut price = Price::new(1.0, 1.0).with_cache(0.0, 1.25);
    price.rates.cache_write_long = Some(2.0);
    for (hint, cost) in [(CacheHint::Short, 1.25), (CacheHint::Long, 2.0)] {
        let provider = ScriptedProvider::new([Step::new().usage(written).then_text(["Hi"]).stop()]);
        let model = provider.model().with_info(priced(price.clone()));
        let request = Request::prompt("Hi").with_options(Options::default().with_cache(hint));
        assert_eq!(model.generate(request).await.unwrap().usage.cost, Some(cost));
    }
}

#[tokio::test]
async fn generate_prefers_the_cost_reported_by_the_service() {
    let reported = usage(MILLION, MILLION).with_cost(0.25);
    let provider = ScriptedProvider::new([Step::new().usage(reported).then_text(["Hi"]).stop()]);
    let model = provider.model().with_info(priced(Price::new(1.0, 2.0)));
    assert_eq!(model.generate(Request::prompt("Hi")).await.unwrap().usage, reported);
}

#[tokio::test]
async fn generate_with_a_reported_cost_that_is_not_finite_uses_the_price() {
    for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let reported = usage(MILLION, MILLION).with_cost(odd);
        let provider = ScriptedProvider::new([Step::new().usage(reported).then_text(["Hi"]).stop()]);
        let model = provider.model().with_info(priced(Price::new(1.0, 2.0)));
        let answer = model.generate(Request::prompt("Hi")).await.unwrap();
        assert_eq!(answer.usage.cost, Some(3.0), "{odd}");
    }
}

#[tokio::test]
async fn generate_without_a_price_or_usage_returns_no_cost() {
    let steps = || [Step::new().usage(usage(1, 1)).then_text(["Hi"]).stop(), Step::text("Hi")];
    let provider = ScriptedProvider::new(steps().into_iter().chain(steps()));
    for model in [provider.model(), provider.model().with_info(ModelInfo::new("scripted"))] {
        assert_eq!(model.generate(Request::prompt("Hi")).await.unwrap().usage, usage(1, 1));
        assert_eq!(model.generate(Request::prompt("Hi")).await.unwrap().usage, Usage::default());
    }
    provider.push(Step::text("Hi"));
    let model = provider.model().with_info(priced(Price::new(1.0, 1.0)));
    assert_eq!(model.generate(Request::prompt("Hi")).await.unwrap().usage, Usage::default());
}

#[tokio::test]
async fn stream_with_a_price_changes_only_the_usage() {
    let deltas = |model: omni_agent::provider::Model| async move {
        model.stream(Request::prompt("Hi")).try_collect::<Vec<Delta>>().await.unwrap()
    };
    let step = || Step::new().then_text(["a", "b"]).then_thinking("c", "d").usage(usage(MILLION, 0)).stop();
    let provider = ScriptedProvider::new([step(), step()]);
    let plain = deltas(provider.model()).await;
    let mut priced = deltas(provider.model().with_info(priced(Price::new(1.0, 1.0)))).await;
    for delta in &mut priced {
        if let Delta::Message(data) = delta
            && let MessageDelta { usage: Some(usage), .. } = &mut **data
        {
            assert_eq!(usage.cost.take(), Some(1.0));
        }
    }
    assert_eq!(priced, plain);
}

#[tokio::test]
async fn generate_through_a_registry_uses_its_catalogue() {
    let provider = ScriptedProvider::new([Step::new().usage(usage(MILLION, 0)).then_text(["Hi"]).stop()]);
    let mut catalogue = Catalogue::empty();
    catalogue.insert("test", ModelInfo::new("m").with_price(Price::new(7.0, 0.0)));
    let registry = Registry::empty().with(provider).with_catalogue(catalogue);
    let model = registry.model("test:m-2026-01-01").unwrap();
    assert_eq!(model.info().unwrap().id, "m");
    assert_eq!(model.generate(Request::prompt("Hi")).await.unwrap().usage.cost, Some(7.0));
}
