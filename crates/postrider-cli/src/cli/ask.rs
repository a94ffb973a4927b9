//! Questions to the person at the terminal.

use std::io::{BufRead, IsTerminal, Write};

/// Asks whether to go on with something that cannot be taken back. `--yes` is the answer of a script; without it and without a
/// terminal the command fails. `unchanged` says what did not happen then, such as `nothing was sent`.
pub fn confirm(yes: bool, consequence: &str, unchanged: &str) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    anyhow::ensure!(
        std::io::stdin().is_terminal(),
        "{consequence}, and stdin is not a terminal on which to ask; {unchanged}; add --yes to go on without a question"
    );
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "{consequence}. Go on? [y/N] ").and_then(|()| terminal.flush())?;
    drop(terminal);
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    let answer = answer.trim().to_lowercase();
    anyhow::ensure!(["y", "yes"].contains(&answer.as_str()), "the answer was not yes; {unchanged}");
    Ok(())
}
