//! The state of the screen: the last sample, the order, the selection, the
//! queue of a lock, a dialog, and the next question.
//!
//! It sends nothing and draws nothing.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::widgets::TableState;
use rlock_client::{Contended, Mode};

use crate::failure::Failure;
use crate::info::LockInfo;
use crate::readable::lossy;

use super::keys::{Action, action, has_control, movement};
use super::sample::{Held, Sample};
use super::view::Paint;
use super::worker::{Answer, Question};

/// How many locks to ask for while a filter hides some of them.
const FILTERED: u16 = 1000;
/// The list names the holders of a lock only up to this number, and otherwise
/// counts them.
const HOLDERS_MAX: u64 = 100;
/// How often to ask for the holders of the locks in view, even if the interval
/// is shorter.
const HOLDERS_EVERY: Duration = Duration::from_millis(900);
/// How late a sample may be before its age is shown.
const LATE_MAX: Duration = Duration::from_secs(2);
/// How long a rate stays on the screen after it became zero, so that the screen
/// does not flicker.
const RATE_KEPT: Duration = Duration::from_secs(60);
/// How long a filter may be, in bytes.
const FILTER_MAX: usize = 60;

/// The order of the locks; the largest numbers come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Waiters,
    OldestWait,
    Name,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiters => "waiters",
            Self::OldestWait => "oldest wait",
            Self::Name => "name",
        }
    }

    /// The first part of the sort key; the lock's key is the second.
    fn rank(self, row: &Row) -> impl Ord + use<> {
        Reverse(match self {
            Self::Waiters => u128::from(row.waiters),
            Self::OldestWait => row.oldest_wait.as_millis(),
            Self::Name => 0,
        })
    }
}

/// A lock with waiters.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) key: Vec<u8>,
    pub(super) mode: Mode,
    pub(super) holders: u64,
    pub(super) waiters: u64,
    pub(super) oldest_wait: Duration,
    /// None until the server has answered.
    pub(super) held: Option<Held>,
}

impl Row {
    fn new(lock: &Contended) -> Self {
        let held = match lock.holders {
            // A free lock is reserved for a request for several keys.
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

/// The latest answer of the servers, and its time.
pub(super) struct Latest<T> {
    pub(super) it: T,
    pub(super) at: Instant,
    /// Why there is no newer answer.
    pub(super) failure: Option<Failure>,
}

impl<T> Latest<T> {
    fn new(it: T) -> Self {
        Self {
            it,
            at: Instant::now(),
            failure: None,
        }
    }

    fn update(&mut self, answer: Result<T, Failure>) {
        match answer {
            Ok(it) => *self = Self::new(it),
            Err(failure) => self.failure = Some(failure),
        }
    }
}

/// The lock whose queue is shown. It may be missing from the list.
pub(super) struct Queue {
    pub(super) key: Vec<u8>,
    /// None until the server has answered.
    pub(super) lock: Latest<Option<LockInfo>>,
    pub(super) waiters: TableState,
}

impl Queue {
    fn new(key: Vec<u8>) -> Self {
        Self {
            key,
            lock: Latest::new(None),
            waiters: TableState::new(),
        }
    }
}

/// A dialog over the screen. Any key closes it.
pub(super) enum Dialog {
    Help,
    /// The holders of this lock are unknown until the server answers.
    Loading(Vec<u8>),
    Confirm(Confirm),
    /// A message, in paragraphs.
    Message(Vec<String>),
}

/// The question whether to end the holds of a lock.
pub(super) struct Confirm {
    key: Vec<u8>,
    pub(super) lock: LockInfo,
    /// Whether the whole question is on the screen. Until then an answer has no
    /// effect.
    pub(super) is_shown: bool,
}

/// What to ask the servers next.
#[derive(Default)]
struct Wanted {
    sample: bool,
    queue: bool,
    /// The holders of all locks in view, not only of those whose holders are unknown.
    holders: bool,
    /// A command of the user. It is sent once.
    command: Option<Question>,
}

pub(super) struct Screen {
    pub(super) server: String,
    pub(super) paint: Paint,
    pub(super) every: Duration,
    /// How many locks are shown at most.
    limit: u16,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    pub(super) sample: Latest<Sample>,
    /// The locks of the sample that match the filter, in order.
    pub(super) rows: Vec<Row>,
    /// When each rate was last more than zero.
    moved: BTreeMap<String, Instant>,
    pub(super) filter: String,
    /// Whether the user is typing the filter.
    pub(super) is_typing: bool,
    /// The key of the selected lock. Its place may change.
    selected: Option<Vec<u8>>,
    pub(super) locks: TableState,
    pub(super) queue: Option<Queue>,
    pub(super) dialog: Option<Dialog>,
    /// How many locks or waiters fitted when the screen was last drawn.
    pub(super) page: usize,
    wanted: Wanted,
    /// When the holders of all locks in view were last asked for.
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
            paint,
            every,
            limit,
            sort: Sort::Waiters,
            is_paused: false,
            sample: Latest::new(sample),
            rows: Vec::new(),
            moved: BTreeMap::new(),
            filter: String::new(),
            is_typing: false,
            selected: None,
            locks: TableState::new(),
            queue: None,
            dialog: None,
            page: 1,
            wanted: Wanted::default(),
            asked_holders: None,
        };
        screen.make_rows();
        screen
    }

    /// The age of the numbers on the screen.
    pub(super) fn age(&self) -> Duration {
        let queue = self.queue.as_ref().filter(|queue| queue.lock.it.is_some());
        let at = queue.map_or(self.sample.at, |queue| queue.lock.at);
        at.elapsed()
    }

    /// Whether the numbers are old although the user has not paused.
    pub(super) fn is_stale(&self) -> bool {
        let is_late = !self.is_paused && self.age() > self.every + LATE_MAX;
        self.failure().is_some() || is_late
    }

    /// Why there are no newer numbers.
    pub(super) fn failure(&self) -> Option<&Failure> {
        let queue = self.queue.as_ref();
        let of_queue = queue.and_then(|queue| queue.lock.failure.as_ref());
        of_queue.or(self.sample.failure.as_ref())
    }

    /// A rate; none if it has been zero for a while.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        let is_shown = self.moved.get(name)?.elapsed() < RATE_KEPT;
        is_shown.then(|| self.sample.it.per_second.get(name))
    }

    /// The next question. The caller asks it.
    pub(super) fn question(&mut self) -> Option<Question> {
        let wanted = &mut self.wanted;
        if let Some(command) = wanted.command.take() {
            return Some(command);
        }
        // The questions that follow from a sample come before the next sample.
        // On a slow server the next sample is always due.
        if std::mem::take(&mut wanted.queue)
            && let Some(queue) = &self.queue
        {
            return Some(Question::Queue(queue.key.clone()));
        }
        if let Some(holders) = self.question_of_holders() {
            return Some(holders);
        }
        let is_filtered = !self.filter.is_empty();
        let count = if is_filtered { FILTERED } else { self.limit };
        std::mem::take(&mut self.wanted.sample).then_some(Question::Sample(count))
    }

    fn question_of_holders(&mut self) -> Option<Question> {
        if self.queue.is_some() {
            return None;
        }
        let all = std::mem::take(&mut self.wanted.holders);
        let in_view = self.rows.iter().skip(self.locks.offset()).take(self.page);
        let asked = in_view.filter(|row| match &row.held {
            Some(_) => all && (1..=HOLDERS_MAX).contains(&row.holders),
            None => true,
        });
        let keys: Vec<_> = asked.map(|row| row.key.clone()).collect();
        if all {
            self.asked_holders = Some(Instant::now());
        }
        (!keys.is_empty()).then_some(Question::Holders(keys))
    }

    /// Asks for a new sample, unless the user has paused.
    pub(super) fn refresh(&mut self) {
        self.wanted.sample = !self.is_paused;
    }

    /// Takes an answer of the servers.
    pub(super) fn update(&mut self, answer: Answer) {
        match answer {
            // The user has paused meanwhile.
            Answer::Sample(_) if self.is_paused => {}
            Answer::Sample(answer) => {
                self.sample.update(answer);
                self.wanted.queue = self.queue.is_some();
                let asked = self.asked_holders;
                self.wanted.holders = asked.is_none_or(|asked| asked.elapsed() >= HOLDERS_EVERY);
                self.make_rows();
            }
            Answer::Holders(all) => {
                for (key, held) in all {
                    if let Some(row) = self.rows.iter_mut().find(|row| row.key == key) {
                        row.held = Some(held);
                    }
                }
            }
            Answer::Queue(key, lock) => {
                if let Some(queue) = self.queue.as_mut().filter(|queue| queue.key == key) {
                    queue.lock.update(lock.map(Some));
                }
            }
            Answer::Confirm(key, lock) => {
                // The user may have closed the dialog.
                if matches!(&self.dialog, Some(Dialog::Loading(asked)) if *asked == key) {
                    self.dialog = Some(confirm(key, lock));
                }
            }
            Answer::Force(key, removed) => {
                self.dialog = Some(Dialog::Message(forced(&key, removed)));
                self.refresh();
            }
        }
    }

    /// Makes the rows from the sample.
    fn make_rows(&mut self) {
        let rates = self.sample.it.per_second.moving();
        let now = Instant::now();
        self.moved.extend(rates.map(|name| (name.to_owned(), now)));
        let mut known: BTreeMap<_, _> = std::mem::take(&mut self.rows)
            .into_iter()
            .map(|row| (row.key, row.held))
            .collect();
        let filter = self.filter.to_lowercase();
        let passes = |lock: &&Contended| lossy(&lock.key).to_lowercase().contains(&filter);
        let passing = self.sample.it.locks.iter().filter(passes);
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
        let sort = self.sort;
        self.rows
            .sort_by(|one, other| (sort.rank(one), &one.key).cmp(&(sort.rank(other), &other.key)));
        let selected = self.selected.as_ref();
        let place = selected.and_then(|key| self.rows.iter().position(|row| row.key == *key));
        match place {
            Some(place) => self.locks.select(Some(place)),
            // The lock stays selected until its queue is closed.
            None if self.queue.is_some() => {}
            None => self.select(self.place()),
        }
    }

    /// The place of the selected lock, or its last one.
    fn place(&self) -> usize {
        self.locks.selected().unwrap_or_default()
    }

    fn select(&mut self, place: usize) {
        let place = place.min(self.rows.len().saturating_sub(1));
        let row = self.rows.get(place);
        self.selected = row.map(|row| row.key.clone());
        self.locks.select(row.map(|_| place));
    }

    /// Handles a key. True ends the program.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        match self.dialog.take() {
            Some(Dialog::Confirm(confirm)) => self.confirmed(confirm, key),
            Some(_) => {}
            None if self.is_typing => self.edit(key),
            None => return action(key).is_some_and(|action| self.act(action)),
        }
        false
    }

    fn confirmed(&mut self, confirm: Confirm, key: KeyEvent) {
        if confirm.is_shown && key.code == KeyCode::Char('y') && !has_control(key) {
            let Confirm { key, lock, .. } = confirm;
            let words = format!("ending the holds of {}", lossy(&key));
            self.dialog = Some(Dialog::Message(vec![words]));
            self.wanted.command = Some(Question::Force(key, lock.info.holders));
        }
    }

    /// A key while the filter is typed.
    fn edit(&mut self, key: KeyEvent) {
        match key.code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => self.clear_filter(),
            KeyCode::Backspace if self.filter.is_empty() => self.is_typing = false,
            KeyCode::Backspace => self.change_filter(|filter| _ = filter.pop()),
            KeyCode::Char('u') if has_control(key) => self.change_filter(String::clear),
            KeyCode::Char(letter) if !has_control(key) && self.filter.len() < FILTER_MAX => {
                self.change_filter(|filter| filter.push(letter));
            }
            _ => _ = movement(key).map(|action| self.act(action)),
        }
    }

    fn change_filter(&mut self, change: impl FnOnce(&mut String)) {
        let was_empty = self.filter.is_empty();
        change(&mut self.filter);
        self.make_rows();
        // A filter changes how many locks to ask for.
        if was_empty != self.filter.is_empty() {
            self.refresh();
        }
    }

    fn clear_filter(&mut self) {
        self.is_typing = false;
        self.change_filter(String::clear);
    }

    /// Does an action. True ends the program.
    fn act(&mut self, action: Action) -> bool {
        match action {
            Action::Back | Action::Queue if self.queue.is_some() => self.close(),
            Action::Back if !self.filter.is_empty() => self.clear_filter(),
            Action::Quit | Action::Back => return true,
            Action::Move(lines) => self.scroll(lines),
            Action::Page(pages) => {
                let page = isize::try_from(self.page.max(1)).unwrap_or(isize::MAX);
                self.scroll(page.saturating_mul(pages));
            }
            Action::Other(lines) if self.queue.is_some() => {
                self.select(self.place().saturating_add_signed(lines));
                self.open();
            }
            Action::Other(_) => {}
            Action::Queue => self.open(),
            Action::Filter => self.is_typing = self.queue.is_none(),
            Action::Force => self.ask_to_force(),
            Action::Sort(sort) => {
                self.sort = sort;
                self.arrange();
            }
            Action::Pause => {
                self.is_paused = !self.is_paused;
                self.refresh();
            }
            Action::Help => self.dialog = Some(Dialog::Help),
        }
        false
    }

    fn scroll(&mut self, lines: isize) {
        match &mut self.queue {
            Some(queue) => {
                let first = queue.waiters.offset_mut();
                *first = first.saturating_add_signed(lines);
            }
            None => self.select(self.place().saturating_add_signed(lines)),
        }
    }

    fn open(&mut self) {
        self.queue = self.selected.clone().map(Queue::new);
        self.wanted.queue = true;
    }

    fn close(&mut self) {
        self.queue = None;
        self.arrange();
    }

    /// Asks the server for the holders, and then the user. It does not replace
    /// a command that was not sent yet.
    fn ask_to_force(&mut self) {
        if let Some(key) = self.selected.clone()
            && self.wanted.command.is_none()
        {
            self.wanted.command = Some(Question::Confirm(key.clone()));
            self.dialog = Some(Dialog::Loading(key));
        }
    }
}

fn confirm(key: Vec<u8>, lock: Result<LockInfo, Failure>) -> Dialog {
    match lock {
        Ok(lock) if lock.info.holders.is_empty() => {
            Dialog::Message(vec![format!("nobody holds {}", lossy(&key))])
        }
        Ok(lock) => Dialog::Confirm(Confirm {
            key,
            lock,
            is_shown: false,
        }),
        Err(failure) => Dialog::Message(failed(failure)),
    }
}

/// The outcome of ending holds.
fn forced(key: &[u8], removed: Result<u64, Failure>) -> Vec<String> {
    let key = lossy(key);
    match removed {
        Ok(0) => vec![format!(
            "nothing was changed: the holders of {key} have changed since the question"
        )],
        Ok(1) => vec![format!("{key}: 1 holder removed")],
        Ok(removed) => vec![format!("{key}: {removed} holders removed")],
        Err(failure) => failed(failure),
    }
}

fn failed(failure: Failure) -> Vec<String> {
    let hint = failure.hint.map(Cow::into_owned);
    [failure.message].into_iter().chain(hint).collect()
}
