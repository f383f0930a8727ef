//! The cost of reading one page of a long list.

use omni_agent::store::{Filter, Labels, Page, Store};

use super::{
    schema,
    server::{fresh, raw, url},
};

/// Inserts 10,000 conversations, about 1,000 of which were updated at the same time.
const MANY: &str = "
INSERT INTO {schema}.conversations (id, version, created, updated, state, epoch)
SELECT 'c' || lpad(n::text, 5, '0'), 1, to_timestamp(n),
    to_timestamp(CASE WHEN n BETWEEN 2000 AND 3000 THEN 2000 ELSE n END), '{}', 1
FROM generate_series(1, 10000) AS n";

#[tokio::test]
async fn list_after_a_late_conversation_reads_no_more_of_the_index() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let (other, schema) = (raw(url).await, schema(&store));
    other.execute(&MANY.replace("{schema}", &schema), &[]).await.unwrap();
    other.batch_execute(&format!("ANALYZE {schema}.conversations")).await.unwrap();

    // The server reports the statement that the store sends for a later page.
    let page = Page::first(50).after(&store.list(&Page::first(1).into()).await.unwrap()[0]);
    assert_eq!(store.list(&page.into()).await.unwrap().len(), 50);
    let sent =
        "SELECT query FROM pg_stat_activity WHERE query LIKE '%UNION ALL%' AND strpos(query, $1) > 0 LIMIT 1";
    let sent: String = other.query_one(sent, &[&schema]).await.unwrap().get(0);
    other
        .batch_execute(&format!("PREPARE page (bigint, bigint, timestamptz, text, bigint) AS {sent}"))
        .await
        .unwrap();

    for (seconds, id) in
        [(9990, "c09990"), (5000, "c05000"), (2000, "c02001"), (2000, "c02900"), (100, "c00100")]
    {
        for mode in ["force_custom_plan", "force_generic_plan"] {
            let explain = format!(
                "SET plan_cache_mode = {mode};
                 EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF) EXECUTE page (50, 0, to_timestamp({seconds}), '{id}', 50)"
            );
            let lines = other.simple_query(&explain).await.unwrap();
            let plan: Vec<String> = lines
                .iter()
                .filter_map(|line| match line {
                    tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                    _ => None,
                })
                .collect();
            let plan = plan.join("\n");
            assert!(!plan.contains("Seq Scan"), "{id}, {mode}: {plan}");
            // The server may sort a set of rows if it expects only one row. No part of the plan returns more rows than
            // the page needs.
            let rows = plan.split("actual rows=").skip(1).map(|rest| rest.split(' ').next().unwrap());
            let rows: Vec<u32> = rows.map(|rows| rows.parse().unwrap()).collect();
            assert!(!rows.is_empty() && rows.iter().all(|rows| *rows <= 51), "{id}, {mode}: {plan}");
            assert!(!plan.contains("Rows Removed"), "{id}, {mode}: {plan}");
        }
    }
}

/// Inserts 62,000 conversations, and labels of the 6,000 and of the 56,000 oldest ones.
const LABELLED: &str = "
INSERT INTO {schema}.conversations (id, version, created, updated, state, epoch)
SELECT 'c' || lpad(n::text, 5, '0'), 1, to_timestamp(n), to_timestamp(n / 3), '{}', 1
FROM generate_series(1, 62000) AS n;
INSERT INTO {schema}.labels
SELECT key, 'age', CASE WHEN key <= 6000 THEN 'oldest' ELSE 'later' END FROM {schema}.conversations;
INSERT INTO {schema}.labels SELECT key, 'kind', 'most' FROM {schema}.conversations WHERE key <= 56000;
ANALYZE {schema}.conversations, {schema}.labels";

#[tokio::test]
async fn pages_of_a_label_that_only_old_conversations_have_are_complete() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let fill = LABELLED.replace("{schema}", &schema(&store));
    raw(url).await.batch_execute(&fill).await.unwrap();
    for (label, value, count) in [("age", "oldest", 6000), ("kind", "most", 56_000), ("age", "later", 56_000)]
    {
        let filter = Filter::with(Labels::new([(label, value)]).unwrap());
        // The conversations with the greatest number are the latest ones. Each time is shared by three conversations.
        let mut expected: Vec<_> = (1..=62_000_u32)
            .filter(|n| {
                (label == "kind" && *n <= 56_000) || (label == "age" && (*n <= 6000) == (value == "oldest"))
            })
            .collect();
        assert_eq!(expected.len(), count);
        expected.sort_by_key(|n| (std::cmp::Reverse(n / 3), *n));
        let expected: Vec<_> = expected.iter().map(|n| format!("c{n:05}")).collect();
        let mut page = Page::first(1000);
        let mut found = Vec::new();
        for _ in 0..8 {
            let listed = store.list(&(filter.clone(), page.clone()).into()).await.unwrap();
            let Some(last) = listed.last() else { break };
            page = page.after(last);
            found.extend(listed.into_iter().map(|summary| summary.id.to_string()));
        }
        assert_eq!(found, expected[..found.len()], "{label} {value}");
        assert_eq!(found.len(), count.min(8000), "{label} {value}");
        // This page begins after the conversations that are examined first.
        let mut skipped = Page::first(50);
        skipped.offset = 5500;
        let listed = store.list(&(filter.clone(), skipped).into()).await.unwrap();
        let ids: Vec<_> = listed.iter().map(|summary| summary.id.as_str()).collect();
        assert_eq!(ids, expected[5500..5550], "{label} {value}");
    }
}

/// Inserts 12,000 conversations, the latest 6,000 of which were updated at the same time. All have the label except the
/// conversations from 101 to 5,500 of this time.
const SIMULTANEOUS: &str = "
INSERT INTO {schema}.conversations (id, version, created, updated, state, epoch)
SELECT 'c' || lpad(n::text, 5, '0'), 1, to_timestamp(1), to_timestamp(20000 - GREATEST(n, 6000)), '{}', 1
FROM generate_series(1, 12000) AS n;
INSERT INTO {schema}.labels
SELECT key, 'kind', 'wanted' FROM {schema}.conversations WHERE key NOT BETWEEN 101 AND 5500;
ANALYZE {schema}.conversations, {schema}.labels";

#[tokio::test]
async fn pages_of_a_label_among_many_conversations_of_one_time_are_complete() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let fill = SIMULTANEOUS.replace("{schema}", &schema(&store));
    raw(url).await.batch_execute(&fill).await.unwrap();
    let filter = Filter::with(Labels::new([("kind", "wanted")]).unwrap());
    let expected: Vec<_> = (1..=100).chain(5501..=12_000).map(|n| format!("c{n:05}")).collect();
    let mut page = Page::first(100);
    let mut found = Vec::new();
    loop {
        let listed = store.list(&(filter.clone(), page.clone()).into()).await.unwrap();
        let Some(last) = listed.last() else { break };
        page = page.after(last);
        found.extend(listed.into_iter().map(|summary| summary.id.to_string()));
    }
    assert_eq!(found, expected);
}
