//! What `top` shows: the last look, the order, the selection, what lies above it;
//! and what it wants to know next.
//!
//! It asks nobody itself, and draws nothing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rlock_client::{Contended, Mode};

use crate::failure::Failure;
use crate::info::LockInfo;
use crate::readable::lossy;

use super::asker::{Answer, Question};
use super::keys::{Wish, step, wish};
use super::sample::{Held, Sample, holds};
use super::view::Paint;

/// How many locks are asked for while only some of them are shown.
const FILTERED: u16 = 1000;
/// Holders of a lock with more of them are not asked for, unless its queue is shown.
const HOLDERS_MAX: u64 = 1000;
/// How often it is asked who holds the locks in view, however short the interval.
const HOLDERS_EVERY: Duration = Duration::from_millis(900);
/// By how much a look may be late before its age is shown.
const LATE: Duration = Duration::from_secs(2);
/// For how long a rate is shown after it was more than zero: the screen is calmer.
const RATE_KEPT: Duration = Duration::from_secs(60);
/// How long a filter may be.
const FILTER_MAX: usize = 60;

/// What the locks are sorted by; numbers with the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Waiters,
    Holders,
    OldestWait,
    Name,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiters => "waiters",
            Self::Holders => "holders",
            Self::OldestWait => "oldest wait",
            Self::Name => "name",
        }
    }

    /// What comes before the key in the order of locks.
    fn rank(self, row: &Row) -> impl Ord + use<> {
        Reverse(match self {
            Self::Waiters => u128::from(row.waiters),
            Self::Holders => u128::from(row.holders),
            Self::OldestWait => row.oldest_wait.as_millis(),
            Self::Name => 0,
        })
    }
}

/// To another line of what is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Lines(isize),
    Page(isize),
    Half(isize),
    First,
    Last,
}

impl Step {
    /// Where it leads from line `from` of `count`, of which `shown` fit.
    fn lead(self, from: usize, shown: usize, count: usize) -> usize {
        let page = isize::try_from(shown).unwrap_or(isize::MAX).max(1);
        let lines = match self {
            Self::Lines(lines) => lines,
            Self::Page(pages) => pages.saturating_mul(page),
            Self::Half(halves) => halves.saturating_mul((page / 2).max(1)),
            Self::First => isize::MIN,
            Self::Last => isize::MAX,
        };
        from.saturating_add_signed(lines)
            .min(count.saturating_sub(1))
    }
}

/// A lock that is waited for.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    pub(super) holders: u64,
    pub(super) waiters: u64,
    pub(super) oldest_wait: Duration,
    /// None until it is known.
    pub(super) held: Option<Held>,
}

impl Row {
    fn new(lock: &Contended) -> Self {
        let held = match lock.holders {
            // There is none if a request for several keys keeps the lock for itself.
            0 => Some(Held::by("nobody")),
            1..=HOLDERS_MAX => None,
            many => Some(Held::by(format!("{many} holders"))),
        };
        Self {
            key: lock.key.clone(),
            mode: lock.mode,
            holders: lock.holders,
            waiters: lock.waiters,
            oldest_wait: lock.oldest_wait,
            held,
        }
    }
}

/// A window on lines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    first: usize,
    /// How many lines fit, when it was drawn last.
    lines: usize,
}

impl Window {
    /// The lines that are shown of `count`, `line` among them, in a window of
    /// another size.
    pub(super) fn around(&mut self, line: usize, lines: usize, count: usize) -> Range<usize> {
        self.lines = lines;
        let first_of_last = (line + 1).saturating_sub(lines);
        self.first = self.first.clamp(first_of_last, line.max(first_of_last));
        self.of(lines, count)
    }

    /// The lines that are shown of `count`, in a window of another size.
    pub(super) fn of(&mut self, lines: usize, count: usize) -> Range<usize> {
        self.lines = lines;
        self.first = self.first.min(count.saturating_sub(lines));
        self.range(count)
    }

    fn range(self, count: usize) -> Range<usize> {
        self.first.min(count)..self.first.saturating_add(self.lines).min(count)
    }
}

/// The lock whose queue is shown, which may have left the list.
pub(super) struct Queue {
    key: Vec<u8>,
    /// None until it is known.
    pub(super) lock: Option<LockInfo>,
    /// Why it is not known.
    pub(super) failure: Option<Failure>,
    pub(super) waiters: Window,
}

/// What lies above all else until a key is pressed.
pub(super) enum Above {
    Help,
    /// Whether to end the holds of this lock.
    Force(Vec<u8>, LockInfo),
    /// What came of it.
    Said(String),
}

/// What is to be asked next.
#[derive(Default)]
struct Wanted {
    look: bool,
    queue: bool,
    /// Of all locks in view, not only where it is not known.
    holders: bool,
    /// What the user wants to have done, once.
    first: Option<Question>,
}

pub(super) struct Screen {
    pub(super) server: String,
    pub(super) paint: Paint,
    pub(super) every: Duration,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    pub(super) sample: Sample,
    /// When the last sample came.
    looked: Instant,
    /// Why the last look failed.
    pub(super) failure: Option<Failure>,
    /// The locks of the sample that the filter lets through, in order.
    pub(super) rows: Vec<Row>,
    /// How many locks are shown at most.
    limit: u16,
    /// When each rate was last more than zero.
    moved: BTreeMap<String, Instant>,
    pub(super) filter: String,
    /// Whether the user is typing the filter.
    pub(super) is_typing: bool,
    /// The selected lock: by key, as its place changes.
    selected: Option<Vec<u8>>,
    /// Where it was last.
    place: usize,
    pub(super) locks: Window,
    pub(super) queue: Option<Queue>,
    pub(super) above: Option<Above>,
    wanted: Wanted,
    /// When it was last asked who holds all locks in view.
    asked_holders: Option<Instant>,
}

impl Screen {
    pub(super) fn new(
        sample: Sample,
        (server, paint): (String, Paint),
        every: Duration,
        limit: u16,
    ) -> Self {
        let mut screen = Self {
            server,
            every,
            sort: Sort::Waiters,
            is_paused: false,
            looked: Instant::now(),
            failure: None,
            rows: Vec::new(),
            limit,
            moved: BTreeMap::new(),
            filter: String::new(),
            is_typing: false,
            selected: None,
            place: 0,
            locks: Window::default(),
            queue: None,
            above: None,
            wanted: Wanted::default(),
            asked_holders: None,
            sample,
            paint,
        };
        screen.take_in();
        screen
    }

    /// How old the sample is, if that is to be said.
    pub(super) fn age(&self) -> Option<Duration> {
        let age = self.looked.elapsed();
        let is_old = self.is_stale() || self.is_paused;
        is_old.then_some(age)
    }

    /// Whether the sample says what was, not what is.
    pub(super) fn is_stale(&self) -> bool {
        let is_late = !self.is_paused && self.looked.elapsed() > self.every + LATE;
        self.failure.is_some() || is_late
    }

    /// A rate, unless it has been zero for long.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        let moved = self.moved.get(name)?;
        let is_shown = moved.elapsed() < RATE_KEPT;
        is_shown.then(|| self.sample.per_second.get(name))
    }

    /// Where the selected lock stands.
    pub(super) fn place(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.key == *selected)
    }

    /// The next question. It is asked.
    pub(super) fn question(&mut self) -> Option<Question> {
        let wanted = &mut self.wanted;
        if let Some(first) = wanted.first.take() {
            return Some(first);
        }
        if std::mem::take(&mut wanted.queue)
            && let Some(queue) = &self.queue
        {
            return Some(Question::Queue(queue.key.clone()));
        }
        if std::mem::take(&mut self.wanted.look) {
            let is_filtered = !self.filter.is_empty();
            let count = if is_filtered { FILTERED } else { self.limit };
            return Some(Question::Look(count));
        }
        self.question_of_holders()
    }

    fn question_of_holders(&mut self) -> Option<Question> {
        if self.queue.is_some() {
            return None;
        }
        let all = std::mem::take(&mut self.wanted.holders);
        let in_view = &self.rows[self.locks.range(self.rows.len())];
        let asked = in_view.iter().filter(|row| match &row.held {
            Some(_) => all && (1..=HOLDERS_MAX).contains(&row.holders),
            None => true,
        });
        let keys: Vec<_> = asked.map(|row| row.key.clone()).collect();
        if all {
            self.asked_holders = Some(Instant::now());
        }
        (!keys.is_empty()).then_some(Question::Holders(keys))
    }

    /// An interval is over.
    pub(super) fn tick(&mut self) {
        if !self.is_paused {
            self.wanted.look = true;
            self.wanted.queue = self.queue.is_some();
        }
    }

    /// Takes in what the servers said.
    pub(super) fn learn(&mut self, answer: Answer) {
        match answer {
            // Paused meanwhile.
            Answer::Look(_) if self.is_paused => {}
            Answer::Look(Ok(sample)) => {
                (self.sample, self.looked, self.failure) = (sample, Instant::now(), None);
                let asked = self.asked_holders;
                self.wanted.holders = asked.is_none_or(|asked| asked.elapsed() >= HOLDERS_EVERY);
                self.take_in();
            }
            Answer::Look(Err(failure)) => self.failure = Some(failure),
            Answer::Holders(all) => {
                for (key, held) in all {
                    if let Some(row) = self.rows.iter_mut().find(|row| row.key == key) {
                        row.held = Some(held);
                    }
                }
            }
            Answer::Queue(key, lock) => {
                if let Some(queue) = &mut self.queue
                    && queue.key == key
                {
                    match lock {
                        Ok(lock) => (queue.lock, queue.failure) = (Some(lock), None),
                        Err(failure) => queue.failure = Some(failure),
                    }
                }
            }
            Answer::Doomed(key, lock) => self.above = Some(doomed(key, lock)),
            Answer::Force(key, removed) => {
                self.above = Some(Above::Said(forced(&key, removed)));
                self.tick();
            }
        }
    }

    /// Makes rows of the sample.
    fn take_in(&mut self) {
        let rates = self.sample.per_second.moving();
        let now = Instant::now();
        self.moved.extend(rates.map(|name| (name.to_owned(), now)));
        let mut known: BTreeMap<_, _> = std::mem::take(&mut self.rows)
            .into_iter()
            .map(|row| (row.key, row.held))
            .collect();
        let filter = self.filter.to_lowercase();
        let passes = |lock: &&Contended| lossy(&lock.key).to_lowercase().contains(&filter);
        let passing = self.sample.locks.iter().filter(passes);
        self.rows = passing.take(self.limit.into()).map(Row::new).collect();
        for row in &mut self.rows {
            if row.held.is_none() {
                row.held = known.remove(&row.key).flatten();
            }
        }
        self.arrange();
    }

    /// Sorts the locks, and selects one if none is.
    fn arrange(&mut self) {
        arrange(&mut self.rows, self.sort);
        match self.place() {
            Some(place) => self.place = place,
            None if self.queue.is_some() => {}
            None => self.select(self.place),
        }
    }

    fn select(&mut self, place: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.place = place.min(last);
        let row = self.rows.get(self.place);
        self.selected = row.map(|row| row.key.clone());
    }

    /// Does what a key means; whether that is to end.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        match self.above.take() {
            Some(Above::Force(of, lock)) => {
                if key.code == KeyCode::Char('y') {
                    self.wanted.first = Some(Question::Force(of, holds(&lock.info)));
                }
            }
            Some(Above::Help | Above::Said(_)) => {}
            None if self.is_typing => self.edit(key),
            None => return self.fulfil(wish(key)),
        }
        false
    }

    /// A key while the filter is typed.
    fn edit(&mut self, key: KeyEvent) {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => self.clear(),
            KeyCode::Backspace if self.filter.is_empty() => self.is_typing = false,
            KeyCode::Backspace => self.change(|filter| _ = filter.pop()),
            KeyCode::Char('u') if is_control => self.change(String::clear),
            KeyCode::Char(letter) if !is_control => {
                if self.filter.len() < FILTER_MAX {
                    self.change(|filter| filter.push(letter));
                }
            }
            other => {
                if let Some(step) = step(other) {
                    self.go(step);
                }
            }
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut String)) {
        let was_empty = self.filter.is_empty();
        change(&mut self.filter);
        self.take_in();
        // Then more locks are asked for, or fewer again.
        if was_empty != self.filter.is_empty() {
            self.tick();
        }
    }

    fn clear(&mut self) {
        self.is_typing = false;
        self.change(String::clear);
    }

    fn fulfil(&mut self, wish: Option<Wish>) -> bool {
        match wish {
            None => {}
            Some(Wish::Quit) => return true,
            Some(Wish::Back) => return self.back(),
            Some(Wish::Move(step)) => self.go(step),
            Some(Wish::Other(lines)) => self.other(lines),
            Some(Wish::Queue) if self.queue.is_some() => self.queue = None,
            Some(Wish::Queue) => self.open(),
            Some(Wish::Filter) => self.is_typing = self.queue.is_none(),
            Some(Wish::Force) => {
                let doomed = self.selected.clone().map(Question::Doomed);
                self.wanted.first = doomed;
            }
            Some(Wish::Sort(sort)) => {
                self.sort = sort;
                self.arrange();
            }
            Some(Wish::Pause) => {
                self.is_paused = !self.is_paused;
                self.tick();
            }
            Some(Wish::Help) => self.above = Some(Above::Help),
        }
        false
    }

    /// Hides what was shown last; whether there is nothing left to hide.
    fn back(&mut self) -> bool {
        if self.queue.take().is_some() {
            self.arrange();
            return false;
        }
        let was_filtered = !self.filter.is_empty();
        if was_filtered {
            self.clear();
        }
        !was_filtered
    }

    fn go(&mut self, step: Step) {
        match &mut self.queue {
            Some(queue) => {
                let lock = queue.lock.as_ref();
                let count = lock.map_or(0, |lock| lock.info.waiters.len());
                let Window { first, lines } = queue.waiters;
                queue.waiters.first = step.lead(first, lines, count);
            }
            None => self.select(step.lead(self.place, self.locks.lines, self.rows.len())),
        }
    }

    /// Shows the queue of the lock so many lines on, if a queue is shown.
    fn other(&mut self, lines: isize) {
        if self.queue.is_some() {
            self.select(Step::Lines(lines).lead(self.place, 1, self.rows.len()));
            self.open();
        }
    }

    fn open(&mut self) {
        if let Some(key) = self.selected.clone() {
            self.queue = Some(Queue {
                key,
                lock: None,
                failure: None,
                waiters: Window::default(),
            });
            self.wanted.queue = true;
        }
    }
}

fn doomed(key: Vec<u8>, lock: Result<LockInfo, Failure>) -> Above {
    match lock {
        Ok(lock) if lock.info.holders.is_empty() => {
            Above::Said(format!("Nobody holds {}.", lossy(&key)))
        }
        Ok(lock) => Above::Force(key, lock),
        Err(failure) => Above::Said(failed(&failure)),
    }
}

/// What came of the end of holds.
fn forced(key: &[u8], removed: Result<Option<u64>, Failure>) -> String {
    let key = lossy(key);
    match removed {
        Ok(Some(0)) => format!("Nobody held {key}."),
        Ok(Some(1)) => format!("{key}: 1 holder removed."),
        Ok(Some(removed)) => format!("{key}: {removed} holders removed."),
        Ok(None) => format!(
            "Nothing was changed: those who held {key} when you were asked do not hold it any more."
        ),
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> String {
    match failure.hint {
        Some(hint) => format!("{}\n\n{hint}", failure.message),
        None => failure.message.clone(),
    }
}

fn arrange(rows: &mut [Row], sort: Sort) {
    rows.sort_by(|one, other| (sort.rank(one), &one.key).cmp(&(sort.rank(other), &other.key)));
}
