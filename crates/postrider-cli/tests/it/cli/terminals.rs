//! Output of commands on a terminal: wide, narrow, or without a size.

use super::stage::{SPRING, Stage, redacted};
use crate::cli::{succeeded, terminal::Terminal};

/// The output of a command on a terminal of so many columns.
fn shown(stage: &Stage, args: &[&str], columns: u16) -> anyhow::Result<String> {
    let (code, shown) = Terminal::start(&mut stage.command(args), columns)?.finish()?;
    anyhow::ensure!(code == 0, "{shown}");
    Ok(shown)
}

#[tokio::test]
async fn a_terminal_without_a_size_gets_one_line_per_row() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    for args in [&["keys", "list"][..], &["accounts", "list"], &["campaign", "status"]] {
        let plain = stage.run(args)?;
        assert_eq!(shown(&stage, args, 0)?, format!("{}{}", plain.stdout, plain.stderr), "{args:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_narrow_terminal_breaks_no_id() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    let run_id = stage.deploy_spring(1).await?.to_string();
    let created = stage.json(&["campaign", "status", "spring"])?;
    let campaign = created["campaign"]["id"].as_str().unwrap_or_default().to_owned();
    let account = stage.json(&["accounts", "list"])?[0]["id"].as_str().unwrap_or_default().to_owned();
    for columns in [20, 40, 80, 100, 120, 200] {
        for (args, id) in [
            (&["campaign", "status", "spring"][..], &run_id),
            (&["campaign", "status"], &campaign),
            (&["accounts", "list"], &account),
        ] {
            let shown = shown(&stage, args, columns)?;
            assert!(shown.contains(id), "{id} is broken on {columns} columns:\n{shown}");
        }
    }
    // Elsewhere than on a terminal, a row is a line however long it is.
    succeeded(stage.create(&SPRING.replace("\"spring\"", &format!("\"{}\"", "long ".repeat(40).trim())))?)?;
    let listed = stage.stdout(&["campaign", "status"])?;
    assert_eq!(listed.lines().count(), 3, "{}", redacted(&listed));
    Ok(())
}
