//! A command on a terminal of its own: a pseudo-terminal with a chosen width.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{Winsize, tcsetwinsize},
};

use crate::world::PATIENCE;

/// A process whose stdin, stdout and stderr are one terminal. The process is killed when its test ends.
pub struct Terminal {
    keyboard: File,
    child: Child,
    chunks: mpsc::Receiver<Vec<u8>>,
    shown: Vec<u8>,
}

impl Terminal {
    /// Starts a command on a terminal with this many columns. 0 columns is a terminal that does not know its size.
    pub fn start(command: &mut Command, columns: u16) -> anyhow::Result<Self> {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&terminal)?;
        unlockpt(&terminal)?;
        let rows = if columns == 0 { 0 } else { 50 };
        tcsetwinsize(&terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let program_side = ioctl_tiocgptpeer(&terminal, OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        let again = |side: &OwnedFd| side.try_clone();
        command.env_remove("COLUMNS").env("TERM", "xterm");
        command.stdin(again(&program_side)?).stdout(again(&program_side)?).stderr(program_side);
        let child = command.spawn()?;
        // The command must not keep the program's side open: the end of the process is the end of the output.
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());

        let keyboard = File::from(terminal);
        let mut screen = keyboard.try_clone()?;
        let (sender, chunks) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = screen.read(&mut buffer) {
                let chunk = buffer.get(..count).unwrap_or_default().to_vec();
                if count == 0 || sender.send(chunk).is_err() {
                    return;
                }
            }
        });
        Ok(Self { keyboard, child, chunks, shown: Vec::new() })
    }

    /// Waits until the terminal shows this text.
    pub fn wait_for(&mut self, text: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.shown().contains(text) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(chunk) = self.chunks.recv_timeout(left) else {
                anyhow::bail!("the terminal never showed `{text}`, but:\n{}", self.shown())
            };
            self.shown.extend(chunk);
        }
        Ok(())
    }

    /// Types a line.
    pub fn type_line(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.keyboard, "{line}")?)
    }

    /// Waits for the end of the process: its exit code, and all that the terminal showed.
    pub fn finish(mut self) -> anyhow::Result<(i32, String)> {
        let deadline = Instant::now() + PATIENCE;
        while let Ok(chunk) = self.chunks.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            self.shown.extend(chunk);
        }
        let ended = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            anyhow::ensure!(Instant::now() < deadline, "the process did not end:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(5)); // waits for the child, which has no other signal
        };
        Ok((ended.code().context("a signal ended the process")?, self.shown()))
    }

    /// All that the terminal has shown so far.
    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown).replace("\r\n", "\n")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
