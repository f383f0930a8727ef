//! The choice of the conversations from which a query for a page of a filtered list is answered. This code is pure: the
//! databases count labels and read pages for it.

use crate::store::Filter;

/// If at most this many conversations have a label of the filter, all of them are read, and those that match are
/// sorted. Otherwise, the conversations are read in the order of the list until the page is full.
pub(in crate::store) const SORTED: i64 = 5000;

/// If a filter has several labels, they are first counted up to this bound. Only if none of them is that rare, they are
/// counted up to the bound of the caller. So a frequent label costs little if another label is rare.
const RARE: i64 = 250;

/// The number of conversations that are examined first in the order of the list. If they do not fill the page, the
/// candidates are chosen with [`MANY`].
pub(in crate::store) const WALKED: i64 = 5000;

/// If the first [`WALKED`] conversations of the list do not fill the page, and at most this many conversations have a
/// label of the filter, all conversations with this label are read. So a page is found soon, even if all conversations
/// with the label are old.
const MANY: i64 = 50_000;

/// The conversations from which a query takes a page.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) enum PageCandidates<'f> {
    /// All conversations with this label, by its name and its value.
    Labelled(&'f str, &'f str),
    /// The conversations in the order of the list. If there is a bound, only the conversations up to it are examined.
    /// In SQLite, the bound is the time of the last update of a conversation. In PostgreSQL, it is a number of
    /// conversations.
    Listed(Option<i64>),
}

/// Finds the label of a filter that the fewest conversations have, if at most a certain number of conversations have it.
pub(in crate::store) struct RarestLabelFinder<'f> {
    labels: Vec<(&'f str, &'f str)>,
    /// The number of labels that were counted up to the current bound.
    counted: usize,
    /// A number that one of the labels must stay below, and the label that has set this number.
    best: (i64, Option<(&'f str, &'f str)>),
    /// The bound of the caller, if the labels were not counted up to it yet.
    most: Option<i64>,
}

impl<'f> RarestLabelFinder<'f> {
    pub(in crate::store) fn new(filter: &'f Filter, most: i64) -> Self {
        let labels: Vec<_> = filter.labels.iter().collect();
        let (first, most) = if labels.len() > 1 { (RARE, Some(most)) } else { (most, None) };
        Self { labels, counted: 0, best: (first + 1, None), most }
    }

    /// Returns the label to count now, and the bound up to which it is counted.
    pub(in crate::store) fn question(&self) -> Option<(&'f str, &'f str, i64)> {
        let (name, value) = self.labels.get(self.counted)?;
        Some((name, value, self.best.0))
    }

    /// Takes the count of the label in [`question`](Self::question).
    pub(in crate::store) fn answer(&mut self, count: i64) {
        if count < self.best.0 {
            self.best = (count, self.labels.get(self.counted).copied());
        }
        self.counted += 1;
        if self.counted == self.labels.len()
            && self.best.1.is_none()
            && let Some(most) = self.most.take()
        {
            (self.counted, self.best.0) = (0, most + 1);
        }
    }

    /// Returns the label, after all questions are answered.
    pub(in crate::store) fn found(&self) -> Option<(&'f str, &'f str)> {
        self.best.1
    }
}

/// The decision how to read a page of a filtered list.
pub(in crate::store) struct FilteredPagePlan<'f> {
    filter: &'f Filter,
    rarest: RarestLabelFinder<'f>,
    has_walked: bool,
}

/// The next step towards a page.
pub(in crate::store) enum FilteredPageStep<'f> {
    /// Count the conversations with this label, up to this bound.
    Count(&'f str, &'f str, i64),
    /// Read the page from the first [`WALKED`] conversations of the list. If they do not fill the page, go on.
    Walk,
    /// Read the page from these conversations.
    Read(PageCandidates<'f>),
}

impl<'f> FilteredPagePlan<'f> {
    pub(in crate::store) fn new(filter: &'f Filter) -> Self {
        Self { filter, rarest: RarestLabelFinder::new(filter, SORTED), has_walked: false }
    }

    pub(in crate::store) fn next(&self) -> FilteredPageStep<'f> {
        if let Some((name, value, most)) = self.rarest.question() {
            return FilteredPageStep::Count(name, value, most);
        }
        match self.rarest.found() {
            Some((name, value)) => FilteredPageStep::Read(PageCandidates::Labelled(name, value)),
            None if self.has_walked || self.filter.labels.is_empty() => {
                FilteredPageStep::Read(PageCandidates::Listed(None))
            }
            None => FilteredPageStep::Walk,
        }
    }

    /// Takes the count of the label in [`FilteredPageStep::Count`].
    pub(in crate::store) fn counted(&mut self, count: i64) {
        self.rarest.answer(count);
    }

    /// Records that the first conversations of the list did not fill the page.
    pub(in crate::store) fn walked(&mut self) {
        (self.has_walked, self.rarest) = (true, RarestLabelFinder::new(self.filter, MANY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Labels;

    /// Returns the steps of a plan for labels with these counts. The first conversations never fill the page.
    fn steps(counts: &[i64]) -> Vec<String> {
        let pairs = counts.iter().enumerate().map(|(at, count)| (format!("n{at}"), count.to_string()));
        let filter = Filter::with(Labels::new(pairs).unwrap());
        let (mut plan, mut steps) = (FilteredPagePlan::new(&filter), Vec::new());
        loop {
            match plan.next() {
                FilteredPageStep::Count(name, value, most) => {
                    steps.push(format!("count {name} to {most}"));
                    plan.counted(value.parse::<i64>().unwrap().min(most));
                }
                FilteredPageStep::Walk => {
                    steps.push("walk".to_owned());
                    plan.walked();
                }
                FilteredPageStep::Read(candidates) => {
                    steps.push(match candidates {
                        PageCandidates::Labelled(name, _) => format!("sort {name}"),
                        PageCandidates::Listed(_) => "list".to_owned(),
                    });
                    return steps;
                }
            }
        }
    }

    #[test]
    fn plan_sorts_the_rarest_label_and_walks_if_all_are_frequent() {
        assert_eq!(steps(&[]), ["list"]);
        assert_eq!(steps(&[5000]), ["count n0 to 5001", "sort n0"]);
        assert_eq!(steps(&[9000]), ["count n0 to 5001", "walk", "count n0 to 50001", "sort n0"]);
        assert_eq!(steps(&[90_000]), ["count n0 to 5001", "walk", "count n0 to 50001", "list"]);
        assert_eq!(
            steps(&[9000, 200, 7]),
            ["count n0 to 251", "count n1 to 251", "count n2 to 200", "sort n2"]
        );
        assert_eq!(steps(&[4000, 3000])[2..], ["count n0 to 5001", "count n1 to 4000", "sort n1"]);
    }
}
