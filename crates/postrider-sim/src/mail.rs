//! The lines of SMTP: commands that end in CR LF, and messages that end in a dot.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Largest message; `EHLO` announces it.
pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Longest line of a message with its CR LF (RFC 5321, 4.5.3.1.6).
const TEXT_LINE_BYTES_MAX: usize = 1000;
/// Longest command: a long address in UTF-8 with parameters, or a password in base64.
const COMMAND_BYTES_MAX: usize = 4096;
/// Maximum pause of a client between two lines.
const IDLE_MAX: Duration = Duration::from_secs(300);

/// A line without its end.
pub enum Line {
    /// Complete.
    Whole(Vec<u8>),
    /// Longer than the limit; it was read to its end.
    TooLong,
    /// The client disconnected, or was idle for too long.
    End,
}

/// The message after `DATA`.
pub enum Mail {
    /// A message up to its dot.
    Whole(Vec<u8>),
    /// A message that is refused with this reply. It was read to its dot.
    Unfit(&'static str),
    /// The message is incomplete.
    End,
}

/// A connection, line by line.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Over this connection.
    pub fn new(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// The next command.
    pub async fn command(&mut self) -> io::Result<Line> {
        self.line(COMMAND_BYTES_MAX).await
    }

    /// The message after `354`, without the dots that the client added before dots.
    pub async fn message(&mut self) -> io::Result<Mail> {
        let mut message = Vec::new();
        let mut unfit = None;
        loop {
            match self.line(TEXT_LINE_BYTES_MAX).await? {
                Line::End => return Ok(Mail::End),
                Line::TooLong => unfit = Some("554 5.6.0 a line is longer than 998 bytes\r\n"),
                Line::Whole(line) if line == b"." => {
                    return Ok(unfit.map_or(Mail::Whole(message), Mail::Unfit));
                }
                Line::Whole(line) if message.len() + line.len() > MESSAGE_BYTES_MAX => {
                    unfit = Some("554 5.3.4 the message is larger than 1 MiB\r\n");
                    message.clear();
                }
                Line::Whole(line) => {
                    message.extend_from_slice(line.strip_prefix(b".").unwrap_or(&line));
                    message.extend_from_slice(b"\r\n");
                }
            }
        }
    }

    /// Writes a reply, or the beginning of one.
    pub async fn send(&mut self, reply: &str) -> io::Result<()> {
        self.0.get_mut().write_all(reply.as_bytes()).await
    }

    /// Ends the connection in order.
    pub async fn close(mut self) -> io::Result<()> {
        self.0.get_mut().shutdown().await
    }

    /// Ends the connection with RST.
    pub fn reset(self) -> io::Result<()> {
        self.0.get_ref().set_zero_linger()
    }

    /// Reads up to CR LF; a bare LF is part of the line.
    async fn line(&mut self, bytes_max: usize) -> io::Result<Line> {
        let mut line = Vec::new();
        let mut too_long = false;
        while !line.ends_with(b"\r\n") {
            let Ok(read) = tokio::time::timeout(IDLE_MAX, self.0.fill_buf()).await else {
                return Ok(Line::End);
            };
            let bytes = read?;
            if bytes.is_empty() {
                return Ok(Line::End);
            }
            let taken = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            line.extend_from_slice(&bytes[..taken]);
            self.0.consume(taken);
            if line.len() > bytes_max {
                too_long = true;
                // The last bytes may be the beginning of CR LF.
                line.drain(..line.len() - 2);
            }
        }
        line.truncate(line.len() - 2);
        Ok(if too_long { Line::TooLong } else { Line::Whole(line) })
    }
}

/// The header `Message-ID` of a message.
pub fn message_id(message: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(message);
    let head = text.split("\r\n\r\n").next()?.replace("\r\n ", " ").replace("\r\n\t", " ");
    let mut headers = head.lines().filter_map(|line| line.split_once(':'));
    let value = headers.find(|(name, _)| name.eq_ignore_ascii_case("message-id"))?.1.trim().to_owned();
    (!value.is_empty()).then_some(value)
}
