-- The state machine of phases and the function that controls it.

create or replace function execution.phase_target(p_trigger text, p_from text)
returns text
language sql
immutable
parallel safe
return case
           when (p_trigger, p_from) = ('start', 'not_started') then 'in_progress'
           when (p_trigger, p_from) = ('resume', 'paused') then 'in_progress'
           when (p_trigger, p_from) = ('retry', 'failed') then 'in_progress'
           when (p_trigger, p_from) = ('rerun', 'completed') then 'in_progress'
           when (p_trigger, p_from) = ('pause', 'in_progress') then 'paused'
           when (p_trigger, p_from) = ('complete', 'in_progress') then 'completed'
           when (p_trigger, p_from) = ('fail', 'in_progress') then 'failed'
       end;
comment on function execution.phase_target(text, text) is
    'Returns the state to which a trigger leads from a state, or null if the transition is not allowed. PHASE_MACHINE '
    'in the model is the same table, and a test compares the two.';
revoke all on function execution.phase_target(text, text) from public;

create or replace function execution.phase_goal(p_trigger text)
returns text
language sql
immutable
parallel safe
return case
           when p_trigger in ('start', 'resume', 'retry', 'rerun') then 'in_progress'
           when p_trigger = 'pause' then 'paused'
           when p_trigger = 'complete' then 'completed'
           when p_trigger in ('fail', 'cancel') then 'failed'
       end;
comment on function execution.phase_goal(text) is
    'Returns the state that a trigger asks for, whatever the current state is.';
revoke all on function execution.phase_goal(text) from public;

create or replace function execution.enter_phase_state(
    p_tenant_id uuid, p_campaign_id uuid, p_phase_id uuid, p_trigger text, p_run_id uuid, p_actor text, p_details jsonb)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_status constant text := execution.phase_goal(p_trigger);
    v_before text;
    v_due text;
    v_phase record;
    v_sequence bigint;
begin
    if v_status = 'completed' then
        select case when campaign.auto_advance then 'advance' end
          into v_due
          from execution.campaigns as campaign
         where campaign.tenant_id = p_tenant_id
           and campaign.id = p_campaign_id;
    end if;
    select phase.status
      into strict v_before
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    update execution.campaign_phases as phase
       set status = v_status,
           updated_at = now(),
           due = v_due
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id
 returning phase.phase, phase.progress_reported
      into strict v_phase;
    perform execution.audit(p_tenant_id, p_campaign_id, p_phase_id, p_run_id, null, null, p_actor, 'phase.' || v_status,
                            v_phase.phase || ' (' || p_trigger || ')');
    -- A progress report belongs to the state in which it was made; write it first if the rate limit of events
    -- allows.
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
                                             'runId', p_run_id, 'actor', p_actor)) || coalesce(p_details, '{}'));
    update execution.campaign_phases as phase
       set changed_sequence = v_sequence
     where phase.tenant_id = p_tenant_id
       and phase.id = p_phase_id;
    if p_trigger in ('start', 'retry', 'rerun') then
        perform execution.note_progress_of(p_tenant_id, p_campaign_id, p_phase_id, 0);
    end if;
    return v_sequence;
end
$$;
comment on function execution.enter_phase_state(uuid, uuid, uuid, text, uuid, text, jsonb) is
    'Changes the state of a phase and writes the audit line, the event and the domain event. Returns the number of '
    'the event. The caller has locked the campaign and then the phase.';
revoke all on function execution.enter_phase_state(uuid, uuid, uuid, text, uuid, text, jsonb) from public;

create or replace function execution.count_second_messages(p_tenant_id uuid, p_phase_id uuid, p_run_id uuid)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
    select count(distinct item.recipient_id)
      from execution.job_queue as job
           cross join lateral unnest(job.item_ids) as wanted (id)
           join execution.channel_outbox as item
             on item.tenant_id = job.tenant_id and item.recipient_id = wanted.id
     where job.tenant_id = p_tenant_id
       and job.run_id = p_run_id
       and item.run_id in (select run.id
                             from execution.campaign_runs as run
                            where run.tenant_id = p_tenant_id
                              and run.phase_id = p_phase_id
                              and run.id <> p_run_id)
       and item.status in ('sent', 'called', 'posted', 'queued')
$$;
comment on function execution.count_second_messages(uuid, uuid, uuid) is
    'Counts the recipients of a run that got the message in another run of the phase, or may have, and get it again.';
revoke all on function execution.count_second_messages(uuid, uuid, uuid) from public;

create or replace function execution.control_phase(
    p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text,
    p_reason text default null, p_job_size integer default 500, p_expected_sequence bigint default null,
    p_include_canceled boolean default false, p_only_failed boolean default false)
returns table (outcome text, status text, kind text, reason text, sequence bigint, run_id uuid, items bigint,
               second_messages bigint)
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_goal constant text := execution.phase_goal(p_trigger);
    v_reason constant text := nullif(left(btrim(p_reason), 2000), '');
    v_phase record;
    v_run record;
    v_run_id uuid;
    v_left record;
    v_sequence bigint;
    v_second bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if v_goal is null then
        raise exception 'a phase is not controlled by `%`', coalesce(p_trigger, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Use start, pause, resume, retry, rerun, cancel, complete or fail.';
    end if;
    if coalesce(btrim(p_actor), '') = '' then
        raise exception 'p_actor must not be empty' using errcode = 'invalid_parameter_value';
    end if;
    if p_include_canceled and p_trigger <> 'retry' or p_only_failed and p_trigger <> 'rerun' then
        raise exception 'only a retry includes canceled items, and only a rerun is limited to failed items'
            using errcode = 'invalid_parameter_value';
    end if;
    -- Lock the campaign before its phase, as every function does. The counter is read under the lock.
    select campaign.sequence
      into v_sequence
      from execution.campaigns as campaign
     where campaign.tenant_id = p_tenant_id
       and campaign.id = p_campaign_id
       for no key update;
    if not found then
        raise exception 'there is no campaign %', p_campaign_id
            using errcode = 'no_data_found', hint = '`postrider campaign status` lists them.';
    end if;
    select phase.*
      into v_phase
      from execution.campaign_phases as phase
     where phase.tenant_id = p_tenant_id
       and phase.campaign_id = p_campaign_id
       and phase.phase = p_phase
       for no key update;
    if not found then
        raise exception 'the campaign has no phase `%`', p_phase
            using errcode = 'no_data_found',
                  hint = (select 'It has: ' || string_agg(phase.phase, ', ' order by phase.position) || '.'
                            from execution.campaign_phases as phase
                           where phase.tenant_id = p_tenant_id and phase.campaign_id = p_campaign_id);
    end if;
    select run.id, run.status, run.intended
      into v_run
      from execution.campaign_runs as run
     where run.tenant_id = p_tenant_id
       and run.phase_id = v_phase.id
     order by run.number desc
     limit 1;

    if v_phase.kind = 'delivery' and p_trigger in ('complete', 'fail') then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a delivery ends when its items have; `' || p_trigger || '` is for phases that another service does',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if v_phase.kind <> 'delivery' and (p_trigger = 'cancel' or p_include_canceled or p_only_failed) then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'another service does this phase, so it has no items; `fail` ends it',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if v_phase.status = v_goal then
        return query select 'unchanged', v_phase.status, v_phase.kind, null::text, v_sequence, v_run.id, v_run.intended::bigint,
                            null::bigint;
        return;
    end if;
    if p_expected is not null and p_expected <> v_phase.status then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'the phase is ' || v_phase.status || ', not ' || p_expected || ' as expected',
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    if p_expected_sequence not between v_phase.changed_sequence and v_sequence then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            case
                                when p_expected_sequence > v_sequence then 'the campaign has no event ' || p_expected_sequence || ' yet'
                                else 'the phase changed at event ' || v_phase.changed_sequence || ', after event '
                                     || p_expected_sequence || ' as expected'
                            end,
                            v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
        return;
    end if;
    -- Cancel is `fail`, or `resume` and then `fail`.
    if p_trigger = 'cancel' and v_phase.status not in ('in_progress', 'paused')
       or p_trigger <> 'cancel' and execution.phase_target(p_trigger, v_phase.status) is null
    then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a phase that is ' || v_phase.status || ' cannot ' || p_trigger, v_sequence, v_run.id,
                            v_run.intended::bigint, null::bigint;
        return;
    end if;

    if p_trigger = 'start' then
        v_sequence := execution.start_phase(p_tenant_id, p_campaign_id, v_phase.id, gen_random_uuid(), p_job_size, p_actor, v_reason);
    elsif p_trigger = 'retry' and v_phase.kind = 'delivery' then
        if v_run.status in ('queued', 'running') then
            return query select 'conflict', v_phase.status, v_phase.kind,
                                'its canceled run has not ended yet: calls in flight and items that were not tried are still being '
                                || 'recorded; try again in a moment',
                                v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
            return;
        end if;
        v_run_id := execution.create_run(p_tenant_id, v_phase.id, gen_random_uuid(), 'retry', p_job_size, p_actor,
                                         p_include_canceled);
        if v_run_id is null then
            select count(*) filter (where item.status = 'queued') as doubts,
                   count(*) filter (where execution.was_canceled(item.status, item.error, item.reserved_by)) as canceled
              into v_left
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = any (execution.runs_since_all(p_tenant_id, v_phase.id));
            if v_left.doubts > 0 or v_left.canceled > 0 then
                return query select 'conflict', v_phase.status, v_phase.kind,
                                    case
                                        when v_left.canceled = 0 then
                                            'nothing of it failed for certain; ' || v_left.doubts
                                            || ' items are in doubt and must be settled first'
                                        else 'nothing of it failed for certain; ' || v_left.canceled
                                             || ' items were canceled, which a retry with `include_canceled` sends'
                                    end,
                                    v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
                return;
            end if;
        else
            v_second := execution.count_second_messages(p_tenant_id, v_phase.id, v_run_id);
        end if;
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'retry', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', coalesce((select run.intended
                                    from execution.campaign_runs as run
                                   where run.tenant_id = p_tenant_id
                                     and run.id = v_run_id), 0),
                'secondMessages', nullif(v_second, 0), 'includesCanceled', nullif(p_include_canceled, false),
                'reason', v_reason)));
        if v_run_id is null then
            -- Every item in doubt was settled as successful and nothing is left to send: tend_phase ends the phase.
            update execution.campaign_phases set due = 'end' where tenant_id = p_tenant_id and id = v_phase.id;
        end if;
    elsif p_trigger = 'rerun' and v_phase.kind = 'delivery' then
        -- A run of the failed items alone is a retry: the runs before it still tell who got the message.
        v_run_id := execution.create_run(p_tenant_id, v_phase.id, gen_random_uuid(),
                                         case when p_only_failed then 'retry' else 'rerun' end, p_job_size, p_actor);
        if v_run_id is null then
            return query select 'conflict', v_phase.status, v_phase.kind, 'nothing of it failed for certain', v_sequence, v_run.id,
                                v_run.intended::bigint, null::bigint;
            return;
        end if;
        v_second := execution.count_second_messages(p_tenant_id, v_phase.id, v_run_id);
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'rerun', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', (select run.intended
                                    from execution.campaign_runs as run
                                   where run.tenant_id = p_tenant_id
                                     and run.id = v_run_id),
                'secondMessages', v_second, 'only', case when p_only_failed then 'failed' end, 'reason', v_reason)));
    elsif p_trigger = 'cancel' then
        perform execution.audit(p_tenant_id, p_campaign_id, v_phase.id, v_run.id, null, null, p_actor, 'phase.canceled', v_reason);
        if v_phase.status = 'paused' then
            perform execution.enter_phase_state(p_tenant_id, p_campaign_id, v_phase.id, 'resume', v_run.id, p_actor,
                                                jsonb_build_object('control', 'cancel'));
        end if;
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'fail', v_run.id, p_actor,
            jsonb_strip_nulls(jsonb_build_object('control', 'cancel', 'reason', v_reason)));
        if v_run.status in ('queued', 'running') then
            update execution.campaign_phases
               set canceled_run_id = v_run.id,
                   due = 'cancel'
             where tenant_id = p_tenant_id
               and id = v_phase.id;
            perform execution.shelve_jobs(p_tenant_id, v_run.id);
        end if;
    else
        if p_trigger = 'complete' then
            perform execution.note_progress_of(p_tenant_id, p_campaign_id, v_phase.id, 100);
        end if;
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, p_trigger, v_run.id, p_actor,
            jsonb_strip_nulls(jsonb_build_object('reason', v_reason)));
        if p_trigger = 'pause' then
            perform execution.shelve_jobs(p_tenant_id, v_run.id);
        elsif p_trigger = 'resume' then
            perform execution.unshelve_jobs(p_tenant_id, v_run.id);
            if v_run.status in ('completed', 'partial', 'failed') then
                -- The last items of the run ended while the phase was paused: tend_phase ends the phase.
                update execution.campaign_phases set due = 'end' where tenant_id = p_tenant_id and id = v_phase.id;
            end if;
        end if;
    end if;
    return query
        select 'changed', phase.status, phase.kind, null::text, v_sequence, run.id, run.intended::bigint, v_second
          from execution.campaign_phases as phase
               left join lateral (
                   select newest.id, newest.intended
                     from execution.campaign_runs as newest
                    where newest.tenant_id = phase.tenant_id
                      and newest.phase_id = phase.id
                    order by newest.number desc
                    limit 1) as run on true
         where phase.tenant_id = p_tenant_id
           and phase.id = v_phase.id;
end
$$;
comment on function
    execution.control_phase(uuid, uuid, text, text, text, text, text, integer, bigint, boolean, boolean) is
    'Applies a control (start, pause, resume, retry, rerun, cancel, complete or fail) to a phase of the tenant. outcome is '
    'changed; unchanged if the phase is already in the state that the control asks for, and then nothing is written; '
    'or conflict, with the reason: the phase is not in the state p_expected, changed after event p_expected_sequence, or does '
    'not allow the control. After a pause or a cancel has committed, await_reservations waits for reservations that began '
    'before it.';
revoke all on function
    execution.control_phase(uuid, uuid, text, text, text, text, text, integer, bigint, boolean, boolean) from public;
grant execute on function
    execution.control_phase(uuid, uuid, text, text, text, text, text, integer, bigint, boolean, boolean) to postrider_app;
