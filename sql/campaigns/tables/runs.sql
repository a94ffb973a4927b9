-- Runs: the executions of a phase.

create table execution.campaign_runs (
    id                  uuid        not null,
    tenant_id           uuid        not null,
    workspace_id        uuid        not null,
    -- Null for a run of single messages.
    campaign_id         uuid,
    phase_id            uuid,
    channel             text        not null,
    status              text        not null default 'queued',
    -- Null for a run of single messages, each of which has its own.
    asset_id            uuid,
    provider_account_id uuid        not null,
    provider            text        not null,
    scheduled_for       timestamptz,
    quiet_time          interval    not null,
    -- Third part of every item's idempotency key: the asset id, the version of the script, or the word social. The word message: keys
    -- follow from the ids of single messages alone.
    key_part            text        not null,
    intended            integer     not null,
    -- Number of leads of the list that were left out because an earlier lead has the same address.
    same_address        integer     not null default 0,
    correlation_id      uuid        not null,
    created_at          timestamptz not null default now(),
    started_at          timestamptz,
    finished_at         timestamptz,
    failover_account_id uuid,
    -- Runs of a phase are numbered under the lock of the campaign, so the newest run does not depend on clocks.
    number              integer     not null default 1,
    -- A retry sends the items that failed since the last run of the whole audience.
    cause               text        not null default 'start',
    constraint campaign_runs_are_numbered unique (tenant_id, phase_id, number),
    constraint campaign_runs_belong_to_a_phase
        foreign key (tenant_id, phase_id) references execution.campaign_phases (tenant_id, id),
    constraint campaign_runs_belong_to_a_campaign
        foreign key (tenant_id, campaign_id) references execution.campaigns (tenant_id, id),
    constraint campaign_runs_channel_check check (channel in ('email', 'voice', 'social')),
    constraint campaign_runs_status_check
        check (status in ('queued', 'running', 'completed', 'partial', 'failed')),
    constraint campaign_runs_cause_check check (cause in ('start', 'retry', 'rerun', 'message')),
    constraint campaign_runs_are_of_a_phase_or_of_messages
        check (case cause
                   when 'message' then campaign_id is null and phase_id is null and asset_id is null and key_part = 'message'
                   else campaign_id is not null and phase_id is not null and asset_id is not null and key_part <> 'message'
               end),
    constraint campaign_runs_intend_something check (intended > 0)
);
alter table execution.campaign_runs alter column tenant_id set statistics 0; -- as for leads
comment on table execution.campaign_runs is
    'One execution of a phase, with the settings of the phase at the time of its deployment, or of single messages. Runs are never deleted; '
    'run_archives has those whose jobs and items were.';

create index campaign_runs_by_campaign on execution.campaign_runs (tenant_id, campaign_id, created_at);
create index campaign_runs_by_phase on execution.campaign_runs (tenant_id, phase_id, created_at);
create index campaign_runs_by_correlation on execution.campaign_runs (tenant_id, correlation_id);
-- For the items of a lead: the runs of phases, newest first. Single messages make many runs.
create index campaign_runs_of_phases_by_age on execution.campaign_runs (tenant_id, created_at, id) where phase_id is not null;
-- For the list of runs, newest first, page by page.
create index campaign_runs_by_age on execution.campaign_runs (tenant_id, created_at, id);
-- The newest index: among indexes of equal cost, as on an empty table, the planner takes the newest, and the lookup of a run by
-- its tenant and id is the most frequent.
alter table execution.campaign_runs add primary key (tenant_id, id);

create table execution.run_archives (
    tenant_id      uuid        not null,
    run_id         uuid        not null,
    -- From this time on the run has no jobs and items, or loses them.
    archived_at    timestamptz not null default now(),
    -- Time at which the last of its rows was deleted.
    removed_at     timestamptz,
    -- File below `campaigns.export_dir` that has the rows; null if they were not exported.
    exported_to    text,
    jobs_completed bigint      not null,
    jobs_dead      bigint      not null,
    sent           bigint      not null,
    called         bigint      not null,
    posted         bigint      not null,
    failed         bigint      not null,
    skipped        bigint      not null,
    missing        bigint      not null,
    primary key (tenant_id, run_id),
    constraint run_archives_are_of_a_run
        foreign key (tenant_id, run_id) references execution.campaign_runs (tenant_id, id)
);
comment on table execution.run_archives is
    'One row per run whose jobs and items retention deletes, with the counts of its launch certificate. The guards let '
    'rows of these runs be deleted, and refuse every new job of them, so no key of them can be reserved again.';
