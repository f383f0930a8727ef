//! Pages of lists without the entries that the principal may not see.

use std::collections::HashSet;

use super::Problem;
use crate::{
    run::Error,
    store::{Page, Position},
};

/// Reads a list from `page` on, until as many entries are visible as the page has room for, or the list ends. Returns
/// the visible entries. If the list may have more, also returns the position of the last one. So a position never names
/// a hidden entry.
///
/// `more` is the number of entries to read at once after the first page.
pub(super) async fn visible<T, F: Future<Output = Result<Vec<T>, Error>>>(
    mut page: Page,
    more: usize,
    read: impl Fn(Page) -> F,
    position: impl Fn(&T) -> Position,
    is_visible: impl Fn(&T) -> bool,
) -> Result<(Vec<T>, Option<Position>), Problem> {
    let limit = page.limit;
    let (mut shown, mut examined) = (Vec::new(), HashSet::new());
    loop {
        let found = read(page.clone()).await?;
        let last = found.last().filter(|_| found.len() >= page.limit).map(&position);
        let before = examined.len();
        for entry in found {
            // An entry is found again if its place in the list has changed in the meantime.
            if examined.insert(position(&entry).id) && is_visible(&entry) {
                shown.push(entry);
            }
        }
        // A page without a new entry shows that the store does not continue after the position.
        let Some(last) = last.filter(|_| shown.len() < limit && examined.len() > before) else { break };
        page = Page::first(more).after(last);
    }
    shown.truncate(limit);
    let last = shown.last().filter(|_| shown.len() == limit).map(position);
    Ok((shown, last))
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, future::ready};

    use super::*;
    use crate::{message::Timestamp, store::ConversationId};

    fn place(number: u64) -> Position {
        Position { updated: Timestamp(number), id: ConversationId::new(format!("c{number}")).unwrap() }
    }

    /// Reads the first page of 2 even numbers, 3 numbers at a time after the first page.
    fn even(read: impl Fn(Page) -> Vec<u64>) -> (Vec<u64>, Option<Position>) {
        let read = |page| ready(Ok(read(page)));
        let page = visible(Page::first(2), 3, read, |number| place(*number), |number| number % 2 == 0);
        page.now_or_never().expect("nothing waits").unwrap()
    }

    #[test]
    fn visible_with_hidden_entries_reads_on_and_ends_with_a_visible_entry() {
        let numbers = |last: u64| {
            move |page: Page| {
                let after = page.after.map_or(0, |after| after.updated.0);
                (after + 1..=last).take(page.limit).collect()
            }
        };
        assert_eq!(even(numbers(9)), (vec![2, 4], Some(place(4))));
        assert_eq!(even(numbers(3)), (vec![2], None));
        assert_eq!(even(numbers(0)), (vec![], None));
    }

    #[test]
    fn visible_over_a_list_that_never_advances_ends() {
        assert_eq!(even(|page| vec![1; page.limit]), (vec![], None));
        assert_eq!(even(|page| vec![2; page.limit]), (vec![2], None));
    }

    #[test]
    fn visible_with_an_entry_that_moves_shows_it_once() {
        let moved = |page: Page| if page.after.is_none() { vec![2, 3] } else { vec![5, 2, 6] };
        assert_eq!(even(moved), (vec![2, 6], Some(place(6))));
    }
}
