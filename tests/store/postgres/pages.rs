//! The cost of reading one page of a long list.

use omni_agent::store::{Page, Store};

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

    // The server reports the statement that the store sends.
    let page = Page::first(50).after(&store.list(Page::first(1)).await.unwrap()[0]);
    assert_eq!(store.list(page).await.unwrap().len(), 50);
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
