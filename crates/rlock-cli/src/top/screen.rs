//! What `top` shows: the last sample, the order, the selection.

use std::cmp::Reverse;
use std::time::Duration;

use crate::contended::Contended;
use crate::failure::Failure;
use crate::lock_info::LockInfo;

use super::keys::Step;
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
        self.locks()
            .iter()
            .position(|lock| lock.key_bytes == *selected)
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
    pub(super) async fn take(&mut self, step: Step) {
        match step {
            Step::Quit(_) | Step::Redraw => {}
            Step::Look => self.look().await,
            Step::Pause => self.is_paused = !self.is_paused,
            Step::Close => self.open = None,
            Step::Open => self.look_at_selected().await,
            Step::Sort(sort) => {
                self.sort = sort;
                self.arrange();
            }
            Step::Move(lines) => {
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
            self.selected = self.locks().first().map(|lock| lock.key_bytes.clone());
        }
    }

    fn move_by(&mut self, lines: isize) {
        let last = self.locks().len().saturating_sub(1);
        let place = self.place().unwrap_or_default();
        let place = place.saturating_add_signed(lines).min(last);
        if let Some(lock) = self.locks().get(place) {
            self.selected = Some(lock.key_bytes.clone());
        }
    }
}

fn arrange(locks: &mut [Contended], sort: Sort) {
    let number = |lock: &Contended| match sort {
        Sort::Waiters => lock.waiters,
        Sort::Holders => lock.holders,
        Sort::OldestWait => lock.oldest_wait_ms,
        Sort::Key => 0,
    };
    locks.sort_by(|one, other| {
        let one = (Reverse(number(one)), &one.key_bytes);
        one.cmp(&(Reverse(number(other)), &other.key_bytes))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(key: &str, holders: u64, waiters: u64, oldest_wait_ms: u64) -> Contended {
        Contended {
            key_bytes: key.into(),
            key: key.to_owned(),
            mode: "shared".to_owned(),
            holders,
            waiters,
            oldest_wait_ms,
        }
    }

    fn keys(sort: Sort) -> String {
        let mut locks = [lock("b", 1, 2, 9), lock("c", 3, 1, 5), lock("a", 1, 2, 7)];
        arrange(&mut locks, sort);
        locks.iter().map(|lock| lock.key.as_str()).collect()
    }

    #[test]
    fn the_largest_number_comes_first_and_keys_settle_the_rest() {
        assert_eq!(keys(Sort::Waiters), "abc");
        assert_eq!(keys(Sort::Holders), "cab");
        assert_eq!(keys(Sort::OldestWait), "bac");
        assert_eq!(keys(Sort::Key), "abc");
    }
}
