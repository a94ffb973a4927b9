-- The history of campaigns: the audit log, and the numbered events that readers follow.

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
    primary key (tenant_id, id),
    constraint campaign_audit_log_actor_is_named check (btrim(actor) <> '')
);
alter table execution.campaign_audit_log alter column tenant_id set statistics 0; -- as for leads
comment on table execution.campaign_audit_log is
    'Append-only log of every change of a campaign, phase, run and send job, and of every doubt and its settlement, with '
    'the actor. An item that goes well has no line here: its outbox row records it.';

create index campaign_audit_log_by_run on execution.campaign_audit_log (tenant_id, run_id, id);
create index campaign_audit_log_by_campaign on execution.campaign_audit_log (tenant_id, campaign_id, id);
create index campaign_audit_log_by_item on execution.campaign_audit_log (outbox_id) where outbox_id is not null;

create table execution.campaign_events (
    tenant_id   uuid        not null,
    campaign_id uuid        not null,
    sequence    bigint      not null,
    type        text        not null,
    phase       text        not null,
    at          timestamptz not null,
    payload     jsonb       not null,
    primary key (tenant_id, campaign_id, sequence),
    constraint campaign_events_belong_to_a_campaign
        foreign key (tenant_id, campaign_id) references execution.campaigns (tenant_id, id),
    constraint campaign_events_count_from_one check (sequence > 0),
    constraint campaign_events_type_check
        check (type in ('phase_started', 'phase_paused', 'phase_resumed', 'phase_completed', 'phase_failed',
                        'campaign_progress'))
);
comment on table execution.campaign_events is
    'The ordered history of a campaign. The numbers of a campaign''s events have no gaps and follow the order of '
    'commits. prune_campaign_events deletes old events.';

-- For pruning.
create index campaign_events_by_time on execution.campaign_events (at);
