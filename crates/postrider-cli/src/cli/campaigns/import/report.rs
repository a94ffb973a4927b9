//! Output of an import: bad lines and progress on stderr while it runs, the summary on stdout.

use std::{
    fs::File,
    io::{BufWriter, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use postrider_model::campaigns::audience::{BadLine, Chunk, Renamed};
use postrider_store::campaigns::leads::{Imported, Summary};

use crate::cli::output;

/// Maximum number of bad lines on stderr.
const SHOWN_MAX: u64 = 20;
/// Lines of the file between two progress messages when stderr is no terminal.
const PROGRESS_EVERY: u64 = 100_000;

pub struct Report {
    list: String,
    summary: Summary,
    /// Number of bad lines that were shown.
    shown: u64,
    last_line: u64,
    /// The file for all bad lines, if one was named.
    bad_file: Option<BufWriter<File>>,
    /// Number of bytes that were read.
    taken: Arc<AtomicU64>,
    bar: ProgressBar,
}

impl Report {
    pub fn new(
        list: String,
        bytes: Option<u64>,
        taken: Arc<AtomicU64>,
        bad_file: Option<File>,
    ) -> anyhow::Result<Self> {
        let template = match bytes {
            Some(_) => "importing  {bar:40} {bytes}/{total_bytes}  {bytes_per_sec}  {msg}",
            None => "importing  {spinner} {bytes}  {bytes_per_sec}  {msg}",
        };
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar =
            ProgressBar::with_draw_target(bytes, target).with_style(ProgressStyle::with_template(template)?);
        let summary = Summary::default();
        Ok(Self { list, summary, shown: 0, last_line: 0, bad_file: bad_file.map(BufWriter::new), taken, bar })
    }

    /// Number of lines that were processed.
    pub fn lines(&self) -> u64 {
        self.summary.lines
    }

    /// Number of the last line that was processed.
    pub fn last_line(&self) -> u64 {
        self.last_line
    }

    /// Adds a chunk and the result of its import.
    pub fn add(&mut self, chunk: Chunk, imported: Imported) -> anyhow::Result<()> {
        let before = self.summary.lines;
        self.last_line = chunk.last_line;
        for bad in self.summary.add(chunk, imported) {
            self.report_bad_line(&bad)?;
        }

        let lines = self.summary.lines;
        self.bar.set_position(self.taken.load(Ordering::Relaxed));
        self.bar.set_message(format!("{lines} lines"));
        if self.bar.is_hidden() && lines / PROGRESS_EVERY > before / PROGRESS_EVERY {
            message!("importing  {lines} lines, {} of them bad", self.summary.bad);
        }
        Ok(())
    }

    fn report_bad_line(&mut self, bad: &BadLine) -> anyhow::Result<()> {
        if self.shown < SHOWN_MAX {
            self.shown += 1;
            self.bar.suspend(|| message!("line {}: {}", bad.line, bad.reason));
        }
        if let Some(file) = &mut self.bad_file {
            serde_json::to_writer(&mut *file, bad)
                .map_err(std::io::Error::from)
                .and_then(|()| file.write_all(b"\n"))
                .context("cannot write the bad lines")?;
        }
        Ok(())
    }

    /// Ends the progress display and flushes the file of bad lines.
    pub fn close(&mut self) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        let unseen = self.summary.bad.saturating_sub(SHOWN_MAX);
        if unseen > 0 {
            message!("and {unseen} more bad lines; --bad FILE saves all of them");
        }
        match self.bad_file.take() {
            Some(mut file) => file.flush().context("cannot write the bad lines"),
            None => Ok(()),
        }
    }

    /// Prints the summary to stdout.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        let summary = &self.summary;
        for Renamed { column, variable } in &summary.renamed {
            message!(
                "column `{column}` is no name for a variable; templates use it as `{{{{ {variable} }}}}`"
            );
        }
        if json {
            return output::json(summary);
        }
        let list = summary.list_id.map_or_else(|| "-".to_owned(), |list| list.0.to_string());
        let Summary { lines, added, updated, repeated, matched_by_address: matched, bad, .. } = summary;
        output::text(&format!(
            "list_id   {list}\nlines     {lines}\nadded     {added}\nupdated   {updated}\nrepeated  {repeated}\nmatched   {matched} by address\nbad       {bad}\n"
        ))
    }

    /// Returns an error when a line was bad.
    pub fn refuse_bad_lines(&self) -> anyhow::Result<()> {
        let Summary { lines, bad, .. } = self.summary;
        anyhow::ensure!(
            bad < lines,
            "none of the {lines} lines is a lead; nothing was imported; correct the file and import it again"
        );
        anyhow::ensure!(
            bad == 0,
            "{bad} of {lines} lines were left out; the others are on the list `{}`: correct those and import them again",
            self.list
        );
        Ok(())
    }
}
