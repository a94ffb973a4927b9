//! Serves everything, with an adapter that hands e-mails to another program: one file in a directory for each of them.
//!
//! ```sh
//! cargo run -p postrider --example adapter -- postrider.toml
//! ```
//!
//! An account of the provider `spool` has the setting `directory`. This process accepts it at `POST /api/v2/provider-accounts`.

// docs:begin
use std::{io::ErrorKind, path::PathBuf, sync::Arc};

use postrider::{
    adapters::{
        Account, Adapter, Channel, DoubtClass, Finding, HeldDoubt, InvalidAccount, Manifest, Message,
        Outcome, Provider, Reservation,
    },
    async_trait,
};
use tokio::io::AsyncWriteExt;

/// Items in doubt can be looked up: the file is there, or it is not.
const MANIFEST: Manifest =
    Manifest { doubt: DoubtClass::Lookup, ..Manifest::new("spool", &[Channel::Email]) };

struct SpoolAdapter;

impl Adapter for SpoolAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        match account.settings["directory"].as_str() {
            Some(directory) => Ok(Arc::new(Spool { directory: directory.into() })),
            None => Err(InvalidAccount("`directory` is missing".to_owned())),
        }
    }
}

/// One account: a directory.
struct Spool {
    directory: PathBuf,
}

impl Spool {
    /// Writes the message. Each item has a file of its own, which is never written twice.
    async fn write(&self, name: &str, message: &Message) -> std::io::Result<()> {
        let mut file = tokio::fs::File::create_new(self.directory.join(name)).await?;
        file.write_all(&serde_json::to_vec(message)?).await?;
        file.sync_all().await
    }
}

#[async_trait]
impl Provider for Spool {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        let name = format!("{}.json", reservation.outbox_id().0);
        match self.write(&name, message).await {
            Ok(()) => Outcome::Delivered { message_id: name },
            // The directory is missing or closed: provably nothing was written.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                Outcome::NotSent { reason: error.to_string(), retry_after: None }
            }
            // There may be a file, whole or in part.
            Err(error) => Outcome::Unknown { reason: error.to_string() },
        }
    }

    async fn look_up(&self, doubt: &HeldDoubt, message: Option<&Message>) -> Finding {
        let name = format!("{}.json", doubt.outbox_id().0);
        match (tokio::fs::read(self.directory.join(&name)).await, message.map(serde_json::to_vec)) {
            (Ok(written), Some(Ok(whole))) if written == whole => {
                Finding::Done { message_id: name, evidence: "the whole file is there".to_owned() }
            }
            (Ok(_), _) => Finding::CannotTell { reason: format!("{name} is there, but not whole") },
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {
                Finding::Absent { evidence: format!("there is no {name}") }
            }
            (Err(error), _) => Finding::Unclear { reason: error.to_string() },
        }
    }
}
// docs:end

use postrider::{CancellationToken, Config, adapters::Adapters, functions::Functions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let file = std::env::args().nth(1).ok_or("name a configuration file")?;
    let config = Config::from_toml(&std::fs::read_to_string(file)?)?;
    let shutdown = CancellationToken::new();
    let interrupted = shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        interrupted.cancel();
    });
    let adapters = Adapters::none().with(Arc::new(SpoolAdapter));
    postrider::serve(config, adapters, Functions::default(), shutdown).await?;
    Ok(())
}
