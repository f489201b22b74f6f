//! Tables that fit the screen: columns that say little go, then names are cut in
//! the middle, as they differ at both ends.

use std::ops::Range;
use std::time::Duration;

use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};
use unicode_truncate::UnicodeTruncateStr;

use crate::readable::Column;

/// Between two columns.
const GAP: usize = 2;

/// Cells of things, in the columns that there is room for.
pub(super) struct Fitted<'a, T> {
    columns: Vec<Shown<'a, T>>,
}

struct Shown<'a, T> {
    column: &'a Column<T>,
    cells: Vec<String>,
    width: usize,
}

impl<'a, T> Shown<'a, T> {
    fn new(column: &'a Column<T>, things: &[T]) -> Self {
        let things = things.iter().enumerate();
        let cells: Vec<_> = things.map(|(at, it)| (column.cell)(it, at)).collect();
        let widths = cells.iter().map(|cell| width(cell));
        let width = widths.fold(width(column.title), usize::max);
        Self {
            column,
            cells,
            width,
        }
    }

    /// Whether it is the first to go: it says nothing, and less than a spare one.
    fn says_nothing(&self) -> bool {
        let usual = self.column.usual;
        usual.is_some_and(|usual| self.cells.iter().all(|cell| cell == usual))
    }
}

impl<'a, T> Fitted<'a, T> {
    /// The columns of `things` in `room` columns of the screen.
    pub(super) fn new(columns: &'a [Column<T>], things: &[T], room: usize) -> Self {
        let columns = columns.iter().map(|it| Shown::new(it, things));
        let is_empty = |it: &Shown<'_, T>| it.column.usual == Some("") && it.says_nothing();
        let columns = columns.filter(|it| !is_empty(it)).collect();
        let mut fitted = Self { columns };
        while fitted.width() > room && fitted.drop_one() {}
        fitted.cut(room);
        fitted
    }

    fn width(&self) -> usize {
        let widths: usize = self.columns.iter().map(|it| it.width).sum();
        widths + GAP * self.columns.len().saturating_sub(1)
    }

    fn drop_one(&mut self) -> bool {
        let columns = &mut self.columns;
        let place = columns.iter().rposition(Shown::says_nothing);
        let place = place.or_else(|| columns.iter().rposition(|it| it.column.is_spare));
        place.map(|place| columns.remove(place)).is_some()
    }

    /// Has the names share what the others leave.
    fn cut(&mut self, room: usize) {
        let mut over = self.width().saturating_sub(room);
        while over > 0 {
            let names = self.columns.iter_mut().filter(|it| it.column.is_name);
            match names.max_by_key(|it| it.width) {
                Some(widest) if widest.width > 1 => widest.width -= 1,
                _ => return,
            }
            over -= 1;
        }
    }

    /// Those of the things that are in `window`, one of them marked.
    pub(super) fn table(
        &self,
        things: &[T],
        window: Range<usize>,
        marked: Option<usize>,
        colour: impl Fn(Duration) -> Style,
    ) -> Table<'static> {
        let row = |at: usize| {
            let style = match marked {
                Some(marked) if marked == at => Style::new().add_modifier(Modifier::REVERSED),
                _ => Style::new(),
            };
            let cells = self.columns.iter().map(|it| {
                let wait = things.get(at).zip(it.column.wait);
                let style = wait.map_or(Style::new(), |(thing, wait)| colour(wait(thing)));
                let text = it.cells.get(at).map_or("", String::as_str);
                cell(it, cut(text, it.width)).style(style)
            });
            Row::new(cells).style(style)
        };
        let header = self.columns.iter();
        let header = header.map(|it| cell(it, it.column.title.to_owned()));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let widths = self.columns.iter().map(|it| {
            let width = u16::try_from(it.width).unwrap_or(u16::MAX);
            Constraint::Length(width)
        });
        Table::new(window.map(row), widths)
            .column_spacing(u16::try_from(GAP).unwrap_or_default())
            .header(Row::new(header).style(bold))
    }
}

fn cell<T>(of: &Shown<'_, T>, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if of.column.is_number {
        line.right_aligned()
    } else {
        line
    })
}

/// How many columns of the screen it takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// At most `room` columns of it: its beginning and its end if there is more.
pub(super) fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let Some(names) = room.checked_sub(1) else {
        return String::new();
    };
    let (end, end_width) = text.unicode_truncate_start(names * 2 / 5);
    let (start, _) = text.unicode_truncate(names - end_width);
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_the_middle() {
        let name = "rlock-bench:bb319c61-ca22-4f49-bb1e-662212622a1";
        assert_eq!(cut(name, 22), "rlock-bench:b…12622a1"[..].to_owned());
    }
}
