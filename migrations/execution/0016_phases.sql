-- Phases are controlled, and what happens to a campaign is one ordered history.
-- Safe beside running workers: columns with constant defaults, a new table, and functions that are replaced whole.

alter table execution.campaigns
    -- The number of the newest event. Whoever writes an event holds this row until its commit, so numbers have no gaps and
    -- follow the order of commits.
    add column sequence           bigint not null default 0,
    -- Events up to this number were removed.
    add column pruned_through     bigint not null default 0,
    add column progress_at        timestamptz,
    -- Why the last successor was not started.
    add column not_advanced       text,
    add constraint campaigns_prune_what_happened check (pruned_through between 0 and sequence);

alter table execution.campaign_phases
    -- What the last progress event said.
    add column progress           numeric(4, 1) not null default 0,
    -- What was reported since, and waits for its event.
    add column progress_reported  numeric(4, 1),
    -- What is to be done by itself: its successor is to be started, or its run has ended and so must it.
    add column due                text,
    add constraint campaign_phases_due_check check (due in ('advance', 'end')),
    add constraint campaign_phases_progress_is_a_percentage check (progress between 0 and 100),
    add constraint campaign_phases_reports_are_percentages check (progress_reported between 0 and 100);
create index campaign_phases_due on execution.campaign_phases (tenant_id, id) where due is not null;
create index campaign_phases_reported on execution.campaign_phases (tenant_id, id) where progress_reported is not null;

-- So far `auto_advance` had no effect: what was begun by hand is not to go on by itself all at once.
update execution.campaigns as campaign
   set auto_advance = false
 where campaign.auto_advance
   and exists (select
                 from execution.campaign_phases as phase
                where phase.tenant_id = campaign.tenant_id
                  and phase.campaign_id = campaign.id
                  and phase.status <> 'not_started');

-- Why a run was made. A retry takes what failed since the last run of everybody. Runs of a phase are numbered under its campaign's
-- lock: which one is newest is not a matter of clocks.
alter table execution.campaign_runs
    add column number integer not null default 1,
    add column cause text not null default 'start',
    add constraint campaign_runs_are_numbered unique (tenant_id, phase_id, number),
    add constraint campaign_runs_cause_check check (cause in ('start', 'retry', 'rerun'));
create trigger campaign_runs_causes_are_facts
    before update of cause, number on execution.campaign_runs
    for each row
    execute function tenancy.refuse_change('what was deployed stays as it was deployed');

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
        check (type in ('phase_started', 'phase_paused', 'phase_resumed', 'phase_completed', 'phase_failed', 'campaign_progress'))
);
create index campaign_events_by_time on execution.campaign_events (at);
select tenancy.protect('execution.campaign_events');
create trigger campaign_events_are_facts
    before update on execution.campaign_events
    for each row
    execute function tenancy.refuse_change('what has happened does not change');
create trigger campaign_events_stay_for_an_hour
    before delete on execution.campaign_events
    for each row
    when (old.at > now() - interval '1 hour')
    execute function tenancy.refuse_change('readers may still ask for it');
create trigger campaign_events_are_never_emptied
    before truncate on execution.campaign_events
    for each statement
    execute function tenancy.refuse_change('what has happened does not change');
grant select on execution.campaign_events to postrider_app, postrider_worker, postrider_read;

-- Where a trigger leads from a state; null when it leads nowhere. The same table as in the model: a test compares them.
create function execution.phase_target(p_trigger text, p_from text)
returns text
language sql
immutable
parallel safe
return case
           when (p_trigger, p_from) in (('start', 'not_started'), ('resume', 'paused'), ('retry', 'failed'), ('rerun', 'completed'))
               then 'in_progress'
           when (p_trigger, p_from) = ('pause', 'in_progress') then 'paused'
           when (p_trigger, p_from) = ('complete', 'in_progress') then 'completed'
           when (p_trigger, p_from) = ('fail', 'in_progress') then 'failed'
       end;

-- The state that a trigger asks for, wherever it comes from.
create function execution.phase_goal(p_trigger text)
returns text
language sql
immutable
parallel safe
return case
           when p_trigger in ('start', 'resume', 'retry', 'rerun') then 'in_progress'
           when p_trigger = 'pause' then 'paused'
           when p_trigger = 'complete' then 'completed'
           when p_trigger = 'fail' then 'failed'
       end;

-- Writes the next event of a campaign, whose row the caller has locked. A change of a phase's state goes out to the world as
-- well; progress does not.
create function execution.note_event(
    p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_type text, p_payload jsonb)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before constant text := current_setting('app.current_tenant_id', true);
    v_sequence bigint;
    v_at timestamptz := clock_timestamp();
begin
    update execution.campaigns
       set sequence = sequence + 1
     where tenant_id = p_tenant_id
       and id = p_campaign_id
 returning sequence
      into strict v_sequence;
    -- Clocks may step back; a history does not.
    v_at := greatest(v_at, (select event.at
                              from execution.campaign_events as event
                             where event.tenant_id = p_tenant_id
                               and event.campaign_id = p_campaign_id
                               and event.sequence = v_sequence - 1));
    insert into execution.campaign_events (tenant_id, campaign_id, sequence, type, phase, at, payload)
    values (p_tenant_id, p_campaign_id, v_sequence, p_type, p_phase, v_at, p_payload);
    if p_type <> 'campaign_progress' then
        perform set_config('app.current_tenant_id', p_tenant_id::text, true);
        perform m10_recovery.publish_outbox(
            'campaign', p_campaign_id::text, 'campaign.' || p_type,
            jsonb_build_object(
                'type', p_type, 'campaignId', p_campaign_id, 'phase', p_phase, 'sequence', v_sequence,
                'timestamp', to_char(v_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'payload', p_payload));
        perform set_config('app.current_tenant_id', coalesce(v_before, ''), true);
    end if;
    perform pg_notify('postrider_campaign_events', '');
    return v_sequence;
end
$$;

-- Says how far a phase is, if that is news: at most two events a second for a campaign, and what comes in between waits for the next.
-- The last one is always said. The caller has locked the campaign.
create function execution.note_progress_of(p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_progress numeric)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_progress constant numeric := trunc(least(p_progress, 100), 1);
    v_phase record;
begin
    select phase.phase, phase.progress,
           campaign.progress_at is null or campaign.progress_at <= clock_timestamp() - interval '500 milliseconds' as is_due
      into strict v_phase
      from execution.campaign_phases as phase
           join execution.campaigns as campaign
             on campaign.tenant_id = phase.tenant_id and campaign.id = phase.campaign_id
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id
       for no key update of phase;
    if v_phase.progress = v_progress or v_phase.is_due then
        update execution.campaign_phases as phase
           set progress = v_progress,
               progress_reported = null
         where phase.tenant_id = p_tenant_id
           and phase.id = p_phase_id
           and (phase.progress <> v_progress or phase.progress_reported is not null);
    else
        update execution.campaign_phases as phase
           set progress_reported = v_progress
         where phase.tenant_id = p_tenant_id
           and phase.id = p_phase_id
           and phase.progress_reported is distinct from v_progress;
        return;
    end if;
    if v_phase.progress <> v_progress then
        update execution.campaigns
           set progress_at = clock_timestamp()
         where tenant_id = p_tenant_id
           and id = p_campaign_id;
        perform execution.note_event(p_tenant_id, p_campaign_id, v_phase.phase, 'campaign_progress',
                                     jsonb_build_object('progressPercentage', v_progress));
    end if;
end
$$;

-- Changes the state of a phase and writes it down everywhere. The caller has locked the campaign and the phase, in this order, as
-- everybody does.
create function execution.enter_phase_state(
    p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_trigger text, p_run_id uuid, p_actor text, p_details jsonb)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_status constant text := execution.phase_goal(p_trigger);
    v_before text;
    v_phase record;
    v_sequence bigint;
begin
    select phase.status
      into strict v_before
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    update execution.campaign_phases as phase
       set status = v_status,
           updated_at = now(),
           due = case
                     when v_status = 'completed'
                          and (select campaign.auto_advance
                                 from execution.campaigns as campaign
                                where campaign.tenant_id = p_tenant_id
                                  and campaign.id = p_campaign_id)
                         then 'advance'
                 end
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id
 returning phase.phase, phase.progress_reported
      into strict v_phase;
    perform execution.audit(p_tenant_id, p_campaign_id, p_phase_id, p_run_id, null, null, p_actor, 'phase.' || v_status,
                            v_phase.phase || ' (' || p_trigger || ')');
    -- If there is room for it: what was reported belongs to the state in which it was.
    if v_phase.progress_reported is not null then
        perform execution.note_progress_of(p_tenant_id, p_campaign_id, p_phase_id, v_phase.progress_reported);
    end if;
    v_sequence := execution.note_event(
        p_tenant_id, p_campaign_id, v_phase.phase,
        case p_trigger
            when 'pause' then 'phase_paused'
            when 'resume' then 'phase_resumed'
            when 'complete' then 'phase_completed'
            when 'fail' then 'phase_failed'
            else 'phase_started'
        end,
        jsonb_strip_nulls(jsonb_build_object('status', v_status, 'previousStatus', v_before, 'trigger', p_trigger,
                                             'runId', p_run_id)) || coalesce(p_details, '{}'));
    if p_trigger in ('start', 'retry', 'rerun') then
        perform execution.note_progress_of(p_tenant_id, p_campaign_id, p_phase_id, 0);
    end if;
    return v_sequence;
end
$$;

revoke all on all functions in schema execution from public;
