//! A mail server that goes wrong at one point, and remembers what it heard.

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Where it goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    Greeting,
    Ehlo,
    Auth,
    Mail,
    Rcpt,
    Data,
    /// In the middle of the text.
    Text,
    Dot,
    Quit,
    Nowhere,
}

/// What it does then.
#[derive(Debug, Clone, Copy)]
pub enum Then {
    Reply(&'static str),
    /// Says this, and ends.
    Close(&'static str),
    Reset,
    /// Says nothing until the client gives up.
    Stall,
    /// Says this until the client gives up.
    Forever(&'static str),
}

/// All that it heard.
#[derive(Debug, Default)]
pub struct Heard {
    pub connections: usize,
    /// Commands, without texts.
    pub commands: Vec<String>,
    /// Texts that ended in a dot.
    pub texts: Vec<String>,
}

pub struct Scripted {
    pub port: u16,
    serving: JoinHandle<Heard>,
}

impl Scripted {
    /// Serves one client, and then refuses all others while it waits to be asked.
    pub async fn start(at: At, then: Then) -> Self {
        Self::with_features(at, then, "250-AUTH PLAIN LOGIN\r\n250 SMTPUTF8\r\n").await
    }

    pub async fn with_features(at: At, then: Then, features: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut heard = Heard { connections: 1, ..Heard::default() };
            // What breaks here is what a test wants to break.
            let _ = serve(stream, at, then, features, &mut heard).await;
            // Whatever else knocked is in the queue by now: the client has its outcome.
            while let Ok(Ok(_)) =
                tokio::time::timeout(std::time::Duration::from_millis(20), listener.accept()).await
            {
                heard.connections += 1;
            }
            heard
        });
        Self { port, serving }
    }

    pub async fn heard(self) -> Heard {
        self.serving.await.unwrap()
    }
}

async fn serve(
    stream: TcpStream,
    at: At,
    then: Then,
    features: &'static str,
    heard: &mut Heard,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut point = At::Greeting;
    let mut usual = "220 test\r\n".to_owned();
    loop {
        if point == at {
            match then {
                Then::Reply(reply) => stream.write_all(reply.as_bytes()).await?,
                Then::Close(last) => {
                    stream.write_all(last.as_bytes()).await?;
                    stream.shutdown().await?;
                    return read_to_end(&mut stream).await;
                }
                Then::Reset => return stream.get_ref().set_zero_linger(),
                Then::Stall => return read_to_end(&mut stream).await,
                Then::Forever(part) => loop {
                    stream.write_all(part.as_bytes()).await?;
                },
            }
        } else {
            stream.write_all(usual.as_bytes()).await?;
        }
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        heard.commands.push(line.trim_end().to_owned());
        let verb = line.split_ascii_whitespace().next().unwrap_or_default().to_owned();
        (point, usual) = match verb.as_str() {
            "EHLO" => (At::Ehlo, format!("250-test\r\n{features}")),
            "AUTH" => (At::Auth, "235 welcome\r\n".to_owned()),
            "MAIL" => (At::Mail, "250 go on\r\n".to_owned()),
            "RCPT" => (At::Rcpt, "250 go on\r\n".to_owned()),
            "DATA" if at == At::Data => (At::Data, String::new()),
            "DATA" => {
                stream.write_all(b"354 go on\r\n").await?;
                if at == At::Text {
                    return match then {
                        Then::Reset => stream.get_ref().set_zero_linger(),
                        _ => stream.shutdown().await,
                    };
                }
                heard.texts.push(read_text(&mut stream).await?);
                (At::Dot, "250 taken\r\n".to_owned())
            }
            "QUIT" => (At::Quit, "221 goodbye\r\n".to_owned()),
            _ => (At::Nowhere, "500 what\r\n".to_owned()),
        };
    }
}

async fn read_text(stream: &mut BufReader<impl AsyncRead + AsyncWrite + Unpin>) -> std::io::Result<String> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        if line == ".\r\n" {
            return Ok(text);
        }
        text.push_str(line.strip_prefix('.').unwrap_or(&line));
    }
}

async fn read_to_end(stream: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    tokio::io::copy_buf(stream, &mut tokio::io::sink()).await.map(drop)
}
