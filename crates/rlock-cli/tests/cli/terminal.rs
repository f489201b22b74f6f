//! The program under test in a terminal.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

use rlock_testkit::signal;
use rlock_testkit::{Server, eventually};

const SIZE: PtySize = PtySize {
    rows: 30,
    cols: 100,
    pixel_width: 0,
    pixel_height: 0,
};

/// The program and its screen.
pub(crate) struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    keyboard: Box<dyn Write + Send>,
    screen: Arc<Mutex<vt100::Parser>>,
    pty: Box<dyn MasterPty + Send>,
}

impl Terminal {
    pub(crate) fn start(server: &Server, arguments: &[&str]) -> Self {
        Self::start_with(SIZE.cols, server, arguments)
    }

    /// In a terminal with this many columns.
    pub(crate) fn start_with(cols: u16, server: &Server, arguments: &[&str]) -> Self {
        Self::start_at(cols, &server.url(), arguments)
    }

    /// The same at any address.
    pub(crate) fn start_at(cols: u16, url: &str, arguments: &[&str]) -> Self {
        Self::start_in(cols, url, arguments, &[])
    }

    /// The same with further environment variables. `NO_COLOR` is unset by
    /// default.
    pub(crate) fn start_in(
        cols: u16,
        url: &str,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let size = PtySize { cols, ..SIZE };
        let pty = native_pty_system().openpty(size).unwrap();
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_rlock"));
        command.args(arguments);
        command.env_remove("NO_COLOR");
        for (name, value) in [("RLOCK_URL", url), ("TERM", "xterm")]
            .iter()
            .chain(environment)
        {
            command.env(name, value);
        }
        let child = pty.slave.spawn_command(command).unwrap();
        let screen = vt100::Parser::new(size.rows, size.cols, 0);
        let screen = Arc::new(Mutex::new(screen));
        let mut output = pty.master.try_clone_reader().unwrap();
        let seen = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that the program has closed its side.
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                seen.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self {
            child,
            keyboard: pty.master.take_writer().unwrap(),
            screen,
            pty: pty.master,
        }
    }

    /// Changes the size of the terminal; the program gets a signal. Returns
    /// when the screen was drawn with this size.
    pub(crate) fn resize(&self, rows: u16, cols: u16) {
        let mut screen = self.screen.lock().unwrap();
        screen.screen_mut().set_size(rows, cols);
        screen.process(b"\x1b[2J");
        let size = PtySize { rows, cols, ..SIZE };
        self.pty.resize(size).unwrap();
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    pub(crate) fn shows(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// The first line that has these words.
    pub(crate) fn line_of(&self, words: &str) -> String {
        let shown = self.shows();
        let line = shown.lines().find(|line| line.contains(words));
        line.unwrap_or_else(|| panic!("`{words}` is not on\n{shown}"))
            .to_owned()
    }

    /// Whether anything on the screen has a colour.
    pub(crate) fn is_coloured(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        let (rows, columns) = screen.screen().size();
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let mut cells = cells.filter_map(|(row, column)| screen.screen().cell(row, column));
        cells.any(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    pub(crate) fn until_shows(&self, words: &str) {
        let begun = std::time::Instant::now();
        while !self.shows().contains(words) {
            let late = begun.elapsed() > rlock_testkit::PATIENCE;
            assert!(!late, "`{words}` is not on\n{}", self.shows());
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
    }

    pub(crate) fn until_hides(&self, words: &str) {
        let what = format!("`{words}` is gone from the screen");
        eventually(&what, || !self.shows().contains(words));
    }

    pub(crate) fn signal(&self, signal: &str) {
        signal::send(self.child.process_id().unwrap(), signal);
    }

    /// Whether the program has restored the terminal.
    pub(crate) fn is_restored(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
    }

    /// Waits for the end; the exit code.
    pub(crate) fn finish(&mut self) -> u32 {
        let child = &mut self.child;
        eventually("the program ends", || child.try_wait().unwrap().is_some());
        child.wait().unwrap().exit_code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}
