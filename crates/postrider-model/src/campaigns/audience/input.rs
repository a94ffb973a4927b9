//! Buffered bytes of a source, with the number of the current line.

use std::io::{self, ErrorKind, Read};

use super::LINE_BYTES_MAX;

/// Enough for the longest header and for reading ahead.
const BUFFER_BYTES: usize = 2 * LINE_BYTES_MAX;

pub(super) struct Input<R> {
    source: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    line: u64,
    newline: u8,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { source, buffer, start: 0, end: 0, line: 1, newline: b'\n' }
    }

    /// Number of the next line, counted from one.
    pub(super) fn line(&self) -> u64 {
        self.line
    }

    /// The byte that ends a line.
    pub(super) fn newline(&self) -> u8 {
        self.newline
    }

    /// Sets the byte that ends a line; very old files use a carriage return.
    pub(super) fn set_newline(&mut self, newline: u8) {
        self.newline = newline;
    }

    /// Bytes that were read and not taken yet.
    pub(super) fn peek(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Reads more bytes into the buffer. False at the end of the source, and when the buffer is full.
    pub(super) fn more(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            return Ok(false);
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next bytes; empty at the end of the source.
    pub(super) fn available(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            self.more()?;
        }
        Ok(self.peek())
    }

    /// Takes this many of the buffered bytes.
    pub(super) fn take(&mut self, bytes: usize) {
        let taken = &self.buffer[self.start..self.start + bytes];
        self.line += taken.iter().filter(|byte| **byte == self.newline).count() as u64;
        self.start += bytes;
    }

    /// Takes a whole line, and puts it into `text` unless it is longer than `limit`. Returns its length in bytes with the
    /// line break; zero at the end of the source.
    pub(super) fn take_line(&mut self, text: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        text.clear();
        let newline = self.newline;
        let mut total = 0;
        loop {
            let available = self.available()?;
            if available.is_empty() {
                return Ok(total);
            }
            let end = available.iter().position(|byte| *byte == newline);
            let length = end.map_or(available.len(), |end| end + 1);
            if total + length <= limit {
                text.extend_from_slice(&available[..length]);
            }
            total += length;
            self.take(length);
            if end.is_some() {
                return Ok(total);
            }
        }
    }
}
