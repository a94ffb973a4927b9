//! A scripted mail server with a fault at one step, which records everything it receives.

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinHandle,
};

/// The step of the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
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

/// The fault.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    Reply(&'static str),
    /// Writes this and closes the connection.
    Close(&'static str),
    Reset,
    /// Writes nothing until the client closes the connection.
    Stall,
    /// Writes this again and again until the client closes the connection.
    Forever(&'static str),
}

/// All that the server received.
#[derive(Debug, Default)]
pub struct Transcript {
    pub connections: usize,
    /// Commands, without texts.
    pub commands: Vec<String>,
    /// Texts that ended in a dot.
    pub texts: Vec<String>,
}

pub struct ScriptedServer {
    pub port: u16,
    serving: JoinHandle<Transcript>,
}

/// A server for any number of clients, with the same fault for each.
pub struct ServerForMany {
    pub port: u16,
    sessions: UnboundedReceiver<Vec<String>>,
}

impl ServerForMany {
    /// The commands of the next session that ends.
    pub async fn next_session(&mut self) -> Vec<String> {
        self.sessions.recv().await.unwrap()
    }
}

impl ScriptedServer {
    /// Serves one client, and fault only counts further connections.
    pub async fn start(at: Step, fault: Fault) -> Self {
        Self::with_features(at, fault, "250-AUTH PLAIN LOGIN\r\n250 SMTPUTF8\r\n").await
    }

    pub async fn with_features(at: Step, fault: Fault, features: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut transcript = Transcript { connections: 1, ..Transcript::default() };
            // An error here is the fault of the test case.
            let _ = serve(stream, at, fault, features, &mut transcript).await;
            // Every further connection is in the queue by now, because the client has its outcome.
            while let Ok(Ok(_)) =
                tokio::time::timeout(std::time::Duration::from_millis(20), listener.accept()).await
            {
                transcript.connections += 1;
            }
            transcript
        });
        Self { port, serving }
    }

    pub async fn start_for_many(at: Step, fault: Fault) -> ServerForMany {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (ended, sessions) = unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let ended = ended.clone();
                tokio::spawn(async move {
                    let mut transcript = Transcript::default();
                    let features = "250-AUTH PLAIN LOGIN\r\n250 SMTPUTF8\r\n";
                    let _ = serve(stream, at, fault, features, &mut transcript).await;
                    let _ = ended.send(transcript.commands);
                });
            }
        });
        ServerForMany { port, sessions }
    }

    pub async fn transcript(self) -> Transcript {
        self.serving.await.unwrap()
    }
}

async fn serve(
    stream: TcpStream,
    at: Step,
    fault: Fault,
    features: &'static str,
    transcript: &mut Transcript,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut point = Step::Greeting;
    let mut usual = "220 test\r\n".to_owned();
    loop {
        if point == at {
            match fault {
                Fault::Reply(reply) => stream.write_all(reply.as_bytes()).await?,
                Fault::Close(last) => {
                    stream.write_all(last.as_bytes()).await?;
                    stream.shutdown().await?;
                    return read_to_end(&mut stream).await;
                }
                Fault::Reset => return stream.get_ref().set_zero_linger(),
                Fault::Stall => return read_to_end(&mut stream).await,
                Fault::Forever(part) => loop {
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
        transcript.commands.push(line.trim_end().to_owned());
        let verb = line.split_ascii_whitespace().next().unwrap_or_default().to_owned();
        (point, usual) = match verb.as_str() {
            "EHLO" => (Step::Ehlo, format!("250-test\r\n{features}")),
            "AUTH" => (Step::Auth, "235 welcome\r\n".to_owned()),
            "MAIL" => (Step::Mail, "250 go on\r\n".to_owned()),
            "RCPT" => (Step::Rcpt, "250 go on\r\n".to_owned()),
            "DATA" if at == Step::Data => (Step::Data, String::new()),
            "DATA" => {
                stream.write_all(b"354 go on\r\n").await?;
                if at == Step::Text {
                    return match fault {
                        Fault::Reset => stream.get_ref().set_zero_linger(),
                        _ => stream.shutdown().await,
                    };
                }
                transcript.texts.push(read_text(&mut stream).await?);
                (Step::Dot, "250 taken\r\n".to_owned())
            }
            "QUIT" => (Step::Quit, "221 goodbye\r\n".to_owned()),
            _ => (Step::Nowhere, "500 what\r\n".to_owned()),
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
