//! Changed rows of turns in flight and of ends of runs.

use super::{
    schema,
    server::{fresh, raw, url},
};
use crate::corrupt::{Effect, NUMBERS, TEXTS, Victim};

#[tokio::test]
async fn changed_row_of_a_turn_affects_only_its_conversation() {
    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    let victim = Victim::new(&store).await;
    let (client, prefix) = (raw(url).await, format!("{}.", schema(&store)));
    let execute = async |sql: &str| client.execute(&sql.replace("{schema}", &prefix), &[]).await.unwrap();
    let deep = format!("'{}'", "[".repeat(1000));
    for (table, row, columns, effect) in TEXTS {
        for column in columns {
            for value in ["''", "'no JSON'", "'{'", "'[7]x'", "E'\\\\u0000'", &deep] {
                victim.check(table, row, &format!("{column} = {value}"), effect, execute).await;
            }
        }
    }
    for (table, row, columns, effect) in NUMBERS {
        for column in columns {
            for value in [i32::MIN, -2, 0, 2, i32::MAX] {
                victim.check(table, row, &format!("{column} = {value}"), effect, execute).await;
            }
        }
    }
    let times =
        ["'infinity'", "'-infinity'", "'4700-01-01 BC'", "'1960-01-01'", "'9999-12-31'", "'294276-12-31'"];
    let flags = ["true", "false"];
    for (table, row, columns, values) in [
        ("turns", "true", &["since", "recorded"][..], &times[..]),
        ("approvals", "place = 0", &["since", "expires"], &times),
        ("turns", "true", &["waits"], &flags),
        ("approvals", "place = 0", &["survives"], &flags),
    ] {
        for column in columns {
            for value in values {
                victim.check(table, row, &format!("{column} = {value}"), Effect::Accepted, execute).await;
            }
        }
    }
}
