-- Campaigns and their phases.

create table execution.campaigns (
    id             uuid        not null,
    tenant_id      uuid        not null,
    workspace_id   uuid        not null,
    name           text        not null,
    auto_advance   boolean     not null default true,
    created_at     timestamptz not null default now(),
    -- Number of the newest event. The writer of an event holds this row until its commit, so the numbers have no gaps
    -- and follow the order of commits.
    sequence       bigint      not null default 0,
    -- Events up to this number were deleted.
    pruned_through bigint      not null default 0,
    -- Time of the newest progress event.
    progress_at    timestamptz,
    -- Reason why the next phase could not be started automatically.
    not_advanced   text,
    primary key (tenant_id, id),
    constraint campaigns_belong_to_a_workspace
        foreign key (tenant_id, workspace_id) references tenancy.workspaces (tenant_id, id),
    constraint campaigns_name_is_given check (btrim(name) <> '' and octet_length(name) <= 255),
    constraint campaigns_one_per_name unique (tenant_id, workspace_id, name),
    constraint campaigns_prune_what_happened check (pruned_through between 0 and sequence)
);
alter table execution.campaigns alter column tenant_id set statistics 0; -- as for leads
comment on table execution.campaigns is
    'Campaigns. The row also counts the events of the campaign''s history and is the lock for every change of its '
    'phases.';

-- For the list of campaigns, newest first, page by page.
create index campaigns_by_age on execution.campaigns (tenant_id, created_at, id);

create table execution.campaign_phases (
    id                  uuid          not null,
    tenant_id           uuid          not null,
    workspace_id        uuid          not null,
    campaign_id         uuid          not null,
    position            integer       not null,
    phase               text          not null,
    kind                text          not null default 'delivery',
    channel             text,
    asset_id            uuid,
    list_id             uuid,
    provider_account_id uuid,
    failure_tolerance   numeric       not null default 0.05,
    scheduled_for       timestamptz,
    -- Time after a call within which a missing trace at the provider does not prove that nothing was sent.
    quiet_time          interval      not null default '11 minutes',
    status              text          not null default 'not_started',
    created_at          timestamptz   not null default now(),
    updated_at          timestamptz   not null default now(),
    -- Account for items that the first account provably did not send.
    failover_account_id uuid,
    -- Percentage in the newest progress event.
    progress            numeric(4, 1) not null default 0,
    -- Percentage that was reported since and waits for its event.
    progress_reported   numeric(4, 1),
    -- Work for tend_phase: start the next phase (advance), end this one because its run has ended (end), or skip the items that
    -- a canceled run has not tried (cancel).
    due                 text,
    -- Number of the event of the last change of the state.
    changed_sequence    bigint        not null default 0,
    -- The run that was canceled last. No item of it is reserved any more.
    canceled_run_id     uuid,
    primary key (tenant_id, id),
    constraint campaign_phases_belong_to_a_campaign
        foreign key (tenant_id, campaign_id) references execution.campaigns (tenant_id, id),
    constraint campaign_phases_send_an_asset
        foreign key (tenant_id, asset_id) references execution.assets (tenant_id, id),
    constraint campaign_phases_address_a_list
        foreign key (tenant_id, list_id) references execution.lead_lists (tenant_id, id),
    constraint campaign_phases_use_an_account
        foreign key (tenant_id, provider_account_id) references tenancy.provider_accounts (tenant_id, id),
    constraint campaign_phases_fail_over_to_an_account
        foreign key (tenant_id, failover_account_id) references tenancy.provider_accounts (tenant_id, id),
    constraint campaign_phases_fail_over_to_another_account check (failover_account_id <> provider_account_id),
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
    -- Times that have one spelling in an idempotency key, in SQL and in the clients.
    constraint campaign_phases_scheduled_in_a_plain_year
        check (scheduled_for >= timestamptz '0001-01-01 00:00:00+00'
               and scheduled_for < timestamptz '9999-01-01 00:00:00+00'),
    constraint campaign_phases_status_check
        check (status in ('not_started', 'in_progress', 'paused', 'completed', 'failed')),
    constraint campaign_phases_due_check check (due in ('advance', 'end', 'cancel')),
    constraint campaign_phases_progress_is_a_percentage check (progress between 0 and 100),
    constraint campaign_phases_reports_are_percentages check (progress_reported between 0 and 100)
);
alter table execution.campaign_phases alter column tenant_id set statistics 0; -- as for leads
comment on table execution.campaign_phases is
    'The phases of a campaign, in order. A delivery names the asset it sends, the list it addresses and the provider '
    'account it uses; an external phase is the work of another service.';

-- For the numbers of the overview.
create index campaign_phases_unfinished on execution.campaign_phases (tenant_id, status) where status <> 'completed';
-- For the phase advancer and for progress reports that wait for their event.
create index campaign_phases_due on execution.campaign_phases (tenant_id, id) where due is not null;
create index campaign_phases_reported on execution.campaign_phases (tenant_id, id) where progress_reported is not null;
