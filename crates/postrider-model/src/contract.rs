//! The frozen contracts: names that other programs rely on.
//!
//! Each contract fixes tables, columns, functions and words. They are listed here with the columns and words that
//! Postrider adds. The migrator and `postrider doctor` compare the database with this list, and it is closed: something
//! missing is a finding, and so is something more. `docs/contract.md` shows the same list.

use std::fmt::Write;

/// Version of all contracts together.
pub const VERSION: u32 = 1;

/// The names that one contract fixes.
#[derive(Debug)]
pub struct Contract {
    /// The subject of the contract.
    pub subject: &'static str,
    /// A schema that holds the tables and functions of this contract and nothing else.
    pub only_these_in: Option<&'static str>,
    /// Tables and views.
    pub tables: &'static [Table],
    /// Functions. Each has one signature, without overloads.
    pub functions: &'static [Function],
}

/// A table or a view. Columns are names and types.
#[derive(Debug)]
pub struct Table {
    /// Name with its schema.
    pub name: &'static str,
    /// Columns that the contract fixes.
    pub columns: &'static [(&'static str, &'static str)],
    /// Columns that Postrider adds.
    pub ours: &'static [(&'static str, &'static str)],
    /// Columns that hold a closed set of words.
    pub words: &'static [Words],
}

/// A column with a closed set of words, which a check constraint enforces.
#[derive(Debug)]
pub struct Words {
    /// Name of the column.
    pub column: &'static str,
    /// Words that the contract fixes.
    pub words: &'static [&'static str],
    /// Words that Postrider adds.
    pub ours: &'static [&'static str],
}

/// A function.
#[derive(Debug)]
pub struct Function {
    /// Name with its schema.
    pub name: &'static str,
    /// Arguments with their types and defaults, as Postgres writes them.
    pub arguments: &'static str,
    /// Result, as Postgres writes it.
    pub result: &'static str,
    /// Whether the contract fixes only the name, and Postrider chose the arguments.
    pub arguments_are_ours: bool,
}

/// Frozen version 1.
pub const CONTRACTS: &[Contract] = &[
    Contract {
        subject: "campaign execution",
        only_these_in: None,
        tables: &[
            Table {
                name: "execution.campaign_runs",
                columns: &[
                    ("id", "uuid"),
                    ("campaign_id", "uuid"),
                    ("tenant_id", "uuid"),
                    ("workspace_id", "uuid"),
                    ("status", "text"),
                    ("channel", "text"),
                    ("created_at", "timestamp with time zone"),
                ],
                ours: &[
                    ("phase_id", "uuid"),
                    ("asset_id", "uuid"),
                    ("provider_account_id", "uuid"),
                    ("provider", "text"),
                    ("scheduled_for", "timestamp with time zone"),
                    ("quiet_time", "interval"),
                    ("key_part", "text"),
                    ("intended", "integer"),
                    ("same_address", "integer"),
                    ("correlation_id", "uuid"),
                    ("started_at", "timestamp with time zone"),
                    ("finished_at", "timestamp with time zone"),
                    ("failover_account_id", "uuid"),
                    ("number", "integer"),
                    ("cause", "text"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["queued", "running", "completed", "partial", "failed"],
                    ours: &[],
                }],
            },
            Table {
                name: "execution.job_queue",
                columns: &[
                    ("id", "uuid"),
                    ("run_id", "uuid"),
                    ("tenant_id", "uuid"),
                    ("workspace_id", "uuid"),
                    ("job_type", "text"),
                    ("status", "text"),
                    ("attempts", "integer"),
                    ("created_at", "timestamp with time zone"),
                ],
                ours: &[
                    ("position", "integer"),
                    ("outcome", "text"),
                    ("max_attempts", "integer"),
                    ("run_after", "timestamp with time zone"),
                    ("locked_by", "text"),
                    ("locked_at", "timestamp with time zone"),
                    ("last_error", "text"),
                    ("item_ids", "uuid[]"),
                    ("succeeded", "integer"),
                    ("failed", "integer"),
                    ("skipped", "integer"),
                    ("finished_at", "timestamp with time zone"),
                    ("waits_for", "text"),
                ],
                words: &[
                    Words {
                        column: "status",
                        words: &["queued", "locked", "completed", "failed", "dead"],
                        ours: &[],
                    },
                    Words {
                        column: "job_type",
                        words: &["email_send_batch", "voice_call_batch", "social_post_batch"],
                        ours: &[],
                    },
                ],
            },
            Table {
                name: "execution.channel_outbox",
                columns: &[
                    ("id", "uuid"),
                    ("tenant_id", "uuid"),
                    ("workspace_id", "uuid"),
                    ("run_id", "uuid"),
                    ("job_id", "uuid"),
                    ("channel", "text"),
                    ("provider", "text"),
                    ("recipient_id", "uuid"),
                    ("status", "text"),
                    ("skipped", "boolean"),
                    ("idempotency_key", "text"),
                    ("provider_message_id", "text"),
                    ("created_at", "timestamp with time zone"),
                ],
                ours: &[
                    ("recipient", "text"),
                    ("error", "text"),
                    ("reserved_by", "text"),
                    ("attempt", "integer"),
                    ("message_hash", "bytea"),
                    ("finalized_at", "timestamp with time zone"),
                    ("in_doubt_since", "timestamp with time zone"),
                    ("moved_to_account_id", "uuid"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["queued", "sent", "called", "posted", "failed", "skipped"],
                    ours: &[],
                }],
            },
        ],
        functions: &[
            Function {
                name: "execution.deploy_campaign",
                arguments: "p_tenant_id uuid, p_campaign_id uuid, p_phase text DEFAULT NULL::text, p_actor text DEFAULT NULL::text, p_run_id uuid DEFAULT NULL::uuid, p_job_size integer DEFAULT 500",
                result: "uuid",
                arguments_are_ours: true,
            },
            Function {
                name: "execution.claim_queued_jobs",
                arguments: "p_tenant_id uuid, p_worker_id text, p_limit integer DEFAULT 10, p_except_runs uuid[] DEFAULT '{}'::uuid[]",
                result: "TABLE(job_id uuid, tenant_id uuid, workspace_id uuid, run_id uuid, job_type text, attempts integer, max_attempts integer, item_ids uuid[], channel text, asset_id uuid, provider_account_id uuid, provider text, scheduled_for timestamp with time zone, key_part text, correlation_id uuid)",
                arguments_are_ours: true,
            },
        ],
    },
    Contract {
        subject: "channel replies",
        only_these_in: None,
        tables: &[
            Table {
                name: "channels.channel_messages",
                columns: &[("id", "uuid"), ("status", "text")],
                ours: &[
                    ("tenant_id", "uuid"),
                    ("account_id", "uuid"),
                    ("provider", "text"),
                    ("provider_message_id", "text"),
                    ("sender_id", "text"),
                    ("recipient_id", "text"),
                    ("thread", "text"),
                    ("text", "text"),
                    ("user_id", "text"),
                    ("role", "text"),
                    ("reply", "jsonb"),
                    ("last_error", "text"),
                    ("correlation_id", "uuid"),
                    ("deliveries", "integer"),
                    ("executions", "integer"),
                    ("is_executing", "boolean"),
                    ("leased_until", "timestamp with time zone"),
                    ("created_at", "timestamp with time zone"),
                    ("updated_at", "timestamp with time zone"),
                ],
                words: &[Words {
                    column: "status",
                    words: &[
                        "accepted",
                        "executed",
                        "dispatch_failed",
                        "denied_unlinked",
                        "denied_rbac",
                        "denied_sentinel",
                    ],
                    ours: &[],
                }],
            },
            Table {
                name: "channels.channel_outbox",
                columns: &[
                    ("id", "uuid"),
                    ("tenant_id", "uuid"),
                    ("channel_message_id", "uuid"),
                    ("provider", "text"),
                    ("recipient_id", "text"),
                    ("payload", "jsonb"),
                    ("status", "text"),
                    ("attempt_count", "integer"),
                    ("max_attempts", "integer"),
                    ("next_attempt_at", "timestamp with time zone"),
                    ("last_error", "text"),
                    ("locked_at", "timestamp with time zone"),
                    ("sent_at", "timestamp with time zone"),
                    ("created_at", "timestamp with time zone"),
                    ("updated_at", "timestamp with time zone"),
                ],
                ours: &[
                    ("account_id", "uuid"),
                    ("locked_by", "text"),
                    ("claims", "integer"),
                    ("in_doubt_since", "timestamp with time zone"),
                    ("requeued_at", "timestamp with time zone"),
                    ("provider_message_id", "text"),
                    ("delivery_status", "text"),
                    ("delivery_status_at", "timestamp with time zone"),
                    ("delivery_error", "text"),
                    ("correlation_id", "uuid"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["pending", "sending", "sent", "dead"],
                    ours: &[],
                }],
            },
        ],
        functions: &[],
    },
    Contract {
        subject: "domain events (M10)",
        only_these_in: Some("m10_recovery"),
        tables: &[Table {
            name: "m10_recovery.outbox",
            columns: &[
                ("id", "bigint"),
                ("aggregate_type", "text"),
                ("aggregate_id", "text"),
                ("event_type", "text"),
                ("payload", "jsonb"),
                ("created_at", "timestamp with time zone"),
                ("processed_at", "timestamp with time zone"),
                ("retry_count", "integer"),
                ("process_after", "timestamp with time zone"),
                ("claimed_at", "timestamp with time zone"),
                ("claimed_by", "text"),
            ],
            ours: &[("last_error", "text"), ("tenant_id", "uuid")],
            words: &[],
        }],
        functions: &[
            Function {
                name: "m10_recovery.publish_outbox",
                arguments: "p_aggregate_type text, p_aggregate_id text, p_event_type text, p_payload jsonb",
                result: "bigint",
                arguments_are_ours: false,
            },
            Function {
                name: "m10_recovery.claim_outbox_events",
                arguments: "p_processor_id text, p_batch_size integer DEFAULT 10",
                result: "TABLE(id bigint, aggregate_type text, aggregate_id text, event_type text, payload jsonb, retry_count integer)",
                arguments_are_ours: false,
            },
            Function {
                name: "m10_recovery.complete_outbox_event",
                arguments: "p_event_id bigint, p_processor_id text, p_success boolean, p_error text DEFAULT NULL::text",
                result: "void",
                arguments_are_ours: false,
            },
        ],
    },
    Contract {
        subject: "scheduled jobs",
        only_these_in: None,
        tables: &[
            Table {
                name: "jobs.job_runs",
                columns: &[
                    ("id", "uuid"),
                    ("tenant_id", "uuid"),
                    ("function_name", "text"),
                    ("lock_key", "text"),
                    ("status", "text"),
                    ("input_params", "jsonb"),
                    ("result", "jsonb"),
                    ("error_message", "text"),
                    ("retry_count", "integer"),
                    ("started_at", "timestamp with time zone"),
                    ("completed_at", "timestamp with time zone"),
                    ("created_at", "timestamp with time zone"),
                    ("duration_ms", "integer"),
                ],
                ours: &[
                    ("retry_at", "timestamp with time zone"),
                    ("heartbeat_at", "timestamp with time zone"),
                    ("schedule_id", "uuid"),
                    ("scheduled_for", "timestamp with time zone"),
                    ("grain", "text"),
                    ("grain_start", "timestamp with time zone"),
                    ("is_forced", "boolean"),
                    ("locked_by", "text"),
                    ("claims", "integer"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["running", "completed", "failed", "cancelled"],
                    ours: &[],
                }],
            },
            Table {
                name: "jobs.sync_errors",
                columns: &[
                    ("tenant_id", "uuid"),
                    ("error_type", "text"),
                    ("error_code", "text"),
                    ("error_message", "text"),
                    ("error_details", "jsonb"),
                    ("source_entity_type", "text"),
                    ("source_entity_id", "uuid"),
                    ("is_resolved", "boolean"),
                ],
                ours: &[
                    ("id", "uuid"),
                    ("resolved_at", "timestamp with time zone"),
                    ("resolved_by", "text"),
                    ("resolution_note", "text"),
                    ("created_at", "timestamp with time zone"),
                    ("updated_at", "timestamp with time zone"),
                ],
                words: &[],
            },
            Table {
                name: "jobs.alert_instances",
                columns: &[
                    ("tenant_id", "uuid"),
                    ("alert_config_id", "text"),
                    ("external_object_id", "text"),
                    ("title", "text"),
                    ("severity", "text"),
                    ("status", "text"),
                    ("created_at", "timestamp with time zone"),
                ],
                ours: &[
                    ("id", "uuid"),
                    ("evidence", "jsonb"),
                    ("updated_at", "timestamp with time zone"),
                    ("resolved_at", "timestamp with time zone"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["active", "open", "triggered"],
                    ours: &["resolved"],
                }],
            },
            Table {
                name: "jobs.decision_cards",
                columns: &[
                    ("tenant_id", "uuid"),
                    ("alert_instance_id", "uuid"),
                    ("metric_code", "text"),
                    ("period_start", "date"),
                    ("status", "text"),
                ],
                ours: &[
                    ("id", "uuid"),
                    ("title", "text"),
                    ("recommendation", "text"),
                    ("evidence", "jsonb"),
                    ("note", "text"),
                    ("decided_by", "text"),
                    ("created_at", "timestamp with time zone"),
                    ("updated_at", "timestamp with time zone"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["OPEN", "IN_PROGRESS"],
                    ours: &["RESOLVED", "DISMISSED"],
                }],
            },
            Table {
                name: "jobs.job_health",
                columns: &[
                    ("function_name", "text"),
                    ("status", "text"),
                    ("count", "bigint"),
                    ("avg_duration_ms", "numeric"),
                    ("max_duration_ms", "integer"),
                    ("retried_count", "bigint"),
                ],
                ours: &[("tenant_id", "uuid")],
                words: &[],
            },
        ],
        functions: &[],
    },
    Contract {
        subject: "campaign phases",
        only_these_in: None,
        tables: &[
            Table {
                name: "execution.campaign_phases",
                columns: &[("phase", "text"), ("status", "text")],
                ours: &[
                    ("id", "uuid"),
                    ("tenant_id", "uuid"),
                    ("workspace_id", "uuid"),
                    ("campaign_id", "uuid"),
                    ("position", "integer"),
                    ("kind", "text"),
                    ("channel", "text"),
                    ("asset_id", "uuid"),
                    ("list_id", "uuid"),
                    ("provider_account_id", "uuid"),
                    ("failure_tolerance", "numeric"),
                    ("scheduled_for", "timestamp with time zone"),
                    ("quiet_time", "interval"),
                    ("created_at", "timestamp with time zone"),
                    ("updated_at", "timestamp with time zone"),
                    ("failover_account_id", "uuid"),
                    ("progress", "numeric(4,1)"),
                    ("progress_reported", "numeric(4,1)"),
                    ("due", "text"),
                ],
                words: &[Words {
                    column: "status",
                    words: &["not_started", "in_progress", "paused", "completed", "failed"],
                    ours: &[],
                }],
            },
            Table {
                name: "execution.campaign_events",
                columns: &[
                    ("type", "text"),
                    ("campaign_id", "uuid"),
                    ("phase", "text"),
                    ("sequence", "bigint"),
                    ("payload", "jsonb"),
                ],
                ours: &[("tenant_id", "uuid"), ("at", "timestamp with time zone")],
                words: &[Words {
                    column: "type",
                    words: &[
                        "phase_started",
                        "phase_paused",
                        "phase_resumed",
                        "phase_completed",
                        "phase_failed",
                        "campaign_progress",
                    ],
                    ours: &[],
                }],
            },
        ],
        functions: &[],
    },
];

/// The list as the tables of `docs/contract.md`.
#[must_use]
pub fn as_markdown() -> String {
    let mut page = String::new();
    for contract in CONTRACTS {
        let _ = writeln!(page, "### {}\n", capitalised(contract.subject));
        if let Some(schema) = contract.only_these_in {
            let _ = writeln!(page, "Schema `{schema}` holds this and nothing else.\n");
        }
        for table in contract.tables {
            let _ = writeln!(page, "`{}`\n\n| column | type | |\n|---|---|---|", table.name);
            let fixed = table.columns.iter().map(|column| (column, ""));
            for ((name, kind), whose) in fixed.chain(table.ours.iter().map(|column| (column, "ours"))) {
                let _ = writeln!(page, "| `{name}` | {kind} | {whose} |");
            }
            for words in table.words {
                let _ = write!(page, "\n`{}`: {}", words.column, listed(words.words));
                let _ = match words.ours {
                    [] => writeln!(page),
                    ours => writeln!(page, "; ours: {}", listed(ours)),
                };
            }
            let _ = writeln!(page);
        }
        for function in contract.functions {
            let note = if function.arguments_are_ours {
                " (the contract fixes the name, the arguments are ours)"
            } else {
                ""
            };
            let _ = writeln!(
                page,
                "Function{note}:\n\n```text\n{}({})\nreturns {}\n```\n",
                function.name, function.arguments, function.result
            );
        }
    }
    page
}

fn listed(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const BEGIN: &str = "<!-- The list: made from the model; UPDATE_CONTRACT=1 cargo test -p postrider-model contract writes it. -->\n\n";
    const END: &str = "<!-- End of the list. -->\n";

    /// With UPDATE_CONTRACT set, the test writes the page instead.
    #[test]
    fn the_page_shows_the_list_of_the_model() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/contract.md");
        let page = std::fs::read_to_string(&path).unwrap();
        let (before, rest) =
            page.split_once(BEGIN).expect("docs/contract.md has no marker where the list begins");
        let (list, after) = rest.split_once(END).expect("docs/contract.md has no marker where the list ends");
        assert!(
            before.contains(&format!("frozen version {VERSION}")),
            "docs/contract.md does not name the version"
        );
        if std::env::var_os("UPDATE_CONTRACT").is_some() {
            std::fs::write(&path, format!("{before}{BEGIN}{}{END}{after}", as_markdown())).unwrap();
            return;
        }
        assert!(
            list == as_markdown(),
            "docs/contract.md differs from the model; run the command that it names"
        );
    }

    #[test]
    fn no_name_is_listed_twice() {
        let mut names: Vec<&str> = Vec::new();
        for contract in CONTRACTS {
            names.extend(contract.tables.iter().map(|table| table.name));
            names.extend(contract.functions.iter().map(|function| function.name));
            for table in contract.tables {
                let mut columns: Vec<_> =
                    table.columns.iter().chain(table.ours).map(|(name, _)| *name).collect();
                let count = columns.len();
                columns.sort_unstable();
                columns.dedup();
                assert_eq!(columns.len(), count, "{}", table.name);
                assert!(table.words.iter().all(|words| columns.contains(&words.column)), "{}", table.name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
