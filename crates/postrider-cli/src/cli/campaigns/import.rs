//! `postrider campaign import`.
//!
//! A thread reads and checks lines while the previous chunk is stored.

mod report;

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use clap::{Args, ValueEnum};
use postrider_model::campaigns::audience::{self, Chunk, Country, Delimiter, Format, Leads};
use postrider_store::{
    Pool,
    campaigns::leads::{self as store, Destination},
    postgres::pool,
};
use report::Report;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{ForWorkspace, with_installation},
    config::Config,
    shutdown,
};

#[derive(Args)]
pub struct ImportArgs {
    #[command(flatten)]
    of: ForWorkspace,
    /// Put the leads on this list, and create the list if it does not exist
    #[arg(long, value_name = "NAME")]
    list: String,
    /// Read the file in this format [default: detected from its beginning]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Split CSV cells at this character, or `tab` [default: detected from the header]
    #[arg(long, value_name = "CHARACTER")]
    delimiter: Option<Delimiter>,
    /// Use this country for phone numbers without a country code, such as DE
    #[arg(long, value_name = "COUNTRY")]
    country: Option<Country>,
    /// Write every bad line to this file, as NDJSON
    #[arg(long, value_name = "FILE")]
    bad: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The file; `-` reads stdin
    file: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatArg {
    /// A header with email, phone, external_id, timezone, unsubscribed; other columns become attributes
    Csv,
    /// A JSON object per line, with the same names
    Ndjson,
}

pub async fn run(args: ImportArgs, config: &Config) -> anyhow::Result<ExitCode> {
    // The input is checked before the database is opened.
    let list = audience::list_name(&args.list).map_err(|problem| anyhow::anyhow!("--list: {problem}"))?;
    let source = Source::open(&args.file)?;
    let options = audience::Options {
        format: args.format.map(|format| match format {
            FormatArg::Csv => Format::Csv,
            FormatArg::Ndjson => Format::Ndjson,
        }),
        delimiter: args.delimiter,
        country: args.country,
    };
    let taken = Arc::clone(&source.taken);
    let (name, bytes, file_id) = (source.name.clone(), source.bytes, source.id);
    let leads = Leads::open(source, &options).with_context(|| format!("cannot import {name}"))?;
    let bad = args.bad.as_deref().map(|path| create_beside(path, file_id)).transpose()?;
    let mut report = Report::new(list.clone(), bytes, taken, bad)?;

    let stop = shutdown::on_signal()?;
    let outcome = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let mut transaction = pool::begin(&pool).await?;
        let tenant = args.of.tenant.find(&mut transaction, installation).await?;
        let workspace = args.of.workspace(&mut transaction, &tenant).await?;
        drop(transaction);
        let to = Destination { tenant: tenant.id, workspace, list: &list };
        let chunks = store::read_ahead(leads).context("cannot start the reader thread")?;
        store_all(&pool, to, chunks, &mut report, &stop).await
    })
    .await;
    let ended = match outcome {
        Ok(ended) => ended,
        Err(error) => {
            report.close()?;
            return Err(match report.last_line() {
                0 => error,
                line => error.context(format!(
                    "the import stopped after line {line}; the lines before it are imported; import the file again to \
                     continue, no lead is added twice"
                )),
            });
        }
    };
    report.close()?;
    anyhow::ensure!(
        ended == Ended::Interrupted || report.lines() > 0,
        "cannot import {name}: it has no lines"
    );
    report.print(args.json)?;
    if ended == Ended::Interrupted {
        match report.last_line() {
            0 => message!("the import was interrupted before the first line was imported"),
            line => message!(
                "the import was interrupted after line {line}; import the file again to import the rest"
            ),
        }
        return Ok(ExitCode::from(130));
    }
    report.refuse_bad_lines()?;
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    AtTheEnd,
    Interrupted,
}

/// Stores the chunks, each in its own transaction.
async fn store_all(
    pool: &Pool,
    to: Destination<'_>,
    mut chunks: mpsc::Receiver<io::Result<Chunk>>,
    report: &mut Report,
    stop: &CancellationToken,
) -> anyhow::Result<Ended> {
    loop {
        let chunk = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(Ended::Interrupted),
            chunk = chunks.recv() => chunk,
        };
        let Some(chunk) = chunk else { return Ok(Ended::AtTheEnd) };
        let chunk = chunk.context("cannot read the file to the end")?;
        let imported = store::import(pool, to, &chunk.rows).await?;
        report.add(chunk, imported)?;
    }
}

/// A file or stdin, and the number of bytes that were read.
struct Source {
    name: String,
    bytes: Option<u64>,
    id: Option<(u64, u64)>,
    reader: Box<dyn Read + Send>,
    taken: Arc<AtomicU64>,
}

impl Source {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let taken = Arc::default();
        if path == Path::new("-") {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                message!("type the lines, then a new line and Ctrl-D");
            }
            return Ok(Self {
                name: "stdin".to_owned(),
                bytes: None,
                id: None,
                reader: Box::new(stdin),
                taken,
            });
        }
        let name = path.display().to_string();
        let cannot = || format!("cannot open {name}");
        let file = File::open(path).with_context(cannot)?;
        let metadata = file.metadata().with_context(cannot)?;
        Ok(Self {
            bytes: metadata.is_file().then_some(metadata.len()),
            id: Some((metadata.dev(), metadata.ino())),
            reader: Box::new(file),
            name,
            taken,
        })
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.taken.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Creates or truncates a file, but never the one that is being read.
fn create_beside(path: &Path, other: Option<(u64, u64)>) -> anyhow::Result<File> {
    let same = std::fs::metadata(path).is_ok_and(|there| Some((there.dev(), there.ino())) == other);
    anyhow::ensure!(!same, "--bad names the file that is imported; name another one");
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}
