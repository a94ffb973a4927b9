//! A mail server from PyPI (aiosmtpd), which says what Python's own `email` package reads in each mail.

use std::{path::Path, process::Command};

use anyhow::Context;
use serde_json::Value;

use crate::world::{Process, run};

const SERVER: &str = r#"
import asyncio, email, email.policy, json, sys
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword

def text_of(part):
    return None if part is None else part.get_content()

def people(header):
    # Raw UTF-8 in a header comes as surrogates.
    whole = lambda text: text.encode("utf-8", "surrogateescape").decode()
    return [[whole(a.display_name), whole(a.addr_spec)] for a in header.addresses] if header else []

class Handler:
    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        print(json.dumps({
            "mail_from": envelope.mail_from, "rcpt_tos": envelope.rcpt_tos, "options": envelope.mail_options,
            "headers": sorted(mail.keys()), "defects": [repr(d) for part in mail.walk() for d in part.defects],
            "message_id": mail["message-id"], "date": mail["date"].datetime.timestamp(), "subject": mail["subject"],
            "from": people(mail["from"]), "reply_to": people(mail["reply-to"]), "to": people(mail["to"]),
            "text": text_of(mail.get_body(("plain",))), "html": text_of(mail.get_body(("html",))),
            "parts": [part.get_content_type() for part in mail.walk()],
            "longest": max(map(len, envelope.content.split(b"\r\n"))), "who": session.auth_data is not None,
        }), flush=True)
        return "250 2.0.0 taken as 4711"

def authenticate(server, session, envelope, mechanism, given):
    good = isinstance(given, LoginPassword) and given == LoginPassword("Jörg".encode(), "pass wörd".encode())
    return AuthResult(success=good, handled=False, auth_data=given if good else None)

def session():
    options = {"authenticator": authenticate, "auth_required": True, "auth_require_tls": False}
    options = options if sys.argv[1] != "open" else {}
    exclude = ["PLAIN"] if sys.argv[1] == "login" else []
    return SMTP(Handler(), enable_SMTPUTF8=True, auth_exclude_mechanism=exclude, **options)

async def main():
    server = await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()

asyncio.run(main())
"#;

pub struct MailServer {
    process: Process,
    pub port: u16,
}

impl MailServer {
    /// One that takes mails from everybody (`open`), or from a user who signs in (`plain`, `login`).
    pub fn start(who: &str) -> anyhow::Result<Self> {
        let process = Process::start(Command::new(python()?).args(["-c", SERVER, who]))?;
        let line: Value = serde_json::from_str(&process.wait_for_line("\"port\"")?)?;
        let port = line["port"].as_u64().context("no port")?;
        Ok(Self { process, port: u16::try_from(port)? })
    }

    /// The request that the server received under this key. It says so before it answers.
    pub fn received(&self, key: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_str(&self.process.wait_for_line(key)?)?)
    }

    /// How many mails it received.
    pub fn count(&self) -> usize {
        self.process.lines().iter().filter(|line| line.contains("message_id")).count()
    }
}

/// A Python with the peers of our tests.
pub fn python() -> anyhow::Result<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers");
    let made = run(&mut Command::new(&script))?;
    anyhow::ensure!(made.code == 0, "{} failed: {}", script.display(), made.stderr);
    Ok(made.stdout.trim().to_owned())
}
