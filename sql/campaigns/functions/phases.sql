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
           when p_trigger = 'fail' then 'failed'
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

create or replace function execution.control_phase(
    p_tenant_id uuid, p_campaign_id uuid, p_phase text, p_trigger text, p_expected text, p_actor text,
    p_reason text default null, p_job_size integer default 500)
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
    v_doubts bigint;
    v_sequence bigint;
    v_second bigint;
begin
    perform tenancy.require_tenant(p_tenant_id);
    perform tenancy.limit_idle_time();
    if v_goal is null then
        raise exception 'a phase is not controlled by `%`', coalesce(p_trigger, 'null')
            using errcode = 'invalid_parameter_value', hint = 'Use start, pause, resume, retry, rerun, complete or fail.';
    end if;
    if coalesce(btrim(p_actor), '') = '' then
        raise exception 'p_actor must not be empty' using errcode = 'invalid_parameter_value';
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
    if execution.phase_target(p_trigger, v_phase.status) is null then
        return query select 'conflict', v_phase.status, v_phase.kind,
                            'a phase that is ' || v_phase.status || ' cannot ' || p_trigger, v_sequence, v_run.id,
                            v_run.intended::bigint, null::bigint;
        return;
    end if;

    if p_trigger = 'start' then
        v_sequence := execution.start_phase(p_tenant_id, p_campaign_id, v_phase.id, gen_random_uuid(), p_job_size, p_actor, v_reason);
    elsif p_trigger = 'retry' and v_phase.kind = 'delivery' then
        v_run_id := execution.create_run(p_tenant_id, v_phase.id, gen_random_uuid(), 'retry', p_job_size, p_actor);
        if v_run_id is null then
            select count(*)
              into v_doubts
              from execution.channel_outbox as item
             where item.tenant_id = p_tenant_id
               and item.run_id = any (execution.runs_since_all(p_tenant_id, v_phase.id))
               and item.status = 'queued';
            if v_doubts > 0 then
                return query select 'conflict', v_phase.status, v_phase.kind,
                                    'nothing of it failed for certain; ' || v_doubts || ' items are in doubt and must be settled first',
                                    v_sequence, v_run.id, v_run.intended::bigint, null::bigint;
                return;
            end if;
        end if;
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'retry', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', coalesce((select run.intended
                                    from execution.campaign_runs as run
                                   where run.tenant_id = p_tenant_id
                                     and run.id = v_run_id), 0),
                'reason', v_reason)));
        if v_run_id is null then
            -- Every item in doubt was settled as successful and nothing is left to send: tend_phase ends the phase.
            update execution.campaign_phases set due = 'end' where tenant_id = p_tenant_id and id = v_phase.id;
        end if;
    elsif p_trigger = 'rerun' and v_phase.kind = 'delivery' then
        v_run_id := execution.create_run(p_tenant_id, v_phase.id, gen_random_uuid(), 'rerun', p_job_size, p_actor);
        -- Count the recipients that got the message, or may have, and get it again.
        select count(distinct item.recipient_id)
          into v_second
          from execution.job_queue as job
               cross join lateral unnest(job.item_ids) as wanted (id)
               join execution.channel_outbox as item
                 on item.tenant_id = job.tenant_id and item.recipient_id = wanted.id
         where job.tenant_id = p_tenant_id
           and job.run_id = v_run_id
           and item.run_id in (select run.id
                                 from execution.campaign_runs as run
                                where run.tenant_id = p_tenant_id
                                  and run.phase_id = v_phase.id
                                  and run.id <> v_run_id)
           and item.status in ('sent', 'called', 'posted', 'queued');
        v_sequence := execution.enter_phase_state(
            p_tenant_id, p_campaign_id, v_phase.id, 'rerun', v_run_id, p_actor,
            jsonb_strip_nulls(jsonb_build_object(
                'items', (select run.intended
                                    from execution.campaign_runs as run
                                   where run.tenant_id = p_tenant_id
                                     and run.id = v_run_id),
                'secondMessages', v_second, 'reason', v_reason)));
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
comment on function execution.control_phase(uuid, uuid, text, text, text, text, text, integer) is
    'Applies a trigger (start, pause, resume, retry, rerun, complete or fail) to a phase of the tenant. outcome is '
    'changed; unchanged if the phase is already in the state that the trigger asks for, and then nothing is written; '
    'or conflict, with the reason. After a pause has committed, await_reservations waits for reservations that began '
    'before it.';
revoke all on function execution.control_phase(uuid, uuid, text, text, text, text, text, integer) from public;
grant execute on function execution.control_phase(uuid, uuid, text, text, text, text, text, integer) to postrider_app;
