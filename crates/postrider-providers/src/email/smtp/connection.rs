//! An SMTP connection: one command, one reply.
//!
//! lettre has a connection, too. This one exists because a tenant chooses the host and the outcome must be exact: it reads
//! a reply up to a limit (lettre reads a line of any length), it refuses replies in the clear after STARTTLS, and it
//! reports whether the final dot was written.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::text;

/// Longest line of a reply; the standard has 512.
const LINE_BYTES_MAX: usize = 2048;
/// Most lines of a reply. The longest is the list of features.
const LINES_MAX: usize = 100;

/// The reply of a server to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub code: u16,
    pub lines: Vec<String>,
}

impl Reply {
    /// 2 to 5.
    pub fn class(&self) -> u16 {
        self.code / 100
    }

    /// All of it in one short line.
    pub fn text(&self) -> String {
        text::excerpt(format!("{} {}", self.code, self.lines.join(" ")).trim_end())
    }
}

/// There is no reply, or an invalid one.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// A command was not written completely: after an error of a write, a part of it was never accepted.
    #[error("the connection broke while writing")]
    NotWritten(#[source] io::Error),
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    #[error("the server does not speak SMTP: {0}")]
    InvalidReply(String),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection to a server.
pub struct Connection(BufReader<Box<dyn Stream>>);

impl Connection {
    /// Connects to the first of these addresses that accepts. Each has a share of the time.
    pub async fn connect(addresses: &[SocketAddr], within: Duration) -> io::Result<Self> {
        let share = within / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses {
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self::over(stream));
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    fn over(stream: impl Stream + 'static) -> Self {
        Self(BufReader::new(Box::new(stream)))
    }

    /// Starts TLS. Buffered replies in the clear are an error, because an attacker in the middle may have added them.
    pub async fn encrypt(
        self,
        connector: &TlsConnector,
        name: ServerName<'static>,
    ) -> Result<Self, ConnectionError> {
        if !self.0.buffer().is_empty() {
            return Err(ConnectionError::InvalidReply(
                "the server sent more in the clear after STARTTLS".to_owned(),
            ));
        }
        Ok(Self::over(connector.connect(name, self.0.into_inner()).await?))
    }

    /// Sends one command and reads the reply.
    pub async fn ask(&mut self, command: &str) -> Result<Reply, ConnectionError> {
        self.write(format!("{command}\r\n").as_bytes()).await?;
        self.reply().await
    }

    /// Writes the text of a message without its end. Until [`Connection::end_text`] there is no message.
    pub async fn write_text(&mut self, message: &[u8]) -> Result<(), ConnectionError> {
        self.write(&stuffed(message)).await
    }

    /// Checks that no unsolicited reply is buffered, because it would be taken for the answer to the next command.
    pub fn is_silent(&self) -> Result<(), ConnectionError> {
        match self.0.buffer() {
            [] => Ok(()),
            _ => Err(ConnectionError::InvalidReply("it replied before the command".to_owned())),
        }
    }

    /// Ends a message and reads the answer.
    pub async fn end_text(&mut self) -> Result<Reply, ConnectionError> {
        self.write(b"\r\n.\r\n").await?;
        self.reply().await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.0.get_mut().write_all(bytes).await.map_err(ConnectionError::NotWritten)?;
        self.0.get_mut().flush().await.map_err(ConnectionError::NotWritten)
    }

    /// Reads one reply, of one line or several.
    pub async fn reply(&mut self) -> Result<Reply, ConnectionError> {
        let (code, first, mut more) = self.line().await?;
        let mut reply = Reply { code, lines: vec![first] };
        while more {
            let (code, line, another) = self.line().await?;
            if code != reply.code {
                return Err(ConnectionError::InvalidReply(format!(
                    "the lines of a reply have the codes {} and {code}",
                    reply.code
                )));
            }
            if reply.lines.len() == LINES_MAX {
                return Err(ConnectionError::InvalidReply("a reply has no end".to_owned()));
            }
            reply.lines.push(line);
            more = another;
        }
        Ok(reply)
    }

    /// The code of a line, its text, and whether more follow.
    async fn line(&mut self) -> Result<(u16, String, bool), ConnectionError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let bytes = self.0.fill_buf().await?;
            if bytes.is_empty() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let taken = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
            line.extend_from_slice(&bytes[..taken]);
            self.0.consume(taken);
            if line.len() > LINE_BYTES_MAX {
                return Err(ConnectionError::InvalidReply("a line has no end".to_owned()));
            }
        }
        parse(&line).ok_or_else(|| ConnectionError::InvalidReply(text::excerpt_of_bytes(&line)))
    }
}

/// `250-text`, `250 text` or `250`. The text may be in any character set.
fn parse(line: &[u8]) -> Option<(u16, String, bool)> {
    let line = line.strip_suffix(b"\n")?;
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (code, rest) = line.split_at_checked(3)?;
    let code = str::from_utf8(code).ok().filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()))?;
    let code = code.parse().ok().filter(|code| (200..600).contains(code))?;
    let (more, rest) = match rest.split_first() {
        None => (false, rest),
        Some((b' ', rest)) => (false, rest),
        Some((b'-', rest)) => (true, rest),
        Some(_) => return None,
    };
    Some((code, String::from_utf8_lossy(rest).into_owned(), more))
}

/// A dot at the beginning of a line would end the message, so it gets another one.
fn stuffed(message: &[u8]) -> Vec<u8> {
    let mut stuffed = Vec::with_capacity(message.len() + message.len() / 64);
    let mut begins = true;
    for byte in message {
        if begins && *byte == b'.' {
            stuffed.push(b'.');
        }
        stuffed.push(*byte);
        begins = *byte == b'\n';
    }
    stuffed
}

/// A connector that verifies names by the certificates that this machine trusts, as for HTTPS.
pub fn tls_connector() -> Result<TlsConnector, rustls::Error> {
    use rustls_platform_verifier::ConfigVerifierExt;
    crate::tls::choose_provider();
    Ok(TlsConnector::from(Arc::new(rustls::ClientConfig::with_platform_verifier()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_reply_is_three_digits_and_perhaps_a_text() {
        let parsed = |line: &[u8]| parse(line);
        assert_eq!(parsed(b"250 2.0.0 ok\r\n"), Some((250, "2.0.0 ok".to_owned(), false)));
        assert_eq!(parsed(b"250-SIZE 10\r\n"), Some((250, "SIZE 10".to_owned(), true)));
        assert_eq!(parsed(b"354\r\n"), Some((354, String::new(), false)));
        assert_eq!(parsed(b"250 \n"), Some((250, String::new(), false)));
        assert_eq!(parsed(b"550 inconnu \xe9\r\n"), Some((550, "inconnu \u{fffd}".to_owned(), false)));
        for bad in [
            &b"250"[..],
            b"\r\n",
            b"25\r\n",
            b"ok\r\n",
            b"199 x\r\n",
            b"600 x\r\n",
            b"250x\r\n",
            b"2500\r\n",
            b"+50 x\r\n",
            b" 250 x\r\n",
            b"\xff\xff\xff \r\n",
        ] {
            assert_eq!(parsed(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn dots_that_begin_a_line_are_doubled_and_no_others() {
        let cases: [(&[u8], &[u8]); 6] = [
            (b"", b""),
            (b".", b".."),
            (b"a.b\r\n.c\r\n..\r\nd.", b"a.b\r\n..c\r\n...\r\nd."),
            (b"\r\n.\r\n", b"\r\n..\r\n"),
            // A bare line feed is no line end by the standard; doubling the dot is safe for servers that take it for one.
            (b"a\n.\nb", b"a\n..\nb"),
            (b"a\r.\r", b"a\r.\r"),
        ];
        for (message, expected) in cases {
            assert_eq!(stuffed(message), expected, "{:?}", String::from_utf8_lossy(message));
        }
    }

    // This distinguishes a mail that may be sent again from one that is in doubt.
    #[tokio::test]
    async fn a_dot_that_was_not_written_differs_from_one_that_was_not_answered() {
        let (ours, theirs) = tokio::io::duplex(1024);
        drop(theirs);
        let not_written = Connection::over(ours).end_text().await;
        assert!(matches!(not_written, Err(ConnectionError::NotWritten(_))), "{not_written:?}");

        let (ours, mut theirs) = tokio::io::duplex(1024);
        let hang_up = async move {
            let mut dot = [0; 5];
            tokio::io::AsyncReadExt::read_exact(&mut theirs, &mut dot).await.map(|_| dot)
        };
        let mut connection = Connection::over(ours);
        let (unanswered, dot) = tokio::join!(connection.end_text(), hang_up);
        assert_eq!(&dot.unwrap(), b"\r\n.\r\n");
        assert!(matches!(unanswered, Err(ConnectionError::Broken(_))), "{unanswered:?}");
    }
}
