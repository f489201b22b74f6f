//! Tables that fit the screen: it leaves out columns that say little, and then
//! cuts names in the middle, because names differ at both ends.

use std::time::Duration;

use ratatui::layout::Constraint;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Row, Table};
use unicode_truncate::UnicodeTruncateStr;

use crate::readable::Column;

/// The width between two columns.
const GAP: u16 = 2;
/// A name is not cut below this width while another column can be left out.
const NAME_MIN: usize = 20;

/// The columns that fit, with their cells.
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

    /// Whether all cells have the usual text.
    fn says_nothing(&self) -> bool {
        let usual = self.column.usual;
        usual.is_some_and(|usual| self.cells.iter().all(|cell| cell == usual))
    }

    fn is_empty(&self) -> bool {
        self.column.usual == Some("") && self.says_nothing()
    }

    /// The smallest width of the column.
    fn least(&self) -> usize {
        match self.column.is_name {
            true => self.width.min(NAME_MIN),
            false => self.width,
        }
    }
}

impl<'a, T> Fitted<'a, T> {
    /// The columns of `things` in `room` columns of the screen.
    pub(super) fn new(columns: &'a [Column<T>], things: &[T], room: usize) -> Self {
        let columns = columns.iter().map(|it| Shown::new(it, things));
        let columns = columns.filter(|it| !it.is_empty()).collect();
        let mut fitted = Self { columns };
        while fitted.width(|it| it.width) > room && fitted.drop_last(Shown::says_nothing) {}
        while fitted.width(Shown::least) > room && fitted.drop_last(|it| it.column.is_spare) {}
        fitted.cut(room);
        fitted
    }

    fn width(&self, of_one: impl Fn(&Shown<'a, T>) -> usize) -> usize {
        let widths: usize = self.columns.iter().map(of_one).sum();
        widths + usize::from(GAP) * self.columns.len().saturating_sub(1)
    }

    /// Drops the last such column. False if there is none.
    fn drop_last(&mut self, which: impl Fn(&Shown<'a, T>) -> bool) -> bool {
        let place = self.columns.iter().rposition(which);
        place.map(|place| self.columns.remove(place)).is_some()
    }

    /// Cuts names until the table fits.
    fn cut(&mut self, room: usize) {
        for _ in room..self.width(|it| it.width) {
            let names = self.columns.iter_mut().filter(|it| it.column.is_name);
            if let Some(widest) = names.max_by_key(|it| it.width) {
                widest.width = widest.width.saturating_sub(1);
            }
        }
    }

    /// A row for each of the things. Waits have a colour.
    pub(super) fn table(&self, things: &[T], colour: impl Fn(Duration) -> Style) -> Table<'static> {
        let row = |(at, thing)| {
            let cells = self.columns.iter().map(|it| {
                let style = it.column.wait.map(|wait| colour(wait(thing)));
                let text = it.cells.get(at).map_or("", String::as_str);
                cell(it.column, cut(text, it.width)).style(style.unwrap_or_default())
            });
            Row::new(cells)
        };
        let titles = self.columns.iter();
        let titles = titles.map(|it| cell(it.column, it.column.title.to_owned()));
        let widths = self.columns.iter();
        let widths = widths.map(|it| u16::try_from(it.width).unwrap_or(u16::MAX));
        Table::new(
            things.iter().enumerate().map(row),
            Constraint::from_lengths(widths),
        )
        .column_spacing(GAP)
        .header(Row::new(titles).style(Modifier::BOLD))
        .row_highlight_style(Modifier::REVERSED)
    }
}

fn cell<T>(column: &Column<T>, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(match column.is_number {
        true => line.right_aligned(),
        false => line,
    })
}

/// The width of a text, in columns of the screen.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The text in at most `room` columns: if it is too long, its beginning and its
/// end.
pub(super) fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let Some(letters) = room.checked_sub(width("…")) else {
        return String::new();
    };
    let (end, end_width) = text.unicode_truncate_start(letters * 2 / 5);
    let (start, _) = text.unicode_truncate(letters - end_width);
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, and a number.
    type Thing = (&'static str, u32);

    const COLUMNS: &[Column<Thing>] = &[
        Column::name("NAME", |it: &Thing, _| it.0.to_owned()),
        Column::text("KIND", |_, _| "plain".to_owned()).usually("plain"),
        Column::number("NUMBER", |it: &Thing, _| it.1.to_string()),
        Column::text("NOTE", |_, _| String::new()).usually(""),
        Column::text("EXTRA", |_, _| "something".to_owned()).spare(),
    ];

    fn widths(things: &[Thing], room: usize) -> Vec<(&'static str, usize)> {
        let fitted = Fitted::new(COLUMNS, things, room);
        let columns = fitted.columns.iter();
        columns.map(|it| (it.column.title, it.width)).collect()
    }

    #[test]
    fn a_name_is_cut_in_the_middle() {
        let name = "rlock-bench:bb319c61-ca22-4f49-bb1e-662212622a1";
        assert_eq!(cut(name, 21), "rlock-bench:…212622a1");
        assert_eq!(cut(name, 47), name);
        assert_eq!(cut(name, 2), "r…");
        assert_eq!(cut(name, 1), "…");
        assert_eq!(cut(name, 0), "");
    }

    #[test]
    fn a_wide_letter_is_not_halved() {
        for room in 0..20 {
            let shown = cut("鎖鎖鎖鎖鎖鎖鎖鎖鎖鎖", room);
            assert!(width(&shown) <= room, "{shown} in {room}");
        }
        assert_eq!(cut("鎖鎖鎖鎖鎖鎖", 7), "鎖鎖…鎖");
    }

    #[test]
    fn columns_go_before_a_name_is_cut_short() {
        let things = [("a-name-of-31-letters-in-a-table", 7)];
        let (name, kind, number, extra) = ("NAME", "KIND", "NUMBER", "EXTRA");
        assert_eq!(
            widths(&things, 57),
            [(name, 31), (kind, 5), (number, 6), (extra, 9)]
        );
        // A column that says nothing goes first. Then the name is cut, and then
        // a spare column goes.
        assert_eq!(widths(&things, 56), [(name, 31), (number, 6), (extra, 9)]);
        assert_eq!(widths(&things, 39), [(name, 20), (number, 6), (extra, 9)]);
        assert_eq!(widths(&things, 38), [(name, 30), (number, 6)]);
        assert_eq!(widths(&things, 18), [(name, 10), (number, 6)]);
        assert_eq!(widths(&things, 3), [(name, 0), (number, 6)]);
    }
}
