//! Asks the person at the terminal for confirmation.

use std::io::{BufRead, IsTerminal, Write};

/// Asks before an action that cannot be undone. A script answers with `--yes`; without `--yes` and without a terminal the command
/// fails. `unchanged` describes the state after a refusal, such as `nothing was sent`.
pub fn confirm(yes: bool, consequence: &str, unchanged: &str) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    anyhow::ensure!(
        std::io::stdin().is_terminal(),
        "{consequence}, and stdin is not a terminal, so the command cannot ask; {unchanged}; add --yes to go on without a question"
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

/// Asks for a name before an action that removes everything that the name has. A script gives the name with `--yes NAME`.
pub fn confirm_name(yes: Option<&str>, name: &str, consequence: &str, unchanged: &str) -> anyhow::Result<()> {
    if let Some(typed) = yes {
        anyhow::ensure!(typed == name, "--yes `{typed}` is not the name `{name}`; {unchanged}");
        return Ok(());
    }
    anyhow::ensure!(
        std::io::stdin().is_terminal(),
        "{consequence}, and stdin is not a terminal, so the command cannot ask; {unchanged}; add --yes '{name}' to go on without a \
         question"
    );
    let mut terminal = std::io::stderr().lock();
    write!(terminal, "{consequence}. Type the name to go on: ").and_then(|()| terminal.flush())?;
    drop(terminal);
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    anyhow::ensure!(answer.trim() == name, "the answer was not `{name}`; {unchanged}");
    Ok(())
}
