-- Campaigns, their phases, runs, jobs and items, and the log of what happened to them.
-- Safe beside running workers: it adds tables and touches no other.

create table execution.campaigns (
    id           uuid        not null,
    tenant_id    uuid        not null,
    workspace_id uuid        not null,
    name         text        not null,
    auto_advance boolean     not null default true,
    created_at   timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint campaigns_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint campaigns_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint campaigns_one_per_name unique (tenant_id, workspace_id, name)
);
select tenancy.protect('execution.campaigns');

-- A delivery names what it sends, to whom, and through whom. An external phase is another service's work.
create table execution.campaign_phases (
    id                  uuid        not null,
    tenant_id           uuid        not null,
    workspace_id        uuid        not null,
    campaign_id         uuid        not null,
    position            integer     not null,
    phase               text        not null,
    kind                text        not null default 'delivery',
    channel             text,
    asset_id            uuid,
    list_id             uuid,
    provider_account_id uuid,
    failure_tolerance   numeric     not null default 0.05,
    scheduled_for       timestamptz,
    -- How long after a call the provider's silence counts as "it was never sent".
    quiet_time          interval    not null default '11 minutes',
    status              text        not null default 'not_started',
    created_at          timestamptz not null default now(),
    updated_at          timestamptz not null default now(),
    primary key (tenant_id, id),
    constraint campaign_phases_belong_to_a_campaign
        foreign key (tenant_id, campaign_id) references execution.campaigns (tenant_id, id),
    constraint campaign_phases_send_an_asset
        foreign key (tenant_id, asset_id) references execution.assets (tenant_id, id),
    constraint campaign_phases_address_a_list
        foreign key (tenant_id, list_id) references execution.lead_lists (tenant_id, id),
    constraint campaign_phases_use_an_account
        foreign key (tenant_id, provider_account_id) references tenancy.provider_accounts (tenant_id, id),
    constraint campaign_phases_one_per_name unique (tenant_id, campaign_id, phase),
    constraint campaign_phases_one_per_position unique (tenant_id, campaign_id, position),
    constraint campaign_phases_name_is_simple check (phase ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    constraint campaign_phases_kind_check check (kind in ('delivery', 'external')),
    constraint campaign_phases_channel_check check (channel in ('email', 'voice', 'social')),
    constraint campaign_phases_deliveries_are_whole
        check (kind = 'external'
               or (channel is not null and asset_id is not null and provider_account_id is not null
                   and (list_id is not null or channel = 'social'))),
    constraint campaign_phases_tolerance_is_a_share check (failure_tolerance between 0 and 1),
    constraint campaign_phases_quiet_time_is_positive check (quiet_time > interval '0'),
    -- Times that have one spelling in a key, here and in the clients.
    constraint campaign_phases_scheduled_in_a_plain_year
        check (scheduled_for >= timestamptz '0001-01-01 00:00:00+00' and scheduled_for < timestamptz '9999-01-01 00:00:00+00'),
    constraint campaign_phases_status_check
        check (status in ('not_started', 'in_progress', 'paused', 'completed', 'failed'))
);
select tenancy.protect('execution.campaign_phases');

create trigger campaign_phases_change_as_the_table_says
    before update of status on execution.campaign_phases
    for each row
    when ((old.status, new.status) not in (('not_started', 'in_progress'),
                                           ('in_progress', 'paused'),
                                           ('paused', 'in_progress'),
                                           ('in_progress', 'completed'),
                                           ('in_progress', 'failed'),
                                           ('completed', 'in_progress'),
                                           ('failed', 'in_progress')))
    execute function tenancy.refuse_change('a phase does not change like this');

-- One execution of a phase. It holds what the phase said when it was deployed.
create table execution.campaign_runs (
    id                  uuid        not null,
    tenant_id           uuid        not null,
    workspace_id        uuid        not null,
    campaign_id         uuid        not null,
    phase_id            uuid        not null,
    channel             text        not null,
    status              text        not null default 'queued',
    asset_id            uuid        not null,
    provider_account_id uuid        not null,
    provider            text        not null,
    scheduled_for       timestamptz,
    quiet_time          interval    not null,
    -- The third part of every item's key: the asset, the version of the script, or the word social.
    key_part            text        not null,
    intended            integer     not null,
    -- Leads of the list that have the same address as another one, and were left out.
    same_address        integer     not null default 0,
    correlation_id      uuid        not null,
    created_at          timestamptz not null default now(),
    started_at          timestamptz,
    finished_at         timestamptz,
    primary key (id),
    constraint campaign_runs_one_per_tenant_and_id unique (tenant_id, id),
    constraint campaign_runs_belong_to_a_phase
        foreign key (tenant_id, phase_id) references execution.campaign_phases (tenant_id, id),
    constraint campaign_runs_belong_to_a_campaign
        foreign key (tenant_id, campaign_id) references execution.campaigns (tenant_id, id),
    constraint campaign_runs_channel_check check (channel in ('email', 'voice', 'social')),
    constraint campaign_runs_status_check
        check (status in ('queued', 'running', 'completed', 'partial', 'failed')),
    constraint campaign_runs_intend_something check (intended > 0)
);
create index campaign_runs_by_campaign on execution.campaign_runs (tenant_id, campaign_id, created_at);
create index campaign_runs_by_phase on execution.campaign_runs (tenant_id, phase_id, created_at);
create index campaign_runs_by_correlation on execution.campaign_runs (tenant_id, correlation_id);
select tenancy.protect('execution.campaign_runs');

create trigger campaign_runs_change_as_the_table_says
    before update of status on execution.campaign_runs
    for each row
    when ((old.status, new.status) not in (('queued', 'running'),
                                           ('running', 'completed'),
                                           ('running', 'partial'),
                                           ('running', 'failed')))
    execute function tenancy.refuse_change('a run does not change like this');
create trigger campaign_runs_ends_are_final
    before update on execution.campaign_runs
    for each row
    when (old.status in ('completed', 'partial', 'failed'))
    execute function tenancy.refuse_change('a run that has ended never changes');
create trigger campaign_runs_are_facts
    before update of id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id, provider_account_id, provider,
                     scheduled_for, quiet_time, key_part, intended, same_address, correlation_id, created_at
    on execution.campaign_runs
    for each row
    execute function tenancy.refuse_change('what was deployed stays as it was deployed');

-- A part of a run that one worker holds at a time. `item_ids` are the items that it must bring to an end, so that
-- "every intended item has a row" can be checked.
create table execution.job_queue (
    id           uuid        not null,
    tenant_id    uuid        not null,
    workspace_id uuid        not null,
    run_id       uuid        not null,
    position     integer     not null,
    job_type     text        not null,
    status       text        not null default 'queued',
    outcome      text,
    attempts     integer     not null default 0,
    max_attempts integer     not null default 5,
    run_after    timestamptz not null default now(),
    locked_by    text,
    locked_at    timestamptz,
    last_error   text,
    item_ids     uuid[]      not null,
    -- How the items ended, written when the job ends.
    succeeded    integer,
    failed       integer,
    skipped      integer,
    created_at   timestamptz not null default now(),
    finished_at  timestamptz,
    primary key (id),
    constraint job_queue_one_per_tenant_and_id unique (tenant_id, id),
    constraint job_queue_belongs_to_a_run
        foreign key (tenant_id, run_id) references execution.campaign_runs (tenant_id, id),
    constraint job_queue_type_check check (job_type in ('email_send_batch', 'voice_call_batch', 'social_post_batch')),
    constraint job_queue_status_check check (status in ('queued', 'locked', 'completed', 'failed', 'dead')),
    constraint job_queue_outcome_check check (outcome in ('completed', 'partial', 'failed')),
    constraint job_queue_ends_with_an_outcome check ((status in ('completed', 'dead')) = (outcome is not null)),
    constraint job_queue_attempts_are_bounded check (attempts >= 0 and max_attempts >= 1),
    constraint job_queue_lock_has_a_holder
        check ((status = 'locked') = (locked_by is not null) and (locked_by is null) = (locked_at is null)),
    constraint job_queue_has_items check (cardinality(item_ids) between 1 and 10000)
) with (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
-- For claims: a tenant's waiting jobs, those that were ready first in front.
create index job_queue_waiting on execution.job_queue (tenant_id, run_after, id) where status = 'queued';
-- For the sweep: locks that went stale, and retries that are due.
create index job_queue_locked on execution.job_queue (locked_at) where status = 'locked';
create index job_queue_retries on execution.job_queue (run_after) where status = 'failed';
create index job_queue_by_run on execution.job_queue (tenant_id, run_id, position);
-- For the end of a run: whether anything of it is left to do.
create index job_queue_open on execution.job_queue (run_id) where status in ('queued', 'locked', 'failed');
select tenancy.protect('execution.job_queue');

create trigger job_queue_changes_as_the_table_says
    before update of status on execution.job_queue
    for each row
    when ((old.status, new.status) not in (('queued', 'locked'),
                                           ('locked', 'completed'),
                                           ('locked', 'failed'),
                                           ('locked', 'queued'),
                                           ('failed', 'queued'),
                                           ('failed', 'dead')))
    execute function tenancy.refuse_change('a job does not change like this');
create trigger job_queue_ends_are_final
    before update on execution.job_queue
    for each row
    when (old.status in ('completed', 'dead'))
    execute function tenancy.refuse_change('a job that has ended never changes');
create trigger job_queue_intentions_are_facts
    before update of id, tenant_id, workspace_id, run_id, position, job_type, item_ids, max_attempts, created_at
    on execution.job_queue
    for each row
    execute function tenancy.refuse_change('what was intended stays as it was intended');

-- One row per item and key: the reservation of a provider call, then its record. The unique key is what makes a second
-- call impossible; a row is never removed, and never released once it is there.
--
-- Half of each page is left free and no index mentions a column that settling changes, so that settling rewrites
-- the row in place. What is in doubt is found by `in_doubt_since`, which an item that goes well never has.
--
-- `run_id` and `job_id` have no foreign keys: only begin_outbox_items adds rows, from a job that it has locked, and neither
-- jobs nor runs can be removed.
create table execution.channel_outbox (
    id                  uuid        not null default gen_random_uuid(),
    tenant_id           uuid        not null,
    workspace_id        uuid        not null,
    run_id              uuid        not null,
    job_id              uuid        not null,
    channel             text        not null,
    provider            text        not null,
    recipient_id        uuid,
    recipient           text,
    idempotency_key     text        not null,
    status              text        not null default 'queued',
    skipped             boolean     not null default false,
    provider_message_id text,
    error               text,
    reserved_by         text,
    attempt             integer,
    message_hash        bytea,
    created_at          timestamptz not null default now(),
    finalized_at        timestamptz,
    in_doubt_since      timestamptz,
    primary key (id),
    constraint channel_outbox_status_check
        check (status in ('queued', 'sent', 'called', 'posted', 'failed', 'skipped')),
    constraint channel_outbox_skipped_status_check check (skipped = false or status = 'skipped'),
    constraint channel_outbox_only_queued_is_in_doubt check (in_doubt_since is null or status = 'queued'),
    constraint channel_outbox_one_row_per_key unique (tenant_id, workspace_id, idempotency_key)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 1
);
create index idx_channel_outbox_run_id on execution.channel_outbox (run_id);
create index channel_outbox_by_job on execution.channel_outbox (job_id);
create index channel_outbox_in_doubt on execution.channel_outbox (in_doubt_since) where in_doubt_since is not null;
select tenancy.protect('execution.channel_outbox');

create trigger channel_outbox_ends_are_final
    before update on execution.channel_outbox
    for each row
    when (old.status <> 'queued')
    execute function tenancy.refuse_change('an item that has ended never changes; sending again is a new run');
create trigger channel_outbox_doubts_end_with_the_item
    before update on execution.channel_outbox
    for each row
    when (old.in_doubt_since is not null and new.in_doubt_since is null and new.status = 'queued')
    execute function tenancy.refuse_change('an item stays in doubt until it is known how it ended');
create trigger channel_outbox_reservations_are_facts
    before update of id, tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id, recipient,
                     idempotency_key, reserved_by, attempt, message_hash, created_at
    on execution.channel_outbox
    for each row
    execute function tenancy.refuse_change('a reservation stays as it was made');

-- Every change of a campaign, phase, run and job, every doubt and how it was settled, and who did it. What went well
-- with an item is its own row, and is not repeated here.
create table execution.campaign_audit_log (
    id          bigint      generated always as identity,
    tenant_id   uuid        not null references tenancy.tenants (id),
    campaign_id uuid,
    phase_id    uuid,
    run_id      uuid,
    job_id      uuid,
    outbox_id   uuid,
    at          timestamptz not null default now(),
    actor       text        not null,
    action      text        not null,
    note        text,
    primary key (id),
    constraint campaign_audit_log_actor_is_named check (btrim(actor) <> '')
);
create index campaign_audit_log_by_run on execution.campaign_audit_log (tenant_id, run_id, id);
create index campaign_audit_log_by_campaign on execution.campaign_audit_log (tenant_id, campaign_id, id);
create index campaign_audit_log_by_item on execution.campaign_audit_log (outbox_id) where outbox_id is not null;
select tenancy.protect('execution.campaign_audit_log');

-- When a tenant's jobs were last taken: whoever waited longest is next. A matter of fairness, never of correctness.
create table execution.turns (
    tenant_id    uuid        not null references tenancy.tenants (id),
    last_turn_at timestamptz not null default '-infinity',
    primary key (tenant_id)
) with (fillfactor = 50);
select tenancy.protect('execution.turns');

-- Nothing accepted is lost, and the log is append-only.
create trigger campaign_audit_log_is_append_only
    before update or delete on execution.campaign_audit_log
    for each row
    execute function tenancy.refuse_change('the audit log is append-only');
create trigger campaign_audit_log_is_never_emptied
    before truncate on execution.campaign_audit_log
    for each statement
    execute function tenancy.refuse_change('the audit log is append-only');
create trigger campaign_runs_are_never_removed
    before delete on execution.campaign_runs
    for each row
    execute function tenancy.refuse_change('runs are kept');
create trigger campaign_runs_are_never_emptied
    before truncate on execution.campaign_runs
    for each statement
    execute function tenancy.refuse_change('runs are kept');
create trigger job_queue_is_never_removed_from
    before delete on execution.job_queue
    for each row
    execute function tenancy.refuse_change('jobs are kept');
create trigger job_queue_is_never_emptied
    before truncate on execution.job_queue
    for each statement
    execute function tenancy.refuse_change('jobs are kept');
create trigger channel_outbox_is_never_removed_from
    before delete on execution.channel_outbox
    for each row
    execute function tenancy.refuse_change('a key that was used stays used');
create trigger channel_outbox_is_never_emptied
    before truncate on execution.channel_outbox
    for each statement
    execute function tenancy.refuse_change('a key that was used stays used');

grant select on execution.campaigns, execution.campaign_phases, execution.campaign_runs, execution.job_queue,
                execution.channel_outbox, execution.campaign_audit_log
    to postrider_app, postrider_worker, postrider_read;
