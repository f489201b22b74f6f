//! What `top` shows: the last sample, the order, the selection.

use std::cmp::Reverse;
use std::time::Duration;

use rlock_client::Contended;

use crate::failure::Failure;
use crate::info::LockInfo;

use super::sample::{Sample, Sampler};

/// What the locks are sorted by; numbers with the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Waiters,
    Holders,
    OldestWait,
    Key,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiters => "waiters",
            Self::Holders => "holders",
            Self::OldestWait => "oldest wait",
            Self::Key => "key",
        }
    }

    /// What comes before the key in the order of locks.
    fn rank(self, waiters: u64, holders: u64, oldest_wait: Duration) -> impl Ord {
        Reverse(match self {
            Self::Waiters => u128::from(waiters),
            Self::Holders => u128::from(holders),
            Self::OldestWait => oldest_wait.as_millis(),
            Self::Key => 0,
        })
    }
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Ends, with this exit code.
    Quit(u8),
    /// Asks the server; this is what the clock wants.
    Look,
    /// Selects another lock, this many lines up or down.
    Move(isize),
    Sort(Sort),
    /// Shows the queue of the selected lock.
    Open,
    /// Hides the queue.
    Close,
    /// Stops looking, or goes on.
    Pause,
    /// Nothing but drawing again, as after a change of size.
    Redraw,
}

pub(super) struct Screen {
    sampler: Sampler,
    pub(super) every: Duration,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    /// `None` until the first interval is over.
    pub(super) sample: Option<Sample>,
    /// Why the last look failed.
    pub(super) failure: Option<Failure>,
    /// The selected lock: by key, as its place changes.
    selected: Option<Vec<u8>>,
    /// The lock whose queue is shown, which may have left the list.
    pub(super) open: Option<LockInfo>,
}

impl Screen {
    pub(super) fn new(sampler: Sampler, every: Duration) -> Self {
        Self {
            sampler,
            every,
            sort: Sort::Waiters,
            is_paused: false,
            sample: None,
            failure: None,
            selected: None,
            open: None,
        }
    }

    pub(super) fn server(&self) -> String {
        self.sampler.shown()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    pub(super) fn locks(&self) -> &[Contended] {
        self.sample
            .as_ref()
            .map_or(&[], |sample| sample.locks.as_slice())
    }

    /// Where the selected lock stands.
    pub(super) fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.locks().iter().position(|lock| lock.key == *selected)
    }

    /// Asks the server for everything that is shown.
    async fn look(&mut self) {
        if self.is_paused {
            return;
        }
        match self.sampler.next().await {
            Ok(sample) => {
                self.sample = Some(sample);
                self.failure = None;
                self.arrange();
            }
            Err(failure) => self.failure = Some(failure),
        }
        if self.is_open() {
            self.look_at_selected().await;
        }
    }

    /// Does what the user wants.
    pub(super) async fn take(&mut self, wish: Wish) {
        match wish {
            Wish::Quit(_) | Wish::Redraw => {}
            Wish::Look => self.look().await,
            Wish::Pause => self.is_paused = !self.is_paused,
            Wish::Close => self.open = None,
            Wish::Open => self.look_at_selected().await,
            Wish::Sort(sort) => {
                self.sort = sort;
                self.arrange();
            }
            Wish::Move(lines) => {
                self.move_by(lines);
                if self.is_open() {
                    self.look_at_selected().await;
                }
            }
        }
    }

    async fn look_at_selected(&mut self) {
        let Some(key) = self.selected.clone() else {
            return;
        };
        match self.sampler.lock(&key).await {
            Ok(lock) => self.open = Some(lock),
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Sorts the locks, and selects the first if none is.
    fn arrange(&mut self) {
        let sort = self.sort;
        if let Some(sample) = &mut self.sample {
            arrange(&mut sample.locks, sort);
        }
        if self.place().is_none() && !self.is_open() {
            self.selected = self.locks().first().map(|lock| lock.key.clone());
        }
    }

    fn move_by(&mut self, lines: isize) {
        let last = self.locks().len().saturating_sub(1);
        let place = self.place().unwrap_or_default();
        let place = place.saturating_add_signed(lines).min(last);
        if let Some(lock) = self.locks().get(place) {
            self.selected = Some(lock.key.clone());
        }
    }
}

fn arrange(locks: &mut [Contended], sort: Sort) {
    locks.sort_by(|one, other| {
        let rank = |lock: &Contended| sort.rank(lock.waiters, lock.holders, lock.oldest_wait);
        (rank(one), &one.key).cmp(&(rank(other), &other.key))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(sort: Sort) -> String {
        let mut locks = [("b", 1, 2, 9), ("c", 3, 1, 5), ("a", 1, 2, 7)];
        locks.sort_by_key(|(key, holders, waiters, oldest)| {
            let oldest = Duration::from_millis(*oldest);
            (sort.rank(*waiters, *holders, oldest), *key)
        });
        locks.iter().map(|lock| lock.0).collect()
    }

    #[test]
    fn the_largest_number_comes_first_and_keys_settle_the_rest() {
        assert_eq!(keys(Sort::Waiters), "abc");
        assert_eq!(keys(Sort::Holders), "cab");
        assert_eq!(keys(Sort::OldestWait), "bac");
        assert_eq!(keys(Sort::Key), "abc");
    }
}
