//! Encryption: the name in the certificate, and the commands that are never sent in the clear.

#[path = "../../../../tests/it/certificate.rs"]
mod certificate;

use std::{
    process::Command,
    sync::{Mutex, PoisonError},
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use self::certificate::{LocalDns, certify};
use super::*;

const CERTIFICATE: &str = "POSTRIDER_TEST_CERTIFICATE";
const KEY: &str = "POSTRIDER_TEST_KEY";

/// The behavior of a server before encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plaintext {
    /// TLS from the first byte.
    ImplicitTls,
    StartTls,
    /// An attacker in the middle adds a reply after the server's.
    StartTlsAndMore,
    /// The server has no STARTTLS, or an attacker in the middle removed it.
    NoStartTls,
}

/// Each line that a server received, and whether it was encrypted.
type Lines = Arc<Mutex<Vec<(bool, String)>>>;

// The certificates that this machine trusts are read from the environment, so the test runs itself again with one more.
#[tokio::test]
async fn tls_is_for_the_name_of_the_account_and_passwords_are_for_tls() {
    let (Ok(certificate), Ok(key)) = (std::env::var(CERTIFICATE), std::env::var(KEY)) else {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = certify(folder.path(), "smtp.example");
        let test = "email::smtp::tests::tls::tls_is_for_the_name_of_the_account_and_passwords_are_for_tls";
        let again = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact"])
            .envs([("SSL_CERT_FILE", &certificate), (CERTIFICATE, &certificate), (KEY, &key)])
            .env("SSL_CERT_DIR", "")
            .output()
            .unwrap();
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
        assert!(String::from_utf8_lossy(&again.stdout).contains("1 passed"));
        return;
    };
    let acceptor = acceptor(&certificate, &key);
    let session =
        ["EHLO example.org", "AUTH PLAIN AHVzZXIAaHVudGVyMg==", "MAIL", "RCPT", "DATA", "text", "QUIT"];
    for (security, plaintext, name, expected, why) in [
        ("tls", Plaintext::ImplicitTls, "smtp.example", "delivered", ""),
        ("tls", Plaintext::ImplicitTls, "other.example", "not_sent", "certificate"),
        ("tls", Plaintext::NoStartTls, "smtp.example", "not_sent", "could not reach"),
        ("starttls", Plaintext::StartTls, "smtp.example", "delivered", ""),
        ("starttls", Plaintext::StartTls, "other.example", "not_sent", "certificate"),
        ("starttls", Plaintext::StartTlsAndMore, "smtp.example", "not_sent", "sent more in the clear"),
        ("starttls", Plaintext::NoStartTls, "smtp.example", "account_refused", "does not offer STARTTLS"),
    ] {
        let (port, lines) = serve(acceptor.clone(), plaintext).await;
        let client =
            GuardedClient::with_resolver(Policy { allow_private: true }, PATIENT, Arc::new(LocalDns))
                .unwrap();
        let settings = json!({ "host": name, "port": port, "security": security, "user": "user", "from": "news@example.org" });
        let account = open(&client, &settings, "hunter2").ok().unwrap();

        let outcome = account.send(&super::key(), &email("a@example.com")).await;

        let what = format!("{security} {plaintext:?} {name}: {outcome:?}");
        assert_eq!(outcome.kind(), expected, "{what}");
        assert!(format!("{outcome:?}").contains(why), "{what}");
        let lines = std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner));
        let received = |encrypted: bool| -> Vec<String> {
            lines.iter().filter(|(was, _)| *was == encrypted).map(|(_, line)| line.clone()).collect()
        };
        let in_the_clear = received(false);
        let hello: &[&str] = &["EHLO example.org", "STARTTLS"];
        assert!(
            in_the_clear.iter().zip(hello).all(|(line, hello)| line == hello),
            "{what}: {in_the_clear:?}"
        );
        if expected == "delivered" {
            // `QUIT` may arrive later.
            let encrypted = received(true);
            assert!(
                encrypted.iter().zip(session).all(|(line, said)| line.starts_with(said)),
                "{what}: {encrypted:?}"
            );
            assert!(encrypted.len() >= session.len() - 1, "{what}: {encrypted:?}");
        } else {
            assert_eq!(received(true), [""; 0], "{what}");
        }
    }
}

/// A server for one client.
async fn serve(acceptor: TlsAcceptor, plaintext: Plaintext) -> (u16, Lines) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let lines = Lines::default();
    let received = Arc::clone(&lines);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        // An error here is the fault of the test case.
        let _ = converse(stream, acceptor, plaintext, &received).await;
    });
    (port, lines)
}

async fn converse(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    plaintext: Plaintext,
    received: &Lines,
) -> std::io::Result<()> {
    if plaintext == Plaintext::ImplicitTls {
        return speak(acceptor.accept(stream).await?, "220 test\r\n", true, "250 AUTH PLAIN\r\n", received)
            .await
            .map(drop);
    }
    let features = match plaintext {
        Plaintext::NoStartTls => "250 AUTH PLAIN\r\n",
        _ => "250-AUTH PLAIN\r\n250 STARTTLS\r\n",
    };
    let mut stream = speak(stream, "220 test\r\n", false, features, received).await?;
    let go = if plaintext == Plaintext::StartTlsAndMore { "220 go\r\n250 ok\r\n" } else { "220 go\r\n" };
    stream.write_all(go.as_bytes()).await?;
    speak(acceptor.accept(stream).await?, "", true, "250 AUTH PLAIN\r\n", received).await.map(drop)
}

/// Accepts every command, up to STARTTLS or the end.
async fn speak<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    greeting: &str,
    encrypted: bool,
    features: &str,
    received: &Lines,
) -> std::io::Result<S> {
    let mut stream = BufReader::new(stream);
    stream.write_all(greeting.as_bytes()).await?;
    stream.flush().await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        received.lock().unwrap_or_else(PoisonError::into_inner).push((encrypted, line.trim_end().to_owned()));
        let reply = match line.split_ascii_whitespace().next().unwrap_or_default() {
            "EHLO" => format!("250-test\r\n{features}"),
            "STARTTLS" => return Ok(stream.into_inner()),
            "AUTH" => "235 welcome\r\n".to_owned(),
            "DATA" => {
                stream.write_all(b"354 go on\r\n").await?;
                stream.flush().await?;
                let mut line = String::new();
                while line != ".\r\n" {
                    line.clear();
                    if stream.read_line(&mut line).await? == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                }
                received.lock().unwrap_or_else(PoisonError::into_inner).push((encrypted, "text".to_owned()));
                "250 taken\r\n".to_owned()
            }
            _ => "250 ok\r\n".to_owned(),
        };
        stream.write_all(reply.as_bytes()).await?;
        stream.flush().await?;
    }
}

fn acceptor(certificate: &str, key: &str) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<_, _>>().unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
